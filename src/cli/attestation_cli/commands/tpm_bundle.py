"""`attestation tpm-bundle …`: which manufacturers' certificates vouch for TPMs; without service and network."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from attestation.client.text import clean
from attestation.errors import BundleInvalid, MalformedEvidence, RequestInvalid
from attestation_cli.render import Cell, Column, cell, wrap
from attestation_cli.session import Session, output_option, pass_session

if TYPE_CHECKING:
    from attestation.audit.note import VerifierKey
    from attestation.endorsements.bundle import BundleEntry, TrustBundle
    from attestation.endorsements.certificate import Certificate
    from attestation.endorsements.missing import MissingIssuer
    from attestation.tpm_bundle.files import Contents
    from attestation_cli.trust_files import Change

Command = TypeVar("Command", bound=Callable[..., Any])

DIRECTORY = "ITL_TPM_CA_BUNDLE_DIR"
MAX_CERTIFICATE_FILE_BYTES = 65_536


@click.group("tpm-bundle")
def group() -> None:
    """Which manufacturers' certificates vouch for TPMs.

    What is shipped, and the folder of your own that the service reads over it (ITL_TPM_CA_BUNDLE_DIR).
    Nothing here asks the service or the network.

    \b
    Examples:
      attestation tpm-bundle list --vendor NTC
      attestation tpm-bundle verify ek.der
      attestation tpm-bundle import certs/ --vendor NTC --dir /etc/itl/tpm-ca
    """


existing = click.Path(exists=True, path_type=Path)


def directory_option(*, exists: bool) -> Callable[[Command], Command]:
    """Add --dir; a folder that is read must be there, or a typing error would look like an empty one."""
    return click.option(
        "--dir",
        "directory",
        envvar=DIRECTORY,
        type=click.Path(exists=exists, file_okay=False, path_type=Path),
        help=f"The folder of your own [{DIRECTORY}]" + ("" if exists else "; made where there is none"),
    )


def keys_options(command: Command) -> Command:
    """Add the options that say whose signature is demanded."""
    for option in (
        click.option(
            "--vkeys-file",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            help="File with vkeys, one a line; one of them must have signed.",
        ),
        click.option(
            "--vkey", "vkeys", multiple=True, metavar="VKEY", help="A key that must have signed the manifest."
        ),
    ):
        command = option(command)
    return command


@group.command("list")
@click.option(
    "--vendor", metavar="NAME", help="Only of this manufacturer, as the TCG names it: IFX, NTC, STM."
)
@click.option("--role", type=click.Choice(["anchor", "intermediate"]), help="Only these.")
@directory_option(exists=True)
@output_option
@pass_session
def list_(session: Session, vendor: str | None, role: str | None, directory: Path | None) -> None:
    """List the certificates: what is shipped, and your own.

    `-o wide` and `-o csv` tell all of each: whole subjects and hashes, where it was published, why it is believed.

    \b
    Examples:
      attestation tpm-bundle list
      attestation tpm-bundle list --vendor STM -o wide
      attestation tpm-bundle list -o csv > anchors.csv
    """
    from attestation.endorsements.bundle import tag_of
    from attestation_cli import trust_files

    own = trust_files.overlay(directory)
    bundle = trust_files.combined(own)
    added = set() if own is None else {entry.sha256 for entry, _ in own.certificates}
    now = datetime.now(UTC)
    shown = sorted(
        (
            h
            for h in bundle.held
            if (vendor is None or h.entry.vendor == tag_of(vendor)) and (role is None or h.entry.role == role)
        ),
        key=lambda h: (
            h.entry.vendor,
            h.entry.role,
            trust_files.short_name(h.certificate.subject),
            h.entry.sha256,
        ),
    )
    if session.json:
        session.emit_json(
            {
                "sha256": bundle.sha256,
                "certificates": [
                    {
                        **h.entry.members(),
                        "subject": h.certificate.subject,
                        "status": trust_files.status_word(h, bundle, now),
                        "reason": bundle.distrust_of(h.entry.sha256),
                        "origin": "directory" if h.entry.sha256 in added else "shipped",
                    }
                    for h in shown
                ],
            }
        )
        return
    session.emit_table(
        [
            Column("VENDOR"),
            Column("ROLE"),
            Column("NAME", shrink_to=28),
            Column("UNTIL"),
            Column("STATUS"),
            Column("SHA-256", drop=1),
            Column("ORIGIN", drop=2),
            Column("NOT BEFORE", wide=True),
            Column("KEY", wide=True),
            Column("SPKI SHA-256", wide=True),
            Column("SOURCES", wide=True),
            Column("EVIDENCE", wide=True),
            Column("REASON", wide=True),
        ],
        [
            [
                cell(h.entry.vendor),
                cell(h.entry.role.value),
                cell(trust_files.short_name(h.certificate.subject), h.certificate.subject),
                cell(f"{h.certificate.not_after:%Y-%m-%d}"),
                _status(trust_files.status_word(h, bundle, now)),
                cell(h.entry.sha256[:8], h.entry.sha256),
                cell("directory") if h.entry.sha256 in added else cell(None, "shipped"),
                cell(f"{h.certificate.not_before:%Y-%m-%d}"),
                cell(h.certificate.key),
                cell(h.entry.spki_sha256),
                cell(" ".join(h.entry.sources)),
                cell(h.entry.evidence),
                cell(bundle.distrust_of(h.entry.sha256)),
            ]
            for h in shown
        ],
        "No certificates.",
    )
    if session.output == "table" and shown:
        anchors = sum(h.entry.role == "anchor" for h in shown)
        told = f"{_count(anchors, 'anchor')}, {_count(len(shown) - anchors, 'intermediate')}"
        session.note(f"{told}; bundle {bundle.sha256[:16]}…")


@group.command()
@click.argument("paths", metavar="[FILE|FOLDER]…", nargs=-1, type=existing)
@click.option(
    "--chain",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Certificates that came with the EK certificate, as hints.",
)
@directory_option(exists=True)
@keys_options
@output_option
@pass_session
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
    keys = _keys(vkeys, vkeys_file)
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


@group.command()
@click.argument("before", metavar="BEFORE")
@click.argument("after", metavar="AFTER")
@output_option
@pass_session
@click.pass_context
def diff(ctx: click.Context, session: Session, before: str, after: str) -> None:
    """Say what differs between two bundles: folders, archives, or the word `shipped`.

    Ends with 0 where nothing does, else with 1.

    \b
    Examples:
      attestation tpm-bundle diff shipped /etc/itl/tpm-ca
      attestation tpm-bundle diff old/ itl_attestation_sdk-0.2.0-py3-none-any.whl
    """
    from attestation_cli import trust_files

    old, new = trust_files.read_bundle(before), trust_files.read_bundle(after)
    changes = trust_files.differences(old.manifest, new.manifest)
    if session.json:
        session.emit_json({"equal": not changes, "changes": [_change_members(c) for c in changes]})
    else:
        _emit_changes(session, changes, "Nothing differs.")
    ctx.exit(1 if changes else 0)


@group.command("import")
@click.argument("files", metavar="FILE|FOLDER…", nargs=-1, required=True, type=existing)
@click.option("--vendor", metavar="NAME", help="Whose they are, as the TCG names it: IFX, NTC, STM.")
@click.option(
    "--role",
    type=click.Choice(["anchor", "intermediate"]),
    help="What they are; by default self-issued ones are anchors.",
)
@click.option(
    "--source", "sources", multiple=True, metavar="URL", help="Where the manufacturer publishes them."
)
@click.option("--evidence", default="imported by an operator", help="Why you believe that they are genuine.")
@click.option("--distrusted", metavar="REASON", help="Take them in as distrusted: they are never used.")
@click.option("--allow-sha1", is_flag=True, help="Their own signatures may be SHA-1; their bytes are pinned.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@directory_option(exists=False)
@output_option
@pass_session
@click.pass_context
def import_(
    ctx: click.Context,
    session: Session,
    files: tuple[Path, ...],
    vendor: str | None,
    role: str | None,
    sources: tuple[str, ...],
    evidence: str,
    distrusted: str | None,
    directory: Path | None,
    *,
    allow_sha1: bool,
    yes: bool,
) -> None:
    """Take certificates into the folder of your own, which the service reads at its next start.

    Files are DER, or PEM with any number; whose they are, `--vendor` says, or the name of their folder, or the
    comments of tpm-ca-certificates. Intermediates that lead to no anchor are left out. Compare the fingerprints
    with what the manufacturer publishes before you say yes: whoever is an anchor can vouch for anything as a TPM
    of that manufacturer.

    \b
    Examples:
      attestation tpm-bundle import nuvoton/ --vendor NTC --role anchor \\
        --source https://www.nuvoton.com/security/NTC-TPM-EK-Cert/ \\
        --dir /etc/itl/tpm-ca
      attestation tpm-bundle import tpm-ca-certificates.pem --dir tpm-ca
    """
    from attestation.endorsements.bundle import Role, tag_of
    from attestation.tpm_bundle.files import MANIFEST
    from attestation.tpm_bundle.writing import write_directory
    from attestation_cli import trust_files

    target = _target(directory)
    now = datetime.now(UTC)
    current = trust_files.overlay(target)
    if current is not None and current.document is None and current.certificates:
        raise BundleInvalid(
            f"{target}: has no {MANIFEST}, so its files are yours to keep; import them into another folder"
        )
    wish = trust_files.Wish(
        retrieved=now.date(),
        vendor=None if vendor is None else tag_of(vendor),
        role=None if role is None else Role(role),
        evidence=evidence,
        sources=sources,
        distrusted_because=distrusted,
        allow_sha1=allow_sha1,
    )
    planned = trust_files.plan(files, wish, current, at=now)
    if not session.json:
        _tell_plan(session, planned.added, planned.known, planned.left_out)
    if planned.added:
        session.confirm(
            f"Put {_count(len(planned.added), 'certificate')} into {target}, to be trusted as said?", yes=yes
        )
        write_directory(target, planned.manifest, planned.ders)
    if session.json:
        session.emit_json(
            {
                "directory": str(target),
                "bundle_sha256": planned.bundle.sha256,
                "added": [entry.members() for entry, _ in planned.added],
                "known": [entry.sha256 for entry in planned.known],
                "left_out": [
                    {"sha256": entry.sha256, "subject": entry.subject, "reason": reason}
                    for entry, reason in planned.left_out
                ],
            }
        )
    elif planned.added:
        session.note(
            f"{target}: version {planned.manifest.version}, {len(planned.manifest.entries)} certificates. "
            f"The service reads it at its next start, with {DIRECTORY}={target}"
        )
    ctx.exit(0 if planned.added or not planned.left_out else 1)


@group.command()
@click.argument("source", metavar="FOLDER|ARCHIVE", type=existing)
@click.option("--allow-older", is_flag=True, help="Also go back to a smaller version number.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@directory_option(exists=True)
@keys_options
@output_option
@pass_session
def update(
    session: Session,
    source: Path,
    directory: Path | None,
    vkeys: tuple[str, ...],
    vkeys_file: Path | None,
    *,
    allow_older: bool,
    yes: bool,
) -> None:
    """Put another edition in the place of the folder of your own: shows what differs, asks, then replaces it.

    With a key, only an edition that it signed is taken. An older one is refused: it could bring back what was
    distrusted since.

    \b
    Examples:
      attestation tpm-bundle update new/ --dir /etc/itl/tpm-ca \\
        --vkeys-file release.vkeys
    """
    from attestation.endorsements.bundle import Manifest
    from attestation.tpm_bundle import read_directory
    from attestation.tpm_bundle.writing import write_directory
    from attestation_cli import trust_files

    target = _target(directory)
    new = read_directory(source, _keys(vkeys, vkeys_file))
    if new.document is None:
        raise BundleInvalid(f"{source}: has no manifest; `attestation tpm-bundle import` takes single files")
    current = trust_files.overlay(target)
    before = (
        Manifest(version=0, created=datetime.now(UTC), entries=()) if current is None else current.manifest
    )
    if new.manifest.version < before.version and not allow_older:
        raise BundleInvalid(
            f"{source}: version {new.manifest.version} is older than {before.version} in {target}; "
            "--allow-older goes back all the same"
        )
    changes = trust_files.differences(before, new.manifest)
    # What cannot be used over the shipped bundle is refused before anything is replaced.
    bundle = trust_files.combined(new)
    if not session.json:
        _emit_changes(session, changes, "Nothing differs.")
    same = current is not None and current.document == new.document and current.signature == new.signature
    if not same:
        session.confirm(
            f"Replace {target} (version {before.version}) by version {new.manifest.version}?", yes=yes
        )
        ders = {entry.sha256: der for entry, der in new.certificates}
        write_directory(target, new.manifest, ders, document=new.document, signature=new.signature)
    session_members = {
        "directory": str(target),
        "version": new.manifest.version,
        "bundle_sha256": bundle.sha256,
        "changes": [_change_members(c) for c in changes],
    }
    if session.json:
        session.emit_json(session_members)
    else:
        session.note(
            f"{target}: version {new.manifest.version}, {len(new.manifest.entries)} certificates"
            + (", as it was" if same else "")
        )


@group.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--key",
    "key_file",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="PEM file with your private key of Ed25519.",
)
@click.option("--name", required=True, help="Name of the key: itl.example/tpm-bundle.")
@output_option
@pass_session
def sign(session: Session, folder: Path, key_file: Path, name: str) -> None:
    """Sign the manifest of a bundle that you hand on, and print the vkey that others verify with.

    The signature is written to manifest.json.sig. A key is made by
    `openssl genpkey -algorithm ed25519 -out key.pem`.

    \b
    Examples:
      attestation tpm-bundle sign tpm-ca/ --key key.pem \\
        --name itl.example/tpm-bundle > release.vkeys
    """
    from attestation.audit.note import KeyType, VerifierKey
    from attestation.errors import MalformedNote
    from attestation.keys import load_ed25519
    from attestation.tpm_bundle import read_directory
    from attestation.tpm_bundle.files import SIGNATURE
    from attestation.tpm_bundle.signature import sign_manifest

    contents = read_directory(folder)
    if contents.document is None:
        raise BundleInvalid(f"{folder}: has no manifest to sign")
    key = load_ed25519(f"file:{key_file.absolute()}")
    try:
        vkey = VerifierKey(name=name, type=KeyType.ED25519, key=key.public_key)
    except MalformedNote as e:
        raise RequestInvalid(str(e)) from e
    try:
        (folder / SIGNATURE).write_bytes(sign_manifest(contents.document, key, name))
    except OSError as e:
        raise BundleInvalid(f"{folder / SIGNATURE}: {e.strerror or e}") from e
    session.emit_done(str(vkey), {"vkey": str(vkey), "file": str(folder / SIGNATURE)})


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
    data = _small(path)
    hints = [der for file in chain for der in certificates(_small(file), str(file))]
    if data.count(b"-----BEGIN CERTIFICATE-----") > 1:
        # The certificate first, then its chain, as servers keep theirs.
        data, *rest = certificates(data, str(path))
        hints = [*rest, *hints]
    try:
        certificate = ek_certificate.parse(data)
    except MalformedEvidence as e:
        raise RequestInvalid(f"{path}: {e}") from e
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
    session.emit_table(
        [
            Column("ROLE"),
            Column("NAME", shrink_to=28),
            Column("VERDICT"),
            Column("WHY", shrink_to=16),
            Column("SHA-256", drop=1),
        ],
        [
            [
                cell(p.role),
                cell(trust_files.short_name(p.subject), p.subject),
                Cell("good", "green") if p.ok else Cell("refused", "red"),
                cell(p.reason),
                cell(p.sha256[:8], p.sha256),
            ]
            for p in verdict.path
        ],
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


def _tell_plan(
    session: Session,
    added: Sequence[tuple[BundleEntry, bytes]],
    known: Sequence[BundleEntry],
    left_out: Sequence[tuple[BundleEntry, str]],
) -> None:
    """Show what would be added, with whole fingerprints: they are compared by eye."""
    from attestation_cli.trust_files import short_name

    if session.output in ("csv", "wide"):
        session.emit_table(
            [Column(title) for title in ("VENDOR", "ROLE", "SUBJECT", "UNTIL", "STATUS", "SHA-256")],
            [
                [
                    cell(e.vendor),
                    cell(e.role.value),
                    cell(e.subject),
                    cell(f"{e.not_after:%Y-%m-%d}"),
                    cell(e.status.value),
                    cell(e.sha256),
                ]
                for e, _ in added
            ],
            "Nothing to add.",
        )
    else:
        for entry, _ in added:
            sign_, colour = ("+", "green") if entry.reason is None else ("-", "red")
            word = entry.role.value if entry.reason is None else f"distrusted {entry.role.value}"
            session.emit(
                click.style(f"{sign_} {entry.vendor} {word}  ", fg=colour)
                + f"{clean(short_name(entry.subject))}, until {entry.not_after:%Y-%m-%d}"
            )
            session.emit(f"    {entry.sha256}")
    if known:
        session.note(f"{len(known)} there already, as they are")
    reasons = dict.fromkeys(reason for _, reason in left_out)
    for reason in reasons:
        names = [f"{short_name(e.subject)} ({e.sha256[:8]})" for e, why in left_out if why == reason]
        session.note(wrap(f"left out: {clean(reason)}", session.width or 110, first="", rest="  "))
        for name in names:
            session.note(f"  {clean(name)}")
    if not added:
        session.note("Nothing to add.")


def _emit_changes(session: Session, changes: Sequence[Change], nothing: str) -> None:
    from attestation_cli.trust_files import short_name

    colours = {"added": "green", "removed": "red", "changed": "yellow"}
    session.emit_table(
        [
            Column("CHANGE"),
            Column("VENDOR"),
            Column("ROLE"),
            Column("NAME", shrink_to=16),
            Column("WHAT", shrink_to=16, drop=1),
            Column("SHA-256", drop=2),
        ],
        [
            [
                Cell(c.word, colours[c.word]),
                cell(c.entry.vendor),
                cell(c.entry.role.value),
                cell(short_name(c.entry.subject), c.entry.subject),
                cell(c.what or None, ""),
                cell(c.entry.sha256[:8], c.entry.sha256),
            ]
            for c in changes
        ],
        nothing,
    )


def _change_members(change: Change) -> dict[str, object]:
    return {"change": change.word, "what": change.what, "entry": change.entry.members()}


def _between(session: Session) -> None:
    """Separate two answers for people; programs ask about one at a time, or read one after the other."""
    if session.output in ("table", "wide"):
        session.emit("")


def _count(number: int, word: str) -> str:
    return f"{number} {word}" + ("" if number == 1 else "s")


def _status(word: str) -> Cell:
    return Cell(word, {"active": "green", "distrusted": "red"}.get(word, "yellow"))


def _target(directory: Path | None) -> Path:
    if directory is None:
        raise RequestInvalid(f"which folder? Give --dir, or set {DIRECTORY}")
    return directory


def _keys(vkeys: Sequence[str], vkeys_file: Path | None) -> tuple[VerifierKey, ...]:
    if not vkeys and vkeys_file is None:
        return ()
    # Imported here: cryptography takes longer to load than --help takes to print.
    from attestation.tpm_bundle.signature import parse_keys

    lines = list(vkeys)
    if vkeys_file is not None:
        lines += [line for line in _small(vkeys_file).decode("utf-8", "replace").splitlines() if line.strip()]
    keys = parse_keys(lines)
    if not keys:
        # An empty file must not mean that nobody need have signed.
        raise RequestInvalid(f"{vkeys_file}: has no key")
    return keys


def _small(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_CERTIFICATE_FILE_BYTES + 1)
    except OSError as e:
        raise RequestInvalid(f"{path}: {os.strerror(e.errno) if e.errno else e}") from e
    if len(data) > MAX_CERTIFICATE_FILE_BYTES:
        raise RequestInvalid(f"{path}: longer than {MAX_CERTIFICATE_FILE_BYTES} bytes")
    return data
