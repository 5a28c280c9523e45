"""The inbox: machines that wait for a decision, what is known of each side by side, and the two decisions."""

# Algorithms for: digest
from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from flask import request

from attestation.api import ApproveRequest, MachineDetail, PendingApproval
from attestation.api.operations import OperatorAPI
from attestation.client.comparing import is_this_tpm
from attestation.client.errors import OutcomeUnknown, ServiceUnreachable
from attestation.client.text import clean
from attestation.client.words import ASSURANCE, TEE_WORDS, hardware_words
from attestation.errors import (
    AnswerNotKept,
    AttestationError,
    AuthenticationTooOld,
    MachineChanged,
    MachineUnknown,
    RequestInvalid,
    TrustCertificateUnknown,
)
from attestation.machines import Role, Status
from attestation_web.page import Act, Field, Page, Values, api, one_of_several, render
from attestation_web.page.several import FIELD, all_of, chosen

if TYPE_CHECKING:
    from werkzeug.wrappers import Response

    from attestation.api import EndorsementDetail
    from attestation.client import OperatorClient

SHOWN: Final = 12
ROLES: Final = (("", "Choose a role"), *((role.value, role.value) for role in Role))
VOTES: Final = (
    "Where two people must agree for the role, this is your vote: nothing happens until another operator agrees. "
    "You get a link for them."
)

page: Final = Page(__name__, title="Inbox", place=20)


@page.get("")
def show() -> Response:
    """Show what waits: votes with their time, and a page of machines."""
    client, q = api(), request.args.get("q", "").strip()
    machines, cursor = client.one_page(
        OperatorAPI.machines,
        request.args.get("after"),
        status=Status.PENDING_APPROVAL,
        q=q or None,
        page_size=SHOWN,
    )
    proposals, more = client.one_page(OperatorAPI.proposals, None, page_size=SHOWN)
    return render(
        "inbox/page.html",
        machines=machines,
        vouched={m.machine_id: _endorsement(client, m) for m in machines},
        proposals=proposals,
        more_proposals=more is not None,
        cursor=cursor,
        q=q,
        assurance=ASSURANCE,
        hardware_words=hardware_words,
    )


def _endorsement(client: OperatorClient, machine: MachineDetail) -> EndorsementDetail | None:
    """Return who vouches for its TPM; None where it came without a certificate, or went while others are shown."""
    if machine.ek_certificate is None:
        return None
    try:
        return client.endorsement(machine.machine_id)
    except (MachineUnknown, TrustCertificateUnknown):
        return None


# Acts


@page.act("/<machine_id>/approve", fresh=True)
def approve(machine_id: str) -> Act:
    """Admit a machine."""
    machine = api().machine(machine_id)
    return Act(
        title=f"Approve {_called(machine)}",
        button="Approve",
        will=[
            "The machine is admitted in the role that you choose.",
            "At its next good attestation it gets the configuration of that role, with its secrets.",
            VOTES,
            *_warnings(machine),
        ],
        facts=_facts(machine),
        fields=[
            Field(
                name="role",
                label="Role",
                kind="choice",
                choices=ROLES,
                needed=True,
                help=f"It asks to be {machine.desired_role}. That is a wish and proves nothing."
                if machine.desired_role
                else "",
            ),
            Field(name="hostname", label="Host name", help="Of this machine alone in its cluster."),
            Field(name="assigned_ip", label="Address", help="With its prefix: 10.0.0.21/24."),
            Field(
                name="cluster_id",
                label="Cluster",
                value="default",
                needed=True,
                help=f"It asks for {machine.desired_cluster_id}. That is a wish too."
                if machine.desired_cluster_id
                else "",
            ),
            Field(
                name="fingerprint",
                label="EK fingerprint, read at the machine",
                help="Its first 16 digits or more, as the machine's own console shows them "
                "(attestation-agent identify). If it is another one, nothing is done.",
            ),
            Field(
                name="accept_ek",
                label="Admit this EK by name, whoever vouches for it: it goes on the allow-list",
                kind="check",
            ),
            *_rival(machine),
            Field(name="reason", label="Reason"),
            Field(name="seen", label="What was shown", kind="hidden", value=_seen(machine)),
        ],
        do=lambda client, filled: _admit(client, machine, filled),
        did=lambda answer: f"{_called(answer)} is approved as {answer.role}.",
        back="/inbox",
    )


