"""Logins that are kept between commands: one private file each, in `~/.itl/attestation-cache/`.

The file is called SHA-256(issuer, client, sub).json: its name tells nothing, and no claim steers where it is written.
It holds `access_token`, `refresh_token`, `expires_at` (RFC 3339), `token_type`, `client_id` and `username` as earlier
versions did, and besides `issuer`, `subject`, `email`, `obtained_at`, `api_url` and `keyring`.
"""

# Algorithms for: bearer-secret
from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from attestation_cli.login import private_files
from attestation_cli.login.errors import CacheBusy, CacheUnsafe, KeychainUnusable
from attestation_cli.login.keychain import Keychain, SystemKeychain

FILE = re.compile(r"[0-9a-f]{64}\.json\Z")
OURS = re.compile(r"([0-9a-f]{64}\.(json|lock)|\.[0-9a-f]{16}\.tmp)\Z")
EXPIRES_EARLY = timedelta(minutes=5)
CLOCKS_DIFFER = timedelta(minutes=1)
"""How far a clock may go back by itself, as time services set it."""
LOCK_SECONDS = 45.0
"""Longer than a refresh may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """What one login yielded. Its claims are the provider's words, not verified by us.

    Args:
        issuer: The provider.
        client_id: How the provider knows this program.
        subject: `sub`: whom the provider means; at most 255 characters.
        username: Their name; None where the provider told none.
        email: Their address.
        access_token: What commands send.
        refresh_token: What buys the next access token; None where the provider gave none.
        expires_at: When the access token ends, UTC.
        obtained_at: When the provider gave it, UTC.
        api_url: The service that was in use at the login.
        keyring: True where the tokens are in the keyring of the system, not in the file.
    """

    issuer: str
    client_id: str
    subject: str
    username: str | None = None
    email: str | None = None
    access_token: str = field(repr=False)
    refresh_token: str | None = field(default=None, repr=False)
    expires_at: datetime
    obtained_at: datetime
    api_url: str | None = None
    keyring: bool = False

    @property
    def name(self) -> str:
        """Name of its file, without the ending: 64 hex digits."""
        return entry_name(self.issuer, self.client_id, self.subject)

    @property
    def shown_name(self) -> str:
        """What people call its owner."""
        return self.username or self.email or self.subject

    def is_expired(self, at: datetime) -> bool:
        """True from 5 minutes before its end, or before its beginning.

        A token that lives less than 10 minutes counts for half its life.

        Providers often give tokens of 5 minutes, which would otherwise be born expired (ADR 20).
        """
        early = min(EXPIRES_EARLY, (self.expires_at - self.obtained_at) / 2)
        # A clock that was set back since says nothing about the end: the provider is asked.
        set_back = self.refresh_token is not None and at < self.obtained_at - CLOCKS_DIFFER
        return set_back or at >= self.expires_at - early


@dataclass(frozen=True, slots=True)
class Unusable:
    """A file of the cache that cannot be used, and why."""

    file: str
    reason: str


def entry_name(issuer: str, client_id: str, subject: str) -> str:
    """Return the SHA-256 of the JSON array of the three, UTF-8, as 64 hex digits."""
    text = json.dumps([issuer, client_id, subject], ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _silent(_text: str) -> None:
    """Tell nobody."""


class LoginCache:
    """The directory of logins.

    Args:
        directory: Default `~/.itl/attestation-cache`.
        keychain: Makes the keyring, when a login is kept there.
        note: Tells the user what was found to be broken.
    """

    def __init__(
        self,
        directory: Path | None = None,
        *,
        keychain: Callable[[], Keychain] = SystemKeychain,
        note: Callable[[str], None] = _silent,
    ) -> None:
        self.directory = directory or Path.home() / ".itl" / "attestation-cache"
        self._keychain = keychain
        self._note = note

    def note(self, text: str) -> None:
        """Tell the user."""
        self._note(text)

    def prepare(self, *, keyring: bool) -> None:
        """Make the directory, and find the keyring, before they are needed.

        Raises:
            CacheUnsafe: The directory is not the user's alone.
            KeychainUnusable: There is no keyring, where one shall be used.
        """
        with self._open(create=True):
            if keyring:
                self._keychain()

    def entries(self) -> list[Login | Unusable]:
        """Return every login, newest first, without tokens that are in the keyring; then what cannot be used.

        Raises:
            CacheUnsafe: The directory is not the user's alone.
        """
        found: list[Login] = []
        unusable: list[Unusable] = []
        with self._open(create=False) as directory_fd:
            for name in _names(directory_fd):
                if not FILE.match(name):
                    continue
                assert directory_fd is not None
                try:
                    login = self._read(directory_fd, name)
                except CacheUnsafe as e:
                    unusable.append(Unusable(name, str(e)))
                    continue
                if login is not None:
                    found.append(login)
        found.sort(key=lambda login: login.obtained_at, reverse=True)
        return [*found, *unusable]

    def logins(self) -> list[Login]:
        """Return every login, newest first. A file that others could have changed stops the command.

        Raises:
            CacheUnsafe: The directory or a file is not the user's alone.
        """
        found = []
        for entry in self.entries():
            if isinstance(entry, Unusable):
                raise CacheUnsafe(entry.reason)
            found.append(entry)
        return found

    def load(self, name: str) -> Login | None:
        """Return the login *name*, with its tokens wherever they are; None where there is none.

        Raises:
            CacheUnsafe: It is not the user's alone.
            KeychainUnusable: Its tokens are in a keyring that does not answer.
        """
        with self._open(create=False) as directory_fd:
            login = None if directory_fd is None else self._read(directory_fd, f"{name}.json")
        if login is None or not login.keyring:
            return login
        try:
            tokens = json.loads(self._keychain().get(name) or "null")
            access, refresh = tokens["access_token"], tokens["refresh_token"]
        except (ValueError, TypeError, KeyError):
            return None  # removed from the keyring by somebody: as good as never logged in
        if not isinstance(access, str) or not isinstance(refresh, str | None):
            return None
        return replace(login, access_token=access, refresh_token=refresh)

    def save(self, login: Login) -> None:
        """Keep *login*, in the place of an earlier one of the same person at the same provider.

        Raises:
            CacheUnsafe: The directory is not the user's alone, or cannot be written.
            KeychainUnusable: The keyring does not keep it.
        """
        kept: dict[str, object] = {
            "version": 1,
            "issuer": login.issuer,
            "client_id": login.client_id,
            "subject": login.subject,
            "username": login.username,
            "email": login.email,
            "token_type": "Bearer",
            "expires_at": _instant(login.expires_at),
            "obtained_at": _instant(login.obtained_at),
            "api_url": login.api_url,
            "keyring": login.keyring,
        }
        tokens = {"access_token": login.access_token, "refresh_token": login.refresh_token}
        if login.keyring:
            self._keychain().put(login.name, json.dumps(tokens))
        else:
            kept |= tokens
        with self._open(create=True) as directory_fd:
            assert directory_fd is not None
            data = json.dumps(kept, indent=1).encode() + b"\n"
            private_files.write(self.directory, directory_fd, f"{login.name}.json", data)

    def remove(self, login: Login) -> None:
        """Forget *login*."""
        if login.keyring:
            with contextlib.suppress(KeychainUnusable):
                self._keychain().remove(login.name)
        with self._open(create=False) as directory_fd:
            if directory_fd is not None:
                private_files.remove(directory_fd, f"{login.name}.json")

    def clear(self) -> int:
        """Forget every login, also those that cannot be used; return how many there were."""
        entries = self.entries()
        for entry in entries:
            if isinstance(entry, Login):
                self.remove(entry)
        with self._open(create=False) as directory_fd:
            for name in _names(directory_fd):
                if OURS.match(name):
                    assert directory_fd is not None
                    private_files.remove(directory_fd, name)
        return len(entries)

    @contextlib.contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """Hold the login *name*, so that of several commands one refreshes it and the others use what it got.

        Raises:
            CacheBusy: Another command held it for 45 s.
            CacheUnsafe: The directory or the lock is not the user's alone.
        """
        with self._open(create=True) as directory_fd:
            file_name = f"{name}.lock"
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            try:
                file = os.open(file_name, flags, 0o600, dir_fd=directory_fd)
            except OSError as e:
                raise CacheUnsafe(f"{self.directory / file_name} cannot be opened: {e.strerror}") from e
            with os.fdopen(file, "r+b"):
                private_files.check_private(self.directory / file_name, os.fstat(file), "remove")
                deadline = time.monotonic() + LOCK_SECONDS
                while True:
                    try:
                        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        break
                    except BlockingIOError:
                        if time.monotonic() > deadline:
                            raise CacheBusy("another command has been renewing this login for 45 s") from None
                        time.sleep(0.05)
                yield  # closing the file ends the lock, also when the process is killed

    @contextlib.contextmanager
    def _open(self, *, create: bool) -> Iterator[int | None]:
        directory_fd = private_files.open_directory(self.directory, create=create)
        try:
            yield directory_fd
        finally:
            if directory_fd is not None:
                os.close(directory_fd)

    def _read(self, directory_fd: int, file_name: str) -> Login | None:
        data = private_files.read(self.directory, directory_fd, file_name)
        if data is None:
            return None
        login = _parse(data)
        if login is None or f"{login.name}.json" != file_name:
            private_files.remove(directory_fd, file_name)
            self._note(f"note: {self.directory / file_name} was not readable and has been deleted")
            return None
        return login


def _names(directory_fd: int | None) -> list[str]:
    # By the descriptor that was checked: pathlib knows names only.
    return [] if directory_fd is None else sorted(os.listdir(directory_fd))  # noqa: PTH208 -- of an open directory


def _parse(data: bytes) -> Login | None:
    """Return the login that *data* holds; None where it holds none."""
    try:
        kept = json.loads(data)
        keyring = kept["keyring"] is True
        login = Login(
            issuer=kept["issuer"],
            client_id=kept["client_id"],
            subject=kept["subject"],
            username=kept["username"],
            email=kept["email"],
            access_token="" if keyring else kept["access_token"],
            refresh_token=None if keyring else kept["refresh_token"],
            expires_at=datetime.fromisoformat(kept["expires_at"]),
            obtained_at=datetime.fromisoformat(kept["obtained_at"]),
            api_url=kept["api_url"],
            keyring=keyring,
        )
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    texts = (login.issuer, login.client_id, login.subject, login.access_token)
    others = (login.username, login.email, login.refresh_token, login.api_url)
    if not all(isinstance(text, str) for text in texts) or not all(
        isinstance(text, str | None) for text in others
    ):
        return None
    aware = login.expires_at.tzinfo is not None and login.obtained_at.tzinfo is not None
    return login if aware else None


def _instant(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
