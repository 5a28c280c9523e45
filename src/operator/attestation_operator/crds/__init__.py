"""Our kinds as CustomResourceDefinitions (apiextensions.k8s.io/v1), made of models: `attestation-operator crds`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from pydantic import BaseModel

from attestation_operator.crds.bundles import Bundle
from attestation_operator.crds.hsm import HardwareSecurityModule, HsmClusterIssuer, HsmIssuer
from attestation_operator.crds.leaves import HsmCertificate
from attestation_operator.crds.policies import Policy
from attestation_operator.crds.quotes import QuoteAttestation
from attestation_operator.crds.runs import Result, Run
from attestation_operator.crds.schedules import Schedule
from attestation_operator.crds.security_events import SecurityEvent
from attestation_operator.crds.structural import structural
from attestation_operator.crds.v1alpha1 import NodeAttestation
from attestation_operator.crds.yaml import document
from attestation_operator.objects import (
    BUNDLE,
    HSM,
    HSM_CERTIFICATE,
    HSM_CLUSTER_ISSUER,
    HSM_ISSUER,
    NODE_ATTESTATION,
    POLICY,
    QUOTE_ATTESTATION,
    RESULT,
    RUN,
    SCHEDULE,
    SECURITY_EVENT,
    Kind,
)

HEADER: Final = "# Written by `attestation-operator crds`; a test compares.\n"


@dataclass(frozen=True, slots=True)
class Column:
    """A column of `kubectl get`.

    Args:
        name: Its heading.
        path: What stands in it.
        words: What it means.
        type: How it is printed.
    """

    name: str
    path: str
    words: str
    type: str = "string"


def _condition(type_: str) -> str:
    return f'.status.conditions[?(@.type=="{type_}")].status'


_AGE: Final = Column("Age", ".metadata.creationTimestamp", "How old it is", "date")


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """What makes a kind, beside its schema.

    Args:
        kind: Which one.
        model: Its members beside metadata.
        columns: Of `kubectl get`, beside name and age.
        short_names: What people may type in its place.
        selectable: Fields by which lists and watches can be narrowed, from Kubernetes 1.32 on.
    """

    kind: Kind
    model: type[BaseModel]
    columns: tuple[Column, ...]
    short_names: tuple[str, ...] = ()
    selectable: tuple[str, ...] = ()


_OF_ISSUERS: Final = (
    Column("Mode", ".spec.mode", "How the key comes to the token"),
    Column("HSM", ".spec.hsmRef.name", "The token"),
    Column("Ready", _condition("Ready"), "Whether it signs"),
    Column("Reason", '.status.conditions[?(@.type=="Ready")].reason', "Why"),
)

DEFINITIONS: Final = (
    Definition(
        kind=NODE_ATTESTATION,
        model=NodeAttestation,
        columns=(
            Column("Ready", _condition("Ready"), "Whether nothing approves without evidence"),
            Column("In-Tree", _condition("InTreeApproverActive"), "Whether something does"),
        ),
    ),
    Definition(
        kind=HSM,
        model=HardwareSecurityModule,
        short_names=("hsm",),
        columns=(
            Column("Module", ".spec.module", "A name of the controller's lists"),
            Column("Token", ".spec.tokenLabel", "Its label"),
            Column("State", _condition("Ready"), "Whether it is there and signs"),
        ),
    ),
    Definition(
        kind=HSM_ISSUER,
        model=HsmIssuer,
        short_names=("hsmiss",),
        selectable=(".spec.hsmRef.name",),
        columns=_OF_ISSUERS,
    ),
    Definition(
        kind=HSM_CLUSTER_ISSUER,
        model=HsmClusterIssuer,
        short_names=("hsmciss",),
        selectable=(".spec.hsmRef.name",),
        columns=_OF_ISSUERS,
    ),
    Definition(
        kind=QUOTE_ATTESTATION,
        model=QuoteAttestation,
        short_names=("qa",),
        selectable=(".spec.signerRef.uid",),
        columns=(
            Column("Purpose", ".spec.purpose", "What is asked for"),
            Column("Type", ".spec.evidence.type", "Kind of evidence"),
            Column("Signer", ".spec.signerRef.name", "The issuer that asks"),
            Column("Verdict", ".status.verdict", "As the service judged"),
            Column("Ready", _condition("Ready"), "Whether it has ended well"),
        ),
    ),
    Definition(
        kind=HSM_CERTIFICATE,
        model=HsmCertificate,
        short_names=("hsmcert",),
        columns=(
            Column("Ready", _condition("Ready"), "Whether the Secret holds a valid certificate"),
            Column("Secret", ".spec.secretName", "Where it is"),
            Column("Issuer", ".spec.issuerRef.name", "Who certifies"),
            Column("Expires", ".status.notAfter", "When it ends", "date"),
        ),
    ),
    Definition(
        kind=RUN,
        model=Run,
        short_names=("conar",),
        selectable=(".spec.targetNodeName",),
        columns=(
            Column("Backend", ".spec.backend", "Which hardware is asked"),
            Column("Node", ".spec.targetNodeName", "Which Node is to prove itself"),
            Column("Phase", ".status.phase", "How far it is"),
            Column("Verdict", ".status.verdict", "As the service judged"),
        ),
    ),
    Definition(
        kind=RESULT,
        model=Result,
        short_names=("conares",),
        columns=(
            Column("Backend", ".spec.backend", "Which hardware was asked"),
            Column("Node", ".spec.nodeName", "The Node"),
            Column("Verdict", ".spec.verdict", "As the service judged"),
            Column("Trusted", ".status.trusted", "Whether it gives standing now", "boolean"),
        ),
    ),
    Definition(
        kind=POLICY,
        model=Policy,
        short_names=("atpol",),
        columns=(
            Column("Mode", ".spec.mode", "Whether it decides"),
            Column("Ready", _condition("Ready"), "Whether runs can ask it"),
        ),
    ),
    Definition(
        kind=SECURITY_EVENT,
        model=SecurityEvent,
        short_names=("se",),
        columns=(
            Column("Type", ".spec.type", "What happened"),
            Column("Severity", ".spec.severity", "How grave it is"),
            Column("Class", ".spec.class", "Of what nature it is"),
            Column("Subject", ".spec.subject.name", "What it is about"),
            Column("Phase", ".status.phase", "Whether it is sealed"),
        ),
    ),
    Definition(
        kind=BUNDLE,
        model=Bundle,
        short_names=("ab",),
        columns=(
            Column("For", ".spec.attestedFor.name", "What is sealed"),
            Column("Phase", ".status.phase", "How far the seal is"),
            Column("Sealed", ".status.sealedAt", "When it was sealed", "date"),
        ),
    ),
    Definition(
        kind=SCHEDULE,
        model=Schedule,
        short_names=("atsched",),
        columns=(
            Column("Schedule", ".spec.schedule", "When, as cron has it"),
            Column("Every", ".spec.every", "How often"),
            Column("Backend", ".spec.backend", "Which hardware is asked"),
            Column("Suspend", ".spec.suspend", "Whether it makes no runs", "boolean"),
            Column("Active", ".status.active", "Runs that have not finished", "integer"),
            Column("Last Schedule", ".status.lastScheduleTime", "When runs were last due", "date"),
        ),
    ),
)
"""Every kind of ours."""


def definition(kind: Kind) -> dict[str, Any]:
    """Return the CustomResourceDefinition of *kind*."""
    return _made(next(each for each in DEFINITIONS if each.kind == kind))


def definitions() -> list[dict[str, Any]]:
    """Return all of them."""
    return [_made(each) for each in DEFINITIONS]


def groups() -> tuple[str, ...]:
    """Return the groups of our kinds."""
    return tuple(dict.fromkeys(each.kind.group for each in DEFINITIONS))


def manifest(*only: str) -> str:
    """Return those of the groups *only*, or of all, as YAML, one document for each."""
    made = (_made(each) for each in DEFINITIONS if not only or each.kind.group in only)
    return HEADER + "".join(f"---\n{document(each)}" for each in made)


def _made(said: Definition) -> dict[str, Any]:
    kind = said.kind
    version: dict[str, Any] = {
        "name": kind.version,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": structural(said.model)},
        "subresources": {"status": {}},
        "additionalPrinterColumns": [
            {"name": each.name, "type": each.type, "jsonPath": each.path, "description": each.words}
            for each in (*said.columns, _AGE)
        ],
    }
    if said.selectable:
        version["selectableFields"] = [{"jsonPath": path} for path in said.selectable]
    short = {"shortNames": list(said.short_names)} if said.short_names else {}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{kind.group}"},
        "spec": {
            "group": kind.group,
            "names": {
                "kind": kind.kind,
                "listKind": f"{kind.kind}List",
                "plural": kind.plural,
                "singular": kind.kind.lower(),
                **short,
                "categories": ["attestation"],
            },
            "scope": "Namespaced" if kind.namespaced else "Cluster",
            "versions": [version],
        },
    }
