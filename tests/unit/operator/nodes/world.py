"""Requests, Nodes, answers, and a cluster in memory that refuses what an API server refuses."""

from __future__ import annotations

import base64
import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from attestation.api.node_csr import NODE_CLIENT, NodeCertificate, NodeCSRDecision, NodeCSRRequest, NodeTrust
from attestation.api.runs import RunBundle, RunDetail, RunOpen, RunOpened, RunSeal
from attestation.errors import AttestationError
from attestation.machines import Status
from attestation_operator.actions import (
    Action,
    Approve,
    Delete,
    Deny,
    EmitEvent,
    Fail,
    PatchNode,
    PutCertificate,
    SetStatus,
)
from attestation_operator.errors import ObjectChanged
from attestation_operator.objects import CSR, NODE, NODE_ATTESTATION, Key, Kind, Raw

AT = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)
MACHINE = "7f3ad3ac-0f0e-4c55-9d4a-3f6f0e1b2c3d"
OTHER = "11111111-2222-4333-8444-555555555555"
RESULT = "ab" * 16
EVIDENCE = b"-----BEGIN TPM ATTEST-----\nAAAA\n-----END TPM ATTEST-----\n"


def key() -> ec.EllipticCurvePrivateKey:
    """Return a new P-256 key."""
    return ec.generate_private_key(ec.SECP256R1())


KEY = key()


def subject(
    name: str = "cp-1", *, groups: Iterable[str] = ("system:nodes",), prefix: str = "system:node:"
) -> x509.Name:
    """Return the subject of a node."""
    return x509.Name(
        [
            *(x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups),
            x509.NameAttribute(NameOID.COMMON_NAME, prefix + name),
        ]
    )


def pkcs10(name: x509.Name | None = None, *, of: ec.EllipticCurvePrivateKey = KEY) -> bytes:
    """Return a PKCS#10 in PEM."""
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject() if name is None else name)
    return builder.sign(of, hashes.SHA256()).public_bytes(Encoding.PEM)


PKCS10 = pkcs10()


def raw_csr(
    request: bytes = PKCS10 + EVIDENCE,
    *,
    name: str = "node-csr-0123456789abcdef0123456789abcdef01234567",
    signer: str = NODE_CLIENT,
    conditions: Iterable[str] = (),
    certificate: str | None = None,
    uid: str = "0b54c1f0-0000-4000-8000-000000000001",
    version: str = "7",
) -> dict[str, Any]:
    """Return a CertificateSigningRequest as an API server shows it."""
    status: dict[str, Any] = {}
    if conditions:
        status["conditions"] = [{"type": each, "status": "True", "reason": "Somebody"} for each in conditions]
    if certificate is not None:
        status["certificate"] = certificate
    return {
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": {
            "name": name,
            "uid": uid,
            "resourceVersion": version,
            "creationTimestamp": "2026-11-23T11:59:58Z",
        },
        "spec": {
            "request": base64.b64encode(request).decode(),
            "signerName": signer,
            "username": "system:bootstrap:abcdef",
            "groups": ["system:bootstrappers", "system:authenticated"],
            "usages": ["digital signature", "key encipherment", "client auth"],
        },
        "status": status,
    }


def raw_node(
    name: str = "cp-1",
    *,
    labels: Mapping[str, str] | None = None,
    taints: Sequence[Raw] = (),
    unschedulable: bool = False,
    created_at: datetime = AT - timedelta(hours=1),
    version: str = "21",
) -> dict[str, Any]:
    """Return a Node as an API server shows it."""
    spec: dict[str, Any] = {}
    if taints:
        spec["taints"] = list(taints)
    if unschedulable:
        spec["unschedulable"] = True
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "uid": f"00000000-0000-4000-8000-{name.encode().hex()[:12]:0>12}",
            "resourceVersion": version,
            "creationTimestamp": created_at.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "labels": {"kubernetes.io/hostname": name, **(labels or {})},
        },
        "spec": spec,
    }


