"""What is refused of attestation runs before it is stored (CONFIDENTIAL §4), as ValidatingAdmissionPolicies.

Two sorts of rules. What an object must be stands in the models of its kind, whose schema has it in CEL: the same rules
are made of that here, for the places where they stand. Who may write, and that what was said stays as it was, stands
here, and in `webhook_rules` for an API server that has no such policies; tests try both on the same objects.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from attestation_operator.crds.security_events import SecurityEventStatus
from attestation_operator.objects import BUNDLE, POLICY, RESULT, RUN, SCHEDULE, SECURITY_EVENT, Kind

KINDS: Final = (RUN, RESULT, POLICY, SCHEDULE, SECURITY_EVENT, BUNDLE)
FINAL: Final = (RUN, RESULT, SECURITY_EVENT, BUNDLE)
"""Kinds whose `spec` stays as it was created."""

COLLECTORS: Final = (
    "system:serviceaccount:kube-system:generic-garbage-collector",
    "system:kube-controller-manager",
)
"""What takes owners from objects, and so changes `metadata` of a Result: the second where controllers have one name."""

IMMUTABLE: Final = "spec does not change: what was asked or found stays as it was"
NOT_WRITER: Final = "only the controller of attestation runs writes this"
NOT_SCHEDULED: Final = "only the controller of attestation runs makes a run the run of a schedule"
MAX_RUN_NAME: Final = 246
"""Characters of the name of a run, so that `<run>-result` is one too."""
LONG_NAME: Final = (
    f"the name of a run has at most {MAX_RUN_NAME} characters: that of its Result is made of it"
)

ACKNOWLEDGED: Final = ("acknowledged", "acknowledgedBy", "acknowledgedAt")
"""What a person writes of a SecurityEvent: that they have seen it. RBAC says who may (the role `event-responder`)."""
NOT_SEEN: Final = (
    "only the controller of attestation runs writes this; anybody else may say once, in their own name and with the "
    "time, that they have seen the event: acknowledged, acknowledgedBy, acknowledgedAt"
)

NEW_SPEC: Final = {"name": "new-spec", "expression": "oldObject == null || oldObject.spec != object.spec"}
"""What a kind's rules are asked about. An object that is older than a rule can still lose an owner or a finalizer."""

_ADMISSION: Final = "admissionregistration.k8s.io/v1"
_RULES: Final = "x-kubernetes-validations"
_RESERVED: Final = frozenset(
    {
        *("as", "break", "const", "continue", "else", "false", "for", "function", "if", "import", "in"),
        *("let", "loop", "namespace", "null", "package", "return", "true", "var", "void", "while"),
    }
)
"""Names that CEL keeps for itself; a member of that name is written as an index (docs/adr/0182)."""
_WORDS: Final = re.compile(r"""("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|(?<![\w.])(self|oldSelf)\b""")


@dataclass(frozen=True, slots=True, kw_only=True)
class Validation:
    """One rule of a policy: what must be true, and what is said where it is not; whether it is about a change."""

    expression: str
    message: str
    reason: str = "Invalid"
    compares: bool = False

    def as_object(self) -> dict[str, str]:
        """Return what a policy has of it."""
        return {"expression": self.expression, "message": self.message, "reason": self.reason}


Wrap = Callable[[str], str]
"""Writes what is around a rule: a guard, or the loop over a list."""


