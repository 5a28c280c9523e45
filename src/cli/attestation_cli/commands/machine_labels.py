"""`attestation machine label`: what operators write on machines, so that they find them again."""

from __future__ import annotations

import click

from attestation.client.text import clean
from attestation.errors import RequestInvalid
from attestation.machines.labels import checked_key, checked_value
from attestation_cli.machine_acts import ID
from attestation_cli.machine_rows import labels_of
from attestation_cli.options import printing
from attestation_cli.session import Session, checked, name_of


@click.command("label")
@ID
@click.argument("changes", metavar="KEY=VALUE|KEY-...", nargs=-1, required=True)
@printing
def label_(session: Session, machine: str, changes: tuple[str, ...]) -> None:
    """Write labels on a machine; KEY- takes one off.

    Keys and values are those of Kubernetes labels. No decision rests on them: neither policies nor roles nor
    configurations read them, so one operator is enough; the audit keeps who wrote what.

    \b
    Examples:
      attestation machine label cp-1 rack=4 site=ams
      attestation machine label cp-1 rack=5 site-
      attestation machine list -l rack=5
    """
    from attestation.api import LabelsRequest

    put, remove = _read(changes)
    request = checked(lambda: LabelsRequest(set=put, remove=remove))
    with session.client() as client:
        after = client.label(session.find_id(client, machine), request)
    if session.json:
        session.emit_json(after)
        return
    worn = clean(labels_of(after.labels) or "none")
    session.emit_done(f"{name_of(after)}: labels {worn}", {"machine_id": after.machine_id, "labels": worn})


def _read(changes: tuple[str, ...]) -> tuple[dict[str, str], list[str]]:
    """Return what to write and what to take off.

    Raises:
        RequestInvalid: Neither KEY=VALUE nor KEY-, one key twice, or what cannot be a label.
    """
    put: dict[str, str] = {}
    remove: list[str] = []
    for change in changes:
        key, equals, value = change.partition("=")
        if not equals and not key.endswith("-"):
            raise RequestInvalid(f"{change!r} is no label: write KEY=VALUE, or KEY- to take one off")
        key = key if equals else key.removesuffix("-")
        if key in put or key in remove:
            raise RequestInvalid(f"the label {key!r} is named twice")
        checked_key(key)
        if equals:
            put[key] = checked_value(value)
        else:
            remove.append(key)
    return put, remove
