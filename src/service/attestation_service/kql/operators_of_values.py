"""Operators between values: logic, comparison, arithmetic, membership."""

from __future__ import annotations

from collections.abc import Callable

import sqlalchemy as sa
from sqlalchemy.sql.elements import Grouping

from attestation_service.kql.kinds import NUMBERS, WHOLE, Kind
from attestation_service.kql.sql import (
    ANY,
    SQL,
    TYPES,
    Argument,
    Dialect,
    Function,
    Parameter,
    as_real,
    constant,
    infix,
)

BOOL, LONG, REAL, STRING = Kind.BOOL, Kind.LONG, Kind.REAL, Kind.STRING
DATETIME, TIMESPAN = Kind.DATETIME, Kind.TIMESPAN
_TIMES = frozenset({DATETIME, TIMESPAN})


def _false() -> SQL:
    return sa.false()


def comparable(kinds: tuple[Kind, ...]) -> Kind | None:
    """Tell whether values of these kinds can be equal."""
    return BOOL if len(set(kinds)) == 1 or set(kinds) <= NUMBERS else None


def _ordered(kinds: tuple[Kind, ...]) -> Kind | None:
    return BOOL if set(kinds) <= NUMBERS or (kinds[0] == kinds[1] and kinds[0] in _TIMES) else None


def _as_stored(dialect: Dialect, arguments: tuple[Argument, ...]) -> tuple[Argument, ...]:
    """Compare a datetime that the database keeps as text with an instant as text: an index of it serves."""
    texts = [each.text is not None for each in arguments]
    if not any(texts) or not all(
        is_text or (each.kind is DATETIME and each.fixed)
        for is_text, each in zip(texts, arguments, strict=True)
    ):
        return arguments
    return tuple(
        Argument(
            # In parentheses: what says how it is ordered would end BETWEEN.
            sql=Grouping(dialect.ordered(dialect.instant(each) if each.text is None else each.text, STRING)),
            kind=STRING,
            nullable=each.nullable,
        )
        for each in arguments
    )


def equal(dialect: Dialect, arguments: tuple[Argument, ...]) -> SQL:
    """Compare: null equals no value, and against null it is null."""
    left, right = arguments = _as_stored(dialect, arguments)
    for one, other in (arguments, arguments[::-1]):
        if one.kind is STRING and one.stored is not None and _is_text(other):
            return sa.and_(one.stored == other.sql, one.stored.is_not(None))
    if not (left.nullable or right.nullable):
        return left.sql == right.sql
    if not (left.nullable and right.nullable):
        return sa.func.coalesce(left.sql == right.sql, _false(), type_=TYPES[BOOL])
    return dialect.equal(left.sql, right.sql)


def _is_text(value: Argument) -> bool:
    """Tell whether it is a literal that no NULL, which is an empty text, equals."""
    return isinstance(value.constant, str) and bool(value.constant)


def _unequal(dialect: Dialect, arguments: tuple[Argument, ...]) -> SQL:
    return sa.not_(equal(dialect, arguments))


def _folded(
    build: Callable[[Dialect, tuple[Argument, ...]], SQL],
) -> Callable[[Dialect, tuple[Argument, ...]], SQL]:
    """Compare without regard to the case of ASCII letters."""

    def folded(dialect: Dialect, arguments: tuple[Argument, ...]) -> SQL:
        return build(
            dialect,
            tuple(Argument(sql=dialect.lower(a.sql), kind=a.kind, nullable=a.nullable) for a in arguments),
        )

    return folded


def _relation(operator: str) -> Callable[[Dialect, tuple[Argument, ...]], SQL]:
    def build(dialect: Dialect, arguments: tuple[Argument, ...]) -> SQL:
        left, right = _as_stored(dialect, arguments)
        return infix(operator, left.sql, right.sql, TYPES[BOOL])

    return build


def member_of(_dialect: Dialect, arguments: tuple[Argument, ...]) -> SQL:
    """Look for a value among others; null is never found."""
    value, *others = arguments
    if value.kind is STRING and value.stored is not None and all(map(_is_text, others)):
        return sa.and_(value.stored.in_([other.sql for other in others]), value.stored.is_not(None))
    found = value.sql.in_([other.sql for other in others])
    if value.nullable or any(other.nullable for other in others):
        return sa.func.coalesce(found, _false(), type_=TYPES[BOOL])
    return found


def _not(
    build: Callable[[Dialect, tuple[Argument, ...]], SQL],
) -> Callable[[Dialect, tuple[Argument, ...]], SQL]:
    return lambda dialect, arguments: sa.not_(build(dialect, arguments))


def _between_kind(kinds: tuple[Kind, ...]) -> Kind | None:
    """Take also a datetime and how long after it the end is."""
    value, low, high = kinds
    if value is low is DATETIME and high is TIMESPAN:
        return BOOL
    return _ordered((value, low)) and _ordered((value, high))


