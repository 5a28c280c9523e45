"""Rows of some clusters: a condition for lists, compiled for powers of two."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import BindParameter, ColumnElement, bindparam


def size_of(clusters: Collection[str]) -> int:
    """Return for how many names the statement for *clusters* is compiled."""
    return 1 << max(len(clusters) - 1, 0).bit_length()


def within(cluster: ColumnElement[str], size: int) -> ColumnElement[bool]:
    """Return the condition that *cluster* is one of *size* that are given, as `named` names them."""
    given: list[BindParameter[str]] = [bindparam(f"within_{number}") for number in range(size)]
    return cluster.in_(given)


def named(clusters: Collection[str]) -> dict[str, str]:
    """Return what the statement is given; the last one fills up, and nothing is in none."""
    names = sorted(clusters) or [""]
    padded = [*names, *[names[-1]] * (size_of(clusters) - len(names))]
    return {f"within_{number}": name for number, name in enumerate(padded)}