def raw_attestation(spec: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return NodeAttestation/cluster."""
    return {
        "apiVersion": "attestation.itl.io/v1alpha1",
        "kind": "NodeAttestation",
        "metadata": {"name": "cluster", "uid": "c1", "resourceVersion": "3", "generation": 2},
        "spec": dict(spec or {}),
    }


def decision(decided: str = "approve", **changes: Any) -> NodeCSRDecision:
    """Return what the service says of a request."""
    words: dict[str, dict[str, Any]] = {
        "approve": {
            "reason": "TpmAttested",
            "message": f"tier resident+quote, result {RESULT}",
            "tier": 4,
            "tier_name": "resident+quote",
            "machine_id": MACHINE,
            "node_name": "cp-1",
        },
        "deny": {"reason": "PolicyFailed", "message": f"check pcrs, result {RESULT}"},
        "not-recognised": {"reason": "EvidenceMissing", "message": f"no evidence, result {RESULT}"},
    }
    said = {"result_id": RESULT, "decision": decided, **words[decided]}
    return NodeCSRDecision.model_validate(said | changes)


def trust(machine_id: str = MACHINE, **changes: Any) -> NodeTrust:
    """Return what a machine is worth."""
    said = {
        "machine_id": machine_id,
        "hostname": "cp-1",
        "status": Status.ATTESTED,
        "trusted": True,
        "reason": "Trusted",
        "trust_expires_at": AT + timedelta(minutes=10),
        "node_certificate_at": AT - timedelta(hours=2),
    }
    return NodeTrust.model_validate(said | changes)


class CA:
    """A CA of our own, with an issuing key under it."""

    def __init__(self, at: datetime = AT) -> None:
        self.root_key, self.key = key(), key()
        self.root = _certificate("root", self.root_key, "root", self.root_key, at)
        self.issuing = _certificate("issuing", self.key, "root", self.root_key, at)

    def leaf(
        self,
        request: bytes = PKCS10,
        *,
        lifetime: timedelta = timedelta(hours=24),
        begins: timedelta = timedelta(0),
        usage: Iterable[x509.ObjectIdentifier] = (ExtendedKeyUsageOID.CLIENT_AUTH,),
        ca: bool = False,
        name: x509.Name | None = None,
        at: datetime = AT,
    ) -> x509.Certificate:
        """Return a certificate for a request."""
        read = x509.load_pem_x509_csr(request)
        return (
            x509.CertificateBuilder()
            .subject_name(read.subject if name is None else name)
            .issuer_name(self.issuing.subject)
            .public_key(read.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(at + begins)
            .not_valid_after(at + begins + lifetime)
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage(list(usage)), critical=False)
            .sign(self.key, hashes.SHA256())
        )

    def answer(self, request: bytes = PKCS10, *, at: datetime = AT) -> NodeCertificate:
        """Return what the service answers to a request to sign."""
        leaf = self.leaf(request, at=at)
        return NodeCertificate(
            result_id=RESULT,
            certificate_pem=pem(leaf, self.issuing),
            ca_pem=pem(self.root),
            serial=f"{leaf.serial_number:040x}",
            not_after=leaf.not_valid_after_utc,
        )


def pem(*certificates: x509.Certificate) -> str:
    """Return certificates in PEM."""
    return "".join(certificate.public_bytes(Encoding.PEM).decode() for certificate in certificates)


def _certificate(
    name: str, of: ec.EllipticCurvePrivateKey, issuer: str, by: ec.EllipticCurvePrivateKey, at: datetime
) -> x509.Certificate:
    def named(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    return (
        x509.CertificateBuilder()
        .subject_name(named(name))
        .issuer_name(named(issuer))
        .public_key(of.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(at - timedelta(days=30))
        .not_valid_after(at + timedelta(days=300))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(by, hashes.SHA256())
    )


@dataclass
class MemoryCluster:
    """Objects by kind and name. Applies actions as an API server would take them, or refuses as it would."""

    objects: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)
    allowed: set[tuple[str, str]] = field(default_factory=set)
    events: list[EmitEvent] = field(default_factory=list)
    applied: list[Action] = field(default_factory=list)
    version: int = 100

    def put(self, raw: dict[str, Any]) -> Key:
        """Have an object; return its name."""
        self.version += 1
        raw["metadata"]["resourceVersion"] = str(self.version)
        self.objects[raw["kind"], raw["metadata"]["name"]] = raw
        kind = {each.kind: each for each in (CSR, NODE, NODE_ATTESTATION)}.get(raw["kind"])
        return Key(
            kind=kind or Kind(group="", version="v1", kind=raw["kind"], plural=""),
            name=raw["metadata"]["name"],
        )

    async def read(self, key: Key) -> Raw | None:
        """Return an object as it is now."""
        return copy.deepcopy(self.objects.get((key.kind.kind, key.name)))

    async def list(self, kind: Kind, *, labels: Any = None, fields: Any = None) -> list[Raw]:
        """Return all objects of a kind."""
        assert labels is None
        assert fields is None
        return [copy.deepcopy(raw) for (named, _), raw in self.objects.items() if named == kind.kind]

    async def review(self, spec: Raw) -> bool:
        """Answer as `allowed` says: pairs of a user or group, and a subresource."""
        who = {spec.get("user", ""), *spec["groups"]}
        return any((each, spec["resourceAttributes"]["subresource"]) in self.allowed for each in who)

    async def apply(self, actions: Iterable[Action]) -> None:
        """Apply actions in order."""
        for action in actions:
            if isinstance(action, EmitEvent):
                self.events.append(action)
            else:
                self._change(action)

    def _change(self, action: Any) -> None:
        raw = self.objects.get((action.target.kind.kind, action.target.name))
        if raw is None or raw["metadata"]["uid"] != action.target.uid:
            return
        if (
            not isinstance(action, SetStatus)
            and raw["metadata"]["resourceVersion"] != action.target.resource_version
        ):
            raise ObjectChanged("409")
        self.applied.append(action)
        status = raw.setdefault("status", {})
        match action:
            case Approve() | Deny() | Fail():
                had = {each["type"] for each in status.get("conditions", ())}
                assert had == {each["type"] for each in action.conditions}
                word = {Approve: "Approved", Deny: "Denied", Fail: "Failed"}[type(action)]
                assert not had & {"Approved", "Denied"} or word == "Failed"
                assert 1 <= len(action.message.encode()) <= 1024
                said = {"type": word, "status": "True", "reason": action.reason, "message": action.message}
                status["conditions"] = [*status.get("conditions", ()), said]
            case PutCertificate():
                assert "certificate" not in status
                status["certificate"] = base64.b64encode(action.certificate_pem.encode()).decode()
            case PatchNode():
                labels = raw["metadata"]["labels"]
                for name, value in action.labels.items():
                    if value is None:
                        labels.pop(name, None)
                    else:
                        labels[name] = value
                if action.taints is not None:
                    raw["spec"]["taints"] = list(action.taints)
                if action.unschedulable is not None:
                    raw["spec"]["unschedulable"] = action.unschedulable
            case Delete():
                del self.objects["Node", action.target.name]
                return
            case SetStatus():
                status.update(action.status)
        self.version += 1
        raw["metadata"]["resourceVersion"] = str(self.version)


@dataclass
class MemoryService:
    """The service: one answer for each UID, written down once."""

    answer: NodeCSRDecision | AttestationError = field(default_factory=decision)
    signature: NodeCertificate | AttestationError | None = None
    machines: tuple[NodeTrust, ...] | AttestationError = ()
    audit: dict[str, NodeCSRRequest] = field(default_factory=dict)
    asked: list[NodeCSRRequest] = field(default_factory=list)

    async def appraise(self, request: NodeCSRRequest) -> NodeCSRDecision:
        """Return the answer."""
        self.asked.append(request)
        if isinstance(self.answer, AttestationError):
            raise self.answer
        self.audit.setdefault(request.csr.uid, request)
        return self.answer

    async def sign(self, request: NodeCSRRequest) -> NodeCertificate:
        """Return the certificate."""
        self.asked.append(request)
        if isinstance(self.signature, AttestationError):
            raise self.signature
        assert self.signature is not None
        self.audit.setdefault(request.csr.uid, request)
        return self.signature

    async def trust(self) -> tuple[NodeTrust, ...]:
        """Return the machines."""
        if isinstance(self.machines, AttestationError):
            raise self.machines
        return self.machines

    async def open_run(self, uid: str, request: RunOpen) -> RunOpened:
        """Controllers of nodes open no run."""
        raise AssertionError(uid)

    async def run(self, uid: str) -> RunDetail:
        """Nor do they look at one."""
        raise AssertionError(uid)

    async def seal_run(self, uid: str, request: RunSeal) -> RunBundle:
        """Nor have one sealed."""
        raise AssertionError(uid)

    async def ask(self, operation: str, ask: Any) -> Any:
        """Nor ask anything else."""
        raise AssertionError(operation)
