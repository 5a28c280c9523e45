"""Attestation results for others: EAT Attestation Results, written and read (draft-ietf-rats-ear-04, RFC 9711).

Two profiles: the draft's, and the one of 2023 that readers in the field still ask for. What we write obeys the
rules by which we read; `parse_ear` reads what `ear_claims` made before anything is signed. The signature is
made and checked in `attestation.keys`.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

from attestation.errors import ResultTokenRejected
from attestation.results.ar4si import (
    HIGHEST,
    LOWEST,
    Tier,
    TrustClaim,
    tier_of,
    worst,
)
from attestation.results.assurance import Assurance
from attestation.results.result import (
    AttestationResult,
    Failed,
    Flagged,
    Outcome,
    Passed,
    Reported,
    Undecided,
)
from attestation.results.submods import TPM, parts_of
from attestation.results.vector import status_of, vector_of

TYP: Final = "eat+jwt"
MEDIA_TYPE: Final = "application/eat+jwt"
"""RFC 9782: an EAT as JWT."""

DEVELOPER: Final = "itl-attestation"
"""Label of the one attester that we appraise: the machine behind its TPM."""

NONCE_CHARACTERS: Final = range(8, 89)
"""How long an `eat_nonce` may be, in characters (RFC 9711 §4.1)."""

_MEMORY: Final = frozenset({"snp-memory", "tdx-memory", "sgx-memory"})
_DEBUG: Final = frozenset({"snp-debug", "tdx-debug", "sgx-debug"})
"""Checks that are told where debugging is possible, and only there."""

_LATEST: Final = 253_402_300_800
"""Seconds from 1970 to the year 10000, where dates end."""


class Profile(StrEnum):
    """The profiles that we write and read."""

    EAR_04 = "tag:ietf.org,2026:rats/ear#04"
    VERAISON_2023 = "tag:github.com,2023:veraison/ear"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Names:
    """What the members are called in one profile."""

    verifier_id: str
    status: str
    vector: str
    policies: str
    attester: str
    verifier: str


_NAMES: Final = {
    Profile.EAR_04: _Names(
        verifier_id="ear_verifier_id",
        status="ear_status",
        vector="ear_trustworthiness_vector",
        policies="ear_appraisal_policy_ids",
        attester="ear_attester_claims",
        verifier="ear_verifier_claims",
    ),
    Profile.VERAISON_2023: _Names(
        verifier_id="ear.verifier-id",
        status="ear.status",
        vector="ear.trustworthiness-vector",
        policies="ear.appraisal-policy-id",
        attester="ear.veraison.annotated-evidence",
        verifier="ear.veraison.policy-claims",
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Submodule:
    """What a verifier says of one attester.

    Args:
        status: The tier of the whole.
        vector: AR4SI claims, without those of which nothing is said.
        policies: Identifiers of the policies applied, in order.
        attester: Claims drawn from the evidence.
        verifier: Claims of the verifier: verdict, assurance and, for operators, every check.
    """

    status: Tier
    vector: Mapping[TrustClaim, int]
    policies: tuple[str, ...]
    attester: Mapping[str, object]
    verifier: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class EAR:
    """A result whose form was checked; believe it only from `attestation.keys.verify_ear`.

    Args:
        profile: Which profile it is of.
        issuer: URL of the service.
        subject: The machine's id.
        issued_at: When it was made, UTC.
        expires_at: When it may no longer be relied on, UTC.
        nonce: The challenge it answers, as text.
        developer: Who made the verifier.
        build: Which version of it.
        submods: By label: `tpm`, `cpu0`, `gpu0`, as far as the machine has them.
    """

    profile: Profile
    issuer: str
    subject: str
    issued_at: datetime
    expires_at: datetime
    nonce: str
    developer: str
    build: str
    submods: Mapping[str, Submodule]

    @property
    def status(self) -> Tier:
        """The worst status of all submodules."""
        return worst(submodule.status for submodule in self.submods.values())


def ear_claims(
    result: AttestationResult,
    *,
    machine_id: str,
    ek_fingerprint: str,
    assurance: Assurance,
    nonce: str,
    issuer: str,
    expires_at: datetime,
    build: str,
    profile: Profile = Profile.EAR_04,
    policy_sha256: str | None = None,
    policy_identifier: str | None = None,
    tell_checks: bool = False,
    codes: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return the claims set of an EAR.

    `executables` and `configuration` are left out where less was compared than they need: a result under
    `identity-only` affirms who the machine is and nothing of what it runs.

    Args:
        result: The appraisal's result, over authentic evidence.
        machine_id: UUID text.
        ek_fingerprint: SHA-384 of the EK's SPKI, hex.
        assurance: How well the identity is vouched for.
        nonce: The challenge answered, base64.
        issuer: URL of the service.
        expires_at: When the result may no longer be relied on.
        build: Version of the verifier.
        profile: Which names the members have.
        policy_sha256: Hex digest of the effective policy's canonical JSON, where it is known.
        policy_identifier: Of what it asked (`reference.identifier`), where that is known.
        tell_checks: Name every check. Only for operators: a node carries its own token, and is not told which
            check failed (PROTOCOL §4).
        codes: Name of a check -> what its failure is called to machines (CONFIDENTIAL.md §12.4), told with it.

    Raises:
        ResultTokenRejected: The values cannot stand in a token; see `parse_ear`.
    """
    names = _NAMES[profile]
    submods: dict[str, Any] = {}
    for part, (outcomes, appraised) in parts_of(result).items():
        vector = vector_of(outcomes, appraised, assurance if part == TPM else None)
        verifier: dict[str, Any] = {
            "verdict": result.verdict.value,
            "assurance": assurance.value,
            "boot_state_appraised": [each.value for each in result.boot_state_appraised if each in appraised],
        }
        if tell_checks:
            verifier["checks"] = [_check(outcome, codes or {}) for outcome in outcomes]
        attester: dict[str, Any] = {"ueid": ueid(ek_fingerprint)}
        if part == TPM:
            attester["ek_fingerprint"] = ek_fingerprint
            if result.pcr_digest is not None:
                attester["pcr_digest"] = result.pcr_digest
        debugged = debug_status(outcomes)
        if debugged is not None:
            attester["dbgstat"] = debugged
        # The machine is judged as one: no part of it is better than its verdict.
        submodule: dict[str, Any] = {names.status: status_of(result.verdict, vector).value}
        if vector:
            submodule[names.vector] = {claim.value: value for claim, value in vector.items()}
        if result.policy is not None:
            ids = list(policy_ids(result.policy, policy_sha256, policy_identifier))
            submodule[names.policies] = ids if profile is Profile.EAR_04 else result.policy
        submods[part] = submodule | {names.attester: attester, names.verifier: verifier}
    claims = {
        "eat_profile": profile.value,
        "iss": issuer,
        "sub": machine_id,
        "iat": int(result.at.timestamp()),
        "exp": int(expires_at.timestamp()),
        "eat_nonce": nonce,
        names.verifier_id: {"developer": DEVELOPER, "build": build},
        "submods": submods,
    }
    # What our own reader refuses is never signed.
    parse_ear(claims)
    return claims


