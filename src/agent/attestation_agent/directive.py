"""What a machine obeys: an order that the service signed, for this machine, for the challenge it just answered.

Pure. The answer around a directive is not signed: nothing in it is an order (PROTOCOL §4, FAULTS R7).
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from attestation.api import ConfigEnvelope
from attestation.errors import MalformedEvidence
from attestation.keys import CONFIG_TYP, DIRECTIVE_TYP, TRUST_BUNDLE_TYP, JWSRejected, verify_jwt
from attestation.wire import b64decode
from attestation_agent.exits import DirectiveRejected

CLOCK_SKEW_SECONDS: Final = 60


class Action(StrEnum):
    """What a machine can be told to do."""

    APPLY_CONFIG = "apply-config"
    LOCK = "lock"
    WIPE = "wipe"


@dataclass(frozen=True, slots=True, kw_only=True)
class Directive:
    """A verified order; only `verify` and `verify_again` make one.

    Args:
        action: What to do.
        token: The compact JWS.
    """

    action: Action
    token: str


def verify(token: str, *, keys: Mapping[str, Any], machine_id: str, nonce: bytes, at: datetime) -> Directive:
    """Return the order in *token*, if it is one for this machine and this moment.

    Args:
        token: Compact JWS as received.
        keys: The pinned JWK set.
        machine_id: Our own id.
        nonce: The 32 bytes of the challenge that we answered in this very exchange.
        at: Now, UTC.

    Raises:
        DirectiveRejected: With the reason.
    """
    # 1. The service signed it. Otherwise anybody on the way gives orders.
    # 2. For this machine. Otherwise the order to wipe another machine wipes this one.
    action, claims = _signed(token, keys, machine_id)
    # 3. In answer to the challenge just answered. Otherwise an order of last year is played back.
    try:
        answered = b64decode(_text(claims, "nonce"), "nonce", max_bytes=64)
    except MalformedEvidence as e:
        raise DirectiveRejected("the directive's nonce is not base64") from e
    if not hmac.compare_digest(answered, nonce):
        raise DirectiveRejected("the directive answers another challenge than ours")
    # 4. In its time. The nonce is fresh already; this bounds how long an answer may be held back.
    _valid_at(claims, at)
    return Directive(action=action, token=token)


def verify_again(token: str, *, keys: Mapping[str, Any], machine_id: str) -> Directive:
    """Return an order that was verified and kept before: its challenge is spent, its signature is not.

    Raises:
        DirectiveRejected: What was kept is not an order for this machine.
    """
    action, _ = _signed(token, keys, machine_id)
    return Directive(action=action, token=token)


def verify_delivery(
    signature: str | None, envelope: ConfigEnvelope, *, keys: Mapping[str, Any], machine_id: str, at: datetime
) -> None:
    """Check that the service, and lately, sent this configuration to this machine.

    Anybody can seal to public keys: without this, whoever stands between could put a configuration of their
    own, or an old one, in the place of ours.

    Args:
        signature: Compact JWS that came with the envelope.
        envelope: As received.
        keys: The pinned JWK set.
        machine_id: Our own id.
        at: Now, UTC.

    Raises:
        DirectiveRejected: With the reason.
    """
    claims = _accompanying(signature, keys, CONFIG_TYP, "configuration")
    wanted = (machine_id, envelope.token_id, envelope.config_sha256)
    if tuple(_text(claims, name) for name in ("machine_id", "token_id", "config_sha256")) != wanted:
        raise DirectiveRejected("the signature is for another configuration, or for another machine")
    _valid_at(claims, at)


def verify_trust_bundle(
    signature: str | None, bundle: bytes, *, keys: Mapping[str, Any], at: datetime
) -> None:
    """Check that the service, and lately, named these CAs.

    Whoever stands between must not add a CA of their own, nor bring back one that was taken away.

    Args:
        signature: Compact JWS that came with the bundle.
        bundle: PEM, as received.
        keys: The pinned JWK set.
        at: Now, UTC.

    Raises:
        DirectiveRejected: With the reason.
    """
    claims = _accompanying(signature, keys, TRUST_BUNDLE_TYP, "trust bundle")
    if not hmac.compare_digest(_text(claims, "bundle_sha256"), hashlib.sha256(bundle).hexdigest()):
        raise DirectiveRejected("the signature is for another trust bundle")
    if _text(claims, "purpose") != "machine":
        raise DirectiveRejected("the trust bundle is not the one of machines")
    _valid_at(claims, at)


def _accompanying(signature: str | None, keys: Mapping[str, Any], typ: str, what: str) -> dict[str, Any]:
    """Return the claims of the signature that came beside something."""
    if signature is None:
        raise DirectiveRejected(f"the {what} came without a signature of the service")
    try:
        return verify_jwt(signature, dict(keys), typ=typ)
    except JWSRejected as e:
        raise DirectiveRejected(f"the {what} is not signed by the pinned keys: {e}") from e


def _valid_at(claims: Mapping[str, Any], at: datetime) -> None:
    now = at.timestamp()
    if not _number(claims, "iat") - CLOCK_SKEW_SECONDS <= now < _number(claims, "exp") + CLOCK_SKEW_SECONDS:
        raise DirectiveRejected("the directive is not valid at this time; is the clock of this node right?")


def _signed(token: str, keys: Mapping[str, Any], machine_id: str) -> tuple[Action, dict[str, Any]]:
    try:
        claims = verify_jwt(token, dict(keys), typ=DIRECTIVE_TYP)
    except JWSRejected as e:
        raise DirectiveRejected(f"the directive is not signed by the pinned keys: {e}") from e
    if not hmac.compare_digest(_text(claims, "machine_id").encode(), machine_id.encode()):
        raise DirectiveRejected("the directive is for another machine")
    try:
        return Action(_text(claims, "action")), claims
    except ValueError as e:
        raise DirectiveRejected("the directive orders something that we do not know") from e


def _text(claims: Mapping[str, Any], name: str) -> str:
    value = claims.get(name)
    if not isinstance(value, str):
        raise DirectiveRejected(f"the directive has no {name}")
    return value


def _number(claims: Mapping[str, Any], name: str) -> int:
    value = claims.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise DirectiveRejected(f"the directive has no {name}")
    return value
