"""The judgement over one machine's evidence, from signed bytes to a verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

import pytest

from attestation import appraisal as heart
from attestation.appraisal import Appraisal, Case
from attestation.appraisal.tpm import Expected, Found, UnverifiedEvidence, found_in, no_advisories
from attestation.appraisal.tpm.identity import firmware_words, judge_clock, keys_of
from attestation.appraisal.tpm.kind import BOOT_STATE_NOT_APPRAISED
from attestation.errors import ChallengeMismatch, PCRDigestMismatch, SignatureInvalid
from attestation.evidence import tpm_quote
from attestation.machines import ClockState, NodeEvent, Role
from attestation.reference import IDENTITY_ONLY, Policy, compose, parse_policy
from attestation.reference.blocks import BLOCKS
from attestation.results import (
    Assurance,
    Failed,
    Flagged,
    Outcome,
    Passed,
    Reported,
    Subject,
    Undecided,
    Verdict,
)
from attestation.results.ar4si import TrustClaim
from attestation.results.vector import trust_vector
from attestation.tpm import PCRSelection
from tests.contract.toy_kind import TOY, TOY_BLOCK
from tests.vectors import forge

AT = datetime(2026, 11, 21, tzinfo=UTC)
SHA256 = forge.SHA256
LONE_SEPARATOR = bytes.fromhex("3d458cfe55cc03ea1f443f1562beec8df51c75e14a9fcf9a7234a13f198e7969")
VALUES = {SHA256: {i: forge.PCRS[i] for i in forge.SELECTED}}


def policy(version: int = 1, clock: str = "flag", **pcrs: object) -> Policy:
    rules = pcrs or {"p7": {"any_of": [forge.PCRS[7].hex()]}}
    return parse_policy(
        {
            "format": "itl-tpm-policy/1",
            "name": "workers",
            "version": version,
            "bank": "sha256",
            "pcrs": {name[1:]: rule for name, rule in rules.items()},
            "clock": {"safe": clock},
        }
    )


def case(policy: Policy | None, clock: ClockState | None = None, requested: str | None = None) -> Case:
    expected = Expected(
        ak_public=forge.AKS["p256"].public,
        ek_public=forge.ek_public("L-2"),
        challenge=forge.NONCE,
        selection=PCRSelection.from_names({"sha256": forge.SELECTED}),
        clock=clock,
        ek_vendor=None,
        event_log_requested=False,
        ek_certification_requested=False,
        firmware_attested=None,
        firmware=no_advisories,
    )
    return Case(
        expected={"tpm": expected},
        requested_policy=requested or (policy.ref if policy else "workers@1"),
        policy=policy,
        assurance=Assurance.EK_CHAIN,
        role=Role.WORKER_APP,
    )


def knowing(case: Case, **changes: object) -> Case:
    """Return *case* with other things known of the TPM."""
    return replace(case, expected={"tpm": replace(case.expected["tpm"], **changes)})


def appraise(evidence: UnverifiedEvidence, case: Case, at: datetime) -> Appraisal:
    return heart.appraise({"tpm": evidence}, case, at)


def news(appraisal: Appraisal) -> tuple[bool, bool]:
    found = found_in(appraisal)
    return NodeEvent.REBOOTED in found.events, NodeEvent.FIRMWARE_CHANGED in found.events


def evidence(values: dict[int, dict[int, bytes]] = VALUES, **fault: object) -> UnverifiedEvidence:
    return made(tpm_quote.parse(*forge.quote("p256", **fault)), values)  # type: ignore[arg-type]  # passed on


def made(
    quote: tpm_quote.UnverifiedQuote, values: dict[int, dict[int, bytes]] = VALUES
) -> UnverifiedEvidence:
    return UnverifiedEvidence(quote=quote, pcr_values=values)


def judged(appraisal: Appraisal) -> dict[str, str]:
    return {o.check: type(o).__name__ for o in appraisal.result.outcomes}


BEFORE = ClockState(
    clock_ms=123_000, reset_count=7, restart_count=2, safe=True, firmware_version=forge.FIRMWARE
)
NOW = replace(BEFORE, clock_ms=123_456)


def test_good_evidence_under_a_policy_that_holds() -> None:
    """Verified, with every check, the digest, the new clock state, and no news."""
    found = appraise(evidence(), case(policy(), BEFORE), AT)
    assert found.result.verdict is Verdict.VERIFIED
    assert found.result.outcomes == (
        Passed("tpm-quote"),
        Passed("clock"),
        Passed("assurance", "ek-chain, at least tofu needed"),
        Passed("pcr7"),
    )
    assert (found.result.at, found.result.policy) == (AT, "workers@1")
    assert found.result.boot_state_appraised == (Subject.SECURE_BOOT_SETTINGS,)
    assert found.result.pcr_digest == forge.pcr_digest(SHA256, [forge.PCRS[i] for i in forge.SELECTED]).hex()
    assert found.error is None
    told = found_in(found)
    assert told.claims.pcrs == VALUES
    assert told == Found(told.claims, NOW, (), found.result.pcr_digest or "")


def test_a_value_that_the_policy_does_not_accept() -> None:
    """Failed, not refused: the evidence is authentic, the state is not expected; expected and found are kept."""
    found = appraise(
        evidence(), case(policy(p7={"any_of": ["00" * 32]}, p4={"any_of": [forge.PCRS[4].hex()]})), AT
    )
    assert found.result.verdict is Verdict.FAILED
    assert found.error is None
    assert found.result.failed == (Failed("pcr7", "00" * 32, forge.PCRS[7].hex()),)
    assert Passed("pcr4") in found.result.outcomes
    assert found.result.boot_state_appraised == (Subject.BOOT_LOADER,)


def test_a_pcr_that_was_not_quoted_fails() -> None:
    """The rule asks for PCR 9, the challenge did not: absent is Failed, never skipped."""
    found = appraise(evidence(), case(policy(p9={"any_of": [forge.PCRS[9].hex()]})), AT)
    assert found.result.failed == (Failed("pcr9", forge.PCRS[9].hex(), "absent"),)


def test_a_policy_of_a_bank_that_was_not_quoted_fails() -> None:
    """Every rule, by name."""
    other = parse_policy(
        {
            "format": "itl-tpm-policy/1",
            "name": "workers",
            "version": 1,
            "bank": "sha384",
            "pcrs": {"7": {"any_of": ["00" * 48]}},
        }
    )
    found = appraise(evidence(), case(other), AT)
    assert found.result.failed == (Failed("pcr7", "00" * 48, "absent"),)


def test_an_ignored_pcr_is_said() -> None:
    """Whatever its value, a flag with the reason stands in the result."""
    applied = policy(p7={"any_of": [forge.PCRS[7].hex()]}, p1={"ignore": "serial numbers"})
    found = appraise(evidence(), case(applied), AT)
    assert found.result.verdict is Verdict.VERIFIED
    assert Flagged("pcr1", "ignored: serial numbers") in found.result.outcomes


def test_identity_only_says_that_the_boot_state_was_not_appraised() -> None:
    """Verified, and no claim about what runs."""
    found = appraise(evidence(), case(IDENTITY_ONLY), AT)
    assert found.result.verdict is Verdict.VERIFIED
    assert Flagged("boot-state", "boot state not appraised") in found.result.outcomes
    assert not found.result.boot_state_appraised


def test_a_kind_that_is_demanded_and_not_expected_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of such a kind nothing holds."""
    monkeypatch.setitem(BLOCKS, TOY.name, TOY_BLOCK)
    document = {"format": "itl-policy/2", "name": "p", "version": 1, TOY.name: {"minimum": 0}}
    found = appraise(evidence(), case(parse_policy(document)), AT)
    assert judged(found)["evidence"] == "Failed"


