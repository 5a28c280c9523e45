"""What booted, judged by its log: each rule holds for what it lists and for nothing else (TPM.md §4.4-4.6)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from attestation.appraisal.tpm import boot
from attestation.appraisal.tpm.boot import judge_log
from attestation.errors import MalformedEvidence
from attestation.evidence import event_log
from attestation.evidence.event_log import EventLogClaims, ReplayedLog
from attestation.reference import Policy, compose, parse_policy
from attestation.results import Failed, Flagged, Outcome, Passed, Reported, Undecided
from attestation_testing.event_logs import (
    BootLog,
    BootOptions,
    Event,
    EventType,
    LogDefect,
    LogQuirk,
    Tampering,
    action,
    boot_log,
    image,
    ipl,
    revoked_hash,
    secure_boot_certificate,
    separator,
    tampered,
)

BANK = 0x000B
USUAL = boot_log()
UKI = boot_log(BootOptions(uki=True))
ABSENT = "no event log that leads to the quoted PCRs"


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def sha256_of_image(content: bytes) -> str:
    """Return the digest of an image of the test kit: of a DOS header and its content."""
    return sha256(b"MZ".ljust(64, b"\0") + content)


SHIM, GRUB = (
    sha256_of_image(b"shim of shim 16.1, grub 2.06"),
    sha256_of_image(b"grub of shim 16.1, grub 2.06"),
)
KERNEL, KERNEL_FILE = sha256_of_image(b"kernel 6.1.0-56"), sha256(b"file of kernel 6.1.0-56")
INITRD = sha256(b"file of initrd 1")
LINE = "/vmlinuz root=/dev/sda2 ro quiet"
CONFIG = sha256(f"set timeout=0\nlinux {LINE}\ninitrd /initrd.img".encode())
DB = [sha256(secure_boot_certificate(name)) for name in ("Third Party UEFI CA", "Operating System CA")]
DISTRIBUTION = sha256(secure_boot_certificate("Distribution Secure Boot CA"))
STRANGE = "ab" * 32


def replayed(log: BootLog | bytes, *, padded: bool = False) -> ReplayedLog:
    data = log if isinstance(log, bytes) else log.serialise()
    return event_log.replay(event_log.parse(data, log_padding=padded), BANK)


def policy(mode: str = "enforce", **members: Any) -> Policy:
    return parse_policy(
        {
            "format": "itl-tpm-policy/1",
            "name": "boot",
            "version": 1,
            "bank": "sha256",
            "mode": mode,
            "pcrs": members.pop("pcrs", {}),
            **members,
        }
    )


def judged(
    applied: Policy, log: BootLog = USUAL, found: ReplayedLog | None = None, *, requested: bool = True
) -> list[Outcome]:
    quoted = {i: v for i, v in log.pcrs().items() if i in dict(applied.tpm.selection.banks)[BANK]}
    return judge_log(found or replayed(log), applied, quoted, requested=requested)[0]


def words(outcomes: Sequence[Outcome]) -> dict[str, str]:
    """Return the outcomes that are no remarks, check -> kind."""
    return {o.check: type(o).__name__ for o in outcomes if o.check != "event-log-findings"}


def one(outcomes: Sequence[Outcome], check: str) -> Any:
    (found,) = [o for o in outcomes if o.check == check]
    return found


def with_options(**changes: Any) -> BootLog:
    return boot_log(replace(BootOptions(), **changes))


# ---------------------------------------------------------------- the log itself

SECURE_BOOT = policy(secure_boot={"required": True})


def test_a_log_that_leads_to_the_quote() -> None:
    """The rules are judged, and what it proves is returned."""
    outcomes, claims = judge_log(replayed(USUAL), SECURE_BOOT, {7: USUAL.pcrs()[7]}, requested=False)
    assert words(outcomes) == {"event-log": "Passed", "secure-boot": "Passed"}
    assert claims is not None
    assert claims.pcrs == {7}


def test_a_log_that_was_not_sent() -> None:
    """Not asked for: undecided, the next challenge asks. Asked for: failed, and every rule over it with it."""
    assert judge_log(None, SECURE_BOOT, {}, requested=False) == (
        [Undecided("event-log", "the policy needs the event log; it is asked for now")],
        None,
    )
    outcomes, claims = judge_log(None, SECURE_BOOT, {}, requested=True)
    assert outcomes == [
        Failed("event-log", "an event log that leads to the quoted PCRs", "absent"),
        Failed("secure-boot", "on", ABSENT),
    ]
    assert claims is None


@pytest.mark.threat("T69")
def test_a_log_that_does_not_lead_to_the_quote_fails_every_rule() -> None:
    """One step more in one PCR: nothing of the log is believed, and each rule says so."""
    applied = policy(
        pcrs={"4": {"events": "approved-digests", "digests": [KERNEL]}},
        secure_boot={"required": False, "db_sha256": DB, "dbx_min": [STRANGE], "authorities": DB},
        boot={"loaders": [SHIM], "kernels": [KERNEL], "initrds": [INITRD], "command_lines": [LINE]},
    )
    quoted = USUAL.pcrs() | {4: bytes(32)}
    outcomes, claims = judge_log(replayed(USUAL), applied, quoted, requested=True)
    assert claims is None
    assert [o.check for o in outcomes] == [
        "event-log",
        "pcr4",
        "secure-boot",
        "secure-boot-db",
        "secure-boot-dbx",
        "secure-boot-authorities",
        "boot-loaders",
        "boot-kernels",
        "boot-initrds",
        "command-lines",
    ]
    assert all(isinstance(o, Failed) for o in outcomes)
    assert one(outcomes, "event-log").found == "event log: does not lead to the quoted PCR 4"
    assert {o.found for o in outcomes[1:] if isinstance(o, Failed)} == {ABSENT}


def test_a_pcr_that_was_not_quoted_is_not_believed() -> None:
    """The rule reads PCR 9, the quote has only 4: nothing covers what the log says of 9."""
    for applied, mode in ((policy(boot={"kernels": [KERNEL]}), Failed), (chain("report"), Reported)):
        outcomes, claims = judge_log(replayed(USUAL), applied, {4: USUAL.pcrs()[4]}, requested=True)
        assert {type(o) for o in outcomes} == {mode}
        assert claims is None
        assert "9" in one(outcomes, "event-log").found


def test_under_report_nothing_of_it_decides() -> None:
    """Absent, false or unkept: every outcome is Reported, also where nobody asked for the log yet."""
    applied = policy("report", secure_boot={"required": True}, boot={"kernels": [STRANGE]})
    for found, requested in ((None, False), (None, True), (replayed(UKI), True)):
        outcomes = judge_log(found, applied, USUAL.pcrs(), requested=requested)[0]
        assert {type(o) for o in outcomes} == {Reported}
    kinds = words(judged(applied))
    assert kinds == {"event-log": "Passed", "secure-boot": "Passed", "boot-kernels": "Reported"}


def test_a_log_that_no_rule_reads() -> None:
    """It explains where it leads to the quote; where not, it is flagged: not to send it would be no worse."""
    applied = policy(pcrs={"11": {"any_of": ["00" * 32]}})
    outcomes, claims = judge_log(replayed(USUAL), applied, USUAL.pcrs(), requested=False)
    assert words(outcomes) == {"event-log": "Passed"}
    assert claims is not None
    assert claims.pcrs == set(range(8))
    outcomes, claims = judge_log(replayed(UKI), applied, USUAL.pcrs(), requested=False)
    assert words(outcomes) == {"event-log": "Flagged"}
    assert claims is None
    assert judge_log(None, applied, USUAL.pcrs(), requested=False) == ([], None)


def test_a_log_that_is_demanded_leads_to_every_firmware_pcr_with_a_rule() -> None:
    """Also to one that is ignored by its value."""
    applied = policy(
        pcrs={"0": {"any_of": [USUAL.pcrs()[0].hex()]}, "1": {"ignore": "serial"}, "11": {"ignore": "x"}},
        event_log="required",
    )
    assert words(judged(applied)) == {"event-log": "Passed"}
    quoted = USUAL.pcrs() | {1: bytes(32)}
    outcomes = judge_log(replayed(USUAL), applied, quoted, requested=True)[0]
    assert one(outcomes, "event-log").found == "event log: does not lead to the quoted PCR 1"
    later = USUAL.pcrs() | {11: bytes(32)}
    assert words(judge_log(replayed(USUAL), applied, later, requested=True)[0]) == {"event-log": "Passed"}


@pytest.mark.threat("T68")
@pytest.mark.parametrize("how", list(Tampering))
def test_no_lie_about_a_boot_keeps_a_policy(how: Tampering) -> None:
    """N82-N89, N94, N95: malformed, or some rule fails; never everything passed."""
    applied = policy(
        pcrs={str(i): {"any_of": [USUAL.pcrs()[i].hex()]} for i in range(8)},
        secure_boot={"required": True},
        event_log="required",
    )
    log = with_options(banks=("sha1", "sha256")) if how is Tampering.SHA1_ONLY_TRUE else USUAL
    try:
        found = replayed(tampered(log, how))
    except MalformedEvidence:
        return
    outcomes = judged(applied, log, found)
    assert any(isinstance(o, Failed) for o in outcomes), words(outcomes)


@pytest.mark.threat("T68")
@pytest.mark.parametrize("defect", list(LogDefect))
def test_no_defect_passes_for_secure_boot(defect: LogDefect) -> None:
    """N90-N93, N96: measured indeed, and not Secure Boot."""
    log = with_options(defect=defect)
    outcomes = judged(SECURE_BOOT, log)
    assert any(isinstance(o, Failed) for o in outcomes), words(outcomes)


def test_padding_is_an_option() -> None:
    """Refused unless the policy accepts it; reported when it is used."""
    for quirk in (LogQuirk.PADDED_ZEROS, LogQuirk.PADDED_ONES):
        log = with_options(quirks=frozenset({quirk}))
        found = replayed(log, padded=True)
        refused = one(judged(SECURE_BOOT, log, found), "event-log")
        assert refused == Failed(
            "event-log", "a log that ends with its last event", "padding behind it; see log_padding"
        )
        accepting = policy(secure_boot={"required": True}, log_padding="accepted")
        outcomes = judged(accepting, log, found)
        assert words(outcomes) == {"event-log": "Passed", "secure-boot": "Passed"}
        assert "of padding behind the log" in one(outcomes, "event-log-findings").note
        reporting = policy("report", secure_boot={"required": True})
        assert isinstance(one(judged(reporting, log, found), "event-log"), Reported)


def test_repairs_and_oddities_are_reported() -> None:
    """ExitBootServices that the firmware left out of its log is told, with everything else odd."""
    log = with_options(quirks=frozenset({LogQuirk.NO_EXIT_BOOT_SERVICES, LogQuirk.DMA_PROTECTION_DISABLED}))
    seven = {"any_of": [log.pcrs()[7].hex()]}
    applied = policy(pcrs={"5": {"ignore": "disk"}, "7": seven}, event_log="required")
    note = one(judged(applied, log), "event-log-findings").note
    assert "PCR 5: Exit Boot Services Invocation is not in the log" in note
    assert "DMA protection is disabled" in note
    for kind in (
        EventType.ACTION,
        EventType.S_CRTM_VERSION,
        EventType.PLATFORM_CONFIG_FLAGS,
        EventType.SEPARATOR,
    ):
        log = log.inserted(0, Event(pcr=5, type=kind, data=b"data", measured=b"another"))
    assert one(judged(applied, log), "event-log-findings").note.endswith("more")


def test_the_rules_are_judged_once_per_log_and_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the table of what is known stays small; whether a log leads to a quote is never remembered."""
    calls: list[str] = []
    judge = boot._rules

    def counted(claims: EventLogClaims, applied: Policy) -> Iterable[Outcome]:
        calls.append(applied.ref)
        return judge(claims, applied)

    monkeypatch.setattr(boot, "_rules", counted)
    monkeypatch.setattr(boot, "_KNOWN", {})
    monkeypatch.setattr(boot, "_KNOWN_SIZE", 2)
    found = replayed(USUAL)
    for _ in range(3):
        assert words(judged(SECURE_BOOT, USUAL, found))["secure-boot"] == "Passed"
    assert len(calls) == 1
    others = [policy(boot={"kernels": [KERNEL if n else STRANGE]}, max_age_seconds=60 + n) for n in range(4)]
    for other in others:
        judged(other, USUAL, found)
        assert len(boot._KNOWN) <= 2
    assert len(calls) == 5
    assert words(judged(SECURE_BOOT, UKI, found))["event-log"] == "Failed"


