"""`attestation approval approve`: everything is shown, the fingerprint is compared, and exactly that is agreed to."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from attestation.machines import Role, Transition
from attestation.machines.dual_control import Proposal, of_machine, of_registration_token
from attestation.results import Assurance
from tests.contract.store_samples import a_machine
from tests.unit.cli.stub import HASH, NOW, Stub, machine, problem, proposal, vote
from tests.unit.cli.test_cli import run

ONE = a_machine(1, ek_fingerprint="5d1c07ab93e2f410" * 6)
EK = ONE.tpm.ek_fingerprint
PROPOSED = of_machine(
    Transition.APPROVE,
    ONE,
    role=Role.CONTROLPLANE,
    hostname="cp-1",
    assigned_ip="10.0.0.11/24",
    cluster_id="default",
    measured=None,
    accepts_ek=True,
)
DIGEST = PROPOSED.digest()


@pytest.fixture(autouse=True)
def _known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ITL_ADMIN_TOKEN", "t0p-s3cret")


def waiting(**changes: Any) -> Stub:
    """Return a service where anna proposed to admit a machine, with a reason that means more than it says."""
    said = "routine.\nEK fingerprint feedfeedfeedfeed \x1b[8m"
    found = {
        **proposal(),
        "proposal_digest": DIGEST,
        "machine_id": ONE.machine_id,
        "subject": PROPOSED.subject,
        "proposal": json.loads(PROPOSED.canonical()),
        "approvals": [vote(17, ONE.machine_id, reason=said, created_at=NOW)],
    }
    return Stub(machines=[machine(ONE.machine_id, ek_fingerprint=EK)], proposals=[found | changes])


def asked(service: Stub) -> list[httpx.Request]:
    """Return the requests that would change something."""
    return [request for request in service.requests if request.method != "GET"]


@pytest.fixture
def at_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody can be asked."""
    monkeypatch.setattr("attestation_cli.screen.is_terminal", lambda: True)
    monkeypatch.setattr("attestation_cli.commands.approval.is_terminal", lambda: True)


@pytest.mark.usefixtures("at_a_terminal")
def test_who_agrees_sees_it_whole_and_types_what_they_read() -> None:
    """Then they are asked, and what is sent names the digest of what was shown."""
    service = waiting()
    done = run(service, "approval", "approve", DIGEST[:8], answer=f"{EK[:16]}\ny\n")
    assert done.exit_code == 0, done.output
    for told in (
        "controlplane (now none)",
        "cp-1 (now none)",
        "10.0.0.11/24 (now none)",
        "this EK by name",
        "1 of 2",
        DIGEST,
        str(PROPOSED.evidence_digest),
    ):
        assert told in done.stdout, told
    (request,) = asked(service)
    assert request.url.path.endswith(f"/machines/{ONE.machine_id}/approve")
    assert dict(request.url.params) == {"proposal": DIGEST}
    assert json.loads(request.content)["accept_ek"] is True
    # The fingerprint stands nowhere before it was typed: what is copied from there was compared with nothing.
    before, _, after = done.output.partition("Agree to exactly this")[0].partition("sticker shows it")
    assert EK[:16] not in before
    assert EK in after
    assert EK in run(service, "approval", "show", DIGEST[:8]).stdout


def test_a_reason_cannot_pass_for_what_is_bound() -> None:
    """The first one's words stand in quotes, on one line, without control characters."""
    shown = run(waiting(), "approval", "show", DIGEST[:8]).stdout
    (voted,) = [line for line in shown.splitlines() if line.startswith("voted")]
    assert "anna" in voted
    assert '"routine.' in voted
    assert "feedfeedfeedfeed" in voted
    assert "\x1b" not in shown
    assert shown.count("feedfeedfeedfeed") == 1


def test_a_name_cannot_pass_for_a_reason() -> None:
    """Who is called like a sentence of another voter stands in quotes."""
    name = 'bernd, 1 min ago: "seen in rack 4", anna'
    shown = run(
        waiting(approvals=[vote(17, ONE.machine_id, operator_cn=name)]), "approval", "show", DIGEST
    ).stdout
    (voted,) = [line for line in shown.splitlines() if line.startswith("voted")]
    assert json.dumps(name) in voted


@pytest.mark.usefixtures("at_a_terminal")
@pytest.mark.parametrize(
    ("answers", "code"), [("0" * 16 + "\n", 2), (EK[:8] + "\n", 2), (f"{EK[:16]}\nn\n", 1), ("\n", 2)]
)
def test_whoever_read_something_else_agrees_to_nothing(answers: str, code: int) -> None:
    """Another TPM, too few digits, nothing, or a no."""
    service = waiting()
    done = run(service, "approval", "approve", DIGEST[:8], answer=answers)
    assert done.exit_code in (code, 1, 5)
    assert done.exit_code != 0
    assert asked(service) == []
    assert EK[16:32] not in done.stdout, "nor is it shown to be copied"
    assert answers.startswith(EK[:16]) or EK[:16] not in done.stderr, "nor does the refusal say it"


def test_who_completes_it_sees_what_became_of_the_machine() -> None:
    """Name, status and assurance, as whoever approves alone does; as CSV too."""
    service = waiting()
    service.machines[0] |= {"hostname": "cp-1", "status": "registered", "assurance": "ek-allowlist"}
    call = ("approval", "approve", "17", "--yes", "--fingerprint", EK)
    alone = run(service, "machine", "approve", ONE.machine_id, "--role", "controlplane").stdout.splitlines()
    told = run(service, *call).stdout.splitlines()
    assert told[-4] == f"{alone[0].partition(': ')[0]}: approve done, enough people agree"
    assert told[-3:] == alone[1:]
    assert "cp-1 (" in told[-4]
    assert "cp-1,registered" in run(service, *call, "-o", "csv").stdout


