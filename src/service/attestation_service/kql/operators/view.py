"""render: how the writer would like to see the rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from attestation_service.kql.binder import Binder, Bound
from attestation_service.kql.expressions import PipelineParser
from attestation_service.kql.kinds import Place, Render
from attestation_service.kql.lexer import Sort
from attestation_service.kql.operators.operator import Operator
from attestation_service.kql.reader import Reader
from attestation_service.kql.syntax import Stage

CHARTS = (
    "table",
    "timechart",
    "linechart",
    "columnchart",
    "barchart",
    "piechart",
    "areachart",
    "scatterchart",
    "card",
)
PROPERTIES = ("title", "xtitle", "ytitle", "xcolumn", "ycolumns", "series", "kind", "legend")


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderStage(Stage):
    """Say how rows are to be shown."""

    operator: ClassVar[str] = "render"
    render: Render


def _read(reader: Reader, _pipeline: PipelineParser, place: Place) -> RenderStage:
    chart = reader.name("a chart")
    if chart.text not in CHARTS:
        raise reader.source.unknown(chart.place, "chart", chart.text, CHARTS)
    properties = {}
    if reader.skip("with"):
        reader.expect("(")
        properties = dict(reader.listed(lambda: _property(reader)))
        reader.expect(")")
    if reader.token.sort is not Sort.END and not reader.is_mark(";"):
        raise reader.source.invalid(reader.token.place, "render is the last operator of a query")
    return RenderStage(place=place, render=Render(chart=chart.text, properties=properties))


def _property(reader: Reader) -> tuple[str, str]:
    name = reader.name("a property")
    if name.text not in PROPERTIES:
        raise reader.source.unknown(name.place, "property of a chart", name.text, PROPERTIES)
    reader.expect("=")
    token = reader.take()
    if token.sort in (Sort.MARK, Sort.END):
        raise reader.source.invalid(token.place, f"expected a value of {name.text}")
    return name.text, str(token.text if token.value is None else token.value)


def _meaning(_binder: Binder, _stage: RenderStage, rows: Bound) -> Bound:
    return rows


OPERATORS = (
    Operator(
        name="render",
        written=f"render {' | '.join(CHARTS)} [with (title = 'text', …)]",
        description="Says how the rows are to be shown, where they are shown; the last operator.",
        read=_read,
        meaning=_meaning,
    ),
)
