"""Migrations: they lead to exactly the tables that the code speaks of, once, whoever starts first."""

from __future__ import annotations

import ast
import errno
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from unittest import mock

import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import MetaData, create_engine, inspect

from attestation.audit import AuditEvent, verify_chain
from attestation.errors import StoreUnavailable
from attestation.store import StoreSettings, migrate, migrations, open_store
from attestation.store.copying import source, target
from attestation.store.migrate import HEAD, Branch, _not_of, connection_to, migrate_branch
from attestation.store.postgres import parameters
from attestation.store.tables import Base
from attestation.store.unusable import unusable
from tests.fixtures.postgres import Server
from tests.fixtures.stores import BACKENDS

NOW = datetime(2026, 11, 21, tzinfo=UTC)
LEFT_AT_0009 = Path(__file__).parents[2] / "vectors/store/0009/database.sql"
one_chip = import_module("attestation.store.migrations.versions.0014_one_key_one_chip")

WORDS = re.compile(r"[^\s,()]+")


def schema(path: Path) -> dict[str, list[str]]:
    """Return the words of the SQL of all that is there, sorted, because constraints have no order."""
    with closing(sqlite3.connect(path)) as db:
        rows = db.execute("SELECT name, sql FROM sqlite_schema WHERE sql NOT NULL")
        return {name: sorted(WORDS.findall(sql)) for name, sql in rows if name != "alembic_version"}


