"""What one cluster may take of the log of CA keys in hardware: a controller in other hands fills nothing up."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import httpx
import pytest

from attestation.store import RateLimit
from attestation_service.hsm import bounds, issuance, lists
from tests.unit.service import hsm_requests as hsm
from tests.unit.service.conftest import Service, Starter
from tests.unit.service.realm import a_key as cluster_key
from tests.unit.service.test_hsm_quotes import SIGNER, Judge, envelope, judge, nonce, put
from tests.unit.service.test_service_accounts import cluster, jwks

pytestmark = pytest.mark.anyio

__all__ = ["judge"]


@pytest.fixture
async def service(start: Starter) -> Service:
    """A service that knows one cluster."""
    return await hsm.serving(start)


async def taken(service: Service, issuer: hsm.Issuer, *uids: str, key: Any = None) -> httpx.Response:
    """Take serial numbers for requests of these UIDs."""
    said = [hsm.request(service, issuer.key, uid) for uid in uids]
    return await hsm.ask(
        service, "POST", f"/issuers/{issuer.issuer_id}/certificates", {"requests": said}, key
    )


def later(answer: httpx.Response) -> tuple[int, str, bool]:
    """Return what a refusal for a time says."""
    return answer.status_code, hsm.code(answer), int(answer.headers["retry-after"]) > 0


LATER = (429, "rate-limited", True)


@pytest.mark.threat("T293")
async def test_so_many_are_signed_at_one_time(start: Starter, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of all keys of a cluster, and of no other one; a batch beyond it takes none, what was taken is told again."""
    monkeypatch.setattr(bounds, "OPEN", 3)
    key = cluster_key(number=1)
    service = await hsm.serving(start, clusters=[cluster(), cluster(cluster_id="other", jwks=jwks(key))])
    one, two = await hsm.registered(service), await hsm.registered(service, "uid-2", name="Two")
    assert (await taken(service, one, "a", "b")).status_code == 200
    assert later(await taken(service, two, "c", "d")) == LATER
    assert (await taken(service, two, "c")).status_code == 200
    assert (await taken(service, one, "a", "b")).status_code == 200
    assert later(await taken(service, two, "d")) == LATER
    theirs = await service.http.put(
        "/api/v1/hsm/issuers/uid-3", json=one.put(), headers=hsm.bearer(service, key)
    )
    one.issuer_id = theirs.json()["issuer_id"]
    assert (await taken(service, one, "a", "b", "c", key=key)).status_code == 200


