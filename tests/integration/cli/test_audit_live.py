"""An auditor's year: keys pinned once, checkpoints kept, exports verified without the service, one witness."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner, Result

from attestation.audit import checkpoint
from attestation.audit.merkle import leaf_hash, verify_inclusion
from attestation.audit.note import parse_vkey
from attestation.wire import b64decode, b64encode
from attestation_cli.main import cli
from attestation_cli.session import Session
from attestation_cli.witness import Server, Witness, make
from tests.fixtures.in_process import InProcess, InProcessService, in_process_service
from tests.fixtures.over_httpx import OverHTTPX
from tests.fixtures.rekor import rekor

NAME = "witness.example/anna"


class Nowhere(httpx.BaseTransport):
    """No network: whoever asks it fails the test."""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Fail."""
        raise AssertionError(f"asked for {request.url}")


class Auditor:
    """Somebody with the command line, a directory, and a service whose log a witness watches."""

    def __init__(self, service: InProcessService, directory: Path) -> None:
        self.service, self.directory = service, directory
        self.transport = InProcess(service.app, service.run, "198.51.100.1")

    def run(self, *args: str, offline: bool = False) -> Result:
        """Type a command; offline there is nobody to ask."""
        session = Session(carrier=OverHTTPX(Nowhere() if offline else self.transport))
        named = [str(self.directory / arg[1:]) if arg.startswith("@") else arg for arg in args]
        return CliRunner().invoke(cli, named, obj=session, catch_exceptions=False)

    def ok(self, *args: str, offline: bool = False) -> str:
        """Type a command that must succeed."""
        done = self.run(*args, offline=offline)
        assert done.exit_code == 0, done.output
        return done.stdout

    def act(self, times: int) -> None:
        """Let an operator do something that is logged."""
        for _ in range(times):
            self.ok("token", "create", "--role", "worker-app")


@pytest.fixture
def auditor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Auditor]:
    """The auditor, with `log.vkeys` and `anna.vkeys` in their directory."""
    tmp_path.chmod(0o700)
    keys = make(tmp_path / "witness", NAME)
    service_directory = tmp_path / "service"
    # The witness must know the log's keys, and the service the witness's address: first start for the keys.
    with in_process_service(service_directory) as service:
        monkeypatch.setenv("ITL_ADMIN_TOKEN", service.admin_token)
        vkeys = Auditor(service, tmp_path).ok("audit", "keys")
    (tmp_path / "log.vkeys").write_text(vkeys)
    (tmp_path / "anna.vkeys").write_text("".join(f"{key.public}\n" for key in keys))
    logs = [parse_vkey(line) for line in vkeys.splitlines()]
    assert len(logs) == 2
    with (
        Witness(tmp_path / "witness", NAME, logs) as witness,
        Server(("127.0.0.1", 0), witness, lambda line: None) as server,
    ):
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            witnesses = [f"{witness.vkeys[0]} {server.url}"]
            with in_process_service(service_directory, audit_witnesses=witnesses) as service:
                monkeypatch.setenv("ITL_ADMIN_TOKEN", service.admin_token)
                yield Auditor(service, tmp_path)
        finally:
            server.shutdown()
            thread.join(60)


LOG = ("--vkeys-file", "@log.vkeys")
ANNA = ("--witnesses-file", "@anna.vkeys", "--quorum", "1")


def test_an_auditors_year(auditor: Auditor) -> None:
    """Checkpoint, proof that the log grew, export with a witness's cosignature, verified without the service."""
    auditor.act(3)
    assert "signed by" in auditor.ok("audit", "checkpoint", *LOG, "-f", "@first")
    auditor.act(4)
    auditor.ok("audit", "export", *LOG, "--checkpoint", "@first", "-f", "@a.jsonl")
    grew = json.loads(auditor.ok("-o", "json", "audit", "checkpoint", *LOG, "--since", "@first"))
    assert (grew["verified"], grew["grew_from"] >= 3) == (True, True)
    assert (auditor.directory / "a.jsonl").stat().st_mode & 0o777 == 0o600
    found = json.loads(
        auditor.ok("-o", "json", "audit", "verify", "@a.jsonl", *LOG, "--checkpoint", "@first", offline=True)
    )
    assert (found["valid"], found["pinned"], found["error"]) == (True, True, None)
    assert found["earlier"] == [grew["grew_from"]]
    text = auditor.ok("audit", "verify", "@a.jsonl", *LOG, "--checkpoint", "@first", offline=True)
    assert "VALID" in text
    assert "(Ed25519 and ML-DSA-44)" in text


def test_a_witness_cosigns_what_the_service_signs(auditor: Auditor) -> None:
    """The service asks it, and an export has its cosignatures; a reader can demand them."""
    auditor.act(2)
    auditor.ok("audit", "checkpoint")
    deadline = time.monotonic() + 120
    while NAME not in auditor.ok("audit", "checkpoint"):
        assert time.monotonic() < deadline, "never cosigned"
        time.sleep(0.2)
    auditor.act(1)
    auditor.ok("audit", "export", *LOG, "-f", "@a.jsonl")
    done = auditor.ok("-o", "json", "audit", "verify", "@a.jsonl", *LOG, *ANNA, offline=True)
    found = json.loads(done)
    assert 0 < found["witnessed"] < found["entries"]
    assert "signed by the log alone" in auditor.ok("audit", "verify", "@a.jsonl", *LOG, *ANNA, offline=True)


