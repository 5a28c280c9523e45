"""Routes of extensions for a machine with a certificate: its TPM certified the key, and both are good now."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from attestation.store import Tx
from tests.fixtures.extension import install, site
from tests.fixtures.machine import refused as outcome_of
from tests.unit.service.conftest import Starter
from tests.unit.service.node import SoftwareNode, node_nonce
from tests.unit.service.test_enroll import (
    NOT_ADMITTED,
    UNTRUSTED,
    Holder,
    ek_name,
    holder_of,
    planted,
)
from tests.unit.service.test_enrollment import WITH_CA
from tests.unit.service.test_machine_routes import GIVING

pytestmark = pytest.mark.anyio

__all__ = ["site"]

SECRET = "proxy-secret-of-more-than-32-characters"


@pytest.fixture
async def holder(site: Path, start: Starter) -> Holder:
    """A machine with a certificate, a proxy that shows it, and an extension that gives."""
    install(site, "giving", GIVING)
    service = await start(
        tpm_ca_bundle_dir=start.bundle(),
        proxy_secret=SECRET,
        trusted_proxies="192.0.2.0/24",
        extensions=("giving",),
        **WITH_CA,
    )
    return await holder_of(service)


async def ask(holder: Holder, pem: str | None = None, nonce: str | None = None) -> httpx.Response:
    """Ask for a gift with a certificate, the holder's where nothing is said."""
    headers = {
        "Itl-Proxy-Secret": SECRET,
        "X-Client-Cert": quote(pem or holder.pem, safe=""),
        "Itl-Node-Nonce": node_nonce() if nonce is None else nonce,
    }
    return await holder.service.get("/gifts/toy", headers={k: v for k, v in headers.items() if v})


@pytest.mark.threat("T213")
async def test_what_is_given_opens_in_its_tpm(holder: Holder) -> None:
    """And is signed for this request."""
    nonce = node_nonce()
    answer = await ask(holder, nonce=nonce)
    assert answer.status_code == 200, answer.text
    assert holder.node.open(answer.json()["envelope"]) == b"toy"
    claims = json.loads(base64.urlsafe_b64decode(answer.json()["signature"].split(".")[1] + "=="))
    assert (claims["what"], claims["node_nonce"]) == ("giving.gift", nonce)


@pytest.mark.threat("T213")
async def test_the_tpm_must_have_certified_the_key(holder: Holder) -> None:
    """Of some certificates nothing is known of the key: whoever copied it has it."""
    names = [ek_name(holder.node.ek_fingerprint)]
    known = await planted(holder, names=names, key_tier=4)
    assert (await ask(holder, known)).status_code == 200
    unknown = await planted(holder, names=names, serial=(0x3F << 152) + 1)
    assert outcome_of(await ask(holder, unknown)) == UNTRUSTED


@pytest.mark.threat("T213")
async def test_the_certificate_names_the_machines_ek(holder: Holder) -> None:
    """Another, although our CA signed it (R15)."""
    names = [ek_name(SoftwareNode().ek_fingerprint)]
    assert outcome_of(await ask(holder, await planted(holder, names=names, key_tier=4))) == UNTRUSTED


@pytest.mark.threat("T213")
async def test_a_certificate_that_is_held_or_over_is_none(holder: Holder) -> None:
    """By our own log."""
    names, at = [ek_name(holder.node.ek_fingerprint)], holder.service.clock.at
    short = await planted(holder, names=names, key_tier=4, not_before=at, not_after=at.replace(minute=1))
    assert (await ask(holder, short)).status_code == 200
    holder.service.clock.advance(60)
    assert outcome_of(await ask(holder, short)) == UNTRUSTED

    def hold(tx: Tx) -> None:
        tx.issuances.hold(holder.node.machine_id, "test", holder.service.clock.at)

    await holder.service.store.write(hold)
    assert outcome_of(await ask(holder)) == UNTRUSTED


@pytest.mark.parametrize("ends", ["lock", "lease"])
@pytest.mark.threat("T213")
async def test_the_machine_is_verified_now(holder: Holder, ends: str) -> None:
    """Whatever its certificate says: not locked, and its last evidence within its lease."""
    if ends == "lock":
        await holder.service.act(holder.node, "lock", {"reason": "x"})
    else:
        holder.service.clock.advance(3 * 3600)
    assert outcome_of(await ask(holder)) == NOT_ADMITTED


@pytest.mark.threat("T213")
async def test_who_cannot_tell_whether_it_is_meant_is_given_nothing(holder: Holder) -> None:
    """Without a nonce of its own, or with one that is none."""
    assert outcome_of(await ask(holder, nonce="")) == (426, "agent-too-old")
    assert outcome_of(await ask(holder, nonce="x")) == (400, "malformed-evidence")
