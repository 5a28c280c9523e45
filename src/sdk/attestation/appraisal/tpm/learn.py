"""From what machines proved to a policy that they keep: groups, outliers, a proposal.

Learning trusts what it is shown: whatever runs on these machines becomes what is expected. So it says what
they have in common and who differs, proposes the narrowest rules that most of them keep, and leaves out those
that stand alone. A machine that measured nothing teaches nothing. Where a policy applies already, the proposal
starts from it: what it demands, and learning does not speak of, stays demanded. Nothing here is stored or applied.
"""

# Longer than 500 lines: one way from results to a policy, a step for each rule that it learns.
from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from attestation.appraisal.tpm.boot import constants
from attestation.appraisal.tpm.explain import explain
from attestation.errors import EventLogRejected, PolicyInvalid
from attestation.evidence import event_log
from attestation.evidence.event_log import EventLogClaims, ReplayedLog
from attestation.reference import DEFAULT_SELECTION, FORMAT, FORMAT_2, Policy, parse_policy
from attestation.reference.compose import effective_document
from attestation.reference.document import flattened, nested
from attestation.reference.patterns import parse_command_pattern, words_of
from attestation.results import Assurance
from attestation.tpm.hashes import bank_alg
from attestation.tpm.unmeasured import measured, unmeasured_values

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
_NAMED: Final = 3
_CARRIERS: Final = frozenset({4, 8, 9, 11, 12})
"""PCRs of boot loader, kernel, initrd and command line, on one boot path or another."""
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


def learn(
    captures: Sequence[Capture],
    *,
    name: str,
    version: int = 1,
    bank: str = "sha256",
    base: Policy | None = None,
    in_force: Policy | None = None,
    guarded: str | None = None,
    accept_unmeasured: bool = False,
) -> Proposal:
    """Propose a policy from what machines proved.

    Args:
        captures: One per machine, all quoted in *bank*.
        name: Of the policy.
        version: Of the policy.
        bank: Name of the bank.
        base: The policy that the proposal would replace, not composed; None where it replaces none.
        in_force: What applies there altogether; None: *base* alone.
        guarded: A role under dual control that is concerned, where one operator alone assigned *base*: what *in_force*
            demands of it wins over *base*. None: whatever *base* states was agreed on, or concerns no such role.
        accept_unmeasured: List values that hold no measurement, too, as if they were measurements.

    Raises:
        PolicyInvalid: There is no evidence, or nothing in it that a policy could demand.
    """
    seen = [capture for capture in captures if capture.values]
    if not seen:
        raise PolicyInvalid("there is no evidence to learn from")
    silent = [] if accept_unmeasured else [c for c in seen if not measured(c.values, bank_alg(bank))]
    if len(silent) == len(seen):
        raise PolicyInvalid(f"{_UNMEASURED}; any machine that measures nothing would keep such a policy")
    learner = _Learner([c for c in seen if c not in silent], bank, accept_unmeasured=accept_unmeasured)
    notes = learner.notes
    if len(seen) < len(captures):
        notes.append(f"left out, without evidence: {_machines(len(captures) - len(seen))}")
    outliers = [Outlier(machine_id=c.machine_id, reason=_UNMEASURED) for c in silent] + learner.leave_out()
    learned = learner.rules()
    applies = in_force or base
    if applies is not None:
        learned = _keeping(base, applies, learned, notes, guarded)
    document: dict[str, object] = {
        "format": FORMAT,
        "name": name,
        "version": version,
        "description": f"learned from {_machines(len(learner.captures))}",
        "bank": bank,
        **learned,
    }
    of_format_2 = base is not None and json.loads(base.document)["format"] == FORMAT_2
    return Proposal(
        document=_fitting(document, notes, nested if of_format_2 else dict),
        groups=tuple(learner.groups),
        outliers=tuple(outliers),
        notes=tuple(notes),
    )


