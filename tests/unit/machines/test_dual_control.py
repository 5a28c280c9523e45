"""Dual control as a rule: what a vote binds, what is gated, and how many humans agree (FAULTS R19)."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attestation.machines import EKCertificateInfo, Machine, Role, Transition
from attestation.machines.dual_control import (
    MACHINE_ACTIONS,
    Admission,
    AppliedPolicy,
    Measured,
    Proposal,
    Rule,
    Vote,
    about,
    differences,
    evidence_digest,
    of_allow_list,
    of_approval_rule,
    of_ca_chain,
    of_ca_import,
    of_ca_revocation,
    of_ca_rotation,
    of_cluster_version,
    of_configuration,
    of_extension,
    of_machine,
    of_offline_bundle,
    of_operator_certificate,
    of_policy_assignment,
    of_registration_token,
    of_trust_certificate,
    overtaken,
    same_name,
    tally,
)
from attestation.results import Assurance, Verdict
from tests.contract.store_samples import a_full_machine, a_machine

AT = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
WINDOW = timedelta(seconds=600)
CONTROLPLANE = Rule(roles=frozenset({Role.CONTROLPLANE}), quorum=2)


def a_vote(cn: str, sub: str | None, *, age_seconds: float = 0, **changes: Any) -> Vote:
    """Return a vote that was cast so long ago."""
    created_at = AT - timedelta(seconds=age_seconds)
    fields: dict[str, Any] = {
        "operator_cn": cn,
        "operator_sub": sub,
        "created_at": created_at,
        "expires_at": created_at + WINDOW,
    }
    return Vote(**(fields | changes))


PERSON: dict[str, Any] = {"name": "ada", "duty": "viewer", "spki_sha256": "ab" * 32, "days": 30}
MEASURED = Measured(
    policy=AppliedPolicy(ref="workers@1", sha256="ab" * 32),
    minimum=Assurance.EK_CHAIN,
    parts=(AppliedPolicy(ref="workers@1", sha256="ab" * 32, agreed=True),),
)


def approval(machine: Machine, **changes: Any) -> Proposal:
    """Return the proposal to approve *machine* as the first control-plane node."""
    wanted: dict[str, Any] = {
        "role": Role.CONTROLPLANE,
        "hostname": "cp-1",
        "assigned_ip": "10.0.0.11/24",
        "cluster_id": machine.cluster_id,
        "measured": MEASURED,
    }
    return of_machine(Transition.APPROVE, machine, **(wanted | changes))


# Rivals


def members(proposal: Proposal) -> dict[str, Any]:
    """Return what others read of *proposal*."""
    found: dict[str, Any] = json.loads(proposal.canonical())
    return found


def _token(**changed: Any) -> Proposal:
    asked: dict[str, Any] = {
        "role": Role.CONTROLPLANE,
        "hostname": None,
        "assigned_ip": None,
        "cluster_id": None,
        "uses": 1,
        "expires_in_seconds": 60,
        "minimum_assurance": Assurance.EK_CHAIN,
    }
    return of_registration_token(**(asked | changed))


def _policy(**changed: Any) -> Proposal:
    asked: dict[str, Any] = {
        "scope": "cluster",
        "subject": "a",
        "machine": None,
        "policy": AppliedPolicy(ref="p@1", sha256="ab" * 32),
        "replaces": AppliedPolicy(ref="o@1", sha256="cd" * 32),
    }
    return of_policy_assignment(**(asked | changed))


def _step(**changed: Any) -> Proposal:
    asked: dict[str, Any] = {
        "step": "prepare",
        "purpose": "enrollment",
        "algorithm": "ecdsa-p384",
        "active": "a",
        "other": None,
        "force": False,
    }
    return of_ca_rotation(**(asked | changed))


def _person(**changed: Any) -> Proposal:
    return of_operator_certificate(**(PERSON | changed))


def _ca(serial: str, reason: str) -> Proposal:
    return of_ca_revocation(serial=serial, profile="ca", subject="CN=CA", reason=reason)


def _anchor(sha256: str, vendor: str) -> Proposal:
    return of_trust_certificate(sha256=sha256, role="anchor", vendor=vendor)


def _listed(ek: str) -> Proposal:
    entry = Admission(
        ek_fingerprint=ek * 48,
        role=Role.LINUX,
        hostname=None,
        assigned_ip=None,
        cluster_id=None,
        note=None,
    )
    return of_allow_list([entry], [])


@pytest.mark.parametrize(
    ("one", "rival", "other"),
    [
        (approval(a_machine(1)), approval(a_machine(1), hostname="cp-2"), approval(a_machine(2))),
        (approval(a_machine(1)), approval(a_machine(1), replaces=a_machine(2)), _token()),
        (_token(), _token(uses=2, hostname="cp-1"), _token(role=Role.LINUX)),
        (_listed("ab"), _listed("cd"), _token()),
        (_policy(), _policy(policy=None), _policy(subject="b")),
        (_step(), _step(step="activate", other="b"), _step(algorithm="rsa-4096")),
        (_person(), _person(name="Ada", duty="operator"), _person(name="eve")),
        (_ca("ab", "superseded"), _ca("ab", "keyCompromise"), _ca("cd", "superseded")),
        (_anchor("ab", "IFX"), _anchor("ab", "NTC"), _anchor("cd", "IFX")),
        (
            of_offline_bundle(a_machine(1), None),
            of_offline_bundle(dataclasses.replace(a_machine(1), role=Role.LINUX), None),
            of_offline_bundle(a_machine(2), None),
        ),
    ],
)
def test_what_a_proposal_is_about(one: Proposal, rival: Proposal, other: Proposal) -> None:
    """Another answer to the same question is a rival; another question is none."""
    assert one.digest() != rival.digest()
    assert about(members(one)) == about(members(rival))
    assert about(members(one)) != about(members(other))


def test_differences_are_told_with_both_values() -> None:
    """Where they can be read; digests and what has parts are named only, and what is absent is none."""
    machine = a_machine(1)
    ours = members(
        approval(machine, hostname=None, assigned_ip="10.0.0.12/24", accepts_ek=True, measured=None)
    )
    assert differences(ours, members(approval(machine))) == (
        "assigned_ip (10.0.0.12/24, not 10.0.0.11/24)",
        "hostname (none, not cp-1)",
        "measured",
        "accepts_ek",
    )
    assert differences(members(_token(uses=2)), members(_token())) == ("uses (2, not 1)",)
    older = {name: value for name, value in members(_token()).items() if name != "cluster_id"}
    assert differences(older, members(_token(cluster_id="a"))) == ("cluster_id (none, not a)",)


@given(st.sampled_from(sorted(("one", "two"))), st.integers(1, 9))
def test_a_proposal_differs_from_itself_in_nothing(name: str, uses: int) -> None:
    """And from any other with another digest in something."""
    ours, theirs = _token(uses=uses, hostname=name), _token(uses=1, hostname="one")
    assert bool(differences(members(ours), members(theirs))) == (ours.digest() != theirs.digest())


# What a vote binds


def test_a_proposal_is_every_member_in_canonical_form() -> None:
    """Anybody can recompute the digest from the audit and the API: sorted keys, no blanks, nulls written."""
    proposal = approval(a_machine(1))
    text = proposal.canonical()
    assert json.loads(text) == {
        "format": "itl-proposal/2",
        "action": "approve",
        "machine_id": a_machine(1).machine_id,
        "ek_fingerprint": f"{1:096x}",
        "ak_name": (b"\x00\x0b" + (1).to_bytes(32)).hex(),
        "role": "controlplane",
        "current_role": None,
        "hostname": "cp-1",
        "assigned_ip": "10.0.0.11/24",
        "cluster_id": "default",
        "evidence_digest": evidence_digest(a_machine(1)),
        "terms": {},
        "roles": ["controlplane"],
        "assurance": "tofu",
        "current_hostname": None,
        "current_assigned_ip": None,
        "current_cluster_id": "default",
        "measured": {
            "policy": {"ref": "workers@1", "sha256": "ab" * 32, "agreed": False},
            "minimum": "ek-chain",
            "parts": [{"ref": "workers@1", "sha256": "ab" * 32, "agreed": True}],
        },
    }
    assert text == json.dumps(json.loads(text), sort_keys=True, separators=(",", ":")).encode()


def test_the_digest_is_known() -> None:
    """The digest is API: it may only change together with the format's name."""
    assert approval(a_machine(1)).digest() == (
        "9e4ec70e292d9507a1248afe175fd573666235c4e96da4e3817c0a256aefc7c2"
    )


