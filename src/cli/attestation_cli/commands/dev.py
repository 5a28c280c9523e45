"""`attestation dev …`: what is built for others; the test kit, where it is installed, adds what tests need."""

from __future__ import annotations

import click

from attestation_cli.commands.dev_talos_extension import talos_extension
from attestation_cli.plugins import Plugins


class Open(click.Group):
    """A group of ours to which the plug-in of its name adds commands; one of ours is never replaced."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of ours, then those that are added."""
        ours, added = super().list_commands(ctx), self._added()
        return [*ours, *(name for name in (added.list_commands(ctx) if added else []) if name not in ours)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return ours, or else the one that is added."""
        ours = super().get_command(ctx, cmd_name)
        if ours is not None:
            return ours
        added = self._added()
        return None if added is None else added.get_command(ctx, cmd_name)

    def _added(self) -> click.Group | None:
        found = Plugins((), lambda text: click.echo(text, err=True)).load(self.name or "")
        return found if isinstance(found, click.Group) else None


@click.group("dev", cls=Open)
def group() -> None:
    """What is built for others: the agent as a system extension of Talos.

    Where itl-attestation-testing is installed there are also material for testing verifiers, of which nothing may be
    trusted, and a beginning for extensions of the service.

    \b
    Examples:
      attestation dev talos-extension --wheels dist --to agent \\
          --lock deploy/locks/agent.lock --lock deploy/locks/agent-talos.lock
      attestation dev ek-zoo ./zoo
    """


group.add_command(talos_extension)
