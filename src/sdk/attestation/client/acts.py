"""Acts whose answer is lost: asked for again under the same key, until it is known what became of them (docs/adr/0070).

The service does what it is asked for under one key once, and answers each time as it did then. So to repeat an act is
to ask whether it happened.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

from attestation.client.carrier import READ_SECONDS
from attestation.client.errors import (
    AnswerInvalid,
    APIError,
    OutcomeUnknown,
    Redirected,
    ServiceUnreachable,
    TLSFailed,
)
from attestation.client.retries import Retries
from attestation.errors import ActInProgress, Forbidden, RateLimited, Unauthenticated, Unavailable

T = TypeVar("T")

ANSWER_SECONDS: Final = 2.0
"""So long before we stop waiting, the service no longer begins: its answer is to reach us."""
ENTRY_HEADER: Final = "itl-audit-entry"
"""Number of the audit entry of what was done, in the answer to an act."""
ASK_SECONDS: Final = 60.0
"""So long a program asks what became of an act: nobody waits before it."""
ASK_TIMES: Final = 8
FIRST_PAUSE_SECONDS: Final = 0.5
LONGEST_PAUSE_SECONDS: Final = 10.0


def keys_of(base: str) -> Iterator[str]:
    """Return keys for one act after the other, all of *base*: the same acts in the same order have the same keys."""
    return map("{}.{}".format, itertools.repeat(base), itertools.count(1))


def new_base() -> str:
    """Return what nobody else calls their acts."""
    return os.urandom(16).hex()


@dataclass(frozen=True, slots=True, kw_only=True)
class Acts:
    """How one client names its acts, and what it does about a lost answer.

    Args:
        keys: A key for each act.
        on_lost: Told of a loss, before we ask what became of the act.
        on_entry: Told the number of the audit entry of what was done, where the service says it.
        ask_seconds: So long we ask; each question may wait for its answer besides.
    """

    keys: Iterator[str] = field(default_factory=lambda: keys_of(new_base()))
    on_lost: Callable[[Exception], object] | None = None
    on_entry: Callable[[int], object] | None = None
    ask_seconds: float = ASK_SECONDS

    def tell(self, headers: Mapping[str, str]) -> None:
        """Tell who wants to know what the headers of an answer say of the audit."""
        number = headers.get(ENTRY_HEADER, "")
        if self.on_entry is not None and number.isascii() and number.isdigit() and len(number) < 19:
            self.on_entry(int(number))


def headers_of(key: str) -> Mapping[str, str]:
    """Return what an act called *key* carries beside its request."""
    waits_ms = int((READ_SECONDS - ANSWER_SECONDS) * 1000)
    return {"Idempotency-Key": f'"{key}"', "Itl-Deadline-Ms": str(waits_ms)}


def is_lost(error: APIError | ServiceUnreachable | AnswerInvalid) -> bool:
    """Return True where the act may have been done all the same: cut off, not to be read, or a proxy's word for it."""
    if isinstance(error, AnswerInvalid):
        return not isinstance(error, Redirected)
    if isinstance(error, ServiceUnreachable):
        # Who could not prove who they are got nothing.
        return error.sent and not isinstance(error, TLSFailed)
    return error.status >= 500 and error.code.startswith("http-")


def says_nothing(error: APIError | ServiceUnreachable | AnswerInvalid) -> bool:
    """Return True where *error* does not tell what became of an earlier request under the same key."""
    if isinstance(error, Unauthenticated | RateLimited | ActInProgress | Unavailable):
        return True
    # Not of what it refuses by name: that was looked at, and not done.
    return is_lost(error) or error.code == Forbidden.code


def ask(
    send: Callable[[], T],
    lost: APIError | ServiceUnreachable | AnswerInvalid,
    key: str,
    acts: Acts,
    retries: Retries,
) -> T:
    """Repeat an act whose answer was lost, for so long as *acts* says, and return its answer.

    Raises:
        OutcomeUnknown: It is still not known.
        APIError: It was not done: the service refuses it.
    """
    if acts.on_lost is not None:
        acts.on_lost(lost)
    until = time.monotonic() + acts.ask_seconds
    latest = lost
    for asked in range(ASK_TIMES):
        pause = min(FIRST_PAUSE_SECONDS * 2**asked, LONGEST_PAUSE_SECONDS)
        if time.monotonic() + pause > until:
            break
        retries.sleep(pause)
        try:
            return send()
        except (APIError, ServiceUnreachable, AnswerInvalid) as e:
            if not says_nothing(e):
                raise
            latest = e
    words = f"{lost}; asked again for it, the last answer was: {latest}" if latest is not lost else str(lost)
    raise OutcomeUnknown(words, key=key) from lost