ANOTHER: dict[str, Callable[[], Proposal]] = {
    "the action": lambda: of_machine(
        Transition.UNLOCK,
        a_machine(1),
        role=Role.CONTROLPLANE,
        hostname="cp-1",
        assigned_ip="10.0.0.11/24",
        cluster_id="default",
        measured=MEASURED,
    ),
    "the machine": lambda: approval(a_machine(1, machine_id="00000002-0f0e-4c55-9d4a-3f6f0e1b2c3d")),
    "the EK": lambda: approval(a_machine(1, ek_fingerprint="ab" * 48)),
    "the AK": lambda: approval(a_machine(1, ak_name=b"\x00\x0b" + bytes(32))),
    "no AK": lambda: approval(a_machine(1, ak_name=None)),
    "the role": lambda: approval(a_machine(1), role=Role.WORKER_APP),
    "the role it has": lambda: approval(a_machine(1, role=Role.LINUX)),
    "the hostname": lambda: approval(a_machine(1), hostname="cp-2"),
    "no hostname": lambda: approval(a_machine(1), hostname=None),
    "the address": lambda: approval(a_machine(1), assigned_ip="10.0.0.12/24"),
    "the cluster it gets": lambda: approval(a_machine(1), cluster_id="prod"),
    "the cluster": lambda: approval(a_machine(1, cluster_id="other")),
    "the certificate": lambda: approval(a_machine(1, ek_certificate=certificate("cd" * 32))),
    "where the EK is from": lambda: approval(a_machine(1, ek_source="cert")),
    "the assurance": lambda: approval(a_machine(1, assurance=Assurance.EK_ALLOWLIST)),
    "the verdict": lambda: approval(a_machine(1, last_verdict=Verdict.FAILED)),
    "the policy": lambda: approval(a_machine(1, last_policy="workers@2")),
    "what failed": lambda: approval(a_machine(1, last_failed="pcr7")),
    "the name it has": lambda: approval(a_machine(1, hostname="w-1")),
    "the address it has": lambda: approval(a_machine(1, assigned_ip="10.0.0.9/24")),
    "the policy in force": lambda: approval(
        a_machine(1),
        measured=dataclasses.replace(MEASURED, policy=AppliedPolicy(ref="workers@1", sha256="cd" * 32)),
    ),
    "the minimum": lambda: approval(
        a_machine(1), measured=dataclasses.replace(MEASURED, minimum=Assurance.TOFU)
    ),
    "what the policy is made of": lambda: approval(
        a_machine(1), measured=dataclasses.replace(MEASURED, parts=())
    ),
    "what was quoted": lambda: approval(a_machine(1, last_result_key="Verified workers@2 1.0")),
}