def test_no_policy_is_indeterminate() -> None:
    """Never Verified: nobody said what is expected."""
    found = appraise(evidence(), case(None), AT)
    assert found.result.verdict is Verdict.INDETERMINATE
    assert Undecided("policy", "no policy applies to this machine") in found.result.outcomes
    assert (found.result.policy, found.result.boot_state_appraised, found.error) == (None, (), None)


@pytest.mark.parametrize("now", [policy(2), IDENTITY_ONLY])
def test_a_policy_replaced_meanwhile_is_indeterminate(now: Policy) -> None:
    """The challenge was asked under another policy: nothing is decided, not even where its rules would hold."""
    found = appraise(evidence(), case(now, requested="workers@1"), AT)
    assert found.result.verdict is Verdict.INDETERMINATE
    assert judged(found)["policy"] == "Undecided"
    assert "pcr7" not in judged(found)
    assert not found.result.boot_state_appraised


@pytest.mark.parametrize(
    ("fault", "values", "error"),
    [
        ({"nonce": bytes(32)}, VALUES, ChallengeMismatch),
        ({}, {SHA256: {**VALUES[SHA256], 0: bytes(32)}}, PCRDigestMismatch),
    ],
)
def test_evidence_that_proves_nothing_ends_the_appraisal(
    fault: dict[str, object], values: dict[int, dict[int, bytes]], error: type[Exception]
) -> None:
    """One Failed check with the code for operators, no claims, no clock; nothing else was judged."""
    found = appraise(evidence(values, **fault), case(policy(), BEFORE), AT)
    assert isinstance(found.error, error)
    assert found.found == {}
    assert found.result.verdict is Verdict.FAILED
    assert judged(found) == {"tpm-quote": "Failed"}
    assert not found.result.boot_state_appraised
    assert found.result.pcr_digest is None
    assert found.result.failed[0].found.startswith(found.error.code)


