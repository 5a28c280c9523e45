"""Settings and health in the dashboard, before a real service in this process."""

from __future__ import annotations

from unittest import mock

import pytest

from attestation.client import OperatorClient
from attestation.errors import Unavailable
from tests.fixtures.web import AUDITOR, VIEWER, Dashboard


def test_findings_say_what_to_do(dashboard: Dashboard) -> None:
    """The worst first; what was not looked at is named; what is not known now looks so."""
    page = dashboard.browser("vera", rights=VIEWER).page("/settings")
    assert "To do: attestation-service backup" in page
    assert page.index(">warning</span>") < page.index(">good</span>")
    assert "Not looked at from inside a running service:" in page
    with mock.patch.object(OperatorClient, "health_findings", side_effect=Unavailable("too long")):
        page = dashboard.browser().page("/settings")
    assert "Not known now." in page
    assert "ITL_SERVICE_URL" in page


@pytest.mark.threat("T274")
def test_settings_are_shown_without_secrets(dashboard: Dashboard) -> None:
    """What was changed, or all; a token is said to be set."""
    page = dashboard.browser().page("/settings")
    assert "ITL_REATTEST_SECONDS" not in page
    everything = dashboard.browser().page("/settings?all=yes")
    assert "ITL_REATTEST_SECONDS" in everything
    for each in (page, everything):
        assert "set, not shown" in each
        assert dashboard.service.admin_token not in each
    assert dashboard.browser("ada", rights=AUDITOR).get("/settings").status_code == 403
