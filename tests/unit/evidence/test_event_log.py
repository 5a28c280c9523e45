"""Event logs: what is believed, what is refused, and that nothing else decides (N82-N96)."""

from __future__ import annotations

import contextlib
import hashlib
import struct
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attestation.errors import EventLogRejected, MalformedEvidence
from attestation.evidence import event_log
from attestation.evidence.event_log import (
    Covers,
    EventLogClaims,
    EventType,
    ReplayedLog,
    SecureBootState,
    boot_chain,
    uefi,
)
from attestation.evidence.event_log import format as log_format
from attestation.tpm import Alg
from attestation_testing import (
    BootLog,
    BootOptions,
    Event,
    LogDefect,
    LogQuirk,
    Tampering,
    boot_log,
    tampered,
)
from attestation_testing import event_logs as kit

THREE = ("sha1", "sha256", "sha384")


def replayed(data: bytes, bank: int = Alg.SHA256) -> ReplayedLog:
    return event_log.replay(event_log.parse(data), bank)


def verified(
    log: BootLog, *, data: bytes | None = None, pcrs: Iterable[int] = range(16), bank: str = "sha256"
) -> EventLogClaims:
    """Verify *data* (the log itself, if not given) against what the machine of *log* measured."""
    quoted = {pcr: value for pcr, value in log.pcrs(bank).items() if pcr in pcrs}
    alg = {"sha1": Alg.SHA1, "sha256": Alg.SHA256, "sha384": Alg.SHA384}[bank]
    return event_log.verify(replayed(log.serialise() if data is None else data, alg), quoted=quoted)


def refused(
    log: BootLog, match: str, *, data: bytes | None = None, pcrs: Iterable[int] = range(16)
) -> EventLogRejected:
    with pytest.raises(EventLogRejected, match=match) as caught:
        verified(log, data=data, pcrs=pcrs)
    return caught.value


def malformed(data: bytes, match: str = "event log") -> None:
    with pytest.raises(MalformedEvidence, match=match):
        event_log.parse(data)


def options(**fields: object) -> BootLog:
    return boot_log(BootOptions(**fields))  # type: ignore[arg-type]


def with_quirk(*quirks: LogQuirk, **fields: object) -> BootLog:
    return options(quirks=frozenset(quirks), **fields)


def with_event(log: BootLog, event: Event) -> BootLog:
    """Let the machine measure one thing more, and tell it."""
    return log.with_events((*log.events, event))


GOOD = options()


# ---------------------------------------------------------------- what is believed


@pytest.mark.parametrize("bank", ["sha256", "sha384"])
def test_a_good_boot_is_believed(bank: str) -> None:
    """Secure Boot, images, command line, files: each from a digest that leads to the quoted PCRs."""
    log = options(banks=THREE)
    claims = verified(log, bank=bank)
    assert (claims.sha256, claims.repairs, claims.phases, claims.flags) == (
        hashlib.sha256(log.serialise()).hexdigest(),
        (),
        (),
        (),
    )
    assert claims.bank == (Alg.SHA256 if bank == "sha256" else Alg.SHA384)
    state = claims.secure_boot
    assert (state.enabled, state.measured, state.problems, state.debug) == (True, "on", (), False)
    certificates = {kit.secure_boot_certificate(n) for n in BootOptions().databases}
    assert state.db_sha256 == {hashlib.sha256(c).hexdigest() for c in certificates}
    assert state.dbx_sha256 == {kit.revoked_hash(i).hex() for i in range(3)}
    assert len(state.database("PK").sha256) == len(state.database("KEK").sha256) == 1
    assert [a.name for a in state.authorities] == ["db", "MokListRT"]
    assert state.authorities[0].subject == "Third Party UEFI CA"
    assert state.authorities[1].sha256 == (
        hashlib.sha256(kit.secure_boot_certificate("Distribution Secure Boot CA")).hexdigest()
    )
    assert state.sbat == BootOptions().sbat
    assert [(i.kind, i.path) for i in claims.images] == [
        ("boot-loader", "\\EFI\\BOOT\\BOOTX64.EFI"),
        ("boot-loader", "\\EFI\\BOOT\\grubx64.efi"),
        ("kernel", ""),
    ]
    assert [m.text for m in claims.command_lines] == ["/vmlinuz root=/dev/sda2 ro quiet"]
    assert [m.text for m in claims.kernels] == ["/vmlinuz"]
    assert [m.text for m in claims.initrds] == ["/initrd.img"]
    assert len(claims.files) == 3
    assert claims.uki_sections == ()
    assert all(e.pcr in claims.pcrs for e in claims.events)


def test_a_unified_kernel_image() -> None:
    """Sections with measured names, the initrd of the kernel's stub, one image."""
    claims = verified(options(uki=True))
    assert [s.name for s in claims.uki_sections] == [".linux", ".osrel", ".cmdline", ".initrd"]
    assert claims.uki_sections[2].digest == hashlib.sha256(b"root=/dev/sda2 ro quiet").digest()
    assert [m.text for m in claims.initrds] == ["Linux initrd"]
    assert [i.kind for i in claims.images] == ["boot-loader"]
    assert claims.command_lines == ()


def test_what_was_not_quoted_is_not_claimed() -> None:
    """Each claim needs its PCR."""
    claims = verified(GOOD, pcrs=[0])
    assert claims.secure_boot.enabled is None
    assert claims.secure_boot.problems == ("PCR 7 was not quoted",)
    assert claims.secure_boot.dbx_sha256 == frozenset()
    empty = (
        claims.images,
        claims.command_lines,
        claims.kernels,
        claims.initrds,
        claims.files,
        claims.uki_sections,
    )
    assert not any(empty)
    assert {e.pcr for e in claims.events} == {0}
    assert [i.pcr for i in verified(with_quirk(LogQuirk.OPTION_ROM), pcrs=[2]).images] == [2]


def test_pcr_10_is_not_of_this_log() -> None:
    """IMA extends it: a quote of it neither refuses a log nor is claimed; of it alone nothing is explained."""
    replay = replayed(GOOD.serialise())
    quoted = {**GOOD.pcrs(), 10: b"\x55" * 32}
    assert 10 not in event_log.verify(replay, quoted=quoted).pcrs
    for nothing in ({10: b"\x55" * 32}, {}):
        with pytest.raises(EventLogRejected, match="no PCR"):
            event_log.verify(replay, quoted=nothing)


