"""Logins that are kept: only their owner's, whole or not at all, renewed once."""

from __future__ import annotations

import contextlib
import hashlib
import json
import multiprocessing
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attestation.client.openid.errors import LoginNeeded, ProviderInvalid, ProviderUnreachable
from attestation_cli.login import current, keychain, private_files
from attestation_cli.login.cache import Login, LoginCache, Unusable, _parse, entry_name
from attestation_cli.login.errors import CacheBusy, CacheUnsafe, KeychainUnusable
from tests.unit.cli.idp import AT, CANARY, CLIENT, ISSUER, SUB, Idp, a_login, jwt, refused


class FakeKeychain:
    """A keyring in memory."""

    def __init__(self) -> None:
        self.kept: dict[str, str] = {}

    def get(self, name: str) -> str | None:
        """Return what is kept."""
        return self.kept.get(name)

    def put(self, name: str, secret: str) -> None:
        """Keep it."""
        self.kept[name] = secret

    def remove(self, name: str) -> None:
        """Forget it."""
        self.kept.pop(name, None)


@pytest.fixture
def notes() -> list[str]:
    return []


@pytest.fixture
def cache(home: Path, notes: list[str]) -> LoginCache:
    return LoginCache(note=notes.append)


def file_of(cache: LoginCache, login: Login) -> Path:
    return cache.directory / f"{login.name}.json"


# What is kept, and how


def test_a_login_is_kept_and_found_again(cache: LoginCache) -> None:
    """Every member survives; nothing of the cache says whose it is but the content."""
    login = a_login()
    cache.save(login)
    assert cache.load(login.name) == login
    assert cache.logins() == [login]
    name = hashlib.sha256(json.dumps([ISSUER, CLIENT, SUB], separators=(",", ":")).encode()).hexdigest()
    assert [p.name for p in cache.directory.iterdir()] == [f"{name}.json"]


def test_the_files_are_the_owners_alone(cache: LoginCache, home: Path) -> None:
    """Directories 0700, file 0600, whatever the umask."""
    before = os.umask(0)
    try:
        cache.save(a_login())
    finally:
        os.umask(before)
    modes = {
        path: stat.S_IMODE(path.stat().st_mode)
        for path in (home / ".itl", cache.directory, file_of(cache, a_login()))
    }
    assert list(modes.values()) == [0o700, 0o700, 0o600]


def test_different_people_and_providers_have_different_files() -> None:
    """No two triples share a name, however their parts are cut."""
    names = {
        entry_name(*triple)
        for triple in [("a", "b", "c"), ("ab", "", "c"), ("a", "bc", ""), ('a","b', "c", ""), ("a", "b", "C")]
    }
    assert len(names) == 5


@given(st.text(), st.text(), st.text())
def test_a_name_is_64_hex_digits_whatever_the_claims(issuer: str, client: str, subject: str) -> None:
    """No claim steers where a file is written, not even `../`."""
    name = entry_name(issuer, client, subject)
    assert len(name) == 64
    assert not set(name) - set("0123456789abcdef")


def test_tokens_are_not_in_the_representation() -> None:
    """Neither in logs nor in tracebacks."""
    assert "canary" not in repr(a_login())


