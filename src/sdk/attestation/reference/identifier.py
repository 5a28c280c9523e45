"""The identifier of what a policy asks: equal exactly when the same was asked (CONFIDENTIAL.md §12.3).

It leaves out what asks nothing: names, versions, descriptions, and the order in which things were written. Defaults
are written out, so that one who states a default asks the same as one who leaves it.
"""

# Algorithms for: digest
from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime
from enum import Enum
from functools import lru_cache
from typing import Any, Final

from attestation.reference.blocks import BLOCKS, COMMON_BLOCKS
from attestation.reference.confidential import CelRule, Masked
from attestation.reference.patterns import CommandPattern, Glob
from attestation.reference.policy import Policy
from attestation.reference.rules import PCRRule

_TPM: Final = (
    "rules",
    "clock_safe_required",
    "clock_safe_reported",
    "event_log",
    "log_pcrs",
    "log_padding_accepted",
    "secure_boot",
    "boot",
    "ima",
    "firmware",
    "ek_key_attestation",
)
"""Of `TPMRules`, what is not derived from the others."""


@lru_cache(maxsize=1024)
def identifier(policy: Policy) -> str:
    """Return `ni:///sha-384;<base64url>` (RFC 6920) over the canonical JSON (RFC 8785) of `asked`."""
    return named(canonical(policy))


def canonical(policy: Policy) -> bytes:
    """Return the canonical JSON (RFC 8785) of `asked`: whoever has it can compute `identifier` again."""
    # Keys are ASCII and numbers whole, so that this is the canonical form.
    return json.dumps(asked(policy), sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def named(data: bytes) -> str:
    """Return the identifier of the policy whose `canonical` is *data*."""
    digest = base64.urlsafe_b64encode(hashlib.sha384(data).digest())
    return f"ni:///sha-384;{digest.rstrip(b'=').decode('ascii')}"


def asked(policy: Policy) -> dict[str, object]:
    """Return all that *policy* asks, as JSON has it, defaults written out; lists that mean sets are sorted."""
    blocks = {
        # Defaults of blocks hold also where no policy has them.
        name: policy.blocks.get(name, block.build({}, report=False))
        for name, block in (BLOCKS | COMMON_BLOCKS).items()
    }
    return {
        "format": "itl-policy-asked/1",
        "tpm": {
            "selection": policy.tpm.selection.to_names(),
            **{name: _plain(getattr(policy.tpm, name)) for name in _TPM},
        },
        "assurance": _plain(policy.assurance),
        "max_age_seconds": policy.max_age_seconds,
        "reattest_seconds": policy.reattest_seconds,
        "kinds": dict(policy.kinds),
        **{name: _plain(rules) for name, rules in blocks.items()},
    }


def _plain(value: Any) -> Any:
    """Return a rule as JSON has it; what has no order is sorted."""
    match value:
        case Enum():
            return value.value
        case None | int() | str():
            return value
        case bytes():
            return value.hex()
        case datetime():
            return value.strftime("%Y-%m-%dT%H:%M:%SZ")
        case Masked():
            # 64 bits do not fit into a number of JSON; bits that are not compared ask nothing.
            return {"value": f"{value.value:016x}", "mask": f"{value.mask:016x}"}
        case CommandPattern() | Glob():
            return value.text
        case PCRRule():
            # What else it has is derived, or for people.
            return {
                "index": value.index,
                "any_of": _plain(value.any_of),
                "approved": _plain(value.approved),
                "report": value.report,
            }
        case CelRule():
            return {"expression": value.expression, "report": value.report}
        case Mapping():
            return {str(key): _plain(each) for key, each in value.items()}
        case frozenset():
            return sorted(_plain(each) for each in value)
        case tuple():
            listed = [_plain(each) for each in value]
            # Expressions and patterns are sets; RTMRs, versions and PCRs stand in their places.
            if any(isinstance(each, (CelRule, CommandPattern, Glob)) for each in value):
                listed = [each for i, each in enumerate(listed) if each not in listed[:i]]
                return sorted(listed, key=str)
            return listed
    assert is_dataclass(value)
    return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
