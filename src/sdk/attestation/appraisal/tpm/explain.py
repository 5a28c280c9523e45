"""Words for what changed between two boots of a machine, and for what a PCR is made of.

For people. The digests in these sentences are measured; names of files and device paths are what the log says.
Who asks has verified both logs against the quotes that came with them.
"""

# Longer than 500 lines: the words for each reason why a PCR changed stand side by side.
# Algorithms for: event-log
from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import chain, islice
from types import MappingProxyType
from typing import Final, NamedTuple

from attestation.evidence.event_log import (
    IMA_PCR,
    EventType,
    Image,
    LogEvent,
    Measured,
    ReplayedLog,
    SecureBootState,
    certificate_subject,
    printable,
)
from attestation.tpm import bank_name

_MOST_LINES: Final = 40
_MOST_WORDS: Final = 12
_MOST_PHRASES: Final = 12
_MOST_NAMED: Final = 3
_VARIABLES: Final = frozenset({EventType.EFI_VARIABLE_BOOT, EventType.EFI_VARIABLE_BOOT2})
_SECURE_BOOT: Final = frozenset(
    {EventType.EFI_VARIABLE_DRIVER_CONFIG, EventType.EFI_VARIABLE_AUTHORITY, EventType.EFI_ACTION}
)
_SAID_BY_STATE: Final = re.compile(
    r"(SecureBoot|PK|KEK|db|dbx)\b|accepted by|SbatLevel|UEFI Debug Mode|DMA Protection"
)
"""Events of PCR 7 of which the difference of two `SecureBootState` says everything."""
_GPT: Final = frozenset({EventType.EFI_GPT_EVENT, EventType.EFI_GPT_EVENT2})
_BLOBS: Final = frozenset(
    {
        EventType.POST_CODE,
        EventType.POST_CODE2,
        EventType.S_CRTM_CONTENTS,
        EventType.EFI_PLATFORM_FIRMWARE_BLOB,
        EventType.EFI_PLATFORM_FIRMWARE_BLOB2,
        EventType.EFI_HCRTM_EVENT,
    }
)
_IMAGES: Final = frozenset(
    {
        EventType.EFI_BOOT_SERVICES_APPLICATION,
        EventType.EFI_BOOT_SERVICES_DRIVER,
        EventType.EFI_RUNTIME_SERVICES_DRIVER,
    }
)
_KINDS: Final[Mapping[str, str]] = MappingProxyType(
    {"boot-loader": "boot loader", "driver": "option ROM driver", "kernel": "kernel", "image": "image"}
)
_DANGER: Final = "DANGEROUS"
_DANGEROUS: Final = tuple(
    (re.compile(pattern), words)
    for pattern, words in (
        (r"\b(?:set )?check_signatures=no\b", "the boot loader starts what is not signed"),
        (
            r"\brmmod (?:tpm|shim_lock|verifiers)\b",
            "the boot loader stops measuring or checking what it loads",
        ),
        (r"\b(?:rd)?init=\S+", "another program runs in place of init"),
        (r"(?<!\S)rd\.(?:break|shell)(?!\w)", "a shell without a login"),
        (r"(?<!\S)(?:single|emergency|rescue|systemd\.debug[-_]shell)(?!\w)", "a shell without a login"),
        (r"(?<!\S)systemd\.unit=(?:rescue|emergency)\S*", "a shell without a login"),
        (r"\b(?:lockdown=none|module\.sig_enforce=0)", "root can change the running kernel"),
        (r"\b(?:selinux|enforcing|apparmor)=0\b", "mandatory access control is off"),
        (r"\bima_appraise=(?:off|log|fix)\b", "IMA does not refuse changed files"),
        (r"\b(?:intel_|amd_)?iommu=off\b", "devices reach all memory"),
        (r"\bmitigations=off\b", "known faults of the processor are open"),
    )
)
"""Words of a boot that an attacker would write, and what they mean. A help for people: no list of these is complete."""
_CONTENTS: Final[Mapping[int, str]] = MappingProxyType(
    {
        0: "firmware code",
        1: "firmware settings",
        2: "option ROMs",
        3: "settings of option ROMs",
        4: "boot loaders",
        5: "partition table and boot attempts",
        6: "events of the vendor",
        7: "Secure Boot",
        8: "boot loader commands",
        9: "files read by the boot loader",
        11: "the unified kernel image",
        12: "kernel command line and credentials",
        13: "system extensions",
        14: "shim's own keys",
    }
)


