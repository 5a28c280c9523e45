"""Private keys in a TPM (swtpm): made once, used by many, gone and back, and never more said than needed."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa

from attestation.device import TPM, KeyType, NodeTPM, TPMKey, Transport, open_transport
from attestation.device.keys import key_template, load_key, make_key
from attestation.device.nv import is_written, write_nv_file
from attestation.errors import (
    KeyMismatch,
    KeyNotFound,
    KeyUnsupported,
    KeyUnusable,
    KeyURIInvalid,
    PINRejected,
    SignerBusy,
    SignerUnavailable,
    TPMResponseError,
)
from attestation.evidence.key_certification import KeyMode, compute_mode
from attestation.keys import tpm2
from attestation.keys.open import KeyOptions, OpenKey, create_key, open_key
from attestation.keys.tpm2 import thread as threads
from attestation.tpm import commands, parse_attest, parse_public
from attestation.tpm.attest import CertifyInfo
from attestation.tpm.commands import NVPublic
from attestation.tpm.constants import Alg, Hierarchy
from attestation.tpm.key_file import encode_key, encode_key_file, parse_key_file
from attestation.tpm.sessions import Password
from attestation_testing import SoftwareTPM, ak_template
from tests.fixtures.tpm import MakeTPM, Wiretap

pytestmark = pytest.mark.swtpm

PLAIN = KeyOptions()
HANDLE, NV = 0x81010020, 0x01800020


def _uri(tpm: SoftwareTPM, where: str, query: str = "") -> str:
    place = {
        "handle": f"handle=0x{HANDLE:08x}",
        "nv": f"nv=0x{NV:08x}",
        "path": f"path={tpm.directory.parent}/ca.tss2",
    }[where]
    return f"tpm2:{place}?tcti={tpm.uri}{query}"


@pytest.fixture(params=["handle", "nv", "path"])
def where(request: pytest.FixtureRequest) -> str:
    """Every place where a key may be."""
    found: str = request.param
    return found


@contextlib.contextmanager
def created(uri: str, options: KeyOptions = PLAIN) -> Iterator[OpenKey]:
    key = create_key(uri, "ecdsa-p384", options)
    try:
        yield key
    finally:
        key.close()


@contextlib.contextmanager
def opened(uri: str, options: KeyOptions = PLAIN) -> Iterator[OpenKey]:
    key = open_key(uri, options)
    try:
        yield key
    finally:
        key.close()


def until(condition: Callable[[], bool]) -> None:
    """Wait for what another thread does."""
    give_up_at = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < give_up_at
        time.sleep(0.005)


def check(key: OpenKey) -> None:
    """Sign, and verify under the public half."""
    key.self_test(key.public_key)


def put(tpm: SoftwareTPM, template: bytes, *, auth: bytes = b"", path: Path | None = None) -> Path | None:
    """Make a key of *template* at HANDLE, or in a file, as somebody else would."""
    with tpm.client() as client:
        key = make_key(client, template, auth_value=auth)
        if path is not None:
            path.write_bytes(encode_key_file(key))
            path.chmod(0o600)
            return path
        with client.scope():
            loaded = load_key(client, key).entity
            client.execute(commands.evict_control(Hierarchy.OWNER, loaded, HANDLE), Password())
    return None


def evict(tpm: SoftwareTPM) -> None:
    with tpm.client() as client:
        name = client.execute(commands.read_public(HANDLE)).name
        entity = commands.Entity(HANDLE, name)
        client.execute(commands.evict_control(Hierarchy.OWNER, entity, HANDLE), Password())


# Made, opened, once


def test_a_key_is_made_once(blank_tpm: SoftwareTPM, where: str) -> None:
    """Nothing is there; it is made; from then on it is the same key, and the TPM holds nothing of us."""
    uri = _uri(blank_tpm, where)
    with pytest.raises(KeyNotFound):
        open_key(uri, PLAIN)
    with created(uri) as first, created(uri) as second, opened(uri) as third:
        assert first.public_key == second.public_key == third.public_key
        assert (first.algorithm, first.origin, first.backend) == ("ecdsa-p384", "tpm", "tpm2")
        assert "?" not in first.uri
        for key in (first, second, third):
            check(key)
    assert not threads._threads
    with blank_tpm.client() as tpm:
        assert tpm.handles(commands.TRANSIENT_FIRST) == []
        assert tpm.handles(commands.LOADED_SESSION_FIRST) == []


def test_it_is_resident(blank_tpm: SoftwareTPM, tmp_path: Path) -> None:
    """Attributes 00040472; the TPM's AK certifies that it is `tpm-resident`; the file is of mode 0600."""
    with created(_uri(blank_tpm, "path")):
        pass
    path = tmp_path / "ca.tss2"
    assert path.stat().st_mode & 0o777 == 0o600
    key = parse_key_file(path.read_bytes())
    assert parse_public(key.public).attributes == 0x00040472
    with blank_tpm.node() as node:
        info = parse_attest(node.certify_key(key, bytes(32)).certify_info).attested
    assert isinstance(info, CertifyInfo)
    assert compute_mode(parse_public(key.public), info.qualified_name) is KeyMode.RESIDENT


