"""Those who count: told in the path of attestations, where none of them may do harm."""

from __future__ import annotations

from pathlib import Path

import pytest

from attestation_service import extensions
from attestation_service.extensions import loading
from attestation_service.extensions.enabled import ExtensionInvalid
from tests.fixtures.extension import install, site
from tests.unit.service.conftest import Starter, migrated, settings_for, start
from tests.unit.service.node import SoftwareNode

__all__ = ["migrated", "site", "start"]

pytestmark = pytest.mark.anyio

COUNTING = """
from attestation.extension import CONTRACT, AttestationExtension, Bearer, Reply, Router

class Extension(AttestationExtension):
    contract, name, version, description = CONTRACT, "counting", "1.0.0", "Counts."
    told = []

    def get_observer(self):
        {observer}

    def observe(self, what, how, value=1):
        self.told.append((what, dict(how)))
        {then}

    def get_router(self):
        router = Router()
        router.add("GET /heard", "public", self.heard)
        return router

    async def heard(self, who: Bearer) -> Reply:
        "Say what came."
        self.context.observe("said", {{"by": "itself"}})
        return Reply(body=repr((who, who.token)).encode(), media_type="text/plain")
"""


@pytest.fixture
def anyio_backend() -> str:
    """Run the asynchronous tests on asyncio."""
    return "asyncio"


@pytest.mark.parametrize("then", ["pass", "raise ValueError('canary')"])
async def test_an_attestation_is_told_and_goes_on(
    site: Path, start: Starter, capsys: pytest.CaptureFixture[str], then: str
) -> None:
    """What was told to the machine, and its status; one that fails is logged by its kind, and nothing else happens."""
    install(site, "counting", COUNTING.format(observer="return self.observe", then=then))
    service = await start(extensions=("counting",))
    node = SoftwareNode()
    await service.admitted(node)
    (made,) = extensions.load(service.resources.settings).extensions
    told = type(made).told  # type: ignore[attr-defined]  # of the extension above
    assert ("machine_attestations", {"action": "apply-config", "status": "attested"}) in told
    assert ("quote_age_seconds", {}) in told
    log = capsys.readouterr().err
    assert ("observer.failed" in log) == (then != "pass")
    assert "canary" not in log
    node_of_nobody = await service.get("/api/v1/counting/heard", headers={"Authorization": "Bearer secret-1"})
    assert node_of_nobody.text == "(Bearer(), 'secret-1')"
    assert ("said", {"by": "itself"}) in told


@pytest.mark.parametrize(
    ("observer", "why"),
    [("return 1", "has an observer that is no function"), ("raise ValueError", "has no observer")],
)
def test_one_that_cannot_be_told_is_refused(
    site: Path, monkeypatch: pytest.MonkeyPatch, observer: str, why: str
) -> None:
    """Of ours it stops the start; a stranger's is skipped and shown."""
    install(site, "counting", COUNTING.format(observer=observer, then="pass"))
    settings = settings_for(site, extensions=("counting",))
    found = extensions.load(settings)
    assert (found.extensions, found.observers) == ((), ())
    assert why in found.skipped["counting"]
    monkeypatch.setattr(loading, "_is_ours", lambda _: True)
    with pytest.raises(ExtensionInvalid, match=why):
        extensions.load(settings)