_FIRMWARES: Final = range(8)
"""PCRs that nobody extends after firmware and boot loader, whose log they are."""


class Explanation(NamedTuple):
    """Why a PCR has the value it has.

    Args:
        pcr: Which.
        text: One sentence.
        entries: The details, one line each: what was added (`+`) and removed (`-`), or every event.
    """

    pcr: int
    text: str
    entries: tuple[str, ...]


def describe(replayed: ReplayedLog) -> tuple[str, ...]:
    """Return one line per event: index, PCR, type, the first bytes of the digest, and what it says."""
    return tuple(
        f"{e.index:4d}  PCR {_pcr(e):>2}  {e.type_name:<32} {e.digest.hex()[:16]}  {e.text}".rstrip()
        for e in replayed.events
    )


def _pcr(event: LogEvent) -> str:
    return "-" if event.event_type == EventType.NO_ACTION else str(event.pcr)


def explain(
    before: ReplayedLog | None, after: ReplayedLog, changed: Collection[int]
) -> tuple[Explanation, ...]:
    """Explain each PCR of *changed*.

    Args:
        before: The log of the earlier boot; None where there is none. One of another bank is none either.
        after: The log of this boot.
        changed: The PCRs to explain.
    """
    if before is not None and before.bank != after.bank:
        before = None
    return tuple(
        _made_of(after, pcr) if before is None else _change(before, after, pcr, changed)
        for pcr in sorted(changed)
    )


def unexplained(pcr: int, changed: Collection[int], *, kept: bool = True) -> str:
    """Say why a PCR is not as it was, or not as it should be, where no event log leads to its value.

    Args:
        pcr: Which.
        changed: All that changed since the boot it is compared with; without *pcr*, it is not as a policy accepts.
        kept: There is an event log of this boot.
    """
    what = f"PCR {pcr} changed" if pcr in changed else f"PCR {pcr} is not as the policy accepts"
    if pcr == IMA_PCR:
        return f"{what}: {_ima(changed)}"
    if not kept:
        return f"{what}: no event log of this boot is kept, so nothing tells why"
    if pcr in _FIRMWARES:
        return (
            f"{what}: the event log leads to another value, so it is the log of another boot, or was changed;"
            " nothing is compared with it"
        )
    return f"{what}: the event log does not lead to its value; later software extended it"


def _ima(changed: Collection[int]) -> str:
    followed = sorted(pcr for pcr in changed if pcr < IMA_PCR)
    if not followed:
        return "the kernel extends it with files it measures (IMA); see the measurement list"
    return (
        "its first entry, boot_aggregate, is a digest over PCR 0 to 9, so it follows PCR"
        f" {', '.join(map(str, followed))}; what the kernel measured after it stands in the measurement list"
    )


def _said_the_same(pcr: int, changed: Collection[int]) -> str:
    """Say why a PCR changed of which both event logs say the same."""
    if pcr == IMA_PCR:
        why = _ima(changed)
    elif pcr == 11:
        why = "both event logs say the same of it; phases of the boot are extended after the log ended"
    else:
        why = "both event logs say the same of it; something extended it after the log ended"
    return f"PCR {pcr} changed: {why}"


def _made_of(replayed: ReplayedLog, pcr: int) -> Explanation:
    """Say which events make up *pcr*, where there is nothing to compare with."""
    events = list(replayed.events_of(pcr))
    if not events:
        return Explanation(pcr, f"PCR {pcr} is not extended by anything in the event log", ())
    words = f" ({_CONTENTS[pcr]})" if pcr in _CONTENTS else ""
    text = (
        f"PCR {pcr}{words} is made of {_count(len(events), 'event')} in the {bank_name(replayed.bank)} bank"
    )
    return Explanation(pcr, text, _cut(map(_line, events), len(events)))


class _Difference:
    """The events of one PCR that only one of two logs has, as often as it has them more."""

    def __init__(self, before: ReplayedLog, after: ReplayedLog, pcr: int) -> None:
        old, new = list(before.events_of(pcr)), list(after.events_of(pcr))
        self.removed = _only(old, new)
        self.added = _only(new, old)
        self.reordered = not self.removed and not self.added and _digests(old) != _digests(new)

    def take(self, of: Callable[[LogEvent], bool]) -> tuple[list[LogEvent], list[LogEvent]]:
        """Take out what is *of* a kind: removed and added."""
        removed = [e for e in self.removed if of(e)]
        added = [e for e in self.added if of(e)]
        self.removed = [e for e in self.removed if not of(e)]
        self.added = [e for e in self.added if not of(e)]
        return removed, added


