"""`attestation tpm-bundle diff`, `import`, `update` and `sign`: editions of the folder of one's own."""

# Algorithms for: trust-bundle
from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from attestation.client.text import clean
from attestation.errors import BundleInvalid, RequestInvalid
from attestation_cli.options import FILE_PATH, printing
from attestation_cli.render import Cell, Column, cell, wrap
from attestation_cli.session import Session
from attestation_cli.tpm_bundle_options import (
    DIRECTORY,
    counted,
    directory_option,
    existing,
    keys_of,
    keys_options,
)

if TYPE_CHECKING:
    from attestation.endorsements.bundle import BundleEntry
    from attestation_cli.trust_files import Change


@click.command()
@click.argument("before", metavar="BEFORE")
@click.argument("after", metavar="AFTER")
@printing
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


@click.command("import")
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
@printing
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
            f"Put {counted(len(planned.added), 'certificate')} into {target}, to be trusted as said?", yes=yes
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


@click.command()
@click.argument("source", metavar="FOLDER|ARCHIVE", type=existing)
@click.option("--allow-older", is_flag=True, help="Also go back to a smaller version number.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@directory_option(exists=True)
@keys_options
@printing
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
    new = read_directory(source, keys_of(vkeys, vkeys_file))
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


@click.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--key", "key_file", required=True, type=FILE_PATH, help="PEM file with your private key of Ed25519."
)
@click.option("--name", required=True, help="Name of the key: itl.example/tpm-bundle.")
@printing
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


def _tell_plan(
    session: Session,
    added: Sequence[tuple[BundleEntry, bytes]],
    known: Sequence[BundleEntry],
    left_out: Sequence[tuple[BundleEntry, str]],
) -> None:
    """Show what would be added, with whole fingerprints: they are compared by eye."""
    from attestation_cli.trust_files import short_name

    if session.output in ("csv", "wide"):
        session.emit_rows(
            (entry for entry, _ in added),
            {
                Column("VENDOR"): lambda e: e.vendor,
                Column("ROLE"): lambda e: e.role.value,
                Column("SUBJECT"): lambda e: e.subject,
                Column("UNTIL"): lambda e: f"{e.not_after:%Y-%m-%d}",
                Column("STATUS"): lambda e: e.status.value,
                Column("SHA-256"): lambda e: e.sha256,
            },
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
    session.emit_rows(
        changes,
        {
            Column("CHANGE"): lambda c: Cell(c.word, colours[c.word]),
            Column("VENDOR"): lambda c: c.entry.vendor,
            Column("ROLE"): lambda c: c.entry.role.value,
            Column("NAME", shrink_to=16): lambda c: cell(short_name(c.entry.subject), c.entry.subject),
            Column("WHAT", shrink_to=16, drop=1): lambda c: cell(c.what or None, ""),
            Column("SHA-256", drop=2): lambda c: cell(c.entry.sha256[:8], c.entry.sha256),
        },
        nothing,
    )


def _change_members(change: Change) -> dict[str, object]:
    return {"change": change.word, "what": change.what, "entry": change.entry.members()}


def _target(directory: Path | None) -> Path:
    if directory is None:
        raise RequestInvalid(f"which folder? Give --dir, or set {DIRECTORY}")
    return directory
