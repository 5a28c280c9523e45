"""What pages are made of: tables, badges, charts, differences, instants."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from flask import Flask, render_template_string

from attestation.machines import Status, Trust
from attestation.results import Assurance, Verdict
from attestation_web.navigation import areas
from attestation_web.page import Column, Table, bar, lines_of, table
from attestation_web.page.badges import Look, badge
from attestation_web.page.when import exact, instant, machine_readable, relative, short
from tests.fixtures.web import URL, Dashboard

COLUMNS = (
    Column(name="name", title="Name", sort=lambda row: row["name"]),
    Column(name="count", title="Count", sort=lambda row: row["count"], numeric=True),
    Column(name="more", title="More", shown=False),
    Column(name="last", title="Last"),
)
ROWS = [{"name": f"n{i:03}", "count": None if i == 7 else 500 - i} for i in range(120)]


def _table(app: Flask, query: str = "", **more: Any) -> Table:
    with app.test_request_context(f"/machines?{query}", base_url=URL):
        return table(COLUMNS, more.pop("rows", ROWS), **more)


@pytest.fixture
def app(dashboard: Dashboard) -> Flask:
    """The application, for its templates."""
    return dashboard.app


def _shown(app: Flask, text: str, **values: Any) -> str:
    with app.test_request_context("/machines?q=x", base_url=URL):
        head = '{% import "components/ui.html" as ui with context %}'
        return render_template_string(head + text, **values)


def test_rows_are_sorted_and_paged_here(app: Flask) -> None:
    """By what the address says; rows without a value come last, whichever way."""
    first = _table(app, by="name")
    assert [row["name"] for row in first.rows[:2]] == ["n000", "n001"]
    assert (len(first.rows), first.total, first.earlier) == (50, 120, None)
    assert first.later == "/machines?page=2"
    last = _table(app, "page=3&q=a&sort=count")
    assert last.later is None
    assert last.earlier == "/machines?q=a&sort=count&page=2"
    assert last.rows[-1]["name"] == "n007"
    assert _table(app, "page=3&sort=-count").rows[-1]["name"] == "n007"
    assert _table(app, "page=99&sort=name").rows[0]["name"] == "n100"


@pytest.mark.parametrize("query", ["sort=evil", "sort=more", "page=x", "page=-1", "column=evil", "sort="])
def test_an_address_that_asks_for_nonsense_is_answered(app: Flask, query: str) -> None:
    """As one that asks for nothing."""
    found = _table(app, query)
    assert [c.name for c in found.columns] == ["name", "count", "last"]
    assert found.sorted_by is None
    assert found.rows[0]["name"] == "n000"


def test_a_column_turns_the_order_round(app: Flask) -> None:
    """And says which way it is, to who does not see it."""
    found = _table(app, "sort=name&page=2")
    assert found.sort_url(COLUMNS[0]) == "/machines?sort=-name"
    assert found.sort_url(COLUMNS[1]) == "/machines?sort=count"
    assert (found.order(COLUMNS[0]), found.order(COLUMNS[1])) == ("ascending", None)


def test_columns_are_chosen_by_the_address(app: Flask) -> None:
    """And stay chosen from page to page."""
    found = _table(app, "column=more&column=name")
    assert [c.name for c in found.columns] == ["name", "more"]
    assert found.later == "/machines?column=more&column=name&page=2"
    assert ("column", "more") in found.hidden()


def test_pages_of_the_service_go_on_by_its_cursor(app: Flask) -> None:
    """Nothing is sorted here that is only a part."""
    found = _table(app, "after=c1&q=a", rows=ROWS[:3], paged=True, cursor="c2")
    assert found.later == "/machines?q=a&after=c2"
    assert found.earlier == "/machines?q=a"
    assert all(column.sort is None for column in found.columns)
    assert _table(app, rows=[], paged=True).later is None


def test_a_table_shows_its_cells_as_text(app: Flask) -> None:
    """With a caption and a head; where there is nothing, it says so."""
    cells = '{% call(row, c) ui.table(t, "Rows", "None fits.") %}{{ row[c.name] }}{% endcall %}'
    shown = _shown(app, cells, t=_table(app, rows=[{"name": "<b>", "count": 1, "last": ""}]))
    assert '<td data-label="Name">&lt;b&gt;</td>' in shown
    assert "<caption" in shown
    assert "None fits." in _shown(app, cells, t=_table(app, rows=[]))


@pytest.mark.parametrize("value", [*Status, *Trust, *Verdict, *Assurance])
def test_only_what_is_good_looks_good(value: Any) -> None:
    """What is old, unknown, waits or failed has a look of its own; each says it in words too."""
    found = badge(value)
    good = {
        Status.ATTESTED, Trust.VERIFIED, Verdict.VERIFIED,
        Assurance.EK_ALLOWLIST, Assurance.EK_CHAIN, Assurance.TEE, Assurance.AK_CERTIFIED,
    }  # fmt: skip
    assert (found.look is Look.GOOD) == (value in good), value
    assert found.text


@pytest.mark.parametrize("value", [None, ""])
def test_what_is_not_known_looks_unknown(value: object) -> None:
    """Never like an empty good one; a word of a newer service is plain."""
    assert badge(value).look is Look.UNKNOWN
    assert badge("something_new").look is Look.PLAIN


def test_every_look_has_its_colours_and_its_sign(app: Flask) -> None:
    """In the style sheet, for badges and for charts; a line tells them apart without colour."""
    assert app.static_folder is not None
    style = (Path(app.static_folder) / "components.css").read_text(encoding="utf-8")
    for look in Look:
        if look is not Look.PLAIN:
            assert f".badge.{look}::before" in style, look
        if look is not Look.LOADING:
            assert f".bar .{look} {{" in style, look
            assert f".donut .{look} {{" in style, look


def test_each_area_of_the_navigation_has_a_sign(app: Flask) -> None:
    """Drawn for it; one that has none yet gets a dot."""
    with app.test_request_context("/", base_url=URL):
        drawn = {
            area.name: render_template_string(
                '{% from "components/icons.html" import icon %}{{ icon(name) }}', name=area.name
            )
            for area in areas()
            if area.place is not None
        }
    assert len(set(drawn.values())) == len(drawn) > 10


def test_an_area_that_the_navigation_does_not_name_stands_under_another(dashboard: Dashboard) -> None:
    """Webhooks and secrets are extensions: there one is."""
    alice = dashboard.browser()
    for path in ("/extensions", "/webhooks", "/secrets"):
        assert re.findall(r'<a href="([^"]*)" aria-current="page"', alice.page(path)) == ["/extensions"], path


def test_an_identifier_is_broken_only_where_it_is_whole(app: Flask) -> None:
    """The beginning of one stays in one line with its ellipsis; the whole of one may be longer than a telephone."""
    text = "{{ ui.ident(value, 12) }}"
    assert 'class="short"' in _shown(app, text, value="f" * 64)
    assert 'class="short"' not in _shown(app, text, value="f" * 12)


def test_a_maker_is_called_what_people_call_it(app: Flask) -> None:
    """Codes of the registry are for machines; one that nobody knows is shown as it is."""
    assert _shown(app, "{{ 'IFX'|maker }}, {{ 'AMD'|maker }}, {{ 'NEW'|maker }}") == "Infineon, AMD, NEW"


def test_parts_of_a_whole_add_up(app: Flask) -> None:
    """And are read out as a sentence; nothing is no division by nothing."""
    chart = bar(
        "Fleet", [("good", 3, Look.GOOD, "/x?a=1&b=2"), ("bad", 1, Look.BAD), ("none", 0, Look.PLAIN)]
    )
    assert [p.percent for p in chart.pieces] == [75, 25, 0]
    assert chart.words == "Fleet: good 3, bad 1"
    assert bar("Fleet", [("good", 0, Look.GOOD)]).pieces[0].percent == 0
    shown = _shown(app, "{{ ui.bar(c) }}{{ ui.donut(c) }}", c=chart)
    assert 'href="/x?a=1&amp;b=2"' in shown
    assert 'stroke-dasharray="75.000 25.000"' in shown


def test_a_difference_shows_both_sides() -> None:
    """With the numbers of its lines; what is the same is left out."""
    before = "\n".join(f"line {i}" for i in range(30))
    found = lines_of(before, before.replace("line 20", "line x"))
    assert [(line.kind, line.before, line.after) for line in found if line.kind in ("gone", "new")] == [
        ("gone", 21, None),
        ("new", None, 21),
    ]
    assert found[0].kind == "gap"
    assert lines_of(before, before) == []


def test_instants_are_relative_and_exact() -> None:
    """The service's texts too; what is no instant is none."""
    at = datetime(2026, 11, 26, 12, 0, 3, tzinfo=UTC)
    assert relative("2026-11-26T11:57:03Z", at) == "3 min ago"
    assert (relative(at, at), relative("2026-11-26T12:00:01Z", at)) == ("just now", "2 s ago")
    assert exact(at) == "2026-11-26 12:00:03 UTC"
    assert machine_readable(at).startswith("2026-11-26T12:00:03")
    assert instant("yesterday") is None
    assert (exact(None), machine_readable(None), relative(None, at)) == ("", "", "-")