@page.act("/<machine_id>/reject")
def reject(machine_id: str) -> Act:
    """Refuse a machine."""
    machine = api().machine(machine_id)
    return Act(
        title=f"Reject {_called(machine)}",
        button="Reject",
        will=[
            "The machine is refused and gets nothing.",
            "Votes about it end.",
            "Its record stays until somebody deletes it; then it can ask again.",
        ],
        facts=_facts(machine),
        fields=[Field(name="reason", label="Reason", needed=True, help="It stands in the audit log.")],
        dangerous=True,
        do=lambda client, filled: client.reject(machine_id, filled["reason"]),
        did=lambda answer: f"{_called(answer)} is rejected.",
        back="/inbox",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of several: names of those that were admitted, that wait for others, and why others were refused."""

    admitted: Sequence[str]
    waiting: Sequence[str]
    refused: Mapping[str, str]

    def __str__(self) -> str:
        parts = []
        if self.admitted:
            parts.append(f"Approved: {', '.join(self.admitted)}.")
        if self.waiting:
            parts.append(f"Waiting for another operator: {', '.join(self.waiting)}; see Approvals.")
        parts += [f"Not approved: {name}: {why}." for name, why in self.refused.items()]
        return " ".join(parts)


@page.act("/approve-several", fresh=True)
def approve_several() -> Act:
    """Admit several machines in one role."""
    client = api()
    machines = all_of(client, chosen("approve"))
    return Act(
        title=f"Approve {len(machines)} machines",
        button=f"Approve {len(machines)} machines",
        will=[
            "Each of these machines is admitted in the role that you choose, one after the other.",
            "At its next good attestation each gets the configuration of that role, with its secrets.",
            VOTES,
            *(f"{_called(m)}: {warning}" for m in machines for warning in _warnings(m)),
        ],
        facts=[(f"EK fingerprint of {_called(m)}", m.ek_fingerprint) for m in machines],
        fields=[
            Field(name="role", label="Role of all of them", kind="choice", choices=ROLES, needed=True),
            Field(name="cluster_id", label="Cluster", value="default", needed=True),
            Field(name="reason", label="Reason"),
            Field(
                name=FIELD,
                label="Machines",
                kind="hidden",
                value=" ".join(f"{m.machine_id}:{_seen(m)}" for m in machines),
            ),
        ],
        do=lambda acting, filled: _admit_all(acting, {m.machine_id: m for m in machines}, filled),
        did=str,
        back="/inbox",
    )


def _admit(client: OperatorClient, machine: MachineDetail, filled: Values) -> MachineDetail | PendingApproval:
    read = filled.get("fingerprint")
    if read is not None and not is_this_tpm(machine.ek_fingerprint, read):
        raise RequestInvalid("this is another TPM than the one whose fingerprint you read")
    asked = client.beside_others() if "new_proposal" in filled else client
    return _approved(asked, machine, filled, seen=filled["seen"])


def _admit_all(client: OperatorClient, machines: Mapping[str, MachineDetail], filled: Values) -> Outcome:
    """Approve each by itself: one that is refused keeps no other back.

    Raises:
        AttestationError: All were refused; why the last one was.
        OutcomeUnknown: Of one nobody knows: the form is sent again, under the same keys, also for those before it.
    """
    admitted: list[str] = []
    waiting: list[str] = []
    refused: dict[str, str] = {}
    last: AttestationError | None = None
    away = False
    for each in filled[FIELD].split():
        machine_id, _, seen = each.partition(":")
        machine = machines[machine_id]
        if away:
            refused[_called(machine)] = "not asked for after that"
            continue
        try:
            name = _called(machine)
            answer = one_of_several(name, partial(_approved, client, machine, filled, seen=seen))
        except (AuthenticationTooOld, OutcomeUnknown):
            raise
        except AnswerNotKept:
            admitted.append(_called(machine))
            continue
        except AttestationError as e:
            refused[_called(machine)], last = clean(str(e)), e
            away = isinstance(e, ServiceUnreachable)
            continue
        (waiting if isinstance(answer, PendingApproval) else admitted).append(_called(machine))
    if last is not None and not admitted and not waiting:
        raise last
    return Outcome(admitted=admitted, waiting=waiting, refused=refused)


def _approved(
    client: OperatorClient, machine: MachineDetail, filled: Values, *, seen: str
) -> MachineDetail | PendingApproval:
    """Approve *machine* if it is still what was *seen*.

    Raises:
        MachineChanged: It is not; nothing was done.
    """
    if seen != _seen(machine):
        raise MachineChanged("it has shown something new since you saw it: look at it as it is now")
    wanted = {name: filled.get(name) for name in ("role", "cluster_id", "hostname", "assigned_ip", "reason")}
    return client.approve(
        machine.machine_id,
        ApproveRequest.model_validate(
            {**wanted, "accept_ek": "accept_ek" in filled, "expected_version": machine.version}
        ),
    )


def _seen(machine: MachineDetail) -> str:
    """Return what tells whether a machine is still as it was shown: a digest of what decides, not of times."""
    last = machine.last_result
    shown = (
        machine.version,
        machine.assurance,
        machine.alarm,
        None if last is None else (last.verdict, last.policy, last.failed),
        machine.ak_name,
        machine.event_log_sha256,
        [(each.machine_id, each.mark) for each in machine.relatives],
    )
    return hashlib.sha256(repr(shown).encode()).hexdigest()


def _called(machine: MachineDetail) -> str:
    """Return what to call it: its name, else its id, which it did not choose itself."""
    return clean(machine.hostname) if machine.hostname else f"machine {machine.machine_id[:8]}"


def _warnings(machine: MachineDetail) -> list[str]:
    """Return what should keep somebody from pressing the button."""
    found = []
    if machine.alarm is not None:
        found.append(f"ALARM: {clean(machine.alarm)}")
    found += [
        f"It {'is' if each.same_chip else 'may be'} the same chip as machine {each.machine_id[:8]}"
        f" ({each.status or 'never decided about'})."
        for each in machine.relatives
    ]
    found += [
        f"{clean(vote.operator_cn)} already asks for this: {clean(vote.subject)}. To agree, go to Approvals."
        for vote in machine.approvals
    ]
    return found


def _rival(machine: MachineDetail) -> list[Field]:
    if not machine.approvals:
        return []
    return [
        Field(
            name="new_proposal",
            label="Ask for this although another proposal about it waits",
            kind="check",
        )
    ]


def _facts(machine: MachineDetail) -> list[tuple[str, str]]:
    tpm = machine.ek_certificate
    last = machine.last_result
    failed = f", failed: {last.failed}" if last is not None and last.failed else ""
    return [
        ("EK fingerprint", machine.ek_fingerprint),
        ("Vouched for", f"{machine.assurance}: {ASSURANCE[machine.assurance]}"),
        (
            TEE_WORDS.get(machine.ek_source, "TPM"),
            f"{tpm.manufacturer} {tpm.model} {tpm.firmware}" if tpm else "without a certificate",
        ),
        ("Says it is", f"{machine.hw_product or 'unknown'}, serial {machine.hw_serial or 'unknown'}"),
        *([("On a console", ", ".join(machine.console_codes))] if machine.console_codes else []),
        ("Came from", machine.registered_from or "unknown"),
        (
            "Last result",
            "none yet" if last is None else f"{last.verdict} under {last.policy or 'no policy'}{failed}",
        ),
    ]