def test_an_entry_is_proven(auditor: Auditor) -> None:
    """What is shown is what was hashed; handed on, it verifies with nothing else."""
    auditor.act(5)
    auditor.ok("audit", "export", *LOG, "-f", "@a.jsonl")
    assert "token_issued" in auditor.ok("audit", "proof", "3", *LOG)
    proof = json.loads(auditor.ok("-o", "json", "audit", "proof", "3", *LOG))
    note = checkpoint.parse(proof["checkpoint"].encode()).checkpoint
    data = b64decode(proof["leaf"], "leaf")
    assert json.loads(data) == proof["entry"]
    hashes = [b64decode(h, "hash") for h in proof["hashes"]]
    verify_inclusion(2, note.size, leaf_hash(data), hashes, note.root)
    late = auditor.run("audit", "proof", "99999", *LOG)
    assert (late.exit_code, "not yet" in late.stderr) == (2, True)


def test_tampering_is_named(auditor: Auditor) -> None:
    """In the file after it was exported: each entry, by its id."""
    auditor.act(6)
    auditor.ok("audit", "export", *LOG, "-f", "@a.jsonl")
    lines = (auditor.directory / "a.jsonl").read_bytes().splitlines(keepends=True)
    for name, forged, entry in (
        ("changed", [*lines[:4], lines[4].replace(b'"action":"', b'"action":"x'), *lines[5:]], 4),
        ("removed", [*lines[:3], *lines[4:]], 3),
        ("swapped", [*lines[:3], lines[4], lines[3], *lines[5:]], 3),
        ("truncated", lines[:-2], len(lines) - 2),
    ):
        (auditor.directory / name).write_bytes(b"".join(forged))
        done = auditor.run("-o", "json", "audit", "verify", f"@{name}", *LOG, offline=True)
        found = json.loads(done.stdout)
        assert (done.exit_code, found["valid"], found["code"]) == (1, False, "log-broken"), name
        assert found["first_invalid_id"] == entry, found
        assert f"{entry}" in auditor.run("audit", "verify", f"@{name}", *LOG, offline=True).stdout


def test_checkpoints_are_published_in_a_rekor_log(auditor: Auditor) -> None:
    """A log that verifies as Rekor does takes what the service signed; once, and never of a log that was rewritten."""
    with rekor() as log:
        (auditor.directory / "rekor.pem").write_bytes(log.pem)
        where = ("--rekor", log.url, "--rekor-key", "@rekor.pem", "--keep", "@kept")
        publish = ("-o", "json", "audit", "publish", *where, *LOG)
        auditor.act(1)
        first = json.loads(auditor.ok(*publish))
        assert (first["published"], first["index"]) == (True, 1002)
        assert "published before" in auditor.ok("audit", "publish", *where, *LOG)
        auditor.act(1)
        second = json.loads(auditor.ok(*publish))
        assert (second["published"], second["size"] > first["size"]) == (True, True)
        (latest,) = (auditor.directory / "kept").glob("*/latest")
        lines = latest.read_text().split("\n")
        lines[2] = b64encode(bytes(32))
        latest.write_text("\n".join(lines))
        auditor.act(1)
        assert auditor.run(*publish).exit_code != 0
        assert len(log.entries) == 4
    for wrong in (
        ("audit", "publish", *LOG),
        ("audit", "publish", *LOG, "--git", "@kept", *where),
        ("audit", "publish", *LOG, *where, "--push"),
        ("audit", "publish", *LOG, *where[:4]),
        ("audit", "publish", *LOG, "--git", "@kept", *where[4:]),
    ):
        assert auditor.run(*wrong, offline=True).exit_code == 2


def test_checkpoints_are_published_in_git(auditor: Auditor) -> None:
    """Each is a commit; a log that was rewritten is refused, and nothing else that is staged goes in."""
    tree = auditor.directory / "evidence"

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", "-C", str(tree), *words], capture_output=True, text=True, check=True
        ).stdout.strip()

    publish = ("audit", "publish", "--git", "@evidence", "--vkeys-file", "@log.vkeys")
    tree.mkdir()
    assert "git" in auditor.run(*publish).output
    git("init", "--quiet")
    git("config", "user.email", "auditor@example.test")
    git("config", "user.name", "auditor")
    auditor.act(1)
    # Git refuses: it is not published then, and the next time it is.
    hook = tree / ".git" / "hooks" / "pre-commit"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\nexit 1\n")
    hook.chmod(0o755)
    assert auditor.run(*publish).exit_code != 0
    hook.unlink()
    assert "published before" not in auditor.ok(*publish)
    (tree / "other").write_text("half done")
    git("add", "other")
    auditor.act(1)
    auditor.ok(*publish)
    assert "published before" in auditor.ok(*publish)
    said = git("log", "--format=%s").splitlines()
    assert len(said) == 2
    assert all(line.startswith("checkpoint of ") for line in said)
    assert git("diff", "--cached", "--name-only") == "other"
    (latest,) = tree.glob("checkpoints/*/latest")
    auditor.ok(
        "audit",
        "checkpoint",
        "--vkeys-file",
        "@log.vkeys",
        "--since",
        f"@{latest.relative_to(auditor.directory)}",
    )
    # The same size under another root: what a service shows that wrote its log anew.
    lines = latest.read_text().split("\n")
    lines[2] = b64encode(bytes(32))
    latest.write_text("\n".join(lines))
    refused = auditor.run(*publish)
    assert refused.exit_code != 0
    assert len(git("log", "--format=%s").splitlines()) == 2
