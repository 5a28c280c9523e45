"""What an identity provider says of itself, and the only code that talks to one.

What it answers is believed only as far as the issuer that the user named: the document must name exactly that issuer,
and every address in it must be of the same origin. Answers are read up to 256 KiB, redirects are not followed, TLS is
demanded except from this computer itself.
"""

# Algorithms for: login
from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit

from attestation.client.connection import Closing, carrier_for, exchange, is_loopback, tls_context
from attestation.client.errors import AnswerInvalid, ServiceUnreachable
from attestation.client.openid.errors import ProviderInvalid, ProviderUnreachable
from attestation.clock import parse_http_date
from attestation.errors import RequestInvalid

if TYPE_CHECKING:
    from attestation.client.carrier import Carrier

WELL_KNOWN = "/.well-known/openid-configuration"
LONGEST_ANSWER = 256 << 10
"""Bytes."""
LONGEST_URL = 2048
HEADERS = {
    "Accept": "application/json",
    "Accept-Encoding": "identity",
    "User-Agent": "itl-attestation-client/0.1",
}
DEADLINE_SECONDS = 15.0
SYSTEM = "system"


@dataclass(frozen=True, slots=True)
class Answer:
    """What the provider answered: the status, the members of the JSON object, and what its clock said, if it did."""

    status: int
    members: Mapping[str, object]
    at: datetime | None = None

    @property
    def error(self) -> str | None:
        """The member `error` (RFC 6749 §5.2) of a refusal."""
        error = self.members.get("error")
        return error if self.status >= 400 and isinstance(error, str) else None

    @property
    def description(self) -> str:
        """What the provider adds in words, at most 200 characters; not cleaned."""
        text = self.members.get("error_description")
        return text[:200] if isinstance(text, str) else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """The part of the discovery document that we use (OpenID Connect Discovery 1.0 §3, RFC 8414 §2).

    Args:
        issuer: As the user named it.
        authorization_endpoint: Where a person logs in; None for a provider of machines only.
        token_endpoint: Where tokens come from.
        device_authorization_endpoint: Where the device flow begins (RFC 8628 §4).
        revocation_endpoint: Where tokens are ended (RFC 7009).
        jwks_uri: Where its keys are.
        end_session_endpoint: Where a browser ends its login (OpenID Connect RP-Initiated Logout 1.0 §2.1).
        answers_name_issuer: The answers of the authorization endpoint carry `iss` (RFC 9207 §3).
    """

    issuer: str
    token_endpoint: str
    authorization_endpoint: str | None
    device_authorization_endpoint: str | None
    revocation_endpoint: str | None
    jwks_uri: str | None
    end_session_endpoint: str | None
    answers_name_issuer: bool


class Provider(Closing):
    """One identity provider, reached by HTTP.

    Args:
        issuer: Its name and address, e.g. `https://id.example/realms/itl`.
        ca_file: PEM file with the only CAs to trust; `system` or None trusts those of the system.
        carrier: What carries the requests instead of the network: for tests.

    Raises:
        RequestInvalid: The issuer or the CA file cannot be used.
    """

    def __init__(self, issuer: str, *, ca_file: str | None = None, carrier: Carrier | None = None) -> None:
        self.issuer = checked_issuer(issuer)
        tls = None
        if urlsplit(issuer).scheme == "https":
            tls = tls_context(None if ca_file in (None, SYSTEM) else Path(str(ca_file)).expanduser())
        self._carrier = carrier_for(issuer, tls, carrier)
        self._metadata: Metadata | None = None
        self.clock: datetime | None = None
        """What the provider's own clock said with its last answer (`Date`), UTC; None where it did not say."""

    def close(self) -> None:
        """Close the connections."""
        self._carrier.close()

    @property
    def metadata(self) -> Metadata:
        """What the provider says of itself; fetched once.

        Raises:
            ProviderUnreachable: It did not answer.
            ProviderInvalid: What answered is not this issuer, or would send us elsewhere.
        """
        if self._metadata is None:
            url = self.issuer.rstrip("/") + WELL_KNOWN
            answer = self._send("GET", url, None)
            if answer.status != 200:
                raise ProviderInvalid(f"{url} answered {answer.status} instead of describing a provider")
            self._metadata = read_metadata(answer.members, self.issuer)
        return self._metadata

    def get(self, url: str) -> Answer:
        """Ask for a document of the provider; raises as `post` does."""
        return self._send("GET", url, None)

    def post(self, url: str, form: Mapping[str, str], headers: Mapping[str, str] | None = None) -> Answer:
        """Send *form* to an address of the provider and return its answer, whatever its status below 500.

        Args:
            url: One of its addresses.
            form: What is sent.
            headers: Likewise, beside it: the secret of a client that has one.

        Raises:
            ProviderUnreachable: It did not answer, or answered that it cannot now.
            ProviderInvalid: The answer is not JSON, or too long, or a redirect.
        """
        return self._send("POST", url, urlencode(form).encode("ascii"), headers)

    def _send(
        self, method: str, url: str, form: bytes | None, more: Mapping[str, str] | None = None
    ) -> Answer:
        # The origin as the user spelled it: it was compared, and HTTPS://ID.EXAMPLE is the same.
        issuer, parts = urlsplit(self.issuer), urlsplit(url)
        where = f"{issuer.scheme}://{issuer.netloc}"
        url = where + url[len(f"{parts.scheme}://{parts.netloc}") :]
        headers = HEADERS if form is None else HEADERS | {"Content-Type": "application/x-www-form-urlencoded"}
        headers = headers | dict(more or {})
        try:
            reply = exchange(
                self._carrier, method, url, headers, form,
                max_bytes=LONGEST_ANSWER, deadline_seconds=DEADLINE_SECONDS,
            )  # fmt: skip
        except ServiceUnreachable as e:
            raise ProviderUnreachable(str(e)) from None
        except AnswerInvalid as e:
            raise ProviderInvalid(f"{where}: {e}") from None
        self.clock = parse_http_date(reply.headers.get("date"))
        if reply.status >= 500:
            raise ProviderUnreachable(f"{where} answered {reply.status}")
        if 300 <= reply.status < 400:
            raise ProviderInvalid(f"{where} answered with a redirect, which is not followed")
        if not reply.body and reply.status == 200:
            # RFC 7009 §2.2: a revocation is answered with the status alone
            return Answer(reply.status, {}, self.clock)
        return Answer(reply.status, _object(reply.body, where, reply.status), self.clock)


