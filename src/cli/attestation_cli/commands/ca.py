"""`attestation ca …`: the keys of the CA, what they have signed, and how one takes the place of another."""

# Algorithms for: ca-key
from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import click

from attestation_cli.ca_screen import (
    FILE,
    YES,
    emit_issuers,
    find_issuer,
    issuer_fields,
    name_in,
    next_steps,
    write_file,
)
from attestation_cli.commands.ca_backup_check import backup_check
from attestation_cli.commands.ca_certificates import (
    certificate_,
    certificates_,
    refuse_key,
    refused_keys,
    revoke,
)
from attestation_cli.commands.ca_import import import_, import_key, wrap
from attestation_cli.commands.ca_parent import csr, import_certificate
from attestation_cli.options import new_proposal_option, printing
from attestation_cli.render import Column, cell, moment_cell
from attestation_cli.session import Session, checked

PURPOSES = ("machine", "operator")
ALGORITHMS = ("ecdsa-p384", "rsa-4096", "ml-dsa-87")
STEPS = {
    "prepare": "make the next key and publish it",
    "activate": "let the next key sign, and the old one its lists only,",
    "rollback": "give the next key up, or let active and old key change places",
    "retire": "end the old key",
}
PURPOSE = click.option(
    "--purpose",
    type=click.Choice(PURPOSES),
    default="machine",
    show_default=True,
    help="Whose CA: of machines or of operators.",
)


@click.group("ca")
def group() -> None:
    """The CA of the service: its keys, what they have signed, and how one key follows another.

    \b
    Examples:
      attestation ca show
      attestation ca certificates --machine cp-1
      attestation ca rotate prepare --reason "yearly drill"
      attestation ca backup-check /media/backup/ca
    """


@group.command()
@click.argument("issuer", required=False)
@printing
def show(session: Session, issuer: str | None) -> None:
    """Show every key of the CAs, or everything about ISSUER (the beginning of its id).

    next is published and signs nothing yet, active signs, retiring signs revocation lists and OCSP answers only,
    retired nothing. Where a key is stands in its URI, which carries no secret.

    \b
    Examples:
      attestation ca show
      attestation ca show 3f6f0e1b
      attestation ca show -o wide
    """
    with session.client() as client:
        detail = client.ca()
    now = datetime.now(UTC)
    if issuer is not None:
        found = find_issuer(detail, issuer)
        if session.json:
            session.emit_json(found)
        else:
            session.emit_fields(issuer_fields(found, now))
        return
    if session.json:
        session.emit_json(iter(detail.issuers))
        return
    emit_issuers(session, detail.issuers, "No CA key was ever made.")
    for line in next_steps(detail, now):
        session.note(line)


@group.command()
@click.option("--issuer", metavar="ID", help="Of this CA key; default: the active one.")
@PURPOSE
@FILE
@printing
def crl(session: Session, issuer: str | None, purpose: str, file: Path | None) -> None:
    """Show the revocation list in force, or write it (DER).

    Anybody may fetch it; nobody is logged in for this. Its signature is not verified here: relying parties do.

    \b
    Examples:
      attestation ca crl
      attestation ca crl -f ca.crl && openssl crl -inform DER -in ca.crl -text
    """
    issuer_id = None
    if issuer is not None:
        with session.client() as client:
            issuer_id = find_issuer(client.ca(), issuer).issuer_id
    with session.public() as anybody:
        data = anybody.crl(issuer_id, purpose=purpose)
    if file is not None:
        write_file(session, file, data, "the revocation list")
        return
    from cryptography import x509

    found = x509.load_der_x509_crl(data)
    now = datetime.now(UTC)
    number = found.extensions.get_extension_for_class(x509.CRLNumber).value.crl_number
    if session.json:
        session.emit_json(
            {
                "issuer": found.issuer.rfc4514_string(),
                "number": number,
                "this_update": found.last_update_utc.isoformat(),
                "next_update": found.next_update_utc.isoformat() if found.next_update_utc else None,
                "revoked": [f"{entry.serial_number:040x}" for entry in found],
            }
        )
        return
    session.emit_fields(
        [
            ("issuer", cell(found.issuer.rfc4514_string())),
            ("number", cell(number)),
            ("made", moment_cell(found.last_update_utc, now)),
            ("next", moment_cell(found.next_update_utc, now)),
            ("certificates", cell(len(found))),
        ]
    )