# ---------------------------------------------------------------- events of one PCR


def events(pcr: int, *digests: str, mode: str = "enforce") -> Policy:
    return policy(mode, pcrs={str(pcr): {"events": "approved-digests", "digests": list(digests)}})


def test_only_approved_events() -> None:
    """Every event that is not every firmware's must be listed; order and number do not matter."""
    assert words(judged(events(4, SHIM, GRUB, KERNEL)))["pcr4"] == "Passed"
    assert words(judged(events(4, SHIM, GRUB, KERNEL, STRANGE)))["pcr4"] == "Passed"
    twice = USUAL.duplicated(USUAL.where(pcr=4, event_type=EventType.EFI_BOOT_SERVICES_APPLICATION)[0])
    assert words(judged(events(4, SHIM, GRUB, KERNEL), twice))["pcr4"] == "Passed"
    failed = one(judged(events(4, SHIM, GRUB)), "pcr4")
    assert isinstance(failed, Failed)
    assert failed.expected == "only approved events"
    assert failed.found.startswith(f"not approved: {KERNEL} (EV_EFI_BOOT_SERVICES_APPLICATION")
    assert isinstance(one(judged(events(4, SHIM, GRUB, mode="report")), "pcr4"), Reported)


def test_at_least_one_approved_event() -> None:
    """A machine that measured nothing there has not shown what is expected."""
    nothing = USUAL.with_events(e for e in USUAL.events if e.type != EventType.EFI_BOOT_SERVICES_APPLICATION)
    assert one(judged(events(4, SHIM), nothing), "pcr4").found == "none of them"