@pytest.mark.parametrize(
    "quirk", [q for q in LogQuirk if q not in (LogQuirk.PADDED_ONES, LogQuirk.PADDED_ZEROS)]
)
def test_what_honest_machines_do_is_believed(quirk: LogQuirk) -> None:
    """Odd and honest logs lead to their PCRs."""
    log = with_quirk(quirk, secure_boot=quirk is not LogQuirk.SECURE_BOOT_EMPTY, locality=None)
    claims = verified(log)
    assert bool(claims.repairs) == (quirk is LogQuirk.NO_EXIT_BOOT_SERVICES)
    assert claims.secure_boot.enabled is (None if quirk is LogQuirk.SECURE_BOOT_EMPTY else True)


def test_quirks_are_reported() -> None:
    """What decides nothing is seen."""
    said = {
        LogQuirk.DMA_PROTECTION_DISABLED: "DMA protection",
        LogQuirk.SHIM_LAST_BYTE: "one byte too many",
        LogQuirk.NO_ACTION_OUTSIDE: "0xffffffff",
        LogQuirk.EXIT_FAILS_ONCE: "failed before it was called",
        LogQuirk.BOOT_DEVICES_OMITTED: "EV_OMIT_BOOT_DEVICE_EVENTS has no place in PCR 4",
        LogQuirk.ACTION_IN_PCR_2: "EV_ACTION has no place in PCR 2",
        LogQuirk.IPL_IN_PCR_4: "EV_IPL has no place in PCR 4",
    }
    for quirk, text in said.items():
        assert any(text in flag for flag in verified(with_quirk(quirk)).flags)
    assert verified(with_quirk(LogQuirk.DMA_PROTECTION_DISABLED)).secure_boot.dma_protection_disabled
    before = verified(with_quirk(LogQuirk.AUTHORITY_BEFORE_SEPARATOR)).secure_boot.authorities
    assert [a.after_separator for a in before] == [False, True, True]


def test_secure_boot_off_is_known_to_be_off() -> None:
    """Off is a claim like on; setup mode is seen."""
    state = verified(options(secure_boot=False)).secure_boot
    assert (state.enabled, state.measured, state.setup_mode) == (False, "off", True)


@pytest.mark.parametrize("padding", [LogQuirk.PADDED_ZEROS, LogQuirk.PADDED_ONES])
@pytest.mark.parametrize("crypto_agile", [True, False])
def test_padding_is_an_option_and_reported(padding: LogQuirk, crypto_agile: bool) -> None:
    """Bytes behind the last event are refused unless somebody says otherwise, and then reported."""
    data = with_quirk(padding).serialise() if crypto_agile else sha1_log() + with_quirk(padding).padding
    malformed(data + b"\xff")
    with pytest.raises(MalformedEvidence):
        event_log.parse(data + b"\x01", log_padding=True)
    if padding is LogQuirk.PADDED_ONES or crypto_agile:
        malformed(data)
    log = event_log.parse(data, log_padding=True)
    assert log.padding_bytes == 512
    replay = event_log.replay(log, log.banks[0])
    assert "log-padding" in {f.code for f in replay.findings}
    assert event_log.parse(GOOD.serialise(), log_padding=True).padding_bytes == 0


def sha1_log() -> bytes:
    """Make a log of the SHA-1 format: one separator."""
    data = bytes(4)
    return struct.pack("<II20sI", 7, 4, hashlib.sha1(data).digest(), 4) + data


@pytest.mark.parametrize(
    ("phases", "words"),
    [
        (("enter-initrd",), ("enter-initrd",)),
        (("enter-initrd", "leave-initrd", "enter-machined"), None),
        (("enter-initrd", "leave-initrd", "enter-machined", "start-the-world"), None),
        (("enter-initrd", "leave-initrd", "sysinit", "ready"), None),
    ],
)
def test_phases_of_a_boot_are_known(phases: tuple[str, ...], words: tuple[str, ...] | None) -> None:
    """Talos and systemd extend PCR 11 after the log has ended: in known words, in order, and told."""
    log = options(uki=True)
    later = tuple(Event(pcr=11, type=EventType.IPL, data=p.encode()) for p in phases)
    machine = replace(log, unlogged=later)
    assert verified(machine, data=log.serialise()).phases == (words or phases)
    other = replace(log, unlogged=later[::-1])
    if len(phases) > 1:
        refused(other, "PCR 11", data=log.serialise())
    assert refused(replace(log, unlogged=(separator(11),)), "PCR 11", data=log.serialise()).pcrs == (11,)


def separator(pcr: int) -> Event:
    return kit.separator(pcr)


@pytest.mark.parametrize(
    "left_out",
    [
        ("Invocation", "Returned with Success"),
        ("Invocation", "Returned with Failure"),
        ("Invocation", "Returned with Failure", "Returned with Success"),
    ],
)
def test_exit_boot_services_that_firmware_left_out(left_out: tuple[str, ...]) -> None:
    """Three sequences are tried, and the one that was needed is reported; nothing else repairs PCR 5."""
    log = with_quirk(LogQuirk.NO_EXIT_BOOT_SERVICES)
    unlogged = tuple(kit.action(5, f"Exit Boot Services {text}") for text in left_out)
    claims = verified(replace(log, unlogged=unlogged), data=log.serialise())
    assert claims.repairs == tuple(f"PCR 5: Exit Boot Services {t} is not in the log" for t in left_out)
    assert refused(replace(log, unlogged=unlogged[:1]), "PCR 5", data=log.serialise()).pcrs == (5,)


def test_what_systemd_extends_after_the_log() -> None:
    """Systemd 261 closes PCR 0-7, 9, 12-14 with a word: known, told, alone or after ExitBootServices."""
    word = b"os-separator"
    pcrs = (0, 1, 2, 3, 4, 5, 6, 7, 9, 12, 13, 14)
    closed = tuple(Event(pcr=pcr, type=EventType.SEPARATOR, data=word) for pcr in pcrs)
    machine = replace(GOOD, unlogged=closed)
    claims = verified(machine, data=GOOD.serialise())
    assert claims.repairs == tuple(f"PCR {pcr}: os-separator is not in the log" for pcr in pcrs)
    assert claims.secure_boot.enabled
    short = with_quirk(LogQuirk.NO_EXIT_BOOT_SERVICES)
    both = replace(short, unlogged=(*short.unlogged, closed[5]))
    assert len(verified(both, data=short.serialise()).repairs) == 3
    for pcr in (8, 11, 15):
        other = replace(GOOD, unlogged=(Event(pcr=pcr, type=EventType.SEPARATOR, data=word),))
        assert refused(other, f"PCR {pcr}", data=GOOD.serialise()).pcrs == (pcr,)
    refused(replace(GOOD, unlogged=closed[:1] * 2), "PCR 0", data=GOOD.serialise())