_UNMEASURED: Final = "nothing was measured: every PCR holds its reset value, or a separator alone"
_OWN: Final = frozenset({"format", "name", "version", "description", "bank", "pcrs"})
_QUOTED: Final = frozenset(str(pcr) for _, pcrs in DEFAULT_SELECTION.banks for pcr in pcrs)
"""What is quoted where nobody asks for a PCR: who ignores one of these has decided so."""


def _keeping(
    base: Policy | None,
    in_force: Policy,
    learned: Mapping[str, Any],
    notes: list[str],
    guarded: str | None,
) -> dict[str, Any]:
    """Return *learned* with what *base* demands besides, and no weaker than what is *in_force*."""
    old: Mapping[str, Any] = {} if base is None else flattened(json.loads(base.document))
    now: Mapping[str, Any] = effective_document(in_force)
    kept = {member: value for member, value in old.items() if member not in _OWN}
    if guarded is not None:
        _overrule(kept, now, in_force, guarded, notes)
    if kept.get("event_log") == "accepted":
        # No demand, and rules that read the log contradict it.
        del kept["event_log"]
    states = {**kept.get("secure_boot", {}), **learned.get("secure_boot", {})}
    demanded = now.get("secure_boot", {})
    if states and demanded:
        if demanded.get("required") is True:
            states["required"] = True
        revoked = {*states.get("dbx_min", ()), *demanded.get("dbx_min", ())}
        states |= {"dbx_min": sorted(revoked)} if revoked else {}
    boot = {**kept.get("boot", {}), **learned.get("boot", {})}
    merged = {member: value for member, value in (("secure_boot", states), ("boot", boot)) if value}
    pcrs = dict(learned["pcrs"])
    _keep_pcrs(pcrs, old.get("pcrs", {}), now["pcrs"], in_force.ref, bool(states), notes)
    if kept.get("mode") == "report":
        notes.append(f"it only reports, as {in_force.ref} does: take out `mode` to enforce it")
    if kept:
        notes.append(f"kept from {in_force.ref}: {', '.join(sorted(kept))}")
    return {"pcrs": dict(sorted(pcrs.items(), key=lambda item: int(item[0]))), **kept, **merged}


def _overrule(
    kept: dict[str, Any], now: Mapping[str, Any], in_force: Policy, role: str, notes: list[str]
) -> None:
    """Let what several agreed on, and the minimum of the role, take the place of what one operator assigned.

    Several will agree to the proposal. What one had lowered would be theirs then, and hold.
    """
    was = dict(kept)
    kept |= {member: now[member] for member in kept if member in now}
    minimum = in_force.assurance_minimum(role)
    stated = kept.get("assurance")
    # A minimum that is only reported lowers nothing now, but would once `mode` is taken out.
    if stated is not None and Assurance(stated["minimum"]).level < minimum.level:
        kept["assurance"] = {"minimum": minimum.value}
    overruled = sorted(member for member in was if kept[member] != was[member])
    if overruled:
        notes.append(
            f"not taken from what one operator assigned, but as it is in force for {role}: {', '.join(overruled)}"
        )


def _keep_pcrs(
    pcrs: dict[str, Any],
    old: Mapping[str, Any],
    now: Mapping[str, Any],
    ref: str,
    states: bool,
    notes: list[str],
) -> None:
    """Let no rule that compares give way to none; but PCR 7 may be left to the rules about its *states*.

    What somebody decided to ignore stays ignored, unless ignoring it is what had it quoted.
    """
    for index, rule in now.items():
        new = pcrs.get(index)
        if "ignore" in rule:
            if index in old and index in _QUOTED and new is not None and "ignore" not in new:
                pcrs[index] = rule
                notes.append(f"PCR {index} stays ignored, as in {ref}: {rule['ignore']}")
        elif new is None or ("ignore" in new and not (states and index == "7" and index in old)):
            pcrs.pop(index, None)
            if index in old:
                pcrs[index] = rule
            notes.append(f"PCR {index} keeps its rule of {ref}: what was learned would not compare it")


