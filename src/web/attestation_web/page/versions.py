"""Versions of configurations: how each is shown without its secrets, compared with another, and activated.

Of a role in a cluster (`pages/configurations.py`) and of one machine (`pages/machines/patches.py`) alike. The service
hides what is secret before it answers; nothing here could show it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from flask import request

from attestation.errors import ConfigurationsNotKept, ConfigurationUnknown, RequestInvalid, Unavailable
from attestation_web.login.current import api
from attestation_web.page.acting import Act, Field
from attestation_web.page.names import called
from attestation_web.page.table import Column, Table, table

if TYPE_CHECKING:
    from attestation.api import (
        ConfigurationChange,
        ConfigurationDetail,
        ConfigurationDiff,
        ConfigurationFinding,
        ConfigurationInfo,
        MachineDetail,
        PendingApproval,
    )
    from attestation.client import OperatorClient
    from attestation.machines import Role

MOST_CHANGES: Final = 500
LONGEST_NUMBER: Final = 9
NOT_KEPT: Final = (
    "This service keeps no configurations (ITL_CONFIG_KEK is not set): machines get files that lie beside it."
)
VERSIONS: Final = (
    Column(name="version", title="Version"),
    Column(name="state", title="State"),
    Column(name="imported", title="Imported"),
    Column(name="by", title="By"),
    Column(name="note", title="Note"),
    Column(name="talos", title="Talos"),
    Column(name="sha256", title="SHA-256"),
)
FINDINGS: Final = (
    Column(name="level", title="Level"),
    Column(name="document", title="Document"),
    Column(name="path", title="Where"),
    Column(name="words", title="What"),
)
CHANGES: Final = (
    Column(name="document", title="Document"),
    Column(name="path", title="Where"),
    Column(name="before", title="Before"),
    Column(name="after", title="After"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Whose configurations they are, and how the service is asked about them.

    Args:
        name: As people write it: `default/worker-app`, or what a machine is called.
        href: Below which each version has its page.
        back: Where they are listed.
        whose: Who gets them, in words.
        get, diff, activate: The operations of the API.
        typed: What is typed before one is activated; None asks for nothing.
    """

    name: str
    href: str
    back: str
    whose: str
    get: Callable[[OperatorClient, int], ConfigurationDetail]
    diff: Callable[[OperatorClient, int, int], ConfigurationDiff]
    activate: Callable[[OperatorClient, int, str | None], ConfigurationDetail | PendingApproval]
    typed: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """What differs between two versions.

    Args:
        before, after: Their numbers.
        shown: The first of the differences, as rows.
        left_out: How many more there are.
        failed: Why it is not known now; then `shown` is empty.
    """

    before: int
    after: int
    shown: Table
    left_out: int = 0
    failed: str | None = None


def of_role(cluster_id: str, role: Role) -> Place:
    """Return the place of a role's base configuration."""
    name = f"{cluster_id}/{role.value}"
    href = f"/configurations/{quote(cluster_id, safe='')}/{role.value}"
    return Place(
        name=name,
        href=href,
        back=href,
        whose=f"each machine of the role {role.value} in the cluster {cluster_id}",
        get=lambda client, version: client.configuration(cluster_id, role, version),
        diff=lambda client, before, after: client.diff_configurations(cluster_id, role, before, after),
        activate=lambda client, version, reason: client.activate_configuration(
            cluster_id, role, version, reason
        ),
        # It reaches every machine of the role, and what they apply meanwhile nobody takes back.
        typed=name,
    )


def of_machine(machine: MachineDetail) -> Place:
    """Return the place of one machine's patch."""
    here = f"/machines/{machine.machine_id}"
    return Place(
        name=f"the patch of {called(machine)}",
        href=f"{here}/patches",
        back=f"{here}?tab=configuration",
        whose="this machine",
        get=lambda client, version: client.patch(machine.machine_id, version),
        diff=lambda client, before, after: client.diff_patches(machine.machine_id, before, after),
        activate=lambda client, version, reason: client.activate_patch(machine.machine_id, version, reason),
    )


def versions_of_role(client: OperatorClient, cluster_id: str, role: Role) -> list[ConfigurationInfo]:
    """Return the versions of a role's base configuration, the oldest first."""
    kept = client.configurations().configurations
    return [each for each in kept if (each.cluster_id, each.role) == (cluster_id, role)]


def listed(versions: Sequence[ConfigurationInfo]) -> Table:
    """Return versions as rows, the newest first."""
    return table(VERSIONS, sorted(versions, key=lambda each: -each.version))


