"""The one table of functions and operators: parser, binder, schema, reference and completion derive from it."""

from __future__ import annotations

from collections.abc import Mapping

from attestation_service.kql import calendar, choices, conversions, operators_of_values, texts
from attestation_service.kql.sql import Function

_ALL: tuple[Function, ...] = (
    *operators_of_values.FUNCTIONS,
    *choices.FUNCTIONS,
    *calendar.FUNCTIONS,
    *texts.FUNCTIONS,
    *conversions.FUNCTIONS,
)

FUNCTIONS: Mapping[str, Function] = {
    name: function for function in _ALL for name in (function.name, *function.aliases)
}
"""By name, also by each other name that it has."""
