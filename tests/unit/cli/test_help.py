"""The help is complete: every command says what it does, shows how it is called, and what it shows works."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from attestation_cli.failures import ExitCode
from attestation_cli.groups import EXIT_CODES, GROUPS
from attestation_cli.main import cli


def tree(
    command: click.Command, words: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    yield words, command
    if isinstance(command, click.Group):
        context = click.Context(command)
        names = GROUPS if not words else command.commands  # ours: plug-ins have tests of their own
        for name in names:
            below = command.get_command(context, name)
            assert below is not None
            yield from tree(below, (*words, name))


TREE = dict(tree(cli))
BELOW = {words: command for words, command in TREE.items() if words}


def help_of(words: tuple[str, ...]) -> str:
    done = CliRunner().invoke(cli, [*words, "--help"], catch_exceptions=False, terminal_width=100)
    assert done.exit_code == 0
    return done.output


def examples(words: tuple[str, ...]) -> list[str]:
    after = help_of(words).partition("Examples:\n")[2]
    return [line.strip() for line in after.split("\n\n")[0].replace("\\\n", " ").splitlines()]


@pytest.mark.parametrize("words", BELOW, ids=" ".join)
def test_every_command_has_a_paragraph_and_examples(words: tuple[str, ...]) -> None:
    """Help starts with a sentence, and shows at least one call of this very command."""
    command = BELOW[words]
    assert command.help
    first = command.help.split("\n\n")[0]
    assert first[0].isupper()
    assert re.search(r"[.:]", first), first
    assert any(
        re.search(rf"\battestation (--\S+ \S+ )*{re.escape(' '.join(words))}\b", e) for e in examples(words)
    )


def calls() -> list[tuple[str, str]]:
    return [
        (" ".join(words), call.rstrip())
        for words in BELOW
        for line in examples(words)
        for call in re.findall(r"attestation (?:'[^']*'|[^|>#()&])*", line)
    ]


CALLS = calls()


@pytest.mark.parametrize(("words", "call"), CALLS, ids=[c for _, c in CALLS])
def test_every_example_is_understood(words: str, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands, options and values that the help shows exist."""
    # Inside `"$(…)"` the quote that ends it is the shell's.
    arguments = shlex.split(call if call.count('"') % 2 == 0 else call.rstrip('"'))[1:]
    context = cli.make_context("attestation", arguments)
    command: click.Command = cli
    while isinstance(command, click.Group):
        rest = [*context._protected_args, *context.args]
        if not rest:
            return
        name, found, left = command.resolve_command(context, rest)
        assert found is not None
        command = found
        for parameter in command.params:
            if isinstance(parameter.type, click.File | click.Path):
                monkeypatch.setattr(parameter, "type", click.STRING)
        context = command.make_context(name, left, parent=context)
        context.close()


@pytest.mark.parametrize("words", BELOW, ids=" ".join)
def test_every_option_is_explained(words: tuple[str, ...]) -> None:
    """No option without a word about it."""
    for parameter in BELOW[words].params:
        if isinstance(parameter, click.Option) and not parameter.hidden:
            assert parameter.help, parameter.opts


def test_the_top_help_tells_the_exit_codes() -> None:
    """All of them, as they are."""
    told = help_of(())
    assert [int(code) for code, _ in EXIT_CODES] == list(ExitCode)
    for _, meaning in EXIT_CODES:
        assert meaning.split(":")[0] in " ".join(told.split())


@pytest.mark.parametrize("words", TREE, ids=lambda words: " ".join(words) or "attestation")
def test_help_fits_eighty_columns(words: tuple[str, ...]) -> None:
    """Nothing is cut off or wrapped by the terminal."""
    done = CliRunner().invoke(cli, [*words, "--help"], catch_exceptions=False, terminal_width=80)
    assert [line for line in done.output.splitlines() if len(line) > 80] == []


@pytest.mark.parametrize("words", [w for w, c in TREE.items() if isinstance(c, click.Group)], ids=" ".join)
def test_a_group_lists_its_commands_in_whole_sentences(words: tuple[str, ...]) -> None:
    """Nothing ends in an ellipsis where somebody looks for a command."""
    done = CliRunner().invoke(cli, [*words, "--help"], catch_exceptions=False, terminal_width=80)
    assert "..." not in done.output.partition("Commands:")[2]