def _digests(events: Iterable[LogEvent]) -> list[bytes]:
    return [e.digest for e in events]


def _only(these: Sequence[LogEvent], those: Sequence[LogEvent]) -> list[LogEvent]:
    """Return the events of *these* beyond those with an equal digest in *those*."""
    there = Counter(_digests(those))
    found = []
    for event in these:
        if there[event.digest] > 0:
            there[event.digest] -= 1
        else:
            found.append(event)
    return found


def _change(before: ReplayedLog, after: ReplayedLog, pcr: int, changed: Collection[int]) -> Explanation:
    difference = _Difference(before, after, pcr)
    removed, added = difference.removed, difference.added
    lines = chain((f"- {_line(e)}" for e in removed), (f"+ {_line(e)}" for e in added))
    details: list[str] = []
    phrases: list[str] = []
    if difference.removed or difference.added:
        words = _EXPLAINERS.get(pcr)
        if words is not None:
            for phrase, more in words(before, after, difference):
                phrases.append(phrase)
                details += more
        phrases += _rest(difference)
    elif difference.reordered:
        phrases.append("the same events in another order")
    if pcr == 0 and before.startup_locality != after.startup_locality:
        phrases.append(
            f"the TPM was started at locality {after.startup_locality or 0}, before at {before.startup_locality or 0}"
        )
    if not phrases:
        return Explanation(pcr, _said_the_same(pcr, changed), ())
    # What an attacker would have written stands first, and once: the boot loader measures some of it twice.
    phrases = sorted(dict.fromkeys(phrases), key=lambda phrase: not phrase.startswith(_DANGER))
    if len(phrases) > _MOST_PHRASES:
        phrases[_MOST_PHRASES:] = [f"and {len(phrases) - _MOST_PHRASES} more changes"]
    entries = _cut(chain(lines, details), len(removed) + len(added) + len(details))
    return Explanation(pcr, f"PCR {pcr} changed: {'; '.join(phrases)}", entries)


def _rest(difference: _Difference) -> Iterator[str]:
    """Say what nobody explained, by type."""
    removed = Counter(e.type_name for e in difference.removed)
    added = Counter(e.type_name for e in difference.added)
    for name in sorted(removed.keys() | added.keys()):
        gone, new = removed[name], added[name]
        if gone == new:
            yield f"{_count(new, 'event')} of {name} changed"
        else:
            parts = [f"{n} {word}" for n, word in ((new, "added"), (gone, "removed")) if n]
            yield f"events of {name}: {', '.join(parts)}"


# ---------------------------------------------------------------- one explainer per PCR

_Said = Iterator[tuple[str, list[str]]]
"""A phrase, and lines of details."""


def _firmware(_before: ReplayedLog, _after: ReplayedLog, difference: _Difference) -> _Said:
    removed, added = difference.take(lambda e: e.event_type == EventType.S_CRTM_VERSION)
    if removed or added:
        yield f"firmware version {_from_to(_texts(removed), _texts(added))}", []
    removed, added = difference.take(lambda e: e.event_type in _BLOBS)
    if removed or added:
        yield f"firmware code changed ({_plus_minus(len(added), len(removed), 'part')})", []


def _configuration(_before: ReplayedLog, _after: ReplayedLog, difference: _Difference) -> _Said:
    removed, added = difference.take(lambda e: e.event_type in _VARIABLES)
    old, new = _variables(removed), _variables(added)
    for name in sorted(old.keys() | new.keys()):
        if name == "BootOrder":
            yield f"boot order {_from_to(old.get(name, 'none'), new.get(name, 'none'))}", []
        elif name not in old:
            yield f"{name} added: {new[name]}", []
        elif name not in new:
            yield f"{name} removed: {old[name]}", []
        elif old[name] != new[name]:
            yield f"{name} changed: {old[name]} -> {new[name]}", []
        else:
            yield f"{name} changed: {new[name]}", []
    removed, added = difference.take(
        lambda e: e.event_type in (EventType.EFI_HANDOFF_TABLES, EventType.EFI_HANDOFF_TABLES2)
    )
    if removed or added:
        yield "tables that the firmware hands over (SMBIOS, ACPI) changed", []
    removed, added = difference.take(lambda e: e.event_type == EventType.CPU_MICROCODE)
    if removed or added:
        yield "CPU microcode changed", []


def _variables(events: Iterable[LogEvent]) -> dict[str, str]:
    """Return name -> contents of boot variables, in words."""
    found: dict[str, str] = {}
    for event in events:
        name, _, value = event.text.removesuffix(" (unchecked)").partition(": ")
        found[name] = value or "no text"
    return found