@pytest.mark.threat("T68")
def test_a_digest_decides_whatever_the_event_calls_itself() -> None:
    """N87, N88: an image that is told as an action or a separator, with data whose hash is its digest."""
    evil = b"the bytes over which a hostile image is measured"
    for kind in (EventType.EFI_ACTION, EventType.SEPARATOR, EventType.ACTION, EventType.IPL):
        log = USUAL.inserted(len(USUAL.events), Event(pcr=4, type=kind, data=evil))
        outcomes = judged(events(4, SHIM, GRUB, KERNEL), log)
        assert any(isinstance(o, Failed) for o in outcomes), kind
        outcomes = judged(policy(boot={"loaders": [SHIM, GRUB], "kernels": [KERNEL, KERNEL_FILE]}), log)
        assert any(isinstance(o, Failed) for o in outcomes), kind


def test_what_every_firmware_extends_needs_no_approval() -> None:
    """Separators and the known actions, known by their digests."""
    log = USUAL.inserted(0, action(4, "Returning from EFI Application from Boot Option"))
    assert words(judged(events(4, SHIM, GRUB, KERNEL), log))["pcr4"] == "Passed"
    log = USUAL.inserted(0, separator(4, b"\xff" * 4))
    assert words(judged(events(4, SHIM, GRUB, KERNEL), log))["pcr4"] == "Failed"


