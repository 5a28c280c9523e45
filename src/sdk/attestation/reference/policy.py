"""Appraisal policies of the format `itl-tpm-policy/1` (TPM.md §4.6).

A policy is judged when it is written, not when it is used: what this version cannot evaluate is refused by
name, so no rule is ever skipped silently. Event-log rules (`events`, `secure_boot`, `event_log: required`),
firmware rules and EK-based key attestation are refused until they are built.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NoReturn

from attestation.errors import MalformedEvidence, PolicyInvalid
from attestation.results import Failed, Flagged, Outcome, Passed
from attestation.tpm import PCRSelection, bank_alg, digest_size
from attestation.wire import canonical_json, hexdecode

FORMAT: Final = "itl-tpm-policy/1"
MAX_POLICY_BYTES: Final = 65_536

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,62}\Z")
_REQUIRED: Final = frozenset({"format", "name", "version", "bank", "pcrs"})
_OPTIONAL: Final = frozenset({"clock", "event_log", "max_age_seconds"})
_NOT_BUILT: Final = frozenset({"secure_boot", "firmware", "ek_key_attestation"})
_RESETTABLE: Final = frozenset({16, 23})
_BOOT: Final = frozenset(range(16))
_MAX_VALUES: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class PCRRule:
    """What is expected of one PCR: one of several values, or nothing, for a stated reason.

    Args:
        index: 0-15.
        any_of: Accepted digests; None where the PCR is ignored.
        ignore: Why it is ignored; None where it is compared.
        expected: `any_of` in words, for results.
        held: The outcome where it holds, or is ignored; made once.
    """

    index: int
    any_of: frozenset[bytes] | None
    ignore: str | None
    expected: str
    held: Passed | Flagged

    def judge(self, value: bytes | None) -> Outcome:
        """Return the outcome for the quoted *value*; an absent one fails."""
        if self.any_of is None or value in self.any_of:
            return self.held
        return Failed(self.held.check, self.expected, value.hex() if value is not None else "absent")


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """A policy that has been judged fit for use.

    Args:
        name: Its name.
        version: Its version, from 1.
        ref: `name@version`.
        bank: TPM_ALG_ID of the PCR bank.
        selection: The PCRs to request.
        rules: One per PCR, ascending; empty only for `identity-only`.
        clock_safe_required: An unsafe clock fails instead of being flagged.
        max_age_seconds: How long a Verified result may be relied on.
        document: The policy as written, canonical JSON.
        sha256: SHA-256 of `document`, hex.
        compared: Index and accepted digests of the PCRs that are compared; empty only for `identity-only`.
        all_held: The outcomes where every rule holds, made once.
    """

    name: str
    version: int
    ref: str
    bank: int
    selection: PCRSelection
    rules: tuple[PCRRule, ...]
    clock_safe_required: bool
    max_age_seconds: int
    document: bytes
    sha256: str
    compared: tuple[tuple[int, frozenset[bytes]], ...]
    all_held: tuple[Outcome, ...]

    def judge(self, values: Mapping[int, bytes]) -> Sequence[Outcome]:
        """Return the outcome of every rule for the quoted *values*, index -> digest; an absent value fails."""
        for index, any_of in self.compared:
            if values.get(index) not in any_of:
                return [rule.judge(values.get(rule.index)) for rule in self.rules]
        return self.all_held


def parse_policy(data: bytes | Mapping[str, object]) -> Policy:
    """Parse and judge a policy document, JSON of at most 64 KiB.

    Raises:
        PolicyInvalid: With the member and the rule of the format that it breaks.
    """
    document = _load(data) if isinstance(data, bytes) else data
    if document.get("name") == "identity-only":
        _refuse("name identity-only is the shipped policy's")
    return _parse(document, max_age_default=300)


def _parse(document: Mapping[str, object], *, max_age_default: int) -> Policy:
    members = frozenset(document)
    not_built = members & _NOT_BUILT
    if not_built:
        _refuse(f"{min(not_built)} is not supported by this version")
    if members - _REQUIRED - _OPTIONAL:
        _refuse(f"unknown member {min(members - _REQUIRED - _OPTIONAL)[:40]!r}")
    if _REQUIRED - members:
        _refuse(f"member {min(_REQUIRED - members)} is missing")
    if document["format"] != FORMAT:
        _refuse(f"format is not {FORMAT}")
    name, version, pcrs = document["name"], document["version"], document["pcrs"]
    if not isinstance(name, str) or not _NAME.match(name):
        _refuse("name is not 1 to 63 lower-case letters, digits and hyphens")
    version = _integer(version, "version", 1, 999_999_999)
    bank_text = document["bank"]
    if bank_text not in ("sha256", "sha384", "sha512"):
        _refuse("bank is not sha256, sha384 or sha512")
    assert isinstance(bank_text, str)
    bank = bank_alg(bank_text)
    if not isinstance(pcrs, Mapping):
        _refuse("pcrs is not an object")
    rules = tuple(sorted((_rule(i, r, digest_size(bank)) for i, r in pcrs.items()), key=lambda r: r.index))
    compared = tuple((rule.index, rule.any_of) for rule in rules if rule.any_of is not None)
    if name != "identity-only" and not compared:
        _refuse("no PCR is compared; only identity-only may do without")
    if document.get("event_log", "accepted") != "accepted":
        _refuse("event_log other than accepted is not supported by this version")
    clock_safe_required = _clock_safe_required(document.get("clock", {}))
    max_age = _integer(document.get("max_age_seconds", max_age_default), "max_age_seconds", 30, 604_800)
    # Every member was judged by now: what is written holds no number that JSON could not carry.
    written = canonical_json(document)
    if len(written) > MAX_POLICY_BYTES:
        _refuse(f"longer than {MAX_POLICY_BYTES} bytes")
    selection = PCRSelection.from_names({bank_text: [r.index for r in rules]}) if rules else DEFAULT_SELECTION
    return Policy(
        name=name,
        version=version,
        ref=f"{name}@{version}",
        bank=bank,
        selection=selection,
        rules=rules,
        clock_safe_required=clock_safe_required,
        max_age_seconds=max_age,
        document=written,
        sha256=hashlib.sha256(written).hexdigest(),
        compared=compared,
        all_held=tuple(rule.held for rule in rules),
    )


def _load(data: bytes) -> Mapping[str, object]:
    if len(data) > MAX_POLICY_BYTES:
        _refuse(f"longer than {MAX_POLICY_BYTES} bytes")
    try:
        document = json.loads(data, object_pairs_hook=_no_duplicates)
    except (ValueError, RecursionError) as e:
        raise PolicyInvalid("policy is not JSON, or names a member twice") from e
    if not isinstance(document, dict):
        _refuse("policy is not a JSON object")
    return document


def _no_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a member is named twice")
    return members


def _rule(index_text: object, rule: object, size: int) -> PCRRule:
    if index_text not in _INDEX_TEXTS:
        _refuse(f"PCR {str(index_text)[:8]!r} is not a decimal number from 0 to 23")
    index = int(str(index_text))
    if index in _RESETTABLE:
        _refuse(f"PCR {index} can be reset by software and satisfies no rule")
    if index not in _BOOT:
        _refuse(f"PCR {index} belongs to a dynamic root of trust, which this version does not appraise")
    if not isinstance(rule, Mapping) or len(rule) != 1:
        _refuse(f"PCR {index} must have exactly one rule")
    check = f"pcr{index}"
    if "ignore" in rule:
        reason = rule["ignore"]
        if not isinstance(reason, str) or not 0 < len(reason) <= 256 or not reason.isprintable():
            _refuse(f"PCR {index}: ignore must give a reason of 1 to 256 printable characters")
        held = Flagged(check, f"ignored: {reason}")
        return PCRRule(index=index, any_of=None, ignore=reason, expected="anything", held=held)
    if "any_of" not in rule:
        _refuse(f"PCR {index}: rule {str(next(iter(rule)))[:20]!r} is not supported by this version")
    values = rule["any_of"]
    if not isinstance(values, list) or not 0 < len(values) <= _MAX_VALUES:
        _refuse(f"PCR {index}: any_of must list 1 to {_MAX_VALUES} values")
    try:
        any_of = frozenset(hexdecode(_text(v), f"PCR {index}", size_bytes=size) for v in values)
    except MalformedEvidence as e:
        raise PolicyInvalid(str(e)) from e
    expected = " or ".join(sorted(v.hex() for v in any_of))
    return PCRRule(index=index, any_of=any_of, ignore=None, expected=expected, held=Passed(check))


def _clock_safe_required(clock: object) -> bool:
    if not isinstance(clock, Mapping) or frozenset(clock) - {"safe"}:
        _refuse("clock has no member but safe")
    safe = clock.get("safe", "flag")
    if safe not in ("required", "flag"):
        _refuse("clock.safe is not required or flag")
    return bool(safe == "required")


def _text(value: object) -> str:
    """Return *value* if it is text: a number of 64 decimal digits is no digest."""
    return value if isinstance(value, str) else "not text"


def _integer(value: object, what: str, low: int, high: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        _refuse(f"{what} is not a whole number from {low} to {high}")
    return value


def _refuse(message: str) -> NoReturn:
    raise PolicyInvalid(message)


_INDEX_TEXTS: Final = frozenset(str(i) for i in range(24))

DEFAULT_SELECTION: Final = PCRSelection.from_names({"sha256": [0, 1, 2, 3, 4, 5, 6, 7, 11]})
"""What is quoted where no rule asks for a PCR: the values are recorded, not compared."""

IDENTITY_ONLY: Final = _parse(
    {
        "format": FORMAT,
        "name": "identity-only",
        "version": 1,
        "bank": "sha256",
        "pcrs": {},
        "max_age_seconds": 180,
    },
    max_age_default=180,
)
"""The shipped default: activation, quote and clock rules, no PCR. Every result says that the boot state was
not appraised."""
