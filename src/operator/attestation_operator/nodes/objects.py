"""What the controllers of nodes look at: a certificate request and a Node, as far as they matter here.

An API server has checked the shape of what it stores, and nothing of what is in `spec.request`: that is a stranger's.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from attestation.api.base import HOSTNAME_PATTERN
from attestation.endorsements import der
from attestation.errors import MalformedEvidence
from attestation.pki.names import NODE_USER
from attestation.wire import der_of
from attestation_operator.objects import CSR, NODE, Raw, Target

MACHINE_ID_LABEL: Final = "itl.io/machine-id"
"""Whose the Node is, as a kubelet may say of itself (`--node-labels`); believed where nobody else has said it."""
OWNER_LABEL: Final = "node-restriction.kubernetes.io/itl-machine-id"
"""Whose the Node is, as the controller or an administrator wrote it: NodeRestriction lets no kubelet write it."""
ATTESTED_LABEL: Final = "node-restriction.kubernetes.io/itl-attested"
CORDONED_LABEL: Final = "node-restriction.kubernetes.io/itl-cordoned"
"""We cordoned this Node, so we may take it back."""
RUN_AT_LABEL: Final = "node-restriction.kubernetes.io/itl-run-at"
"""When the last attestation run ended whose word counts on this Node: whole seconds since 1970."""
RUN_VERDICT_LABEL: Final = "node-restriction.kubernetes.io/itl-run-verdict"
"""What it found, where runs are to label Nodes (docs/adr/0181)."""
RUN_CORDONED_LABEL: Final = "node-restriction.kubernetes.io/itl-run-cordoned"
"""An attestation run cordoned this Node, so a verified one may take it back."""
TAINT_KEY: Final = "attestation.itl.io/untrusted"

MAX_REQUEST_PEM_BYTES: Final = 24 << 10
"""Longest first block of `spec.request` that is read for its subject: 16 KiB of DER."""

_OBJECT_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
_NODE_NAME: Final = re.compile(HOSTNAME_PATTERN)
_MAX_NODE_NAME: Final = 253
_COMMON_NAME: Final = "2.5.4.3"
_ORGANIZATION: Final = "2.5.4.10"
_BEGIN: Final = b"-----BEGIN CERTIFICATE REQUEST-----"
_END: Final = b"-----END CERTIFICATE REQUEST-----"


class Unreadable(Exception):
    """An object that is not for us to read: a name that fits no URL, a field that is absent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SigningRequest:
    """A CertificateSigningRequest.

    Args:
        target: Which one, and when it was so.
        request: `spec.request` as it stands there, base64; at most what an API server stores, 1.5 MB or so.
        conditions: Its conditions, as they stand there.
    """

    target: Target
    signer_name: str
    username: str
    groups: tuple[str, ...]
    usages: tuple[str, ...]
    expiration_seconds: int | None
    created_at: datetime
    request: str = field(repr=False)
    conditions: tuple[Raw, ...]
    has_certificate: bool

    @property
    def is_open(self) -> bool:
        """Whether nobody has decided, and nothing was issued. Others may decide before us: then it is theirs."""
        return not self.has_certificate and not self._said & {"Approved", "Denied", "Failed"}

    @property
    def awaits_certificate(self) -> bool:
        """Whether it was approved and not yet answered. An API server takes a certificate for any: we look."""
        return "Approved" in self._said and not self._said & {"Denied", "Failed"} and not self.has_certificate

    @property
    def _said(self) -> set[str]:
        # Approved, Denied and Failed are `True` wherever they stand: an API server takes no other status.
        return {condition["type"] for condition in self.conditions}


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A Node: whose it is, and what we may change on it."""

    target: Target
    created_at: datetime
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Raw, ...] = ()
    unschedulable: bool = False

    @property
    def name(self) -> str:
        """Its name: the host name, for a kubelet that joins with us."""
        return self.target.name

    @property
    def owner(self) -> str | None:
        """The machine that the Node belongs to, or None where nobody said.

        What no kubelet can write counts first: a node that was given to another machine could otherwise name that one.
        """
        return self.labels.get(OWNER_LABEL) or self.labels.get(MACHINE_ID_LABEL) or None


def read_csr(body: Raw) -> SigningRequest:
    """Read a CertificateSigningRequest of certificates.k8s.io/v1.

    Raises:
        Unreadable: Its name is none that an agent or a kubelet gives: an API server takes nearly any, and a `?` in a
            path would name another object.
    """
    spec, status = body["spec"], body.get("status") or {}
    target = Target.of(CSR, body)
    if not _OBJECT_NAME.fullmatch(target.name):
        raise Unreadable("the name of the request is none that we put into a path")
    return SigningRequest(
        target=target,
        signer_name=spec.get("signerName") or "",
        username=spec.get("username") or "",
        groups=tuple(spec.get("groups") or ()),
        usages=tuple(spec.get("usages") or ()),
        expiration_seconds=spec.get("expirationSeconds"),
        created_at=datetime.fromisoformat(body["metadata"]["creationTimestamp"]),
        request=spec.get("request") or "",
        conditions=tuple(status.get("conditions") or ()),
        has_certificate=bool(status.get("certificate")),
    )


def read_node(body: Raw) -> Node:
    """Read a Node of core/v1."""
    metadata, spec = body["metadata"], body.get("spec") or {}
    return Node(
        target=Target.of(NODE, body),
        created_at=datetime.fromisoformat(metadata["creationTimestamp"]),
        labels=dict(metadata.get("labels") or {}),
        taints=tuple(spec.get("taints") or ()),
        unschedulable=bool(spec.get("unschedulable")),
    )


def decoded(request: str) -> bytes:
    """Return the bytes of `spec.request`; empty where it is no base64, which no API server stores."""
    try:
        return base64.b64decode(request, validate=True)
    except (binascii.Error, ValueError):
        return b""


def first_block(request: bytes) -> bytes | None:
    """Return the PKCS#10 with which *request* begins, DER, or None where it begins with something else."""
    start = request.find(_BEGIN, 0, MAX_REQUEST_PEM_BYTES)
    end = request.find(_END, start, start + MAX_REQUEST_PEM_BYTES)
    if start < 0 or end < 0:
        return None
    try:
        return der_of(request[start : end + len(_END)] + b"\n", "request", "CERTIFICATE REQUEST")
    except MalformedEvidence:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a PKCS#10 asks for. Nobody has verified that the key in it signed it.

    Args:
        organizations: O of the subject, in their order.
        names: CN of the subject.
        others: How many other attributes the subject has.
        spki: SubjectPublicKeyInfo, DER, as it stands there.
    """

    organizations: tuple[str, ...]
    names: tuple[str, ...]
    others: int
    spki: bytes = field(repr=False)


def wanted(request: bytes) -> Wanted | None:
    """Return what *request* asks for, a stranger's bytes; None where it cannot be read.

    Read here and not by a library: one of them warns of long names, and a name is all that is wanted.
    """
    raw = first_block(request)
    if raw is None:
        return None
    try:
        outer = der.only(raw, der.SEQUENCE, "request")
        info = der.expect(raw, outer.start, outer.stop, der.SEQUENCE, "request: signed part")
        version = der.expect(raw, info.start, info.stop, der.INTEGER, "request: version")
        subject = der.expect(raw, version.stop, info.stop, der.SEQUENCE, "request: subject")
        spki = der.expect(raw, subject.stop, info.stop, der.SEQUENCE, "request: key")
        named: list[tuple[str, str]] = []
        for each in der.elements(raw, subject.start, subject.stop):
            for pair in der.elements(raw, each.start, each.stop):
                kind = der.element(raw, pair.start, pair.stop)
                value = der.element(raw, kind.stop, pair.stop)
                named.append((der.oid(raw, kind), raw[value.start : value.stop].decode("utf-8")))
    except (MalformedEvidence, UnicodeDecodeError):
        return None
    return Wanted(
        organizations=tuple(value for kind, value in named if kind == _ORGANIZATION),
        names=tuple(value for kind, value in named if kind == _COMMON_NAME),
        others=sum(kind not in (_ORGANIZATION, _COMMON_NAME) for kind, _ in named),
        spki=raw[spki.at : spki.stop],
    )


def requested_node(request: bytes) -> str | None:
    """Return the name of the Node that a certificate of *request* would be for, or None.

    Args:
        request: A stranger's: whatever it is, the answer is a name that fits into a path, or None. Nothing rests on it
            but which Node is looked up; the service reads the request itself.
    """
    asked = wanted(request)
    return None if asked is None else node_named(asked)


def node_named(asked: Wanted) -> str | None:
    """Return the name of the Node whose kubelet has this subject, or None."""
    if len(asked.names) != 1:
        return None
    prefix, name = asked.names[0][: len(NODE_USER)], asked.names[0][len(NODE_USER) :]
    if prefix != NODE_USER or len(name) > _MAX_NODE_NAME or not _NODE_NAME.fullmatch(name):
        return None
    return name


def has_evidence(request: bytes) -> bool:
    """Return whether anything but white space stands behind the PKCS#10: it may prove something, or be refused."""
    end = request.find(_END)
    return end >= 0 and bool(request[end + len(_END) :].strip())
