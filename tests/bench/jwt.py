"""Judge one access token with cached keys: length, form, signature, claims, roles; as every operator's request does."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Final

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from attestation_service.auth import access_token
from attestation_service.auth.access_token import Rules
from attestation_service.auth.provider_keys import SigningKeys, parse_jwks
from attestation_service.context.identity import Duty
from tests.bench.report import Measurement, best_seconds
from tests.fixtures.openid.provider import new_key, sign

ISSUER: Final = "https://sts.example.org/realms/itl"
BAR_US: Final = 150.0
RULES: Final = Rules(
    issuer=ISSUER,
    audience="attestation-service",
    clients=frozenset({"attestation-cli", "attestation-web"}),
    role_client="attestation-service",
    duties={
        "attestation-operator": Duty.OPERATOR,
        "attestation-viewer": Duty.VIEWER,
        "attestation-auditor": Duty.AUDITOR,
    },
    leeway_seconds=30,
)


def measure() -> Iterator[Measurement]:
    """Measure RSA-2048, Keycloak's default, and P-256, with claims as Keycloak writes them."""
    at = datetime.now(UTC)
    now = int(at.timestamp())
    claims = {
        "exp": now + 300,
        "iat": now,
        "auth_time": now - 10,
        "jti": "onrtac:5c1d6d52-3b38-4a2f-9a8e-6f0e7a1c2b3d",
        "iss": ISSUER,
        "aud": ["attestation-service", "account"],
        "sub": "8f3c6a1e-6f2d-4a57-9d1c-1f0f4b1f7a11",
        "typ": "Bearer",
        "azp": "attestation-cli",
        "sid": "0b0d9a34-7d5c-4c52-9c9f-5a3f0a1b2c3d",
        "acr": "1",
        "realm_access": {"roles": ["default-roles-itl", "offline_access", "attestation-operator"]},
        "resource_access": {"account": {"roles": ["manage-account", "manage-account-links", "view-profile"]}},
        "scope": "openid email profile",
        "email_verified": True,
        "name": "Anna Operator",
        "preferred_username": "anna",
        "email": "anna@itl.example",
    }
    for algorithm in ("RS256", "ES256"):
        key = new_key(algorithm)
        keys = parse_jwks(json.dumps({"keys": [key.as_dict(private=False)]}).encode())
        token = sign(key, claims)
        floor = best_seconds(_bare(token, keys)) * 1e6
        value = best_seconds(_judgement(token, keys, at)) * 1e6
        yield Measurement(
            name=f"jwt-{algorithm.lower()}",
            value=value,
            unit="us",
            floor=floor,
            ratio=value / floor,
            bar=f"<= {BAR_US:.0f} us",
            ok=value <= BAR_US,
            note="floor: the public key's `verify` of `cryptography` on the same bytes",
        )


def _judgement(token: str, keys: SigningKeys, at: datetime) -> Callable[[], None]:
    def judge() -> None:
        unverified = access_token.parse(token)
        keys.check(unverified)
        person = access_token.judge(access_token.claims_of(unverified.payload), RULES, at)
        if person.duties != {Duty.OPERATOR}:
            raise AssertionError("the token was not judged as an operator's")

    return judge


def _bare(token: str, keys: SigningKeys) -> Callable[[], None]:
    unverified = access_token.parse(token)
    public = keys.by_id[unverified.key_id][0].key.get_op_key("verify")
    message, signature, algorithm = unverified.signing_input, unverified.signature, hashes.SHA256()
    if isinstance(public, rsa.RSAPublicKey):
        scheme = padding.PKCS1v15()
        return lambda: public.verify(signature, message, scheme, algorithm)
    assert isinstance(public, ec.EllipticCurvePublicKey)
    der = encode_dss_signature(int.from_bytes(signature[:32]), int.from_bytes(signature[32:]))
    ecdsa = ec.ECDSA(algorithm)
    return lambda: public.verify(der, message, ecdsa)
