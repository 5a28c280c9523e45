"""Rotation of an issuer's keys: what `rotation` needs to know is asked here; what retires goes on answering."""

# Algorithms for: digest
from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, Final, Protocol

from attestation.api.hsm import HSMIssuedCertificate, HSMList, HSMRequest
from attestation.errors import AttestationError
from attestation.pki.external import cross_validity, make_cross, read_ca
from attestation.wire import b64decode, b64encode
from attestation_operator.actions import MergeStatus, SetStatus
from attestation_operator.controller import Around
from attestation_operator.crds.hsm import HardwareSecurityModuleSpec, KeyState
from attestation_operator.errors import NotRecorded
from attestation_operator.hsm import rotation
from attestation_operator.hsm.answers import checked_reserved, serial_of_answer
from attestation_operator.hsm.authority import Authority, proven_ca, self_signed
from attestation_operator.hsm.issuers import Looked
from attestation_operator.hsm.objects import AGAIN_SECONDS, Issuer, label_of
from attestation_operator.hsm.rotation import Answer, Ask, HeldKey
from attestation_operator.hsm.service import HSMService
from attestation_operator.hsm.tokens import KeyName, OnThread, Tokens

REQUESTER: Final = "attestation-operator"
"""Who asks for a cross certificate, as the log tells it."""


class Kept(Protocol):
    """What the controllers know together, as far as rotation is concerned."""

    retiring: dict[str, Authority]
    crl_numbers: dict[str, int]


