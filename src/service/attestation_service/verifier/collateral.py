"""What vouches for confidential hardware: it came with the evidence, is kept, lies in a folder, or is asked for (§13).

A judgement reads what is there and never waits. What was missing is asked for after it, by one process of all that
share the database, and the judgement is made again; what does not come in time leaves it undecided, and the machine
comes back soon. Nothing is believed for where it lay: each piece is verified under the pinned anchors when it is stored
and when it is loaded, and its time is judged with the evidence.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import structlog

from attestation import tee_bundle
from attestation.appraisal.azure_hcl import UnverifiedAzureHCL
from attestation.appraisal.svsm import UnverifiedSVSM
from attestation.clock import Clock
from attestation.endorsements import amd, nvidia
from attestation.endorsements import collateral as items
from attestation.endorsements.amd import Product, parse_line
from attestation.endorsements.amd.lines import TEST_ONLY
from attestation.endorsements.amd.products import product_of
from attestation.endorsements.certificate import parse_certificate
from attestation.endorsements.collateral import Item, Trusted
from attestation.errors import AttestationError, CollateralInvalid
from attestation.evidence import dcap, sev_snp
from attestation.store import Store, StoredCollateral, Tx
from attestation.wire import pem_blocks
from attestation_service.settings import Settings, SettingsInvalid

if TYPE_CHECKING:
    import httpx

log = structlog.get_logger("attestation_service.collateral")

ASKING_SECONDS: Final = 20.0
"""So long nobody else asks for what somebody asked for."""
LOOK_SECONDS: Final = 0.1
REMEMBERED_SECONDS: Final = 60.0
"""So long a process goes by what it loaded before it looks again."""
REMEMBERED: Final = 4096
ABSENT: Final = timedelta(hours=1)
"""After a vendor said that there is none."""
BACK_OFF: Final = (timedelta(seconds=10), timedelta(hours=1))
"""The first and the longest pause after a failure; each is twice the one before."""
MAX_CHAIN_HEADER: Final = 16_384
FORGOTTEN: Final = timedelta(days=1)
"""So long after it might be asked for again what never came is forgotten."""
REFRESHED_AT_ONCE: Final = 20


def load_anchors(path: Path | None) -> tee_bundle.Anchors:
    """Return the pinned anchors of vendors, and those of a test kit beside them.

    Args:
        path: A PEM file or a folder of them, each certificate named TEST ONLY; None outside of tests.

    Raises:
        BundleInvalid: The installation is damaged.
        SettingsInvalid: What is there is no anchor of a test kit.
    """
    shipped = tee_bundle.load()
    if path is None:
        return shipped
    try:
        files = sorted(path.glob("*.pem")) if path.is_dir() else [path]
        blocks = [each for file in files for each in pem_blocks(file.read_bytes(), file.name)]
        found = [parse_certificate(content) for _, content in blocks]
        if not found or any(TEST_ONLY not in each.subject for each in found):
            raise SettingsInvalid("ITL_TEE_TEST_ANCHORS: certificates there are not named TEST ONLY")
        names = {name: each.der for each in found for name in amd.common_names(each)}
        lines = dict(shipped.amd)
        for product in Product:
            parts = {"ark": f"ARK-{product}", "ask": f"SEV-{product}", "asvk": f"SEV-VLEK-{product}"}
            if parts["ark"] in names:
                lines[product] = parse_line(product, **{part: names[name] for part, name in parts.items()})
        return tee_bundle.Anchors(
            lines,
            names.get("Intel SGX Root CA", shipped.intel),
            names.get("NVIDIA Device Identity CA", shipped.nvidia),
        )
    except (AttestationError, OSError, KeyError) as e:
        raise SettingsInvalid(f"ITL_TEE_TEST_ANCHORS: {e}") from e


class Collateral:
    """The collateral of a process: what it loaded, and what it asks for.

    Args:
        settings: Whether to ask, whom, and where a folder is.
        clock: Tells when to ask again.
        store: What all processes share.
        transport: How vendors are reached; tests hold their own.

    Raises:
        BundleInvalid: The pinned anchors are damaged.
        SettingsInvalid: Anchors of a test kit cannot be read.
    """

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        store: Store,
        *,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._settings, self._clock, self._store, self._transport = settings, clock, store, transport
        self.anchors: Final = load_anchors(settings.tee_test_anchors)
        self._root = parse_certificate(self.anchors.intel)
        self.trusted: Final = Trusted(lines=self.anchors.amd, intel_root=self._root)
        self._loaded: dict[str, tuple[float, Item | None]] = {}
        self._flights: dict[str, asyncio.Task[None]] = {}
        self._paused: dict[str, datetime] = {}
        self._http: httpx.AsyncClient | None = None

    async def aclose(self) -> None:
        """Ask nobody any more."""
        for task in list(self._flights.values()):
            task.cancel()
        await asyncio.gather(*self._flights.values(), return_exceptions=True)
        if self._http is not None:
            await self._http.aclose()

    def endorsements(self, tx: Tx, kind: str, evidence: Any) -> Any:
        """Return what is at hand for *evidence*, parsed, as its kind wants it.

        Args:
            tx: Reads what is kept.
            kind: Name of the kind.
            evidence: What its `parse` returned; None where none came.
        """

        def read(name: str) -> Item | None:
            return self.get(tx, name)

        kind, evidence = _carried(kind, evidence)
        if kind in ("tdx", "sgx"):
            key = dcap.wanted(evidence.quote, self._root) if evidence is not None else None
            return items.for_intel(self._root, key, read)
        if kind == "sev_snp":
            product, vek = _of_amd(evidence)
            return items.for_amd(self.anchors.amd, product, vek, read)
        if kind == "gpu":
            return nvidia.endorsements(self.anchors.nvidia)
        return self.anchors

    def missing(self, tx: Tx, kind: str, evidence: Any, at: datetime) -> tuple[str, ...]:
        """Return the names of what *evidence* needs and is not at hand, or not current at *at*."""
        kind, evidence = _carried(kind, evidence)
        if evidence is None:
            return ()
        names: tuple[str, ...] = ()
        if kind in ("tdx", "sgx"):
            key = dcap.wanted(evidence.quote, self._root)
            names = items.needed_by_intel(key) if key is not None else ()
        elif kind == "sev_snp":
            names = items.needed_by_amd(*_of_amd(evidence))
        return tuple(name for name in names if not self._is_at_hand(tx, name, at))

    def _is_at_hand(self, tx: Tx, name: str, at: datetime) -> bool:
        item = self.get(tx, name)
        if item is not None and not item.is_current(at):
            # Another process may have stored a newer one.
            self._loaded.pop(name, None)
            item = self.get(tx, name)
        return item is not None and item.is_current(at)

    def get(self, tx: Tx, name: str) -> Item | None:
        """Return what is kept under *name*, in the database or the folder; None where nothing that verifies is."""
        now = time.monotonic()
        known = self._loaded.get(name)
        if known is not None and known[0] > now:
            return known[1]
        stored = tx.collateral.get(name)
        item = self.verified(name, stored.data if stored is not None else None)
        offline = self.verified(name, self._offline(name))
        if offline is not None and (item is None or offline.begins > item.begins):
            item = offline
        if len(self._loaded) >= REMEMBERED:
            self._loaded.clear()
        if item is not None:
            # What is absent is looked for each time: another process may have stored it a moment ago.
            self._loaded[name] = (now + REMEMBERED_SECONDS, item)
        return item

    def verified(self, name: str, data: bytes | None) -> Item | None:
        """Return what *data* under *name* is; None where nothing is, or nobody whom we pinned vouches for it."""
        if data is None:
            return None
        try:
            return items.verify_item(name, data, self.trusted)
        except CollateralInvalid as e:
            log.error("collateral.not_believed", name=name, reason=str(e))  # noqa: TRY400 -- the reason says all
            return None

    def _offline(self, name: str) -> bytes | None:
        folder = self._settings.collateral_dir
        if folder is None:
            return None
        with contextlib.suppress(OSError):
            path = folder / name
            if path.stat().st_size <= items.MAX_ITEM_BYTES:
                return path.read_bytes()
        return None

    def put(self, tx: Tx, item: Item, source: str, at: datetime) -> None:
        """Keep a verified piece, and look for the next one when half of its time is over."""
        half = item.begins + (item.expires - item.begins) / 2
        tx.collateral.put(
            StoredCollateral(
                name=item.name,
                data=item.data,
                source=source,
                stored_at=at,
                begins_at=item.begins,
                expires_at=item.expires,
                ask_at=max(half, at + BACK_OFF[1]),
                failure=None,
                failures=0,
            )
        )
        self._loaded.pop(item.name, None)

    def put_newer(self, tx: Tx, item: Item, source: str, at: datetime) -> bool:
        """Keep it if it is newer than what is kept: a cache that lags takes nothing back; True if it was."""
        known = tx.collateral.get(item.name)
        held = self.verified(item.name, known.data) if known is not None else None
        if held is not None and held.begins >= item.begins:
            tx.collateral.later(item.name, at + BACK_OFF[1])
            return False
        self.put(tx, item, source, at)
        return True

    async def fetch(self, names: Iterable[str], *, wait_seconds: float | None = None) -> bool:
        """Ask for *names*, each once among all processes, and wait for them a bounded time.

        Returns:
            True where anything came.
        """
        if not self._settings.collateral_fetch:
            return False
        tasks = []
        for name in names:
            task = self._flights.get(name)
            if task is None:
                task = self._flights[name] = asyncio.create_task(self._ask_once(name))
                task.add_done_callback(partial(self._landed, name))
            tasks.append(task)
        if not tasks:
            return False
        limit = self._settings.collateral_wait_seconds if wait_seconds is None else wait_seconds
        done, _ = await asyncio.wait(tasks, timeout=limit)
        return any(not task.cancelled() and task.exception() is None for task in done)

    def _landed(self, name: str, task: asyncio.Task[None]) -> None:
        self._flights.pop(name, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            # The database, mostly: whoever waits judges without, and comes back.
            log.error("collateral.not_asked_for", name=name, kind=type(error).__name__)

    async def _ask_once(self, name: str) -> None:
        """Ask for one piece, or wait until whoever asks for it has it."""
        at = self._clock.now()
        vendor = items.source_of(name).vendor
        host = urlsplit(self._url(vendor)).netloc
        until = at + timedelta(seconds=ASKING_SECONDS)
        if self._paused.get(host, at) > at:
            return
        if await self._store.write(lambda tx: tx.collateral.claim(name, host, at, until)):
            await self._ask(name, host)
            return
        before = await self._store.read(lambda tx: tx.collateral.get(name))
        end = time.monotonic() + ASKING_SECONDS
        # Somebody asks now; a pause after a failure is longer, or says why.
        while (
            before is not None
            and before.failure is None
            and before.ask_at <= until
            and time.monotonic() < end
        ):
            known = await self._store.read(lambda tx: tx.collateral.get(name))
            if known is None or (known.stored_at, known.failures) != (before.stored_at, before.failures):
                return
            await asyncio.sleep(LOOK_SECONDS)

    async def _ask(self, name: str, host: str) -> None:
        at = self._clock.now()
        try:
            # In all: a host that drips keeps nobody.
            async with asyncio.timeout(ASKING_SECONDS):
                data = await self._answer(name)
            item = items.verify_item(name, data, self.trusted)
        except _Refused as e:
            pause, why = e.pause, str(e)
            if e.leave_alone:
                self._paused[host] = at + (pause or BACK_OFF[0])
        except (CollateralInvalid, OSError, TimeoutError) as e:
            pause, why = None, f"{type(e).__name__}: {e}"[:200]
        else:
            newer = await self._store.write(lambda tx: self.put_newer(tx, item, host, at))
            log.info(
                "collateral.stored" if newer else "collateral.not_newer",
                name=name,
                source=host,
                expires=item.expires.isoformat(),
            )
            return
        log.warning("collateral.not_fetched", name=name, source=host, reason=why)

        def note(tx: Tx) -> None:
            known = tx.collateral.get(name)
            failures = known.failures if known is not None else 0
            waits = pause if pause is not None else min(BACK_OFF[0] * 2 ** min(failures, 20), BACK_OFF[1])
            tx.collateral.failed(name, why, at + waits)

        await self._store.write(note)

    async def _answer(self, name: str) -> bytes:
        """Return what the vendor answers, in the form in which it is kept.

        Raises:
            _Refused: It does not have it, or wants to be left alone.
            CollateralInvalid: The answer cannot be read.
            OSError, TimeoutError: It cannot be reached.
        """
        import httpx  # here: without asking, no worker needs it

        source = items.source_of(name)
        if self._http is None:
            self._http = httpx.AsyncClient(
                timeout=ASKING_SECONDS / 2, follow_redirects=False, trust_env=False, transport=self._transport
            )
        body, size = [], 0
        try:
            async with self._http.stream("GET", self._url(source.vendor).rstrip("/") + source.path) as answer:
                if answer.status_code != httpx.codes.OK:
                    raise _Refused(answer.status_code, answer.headers)
                async for part in answer.aiter_bytes():
                    size += len(part)
                    if size > items.MAX_ITEM_BYTES:
                        raise CollateralInvalid(
                            f"{name}: the answer is longer than {items.MAX_ITEM_BYTES} bytes"
                        )
                    body.append(part)
                chain = answer.headers.get(source.chain_header, "") if source.chain_header else ""
        except (httpx.HTTPError, httpx.InvalidURL) as e:
            raise OSError(f"{type(e).__name__}: {e}") from e
        if len(chain) > MAX_CHAIN_HEADER:
            raise CollateralInvalid(f"{name}: the chain of its signer is too long")
        return items.kept_form(name, b"".join(body), chain)

    def _url(self, vendor: str) -> str:
        return self._settings.amd_kds_url if vendor == "amd" else self._settings.intel_pcs_url

    async def refresh(self) -> int:
        """Ask again for some of what is due, one process for all; return how many were asked for."""
        if not self._settings.collateral_fetch:
            return 0
        at = self._clock.now()
        await self._store.write(lambda tx: tx.collateral.forget(at - FORGOTTEN))
        due = await self._store.read(lambda tx: tx.collateral.due(at, REFRESHED_AT_ONCE))
        await self.fetch(due, wait_seconds=ASKING_SECONDS)
        return len(due)


class _Refused(Exception):
    """A vendor answered, and not with what was asked for."""

    def __init__(self, status: int, headers: Mapping[str, str]) -> None:
        super().__init__(f"HTTP {status}")
        wanted = headers.get("retry-after", "")
        self.pause: timedelta | None = None
        self.leave_alone = status == 429
        if status == 404:
            self.pause = ABSENT
        elif re.fullmatch(r"[0-9]{1,6}", wanted):
            self.pause = min(max(timedelta(seconds=int(wanted)), BACK_OFF[0]), timedelta(days=1))


def _carried(kind: str, evidence: Any) -> tuple[str, Any]:
    """Return the kind that is vouched for, and its evidence: what a vTPM carries, else what came."""
    if isinstance(evidence, UnverifiedAzureHCL | UnverifiedSVSM):
        return evidence.kind, evidence.carried
    return kind, evidence


def _of_amd(evidence: Any) -> tuple[Product | None, amd.VEKKey | None]:
    """Return line and VCEK of a report; of a version that does not say its line the line of the VEK that came."""
    if not isinstance(evidence, sev_snp.UnverifiedSevSnp):
        return None, None
    report = evidence.report
    product = product_of(report.cpuid_family, report.cpuid_model)
    if product is None and evidence.vek is not None:
        with contextlib.suppress(AttestationError):
            product = amd.parse_vek(evidence.vek).product
    return product, sev_snp.wanted(evidence)