def certificate(sha256: str) -> EKCertificateInfo:
    """Return an EK certificate with this digest."""
    return EKCertificateInfo(
        subject="CN=x", manufacturer="id:00001014", model="m", firmware="f", sha256=sha256
    )


@pytest.mark.threat("T52")
@pytest.mark.parametrize("what", ANOTHER)
def test_whatever_differs_is_another_proposal(what: str) -> None:
    """Votes for different proposals never add up."""
    assert ANOTHER[what]().digest() != approval(a_machine(1)).digest()


def test_every_difference_differs() -> None:
    """No two of them are the same proposal either."""
    digests = [make().digest() for make in ANOTHER.values()]
    assert len(set(digests)) == len(digests)


def test_certificates_are_told_apart() -> None:
    """Another certificate of the same EK is other evidence."""
    one, other = (a_machine(1, ek_certificate=certificate(2 * byte * 16)) for byte in ("ab", "cd"))
    assert evidence_digest(one) != evidence_digest(other)


def test_what_was_voted_on_stands_while_nothing_changed() -> None:
    """As the vote stored it, read back."""
    voted = json.loads(approval(a_machine(1)).canonical())
    assert overtaken(voted, a_machine(1), MEASURED) == ()


@pytest.mark.parametrize(
    ("machine", "measured", "members"),
    [
        (None, MEASURED, ("machine_id",)),
        (a_machine(1, assurance=Assurance.EK_CHAIN), MEASURED, ("evidence_digest", "assurance")),
        (a_machine(1, hostname="w-1"), MEASURED, ("current_hostname",)),
        (a_machine(1, assigned_ip="10.0.0.9/24"), MEASURED, ("current_assigned_ip",)),
        (a_machine(1, role=Role.LINUX), MEASURED, ("current_role",)),
        (a_machine(1, cluster_id="other"), MEASURED, ("current_cluster_id",)),
        (a_machine(1, ak_name=None), MEASURED, ("ak_name",)),
        (a_machine(1, last_policy="weak@1"), MEASURED, ("evidence_digest",)),
        (a_machine(1), dataclasses.replace(MEASURED, minimum=Assurance.TOFU), ("measured",)),
        (a_machine(1), None, ("measured",)),
    ],
    ids=lambda value: "" if not isinstance(value, tuple) else "+".join(value),
)
def test_whatever_changed_since_is_named(
    machine: Machine | None, measured: Measured | None, members: tuple[str, ...]
) -> None:
    """With one of these no vote counts; the list says which."""
    voted = json.loads(approval(a_machine(1)).canonical())
    assert overtaken(voted, machine, measured) == members


def test_attesting_again_changes_no_proposal() -> None:
    """While nothing new is found, the second operator votes for what the first one saw."""
    machine = a_full_machine(1)
    later = dataclasses.replace(
        machine,
        version=machine.version + 1,
        last_result_at=AT,
        trust_expires_at=AT,
        hw_serial="other",
        registered_from="192.0.2.99",
        directive_sha256=None,
    )
    assert approval(later).digest() == approval(machine).digest()


TOKEN: dict[str, Any] = {
    "role": Role.CONTROLPLANE,
    "hostname": None,
    "assigned_ip": None,
    "cluster_id": None,
    "uses": 1,
    "expires_in_seconds": 3600,
    "minimum_assurance": Assurance.EK_CHAIN,
}


@pytest.mark.parametrize(
    "changed",
    [
        {"role": Role.LINUX},
        {"hostname": "cp-1"},
        {"assigned_ip": "10.0.0.11/24"},
        {"cluster_id": "c1"},
        {"uses": 2},
        {"expires_in_seconds": 3601},
    ],
    ids=str,
)
def test_the_terms_of_a_token_are_bound(changed: dict[str, Any]) -> None:
    """Nobody agrees to one use and gets two issued."""
    assert of_registration_token(**(TOKEN | changed)).digest() != of_registration_token(**TOKEN).digest()


def an_entry(number: int = 1, **changes: Any) -> Admission:
    """Return an entry of the allow-list."""
    fields: dict[str, Any] = {
        "ek_fingerprint": f"{number:096x}",
        "role": Role.LINUX,
        "hostname": None,
        "assigned_ip": None,
        "cluster_id": None,
        "note": None,
    }
    return Admission(**(fields | changes))


@pytest.mark.parametrize(
    "changed",
    [
        {"ek_fingerprint": "ab" * 48},
        {"role": Role.CONTROLPLANE},
        {"hostname": "cp-1"},
        {"assigned_ip": "10.0.0.11/24"},
        {"cluster_id": "c1"},
        {"note": "rack 4"},
    ],
    ids=str,
)
def test_every_entry_of_an_import_is_bound(changed: dict[str, Any]) -> None:
    """One of two hundred lines changed is another import; so is another entry that gives way."""
    many = [an_entry(i) for i in range(2, 200)]
    digest = of_allow_list([*many, an_entry()], []).digest()
    assert of_allow_list([*many, an_entry(**changed)], []).digest() != digest
    one, other = (of_allow_list(many, [entry]).digest() for entry in (an_entry(), an_entry(**changed)))
    assert len({digest, one, other}) == 3


