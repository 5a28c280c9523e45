"""JSON Schemas (draft 2020-12) of a policy document, made from the constants of its reader.

Whatever `parse_policy` accepts, the schema accepts. What only the reader can see stands in `$comment`: that a
member demands something, the name of the shipped policy, text that is printable, the length of the whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from attestation.reference.document import (
    BANKS,
    FORMAT,
    FORMAT_2,
    MAX_AGE,
    MAX_DESCRIPTION,
    MAX_DIGESTS,
    MAX_TEXT,
    MAX_VALUES,
    MAX_VERSION,
    REATTEST,
    TPM,
    VENDORS,
    all_blocks,
)
from attestation.reference.patterns import MAX_PATTERN
from attestation.results import Assurance
from attestation.tpm import bank_alg, digest_size

SCHEMA_ID: Final = "https://itl.example/schemas/itl-tpm-policy-1.json"
EITHER_ID: Final = "https://itl.example/schemas/policy.json"
DRAFT: Final = "https://json-schema.org/draft/2020-12/schema"
SCHEMA_2_ID: Final = "https://itl.example/schemas/itl-policy-2.json"
NAME_PATTERN: Final = "^[a-z0-9][a-z0-9-]{0,62}$"

_Schema = dict[str, object]


def schema() -> _Schema:
    """Return the schema of `itl-tpm-policy/1` as JSON: objects, lists, text, numbers; a new one at each call."""
    common = _common(FORMAT)
    tail = {name: common.pop(name) for name in ("assurance", "max_age_seconds", "reattest_seconds")}
    return {
        **_head(SCHEMA_ID, "Appraisal policy of TPM evidence"),
        **_object(common | _tpm() | tail, "format", "name", "version", "bank", "pcrs"),
        **_banks(),
    }


def schema_2() -> _Schema:
    """Return the schema of `itl-policy/2`, likewise: common members and blocks, and one block per kind."""
    blocks = {name: block.schema() for name, block in all_blocks().items()}
    tpm = _object(_tpm(), "bank", "pcrs") | _banks()
    return {
        **_head(SCHEMA_2_ID, "Appraisal policy"),
        **_object(_common(FORMAT_2) | {TPM: tpm} | blocks, "format", "name", "version"),
    }


def either() -> _Schema:
    """Return the schema of a document of whichever format, likewise."""
    head = {"$schema": DRAFT, "$id": EITHER_ID, "title": "Appraisal policy of either format"}
    return head | {"oneOf": [schema_2(), schema()]}


def _head(schema_id: str, title: str) -> _Schema:
    return {
        "$schema": DRAFT,
        "$id": schema_id,
        "title": title,
        "$comment": "The service also refuses: a policy that demands nothing, the name identity-only, text that "
        "is not printable, event_log accepted beside rules that read it, reattest_seconds above "
        "max_age_seconds, more than 64 KiB.",
    }


def _common(written: str) -> _Schema:
    """Return the members that a policy has whatever the kind of evidence."""
    return {
        "format": {"const": written},
        "name": {"type": "string", "pattern": NAME_PATTERN},
        "version": {"type": "integer", "minimum": 1, "maximum": MAX_VERSION},
        "description": _text(MAX_DESCRIPTION),
        "mode": {"enum": ["enforce", "report"], "default": "enforce"},
        "assurance": _object({"minimum": {"enum": [level.value for level in Assurance]}}, "minimum"),
        "max_age_seconds": {"type": "integer", "minimum": MAX_AGE[0], "maximum": MAX_AGE[1]},
        "reattest_seconds": {"type": "integer", "minimum": REATTEST[0], "maximum": REATTEST[1]},
    }


def _tpm() -> _Schema:
    """Return the members that are about TPM evidence."""
    return {
        "bank": {"enum": list(BANKS)},
        "pcrs": {
            "type": "object",
            "propertyNames": {"enum": [str(i) for i in range(16)]},
            "additionalProperties": {
                "oneOf": [
                    _object({"any_of": _digests(32, 48, 64, most=MAX_VALUES)}, "any_of"),
                    _object(
                        {"events": {"const": "approved-digests"}, "digests": _digests(32, 48, 64)},
                        "events",
                        "digests",
                    ),
                    _object({"empty": {"const": True}}, "empty"),
                    _object({"ignore": _text(MAX_TEXT)}, "ignore"),
                ]
            },
        },
        "secure_boot": _stating(
            {
                "required": {"type": "boolean"},
                "db_sha256": _digests(32),
                "dbx_min": _digests(32),
                "authorities": _digests(32),
                "debug": {"enum": ["forbid", "flag"], "default": "forbid"},
                "empty_variable": {"enum": ["refuse", "off"], "default": "refuse"},
            }
        ),
        "boot": _stating(
            {
                "loaders": _digests(32, 48, 64),
                "kernels": _digests(32, 48, 64),
                "initrds": _digests(32, 48, 64),
                "command_lines": _patterns("^[^ ]+( [^ ]+)*$"),
            }
        ),
        "ima": _object(
            {
                "allow": _digests(32, 48, 64),
                "exclude": _patterns("^/"),
                "violations": {"enum": ["fail", "flag"], "default": "fail"},
            },
            "allow",
        ),
        "event_log": {"enum": ["required", "accepted"]},
        "log_padding": {"enum": ["accepted", "refused"], "default": "refused"},
        "clock": _object({"safe": {"enum": ["required", "flag"], "default": "flag"}}),
        "firmware": _stating(
            {
                "on_blocklist": {"enum": ["fail", "warn"]},
                "min": {
                    "type": "object",
                    "minProperties": 1,
                    "propertyNames": {"enum": sorted(VENDORS)},
                    "additionalProperties": {
                        "type": "string",
                        "pattern": r"^(0|[1-9][0-9]{0,4})(\.(0|[1-9][0-9]{0,4})){0,3}$",
                    },
                },
            }
        ),
        "ek_key_attestation": {"enum": ["required", "accepted"], "default": "accepted"},
    }


def _banks() -> _Schema:
    # Values of PCRs and digests of events are as long as those of the bank.
    return {"allOf": [_of_bank(bank) for bank in BANKS]}


def _of_bank(bank: str) -> _Schema:
    size = digest_size(bank_alg(bank))
    digests = {"items": _hex(size)}
    return {
        "if": {"properties": {"bank": {"const": bank}}},
        "then": {
            "properties": {
                "pcrs": {"additionalProperties": {"properties": {"any_of": digests, "digests": digests}}},
                "boot": {"properties": {"loaders": digests, "kernels": digests, "initrds": digests}},
            }
        },
    }


def _object(members: Mapping[str, object], *required: str) -> _Schema:
    found: _Schema = {"type": "object", "properties": dict(members), "additionalProperties": False}
    return found | ({"required": list(required)} if required else {})


def _stating(members: Mapping[str, object]) -> _Schema:
    return _object(members) | {"minProperties": 1}


def _text(longest: int) -> _Schema:
    return {"type": "string", "minLength": 1, "maxLength": longest}


def _hex(*sizes: int) -> _Schema:
    return {"type": "string", "pattern": "^(" + "|".join(f"[0-9a-f]{{{2 * size}}}" for size in sizes) + ")$"}


def _digests(*sizes: int, most: int = MAX_DIGESTS) -> _Schema:
    return {"type": "array", "minItems": 1, "maxItems": most, "items": _hex(*sizes)}


def _patterns(pattern: str) -> _Schema:
    return {
        "type": "array",
        "minItems": 1,
        "maxItems": MAX_DIGESTS,
        "items": {"type": "string", "maxLength": MAX_PATTERN, "pattern": pattern},
    }
