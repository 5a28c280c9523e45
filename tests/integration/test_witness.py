"""A witness over HTTP: it answers as C2SP tlog-witness says, one at a time, and never forgets what it signed."""

from __future__ import annotations

import contextlib
import http.client
import importlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from attestation.audit import leaf_hash_of
from attestation.audit.checkpoint import parse, verify
from attestation.audit.merkle import consistency_proof
from attestation.audit.note import KeyType, parse_vkey
from attestation.audit.witness import MAX_REQUEST_BYTES, format_request
from attestation_cli import witness
from attestation_cli.login.errors import CacheUnsafe
from attestation_cli.main import cli
from attestation_cli.witness import Server, Witness, WitnessUnusable, make, public_keys
from tests.fixtures import judges
from tests.unit.audit.log_kit import LOG_VKEYS, ORIGIN, MemoryTree, checkpoint, entries, signed

NAME = "witness.example/anna"
LOG = entries(40)
TREE = MemoryTree.over([leaf_hash_of(entry) for entry in LOG])
NOW = 1_795_232_600


@dataclass
class Running:
    """A witness being served."""

    directory: Path
    server: Server
    witness: Witness
    lines: list[str] = field(default_factory=list)

    def ask(self, body: str | bytes, path: str = "/add-checkpoint", **headers: str) -> tuple[int, str, str]:
        """Send one request; return status, media type and body."""
        host, port = self.server.server_address[:2]
        connection = http.client.HTTPConnection(str(host), int(port), timeout=60)
        try:
            connection.request("POST", path, body if isinstance(body, bytes) else body.encode(), headers)
            answer = connection.getresponse()
            return answer.status, answer.getheader("Content-Type", ""), answer.read().decode()
        finally:
            connection.close()

    def state(self) -> dict[str, str]:
        """Return what is on the disk."""
        logs = json.loads((self.directory / "state.json").read_text())["logs"]
        assert isinstance(logs, dict)
        return logs


def request(old: int, new: int, log_mark: str = "step") -> str:
    """Return the request of the log to go from *old* to *new*."""
    log = entries(40, log_mark)
    tree = MemoryTree.over([leaf_hash_of(entry) for entry in log])
    return format_request(old, consistency_proof(tree, old, new), signed(checkpoint(log, new)))


@contextlib.contextmanager
def serving(directory: Path) -> Iterator[Running]:
    """Serve the witness in *directory*."""
    lines: list[str] = []
    with (
        Witness(directory, NAME, LOG_VKEYS, now=lambda: NOW) as opened,
        Server(("127.0.0.1", 0), opened, lines.append) as server,
    ):
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield Running(directory, server, opened, lines)
        finally:
            server.shutdown()
            thread.join(60)
            assert not thread.is_alive()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """The directory of a new witness."""
    tmp_path.chmod(0o700)
    make(tmp_path / "witness", NAME)
    return tmp_path / "witness"


@pytest.fixture
def running(directory: Path) -> Iterator[Running]:
    """A new witness, being served."""
    with serving(directory) as found:
        yield found


# ---------------------------------------------------------------- what it answers


def test_it_cosigns_with_both_algorithms(running: Running) -> None:
    """The lines, put under the checkpoint, are cosignatures under its vkeys; again the same is cosigned again."""
    for old, new in ((0, 7), (7, 30), (30, 30)):
        body = request(old, new)
        status, media_type, lines = running.ask(body)
        assert (status, media_type) == (200, "text/plain; charset=utf-8")
        note = body.partition("\n\n")[2] + lines
        proven = verify(parse(note.encode()), log_keys=LOG_VKEYS, witnesses=running.witness.vkeys, quorum=1)
        assert [(s.key.name, s.key.type, s.time) for s in proven.signers[2:]] == [
            (NAME, KeyType.ED25519_COSIGNATURE, NOW),
            (NAME, KeyType.ML_DSA_44, NOW),
        ]
        assert running.state() == {ORIGIN: str(checkpoint(LOG, new))}
    assert running.lines[-1] == f"127.0.0.1 200 {ORIGIN} 30"


