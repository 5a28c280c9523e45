"""Attestation results as EAR claims (draft-ietf-rats-ear, AR4SI trust vectors), ready to be signed as a JWT."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Final

from attestation.results.assurance import Assurance
from attestation.results.result import AttestationResult, Verdict

PROFILE: Final = "tag:github.com,2023:veraison/ear"
TYP: Final = "eat+jwt"

# AR4SI trustworthiness tiers (draft-ietf-rats-ar4si, 2.3.2): none, affirming, warning, contraindicated.
_AFFIRMING: Final = 2
_CONTRAINDICATED: Final = 96
_STATUS: Final = {
    Verdict.VERIFIED: "affirming",
    Verdict.FAILED: "contraindicated",
    Verdict.INDETERMINATE: "none",
}


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
) -> dict[str, Any]:
    """Return the claims set of an EAR.

    The node carries it, and is not told which check failed (PROTOCOL §4): that stands in the results.

    `executables` and `configuration` of the trust vector stay 0 (no claim) where no PCR was compared: a result
    under `identity-only` affirms who the machine is and nothing of what it runs.

    Args:
        result: The appraisal's result.
        machine_id: UUID text.
        ek_fingerprint: SHA-384 of the EK's SPKI, hex.
        assurance: How well the identity is vouched for.
        nonce: The challenge answered, base64.
        issuer: URL of the service.
        expires_at: When the result may no longer be relied on.
        build: Version of the verifier.
    """
    affirming = result.verdict is Verdict.VERIFIED
    identity = _AFFIRMING if affirming else _CONTRAINDICATED if result.verdict is Verdict.FAILED else 0
    boot = identity if result.boot_state_appraised else 0
    return {
        "eat_profile": PROFILE,
        "iss": issuer,
        "sub": machine_id,
        "iat": int(result.at.timestamp()),
        "exp": int(expires_at.timestamp()),
        "eat_nonce": nonce,
        "ear.verifier-id": {"developer": "itl-attestation", "build": build},
        "submods": {
            "tpm": {
                "ear.status": _STATUS[result.verdict],
                "ear.trustworthiness-vector": {
                    "instance-identity": identity,
                    "executables": boot,
                    "configuration": boot,
                },
                "ear.appraisal-policy-id": result.policy,
                "itl.ek-fingerprint": ek_fingerprint,
                "itl.assurance": assurance.value,
                "itl.boot-state-appraised": result.boot_state_appraised,
            }
        },
    }