def _images(pcr: int) -> Callable[[ReplayedLog, ReplayedLog, _Difference], _Said]:
    """Make the explainer of PCR 2 or 4."""

    def explain_images(before: ReplayedLog, after: ReplayedLog, difference: _Difference) -> _Said:
        removed, added = difference.take(lambda e: e.event_type in _IMAGES)
        gone = _unique(before.boot.images, {e.index for e in removed}, pcr)
        new = _unique(after.boot.images, {e.index for e in added}, pcr)
        if pcr == 4:
            yield from _kernels_without_secure_boot(before, after, gone, new)
        yield from ((phrase, []) for phrase in _replaced(gone, new))

    return explain_images


def _kernels_without_secure_boot(
    before: ReplayedLog, after: ReplayedLog, gone: list[tuple[str, bytes]], new: list[tuple[str, bytes]]
) -> _Said:
    """Take out kernels that are gone or new only because a boot loader asks the firmware where Secure Boot is on."""
    was, is_ = before.secure_boot.measured, after.secure_boot.measured
    here, there = ([image for image in images if image[0].startswith("kernel")] for images in (gone, new))
    if was == "on" and is_ != "on" and here and not there:
        gone[:] = [image for image in gone if image not in here]
        yield "no kernel is measured here because Secure Boot is off: PCR 8 and 9 tell what was started", []
    elif was != "on" and is_ == "on" and there and not here:
        new[:] = [image for image in new if image not in there]
        yield f"the kernel is measured here because Secure Boot is on ({_short(there[0][1])})", []


def _unique(images: Iterable[Image], events: Collection[int], pcr: int) -> list[tuple[str, bytes]]:
    """Return name and digest of the images that *events* tell of, each once."""
    found: dict[tuple[str, bytes], None] = {}
    for image in images:
        if image.pcr == pcr and image.event in events:
            name = image.path.rpartition("/")[2]
            found[(f"{_KINDS[image.kind]} {name}".rstrip(), image.digest)] = None
    return list(found)


def _replaced(gone: Sequence[tuple[str, bytes]], new: Sequence[tuple[str, bytes]]) -> Iterator[str]:
    """Pair what is gone with what is new by name; say what was replaced, added and removed."""
    unpaired: dict[str, deque[bytes]] = {}
    for name, digest in gone:
        unpaired.setdefault(name, deque()).append(digest)
    added = []
    for name, digest in new:
        old = unpaired.get(name)
        if old:
            yield f"{name} replaced ({_short(old.popleft())} -> {_short(digest)})"
        else:
            added.append(f"{name} added ({_short(digest)})")
    yield from added
    yield from (f"{name} removed ({_short(digest)})" for name, old in unpaired.items() for digest in old)


def _partitions(_before: ReplayedLog, _after: ReplayedLog, difference: _Difference) -> _Said:
    removed, added = difference.take(lambda e: e.event_type in _GPT)
    if removed or added:
        yield _from_to(_texts(removed), _texts(added)), []
    removed, added = difference.take(lambda e: e.event_type == EventType.EFI_ACTION)
    yield from ((f"“{e.text}” is gone", []) for e in removed)
    yield from ((f"“{e.text}” is new", []) for e in added)


def _secure_boot(before: ReplayedLog, after: ReplayedLog, difference: _Difference) -> _Said:
    old, new = before.secure_boot, after.secure_boot
    said = list(_secure_boot_changes(old, new))
    if said:
        difference.take(lambda e: e.event_type in _SECURE_BOOT and _SAID_BY_STATE.match(e.text) is not None)
    yield from said


def _secure_boot_changes(old: SecureBootState, new: SecureBootState) -> _Said:
    if old.measured != new.measured:
        words = {"on": "Secure Boot turned on", "off": "Secure Boot turned off"}
        yield words.get(new.measured, f"Secure Boot: {old.measured} -> {new.measured}"), []
    for name in ("PK", "KEK", "db", "dbx"):
        yield from _database(name, old, new)
    yield from _authorities(old, new)
    if old.sbat != new.sbat:
        yield f"SBAT level {_from_to(_sbat(old.sbat), _sbat(new.sbat))}", []
    for flag, words_on, words_off in (
        ("debug", "a debugger is attached to the firmware", "no debugger is attached any more"),
        ("dma_protection_disabled", "DMA protection is disabled", "DMA protection is on again"),
    ):
        if getattr(old, flag) != getattr(new, flag):
            yield words_on if getattr(new, flag) else words_off, []


