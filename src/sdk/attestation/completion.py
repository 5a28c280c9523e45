"""Completion of what a program that reads its words with argparse understands, for bash, zsh and fish.

The scripts are written once and hold all words: whoever types starts no program. Where a word is no command, option or
choice of ours, files are offered.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from attestation.manual import actions, commands, words_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where the one who types is: after no command, or after some.

    Args:
        path: The commands typed so far, with blanks between them; empty at the beginning.
        words: What may come, and what it is for.
        choices: Options that take one of some words, and those.
        valued: Options that take a value.
    """

    path: str
    words: dict[str, str] = field(default_factory=dict)
    choices: dict[str, list[str]] = field(default_factory=dict)
    valued: list[str] = field(default_factory=list)


def places(parser: argparse.ArgumentParser, path: str = "") -> Iterator[Place]:
    """Yield the place before any command and those after each command."""
    place = Place(path=path)
    below = list(commands(parser))
    for name, _, told in below:
        place.words[name] = told
    for action in actions(parser):
        if not action.option_strings or action.help == argparse.SUPPRESS:
            continue
        for name in action.option_strings:
            place.words[name] = words_of(parser, action)
            if action.nargs != 0:
                place.valued.append(name)
            if action.choices is not None:
                place.choices[name] = [str(choice) for choice in action.choices]
    yield place
    for name, command, _ in below:
        yield from places(command, f"{path} {name}".strip())


def bash(parser: argparse.ArgumentParser) -> str:
    """Return the script for bash-completion."""
    name = f"_{parser.prog.replace('-', '_')}"
    found = list(places(parser))
    lines = [
        f"{name}() {{",
        "  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} at= i",
        "  for ((i = 1; i < COMP_CWORD; i++)); do",
        *_descend(found, "${COMP_WORDS[i]}"),
        "  done",
        '  case "$at:$before" in',
    ]
    for place in found:
        for option in place.valued:
            offered = " ".join(place.choices.get(option, ()))
            reply = (
                f'COMPREPLY=($(compgen -W {shlex.quote(offered)} -- "$word"))' if offered else "COMPREPLY=()"
            )
            lines.append(f"    {shlex.quote(f'{place.path}:{option}')}) {reply}; return ;;")
    lines += ["  esac", '  case "$at" in']
    for place in found:
        offered = shlex.quote(" ".join(place.words))
        lines.append(f'    {shlex.quote(place.path)}) COMPREPLY=($(compgen -W {offered} -- "$word")) ;;')
    lines += ["  esac", "}", f"complete -o default -F {name} {parser.prog}"]
    return "\n".join(lines) + "\n"


def zsh(parser: argparse.ArgumentParser) -> str:
    """Return the function for zsh, which is found by its first line."""
    found = list(places(parser))
    lines = [
        f"#compdef {parser.prog}",
        "local at= i",
        "local -a told",
        "for ((i = 2; i < CURRENT; i++)); do",
        *_descend(found, "${words[i]}"),
        "done",
        'case "$at:${words[CURRENT-1]}" in',
    ]
    for place in found:
        for option in place.valued:
            offered = " ".join(map(shlex.quote, place.choices.get(option, ())))
            reply = f"compadd -- {offered}" if offered else "_files"
            lines.append(f"  ({shlex.quote(f'{place.path}:{option}')}) {reply}; return ;;")
    lines += ["esac", 'case "$at" in']
    for place in found:
        told = " ".join(
            shlex.quote(f"{word.replace(':', chr(92) + ':')}:{said}") for word, said in place.words.items()
        )
        lines.append(f"  ({shlex.quote(place.path)}) told=({told}) ;;")
    lines += ["esac", "_describe word told || _files"]
    return "\n".join(lines) + "\n"


def fish(parser: argparse.ArgumentParser) -> str:
    """Return the lines for fish."""
    at = f"__{parser.prog.replace('-', '_')}_at"
    found = list(places(parser))
    steps = [shlex.quote(f"{place.path}") for place in found if place.path]
    lines = [
        f"function {at}",
        "  set -l at ''",
        "  for word in (commandline -opc)[2..-1]",
        '    set -l next (string trim -- "$at $word")',
        f'    contains -- "$next" {" ".join(steps) or _NOTHING}; and set at $next',
        "  end",
        '  test "$at" = "$argv[1]"',
        "end",
    ]
    for place in found:
        condition = shlex.quote(f"{at} {shlex.quote(place.path)}")
        for word, said in place.words.items():
            head = f"complete -c {parser.prog} -n {condition} -d {_fish(said)}"
            if not word.startswith("-"):
                lines.append(f"{head} -f -a {shlex.quote(word)}")
                continue
            kind = f"-l {word[2:]}" if word.startswith("--") else f"-s {word[1:]}"
            offered = place.choices.get(word)
            more = f" -x -a {_fish(' '.join(offered))}" if offered else " -r" if word in place.valued else ""
            lines.append(f"{head} {kind}{more}")
    return "\n".join(lines) + "\n"


SHELLS: Final = {"bash": bash, "zsh": zsh, "fish": fish}

_NOTHING: Final = "''"


def _descend(found: Sequence[Place], word: str) -> list[str]:
    """Return the lines of bash and zsh that go down where *word* is a command of the place."""
    known = "|".join(shlex.quote(place.path) for place in found if place.path)
    return (
        [f'    case "${{at:+$at }}{word}" in {known}) at="${{at:+$at }}{word}" ;; esac']
        if known
        else ["    :"]
    )


def _fish(text: str) -> str:
    """Return *text* quoted for fish, in which a backslash escapes within single quotes."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"


class Print(argparse.Action):
    """An option `--completion SHELL`, which prints the script for a shell and ends the program."""

    def __init__(self, option_strings: Sequence[str], **more: Any) -> None:
        more |= {"dest": argparse.SUPPRESS, "default": argparse.SUPPRESS, "choices": tuple(SHELLS)}
        super().__init__(option_strings, **more)

    def __call__(self, parser: argparse.ArgumentParser, _: object, values: Any, *__: object) -> None:
        """Print the script."""
        sys.stdout.write(SHELLS[values](parser))
        parser.exit()
