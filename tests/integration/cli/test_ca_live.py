"""`attestation ca` against the real application: keys, certificates, a whole rotation, and what is refused."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509

from attestation.client.retries import Retries
from attestation_testing import SoftwareNode
from tests.fixtures.in_process import InProcessService, in_process_service
from tests.fixtures.machine import Machine
from tests.integration.cli.test_cli_live import Terminal

PASSPHRASE = "correct horse battery"


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InProcessService]:
    """A service whose CA keys are encrypted, with a CA for operators too."""
    tmp_path.chmod(0o700)
    monkeypatch.setenv("HOME", str(tmp_path))
    secret = tmp_path / "passphrase"
    secret.write_text(PASSPHRASE + "\n")
    secret.chmod(0o600)
    settings = {
        "enrollment_ca_passphrase_file": secret,
        "operator_certificates": True,
        "assurance_oid_arc": "1.3.6.1.4.1.99999.7",
        "dual_control_roles": [],
    }
    with in_process_service(tmp_path / "service", **settings) as found:
        yield found


@pytest.fixture
def terminal(local: InProcessService, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    return Terminal(local, monkeypatch)


def certified(local: InProcessService, seed: int) -> tuple[Machine, str]:
    """Return an admitted machine, and the serial number of its certificate."""
    machine = Machine(SoftwareNode(seed), local.client(f"192.0.2.{seed}"))
    machine.admitted(local.operator(), "worker-app", hostname=f"w-{seed}")
    return machine, machine.certificate(machine.keys.create_signing_key())["serial"]


def states(terminal: Terminal) -> list[tuple[str, str]]:
    """Return purpose and state of every CA key, oldest first."""
    return [(key["purpose"], key["state"]) for key in terminal.json("ca", "show")]


def test_a_rotation_from_its_beginning_to_its_end(local: InProcessService, terminal: Terminal) -> None:
    """Prepare, wait, activate, roll back, activate, wait, retire: each step tells what can be done next."""
    assert states(terminal) == [("machine", "active"), ("operator", "active")]
    told = terminal.run("ca", "rotate", "prepare", "-r", "drill", "--yes")
    assert told.exit_code == 0
    assert "can be activated" in told.stderr
    assert ("machine", "next") in states(terminal)
    early = terminal.run("ca", "rotate", "activate", "-r", "drill", "--yes")
    assert early.exit_code == 5
    assert "wait until" in early.stderr
    assert "ca show" in early.stderr
    local.clock.pass_(hours=25)
    assert "retiring" in terminal.ok("ca", "rotate", "activate", "-r", "drill", "--yes")
    assert "next" not in terminal.ok("ca", "rotate", "rollback", "-r", "drill", "--yes")
    assert states(terminal)[0] == ("machine", "active")
    forced = terminal.ok("ca", "rotate", "retire", "-r", "drill", "--yes", "--force")
    assert "retired" in forced
    assert terminal.run("ca", "rotate", "activate", "-r", "drill", "--yes").exit_code == 5
    answer = terminal.run("ca", "rotate", "prepare", "-r", "drill", answer="n\n")
    assert answer.exit_code == 2, "nobody can be asked here"
    audited = [
        e["detail"] for e in terminal.json("audit", "list", "--limit", "0") if e["action"] == "ca_rotate"
    ]
    steps = [detail for detail in reversed(audited) if ", machine CA, ecdsa-p384: " in detail]
    assert [detail.split(",")[0] for detail in steps] == [
        "prepare",
        "activate",
        "rollback",
        "retire (forced)",
    ]


def test_a_key_is_shown_with_everything_that_relying_parties_compare(terminal: Terminal) -> None:
    """By the beginning of its id; the fingerprint is that of the certificate in the bundle."""
    machine, operator = terminal.json("ca", "show")
    shown = terminal.ok("ca", "show", machine["issuer_id"][:6])
    assert machine["certificate_sha256"] in shown
    assert machine["key_uri"] in shown
    assert "passphrase" not in shown
    assert terminal.json("ca", "bundle")[0]["sha256"] == machine["certificate_sha256"]
    assert (
        terminal.json("ca", "bundle", "--purpose", "operator")[0]["sha256"] == operator["certificate_sha256"]
    )
    assert terminal.json("ca", "show", operator["issuer_id"])["subject"].startswith("CN=ITL Operator CA")
    assert terminal.run("ca", "show", "abc").exit_code == 2
    assert terminal.run("ca", "show", "ffffffffff").exit_code == 3
    assert machine["certificate_sha256"] in terminal.ok("ca", "show", "-o", "wide")


def test_certificates_are_listed_shown_and_revoked(local: InProcessService, terminal: Terminal) -> None:
    """States follow what is done; the certificate that is shown is the one that was issued."""
    first, serial = certified(local, 11)
    _, other = certified(local, 12)
    rows = terminal.json("ca", "certificates", "--profile", "node-client")
    assert [row["serial"] for row in rows] == [other, serial]
    assert [row["serial"] for row in terminal.json("ca", "certificates", "--machine", "w-11")] == [serial]
    assert len(terminal.json("ca", "certificates", "--limit", "1")) == 1
    assert "resident" in terminal.ok("ca", "certificate", serial)
    pem = terminal.ok("ca", "certificate", ":".join([serial[i : i + 2] for i in range(0, 40, 2)]), "--pem")
    assert x509.load_pem_x509_certificate(pem.encode()).serial_number == int(serial, 16)
    assert terminal.ok("machine", "request-cert", "w-11") == pem
    assert terminal.run("machine", "request-cert", "w-11", "--profile", "node-server").exit_code == 3
    # A lock suspends, a revocation ends; the list says both.
    terminal.ok("machine", "lock", "w-12")
    assert [row["serial"] for row in terminal.json("ca", "certificates", "--state", "held")] == [other]
    done = terminal.ok("ca", "revoke", serial[:12], "--reason", "keyCompromise", "-n", "stolen", "--yes")
    assert done.strip() == f"{serial}: revoked"
    assert terminal.run("ca", "revoke", serial, "--yes").exit_code == 5
    assert "stolen" in terminal.ok("ca", "certificate", serial)
    assert set(terminal.json("ca", "crl")["revoked"]) == {serial, other}
    assert terminal.run("ca", "certificate", "12345").exit_code == 2
    assert terminal.run("ca", "certificate", "f" * 40).exit_code == 3
    assert terminal.run("ca", "certificate", "f" * 10).exit_code == 3
    assert terminal.run("machine", "request-cert", first.machine_id).exit_code == 3


def test_a_beginning_that_means_two_certificates_means_none(
    local: InProcessService, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are listed, and nothing is done."""
    certified(local, 13)
    certified(local, 14)
    monkeypatch.setattr("attestation_cli.commands.ca_certificates.SHORTEST_SERIAL", 0)
    done = terminal.run("ca", "revoke", "", "--yes")
    assert done.exit_code == 5
    assert len(terminal.json("ca", "certificates", "--state", "issued", "--profile", "node-client")) == 2


