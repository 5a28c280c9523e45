"""Commands of other distributions, found by the entry point group `attestation_cli_plugins`.

    [project.entry-points.attestation_cli_plugins]
    webhook = "attestation_webhooks.cli:group"      # a click command or group, called `attestation webhook`

Nothing of them is imported before it is used. One that cannot be loaded, is no command, or wants the name of a
built-in command is left out, and a note on stderr says so, once in a run; the rest of the command line works on.
A built-in group may be open (`groups.OPEN`): what a plug-in of its name has stands beside its own commands.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from typing import TYPE_CHECKING

import click

from attestation.client.text import clean
from attestation.errors import Unavailable
from attestation_cli.groups import OPEN

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "attestation_cli_plugins"


class PluginFailed(Unavailable):
    """The code of a plug-in ended in an error that is not one of ours."""

    code = "plugin-failed"


class Plugins:
    """The plug-ins that are installed.

    Args:
        builtin: Names that no plug-in may take.
        note: Prints a remark to stderr.
    """

    def __init__(self, builtin: Container[str], note: Callable[[str], None]) -> None:
        self._builtin, self._note = builtin, note
        self._found: Mapping[str, EntryPoint] | None = None
        self._told: set[str] = set()

    def names(self) -> Mapping[str, str]:
        """Return the commands that plug-ins add, each with the distribution that it is from; imports none of them."""
        return {name: _origin(point) for name, point in self._points().items() if name not in self._builtin}

    def load(self, name: str) -> click.Command | None:
        """Import the command *name*; None, with a note, where it cannot be used."""
        point = self._points().get(name)
        if point is None:
            return None
        try:
            command = point.load()
        except KeyboardInterrupt:
            raise
        # The code of strangers may do anything while it is imported: try to end the program, or panic in what was
        # compiled for it, which is no `Exception`.
        except BaseException as e:  # noqa: BLE001 -- code of strangers may raise anything
            self._tell(name, f"{point.value} cannot be loaded: {type(e).__name__}: {e}")
            return None
        if not isinstance(command, click.Command):
            self._tell(name, f"{point.value} is no click command")
            return None
        return command

    def failed(self, name: str, error: BaseException) -> PluginFailed:
        """Return what to tell about *error*, which the code of the plug-in *name* ended in."""
        origin = self.names().get(name, "an unknown distribution")
        return PluginFailed(f"the plug-in {name} ({origin}) failed: {type(error).__name__}: {error}")

    def _points(self) -> Mapping[str, EntryPoint]:
        if self._found is not None:
            return self._found
        # Imported here: reading the metadata of every distribution takes longer than most commands.
        from importlib.metadata import entry_points

        found: dict[str, EntryPoint] = {}
        try:
            points = list(entry_points(group=GROUP))
        except Exception as e:  # noqa: BLE001 -- the metadata of any installed distribution may be broken
            self._tell("all of them", f"the installed distributions cannot be read: {type(e).__name__}: {e}")
            points = []
        for point in points:
            if point.name in self._builtin and point.name not in OPEN:
                self._tell(point.name, f"{_origin(point)} may not replace the command of that name")
            elif point.name in found and point.value != found[point.name].value:
                self._tell(
                    point.name, f"{_origin(point)} and {_origin(found[point.name])} want the same name"
                )
            else:
                found[point.name] = point
        self._found = found
        return found

    def _tell(self, name: str, why: str) -> None:
        if name not in self._told:
            self._told.add(name)
            self._note(f"note: plug-in {clean(name)} is left out: {clean(why)}")


def _origin(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else "an unknown distribution"