def test_the_judges_believe_its_cosignatures(running: Running) -> None:
    """aics-tlog counts it for its quorum, tlog-scales believes both."""
    judges.install()
    aics, signing = importlib.import_module("aics_tlog"), importlib.import_module("tlog_scales.signing")
    tlog = importlib.import_module("tlog_scales.tlog")
    body = request(0, 30)
    note = body.partition("\n\n")[2] + running.ask(body)[2]
    log_key, witness_key = (aics.parse_vkey(str(k)) for k in (LOG_VKEYS[0], running.witness.vkeys[0]))
    result = aics.verify_checkpoint(aics.parse_note(note), log_key, [witness_key], 1)
    assert (result.ok, result.error or "") == (True, "")
    for vkey in running.witness.vkeys:
        tlog.Checkpoint.from_text(note).verify(signing.Vkey.from_string(str(vkey)))


def test_each_refusal_has_its_status(running: Running) -> None:
    """And none changes what the witness has."""
    running.ask(request(0, 7))
    for body, status, answer in (
        (request(0, 20), 409, "7\n"),
        (request(20, 30), 409, "7\n"),
        (request(7, 7, "forged"), 409, "two histories"),
        (request(7, 20, "forged"), 422, ""),
        (request(7, 20).replace("\n20\n", "\n21\n"), 403, ""),
        (format_request(7, [], signed(checkpoint(LOG, 20, "other.example"))), 404, ""),
        (request(7, 20).replace("old 7", "old x"), 400, ""),
        (format_request(7, [], signed(checkpoint(LOG, 5))), 400, ""),
    ):
        found, media_type, text = running.ask(body)
        assert found == status, text
        assert answer in text
        assert (media_type == "text/x.tlog.size") == (answer == "7\n")
        assert running.state() == {ORIGIN: str(checkpoint(LOG, 7))}


def test_what_is_no_such_request(running: Running) -> None:
    """Another path, another verb, no length, too long: nothing is read, nothing is done."""
    assert running.ask("x", path="/")[0] == 404
    assert running.ask("x", path="/add-checkpoint/")[0] == 404
    assert running.ask(b"x" * (MAX_REQUEST_BYTES + 1))[0] == 413
    assert running.ask("x", **{"Content-Length": "9" * 5000})[0] == 413
    for length in ("-1", "1x", "", "٣".encode().decode("latin-1")):
        assert running.ask("x", **{"Content-Length": length})[0] == 411
    assert running.ask("x", **{"Transfer-Encoding": "chunked"})[0] == 411
    host, port = running.server.server_address[:2]
    with contextlib.closing(http.client.HTTPConnection(str(host), int(port), timeout=60)) as connection:
        connection.request("GET", "/add-checkpoint")
        assert connection.getresponse().status == 501
    assert running.state() == {}


# ---------------------------------------------------------------- at the same time, and crashes


@pytest.mark.threat("T48")
def test_of_many_histories_at_once_one_is_cosigned(running: Running) -> None:
    """Sixteen logs with one key race from nothing: one gets a cosignature, whatever the order."""
    bodies = [request(0, 10, f"history {number}") for number in range(16)]
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(running.ask, bodies))
    assert sorted(status for status, _, _ in answers) == [200] + [409] * 15
    winner = next(number for number, answer in enumerate(answers) if answer[0] == 200)
    assert running.state() == {ORIGIN: str(checkpoint(entries(40, f"history {winner}"), 10))}


