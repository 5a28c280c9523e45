"""What is enabled, and what could not be used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from fastapi import APIRouter

from attestation.extension import AttestationExtension, Event, Handler, Observer, QueryTable
from attestation_service.settings import SettingsInvalid

BUILT_IN: Final = "itl-attestation-extensions"
"""The distribution of our own extensions. An operator who enables one relies on it: if it fails, the start fails."""


class ExtensionInvalid(SettingsInvalid):
    """An extension that is enabled cannot be used; the text names it and says why."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"the extension {name} (ITL_EXTENSIONS) {why}")
        self.name, self.why = name, why


@dataclass(frozen=True, slots=True, kw_only=True)
class Enabled:
    """The extensions that are enabled, in their order, what they serve, and what handles which event, by extension.

    Args:
        extensions: Those that can be used.
        routers: Theirs, and that of the list of them.
        handlers: By extension.
        observers: What counts.
        query_tables: What the query language may look up.
        foreign: Names of those that are not ours: what fails of them is left out, and the service runs.
        skipped: Which are left out, and why. It grows until requests are served.
    """

    extensions: tuple[AttestationExtension, ...] = ()
    routers: tuple[APIRouter, ...] = ()
    handlers: Mapping[str, Mapping[Event, Handler]] = field(default_factory=dict)
    observers: tuple[Observer, ...] = ()
    query_tables: tuple[QueryTable, ...] = ()
    foreign: frozenset[str] = frozenset()
    skipped: dict[str, str] = field(default_factory=dict)

    def skip(self, invalid: ExtensionInvalid) -> None:
        """Leave out what cannot be used.

        Raises:
            ExtensionInvalid: It is ours.
        """
        if invalid.name not in self.foreign:
            raise invalid
        self.skipped.setdefault(invalid.name, invalid.why)


NONE: Final = Enabled()


def words(error: BaseException) -> str:
    """Return what *error* says, with its kind; the kind alone where it fails while it says it."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 -- a stranger's `__str__`
        return type(error).__name__


@contextmanager
def strange(name: str, why: str) -> Iterator[None]:
    """Run code of the extension *name*: whatever it raises is told of as *why*.

    Also what is no `Exception`: an exit, a cancellation where nobody cancelled us, the panic of a compiled module.

    Raises:
        ExtensionInvalid: It raised something.
        KeyboardInterrupt, GeneratorExit: Of somebody else.
    """
    try:
        yield
    except (ExtensionInvalid, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as e:
        raise ExtensionInvalid(name, f"{why}: {words(e)}") from e


def prefixes_of(extension: AttestationExtension) -> tuple[str, ...]:
    """Return what its routes stand below."""
    return tuple(extension.prefixes) or (f"/api/v1/{extension.name}",)


def groups_of(extension: AttestationExtension) -> tuple[str, ...]:
    """Return the command groups that operators get with it."""
    return tuple(extension.cli_groups) or (extension.name.replace("_", "-"),)


def first_words(extension: AttestationExtension) -> tuple[str, ...]:
    """Return the first words of the events that it tells of."""
    return tuple(dict.fromkeys(event.partition(".")[0] for event in extension.events))
