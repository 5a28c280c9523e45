"""What was judged before an operator's act is judged again after it: machines do not learn that they met one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from attestation.errors import MachineChanged

T = TypeVar("T")

ATTEMPTS: Final = 3


async def until_unchanged(work: Callable[[], Awaitable[T]]) -> T:
    """Return what *work* returns; once more where the machine was changed between its judgement and its unit.

    A unit that failed spent no challenge, so the same evidence is judged again, by what is true now.

    Raises:
        MachineChanged: Operators changed it each time. The challenge is unspent: the same request may be sent again.
    """
    for _ in range(ATTEMPTS - 1):
        try:
            return await work()
        except MachineChanged:
            continue
    return await work()
