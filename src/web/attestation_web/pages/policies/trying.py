"""The dry run: what the fleet proved last, judged as if a policy applied; page by page, so that each takes seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from flask import abort, redirect, request, url_for
from pydantic import BaseModel

from attestation.api import PolicyTestMachine, PolicyTestPage, PolicyTestRequest
from attestation.client.policy_text import read_policy
from attestation.client.policy_words import place_words
from attestation.errors import RequestInvalid
from attestation_web.page import api, bar, change_draft, draft_of, drafted, keep_draft, needs, render
from attestation_web.page.badges import Look
from attestation_web.pages.policies.area import ROLES, SCOPE_WORDS, newest_first, page, place_of, ref

if TYPE_CHECKING:
    from werkzeug.wrappers import Response

    from attestation_web.page.charts import Chart

AT_ONCE: Final = 200
MOST_KEPT: Final = 200
SUMS: Final = ("judged", "passed", "failed", "undecided", "without_evidence", "reported", "recovering")
TRIAL: Final = "trial"
DOCUMENT: Final = "document"
"""What the editor calls the text that is tried: it finds it in the same draft."""


class Trial(BaseModel):
    """A dry run under way: what is asked, and the sum of the pages so far."""

    request: PolicyTestRequest
    policy: str = ""
    sha256: str = ""
    machines: int = 0
    pages: int = 0
    ended: bool = False
    sums: dict[str, int] = dict.fromkeys(SUMS, 0)
    newly: int = 0
    failing: list[PolicyTestMachine] = []
    checks: dict[str, dict[str, int]] = {}

    def add(self, found: PolicyTestPage) -> None:
        """Add a page, and remember where the next begins."""
        self.policy, self.sha256, self.machines = found.policy, found.sha256, found.machines
        for name in SUMS:
            self.sums[name] += getattr(found, name)
        for check, counts in found.checks.items():
            told = self.checks.setdefault(check, {})
            for outcome, count in counts.model_dump().items():
                told[outcome] = told.get(outcome, 0) + count
        self.newly += sum(machine.newly for machine in found.failing)
        # Those that would newly fail decide; they are kept first.
        self.failing = sorted([*self.failing, *found.failing], key=lambda m: not m.newly)[:MOST_KEPT]
        self.pages += 1
        self.ended = found.next_cursor is None
        self.request = self.request.model_copy(update={"cursor": found.next_cursor})

    @property
    def chart(self) -> Chart:
        """How those that were judged would end."""
        sums = self.sums
        known = self.newly
        return bar(
            "Of those judged so far" if not self.ended else "All machines there",
            [
                ("would pass", sums["passed"], Look.GOOD),
                ("would newly fail", known, Look.BAD),
                ("fail already", sums["failed"] + sums["undecided"] - known, Look.WARNS),
                ("without evidence", sums["without_evidence"], Look.UNKNOWN),
            ],
        )


@page.get("/try")
@needs("act")
def choose() -> Response:
    """Ask what to try where."""
    listed = api().policies()
    return render(
        "policies/try.html",
        refs=[ref(p) for p in newest_first(listed)],
        policy=request.args.get("policy", ""),
        document=drafted("document"),
        scopes=SCOPE_WORDS,
        scope=request.args.get("scope", "fleet"),
        subject=request.args.get("subject", ""),
        roles=ROLES,
    )


@page.post("/try")
@needs("act")
def begin() -> Response:
    """Begin a dry run; it changes nothing anywhere."""
    scope, subject = place_of(request.form.get("scope", ""), request.form.get("subject", "").strip())
    text = request.form.get("document", "")
    try:
        asked = PolicyTestRequest(
            policy=None if text else request.form.get("policy", ""),
            document=read_policy(text, "the text") if text else None,
            scope=scope,
            subject=subject,
            limit=AT_ONCE,
        )
    except ValueError:
        raise RequestInvalid("choose a version that is stored, or write one") from None
    draft = keep_draft({TRIAL: Trial(request=asked).model_dump_json(), DOCUMENT: text})
    return redirect(url_for(".run", draft=draft, step=0), 303)


@page.get("/try/<draft>")
@needs("act")
def run(draft: str) -> Response:
    """Judge the next page where the address asks for it, and show the sum.

    The same address twice judges once: what it asks for is a number of pages.
    """
    kept = draft_of(draft)
    if kept is None or TRIAL not in kept:
        abort(404)
    trial = Trial.model_validate_json(kept[TRIAL])
    if not trial.ended and request.args.get("step", type=int) == trial.pages:
        trial.add(api().test_policy(trial.request))
        change_draft(draft, {**kept, TRIAL: trial.model_dump_json()})
    asked = trial.request
    return render(
        "policies/trial.html",
        trial=trial,
        draft=draft,
        place=place_words(asked.scope, asked.subject),
        stored=asked.policy,
        text_draft=draft if kept[DOCUMENT] else None,
        most=MOST_KEPT,
    )
