"""What the program knows of its own state: facts, from which /readyz and conditions are told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One thing that is well or not. `holds_back` false: told, but the program is ready all the same."""

    well: bool
    said: str
    holds_back: bool = True


class Health:
    """Facts by name; who knows one says it again when it changes."""

    def __init__(self) -> None:
        self._facts: dict[str, Fact] = {}

    def say(self, name: str, fact: Fact) -> None:
        """Note *fact* under *name*, instead of what was there."""
        self._facts[name] = fact

    @property
    def facts(self) -> Mapping[str, Fact]:
        """All of them, by name."""
        return dict(sorted(self._facts.items()))

    @property
    def ready(self) -> bool:
        """True where facts are known and none holds back."""
        return bool(self._facts) and all(fact.well or not fact.holds_back for fact in self._facts.values())
