"""Consoles: what is shown before one approves, that the code is typed, and that what a machine says is text."""

from __future__ import annotations

from datetime import timedelta

from attestation.store import Tx
from attestation_web.page.acting import TYPED_FIELD
from tests.contract.test_store_console_codes import a_code
from tests.fixtures.web import Dashboard


def test_a_code_is_approved_with_what_its_machine_says_beside_it(dashboard: Dashboard) -> None:
    """Once, by who typed it; the other is denied; then nothing is offered."""
    alice, service = dashboard.browser(), dashboard.service
    assert "No machine shows a code." in alice.page("/consoles")

    def ask(tx: Tx) -> None:
        at = service.app.state.resources.clock.now()
        ends = {"asked_at": at, "expires_at": at + timedelta(hours=1), "kept_until": at + timedelta(hours=2)}
        tx.console_codes.add(a_code(1, user_code="BBBB-CCCC", hw_serial="<b>s</b>", **ends))
        tx.console_codes.add(a_code(2, user_code="DDDD-FFFF", **ends))

    service.run(service.app.state.resources.store.write(ask))
    listed = alice.page("/consoles")
    assert "/consoles/BBBB-CCCC/approve" in listed
    assert "<b>s</b>" not in listed
    before = alice.page("/consoles/BBBB-CCCC/approve")
    for said in ("&lt;b&gt;s&lt;/b&gt;", "192.0.2.7", "DDDD-FFFF", "somebody sent you"):
        assert said in before
    assert alice.act("/consoles/BBBB-CCCC/approve", **{TYPED_FIELD: "BBBB-CCCC"}).status_code == 303
    assert alice.act("/consoles/DDDD-FFFF/deny").status_code == 303
    listed = alice.page("/consoles")
    assert "approved" in listed
    assert "denied" in listed
    assert "/approve" not in listed
