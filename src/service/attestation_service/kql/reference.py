"""What there is in the language, as a listing: for the schema that a service tells, and for the pages."""

from __future__ import annotations

from dataclasses import dataclass

from attestation_service.kql.aggregates import AGGREGATES
from attestation_service.kql.functions import FUNCTIONS
from attestation_service.kql.kinds import Kind
from attestation_service.kql.operators.table import OPERATORS
from attestation_service.kql.sql import ANY, Function, Parameter


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """One operator, function or aggregate: its name, how it is written, what it does."""

    name: str
    written: str
    description: str
    aliases: tuple[str, ...] = ()


def operators() -> tuple[Described, ...]:
    """Return the operators of pipelines."""
    return tuple(
        Described(name=each.name, written=each.written, description=each.description, aliases=each.aliases)
        for name, each in OPERATORS.items()
        if name == each.name
    )


def functions() -> tuple[Described, ...]:
    """Return the functions and the operators of values."""
    return tuple(
        Described(
            name=_shown(each), written=_written(each), description=each.description, aliases=each.aliases
        )
        for name, each in FUNCTIONS.items()
        if name == each.name
    )


def aggregates() -> tuple[Described, ...]:
    """Return the aggregates."""
    return tuple(
        Described(name=each.name, written=f"{each.name}({each.takes})", description=each.description)
        for each in AGGREGATES.values()
    )


def _shown(function: Function) -> str:
    return function.name[0] if function.name in ("-1", "+1") else function.name


def _written(function: Function) -> str:
    """Write how a function is called."""
    if function.name in ("-1", "+1"):
        return f"{function.name[0]}value"
    if function.is_operator and function.name != "not":
        right = (
            "(value, …)" if function.repeated else "(low .. high)" if "between" in function.name else "right"
        )
        return f"left {function.name} {right}"
    needed = len(function.parameters) - function.optional
    parts = [
        f"[{_parameter(each)}]" if index >= needed else _parameter(each)
        for index, each in enumerate(function.parameters)
    ]
    return f"{function.name}({', '.join(parts)}{', …' if function.repeated else ''})"


def _parameter(parameter: Parameter) -> str:
    if parameter.kinds == ANY:
        return parameter.name
    kinds = [str(kind) for kind in Kind if kind in parameter.kinds]
    return f"{parameter.name}: {' | '.join(kinds)}"
