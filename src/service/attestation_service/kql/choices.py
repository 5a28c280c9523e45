"""Functions that choose among values, and those that ask whether there is one."""

from __future__ import annotations

import sqlalchemy as sa

from attestation_service.kql.kinds import NUMBERS, Kind
from attestation_service.kql.sql import ANY, SQL, TYPES, Argument, Dialect, Function, Parameter

_CONDITION = Parameter(name="condition", kinds=frozenset({Kind.BOOL}))
_VALUE = Parameter(name="value", kinds=ANY)


def common(kinds: tuple[Kind, ...]) -> Kind | None:
    """Return the kind that values of these become, where they are alternatives."""
    if len(set(kinds)) == 1:
        return kinds[0]
    if set(kinds) <= NUMBERS:
        return Kind.REAL if Kind.REAL in kinds else Kind.LONG
    return None


def _iff(_dialect: Dialect, arguments: tuple[Argument, ...]) -> SQL:
    condition, then, otherwise = arguments
    return sa.case((condition.sql, then.sql), else_=otherwise.sql)


def _case(_dialect: Dialect, arguments: tuple[Argument, ...]) -> SQL:
    pairs = zip(arguments[:-1:2], arguments[1:-1:2], strict=True)
    return sa.case(*((condition.sql, value.sql) for condition, value in pairs), else_=arguments[-1].sql)


def _case_kind(kinds: tuple[Kind, ...]) -> Kind | None:
    if len(kinds) % 2 == 0 or any(kind is not Kind.BOOL for kind in kinds[:-1:2]):
        return None
    return common((*kinds[1:-1:2], kinds[-1]))


def _coalesce(_dialect: Dialect, arguments: tuple[Argument, ...]) -> SQL:
    if arguments[0].kind is not Kind.STRING:
        return sa.func.coalesce(*(a.sql for a in arguments), type_=TYPES[arguments[0].kind])
    # Of texts, the first that is not empty.
    empty = sa.literal("", TYPES[Kind.STRING])
    return sa.func.coalesce(
        *(sa.func.nullif(a.sql, empty, type_=TYPES[Kind.STRING]) for a in arguments),
        empty,
        type_=TYPES[Kind.STRING],
    )


def _is_null(_dialect: Dialect, arguments: tuple[Argument, ...]) -> SQL:
    # No text is null.
    return sa.false() if arguments[0].kind is Kind.STRING else arguments[0].sql.is_(None)


def _is_not_null(_dialect: Dialect, arguments: tuple[Argument, ...]) -> SQL:
    return sa.true() if arguments[0].kind is Kind.STRING else arguments[0].sql.is_not(None)


def _is_empty(dialect: Dialect, arguments: tuple[Argument, ...]) -> SQL:
    (value,) = arguments
    empty = sa.literal("", TYPES[Kind.STRING])
    if value.kind is Kind.STRING:
        return value.sql == empty
    if value.kind is Kind.DYNAMIC:
        return sa.func.coalesce(dialect.text_of(value), empty, type_=TYPES[Kind.STRING]) == empty
    return value.sql.is_(None)


def _is_not_empty(dialect: Dialect, arguments: tuple[Argument, ...]) -> SQL:
    return sa.not_(_is_empty(dialect, arguments))


FUNCTIONS: tuple[Function, ...] = (
    Function(
        name="iff",
        aliases=("iif",),
        parameters=(_CONDITION, Parameter(name="then", kinds=ANY), Parameter(name="otherwise", kinds=ANY)),
        result=lambda kinds: common(kinds[1:]),
        unified=lambda position, _: position > 0,
        description="The second where the first is true, else the third: also where it is null.",
        build=_iff,
    ),
    Function(
        name="case",
        parameters=(_CONDITION, Parameter(name="then", kinds=ANY), Parameter(name="otherwise", kinds=ANY)),
        repeated=2,
        result=_case_kind,
        unified=lambda position, count: position % 2 == 1 or position == count - 1,
        description="What follows the first condition that is true; the last one where none is.",
        build=_case,
    ),
    Function(
        name="coalesce",
        parameters=(_VALUE, Parameter(name="other", kinds=ANY)),
        repeated=1,
        result=common,
        unified=lambda _position, _count: True,
        description="The first that is not null; of texts, the first that is not empty.",
        build=_coalesce,
    ),
    Function(
        name="isnull",
        parameters=(_VALUE,),
        result=Kind.BOOL,
        description="Whether it is null; no text is.",
        build=_is_null,
        nullable=False,
    ),
    Function(
        name="isnotnull",
        aliases=("notnull",),
        parameters=(_VALUE,),
        result=Kind.BOOL,
        description="Whether it is not null; each text is not.",
        build=_is_not_null,
        nullable=False,
    ),
    Function(
        name="isempty",
        parameters=(_VALUE,),
        result=Kind.BOOL,
        description="Whether it is an empty text, or null.",
        build=_is_empty,
        nullable=False,
    ),
    Function(
        name="isnotempty",
        aliases=("notempty",),
        parameters=(_VALUE,),
        result=Kind.BOOL,
        description="Whether it is a text that is not empty, or another value that is not null.",
        build=_is_not_empty,
        nullable=False,
    ),
)
