"""The controller of QuoteAttestations: it gathers what a decision rests on, asks token, cluster and service.

Those of one issuer are looked at one after the other: what one brings into the token another must not clean away.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

from attestation.api.hsm import QuoteAttestationPut
from attestation.errors import AttestationError
from attestation.quote import Purpose
from attestation_operator.controller import Around, Round
from attestation_operator.crds.hsm import HardwareSecurityModuleSpec
from attestation_operator.hsm import quotes
from attestation_operator.hsm.controllers import MAX_TURNS
from attestation_operator.hsm.keks import KEKs, kek_label
from attestation_operator.hsm.objects import (
    AGAIN_SECONDS,
    ISSUER_KINDS,
    Absent,
    Issuer,
    Module,
    read_issuer,
    read_module,
)
from attestation_operator.hsm.offers import Quote, read_quote
from attestation_operator.hsm.quote_cases import (
    Answer,
    Ask,
    Case,
    Done,
    Looked,
    is_loaded,
)
from attestation_operator.hsm.service import QuoteService
from attestation_operator.hsm.tokens import KeyName, OnThread, Tokens
from attestation_operator.objects import GROUP, QUOTE_ATTESTATION, SECRET, Key, Kind, Raw


def turn_of(raw: Raw) -> tuple[str, str]:
    """Return what a QuoteAttestation takes turns with: those of its issuer in its namespace, or itself alone.

    Whoever names the issuer of another namespace, or brings evidence of requests, keeps nobody waiting.
    """
    spec, metadata = raw.get("spec") or {}, raw["metadata"]
    signer = (spec.get("signerRef") or {}).get("uid")
    asks = spec.get("purpose") == Purpose.KEY_PROVISIONING
    return str(metadata.get("namespace")), str(signer if asks else metadata["uid"])


class Quotes:
    """Takes QuoteAttestations to their end.

    Args:
        around: What a controller is given.
        tokens: The tokens.
        keks: Keys that wrap on them.
        service: Judges, and keeps what became of each.
        on_thread: Where tokens are asked.
        wake: Looks at an issuer, whose key is there by now, or will not come.
    """

    name = "quotes"

    def __init__(
        self,
        around: Around,
        tokens: Tokens,
        keks: KEKs,
        service: QuoteService,
        on_thread: OnThread,
        wake: Callable[[Key, Raw | None], Awaitable[float | None]],
    ) -> None:
        self._around = around
        self._tokens = tokens
        self._keks = keks
        self._service = service
        self._on_thread = on_thread
        self._wake = wake
        self._turns: dict[tuple[str, str], asyncio.Lock] = {}
        self._waiting: Counter[tuple[str, str]] = Counter()

    @property
    def watches(self) -> Sequence[Kind]:
        """QuoteAttestations."""
        return (QUOTE_ATTESTATION,)

    @property
    def rounds(self) -> Sequence[Round]:
        """None: each says when it is to be looked at again."""
        return ()

    async def handle(self, key: Key, seen: Raw | None) -> float | None:
        """Look at one QuoteAttestation."""
        raw = seen if seen is not None else await self._around.cluster.read(key)
        if raw is None:
            return None
        turn = turn_of(raw)
        self._waiting[turn] += 1
        try:
            async with self._turns.setdefault(turn, asyncio.Lock()):
                return await self._looked(key)
        finally:
            self._waiting[turn] -= 1
            if not self._waiting[turn]:
                del self._waiting[turn], self._turns[turn]

    async def _looked(self, key: Key) -> float | None:
        for _ in range(MAX_TURNS):
            raw = await self._around.cluster.read(key)
            if raw is None:
                return None
            quote = read_quote(raw)
            issuer = await self._issuer(quote)
            looked = await self._look(quote, issuer)
            await self._around.executor.apply(looked.actions)
            if looked.actions and issuer is not None:
                await self._tell_issuer(issuer)
            if not looked.again:
                return looked.after
        self._around.log.error("quote.goes_round", name=str(key))
        return AGAIN_SECONDS

    async def _tell_issuer(self, issuer: Issuer) -> None:
        try:
            await self._wake(issuer.target.key, None)
        except AttestationError as e:
            # It is looked at again by itself.
            self._around.log.warning("issuer.not_woken", name=str(issuer.target), code=e.code, reason=str(e))

    async def _look(self, quote: Quote, issuer: Issuer | None) -> Looked:
        module = await self._module(issuer)
        answers: dict[Ask, Answer] = {}
        while True:
            case = Case(
                quote=quote,
                issuer=issuer,
                module=module,
                own_namespace=self._around.settings.lease_namespace,
                at=self._around.clock.now(),
                answers=answers,
            )
            looked = quotes.reconcile(case)
            if looked.ask is None:
                return looked
            try:
                answers[looked.ask] = await self._answer(looked, case)
            except AttestationError as e:
                self._around.log.info(
                    "quote.not_answered", name=str(quote.target), ask=looked.ask, code=e.code, reason=str(e)
                )
                answers[looked.ask] = e

    async def _issuer(self, quote: Quote) -> Issuer | None:
        """Return the issuer that it names, if that is the one of this UID."""
        if quote.spec is None:
            return None
        signer = quote.spec.signer_ref
        kind = ISSUER_KINDS.get(signer.kind)
        if kind is None or signer.group != GROUP:
            return None
        if kind.namespaced and signer.namespace != quote.target.namespace:
            return None
        namespace = signer.namespace if kind.namespaced else None
        raw = await self._around.cluster.read(Key(kind=kind, name=signer.name, namespace=namespace))
        if raw is None or raw["metadata"]["uid"] != signer.uid:
            return None
        return read_issuer(kind, raw)

    async def _module(self, issuer: Issuer | None) -> Module | None:
        """Return the token of an issuer, if it may use it."""
        if issuer is None or issuer.spec is None or issuer.hsm is None:
            return None
        raw = await self._around.cluster.read(issuer.hsm)
        module = None if raw is None else read_module(raw)
        return module if module is not None and module.is_for(issuer.target.namespace) else None

    async def _answer(self, looked: Looked, case: Case) -> Answer:
        quote, uid = case.quote, case.quote.target.uid
        match looked.ask:
            case Ask.JUDGE:
                assert quote.target.namespace is not None
                return await self._service.judge(
                    uid,
                    QuoteAttestationPut(
                        namespace=quote.target.namespace, name=quote.target.name, spec=dict(quote.raw)
                    ),
                )
            case Ask.SECRET:
                assert quote.spec is not None
                assert quote.spec.secret_ref is not None
                key = Key(kind=SECRET, name=quote.spec.secret_ref.name, namespace=quote.target.namespace)
                return await self._around.cluster.read(key) or Absent()
            case Ask.TELL_ACCEPTED | Ask.TELL_REJECTED | Ask.SPEND | Ask.TELL_END:
                assert looked.step is not None
                await self._service.tell(uid, looked.step)
                return Done()
            case _:
                answer: Answer = await self._on_thread(lambda: self._of_token(looked, case))
                return answer

    def _of_token(self, looked: Looked, case: Case) -> Answer:
        """Answer what the token knows, or do what it is to do. Blocks."""
        issuer, module = case.issuer, case.module
        assert issuer is not None
        assert module is not None
        assert module.spec is not None
        assert case.generation is not None
        token, kek = module.spec, kek_label(issuer.uid, case.generation)
        match looked.ask:
            case Ask.KEK:
                return self._keks.find(token, kek)
            case Ask.LOAD:
                assert looked.bundle is not None
                bundle = looked.bundle.bundle
                self._keks.load(
                    token,
                    issuer.uid,
                    kek,
                    bundle.blob,
                    oaep_hash=bundle.oaep_hash,  # type: ignore[arg-type]  # one of two words, by which it was read
                    chain=bundle.chain,
                    at=case.at,
                )
            case Ask.TEST:
                key = self._tokens.open(token, KeyName(label=issuer.uid))
                key.self_test(key.public_key)
            case _:
                self._clean(case, token, kek, issuer)
        return Done()

    def _clean(self, case: Case, token: HardwareSecurityModuleSpec, kek: str, issuer: Issuer) -> None:
        """Destroy the key that wraps, and what it brought into the token if that is not to be used."""
        if is_loaded(case.quote):
            self._keks.destroy_all(token, issuer.uid)
            return
        self._keks.destroy(token, kek)
        if issuer.status.get("caCertificate") is None:
            self._keks.discard(token, issuer.uid)
