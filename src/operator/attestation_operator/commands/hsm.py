"""`attestation hsm …`: CA keys that live in hardware of clusters, as the service's log has them."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import islice
from typing import Any

import click

from attestation_cli.plugin import Column, Session, checked, listing, moment_cell, printing, time_cell
from attestation_operator.commands.hsm_convert import convert_file
from attestation_operator.commands.hsm_wrap import sign_bundle_too, verify, wrap

LIMIT = click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=50,
    show_default=True,
    help="Show at most so many; 0 shows all.",
)
REASONS = ("unspecified", "keyCompromise", "affiliationChanged", "superseded", "cessationOfOperation",
           "privilegeWithdrawn")  # fmt: skip


@click.group("hsm")
def group() -> None:
    """CA keys that live in hardware of Kubernetes clusters: what they issued, revocation, and handing one over.

    \b
    Examples:
      attestation hsm list
      attestation hsm certificates 5f0c5b7a9d1e4c62
      attestation hsm revoke 5f0c5b7a9d1e4c62 SERIAL --reason keyCompromise
      attestation hsm wrap --help    # how a CA key is handed over
    """


@group.command("list")
@LIMIT
@listing
def list_(session: Session, limit: int) -> None:
    """List the CA keys, newest first."""
    now = datetime.now(UTC)
    with session.client() as client:
        session.emit_list(
            islice(client.hsm_issuers(), limit or None),
            {
                Column("ID"): lambda one: one.issuer_id,
                Column("ISSUER", shrink_to=20): _issuer,
                Column("SUBJECT", shrink_to=20): lambda one: one.subject,
                Column("ORIGIN", drop=2): lambda one: one.key_origin,
                Column("UNTIL", drop=1): lambda one: f"{one.not_after:%Y-%m-%d}",
                Column("LIST UNTIL"): lambda one: moment_cell(one.crl_next_update, now),
                Column("OCSP UNTIL", drop=3): lambda one: moment_cell(one.ocsp_until, now),
                Column("FOLLOWED", drop=4): lambda one: time_cell(one.superseded_at, now),
                Column("CLUSTER", drop=5): lambda one: one.cluster_id,
                Column("TOKEN", wide=True): lambda one: f"{one.module}/{one.token_label}",
                Column("UID", wide=True): lambda one: one.uid,
                Column("KEY", wide=True): lambda one: one.spki_sha256,
            },
            "No CA keys in hardware.",
        )


@group.command("certificates")
@click.argument("issuer_id", metavar="ISSUER-ID")
@click.option(
    "--state",
    type=click.Choice(("reserved", "issued", "revoked", "void")),
    help="Only in this state.",
)
@LIMIT
@listing
def certificates(session: Session, issuer_id: str, state: str | None, limit: int) -> None:
    """List what a CA key issued, newest first."""
    now = datetime.now(UTC)
    with session.client() as client:
        session.emit_list(
            islice(client.hsm_certificates(issuer_id, state=state), limit or None),
            {
                Column("SERIAL", shrink_to=12): lambda one: one.serial,
                Column("STATE"): lambda one: one.state,
                Column("SUBJECT", shrink_to=20): lambda one: one.subject,
                Column("NAMES", shrink_to=20): lambda one: ", ".join(one.names),
                Column("REQUEST", drop=1): _request,
                Column("UNTIL"): lambda one: moment_cell(one.not_after, now),
                Column("ENDED", drop=2): lambda one: time_cell(one.ended_at, now),
                Column("REASON", drop=2): lambda one: one.reason,
                Column("REQUESTER", wide=True): lambda one: one.requester,
                Column("NOTE", wide=True): lambda one: one.note,
            },
            "No certificates.",
        )


@group.command("revoke")
@click.argument("issuer_id", metavar="ISSUER-ID")
@click.argument("serial")
@click.option(
    "--reason",
    type=click.Choice(REASONS),
    metavar="WORD",
    default="unspecified",
    show_default=True,
    help="Stands in the revocation list.",
)
@click.option("-n", "--note", help="Why, in words; kept in the audit.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@printing
def revoke(
    session: Session, issuer_id: str, serial: str, reason: str, note: str | None, *, yes: bool
) -> None:
    """Revoke a certificate of a CA key for good.

    OCSP tells it at once; the revocation list follows as soon as the controller of the key has signed it.
    """
    from attestation.api import HSMRevokeRequest

    said = {"issuer_id": issuer_id, "reason": reason, "note": note}
    request = checked(lambda: HSMRevokeRequest.model_validate(said))
    session.confirm(f"Revoke {serial} of the CA key {issuer_id}? It cannot be undone.", yes=yes)
    with session.client() as client:
        found = client.revoke_hsm_certificate(serial, request)
    session.emit_done(
        f"{found.serial}: {found.state}",
        {"serial": found.serial, "state": found.state, "reason": found.reason},
    )


def _issuer(one: Any) -> str:
    return f"{one.namespace}/{one.name}" if one.namespace else str(one.name)


def _request(one: Any) -> str:
    where = f"{one.namespace}/{one.name}" if one.namespace else one.name
    return f"{one.kind} {where}"


group.add_command(verify)
group.add_command(wrap)
group.add_command(sign_bundle_too)
group.add_command(convert_file)
