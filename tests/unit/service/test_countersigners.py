"""Witnesses and time stamps: asked after the signature, believed only where it verifies, waited for by nobody."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from cryptography import x509
from rfc3161_client import VerificationError, VerifierBuilder, decode_timestamp_response

from attestation.audit import checkpoint
from attestation.audit.checkpoint import Checkpoint
from attestation.audit.export import LogVerifier, Pinned
from attestation.audit.note import KeyType, parse_vkey
from attestation.audit.witness import SIZE_MEDIA_TYPE, Cosign, consider
from attestation_service.auth import Duty
from attestation_service.main import main
from attestation_service.settings import Settings
from attestation_service.transparency import countersigners, others
from attestation_service.transparency.timestamps import TimeStampingUnusable
from attestation_service.transparency.witnesses import WitnessUnusable
from tests.unit.audit.log_kit import WITNESSES, Key
from tests.unit.service.conftest import Service, Starter
from tests.unit.service.people import introduce
from tests.unit.service.test_transparency import grow, vkeys

pytestmark = pytest.mark.anyio

Answer = tuple[int, str, bytes]
Handle = Callable[[str, bytes], Answer]


@contextmanager
def serving(handle: Handle) -> Iterator[str]:
    """Answer POST requests on loopback with what *handle* makes of path and body."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status, kind, answer = handle(self.path, body)
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(60)


@dataclass
class Witness:
    """A witness that decides as ours does, in memory."""

    keys: tuple[Key, ...]
    logs: tuple[str, ...] = ()
    newest: dict[str, Checkpoint] = field(default_factory=dict)
    answers: list[int] = field(default_factory=list)

    def __call__(self, path: str, body: bytes) -> Answer:
        """Answer add-checkpoint."""
        assert path == "/w/add-checkpoint"
        found = consider(body, logs=[parse_vkey(text) for text in self.logs], newest=self.newest)
        if isinstance(found, Cosign):
            self.answers.append(200)
            self.newest[found.checkpoint.origin] = found.checkpoint
            lines = [str(key.sign(found.checkpoint)) for key in self.keys]
            return 200, "text/plain; charset=utf-8", "".join(f"{line}\n" for line in lines).encode()
        self.answers.append(found.status)
        return found.status, found.media_type, found.body.encode()


async def tell(service: Service) -> None:
    """Sign what is there, and tell others."""
    await service.resources.transparency.advance(force=True)
    await service.resources.transparency.tell_others()


async def newest(service: Service) -> str:
    """Return the newest note."""
    return (await service.get("/api/v1/audit/checkpoint")).text


async def test_witnesses_cosign(start: Starter) -> None:
    """Of each algorithm; the cosignatures are in the checkpoint that we show and in the export."""
    witness = Witness(WITNESSES)
    with serving(witness) as url:
        service = await start(audit_witnesses=tuple(f"{key.public} {url}/w/" for key in WITNESSES))
        service.app.state.resources, people = introduce(service.resources)
        witness.logs = tuple(map(str, await vkeys(service)))
        for size in (3, 9, 300):
            await grow(service, size - await service.store.read(lambda tx: tx.audit.tree.size()))
            await tell(service)
            signed = checkpoint.parse((await newest(service)).encode())
            assert (
                checkpoint.verify(
                    signed,
                    log_keys=await vkeys(service),
                    witnesses=[key.public for key in WITNESSES],
                    quorum=2,
                ).checkpoint.size
                == size
            )
        assert (await service.get("/api/v1/audit/keys")).json()["witnesses"] == [
            str(key.public) for key in WITNESSES
        ]
        # A worker that starts anew does not know what the witness saw, and is told.
        again = await start(service.clock, audit_witnesses=(f"{WITNESSES[0].public} {url}/w",))
        witness.answers.clear()
        await grow(again, 5)
        await tell(again)
        assert witness.answers == [409, 200]
        assert WITNESSES[0].public.name in await newest(again)
    answer = await service.get("/api/v1/audit/export", headers=people.headers("ada", Duty.AUDITOR))
    verifier = LogVerifier(pinned=Pinned(log_keys=await vkeys(service), witnesses=(), quorum=0), earlier=[])
    verifier.feed(answer.content)
    assert verifier.finish().checkpoints == (3, 9, 300, 305, 306)
    noted = json.loads(answer.content.splitlines()[0])["checkpoints"]
    assert [note.count("— witness.example/one ") for note in noted] == [1, 1, 1, 1, 0]


