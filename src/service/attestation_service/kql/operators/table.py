"""The one table of operators: parser, binder, schema, reference and completion derive from it."""

from __future__ import annotations

from collections.abc import Mapping

from attestation_service.kql.operators import columns, combine, rows, summary, view
from attestation_service.kql.operators.operator import Operator

_ALL: tuple[Operator, ...] = (
    *rows.OPERATORS,
    *columns.OPERATORS,
    *summary.OPERATORS,
    *combine.OPERATORS,
    *view.OPERATORS,
)

OPERATORS: Mapping[str, Operator] = {
    name: operator for operator in _ALL for name in (operator.name, *operator.aliases)
}
"""By name, also by each other name that it has."""
