"""The trust bundle that the SDK ships: add a manufacturer's certificate, write the manifest and NOTICE; not shipped.

    python -m tools.tpm_bundle add FILE… --vendor NTC --evidence "compared with …" [--role anchor] [--source URL]
    python -m tools.tpm_bundle add FOLDER --evidence "…"        a folder per manufacturer, as `tpm_bundle.files` says
    python -m tools.tpm_bundle notice                           write NOTICE anew
    python -m tools.tpm_bundle check                            as every build of the wheel does

An edition whose certificates change gets the next version. What is in the bundle already keeps its entry.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Final

from attestation.endorsements.bundle import BundleEntry, Manifest, Role, entry_of, format_manifest
from attestation.errors import BundleInvalid
from attestation.tpm_bundle import bundle_of, files
from attestation.tpm_bundle.pem import certificates

ROOT: Final = Path(__file__).resolve().parents[1]
PACKAGE: Final = ROOT / "src/sdk/attestation/tpm_bundle"
NOTICES: Final = (ROOT / "NOTICE", PACKAGE / "NOTICE")
BESIDES: Final = (
    ROOT / "src/sdk/attestation/tee_bundle/NOTICE",
    ROOT / "src/sdk/attestation/talos/NOTICE",
    ROOT / "src/web/NOTICE",
)
"""What NOTICE says of the certificates of the other bundle, of Talos' schemas, and of the files of the dashboard."""

HEAD: Final = """\
ITL attestation platform

This product contains certificates that manufacturers of TPMs and their certification authorities have published. They
lie in src/sdk/attestation/tpm_bundle (in the wheel: attestation/tpm_bundle), one DER file each, unchanged. The
certificates state no licence of their own.

They were taken from the Debian package ruby-tpm-key-attestation 0.11.0-1, whose copyright file says:

    Upstream-Name: tpm-key_attestation
    Source: https://github.com/cedarcode/tpm-key_attestation

    Files: *
    Copyright: Gonzalo
    License: Apache-2.0

    Files: debian/*
    Copyright: 2020 Pirate Praveen <praveen@debian.org>
    License: Apache-2.0
    Comment: The Debian packaging is licensed under the same terms as the source.

The Apache License, Version 2.0, stands in the file LICENSE. PEM was turned into DER; nothing else was changed.

Each file, the SHA-256 of its bytes, whose it is, and where it was found:
"""


def read() -> files.Contents:
    """Read the bundle of this checkout."""
    return files.read(PACKAGE, "tpm_bundle")


def notice(entries: Sequence[BundleEntry]) -> str:
    """Return the text of NOTICE for *entries*."""
    lines = [HEAD]
    for entry in sorted(entries, key=lambda e: e.path):
        lines += [
            entry.path,
            f"    SHA-256  {entry.sha256}",
            f"    subject  {entry.subject}",
            f"    found    {entry.evidence}",
            *(f"    source   {url}" for url in entry.sources),
            f"    licence  {entry.licence or 'none stated'}",
            "",
        ]
    return "\n".join([*lines, *(path.read_text(encoding="utf-8") for path in BESIDES)])


def write_notice(entries: Sequence[BundleEntry]) -> None:
    """Write NOTICE at the root of the project and into the package."""
    for path in NOTICES:
        path.write_text(notice(entries), encoding="utf-8")


def add(given: Sequence[tuple[BundleEntry, bytes]]) -> Manifest:
    """Add certificates that are not in the bundle yet; return the new manifest."""
    before = read().manifest
    known = {entry.sha256 for entry in before.entries}
    new = {entry.sha256: (entry, der) for entry, der in given if entry.sha256 not in known}
    manifest = replace(
        before,
        version=before.version + bool(new),
        created=datetime.now(UTC).replace(microsecond=0),
        entries=(*before.entries, *(entry for entry, _ in new.values())),
    )
    for entry, der in new.values():
        path = PACKAGE / entry.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(der)
    if new:
        (PACKAGE / files.MANIFEST).write_bytes(format_manifest(manifest))
        write_notice(manifest.entries)
    return manifest


def given_certificates(arguments: argparse.Namespace) -> list[tuple[BundleEntry, bytes]]:
    """Return the entries that the command line describes."""
    found: list[tuple[BundleEntry, bytes]] = []
    for path in arguments.files:
        if path.is_dir():
            found += [
                (replace(entry, evidence=arguments.evidence, retrieved=arguments.retrieved), der)
                for entry, der in files.read(path, str(path)).certificates
            ]
            continue
        for der in certificates(path.read_bytes(), str(path)):
            entry = entry_of(
                der,
                role=arguments.role and Role(arguments.role),
                vendor=arguments.vendor,
                retrieved=arguments.retrieved,
                evidence=arguments.evidence,
                sources=tuple(arguments.source),
                licence=arguments.licence,
                template=arguments.template,
            )
            found.append((entry, der))
    return found


def main(words: Sequence[str] | None = None) -> None:
    """Run one of the commands."""
    parser = argparse.ArgumentParser(prog="python -m tools.tpm_bundle", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    adding = commands.add_parser("add")
    adding.add_argument("files", nargs="+", type=Path)
    adding.add_argument("--vendor", default="")
    adding.add_argument("--role", choices=[role.value for role in Role])
    adding.add_argument("--evidence", required=True)
    adding.add_argument("--source", action="append", default=[])
    adding.add_argument("--retrieved", type=date.fromisoformat, default=datetime.now(UTC).date())
    adding.add_argument("--licence")
    adding.add_argument("--template")
    commands.add_parser("notice")
    commands.add_parser("check")
    arguments = parser.parse_args(words)
    try:
        match arguments.command:
            case "add":
                manifest = add(given_certificates(arguments))
            case "notice":
                manifest = read().manifest
                write_notice(manifest.entries)
            case _:
                manifest = read().manifest
        bundle = bundle_of(read())
    except (BundleInvalid, OSError) as e:
        parser.exit(1, f"tpm_bundle: {e}\n")
    print(
        f"tpm_bundle {manifest.version}: {len(bundle.anchors)} anchors, {len(bundle.intermediates)} intermediates, "
        f"{bundle.sha256}"
    )


if __name__ == "__main__":
    main()
