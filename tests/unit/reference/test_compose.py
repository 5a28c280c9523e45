"""What several policies demand together, and where each rule comes from (TPM.md §4.6)."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attestation.errors import PolicyInvalid
from attestation.reference import (
    IDENTITY_ONLY,
    Policy,
    Source,
    compose,
    compose_guarded,
    effective_document,
    parse_policy,
)
from attestation.results import Assurance, Failed, Passed, Reported

A, B, C = ("aa" * 32, "bb" * 32, "cc" * 32)
a, b, c = (bytes.fromhex(text) for text in (A, B, C))


def policy(name: str, version: int = 1, bank: str = "sha256", **members: Any) -> Policy:
    return parse_policy(
        {
            "format": "itl-tpm-policy/1",
            "name": name,
            "version": version,
            "bank": bank,
            "pcrs": {},
            **members,
        }
    )


def rule(*values: str) -> dict[str, list[str]]:
    return {"any_of": list(values)}


FLEET = policy("fleet", pcrs={"7": rule(A), "4": rule(A)}, max_age_seconds=600, clock={"safe": "required"})


def test_one_policy_is_itself() -> None:
    """Nothing is composed where there is nothing to compose with."""
    assert compose([FLEET]) is FLEET


def test_the_narrower_wins_per_pcr_and_per_member() -> None:
    """What it leaves unsaid comes from the wider one, with its source."""
    narrow = policy("workers", 3, pcrs={"7": rule(B), "11": rule(C)}, max_age_seconds=120)
    found = compose([FLEET, narrow])
    assert found.ref == "fleet@1+workers@3"
    assert (found.name, found.version, found.parts) == ("workers", 3, ("fleet@1", "workers@3"))
    assert found.tpm.selection.to_names() == {"sha256": [4, 7, 11]}
    assert list(found.tpm.judge({4: a, 7: b, 11: c})) == [Passed("pcr4"), Passed("pcr7"), Passed("pcr11")]
    assert Failed("pcr7", B, A) in found.tpm.judge({4: a, 7: a, 11: c})
    assert (found.max_age_seconds, found.tpm.clock_safe_required) == (120, True)
    assert found.sources == {
        "clock.safe": Source(policy="fleet@1", report=False),
        "max_age_seconds": Source(policy="workers@3", report=False),
        "pcrs.11": Source(policy="workers@3", report=False),
        "pcrs.4": Source(policy="fleet@1", report=False),
        "pcrs.7": Source(policy="workers@3", report=False),
    }


def test_the_order_decides() -> None:
    """The last is the narrowest."""
    other = policy("other", pcrs={"7": rule(B)})
    assert Failed("pcr7", B, A) in compose([FLEET, other]).tpm.judge({4: a, 7: a})
    assert Failed("pcr7", A, B) in compose([other, FLEET]).tpm.judge({4: a, 7: b})


@pytest.mark.threat("T69")
def test_a_rule_keeps_the_mode_of_its_policy() -> None:
    """A narrower policy in mode report turns what it repeats into reported rules, and nothing else."""
    trial = policy("trial", mode="report", pcrs={"7": rule(B)})
    found = compose([FLEET, trial])
    assert list(found.tpm.judge({4: b, 7: a})) == [Failed("pcr4", A, B), Reported("pcr7", B, A)]
    assert found.tpm.appraises_boot
    assert found.tpm.clock_safe_required
    assert not compose([policy("x", firmware={"on_blocklist": "fail"}), trial]).tpm.appraises_boot


def test_members_of_members_are_merged() -> None:
    """Secure Boot, boot, firmware and IMA: each member by itself, vendors one by one."""
    wide = policy(
        "wide",
        secure_boot={"required": True, "dbx_min": [A]},
        boot={"loaders": [A], "kernels": [A]},
        firmware={"min": {"IFX": "7.63", "STM": "1.2.3.4"}, "on_blocklist": "warn"},
    )
    narrow = policy(
        "narrow",
        mode="report",
        secure_boot={"dbx_min": [B]},
        boot={"kernels": [B]},
        firmware={"min": {"IFX": "7.85"}},
    )
    found = compose([wide, narrow])
    assert found.tpm.secure_boot is not None
    assert (found.tpm.secure_boot.required.value, found.tpm.secure_boot.required.report) == (True, False)
    assert found.tpm.secure_boot.dbx_min is not None
    assert (found.tpm.secure_boot.dbx_min.value, found.tpm.secure_boot.dbx_min.report) == (
        frozenset({B}),
        True,
    )
    assert found.tpm.boot is not None
    assert found.tpm.boot.loaders is not None
    assert found.tpm.boot.kernels is not None
    assert (found.tpm.boot.loaders.value, found.tpm.boot.kernels.value) == (frozenset({a}), frozenset({b}))
    assert (found.tpm.boot.loaders.report, found.tpm.boot.kernels.report) == (False, True)
    assert found.tpm.firmware is not None
    assert {v: (d.value, d.report) for v, d in found.tpm.firmware.minimum.items()} == {
        "IFX": ((7, 85, 0, 0), True),
        "STM": ((1, 2, 3, 4), False),
    }
    assert found.tpm.firmware.on_blocklist is not None
    assert not found.tpm.firmware.on_blocklist.value


def test_defaults_of_a_member_do_not_come_from_a_reported_policy() -> None:
    """Secure Boot is demanded by whoever speaks of it, in that policy's mode."""
    found = policy("trial", mode="report", secure_boot={"dbx_min": [A]})
    assert found.tpm.secure_boot is not None
    assert found.tpm.secure_boot.required.report
    assert found.tpm.secure_boot.debug_forbidden.report
    assert found.tpm.event_log is not None
    assert found.tpm.event_log.report
    both = compose([policy("wide", secure_boot={"authorities": [A]}), found])
    assert both.tpm.secure_boot is not None
    assert not both.tpm.secure_boot.required.report
    assert both.tpm.event_log is not None
    assert not both.tpm.event_log.report