def columns(path: Path) -> dict[str, list[str]]:
    """Return the columns of each table, in their order."""
    with closing(sqlite3.connect(path)) as db:
        names = [name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        return {name: [row[1] for row in db.execute(f"PRAGMA table_info({name})")] for name in names}


@pytest.fixture
def databases(postgres_server: Server) -> Iterator[Callable[[], str]]:
    """Makes empty databases on a server."""
    made: list[str] = []

    def create() -> str:
        made.append(f"m{len(made)}")
        return postgres_server.create(made[-1])

    yield create
    for name in made:
        postgres_server.drop(name)


@pytest.fixture(params=BACKENDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Of a database that is empty, or not there."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/m.db"
    created: str = request.getfixturevalue("databases")()
    return created


def all_rows(url: str, table: str) -> list[tuple[object, ...]]:
    """Return the rows of a table, in the order of its first columns."""
    with connection_to(url) as connection:
        rows = [tuple(row) for row in connection.exec_driver_sql(f"SELECT * FROM {table}")]
    return sorted(rows, key=lambda row: [str(value) for value in row[:3]])


def test_migrations_and_tables_are_the_same(tmp_path: Path) -> None:
    """Alembic finds no difference, and neither does a comparison that also sees CHECK constraints."""
    migrate(f"sqlite:///{tmp_path}/migrated.db")
    with connection_to(f"sqlite:///{tmp_path}/migrated.db") as connection:
        assert compare_metadata(MigrationContext.configure(connection), Base.metadata) == []
    engine = create_engine(f"sqlite:///{tmp_path}/created.db")
    Base.metadata.create_all(engine)
    engine.dispose()
    migrated, created = schema(tmp_path / "migrated.db"), schema(tmp_path / "created.db")
    triggers = {f"{table}_refuses_{verb}" for table in APPEND_ONLY for verb in ("update", "delete")}
    assert migrated.keys() - created.keys() == {"audit_log_refuses_gap", *triggers}
    for name, words in created.items():
        assert migrated[name] == words, name


def test_migrations_and_tables_are_the_same_on_postgresql(databases: Callable[[], str]) -> None:
    """Likewise, by what the catalogue of the server says of columns, constraints and indexes."""
    migrated, created = databases(), databases()
    migrate(migrated)
    with connection_to(created) as connection:
        Base.metadata.create_all(connection)
        connection.commit()
    found = []
    for each in (migrated, created):
        with connection_to(each) as connection:
            assert compare_metadata(MigrationContext.configure(connection), Base.metadata) == []
            found.append(_not_of(Branch(name="x", scripts="", head=""), connection))
    assert found[0] >= found[1]
    more = {(kind, name) for table, kind, name, _ in found[0] - found[1] if table != "alembic_version"}
    assert more == {
        ("function", "audit_log_has_no_gap"),
        ("function", "kql_json"),
        ("function", "kql_json_text"),
        ("trigger", "audit_log_refuses_gap"),
        *(("function", f"{table}_is_append_only") for table in APPEND_ONLY),
        *(("trigger", f"{table}_refuses_{verb}") for table in APPEND_ONLY for verb in ("change", "truncate")),
    }


APPEND_ONLY = ("audit_log", "audit_nodes", "audit_checkpoints", "audit_countersignatures")


def test_starters_at_once_migrate_once(url: str) -> None:
    """Processes that start at once all succeed, and the database is migrated."""
    code = f"from attestation.store import migrate; migrate({url!r})"
    starters = [subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE) for _ in range(4)]
    for starter in starters:
        _, errors = starter.communicate(timeout=240)
        assert starter.returncode == 0, errors
    assert all_rows(url, "alembic_version") == [(HEAD,)]


@pytest.mark.parametrize(
    "url",
    ["sqlite://", "sqlite:///:memory:", "mysql://x/y", "sqlite:///x.db?mode=ro"],
)
def test_only_shared_files_are_databases(url: str) -> None:
    """Nothing that workers could not share, nothing that we do not support."""
    with pytest.raises(ValueError, match=r"ITL_DB_URL is sqlite:/// and then the path of a file"):
        open_store(url)


def test_a_path_in_place_of_the_url_is_told_as_url() -> None:
    """The address is given that was meant; of anything else nothing is repeated, as it may hold a password."""
    with pytest.raises(ValueError, match=r"for this file sqlite:////var/x\.db$"):
        migrate("/var/x.db")
    with pytest.raises(ValueError, match="ITL_DB_URL is") as refused:
        migrate("canary:hunter2@host")
    assert "hunter2" not in str(refused.value)
    for use in (migrate, open_store, parameters):
        with pytest.raises(ValueError, match=r"postgresql\+psycopg://USER@HOST/DATABASE") as refused:
            use("postgresql+psycopg://itl:an@hunter2@host/itl")
        assert "hunter2" not in str(refused.value)


def test_a_file_that_is_no_database_is_unavailable(tmp_path: Path) -> None:
    """Neither opened nor migrated nor overwritten."""
    path = tmp_path / "store.db"
    path.write_bytes(b"something else entirely " * 100)
    for use in (migrate, open_store):
        with pytest.raises(StoreUnavailable, match="is no SQLite database"):
            use(f"sqlite:///{path}")
    assert path.read_bytes() == b"something else entirely " * 100


@pytest.mark.threat("T164")
@pytest.mark.parametrize(
    "theirs", ["CREATE TABLE dashboards (id)", "CREATE TABLE alembic_version (version_num)"]
)
def test_the_database_of_another_program_is_left_alone(tmp_path: Path, theirs: str) -> None:
    """Not one byte of it changes, nothing is put beside it, and its tables are named."""
    path = tmp_path / "theirs.db"
    with closing(sqlite3.connect(path)) as db:
        db.execute(theirs)
    before = path.read_bytes()
    with pytest.raises(StoreUnavailable, match=rf"{path} is the database of another program .*ITL_DB_URL"):
        migrate(f"sqlite:///{path}")
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_what_keeps_a_database_from_being_opened_is_told_with_a_way_out(tmp_path: Path) -> None:
    """A folder that is missing; a lock that somebody holds; a disk that is full."""
    nowhere = tmp_path / "no" / "m.db"
    with pytest.raises(StoreUnavailable, match=rf"{nowhere.parent}, does not exist.*install -d -m 0700"):
        migrate(f"sqlite:///{nowhere}")
    with pytest.raises(StoreUnavailable, match="does not exist"):
        open_store(f"sqlite:///{nowhere}")
    path = tmp_path / "m.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("CREATE TABLE audit_log (id)")
        db.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreUnavailable, match=rf"locked, .*fuser -v {path}"):
            open_store(f"sqlite:///{path}", StoreSettings(busy_timeout_seconds=0.1))


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (PermissionError(errno.EACCES, "no"), "chown -R"),
        (OSError(errno.EROFS, "no"), "read-only"),
        (OSError(errno.ENOSPC, "no"), "no room is left"),
        (OSError(errno.EIO, "the disk hums"), "the disk hums"),
        (sqlite3.OperationalError("another"), "another"),
    ],
    ids=str,
)
def test_each_cause_has_its_words(tmp_path: Path, error: OSError | sqlite3.Error, words: str) -> None:
    """What is not in the table is told as the system says it."""
    assert words in str(unusable(tmp_path / "m.db", error))