def test_the_order_of_an_import_does_not_matter() -> None:
    """A spreadsheet sorted another way is the same import."""
    entries = [an_entry(i) for i in range(3)]
    digests = {of_allow_list(list(order), list(order)[:1]).digest() for order in permutations(entries)}
    assert len(digests) == 3  # the entry replaced differs, the order does not
    assert len({of_allow_list(list(order), []).digest() for order in permutations(entries)}) == 1


def test_a_proposal_is_named_in_words() -> None:
    """What operators read in lists and in the audit."""
    assert approval(a_machine(1)).subject == f"machine {a_machine(1).machine_id}"
    assert of_registration_token(**TOKEN).subject == "registration token for controlplane, 1 uses"
    imported = of_allow_list([an_entry(1), an_entry(2)], [an_entry(2)])
    assert imported.subject == "allow-list, 2 entries, 1 of them replaced"


POLICY: dict[str, Any] = {
    "scope": "role",
    "subject": "controlplane",
    "machine": None,
    "policy": AppliedPolicy(ref="cp@2", sha256="ab" * 32),
    "replaces": AppliedPolicy(ref="cp@1", sha256="cd" * 32),
}


def test_an_activation_is_every_member_in_canonical_form() -> None:
    """What two people agree to is a document by its digest, a place, and what gives way there."""
    proposal = of_policy_assignment(**POLICY)
    assert json.loads(proposal.canonical()) == {
        "format": "itl-proposal/2",
        "action": "policy_assign",
        "machine_id": None,
        "ek_fingerprint": None,
        "ak_name": None,
        "role": None,
        "current_role": "controlplane",
        "hostname": None,
        "assigned_ip": None,
        "cluster_id": None,
        "evidence_digest": None,
        "terms": {
            "scope": "role",
            "subject": "controlplane",
            "policy": "cp@2",
            "policy_sha256": "ab" * 32,
            "replaces": "cp@1",
            "replaces_sha256": "cd" * 32,
        },
        "roles": ["controlplane"],
        "assurance": None,
        "current_hostname": None,
        "current_assigned_ip": None,
        "current_cluster_id": None,
        "measured": None,
    }


@pytest.mark.threat("T71")
@pytest.mark.parametrize(
    "changed",
    [
        {"subject": "worker-app"},
        {"scope": "cluster", "subject": "c1"},
        {"scope": "cluster", "subject": "c2"},
        {"scope": "fleet", "subject": "*"},
        {"scope": "machine", "subject": a_machine(1).machine_id, "machine": a_machine(1)},
        {
            "scope": "machine",
            "subject": a_machine(1).machine_id,
            "machine": a_machine(1, role=Role.CONTROLPLANE),
        },
        {
            "scope": "machine",
            "subject": a_machine(1).machine_id,
            "machine": a_machine(1, ek_fingerprint="ab" * 48),
        },
        {"scope": "machine", "subject": a_machine(2).machine_id, "machine": a_machine(2)},
        {"policy": None},
        {"policy": AppliedPolicy(ref="cp@3", sha256="ab" * 32)},
        {"policy": AppliedPolicy(ref="cp@2", sha256="ba" * 32)},
        {"replaces": None},
        {"replaces": AppliedPolicy(ref="cp@3", sha256="cd" * 32)},
        {"replaces": AppliedPolicy(ref="cp@1", sha256="dc" * 32)},
    ],
    ids=str,
)
def test_whatever_differs_is_another_activation(changed: dict[str, Any]) -> None:
    """Another place, document, machine or state before: votes for them never add up."""
    others = [of_policy_assignment(**(POLICY | change)).digest() for change in ({}, changed)]
    assert len(set(others)) == 2


def test_putting_back_is_another_proposal() -> None:
    """A vote for the new policy is none for the way back."""
    back = POLICY | {"policy": POLICY["replaces"], "replaces": POLICY["policy"]}
    assert of_policy_assignment(**back).digest() != of_policy_assignment(**POLICY).digest()


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({}, "policy cp@2 for role controlplane, instead of cp@1"),
        ({"replaces": None}, "policy cp@2 for role controlplane"),
        ({"scope": "fleet", "subject": "*"}, "policy cp@2 for the fleet, instead of cp@1"),
        ({"policy": None}, "no policy of its own for role controlplane, instead of cp@1"),
    ],
    ids=str,
)
def test_an_activation_is_named_in_words(changed: dict[str, Any], words: str) -> None:
    """What operators read in lists and in the audit."""
    assert of_policy_assignment(**(POLICY | changed)).subject == words


# What is gated


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("policy", [None, POLICY["policy"]], ids=["unassign", "assign"])
def test_whose_measurement_changes_decides(role: Role, policy: AppliedPolicy | None) -> None:
    """The role's own policy and its machines' ones, for better or for worse; others stay open to one."""
    by_role = of_policy_assignment(**(POLICY | {"subject": role.value, "policy": policy}))
    assert CONTROLPLANE.gates(by_role) == (role is Role.CONTROLPLANE)
    machine = a_machine(1, role=role)
    own = {"scope": "machine", "subject": machine.machine_id, "machine": machine, "policy": policy}
    assert CONTROLPLANE.gates(of_policy_assignment(**(POLICY | own))) == (role is Role.CONTROLPLANE)


