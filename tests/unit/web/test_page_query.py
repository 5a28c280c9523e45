"""The query language in the dashboard, before a real service in this process."""

from __future__ import annotations

import csv
import html
import io
import json
import re
from urllib.parse import quote

import pytest

from attestation.api import QueryColumn, QueryRender, QueryResult
from attestation.store import SavedQuery
from attestation_web.page.plots import MOST_BARS, Bars, Plot, plot_of
from attestation_web.pages.query import SAMPLES
from tests.fixtures.web import AUDITOR, OPERATOR, VIEWER, Dashboard

ASKED = "/query?q=" + quote("Machines\n| project machine_id, hw_serial, status")


def test_rows_are_shown_with_their_columns(dashboard: Dashboard) -> None:
    """The query of the address is asked; a machine is a link; a dash is no value."""
    machine = dashboard.machine(1, hw_serial="SN-4711")
    page = dashboard.browser().page(ASKED)
    assert "1 row<" in page
    assert f'href="/machines/{machine.machine_id}"' in page
    assert '<td data-label="hw_serial">SN-4711</td>' in page
    assert "No row fits." in dashboard.browser().page("/query?q=Machines|where+hw_serial=='x'")


def test_each_role_sees_its_tables_and_samples(dashboard: Dashboard) -> None:
    """What the service does not offer is not offered here: the list is the service's."""
    operator = dashboard.browser(rights=OPERATOR).page("/query")
    tables = re.findall(r'<details class="of-table"><summary>(\w+)', operator)
    assert "Machines" in tables
    assert "hostname</code> <span>string" in operator
    assert "Write a query, or begin with a sample." in operator
    for rights in (OPERATOR, VIEWER, AUDITOR):
        dashboard.browser("x", rights=rights).page("/query")


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.title)
def test_each_sample_can_be_asked(dashboard: Dashboard, sample: object) -> None:
    """Each of them answers, with nothing wrong."""
    page = dashboard.browser().page(f"/query?q={quote(sample.query)}")  # type: ignore[attr-defined]  # a sample, typed as an object
    assert 'role="alert"' not in page
    assert re.search(r"<strong>[\d,]+ rows?</strong>", page)


def test_a_fault_is_shown_where_it_is(dashboard: Dashboard) -> None:
    """Line, column, a mark below the word, and what was meant; by Run and by Check."""
    for check in ("", "&check=yes"):
        page = dashboard.browser().page(f"/query?q={quote('Machines' + chr(10) + '| wher x')}{check}")
        assert "Line 2, column 3:" in page
        assert "Did you mean <code>where</code>?" in page
        assert "| wher x\n  ^^^^" in page
    assert "This can be asked." in dashboard.browser().page("/query?q=Machines&check=yes")


def test_the_editor_is_told_what_fits(dashboard: Dashboard) -> None:
    """Faults and completions come from the service; what cannot be asked now is said in words."""
    alice = dashboard.browser()
    found = json.loads(alice.get(f"/query/check?q={quote('Machines | wh')}&offset=13").text)
    assert "where" in [each["text"] for each in found["completions"]]
    assert found["valid"] is False
    assert "problem" in json.loads(alice.get("/query/check?q=" + "a" * 8300).text)


@pytest.mark.threat("T276")
def test_a_link_from_elsewhere_asks_nothing(dashboard: Dashboard) -> None:
    """A query runs under one's name, and the audit says so: another site cannot have it run."""
    dashboard.machine(1)
    alice = dashboard.browser()
    elsewhere = {"Sec-Fetch-Site": "cross-site"}
    page = alice.get(ASKED, headers=elsewhere).text
    assert "came by a link from elsewhere" in page
    assert "1 row<" not in page
    answer = alice.get(ASKED.replace("/query?", "/query/results.csv?"), headers=elsewhere)
    assert (answer.status_code, answer.headers["Location"].partition("?")[0]) == (303, "/query")
    assert "1 row<" in alice.get(ASKED, headers={"Sec-Fetch-Site": "none"}).text


@pytest.mark.threat("T274")
def test_a_csv_calculates_nothing(dashboard: Dashboard) -> None:
    """What a machine says of itself is text in a spreadsheet too."""
    dashboard.machine(1, hw_serial='=HYPERLINK("https://x")')
    answer = dashboard.browser().get("/query/results.csv?q=" + quote("Machines | project hw_serial, status"))
    rows = list(csv.reader(io.StringIO(answer.text)))
    assert rows == [["hw_serial", "status"], ['\'=HYPERLINK("https://x")', "pending_approval"]]
    assert answer.headers["Content-Disposition"].startswith('attachment; filename="query-')
    assert dashboard.browser().get("/query/results.csv").status_code == 303


