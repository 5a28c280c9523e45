"""IMA measurement lists: which files the kernel measured, as far as they lead to a quoted PCR 10.

Layout: `binary_runtime_measurements` of Linux (security/integrity/ima/ima_fs.c), little-endian: PCR u32, template
hash 20 bytes (SHA-1), u32 length and name of the template, then its data. Template `ima`: digest 20 bytes, u32
length, path. Others: u32 length of the template data, and in them u32 length and bytes per field.

The kernel extends each bank with that bank's hash of the template data. For a bank whose hash is not loaded
when IMA starts it extends the SHA-1 template hash, filled with zeros; that proves no more than SHA-1 does, and is
refused by name. A violation (a file was written while it was measured) has a template hash of zeros and
extends FF in every bank.
"""

# Algorithms for: event-log
from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, NamedTuple

from attestation.errors import IMALogRejected, MalformedEvidence
from attestation.tpm import Alg, bank_name, digest_size, hash_new

MEDIA_TYPE: Final = "application/vnd.itl.ima-log"
MAX_LIST_BYTES: Final = 4 << 20
MAX_ENTRIES: Final = 50_000
MAX_PATH_BYTES: Final = 4096
PCR: Final = 10
BOOT_AGGREGATE: Final = "boot_aggregate"

_HEADER: Final = struct.Struct("<I20sI")  # PCR, template hash, length of the template's name
_U32: Final = struct.Struct("<I")
_OLD: Final = b"ima"
_OLD_NAME_BYTES: Final = 256
"""Template `ima` is hashed as digest ‖ path, the path filled with NUL to so many bytes."""
_FIELDS: Final[Mapping[bytes, int]] = MappingProxyType(
    {b"ima-ng": 2, b"ima-sig": 3, b"ima-buf": 3, b"ima-ngv2": 2, b"ima-sigv2": 3}
)
"""Number of fields of each template that we read; the first is the digest, the second the path."""
_DIGEST_BYTES: Final[Mapping[str, int]] = MappingProxyType(
    {"md5": 16, "sha1": 20, "sha224": 28, "sha256": 32, "sha384": 48, "sha512": 64, "sm3": 32}
)
_VIOLATION: Final = bytes(20)
_NO_PCRS: Final[Mapping[int, bytes]] = MappingProxyType({})


class IMAEntry(NamedTuple):
    """One measurement.

    Args:
        path: What was measured; bytes that are not UTF-8 are escaped. `boot_aggregate` for PCR 0-9 at the start.
        algorithm: Of the digest, e.g. `sha256`.
        digest: Of the file, hex; empty for a violation.
        violation: A file was written while it was measured. That is all that is measured of it: the path is
            what the list says, so no allow list may forgive a violation by its path.
        template: Name of the template.
    """

    path: str
    algorithm: str
    digest: str
    violation: bool
    template: str


