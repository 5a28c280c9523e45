"""`attestation ca csr` and `ca import-certificate`: a CA key of ours below a root that a company has."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from attestation_cli.ca_screen import FILE, YES, emit_issuers, find_issuer, write_file
from attestation_cli.options import EXISTING_FILE, new_proposal_option, printing
from attestation_cli.session import Session, checked

if TYPE_CHECKING:
    from attestation.api import CADetail


@click.command("csr")
@click.argument("issuer")
@click.option("--path-length", type=click.IntRange(0, 8), help="CAs that may stand below ours; 0: none.")
@click.option("--dns", multiple=True, metavar="DOMAIN", help="Only host names of this domain; repeatable.")
@click.option("--ip", multiple=True, metavar="NETWORK", help="Only addresses of this network; repeatable.")
@click.option("--policy", multiple=True, metavar="OID", help="A certificate policy; repeatable.")
@FILE
@printing
def csr(
    session: Session,
    issuer: str,
    path_length: int | None,
    dns: tuple[str, ...],
    ip: tuple[str, ...],
    policy: tuple[str, ...],
    file: Path | None,
) -> None:
    """Make a request to a parent for the CA key ISSUER (the beginning of its id): PKCS #10, PEM.

    What is to be limited is asked for in the request; what the parent grants stands in its certificate. Best for a
    next key: whoever renews meets the parent's root before anything is signed below it.

    \b
    Examples:
      attestation ca csr 3f6f0e1b --path-length 0 -f itl.csr
      attestation ca csr 3f6f0e1b --dns nodes.example.com -f itl.csr
      openssl req -in itl.csr -noout -text -verify
    """
    from attestation.api import CALimits

    limits = checked(
        lambda: CALimits.model_validate(
            {"path_length": path_length, "dns": list(dns), "ip": list(ip), "policies": list(policy)}
        )
    )
    with session.client() as client:
        made = client.request_ca_certificate(find_issuer(client.ca(), issuer).issuer_id, limits)
    if file is not None:
        write_file(session, file, made.csr_pem.encode("ascii"), "the request")
    elif session.json:
        session.emit_json(made)
    else:
        click.echo(made.csr_pem, nl=False)


@click.command("import-certificate")
@click.argument("issuer")
@click.argument("chain", type=EXISTING_FILE)
@click.option("-r", "--reason", required=True, help="Why; kept in the audit.")
@click.option("--force", is_flag=True, help="Also for a key that signs already.")
@YES
@new_proposal_option
@printing
def import_certificate(
    session: Session, issuer: str, chain: Path, reason: str, *, force: bool, yes: bool
) -> None:
    """Let a parent vouch for the CA key ISSUER: CHAIN is PEM, our certificate first, the self-signed root last.

    The chain must certify our key, under our name, up to that root. From then on the root is what relying parties
    believe. Where dual control asks for several people, this is your vote.

    \b
    Examples:
      attestation ca import-certificate 3f6f0e1b chain.pem -r "join our root"
    """
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding

    from attestation.api import CAChainImport, PendingApproval
    from attestation.errors import RequestInvalid
    from attestation_cli.ca_backup import fingerprint

    text = chain.read_text("utf-8", errors="replace")
    request = checked(
        lambda: CAChainImport.model_validate({"chain_pem": text, "reason": reason, "force": force})
    )
    try:
        root = x509.load_pem_x509_certificates(text.encode())[-1]
    except ValueError as e:
        raise RequestInvalid(f"{chain} holds something else than certificates in PEM") from e
    with session.client() as client:
        issuer_id = find_issuer(client.ca(), issuer).issuer_id
        who = f"{root.subject.rfc4514_string()}, SHA-256 {fingerprint(root.public_bytes(Encoding.DER))}"
        session.confirm(f"Believe {who} for CA key {issuer_id}?", yes=yes)
        answer: CADetail | PendingApproval = client.import_ca_certificate(issuer_id, request)
    if isinstance(answer, PendingApproval):
        session.emit_pending(answer, f"certificate of CA key {issuer_id}")
        return
    found = [each for each in answer.issuers if each.issuer_id == issuer_id]
    if session.json:
        session.emit_json(iter(found))
        return
    emit_issuers(session, found, "No CA key.")
    session.note(
        f"{datetime.now(UTC):%Y-%m-%d}: give relying parties the new bundle: attestation ca bundle -f FILE"
    )
