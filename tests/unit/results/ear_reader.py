"""A second reader of EARs, written from the draft and from nothing of ours: a JSON Schema and one rule beside it.

draft-ietf-rats-ear-04 §3 with RFC 9711 §4.1 (nonce), AR4SI §2.3.2 (ranges of tiers), §2.3.4 (names of claims).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jsonschema_rs

CLAIMS = [
    "instance-identity",
    "configuration",
    "executables",
    "file-system",
    "hardware",
    "runtime-opaque",
    "storage-opaque",
    "sourced-data",
]
TEXT = {"type": "string", "minLength": 1}
CLAIM = {"type": "integer", "minimum": -128, "maximum": 127, "not": {"const": 0}}
APPRAISAL = {
    "type": "object",
    "required": ["ear_status"],
    "properties": {
        "ear_status": {"enum": ["none", "affirming", "warning", "contraindicated"]},
        "ear_trustworthiness_vector": {
            "type": "object",
            "minProperties": 1,
            "properties": dict.fromkeys(CLAIMS, CLAIM),
            "additionalProperties": False,
        },
        "ear_appraisal_policy_ids": {"type": "array", "minItems": 1, "items": TEXT},
        "ear_attester_claims": {"type": "object"},
        "ear_verifier_claims": {"type": "object"},
    },
}
SCHEMA = jsonschema_rs.Draft202012Validator(
    {
        "type": "object",
        "required": ["eat_profile", "iat", "ear_verifier_id", "submods", "eat_nonce"],
        "properties": {
            "eat_profile": {"const": "tag:ietf.org,2026:rats/ear#04"},
            "iat": {"type": "integer"},
            "exp": {"type": "integer"},
            "eat_nonce": {"type": "string", "minLength": 8, "maxLength": 88},
            "ear_verifier_id": {
                "type": "object",
                "required": ["developer", "build"],
                "properties": {"developer": TEXT, "build": TEXT},
            },
            "submods": {"type": "object", "minProperties": 1, "additionalProperties": APPRAISAL},
        },
    }
)
WORSE = ["affirming", "none", "warning", "contraindicated"]
"""Best first. The draft orders none before affirming; that a claim without meaning is no good news is AR4SI's."""


def tier(value: int) -> str:
    """Return the tier of a claim's value (AR4SI §2.3.2)."""
    if -1 <= value <= 1:
        return "none"
    if 2 <= value <= 31 or -32 <= value <= -2:
        return "affirming"
    return "warning" if 32 <= value <= 95 or -96 <= value <= -33 else "contraindicated"


def read(claims: Mapping[str, Any]) -> dict[str, tuple[str, dict[str, int]]] | None:
    """Return each submodule -> its status and its vector; None where the draft's rules are broken."""
    if not SCHEMA.is_valid(claims):
        return None
    found = {
        label: (each["ear_status"], dict(each.get("ear_trustworthiness_vector", {})))
        for label, each in claims["submods"].items()
    }
    for status, vector in found.values():
        if any(WORSE.index(status) < WORSE.index(tier(value)) for value in vector.values()):
            return None
    return found
