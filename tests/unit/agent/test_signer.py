"""The signer for other programs: who may ask, what it reads, what it signs."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa, utils
from hypothesis import given
from hypothesis import strategies as st

from attestation.device import KeyType, TPMKey
from attestation.errors import DeviceError
from attestation.tpm import parse_public
from attestation.tpm.key_file import encode_key_file
from attestation_agent import signer as signing
from attestation_agent.exits import UsageError
from attestation_agent.offered import BUNDLE, CERTIFICATE, CHAIN, KEY, Offered
from attestation_agent.signer import (
    MAX_REQUEST_BYTES,
    Refused,
    Signer,
    SignerRefused,
    ask,
    digest_of,
    serving,
)
from attestation_agent.tpm_keys import DIGEST_BYTES
from attestation_testing import SoftwareNode
from tests.fixtures.operator_pki import OperatorCA
from tests.unit.agent.world import Events

CA = OperatorCA(datetime(2026, 11, 21, tzinfo=UTC))
PEM = CA.issue("node").pem


class Desk:
    """A signer that answers, and what it has.

    Args:
        directory: For files.
    """

    def __init__(self, directory: Path) -> None:
        self.tpm = SoftwareNode(1)
        self.events = Events()
        self.offered = Offered(directory / "tls")
        self.path = directory / "s" / "sock"
        self.key = self.offer(KeyType.ECC_P384)
        self.signer = Signer(self.path, offered=self.offered, tpm=self.tpm, log=self.events)

    def offer(self, kind: KeyType) -> TPMKey:
        """Offer a client certificate for a new key."""
        key = self.tpm.create_signing_key(kind)
        self.offered.replace(
            "client", {KEY: encode_key_file(key), CERTIFICATE: PEM, CHAIN: b"", BUNDLE: CA.pem}, {}
        )
        return key

    def send(self, data: bytes, *, wait: float = 0) -> dict[str, Any]:
        """Send bytes and return the answer."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(30)
            connection.connect(str(self.path))
            with contextlib.suppress(OSError):
                connection.sendall(data)
            time.sleep(wait)
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_WR)
            answer = b""
            with contextlib.suppress(ConnectionResetError):
                while part := connection.recv(1 << 16):
                    answer += part
        found: dict[str, Any] = json.loads(answer) if answer else {"error": "none"}
        return found

    def request(self, **members: Any) -> dict[str, Any]:
        """Send a request."""
        return self.send(json.dumps(members).encode() + b"\n")


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    """A signer that answers."""
    made = Desk(tmp_path)
    with serving(made.signer):
        yield made


def verify(key: TPMKey, algorithm: str, signature: bytes, digest: bytes) -> None:
    """Verify what came back."""
    hash_alg = {32: hashes.SHA256(), 48: hashes.SHA384()}[len(digest)]
    public = parse_public(key.public).key()
    if isinstance(public, ec.EllipticCurvePublicKey):
        public.verify(signature, digest, ec.ECDSA(utils.Prehashed(hash_alg)))
        return
    assert isinstance(public, rsa.RSAPublicKey)
    scheme: padding.AsymmetricPadding = padding.PKCS1v15()
    if algorithm.startswith("rsa-pss"):
        scheme = padding.PSS(padding.MGF1(hash_alg), len(digest))
    public.verify(signature, digest, scheme, utils.Prehashed(hash_alg))


@pytest.mark.parametrize(
    ("kind", "algorithms"),
    [
        (KeyType.ECC_P256, ["ecdsa-sha256"]),
        (KeyType.ECC_P384, ["ecdsa-sha384"]),
        (
            KeyType.RSA_2048,
            ["rsa-pkcs1-sha256", "rsa-pkcs1-sha384", "rsa-pss-sha256", "rsa-pss-sha384"],
        ),
    ],
)
def test_it_signs_what_the_key_can(desk: Desk, kind: KeyType, algorithms: list[str]) -> None:
    """With the certificate, chain and every algorithm that it names itself."""
    key = desk.offer(kind)
    told = ask(desk.path, kind="client")
    assert (told["algorithms"], told["certificate"], told["chain"]) == (algorithms, PEM.decode(), "")
    assert "signature" not in told
    for algorithm in algorithms:
        digest = os.urandom(DIGEST_BYTES[algorithm])
        answer = ask(desk.path, kind="client", algorithm=algorithm, digest=digest)
        verify(key, algorithm, base64.b64decode(answer["signature"]), digest)