def test_identity_only_takes_back_what_is_wider() -> None:
    """It compares nothing: an exception for one machine stays one, and what is narrower still counts."""
    assert compose([FLEET, IDENTITY_ONLY]) is IDENTITY_ONLY
    assert compose([IDENTITY_ONLY, FLEET]) is FLEET
    narrow = policy("narrow", pcrs={"0": rule(A)})
    assert compose([FLEET, IDENTITY_ONLY, narrow]) is narrow


def test_a_policy_assigned_twice_speaks_where_it_is_narrowest() -> None:
    """Not where it is widest: what lies between must not win over it."""
    between = policy("between", pcrs={"7": rule(B)})
    found = compose([FLEET, between, FLEET])
    assert found.ref == "between@1+fleet@1"
    assert Failed("pcr7", A, B) in found.tpm.judge({4: a, 7: b})


@pytest.mark.threat("T69")
def test_banks_that_meet_are_a_conflict() -> None:
    """One quote has one bank; a policy that says nothing of PCRs or logs has no bank to conflict with."""
    other = policy("other", bank="sha384", pcrs={"7": rule("dd" * 48)})
    with pytest.raises(PolicyInvalid, match="fleet@1 speaks of the bank sha256, other@1 of sha384"):
        compose([FLEET, other])
    free = policy("free", bank="sha384", firmware={"on_blocklist": "fail"}, assurance={"minimum": "ek-chain"})
    assert compose([FLEET, free]).tpm.selection.to_names() == {"sha256": [4, 7]}
    assert compose([free, other]).tpm.selection.to_names() == {"sha384": [7]}
    for member in (
        {"secure_boot": {"required": True}},
        {"event_log": "required", "firmware": {"min": {"IFX": "1"}}},
    ):
        with pytest.raises(PolicyInvalid, match="speaks of the bank"):
            compose([FLEET, policy("x", bank="sha512", **member)])
    both_free = compose([free, policy("free2", bank="sha512", ek_key_attestation="required")])
    assert list(both_free.tpm.selection.to_names()) == ["sha512"]