def derived(schema: Mapping[str, Any], *, transitions: bool = True) -> list[Validation]:
    """Return the rules in CEL of a kind's schema, as rules about the whole object.

    Args:
        schema: `openAPIV3Schema`.
        transitions: With those that compare with the old object.
    """
    root = _Place(now="object", before="oldObject")
    found = list(_here(schema, root, ()))
    for name in ("metadata", "spec"):
        found += _below(schema["properties"].get(name, {}), root.member(name), ())
    return [each for each in found if transitions or not each.compares]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Where a schema stands, in CEL. `before` is None inside of lists and maps, whose members are not followed.

    Args:
        now: It.
        before: What was there.
        there: True where it is there.
        was: All true where something was; in this order, for a member of what is not there is an error.
    """

    now: str
    before: str | None
    there: str = ""
    was: tuple[str, ...] = ()

    def member(self, name: str) -> _Place:
        """Return a member of it."""
        now, there = _member(self.now, name)
        if self.before is None:
            return _Place(now=now, before=None, there=there)
        before, was = _member(self.before, name)
        return _Place(now=now, before=before, there=there, was=(*self.was, was))


def _member(place: str, name: str) -> tuple[str, str]:
    """Return a member of a place, and what is true where it is there."""
    if name in _RESERVED:
        return f"{place}['{name}']", f"'{name}' in {place}"
    return f"{place}.{name}", f"has({place}.{name})"


def _below(schema: Mapping[str, Any], at: _Place, around: tuple[Wrap, ...]) -> Iterator[Validation]:
    """Yield the rules at and below a place; *around* is from the outside in."""
    yield from _here(schema, at, around)
    needed = schema.get("required", ())
    for name, each in schema.get("properties", {}).items():
        place = at.member(name)
        yield from _below(each, place, around if name in needed else (*around, _where_there(place.there)))
    depth = len(around)
    for below, each, variable in (
        ("items", f"i{depth}", f"i{depth}"),
        ("additionalProperties", "", f"k{depth}"),
    ):
        if isinstance(inside := schema.get(below), Mapping):
            place = _Place(now=each or f"{at.now}[{variable}]", before=None)
            yield from _below(inside, place, (*around, _for_all(at.now, variable)))


def _where_there(there: str) -> Wrap:
    return lambda rule: f"{_not(there)} || ({rule})"


def _not(there: str) -> str:
    return f"!{there}" if there.startswith("has(") else f"!({there})"


def _for_all(place: str, variable: str) -> Wrap:
    return lambda rule: f"{place}.all({variable}, {rule})"


def _here(schema: Mapping[str, Any], at: _Place, around: tuple[Wrap, ...]) -> Iterator[Validation]:
    for said in schema.get(_RULES, ()):
        compares = any(word == "oldSelf" for _, word in _WORDS.findall(said["rule"]))
        if compares and at.before is None:
            continue
        rule = _moved(said["rule"], at)
        for wrap in reversed(around):
            rule = wrap(rule)
        if compares:
            rule = "".join(f"{each} || " for each in ("oldObject == null", *map(_not, at.was))) + f"({rule})"
        message = said.get("message") or f"failed rule: {said['rule']}"
        yield Validation(expression=rule, message=message, compares=compares)


def _moved(rule: str, at: _Place) -> str:
    """Return a rule about `self` as one about a place; what stands between quotes stays."""
    names = {"self": at.now, "oldSelf": str(at.before)}
    return _WORDS.sub(lambda found: found[1] or names[found[2]], rule)


def must_be(kind: Kind, schema: Mapping[str, Any]) -> list[Validation]:
    """Return what an object of a kind must be; of a kind whose `spec` is final that stands in a policy of its own."""
    return derived(schema, transitions=kind not in FINAL)


def stays() -> Validation:
    """Return that `spec` does not change."""
    return Validation(expression="oldObject.spec == object.spec", message=IMMUTABLE)


def named() -> Validation:
    """Return that the name of a run leaves room for that of its Result; one that is there keeps its name."""
    return Validation(expression=f"size(object.metadata.name) <= {MAX_RUN_NAME}", message=LONG_NAME)


def scheduled_by(controller: str) -> Validation:
    """Return that only the controller gives a run a schedule for its owner; anybody who may may take one away."""
    was = "oldObject.metadata.ownerReferences"
    kept = f"oldObject != null && has({was}) && {was}.exists(p, p.uid == o.uid)"
    other = f"o.kind != '{SCHEDULE.kind}' || !o.apiVersion.startsWith('{SCHEDULE.group}/')"
    return Validation(
        expression=(
            f"request.userInfo.username == '{controller}' || !has(object.metadata.ownerReferences) || "
            f"object.metadata.ownerReferences.all(o, {other} || ({kept}))"
        ),
        message=NOT_SCHEDULED,
        reason="Forbidden",
    )


def written_by(users: Iterable[str]) -> Validation:
    """Return that only these write."""
    names = ", ".join(f"'{name}'" for name in users)
    return Validation(
        expression=f"request.userInfo.username in [{names}]", message=NOT_WRITER, reason="Forbidden"
    )


def kept_status() -> tuple[str, ...]:
    """Return the members of the status of a SecurityEvent that whoever acknowledges it leaves as they are."""
    aliases = (field.alias for field in SecurityEventStatus.model_fields.values())
    return tuple(alias for alias in aliases if alias is not None and alias not in ACKNOWLEDGED)


def seen_by(controller: str) -> Validation:
    """Return that the controller writes the status of an event, and a person no more than that they have seen it."""
    now, before = "object.status", "oldObject.status"
    stays = " && ".join(
        f"(has({before}) && has({before}.{name}) ? has({now}.{name}) && {now}.{name} == {before}.{name} "
        f": !has({now}.{name}))"
        for name in kept_status()
    )
    return Validation(
        expression=f"request.userInfo.username in ['{controller}'] || (has({now}) && has({now}.acknowledged) && "
        f"{now}.acknowledged && has({now}.acknowledgedBy) && {now}.acknowledgedBy == request.userInfo.username && "
        f"has({now}.acknowledgedAt) && (!has({before}) || !has({before}.acknowledgedBy)) && {stays})",
        message=NOT_SEEN,
        reason="Forbidden",
    )


def policies(
    controller: str, schemas: Mapping[str, Mapping[str, Any]], *, prefix: str
) -> list[dict[str, Any]]:
    """Return policies and their bindings.

    Args:
        controller: User name of the controller's ServiceAccount.
        schemas: Plural of a kind -> its `openAPIV3Schema`.
        prefix: Of their names.
    """
    found: list[dict[str, Any]] = []
    for kind in KINDS:
        if rules := must_be(kind, schemas[kind.plural]):
            found += _policy(
                f"{prefix}-{kind.plural}", [kind.plural], "CREATE UPDATE", rules, conditions=[NEW_SPEC]
            )
    for name, resources, operations, rule in (
        ("spec-stays", [kind.plural for kind in FINAL], "UPDATE", stays()),
        ("runs-named", [RUN.plural], "CREATE", named()),
        ("runs-scheduled", [RUN.plural], "CREATE UPDATE", scheduled_by(controller)),
        ("results-written", [RESULT.plural], "CREATE", written_by([controller])),
        ("results-kept", [RESULT.plural], "UPDATE", written_by([controller, *COLLECTORS])),
        (
            "status",
            [f"{kind.plural}/status" for kind in KINDS if kind != SECURITY_EVENT],
            "UPDATE",
            written_by([controller]),
        ),
        ("event-status", [f"{SECURITY_EVENT.plural}/status"], "UPDATE", seen_by(controller)),
    ):
        found += _policy(f"{prefix}-{name}", resources, operations, [rule])
    return found


def _policy(
    name: str,
    resources: Sequence[str],
    operations: str,
    validations: Sequence[Validation],
    *,
    conditions: Sequence[Mapping[str, str]] = (),
) -> Iterator[dict[str, Any]]:
    """Yield a policy and its binding."""
    matched = {
        "apiGroups": [RUN.group],
        "apiVersions": ["*"],
        "operations": operations.split(),
        "resources": list(resources),
    }
    yield {
        "apiVersion": _ADMISSION,
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [matched]},
            **({"matchConditions": [dict(each) for each in conditions]} if conditions else {}),
            "validations": [each.as_object() for each in validations],
        },
    }
    yield {
        "apiVersion": _ADMISSION,
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": name},
        "spec": {"policyName": name, "validationActions": ["Deny"]},
    }
