"""From which address a person asks: found out here, believed by the service only where it is told to."""

from __future__ import annotations

from ipaddress import ip_network
from pathlib import Path

import pytest

from attestation_web.login.address import address_of
from attestation_web.settings import Settings, SettingsInvalid
from tests.fixtures.in_process import in_process_service
from tests.fixtures.web import EVERYTHING, SETTINGS, Dashboard

PROXIES = (ip_network("10.0.0.0/8"),)
DASHBOARD = "192.0.2.80"
"""As the service sees it."""


@pytest.mark.parametrize(
    ("peer", "forwarded", "expected"),
    [
        ("192.0.2.7", [], "192.0.2.7"),
        # A stranger claims what they like.
        ("192.0.2.7", ["203.0.113.5"], "192.0.2.7"),
        ("10.0.0.1", ["203.0.113.5"], "203.0.113.5"),
        # Through a proxy of ours: what it saw stands at the right, before it is what the person claimed.
        ("10.0.0.1", ["198.51.100.1, 203.0.113.5"], "203.0.113.5"),
        ("10.0.0.1", ["198.51.100.1", "203.0.113.5, 10.0.0.2"], "203.0.113.5"),
        ("::ffff:10.0.0.1", ["2001:db8::1"], "2001:db8::1"),
        ("10.0.0.1", ["nonsense"], "10.0.0.1"),
        ("10.0.0.1", ["203.0.113.5\t, evil\r\nHost: x"], "10.0.0.1"),
        ("10.0.0.1", [], "10.0.0.1"),
        (None, ["203.0.113.5"], None),
        ("", [], None),
    ],
)
def test_the_first_that_is_no_proxy_of_ours_counts(
    peer: str | None, forwarded: list[str], expected: str | None
) -> None:
    """Read from the right; what is no address ends it."""
    assert address_of(peer, forwarded, PROXIES) == expected


@pytest.mark.parametrize(
    ("believes", "tells", "expected"),
    [(True, True, "203.0.113.5"), (False, True, DASHBOARD), (True, False, DASHBOARD)],
)
def test_the_service_believes_it_where_it_is_told_to(
    tmp_path: Path, *, believes: bool, tells: bool, expected: str
) -> None:
    """Only by its own rule, and only what the dashboard tells: its audit has that address."""
    trusted = {"trusted_proxies": [f"{DASHBOARD}/32"]} if believes else {}
    web = {"tell_address": True, "trusted_proxies": ["127.0.0.0/8"]} if tells else {}
    with in_process_service(tmp_path / "service", **trusted) as service:
        dashboard = Dashboard(service, **web)
        alice = dashboard.browser(rights=EVERYTHING)
        machine = dashboard.machine(1)
        # Flask's client is at 127.0.0.1, as a proxy on this computer would be.
        alice.client.environ_base["HTTP_X_FORWARDED_FOR"] = "203.0.113.5"
        assert alice.act(f"/machines/{machine.machine_id}/labels", labels="rack=4").status_code == 303
        page = alice.page("/audit?action=label&column=from&column=id&column=action")
        assert expected in page
        assert ({"203.0.113.5", DASHBOARD} - {expected}).pop() not in page


def test_proxies_are_networks_and_need_the_other_setting() -> None:
    """A list with commas; without `TELL_ADDRESS` nobody would read it, and somebody thought it did something."""
    given = {f"ITL_WEB_{name.upper()}": value for name, value in SETTINGS.items()}
    both = {"ITL_WEB_TELL_ADDRESS": "true", "ITL_WEB_TRUSTED_PROXIES": "10.0.0.0/8, 2001:db8::/32"}
    assert Settings.load(given | both).trusted_proxies == (*PROXIES, ip_network("2001:db8::/32"))
    for wrong in (
        {**both, "ITL_WEB_TELL_ADDRESS": "false"},
        {**both, "ITL_WEB_TRUSTED_PROXIES": "everybody"},
    ):
        with pytest.raises(SettingsInvalid, match="TRUSTED_PROXIES"):
            Settings.load(given | wrong)
