"""What vouches for confidential hardware: kept, in a folder, or asked for once by all who share the database."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from attestation.appraisal.sev_snp import SEV_SNP
from attestation.appraisal.tdx import TDX
from attestation.endorsements.amd import Product
from attestation.endorsements.collateral import source_of, verify_item
from attestation.store import Store, migrate, open_store
from attestation.wire import b64encode, pem
from attestation_service.inspection.beyond import collateral as collateral_part
from attestation_service.inspection.case import NOTHING, Case, Listen
from attestation_service.settings import Settings, SettingsInvalid
from attestation_service.verifier.collateral import ABSENT, BACK_OFF, Collateral, load_anchors
from attestation_testing.tee.amd import Pki, Processor
from attestation_testing.tee.intel import ISSUED, Platform, raw_signature, shared_pki, td_report
from tests.fixtures.collateral import GOOD, vek_name
from tests.unit.service.conftest import HeldClock

pytestmark = pytest.mark.anyio

AT = datetime(2026, 11, 23, tzinfo=UTC)
GENOA, PLATFORM = Processor(pki=Pki(Product.GENOA)), Platform()
NAME = vek_name(GENOA)
CHAINS = {
    "TCB-Info-Issuer-Chain": shared_pki().chain(shared_pki().tcb_signing),
    "SGX-Enclave-Identity-Issuer-Chain": shared_pki().chain(shared_pki().tcb_signing),
    "SGX-PCK-CRL-Issuer-Chain": shared_pki().chain(shared_pki().platform_ca),
}


class Vendors:
    """Vendors that answer from the test kit, and count."""

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.status = 200
        self.headers: dict[str, str] = {}
        self.tampered = False
        self.pause = 0.0
        made = PLATFORM.collateral()
        self.answers: dict[str, bytes] = {
            name: data for name, data in GOOD.items() if name.endswith(".der")
        } | {
            "tdx/90C06F000000/tcb-info.json": _answer("tcbInfo", made.tcb_info),
            "tdx/qe-identity.json": _answer("enclaveIdentity", made.qe_identity),
            "crl/intel-platform.json": made.pck_crl or b"",
        }

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        """Answer one request."""
        path = request.url.raw_path.decode()
        self.asked[path] += 1
        await asyncio.sleep(self.pause)
        if self.status != 200:
            return httpx.Response(self.status, headers=self.headers)
        for name, answer in self.answers.items():
            source = source_of(name)
            if source.path == path:
                headers = {}
                if source.chain_header:
                    headers[source.chain_header] = CHAINS[source.chain_header].decode().replace("\n", "%0A")
                changed = answer[:-40] + bytes([answer[-40] ^ 1]) + answer[-39:]
                return httpx.Response(200, content=changed if self.tampered else answer, headers=headers)
        return httpx.Response(404)


def _answer(member: str, body: bytes | None) -> bytes:
    assert body is not None
    signature = raw_signature(shared_pki().tcb_key, body).hex()
    return b'{"%s":%s,"signature":"%s"}' % (member.encode(), body, signature.encode())


@pytest.fixture
def anchors(tmp_path: Path) -> Path:
    """A file of anchors of the test kit."""
    made = [GENOA.pki.ark, GENOA.pki.ask, GENOA.pki.asvk, shared_pki().root]
    path = tmp_path / "anchors.pem"
    path.write_text("".join(pem("CERTIFICATE", each) for each in made), encoding="ascii")
    return path


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    """A database of its own."""
    url = f"sqlite:///{tmp_path}/collateral.db"
    await asyncio.to_thread(migrate, url)
    opened = open_store(url)
    yield opened
    await opened.aclose()


def settings(anchors: Path, **more: Any) -> Settings:
    return Settings(tee_test_anchors=anchors, tpm_allow_simulator=True, **({"collateral_fetch": True} | more))


@asynccontextmanager
async def process(
    store: Store, anchors: Path, vendors: Vendors, clock: HeldClock | None = None, **more: Any
) -> AsyncIterator[Collateral]:
    """A process of the service."""
    made = Collateral(
        settings(anchors, **more),
        clock or HeldClock(AT),
        store,
        transport=httpx.MockTransport(vendors),
    )
    try:
        yield made
    finally:
        await made.aclose()


def report() -> Any:
    return SEV_SNP.parse({"report": b64encode(GENOA.report(bytes(64)))})


def quote() -> Any:
    return TDX.parse({"quote": b64encode(PLATFORM.quote(td_report(bytes(64))))})


async def missing(collateral: Collateral, store: Store, at: datetime = AT) -> set[str]:
    """Return what a report and a quote still need."""
    names = await store.read(lambda tx: collateral.missing(tx, "sev_snp", report(), at))
    return set(names) | set(await store.read(lambda tx: collateral.missing(tx, "tdx", quote(), at)))


NEEDED = {
    NAME,
    "crl/amd-Genoa.der",
    "crl/intel-root.der",
    "crl/intel-platform.json",
    "tdx/90C06F000000/tcb-info.json",
    "tdx/qe-identity.json",
}


@pytest.mark.threat("T201")
async def test_a_hundred_that_miss_the_same_ask_once(store: Store, anchors: Path) -> None:
    """In two processes; then nothing is missing, also to a third that asks nobody."""
    vendors = Vendors()
    vendors.pause = 0.05
    async with process(store, anchors, vendors) as one, process(store, anchors, vendors) as two:
        assert await missing(one, store) == NEEDED
        found = await asyncio.gather(*(each.fetch(NEEDED) for each in (one, two) for _ in range(50)))
        assert all(found)
        assert set(vendors.asked.values()) == {1}
        assert len(vendors.asked) == len(NEEDED)
        assert await missing(one, store) == await missing(two, store) == set()
    async with process(store, anchors, Vendors(), collateral_fetch=False) as three:
        assert await missing(three, store) == set()
        given = await store.read(lambda tx: three.endorsements(tx, "tdx", quote()))
        assert given.collateral is not None
        assert given.collateral.tcb_info is not None
        of_amd = await store.read(lambda tx: three.endorsements(tx, "sev_snp", report()))
        assert of_amd.vek == GOOD[NAME]


@pytest.mark.threat("T201")
async def test_nobody_is_asked_by_default(store: Store, anchors: Path) -> None:
    """The network is off until somebody turns it on."""
    assert Settings().collateral_fetch is False
    vendors = Vendors()
    async with process(store, anchors, vendors, collateral_fetch=False) as collateral:
        assert not await collateral.fetch(NEEDED)
        assert await collateral.refresh() == 0
    assert not vendors.asked


@pytest.mark.threat("T202")
async def test_what_was_tampered_with_is_not_kept(store: Store, anchors: Path) -> None:
    """Neither what a vendor's host answers, nor what stands in the database or folder."""
    vendors = Vendors()
    vendors.tampered = True
    async with process(store, anchors, vendors) as collateral:
        await collateral.fetch(NEEDED)
        assert await missing(collateral, store) == NEEDED
        known = await store.read(lambda tx: tx.collateral.get(NAME))
        assert known is not None
        assert known.data is None
        assert known.failure is not None

        def plant(tx: Any) -> None:
            forged = tx.collateral.get(NAME)
            object.__setattr__(forged, "data", Processor(pki=Pki(Product.MILAN)).vek)
            tx.collateral.put(forged)

        await store.write(plant)
        assert NAME in await missing(collateral, store)


