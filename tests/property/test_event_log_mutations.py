"""Every lie about a boot is refused, or gains the liar nothing (N82-N96).

Mutated are logs of real firmware (tests/vectors/eventlog/ovmf) and of synthetic machines. The liar writes the log;
the quoted PCRs are what the machine measured.
"""

from __future__ import annotations

import random
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

import pytest

from attestation.errors import EventLogRejected, MalformedEvidence
from attestation.evidence import event_log
from attestation.evidence.event_log import EventLogClaims
from attestation.tpm import Alg
from attestation_testing import (
    BootOptions,
    Event,
    EventType,
    LogDefect,
    LogQuirk,
    Tampering,
    boot_log,
    tampered,
)
from attestation_testing.event_logs import (
    DATABASE,
    SHIM,
    BootLog,
    image,
    ipl,
    secure_boot_certificate,
    variable,
)
from tests.vectors.eventlog import replay
from tests.vectors.eventlog.ovmf import BOOTS

MUTATIONS_PER_CLASS = 20
QUOTED = frozenset(range(16)) - {10}
NO_ACTION, SEPARATOR = 3, 4
PADDING = (LogQuirk.PADDED_ZEROS, LogQuirk.PADDED_ONES)
SYNTHETIC = {
    "plain": BootOptions(),
    "off": BootOptions(secure_boot=False),
    "uki": BootOptions(uki=True),
    "banks": BootOptions(banks=("sha1", "sha256", "sha384")),
    "locality": BootOptions(locality=3),
    "quirks": BootOptions(
        quirks=frozenset(
            {LogQuirk.OPTION_ROM, LogQuirk.SP800_155, LogQuirk.NO_ACTION_OUTSIDE, LogQuirk.HCRTM}
        )
    ),
}


@dataclass(frozen=True)
class Told:
    """A log, and what the machine really measured."""

    raw: bytes
    quoted: dict[int, bytes]

    def verify(self, raw: bytes) -> EventLogClaims:
        """Verify *raw* against the machine's quote; raises what the verifier raises."""
        return event_log.verify(event_log.replay(event_log.parse(raw), Alg.SHA256), quoted=self.quoted)

    def refuses(self, raw: bytes) -> bool:
        """Tell whether *raw* is refused, in one of the two ways there are."""
        try:
            self.verify(raw)
        except (MalformedEvidence, EventLogRejected):
            return True
        return False

    def parts(self) -> tuple[bytes, list[bytes]]:
        """Return the first event and the bytes of each other."""
        starts = [event.start for event in replay.events(self.raw)]
        stops = [*starts[1:], len(self.raw)]
        pieces = [self.raw[a:b] for a, b in zip(starts, stops, strict=True)]
        return self.raw[: starts[0]], pieces

    def events(self) -> list[replay.Event]:
        """Return the events, read by the naive reader."""
        return list(replay.events(self.raw))


def of_builder(log: BootLog) -> Told:
    """Return a synthetic machine's."""
    return Told(log.serialise(), {i: value for i, value in log.pcrs().items() if i in QUOTED})


@cache
def every_log() -> dict[str, Told]:
    """Return all honest logs by name."""
    real = {
        f"{boot.machine}/{boot.name}": Told(
            boot.log, {i: value for i, value in boot.quoted("sha256").items() if i in QUOTED}
        )
        for boot in BOOTS
    }
    return real | {name: of_builder(boot_log(options)) for name, options in SYNTHETIC.items()}


LOGS = pytest.mark.parametrize("name", every_log())
SAME_SHAPE = {"n1/sb-on-again", "n1/sb-on-cmdline", "n1/sb-on-initrd", "n1/sb-on-kernel"}
SHAPES = pytest.mark.parametrize("name", [name for name in every_log() if name not in SAME_SHAPE])
"""Logs of different shape: what is slow need not be done to five that differ in a digest."""


