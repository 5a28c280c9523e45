"""Approvals: what waits for another operator, all that a vote for it binds, and agreeing, objecting, withdrawing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from flask import request

from attestation.api.operations import OperatorAPI
from attestation.client.agreement import agree as agree_to
from attestation.client.agreement import is_known
from attestation.client.comparing import is_this_tpm
from attestation.client.proposal_words import BECOMES, others, words
from attestation.client.text import clean
from attestation.client.words import ASSURANCE, hardware_words
from attestation.endorsements.certificate import parse_certificate
from attestation.errors import (
    ApprovalUnknown,
    MalformedEvidence,
    ProposalDiffers,
    RequestInvalid,
    Unknown,
)
from attestation.machines import Transition
from attestation.machines.dual_control import (
    ALLOW_LIST_IMPORT,
    CONFIGURATION_ACTIVATE,
    OFFLINE_BUNDLE,
    OPERATOR_CERTIFICATE,
    REGISTRATION_TOKEN,
    REPLACE,
    TRUST_CERTIFICATE,
)
from attestation.results import Verdict
from attestation.wire import b64decode
from attestation_web.extensions import kms
from attestation_web.login.current import web
from attestation_web.page import Act, Badge, Field, Page, Values, api, may, render, whoami
from attestation_web.page.badges import Look, badge
from attestation_web.page.names import NOT_SAID

if TYPE_CHECKING:
    from pydantic import BaseModel
    from werkzeug.wrappers import Response

    from attestation.api import ApprovalDetail, EndorsementDetail, MachineDetail, ProposalDetail
    from attestation.client import OperatorClient

SHOWN: Final = 25
MOST_ENTRIES: Final = 200
ADMITTING: Final = frozenset({Transition.APPROVE.value, REPLACE})
"""Acts that admit a machine: whoever agrees has read its fingerprint there."""
MAKES_A_FILE: Final = frozenset({REGISTRATION_TOKEN, OFFLINE_BUNDLE, OPERATOR_CERTIFICATE})
"""Acts whose last vote is answered with what is shown once, or is a file: the command line keeps it."""

WITHHELD: Final = "not shown: read it at the machine itself"

page: Final = Page(__name__, title="Approvals", place=25)


@page.get("")
def show() -> Response:
    """List what waits for votes, newest first."""
    proposals, cursor = api().one_page(OperatorAPI.proposals, request.args.get("after"), page_size=SHOWN)
    return render("approvals/page.html", proposals=proposals, cursor=cursor, me=whoami().name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """One line of the checklist: what was found, how it looks, and more about it."""

    badge: Badge
    what: str
    more: str = ""


@page.get("/<proposal_digest>")
def proposal(proposal_digest: str) -> Response:
    """Show one proposal whole."""
    client = api()
    try:
        found = client.proposal(proposal_digest)
    except ApprovalUnknown:
        return render("approvals/over.html", 404, digest=proposal_digest)
    machine, vouched = _about(client, found)
    voted = _mine(found.approvals)
    open_to_me = may("act") and not voted and not found.overtaken
    return render(
        "approvals/proposal.html",
        proposal=found,
        machine=machine,
        vouched=vouched,
        becomes=[
            (word, found.proposal.get(after), found.proposal.get(before)) for word, after, before in BECOMES
        ],
        members=_members(found, withheld=open_to_me),
        checklist=list(_checklist(found, machine, vouched)),
        document=_document(found),
        mine=voted,
        can_agree=open_to_me and found.action not in MAKES_A_FILE and _is_known(found.action),
        is_known=_is_known(found.action),
        makes_a_file=found.action in MAKES_A_FILE,
        admits=found.action in ADMITTING,
        named=_named(machine),
        version=_version(found),
        link=f"{web().settings.url.rstrip('/')}/approvals/{found.proposal_digest}",
    )


def _version(found: ProposalDetail) -> str | None:
    """Return the page of the configuration that it would activate; None of another act."""
    if found.action != CONFIGURATION_ACTIVATE:
        return None
    number, bound = found.proposal["terms"]["version"], found.proposal
    if found.machine_id is not None:
        return f"/machines/{found.machine_id}/patches/{number}"
    return f"/configurations/{bound['cluster_id']}/{bound['current_role']}/{number}"


def _about(
    client: OperatorClient, found: ProposalDetail
) -> tuple[MachineDetail | None, EndorsementDetail | None]:
    """Return the machine and who vouches for it; None where there is none, or it is gone."""
    machine = _machine(client, found)
    try:
        vouched = machine is not None and machine.ek_certificate
        return machine, client.endorsement(machine.machine_id) if machine and vouched else None
    except Unknown:
        return machine, None


def _is_known(action: str) -> bool:
    return is_known(action) or action in kms.VOTES


def _mine(votes: Sequence[ApprovalDetail]) -> ApprovalDetail | None:
    name = whoami().name
    return next((vote for vote in votes if vote.live and vote.operator_cn == name), None)


def _good(text: str) -> Badge:
    return Badge(look=Look.GOOD, text=text)


def _bad(text: str) -> Badge:
    return Badge(look=Look.BAD, text=text)


def _waits(text: str) -> Badge:
    return Badge(look=Look.WAITS, text=text)


def _unknown(text: str) -> Badge:
    return Badge(look=Look.UNKNOWN, text=text)


def _checklist(
    found: ProposalDetail, machine: MachineDetail | None, vouched: EndorsementDetail | None
) -> Iterator[Checked]:
    """Yield what whoever votes should have looked at, each with what is known of it now."""
    if found.overtaken:
        yield Checked(
            badge=_bad("changed"),
            what="Something changed since the first vote",
            more=", ".join(found.overtaken),
        )
    if found.machine_id is None:
        return
    if machine is None:
        yield Checked(badge=_unknown("unknown"), what="The machine's record is gone")
        return
    yield Checked(
        badge=_good("proven") if machine.ak_activated_at else _bad("not proven"),
        what="Its key lives in its TPM",
        more=f"AK {machine.ak_name[:16]}…" if machine.ak_name else "",
    )
    if vouched is None:
        yield Checked(
            badge=_waits("nobody"), what="A maker vouches for its TPM", more="it came without a certificate"
        )
    elif vouched.ok:
        yield Checked(
            badge=_good(vouched.vendor or "yes"),
            what="A maker vouches for its TPM",
            more=f"revocation {vouched.revocation}",
        )
    else:
        yield Checked(badge=_bad("no"), what="A maker vouches for its TPM", more=vouched.reason)
    yield Checked(
        badge=badge(machine.assurance),
        what="Assurance",
        more=ASSURANCE[machine.assurance],
    )
    if machine.hardware is not None:
        yield Checked(
            badge=_good("vouches") if machine.hardware.vouches else _waits("seen"),
            what="Confidential hardware",
            more=hardware_words(machine.hardware),
        )
    last = machine.last_result
    if last is None:
        yield Checked(badge=_unknown("none yet"), what="Its last quote")
    else:
        yield Checked(
            badge=_good("good") if last.verdict is Verdict.VERIFIED else _bad(last.verdict.value),
            what="Its last quote",
            more=f"under {last.policy or 'no policy'}{f', failed: {last.failed}' if last.failed else ''}",
        )
    if machine.alarm is None:
        yield Checked(badge=_good("none"), what="Alarms about it")
    else:
        yield Checked(badge=_bad("alarm"), what="Alarms about it", more=machine.alarm)
    for each in machine.relatives:
        yield Checked(
            badge=_bad("same chip") if each.same_chip else _waits("perhaps"),
            what=f"The same chip as machine {each.machine_id[:8]}",
            more=f"{each.mark}; it is {each.status or 'never decided about'}",
        )
    one = [
        part["ref"] for part in (found.proposal.get("measured") or {}).get("parts", ()) if not part["agreed"]
    ]
    if one:
        yield Checked(
            badge=_waits("one operator"),
            what="Policies that one person assigned",
            more=f"{', '.join(map(str, one))}: they lower nothing for a role under dual control",
        )
    if found.action in ADMITTING:
        yield Checked(
            badge=_unknown("yours to do"),
            what="You read the EK fingerprint at the machine itself",
            more="you type it when you agree",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """What a digest in the votes stands for: rows with their heads, pairs, or text."""

    heads: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()
    left_out: int = 0
    pairs: Sequence[tuple[str, str]] = ()
    text: str = ""


def _document(found: ProposalDetail) -> Document | None:
    if found.document is None:
        return None
    if found.action == ALLOW_LIST_IMPORT:
        heads = ("ek_fingerprint", "role", "hostname", "assigned_ip", "cluster_id", "note")
        entries = json.loads(found.document)
        return Document(
            heads=[head.replace("_", " ") for head in heads],
            rows=[[str(e.get(head) or "") for head in heads] for e in entries[:MOST_ENTRIES]],
            left_out=max(0, len(entries) - MOST_ENTRIES),
        )
    if found.action == TRUST_CERTIFICATE:
        try:
            held = parse_certificate(b64decode(found.document, "document"))
        except MalformedEvidence:
            return Document(text=found.document)
        return Document(
            pairs=[
                ("Subject", held.subject),
                ("Issuer", held.issuer),
                ("Valid", f"{held.not_before:%Y-%m-%d} to {held.not_after:%Y-%m-%d}"),
                ("SHA-256", held.sha256),
            ]
        )
    return Document(text=found.document)


# Acts


@page.act("/<proposal_digest>/agree", fresh=True)
def agree(proposal_digest: str) -> Act:
    """Vote for exactly this proposal."""
    found = api().proposal(proposal_digest)
    if found.overtaken:
        raise ProposalDiffers(f"this proposal is void, changed since: {', '.join(found.overtaken)}")
    if found.action in MAKES_A_FILE:
        raise RequestInvalid(
            "the last vote for this is answered with a file: agree with "
            f"`attestation approval approve {found.proposal_digest} --out FILE`"
        )
    admits, title = found.action in ADMITTING, _title(found)
    left = found.approvals_required - found.approvals_received - 1
    return Act(
        title=f"Agree: {title}",
        button="Agree to exactly this",
        will=[
            "Your vote counts for exactly what stands here. If anything of it changes first, nothing is done.",
            "You are the last one that is needed: it is done at once."
            if left <= 0
            else f"{left} more must agree after you.",
        ],
        facts=[
            ("Proposed by", ", ".join(found.voters)),
            *_becomes(found),
            *_members(found, withheld=True),
            ("Digest that your vote signs", found.proposal_digest),
        ],
        fields=[
            *(
                [
                    Field(
                        name="fingerprint",
                        label="EK fingerprint, as the machine itself shows it",
                        needed=True,
                        help="Its first 16 digits or more, from the machine's own console or its sticker "
                        "(attestation-agent identify). It is not shown here, so that it is not copied from here.",
                    )
                ]
                if admits
                else []
            ),
            Field(name="reason", label="Reason"),
        ],
        do=lambda client, filled: _agree(client, found, filled),
        did=lambda _: f"Done, enough people agree: {title}.",
        back="/approvals",
    )


def _agree(client: OperatorClient, found: ProposalDetail, filled: Values) -> BaseModel | None:
    if found.action in ADMITTING and not is_this_tpm(
        str(found.proposal["ek_fingerprint"]), filled["fingerprint"]
    ):
        raise RequestInvalid("this proposal is about another TPM than the one whose fingerprint you read")
    return agree_to(client, found, filled.get("reason"), kms.VOTES)


@page.act("/<proposal_digest>/object")
def object_(proposal_digest: str) -> Act:
    """End every vote for it."""
    found = api().proposal(proposal_digest)
    title = _title(found)
    return Act(
        title=f"Object: {title}",
        button="Object",
        will=[
            f"Every vote for it ends: {', '.join(found.voters) or 'none counts now'}.",
            "Nothing is forbidden by it. Whoever still wants it begins anew.",
        ],
        facts=[("Digest", found.proposal_digest)],
        fields=[Field(name="reason", label="Reason", needed=True, help="It stands in the audit log.")],
        dangerous=True,
        do=lambda client, filled: client.object_to_proposal(proposal_digest, filled["reason"]),
        did=lambda answer: f"Votes that ended: {answer.voided}. {title} does not wait any more.",
        back="/approvals",
    )


@page.act("/<proposal_digest>/withdraw")
def withdraw(proposal_digest: str) -> Act:
    """Take one's own vote back."""
    found = api().proposal(proposal_digest)
    vote = _mine(found.approvals)
    if vote is None:
        raise ApprovalUnknown("no vote of yours for this lives")
    title = _title(found)
    return Act(
        title=f"Withdraw your vote: {title}",
        button="Withdraw",
        will=["Your vote does not count any more. Votes of others stay.", "You may vote for it again."],
        facts=[("Digest", found.proposal_digest)],
        do=lambda client, _: client.withdraw_approval(vote.id),
        did=lambda _: f"Your vote is withdrawn: {title}.",
        back="/approvals",
    )