async def test_an_export_keeps_what_witnesses_saw_last(
    start: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there are more checkpoints than fit, a reader's quorum still covers as much as it can."""
    monkeypatch.setattr("attestation_service.audit.handlers.MAX_CHECKPOINTS", 4)
    monkeypatch.setattr("attestation_service.audit.handlers.COSIGNED_CHECKPOINTS", 2)
    witness = Witness(WITNESSES[:1])
    with serving(witness) as url:
        service = await start(audit_witnesses=(f"{WITNESSES[0].public} {url}/w",))
        service.app.state.resources, people = introduce(service.resources)
        witness.logs = tuple(map(str, await vkeys(service)))
        for _ in range(7):
            await grow(service, 1)
            await tell(service)
        await grow(service, 1)
    answer = await service.get("/api/v1/audit/export", headers=people.headers("ada", Duty.AUDITOR))
    pinned = Pinned(log_keys=await vkeys(service), witnesses=(WITNESSES[0].public,), quorum=1)
    verifier = LogVerifier(pinned=pinned, earlier=[])
    verifier.feed(answer.content)
    verdict = verifier.finish()
    assert (verdict.witnessed, verdict.entries) == (7, 9)
    assert len(verdict.checkpoints) <= 4


def scripted(*answers: Answer) -> Handle:
    """Answer in this order, the last one for ever."""
    left = list(answers)
    return lambda _path, _body: left.pop(0) if len(left) > 1 else left[0]


TEXT = "text/plain; charset=utf-8"
ONE = WITNESSES[0]
ELSE = Checkpoint(origin="attest.example.test/audit", size=3, root=bytes(32))


@pytest.mark.threat("T44")
@pytest.mark.parametrize(
    ("answers", "why"),
    [
        ([(403, TEXT, b"no")], "answered 403"),
        ([(500, TEXT, b"")], "answered 500"),
        ([(302, TEXT, b"")], "answered 302"),
        ([(409, TEXT, b"another root")], "answered 409"),
        ([(409, SIZE_MEDIA_TYPE, b"4\n")], "saw 4 entries already"),
        ([(409, SIZE_MEDIA_TYPE, b"-1\n")], "without a size"),
        ([(409, SIZE_MEDIA_TYPE, b"")], "without a size"),
        ([(409, SIZE_MEDIA_TYPE, b"\xff")], "without a size"),
        ([(409, SIZE_MEDIA_TYPE, b"2\n"), (409, SIZE_MEDIA_TYPE, b"1\n")], "answered 409"),
        ([(409, SIZE_MEDIA_TYPE, b"2\n"), (422, TEXT, b"")], "answered 422"),
        ([(200, TEXT, b"")], "good signature"),
        ([(200, TEXT, b"\xff\n")], "good signature"),
        ([(200, TEXT, b"x" * 70_000)], "longer than 65536"),
        ([(200, TEXT, f"{ONE.sign(ELSE)}\n".encode())], "does not verify"),
        ([(200, TEXT, f"{WITNESSES[1].sign(ELSE)}\n".encode())], "none of its own"),
        (
            [(200, TEXT, f"{Key(ONE.public.name, KeyType.ED25519_COSIGNATURE, 9).sign(ELSE)}\n".encode())],
            "none of its own",
        ),
    ],
)
async def test_a_witness_that_does_not_cosign_is_counted(
    start: Starter, answers: list[Answer], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing of what it says is kept; the log says what was wrong; the checkpoint is there without it."""
    with serving(scripted(*answers)) as url:
        service = await start(audit_witnesses=(f"{ONE.public} {url}/w",))
        await grow(service, 3)
        await tell(service)
    log = service.resources.transparency
    assert list(log.failures.values()) == [1]
    assert why in capsys.readouterr().err
    assert await service.store.read(lambda tx: tx.audit.tree.countersignatures(3)) == []
    assert checkpoint.parse((await newest(service)).encode()).checkpoint.size == 3
    assert (await service.get("/readyz")).json()["status"] == "ok"


async def test_a_witness_that_is_not_there_is_asked_again(start: Starter) -> None:
    """Not at once, but after the interval, also where nothing new was signed."""
    witness = Witness((ONE,))
    with serving(witness) as url:
        gone = url
    service = await start(audit_witnesses=(f"{ONE.public} {gone}/w",))
    await grow(service, 3)
    await tell(service)
    log = service.resources.transparency
    assert list(log.failures.values()) == [1]
    await log.tell_others()
    assert list(log.failures.values()) == [1]
    service.clock.advance(61)
    await log.tell_others()
    assert list(log.failures.values()) == [2]
    witness.logs = tuple(map(str, await vkeys(service)))
    with serving(witness) as url:
        log.others = countersigners(Settings(audit_witnesses=(f"{ONE.public} {url}/w",)))
        service.clock.advance(61)
        await log.tell_others()
        await log.tell_others()
    assert witness.answers == [200]
    assert log.failures == {}
    assert "— witness.example/one " in await newest(service)


@pytest.mark.threat("T44")
async def test_nobody_waits_for_a_witness_that_hangs(start: Starter, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints and attestations go on; the request ends by itself."""
    told_seconds = "attestation_service.transparency.checkpoints.TOLD_SECONDS"
    monkeypatch.setattr(told_seconds, 3600.0)
    asked, released = threading.Event(), threading.Event()

    def hang(_path: str, _body: bytes) -> Answer:
        asked.set()
        released.wait(60)
        return 200, TEXT, b""

    with serving(hang) as url:
        service = await start(audit_witnesses=(f"{ONE.public} {url}/w",))
        await grow(service, 3)
        log = service.resources.transparency
        await log.advance(force=True)
        telling = asyncio.create_task(log.tell_others())
        assert await asyncio.to_thread(asked.wait, 60)
        await grow(service, 1)
        await log.advance(force=True)
        assert "\n4\n" in await newest(service)
        assert not telling.done()
        telling.cancel()
        monkeypatch.setattr(told_seconds, 0.1)
        async with asyncio.timeout(60):
            await log.tell_others()
        released.set()
    assert list(log.failures.values()) == [1]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "witness.example/one+00000000+AAAA http://w.example",
        str(ONE.public),
        f"{ONE.public} ftp://w.example",
        f"{Key('log.example', KeyType.ED25519).public} http://w.example",
    ],
)
def test_a_witness_is_a_key_and_an_address(text: str) -> None:
    """Anything else stops the start: a witness that is never asked protects nobody."""
    with pytest.raises(WitnessUnusable):
        countersigners(Settings(audit_witnesses=(text,)))