def test_many_strays_are_counted() -> None:
    """Six are shown, the rest is a number."""
    log = USUAL
    for n in range(8):
        log = log.inserted(len(log.events), image(4, "x", b"%d" % n))
    found = one(judged(events(4, SHIM, GRUB, KERNEL), log), "pcr4").found
    assert found.endswith("and 2 more")
    assert found.count("EV_EFI") == 6


# ---------------------------------------------------------------- what was started

CHAIN = {
    "loaders": [SHIM, GRUB],
    "kernels": [KERNEL, KERNEL_FILE],
    "initrds": [INITRD],
    "command_lines": [LINE],
}
FILES = {"9": {"events": "approved-digests", "digests": [CONFIG]}}


def chain(mode: str = "enforce", pcrs: Any = FILES, **changes: Any) -> Policy:
    return policy(mode, pcrs=pcrs, boot={k: v for k, v in (CHAIN | changes).items() if v is not None})


def test_a_chain_as_listed() -> None:
    """Loaders, kernel, initrd, command line, and the files that the loader read."""
    assert words(judged(chain())) == {
        "event-log": "Passed",
        "pcr9": "Passed",
        "boot-loaders": "Passed",
        "boot-kernels": "Passed",
        "boot-initrds": "Passed",
        "command-lines": "Passed",
    }


