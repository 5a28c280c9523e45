"""Running the hooks that an administrator configured: no shell, no terminal, an end in time."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass

POLL_SECONDS = 0.1
KILL_AFTER_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How a command ended: `text` says it in words, without anything that the command printed."""

    ok: bool
    text: str


def run_command(
    command: Sequence[str], *, timeout_seconds: float, stopping: Callable[[], bool] = lambda: False
) -> Outcome:
    """Run *command* and wait for its end; what it prints goes where the agent's own output goes.

    Args:
        command: Program and arguments; passed on as they are.
        timeout_seconds: After this, it is ended.
        stopping: Asked again and again; once True, the command is ended.
    """
    try:
        # stdout goes to our stderr, where the logs are. S603: the administrator's own words, and no shell reads them.
        process = subprocess.Popen(list(command), stdin=subprocess.DEVNULL, stdout=2)  # noqa: S603 -- no shell
    except OSError as e:
        return Outcome(ok=False, text=f"cannot be started: {e.strerror}")
    left = timeout_seconds
    while True:
        try:
            status = process.wait(POLL_SECONDS)
        except subprocess.TimeoutExpired:
            left -= POLL_SECONDS
            if left > 0 and not stopping():
                continue
            _end(process)
            return Outcome(
                ok=False,
                text="ended because the agent stops" if left > 0 else f"no end within {timeout_seconds:g} s",
            )
        if status < 0:
            return Outcome(ok=False, text=f"killed by signal {-status}")
        return Outcome(ok=status == 0, text=f"exit status {status}")


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(KILL_AFTER_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