def gain(honest: EventLogClaims, lied: EventLogClaims) -> str:
    """Return what *lied* claims to the liar's advantage; empty if nothing.

    Whoever decides by images, files, command lines or sections demands that all of them are allowed: more of them,
    or one of them without its text or name, is no advantage. Secure Boot must be told exactly as it was measured, or
    be no longer known to be on.
    """
    if lied.secure_boot.enabled or not lied.secure_boot.problems:
        for database in ("PK", "KEK", "db", "dbx"):
            if honest.secure_boot.database(database) != lied.secure_boot.database(database):
                return database
        for member in ("enabled", "measured", "problems", "debug", "setup_mode", "sbat", "variables"):
            if getattr(honest.secure_boot, member) != getattr(lied.secure_boot, member):
                return member
        authorities = Counter(lied.secure_boot.authorities)
        if Counter(honest.secure_boot.authorities) - authorities:
            return "an authority hidden"
        if lied.secure_boot.enabled and authorities - Counter(honest.secure_boot.authorities):
            return "an authority invented"
    for member in ("images", "files", "command_lines", "uki_sections"):
        told = Counter(item.digest for item in getattr(lied, member))
        if Counter(item.digest for item in getattr(honest, member)) - told:
            return member
    names = {(section.name, section.digest) for section in lied.uki_sections if section.name}
    if names - {(section.name, section.digest) for section in honest.uki_sections}:
        return "a section under another name"
    return ""


@LOGS
def test_the_truth_is_accepted(name: str) -> None:
    """Unchanged, every log verifies and repairs nothing."""
    told = every_log()[name]
    claims = told.verify(told.raw)
    assert claims.pcrs == QUOTED
    assert claims.repairs == ()
    assert claims.secure_boot.enabled is (not name.endswith("off"))
    assert gain(claims, claims) == ""


@LOGS
def test_dropped_events_are_noticed(name: str) -> None:
    """Without any one event that was extended, the log no longer leads to the quote."""
    told = every_log()[name]
    first, parts = told.parts()
    dropped = 0
    for i, event in enumerate(told.events()):
        if event.type == NO_ACTION:
            continue
        assert told.refuses(first + b"".join(parts[:i] + parts[i + 1 :])), f"event {i} of PCR {event.pcr}"
        dropped += 1
    assert dropped >= MUTATIONS_PER_CLASS


@LOGS
def test_duplicated_events_are_noticed(name: str) -> None:
    """Any one event twice, side by side or at the end."""
    told = every_log()[name]
    first, parts = told.parts()
    duplicated = 0
    for i, event in enumerate(told.events()):
        if event.type == NO_ACTION:
            continue
        assert told.refuses(first + b"".join([*parts[: i + 1], *parts[i:]])), f"event {i}, twice"
        assert told.refuses(first + b"".join([*parts, parts[i]])), f"event {i}, again at the end"
        duplicated += 2
    assert duplicated >= MUTATIONS_PER_CLASS


@SHAPES
def test_reordered_events_are_noticed(name: str) -> None:
    """Two events of one PCR in each other's place, unless they have the same digest."""
    told = every_log()[name]
    first, parts = told.parts()
    events = told.events()
    reordered = 0
    for i, one in enumerate(events):
        for j in range(i + 1, len(events)):
            other = events[j]
            if one.pcr != other.pcr or NO_ACTION in (one.type, other.type) or one.digests == other.digests:
                continue
            swapped = list(parts)
            swapped[i], swapped[j] = parts[j], parts[i]
            assert told.refuses(first + b"".join(swapped)), f"events {i} and {j} of PCR {one.pcr}"
            reordered += 1
    assert reordered >= MUTATIONS_PER_CLASS


@LOGS
def test_the_order_of_different_pcrs_is_not_measured_and_claims_nothing(name: str) -> None:
    """Neighbours of two PCRs may change places: nobody measures that, so nothing may rest on it."""
    told = every_log()[name]
    first, parts = told.parts()
    honest = told.verify(told.raw)
    events = told.events()
    for i in range(len(parts) - 1):
        if events[i].pcr == events[i + 1].pcr or NO_ACTION in (events[i].type, events[i + 1].type):
            continue
        swapped = [*parts[:i], parts[i + 1], parts[i], *parts[i + 2 :]]
        assert gain(honest, told.verify(first + b"".join(swapped))) == "", f"events {i} and {i + 1}"


