"""Every kind of page, once: what nobody links to, what follows an act, what is wrong. Tests and pictures take it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from tests.e2e.web.visitor import Visitor
from tests.e2e.web.world import World

BARS: Final = "Machines\n| summarize machines = count() by trust\n| render barchart"
LINES: Final = "Attestations\n| summarize results = count() by bin(ts, 1s), verdict\n| render timechart"
WRONG: Final = "Machines\n| where trst == 'stale'"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """A page of the tour.

    Args:
        name: Of its picture.
        who: Who looks at it.
        path: Where it is.
        then: What is done there; what is looked at is the page after it.
        ok: False where the page tells of something that is wrong.
    """

    name: str
    path: str
    who: str = "alice"
    then: Callable[[Visitor], None] | None = None
    ok: bool = True

    def visit(self, visitor: Visitor) -> None:
        """Have *visitor* stand before it."""
        if self.ok:
            visitor.opens(self.path)
        else:
            visitor.page.goto(self.path)
            visitor.signs_in()
        if self.then is not None:
            self.then(visitor)


def _pressed(button: str) -> Callable[[Visitor], None]:
    return lambda visitor: visitor.presses(button)


def asked(query: str) -> Callable[[Visitor], None]:
    """Return what asks *query* in the editor."""

    def ask(visitor: Visitor) -> None:
        visitor.page.get_by_label("Query", exact=True).fill(query)
        visitor.presses("Run")

    return ask


def _typed_wrong(visitor: Visitor) -> None:
    visitor.page.get_by_label("Type", exact=False).fill("another")
    visitor.presses("Revoke")


def _folded_out(visitor: Visitor) -> None:
    visitor.page.locator("details.more summary").click()


def _result(visitor: Visitor) -> None:
    with visitor.page.expect_navigation():
        visitor.page.get_by_role("link", name="The newest result").click()


def _events(visitor: Visitor) -> None:
    _result(visitor)
    with visitor.page.expect_navigation():
        visitor.page.get_by_role("link", name="Browse the event log").click()


def _first(selector: str) -> Callable[[Visitor], None]:
    def follow(visitor: Visitor) -> None:
        with visitor.page.expect_navigation():
            visitor.page.locator(f"main {selector}").first.click()

    return follow


def _dry_run(visitor: Visitor) -> None:
    visitor.page.get_by_label("Version").select_option("workers@1")
    visitor.presses("Try it")
    visitor.page.get_by_text("machine would newly fail").or_(
        visitor.page.get_by_text("machines would newly fail")
    ).first.wait_for()


def _several(visitor: Visitor) -> None:
    for name in ("w-1", "w-4"):
        visitor.page.get_by_label(f"Choose {name}").check()
    visitor.presses("Lock…")


def _faulty_policy(visitor: Visitor) -> None:
    visitor.page.locator("textarea").fill("name: workers\nversion: one\npcrs: 7\n")
    visitor.presses("Check")


def stops(world: World) -> Sequence[Stop]:
    """Return what is beyond the navigation."""
    ids = {name: f"/machines/{machine.machine_id}" for name, machine in world.machines.items()}
    failing, good, locked, revoked, waiting = (ids[n] for n in ("w-5", "w-1", "w-6", "w-7", "w-9"))
    inbox = waiting.replace("/machines", "/inbox")
    told, gone = (f"/webhooks/{each}" for each in world.webhooks)
    proposal = f"/approvals/{world.proposal}"
    return [
        Stop(name="account", path="/account"),
        Stop(name="machine-failing", path=failing),
        Stop(name="machine-result", path=failing, then=_result),
        Stop(name="machine-events", path=failing, then=_events),
        Stop(name="machine-waiting", path=waiting),
        Stop(name="machine-acts", path=good, then=_folded_out),
        *(
            Stop(name=f"machine-{tab}", path=f"{good}?tab={tab}")
            for tab in (
                *("evidence", "identity", "configuration", "certificates"),
                *("secrets", "disk-keys", "votes"),
            )
        ),
        Stop(name="machines-none", path="/machines?q=nothing-is-called-so"),
        Stop(name="machines-where", path="/machines?where=trust+%3D%3D+nothing"),
        Stop(name="machines-views", path="/machines/views"),
        Stop(name="machines-view-save", path="/machines/views/save?trust=stale"),
        Stop(name="machines-lock", path="/machines", then=_several),
        Stop(name="act", path=f"{locked}/revoke"),
        Stop(name="act-typed-wrong", path=f"{locked}/revoke", then=_typed_wrong),
        Stop(name="act-done", path=f"{told}/test", then=_pressed("Send a test")),
        Stop(name="inbox-approve", path=f"{inbox}/approve"),
        Stop(name="inbox-reject", path=f"{inbox}/reject"),
        Stop(name="approval", path=proposal),
        Stop(name="approval-object", path=f"{proposal}/object"),
        Stop(name="approval-agree", path=f"{proposal}/agree", who="bob"),
        Stop(name="policy", path="/policies/workers/1"),
        Stop(name="policies-places", path="/policies?tab=places"),
        Stop(name="policies-history", path="/policies?tab=history"),
        Stop(name="policies-learn", path="/policies/learn"),
        Stop(name="policies-edit", path="/policies/edit?from=workers@1"),
        Stop(name="policies-edit-wrong", path="/policies/edit", then=_faulty_policy),
        Stop(name="policies-diff", path="/policies/diff?one=identity-only@1&other=workers@1"),
        Stop(name="policies-try", path="/policies/try?policy=workers@1"),
        Stop(name="policies-dry-run", path="/policies/try?policy=workers@1", then=_dry_run),
        Stop(
            name="policies-activate", path="/policies/activate?policy=workers@1&scope=role&subject=worker-app"
        ),
        *(
            Stop(name=f"trust-{tab}", path=f"/trust?tab={tab}")
            for tab in ("unknown", "collateral", "firmware")
        ),
        Stop(name="trust-one", path="/trust", then=_first("td a")),
        Stop(name="trust-add", path="/trust/add"),
        Stop(name="trust-verify", path="/trust/verify"),
        *(
            Stop(name=f"certificates-{tab}", path=f"/certificates?tab={tab}")
            for tab in ("ending", "ca", "people", "refused")
        ),
        Stop(name="certificate", path="/certificates", then=_first("td:last-child a")),
        Stop(name="certificates-ca-one", path="/certificates?tab=ca", then=_first("td a")),
        Stop(name="certificates-ca-check", path="/certificates/ca/check"),
        Stop(name="query-bars", path="/query", then=asked(BARS)),
        Stop(name="query-lines", path="/query", then=asked(LINES)),
        Stop(name="query-wrong", path="/query", then=asked(WRONG)),
        Stop(name="query-none", path="/query", then=asked("Machines | where hostname == 'nobody'")),
        Stop(name="query-save", path="/query/save?q=Machines"),
        Stop(name="webhooks", path="/webhooks"),
        Stop(name="webhook", path=told),
        Stop(name="webhook-gone", path=gone),
        Stop(name="webhook-add", path="/webhooks/add"),
        Stop(name="webhook-delete", path=f"{gone}/delete"),
        Stop(name="secrets", path="/secrets"),
        Stop(name="secret", path=f"/secrets/shared/{world.shared}"),
        Stop(name="dead-letters", path="/extensions/webhooks/dead-letters"),
        Stop(name="cluster", path="/clusters/default"),
        Stop(name="configuration", path="/configurations/default/worker-app"),
        Stop(name="configuration-version", path="/configurations/default/worker-app/3"),
        Stop(name="configuration-activate", path="/configurations/default/worker-app/1/activate"),
        Stop(name="patch", path=f"{good}/patches/2"),
        Stop(name="expected", path="/machines?q=S-4790", then=_first("td a")),
        Stop(name="settings-all", path="/settings?all=yes"),
        Stop(name="audit-entry", path="/audit/5", who="carol"),
        Stop(name="audit-verify", path="/audit/verify", who="carol"),
        Stop(name="audit-log", path="/audit/log", who="carol"),
        Stop(name="audit-compare", path="/audit/compare", who="carol"),
        Stop(name="overview-fleet", path="/fleet"),
        Stop(name="viewer", path=good, who="vera"),
        Stop(name="error-403", path="/audit", ok=False),
        Stop(name="error-404", path="/machines/00000000-0000-0000-0000-000000000000", ok=False),
        Stop(name="error-409", path=f"{revoked}/lock", then=_pressed("Lock"), ok=False),
        Stop(name="logged-out", path="/auth/logged-out", who="", ok=False),
    ]
