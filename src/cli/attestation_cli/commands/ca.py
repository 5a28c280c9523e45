"""`attestation ca …`: the keys of the CA, what they have signed, and how one takes the place of another."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from attestation.client.text import ago, clean
from attestation.errors import CertificateUnknown, IssuerUnknown, RequestInvalid
from attestation.pki.profiles import KEY_TIERS, ProfileName
from attestation.wire import b64decode
from attestation_cli.complete import complete_machine
from attestation_cli.render import Cell, Column, cell, moment_cell, time_cell, wrap
from attestation_cli.session import Ambiguous, Session, checked, output_option, pass_session

if TYPE_CHECKING:
    from attestation.api import CADetail, CertificateDetail, IssuerDetail
    from attestation.client import OperatorClient

PURPOSES = ("machine", "operator")
ALGORITHMS = ("ecdsa-p384", "rsa-4096", "ml-dsa-87")
STATES = ("reserved", "issued", "held", "revoked", "void")
REASONS = (
    "unspecified",
    "keyCompromise",
    "affiliationChanged",
    "superseded",
    "cessationOfOperation",
    "privilegeWithdrawn",
)
STEPS = {
    "prepare": "make the next key and publish it",
    "activate": "let the next key sign, and the old one its lists only,",
    "rollback": "give the next key up, or let active and old key change places",
    "retire": "end the old key",
}
IN_USE = ("next", "active", "retiring")
LEAST_DIGITS = 4
SERIAL_DIGITS = 40
SHORTEST_SERIAL = 8
MOST_LOOKED_AT = 2000
"""So many certificates, the newest first, are searched for the beginning of a serial number."""

YES = click.option("--yes", is_flag=True, help="Do not ask.")
PURPOSE = click.option(
    "--purpose",
    type=click.Choice(PURPOSES),
    default="machine",
    show_default=True,
    help="Whose CA: of machines or of operators.",
)
FILE = click.option(
    "-f", "--file", type=click.Path(dir_okay=False, path_type=Path), help="Write it there instead."
)

ISSUERS = [
    Column("ID"),
    Column("PURPOSE", drop=3),
    Column("ALGORITHM"),
    Column("STATE"),
    Column("SINCE", drop=1),
    Column("UNTIL", drop=2),
    Column("CRL", drop=5),
    Column("ORIGIN", drop=6),
    Column("KEY", shrink_to=24, drop=4),
    Column("SUBJECT", wide=True),
    Column("SHA-256", wide=True),
    Column("SPKI SHA-256", wide=True),
    Column("ACTIVATE FROM", wide=True),
    Column("RETIRE FROM", wide=True),
]
CERTIFICATES = [
    Column("SERIAL", shrink_to=13),
    Column("STATE"),
    Column("PROFILE", drop=2),
    Column("WHO", shrink_to=13),
    Column("ISSUED", drop=1),
    Column("ENDS"),
    Column("REASON", drop=3),
    Column("KEY TIER", drop=4),
    Column("SUBJECT", wide=True),
    Column("ISSUER", wide=True),
    Column("ASSURANCE", wide=True),
    Column("REQUESTER", wide=True),
    Column("RENEWS", wide=True),
    Column("SPKI SHA-256", wide=True),
    Column("NOTE", wide=True),
]


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
@output_option
@pass_session
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
        found = _issuer(detail, issuer)
        if session.json:
            session.emit_json(found)
        else:
            session.emit_fields(_issuer_fields(found, now))
        return
    if session.json:
        session.emit_json(iter(detail.issuers))
        return
    session.emit_table(ISSUERS, [_issuer_row(i, now) for i in detail.issuers], "No CA key was ever made.")
    for line in _next_steps(detail, now):
        session.note(line)


@group.command("certificates")
@click.option("--machine", metavar="ID", help="Only of this machine.", shell_complete=complete_machine)
@click.option("--state", type=click.Choice(STATES), help="Only in this state.")
@click.option("--profile", type=click.Choice([p.value for p in ProfileName]), help="Only of this profile.")
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=50,
    show_default=True,
    help="Show at most so many; 0 shows all.",
)
@output_option
@pass_session
def certificates_(
    session: Session, machine: str | None, state: str | None, profile: str | None, limit: int
) -> None:
    """List what the CA has signed, newest first.

    issued is good, held is suspended (its machine is locked), revoked ended for good; reserved is being signed, void
    reached nobody.

    \b
    Examples:
      attestation ca certificates --state held
      attestation ca certificates --machine cp-1 -o wide
      attestation ca certificates --limit 0 -o csv > certificates.csv
    """
    with session.client() as client:
        machine_id = session.find_id(client, machine) if machine is not None else None
        found = client.certificates(machine_id=machine_id, state=state, profile=profile)
        emit_certificates(session, islice(found, limit or None))


@group.command("certificate")
@click.argument("serial")
@FILE
@click.option("--pem", is_flag=True, help="Print the certificate itself, PEM.")
@output_option
@pass_session
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
        session.emit_fields(_certificate_fields(found, datetime.now(UTC)))


@group.command()
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
@YES
@output_option
@pass_session
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
        question = f"Revoke {found.profile} {found.serial} of {_who(found)}? It cannot be undone."
        session.confirm(question, yes=yes)
        answer = client.revoke_certificate(found.serial, request)
    if isinstance(answer, PendingApproval):
        again = ["ca", "revoke", found.serial, "--reason", reason]
        session.emit_pending(answer, f"{found.profile} {found.serial}", again)
        return
    session.emit_done(
        f"{answer.serial}: {answer.state}",
        {"serial": answer.serial, "state": answer.state, "reason": answer.reason},
    )


@group.command("refuse-key")
@click.argument("spki_sha256", metavar="SHA256")
@click.option("-r", "--reason", required=True, help="Why; kept in the audit.")
@YES
@output_option
@pass_session
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


@group.command("refused-keys")
@output_option
@pass_session
def refused_keys(session: Session) -> None:
    """List the keys that never get a certificate again.

    \b
    Examples:
      attestation ca refused-keys
    """
    with session.client() as client:
        if session.json:
            session.emit_json(client.refused_keys())
            return
        found = list(client.refused_keys())
    now = datetime.now(UTC)
    session.emit_table(
        [Column("SPKI SHA-256"), Column("WHY"), Column("SINCE"), Column("BY")],
        [[cell(k.spki_sha256), cell(k.why), moment_cell(k.added_at, now), cell(k.added_by)] for k in found],
        "No key is refused.",
    )


@group.command()
@click.option("--issuer", metavar="ID", help="Of this CA key; default: the active one.")
@PURPOSE
@FILE
@output_option
@pass_session
def crl(session: Session, issuer: str | None, purpose: str, file: Path | None) -> None:
    """Show the revocation list in force, or write it (DER).

    Anybody may fetch it; nobody is logged in for this. Its signature is not verified here: relying parties do.

    \b
    Examples:
      attestation ca crl
      attestation ca crl -f ca.crl && openssl crl -inform DER -in ca.crl -noout -text
    """
    issuer_id = None
    if issuer is not None:
        with session.client() as client:
            issuer_id = _issuer(client.ca(), issuer).issuer_id
    with session.public() as anybody:
        data = anybody.crl(issuer_id, purpose=purpose)
    if file is not None:
        _write(session, file, data, "the revocation list")
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
@output_option
@pass_session
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
        _write(session, file, data, "the bundle")
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
    session.emit_table(
        [
            Column("NAME", shrink_to=16),
            Column("CERTIFIED BY", shrink_to=12),
            Column("UNTIL"),
            Column("SHA-256", shrink_to=17),
        ],
        [
            [
                cell(common_name(one)),
                cell("itself" if one.subject == one.issuer else _cn(one.issuer.rfc4514_string())),
                cell(f"{one.not_valid_after_utc:%Y-%m-%d}"),
                cell(fingerprint(one.public_bytes(Encoding.DER))),
            ]
            for one in found
        ],
        "Nothing.",
    )


@group.command()
@click.argument("step", type=click.Choice(["prepare", "activate", "rollback", "retire"]))
@PURPOSE
@click.option("--algorithm", type=click.Choice(ALGORITHMS), help="Which key, where the CA has two (hybrid).")
@click.option("-r", "--reason", required=True, help="Why; kept in the audit.")
@click.option("--force", is_flag=True, help="Do not wait until relying parties have followed.")
@YES
@output_option
@pass_session
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
        again = ["ca", "rotate", step, "--purpose", purpose, "--reason", reason, "--yes"]
        again += ["--algorithm", algorithm] if algorithm is not None else []
        again += ["--force"] if force else []
        session.emit_pending(answer, f"{step} of the {purpose} CA", again)
        return
    if session.json:
        session.emit_json(iter(answer.issuers))
        return
    now = datetime.now(UTC)
    session.emit_table(
        ISSUERS, [_issuer_row(i, now) for i in answer.issuers if i.purpose == purpose], "No CA key."
    )
    for line in _next_steps(answer, now):
        session.note(line)


@group.command("backup-check")
@click.argument("source", required=False)
@click.option(
    "--passphrase-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File with the passphrase of the backup, or the PIN of the token; else it is asked for.",
)
@click.option(
    "--certificates",
    "certificates_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="CA certificates, DER or PEM, instead of asking the service: works without it.",
)
@click.option("--module", "given", metavar="NAME=PATH", multiple=True, help="PKCS#11 module of a token.")
@output_option
@pass_session
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
    session.emit_table(
        [
            Column("ID"),
            Column("PURPOSE", drop=2),
            Column("STATE"),
            Column("SIGNS"),
            Column("ENCRYPTED", drop=3),
            Column("KEY", shrink_to=24, drop=1),
        ],
        [
            [
                cell(i.issuer_id),
                cell(i.purpose),
                cell(i.state),
                Cell("yes", "green") if i.signs else Cell(f"no: {i.problem}", "red"),
                cell({True: "yes", False: "no", None: None}[i.encrypted]),
                cell(i.key_uri),
            ]
            for i in found.issuers
        ],
        "No CA key is in use.",
    )
    for issuer in found.issuers:
        _note(session, f"{issuer.issuer_id}: its backup is {advice(issuer.key_uri)}")
        for warning in issuer.warnings:
            _note(session, f"{issuer.issuer_id}: warning: {warning}")
    _note(session, "Back up the database too (docs/operate/backup.md). With SOURCE a backup is proven.")
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
                    }
                    for p in proofs
                ],
            }
        )
        return ok
    session.emit_table(
        [Column("KEY"), Column("STATE", drop=2), Column("BACKUP"), Column("WHERE", shrink_to=20, drop=1)],
        [
            [
                cell(p.wanted.name),
                cell(p.wanted.state or None),
                Cell("proven", "green") if p.why is None else Cell("MISSING", "red"),
                cell(p.where),
            ]
            for p in proofs
        ],
        "No CA key is in use.",
    )
    for proof in proofs:
        if proof.why is not None:
            _note(session, f"{proof.wanted.name}: {proof.why}")
    return ok


def _note(session: Session, sentence: str) -> None:
    """Print a remark, folded where somebody reads it."""
    width = session.width
    session.note(clean(sentence) if width is None else wrap(clean(sentence), width, first="", rest="  "))


# ---------------------------------------------------------------- what others show too


def emit_certificates(session: Session, found: Any) -> None:
    """List certificates of the issuance log; *found* is an iterator of `CertificateDetail`."""
    if session.json:
        session.emit_json(found)
        return
    now = datetime.now(UTC)
    session.emit_table(CERTIFICATES, [_certificate_row(c, now) for c in found], "No certificates.")


def emit_pem(session: Session, certificate: CertificateDetail, file: Path | None) -> None:
    """Print a certificate in PEM, or write it to *file*.

    Raises:
        CertificateUnknown: Nothing was issued under its serial number.
    """
    if certificate.certificate is None:
        raise CertificateUnknown(f"serial {certificate.serial} is {certificate.state}: nothing was issued")
    text = pem_text(certificate.certificate)
    if file is not None:
        _write(session, file, text.encode(), f"certificate {certificate.serial}")
    else:
        session.emit(text.rstrip())


def pem_text(certificate: str) -> str:
    """Return a certificate, base64 of DER, in PEM."""
    lines = [certificate[i : i + 64] for i in range(0, len(certificate), 64)]
    return "\n".join(["-----BEGIN CERTIFICATE-----", *lines, "-----END CERTIFICATE-----", ""])


def _write(session: Session, file: Path, data: bytes, what: str) -> None:
    try:
        file.write_bytes(data)
    except OSError as e:
        raise RequestInvalid(f"{file} cannot be written: {e.strerror}") from e
    session.note(f"{file}: {what}, {len(data)} bytes")


# ---------------------------------------------------------------- rows


def _issuer(detail: CADetail, beginning: str) -> IssuerDetail:
    wanted = beginning.lower()
    if len(wanted) < LEAST_DIGITS:
        raise RequestInvalid(f"the id of a CA key needs at least {LEAST_DIGITS} hex digits")
    found = [issuer for issuer in detail.issuers if issuer.issuer_id.startswith(wanted)]
    if not found:
        raise IssuerUnknown(f"no CA key's id begins with {wanted}")
    if len(found) > 1:
        raise Ambiguous("\n".join([f"{wanted} may mean any of", *(i.issuer_id for i in found)]))
    return found[0]


def _since(issuer: IssuerDetail) -> datetime:
    """Return since when a key is in its state."""
    changes = (issuer.retired_at, issuer.retiring_at, issuer.activated_at, issuer.created_at)
    states = ("retired", "retiring", "active", "next")
    if issuer.state in states:
        return changes[states.index(issuer.state)] or issuer.reserved_at
    return issuer.reserved_at


def _issuer_row(issuer: IssuerDetail, now: datetime) -> list[Cell]:
    return [
        cell(issuer.issuer_id),
        cell(issuer.purpose),
        cell(issuer.algorithm),
        _state(issuer.state),
        time_cell(_since(issuer), now),
        cell(f"{issuer.not_after:%Y-%m-%d}" if issuer.not_after else None),
        cell(issuer.crl_number or None),
        cell(issuer.key_origin),
        cell(issuer.key_uri),
        cell(issuer.subject),
        cell(issuer.certificate_sha256),
        cell(issuer.spki_sha256),
        time_cell(issuer.activate_from, now),
        time_cell(issuer.retire_from, now),
    ]


def _issuer_fields(issuer: IssuerDetail, now: datetime) -> list[tuple[str, Cell]]:
    pairs = [
        ("id", cell(issuer.issuer_id)),
        ("purpose", cell(issuer.purpose)),
        ("algorithm", cell(issuer.algorithm)),
        ("state", _state(issuer.state)),
        ("subject", cell(issuer.subject)),
        ("sha-256", cell(issuer.certificate_sha256)),
        ("spki sha-256", cell(issuer.spki_sha256)),
        ("key", cell(issuer.key_uri)),
        ("origin", cell(issuer.key_origin)),
        ("valid until", moment_cell(issuer.not_after, now)),
        ("crl number", cell(issuer.crl_number)),
        ("cross-certified", cell(f"{len(issuer.cross_certificates)} times")),
    ]
    instants = [
        ("created", issuer.created_at),
        ("activated", issuer.activated_at),
        ("retiring", issuer.retiring_at),
        ("retired", issuer.retired_at),
        ("activate from", issuer.activate_from),
        ("retire from", issuer.retire_from),
    ]
    return [*pairs, *((name, moment_cell(at, now)) for name, at in instants if at is not None)]


def _next_steps(detail: CADetail, now: datetime) -> list[str]:
    """Return what can be done next in a rotation that is under way."""
    lines = []
    for issuer in detail.issuers:
        for at, done, command in (
            (issuer.activate_from, "activated", "activate"),
            (issuer.retire_from, "retired", "retire"),
        ):
            if at is None:
                continue
            call = f"attestation ca rotate {command} --purpose {issuer.purpose} --reason TEXT"
            when = "now" if at <= now else ago(at, now)
            # On a line of its own: it is copied.
            lines.append(f"{issuer.issuer_id} can be {done} {when}:\n    {call}")
    return lines


def _state(state: str) -> Cell:
    colours = {"active": "green", "issued": "green", "next": "cyan", "held": "magenta", "retiring": "yellow"}
    return Cell(state, colours.get(state) or cell(state).colour)


def _certificate_row(one: CertificateDetail, now: datetime) -> list[Cell]:
    return [
        cell(one.serial),
        _state(one.state),
        cell(one.profile),
        cell(_cn(one.subject) if one.machine_id is None else one.machine_id[:8], _who(one)),
        time_cell(one.issued_at, now),
        time_cell(one.ended_at or one.not_after, now),
        cell(one.reason),
        cell(_tier(one)),
        cell(one.subject),
        cell(one.issuer_id),
        cell(one.assurance),
        cell(one.requester),
        cell(one.renews),
        cell(one.spki_sha256),
        cell(one.note),
    ]


def _certificate_fields(one: CertificateDetail, now: datetime) -> list[tuple[str, Cell]]:
    pairs = [
        ("serial", cell(one.serial)),
        ("state", _state(one.state)),
        ("profile", cell(one.profile)),
        ("subject", cell(one.subject)),
        ("machine", cell(one.machine_id)),
        ("issuer", cell(one.issuer_id)),
        ("key tier", cell(_tier(one))),
        ("assurance", cell(one.assurance)),
        ("requester", cell(one.requester)),
        ("renews", cell(one.renews)),
        ("spki sha-256", cell(one.spki_sha256)),
        ("valid from", moment_cell(one.not_before, now)),
        ("valid until", moment_cell(one.not_after, now)),
        ("issued", moment_cell(one.issued_at, now)),
    ]
    if one.ended_at is not None:
        pairs += [
            ("ended", moment_cell(one.ended_at, now)),
            ("reason", cell(one.reason)),
            ("note", cell(one.note)),
        ]
    return pairs


def _tier(one: CertificateDetail) -> str | None:
    return None if one.key_tier is None else KEY_TIERS.get(one.key_tier, str(one.key_tier))


def _who(one: CertificateDetail) -> str:
    return one.machine_id or _cn(one.subject)


def _cn(name: str) -> str:
    """Return the common name in a name of RFC 4514, or all of it."""
    found = re.match(r"CN=((?:[^,\\]|\\.)+)", name)
    return re.sub(r"\\(.)", r"\1", found[1]) if found else name


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
