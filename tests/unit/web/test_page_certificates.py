"""Certificates: what was issued, what ends soon, what is revoked, and the rotation of a CA's keys."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from attestation_web.pages import certificates
from tests.fixtures.in_process import in_process_service
from tests.fixtures.web import VIEWER, Dashboard


@pytest.fixture
def dashboard(tmp_path: Path) -> Iterator[Dashboard]:
    """A dashboard before a service with a CA."""
    with in_process_service(tmp_path / "service", enrollment_ca_unencrypted=True) as service:
        yield Dashboard(service)


@pytest.fixture
def serial(dashboard: Dashboard) -> str:
    """The certificate of the machine w-1."""
    made = dashboard.machine(1)
    made.admitted(dashboard.service.operator(), hostname="w-1")
    made.certificate(made.keys.create_signing_key())
    found = re.search(r'href="/certificates/([0-9a-f]{40})"', dashboard.browser().page("/certificates"))
    assert found
    return found[1]


def test_a_certificate_is_listed_shown_and_revoked(dashboard: Dashboard, serial: str) -> None:
    """By its machine, with its text; the machine's name is typed to end it, and the reason stands on it."""
    alice = dashboard.browser()
    assert serial in alice.page("/certificates?state=issued")
    assert "No certificate fits." in alice.page("/certificates?state=revoked")
    page = alice.page(f"/certificates/{serial}")
    assert "-----BEGIN CERTIFICATE-----" in page
    revoke = f"/certificates/{serial}/revoke"
    name = re.search(r"Type <code>([^<]+)</code>", alice.page(revoke))
    assert name
    assert alice.act(revoke, reason="keyCompromise", _typed="w-2").status_code == 422
    assert (
        alice.act(revoke, reason="keyCompromise", note="the board was lost", _typed=name[1]).status_code
        == 303
    )
    page = alice.page(f"/certificates/{serial}")
    assert re.search(r"is revoked\. <span class=\"entry\">Audit entry", page)
    assert "keyCompromise: the board was lost" in page
    assert revoke not in page


def test_those_that_end_soon_stand_first(
    dashboard: Dashboard, serial: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that end within a time, those that are over left out."""
    alice = dashboard.browser()
    monkeypatch.setattr(certificates, "SOON", timedelta(days=3650))
    assert serial in alice.page("/certificates?tab=ending")
    monkeypatch.setattr(certificates, "SOON", timedelta(seconds=1))
    assert "No certificate in use ends soon." in alice.page("/certificates?tab=ending")
    monkeypatch.setattr(certificates, "SOON", timedelta(days=3650))
    dashboard.service.clock.pass_(days=3000)
    assert serial not in dashboard.browser().page("/certificates?tab=ending")


def test_a_rotation_goes_step_by_step(dashboard: Dashboard) -> None:
    """The steps that are possible now are offered, each told before; a key that is next signs nothing yet."""
    alice = dashboard.browser()
    page = alice.page("/certificates?tab=ca")
    prepare = "/certificates/ca/machine/prepare"
    assert prepare in page
    assert "/certificates/ca/machine/activate" not in page
    assert alice.act(prepare, reason="the yearly one").status_code == 303
    page = alice.page("/certificates?tab=ca")
    assert '<span class="badge waits" title="Published; it signs nothing yet">next' in page
    assert prepare not in page
    refused = alice.act("/certificates/ca/machine/activate", reason="at once")
    assert refused.status_code in (409, 422), "relying parties do not know it yet"
    assert "This was not done." in refused.text
    assert alice.act("/certificates/ca/machine/rollback", reason="no", _typed="machine").status_code == 303
    assert '">abandoned' in alice.page("/certificates?tab=ca")
    key = re.search(r'href="(/certificates/ca/[0-9a-f]+\.pem)"', page)
    assert key
    assert "-----BEGIN CERTIFICATE-----" in alice.page(key[1])
    assert "Every key signs." in alice.page("/certificates/ca/check")


def test_a_key_is_refused_for_ever(dashboard: Dashboard) -> None:
    """What is no digest is refused beside its field; what is one stands in the list with its reason."""
    alice = dashboard.browser()
    wrong = alice.act("/certificates/refuse", spki_sha256="xyz", reason="lost", _typed="refuse")
    assert (wrong.status_code, "64 hex digits" in wrong.text) == (422, True)
    assert (
        alice.act("/certificates/refuse", spki_sha256="ab" * 32, reason="lost", _typed="refuse").status_code
        == 303
    )
    assert "ab" * 32 in alice.page("/certificates?tab=refused")


def test_a_service_without_a_ca_says_so(tmp_path: Path) -> None:
    """It is no error that it issues nothing."""
    with in_process_service(tmp_path) as service:
        alice = Dashboard(service).browser()
        for tab in ("issued", "ending", "ca", "refused"):
            assert "This service has no CA" in alice.page(f"/certificates?tab={tab}"), tab


def test_a_viewer_ends_nothing(dashboard: Dashboard, serial: str) -> None:
    """No act is shown to them, and each is refused."""
    vera = dashboard.browser("vera", rights=VIEWER)
    for path in (
        "/certificates",
        "/certificates?tab=ca",
        "/certificates?tab=refused",
        f"/certificates/{serial}",
    ):
        assert not re.search(r"/(revoke|prepare|refuse)\"", vera.page(path)), path
    for path in (f"{serial}/revoke", f"people/{serial}/revoke", "ca/machine/prepare", "refuse"):
        assert vera.get(f"/certificates/{path}").status_code == 403, path
