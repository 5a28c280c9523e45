"""Manual pages (man(7), section 1), made of what `--help` is made of.

Layout: the `man` macros of groff and mandoc. A text never becomes a request: what troff would obey is escaped, and no
line of a text begins with a dot or an apostrophe.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

_ESCAPED: Final = str.maketrans(
    {"\\": r"\e", "-": r"\-", "'": r"\(aq", "`": r"\(ga", "^": r"\(ha", "~": r"\(ti"}
)


@dataclass(frozen=True, slots=True)
class Terms:
    """A list of words, each with what it means: options, commands, exit codes."""

    pairs: Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Verbatim:
    """Lines that stay as they are: examples."""

    lines: Sequence[str]


Block = str | Terms | Verbatim
"""A string is a paragraph."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A manual page.

    Args:
        name: With blanks: `attestation machine list`.
        summary: One line without a dot at its end.
        synopsis: How it is called, without the name.
        sections: Titles and what stands there, in their order; empty ones are left out.
    """

    name: str
    summary: str
    synopsis: Sequence[str]
    sections: Sequence[tuple[str, Sequence[Block]]]

    @property
    def file(self) -> str:
        """Name of the file: `attestation-machine-list.1`."""
        return f"{self.name.replace(' ', '-')}.1"


def escaped(text: str) -> str:
    """Return *text*, of one line, so that troff prints it; blanks at its ends go."""
    # Both begin a request only as the first character of a line; \& is nothing, and stands before it.
    line = " ".join(text.split()).translate(_ESCAPED)
    return rf"\&{line}" if line.startswith(".") else line


def roff(page: Page, version: str) -> str:
    """Return *page* as troff source, UTF-8."""
    title = escaped(page.name.replace(" ", "-").upper())
    lines = [f'.TH {title} 1 "" "{escaped(version)}"', ".nh", ".ad l"]
    lines += [
        ".SH NAME",
        rf"{escaped(page.name.replace(' ', '-'))} \- {escaped(page.summary)}",
        ".SH SYNOPSIS",
    ]
    lines += [f".B {escaped(page.name)}", *(escaped(words) for words in page.synopsis if words.split())]
    for heading, blocks in page.sections:
        told = [line for block in blocks for line in _block(block)]
        if told:
            lines += [f'.SH "{escaped(heading.upper())}"', *told]
    return "\n".join(lines) + "\n"


def _block(block: Block) -> Iterator[str]:
    if isinstance(block, str):
        if block.split():
            yield from (".PP", escaped(block))
    elif isinstance(block, Terms):
        for term, text in block.pairs:
            yield from (".TP", rf"\fB{escaped(term)}\fR", escaped(text) or r"\&")
    elif block.lines:
        yield from (".PP", ".nf")
        # Blanks at the beginning of a line are kept; \& keeps them from ending a paragraph.
        yield from (rf"\&{line.rstrip().translate(_ESCAPED)}" for line in block.lines)
        yield ".fi"


def of_parser(parser: argparse.ArgumentParser) -> Page:
    """Return the page of a program that reads its words with argparse; its commands are sections."""
    sections: list[tuple[str, Sequence[Block]]] = [
        ("Description", [parser.description or ""]),
        ("Options", [Terms(_options(parser))]),
    ]
    sections += _command_sections(parser)
    return Page(
        name=parser.prog,
        summary=(parser.description or "").partition(".")[0],
        synopsis=[_usage(parser)],
        sections=[*sections, ("Notes", [parser.epilog or ""])],
    )


def _command_sections(parser: argparse.ArgumentParser) -> Iterator[tuple[str, Sequence[Block]]]:
    for name, below, words in commands(parser):
        told = f"{words[:1].upper()}{words[1:]}."
        yield f"{parser.prog} {name}", [told, _usage(below), Terms(_options(below))]
        yield from _command_sections(below)


def commands(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser, str]]:
    """Yield the commands of *parser*: name, what reads its words, and what it is for."""
    for action in actions(parser):
        if _holds_commands(action):
            yield from _commands(action)


def actions(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """Return the options and arguments of *parser*, its commands among them."""
    return parser._actions  # noqa: SLF001 -- argparse shows its options and commands nowhere else


def _holds_commands(action: argparse.Action) -> bool:
    return isinstance(action.choices, Mapping)


def _commands(action: Any) -> Iterator[tuple[str, argparse.ArgumentParser, str]]:
    words = {choice.dest: choice.help or "" for choice in action._choices_actions}  # noqa: SLF001 -- the words of a command stand nowhere else
    for name, below in action.choices.items():
        yield name, below, words.get(name, "")


def _usage(parser: argparse.ArgumentParser) -> str:
    """Return how *parser* is called, without the name of the program."""
    text = " ".join(parser.format_usage().split()).removeprefix("usage: ")
    return text.removeprefix(parser.prog).strip()


def _options(parser: argparse.ArgumentParser) -> list[tuple[str, str]]:
    return [
        (_invocation(action), words_of(parser, action))
        for action in actions(parser)
        if action.help != argparse.SUPPRESS and not _holds_commands(action)
    ]


def words_of(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    """Return what an option or argument of *parser* is for, on one line."""
    formatter = parser.formatter_class(prog=parser.prog)
    return "" if action.help is None else formatter._expand_help(action)  # noqa: SLF001 -- as --help fills it in


def _invocation(action: argparse.Action) -> str:
    """Return how an option or argument is given; `--help` says it in other words with each version of Python."""
    value = action.metavar or action.dest.upper()
    if action.choices is not None:
        value = f"{{{','.join(map(str, action.choices))}}}"
    if not action.option_strings:
        return str(action.metavar or action.dest)
    names = ", ".join(action.option_strings)
    return names if action.nargs == 0 else f"{names} {value}"


class Print(argparse.Action):
    """An option `--man`, which prints the page of its program and ends it."""

    def __init__(self, option_strings: Sequence[str], **more: Any) -> None:
        more |= {"dest": argparse.SUPPRESS, "default": argparse.SUPPRESS, "nargs": 0}
        super().__init__(option_strings, **more)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        """Print the page."""
        sys.stdout.write(roff(of_parser(parser), parser.prog))
        parser.exit()
