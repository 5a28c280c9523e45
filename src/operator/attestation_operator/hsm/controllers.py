"""The controllers of HSM issuers: they gather what a decision rests on, ask token and service, have the result applied.

Nothing is remembered that matters: open keys and CAs are found again by label and certificate, and what was issued is
known to the service.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from attestation.api.hsm import HSMIssuer, HSMIssuerPut
from attestation.errors import AttestationError, IssuerUnknown
from attestation.wire import b64encode
from attestation_operator.controller import Around, Round
from attestation_operator.crds.hsm import HardwareSecurityModuleSpec
from attestation_operator.hsm import issuers, lists, modules
from attestation_operator.hsm.answers import checked_issuer
from attestation_operator.hsm.authority import Authority, chain_of, proven_ca, self_signed, subject_of
from attestation_operator.hsm.gauges import Gauges
from attestation_operator.hsm.issuers import Answer, Ask
from attestation_operator.hsm.objects import (
    AGAIN_SECONDS,
    Issuer,
    Module,
    hsm_of,
    label_of,
    older,
    read_issuer,
    read_module,
    seconds_of,
)
from attestation_operator.hsm.offering import Offering
from attestation_operator.hsm.rotating import Rotating
from attestation_operator.hsm.rotation import labels_of
from attestation_operator.hsm.service import HSMService
from attestation_operator.hsm.tokens import Tokens
from attestation_operator.objects import (
    HSM,
    HSM_CLUSTER_ISSUER,
    HSM_ISSUER,
    Key,
    Kind,
    Raw,
)

T = TypeVar("T")

TOKEN_THREADS: Final = 64
"""As many as objects are handled at once: those of a token that is slow wait for it, and for no other one."""
LISTS_SECONDS: Final = 15.0
"""Between two questions whether a list is due: so late a revocation is on it."""
KNOWN_SECONDS: Final = 300.0
"""How long an answer of the service about a CA is believed."""
MAX_TURNS: Final = 16


class Threads:
    """Where tokens are asked: never on the event loop."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(TOKEN_THREADS, thread_name_prefix="token")

    async def __call__(self, work: Callable[[], T]) -> T:
        """Return what *work* returns."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def close(self) -> None:
        """Take nothing any more."""
        self._pool.shutdown(wait=False, cancel_futures=True)


class Standing:
    """What the controllers of this process know together: the CAs that sign now, and the objects that were seen."""

    def __init__(self) -> None:
        self.authorities: dict[str, Authority] = {}
        self.issuers: dict[Key, Raw] = {}
        self.modules: dict[Key, Raw] = {}
        self.retiring: dict[str, Authority] = {}
        self.crl_numbers: dict[str, int] = {}
        self.known: dict[tuple[str, bytes], tuple[float, HSMIssuer | None]] = {}

    def published(self, issuer_id: str, status: Raw) -> None:
        """Learn of the newest list of a CA what a process before wrote down: no older one is signed."""
        if status.get("issuerID") == issuer_id:
            told = int(status.get("crlNumber") or 0)
            self.crl_numbers[issuer_id] = max(told, self.crl_numbers.get(issuer_id, 0))


class Modules:
    """Says of each HardwareSecurityModule whether it is there and signs.

    Args:
        around: What a controller is given.
        tokens: The tokens.
        standing: What is known together.
        threads: Where tokens are asked.
        wake: Looks at an issuer, whose token is ready by now, or no more.
        gauges: What a monitor is told.
    """

    name = "modules"

    def __init__(
        self,
        around: Around,
        tokens: Tokens,
        standing: Standing,
        threads: Threads,
        wake: Callable[[Key, Raw | None], Awaitable[float | None]],
        gauges: Gauges,
    ) -> None:
        self._wake = wake
        self._gauges = gauges
        self._around = around
        self._tokens = tokens
        self._standing = standing
        self._threads = threads

    @property
    def watches(self) -> Sequence[Kind]:
        """Tokens."""
        return (HSM,)

    @property
    def rounds(self) -> Sequence[Round]:
        """None: a token says how often it is looked at."""
        return ()

    async def handle(self, key: Key, seen: Raw | None) -> float | None:
        """Look at one token."""
        raw = seen if seen is not None else await self._around.cluster.read(key)
        if raw is None:
            self._standing.modules.pop(key, None)
            self._gauges.gone(key)
            return None
        before = self._standing.modules.get(key)
        self._standing.modules[key] = raw
        module = read_module(raw)
        if before is not None and modules.is_ready(read_module(before)) is not modules.is_ready(module):
            await self._wake_issuers(key)
        spec = module.spec
        found = None if spec is None else await self._threads(lambda: self._found(spec))
        self._gauges.ready(key, modules.is_good(found))
        await self._around.executor.apply(modules.reconcile(module, found, self._around.clock.now()))
        return None if spec is None else seconds_of(spec.health_check.interval)

    async def _wake_issuers(self, key: Key) -> None:
        """Have all issuers of a token looked at, side by side: one that waits for evidence delays no other."""
        found = [each for each, raw in self._standing.issuers.items() if hsm_of(raw.get("spec") or {}) == key]
        await asyncio.gather(*map(self._woken, found))

    async def _woken(self, issuer: Key) -> None:
        try:
            await self._wake(issuer, None)
        except AttestationError as e:
            # It is looked at again by itself.
            self._around.log.warning("issuer.not_woken", name=str(issuer), code=e.code, reason=str(e))

    def _found(self, spec: HardwareSecurityModuleSpec) -> modules.Found:
        try:
            facts = self._tokens.facts(spec)
        except AttestationError as e:
            return modules.Found(facts=e)
        try:
            return modules.Found(facts=facts, signed=self._tokens.test(spec))
        except AttestationError as e:
            return modules.Found(facts=facts, signed=e)


class Issuers:
    """Takes issuers to a CA that signs, keeps it there, and has its lists signed.

    Args:
        around: What a controller is given.
        tokens: The tokens.
        service: The durable log.
        standing: What is known together.
        threads: Where tokens are asked.
        offering: Asks for keys that are handed over.
        gauges: What a monitor is told.
    """

    name = "issuers"

    def __init__(
        self,
        around: Around,
        tokens: Tokens,
        service: HSMService,
        standing: Standing,
        threads: Threads,
        offering: Offering,
        gauges: Gauges,
    ) -> None:
        self._offering = offering
        self._gauges = gauges
        self._around = around
        self._tokens = tokens
        self._service = service
        self._standing = standing
        self._threads = threads
        self._rotating = Rotating(around, tokens, service, standing, threads)
        self._locks: dict[Key, asyncio.Lock] = {}

    @property
    def watches(self) -> Sequence[Kind]:
        """Both kinds of issuers."""
        return (HSM_ISSUER, HSM_CLUSTER_ISSUER)

    @property
    def rounds(self) -> Sequence[Round]:
        """Lists of the revoked."""
        return (Round(name="hsm-lists", seconds=LISTS_SECONDS, run=self.keep_lists),)

    async def handle(self, key: Key, seen: Raw | None) -> float | None:
        """Look at one issuer; one look at a time, also where a token or a request wants it."""
        del seen  # what is made of an issuer rests on what it is now: a watch may be late
        lock = self._locks.setdefault(key, asyncio.Lock())
        async with lock:
            after = await self._looked(key)
        if key not in self._standing.issuers and not lock.locked():
            self._locks.pop(key, None)
        return after

    async def _looked(self, key: Key) -> float | None:
        for _ in range(MAX_TURNS):
            raw = await self._around.cluster.read(key)
            if raw is None:
                self._forgotten(key)
                return None
            self._standing.issuers[key] = raw
            issuer = read_issuer(key.kind, raw)
            looked = await self._look(issuer)
            module = await self._module(issuer) if looked.authority is not None else None
            # It may have been deleted since it was looked at; the next look says so.
            if module is not None and module.spec is not None:
                looked = await self._rotating.turned(issuer, module.spec, looked)
            before = self._standing.authorities.get(issuer.uid)
            begins = looked.authority is not None and (
                before is None or before.issuer_id != looked.authority.issuer_id
            )
            if looked.authority is not None:
                self._standing.authorities[issuer.uid] = looked.authority
            elif not looked.again:
                self._standing.authorities.pop(issuer.uid, None)
            self._told(key, looked)
            await self._around.executor.apply(looked.actions)
            if begins and looked.authority is not None:
                await self._keep(looked.authority)
            if not looked.again:
                return looked.after
        self._around.log.error("issuer.goes_round", name=str(key))
        return AGAIN_SECONDS

    def _told(self, key: Key, looked: issuers.Looked) -> None:
        """Tell a monitor what was found; a look that is not the last one found nothing yet."""
        if not looked.again:
            authority = looked.authority
            ends = None if authority is None else authority.ca.not_after
            self._gauges.ready(key, authority is not None, ends=ends)

    async def keep_lists(self) -> None:
        """Sign the lists and responders that are due; what hinders one CA hinders no other."""
        standing = self._standing
        for authority in [*standing.authorities.values(), *standing.retiring.values()]:
            await self._keep(authority)

    async def _keep(self, authority: Authority) -> None:
        at, name = self._around.clock.now(), authority.issuer_id
        newest = self._standing.crl_numbers.get(name, 0)
        try:
            number = await lists.keep_list(authority, self._service, self._threads, newest=newest, at=at)
        except AttestationError as e:
            self._not_kept("hsm.list_not_made", authority, e)
        else:
            if number is not None:
                self._standing.crl_numbers[name] = number
                self._around.log.info("hsm.list_made", issuer=name, number=number)
        try:
            await lists.keep_responder(authority, self._service, self._threads, at=at)
        except AttestationError as e:
            self._not_kept("hsm.responder_not_certified", authority, e)

    def _not_kept(self, event: str, authority: Authority, error: AttestationError) -> None:
        if isinstance(error, IssuerUnknown):
            self._standing.known.clear()
        self._around.log.warning(event, issuer=authority.issuer_id, code=error.code, reason=str(error))

    def _forgotten(self, key: Key) -> None:
        raw = self._standing.issuers.pop(key, None)
        self._gauges.gone(key)
        if raw is not None:
            self._standing.authorities.pop(raw["metadata"]["uid"], None)
            self._standing.retiring.pop(raw["metadata"]["uid"], None)

    async def _look(self, issuer: Issuer) -> issuers.Looked:
        module = await self._module(issuer)
        answers: dict[Ask, Answer] = {}
        while True:
            case = issuers.Case(
                issuer=issuer,
                module=module,
                at=self._around.clock.now(),
                answers=answers,
                crl_number=self._standing.crl_numbers.get(str(issuer.status.get("issuerID"))),
            )
            looked = issuers.reconcile(case)
            if looked.ask is None:
                return looked
            answers[looked.ask] = await self._answer(looked.ask, issuer, module, answers)

    async def _module(self, issuer: Issuer) -> Module | None:
        if issuer.hsm is None:
            return None
        raw = self._standing.modules.get(issuer.hsm)
        if raw is None:
            raw = await self._around.cluster.read(issuer.hsm)
        return None if raw is None else read_module(raw)

    async def _answer(
        self, ask: Ask, issuer: Issuer, module: Module | None, answers: dict[Ask, Answer]
    ) -> Answer:
        if ask is Ask.QUOTES:
            return await self._offering.all_of(issuer)
        assert module is not None
        token, spec = module.spec, issuer.spec
        assert token is not None
        at = self._around.clock.now()
        key: Any = answers.get(Ask.MAKE, answers.get(Ask.FIND))
        try:
            match ask:
                case Ask.DESTROY:
                    labels = labels_of(issuer, at)
                    return await self._threads(
                        lambda: sum(self._tokens.destroy(token, each) for each in labels) > 0
                    )
                case Ask.COUNT:
                    return older(issuer, await self._around.cluster.list(issuer.target.kind))
            assert spec is not None
            match ask:
                case Ask.FIND:
                    return await self._threads(lambda: self._tokens.open(token, issuer.key))
                case Ask.MAKE:
                    label = label_of(issuer.uid, issuer.number)
                    return await self._threads(lambda: self._tokens.make_ca(token, label, spec.key_type))
                case Ask.SELF_SIGN:
                    there = issuer.status.get("caCertificate")
                    subject = subject_of(there) if there is not None else None
                    return await self._threads(
                        lambda: self_signed(spec, key, at=at, number=issuer.number, subject=subject)
                    )
                case Ask.TEST:
                    await self._threads(lambda: key.self_test(key.public_key))
                    return True
                case Ask.REGISTER:
                    known: Answer = await self._registered(issuer, token, key)
                    return known
                case _:
                    return await self._offering.answer(ask, issuer, token)
        except AttestationError as e:
            if ask is Ask.REGISTER:
                # The status has the code alone: words that differ each time would have it written each time.
                self._around.log.warning(
                    "issuer.not_registered", name=str(issuer.target), code=e.code, reason=str(e)
                )
            return e

    async def _registered(self, issuer: Issuer, token: HardwareSecurityModuleSpec, key: Any) -> HSMIssuer:
        """Return what the service knows of the CA: an answer of the last minutes, or a fresh one."""
        pem = str(issuer.status["caCertificate"])
        ca = proven_ca(pem, key, at=self._around.clock.now(), by_itself=False)
        assert ca is not None
        now = asyncio.get_running_loop().time()
        name = (issuer.uid, ca.certificate)
        until, known = self._standing.known.get(name, (0.0, None))
        if known is not None and now < until:
            return known
        known = await self._service.register(
            issuer.uid,
            HSMIssuerPut(
                kind=issuer.target.kind.kind,  # type: ignore[arg-type]  # one of the two, by which it was read
                namespace=issuer.target.namespace,
                name=issuer.target.name,
                certificate=b64encode(ca.certificate),
                chain=tuple(map(b64encode, chain_of(pem)[1:])),
                key_origin=key.origin,
                module=token.module,
                token_label=token.token_label or token.serial or token.module,
            ),
        )
        checked_issuer(known, uid=issuer.uid)
        self._standing.published(known.issuer_id, issuer.status)
        self._standing.known[name] = (now + KNOWN_SECONDS, known)
        return known