class _Record(NamedTuple):
    """One entry as written.

    Args:
        pcr: PCR it was extended into.
        template_hash: SHA-1 of *hashed* as listed.
        hashed: What the kernel hashes.
        entry: What it says.
    """

    pcr: int
    template_hash: bytes
    hashed: bytes
    entry: IMAEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class UnverifiedIMALog:
    """A parsed list. Nothing in it may be believed yet.

    Args:
        sha256: Of the list, hex.
        records: Every entry.
    """

    sha256: str
    records: tuple[_Record, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class IMALogClaims:
    """What the list proves, now that it led to a quoted PCR 10; only `verify` builds one.

    Args:
        sha256: Of the list, hex.
        entries: What had been measured when the quote was made, in order.
        later: Entries behind those: measured after the quote, proven by nothing.
        boot_aggregate_checked: The first entry was compared with the quoted PCR 0-9 and equals them.
    """

    sha256: str
    entries: tuple[IMAEntry, ...]
    later: int
    boot_aggregate_checked: bool

    @property
    def violations(self) -> tuple[IMAEntry, ...]:
        """Entries that prove nothing but that a file was written while it was measured."""
        return tuple(e for e in self.entries if e.violation)


def parse(data: bytes) -> UnverifiedIMALog:
    """Parse a list of at most 4 MiB and 50 000 entries, templates `ima`, `ima-ng`, `ima-sig`, `ima-buf` and their v2.

    Raises:
        MalformedEvidence: The only way to fail; trailing bytes and unknown templates included.
    """
    size = len(data)
    if size > MAX_LIST_BYTES:
        raise MalformedEvidence(f"IMA list of {size} bytes, at most {MAX_LIST_BYTES} allowed")
    records: list[_Record] = []
    offset = 0
    while offset < size:
        if len(records) == MAX_ENTRIES:
            raise MalformedEvidence(f"IMA list: more than {MAX_ENTRIES} entries")
        record, offset = _record(data, offset, size)
        records.append(record)
    if not records:
        raise MalformedEvidence("IMA list: no entries")
    return UnverifiedIMALog(sha256=hashlib.sha256(data).hexdigest(), records=tuple(records))


def _record(data: bytes, offset: int, size: int) -> tuple[_Record, int]:
    """Return the entry at *offset*, and the offset behind it."""
    if offset + _HEADER.size > size:
        raise MalformedEvidence(f"IMA list: {size - offset} bytes at offset {offset} are no entry")
    pcr, template_hash, name_size = _HEADER.unpack_from(data, offset)
    start = offset + _HEADER.size
    name = data[start : start + name_size] if name_size <= 16 else b""
    start += name_size
    violation = template_hash == _VIOLATION
    if pcr > 23:
        raise MalformedEvidence(f"IMA list: entry at offset {offset} of PCR {pcr}")
    if name == _OLD:
        digest, stop = data[start : start + 20], start + 20
        path, stop = _sized(data, stop, size)
        if len(path) >= _OLD_NAME_BYTES:
            raise MalformedEvidence(f"IMA list: path of {len(path)} bytes in template ima")
        entry = IMAEntry(_path_text(path), "sha1", "" if violation else digest.hex(), violation, "ima")
        return _Record(pcr, template_hash, digest + path.ljust(_OLD_NAME_BYTES, b"\0"), entry), stop
    fields = _FIELDS.get(name)
    if fields is None:
        raise MalformedEvidence(f"IMA list: the entry at offset {offset} is of no template that we read")
    hashed, stop = _sized(data, start, size)
    entry = _entry(hashed, fields, violation=violation, template=name.decode("ascii"))
    return _Record(pcr, template_hash, hashed, entry), stop


def _sized(data: bytes, offset: int, size: int) -> tuple[bytes, int]:
    """Return the bytes behind the u32 at *offset*, as many as it says, and the offset behind them."""
    start = offset + 4
    if start > size:
        raise MalformedEvidence(f"IMA list: {max(0, size - offset)} bytes at offset {offset} are no length")
    length = _U32.unpack_from(data, offset)[0]
    if length > size - start:
        raise MalformedEvidence(
            f"IMA list: {length} bytes announced at offset {offset}, {size - start} are there"
        )
    return data[start : start + length], start + length


def _entry(hashed: bytes, fields: int, *, violation: bool, template: str) -> IMAEntry:
    """Read the template data: *fields* fields to the last byte."""
    offset, size = 0, len(hashed)
    values: list[bytes] = []
    for _ in range(fields):
        value, offset = _sized(hashed, offset, size)
        values.append(value)
    if offset != size:
        raise MalformedEvidence(f"IMA list: {size - offset} bytes behind the fields of template {template}")
    algorithm, digest = _digest(values[0])
    path = values[1]
    if not path.endswith(b"\0") or b"\0" in path[:-1] or len(path) > MAX_PATH_BYTES + 1:
        raise MalformedEvidence("IMA list: a path that does not end with its only NUL")
    return IMAEntry(_path_text(path[:-1]), algorithm, "" if violation else digest, violation, template)


def _digest(field: bytes) -> tuple[str, str]:
    """Read `sha256:` NUL digest, or in v2 templates `ima:sha256:` NUL digest; return algorithm and hex."""
    head, separator, digest = field.partition(b":\0")
    algorithm = head.rpartition(b":")[2].decode("ascii", errors="replace")
    if not separator or _DIGEST_BYTES.get(algorithm) != len(digest):
        raise MalformedEvidence(f"IMA list: a digest field of {len(field)} bytes that cannot be read")
    return algorithm, digest.hex()


def _path_text(path: bytes) -> str:
    return path.decode("utf-8", errors="backslashreplace")


def replay(log: UnverifiedIMALog, bank: int) -> bytes:
    """Return PCR 10 after the whole list, in *bank*.

    Raises:
        MalformedEvidence: We do not compute the hash of this bank.
    """
    value = bytes(digest_size(bank))
    for record in log.records:
        value = hash_new(bank, value + _extended(record, bank)).digest()
    return value


def _extended(record: _Record, bank: int) -> bytes:
    """Return what the kernel extends into *bank* for *record*."""
    if record.entry.violation:
        return b"\xff" * digest_size(bank)
    return hash_new(bank, record.hashed).digest()


def verify(
    log: UnverifiedIMALog, *, bank: int, quoted_pcr10: bytes, quoted: Mapping[int, bytes] = _NO_PCRS
) -> IMALogClaims:
    """Verify that *log* leads to the quoted PCR 10.

    The list may be longer than what was quoted: files are measured all the time. What comes later is not
    claimed.

    Args:
        log: Result of `parse`.
        bank: TPM_ALG_ID of the quoted bank.
        quoted_pcr10: From a verified quote.
        quoted: Other PCRs of the same quote, for the boot aggregate; compared where PCR 0-9 are among them.

    Raises:
        IMALogRejected: It does not lead there, or is of another boot.
        MalformedEvidence: We do not compute the hash of this bank.
    """
    if bank == Alg.SHA1:
        raise IMALogRejected("IMA list: the SHA-1 bank proves nothing")
    # 1. Every entry is what its listed hash says; only then a listed hash of zeros means a violation.
    for i, record in enumerate(log.records):
        if record.pcr != PCR:
            raise IMALogRejected(f"IMA list: entry {i} is of PCR {record.pcr}")
        listed = hashlib.sha1(record.hashed, usedforsecurity=False).digest()
        if not record.entry.violation and record.template_hash != listed:
            raise IMALogRejected(f"IMA list: entry {i} is not what its template hash says")
    # 2. The list leads to the quoted value, after its last entry or after an earlier one.
    covered = _covered(log, bank, quoted_pcr10)
    if covered == 0:
        if _padded_leads_to(log, bank, quoted_pcr10):
            raise IMALogRejected(
                f"IMA list: the kernel extended SHA-1 hashes into the {bank_name(bank)} bank; quote another bank"
            )
        raise IMALogRejected("IMA list: does not lead to the quoted PCR 10")
    entries = tuple(record.entry for record in log.records[:covered])
    # 3. It began with this boot: the first entry is of the PCRs that were quoted with it.
    checked = _check_boot_aggregate(entries[0], bank, quoted)
    return IMALogClaims(
        sha256=log.sha256,
        entries=entries,
        later=len(log.records) - covered,
        boot_aggregate_checked=checked,
    )


def _covered(log: UnverifiedIMALog, bank: int, quoted: bytes) -> int:
    """Return after how many entries the list leads to *quoted*; 0 where it never does."""
    value = bytes(digest_size(bank))
    for count, record in enumerate(log.records, 1):
        value = hash_new(bank, value + _extended(record, bank)).digest()
        if hmac.compare_digest(value, quoted):
            return count
    return 0


def _padded_leads_to(log: UnverifiedIMALog, bank: int, quoted: bytes) -> bool:
    """Tell whether SHA-1 template hashes filled with zeros lead to *quoted*."""
    size = digest_size(bank)
    value = bytes(size)
    for record in log.records:
        fill = b"\xff" * size if record.entry.violation else record.template_hash.ljust(size, b"\0")
        value = hash_new(bank, value + fill).digest()
        if value == quoted:
            return True
    return False


def _check_boot_aggregate(first: IMAEntry, bank: int, quoted: Mapping[int, bytes]) -> bool:
    """Compare the first entry with the hash over PCR 0-9 (kernels before 5.8: 0-7) where that is possible."""
    if first.path != BOOT_AGGREGATE:
        raise IMALogRejected("IMA list: does not begin with boot_aggregate")
    if bank_name(bank) != first.algorithm or not all(i in quoted for i in range(10)):
        return False
    for count in (10, 8):
        values = b"".join(quoted[i] for i in range(count))
        if hmac.compare_digest(hash_new(bank, values).hexdigest(), first.digest):
            return True
    raise IMALogRejected("IMA list: its boot_aggregate is of other PCRs than those quoted")
