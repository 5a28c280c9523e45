"""Where a policy applies from now on: activated, ended and rolled back, each an act that may need votes."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from flask import redirect, request, url_for

from attestation.client.policy_words import place_words
from attestation_web.page import Act, Field, api, drafted, needs, render
from attestation_web.pages.policies.area import (
    ROLES,
    SCOPE_WORDS,
    applied_at,
    newest_first,
    page,
    place_of,
    ref,
)

if TYPE_CHECKING:
    from werkzeug.wrappers import Response

    from attestation.api.operations import Scope

NOTHING: Final = "nothing of its own; what is assigned more widely"


@page.get("/activate")
@needs("act")
def activate_where() -> Response:
    """Ask which version applies where, then show what that will do."""
    scope, policy = request.args.get("scope", ""), request.args.get("policy", "")
    if scope and policy:
        where = place_of(scope, request.args.get("subject", "").strip())
        return redirect(url_for(".activate", scope=where[0], subject=where[1], policy=policy), 303)
    listed = api().policies()
    return render(
        "policies/where.html",
        refs=[ref(p) for p in newest_first(listed)],
        policy=policy,
        scopes=SCOPE_WORDS,
        roles=ROLES,
        assignments=listed.assignments,
    )


@page.act("/at/<scope>/<subject>/activate", fresh=True)
def activate(scope: str, subject: str) -> Act:
    """Let a version apply somewhere."""
    where = place_of(scope, subject)
    name, policy = place_words(*where), drafted("policy") or request.args.get("policy", "")
    applies = applied_at(api().policies(), *where)
    return Act(
        title=f"Activate {policy or 'a policy'} for {name}",
        button="Activate",
        will=[
            f"{_whose(where)} measured against {policy or 'it'} from the next attestation on.",
            "What it does not keep to, it fails: a machine that fails gets no configuration, secret or certificate.",
            "Where dual control asks for several people this is your vote, and nothing changes until the others agree.",
        ],
        facts=[("Applies there now", applies.policy if applies else NOTHING)],
        fields=[Field(name="policy", label="Version", value=policy, needed=True, help="NAME@VERSION")],
        do=lambda client, filled: client.assign_policy(*where, filled["policy"]),
        did=lambda answer: f"{answer.policy} applies to {name} from now on.",
        back="/policies?tab=places",
        dangerous=scope == "fleet",
    )


@page.act("/at/<scope>/<subject>/end", fresh=True)
def end(scope: str, subject: str) -> Act:
    """End an assignment."""
    where = place_of(scope, subject)
    name = place_words(*where)
    applies = applied_at(api().policies(), *where)
    return Act(
        title=f"End the policy of {name}",
        button="End it",
        will=[
            f"Nothing is assigned to {name} itself any more; what is assigned more widely applies there.",
            "Where nothing is, the shipped policy applies: identity proven, boot state not appraised.",
            "Where dual control asks for several people this is your vote.",
        ],
        facts=[("Applies there now", applies.policy if applies else NOTHING)],
        do=lambda client, _: client.unassign_policy(*where),
        did=lambda _: f"Nothing is assigned to {name} itself any more.",
        back="/policies?tab=places",
        typed=name,
        dangerous=True,
    )


@page.act("/at/<scope>/<subject>/roll-back", fresh=True)
def roll_back(scope: str, subject: str) -> Act:
    """Let what applied before apply again."""
    where = place_of(scope, subject)
    name = place_words(*where)
    told = list(islice(api().policy_history(*where, page_size=2), 2))
    now, before = (told[0].policy if told else None), (told[1].policy if len(told) > 1 else None)
    return Act(
        title=f"Roll back the policy of {name}",
        button="Roll back",
        will=[
            f"What applied to {name} before applies again: {before or NOTHING}.",
            "Rolling back once more takes that back.",
            "Where dual control asks for several people this is your vote.",
        ],
        facts=[("Applies there now", now or NOTHING), ("Applied before", before or NOTHING)],
        do=lambda client, _: client.roll_back_policy(*where),
        did=lambda answer: f"{answer.policy if answer else NOTHING} applies to {name} again.",
        back="/policies?tab=places",
    )


def _whose(where: tuple[Scope, str]) -> str:
    return {
        "fleet": "Every machine is",
        "cluster": f"Every machine of the cluster {where[1]} is",
        "role": f"Every machine in the role {where[1]} is",
        "machine": f"The machine {where[1]} is",
    }[where[0]]
