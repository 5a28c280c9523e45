"""What a machine believes: what the service signed for this TPM, in answer to the request just sent (PROTOCOL §8).

Pure. The answer around a statement is not signed: nothing in it is an order, and nothing in it says who we are.
"""

# Algorithms for: digest
from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, TypeVar

from attestation.api import ConfigEnvelope, Sealed
from attestation.keys import (
    CONFIG_TYP,
    DIRECTIVE_TYP,
    KEYS_TYP,
    OFFLINE_TYP,
    SEALED_TYP,
    TRUST_BUNDLE_TYP,
    WELCOME_TYP,
    Binding,
    JWSRejected,
    thumbprints,
    verify_jwt,
    verify_kept,
    verify_statement,
)
from attestation.machines import Status
from attestation.wire import b64encode
from attestation_agent.exits import DirectiveRejected

T = TypeVar("T")

CLOCK_SKEW_SECONDS: Final = 60


class Action(StrEnum):
    """What a machine can be told to do."""

    APPLY_CONFIG = "apply-config"
    LOCK = "lock"
    UNLOCK = "unlock"
    WIPE = "wipe"


@dataclass(frozen=True, slots=True, kw_only=True)
class Directive:
    """A verified order; only `verify` and `verify_again` make one.

    Args:
        action: What to do.
        token: The compact JWS.
        token_id: Of the configuration to apply; None of other orders.
    """

    action: Action
    token: str
    token_id: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What an answer must be meant for.

    Args:
        to: Our own TPM, under the id with which we asked.
        node_nonce: The 32 bytes sent with the request.
    """

    to: Binding
    node_nonce: bytes


def verify(token: str, *, keys: Mapping[str, Any], asked: Request, nonce: bytes) -> Directive:
    """Return the order in *token*, if it is one for this machine and this moment.

    Args:
        token: Compact JWS as received.
        keys: The pinned JWK set.
        asked: What we asked.
        nonce: The 32 bytes of the challenge that we quoted with it.

    Raises:
        DirectiveRejected: With the reason.
    """
    claims = _statement(token, DIRECTIVE_TYP, keys, asked, "directive")
    # For the evidence that we gave, too: the order follows from it.
    if not hmac.compare_digest(_text(claims, "nonce").encode(), b64encode(nonce).encode()):
        raise DirectiveRejected("the directive answers another challenge than ours")
    return _order(token, claims)


def verify_again(token: str, *, keys: Mapping[str, Any], to: Binding) -> Directive:
    """Return an order that was verified and kept before: its request is over, its signature and addressee are not.

    Raises:
        DirectiveRejected: What was kept is not an order for this machine.
    """
    kept = _believed(lambda: verify_kept(token, typ=DIRECTIVE_TYP, keys=keys, to=to), "directive")
    return _order(token, kept)


def verify_delivery(
    signature: str | None,
    envelope: ConfigEnvelope,
    *,
    order: Directive,
    keys: Mapping[str, Any],
    asked: Request,
) -> int:
    """Check that the service sent this configuration to this machine now, and that it is the one ordered.

    Return when that was, in seconds since 1970 by the service's clock.

    Anybody can seal to public keys: without this, whoever stands between could put a configuration of their
    own, or an old one, in the place of ours.

    Args:
        signature: Compact JWS that came with the envelope.
        envelope: As received.
        order: The directive that announced it.
        keys: The pinned JWK set.
        asked: What we asked.

    Raises:
        DirectiveRejected: With the reason.
    """
    claims = _statement(signature, CONFIG_TYP, keys, asked, "configuration")
    said = (_text(claims, "token_id"), _text(claims, "config_sha256"))
    if said != (envelope.token_id, envelope.config_sha256):
        raise DirectiveRejected("the signature is for another configuration")
    if order.token_id != envelope.token_id:
        raise DirectiveRejected("the configuration is not the one that was ordered")
    return _number(claims, "iat")


def verify_sealed(sealed: Sealed, *, what: str, keys: Mapping[str, Any], asked: Request) -> None:
    """Check that the service sealed this for this machine now, and that it is what was asked for.

    Args:
        sealed: As received.
        what: Its name, with that of the extension.
        keys: The pinned JWK set.
        asked: What we asked.

    Raises:
        DirectiveRejected: With the reason.
    """
    claims = _statement(sealed.signature, SEALED_TYP, keys, asked, what)
    wanted = {
        "what": what,
        "token_id": sealed.envelope.token_id,
        "config_sha256": sealed.envelope.config_sha256,
    }
    for name, value in wanted.items():
        if not hmac.compare_digest(_text(claims, name).encode(), value.encode()):
            raise DirectiveRejected(f"the {what} is not the one that was signed: another {name}")


def verify_file(
    signature: str,
    envelope: ConfigEnvelope,
    *,
    what: str,
    keys: Mapping[str, Any],
    to: Binding,
    at: datetime,
    **named: str,
) -> int:
    """Check that the service sealed this for this TPM to be carried here; return when, in seconds since 1970.

    Args:
        signature: Compact JWS that came with the envelope.
        envelope: As in the file.
        what: `machineconfig` or `enrollment-key`: the one is not taken for the other.
        keys: The pinned JWK set.
        to: Our own TPM.
        at: Now, UTC.
        named: Further claims that must be exactly so.

    Raises:
        DirectiveRejected: With the reason.
    """
    claims = _believed(lambda: verify_kept(signature, typ=OFFLINE_TYP, keys=keys, to=to), what)
    wanted = {"what": what, "token_id": envelope.token_id, "config_sha256": envelope.config_sha256, **named}
    for name, value in wanted.items():
        if not hmac.compare_digest(_text(claims, name).encode(), value.encode()):
            raise DirectiveRejected(f"the {what} is not the one that was signed: another {name}")
    # No request of ours asked for it, so it has no nonce: the clock bounds how old it may be.
    _in_its_time(claims, what, at)
    return _number(claims, "iat")


def verify_welcome(
    token: str | None, *, keys: Mapping[str, Any], asked: Request, challenge_id: str
) -> Status:
    """Return the status of this machine, once the service says that it is the one with which we asked.

    Raises:
        DirectiveRejected: With the reason.
    """
    claims = _statement(token, WELCOME_TYP, keys, asked, "activation")
    if _text(claims, "challenge_id") != challenge_id:
        raise DirectiveRejected("the welcome answers another activation than ours")
    try:
        return Status(_text(claims, "status"))
    except ValueError as e:
        raise DirectiveRejected("the welcome has a status that we do not know") from e


def verify_keys(token: str, *, keys: Mapping[str, Any], asked: Request) -> dict[str, Any]:
    """Return the JWK set to pin from now on: named by a key that is pinned now.

    Raises:
        DirectiveRejected: With the reason.
    """
    claims = _statement(token, KEYS_TYP, keys, asked, "change of keys")
    named = claims.get("keys")
    if not isinstance(named, dict):
        raise DirectiveRejected("the change of keys names none")
    found = _believed(lambda: thumbprints(named), "change of keys")
    return {"keys": list(found.values())}


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
    if signature is None:
        raise DirectiveRejected("the trust bundle came without a signature of the service")
    token = signature
    claims = _believed(lambda: verify_jwt(token, dict(keys), typ=TRUST_BUNDLE_TYP), "trust bundle")
    if not hmac.compare_digest(_text(claims, "bundle_sha256"), hashlib.sha256(bundle).hexdigest()):
        raise DirectiveRejected("the signature is for another trust bundle")
    if _text(claims, "purpose") != "machine":
        raise DirectiveRejected("the trust bundle is not the one of machines")
    # It is the same for all who ask, so it has no nonce: the clock bounds how old it may be.
    _in_its_time(claims, "trust bundle", at)


def _in_its_time(claims: Mapping[str, Any], what: str, at: datetime) -> None:
    now = at.timestamp()
    if not _number(claims, "iat") - CLOCK_SKEW_SECONDS <= now < _number(claims, "exp") + CLOCK_SKEW_SECONDS:
        raise DirectiveRejected(f"the {what} is not valid at this time; is the clock of this node right?")


def _statement(
    token: str | None, typ: str, keys: Mapping[str, Any], asked: Request, what: str
) -> dict[str, Any]:
    return _believed(
        lambda: verify_statement(token, typ=typ, keys=keys, to=asked.to, node_nonce=asked.node_nonce), what
    )


def _believed(verified: Callable[[], T], what: str) -> T:
    try:
        return verified()
    except JWSRejected as e:
        raise DirectiveRejected(f"the {what} is not proven: {e}") from e


def _order(token: str, claims: Mapping[str, Any]) -> Directive:
    try:
        action = Action(_text(claims, "action"))
    except ValueError as e:
        raise DirectiveRejected("the directive orders something that we do not know") from e
    token_id = _text(claims, "token_id") if action is Action.APPLY_CONFIG else None
    return Directive(action=action, token=token, token_id=token_id)


def _text(claims: Mapping[str, Any], name: str) -> str:
    value = claims.get(name)
    if not isinstance(value, str):
        raise DirectiveRejected(f"the statement has no {name}")
    return value


def _number(claims: Mapping[str, Any], name: str) -> int:
    value = claims.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise DirectiveRejected(f"the statement has no {name}")
    return value