def _fitting(
    document: dict[str, object],
    notes: list[str],
    written: Callable[[Mapping[str, object]], dict[str, object]],
) -> dict[str, object]:
    """Return *document* as a policy can be, in the format of *written*: without the lists that make it too long."""
    for member in ("secure_boot", "boot"):
        try:
            parse_policy(written(document))
        except PolicyInvalid as error:
            if "longer than" not in str(error) or member not in document:
                raise
            del document[member]
            notes.append(f"{member} would make the policy too long and was left out")
    parse_policy(written(document))
    return written(document)


def _some(who: Sequence[str]) -> str:
    return ", ".join(who[:_NAMED]) + (f" and {len(who) - _NAMED} more" if len(who) > _NAMED else "")


def _machines(count: int) -> str:
    return "1 machine" if count == 1 else f"{count} machines"


class _Learner:
    """Looks at the same machines again and again.

    Args:
        captures: Those with evidence.
        bank: Name of the bank.
        accept_unmeasured: List values that hold no measurement, too.
    """

    def __init__(self, captures: list[Capture], bank: str, *, accept_unmeasured: bool) -> None:
        self.captures = captures
        self.groups: list[Group] = []
        self.notes: list[str] = []
        self._bank = bank_alg(bank)
        self._accept_unmeasured = accept_unmeasured
        self._refused: dict[str, dict[int | None, str]] = {c.machine_id: {} for c in captures}
        self._claims = {c.machine_id: self._proven(c) for c in captures}

    def _proven(self, capture: Capture) -> EventLogClaims | None:
        """Return what the log of *capture* proves of the PCRs to which it leads, and keep why not of others.

        What it says of other PCRs stands: only rules that rest on these are not proven.
        """
        refused, replayed = self._refused[capture.machine_id], capture.replayed
        if replayed is None:
            refused[None] = "no event log that can be read is kept of it"
            return None
        if replayed.bank != self._bank:
            refused[None] = "its event log was read in another bank"
            return None
        quoted = dict(capture.values)
        while True:
            try:
                return event_log.verify(replayed, quoted=quoted)
            except EventLogRejected as error:
                refused |= dict.fromkeys(error.pcrs or (None,), str(error))
                if not error.pcrs:
                    return None
                quoted = {pcr: value for pcr, value in quoted.items() if pcr not in error.pcrs}

    def _prove(self, what: str, *pcrs: int) -> list[EventLogClaims]:
        """Return the claims of every machine, if each proves *pcrs*; else none, and say who does not, and why."""
        logs: list[EventLogClaims] = []
        reasons: dict[str, list[str]] = {}
        for capture in self.captures:
            claims, refused = self._claims[capture.machine_id], self._refused[capture.machine_id]
            if claims is not None and claims.pcrs.issuperset(pcrs):
                logs.append(claims)
            else:
                why = next(refused[pcr] for pcr in (*pcrs, None) if pcr in refused)
                reasons.setdefault(why, []).append(capture.machine_id)
        self.notes += [f"{what}: not proposed: {_some(who)}: {why}" for why, who in reasons.items()]
        return [] if reasons else logs

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
        unseen = [str(pcr) for pcr in sorted(_CARRIERS - set(quoted))]
        if unseen:
            self.notes.append(
                f"PCR {', '.join(unseen)} cannot be learned: not quoted. Name them beside a rule that compares "
                "something, `ignore` will do; after the next attestation they can"
            )
        if len(self.captures) == 1:
            self.notes.append("learned from one machine: values that belong to it alone fit no other")
        pcrs = {pcr: self._pcr(pcr) for pcr in quoted}
        members: dict[str, object] = {}
        self._from_logs(pcrs, members)
        empty = [str(pcr) for pcr, rule in pcrs.items() if "empty" in rule]
        if empty:
            self.notes.append(
                f"PCR {', '.join(empty)}: nothing is measured there; `empty` demands that nothing appears, and affirms "
                "nothing"
            )
        return {"pcrs": {str(pcr): rule for pcr, rule in sorted(pcrs.items())}, **members}

    def _pcr(self, pcr: int) -> dict[str, object]:
        """Return the rule of one PCR by its value."""
        by_value = self._by_value(pcr)
        if pcr == _IMA:
            return {"ignore": "grows while the system runs; judge it by ima"}
        nothing = by_value.keys() & unmeasured_values(self._bank)
        if nothing and self._accept_unmeasured:
            self.notes.append(
                f"PCR {pcr}: a value that holds no measurement is listed, as asked: any machine that measures nothing "
                "has it, and it affirms nothing"
            )
        elif nothing == by_value.keys():
            return {"empty": True}
        elif nothing:
            who = [c.machine_id for value in nothing for c in by_value.pop(value)]
            self.notes.append(
                f"PCR {pcr} holds no measurement on {_some(sorted(who))}: not listed, they will fail"
            )
        machines, values = sum(map(len, by_value.values())), len(by_value)
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

    def _from_logs(self, pcrs: dict[int, dict[str, object]], members: dict[str, object]) -> None:
        """Add the rules that event logs allow, and take back what they judge better.

        A rule is proposed if every machine proves what it rests on; other rules may rest on less.
        """
        used = {pcr for pcr, rule in pcrs.items() if "empty" not in rule}
        boot: dict[str, object] = {}
        if 7 in used:
            self._secure_boot(self._prove("secure_boot", 7), pcrs, members)
        if 4 in used:
            self._by_events(4, self._prove("PCR 4 by its events", 4), pcrs)
        if {4, 9} <= used:
            logs = self._prove("kernels and initrds by their digests", 4, 9)
            self._by_events(9, logs, pcrs)
            for member, subject, pick in (
                ("kernels", "kernel", lambda c: c.kernels),
                ("initrds", "initrd", lambda c: c.initrds),
            ):
                digests = self._listed(subject, logs, pick)
                if digests:
                    boot[member] = digests
        lines: frozenset[bytes] = frozenset()
        if {8, 12} <= pcrs.keys() and used & {8, 12}:
            logs = self._prove("command lines", 8, 12)
            patterns = self._command_lines(logs)
            if patterns:
                boot["command_lines"] = patterns
                lines = frozenset(line.digest for c in _distinct(logs) for line in c.command_lines)
        for pcr in sorted(used & {8, 12}):
            self._by_events(pcr, self._prove(f"PCR {pcr} by its events", pcr), pcrs, beside=lines)
        if boot:
            members["boot"] = boot

    def _by_events(
        self,
        pcr: int,
        logs: list[EventLogClaims],
        pcrs: dict[int, dict[str, object]],
        beside: frozenset[bytes] = frozenset(),
    ) -> None:
        """Judge a PCR by its events: an order or a number of them that differs is no difference in what ran.

        What is *beside* is judged there by another rule.
        """
        common = constants(self._bank) | beside
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
        for capture, claims in zip(self.captures, logs, strict=False):
            for one in pick(claims):
                machines = found.setdefault(one.digest.hex(), [])
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
        if not logs:
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
        if not dbx or "dbx_min" in rules or "any_of" not in pcrs[7]:
            # Its value would distrust the fleet at the next update of dbx; `dbx_min` welcomes that.
            pcrs[7] = {"ignore": "changes with every update of dbx; judged by secure_boot"}
            self.groups = [group for group in self.groups if group.subject != "pcr7"]
            self.notes[:] = [note for note in self.notes if not note.startswith("PCR 7 ")]

    def _command_lines(self, logs: list[EventLogClaims]) -> list[str]:
        """Return patterns for every command line, or none where they have too little in common."""
        found: dict[str, list[str]] = {}
        for capture, claims in zip(self.captures, logs, strict=False):
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
