"""Kinds of objects, and names of one of them. What an API server shows of an object is a dictionary here: `Raw`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

Raw = Mapping[str, Any]
"""An object as the API server shows it: JSON, read."""

GROUP: Final = "attestation.itl.io"
RUNS_GROUP: Final = "security.ugallu.io"
"""Of attestation runs and what comes of them."""
FINALIZER: Final = "attestation.itl.io/key-material"
"""On our own kinds alone: their keys are dealt with before they go."""
MANAGER: Final = "attestation-operator"
"""Who we are in `metadata.managedFields` and as the source of events."""
MAX_MESSAGE_BYTES: Final = 1024
"""Longest `note` of an Event (events.k8s.io/v1); conditions have no longer messages here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A kind of objects: of the whole cluster, or each in a namespace.

    `group` is empty for the core of Kubernetes.
    """

    group: str
    version: str
    kind: str
    plural: str
    namespaced: bool = False

    @property
    def api_version(self) -> str:
        """What objects of this kind have as `apiVersion`."""
        return f"{self.group}/{self.version}" if self.group else self.version


LEASE: Final = Kind(group="coordination.k8s.io", version="v1", kind="Lease", plural="leases", namespaced=True)
EVENT: Final = Kind(group="events.k8s.io", version="v1", kind="Event", plural="events", namespaced=True)
ACCESS_REVIEW: Final = Kind(
    group="authorization.k8s.io", version="v1", kind="SubjectAccessReview", plural="subjectaccessreviews"
)
CSR: Final = Kind(
    group="certificates.k8s.io",
    version="v1",
    kind="CertificateSigningRequest",
    plural="certificatesigningrequests",
)
NODE: Final = Kind(group="", version="v1", kind="Node", plural="nodes")
NODE_ATTESTATION: Final = Kind(
    group=GROUP, version="v1alpha1", kind="NodeAttestation", plural="nodeattestations"
)
CLUSTER_ROLE_BINDING: Final = Kind(
    group="rbac.authorization.k8s.io", version="v1", kind="ClusterRoleBinding", plural="clusterrolebindings"
)


def _of_runs(kind: str, *, namespaced: bool) -> Kind:
    plural = f"{kind.lower()[:-1]}ies" if kind.endswith("y") else f"{kind.lower()}s"
    return Kind(group=RUNS_GROUP, version="v1alpha1", kind=kind, plural=plural, namespaced=namespaced)


RUN: Final = _of_runs("ConfidentialAttestationRun", namespaced=True)
RESULT: Final = _of_runs("ConfidentialAttestationResult", namespaced=True)
POLICY: Final = _of_runs("AttestationPolicy", namespaced=True)
SCHEDULE: Final = _of_runs("AttestationSchedule", namespaced=True)
SECURITY_EVENT: Final = _of_runs("SecurityEvent", namespaced=False)
BUNDLE: Final = _of_runs("AttestationBundle", namespaced=False)


def _of_hsm(kind: str, plural: str, *, namespaced: bool = True) -> Kind:
    return Kind(group=GROUP, version="v1alpha1", kind=kind, plural=plural, namespaced=namespaced)


HSM: Final = _of_hsm("HardwareSecurityModule", "hardwaresecuritymodules", namespaced=False)
HSM_ISSUER: Final = _of_hsm("HsmIssuer", "hsmissuers")
HSM_CLUSTER_ISSUER: Final = _of_hsm("HsmClusterIssuer", "hsmclusterissuers", namespaced=False)
QUOTE_ATTESTATION: Final = _of_hsm("QuoteAttestation", "quoteattestations")
HSM_CERTIFICATE: Final = _of_hsm("HsmCertificate", "hsmcertificates")
HSM_KINDS: Final = (HSM, HSM_ISSUER, HSM_CLUSTER_ISSUER, QUOTE_ATTESTATION, HSM_CERTIFICATE)
CERTIFICATE_REQUEST: Final = Kind(
    group="cert-manager.io",
    version="v1",
    kind="CertificateRequest",
    plural="certificaterequests",
    namespaced=True,
)
"""Of cert-manager, whose definition comes with it."""
SECRET: Final = Kind(group="", version="v1", kind="Secret", plural="secrets", namespaced=True)


PAGE_OBJECTS: Final = 100
PAGE_REQUESTS: Final = 5
"""Of what a stranger may make as large as an API server takes, a megabyte and more: certificate requests, evidence."""
PAGE_RUNS: Final = 20
"""Of runs, results and policies: who asks for one chooses much of it, within what its schema allows."""


def page_objects(kind: Kind) -> int:
    """Return how many objects of a kind are asked for at once: all of a page are in memory together."""
    if kind in (RUN, RESULT, POLICY):
        return PAGE_RUNS
    return PAGE_REQUESTS if kind in (CSR, CERTIFICATE_REQUEST, QUOTE_ATTESTATION) else PAGE_OBJECTS


def _place(kind: Kind, name: str, namespace: str | None) -> str:
    """Return where an object is, as logs tell it.

    Raises:
        ValueError: The kind has namespaces and none is given, or the other way round.
    """
    if kind.namespaced != (namespace is not None):
        raise ValueError(f"{kind.kind} {name}: namespace {namespace}")
    return name if namespace is None else f"{namespace}/{name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """Name of an object, whatever is there under it. `namespace` is None exactly where the kind has none."""

    kind: Kind
    name: str
    namespace: str | None = None

    def __post_init__(self) -> None:
        _place(self.kind, self.name, self.namespace)

    @classmethod
    def of(cls, kind: Kind, raw: Raw) -> Self:
        """Return the name of *raw*."""
        metadata = raw["metadata"]
        return cls(kind=kind, name=metadata["name"], namespace=metadata.get("namespace"))

    def __str__(self) -> str:
        return _place(self.kind, self.name, self.namespace)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One object at one moment: what was judged, and nothing that came after it."""

    kind: Kind
    name: str
    uid: str
    resource_version: str
    namespace: str | None = None

    def __post_init__(self) -> None:
        _place(self.kind, self.name, self.namespace)

    @classmethod
    def of(cls, kind: Kind, raw: Raw) -> Self:
        """Return what *raw* is."""
        metadata = raw["metadata"]
        return cls(
            kind=kind,
            name=metadata["name"],
            uid=metadata["uid"],
            resource_version=metadata["resourceVersion"],
            namespace=metadata.get("namespace"),
        )

    @property
    def key(self) -> Key:
        """Its name, without the moment."""
        return Key(kind=self.kind, name=self.name, namespace=self.namespace)

    @property
    def reference(self) -> dict[str, Any]:
        """What an `ownerReferences` entry says of it: what goes when this goes (garbage collection)."""
        return {
            "apiVersion": self.kind.api_version,
            "kind": self.kind.kind,
            "name": self.name,
            "uid": self.uid,
        }

    def __str__(self) -> str:
        return _place(self.kind, self.name, self.namespace)


Told = Callable[[Key, Raw | None], None]
"""Called for an object that is there or has changed; with None where it is gone."""


def clipped(text: str, size_bytes: int = MAX_MESSAGE_BYTES) -> str:
    """Return *text* as the message of a condition or an Event: 1 to *size_bytes* bytes of UTF-8."""
    raw = text.encode("utf-8", "replace")[:size_bytes]
    return raw.decode("utf-8", "ignore").strip() or "no message"
