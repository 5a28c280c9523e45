"""Several machines at once: which a form is about, and all of them in one request, however many they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from flask import request

from attestation.api.operations import OperatorAPI
from attestation.errors import MachineUnknown, RequestInvalid
from attestation_web.login.current import session

if TYPE_CHECKING:
    from attestation.api import MachineDetail
    from attestation.client import OperatorClient

MOST_AT_ONCE: Final = 20
"""Machines of one form: each is an act of its own, and a page asks the service 25 times at most."""
FIELD: Final = "machines"
"""Hidden in the form: ids with blanks between, perhaps with a colon and something behind each."""


def chosen(verb: str) -> Sequence[str]:
    """Return the machines that this request is about: chosen in a list, or in the form that it sends.

    After a login again the form comes back by its name, and they stand in what was filled in.

    Raises:
        RequestInvalid: None, or more than are decided about at once.
    """
    kept = session().resumed.get(request.args.get("resume", ""), {})
    text = request.form.get(FIELD) or kept.get(FIELD) or " ".join(request.args.getlist("machine"))
    ids = list(dict.fromkeys(each.partition(":")[0] for each in text.split()))
    if not 1 <= len(ids) <= MOST_AT_ONCE:
        raise RequestInvalid(f"choose 1 to {MOST_AT_ONCE} machines to {verb}; these are {len(ids)}")
    return ids


def those(client: OperatorClient, ids: Sequence[str]) -> list[MachineDetail]:
    """Return the machines *ids* that there are, in this order; one request for up to 50."""
    if not ids:
        return []
    found, _ = client.one_page(OperatorAPI.machines, None, ids=",".join(ids), page_size=len(ids))
    by_id = {each.machine_id: each for each in found}
    return [by_id[each] for each in ids if each in by_id]


def all_of(client: OperatorClient, ids: Sequence[str]) -> list[MachineDetail]:
    """Return the machines *ids*, in this order.

    Raises:
        MachineUnknown: One of them is not there.
    """
    found = those(client, ids)
    if len(found) < len(ids):
        there = {each.machine_id for each in found}
        gone = ", ".join(each[:8] for each in ids if each not in there)
        raise MachineUnknown(f"no such machine: {gone}; choose again")
    return found
