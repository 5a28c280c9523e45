"""Issuers and tokens as the controller reads them. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from pydantic import ValidationError

from attestation.api.said import said as fault_said
from attestation.errors import (
    AttestationError,
    CAInvalid,
    KeyAmbiguous,
    KeyMismatch,
    KeyUnsupported,
    UnwrapFailed,
)
from attestation_operator.actions import SetFinalizers
from attestation_operator.crds.hsm import (
    ClusterIssuerSpec,
    HardwareSecurityModuleSpec,
    IssuerSpec,
    KeyState,
    Reason,
    Subject,
)
from attestation_operator.crds.parts import Part
from attestation_operator.durations import parse_duration
from attestation_operator.hsm.tokens import KeyName
from attestation_operator.objects import (
    FINALIZER,
    HSM,
    HSM_CLUSTER_ISSUER,
    HSM_ISSUER,
    Key,
    Kind,
    Raw,
    Target,
    clipped,
)

MANAGER: Final = "attestation-operator-hsm"
"""Who we are in `metadata.managedFields` of what this controller says a status of."""
ISSUER_KINDS: Final[Mapping[str, Kind]] = {each.kind: each for each in (HSM_ISSUER, HSM_CLUSTER_ISSUER)}
READY: Final = "Ready"
AGAIN_SECONDS: Final = 10.0
"""After so long what is not there yet is looked for again, or what was away asked again."""
MAX_NAME: Final = 253
"""Characters of an object's name."""


@dataclass(frozen=True, slots=True)
class Absent:
    """What was asked for is not there."""


def label_of(uid: str, number: int) -> str:
    """Return the label of an issuer's key on its token: the UID, with the number from the second on."""
    return uid if number == 1 else f"{uid}-{number}"


def faults_of(error: ValidationError) -> str:
    """Return what is wrong with a spec, each with its member; no value of a stranger's."""
    found = error.errors(include_url=False, include_input=False)
    return clipped("; ".join(f"{'.'.join(map(str, each['loc']))}: {fault_said(each)}" for each in found))


def spec_of(model: type[Part], raw: Raw) -> tuple[Any, str]:
    """Return the spec of *raw*, None where it cannot be followed, and what is wrong with it."""
    try:
        return model.model_validate(raw.get("spec") or {}, by_alias=True, by_name=False), ""
    except ValidationError as e:
        return None, faults_of(e)


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """A HardwareSecurityModule.

    Args:
        target: Which one, and when it was so.
        generation: Of its spec.
        spec: None where it cannot be followed; `faults` says why.
        status: As it stands there.
    """

    target: Target
    generation: int
    spec: HardwareSecurityModuleSpec | None
    faults: str
    status: Raw
    allows: frozenset[str]

    def is_for(self, namespace: str | None) -> bool:
        """Whether issuers of a namespace may use it; None: those of the cluster."""
        return namespace is None or namespace in self.allows


