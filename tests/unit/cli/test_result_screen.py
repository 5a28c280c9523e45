"""One result and its event log on the command line: in words, whole, and harmless whatever a machine sent."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner, Result

from attestation_cli.main import cli
from attestation_cli.render import display_width
from attestation_cli.session import Session
from tests.docs.screens import IDS, fleet, screen
from tests.unit.cli.stub import Stub, machine, result

A = "7f3ad3ac-0f0e-4c55-9d4a-3f6f0e1b2c3d"
HOSTILE = "x\x1b]0;owned\x07\x1b[2J\u202e\x9b31m\r\nroot" + "long " * 60
FORMS = ("table", "wide", "csv", "yaml", "json")


@pytest.fixture(autouse=True)
def _token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ITL_ADMIN_TOKEN", "t0p-s3cret")


def run(service: Stub, *args: str) -> Result:
    return CliRunner().invoke(cli, list(args), obj=Session(carrier=service.carrier))


def event(index: int = 3, **changes: Any) -> dict[str, Any]:
    """Return a MeasuredEvent as JSON."""
    return {
        "index": index,
        "pcr": 7,
        "type": "EV_SEPARATOR",
        "digest": "ab" * 32,
        "data_checked": True,
        "text": "separator",
        **changes,
    }


def boot(**changes: Any) -> dict[str, Any]:
    """Return a BootDetail as JSON."""
    return {
        "pcrs": [4, 7],
        "findings": [],
        "secure_boot": None,
        "items": [],
        "events": [event()],
        "events_left_out": 0,
        **changes,
    }


def hostile() -> Stub:
    """Return a service whose machine put terminal escapes wherever it could."""
    item = {"kind": "boot-loader", "pcr": 4, "digest": "ab" * 32, "text": HOSTILE}
    secure_boot = {
        "enabled": False,
        "measured": "off",
        "debug": True,
        "problems": [HOSTILE],
        "flags": [],
        "db_entries": 0,
        "dbx_entries": 0,
        "authorities": [{"name": HOSTILE, "sha256": "ab" * 32, "subject": HOSTILE}],
        "sbat": HOSTILE,
    }
    change = {"pcr": 4, "before": None, "after": "ab" * 32, "text": HOSTILE, "entries": [HOSTILE] * 20}
    told = boot(
        findings=[HOSTILE] * 9,
        secure_boot=secure_boot,
        items=[item] * 6 + [item | {"kind": "command-line", "text": None}],
        events=[event(text=HOSTILE, type=HOSTILE)],
        events_left_out=7,
    )
    more = {
        "boot": told,
        "changes": [change],
        "ima_log_sha256": "cd" * 32,
        "event_log_kept": False,
        "ek_key_attested": True,
    }
    return Stub(
        machines=[machine(A, hostname="cp-1", status="attested")],
        results=[result(A, "Failed", checks=[{"check": "pcr4", "outcome": "failed", "found": HOSTILE}])],
        reports={1: more},
        event_log=HOSTILE.encode("utf-8", "replace"),
    )


@pytest.mark.threat("T75")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("command", ["results cp-1 1", "event-log cp-1", "explain cp-1"])
def test_what_a_machine_measured_is_harmless_in_every_form(command: str, form: str) -> None:
    """No control character of a log reaches a terminal; programs get one document."""
    done = run(hostile(), "machine", *command.split(), "-o", form)
    assert not set(done.stdout) & set("\x1b\x07\x9b\u202e")
    assert "\r" not in done.stdout.replace("\r\n", "\n")
    if form == "json":
        json.loads(done.stdout)
    if form == "csv":
        rows = list(csv.reader(io.StringIO(done.stdout)))
        assert len(rows) == 2
        assert len(rows[0]) == len(rows[1]) == len(set(rows[0]))


@pytest.mark.parametrize("command", ["machine results worker-2 18", "machine event-log worker-2 18"])
@pytest.mark.parametrize("columns", [80, 120])
def test_it_fits_the_terminal(command: str, columns: int) -> None:
    """Sentences and tables end where the terminal does; digests stay whole."""
    lines = screen(command, fleet(), columns).splitlines()
    assert lines
    assert all(display_width(line) <= columns for line in lines)


def test_the_change_is_named_in_words() -> None:
    """Both where somebody asks why, and where the result is shown."""
    told = screen("machine explain worker-2", fleet(), 80)
    assert "PCR 7 changed: dbx updated (+3 hashes)" in told
    assert f"attestation machine results {IDS[2][:8]} 18" in told
    shown = screen("machine results worker-2 18", fleet(), 80)
    assert "what changed, since result 17:" in shown
    assert "kernel command line: + init=/bin/sh" in shown
    assert "secure boot    on" in shown


def test_a_good_result_is_not_asked_about() -> None:
    """Where nothing is odd, one request less, and nothing about changes."""
    service = Stub(machines=[machine(A, status="attested")], results=[result(A)])
    done = run(service, "machine", "explain", A)
    assert "what changed" not in done.stdout
    assert not any(request.url.path.endswith("/results/1") for request in service.requests)


def test_a_first_result_is_compared_with_what_is_accepted() -> None:
    """Without an earlier Verified result there is none to name."""
    change: dict[str, Any] = {
        "pcr": 4,
        "before": None,
        "after": "ab" * 32,
        "text": "PCR 4 holds a kernel",
        "entries": [],
    }
    service = Stub(machines=[machine(A)], results=[result(A, "Failed")], reports={1: {"changes": [change]}})
    assert "what changed, other than accepted:" in run(service, "machine", "results", A, "1").stdout


def test_events_of_one_pcr() -> None:
    """--pcr may be repeated; what is left out is said."""
    events = [event(n, pcr=pcr) for n, pcr in enumerate((4, 7, 8))]
    service = Stub(
        machines=[machine(A)],
        results=[result(A)],
        reports={1: {"boot": boot(events=events, events_left_out=12)}},
    )
    done = run(service, "machine", "event-log", A, "--pcr", "4", "--pcr", "8", "-o", "json")
    assert [e["pcr"] for e in json.loads(done.stdout)] == [4, 8]
    done = run(service, "machine", "event-log", A, "1")
    assert "12 more events" in done.stderr


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"event_log_kept": False}, "need not keep it. Look at a newer result: `attestation machine results"),
        (
            {"event_log_kept": False, "event_log_sha256": None},
            "1 is kept: the machine sent none. See there whether",
        ),
        ({}, "leads to none of the quoted values"),
        ({"boot": boot(events=[])}, "None of these events."),
    ],
)
def test_no_events_are_three_things(more: dict[str, Any], words: str) -> None:
    """Not kept, not leading anywhere, not of this PCR."""
    service = Stub(machines=[machine(A)], results=[result(A)], reports={1: more})
    done = run(service, "machine", "event-log", A)
    assert (done.exit_code, done.stdout) == (0, "")
    assert words in done.stderr
    raw = run(service, "machine", "event-log", A, "--raw", "-")
    assert (raw.exit_code, words in raw.stderr) == ((3, True) if "event_log_kept" in more else (3, False))


@pytest.mark.threat("T75")
def test_the_raw_log_goes_into_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Byte for byte into a file or a pipe; never onto a terminal, where it could do anything."""
    service = Stub(machines=[machine(A)], results=[result(A)], event_log=b"\x00\x1b[2Jlog\n")
    target = tmp_path / "log.bin"
    done = run(service, "machine", "event-log", A, "--raw", str(target))
    assert "9 bytes written" in done.stdout
    assert target.read_bytes() == b"\x00\x1b[2Jlog\n"
    done = run(service, "machine", "event-log", A, "1", "--raw", "-")
    assert done.stdout_bytes == b"\x00\x1b[2Jlog\n"
    done = run(service, "machine", "event-log", A, "--raw", str(tmp_path / "none" / "log"))
    assert done.exit_code != 0
    monkeypatch.setattr("attestation_cli.commands.machine_results._onto_terminal", lambda: True)
    done = run(service, "machine", "event-log", A, "--raw", "-")
    assert done.exit_code != 0
    assert done.stdout_bytes == b""