def _check(outcome: Outcome, codes: Mapping[str, str]) -> dict[str, str]:
    """Return a check as operators are told: its name, its outcome and, where it did not pass, why to machines."""
    told = {"code": outcome.check, "outcome": _OUTCOMES[type(outcome)]}
    passed = isinstance(outcome, (Passed, Flagged))
    return told if passed or outcome.check not in codes else told | {"reason": codes[outcome.check]}


_OUTCOMES: Final = {
    Passed: "passed",
    Failed: "failed",
    Flagged: "flagged",
    Reported: "reported",
    Undecided: "undecided",
}


def ueid(ek_fingerprint: str) -> str:
    """Return the UEID of a machine: type 01 ‖ the first 32 bytes of *ek_fingerprint*, base64url (RFC 9711 §4.2.1).

    Args:
        ek_fingerprint: SHA-384 of the EK's SPKI, 96 hex: a digest of what no two TPMs share.
    """
    return base64.urlsafe_b64encode(b"\x01" + bytes.fromhex(ek_fingerprint)[:32]).rstrip(b"=").decode("ascii")


def debug_status(outcomes: Iterable[Outcome]) -> str | None:
    """Return `dbgstat` of a confidential guest (RFC 9711 §4.2.9): whether its memory can be read by a debugger.

    That is fixed when a guest is launched. None where nothing was seen of it.
    """
    for outcome in outcomes:
        if outcome.check in _MEMORY and isinstance(outcome, Passed):
            return "disabled-since-boot"
        if outcome.check in _DEBUG:
            return "enabled"
    return None


def policy_ids(ref: str, sha256: str | None, identifier: str | None = None) -> tuple[str, ...]:
    """Return the identifiers of a policy: `name@version` of each that it is composed of, widest first, then its URIs.

    Args:
        ref: `name@version`, or several joined by `+`.
        sha256: Hex SHA-256 of the effective document: becomes `ni:///sha-256;…` (RFC 6920), equal exactly where
            the same was written.
        identifier: `ni:///sha-384;…`, equal exactly where the same was asked.
    """
    found = ref.split("+")
    if sha256 is not None:
        digest = base64.urlsafe_b64encode(bytes.fromhex(sha256)).rstrip(b"=").decode("ascii")
        found.append(f"ni:///sha-256;{digest}")
    if identifier is not None:
        found.append(identifier)
    return tuple(found)