@pytest.mark.parametrize(
    ("options", "failing"),
    [
        ({"kernel": "6.1.0-57"}, {"boot-kernels", "pcr9"}),
        ({"loader": "shim 15.4, grub 2.04"}, {"boot-loaders"}),
        ({"initrd": "initrd 2"}, {"boot-initrds", "pcr9"}),
        ({"command_line": "root=/dev/sda2 ro quiet init=/bin/sh"}, {"command-lines", "pcr9"}),
        ({"uki": True}, {"boot-loaders", "boot-kernels", "command-lines", "pcr9"}),
    ],
)
def test_what_changed_is_what_fails(options: dict[str, Any], failing: set[str]) -> None:
    """And under report it is what is reported."""
    log = with_options(**options)
    kinds = words(judged(chain(), log))
    assert {check for check, kind in kinds.items() if kind == "Failed"} == failing
    kinds = words(judged(chain("report"), log))
    assert {check for check, kind in kinds.items() if kind == "Reported"} == failing


def test_the_words_of_a_changed_kernel() -> None:
    """Expected: the list, and nothing else; found: its digest and what the event says of it."""
    changed = sha256_of_image(b"kernel 6.1.0-57")
    found = one(judged(chain(), with_options(kernel="6.1.0-57")), "boot-kernels")
    assert found.expected == f"one of {', '.join(sorted([KERNEL, KERNEL_FILE]))}, nothing else"
    assert found.found.startswith(f"not approved: {changed} (EV_EFI_BOOT_SERVICES_APPLICATION")
    nothing = UKI.with_events(e for e in UKI.events if e.pcr != 4 or e.type == EventType.SEPARATOR)
    many = [f"{n:064x}" for n in range(9)]
    told = one(judged(policy(boot={"loaders": many}), nothing), "boot-loaders")
    assert (told.found, told.expected.endswith("and 3 more, nothing else")) == ("none of them", True)


@pytest.mark.threat("T68")
def test_an_image_beside_the_listed_ones() -> None:
    """All that is listed ran, and one thing more: the first list that closes the PCR fails."""
    log = USUAL.inserted(len(USUAL.events), image(4, "", b"something else"))
    assert words(judged(chain(), log))["boot-loaders"] == "Failed"
    everything = chain(loaders=None, kernels=[SHIM, GRUB, KERNEL, KERNEL_FILE])
    assert words(judged(everything))["boot-kernels"] == "Passed"
    assert words(judged(everything, log))["boot-kernels"] == "Failed"


