"""What waits is seen with its evidence side by side, chosen by number, and approved each by itself (W13)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from attestation.errors import RequestInvalid
from attestation_cli import inbox
from tests.unit.cli.stub import Stub, machine
from tests.unit.cli.test_batch import A, B, C, bodies
from tests.unit.cli.test_cli import run

ROLE = ("--role", "worker-app")
ORDERS = "Order;Serial Number\n4711;s7f3a\n4712;B5JT9Y1\n"


@pytest.fixture(autouse=True)
def _known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ITL_ADMIN_TOKEN", "t0p-s3cret")
    monkeypatch.setattr("attestation_cli.screen.is_terminal", lambda: True)


def waiting(**changes: Any) -> Stub:
    """Return a service where three machines wait: one that was bought, one that was not, one that says no serial."""
    serials = {A: "S7F3A", B: "SC2B1", C: "unknown"}
    found = [machine(each, hw_serial=serial, version=7) for each, serial in serials.items()]
    found[1]["alarm"] = "one EK seen on two machines"
    return Stub(machines=found, **changes)


@pytest.fixture
def orders(tmp_path: Path) -> list[str]:
    """Return the options of a purchase list."""
    file = tmp_path / "orders.csv"
    file.write_text(ORDERS)
    return ["--purchased", str(file), "--purchased-column", "serial number"]


def test_the_evidence_stands_side_by_side(orders: list[str]) -> None:
    """Whether it was bought, who vouches, where from, what was alarming: for people and for programs."""
    rows = json.loads(run(waiting(), "machine", "inbox", *orders, "-o", "json").stdout)
    assert [(row["machine_id"], row["purchased"]) for row in rows] == [(A, "yes"), (B, "no"), (C, "unknown")]
    assert (rows[0]["registered_from"], rows[0]["ek_maker"]) == ("10.0.0.7", "IFX SLB 9670")
    shown = run(waiting(), "machine", "inbox", *orders, "-o", "wide")
    assert shown.exit_code == 0, shown.output
    for word in (
        "S7F3A",
        "yes",
        "unknown",
        "tofu",
        "10.0.0.7",
        "IFX SLB 9670",
        "one EK seen on two machines",
    ):
        assert word in shown.stdout
    alone = json.loads(run(waiting(), "machine", "inbox", "-o", "json").stdout)
    assert {row["purchased"] for row in alone} == {None}
    assert "Nobody waits" in run(Stub(), "machine", "inbox").output


def test_several_are_chosen_and_named_before_anything_is_done(orders: list[str]) -> None:
    """By their numbers; the one question names each, and a no changes nothing."""
    service = waiting()
    done = run(service, "machine", "approve", "--pending", *orders, *ROLE, answer="1,3\nn\n")
    assert f"Approve these 2 machines as worker-app: {A[:8]}, {C[:8]}?" in done.stderr
    assert (done.exit_code, service.acts) == (1, [])
    done = run(service, "machine", "approve", "--pending", *orders, *ROLE, answer="1,3\ny\n")
    assert done.exit_code == 0, done.output
    assert [(each, body["expected_version"]) for each, body in bodies(service)] == [(A, 7), (C, 7)]


def test_who_chooses_none_approves_none() -> None:
    """An empty answer is a no; a number that is not there is a mistake."""
    service = waiting()
    assert run(service, "machine", "approve", "--pending", *ROLE, answer="\n").exit_code == 1
    assert run(service, "machine", "approve", "--pending", *ROLE, answer="4\n").exit_code == 2
    assert run(Stub(), "machine", "approve", "--pending", *ROLE).exit_code == 0
    assert service.acts == []


def test_what_changed_while_somebody_chose_is_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is approved is what was shown."""
    service = waiting()
    before = inbox.chosen

    def meanwhile(answer: str, count: int) -> list[int]:
        service.machines[0]["version"] = 8
        return before(answer, count)

    monkeypatch.setattr(inbox, "chosen", meanwhile)
    done = run(service, "machine", "approve", "--pending", *ROLE, answer="all\ny\n")
    assert (done.exit_code, service.acts) == (2, [])
    assert "changed while you chose" in done.stderr


@pytest.mark.parametrize(
    "options",
    [
        ["--pending", "7f3a"],
        ["--pending", "--accept-ek"],
        ["--pending", "--hostname", "w-1"],
        ["--pending", "-o", "json"],
        ["7f3a", "--purchased", "/dev/null"],
        ["--pending", "--purchased-column", "Serial"],
    ],
)
def test_what_is_not_meant_so_is_refused(options: list[str]) -> None:
    """A choice is a person's, of machines that they see."""
    service = waiting()
    assert run(service, "machine", "approve", *options, *ROLE, answer="all\ny\n").exit_code == 2
    assert service.acts == []


def test_nobody_chooses_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even with --yes: all that wait is nobody's choice."""
    monkeypatch.setattr("attestation_cli.screen.is_terminal", lambda: False)
    service = waiting()
    assert run(service, "machine", "approve", "--pending", *ROLE, "--yes", answer="all\n").exit_code == 2
    assert service.acts == []


@pytest.mark.parametrize(
    ("text", "heading", "why"),
    [
        ("", None, "no one column is called serial"),
        ("Order,Article\n1,2\n", None, "no one column is called serial"),
        ("serial,serial\na,b\n", None, "no one column"),
        ("serial\n", None, "no serial number in it"),
        ("serial\nunknown\n", None, "no serial number in it"),
        ("Order,SN\n1,B5JT9Y1\n", "S/N", "no one column is called S/N"),
    ],
)
def test_a_purchase_list_without_serial_numbers_is_none(text: str, heading: str | None, why: str) -> None:
    """It would say no to every machine, or yes to what was never bought."""
    with pytest.raises(RequestInvalid, match=why):
        inbox.read_purchased(text, heading)


def test_a_list_of_one_column_needs_no_heading_of_ours() -> None:
    """Whatever it is called; case and blanks do not count, placeholders never match."""
    bought = inbox.read_purchased("S/N\n b5jt9y1 \nTo Be Filled By O.E.M.\n", None)
    assert [bought.says(each) for each in ("B5JT9Y1", "B5JT9Y2", "to be filled by o.e.m.", "")] == [
        "yes",
        "no",
        "unknown",
        "unknown",
    ]


@pytest.mark.parametrize(
    ("answer", "found"), [("1", [0]), ("3-4, 1", [0, 2, 3]), ("all", [0, 1, 2, 3, 4]), ("2 2", [1]), ("", [])]
)
def test_a_choice_is_numbers_and_spans(answer: str, found: list[int]) -> None:
    """Each once, in the order of the list."""
    assert inbox.chosen(answer, 5) == found


@pytest.mark.parametrize("answer", ["0", "6", "4-2", "x", "1-", "-1", "1.5", "all but 3"])
def test_what_is_no_choice_chooses_nobody(answer: str) -> None:
    """Nothing is guessed."""
    with pytest.raises(RequestInvalid):
        inbox.chosen(answer, 5)


def test_a_list_marks_what_somebody_should_look_at() -> None:
    """An alarm, and a machine that only a receipt tells of: where machines are listed, not only where one is shown."""
    service = waiting()
    service.machines[0]["expected"] = True
    table = run(service, "machine", "list").stdout
    assert "pending_approval, expected" in table
    assert "pending_approval, alarm" in table
    # What is for programs is the word alone.
    assert "pending_approval, " not in run(service, "machine", "list", "-o", "csv").stdout