# ---------------------------------------------------------------- N82-N96


@pytest.mark.threat("T64")
@pytest.mark.parametrize("how", list(Tampering))
def test_a_log_that_lies_is_refused(how: Tampering) -> None:
    """N82-N89, N94, N95: each lie, told about a machine that measured the truth."""
    fields: dict[str, object] = {"banks": THREE}
    if how in (Tampering.LOCALITY_TWICE, Tampering.LOCALITY_LATE, Tampering.LOCALITY_IN_PCR_1):
        fields["locality"] = 3
    log = options(**fields)
    with pytest.raises((EventLogRejected, MalformedEvidence)):
        verified(log, data=tampered(log, how))


@pytest.mark.threat("T64")
def test_n82_no_spec_id() -> None:
    """A log without its first event is malformed; one of the SHA-1 format can be read and proves nothing."""
    malformed(tampered(GOOD, Tampering.NO_SPEC_ID))
    replay = replayed(sha1_log(), Alg.SHA1)
    with pytest.raises(EventLogRejected, match="SHA-1"):
        event_log.verify(replay, quoted=dict(replay.values))


@pytest.mark.threat("T65")
def test_n83_huge_sizes_are_compared_before_they_are_used() -> None:
    """Count of algorithms, digests and sizes of events, each as large as it can be."""
    good = GOOD.serialise()
    first = len(kit.first_event(GOOD.banks))
    for offset in (28, 32 + 24, first + 8, first + 12 + 2 + 32):
        malformed(good[:offset] + b"\xff\xff\xff\xff" + good[offset + 4 :])
    # In the SHA-1 format nothing else would notice.
    malformed(sha1_log()[:28] + b"\xff\xff\xff\xff" + sha1_log()[32:])


def test_n84_truncated_at_every_byte() -> None:
    """Cut anywhere, a log is malformed, or a shorter log that no longer leads to the quote."""
    log = options(uki=True, revoked=1)
    good = log.serialise()
    leave = sum(len(event.serialise(log.banks)) for event in log.events[-2:])  # ExitBootServices is repaired
    ends = {len(kit.first_event(log.banks))}
    for event in log.events:
        ends.add(max(ends) + len(event.serialise(log.banks)))
    for cut in range(len(good)):
        if cut in ends and cut < max(ends) - leave:
            refused(log, "does not lead", data=good[:cut])
        elif cut in ends:
            with contextlib.suppress(EventLogRejected):
                assert verified(log, data=good[:cut]).repairs
        else:
            malformed(good[:cut])


def test_n85_algorithm_missing_in_one_event() -> None:
    """A log in which an event lacks a digest is no evidence in any bank, and cannot be replayed in that one."""
    log = options(banks=THREE)
    data = tampered(log, Tampering.ALGORITHM_MISSING)
    assert refused(log, "each announced bank", data=data, pcrs=[7]).pcrs == ()
    with pytest.raises(MalformedEvidence, match="no digest of bank sha384"):
        replayed(data, Alg.SHA384)


@pytest.mark.parametrize("pcr", [0, 1])
@pytest.mark.parametrize("at", [0, 2])
def test_n86_startup_locality(pcr: int, at: int) -> None:
    """It counts once, in PCR 0, before PCR 0 is extended, with a locality that means something."""
    first = options(locality=3)
    assert verified(first).replayed.startup_locality == 3
    again = first.inserted(at + 1, kit.startup_locality(3, pcr=pcr))
    refused(again, "StartupLocality")
    refused(options(locality=2), "does not lead")
    refused(replace(options(locality=2), start=0), "StartupLocality 2")
    verified(again, pcrs=[1, 2, 3, 4, 5, 6, 7])


def test_hcrtm_must_be_first_and_agree() -> None:
    """An H-CRTM event starts PCR 0 at 4 if it is the first there; it contradicts any other locality."""
    event = Event(pcr=0, type=EventType.EFI_HCRTM_EVENT, data=b"HCRTM", measured=b"code")
    late = GOOD.inserted(1, event)
    refused(late, "EV_EFI_HCRTM_EVENT after")
    verified(late, pcrs=[7])
    twice = replace(GOOD.inserted(0, event).inserted(1, event), start=4)
    assert verified(twice).replayed.startup_locality == 4
    for locality, agrees in ((4, True), (3, False)):
        both = replace(twice.inserted(0, kit.startup_locality(locality)), start=4)
        if agrees:
            verified(both)
        else:
            refused(both, "means 4")


@pytest.mark.parametrize("pcr", [2, 4, 7])
def test_n87_events_retyped(pcr: int) -> None:
    """In PCR 2, 4 and 7 no event becomes one of which more is claimed, by its type or by data beside its digest."""
    log = with_quirk(LogQuirk.OPTION_ROM)
    good = verified(log)
    for at in log.where(pcr=pcr):
        for event_type in EventType:
            told = log.retold(at, event_type=event_type).serialise()
            if event_type == log.events[at].type:
                continue
            try:
                claims = verified(log, data=told)
            except EventLogRejected:
                continue
            # A driver is a driver of another kind, an action that was measured is an image of that digest, a
            # database becomes an authority: never more trust than before.
            assert {i.digest for i in claims.images} >= {i.digest for i in good.images}
            assert (claims.secure_boot.enabled is not True) == (pcr == 7)


def test_n88_an_own_event_of_an_ignored_type() -> None:
    """Somebody extends PCR 2, 4 or 7 and tells it truly, with a type that readers might skip.

    In PCR 7 it refuses the log. In PCR 2 and 4 shipped machines do so: it is told, and it is something that was
    loaded, whatever it calls itself; but a type whose data its digest must cover, and does not, is a lie there, too.
    """
    for pcr in (2, 4, 7):
        for event_type in (EventType.EVENT_TAG, EventType.IPL, 0x12, EventType.ACTION, 0x12345678):
            log = with_event(GOOD, Event(pcr=pcr, type=event_type, data=b"own", measured=b"anything"))
            verified(log, pcrs=set(range(16)) - {pcr})
            if pcr == 7:
                assert refused(log, "no place in PCR 7").pcrs == (7,)
            elif event_type == EventType.ACTION:
                assert refused(log, "not that of its data").pcrs == (pcr,)
            else:
                claims = verified(log)
                assert any(f"has no place in PCR {pcr}" in flag for flag in claims.flags)
                (own,) = [i for i in claims.images if i.kind == "image"]
                assert (own.pcr, own.digest, own.path) == (pcr, hashlib.sha256(b"anything").digest(), "")
    short = with_event(GOOD, Event(pcr=4, type=0x12, data=b"BOOT ATTEMPTS OMITTED"))
    assert [i.digest for i in verified(short).images] == [i.digest for i in verified(GOOD).images]


