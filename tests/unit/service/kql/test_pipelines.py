"""What each operator of a pipeline does, and what its columns are called."""

from __future__ import annotations

import pytest

from attestation.errors import QueryInvalid
from tests.fixtures.queries import Run, plan


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("T | where n == 10 | project i", [[1], [1]]),
        ("T | where n != 10 | count", [[5]]),
        ("T | where isnull(b == true) | count", [[0]]),
        ("T | sort by n asc | project n | take 3", [[None], [None], [-3]]),
        ("T | sort by n | project n | take 1", [[1 << 40]]),
        ("T | sort by n asc nulls last | project n | take 1", [[-3]]),
        ("T | top 2 by n | project n", [[1 << 40], [10]]),
        ("T | sort by i asc, n | where n > -5 | project i, n | take 2", [[None, -3], [-5, 1 << 40]]),
        ("T | summarize count() by b | sort by count_, b asc | project b", [[True], [None], [False]]),
        ("T | summarize n = sum(n), m = max(s2)", [[17 + (1 << 40), "q"]]),
        ("T | summarize count()", [[7]]),
        ("T | summarize countif(b), dcount(n), min(n), avg(i) by x = 1", [[1, 3, 4, -3, 1.0]]),
        (
            "T | where n == 10 | sort by s asc | summarize make_list(s), make_set(n)",
            [[["abc", "alpha beta"], [10]]],
        ),
        ("T | where i == 1 | summarize arg_max(r, s)", [[1.5, "alpha beta"]]),
        ("T | where i == 1 | summarize arg_min(r, s)", [[0.1, "abc"]]),
        ("Empty | summarize count(), sum(n), avg(n), max(s), make_list(n)", [[0, 0, None, "", []]]),
        ("T | distinct n | count", [[5]]),
        ("T | where i == 2 | extend n = i + 1, x = s2 | project-away r, s | project n, x", [[3, "abc"]]),
        ("T | where i == 2 | project-rename m = i | project-keep m", [[2]]),
        ("T | where i == 2 | project s2, i | project-reorder i", [[2, "abc"]]),
        ("T | project n | join kind=inner (T | project n, x = i) on n | count", [[11]]),
        ("T | project n | join (T | project n, x = i) on n | count", [[7]]),
        (
            "T | project n | join kind=leftouter (T | where n == 0 | project n, s) on n | where s != '' | count",
            [[1]],
        ),
        ("T | join kind=leftanti (T | where n > 0) on n | count", [[4]]),
        ("T | join kind=leftsemi (T | where n > 0) on n | count", [[3]]),
        ("T | where i == 7 | union (T | where i == 0) | sort by i asc | project i", [[0], [7]]),
        ("union withsource=src T, Empty | summarize count() by src", [["T", 7]]),
        ("union kind=inner (T | project i, n), (T | project n, r) | take 1 | count", [[1]]),
        ("let low = 0; let some = T | where n > low; some | where i in (some | project i) | count", [[3]]),
        ("T | take 0 | count", [[0]]),
    ],
)
def test_an_operator(run: Run, text: str, rows: list[list[object]]) -> None:
    """Each does what the reference says."""
    assert run(text) == rows


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("T | summarize sum(n), count(), avg(r) by bin(d, 1h), tolower(s)", "d Column1 sum_n count_ avg_r"),
        ("T | project n + 1, tolong(s), strlen(s), j.a, j['b'][0]", "Column1 s strlen_s j_a j_b_0"),
        ("T | project i, n | join (T | project i, n) on i", "i n i1 n1"),
        ("T | project n | union (T | project n = s)", "n_long n_string"),
        ("T | project s | extend tolong(s), x = 1", "s x"),
        ("T | project i, n, s | summarize arg_max(n, *) by s", "s n i"),
        ("T | count", "Count"),
    ],
)
def test_what_nobody_named(text: str, names: str) -> None:
    """A column that its writer gave no name is called as Kusto calls it."""
    assert [column.name for column in plan(text).columns] == names.split()


def test_a_plan_says_what_it_reads_and_how_to_show_it() -> None:
    """Tables also of subqueries, by the names of the catalog; a chart with its properties."""
    found = plan("t | where s in (empty | project s) | render timechart with (title='per day')")
    assert found.tables == {"T", "Empty"}
    assert found.render is not None
    assert (found.render.chart, found.render.properties) == ("timechart", {"title": "per day"})
    assert plan("T").render is None


@pytest.mark.threat("T262")
@pytest.mark.timeout(60)
def test_a_pattern_of_columns_is_held_against_a_name_once() -> None:
    """One with many `*` fits or does not, at once; a regular expression would hold the interpreter for years."""
    name = "a" * 200
    with pytest.raises(QueryInvalid, match="no column is called"):
        plan(f"T | extend ['{name}'] = 1 | project-away {'a*' * 30}b")
    for pattern, fits in (
        ("*", True),
        ("ab*", True),
        ("*yz", True),
        ("a*z", True),
        ("*b*c*", True),
        ("a**z", True),
        ("abcxyz*", True),
        ("a*cxyz", True),
        ("abc*cxyz", False),
        ("*c*b*", False),
        ("b*", False),
        ("abcxyz", True),
        ("abc", False),
    ):
        query = f"T | project abcxyz = n, other = s | project-keep other, {pattern}"
        if fits:
            assert "abcxyz" in [column.name for column in plan(query).columns], pattern
        else:
            with pytest.raises(QueryInvalid):
                plan(query)
