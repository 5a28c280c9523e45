"""What an operator looks at when PCRs changed: from which part of the boot to what may have changed it honestly.

For people at night: whom to ask and which record to read, in the order of the boot. Nothing is decided here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final, NamedTuple


class _Advice(NamedTuple):
    """One thing to look at.

    Args:
        pcrs: Where it shows.
        said: What the words about such a PCR say where it is this of several things; empty where it is the only one.
        text: What to look at.
    """

    pcrs: frozenset[int]
    said: str
    text: str


def _row(pcrs: Iterable[int], said: str, text: str) -> _Advice:
    return _Advice(frozenset(pcrs), said, text)


_TABLE: Final = (
    _row(
        {0, 2}, "", "firmware: which update of the vendor was installed, who flashed it, which card was added"
    ),
    _row({1, 3}, "", "firmware settings: who was in the setup, which hardware was added or taken out"),
    _row({6}, "", "events of the vendor (PCR 6): what the machine's vendor says that it measures there"),
    _row(
        {7},
        "",
        "Secure Boot keys: which update of dbx or of keys was installed (`fwupdmgr get-history`), who was in the setup",
    ),
    _row(
        {14},
        "",
        "shim's own keys: who enrolled a key with `mokutil --import`, and for which module or kernel",
    ),
    _row(
        {4},
        r"boot loader|image",
        "boot loader: which update of the packages of shim, GRUB or systemd-boot replaced it",
    ),
    _row({5}, "", "disk: who changed partitions or the order of boot entries (`efibootmgr -v`)"),
    _row(
        {8},
        "",
        "command line: who changed the configuration of the boot loader (`/etc/default/grub`, `grub.cfg`)",
    ),
    _row(
        {11, 12},
        r"\.cmdline|command line",
        "command line: who changed it where the image is built (`/etc/kernel/cmdline`), or at the boot prompt",
    ),
    _row(
        {4, 9, 11},
        r"\bkernel\b|\.linux",
        "kernel: which update of packages brought it (`/var/log/apt/history.log`, `dnf history`)",
    ),
    _row(
        {9, 11},
        r"\binitrd\b|\.initrd",
        "initrd: who rebuilt it, and which packages' hooks went into it (`lsinitramfs`, `lsinitrd`)",
    ),
    _row(
        {9},
        r"\bfile\b",
        "files that the boot loader read: which of them changed, modules and `grub.cfg` among them",
    ),
    _row(
        {12, 13}, "", "credentials and extensions beside the kernel image: who put them on the EFI partition"
    ),
    _row(
        {10},
        "",
        "measurement list of IMA (PCR 10): its first entry follows PCR 0 to 9; compare the rest with what is installed",
    ),
)


def advice(changes: Iterable[tuple[int, str]]) -> tuple[str, ...]:
    """Return what to look at, in the order of the table, each once.

    Args:
        changes: PCRs with what was said about each (`explain`). Of a PCR that holds several things only those
            that were said to have changed count; where none is said, each may have.
    """
    found: set[_Advice] = set()
    for pcr, text in changes:
        rows = [row for row in _TABLE if pcr in row.pcrs]
        said = [row for row in rows if row.said and re.search(row.said, text)]
        found.update(said or rows)
    return tuple(row.text for row in _TABLE if row in found)
