"""The outcome of `policy test`: the sum of all pages, and how it is told."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from attestation.client.text import short_ids
from attestation_cli.render import Column, cell, time_cell

if TYPE_CHECKING:
    from attestation.api import PolicyTestMachine, PolicyTestPage
    from attestation_cli.session import Session

MOST_SHOWN = 20
SUMS = ("judged", "passed", "failed", "undecided", "without_evidence", "reported", "recovering")
OUTCOMES = ("passed", "failed", "flagged", "reported", "undecided")


class Trial:
    """Adds up pages.

    Args:
        place: Where the policy was tried, in words.
    """

    def __init__(self, place: str) -> None:
        self._place = place
        self._policy = self._sha256 = ""
        self._sums = dict.fromkeys(SUMS, 0)
        self._checks: dict[str, dict[str, int]] = {}
        self.failing: list[PolicyTestMachine] = []

    @property
    def newly(self) -> list[PolicyTestMachine]:
        """The machines that would fail and do not yet."""
        return [machine for machine in self.failing if machine.newly]

    def add(self, page: PolicyTestPage) -> None:
        """Add a page."""
        self._policy, self._sha256 = page.policy, page.sha256
        for name in SUMS:
            self._sums[name] += getattr(page, name)
        for check, counts in page.checks.items():
            told = self._checks.setdefault(check, dict.fromkeys(OUTCOMES, 0))
            for outcome in OUTCOMES:
                told[outcome] += getattr(counts, outcome)
        self.failing += page.failing

    def emit(self, session: Session) -> None:
        """Print the sum: for programs all of it, for people what they decide by."""
        if session.json:
            session.emit_json(
                {
                    "policy": self._policy,
                    "sha256": self._sha256,
                    "place": self._place,
                    **self._sums,
                    "newly_failing": len(self.newly),
                    "checks": self._checks,
                    "failing": [machine.model_dump(mode="json") for machine in self.failing],
                }
            )
            return
        sums = self._sums
        rows = [
            ("policy", cell(self._policy)),
            ("tried on", cell(self._place)),
            ("machines", cell(f"{sums['judged']:,}", sums["judged"])),
            ("would pass", cell(_of(sums["passed"], sums["reported"], "with a rule that is only reported"))),
            ("would fail", cell(_of(sums["failed"], len(self.newly), "newly"))),
            ("would recover", cell(f"{sums['recovering']:,}", sums["recovering"])),
            ("cannot be said", cell(f"{sums['undecided']:,}", sums["undecided"])),
            ("without evidence", cell(f"{sums['without_evidence']:,}", sums["without_evidence"])),
        ]
        session.emit_fields(rows)
        if session.output == "csv":
            return
        session.emit("")
        session.emit_table(
            [Column("CHECK"), *(Column(outcome.upper()) for outcome in OUTCOMES)],
            [
                [cell(check), *(cell(f"{told[o]:,}" if told[o] else None) for o in OUTCOMES)]
                for check, told in sorted(self._checks.items(), key=lambda item: _natural(item[0]))
            ],
            "The policy compares nothing.",
        )
        self._emit_failing(session)

    def _emit_failing(self, session: Session) -> None:
        shown = sorted(self.failing, key=lambda machine: not machine.newly)[:MOST_SHOWN]
        if not shown:
            return
        now = datetime.now(UTC)
        short = short_ids([machine.machine_id for machine in shown])
        session.emit("")
        session.emit_rows(
            shown,
            {
                Column("WOULD FAIL", shrink_to=12): lambda m: cell(
                    m.hostname or short[m.machine_id], m.machine_id
                ),
                Column("NOW"): lambda m: m.before,
                Column("CHECKS", shrink_to=12): lambda m: m.failed,
                Column("ROLE", drop=2): lambda m: m.role,
                Column("EVIDENCE", drop=1): lambda m: time_cell(m.at, now),
            },
            "",
        )
        if len(self.failing) > len(shown):
            session.note(f"and {len(self.failing) - len(shown):,} more; -o json names every one")
        session.note("attestation machine explain MACHINE shows what such a machine proved last")


def _natural(check: str) -> list[tuple[int, str]]:
    """Order `pcr7` before `pcr11`."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"([0-9]+)", check)]


def _of(count: int, part: int, words: str) -> str:
    return f"{count:,}" if not part else f"{count:,}, {part:,} of them {words}"
