"""Our kinds as CustomResourceDefinitions (apiextensions.k8s.io/v1), made of models: `attestation-operator crds`."""

from __future__ import annotations

from typing import Any, Final

from attestation_operator.crds.structural import structural
from attestation_operator.crds.v1alpha1 import NodeAttestation
from attestation_operator.crds.yaml import document
from attestation_operator.objects import GROUP, NODE_ATTESTATION, Kind

HEADER: Final = "# Written by `attestation-operator crds`; a test compares.\n"


def _condition(type_: str) -> str:
    return f'.status.conditions[?(@.type=="{type_}")].status'


def node_attestation() -> dict[str, Any]:
    """Return the CustomResourceDefinition of NodeAttestation."""
    return _definition(
        NODE_ATTESTATION,
        NodeAttestation,
        singular="nodeattestation",
        columns=[
            ("Ready", "string", _condition("Ready"), "Whether nothing approves without evidence"),
            ("In-Tree", "string", _condition("InTreeApproverActive"), "Whether something does"),
            ("Age", "date", ".metadata.creationTimestamp", "How old it is"),
        ],
    )


def definitions() -> list[dict[str, Any]]:
    """Return all of them."""
    return [node_attestation()]


def manifest() -> str:
    """Return all of them as YAML, one document for each."""
    return HEADER + "".join(f"---\n{document(each)}" for each in definitions())


def _definition(
    kind: Kind, model: type, *, singular: str, columns: list[tuple[str, str, str, str]]
) -> dict[str, Any]:
    version = {
        "name": kind.version,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": structural(model)},
        "subresources": {"status": {}},
        "additionalPrinterColumns": [
            {"name": name, "type": type_, "jsonPath": path, "description": words}
            for name, type_, path, words in columns
        ],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "names": {
                "kind": kind.kind,
                "listKind": f"{kind.kind}List",
                "plural": kind.plural,
                "singular": singular,
                "categories": ["attestation"],
            },
            "scope": "Cluster",
            "versions": [version],
        },
    }
