"""Sessions: what is known of who is here. They stay in this process; a browser holds an id and nothing else.

A restart ends them, which costs a person one redirect while the provider still knows them (docs/adr/0168).
"""

# Algorithms for: bearer-secret
from __future__ import annotations

import hashlib
import secrets
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from attestation.api import WhoAmI

MOST_SESSIONS: Final = 10_000
MOST_OF_ONE: Final = 20
"""Sessions of one person; the one that was used longest ago gives way."""
MOST_RESUMED: Final = 8
MOST_RESUMED_CHARACTERS: Final = 4 << 20
"""A policy and what follows from it. Of one session; a form may have half of it."""
MOST_NOTICES: Final = 8
MOST_PRESSED: Final = 16
ID_BYTES: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """What the provider gave; secrets, which no page shows.

    Args:
        access: Sent to the service.
        refresh: Renews it; good once, at most providers.
        identity: The ID token as it came, which ends the login at the provider.
        expires_at: When the access token ends, by our clock.
    """

    access: str = field(repr=False)
    refresh: str | None = field(repr=False)
    identity: str | None = field(repr=False)
    expires_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """What an act did, told once.

    Args:
        text: In words.
        kind: `good`, `waits` or `bad`.
        entry: Number of its audit entry, or None.
        entries: Where several were acted on: what each is called, and the number of its audit entry.
        link: Words and address of what comes next, or None.
        shown_once: A secret that only this page shows, or None.
    """

    text: str
    kind: str = "good"
    entry: int | None = None
    entries: tuple[tuple[str, int], ...] = ()
    link: tuple[str, str] | None = None
    shown_once: str | None = field(default=None, repr=False)


@dataclass(slots=True, kw_only=True)
class Pressed:
    """A form whose button was pressed: what it asks for is done once.

    Args:
        lock: Held while it is done: who presses twice waits, and is told the same.
        unsure: The act and its values, as they were when its answer was lost; None where none was.
        did: What it did, and where its page goes on; None as long as it is not known to be done.
    """

    lock: threading.Lock = field(default_factory=threading.Lock)
    unsure: tuple[Any, Mapping[str, str]] | None = None
    did: tuple[Notice, str] | None = None


@dataclass(slots=True, kw_only=True)
class Session:
    """One person in one browser.

    Args:
        subject: `sub` at the provider.
        name: What they are called.
        sid: The provider's name for its own session, or None.
        authenticated_at: When they proved who they are.
        acr: How they did it, as the provider says; None where it does not.
        tokens: Theirs.
        opened_at: When they logged in here.
        seen_at: Their latest request.
        whoami: Whom the service takes them for, by the access token that it was asked with.
        key: What their forms are signed with.
        notices: Not yet told.
        resumed: Forms that wait until somebody has logged in again, by a random name.
        pressed: Forms whose buttons were pressed, by address and key.
        lock: Held while tokens are renewed: a refresh token is good once.
        counting: Held while notices and forms are counted: pages in several tabs do that at the same time.
    """

    subject: str
    name: str
    sid: str | None
    authenticated_at: datetime
    tokens: Tokens
    opened_at: datetime
    seen_at: datetime
    acr: str | None = None
    whoami: tuple[str, WhoAmI] | None = None
    key: bytes = field(default_factory=lambda: secrets.token_bytes(ID_BYTES), repr=False)
    notices: list[Notice] = field(default_factory=list)
    resumed: dict[str, Mapping[str, str]] = field(default_factory=dict)
    pressed: dict[tuple[str, str], Pressed] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    counting: threading.Lock = field(default_factory=threading.Lock)

    def tell(self, notice: Notice) -> None:
        """Have the next page tell *notice*."""
        with self.counting:
            self.notices = [*self.notices, notice][-MOST_NOTICES:]

    def told(self) -> list[Notice]:
        """Return what is to be told, once."""
        with self.counting:
            notices, self.notices = self.notices, []
            return notices

    def keep(self, form: Mapping[str, str]) -> str:
        """Keep *form* until they come back, and return its name."""
        name = secrets.token_urlsafe(16)
        with self.counting:
            self._keep(name, form)
        return name

    def change(self, name: str, form: Mapping[str, str]) -> None:
        """Keep *form* in the place of the one called *name*; nothing happens where that is not kept any more."""
        with self.counting:
            if name in self.resumed:
                self._keep(name, form)

    def _keep(self, name: str, form: Mapping[str, str]) -> None:
        others = {each: kept for each, kept in self.resumed.items() if each != name}
        kept = dict(list({**others, name: dict(form)}.items())[-MOST_RESUMED:])
        while len(kept) > 1 and sum(map(_characters, kept.values())) > MOST_RESUMED_CHARACTERS:
            del kept[next(iter(kept))]
        self.resumed = kept

    def press(self, path: str, key: str) -> Pressed:
        """Return what is known of the form with *key* at *path*, whose button is pressed now."""
        with self.counting:
            found = self.pressed.get((path, key), Pressed())
            self.pressed = dict(list({**self.pressed, (path, key): found}.items())[-MOST_PRESSED:])
            return found


