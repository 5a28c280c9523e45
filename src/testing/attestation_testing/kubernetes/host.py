"""What the parts of a cluster see of it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Protocol

from attestation_testing.kubernetes.access import Access, User
from attestation_testing.kubernetes.requests import Target
from attestation_testing.kubernetes.resources import Resource
from attestation_testing.kubernetes.status import Object
from attestation_testing.kubernetes.store import Store


class Host(Protocol):
    """The cluster."""

    now: Callable[[], datetime]
    store: Store
    access: Access
    node_restriction: bool
    minor: int
    resources: dict[tuple[str, str], Resource]
    reviews: dict[tuple[str, str, str], Callable[[Target, Object, User], Object]]
    documents: dict[str, Callable[[], Object]]

    def found(self, target: Target) -> Object:
        """Return what *target* names, or refuse."""

    def later(self, work: Callable[[], None]) -> None:
        """Do *work* after the request."""

    def delete(self, resource: Resource, found: Object, *, policy: str = "Background") -> Object | None:
        """Delete an object."""