def _database(name: str, old: SecureBootState, new: SecureBootState) -> _Said:
    was, is_ = old.database(name), new.database(name)
    certificates = {sha256(der).hexdigest(): der for der in (*was.certificates, *is_.certificates)}
    added, removed = sorted(is_.sha256 - was.sha256), sorted(was.sha256 - is_.sha256)
    others = len(is_.others - was.others) + len(was.others - is_.others)
    parts, named = [], []
    for sign, word, entries in (("+", "added", added), ("-", "removed", removed)):
        of_certificates = [certificate_subject(certificates[e]) for e in entries if e in certificates]
        named += [f"{name}: certificate '{subject}' {word}" for subject in of_certificates[:_MOST_NAMED]]
        if len(of_certificates) > _MOST_NAMED:
            parts.append(f"{sign}{_count(len(of_certificates) - _MOST_NAMED, 'more certificate')}")
        if len(entries) > len(of_certificates):
            parts.append(f"{sign}{_count(len(entries) - len(of_certificates), 'hash')}")
    if others:
        parts.append(f"{_count(others, 'other entry')}")
    if parts:
        named.append(f"{name} updated ({', '.join(parts)})")
    if named:
        details = [
            f"{sign} {name}: {_entry(entry, certificates)}"
            for sign, entries in (("+", added), ("-", removed))
            for entry in entries
        ]
        yield "; ".join(named), details
    elif dict(old.variables).get(name) != dict(new.variables).get(name):
        yield f"{name} rewritten with the same entries", []


def _entry(entry: str, certificates: Mapping[str, bytes]) -> str:
    der = certificates.get(entry)
    return f"{certificate_subject(der)} ({entry[:16]}…)" if der is not None else f"hash {entry}"


def _authorities(old: SecureBootState, new: SecureBootState) -> _Said:
    was = {a.sha256: a for a in old.authorities}
    is_ = {a.sha256: a for a in new.authorities}
    for sign, word, found in (
        ("+", "new authority", [a for k, a in is_.items() if k not in was]),
        ("-", "authority no longer used", [a for k, a in was.items() if k not in is_]),
    ):
        for authority in found:
            name = authority.subject or f"hash {authority.sha256[:16]}…"
            yield f"{word} {authority.name}: {name}", [f"{sign} {authority.name} {authority.sha256}"]


def _sbat(text: str | None) -> str:
    """Return the date in an SBAT level: `sbat,1,2025021800` at its start."""
    if text is None:
        return "none"
    fields = text.partition("\n")[0].split(",")
    return printable(fields[2] if len(fields) > 2 else text)


def _commands(before: ReplayedLog, after: ReplayedLog, difference: _Difference) -> _Said:
    """PCR 8: the command line first, then dangerous commands and the number of all others."""
    yield from _command_lines(before, after, difference, 8)
    removed, added = difference.take(lambda e: e.event_type == EventType.IPL)
    for event in added:
        yield from _dangers(event.text)
    if removed or added:
        yield f"boot loader commands changed ({_plus_minus(len(added), len(removed), 'command')})", []


def _command_lines(before: ReplayedLog, after: ReplayedLog, difference: _Difference, pcr: int) -> _Said:
    old = _of_events(before.boot.command_lines, difference.removed, pcr)
    new = _of_events(after.boot.command_lines, difference.added, pcr)
    taken = {m.digest for m in (*old, *new)}
    difference.take(lambda e: e.digest in taken)
    was, is_ = _distinct(old), _distinct(new)
    for a, b in zip(was, is_, strict=False):
        new_words = Counter(b.split()) - Counter(a.split())
        yield from _dangers(" ".join(new_words))
        yield f"kernel command line: {_word_difference(a, b)}", [f"- {a}", f"+ {b}"] if a != b else []
    for b in is_[len(was) :]:
        yield from _dangers(b)
        yield f"command line added: {b}", []
    yield from ((f"command line removed: {a}", []) for a in was[len(is_) :])


def _dangers(text: str) -> _Said:
    """Name what an attacker would have written."""
    for pattern, words in _DANGEROUS:
        found = pattern.search(text)
        if found is not None:
            yield f"{_DANGER}: `{found[0]}` ({words})", []


def _of_events(found: Iterable[Measured], events: Iterable[LogEvent], pcr: int) -> list[Measured]:
    indices = {e.index for e in events}
    return [m for m in found if m.pcr == pcr and m.event in indices]


