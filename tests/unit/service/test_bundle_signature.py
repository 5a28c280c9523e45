"""The trust bundle of machines is signed by the key that they pinned."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

import pytest

from attestation.keys import TRUST_BUNDLE_TYP, JWSRejected, verify_jwt
from tests.unit.service.conftest import Service, Starter

pytestmark = pytest.mark.anyio


@pytest.fixture
async def ca(start: Starter) -> Service:
    """A service that issues certificates."""
    return await start(tpm_ca_bundle_dir=start.bundle(), enrollment_ca_unencrypted=True, rate_limits=False)


@pytest.mark.threat("T110")
async def test_the_signature_is_over_the_very_bytes(ca: Service) -> None:
    """By the key of `GET /service-keys`, for machines, from now for five minutes."""
    answer = await ca.get("/pki/bundle")
    keys = (await ca.get("/api/v1/service-keys")).json()
    claims = verify_jwt(answer.headers["Itl-Bundle-Signature"], keys, typ=TRUST_BUNDLE_TYP)
    now = int(ca.clock.now().timestamp())
    assert claims == {
        "bundle_sha256": hashlib.sha256(answer.content).hexdigest(),
        "purpose": "machine",
        "iat": now,
        "exp": now + 300,
    }
    with pytest.raises(JWSRejected):
        verify_jwt(answer.headers["Itl-Bundle-Signature"], keys, typ="itl-config+jwt")


async def test_who_has_it_already_still_gets_a_fresh_signature(ca: Service) -> None:
    """304 without a body, but with the header, as caches renew what they keep."""
    first = await ca.get("/pki/bundle")
    ca.clock.advance(31)
    again = await ca.get("/pki/bundle", headers={"If-None-Match": first.headers["ETag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["Itl-Bundle-Signature"] != first.headers["Itl-Bundle-Signature"]


async def test_strangers_do_not_keep_the_key_busy(ca: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred who ask at once cost one signature; half a minute later one more."""
    signer, made = ca.resources.signer, []

    def counted(claims: dict[str, Any], *, typ: str) -> str:
        made.append(claims)
        return original(claims, typ=typ)

    original = signer.sign_jwt
    monkeypatch.setattr(signer, "sign_jwt", counted)
    answers = await asyncio.gather(*(ca.get("/pki/bundle") for _ in range(100)))
    assert len({a.headers["Itl-Bundle-Signature"] for a in answers}) == 1
    ca.clock.advance(29)
    await ca.get("/pki/bundle")
    assert len(made) == 1
    ca.clock.advance(1)
    await ca.get("/pki/bundle")
    assert len(made) == 2