def read_module(raw: Raw) -> Module:
    """Return what *raw* says."""
    spec, faults = spec_of(HardwareSecurityModuleSpec, raw)
    return Module(
        target=Target.of(HSM, raw),
        generation=int(raw["metadata"].get("generation") or 1),
        spec=spec,
        faults=faults,
        status=raw.get("status") or {},
        allows=frozenset(spec.allowed_namespaces) if spec is not None else frozenset(),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Issuer:
    """An HsmIssuer or HsmClusterIssuer.

    Args:
        target: Which one, and when it was so.
        generation: Of its spec.
        spec: None where it cannot be followed; `faults` says why.
        status: As it stands there.
        deleting: Somebody deleted it, and it waits for us.
        finalizers: What holds it.
        labels: Its labels, which its QuoteAttestations have too.
        said: Its spec as it stands there, whether it can be followed or not.
        created_at: When it was created, as the API server wrote it.
    """

    target: Target
    generation: int
    spec: IssuerSpec | None
    faults: str
    status: Raw
    deleting: bool
    finalizers: tuple[str, ...]
    labels: Mapping[str, str]
    said: Raw = field(repr=False)
    created_at: str

    @property
    def uid(self) -> str:
        """What it is known by at the service, and the label of its key."""
        return self.target.uid

    @property
    def key(self) -> KeyName:
        """Its key on the token."""
        ref = self.spec.key_ref if isinstance(self.spec, ClusterIssuerSpec) else None
        label = label_of(self.uid, self.number)
        return KeyName(label=label) if ref is None else KeyName(label=ref.label, id=ref.id)

    @property
    def number(self) -> int:
        """Number of the key that signs."""
        keys = self.status.get("keys") or ()
        return next((int(each["number"]) for each in keys if each["state"] == KeyState.ACTIVE), 1)

    @property
    def has_own_key(self) -> bool:
        """Whether its key is one that we make and may destroy; not one that was on the token before."""
        return self.target.kind.namespaced or self.said.get("keyRef") is None

    @property
    def hsm(self) -> Key | None:
        """The HardwareSecurityModule that it names, also where its spec cannot be followed; or None."""
        return hsm_of(self.said)

    @property
    def destroys(self) -> bool:
        """Whether its key goes with it; a spec that cannot be followed still says so."""
        return self.said.get("deletionPolicy") == "Destroy" and self.has_own_key

    @property
    def is_held(self) -> bool:
        """Whether it waits for us when it is deleted."""
        return FINALIZER in self.finalizers


def hsm_of(said: Raw) -> Key | None:
    """Return the HardwareSecurityModule that the spec of an issuer names; None where it names none."""
    ref = said.get("hsmRef")
    name = ref.get("name") if isinstance(ref, Mapping) else None
    return Key(kind=HSM, name=name) if isinstance(name, str) and name else None


def older(issuer: Issuer, others: Iterable[Raw]) -> int:
    """Return how many of *others* are of the same namespace and token as *issuer*, and were created before it."""
    born = issuer.created_at, issuer.uid
    return sum(
        1
        for raw in others
        if raw["metadata"].get("namespace") == issuer.target.namespace
        and hsm_of(raw.get("spec") or {}) == issuer.hsm
        and (str(raw["metadata"].get("creationTimestamp") or ""), str(raw["metadata"]["uid"])) < born
    )


def read_issuer(kind: Kind, raw: Raw) -> Issuer:
    """Return what *raw* says."""
    spec, faults = spec_of(IssuerSpec if kind.namespaced else ClusterIssuerSpec, raw)
    metadata = raw["metadata"]
    return Issuer(
        target=Target.of(kind, raw),
        generation=int(metadata.get("generation") or 1),
        spec=spec,
        faults=faults,
        status=raw.get("status") or {},
        deleting=metadata.get("deletionTimestamp") is not None,
        finalizers=tuple(metadata.get("finalizers") or ()),
        labels=metadata.get("labels") or {},
        said=raw.get("spec") or {},
        created_at=str(metadata.get("creationTimestamp") or ""),
    )


_REASONS: Final[tuple[tuple[type[AttestationError], Reason], ...]] = (
    (UnwrapFailed, Reason.UNWRAP_FAILED),
    (KeyAmbiguous, Reason.KEY_AMBIGUOUS),
    (KeyUnsupported, Reason.KEY_UNSUPPORTED),
    (KeyMismatch, Reason.CERTIFICATE_MISMATCH),
    (CAInvalid, Reason.CA_INVALID),
)


def key_reason(error: AttestationError) -> Reason:
    """Return the reason that says what is wrong with a CA key; where nothing is but that it is away, that."""
    return next((reason for type_, reason in _REASONS if isinstance(error, type_)), Reason.KEY_UNAVAILABLE)


def hold(target: Target, finalizers: tuple[str, ...]) -> SetFinalizers:
    """Return what has an object wait for us when it is deleted."""
    return SetFinalizers(target=target, finalizers=(*finalizers, FINALIZER))


def let_go(target: Target, finalizers: tuple[str, ...]) -> SetFinalizers:
    """Return what has an object wait for us no more."""
    return SetFinalizers(target=target, finalizers=tuple(each for each in finalizers if each != FINALIZER))


def ended(name: str, end: str) -> str:
    """Return the name of an object that follows from *name*, cut where both are too long for one."""
    return name[: MAX_NAME - len(end)].rstrip("-.") + end


def is_status(there: Raw, status: Mapping[str, Any]) -> bool:
    """Return True where *status* is what stands there, but for what the framework keeps."""
    return {name: value for name, value in there.items() if name != "kopf"} == status


def condition(status: Raw, type_: str) -> Raw | None:
    """Return a condition, None where it was not said."""
    return next((each for each in status.get("conditions") or () if each.get("type") == type_), None)


def distinguished(subject: Subject) -> list[tuple[str, str]]:
    """Return the attributes of a name as (OID, text), in the order in which names are written."""
    parts: list[tuple[str, tuple[str, ...]]] = [
        ("2.5.4.6", subject.countries),
        ("2.5.4.8", subject.provinces),
        ("2.5.4.7", subject.localities),
        ("2.5.4.9", subject.street_addresses),
        ("2.5.4.17", subject.postal_codes),
        ("2.5.4.10", subject.organizations),
        ("2.5.4.11", subject.organizational_units),
        ("2.5.4.3", (subject.common_name,) if subject.common_name else ()),
        ("2.5.4.5", (subject.serial_number,) if subject.serial_number else ()),
    ]
    return [(oid, text) for oid, texts in parts for text in texts]


def seconds_of(duration: str) -> float:
    """Return a duration of Go in seconds."""
    return parse_duration(duration).total_seconds()


def instant(text: str) -> datetime:
    """Read RFC 3339 with `Z`, as an API server writes it."""
    return datetime.fromisoformat(text)
