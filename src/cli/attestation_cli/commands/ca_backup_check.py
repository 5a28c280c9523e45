"""`attestation ca backup-check`: is there a copy of each key, and does it sign?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from attestation.client.text import clean
from attestation.wire import b64decode
from attestation_cli.options import EXISTING_FILE, FILE_PATH, printing
from attestation_cli.render import Cell, Column, wrap
from attestation_cli.session import Session

IN_USE = ("next", "active", "retiring")


@click.command("backup-check")
@click.argument("source", required=False)
@click.option(
    "--passphrase-file",
    type=FILE_PATH,
    help="File with the passphrase of the backup, or the PIN of the token; else it is asked for.",
)
@click.option(
    "--certificates",
    "certificates_file",
    type=EXISTING_FILE,
    help="CA certificates, DER or PEM, instead of asking the service: works without it.",
)
@click.option("--module", "given", metavar="NAME=PATH", multiple=True, help="PKCS#11 module of a token.")
@printing
@click.pass_context
def backup_check(
    ctx: click.Context,
    session: Session,
    source: str | None,
    passphrase_file: Path | None,
    certificates_file: Path | None,
    given: tuple[str, ...],
) -> None:
    """Prove that SOURCE holds the keys of the CA: a folder, a file, or a key URI (file:, pkcs11:, tpm2:).

    Each key is opened here, signs a fresh value, and the CA's certificate must verify it; neither key nor passphrase
    leaves this computer. Without SOURCE the service tries the keys that it has, and says what a backup of
    each needs. Ends with 1 where a key in use is missing or does not sign.

    \b
    Examples:
      attestation ca backup-check
      attestation ca backup-check /media/backup/ca
      attestation ca backup-check /media/backup/ca --certificates bundle.pem
    """
    if source is None:
        ok = _check_service(session)
    else:
        ok = _check_backup(session, source, passphrase_file, certificates_file, given)
    ctx.exit(0 if ok else 1)


def _check_service(session: Session) -> bool:
    from attestation_cli.ca_backup import advice

    with session.client() as client:
        found = client.ca_check()
    if session.json:
        session.emit_json(found)
        return found.ok
    session.emit_rows(
        found.issuers,
        {
            Column("ID"): lambda i: i.issuer_id,
            Column("PURPOSE", drop=2): lambda i: i.purpose,
            Column("STATE"): lambda i: i.state,
            Column("SIGNS"): lambda i: Cell("yes", "green") if i.signs else Cell(f"no: {i.problem}", "red"),
            Column("ENCRYPTED", drop=3): lambda i: {True: "yes", False: "no", None: None}[i.encrypted],
            Column("KEY", shrink_to=24, drop=1): lambda i: i.key_uri,
        },
        "No CA key is in use.",
    )
    for issuer in found.issuers:
        _note(session, f"{issuer.issuer_id}: its backup is {advice(issuer.key_uri)}")
        for warning in issuer.warnings:
            _note(session, f"{issuer.issuer_id}: warning: {warning}")
    _note(
        session,
        'Back up the database too: `sqlite3 DATABASE ".backup COPY"`. With SOURCE a backup of the keys is proven.',
    )
    return found.ok


def _check_backup(
    session: Session,
    source: str,
    passphrase_file: Path | None,
    certificates_file: Path | None,
    given: Sequence[str],
) -> bool:
    from attestation.keys.secrets import from_file
    from attestation_cli import ca_backup

    if certificates_file is not None:
        wanted = ca_backup.read_certificates(certificates_file)
    else:
        with session.client() as client:
            wanted = [
                ca_backup.Wanted(
                    name=issuer.issuer_id,
                    state=issuer.state,
                    certificate=b64decode(issuer.certificate, "certificate"),
                    scheme=issuer.key_uri.partition(":")[0],
                )
                for issuer in client.ca().issuers
                if issuer.state in IN_USE and issuer.certificate is not None
            ]
    asked: list[bytes] = []

    def passphrase() -> bytes:
        if passphrase_file is not None:
            return from_file(passphrase_file)
        if not asked:
            asked.append(click.prompt("Passphrase of the backup", hide_input=True, err=True).encode())
        return asked[0]

    proofs = ca_backup.prove(wanted, source, passphrase=passphrase, modules=ca_backup.modules(given))
    ok = bool(proofs) and all(proof.why is None for proof in proofs)
    if session.json:
        session.emit_json(
            {
                "ok": ok,
                "keys": [
                    {
                        "key": p.wanted.name,
                        "state": p.wanted.state or None,
                        "sha256": ca_backup.fingerprint(p.wanted.certificate),
                        "found": p.where,
                        "problem": p.why,
                        "warning": p.warning,
                    }
                    for p in proofs
                ],
            }
        )
        return ok
    session.emit_rows(
        proofs,
        {
            Column("KEY"): lambda p: p.wanted.name,
            Column("STATE", drop=2): lambda p: p.wanted.state or None,
            Column("BACKUP"): lambda p: (
                Cell("proven", "green") if p.why is None else Cell(p.verdict.upper(), "red")
            ),
            Column("WHERE", shrink_to=20, drop=1): lambda p: p.where,
        },
        "No CA key is in use.",
    )
    for proof in proofs:
        if (remark := proof.why or proof.warning) is not None:
            _note(session, f"{proof.wanted.name}: {remark}")
    return ok


def _note(session: Session, sentence: str) -> None:
    """Print a remark, folded where somebody reads it."""
    width = session.width
    session.note(clean(sentence) if width is None else wrap(clean(sentence), width, first="", rest="  "))