@pytest.mark.threat("T71")
def test_a_wish_for_a_role_opens_nothing() -> None:
    """Fleet and cluster concern every role; so does a machine whose role nobody has decided yet."""
    machine = a_machine(1, role=None, desired_role=Role.LINUX)
    own = {"scope": "machine", "subject": machine.machine_id, "machine": machine}
    for wide in ({"scope": "fleet", "subject": "*"}, {"scope": "cluster", "subject": "c1"}, own):
        proposal = of_policy_assignment(**(POLICY | wide))
        assert proposal.roles == frozenset(Role)
        assert CONTROLPLANE.gates(proposal)


@pytest.mark.threat("T50")
@pytest.mark.parametrize("current", [None, *Role])
@pytest.mark.parametrize("wanted", [None, *Role])
def test_the_role_before_and_after_decide(current: Role | None, wanted: Role | None) -> None:
    """Giving a role under dual control needs several, and so does taking it away."""
    proposal = approval(a_machine(1, role=current), role=wanted)
    assert CONTROLPLANE.gates(proposal) == (Role.CONTROLPLANE in (current, wanted))


@pytest.mark.parametrize(
    ("roles", "quorum", "on"),
    [
        ({Role.CONTROLPLANE}, 2, True),
        ({Role.CONTROLPLANE}, 3, True),
        ({Role.CONTROLPLANE}, 1, False),
        (set(), 2, False),
    ],
)
def test_when_dual_control_is_on(roles: set[Role], quorum: int, on: bool) -> None:
    """A quorum of one is no dual control; neither are no roles."""
    rule = Rule(roles=frozenset(roles), quorum=quorum)
    assert rule.is_on is on
    assert rule.gates(approval(a_machine(1))) is on


def test_one_entry_gates_an_import() -> None:
    """A control-plane machine among workers, new or replaced, needs several."""
    king = an_entry(9, role=Role.CONTROLPLANE)
    assert not CONTROLPLANE.gates(of_allow_list([an_entry()], [an_entry()]))
    assert CONTROLPLANE.gates(of_allow_list([an_entry(), king], []))
    assert CONTROLPLANE.gates(of_allow_list([an_entry(9)], [king]))
    assert CONTROLPLANE.gates(of_registration_token(**TOKEN))


@pytest.mark.threat("T50")
def test_acts_that_yield_credentials() -> None:
    """The list of what is gated; an operation that is added must be put on one side or the other."""
    open_to_one = {Transition.REJECT, Transition.LOCK, Transition.REVOKE}
    machines = {Transition.ACTIVATE, Transition.ATTEST, Transition.ACKNOWLEDGE}
    assert set(Transition) - open_to_one - machines == MACHINE_ACTIONS


# How many agree


def test_two_people_are_two() -> None:
    """Distinct by subject and by name; the older vote is named first."""
    found = tally([a_vote("bob", "iss#2", age_seconds=5), a_vote("alice", "iss#1", age_seconds=10)], AT)
    assert found.voters == ("alice", "bob")
    assert found.received == 2
    assert found.expires_at == AT - timedelta(seconds=10) + WINDOW
    assert CONTROLPLANE.is_met(found)


@pytest.mark.threat("T51")
@pytest.mark.parametrize(
    "votes",
    [
        [("alice", "iss#1"), ("alice", "iss#1")],
        [("alice", "iss#1"), ("alicia", "iss#1")],
        [("alice", "iss#1"), ("alice", "spki-sha256:ab")],
        [("alice", "iss#1"), ("ALICE", "spki-sha256:ab")],
        [("alice", "iss#1"), (" Alice ", "spki-sha256:ab")],
        [("straße", "iss#1"), ("STRASSE", "spki-sha256:ab")],
        [("alice", "iss#1"), ("\uff41lice", "spki-sha256:ab")],
        # Through a third: each shares something with the next.
        [("alice", "iss#1"), ("alice", "spki-sha256:ab"), ("bob", "spki-sha256:ab")],
        [("alice", "iss#1"), ("SYSTEM", None)],
        [("alice", "iss#1"), ("SYSTEM", "")],
    ],
    ids=str,
)
def test_one_person_stays_one(votes: list[tuple[str, str | None]]) -> None:
    """Two ways to log in, two spellings or break-glass make no second human, in whatever order."""
    for order in permutations(votes):
        found = tally([a_vote(cn, sub, age_seconds=i) for i, (cn, sub) in enumerate(order)], AT)
        assert found.received == 1
        assert not CONTROLPLANE.is_met(found)


@pytest.mark.parametrize(
    "dead",
    [
        {"expires_at": AT},
        {"expires_at": AT - timedelta(seconds=1)},
        {"consumed_at": AT},
        {"withdrawn_at": AT},
    ],
    ids=str,
)
def test_what_ended_does_not_count(dead: dict[str, Any]) -> None:
    """Expired to the microsecond, consumed, withdrawn."""
    gone = a_vote("bob", "iss#2", age_seconds=900, **dead)
    assert not gone.is_live(AT)
    found = tally([a_vote("alice", "iss#1"), gone], AT)
    assert (found.voters, found.expires_at) == (("alice",), AT + WINDOW)


