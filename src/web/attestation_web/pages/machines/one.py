"""`/machines/<id>`: one machine, a part at a time; each part asks the service for what it shows, and for no more."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from flask import request

from attestation.api.operations import OperatorAPI
from attestation.client.words import ASSURANCE, appraised, explain, hardware_words, not_delivered
from attestation.errors import AttestationError, Forbidden, TrustCertificateUnknown, Unavailable
from attestation.machines import TEES, Status
from attestation_web.extensions import kms, vault
from attestation_web.page import Column, api, may, now, render, table
from attestation_web.page.badges import Badge, Look
from attestation_web.page.names import called
from attestation_web.pages.machines import acts, patches
from attestation_web.pages.machines.area import page
from attestation_web.pages.machines.ways import way

if TYPE_CHECKING:
    from werkzeug.wrappers import Response

    from attestation.api import MachineDetail
    from attestation.api.trust import PathCertificateDetail
    from attestation.client import OperatorClient

PAGE_ROWS: Final = 25
TABS: Final = (
    ("Overview", "overview"),
    ("Identity", "identity"),
    ("Evidence", "evidence"),
    ("Configuration", "configuration"),
    ("Certificates", "certificates"),
    ("Secrets", "secrets"),
    ("Disk keys", "disk-keys"),
    ("Votes", "votes"),
    ("Audit", "audit"),
)
TIERS: Final = {
    "affirming": Look.GOOD,
    "none": Look.UNKNOWN,
    "warning": Look.WARNS,
    "contraindicated": Look.BAD,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """A certificate of a path, and those that it vouches for.

    Args:
        certificate: None for the issuer that is not in the trust bundle: its name is known, and nothing else.
        children: What it signed.
    """

    certificate: PathCertificateDetail | None
    children: Sequence[Link]


@page.get("/<machine_id>")
def machine(machine_id: str) -> Response:
    """Show one machine."""
    client = api()
    found = client.machine(machine_id)
    enabled = _enabled(client)
    hidden = {
        "secrets": enabled is not None and vault.NAME not in enabled,
        "disk-keys": enabled is not None and kms.NAME not in enabled,
        "audit": not may("audit"),
    }
    tabs = [(title, name) for title, name in TABS if not hidden.get(name)]
    chosen = request.args.get("tab", "overview")
    if chosen not in [name for _, name in tabs]:
        chosen = "overview"
    try:
        part = _PARTS[chosen](client, found)
        failed = None
    except (Unavailable, Forbidden) as e:
        # This part is away; who the machine is, and what can be done, is known all the same.
        part, failed = {}, str(e)
    return render(
        "machines/one.html",
        machine=found,
        name=called(found),
        no_tpm=found.ek_source in TEES,
        assurance=ASSURANCE[found.assurance],
        owed=None
        if found.configuration_not_delivered is None
        else not_delivered(found.configuration_not_delivered, now()),
        tabs=tabs,
        chosen=chosen,
        failed=failed,
        actions=acts.allowed(found, enabled or frozenset()),
        **part,
    )


def _enabled(client: OperatorClient) -> frozenset[str] | None:
    """Return the extensions that answer; None where that cannot be asked: then their tabs say what is not known."""
    try:
        return frozenset(each.name for each in client.extensions().extensions if each.skipped is None)
    except AttestationError:
        return None


def _overview(client: OperatorClient, found: MachineDetail) -> dict[str, Any]:
    newest = next(client.results(found.machine_id, page_size=1), None)
    report = None if newest is None else client.result(found.machine_id, newest.result_id)
    unseen: list[str] = []
    if newest is not None and newest.boot_state_appraised:
        # Assignments that contradict each other are no reason to say nothing else.
        with contextlib.suppress(Unavailable):
            unseen = client.effective_policy(found.machine_id).looks_away
    odd = newest is not None and any(c.outcome not in ("passed", "flagged") for c in newest.checks)
    changes = report.changes if report is not None and odd else []
    return {
        "explained": explain(found, newest, now(), changes, unseen),
        "way": partial(way, machine_id=found.machine_id),
        "changes": changes,
        "report": report,
        "tiers": TIERS,
        "hardware": None if found.hardware is None else hardware_words(found.hardware),
    }


def _identity(client: OperatorClient, found: MachineDetail) -> dict[str, Any]:
    try:
        endorsement = client.endorsement(found.machine_id)
    except TrustCertificateUnknown:
        endorsement = None
    roots: Sequence[Link] = ()
    if endorsement is not None:
        # The path comes leaf first; a tree begins at who vouches for the others, known or not.
        for each in endorsement.path:
            roots = (Link(certificate=each, children=roots),)
        if endorsement.unknown_issuer:
            roots = (Link(certificate=None, children=roots),)
    return {
        "endorsement": endorsement,
        "roots": roots,
        "keys": client.machine_keys(found.machine_id),
        "hardware": None if found.hardware is None else hardware_words(found.hardware),
    }


def _evidence(client: OperatorClient, found: MachineDetail) -> dict[str, Any]:
    rows, cursor = client.one_page(
        OperatorAPI.results, request.args.get("after"), found.machine_id, page_size=PAGE_ROWS
    )
    return {"results": table(RESULTS, rows, cursor=cursor, paged=True), "appraised": appraised}


def _configuration(client: OperatorClient, found: MachineDetail) -> dict[str, Any]:
    policy = client.effective_policy(found.machine_id)
    document = json.dumps(policy.document, indent=2, ensure_ascii=False)
    delivery = {"policy": policy, "document": document, "delivery": _delivery(found)}
    return delivery | patches.shown(client, found)


def _delivery(found: MachineDetail) -> Badge:
    if found.configuration_not_delivered is not None:
        return Badge(look=Look.BAD, text="not delivered")
    if found.redeliver_pending:
        return Badge(look=Look.WAITS, text="ordered anew")
    if found.status is Status.ATTESTED:
        return Badge(look=Look.GOOD, text="delivered")
    return Badge(look=Look.PLAIN, text="not to have one now")


def _certificates(client: OperatorClient, found: MachineDetail) -> dict[str, Any]:
    rows, cursor = client.one_page(
        OperatorAPI.machine_certificates, request.args.get("after"), found.machine_id, page_size=PAGE_ROWS
    )
    return {"certificates": table(CERTIFICATES, rows, cursor=cursor, paged=True)}


def _secrets(client: OperatorClient, found: MachineDetail) -> dict[str, Any]:
    answer = client.ask(vault.Vault.of_machine, found.machine_id)
    return {"secrets": table(SECRETS, answer.secrets, by="name"), "secrets_total": answer.total}


def _disk_keys(client: OperatorClient, found: MachineDetail) -> dict[str, Any]:
    holds, keys = client.ask(kms.KMS.holds), client.ask(kms.KMS.keys, found.machine_id)
    mine = {("machine", found.machine_id), ("cluster", found.cluster_id)}
    return {
        "holds": [hold for hold in holds.holds if (hold.scope, hold.subject) in mine],
        "waiting": next((w for w in holds.waiting if w.machine_id == found.machine_id), None),
        "keys": table(DISK_KEYS, keys.keys),
    }


def _votes(client: OperatorClient, found: MachineDetail) -> dict[str, Any]:
    rows, cursor = client.one_page(
        OperatorAPI.machine_approvals, request.args.get("after"), found.machine_id, page_size=PAGE_ROWS
    )
    return {"votes": table(VOTES, rows, cursor=cursor, paged=True)}


def _audit(client: OperatorClient, found: MachineDetail) -> dict[str, Any]:
    rows, cursor = client.one_page(
        OperatorAPI.audit, request.args.get("after"), machine_id=found.machine_id, page_size=PAGE_ROWS
    )
    return {"entries": table(ENTRIES, rows, cursor=cursor, paged=True)}


_PARTS: Final[Mapping[str, Callable[[OperatorClient, MachineDetail], dict[str, Any]]]] = {
    "overview": _overview,
    "identity": _identity,
    "evidence": _evidence,
    "configuration": _configuration,
    "certificates": _certificates,
    "secrets": _secrets,
    "disk-keys": _disk_keys,
    "votes": _votes,
    "audit": _audit,
}
RESULTS: Final = (
    Column(name="at", title="When"),
    Column(name="verdict", title="Verdict"),
    Column(name="boot", title="Boot state"),
    Column(name="policy", title="Policy"),
    Column(name="checks", title="Checks that did not pass"),
)
CERTIFICATES: Final = (
    Column(name="serial", title="Serial"),
    Column(name="state", title="State"),
    Column(name="profile", title="Profile"),
    Column(name="subject", title="Subject"),
    Column(name="tier", title="Key"),
    Column(name="ends", title="Ends"),
)
SECRETS: Final = (
    Column(name="name", title="Name", sort=lambda s: s.name),
    Column(name="version", title="Version", numeric=True, sort=lambda s: s.version),
    Column(name="rule", title="Release rule"),
    Column(name="read", title="Given last", sort=lambda s: s.last_accessed_at),
    Column(name="count", title="Times", numeric=True, sort=lambda s: s.access_count),
    Column(name="ends", title="Ends", sort=lambda s: s.expires_at),
)
DISK_KEYS: Final = (
    Column(name="id", title="Key"),
    Column(name="created", title="Made"),
    Column(name="retired", title="Retired"),
)
VOTES: Final = (
    Column(name="at", title="When"),
    Column(name="who", title="Who"),
    Column(name="what", title="For what"),
    Column(name="state", title="State"),
    Column(name="ends", title="Ends"),
    Column(name="reason", title="Reason"),
)
ENTRIES: Final = (
    Column(name="id", title="Entry"),
    Column(name="at", title="When"),
    Column(name="who", title="Who"),
    Column(name="action", title="Action"),
    Column(name="state", title="Status"),
    Column(name="detail", title="Detail"),
)
