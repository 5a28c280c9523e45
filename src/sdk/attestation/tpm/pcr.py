"""PCR selections: TPML_PCR_SELECTION (TPM 2.0 Part 2, 10.6.2 and 10.9.7)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from attestation.errors import MalformedEvidence
from attestation.tpm.constants import MAX_PCR_BANKS
from attestation.tpm.hashes import bank_alg, bank_name, digest_size
from attestation.wire import Reader, u16, u32


@dataclass(frozen=True, slots=True)
class PCRSelection:
    """Which PCRs of which banks, in the order in which their values are hashed.

    Args:
        banks: Pairs of hash algorithm id and ascending PCR indices. The order of the banks is part of the
            value: it is the order of the digest.
        bitmap_sizes: Bytes of each bank's bitmap as read, so that it is written back the same; not compared.
    """

    banks: tuple[tuple[int, tuple[int, ...]], ...]
    bitmap_sizes: tuple[int, ...] = field(default=(), compare=False, repr=False)

    @classmethod
    def from_names(cls, names: Mapping[str, Iterable[int]]) -> PCRSelection:
        """Make a selection from `{"sha256": [0, 1]}`; indices are sorted, duplicates refused.

        Raises:
            MalformedEvidence: Unknown bank, index outside 0-23, an index twice, nothing selected.
        """
        banks = []
        for name, indices in names.items():
            ordered = tuple(sorted(indices))
            if len(set(ordered)) != len(ordered) or not ordered or ordered[0] < 0 or ordered[-1] > 23:
                raise MalformedEvidence(f"PCR selection of bank {name[:20]!r} is not a set of 0-23")
            banks.append((int(bank_alg(name)), ordered))
        if not banks or len(banks) > MAX_PCR_BANKS:
            raise MalformedEvidence(f"PCR selection names {len(banks)} banks, 1 to {MAX_PCR_BANKS} allowed")
        return cls(tuple(banks))

    def to_names(self) -> dict[str, list[int]]:
        """Return the selection as `{"sha256": [0, 1]}`."""
        return {bank_name(alg): list(indices) for alg, indices in self.banks}

    @classmethod
    def read(cls, reader: Reader) -> PCRSelection:
        """Read a TPML_PCR_SELECTION: u32 count, then per bank hashAlg u16, sizeofSelect u8, bitmap.

        Bit *i* of byte *i*/8, least significant first, is PCR *i*. A bitmap has 3 or 4 bytes; both forms of
        one set are equal. A bank may appear with an empty bitmap; a bank may not appear twice.

        Raises:
            MalformedEvidence: Too many banks, unknown bank, a bank twice, bitmap of another size.
        """
        known = _ONE_BANK.get(reader.peek(_ONE_BANK_BYTES))
        if known is not None:
            reader.position += _ONE_BANK_BYTES
            return known
        start = reader.position
        count = reader.u32()
        if count > MAX_PCR_BANKS:
            raise MalformedEvidence(f"PCR selection of {count} banks, at most {MAX_PCR_BANKS} allowed")
        banks = []
        sizes = []
        for _ in range(count):
            alg = reader.u16()
            digest_size(alg)
            size = reader.u8()
            if size not in (3, 4):
                raise MalformedEvidence(f"PCR bitmap of {size} bytes, 3 or 4 allowed")
            bitmap = int.from_bytes(reader.take(size), "little")
            banks.append((alg, _indices(bitmap)))
            sizes.append(size)
        if len({alg for alg, _ in banks}) != count:
            raise MalformedEvidence("PCR selection names a bank twice")
        selection = cls(tuple(banks), tuple(sizes))
        if sizes == [3] and len(_ONE_BANK) < 256:
            _ONE_BANK[reader.since(start)] = selection
        return selection

    def serialise(self) -> bytes:
        """Return the TPML_PCR_SELECTION, with bitmaps of 3 bytes unless 4 were read."""
        parts = [u32(len(self.banks))]
        sizes = self.bitmap_sizes or (3,) * len(self.banks)
        for (alg, indices), size in zip(self.banks, sizes, strict=True):
            bitmap = sum(1 << i for i in indices)
            parts += [u16(alg), bytes([size]), bitmap.to_bytes(size, "little")]
        return b"".join(parts)

    def as_sets(self) -> dict[int, tuple[int, ...]]:
        """Return bank id -> indices, empty banks left out; equal for selections of the same PCRs."""
        return {alg: indices for alg, indices in self.banks if indices}


def _indices(bitmap: int) -> tuple[int, ...]:
    return tuple(i for i in range(32) if bitmap >> i & 1)


_ONE_BANK_BYTES = 10
_ONE_BANK: dict[bytes, PCRSelection] = {}
"""Selections met before, of one bank with a bitmap of 3 bytes: what every quote of a fleet has in common.
A pure function of the key, so staleness is impossible. Bounded at 256."""
