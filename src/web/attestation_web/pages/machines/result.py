"""`/machines/<id>/results/<n>`: why a result is as it is, PCR by PCR, and the event log it was judged by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from flask import request

from attestation.client.tee_words import is_about_hardware, tee_words
from attestation.client.text import short_ids
from attestation.client.words import appraised, no_event_log
from attestation.machines import TEES
from attestation_web.page import Column, api, render, table
from attestation_web.page.badges import Badge, Look
from attestation_web.page.names import called
from attestation_web.pages.machines.area import page
from attestation_web.pages.machines.one import TIERS
from attestation_web.pages.machines.ways import way

if TYPE_CHECKING:
    from werkzeug.wrappers import Response

    from attestation.api import PCRChange, ResultReport

EVENT_ROWS: Final = 100
OUTCOMES: Final[Mapping[str, Badge]] = {
    "failed": Badge(look=Look.BAD, text="failed", title="Authentic, and not as expected"),
    "undecided": Badge(look=Look.UNKNOWN, text="undecided", title="It could not be judged"),
    "reported": Badge(look=Look.WARNS, text="reported", title="Not as expected; the policy only reports it"),
    "flagged": Badge(look=Look.WAITS, text="flagged", title="Passed, and somebody should look at it"),
    "passed": Badge(look=Look.GOOD, text="passed"),
}
"""The worst first."""
NO_LOG_OF_A_GUEST: Final = (
    "No event log came with this evidence; what was launched is in what its processor signed."
)
EVENTS: Final = (
    Column(name="index", title="N", numeric=True),
    Column(name="pcr", title="PCR", numeric=True),
    Column(name="type", title="Type"),
    Column(name="text", title="What it says"),
    Column(name="checked", title="Proven"),
    Column(name="digest", title="Digest", shown=False),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PCR:
    """One register: what was quoted, what was expected, and what explains a difference.

    Args:
        index: Which.
        found: Its value, hex.
        expected: What the policy expects, in its words; None where nothing is compared.
        outcome: Of the check, or None.
        changes: Why it is not what it was, or not as expected.
    """

    index: int
    found: str
    expected: str | None
    outcome: str | None
    changes: Sequence[PCRChange]


def registers(report: ResultReport) -> list[PCR]:
    """Return every quoted register, and those that a check speaks of without a value."""
    checks = {c.check: c for c in report.checks}
    named = {int(c.check[3:]) for c in report.checks if c.check[:3] == "pcr" and c.check[3:].isdigit()}
    found = []
    for index in sorted({int(each) for each in report.pcr_values if each.isdigit()} | named):
        check = checks.get(f"pcr{index}")
        found.append(
            PCR(
                index=index,
                found=report.pcr_values.get(str(index), "") or (check.found or "" if check else ""),
                expected=None if check is None else check.expected or (check.note or "as it was found"),
                outcome=None if check is None else check.outcome,
                changes=[c for c in report.changes if c.pcr == index],
            )
        )
    return found


@page.get("/<machine_id>/results/<int:result_id>")
def result(machine_id: str, result_id: int) -> Response:
    """Show one result."""
    client = api()
    machine = client.machine(machine_id)
    report = client.result(machine_id, result_id)
    short = short_ids([machine_id])[machine_id]
    findings, steps = tee_words(report.checks, short)
    order, no_tpm = list(OUTCOMES), machine.ek_source in TEES
    return render(
        "machines/result.html",
        machine=machine,
        name=called(machine),
        report=report,
        boot_words=appraised(report),
        checks=sorted(
            (c for c in report.checks if not c.check.startswith("pcr")), key=lambda c: order.index(c.outcome)
        ),
        outcomes=OUTCOMES,
        pcrs=registers(report),
        tiers=TIERS,
        findings=findings,
        steps=steps,
        way=partial(way, machine_id=machine_id),
        no_tpm=no_tpm,
        is_confidential=any(is_about_hardware(c.check) for c in report.checks),
        no_log=None if report.boot is not None else NO_LOG_OF_A_GUEST if no_tpm else no_event_log(report),
    )


@page.get("/<machine_id>/results/<int:result_id>/events")
def events(machine_id: str, result_id: int) -> Response:
    """Browse the event log of a result: text of a stranger, of which only what is proven may be believed."""
    client = api()
    machine = client.machine(machine_id)
    report = client.result(machine_id, result_id)
    pcr, words = request.args.get("pcr", type=int), request.args.get("q", "").strip().lower()
    every = report.boot.events if report.boot is not None else []
    fitting = [
        e
        for e in every
        if (pcr is None or e.pcr == pcr) and (not words or words in f"{e.type} {e.text} {e.digest}".lower())
    ]
    return render(
        "machines/events.html",
        machine=machine,
        name=called(machine),
        report=report,
        events=table(EVENTS, fitting, page_rows=EVENT_ROWS),
        pcrs=sorted({e.pcr for e in every}),
        way=partial(way, machine_id=machine_id),
        pcr=pcr,
        words=request.args.get("q", ""),
        no_log=None if report.boot is not None else no_event_log(report),
    )
