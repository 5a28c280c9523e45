"""Issuing: reserve, rehearse, sign, write down (HSM-AND-KUBERNETES §7.4). All that wait in one moment go together.

A serial number is durable before anything is signed, and a certificate before anybody is given it. A process that ends
in between is asked again for the same request: it gets the same serial number, or the certificate itself.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from pydantic import ValidationError

from attestation.api.hsm import MAX_BATCH, HSMIssuedCertificate, HSMRequest, HSMReservedSerial
from attestation.errors import AttestationError, CertificateUnknown, HSMDiffers, RequestRefused, Unavailable
from attestation.hsm import RequestKind
from attestation.pki.leaf import LeafContent, make_leaf
from attestation.wire import b64decode, b64encode
from attestation_operator.errors import AnswerInvalid, IssuerBusy, NotRecorded
from attestation_operator.hsm.answers import checked_again, checked_reserved, serial_of_answer
from attestation_operator.hsm.authority import Authority
from attestation_operator.hsm.service import HSMService
from attestation_operator.hsm.tokens import OnThread

T = TypeVar("T")

MAX_WAITING: Final = 2_000
"""Requests that wait for one CA; more are told that nothing was decided."""
REMEMBERED: Final = 50_000
"""Serial numbers of which it is known whose they are, the newest: a process that begins anew knows none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A certificate that is to be issued.

    Args:
        uid: Of the request: it has one serial number for good.
        kind: Of the request.
        namespace: Where it is; None of the cluster.
        name: Of the request.
        requester: Who made it.
        content: What the certificate will say.
    """

    uid: str
    kind: RequestKind
    namespace: str | None
    name: str
    requester: str
    content: LeafContent

    @property
    def wire(self) -> HSMRequest:
        """As the service is told."""
        content = self.content
        return HSMRequest(
            request_uid=self.uid,
            kind=self.kind,
            namespace=self.namespace,
            name=self.name,
            spki_sha256=content.spki_sha256,
            subject=content.subject.rfc4514_string(),
            names=tuple(content.alternative_names),
            is_ca=content.is_ca,
            requester=self.requester[:1024],
            not_before=content.not_before,
            not_after=content.not_after,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Waiting:
    """An order with its CA, as the log is told of it, and who waits for the certificate."""

    authority: Authority
    order: Order
    said: HSMRequest
    done: asyncio.Future[bytes]


class Issuance:
    """Issues certificates, of each CA in batches.

    Args:
        service: Keeps what is reserved and issued.
        on_thread: Has done what blocks: a token signs.
    """

    def __init__(self, service: HSMService, on_thread: OnThread) -> None:
        self._service = service
        self._on_thread = on_thread
        self._waiting: dict[str, deque[_Waiting]] = {}
        self._busy: dict[str, asyncio.Task[None]] = {}
        self._owners: dict[int, str] = {}

    async def issue(self, authority: Authority, order: Order) -> bytes:
        """Return the certificate for *order*, DER; the same each time.

        Raises:
            AttestationError: What hindered it; nothing was given to anybody.
        """
        try:
            said = order.wire
        except ValidationError as e:
            # One that cannot be written down must not take with it those that wait beside it.
            raise RequestRefused("name-invalid", "a name that the log cannot keep") from e
        name = authority.issuer_id
        waiting = self._waiting.setdefault(name, deque())
        if len(waiting) >= MAX_WAITING:
            raise IssuerBusy(f"{len(waiting)} requests wait for this CA")
        done: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        waiting.append(_Waiting(authority=authority, order=order, said=said, done=done))
        if name not in self._busy:
            self._busy[name] = asyncio.create_task(self._work(name), name=f"issuance {name}")
        return await done

    async def _work(self, name: str) -> None:
        """Issue what waits, batch after batch; what comes meanwhile is the next batch."""
        waiting = self._waiting[name]
        try:
            while waiting:
                batch = [waiting.popleft() for _ in range(min(len(waiting), MAX_BATCH))]
                batch = [each for each in batch if not each.done.done()]
                if batch:
                    await self._batch(batch)
        finally:
            del self._busy[name]
            for each in waiting:
                each.done.cancel()
            waiting.clear()

    async def _batch(self, batch: list[_Waiting]) -> None:
        results: Sequence[bytes | Exception]
        try:
            results = await self._issued(batch)
        except Exception as e:  # noqa: BLE001 -- the border of a batch: each who waits is told, and the next one goes on
            # One that the service refuses, or that is a fault of ours, must not take the others with it.
            if len(batch) > 1 and not isinstance(e, Unavailable):
                for each in batch:
                    await self._batch([each])
                return
            results = [e] * len(batch)
        except BaseException:
            for each in batch:
                each.done.cancel()
            raise
        for each, result in zip(batch, results, strict=True):
            if each.done.done():
                continue
            if isinstance(result, bytes):
                each.done.set_result(result)
            else:
                each.done.set_exception(result)

    async def _issued(self, batch: list[_Waiting]) -> list[bytes | AttestationError]:
        """Return a certificate for each order, or what hindered it."""
        issuer_id = batch[0].authority.issuer_id
        # 1. Durable serial numbers; or what was issued for the same request before.
        reserved = await self._service.reserve(issuer_id, [each.said for each in batch])
        by_uid = checked_reserved(reserved, [each.order.uid for each in batch])
        for uid, each_reserved in by_uid.items():
            self._demand_own(serial_of_answer(each_reserved.serial), uid)
        # 2. Rehearsed, linted, signed once each: in one turn of the thread.
        results: list[bytes | AttestationError] = await self._on_thread(
            lambda: [_certificate(each.authority, each.order, by_uid.get(each.order.uid)) for each in batch]
        )
        # 3. Written down before anybody has it.
        fresh = [
            HSMIssuedCertificate(request_uid=each.order.uid, certificate=b64encode(result))
            for each, result in zip(batch, results, strict=True)
            if isinstance(result, bytes) and by_uid[each.order.uid].certificate is None
        ]
        if fresh:
            try:
                recorded = {each.request_uid for each in await self._service.record(issuer_id, fresh)}
            except (CertificateUnknown, HSMDiffers) as e:
                if len(batch) > 1:
                    raise
                # Given up meanwhile, or another controller was quicker: asked again, the log says which.
                raise NotRecorded(f"its serial number was used or given up meanwhile: {e.code}") from e
            if missing := {each.request_uid for each in fresh} - recorded:
                raise NotRecorded(f"{len(missing)} certificates were not written down")
        return results

    def _demand_own(self, serial: int, uid: str) -> None:
        """Check that no other request has this serial number: of two certificates both would end with one.

        Raises:
            AnswerInvalid: One has.
        """
        if self._owners.setdefault(serial, uid) != uid:
            raise AnswerInvalid("a serial number that another request has")
        if len(self._owners) > REMEMBERED:
            del self._owners[next(iter(self._owners))]


def _certificate(
    authority: Authority, order: Order, reserved: HSMReservedSerial | None
) -> bytes | AttestationError:
    if reserved is None:
        return NotRecorded("the service reserved no serial number for this request")
    try:
        serial = serial_of_answer(reserved.serial)
        if reserved.certificate is not None:
            again = b64decode(reserved.certificate, "the certificate")
            return checked_again(again, order.content, serial=serial, ca=authority.ca)
        return make_leaf(
            order.content,
            serial=serial,
            ca=authority.ca,
            key=authority.key,
            above=authority.chain,
            crl_url=authority.crl_url,
            ocsp_url=authority.ocsp_url,
            ca_url=authority.ca_url,
        )
    except AttestationError as e:
        return e
