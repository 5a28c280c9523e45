"""CertificateRequest of cert-manager.io/v1, as issuers meet it (HSM-AND-KUBERNETES §16; cert-manager v1.21).

Written from the contract: cert-manager's own definition is in no package. What is not ours to know of is left out; a
spec that cannot be changed is the work of cert-manager's webhook, and said here by a rule in CEL.
"""

from __future__ import annotations

from typing import Any, Final

from attestation.pki.usages import USAGES

_TEXT: Final[dict[str, Any]] = {"type": "string"}
_BYTES: Final = {"type": "string", "format": "byte"}
_TEXTS: Final[dict[str, Any]] = {"type": "array", "items": _TEXT, "x-kubernetes-list-type": "atomic"}
_SPEC: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["issuerRef", "request"],
    "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "spec cannot be changed"}],
    "properties": {
        "duration": _TEXT,
        "issuerRef": {
            "type": "object",
            "required": ["name"],
            "properties": {"name": _TEXT, "kind": _TEXT, "group": _TEXT | {"default": "cert-manager.io"}},
        },
        "request": _BYTES,
        "isCA": {"type": "boolean"},
        "usages": _TEXTS | {"items": _TEXT | {"enum": sorted(USAGES)}},
        "username": _TEXT,
        "uid": _TEXT,
        "groups": _TEXTS,
        "extra": {"type": "object", "additionalProperties": {"type": "array", "items": _TEXT}},
    },
}
_CONDITION: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["status", "type"],
    "properties": {
        "type": _TEXT,
        "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
        "reason": _TEXT,
        "message": _TEXT,
        "lastTransitionTime": {"type": "string", "format": "date-time"},
    },
}
_STATUS: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "conditions": {
            "type": "array",
            "items": _CONDITION,
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["type"],
        },
        "certificate": _BYTES,
        "ca": _BYTES,
        "failureTime": {"type": "string", "format": "date-time"},
    },
}
CERTIFICATE_REQUESTS: Final[dict[str, Any]] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "certificaterequests.cert-manager.io"},
    "spec": {
        "group": "cert-manager.io",
        "scope": "Namespaced",
        "names": {
            "kind": "CertificateRequest",
            "listKind": "CertificateRequestList",
            "plural": "certificaterequests",
            "singular": "certificaterequest",
            "shortNames": ["cr", "crs"],
            "categories": ["cert-manager"],
        },
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "apiVersion": _TEXT,
                            "kind": _TEXT,
                            "metadata": {"type": "object"},
                            "spec": _SPEC,
                            "status": _STATUS,
                        },
                    }
                },
            }
        ],
    },
}
"""The definition."""