def test_a_file_beside_the_listed_ones() -> None:
    """Without a rule over the events of PCR 9 the list of initrds closes it; with a reported one, too."""
    log = USUAL.inserted(len(USUAL.events), ipl(9, "/evil.mod", b"a module"))
    assert words(judged(chain(), log))["pcr9"] == "Failed"
    assert words(judged(chain(), log))["boot-initrds"] == "Passed"
    unlisted = words(judged(chain(pcrs={})))
    assert unlisted["boot-initrds"] == "Failed"
    listed = chain(pcrs={}, initrds=[INITRD, CONFIG])
    assert words(judged(listed))["boot-initrds"] == "Passed"
    assert words(judged(listed, log))["boot-initrds"] == "Failed"
    only_kernels = chain(pcrs={}, initrds=None, kernels=[KERNEL, KERNEL_FILE, INITRD, CONFIG])
    assert words(judged(only_kernels))["boot-kernels"] == "Passed"
    assert words(judged(only_kernels, log))["boot-kernels"] == "Failed"


def test_a_reported_rule_over_events_does_not_excuse_an_enforced_list() -> None:
    """From two policies: the stray fails the list although the narrower rule only reports it."""
    trial = parse_policy(
        {
            "format": "itl-tpm-policy/1",
            "name": "trial",
            "version": 1,
            "bank": "sha256",
            "mode": "report",
            "pcrs": FILES,
        }
    )
    both = compose([chain(pcrs={}), trial])
    log = USUAL.inserted(len(USUAL.events), ipl(9, "/evil.mod", b"a module"))
    kinds = words(judged(both, log))
    assert (kinds["pcr9"], kinds["boot-initrds"]) == ("Reported", "Failed")


def test_a_kernel_that_only_the_loader_read() -> None:
    """GRUB without shim measures the kernel's file into PCR 9: it counts, and PCR 9 is closed."""
    log = USUAL.with_events(
        e
        for e in USUAL.events
        if not (e.pcr == 4 and e.measured is not None and e.measured.startswith(b"kernel"))
    )
    assert words(judged(chain(), log))["boot-kernels"] == "Passed"


# ---------------------------------------------------------------- command lines


def test_a_command_line_is_a_pattern() -> None:
    """Any disk, no word more."""
    applied = policy(boot={"command_lines": ["/vmlinuz* root=* ro quiet"]})
    for line, kind in (
        ("root=/dev/nvme0n1p2 ro quiet", "Passed"),
        ("root=/dev/sda2 ro", "Failed"),
        ("root=/dev/sda2 ro quiet init=/bin/sh", "Failed"),
        ("root=/dev/sda2 rw quiet", "Failed"),
    ):
        assert words(judged(applied, with_options(command_line=line)))["command-lines"] == kind, line
    told = one(judged(applied, with_options(command_line="root=/dev/sda2 rw quiet")), "command-lines")
    assert told == Failed(
        "command-lines", "/vmlinuz* root=* ro quiet", "PCR 8: /vmlinuz root=/dev/sda2 rw quiet"
    )


@pytest.mark.threat("T68")
def test_a_command_line_under_another_label_is_one_still() -> None:
    """The label is not measured; the text is. A text that is not shown could be any."""
    applied = policy(boot={"command_lines": [LINE]})
    evil = f"{LINE} init=/bin/sh"
    for log in (
        USUAL.inserted(len(USUAL.events), ipl(8, f"grub_cmd: {evil}", evil.encode())),
        USUAL.inserted(len(USUAL.events), ipl(8, "grub_cmd: set timeout=0", evil.encode())),
        USUAL.inserted(len(USUAL.events), ipl(12, "x", evil.encode("utf-16-le"))),
    ):
        assert words(judged(applied, log))["command-lines"] == "Failed"
    hidden = USUAL.inserted(len(USUAL.events), ipl(8, "grub_cmd: set timeout=0", evil.encode()))
    assert "(not shown by the log)" in one(judged(applied, hidden), "command-lines").found


