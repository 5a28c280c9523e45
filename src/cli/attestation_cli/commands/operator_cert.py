"""`attestation operator-cert …`: client certificates of people, from the service's own CA for operators."""

# Algorithms for: certified-key
from __future__ import annotations

import os
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import click

from attestation.client.text import ago
from attestation.errors import CertificateUnknown, RequestInvalid
from attestation_cli.ca_screen import LIMIT, NOTE, REASON, STATE, YES
from attestation_cli.options import listing, new_proposal_option, printing
from attestation_cli.render import Column, cell, moment_cell
from attestation_cli.screen import is_terminal
from attestation_cli.session import Ambiguous, Session, checked

if TYPE_CHECKING:
    from attestation.api import OperatorCertificate, OperatorCertificateDetail
    from attestation.client import OperatorClient

DUTIES = ("operator", "viewer", "auditor")
LEAST_DIGITS = 8
MOST_PASSPHRASE_BYTES = 1024
PRIVATE = 0o600
PUBLIC = 0o644

FILE = click.Path(dir_okay=False, path_type=Path)


@click.group("operator-cert")
def group() -> None:
    """Client certificates of operators, viewers and auditors.

    The service must have a CA for them (ITL_OPERATOR_CERTIFICATES). Break-glass can list and revoke, but never request.

    \b
    Examples:
      attestation operator-cert request --name ada@example.org --key ada.key
      attestation operator-cert list
      attestation operator-cert revoke 4b1f0c3d --reason keyCompromise
    """


@group.command()
@click.option("--name", required=True, help="CN of the certificate, and the name in the audit.")
@click.option(
    "--duty", type=click.Choice(DUTIES), default="operator", show_default=True, help="What it allows."
)
@click.option("--key", "key_file", type=FILE, help="Make a key in this new file (P-384, encrypted).")
@click.option(
    "--csr", "csr_file", type=FILE, help="Or take this request (PKCS#10, PEM): the key stays where it is."
)
@click.option(
    "--passphrase-file", type=FILE, help="File with the passphrase of the new key; else it is asked for."
)
@click.option(
    "--days", type=click.IntRange(1, 398), help="Valid so long; default and most: as the service is set."
)
@click.option("--out", type=FILE, help="Write the certificate here; default: beside the key, ending in .pem.")
@click.option("-r", "--reason", help="Why; kept in the audit.")
@new_proposal_option
@printing
def request(
    session: Session,
    name: str,
    duty: str,
    key_file: Path | None,
    csr_file: Path | None,
    passphrase_file: Path | None,
    days: int | None,
    out: Path | None,
    reason: str | None,
) -> None:
    """Request a client certificate for a person.

    With --key a new key is made here and never leaves this computer; its request lies beside it, ending in .csr.
    Where dual control asks for several people, this is your vote: the others agree with `approval approve`, and
    whoever completes the quorum gets the certificate. It is no secret.

    \b
    Examples:
      attestation operator-cert request --name ada@example.org --key ada.key
      attestation operator-cert request --name ada@example.org --csr ada.csr \\
          --out ada.pem
    """
    from attestation.api import OperatorCertificateRequest, PendingApproval

    if (key_file is None) == (csr_file is None):
        raise RequestInvalid("either --key, to make a key, or --csr, for a key that there is")
    csr_path = csr_file or _beside(key_file, ".csr")
    target = out or (_beside(key_file, ".pem") if key_file is not None else None)
    if key_file is not None:
        for path in (key_file, csr_path, target):
            if path is not None and path.exists():
                raise RequestInvalid(f"{path} is there already; it is not overwritten")
        _make_key(key_file, csr_path, name, _passphrase(passphrase_file))
        session.note(f"{key_file}: a new key, encrypted; {csr_path}: its request")
    wanted = checked(
        lambda: OperatorCertificateRequest.model_validate(
            {
                "csr_pem": _read(csr_path).decode("ascii", "replace"),
                "name": name,
                "duty": duty,
                "days": days,
                "reason": reason,
            }
        )
    )
    with session.client() as client:
        answer = client.request_operator_certificate(wanted)
    if isinstance(answer, PendingApproval):
        session.emit_pending(answer, f"certificate of {duty} {name}")
        return
    emit_new(session, answer, target)


def emit_new(session: Session, new: OperatorCertificate, target: Path | None) -> None:
    """Print a new certificate, or write it to *target*; it is no secret."""
    pem = f"{new.certificate_pem}{new.chain_pem}"
    if target is not None:
        _write(target, pem.encode(), PUBLIC)
    if session.json:
        session.emit_json(new)
        return
    now = datetime.now(UTC)
    session.emit_fields(
        [
            ("serial", cell(new.serial)),
            ("name", cell(new.name)),
            ("duty", cell(new.duty)),
            ("ends", moment_cell(new.not_after, now)),
            ("certificate", cell(str(target) if target is not None else "below")),
        ]
    )
    if target is None:
        session.emit(pem.rstrip("\n"))