def _members(found: ProposalDetail, *, withheld: bool) -> list[tuple[str, str]]:
    """Return all that votes bind beside what a machine becomes.

    *withheld*: but not the EK fingerprint where it is to be read at the machine, so that it is not copied from here.
    """
    ek = found.proposal.get("ek_fingerprint") if withheld and found.action in ADMITTING else None
    told = [(label[:1].upper() + label[1:], words(value)) for _, label, value in others(found.proposal)]
    return told if ek is None else [(label, text.replace(ek, WITHHELD)) for label, text in told]


def _becomes(found: ProposalDetail) -> Iterator[tuple[str, str]]:
    for word, after, before in BECOMES:
        wanted, has = found.proposal.get(after) or "none", found.proposal.get(before) or "none"
        if wanted != "none" or has != "none":
            yield word.capitalize(), wanted if wanted == has else f"{wanted} (now {has})"


def _title(found: ProposalDetail) -> str:
    words = _named(_machine(api(), found))
    return f"{clean(found.action).replace('_', ' ')}, {clean(found.subject)}{f' ({words})' if words else ''}"


def _machine(client: OperatorClient, found: ProposalDetail) -> MachineDetail | None:
    """Return the machine that it is about; None where it is about none, or that is gone."""
    if found.machine_id is None:
        return None
    try:
        return client.machine(found.machine_id)
    except Unknown:
        return None


def _named(machine: MachineDetail | None) -> str:
    """Return by what people know *machine*, for beside its id: what it says of itself is told as that."""
    if machine is None:
        return ""
    if machine.hostname:
        return f"host name {clean(machine.hostname)}"
    serial = clean(machine.hw_serial).strip()
    return f"it says its serial number is {serial}" if serial not in ("", NOT_SAID) else ""