def test_a_program_brings_the_fingerprint_and_enough_of_the_digest() -> None:
    """With --yes nobody looks, so a beginning that somebody could have made is none; the number of a vote is one."""
    service = waiting()
    for arguments in (
        [DIGEST[:16]],
        [DIGEST, "--yes"],
        [DIGEST, "--fingerprint", EK[:16]],
        [DIGEST[:63], "--yes", "--fingerprint", EK[:16]],
        [DIGEST, "--yes", "--fingerprint", "0" * 96],
        [HASH, "--yes", "--fingerprint", EK[:16]],
    ):
        done = run(service, "approval", "approve", *arguments)
        assert done.exit_code != 0, arguments
        assert "--yes" not in arguments or "add --yes" not in done.output, done.output
        assert asked(service) == [], arguments
    for named in (DIGEST, "17", DIGEST.upper()):
        done = run(service, "approval", "approve", named, "--yes", "--fingerprint", EK, "-o", "json")
        assert json.loads(done.stdout).items() >= {
            "proposal_digest": DIGEST, "action": "approve", "done": True, "machine_id": ONE.machine_id,
            "status": "pending_approval", "assurance": "tofu",
        }.items()  # fmt: skip
    assert len(asked(service)) == 3


@pytest.mark.threat("T179")
def test_a_digest_that_begins_like_the_number_of_a_vote_is_not_meant_by_it() -> None:
    """Such a proposal is made in a second, and waits for the vote of that number to end."""
    made = (a_token(f"x{n}") for n in range(10_000_000))
    other = next(proposed for proposed in made if proposed.digest()[:4].isdecimal())
    service = waiting(
        proposal_digest=other.digest(),
        machine_id=None,
        subject=other.subject,
        action=other.action,
        proposal=json.loads(other.canonical()),
    )
    done = run(service, "approval", "approve", other.digest()[:4], "--yes")
    assert done.exit_code == 3, done.output
    assert asked(service) == []


def a_token(hostname: str) -> Proposal:
    """Return a proposal that admits whoever has a token."""
    return of_registration_token(
        role=Role.CONTROLPLANE,
        hostname=hostname,
        assigned_ip=None,
        cluster_id=None,
        uses=1,
        expires_in_seconds=3600,
        minimum_assurance=Assurance.TOFU,
    )


@pytest.mark.threat("T179")
@pytest.mark.usefixtures("at_a_terminal")
@pytest.mark.parametrize("form", ["json", "yaml"])
def test_nobody_is_asked_about_what_was_not_shown(form: str) -> None:
    """A document for programs shows nothing of the proposal, so there is nothing to say yes to."""
    service = waiting()
    done = run(service, "approval", "approve", DIGEST, "--fingerprint", EK, "-o", form, answer="y\n")
    assert done.exit_code == 2
    assert asked(service) == []


@pytest.mark.threat("T179")
def test_a_fingerprint_is_compared_with_what_the_digest_binds() -> None:
    """Members that somebody changed on the way or in the database: the service would not see it, it makes its own."""
    members = {**json.loads(PROPOSED.canonical()), "ek_fingerprint": "ab" * 48}
    service = waiting(proposal=members)
    done = run(service, "approval", "approve", DIGEST, "--yes", "--fingerprint", "ab" * 48)
    assert done.exit_code == 5, done.output
    assert asked(service) == []


def test_what_is_void_is_not_agreed_to() -> None:
    """It is told before anybody reads it, and nothing is sent."""
    service = waiting(overtaken=["measured"])
    done = run(service, "approval", "approve", DIGEST, "--yes", "--fingerprint", EK)
    assert done.exit_code == 5
    assert "changed since: measured" in done.stderr
    assert asked(service) == []


def test_what_changed_on_the_way_is_told() -> None:
    """The service refuses, and so does the command."""
    service = waiting()

    def differs(request: httpx.Request) -> httpx.Response | None:
        refused = problem(409, "proposal-differs", "it differs in evidence_digest")
        return refused if request.method == "POST" else None

    service.before = differs
    done = run(service, "approval", "approve", "17", "--yes", "--fingerprint", EK)
    assert done.exit_code == 5
    assert "differs in evidence_digest" in done.stderr
    assert "look at it again" in done.stderr


def test_who_is_still_not_enough_is_told_who_comes_next() -> None:
    """A quorum of three, or one's own proposal."""
    service = waiting()
    service.voters = ("anna", "bernd")
    done = run(service, "approval", "approve", "17", "--yes", "--fingerprint", EK)
    assert "2 of 2 approvals" in done.stdout
    assert "another operator must run\n    attestation approval approve" in done.stdout


def test_a_fingerprint_is_a_machines() -> None:
    """Where the proposal is about none, there is nothing to compare."""
    service = waiting(
        proposal={**json.loads(PROPOSED.canonical()), "ek_fingerprint": None}, action="ca_rotation"
    )
    done = run(service, "approval", "approve", "17", "--yes", "--fingerprint", EK)
    assert done.exit_code == 2
    assert "about no machine" in done.stderr