def test_a_crash_while_writing_leaves_the_old_login(
    cache: LoginCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The new one appears whole or not at all, and nothing is left lying about."""
    cache.save(a_login())

    def crash(*args: object, **more: object) -> None:
        raise OSError(28, "No space left on device")

    for step in ("fsync", "rename"):
        with monkeypatch.context() as patch:
            patch.setattr(os, step, crash)
            with pytest.raises(CacheUnsafe, match="No space"):
                cache.save(a_login(refresh_token="new"))
        assert cache.load(a_login().name) == a_login()
        assert len(list(cache.directory.iterdir())) == 1


def test_the_data_is_on_the_disk_before_it_has_its_name(
    cache: LoginCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """fsync, rename, fsync of the directory: in this order."""
    steps: list[str] = []
    for step in ("fsync", "rename"):
        true = getattr(os, step)

        def told(*args: Any, _step: str = step, _true: Any = true, **more: Any) -> Any:
            steps.append(_step)
            return _true(*args, **more)

        monkeypatch.setattr(os, step, told)
    cache.save(a_login())
    assert steps == ["fsync", "rename", "fsync"]


# What is refused


def test_without_a_directory_nobody_is_logged_in(cache: LoginCache) -> None:
    """And asking makes none."""
    assert cache.entries() == []
    assert cache.load("0" * 64) is None
    assert not cache.directory.exists()


@pytest.mark.threat("T56")
@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660, 0o610])
def test_a_file_that_others_may_use_is_refused(cache: LoginCache, mode: int) -> None:
    """It may hold somebody else's token."""
    cache.save(a_login())
    file_of(cache, a_login()).chmod(mode)
    with pytest.raises(CacheUnsafe, match=f"{mode:04o}"):
        cache.load(a_login().name)
    with pytest.raises(CacheUnsafe):
        cache.logins()
    assert isinstance(cache.entries()[0], Unusable)


@pytest.mark.parametrize("mode", [0o755, 0o770, 0o701])
def test_a_directory_that_others_may_use_is_refused(cache: LoginCache, mode: int) -> None:
    """Reading and writing."""
    cache.save(a_login())
    cache.directory.chmod(mode)
    for work in (
        cache.logins,
        lambda: cache.load(a_login().name),
        lambda: cache.save(a_login()),
        cache.clear,
    ):
        with pytest.raises(CacheUnsafe, match="chmod 700"):
            work()


@pytest.mark.parametrize("mode", [0o777, 0o775])
def test_a_directory_above_that_others_may_write_is_refused(cache: LoginCache, mode: int) -> None:
    """They could put a cache of their own there."""
    cache.save(a_login())
    cache.directory.parent.chmod(mode)
    with pytest.raises(CacheUnsafe, match="other users"):
        cache.logins()


@pytest.mark.threat("T56")
def test_a_link_in_the_place_of_a_file_is_not_followed(cache: LoginCache, tmp_path: Path) -> None:
    """Neither to read nor to write: what it points to stays as it is."""
    cache.save(a_login())
    target = tmp_path / "target"
    file = file_of(cache, a_login())
    file.rename(target)
    before = target.read_bytes()
    file.symlink_to(target)
    with pytest.raises(CacheUnsafe, match="symbolic link"):
        cache.load(a_login().name)
    cache.save(a_login(refresh_token="new"))
    assert target.read_bytes() == before
    assert not file.is_symlink()


def test_a_link_in_the_place_of_the_directory_is_not_followed(cache: LoginCache, tmp_path: Path) -> None:
    """A cache elsewhere is another cache."""
    cache.save(a_login())
    elsewhere = tmp_path / "elsewhere"
    cache.directory.rename(elsewhere)
    cache.directory.symlink_to(elsewhere)
    with pytest.raises(CacheUnsafe, match="symbolic link"):
        cache.logins()
    with pytest.raises(CacheUnsafe):
        cache.save(a_login())


def test_a_link_in_the_place_of_the_lock_is_not_followed(cache: LoginCache, tmp_path: Path) -> None:
    """It would make or hold a file elsewhere."""
    cache.save(a_login())
    (cache.directory / f"{a_login().name}.lock").symlink_to(tmp_path / "target")
    with pytest.raises(CacheUnsafe), cache.lock(a_login().name):
        pass
    assert not (tmp_path / "target").exists()


def test_a_lock_that_others_may_hold_is_refused(cache: LoginCache) -> None:
    """They could keep every command waiting."""
    with cache.lock(a_login().name):
        pass
    (cache.directory / f"{a_login().name}.lock").chmod(0o666)
    with pytest.raises(CacheUnsafe), cache.lock(a_login().name):
        pass


def test_a_pipe_in_the_place_of_a_file_does_not_block(cache: LoginCache) -> None:
    """It is refused at once."""
    cache.save(a_login())
    file_of(cache, a_login()).unlink()
    os.mkfifo(file_of(cache, a_login()), 0o600)
    with pytest.raises(CacheUnsafe, match="regular"):
        cache.load(a_login().name)


@pytest.mark.threat("T56")
def test_what_belongs_to_somebody_else_is_refused(cache: LoginCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever made it can change it."""
    cache.save(a_login())
    uid = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: uid + 1)
    with pytest.raises(CacheUnsafe, match=r"another user|other users"):
        cache.logins()


def test_a_file_that_is_too_long_is_refused(cache: LoginCache) -> None:
    """It is not read to its end."""
    cache.save(a_login())
    file_of(cache, a_login()).write_bytes(b" " * (private_files.LONGEST_FILE + 1))
    with pytest.raises(CacheUnsafe, match="longer"):
        cache.load(a_login().name)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b"\xff\xfe", b"{}", b"[" * 100_000],
    ids=["empty", "cut", "list", "null", "binary", "no members", "deep"],
)
def test_a_file_that_cannot_be_read_is_deleted_with_a_note(
    cache: LoginCache, notes: list[str], content: bytes
) -> None:
    """A broken login is as good as none."""
    cache.save(a_login())
    file_of(cache, a_login()).write_bytes(content)
    assert cache.load(a_login().name) is None
    assert not file_of(cache, a_login()).exists()
    assert "has been deleted" in notes[0]


@pytest.mark.parametrize(
    "changes",
    [
        {"issuer": "https://evil.example"},
        {"subject": "somebody-else"},
        {"client_id": 7},
        {"access_token": None},
        {"refresh_token": 7},
        {"expires_at": "soon"},
        {"expires_at": "2026-11-21T12:00:00"},
        {"username": ["x"]},
    ],
)
def test_a_file_under_the_name_of_another_login_is_deleted(
    cache: LoginCache, changes: dict[str, Any]
) -> None:
    """The name binds issuer, client and person; members have their kinds."""
    cache.save(a_login())
    file = file_of(cache, a_login())
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    assert cache.logins() == []
    assert not file.exists()


@given(st.binary(max_size=300))
def test_any_bytes_are_a_login_or_none(data: bytes) -> None:
    """Reading fails in one way only."""
    assert _parse(data) is None


def test_a_cache_that_cannot_be_made_is_told_as_such(cache: LoginCache, home: Path) -> None:
    """A file where the directory should be."""
    (home / ".itl").write_text("")
    with pytest.raises(CacheUnsafe):
        cache.save(a_login())


# Forgetting


def test_clearing_removes_what_is_ours_and_nothing_else(cache: LoginCache, notes: list[str]) -> None:
    """Logins, locks, remains of a crash, links and broken files; not a file that somebody keeps there."""
    cache.save(a_login())
    cache.save(a_login(subject="other"))
    with cache.lock(a_login().name):
        pass
    (cache.directory / f".{'0' * 16}.tmp").write_text("x")
    (cache.directory / f"{'a' * 64}.json").symlink_to("/nowhere")
    mine = cache.directory / "notes.txt"
    mine.write_text("mine")
    assert cache.clear() == 3
    assert list(cache.directory.iterdir()) == [mine]
    assert cache.clear() == 0


# The keyring


def test_tokens_can_be_kept_in_the_keyring(home: Path) -> None:
    """The file then holds no token, and clearing forgets both."""
    ring = FakeKeychain()
    cache = LoginCache(keychain=lambda: ring)
    login = a_login(keyring=True)
    cache.save(login)
    assert "canary" not in file_of(cache, login).read_text()
    assert "canary" in ring.kept[login.name]
    assert cache.load(login.name) == login
    assert cache.clear() == 1
    assert ring.kept == {}


@pytest.mark.parametrize("content", [None, "", "{", "[]", '{"access_token": 1, "refresh_token": null}'])
def test_a_keyring_that_has_forgotten_is_no_login(home: Path, content: str | None) -> None:
    """Whoever removed it there logged out."""
    ring = FakeKeychain()
    cache = LoginCache(keychain=lambda: ring)
    login = a_login(keyring=True)
    cache.save(login)
    if content is None:
        ring.kept.clear()
    else:
        ring.kept[login.name] = content
    assert cache.load(login.name) is None


def test_a_computer_without_a_keyring_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Absent library, failing, empty or plain-text backend: refused, not silently a file."""
    import sys

    import keyring
    from keyring.backend import KeyringBackend
    from keyring.backends import fail, null

    class Useless(KeyringBackend):
        priority = 0.0

        def get_password(self, service: str, username: str) -> str | None:
            return None

        def set_password(self, service: str, username: str, password: str) -> None:
            pass

    class PlaintextKeyring(Useless):
        priority = 1.0

    kinds: list[Callable[[], KeyringBackend]] = [fail.Keyring, null.Keyring, Useless, PlaintextKeyring]
    for backend in [kind() for kind in kinds]:
        monkeypatch.setattr(keyring, "get_keyring", lambda backend=backend: backend)
        with pytest.raises(KeychainUnusable, match="no keyring"):
            keychain.SystemKeychain()
    monkeypatch.setitem(sys.modules, "keyring", None)
    with pytest.raises(KeychainUnusable, match=r"\[keyring\]"):
        keychain.SystemKeychain()


def test_the_keyring_of_the_system_is_used_by_its_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is put is got and removed; a failure is told without what was to be kept."""
    import keyring
    import keyring.errors
    from keyring.backend import KeyringBackend

    class Memory(KeyringBackend):
        priority = 5.0
        broken = False

        def __init__(self) -> None:
            self.kept: dict[tuple[str, str], str] = {}

        def get_password(self, service: str, username: str) -> str | None:
            return self.kept.get((service, username))

        def set_password(self, service: str, username: str, password: str) -> None:
            if self.broken:
                raise keyring.errors.PasswordSetError(password)
            self.kept[service, username] = password

        def delete_password(self, service: str, username: str) -> None:
            del self.kept[service, username]

    memory = Memory()
    monkeypatch.setattr(keyring, "get_keyring", lambda: memory)
    ring = keychain.SystemKeychain()
    ring.put("name", "canary")
    assert ring.get("name") == "canary"
    ring.remove("name")
    ring.remove("name")
    assert ring.get("name") is None
    memory.broken = True
    with pytest.raises(KeychainUnusable) as caught:
        ring.put("name", "canary")
    assert "canary" not in str(caught.value)
    assert caught.value.__suppress_context__


# Which login, and renewing it


def wanted(**changes: Any) -> current.Wanted:
    known: dict[str, Any] = {
        "issuer": ISSUER,
        "client_id": CLIENT,
        "user": None,
        "api_url": "http://localhost:8080",
    }
    return current.Wanted(**(known | changes))


def test_the_newest_fitting_login_is_used(cache: LoginCache) -> None:
    """By issuer and client; by name, e-mail or sub where somebody is named."""
    old = a_login()
    new = a_login(
        subject="ben-sub", username="ben", email="ben@itl.example", obtained_at=AT + timedelta(minutes=1)
    )
    cache.save(old)
    cache.save(new)
    assert current.find(cache, wanted()) == new
    for user in ("anna", "anna@itl.example", SUB):
        assert current.find(cache, wanted(user=user)) == old
    assert current.find(cache, wanted(user="carl")) is None
    assert current.find(cache, wanted(issuer="https://other.example")) is None
    assert current.find(cache, wanted(client_id="other")) is None


@pytest.mark.threat("T57")
def test_without_an_issuer_a_token_goes_only_where_it_was_made_for(cache: LoginCache) -> None:
    """Another service could use it at the first one."""
    cache.save(a_login())
    assert current.find(cache, wanted(issuer=None)) == a_login()
    assert current.find(cache, wanted(issuer=None, api_url="https://evil.example")) is None


@pytest.mark.parametrize(
    ("life", "left", "expired"),
    [
        (3600, 301, False),
        (3600, 300, True),
        (3600, -1, True),
        (300, 151, False),  # Keycloak's tokens live five minutes: they are not born expired
        (300, 150, True),
        (0, 0, True),
    ],
)
def test_a_token_within_five_minutes_of_its_end_counts_as_expired(
    life: int, left: int, expired: bool
) -> None:
    """A short one in the second half of its life."""
    login = a_login(expires_at=AT + timedelta(seconds=life))
    assert login.is_expired(AT + timedelta(seconds=life - left)) is expired


@pytest.mark.threat("T177")
def test_a_clock_that_was_set_back_has_the_login_renewed() -> None:
    """The token may have ended long ago; without a refresh token there is nobody to ask, so it is tried."""
    an_hour_ago = AT - timedelta(hours=1)
    assert a_login().is_expired(an_hour_ago)
    assert not a_login(refresh_token=None).is_expired(an_hour_ago)
    assert not a_login().is_expired(AT - timedelta(seconds=30))


def bearer(cache: LoginCache, idp: Idp, *, minutes: float) -> str:
    return current.bearer(cache, wanted(), carrier=idp.carrier, now=lambda: AT + timedelta(minutes=minutes))


def test_a_good_token_is_sent_without_asking_anybody(cache: LoginCache) -> None:
    """No request to the provider."""
    cache.save(a_login())
    idp = Idp()
    assert bearer(cache, idp, minutes=0) == a_login().access_token
    assert idp.requests == []


def test_a_token_near_its_end_is_renewed_and_kept(cache: LoginCache) -> None:
    """Once; the next command finds the new one."""
    cache.save(a_login())
    idp = Idp()
    first = bearer(cache, idp, minutes=56)
    assert first != a_login().access_token
    assert bearer(cache, idp, minutes=57) == first
    assert len(idp.forms) == 1


def test_a_refused_renewal_says_to_log_in_again(cache: LoginCache) -> None:
    """Also without a refresh token, and without any login."""
    cache.save(a_login())
    with pytest.raises(LoginNeeded, match="has ended"):
        bearer(cache, Idp(token=refused("invalid_grant", "Token is not active")), minutes=56)
    cache.save(a_login(refresh_token=None))
    with pytest.raises(LoginNeeded, match="has expired"):
        bearer(cache, Idp(), minutes=56)
    cache.clear()
    with pytest.raises(LoginNeeded, match="no login"):
        bearer(cache, Idp(), minutes=0)


def test_a_provider_that_is_down_matters_only_when_the_token_has_ended(cache: LoginCache) -> None:
    """In its last five minutes the token is used as it is."""
    cache.save(a_login())
    down = Idp(metadata={"issuer": "https://evil.example"})
    assert bearer(cache, down, minutes=58) == a_login().access_token
    with pytest.raises(ProviderInvalid):
        bearer(cache, down, minutes=61)


def test_what_another_command_renewed_is_used(cache: LoginCache) -> None:
    """Whoever waited for the lock does not spend the new refresh token at once."""
    stale = a_login()
    later = AT + timedelta(minutes=50)
    cache.save(a_login(access_token=jwt(sub=SUB, jti="newer"), obtained_at=later))
    idp = Idp()
    fresh = current.refresh(cache, stale, force=True, carrier=idp.carrier, now=lambda: later)
    assert fresh.obtained_at > stale.obtained_at
    assert idp.requests == []


@pytest.mark.threat("T177")
def test_a_renewal_is_judged_by_the_clock_of_the_provider(cache: LoginCache) -> None:
    """An hour fast: what came for the refresh token that was spent is kept, and the clock is told."""
    login, idp, told = a_login(), Idp(id_token={"exp": AT.timestamp() + 300}), list[str]()
    cache = LoginCache(cache.directory, note=told.append)
    cache.save(login)

    def renew(date: str | None) -> None:
        def answer(_: dict[str, str]) -> httpx.Response:
            found = idp.tokens()
            found.headers.update({} if date is None else {"Date": date})
            return found

        idp.token = answer
        later = AT + timedelta(hours=1)
        current.refresh(cache, login, force=True, carrier=idp.carrier, now=lambda: later)

    # A provider whose clock nobody knows: ours has to do.
    with pytest.raises(LoginNeeded, match="is the clock of this computer right"):
        renew(None)
    assert (told, cache.load(login.name)) == ([], login)
    renew(format_datetime(AT, usegmt=True))
    kept = cache.load(login.name)
    assert kept is not None
    assert kept.refresh_token == f"{CANARY}-refresh-2"
    assert (
        "this computer is 60 min ahead of the identity provider's, which says 2026-11-21 12:00 UTC" in told[0]
    )


def test_a_login_that_was_removed_meanwhile_is_not_renewed(cache: LoginCache) -> None:
    """Logging out wins."""
    cache.save(a_login())
    cache.remove(a_login())
    with pytest.raises(LoginNeeded, match="removed"):
        current.refresh(cache, a_login(), carrier=Idp().carrier, now=lambda: AT)


def test_a_command_that_never_ends_does_not_hold_the_others_for_ever(
    cache: LoginCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """45 seconds (here less), then a text."""
    monkeypatch.setattr("attestation_cli.login.cache.LOCK_SECONDS", 0.1)
    with cache.lock("0" * 64), pytest.raises(CacheBusy), cache.lock("0" * 64):
        pass


class OneUse(BaseHTTPRequestHandler):
    """A provider that takes each refresh token once, slowly, as many do."""

    lock = threading.Lock()
    refresh_token = "canary-refresh-0"
    count = 0

    def do_GET(self) -> None:
        """Describe the provider."""
        issuer = f"http://127.0.0.1:{self.connection.getsockname()[1]}"
        self._answer(200, {"issuer": issuer, "token_endpoint": f"{issuer}/token"})

    def do_POST(self) -> None:
        """Renew."""
        form = self.rfile.read(int(self.headers["Content-Length"])).decode()
        time.sleep(0.3)
        kind = type(self)
        with kind.lock:
            if f"refresh_token={kind.refresh_token}&" not in form:
                return self._answer(400, {"error": "invalid_grant"})
            kind.count += 1
            kind.refresh_token = f"canary-refresh-{kind.count}"
        return self._answer(
            200,
            {
                "access_token": jwt(sub=SUB, jti=str(kind.count)),
                "token_type": "Bearer",
                "expires_in": 3600,
                "refresh_token": kind.refresh_token,
            },
        )

    def _answer(self, status: int, members: dict[str, Any]) -> None:
        body = json.dumps(members).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- the library's signature
        """Be quiet."""


@pytest.fixture
def one_use() -> Iterator[tuple[str, type[OneUse]]]:
    handler = type("Handler", (OneUse,), {})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}", handler
    server.shutdown()
    server.server_close()
    thread.join(60)


def _renew(directory: Path, ready: Any, start: Any, out: Queue[str]) -> None:
    cache = LoginCache(directory)
    login = cache.logins()[0]
    ready.release()
    start.wait(60)
    try:
        out.put(current.refresh(cache, login, now=lambda: login.expires_at).access_token)
    except BaseException as e:
        out.put(f"failed: {e!r}")


@pytest.mark.threat("T57")
def test_four_processes_renew_once(cache: LoginCache, one_use: tuple[str, type[OneUse]]) -> None:
    """All hold the same expired login; one refresh token is spent, and everybody has the same new token."""
    issuer, handler = one_use
    cache.save(a_login(issuer=issuer))
    context = multiprocessing.get_context("spawn")
    ready, start, out = context.Semaphore(0), context.Event(), context.Queue()
    workers = [
        context.Process(target=_renew, args=(cache.directory, ready, start, out), daemon=True)
        for _ in range(4)
    ]
    for worker in workers:
        worker.start()
    try:
        # Everybody has read the expired login before anybody renews it.
        assert all(ready.acquire(timeout=60) for _ in workers)
        start.set()
        tokens = {out.get(timeout=60) for _ in workers}
    finally:
        for worker in workers:
            worker.join(60)
            with contextlib.suppress(ValueError):
                worker.kill()
    assert tokens == {jwt(sub=SUB, jti="1")}
    assert handler.count == 1


def test_an_unreachable_provider_is_told_as_such(cache: LoginCache) -> None:
    """Nobody listens there."""
    login = a_login(issuer="http://127.0.0.1:9")
    cache.save(login)
    with pytest.raises(ProviderUnreachable, match="cannot connect"):
        current.refresh(cache, login, force=True)
