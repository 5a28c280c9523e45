"""From what confidential machines showed to the blocks of a policy that they keep.

As for TPMs (`attestation.appraisal.tpm.learn`): what is common is proposed, who stands out is named, nothing is stored.
What names one guest or one chip is never learned: a policy is for many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from attestation.appraisal.tpm.learn import MOST_VALUES, Group, Outlier

State = Mapping[str, Any]
Row = tuple[str, State]
"""Name of a machine, and the state of one kind."""

_NEVER: Final = frozenset({"Revoked"})


class Learned(NamedTuple):
    """What was learned.

    Attributes:
        blocks: Name -> block, as a document has it; none where nothing was to be learned.
        groups: Who has the same of what.
        outliers: Who is left out, and why.
        notes: What whoever decides about it should know.
    """

    blocks: Mapping[str, dict[str, Any]]
    groups: tuple[Group, ...]
    outliers: tuple[Outlier, ...]
    notes: tuple[str, ...]


def learn_shown(machines: Sequence[tuple[str, Mapping[str, State]]]) -> Learned:
    """Propose blocks from the states of *machines*, each with its name and the states by kind."""
    lesson = _Lesson()
    for kind, teach in _TEACHERS.items():
        rows = [(name, states[kind]) for name, states in machines if kind in states]
        sound = []
        for name, state in rows:
            if state.get("debug"):
                lesson.outliers.append(Outlier(machine_id=name, reason=f"{kind}: a debug guest"))
            else:
                sound.append((name, state))
        if sound:
            block = teach(lesson, sound)
            if block:
                lesson.blocks[kind] = block
    return Learned(lesson.blocks, tuple(lesson.groups), tuple(lesson.outliers), tuple(lesson.notes))


class _Lesson:
    """What is being learned."""

    def __init__(self) -> None:
        self.blocks: dict[str, dict[str, Any]] = {}
        self.groups: list[Group] = []
        self.outliers: list[Outlier] = []
        self.notes: list[str] = []

    def values(self, subject: str, rows: Iterable[tuple[str, str]]) -> list[str]:
        """Return the values of *rows*, name -> hex, most frequent first; none where they have too many."""
        by_value: dict[str, list[str]] = {}
        for name, value in rows:
            if any(digit != "0" for digit in value):
                by_value.setdefault(value, []).append(name)
        if len(by_value) > MOST_VALUES:
            self.notes.append(
                f"{subject}: {len(by_value)} different values, more than {MOST_VALUES} are no reference values"
            )
            return []
        found = sorted(by_value, key=lambda value: (-len(by_value[value]), value))
        self.groups += [
            Group(subject=subject, value=value, machines=tuple(by_value[value])) for value in found
        ]
        return found


def _sev_snp(lesson: _Lesson, rows: Sequence[Row]) -> dict[str, Any]:
    measurement = lesson.values("sev_snp measurement", ((name, s["measurement"]) for name, s in rows))
    if not measurement:
        return {}
    block: dict[str, Any] = {"measurement": measurement}
    lowest = min(state["guest_svn"] for _, state in rows)
    if lowest:
        block["min_guest_svn"] = lowest
    tcbs: dict[str, dict[str, int]] = {}
    for _, state in rows:
        # Reported is never above committed, nor is launch always as high: a policy asks all three.
        line = tcbs.setdefault(state["product"].lower(), dict(state["reported_tcb"]))
        for name in line:
            line[name] = min(
                line[name], *(state[f"{which}_tcb"][name] for which in ("reported", "committed", "launch"))
            )
    block["min_tcb"] = tcbs
    keys = {state["signing_key"] for _, state in rows}
    if keys != {"vcek"}:
        block["signing_key"] = "vlek" if keys == {"vlek"} else "any"
        lesson.notes.append("sev_snp: keys of providers (VLEK) sign: they name no processor")
    vmpl = max(state["vmpl"] for _, state in rows)
    if vmpl:
        block["max_vmpl"] = vmpl
    return block


def _tdx(lesson: _Lesson, rows: Sequence[Row]) -> dict[str, Any]:
    block: dict[str, Any] = {}
    for member, of in _TDX.items():
        values = lesson.values(f"tdx {member}", ((name, of(state)) for name, state in rows))
        if values:
            block[member] = values
    _tcb(lesson, rows)
    return block


_TDX: Final[Mapping[str, Callable[[State], str]]] = {
    "mrtd": lambda state: str(state["mrtd"]),
    **{f"rtmr{i}": lambda state, i=i: str(state["rtmr"][i]) for i in range(4)},  # type: ignore[misc]  # a default binds the loop's number
}


def _sgx(lesson: _Lesson, rows: Sequence[Row]) -> dict[str, Any]:
    block: dict[str, Any] = {}
    for member in ("mrenclave", "mrsigner"):
        values = lesson.values(f"sgx {member}", ((name, state[member]) for name, state in rows))
        if values:
            block[member] = values
    products = {state["isv_prod_id"] for _, state in rows}
    if block and len(products) == 1:
        block["isv_prod_id"] = min(products)
        block["min_isv_svn"] = min(state["isv_svn"] for _, state in rows)
    _tcb(lesson, rows)
    return block


def _tcb(lesson: _Lesson, rows: Sequence[Row]) -> None:
    """Accept the levels that these platforms have, and say which are not up to date."""
    by_status: dict[str, list[str]] = {}
    for name, state in rows:
        if state.get("tcb_status") is not None:
            by_status.setdefault(state["tcb_status"], []).append(name)
    for status in sorted(by_status.keys() - {"UpToDate"}):
        who = f"{len(by_status[status])} machines"
        if status in _NEVER:
            lesson.notes.append(f"tcb: {who} are {status}, which no policy accepts")
        else:
            lesson.notes.append(
                f"tcb: {who} are {status}: accepted by this proposal; strike it where they are to be updated"
            )
            accepted = lesson.blocks.setdefault("tcb", {"accepted_status": ["UpToDate"]})["accepted_status"]
            if status not in accepted:
                accepted.append(status)


def _gpu(_lesson: _Lesson, rows: Sequence[Row]) -> dict[str, Any]:
    block: dict[str, Any] = {}
    for member, key in (("driver_versions", "driver_version"), ("vbios_versions", "vbios_version")):
        found = sorted({gpu[key] for _, state in rows for gpu in state.get("gpus", ()) if gpu.get(key)})
        if 0 < len(found) <= MOST_VALUES:
            block[member] = found
    return block


_TEACHERS: Final[Mapping[str, Callable[[_Lesson, Sequence[Row]], dict[str, Any]]]] = {
    "sev_snp": _sev_snp,
    "tdx": _tdx,
    "sgx": _sgx,
    "gpu": _gpu,
}
