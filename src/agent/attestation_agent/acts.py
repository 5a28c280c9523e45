"""How what is ordered is done on this machine: by files and commands, or by Talos itself (`talos.machined`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from attestation_agent.commands import Outcome
from attestation_agent.exits import ApplyFailed, WipeFailed
from attestation_agent.files import write_atomically
from attestation_agent.settings import Settings


class Acts(Protocol):
    """What changes this machine. Nothing here decides: who calls it has verified the order."""

    @property
    def can_wipe(self) -> bool:
        """Whether there is a way to wipe it."""
        ...

    @property
    def named(self) -> Mapping[str, str]:
        """Fields of the log that say how a configuration is applied."""
        ...

    def apply(self, config: bytes) -> None:
        """Apply a configuration; what was applied may be applied again.

        Raises:
            ApplyFailed: It was not, or nobody can tell.
        """
        ...

    def wipe(self) -> None:
        """Wipe this machine; what was wiped may be wiped again.

        Raises:
            WipeFailed: It was not, or nobody can tell.
        """
        ...


def by_commands(settings: Settings, run: Callable[[tuple[str, ...]], Outcome]) -> ByCommands:
    """Return how *settings* say it: by a file, and commands that *run* runs."""
    return ByCommands(
        config_path=settings.config_path,
        apply_command=settings.apply_command,
        wipe_command=settings.wipe_command,
        run=run,
    )


class ByCommands:
    """By a file and the commands that an administrator chose.

    Args:
        config_path: Where configurations are written.
        apply_command: Run with that path, or empty.
        wipe_command: Or empty.
        run: Runs a command.
    """

    def __init__(
        self,
        *,
        config_path: Path,
        apply_command: tuple[str, ...],
        wipe_command: tuple[str, ...] = (),
        run: Callable[[tuple[str, ...]], Outcome],
    ) -> None:
        self._config_path = config_path
        self._apply_command = apply_command
        self._wipe_command = wipe_command
        self._run = run

    @property
    def can_wipe(self) -> bool:
        """Whether there is a command for it."""
        return bool(self._wipe_command)

    @property
    def named(self) -> Mapping[str, str]:
        """Return where configurations are written."""
        return {"path": str(self._config_path)}

    def apply(self, config: bytes) -> None:
        """Write *config* whole and run the command with it, where there is one.

        Raises:
            ApplyFailed: Either of them failed.
        """
        try:
            write_atomically(self._config_path, config)
        except OSError as e:
            raise ApplyFailed(f"{self._config_path}: {e.strerror}") from e
        if self._apply_command:
            outcome = self._run((*self._apply_command, str(self._config_path)))
            if not outcome.ok:
                raise ApplyFailed(f"apply command: {outcome.text}")

    def wipe(self) -> None:
        """Run the command.

        Raises:
            WipeFailed: It failed, or there is none.
        """
        outcome = self._run(self._wipe_command) if self._wipe_command else None
        if outcome is None or not outcome.ok:
            raise WipeFailed(f"wipe command: {outcome.text if outcome else 'none configured'}")
