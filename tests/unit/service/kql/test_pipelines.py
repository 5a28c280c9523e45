"""What each operator of a pipeline does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fixtures.queries import Run, on_sqlite, plan


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """What runs a query on SQLite; `tests/integration/kql` compares PostgreSQL with it."""
    with on_sqlite() as running:
        yield running


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("T | where n == 10 | project i", [[1], [1]]),
        ("T | where n != 10 | count", [[5]]),
        ("T | sort by n asc | project n | take 3", [[None], [None], [-3]]),
        ("T | top 2 by n | project n", [[1 << 40], [10]]),
        ("T | summarize count() by b | sort by count_, b asc | project b", [[True], [None], [False]]),
        ("T | summarize n = sum(n), m = max(s2)", [[17 + (1 << 40), "q"]]),
        ("T | distinct n | count", [[5]]),
        ("T | where s has 'beta' | count", [[2]]),
    ],
)
def test_an_operator(run: Run, text: str, rows: list[list[object]]) -> None:
    """Each does what the reference says."""
    assert run(text) == rows


def test_columns_have_names_and_kinds() -> None:
    """What nobody named is called as Kusto calls it."""
    columns = plan("T | summarize sum(n), count(), avg(r) by bin(d, 1h), tolower(s)").columns
    assert [f"{column.name}:{column.kind}" for column in columns] == [
        "d:datetime",
        "Column1:string",
        "sum_n:long",
        "count_:long",
        "avg_r:real",
    ]
