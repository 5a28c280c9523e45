"""Sessions: who has an id has one session, for a while, and at most so many."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from attestation_web.login import sessions as module
from attestation_web.login.sessions import (
    MOST_OF_ONE,
    MOST_RESUMED,
    MOST_RESUMED_CHARACTERS,
    Notice,
    Session,
    Sessions,
    Tokens,
)

AT = datetime(2026, 11, 26, 12, tzinfo=UTC)
IDLE, LONGEST = timedelta(minutes=30), timedelta(hours=10)


def _session(subject: str = "anna", sid: str | None = "s1", at: datetime = AT) -> Session:
    return Session(
        subject=subject,
        name=subject,
        sid=sid,
        authenticated_at=at,
        tokens=Tokens(access="a-secret", refresh="r-secret", identity="i-secret", expires_at=at),
        opened_at=at,
        seen_at=at,
    )


def _sessions() -> Sessions:
    return Sessions(idle=IDLE, longest=LONGEST)


def test_an_id_names_one_session_and_guesses_name_none() -> None:
    """Ids are 256 random bits, and differ."""
    kept = _sessions()
    names = {kept.open(_session(f"p{i}")) for i in range(50)}
    assert len(names) == 50
    assert min(map(len, names)) >= 43
    assert kept.find("", AT) is None
    assert kept.find(next(iter(names))[:-1], AT) is None


@pytest.mark.threat("T271")
@pytest.mark.parametrize(("steps", "stands"), [([29, 29, 29], True), ([31], False), ([29] * 21, False)])
def test_a_session_ends_when_it_rests_and_in_any_case(steps: list[int], stands: bool) -> None:
    """Each request prolongs it by the idle time, none beyond the longest."""
    kept = _sessions()
    name, at = kept.open(_session()), AT
    found: Session | None = None
    for minutes in steps:
        at += timedelta(minutes=minutes)
        found = kept.find(name, at)
    assert (found is not None) is stands
    assert len(kept) == int(stands)


@pytest.mark.threat("T271")
def test_what_was_closed_is_over() -> None:
    """Whoever still has the id has nothing."""
    kept = _sessions()
    name = kept.open(_session())
    assert kept.close(name) is not None
    assert kept.find(name, AT) is None
    assert kept.close(name) is None


@pytest.mark.threat("T271")
def test_the_provider_ends_one_login_or_all_of_a_person() -> None:
    """By `sid` that one; by `sub` all of that person; nobody else's."""
    kept = _sessions()
    one, two = kept.open(_session(sid="s1")), kept.open(_session(sid="s2"))
    other = kept.open(_session("bernd", sid="s3"))
    assert kept.close_of(subject="bernd", sid="s1") == 0
    assert kept.close_of(subject=None, sid="s1") == 1
    assert kept.find(one, AT) is None
    assert kept.find(two, AT) is not None
    assert kept.close_of(subject="anna", sid=None) == 1
    assert kept.find(two, AT) is None
    assert kept.find(other, AT) is not None


@pytest.mark.threat("T277")
def test_one_person_has_so_many_and_all_have_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that was used longest ago gives way; a flood of one person's logins ends no other's."""
    kept = _sessions()
    bernd = kept.open(_session("bernd"))
    first = kept.open(_session())
    for i in range(MOST_OF_ONE):
        kept.open(_session(at=AT + timedelta(seconds=i + 1)))
    assert len(kept) == MOST_OF_ONE + 1
    assert kept.find(first, AT) is None
    assert kept.find(bernd, AT) is not None
    monkeypatch.setattr(module, "MOST_SESSIONS", 5)
    kept.open(_session("carla", at=AT + timedelta(hours=0.1)))
    assert len(kept) == 5


@pytest.mark.threat("T276")
def test_nothing_secret_is_printed() -> None:
    """A session in a log or a trace shows no token and no key."""
    session = _session()
    assert "secret" not in repr(session)
    assert repr(session.key) not in repr(session)


def test_forms_that_wait_are_few() -> None:
    """The newest are kept."""
    session = _session()
    names = [session.keep({"n": str(i)}) for i in range(MOST_RESUMED + 3)]
    assert len(session.resumed) == MOST_RESUMED
    assert names[-1] in session.resumed
    assert names[0] not in session.resumed
    # However long they are: together, too, they have a size.
    names = [session.keep({"n": "x" * (MOST_RESUMED_CHARACTERS // 2)}) for _ in range(MOST_RESUMED)]
    assert list(session.resumed) == names[-2:]
    # What takes the place of one is counted likewise.
    session.change(names[-2], {"n": "y" * MOST_RESUMED_CHARACTERS})
    assert session.resumed == {names[-2]: {"n": "y" * MOST_RESUMED_CHARACTERS}}
    session.change(names[-1], {"n": "z"})
    assert list(session.resumed) == [names[-2]]


@pytest.fixture
def interleaved() -> Iterator[None]:
    """Threads change places at almost every step."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_tabs_that_ask_at_the_same_time_lose_nothing(interleaved: None) -> None:
    """Each notice is told once and each form kept, however the threads of one person's pages change places."""
    for _ in range(40):
        session, told, names = _session(), list[Notice](), list[str]()
        begin = threading.Barrier(MOST_RESUMED)

        def page(
            number: int,
            session: Session = session,
            told: list[Notice] = told,
            names: list[str] = names,
            begin: threading.Barrier = begin,
        ) -> None:
            begin.wait()
            session.tell(Notice(text=str(number)))
            names.append(session.keep({"n": str(number)}))
            told.extend(session.told())

        threads = [threading.Thread(target=page, args=(n,)) for n in range(MOST_RESUMED)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        told.extend(session.told())
        assert sorted(each.text for each in told) == [str(n) for n in range(MOST_RESUMED)]
        assert session.resumed.keys() == set(names)