DRIVERS = (0x80000004, 0x80000005, 0x80000008, 0x8000000A, 0x800000E1)
TYPES = (*EventType, 0x2, 0xF, 0x13, 0x8000000D, 0x800000E4, 0xFFFFFFFF)


@pytest.mark.threat("T67")
@SHAPES
def test_retyped_events_are_refused_or_gain_nothing(name: str) -> None:
    """Every event under every other type; in PCR 2, 4 and 7 only what changes no claim."""
    told = every_log()[name]
    first, parts = told.parts()
    honest = told.verify(told.raw)
    refused = 0
    for i, event in enumerate(told.events()):
        for kind in TYPES:
            if kind == event.type:
                continue
            lie = parts[i][:4] + struct.pack("<I", kind) + parts[i][8:]
            raw = first + b"".join([*parts[:i], lie, *parts[i + 1 :]])
            what = f"event {i} of PCR {event.pcr}: 0x{event.type:x} told as 0x{kind:x}"
            try:
                claims = told.verify(raw)
            except (MalformedEvidence, EventLogRejected):
                refused += 1
                continue
            assert kind != NO_ACTION, f"{what}: not extended, and yet it replays"
            expected = {2: DRIVERS, 4: (SEPARATOR, EventType.EFI_ACTION, 0x80000003)}.get(event.pcr, TYPES)
            assert kind in expected or f" has no place in PCR {event.pcr}" in " ".join(claims.flags), what
            assert event.pcr != 7 or claims.secure_boot.enabled is not True, what
            assert gain(honest, claims) == "", what
    assert refused >= MUTATIONS_PER_CLASS


@pytest.mark.threat("T67")
@pytest.mark.parametrize("name", SYNTHETIC)
def test_what_was_hashed_told_as_the_data_hides_nothing(name: str) -> None:
    """Every event told as every type, with the very bytes that its digest covers: an image as an action, say."""
    log = boot_log(SYNTHETIC[name])
    told = of_builder(log)
    honest = told.verify(told.raw)
    tried = 0
    for i, event in enumerate(log.events):
        if event.measured is None:
            continue
        for kind in TYPES:
            raw = log.retold(i, event_type=kind, data=event.measured).serialise()
            if not told.refuses(raw):
                what = f"event {i} of PCR {event.pcr} told as 0x{kind:x}"
                assert gain(honest, told.verify(raw)) == "", what
            tried += 1
    assert tried >= MUTATIONS_PER_CLASS


@SHAPES
def test_moved_events_are_noticed(name: str) -> None:
    """Every event told of every other PCR, of DRTM's and of none that there is."""
    told = every_log()[name]
    first, parts = told.parts()
    moved = 0
    for i, event in enumerate(told.events()):
        if event.type == NO_ACTION:
            continue
        for pcr in {*range(25), 0xFFFFFFFF} - {event.pcr}:
            lie = struct.pack("<I", pcr) + parts[i][4:]
            assert told.refuses(first + b"".join([*parts[:i], lie, *parts[i + 1 :]])), (
                f"event {i} in PCR {pcr}"
            )
            moved += 1
    assert moved >= MUTATIONS_PER_CLASS


@SHAPES
def test_oversized_events_are_refused(name: str) -> None:
    """An event that announces more, or less, than it has; counts and algorithms that are not there."""
    told = every_log()[name]
    first, parts = told.parts()
    refused = 0
    for i, event in enumerate(told.events()):
        at = len(parts[i]) - len(event.data) - 4
        for size in (
            len(event.data) + 1,
            len(event.data) + 0x10000,
            1 << 31,
            (1 << 32) - 1,
            *_less(event.data),
        ):
            lie = parts[i][:at] + struct.pack("<I", size) + parts[i][at + 4 :]
            assert told.refuses(first + b"".join([*parts[:i], lie, *parts[i + 1 :]])), (
                f"event {i}: size {size}"
            )
            refused += 1
        for count in (0, 4, 1 << 16, (1 << 32) - 1):
            lie = parts[i][:8] + struct.pack("<I", count) + parts[i][12:]
            assert told.refuses(first + b"".join([*parts[:i], lie, *parts[i + 1 :]])), (
                f"event {i}: {count} digests"
            )
            refused += 1
        for alg in (0, 5, 0xD, 0x12, 0xFFFF):
            lie = parts[i][:12] + struct.pack("<H", alg) + parts[i][14:]
            assert told.refuses(first + b"".join([*parts[:i], lie, *parts[i + 1 :]])), (
                f"event {i}: algorithm {alg}"
            )
            refused += 1
    assert refused >= MUTATIONS_PER_CLASS


