"""Configurations: versions, what is delivered, what differs, and activating; nothing that is secret on any page."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from attestation_web.page.acting import TYPED_FIELD
from tests.fixtures.configurations import WORKERS, activated, base, imported, key
from tests.fixtures.in_process import in_process_service
from tests.fixtures.reading import Reader
from tests.fixtures.web import VIEWER, Dashboard

PLACE: Final = "default/worker-app"
CANARY: Final = f"canary-{secrets.token_hex(16)}"
HOSTILE: Final = "<img src=x onerror=alert(1)>\u202egpj"


@pytest.fixture
def keeping(tmp_path: Path) -> Iterator[Dashboard]:
    """A dashboard before a service that keeps configurations."""
    with in_process_service(tmp_path / "service", config_kek=(key(tmp_path),)) as service:
        yield Dashboard(service)


def _imported(dashboard: Dashboard, text: str, place: str = WORKERS, **more: Any) -> int:
    return imported(dashboard.service.operator(), text, place, **more)


def _activated(dashboard: Dashboard, version: int, place: str = WORKERS) -> None:
    activated(dashboard.service.operator(), version, place)


def _base(disk: str = "/dev/sda", more: str = "") -> str:
    return base(CANARY, disk, more)


def test_versions_are_listed_compared_activated_and_rolled_back(keeping: Dashboard) -> None:
    """Each says which is delivered; what differs is told, a secret only that it does; the act says what it will do."""
    alice = keeping.browser()
    assert "No version is kept." in alice.page("/configurations")
    assert "No version is kept for this role" in alice.page(WORKERS)
    _imported(keeping, _base(), note=HOSTILE)
    assert "none is active" in alice.page("/configurations")
    assert "none of these is delivered" in alice.page(WORKERS)
    act = f"{WORKERS}/1/activate"
    assert "none of them" in alice.page(act)
    assert alice.act(act, **{TYPED_FIELD: "default/controlplane"}).status_code == 422
    assert alice.act(act, reason="first", **{TYPED_FIELD: PLACE}).status_code == 303
    told = Reader(alice.page(WORKERS)).text
    assert f"{PLACE}: version 1 is delivered from now on." in told
    assert "Audit entry" in told
    _imported(
        keeping, _base("/dev/nvme0n1", "debug: true\n").replace(f"token: {CANARY}", f"token: {CANARY}2")
    )
    second = Reader(alice.page(f"{WORKERS}/2")).text
    for words in ("What differs from version 1", "machine.install.disk", "/dev/sda", "/dev/nvme0n1"):
        assert words in second
    assert "machine.token" in second, "that a secret differs is told"
    assert "Values that differ from it" in alice.page(f"{WORKERS}/2/activate")
    assert alice.act(f"{WORKERS}/2/activate", **{TYPED_FIELD: PLACE}).status_code == 303
    assert "version 2" in alice.page("/configurations")
    assert f'href="{WORKERS}/1/activate">Roll back to version 1' in alice.page(WORKERS)
    assert "this rolls back" in alice.page(f"{WORKERS}/1/activate")
    assert alice.act(f"{WORKERS}/1/activate", **{TYPED_FIELD: PLACE}).status_code == 303
    assert "What differs from version 2" in alice.page(f"{WORKERS}/1"), "it was delivered before"
    for gone in (f"{WORKERS}/9", f"{WORKERS}/1?with=9", "/configurations/default/nobody"):
        assert alice.get(gone).status_code == 404, gone
    assert alice.get(f"{WORKERS}/1?with=x").status_code == 422


def test_what_is_delivered_meanwhile_is_looked_at_first(keeping: Dashboard) -> None:
    """A form that was opened before somebody else activated another version does nothing."""
    alice = keeping.browser()
    for disk in ("/dev/sda", "/dev/sdb"):
        _imported(keeping, _base(disk))
    form = alice.form(f"{WORKERS}/1/activate")
    _activated(keeping, 2)
    late = alice.post(f"{WORKERS}/1/activate", data=form | {TYPED_FIELD: PLACE})
    assert late.status_code == 409
    assert "has changed since you saw it" in late.text
    assert (
        "delivered"
        not in Reader(alice.page(f"{WORKERS}/1")).text.partition("Before it")[0].partition("State")[2]
    )


def test_a_machine_shows_what_it_would_be_given(keeping: Dashboard) -> None:
    """From which base and patch, what each changed, what Talos says; a patch is activated as a base is."""
    alice, operator = keeping.browser(), keeping.service.operator()
    made = keeping.machine(1)
    tab = f"/machines/{made.machine_id}?tab=configuration"
    assert "It would be given nothing now: the machine has no role." in Reader(alice.page(tab)).text
    made.admitted(operator, hostname="w-1")
    assert "It would be given nothing now" in alice.page(tab), "a file is not asked where versions are kept"
    for disk in ("/dev/sda", "/dev/sdb"):
        _activated(keeping, _imported(keeping, _base(disk)))
    patches = f"/machines/{made.machine_id}/patches"
    for mtu in ("debug: false\n", "debug: true\n"):
        _imported(keeping, mtu, patches)
    assert alice.act(f"{patches}/1/activate").status_code == 303
    assert alice.act(f"{patches}/2/activate").status_code == 303
    page = alice.page(tab)
    text = Reader(page).text
    for words in (
        f'href="{WORKERS}/2">{PLACE}, version 2',
        f'href="{patches}/2">version 2',
    ):
        assert words in page
    for words in (
        f"What version 2 of {PLACE} changed",
        "What version 2 of the patch of w-1 changed",
        "machine.install.disk",
        "hostname",
    ):
        assert words in text
    assert "What differs from version 2" in alice.page(f"{patches}/1")
    assert alice.get(f"{patches}/9").status_code == 404


def test_what_talos_says_stands_beside_it(tmp_path: Path) -> None:
    """What a later version only tolerates is told of a version and of what a machine would be given."""
    settings = {"config_kek": (key(tmp_path),), "talos_version": "v1.14.0"}
    with in_process_service(tmp_path / "service", **settings) as service:
        dashboard = Dashboard(service)
        alice, made = dashboard.browser(), dashboard.machine(1)
        made.admitted(service.operator(), hostname="w-1")
        _activated(dashboard, _imported(dashboard, _base()))
        for path in (f"{WORKERS}/1", f"/machines/{made.machine_id}?tab=configuration"):
            page = alice.page(path)
            assert '<span class="badge warns">deprecated</span>' in page, path
            assert "<code>machine.install</code>" in page, path
        other = dashboard.machine(2)
        other.admitted(service.operator(), hostname="w-2", assigned_ip="10.0.0.2/24")
        cannot = Reader(alice.page(f"/machines/{other.machine_id}?tab=configuration")).text
        assert "It would be given nothing now." in cannot
        assert "no LinkConfig" in cannot


@pytest.mark.threat("T274")
def test_no_page_holds_a_secret_or_anything_hostile(keeping: Dashboard) -> None:
    """What is hidden is on none of them, nor the difference of it; notes are text."""
    alice, operator = keeping.browser(), keeping.service.operator()
    made = keeping.machine(1)
    made.admitted(operator, hostname="w-1")
    for number in (1, 2):
        text = _base(f"/dev/sd{number}").replace(CANARY, f"{CANARY}{number}")
        _activated(keeping, _imported(keeping, text, note=HOSTILE))
    patches = f"/machines/{made.machine_id}/patches"
    for number in (1, 2):
        _imported(keeping, f"machine: {{token: {CANARY}{number}}}\n", patches, note=HOSTILE)
        _activated(keeping, number, patches)
    looked_at = [
        "/configurations",
        *(f"{at}{path}" for at in (WORKERS, patches) for path in ("/1", "/2", "/2?with=1", "/1/activate")),
        WORKERS,
        f"/machines/{made.machine_id}?tab=configuration",
        "/clusters/default",
    ]
    for path in looked_at:
        page = alice.page(path)
        assert CANARY not in page, path
        assert Reader(page).faults == [], path
        assert "\u202e" not in page, path
    assert "&lt;redacted&gt;" in alice.page(f"{WORKERS}/1")
    assert "&lt;img src=x" in alice.page(WORKERS)


def test_where_none_are_kept_a_page_says_so(dashboard: Dashboard) -> None:
    """What is known without the key stays; files are what a machine gets; an act is no error of ours."""
    alice, operator = dashboard.browser(), dashboard.service.operator()
    made = dashboard.machine(1)
    made.admitted(operator, hostname="w-1")
    assert "keeps none, and machines get files" in alice.page("/configurations")
    tab = Reader(alice.page(f"/machines/{made.machine_id}?tab=configuration")).text
    assert "a file of the service" in tab
    assert "It has none of its own" in tab
    assert dashboard.service.canary not in alice.page(f"/machines/{made.machine_id}?tab=configuration")


def test_a_key_that_is_away_hides_the_text_alone(tmp_path: Path) -> None:
    """Versions stay listed with digest and state; that none are kept is said, and nothing can be activated."""
    with in_process_service(tmp_path / "service", config_kek=(key(tmp_path),)) as service:
        _activated(Dashboard(service), _imported(Dashboard(service), _base()))
        _imported(Dashboard(service), _base("/dev/sdb"))
    with in_process_service(tmp_path / "service") as service:
        alice = Dashboard(service).browser()
        assert "version 1" in alice.page("/configurations")
        page = Reader(alice.page(f"{WORKERS}/2")).text
        assert "This service keeps no configurations" in page
        assert "SHA-256" in page
        refused = alice.get(f"{WORKERS}/2/activate")
        assert refused.status_code == 503
        assert "Configurations are not kept here" in refused.text


def test_who_reads_activates_nothing(keeping: Dashboard) -> None:
    """No way to it is shown, and its page is refused."""
    for disk in ("/dev/sda", "/dev/sdb"):
        _activated(keeping, _imported(keeping, _base(disk)))
    vera = keeping.browser("vera", rights=VIEWER)
    for path in (WORKERS, f"{WORKERS}/1"):
        assert "/activate" not in vera.page(path)
    assert vera.get(f"{WORKERS}/1/activate").status_code == 403
