"""EAR: what we write, and that the reader refuses whatever breaks a rule of the profile."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attestation.appraisal import recalled
from attestation.errors import ResultTokenRejected
from attestation.results import (
    Assurance,
    AttestationResult,
    Failed,
    Flagged,
    Outcome,
    Passed,
    Reported,
    Subject,
    Undecided,
    conclude,
)
from attestation.results.ar4si import Tier, TrustClaim
from attestation.results.ear import TYP, Profile, ear_claims, parse_ear, policy_ids, ueid

AT = datetime(2026, 11, 21, tzinfo=UTC)
NONCE = "b3IgdGhpcnR5LXR3byByYW5kb20gYnl0ZXMgaGVyZSE="
BOOT = (Subject.BOOT_LOADER, Subject.KERNEL, Subject.INITRD, Subject.COMMAND_LINE)
EVERY: tuple[Outcome, ...] = (
    Passed("tpm-quote"),
    Passed("clock"),
    Passed("pcr4"),
    Failed("pcr7", "aa", "bb"),
    Flagged("reboot", "1 -> 2"),
    Reported("pcr0", "aa", "bb"),
    Undecided("event-log", "not sent"),
)


def made(
    *outcomes: Outcome,
    appraised: tuple[Subject, ...] = BOOT,
    policy: str | None = "fleet@1+workers@3",
    **more: Any,
) -> Any:
    result = AttestationResult(
        verdict=conclude(outcomes),
        at=AT,
        policy=policy,
        outcomes=tuple(map(recalled, outcomes)),
        boot_state_appraised=appraised,
        pcr_digest=more.pop("pcr_digest", "00" * 32),
    )
    return ear_claims(
        result,
        machine_id="7a0e3c1e-6a43-4c5b-9d0a-000000000001",
        ek_fingerprint="ab" * 48,
        nonce=NONCE,
        issuer="https://attestation.example",
        expires_at=AT + timedelta(seconds=180),
        build="0.1.0",
        **{"assurance": Assurance.EK_CHAIN, **more},
    )


GOOD = made(Passed("tpm-quote"), Passed("pcr4"))
UEID = "Aaurq6urq6urq6urq6urq6urq6urq6urq6urq6urq6ur"


def test_the_draft_profile() -> None:
    """Every member of the -04 profile, under its name; the node's own token names no check."""
    assert made(Passed("tpm-quote"), Passed("pcr4"), policy_sha256="11" * 32) == {
        "eat_profile": "tag:ietf.org,2026:rats/ear#04",
        "iss": "https://attestation.example",
        "sub": "7a0e3c1e-6a43-4c5b-9d0a-000000000001",
        "iat": 1_795_219_200,
        "exp": 1_795_219_380,
        "eat_nonce": NONCE,
        "ear_verifier_id": {"developer": "itl-attestation", "build": "0.1.0"},
        "submods": {
            "tpm": {
                "ear_status": "affirming",
                "ear_trustworthiness_vector": {"instance-identity": 2, "executables": 3, "hardware": 2},
                "ear_appraisal_policy_ids": [
                    "fleet@1",
                    "workers@3",
                    "ni:///sha-256;ERERERERERERERERERERERERERERERERERERERERERE",
                ],
                "ear_attester_claims": {"ueid": UEID, "ek_fingerprint": "ab" * 48, "pcr_digest": "00" * 32},
                "ear_verifier_claims": {
                    "verdict": "Verified",
                    "assurance": "ek-chain",
                    "boot_state_appraised": ["boot-loader", "kernel", "initrd", "command-line"],
                },
            }
        },
    }
    assert TYP == "eat+jwt"


def test_the_profile_of_2023() -> None:
    """The older profile says the same under its own names, and has one text for the policy."""
    claims = made(Passed("tpm-quote"), profile=Profile.VERAISON_2023, appraised=(), policy_sha256="11" * 32)
    assert claims["eat_profile"] == "tag:github.com,2023:veraison/ear"
    assert claims["ear.verifier-id"] == {"developer": "itl-attestation", "build": "0.1.0"}
    assert claims["submods"]["tpm"] == {
        "ear.status": "affirming",
        "ear.trustworthiness-vector": {"instance-identity": 2, "hardware": 2},
        "ear.appraisal-policy-id": "fleet@1+workers@3",
        "ear.veraison.annotated-evidence": {
            "ueid": UEID,
            "ek_fingerprint": "ab" * 48,
            "pcr_digest": "00" * 32,
        },
        "ear.veraison.policy-claims": {
            "verdict": "Verified",
            "assurance": "ek-chain",
            "boot_state_appraised": [],
        },
    }
    assert parse_ear(claims).submods["tpm"].policies == ("fleet@1+workers@3",)


