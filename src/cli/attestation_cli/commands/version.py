"""`attestation version`: of this program and of the service."""

from __future__ import annotations

import platform

import click

from attestation.client.text import clean
from attestation.errors import AttestationError
from attestation_cli.options import printing
from attestation_cli.render import Cell, cell
from attestation_cli.session import Session


@click.command("version")
@click.option("--client", "only_client", is_flag=True, help="Do not ask the service.")
@printing
def group(session: Session, *, only_client: bool) -> None:
    """Tell the versions of this program, of what it stands on, and of the service.

    Needs no login. A service that does not answer is no failure of this command.

    \b
    Examples:
      attestation version
      attestation version --client
    """
    from importlib.metadata import version

    found: dict[str, str | None] = {
        "client": version("itl-attestation-cli"),
        "sdk": version("itl-attestation-sdk"),
        "python": platform.python_version(),
        "service": None,
        "url": session.url,
    }
    why = "not asked"
    if not only_client:
        try:
            with session.public() as client:
                found["service"] = client.readiness().text("version")
        except AttestationError as e:
            why = clean(str(e))
    if session.json:
        session.emit_json(found)
        return
    service = found["service"]
    session.emit_fields(
        [
            ("client", cell(found["client"])),
            ("SDK", cell(found["sdk"])),
            ("Python", cell(found["python"])),
            ("service", cell(f"{service} at {session.url}", service) if service else Cell(why, "yellow", "")),
        ]
    )
