"""The suite finds what it looks for: each of its tests fails for an extension that breaks that rule alone."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from attestation.errors import RequestInvalid
from attestation_cli.main import cli
from attestation_testing.extension_suite import Answer, ExtensionSuite, RunningService
from attestation_testing.new_extension import OURS, rendered, write
from tests.fixtures.extension import install, site

__all__ = ["site"]

HEAD = """
from sqlalchemy import bindparam, insert
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from attestation.extension import AttestationExtension, Migrations, NodeEvent, NoSettings, Prepared, QueryTable

class Base(DeclarativeBase): ...

class Row(Base):
    __tablename__ = "extension_tried_rows"
    number: Mapped[int] = mapped_column(primary_key=True)

class Extension(AttestationExtension):
    contract, name, version, description = 1, "tried", "1.0.0", "Is tried by the suite."
    migrations = Migrations(scripts="tried_extension:revisions", head="0001")
    def get_models(self):
        return [Row]
"""
REVISION = """
import sqlalchemy as sa
from alembic import op
revision, down_revision = "0001", None
def upgrade():
    op.create_table("extension_tried_rows", sa.Column("number", sa.Integer(), primary_key=True))
"""


class Suite(ExtensionSuite):
    """Of an extension that a test installs; no class that pytest collects."""

    name = "tried"


def tried(site: Path, more: str = "", revision: str = REVISION) -> Suite:
    """Install an extension that keeps the contract, but for *more*."""
    install(site, "tried", HEAD + more, files={"revisions/0001_first.py": revision})
    return Suite()


def test_one_that_keeps_the_contract_passes(site: Path, tmp_path: Path) -> None:
    suite = tried(site)
    suite.test_it_is_found_and_says_what_it_is(tmp_path)
    suite.test_it_takes_its_own_names_alone(tmp_path)
    suite.test_each_setting_is_described()
    suite.test_it_begins_and_ends_more_than_once(tmp_path)
    suite.test_its_commands_need_no_service(tmp_path)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ("    name = 'other'\n", "it calls itself other"),
        ("    version = 'new'\n", "new is no semantic version"),
        ("    description = 'Short'\n", "its description is no sentence"),
        ("    contract = 2\n", "it was written for contract 2"),
    ],
)
def test_what_it_says_of_itself(site: Path, tmp_path: Path, more: str, why: str) -> None:
    suite = tried(site, more)
    with pytest.raises(AssertionError, match=why):
        suite.test_it_is_found_and_says_what_it_is(tmp_path)


def test_a_name_that_no_extension_has(site: Path, tmp_path: Path) -> None:
    install(site, "tried", HEAD.replace('"tried"', '"Tried"'))
    info = site / "tried_extension-1.0.dist-info/entry_points.txt"
    info.write_text(info.read_text().replace("tried =", "Tried ="))
    with pytest.raises(AssertionError, match="Tried is no name"):
        type("Other", (Suite,), {"name": "Tried"})().test_it_is_found_and_says_what_it_is(tmp_path)


def test_one_that_is_not_installed(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="tried is installed 0 times"):
        Suite().test_it_is_found_and_says_what_it_is(tmp_path)


@pytest.mark.parametrize(
    "more",
    [
        "    prefixes = ('things',)\n",
        "    events = ('machine',)\n",
        "    def get_models(self):\n        Row.__tablename__ = 'rows_of_mine'\n        return [Row]\n",
        "    def get_models(self):\n        Row.__tablename__ = 'extension_tried_' + 48 * 'x'\n        return [Row]\n",
        "    def get_subscriptions(self):\n        return {'node.unheard_of.event': print}\n",
        "    def get_query_tables(self):\n        return [QueryTable(name='rows;', statement=None)]\n",
    ],
)
def test_names_that_are_not_its_own(site: Path, tmp_path: Path, more: str) -> None:
    suite = tried(site, more)
    with pytest.raises((AssertionError, ValueError)):
        suite.test_it_takes_its_own_names_alone(tmp_path)


def test_a_setting_without_a_word(site: Path, tmp_path: Path) -> None:
    """On a page it may stand by the variable's name."""
    suite = tried(site, "    class Settings(NoSettings):\n        most: int = 1\n")
    with pytest.raises(AssertionError, match="most is not described"):
        suite.test_each_setting_is_described()
    page = tmp_path / "page.md"
    page.write_text("`ITL_EXT_TRIED_MOST`: counting ends here")
    type(suite).pages, before = (page,), suite.pages
    try:
        suite.test_each_setting_is_described()
    finally:
        type(suite).pages = before


