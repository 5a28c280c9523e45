"""What is done when the service orders it: apply a configuration, lock, unlock, wipe (PROTOCOL §§5-6)."""

# Algorithms for: digest
from __future__ import annotations

import contextlib
import hashlib
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Final

from attestation.api import ConfigEnvelope
from attestation.errors import (
    AttestationError,
    BaseConfigInvalid,
    BaseConfigMissing,
)
from attestation.machines import Status
from attestation_agent import directive as directives
from attestation_agent import sealed
from attestation_agent.acts import Acts, by_commands
from attestation_agent.attesting import Attesting, Exchange
from attestation_agent.directive import Action, Directive
from attestation_agent.exits import (
    AgentError,
    AnswerRefused,
    ApplyFailed,
    ConfigNotDelivered,
    ConfigNotOpened,
    DirectiveRejected,
    Exit,
    StateNotKept,
    exit_of,
)
from attestation_agent.standing import APPLY_AGAIN_FIRST, LOCK_FAILED, ORDERED, UNLOCK_FAILED
from attestation_agent.state import KnownAs, PendingConfig, WipeOrder

APPLY_AGAIN_MOST = timedelta(minutes=15)
NOT_CONFIGURED: Final = "not_configured"


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """How one exchange with the service ended.

    Args:
        exit: What `--once` ends with.
        again_seconds: When the service wants to see us again.
        final: Nothing more will happen on this node: it wiped itself.
    """

    exit: Exit
    again_seconds: int
    final: bool = False


