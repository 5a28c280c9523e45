"""What is refused, or weakened, is an entry of the audit log, within bounds (DELIVERY-AND-OPERATORS §19.1)."""

from __future__ import annotations

import pytest

from tests.unit.service.conftest import Service, Starter
from tests.unit.service.node import SoftwareNode

pytestmark = pytest.mark.anyio


async def denials(service: Service) -> list[str | None]:
    """Return the details of denials, newest first."""
    return [entry["detail"] for entry in await service.audit(action="denied")]


@pytest.mark.threat("T45")
async def test_settings_that_are_weaker_are_one_entry_of_each_start(start: Starter) -> None:
    """Three workers of one start write one entry with the whole list; a start later writes its own."""
    first = await start(tpm_allow_simulator=True, rate_limits=False)
    for _ in range(2):
        await start(first.clock, tpm_allow_simulator=True, rate_limits=False)
    (entry,) = await first.audit(action="settings_weakened")
    assert entry["operator_cn"] == "service"
    assert "ITL_TPM_ALLOW_SIMULATOR=true" in entry["detail"]
    assert "ITL_RATE_LIMITS=false" in entry["detail"]
    first.clock.advance(120)
    await start(first.clock, tpm_allow_simulator=True, rate_limits=False)
    assert len(await first.audit(action="settings_weakened")) == 2


async def test_other_weakenings_are_another_entry(start: Starter) -> None:
    """Within the same minute too: what differs was not said yet."""
    first = await start(tpm_allow_simulator=True)
    await start(first.clock, rate_limits=False)
    assert len(await first.audit(action="settings_weakened")) == 2


async def test_safe_settings_are_no_entry(service: Service) -> None:
    """Nothing weakened, nothing said."""
    assert await service.audit(action="settings_weakened") == []


async def test_a_guessed_registration_token_is_a_denial(service: Service) -> None:
    """Somebody tries tokens: that stands in the log, ten times at most."""
    for _ in range(15):
        body = SoftwareNode().introduction(registration_token="itl-reg-" + "A" * 43)
        answer = await service.post("/api/v1/register", body)
        assert answer.status_code == 403, answer.text
    found = await denials(service)
    assert set(found) == {"introduce: registration-token-invalid"}
    assert 1 <= len(found) <= 10


async def test_a_config_token_that_is_worth_nothing_is_a_denial(service: Service) -> None:
    """Unknown, or used: whoever presents it may have found it somewhere."""
    token = (await service.admitted(SoftwareNode()))["config_token"]
    assert (await service.fetch(token)).status_code == 200
    service.clock.advance(3600)
    assert (await service.fetch(token)).status_code == 410
    assert (await service.fetch("unknown")).status_code == 404
    assert await denials(service) == ["config: config-token-unknown", "config: token-consumed"]
    assert token not in str(await service.audit())


async def test_what_the_status_of_a_machine_forbids_is_a_denial(service: Service) -> None:
    """Who wanted what with which machine."""
    node = SoftwareNode()
    await service.admitted(node)
    answer = await service.operator("POST", f"/machines/{node.machine_id}/unlock")
    assert answer.status_code == 409
    (entry,) = await service.audit(action="denied")
    assert (entry["operator_cn"], entry["machine_id"]) == ("SYSTEM", node.machine_id)
    assert entry["detail"].startswith("transition-forbidden: ")
