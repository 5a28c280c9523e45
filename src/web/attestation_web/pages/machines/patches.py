"""What one machine would be given: without secrets, from which versions, and what they changed; and its patches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attestation.errors import BaseConfigInvalid, BaseConfigMissing, Unavailable
from attestation_web.page import Act, api, render
from attestation_web.page.names import called
from attestation_web.page.versions import (
    Compared,
    Place,
    activating,
    active_of,
    compared,
    findings,
    listed,
    look,
    of_machine,
    of_role,
    versions_of_role,
    why,
)
from attestation_web.pages.machines.area import page

if TYPE_CHECKING:
    from werkzeug.wrappers import Response

    from attestation.api import ConfigurationInfo, MachineDetail, RenderedConfiguration
    from attestation.client import OperatorClient


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What a machine would be given now.

    Args:
        rendered: Without its secrets; None where there is nothing, or it is not known.
        nothing: Why there is nothing.
        failed: Why it is not known now.
        changes: What each delivered version changed of the one before it, and whose version that is.
    """

    rendered: RenderedConfiguration | None = None
    nothing: str | None = None
    failed: str | None = None
    changes: Sequence[tuple[Place, Compared]] = ()


def shown(client: OperatorClient, machine: MachineDetail) -> dict[str, Any]:
    """Return what the part Configuration shows of *machine*; its patches also where what it gets is not known."""
    patches = client.patches(machine.machine_id).configurations
    given = _given(client, machine, patches)
    return {
        "given": given,
        "findings": findings([] if given.rendered is None else given.rendered.findings),
        "patches": listed(patches),
        "place": of_machine(machine),
    }


def _given(client: OperatorClient, machine: MachineDetail, patches: Sequence[ConfigurationInfo]) -> Given:
    try:
        rendered = client.preview_configuration(machine.machine_id)
    except (BaseConfigMissing, BaseConfigInvalid) as e:
        return Given(nothing=str(e))
    except Unavailable as e:
        return Given(failed=why(e))
    changes = []
    if rendered.base is not None:
        place = of_role(rendered.cluster_id, rendered.role)
        changes.append((place, active_of(versions_of_role(client, rendered.cluster_id, rendered.role))))
    changes.append((of_machine(machine), active_of(patches)))
    return Given(
        rendered=rendered,
        changes=[
            (place, compared(place, active.previous, active.version))
            for place, active in changes
            if active is not None and active.previous is not None
        ],
    )


@page.get("/<machine_id>/patches/<int:version>")
def patch(machine_id: str, version: int) -> Response:
    """Show one version of a machine's patch without its secrets, and what differs from another."""
    machine, place, versions = _patches(machine_id)
    crumbs = [("Machines", "/machines"), (called(machine), place.back)]
    return render("configurations/version.html", crumbs=crumbs, **look(place, versions, version))


@page.act("/<machine_id>/patches/<int:version>/activate", fresh=True)
def activate_patch(machine_id: str, version: int) -> Act:
    """Let a version of a machine's patch be delivered from now on."""
    _, place, versions = _patches(machine_id)
    return activating(place, versions, version)


def _patches(machine_id: str) -> tuple[MachineDetail, Place, list[ConfigurationInfo]]:
    client = api()
    machine = client.machine(machine_id)
    return machine, of_machine(machine), client.patches(machine_id).configurations
