"""From what machines proved to a policy that they keep: groups, outliers, a proposal.

Learning trusts what it is shown: whatever runs on these machines becomes what is expected. So it says what
they have in common and who differs, proposes the narrowest rules that most of them keep, and leaves out those
that stand alone. Nothing here is stored or applied.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from attestation.appraisal.boot import constants
from attestation.appraisal.explain import explain
from attestation.errors import EventLogRejected, PolicyInvalid
from attestation.evidence import event_log
from attestation.evidence.event_log import EventLogClaims, ReplayedLog
from attestation.reference import FORMAT, parse_policy
from attestation.reference.patterns import parse_command_pattern, words_of
from attestation.tpm.hashes import bank_alg

MOST_VALUES: Final = 8
"""So many values of one PCR are listed; more than these are no reference values any more."""
MOST_DIGESTS: Final = 256
MOST_LINES: Final = 16
_FEW: Final = 4
"""Below so many machines nobody is called an outlier."""
_MAIN: Final = 0.75
"""Part of the machines that must be in groups before those outside are outliers."""
_OF_GROUP: Final = 0.1
"""Part of the machines that make a group; two at least."""
_IMA: Final = 10
_PARTICULAR: Final[Mapping[int, str]] = {
    1: "differs from machine to machine: settings and serial numbers",
    3: "differs from machine to machine: settings of devices",
    5: "differs from machine to machine: boot order and partition table",
    6: "differs from machine to machine: set by the manufacturer",
    8: "differs from machine to machine: commands of the boot loader",
    9: "differs from machine to machine: files that the boot loader read",
    12: "differs from machine to machine: command line",
    15: "differs from machine to machine: set by the system that runs",
}
"""PCRs that may be ignored where every machine has another value, and why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capture:
    """What one machine proved.

    Args:
        machine_id: Its id, or a name that people know it by.
        values: Quoted PCRs: index -> value.
        replayed: Its event log in that bank, where there is one. Believed only as far as it leads to `values`.
    """

    machine_id: str
    values: Mapping[int, bytes]
    replayed: ReplayedLog | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Machines that have the same of something.

    Args:
        subject: Of what: `pcr7`, `secure-boot`, `kernel`, `command-line`, …
        value: What they have.
        machines: Who, in the order they were given.
    """

    subject: str
    value: str
    machines: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlier:
    """A machine that stands alone, and is left out of the proposal.

    Args:
        machine_id: Who.
        reason: In what, in words; what its event log explains stands there, too.
    """

    machine_id: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A policy that most of the machines keep.

    Args:
        document: As `parse_policy` reads it.
        groups: Who has the same of what, outliers left out.
        outliers: Who stands alone.
        notes: What whoever decides about it should know.
    """

    document: Mapping[str, object]
    groups: tuple[Group, ...]
    outliers: tuple[Outlier, ...]
    notes: tuple[str, ...]


def learn(captures: Sequence[Capture], *, name: str, version: int = 1, bank: str = "sha256") -> Proposal:
    """Propose a policy from what machines proved.

    Args:
        captures: One per machine, all quoted in *bank*.
        name: Of the policy.
        version: Of the policy.
        bank: Name of the bank.

    Raises:
        PolicyInvalid: There is no evidence, or nothing in it that a policy could demand.
    """
    seen = [capture for capture in captures if capture.values]
    if not seen:
        raise PolicyInvalid("there is no evidence to learn from")
    learner = _Learner(seen, bank)
    notes = learner.notes
    if len(seen) < len(captures):
        notes.append(f"left out, without evidence: {_machines(len(captures) - len(seen))}")
    outliers = learner.leave_out()
    document: dict[str, object] = {
        "format": FORMAT,
        "name": name,
        "version": version,
        "description": f"learned from {_machines(len(learner.captures))}",
        "bank": bank,
        **learner.rules(),
    }
    return Proposal(
        document=_fitting(document, notes),
        groups=tuple(learner.groups),
        outliers=tuple(outliers),
        notes=tuple(notes),
    )


