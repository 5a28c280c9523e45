"""Extensions: only those that are named, each of them whole, and none above the rules of the service."""

from __future__ import annotations

import asyncio
import gc
import shutil
import sqlite3
import sys
import uuid
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from attestation.extension import (
    CONTRACT,
    GROUP,
    SEMANTIC_VERSION,
    AttestationExtension,
    NodeEvent,
    OutboxEvent,
    Tx,
)
from attestation_service import extensions, main
from attestation_service.app import create_app
from attestation_service.auth import Operator
from attestation_service.extensions import ExtensionInvalid, life, loading
from attestation_service.inspection import Listen, inspect
from attestation_service.process import dispatch, maintenance
from attestation_service.process.preparation import prepare
from attestation_service.settings import Settings, SettingsInvalid
from tests.fixtures.extension import EXAMPLE, install, install_example, site
from tests.unit.service.conftest import Starter, settings_for
from tests.unit.service.node import SoftwareNode

pytestmark = pytest.mark.anyio

__all__ = ["site"]

ABOUT = {"version": "1.2.3", "description": "Does nothing."}

HEAD = """
from attestation.extension import CONTRACT, AttestationExtension, Caller, Context, Migrations, NoSettings, QueryTable
from attestation.extension import Reply, Router
from attestation.errors import MachineUnknown
from pydantic import BaseModel

"""
EMPTY = """
class Extension(AttestationExtension):
    contract = CONTRACT
    name = "{name}"
    version = "1.2.3"
    description = "Does nothing."
"""
ROUTES = (
    EMPTY
    + """
    class Settings(NoSettings):
        greeting: str = "hello"
        times: int = 1

    def get_router(self):
        router = Router()
        router.add("GET /open", "public", self.open)
        router.add("GET /{{thing}}", "read", self.read, MachineUnknown)
        router.add("POST", "act", self.act)
        router.add("GET", "audit", self.text)
        return router

    async def open(self) -> Reply:
        "Say it to everybody."
        return Reply(body=(self.settings.greeting * self.settings.times).encode(), media_type="text/plain")

    async def read(self, thing: str, who: Caller) -> Said:
        "Say who asks for what."
        if thing == "nothing":
            raise MachineUnknown("no such thing")
        return Said(said=f"{{who.cn}} {{thing}}")

    async def act(self, body: Said, who: Caller) -> None:
        "Write down what was said."
        at = self.context.clock.now()
        await self.context.store.write(
            lambda tx: tx.audit.append(who.event("said", detail=body.said), at))

    async def text(self) -> Reply:
        "Fail."
        raise ValueError("canary")
"""
)
SAID = """
class Said(BaseModel):
    said: str

class Other:
    __tablename__ = "machines"

class Mine:
    __tablename__ = "extension_broken_mine"
"""


