"""What keeps a start from its database: met for real, told in words that say what to do, and nothing left beside it."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from multiprocessing.connection import Connection
from pathlib import Path

import psycopg
import pytest

from attestation.errors import StoreUnavailable
from attestation.store import migrate
from attestation.store.look import look_at_server
from tests.fixtures.postgres import Server
from tests.unit.store.test_migrate import left_at_0009

# On a server


@pytest.fixture(scope="module")
def server(postgres_server: Server) -> Iterator[Server]:
    """A server with databases that cannot be used, each for a reason of its own."""
    made = ("read_only", "no_utf8", "theirs", "older", "torn")
    for name in ("read_only", "theirs", "older", "torn"):
        postgres_server.create(name, template="template0" if name in ("read_only", "theirs") else "empty")
    postgres_server.admin("CREATE DATABASE no_utf8 TEMPLATE template0 ENCODING 'SQL_ASCII'")
    postgres_server.admin("ALTER DATABASE read_only SET default_transaction_read_only = on")
    for name, statement in (
        ("theirs", "CREATE TABLE dashboards (id int)"),
        ("older", "UPDATE alembic_version SET version_num = '0020'"),
        ("torn", "ALTER TABLE machines DROP COLUMN alarm"),
    ):
        with psycopg.connect(postgres_server.url(name), autocommit=True) as connection:
            connection.execute(statement)
    for role in ("with_password PASSWORD 'right'", "without_rights", "not_listed"):
        postgres_server.admin(f"CREATE ROLE {role.partition(' ')[0]} LOGIN {role.partition(' ')[2]}")
    rules = postgres_server.folder / "data/pg_hba.conf"
    before = rules.read_text()
    rules.write_text(f"local all with_password scram-sha-256\nlocal all not_listed reject\n{before}")
    postgres_server.admin("SELECT pg_reload_conf()")
    yield postgres_server
    rules.write_text(before)
    postgres_server.admin("SELECT pg_reload_conf()")
    for name in made:
        postgres_server.drop(name)
    for role in ("with_password", "without_rights", "not_listed"):
        postgres_server.admin("DROP ROLE {}", role)


CONDITIONS = {
    "itl@127.0.0.1:1/x": r"no server of PostgreSQL answers for the database x at 127.0.0.1 .*correct host and port",
    "itl@/x?host=/nowhere": r"no server of PostgreSQL answers for the database x at this computer",
    "itl@no.such.host.invalid/x": r"no server of PostgreSQL answers for the database x at no.such.host.invalid",
    "with_password:wrong@/empty": r"takes no password of ours .*ITL_DB_PASSWORD_FILE",
    "with_password@/empty": r"takes no password of ours",
    "not_listed@/empty": r"lets nobody in like that .*pg_hba\.conf",
    "nobody@/empty": r"does not know our role .*createuser",
    "itl@/nowhere": r"there is no database nowhere .*createdb -O ROLE -E UTF8 -T template0",
    "without_rights@/empty": r"our role may not use the tables .*As their owner: .* --grant-to ROLE",
    "itl@/read_only": r"may only be read: .*Name the primary",
    "itl@/no_utf8": r"the encoding SQL_ASCII",
    "itl@/theirs": r"of another program \(tables dashboards\)",
    "itl@/older": r"not those of the revision that it names \(.*already exists\).*Restore a backup",
    "itl@/torn": r"not those of the revision that it names \(no machines\.alarm\).*Restore a backup",
}
"""Whom and what a URL names, and what is said of it."""


@pytest.mark.parametrize("given", CONDITIONS)
def test_a_server_that_cannot_be_used(server: Server, given: str) -> None:
    """Each reason has its words; they carry no password, and a look in advance says the same."""
    where = "" if "127.0.0.1" in given or "host" in given else f"?host={server.folder}"
    url = f"postgresql+psycopg://{given}{where}"
    with pytest.raises(StoreUnavailable, match=CONDITIONS[given]) as told:
        migrate(url)
    assert "wrong" not in str(told.value)
    if given.partition("/")[2] in ("theirs", "older", "torn"):
        return  # can be looked at; what is wrong with its tables is for who asks for them
    with pytest.raises(StoreUnavailable, match=CONDITIONS[given]), look_at_server(url):
        pass


# In a file


def mountable() -> str | None:
    """Return why no file system can be mounted for a test; None where one can."""
    if shutil.which("unshare") is None:
        return "no unshare: apt-get install util-linux"
    done = subprocess.run(
        ["unshare", "-rm", "mount", "-t", "tmpfs", "none", "/mnt"],
        capture_output=True,
        text=True,
        check=False,
    )
    return None if done.returncode == 0 else f"no file system may be mounted here: {done.stderr.strip()}"


def prepared(folder: Path, script: str, *before: str) -> tuple[int, str]:
    """Run *script*, in a shell that *before* begins, with `$PREPARE` for `attestation-service --prepare`.

    Returns:
        Its exit status, and what was said.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ITL_")}
    done = subprocess.run(
        [*before, "sh", "-c", script],
        env={
            **environment,
            "PREPARE": f"{Path(sys.executable).with_name('attestation-service')} --prepare",
            "ITL_DB_URL": f"sqlite:///{folder}/mounted/machines.db",
            "ITL_ENROLLMENT_CA_DIR": str(folder / "ca"),
            "ITL_SERVICE_URL": "http://127.0.0.1:8080",
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


FILL = "dd if=/dev/zero of={place}/other bs=1k count=10000 2>/dev/null"


@pytest.mark.parametrize(
    ("script", "words", "left"),
    [
        ("mount -o remount,bind,ro {place}", "its file or file system is read-only. Mount it writable", set()),
        (
            "cp {older} {place}/machines.db && mount -o remount,bind,ro {place}",
            "its file or file system is read-only. Mount it writable",
            {"machines.db"},
        ),
        (FILL, "no room is left on the disk of the database", {"other", "machines.db", "machines.db.migrate-lock"}),
        (
            f"cp {{older}} {{place}}/machines.db && {FILL}",
            "no room is left on the disk of the database",
            {"other", "machines.db", "machines.db.migrate-lock"},
        ),
    ],
    ids=["read-only", "read-only with a database", "full", "full with an older database"],
)  # fmt: skip
def test_a_disk_that_cannot_be_written(tmp_path: Path, script: str, words: str, left: set[str]) -> None:
    """A real one. It is told, and there is no other database, no log of one, and no key afterwards."""
    if (reason := mountable()) is not None:
        pytest.skip(reason)
    older = tmp_path / "older.db"
    left_at_0009(older)
    place = tmp_path / "mounted"
    place.mkdir()
    made = script.format(place=place, older=older)
    code, said = prepared(
        tmp_path,
        f"mount -t tmpfs -o size=4m none {place} && {made}; $PREPARE; status=$?; ls {place} >{tmp_path}/left; "
        "exit $status",
        *("unshare", "-rm"),
    )
    assert code == 1, said
    assert words in said
    assert set((tmp_path / "left").read_text().split()) == left
    assert not (tmp_path / "ca").exists()


def test_a_disk_that_takes_only_a_part(tmp_path: Path) -> None:
    """As with a quota, or where it breaks: the database is as it was before, and the next start upgrades it."""
    (tmp_path / "mounted").mkdir()
    path = tmp_path / "mounted/machines.db"
    left_at_0009(path)
    code, said = prepared(tmp_path, f"ulimit -f {path.stat().st_size // 512 // 2}; $PREPARE")
    assert code == 1, said
    assert "does not read or write" in said
    assert not (tmp_path / "ca").exists()
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT version_num FROM alembic_version").fetchone() == ("0009",)
    migrate(f"sqlite:///{path}")


def _as_nobody(url: str, told: Connection) -> None:
    if os.geteuid() == 0:
        os.setuid(65534)
    try:
        migrate(url)
    except StoreUnavailable as e:
        told.send(str(e))


def test_a_folder_of_somebody_else() -> None:
    """Whoever may not write there is told whose it must be; nothing is made."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        folder.chmod(0o555)
        ours, theirs = multiprocessing.Pipe(duplex=False)
        process = multiprocessing.get_context("fork").Process(
            target=_as_nobody, args=(f"sqlite:///{folder}/machines.db", theirs)
        )
        process.start()
        theirs.close()
        try:
            assert f"may not write to the database {folder}/machines.db. Give file and folder" in ours.recv()
        finally:
            process.join(60)
            ours.close()
            folder.chmod(0o700)
        assert list(folder.iterdir()) == []
