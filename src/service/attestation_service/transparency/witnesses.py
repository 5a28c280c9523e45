"""Witnesses: others who cosign that the log only grows (C2SP tlog-witness, add-checkpoint)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from attestation.audit import checkpoint
from attestation.audit.checkpoint import UnverifiedCheckpoint
from attestation.audit.merkle import consistency_proof
from attestation.audit.note import NoteSignature, UnverifiedNote, parse_signature, parse_vkey
from attestation.audit.witness import SIZE_MEDIA_TYPE, TEXT_MEDIA_TYPE, format_request
from attestation.errors import AttestationError, MalformedNote, NoteRejected
from attestation.store import CountersignatureKind, Store, StoredCheckpoint
from attestation_service.transparency.others import CountersignatureRejected, client, post

if TYPE_CHECKING:
    import httpx

_SIZE = re.compile(r"(?:0|[1-9][0-9]{0,18})\n?\Z", re.ASCII)


class WitnessUnusable(AttestationError):
    """A witness in the settings is not a vkey and a URL."""

    code = "witness-unusable"


class Witness:
    """One witness, with what it saw last.

    Args:
        text: `<vkey> <URL prefix>`, as in ITL_AUDIT_WITNESSES.

    Raises:
        WitnessUnusable: It is not that.
    """

    kind = CountersignatureKind.COSIGNATURE

    def __init__(self, text: str) -> None:
        vkey, _, url = text.strip().partition(" ")
        url = url.strip().rstrip("/")
        if not url.startswith(("http://", "https://")):
            raise WitnessUnusable(f"witness {vkey[:40]!r}: a vkey, a space and a URL are needed")
        try:
            self.key = parse_vkey(vkey)
        except MalformedNote as e:
            raise WitnessUnusable(f"witness {vkey[:40]!r}: {e}") from e
        if not self.key.type.timed:
            raise WitnessUnusable(f"witness {self.key.name}: a key of a witness is of type 0x04 or 0x06")
        self.name = f"{self.key.name}+{self.key.key_id.hex()}"  # a witness may have a key of each algorithm
        self.url = url
        self._seen = 0

    async def countersign(self, stored: StoredCheckpoint, store: Store) -> bytes:
        """Return the witness's line for *stored*.

        A witness that saw another size says so, and is then told how the log grew from there.

        Raises:
            CountersignatureRejected: It refused, or signed something else.
            CountersignerUnreachable: It could not be reached.
        """
        async with client() as http:
            status, kind, body = await self._offer(http, stored, store)
            if status == 409 and kind == SIZE_MEDIA_TYPE:
                self._seen = self._told(body, stored.size)
                status, kind, body = await self._offer(http, stored, store)
        if status != 200:
            raise CountersignatureRejected(f"{self.name} answered {status}")
        line = self._line(body, stored.note)
        self._seen = stored.size
        return str(line).encode()

    async def _offer(
        self, http: httpx.AsyncClient, stored: StoredCheckpoint, store: Store
    ) -> tuple[int, str, bytes]:
        """Send *stored*, with the proof that the log grew to it from what the witness saw last."""
        old = min(self._seen, stored.size)
        proof = await store.read(lambda tx: consistency_proof(tx.audit.tree, old, stored.size))
        request = format_request(old, proof, stored.note).encode()
        return await post(http, f"{self.url}/add-checkpoint", request, {"Content-Type": TEXT_MEDIA_TYPE})

    def _told(self, body: bytes, size: int) -> int:
        """Read the size that the witness saw last."""
        text = body[:64].decode("utf-8", "replace")
        if not _SIZE.match(text):
            raise CountersignatureRejected(f"{self.name} answered 409 without a size")
        told = int(text)
        if told > size:
            # Either our database is not the newest one, or somebody cut the log and grew it again.
            raise CountersignatureRejected(f"{self.name} saw {told} entries already; this log has {size}")
        return told

    def _line(self, body: bytes, note: str) -> NoteSignature:
        """Return the line of *body* that this witness signed *note* with."""
        signed = checkpoint.parse(note.encode())
        try:
            lines = body.decode("utf-8").removesuffix("\n").split("\n")
            mine = next(
                line
                for line in map(parse_signature, lines)
                if (line.name, line.key_id) == (self.key.name, self.key.key_id)
            )
            alone = UnverifiedCheckpoint(
                checkpoint=signed.checkpoint, note=UnverifiedNote(text=signed.note.text, signatures=(mine,))
            )
            checkpoint.verify_signatures(alone, [self.key])
        except (UnicodeDecodeError, MalformedNote, NoteRejected, StopIteration) as e:
            raise CountersignatureRejected(
                f"{self.name} answered without a good signature: {str(e) or 'none of its own'}"
            ) from e
        return mine
