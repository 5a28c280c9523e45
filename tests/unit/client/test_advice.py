"""What an operator is told to look at, for each part of the boot that changed."""

from __future__ import annotations

import pytest

from attestation.client.advice import advice


def heads(*changes: tuple[int, str]) -> list[str]:
    """Return what each piece of advice is about."""
    return [text.split(":")[0] for text in advice(changes)]


@pytest.mark.parametrize(
    ("pcr", "text", "looked_at", "words"),
    [
        (0, "PCR 0 changed: firmware blob replaced", ["firmware"], "who flashed it"),
        (1, "PCR 1 changed: setting", ["firmware settings"], "who was in the setup"),
        (2, "PCR 2 changed: option ROM driver added", ["firmware"], "which card was added"),
        (3, "PCR 3 changed", ["firmware settings"], "hardware"),
        (4, "PCR 4 changed: kernel replaced (a -> b)", ["kernel"], "history.log"),
        (4, "PCR 4 changed: boot loader replaced (a -> b)", ["boot loader"], "shim, GRUB"),
        (4, "PCR 4 changed: boot loader replaced, kernel replaced", ["boot loader", "kernel"], "packages"),
        (4, "PCR 4 is not as the policy accepts", ["boot loader", "kernel"], "packages"),
        (5, "PCR 5 changed: partition added", ["disk"], "partitions"),
        (6, "PCR 6 changed", ["events of the vendor (PCR 6)"], "vendor"),
        (7, "PCR 7 changed: dbx updated (+3 hashes)", ["Secure Boot keys"], "update of dbx or of keys"),
        (8, "PCR 8 changed: kernel command line: + init=/bin/sh", ["command line"], "/etc/default/grub"),
        (9, "PCR 9 changed: initrd /initrd.img replaced", ["initrd"], "who rebuilt it"),
        (9, "PCR 9 changed: initrd /initrd.img replaced", ["initrd"], "packages' hooks"),
        (9, "PCR 9 changed: kernel /vmlinuz replaced", ["kernel"], "update of packages"),
        (9, "PCR 9 changed: kernel /a replaced; initrd /b added", ["kernel", "initrd"], "rebuilt"),
        (9, "PCR 9 changed: file /grub/grub.cfg replaced", ["files that the boot loader read"], "grub.cfg"),
        (9, "", ["kernel", "initrd", "files that the boot loader read"], "initrd"),
        (
            10,
            "PCR 10 changed: its first entry follows PCR 4",
            ["measurement list of IMA (PCR 10)"],
            "follows PCR 0 to 9",
        ),
        (11, "PCR 11 changed: section .initrd replaced", ["initrd"], "rebuilt"),
        (11, "PCR 11 changed: section .cmdline replaced", ["command line"], "/etc/kernel/cmdline"),
        (11, "PCR 11 changed: section .linux replaced", ["kernel"], "packages"),
        (12, "PCR 12 changed: kernel command line: + quiet", ["command line"], "boot prompt"),
        (12, "", ["command line", "credentials and extensions beside the kernel image"], "EFI partition"),
        (13, "PCR 13 changed", ["credentials and extensions beside the kernel image"], "EFI partition"),
        (14, "PCR 14 changed: shim's MokList changed", ["shim's own keys"], "mokutil"),
        (16, "PCR 16 changed", [], ""),
    ],
)
def test_each_change_names_what_to_look_at(pcr: int, text: str, looked_at: list[str], words: str) -> None:
    """What was said to have changed decides; where nothing is said, all that the PCR holds."""
    assert heads((pcr, text)) == looked_at
    assert words in " ".join(advice([(pcr, text)]))


def test_each_is_told_once_in_the_order_of_the_boot() -> None:
    """A kernel that shows in two PCRs is one kernel; PCR 10, which follows, comes last."""
    changes = [
        (10, "follows"),
        (9, "kernel /vmlinuz replaced"),
        (4, "kernel replaced"),
        (7, "dbx"),
        (0, "blob"),
    ]
    assert heads(*changes) == ["firmware", "Secure Boot keys", "kernel", "measurement list of IMA (PCR 10)"]
    assert advice([]) == ()