def test_identifiers_are_short_and_copied_whole(app: Flask) -> None:
    """Whatever stands in them."""
    assert short("a" * 64, 12) == f"{'a' * 12}…"
    assert short("short") == "short"
    shown = _shown(app, "{{ ui.ident(v) }}", v='<x>"' * 9)
    assert f'data-copy="{"&lt;x&gt;&#34;" * 9}"' in shown
    assert 'class="none">unknown' in _shown(app, "{{ ui.ident(None) }}")


@dataclass
class _Node:
    name: str
    children: list[_Node]


def test_macros_show_what_they_are_given(app: Flask) -> None:
    """A tree with its branches, tabs by links, facts that are not known, commands in a sentence."""
    roots = [_Node("root", [_Node("<leaf>", [])])]
    shown = _shown(app, "{% call(n) ui.tree(roots) %}{{ n.name }}{% endcall %}", roots=roots)
    assert re.search(r"<li>root<ul><li>&lt;leaf&gt;</li>\s*</ul></li>", shown)
    shown = _shown(app, '{{ ui.tabs([("A", "a"), ("B", "b")], "b") }}')
    assert '<a href="?tab=b" aria-current="page">B</a>' in shown
    assert '<dd><span class="none">unknown</span></dd>' in _shown(app, '{{ ui.facts([("Role", None)]) }}')
    shown = _shown(app, "{{ ui.prose('Run `a <b>`, then `c`.') }}")
    assert "Run <code>a &lt;b&gt;</code>, then <code>c</code>." in shown
    assert "<code>" not in _shown(app, "{{ ui.prose('one ` alone') }}")