def test_only_this_user_reaches_it(desk: Desk) -> None:
    """The socket has mode 0600, its directory 0700."""
    assert stat.S_IMODE(desk.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(desk.path.parent.stat().st_mode) == 0o700


@pytest.mark.threat("T112")
def test_the_kernel_says_who_asks(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user who got a connection somehow, say by an inherited descriptor, gets an answer but no signature."""
    monkeypatch.setattr(signing, "user_of", lambda _: 12345)
    assert desk.request(kind="client")["error"] == "forbidden"
    assert ("signer.refused", {"code": "forbidden", "reason": "user 12345 may not ask this signer"}) in (
        desk.events.entries
    )


@pytest.mark.threat("T112")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_another_user_cannot_connect() -> None:
    """For real, where everybody may look into the directories above: its own keeps them out."""
    script = (
        "import os, socket, sys\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "s = socket.socket(socket.AF_UNIX)\n"
        "try: s.connect(sys.argv[1])\n"
        "except PermissionError: print('kept out')\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        desk = Desk(Path(folder))
        with serving(desk.signer):
            done = subprocess.run(
                [sys.executable, "-c", script, str(desk.path)],
                capture_output=True,
                text=True,
                timeout=240,
                check=False,
            )
    assert done.stdout == "kept out\n", done.stderr


@pytest.mark.threat("T112")
@pytest.mark.parametrize(
    ("members", "code"),
    [
        ({}, "malformed"),
        ({"kind": "ak"}, "malformed"),
        ({"kind": ["client"]}, "malformed"),
        ({"kind": "client", "key": "AK"}, "malformed"),
        ({"kind": "server"}, "no-certificate"),
        ({"kind": "client", "digest": "00" * 48}, "algorithm-unsupported"),
        ({"kind": "client", "algorithm": "ecdsa-sha384"}, "malformed"),
        ({"kind": "client", "algorithm": "ecdsa-sha256", "digest": "00" * 32}, "algorithm-unsupported"),
        ({"kind": "client", "algorithm": "rsa-pss-sha256", "digest": "00" * 32}, "algorithm-unsupported"),
        ({"kind": "client", "algorithm": ["ecdsa-sha384"], "digest": "00" * 48}, "algorithm-unsupported"),
        ({"kind": "client", "algorithm": "ecdsa-sha384", "digest": "00" * 32}, "malformed"),
        ({"kind": "client", "algorithm": "ecdsa-sha384", "digest": "00" * 49}, "malformed"),
        ({"kind": "client", "algorithm": "ecdsa-sha384", "digest": ""}, "malformed"),
        ({"kind": "client", "algorithm": "ecdsa-sha384", "digest": "zz" * 48}, "malformed"),
        ({"kind": "client", "algorithm": "ecdsa-sha384", "digest": 7}, "malformed"),
        ({"kind": "client", "algorithm": "ecdsa-sha384", "digest": " " + "00" * 47 + "0"}, "malformed"),
    ],
)
def test_what_is_not_a_request_gets_no_signature(desk: Desk, members: dict[str, Any], code: str) -> None:
    """Only digests of the length that the algorithm has, by the keys of certificates; never the AK."""
    answer = desk.request(**members)
    assert answer["error"] == code
    assert "signature" not in answer


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n",
        b"rubbish\n",
        b"[]\n",
        b'{"kind": "client"}',
        b'{"kind": "client"}\n{"kind": "client"}\n',
        b"[" * 4000 + b"\n",
        b'{"kind": "client", "digest": "' + b"0" * MAX_REQUEST_BYTES + b'"}\n',
        b"0" * (1 << 20),
    ],
)
def test_rubbish_is_refused_and_the_next_is_served(desk: Desk, data: bytes) -> None:
    """Too long, cut short, two lines, no JSON."""
    assert desk.send(data)["error"] in ("malformed", "none")
    assert "certificate" in desk.request(kind="client")


@given(data=st.binary(max_size=200))
def test_whatever_comes_is_refused_or_answered(data: bytes) -> None:
    """A parser that never fails in another way."""
    with contextlib.suppress(Refused):
        signing.parse_request(data)


@given(
    kind=st.sampled_from(["client", "server"]),
    algorithm=st.sampled_from(list(DIGEST_BYTES)),
    digest=st.binary(min_size=30, max_size=50),
)
def test_only_a_digest_of_the_right_length_is_a_request(kind: str, algorithm: str, digest: bytes) -> None:
    """And that one is what was sent."""
    line = json.dumps({"kind": kind, "algorithm": algorithm, "digest": digest.hex()}).encode()
    if len(digest) == DIGEST_BYTES[algorithm]:
        assert signing.parse_request(line) == signing.SignRequest(
            kind=kind, algorithm=algorithm, digest=digest
        )
        return
    with pytest.raises(Refused):
        signing.parse_request(line)


def test_a_slow_client_does_not_keep_others_waiting_for_ever(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request has its time as a whole, not from byte to byte."""
    monkeypatch.setattr(signing, "REQUEST_SECONDS", 2.0)
    first, stop = threading.Event(), threading.Event()

    def drip() -> None:
        with socket.socket(socket.AF_UNIX) as connection, contextlib.suppress(OSError):
            connection.connect(str(desk.path))
            first.set()
            while not stop.wait(0.05):
                connection.sendall(b" ")

    thread = threading.Thread(target=drip)
    thread.start()
    try:
        assert first.wait(60)
        assert "certificate" in desk.request(
            kind="client"
        )  # which waits for its answer as long as for a byte
    finally:
        stop.set()
        thread.join(60)


def test_a_client_that_goes_away_does_no_harm(desk: Desk) -> None:
    """Before or after its request."""
    for data in (b"", b'{"kind": "client"}\n'):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(desk.path))
            connection.sendall(data)
    assert "certificate" in desk.request(kind="client")


def test_a_tpm_that_fails_is_an_answer(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the code of the error."""

    def broken(*_: object, **__: object) -> bytes:
        raise DeviceError("the TPM is gone")

    monkeypatch.setattr(desk.tpm, "sign", broken)
    with pytest.raises(SignerRefused, match="device-error: the TPM is gone"):
        ask(desk.path, kind="client", algorithm="ecdsa-sha384", digest=bytes(48))
    assert "certificate" in desk.request(kind="client")


def test_a_damaged_key_file_is_an_answer(desk: Desk) -> None:
    """Not the end of the signer."""
    (desk.offered.path("client") / KEY).write_bytes(b"rubbish")
    assert desk.request(kind="client")["error"] == "malformed-evidence"
    assert desk.request(kind="server")["error"] == "no-certificate"


def test_it_ends_and_begins_again(tmp_path: Path) -> None:
    """The socket goes; one that a crash left behind is replaced."""
    desk = Desk(tmp_path)
    with serving(desk.signer):
        pass
    assert not desk.path.exists()
    with pytest.raises(SignerRefused, match="No such file"):
        ask(desk.path, kind="client")
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(desk.path))
    left.close()
    with pytest.raises(SignerRefused, match="refused"):
        ask(desk.path, kind="client")
    with serving(Signer(desk.path, offered=desk.offered, tpm=desk.tpm, log=desk.events)):
        assert ask(desk.path, kind="client")["certificate"] == PEM.decode()


def test_a_socket_that_breaks_is_logged(tmp_path: Path) -> None:
    """The signer ends; the agent does not."""
    desk = Desk(tmp_path)
    desk.signer.close()
    desk.signer.serve(lambda: False)
    assert desk.events.names() == ["signer.failed"]


def test_a_directory_of_others_is_refused(tmp_path: Path) -> None:
    """There somebody could put a socket of their own in its place."""
    parts: dict[str, Any] = {"offered": Offered(tmp_path), "tpm": SoftwareNode(1), "log": Events()}
    open_ = tmp_path / "open"
    open_.mkdir(mode=0o755)
    with pytest.raises(UsageError, match="mode 0700"):
        Signer(open_ / "sock", **parts)
    with pytest.raises(UsageError, match="107 bytes"):
        Signer(tmp_path / ("x" * 100) / "sock", **parts)
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError):
        Signer(tmp_path / "file" / "sock", **parts)


@pytest.mark.parametrize("answer", [b"", b"rubbish\n", b"[]\n", b'{"error": "x", "detail": "y"}\n'])
def test_a_client_believes_only_an_answer(tmp_path: Path, answer: bytes) -> None:
    """Whatever sits on the socket."""
    path = tmp_path / "sock"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen(1)

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(SignerRefused):
            ask(path, kind="client")
        thread.join(60)


def test_what_is_signed(tmp_path: Path) -> None:
    """A digest as given, or that of a file."""
    path = tmp_path / "data"
    path.write_bytes(b"abc")
    assert digest_of("ecdsa-sha256", None, str(path)).hex().startswith("ba7816bf")
    assert digest_of("ecdsa-sha384", None, str(path)).hex().startswith("cb00753f")
    assert digest_of("ecdsa-sha256", "00" * 32, None) == bytes(32)
    for algorithm, digest, file in (
        ("md5", None, str(path)),
        ("ecdsa-sha256", "zz", None),
        ("ecdsa-sha256", "00" * 31, None),
        ("ecdsa-sha256", "00" * 32, str(path)),
        ("ecdsa-sha256", None, str(tmp_path / "absent")),
    ):
        with pytest.raises(UsageError):
            digest_of(algorithm, digest, file)