def test_a_command_line_must_be_measured() -> None:
    """None is not one that is listed; under report it is reported."""
    nothing = USUAL.with_events(e for e in USUAL.events if e.pcr not in (8, 12))
    assert one(judged(policy(boot={"command_lines": [LINE]}), nothing), "command-lines").found == "none"
    reported = judged(policy("report", boot={"command_lines": [LINE]}), nothing)
    assert isinstance(one(reported, "command-lines"), Reported)


def test_texts_that_match_are_approved_events() -> None:
    """A rule over the events of PCR 8 lists the commands, the patterns say the rest."""
    commands = [sha256(text.encode()) for text in ("set timeout=0", f"linux {LINE}", "initrd /initrd.img")]
    rule = {"8": {"events": "approved-digests", "digests": commands}}
    assert words(judged(policy(pcrs=rule)))["pcr8"] == "Failed"
    assert words(judged(policy(pcrs=rule, boot={"command_lines": [LINE]})))["pcr8"] == "Passed"


# ---------------------------------------------------------------- Secure Boot


def secure_boot(mode: str = "enforce", **rules: Any) -> Policy:
    return policy(mode, secure_boot={"dbx_min": [revoked_hash(0).hex()], **rules})


def test_secure_boot_is_on() -> None:
    """Or it fails, with the reason; under report it is reported."""
    assert one(judged(SECURE_BOOT), "secure-boot") == Passed("secure-boot", "on")
    off = with_options(secure_boot=False)
    assert one(judged(SECURE_BOOT, off), "secure-boot") == Failed("secure-boot", "on", "off")
    assert one(judged(secure_boot("report"), off), "secure-boot") == Reported("secure-boot", "on", "off")
    nobody = one(judged(SECURE_BOOT, with_options(defect=LogDefect.NO_AUTHORITY)), "secure-boot")
    assert nobody.found == "SecureBoot is 1, but nothing was accepted by any authority"


def test_secure_boot_may_be_off() -> None:
    """Then off is told; what is neither on nor off is still a fault."""
    allowed = secure_boot(required=False)
    off = with_options(secure_boot=False)
    assert one(judged(allowed), "secure-boot") == Passed("secure-boot", "on")
    assert one(judged(allowed, off), "secure-boot") == Flagged("secure-boot", "off")
    for defect in (LogDefect.SECURE_BOOT_OTHER, LogDefect.NO_DB, LogDefect.SEPARATOR_ERROR):
        found = one(judged(allowed, with_options(defect=defect)), "secure-boot")
        assert isinstance(found, Failed), defect
        assert found.expected == "on or off"


def test_an_empty_variable_is_off_only_by_option() -> None:
    """TPM.md §4.5: a SecureBoot variable of length 0."""
    log = with_options(secure_boot=False, quirks=frozenset({LogQuirk.SECURE_BOOT_EMPTY}))
    found = one(judged(secure_boot(required=False), log), "secure-boot")
    assert isinstance(found, Failed)
    assert "length 0" in found.found
    by_option = secure_boot(required=False, empty_variable="off")
    assert one(judged(by_option, log), "secure-boot") == Flagged("secure-boot", "off")
    demanded = secure_boot(empty_variable="off")
    assert one(judged(demanded, log), "secure-boot") == Failed("secure-boot", "on", "off")


def test_debug_mode() -> None:
    """Forbidden unless the policy says that it is only flagged; then Secure Boot counts as on all the same."""
    log = with_options(defect=LogDefect.DEBUG_MODE)
    kinds = words(judged(SECURE_BOOT, log))
    assert (kinds["secure-boot"], kinds["secure-boot-debug"]) == ("Failed", "Failed")
    kinds = words(judged(secure_boot(debug="flag"), log))
    assert (kinds["secure-boot"], kinds["secure-boot-debug"]) == ("Passed", "Flagged")
    assert words(judged(secure_boot("report"), log))["secure-boot-debug"] == "Reported"