class Obeying(Attesting):
    """A node that carries out what a verified order says."""

    # §5: fetch, open, apply

    def _deliver(self, exchange: Exchange, order: Directive) -> Round:
        """Fetch the sealed configuration, keep it sealed until it is applied, apply and acknowledge it.

        It is offered until we acknowledge that it is applied. What failed is fetched anew, with a pause that grows: it
        may have been the configuration that was wrong.
        """
        answer = exchange.answer
        if self._due():
            try:
                self._tried(self._deliver_now(exchange, order))
            except AttestationError:
                self._not_configured()
                raise
        failed = self._undelivered
        return Round(
            exit=Exit.OK if failed is None else exit_of(failed), again_seconds=answer.reattest_after_seconds
        )

    def _due(self) -> bool:
        if self._apply_at is None:
            return True
        wait = self._apply_at - self._edge.clock.now()
        # Longer than we ever wait: the clock was set back.
        return not timedelta(0) < wait <= APPLY_AGAIN_MOST

    def _tried(self, failed: AgentError | None) -> None:
        """Note how it went: after a failure of ours the next attempt waits, twice as long as the one before."""
        self._undelivered = failed
        if failed is None:
            self._apply_at, self._apply_pause = None, APPLY_AGAIN_FIRST
            return
        self._edge.log.warning("config.not_delivered", code=failed.code, reason=str(failed))
        if not isinstance(failed, ConfigNotDelivered):
            self._apply_at = self._edge.clock.now() + self._apply_pause
            self._apply_pause = min(2 * self._apply_pause, APPLY_AGAIN_MOST)
        self._not_configured()

    def _not_configured(self) -> None:
        """Tell other programs on this machine; best effort, for what could not be kept may be the reason."""
        if self._state.status() not in ORDERED:
            with contextlib.suppress(StateNotKept):
                self._state.set_status(NOT_CONFIGURED)

    def _deliver_now(self, exchange: Exchange, order: Directive) -> AgentError | None:
        """Fetch, keep, apply and acknowledge a configuration; return what went wrong on our side, if anything."""
        answer = exchange.answer
        if answer.config_token is None:
            raise AnswerRefused("the service orders apply-config without a token to fetch it by")
        if order.token_id in self._state.applied():
            raise AnswerRefused("the service orders a configuration that was applied already")
        asked = self._request(exchange.known.machine_id)
        try:
            delivery = self._client.fetch_config(answer.config_token, asked.node_nonce)
        except (BaseConfigMissing, BaseConfigInvalid) as e:
            return ConfigNotDelivered(f"the service has no configuration to send: {e}")
        if delivery is None:
            raise AnswerRefused("the service orders apply-config, but gives no sealed configuration")
        envelope = delivery.envelope
        sent_at = directives.verify_delivery(
            delivery.signature,
            envelope,
            order=order,
            keys=self._pinned_keys(),
            asked=asked,
        )
        pending = PendingConfig(envelope=envelope, directive=order.token, acknowledged=False)
        try:
            # From now on no older file is taken, whether this one can be applied at once or not.
            self._state.add_newest_config(sent_at)
            # Sealed, the configuration may lie on disk: only this TPM opens it.
            self._state.set_pending_config(pending)
            return self._apply(exchange.known, pending)
        except StateNotKept as e:
            self._try_to_acknowledge(exchange.known, _digest(order.token), str(e))
            return e

    def _apply(self, known: KnownAs, pending: PendingConfig) -> AgentError | None:
        """Open and apply a configuration and acknowledge how that went; return what went wrong, if anything."""
        envelope, failed = pending.envelope, None
        try:
            config = self._opened(envelope, known.machine_id)
            self._acts().apply(config)
        except (ConfigNotOpened, ApplyFailed) as e:
            failed = e
            self._state.set_pending_config(replace(pending, acknowledged=True))
        else:
            self._edge.log.info("config.applied", config_sha256=envelope.config_sha256, **self._acts().named)
            # Noted first: power that fails between these two lines must not apply it again.
            try:
                self._state.add_applied(envelope.token_id)
            finally:
                self._state.set_pending_config(None)
            if self._state.status() not in ORDERED:
                self._state.set_status(Status.ATTESTED)
        if not pending.acknowledged:
            self._try_to_acknowledge(known, _digest(pending.directive), str(failed) if failed else None)
        return failed

    def _opened(self, envelope: ConfigEnvelope, machine_id: str) -> bytes:
        """Return the configuration in an envelope that is for us.

        Raises:
            ConfigNotOpened: It is not, or was changed.
        """
        return sealed.opened(self._open_tpm(), envelope, machine_id=machine_id)

    def _acts(self) -> Acts:
        """Return what changes this machine: Talos where it is ours to ask, else files and commands."""
        if self._edge.machined is not None:
            return self._edge.machined
        return by_commands(self._settings, self._edge.run)

    # Lock and wipe

    def _lock(self, exchange: Exchange, order: Directive) -> Round:
        """Write `locked`, run the lock command once, and acknowledge the first time."""
        answer = exchange.answer
        self._state.set_pending_config(None)
        if self._state.status() != Status.LOCKED:
            outcome = self._edge.run(self._settings.lock_command) if self._settings.lock_command else None
            failed = outcome is not None and not outcome.ok
            # A failed command is tried again at the next directive.
            self._state.set_status(LOCK_FAILED if failed else Status.LOCKED)
            self._edge.log.warning("locked", command=outcome.text if outcome else "none configured")
            failure = "lock command failed" if failed else None
            self._try_to_acknowledge(exchange.known, _digest(order.token), failure)
        return Round(exit=Exit.LOCKED, again_seconds=answer.reattest_after_seconds)

    def _unlock(self, exchange: Exchange, order: Directive) -> Round:
        """Run the unlock command where this machine is locked, and acknowledge: the order comes until we do."""
        failed = False
        if self._state.status() in (Status.LOCKED, LOCK_FAILED, UNLOCK_FAILED):
            outcome = self._edge.run(self._settings.unlock_command) if self._settings.unlock_command else None
            failed = outcome is not None and not outcome.ok
            self._state.set_status(UNLOCK_FAILED if failed else Status.ATTESTED)
            self._edge.log.warning("unlocked", command=outcome.text if outcome else "none configured")
        failure = "unlock command failed" if failed else None
        self._try_to_acknowledge(exchange.known, _digest(order.token), failure)
        return Round(
            exit=Exit.LOCKED if failed else Exit.OK, again_seconds=exchange.answer.reattest_after_seconds
        )

    def _wipe(self, exchange: Exchange, order: Directive) -> Round:
        """Acknowledge, then wipe: afterwards there is nobody left to say so (PROTOCOL §6)."""
        answer = exchange.answer
        self._state.set_pending_config(None)
        self._state.set_status(Status.REVOKED)
        if not self._acts().can_wipe:
            # "done" would be a lie: the machine keeps its disks.
            self._edge.log.error("wipe.impossible", reason="no wipe command is configured")
            self._acknowledge(exchange.known, _digest(order.token), "no wipe command is configured")
            return Round(exit=Exit.REVOKED, again_seconds=answer.reattest_after_seconds)
        # Kept before the acknowledgement: after it, the service does not ask again, and power may fail here.
        self._state.set_wipe_order(WipeOrder(directive=order.token, acknowledged=False))
        self._acknowledge(exchange.known, _digest(order.token), None)
        self._state.set_wipe_order(WipeOrder(directive=order.token, acknowledged=True))
        return self._wipe_now(exchange.known, order.token, again_seconds=answer.reattest_after_seconds)

    def _wipe_now(self, known: KnownAs, token: str, *, again_seconds: int) -> Round:
        """Wipe, for an order that was verified and acknowledged."""
        keys = self._state.service_keys()
        if keys is None:
            raise DirectiveRejected("the order to wipe that was kept cannot be verified any more")
        order = directives.verify_again(token, keys=keys, to=self._binding(known.machine_id))
        # An order to lock, put where an order to wipe was kept, must not become one.
        if order.action is not Action.WIPE:
            raise DirectiveRejected("the order that was kept is not one to wipe")
        self._edge.log.warning("wipe.begins")
        self._acts().wipe()
        self._state.set_wipe_order(None)
        self._edge.log.warning("wipe.done")
        return Round(exit=Exit.REVOKED, again_seconds=again_seconds, final=True)


def _digest(token: str) -> bytes:
    """Return what an acknowledgement names a directive by: SHA-256 of the compact JWS."""
    return hashlib.sha256(token.encode("ascii")).digest()
