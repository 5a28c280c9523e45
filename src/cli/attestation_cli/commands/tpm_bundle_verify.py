"""`attestation tpm-bundle verify`: is a bundle whole, does a manufacturer vouch for an EK certificate?"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from attestation.client.text import clean
from attestation.errors import BundleInvalid, MalformedEvidence, RequestInvalid
from attestation_cli.options import EXISTING_FILE, printing
from attestation_cli.render import Cell, Column, cell
from attestation_cli.session import Session
from attestation_cli.tpm_bundle_options import directory_option, existing, keys_of, keys_options, small_file

if TYPE_CHECKING:
    from attestation.audit.note import VerifierKey
    from attestation.endorsements.bundle import BundleEntry, TrustBundle
    from attestation.endorsements.certificate import Certificate
    from attestation.endorsements.missing import MissingIssuer
    from attestation.tpm_bundle.files import Contents


@click.command()
@click.argument("paths", metavar="[FILE|FOLDER]…", nargs=-1, type=existing)
@click.option(
    "--chain",
    multiple=True,
    type=EXISTING_FILE,
    help="Certificates that came with the EK certificate, as hints.",
)
@directory_option(exists=True)
@keys_options
@printing
@click.pass_context
def verify(
    ctx: click.Context,
    session: Session,
    paths: tuple[Path, ...],
    chain: tuple[Path, ...],
    directory: Path | None,
    vkeys: tuple[str, ...],
    vkeys_file: Path | None,
) -> None:
    """Verify an EK certificate, or a bundle: what is shipped and your own, a FOLDER, an archive.

    Of a bundle: every file is the one that its manifest pins, and every intermediate leads to an anchor. Of an EK
    certificate (DER, PEM, or as read from the TPM): every certificate on its way, and whether a manufacturer
    vouches for it. Ends with 1 where the answer is no.

    \b
    Examples:
      attestation tpm-bundle verify
      attestation tpm-bundle verify ek.der --chain intermediates.pem
      attestation tpm-bundle verify new-bundle/ --vkeys-file release.vkeys
    """
    import zipfile

    bundles = [p for p in paths if p.is_dir() or zipfile.is_zipfile(p)]
    if (vkeys or vkeys_file) and paths and not bundles:
        raise RequestInvalid("keys are for bundles; an EK certificate is signed by its manufacturer")
    keys = keys_of(vkeys, vkeys_file)
    subjects: list[str | Path] = list(paths)
    if not paths:
        from attestation_cli import trust_files

        subjects = [trust_files.SHIPPED, *([] if directory is None else [directory])]
    good, documents = True, []
    for number, subject in enumerate(subjects):
        if number:
            _between(session)
        if isinstance(subject, Path) and paths and subject not in bundles:
            document = _verify_certificate(session, subject, chain, directory)
            good &= document["ok"] is True
        else:
            document = _verify_bundle(session, subject, keys if isinstance(subject, Path) else ())
            good &= document["valid"] is True
        documents.append(document)
    if session.json:
        # One is a document, several are a list of them.
        session.emit_json(documents[0] if len(documents) == 1 else iter(documents))
    ctx.exit(0 if good else 1)


def _verify_bundle(session: Session, path: str | Path, keys: Sequence[VerifierKey]) -> dict[str, object]:
    """Verify a bundle, show what came of it where people read, and return it for programs."""
    from attestation.tpm_bundle.signature import verify_manifest
    from attestation_cli import trust_files

    now = datetime.now(UTC)
    contents: Contents | None = None
    bundle: TrustBundle | None = None
    error, signer = None, None
    chains: list[tuple[BundleEntry, str]] = []
    try:
        contents = trust_files.read_bundle(path)
        bundle = trust_files.bundle_of(contents)
        if keys:
            signer = verify_manifest(contents, keys).name
        over = bundle if path == trust_files.SHIPPED else trust_files.combined(contents)
        chains = trust_files.unchained(over, contents, at=now)
    except BundleInvalid as e:
        error, bundle = str(e), None
    good = error is None and not chains
    document: dict[str, object] = {
        "bundle": str(path),
        "valid": good,
        "error": error,
        "sha256": None if bundle is None else bundle.sha256,
        "version": None if contents is None else contents.manifest.version,
        "anchors": None if bundle is None else len(bundle.anchors),
        "intermediates": None if bundle is None else len(bundle.intermediates),
        "signed_by": signer,
        "without_anchor": [{"sha256": e.sha256, "reason": reason} for e, reason in chains],
    }
    if session.json:
        return document
    rows = [
        ("bundle", cell(str(path))),
        ("verdict", Cell("valid", "green") if good else Cell("INVALID", "red")),
    ]
    if error is not None:
        rows.append(("why", cell(error)))
    if contents is not None and bundle is not None:
        rows += _bundle_rows(contents, bundle, signer, chains)
    session.emit_fields(rows)
    if session.output != "csv":
        for entry, reason in chains:
            session.emit(f"  {clean(trust_files.short_name(entry.subject))}: {clean(reason)}")
    return document


def _bundle_rows(
    contents: Contents, bundle: TrustBundle, signer: str | None, chains: Sequence[tuple[BundleEntry, str]]
) -> list[tuple[str, Cell]]:
    from attestation_cli import trust_files

    counts = ", ".join(
        f"{vendor}\u00a0{a}" + (f"+{i}" if i else "")
        for vendor, (a, i) in trust_files.by_vendor(bundle).items()
    )
    signed = signer or ("there is a signature; no key was given" if contents.signature else None)
    files = f"{len(contents.certificates)}, each as its manifest pins it"
    return [
        ("version", cell(contents.manifest.version if contents.document else None)),
        ("files", cell(files if contents.document else f"{len(contents.certificates)}, without a manifest")),
        ("anchors", cell(len(bundle.anchors))),
        (
            "intermediates",
            cell(
                f"{len(bundle.intermediates)}, "
                + (f"{len(chains)} of them without an anchor" if chains else "each leads to an anchor")
                if bundle.intermediates
                else 0
            ),
        ),
        ("of", Cell(counts, None, counts.replace("\u00a0", " "))),
        ("signed by", cell(signed)),
        ("sha256", cell(bundle.sha256)),
    ]


def _verify_certificate(
    session: Session, path: Path, chain: Sequence[Path], directory: Path | None
) -> dict[str, object]:
    """Judge an EK certificate, show its path where people read, and return it for programs."""
    from attestation.endorsements.bundle import manufacturer_of
    from attestation.endorsements.missing import issuer_addresses, missing_issuer
    from attestation.endorsements.vendors import SIMULATOR, vendor_or_simulator
    from attestation.evidence import ek_certificate
    from attestation.tpm_bundle.pem import certificates
    from attestation_cli import trust_files

    bundle = trust_files.combined(trust_files.overlay(directory))
    data = small_file(path)
    hints = [der for file in chain for der in certificates(small_file(file), str(file))]
    if data.count(b"-----BEGIN CERTIFICATE-----") > 1:
        # The certificate first, then its chain, as servers keep theirs.
        data, *rest = certificates(data, str(path))
        hints = [*rest, *hints]
    try:
        certificate = ek_certificate.parse(data)
    except MalformedEvidence as e:
        raise RequestInvalid(trust_files.unreadable(str(path), data, e)) from e
    verdict = bundle.verify(certificate.der, hints, at=datetime.now(UTC))
    manufacturer = manufacturer_of(certificate.certificate)
    missing = missing_issuer(verdict, certificate.certificate, _readable(hints), bundle)
    addresses = issuer_addresses(certificate.certificate) if missing is None else missing.addresses
    command = None if missing is None else _import_command(missing, directory)
    named = None if manufacturer is None else vendor_or_simulator(manufacturer)
    document: dict[str, object] = {
        "file": str(path),
        "ok": verdict.ok,
        "reason": verdict.reason,
        "vendor": verdict.vendor,
        "manufacturer": manufacturer,
        "issuer_addresses": list(addresses),
        "missing": None
        if missing is None
        else {
            "role": missing.role.value,
            "vendor": missing.vendor,
            "issuer": missing.issuer,
            "import": command,
        },
        "anchor_sha256": verdict.anchor_sha256,
        "bundle_sha256": verdict.bundle_sha256,
        "path": [
            {"sha256": p.sha256, "subject": p.subject, "role": p.role, "ok": p.ok, "reason": p.reason}
            for p in verdict.path
        ],
    }
    if session.json:
        return document
    session.emit_rows(
        verdict.path,
        {
            Column("ROLE"): lambda p: p.role,
            Column("NAME", shrink_to=28): lambda p: cell(trust_files.short_name(p.subject), p.subject),
            Column("VERDICT"): lambda p: Cell("good", "green") if p.ok else Cell("refused", "red"),
            Column("WHY", shrink_to=16): lambda p: p.reason,
            Column("SHA-256", drop=1): lambda p: cell(p.sha256[:8], p.sha256),
        },
        "No certificate was looked at.",
    )
    if session.output != "csv":
        said = "vouched for" if verdict.ok else "not vouched for"
        session.emit("")
        session.emit_fields(
            [
                ("file", cell(str(path))),
                ("verdict", Cell(said, "green" if verdict.ok else "red")),
                ("why", cell(verdict.reason)),
                ("manufacturer", cell(manufacturer and f"{named or 'not registered'} ({manufacturer})")),
                ("issuer at", cell(" ".join(addresses) or None)),
                ("bundle", cell(f"{(verdict.bundle_sha256 or '')[:16]}…", verdict.bundle_sha256)),
            ]
        )
    if missing is not None:
        _tell_missing(session, missing, command)
    if SIMULATOR in (verdict.vendor, named):
        session.note("This is a software TPM: the service believes no certificate about it.")
    return document


def _readable(ders: Sequence[bytes]) -> list[Certificate]:
    from attestation.endorsements.certificate import parse_certificate

    found = []
    for der in ders:
        with suppress(MalformedEvidence):
            found.append(parse_certificate(der))
    return found


def _import_command(missing: MissingIssuer, directory: Path | None) -> str | None:
    """Return the command that imports what is missing; None where no manifest may hold it."""
    if missing.vendor is None:
        return None
    words = [
        "attestation",
        "tpm-bundle",
        "import",
        "FILE",
        "--vendor",
        missing.vendor,
        "--role",
        missing.role,
    ]
    # A manifest holds only addresses of the web as sources.
    source = next((one for one in missing.addresses if one.startswith(("http://", "https://"))), None)
    if source is not None:
        words += ["--source", source]
    return shlex.join([*words, "--dir", "FOLDER" if directory is None else str(directory)])


def _tell_missing(session: Session, missing: MissingIssuer, command: str | None) -> None:
    """Say what is missing and how it is brought; its name and address are a stranger's words."""
    session.note(f"Missing: the {missing.role} {clean(missing.issuer) or 'without a name'}.")
    if missing.addresses:
        session.note(
            "Where it lies is what the certificate says; nothing vouches for the address, nothing was fetched."
        )
    if command is None:
        session.note(
            "The certificate names no manufacturer of the TCG vendor registry: no import makes it vouched for."
        )
    else:
        session.note("Bring it, compare its SHA-256 with what the manufacturer publishes, then:")
        session.note(f"  {clean(command)}")


def _between(session: Session) -> None:
    """Separate two answers for people; programs ask about one at a time, or read one after the other."""
    if session.output in ("table", "wide"):
        session.emit("")
