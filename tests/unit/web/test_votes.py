"""Acts that several people must agree to: from each page to the vote, and by the second person's to what is done."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from attestation.wire import pem
from attestation_web.extensions import kms
from tests.fixtures import configurations
from tests.fixtures.estate import Estate, board, estate
from tests.fixtures.machine import Machine
from tests.fixtures.reading import Reader
from tests.fixtures.vendor import ROOT
from tests.fixtures.web import Browser
from tests.unit.service.test_trust import STRANGER, sha256

POLICY = """\
format: itl-tpm-policy/1
name: strict
version: {version}
bank: sha256
pcrs: {{7: {{any_of: ["{value}"]}}}}
"""


@pytest.fixture(scope="module")
def there(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Estate]:
    """A service under dual control for control planes."""
    folder = tmp_path_factory.mktemp("votes")
    kek = (configurations.key(folder),)
    with estate(folder, dual_control_roles="controlplane", config_kek=kek) as made:
        yield made


@pytest.fixture
def alice(there: Estate) -> Browser:
    """Who asks."""
    return there.person("alice")


@pytest.fixture
def bob(there: Estate) -> Browser:
    """Who agrees."""
    return there.person("bob")


Agreed = Callable[..., str]


@pytest.fixture
def agreed(there: Estate, alice: Browser, bob: Browser) -> Agreed:
    """A function that lets alice do an act and bob agree to it; it returns the text of the page that he agreed on.

    It looks at what both are told, and asks *is_done* before and after.
    """

    def agree(path: str, *, is_done: Callable[[], bool], back: str, **filled: str) -> str:
        assert "Where dual control asks for several people" in alice.page(path), path
        answer = alice.act(path, **filled)
        assert answer.status_code == 303, answer.text
        shown = alice.page(back)
        told = Reader(shown).text
        assert "Your vote counts: 1 of 2. Nothing has happened yet; 1 more must agree until" in told
        assert re.search(r"Audit entry\s+\d+", told)
        assert not is_done(), "one person did it alone"
        proposal = re.search(r'href="(/approvals/[0-9a-f]{64})">What they agree to', shown)
        assert proposal, "the link for the second person"
        assert proposal[1] in bob.page("/approvals")
        page = Reader(bob.page(proposal[1])).text
        assert "alice" in page
        answer = bob.act(f"{proposal[1]}/agree")
        assert answer.status_code == 303, answer.text
        assert "Done, enough people agree" in bob.page("/approvals")
        assert is_done()
        return page

    return agree


def _control_plane(there: Estate, seed: int, hostname: str, **hints: Any) -> Machine:
    """Return a control plane that attests, which two others have admitted."""
    machine = there.introduced(seed, **hints)
    path = f"/inbox/{machine.machine_id}/approve"
    asked = {"role": "controlplane", "cluster_id": "default", "hostname": hostname, "accept_ek": "yes"}
    one, two = there.person("one"), there.person("two")
    assert one.act(path, **asked).status_code == 303
    proposal = re.search(r"/approvals/[0-9a-f]{64}", one.page("/inbox"))
    assert proposal
    agree = two.act(f"{proposal[0]}/agree", fingerprint=machine.ek_fingerprint)
    assert agree.status_code == 303, agree.text
    machine.attest()
    return machine


def test_a_policy_is_activated_rolled_back_and_ended_by_two(
    there: Estate, alice: Browser, agreed: Agreed
) -> None:
    """For the whole fleet, which has the role in it; what applies is as before until the second agrees."""

    def applies() -> str | None:
        listed = there.service.operator().call("GET", "/policies")["assignments"]
        return next((a["policy"] for a in listed if (a["scope"], a["subject"]) == ("fleet", "*")), None)

    for version, value in ((1, "ab" * 32), (2, "cd" * 32)):
        written = {"document": POLICY.format(version=version, value=value), "to": "create"}
        draft = alice.post("/policies/edit", data=alice.form("/policies/edit") | written).headers["Location"]
        assert alice.act(draft.partition("dash.example")[2] or draft).status_code == 303
    at, back = "/policies/at/fleet/*", "/policies?tab=places"
    for version in (1, 2):
        name = f"strict@{version}"
        page = agreed(
            f"{at}/activate?policy={name}",
            is_done=lambda name=name: applies() == name,
            back=back,
            policy=name,
        )
        assert name in page
    page = agreed(f"{at}/roll-back", is_done=lambda: applies() == "strict@1", back=back)
    assert "strict@1" in page
    agreed(f"{at}/end", is_done=lambda: applies() is None, back=back, _typed="fleet")


def test_an_anchor_is_believed_and_restored_by_two(there: Estate, alice: Browser, agreed: Agreed) -> None:
    """After the ceremony with the typed fingerprint; who agrees reads what is in it; to distrust one is enough."""

    def status(digest: str) -> str | None:
        listed = there.service.operator().call("GET", "/trust/bundle")["certificates"]
        return next((c["status"] for c in listed if c["sha256"] == digest), None)

    digest = sha256(STRANGER)
    brought = {"pem": pem("CERTIFICATE", STRANGER.certificate)}
    step = alice.post("/trust/add", data=alice.form("/trust/add") | brought).headers["Location"]
    filled = {"role": "anchor", "vendor": "IFX", "reason": "a new line of theirs"}
    path = step.partition("dash.example")[2] or step
    assert alice.act(path, fingerprint=digest[:-1], **filled).status_code == 422
    page = agreed(
        path, is_done=lambda: status(digest) == "active", back="/trust", fingerprint=digest, **filled
    )
    assert digest in page
    assert "Stranger" in page
    held = sha256(ROOT)
    at = f"/trust/certificates/{held}"
    assert alice.act(f"{at}/distrust", reason="stolen", _typed=held[:8]).status_code == 303
    assert status(held) == "distrusted", "one is enough"
    agreed(f"{at}/restore", is_done=lambda: status(held) == "active", back=at, reason="a false alarm")


def test_a_ca_key_is_made_by_two(there: Estate, agreed: Agreed) -> None:
    """Each step of a rotation decides which keys others believe."""

    def states() -> set[str]:
        issuers = there.service.operator().call("GET", "/ca")["issuers"]
        return {i["state"] for i in issuers if i["purpose"] == "machine"}

    back = "/certificates?tab=ca"
    agreed("/certificates/ca/machine/prepare", is_done=lambda: "next" in states(), back=back, reason="yearly")
    agreed(
        "/certificates/ca/machine/rollback",
        is_done=lambda: "next" not in states(),
        back=back,
        reason="not now",
        _typed="machine",
    )


def test_what_lets_a_control_plane_in_again_takes_two(there: Estate, alice: Browser, agreed: Agreed) -> None:
    """Unlocked, or in another role: locking it was one person's."""
    machine_id = _control_plane(there, 1, "cp-1").machine_id
    here = f"/machines/{machine_id}"

    def now(name: str) -> object:
        return there.service.operator().machine(machine_id)[name]

    assert alice.act(f"{here}/lock", reason="look").status_code == 303
    assert now("status") == "locked"
    agreed(f"{here}/unlock", is_done=lambda: now("status") != "locked", back=here)
    agreed(
        f"{here}/role", is_done=lambda: now("role") == "generic", back=here, role="generic", reason="moved"
    )


