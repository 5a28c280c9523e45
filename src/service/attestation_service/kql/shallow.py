"""Deep expressions become shallow ones: what is deep inside is computed before, as a column of its own.

SQLite's parser takes about a hundred symbols that are open at once, and an expression may be nested fifty deep. No
value here can fail, so it does no harm that one is computed which a condition would have passed over.
"""

from __future__ import annotations

from attestation_service.kql import tree

DEEPEST = 4
"""How deep what is written at once may be."""


def shallow(rows: tree.Map | tree.Filter) -> tree.Rows:
    """Return the same rows with no expression deeper than that; *rows* itself, where none is."""
    values = rows.values if isinstance(rows, tree.Map) else (rows.condition,)
    if max(map(tree.depth_of, values), default=0) <= DEEPEST:
        return rows
    width, before = len(rows.rows.kinds), list[tree.Value]()

    def cut(value: tree.Value) -> tree.Value:
        """Replace each innermost part that is as deep as may be by a column."""
        depth = tree.depth_of(value)
        if depth < DEEPEST:
            return value
        if depth > DEEPEST:
            return _with(value, tuple(cut(each) for each in _parts(value)))
        before.append(value)
        return tree.Ref(index=width + len(before) - 1, kind=value.kind)

    cut_values = tuple(cut(value) for value in values)
    refs = tuple(tree.Ref(index=index, kind=kind) for index, kind in enumerate(rows.rows.kinds))
    wide = tree.Map(
        rows=rows.rows,
        values=(*refs, *before),
        kinds=(*rows.rows.kinds, *(value.kind for value in before)),
    )
    if isinstance(rows, tree.Map):
        return tree.Map(rows=wide, values=cut_values, kinds=rows.kinds)
    kept = tree.Filter(rows=wide, condition=cut_values[0], kinds=wide.kinds)
    return tree.Map(rows=kept, values=refs, kinds=rows.kinds)


def split(rows: tree.Filter) -> tree.Rows:
    """Return the same rows, one condition after the other: first those that are not deep, for which an index may serve.

    *rows* itself, where it has one condition only.
    """
    condition = rows.condition
    if not (isinstance(condition, tree.Apply) and condition.function.name == "and"):
        return rows
    found = rows.rows
    for each in sorted(condition.arguments, key=lambda value: tree.depth_of(value) > DEEPEST):
        found = tree.Filter(rows=found, condition=each, kinds=rows.kinds)
    return found


def _parts(value: tree.Value) -> tuple[tree.Value, ...]:
    match value:
        case tree.Apply():
            return value.arguments
        case tree.Member() | tree.InRows():
            return (value.value,)
        case _:
            return ()


def _with(value: tree.Value, parts: tuple[tree.Value, ...]) -> tree.Value:
    match value:
        case tree.Apply():
            return tree.Apply(function=value.function, arguments=parts, kind=value.kind)
        case tree.Member():
            return tree.Member(value=parts[0], key=value.key)
        case tree.InRows():
            return tree.InRows(value=parts[0], rows=value.rows, fold=value.fold, negated=value.negated)
        case _:
            return value
