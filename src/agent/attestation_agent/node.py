"""The agent's life: introduce, activate, attest, obey what is proven, come again (PROTOCOL §§1-6, 8).

Whom it believes: the service's keys, pinned at the first activation. What changes it: statements of theirs that name
this TPM and answer the request just sent. An answer's `status`, `action` and `message` are for people; a `404` or any
other refusal makes it try again. No network answer ends a resident agent.
"""

from __future__ import annotations

import contextlib
from typing import Final

from attestation.errors import (
    AttestationError,
    DeviceError,
)
from attestation.machines import Status
from attestation_agent import directive as directives
from attestation_agent.attesting import Exchange
from attestation_agent.directive import Action, Directive
from attestation_agent.exits import (
    DirectiveRejected,
    Exit,
    exit_of,
    is_passing,
)
from attestation_agent.orders import Obeying, Round

_STATUS_EXITS: Final = {
    Status.PENDING_APPROVAL: Exit.PENDING_APPROVAL,
    Status.REGISTERED: Exit.NOT_AFFIRMED,
    Status.ATTESTED: Exit.OK,
    Status.LOCKED: Exit.LOCKED,
    Status.REVOKED: Exit.REVOKED,
    Status.REJECTED: Exit.REJECTED,
}


class Agent(Obeying):
    """A node that lives: what follows one exchange, and when the next one is."""

    def run(self) -> Exit:
        """Live until told to stop; with `once`, until the first conclusive answer.

        Raises:
            DeviceError: There is no TPM to begin with.
        """
        edge, once = self._edge, self._settings.once
        alone, began = not self._settings.tpm.startswith("device:"), False
        try:
            self._begin()
            began = True
            if not once and edge.wait(edge.rhythm.uniform(0.0, self._settings.splay_seconds)):
                return Exit.OK
            failures = 0
            while True:
                try:
                    done = self._round()
                except AttestationError as e:
                    failures += 1
                    self._failed(e, failures)
                    if once and (not is_passing(e) or failures >= self._settings.attempts):
                        return exit_of(e)
                    pause = edge.rhythm.after_failure(failures, getattr(e, "retry_after_seconds", None))
                else:
                    failures = 0
                    if not done.final:
                        edge.attested()
                    if once or done.final:
                        return done.exit
                    pause = edge.rhythm.after_answer(done.again_seconds)
                if alone:
                    # A software TPM serves one program at a time: now is the turn of the others.
                    self._close_tpm(announce=False)
                if edge.wait(pause):
                    edge.log.info("agent.stopping")
                    return Exit.OK
        finally:
            if began and alone:
                with contextlib.suppress(DeviceError):
                    self._open_tpm()  # it is to hear of the end, though it was let go
            self._close_tpm(announce=True)

    def _failed(self, error: AttestationError, failures: int) -> None:
        self._edge.log.error(
            "attempt.failed",
            code=error.code,
            reason=str(error),
            failures=failures,
            request_id=getattr(error, "request_id", None),
        )
        # Whatever was prepared may be what was wrong.
        self._next = None
        if isinstance(error, DeviceError):
            self._close_tpm(announce=False)

    def _round(self) -> Round:
        """Attest once and do what follows from it."""
        known = self._known()
        order = self._state.wipe_order()
        if order is not None and order.acknowledged:
            # The service knows already and would not ask again: carry it out, network or not.
            return self._wipe_now(known, order.directive, again_seconds=1)
        exchange = self._attest(known)
        answer = exchange.answer
        if answer.next_keys is not None:
            self._follow_keys(known, answer.next_keys, exchange.asked)
        order_given = self._verified(exchange)
        self._edge.log.info(
            "attested.answer",
            status=answer.status,
            role=answer.role,
            hostname=answer.hostname,
            action=order_given.action if order_given else "none",
            message=answer.message,
        )
        if order_given is None:
            return self._settle(exchange)
        match order_given.action:
            case Action.APPLY_CONFIG:
                return self._deliver(exchange, order_given)
            case Action.LOCK:
                return self._lock(exchange, order_given)
            case Action.UNLOCK:
                return self._unlock(exchange, order_given)
            case Action.WIPE:
                return self._wipe(exchange, order_given)

    def _verified(self, exchange: Exchange) -> Directive | None:
        """Return the order that the answer carries, verified; None where it orders nothing."""
        answer = exchange.answer
        if answer.directive is None:
            if answer.action != "none":
                raise DirectiveRejected(f"the answer wants {answer.action}, but no directive says so")
            return None
        order = directives.verify(
            answer.directive,
            keys=self._pinned_keys(),
            asked=exchange.asked,
            nonce=exchange.nonce,
        )
        if order.action != answer.action:
            raise DirectiveRejected(f"the answer wants {answer.action}, its directive {order.action}")
        return order

    def _settle(self, exchange: Exchange) -> Round:
        """End a round in which nothing was ordered: what was ordered before may still be to do.

        The status is not signed. It ends `--once` with a code, and it says when that what was ordered, verified and
        kept is tried again: a configuration with `attested`, a wipe with `revoked`. Whoever lies about it delays that,
        or has it done before our acknowledgement arrived. Nothing is dropped, and nothing is done that no directive
        for this TPM ordered.
        """
        answer = exchange.answer
        again_seconds = answer.reattest_after_seconds
        code = _STATUS_EXITS[answer.status]
        if answer.status is Status.ATTESTED:
            pending = self._state.pending_config()
            if pending is not None:
                if self._due():
                    self._tried(self._apply(exchange.known, pending))
                code = Exit.OK if self._undelivered is None else exit_of(self._undelivered)
        order = self._state.wipe_order()
        if order is not None and answer.status is Status.REVOKED:
            # Ordered, verified, and no longer asked for: our acknowledgement arrived, its answer did not.
            return self._wipe_now(exchange.known, order.directive, again_seconds=again_seconds)
        return Round(exit=code, again_seconds=again_seconds)
