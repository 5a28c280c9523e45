"""What would approve nodes without looking at evidence (HSM-AND-KUBERNETES §23).

The controller `csrapproving` of kube-controller-manager approves the request of anybody who may
`create certificatesigningrequests/nodeclient`, and renewals of those who may `…/selfnodeclient`, within
milliseconds: no other approver is faster. Whether it runs cannot be seen from inside a cluster; who may can.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from attestation.pki.names import NODES_GROUP
from attestation_operator.objects import Raw, clipped

ROLES: Final[Mapping[str, str]] = {
    "system:certificates.k8s.io:certificatesigningrequests:nodeclient": "nodeclient",
    "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient": "selfnodeclient",
}
"""The roles that every cluster has for this, and what each allows."""
BOOTSTRAP_GROUPS: Final = ("system:bootstrappers", "system:bootstrappers:kubeadm:default-node-token")
"""Groups of bootstrap tokens: the built-in one, and kubeadm's."""
CONDITION: Final = "InTreeApproverActive"
EVERYBODY: Final = ("system:authenticated",)
_MAX_SAID: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What a SubjectAccessReview asks: whether somebody could have a request approved unseen."""

    subresource: str
    groups: tuple[str, ...]
    user: str = ""

    @property
    def who(self) -> str:
        """Whom it is about, in words."""
        return self.user or self.groups[0]

    @property
    def spec(self) -> Raw:
        """`spec` of the SubjectAccessReview."""
        spec = {
            "groups": list(self.groups),
            "resourceAttributes": {
                "group": "certificates.k8s.io",
                "resource": "certificatesigningrequests",
                "subresource": self.subresource,
                "verb": "create",
            },
        }
        return spec | {"user": self.user} if self.user else spec


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One way to a certificate without evidence."""

    subresource: str
    who: str
    binding: str | None = None

    def __str__(self) -> str:
        if self.binding is None:
            return f"{self.who} may {self.subresource}"
        return f"ClusterRoleBinding {self.binding} lets {self.who} {self.subresource}"


def questions(bindings: Iterable[Raw], groups: Sequence[str]) -> tuple[Question, ...]:
    """Return what is to be asked: for groups that bootstrap, that are nodes, and that the bindings name.

    Bindings alone would not do: a role of another name, or another authorizer, allows as well.

    Args:
        bindings: All ClusterRoleBindings.
        groups: Further groups that the administrator named.
    """
    asked = dict.fromkeys(
        Question(subresource=subresource, groups=(group,))
        for subresource in ROLES.values()
        for group in (*BOOTSTRAP_GROUPS, NODES_GROUP, *EVERYBODY, *groups)
    )
    for binding in bindings:
        for subject in binding.get("subjects") or ():
            subresource = ROLES.get(_role(binding))
            if subresource is not None and subject.get("kind") == "User":
                asked[Question(subresource=subresource, groups=EVERYBODY, user=subject["name"])] = None
    return tuple(asked)


def reconcile(bindings: Iterable[Raw], answers: Mapping[Question, bool]) -> tuple[Finding, ...]:
    """Return each way to a certificate without evidence, bindings first.

    Args:
        bindings: All ClusterRoleBindings.
        answers: To each question whether it would be allowed.
    """
    found = [
        Finding(
            subresource=ROLES[_role(binding)],
            who=subject.get("name", ""),
            binding=binding["metadata"]["name"],
        )
        for binding in bindings
        if _role(binding) in ROLES
        for subject in binding.get("subjects") or ()
    ]
    told = {(finding.subresource, finding.who) for finding in found}
    found += [
        Finding(subresource=question.subresource, who=question.who)
        for question, allowed in answers.items()
        if allowed and (question.subresource, question.who) not in told
    ]
    return tuple(found)


def said(findings: Sequence[Finding]) -> str:
    """Return *findings* as the message of a condition."""
    if not findings:
        return "nothing approves requests of nodes without evidence"
    rest = len(findings) - _MAX_SAID
    text = "; ".join(str(finding) for finding in findings[:_MAX_SAID])
    return clipped(text + (f"; and {rest} more" if rest > 0 else ""))


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What is known of the in-tree approver; `active` is None where it could not be found out."""

    active: bool | None
    said: str

    def holds_back(self, *, strict: bool) -> bool:
        """Return whether the program is not ready. Not to know is no better than to know that it is active."""
        return strict and self.active is not False


def conditions(raw: Raw, state: State, *, strict: bool, at: datetime) -> tuple[Raw, ...]:
    """Return the conditions that a NodeAttestation is to have; those that say what they said keep their time.

    Args:
        raw: The NodeAttestation, as it is.
        state: What was found.
        strict: Of the administrator: whether it counts.
        at: Now.
    """
    ready = not state.holds_back(strict=strict)
    wanted = (
        (
            CONDITION,
            {True: "True", False: "False", None: "Unknown"}[state.active],
            {True: "BindingFound", False: "NothingFound", None: "NotFoundOut"}[state.active],
            state.said,
        ),
        ("Ready", "True", "Ready", "requests are decided")
        if ready
        else ("Ready", "False", "NotReady", state.said),
    )
    had = {condition["type"]: condition for condition in (raw.get("status") or {}).get("conditions") or ()}
    return tuple(
        {
            "type": type_,
            "status": status,
            "reason": reason,
            "message": message,
            "observedGeneration": raw["metadata"].get("generation", 0),
            "lastTransitionTime": had[type_]["lastTransitionTime"]
            if had.get(type_, {}).get("status") == status
            else at.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        }
        for type_, status, reason, message in wanted
    )


def is_said(raw: Raw, wanted: Sequence[Raw]) -> bool:
    """Return whether a NodeAttestation has these conditions already."""
    had = {condition["type"]: condition for condition in (raw.get("status") or {}).get("conditions") or ()}
    return all(had.get(condition["type"]) == condition for condition in wanted)


def _role(binding: Raw) -> str:
    reference = binding.get("roleRef") or {}
    return str(reference.get("name", "")) if reference.get("kind") == "ClusterRole" else ""
