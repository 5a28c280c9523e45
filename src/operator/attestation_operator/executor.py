"""Applies actions: the only code that changes a cluster. Each request says which object it is meant for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from attestation_operator.actions import Action


class Executor(Protocol):
    """Applies actions, one after the other."""

    async def apply(self, actions: Iterable[Action]) -> None:
        """Do all of them in order; end at the first that cannot be done.

        An object that is gone needs nothing any more: its actions are passed over. An Event that cannot be written
        is logged and ends nothing.

        Raises:
            NotLeading: Another replica may act by now.
            ObjectChanged: The object is not what was judged.
            ClusterUnavailable: The API server is away.
            ClusterRefused: The API server refuses.
        """
        ...