def test_db_holds_nothing_else() -> None:
    """A signer more could start anything; a db without any is no db."""
    exact = secure_boot(db_sha256=DB)
    assert one(judged(exact), "secure-boot-db") == Passed("secure-boot-db")
    assert words(judged(secure_boot(db_sha256=[*DB, STRANGE])))["secure-boot-db"] == "Passed"
    found = one(judged(secure_boot(db_sha256=DB[:1])), "secure-boot-db")
    assert found == Failed("secure-boot-db", f"only {DB[0]}", f"not allowed: {DB[1]}")
    empty = with_options(secure_boot=False)
    assert one(judged(secure_boot(db_sha256=DB), empty), "secure-boot-db").found == "none"
    assert isinstance(one(judged(secure_boot("report", db_sha256=DB[:1])), "secure-boot-db"), Reported)


def test_dbx_holds_at_least_the_minimum() -> None:
    """More is welcome; each that is missing is named."""
    known = [revoked_hash(n).hex() for n in range(3)]
    assert words(judged(secure_boot(dbx_min=known)))["secure-boot-dbx"] == "Passed"
    assert words(judged(secure_boot(dbx_min=known), with_options(revoked=9)))["secure-boot-dbx"] == "Passed"
    missing = [f"{n:064x}" for n in range(8)]
    found = one(judged(secure_boot(dbx_min=[*known, *missing])), "secure-boot-dbx")
    assert found.expected == "all of 11 hashes"
    assert found.found.startswith(f"8 missing: {missing[0]}")
    assert found.found.endswith("and 2 more")
    assert isinstance(one(judged(secure_boot("report", dbx_min=missing)), "secure-boot-dbx"), Reported)


def test_authorities_are_those_listed() -> None:
    """Who vouched for what was started: nobody else, and somebody."""
    listed = secure_boot(authorities=[DB[0], DISTRIBUTION])
    assert words(judged(listed))["secure-boot-authorities"] == "Passed"
    found = one(judged(secure_boot(authorities=[DISTRIBUTION])), "secure-boot-authorities")
    assert found.found == f"not allowed: {DB[0]}"
    other = with_options(authority="Operating System CA")
    assert words(judged(listed, other))["secure-boot-authorities"] == "Failed"
    nobody = with_options(secure_boot=False)
    assert one(judged(listed, nobody), "secure-boot-authorities").found == "none"


@pytest.mark.parametrize(
    ("quirk", "pcr", "named"),
    [
        (LogQuirk.BOOT_DEVICES_OMITTED, 4, "EV_OMIT_BOOT_DEVICE_EVENTS"),
        (LogQuirk.IPL_IN_PCR_4, 4, "EV_IPL"),
        (LogQuirk.ACTION_IN_PCR_2, 2, "EV_ACTION"),
    ],
)
def test_what_shipped_machines_log_fails_only_who_lists_what_may_be_there(
    quirk: LogQuirk, pcr: int, named: str
) -> None:
    """An event of a type that is not expected in PCR 2 or 4: told, and no fault, unless a list leaves it out."""
    log = with_options(quirks=frozenset({quirk, LogQuirk.OPTION_ROM}))
    assert words(judged(SECURE_BOOT, log)) == {"event-log": "Passed", "secure-boot": "Passed"}
    assert words(judged(policy(event_log="required", secure_boot={"required": True}), log)) == {
        "event-log": "Passed",
        "secure-boot": "Passed",
    }
    usual = with_options(quirks=frozenset({LogQuirk.OPTION_ROM}))
    digests = {e.digest.hex() for e in replayed(usual).events_of(pcr)}
    listed = policy(pcrs={str(pcr): {"events": "approved-digests", "digests": sorted(digests)}})
    failed = one(judged(listed, log), f"pcr{pcr}")
    assert isinstance(failed, Failed)
    assert named in failed.found
    (added,) = {e.digest.hex() for e in replayed(log).events_of(pcr)} - digests
    approved = policy(pcrs={str(pcr): {"events": "approved-digests", "digests": sorted({*digests, added})}})
    assert isinstance(one(judged(approved, log), f"pcr{pcr}"), Passed)
