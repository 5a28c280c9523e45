"""Rows become records, and records columns, by the names of their fields and the types of the columns alone.

A record is a frozen dataclass with slots. No list of its fields is written anywhere but in it and in its table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, Generic, TypeVar, get_args, get_type_hints

from sqlalchemy import BindParameter, ColumnElement, bindparam

from attestation.store.columns import Coder, Stored

R = TypeVar("R")
Row = Sequence[Any]
Put = Callable[[Any, Any], None]
At = Mapping[str, tuple[int, ColumnElement[Any]]]


def binds(columns: Iterable[ColumnElement[Any]], *besides: str) -> dict[str, BindParameter[Any]]:
    """Return a parameter for each of *columns* but *besides*, under its own name."""
    return {c.name: bindparam(c.name) for c in columns if c.name not in besides}


def codec(record: type[R], columns: Iterable[ColumnElement[Any]], *, besides: Iterable[str] = ()) -> Codec[R]:
    """Return what makes records of rows, and columns of records.

    A field is kept in the column of its name. One without is a record itself, kept in the columns of its own fields,
    which may begin with its name (`ek_certificate` in `ek_certificate_subject` and so on). Where it may be None, all
    of them are NULL then; the first is NULL only then.

    Args:
        record: A frozen dataclass with slots and without `__post_init__`.
        columns: Of the rows, in their order.
        besides: Those that are no field.

    Raises:
        TypeError: A field has no column, or a column no field.
    """
    at = {column.name: (i, column) for i, column in enumerate(columns)}
    made = Codec(record, at)
    if sorted((*made.columns, *besides)) != sorted(at):
        unlike = {*made.columns, *besides} ^ {*at}
        raise TypeError(f"{record.__name__} has other fields than columns: {', '.join(sorted(unlike))}")
    return made


class Codec(Generic[R]):
    """See `codec`.

    Attributes:
        record: What it makes.
        at: Each column of a row by its name, with its place.
        columns: The names of those that hold the record.
        decode: From a row to the record.
    """

    __slots__ = ("_fields", "_parts", "at", "columns", "decode", "record")

    def __init__(self, record: type[R], at: At, prefix: str = "") -> None:
        self.record, self.at = record, at
        plain: list[tuple[int, Put]] = []
        coded: list[tuple[int, Put, Coder]] = []
        parts: list[tuple[Put, Coder]] = []
        self._fields: dict[str, tuple[str, Coder | None]] = {}
        self._parts: dict[str, Codec[Any]] = {}
        if hasattr(record, "__post_init__"):
            raise TypeError(f"{record.__name__} does something when it is made")
        for field in fields(record):  # type: ignore[arg-type]  # no type says that it is a dataclass
            put = getattr(record, field.name).__set__
            found = at.get(prefix + field.name) or at.get(field.name)
            if found is None:
                part, reads = _part(record, field.name, at)
                self._parts[field.name] = part
                parts.append((put, reads))
                continue
            i, column = found
            if isinstance(column.type, Stored):
                coded.append((i, put, column.type.decode))
                self._fields[field.name] = column.name, column.type.encode
            else:
                plain.append((i, put))
                self._fields[field.name] = column.name, None
        self.columns = tuple(name for name, _ in self._fields.values())
        for part in self._parts.values():
            self.columns += part.columns
        new = object.__new__

        def decode(row: Row) -> R:
            # What the record's own __init__ does, but faster: that takes each value by its name, and sets it by a call
            # of object.__setattr__.
            made = new(record)
            for i, put in plain:
                put(made, row[i])
            for i, put, read in coded:
                held = row[i]
                put(made, None if held is None else read(held))
            for put, read in parts:
                put(made, read(row))
            return made

        self.decode = decode

    def names(self, fields: Iterable[str]) -> tuple[str, ...]:
        """Return the columns of some fields."""
        return tuple(self.stored(dict.fromkeys(fields)))

    def one(self, row: Row | None) -> R | None:
        """Return the record in *row*; None where there is no row."""
        return None if row is None else self.decode(row)

    def encode(self, record: R | None) -> dict[str, Any]:
        """Return *record* as columns; each is NULL where there is none."""
        if record is None:
            return dict.fromkeys(self.columns)
        held: dict[str, Any] = {}
        for name, (column, encode) in self._fields.items():
            value = getattr(record, name)
            held[column] = value if encode is None or value is None else encode(value)
        for name, part in self._parts.items():
            held |= part.encode(getattr(record, name))
        return held

    def stored(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return some fields, by their names, as columns."""
        held: dict[str, Any] = {}
        for name, value in values.items():
            if (part := self._parts.get(name)) is not None:
                held |= part.encode(value)
            else:
                column, encode = self._fields[name]
                held[column] = value if encode is None or value is None else encode(value)
        return held


def _part(record: type, name: str, at: At) -> tuple[Codec[Any], Coder]:
    """Return the codec of a field that is a record itself, and what reads it or None."""
    kind = get_type_hints(record)[name]
    inner: list[Any] = [each for each in (kind, *get_args(kind)) if is_dataclass(each)]
    if len(inner) != 1:
        raise TypeError(f"no column holds {record.__name__}.{name}")
    part: Codec[Any] = Codec(inner[0], at, f"{name}_")
    if inner[0] is kind:
        return part, part.decode
    first = at[part.columns[0]][0]
    return part, lambda row: None if row[first] is None else part.decode(row)
