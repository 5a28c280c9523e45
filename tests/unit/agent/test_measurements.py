"""The agent's logs: what is sent, when, and what is left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from attestation.machines import Status
from attestation_agent.measurements import IMA_KIND, MAX_LOG_BYTES, Measurements


class Logs(Measurements):
    """Logs in files of the test."""

    def __init__(self, directory: Path) -> None:
        self.event_log, self.ima_list = directory / "events", directory / "ima"
        self.warnings: list[str] = []
        super().__init__(self.event_log, self.ima_list, self._note)

    def _note(self, event: str, **_: Any) -> None:
        self.warnings.append(event)


def test_a_demanded_log_is_sent_every_time(tmp_path: Path) -> None:
    """Whoever demands it does not have it."""
    logs = Logs(tmp_path)
    logs.event_log.write_bytes(b"events")
    for _ in range(3):
        assert logs.boot(required=True) == "ZXZlbnRz"
        assert not logs.volunteered
        logs.answered(Status.ATTESTED)
    assert logs.warnings == []


def test_an_accepted_log_is_sent_once_by_a_process(tmp_path: Path) -> None:
    """Known is what the service has judged; another log is another matter."""
    logs = Logs(tmp_path)
    logs.event_log.write_bytes(b"events")
    assert logs.boot(required=False) == "ZXZlbnRz"
    assert logs.volunteered
    assert logs.boot(required=False) == "ZXZlbnRz", "no answer came"
    logs.answered(Status.PENDING_APPROVAL)
    sent = [logs.boot(required=False), logs.volunteered]
    assert sent == [None, False]
    logs.answered(Status.PENDING_APPROVAL)
    assert logs.boot(required=False) is None
    logs.event_log.write_bytes(b"other")
    assert logs.boot(required=False) is not None


def test_after_a_change_of_status_it_is_sent_once_more(tmp_path: Path) -> None:
    """Of machines that nobody admitted the service may keep nothing."""
    logs = Logs(tmp_path)
    logs.event_log.write_bytes(b"events")
    logs.boot(required=False)
    logs.answered(Status.PENDING_APPROVAL)
    logs.answered(Status.ATTESTED)
    assert logs.boot(required=False) is not None
    logs.answered(Status.ATTESTED)
    assert logs.boot(required=False) is None


def test_what_the_service_cannot_read_is_left_out(tmp_path: Path) -> None:
    """Unless it is demanded: then the policy decides."""
    logs = Logs(tmp_path)
    logs.event_log.write_bytes(b"events")
    logs.boot(required=False)
    logs.withhold()
    assert logs.boot(required=False) is None
    assert logs.boot(required=True) == "ZXZlbnRz"
    assert logs.warnings == ["event_log.refused"]


@pytest.mark.parametrize(
    ("content", "warning"), [(None, "unreadable"), (bytes(MAX_LOG_BYTES + 1), "too_long")]
)
def test_a_log_that_cannot_be_sent_is_said_so(tmp_path: Path, content: bytes | None, warning: str) -> None:
    """The machine attests without it; that nobody asked for a log that is not there is no news."""
    logs = Logs(tmp_path)
    if content is not None:
        logs.event_log.write_bytes(content)
        logs.ima_list.write_bytes(content)
    assert logs.boot(required=True) is None
    assert logs.ima() == []
    assert logs.warnings == [f"event_log.{warning}", f"ima_log.{warning}"]
    logs.warnings.clear()
    assert logs.boot(required=False) is None
    assert logs.warnings == ([] if content is None else ["event_log.too_long"])


def test_an_empty_log_is_none(tmp_path: Path) -> None:
    """Kernels without a firmware log show an empty file."""
    logs = Logs(tmp_path)
    logs.event_log.write_bytes(b"")
    logs.ima_list.write_bytes(b"")
    assert logs.boot(required=True) is None
    assert logs.ima() == []


def test_the_kernel_list_is_an_item_of_evidence(tmp_path: Path) -> None:
    """Named by its media type, in base64."""
    logs = Logs(tmp_path)
    logs.ima_list.write_bytes(b"list")
    assert logs.ima() == [{"media_type": "application/vnd.itl.ima-log", "value": "bGlzdA=="}]
    assert IMA_KIND == "ima-log"
