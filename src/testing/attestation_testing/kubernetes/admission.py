"""What is asked before something is written: ValidatingAdmissionPolicy with its bindings, and webhooks (webhooks.py).

k8s.io/apiserver, pkg/admission/plugin/policy/validating. Left out: parameters (`paramKind`), `authorizer`, audit
annotations, warnings, and other versions of a resource than that of the request (`matchPolicy: Equivalent`).
"""

# ruff: noqa: ARG002  # a rule that does not look at all that it is given has the same form as one that does
from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

from attestation_testing.kubernetes.access import MASTERS, User
from attestation_testing.kubernetes.asked import GROUP, Asked, matches, selector_errors
from attestation_testing.kubernetes.expressions import HAS_CEL, EvaluationError, Expression
from attestation_testing.kubernetes.host import Host
from attestation_testing.kubernetes.requests import Target, shown
from attestation_testing.kubernetes.rules import Rules
from attestation_testing.kubernetes.status import (
    FieldError,
    Object,
    StatusError,
    forbidden,
    forbidden_field,
    invalid,
    required,
    unsupported,
)
from attestation_testing.kubernetes.webhooks import Webhooks

POLICIES: Final = (GROUP, "validatingadmissionpolicies")
BINDINGS: Final = (GROUP, "validatingadmissionpolicybindings")

INSIDE: Final = User("system:apiserver", (MASTERS,))
CONTROLLERS: Final = User("system:kube-controller-manager", (MASTERS,))
_UNASKED: Final = frozenset({INSIDE.name, CONTROLLERS.name})
"""Who is the cluster itself; what it does of itself is not asked about."""

_NAMES: Final = ("object", "oldObject", "request", "namespaceObject", "params", "variables")
_VARIABLE: Final = re.compile(r"\bvariables\.([A-Za-z_]\w*)")
_CODES: Final = {"Unauthorized": 401, "Forbidden": 403, "RequestEntityTooLarge": 413}


class _Policy:
    """A ValidatingAdmissionPolicy, compiled."""

    def __init__(self, said: Object) -> None:
        spec = said["spec"]
        self.name = said["metadata"]["name"]
        self.constraints: Object = spec.get("matchConstraints") or {}
        self.fails = spec.get("failurePolicy") != "Ignore"
        self._variables = {each["name"]: _compiled(each) for each in spec.get("variables") or ()}
        self._conditions = [_compiled(each) for each in spec.get("matchConditions") or ()]
        self._validations = [
            (each, _compiled(each), _compiled(each, "messageExpression"))
            for each in spec.get("validations") or ()
        ]

    def _with(self, expression: Expression, data: Object, before: int | None = None) -> Object:
        """Return *data* with the variables that an expression names; a variable names those before it."""
        known = list(self._variables)[:before]
        named = {}
        for name in set(_VARIABLE.findall(expression.said)).intersection(known):
            variable = self._variables[name]
            named[name] = variable.value(self._with(variable, data, known.index(name)))
        return {**data, "variables": named}

    def _holds(self, expression: Expression, data: Object) -> bool:
        return expression.holds(self._with(expression, data))

    def wants(self, data: Object) -> bool:
        """Say whether its conditions hold."""
        return all(self._holds(each, data) for each in self._conditions)

    def refusals(self, data: Object) -> Iterator[tuple[str, str]]:
        """Return what it has against a request: words, and the reason."""
        try:
            if not self.wants(data):
                return
        except EvaluationError as e:
            if self.fails:
                yield f"match condition could not be evaluated: {e}", ""
            return
        for said, expression, words in self._validations:
            try:
                if self._holds(expression, data):
                    continue
            except EvaluationError as e:
                if self.fails:
                    yield f"expression '{expression.said}' resulted in error: {e}", ""
                continue
            message = str(said.get("message") or f"failed expression: {expression.said.strip()}").strip()
            if words is not None:
                message = words.text(self._with(words, data)).strip() or message
            yield message, str(said.get("reason") or "")


def _compiled(said: Object, member: str = "expression") -> Any:
    return Expression(said[member], *_NAMES) if said.get(member) else None