def test_n89_variable_data_changed() -> None:
    """Data that their digest does not cover are no data: in PCR 7 the log is refused."""
    for how in (Tampering.DATA_CHANGED, Tampering.DBX_SHORTENED):
        assert refused(GOOD, "not that of its data", data=tampered(GOOD, how)).pcrs == (7,)


@pytest.mark.parametrize(
    ("defect", "match"),
    [
        (LogDefect.TWO_SEPARATORS, "second separator"),
        (LogDefect.SEPARATOR_OTHER, "with data 5742434c"),
        (LogDefect.VARIABLE_AFTER_SEPARATOR, "after the separator"),
        (LogDefect.VARIABLE_TWICE, "measured twice"),
        (LogDefect.STRANGE_IN_PCR_7, "no place in PCR 7"),
        (LogDefect.LIST_TOO_LONG, "signature list"),
        (LogDefect.LIST_TOO_SHORT, "signature list"),
        (LogDefect.LIST_HEADER_TOO_LONG, "signature list"),
        (LogDefect.SIGNATURE_SIZE_ZERO, "signature list"),
        (LogDefect.SIGNATURE_SIZE_HUGE, "signature list"),
        (LogDefect.VARIABLE_NAME_HUGE, "UEFI variable"),
        (LogDefect.VARIABLE_DATA_HUGE, "UEFI variable"),
    ],
)
def test_n90_n91_n96_a_pcr_7_that_no_firmware_makes(defect: LogDefect, match: str) -> None:
    """What breaks the grammar of PCR 7 refuses the log where PCR 7 is quoted; elsewhere nothing is claimed of it."""
    log = options(defect=defect)
    assert refused(log, match).pcrs == (7,)
    assert verified(log, pcrs=[0, 4]).secure_boot.enabled is None


@pytest.mark.threat("T64")
@pytest.mark.parametrize(
    ("defect", "match"),
    [
        (LogDefect.SEPARATOR_MISSING, "no separator"),
        (LogDefect.SEPARATOR_ERROR, "reported an error"),
        (LogDefect.NO_AUTHORITY, "nothing was accepted"),
        (LogDefect.NO_DB, "no db"),
        (LogDefect.NO_PK, "no PK"),
        (LogDefect.NO_KEK, "no KEK"),
        (LogDefect.DEBUG_MODE, "debugger"),
        (LogDefect.SECURE_BOOT_TWO_BYTES, "neither 0 nor 1"),
        (LogDefect.SECURE_BOOT_OTHER, "neither 0 nor 1"),
    ],
)
def test_n92_n93_secure_boot_that_is_not_on(defect: LogDefect, match: str) -> None:
    """A variable that says 1 is not enough: something is missing, or wrong, and is told."""
    state = verified(options(defect=defect)).secure_boot
    assert state.enabled is None
    assert any(match in problem for problem in state.problems)
    assert state.debug == (defect is LogDefect.DEBUG_MODE)


@pytest.mark.threat("T64")
def test_n94_only_the_quoted_bank_counts() -> None:
    """A log that is true in the SHA-1 bank and invented in the quoted one is refused."""
    log = options(banks=THREE)
    data = tampered(log, Tampering.SHA1_ONLY_TRUE)
    assert replayed(data, Alg.SHA1).values[7] == log.pcrs("sha1")[7]
    refused(log, "does not lead", data=data)
    with pytest.raises(EventLogRejected, match="SHA-1"):
        verified(log, data=data, bank="sha1")


def test_n95_events_removed_moved_doubled() -> None:
    """Each event matters: without it, twice, or with its neighbour before it, the log leads elsewhere."""
    for at in range(len(GOOD.events)):
        pcr = GOOD.events[at].pcr
        for changed in (GOOD.dropped(at), GOOD.duplicated(at)):
            assert refused(GOOD, "does not lead", data=changed.serialise()).pcrs == (pcr,)
    images = GOOD.where(pcr=4)
    refused(GOOD, "PCR 4", data=GOOD.swapped(images[-1], images[-2]).serialise())


def test_a_pcr_without_events_holds_its_start_value() -> None:
    """Otherwise something was extended of which the log says nothing."""
    for pcr in (6, 12, 15, 17, 22, 23):
        machine = replace(GOOD, unlogged=(Event(pcr=pcr, type=EventType.IPL, data=b"later"),))
        assert refused(machine, f"PCR {pcr}", data=GOOD.serialise(), pcrs=range(24)).pcrs == (pcr,)
    with pytest.raises(EventLogRejected, match="24"):
        event_log.verify(replayed(GOOD.serialise()), quoted={24: bytes(32)})


# ---------------------------------------------------------------- properties


@pytest.mark.threat("T65")
@given(st.binary(max_size=512))
def test_parse_fails_in_one_way_only(data: bytes) -> None:
    """Whatever arrives, a caller sees a log or MalformedEvidence; every log can be replayed or is said not to be."""
    for prefix in (b"", kit.first_event(("sha256",)), GOOD.serialise()):
        with contextlib.suppress(MalformedEvidence):
            log = event_log.parse(prefix + data)
            replay = event_log.replay(log, log.banks[0])
            assert len(replay.events) == len(log.records)
            assert all(isinstance(e.text, str) for e in replay.events)


SMALL = options(revoked=1, databases=(), key_exchange_keys=(), seed=1)


@pytest.mark.threat("T64")
@pytest.mark.parametrize("log", [SMALL, options(uki=True, secure_boot=False)], ids=["grub", "uki"])
def test_no_flipped_bit_is_believed(log: BootLog) -> None:
    """With any single bit changed a log is refused, or claims no more: nothing measured can be told otherwise."""
    good = log.serialise()
    want = verified(log)
    for where in range(0, len(good), 3):
        data = bytearray(good)
        data[where] ^= 1 << where % 8
        try:
            found = verified(log, data=bytes(data))
        except (MalformedEvidence, EventLogRejected):
            continue
        assert certain(found) == certain(want)
        # What could be hidden is listed as something that could be anything.
        assert {i.digest for i in found.images} >= {i.digest for i in want.images}
        assert {m.digest for m in found.command_lines} >= {m.digest for m in want.command_lines}
        assert {(m.text, m.digest) for m in found.command_lines if m.text} <= {
            (m.text, m.digest) for m in want.command_lines
        }
        assert {(s.name, s.digest) for s in found.uki_sections if s.name} <= {
            (s.name, s.digest) for s in want.uki_sections
        }