def test_the_newest_revision_is_known_without_alembic(tmp_path: Path) -> None:
    """`HEAD` is Alembic's own head, and a database that is there is not migrated again."""
    config = Config()
    config.set_main_option("script_location", "attestation.store:migrations")
    assert ScriptDirectory.from_config(config).get_current_head() == HEAD
    migrate(f"sqlite:///{tmp_path}/m.db")
    with mock.patch("attestation.store.migrate._run") as run:
        migrate(f"sqlite:///{tmp_path}/m.db")
    run.assert_not_called()


NEWER = "which this version does not know"
OLDER = "this version upgrades from 0009 on. Start a version with it whose newest revision is 0009 to 0024"


@pytest.mark.parametrize(
    ("revision", "why"),
    [
        (f"{int(HEAD) + 1:04}", NEWER),
        (f"{int(HEAD) + 2:04}", NEWER),
        ("x", NEWER),
        ("0001", OLDER),
        ("0008", OLDER),
    ],
)
def test_a_database_of_another_version_is_left_alone(tmp_path: Path, revision: str, why: str) -> None:
    """Of a newer version, of one that was never released, of one from before the first schema: and what to do."""
    path = tmp_path / "m.db"
    migrate(f"sqlite:///{path}")
    with closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE alembic_version SET version_num = ?", (revision,))
        db.execute("DELETE FROM schema_support")
        db.commit()
    before = schema(path)
    with pytest.raises(StoreUnavailable, match=f"revision {revision}, .*{why}"):
        migrate(f"sqlite:///{path}")
    assert schema(path) == before


def test_migrations_do_tomorrow_what_they_do_today() -> None:
    """They stand alone: of our code, whose rules go on changing, they import nothing; and none is left out."""
    root = Path(migrations.__file__).parent
    found = {
        (path.name, name)
        for path in root.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        for name in _imported(node)
    }
    ours = {(path, name) for path, name in found if name.split(".")[0] not in ALONE}
    assert ours == set()
    numbers = sorted(int(path.name[:4]) for path in root.glob("versions/0*.py"))
    assert numbers == [*range(9, int(HEAD) + 1)]


ALONE = frozenset(sys.stdlib_module_names - {"importlib"}) | {"alembic", "sqlalchemy", "idna"}
"""What changes with no version of ours."""


def _imported(node: ast.AST) -> list[str]:
    match node:
        case ast.Import():
            return [alias.name for alias in node.names]
        case ast.ImportFrom():
            module = "." * node.level + (node.module or "")
            return [f"{module}.{alias.name}" for alias in node.names]
        case ast.Call(func=ast.Name(id="__import__")):
            return ["__import__"]
    return []


@given(st.binary(max_size=200))
def test_a_certificate_that_cannot_be_read_numbers_no_chip(data: bytes) -> None:
    """A migration does not fail on what is in the database."""
    certificate = b"\x30\x81" + bytes([len(data)]) + data
    for each in (data, certificate):
        assert one_chip._subject_serial(each) is None


