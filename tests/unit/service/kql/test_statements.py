"""What is asked of a database: one SELECT where one will do, of what an index serves; and it means the same."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attestation.clock import rfc3339
from attestation_service import kql
from attestation_service.kql import times
from tests.fixtures.queries import AS_NUMBERS, AS_TEXT, AT, EDGES, Run

DIALECTS: tuple[kql.plan.DialectName, ...] = ("sqlite", "postgresql")
COMPUTED = re.compile("strftime|epoch|row_number|coalesce", re.IGNORECASE)
"""What a column is not, that an index has."""


def asked(text: str, dialect: kql.plan.DialectName) -> kql.Statement:
    """Return the statement of a query over the table whose datetimes are text."""
    return kql.compiled(kql.analyse(text, AS_TEXT, at=AT), dialect, rows=1001)


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    "text",
    [
        "T | take 50",
        "T | sort by n desc | take 50",
        "T | sort by d desc | take 50",
        "T | top 50 by d",
        "T | where d > ago(1h) | sort by d desc | take 50",
        "T | where d between (ago(2h) .. 1h) and s2 == 'a' | extend x = n + 1 | sort by d, n | project x, d | take 50",
        "T | extend x = strlen(s) | where x > 1 | sort by x | take 50",
        "let since = now() - 1h; T | where s == 'a' and d >= since | where n in (1, 2) | top 50 by d asc",
        "T | take 60 | take 50 | project n, s2",
    ],
)
def test_what_fits_into_one_select_is_one(dialect: kql.plan.DialectName, text: str) -> None:
    """Conditions, order and limit beside the table: what is put around them no index serves."""
    written = asked(text, dialect)
    assert written.parts == frozenset()
    assert written.sql.count("FROM kql_text") == 1
    assert "row_number" not in written.sql
    assert written.sql.count("ORDER BY") == len(re.findall("sort|top", text))
    assert re.search(r"LIMIT \S+( OFFSET \S+)?$", written.sql)
    assert 50 in written.parameters.values()


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    "condition",
    [
        *("d > ago(1h)", "ago(1h) <= d", "d == datetime(2026-01-02)", "d != now()", "d < now() - 1d"),
        *("d between (ago(2h) .. ago(1h))", "d !between (ago(2h) .. 1h)", "d >= startofday(now(), -1)"),
        *(
            "startofday(d) > ago(1d)",
            "bin(d, 1h) == datetime(2026-01-02)",
            "s == 'x'",
            "s in ('x', 'y')",
            "s2 == ''",
        ),
    ],
)
def test_columns_are_compared_as_they_are_kept(dialect: kql.plan.DialectName, condition: str) -> None:
    """A datetime that is text with a text, a text that may be missing without a word for that."""
    sql = asked(f"T | where {condition} | project n", dialect).sql
    # Of what is the same for all rows the text may be computed.
    assert not COMPUTED.search(sql), sql


def test_an_empty_text_is_one_that_is_missing(run: Run) -> None:
    """No index has it: such a comparison keeps the word for it."""
    assert run("T | where s == '' | count", AS_TEXT) == run("T | where s == '' | count", AS_NUMBERS) == [[2]]
    assert run("T | where not(s == 'abc') | count", AS_TEXT) == [[6]]
    assert run("T | where not(s in ('abc', 'x')) | count", AS_TEXT) == [[6]]


@pytest.mark.parametrize(
    "text",
    [
        "T | where d > ago(1d) | project n, d",
        "T | where d >= datetime(2026-01-02T03:04:05.678901) or d == datetime(1969-12-31T23:59:59.999999)",
        "T | where d in (datetime(2026-01-01), now()) and d !in (datetime(2026-01-01)) | project d",
        "T | where d between (datetime(2025-12-28T12:00:00) .. 4d) | project d",
        "T | where d != datetime(null) | count",
        "T | where d < startofmonth(now(), 1) and d > startofweek(now(), -9) | project d",
        "T | where datetime(2026-01-01) < d | project d | sort by d asc",
        "T | where d > datetime(0001-01-01) and d <= datetime(9999-12-31T23:59:59.999999) | count",
        "T | project startofday(d), startofmonth(d), startofmonth(d, 1), startofweek(d), startofday(d, 1)",
        "T | project a = bin(d, 1d), b = bin(d, 1h), c = bin(d, 1m), e = bin(d, 1s), f = bin(d, 5m), g = bin(d, 7d)",
        "T | summarize count(), min(d), max(d), dcount(d) by bin(d, 1h), s2 | sort by d asc, s2",
        "T | summarize make_list(d), make_set(d), latest = max(d) by b | sort by latest asc",
        "T | summarize arg_max(d, *) by b | sort by d asc",
        "T | summarize arg_min(n, d, s) by b | sort by d desc",
        "T | where n > 100000000000000 and n < 0 | summarize min(d), max(d), arg_max(d, n)",
        "T | distinct d | sort by d asc",
        "T | sort by d asc | extend later = d + 1h | where later > ago(10d) | take 3 | project d, later, n",
        "T | sort by d | take 4 | where n > 0 | project d, n",
        "T | sort by d | take 4 | summarize make_list(n)",
        "let last = T | top 3 by d; last | join kind=inner (last) on d | project d, d1, s | sort by d",
        "T | join kind=leftouter (T | where n > 0 | project n, e = d) on n | where isnull(e) or e >= d | sort by d, e",
        "union T, (T | where d > ago(3d)) | where d > ago(30d) | sort by d, s | project d, s",
        "T | where d in (T | where b | project d) | sort by d asc | project d",
        "T | extend x = bin(d, 1h) | where x > ago(30d) | summarize count() by x | sort by x asc",
        "T | extend day = startofday(d) | extend next = day + 1d | where next > day and day < d | sort by day asc, d",
        "T | project tostring(d), tolong(d), d - datetime(2026-01-01), iff(b, d, now()), coalesce(d, now())",
    ],
)
def test_how_a_column_is_kept_changes_nothing(run: Run, text: str) -> None:
    """The same rows, in the same order, of datetimes that are numbers and of those that are text."""
    assert run(text, AS_TEXT) == run(text, AS_NUMBERS)


def test_what_is_computed_is_computed_where_it_is_used_once() -> None:
    """And is a column of its own where it would be written twice: doubled by each operator, it would have no end."""
    for dialect in DIALECTS:
        once = asked("T | extend x = strlen(s) | where x > 1 | project x", dialect)
        twice = asked("T | extend x = strlen(s) | where x > 1 and x * x < 9 | project x", dialect)
        assert (len(once.parts), len(twice.parts)) == (0, 1)
        doubled = "T" + " | extend n = n + n" * 19
        assert len(asked(doubled, dialect).sql) < 20_000


def test_a_long_order_is_one_number_for_each_row(run: Run) -> None:
    """Columns that rows are sorted by are carried along; not hundreds of them, for which no database has room."""
    keys = ", ".join(f"n + {number}" for number in range(100))
    stages = f"T | sort by {keys} | take 5" * 1 + f" | sort by {keys} | take 4 | where n > 0 | project n"
    assert run(stages) == run("T | top 4 by n | where n > 0 | project n")


INSTANTS = st.sampled_from(EDGES) | st.datetimes(timezones=st.just(UTC))


@given(st.lists(INSTANTS, min_size=2, max_size=50))
def test_the_order_of_texts_is_that_of_time(instants: list[datetime]) -> None:
    """The text of the audit log, on which all that rests: 27 characters, by code point as the instants themselves."""
    texts = {at: rfc3339(at) for at in instants}
    assert {len(text) for text in texts.values()} == {27}
    assert all(
        times.print_datetime(times.to_microseconds(at), digits=6) == text for at, text in texts.items()
    )
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE TABLE of_texts (text)")
        connection.executemany("INSERT INTO of_texts VALUES (?)", [[text] for text in texts.values()])
        found = [text for (text,) in connection.execute("SELECT text FROM of_texts ORDER BY text")]
    assert found == [texts[at] for at in sorted(texts)]