def test_nobody_is_nobody() -> None:
    """No votes, no expiry, no quorum."""
    found = tally([], AT)
    assert (found.voters, found.received, found.expires_at) == ((), 0, None)
    assert not CONTROLPLANE.is_met(found)


def test_whose_vote_it_is() -> None:
    """By subject or by name."""
    vote = a_vote("alice", "iss#1")
    assert vote.is_by("other", "iss#1")
    assert vote.is_by("Alice", "iss#2")
    assert not vote.is_by("bob", "iss#2")
    assert same_name("A  b", "a B")


PEOPLE = st.tuples(
    st.sampled_from(["a", "A", "b", "c", "d", "e"]), st.sampled_from(["1", "2", "3", "4", None])
)
VOTES = st.lists(st.tuples(PEOPLE, st.integers(-700, 700)), max_size=8).map(
    lambda drawn: [a_vote(cn, sub, age_seconds=age) for (cn, sub), age in drawn]
)


@given(VOTES, st.randoms(use_true_random=False))
def test_the_order_of_votes_is_irrelevant(votes: list[Vote], random: Any) -> None:
    """Whatever the database returns first, the same humans are named in the same order."""
    shuffled = list(votes)
    random.shuffle(shuffled)
    assert tally(shuffled, AT) == tally(votes, AT)


@given(VOTES)
def test_no_more_humans_than_names_or_subjects(votes: list[Vote]) -> None:
    """Neither many names for one subject nor many subjects under one name make more humans."""
    live = [vote for vote in votes if vote.is_live(AT)]
    found = tally(votes, AT)
    names = {vote.operator_cn.casefold() for vote in live}
    assert found.received <= min(len(names), len({vote.operator_sub for vote in live}))
    assert (found.received == 0) == (not live)


@given(VOTES, VOTES)
def test_votes_only_add_humans_they_bring(votes: list[Vote], more: list[Vote]) -> None:
    """A vote never adds more than one human."""
    before = tally(votes, AT).received
    for i in range(len(more)):
        after = tally([*votes, *more[: i + 1]], AT).received
        assert after <= before + 1
        before = after


@given(st.integers(2, 20), st.integers(1, 19), st.integers(0, 5))
def test_less_than_the_quorum_is_never_enough(quorum: int, people: int, votes_each: int) -> None:
    """N - 1 distinct humans, however often they vote, do not reach a quorum of n; n do."""
    people = min(people, quorum - 1)
    rule = Rule(roles=frozenset({Role.CONTROLPLANE}), quorum=quorum)
    votes = [
        a_vote(f"person {i}", f"iss#{i}", age_seconds=j) for i in range(people) for j in range(votes_each + 1)
    ]
    assert not rule.is_met(tally(votes, AT))
    votes += [a_vote(f"more {i}", f"more#{i}") for i in range(quorum - people)]
    assert rule.is_met(tally(votes, AT))


TRUSTED: dict[str, Any] = {"sha256": "ab" * 32, "role": "anchor", "vendor": "IFX"}


@pytest.mark.parametrize("changed", [{"sha256": "cd" * 32}, {"role": "intermediate"}, {"vendor": "STM"}])
def test_whose_word_is_believed_is_bound(changed: dict[str, Any]) -> None:
    """Nobody agrees to one CA, or to one vendor, and gets another believed."""
    assert of_trust_certificate(**(TRUSTED | changed)).digest() != of_trust_certificate(**TRUSTED).digest()


def test_an_anchor_concerns_every_role() -> None:
    """Its machines may have any; so whoever guards one role guards the bundle."""
    proposal = of_trust_certificate(**TRUSTED)
    assert proposal.roles == frozenset(Role)
    assert Rule(roles=frozenset({Role.WINDOWS}), quorum=2).gates(proposal)
    assert proposal.subject == f"anchor of IFX, SHA-256 {'ab' * 32}"


ROTATION: dict[str, Any] = {
    "step": "activate",
    "purpose": "machine",
    "algorithm": "ecdsa-p384",
    "active": "aa" * 8,
    "other": "bb" * 8,
    "force": False,
}


@pytest.mark.parametrize(
    "changed",
    [
        {"step": "retire"},
        {"purpose": "operator"},
        {"algorithm": "rsa-4096"},
        {"active": "cc" * 8},
        {"other": None},
        {"force": True},
    ],
)
def test_a_step_of_a_rotation_is_bound(changed: dict[str, Any]) -> None:
    """Nobody agrees to one step, of these keys, and gets another; nor to waiting, and gets none."""
    assert of_ca_rotation(**(ROTATION | changed)).digest() != of_ca_rotation(**ROTATION).digest()


def test_a_rotation_concerns_every_role() -> None:
    """Machines of every role are known by its certificates."""
    proposal = of_ca_rotation(**ROTATION)
    assert proposal.roles == frozenset(Role)
    assert proposal.machine_id is None
    start = "activate in the rotation of the machine CA, ecdsa-p384: active key " + "aa" * 8
    assert proposal.subject == f"{start}, other key {'bb' * 8}"
    forced = of_ca_rotation(**(ROTATION | {"other": None, "force": True})).subject
    assert forced == start.replace("activate", "activate at once")