def test_nobody_else_may_read_the_database(tmp_path: Path) -> None:
    """The file and what SQLite puts beside it have mode 0600."""
    migrate(f"sqlite:///{tmp_path}/m.db")
    store = open_store(f"sqlite:///{tmp_path}/m.db")
    store.write_sync(lambda tx: tx.purge(datetime.now(UTC)))
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.glob("m.db*")}
    store.close()
    assert modes.pop("m.db.migrate-lock") & 0o022 == 0
    assert modes == dict.fromkeys(["m.db", "m.db-wal", "m.db-shm"], 0o600)


def revision_of(url: str, revision: str) -> None:
    """Bring a database to the schema of *revision*."""
    config = Config()
    config.set_main_option("script_location", "attestation.store:migrations")
    with connection_to(url) as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
        connection.commit()


def left_at_0009(path: Path) -> None:
    """Make the database that the last version with 0009 left: see tests/vectors/store/0009/README.md."""
    with closing(sqlite3.connect(path)) as db:
        db.executescript(LEFT_AT_0009.read_text(encoding="utf-8"))


def rows_of(path: Path, named: dict[str, list[str]]) -> dict[str, list[tuple[object, ...]]]:
    """Return every row, its columns as *named*."""
    with closing(sqlite3.connect(path)) as db:
        return {
            table: db.execute(f"SELECT {', '.join(names)} FROM {table} ORDER BY 1, 2").fetchall()
            for table, names in named.items()
        }


def test_the_first_schema_is_what_nine_revisions_made(tmp_path: Path) -> None:
    """Table by table, column by column, trigger by trigger: a new database is one of before."""
    left_at_0009(tmp_path / "left.db")
    revision_of(f"sqlite:///{tmp_path}/new.db", "0009")
    assert schema(tmp_path / "new.db") == schema(tmp_path / "left.db")
    assert columns(tmp_path / "new.db") == columns(tmp_path / "left.db")


def test_a_database_of_0009_is_carried_over(tmp_path: Path) -> None:
    """It has the schema of a new one, every row that it had, and goes on."""
    path = tmp_path / "left.db"
    left_at_0009(path)
    kept = columns(path)
    del kept["sqlite_sequence"], kept["alembic_version"]
    kept["machines"].remove("redeliver")  # 0023 says the same by a time
    kept["machines"].remove("cluster_id")  # 0011, below
    kept["attestation_results"].remove("boot_state_appraised")  # 0013, below
    before = rows_of(path, kept)
    assert all(before.values()), [name for name, rows in before.items() if not rows]
    migrate(f"sqlite:///{path}")
    migrate(f"sqlite:///{tmp_path}/new.db")
    assert schema(path) == schema(tmp_path / "new.db")
    assert columns(path) == columns(tmp_path / "new.db")
    assert rows_of(path, kept) == before
    with closing(sqlite3.connect(path)) as db:
        machines = db.execute(
            "SELECT cluster_id, desired_cluster_id, config_owed_since IS NOT NULL, shares_names, alarm IS NOT NULL "
            "FROM machines ORDER BY id"
        ).fetchall()
        refused = db.execute("SELECT why FROM refused_keys").fetchall()
    assert machines == [
        ("cluster-x", "cluster-x", 1, 0, 0),
        ("default", "lab", 0, 0, 0),
        ("default", "default", 0, 0, 0),
        ("default", "default", 0, 1, 1),
        ("default", "default", 1, 1, 1),
    ]
    assert refused == [(f"keyCompromise of certificate {1:040x}",)]
    store = open_store(f"sqlite:///{path}")
    store.write_sync(lambda tx: tx.audit.append(AuditEvent(operator_cn="b", action="x"), NOW))
    log = store.read_sync(lambda tx: tx.audit.entries(0, 9))
    assert verify_chain(log).entries == 4
    assert store.read_sync(lambda tx: tx.audit.tree.size()) == 4
    results = store.read_sync(
        lambda tx: tx.results.page("00000003-0f0e-4c55-9d4a-3f6f0e1b2c3d", None, 10)
    ).items
    # PCR 0 alone was once enough for "appraised", and so was a PCR that holds nothing.
    assert [list(each.result.boot_state_appraised) for each in reversed(results)] == [
        ["firmware", "boot-loader", "kernel", "initrd", "command-line"],
        ["firmware"],
        [],
        [],
    ]
    store.close()


