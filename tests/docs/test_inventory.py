"""What exists is documented, and what is documented exists (FAULTS R42)."""

from __future__ import annotations

import functools
import importlib
import pkgutil
import re
import shlex
from collections.abc import Iterator
from importlib.metadata import entry_points

import click
import pytest

from attestation import evidence
from attestation.extension import GROUP
from attestation.machines import ALLOWED, Role, Transition
from attestation_cli.main import cli
from attestation_operator.main import COMMANDS as OPERATOR_COMMANDS
from attestation_operator.main import _named
from attestation_operator.settings import PREFIX
from attestation_service.app import create_app
from attestation_service.settings import Settings
from attestation_web.settings import PREFIX as WEB_PREFIX
from attestation_web.settings import Settings as WebSettings
from tests.docs.pages import PAGES, ROOT, shell_lines, text

EVERYTHING = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)


def _commands(
    command: click.Command, words: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    if not isinstance(command, click.Group):
        yield words, command
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        sub = command.get_command(context, name)
        assert sub is not None
        yield from _commands(sub, (*words, name))


COMMANDS = dict(_commands(cli))


def test_every_setting_is_documented() -> None:
    """Each setting of the service has its row in docs/operate/settings.md, and nothing else has."""
    documented = set(re.findall(r"`(ITL_[A-Z0-9_]+)`", text("docs/operate/settings.md")))
    settings = {f"ITL_{name.upper()}" for name in Settings.model_fields}
    assert settings <= documented


def test_no_setting_is_invented() -> None:
    """A variable that any page names is one that some member reads."""
    sources = "\n".join(
        path.read_text(encoding="utf-8")
        for path in [*ROOT.glob("src/*/attestation_*/**/*.py"), *ROOT.glob("tools/*.py")]
    )
    settings = {f"ITL_{name.upper()}" for name in Settings.model_fields}
    for command in OPERATOR_COMMANDS.values():
        settings |= {f"{PREFIX}{name.upper()}" for name in _named(command.settings).model_fields}
    settings |= {f"{WEB_PREFIX}{name.upper()}" for name in WebSettings.model_fields}
    for point in entry_points(group=GROUP):
        settings |= {
            f"ITL_EXT_{point.name.upper()}_{field.upper()}" for field in point.load().Settings.model_fields
        }
    named = {name for name in re.findall(r"\bITL_[A-Z0-9_]+\b", EVERYTHING) if not name.endswith("_")}
    for name in sorted(named):
        assert name in settings or name in sources, name


def test_every_command_is_documented() -> None:
    """Each command, with each of its options, stands in docs/operate/cli.md."""
    page = text("docs/operate/cli.md")
    names = {" ".join(words): command for words, command in COMMANDS.items()}
    missing = [name for name in names if name not in page] + [
        f"{name} {'/'.join(option.opts)}"
        for name, command in names.items()
        for option in command.params
        if isinstance(option, click.Option) and "--help" not in option.opts
        if not any(opt in page for opt in option.opts)
    ]
    assert not missing, "\n".join(missing)


def _documented_calls() -> list[str]:
    calls = []
    for page in PAGES:
        for line in shell_lines(page.read_text(encoding="utf-8")):
            # `attestation key` is a line of a screen; what follows a redirection or a pipe is the shell's.
            calls += re.findall(r"^(?:\$ )?(attestation (?!service|agent|key  )(?:'[^']*'|[^|>'])*)", line)
    # What has an ellipsis shows a form, not a call; help ends before anything is parsed.
    return sorted({call.strip() for call in calls if "…" not in call and "--help" not in call})


def _understand(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parse *call* as the command line would.

    Raises:
        click.ClickException: There is no such command, option or value.
    """
    words = shlex.split(call.replace("[", "").replace("]", ""))[1:]
    context = cli.make_context("attestation", words, resilient_parsing=False)
    command: click.Command = cli
    while isinstance(command, click.Group):
        rest = [*context._protected_args, *context.args]
        name, found, arguments = command.resolve_command(context, rest)
        assert found is not None, name
        command = found
        # Files that an example names need not exist here.
        for parameter in command.params:
            if isinstance(parameter.type, click.File | click.Path):
                monkeypatch.setattr(parameter, "type", click.STRING)
        context = command.make_context(name, arguments, parent=context)
        context.close()


def test_documented_calls_are_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call that a page shows parses: the command exists, with these options and values."""
    calls, wrong = _documented_calls(), []
    for call in calls:
        try:
            _understand(call, monkeypatch)
        except click.ClickException as e:
            wrong.append(f"{call}: {e.format_message()}")
    assert len(calls) > 80
    assert not wrong, "\n".join(wrong)


def test_the_two_commands_of_the_readme_exist() -> None:
    """`./dev run` and `./dev test`, and whatever else a page tells to run, are commands of the script."""
    script = text("dev")
    commands = {
        name
        for page in PAGES
        for line in shell_lines(page.read_text(encoding="utf-8"))
        for name in re.findall(r"^\./dev ([a-z]+)", line)
    }
    assert {"run", "test"} <= commands
    for name in commands - {"help"}:
        assert re.search(rf"^    {name}\)$", script, flags=re.MULTILINE), name


def test_every_kind_of_evidence_has_its_page() -> None:
    """A kind of evidence is explained check by check, under its media type."""
    kinds = [module.name for module in pkgutil.iter_modules(evidence.__path__)]
    assert len(kinds) >= 6
    for name in kinds:
        kind = importlib.import_module(f"attestation.evidence.{name}")
        assert kind.MEDIA_TYPE in text(f"docs/evidence/{name}.md")


def test_the_life_of_a_machine_is_told_truly() -> None:
    """The statuses in docs/operate/approve-machines.md are those of the table, with the acts that leave them."""
    page = text("docs/operate/approve-machines.md")
    for status, operations in ALLOWED.items():
        row = re.search(rf"^\| `{status}` \| (.*) \|$", page, flags=re.MULTILINE)
        assert row is not None, status
        for operation, after in operations.items():
            if after is not status and operation is not Transition.ATTEST:
                assert operation.value in row[1], f"{status}: {operation}"


def test_roles_are_named() -> None:
    """The protocol page lists every role."""
    for role in Role:
        assert f"`{role}`" in text("docs/protocol/node.md")


@functools.cache
def routes() -> list[tuple[str, str]]:
    """Return every route, of extensions too."""
    document = create_app(Settings(extensions=("metrics",))).openapi()
    return [
        (method.upper(), path.removeprefix("/api/v1"))
        for path, methods in document["paths"].items()
        for method in methods
    ]


def test_every_route_is_documented() -> None:
    """A route is explained to machines, to operators or to relying parties."""
    pages = "".join(
        text(f"docs/protocol/{page}.md")
        for page in ("node", "operator", "pki", "node-csr", "runs", "hsm", "acme", "console")
    )
    told = set(re.findall(r"\b([A-Z]+) (?:/api/v1)?(/[^?`\s]*)[?`]", pages))
    assert len(routes()) > 50
    missing = [" ".join(route) for route in routes() if route not in told]
    assert not missing, "\n".join(missing)


def test_no_operator_route_is_invented() -> None:
    """What the operators' page lists is served."""
    listed = re.findall(r"^\| `([A-Z]+) ([^`]+)` \|", text("docs/protocol/operator.md"), flags=re.MULTILINE)
    assert len(listed) > 20
    assert set(listed) <= set(routes())
