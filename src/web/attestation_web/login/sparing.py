"""Asking the provider on behalf of strangers: one at a time, and after a failure not again at once.

Anybody may begin a login or send a logout token. Where the provider hangs, each of them would hold a thread for as long
as it may take to answer, and nobody else would be served.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final, Generic, TypeVar

from attestation.client.openid.errors import ProviderInvalid, ProviderUnreachable

T = TypeVar("T")

WAIT_SECONDS: Final = 2.0
AGAIN_AFTER: Final = timedelta(seconds=5)


class Sparing(Generic[T]):
    """Asks for one thing.

    Args:
        ask: Asks for it.
        now: Tells the time.
    """

    def __init__(self, ask: Callable[[], T], now: Callable[[], datetime]) -> None:
        self._ask, self._now = ask, now
        self._lock = threading.Lock()
        self._failed: tuple[ProviderUnreachable | ProviderInvalid, datetime] | None = None

    def __call__(self, *, at_once: bool = False) -> T:
        """Return what the provider answers.

        Args:
            at_once: It answered something else just now: an earlier failure tells nothing.

        Raises:
            ProviderUnreachable, ProviderInvalid: It did not answer as it should, now or a moment ago.
        """
        if not self._lock.acquire(timeout=WAIT_SECONDS):
            raise ProviderUnreachable("it is being asked already, and takes long to answer")
        try:
            if self._failed is not None and not at_once and self._now() - self._failed[1] < AGAIN_AFTER:
                raise type(self._failed[0])(str(self._failed[0]))
            try:
                answer = self._ask()
            except (ProviderUnreachable, ProviderInvalid) as e:
                self._failed = e, self._now()
                raise
            self._failed = None
            return answer
        finally:
            self._lock.release()