@pytest.mark.parametrize("algorithm", ["rsa-4096", "ml-dsa-87"])
def test_what_a_tpm_does_not_make(blank_tpm: SoftwareTPM, where: str, algorithm: str) -> None:
    """RSA-4096 and ML-DSA-87 are refused, and nothing is made."""
    with pytest.raises(KeyUnsupported):
        create_key(_uri(blank_tpm, where), algorithm, PLAIN)  # type: ignore[arg-type]
    with pytest.raises(KeyNotFound):
        open_key(_uri(blank_tpm, where), PLAIN)


def test_another_algorithm_is_there(blank_tpm: SoftwareTPM) -> None:
    """What is there is not replaced."""
    put(blank_tpm, key_template(KeyType.ECC_P256))
    with pytest.raises(KeyMismatch, match="ecdsa-p256"):
        create_key(_uri(blank_tpm, "handle"), "ecdsa-p384", PLAIN)
    assert not threads._threads


@pytest.mark.parametrize("kind", KeyType)
@pytest.mark.parametrize("in_file", [True, False])
def test_keys_of_others(blank_tpm: SoftwareTPM, tmp_path: Path, kind: KeyType, in_file: bool) -> None:
    """Keys that were made before, of every kind: with every hash and padding, verified by cryptography."""
    put(blank_tpm, key_template(kind), path=tmp_path / "ca.tss2" if in_file else None)
    with opened(_uri(blank_tpm, "path" if in_file else "handle")) as key:
        check(key)
        for algorithm in (hashes.SHA256(), hashes.SHA384(), hashes.SHA512()):
            public, private = key.public_key, key.private_key
            if isinstance(public, ec.EllipticCurvePublicKey):
                assert isinstance(private, ec.EllipticCurvePrivateKey)
                public.verify(private.sign(b"message", ec.ECDSA(algorithm)), b"message", ec.ECDSA(algorithm))
                continue
            assert isinstance(public, rsa.RSAPublicKey)
            assert isinstance(private, rsa.RSAPrivateKey)
            for scheme in (padding.PKCS1v15(), padding.PSS(padding.MGF1(algorithm), algorithm.digest_size)):
                public.verify(private.sign(b"message", scheme, algorithm), b"message", scheme, algorithm)


@pytest.mark.parametrize(
    ("template", "said"),
    [
        pytest.param(ak_template().tpmt, "signs what it is given", id="restricted"),
        pytest.param(
            key_template(KeyType.RSA_2048, attributes=0x00020472), "signs what it is given", id="decryption"
        ),
        pytest.param(bytes.fromhex("0008000b0004047200000005000b0000"), "kind", id="HMAC"),
        pytest.param(
            bytes.fromhex("0023000b0004047200000010001a000b00000003001000000000"), "has a scheme", id="ECDAA"
        ),
    ],
)
def test_keys_that_sign_no_certificates(blank_tpm: SoftwareTPM, template: bytes, said: str) -> None:
    """A restricted, decrypting, symmetric or anonymous key is refused before it is used."""
    put(blank_tpm, template)
    with pytest.raises(KeyUnsupported, match=said):
        open_key(_uri(blank_tpm, "handle"), PLAIN)
    assert not threads._threads


@pytest.mark.threat("T93")
def test_a_key_of_another_tpm(make_tpm: MakeTPM, tmp_path: Path) -> None:
    """A stolen file is of no use; and the message says so."""
    first, second = make_tpm("a"), make_tpm("b")
    with created(_uri(first, "path")):
        pass
    with pytest.raises(KeyMismatch, match="another TPM"):
        open_key(f"tpm2:path={tmp_path}/ca.tss2?tcti={second.uri}", PLAIN)


