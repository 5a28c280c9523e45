"""`attestation ca certificates` and its like: what the CA has signed, and the end of it."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import click

from attestation.errors import CertificateUnknown, RequestInvalid
from attestation.pki.profiles import ProfileName
from attestation_cli.ca_screen import (
    FILE,
    LIMIT,
    NOTE,
    REASON,
    STATE,
    YES,
    certificate_fields,
    emit_certificates,
    emit_pem,
    owner_of,
    unseen,
)
from attestation_cli.complete import complete_machine
from attestation_cli.options import listing, new_proposal_option, printing
from attestation_cli.render import Column, moment_cell
from attestation_cli.session import Ambiguous, Session, checked

if TYPE_CHECKING:
    from attestation.api import CertificateDetail
    from attestation.client import OperatorClient

SERIAL_DIGITS = 40
SHORTEST_SERIAL = 8
MOST_LOOKED_AT = 2000
"""So many certificates, the newest first, are searched for the beginning of a serial number."""


@click.command("certificates")
@click.option("--machine", metavar="ID", help="Only of this machine.", shell_complete=complete_machine)
@STATE
@click.option(
    "--profile",
    metavar="PROFILE",
    type=click.Choice([p.value for p in ProfileName]),
    help=f"Only of this profile: {', '.join(p.value for p in ProfileName)}.",
)
@click.option("--ending", is_flag=True, help="Those that are not over yet, the first to end first.")
@LIMIT
@listing
def certificates_(
    session: Session, machine: str | None, state: str | None, profile: str | None, limit: int, *, ending: bool
) -> None:
    """List what the CA has signed, newest first.

    issued is good, held is suspended (its machine is locked), revoked ended for good; reserved is being signed, void
    reached nobody.

    \b
    Examples:
      attestation ca certificates --state held
      attestation ca certificates --machine cp-1 -o wide
      attestation ca certificates --state issued --ending
      attestation ca certificates --limit 0 -o csv > certificates.csv
    """
    with session.client() as client:
        machine_id = session.find_id(client, machine) if machine is not None else None
        found = client.certificates(
            machine_id=machine_id,
            state=state,
            profile=profile,
            ends_from=datetime.now(UTC) if ending else None,
            sort="not_after" if ending else None,
        )
        emit_certificates(session, islice(found, limit or None))


@click.command("certificate")
@click.argument("serial")
@FILE
@click.option("--pem", is_flag=True, help="Print the certificate itself, PEM.")
@printing
def certificate_(session: Session, serial: str, file: Path | None, *, pem: bool) -> None:
    """Show what became of one certificate; SERIAL may be its beginning (at least 8 hex).

    \b
    Examples:
      attestation ca certificate 4b1f0c3d
      attestation ca certificate 4b1f0c3d --pem | openssl x509 -noout -text
      attestation ca certificate 4b1f0c3d -f cp-1.pem
    """
    with session.client() as client:
        found = _find(client, serial)
    if pem or file is not None:
        emit_pem(session, found, file)
    elif session.json:
        session.emit_json(found)
    else:
        session.emit_fields(certificate_fields(found, datetime.now(UTC)))


@click.command()
@click.argument("serial")
@REASON
@NOTE
@YES
@new_proposal_option
@printing
def revoke(session: Session, serial: str, reason: str, note: str | None, *, yes: bool) -> None:
    """Revoke one certificate for good and at once; its machine stays as it is and may get another.

    To stop a machine, lock or revoke the machine: that ends its certificates too. The reason is unspecified,
    keyCompromise, affiliationChanged, superseded, cessationOfOperation or privilegeWithdrawn.

    \b
    Examples:
      attestation ca revoke 4b1f0c3d --reason keyCompromise --note "laptop stolen"
    """
    from attestation.api import CertificateRevokeRequest, PendingApproval

    request = checked(lambda: CertificateRevokeRequest.model_validate({"reason": reason, "note": note}))
    with session.client() as client:
        found = _find(client, serial)
        question = f"Revoke {found.profile} {found.serial} of {owner_of(found)}? It cannot be undone."
        if found.no_rev_avail:
            question = f"{unseen(found)} {question}"
        session.confirm(question, yes=yes)
        answer = client.revoke_certificate(found.serial, request)
    if isinstance(answer, PendingApproval):
        session.emit_pending(answer, f"{found.profile} {found.serial}")
        return
    told = f"{answer.serial}: {answer.state}"
    session.emit_done(
        f"{told}. {unseen(answer)}" if answer.no_rev_avail else told,
        {"serial": answer.serial, "state": answer.state, "reason": answer.reason},
    )


@click.command("refuse-key")
@click.argument("spki_sha256", metavar="SHA256")
@click.option("-r", "--reason", required=True, help="Why; kept in the audit.")
@YES
@printing
def refuse_key(session: Session, spki_sha256: str, reason: str, *, yes: bool) -> None:
    """Let a public key never get a certificate again; those that it has are revoked.

    SHA256 is that of its SubjectPublicKeyInfo (64 hex), as `ca certificate` and `operator-cert list` show it. A key
    whose certificate is revoked with keyCompromise is refused by that already.

    \b
    Examples:
      attestation ca refuse-key 7f3ad3ac… --reason "found in a public repository"
    """
    from attestation.api import RefusedKeyRequest

    wanted = spki_sha256.lower().replace(":", "")
    request = checked(lambda: RefusedKeyRequest(spki_sha256=wanted, reason=reason))
    with session.client() as client:
        session.confirm(f"Never certify the key {wanted} again? It cannot be undone.", yes=yes)
        answer = client.refuse_key(request)
    session.emit_done(f"{answer.spki_sha256}: refused", answer.model_dump(mode="json"))


@click.command("refused-keys")
@listing
def refused_keys(session: Session) -> None:
    """List the keys that never get a certificate again.

    \b
    Examples:
      attestation ca refused-keys
    """
    now = datetime.now(UTC)
    with session.client() as client:
        session.emit_list(
            client.refused_keys(),
            {
                Column("SPKI SHA-256"): lambda k: k.spki_sha256,
                Column("WHY"): lambda k: k.why,
                Column("SINCE"): lambda k: moment_cell(k.added_at, now),
                Column("BY"): lambda k: k.added_by,
            },
            "No key is refused.",
        )


def _find(client: OperatorClient, text: str) -> CertificateDetail:
    """Return the certificate whose serial number is *text*, or begins with it.

    Raises:
        RequestInvalid: No serial number, or a beginning that is too short.
        CertificateUnknown: There is none.
        Ambiguous: Several of the newest ones begin so.
    """
    number = text.lower().replace(":", "")
    if not re.fullmatch(rf"[0-9a-f]{{{SHORTEST_SERIAL},{SERIAL_DIGITS}}}", number):
        raise RequestInvalid(
            f"a serial number has {SERIAL_DIGITS} hex digits; give at least {SHORTEST_SERIAL}"
        )
    if len(number) < SERIAL_DIGITS:
        newest = islice(client.certificates(page_size=200), MOST_LOOKED_AT)
        found = [c.serial for c in newest if c.serial.startswith(number)]
        if not found:
            raise CertificateUnknown(
                f"none of the newest {MOST_LOOKED_AT} serial numbers begins with {number}"
            )
        if len(found) > 1:
            raise Ambiguous("\n".join([f"{number} may mean any of", *found[:20]]))
        number = found[0]
    return client.certificate(number)
