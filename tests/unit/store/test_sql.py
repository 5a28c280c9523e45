"""Every statement compiles for every dialect; values arrive in the order of the text."""

from __future__ import annotations

import importlib
import pkgutil
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import bindparam, select

import attestation.store
from attestation.store import audit, machine_lists, machines
from attestation.store.columns import signed, unsigned
from attestation.store.sql import DIALECTS, Prepared
from attestation.store.tables import MachineRow, table_of


def statements() -> dict[str, Prepared]:
    """Return every prepared statement of the package, also those made on demand."""
    found = {}
    for info in pkgutil.iter_modules(attestation.store.__path__):
        module = importlib.import_module(f"attestation.store.{info.name}")
        for name, value in vars(module).items():
            if isinstance(value, Prepared):
                found[f"{info.name}.{name}"] = value
    every = ("status", "role", "cluster_id", "trust", "q")
    found["machines.page"] = machine_lists._newest(every, (True, False))
    found["machines.page.q"] = machine_lists._newest(("q",), ())
    for order in machine_lists.ORDERS:
        found[f"machines.page by {order}"] = machine_lists._sorted(every, (True, False), order, begun=True)
    found["machines.update"] = machines._update(("status", "version"))
    exact = ("machine_id", "operator_cn", "action")
    for text in (True, False):
        found[f"audit.page, text {text}"] = audit._page(exact, text=text)
    found["audit.window"] = audit._window(exact)
    return found


def test_a_text_is_looked_for_without_lower_on_sqlite() -> None:
    """Its LIKE heeds no case, and `lower()` takes three times as long."""
    said = {name: audit._page((), text=True).compiled(name).text for name in DIALECTS}
    assert "lower(" not in said["sqlite"]
    assert " LIKE ? ESCAPE" in said["sqlite"]
    assert " ILIKE " in said["postgresql"]


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_statement_compiles_for_every_dialect(dialect: str) -> None:
    """No statement needs what only one database has."""
    assert len(statements()) > 30
    for name, statement in statements().items():
        compiled = statement.compiled(dialect)
        marks = re.findall(r"\?" if dialect == "sqlite" else r"\$\d+", compiled.text)
        assert len(marks if dialect == "sqlite" else set(marks)) == len(compiled.names), name


def test_values_are_arranged_by_name_and_constants_filled_in() -> None:
    """The order of keyword arguments does not matter."""
    c = table_of(MachineRow).c
    statement = Prepared(select(c.id).where(c.role == bindparam("b"), c.status == bindparam("a"), c.id > 7))
    compiled = statement.compiled("sqlite")
    assert compiled.arrange({**compiled.constants, "a": 1, "b": 2}) == (2, 1, 7)


@given(st.integers(0, (1 << 64) - 1))
def test_unsigned_numbers_survive_a_signed_column(value: int) -> None:
    """The way in and the way out are inverse, and inside fits 64 signed bits."""
    assert -(1 << 63) <= signed(value) < 1 << 63
    assert unsigned(signed(value)) == value


@pytest.mark.parametrize("value", [-1, 1 << 64])
def test_other_numbers_are_refused(value: int) -> None:
    """Nothing is taken modulo 2**64."""
    with pytest.raises(OverflowError):
        signed(value)