def test_a_query_is_kept_shared_and_forgotten(dashboard: Dashboard) -> None:
    """It stands in the list, and its name leads to it; the form says beforehand what that means."""
    alice = dashboard.browser()
    form = "/query/save?q=" + quote("Machines | count")
    assert "in place of what you kept there before" in alice.page(form)
    kept = alice.act(form, name="all", q="Machines | count", shared="yes")
    assert kept.status_code == 303
    page = alice.page("/query")
    assert "all is kept, and shared." in page
    assert 'href="/query?q=Machines+%7C+count"' in page
    wrong = alice.act(form, name="wrong", q="Machins")
    assert wrong.status_code == 400
    assert "Machins" in html.unescape(wrong.text)
    unnamed = alice.act(form, name="two words", q="Machines | count")
    assert unnamed.status_code == 422
    assert "What was filled in cannot be used." in unnamed.text
    assert "must be 1 to 63 letters, digits" in unnamed.text
    assert alice.act("/query/saved/all/delete").status_code == 303
    assert 'href="/query?q=Machines+%7C+count"' not in alice.page("/query")


def keep_of_another(dashboard: Dashboard, name: str, query: str) -> None:
    """Keep a shared query of anna's: all browsers of these tests are one person to the service."""
    at = dashboard.service.clock.now()
    saved = SavedQuery(
        owner="issuer#anna",
        owner_cn="anna",
        name=name,
        query=query,
        description=None,
        shared=True,
        created_at=at,
        updated_at=at,
    )
    dashboard.service.app.state.resources.store.write_sync(lambda tx: tx.saved_queries.put(saved))


def test_operators_take_over_or_forget_what_others_share(dashboard: Dashboard) -> None:
    """Who left cannot. It says whose it is; who may not act is not offered it."""
    alice, vera = dashboard.browser(), dashboard.browser("vera", rights=VIEWER)
    for name in ("all", "some"):
        keep_of_another(dashboard, name, "Machines")
    links = re.findall(r'href="(/query/shared/[0-9]+/(?:take-over|delete))"', alice.page("/query"))
    assert len(links) == 4
    assert "/query/shared/" not in vera.page("/query")
    assert vera.get(links[0]).status_code == 403
    assert "of anna becomes yours" in alice.page(links[0])
    assert alice.act(links[0]).status_code == 303
    assert "all is yours." in alice.page("/query")
    assert alice.act(links[3]).status_code == 303
    assert "some of anna is forgotten." in alice.page("/query")
    assert alice.get(links[3]).status_code == 404


def _answer(kinds: dict[str, str], rows: list[list[object]], chart: str | None = None) -> QueryResult:
    return QueryResult.model_validate(
        {
            "columns": [QueryColumn(name=n, kind=k) for n, k in kinds.items()],  # type: ignore[arg-type]  # words of the wire
            "rows": rows,
            "truncated": False,
            "render": None if chart is None else QueryRender(chart=chart),
            "elapsed_ms": 1,
        }
    )


def test_numbers_over_time_are_lines() -> None:
    """Instants rise; each value of the category is a line; what is missing is a gap."""
    rows: list[list[object]] = [
        ["2026-03-01T11:00:00Z", "b", 2],
        ["2026-03-01T10:00:00Z", "a", 1],
        [None, "a", 9],
        ["2026-03-01T11:00:00Z", "a", None],
    ]
    kinds = {"ts": "datetime", "who": "string", "n": "long"}
    plot = plot_of(_answer(kinds, rows, "timechart"))
    assert isinstance(plot, Plot)
    assert plot.data == [[1772359200.0, 1772362800.0], [None, 2.0], [1.0, None]] or plot.data == [
        [1772359200.0, 1772362800.0],
        [1.0, None],
        [None, 2.0],
    ]
    assert plot.left_out == 0
    assert plot_of(_answer(kinds, [[None, "a", 1]], "timechart")) is None


def test_numbers_by_category_are_bars() -> None:
    """Lengths are of the longest; too many are left out and counted; negative ones are not drawn."""
    rows: list[list[object]] = [["a", 4], ["", 1], ["c", None]]
    bars = plot_of(_answer({"who": "string", "n": "long"}, rows))
    assert isinstance(bars, Bars)
    assert bars.bars == [("a", 4.0, 100.0), ("(empty)", 1.0, 25.0)]
    many = plot_of(_answer({"who": "string", "n": "long"}, [[str(n), n] for n in range(MOST_BARS + 2)]))
    assert isinstance(many, Bars)
    assert many.left_out == 2
    assert plot_of(_answer({"who": "string", "n": "long"}, [["a", -1]])) is None


def test_what_is_no_chart_is_none() -> None:
    """Rows without numbers, of many columns, or of which their writer wants a table."""
    assert plot_of(_answer({"a": "string"}, [["x"]])) is None
    assert plot_of(_answer({"a": "string", "n": "long"}, [["x", 1]], "table")) is None
    assert plot_of(_answer({"a": "string", "n": "long"}, [["x", 1]], "timechart")) is None
    assert (
        plot_of(_answer({"a": "string", "b": "string", "c": "string", "n": "long"}, [["", "", "", 1]]))
        is None
    )
    assert plot_of(_answer({"n": "long"}, [[1]])) is None
    assert plot_of(_answer({"a": "string", "n": "long"}, [])) is None
