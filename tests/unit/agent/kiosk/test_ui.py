"""What the kiosk says fits on a console, and stays there while somebody compares it."""

from __future__ import annotations

import errno
import io
import os

from attestation_agent.kiosk.ui import Screen


def said(*events: str) -> list[str]:
    """Return the lines of *events*, each of the same machine."""
    out = io.StringIO()
    screen = Screen(out, attended=False)
    for event in events:
        level, _, name = event.rpartition(":")
        {"": screen.info, "warning": screen.warning}[level](
            name, machine_id="m-1", status="pending_approval", by="first use", sha256="ab", reason=None
        )
    return out.getvalue().splitlines()


def test_what_each_machine_meets_is_a_sentence() -> None:
    """All else keeps the name that the documentation explains, and what is known of it."""
    assert said(
        "activated", "waits.for_approval", "warning:service_keys.pinned", "warning:medium.unknown"
    ) == [
        "Registered as m-1: pending_approval",
        "Waits for an operator, who compares the code. It asks every half minute.",
        "WARNING: Keys of the service, believed by first use: SHA-256 ab",
        "WARNING: medium.unknown machine_id=m-1 status=pending_approval by=first use",
        "  sha256=ab",
    ]


def test_a_long_wait_does_not_push_the_code_away() -> None:
    """What is said again is said once, but a warning each time: it happened again."""
    assert len(said("waits.for_approval", "waits.for_approval", "waits.for_approval")) == 1
    assert len(said("waits.for_approval", "warning:again", "warning:again", "waits.for_approval")) == 4


def test_an_answer_begins_the_line_anew() -> None:
    """After anything else was shown, the same event is said once more."""
    out = io.StringIO()
    screen = Screen(out, attended=False)
    screen.info("waits.for_approval")
    screen.say("Image")
    screen.info("waits.for_approval")
    assert len(out.getvalue().splitlines()) == 3


class Gone(io.StringIO):
    """A console whose other end was hung up."""

    def write(self, text: str) -> int:
        """Fail as the kernel does."""
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    def readline(self, size: int | None = -1, /) -> str:  # type: ignore[override]  # as StringIO has it
        """Likewise."""
        return str(self.write(""))


def test_a_console_that_is_gone_stops_no_installation_and_confirms_none() -> None:
    """What cannot be shown is not shown, and the disk is written all the same; what nobody could read has no answer."""
    screen = Screen(Gone(), io.StringIO("sda\n"), attended=True)
    screen.say("Image")
    screen.progress("write", 1, 2)
    screen.warning("image.again", reason="it broke off")
    screen.progress("write", 2, 2)
    assert screen.ask("Type sda to erase it:") is None
    assert Screen(io.StringIO(), Gone(), attended=True).ask("Type sda to erase it:") is None
