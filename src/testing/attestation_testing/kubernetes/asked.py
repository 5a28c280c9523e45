"""What policies of admission and webhooks are asked about, and which of it they want to see."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from attestation_testing.kubernetes.access import User
from attestation_testing.kubernetes.requests import Target
from attestation_testing.kubernetes.status import FieldError, Object, unsupported

GROUP: Final = "admissionregistration.k8s.io"
_OPERATORS: Final = ("In", "NotIn", "Exists", "DoesNotExist")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What somebody is about to write.

    Args:
        operation: `CREATE`, `UPDATE` or `DELETE`.
        target: Where.
        name: Of the object.
        new: What it becomes; None where it is deleted.
        old: What it was; None where it is created.
        user: Who.
        dry: Nothing is kept of it.
        space: The namespace, where it is in one.
    """

    operation: str
    target: Target
    name: str
    new: Object | None
    old: Object | None
    user: User
    dry: bool
    space: Object | None

    @property
    def objects(self) -> Iterator[Object]:
        """What there is of them."""
        yield from (each for each in (self.new, self.old) if each is not None)

    def request(self) -> Object:
        """Return the request as AdmissionReview tells it, without the objects."""
        resource, version = self.target.resource, self.target.version.name
        kind = {"group": resource.group, "version": version, "kind": resource.kind}
        named = {"group": resource.group, "version": version, "resource": resource.plural}
        return {
            "kind": kind,
            "resource": named,
            "subResource": self.target.subresource,
            "requestKind": kind,
            "requestResource": named,
            "requestSubResource": self.target.subresource,
            "name": self.name,
            "namespace": self.target.namespace,
            "operation": self.operation,
            "userInfo": {"uid": "", "extra": {}, **self.user.as_object()},
            "dryRun": self.dry,
            "options": {},
        }


def selects(selector: Object | None, labels: Mapping[str, str]) -> bool:
    """Say whether a LabelSelector (metav1) chooses an object with these labels; an empty one chooses each."""
    selector = selector or {}
    if any(labels.get(key) != value for key, value in (selector.get("matchLabels") or {}).items()):
        return False
    for each in selector.get("matchExpressions") or ():
        key, values = str(each.get("key")), each.get("values") or ()
        there = key in labels if "Exist" in each["operator"] else labels.get(key) in values
        if there is (each["operator"] in ("NotIn", "DoesNotExist")):
            return False
    return True


def selector_errors(said: Object, at: str) -> list[FieldError]:
    """Return what is wrong with the selectors of a policy, a binding or a webhook."""
    return [
        unsupported(
            f"{at}.{name}.matchExpressions[{index}].operator", str(each.get("operator") or ""), _OPERATORS
        )
        for name in ("namespaceSelector", "objectSelector")
        for index, each in enumerate((said.get(name) or {}).get("matchExpressions") or ())
        if each.get("operator") not in _OPERATORS
    ]


def matches(said: Object, asked: Asked, rules: str) -> bool:
    """Say whether a request is one that a policy or a webhook wants to see.

    Args:
        said: With selectors, and with rules.
        asked: The request.
        rules: Name of the rules in it.
    """
    if not any(_rule_matches(each, asked) for each in said.get(rules) or ()):
        return False
    if any(_rule_matches(each, asked) for each in said.get("excludeResourceRules") or ()):
        return False
    space = asked.space
    if asked.target.resource.key == ("", "namespaces"):
        space = asked.new or asked.old
    if space is not None and not selects(said.get("namespaceSelector"), _labels(space)):
        return False
    return any(selects(said.get("objectSelector"), _labels(each)) for each in asked.objects)


def _labels(value: Object) -> Mapping[str, str]:
    labels: Mapping[str, str] = value["metadata"].get("labels") or {}
    return labels


def _rule_matches(rule: Object, asked: Asked) -> bool:
    resource, part = asked.target.resource, asked.target.subresource
    scope = "Namespaced" if resource.namespaced else "Cluster"
    named = [resource.plural, "*"]
    if part:
        named = [f"{resource.plural}/{part}", f"{resource.plural}/*", f"*/{part}", "*/*"]
    names = rule.get("resourceNames") or ()
    return (
        bool({asked.operation, "*"} & set(rule.get("operations") or ()))
        and bool({resource.group, "*"} & set(rule.get("apiGroups") or ()))
        and bool({asked.target.version.name, "*"} & set(rule.get("apiVersions") or ()))
        and any(each in (*named, "*/*") for each in rule.get("resources") or ())
        and rule.get("scope", "*") in ("*", scope)
        and (not names or asked.name in names)
    )