def test_a_revoked_ca_concerns_every_role() -> None:
    """Who takes the CA's certificate away takes everybody's; certificate and reason are bound."""
    asked = {"serial": "ab" * 20, "profile": "ca-cross", "subject": "CN=CA", "reason": "superseded"}
    proposal = of_ca_revocation(**asked)
    assert proposal.roles == frozenset(Role)
    assert proposal.machine_id is None
    assert proposal.subject == f"revocation of certificate {'ab' * 20} of CN=CA"
    for changed in ({"serial": "cd" * 20}, {"reason": "keyCompromise"}):
        assert of_ca_revocation(**(asked | changed)).digest() != proposal.digest()


def test_a_parent_of_a_ca_concerns_every_role() -> None:
    """Whose root it is, until when, and over which certificate: each is bound."""
    asked: dict[str, Any] = {
        "issuer": "aa" * 8,
        "root": "CN=The Company Root",
        "root_sha256": "0a" * 32,
        "chain_sha256": "0b" * 32,
        "until": "2027-11-26T12:00:00Z",
        "replaces": "0c" * 32,
        "force": False,
    }
    proposal = of_ca_chain(**asked)
    assert proposal.roles == frozenset(Role)
    assert proposal.machine_id is None
    assert proposal.subject == (
        f"CA key {'aa' * 8} below CN=The Company Root, SHA-256 {'0a' * 32}, until 2027-11-26T12:00:00Z"
    )
    for name, value in asked.items():
        other = not value if isinstance(value, bool) else f"{value[:-1]}x"
        assert of_ca_chain(**(asked | {name: other})).digest() != proposal.digest()


def test_a_ca_that_is_brought_in_concerns_every_role() -> None:
    """Whose CA, under which root, and which wrapped key exactly: each is bound."""
    asked = {
        "purpose": "machine",
        "algorithm": "ecdsa-p384",
        "name": "CN=Machines of the Company",
        "spki_sha256": "0a" * 32,
        "root": "CN=The Company Root",
        "root_sha256": "0b" * 32,
        "chain_sha256": "0c" * 32,
        "until": "2027-11-26T12:00:00Z",
        "wrapped_sha256": "0d" * 32,
        "oaep_hash": "sha256",
    }
    proposal = of_ca_import(**asked)
    assert proposal.roles == frozenset(Role)
    assert proposal.machine_id is None
    assert proposal.subject == (
        "key of CA CN=Machines of the Company for machine certificates, root CN=The Company Root, "
        f"SHA-256 {'0b' * 32}, until 2027-11-26T12:00:00Z"
    )
    for name, value in asked.items():
        assert of_ca_import(**(asked | {name: f"{value[:-1]}x"})).digest() != proposal.digest()


def test_an_import_names_the_cluster_that_all_entries_have() -> None:
    """Those that give way too; without a word it is the default one. Of several, none: it concerns all."""

    def cluster(listed: list[str | None], replaced: list[str | None]) -> str | None:
        one, other = ([an_entry(cluster_id=each) for each in of] for of in (listed, replaced))
        return of_allow_list(one, other).cluster_id

    assert (cluster(["a", "a"], ["a"]), cluster([None], ["default"])) == ("a", "default")
    assert (cluster(["a", "b"], []), cluster(["a"], ["b"]), cluster(["a", None], [])) == (None, None, None)


def test_a_rule_of_approval_is_agreed_to_word_for_word() -> None:
    """Each member of it is bound, and which step; what is shown says whom it lets in."""
    asked: dict[str, Any] = {
        "step": "enable",
        "name": "rack-4",
        "expression": 'machine.serial == "1"',
        "role": Role.LINUX,
        "cluster_id": "prod",
        "hostname": "w-{serial}",
        "minimum_assurance": Assurance.EK_CHAIN,
        "max_count": 40,
        "priority": 100,
    }
    proposal = of_approval_rule(**asked)
    assert (proposal.roles, proposal.cluster_id, proposal.machine_id) == (
        frozenset({Role.LINUX}),
        "prod",
        None,
    )
    assert proposal.subject == (
        'enable approval rule rack-4: up to 40 machines become linux where machine.serial == "1"'
    )
    other = {"role": Role.WINDOWS, "minimum_assurance": Assurance.TOFU, "max_count": 41, "priority": 101}
    for name, value in asked.items():
        changed = asked | {name: other.get(name, f"{value}x")}
        assert of_approval_rule(**changed).digest() != proposal.digest(), name


def test_a_clusters_version_concerns_every_role() -> None:
    """Which cluster, which version, instead of which, and what is said beside it: each is bound."""
    asked: dict[str, Any] = {
        "cluster": "prod",
        "description": "Rack 4",
        "talos_version": "v1.13.9",
        "replaces": "default",
    }
    proposal = of_cluster_version(**asked)
    assert (proposal.roles, proposal.cluster_id, proposal.machine_id) == (frozenset(Role), "prod", None)
    assert proposal.subject == "Talos v1.13.9 for cluster prod, instead of default"
    for name, value in asked.items():
        assert of_cluster_version(**(asked | {name: f"{value}x"})).digest() != proposal.digest()
    declared = of_cluster_version(**(asked | {"replaces": None}))
    assert declared.subject == "Talos v1.13.9 for cluster prod"
    assert about(json.loads(declared.canonical())) == about(json.loads(proposal.canonical()))