@pytest.mark.threat("T48")
def test_nothing_is_signed_that_was_not_kept(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk: 503 without a signature, and the next request starts from what is on the disk."""
    running.ask(request(0, 7))

    def full(*_: object) -> None:
        raise CacheUnsafe("No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(witness, "write", full)
        status, _, body = running.ask(request(7, 20))
    assert (status, "—" in body) == (503, False)
    assert running.ask(request(20, 30))[::2] == (409, "7\n")
    assert running.ask(request(7, 20))[0] == 200


def test_after_a_crash_it_has_what_it_kept(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dead between the disk and the signature: nobody got one, and the log may ask for it again."""
    with serving(directory) as running:

        def die(*_: object) -> bytes:
            raise RuntimeError("dead")

        monkeypatch.setattr(witness, "signed_message", die)
        with pytest.raises((http.client.HTTPException, OSError)):
            running.ask(request(0, 7))
        monkeypatch.undo()
    with serving(directory) as running:
        assert running.ask(request(0, 20))[::2] == (409, "7\n")
        assert running.ask(request(7, 7))[0] == 200


@pytest.mark.threat("T48")
def test_killed_again_and_again_it_never_goes_back(directory: Path, tmp_path: Path) -> None:
    """The real program, killed while it serves: whatever was cosigned is still known after the start."""
    vkeys = tmp_path / "log.vkeys"
    vkeys.write_text("# the log\n\n" + "".join(f"{key}\n" for key in LOG_VKEYS))
    command = [sys.executable, "-c", "from attestation_cli.main import main; main()", "-o", "json"]
    command += ["witness", "serve", "--name", NAME, "--state", str(directory)]
    command += ["--logs-file", str(vkeys), "--listen", "127.0.0.1:0"]
    size = cosigned = 0
    for round_ in range(3):
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        ) as process:
            try:
                assert process.stdout is not None
                text = ""
                while not text.endswith("}\n"):
                    text += process.stdout.readline()
                port = int(json.loads(text)["url"].rpartition(":")[2])
                answers = 0
                with contextlib.suppress(OSError, http.client.HTTPException):
                    while size < 40:
                        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
                        with contextlib.closing(connection):
                            connection.request("POST", "/add-checkpoint", request(size, size + 1).encode())
                            answer = connection.getresponse()
                            body = answer.read().decode()
                        if (answers := answers + 1) == 2:
                            threading.Timer(0.01 * round_, process.kill).start()
                        if answer.status == 409:
                            assert int(body) >= cosigned
                            size = int(body)
                        else:
                            assert answer.status == 200
                            size = cosigned = size + 1
            finally:
                process.kill()
        state = json.loads((directory / "state.json").read_text())["logs"]
        kept = int(state[ORIGIN].split("\n")[1]) if state else 0
        assert kept >= cosigned
    assert cosigned > 0


# ---------------------------------------------------------------- the directory


def test_the_directory_is_the_users_alone(directory: Path) -> None:
    """Keys 0600, directory 0700; otherwise nothing starts. Keys are made once."""
    keys = public_keys(directory, NAME)
    assert tuple(key.public for key in make(directory, NAME)) == keys
    assert directory.stat().st_mode & 0o777 == 0o700
    for path in directory.glob("*.pem"):
        assert path.stat().st_mode & 0o777 == 0o600
    (directory / "ed25519.pem").chmod(0o640)
    with pytest.raises(Exception, match="0600"), Witness(directory, NAME, LOG_VKEYS):
        pytest.fail("a key that others can read was used")
    (directory / "ed25519.pem").chmod(0o600)
    directory.chmod(0o755)
    with pytest.raises(WitnessUnusable, match="mode"), Witness(directory, NAME, LOG_VKEYS):
        pytest.fail("a directory that others can read was used")


@pytest.mark.threat("T48")
def test_two_witnesses_do_not_share_a_directory(directory: Path) -> None:
    """Two processes with one state would each sign another history; the second does not start."""
    second = pytest.raises(WitnessUnusable, match="another witness")
    with Witness(directory, NAME, LOG_VKEYS), second, Witness(directory, NAME, LOG_VKEYS):
        pytest.fail("two at once")
    with Witness(directory, NAME, LOG_VKEYS):
        pass