def test_postgresql_carries_the_same_rows(tmp_path: Path, databases: Callable[[], str]) -> None:
    """Every revision does there what it does on SQLite."""
    left_at_0009(tmp_path / "left.db")
    urls = (f"sqlite:///{tmp_path}/left.db", databases())
    revision_of(urls[1], "0009")
    with connection_to(urls[0]) as there, connection_to(urls[1]) as here:
        tables = MetaData()
        tables.reflect(there)
        for table in tables.sorted_tables:
            if table.name != "alembic_version":
                here.execute(table.insert(), [row._asdict() for row in there.execute(table.select())])
        here.commit()
    for url in urls:
        migrate(url)
    for name in Base.metadata.tables.keys() - {"database_identity"}:
        assert all_rows(urls[0], name) == all_rows(urls[1], name), name


def test_events_on_their_way_are_kept(url: str) -> None:
    """Under the name that they have now, in their order."""
    revision_of(url, "0024")
    with connection_to(url) as connection:
        for sequence, event in ((7, "b"), (3, "a")):
            connection.exec_driver_sql(
                "INSERT INTO deliveries (sequence, subscriber, id, event, payload, created_at, attempts, error) "
                f"VALUES ({sequence}, 'x', '{event}', 'node.registered', '{{}}', 1, 2, 'why')"
            )
        connection.commit()
    migrate(url)
    assert [(row[0], row[2], row[9]) for row in all_rows(url, "handovers")] == [
        (1, "a", "why"),
        (2, "b", "why"),
    ]


def test_an_upgrade_that_fails_leaves_nothing(url: str) -> None:
    """Whichever revision it is: here the last that we know of finds its place taken."""
    revision_of(url, "0009")
    with connection_to(url) as connection:
        connection.exec_driver_sql("CREATE TABLE handovers (id TEXT)")
        connection.commit()
        before = set(inspect(connection).get_table_names())
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match=r"handovers.* already exists"):
            migrate(url)
    with connection_to(url) as connection:
        assert set(inspect(connection).get_table_names()) == before
    assert all_rows(url, "alembic_version") == [("0009",)]


AWAY = "postgresql://itl:hunter2@127.0.0.1:1/m?sslmode=disable"