@pytest.fixture(autouse=True)
def ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each that is installed is one of ours: nothing of it may fail."""
    monkeypatch.setattr(loading, "_is_ours", lambda _: True)


def enabled(site: Path, name: str, code: str = EMPTY, **more: Any) -> Settings:
    """Install an extension and return settings that enable it."""
    install(site, name, HEAD + SAID + code.format(name=name))
    return settings_for(site, extensions=(name,), **more)


@pytest.mark.threat("T182")
async def test_what_is_installed_is_not_enabled(site: Path, start: Starter) -> None:
    """Nothing of it is imported, no route of it answers, the document does not change, and the list is empty."""
    install(site, "quiet", "raise SystemExit('imported')")
    before = create_app(settings_for(site)).openapi()
    service = await start()
    assert service.app.openapi() == before
    assert "quiet_extension" not in sys.modules
    assert (await service.http.get("/api/v1/extensions")).status_code == 401
    assert (await service.operator("GET", "/extensions")).json() == {"extensions": [], "total": 0}
    unknown = (await service.operator("GET", "/extensions/quiet/dead-letters")).json()
    assert unknown["type"] == "urn:itl:problem:extension-unknown"


async def test_its_routes_obey_the_rules_of_ours(site: Path, start: Starter) -> None:
    """Right, act, schema, problem and audit are those of the service; a failure says nothing."""
    install(site, "told", HEAD + SAID + ROUTES.format(name="told"))
    service = await start(extensions=("told",))
    listed = (await service.operator("GET", "/extensions")).json()
    assert listed == {
        "extensions": [{**ABOUT, "name": "told", "skipped": None, "pending": 0, "dead_letters": 0}],
        "total": 1,
    }
    answer = await service.get("/api/v1/told/open")
    assert (answer.status_code, answer.text) == (200, "hello")
    assert answer.headers["content-type"].startswith("text/plain")
    for method, path in (("GET", ""), ("POST", ""), ("GET", "/x")):
        assert (await service.http.request(method, f"/api/v1/told{path}")).status_code == 401
    assert (await service.operator("GET", "/told/x")).json() == {"said": "SYSTEM x"}
    problem = (await service.operator("GET", "/told/nothing")).json()
    assert (problem["status"], problem["type"]) == (404, "urn:itl:problem:machine-unknown")
    assert (await service.operator("POST", "/told", {"sad": "x"})).status_code == 422
    key = {"Idempotency-Key": f'"{uuid.uuid4()}"'}
    for status in (204, 409):  # done, and told that it was done
        assert (await service.operator("POST", "/told", {"said": "x"}, headers=key)).status_code == status
    assert [e["detail"] for e in await service.audit(action="said")] == ["x"]
    failed = await service.operator("GET", "/told")
    assert (failed.status_code, "canary" in failed.text) == (500, False)
    operations = service.app.openapi()["paths"]["/api/v1/told/{thing}"]["get"]
    assert (operations["x-access"], operations["summary"]) == ("read", "Say who asks for what")


async def test_the_example_of_the_page_works(site: Path, start: Starter) -> None:
    """As it stands there, in at most sixty lines: table, route, event."""
    install_example(site)
    assert sum(len(code.splitlines()) for code in EXAMPLE.values()) <= 60
    service = await start(extensions=("visits",))
    node = SoftwareNode()
    await service.admitted(node)
    await maintenance.once(service.resources)
    path = f"/visits/{node.machine_id}"
    assert (await service.operator("GET", path)).json() == {"times": 0}
    ((name, handlers),) = extensions.load(service.resources.settings).handlers.items()
    while await dispatch.once(name, handlers, service.resources):
        pass
    assert (await service.operator("GET", path)).json() == {"times": 1}


async def test_one_dead_letter_is_inspected_and_replayed(site: Path, start: Starter) -> None:
    """With what it says; of those that are named all come back or none, and the audit log names them."""
    install_example(site)
    service = await start(extensions=("visits",))
    at = service.clock.now()

    def give_up(tx: Tx) -> list[str]:
        given = []
        for machine in "ab":
            tx.outbox.add(NodeEvent.ONLINE, machine, {"node": {"hostname": machine}}, at)
            (event,) = tx.outbox.claim(1, at)
            tx.handovers.add("visits", event, at)
            (handover,) = tx.handovers.claim("visits", 1, at, hold=dispatch.HOLD)
            tx.handovers.failed("visits", handover, None, "ValueError")
            given.append(event.id)
        return given

    first, second = await service.store.write(give_up)
    letters, retry = "/extensions/visits/dead-letters", "/extensions/visits/retry"
    letter = (await service.operator("GET", f"{letters}/{first}")).json()
    assert (letter["event_id"], letter["attempts"], letter["error"]) == (first, 1, "ValueError")
    assert letter["payload"] == {"node": {"hostname": "a"}}
    for refused in (
        await service.operator("POST", retry, {"event_ids": [second, "none"]}),
        await service.operator("GET", f"{letters}/none"),
    ):
        assert (refused.status_code, refused.json()["type"]) == (404, "urn:itl:problem:dead-letter-unknown")
    assert len((await service.operator("GET", letters)).json()["items"]) == 2
    assert await service.audit(action="extension_retry") == []
    for wrong in ([], ["x" * 65], ["x"] * 101):
        assert (await service.operator("POST", retry, {"event_ids": wrong})).status_code == 422
    assert (await service.operator("POST", retry, {"event_ids": [first, first]})).json() == {"events": 1}
    (left,) = (await service.operator("GET", letters)).json()["items"]
    assert left["event_id"] == second
    assert [e["detail"] for e in await service.audit(action="extension_retry")] == [
        f"visits: 1 events: {first}"
    ]
    assert (await service.operator("GET", "/extensions/other/dead-letters/x")).status_code == 404


async def test_operators_see_dead_letters_and_have_them_handled_again(site: Path, start: Starter) -> None:
    """Which event, how often, what kind of failure; who had it told again stands in the audit log."""
    install_example(site)
    service = await start(extensions=("visits",))
    at = service.clock.now()

    def give_up(tx: Tx) -> OutboxEvent:
        tx.outbox.add(NodeEvent.ONLINE, "a", {}, at)
        (event,) = tx.outbox.claim(1, at)
        tx.handovers.add("visits", event, at)
        (handover,) = tx.handovers.claim("visits", 1, at, hold=dispatch.HOLD)
        tx.handovers.failed("visits", handover, None, "ValueError")
        return event

    event = await service.store.write(give_up)
    (letter,) = (await service.operator("GET", "/extensions/visits/dead-letters")).json()["items"]
    assert (letter["event_id"], letter["event"], letter["machine_id"]) == (event.id, "node.online", "a")
    assert (letter["attempts"], letter["error"]) == (1, "ValueError")
    assert (await service.operator("POST", "/extensions/visits/retry")).json() == {"events": 1}
    assert (await service.operator("GET", "/extensions/visits/dead-letters")).json() == {"items": []}
    (shown,) = (await service.operator("GET", "/extensions")).json()["extensions"]
    assert (shown["pending"], shown["dead_letters"]) == (1, 0)
    assert [e["detail"] for e in await service.audit(action="extension_retry")] == ["visits: 1 events"]
    for method, path in (("GET", "dead-letters"), ("POST", "retry")):
        unknown = await service.operator(method, f"/extensions/other/{path}")
        assert (unknown.status_code, unknown.json()["type"]) == (404, "urn:itl:problem:extension-unknown")


def test_settings_of_an_extension_are_its_own(site: Path) -> None:
    """Read by its model; unknown ones, of it or of one that is not enabled, stop the start; values are not told."""
    install(site, "told", HEAD + SAID + ROUTES.format(name="told"))

    def loaded(**variables: str) -> Any:
        environ = {"ITL_SERVICE_URL": "http://127.0.0.1:1", "ITL_EXTENSIONS": "told", **variables}
        return extensions.load(Settings.load(environ, None)).extensions[0].settings

    assert loaded(ITL_EXT_TOLD_TIMES="3", ITL_EXT_TOLD_GREETING="").model_dump() == {
        "greeting": "hello",
        "times": 3,
    }
    with pytest.raises(ExtensionInvalid, match="has no setting ITL_EXT_TOLD_TYMES"):
        loaded(ITL_EXT_TOLD_TYMES="3")
    with pytest.raises(ExtensionInvalid, match="ITL_EXT_TOLD_TIMES: ") as refused:
        loaded(ITL_EXT_TOLD_TIMES="canary")
    assert "canary" not in str(refused.value)
    with pytest.raises(SettingsInvalid, match="unknown setting ITL_EXT_OTHER_X"):
        loaded(ITL_EXT_OTHER_X="3")


BROKEN = [
    ("raise ValueError('no')", "cannot be imported: ValueError: no"),
    ("raise SystemExit(3)", "cannot be imported: SystemExit: 3"),
    ("Extension = 3", "is no AttestationExtension"),
    (EMPTY.replace("= CONTRACT", "= 99"), "was written for contract 99; this service has 1"),
    (EMPTY.replace("    contract = CONTRACT\n", ""), "was written for contract None"),
    (EMPTY.replace("{name}", "other"), "calls itself 'other'"),
    (EMPTY.replace('"1.2.3"', '""'), "says nothing of its version"),
    (EMPTY.replace("1.2.3", "1.2"), "has the version '1.2'; `1.0.0` would be a semantic one"),
    (EMPTY.replace("    description", "    about"), "cannot be made: TypeError"),
    (
        EMPTY + "    def __init__(self, s):\n        raise ValueError('no')\n",
        "cannot be made: ValueError: no",
    ),
    (
        EMPTY + "    def __init__(self, s):\n        raise SystemExit(0)\n",
        "cannot be made: SystemExit: 0",
    ),
    ("raise BaseException('panic')", "cannot be imported: BaseException: panic"),
    (
        "from asyncio import CancelledError\nraise CancelledError('none')",
        "cannot be imported: CancelledError: none",
    ),
    (
        "class Mute(Exception):\n    def __str__(self):\n        raise ValueError\nraise Mute",
        "cannot be imported: Mute",
    ),
    (
        EMPTY + "    def __init__(self, s):\n        raise BaseException('panic')\n",
        "cannot be made: BaseException: panic",
    ),
    (
        EMPTY + "    def get_subscriptions(self):\n        raise BaseException('panic')\n",
        "has no subscriptions: BaseException: panic",
    ),
    (
        EMPTY + "    def get_observer(self):\n        raise BaseException('panic')\n",
        "has no observer: BaseException: panic",
    ),
    (
        EMPTY + "    def get_router(self):\n        raise BaseException('panic')\n",
        "has routes that cannot be served: BaseException: panic",
    ),
    (
        EMPTY + "    def get_query_tables(self):\n        raise ValueError('no')\n",
        "cannot be made: ValueError: no",
    ),
    (
        EMPTY + "    def get_query_tables(self):\n        return ['Visits']\n",
        "cannot be made: AttributeError",
    ),
    (
        EMPTY
        + "    def get_query_tables(self):\n        return [QueryTable(name='a | take 1', statement=None)]\n",
        "has a table for queries called 'a | take 1'",
    ),
    (EMPTY + "    Settings = 5\n", "cannot be made: AttributeError"),
    (EMPTY + "    def get_models(self):\n        return None\n", "cannot be made: TypeError"),
    (EMPTY + "    def get_models(self):\n        return [3]\n", "cannot be made: AttributeError"),
    (EMPTY + "    def get_models(self):\n        return [Other]\n", "has a table machines"),
    (EMPTY + "    def get_subscriptions(self):\n        return 3\n", "has no subscriptions: TypeError"),
    (
        EMPTY + "    def get_subscriptions(self):\n        return {{'node.onlin': print}}\n",
        "subscribes to 'node.onlin', which is no event",
    ),
    (
        EMPTY + "    def get_router(self):\n        raise ValueError('no')\n",
        "has routes that cannot be served: ValueError: no",
    ),
]


@pytest.mark.threat("T182")
@pytest.mark.parametrize(("code", "why"), BROKEN, ids=[why for _, why in BROKEN])
def test_what_breaks_the_contract_stops_the_start(site: Path, code: str, why: str) -> None:
    """One typed error that names it and says why, before anything is served; the inspection says the same."""
    settings = enabled(site, "broken", code)
    with pytest.raises(ExtensionInvalid) as refused:
        create_app(settings)
    assert str(refused.value).startswith(f"the extension broken (ITL_EXTENSIONS) {why}")
    assert not prepare(settings)
    assert not list(site.glob("*.db"))
    found = inspect(settings, Listen(host="127.0.0.1", port=0, uds=None), datetime(2026, 11, 21, tzinfo=UTC))
    assert any(why in each.what for each in found)


def test_one_that_breaks_when_it_is_compared_is_told_of(site: Path) -> None:
    """What it takes is asked again beside that of another one."""
    enabled(site, "good")
    once = "    def get_models(self, told=[]):\n        told.append(0)\n        return [] if told == [0] else 3\n"
    enabled(site, "broken", EMPTY + once)
    with pytest.raises(ExtensionInvalid, match=r"broken .* cannot be made: TypeError"):
        extensions.load(settings_for(site, extensions=("good", "broken")))


@pytest.mark.parametrize("name", ["Upper", "1st", "a-b", "x" * 33, "../etc"])
def test_a_name_is_a_word(site: Path, name: str) -> None:
    """It becomes a path, a prefix of tables and of settings."""
    with pytest.raises(ExtensionInvalid, match="has a name that none can have"):
        extensions.load(settings_for(site, extensions=(name,)))


def test_one_that_is_not_there_or_there_twice_is_none(site: Path) -> None:
    """What is installed is named."""
    settings = enabled(site, "here")
    with pytest.raises(ExtensionInvalid, match=r"here .* is named twice"):
        extensions.load(settings_for(site, extensions=("here", "here")))
    for names in (("here", "here_too"), ("here_too", "here")):
        # ITL_EXT_HERE_TOO_X and the table extension_here_too_x would be anybody's.
        with pytest.raises(
            ExtensionInvalid, match=r"here_too .* cannot be enabled with here: its name begins"
        ):
            extensions.load(settings_for(site, extensions=names))
    with pytest.raises(ExtensionInvalid, match=r"gone .* is not installed; installed: .*here"):
        extensions.load(settings_for(site, extensions=("gone",)))
    other = site / "other-1.0.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1.0\n")
    (other / "entry_points.txt").write_text(f"[{GROUP}]\nhere = other:Extension\n")
    with pytest.raises(ExtensionInvalid, match="is installed twice"):
        extensions.load(settings)


NO_ROUTES = [
    ("router.add('GET', 'everybody', self.on_shutdown)", "the right is one of public, read"),
    ("router.add('POST', 'read', self.on_shutdown)", "what changes something is an act and no GET"),
    ("router.add('GET', 'act', self.on_shutdown)", "what changes something is an act and no GET"),
    ("router.add('POST', 'public', self.on_shutdown)", "what changes something is an act and no GET"),
    ("router.add('GET s/mine', 'read', self.on_shutdown)", "a path begins with /"),
    ("router.add('GET  /mine', 'read', self.on_shutdown)", "a path begins with /"),
    ("raise ValueError('no')", "ValueError: no"),
    ("raise SystemExit(3)", "SystemExit: 3"),
    ("router.add('GET', 'public', self.asked)", "declared as public, but operators are asked for"),
    ("[router.add(f'GET /{{m}}', 'read', self.asked) for m in 'ab']", "two are called routed_asked"),
    (
        "[router.add(*each) for each in (('GET', 'read', self.asked), ('GET', 'read', self.on_shutdown))]",
        "two are /api/v1/routed",
    ),
    ("router.add('GET', 'read', self.renames)", "the service has another model MachineDetail"),
    ("router.add('POST', 'act', self.problem)", "the service has another model Problem"),
]


@pytest.mark.parametrize(("line", "why"), NO_ROUTES, ids=[line for line, _ in NO_ROUTES])
def test_a_route_without_a_right_of_ours_stops_the_start(site: Path, line: str, why: str) -> None:
    """Default deny: an operation declares who may ask, and asking changes nothing."""
    code = f"    def get_router(self):\n        router = Router()\n        {line}\n        return router\n"
    asked = """
    async def asked(self, who: Caller) -> None:
        "Say nothing."

    async def renames(self) -> "Listed":
        "Answer with a model that has the name of one of ours."

    async def problem(self, body: "Problem") -> None:
        "Take one that is only named."


