"""Which resources there are: names, verbs, parts that are written apart, and what their lists are merged by."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from attestation_testing.kubernetes.status import FieldError, Object

CEL_RULES: Final = 25
"""Since 1.25: rules of schemas in CEL."""
ADMISSION_POLICIES: Final = 30
"""Since 1.30: ValidatingAdmissionPolicy."""
SELECTABLE_FIELDS: Final = 31
"""Since 1.31: fields of custom resources are selected by."""
NODE_CLAIMS: Final = 32
"""Since 1.32: tokens that are bound to a Pod name its Node."""
NEWEST: Final = 33

Path = tuple[str, ...]
"""Names from the root of an object; `[]` for each item of a list."""


@dataclass(frozen=True, slots=True)
class ListKeys:
    """A list of maps that are told apart by some of their fields (`x-kubernetes-list-type: map`)."""

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SetList:
    """A list of different scalars (`x-kubernetes-list-type: set`)."""


@dataclass(frozen=True, slots=True)
class AtomicMap:
    """A map that is replaced as a whole (`x-kubernetes-map-type: atomic`)."""


Topology = Mapping[Path, ListKeys | SetList | AtomicMap]
"""What is merged in which way; other maps field by field, other lists as a whole."""

METADATA: Final[Topology] = {
    ("metadata", "ownerReferences"): ListKeys(("uid",)),
    ("metadata", "ownerReferences", "[]"): AtomicMap(),
    ("metadata", "finalizers"): SetList(),
}
_CONDITIONS: Final[Topology] = {("status", "conditions"): ListKeys(("type",))}


@dataclass(frozen=True, slots=True)
class Version:
    """One served version of a custom resource, or of ours.

    Args:
        name: As `v1`.
        topology: How its objects are merged.
        selectable: Field selectors beside `metadata.name` and `metadata.namespace`.
        validate: What is wrong with a new object, or with one that replaces another.
        default: Fills in what is missing and takes away what the schema does not know.
    """

    name: str
    topology: Topology = field(default_factory=lambda: METADATA)
    selectable: tuple[str, ...] = ()
    validate: Callable[[Object, Object | None], list[FieldError]] | None = None
    default: Callable[[Object], None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """A resource.

    Args:
        group: API group, empty for the core.
        plural: As in URLs.
        kind: As in objects.
        versions: Those that are served; the first is stored.
        namespaced: Its objects are in namespaces.
        subresources: Parts that are written apart: `status`, `approval`.
        short_names: For kubectl.
        verbs: What may be done.
        generation: `metadata.generation` counts changes of what is wanted.
        unconditional: PUT without resourceVersion is let through.
        creates_on_update: PUT of an absent object makes it.
        custom: Of a CustomResourceDefinition.
        any_name: Names are not compared with those of DNS (RBAC, certificate requests).
        since: The minor version of Kubernetes that served it first, where that matters to us.
    """

    group: str
    plural: str
    kind: str
    versions: tuple[Version, ...] = (Version("v1"),)
    namespaced: bool = False
    subresources: frozenset[str] = frozenset()
    short_names: tuple[str, ...] = ()
    verbs: frozenset[str] = frozenset(
        {"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"}
    )
    generation: bool = False
    unconditional: bool = True
    creates_on_update: bool = False
    custom: bool = False
    any_name: bool = False
    since: int = 0

    @property
    def key(self) -> tuple[str, str]:
        """What it is stored under."""
        return self.group, self.plural

    @property
    def singular(self) -> str:
        """As discovery tells it."""
        return self.kind.lower()

    def api_version(self, version: str) -> str:
        """Return `group/version` as objects say it."""
        return f"{self.group}/{version}" if self.group else version

    def version(self, name: str) -> Version | None:
        """Return the served version of this name."""
        return next((each for each in self.versions if each.name == name), None)


_ONLY_CREATE: Final = frozenset({"create"})


def _v1(topology: Topology | None = None, *selectable: str) -> tuple[Version, ...]:
    return (Version("v1", {**METADATA, **(topology or {})}, selectable),)


_NODE: Final[Topology] = {
    **_CONDITIONS,
    ("status", "addresses"): ListKeys(("type",)),
    ("spec", "podCIDRs"): SetList(),
}
_RBAC: Final = "rbac.authorization.k8s.io"

BUILT_IN: Final[tuple[Resource, ...]] = (
    Resource(
        group="",
        plural="namespaces",
        kind="Namespace",
        versions=_v1(_CONDITIONS, "status.phase"),
        subresources=frozenset({"status", "finalize"}),
        short_names=("ns",),
    ),
    Resource(
        group="",
        plural="nodes",
        kind="Node",
        versions=_v1(_NODE, "spec.unschedulable"),
        subresources=frozenset({"status"}),
        short_names=("no",),
    ),
    Resource(
        group="",
        plural="secrets",
        kind="Secret",
        versions=_v1(None, "type"),
        namespaced=True,
    ),
    Resource(group="", plural="configmaps", kind="ConfigMap", namespaced=True, short_names=("cm",)),
    Resource(
        group="",
        plural="serviceaccounts",
        kind="ServiceAccount",
        namespaced=True,
        subresources=frozenset({"token"}),
        short_names=("sa",),
    ),
    Resource(
        group="",
        plural="pods",
        kind="Pod",
        versions=_v1(_CONDITIONS, "spec.nodeName", "status.phase", "spec.serviceAccountName"),
        namespaced=True,
        subresources=frozenset({"status"}),
        short_names=("po",),
    ),
    Resource(
        group="",
        plural="events",
        kind="Event",
        versions=_v1(
            None,
            "involvedObject.kind",
            "involvedObject.name",
            "involvedObject.namespace",
            "involvedObject.uid",
            "reason",
            "type",
        ),
        namespaced=True,
        creates_on_update=True,
        short_names=("ev",),
    ),
    Resource(
        group="events.k8s.io",
        plural="events",
        kind="Event",
        versions=_v1(
            None, "regarding.kind", "regarding.name", "regarding.namespace", "regarding.uid", "reason", "type"
        ),
        namespaced=True,
        creates_on_update=True,
        short_names=("ev",),
    ),
    Resource(
        group="coordination.k8s.io",
        plural="leases",
        kind="Lease",
        namespaced=True,
        creates_on_update=True,
    ),
    Resource(
        group="certificates.k8s.io",
        plural="certificatesigningrequests",
        kind="CertificateSigningRequest",
        versions=_v1(_CONDITIONS, "spec.signerName"),
        subresources=frozenset({"status", "approval"}),
        short_names=("csr",),
        any_name=True,
    ),
    Resource(
        group="certificates.k8s.io",
        plural="clustertrustbundles",
        kind="ClusterTrustBundle",
        versions=_v1(None, "spec.signerName"),
        any_name=True,
    ),
    *(
        Resource(group=_RBAC, plural=plural, kind=kind, namespaced=namespaced, any_name=True)
        for plural, kind, namespaced in (
            ("clusterroles", "ClusterRole", False),
            ("clusterrolebindings", "ClusterRoleBinding", False),
            ("roles", "Role", True),
            ("rolebindings", "RoleBinding", True),
        )
    ),
    Resource(
        group="apiextensions.k8s.io",
        plural="customresourcedefinitions",
        kind="CustomResourceDefinition",
        versions=_v1(_CONDITIONS),
        subresources=frozenset({"status"}),
        short_names=("crd", "crds"),
        generation=True,
    ),
    Resource(
        group="admissionregistration.k8s.io",
        plural="validatingwebhookconfigurations",
        kind="ValidatingWebhookConfiguration",
        generation=True,
    ),
    Resource(
        group="admissionregistration.k8s.io",
        plural="validatingadmissionpolicies",
        kind="ValidatingAdmissionPolicy",
        subresources=frozenset({"status"}),
        generation=True,
        since=ADMISSION_POLICIES,
    ),
    Resource(
        group="admissionregistration.k8s.io",
        plural="validatingadmissionpolicybindings",
        kind="ValidatingAdmissionPolicyBinding",
        generation=True,
        since=ADMISSION_POLICIES,
    ),
    Resource(
        group="authorization.k8s.io",
        plural="subjectaccessreviews",
        kind="SubjectAccessReview",
        verbs=_ONLY_CREATE,
    ),
    Resource(
        group="authorization.k8s.io",
        plural="selfsubjectaccessreviews",
        kind="SelfSubjectAccessReview",
        verbs=_ONLY_CREATE,
    ),
    Resource(
        group="authorization.k8s.io",
        plural="localsubjectaccessreviews",
        kind="LocalSubjectAccessReview",
        verbs=_ONLY_CREATE,
        namespaced=True,
    ),
    Resource(
        group="authentication.k8s.io",
        plural="tokenreviews",
        kind="TokenReview",
        verbs=_ONLY_CREATE,
    ),
    Resource(
        group="authentication.k8s.io",
        plural="selfsubjectreviews",
        kind="SelfSubjectReview",
        verbs=_ONLY_CREATE,
    ),
)
