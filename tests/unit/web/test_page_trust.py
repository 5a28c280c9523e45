"""Trust: the bundle, the ceremony by which a CA is believed, unknown roots, and what confidential hardware needs."""

from __future__ import annotations

import hashlib
import html
import io
import re
import zipfile
from pathlib import Path
from typing import Any

import pytest
from werkzeug.test import TestResponse

from attestation.tpm import parse_public
from attestation.wire import pem
from attestation_testing import SoftwareNode
from attestation_web.pages import trust
from tests.fixtures.collateral import GOOD, write_anchors
from tests.fixtures.in_process import in_process_service
from tests.fixtures.machine import Machine
from tests.fixtures.vendor import ISSUER, ROOT, vouched
from tests.fixtures.web import VIEWER, Browser, Dashboard

DIGEST = hashlib.sha256(ROOT.certificate).hexdigest()
CERTIFICATE = f"/trust/certificates/{DIGEST}"
FILLED = {"role": "anchor", "vendor": "ifx", "reason": "compared with the vendor's page"}


def _shown(alice: Browser, **brought: Any) -> str:
    """Bring a certificate to the ceremony and return the address of its second step."""
    answer = alice.post("/trust/add", data=alice.form("/trust/add") | brought)
    assert answer.status_code == 303, answer.text
    return answer.headers["Location"].partition("dash.example")[2] or answer.headers["Location"]


def _believed(dashboard: Dashboard) -> Browser:
    alice = dashboard.browser()
    answer = alice.act(_shown(alice, pem=pem("CERTIFICATE", ROOT.certificate)), fingerprint=DIGEST, **FILLED)
    assert answer.status_code == 303, answer.text
    return alice


@pytest.mark.threat("T275")
def test_a_ca_is_believed_after_its_fingerprint_was_typed(dashboard: Dashboard) -> None:
    """What is in it is shown; another fingerprint is refused; colons, spaces and case do not matter; it is written."""
    alice = dashboard.browser()
    path = _shown(alice, file=(io.BytesIO(ROOT.certificate), "root.der"))
    page = alice.page(path)
    assert "Infineon Test Root" in page
    assert " ".join(DIGEST[i : i + 8] for i in range(0, 64, 8)) in page
    refused = alice.act(path, fingerprint="00" * 32, **FILLED)
    assert refused.status_code == 422
    assert "This was not done." in refused.text
    assert "not that of this certificate" in refused.text
    assert alice.get(CERTIFICATE).status_code == 404
    typed = ":".join(DIGEST[i : i + 2].upper() for i in range(0, 64, 2))
    assert alice.act(path, fingerprint=f" {typed} ", **FILLED).status_code == 303
    page = alice.page("/trust")
    assert re.search(r"anchor of IFX [0-9a-f]{16}… is trusted\. <span class=\"entry\">Audit entry", page)
    assert "Infineon Test Root" in page


@pytest.mark.parametrize("brought", [{}, {"pem": "no certificate"}, {"pem": "x" * 70_000}])
def test_what_is_no_certificate_goes_no_further(dashboard: Dashboard, brought: dict[str, str]) -> None:
    """Nothing, another text, and what is too long are refused on the first page, in words."""
    alice = dashboard.browser()
    answer = alice.post("/trust/add", data=alice.form("/trust/add") | brought)
    assert answer.status_code == 422
    assert "That cannot be used." in answer.text


@pytest.mark.threat("T275")
def test_a_ceremony_waits_for_a_login_of_lately(dashboard: Dashboard) -> None:
    """Whoever finds a screen unlocked believes no CA on it; what was filled in comes back after the login."""
    alice = dashboard.browser()
    path = _shown(alice, pem=pem("CERTIFICATE", ROOT.certificate))
    dashboard.service.clock.pass_(seconds=301)
    answer = alice.act(path, fingerprint=DIGEST, **FILLED)
    assert answer.status_code == 403
    again = re.search(r"resume%3D([\w-]+)|resume=([\w-]+)", answer.text)
    assert again
    page = alice.page(f"/trust/believe?resume={again[1] or again[2]}")
    assert "Infineon Test Root" in page
    assert "compared with the vendor" in page


def test_it_is_distrusted_at_once_and_restored(dashboard: Dashboard) -> None:
    """The beginning of the fingerprint is typed for it; both stand on its page with their reason."""
    alice = _believed(dashboard)
    assert alice.act(f"{CERTIFICATE}/distrust", reason="stolen", _typed="00000000").status_code == 422
    assert alice.act(f"{CERTIFICATE}/distrust", reason="stolen", _typed=DIGEST[:8]).status_code == 303
    page = alice.page(CERTIFICATE)
    assert '<span class="badge bad">distrusted' in page
    assert "stolen" in page
    assert "Distrusted because" in alice.page(f"{CERTIFICATE}/restore")
    assert alice.act(f"{CERTIFICATE}/restore", reason="a false alarm").status_code == 303
    assert '<span class="badge good">trusted' in alice.page(CERTIFICATE)


def test_an_unknown_root_is_named_with_the_machines_that_have_it(dashboard: Dashboard) -> None:
    """Who is said to have signed is a hint, with a way to each decision; nothing is there where nobody has one."""
    alice = dashboard.browser()
    assert "No machine that waits was seen" in alice.page("/trust?tab=unknown")
    node = SoftwareNode(1)
    made = Machine(node, dashboard.service.client("192.0.2.1"), hw_serial="SN-1")
    made.enrol(**vouched(parse_public(node.identify().ek_public)))
    page = alice.page("/trust?tab=unknown")
    assert "Infineon Test Root" in page
    assert f'href="/machines/{made.machine_id}">SN-1' in page
    assert 'href="/trust/add?vendor=IFX&amp;role=anchor"' in page
    assert "/trust/add?" not in dashboard.browser("vera", rights=VIEWER).page("/trust?tab=unknown")