def test_a_server_whose_driver_is_not_installed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after install.md, which installs what SQLite needs; by everything that opens a database."""
    monkeypatch.setitem(sys.modules, "psycopg", None)  # the import fails
    opens: list[Callable[[], object]] = [
        lambda: migrate(AWAY),
        lambda: open_store(AWAY),
        source(AWAY, alone=False).__enter__,
        target(AWAY, []).__enter__,
    ]
    for each in opens:
        with pytest.raises(
            ValueError, match=r"driver is not installed here \(.*deploy/locks/service-postgres.lock"
        ):
            each()


def test_a_server_that_is_away_or_foreign_is_told_without_its_password(databases: Callable[[], str]) -> None:
    """Where it is, and what it said; of a database of another program, its tables."""
    with pytest.raises(StoreUnavailable, match=r"the database m at 127\.0\.0\.1 .*refused") as away:
        migrate(AWAY)
    assert "hunter2" not in str(away.value)
    for end in (source(AWAY, alone=False), target(AWAY, [])):
        with (
            pytest.raises(StoreUnavailable, match=r"the database m at 127\.0\.0\.1 .*refused.* Start it, or"),
            end,
        ):
            pass
    url = databases()
    with connection_to(url) as connection:
        connection.exec_driver_sql("CREATE TABLE recipes (name TEXT)")
        connection.commit()
    with pytest.raises(StoreUnavailable, match=r"another program \(tables recipes\)"):
        migrate(url)
    with connection_to(url) as connection:
        assert inspect(connection).get_table_names() == ["recipes"]


CHANGES = {
    "make or change machines": [
        "ALTER TABLE machines ADD COLUMN mine TEXT",
        "CREATE INDEX extension_x_mine ON machines (status)",
        "DROP INDEX uq_machines_cluster_id_name_key",
    ],
    "make or change mine": ["CREATE TABLE mine (id TEXT)", "CREATE VIEW mine AS SELECT 1 AS one"],
    "make or change audit_log": [
        "DROP TRIGGER audit_log_refuses_gap",
        "CREATE TRIGGER extension_x_mine BEFORE INSERT ON audit_log BEGIN SELECT 1; END",
    ],
}
ON_A_SERVER = {
    "make or change audit_log;": [
        "ALTER TABLE audit_log DISABLE TRIGGER audit_log_refuses_change",
        "ALTER TABLE audit_log DROP CONSTRAINT uq_audit_log_prev_hash",
        "ALTER TABLE audit_log SET UNLOGGED",
        "CREATE RULE mine AS ON INSERT TO audit_log DO INSTEAD NOTHING",
        "ALTER TABLE audit_log ALTER COLUMN detail SET DEFAULT 'x'",
        "ALTER TABLE audit_log ENABLE ROW LEVEL SECURITY",
        "DROP TRIGGER audit_log_refuses_gap ON audit_log",
    ],
    "make or change audit_log_has_no_gap;": [
        """CREATE OR REPLACE FUNCTION audit_log_has_no_gap() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN RETURN NEW; END $$"""
    ],
}
REVISION = """
import sqlalchemy as sa
from alembic import op

revision, down_revision = "0001", None


def upgrade():
    op.create_table(
        "extension_x_things",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True),
        sa.Column("machine_id", sa.Text(), sa.ForeignKey("machines.machine_id"), unique=True),
        sqlite_autoincrement=True,
    )
    {more}