def test_after_a_clear(blank_tpm: SoftwareTPM, where: str) -> None:
    """TPM2_Clear takes the key away: not found, or not loadable, but never another one."""
    with created(_uri(blank_tpm, where)) as key:
        with blank_tpm.client() as tpm:
            tpm.execute(commands.clear(Hierarchy.PLATFORM), Password())
        with pytest.raises((KeyNotFound, KeyMismatch)):
            check(key)


@pytest.mark.parametrize("data", [b"", b"rubbish", b"\x30\x00"])
def test_what_is_no_key_file(blank_tpm: SoftwareTPM, tmp_path: Path, data: bytes) -> None:
    """Something else is at the path."""
    (tmp_path / "ca.tss2").write_bytes(data)
    (tmp_path / "ca.tss2").chmod(0o600)
    with pytest.raises(KeyUnusable, match="TSS2 PRIVATE KEY"):
        open_key(_uri(blank_tpm, "path"), PLAIN)


@pytest.mark.threat("T93")
def test_files_that_others_read(blank_tpm: SoftwareTPM, tmp_path: Path) -> None:
    """As of every key file: mode 0600."""
    with created(_uri(blank_tpm, "path")):
        pass
    (tmp_path / "ca.tss2").chmod(0o640)
    with pytest.raises(KeyUnusable, match="0600"):
        open_key(_uri(blank_tpm, "path"), PLAIN)


@pytest.mark.parametrize("tcti", ["swtpm:path=/x", "cmd:sh", "device:tpm", "/dev/tpm0"])
def test_transports_are_ours(tcti: str) -> None:
    """No library to load, no program to run."""
    with pytest.raises(KeyURIInvalid):
        open_key(f"tpm2:handle=0x81010020?tcti={tcti}", PLAIN)


# Gone and back


@pytest.mark.threat("T95")
def test_the_tpm_comes_back(blank_tpm: SoftwareTPM, where: str) -> None:
    """Away: SignerUnavailable, at once. Back: it signs, without anybody's help."""
    with created(_uri(blank_tpm, where)) as key:
        check(key)
        for _ in range(2):
            blank_tpm.stop()
            begun = time.monotonic()
            with pytest.raises(SignerUnavailable):
                check(key)
            assert time.monotonic() - begun < threads.DEADLINE_SECONDS
            with pytest.raises(SignerUnavailable):
                open_key(_uri(blank_tpm, "handle"), PLAIN)
            blank_tpm.start()
            check(key)


def test_a_reset_in_between_is_not_noticed(blank_tpm: SoftwareTPM, where: str) -> None:
    """While the key is loaded and the connection open, the TPM restarts: the next signature succeeds."""
    with created(_uri(blank_tpm, where)) as key:
        for _ in range(3):
            check(key)
            blank_tpm.power_cut()
            check(key)


def test_somebody_flushes_what_we_loaded(blank_tpm: SoftwareTPM, monkeypatch: pytest.MonkeyPatch) -> None:
    """A resource manager that restarts, a tool that flushes everything: loaded again, once."""
    monkeypatch.setattr(threads, "LINGER_EXCLUSIVE_SECONDS", 60.0)
    monkeypatch.setattr(threads, "HOLD_EXCLUSIVE_SECONDS", 60.0)
    with created(_uri(blank_tpm, "path")) as key:
        (worker,) = threads._threads.values()
        for _ in range(3):
            check(key)
            # The worker waits for a job, so its connection may be used from here.
            assert worker._connection is not None
            client = worker._connection.tpm
            (loaded,) = client.handles(commands.TRANSIENT_FIRST)
            client.execute(commands.flush_context(loaded))
            check(key)


@pytest.mark.threat("T93")
def test_another_key_takes_its_handle(blank_tpm: SoftwareTPM) -> None:
    """It does not sign in place of the key that was opened; nor does nothing."""
    with created(_uri(blank_tpm, "handle")) as key:
        evict(blank_tpm)
        with pytest.raises(KeyNotFound):
            check(key)
        put(blank_tpm, key_template(KeyType.ECC_P384))
        with pytest.raises(KeyMismatch, match="another key"):
            check(key)