def certain(claims: EventLogClaims) -> tuple[object, ...]:
    """Return what must stay the same whatever the log calls things."""
    state = claims.secure_boot
    return (
        (state.enabled, state.problems, state.debug, state.sbat, state.authorities),
        [state.database(name).sha256 for name in ("PK", "KEK", "db", "dbx")],
        [m.digest for m in claims.files],
        [(e.pcr, e.digest) for e in claims.events],
    )


# ---------------------------------------------------------------- the format


def spec_id(
    *, algorithms: Mapping[int, int] | None = None, count: int | None = None, body: bytes | None = None
) -> bytes:
    pairs = list((algorithms or {0x0B: 32}).items())
    made = (
        b"Spec ID Event03\0"
        + struct.pack("<IBBBBI", 0, 0, 2, 0, 2, len(pairs) if count is None else count)
        + b"".join(struct.pack("<HH", *pair) for pair in pairs)
        + b"\0"
    )
    made = made if body is None else body
    return struct.pack("<II20xI", 0, 3, len(made)) + made


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (b"", "are no event"),
        (bytes(31), "are no event"),
        (bytes(log_format.MAX_LOG_BYTES + 1), "at most"),
        (spec_id(count=0), "0 algorithms"),
        (spec_id(count=9), "9 algorithms"),
        (spec_id(count=8), "ends before its algorithms"),
        (spec_id(algorithms={0x0B: 31}), "with 31 bytes"),
        (spec_id(algorithms={0x27: 32}), "unknown hash algorithm"),
        (spec_id(body=b"Spec ID Event03\0" + bytes(11)), "27 bytes"),
        (spec_id()[:-1] + b"\x01", "1 bytes announced, 0"),
        (b"\x01" + spec_id()[1:], "is not EV_NO_ACTION"),
        (spec_id()[:8] + b"\x01" + spec_id()[9:], "is not EV_NO_ACTION"),
        (spec_id()[:4] + b"\x04" + spec_id()[5:], "is not EV_NO_ACTION"),
        (spec_id() + bytes(11), "11 bytes"),
        (spec_id() + struct.pack("<III", 0, 1, 0) + bytes(60), "0 digests"),
        (spec_id() + struct.pack("<III", 0, 1, 2) + bytes(100), "2 digests"),
        (spec_id() + struct.pack("<IIIH", 0, 1, 1, 4) + bytes(60), "exactly once"),
        (spec_id() + struct.pack("<IIIH", 0, 1, 1, 11) + bytes(33), "ends before its size"),
        (spec_id() + struct.pack("<IIIH32xI", 24, 1, 1, 11, 0), "PCR 24"),
        (spec_id() + struct.pack("<IIIH32xI", 1, 1, 1, 11, 1), "announces 1 bytes"),
        (sha1_log() + b"\x18" + sha1_log()[1:], "PCR 24"),
    ],
)
def test_malformed(data: bytes, match: str) -> None:
    """Each rule of the format, broken."""
    with pytest.raises(MalformedEvidence, match=match):
        event_log.parse(data)


def test_an_algorithm_announced_twice() -> None:
    """A log could otherwise have two digests of one bank."""
    body = b"Spec ID Event03\0" + struct.pack("<IBBBBI", 0, 0, 2, 0, 2, 2) + struct.pack("<HH", 11, 32) * 2
    malformed(spec_id(body=body + b"\0"), "announced twice")
    event = struct.pack("<III", 1, 1, 2) + (struct.pack("<H", 11) + bytes(32)) * 2 + bytes(4)
    malformed(spec_id(algorithms={0x0B: 32, 0x0C: 48}) + event + bytes(16), "exactly once")


def test_digests_may_stand_in_another_order() -> None:
    """The order of digests in an event is not prescribed; each counts for its bank."""
    log = options(banks=("sha1", "sha256"))
    turned = kit.first_event(("sha256", "sha1")) + b"".join(e.serialise(log.banks) for e in log.events)
    assert verified(log, data=turned).secure_boot.enabled


@pytest.mark.threat("T65")
def test_the_number_of_events_is_bounded() -> None:
    """20 000 events, the first included."""
    one = struct.pack("<IIIH32xI", 1, 1, 1, 11, 0)
    most = log_format.MAX_EVENTS - 1
    assert len(event_log.parse(spec_id() + one * most).records) == log_format.MAX_EVENTS
    malformed(spec_id() + one * (most + 1), "more than")
    old = struct.pack("<II20sI", 1, 1, bytes(20), 0)
    malformed(old * (log_format.MAX_EVENTS + 1), "more than")


def test_banks_that_are_not_there_or_not_computed() -> None:
    """A replay needs digests of the bank, and its hash."""
    with pytest.raises(MalformedEvidence, match="no digests of bank sha384"):
        replayed(GOOD.serialise(), Alg.SHA384)
    with pytest.raises(MalformedEvidence, match="not computed"):
        replayed(spec_id(algorithms={0x12: 32}), Alg.SM3_256)


def test_what_a_log_lacks_is_told() -> None:
    """Separators and ExitBootServices that are missing, the old format; a whole log lacks nothing."""
    codes = {f.code: f for f in replayed(sha1_log(), Alg.SHA1).findings}
    assert set(codes) == {"separators-missing", "exit-boot-services-missing", "sha1-only"}
    assert codes["separators-missing"].text == "no separator in PCR 0, 1, 2, 3, 4, 5, 6"
    assert replayed(GOOD.serialise()).findings == ()
    late = GOOD.with_events((*GOOD.events, kit.action(5, "Exit Boot Services Returned with Failure")))
    assert replayed(late.serialise()).findings == ()


def test_windows_separators_are_told() -> None:
    """Separators with data WBCL in PCR 12-14 are the Windows boot manager's."""
    log = with_event(GOOD, kit.separator(12, b"WBCL"))
    claims = verified(log)
    assert any("Windows" in flag for flag in claims.flags)
    assert claims.command_lines == verified(GOOD).command_lines


# ---------------------------------------------------------------- PCR 7, in detail


def seven(*events: Event) -> SecureBootState:
    """Return the state of a log of these events alone."""
    return replayed(BootLog(events=events).serialise()).secure_boot


