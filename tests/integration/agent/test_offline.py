"""`attestation-agent offline`: what came in a file is for one TPM, once, in its time, and below every order."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from attestation.wire import b64encode
from attestation_agent.acts import ByCommands
from attestation_agent.commands import Outcome
from attestation_agent.exits import (
    AgentError,
    ApplyFailed,
    ConfigNotOpened,
    DirectiveRejected,
    Exit,
    UsageError,
)
from attestation_agent.main import main
from attestation_agent.offline import Place, read, take
from attestation_agent.talos.machined import Machined
from attestation_testing.talos.machined import FakeMachined
from tests.fixtures.in_process import InProcessService, in_process_service
from tests.integration.agent.rig import Rig
from tests.unit.service.test_dual_control import Everybody


@pytest.fixture
def service(tmp_path: Path) -> Iterator[InProcessService]:
    """A service that makes bundles."""
    with in_process_service(
        tmp_path / "service", compat_offline_bundle=True, enrollment_ca_unencrypted=True
    ) as found:
        yield found


@pytest.fixture
def rig(service: InProcessService, tmp_path: Path) -> Rig:
    """A machine that is attested, and took its first configuration a moment ago."""
    rig = Rig(service, tmp_path)
    rig.admitted()
    rig.service.clock.pass_(seconds=1)
    return rig


def made(rig: Rig) -> dict[str, Any]:
    """Have two people make the bundle of a machine."""
    service, people = rig.service, Everybody()
    resources = service.app.state.resources
    service.app.state.resources = replace(resources, oidc=people)
    path = f"/api/v1/machines/{rig.machine_id}/offline-bundle"
    with service.client() as http:
        answers = [http.post(path, headers=people.headers(name)) for name in ("anna", "bert")]
    service.app.state.resources = resources
    assert [answer.status_code for answer in answers] == [202, 200], answers[-1].text
    found: dict[str, Any] = answers[-1].json()
    return found


def taken(rig: Rig, bundle: dict[str, Any], *, ok: bool = True) -> Path:
    """Carry *bundle* to a machine in a file; return where its certificate is."""
    file = rig.config_path.with_name("bundle.json")
    file.write_text(json.dumps(bundle))
    directory = rig.config_path.with_name("key")

    def run(command: tuple[str, ...]) -> Outcome:
        rig.commands.append(command)
        return Outcome(ok=ok, text="exit status 0" if ok else "exit status 1")

    place = Place(
        state=rig.state,
        tpm=rig.open_tpm(),
        acts=ByCommands(config_path=rig.config_path, apply_command=("apply",), run=run),
        certificate_to=directory,
    )
    take(read(file), place, at=rig.service.clock.now())
    return directory


def test_the_machine_that_it_is_for_takes_it_once(rig: Rig) -> None:
    """Configuration applied, key and certificate written for their owner alone; a second time nothing happens."""
    bundle = made(rig)
    rig.config_path.unlink()
    directory = taken(rig, bundle)
    assert rig.service.canary in rig.config_path.read_text()
    assert rig.commands[-1] == ("apply", str(rig.config_path))
    key = load_pem_private_key((directory / "key.pem").read_bytes(), None)
    certificate = x509.load_pem_x509_certificate((directory / "cert.pem").read_bytes())
    assert certificate.public_key() == key.public_key()
    certificate.verify_directly_issued_by(x509.load_pem_x509_certificate((directory / "ca.pem").read_bytes()))
    assert {path.stat().st_mode & 0o777 for path in directory.iterdir()} == {0o600}
    applied = list(rig.commands)
    # Whichever of its two memories is lost: its token id is pushed out by those of 64 others.
    for forgotten in ("applied.json", "newest.json"):
        file = rig.state.directory / forgotten
        kept = file.read_bytes()
        file.unlink()
        with pytest.raises(DirectiveRejected, match="applied already"):
            taken(rig, bundle)
        file.write_bytes(kept)
    assert rig.commands == applied


@pytest.mark.threat("T160")
def test_another_machine_refuses_it(rig: Rig, service: InProcessService, tmp_path: Path) -> None:
    """Also one that pinned the same keys, and one that borrows the id of the first."""
    bundle, other = made(rig), Rig(service, tmp_path, seed=2)
    with pytest.raises(DirectiveRejected, match="no service activated this TPM"):
        taken(other, bundle)
    other.admitted()
    with pytest.raises(DirectiveRejected, match="for another machine"):
        taken(other, bundle)
    theirs = other.state.known_as()
    assert theirs is not None
    other.state.remember(replace(theirs, machine_id=rig.machine_id), at=service.clock.now())
    with pytest.raises(DirectiveRejected, match="for another machine"):
        taken(other, bundle)
    # Nor with the first one's disk in it.
    rig.open_tpm = other.open_tpm
    with pytest.raises(DirectiveRejected, match="no service activated this TPM"):
        taken(rig, bundle)


def _crossed(bundle: dict[str, Any]) -> None:
    """The key where the configuration is expected, and the reverse: both open in this TPM."""
    for one, other in (
        ("machineconfig", "enrollment_key_pem"),
        ("machineconfig_signature", "enrollment_key_signature"),
    ):
        bundle[one], bundle[other] = bundle[other], bundle[one]


def _another_ca(bundle: dict[str, Any]) -> None:
    bundle["enrollment_ca_pem"] = bundle["enrollment_cert_pem"]


def _another_configuration(bundle: dict[str, Any]) -> None:
    bundle["machineconfig"]["config_sha256"] = "0" * 64


def _another_token(bundle: dict[str, Any]) -> None:
    bundle["machineconfig"]["token_id"] = "0" * 16


def _changed(bundle: dict[str, Any]) -> None:
    bundle["machineconfig"]["ciphertext"] = b64encode(b"x" * 64)


def _key_of_another(bundle: dict[str, Any]) -> None:
    bundle["enrollment_key_signature"] = bundle["machineconfig_signature"]


@pytest.mark.threat("T160")
@pytest.mark.parametrize(
    ("spoil", "error", "why"),
    [
        (_crossed, DirectiveRejected, "another what"),
        (_another_ca, DirectiveRejected, "another certificates_sha256"),
        (_another_configuration, DirectiveRejected, "another config_sha256"),
        (_another_token, DirectiveRejected, "another token_id"),
        (_key_of_another, DirectiveRejected, "another what"),
        (_changed, ConfigNotOpened, "does not open"),
    ],
)
def test_what_was_changed_on_the_way_changes_nothing(
    rig: Rig, spoil: Callable[[dict[str, Any]], None], error: type[AgentError], why: str
) -> None:
    """Neither configuration, nor key, nor certificates; and the right file is still good."""
    bundle = made(rig)
    spoiled = json.loads(json.dumps(bundle))
    spoil(spoiled)
    before, commands = rig.config_path.read_bytes(), list(rig.commands)
    with pytest.raises(error, match=why):
        taken(rig, spoiled)
    assert (rig.config_path.read_bytes(), rig.commands) == (before, commands)
    assert not rig.config_path.with_name("key").exists()
    taken(rig, bundle)


@pytest.mark.threat("T160")
def test_an_older_file_does_not_follow_a_newer_one(rig: Rig) -> None:
    """Nor one whose certificate ended, nor one from the future."""
    old = made(rig)
    rig.service.clock.pass_(seconds=5)
    new = made(rig)
    taken(rig, new)
    with pytest.raises(DirectiveRejected, match="applied already"):
        taken(rig, old)
    rig.service.clock.pass_(seconds=5)
    assert rig.once() == 0  # within its lease
    last = made(rig)
    days = timedelta(days=400).total_seconds()
    for seconds in (days, -2 * days):
        rig.service.clock.pass_(seconds=seconds)
        with pytest.raises(DirectiveRejected, match="not valid at this time"):
            taken(rig, last)


@pytest.mark.threat("T160")
def test_halves_of_two_files_do_not_go_together(rig: Rig) -> None:
    """Both were signed for this TPM, and neither was taken: a key that was replaced comes back with no new file."""
    old = made(rig)
    new = made(rig)
    halves = (
        ("machineconfig", "machineconfig_signature"),
        ("enrollment_cert_pem", "enrollment_ca_pem", "enrollment_key_pem", "enrollment_key_signature"),
    )
    for members in halves:
        with pytest.raises(DirectiveRejected, match="another bundle"):
            taken(rig, {**new, **{name: old[name] for name in members}})
    taken(rig, new)


def _redelivered(rig: Rig, mark: str) -> Exit:
    """Deliver another configuration over the network, with *mark* in it."""
    for file in Path(rig.service.app.state.resources.settings.config_cache_dir).rglob("*.yaml"):
        file.write_text(f"{file.read_text()}\n# {mark}\n")
    rig.service.operator().act(rig.machine_id, "redeliver")
    return rig.once()


@pytest.mark.threat("T160")
def test_a_file_does_not_undo_what_came_later_over_the_network(rig: Rig) -> None:
    """An order of the two, whichever way they came; one that was made later is taken."""
    old = made(rig)
    rig.service.clock.pass_(seconds=5)
    assert _redelivered(rig, "newer") is Exit.OK
    with pytest.raises(DirectiveRejected, match="newer"):
        taken(rig, old)
    assert "newer" in rig.config_path.read_text()
    rig.service.clock.pass_(seconds=5)
    taken(rig, made(rig))


@pytest.mark.threat("T160")
def test_a_delivery_that_waits_is_in_the_order_too(rig: Rig) -> None:
    """An older file does not overtake what could not be applied yet; nor does that follow a file made later."""
    old = made(rig)
    rig.service.clock.pass_(seconds=5)
    rig.config_path.unlink()
    rig.config_path.mkdir()
    assert _redelivered(rig, "waits") is Exit.APPLY_FAILED
    rig.config_path.rmdir()
    with pytest.raises(DirectiveRejected, match="newer"):
        taken(rig, old)
    rig.service.clock.pass_(seconds=5)
    assert rig.state.pending_config() is not None
    taken(rig, made(rig))
    assert rig.state.pending_config() is None
    # What waited was dropped; the service offers what it has now, until it hears that this is applied.
    rig.config_path.write_text("as the file had it")
    assert rig.once() is Exit.OK
    assert "waits" in rig.config_path.read_text()
    rig.config_path.write_text("as it is")
    assert rig.once() is Exit.OK
    assert rig.config_path.read_text() == "as it is"


def test_key_and_certificate_are_not_dropped_unasked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whoever does not say where they go has nothing taken: the file is good once."""
    with pytest.raises(SystemExit) as ended:
        main(["offline", "--state-dir", str(tmp_path / "state"), "bundle.json"])
    assert ended.value.code == Exit.USAGE
    assert "--certificate-to --no-certificate is required" in capsys.readouterr().err
    assert not (tmp_path / "state").exists()
    assert (
        main(["offline", "--state-dir", str(tmp_path / "state"), "--no-certificate", "absent"]) == Exit.USAGE
    )
    assert "absent: No such file" in capsys.readouterr().err


