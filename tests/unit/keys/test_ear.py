"""Result tokens: signed, of now, in answer to this reader; and a second reader that shares no code with ours."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from attestation.appraisal import recalled
from attestation.errors import ResultTokenRejected
from attestation.keys import DIRECTIVE_TYP, KeySigner, verify_ear
from attestation.results import (
    Assurance,
    AttestationResult,
    Failed,
    Outcome,
    Passed,
    Subject,
    Undecided,
    conclude,
)
from attestation.results.ar4si import Tier
from attestation.results.ear import TYP, Profile, ear_claims

AT = datetime(2026, 11, 21, tzinfo=UTC)
LIFE = timedelta(seconds=180)
NONCE = "b3IgdGhpcnR5LXR3byByYW5kb20gYnl0ZXMgaGVyZSE="
ISSUER = "https://attestation.example"
SIGNER, STRANGER = (
    KeySigner(ec.generate_private_key(ec.SECP384R1())),
    KeySigner(ec.generate_private_key(ec.SECP384R1())),
)
GOOD: tuple[Outcome, ...] = (Passed("tpm-quote"), Passed("clock"), Passed("pcr4"), Passed("pcr7"))
CASES: list[tuple[Outcome, ...]] = [
    GOOD,
    (*GOOD, Failed("pcr0", "aa", "bb")),
    (*GOOD, Undecided("event-log", "not sent")),
    (Passed("tpm-quote"), Failed("clock-regressed", "a", "b")),
]


def claims(outcomes: tuple[Outcome, ...] = GOOD, profile: Profile = Profile.EAR_04) -> dict[str, Any]:
    return ear_claims(
        AttestationResult(
            verdict=conclude(outcomes),
            at=AT,
            policy="workers@3",
            outcomes=tuple(map(recalled, outcomes)),
            boot_state_appraised=tuple(Subject),
            pcr_digest="00" * 32,
        ),
        machine_id="7a0e3c1e-6a43-4c5b-9d0a-000000000001",
        ek_fingerprint="ab" * 48,
        assurance=Assurance.EK_CHAIN,
        nonce=NONCE,
        issuer=ISSUER,
        expires_at=AT + LIFE,
        build="0.1.0",
        profile=profile,
        tell_checks=True,
    )


def refuse(
    token: str, why: str, *, at: datetime = AT, jwks: dict[str, Any] | None = None, **more: str
) -> None:
    expected: dict[str, Any] = {"issuer": ISSUER, "nonce": NONCE, **more}
    with pytest.raises(ResultTokenRejected, match=why):
        verify_ear(token, jwks=jwks or SIGNER.jwks(), at=at, **expected)


def test_a_good_token() -> None:
    """Signature, form, issuer, time and nonce hold: then it is believed."""
    token = SIGNER.sign_jwt(claims(), typ=TYP)
    ear = verify_ear(token, jwks=SIGNER.jwks(), at=AT, issuer=ISSUER, nonce=NONCE)
    assert (ear.status, ear.subject) == (Tier.AFFIRMING, "7a0e3c1e-6a43-4c5b-9d0a-000000000001")
    assert verify_ear(token, jwks=SIGNER.jwks(), at=AT, issuer=None, nonce=None) == ear


@pytest.mark.threat("T76")
def test_each_demand_is_made() -> None:
    """Another key, type, issuer, challenge or time, or a broken rule, and the token proves nothing."""
    token = SIGNER.sign_jwt(claims(), typ=TYP)
    refuse(token, "pinned keys", jwks=STRANGER.jwks())
    refuse(SIGNER.sign_jwt(claims(), typ=DIRECTIVE_TYP), "not of type")
    refuse(SIGNER.sign_jwt(claims() | {"submods": {}}, typ=TYP), "submods")
    refuse(token, "another service", issuer="https://other.example")
    refuse(token, "another challenge", nonce=NONCE.replace("b", "c"))
    refuse(token, "expired", at=AT + LIFE)
    refuse(token, "of the future", at=AT - timedelta(seconds=61))
    refuse(token[:-4] + "AAAA", "pinned keys")
    refuse("", "pinned keys")
    refuse("x" * 65_537, "longer")


def test_clocks_may_differ_a_little() -> None:
    """A result is good until the instant of its end, and for a reader whose clock is a minute behind."""
    token = SIGNER.sign_jwt(claims(), typ=TYP)
    for at in (AT - timedelta(seconds=60), AT + LIFE - timedelta(microseconds=1)):
        assert verify_ear(token, jwks=SIGNER.jwks(), at=at, issuer=ISSUER, nonce=NONCE).nonce == NONCE


# A second reader, written from RFC 7515, RFC 7518 §3.4 and CONFIDENTIAL §12.1-12.2 alone.

NAMES = {
    "tag:ietf.org,2026:rats/ear#04": ("ear_verifier_id", "ear_status", "ear_trustworthiness_vector"),
    "tag:github.com,2023:veraison/ear": ("ear.verifier-id", "ear.status", "ear.trustworthiness-vector"),
}
CLAIMS = {
    *("instance-identity", "configuration", "executables", "file-system"),
    *("hardware", "runtime-opaque", "storage-opaque", "sourced-data"),
}
RANK = ["affirming", "none", "warning", "contraindicated"]


def b64u(text: str) -> bytes:
    assert "=" not in text
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def rank(value: int) -> int:
    if value in (-1, 0, 1):
        return 1
    if 2 <= value <= 31 or -32 <= value <= -2:
        return 0
    return 2 if 32 <= value <= 95 or -96 <= value <= -33 else 3


def second_reader(token: str, jwks: dict[str, Any]) -> dict[str, Any]:
    """Return the claims of *token*; fails where a rule of §12.1 is broken."""
    head, body, signature = token.split(".")
    header = json.loads(b64u(head))
    assert header["alg"] == "ES384"
    assert header["typ"] == "eat+jwt"
    (jwk,) = [key for key in jwks["keys"] if key["kid"] == header["kid"]]
    assert jwk["crv"] == "P-384"
    x, y = (int.from_bytes(b64u(jwk[c])) for c in "xy")
    raw = b64u(signature)
    assert len(raw) == 96
    der = encode_dss_signature(int.from_bytes(raw[:48]), int.from_bytes(raw[48:]))
    key = ec.EllipticCurvePublicNumbers(x, y, ec.SECP384R1()).public_key()
    key.verify(der, f"{head}.{body}".encode(), ec.ECDSA(hashes.SHA384()))
    found: dict[str, Any] = json.loads(b64u(body))
    verifier_id, status, vector = NAMES[found["eat_profile"]]
    assert set(found[verifier_id]) == {"developer", "build"}
    assert type(found["iat"]) is int
    assert 8 <= len(found["eat_nonce"]) <= 88
    assert found["submods"]
    for submodule in found["submods"].values():
        values = submodule.get(vector, {})
        assert set(values) <= CLAIMS
        assert 0 not in values.values()
        assert RANK.index(submodule[status]) >= max(map(rank, values.values()), default=0)
    return found


@pytest.mark.parametrize("profile", Profile)
@pytest.mark.parametrize("outcomes", CASES)
def test_another_reader_understands(profile: Profile, outcomes: tuple[Outcome, ...]) -> None:
    """What we sign verifies with `cryptography` alone, and keeps the rules as somebody else reads them."""
    written = claims(outcomes, profile)
    token = SIGNER.sign_jwt(written, typ=TYP)
    assert second_reader(token, SIGNER.jwks()) == written
    with pytest.raises(InvalidSignature):
        second_reader(token, {"keys": [STRANGER.jwks()["keys"][0] | {"kid": SIGNER.kid}]})
