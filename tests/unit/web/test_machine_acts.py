"""What is done to one machine for good: replaced, its key reset, revoked with a wipe, deleted; what it is called."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from attestation_web.pages.machines import acts
from tests.fixtures.estate import Estate, estate
from tests.fixtures.machine import Machine
from tests.fixtures.web import Browser


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Estate]:
    """Everything that pages show."""
    with estate(tmp_path_factory.mktemp("estate")) as made:
        yield made


def _done(alice: Browser, path: str, back: str, **filled: str) -> str:
    """Do an act that must succeed; return the page that tells of it, with its entry."""
    answer = alice.act(path, **filled)
    assert answer.status_code == 303, answer.text
    page = alice.page(back)
    assert re.search(r'<span class="entry">Audit entry (?:<[^>]+>)?\d+', page), path
    return page


def _status(there: Estate, machine: Machine) -> str:
    return str(there.service.operator().machine(machine.machine_id)["status"])


@pytest.mark.threat("T275")
def test_another_machine_takes_its_place(there: Estate) -> None:
    """Nobody is chosen beforehand; one that changed since it was shown is not taken; then both are told."""
    old, new = there.attested(1, "r-1"), there.introduced(2, hw_serial="NEW-2")
    alice, here = there.browser(), f"/machines/{old.machine_id}"
    page = alice.page(f"{here}/replace")
    assert '<option value="" selected>Choose a machine</option>' in page
    assert f"NEW-2, EK {new.ek_fingerprint[:16]}…, came from 192.0.2.2" in page
    filled = {"reason": "board broke", "_typed": "r-1"}
    assert alice.act(f"{here}/replace", **filled).status_code == 422
    choice = re.search(rf'<option value="({new.machine_id} \d+)">', page)
    assert choice
    other = alice.act(f"{here}/replace", new=f"{choice[1]}1", **filled)
    assert other.status_code == 409, "it is at another version than was shown"
    assert _status(there, old) == "attested"
    told = _done(alice, f"{here}/replace", here, new=choice[1], **filled)
    assert f"r-1 took its place; {old.machine_id} is revoked." in told
    assert [_status(there, machine) for machine in (old, new)] == ["revoked", "registered"]
    assert there.service.operator().machine(new.machine_id)["hostname"] == "r-1"


def test_its_attestation_key_is_reset_once_its_name_is_typed(there: Estate) -> None:
    """The key counts no more, which its page says; for a reason."""
    machine = there.attested(3, "k-3")
    alice, here = there.browser(), f"/machines/{machine.machine_id}"
    assert alice.act(f"{here}/ak-reset", _typed="k-3").status_code == 422
    assert alice.act(f"{here}/ak-reset", reason="new image", _typed="k-4").status_code == 422
    assert "none is activated" not in alice.page(f"{here}?tab=identity")
    told = _done(alice, f"{here}/ak-reset", f"{here}?tab=identity", reason="new image", _typed="k-3")
    assert "k-3 may activate another attestation key." in told
    assert "none is activated" in told


@pytest.mark.threat("T275")
def test_a_role_is_changed_from_what_was_shown(there: Estate) -> None:
    """Who saw the machine before another operator changed it changes nothing."""
    machine = there.attested(4, "w-4")
    alice, here = there.browser(), f"/machines/{machine.machine_id}"
    form = alice.form(f"{here}/role") | {"role": "generic", "reason": "moved"}
    there.service.operator().act(machine.machine_id, "lock")
    assert alice.post(f"{here}/role", data=form).status_code == 409
    assert there.service.operator().machine(machine.machine_id)["role"] == "worker-app"
    assert "w-4 is generic in default now." in _done(
        alice, f"{here}/role", here, role="generic", reason="moved"
    )


def test_it_is_locked_unlocked_revoked_wiped_and_deleted(there: Estate) -> None:
    """What its status allows is offered, each told with its entry; it is deleted once it has said that it is wiped."""
    machine = there.attested(5, "w-5")
    alice, here = there.browser(), f"/machines/{machine.machine_id}"
    assert "w-5 is locked." in _done(alice, f"{here}/lock", here, reason="look")
    assert f"{here}/lock" not in alice.page(here)
    assert "w-5 is unlocked" in _done(alice, f"{here}/unlock", here)
    assert alice.act(f"{here}/revoke", wipe="yes").status_code == 422
    page = _done(alice, f"{here}/revoke", here, wipe="yes", _typed="w-5")
    assert "w-5 is revoked and ordered to wipe itself." in page
    assert "ordered, not acknowledged" in page
    assert f"{here}/delete" not in page
    refused = alice.act(f"{here}/delete", _typed="w-5")
    assert refused.status_code == 409, "it has disks still"
    machine.next_challenge = None
    ordered = machine.attest()
    assert ordered["action"] == "wipe"
    assert machine.acknowledge(machine.acknowledgement(ordered["directive"])).is_success
    page = alice.page(here)
    assert f"{here}/delete" in page
    assert "Its audit entries stay." in alice.page(f"{here}/delete")
    told = _done(alice, f"{here}/delete", "/machines", _typed="w-5")
    assert "w-5 is deleted." in told
    assert alice.get(here).status_code == 404


@pytest.mark.threat("T275")
def test_what_is_typed_is_compared_by_the_service_too(there: Estate, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where this side believes another name, as of a machine that is renamed at that moment, nothing is done."""
    named, waits, rejected = there.attested(10, "t-9"), there.introduced(11), there.introduced(12)
    there.service.operator().act(rejected.machine_id, "reject", reason="not ours")
    version = there.service.operator().machine(waits.machine_id)["version"]
    monkeypatch.setattr(acts, "typed_for", lambda _: "t-other")
    alice, why = there.browser(), {"reason": "r"}
    for machine, name, act, filled in (
        (named, "t-9", "revoke", {}),
        (named, "t-9", "ak-reset", why),
        (named, "t-9", "replace", why | {"new": f"{waits.machine_id} {version}"}),
        (rejected, rejected.machine_id[:8], "delete", {}),
    ):
        refused = alice.act(f"/machines/{machine.machine_id}/{act}", _typed="t-other", **filled)
        assert refused.status_code == 409, act
        assert f"the machine is called {name}, which is not what was typed" in refused.text, act
    assert [_status(there, machine) for machine in (named, waits, rejected)] == [
        "attested",
        "pending_approval",
        "rejected",
    ]