def test_a_bad_signature_ends_the_appraisal_before_anything_is_read() -> None:
    """CVE-2023-3674: no later check can make up for it."""
    quote = tpm_quote.parse(forge.quote("p256")[0], forge.quote("p256", clock=9)[1])
    found = appraise(made(quote), case(policy()), AT)
    assert isinstance(found.error, SignatureInvalid)
    assert judged(found) == {"tpm-quote": "Failed"}


# ---------------------------------------------------------------- clock (N78-N81)


@pytest.mark.threat("T77")
@pytest.mark.parametrize(
    ("now", "before", "checks"),
    [
        (NOW, None, {"clock": Passed}),
        (NOW, BEFORE, {"clock": Passed}),
        (NOW, NOW, {"clock": Passed}),
        (replace(NOW, reset_count=6, clock_ms=10**9), BEFORE, {"clock-regressed": Failed}),
        (replace(NOW, reset_count=6, restart_count=9), BEFORE, {"clock-regressed": Failed}),
        (replace(NOW, restart_count=1, clock_ms=10**9), BEFORE, {"clock-regressed": Failed}),
        (replace(NOW, clock_ms=122_999), BEFORE, {"clock-regressed": Failed}),
        (replace(NOW, reset_count=0, restart_count=0), BEFORE, {"clock-regressed": Failed}),
        (replace(NOW, reset_count=8, restart_count=0), BEFORE, {"clock": Passed, "reboot": Flagged}),
        (replace(NOW, reset_count=8, clock_ms=0), BEFORE, {"clock": Passed, "reboot": Flagged}),
        (replace(NOW, restart_count=3, clock_ms=0), BEFORE, {"clock": Passed}),
        (replace(NOW, safe=False), BEFORE, {"clock": Passed, "clock-safe": Flagged}),
        (replace(NOW, safe=False, clock_ms=0), BEFORE, {"clock": Passed, "clock-safe": Flagged}),
        (replace(NOW, clock_ms=0), replace(BEFORE, safe=False), {"clock": Passed}),
        (replace(NOW, safe=False, reset_count=6), BEFORE, {"clock-regressed": Failed, "clock-safe": Flagged}),
        (
            replace(NOW, firmware_version=forge.FIRMWARE - 1),
            BEFORE,
            {"clock": Passed, "firmware-regressed": Failed},
        ),
        (replace(NOW, firmware_version=0), BEFORE, {"clock": Passed, "firmware-regressed": Failed}),
        (
            replace(NOW, firmware_version=forge.FIRMWARE + 1),
            BEFORE,
            {"clock": Passed, "firmware-changed": Flagged},
        ),
    ],
)
def test_n78_to_n81_clock_and_counters(
    now: ClockState, before: ClockState | None, checks: dict[str, type]
) -> None:
    """TPM.md §4.2: back is Failed, a reset is a reboot, an unsafe clock is flagged and decides nothing itself."""
    assert {o.check: type(o) for o in judge_clock(now, before, safe_required=False)} == checks