@pytest.mark.threat("T275")
def test_a_disk_key_of_a_control_plane_is_released_by_two(
    there: Estate, alice: Browser, agreed: Agreed
) -> None:
    """And its hold is ended by two; to hold it one is enough."""
    machine = _control_plane(there, 2, "cp-2", hw_uuid=board())
    blob = there.disk_key(machine)
    here = f"/machines/{machine.machine_id}"
    back = f"{here}?tab=disk-keys"
    assert alice.act(f"{here}/hold").status_code == 303
    assert not there.starts(machine, blob)
    page = agreed(
        f"{here}/release",
        is_done=lambda: "Released by" in Reader(alice.page(back)).text,
        back=back,
        uses="1",
    )
    assert "192.0.2.2" in page, "they agree to where it asked from"
    assert there.starts(machine, blob)
    assert not there.starts(machine, blob)
    agreed(f"{here}/unhold", is_done=lambda: "Nothing is held" in Reader(alice.page(back)).text, back=back)


def test_an_act_that_is_not_known_here_is_agreed_to_elsewhere(
    there: Estate, alice: Browser, bob: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an extension that the dashboard does not know: its proposal is shown, no button leads to a refusal."""
    machine = _control_plane(there, 3, "cp-3", hw_uuid=board())
    here = f"/machines/{machine.machine_id}"
    assert alice.act(f"{here}/hold").status_code == 303
    assert alice.act(f"{here}/unhold").status_code == 303
    proposal = re.search(r"/approvals/[0-9a-f]{64}", alice.page(f"{here}?tab=disk-keys"))
    assert proposal
    assert f"{proposal[0]}/agree" in bob.page(proposal[0])
    monkeypatch.setattr(kms, "VOTES", {})
    page = bob.page(proposal[0])
    assert f"{proposal[0]}/agree" not in page
    assert "does not know acts of this kind" in page
    assert bob.act(f"{proposal[0]}/agree").status_code == 422


def test_a_configuration_is_activated_by_two_who_can_look_at_it(
    there: Estate, bob: Browser, agreed: Agreed
) -> None:
    """What control planes are given is delivered when the second agrees, whom the proposal leads to the version."""
    operator, here = there.service.operator(), "/configurations/default/controlplane"
    text = configurations.base("hush").replace("type: worker", "type: controlplane")
    operator.call("POST", f"{here}/versions", json={"document": text})

    def is_active() -> bool:
        listed = operator.call("GET", "/configurations")["configurations"]
        return any(each["active"] for each in listed if each["role"] == "controlplane")

    shown = agreed(f"{here}/1/activate", is_done=is_active, back=here, _typed="default/controlplane")
    assert "The version without its secrets" in shown
    assert "agreed" in bob.page(here)
