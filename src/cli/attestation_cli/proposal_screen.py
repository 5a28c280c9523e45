"""A proposal on the screen: everything that a vote for it signs, what is known of the machine, and who said what."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from attestation.client.proposal_words import BECOMES, others, words
from attestation.client.text import clean
from attestation.errors import AttestationError, MachineUnknown, TrustCertificateUnknown
from attestation_cli.render import Cell, Column, cell, exact, moment, time_cell
from attestation_cli.screen import DIGEST_DIGITS
from attestation_cli.session import Session

if TYPE_CHECKING:
    from attestation.api import MachineDetail, ProposalDetail
    from attestation.client import OperatorClient

Row = tuple[str, Cell]

PLAIN_NAME: Final = re.compile(r"[\w.@ +-]+")

WITHHELD: Final = "not shown: you are asked for it below"


def print_proposal(
    session: Session, client: OperatorClient, proposal: ProposalDetail, *, withheld: str | None = None
) -> None:
    """Print *proposal* whole: nothing that a vote for it binds is left out, but the value that is to be *withheld*."""
    rows = [*_votes(proposal), *_wanted(proposal)]
    if proposal.machine_id is not None:
        rows += _machine(client, proposal.machine_id)
    rows += [(clean(name), cell(words(value))) for _, name, value in others(proposal.proposal)]
    rows.append(("proposal", cell(proposal.proposal_digest)))
    if withheld:
        rows = [
            (
                name,
                Cell(
                    value.text.replace(withheld, WITHHELD),
                    value.colour,
                    exact(value).replace(withheld, WITHHELD),
                ),
            )
            for name, value in rows
        ]
    session.emit_fields(rows)
    _document(session, proposal)


def _votes(proposal: ProposalDetail) -> Iterator[Row]:
    now = datetime.now(UTC)
    yield "act", cell(proposal.action)
    yield "about", cell(proposal.subject)
    if proposal.overtaken:
        yield "approvals", Cell(f"void, changed since: {', '.join(proposal.overtaken)}", "red")
    else:
        yield "approvals", cell(f"{proposal.approvals_received} of {proposal.approvals_required}")
    for vote in proposal.approvals:
        # In quotes, and apart from what the votes bind: nothing vouches for what somebody says.
        why = "no reason given" if vote.reason is None else json.dumps(vote.reason, ensure_ascii=False)
        # A name too may be chosen by who bears it, and must not go on as a sentence.
        name = vote.operator_cn
        who = name if PLAIN_NAME.fullmatch(name) else json.dumps(name, ensure_ascii=False)
        yield "voted", cell(f"{who}, {moment(vote.created_at, now)}: {why}")
    yield "expires", time_cell(proposal.expires_at, now)


def _wanted(proposal: ProposalDetail) -> Iterator[Row]:
    members = proposal.proposal
    for word, after, before in BECOMES:
        wanted, has = members.get(after), members.get(before)
        if wanted is not None or has is not None:
            now = f" (now {has or 'none'})" if proposal.machine_id is not None and wanted != has else ""
            yield word, cell(f"{wanted or 'none'}{now}")
    if "accepts_ek" in members.get("terms", {}):
        yield "admits", Cell("this EK by name, even where no vendor vouches for it", "yellow")


def _machine(client: OperatorClient, machine_id: str) -> Iterator[Row]:
    """Yield what is known of the machine; the votes bind a digest of it, so it is looked at beside them."""
    from attestation.client.words import ASSURANCE, NEVER_JUDGED, hardware_words

    try:
        machine = client.machine(machine_id)
    except AttestationError as e:
        if e.code != MachineUnknown.code:
            raise
        yield "machine", Cell("its record is gone", "red")
        return
    tpm = machine.ek_certificate
    yield "machine", cell(f"{machine.machine_id}, {machine.status}")
    yield "vouched for", cell(f"{machine.assurance}: {ASSURANCE[machine.assurance]}")
    yield "TPM", cell(f"{tpm.manufacturer} {tpm.model} {tpm.firmware}" if tpm else "without a certificate")
    yield from _chain(client, machine)
    if machine.hardware is not None:
        yield "processor", cell(hardware_words(machine.hardware))
    yield "hardware", cell(f"{machine.hw_product}, serial {machine.hw_serial}")
    yield "UUID, MAC", cell(f"{machine.hw_uuid}, {machine.hw_mac}")
    yield "came from", cell(machine.registered_from or "unknown")
    last = machine.last_result
    yield (
        "last result",
        cell(
            NEVER_JUDGED
            if last is None
            else f"{last.verdict} under {last.policy or 'no policy'}{f', failed: {last.failed}' if last.failed else ''}"
        ),
    )
    for each in machine.relatives:
        what = "same TPM as" if each.same_chip else "hint at"
        yield what, cell(f"{each.machine_id} ({each.status or 'never decided about'}): {each.mark}")
    if machine.alarm is not None:
        yield "ALARM", Cell(clean(machine.alarm), "red")


def _chain(client: OperatorClient, machine: MachineDetail) -> Iterator[Row]:
    if machine.ek_certificate is None:
        return
    try:
        found = client.endorsement(machine.machine_id)
    except AttestationError as e:
        if e.code != TrustCertificateUnknown.code:
            raise
        return
    if not found.ok:
        yield (
            "certificates",
            Cell(f"lead to no CA that is trusted here: {clean(found.reason or 'no reason')}", "red"),
        )
    for each in found.path:
        fault = "" if each.ok else f": {each.reason}"
        yield (
            "certificate",
            cell(f"{each.role}: {each.subject}, SHA-256 {each.sha256[:DIGEST_DIGITS]}…{fault}"),
        )
    if found.ok:
        yield "anchor", cell(f"{found.vendor}, revocation {found.revocation}")


def _document(session: Session, proposal: ProposalDetail) -> None:
    """Print what the digests in the terms stand for."""
    if proposal.document is None:
        return
    session.emit("")
    if proposal.action == "allow_list_import":
        entries = json.loads(proposal.document)
        columns = ("ek_fingerprint", "role", "hostname", "assigned_ip", "cluster_id", "note")
        session.emit_table(
            [Column(name.upper().replace("_", " ")) for name in columns],
            [[cell(entry.get(name)) for name in columns] for entry in entries],
            "",
        )
        return
    if proposal.action == "trust_certificate":
        from attestation.endorsements.certificate import parse_certificate
        from attestation.wire import b64decode

        held = parse_certificate(b64decode(proposal.document, "document"))
        session.emit_fields(
            [
                ("subject", cell(held.subject)),
                ("issuer", cell(held.issuer)),
                ("valid", cell(f"{held.not_before:%Y-%m-%d} to {held.not_after:%Y-%m-%d}")),
                ("SHA-256", cell(held.sha256)),
            ]
        )