def _less(data: bytes) -> Iterator[int]:
    if data:
        yield len(data) - 1


@SHAPES
def test_data_that_grew_are_refused_or_gain_nothing(name: str) -> None:
    """Bytes appended to an event's data, its size right and its digests kept."""
    told = every_log()[name]
    first, parts = told.parts()
    honest = told.verify(told.raw)
    refused = 0
    for i, event in enumerate(told.events()):
        at = len(parts[i]) - len(event.data) - 4
        for more in (b"\0", b"A", bytes(16), b"more " * 400):
            data = event.data + more
            lie = parts[i][:at] + struct.pack("<I", len(data)) + data
            raw = first + b"".join([*parts[:i], lie, *parts[i + 1 :]])
            what = f"event {i} of PCR {event.pcr}, {len(more)} bytes more"
            try:
                claims = told.verify(raw)
            except (MalformedEvidence, EventLogRejected):
                refused += 1
                continue
            # Old shims write one byte too many, which is flagged.
            assert event.pcr != 7 or (event.type == EventType.EFI_VARIABLE_AUTHORITY and len(more) == 1), what
            assert gain(honest, claims) == "", what
    assert refused >= MUTATIONS_PER_CLASS


@LOGS
def test_changed_digests_are_noticed(name: str) -> None:
    """One bit of the digest in the quoted bank, of every event."""
    told = every_log()[name]
    rng = random.Random(name)
    changed = 0
    for event in told.events():
        if event.type == NO_ACTION:
            continue
        raw = bytearray(told.raw)
        at = told.raw.index(event.digests["sha256"], event.start)
        raw[at + rng.randrange(32)] ^= 1 << rng.randrange(8)
        assert told.refuses(bytes(raw)), f"event of PCR {event.pcr} at {event.start}"
        changed += 1
    assert changed >= MUTATIONS_PER_CLASS


@SHAPES
def test_a_truncated_log_is_refused_at_every_byte(name: str) -> None:
    """N84. One cut passes: that before both ExitBootServices events, which some firmware leaves out; it is told.

    And that before NO_ACTION events at the end, which nobody measured.
    """
    told = every_log()[name]
    starts = [event.start for event in told.events()]
    measured = [event.type != NO_ACTION for event in told.events()]
    unmeasured = {starts[i] for i in range(len(starts)) if not any(measured[i:])}
    exits = next(e.start for e in told.events() if e.data == b"Exit Boot Services Invocation")
    cuts = range(len(told.raw)) if len(told.raw) < 8000 else sorted({*starts, *range(0, len(told.raw), 7)})
    for cut in cuts:
        if cut == exits:
            assert len(told.verify(told.raw[:cut]).repairs) == 2
            continue
        assert told.refuses(told.raw[:cut]) is (cut not in unmeasured), f"{cut} of {len(told.raw)} bytes"


@LOGS
def test_a_flipped_bit_is_refused_or_gains_nothing(name: str) -> None:
    """Any single bit: types, sizes, digests, data."""
    told = every_log()[name]
    honest = told.verify(told.raw)
    rng = random.Random(name)
    refused = 0
    for _ in range(400):
        raw = bytearray(told.raw)
        where = rng.randrange(len(raw))
        raw[where] ^= 1 << rng.randrange(8)
        try:
            claims = told.verify(bytes(raw))
        except (MalformedEvidence, EventLogRejected):
            refused += 1
            continue
        assert gain(honest, claims) == "", f"byte {where}"
    assert refused >= MUTATIONS_PER_CLASS


