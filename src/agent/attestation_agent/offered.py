"""Certificates as other programs find them: a directory for each kind, switched as a whole.

    client  ->  .client-8b1f…      a link; what it names never changes
        key.pem       TSS2 PRIVATE KEY for OpenSSL's provider tpm2; of use to this TPM only
        cert.pem      the certificate
        chain.pem     what stands between it and the CAs that others know already; empty but around a rotation
        fullchain.pem certificate and chain
        bundle.pem    the CAs to trust for certificates of others
        all.pem       key, certificate and chain in one file, for programs that open key and certificate by name
        about.json    what the agent knows of it
        extra-….pem   hybrid CA: the same key certified by a CA of another algorithm, with its chain

Whoever opens files through the link one after the other may see the switch in between; whoever resolves the link
first, or reads all.pem, never sees a certificate with another key. The set before the present one stays for those.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cryptography import x509

from attestation_agent.files import sync_directory, write_atomically

KEY: Final = "key.pem"
CERTIFICATE: Final = "cert.pem"
CHAIN: Final = "chain.pem"
FULL_CHAIN: Final = "fullchain.pem"
BUNDLE: Final = "bundle.pem"
ALL: Final = "all.pem"
ABOUT: Final = "about.json"
_SECRET: Final = frozenset({KEY, ALL})
"""Readable by the agent's user and the chosen group only: with a TPM at hand they are a key."""
_VERSION = re.compile(r"\.(?:client|server)-[0-9a-f]{16}\Z")
_MAX_FILE_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateSet:
    """What is offered now.

    Args:
        version: Name of its directory.
        files: Name -> content, without `about.json`.
        about: What the agent noted of it.
        certificate: `cert.pem`, parsed.
    """

    version: str
    files: Mapping[str, bytes]
    about: Mapping[str, Any]
    certificate: x509.Certificate


KINDS: Final = ("client", "server")


def directory_of(state_dir: Path, certificate_dir: Path | None) -> Path:
    """Return where certificates are offered."""
    return certificate_dir or state_dir / "tls"


class Offered:
    """The directory.

    Args:
        directory: Made where absent.
        group: Id of the group that may read keys; None for nobody else.
    """

    def __init__(self, directory: Path, *, group: int | None = None) -> None:
        self.directory = directory
        self._group = group

    def path(self, kind: str) -> Path:
        """Return the directory that programs are told to use for *kind*, `client` or `server`."""
        return self.directory / kind

    def current(self, kind: str) -> CertificateSet | None:
        """Return what is offered; None where nothing is, or nothing that can be read."""
        try:
            version = self.path(kind).readlink().name
            directory = self.directory / version
            files = {path.name: _read(path) for path in directory.iterdir()}
            about = json.loads(files.pop(ABOUT))
            certificate = x509.load_pem_x509_certificate(files[CERTIFICATE])
        except (OSError, ValueError, KeyError, RecursionError):
            return None
        if not isinstance(about, dict) or not _VERSION.match(version) or not {KEY, BUNDLE} <= files.keys():
            return None
        return CertificateSet(version=version, files=files, about=about, certificate=certificate)

    def replace(self, kind: str, files: Mapping[str, bytes], about: Mapping[str, Any]) -> str:
        """Offer *files* from now on, all of them at once, synced; return the name of the new directory.

        Args:
            kind: `client` or `server`.
            files: Name -> content; `key.pem`, `cert.pem`, `chain.pem` and `bundle.pem`, and any others.
            about: To be noted.

        Raises:
            OSError: It cannot be written; what was offered before still is.
        """
        self._make()
        version = f".{kind}-{secrets.token_hex(8)}"
        made = self.directory / version
        made.mkdir()
        try:
            # Not at its making: a umask would take away what other programs need.
            made.chmod(0o755)
            content = {
                **files,
                FULL_CHAIN: files[CERTIFICATE] + files[CHAIN],
                ALL: files[KEY] + files[CERTIFICATE] + files[CHAIN],
                ABOUT: json.dumps(about, sort_keys=True).encode("ascii"),
            }
            for name, data in content.items():
                self._write(made / name, data, secret=name in _SECRET)
            sync_directory(made)
            before = self._linked(kind)
            self._switch(kind, version)
        except BaseException:
            if self._linked(kind) != version:
                shutil.rmtree(made, ignore_errors=True)
            raise
        self._clean(kind, kept={version, before})
        return version

    def _make(self) -> None:
        """Make the directory; the modes of one that is there are somebody's choice."""
        if not self.directory.is_dir():
            self.directory.mkdir(parents=True)
            self.directory.chmod(0o755)

    def _write(self, path: Path, data: bytes, *, secret: bool) -> None:
        mode = 0o644 if not secret else 0o600 if self._group is None else 0o640
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            if self._group is not None:
                os.fchown(descriptor, -1, self._group)
            os.fchmod(descriptor, mode)
            os.fsync(descriptor)

    def _linked(self, kind: str) -> str | None:
        try:
            return self.path(kind).readlink().name
        except OSError:
            return None

    def _switch(self, kind: str, version: str) -> None:
        temporary = self.directory / f".{kind}.link"
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(version)
        temporary.replace(self.path(kind))
        sync_directory(self.directory)

    def _clean(self, kind: str, *, kept: set[str | None]) -> None:
        """Remove what nobody reads any more; also what a crash left behind."""
        for path in self.directory.glob(f".{kind}-*"):
            if _VERSION.match(path.name) and path.name not in kept:
                shutil.rmtree(path, ignore_errors=True)

    # What the agent itself needs between runs; other programs have no use for it.

    def pending_key(self, kind: str) -> bytes | None:
        """Return the key file that waits for its certificate."""
        try:
            return _read(self._pending(kind))
        except OSError:
            return None

    def set_pending_key(self, kind: str, key: bytes | None) -> None:
        """Keep or forget the key that waits for its certificate: a failure must not cost a new key each time.

        Raises:
            OSError: It cannot be written.
        """
        if key is not None:
            self._make()
            write_atomically(self._pending(kind), key)
        else:
            self._pending(kind).unlink(missing_ok=True)

    def _pending(self, kind: str) -> Path:
        return self.directory / f".{kind}.pending-key.pem"

    def notes(self, kind: str) -> dict[str, Any]:
        """Return what was noted of the attempts: for people, and for after a restart."""
        try:
            found = json.loads(_read(self.directory / f".{kind}.notes.json"))
        except (OSError, ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    def set_notes(self, kind: str, notes: Mapping[str, Any]) -> None:
        """Keep them; written only when they change.

        Raises:
            OSError: They cannot be written.
        """
        if notes != self.notes(kind):
            self._make()
            write_atomically(
                self.directory / f".{kind}.notes.json", json.dumps(notes, sort_keys=True).encode("ascii")
            )

    def asked(self, kind: str) -> bool:
        """True where somebody asked for a renewal now (`attestation-agent cert --renew`)."""
        return self._request(kind).exists()

    def ask(self, kind: str) -> None:
        """Ask the running agent for a renewal, at once even after failures.

        Raises:
            OSError: It cannot be written.
        """
        notes = self.notes(kind)
        notes.pop("next_try_at", None)
        self.set_notes(kind, notes)
        write_atomically(self._request(kind), b"")

    def answered(self, kind: str) -> None:
        """Forget that somebody asked."""
        self._request(kind).unlink(missing_ok=True)

    def _request(self, kind: str) -> Path:
        return self.directory / f".{kind}.renew"


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        data = file.read(_MAX_FILE_BYTES + 1)
    if len(data) > _MAX_FILE_BYTES:
        raise OSError(f"{path} is too long")
    return data