@pytest.mark.threat("T95")
def test_a_tpm_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It costs one caller the time-out; whoever comes within the back-off hears at once."""
    monkeypatch.setattr(threads, "COMMAND_TIMEOUT_SECONDS", 1.1)
    monkeypatch.setattr(threads, "BACK_OFF_SECONDS", 3600.0)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        listener.setblocking(False)
        worker = threads.TPMThread(f"unix:{tmp_path}/s")
        try:
            with pytest.raises(SignerUnavailable, match="no answer"):
                worker.run(lambda connection: connection.tpm.properties(), shown="key")
            listener.accept()[0].close()
            with pytest.raises(SignerUnavailable, match="no answer"):
                worker.run(lambda connection: connection.tpm.properties(), shown="key")
            with pytest.raises(BlockingIOError):
                listener.accept()
        finally:
            worker.close()


def test_jobs_that_nobody_waits_for(blank_tpm: SoftwareTPM) -> None:
    """What was not begun in time never is; what does not fit into the queue is refused; a closed worker says so."""
    worker = threads.TPMThread(blank_tpm.uri, queue_jobs=1)
    begun, go, done = threading.Event(), threading.Event(), []

    def blocking(_: threads.HeldTPM) -> None:
        begun.set()
        go.wait(60)

    def first() -> None:
        worker.run(blocking, shown="key")

    def second() -> None:
        with contextlib.suppress(SignerUnavailable):
            worker.run(lambda _: done.append(1), shown="key", deadline_seconds=0.2)

    callers = [threading.Thread(target=first)]
    callers[0].start()
    assert begun.wait(60)
    callers.append(threading.Thread(target=second))
    callers[1].start()
    until(worker._queue.full)
    with pytest.raises(SignerBusy):
        worker.run(lambda _: None, shown="key")
    callers[1].join()
    go.set()
    callers[0].join()
    worker.close()
    assert not done
    with pytest.raises(SignerUnavailable, match="was closed"):
        worker.run(lambda _: None, shown="key")


def test_a_child_does_not_inherit_keys(blank_tpm: SoftwareTPM) -> None:
    """The thread is not in a forked process: it hears so, instead of waiting."""
    with created(_uri(blank_tpm, "handle")) as key:
        worker = next(iter(threads._threads.values()))
        worker._pid -= 1
        with pytest.raises(SignerUnavailable, match="fork"):
            check(key)
        worker.close()
        worker._pid += 1
        check(key)


@pytest.mark.threat("T95")
def test_who_waits_for_the_tpm_gets_it(blank_tpm: SoftwareTPM) -> None:
    """Swtpm serves one client at a time: the agent of the same machine gets it while the key is open."""
    with created(_uri(blank_tpm, "path")) as key:
        for _ in range(5):
            check(key)
            with blank_tpm.node() as node:
                node.ak_public()


def test_others_get_their_turn(blank_tpm: SoftwareTPM) -> None:
    """However much there is to sign, another client of the same TPM waits for half a second, not for the end."""
    stop = threading.Event()
    with created(_uri(blank_tpm, "path")) as key:

        def work() -> None:
            while not stop.is_set():
                check(key)

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        give_up = threading.Timer(120, stop.set)
        give_up.start()
        time.sleep(0.2)
        with blank_tpm.client() as client:
            client.properties()
            assert not stop.is_set()
        stop.set()
        give_up.cancel()
        for thread in threads:
            thread.join()


# Passwords


@pytest.fixture
def auth(tmp_path: Path) -> Path:
    """A file with an authValue."""
    path = tmp_path / "auth"
    path.write_bytes(b"correct horse\n")
    return path


def _tap(monkeypatch: pytest.MonkeyPatch) -> list[Wiretap]:
    """Record what crosses the bus."""
    taps: list[Wiretap] = []

    def listen(uri: str) -> Transport:
        taps.append(Wiretap(open_transport(uri)))
        return taps[-1]

    monkeypatch.setattr("attestation.keys.tpm2.thread.open_transport", listen)
    return taps


@pytest.mark.threat("T94")
def test_an_authvalue(
    blank_tpm: SoftwareTPM, where: str, auth: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Demanded by the TPM, encrypted when it is set, proven by HMAC when it is used: it never crosses the bus."""
    taps = _tap(monkeypatch)
    uri = _uri(blank_tpm, where, f"&auth-source=file:{auth}")
    with created(uri) as key, opened(uri) as again:
        check(key)
        check(again)
        assert b"horse" not in b"".join(command for tap in taps for command in tap.commands)
    if where == "path":
        assert not parse_key_file((auth.parent / "ca.tss2").read_bytes()).empty_auth
    with pytest.raises(PINRejected):
        open_key(_uri(blank_tpm, where), PLAIN)
    with opened(_uri(blank_tpm, where), KeyOptions(passphrase=lambda: b"correct horse")) as key:
        check(key)