def test_a_result_is_printed_for_others() -> None:
    """Signed by the service, one line, with its number; without one nobody can tell which."""
    service = Stub(machines=[machine(A)], results=[result(A)])
    service.before = lambda request: (
        httpx.Response(200, content=b"eyJh.eyJi.c2ln") if request.url.path.endswith("/1/token") else None
    )
    done = run(service, "machine", "results", A, "1", "--ear", "veraison-2023")
    assert done.stdout == "eyJh.eyJi.c2ln\n"
    assert dict(service.requests[-1].url.params) == {"profile": "veraison-2023", "checks": "false"}
    done = run(service, "machine", "results", A, "--ear", "draft-04")
    assert done.exit_code != 0
    assert "needs its number" in done.stderr
    service.before = lambda _: httpx.Response(200, content=b"\xff\xfe")
    assert run(service, "machine", "results", A, "1", "--ear", "draft-04").exit_code != 0


def test_a_machine_without_results_has_no_log() -> None:
    """Said in words, and not with an empty table."""
    done = run(Stub(machines=[machine(A)]), "machine", "event-log", A)
    assert done.exit_code != 0
    assert "never sent a quote" in done.stderr
    done = run(Stub(machines=[machine(A)], results=[result(A)]), "machine", "results", A, "99")
    assert done.exit_code != 0


def test_the_machine_shows_what_is_known_of_its_boot() -> None:
    """The kept log, the firmware, the advisory and the missed heartbeat."""
    known = machine(
        A,
        event_log_sha256="ab" * 32,
        firmware_version="7.85.0.1",
        firmware_attested="7.85.0.1",
        firmware_blocked="SA-00086",
        heartbeat_missed_at="2026-11-21T04:00:00Z",
    )
    shown = run(Stub(machines=[known]), "machine", "get", A).stdout
    assert "known, abababababababab…" in shown
    assert "7.85.0.1, vouched for by its EK" in shown
    assert "SA-00086" in shown
    assert "not seen since its lease" in shown