@pytest.mark.parametrize(
    ("status", "headers", "pause"),
    [
        (429, {"retry-after": "120"}, timedelta(seconds=120)),
        (429, {"retry-after": "soon"}, BACK_OFF[0]),
        (503, {"retry-after": "9999999"}, BACK_OFF[0]),
        (503, {"retry-after": "999999"}, timedelta(days=1)),
        (500, {}, BACK_OFF[0]),
        (302, {"location": "https://elsewhere.example/"}, BACK_OFF[0]),
        (404, {}, ABSENT),
    ],
)
async def test_a_vendor_that_refuses_is_left_alone(
    store: Store, anchors: Path, status: int, headers: dict[str, str], pause: timedelta
) -> None:
    """For as long as it says, else for a pause that grows; in every process."""
    vendors, clock = Vendors(), HeldClock(AT)
    vendors.status, vendors.headers = status, headers
    async with process(store, anchors, vendors, clock) as one, process(store, anchors, vendors, clock) as two:
        await one.fetch([NAME])
        await two.fetch([NAME])
        assert vendors.asked.total() == 1
        known = await store.read(lambda tx: tx.collateral.get(NAME))
        assert known is not None
        assert known.ask_at == AT + pause
        clock.advance(pause.total_seconds() - 1)
        await two.fetch([NAME])
        assert vendors.asked.total() == 1
        clock.advance(1)
        await two.fetch([NAME])
        assert vendors.asked.total() == 2
        known = await store.read(lambda tx: tx.collateral.get(NAME))
        assert known is not None
        assert known.ask_at - clock.now() == (2 * BACK_OFF[0] if pause == BACK_OFF[0] else pause)
        vendors.status = 200
        clock.advance(86_400)
        assert await one.fetch([NAME])
        assert await missing(one, store) == NEEDED - {NAME}


