"""What of a boot was compared: on each boot path, by each way to compare, and never by a register that is empty."""

from __future__ import annotations

import re

import pytest

from attestation.results import Failed, Flagged, Outcome, Passed, Reported, Subject, Undecided
from attestation.results.appraised import BY_PATH, OF_PCR, appraised
from attestation.results.ar4si import TrustClaim
from attestation.results.vector import BOOTED, RESTS_ON
from attestation.tpm import Alg
from tests.docs.pages import text

SET, EMPTY = b"\xaa" * 32, bytes(32)
GRUB = {4, 7, 8, 9, 14}
UKI = {4, 7, 11}
SYSTEMD_BOOT = {4, 7, 9, 12}
DEFAULT = (*range(10), 11, 12, 14)


def found(
    *outcomes: Outcome | str | int, used: set[int] = GRUB, quoted: tuple[int, ...] = DEFAULT
) -> set[Subject]:
    """Return what was appraised on a machine that measured into *used*: a number is a PCR whose rule held."""
    values = {pcr: SET if pcr in used else EMPTY for pcr in quoted}
    told = [
        Passed(f"pcr{o}") if isinstance(o, int) else Passed(o) if isinstance(o, str) else o for o in outcomes
    ]
    return set(appraised(told, values, Alg.SHA256))


LOADER, KERNEL, INITRD, LINE = Subject.BOOT_LOADER, Subject.KERNEL, Subject.INITRD, Subject.COMMAND_LINE


@pytest.mark.threat("T126")
@pytest.mark.parametrize(
    ("outcomes", "used", "expected"),
    [
        # GRUB: loader in 4, kernel and initrd in 9, commands in 8.
        ((4, 8, 9), GRUB, {LOADER, KERNEL, INITRD, LINE}),
        ((4, 8), GRUB, {LOADER, LINE}),
        ((4, 9), GRUB, {LOADER, KERNEL, INITRD}),
        ((8, 9), GRUB, {INITRD, LINE}),
        ((4,), GRUB, {LOADER}),
        # A unified kernel image: all in 11, and 12 where something replaced its command line.
        ((4, 11), UKI, {LOADER, KERNEL, INITRD, LINE}),
        ((11,), UKI, {INITRD, LINE}),
        ((4, 11), UKI | {12}, {LOADER, KERNEL, INITRD}),
        ((4, 11, 12), UKI | {12}, {LOADER, KERNEL, INITRD, LINE}),
        ((4, 11), UKI | {9}, {LOADER, LINE}),
        # GRUB starts a unified kernel image: both must be compared.
        ((4, 11), GRUB | {11}, {LOADER}),
        ((4, 8, 9), GRUB | {11}, {LOADER}),
        ((4, 8, 9, 11), GRUB | {11}, {LOADER, KERNEL, INITRD, LINE}),
        # systemd-boot or the firmware starts a kernel.
        ((4, 9, 12), SYSTEMD_BOOT, {LOADER, KERNEL, INITRD, LINE}),
        ((4, 9), SYSTEMD_BOOT, {LOADER, KERNEL, INITRD}),
        # By lists over the log.
        (
            ("boot-loaders", "boot-kernels", "boot-initrds", "command-lines"),
            GRUB,
            {LOADER, KERNEL, INITRD, LINE},
        ),
        (("boot-loaders", "command-lines"), GRUB, {LOADER, LINE}),
        (("boot-kernels",), GRUB, {LOADER, KERNEL, INITRD}),
        (("boot-initrds",), GRUB, {INITRD}),
        (("command-lines",), UKI, set()),
        ((11, "command-lines"), UKI | {12}, {INITRD, LINE}),
        # PCR 0 alone, a log that replays, and what holds no measurement.
        ((0,), {0, *GRUB}, {Subject.FIRMWARE}),
        (("event-log", "tpm-quote", "clock", "assurance"), GRUB, set()),
        (tuple(range(16)), set(), set()),
        ((0, 4, 7, 8, 9, 11), {0}, {Subject.FIRMWARE}),
    ],
)
def test_what_was_compared(outcomes: tuple[int | str, ...], used: set[int], expected: set[Subject]) -> None:
    """Each subject needs what carries it on this path, and all that was used of what may carry it."""
    assert found(*outcomes, used=used) == expected


def test_what_was_not_quoted_is_not_known() -> None:
    """Whether a unified kernel image runs with its own command line, only PCR 12 tells."""
    assert LINE not in found(4, 11, used=UKI, quoted=(4, 7, 11))
    assert LINE in found(4, 11, used=UKI, quoted=(4, 11, 12))
    assert found(4, 8, 9, quoted=(4, 8, 9)) == {LOADER, KERNEL, INITRD, LINE}
    assert found(4, 8, 9, quoted=()) == set()


@pytest.mark.parametrize("pcr", OF_PCR)
def test_registers_that_stand_for_themselves(pcr: int) -> None:
    """One PCR, one subject; a rule that ignores it compares nothing."""
    every = tuple(range(16))
    assert found(pcr, used={pcr}, quoted=every) == {OF_PCR[pcr]}
    assert found(Flagged(f"pcr{pcr}", "ignored"), used={pcr}, quoted=every) == set()


def test_what_did_not_hold_is_not_appraised() -> None:
    """A list that failed takes back what another list over the same PCR says; an undecided one likewise."""
    for kind in (Failed("boot-kernels", "a", "b"), Undecided("boot-kernels", "not asked for")):
        assert found("boot-loaders", 9, kind) == set()
    assert found(4, Failed("pcr9", "a", "b")) == {LOADER}
    assert found(4, 9, Reported("pcr0", "a", "b")) == set()


def test_secure_boot_and_files() -> None:
    """On, with the keys that are listed; all files that the kernel measured."""
    assert found("secure-boot", "secure-boot-db") == {Subject.SECURE_BOOT}
    assert found("secure-boot", Failed("secure-boot-dbx", "a", "b")) == set()
    assert found("secure-boot", used=set()) == set()
    assert found(7) == {Subject.SECURE_BOOT_SETTINGS}
    assert found("ima") == {Subject.FILES}
    assert found("ima", Failed("ima-violations", "a", "b")) == set()


def test_the_page_has_the_tables() -> None:
    """docs/protocol/results.md names each subject with its registers, and each value with what it rests on."""
    page = text("docs/protocol/results.md")
    rows = dict(re.findall(r"^\| `([a-z-]+)` \| PCR ([^|]*) \|", page, flags=re.MULTILINE))
    # What a processor launched is in no register of a TPM.
    assert rows.keys() == set(Subject) - {Subject.LAUNCH}
    assert f"| `{Subject.LAUNCH}` |" in page
    for pcr, subject in OF_PCR.items():
        assert rows[subject] == str(pcr)
    for subject, carried in BY_PATH.items():
        assert (
            set(map(int, re.findall(r"\d+", rows[subject]))) == carried.always | carried.one_of | carried.used
        )
    for claim, value, needed in RESTS_ON:
        assert needed == _stated(page, claim, value), (claim, value)
    assert RESTS_ON[1] == (TrustClaim.EXECUTABLES, 3, BOOTED)


def _stated(page: str, claim: str, value: int) -> frozenset[str]:
    """Return the subjects that the page names beside *value* of *claim*."""
    current = ""
    for name, number, words in re.findall(
        r"^\| (?:`([a-z-]+)`)? ?\| (-?\d+) \| ([^|]*) \|$", page, flags=re.MULTILINE
    ):
        current = name or current
        if (current, int(number)) == (claim, value):
            return frozenset(re.findall(r"`([a-z-]+)`", words))
    return frozenset()
