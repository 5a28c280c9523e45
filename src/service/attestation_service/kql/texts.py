"""Functions of texts."""

from __future__ import annotations

import sqlalchemy as sa

from attestation_service.kql.kinds import WHOLE, Kind
from attestation_service.kql.sql import (
    ANY,
    SQL,
    TYPES,
    Argument,
    Dialect,
    Function,
    Naming,
    Parameter,
)

_TEXT = Parameter(name="text", kinds=frozenset({Kind.STRING}))


def text_or_empty(dialect: Dialect, value: Argument) -> SQL:
    """Write any value as text; of null, the empty one."""
    written = dialect.text_of(value)
    if value.kind is Kind.STRING or not value.nullable:
        return written
    return sa.func.coalesce(written, sa.literal("", TYPES[Kind.STRING]), type_=TYPES[Kind.STRING])


def _strcat(dialect: Dialect, arguments: tuple[Argument, ...]) -> SQL:
    return dialect.joined([text_or_empty(dialect, each) for each in arguments])


def _split(dialect: Dialect, arguments: tuple[Argument, ...]) -> SQL:
    text, separator, *index = arguments
    return dialect.split(text.sql, separator.sql, index[0].sql if index else None)


FUNCTIONS: tuple[Function, ...] = (
    Function(
        name="strcat",
        parameters=(Parameter(name="value", kinds=ANY),),
        repeated=1,
        result=Kind.STRING,
        description="The texts of all values, one after the other.",
        build=_strcat,
    ),
    Function(
        name="split",
        parameters=(
            _TEXT,
            Parameter(name="separator", kinds=frozenset({Kind.STRING})),
            Parameter(name="index", kinds=WHOLE, constant=True),
        ),
        optional=1,
        result=Kind.DYNAMIC,
        naming=Naming.AS_ARGUMENT,
        description="The list of the parts of a text; with an index, of that part alone.",
        build=_split,
    ),
    Function(
        name="strlen",
        parameters=(_TEXT,),
        result=Kind.LONG,
        naming=Naming.PREFIXED,
        description="How many characters a text has.",
        build=lambda _, a: sa.func.length(a[0].sql, type_=TYPES[Kind.LONG]),
    ),
    Function(
        name="tolower",
        parameters=(_TEXT,),
        result=Kind.STRING,
        description="The text with small letters, of ASCII.",
        build=lambda dialect, a: dialect.lower(a[0].sql),
    ),
    Function(
        name="toupper",
        parameters=(_TEXT,),
        result=Kind.STRING,
        description="The text with capital letters, of ASCII.",
        build=lambda dialect, a: dialect.upper(a[0].sql),
    ),
)
