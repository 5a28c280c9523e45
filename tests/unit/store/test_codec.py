"""Records and rows: every field in the column of its name, held as the type of the column says."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import pkgutil
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import Enum
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import BigInteger, Column, Text

import attestation.store
from attestation.machines import ExtensionEvent, Machine
from attestation.results import Verdict
from attestation.store.codec import Codec, codec
from attestation.store.columns import INSTANT, Stored, word
from attestation.store.tables import MachineRow, ResultRow, table_of
from tests.contract.store_samples import NOW, a_full_machine, a_machine

MACHINE_COLUMNS = tuple(table_of(MachineRow).c)
MACHINE_KEYS = ("id", "search", "name_key", "address_key")


def codecs() -> list[Codec[Any]]:
    """Return every codec of the package."""
    modules = (info.name for info in pkgutil.iter_modules(attestation.store.__path__))
    named = (vars(importlib.import_module(f"attestation.store.{name}")).values() for name in modules)
    return [value for values in named for value in values if isinstance(value, Codec)]


@cache
def like(kind: Any) -> st.SearchStrategy[Any]:
    """Return values of a type that a record names."""
    inner = get_args(kind)
    if get_origin(kind) is Literal:
        return st.sampled_from(inner)
    if get_origin(kind) in (Union, UnionType):
        return st.one_of(*map(like, inner))
    if get_origin(kind) is tuple:
        return st.lists(like(inner[0]), max_size=3).map(tuple)
    if get_origin(kind) is Mapping:
        return st.dictionaries(*map(like, inner), max_size=3)
    if dataclasses.is_dataclass(kind):
        fields = {name: like(each) for name, each in get_type_hints(kind).items()}
        return st.fixed_dictionaries(fields).map(lambda values: kind(**values))  # type: ignore[operator]  # a class
    if issubclass(kind, ExtensionEvent):
        return st.from_regex(r"\Aext_[a-z]{1,8}\.[a-z]{1,8}\Z").map(kind)
    if issubclass(kind, Enum):
        return st.sampled_from(list(kind))
    plain = {
        NoneType: st.none(),
        bool: st.booleans(),
        int: st.integers(0, (1 << 63) - 1),
        str: st.text(max_size=20),
        Any: st.none() | st.booleans() | st.integers() | st.text(max_size=20),
        bytes: st.binary(max_size=20),
        datetime: st.datetimes(timezones=st.just(UTC)),
    }
    return plain[kind]


def row_of(made: Codec[Any], held: Mapping[str, object]) -> list[object]:
    """Return the row in which a database gives *held* back."""
    return [held.get(name) for name in made.at]


@pytest.mark.parametrize("made", codecs(), ids=lambda made: made.record.__name__)
@settings(max_examples=20)
@given(st.data())
def test_every_record_comes_back_as_it_was(made: Codec[Any], data: st.DataObject) -> None:
    """Whatever a record says is held, as values that every driver knows, and read again."""
    record = data.draw(like(cast("Any", made.record)))
    held = made.encode(record)
    assert set(held) == set(made.columns)
    assert {type(value) for value in held.values()} <= {int, str, bytes, bool, NoneType}
    assert made.decode(row_of(made, held)) == record


BY_HAND = {
    "Capture": "of several tables",
    "Countersignature": "four columns of five",
    "DeadLetter": "a codec reads its event",
    "Expiring": "a count and the first",
    "HSMState": "the first, and counts",
    "ListedCertificate": "three columns of a certificate",
    "Mark": "two columns of a row",
    "Oldest": "three columns of a machine",
    "Page": "its cursor is of a row",
    "Pending": "a count and a sum",
    "Troubles": "counts",
    "Unvouched": "two columns, and a codec reads the certificate",
    "Waiting": "counts by age, and the first",
}
"""What the store makes of a row's columns by their place."""


def test_every_table_of_records_is_read_by_a_codec() -> None:
    """Nothing but the above is unpacked by hand, so that the property above speaks of all others."""
    made = set()
    for path in Path(attestation.store.__path__[0]).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                given = map(ast.unparse, (*node.args, *(keyword.value for keyword in node.keywords)))
                if any(re.search(r"\brow\[-?\d+\]", text) for text in given):
                    made.add((path.stem, node.func.id))
    modules = {stem: importlib.import_module(f"attestation.store.{stem}") for stem, _ in made}
    kinds = {name: vars(modules[stem]).get(name) for stem, name in made}
    assert {name for name, kind in kinds.items() if dataclasses.is_dataclass(kind)} == set(BY_HAND)


def test_a_field_more_is_one_line_in_record_and_table() -> None:
    """Reading, writing and changing it need nothing else."""
    wider = dataclasses.make_dataclass(
        "Wider", [("seen_at", datetime | None)], bases=(Machine,), frozen=True, slots=True, kw_only=True
    )
    made: Codec[Any] = codec(wider, (*MACHINE_COLUMNS, Column("seen_at", INSTANT)), besides=MACHINE_KEYS)
    machine = a_full_machine()
    known = {field.name: getattr(machine, field.name) for field in dataclasses.fields(machine)}
    for seen_at in (NOW, None):
        record = wider(**known, seen_at=seen_at)
        assert made.decode(row_of(made, made.encode(record))) == record
    assert made.stored({"seen_at": NOW}) == {"seen_at": INSTANT.encode(NOW)}


def test_a_part_that_is_absent_is_null_in_all_its_columns() -> None:
    """A machine without a clock leaves nothing of an older one."""
    made = codec(Machine, MACHINE_COLUMNS, besides=MACHINE_KEYS)
    absent = made.stored({"clock": None})
    assert set(absent) == set(made.stored({"clock": a_full_machine().clock}))
    assert set(absent.values()) == {None}
    assert made.decode(row_of(made, made.encode(a_machine()))).clock is None


def test_a_word_that_is_not_known_is_a_value_that_cannot_be_read() -> None:
    """Perhaps of a newer version: told as any other, with the words that there are."""
    assert word(Verdict).decode("Verified") is Verdict.VERIFIED
    with pytest.raises(ValueError, match="'fine' is none of Verified"):
        word(Verdict).decode("fine")
    outcomes = table_of(ResultRow).c.outcomes.type
    assert isinstance(outcomes, Stored)
    with pytest.raises(ValueError, match="'guessed' is none of passed"):
        outcomes.decode('[["guessed", "pcr7"]]')


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A record of two columns."""

    name: str
    size_bytes: int


NAME, SIZE = Column("name", Text()), Column("size_bytes", BigInteger())


@pytest.mark.parametrize(
    ("columns", "besides"),
    [([NAME], ()), ([NAME, SIZE, Column("more", Text())], ()), ([NAME, SIZE], ("more",))],
    ids=["field-without-column", "column-without-field", "no-such-column"],
)
def test_fields_and_columns_that_differ_are_refused(
    columns: list[Column[Any]], besides: tuple[str, ...]
) -> None:
    """Nothing starts that would forget a column or a field."""
    with pytest.raises(TypeError):
        codec(Sample, columns, besides=besides)
    assert codec(Sample, [SIZE, NAME]).decode((5, "a")) == Sample(name="a", size_bytes=5)


def test_a_record_that_checks_itself_is_refused() -> None:
    """It is made without its own `__init__`, so its check would not be asked."""

    @dataclasses.dataclass(frozen=True, slots=True)
    class Checked:
        name: str

        def __post_init__(self) -> None:
            raise AssertionError

    with pytest.raises(TypeError):
        codec(Checked, [NAME])
