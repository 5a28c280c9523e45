"""What a running service says of its own health and settings."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from pydantic import SecretStr

from attestation_service.inspection.table import BEYOND
from attestation_service.reports.routes import INSIDE, KEPT_SECONDS
from attestation_service.reports.shown import TEXTS, shown
from attestation_service.settings import Settings
from tests.unit.service import hsm_requests as hsm
from tests.unit.service.conftest import Service, Starter, migrated, settings_for, start

__all__ = ["migrated", "start"]

pytestmark = pytest.mark.anyio

CANARY = "canary-8c1f"
HOUR = timedelta(hours=1)


@pytest.fixture
def anyio_backend() -> str:
    """Run the asynchronous tests on asyncio."""
    return "asyncio"


@pytest.fixture
async def service(start: Starter) -> Service:
    """A service."""
    return await start()


async def test_what_is_found_is_told_with_what_to_do(service: Service) -> None:
    """A service that was never backed up says so; what it cannot look at is named."""
    answer = (await service.operator("GET", "/health/findings")).json()
    assert {each["part"] for each in answer["findings"]} <= {*INSIDE}
    (backups,) = (each for each in answer["findings"] if each["part"] == "backups")
    assert (backups["level"], "attestation-service backup" in backups["todo"]) == ("warning", True)
    assert set(answer["not_looked_at"]) == BEYOND.keys() - {*INSIDE}


async def test_ca_keys_in_hardware_that_need_their_controller_are_told(start: Starter) -> None:
    """Lists that are late, and CA certificates that end soon; a cluster that needs nothing is good."""
    service = await hsm.serving(start)
    issuer = await hsm.registered(service)
    await hsm.issued(service, issuer)

    async def told() -> list[tuple[str, bool]]:
        service.clock.advance(KEPT_SECONDS + 1)
        found = (await service.operator("GET", "/health/findings")).json()["findings"]
        return [
            (each["level"], "CA certificate ends" in each["what"])
            for each in found
            if each["part"] == "HSM issuers"
        ]

    assert await told() == [("warning", False)]
    await hsm.listed(service, issuer)
    assert await told() == [("ok", False)]
    ending = hsm.Issuer(service.clock.at, "Ending CA")
    body = ending.put(certificate=ending.certificate(days=29))
    ending.issuer_id = (await hsm.good(service, "PUT", "/issuers/uid-2", body))["issuer_id"]
    said = hsm.request(service, ending.key, "short", not_after=(service.clock.at + HOUR).isoformat())
    await hsm.reserve(service, ending, said)
    assert await told() == [("warning", False), ("warning", True)]


async def test_an_answer_serves_everybody_for_a_while(service: Service) -> None:
    """Whoever asks often has nothing looked at more often."""
    first = (await service.operator("GET", "/health/findings")).json()["at"]
    service.clock.advance(KEPT_SECONDS - 1)
    assert (await service.operator("GET", "/health/findings")).json()["at"] == first
    service.clock.advance(2)
    assert (await service.operator("GET", "/health/findings")).json()["at"] != first


async def test_settings_are_told_and_no_secret_is(service: Service) -> None:
    """Kinds that hold none are shown; of texts only those that are named."""
    answer = await service.operator("GET", "/settings")
    told = {each["name"]: each for each in answer.json()["settings"]}
    assert told["ITL_REATTEST_SECONDS"]["value"] == "45"
    assert (told["ITL_ADMIN_TOKEN"]["value"], told["ITL_ADMIN_TOKEN"]["is_set"]) == (None, True)
    assert told["ITL_DB_URL"]["value"] is None


def test_no_text_is_shown_that_nobody_named() -> None:
    """Each setting that takes a text is given one; what comes out is of those that are named."""
    chosen = settings_for(Path("/nowhere"))
    texts = {
        name: SecretStr(CANARY) if isinstance(getattr(chosen, name), SecretStr) else CANARY
        for name in Settings.model_fields
        if isinstance(getattr(chosen, name), str | SecretStr) and name not in TEXTS
    }
    filled = chosen.model_copy(update=texts | {"service_key": f"pkcs11:object=a?pin-value={CANARY}"})
    found = {each.name: each for each in shown(filled)}
    assert {"ITL_DB_URL", "ITL_ADMIN_TOKEN", "ITL_SERVICE_KEY", "ITL_ENROLLMENT_CA_KEY"} <= found.keys()
    literal = {
        "ITL_ACME",
        "ITL_LOG_LEVEL",
        "ITL_TLS_MIN_VERSION",
        "ITL_PENDING_ANSWER",
        "ITL_TPM_REVOCATION",
        "ITL_EK_EXPIRY",
        "ITL_CONFIG_LINT",
    }
    assert {n for n, each in found.items() if each.value and CANARY in each.value} <= literal
    assert found["ITL_SERVICE_KEY"].is_set
    assert found["ITL_SERVICE_URL"].value == "https://attest.example.test"
    assert not found["ITL_SERVICE_URL"].is_default