def test_what_relying_parties_need_is_written_into_files(
    local: InProcessService, terminal: Terminal, tmp_path: Path
) -> None:
    """Bundle, list and certificate, as OpenSSL takes them; a file that cannot be written is told as such."""
    certified(local, 15)
    terminal.ok("ca", "rotate", "prepare", "-r", "drill", "--yes")
    terminal.ok("ca", "bundle", "-f", str(tmp_path / "bundle.pem"))
    terminal.ok("ca", "crl", "-f", str(tmp_path / "ca.crl"))
    terminal.ok("machine", "request-cert", "w-15", "-f", str(tmp_path / "w-15.pem"))
    key = terminal.json("ca", "show")[0]["issuer_id"]
    assert "number" in terminal.ok("ca", "crl", "--issuer", key[:8])
    assert terminal.json("ca", "crl", "--purpose", "operator")["revoked"] == []
    run = ["openssl", "crl", "-inform", "DER", "-in", "ca.crl", "-out", "crl.pem"]
    subprocess.run(run, cwd=tmp_path, check=True, capture_output=True)
    at = str(int(local.clock.now().timestamp()))
    verify = ["openssl", "verify", "-x509_strict", "-crl_check", "-attime", at, "-CAfile", "bundle.pem"]
    done = subprocess.run(
        [*verify, "-CRLfile", "crl.pem", "w-15.pem"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "w-15.pem: OK", done.stderr
    assert terminal.run("ca", "bundle", "-f", str(tmp_path / "no" / "bundle.pem")).exit_code == 2


def test_the_keys_prove_themselves_and_so_does_a_backup(
    local: InProcessService, terminal: Terminal, tmp_path: Path
) -> None:
    """The service signs with each; a copy of its folder is proven here, and a copy without one key is not."""
    ca = local.settings.enrollment_ca_dir
    checked = terminal.run("ca", "backup-check")
    assert checked.exit_code == 0
    assert "a copy of itl-enrollment-ca-" in checked.stderr
    assert terminal.json("ca", "backup-check")["ok"] is True
    backup = tmp_path / "backup"
    backup.mkdir()
    for file in ca.glob("itl-*.pem"):
        (backup / file.name).write_bytes(file.read_bytes())
        (backup / file.name).chmod(0o600)
    options = [str(backup), "--passphrase-file", str(local.settings.enrollment_ca_passphrase_file)]
    assert terminal.ok("ca", "backup-check", *options).count("proven") == 2
    next(backup.glob("itl-operator-ca-*")).unlink()
    lost = terminal.run("ca", "backup-check", *options, "-o", "json")
    assert lost.exit_code == 1
    found = json.loads(lost.stdout)
    assert [key["problem"] is None for key in found["keys"]] == [True, False]
    assert PASSPHRASE not in checked.output + lost.output


def test_a_service_without_a_ca_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit 6, and where to read how to give it one."""
    tmp_path.chmod(0o700)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(Retries, "pause", lambda *_: None)  # it is not there after a while either
    with in_process_service(tmp_path / "service") as bare:
        terminal = Terminal(bare, monkeypatch)
        for command in ("show", "certificates", "crl", "bundle", "backup-check"):
            done = terminal.run("ca", command)
            assert done.exit_code == 6, command
            assert "set ITL_ENROLLMENT_CA_PASSPHRASE_FILE" in done.stderr


def test_a_hybrid_ca_has_two_keys_and_signs_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks for a certificate gets the one that programs of today read; the other is asked for by name."""
    tmp_path.chmod(0o700)
    monkeypatch.setenv("HOME", str(tmp_path))
    settings = {
        "enrollment_ca_unencrypted": True,
        "enrollment_ca_algorithm": "hybrid",
        "dual_control_roles": [],
    }
    with in_process_service(tmp_path / "service", **settings) as hybrid:
        terminal = Terminal(hybrid, monkeypatch)
        certified(hybrid, 21)
        assert {key["algorithm"] for key in terminal.json("ca", "show")} == {"ecdsa-p384", "ml-dsa-87"}
        found = {
            name: x509.load_pem_x509_certificate(
                terminal.ok("machine", "request-cert", "w-21", *asked).encode()
            )
            for name, asked in (
                ("default", ()),
                ("ecdsa", ("--algorithm", "ecdsa-p384")),
                ("mldsa", ("--algorithm", "ml-dsa-87")),
            )
        }
        assert found["default"] == found["ecdsa"]
        assert found["mldsa"].signature_algorithm_oid.dotted_string == "2.16.840.1.101.3.4.3.19"
        assert found["mldsa"].public_key() == found["ecdsa"].public_key()
        assert terminal.run("machine", "request-cert", "w-21", "--algorithm", "rsa-4096").exit_code == 3
        unsaid = terminal.run("ca", "rotate", "prepare", "-r", "drill", "--yes")
        assert unsaid.exit_code == 2
        assert "ml-dsa-87" in unsaid.stderr
        rotate = ["ca", "rotate", "prepare", "-r", "drill", "--algorithm", "ml-dsa-87", "--yes"]
        assert "next" in terminal.ok(*rotate)
        assert terminal.ok("ca", "backup-check", str(hybrid.settings.enrollment_ca_dir)).count("proven") == 3
