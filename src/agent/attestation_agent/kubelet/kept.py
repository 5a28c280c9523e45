"""What a node keeps of its certificate: a directory for itself alone, and, where asked for, a copy in NV memory.

    node.pem       key, certificate and issuers in one file, replaced as a whole: no reader sees one without the other
    node.json      when the certificate is to be renewed, drawn once
    pending.json   the key that waits for its certificate, and the request that was made for it
    kubelet.conf   the kubeconfig for kubelet
    lock           held by the process that gets a certificate

The directory has mode 0700, each file 0600. A software key must not reach a disk: the default is in /run, which is
memory.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from attestation.clock import parse_rfc3339, rfc3339
from attestation_agent.exits import NoNodeCertificate, StateNotKept, UsageError
from attestation_agent.files import remove, write_atomically
from attestation_agent.kubelet.issued import Issued, read

BUNDLE: Final = "node.pem"
NOTES: Final = "node.json"
PENDING: Final = "pending.json"
LOCK: Final = "lock"
LOCK_PAUSE_SECONDS: Final = 0.2
_MAX_BYTES: Final = 1 << 18
_CERTIFICATE: Final = b"-----BEGIN CERTIFICATE-----"
_NAME = re.compile(r"node-csr-[0-9a-f]{40}\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Current:
    """The certificate that this node has.

    Args:
        key_pem: Its key, as `keys` writes it.
        issued: The certificate and its issuers; checked when it was kept.
        renew_at: When another one is due; None where that is not known.
    """

    key_pem: bytes = field(repr=False)
    issued: Issued
    renew_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Pending:
    """A key without certificate.

    Args:
        key_pem: As `keys` writes it.
        name: Of the CertificateSigningRequest that was made for it; None where none was, or it came to nothing.
        made_at: When that was.
    """

    key_pem: bytes = field(repr=False)
    name: str | None = None
    made_at: datetime | None = None


class Kept:
    """The directory.

    Args:
        directory: Made where absent.

    Raises:
        UsageError: It cannot be used, or is not ours alone.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            found = os.lstat(directory)
        except OSError as e:
            raise UsageError(f"{directory}: {e.strerror}") from e
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise UsageError(
                f"{directory}: must be a directory of this user with mode 0700; keys are kept in it"
            )

    @property
    def bundle(self) -> Path:
        """The file with key, certificate and issuers."""
        return self.directory / BUNDLE

    @contextlib.contextmanager
    def alone(self, patience_seconds: float, wait: Callable[[float], bool]) -> Iterator[None]:
        """Hold the directory: of several that start at once, one gets the certificate and the others find it.

        Raises:
            NoNodeCertificate: Somebody else held it all the time.
        """
        with self._kept():
            descriptor = os.open(
                self.directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
            )
        try:
            left = patience_seconds
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if left <= 0 or wait(LOCK_PAUSE_SECONDS):
                        raise NoNodeCertificate("another process is getting the certificate") from None
                    left -= LOCK_PAUSE_SECONDS
            yield
        finally:
            os.close(descriptor)

    def current(self) -> Current | None:
        """Return what is kept; None where nothing is, or nothing that can be read."""
        try:
            data = _read(self.bundle)
            key, mark, certificates = data.partition(_CERTIFICATE)
            issued = read(mark + certificates)
        except (OSError, NoNodeCertificate):
            return None
        notes = self._json(NOTES)
        noted = notes.get("serial") == issued.serial
        return Current(
            key_pem=key, issued=issued, renew_at=_instant(notes.get("renew_at")) if noted else None
        )

    def replace(self, key_pem: bytes, issued: Issued, renew_at: datetime) -> Current:
        """Keep another certificate; nothing waits any more.

        Raises:
            StateNotKept: It cannot be written; the old one stays.
        """
        notes = {"serial": issued.serial, "renew_at": rfc3339(renew_at)}
        with self._kept():
            # First: notes are of use to the certificate that they name alone.
            write_atomically(self.directory / NOTES, json.dumps(notes).encode("ascii"))
            write_atomically(self.bundle, key_pem + issued.pem)
            (self.directory / PENDING).unlink(missing_ok=True)
        return Current(key_pem=key_pem, issued=issued, renew_at=renew_at)

    def forget(self) -> None:
        """Drop the certificate: its key is of no use any more.

        Raises:
            StateNotKept: It cannot be removed.
        """
        with self._kept():
            remove(self.bundle)

    def pending(self) -> Pending | None:
        """Return the key that waits; None where none does."""
        found = self._json(PENDING)
        key, name = found.get("key"), found.get("name")
        if not isinstance(key, str) or not key.isascii():
            return None
        named = isinstance(name, str) and _NAME.match(name)
        made_at = _instant(found.get("made_at"))
        if not named or made_at is None:
            return Pending(key_pem=key.encode("ascii"))
        return Pending(key_pem=key.encode("ascii"), name=name, made_at=made_at)

    def set_pending(self, pending: Pending) -> None:
        """Keep the key that waits: a failure must not cost a new key, or a second request, each time.

        Raises:
            StateNotKept: It cannot be written.
        """
        content = {
            "key": pending.key_pem.decode("ascii"),
            "name": pending.name,
            "made_at": rfc3339(pending.made_at) if pending.made_at else None,
        }
        with self._kept():
            write_atomically(self.directory / PENDING, json.dumps(content).encode("ascii"))

    def write(self, path: Path, data: bytes) -> None:
        """Write a file for kubelet or the proxy, where it changed.

        Raises:
            StateNotKept: It cannot be written.
        """
        with self._kept():
            try:
                if _read(path) == data:
                    return
            except FileNotFoundError:
                pass
            write_atomically(path, data)

    def _json(self, name: str) -> dict[str, Any]:
        try:
            found = json.loads(_read(self.directory / name))
        except (OSError, ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    @contextlib.contextmanager
    def _kept(self) -> Iterator[None]:
        try:
            yield
        except OSError as e:
            raise StateNotKept(f"{self.directory}: {e.strerror}") from e


def is_memory(directory: Path) -> bool:
    """True where *directory* is on a file system in memory, as far as the kernel tells."""
    try:
        mounts = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace").splitlines()
        at = directory.resolve()
    except OSError:
        return False
    found = ("", "")
    for line in mounts:
        words = line.split(" ")
        point = words[1].encode().decode("unicode_escape") if len(words) > 2 else ""
        # The last mount on the longest path is what is seen.
        if point and at.is_relative_to(point) and len(point) >= len(found[0]):
            found = (point, words[2])
    return found[1] in ("tmpfs", "ramfs")


def _instant(text: object) -> datetime | None:
    try:
        return parse_rfc3339(text) if isinstance(text, str) else None
    except ValueError:
        return None


def _read(path: Path) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        data = file.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise OSError(f"{path} is too long")
    return data