def test_on_talos_a_file_goes_to_machined(rig: Rig, tmp_path: Path) -> None:
    """The configuration in it is opened, and lies nowhere."""
    file = tmp_path / "bundle.json"
    file.write_text(json.dumps(made(rig)))
    rig.config_path.unlink()
    with FakeMachined(tmp_path / "machine.sock") as talos:
        place = Place(
            state=rig.state,
            tpm=rig.open_tpm(),
            acts=Machined(talos.path, timeout_seconds=60.0),
            certificate_to=None,
        )
        take(read(file), place, at=rig.service.clock.now())
        assert rig.service.canary.encode() in (talos.config or b"")
    assert not rig.config_path.exists()
    kept = [p.read_bytes() for p in rig.state.directory.rglob("*") if p.is_file()]
    assert not any(rig.service.canary.encode() in each for each in kept)


@pytest.mark.threat("T160")
def test_an_order_stands_above_a_file(rig: Rig) -> None:
    """A locked machine stays as it is, whatever was made before."""
    bundle = made(rig)
    rig.service.operator().act(rig.machine_id, "lock")
    rig.once()
    with pytest.raises(DirectiveRejected, match="only the service ends that"):
        taken(rig, bundle)


def test_an_attempt_that_failed_may_be_repeated(rig: Rig) -> None:
    """Nothing was applied, so nothing is noted."""
    bundle = made(rig)
    with pytest.raises(ApplyFailed, match="exit status 1"):
        taken(rig, bundle, ok=False)
    taken(rig, bundle)


def test_what_is_no_bundle_is_said_to_be_none(tmp_path: Path) -> None:
    """In words, whatever is in the file."""
    file = tmp_path / "bundle.json"
    with pytest.raises(UsageError, match="No such file"):
        read(file)
    file.write_text("{}")
    with pytest.raises(UsageError, match="holds no offline bundle"):
        read(file)


@pytest.mark.threat("T160")
def test_an_online_delivery_is_no_file_and_a_file_no_delivery(rig: Rig) -> None:
    """Each has its own `typ`: what answered a request once is not carried again, and what has no nonce is no answer."""
    bundle = made(rig)
    spoiled = json.loads(json.dumps(bundle))
    signer = rig.service.app.state.resources.signer
    spoiled["machineconfig_signature"] = signer.sign_jwt({"binding": {}}, typ="itl-config+jwt")
    with pytest.raises(DirectiveRejected, match="not proven"):
        taken(rig, spoiled)
