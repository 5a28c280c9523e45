"""What a page of somebody else's can have an operator's browser do: nothing (a client certificate comes by itself)."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from attestation_service.auth import Duty, Right
from attestation_service.auth.cross_site import origin_of
from attestation_service.context.request import ACCESS_KEY
from tests.unit.service.browser import Browser
from tests.unit.service.conftest import Service
from tests.unit.service.node import SoftwareNode
from tests.unit.service.people import introduce
from tests.unit.service.test_access import (
    MACHINE_ROUTES,
    OPERATIONS,
    OPERATOR_ROUTES,
    PUBLIC_ROUTES,
    concrete,
    let_in,
)

pytestmark = pytest.mark.anyio

OURS = "https://attest.example.test"
JSON = ("Content-Type", "application/json")
FOREIGN: tuple[tuple[tuple[str, str], ...], ...] = (
    (("Sec-Fetch-Site", "cross-site"),),
    (("Sec-Fetch-Site", "same-site"),),
    (("Sec-Fetch-Site", "same-origin"), ("Sec-Fetch-Site", "cross-site")),
    (("Origin", "https://evil.example"),),
    (("Origin", "null"),),
    (("Origin", ""),),
    (("Origin", OURS), ("Origin", "https://evil.example")),
    # Another port or scheme of our own host is another origin.
    (("Origin", f"{OURS}:8443"),),
    (("Origin", OURS.replace("https", "http")),),
    # What a page chose for Host by rebinding its own name makes it none of ours.
    (("Host", "evil.example"), ("Origin", "http://evil.example")),
)
SENDABLE = (
    None,
    "application/x-www-form-urlencoded",
    "multipart/form-data; boundary=x",
    "text/plain",
    "json",
)


@pytest.fixture
def browser(service: Service) -> Service:
    """The service of an operator whose browser has a certificate."""
    service.app.state.resources = replace(service.resources, mtls=Browser())
    return service


@pytest.mark.threat("T119")
async def test_nothing_is_done_or_shown_for_another_site(browser: Service) -> None:
    """Every route of operators, every way in which a browser says for whom it asks."""
    for method, path in OPERATOR_ROUTES:
        for said in FOREIGN:
            answer = await browser.http.request(method, concrete(path), headers=[*said, JSON], content=b"{}")
            assert answer.status_code == 403, (method, path, said, answer.text)
            assert answer.json()["type"] == "urn:itl:problem:cross-site-request", (method, path, said)
    entries = await browser.audit()
    assert {entry["action"] for entry in entries} == {"denied"}
    assert entries[-1]["detail"].startswith("DELETE /api/v1/allow-list/"), "what was asked"


@pytest.mark.threat("T119")
async def test_no_act_is_of_a_kind_that_a_form_could_send(browser: Service) -> None:
    """Where the browser says nothing: neither with a body nor without one."""
    for method, path in OPERATOR_ROUTES:
        for kind in SENDABLE if method != "GET" else ():
            headers = {} if kind is None else {"Content-Type": kind}
            for content in (b"", b"{}", b"reason=x"):
                answer = await browser.http.request(method, concrete(path), headers=headers, content=content)
                assert answer.status_code == 415, (method, path, kind, answer.text)
    assert await browser.audit() == []


@pytest.mark.threat("T119")
async def test_an_empty_form_does_not_revoke(browser: Service) -> None:
    """The attack itself: a page with a form without members, and an operator who opens it."""
    node = SoftwareNode()
    await browser.admitted(node)
    for act in ("redeliver", "lock", "unlock", "revoke"):
        form = {"Content-Type": "application/x-www-form-urlencoded", "Origin": "null"}
        answer = await browser.http.post(f"/api/v1/machines/{node.machine_id}/{act}", headers=form)
        assert answer.status_code in (403, 415), act
    assert (await browser.detail(node))["status"] == "attested"


async def test_programs_and_our_own_origin_are_let_in(browser: Service) -> None:
    """The command line and a dashboard's server send neither header; what is typed into a browser is its user's."""
    for method, path in OPERATOR_ROUTES:
        for said in (
            (),
            (("Origin", OURS),),
            (("Sec-Fetch-Site", "same-origin"),),
            (("Sec-Fetch-Site", "none"),),
        ):
            kind = ("Content-Type", "Application/JSON; charset=utf-8")
            answer = await browser.http.request(method, concrete(path), headers=[*said, kind], content=b"{}")
            assert let_in(answer), (method, path, said, answer.text)


async def test_routes_without_an_operators_authority_are_not_concerned(service: Service) -> None:
    """OCSP, machines and probes come in any form from anywhere."""
    for method, path in sorted(MACHINE_ROUTES | PUBLIC_ROUTES):
        headers = {
            "Origin": "https://evil.example",
            "Sec-Fetch-Site": "cross-site",
            "Accept": "application/json",
        }
        answer = await service.http.request(method, concrete(path), headers=headers, json={})
        assert let_in(answer), (method, path, answer.text)


@pytest.mark.threat("T119")
async def test_no_get_of_operators_changes_anything(service: Service, tmp_path: Path) -> None:
    """Whoever only looks leaves every table as it was; an export is an entry of the audit, and nothing more."""
    node = SoftwareNode()
    await service.admitted(node)
    service.app.state.resources, people = introduce(service.resources)
    before = contents(tmp_path / "machines.db")
    for method, path in OPERATOR_ROUTES:
        if method != "GET":
            continue
        right = Right(OPERATIONS[method, path][ACCESS_KEY])
        who = people.headers("vera", Duty.AUDITOR if right is Right.AUDIT else Duty.VIEWER)
        url = path.replace("{machine_id}", node.machine_id).replace("{result_id}", "1")
        answer = await service.http.get(concrete(url), headers=who)
        assert let_in(answer), answer.text
    after = contents(tmp_path / "machines.db")
    assert {table for table in after if after[table] != before[table]} <= AUDIT_TABLES | {"rate_limits"}
    counted = {
        str(row[0]).partition(":")[0] for row in after["rate_limits"] if row not in before["rate_limits"]
    }
    assert counted <= {
        "console-guess",
        "address",
    }  # a wrong code is counted, for the operator and the address
    assert [entry["action"] for entry in await service.audit(operator_cn="vera")] == ["export"]


AUDIT_TABLES = {"audit_log", "audit_nodes", "audit_checkpoints", "outbox"}
"""Who asks for the newest checkpoint has it signed where it is due, of which an event tells."""


def contents(database: Path) -> dict[str, list[tuple[object, ...]]]:
    """Return every row of every table."""
    with closing(sqlite3.connect(database)) as db:
        tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        tables = [name for name in tables if not name.startswith("sqlite_")]
        return {name: sorted(db.execute(f'SELECT * FROM "{name}"'), key=repr) for name in tables}


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("https://attest.example", "https://attest.example"),
        ("https://Attest.Example:443/below", "https://attest.example"),
        ("http://attest.example:80", "http://attest.example"),
        ("http://attest.example:443", "http://attest.example:443"),
        ("https://[2001:DB8::1]:8443", "https://[2001:db8::1]:8443"),
    ],
)
def test_an_origin_is_written_as_browsers_write_it(url: str, origin: str) -> None:
    """RFC 6454 §6.2, so that the two can be compared letter by letter."""
    assert origin_of(url) == origin
