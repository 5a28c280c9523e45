"""The wizard: choose machines, look at what they have in common, go on in the editor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from flask import request
from pydantic import ValidationError

from attestation.api import PolicyLearnRequest
from attestation.api.operations import OperatorAPI
from attestation.api.said import said
from attestation.client.policy_text import commented
from attestation.client.text import clean
from attestation.errors import MachineUnknown, RequestInvalid
from attestation.machines import Role, Status
from attestation_web.page import Column, api, keep_draft, needs, render, table
from attestation_web.pages.policies.area import ROLES, page

if TYPE_CHECKING:
    from werkzeug.wrappers import Response

MOST_OFFERED: Final = 50
GROUPS: Final = (
    Column(name="subject", title="Of"),
    Column(name="value", title="Value"),
    Column(name="machines", title="Machines that have it"),
)


@page.get("/learn")
@needs("act")
def learn_from() -> Response:
    """Ask from which machines."""
    return _ask()


@page.post("/learn")
@needs("act")
def learn() -> Response:
    """Show a proposal; it is stored nowhere."""
    form, source = request.form, request.form.get("from", "machines")
    try:
        asked = PolicyLearnRequest(
            machines=form.getlist("machine") if source == "machines" else [],
            role=Role(form.get("role", "")) if source == "role" else None,
            cluster_id=form.get("cluster", "").strip() if source == "cluster" else None,
            fleet=source == "fleet",
            name=form.get("name", "").strip() or "learned",
            version=int(form.get("version", "1") or "1"),
            include_failed="include_failed" in form,
            accept_unmeasured="accept_unmeasured" in form,
        )
        proposal = api().learn_policy(asked)
    except ValidationError as e:
        return _ask("; ".join(f"{'.'.join(map(str, each['loc']))}: {said(each)}" for each in e.errors()), 422)
    except ValueError:
        return _ask("the version is a number, and a role is one of those in the list", 422)
    except (RequestInvalid, MachineUnknown) as e:
        return _ask(clean(str(e)), 422)
    return render(
        "policies/learned.html",
        proposal=proposal,
        groups=table(GROUPS, proposal.groups),
        draft=keep_draft({"document": commented(proposal)}),
        text=commented(proposal),
    )


def _ask(fault: str = "", status: int = 200) -> Response:
    offered, cursor = api().one_page(
        OperatorAPI.machines, None, status=Status.ATTESTED, page_size=MOST_OFFERED
    )
    chosen = request.values.getlist("machine")
    values = {name: request.values.get(name, "") for name in ("from", "role", "cluster", "name", "version")}
    return render(
        "policies/learn.html",
        status,
        fault=fault,
        machines=offered,
        more=cursor is not None,
        chosen=chosen,
        others=[each for each in chosen if each not in {m.machine_id for m in offered}],
        roles=ROLES,
        values=values | {"from": values["from"] or ("machines" if chosen else "role")},
        include_failed="include_failed" in request.values,
    )
