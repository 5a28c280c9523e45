"""The table of parts, and the walk over it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Final

from attestation.errors import AttestationError
from attestation_service import extensions
from attestation_service.inspection import beyond, files, keys, outside, storage
from attestation_service.inspection.case import Case, Findings, Listen, failed, ok, warning
from attestation_service.inspection.finding import Finding
from attestation_service.settings import Settings, SettingsInvalid


def _settings(case: Case) -> Findings:
    yield ok("settings", what=f"they can be read; the service is {case.settings.service_url}")
    yield from (warning("settings", what=told) for told in case.settings.warnings())


def _extensions(case: Case) -> Findings:
    enabled = extensions.load(case.settings)
    for each in enabled.extensions:
        yield ok("extensions", what=f"{each.name} {each.version}: {each.description}")
    for name, why in enabled.skipped.items():
        yield failed(
            "extensions",
            what=f"{name} is skipped: it {why}",
            todo="mend it, or take it out of ITL_EXTENSIONS",
        )


PARTS: Final[Mapping[str, Callable[[Case], Findings]]] = {
    "settings": _settings,
    "folders": storage.folders,
    "disk": storage.disk,
    "service key": keys.service_key,
    "audit keys": keys.log_keys,
    "CA": keys.authority,
    "TLS": outside.tls,
    "operators": outside.operators,
    "configurations": files.configurations,
    "secrets": files.secrets,
    "trust": files.trust,
    "collateral": beyond.collateral,
    "extensions": _extensions,
    "clock": outside.clock,
    "database clock": beyond.database_clock,
    "port": outside.port,
}
"""In the order of reading; the database goes before all of them."""

BEYOND: Final[Mapping[str, Callable[[Case], Findings]]] = {
    **{part: look for part, look in PARTS.items() if part != "port"},  # whose service may well be running
    "database TLS": beyond.database_tls,
    "HSM issuers": beyond.hsm_issuers,
    "backups": beyond.backups,
}
"""What `doctor` looks at."""

EXPECTED: Final = (AttestationError, SettingsInvalid, OSError, ValueError)
"""What a part may stumble over; its text is for operators."""


def inspect(
    settings: Settings, listen: Listen, at: datetime, parts: Mapping[str, Callable[[Case], Findings]] = PARTS
) -> list[Finding]:
    """Look at everything that a start with *settings* needs; change nothing. Blocks: seconds, where others answer."""
    case = Case(settings=settings, listen=listen, at=at)
    found: list[Finding] = []
    try:
        found, facts = storage.database(case)
        case = dataclasses.replace(case, facts=facts)
    except EXPECTED as e:
        found = [failed("database", what=str(e))]
    return [*found, *look_at(case, parts)]


def look_at(case: Case, parts: Mapping[str, Callable[[Case], Findings]]) -> list[Finding]:
    """Look at *parts*; what one of them stumbles over is its finding. Blocks."""
    found: list[Finding] = []
    for part, look in parts.items():
        try:
            found.extend(look(case))
        except EXPECTED as e:
            found.append(failed(part, what=str(e)))
    return found
