"""`attestation trust …`: whose word about TPMs the service takes."""

# Algorithms for: digest
from __future__ import annotations

import contextlib
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from attestation.endorsements.vendors import SIMULATOR
from attestation.errors import BundleInvalid, MalformedEvidence, RequestInvalid
from attestation.wire import b64encode
from attestation_cli.complete import complete_machine
from attestation_cli.options import listing, new_proposal_option, printing
from attestation_cli.render import Cell, Column, cell, time_cell
from attestation_cli.session import Ambiguous, Session

if TYPE_CHECKING:
    from attestation.api import EndorsementDetail, TrustBundleDetail, TrustCertificateDetail, TrustVerdict
    from attestation.endorsements.bundle import Role

MAX_FILE_BYTES = 65_536
LEAST_DIGITS = 8

REASON = click.option("--reason", required=True, help="Why; it stands in the audit log.")


@click.group("trust")
def group() -> None:
    """Whose word about TPMs the service takes, and what that means for a machine.

    What is in a trust bundle on disk: attestation tpm-bundle.

    \b
    Examples:
      attestation trust list --vendor IFX
      attestation trust show cp-1
      attestation trust add ntc-root.der --vendor NTC --role anchor \\
          --reason "fingerprint compared"
    """


@group.command("list")
@click.option("--vendor", metavar="NAME", help="Only this vendor, e.g. IFX.")
@click.option("--distrusted", is_flag=True, help="Only what is distrusted.")
@listing
def list_(session: Session, vendor: str | None, *, distrusted: bool) -> None:
    """List the certificates of the trust bundle in force.

    \b
    Examples:
      attestation trust list
      attestation trust list --distrusted -o json
    """
    from attestation_cli.trust_files import short_name

    with session.client() as client:
        bundle = client.trust_bundle()
    found = sorted(
        (
            c
            for c in bundle.certificates
            if (vendor is None or c.vendor == vendor.upper()) and (not distrusted or c.status == "distrusted")
        ),
        key=lambda c: (c.vendor, c.role, short_name(c.subject)),
    )
    if session.json:
        session.emit_json(iter(found))
        return
    now = datetime.now(UTC)
    session.emit_rows(
        found,
        {
            Column("VENDOR"): lambda c: c.vendor,
            Column("ROLE"): lambda c: c.role,
            Column("SUBJECT", shrink_to=16): lambda c: short_name(c.subject),
            Column("SHA-256", shrink_to=17): lambda c: c.sha256,
            Column("UNTIL", drop=2): lambda c: f"{c.not_after:%Y-%m-%d}",
            Column("STATUS"): lambda c: c.status,
            Column("FROM", drop=1): lambda c: c.origin,
            Column("CHANGED", drop=3): lambda c: time_cell(c.changed_at, now) if c.changed_at else cell(None),
        },
        "No certificates: no vendor is trusted.",
    )
    if not bundle.verifying:
        session.note("ITL_TPM_VERIFY_CA is off: the service verifies no chain.")


@group.command("unknown")
@listing
def unknown(session: Session) -> None:
    """List issuers that the bundle does not hold, as machines that wait name them: hints, and no proof.

    Look for each in its vendor's own publications before you trust it (`attestation trust add`).

    \b
    Examples:
      attestation trust unknown
    """
    with session.client() as client:
        session.emit_list(
            client.unknown_issuers(),
            {
                Column("ISSUER", shrink_to=24): lambda u: u.issuer,
                Column("SAYS IT IS OF"): lambda u: u.claimed_vendor,
                Column("MISSING"): lambda u: u.role,
                Column("SERIAL", drop=1): lambda u: cell(u.hw_serial),
                Column("MACHINE"): lambda u: u.machine_id,
            },
            "No machine that waits names an issuer that the bundle does not hold.",
        )


@group.command("advisories")
@click.option("--vendor", metavar="NAME", help="Only this vendor, e.g. IFX.")
@listing
def advisories(session: Session, vendor: str | None) -> None:
    """List what was published about firmware of TPMs, and what follows for a machine with it.

    \b
    Examples:
      attestation trust advisories --vendor IFX
      attestation trust advisories -o json
    """
    with session.client() as client:
        found = client.advisories().advisories
    session.emit_list(
        (each for each in found if vendor in (None, each.vendor)),
        {
            Column("ADVISORY"): lambda a: a.advisory,
            Column("VENDOR"): lambda a: a.vendor,
            Column("VERSIONS", shrink_to=16): lambda a: ", ".join(a.versions),
            Column("AFFECTS", drop=3): lambda a: a.affects,
            Column("SEVERITY", drop=2): lambda a: a.severity,
            Column("FOLLOWS"): lambda a: a.action,
            Column("FIXED", drop=4): lambda a: cell(a.fixed),
            Column("FROM", drop=1): lambda a: a.origin,
        },
        "No advisories.",
    )