def test_revisions_that_make_other_tables(site: Path, tmp_path: Path) -> None:
    """Other columns than the models have, which no migration notices."""
    suite = tried(site, revision=REVISION.replace(")\n", ", sa.Column('more', sa.Integer()))\n", 1))
    with pytest.raises(AssertionError):
        suite.test_its_revisions_make_its_tables(tmp_path)


def test_tables_that_nothing_makes(site: Path, tmp_path: Path) -> None:
    suite = tried(site, "    migrations = None\n")
    with pytest.raises(AssertionError, match="nothing makes its tables"):
        suite.test_its_revisions_make_its_tables(tmp_path)


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("import click\ngroup = click.Group('tried')\n", None),
        ("import click, sqlalchemy\ngroup = click.Group('tried')\n", "attestation tried imports sqlalchemy"),
        ("group = 1\n", "no command"),
        ("raise ValueError\n", "ValueError"),
    ],
)
def test_commands(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, why: str | None
) -> None:
    """They are imported by another Python, in which nothing else is."""
    suite = tried(site)
    (site / "tried_commands.py").write_text(code)
    with (site / "tried_extension-1.0.dist-info/entry_points.txt").open("a") as points:
        points.write("[attestation_cli_plugins]\ntried = tried_commands:group\nother = nowhere:group\n")
    monkeypatch.setenv("PYTHONPATH", str(site))
    if why is None:
        suite.test_its_commands_need_no_service(tmp_path)
    else:
        with pytest.raises(AssertionError, match=why):
            suite.test_its_commands_need_no_service(tmp_path)