def _fitting(document: dict[str, object], notes: list[str]) -> dict[str, object]:
    """Return *document* as a policy can be: without the lists that make it too long."""
    for member in ("secure_boot", "boot"):
        try:
            parse_policy(document)
        except PolicyInvalid as error:
            if "longer than" not in str(error) or member not in document:
                raise
            del document[member]
            notes.append(f"{member} would make the policy too long and was left out")
    parse_policy(document)
    return document


def _machines(count: int) -> str:
    return "1 machine" if count == 1 else f"{count} machines"


class _Learner:
    """Looks at the same machines again and again.

    Args:
        captures: Those with evidence.
        bank: Name of the bank.
    """

    def __init__(self, captures: list[Capture], bank: str) -> None:
        self.captures = captures
        self.groups: list[Group] = []
        self.notes: list[str] = []
        self._bank = bank_alg(bank)
        self._claims: dict[str, EventLogClaims | None] = {c.machine_id: self._proven(c) for c in captures}

    def _proven(self, capture: Capture) -> EventLogClaims | None:
        """Return what the log of *capture* proves of the PCRs to which it leads."""
        replayed = capture.replayed
        if replayed is None or replayed.bank != self._bank:
            return None
        leads = {pcr: v for pcr, v in capture.values.items() if replayed.values.get(pcr) == v}
        leads.pop(_IMA, None)
        try:
            return event_log.verify(replayed, quoted=leads)
        except EventLogRejected:
            return None

    # ------------------------------------------------------------ outliers

    def leave_out(self) -> list[Outlier]:
        """Take out the machines that stand alone where nearly all others are in groups; return them."""
        if len(self.captures) < _FEW:
            return []
        reasons: dict[str, list[str]] = {}
        for pcr in self._pcrs(self.captures):
            by_value = self._by_value(pcr)
            least = max(2, round(_OF_GROUP * len(self.captures)))
            alone = [c for group in by_value.values() if len(group) < least for c in group]
            main = max(by_value.values(), key=len)
            if alone and len(self.captures) - len(alone) >= _MAIN * len(self.captures):
                for capture in alone:
                    reasons.setdefault(capture.machine_id, []).append(self._difference(main[0], capture, pcr))
        outliers = [Outlier(machine_id=m, reason="; ".join(found)) for m, found in reasons.items()]
        self.captures = [c for c in self.captures if c.machine_id not in reasons]
        return outliers

    def _difference(self, usual: Capture, capture: Capture, pcr: int) -> str:
        """Return in what *capture* differs, explained by its log where that leads to the PCR."""
        ours, theirs = self._claims[capture.machine_id], self._claims[usual.machine_id]
        if ours is None or theirs is None or pcr not in ours.pcrs or pcr not in theirs.pcrs:
            return f"PCR {pcr} is {capture.values[pcr].hex()}"
        return explain(theirs.replayed, ours.replayed, [pcr])[0].text

    # ------------------------------------------------------------ rules

    def rules(self) -> dict[str, object]:
        """Return the members of the proposal."""
        quoted = self._pcrs(self.captures)
        told = {pcr for capture in self.captures for pcr in capture.values}
        if told - set(quoted):
            missing = ", ".join(map(str, sorted(told - set(quoted))))
            self.notes.append(f"PCR {missing}: not quoted by every machine, left out")
        if len(self.captures) == 1:
            self.notes.append("learned from one machine: values that belong to it alone fit no other")
        pcrs = {pcr: self._pcr(pcr) for pcr in quoted}
        members: dict[str, object] = {}
        claims = [self._claims[c.machine_id] for c in self.captures]
        logs = [found for found in claims if found is not None]
        if len(logs) == len(claims):
            self._from_logs(logs, pcrs, members)
        else:
            self.notes.append(
                "no rule about Secure Boot, kernels or command lines is proposed, for want of event logs that lead to "
                f"the quoted PCRs: {_machines(len(claims) - len(logs))}"
            )
        return {"pcrs": {str(pcr): rule for pcr, rule in sorted(pcrs.items())}, **members}

    def _pcr(self, pcr: int) -> dict[str, object]:
        """Return the rule of one PCR by its value."""
        by_value = self._by_value(pcr)
        machines, values = len(self.captures), len(by_value)
        if pcr == _IMA:
            return {"ignore": "grows while the system runs; judge it by ima"}
        particular = values > 1 and values == machines
        if particular and pcr in _PARTICULAR:
            return {"ignore": _PARTICULAR[pcr]}
        if values > MOST_VALUES:
            self.notes.append(
                f"PCR {pcr} has {values} values on {machines} machines: it is ignored, and nothing else judges it"
            )
            return {"ignore": f"{values} values on {machines} machines"}
        if particular:
            self.notes.append(f"PCR {pcr} differs on every machine: all {values} values are listed")
        self._tell(f"pcr{pcr}", {v.hex(): [c.machine_id for c in g] for v, g in by_value.items()})
        return {"any_of": [value.hex() for value in by_value]}

    def _from_logs(
        self,
        logs: list[EventLogClaims],
        pcrs: dict[int, dict[str, object]],
        members: dict[str, object],
    ) -> None:
        """Add the rules that event logs allow, and take back what they judge better."""
        if 7 in pcrs:
            self._secure_boot(logs, pcrs, members)
        if self._led(logs, 4):
            self._by_events(4, logs, pcrs)
        boot: dict[str, object] = {}
        if self._led(logs, 4) and self._led(logs, 9):
            self._by_events(9, logs, pcrs)
            for member, subject, pick in (
                ("kernels", "kernel", lambda c: c.kernels),
                ("initrds", "initrd", lambda c: c.initrds),
            ):
                digests = self._listed(subject, logs, pick)
                if digests:
                    boot[member] = digests
        elif 9 not in pcrs:
            self.notes.append(
                "PCR 8, 9 and 12 were not quoted: name them in a policy, then kernels, initrds and command lines "
                "can be learned"
            )
        if self._led(logs, 8) and self._led(logs, 12):
            lines = self._command_lines(logs)
            if lines:
                boot["command_lines"] = lines
        if boot:
            members["boot"] = boot

    def _led(self, logs: list[EventLogClaims], pcr: int) -> bool:
        return all(pcr in claims.pcrs for claims in logs)

    def _by_events(self, pcr: int, logs: list[EventLogClaims], pcrs: dict[int, dict[str, object]]) -> None:
        """Judge a PCR by its events: an order or a number of them that differs is no difference in what ran."""
        common = constants(self._bank)
        digests = {
            event.digest.hex()
            for claims in _distinct(logs)
            for event in claims.replayed.events_of(pcr)
            if event.digest not in common
        }
        if digests and len(digests) <= MOST_DIGESTS:
            pcrs[pcr] = {"events": "approved-digests", "digests": sorted(digests)}
            self.groups = [group for group in self.groups if group.subject != f"pcr{pcr}"]
            self.notes[:] = [note for note in self.notes if not note.startswith(f"PCR {pcr} ")]

    def _listed(
        self,
        subject: str,
        logs: list[EventLogClaims],
        pick: Callable[[EventLogClaims], Iterable[event_log.Measured]],
    ) -> list[str]:
        found: dict[str, list[str]] = {}
        for capture, claims in zip(self.captures, logs, strict=True):
            for measured in pick(claims):
                machines = found.setdefault(measured.digest.hex(), [])
                if capture.machine_id not in machines:
                    machines.append(capture.machine_id)
        if len(found) > MOST_DIGESTS:
            self.notes.append(f"{len(found)} digests of {subject}s: not listed")
            return []
        self._tell(subject, found)
        return sorted(found)

    def _secure_boot(
        self,
        logs: list[EventLogClaims],
        pcrs: dict[int, dict[str, object]],
        members: dict[str, object],
    ) -> None:
        """Demand Secure Boot with the keys of these machines where it is on everywhere."""
        if not self._led(logs, 7):
            return
        states = [claims.secure_boot for claims in logs]
        by_state: dict[str, list[str]] = {}
        for capture, state in zip(self.captures, states, strict=True):
            word = (
                "on" if state.enabled else state.measured if state.measured != "on" else "on, with problems"
            )
            by_state.setdefault(word, []).append(capture.machine_id)
        self._tell("secure-boot", by_state)
        if not all(state.enabled for state in states):
            self.notes.append("Secure Boot is not on everywhere: it is not demanded")
            return
        distinct = list({claims.sha256: claims.secure_boot for claims in logs}.values())
        db = set().union(*(state.db_sha256 for state in distinct))
        dbx = set.intersection(*(set(state.dbx_sha256) for state in distinct))
        authorities = {a.sha256 for state in distinct for a in state.authorities}
        rules: dict[str, object] = {"required": True, "debug": "forbid"}
        for member, values in (("db_sha256", db), ("dbx_min", dbx), ("authorities", authorities)):
            if 0 < len(values) <= 2 * MOST_DIGESTS:
                rules[member] = sorted(values)
        members["secure_boot"] = rules
        if "any_of" not in pcrs[7]:
            pcrs[7] = {"ignore": "changes with every update of dbx; judged by secure_boot"}
            self.notes[:] = [note for note in self.notes if not note.startswith("PCR 7 ")]

    def _command_lines(self, logs: list[EventLogClaims]) -> list[str]:
        """Return patterns for every command line, or none where they have too little in common."""
        found: dict[str, list[str]] = {}
        for capture, claims in zip(self.captures, logs, strict=True):
            for line in claims.command_lines:
                words = words_of(line.text) if line.text is not None else None
                if not words:
                    self.notes.append("a command line cannot be read from its log: none is demanded")
                    return []
                found.setdefault(" ".join(words), []).append(capture.machine_id)
        patterns = list(found) if len(found) <= MOST_LINES else _merged(found)
        if len(patterns) > MOST_LINES or not all(parse_command_pattern(p) for p in patterns):
            self.notes.append(f"{len(found)} command lines have too little in common: none is demanded")
            return []
        self._tell("command-line", found)
        return sorted(patterns)

    # ------------------------------------------------------------ helpers

    def _pcrs(self, captures: Sequence[Capture]) -> list[int]:
        """Return the PCRs 0-15 that all of *captures* have."""
        every = [set(capture.values) for capture in captures]
        return sorted(pcr for pcr in set.intersection(*every) if pcr < 16)

    def _by_value(self, pcr: int) -> dict[bytes, list[Capture]]:
        """Return value -> machines, the largest group first."""
        found: dict[bytes, list[Capture]] = {}
        for capture in self.captures:
            found.setdefault(capture.values[pcr], []).append(capture)
        return dict(sorted(found.items(), key=lambda item: (-len(item[1]), item[0])))

    def _tell(self, subject: str, machines: Mapping[str, Collection[str]]) -> None:
        self.groups += [
            Group(subject=subject, value=value, machines=tuple(who)) for value, who in machines.items()
        ]


def _distinct(logs: Iterable[EventLogClaims]) -> list[EventLogClaims]:
    """Return one of each log: machines that booted alike often have the same bytes."""
    return list({claims.sha256: claims for claims in logs}.values())


def _merged(lines: Iterable[str]) -> list[str]:
    """Merge lines of equally many words that differ only behind a `=`: `root=UUID=*`."""
    by_shape: Counter[tuple[str, ...]] = Counter()
    split = [line.split(" ") for line in lines]
    columns: dict[int, list[set[str]]] = {}
    for words in split:
        seen = columns.setdefault(len(words), [set() for _ in words])
        for place, word in zip(seen, words, strict=True):
            place.add(word)
    for words in split:
        seen = columns[len(words)]
        by_shape[tuple(w if len(s) <= 2 else _general(w) for w, s in zip(words, seen, strict=True))] += 1
    return [" ".join(shape) for shape in by_shape]


def _general(word: str) -> str:
    """Return `root=UUID=*` for `root=UUID=6e1f…`; a word without `=` stays as it is."""
    head, equals, _ = word.rpartition("=")
    return head + equals + "*" if equals else word