@pytest.mark.threat("T94")
def test_a_wrong_authvalue_is_tried_once(
    blank_tpm: SoftwareTPM, where: str, auth: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until its file says something else, nothing is sent; then it signs again."""
    with created(_uri(blank_tpm, where, f"&auth-source=file:{auth}")) as key:
        # What was read stays with the loaded key.
        until(lambda: all(worker._connection is None for worker in threads._threads.values()))
        auth.write_bytes(b"wrong")
        with pytest.raises(PINRejected):
            check(key)
        taps = _tap(monkeypatch)
        for _ in range(3):
            with pytest.raises(PINRejected, match="refused before"):
                check(key)
        codes = [code for tap in taps for code in tap.codes]
        assert commands.CC.SIGN not in codes
        auth.write_bytes(b"correct horse")
        check(key)


def test_an_authvalue_that_is_too_long(blank_tpm: SoftwareTPM, where: str, auth: Path) -> None:
    """33 bytes do not fit; nothing is made."""
    auth.write_bytes(b"x" * 33)
    with pytest.raises(KeyUnusable, match="32 bytes"):
        create_key(_uri(blank_tpm, where, f"&auth-source=file:{auth}"), "ecdsa-p384", PLAIN)
    with pytest.raises(KeyNotFound):
        open_key(_uri(blank_tpm, where), PLAIN)


def test_an_authvalue_that_ends_with_zeros(blank_tpm: SoftwareTPM, where: str, auth: Path) -> None:
    """Random bytes may end so; a TPM takes them off, which an HMAC key of up to 64 bytes does not feel."""
    auth.write_bytes(b"\1" * 30 + b"\0\0")
    with created(_uri(blank_tpm, where, f"&auth-source=file:{auth}")) as key:
        check(key)


def test_the_owner_has_a_password(blank_tpm: SoftwareTPM, where: str, auth: Path) -> None:
    """Needed to make keys, and to load wrapped ones; the wrong one is refused."""
    with blank_tpm.client() as tpm:
        tpm.execute(commands.hierarchy_change_auth(Hierarchy.OWNER, b"correct horse"), Password())
    with pytest.raises(PINRejected):
        create_key(_uri(blank_tpm, where), "ecdsa-p384", PLAIN)
    with created(_uri(blank_tpm, where, f"&owner-auth-source=file:{auth}")) as key:
        check(key)
    if where == "handle":
        with opened(_uri(blank_tpm, where)) as key:
            check(key)
    else:
        with pytest.raises(PINRejected):
            open_key(_uri(blank_tpm, where), PLAIN)


# Many at once


def test_threads(blank_tpm: SoftwareTPM) -> None:
    """Eight threads with three keys of one TPM: every signature verifies."""
    failures: list[BaseException] = []
    with contextlib.ExitStack() as stack:
        keys = [stack.enter_context(created(_uri(blank_tpm, where))) for where in ("handle", "nv", "path")]
        assert keys[0].public_key != keys[1].public_key != keys[2].public_key

        def work(n: int) -> None:
            try:
                for i in range(10):
                    check(keys[(n + i) % 3])
            except BaseException as e:
                failures.append(e)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures


CREATE = """
import sys
from attestation.keys.open import KeyOptions, create_key
key = create_key(sys.argv[1], "ecdsa-p384", KeyOptions())
key.self_test(key.public_key)
print(key.public_key.public_numbers().x)
key.close()
"""


@pytest.mark.threat("T95")
def test_processes_make_one_key(blank_tpm: SoftwareTPM, where: str) -> None:
    """Four processes create at the same time: one key."""
    started = [
        subprocess.Popen([sys.executable, "-c", CREATE, _uri(blank_tpm, where)], stdout=subprocess.PIPE)
        for _ in range(4)
    ]
    said = {process.communicate(timeout=240)[0] for process in started}
    assert all(process.returncode == 0 for process in started)
    assert len(said) == 1


@pytest.mark.threat("T95")
def test_what_is_there_is_not_made_again(
    blank_tpm: SoftwareTPM, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second creation makes nothing at all."""
    with created(_uri(blank_tpm, where)) as first:
        monkeypatch.setattr(tpm2, "make_key", None)
        with created(_uri(blank_tpm, where)) as second:
            assert first.public_key == second.public_key


@pytest.mark.parametrize("place", ["handle", "nv"])
def test_somebody_else_is_faster(blank_tpm: SoftwareTPM, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between our look and our writing another process puts its key there: that is the one."""
    theirs: list[TPMKey] = []

    def make(client: TPM, template: bytes, **options: bytes) -> TPMKey:
        if not theirs:
            theirs.append(make_key(client, template))
            if place == "nv":
                write_nv_file(client, NV, encode_key(theirs[0]))
            else:
                with client.scope():
                    loaded = load_key(client, theirs[0]).entity
                    client.execute(commands.evict_control(Hierarchy.OWNER, loaded, HANDLE), Password())
        return make_key(client, template, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(tpm2, "make_key", make)
    with created(_uri(blank_tpm, place)) as key:
        assert key.public_key == parse_public(theirs[0].public).key()
        check(key)


def test_a_file_that_needs_no_password(blank_tpm: SoftwareTPM, auth: Path) -> None:
    """It says so itself; a passphrase that is there for other keys does no harm."""
    with created(_uri(blank_tpm, "path")) as key:
        public = key.public_key
    with opened(_uri(blank_tpm, "path", f"&auth-source=file:{auth}")) as key:
        assert key.public_key == public
        check(key)


# NV memory


def _define(tpm: SoftwareTPM, attributes: int = 0x02040002) -> None:
    public = NVPublic(index=NV, name_alg=Alg.SHA256, attributes=attributes, auth_policy=b"", size_bytes=100)
    with tpm.client() as client:
        client.execute(commands.nv_define_space(Hierarchy.OWNER, public), Password())


def test_an_index_that_nobody_wrote(blank_tpm: SoftwareTPM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody died between defining and writing: after a while another takes its place."""
    monkeypatch.setattr(tpm2, "UNWRITTEN_SECONDS", 0.3)
    _define(blank_tpm)
    with pytest.raises(KeyNotFound):
        open_key(_uri(blank_tpm, "nv"), PLAIN)
    begun = time.monotonic()
    with created(_uri(blank_tpm, "nv")) as key:
        check(key)
    assert time.monotonic() - begun >= 0.3


def test_an_index_with_something_else(blank_tpm: SoftwareTPM) -> None:
    """What somebody else wrote is not touched."""
    _define(blank_tpm)
    with blank_tpm.client() as client:
        entity = client.execute(commands.nv_read_public(NV)).entity
        owner = commands.permanent(Hierarchy.OWNER)
        client.execute(commands.nv_write(owner, entity, b"x" * 100, 0), Password())
    with pytest.raises(KeyUnusable, match="TSS2"):
        create_key(_uri(blank_tpm, "nv"), "ecdsa-p384", PLAIN)
    with blank_tpm.client() as client:
        assert is_written(client, NV)
        assert is_written(client, NV + 1) is None


def test_it_goes_where_the_tpm_goes(blank_tpm: SoftwareTPM) -> None:
    """No file of ours is needed: after a reboot the key in NV memory is there."""
    with created(_uri(blank_tpm, "nv")) as key:
        public = key.public_key
    blank_tpm.reboot()
    with opened(_uri(blank_tpm, "nv")) as key:
        assert key.public_key == public
    assert not list(blank_tpm.directory.parent.glob("*.tss2"))


def test_a_foreign_refusal_is_unavailable() -> None:
    """What the TPM says and we do not know is no reason to give up the key."""
    said = threads._ours(TPMResponseError("TPM2_Sign", 0x101, "failure"), "key")
    assert type(said) is SignerUnavailable
    full = threads._ours(TPMResponseError("TPM2_Load", 0x902, "no room"), "key")
    assert type(full) is SignerBusy
    never = threads._ours(TPMResponseError("TPM2_Sign", 0x2D2, "scheme"), "key")
    assert type(never) is KeyUnsupported


def test_a_node_and_its_owner(blank_tpm: SoftwareTPM) -> None:
    """Keys of a node and of the service stand under the same storage key, and do not disturb each other."""
    with NodeTPM.open(blank_tpm.uri) as node:
        mine = node.create_signing_key()
    with created(_uri(blank_tpm, "path")) as key:
        check(key)
    with NodeTPM.open(blank_tpm.uri) as node:
        node.sign(mine, bytes(32))