def test_an_unsafe_clock_fails_where_the_policy_demands() -> None:
    """`clock.safe=required`, before and after the first evidence."""
    for before in (None, BEFORE):
        outcomes = judge_clock(replace(NOW, safe=False), before, safe_required=True)
        assert Failed("clock-safe", "a safe clock", "unsafe: it may have gone back") in outcomes
    found = appraise(evidence(safe=0), case(policy(clock="required")), AT)
    assert found.result.verdict is Verdict.FAILED
    assert appraise(evidence(safe=0), case(policy()), AT).result.verdict is Verdict.VERIFIED


@pytest.mark.parametrize(
    ("n", "header", "check"),
    [
        ("n78", {"reset": 6}, "clock-regressed"),
        ("n79", {"restart": 1}, "clock-regressed"),
        ("n80", {"clock": 122_999}, "clock-regressed"),
        ("n81", {"firmware": forge.FIRMWARE - 1}, "firmware-regressed"),
    ],
)
@pytest.mark.parametrize("applied", [policy(), IDENTITY_ONLY])
def test_n78_to_n81_a_signed_step_back_is_failed(
    n: str, header: dict[str, Any], check: str, applied: Policy
) -> None:
    """Truly signed, fresh, with the expected PCRs: still Failed, under every policy."""
    found = appraise(evidence(**header), case(applied, BEFORE), AT)
    assert found.result.verdict is Verdict.FAILED
    assert [o.check for o in found.result.failed] == [check]


def test_news_of_reboot_and_firmware() -> None:
    """Both are told apart, and told only where something was known before."""
    found = appraise(evidence(), case(policy(), replace(BEFORE, reset_count=6)), AT)
    assert news(found) == (True, False)
    found = appraise(evidence(), case(policy(), replace(BEFORE, firmware_version=1)), AT)
    assert news(found) == (False, True)
    found = appraise(evidence(), case(policy()), AT)
    assert news(found) == (False, False)


def test_firmware_that_is_not_claimed_counts_as_none() -> None:
    """A signer outside the endorsement hierarchy: version 0, lower than any that was known."""
    found = appraise(evidence(signer=b"\0\x0b" + bytes(32)), case(policy(), BEFORE), AT)
    assert found_in(found).clock.firmware_version == 0
    assert [o.check for o in found.result.failed] == ["firmware-regressed"]


def test_firmware_in_words() -> None:
    """Four decimal words of sixteen bits."""
    assert firmware_words(0x2019_1023_0016_3636) == "8217.4131.22.13878"


# ---------------------------------------------------------------- who vouches, and for which firmware (TPM.md §§6, 7)


def stating(mode: str = "enforce", **members: Any) -> Policy:
    return parse_policy(
        {
            "format": "itl-tpm-policy/1",
            "name": "workers",
            "version": 1,
            "bank": "sha256",
            "mode": mode,
            "pcrs": {"7": {"any_of": [forge.PCRS[7].hex()]}},
            **members,
        }
    )


@pytest.mark.parametrize(
    ("found", "role", "minimum", "passes"),
    [
        (Assurance.EK_CHAIN, Role.CONTROLPLANE, None, True),
        (Assurance.EK_ALLOWLIST, Role.CONTROLPLANE, None, True),
        (Assurance.AK_CERTIFIED, Role.CONTROLPLANE, None, False),
        (Assurance.TOFU, Role.CONTROLPLANE, None, False),
        (Assurance.TOFU, Role.WORKER_APP, None, True),
        (Assurance.TOFU, None, None, True),
        (Assurance.NONE, Role.WORKER_APP, None, False),
        (Assurance.NONE, None, None, False),
        (Assurance.TOFU, Role.CONTROLPLANE, "tofu", True),
        (Assurance.TOFU, Role.WORKER_APP, "ak-certified", False),
        (Assurance.NONE, Role.WORKER_APP, "none", True),
    ],
)
def test_the_minimum_assurance(
    found: Assurance, role: Role | None, minimum: str | None, passes: bool
) -> None:
    """A control plane needs a vendor's chain, others an activation, unless the policy says otherwise."""
    members: dict[str, Any] = {"assurance": {"minimum": minimum}} if minimum else {}
    applied = stating(**members)
    judgement = appraise(evidence(), replace(case(applied), assurance=found, role=role), AT)
    outcome = next(o for o in judgement.result.outcomes if o.check == "assurance")
    if passes:
        assert isinstance(outcome, Passed)
        assert judgement.result.verdict is Verdict.VERIFIED
    else:
        needed = minimum or ("ek-chain" if role is Role.CONTROLPLANE else "tofu")
        assert outcome == Failed("assurance", f"at least {needed}", found.value)
        assert judgement.result.verdict is Verdict.FAILED


