"""Asking for a key that is handed over: the key that wraps, a nonce, evidence, and the QuoteAttestation of all three.

Each is looked up first: of the key that wraps by its label, of the QuoteAttestation by its name. A nonce that no
QuoteAttestation took is used again: a program that makes no evidence would otherwise use up those of a day.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from attestation.api.hsm import HSMNonceRequest
from attestation.errors import AttestationError
from attestation.quote import Purpose
from attestation.quote.envelope import NONCE_BYTES
from attestation.report_data import quote_binding
from attestation.wire import b64decode
from attestation_operator.controller import Around
from attestation_operator.crds.hsm import HardwareSecurityModuleSpec
from attestation_operator.durations import parse_duration
from attestation_operator.hsm.evidence import Collectors
from attestation_operator.hsm.issuers import Answer, Ask, Quotes
from attestation_operator.hsm.keks import KEKs, kek_label
from attestation_operator.hsm.objects import Issuer
from attestation_operator.hsm.offers import ISSUER_UID, asked_of, offered, quote_key
from attestation_operator.hsm.service import QuoteService
from attestation_operator.hsm.tokens import OnThread
from attestation_operator.objects import QUOTE_ATTESTATION


class Offering:
    """Answers what an issuer that waits for its key asks.

    Args:
        around: What a controller is given.
        service: Gives nonces.
        keks: Keys that wrap.
        collectors: Make evidence.
        on_thread: Where tokens are asked.
    """

    def __init__(
        self,
        around: Around,
        service: QuoteService,
        keks: KEKs,
        collectors: Collectors,
        on_thread: OnThread,
    ) -> None:
        self._around = around
        self._service = service
        self._keks = keks
        self._collectors = collectors
        self._on_thread = on_thread
        self._nonces: dict[tuple[str, int], tuple[bytes, datetime]] = {}

    @property
    def own_namespace(self) -> str:
        """The controller's: QuoteAttestations of issuers of the whole cluster are there."""
        return self._around.settings.lease_namespace

    async def answer(self, ask: Ask, issuer: Issuer, token: HardwareSecurityModuleSpec) -> Answer:
        """Return the answer to one question.

        Raises:
            AttestationError: There is none.
        """
        match ask:
            case Ask.OFFERED:
                raw = await self._around.cluster.read(quote_key(issuer, self.own_namespace))
                return Quotes(found=() if raw is None else (raw,))
            case Ask.OFFER:
                return await self._offer(issuer, token)
            case _:
                await self._on_thread(lambda: self._keks.destroy_all(token, issuer.uid))
                return True

    async def all_of(self, issuer: Issuer) -> Answer:
        """Return all QuoteAttestations of an issuer, or why they cannot be listed."""
        try:
            found = await self._around.cluster.list(
                QUOTE_ATTESTATION,
                namespace=issuer.target.namespace or self.own_namespace,
                labels={ISSUER_UID: issuer.uid},
            )
        except AttestationError as e:
            return e
        return Quotes(found=tuple(found))

    async def _offer(self, issuer: Issuer, token: HardwareSecurityModuleSpec) -> dict[str, Any]:
        asked = asked_of(issuer)
        # 1. What cannot come to an end is not begun.
        self._collectors.demand(asked.evidence)
        # 2. The key that wraps.
        label = kek_label(issuer.uid, issuer.generation)
        spki: bytes = await self._on_thread(lambda: self._keks.make(token, label, asked.oaep_hash))
        # 3. Evidence of it, fresh for this issuer and purpose.
        nonce, until = await self._nonce(issuer)
        binding = quote_binding(asked.evidence.type, Purpose.KEY_PROVISIONING, issuer.uid, nonce, spki)
        evidence = await self._collectors.collect(asked.evidence, binding)
        self._nonces.pop((issuer.uid, issuer.generation), None)
        return offered(
            issuer,
            quote_key(issuer, self.own_namespace),
            spki=spki,
            nonce=nonce,
            until=until,
            evidence=evidence,
        )

    async def _nonce(self, issuer: Issuer) -> tuple[bytes, datetime]:
        asked = asked_of(issuer)
        wanted = parse_duration(asked.valid_for)
        edition = issuer.uid, issuer.generation
        known = self._nonces.get(edition)
        # One that is used again leaves at least half of the time that was asked for.
        if known is not None and known[1] - self._around.clock.now() >= wanted / 2:
            return known
        policy = asked.evidence_policy_ref
        given = await self._service.nonce(
            HSMNonceRequest(
                purpose="KeyProvisioning",
                signer_uid=issuer.uid,
                evidence_type=asked.evidence.type,  # type: ignore[arg-type]  # `null` is collected by nobody
                policy=policy.name if policy is not None else None,
                valid_for_seconds=int(wanted.total_seconds()),
            )
        )
        known = b64decode(given.nonce, "nonce", max_bytes=NONCE_BYTES), given.expires_at
        self._nonces[edition] = known
        return known
