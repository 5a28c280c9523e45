"""What every request carries: its id and where it came from.

The middleware sets it once; everything else reads it from the ASGI scope.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Request

from attestation.clock import Clock
from attestation.keys import Signer
from attestation.store import Store
from attestation_service.settings import Settings

_KEY = "itl.origin"


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a request came from.

    Args:
        request_id: Ours, or the client's where it is harmless text.
        address: IP address of the client, or `unix`; good for limits and the audit, never for identity.
    """

    request_id: str
    address: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """What the lifespan owns and handlers use."""

    settings: Settings
    clock: Clock
    store: Store
    signer: Signer


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


def resources_of(scope: MutableMapping[str, Any]) -> Resources:
    """Return what the lifespan of the application owns."""
    found = scope["app"].state.resources
    assert isinstance(found, Resources)
    return found


# Coroutines, because the framework sends plain functions through its thread pool.
async def origin(request: Request) -> Origin:
    """As `origin_of`, for routes that declare what they need."""
    return origin_of(request.scope)


async def resources(request: Request) -> Resources:
    """As `resources_of`, for routes that declare what they need."""
    return resources_of(request.scope)


Res = Annotated[Resources, Depends(resources)]
From = Annotated[Origin, Depends(origin)]
