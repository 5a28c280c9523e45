"""Access tokens of an identity provider: what they must say before anybody is believed (RFC 7519, RFC 9068).

Pure: text, claims, rules and the instant come in; a person goes out. The signature is verified in between, by
`provider_keys`; until then nothing of a token is repeated to anybody. The shape is that of Keycloak's tokens
(DELIVERY-AND-OPERATORS §9.1); RFC 9068 tokens are read too.
"""

# Algorithms for: access-token
from __future__ import annotations

import base64
import binascii
import json
import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Final

from attestation.errors import Unauthenticated
from attestation_service.context.identity import RESERVED_NAMES, Duty, WithoutDuty, within_clusters

MAX_TOKEN_CHARACTERS: Final = 16_384
MAX_NAME_CHARACTERS: Final = 256
MAX_SUBJECT_CHARACTERS: Final = 255  # OpenID Connect Core §2

ALGORITHMS: Final = frozenset(
    {"RS256", "RS384", "RS512", "PS256", "ES256", "ES384", "ES512", "EdDSA", "Ed25519"}
)
"""JWS `alg` that may verify a token (RFC 7518 §3.1, RFC 8037, RFC 9864). Nothing symmetric, never `none`."""

HEADER_TYPES: Final[frozenset[str | None]] = frozenset({"jwt", "at+jwt", "application/at+jwt"})

