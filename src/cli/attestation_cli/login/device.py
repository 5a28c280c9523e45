"""Logging in with another device: the user enters a code there (RFC 8628)."""

# Algorithms for: login
from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from attestation.client.openid.answer import refusal
from attestation.client.openid.discovery import Answer, Provider, is_same_origin
from attestation.client.openid.errors import ProviderInvalid, ProviderUnreachable
from attestation.client.openid.pkce import ProofKey
from attestation_cli.login.cache import Login
from attestation_cli.login.errors import LoginTimedOut
from attestation_cli.login.tokens import read_tokens

GRANT = "urn:ietf:params:oauth:grant-type:device_code"
INTERVAL_SECONDS = 5.0
"""RFC 8628 §3.2: where the provider names none."""
SLOW_DOWN_SECONDS = 5.0
"""RFC 8628 §3.5: added for good by each `slow_down`."""
LONGEST_WAIT_SECONDS = 1800.0
LONGEST_CODE = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceCode:
    """What the provider answered first (RFC 8628 §3.2).

    Args:
        device_code: Our secret.
        user_code: What the user enters; 1 to 64 printable characters.
        verification_uri: Where.
        verification_uri_complete: The same with the code in it; None where the provider has none.
        expires_in: Seconds until both codes end, at most half an hour.
        interval: Seconds between two questions.
    """

    device_code: str = field(repr=False)
    user_code: str
    verification_uri: str
    verification_uri_complete: str | None
    expires_in: float
    interval: float


def login(
    provider: Provider,
    *,
    client_id: str,
    scope: str,
    show: Callable[[DeviceCode], None],
    now: Callable[[], datetime],
    monotonic: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Login:
    """Have a person log in with another device.

    Args:
        provider: Where.
        client_id: As which program.
        scope: What is asked for, words with spaces between.
        show: Tells the person what to do.
        now: The clock.
        monotonic: A clock in seconds, for the intervals.
        sleep: How to pause.

    Raises:
        LoginRefused: The provider or the person said no.
        LoginTimedOut: Nobody entered the code in time.
        ProviderUnreachable, ProviderInvalid: The provider does not answer as it should.
    """
    endpoint = provider.metadata.device_authorization_endpoint
    if endpoint is None:
        raise ProviderInvalid(f"{provider.issuer} does not offer logins with another device")
    # PKCE here too: Keycloak demands it of clients that must use it; others pass over what they do not know.
    proof = ProofKey()
    question = {
        "client_id": client_id,
        "scope": scope,
        "code_challenge": proof.challenge,
        "code_challenge_method": "S256",
    }
    code = read_device_code(provider.post(endpoint, question), provider.issuer)
    deadline = monotonic() + code.expires_in
    show(code)
    form = {
        "grant_type": GRANT,
        "device_code": code.device_code,
        "client_id": client_id,
        "code_verifier": proof.verifier,
    }
    interval = code.interval
    while True:
        if monotonic() + interval >= deadline:
            raise LoginTimedOut("the code was not entered in time")
        sleep(interval)
        try:
            answer = provider.post(provider.metadata.token_endpoint, form)
        except ProviderUnreachable:
            # RFC 8628 §3.5: a pause that grows. The deadline ends it.
            interval *= 2
            continue
        match answer.error:
            case "authorization_pending":
                continue
            case "slow_down":
                interval += SLOW_DOWN_SECONDS
            case "expired_token":
                raise LoginTimedOut("the code was not entered in time")
            case _:
                return read_tokens(answer, issuer=provider.issuer, client_id=client_id, at=now())


def read_device_code(answer: Answer, issuer: str) -> DeviceCode:
    """Read the answer of the device authorization endpoint.

    Raises:
        LoginRefused: An error answer.
        ProviderInvalid: Not such an answer, or it would send the user elsewhere.
    """
    if answer.error is not None:
        raise refusal(answer.error, answer.description)
    members = answer.members
    device_code, user_code = members.get("device_code"), members.get("user_code")
    if (
        answer.status != 200
        or not isinstance(device_code, str)
        or not 0 < len(device_code) <= LONGEST_CODE
        or not isinstance(user_code, str)
        or not 0 < len(user_code) <= 64
        or not user_code.isprintable()
    ):
        raise ProviderInvalid("the provider gave no usable device code")
    uri, complete = members.get("verification_uri"), members.get("verification_uri_complete")
    # The user will enter a password there.
    for address in (uri, complete):
        if address is not None and (not isinstance(address, str) or not is_same_origin(address, issuer)):
            raise ProviderInvalid("the provider sends the user to another origin than its own")
    if not isinstance(uri, str):
        raise ProviderInvalid("the provider does not say where to enter the code")
    return DeviceCode(
        device_code=device_code,
        user_code=user_code,
        verification_uri=uri,
        verification_uri_complete=complete if isinstance(complete, str) else None,
        expires_in=min(_seconds(members.get("expires_in"), LONGEST_WAIT_SECONDS), LONGEST_WAIT_SECONDS),
        interval=max(_seconds(members.get("interval"), INTERVAL_SECONDS), 1.0),
    )


def _seconds(value: object, default: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1 << 31:
        return default
    return float(value)


def qr(text: str, width: int) -> str | None:
    """Return *text* as a QR code of half blocks for a terminal; None without the library, or where it does not fit."""
    try:
        import segno
    except ImportError:
        return None
    code = segno.make(text, error="l", micro=False)
    rows = [[bool(dark) for dark in row] for row in code.matrix_iter(border=2)]
    if len(rows[0]) > width:
        return None
    if len(rows) % 2:
        rows.append([False] * len(rows[0]))
    lines = []
    for upper, lower in zip(rows[::2], rows[1::2], strict=True):
        # The light modules are drawn, in white on black: so it is read on every background.
        cells = ("".join(" ▄▀█"[2 * (not u) + (not d)] for u, d in zip(upper, lower, strict=True)),)
        lines.append(f"\x1b[97;40m{cells[0]}\x1b[0m")
    return "\n".join(lines)
