"""What columns are called: as written, after what they are made of, or Column1 and so on."""

from __future__ import annotations

from attestation_service.kql.kinds import Column, Kind, Place
from attestation_service.kql.source import Source
from attestation_service.kql.syntax import Expression, Name


class Names:
    """The names of the columns of one stage, in order."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.names: list[str] = []

    def add(self, place: Place, name: str) -> None:
        """Add a name that somebody wrote.

        Raises:
            QueryInvalid: Another column of this stage has it.
        """
        if name in self.names:
            raise self._source.invalid(place, f"two columns would be called {name}")
        self.names.append(name)

    def add_unnamed(self, place: Place, name: str | None, written: Expression) -> None:
        """Add the name of a column that nobody named: a number tells it from another of its name."""
        if isinstance(written, Name):
            self.add(place, written.name)
        else:
            self.add_derived(name)

    def add_derived(self, name: str | None) -> str:
        """Add a name with a number behind it, where it is taken; return it."""
        self.names.append(self.free(name))
        return self.names[-1]

    def free(self, name: str | None) -> str:
        """Return *name*, with a number behind it where it is taken or nothing."""
        if name and name not in self.names:
            return name
        number = 1
        while f"{name or 'Column'}{number}" in self.names:
            number += 1
        return f"{name or 'Column'}{number}"

    def columns(self, kinds: tuple[Kind, ...]) -> tuple[Column, ...]:
        """Return the columns."""
        return tuple(Column(name=name, kind=kind) for name, kind in zip(self.names, kinds, strict=True))
