"""`attestation machine certificates` and `request-cert`: what the CA has signed for a machine."""

# Algorithms for: ca-key
from __future__ import annotations

from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import click

from attestation.client.text import ago
from attestation.errors import CertificateUnknown
from attestation_cli.machine_acts import ID, LIMIT
from attestation_cli.options import FILE_PATH, listing, printing
from attestation_cli.session import Session

if TYPE_CHECKING:
    from attestation.api import CertificateDetail
    from attestation.client import OperatorClient


@click.command("certificates")
@ID
@LIMIT
@listing
def certificates_(session: Session, machine: str, limit: int) -> None:
    """List the certificates of a machine, newest first; they outlive its record.

    \b
    Examples:
      attestation machine certificates cp-1
      attestation machine certificates cp-1 -o wide
    """
    from attestation_cli.ca_screen import emit_certificates

    with session.client() as client:
        found = client.machine_certificates(session.find_id(client, machine))
        emit_certificates(session, islice(found, limit or None))


@click.command("request-cert")
@ID
@click.option(
    "--profile",
    type=click.Choice(["node-client", "node-server"]),
    default="node-client",
    show_default=True,
    help="Towards servers, or towards clients.",
)
@click.option(
    "--algorithm",
    type=click.Choice(["ecdsa-p384", "rsa-4096", "ml-dsa-87"]),
    help="Of the CA key that signed; a hybrid CA signs twice. Default: not ml-dsa-87, if there is another.",
)
@click.option("-f", "--file", type=FILE_PATH, help="Write it there instead.")
@printing
def request_cert(
    session: Session, machine: str, profile: str, algorithm: str | None, file: Path | None
) -> None:
    """Print the certificate of a machine, PEM: the newest that is good.

    Nobody but the machine can ask for one, because its key never leaves its TPM; it does so by itself, and renews it
    (`attestation-agent cert` there). This is what it got.

    \b
    Examples:
      attestation machine request-cert cp-1 | openssl x509 -noout -text
      attestation machine request-cert cp-1 --profile node-server -f cp-1.pem
    """
    from attestation_cli.ca_screen import emit_pem

    with session.client() as client:
        machine_id = session.find_id(client, machine)
        newest = _newest_certificate(client, machine_id, profile, algorithm)
        if newest is None:
            raise CertificateUnknown(f"machine {machine_id} has no {profile} certificate that is good now")
        whole = client.certificate(newest.serial)
    if whole.not_after < datetime.now(UTC):
        session.note(f"warning: it ended {ago(whole.not_after, datetime.now(UTC))}")
    if session.json:
        session.emit_json(whole)
        return
    emit_pem(session, whole, file)


def _newest_certificate(
    client: OperatorClient, machine_id: str, profile: str, algorithm: str | None
) -> CertificateDetail | None:
    """Return the newest good certificate, of those for one key the one that was asked for."""
    good = [
        c for c in client.machine_certificates(machine_id) if c.state == "issued" and c.profile == profile
    ]
    algorithms = {issuer.issuer_id: issuer.algorithm for issuer in client.ca().issuers}
    if algorithm is not None:
        return next((c for c in good if algorithms.get(c.issuer_id) == algorithm), None)
    twins = [c for c in good if c.spki_sha256 == good[0].spki_sha256]
    # Whoever asks without a word has a program that knows no ML-DSA.
    return next((c for c in twins if algorithms.get(c.issuer_id) != "ml-dsa-87"), next(iter(twins), None))