def _between(dialect: Dialect, arguments: tuple[Argument, ...]) -> SQL:
    value, low, high = arguments
    if high.kind is TIMESPAN and low.kind is DATETIME:
        end = compute("+", DATETIME, dialect, low, high)
        high = Argument(sql=end, kind=DATETIME, nullable=True, fixed=low.fixed and high.fixed)
    value, low, high = _as_stored(dialect, (value, low, high))
    return value.sql.between(low.sql, high.sql)


def _arithmetic(operator: str) -> Callable[[tuple[Kind, ...]], Kind | None]:
    def result(kinds: tuple[Kind, ...]) -> Kind | None:
        if set(kinds) <= NUMBERS:
            return REAL if REAL in kinds else LONG
        return _OF_TIMES.get((operator, *kinds)) or (
            TIMESPAN
            if (operator in "*/" and kinds[0] is TIMESPAN and kinds[1] in NUMBERS)
            or (operator == "*" and kinds[1] is TIMESPAN and kinds[0] in NUMBERS)
            else None
        )

    return result


_OF_TIMES: dict[tuple[str, ...], Kind] = {
    ("+", DATETIME, TIMESPAN): DATETIME,
    ("+", TIMESPAN, DATETIME): DATETIME,
    ("-", DATETIME, TIMESPAN): DATETIME,
    ("-", DATETIME, DATETIME): TIMESPAN,
    ("+", TIMESPAN, TIMESPAN): TIMESPAN,
    ("-", TIMESPAN, TIMESPAN): TIMESPAN,
    ("/", TIMESPAN, TIMESPAN): REAL,
    ("%", TIMESPAN, TIMESPAN): TIMESPAN,
}


def compute(operator: str, result: Kind, dialect: Dialect, left: Argument, right: Argument) -> SQL:
    """Write arithmetic: null where a kind does not hold the result, and where it divides by 0."""
    if result is REAL or REAL in (left.kind, right.kind):
        divisor = as_real(right)
        if operator == "/":
            divisor = sa.func.nullif(divisor, constant(0.0), type_=TYPES[REAL])
        value = dialect.bounded_real(infix(operator, as_real(left), divisor, TYPES[REAL]))
        # A timespan times a real is a timespan.
        return value if result is REAL else dialect.bounded(dialect.truncated(value), result)
    value = dialect.whole(operator, left.sql, right.sql)
    return value if result is LONG else dialect.bounded(value, result)


def _compute(operator: str) -> Callable[[Dialect, tuple[Argument, ...]], SQL]:
    def build(dialect: Dialect, arguments: tuple[Argument, ...]) -> SQL:
        left, right = arguments
        result = _arithmetic(operator)((left.kind, right.kind))
        assert result is not None
        return compute(operator, result, dialect, left, right)

    return build


def _remainder(kinds: tuple[Kind, ...]) -> Kind | None:
    return LONG if set(kinds) <= WHOLE else _OF_TIMES.get(("%", *kinds))


def _negative(_dialect: Dialect, arguments: tuple[Argument, ...]) -> SQL:
    (value,) = arguments
    return infix("*", value.sql, constant(-1), TYPES[value.kind])


def _signed(kinds: tuple[Kind, ...]) -> Kind | None:
    return {Kind.INT: LONG, LONG: LONG, REAL: REAL, TIMESPAN: TIMESPAN}.get(kinds[0])


def _contains(dialect: Dialect, arguments: tuple[Argument, ...]) -> SQL:
    text, part = arguments
    return dialect.position(text.sql, part.sql) > constant(0)


def _starts(dialect: Dialect, arguments: tuple[Argument, ...]) -> SQL:
    text, part = arguments
    return dialect.position(text.sql, part.sql) == constant(1)


def _ends(dialect: Dialect, arguments: tuple[Argument, ...]) -> SQL:
    text, part = arguments
    return dialect.ends(text.sql, part.sql)


def _has(dialect: Dialect, arguments: tuple[Argument, ...]) -> SQL:
    text, term = arguments
    return dialect.has_term(text.sql, term)


def _has_each(join: Callable[..., SQL]) -> Callable[[Dialect, tuple[Argument, ...]], SQL]:
    def build(dialect: Dialect, arguments: tuple[Argument, ...]) -> SQL:
        text, *terms = arguments
        return join(*(dialect.has_term(text.sql, term) for term in terms))

    return build


def _matches(dialect: Dialect, arguments: tuple[Argument, ...]) -> SQL:
    text, pattern = arguments
    return dialect.matches(text.sql, str(pattern.constant))


def _parameters(*kinds: frozenset[Kind]) -> tuple[Parameter, ...]:
    return tuple(
        Parameter(name=name, kinds=of) for name, of in zip(("left", "right", "high"), kinds, strict=False)
    )


_ANY2 = _parameters(ANY, ANY)
_BOOL2 = _parameters(frozenset({BOOL}), frozenset({BOOL}))
_STRING2 = _parameters(frozenset({STRING}), frozenset({STRING}))


