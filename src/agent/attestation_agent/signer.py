"""A small signer for other programs on this node: one request and one answer on a unix socket, then it closes.

Protocol: the client sends one JSON object on one line, at most 4096 bytes, within five seconds.

    {"kind": "client", "algorithm": "ecdsa-sha256", "digest": "<hex>"}
    {"kind": "client"}                                       asks only for the certificate

It gets one JSON object on one line:

    {"signature": "<base64>", "certificate": "<PEM>", "chain": "<PEM>", "algorithms": ["ecdsa-sha256"]}
    {"error": "<code>", "detail": "<words>"}

`signature` is what X.509 and TLS expect: DER of ECDSA-Sig-Value, or as long as the RSA modulus. `algorithms` says what
the key of this certificate can do. The AK is never used: it signs nothing that anybody brings.

Who may ask: the agent's own user and root. The socket has mode 0600 in a directory of mode 0700, and the kernel says
who stands at the other end. Requests are answered one after the other, and wait for attesting.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from attestation.errors import AttestationError
from attestation.tpm.key_file import parse_key_file
from attestation.wire import b64encode
from attestation_agent.edge import Log
from attestation_agent.exits import AgentError, UsageError
from attestation_agent.local_socket import clear_place, user_of
from attestation_agent.offered import CERTIFICATE, CHAIN, KEY, Offered
from attestation_agent.shared_tpm import KeyTPM
from attestation_agent.tpm_keys import DIGEST_BYTES, algorithms_of, sign_digest

MAX_REQUEST_BYTES: Final = 4096
MAX_ANSWER_BYTES: Final = 1 << 20
REQUEST_SECONDS: Final = 5.0
ANSWER_SECONDS: Final = 300.0
"""How long a client waits: a TPM may be busy with a key for as long."""
_POLL_SECONDS: Final = 0.5
_HEX: Final = re.compile(r"(?:[0-9A-Fa-f]{2})+")


class SignerRefused(AgentError):
    """The signer of the agent refused; the message says why."""

    code = "signer-refused"


class Refused(Exception):
    """The answer to a request that gets no signature."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class SignRequest:
    """What somebody wants.

    Args:
        kind: Of the certificate, `client` or `server`.
        algorithm: What to sign with; None where only the certificate is asked for.
        digest: What to sign, as long as the hash of *algorithm*.
    """

    kind: str
    algorithm: str | None
    digest: bytes


class Signer:
    """Answers on one socket.

    Args:
        path: Of the socket; its directory is made where absent, mode 0700.
        offered: The certificates and their keys.
        tpm: Where the keys are.
        log: Where events go.

    Raises:
        UsageError: The directory belongs to somebody else or is open to others, or the path is too long.
    """

    def __init__(self, path: Path, *, offered: Offered, tpm: KeyTPM, log: Log) -> None:
        self._offered = offered
        self._tpm = tpm
        self._log = log
        self._path = path
        self._socket = _listen(path)
        self._socket.settimeout(_POLL_SECONDS)

    def close(self) -> None:
        """Stop listening."""
        self._socket.close()
        self._path.unlink(missing_ok=True)

    def serve(self, stopping: Callable[[], bool]) -> None:
        """Answer until *stopping*."""
        while not stopping():
            try:
                connection, _ = self._socket.accept()
            except TimeoutError:
                continue
            except OSError as e:
                if not stopping():
                    self._log.error("signer.failed", reason=e.strerror or str(e))
                return
            with connection, contextlib.suppress(OSError):
                self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        connection.settimeout(REQUEST_SECONDS)
        try:
            answer = self._sign(_request(connection))
        except (Refused, AttestationError) as e:
            self._log.warning("signer.refused", code=e.code, reason=str(e))
            answer = {"error": e.code, "detail": str(e)}
        connection.settimeout(REQUEST_SECONDS)
        connection.sendall(json.dumps(answer).encode("ascii") + b"\n")

    def _sign(self, request: SignRequest) -> dict[str, Any]:
        current = self._offered.current(request.kind)
        if current is None:
            raise Refused("no-certificate", f"there is no {request.kind} certificate")
        key = parse_key_file(current.files[KEY])
        possible = algorithms_of(key)
        answer: dict[str, Any] = {
            "certificate": current.files[CERTIFICATE].decode("ascii"),
            "chain": current.files[CHAIN].decode("ascii"),
            "algorithms": list(possible),
        }
        if request.algorithm is not None:
            if request.algorithm not in possible:
                raise Refused("algorithm-unsupported", f"this key signs with {', '.join(possible)}")
            signature = sign_digest(self._tpm, key, request.algorithm, request.digest)
            answer["signature"] = b64encode(signature)
        return answer


