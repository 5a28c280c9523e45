"""`attestation result verify`: a relying party's own verdict, without the service."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner, Result
from cryptography.hazmat.primitives.asymmetric import ec

from attestation.appraisal import recalled
from attestation.keys import KeySigner
from attestation.results import (
    Assurance,
    AttestationResult,
    Failed,
    Flagged,
    Outcome,
    Passed,
    Subject,
    conclude,
)
from attestation.results.ear import TYP, Profile, ear_claims
from attestation_cli.main import cli
from attestation_cli.session import Session
from tests.fixtures.over_httpx import OverHTTPX
from tests.unit.cli.stub import Stub

SIGNER = KeySigner(ec.generate_private_key(ec.SECP384R1()))
NONCE = "b3IgdGhpcnR5LXR3byByYW5kb20gYnl0ZXMgaGVyZSE="
BOOT = (
    Subject.FIRMWARE_SETTINGS,
    Subject.SECURE_BOOT_SETTINGS,
    Subject.BOOT_LOADER,
    Subject.KERNEL,
    Subject.INITRD,
    Subject.COMMAND_LINE,
)
GOOD: tuple[Outcome, ...] = (Passed("tpm-quote"), Passed("pcr4"), Passed("pcr7"))


def claims(*outcomes: Outcome, age: timedelta = timedelta(seconds=5), **more: Any) -> dict[str, Any]:
    at = datetime.now(UTC) - age
    return ear_claims(
        AttestationResult(
            verdict=conclude(outcomes),
            at=at,
            policy="fleet@1+workers@3",
            outcomes=tuple(map(recalled, outcomes)),
            boot_state_appraised=BOOT if Passed("pcr4") in outcomes else (),
            pcr_digest="00" * 32,
        ),
        machine_id="7a0e3c1e-6a43-4c5b-9d0a-000000000001",
        ek_fingerprint="ab" * 48,
        assurance=Assurance.EK_CHAIN,
        nonce=NONCE,
        issuer="https://attestation.example",
        expires_at=at + timedelta(seconds=180),
        build="0.1.0",
        **more,
    )


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    path = tmp_path / "service.jwks"
    path.write_text(json.dumps(SIGNER.jwks()))
    return path


def run(said: dict[str, Any] | bytes, *arguments: str, carrier: OverHTTPX | None = None) -> Result:
    token = said if isinstance(said, bytes) else SIGNER.sign_jwt(said, typ=TYP).encode() + b"\n"
    return CliRunner().invoke(
        cli,
        ["result", "verify", "-", *arguments],
        input=token,
        obj=Session(carrier=carrier),
        catch_exceptions=False,
        terminal_width=100,
    )


def test_a_good_result_in_words(keys: Path) -> None:
    """Verdict, machine, policy, and every claim of the vector in words; exit 0."""
    done = run(claims(*GOOD, tell_checks=True), "--keys", str(keys))
    assert done.exit_code == 0, done.output
    told = {line[:18].strip(): line[18:].strip() for line in done.stdout.splitlines()}
    assert told["status"] == "affirming"
    assert told["machine"] == "7a0e3c1e-6a43-4c5b-9d0a-000000000001"
    assert told["policy"] == "fleet@1, workers@3"
    assert told["verdict"] == "Verified"
    assert told["instance identity"] == "recognised, not known to be compromised (2)"
    assert told["executables"] == "only approved ones during boot (3)"
    assert told["configuration"] == "known and approved (2)"
    assert told["hardware"] == "genuine (2)"
    assert told["checks"] == "tpm-quote passed, pcr4 passed, pcr7 passed"
    assert told["compared"] == (
        "firmware-settings, secure-boot-settings, boot-loader, kernel, initrd, command-line"
    )
    assert "file system" not in told


def test_what_nothing_is_said_of_is_seen(keys: Path) -> None:
    """A result that says nothing of the boot says so, instead of leaving it to be assumed."""
    done = run(claims(Passed("tpm-quote")), "--keys", str(keys))
    assert done.exit_code == 0
    assert done.stdout.count("nothing is said: not all that it needs was compared") == 2


def test_a_bad_result(keys: Path) -> None:
    """A genuine token about a machine that is not as expected: told, and exit 1."""
    done = run(claims(*GOOD, Failed("pcr0", "aa", "bb")), "--keys", str(keys))
    assert done.exit_code == 1
    assert "contraindicated" in done.stdout
    assert "unrecognised ones (33)" in done.stdout


def test_a_warning_is_accepted_only_where_asked(keys: Path) -> None:
    """Known weak firmware: the verdict is Verified, the status is warning."""
    said = claims(*GOOD, Flagged("firmware-blocklist", "CVE-2023-1017"))
    assert run(said, "--keys", str(keys)).exit_code == 1
    assert run(said, "--keys", str(keys), "--accept-warning").exit_code == 0


def test_what_proves_nothing(keys: Path, tmp_path: Path) -> None:
    """Another key, issuer, nonce, profile or time: nothing is shown as if it were true, exit 1."""
    stranger = tmp_path / "stranger.jwks"
    stranger.write_text(json.dumps(KeySigner(ec.generate_private_key(ec.SECP384R1())).jwks()))
    good = claims(*GOOD)
    for done in (
        run(good, "--keys", str(stranger)),
        run(good, "--keys", str(keys), "--issuer", "https://other.example"),
        run(good, "--keys", str(keys), "--nonce", "AAAAAAAAAAAA"),
        run(good, "--keys", str(keys), "--ear-profile", "veraison-2023"),
        run(claims(*GOOD, age=timedelta(seconds=181)), "--keys", str(keys)),
        run(b"not.a.token", "--keys", str(keys)),
    ):
        assert done.exit_code == 1
        assert done.stdout == ""
        assert "this result proves nothing" in done.stderr


def test_each_demand_that_holds(keys: Path) -> None:
    """The same demands, met, change nothing."""
    for profile, word in ((Profile.EAR_04, "ear-04"), (Profile.VERAISON_2023, "veraison-2023")):
        said = claims(*GOOD, profile=profile)
        more = ("--issuer", "https://attestation.example", "--nonce", NONCE, "--ear-profile", word)
        assert run(said, "--keys", str(keys), *more).exit_code == 0


def test_for_programs(keys: Path) -> None:
    """As JSON: what the token says, under plain names."""
    done = run(claims(*GOOD), "--keys", str(keys), "-o", "json")
    found = json.loads(done.stdout)
    assert found["status"] == "affirming"
    assert found["nonce"] == NONCE
    assert found["submods"]["tpm"]["trustworthiness_vector"]["executables"] == 3
    assert found["submods"]["tpm"]["policies"] == ["fleet@1", "workers@3"]
    assert found["expires_at"].endswith("Z")


def test_several_attesters(keys: Path) -> None:
    """Each submodule is told under its label; what a stranger wrote there does no harm."""
    said = claims(*GOOD)
    said["submods"]["gpu\x1b[2J"] = {
        "ear_status": "none",
        "ear_verifier_claims": {"verdict": "ok\x1b[2J", "checks": ["x", {"code": "\x1b[2J"}]},
    }
    done = run(said, "--keys", str(keys))
    assert done.exit_code == 1
    assert "tpm: executables" in done.stdout
    assert "\x1b" not in done.stdout


def test_keys_of_the_service() -> None:
    """With --server the keys come from the public route; no login is needed."""

    def answer(request: httpx.Request) -> httpx.Response | None:
        assert "authorization" not in request.headers
        return httpx.Response(200, json=SIGNER.jwks()) if request.url.path.endswith("service-keys") else None

    done = run(claims(*GOOD), "--server", carrier=Stub(before=answer).carrier)
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize("content", ["", "[]", '{"keys": {}}', "[" * 9999])
def test_a_file_that_holds_no_keys(content: str, tmp_path: Path) -> None:
    """Keys that cannot be read are a mistake of the caller, exit 2, and never an empty set that verifies nothing."""
    path = tmp_path / "keys"
    path.write_text(content)
    assert run(claims(*GOOD), "--keys", str(path)).exit_code == 2


def test_whom_to_believe_must_be_said(keys: Path) -> None:
    """Neither or both sources of keys, or what is no token at all: exit 2."""
    assert run(claims(*GOOD)).exit_code == 2
    assert run(claims(*GOOD), "--keys", str(keys), "--server").exit_code == 2
    assert run(b"\xff", "--keys", str(keys)).exit_code == 2
    assert run(b"x" * 131_073, "--keys", str(keys)).exit_code == 2