def test_identity_only_demands_the_default_too() -> None:
    """The shipped policy compares no PCR, and lets no control plane in that nobody vouches for."""
    weak = replace(case(IDENTITY_ONLY), assurance=Assurance.TOFU, role=Role.CONTROLPLANE)
    assert [o.check for o in appraise(evidence(), weak, AT).result.failed] == ["assurance"]


def test_a_reported_minimum_leaves_the_default_in_force() -> None:
    """It is told, and neither raises nor lowers what is demanded."""
    applied = stating("report", assurance={"minimum": "ek-allowlist"})
    found = appraise(evidence(), case(applied), AT).result
    assert found.verdict is Verdict.VERIFIED
    assert Reported("assurance", "at least ek-allowlist", "ek-chain") in found.outcomes
    lower = replace(
        case(stating("report", assurance={"minimum": "none"})),
        assurance=Assurance.TOFU,
        role=Role.CONTROLPLANE,
    )
    assert appraise(evidence(), lower, AT).result.failed == (
        Failed("assurance", "at least ek-chain", "tofu"),
    )


@pytest.mark.threat("T69")
def test_rules_that_are_only_reported_leave_the_boot_state_unappraised() -> None:
    """Verified, with what would have failed; and no claim about what booted, even where every rule holds."""
    applied = stating("report", pcrs={"7": {"any_of": ["00" * 32]}, "4": {"any_of": [forge.PCRS[4].hex()]}})
    found = appraise(evidence(), case(applied), AT).result
    assert found.verdict is Verdict.VERIFIED
    assert found.reported == (Reported("pcr7", "00" * 32, forge.PCRS[7].hex()),)
    assert not found.boot_state_appraised
    assert Flagged("boot-state", "boot state not appraised") in found.outcomes
    assert not appraise(evidence(), case(stating("report")), AT).result.boot_state_appraised
    trial = parse_policy(
        {
            "format": "itl-tpm-policy/1",
            "name": "trial",
            "version": 1,
            "bank": "sha256",
            "mode": "report",
            "pcrs": {"4": {"any_of": ["00" * 32]}},
        }
    )
    both = compose([stating(), trial])
    found = appraise(evidence(), case(both), AT).result
    assert (found.verdict, found.boot_state_appraised) == (Verdict.VERIFIED, ())
    held = compose([stating(), stating("report", name="more", firmware={"min": {"IFX": "9"}})])
    found = appraise(evidence(), knowing(case(held), ek_vendor="IFX"), AT).result
    assert not found.boot_state_appraised


def test_a_reported_rule_about_the_machine_says_nothing_of_its_boot() -> None:
    """Firmware that is too old by a policy on trial: the enforced rules about the boot have been judged."""
    trial = parse_policy(
        {
            "format": "itl-tpm-policy/1",
            "name": "trial",
            "version": 1,
            "bank": "sha256",
            "mode": "report",
            "pcrs": {},
            "firmware": {"min": {"IFX": "65535"}},
        }
    )
    found = appraise(evidence(), knowing(case(compose([stating(), trial])), ek_vendor="IFX"), AT).result
    assert [o.check for o in found.reported] == ["firmware-minimum"]
    assert found.boot_state_appraised


WARNED = Flagged("firmware-blocklist", "IFX 1.2.3.4: an advisory")
RULED_OUT = Failed("firmware-blocklist", "no advisory that rules it out", "IFX 1.2.3.4: an advisory")
NOTE = Flagged("firmware-note", "physical")
APPLIES = ("firmware-blocklist", "no advisory that applies", WARNED.note)
GOOD_FIRMWARE = Passed("firmware-blocklist", "IFX 1.2.3.4")


