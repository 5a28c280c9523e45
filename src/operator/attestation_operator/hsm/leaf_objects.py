"""HsmCertificates as the controller reads them, and what is asked and answered about one. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from attestation.errors import AttestationError
from attestation_operator.actions import Action
from attestation_operator.crds.leaves import HsmCertificateSpec
from attestation_operator.hsm.objects import Absent, Module, ended, spec_of
from attestation_operator.objects import (
    CERTIFICATE_REQUEST,
    FINALIZER,
    HSM,
    HSM_CERTIFICATE,
    SECRET,
    Key,
    Raw,
    Target,
)

KEYS_KEPT: Final = 2
"""The newest key and the one before it: who uses it is given the time until the next renewal."""
KEYS_SWEPT: Final = 4
"""How many older ones are looked for: they went with the renewals before, but where the token was away."""


class Ask(StrEnum):
    """What is asked of the API server, or of the token."""

    TLS = "secret"
    REQUEST = "request"
    OLD_REQUEST = "old-request"
    KEY = "key"
    MAKE = "make"
    RETIRE = "retire"
    DESTROY = "destroy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A key on the token.

    Args:
        spki: SubjectPublicKeyInfo, DER.
        algorithm: As `keyType` names it.
        uri: Without a PIN.
        request: PEM, where one was made with it.
    """

    spki: bytes = field(repr=False)
    algorithm: str
    uri: str
    request: bytes = field(default=b"", repr=False)


Answer = Raw | Absent | Seen | bool | AttestationError


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """An HsmCertificate.

    Args:
        target: Which one, and when it was so.
        generation: Of its spec.
        spec: None where it cannot be followed; `faults` says why.
        status: As it stands there.
        deleting: Whether it goes as soon as we let it.
        finalizers: All of them.
    """

    target: Target
    generation: int
    spec: HsmCertificateSpec | None
    faults: str
    status: Raw
    deleting: bool
    finalizers: tuple[str, ...]

    @property
    def namespace(self) -> str:
        """Where it is."""
        assert self.target.namespace is not None
        return self.target.namespace

    @property
    def is_held(self) -> bool:
        """Whether it waits for us when it is deleted."""
        return FINALIZER in self.finalizers

    @property
    def hsm(self) -> Key:
        """Its HardwareSecurityModule."""
        assert self.spec is not None
        return Key(kind=HSM, name=self.spec.hsm_ref.name)

    @property
    def secret(self) -> Key:
        """Its Secret: in its own namespace, always."""
        assert self.spec is not None
        return Key(kind=SECRET, name=self.spec.secret_name, namespace=self.namespace)

    def count(self, member: str) -> int:
        """Return a number of its status; 0 where it does not stand there."""
        return int(self.status.get(member) or 0)

    @property
    def number(self) -> int:
        """Of the newest request; 0 before the first."""
        return self.count("requestNumber")

    def request(self, number: int) -> Key:
        """Return the name of a request: no other object's, whatever is called alike."""
        name = ended(self.target.name, f"-{self.target.uid[:8]}-{number}")
        return Key(kind=CERTIFICATE_REQUEST, name=name, namespace=self.namespace)

    def label(self, key_revision: int) -> str:
        """Return the label of a key."""
        return f"{self.target.uid}-{key_revision}"

    @property
    def owner(self) -> dict[str, Any]:
        """What its Secret and its requests say of whose they are."""
        return {**self.target.reference, "controller": True}

    def owns(self, raw: Raw) -> bool:
        """Whether an object says that it is ours."""
        refs = raw["metadata"].get("ownerReferences") or ()
        return any(each.get("uid") == self.target.uid and each.get("controller") is True for each in refs)

    @property
    def issuer(self) -> str:
        """Whom it asks."""
        assert self.spec is not None
        ref = self.spec.issuer_ref
        return f"{ref.group}/{ref.kind}/{ref.name}"


def read_leaf(raw: Raw) -> Leaf:
    """Return what *raw* says."""
    spec, faults = spec_of(HsmCertificateSpec, raw)
    metadata = raw["metadata"]
    return Leaf(
        target=Target.of(HSM_CERTIFICATE, raw),
        generation=int(metadata.get("generation") or 1),
        spec=spec,
        faults=faults,
        status=raw.get("status") or {},
        deleting=metadata.get("deletionTimestamp") is not None,
        finalizers=tuple(metadata.get("finalizers") or ()),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What is known of an HsmCertificate.

    Args:
        leaf: The object.
        module: Its HardwareSecurityModule, None where there is none.
        at: Now.
        answers: What was answered at this look.
    """

    leaf: Leaf
    module: Module | None
    at: datetime
    answers: Mapping[Ask, Answer] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """What follows.

    Args:
        ask: What must be known first; then nothing else is said.
        actions: What is to be done.
        after: After how many seconds to look again by itself.
        again: Look again at once, at the object as it then is.
    """

    ask: Ask | None = None
    actions: tuple[Action, ...] = ()
    after: float | None = None
    again: bool = False


def keys_to_destroy(leaf: Leaf) -> range:
    """Return the numbers of the keys that go with the object."""
    newest = leaf.count("keyRevision")
    return range(max(1, newest - KEYS_KEPT - KEYS_SWEPT + 1), newest + 1)


def keys_to_retire(leaf: Leaf) -> range:
    """Return the numbers of the keys that go when the newest is certified."""
    last = leaf.count("keyRevision") - KEYS_KEPT
    return range(max(1, last - KEYS_SWEPT + 1), last + 1)