class MachineDetail(BaseModel):
    pass

class Problem(BaseModel):
    pass

class Listed(BaseModel):
    items: list[MachineDetail]
"""
    with pytest.raises(ExtensionInvalid, match=f"routed .* has routes that cannot be served: .*{why}"):
        create_app(enabled(site, "routed", EMPTY + code + asked))


def test_what_cannot_be_served_ends_the_start_in_words(
    site: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line and an exit status, no trace."""
    settings = enabled(site, "machines")
    monkeypatch.setattr(Settings, "load", lambda: settings)
    monkeypatch.setattr(main, "_prepared", lambda _: True)
    assert main.main(["--host", "127.0.0.1", "--port", "0"]) == main.EXIT_UNUSABLE
    (line,) = capsys.readouterr().err.splitlines()
    assert "service.unusable" in line
    assert "has the name of routes of the service" in line


@pytest.mark.threat("T182")
@pytest.mark.parametrize("name", ["machines", "attest", "extensions"])
def test_no_path_of_ours_is_taken(site: Path, name: str) -> None:
    """An extension cannot answer in our place."""
    with pytest.raises(ExtensionInvalid, match=f"has the name of routes of the service: /api/v1/{name}"):
        create_app(enabled(site, name))


@pytest.mark.threat("T182")
@pytest.mark.parametrize(
    ("prefix", "why"),
    [
        ("/api", "has the name of routes of the service"),
        ("/api/v1", "has the name of routes of the service"),
        ("/api/v1/machines/mine", "has the name of routes of the service"),
        ("/openapi.json", "has the name of routes of the service"),
        ("/pki/mine", "has the name of routes of the service"),
        ("/api/v1/./machines", "which is no path"),
        ("/mine/../api", "which is no path"),
        ("/mine/..", "which is no path"),
        ("/", "which is no path"),
        ("/{it}", "which is no path"),
    ],
)
def test_no_prefix_holds_a_path_of_ours(site: Path, prefix: str, why: str) -> None:
    """Neither what stands above them nor what leads to them: a route there would look like ours."""
    code = EMPTY + f"    prefixes = ({prefix.replace('{', '{{').replace('}', '}}')!r},)\n"
    with pytest.raises(ExtensionInvalid, match=why):
        create_app(enabled(site, "prefixed", code))