def authority(name: str, value: bytes, *, guid: uuid.UUID = kit.DATABASE) -> Event:
    return Event(pcr=7, type=EventType.EFI_VARIABLE_AUTHORITY, data=kit.variable(guid, name, value))


def config(name: str, value: bytes, *, guid: uuid.UUID = kit.GLOBAL) -> Event:
    return Event(pcr=7, type=EventType.EFI_VARIABLE_DRIVER_CONFIG, data=kit.variable(guid, name, value))


def test_authorities_of_every_kind() -> None:
    """A certificate with and without owner, a hash that was matched, anything else: each has a SHA-256."""
    der = kit.secure_boot_certificate("x")
    owner = bytes(16)
    found = seven(
        authority("db", owner + der),
        authority("db", der),
        authority("db", owner + b"\x22" * 32),
        authority("vendor_db", b"what"),
    ).authorities
    assert [a.sha256 for a in found] == [
        hashlib.sha256(der).hexdigest(),
        hashlib.sha256(der).hexdigest(),
        "22" * 32,
        hashlib.sha256(b"what").hexdigest(),
    ]
    assert [a.subject for a in found] == ["x", "x", "", ""]


def test_a_variable_of_a_stranger_is_not_the_firmwares() -> None:
    """SecureBoot and its databases count under their own GUID only; under another they are a fault."""
    log = with_event(GOOD, config("SecureBoot", b"\x01", guid=kit.SHIM))
    refused(log, "another vendor's GUID")
    assert seven(config("AuditMode", b"\0")).variables == (("AuditMode", 1),)
    assert seven(config("SecureBoot", b"\x01", guid=kit.SHIM)).measured == "not measured"


def test_the_sbat_level_is_shims() -> None:
    """A variable of that name by somebody else is an authority like any other."""
    assert seven(authority("SbatLevel", b"sbat,1,1\n", guid=kit.SHIM)).sbat == "sbat,1,1\n"
    other = seven(authority("SbatLevel", b"sbat,1,1\n"))
    assert (other.sbat, len(other.authorities)) == (None, 1)
    assert seven(authority("MokListTrusted", b"\x01", guid=kit.SHIM)).authorities == ()


def test_unknown_actions_and_spdm() -> None:
    """An action that nobody knows is a fault; measurements of devices are not understood, so nothing is proven."""
    refused(with_event(GOOD, kit.action(7, "Trust me")), "action 'Trust me'")
    spdm = Event(pcr=7, type=EventType.EFI_SPDM_DEVICE_POLICY, data=b"x", measured=b"y")
    state = verified(with_event(GOOD, spdm)).secure_boot
    assert state.enabled is None
    assert any("EV_EFI_SPDM_DEVICE_POLICY" in problem for problem in state.problems)


def test_a_log_without_pcr_7() -> None:
    """Nothing measured is nothing known."""
    state = replayed(spec_id()).secure_boot
    assert (state.enabled, state.measured) == (None, "not measured")
    assert state.problems == ("the SecureBoot variable was not measured",)


def test_signature_lists() -> None:
    """Hashes, certificates and other kinds; several lists, headers, short lists."""
    der = kit.secure_boot_certificate("x")
    other = uuid.UUID(int=5)
    lists = (
        kit.certificate_lists([der])
        + kit.hash_list([b"\x01" * 32, b"\x02" * 32])
        + kit.signature_list(other, [b"abc"], header=b"head")
    )
    database = uefi.parse_signature_lists(lists)
    assert database.sha256 == {hashlib.sha256(der).hexdigest(), "01" * 32, "02" * 32}
    assert database.certificates == (der,)
    assert database.others == {(str(other), b"abc".hex())}
    assert database.entries == 4
    for broken in (
        lists[:-1],
        lists + b"\0",
        kit.signature_list(uuid.UUID(bytes_le=uefi.CERT_SHA256), [b"\x01" * 31]),
    ):
        with pytest.raises(MalformedEvidence, match="signature list"):
            uefi.check_signature_lists(broken)


def test_variables() -> None:
    """Lengths must add up; a name must be UTF-16; only old shims may leave bytes behind."""
    good = kit.variable(kit.GLOBAL, "PK", b"value")
    assert uefi.parse_variable(good) == (uefi.GLOBAL, "PK", b"value")
    assert uefi.parse_variable(good + bytes(8), slack_bytes=8).value == b"value"
    bad_name = good[:32] + b"\x00\xd8" + good[34:]
    for data, slack in (
        (good[:31], 0),
        (good + b"\0", 0),
        (good[:-1], 8),
        (good + bytes(9), 8),
        (bad_name, 0),
    ):
        with pytest.raises(MalformedEvidence):
            uefi.parse_variable(data, slack_bytes=slack)


# ---------------------------------------------------------------- the boot chain, in detail


def chain(*events: Event) -> EventLogClaims:
    log = BootLog(events=events)
    return verified(log)


@pytest.mark.threat("T64")
def test_labels_decide_nothing() -> None:
    """A command line is one by what was hashed: renaming its event hides nothing."""
    log = options(command_line="init=/bin/sh")
    at = next(i for i in log.where(pcr=8) if log.events[i].data.startswith(b"kernel_cmdline"))
    renamed = log.retold(at, data=b"grub_cmd: /vmlinuz init=/bin/sh\0")
    assert verified(log, data=renamed.serialise()).command_lines == verified(log).command_lines
    hidden = log.retold(at, data=b"grub_cmd: set timeout=0\0")
    assert [m.text for m in verified(log, data=hidden.serialise()).command_lines] == [None]
    good_looking = log.retold(at, data=b"kernel_cmdline: /vmlinuz quiet\0")
    assert [m.text for m in verified(log, data=good_looking.serialise()).command_lines] == [None]
    retyped = log.retold(at, event_type=EventType.EVENT_TAG)
    assert [m.text for m in verified(log, data=retyped.serialise()).command_lines] == [None]


@pytest.mark.parametrize(
    ("data", "measured", "text"),
    [
        (b"kernel_cmdline: (hd0)/vmlinuz\0", b"(hd0)/vmlinuz", "(hd0)/vmlinuz"),
        (b"kernel_cmdline: odd name\0", b"odd name", "odd name"),
        (b"grub_kernel_cmdline /vmlinuz\0", b"/vmlinuz\0", "/vmlinuz"),
        (b"module_cmdline: /xen\0", b"/xen", "/xen"),
        (b"/no label\0", b"/no label", "/no label"),
        ("quiet".encode("utf-16-le"), "quiet\0".encode("utf-16-le"), "quiet"),
        ("quiet\0".encode("utf-16-le"), "quiet\0".encode("utf-16-le"), "quiet"),
        ("quiet".encode("utf-16-le"), "quiet".encode("utf-16-le") + b"\0", "quiet"),
        ("quiet".encode("utf-16-le"), b"else", None),
        (b"q\0u", b"q\0u\0\0", None),
        (b"", b"else", None),
    ],
)
def test_command_lines_of_every_loader(data: bytes, measured: bytes, text: str | None) -> None:
    """GRUB with and without NUL, with old labels, systemd-boot with and without NULs."""
    event = Event(pcr=8, type=EventType.IPL, data=data, measured=measured)
    assert [m.text for m in chain(event).command_lines] == [text]