@pytest.mark.parametrize(
    ("rule", "mode", "told", "found"),
    [
        (None, "enforce", [RULED_OUT, NOTE], [RULED_OUT, NOTE]),
        (None, "enforce", [WARNED], [WARNED]),
        ("fail", "enforce", [RULED_OUT], [RULED_OUT]),
        (
            "fail",
            "enforce",
            [WARNED, NOTE],
            [Failed("firmware-blocklist", "no advisory that applies", WARNED.note), NOTE],
        ),
        (
            "fail",
            "report",
            [WARNED],
            [Reported("firmware-blocklist", "no advisory that applies", WARNED.note)],
        ),
        ("fail", "report", [RULED_OUT], [RULED_OUT]),
        ("fail", "enforce", [GOOD_FIRMWARE], [GOOD_FIRMWARE]),
        ("warn", "enforce", [RULED_OUT], [Flagged("firmware-blocklist", RULED_OUT.found)]),
        ("warn", "enforce", [WARNED], [WARNED]),
        ("warn", "report", [RULED_OUT], [RULED_OUT]),
        ("warn", "enforce", [], []),
        (
            "fail",
            "enforce",
            [],
            [Failed("firmware-blocklist", "a vendor and a firmware version that are vouched for", "absent")],
        ),
    ],
)
def test_advisories_as_the_policy_wants_them(
    rule: str | None, mode: str, told: list[Outcome], found: list[Outcome]
) -> None:
    """Warnings may fail, failures may warn, and a policy that only reports lowers nothing."""
    applied = stating(mode, **({"firmware": {"on_blocklist": rule}} if rule else {}))
    asked: list[dict[str, object]] = []

    def judge(**about: object) -> Sequence[Outcome]:
        asked.append(about)
        return told

    judgement = appraise(evidence(), knowing(case(applied), firmware=judge, ek_vendor="IFX"), AT)
    assert [o for o in judgement.result.outcomes if o.check.startswith("firmware")] == found
    (about,) = asked
    assert (about["vendor"], about["version"], about["ak_is_ecc"]) == ("IFX", forge.FIRMWARE, True)
    assert about["rsa_moduli"] == ()


def test_the_moduli_of_rsa_keys_are_judged() -> None:
    """Of the EK and of the AK."""
    ak, ek = forge.AKS["rsassa"].public, forge.ek_public("L-1")
    assert len(keys_of(ak, ek)[1]) == 2
    assert not keys_of(ak, ek)[0]


@pytest.mark.parametrize(
    ("vendor", "minimum", "signer", "kind", "words"),
    [
        ("IFX", {"IFX": firmware_words(forge.FIRMWARE)}, None, Passed, "at least"),
        ("IFX", {"IFX": "1"}, None, Passed, "at least 1.0.0.0 needed"),
        ("IFX", {"IFX": firmware_words(forge.FIRMWARE + 1)}, None, Failed, "IFX at least"),
        ("IFX", {"IFX": "65535"}, None, Failed, "IFX at least 65535.0.0.0"),
        ("STM", {"IFX": "65535"}, None, Flagged, "no minimum for STM"),
        (None, {"IFX": "1"}, None, Failed, "vouched for"),
        ("IFX", {"IFX": "1"}, b"\0\x0b" + bytes(32), Failed, "vouched for"),
    ],
)
def test_the_minimum_firmware(
    vendor: str | None, minimum: dict[str, str], signer: bytes | None, kind: type, words: str
) -> None:
    """By vendor; who is not vouched for has no version that counts; another vendor is told."""
    sent = evidence(signer=signer) if signer else evidence()
    judgement = appraise(sent, knowing(case(stating(firmware={"min": minimum})), ek_vendor=vendor), AT)
    outcome = next(o for o in judgement.result.outcomes if o.check == "firmware-minimum")
    assert type(outcome) is kind
    assert words in str(outcome)


class Certified(NamedTuple):
    """What the second protocol proved."""

    firmware_version: int


