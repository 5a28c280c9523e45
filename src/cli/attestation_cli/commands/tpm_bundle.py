"""`attestation tpm-bundle …`: which manufacturers' certificates vouch for TPMs; without service and network."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import click

from attestation_cli.commands.tpm_bundle_change import diff, import_, sign, update
from attestation_cli.commands.tpm_bundle_verify import verify
from attestation_cli.options import listing
from attestation_cli.render import Cell, Column, cell
from attestation_cli.session import Session
from attestation_cli.tpm_bundle_options import counted, directory_option


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


@group.command("list")
@click.option(
    "--vendor", metavar="NAME", help="Only of this manufacturer, as the TCG names it: IFX, NTC, STM."
)
@click.option("--role", type=click.Choice(["anchor", "intermediate"]), help="Only these.")
@directory_option(exists=True)
@listing
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
    session.emit_rows(
        shown,
        {
            Column("VENDOR"): lambda h: h.entry.vendor,
            Column("ROLE"): lambda h: h.entry.role.value,
            Column("NAME", shrink_to=28): lambda h: cell(
                trust_files.short_name(h.certificate.subject), h.certificate.subject
            ),
            Column("UNTIL"): lambda h: f"{h.certificate.not_after:%Y-%m-%d}",
            Column("STATUS"): lambda h: _status(trust_files.status_word(h, bundle, now)),
            Column("SHA-256", drop=1): lambda h: cell(h.entry.sha256[:8], h.entry.sha256),
            Column("ORIGIN", drop=2): lambda h: (
                cell("directory") if h.entry.sha256 in added else cell(None, "shipped")
            ),
            Column("NOT BEFORE", wide=True): lambda h: f"{h.certificate.not_before:%Y-%m-%d}",
            Column("KEY", wide=True): lambda h: h.certificate.key,
            Column("SPKI SHA-256", wide=True): lambda h: h.entry.spki_sha256,
            Column("SOURCES", wide=True): lambda h: " ".join(h.entry.sources),
            Column("EVIDENCE", wide=True): lambda h: h.entry.evidence,
            Column("REASON", wide=True): lambda h: bundle.distrust_of(h.entry.sha256),
        },
        "No certificates.",
    )
    if session.output == "table" and shown:
        anchors = sum(h.entry.role == "anchor" for h in shown)
        told = f"{counted(anchors, 'anchor')}, {counted(len(shown) - anchors, 'intermediate')}"
        session.note(f"{told}; bundle {bundle.sha256[:16]}…")


def _status(word: str) -> Cell:
    return Cell(word, {"active": "green", "distrusted": "red"}.get(word, "yellow"))


for command in (verify, diff, import_, update, sign):
    group.add_command(command)
