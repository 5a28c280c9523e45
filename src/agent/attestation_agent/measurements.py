"""The measurement logs of this machine: its boot event log, and the list of the kernel (IMA).

The boot event log does not change until the next boot. It is sent where it is demanded; where it is only accepted,
once by each process, so that operators can learn from it and see what changed. That must never keep a machine
from attesting: what the service cannot read and does not need is left out from then on.
"""

# Algorithms for: digest
from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Final

from attestation.evidence import ima_log
from attestation.machines import Status
from attestation.wire import b64encode

MAX_LOG_BYTES: Final = 1 << 20
"""What the service reads of one log at most."""
IMA_KIND: Final = ima_log.MEDIA_TYPE.removeprefix("application/vnd.itl.")


class Measurements:
    """Reads the logs and knows what the service has of them.

    Args:
        event_log: Where the kernel shows the log of the firmware.
        ima_list: Where the kernel shows its own list, binary.
        warn: Logs an event with fields.

    Attributes:
        volunteered: A log that was not demanded was sent, and not answered yet.
    """

    def __init__(self, event_log: Path, ima_list: Path, warn: Callable[..., object]) -> None:
        self._event_log = event_log
        self._ima_list = ima_list
        self._warn = warn
        self._sending: str | None = None
        self._known: str | None = None
        self._status: Status | None = None
        self._withheld = False
        self.volunteered = False

    def boot(self, *, required: bool) -> str | None:
        """Return the boot event log in base64; None where there is none, or the service has it."""
        self._sending, self.volunteered = None, False
        if self._withheld and not required:
            return None
        log = self._read(self._event_log, "event_log", quiet=not required)
        if log is None:
            return None
        digest = hashlib.sha256(log).hexdigest()
        if not required and digest == self._known:
            return None
        self._sending, self.volunteered = digest, not required
        return b64encode(log)

    def ima(self) -> list[dict[str, object]]:
        """Return the item of evidence with the kernel's list; to be read after the quote that it must cover."""
        log = self._read(self._ima_list, "ima_log", quiet=False)
        return [] if log is None else [{"media_type": ima_log.MEDIA_TYPE, "value": b64encode(log)}]

    def answered(self, status: Status) -> None:
        """Take note that the service judged what was sent, and what this machine is now.

        Of a machine that nobody admitted yet it may have kept nothing: after a change it is told once more.
        """
        self._known = self._sending or self._known
        self._sending, self.volunteered = None, False
        if self._status is not None and status is not self._status:
            self._known = None
        self._status = status

    def withhold(self) -> None:
        """Send the log no more unless it is demanded: the service could not read it."""
        self._withheld = True
        self._warn("event_log.refused", path=str(self._event_log))

    def _read(self, path: Path, what: str, *, quiet: bool) -> bytes | None:
        try:
            with path.open("rb") as file:
                log = file.read(MAX_LOG_BYTES + 1)
        except OSError as e:
            if not quiet:
                self._warn(f"{what}.unreadable", path=str(path), reason=e.strerror)
            return None
        if len(log) > MAX_LOG_BYTES:
            self._warn(f"{what}.too_long", size_bytes=len(log))
            return None
        return log or None