@group.command("list")
@STATE
@LIMIT
@listing
def list_(session: Session, state: str | None, limit: int) -> None:
    """List operators' certificates, newest first.

    \b
    Examples:
      attestation operator-cert list --state issued
      attestation operator-cert list -o wide
    """
    with session.client() as client:
        found = islice(client.operator_certificates(state=state), limit or None)
        now = datetime.now(UTC)
        session.emit_list(
            found,
            {
                Column("SERIAL", shrink_to=13): lambda one: one.serial,
                Column("STATE"): lambda one: one.state,
                Column("NAME"): lambda one: one.name,
                Column("DUTY"): lambda one: one.duty,
                Column("ENDS"): lambda one: moment_cell(one.not_after, now),
                Column("ISSUED", drop=1): lambda one: ago(one.issued_at, now) if one.issued_at else None,
                Column("REQUESTER", drop=2): lambda one: one.requester,
                Column("REASON", drop=3): lambda one: one.reason,
                Column("ISSUER", wide=True): lambda one: one.issuer_id,
                Column("SPKI SHA-256", wide=True): lambda one: one.spki_sha256,
                Column("NOTE", wide=True): lambda one: one.note,
            },
            "No operator has a certificate.",
        )


@group.command()
@click.argument("serial")
@REASON
@NOTE
@YES
@printing
def revoke(session: Session, serial: str, reason: str, note: str | None, *, yes: bool) -> None:
    """Take an operator's certificate back, for good and at once; SERIAL may be its beginning (at least 8 hex).

    One operator is enough. The reason is unspecified, keyCompromise, affiliationChanged, superseded,
    cessationOfOperation or privilegeWithdrawn.

    \b
    Examples:
      attestation operator-cert revoke 4b1f0c3d --reason keyCompromise \\
          --note "laptop stolen"
    """
    from attestation.api import CertificateRevokeRequest

    body = checked(lambda: CertificateRevokeRequest.model_validate({"reason": reason, "note": note}))
    with session.client() as client:
        found = _find(client, serial)
        session.confirm(f"Revoke {found.serial} of {found.duty} {found.name}? It cannot be undone.", yes=yes)
        answer = client.revoke_operator_certificate(found.serial, body)
    session.emit_done(
        f"{answer.serial} of {answer.name}: {answer.state}",
        {"serial": answer.serial, "name": answer.name, "state": answer.state, "reason": answer.reason},
    )


def _find(client: OperatorClient, beginning: str) -> OperatorCertificateDetail:
    wanted = beginning.lower()
    if len(wanted) < LEAST_DIGITS or not all(c in "0123456789abcdef" for c in wanted):
        raise RequestInvalid(f"a serial number is hex; {LEAST_DIGITS} digits at least")
    found = [one for one in client.operator_certificates() if one.serial.startswith(wanted)]
    if not found:
        raise CertificateUnknown(f"no operator's certificate begins with {beginning}")
    if len(found) > 1:
        names = ", ".join(f"{one.serial} ({one.name})" for one in found[:5])
        raise Ambiguous(f"several certificates begin with {beginning}: {names}")
    return found[0]


# ---------------------------------------------------------------- files


def _beside(path: Path | None, suffix: str) -> Path:
    assert path is not None
    return path.with_suffix(suffix) if path.suffix != suffix else path.with_name(f"{path.name}{suffix}")


def _passphrase(file: Path | None) -> bytes:
    """Return the passphrase of a new key.

    Raises:
        RequestInvalid: None, or too long a one.
    """
    if file is not None:
        given = _read(file).removesuffix(b"\n")
    elif is_terminal():
        given = click.prompt(
            "Passphrase of the new key", hide_input=True, confirmation_prompt=True, err=True
        ).encode()
    else:
        raise RequestInvalid("stdin is not a terminal: name a file with --passphrase-file")
    if not 1 <= len(given) <= MOST_PASSPHRASE_BYTES:
        raise RequestInvalid(f"a passphrase has 1 to {MOST_PASSPHRASE_BYTES} bytes")
    return given


def _make_key(key_file: Path, csr_file: Path, name: str, passphrase: bytes) -> None:
    """Make a key, and a request for it. The name in it is for people only: the service takes nothing but the key."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.hashes import SHA384
    from cryptography.hazmat.primitives.serialization import (
        BestAvailableEncryption,
        Encoding,
        PrivateFormat,
    )
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP384R1())
    try:
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    except ValueError as e:
        raise RequestInvalid(f"--name: {e}") from e
    csr = x509.CertificateSigningRequestBuilder().subject_name(subject).sign(key, SHA384())
    encrypted = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(passphrase))
    _write(key_file, encrypted, PRIVATE)
    _write(csr_file, csr.public_bytes(Encoding.PEM), PUBLIC)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as e:
        raise RequestInvalid(f"{path} cannot be read: {e.strerror}") from e


def _write(path: Path, data: bytes, mode: int) -> None:
    """Write a new file; one that is there is never overwritten."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except OSError as e:
        raise RequestInvalid(f"{path} cannot be written: {e.strerror}") from e
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