@group.command()
@PURPOSE
@FILE
@printing
def bundle(session: Session, purpose: str, file: Path | None) -> None:
    """Show the CA certificates to be trusted now, or write them (PEM): what a relying party is given.

    The keys to come, the active ones, those that retire, and what certifies one by another. Compare the SHA-256
    of the first one you install with what `attestation ca show -o wide` tells an operator.

    \b
    Examples:
      attestation ca bundle -f /etc/ssl/itl-machines.pem
    """
    with session.public() as anybody:
        data = anybody.ca_bundle(purpose=purpose)
    if file is not None:
        write_file(session, file, data, "the bundle")
        return
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding

    from attestation_cli.ca_backup import common_name, fingerprint

    found = x509.load_pem_x509_certificates(data)
    if session.json:
        session.emit_json(
            {
                "subject": one.subject.rfc4514_string(),
                "issuer": one.issuer.rfc4514_string(),
                "sha256": fingerprint(one.public_bytes(Encoding.DER)),
                "not_after": one.not_valid_after_utc.isoformat(),
            }
            for one in found
        )
        return
    session.emit_rows(
        found,
        {
            Column("NAME", shrink_to=16): lambda one: common_name(one),
            Column("CERTIFIED BY", shrink_to=12): lambda one: (
                "itself" if one.subject == one.issuer else name_in(one.issuer.rfc4514_string())
            ),
            Column("UNTIL"): lambda one: f"{one.not_valid_after_utc:%Y-%m-%d}",
            Column("SHA-256", shrink_to=17): lambda one: fingerprint(one.public_bytes(Encoding.DER)),
        },
        "Nothing.",
    )


@group.command()
@click.argument("step", type=click.Choice(["prepare", "activate", "rollback", "retire"]))
@PURPOSE
@click.option("--algorithm", type=click.Choice(ALGORITHMS), help="Which key, where the CA has two (hybrid).")
@click.option("-r", "--reason", required=True, help="Why; kept in the audit.")
@click.option("--force", is_flag=True, help="Do not wait until relying parties have followed.")
@YES
@new_proposal_option
@printing
def rotate(
    session: Session,
    step: str,
    purpose: str,
    algorithm: str | None,
    reason: str,
    *,
    force: bool,
    yes: bool,
) -> None:
    """Take one step of a rotation: prepare, activate, retire; rollback goes back.

    prepare makes the next key and publishes it; wait until every relying party has the new bundle. activate lets it
    sign; the old key still signs its revocation lists. retire ends the old key, after the last certificate of it.
    rollback gives a next key up; after activate it lets the two keys change places, as often as it is called.
    Where dual control asks for several people, this is your vote.

    \b
    Examples:
      attestation ca rotate prepare -r "yearly rotation"
      attestation ca rotate activate -r "yearly rotation"
      attestation ca rotate rollback -r "a relying party lags behind"
      attestation ca rotate retire -r "yearly rotation"
    """
    from attestation.api import PendingApproval, RotationRequest

    request = checked(
        lambda: RotationRequest.model_validate(
            {"step": step, "purpose": purpose, "algorithm": algorithm, "reason": reason, "force": force}
        )
    )
    forced = " without waiting for relying parties" if force else ""
    session.confirm(f"{purpose} CA: {STEPS[step]}{forced}?", yes=yes)
    with session.client() as client:
        answer = client.rotate_ca(request)
    if isinstance(answer, PendingApproval):
        session.emit_pending(answer, f"{step} of the {purpose} CA")
        return
    if session.json:
        session.emit_json(iter(answer.issuers))
        return
    now = datetime.now(UTC)
    emit_issuers(session, (i for i in answer.issuers if i.purpose == purpose), "No CA key.")
    for line in next_steps(answer, now):
        session.note(line)


for command in (
    certificates_,
    certificate_,
    revoke,
    refuse_key,
    refused_keys,
    backup_check,
    csr,
    import_certificate,
    import_key,
    wrap,
    import_,
):
    group.add_command(command)
