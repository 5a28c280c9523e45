"""Policies: what is refused when it is written, and what a rule says of a value (TPM.md §4.6)."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from attestation.errors import PolicyInvalid
from attestation.reference import DEFAULT_SELECTION, IDENTITY_ONLY, parse_policy
from attestation.results import Failed, Flagged, Passed, Reported
from attestation.tpm import Alg, PCRSelection

A, B, C = ("aa" * 32, "bb" * 32, "cc" * 32)
GOOD: dict[str, Any] = {
    "format": "itl-tpm-policy/1",
    "name": "workers",
    "version": 3,
    "bank": "sha256",
    "pcrs": {"11": {"any_of": [A, B]}, "7": {"any_of": [A]}, "1": {"ignore": "serial numbers"}},
}


def with_member(name: str, value: object) -> dict[str, Any]:
    return {**GOOD, name: value}


def test_a_good_policy() -> None:
    """Every member, and what is derived from it."""
    policy = parse_policy(json.dumps(GOOD, indent=2).encode())
    assert (policy.name, policy.version, policy.ref) == ("workers", 3, "workers@3")
    assert policy.tpm.bank == Alg.SHA256
    assert policy.tpm.selection == PCRSelection.from_names({"sha256": [1, 7, 11]})
    assert [rule.index for rule in policy.tpm.rules] == [1, 7, 11]
    assert not policy.tpm.clock_safe_required
    assert policy.max_age_seconds == 300
    assert policy.document == json.dumps(GOOD, sort_keys=True, separators=(",", ":")).encode()
    assert policy.sha256 == hashlib.sha256(policy.document).hexdigest()
    assert parse_policy(policy.document) == parse_policy(GOOD) == policy


def test_optional_members() -> None:
    """Clock, age and event log, each at its ends."""
    assert parse_policy(with_member("clock", {"safe": "required"})).tpm.clock_safe_required
    assert not parse_policy(with_member("clock", {"safe": "flag"})).tpm.clock_safe_required
    assert not parse_policy(with_member("clock", {})).tpm.clock_safe_required
    for age in (30, 604_800):
        assert parse_policy(with_member("max_age_seconds", age)).max_age_seconds == age
    parse_policy(with_member("event_log", "accepted"))
    for bank, size in (("sha384", 48), ("sha512", 64)):
        policy = parse_policy({**GOOD, "bank": bank, "pcrs": {"0": {"any_of": ["ab" * size]}}})
        assert policy.tpm.selection.to_names() == {bank: [0]}


@pytest.mark.threat("T69")
@pytest.mark.parametrize(
    ("document", "match"),
    [
        (with_member("format", "itl-tpm-policy/2"), "format"),
        (with_member("format", None), "format"),
        ({"format": "itl-policy/3", "tpm": {}, "sgx": {}}, "format is neither"),
        (with_member("name", "identity-only"), "shipped"),
        (with_member("name", ""), "name"),
        (with_member("name", "a" * 64), "name"),
        (with_member("name", "Workers"), "name"),
        (with_member("name", "-workers"), "name"),
        (with_member("name", "work@ers"), "name"),
        (with_member("name", "workers\n"), "name"),
        (with_member("name", 7), "name"),
        (with_member("version", 0), "version"),
        (with_member("version", 1_000_000_000), "version"),
        (with_member("version", "3"), "version"),
        (with_member("version", 3.0), "version"),
        (with_member("version", True), "version"),
        (with_member("bank", "sha1"), "bank"),
        (with_member("bank", "sm3_256"), "bank"),
        (with_member("bank", ["sha256"]), "bank"),
        (with_member("pcrs", {}), "no PCR is compared"),
        (with_member("pcrs", {"1": {"ignore": "x"}, "2": {"ignore": "y"}}), "no PCR is compared"),
        (with_member("pcrs", [A]), "not an object"),
        (with_member("pcrs", {"16": {"any_of": [A]}}), "reset by software"),
        (with_member("pcrs", {"23": {"any_of": [A]}}), "reset by software"),
        (with_member("pcrs", {"16": {"ignore": "x"}}), "reset by software"),
        (with_member("pcrs", {"17": {"any_of": [A]}}), "dynamic root"),
        (with_member("pcrs", {"22": {"any_of": [A]}}), "dynamic root"),
        (with_member("pcrs", {"24": {"any_of": [A]}}), "0 to 23"),
        (with_member("pcrs", {"-1": {"any_of": [A]}}), "0 to 23"),
        (with_member("pcrs", {"07": {"any_of": [A]}}), "0 to 23"),
        (with_member("pcrs", {"x": {"any_of": [A]}}), "0 to 23"),
        (with_member("pcrs", {7: {"any_of": [A]}}), "0 to 23"),
        (with_member("pcrs", {"7": {}}), "exactly one rule"),
        (with_member("pcrs", {"7": {"any_of": [A], "ignore": "x"}}), "exactly one rule"),
        (with_member("pcrs", {"7": [A]}), "exactly one rule"),
        (with_member("pcrs", {"7": {"events": "approved-digests"}}), "PCR 7: digests must list"),
        (with_member("pcrs", {"7": {"equals": A}}), "exactly one rule"),
        (with_member("pcrs", {"7": {"any_of": []}}), "1 to 256 values"),
        (with_member("pcrs", {"7": {"any_of": [A] * 257}}), "1 to 256 values"),
        (with_member("pcrs", {"7": {"any_of": A}}), "1 to 256 values"),
        (with_member("pcrs", {"7": {"any_of": [A[:-2]]}}), "expected 32"),
        (with_member("pcrs", {"7": {"any_of": [A + "00"]}}), "expected 32"),
        (with_member("pcrs", {"7": {"any_of": ["ab" * 48]}}), "expected 32"),
        (with_member("pcrs", {"7": {"any_of": [A.upper()]}}), "lower-case hex"),
        (with_member("pcrs", {"7": {"any_of": [A, None]}}), "not text"),
        (with_member("pcrs", {"7": {"any_of": [int("1" * 64)]}}), "not text"),
        (with_member("pcrs", {"7": {"any_of": [""]}}), "expected 32"),
        (with_member("pcrs", {"7": {"ignore": ""}}), "reason"),
        (with_member("pcrs", {"7": {"ignore": "x" * 257}}), "reason"),
        (with_member("pcrs", {"7": {"ignore": "a\nb"}}), "reason"),
        (with_member("pcrs", {"7": {"ignore": "\ud800"}}), "reason"),
        (with_member("pcrs", {"7": {"ignore": True}}), "reason"),
        (with_member("clock", {"safe": "maybe"}), "clock.safe"),
        (with_member("clock", {"safe": True}), "clock.safe"),
        (with_member("clock", {"unsafe": "flag"}), "clock"),
        (with_member("clock", "required"), "clock"),
        (with_member("event_log", "needed"), "event_log"),
        (with_member("event_log", None), "event_log"),
        (with_member("max_age_seconds", 29), "max_age_seconds"),
        (with_member("max_age_seconds", 604_801), "max_age_seconds"),
        (with_member("max_age_seconds", 60.0), "max_age_seconds"),
        (with_member("max_age_seconds", float("inf")), "max_age_seconds"),
        (with_member("max_age_seconds", float("nan")), "max_age_seconds"),
        (with_member("max_age_seconds", None), "max_age_seconds"),
        (with_member("secure_boot", {}), "secure_boot is not an object that states something"),
        (with_member("firmware", {}), "firmware is not an object that states something"),
        (with_member("ek_key_attestation", "maybe"), "ek_key_attestation is not required or accepted"),
        (with_member("pcr", {}), "unknown member 'pcr'"),
        (with_member(7, {}), "unknown member '7'"),  # type: ignore[arg-type]  # not JSON
        (with_member("description", ""), "description is not text"),
        (with_member("description", "x" * 1025), "description is not text"),
        (with_member("mode", "warn"), "mode is not enforce or report"),
        (
            with_member("pcrs", {"4": {"events": "any", "digests": [A]}}),
            "PCR 4: events is not approved-digests",
        ),
        (with_member("pcrs", {"4": {"events": "approved-digests", "digests": []}}), "1 to 1024 values"),
        (with_member("pcrs", {"4": {"events": "approved-digests", "digests": ["ab" * 48]}}), "expected 32"),
        (with_member("pcrs", {"4": {"any_of": [A], "digests": [A]}}), "PCR 4: unknown member 'digests'"),
        (with_member("pcrs", {"4": {"ignore": "x", "events": "approved-digests"}}), "exactly one rule"),
        (with_member("secure_boot", {"required": "yes"}), "secure_boot.required is not true or false"),
        (with_member("secure_boot", {"requird": True}), "secure_boot: unknown member 'requird'"),
        (with_member("secure_boot", []), "secure_boot is not an object"),
        (with_member("secure_boot", {"dbx_min": ["ab" * 48]}), "secure_boot.dbx_min: 48 bytes"),
        (with_member("secure_boot", {"db_sha256": []}), "secure_boot.db_sha256 must list"),
        (with_member("secure_boot", {"authorities": "ab"}), "secure_boot.authorities must list"),
        (with_member("secure_boot", {"debug": "allow"}), "secure_boot.debug is not forbid or flag"),
        (with_member("secure_boot", {"empty_variable": "on"}), "empty_variable is not refuse or off"),
        (with_member("boot", {"loaders": ["ab" * 48]}), "boot.loaders: 48 bytes, expected 32"),
        (with_member("boot", {"kernels": [7]}), "boot.kernels lists something that is not text"),
        (with_member("boot", {"initrds": None}), "boot.initrds must list"),
        (with_member("boot", {"command_lines": ["a  b"]}), "'a  b' is not a pattern"),
        (with_member("boot", {"command_lines": [""]}), "is not a pattern"),
        (with_member("boot", {"command_lines": ["a" * 2049]}), "is not a pattern"),
        (with_member("boot", {"command_lines": ["a\tb"]}), "is not a pattern"),
        (with_member("boot", {"command_lines": ["a" + "*" * 9]}), "is not a pattern"),
        (with_member("boot", {"modules": [A]}), "boot: unknown member 'modules'"),
        (with_member("ima", {"violations": "fail"}), "ima.allow is missing"),
        (with_member("ima", {"allow": ["ab" * 20]}), "ima.allow lists something"),
        (with_member("ima", {"allow": [A.upper()]}), "ima.allow lists something"),
        (with_member("ima", {"allow": [A], "exclude": ["tmp/*"]}), "not a pattern of a path"),
        (with_member("ima", {"allow": [A], "exclude": ["/" + "*" * 9]}), "not a pattern of a path"),
        (with_member("ima", {"allow": [A], "violations": "ignore"}), "ima.violations is not fail or flag"),
        (with_member("log_padding", True), "log_padding is not accepted or refused"),
        (with_member("firmware", {"on_blocklist": "ignore"}), "firmware.on_blocklist is not fail or warn"),
        (with_member("firmware", {"min": {}}), "firmware.min is not an object of vendors"),
        (with_member("firmware", {"min": ["7.63"]}), "firmware.min is not an object of vendors"),
        (with_member("firmware", {"min": {"Infineon": "7.63"}}), "'Infineon' is not a registered vendor"),
        (with_member("firmware", {"min": {"IFX": "7.63.1.2.3"}}), "firmware.min.IFX is not a version"),
        (with_member("firmware", {"min": {"IFX": "07.63"}}), "firmware.min.IFX is not a version"),
        (with_member("firmware", {"min": {"IFX": 7}}), "firmware.min.IFX is not a version"),
        (with_member("firmware", {"min": {"IFX": "7.65536"}}), "larger than 65535"),
        (with_member("assurance", {"minimum": 3}), "assurance.minimum is not"),
        (with_member("assurance", {"minimum": "EK-CHAIN"}), "assurance.minimum is not"),
        (with_member("assurance", {"maximum": "tofu"}), "assurance: unknown member 'maximum'"),
        (with_member("reattest_seconds", 4), "reattest_seconds is not a whole number from 5 to 86400"),
        (with_member("reattest_seconds", 301), "reattest_seconds 301 is longer than max_age_seconds 300"),
        (
            {**GOOD, "event_log": "accepted", "secure_boot": {"required": True}},
            "event_log accepted contradicts",
        ),
        ({**GOOD, "pcrs": {}, "clock": {"safe": "required"}}, "nothing else is demanded"),
        ({**GOOD, "pcrs": {}, "event_log": "required"}, "nothing else is demanded"),
        ({**GOOD, "pcrs": {}, "secure_boot": {"required": False}}, "nothing else is demanded"),
        ({**GOOD, "pcrs": {}, "ek_key_attestation": "accepted"}, "nothing else is demanded"),
        (with_member("clok", {}), "unknown member 'clok'"),
    ],
)
def test_what_breaks_a_rule_is_refused_by_name(document: dict[str, Any], match: str) -> None:
    """Nothing is skipped silently: the message names the member."""
    with pytest.raises(PolicyInvalid, match=match):
        parse_policy(document)


@pytest.mark.parametrize("name", ["format", "name", "version", "bank", "pcrs"])
def test_missing_members(name: str) -> None:
    """Each is needed."""
    with pytest.raises(PolicyInvalid, match=f"{name} is missing"):
        parse_policy({k: v for k, v in GOOD.items() if k != name})


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"text"',
        b"\xff",
        b"[" * 60_000,
        b'{"a":1,"a":2}',
        json.dumps(GOOD).replace('"7":', '"11":').encode(),
        json.dumps(GOOD).replace('"version": 3', '"version": 3, "version": 4').encode(),
        json.dumps(GOOD).encode() + b"x",
        json.dumps(GOOD).encode().replace(b'"version": 3', b'"version": ' + b"9" * 5000),
        json.dumps({**GOOD, "max_age_seconds": 60}).encode().replace(b"60", b"22E22220"),
        json.dumps(GOOD).encode().ljust(65_537),
    ],
)
def test_what_is_no_policy_document(data: bytes) -> None:
    """Not JSON, not an object, a member twice at any depth, numbers without end, too long."""
    with pytest.raises(PolicyInvalid):
        parse_policy(data)


def test_the_longest_document_is_64_kib() -> None:
    """Padded to the cap it is read; an object that would be written longer is refused too."""
    assert parse_policy(json.dumps(GOOD).encode().ljust(65_536)).ref == "workers@3"
    long = {str(i): {"any_of": [f"{n:064x}" for n in range(200)]} for i in range(6)}
    with pytest.raises(PolicyInvalid, match="longer than"):
        parse_policy({**GOOD, "pcrs": long})


# ---------------------------------------------------------------- judging


def test_rules() -> None:
    """any_of holds for each of its values; every other value and an absent one fail; ignore is only a flag."""
    policy = parse_policy(GOOD)
    a, b, c = (bytes.fromhex(text) for text in (A, B, C))
    assert policy.tpm.judge({1: c, 7: a, 11: b}) == (
        Flagged("pcr1", "ignored: serial numbers"),
        Passed("pcr7"),
        Passed("pcr11"),
    )
    assert list(policy.tpm.judge({1: c, 7: b, 11: a})) == [
        Flagged("pcr1", "ignored: serial numbers"),
        Failed("pcr7", A, B),
        Passed("pcr11"),
    ]
    assert list(policy.tpm.judge({7: a})) == [
        Flagged("pcr1", "ignored: serial numbers"),
        Passed("pcr7"),
        Failed("pcr11", f"{A} or {B}", "absent"),
    ]
    assert all(isinstance(o, Failed | Flagged) for o in policy.tpm.judge({}))
    assert list(policy.tpm.judge({7: b"", 11: a[:-1]}))[1:] == [
        Failed("pcr7", A, ""),
        Failed("pcr11", f"{A} or {B}", A[:-2]),
    ]


def test_every_rule_is_kept_where_one_fails() -> None:
    """The first failure does not hide the second."""
    failed = [o for o in parse_policy(GOOD).tpm.judge({7: bytes(32), 11: bytes(32)}) if isinstance(o, Failed)]
    assert [o.check for o in failed] == ["pcr7", "pcr11"]


def test_identity_only_is_explicit() -> None:
    """It compares nothing, says so by having no rule, and asks for PCRs only to record them."""
    assert IDENTITY_ONLY.ref == "identity-only@1"
    assert not IDENTITY_ONLY.tpm.rules
    assert not IDENTITY_ONLY.tpm.compared
    assert not IDENTITY_ONLY.tpm.all_held
    assert IDENTITY_ONLY.tpm.selection == DEFAULT_SELECTION
    assert DEFAULT_SELECTION.to_names() == {"sha256": [*range(10), 11, 12, 14]}
    assert IDENTITY_ONLY.max_age_seconds == 180
    with pytest.raises(PolicyInvalid, match="shipped"):
        parse_policy(IDENTITY_ONLY.document)


# ---------------------------------------------------------------- what rules make of a policy


def with_rules(**members: Any) -> Any:
    return parse_policy({**GOOD, "pcrs": {}, **members})


@pytest.mark.parametrize(
    ("members", "read", "selected"),
    [
        ({"secure_boot": {"required": True}}, (7,), [7]),
        ({"boot": {"loaders": [A]}}, (4,), [4]),
        ({"boot": {"kernels": [A]}}, (4, 9), [4, 9]),
        ({"boot": {"initrds": [A]}}, (9,), [9]),
        ({"boot": {"command_lines": ["ro"]}}, (8, 12), [8, 12]),
        ({"pcrs": {"9": {"events": "approved-digests", "digests": [A]}}}, (9,), [9]),
        ({"pcrs": {"0": {"any_of": [A]}, "11": {"any_of": [A]}}, "event_log": "required"}, (0,), [0, 11]),
        (
            {"pcrs": {"11": {"any_of": [A]}}, "event_log": "required"},
            tuple(range(8)),
            [*range(8), 11],
        ),
        ({"ima": {"allow": [A]}}, (), list(range(11))),
        ({"firmware": {"min": {"IFX": "7.63"}}}, (), [*range(10), 11, 12, 14]),
    ],
)
def test_what_is_read_through_the_log_is_quoted(
    members: dict[str, Any], read: tuple[int, ...], selected: list[int]
) -> None:
    """A rule whose PCR was not asked for could never hold."""
    policy = with_rules(**members)
    assert policy.tpm.log_pcrs == read
    assert policy.tpm.selection.to_names() == {"sha256": selected}
    assert policy.tpm.event_log_required == bool(read)
    assert policy.tpm.logs_read == bool(read or policy.tpm.ima)
    assert policy.tpm.appraises_boot == ("firmware" not in members)


def test_a_policy_without_boot_rules_keeps_its_bank() -> None:
    """What is quoted to be recorded is quoted in the bank that the policy names."""
    policy = with_rules(bank="sha384", assurance={"minimum": "tofu"})
    assert policy.tpm.selection.to_names() == {"sha384": [*range(10), 11, 12, 14]}


def test_a_policy_that_reports() -> None:
    """Every rule of it is reported, and none appraises the boot state."""
    policy = parse_policy({**GOOD, "mode": "report", "clock": {"safe": "required"}, "event_log": "required"})
    assert all(rule.report for rule in policy.tpm.rules)
    assert (policy.tpm.clock_safe_required, policy.tpm.clock_safe_reported) == (False, True)
    assert policy.reports
    assert not policy.tpm.appraises_boot
    assert policy.tpm.event_log is not None
    assert policy.tpm.event_log.report
    assert policy.tpm.event_log_required
    assert list(policy.tpm.judge({7: bytes(32), 11: bytes.fromhex(A)})) == [
        Flagged("pcr1", "ignored: serial numbers"),
        Reported("pcr7", A, "00" * 32),
        Passed("pcr11"),
    ]


def test_documents_of_the_first_kind_hash_as_before() -> None:
    """What is stored under a digest must be found under it again."""
    assert parse_policy(GOOD).sha256 == "0098bb72799f8c397942d957cf07c2dc9b1b0369a8a6e5f5ed6820f7a5db0cb4"
    assert IDENTITY_ONLY.sha256 == "b46712a3a37de04280c94781268d84f70bc6fff1921cdb126b8023969e7bb2a8"


def test_policies_are_known_by_their_digest() -> None:
    """Equal documents are one key of a table, and different ones two."""
    assert len({parse_policy(GOOD), parse_policy(json.dumps(GOOD).encode()), IDENTITY_ONLY}) == 2


@pytest.mark.parametrize("bank", ["sha256", "sha384", "sha512"])
def test_a_pcr_that_must_be_empty(bank: str) -> None:
    """Its reset value, or that with a separator alone; anything else fails, and so does no value."""
    size = {"sha256": 32, "sha384": 48, "sha512": 64}[bank]
    policy = with_rules(bank=bank, pcrs={"12": {"empty": True}})
    for value in (bytes(size), b"\xff" * size):
        assert list(policy.tpm.judge({12: value})) == [Passed("pcr12", "no measurement, as expected")]
    assert list(policy.tpm.judge({12: b"\x01" * size})) == [Failed("pcr12", "no measurement", "01" * size)]
    assert list(policy.tpm.judge({})) == [Failed("pcr12", "no measurement", "absent")]
    for wrong in (False, 1, "yes", None):
        with pytest.raises(PolicyInvalid, match="empty can only be true"):
            with_rules(bank=bank, pcrs={"12": {"empty": wrong}})