def parse_request(line: bytes) -> SignRequest:
    """Parse what a client sent, without the line end.

    Raises:
        Refused: The only way to fail.
    """
    try:
        members = json.loads(line)
    except (ValueError, RecursionError):
        raise Refused("malformed", "one JSON object on one line is expected") from None
    if not isinstance(members, dict) or not members.keys() <= {"kind", "algorithm", "digest"}:
        raise Refused("malformed", "an object of kind, algorithm and digest is expected")
    kind, algorithm, text = members.get("kind"), members.get("algorithm"), members.get("digest")
    if kind not in ("client", "server"):
        raise Refused("malformed", "kind is client or server")
    if algorithm is None and text is None:
        return SignRequest(kind=kind, algorithm=None, digest=b"")
    if not isinstance(algorithm, str) or algorithm not in DIGEST_BYTES:
        raise Refused("algorithm-unsupported", f"algorithm is one of {', '.join(DIGEST_BYTES)}")
    # Lower and upper case, and nothing else: bytes.fromhex would pass over spaces.
    if not isinstance(text, str) or not _HEX.fullmatch(text) or len(text) != 2 * DIGEST_BYTES[algorithm]:
        raise Refused("malformed", f"digest: {DIGEST_BYTES[algorithm]} bytes as hex needed")
    return SignRequest(kind=kind, algorithm=algorithm, digest=bytes.fromhex(text))


def _request(connection: socket.socket) -> SignRequest:
    """Read one request of somebody who may ask."""
    user = user_of(connection)
    if user not in (os.geteuid(), 0):
        raise Refused("forbidden", f"user {user} may not ask this signer")
    try:
        line = _line(connection, MAX_REQUEST_BYTES, REQUEST_SECONDS)
    except ValueError as e:
        raise Refused("malformed", f"one line is expected: {e}") from None
    return parse_request(line)


def _line(connection: socket.socket, most_bytes: int, seconds: float) -> bytes:
    """Return what comes before the first line end.

    Raises:
        ValueError: Too long, too late, or it ended before.
    """
    give_up_at, data = time.monotonic() + seconds, b""
    while b"\n" not in data:
        left = give_up_at - time.monotonic()
        if len(data) > most_bytes or left <= 0:
            raise ValueError("too long, or too late")
        connection.settimeout(left)
        try:
            part = connection.recv(most_bytes + 1 - len(data))
        except TimeoutError:
            raise ValueError("too late") from None
        if not part:
            raise ValueError("cut short")
        data += part
    line, _, rest = data.partition(b"\n")
    if rest or len(line) > most_bytes:
        raise ValueError("more than one line")
    return line


def _listen(path: Path) -> socket.socket:
    try:
        # Between bind and chmod others could connect: not in here.
        clear_place(path, directory_mode=0o700)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listening.bind(str(path))
            path.chmod(0o600)
            listening.listen(16)
        except BaseException:
            listening.close()
            raise
    except OSError as e:
        raise UsageError(f"signer socket {path}: {e.strerror}") from e
    return listening


@contextlib.contextmanager
def serving(signer: Signer) -> Iterator[None]:
    """Let *signer* answer in a thread of its own."""
    stop = threading.Event()
    thread = threading.Thread(target=signer.serve, args=(stop.is_set,), name="signer", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(2 * _POLL_SECONDS)
        signer.close()


def ask(
    path: Path, *, kind: str, algorithm: str | None = None, digest: bytes | None = None
) -> dict[str, Any]:
    """Ask the signer of a running agent: the client's end of the protocol.

    Args:
        path: Of the socket.
        kind: `client` or `server`.
        algorithm: One of those that the key can do; None only asks for the certificate.
        digest: What to sign, as long as the hash of *algorithm*.

    Raises:
        SignerRefused: It refused, or nobody answers.
    """
    request: dict[str, str] = {"kind": kind}
    if algorithm is not None and digest is not None:
        request |= {"algorithm": algorithm, "digest": digest.hex()}
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(REQUEST_SECONDS)
            connection.connect(str(path))
            connection.sendall(json.dumps(request).encode("ascii") + b"\n")
            answer = json.loads(_line(connection, MAX_ANSWER_BYTES, ANSWER_SECONDS))
    except OSError as e:
        raise SignerRefused(f"signer {path}: {e.strerror or e}") from e
    except (ValueError, RecursionError) as e:
        raise SignerRefused(f"signer {path}: not an answer") from e
    if not isinstance(answer, dict):
        raise SignerRefused(f"signer {path}: not an answer")
    if "error" in answer:
        raise SignerRefused(f"{answer.get('error')}: {answer.get('detail')}")
    return answer


def digest_of(algorithm: str, digest: str | None, file: str | None) -> bytes:
    """Return what `sign` sends: *digest* as it is, or the digest of a file or of standard input.

    Raises:
        UsageError: The algorithm is unknown, the digest of another length, or the file cannot be read.
    """
    if algorithm not in DIGEST_BYTES:
        raise UsageError(f"--algorithm: one of {', '.join(DIGEST_BYTES)}")
    if digest is not None:
        try:
            given = bytes.fromhex(digest)
        except ValueError as e:
            raise UsageError("--digest: not hex") from e
        if file is not None or len(given) != DIGEST_BYTES[algorithm]:
            raise UsageError(f"--digest: {DIGEST_BYTES[algorithm]} bytes needed, and no file")
        return given
    name = "sha256" if DIGEST_BYTES[algorithm] == 32 else "sha384"
    try:
        # 0: standard input, which stays open.
        with open(0 if file is None else file, "rb", closefd=file is not None) as opened:
            return hashlib.file_digest(opened, name).digest()
    except OSError as e:
        raise UsageError(f"{file}: {e.strerror}") from e