def parse_ear(claims: Mapping[str, object]) -> EAR:
    """Read a claims set by every rule of its profile; members that we do not know are passed over.

    Raises:
        ResultTokenRejected: The first rule that it breaks.
    """
    # 1. A profile that we know: the names and meanings of all else hang on it.
    try:
        profile = Profile(_text(claims, "eat_profile"))
    except ValueError:
        raise ResultTokenRejected("eat_profile is none that we know") from None
    names = _NAMES[profile]
    # 2. Whole seconds, and an end: a result without one would be believed for ever.
    issued_at, expires_at = _instant(claims, "iat"), _instant(claims, "exp")
    if expires_at <= issued_at:
        raise ResultTokenRejected("exp is not later than iat")
    # 3. Which challenge it answers. Without it any result of this machine would do.
    nonce = _text(claims, "eat_nonce")
    if len(nonce) not in NONCE_CHARACTERS:
        raise ResultTokenRejected(f"eat_nonce has {len(nonce)} characters, 8 to 88 expected")
    # 4. Who judged, with what.
    verifier_id = _object(claims, names.verifier_id)
    # 5. At least one attester, each with a status that its own vector allows.
    submods = _object(claims, "submods")
    if not submods:
        raise ResultTokenRejected("submods is empty")
    return EAR(
        profile=profile,
        issuer=_text(claims, "iss"),
        subject=_text(claims, "sub"),
        issued_at=issued_at,
        expires_at=expires_at,
        nonce=nonce,
        developer=_text(verifier_id, "developer"),
        build=_text(verifier_id, "build"),
        submods={label: _submodule(_object(submods, label), profile, names) for label in submods},
    )


def _submodule(claims: Mapping[str, object], profile: Profile, names: _Names) -> Submodule:
    try:
        status = Tier(_text(claims, names.status))
    except ValueError:
        raise ResultTokenRejected(f"{names.status} is no trustworthiness tier") from None
    vector = _vector(_object(claims, names.vector)) if names.vector in claims else {}
    # A status better than a claim would hide bad news from a reader who looks only at the status.
    limit = worst(map(tier_of, vector.values())) if vector else Tier.AFFIRMING
    if status.badness < limit.badness:
        raise ResultTokenRejected(f"{names.status} is {status}, but a claim is {limit}")
    return Submodule(
        status=status,
        vector=vector,
        policies=_policies(claims[names.policies], profile) if names.policies in claims else (),
        attester=_object(claims, names.attester) if names.attester in claims else {},
        verifier=_object(claims, names.verifier) if names.verifier in claims else {},
    )


def _vector(claims: Mapping[str, object]) -> dict[TrustClaim, int]:
    vector = {}
    for name, value in claims.items():
        try:
            claim = TrustClaim(name)
        except ValueError:
            # An unknown claim may be the bad news: it cannot be passed over.
            raise ResultTokenRejected(
                "the trustworthiness vector has a claim that AR4SI does not know"
            ) from None
        if type(value) is not int or not LOWEST <= value <= HIGHEST:
            raise ResultTokenRejected(f"{claim} is no number from {LOWEST} to {HIGHEST}")
        if value == 0:
            raise ResultTokenRejected(f"{claim} is 0; what nothing is said of is left out")
        vector[claim] = value
    if not vector:
        raise ResultTokenRejected("the trustworthiness vector is empty")
    return vector


def _policies(value: object, profile: Profile) -> tuple[str, ...]:
    listed = value if profile is Profile.EAR_04 else [value]
    if not isinstance(listed, list) or not listed:
        raise ResultTokenRejected("the policy identifiers are no list with at least one")
    if not all(isinstance(each, str) and each for each in listed):
        raise ResultTokenRejected("a policy identifier is no text")
    return tuple(listed)


def _text(claims: Mapping[str, object], name: str) -> str:
    value = claims.get(name)
    if not isinstance(value, str) or not value:
        raise ResultTokenRejected(f"{name} is missing or no text")
    return value


def _object(claims: Mapping[str, object], name: str) -> Mapping[str, object]:
    value = claims.get(name)
    if not isinstance(value, dict):
        raise ResultTokenRejected(f"{name} is missing or no object")
    return value


def _instant(claims: Mapping[str, object], name: str) -> datetime:
    value = claims.get(name)
    # `True` is an int, and a float is forbidden by the profile.
    if type(value) is not int or not 0 < value < _LATEST:
        raise ResultTokenRejected(f"{name} is missing or no whole number of seconds")
    return datetime.fromtimestamp(value, UTC)