@pytest.mark.threat("T76")
def test_checks_are_told_only_where_asked() -> None:
    """A node carries its token and is not told what failed; an operator's token names every check."""
    assert "pcr7" not in json.dumps(made(*EVERY))
    told = made(*EVERY, tell_checks=True)["submods"]["tpm"]["ear_verifier_claims"]["checks"]
    assert told == [
        {"code": "tpm-quote", "outcome": "passed"},
        {"code": "clock", "outcome": "passed"},
        {"code": "pcr4", "outcome": "passed"},
        {"code": "pcr7", "outcome": "failed"},
        {"code": "reboot", "outcome": "flagged"},
        {"code": "pcr0", "outcome": "reported"},
        {"code": "event-log", "outcome": "undecided"},
    ]
    # Expected and found values are for the service's own pages: a token travels.
    assert all(set(check) == {"code", "outcome"} for check in told)


def test_what_is_not_known_is_left_out() -> None:
    """No policy, no digest, no claim: no member, rather than an empty one."""
    submodule = made(appraised=(), policy=None, pcr_digest=None, assurance=Assurance.NONE)["submods"]["tpm"]
    assert submodule == {
        "ear_status": "none",
        "ear_attester_claims": {"ueid": UEID, "ek_fingerprint": "ab" * 48},
        "ear_verifier_claims": {
            "verdict": "Indeterminate",
            "assurance": "none",
            "boot_state_appraised": [],
        },
    }


def test_policy_ids_and_ueid() -> None:
    """Policies by name, widest first, then by digest; a UEID is 33 bytes of type 01."""
    assert policy_ids("a@1", None) == ("a@1",)
    assert policy_ids("a@1+b@22", None) == ("a@1", "b@22")
    assert policy_ids("a@1", None, "ni:///sha-384;x") == ("a@1", "ni:///sha-384;x")
    assert ueid("ab" * 48) == UEID
    assert len(UEID) == 44


@pytest.mark.parametrize("profile", Profile)
@pytest.mark.parametrize("outcomes", [EVERY, EVERY[:3], EVERY[:2], EVERY[-1:], ()])
def test_what_is_written_is_read(profile: Profile, outcomes: tuple[Outcome, ...]) -> None:
    """The reader sees what was meant, in both profiles."""
    claims = made(*outcomes, profile=profile, tell_checks=True)
    ear = parse_ear(claims)
    assert (ear.profile, ear.issuer, ear.subject) == (profile, "https://attestation.example", claims["sub"])
    assert (ear.issued_at, ear.expires_at) == (AT, AT + timedelta(seconds=180))
    assert (ear.nonce, ear.developer, ear.build) == (NONCE, "itl-attestation", "0.1.0")
    submodule = ear.submods["tpm"]
    assert ear.status is submodule.status
    assert submodule.attester["ek_fingerprint"] == "ab" * 48
    assert submodule.verifier["verdict"] == conclude(outcomes).value
    assert "+".join(submodule.policies) == "fleet@1+workers@3"


def change(path: str, value: object) -> Callable[[dict[str, Any]], None]:
    def apply(claims: dict[str, Any]) -> None:
        *parents, last = path.split("/")
        for parent in parents:
            claims = claims[parent]
        claims[last] = value

    return apply


def remove(path: str) -> Callable[[dict[str, Any]], None]:
    def apply(claims: dict[str, Any]) -> None:
        *parents, last = path.split("/")
        for parent in parents:
            claims = claims[parent]
        del claims[last]

    return apply


