"""CA keys and certificates as people see them: rows, fields, and PEM in a file."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from attestation.client.text import ago
from attestation.errors import CertificateUnknown, RequestInvalid
from attestation.pki.profiles import KEY_TIERS
from attestation.wire import b64decode, pem
from attestation_cli.render import Cell, Column, cell, moment_cell, time_cell
from attestation_cli.session import Session

if TYPE_CHECKING:
    from attestation.api import CADetail, CertificateDetail, IssuerDetail

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


def issuer_row(issuer: IssuerDetail, now: datetime) -> list[Cell]:
    """Return the cells of a CA key under `ISSUERS`."""
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


def issuer_fields(issuer: IssuerDetail, now: datetime) -> list[tuple[str, Cell]]:
    """Return everything about a CA key, in names and values."""
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


def _certificate_row(one: CertificateDetail, now: datetime) -> list[Cell]:
    return [
        cell(one.serial),
        _state(one.state),
        cell(one.profile),
        cell(name_in(one.subject) if one.machine_id is None else one.machine_id[:8], owner_of(one)),
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
    if one.ended_at is not None:
        pairs += [
            ("ended", moment_cell(one.ended_at, now)),
            ("reason", cell(one.reason)),
            ("note", cell(one.note)),
        ]
    return pairs


def _tier(one: CertificateDetail) -> str | None:
    return None if one.key_tier is None else KEY_TIERS.get(one.key_tier, str(one.key_tier))


def owner_of(one: CertificateDetail) -> str:
    """Return whose a certificate is: the id of a machine, or a name."""
    return one.machine_id or name_in(one.subject)


def name_in(name: str) -> str:
    """Return the common name in a name of RFC 4514, or all of it."""
    found = re.match(r"CN=((?:[^,\\]|\\.)+)", name)
    return re.sub(r"\\(.)", r"\1", found[1]) if found else name
