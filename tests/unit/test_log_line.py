"""Log lines for people: what happened is read at a glance, and no stranger's text steers the terminal."""

from __future__ import annotations

import errno
import json
import logging
import os
import pty
import subprocess
import sys
from importlib import import_module
from typing import Any

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from attestation.client.text import clean
from attestation.log_line import log_line

AT = "2026-11-22T09:12:25.123456Z"

SERVICE = (
    "from attestation_service.context import logs; import structlog; logs.configure('info', *{form!r}); "
    "structlog.get_logger('x').warning('attest.rejected', machine_id='7f3ad3ac', token='s3cret', why='\\x1b[2J')"
)
AGENT = (
    "from attestation_agent import logs; "
    "logs.configure('info', *{form!r}).warning('attest.rejected', machine_id='7f3ad3ac', why='\\x1b[2J')"
)


def test_a_line() -> None:
    """Time, level, event, members; what has blanks stands in quotes, what is nothing is left out."""
    event = {
        "machine_id": "7f3ad3ac",
        "code": None,
        "why": "not as expected",
        "pcrs": [4, 7],
        "event": "attest.rejected",
        "level": "warning",
        "at": AT,
    }
    assert log_line(event, colour=False) == (
        '09:12:25Z warning  attest.rejected                machine_id=7f3ad3ac why="not as expected" pcrs=[4, 7]'
    )
    assert log_line(event, colour=True).startswith("09:12:25Z \x1b[33mwarning \x1b[0m attest.rejected ")
    assert log_line({"event": "up", "level": "info", "at": AT}, colour=True) == "09:12:25Z info     up"


@pytest.mark.threat("T172")
def test_a_traceback_stands_below() -> None:
    """Each line of it indented, so that none looks like an event."""
    event = {
        "event": "failed",
        "level": "error",
        "at": AT,
        "exception": "Traceback\n09:12:26Z info fine\x1b[2J",
    }
    assert log_line(event, colour=False).splitlines()[1:] == [
        "    Traceback",
        "    09:12:26Z info fine\ufffd[2J",
    ]


VALUES: Any = st.none() | st.booleans() | st.integers() | st.text() | st.binary() | st.lists(st.text())


@pytest.mark.threat("T172")
@given(st.dictionaries(st.text(), VALUES), st.text())
def test_one_event_is_one_line_of_harmless_characters(members: dict[str, Any], what: str) -> None:
    """Whatever machines call themselves and whatever they ask for."""
    members.pop("exception", None)
    line = log_line(members | {"event": what}, colour=False)
    assert clean(line) == line


def on_a_terminal(code: str, **environment: str) -> str:
    """Run *code* with a real terminal as standard error, and return what it got."""
    ours, theirs = pty.openpty()
    try:
        inherited = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "TERM")}
        subprocess.run(
            [sys.executable, "-c", code],
            stderr=theirs,
            env=inherited | {"TERM": "xterm"} | environment,
            check=True,
            timeout=120,
        )
        return os.read(ours, 65536).decode()
    finally:
        os.close(ours)
        os.close(theirs)


def elsewhere(code: str) -> str:
    """Run *code* with a pipe as standard error."""
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True
    ).stderr


@pytest.mark.threat("T172")
@pytest.mark.parametrize("program", [SERVICE, AGENT], ids=["service", "agent"])
def test_service_and_agent_write_for_who_reads(program: str) -> None:
    """Lines on a terminal and JSON elsewhere, unless somebody says otherwise; secrets are masked in both."""
    shown = on_a_terminal(program.format(form=()))
    assert "\x1b[33mwarning" in shown
    assert "attest.rejected" in shown
    assert "machine_id=7f3ad3ac" in shown
    assert "\x1b[2J" not in shown
    assert "s3cret" not in shown
    assert "\x1b" not in on_a_terminal(program.format(form=()), NO_COLOR="1")
    assert json.loads(on_a_terminal(program.format(form=("json",))))["event"] == "attest.rejected"
    assert json.loads(elsewhere(program.format(form=())))["event"] == "attest.rejected"
    text = elsewhere(program.format(form=("text",)))
    assert "machine_id=7f3ad3ac" in text
    assert "\x1b" not in text


class _Full:
    """Standard error on a disk that is full."""

    def isatty(self) -> bool:
        return False

    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    def flush(self) -> None:
        self.write("")


@pytest.mark.parametrize("program", ["service", "web", "operator", "agent"])
def test_a_log_that_cannot_be_written_stops_nothing(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither an event of ours, nor what a library says."""
    modules = {
        "service": "attestation_service.context.logs",
        "web": "attestation_web.logs",
        "operator": "attestation_operator.logs",
        "agent": "attestation_agent.logs",
    }
    root, before = logging.getLogger(), structlog.get_config()
    monkeypatch.setattr(root, "handlers", root.handlers)
    monkeypatch.setattr(logging, "raiseExceptions", True)
    level = root.level
    said: list[object] = []
    try:
        import_module(modules[program]).configure("info", "json")
        monkeypatch.setattr(logging.StreamHandler, "handleError", lambda _, record: said.append(record))
        monkeypatch.setattr("sys.stderr", _Full())
        structlog.get_logger("x").info("event", what="there is no room")
        logging.getLogger("library").error("there is no room")
    finally:
        monkeypatch.undo()
        structlog.configure(**before)
        root.setLevel(level)
    assert said == []