"""


@pytest.mark.threat("T26")
def test_an_extension_changes_nothing_of_ours(url: str, tmp_path: Path) -> None:
    """No table, no constraint, no index, no trigger, nor what a trigger does; what it did beside is undone."""
    migrate(url)
    cases = {**CHANGES, **ON_A_SERVER} if url.startswith("postgresql") else CHANGES
    statements = [(why, each) for why, changes in cases.items() for each in changes]
    for number, (why, statement) in enumerate(statements):
        if url.startswith("postgresql") and "audit_log" in statement and why not in ON_A_SERVER:
            continue  # SQLite's way to say it
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "0001_x.py").write_text(REVISION.format(more=f"op.execute({statement!r})"))
        with pytest.raises(StoreUnavailable, match=f"{why}.* its tables are called extension_x_"):
            migrate_branch(url, Branch(name="x", scripts=str(folder), head="0001"))
        with connection_to(url) as connection:
            assert not inspect(connection).has_table("extension_x_things"), statement
    (tmp_path / "0001_x.py").write_text(REVISION.format(more=""))
    migrate_branch(
        url,
        Branch(name="x", scripts=str(tmp_path), head="0001", tables=frozenset({"extension_x_things"})),
    )
    assert all_rows(url, "extension_x_version, extension_x_things") == []


def test_machines_that_are_called_alike_are_kept_and_named(tmp_path: Path) -> None:
    """Before names were unique: the oldest has the name, each later one is marked, and nothing else changes."""
    path = tmp_path / "store.db"
    revision_of(f"sqlite:///{path}", "0015")
    called: list[tuple[str, str, str | None, str | None]] = [
        ("revoked", "default", "cp-1", "10.0.0.11/24"),
        ("attested", "default", "cp-1", "10.0.0.11/24"),
        ("attested", "other", "cp-1", "10.0.0.11/24"),
        ("registered", "default", "CP-1.", None),
        ("locked", "default", "cp-2", "::ffff:10.0.0.11/120"),
        ("attested", "default", "cp-2", None),
        ("rejected", "default", "cp-2", None),
        ("attested", "default", "no_name", "somewhere"),
        ("pending_approval", "default", None, None),
    ]
    with closing(sqlite3.connect(path)) as db:
        columns = [row[1] for row in db.execute("PRAGMA table_info(machines)") if row[1] != "redeliver"]
        for number, (status, cluster_id, hostname, assigned_ip) in enumerate(called):
            row: dict[str, object] = {
                **dict.fromkeys(
                    ("ek_source", "ek_template", "hw_uuid", "hw_mac", "hw_serial", "hw_product"), "x"
                ),
                **dict.fromkeys(("ek_chain_ok", "ek_allow_listed", "wipe_pending", "redeliver"), 0),
                "machine_id": f"m{number}",
                "ek_fingerprint": str(number),
                "ek_public": b"",
                "search": "",
                "version": 1,
                "assurance": "tofu",
                "registered_at": number,
                "status": status,
                "cluster_id": cluster_id,
                "hostname": hostname,
                "assigned_ip": assigned_ip,
            }
            db.execute(
                f"INSERT INTO machines ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})",
                tuple(row.values()),
            )
        db.commit()
        before = db.execute(f"SELECT {', '.join(columns)} FROM machines ORDER BY id").fetchall()
    migrate(f"sqlite:///{path}")
    with closing(sqlite3.connect(path)) as db:
        assert db.execute(f"SELECT {', '.join(columns)} FROM machines ORDER BY id").fetchall() == before
        keys = db.execute("SELECT name_key, address_key, shares_names FROM machines ORDER BY id").fetchall()
    assert keys == [
        (None, None, 0),
        ("cp-1", "10.0.0.11", 0),
        ("cp-1", "10.0.0.11", 0),
        ("cp-1", None, 1),
        ("cp-2", "10.0.0.11", 1),
        ("cp-2", None, 0),
        (None, None, 0),
        ("no_name", "somewhere", 0),
        (None, None, 0),
    ]
    store = open_store(f"sqlite:///{path}")
    assert [m.machine_id for m in store.read_sync(lambda tx: tx.machines.sharing(10))] == ["m3", "m4"]
    store.close()


def test_keys_of_earlier_revocations_are_refused(tmp_path: Path) -> None:
    """What was revoked as compromised before there was a list; nothing else."""
    path = tmp_path / "store.db"
    revision_of(f"sqlite:///{path}", "0016")
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA foreign_keys=OFF")
        for number, (key, reason) in enumerate(
            [("a", "keyCompromise"), ("a", "keyCompromise"), ("b", "superseded"), ("c", "keyCompromise")]
        ):
            row = {
                "serial": f"{number:040x}",
                "issuer_id": "0" * 16,
                "profile": "node-client",
                "subject": "CN=x",
                "state": "revoked",
                "spki_sha256": key * 64,
                "requester": "x",
                "reason": reason,
                "note": "x",
                "not_before": 1,
                "not_after": 9,
                "reserved_at": 2,
                "issued_at": 3,
                "ended_at": 5 + number,
                "certificate": b"x",
                "machine_id": "m",
            }
            db.execute(
                f"INSERT INTO certificates ({', '.join(row)}) VALUES ({', '.join('?' * len(row))})",
                tuple(row.values()),
            )
        db.commit()
    migrate(f"sqlite:///{path}")
    with closing(sqlite3.connect(path)) as db:
        found = db.execute("SELECT spki_sha256, added_at FROM refused_keys ORDER BY spki_sha256").fetchall()
    assert found == [("a" * 64, 5), ("c" * 64, 8)]