class Rotating:
    """Takes the next step of a rotation after each look at an issuer that signs.

    Args:
        around: What a controller is given.
        tokens: The tokens.
        service: The durable log.
        kept: Where the CAs of retiring keys are.
        threads: Where tokens are asked.
    """

    def __init__(
        self, around: Around, tokens: Tokens, service: HSMService, kept: Kept, threads: OnThread
    ) -> None:
        self._around = around
        self._tokens = tokens
        self._service = service
        self._kept = kept
        self._threads = threads

    async def turned(self, issuer: Issuer, token: HardwareSecurityModuleSpec, looked: Looked) -> Looked:
        """Return *looked* with the next step of a rotation, and with what relying parties are to know beside the CA."""
        authority = looked.authority
        assert authority is not None
        assert issuer.spec is not None
        if issuer.spec.rotation.key == issuer.number and not issuer.status.get("keys"):
            return looked
        authority = await self._accompanied(issuer, token, authority)
        looked = replace(looked, authority=authority)
        # What is said of this look is written first: no step is taken from a state that this look changes.
        if any(isinstance(each, SetStatus | MergeStatus) for each in looked.actions):
            return replace(looked, again=True)
        turn = await self._planned(issuer, token, authority)
        if turn.error is not None:
            self._around.log.warning(
                "hsm.rotation_waits", issuer=issuer.uid, code=turn.error.code, reason=str(turn.error)
            )
            return replace(looked, after=min(looked.after or AGAIN_SECONDS, AGAIN_SECONDS))
        return replace(
            looked, actions=(*looked.actions, *turn.actions), again=looked.again or bool(turn.actions)
        )

    async def _accompanied(
        self, issuer: Issuer, token: HardwareSecurityModuleSpec, authority: Authority
    ) -> Authority:
        """Return the CA with its other keys: each counts only where the key on the token proves it."""
        held = rotation.held_of(issuer, self._around.clock.now())
        others = [each for each in (held.coming, held.retiring) if each is not None]
        opened = {each.state: await self._opened(each, issuer, token, authority) for each in others}
        ceasing = opened.get(KeyState.RETIRING)
        if ceasing is None:
            self._kept.retiring.pop(issuer.uid, None)
        else:
            self._kept.retiring[issuer.uid] = ceasing
            told = held.retiring.crl_number if held.retiring is not None else None
            known = self._kept.crl_numbers.get(ceasing.issuer_id, 0)
            self._kept.crl_numbers[ceasing.issuer_id] = max(told or 0, known)
        chain = authority.chain
        if ceasing is not None and held.active.cross is not None:
            cross = rotation.proven_cross(
                held.active.cross, of=authority.ca, by=ceasing.ca, at=self._around.clock.now()
            )
            # Who knows the key before alone finds the way by it.
            chain = chain if cross is None else (cross, *chain)
        trusted = tuple(each.ca.certificate for each in opened.values() if each is not None)
        return replace(authority, chain=chain, trusted=trusted)

    async def _opened(
        self, held: HeldKey, issuer: Issuer, token: HardwareSecurityModuleSpec, authority: Authority
    ) -> Authority | None:
        name = KeyName(label=label_of(issuer.uid, held.number))
        try:
            key = await self._threads(lambda: self._tokens.open(token, name))
            ca = proven_ca(held.certificate or "", key, at=self._around.clock.now(), by_itself=True)
        except AttestationError as e:
            self._around.log.warning(
                "hsm.other_key_away", issuer=issuer.uid, key=held.number, code=e.code, reason=str(e)
            )
            return None
        if ca is None:
            return None
        return replace(
            authority, issuer_id=held.issuer_id or "", ca=ca, chain=(), key=key.private_key, trusted=()
        )

    async def _planned(
        self, issuer: Issuer, token: HardwareSecurityModuleSpec, authority: Authority
    ) -> rotation.Turn:
        answers: dict[Ask, Answer] = {}
        while True:
            case = rotation.Case(issuer=issuer, ca=authority.ca, at=self._around.clock.now(), answers=answers)
            turn = rotation.plan(case)
            if turn.ask is None:
                return turn
            try:
                answers[turn.ask] = await self._answer(turn, issuer, token, authority, answers)
            except AttestationError as e:
                answers[turn.ask] = e

    async def _answer(
        self,
        turn: rotation.Turn,
        issuer: Issuer,
        token: HardwareSecurityModuleSpec,
        authority: Authority,
        answers: dict[Ask, Answer],
    ) -> Answer:
        spec, at = issuer.spec, self._around.clock.now()
        assert spec is not None
        label, key = label_of(issuer.uid, turn.number), answers.get(Ask.MAKE)
        made: Any = key
        work: Callable[[], Answer]
        match turn.ask:
            case Ask.MAKE:
                work = partial(self._tokens.make, token, label, spec.key_type)
            case Ask.SELF_SIGN:
                work = partial(self_signed, spec, made, at=at, number=turn.number)
            case Ask.CROSS:
                return await self._crossed(issuer, turn.number, answers[Ask.SELF_SIGN], authority)
            case Ask.TEST:
                work = partial(self._tested, token, label)
            case Ask.LAST_END:
                held = rotation.held_of(issuer, at).retiring
                assert held is not None
                return _last_end(await self._service.begin_list(held.issuer_id or ""))
            case _:
                work = partial(self._tokens.destroy, token, label)
        answer: Answer = await self._threads(work)
        return answer

    def _tested(self, token: HardwareSecurityModuleSpec, label: str) -> bool:
        key = self._tokens.open(token, KeyName(label=label))
        key.self_test(key.public_key)
        return True

    async def _crossed(self, issuer: Issuer, number: int, made: Answer, authority: Authority) -> bytes:
        """Return the certificate of a new key by the one that signs: reserved, signed once, and written down."""
        assert isinstance(made, bytes)
        at = self._around.clock.now()
        of, by = read_ca(made, at=at), authority.ca
        begin, end = cross_validity(of=of, by=by, at=at, duration=rotation.cross_duration(issuer))
        uid = rotation.cross_uid(issuer, number)
        asked = HSMRequest(
            request_uid=uid,
            kind=issuer.target.kind.kind,  # type: ignore[arg-type]  # one of the two, by which it was read
            namespace=issuer.target.namespace,
            name=issuer.target.name,
            spki_sha256=hashlib.sha256(of.spki).hexdigest(),
            subject=of.subject.rfc4514_string(),
            is_ca=True,
            requester=REQUESTER,
            not_before=begin,
            not_after=end,
        )
        reserved = checked_reserved(await self._service.reserve(authority.issuer_id, [asked]), [uid]).get(uid)
        if reserved is None:
            raise NotRecorded("the service reserved no serial number for the cross certificate")
        if reserved.certificate is not None:
            return b64decode(reserved.certificate, "the cross certificate")
        serial = serial_of_answer(reserved.serial)

        def sign() -> bytes:
            return make_cross(
                of=of,
                by=by,
                key=authority.key,
                serial=serial,
                validity=(begin, end),
                crl_url=authority.crl_url,
                ca_url=authority.ca_url,
            )

        signed: bytes = await self._threads(sign)
        told: Sequence[Any] = await self._service.record(
            authority.issuer_id, [HSMIssuedCertificate(request_uid=uid, certificate=b64encode(signed))]
        )
        if [each.request_uid for each in told] != [uid]:
            raise NotRecorded("the cross certificate was not written down")
        return signed


def _last_end(told: HSMList) -> datetime | None:
    """Return when the last certificate of a key ended; None until nobody asks about it by the service's clock, too.

    A key is destroyed for good: a clock of ours that is ahead does not do that alone. The service does not say how late
    it is, but when it wants the next list, within hours or days from then.
    """
    about_now = told.again_at or told.this_update
    if told.last_end is None or about_now is None or about_now < told.last_end + rotation.AFTER_LAST_END:
        return None
    return told.last_end
