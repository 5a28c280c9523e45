"""Who wrote which field: managed fields, and server-side apply (sigs.k8s.io/structured-merge-diff).

A field is a path of the steps that `fieldsV1` has: `f:spec`, `k:{"type":"Ready"}`, `v:"x"`. Leaves are scalars, empty
maps and lists, and what is replaced as a whole; a member of a list that is told apart by keys is a field too (`.`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from attestation_testing.kubernetes.objects import copied
from attestation_testing.kubernetes.resources import AtomicMap, ListKeys, Path, SetList, Topology
from attestation_testing.kubernetes.status import Object, StatusError

Field = tuple[str, ...]
Fields = dict[Field, Any]
"""Each leaf with its value; a member of a keyed list has the value None."""

_NOT_MANAGED: Final = frozenset(
    {
        ("f:apiVersion",),
        ("f:kind",),
        *(
            ("f:metadata", f"f:{name}")
            for name in (
                "name",
                "namespace",
                "creationTimestamp",
                "selfLink",
                "uid",
                "clusterName",
                "generation",
                "managedFields",
                "resourceVersion",
                "deletionTimestamp",
                "deletionGracePeriodSeconds",
            )
        ),
    }
)


def _member(each: Any, how: ListKeys) -> str:
    keys = {key: each.get(key) for key in how.keys if key in each}
    return "k:" + json.dumps(keys, separators=(",", ":"), sort_keys=True)


def _scalar(value: Any) -> str:
    return "v:" + json.dumps(value, separators=(",", ":"))


def _leaves(value: Any, topology: Topology, at: Path, field: Field) -> Iterator[tuple[Field, Any]]:
    if field in _NOT_MANAGED or field[:2] in _NOT_MANAGED:
        return
    how = topology.get(at)
    if isinstance(value, dict) and value and not isinstance(how, AtomicMap):
        for key, each in value.items():
            yield from _leaves(each, topology, (*at, key), (*field, f"f:{key}"))
    elif (
        isinstance(value, list)
        and value
        and isinstance(how, ListKeys)
        and all(isinstance(e, dict) for e in value)
    ):
        for each in value:
            member = (*field, _member(each, how))
            yield (*member, "."), None
            yield from _leaves(each, topology, (*at, "[]"), member)
    elif isinstance(value, list) and value and isinstance(how, SetList):
        for each in value:
            yield (*field, _scalar(each)), each
    elif field:
        yield field, value


def leaves(value: Object, topology: Topology) -> Fields:
    """Return the fields of an object that somebody can own."""
    return dict(_leaves(value, topology, (), ()))


def to_v1(fields: Iterable[Field]) -> Object:
    """Return the nested form of `fieldsV1`."""
    tree: Object = {}
    for field in sorted(fields):
        at = tree
        for step in field:
            at = at.setdefault(step, {})
    return tree


def from_v1(tree: Mapping[str, Any], at: Field = ()) -> Iterator[Field]:
    """Return the fields of the nested form."""
    for step, below in tree.items():
        if below:
            yield from from_v1(below, (*at, step))
        else:
            yield (*at, step)


@dataclass(frozen=True, slots=True)
class Manager:
    """Who writes, how, and in which version of the API."""

    name: str
    operation: str
    api_version: str
    subresource: str = ""


Owners = dict[Manager, set[Field]]


def owners(value: Object) -> Owners:
    """Return who owns what by `metadata.managedFields`."""
    return {
        Manager(
            str(each.get("manager", "")),
            str(each.get("operation", "")),
            str(each.get("apiVersion", "")),
            str(each.get("subresource", "")),
        ): set(from_v1(each.get("fieldsV1") or {}))
        for each in value["metadata"].get("managedFields") or ()
    }


def write_owners(value: Object, new: Owners, old: Object | None, at: str) -> None:
    """Write `metadata.managedFields`; who owns what it owned keeps its time."""
    before = {}
    if old is not None:
        known = old["metadata"].get("managedFields") or ()
        before = {
            manager: (fields, str(each.get("time", at)))
            for (manager, fields), each in zip(owners(old).items(), known, strict=False)
        }
    entries = []
    for manager, fields in new.items():
        if not fields:
            continue
        had = before.get(manager)
        entry: Object = {
            "manager": manager.name,
            "operation": manager.operation,
            "apiVersion": manager.api_version,
            "time": had[1] if had and had[0] == fields else at,
            "fieldsType": "FieldsV1",
            "fieldsV1": to_v1(fields),
        }
        if manager.subresource:
            entry["subresource"] = manager.subresource
        entries.append(entry)
    if entries:
        value["metadata"]["managedFields"] = entries
    else:
        value["metadata"].pop("managedFields", None)


def updated(new: Object, old: Object | None, topology: Topology, manager: Manager) -> Owners:
    """Return who owns what after *manager* wrote *new*: what it changed is its, and no longer another's."""
    now, before = leaves(new, topology), leaves(old, topology) if old else {}
    changed = {field for field, value in now.items() if field not in before or before[field] != value}
    after: Owners = {}
    for each, fields in (owners(old) if old else {}).items():
        kept = {field for field in fields if field in now}
        after[each] = kept if each == manager else kept - changed
    if changed:
        after[manager] = after.get(manager, set()) | changed
    return after


# Server-side apply


def _shown(field: Field) -> str:
    """Return a field as conflicts name it: `.status.conditions[type="Ready"].status`."""
    said = ""
    for step in field:
        kind, _, rest = step.partition(":")
        if kind == "f":
            said += f".{rest}"
        elif kind == "k":
            said += (
                "[" + ",".join(f"{key}={json.dumps(value)}" for key, value in json.loads(rest).items()) + "]"
            )
        elif kind == "v":
            said += f"[={rest}]"
    return said