VECTOR = "submods/tpm/ear_trustworthiness_vector"
STATUS = "submods/tpm/ear_status"
POLICIES = "submods/tpm/ear_appraisal_policy_ids"
BREAKS: list[tuple[Callable[[dict[str, Any]], None], str]] = [
    (remove("eat_profile"), "eat_profile"),
    (change("eat_profile", "tag:ietf.org,2026:rats/ear#05"), "eat_profile is none"),
    (change("eat_profile", 4), "eat_profile"),
    (remove("iat"), "iat"),
    (change("iat", 1_795_219_200.0), "iat"),
    (change("iat", True), "iat"),
    (change("iat", 0), "iat"),
    (change("iat", "1795219200"), "iat"),
    (change("iat", 253_402_300_800), "iat"),
    (remove("exp"), "exp"),
    (change("exp", 1_795_219_200), "exp is not later"),
    (change("exp", 1e400), "exp"),
    (remove("eat_nonce"), "eat_nonce"),
    (change("eat_nonce", "1234567"), "eat_nonce has 7"),
    (change("eat_nonce", "1" * 89), "eat_nonce has 89"),
    (change("eat_nonce", [NONCE]), "eat_nonce"),
    (remove("iss"), "iss"),
    (change("iss", ""), "iss"),
    (remove("sub"), "sub"),
    (remove("ear_verifier_id"), "ear_verifier_id"),
    (change("ear_verifier_id", "itl"), "ear_verifier_id"),
    (remove("ear_verifier_id/developer"), "developer"),
    (remove("ear_verifier_id/build"), "build"),
    (remove("submods"), "submods"),
    (change("submods", {}), "submods is empty"),
    (change("submods", []), "submods"),
    (change("submods/tpm", "affirming"), "tpm"),
    (change("submods/cpu0", {}), "ear_status"),
    (remove(STATUS), "ear_status"),
    (change(STATUS, "good"), "no trustworthiness tier"),
    (change(STATUS, 2), "ear_status"),
    (change(VECTOR, {}), "vector is empty"),
    (change(VECTOR, None), "vector"),
    (change(f"{VECTOR}/executables", 0), "executables is 0"),
    (change(f"{VECTOR}/executables", 128), "executables is no number"),
    (change(f"{VECTOR}/executables", -129), "executables is no number"),
    (change(f"{VECTOR}/executables", True), "executables is no number"),
    (change(f"{VECTOR}/executables", "3"), "executables is no number"),
    (change(f"{VECTOR}/itl-mood", 2), "does not know"),
    (change(f"{VECTOR}/executables", 33), "a claim is warning"),
    (change(f"{VECTOR}/executables", 99), "a claim is contraindicated"),
    (change(f"{VECTOR}/executables", 1), "a claim is none"),
    (change(POLICIES, []), "policy identifiers"),
    (change(POLICIES, "fleet@1"), "policy identifiers"),
    (change(POLICIES, [1]), "policy identifier"),
    (change(POLICIES, [""]), "policy identifier"),
    (change("submods/tpm/ear_attester_claims", []), "ear_attester_claims"),
    (change("submods/tpm/ear_verifier_claims", 1), "ear_verifier_claims"),
]


@pytest.mark.threat("T76")
@pytest.mark.parametrize(("break_it", "why"), BREAKS)
def test_whatever_breaks_a_rule_is_refused(break_it: Callable[[dict[str, Any]], None], why: str) -> None:
    """Each rule of CONFIDENTIAL §12.1, broken alone, is refused with its name."""
    claims = copy.deepcopy(GOOD)
    break_it(claims)
    with pytest.raises(ResultTokenRejected, match=why):
        parse_ear(claims)


@pytest.mark.parametrize("length", [8, 88])
def test_the_shortest_and_the_longest_nonce(length: int) -> None:
    """8 and 88 characters are still a nonce."""
    assert parse_ear(GOOD | {"eat_nonce": "n" * length}).nonce == "n" * length


def test_members_that_we_do_not_know_are_passed_over() -> None:
    """EAR §3: a receiver ignores unknown claims; and a submodule may say nothing but its status."""
    claims = GOOD | {"ear_raw_evidence": ["x", "y"], "submods": {"gpu0": {"ear_status": "none", "more": 1}}}
    submodule = parse_ear(claims).submods["gpu0"]
    assert (submodule.status, submodule.vector, submodule.policies) == (Tier.NONE, {}, ())
    assert (submodule.attester, submodule.verifier) == ({}, {})


def test_a_worse_status_than_the_claims_is_believed() -> None:
    """A verifier may know more than its vector says; several submodules are as good as the worst."""
    claims = copy.deepcopy(GOOD)
    claims["submods"]["gpu0"] = {
        "ear_status": "contraindicated",
        "ear_trustworthiness_vector": {"hardware": 2},
    }
    ear = parse_ear(claims)
    assert ear.status is Tier.CONTRAINDICATED
    assert ear.submods["gpu0"].vector == {TrustClaim.HARDWARE: 2}


@pytest.mark.threat("T76")
def test_what_the_reader_refuses_is_never_written() -> None:
    """A result that would expire before it is made does not become a token."""
    with pytest.raises(ResultTokenRejected):
        ear_claims(
            AttestationResult(
                verdict=conclude([]),
                at=AT,
                policy=None,
                outcomes=(),
                boot_state_appraised=(),
                pcr_digest=None,
            ),
            machine_id="x",
            ek_fingerprint="ab" * 48,
            assurance=Assurance.NONE,
            nonce=NONCE,
            issuer="https://attestation.example",
            expires_at=AT,
            build="0.1.0",
        )


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
_PLACES = (
    *("eat_profile", "iat", "exp", "eat_nonce", "iss", "sub", "ear_verifier_id", "submods", "submods/tpm"),
    *(STATUS, VECTOR, f"{VECTOR}/hardware", POLICIES),
)


@given(st.sampled_from(_PLACES), _JSON)
def test_the_reader_fails_in_one_way_only(place: str, value: object) -> None:
    """Whatever stands anywhere, a caller sees a result whose status is no better than its claims, or the error."""
    claims = copy.deepcopy(GOOD)
    change(place, value)(claims)
    try:
        ear = parse_ear(claims)
    except ResultTokenRejected:
        return
    assert ear.submods
    for submodule in ear.submods.values():
        assert 0 not in submodule.vector.values()