class Admission:
    """Asks the policies and webhooks of *cluster*."""

    def __init__(self, cluster: Host, webhooks: Webhooks) -> None:
        self._cluster = cluster
        self._webhooks = webhooks
        self._compiled: dict[tuple[str, str], _Policy] = {}

    def check(
        self,
        operation: str,
        target: Target,
        *,
        new: Object | None,
        old: Object | None,
        user: User,
        dry: bool,
    ) -> None:
        """Let a write pass, or refuse it.

        Raises:
            StatusError: A policy or a webhook is against it, or cannot be asked.
        """
        if user.name in _UNASKED or target.resource.group == GROUP:
            return
        asked = Asked(
            operation=operation,
            target=target,
            name=str(((new or old) or {})["metadata"].get("name", "")),
            new=None if new is None else shown(new, target.api_version),
            old=None if old is None else shown(old, target.api_version),
            user=user,
            dry=dry,
            space=self._cluster.store.get(("", "namespaces"), "", target.namespace),
        )
        for policy, binding in self._bound():
            if not matches(policy.constraints, asked, "resourceRules"):
                continue
            where = binding["spec"].get("matchResources")
            if where and not matches({"resourceRules": [_ANY], **where}, asked, "resourceRules"):
                continue
            data = {
                "object": asked.new,
                "oldObject": asked.old,
                "request": asked.request(),
                "namespaceObject": asked.space,
                "params": None,
                "variables": {},
            }
            for words, reason in policy.refusals(data):
                raise _denied(asked, policy.name, binding["metadata"]["name"], words, reason)
        self._webhooks.check(asked)

    def _bound(self) -> Iterable[tuple[_Policy, Object]]:
        for binding in self._cluster.store.all(BINDINGS):
            spec = binding["spec"]
            said = self._cluster.store.get(POLICIES, "", spec["policyName"])
            if said is not None and "Deny" in spec["validationActions"]:
                yield self._policy(said), binding

    def _policy(self, said: Object) -> _Policy:
        key = said["metadata"]["name"], said["metadata"]["resourceVersion"]
        if key not in self._compiled:
            self._compiled[key] = _Policy(said)
        return self._compiled[key]


_ANY: Final[Object] = {
    "operations": ["*"],
    "apiGroups": ["*"],
    "apiVersions": ["*"],
    "resources": ["*", "*/*"],
}


def _denied(asked: Asked, policy: str, binding: str, words: str, reason: str) -> StatusError:
    resource = asked.target.resource
    why = f"ValidatingAdmissionPolicy '{policy}' with binding '{binding}' denied request: {words}"
    refusal = forbidden(resource.group, resource.plural, asked.name, why)
    details = {**(refusal.details or {}), "causes": [{"message": why}]}
    return StatusError(_CODES.get(reason, 422), reason or "Invalid", str(refusal), details)


class Policies(Rules):
    """ValidatingAdmissionPolicies: what they say is CEL."""

    def prepare_create(self, new: Object, user: User) -> None:
        """It fails closed where it does not say."""
        new.setdefault("spec", {}).setdefault("failurePolicy", "Fail")

    def validate(self, new: Object, old: Object | None) -> list[FieldError]:
        """Return what is missing, wrong, or not done here."""
        spec = new.get("spec") or {}
        errors = []
        if not HAS_CEL:
            errors.append(forbidden_field("spec", "this API server was built without CEL"))
        if spec.get("paramKind"):
            errors.append(forbidden_field("spec.paramKind", "this API server knows no parameters"))
        if not spec.get("validations"):
            errors.append(required("spec.validations", "validations or auditAnnotations must be non-empty"))
        if not (spec.get("matchConstraints") or {}).get("resourceRules"):
            errors.append(required("spec.matchConstraints.resourceRules"))
        if spec.get("failurePolicy") not in ("Fail", "Ignore"):
            errors.append(
                unsupported("spec.failurePolicy", str(spec.get("failurePolicy")), ("Fail", "Ignore"))
            )
        errors += selector_errors(spec.get("matchConstraints") or {}, "spec.matchConstraints")
        for part in ("variables", "matchConditions", "validations"):
            for index, each in enumerate(spec.get(part) or ()):
                at = f"spec.{part}[{index}]"
                if not each.get("name") and part != "validations":
                    errors.append(required(f"{at}.name", ""))
                if not each.get("expression"):
                    errors.append(required(f"{at}.expression", "expression is not specified"))
                for member in ("expression", "messageExpression"):
                    errors += [] if errors else _faults(each, member, at)
        return errors


def _faults(said: Object, member: str, at: str) -> list[FieldError]:
    try:
        _compiled(said, member)
    except ValueError as e:
        return [invalid(f"{at}.{member}", f'"{said[member]}"', f"compilation failed: {e}")]
    return []


class Bindings(Rules):
    """ValidatingAdmissionPolicyBindings."""

    def validate(self, new: Object, old: Object | None) -> list[FieldError]:
        """Return what is missing, or not done here."""
        spec = new.get("spec") or {}
        errors = [
            required(f"spec.{name}") for name in ("policyName", "validationActions") if not spec.get(name)
        ]
        known = ("Deny", "Warn", "Audit")
        errors += [
            unsupported("spec.validationActions", str(each), known)
            for each in spec.get("validationActions") or ()
            if each not in known
        ]
        errors += selector_errors(spec.get("matchResources") or {}, "spec.matchResources")
        if spec.get("paramRef"):
            errors.append(forbidden_field("spec.paramRef", "this API server knows no parameters"))
        return errors