@group.command()
@click.argument("machine", shell_complete=complete_machine)
@printing
def show(session: Session, machine: str) -> None:
    """Show who vouches for the TPM of MACHINE, certificate by certificate.

    \b
    Examples:
      attestation trust show cp-1
    """
    with session.client() as client:
        detail = session.find(client, machine)
        endorsement = client.endorsement(detail.machine_id)
        undecided = endorsement.unknown_issuer and detail.status == "pending_approval"
        role = _missing_role(endorsement, client.trust_bundle()) if undecided and not session.json else None
    if session.json:
        session.emit_json(endorsement)
        return
    session.emit_fields(
        [
            ("machine", cell(detail.machine_id)),
            ("assurance", cell(endorsement.assurance)),
            ("says it is of", cell(endorsement.claimed_vendor or None)),
            *_verdict(endorsement),
            ("judged", time_cell(endorsement.judged_at, datetime.now(UTC))),
            *([("unknown issuer", cell(endorsement.unknown_issuer))] if endorsement.unknown_issuer else []),
        ]
    )
    _emit_path(session, endorsement)
    if role is not None:
        ways = [f"attestation machine approve {detail.machine_id} --role ROLE --accept-ek"]
        if endorsement.claimed_vendor != SIMULATOR:
            vendor = endorsement.claimed_vendor or "NAME"
            ways.append(f"attestation trust add FILE --vendor {vendor} --role {role} --reason TEXT")
        ways.append(f"attestation machine reject {detail.machine_id} --reason TEXT")
        session.note(
            "\n  ".join(
                ["Nobody we know signed that. Compare it with the vendor's publication, then:", *ways]
            )
        )


@group.command()
@click.argument("file", type=click.File("rb"))
@click.option(
    "--vendor", metavar="NAME", required=True, help="Whose it is: name in the TCG registry, e.g. IFX."
)
@click.option(
    "--role",
    type=click.Choice(["anchor", "intermediate"]),
    required=True,
    help="An anchor is believed by itself; an intermediate must chain to one.",
)
@REASON
@click.option("--yes", is_flag=True, help="Do not ask.")
@new_proposal_option
@printing
def add(session: Session, file: Any, vendor: str, role: str, reason: str, *, yes: bool) -> None:
    """Trust the CA certificate in FILE (DER or PEM) from now on.

    Whoever holds its key can vouch for TPMs. Compare the SHA-256 with the vendor's own publication first.
    Where dual control asks for several people, an anchor needs their votes; this is yours.

    \b
    Examples:
      attestation trust add ntc-root.der --vendor NTC --role anchor \\
          --reason "fingerprint compared"
    """
    from attestation.api import PendingApproval
    from attestation.evidence import ek_certificate

    data = _read(file)
    import hashlib

    with _certificate_in(file.name, data):
        der = ek_certificate.parse(data).der
    digest = hashlib.sha256(der).hexdigest()
    session.confirm(f"Believe what the key of {digest} signs about TPMs of {vendor.upper()}?", yes=yes)
    with session.client() as client:
        answer = client.trust_certificate(b64encode(der), role=role, vendor=vendor.upper(), reason=reason)
    if isinstance(answer, PendingApproval):
        session.emit_pending(answer, f"{role} of {vendor.upper()} {digest[:16]}…")
        return
    _emit_certificate(session, "trusted", answer)


@group.command()
@click.argument("sha256")
@REASON
@click.option("--yes", is_flag=True, help="Do not ask.")
@printing
def distrust(session: Session, sha256: str, reason: str, *, yes: bool) -> None:
    """Distrust a certificate at once; SHA256 may be its beginning (at least 8 hex).

    Every machine that it vouched for falls to the level of trust on first use in the same moment.

    \b
    Examples:
      attestation trust distrust 899e35474c98 --reason "key compromised"
    """
    with session.client() as client:
        found = _find(client.trust_bundle(), sha256)
        session.confirm(
            f"Distrust {found.role} {found.sha256[:16]}… of {found.vendor}? Machines that it vouched for fall at once.",
            yes=yes,
        )
        answer = client.distrust_certificate(found.sha256, reason)
    _emit_certificate(session, "distrusted", answer)