def test_commands_that_are_called_as_ours(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command line would leave them out."""
    suite = tried(site, "    cli_groups = ('machine',)\n")
    (site / "tried_commands.py").write_text("import click\ngroup = click.Group('machine')\n")
    with (site / "tried_extension-1.0.dist-info/entry_points.txt").open("a") as points:
        points.write("[attestation_cli_plugins]\nmachine = tried_commands:group\n")
    monkeypatch.setenv("PYTHONPATH", str(site))
    with pytest.raises(AssertionError, match="attestation machine is a command of ours"):
        suite.test_its_commands_need_no_service(tmp_path)


COUNTS = """
    def get_subscriptions(self):
        return {{NodeEvent.ONLINE: self.came}}
    async def came(self, event):
        add = Prepared(insert(Row.__table__).values(number=bindparam("number")))
        work = lambda tx: tx.of(lambda sql: sql.run(add, number=None))
        {what}
"""


def test_a_handler_that_counts_each_time_it_is_told(site: Path, tmp_path: Path) -> None:
    """It writes at once, where it should return what is done once."""
    suite = tried(site, COUNTS.format(what="return work"))
    suite.test_an_event_that_comes_again_is_handled_once(tmp_path)
    (tmp_path / "other").mkdir()
    suite = tried(site, COUNTS.format(what="await self.context.store.write(work)"))
    sys.modules.pop("tried_extension")
    with pytest.raises(AssertionError):
        suite.test_an_event_that_comes_again_is_handled_once(tmp_path / "other")


class Told(RunningService):
    """A service that answers what a test says, by path."""

    answers: Mapping[str, int]
    document: Mapping[str, Any]

    def operator(self, method: str, path: str, body: Any = None) -> Answer:
        """Return the document, or the list."""
        return Answer(status=200, body=json.dumps(self.document[path]).encode())

    def anybody(self, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        """Return the status that was said."""
        return Answer(status=self.answers[path], body=b"")


def told(
    access: str,
    status: int,
    path: str = "/api/v1/tried/x",
    skipped: str | None = None,
    summary: str = "Show",
) -> Told:
    """Return a service with one route."""
    found = Told(folder=Path(), environment={})
    operation = {"tags": ["extension: tried"], "x-access": access, "summary": summary}
    found.answers = {path: status}
    found.document = {
        "/openapi.json": {"paths": {path: {"post": operation}}},
        "/api/v1/extensions": {"extensions": [{"name": "tried", "skipped": skipped}]},
    }
    return found


def test_routes_that_let_anybody_in(site: Path, tmp_path: Path) -> None:
    """Operators' without a token, machines' without a quote, paths that are another's."""
    suite = tried(site)
    suite.test_no_route_is_open_by_mistake(told("act", 401), tmp_path)
    suite.test_who_has_no_fresh_quote_is_no_machine(told("machine", 422), tmp_path)
    suite.test_the_service_takes_it(told("act", 401))
    for open_one in (
        told("act", 200),
        told("read", 404),
        told("act", 401, path="/api/v1/things"),
        told("act", 401, summary=""),
    ):
        with pytest.raises(AssertionError):
            suite.test_no_route_is_open_by_mistake(open_one, tmp_path)
    for status in (200, 500, 503):
        with pytest.raises(AssertionError):
            suite.test_who_has_no_fresh_quote_is_no_machine(told("machine", status), tmp_path)
    with pytest.raises(AssertionError, match="it fails"):
        suite.test_the_service_takes_it(told("act", 401, skipped="it fails"))


@pytest.mark.parametrize("name", ["", "Visits", "1st", "a-b", "a__b", "_a", "a" * 25, "a/../b", "a\n"])
def test_names_that_no_extension_has(name: str, tmp_path: Path) -> None:
    """Nothing is written for them."""
    with pytest.raises(RequestInvalid):
        write(name, tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("service", "attestation-service is a distribution of ours"),
        ("machines", "/api/v1/machines is of the service"),
        ("node", "events called node. are of the service"),
        ("machine", "attestation machine is a command already"),
        ("secret", "attestation secret is a command already"),
    ],
)
def test_names_that_are_the_service_s(name: str, why: str, tmp_path: Path) -> None:
    """What it writes would be skipped, or take the place of what is installed: nothing is written."""
    ended = CliRunner().invoke(cli, ["dev", "new-extension", name, "--to", str(tmp_path / "new")])
    assert ended.exit_code != 0
    assert why in " ".join(ended.output.split())
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("absolute", [False, True])
def test_what_to_install_is_named_as_a_folder(
    absolute: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A word without a slash is to pip a project of the index, which anybody may have put there."""
    monkeypatch.chdir(tmp_path)
    folder = f"{tmp_path}/new one" if absolute else "new one"
    ended = CliRunner().invoke(cli, ["dev", "new-extension", "arrivals", "--to", folder])
    shown = f"'{tmp_path}/new one'" if absolute else "'./new one'"
    assert f"next: pip install {shown}, then" in ended.output


def test_each_distribution_of_ours_is_named() -> None:
    """None can be taken."""
    made = (Path(__file__).parents[3] / "src").glob("*/attestation_*/__init__.py")
    assert {each.parent.name.removeprefix("attestation_") for each in made} == OURS


@given(st.text(max_size=30) | st.from_regex("[a-z0-9_]{1,30}", fullmatch=True))
def test_a_name_is_refused_or_stands_in_code_as_it_is(name: str) -> None:
    """Nothing that is typed becomes a path beside the folder, or another statement."""
    with contextlib.suppress(RequestInvalid):
        for path, text in rendered(name).items():
            assert set(Path(path).parts).isdisjoint(("..", "/"))
            if path.endswith(".py"):
                compile(text, path, "exec")
            else:
                assert "$" not in text


@pytest.mark.parametrize("name", ["a", "visits", "a1_b2_c3", "x" * 24])
def test_any_name_makes_code(name: str, tmp_path: Path) -> None:
    """Each file compiles; no placeholder is left; a folder that holds something stays as it is."""
    for path in write(name, tmp_path / "new"):
        text = path.read_text()
        assert "$" not in text
        if path.suffix == ".py":
            compile(text, str(path), "exec")
    assert len(f"extension_{name}_machines") <= 63
    assert f"extension_{name}_machines" in rendered(name)[f"attestation_{name}/tables.py"]
    with pytest.raises(RequestInvalid, match="is not empty"):
        write(name, tmp_path / "new")