def _object(body: bytes, where: str, status: int) -> Mapping[str, object]:
    try:
        members = json.loads(body)
    except (ValueError, RecursionError):
        members = None
    if not isinstance(members, dict):
        raise ProviderInvalid(f"{where} answered {status} with something other than a JSON object")
    return members


def checked_issuer(issuer: str) -> str:
    """Return *issuer* where it can be one: https, or http on this computer; no query, no fragment, no user.

    Raises:
        RequestInvalid: It cannot.
    """
    try:
        parts = urlsplit(issuer)
        usable = (
            len(issuer) <= LONGEST_URL
            and issuer.isascii()
            and issuer.isprintable()
            # No user, no query, no fragment: nothing hides in the address.
            and not any(character in issuer for character in " @?#")
            and parts.scheme in ("http", "https")
            and bool(parts.hostname)
        )
        _ = parts.port
    except ValueError:
        usable = False
    if not usable:
        raise RequestInvalid("the issuer must be an address like https://id.example/realms/itl")
    if urlsplit(issuer).scheme == "http" and not is_loopback(issuer):
        raise RequestInvalid(
            f"the issuer {issuer} is not encrypted: passwords and tokens could be read on the way"
        )
    return issuer


def read_metadata(members: Mapping[str, object], issuer: str) -> Metadata:
    """Check a discovery document against the issuer whose it must be.

    Raises:
        ProviderInvalid: Another issuer, a missing or foreign address, or no PKCE with S256.
    """
    # 1. It is the document of this issuer. Otherwise another provider could collect our codes (mix-up).
    named = members.get("issuer")
    if named != issuer:
        shown = repr(named[:200]) if isinstance(named, str) else "nothing"
        raise ProviderInvalid(f"asked for the issuer {issuer!r}, the provider there calls itself {shown}")
    # 2. It does not take PKCE away.
    methods = members.get("code_challenge_methods_supported")
    if isinstance(methods, list) and "S256" not in methods:
        raise ProviderInvalid(f"{issuer} does not offer PKCE with S256")
    # 3. Every address is of the issuer's origin. Otherwise a document could send tokens and users elsewhere.
    token_endpoint = _endpoint(members, "token_endpoint", issuer)
    if token_endpoint is None:
        raise ProviderInvalid(f"{issuer} names no token_endpoint")
    return Metadata(
        issuer=issuer,
        token_endpoint=token_endpoint,
        authorization_endpoint=_endpoint(members, "authorization_endpoint", issuer),
        device_authorization_endpoint=_endpoint(members, "device_authorization_endpoint", issuer),
        revocation_endpoint=_endpoint(members, "revocation_endpoint", issuer),
        jwks_uri=_endpoint(members, "jwks_uri", issuer),
        end_session_endpoint=_endpoint(members, "end_session_endpoint", issuer),
        answers_name_issuer=members.get("authorization_response_iss_parameter_supported") is True,
    )


def _endpoint(members: Mapping[str, object], name: str, issuer: str) -> str | None:
    value = members.get(name)
    if value is None:
        return None
    if not isinstance(value, str) or not is_same_origin(value, issuer):
        shown = repr(value[:200]) if isinstance(value, str) else "no text"
        raise ProviderInvalid(f"{name} of {issuer} is {shown}, which is not at the same origin")
    return value


def is_same_origin(url: str, other: str) -> bool:
    """True where both have the same scheme, host and port (RFC 6454 §4), and *url* holds neither user nor fragment."""
    try:
        ours, theirs = urlsplit(url), urlsplit(other)
        if (
            len(url) > LONGEST_URL
            or not url.isascii()
            or not url.isprintable()
            or ours.username
            or ours.fragment
        ):
            return False
        return _origin(ours) == _origin(theirs)
    except ValueError:
        return False


def _origin(parts: Any) -> tuple[str, str | None, int]:
    return parts.scheme, parts.hostname, parts.port or {"http": 80, "https": 443}.get(parts.scheme, 0)
