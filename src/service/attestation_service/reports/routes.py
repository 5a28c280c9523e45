"""HTTP of what a running service says of its own health and settings."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import TYPE_CHECKING, Final

from fastapi import APIRouter

from attestation.api import HealthFinding, HealthFindings, SettingList
from attestation.api.operations import OperatorAPI
from attestation.errors import Unavailable
from attestation_service.resources import Res, Resources
from attestation_service.routing.openapi import operator_router, route

if TYPE_CHECKING:
    from attestation_service.inspection.finding import Finding

INSIDE: Final = (
    "settings",
    "folders",
    "disk",
    "configurations",
    "secrets",
    "collateral",
    "HSM issuers",
    "backups",
)
"""Parts that are looked at while the service runs: no device is opened, and nobody else is asked."""

KEPT_SECONDS: Final = 30
"""So long an answer serves everybody: whoever asks often has nothing looked at more often."""

SECONDS: Final = 5.0
"""Longest that a request waits for what is looked at."""


def reports() -> APIRouter:
    """Return the routes; what was found last is kept here, for one process."""
    kept: list[HealthFindings] = []
    looking = asyncio.Lock()

    async def findings(*, res: Res) -> HealthFindings:
        """Say what was found of folders, disk, settings, backups and collateral, and what to do about it.

        Answers may be half a minute old.

        Raises:
            Unavailable: It takes too long; somebody else's question may still be on its way.
        """
        try:
            async with asyncio.timeout(SECONDS), looking:
                at = res.clock.now()
                if not kept or not 0 <= (at - kept[-1].at).total_seconds() < KEPT_SECONDS:
                    kept[:] = [await _looked(res, at)]
                return kept[-1]
        except TimeoutError as e:
            raise Unavailable("looking takes too long; ask again") from e

    async def settings(*, res: Res) -> SettingList:
        """List the settings of the process that answers; what may hold a secret is not shown."""
        from attestation_service.reports.shown import shown  # here: a start need not load it

        return SettingList(settings=list(shown(res.settings)))

    router = operator_router("operator: health")
    route(router, OperatorAPI.health_findings, "read", findings)
    route(router, OperatorAPI.settings, "read", settings)
    return router


async def _looked(res: Resources, at: datetime) -> HealthFindings:
    from attestation_service.inspection.case import Case, Facts, Listen  # here: a start need not load it
    from attestation_service.inspection.table import BEYOND, look_at

    facts = await res.store.read(lambda tx: Facts.read(tx, res.settings, at))
    case = Case(settings=res.settings, listen=Listen(host="127.0.0.1", port=0, uds=None), at=at, facts=facts)
    found = await asyncio.to_thread(look_at, case, {part: BEYOND[part] for part in INSIDE})
    return HealthFindings(
        at=at,
        findings=[_told(each) for each in found],
        not_looked_at=[part for part in BEYOND if part not in INSIDE],
    )


def _told(finding: Finding) -> HealthFinding:
    return HealthFinding.model_validate(
        {
            "part": finding.part,
            "level": finding.level.lower(),
            "what": finding.what,
            "todo": finding.todo or None,
        }
    )
