"""`attestation machine import`: receipts of machines that were installed away from the service."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from attestation.client.text import clean
from attestation.errors import AttestationError, RequestInvalid
from attestation_cli.failures import ExitCode
from attestation_cli.options import EXISTING_FILE, printing
from attestation_cli.render import Cell, Column
from attestation_cli.screen import DIGEST_DIGITS
from attestation_cli.session import Session, checked

if TYPE_CHECKING:
    from attestation.api import ReceiptImport

MAX_BYTES: Final = 16 << 10
MOST: Final = 1000
COLOURS: Final = {"added": "green", "would-add": "green", "failed": "red"}


@click.command("import")
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=EXISTING_FILE)
@click.option("--dry-run", is_flag=True, help="Tell what would be done, and do nothing.")
@printing
@click.pass_context
def import_(ctx: click.Context, session: Session, files: tuple[Path, ...], *, dry_run: bool) -> None:
    """Expect machines that were installed offline, by the receipts that were written to their disks.

    A receipt (EFI/itl/tpm-receipt.json) is what a machine says of itself. Its machine waits, and cannot be approved,
    until it proves its EK to the service; then it is judged as any other one. To admit it in advance, put its EK on
    the allow-list. A machine that is known stays as it is.

    All files are read before anything is sent. Each is imported by itself; exit code 1 if one was not.

    \b
    Examples:
      attestation machine import receipts/*.json --dry-run
      attestation machine import tpm-receipt.json
    """
    from attestation.client import OutcomeUnknown

    if len(files) > MOST:
        raise RequestInvalid(f"at most {MOST} receipts")
    receipts = [_read(file, dry_run=dry_run) for file in files]
    rows: list[dict[str, Any]] = []
    lost: OutcomeUnknown | None = None
    with session.client() as client:
        for file, receipt in zip(files, receipts, strict=True):
            row: dict[str, Any] = {"file": str(file), "ek_fingerprint": receipt.ek_fingerprint}
            try:
                rows.append({**row, **client.import_receipt(receipt).model_dump(mode="json")})
            except OutcomeUnknown as e:
                lost = e
                break
            except AttestationError as e:
                rows.append({**row, "result": "failed", "message": clean(str(e))})
    if session.json:
        session.emit_json(iter(rows))
    else:
        session.emit_rows(
            rows,
            {
                Column("FILE", shrink_to=10): lambda r: r["file"],
                Column("EK FINGERPRINT"): lambda r: r["ek_fingerprint"][:DIGEST_DIGITS],
                Column("ID", shrink_to=8): lambda r: r.get("machine_id"),
                Column("RESULT"): lambda r: Cell(r["result"], COLOURS.get(r["result"])),
                Column("WHAT", shrink_to=20): _what,
            },
            "",
        )
    if lost is not None:
        raise lost
    if any(row["result"] == "failed" for row in rows):
        ctx.exit(ExitCode.NEGATIVE)


def _what(row: dict[str, Any]) -> str:
    differs = ", ".join(row.get("differs", ()))
    return clean(row["message"]) + (f"; the receipt says otherwise: {differs}" if differs else "")


def _read(file: Path, *, dry_run: bool) -> ReceiptImport:
    """Return the receipt in *file*.

    Raises:
        RequestInvalid: It cannot be read, or is no receipt.
    """
    from attestation.api import ReceiptImport

    name = clean(str(file))
    try:
        with file.open("rb") as opened:
            data = opened.read(MAX_BYTES + 1)
        found = json.loads(data) if len(data) <= MAX_BYTES else None
    except OSError as e:
        raise RequestInvalid(f"{name}: {e.strerror}") from e
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or "dry_run" in found:
        raise RequestInvalid(f"{name} is no receipt: a JSON object, as in EFI/itl/tpm-receipt.json")
    try:
        return checked(lambda: ReceiptImport.model_validate({**found, "dry_run": dry_run}))
    except RequestInvalid as e:
        raise RequestInvalid(f"{name}: {e}") from None
