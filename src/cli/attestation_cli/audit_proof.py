"""Proofs about the audit log: asked of the service, believed for their hashes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from attestation.audit import checkpoint
from attestation.audit.checkpoint import SignedCheckpoint, UnverifiedCheckpoint
from attestation.audit.export import Pinned
from attestation.audit.proof import MAX_PROOF_BYTES, Head, Inclusion, read_proof
from attestation.client import audit_proof
from attestation.errors import AlreadyExists, RequestInvalid

if TYPE_CHECKING:
    from attestation.client import OperatorClient


def grew(client: OperatorClient, old: UnverifiedCheckpoint, head: Head, pinned: Pinned | None) -> int:
    """Return the size of *old* once it is proven that the log of *head* begins with it.

    Raises:
        NoteRejected: *old* was not signed by the log.
        ProofRejected: It is another log, or one that was rewritten.
    """
    if pinned is not None:
        _verified(old, pinned, 0)
    audit_proof.grew(client, old.checkpoint, head.checkpoint)
    return old.checkpoint.size


def read_file(path: Path, pinned: Pinned | None) -> Inclusion:
    """Verify the proof that somebody kept in *path*.

    Raises:
        RequestInvalid: It cannot be read.
        MalformedNote: It is no proof.
        LogRejected: It proves nothing.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_PROOF_BYTES + 1)
    except OSError as e:
        raise RequestInvalid(f"{path}: {e.strerror}") from e
    return read_proof(data, pinned)


def keep(path: Path, note: bytes) -> None:
    """Write *note* into the new file *path*.

    Raises:
        AlreadyExists: There is such a file; an older checkpoint is worth more than a newer one.
        RequestInvalid: It cannot be written.
    """
    try:
        with path.open("xb") as file:
            file.write(note)
    except FileExistsError as e:
        raise AlreadyExists(f"{path} exists; an older checkpoint is evidence, choose another name") from e
    except OSError as e:
        raise RequestInvalid(f"{path} cannot be written: {e.strerror}") from e


def put(path: Path, data: bytes) -> None:
    """Write *data* into *path* at once; a link of that name is replaced and not followed.

    Raises:
        OSError: It cannot be written.
    """
    beside = path.with_name(f".{path.name}.new")
    beside.unlink(missing_ok=True)
    with beside.open("xb") as file:
        file.write(data)
    beside.replace(path)


def _verified(signed: UnverifiedCheckpoint, pinned: Pinned, quorum: int) -> SignedCheckpoint:
    return checkpoint.verify(signed, log_keys=pinned.log_keys, witnesses=pinned.witnesses, quorum=quorum)