@pytest.mark.parametrize("label", [b"", b"grub_cmd: "])
@pytest.mark.parametrize(
    "line", ["root=evil\0".encode("utf-16-le"), b"/vmlinuz root=evil", b"(hd0)/vmlinuz root=evil"]
)
def test_a_command_line_is_one_under_any_label(line: bytes, label: bytes) -> None:
    """GRUB's and systemd-boot's, in PCR 8, told as a command of GRUB, with a byte more, or as a separator."""
    at = boot_log().where(pcr=8)[0]
    log = boot_log().inserted(at, Event(pcr=8, type=EventType.IPL, data=line))
    told = of_builder(log)
    honest = told.verify(told.raw)
    assert log.events[at].digest("sha256") in {found.digest for found in honest.command_lines}
    for kind in TYPES:
        lie = log.retold(at, event_type=kind, data=label + line + b"\0")
        assert told.refuses(lie.serialise()) or gain(honest, told.verify(lie.serialise())) == "", hex(kind)


LABELS = (b"grub_cmd: ", b"kernel_cmdline: ", b"module_cmdline: ", b"grub_kernel_cmdline ", b"grub_cmd ", b"")


def stranger(rng: random.Random) -> Event:
    """Return something that should not have been measured, and was."""
    line = f"/vmlinuz init=/bin/sh n={rng.randrange(99)}"
    sixteen = f"root=evil{rng.randrange(9)}\0".encode("utf-16-le")
    return rng.choice(
        [
            ipl(8, f"kernel_cmdline: {line}", line.encode()),
            ipl(9, "/evil", b"another file"),
            image(4, "\\EFI\\evil.efi", line.encode() * 9),
            image(2, "rom", b"driver" * 40, event_type=EventType.EFI_BOOT_SERVICES_DRIVER),
            Event(pcr=7, type=EventType.EFI_VARIABLE_AUTHORITY, data=variable(SHIM, "MokListRT", ROGUE)),
            Event(pcr=7, type=EventType.EFI_VARIABLE_AUTHORITY, data=variable(DATABASE, "db", ROGUE)),
            Event(pcr=8, type=EventType.IPL, data=sixteen),
            Event(pcr=12, type=EventType.IPL, data=sixteen),
        ]
    )


ROGUE = SHIM.bytes_le + secure_boot_certificate("Somebody else")


def lied_about(log: BootLog, rng: random.Random) -> BootLog:
    """Return *log* with some events told as anything that the liar can think of, digests kept."""
    lie = log
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(log.events))
        event = log.events[at]
        hashed = event.data if event.measured is None else event.measured
        data = rng.choice(
            [
                event.data,
                hashed,
                hashed + b"\0",
                rng.choice(LABELS) + hashed + rng.choice([b"", b"\0"]),
                rng.choice(LABELS) + b"set timeout=0\0",
                rng.choice(log.events).data,
                b"",
                bytes(4),
            ]
        )
        lie = lie.retold(at, event_type=rng.choice([event.type, rng.choice(TYPES)]), data=data)
    for _ in range(rng.randrange(3)):
        donor = rng.choice(log.events)
        lie = lie.inserted(
            rng.randrange(len(log.events)), Event(pcr=donor.pcr, type=EventType.NO_ACTION, data=donor.data)
        )
    return lie


@pytest.mark.parametrize("seed", range(40))
def test_several_lies_at_once_gain_nothing(seed: int) -> None:
    """Strange things were measured, and are told in up to five wrong ways together: what is accepted hides none."""
    rng = random.Random(seed)
    log = boot_log(BootOptions(seed=seed, uki=rng.random() < 0.3, secure_boot=rng.random() < 0.8))
    for _ in range(rng.randrange(4)):
        log = log.inserted(rng.randrange(log.where(pcr=7)[-1] + 1, len(log.events)), stranger(rng))
    told = of_builder(log)
    honest = told.verify(told.raw)
    for _ in range(25):
        lie = lied_about(log, rng)
        if not told.refuses(lie.serialise()):
            assert gain(honest, told.verify(lie.serialise())) == ""


