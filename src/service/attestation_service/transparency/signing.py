"""Who signs for the log: one key of each algorithm, under one name, the origin (DELIVERY-AND-OPERATORS §19.2)."""

# Algorithms for: audit-note
from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Final

from attestation.audit import checkpoint
from attestation.audit.checkpoint import LOG_TYPES, Checkpoint, SignedCheckpoint
from attestation.audit.note import KeyType, VerifierKey, parse_vkey, signature_line, signed_note
from attestation.errors import AttestationError, MalformedNote, NoteRejected
from attestation.keys import NoteKey, load_ed25519, load_mldsa44, parse_key_uri
from attestation.keys.uri import FileRef
from attestation_service.settings import Settings

RETIRED_KEYS: Final = "audit-retired-vkeys.txt"
"""Beside the key files: vkeys that the log signed with before, one a line; they verify and sign no more."""


class RetiredKeysUnusable(AttestationError):
    """The list of retired keys cannot be read."""

    code = "retired-keys-unusable"


class LogSigner:
    """Signs checkpoints with Ed25519 and ML-DSA-44, and knows its own signatures again.

    Args:
        origin: Name of the log and of its keys.
        ed25519: The one key.
        mldsa44: The other one.
        retired: Keys that the log signed with before, perhaps under another origin.
    """

    def __init__(
        self, origin: str, ed25519: NoteKey, mldsa44: NoteKey, retired: tuple[VerifierKey, ...] = ()
    ) -> None:
        self.origin = origin
        self.retired = retired
        self._keys = {KeyType.ED25519: ed25519, KeyType.ML_DSA_44: mldsa44}

    @property
    def vkeys(self) -> tuple[VerifierKey, ...]:
        """The keys that sign now."""
        return self._named(self.origin)

    def sign(self, signed: Checkpoint, at: datetime) -> str:
        """Return *signed* as a note with both signatures; takes about a millisecond."""
        time = int(at.timestamp())
        lines = []
        for key in self._named(signed.origin):
            stated = time if key.type.timed else None
            signature = self._keys[key.type].sign(checkpoint.signed_message(key, signed, stated))
            lines.append(signature_line(key, signature, stated))
        return signed_note(str(signed), lines)

    def verify(self, note: str) -> SignedCheckpoint:
        """Return the checkpoint of *note* if this log signed it, now or with a key that it had before.

        The keys of now count under any origin: a service that moved to another address is still the same log.

        Raises:
            MalformedNote: It is no checkpoint.
            NoteRejected: Not signed by this log.
        """
        unverified = checkpoint.parse(note.encode("utf-8", "surrogatepass"))
        origin = unverified.checkpoint.origin
        candidates = [self._named(origin)]
        if before := tuple(key for key in self.retired if key.name == origin):
            candidates.append(before)
        reason: NoteRejected | None = None
        for keys in candidates:
            try:
                return checkpoint.verify(unverified, log_keys=keys, witnesses=(), quorum=0)
            except NoteRejected as e:
                reason = reason or e
        assert reason is not None
        raise reason

    def _named(self, name: str) -> tuple[VerifierKey, ...]:
        return tuple(VerifierKey(name=name, type=kind, key=self._keys[kind].public_key) for kind in LOG_TYPES)


def load_log_signer(settings: Settings, *, create: bool = False) -> LogSigner:
    """Return the signer that *settings* name; with *create*, make keys that are not there.

    Raises:
        KeyUnusable: A key file cannot be used.
        RetiredKeysUnusable: The list of retired keys cannot be read.
    """
    return LogSigner(
        settings.audit_log_origin,
        load_ed25519(settings.audit_ed25519_uri, create=create),
        load_mldsa44(settings.audit_mldsa_uri, create=create),
        _retired(settings.enrollment_ca_dir / RETIRED_KEYS),
    )


def missing_keys(settings: Settings) -> tuple[Path, ...]:
    """Return which files of the log's keys are not there.

    Raises:
        KeyUnusable: The URI of a key cannot be read.
    """
    refs = map(parse_key_uri, (settings.audit_ed25519_uri, settings.audit_mldsa_uri))
    return tuple(ref.path for ref in refs if isinstance(ref, FileRef) and not ref.path.exists())


def signed_by_retired(settings: Settings, note: str) -> bool:
    """Return True where the keys on the list of retired ones signed *note*: then new keys know it again.

    Raises:
        MalformedNote: It is no checkpoint.
        RetiredKeysUnusable: The list of retired keys cannot be read.
    """
    unverified = checkpoint.parse(note.encode("utf-8", "surrogatepass"))
    retired = _retired(settings.enrollment_ca_dir / RETIRED_KEYS)
    before = tuple(key for key in retired if key.name == unverified.checkpoint.origin)
    try:
        checkpoint.verify(unverified, log_keys=before, witnesses=(), quorum=0)
    except NoteRejected:
        return False
    return True


def _retired(path: Path) -> tuple[VerifierKey, ...]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ()
    except (OSError, UnicodeDecodeError) as e:
        raise RetiredKeysUnusable(f"{path} cannot be read: {type(e).__name__}") from e
    lines = (line.strip() for line in text.splitlines())
    try:
        return tuple(parse_vkey(line) for line in lines if line and not line.startswith("#"))
    except MalformedNote as e:
        raise RetiredKeysUnusable(f"{path}: {e}") from e