async def test_waiting_is_bounded_and_what_comes_later_serves_the_next(store: Store, anchors: Path) -> None:
    """Whoever asked first does not wait for ever; an answer of no end is cut."""
    vendors = Vendors()
    vendors.pause = 0.3
    async with process(store, anchors, vendors, collateral_wait_seconds=0.01) as collateral:
        assert not await collateral.fetch([NAME])
        async with asyncio.timeout(60):
            while NAME in await missing(collateral, store):  # noqa: ASYNC110 -- nothing tells of it
                await asyncio.sleep(0.02)
        vendors.pause = 0
        vendors.answers["crl/amd-Genoa.der"] = bytes(2 << 20)
        await collateral.fetch(["crl/amd-Genoa.der"], wait_seconds=5)
        known = await store.read(lambda tx: tx.collateral.get("crl/amd-Genoa.der"))
        assert known is not None
        assert "longer" in str(known.failure)


async def test_it_is_refreshed_at_half_of_its_time(store: Store, anchors: Path) -> None:
    """Before it bites; what is expired is missing, and says so."""
    vendors, clock = Vendors(), HeldClock(AT)
    info = "tdx/90C06F000000/tcb-info.json"
    async with process(store, anchors, vendors, clock) as collateral:
        await collateral.fetch([info])
        known = await store.read(lambda tx: tx.collateral.get(info))
        assert known is not None
        assert known.expires_at == ISSUED + timedelta(days=30)
        assert known.ask_at == ISSUED + timedelta(days=15)
        assert await collateral.refresh() == 0
        clock.advance(3 * 86_400)
        assert await collateral.refresh() == 1
        assert vendors.asked.total() == 2
        assert info not in await missing(collateral, store)
        assert info in await missing(collateral, store, ISSUED + timedelta(days=31))


@pytest.mark.threat("T203")
async def test_a_folder_serves_where_nothing_may_be_asked(
    store: Store, anchors: Path, tmp_path: Path
) -> None:
    """The newer of folder and database counts; what is no collateral there is not believed."""
    folder = tmp_path / "air-gap"
    for name, data in GOOD.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    (folder / "crl/amd-Genoa.der").write_bytes(GENOA.pki.crl(at=AT))
    async with process(
        store, anchors, Vendors(), collateral_fetch=False, collateral_dir=folder
    ) as collateral:
        assert await missing(collateral, store) == set()
        older = verify_item("crl/amd-Genoa.der", GENOA.pki.crl(), collateral.trusted)
        await store.write(lambda tx: collateral.put(tx, older, "import", AT))
        found = await store.read(lambda tx: collateral.get(tx, "crl/amd-Genoa.der"))
        assert found is not None
        assert found.begins == AT
    (folder / NAME).write_bytes(bytes(100))
    async with process(
        store, anchors, Vendors(), collateral_fetch=False, collateral_dir=folder
    ) as collateral:
        assert await missing(collateral, store) == {NAME}


@pytest.mark.threat("T204")
async def test_a_production_start_refuses_software(anchors: Path, tmp_path: Path) -> None:
    """Anchors of a test kit need the setting for development, are warned of, and nothing else passes for them."""
    with pytest.raises(ValidationError, match="ITL_TPM_ALLOW_SIMULATOR"):
        Settings(tee_test_anchors=anchors)
    assert any("ITL_TEE_TEST_ANCHORS" in warning for warning in settings(anchors).weakened())
    found = load_anchors(anchors)
    assert found.amd[Product.GENOA].is_for_tests
    assert not found.amd[Product.MILAN].is_for_tests
    assert found.intel == shared_pki().root
    assert not any(line.is_for_tests for line in load_anchors(None).amd.values())
    genuine = tmp_path / "genuine.pem"
    genuine.write_text(pem("CERTIFICATE", load_anchors(None).intel), encoding="ascii")
    alone = tmp_path / "alone.pem"
    alone.write_text(pem("CERTIFICATE", GENOA.pki.ark), encoding="ascii")
    (tmp_path / "empty").mkdir()
    for path in (genuine, alone, tmp_path / "absent.pem", tmp_path / "empty"):
        with pytest.raises(SettingsInvalid, match="ITL_TEE_TEST_ANCHORS"):
            load_anchors(path)


