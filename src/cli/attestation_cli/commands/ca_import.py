"""`attestation ca import-key`, `ca wrap` and `ca import`: the key of a CA that exists already goes on here."""

# Algorithms for: digest, wrapped-key
from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from attestation.hsm import OAEP_HASHES
from attestation_cli.ca_screen import FILE, YES, emit_issuers, write_file
from attestation_cli.options import EXISTING_FILE, new_proposal_option, printing
from attestation_cli.session import Session, checked

if TYPE_CHECKING:
    from attestation.api import CADetail

PURPOSE = click.option(
    "--purpose",
    type=click.Choice(["machine", "operator"]),
    default="machine",
    show_default=True,
    help="Whom it is to certify.",
)
HASH = click.option(
    "--oaep-hash",
    type=click.Choice(OAEP_HASHES),
    default="sha256",
    show_default=True,
    help="Of RSA-OAEP; sha1 where the service's token knows no other (SoftHSM).",
)


@click.command("import-key")
@FILE
@printing
def import_key(session: Session, file: Path | None) -> None:
    """Show the public key under which an existing CA's key is wrapped for the service; it is made once.

    Take it to where the CA's key is. Its SHA-256 is shown: compare it there, for who exchanges it reads the key.

    \b
    Examples:
      attestation ca import-key -f kek.pem
    """
    with session.client() as client:
        made = client.ca_import_key()
    if file is not None:
        write_file(session, file, made.public_key_pem.encode("ascii"), "the public key")
    elif session.json:
        session.emit_json(made)
        return
    else:
        click.echo(made.public_key_pem, nl=False)
    session.note(f"SHA-256 {made.spki_sha256}")


@click.command("wrap")
@click.argument("key", type=EXISTING_FILE)
@click.option("--under", type=EXISTING_FILE, required=True, metavar="FILE", help="Of `ca import-key`.")
@click.option(
    "--sha256", metavar="HEX", help="Of that public key, as it was told elsewhere; another is refused."
)
@HASH
@click.option(
    "-f", "--file", "file", required=True, type=click.Path(path_type=Path), help="Where to write it."
)
@printing
def wrap(session: Session, key: Path, under: Path, sha256: str | None, oaep_hash: str, file: Path) -> None:
    """Wrap the private key of a CA for the service, offline: KEY is PEM, PKCS #8; a passphrase is asked for.

    What comes out only the service opens. It is no secret, and goes to each who has to agree.

    \b
    Examples:
      attestation ca wrap ca.key --under kek.pem -f ca.wrapped
    """
    import hashlib

    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        PublicFormat,
        load_pem_private_key,
        load_pem_public_key,
    )

    from attestation.errors import KeyUnusable, RequestInvalid
    from attestation.keys.wrapping import PEM_LABEL, wrap_key
    from attestation.wire import pem

    try:
        kek = load_pem_public_key(under.read_bytes())
    except ValueError as e:
        raise RequestInvalid(f"{under} is no public key in PEM") from e
    if not isinstance(kek, RSAPublicKey):
        raise RequestInvalid(f"{under} is no RSA key")
    spki = kek.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    found = hashlib.sha256(spki).hexdigest()
    if sha256 is not None and sha256.lower() != found:
        raise RequestInvalid(
            f"{under} has SHA-256 {found}, not {sha256}: somebody exchanged it, or that is not all of it"
        )
    content = key.read_bytes()
    secret = None
    if b"ENCRYPTED" in content:
        secret = click.prompt(f"Passphrase of {key}", hide_input=True, err=True).encode()
    try:
        private = load_pem_private_key(content, secret)
    except (ValueError, TypeError) as e:
        raise KeyUnusable(f"{key} holds no private key in PEM, or has another passphrase") from e
    blob = wrap_key(private, kek, oaep_hash="sha1" if oaep_hash == "sha1" else "sha256")  # type: ignore[arg-type]  # it refuses other keys
    write_file(session, file, pem(PEM_LABEL, blob).encode("ascii"), f"the key, wrapped under SHA-256 {found}")


@click.command("import")
@click.argument("wrapped", type=EXISTING_FILE)
@click.option(
    "--chain",
    type=EXISTING_FILE,
    required=True,
    metavar="FILE",
    help="PEM: the CA's certificate, who certified it, and on; the root last.",
)
@PURPOSE
@HASH
@click.option("-r", "--reason", required=True, help="Why; kept in the audit.")
@YES
@new_proposal_option
@printing
def import_(
    session: Session, wrapped: Path, chain: Path, purpose: str, oaep_hash: str, reason: str, *, yes: bool
) -> None:
    """Make an existing CA's key the next one here: WRAPPED is what `ca wrap` wrote.

    The key is brought to where the CA's keys are and proves itself there; it signs once `ca rotate activate` says so.
    Where dual control asks for several people, this is your vote, and the others need no file.

    \b
    Examples:
      attestation ca import ca.wrapped --chain ca.pem -r "the CA of before"
    """
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding

    from attestation.api import CAKeyImport, PendingApproval
    from attestation.errors import MalformedEvidence, RequestInvalid
    from attestation.keys.wrapping import PEM_LABEL
    from attestation.wire import b64encode, pem_block
    from attestation_cli.ca_backup import fingerprint

    text = chain.read_text("utf-8", errors="replace")
    try:
        blob = pem_block(wrapped.read_bytes(), str(wrapped), PEM_LABEL)
        certificates = x509.load_pem_x509_certificates(text.encode())
    except MalformedEvidence as e:
        raise RequestInvalid(f"{wrapped} is nothing that `attestation ca wrap` wrote") from e
    except ValueError as e:
        raise RequestInvalid(f"{chain} holds something else than certificates in PEM") from e
    request = checked(
        lambda: CAKeyImport.model_validate(
            {
                "purpose": purpose,
                "wrapped_key": b64encode(blob),
                "oaep_hash": oaep_hash,
                "chain_pem": text,
                "reason": reason,
            }
        )
    )
    name, root = certificates[0].subject.rfc4514_string(), certificates[-1]
    with session.client() as client:
        who = f"{root.subject.rfc4514_string()}, SHA-256 {fingerprint(root.public_bytes(Encoding.DER))}"
        session.confirm(f"Let the key of {name} be the next {purpose} CA key, and believe {who}?", yes=yes)
        answer: CADetail | PendingApproval = client.import_ca_key(request)
    if isinstance(answer, PendingApproval):
        session.emit_pending(answer, f"key of CA {name}")
        return
    found = answer.issuers[-1:]
    if session.json:
        session.emit_json(iter(found))
        return
    emit_issuers(session, found, "No CA key.")
    session.note(
        f"{datetime.now(UTC):%Y-%m-%d}: give relying parties the new bundle (attestation ca bundle -f FILE), then "
        "attestation ca rotate activate"
    )
