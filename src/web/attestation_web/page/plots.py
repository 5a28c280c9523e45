"""Charts of rows whose columns are not known beforehand: over time by uPlot, by category as bars of SVG."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from attestation_web.page.when import instant

if TYPE_CHECKING:
    from attestation.api import QueryColumn, QueryResult

NUMBERS: Final = frozenset(("int", "long", "real"))
CATEGORIES: Final = frozenset(("string", "bool"))
MOST_SERIES: Final = 6
MOST_POINTS: Final = 2_000
MOST_BARS: Final = 40
OVER_TIME: Final = frozenset(("timechart", "linechart", "areachart", "scatterchart"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """Numbers over time, as `app.js` draws them.

    Args:
        title: What it shows.
        series: Names of the lines.
        data: Seconds since 1970, rising; then the numbers of each line, null where there is none.
        left_out: How many lines or points are not drawn.
    """

    title: str
    series: Sequence[str]
    data: Sequence[Sequence[float | None]]
    left_out: int = 0
    kind: str = "time"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars:
    """A number for each category.

    Args:
        title: What it shows.
        bars: Label, number and length in percent of the longest.
        left_out: How many are not drawn.
    """

    title: str
    bars: Sequence[tuple[str, float, float]]
    left_out: int = 0
    kind: str = "bars"


def plot_of(result: QueryResult) -> Plot | Bars | None:
    """Return how the rows of *result* are drawn: as its writer would like it, or as its columns suggest; or not."""
    hint = None if result.render is None else result.render.chart
    if not result.rows or hint in ("table", "card"):
        return None
    columns = list(enumerate(result.columns))
    numbers = [(n, c) for n, c in columns if c.kind in NUMBERS]
    times = [(n, c) for n, c in columns if c.kind == "datetime"]
    categories = [(n, c) for n, c in columns if c.kind in CATEGORIES]
    if not numbers:
        return None
    title = (result.render.properties.get("title") if result.render else None) or _title(
        numbers, times, categories
    )
    # Without a hint nothing is guessed of rows of many columns, which somebody reads as rows.
    if hint is None and len(columns) > len(numbers) + 2:
        return None
    if times and (hint in OVER_TIME or hint is None):
        return _over_time(title, result.rows, times[0][0], numbers, categories[:1])
    if categories and hint not in OVER_TIME:
        return _bars(title, result.rows, [n for n, _ in categories], numbers[0][0])
    return None


Columns = Sequence[tuple[int, "QueryColumn"]]


def _title(numbers: Columns, times: Columns, categories: Columns) -> str:
    by = times[:1] or categories[:1]
    return f"{', '.join(c.name for _, c in numbers)} by {by[0][1].name}" if by else ""


def _over_time(
    title: str, rows: Sequence[Sequence[Any]], time: int, numbers: Columns, by: Columns
) -> Plot | None:
    lines: dict[str, dict[float, float]] = defaultdict(dict)
    for row in rows:
        at = instant(row[time])
        if at is None:
            continue
        for number, column in numbers:
            # A line for each value of the category, where there is one number only.
            name = str(row[by[0][0]]) if by and len(numbers) == 1 else column.name
            if row[number] is not None:
                lines[name][at.timestamp()] = float(row[number])
    most = sorted(lines, key=lambda name: -len(lines[name]))
    kept = most[:MOST_SERIES]
    moments = sorted({at for name in kept for at in lines[name]})
    if not moments:
        return None
    shown = moments[-MOST_POINTS:]
    return Plot(
        title=title,
        series=kept,
        data=[shown, *([lines[name].get(at) for at in shown] for name in kept)],
        left_out=len(most) - len(kept) + len(moments) - len(shown),
    )


def _bars(title: str, rows: Sequence[Sequence[Any]], categories: Sequence[int], number: int) -> Bars | None:
    counted = [
        (
            " · ".join("" if row[n] is None else str(row[n]) for n in categories) or "(empty)",
            float(row[number]),
        )
        for row in rows
        if row[number] is not None
    ]
    if not counted or any(value < 0 for _, value in counted):
        return None
    longest = max(value for _, value in counted) or 1.0
    return Bars(
        title=title,
        bars=[(label, value, 100 * value / longest) for label, value in counted[:MOST_BARS]],
        left_out=max(0, len(counted) - MOST_BARS),
    )