@group.command()
@click.argument("sha256")
@REASON
@new_proposal_option
@printing
def restore(session: Session, sha256: str, reason: str) -> None:
    """Trust a distrusted certificate again; SHA256 may be its beginning (at least 8 hex).

    Where dual control asks for several people, this is your vote.

    \b
    Examples:
      attestation trust restore 899e35474c98 --reason "false alarm"
    """
    from attestation.api import PendingApproval

    with session.client() as client:
        found = _find(client.trust_bundle(), sha256)
        answer = client.restore_certificate(found.sha256, reason)
    if isinstance(answer, PendingApproval):
        session.emit_pending(answer, f"{found.role} of {found.vendor} {found.sha256[:16]}…")
        return
    _emit_certificate(session, "trusted again", answer)


@group.command()
@click.argument("file", type=click.File("rb"))
@printing
def verify(session: Session, file: Any) -> None:
    """Ask the service what it says of the EK certificate in FILE (DER, PEM, or as read from NV).

    \b
    Examples:
      tpm2_nvread 0x1c0000a -o ek.der && attestation trust verify ek.der
    """
    data = _read(file)
    with session.client() as client, _certificate_in(file.name, data):
        verdict = client.verify_ek_certificate(b64encode(data))
    if session.json:
        session.emit_json(verdict)
        return
    session.emit_fields(_verdict(verdict))
    _emit_path(session, verdict)


def _missing_role(endorsement: EndorsementDetail, bundle: TrustBundleDetail) -> Role:
    """Return what the certificate of the unknown issuer has to become."""
    from attestation.endorsements.missing import missing_role

    return missing_role(
        endorsement.unknown_issuer or "",
        below=endorsement.path[-1].subject if endorsement.path else "",
        vendor=endorsement.claimed_vendor,
        anchored={c.vendor for c in bundle.certificates if (c.role, c.status) == ("anchor", "active")},
    )


def _verdict(verdict: TrustVerdict) -> list[tuple[str, Cell]]:
    return [
        ("vouched for", cell(f"yes, by {verdict.vendor}" if verdict.ok else "no")),
        ("because", cell(verdict.reason)),
        ("revocation", cell(verdict.revocation)),
        ("bundle", cell(verdict.bundle_sha256)),
    ]


def _emit_path(session: Session, verdict: TrustVerdict) -> None:
    if not verdict.path:
        return
    from attestation_cli.trust_files import short_name

    session.emit_rows(
        verdict.path,
        {
            Column("PATH"): lambda step: step.role,
            Column("SUBJECT", shrink_to=16): lambda step: short_name(step.subject) or None,
            Column("SHA-256", shrink_to=13, drop=1): lambda step: step.sha256,
            Column("GOOD"): lambda step: "yes" if step.ok else "no",
            Column("WHY", shrink_to=12): lambda step: step.reason,
        },
        "",
    )


def _emit_certificate(session: Session, done: str, certificate: TrustCertificateDetail) -> None:
    session.emit_done(
        f"{certificate.role} of {certificate.vendor} {certificate.sha256[:16]}…: {done}",
        certificate.model_dump(mode="json"),
    )


def _find(bundle: TrustBundleDetail, beginning: str) -> TrustCertificateDetail:
    wanted = beginning.lower().replace(":", "")
    if len(wanted) < LEAST_DIGITS:
        raise RequestInvalid(f"the SHA-256 needs at least {LEAST_DIGITS} hex digits")
    found = [c for c in bundle.certificates if c.sha256.startswith(wanted)]
    if not found:
        from attestation.errors import TrustCertificateUnknown

        raise TrustCertificateUnknown(f"no certificate of the trust bundle begins with {wanted}")
    if len(found) > 1:
        raise Ambiguous("\n".join([f"{wanted} may mean any of", *(c.sha256 for c in found[:20])]))
    return found[0]


@contextlib.contextmanager
def _certificate_in(name: str, data: bytes) -> Iterator[None]:
    """Say of *data*, of the file *name*, that no certificate could be read in it.

    Raises:
        BundleInvalid: In place of `MalformedEvidence`.
    """
    try:
        yield
    except MalformedEvidence as e:
        from attestation_cli.trust_files import unreadable

        raise BundleInvalid(unreadable(name, data, e)) from e


def _read(file: Any) -> bytes:
    try:
        data: bytes = file.read(MAX_FILE_BYTES + 1)
    except OSError as e:
        raise RequestInvalid(f"{file.name}: {e.strerror}") from e
    if len(data) > MAX_FILE_BYTES:
        raise RequestInvalid(f"{file.name}: longer than {MAX_FILE_BYTES} bytes")
    return data
