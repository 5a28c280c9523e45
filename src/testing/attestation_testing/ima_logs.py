"""What a kernel with an IMA policy measures: lists for PCR 10, honest and not.

Layout of `binary_runtime_measurements`, all integers little-endian (Linux, security/integrity/ima/ima_fs.c): PCR u32,
SHA-1 of the template data (20 bytes; zeros for a violation), length u32 and name of the template, length u32 and
template data. Template data of ima-ng: length u32 and `sha256:` ‖ 00 ‖ digest, length u32 and path ‖ 00; ima-sig adds
length u32 and a signature.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from attestation.tpm.hashes import bank_alg, digest_size

PCR: Final = 10
Template = Literal["ima-ng", "ima-sig"]


@dataclass(frozen=True, slots=True, kw_only=True)
class IMAEntry:
    """One measured file.

    Args:
        path: As the kernel says it.
        digest: SHA-256 of the file, 32 bytes.
        violation: It was written while it was measured: the TPM got 0xFF bytes, the list has zeros.
        signature: Of ima-sig.
        hashed: Template data that was extended, if another than the list has.
    """

    path: str
    digest: bytes
    violation: bool = False
    signature: bytes = b""
    hashed: bytes | None = None

    def template_data(self, template: Template) -> bytes:
        """Return the fields of *template*."""
        fields = [b"sha256:\0" + (bytes(32) if self.violation else self.digest), self.path.encode() + b"\0"]
        if template == "ima-sig":
            fields.append(self.signature)
        return b"".join(struct.pack("<I", len(field)) + field for field in fields)


@dataclass(frozen=True, slots=True, kw_only=True)
class IMALog:
    """A measurement list.

    Args:
        entries: The first is `boot_aggregate`.
        template: Of all entries.
        padded_sha1: The kernel extends banks other than SHA-1 with the SHA-1 digest and zeros: before Linux 5.8, or
            where the module of a bank's hash is not loaded when IMA starts (TPM.md: met in the SHA-384 bank).
    """

    entries: tuple[IMAEntry, ...]
    template: Template = "ima-ng"
    padded_sha1: bool = False

    def serialise(self) -> bytes:
        """Return the list as the kernel shows it."""
        raw = b""
        for entry in self.entries:
            data = entry.template_data(self.template)
            digest = bytes(20) if entry.violation else hashlib.sha1(data).digest()
            raw += (
                struct.pack("<I", PCR)
                + digest
                + struct.pack("<I", len(self.template))
                + self.template.encode()
            )
            raw += struct.pack("<I", len(data)) + data
        return raw

    def measurements(self, banks: Iterable[str] = ("sha256",)) -> list[tuple[int, Mapping[str, bytes]]]:
        """Return what was extended: PCR, bank -> digest; for `event_logs.boot`."""
        return [(PCR, {bank: self._extended(entry, bank) for bank in banks}) for entry in self.entries]

    def _extended(self, entry: IMAEntry, bank: str) -> bytes:
        size = digest_size(bank_alg(bank))
        if entry.violation:
            return b"\xff" * size
        data = entry.template_data(self.template) if entry.hashed is None else entry.hashed
        if self.padded_sha1:
            return hashlib.sha1(data).digest().ljust(size, b"\0")
        return hashlib.new(bank, data).digest()

    def pcr10(self, bank: str = "sha256") -> bytes:
        """Return PCR 10 after all entries."""
        value = bytes(digest_size(bank_alg(bank)))
        for _, digests in self.measurements([bank]):
            value = hashlib.new(bank, value + digests[bank]).digest()
        return value


def ima_log(
    pcrs: Mapping[int, bytes],
    files: Mapping[str, bytes],
    *,
    template: Template = "ima-ng",
    violations: Iterable[str] = (),
    padded_sha1: bool = False,
) -> IMALog:
    """Return the list of a machine that booted to *pcrs* and then used *files*.

    Args:
        pcrs: Of the SHA-256 bank, 0-9 at least; `boot_aggregate` is SHA-256 over 0-9 (Linux 6.1).
        files: Path -> content.
        template: Of all entries.
        violations: Those of *files* that were written while measured.
        padded_sha1: See `IMALog`.
    """
    aggregate = hashlib.sha256(b"".join(pcrs[i] for i in range(10))).digest()
    broken = frozenset(violations)
    entries = [IMAEntry(path="boot_aggregate", digest=aggregate)]
    entries += [
        IMAEntry(path=path, digest=hashlib.sha256(content).digest(), violation=path in broken)
        for path, content in files.items()
    ]
    return IMALog(entries=tuple(entries), template=template, padded_sha1=padded_sha1)