async def test_what_expires_is_told_before_it_bites(store: Store, anchors: Path) -> None:
    """By `doctor` a week before, in numbers always."""
    listen = Listen(host="127.0.0.1", port=0, uds=None)

    def told(at: datetime, found: Mapping[str, datetime]) -> list[tuple[str, str]]:
        case = Case(
            settings=settings(anchors), listen=listen, at=at, facts=replace(NOTHING, collateral=found)
        )
        return [
            (each.level.value, each.what.partition(":")[0].partition(" ")[0])
            for each in collateral_part(case)
        ]

    assert told(AT, {}) == [("ok", "none")]
    assert list(collateral_part(Case(settings=settings(anchors), listen=listen, at=AT))) == []
    async with process(store, anchors, Vendors()) as collateral:
        await collateral.fetch(NEEDED)
    found = await store.read(lambda tx: tx.collateral.expiring())
    assert set(found) == {"vcek", "crl", "tcb-info", "qe-identity"}
    assert found["tcb-info"] == ISSUED + timedelta(days=30)
    assert {level for level, _ in told(AT, found)} == {"ok"}
    soon = {kind: level for level, kind in told(ISSUED + timedelta(days=24), found)}
    assert (soon["tcb-info"], soon["vcek"]) == ("warning", "ok")
    over = {kind: level for level, kind in told(ISSUED + timedelta(days=31), found)}
    assert over["tcb-info"] == "warning"


@pytest.mark.threat("T203")
async def test_a_cache_that_lags_takes_nothing_back(store: Store, anchors: Path) -> None:
    """An older list, genuine too, does not replace a newer one, and is not asked for again at once."""
    vendors, name = Vendors(), "crl/amd-Genoa.der"
    async with process(store, anchors, vendors) as collateral:
        newer = verify_item(name, GENOA.pki.crl(at=AT - timedelta(days=1)), collateral.trusted)
        await store.write(lambda tx: collateral.put(tx, newer, "import", AT - timedelta(days=1000)))
        await store.write(lambda tx: tx.collateral.later(name, AT))
        assert await collateral.refresh() == 1
        kept = await store.read(lambda tx: tx.collateral.get(name))
        assert kept is not None
        assert (kept.data, kept.failure, kept.ask_at) == (newer.data, None, AT + BACK_OFF[1])


@pytest.mark.threat("T201")
async def test_what_never_came_is_not_refreshed_and_is_forgotten(store: Store, anchors: Path) -> None:
    """A chip that a stranger made up costs one request, and a row for a day."""
    vendors, clock = Vendors(), HeldClock(AT)
    vendors.status = 404
    async with process(store, anchors, vendors, clock) as collateral:
        await collateral.fetch([NAME])
        clock.advance(2 * ABSENT.total_seconds())
        assert await collateral.refresh() == 0
        assert vendors.asked.total() == 1
        clock.advance(86_400)
        await collateral.refresh()
        assert await store.read(lambda tx: tx.collateral.get(NAME)) is None


async def test_a_vendor_that_wants_fewer_requests_is_left_alone_for_all(store: Store, anchors: Path) -> None:
    """429 for one piece means the next one too."""
    vendors, clock = Vendors(), HeldClock(AT)
    vendors.status, vendors.headers = 429, {"retry-after": "60"}
    async with process(store, anchors, vendors, clock) as collateral:
        await collateral.fetch([NAME])
        await collateral.fetch(["crl/amd-Genoa.der"])
        assert vendors.asked.total() == 1
        vendors.status = 200
        clock.advance(60)
        assert await collateral.fetch(["crl/amd-Genoa.der"])
        assert vendors.asked.total() == 2
