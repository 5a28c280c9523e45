"""Tables for people."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attestation.client.text import clean
from attestation_cli.render import Cell, Column, cell, display_width, shorten, table, trust_cell

NOW = datetime(2026, 11, 21, 4, tzinfo=UTC)
COLUMNS = [
    Column("ID"),
    Column("NAME", shrink_to=5),
    Column("ROLE", drop=1),
    Column("HARDWARE", shrink_to=4, drop=2),
]


@given(st.text(max_size=40), st.integers(1, 40))
def test_shortened_text_fits(text: str, width: int) -> None:
    """Never wider than asked for, and untouched where it fits."""
    text = clean(text)
    short = shorten(text, width)
    assert display_width(short) <= width
    assert short == text or short.endswith("…")


@given(
    st.lists(
        st.tuples(st.text(max_size=30), st.text(max_size=30), st.text(max_size=30), st.text(max_size=30)),
        max_size=4,
    ),
    st.integers(20, 120),
)
def test_a_table_fits_the_terminal(rows: list[tuple[str, ...]], width: int) -> None:
    """Columns that may shrink or go do so before a line is broken by the terminal."""
    first = [Column("A", shrink_to=4), *COLUMNS[1:]]
    for line in table(first, [[cell(text) for text in row] for row in rows], width=width, colour=False):
        assert display_width(line) <= width


def test_columns_are_aligned_and_go_in_their_order() -> None:
    """The least important column goes first; what identifies a machine never does."""
    rows = [[Cell("7f3ad3ac"), Cell("controlplane-1"), Cell("worker"), Cell("PowerEdge R760 SN1")]]
    wide, narrow, tiny = (list(table(COLUMNS, rows, width=w, colour=False)) for w in (None, 36, 18))
    assert wide == [
        "ID        NAME            ROLE    HARDWARE",
        "7f3ad3ac  controlplane-1  worker  PowerEdge R760 SN1",
    ]
    assert narrow[1] == "7f3ad3ac  controlplan…  worker  Pow…"
    assert tiny == ["ID        NAME", "7f3ad3ac  control…"]


def test_wide_characters_take_two_columns() -> None:
    """A hostname of another script does not bend the table."""
    lines = list(
        table(
            [Column("A"), Column("B")],
            [[cell("日本"), cell("x")], [cell("ab"), cell("y")]],
            width=None,
            colour=False,
        )
    )
    assert lines == ["A     B", "日本  x", "ab    y"]


def test_colours_add_no_width() -> None:
    """Without its colours, a coloured table is the plain one."""
    import click

    rows = [[cell("attested"), cell("x")]]
    columns = [Column("STATUS"), Column("B")]
    coloured = [click.unstyle(line) for line in table(columns, rows, width=None, colour=True)]
    assert coloured == list(table(columns, rows, width=None, colour=False))


def test_no_colour_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    """NO_COLOR, a dumb terminal, or no terminal: no colours."""
    from attestation_cli.session import Session

    class Terminal:
        @staticmethod
        def isatty() -> bool:
            return True

    monkeypatch.setattr("sys.stdout", Terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert Session().colour
    monkeypatch.setenv("NO_COLOR", "1")
    assert not Session().colour
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert not Session().colour


@pytest.mark.threat("T178")
def test_a_good_quote_makes_no_trusted_machine() -> None:
    """Green is the last word about a machine, so of one that nobody admitted, or that is locked, it is not said."""
    assert trust_cell("verified", "attested") == Cell("verified", "green", "verified")
    for status in ("pending_approval", "registered", "locked", "revoked", "rejected"):
        # Programs read what the service said.
        assert trust_cell("verified", status) == Cell("not trusted", "yellow", "verified")
        assert trust_cell("failed", status).colour == "red"
