"""`machine label`: written as `kubectl label` writes, shown where machines are shown, found by `-l`."""

from __future__ import annotations

import pytest
from click.testing import CliRunner, Result

from attestation_cli.main import cli
from attestation_cli.session import Session
from tests.unit.cli.stub import Stub, machine

A = "7f3ad3ac-0f0e-4c55-9d4a-3f6f0e1b2c3d"
B = "c0ffee00-0f0e-4c55-9d4a-3f6f0e1b2c3d"


@pytest.fixture(autouse=True)
def _token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ITL_ADMIN_TOKEN", "t0p-s3cret")


def run(service: Stub, *args: str) -> Result:
    return CliRunner().invoke(cli, list(args), obj=Session(carrier=service.carrier))


def test_labels_are_written_and_taken_off() -> None:
    """One request says all of it; the answer is what the machine has now."""
    service = Stub(machines=[machine(A, hostname="cp-1", labels={"site": "ams"})])
    done = run(service, "machine", "label", "cp-1", "rack=4", "spare=", "site-")
    assert (done.exit_code, done.stdout) == (0, "cp-1 (7f3ad3ac): labels rack=4, spare=\n")
    assert service.acts == [
        ("POST", f"/machines/{A}/labels", {"set": {"rack": "4", "spare": ""}, "remove": ["site"]})
    ]
    assert run(service, "machine", "label", "cp-1", "rack-", "spare-").stdout.endswith("labels none\n")


def test_labels_are_shown_and_found() -> None:
    """By `machine get`, by the wide list, in a column of their own, and by a selector; an older service has none."""
    service = Stub(machines=[machine(A, labels={"site": "ams", "rack": "4"}), machine(B)])
    assert "labels           rack=4, site=ams" in run(service, "machine", "get", A).stdout
    assert "labels" not in run(service, "machine", "get", B).stdout
    assert "rack=4" not in run(service, "machine", "list").stdout
    assert "rack=4, site=ams" in run(service, "machine", "list", "-o", "wide").stdout
    listed = run(service, "machine", "list", "--columns", "id,labels", "-l", "rack=4", "-o", "csv").stdout
    assert listed.splitlines() == ["id,labels", f'{A},"rack=4, site=ams"']


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        (["rack"], "write KEY=VALUE, or KEY- to take one off"),
        (["Rack 4=x"], "why: the key of a label has 1 to 63 letters"),
        (["rack=a b"], "why: the value of a label is empty or has up to 63 letters"),
        (["itl.io/attested=true"], "labels below itl.io/ are set by programs, not by hand"),
        (["rack=4", "rack-"], "is named twice"),
    ],
)
def test_what_is_no_label_is_told_before_anything_is_asked(changes: list[str], why: str) -> None:
    """In words, without a request."""
    service = Stub(machines=[machine(A)])
    done = run(service, "machine", "label", A, *changes)
    assert done.exit_code == 2
    assert why in " ".join(done.stderr.split())
    assert service.requests == []