def test_it_is_deterministic_and_says_where_everything_comes_from() -> None:
    """The digest is of the effective document, and that holds the digests of its parts."""
    narrow = policy("workers", 3, mode="report", pcrs={"7": rule(B)}, firmware={"min": {"IFX": "7.63"}})
    found = compose([FLEET, narrow])
    assert found.sha256 == hashlib.sha256(found.document).hexdigest()
    assert compose([FLEET, parse_policy(narrow.document)]).document == found.document
    document = effective_document(found)
    assert json.loads(found.document) == document
    assert document == {
        "format": "itl-tpm-effective-policy/1",
        "ref": "fleet@1+workers@3",
        "bank": "sha256",
        "policies": [
            {"policy": "fleet@1", "sha256": FLEET.sha256},
            {"policy": "workers@3", "sha256": narrow.sha256},
        ],
        "pcrs": {"4": rule(A), "7": rule(B)},
        "clock": {"safe": "required"},
        "firmware": {"min": {"IFX": "7.63"}},
        "max_age_seconds": 600,
        "sources": {
            "clock.safe": {"policy": "fleet@1", "mode": "enforce"},
            "firmware.min.IFX": {"policy": "workers@3", "mode": "report"},
            "max_age_seconds": {"policy": "fleet@1", "mode": "enforce"},
            "pcrs.4": {"policy": "fleet@1", "mode": "enforce"},
            "pcrs.7": {"policy": "workers@3", "mode": "report"},
        },
    }


def test_one_policy_has_an_effective_document_too() -> None:
    """The same members, so that who reads it need not ask whether there is more than one."""
    narrow = policy("workers", 3, mode="report", pcrs={"7": rule(B)})
    assert effective_document(narrow) == {
        "format": "itl-tpm-effective-policy/1",
        "ref": "workers@3",
        "bank": "sha256",
        "policies": [{"policy": "workers@3", "sha256": narrow.sha256}],
        "pcrs": {"7": rule(B)},
        "sources": {"pcrs.7": {"policy": "workers@3", "mode": "report"}},
    }
    silent = {"format": "itl-policy/2", "name": "silent", "version": 1, "assurance": {"minimum": "tofu"}}
    shown = effective_document(parse_policy(silent))
    assert (shown["bank"], shown["pcrs"], shown["assurance"]) == ("sha256", {}, {"minimum": "tofu"})


def test_an_interval_follows_the_age_that_another_policy_shortens() -> None:
    """Trust that always ends before the next quote would be an outage that no policy demands."""
    slow = policy("slow", pcrs={"7": rule(A)}, reattest_seconds=400, max_age_seconds=600)
    assert compose([slow, policy("short", pcrs={"4": rule(A)}, max_age_seconds=100)]).reattest_seconds == 50
    assert compose([slow, policy("long", pcrs={"4": rule(A)}, max_age_seconds=900)]).reattest_seconds == 400
    assert compose([slow, policy("quick", pcrs={"4": rule(A)}, reattest_seconds=60)]).reattest_seconds == 60


def test_the_minimum_of_assurance() -> None:
    """Stated, or the default of the role; one that is only reported never replaces the default."""
    free = policy("free", assurance={"minimum": "tofu"})
    for role, level in (
        ("controlplane", Assurance.EK_CHAIN),
        ("worker-app", Assurance.TOFU),
        (None, Assurance.TOFU),
    ):
        assert FLEET.assurance_minimum(role) is level
        assert free.assurance_minimum(role) is Assurance.TOFU
        assert compose([FLEET, free]).assurance_minimum(role) is Assurance.TOFU
        reported = policy("free", mode="report", assurance={"minimum": "none"})
        assert reported.assurance_minimum(role) is level


def test_what_cannot_be_composed() -> None:
    """Nothing, too much, and what is composed already."""
    for several in ([], [policy(f"p{n}", pcrs={"7": rule(A)}) for n in range(9)]):
        with pytest.raises(PolicyInvalid, match="1 to 8"):
            compose(several)
    with pytest.raises(PolicyInvalid, match="composed already"):
        compose([compose([FLEET, policy("x", pcrs={"1": rule(A)})]), policy("y", pcrs={"1": rule(A)})])


# Roles under dual control

ROLE = "controlplane"


def guarded(*parts: tuple[Policy, bool]) -> Policy:
    """Return what these demand of a control plane, each with whether several agreed to it."""
    return compose_guarded([each for each, _ in parts], [agreed for _, agreed in parts], ROLE)


def test_one_operator_alone_lowers_no_minimum() -> None:
    """Neither below the role's own, nor below what several agreed on; by saying so, nor by taking everything back."""
    weak, strict = (
        policy("weak", assurance={"minimum": "tofu"}),
        policy("strict", assurance={"minimum": "ek-allowlist"}),
    )
    assert compose([weak]).assurance_minimum(ROLE) is Assurance.TOFU
    assert guarded((weak, False)).assurance_minimum(ROLE) is Assurance.EK_CHAIN
    assert guarded((strict, True), (weak, False)).assurance_minimum(ROLE) is Assurance.EK_ALLOWLIST
    assert guarded((strict, True), (IDENTITY_ONLY, False)).assurance_minimum(ROLE) is Assurance.EK_ALLOWLIST
    # Several may; and one may demand more.
    assert guarded((weak, True)).assurance_minimum(ROLE) is Assurance.TOFU
    assert guarded((strict, True), (weak, True)).assurance_minimum(ROLE) is Assurance.TOFU
    assert guarded((strict, False)).assurance_minimum(ROLE) is Assurance.EK_ALLOWLIST
    assert guarded((weak, True), (strict, False)).assurance_minimum(ROLE) is Assurance.TOFU


