"""Every lie about what a kernel measured is refused, or proves less (IMA lists against PCR 10)."""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass
from functools import cache

import pytest

from attestation.errors import IMALogRejected, MalformedEvidence
from attestation.evidence import ima_log as evidence
from attestation.evidence.ima_log import IMAEntry, IMALogClaims
from attestation.tpm import Alg
from attestation_testing import boot_log, ima_log
from tests.vectors.eventlog.ovmf import by_name

MUTATIONS_PER_CLASS = 20
FILES = {f"/usr/bin/program{i}": f"content {i}".encode() for i in range(30)}


@dataclass(frozen=True)
class Told:
    """A list, and the PCRs that were quoted."""

    raw: bytes
    quoted: dict[int, bytes]

    def verify(self, raw: bytes) -> IMALogClaims:
        """Verify *raw* against the quote."""
        parsed = evidence.parse(raw)
        return evidence.verify(parsed, bank=Alg.SHA256, quoted_pcr10=self.quoted[10], quoted=self.quoted)

    def refuses(self, raw: bytes) -> bool:
        """Tell whether *raw* is refused."""
        try:
            self.verify(raw)
        except (MalformedEvidence, IMALogRejected):
            return True
        return False

    def parts(self) -> list[bytes]:
        """Return the bytes of each entry."""
        found, at = [], 0
        while at < len(self.raw):
            start = at
            at += 28 + struct.unpack_from("<I", self.raw, at + 24)[0]
            at += 4 + struct.unpack_from("<I", self.raw, at)[0]
            found.append(self.raw[start:at])
        return found


@cache
def every_list() -> dict[str, Told]:
    """Return the honest lists."""
    boot = by_name["sb-on-ima"]
    pcrs = boot_log().pcrs()
    ng = ima_log(pcrs, FILES)
    signed = ima_log(pcrs, FILES, template="ima-sig", violations=["/usr/bin/program7"])
    return {
        "n1/sb-on-ima": Told(boot.ima, boot.quoted("sha256")),
        "ima-ng": Told(ng.serialise(), pcrs | {10: ng.pcr10()}),
        "ima-sig": Told(signed.serialise(), pcrs | {10: signed.pcr10()}),
    }


LISTS = pytest.mark.parametrize("name", every_list())


def test_the_truth_is_accepted() -> None:
    """Unchanged, every list verifies to its end."""
    for told in every_list().values():
        claims = told.verify(told.raw)
        assert len(claims.entries) == len(told.parts())
        assert claims.boot_aggregate_checked


@LISTS
def test_dropped_duplicated_reordered_and_invented_entries_are_noticed(name: str) -> None:
    """Each entry left out, twice, in its neighbour's place; and one that nobody measured before it."""
    told = every_list()[name]
    parts = told.parts()
    invented = ima_log({i: bytes(32) for i in range(10)}, {"/evil": b"evil"}).serialise()
    tried = 0
    for i in range(len(parts)):
        assert told.refuses(b"".join(parts[:i] + parts[i + 1 :])), f"entry {i} dropped"
        if i + 1 < len(parts):
            assert told.refuses(b"".join([*parts[: i + 1], *parts[i:]])), f"entry {i} twice"
            assert told.refuses(b"".join([*parts[:i], parts[i + 1], parts[i], *parts[i + 2 :]])), (
                f"{i} swapped"
            )
        assert told.refuses(b"".join([*parts[:i], invented, *parts[i:]])), f"an entry before {i}"
        tried += 1
    assert tried >= MUTATIONS_PER_CLASS


@LISTS
def test_what_stands_behind_the_quoted_end_is_not_claimed(name: str) -> None:
    """The kernel goes on measuring; entries behind those that were quoted are counted and prove nothing."""
    told = every_list()[name]
    claims = told.verify(told.raw + told.parts()[-1])
    assert claims.later == 1
    assert claims.entries == told.verify(told.raw).entries


@LISTS
def test_oversized_and_truncated_entries_are_refused(name: str) -> None:
    """Lengths that are not there; cuts at every byte but between entries, where too little is left."""
    told = every_list()[name]
    parts = told.parts()
    tried = 0
    for i, part in enumerate(parts):
        for at in (24, 28 + struct.unpack_from("<I", part, 24)[0]):
            for size in (0, 1, 1 << 16, (1 << 32) - 1):
                lie = part[:at] + struct.pack("<I", size) + part[at + 4 :]
                assert told.refuses(b"".join([*parts[:i], lie, *parts[i + 1 :]])), f"entry {i}: {size}"
                tried += 1
    assert tried >= MUTATIONS_PER_CLASS
    for cut in range(len(told.raw)):
        assert told.refuses(told.raw[:cut]), f"{cut} of {len(told.raw)} bytes"


@LISTS
def test_a_flipped_bit_proves_nothing_new(name: str) -> None:
    """Any single bit; what still passes claims the very same files."""
    told = every_list()[name]
    honest = told.verify(told.raw)
    rng = random.Random(name)
    refused = 0
    for _ in range(600):
        raw = bytearray(told.raw)
        where = rng.randrange(len(raw))
        raw[where] ^= 1 << rng.randrange(8)
        try:
            claims = told.verify(bytes(raw))
        except (MalformedEvidence, IMALogRejected):
            refused += 1
            continue
        assert list(map(said, claims.entries)) == list(map(said, honest.entries)), f"byte {where}"
    assert refused >= MUTATIONS_PER_CLASS


def said(entry: IMAEntry) -> object:
    """Return what an entry proves; of a violation, that it happened: its path is not measured."""
    return entry.violation or entry[:3]


def test_the_list_of_another_boot_is_refused() -> None:
    """boot_aggregate ties it to PCR 0-9 of the same quote."""
    told = every_list()["ima-ng"]
    other = told.quoted | {4: bytes(32)}
    with pytest.raises(IMALogRejected, match="boot_aggregate"):
        Told(told.raw, other).verify(told.raw)