def _distinct(lines: Iterable[Measured]) -> list[str]:
    unknown = "one that the log does not show"
    return list(dict.fromkeys(printable(m.text) if m.text is not None else unknown for m in lines))


def _word_difference(old: str, new: str) -> str:
    """Return which words came and went, e.g. `+ init=/bin/sh, - quiet`."""
    was, is_ = Counter(old.split()), Counter(new.split())
    words = [f"+ {w}" for w in (is_ - was)] + [f"- {w}" for w in (was - is_)]
    if not words:
        return "the same words in another order" if old != new else _from_to(old, new)
    more = f", and {len(words) - _MOST_WORDS} more" if len(words) > _MOST_WORDS else ""
    return ", ".join(words[:_MOST_WORDS]) + more


def _files(before: ReplayedLog, after: ReplayedLog, difference: _Difference) -> _Said:
    old = _named(before, difference.removed)
    new = _named(after, difference.added)
    difference.take(lambda _: True)
    yield from ((phrase, []) for phrase in _replaced(old, new))


def _named(replayed: ReplayedLog, events: Iterable[LogEvent]) -> list[tuple[str, bytes]]:
    """Return what each file of PCR 9 is, with its digest, each once."""
    kernels = {m.event for m in replayed.boot.kernels}
    initrds = {m.event for m in replayed.boot.initrds}
    names = {m.event: m.text or "" for m in replayed.boot.files}
    found: dict[tuple[str, bytes], None] = {}
    for event in events:
        kind = "kernel" if event.index in kernels else "initrd" if event.index in initrds else "file"
        found[(f"{kind} {names.get(event.index, '')}".rstrip(), event.digest)] = None
    return list(found)


def _sections(before: ReplayedLog, after: ReplayedLog, difference: _Difference) -> _Said:
    removed = {e.index for e in difference.removed}
    added = {e.index for e in difference.added}
    old = [(f"section {s.name}", s.digest) for s in before.boot.uki_sections if s.event in removed]
    new = [(f"section {s.name}", s.digest) for s in after.boot.uki_sections if s.event in added]
    if old or new:
        difference.take(lambda _: True)
    yield from ((phrase, []) for phrase in _replaced(old, new))


def _options(before: ReplayedLog, after: ReplayedLog, difference: _Difference) -> _Said:
    yield from _command_lines(before, after, difference, 12)


def _shim_keys(_before: ReplayedLog, _after: ReplayedLog, difference: _Difference) -> _Said:
    removed, added = difference.take(lambda e: e.event_type == EventType.IPL)
    names = dict.fromkeys(e.text.removesuffix(" (unchecked)") for e in (*removed, *added))
    if names:
        yield f"shim's {', '.join(names)} changed", []


_EXPLAINERS: Final[Mapping[int, Callable[[ReplayedLog, ReplayedLog, _Difference], _Said]]] = MappingProxyType(
    {
        0: _firmware,
        1: _configuration,
        2: _images(2),
        4: _images(4),
        5: _partitions,
        7: _secure_boot,
        8: _commands,
        9: _files,
        11: _sections,
        12: _options,
        14: _shim_keys,
    }
)


# ---------------------------------------------------------------- words


def _line(event: LogEvent) -> str:
    return f"event {event.index} {event.type_name} {event.digest.hex()[:16]}… {event.text}".rstrip()


def _texts(events: Iterable[LogEvent]) -> str:
    return ", ".join(e.text.strip() or _short(e.digest) for e in events) or "none"


def _from_to(old: str, new: str) -> str:
    """Return both sides of a change, or one where the log says the same of both."""
    return f"{old} -> {new}" if old != new else f"{new}, measured differently"


def _short(digest: bytes) -> str:
    return f"{digest.hex()[:12]}…"


def _count(number: int, word: str) -> str:
    if number == 1:
        return f"1 {word}"
    plural = f"{word[:-1]}ies" if word.endswith("y") else f"{word}es" if word.endswith("sh") else f"{word}s"
    return f"{number} {plural}"


def _plus_minus(added: int, removed: int, word: str) -> str:
    return ", ".join(f"{sign}{_count(n, word)}" for sign, n in (("+", added), ("-", removed)) if n)


def _cut(lines: Iterable[str], count: int) -> tuple[str, ...]:
    """Return the first of *count* lines, and how many more there are. The others are never made."""
    shown = tuple(islice(lines, _MOST_LINES))
    return shown if count <= _MOST_LINES else (*shown, f"… and {count - _MOST_LINES} more")