class Sessions:
    """All sessions of this process.

    Args:
        idle: After so long without a request one ends.
        longest: After so long it ends in any case.
    """

    def __init__(self, *, idle: timedelta, longest: timedelta) -> None:
        self._idle, self._longest = idle, longest
        self._lock = threading.Lock()
        self._kept: dict[bytes, Session] = {}

    def open(self, session: Session) -> str:
        """Keep *session* and return its id, which only its browser learns: 256 random bits."""
        name = secrets.token_urlsafe(ID_BYTES)
        with self._lock:
            self._forget(session.opened_at)
            of_one = [key for key, kept in self._kept.items() if kept.subject == session.subject]
            self._drop_oldest(of_one, MOST_OF_ONE - 1)
            self._drop_oldest(list(self._kept), MOST_SESSIONS - 1)
            self._kept[_digest(name)] = session
        return name

    def find(self, name: str, at: datetime, *, by_itself: bool = False) -> Session | None:
        """Return the session that a browser names; None where it is over, or none.

        Args:
            name: Its id.
            at: The instant, which prolongs it.
            by_itself: A page asked and no person, which does not.
        """
        with self._lock:
            key = _digest(name)
            session = self._kept.get(key)
            if session is None:
                return None
            if self._over(session, at):
                del self._kept[key]
                return None
            if not by_itself:
                session.seen_at = at
            return session

    def close(self, name: str) -> Session | None:
        """End a session and return it."""
        with self._lock:
            return self._kept.pop(_digest(name), None)

    def close_of(self, *, subject: str | None, sid: str | None) -> int:
        """End what the provider ended: its session *sid*, or without one all of a person; return how many."""

        def ends(kept: Session) -> bool:
            if sid is None:
                return kept.subject == subject
            return kept.sid == sid and subject in (None, kept.subject)

        with self._lock:
            over = [key for key, kept in self._kept.items() if ends(kept)]
            for key in over:
                del self._kept[key]
        return len(over)

    def __len__(self) -> int:
        return len(self._kept)

    def _over(self, session: Session, at: datetime) -> bool:
        return at >= min(session.seen_at + self._idle, session.opened_at + self._longest)

    def _forget(self, at: datetime) -> None:
        for key in [key for key, kept in self._kept.items() if self._over(kept, at)]:
            del self._kept[key]

    def _drop_oldest(self, keys: list[bytes], keep: int) -> None:
        for key in sorted(keys, key=lambda k: self._kept[k].seen_at)[: max(0, len(keys) - keep)]:
            del self._kept[key]


def _characters(form: Mapping[str, str]) -> int:
    return sum(map(len, form.values()))


def _digest(name: str) -> bytes:
    """Return by what a session is looked up: how long that takes tells nothing of other ids."""
    return hashlib.sha256(name.encode()).digest()
