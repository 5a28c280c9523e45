"""Who is sent to a page has it: programs, wheels, sources."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
from packaging.requirements import Requirement

from attestation_cli.main import cli
from attestation_service.commands import parser
from attestation_service.settings import Settings
from tests.docs.pages import PAGES, ROOT, text

PAGE = re.compile(r"\bdocs/[a-z-]+(?:/[\w.-]*\w)?")
SOURCES = sorted((ROOT / "src").rglob("*.py"))


def _said(source: Path) -> Iterator[str]:
    """Yield the texts of a module that a program may print and that may name a page: no docstrings."""
    written = source.read_text(encoding="utf-8")
    if "docs/" not in written and ".md" not in written:
        return  # nothing to look for; parsing all takes seconds
    tree = ast.parse(written)
    silent = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in silent:
            yield node.value


def test_no_program_sends_anybody_to_a_page_that_they_do_not_have() -> None:
    """Who installed a wheel has no `docs/`: a message names the command or the setting that helps."""
    # What the zoo writes, and what the wheels of service, controllers and dashboard bring.
    ours = {"README.md", "operate/settings.md", "operate/dashboard.md", "kubernetes/controllers.md"}
    found = [
        f"{source}: {said}"
        for source in SOURCES
        for said in _said(source)
        if said not in ours and (PAGE.search(said) or re.search(r"\b[\w-]+\.md\b", said))
    ]
    assert found == []


def test_the_pages_that_sources_cite_exist() -> None:
    """A decision by its number, others by their path."""
    cited = {page for source in SOURCES for page in PAGE.findall(source.read_text(encoding="utf-8"))}
    assert len(cited) > 15
    for page in cited:
        found = list(ROOT.glob(f"{page}-*.md")) if re.fullmatch(r"docs/adr/\d{4}", page) else [ROOT / page]
        assert len(found) == 1, page
        assert found[0].exists(), page


def _shared(member: str) -> dict[str, Path]:
    """Return what a wheel puts beside its package: the place in the environment, and the folder here."""
    project = ROOT / "src" / member
    wheel = tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]["build"][
        "targets"
    ]
    return {place: (project / here).resolve() for here, place in wheel["wheel"]["shared-data"].items()}


def test_the_pages_that_a_wheel_names_ship_with_it() -> None:
    """Each place that a README names is one into which its wheel puts that page; `docs/` it never names."""
    for member in ("sdk", "service", "agent", "cli", "extensions", "operator", "testing"):
        readme, shared = text(f"src/{member}/README.md"), _shared(member)
        assert not PAGE.search(readme), member
        places = re.findall(r"share/doc/[\w./-]*\w", readme)
        assert places, member
        for place in places:
            folder, _, page = place.rpartition("/")
            assert (
                (shared[folder] / page).is_file()
                if page.endswith(".md")
                else any(shipped.startswith(place) for shipped in shared)
            ), place
    assert (_shared("agent")["share/doc/itl-attestation-agent/operate"] / "agent-certificates.md").is_file()


def test_the_help_of_the_service_names_a_page_that_its_wheel_brings() -> None:
    """An unknown variable sends people to the help, and the help to every setting."""
    (place, here), *others = [(p, h) for p, h in _shared("service").items() if p.endswith("/operate")]
    assert not others
    assert str(parser.PAGES / "operate").endswith(place)
    assert str(parser.PAGES / "operate/settings.md") in parser.parser().format_help()
    assert (here / "settings.md").is_file()


def test_the_readme_of_the_sdk_says_what_it_holds_and_needs() -> None:
    """Each folder has its row, and the needs of the core are those that the wheel declares."""
    readme = text("src/sdk/README.md")
    folders = {path.parent.name for path in (ROOT / "src/sdk/attestation").glob("*/__init__.py")}
    rows = re.findall(r"^\| (`.*`) \|", readme, flags=re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} >= folders
    needed = tomllib.loads(text("src/sdk/pyproject.toml"))["project"]
    said = re.search(r"The core needs ([^.]+)\.", readme)
    assert said is not None
    assert set(re.split(r", | and ", said[1])) == {Requirement(line).name for line in needed["dependencies"]}
    for extra in needed["optional-dependencies"]:
        assert f"`[{extra}]`" in readme, extra


def _named() -> set[tuple[str, str]]:
    """Return the calls of the command line that stand in sentences: the page, and the call."""
    return {
        (str(page.relative_to(ROOT)), call)
        for page in PAGES
        if page.parent.name != "adr" and page.name != "CHANGELOG.md"
        for call in re.findall(r"`(attestation [a-z][^`\n]*)`", page.read_text(encoding="utf-8"))
    }


def test_commands_in_sentences_exist() -> None:
    """Each with each of its options; what they are given need not stand there."""
    assert len(_named()) > 50
    for page, call in sorted(_named()):
        words = call.replace("…", "").split()[1:]
        command: click.Command = cli
        while isinstance(command, click.Group) and words and not words[0].startswith("-"):
            found = command.get_command(click.Context(command), words.pop(0))
            assert found is not None, f"{page}: {call}"
            command = found
        options = {name for option in (*cli.params, *command.params) for name in option.opts} | {
            "-o",
            "--help",
        }
        said = {word.partition("=")[0] for word in words if re.fullmatch(r"--?[a-z][\w=-]*", word)}
        assert said <= options, f"{page}: {call}: {said - options}"


def test_a_code_stands_with_its_status() -> None:
    """`409 ak-conflict`: wherever a page says both, they are those of the page of all codes."""
    rows = dict(
        re.findall(r"^\| `([a-z0-9-]+)` \| (\d{3}) \|", text("docs/protocol/errors.md"), flags=re.MULTILINE)
    )
    said = [
        (page.name, status, code)
        for page in PAGES
        for status, code in re.findall(r"`(\d{3}) ([a-z0-9-]+)`", page.read_text(encoding="utf-8"))
    ]
    assert len(said) > 30
    assert [each for each in said if rows.get(each[2]) != each[1]] == []


def test_the_defaults_and_bounds_of_settings_are_those_of_the_program() -> None:
    """Numbers, switches and paths as they stand in the column; words for what is unset or derived are for people."""
    rows = re.findall(r"^\| `ITL_(\w+)` \| ([^|]*) \|", text("docs/operate/settings.md"), flags=re.MULTILINE)
    compared = 0
    for name, said in rows:
        field = Settings.model_fields[name.lower()]
        default = field.default
        number = re.match(r"(\d+)(?: \((\d+)–(\d+)\))?$", said.strip())
        if isinstance(default, bool):
            assert said == str(default).lower(), name
        elif isinstance(default, int | float):
            assert number is not None, name
            assert float(number[1]) == default, name
            if number[2]:
                limits = {type(m).__name__: m for m in field.metadata}
                assert (limits["Ge"].ge, limits["Le"].le) == (int(number[2]), int(number[3])), name
        elif isinstance(default, str | Path) and str(default) and said.startswith("`"):
            assert said.partition("`,")[0].strip("`") == str(default), name
        else:
            continue
        compared += 1
    assert compared > 60