def test_pcr_12_is_all_command_lines() -> None:
    """What systemd-stub measures there are command lines, or something that could be one."""
    shown = "quiet splash\0".encode("utf-16-le")
    found = chain(
        Event(pcr=12, type=EventType.IPL, data=shown, measured=shown),
        Event(pcr=12, type=EventType.IPL, data=b"plain\0", measured=b"plain"),
        Event(pcr=12, type=EventType.EVENT_TAG, data=b"12345678credentials", measured=b"?"),
        kit.separator(12),
        Event(pcr=12, type=EventType.SEPARATOR, data=b"x", measured=b"y"),
    ).command_lines
    assert [m.text for m in found] == ["quiet splash", "plain", None, None]


def test_files_are_named_by_what_checked_commands_load() -> None:
    """`linux` and `initrd` of GRUB say which file is which; devices in front of names do not matter."""
    found = chain(
        kit.ipl(8, "grub_cmd: linux (hd0,gpt2)/boot/vmlinuz a=b", b"linux (hd0,gpt2)/boot/vmlinuz a=b"),
        kit.ipl(8, "grub_cmd: initrd /ucode /initrd", b"initrd /ucode /initrd"),
        kit.ipl(8, "grub_cmd: linuxefi", b"linuxefi"),
        kit.ipl(9, "/boot/vmlinuz", b"1"),
        kit.ipl(9, "(hd1)/ucode", b"2"),
        kit.ipl(9, "/initrd", b"3"),
        kit.ipl(9, "/other", b"4"),
        Event(pcr=9, type=EventType.IPL, data="/utf".encode("utf-16-le"), measured=b"5"),
        Event(pcr=9, type=EventType.EVENT_TAG, data=b"short", measured=b"6"),
    )
    assert [m.text for m in found.kernels] == ["/boot/vmlinuz"]
    assert [m.text for m in found.initrds] == ["(hd1)/ucode", "/initrd"]
    assert [m.text for m in found.files][3:] == ["/other", "/utf", "short"]


def test_sections_pair_names_with_contents() -> None:
    """A name is measured, then its contents; contents without a name have none, whatever their event says."""
    name = kit.stub(11, ".linux", b".linux\0")
    again = kit.stub(11, ".initrd", b".linux\0")
    contents = kit.stub(11, ".initrd", b"kernel")
    assert [s.name for s in chain(name, contents).uki_sections] == [".linux"]
    assert [s.name for s in chain(contents, name, contents).uki_sections] == ["", ".linux"]
    assert [s.name for s in chain(again, contents).uki_sections] == ["", ""]
    assert [s.name for s in chain(name, name).uki_sections] == [".linux"]


def test_images_are_what_no_digest_explains() -> None:
    """Whatever extends PCR 2 or 4 and is no checked text is an image, with or without a path."""
    short = Event(pcr=4, type=EventType.EFI_BOOT_SERVICES_APPLICATION, data=b"short", measured=b"a")
    blob = Event(pcr=2, type=EventType.EFI_PLATFORM_FIRMWARE_BLOB, data=bytes(16), measured=b"b")
    found = chain(short, blob, kit.separator(2)).images
    assert [(i.kind, i.path) for i in found] == [("kernel", ""), ("driver", "")]


def test_boot_variables_tell_how_much_is_measured() -> None:
    """All of it, the value alone, or nothing."""
    data = kit.variable(kit.GLOBAL, "BootOrder", b"\0\0")
    boot = EventType.EFI_VARIABLE_BOOT
    replay = replayed(
        BootLog(
            events=(
                Event(pcr=1, type=boot, data=data),
                Event(pcr=1, type=boot, data=data, measured=b"\0\0"),
                Event(pcr=1, type=boot, data=data, measured=b"else"),
                Event(pcr=1, type=boot, data=data[:10], measured=b"else"),
            )
        ).serialise()
    )
    events = list(replay.events_of(1))
    assert [e.covers for e in events] == [Covers.DATA, Covers.VALUE, Covers.NOTHING, Covers.NOTHING]
    assert [e.data_checked for e in events] == [True, False, False, False]


# ---------------------------------------------------------------- words


def words(event_type: int, data: bytes, *, pcr: int = 1, measured: bytes | None = None) -> str:
    replay = replayed(
        BootLog(events=(Event(pcr=pcr, type=event_type, data=data, measured=measured),)).serialise()
    )
    return replay.events[1].text


def load_option(text: str) -> bytes:
    return struct.pack("<IH", 1, 0) + text.encode("utf-16-le") + b"\0\0"


VARIABLE = EventType.EFI_VARIABLE_BOOT2
AUTHORITY = EventType.EFI_VARIABLE_AUTHORITY
IMAGE = EventType.EFI_BOOT_SERVICES_APPLICATION


def node(kind: int, subtype: int, data: bytes) -> bytes:
    return struct.pack("<BBH", kind, subtype, 4 + len(data)) + data


def path_of(*nodes: bytes) -> bytes:
    path = b"".join(nodes) + node(0x7F, 0xFF, b"")
    return struct.pack("<QQQQ", 0, 0, 0, len(path)) + path


