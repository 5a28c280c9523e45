"""What columns are called: as written, after what they are made of, or Column1 and so on."""

from __future__ import annotations

from collections.abc import Iterable

from attestation_service.kql.kinds import Column, Kind, Place
from attestation_service.kql.source import Source
from attestation_service.kql.syntax import Expression, Name


class Names:
    """The names of the columns of one stage, in order."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._names: dict[str, None] = {}
        self._numbers: dict[str, int] = {}

    @property
    def names(self) -> list[str]:
        """All of them, in order."""
        return list(self._names)

    def take(self, names: Iterable[str]) -> None:
        """Add names that differ."""
        self._names |= dict.fromkeys(names)

    def add(self, place: Place, name: str) -> None:
        """Add a name that somebody wrote.

        Raises:
            QueryInvalid: Another column of this stage has it.
        """
        if name in self._names:
            raise self._source.invalid(place, f"two columns would be called {name}")
        self._names[name] = None

    def add_unnamed(self, place: Place, name: str | None, written: Expression) -> None:
        """Add the name of a column that nobody named: a number tells it from another of its name."""
        if isinstance(written, Name):
            self.add(place, written.name)
        else:
            self.add_derived(name)

    def add_derived(self, name: str | None) -> str:
        """Add a name with a number behind it, where it is taken; return it."""
        free = self.free(name)
        self._names[free] = None
        return free

    def free(self, name: str | None) -> str:
        """Return *name*, with a number behind it where it is taken or nothing."""
        if name and name not in self._names:
            return name
        # Names are added and never taken away: the next number is looked for where the last one was found.
        stem = name or "Column"
        number = self._numbers.get(stem, 1)
        while f"{stem}{number}" in self._names:
            number += 1
        self._numbers[stem] = number
        return f"{stem}{number}"

    def columns(self, kinds: tuple[Kind, ...]) -> tuple[Column, ...]:
        """Return the columns."""
        return tuple(Column(name=name, kind=kind) for name, kind in zip(self._names, kinds, strict=True))
