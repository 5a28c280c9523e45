"""An independent library, npm `jose`, verifies the result tokens that we sign, and refuses changed ones."""

from __future__ import annotations

import json
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from attestation.keys import KeySigner
from attestation.results import Assurance, AttestationResult, Subject, Verdict
from attestation.results.ear import TYP, Profile, ear_claims
from attestation.results.tpm_checks import PCR, QUOTE
from tests.fixtures.openid.provider import install

JUDGE = """
import { createLocalJWKSet, jwtVerify } from 'jose';
const { token, jwks, issuer } = JSON.parse(await new Promise((done) => {
  let text = ''; process.stdin.on('data', (piece) => text += piece).on('end', () => done(text)); }));
try {
  const { payload, protectedHeader } = await jwtVerify(token, createLocalJWKSet(jwks), {
    issuer, typ: 'eat+jwt', algorithms: ['ES384'], requiredClaims: ['exp', 'iat', 'eat_nonce'] });
  console.log(JSON.stringify({ payload, protectedHeader }));
} catch (error) { console.log(JSON.stringify({ code: error.code })); }
"""


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A script beside the installed library: modules are looked for from where a script lies."""
    place = tmp_path_factory.mktemp("judge")
    (place / "node_modules").symlink_to(install() / "node_modules")
    (place / "judge.mjs").write_text(JUDGE)
    return place / "judge.mjs"


def ask(judge: Path, token: str, jwks: dict[str, Any], issuer: str = "https://attestation.example") -> Any:
    done = subprocess.run(
        ["node", str(judge)],
        input=json.dumps({"token": token, "jwks": jwks, "issuer": issuer}),
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    return json.loads(done.stdout)


@pytest.mark.parametrize("profile", Profile)
def test_jose_believes_what_we_sign(judge: Path, profile: Profile) -> None:
    """Signature, key by `kid`, type, issuer and dates hold for another library; changed, they do not."""
    at = datetime.now(UTC)
    claims = ear_claims(
        AttestationResult(
            verdict=Verdict.VERIFIED,
            at=at,
            policy="workers@3",
            outcomes=(QUOTE.passed(), PCR[7].passed()),
            boot_state_appraised=tuple(Subject),
            pcr_digest="00" * 32,
        ),
        machine_id="7a0e3c1e-6a43-4c5b-9d0a-000000000001",
        ek_fingerprint="ab" * 48,
        assurance=Assurance.EK_CHAIN,
        nonce="b3IgdGhpcnR5LXR3byByYW5kb20gYnl0ZXMgaGVyZSE=",
        issuer="https://attestation.example",
        expires_at=at + timedelta(seconds=180),
        build="0.1.0",
        profile=profile,
    )
    signer, stranger = (
        KeySigner(ec.generate_private_key(ec.SECP384R1())),
        KeySigner(ec.generate_private_key(ec.SECP384R1())),
    )
    token = signer.sign_jwt(claims, typ=TYP)
    found = ask(judge, token, signer.jwks())
    assert found["payload"] == claims
    assert found["protectedHeader"] == {"alg": "ES384", "kid": signer.kid, "typ": "eat+jwt"}
    place = token.index(".") + 20
    changed = token[:place] + ("A" if token[place] != "A" else "B") + token[place + 1 :]
    assert ask(judge, changed, signer.jwks())["code"] == "ERR_JWS_SIGNATURE_VERIFICATION_FAILED"
    assert ask(judge, token, stranger.jwks())["code"] == "ERR_JWKS_NO_MATCHING_KEY"
    assert (
        ask(judge, token, signer.jwks(), "https://other.example")["code"] == "ERR_JWT_CLAIM_VALIDATION_FAILED"
    )
