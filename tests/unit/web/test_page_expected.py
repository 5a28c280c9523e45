"""Machines that receipts tell of, and one EK in two machines: seen in lists and on pages, and approved by nobody."""

from __future__ import annotations

from tests.fixtures.machine import Machine
from tests.fixtures.reading import Reader
from tests.fixtures.web import Dashboard
from tests.unit.service.node import SoftwareNode as Node
from tests.unit.service.test_machine_import import receipt


def test_a_machine_of_a_receipt_is_expected_and_offered_to_nobody(dashboard: Dashboard) -> None:
    """Nothing of it is called proven; it can be rejected, and neither chosen nor approved."""
    alice = dashboard.browser()
    answer = dashboard.service.operator().call("POST", "/machines/import", json=receipt(Node()))
    here = f"/machines/{answer['machine_id']}"
    listed = alice.page("/machines")
    assert ">expected</span>" in listed
    assert 'form="several" name="machine"' not in listed
    page = alice.page(here)
    assert "It has proven nothing yet" in page
    assert "/approve" not in page
    assert "/ak-reset" not in page
    assert f'/inbox/{answer["machine_id"]}/reject"' in page
    inbox = alice.page("/inbox")
    assert "Said by a receipt, proven by nothing" in inbox
    assert "Proven by its chip" not in inbox
    assert f'/inbox/{answer["machine_id"]}/approve"' not in inbox
    assert 'type="checkbox" name="machine"' not in inbox


def test_one_ek_on_two_machines_is_an_alarm_on_list_and_page(dashboard: Dashboard) -> None:
    """What the second said of itself stands in it, as text."""
    alice, said = dashboard.browser(), "<b>B5JT9Y2</b>"
    made = dashboard.machine(1, hw_serial="B5JT9Y1")
    Machine(made.device, dashboard.service.client("192.0.2.9"), hw_serial=said).enrol()
    assert ">alarm</span>" in alice.page("/machines")
    for path in (f"/machines/{made.machine_id}", "/inbox"):
        page = alice.page(path)
        assert "one EK seen on two machines" in Reader(page).text, path
        assert said not in page, path