@pytest.mark.parametrize(
    ("proven", "sent", "requested", "mode", "kind"),
    [
        (None, Certified(forge.FIRMWARE), True, "enforce", Passed),
        (forge.FIRMWARE, None, False, "enforce", Passed),
        (forge.FIRMWARE, None, True, "enforce", Passed),
        (None, None, False, "enforce", Undecided),
        (None, None, True, "enforce", Failed),
        (None, None, False, "report", Reported),
        (forge.FIRMWARE - 1, None, True, "enforce", Failed),
        (forge.FIRMWARE - 1, None, False, "enforce", Undecided),
        (forge.FIRMWARE, Certified(forge.FIRMWARE - 1), True, "enforce", Failed),
        (None, Certified(forge.FIRMWARE - 1), True, "report", Reported),
    ],
)
def test_key_attestation_by_the_ek(
    proven: int | None, sent: Certified | None, requested: bool, mode: str, kind: type
) -> None:
    """The firmware that runs now must be the one that the EK authenticated, then or now (TPM.md §3.3)."""
    applied = stating(mode, ek_key_attestation="required")
    asked = knowing(case(applied), firmware_attested=proven, ek_certification_requested=requested)
    judgement = appraise(evidence()._replace(ek_certification=sent), asked, AT)
    outcome = next(o for o in judgement.result.outcomes if o.check == "ek-key-attestation")
    assert type(outcome) is kind
    if kind is Undecided:
        assert judgement.result.verdict is Verdict.INDETERMINATE
        assert not judgement.result.boot_state_appraised


def test_key_attestation_needs_a_firmware_version() -> None:
    """A signer outside the endorsement hierarchy claims none: nothing to compare with."""
    asked = knowing(case(stating(ek_key_attestation="required")), ek_certification_requested=True)
    found = appraise(evidence(signer=b"\0\x0b" + bytes(32)), asked, AT).result
    assert (
        Failed("ek-key-attestation", "a firmware version authenticated by the EK", "absent") in found.outcomes
    )


def test_an_unsafe_clock_is_reported_where_the_policy_reports() -> None:
    """As every rule of it."""
    found = appraise(evidence(safe=0), case(stating("report", clock={"safe": "required"})), AT).result
    assert Reported("clock-safe", "a safe clock", "unsafe: it may have gone back") in found.outcomes
    assert found.verdict is Verdict.VERIFIED


def test_logs_are_judged_under_rules_that_read_them() -> None:
    """Without a log: undecided until it was asked for, then failed. IMA lists likewise stand in the result."""
    applied = stating(secure_boot={"required": True}, ima={"allow": ["00" * 32]})
    values = {SHA256: {i: forge.PCRS[i] for i in forge.SELECTED}}
    found = appraise(evidence(values), case(applied), AT)
    assert judged(found)["event-log"] == "Undecided"
    assert judged(found)["ima"] == "Failed"
    asked = knowing(case(stating(secure_boot={"required": True})), event_log_requested=True)
    assert judged(appraise(evidence(values), asked, AT))["event-log"] == "Failed"


def test_no_advisories_without_a_list() -> None:
    """A service without one says nothing of firmware."""
    assert no_advisories(vendor="IFX", version=1, ak_is_ecc=False, rsa_moduli=(15,)) == ()


@pytest.mark.threat("T126")
@pytest.mark.parametrize("value", [bytes(32), b"\xff" * 32, LONE_SEPARATOR])
def test_a_machine_that_measured_nothing_is_never_affirmed(value: bytes) -> None:
    """The rules of a careless policy hold, and nothing was compared by that: every such machine has these values."""
    values = dict.fromkeys(forge.SELECTED, value)
    rules: dict[str, Any] = {f"p{pcr}": {"any_of": [value.hex()]} for pcr in forge.SELECTED}
    quote = tpm_quote.parse(*forge.quote("p256", values=list(values.values())))
    found = appraise(made(quote, {SHA256: values}), case(policy(**rules)), AT)
    assert found.result.verdict is Verdict.VERIFIED
    assert Passed("pcr4") in found.result.outcomes
    assert found.result.boot_state_appraised == ()
    assert BOOT_STATE_NOT_APPRAISED in found.result.outcomes
    assert trust_vector(found.result, Assurance.TOFU) == {TrustClaim.INSTANCE_IDENTITY: 2}


@pytest.mark.threat("T126")
def test_a_log_that_merely_replays_and_pcr_0_alone_affirm_no_executables() -> None:
    """The policy compares the firmware and wants a log: of what booted, nothing was compared."""
    found = appraise(evidence(), case(policy(p0={"any_of": [forge.PCRS[0].hex()]})), AT).result
    assert (found.verdict, found.boot_state_appraised) == (Verdict.VERIFIED, (Subject.FIRMWARE,))
    assert TrustClaim.EXECUTABLES not in trust_vector(found, Assurance.TOFU)