def _text_operators() -> list[Function]:
    """Make `has`, `contains` and their like, each with and without case, and negated."""
    made = []
    for name, build, words in (
        ("contains", _contains, "contains the right one"),
        ("startswith", _starts, "begins with the right one"),
        ("endswith", _ends, "ends with the right one"),
    ):
        for suffix, written, case in (
            ("", _folded(build), ", whatever the case of ASCII letters"),
            ("_cs", build, ", case and all"),
        ):
            for sign, final, said in (
                ("", written, "The left text "),
                ("!", _not(written), "Not so: the left text "),
            ):
                made.append(
                    Function(
                        name=f"{sign}{name}{suffix}",
                        parameters=_STRING2,
                        result=BOOL,
                        description=f"{said}{words}{case}.",
                        build=final,
                    )
                )
    for sign, final, said in (("", _has, "The left text "), ("!", _not(_has), "Not so: the left text ")):
        made.append(
            Function(
                name=f"{sign}has",
                parameters=_STRING2,
                result=BOOL,
                description=f"{said}has the right one as a whole term, whatever the case of ASCII letters.",
                build=final,
            )
        )
    return made


def _list(
    name: str, kinds: frozenset[Kind], description: str, build: Callable[[Dialect, tuple[Argument, ...]], SQL]
) -> Function:
    """Make an operator whose right side is a list."""
    return Function(
        name=name,
        parameters=(Parameter(name="left", kinds=kinds), Parameter(name="value", kinds=kinds)),
        repeated=1,
        result=BOOL
        if kinds == {STRING}
        else lambda found: BOOL if all(comparable((found[0], k)) for k in found) else None,
        description=description,
        build=build,
    )


FUNCTIONS: tuple[Function, ...] = (
    Function(
        name="and",
        parameters=_BOOL2,
        result=BOOL,
        description="Both are true.",
        build=lambda _, a: sa.and_(*(each.sql for each in a)),
    ),
    Function(
        name="or",
        parameters=_BOOL2,
        result=BOOL,
        description="At least one is true.",
        build=lambda _, a: sa.or_(*(each.sql for each in a)),
    ),
    Function(
        name="==",
        parameters=_ANY2,
        result=comparable,
        description="Both are equal; a null equals no value.",
        build=equal,
    ),
    Function(
        name="!=",
        parameters=_ANY2,
        result=comparable,
        description="They differ; a null differs from each value.",
        build=_unequal,
    ),
    *(
        Function(
            name=name,
            parameters=_ANY2,
            result=_ordered,
            description=f"The left one is {words} the right one.",
            build=_relation(name),
        )
        for name, words in (("<", "less than"), ("<=", "at most"), (">", "more than"), (">=", "at least"))
    ),
    Function(
        name="=~",
        parameters=_STRING2,
        result=BOOL,
        description="Both texts are equal, whatever the case of ASCII letters.",
        build=_folded(equal),
    ),
    Function(
        name="!~",
        parameters=_STRING2,
        result=BOOL,
        description="The texts differ in more than the case of ASCII letters.",
        build=_folded(_unequal),
    ),
    *(
        Function(
            name=name,
            parameters=_ANY2,
            result=_remainder if name == "%" else _arithmetic(name),
            description=words,
            build=_compute(name),
            nullable=True,
        )
        for name, words in (
            ("+", "Sum."),
            ("-", "Difference."),
            ("*", "Product."),
            ("/", "Quotient: of longs without its fraction, null where it divides by 0."),
            ("%", "Remainder of longs, never negative."),
        )
    ),
    Function(
        name="-1",
        parameters=_parameters(ANY),
        result=_signed,
        description="The same with the other sign.",
        build=_negative,
    ),
    Function(
        name="+1",
        parameters=_parameters(ANY),
        result=_signed,
        description="The same.",
        build=lambda _, a: a[0].sql,
    ),
    _list("in", ANY, "The left one is one of those in parentheses, or in the rows of a pipeline.", member_of),
    _list("!in", ANY, "The left one is none of them.", _not(member_of)),
    _list("in~", frozenset({STRING}), "As `in`, whatever the case of ASCII letters.", _folded(member_of)),
    _list(
        "!in~", frozenset({STRING}), "As `!in`, whatever the case of ASCII letters.", _not(_folded(member_of))
    ),
    Function(
        name="between",
        parameters=_parameters(ANY, ANY, ANY),
        result=_between_kind,
        description="From the first to the second in parentheses, both included: `x between (1 .. 5)`.",
        build=_between,
    ),
    Function(
        name="!between",
        parameters=_parameters(ANY, ANY, ANY),
        result=_between_kind,
        description="Below the first or above the second.",
        build=_not(_between),
    ),
    *_text_operators(),
    _list(
        "has_any",
        frozenset({STRING}),
        "The left text has one of those in parentheses as a whole term.",
        _has_each(sa.or_),
    ),
    _list(
        "has_all", frozenset({STRING}), "The left text has each of them as a whole term.", _has_each(sa.and_)
    ),
    Function(
        name="matches regex",
        parameters=(_STRING2[0], Parameter(name="pattern", kinds=frozenset({STRING}), constant=True)),
        result=BOOL,
        description="The pattern is found in the left text.",
        build=_matches,
    ),
    Function(
        name="not",
        parameters=_parameters(frozenset({BOOL})),
        result=BOOL,
        description="True where it is false.",
        build=lambda _, a: sa.not_(a[0].sql),
    ),
)