def test_a_checkpoint_has_room_for_every_witness() -> None:
    """A note of more than 32 signatures is read by nobody."""
    texts = [f"{Key(f'w{n}', KeyType.ML_DSA_44).public} http://w.example" for n in range(31)]
    assert len(countersigners(Settings(audit_witnesses=tuple(texts[:30])))) == 30
    with pytest.raises(WitnessUnusable, match="at most 30"):
        countersigners(Settings(audit_witnesses=tuple(texts)))


def test_what_cannot_be_asked_or_sign_stops_the_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Before any worker starts, and with `--prepare` too."""
    monkeypatch.setenv("ITL_SERVICE_URL", "http://127.0.0.1:8080")
    monkeypatch.setenv("ITL_DB_URL", f"sqlite:///{tmp_path}/m.db")
    monkeypatch.setenv("ITL_ENROLLMENT_CA_DIR", str(tmp_path / "ca"))
    monkeypatch.setenv("ITL_AUDIT_WITNESSES", f"{ONE.public} http://127.0.0.1:1/w")
    assert main(["--prepare"]) == 0
    assert sorted(path.name for path in (tmp_path / "ca").glob("audit-*")) == [
        "audit-ed25519.pem",
        "audit-memory.json",
        "audit-mldsa44.pem",
    ]
    monkeypatch.setenv("ITL_AUDIT_WITNESSES", "somebody")
    assert main(["--prepare"]) == 1
    assert "a vkey, a space and a URL" in capsys.readouterr().err
    monkeypatch.delenv("ITL_AUDIT_WITNESSES")
    (tmp_path / "ca" / "audit-mldsa44.pem").chmod(0o644)
    assert main(["--prepare"]) == 1
    assert "0600" in capsys.readouterr().err


# ---------------------------------------------------------------- RFC 3161


def openssl(directory: Path, *arguments: str, data: bytes = b"") -> bytes:
    """Run openssl in *directory*."""
    done = subprocess.run(
        ["openssl", *arguments], cwd=directory, input=data, capture_output=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


TSA_CONFIG = """\
[tsa]
default_tsa = one
[one]
serial = serial
crypto_device = builtin
signer_cert = tsa.pem
signer_key = tsa.key
signer_digest = sha256
default_policy = 1.2.3.4.1
digests = sha256, sha384, sha512
accuracy = secs:1
ess_cert_id_alg = sha256
[ext]
extendedKeyUsage = critical,timeStamping
keyUsage = critical,digitalSignature
"""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A time stamping authority of openssl: CA, certificate, configuration."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    made = tmp_path_factory.mktemp("tsa")
    (made / "tsa.conf").write_text(TSA_CONFIG)
    (made / "serial").write_text("01\n")
    new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    for name in ("ca", "other"):
        openssl(
            made,
            "req",
            "-x509",
            *new_key,
            "-keyout",
            f"{name}.key",
            "-out",
            f"{name}.pem",
            "-subj",
            f"/CN=Time {name}",
            "-days",
            "30",
        )
    openssl(made, "req", *new_key, "-keyout", "tsa.key", "-out", "tsa.csr", "-subj", "/CN=Time stamps")
    openssl(
        made,
        "x509",
        "-req",
        "-in",
        "tsa.csr",
        "-CA",
        "ca.pem",
        "-CAkey",
        "ca.key",
        "-out",
        "tsa.pem",
        "-days",
        "30",
        "-extfile",
        "tsa.conf",
        "-extensions",
        "ext",
        "-set_serial",
        "2",
    )
    return made


REPLY = "application/timestamp-reply"


def stamping(authority: Path) -> Handle:
    """Return a server that stamps with openssl."""
    lock = threading.Lock()

    def stamp(_path: str, body: bytes) -> Answer:
        with lock:
            (authority / "query.tsq").write_bytes(body)
            openssl(
                authority,
                "ts",
                "-reply",
                "-config",
                "tsa.conf",
                "-queryfile",
                "query.tsq",
                "-out",
                "reply.tsr",
            )
            return 200, REPLY, (authority / "reply.tsr").read_bytes()

    return stamp


@pytest.mark.parametrize("with_ca", [True, False])
async def test_a_checkpoint_is_stamped(start: Starter, authority: Path, with_ca: bool) -> None:
    """The stamp is over the text of the checkpoint; rfc3161-client and openssl both verify it, from an export."""
    with serving(stamping(authority)) as url:
        service = await start(
            audit_timestamp_url=f"{url}/tsa", audit_timestamp_ca=authority / "ca.pem" if with_ca else None
        )
        service.app.state.resources, people = introduce(service.resources)
        await grow(service, 3)
        await tell(service)
        await grow(service, 1)
        await tell(service)
    headers = people.headers("ada", Duty.AUDITOR)
    answer = await service.get("/api/v1/audit/export", headers=headers)
    verifier = LogVerifier(pinned=Pinned(log_keys=await vkeys(service), witnesses=(), quorum=0), earlier=[])
    verifier.feed(answer.content)
    verdict = verifier.finish()
    assert [stamp.size for stamp in verdict.timestamps] == [3, 4]
    notes = [checkpoint.parse(n.encode()) for n in json.loads(answer.content.splitlines()[0])["checkpoints"]]
    (root,) = x509.load_pem_x509_certificates((authority / "ca.pem").read_bytes())
    for stamp, signed in zip(verdict.timestamps, notes, strict=False):
        text = signed.note.text.encode()
        judge = VerifierBuilder().add_root_certificate(root).build()
        judge.verify_message(decode_timestamp_response(stamp.response), text)
        with pytest.raises(VerificationError):
            judge.verify_message(decode_timestamp_response(stamp.response), text + b"x")
        (authority / "stamp.tsr").write_bytes(stamp.response)
        (authority / "text").write_bytes(text)
        told = openssl(authority, "ts", "-verify", "-data", "text", "-in", "stamp.tsr", "-CAfile", "ca.pem")
        assert b"OK" in told


def about_something_else(authority: Path) -> Handle:
    """Stamp another text than the one that was asked for."""
    good = stamping(authority)

    def stamp(path: str, _body: bytes) -> Answer:
        (authority / "other.txt").write_bytes(b"other")
        other = openssl(authority, "ts", "-query", "-data", "other.txt", "-sha256", "-cert")
        return good(path, other)

    return stamp


def rejecting(authority: Path) -> Handle:
    """Answer a request that is none, as openssl does: status rejection."""
    return lambda path, _body: stamping(authority)(path, b"no request")


@pytest.mark.threat("T44")
@pytest.mark.parametrize(
    ("make", "ca"),
    [
        (about_something_else, "ca.pem"),
        (about_something_else, None),
        (rejecting, "ca.pem"),
        (rejecting, None),
        (stamping, "other.pem"),
        (lambda _: scripted((200, REPLY, b"\x30\x00")), None),
        (lambda _: scripted((200, REPLY, b"")), "ca.pem"),
        (lambda _: scripted((200, "text/html", b"<html>")), None),
        (lambda _: scripted((200, REPLY, b"x" * 20_000)), None),
        (lambda _: scripted((503, REPLY, b"")), None),
    ],
)
async def test_a_stamp_that_does_not_verify_is_not_kept(
    start: Starter, authority: Path, make: Callable[[Path], Handle], ca: str | None
) -> None:
    """Of something else, of somebody else, refused, or no stamp at all: counted, and the log goes on."""
    with serving(make(authority)) as url:
        service = await start(audit_timestamp_url=url, audit_timestamp_ca=authority / ca if ca else None)
        await grow(service, 3)
        await tell(service)
    assert service.resources.transparency.failures == {url: 1}
    assert await service.store.read(lambda tx: tx.audit.tree.countersignatures(3)) == []


def test_what_cannot_stamp_stops_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No CA in the file, or no package: said at the start, not at the first checkpoint."""
    url = "http://tsa.example"
    (tmp_path / "ca.pem").write_text("nothing")
    for name in ("ca.pem", "none.pem"):
        with pytest.raises(TimeStampingUnusable, match="ITL_AUDIT_TIMESTAMP_CA"):
            countersigners(Settings(audit_timestamp_url=url, audit_timestamp_ca=tmp_path / name))
    monkeypatch.setitem(sys.modules, "rfc3161_client", None)
    with pytest.raises(TimeStampingUnusable, match="timestamps"):
        countersigners(Settings(audit_timestamp_url=url))


def test_requests_to_others_have_an_end() -> None:
    """Five seconds for each, and the environment names no proxy for them."""
    http = others.client()
    assert (http.timeout.connect, http.timeout.read, http.follow_redirects) == (5.0, 5.0, False)
    assert not http.trust_env
