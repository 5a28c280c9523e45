"""What every request carries, its id and where it came from, and what it needs of layers above, as protocols.

The middleware sets the origin once; everything else reads it from the ASGI scope.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Final, Protocol

from fastapi import Depends, Request

from attestation.store import Tx
from attestation_service.context.identity import Controller, Operator

_KEY = "itl.origin"

ACCESS_KEY: Final = "x-access"
"""Where a route declares, in its `openapi_extra`, who may ask."""
BEGAN_KEY: Final = "itl.began"
"""When this process began with the request, of `time.perf_counter`."""
LOGS_KEY: Final = "x-carries-logs"
"""Where it declares that its body may carry a boot log or a measurement list."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a request came from.

    Args:
        request_id: Ours, or the client's where it is harmless text.
        address: IP address of the client, or `unix`; good for limits and the audit, never for identity.
    """

    request_id: str
    address: str


class AccessTokens(Protocol):
    """Who the bearer of an identity provider's token is."""

    async def operator(self, token: str, origin: Origin, at: datetime) -> Operator:
        """Return the operator whom *token* names.

        Raises:
            Unauthenticated: It proves nothing.
            Forbidden: It names somebody without any duty here.
            IdentityProviderUnavailable: It cannot be judged now.
        """
        ...


class ServiceAccounts(Protocol):
    """Who the bearer of a token of a Kubernetes cluster is."""

    async def controller(self, token: str, origin: Origin, at: datetime) -> Controller:
        """Return the controller that *token* names.

        Raises:
            Unauthenticated: It proves nothing.
            Forbidden: It names a ServiceAccount without any duty here.
            IdentityProviderUnavailable: It cannot be judged now.
        """
        ...


class ClientCertificates(Protocol):
    """Who the holder of a client certificate is."""

    def presented(self, scope: MutableMapping[str, Any]) -> bytes | None:
        """Return the certificate, DER, with which the request of *scope* came; None where with none.

        Raises:
            ClientCertificateUntrusted: Somebody named one who is not a trusted proxy.
            Unauthenticated: What a trusted proxy named is no certificate.
        """
        ...

    async def operator(self, certificate: bytes, origin: Origin, at: datetime) -> Operator:
        """Return the operator whom *certificate* names.

        Raises:
            Unauthenticated: It proves nothing: chain, validity, revocation.
            Forbidden: It names somebody without any duty here.
            Unavailable: It cannot be judged now.
        """
        ...

    async def refresh(self) -> None:
        """Make sure that `why_not` judges by what is configured now."""
        ...

    def why_not(self, tx: Tx, der: bytes, at: datetime) -> str | None:
        """Say why the holder of a certificate, which was good once, is no operator any more; None while they are.

        Raises:
            Unavailable: It cannot be judged now.
        """
        ...


class Revocations(Protocol):
    """What is told to relying parties of the certificates of the service's CA."""

    def changed(self) -> None:
        """Say that something was revoked, held or released: lists are made without waiting for who asks first."""
        ...

    async def start(self) -> None:
        """Make what must be there before somebody asks."""
        ...

    async def run(self) -> None:
        """Make lists as soon as something changes, until cancelled."""
        ...

    async def maintain(self, *, for_all: bool) -> None:
        """Do what is due."""
        ...


def set_origin(scope: MutableMapping[str, Any], origin: Origin) -> None:
    """Remember *origin* for everything that serves this request."""
    scope[_KEY] = origin


def request_id(scope: MutableMapping[str, Any]) -> str:
    """Return the id of this request."""
    found = scope.get(_KEY)
    return found.request_id if isinstance(found, Origin) else "unknown"


def origin_of(scope: MutableMapping[str, Any]) -> Origin:
    """Return where this request came from."""
    found = scope[_KEY]
    assert isinstance(found, Origin)
    return found


# A coroutine, because the framework sends plain functions through its thread pool.
async def origin(request: Request) -> Origin:
    """As `origin_of`, for routes that declare what they need."""
    return origin_of(request.scope)


From = Annotated[Origin, Depends(origin)]
