"""What a browser brings back from a provider: judged in order, before the code in it is used."""

from __future__ import annotations

import hmac
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Self
from urllib.parse import parse_qsl

from attestation.client.openid.errors import LoginRefused

if TYPE_CHECKING:
    from attestation.client.openid.discovery import Metadata

LONGEST_CODE: Final = 4096

WORDS: Final = {
    "access_denied": "the login or the consent was refused",
    "login_required": "the provider wants a login first",
    "consent_required": "the provider wants a consent first",
    "invalid_grant": "the provider does not accept it, or no longer",
    "invalid_client": "the provider does not know this program; check its client id",
    "unauthorized_client": "the provider does not let this program log in in this way",
    "invalid_scope": "the provider does not know a scope that was asked for; check the scope",
    "unsupported_grant_type": "the provider does not offer this way of logging in",
    "temporarily_unavailable": "the provider cannot do it now",
    "expired_token": "the code has expired before it was entered",
}


@dataclass(frozen=True, slots=True)
class UnverifiedAnswer:
    """The parameters that a browser brought, from anybody. A name that came twice is in `repeated`."""

    values: dict[str, str] = field(repr=False)
    repeated: frozenset[str]

    @classmethod
    def of(cls, query: str) -> Self:
        """Read the query of an address."""
        values: dict[str, str] = {}
        repeated = set()
        for name, value in parse_qsl(query, keep_blank_values=True):
            if name in values:
                repeated.add(name)
            values[name] = value
        return cls(values, frozenset(repeated))


def refusal(error: str, description: str) -> LoginRefused:
    """Return the error for what the provider answered, in words; its own words follow."""
    said = f"{error[:64]}: {description[:200]}" if description else error[:64]
    return LoginRefused(f"{WORDS.get(error, 'the provider refused')} ({said})")


def verify_answer(answer: UnverifiedAnswer, *, state: str, metadata: Metadata) -> str:
    """Return the code of an answer that is for this login.

    Args:
        answer: What the browser brought; any web page can send it there.
        state: The 43 characters that only our request carried; compared in constant time.
        metadata: Whom we asked.

    Raises:
        LoginRefused: It is not for this login, or says no.
    """
    values = answer.values
    # 1. Each parameter once (RFC 6749 §3.1): of two, we and the provider could mean different ones.
    if answer.repeated:
        raise LoginRefused("the answer of the browser repeats a parameter")
    # 2. It answers our request. Otherwise somebody's page could log the user in as somebody else.
    if not hmac.compare_digest(values.get("state", "").encode(), state.encode()):
        raise LoginRefused("the answer of the browser does not belong to this login (state)")
    # 3. It comes from the provider that we asked (RFC 9207 §2.4). Otherwise our code could go to another one.
    issuer = values.get("iss")
    if issuer is None and metadata.answers_name_issuer:
        raise LoginRefused("the answer of the browser does not say who gave it (iss)")
    if issuer is not None and not hmac.compare_digest(issuer.encode(), metadata.issuer.encode()):
        raise LoginRefused("the answer of the browser comes from another provider (iss)")
    # 4. It says yes.
    if "error" in values:
        raise refusal(values["error"] or "error", values.get("error_description", ""))
    code = values.get("code", "")
    if not 0 < len(code) <= LONGEST_CODE:
        raise LoginRefused("the answer of the browser holds no code")
    return code