@pytest.mark.threat("T48")
@pytest.mark.parametrize(
    "state",
    [
        None,
        "",
        "{}",
        "[]",
        "null",
        '{"format":"itl-witness-state-v2","logs":{}}',
        '{"format":"itl-witness-state-v1","logs":[]}',
        '{"format":"itl-witness-state-v1","logs":{},"more":1}',
        '{"format":"itl-witness-state-v1","logs":{"a":1}}',
        '{"format":"itl-witness-state-v1","logs":{"a":"x"}}',
        json.dumps({"format": "itl-witness-state-v1", "logs": {"a": str(checkpoint(LOG, 5))}}),
    ],
)
def test_a_witness_that_forgot_does_not_start(directory: Path, state: str | None) -> None:
    """Missing or damaged: from nothing it would cosign another history, and keygen does not mend it."""
    if state is None:
        (directory / "state.json").unlink()
    else:
        (directory / "state.json").write_text(state)
        make(directory, NAME)
    with pytest.raises(WitnessUnusable, match=r"state\.json is"), Witness(directory, NAME, LOG_VKEYS):
        pytest.fail("started")


@pytest.mark.threat("T48")
def test_a_slow_connection_is_ended(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However it trickles; and with every place taken by such, the next one is still served."""
    monkeypatch.setattr(witness, "CONNECTION_SECONDS", 2.0)
    monkeypatch.setattr(witness, "MAX_CONNECTIONS", 2)
    with serving(directory) as running, contextlib.ExitStack() as stack:
        host, port = running.server.server_address[:2]
        slow = [
            stack.enter_context(contextlib.closing(socket.create_connection((str(host), int(port)), 60)))
            for _ in range(4)
        ]
        for connection in slow:
            connection.sendall(b"POST /add-checkpoint HTTP/1.1\r\nContent-Length: 100\r\n\r\nold")
        assert running.ask(request(0, 7))[0] == 200  # who is not ended holds a place for ever
        for connection in slow:
            assert connection.recv(100) == b""


# ---------------------------------------------------------------- the command


def run(*args: str) -> Result:
    return CliRunner().invoke(cli, list(args), catch_exceptions=False)


def test_the_command_makes_and_shows_keys(tmp_path: Path) -> None:
    """`keygen` and `key` print the same two vkeys, one a line, or as JSON."""
    tmp_path.chmod(0o700)
    where = ("--name", NAME, "--state", str(tmp_path / "w"))
    made = run("witness", "keygen", *where)
    assert made.exit_code == 0
    assert run("witness", "key", *where).stdout == made.stdout
    keys = [parse_vkey(line) for line in made.stdout.splitlines()]
    assert [key.type for key in keys] == [KeyType.ED25519_COSIGNATURE, KeyType.ML_DSA_44]
    assert json.loads(run("-o", "json", "witness", "key", *where).stdout) == {"vkeys": [str(k) for k in keys]}


def test_the_command_refuses_what_cannot_be(tmp_path: Path) -> None:
    """A bad name, no log, no vkey, no address, no directory."""
    tmp_path.chmod(0o700)
    where = ("--name", NAME, "--state", str(tmp_path / "w"))
    assert run("witness", "keygen", "--name", "a b", "--state", str(tmp_path / "w")).exit_code == 2
    missing = run("witness", "key", *where)
    assert (missing.exit_code, "keygen" in missing.stderr) == (2, True)
    run("witness", "keygen", *where)
    log = ("--log", str(LOG_VKEYS[0]))
    assert "no log to watch" in run("witness", "serve", *where).stderr
    assert "not a vkey" in run("witness", "serve", *where, "--log", "x").stderr
    for listen in ("7380", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:70000", ":1"):
        assert run("witness", "serve", *where, *log, "--listen", listen).exit_code == 2


def test_the_command_ends_when_it_is_told(directory: Path) -> None:
    """SIGTERM ends it with 0; it said where it listens."""
    command = [sys.executable, "-c", "from attestation_cli.main import main; main()", "witness", "serve"]
    command += [
        "--name",
        NAME,
        "--state",
        str(directory),
        "--log",
        str(LOG_VKEYS[0]),
        "--listen",
        "127.0.0.1:0",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith(f"witness {NAME} listens at http://127.0.0.1:")
            os.kill(process.pid, signal.SIGTERM)
            assert process.wait(60) == 0
        finally:
            process.kill()