BANKS = ("sha1", "sha256")
MACHINES: dict[str, Callable[[int], BootOptions]] = {
    "grub": lambda seed: BootOptions(seed=seed, banks=BANKS, command_line=f"root=/dev/sd{seed}"),
    "uki": lambda seed: BootOptions(seed=seed, banks=BANKS, uki=True, kernel=f"6.{seed}"),
    "off": lambda seed: BootOptions(seed=seed, banks=BANKS, secure_boot=False),
}


@pytest.mark.parametrize("how", Tampering)
def test_every_tampering_is_refused_on_every_machine(how: Tampering) -> None:
    """N82-N89, N94, N95, on more than twenty machines of three kinds."""
    refused = 0
    for kind in MACHINES.values():
        for seed in range(7):
            log = boot_log(kind(seed))
            told = of_builder(log)
            assert told.refuses(tampered(log, how)), f"seed {seed}"
            refused += 1
    assert refused >= MUTATIONS_PER_CLASS


def test_an_ignored_type_appended_anywhere_gains_nothing() -> None:
    """N88: EV_NO_ACTION events of the liar, with the data of variables and images, at every place."""
    told = every_log()["plain"]
    first, parts = told.parts()
    honest = told.verify(told.raw)
    tried = 0
    for donor in (event for event in told.events() if event.pcr in (4, 7)):
        lie = (
            struct.pack("<IIIH", donor.pcr, NO_ACTION, 1, 0xB)
            + bytes(32)
            + struct.pack("<I", len(donor.data))
            + donor.data
        )
        for i in range(0, len(parts) + 1, 3):
            raw = first + b"".join([*parts[:i], lie, *parts[i:]])
            if not told.refuses(raw):
                assert gain(honest, told.verify(raw)) == ""
            tried += 1
    assert tried >= MUTATIONS_PER_CLASS


@pytest.mark.parametrize("defect", LogDefect)
@pytest.mark.parametrize("uki", [False, True])
def test_what_was_measured_and_is_wrong_is_never_secure_boot(defect: LogDefect, uki: bool) -> None:
    """N90-N93, N96: the log replays, and is refused or says no to Secure Boot; never yes."""
    for revoked in (1, 3, 200):
        told = of_builder(boot_log(BootOptions(defect=defect, uki=uki, revoked=revoked)))
        if told.refuses(told.raw):
            continue
        state = told.verify(told.raw).secure_boot
        assert state.enabled is None
        assert state.problems


@pytest.mark.parametrize("quirk", LogQuirk)
def test_what_honest_machines_do_is_accepted(quirk: LogQuirk) -> None:
    """No quirk of the field is refused; padding only where it was asked for."""
    secure_boot = quirk is not LogQuirk.SECURE_BOOT_EMPTY
    told = of_builder(boot_log(BootOptions(quirks=frozenset({quirk}), secure_boot=secure_boot)))
    if quirk in PADDING:
        assert told.refuses(told.raw)
        parsed = event_log.parse(told.raw, log_padding=True)
        claims = event_log.verify(event_log.replay(parsed, Alg.SHA256), quoted=told.quoted)
    else:
        claims = told.verify(told.raw)
    assert claims.secure_boot.enabled is (True if secure_boot else None)
    assert bool(claims.repairs) is (quirk is LogQuirk.NO_EXIT_BOOT_SERVICES)


TALOS = ("enter-initrd", "leave-initrd", "enter-machined", "start-the-world")


def test_phases_of_a_boot_are_told_and_nothing_else_passes_for_one() -> None:
    """PCR 11 grows after the log has ended: by known phases, in their order, from the first on."""
    for count in range(1, 5):
        told = of_builder(boot_log(BootOptions(uki=True, phases=TALOS[:count])))
        assert told.verify(told.raw).phases == TALOS[:count]
    for phases in (
        TALOS[1:],
        (*TALOS, "more"),
        TALOS[::-1],
        ("evil",),
        (*TALOS[:2], "evil"),
        (*TALOS[:1], *TALOS),
    ):
        told = of_builder(boot_log(BootOptions(uki=True, phases=phases)))
        assert told.refuses(told.raw), phases