async def test_hooks_run_in_order_and_a_failing_one_stops_the_start(
    site: Path, start: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What began is ended in the opposite order, also where a later one fails; a failing end holds up nobody."""
    told: list[str] = []
    monkeypatch.setattr("builtins.print", lambda *words: told.append(" ".join(words)))
    for name, up, down in (("a", "", ""), ("b", "", "raise ValueError"), ("c", "raise ValueError('no')", "")):
        install(site, name, HEAD + EMPTY.format(name=name) + HOOKS.format(up=up, down=down))
    with pytest.raises(ExtensionInvalid, match=r"c .* cannot begin: ValueError$"):
        await start(extensions=("a", "b", "c"))
    assert told == ["up a", "up b", "up c", "down c", "down b", "down a"]


@pytest.mark.parametrize("kind", ["ValueError", "SystemExit", "BaseException", "asyncio.CancelledError"])
async def test_what_fails_while_it_ends_is_told_of(
    site: Path, start: Starter, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    """Whatever it raises, also what is no `Exception`: by its kind alone, and the next one ends too."""
    for name, down in (("one", ""), ("two", f"import asyncio; raise {kind}('canary')")):
        install(site, name, HEAD + EMPTY.format(name=name) + HOOKS.format(up="", down=down))
    await start(extensions=("one", "two"))
    await start.stack.aclose()
    gc.collect()  # an error of a task that nobody asked for is told of when the task goes
    told = capsys.readouterr()
    (line,) = [each for each in told.err.splitlines() if "extension.stop_failed" in each]
    assert "two" in line
    assert kind.removeprefix("asyncio.") in line
    assert told.out.splitlines()[-2:] == ["down two", "down one"]
    assert "canary" not in told.err


async def test_what_will_not_end_holds_nothing_up(
    site: Path, start: Starter, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A handler and a hook that swallow their cancellation: the service ends without them, and says so."""
    monkeypatch.setattr(extensions, "HOOK_SECONDS", 0.001)
    monkeypatch.setattr(life, "HOOK_SECONDS", 0.001)
    released = asyncio.Event()

    async def stubborn(*_: object) -> None:
        while not released.is_set():
            with suppress(asyncio.CancelledError):
                await released.wait()

    monkeypatch.setattr(AttestationExtension, "on_shutdown", stubborn)
    monkeypatch.setattr(dispatch, "run", stubborn)
    install_example(site)
    await start(extensions=("visits",))
    await asyncio.sleep(0)  # the task of its events begins
    await start.stack.aclose()
    log = capsys.readouterr().err
    released.set()
    assert [word in log for word in ("service.tasks_left", "extension.stop_failed", "service.stopped")] == [
        True
    ] * 3


HOOKS = """
    async def on_startup(self, context):
        print("up", self.name)
        {up}

    async def on_shutdown(self):
        print("down", self.name)
        {down}
"""


REVISION = """
import sqlalchemy as sa
from alembic import op

revision, down_revision = "0001", None


def upgrade():
    op.create_table("{table}", sa.Column("id", sa.Text(), primary_key=True))
    {more}
"""
TABLED = (
    EMPTY
    + """
    migrations = Migrations(scripts="tabled_extension:revisions", head="{head}")

    def get_models(self):
        return [Table]
"""
)
TABLE = "class Table:\n    __tablename__ = 'extension_tabled_things'\n"


def tables(path: Path) -> set[str]:
    """Return the names of the tables in a database."""
    with closing(sqlite3.connect(path)) as db:
        return {name for (name,) in db.execute("select name from sqlite_schema where type = 'table'")}


@pytest.mark.parametrize(
    ("table", "more", "head", "why"),
    [
        ("extension_tabled_things", "", "0001", None),
        ("extension_tabled_things", "raise ValueError('no')", "0001", "ValueError: no"),
        ("extension_tabled_other", "", "0001", "do not make extension_tabled_things"),
        ("things", "", "0001", "make or change things; its tables are called extension_tabled_"),
        ("extension_tabled_things", "", "0002", "its newest revision is 0001, not 0002"),
    ],
)
def test_tables_are_made_whole_or_not_at_all(
    site: Path, migrated: Path, table: str, more: str, head: str, why: str | None
) -> None:
    """Revisions of an extension run in one transaction, and make what it says, under its name."""
    database = site / "machines.db"
    shutil.copy(migrated, database)
    revision = REVISION.format(table=table, more=more)
    code = HEAD + TABLE + TABLED.format(name="tabled", head=head)
    install(site, "tabled", code, files={"revisions/0001_first.py": revision})
    settings = settings_for(site, extensions=("tabled",))
    before = tables(database)
    for _ in range(2):
        if why is None:
            extensions.migrate(settings, extensions.load(settings))
        else:
            with pytest.raises(
                ExtensionInvalid, match=f"tabled .* has tables that cannot be migrated: .*{why}"
            ):
                extensions.migrate(settings, extensions.load(settings))
    made = {"extension_tabled_things", "extension_tabled_version"}
    assert tables(database) - before == (made if why is None else set())


def test_tables_of_a_newer_version_are_left_alone(site: Path, migrated: Path) -> None:
    """An older extension does not work on them."""
    shutil.copy(migrated, site / "machines.db")
    code = HEAD + TABLE + TABLED.format(name="tabled", head="0001")
    revision = REVISION.format(table="extension_tabled_things", more="")
    install(site, "tabled", code, files={"revisions/0001_first.py": revision})
    settings = settings_for(site, extensions=("tabled",))
    extensions.migrate(settings, extensions.load(settings))
    with closing(sqlite3.connect(site / "machines.db")) as db:
        db.execute("update extension_tabled_version set version_num = '0009'")
        db.commit()
        # They say that it may run on them, as during a rolling upgrade; then they do not.
        extensions.migrate(settings, extensions.load(settings))
        db.execute("delete from schema_support where branch = 'tabled'")
        db.commit()
    with pytest.raises(
        ExtensionInvalid, match=r"revision 0009, which this version does not know .*newest is 0001"
    ):
        extensions.migrate(settings, extensions.load(settings))


def test_a_version_is_a_semantic_one() -> None:
    """By the words of Semantic Versioning 2.0.0: its own examples, and what looks like them."""
    for good in (
        "1.9.0",
        "1.0.0-alpha.1",
        "1.0.0-x-y-z.--",
        "1.0.0-0a.7+20130313144700",
        "1.0.0+21AF---117B",
    ):
        assert SEMANTIC_VERSION.fullmatch(good), good
    for bad in (
        *(
            "1",
            "1.2",
            "1.2.3.4",
            "v1.2.3",
            "01.2.3",
            "1.02.3",
            "1.2.03",
            "1.2.3-",
            "1.2.3+",
            "1.2.3-a..b",
            "1.2.3-01",
        ),
        *(
            "1.2.3\n",
            " 1.2.3",
            "1.2.3+a+b",
            "1.2.3-a_b",
            "\N{ARABIC-INDIC DIGIT ONE}.2.3",
            f"1.2.3-{'a' * 59}",
        ),
    ):
        assert not SEMANTIC_VERSION.fullmatch(bad), bad


def test_the_words_of_the_contract() -> None:
    """Who wrote an extension relies on them; the operator that a route is told of is ours."""
    assert (GROUP, CONTRACT) == ("attestation_extensions", 1)
    assert set(Operator.__dataclass_fields__) >= {"cn", "sub"}
    assert callable(Operator.event)