@pytest.mark.parametrize(
    ("event_type", "data", "text"),
    [
        (EventType.SEPARATOR, bytes(4), "separator"),
        (EventType.SEPARATOR, b"\x01\0\0\0", "separator 01000000"),
        (EventType.NO_ACTION, b"StartupLocality\0\x03", "StartupLocality 3"),
        (EventType.NO_ACTION, b"\x01\x02", "??"),
        (EventType.EFI_ACTION, b"Bell\x07", "Bell?"),
        (VARIABLE, kit.variable(kit.GLOBAL, "BootOrder", b"\x01\0\x1a\0"), "BootOrder: Boot0001, Boot001A"),
        (VARIABLE, kit.variable(kit.GLOBAL, "BootOrder", b""), "BootOrder: empty"),
        (VARIABLE, kit.variable(kit.GLOBAL, "Boot0001", load_option("disk")), "Boot0001: disk"),
        (VARIABLE, kit.variable(kit.GLOBAL, "Boot0001", b""), "Boot0001: empty"),
        (VARIABLE, kit.variable(kit.GLOBAL, "SecureBoot", b"\x01"), "SecureBoot = 1"),
        (VARIABLE, kit.variable(kit.GLOBAL, "Other", b"ab"), "Other, 2 bytes"),
        (VARIABLE, kit.variable(kit.DATABASE, "dbx", kit.hash_list([bytes(32)])), "dbx: 1 entry"),
        (VARIABLE, kit.variable(kit.DATABASE, "dbx", b""), "dbx: 0 entries"),
        (VARIABLE, kit.variable(kit.DATABASE, "dbx", b"x"), "dbx: cannot be read"),
        (VARIABLE, b"x", "a UEFI variable that cannot be read"),
        (AUTHORITY, kit.variable(kit.SHIM, "SbatLevel", b"sbat,1\nshim,4\n"), "SbatLevel: sbat,1 shim,4"),
        (
            AUTHORITY,
            kit.variable(kit.DATABASE, "db", kit.secure_boot_certificate("CA")),
            "accepted by db: CA",
        ),
        (AUTHORITY, kit.variable(kit.DATABASE, "db", b"hash"), "accepted by db"),
        (
            AUTHORITY,
            kit.variable(kit.DATABASE, "db", b"\x30\x82\x00\x01\x00"),
            "accepted by db: a certificate that cannot be read (SHA-256 "
            + hashlib.sha256(b"\x30\x82\x00\x01\x00").hexdigest()[:16]
            + "…)",
        ),
        (EventType.EFI_GPT_EVENT, bytes(99), "partition table"),
        (
            EventType.EFI_GPT_EVENT2,
            bytes(92) + b"\x02" + bytes(7),
            f"partition table {uuid.UUID(int=0)}, 2 partitions",
        ),
        (IMAGE, bytes(32), "image without a device path (unchecked)"),
        (EventType.EVENT_TAG, b"12345678Linux initrd\0", "Linux initrd (unchecked)"),
        (
            EventType.EFI_PLATFORM_FIRMWARE_BLOB,
            struct.pack("<QQ", 0x10, 5),
            "firmware volume at 0x10, 5 bytes (unchecked)",
        ),
        (EventType.EFI_PLATFORM_FIRMWARE_BLOB, b"short\0", "short (unchecked)"),
        (EventType.S_CRTM_VERSION, "1.0\0".encode("utf-16-le"), "1.0"),
        (EventType.S_CRTM_CONTENTS, b"Boot Guard\0", "Boot Guard (unchecked)"),
        (EventType.S_CRTM_CONTENTS, b"\xff\xfe", ""),
        (EventType.S_CRTM_CONTENTS, b"a\x01", ""),
        (EventType.IPL, "wide\0".encode("utf-16-le"), "wide (unchecked)"),
        (EventType.IPL, b"x" * 300, "x" * 199 + "… (unchecked)"),
        (
            IMAGE,
            path_of(
                node(2, 1, struct.pack("<II", 0x0A0341D0, 0)),
                node(2, 1, struct.pack("<II", 1, 2)),
                node(1, 1, b"\x02\x1f"),
                node(3, 24, b"http://x/y"),
                node(3, 11, b"\xaa" * 6 + bytes(27)),
                node(3, 23, struct.pack("<I8x", 1)),
                node(3, 18, struct.pack("<HHH", 3, 0, 0)),
                node(3, 5, b"\x01\x02"),
                node(3, 2, struct.pack("<HH", 1, 2)),
                node(4, 1, struct.pack("<I16x16xBB", 7, 1, 1)),
                node(4, 1, struct.pack("<I16x16xBB", 7, 2, 2)),
                node(4, 6, bytes(16)),
                node(4, 7, bytes(16)),
                node(4, 7, bytes(15)),
                node(4, 4, "\\a\0".encode("utf-16-le")),
            ),
            "PciRoot(0)/Acpi(00000001,2)/Pci(1f,2)/Uri(http://x/y)/MAC(aaaaaaaaaaaa)/NVMe(1)/Sata(3)/Usb(1,2)/",
        ),
        (IMAGE, struct.pack("<QQQQ", 0, 0, 0, 8) + node(4, 4, b"")[:2] + b"\xff\xff", "image without"),
    ],
)
def test_words_of_events(event_type: int, data: bytes, text: str) -> None:
    """Every kind of event has words, printable ones, and what nobody checked is said to be unchecked."""
    found = words(
        event_type, data, measured=data if "unchecked" not in text and event_type != IMAGE else b"?"
    )
    assert found == text or (event_type == IMAGE and found.startswith(text))
    assert found.isprintable()


def test_words_of_sections() -> None:
    """PCR 11 tells names and contents apart."""
    assert words(EventType.IPL, ".linux\0".encode("utf-16-le"), pcr=11, measured=b".linux\0") == (
        "section name .linux"
    )
    assert words(EventType.IPL, ".linux\0".encode("utf-16-le"), pcr=11, measured=b"x") == (
        "section .linux (unchecked)"
    )


def test_words_of_old_shims() -> None:
    """The byte too many does not disturb the words."""
    data = kit.variable(kit.SHIM, "Shim", b"cert")
    assert words(AUTHORITY, data + bytes(5) + b"\xaf", pcr=7, measured=data + bytes(5)) == "accepted by Shim"


def test_type_names() -> None:
    """A type without a name is told by its number."""
    assert event_log.type_name(4) == "EV_SEPARATOR"
    assert event_log.type_name(0x14) == "0x00000014"
    replay = replayed(GOOD.serialise())
    assert replay.events[0].type_name == "EV_NO_ACTION"


def test_a_text_of_no_digest_is_none() -> None:
    """Where nothing is covered there is no text to believe."""
    step = boot_chain.Step(0, 8, EventType.IPL, b"", Covers.NOTHING, b"grub_cmd: x")
    assert boot_chain.measured_text(step) is None


def test_a_replay_is_a_pure_function() -> None:
    """The same bytes and bank give the same outcome, which cannot be changed: it may be remembered."""
    data = GOOD.serialise()
    one, two = replayed(data), replayed(bytes(bytearray(data)))
    assert one == two
    with pytest.raises(TypeError):
        one.values[0] = b""  # type: ignore[index]
    with pytest.raises(AttributeError):
        one.bank = 4  # type: ignore[misc]