def test_one_operator_alone_takes_no_rule_back() -> None:
    """What several agreed on stands, however narrow the place is where one said otherwise."""
    agreed, alone = (
        policy("agreed", pcrs={"7": rule(A)}),
        policy("alone", pcrs={"7": rule(B), "1": rule(C)}),
    )
    found = guarded((agreed, True), (alone, False))
    assert found.ref == "alone@1+agreed@1"
    sources = {path: source.policy for path, source in found.sources.items() if path.startswith("pcrs.")}
    assert sources == {"pcrs.7": "agreed@1", "pcrs.1": "alone@1"}
    assert guarded((agreed, True), (IDENTITY_ONLY, False)) == agreed
    # That nothing is compared was agreed on: one may still compare.
    assert guarded((IDENTITY_ONLY, True), (alone, False)).tpm.rules == alone.tpm.rules
    assert guarded() == guarded((IDENTITY_ONLY, False)) == guarded((IDENTITY_ONLY, True)) == IDENTITY_ONLY


def test_one_operator_alone_prolongs_no_trust() -> None:
    """Nor lets padded logs pass; shorter and stricter is heard."""
    members: dict[str, Any] = {
        "max_age_seconds": 86_400,
        "reattest_seconds": 40_000,
        "log_padding": "accepted",
    }
    long = policy("long", pcrs={"7": rule(A)}, **members)
    found = guarded((long, False))
    assert (found.max_age_seconds, found.tpm.log_padding_accepted) == (IDENTITY_ONLY.max_age_seconds, False)
    assert found.reattest_seconds is not None
    assert found.reattest_seconds <= found.max_age_seconds
    agreed = guarded((long, True))
    assert (agreed.max_age_seconds, agreed.tpm.log_padding_accepted) == (86_400, True)
    short = policy("short", pcrs={"4": rule(A)}, max_age_seconds=60)
    assert guarded((policy("none", pcrs={"7": rule(A)}), True), (short, False)).max_age_seconds == 60


def test_what_was_strengthened_is_in_the_document() -> None:
    """Who asks what a machine is measured against sees it, with its source, also of one policy alone."""
    weak = policy("weak", assurance={"minimum": "tofu"})
    found = guarded((weak, False))
    document = effective_document(found)
    assert document["assurance"] == {"minimum": "ek-chain"}
    sources = document["sources"]
    assert isinstance(sources, dict)
    assert sources["assurance.minimum"] == {"policy": "identity-only@1", "mode": "enforce"}
    assert document["policies"] == [{"policy": "weak@1", "sha256": weak.sha256}]


@pytest.mark.threat("T147")
@given(
    levels=st.lists(st.tuples(st.sampled_from([None, *Assurance]), st.booleans(), st.booleans()), max_size=4)
)
def test_whatever_one_operator_assigns_lowers_nothing(
    levels: list[tuple[Assurance | None, bool, bool]],
) -> None:
    """For any places, any levels, reported or not, any of them agreed on."""
    parts = []
    for number, (level, report, agreed) in enumerate(levels):
        members: dict[str, Any] = {} if level is None else {"assurance": {"minimum": level.value}}
        members |= {"mode": "report"} if report else {}
        # Longer trust and padded logs, wherever the level is not stated.
        members |= {"max_age_seconds": 3600, "log_padding": "accepted"} if level is None else {}
        parts.append((policy(f"p{number}", pcrs={"7": rule(A)}, **members), agreed))
    together = [each for each, agreed in parts if agreed] or [IDENTITY_ONLY]
    found, base = guarded(*parts), compose(together)
    assert found.assurance_minimum(ROLE).level >= base.assurance_minimum(ROLE).level
    assert found.max_age_seconds <= base.max_age_seconds
    assert base.tpm.log_padding_accepted or not found.tpm.log_padding_accepted