def test_every_machine_that_waits_is_looked_at(dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many at a time as a page may; the rest behind a link, and more than some are counted, not named."""
    for seed in range(1, 12):
        node = SoftwareNode(seed)
        made = Machine(node, dashboard.service.client(f"192.0.2.{seed}"), hw_serial=f"SN-{seed}")
        made.enrol(**vouched(parse_public(node.identify().ek_public)))
    dashboard.machine(20, hw_serial="without-a-certificate")
    alice = dashboard.browser()
    page = alice.page("/trust?tab=unknown")
    assert len(re.findall(r">SN-\d+<", page)) == 11
    assert "11 machines that wait have an EK certificate that nobody vouches for." in page
    monkeypatch.setattr(trust, "MOST_NAMED", 4)
    page = alice.page("/trust?tab=unknown")
    assert len(re.findall(r">SN-\d+<", page)) == 4
    assert "7 more" in page
    assert "<dd>11</dd>" in page
    # Pages of the service are smaller here: this one looks at two of them.
    monkeypatch.setattr(trust, "MOST_NAMED", 20)
    monkeypatch.setattr(trust, "PAGE_MACHINES", 3)
    monkeypatch.setattr(trust, "MOST_PAGES", 2)
    named: list[str] = []
    path: str | None = "/trust?tab=unknown"
    while path is not None:
        page = alice.page(path)
        named += re.findall(r">(SN-\d+)<", page)
        further = re.search(r'href="([^"]+)" rel="next">Look at older', page)
        path = None if further is None else html.unescape(further[1])
    assert named == [f"SN-{seed}" for seed in range(11, 0, -1)]


def test_an_ek_certificate_is_checked(dashboard: Dashboard) -> None:
    """Who vouches for it, certificate by certificate; and that nobody does."""
    alice = dashboard.browser()
    sent = alice.form("/trust/verify") | {"pem": pem("CERTIFICATE", ISSUER.certificate)}
    assert "Nobody vouches for it." in alice.post("/trust/verify", data=sent).text
    assert alice.post("/trust/verify", data=alice.form("/trust/verify") | {"pem": "?"}).status_code == 422


def test_advisories_are_listed_with_what_follows(dashboard: Dashboard) -> None:
    """Vendor, versions and consequence of each, and the way to the machines that one forbids."""
    page = dashboard.browser("vera", rights=VIEWER).page("/trust?tab=firmware")
    assert "CVE-2017-15361" in page
    assert "7.0-7.61" in page
    assert "not trusted" in page
    met = re.search(r'href="(/machines\?where=[^"]+)"', page)
    assert met is not None
    assert "No machine fits." in dashboard.browser().page(html.unescape(met[1]))


def test_no_collateral_is_said(dashboard: Dashboard) -> None:
    """An empty list says why it is empty."""
    alice = dashboard.browser()
    assert "No collateral is kept" in alice.page("/trust?tab=collateral")
    assert alice.act("/trust/collateral/refresh").status_code == 303


def test_collateral_is_imported_from_an_archive(tmp_path: Path) -> None:
    """Each piece is verified by the service; what nobody vouches for is named with why, and the others are kept."""
    anchors = write_anchors(tmp_path / "anchors.json")
    good = dict(list(GOOD.items())[:2])
    with in_process_service(
        tmp_path / "service", tpm_allow_simulator=True, tee_test_anchors=anchors
    ) as service:
        alice = Dashboard(service).browser()
        path = "/trust/collateral/import"

        def imported(files: dict[str, bytes]) -> TestResponse:
            made = io.BytesIO()
            with zipfile.ZipFile(made, "w") as archive:
                for name, data in {"out/manifest.json": b"{}", **files}.items():
                    archive.writestr(name, data)
            made.seek(0)
            return alice.post(path, data=alice.form(path) | {"file": (made, "out.zip")})

        files = {f"out/{name}": data for name, data in good.items()}
        answer = imported(files | {"out/tdx/qe-identity.json": b"forged"})
        assert "2 kept, 0 not newer than what is there, 1 refused." in answer.text
        assert re.search(r"Audit entry \d+\.", answer.text)
        assert "<li>tdx/qe-identity.json <span>" in answer.text
        shown = alice.page("/trust?tab=collateral")
        assert all(name in shown for name in good)
        assert "0 kept, 2 not newer than what is there, 0 refused." in imported(files).text
        nothing = alice.post(path, data=alice.form(path))
        assert (nothing.status_code, "Nothing was imported." in nothing.text) == (422, True)


def test_a_viewer_sees_and_does_nothing(dashboard: Dashboard) -> None:
    """The certificates are shown to them, no act is, and each is refused."""
    _believed(dashboard)
    vera = dashboard.browser("vera", rights=VIEWER)
    for path in ("/trust", "/trust?tab=collateral", CERTIFICATE):
        page = vera.page(path)
        for act in ("/trust/add", "/trust/verify", "/distrust", "/refresh"):
            assert act not in page
    for path in ("add", "believe", "verify", f"certificates/{DIGEST}/distrust", "collateral/refresh"):
        assert vera.get(f"/trust/{path}").status_code == 403, path
