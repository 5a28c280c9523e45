"""`attestation image …`: what machines boot, and where it is."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import click

from attestation.client.text import clean
from attestation.errors import RequestInvalid
from attestation.machines import DEFAULT_CLUSTER, Role
from attestation.talos.images import Architecture, ImageKind
from attestation_cli.options import EXISTING_FILE, printing
from attestation_cli.render import cell
from attestation_cli.session import Session, checked

EXTENSIONS = click.option(
    "--extension",
    "extensions",
    multiple=True,
    metavar="NAME",
    help="An official extension beside the usual ones, e.g. siderolabs/drbd; may be said again.",
)


@click.group("image")
def group() -> None:
    """Images of Talos that any machine of a role can boot.

    No image, schematic or address holds a secret, or names a machine: which one it is, the machine proves.

    \b
    Examples:
      attestation image url --role worker-app
      attestation image schematic --service-url https://attest.example
    """


@group.command()
@click.option("--role", type=click.Choice([r.value for r in Role]), required=True, help="Who boots it.")
@click.option("--cluster-id", default=DEFAULT_CLUSTER, show_default=True, help="Of which cluster.")
@click.option(
    "--kind", type=click.Choice(get_args(ImageKind)), default="iso", show_default=True, help="What of it."
)
@click.option(
    "--arch",
    "architecture",
    type=click.Choice(get_args(Architecture)),
    default="amd64",
    show_default=True,
    help="Of which processors.",
)
@click.option("--secureboot", is_flag=True, help="Signed for SecureBoot.")
@click.option("--talos", metavar="RELEASE", help="Release of Talos, e.g. v1.13.9; the service's if left out.")
@EXTENSIONS
@printing
def url(
    session: Session,
    role: str,
    cluster_id: str,
    kind: str,
    architecture: str,
    talos: str | None,
    extensions: tuple[str, ...],
    *,
    secureboot: bool,
) -> None:
    """Have the image of a role issued, and print where it is.

    It is the service's own image, where there is one. Else the Image Factory is sent a schematic; what it calls it
    must be the id that the service computed. The service tells of it: audit entry image, event node.image_created.

    \b
    Examples:
      attestation image url --role worker-app
      attestation image url --role controlplane --kind uki --secureboot
    """
    from attestation.api import ImageRequest

    request = checked(
        lambda: ImageRequest.model_validate(
            {
                "role": role,
                "cluster_id": cluster_id,
                "kind": kind,
                "architecture": architecture,
                "secureboot": secureboot,
                "talos_version": talos,
                "extensions": list(extensions),
            }
        )
    )
    with session.client() as client:
        found = client.issue_image(request)
    if session.json:
        session.emit_json(found)
        return
    session.emit_fields(
        [
            ("url", cell(found.url)),
            ("made by", cell("your own (ITL_ISO_URL)" if found.source == "own" else "the image factory")),
            ("schematic", cell(found.schematic_id)),
            ("installer", cell(found.installer_image)),
            ("talos", cell(found.talos_version)),
        ]
    )


@group.command()
@click.argument("file", type=EXISTING_FILE, required=False)
@click.option(
    "--service-url",
    metavar="URL",
    help="Where machines ask for their configuration; the service of this profile if left out.",
)
@EXTENSIONS
@printing
def schematic(
    session: Session, file: Path | None, service_url: str | None, extensions: tuple[str, ...]
) -> None:
    """Print a schematic as the Image Factory writes it, offline, and on stderr its id.

    Without FILE it is the one that a service of this address makes. With it, FILE is judged: what looks like a secret
    or like one machine is refused, for everybody can read a schematic.

    \b
    Examples:
      attestation image schematic --service-url https://attest.example
      attestation image schematic mine.yaml -o json
    """
    from attestation.talos.schematic import MAX_BYTES, of_machines, parse

    if file is not None:
        if service_url is not None or extensions:
            raise RequestInvalid("a file says all of its schematic: leave the options out")
        try:
            with file.open("rb") as opened:
                made = parse(opened.read(MAX_BYTES + 1))
        except OSError as e:
            raise RequestInvalid(f"{clean(str(file))}: {e.strerror}") from e
    else:
        made = of_machines(_address(session, service_url), extensions)
    text = made.canonical().decode()
    session.emit_done(text.rstrip("\n"), {"id": made.id, "schematic": text})
    if not session.json:
        session.note(f"id {made.id}")


def _address(session: Session, service_url: str | None) -> str:
    """Return the address that is baked into images: never one that nobody named."""
    chosen = session.setting("api_url")
    if service_url is None and chosen.source == "default":
        raise RequestInvalid("say --service-url: where machines find the service stands in every image")
    return (service_url or str(chosen.value)).rstrip("/")