@pytest.mark.threat("T275")
def test_what_a_machine_says_of_itself_confirms_nothing(there: Estate) -> None:
    """One without a host name is confirmed by its id: its serial may be the name of another machine, or nothing."""
    other = there.attested(6, "db-1")
    claims = there.introduced(7, hw_serial="db-1")
    says_nothing = there.introduced(8)
    alice = there.browser()
    for machine in (claims, says_nothing):
        there.service.operator().approve(machine.machine_id, "worker-app")
        path = f"/machines/{machine.machine_id}/revoke"
        assert f"Type <code>{machine.machine_id[:8]}</code>" in alice.page(path)
        for words in ("db-1", "unknown"):
            assert alice.act(path, _typed=words).status_code == 422
    assert "<h1>db-1</h1>" in alice.page(f"/machines/{claims.machine_id}")
    assert f"<h1>machine {says_nothing.machine_id[:8]}</h1>" in alice.page(
        f"/machines/{says_nothing.machine_id}"
    )
    assert ">unknown</a>" not in alice.page("/machines")
    assert _status(there, other) == "attested"


def test_the_service_is_asked_again_by_each_act(there: Estate) -> None:
    """What the page of an act offers is one thing; what the machine's status allows is decided when it is done."""
    machine = there.introduced(9)
    alice, here = there.browser(), f"/machines/{machine.machine_id}"
    for act in ("lock", "unlock", "redeliver"):
        answer = alice.act(f"{here}/{act}")
        assert answer.status_code == 409, act
        assert "This was not done." in answer.text
