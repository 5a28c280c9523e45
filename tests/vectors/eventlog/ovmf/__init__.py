"""Boots of real firmware, and what was read from the TPM after each."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from attestation_testing import BootLog, Event
from tests.vectors.eventlog import replay

HERE = Path(__file__).parent


@dataclass(frozen=True)
class RealBoot:
    """The evidence of one boot; paths as in README.md.

    Args:
        machine: n1 or n2.
        name: What is special about it.
    """

    machine: str
    name: str

    def read(self, name: str) -> bytes:
        """Return a file of the boot, or of its machine."""
        of_boot = HERE / self.machine / self.name / name
        return (of_boot if of_boot.exists() else HERE / self.machine / name).read_bytes()

    @property
    def path(self) -> Path:
        """Its folder."""
        return HERE / self.machine / self.name

    @cached_property
    def log(self) -> bytes:
        """The event log."""
        return self.read("eventlog.bin")

    @cached_property
    def boot_log(self) -> BootLog:
        """The log for `attestation_testing.boot`: a software TPM measures what this machine measured."""
        events = list(replay.events(self.log))
        return BootLog(
            events=tuple(Event(pcr=e.pcr, type=e.type, data=e.data, digests=e.digests) for e in events),
            banks=tuple(events[0].digests),
        )

    @cached_property
    def ima(self) -> bytes:
        """The IMA list."""
        return self.read("ima.bin")

    @cached_property
    def nonce(self) -> bytes:
        """What the quotes answer."""
        return bytes.fromhex(self.read("nonce.txt").decode())

    @cached_property
    def banks(self) -> tuple[str, ...]:
        """Banks that were quoted."""
        return tuple(sorted(p.stem.removeprefix("quote-") for p in self.path.glob("quote-*.msg")))

    @cached_property
    def all_pcrs(self) -> dict[str, dict[int, bytes]]:
        """All PCRs of all banks as the kernel printed them."""
        values: dict[str, dict[int, bytes]] = {}
        for line in self.read("pcrs.txt").decode().splitlines():
            bank, index, text = line.split()
            values.setdefault(bank, {})[int(index)] = bytes.fromhex(text)
        return values

    def quoted(self, bank: str) -> dict[int, bytes]:
        """PCR 0-15, which were quoted."""
        return {i: value for i, value in self.all_pcrs[bank].items() if i < 16}

    @cached_property
    def variables(self) -> dict[str, tuple[int, str]]:
        """Secure Boot variables as efivarfs showed them after the boot: name -> length, SHA-256."""
        lines = (line.split() for line in self.read("efivars.txt").decode().splitlines())
        return {name: (int(size), digest) for name, size, digest in lines}


BOOTS = tuple(RealBoot(p.parent.parent.name, p.parent.name) for p in sorted(HERE.glob("*/*/eventlog.bin")))
by_name = {boot.name: boot for boot in BOOTS}


def sums() -> dict[str, str]:
    """Return SHA256SUMS: path -> digest."""
    lines = (line.split("  ") for line in (HERE / "SHA256SUMS").read_text().splitlines())
    return {path: digest for digest, path in lines}


def digests() -> dict[str, str]:
    """Return the digest of every file that is pinned."""
    return {
        p.relative_to(HERE).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in HERE.rglob("*")
        if p.is_file() and p.suffix not in (".py", ".md", ".pyc") and p.name != "SHA256SUMS"
    }