@pytest.mark.parametrize(
    "changed", [{"name": "eve"}, {"duty": "operator"}, {"spki_sha256": "ba" * 32}, {"days": 31}], ids=str
)
def test_an_operators_certificate_is_bound(changed: dict[str, Any]) -> None:
    """Nobody agrees to one person, duty, key or time, and gets another."""
    assert (
        of_operator_certificate(**(PERSON | changed)).digest() != of_operator_certificate(**PERSON).digest()
    )


def test_an_operators_certificate_concerns_every_role() -> None:
    """Whoever has one acts on machines of every role, or looks at them; so whichever roles are gated, it is too."""
    proposal = of_operator_certificate(**PERSON)
    assert (proposal.action, proposal.subject) == ("operator_certificate", "certificate of viewer ada")
    assert CONTROLPLANE.gates(proposal)
    assert proposal.roles == frozenset(Role)


def test_accepting_an_ek_is_bound() -> None:
    """Who agreed to admit a machine did not thereby agree to believe its EK for ever."""
    granted: dict[str, Any] = {
        "role": Role.GENERIC,
        "hostname": None,
        "assigned_ip": None,
        "cluster_id": "default",
        "measured": None,
    }
    plain = of_machine(Transition.APPROVE, a_machine(), **granted)
    accepting = of_machine(Transition.APPROVE, a_machine(), **granted, accepts_ek=True)
    assert plain.digest() != accepting.digest()
    assert plain.terms == {}
    assert accepting.terms == {"accepts_ek": a_machine().tpm.ek_fingerprint}


def test_a_vote_for_a_replacement_binds_whose_place_it_is() -> None:
    """Another old machine, or none, is another proposal; the words name both."""
    machine, old = a_machine(1), a_machine(2)
    found = approval(machine, replaces=old)
    assert (found.action, found.terms) == (
        "replace",
        {"replaces": old.machine_id, "replaces_ek": old.tpm.ek_fingerprint},
    )
    assert found.subject == f"machine {machine.machine_id} in place of machine {old.machine_id}"
    digests = {each.digest() for each in (found, approval(machine), approval(machine, replaces=a_machine(3)))}
    assert len(digests) == 3


@pytest.mark.parametrize("role", [None, Role.LINUX, Role.CONTROLPLANE])
def test_an_offline_bundle_concerns_every_role(role: Role | None) -> None:
    """Whatever the machine is, and whichever roles are under dual control; it binds the machine as it was seen."""
    machine = dataclasses.replace(a_full_machine(), role=role)
    proposal = of_offline_bundle(machine, MEASURED)
    assert CONTROLPLANE.gates(proposal)
    assert (proposal.action, proposal.subject) == ("offline_bundle", f"machine {machine.machine_id}")
    assert (
        proposal.digest() != of_offline_bundle(dataclasses.replace(machine, hostname="x"), MEASURED).digest()
    )
    assert (
        proposal.digest()
        != of_offline_bundle(
            dataclasses.replace(machine, anchor=dataclasses.replace(machine.anchor, ak_name=None)), MEASURED
        ).digest()
    )


def test_acts_of_extensions_are_gated_by_the_role_of_their_machine() -> None:
    """Of none, or always, by every role; the terms make the proposal another one."""
    machine = dataclasses.replace(a_full_machine(), role=Role.CONTROLPLANE)
    terms: dict[str, str | int | None] = {"uses": 1, "source_ip": "192.0.2.1"}

    def of(of_machine: Machine | None, *, always: bool = False, **more: int) -> Proposal:
        return of_extension("disk_kms.release", of_machine, MEASURED, terms=terms | more, always=always)

    assert of(machine).roles == frozenset({Role.CONTROLPLANE})
    assert of(machine, always=True).roles == of(None).roles == frozenset(Role)
    assert of(dataclasses.replace(machine, role=None)).roles == frozenset(Role)
    assert of(machine).digest() != of(machine, uses=2).digest()
    assert of(machine).subject == f"machine {machine.machine_id}, source_ip 192.0.2.1, uses 1"
    assert of(None).subject == "source_ip 192.0.2.1, uses 1"


def test_a_configuration_is_agreed_to_by_its_digest() -> None:
    """Place, version, text, and what is delivered now are bound, and whose patch it is."""
    asked: dict[str, Any] = {
        "place": "prod/worker-app",
        "cluster_id": "prod",
        "role": Role.WORKER_APP,
        "machine": None,
        "version": 3,
        "sha256": "ab" * 32,
        "replaces": 2,
        "replaces_sha256": "cd" * 32,
    }
    base = of_configuration(**asked)
    assert (base.roles, base.cluster_id, base.machine_id) == (frozenset({Role.WORKER_APP}), "prod", None)
    assert (
        base.subject == f"configuration prod/worker-app, version 3, SHA-256 {'ab' * 32}, instead of version 2"
    )
    other = {
        "place": "prod/worker-infra",
        "version": 4,
        "sha256": "ef" * 32,
        "replaces": 1,
        "replaces_sha256": "ef" * 32,
        "cluster_id": "test",
    }
    for name, value in other.items():
        assert of_configuration(**(asked | {name: value})).digest() != base.digest(), name
    first = of_configuration(**(asked | {"replaces": None, "replaces_sha256": None}))
    assert first.subject == f"configuration prod/worker-app, version 3, SHA-256 {'ab' * 32}"
    machine = a_machine()
    patch = of_configuration(**(asked | {"role": None, "machine": machine}))
    assert (patch.roles, patch.machine_id) == (frozenset(Role), machine.machine_id)