@pytest.mark.threat("T293")
async def test_what_is_never_finished_ends_a_key(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is on the key's lists until its end: with too many of them it takes no more."""
    monkeypatch.setattr(bounds, "GIVEN_UP", 2)
    issuer = await hsm.registered(service)
    await taken(service, issuer, "a", "b")
    service.clock.advance(601)
    await issuance.give_up_stale(service.resources)
    assert later(await taken(service, issuer, "c")) == LATER
    service.clock.advance(31 * 86_400)
    assert (await taken(service, issuer, "c")).status_code == 200


@pytest.mark.threat("T293")
async def test_so_many_are_issued_in_a_day(start: Starter) -> None:
    """As the setting says; one that is asked for again is counted once."""
    service = await hsm.serving(start, rate_limits=True, hsm_certificates_per_day=2)
    issuer = await hsm.registered(service)
    assert (await taken(service, issuer, "a", "b")).status_code == 200
    assert (await taken(service, issuer, "a", "b")).status_code == 200
    assert later(await taken(service, issuer, "c")) == LATER
    service.clock.advance(86_400)
    assert (await taken(service, issuer, "c")).status_code == 200


@pytest.mark.threat("T293")
async def test_a_cluster_has_so_many_keys(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that it has may be registered again; they go when all that they issued is over for long."""
    monkeypatch.setattr(bounds, "KEYS", 1)
    issuer = await hsm.registered(service)
    more = hsm.Issuer(service.clock.at, "Two").put()
    assert later(await hsm.ask(service, "PUT", "/issuers/uid-2", more)) == LATER
    renewed = issuer.put(certificate=issuer.certificate(serial=8))
    assert (await hsm.ask(service, "PUT", f"/issuers/{hsm.UID}", renewed)).status_code == 200


@pytest.mark.threat("T293")
async def test_a_ca_is_valid_for_so_long(start: Starter) -> None:
    """As the setting says, from now: what is issued under it is kept and listed until it ends."""
    service = await hsm.serving(start, hsm_ca_days=30)
    for days, status in ((31, 422), (29, 200)):
        issuer = hsm.Issuer(service.clock.at)
        body = issuer.put(certificate=issuer.certificate(days=days))
        answer = await hsm.ask(service, "PUT", f"/issuers/{hsm.UID}", body)
        assert answer.status_code == status, days
        assert days == 29 or "ITL_HSM_CA_DAYS" in answer.json()["detail"]


@pytest.mark.threat("T293")
async def test_a_list_names_so_many(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that would be longer than what is taken in is not begun: the key is to be replaced."""
    issuer = await hsm.registered(service)
    for name, limit, status in (("one", 1, 200), ("two", 1, 422), ("three", 3, 200)):
        await hsm.revoke(service, issuer, await hsm.issued(service, issuer, name))
        monkeypatch.setattr(lists, "MAX_LISTED", limit)
        answer = await hsm.ask(service, "GET", f"/issuers/{issuer.issuer_id}/crl")
        assert answer.status_code == status, name


@pytest.mark.threat("T293")
async def test_so_many_nonces_are_good(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until they end."""
    monkeypatch.setattr(bounds, "NONCES", 1)
    await nonce(service)
    said = {"purpose": "KeyProvisioning", "signer_uid": "x", "evidence_type": "sgx", "policy": None}
    refused = await hsm.ask(service, "POST", "/nonces", said | {"valid_for_seconds": 60})
    assert later(refused) == LATER
    service.clock.advance(timedelta(days=1).total_seconds())
    await nonce(service)


@pytest.mark.threat("T293")
async def test_one_issuer_is_given_so_many_nonces(start: Starter, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who changes it again and again takes none from others."""
    monkeypatch.setattr(bounds, "NONCES_OF_ISSUER", RateLimit(requests=1, per_seconds=3_600))
    service = await hsm.serving(start, rate_limits=True)
    await nonce(service)
    said = {"purpose": "KeyProvisioning", "signer_uid": SIGNER, "evidence_type": "sgx", "policy": None}
    refused = await hsm.ask(service, "POST", "/nonces", said | {"valid_for_seconds": 60})
    assert later(refused) == LATER
    await nonce(service, signer_uid="another")


@pytest.mark.threat("T293")
@pytest.mark.usefixtures("judge")
async def test_one_namespace_brings_so_many_quotes(start: Starter, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of others are taken all the same."""
    monkeypatch.setattr(bounds, "QUOTES_OF_NAMESPACE", RateLimit(requests=1, per_seconds=3_600))
    service = await hsm.serving(start, rate_limits=True)
    for uid, namespace, status in (("a", "seed", 200), ("b", "seed", 429), ("c", "other", 200)):
        body = {"namespace": namespace, "name": uid, "spec": envelope(service, await nonce(service))}
        answer = await hsm.ask(service, "PUT", f"/quote-attestations/{uid}", body)
        assert answer.status_code == status, uid


@pytest.mark.parametrize(
    ("bound", "limit"),
    [
        ("QUOTES_TAKEN", RateLimit(requests=1, per_seconds=3_600)),
        ("QUOTES_OF_NAMESPACE", RateLimit(requests=1, per_seconds=3_600)),
        ("QUOTES_KIB", RateLimit(requests=1, per_seconds=3_600)),
        ("QUOTES_JUDGED", RateLimit(requests=1, per_seconds=3_600)),
    ],
)
@pytest.mark.usefixtures("judge")
async def test_so_much_evidence_is_taken(
    start: Starter, monkeypatch: pytest.MonkeyPatch, bound: str, limit: RateLimit
) -> None:
    """In number, in bytes, and in how often it is judged; what was decided is told again without being judged."""
    monkeypatch.setattr(bounds, bound, limit)
    service = await hsm.serving(start, rate_limits=True)
    first, second = [envelope(service, await nonce(service)) for _ in range(2)]
    for _ in range(2):
        assert (await put(service, first)).status_code == 200
    assert later(await put(service, second, "qa-2")) == LATER


@pytest.mark.threat("T293")
async def test_evidence_is_not_judged_beyond_its_rate(
    start: Starter, judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The refusal comes before the work."""
    monkeypatch.setattr(bounds, "QUOTES_JUDGED", RateLimit(requests=1, per_seconds=3_600))
    service = await hsm.serving(start, rate_limits=True)
    for number in range(3):
        await put(service, envelope(service, await nonce(service)), f"qa-{number}")
    assert len(judge.cases) == 1
