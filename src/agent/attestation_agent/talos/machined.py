"""What the agent has machined do: apply a configuration, wipe this machine (DELIVERY-AND-OPERATORS §4).

Apply: a dry run first, in which Talos reads and judges the configuration and changes nothing; then for good, in the
mode in which Talos chooses itself whether it must reboot. Wipe: the partitions STATE and EPHEMERAL, which hold what the
machine was given, at once and with a reboot; the defaults of a reset are all disks and a machine that is off.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from attestation.errors import RequestInvalid
from attestation.talos.versions import generation_of
from attestation_agent.exits import ApplyFailed, WipeFailed
from attestation_agent.talos import messages
from attestation_agent.talos.calls import call
from attestation_agent.talos.errors import MachinedFailed, MachinedTooOld

SERVICE: Final = "machine.MachineService"
ROLE: Final[Mapping[str, str]] = {"talos-role": "os:admin"}
"""What machined believes whom it lets in: up to 1.12 this alone, from 1.13 on also which process asks."""
WIPED: Final = ("STATE", "EPHEMERAL")
QUICK_SECONDS: Final = 30.0
"""For a version, and for a dry run, which only reads."""
_LINE: Final = re.compile(r"\bline (\d{1,6})\b")


class Machined:
    """The Talos that this agent runs on, by its socket.

    Args:
        path: Of the socket.
        timeout_seconds: Longest time for what changes the machine.
        stopping: Asked again and again; once True, a call is given up.
    """

    can_wipe: Final = True
    named: Final[Mapping[str, str]] = {"by": "machined"}

    def __init__(
        self, path: Path, *, timeout_seconds: float, stopping: Callable[[], bool] = lambda: False
    ) -> None:
        self._path = path
        self._timeout_seconds = timeout_seconds
        self._stopping = stopping

    def version(self) -> str:
        """Return the version of Talos.

        Raises:
            MachinedFailed: One of its leaves; MachinedTooOld: it is older than 1.9, or says no version at all.
        """
        version = messages.version_of(self._call("Version", b"", QUICK_SECONDS))
        try:
            generation_of(version)
        except RequestInvalid as e:
            raise MachinedTooOld(f"machined is of a version that is not known here: {e}") from e
        return version

    def apply(self, config: bytes) -> None:
        """Have *config* judged, then applied.

        Raises:
            ApplyFailed: It was not; or it was and nobody said so. Trying again is right in both cases.
        """
        try:
            # A Talos that did not know of dry runs would take ours for the real thing: proto3 passes over what it does
            # not know.
            self.version()
            self._apply(config, dry_run=True, timeout_seconds=QUICK_SECONDS)
            self._apply(config, dry_run=False, timeout_seconds=self._timeout_seconds)
        except MachinedFailed as e:
            # What it told may be a piece of the configuration. A line number is none.
            line = _LINE.search(e.told)
            raise ApplyFailed(f"{e}, at line {line[1]}" if line else str(e)) from None

    def wipe(self) -> None:
        """Have the partitions wiped that hold what this machine was given, and reboot.

        Raises:
            WipeFailed: Machined did not say that it does.
        """
        try:
            request = messages.wipe_request(WIPED)
            messages.check_answer(self._call("Reset", request, self._timeout_seconds))
        except MachinedFailed as e:
            raise WipeFailed(f"{e}: {e.told}" if e.told else str(e)) from e

    def _apply(self, config: bytes, *, dry_run: bool, timeout_seconds: float) -> None:
        request = messages.apply_request(config, mode=messages.Mode.AUTO, dry_run=dry_run)
        messages.check_answer(self._call("ApplyConfiguration", request, timeout_seconds))

    def _call(self, method: str, message: bytes, timeout_seconds: float) -> bytes:
        return call(
            self._path,
            f"/{SERVICE}/{method}",
            message,
            metadata=ROLE,
            timeout_seconds=timeout_seconds,
            stopping=self._stopping,
        )
