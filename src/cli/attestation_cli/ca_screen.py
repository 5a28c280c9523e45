"""CA keys and certificates as people see them: rows, fields, and PEM in a file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from attestation.client.text import ago
from attestation.errors import CertificateUnknown, IssuerUnknown, RequestInvalid
from attestation.pki.profiles import KEY_TIERS
from attestation.wire import b64decode, pem
from attestation_cli.options import FILE_PATH
from attestation_cli.render import Cell, Column, cell, moment_cell, time_cell
from attestation_cli.session import Ambiguous, Session

if TYPE_CHECKING:
    from attestation.api import CADetail, CertificateDetail, IssuerDetail

FILE = click.option("-f", "--file", type=FILE_PATH, help="Write it there instead.")


STATES = ("reserved", "issued", "held", "revoked", "void")
REASONS = (
    "unspecified",
    "keyCompromise",
    "affiliationChanged",
    "superseded",
    "cessationOfOperation",
    "privilegeWithdrawn",
)
STATE = click.option("--state", type=click.Choice(STATES), help="Only in this state.")
LIMIT = click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=50,
    show_default=True,
    help="Show at most so many; 0 shows all.",
)
REASON = click.option(
    "--reason",
    type=click.Choice(REASONS),
    metavar="WORD",
    default="unspecified",
    show_default=True,
    help="Stands in the revocation list.",
)
NOTE = click.option("-n", "--note", help="Why, in words; kept in the audit.")
LEAST_DIGITS = 4
YES = click.option("--yes", is_flag=True, help="Do not ask.")


def emit_issuers(session: Session, found: Iterable[IssuerDetail], nothing: str) -> None:
    """Print the keys of the CA, one a row."""
    now = datetime.now(UTC)
    session.emit_rows(
        found,
        {
            Column("ID"): lambda issuer: issuer.issuer_id,
            Column("PURPOSE", drop=3): lambda issuer: issuer.purpose,
            Column("ALGORITHM"): lambda issuer: issuer.algorithm,
            Column("STATE"): lambda issuer: _state(issuer.state),
            Column("SINCE", drop=1): lambda issuer: time_cell(_since(issuer), now),
            Column("UNTIL", drop=2): lambda issuer: (
                f"{issuer.not_after:%Y-%m-%d}" if issuer.not_after else None
            ),
            Column("CRL", drop=5): lambda issuer: issuer.crl_number or None,
            Column("ORIGIN", drop=6): lambda issuer: issuer.key_origin,
            Column("KEY", shrink_to=24, drop=4): lambda issuer: issuer.key_uri,
            Column("SUBJECT", wide=True): lambda issuer: issuer.subject,
            Column("SHA-256", wide=True): lambda issuer: issuer.certificate_sha256,
            Column("SPKI SHA-256", wide=True): lambda issuer: issuer.spki_sha256,
            Column("ACTIVATE FROM", wide=True): lambda issuer: time_cell(issuer.activate_from, now),
            Column("RETIRE FROM", wide=True): lambda issuer: time_cell(issuer.retire_from, now),
        },
        nothing,
    )


def find_issuer(detail: CADetail, beginning: str) -> IssuerDetail:
    """Return the CA key whose id begins so.

    Raises:
        IssuerUnknown: None does.
        Ambiguous: Several do.
        RequestInvalid: Too short to say.
    """
    wanted = beginning.lower()
    if len(wanted) < LEAST_DIGITS:
        raise RequestInvalid(f"the id of a CA key needs at least {LEAST_DIGITS} hex digits")
    found = [issuer for issuer in detail.issuers if issuer.issuer_id.startswith(wanted)]
    if not found:
        raise IssuerUnknown(f"no CA key's id begins with {wanted}")
    if len(found) > 1:
        raise Ambiguous("\n".join([f"{wanted} may mean any of", *(i.issuer_id for i in found)]))
    return found[0]


def emit_certificates(session: Session, found: Iterator[CertificateDetail]) -> None:
    """List certificates of the issuance log."""
    now = datetime.now(UTC)
    session.emit_list(
        found,
        {
            Column("SERIAL", shrink_to=13): lambda one: one.serial,
            Column("STATE"): lambda one: _state(one.state),
            Column("PROFILE", drop=2): lambda one: one.profile,
            Column("WHO", shrink_to=13): lambda one: cell(
                name_in(one.subject) if one.machine_id is None else one.machine_id[:8], owner_of(one)
            ),
            Column("ISSUED", drop=1): lambda one: time_cell(one.issued_at, now),
            Column("ENDS"): lambda one: time_cell(one.ended_at or one.not_after, now),
            Column("REASON", drop=3): lambda one: one.reason,
            Column("KEY TIER", drop=4): lambda one: _tier(one),
            Column("SUBJECT", wide=True): lambda one: one.subject,
            Column("ISSUER", wide=True): lambda one: one.issuer_id,
            Column("ASSURANCE", wide=True): lambda one: one.assurance,
            Column("REQUESTER", wide=True): lambda one: one.requester,
            Column("RENEWS", wide=True): lambda one: one.renews,
            Column("SPKI SHA-256", wide=True): lambda one: one.spki_sha256,
            Column("NOTE", wide=True): lambda one: one.note,
        },
        "No certificates.",
    )


def emit_pem(session: Session, certificate: CertificateDetail, file: Path | None) -> None:
    """Print a certificate in PEM, or write it to *file*.

    Raises:
        CertificateUnknown: Nothing was issued under its serial number.
    """
    if certificate.certificate is None:
        raise CertificateUnknown(f"serial {certificate.serial} is {certificate.state}: nothing was issued")
    text = pem("CERTIFICATE", b64decode(certificate.certificate, "certificate"))
    if file is not None:
        write_file(session, file, text.encode(), f"certificate {certificate.serial}")
    else:
        session.emit(text.rstrip())


def write_file(session: Session, file: Path, data: bytes, what: str) -> None:
    """Write *data* into *file* and tell so; *what* it is, for that remark.

    Raises:
        RequestInvalid: It cannot be written.
    """
    try:
        file.write_bytes(data)
    except OSError as e:
        raise RequestInvalid(f"{file} cannot be written: {e.strerror}") from e
    session.note(f"{file}: {what}, {len(data)} bytes")


def _since(issuer: IssuerDetail) -> datetime:
    """Return since when a key is in its state."""
    changes = (issuer.retired_at, issuer.retiring_at, issuer.activated_at, issuer.created_at)
    states = ("retired", "retiring", "active", "next")
    if issuer.state in states:
        return changes[states.index(issuer.state)] or issuer.reserved_at
    return issuer.reserved_at


def _root(issuer: IssuerDetail) -> str:
    """Return whom relying parties believe about a CA key."""
    if not issuer.parents:
        return "itself"
    from cryptography import x509

    root = x509.load_der_x509_certificate(b64decode(issuer.parents[-1], "certificate"))
    return f"{root.subject.rfc4514_string()} ({len(issuer.parents)} above)"


def issuer_fields(issuer: IssuerDetail, now: datetime) -> list[tuple[str, Cell]]:
    """Return everything about a CA key, in names and values."""
    pairs = [
        ("id", cell(issuer.issuer_id)),
        ("purpose", cell(issuer.purpose)),
        ("algorithm", cell(issuer.algorithm)),
        ("state", _state(issuer.state)),
        ("subject", cell(issuer.subject)),
        ("certified by", cell(_root(issuer))),
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


def next_steps(detail: CADetail, now: datetime) -> list[str]:
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


def certificate_fields(one: CertificateDetail, now: datetime) -> list[tuple[str, Cell]]:
    """Return everything about a certificate, in names and values."""
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
    if one.no_rev_avail:
        pairs.append(("revocation", cell("nobody can ask (noRevAvail)")))
    if one.ended_at is not None:
        pairs += [
            ("ended", moment_cell(one.ended_at, now)),
            ("reason", cell(one.reason)),
            ("note", cell(one.note)),
        ]
    return pairs


def unseen(one: CertificateDetail) -> str:
    """Say of a certificate with noRevAvail that its revocation is not seen."""
    return f"Relying parties do not ask about it (noRevAvail), and believe it until {one.not_after:%Y-%m-%d %H:%M} UTC."


def _tier(one: CertificateDetail) -> str | None:
    return None if one.key_tier is None else KEY_TIERS.get(one.key_tier, str(one.key_tier))


def owner_of(one: CertificateDetail) -> str:
    """Return whose a certificate is: the id of a machine, or a name."""
    return one.machine_id or name_in(one.subject)


def name_in(name: str) -> str:
    """Return the common name in a name of RFC 4514, or all of it."""
    found = re.match(r"CN=((?:[^,\\]|\\.)+)", name)
    return re.sub(r"\\(.)", r"\1", found[1]) if found else name