def findings(found: Sequence[ConfigurationFinding]) -> Table:
    """Return what a version of Talos says of one as rows, errors first."""
    return table(FINDINGS, sorted(found, key=lambda each: each.level != "error"), paged=True)


def active_of(versions: Sequence[ConfigurationInfo]) -> ConfigurationInfo | None:
    """Return the version that is delivered."""
    return next((each for each in versions if each.active), None)


def compared(place: Place, before: int, after: int) -> Compared:
    """Return what differs from *before* to *after*; why that is not known, where the service cannot say it now."""
    rows: list[ConfigurationChange]
    rows, failed = [], None
    try:
        rows = place.diff(api(), before, after).changes
    except Unavailable as e:
        failed = why(e)
    return Compared(
        before=before,
        after=after,
        shown=table(CHANGES, rows[:MOST_CHANGES], paged=True),
        left_out=max(0, len(rows) - MOST_CHANGES),
        failed=failed,
    )


def why(error: Unavailable) -> str:
    """Return why a configuration cannot be shown; that none is kept is no fault that passes by itself."""
    return NOT_KEPT if isinstance(error, ConfigurationsNotKept) else str(error)


def look(place: Place, versions: Sequence[ConfigurationInfo], number: int) -> dict[str, Any]:
    """Return what `configurations/version.html` shows of one version: all that is known of it without its key too."""
    info = _find(place, versions, number)
    detail, failed = None, None
    try:
        detail = place.get(api(), number)
    except Unavailable as e:
        failed = why(e)
    other = _other(versions, info)
    return {
        "place": place,
        "info": info,
        "detail": detail,
        "failed": failed,
        "findings": findings([] if detail is None else detail.findings),
        "others": [each for each in versions if each.version != number],
        "compared": None if failed or other is None else compared(place, other, number),
    }


def activating(place: Place, versions: Sequence[ConfigurationInfo], number: int) -> Act:
    """Return the act by which a version is delivered from now on; what stands in it is compared again at the press."""
    client = api()
    info, now = _find(place, versions, number), active_of(versions)
    detail = place.get(client, number)
    errors = sum(each.level == "error" for each in detail.findings)
    replaced = now is not None and now.version != number
    gets = f"{place.whose[:1].upper()}{place.whose[1:]} gets version {number} with the next delivery."
    will = [f"{gets} What was delivered before stays in force until then."]
    if now is not None and number < now.version:
        will.append(f"It is older than version {now.version}, which is delivered now: this rolls back.")
    if errors:
        will.append(
            f"The Talos of today finds {errors} error{'s' if errors != 1 else ''} in it: the service may refuse it."
        )
    will += [
        "Secrets in it are hidden here. Compare the SHA-256 with that of the file that you know (sha256sum).",
        "Where dual control asks for several people this is your vote, and nothing changes until the others agree.",
    ]
    facts = [("Of", place.name), ("Version", str(number)), ("SHA-256", info.sha256)]
    facts.append(("Imported by", info.created_by))
    facts.append(("Delivered now", "none of them" if now is None else f"version {now.version}"))
    if now is not None and replaced:
        differs = len(place.diff(client, now.version, number).changes)
        facts.append(("SHA-256 of that", now.sha256))
        facts.append(("Values that differ from it", str(differs)))
    return Act(
        title=f"Activate version {number} of {place.name}",
        button="Roll back" if now is not None and number < now.version else "Activate",
        will=will,
        facts=facts,
        fields=[Field(name="reason", label="Reason", help="It stands in the audit log.")],
        do=lambda client, filled: place.activate(client, number, filled.get("reason")),
        did=lambda answer: f"{place.name}: version {answer.version} is delivered from now on.",
        back=place.back,
        typed=place.typed,
    )


def _find(place: Place, versions: Sequence[ConfigurationInfo], number: int) -> ConfigurationInfo:
    found = next((each for each in versions if each.version == number), None)
    if found is None:
        raise ConfigurationUnknown(f"{place.name}: no version {number} is kept")
    return found


def _other(versions: Sequence[ConfigurationInfo], info: ConfigurationInfo) -> int | None:
    """Return with which version one is compared: the chosen one, else what is or was delivered."""
    text = request.args.get("with", "")
    if text:
        if not text.isdecimal() or len(text) > LONGEST_NUMBER:
            raise RequestInvalid("a version is a number")
        return int(text)
    active = active_of(versions)
    if active is not None and active.version != info.version:
        return active.version
    if info.previous is not None:
        return info.previous
    return max((each.version for each in versions if each.version < info.version), default=None)