def _merged(live: Any, applied: Any, topology: Topology, at: Path = ()) -> Any:
    how = topology.get(at)
    if isinstance(live, dict) and isinstance(applied, dict) and not isinstance(how, AtomicMap):
        result = dict(live)
        for key, value in applied.items():
            result[key] = _merged(live.get(key), value, topology, (*at, key))
        return result
    if isinstance(live, list) and isinstance(applied, list) and isinstance(how, SetList):
        return [*live, *(each for each in applied if each not in live)]
    if isinstance(live, list) and isinstance(applied, list) and isinstance(how, ListKeys):
        members = {_member(each, how): each for each in live}
        for each in applied:
            name = _member(each, how)
            members[name] = _merged(members.get(name), each, topology, (*at, "[]"))
        return list(members.values())
    return copied(applied)


def _without(value: Any, gone: set[Field], topology: Topology, at: Path, field: Field) -> Any:
    """Take fields away, and maps and members that are empty then."""
    how = topology.get(at)
    if isinstance(value, dict) and not isinstance(how, AtomicMap):
        result = {}
        for key, each in value.items():
            here = (*field, f"f:{key}")
            if here in gone:
                continue
            left = _without(each, gone, topology, (*at, key), here)
            if left in ({}, []) and each not in ({}, []):
                continue
            result[key] = left
        return result
    if isinstance(value, list) and isinstance(how, ListKeys):
        kept = []
        for each in value:
            member = (*field, _member(each, how))
            left = _without(each, gone, topology, (*at, "[]"), member)
            if (*member, ".") in gone:
                # What others wrote into the member keeps it.
                if not any(
                    f[: len(member)] == member for f, _ in _leaves(left, topology, (*at, "[]"), member)
                ):
                    continue
                if (*member, ".") in gone and set(left) <= set(how.keys):
                    continue
            kept.append(left)
        return kept
    if isinstance(value, list) and isinstance(how, SetList):
        return [each for each in value if (*field, _scalar(each)) not in gone]
    return value


def applied(
    live: Object | None, config: Object, topology: Topology, manager: Manager, *, force: bool
) -> tuple[Object, Owners]:
    """Return the object after *manager* applied *config*, and who owns what.

    Args:
        live: What is stored; None where the object is new.
        config: What was sent.
        topology: How it is merged.
        manager: Who applies.
        force: Take what others own.

    Raises:
        StatusError: 409 with each conflict, or 500, as the API server has it, where a list names a member twice.
    """
    for at, how in topology.items():
        _check_members(config, at, how)
    wanted = leaves(config, topology)
    known = owners(live) if live else {}
    had = known.pop(manager, set())
    now = leaves(live, topology) if live else {}
    conflicts = [
        (other, field)
        for other, fields in known.items()
        for field in sorted(fields & wanted.keys())
        if field[-1] != "." and now.get(field) != wanted[field]
    ]
    if conflicts and not force:
        raise _conflict(conflicts)
    for other, field in conflicts:
        known[other].discard(field)
    merged = _merged(live or {}, config, topology)
    others = set().union(*known.values()) if known else set()
    gone = had - wanted.keys() - others
    if gone:
        merged = _without(merged, gone, topology, (), ())
        merged["metadata"] = merged.get("metadata") or {}
    left = leaves(merged, topology)
    after = {each: {field for field in fields if field in left} for each, fields in known.items()}
    after[manager] = set(wanted)
    return merged, after


def _check_members(config: Object, at: Path, how: object) -> None:
    if "[]" in at or not isinstance(how, ListKeys):
        return
    found: Any = config
    for name in at:
        found = found.get(name) if isinstance(found, dict) else None
    if not isinstance(found, list):
        return
    seen = set()
    for each in found:
        if not isinstance(each, dict) or any(key not in each for key in how.keys):
            missing = next(key for key in how.keys if not isinstance(each, dict) or key not in each)
            text = (
                f"failed to create typed patch object: .{'.'.join(at)}: element 0: associative list with keys has an "
                f'element that omits key field "{missing}"'
            )
            raise StatusError(500, "", text)
        name = _member(each, how)
        if name in seen:
            raise StatusError(
                500,
                "",
                f"failed to create typed patch object: .{'.'.join(at)}: duplicate entries for key {_shown((name,))}",
            )
        seen.add(name)


def _conflict(conflicts: list[tuple[Manager, Field]]) -> StatusError:
    by: dict[Manager, list[str]] = {}
    for manager, field in conflicts:
        by.setdefault(manager, []).append(_shown(field))
    count = len(conflicts)
    said = []
    for manager, fields in by.items():
        with_ = f'with "{manager.name}"'
        if manager.subresource:
            with_ += f' with subresource "{manager.subresource}"'
        with_ += f" using {manager.api_version}"
        said.append(
            f"conflict {with_}: {fields[0]}"
            if len(fields) == 1
            else f"conflicts {with_}:" + "".join(f"\n- {f}" for f in fields)
        )
    text = f"Apply failed with {count} conflict{'s' if count > 1 else ''}: " + ", ".join(said)
    causes = [
        {
            "reason": "FieldManagerConflict",
            "message": f'conflict with "{m.name}" using {m.api_version}',
            "field": _shown(f),
        }
        for m, f in conflicts
    ]
    return StatusError(409, "Conflict", text, {"causes": causes})