_COMPACT = re.compile(r"[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\Z")
_WORD = re.compile(r"[A-Za-z0-9._:/@+-]{1,64}\Z")
_LATEST: Final = 253_402_300_799  # 9999-12-31T23:59:59Z: later is no time, and 1e308 neither
_SHOWN: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class UnverifiedToken:
    """A token in three parts. Nothing in it may be believed yet, and nothing of its payload was read.

    Args:
        algorithm: `alg`; one of `ALGORITHMS`, and still only what the token says.
        key_id: `kid`, None where the token names no key.
        signing_input: The bytes that were signed: header, dot, payload in base64url (RFC 7515 §5.2).
        payload: Claims in JSON.
        signature: Signature.
    """

    algorithm: str
    key_id: str | None
    signing_input: bytes
    payload: bytes
    signature: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What a token must say here.

    Args:
        issuer: `iss`, letter by letter.
        audience: Must be among `aud`.
        clients: `azp` and `client_id`, where there, must be among these.
        role_client: The client whose `resource_access` roles count beside realm roles.
        duties: What each role makes of a person.
        leeway_seconds: How far clocks may differ.
    """

    issuer: str
    audience: str
    clients: frozenset[str]
    role_client: str
    duties: Mapping[str, Duty]
    leeway_seconds: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "duties", MappingProxyType(dict(self.duties)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """Whom a verified token names.

    Args:
        name: To be shown: `preferred_username`, else `sub`; printable, at most 256 characters.
        subject: `<iss>#<sub>`: stays the same when the name changes or is given to somebody else.
        duties: At least one, here or in `within`.
        authenticated_at: When they proved who they are (`auth_time`, OpenID Connect Core §2), else when the token was
            issued; None where it says neither. Never later than the instant of the judgement.
        within: Duties in one cluster, of roles `<role>:<cluster>`.
    """

    name: str
    subject: str
    duties: frozenset[Duty]
    authenticated_at: datetime | None
    within: frozenset[tuple[Duty, str]] = frozenset()


def parse(token: str, types: frozenset[str | None] = HEADER_TYPES) -> UnverifiedToken:
    """Take *token* apart: a compact JWS of at most 16 KiB, whose `typ` is one of *types*, in any case of letters.

    Raises:
        Unauthenticated: It has not that form, or is of a kind that nobody may log in with.
    """
    # 1. Length before anything else: nobody pays for 100 KiB of base64.
    if len(token) > MAX_TOKEN_CHARACTERS:
        raise Unauthenticated(f"the token is longer than {MAX_TOKEN_CHARACTERS} characters")
    if not _COMPACT.match(token):
        raise Unauthenticated("the bearer token is not a signed token (JWT)")
    signed, _, signature = token.rpartition(".")
    first, _, second = signed.partition(".")
    header = _json(_base64url(first), "header")
    # 2. The algorithm is one of ours. Whether it is the key's, the key decides.
    algorithm = header.get("alg")
    if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
        raise Unauthenticated(f"the token is signed with {shown(algorithm)}, which is not accepted")
    # 3. No extension that we would have to understand (RFC 7515 §4.1.11, RFC 7797).
    if "crit" in header or "b64" in header:
        raise Unauthenticated("the token demands an extension that is not supported")
    # 4. Not another kind of JWT: what was signed for another purpose proves nothing here (RFC 8725 §3.11).
    kind = header.get("typ")
    if not isinstance(kind, str | None) or (kind.lower() if kind is not None else None) not in types:
        raise Unauthenticated(f"the token's header says typ={shown(kind)}, expected JWT or at+jwt")
    key_id = header.get("kid")
    if key_id is not None and not (isinstance(key_id, str) and key_id):
        raise Unauthenticated("the token's kid is not a text")
    return UnverifiedToken(
        algorithm=algorithm,
        key_id=key_id,
        signing_input=signed.encode("ascii"),
        payload=_base64url(second),
        signature=_base64url(signature),
    )


def claims_of(payload: bytes) -> Mapping[str, object]:
    """Return the claims of a payload whose signature was verified.

    Raises:
        Unauthenticated: Not a JSON object.
    """
    return _json(payload, "payload")


def judge(claims: Mapping[str, object], rules: Rules, at: datetime) -> Person:
    """Return whom *claims* name; their signature was verified.

    Args:
        claims: The payload, of any JSON types.
        rules: What it must say.
        at: The instant to judge at, aware.

    Raises:
        Unauthenticated: It is not for us, not now, or not an access token.
        WithoutDuty: It is, but names somebody without any duty here.
    """
    # 1. Who issued it, for whom. Without this, a token of another realm or for another service would do.
    if claims.get("iss") != rules.issuer:
        raise Unauthenticated(f"token has iss={shown(claims.get('iss'))}, expected {rules.issuer}")
    audience = claims.get("aud")
    audiences = [audience] if isinstance(audience, str) else _texts(audience)
    if rules.audience not in audiences:
        raise Unauthenticated(
            f"token has aud={_list_shown(audiences)}, expected {rules.audience}; add an audience mapper"
        )
    # 2. To which program. Without this, any client of the realm could collect tokens that act here.
    _check_clients(claims, rules, several=len(audiences) > 1)
    # 3. An access token, for whoever bears it. ID and refresh tokens travel through other hands; a token that is
    #    bound to a key (RFC 9449, RFC 8705) is not for bearers, and we do not check such a binding.
    kind = claims.get("typ")
    if kind is not None and kind != "Bearer":
        raise Unauthenticated(f"token is of typ {shown(kind)}, expected an access token (Bearer)")
    if "cnf" in claims:
        raise Unauthenticated("token is bound to a key of its client (cnf), which is not supported")
    # 4. Now. A token without an end would be good for ever.
    _check_times(claims, rules.leeway_seconds, at.timestamp())
    # 5. Whom.
    subject = claims.get("sub")
    if subject is None:
        raise Unauthenticated("token has no sub; in Keycloak, give the client the scope basic")
    if (
        not isinstance(subject, str)
        or not subject.isprintable()
        or not 1 <= len(subject) <= MAX_SUBJECT_CHARACTERS
    ):
        raise Unauthenticated(
            f"token has a sub that is not a line of 1 to {MAX_SUBJECT_CHARACTERS} characters"
        )
    name = claims.get("preferred_username")
    person = printable(name) if isinstance(name, str) else ""
    person = person or printable(subject)
    if unicodedata.normalize("NFKC", person).casefold() in RESERVED_NAMES | {""}:
        # Else the audit could not tell them from what the service itself did.
        raise Unauthenticated("the account has a name that is reserved in the audit log; rename it")
    stable = f"{rules.issuer}#{subject}"
    # 6. What they may be. Authentic so far, so from here on it is 403.
    roles = _roles(claims, rules)
    duties = frozenset(rules.duties[role] for role in roles if role in rules.duties)
    within = within_clusters(roles, rules.duties)
    if not duties and not within:
        raise WithoutDuty(_without_role(person, claims, rules), stable)
    return Person(
        name=person,
        subject=stable,
        duties=duties,
        authenticated_at=_authenticated(claims, at),
        within=within,
    )


def _check_clients(claims: Mapping[str, object], rules: Rules, *, several: bool) -> None:
    named = False
    for member in ("azp", "client_id"):
        client = claims.get(member)
        if client is None:
            continue
        if not isinstance(client, str) or client not in rules.clients:
            raise Unauthenticated(
                f"token has {member}={shown(client)}, which is not one of the clients accepted (ITL_OIDC_CLIENTS)"
            )
        named = True
    if several and not named:
        raise Unauthenticated(
            "token is for several audiences and does not say which client it was issued to (azp)"
        )


def _check_times(claims: Mapping[str, object], leeway_seconds: int, now: float) -> None:
    expires = instant(claims, "exp")
    if expires is None:
        raise Unauthenticated("token has no exp")
    if now >= expires + leeway_seconds:
        raise Unauthenticated(f"token expired {_seconds(now - expires)} ago; log in again")
    for member, words in (("nbf", "is not valid yet"), ("iat", "was issued in the future")):
        begins = instant(claims, member)
        if begins is not None and begins > now + leeway_seconds:
            raise Unauthenticated(
                f"token {words}: {member} is {_seconds(begins - now)} ahead; compare the clocks"
            )


def _authenticated(claims: Mapping[str, object], at: datetime) -> datetime | None:
    """Return when somebody logged in: a token that was only refreshed is as old as its login."""
    for member in ("auth_time", "iat"):
        seconds = instant(claims, member)
        if seconds is not None:
            return min(datetime.fromtimestamp(seconds, UTC), at)
    return None


def instant(claims: Mapping[str, object], member: str) -> float | None:
    """Return the instant (NumericDate, RFC 7519 §2) that *member* says, or None where it is not there.

    Raises:
        Unauthenticated: It is no time.
    """
    value = claims.get(member)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Unauthenticated(f"token has a {member} that is not a number")
    # NaN too, which json reads: it compares false with every instant and would never expire.
    if not 0 <= value <= _LATEST:
        raise Unauthenticated(f"token has a {member} that is no time")
    return value


def _roles(claims: Mapping[str, object], rules: Rules) -> list[str]:
    """Return the roles of a person: those of the realm, and those of the pinned client only."""
    roles = _texts(_member(claims.get("realm_access"), "roles"))
    of_client = _member(claims.get("resource_access"), rules.role_client)
    roles += _texts(_member(of_client, "roles"))
    return roles


def _without_role(person: str, claims: Mapping[str, object], rules: Rules) -> str:
    if "realm_access" not in claims and "resource_access" not in claims:
        return (
            f"{person}'s token carries no roles at all; a lightweight access token, or a client without the "
            "scope roles?"
        )
    return f"{person} has none of the roles {', '.join(sorted(rules.duties))}"


def _member(value: object, name: str) -> object:
    return value.get(name) if isinstance(value, dict) else None


def _texts(value: object) -> list[str]:
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def _base64url(text: str) -> bytes:
    """Read base64url without padding (RFC 7515 §2) whose alphabet was checked."""
    try:
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (binascii.Error, ValueError):
        raise Unauthenticated("the bearer token is not a signed token (JWT)") from None


def _json(data: bytes, what: str) -> dict[str, object]:
    try:
        found = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise Unauthenticated(f"the token's {what} is not a JSON object")
    return found


def _seconds(seconds: float) -> str:
    whole = math.ceil(seconds)
    return f"{whole} s" if whole < 600 else f"{whole // 60} min"


def shown(value: object) -> str:
    """Return *value* for a message: a plain word as it is, anything else only by its kind."""
    if value is None:
        return "nothing"
    if isinstance(value, str):
        return value if _WORD.match(value) else "something unprintable or long"
    return f"a {type(value).__name__}"


def _list_shown(values: Sequence[str]) -> str:
    more = ", …" if len(values) > _SHOWN else ""
    return f"[{', '.join(shown(value) for value in values[:_SHOWN])}{more}]"


def printable(text: str) -> str:
    """Return *text* on one line without what a terminal or a log could misread, at most 256 characters."""
    return "".join(c for c in text if c.isprintable()).strip()[:MAX_NAME_CHARACTERS]
