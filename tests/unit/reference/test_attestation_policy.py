"""An AttestationPolicy of Kubernetes as a policy of ours (CONFIDENTIAL.md §2.3)."""

from __future__ import annotations

import contextlib
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from attestation.api.attestation_policy import AttestationPolicySpec
from attestation.errors import PolicyInvalid
from attestation.reference import identifier, parse_policy
from attestation.reference.attestation_policy import (
    BACKENDS,
    SHOWN,
    block_schema,
    camel,
    policy_id,
    policy_of,
    references,
)
from attestation.reference.document import TPM, all_blocks
from tests.unit.reference.test_confidential_blocks import ALL

PCR = "ab" * 32
OTHER = "cd" * 32
MRTD = "12" * 48
SEED = {"tpm": {"pcrs": {"0": PCR, "7": OTHER}}}
"""As users of the seed write it: one value for each PCR, nothing else."""
FULL: dict[str, Any] = {
    "mode": "enforce",
    "identity": {"mode": "observed"},
    "collateral": {"requireRevocation": False, "maxStalenessHours": 48, "allowFetch": False},
    "rules": [{"name": "smt", "expression": "!sev_snp.smt", "message": "SMT is off"}],
    "tpm": {
        "bank": "sha384",
        "pcrs": {"7": "ab" * 48},
        "pcrsAnyOf": {"4": ["01" * 48, "02" * 48]},
        "requireEventLog": True,
        "requireSecureBoot": True,
    },
    "sevSnp": {
        "measurement": ["11" * 48],
        "hostData": ["22" * 32],
        "idBlock": {
            "require": True,
            "idKeyDigests": ["33" * 48],
            "authorKeyDigests": ["44" * 48],
            "familyID": "55" * 16,
            "imageID": "66" * 16,
        },
        "minGuestSvn": 3,
        "maxVmpl": 1,
        "allowDebug": True,
        "allowMigrationAgent": True,
        "requireSmtDisabled": True,
        "requireSingleSocket": True,
        "platformInfo": {"mustSet": 2, "mustClear": 1},
        "minTcb": {
            "milan": {"bootloader": 4, "tee": 0, "snp": 24, "microcode": 219},
            "genoa": {"bootloader": 10, "tee": 0, "snp": 25, "microcode": 84},
            "turin": {"fmc": 1, "bootloader": 1, "tee": 0, "snp": 4, "microcode": 71},
        },
        "allowProvisionalFirmware": True,
        "allowedChipIDs": ["77" * 64, "88" * 8],
        "signingKey": "any",
        "cspIDs": ["cc-us-east-2.amazonaws.com"],
        "minReportVersion": 3,
        "minLaunchMitVector": 1,
    },
    "tdx": {
        "mrtd": [MRTD],
        **{f"rtmr{i}": ["34" * 48] for i in range(4)},
        "mrseam": ["56" * 48],
        "mrsignerseam": "00" * 48,
        "mrconfigid": ["00" * 48],
        "mrowner": ["00" * 48],
        "mrownerconfig": "00" * 48,
        "xfam": {"value": "e702060000000000", "mask": "ff" * 8},
        "tdAttributes": {"value": "0000001000000000", "mask": "ff" * 8},
        "allowDebug": True,
        "requireSeptVeDisable": False,
        "allowMigration": True,
        "allowServiceTD": True,
        "acceptedPpids": ["99" * 16],
        "requireEventLog": True,
    },
    "sgx": {
        "mrenclave": ["aa" * 32],
        "mrsigner": ["bb" * 32],
        "isvProdID": 7,
        "minIsvSvn": 2,
        "allowDebug": True,
    },
    "tcb": {
        "acceptedStatus": ["UpToDate", "SWHardeningNeeded"],
        "minTcbDate": "2025-02-12T00:00:00Z",
        "minTcbEvaluationDataNumber": 17,
        "platformGraceDays": 30,
        "qeGraceDays": 30,
        "rejectAdvisories": ["INTEL-SA-00615"],
        "allowSmt": False,
        "allowDynamicPlatform": False,
        "allowCachedKeys": False,
    },
    "gpu": {
        "driverVersions": ["570.1"],
        "vbiosVersions": ["96.00"],
        "arch": ["HOPPER"],
        "rimRequired": True,
    },
}
"""Every member of CONFIDENTIAL §2.3, none with its default."""
DEFAULTS: dict[str, Any] = {
    "mode": "enforce",
    "identity": {"mode": "registered"},
    "collateral": {"requireRevocation": True, "maxStalenessHours": 0, "allowFetch": True},
    "tpm": {"bank": "sha256", "requireEventLog": False, "requireSecureBoot": False},
    "sevSnp": {
        "idBlock": {"require": False},
        "minGuestSvn": 0,
        "maxVmpl": 0,
        "allowDebug": False,
        "allowMigrationAgent": False,
        "requireSmtDisabled": False,
        "requireSingleSocket": False,
        "platformInfo": {"mustSet": 0, "mustClear": 0},
        "allowProvisionalFirmware": False,
        "signingKey": "vcek",
        "minReportVersion": 2,
        "minLaunchMitVector": 0,
    },
    "tdx": {
        "allowDebug": False,
        "requireSeptVeDisable": True,
        "allowMigration": False,
        "allowServiceTD": False,
        "requireEventLog": False,
        "xfam": {"value": "00" * 8, "mask": "00" * 8},
        "tdAttributes": {"value": "00" * 8, "mask": "00" * 8},
    },
    "tcb": {
        "acceptedStatus": ["UpToDate"],
        "minTcbEvaluationDataNumber": 0,
        "platformGraceDays": 0,
        "qeGraceDays": 0,
        "allowSmt": True,
        "allowDynamicPlatform": True,
        "allowCachedKeys": True,
    },
}
"""What asks nothing more than what is unset."""
REFERENCE: dict[str, dict[str, Any]] = {
    "tpm": {"tpm": {"pcrs": {"7": PCR}}},
    "sev-snp": {"sevSnp": {"measurement": ["11" * 48]}},
    "tdx": {"tdx": {"mrtd": [MRTD]}},
}
SCHEMA = AttestationPolicySpec.model_json_schema(by_alias=True)


def merged(*specs: dict[str, Any]) -> dict[str, Any]:
    """Return *specs* in one, block by block."""
    found: dict[str, Any] = {}
    for spec in specs:
        for name, value in spec.items():
            found[name] = found[name] | value if isinstance(found.get(name), dict) else value
    return found


def test_the_form_of_the_seed_is_read() -> None:
    """One value for each PCR; PCR 0 to 7 are quoted whatever is named."""
    policy = policy_of(SEED, backend="tpm")
    assert {rule.index: rule.any_of for rule in policy.tpm.rules} == {
        0: frozenset({bytes.fromhex(PCR)}),
        7: frozenset({bytes.fromhex(OTHER)}),
    }
    assert policy.tpm.selection.to_names() == {"sha256": list(range(8))}
    assert not policy.reports


def test_pcrs_beyond_those_of_firmware_are_quoted_where_they_are_named() -> None:
    """Beside PCR 0 to 7, in the bank of the policy."""
    policy = policy_of({"tpm": {"bank": "sha384", "pcrsAnyOf": {"14": ["ab" * 48]}}}, backend="tpm")
    assert policy.tpm.selection.to_names() == {"sha384": [*range(8), 14]}


def test_every_block_of_our_document_has_its_place() -> None:
    """A block that is added to our document is asked for in Kubernetes too, under a name of its own."""
    assert set(SHOWN.values()) == {TPM, *all_blocks()}
    assert set(SHOWN) == set(FULL) - {"mode"}
    for shown in SHOWN:
        if shown != "rules":
            properties = block_schema(shown)["properties"]
            assert isinstance(properties, dict)
            assert set(FULL[shown]) == set(properties), shown
    assert camel("id_block.family_id") == "idBlock.familyID"


def test_what_kubernetes_says_is_what_our_document_says() -> None:
    """All members of the block of a processor mean the same in both."""
    same = {"format": "itl-policy/2", "name": "x", "version": 1}
    blocks = ("tcb", "collateral", "identity", "gpu")
    for backend, block in (("sev-snp", "sev_snp"), ("tdx", "tdx")):
        shown = {name: FULL[name] for name in ("identity", "collateral", "rules", camel(block), "tcb", "gpu")}
        found = policy_of(shown, backend=backend)
        ours = parse_policy(
            same | {name: _snake(FULL[camel(name)]) for name in (*blocks, block)} | {"rules": FULL["rules"]}
        )
        assert found.blocks == ours.blocks
        assert found.kinds == ours.kinds


def _snake(value: Any, path: str = "") -> Any:
    if not isinstance(value, dict):
        single = path in ("familyID", "imageID", "mrsignerseam", "mrownerconfig")
        return [value] if single else value
    names = {camel(part): part for block in ALL.values() if isinstance(block, dict) for part in _names(block)}
    return {names.get(name, name): _snake(each, name) for name, each in value.items()}


def _names(block: dict[str, Any]) -> list[str]:
    return [
        name
        for key, each in block.items()
        for name in (key, *(_names(each) if isinstance(each, dict) else ()))
    ]


@pytest.mark.parametrize("backend", BACKENDS)
def test_defaults_that_are_written_out_ask_the_same(backend: str) -> None:
    """So an API server that fills them in changes no identifier, and neither does who states them."""
    bare = REFERENCE[backend]
    written = merged(DEFAULTS, bare)
    for mode in ("enforce", "report"):
        assert identifier(policy_of(written | {"mode": mode}, backend=backend)) == identifier(
            policy_of(bare | {"mode": mode}, backend=backend)
        )


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"tpm": {"pcrs": {"7": PCR}}}, {"tpm": {"pcrsAnyOf": {"7": [PCR, PCR]}}}),
        ({"tdx": {"mrtd": [MRTD, "ab" * 48]}}, {"tdx": {"mrtd": ["ab" * 48, MRTD, MRTD]}}),
        (
            {"sevSnp": {"measurement": ["11" * 48], "minTcb": {"milan": {"snp": 24}}}},
            {"sevSnp": {"measurement": ["11" * 48], "minTcb": {"milan": {"tee": 0, "snp": 24}}}},
        ),
    ],
    ids=lambda spec: next(iter(spec)),
)
def test_the_same_in_other_words_is_the_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Order, what is said twice, a component that may be anything."""
    assert policy_id(one) == policy_id(other)


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_is_null_is_unset(backend: str) -> None:
    """An API server may keep null of what was taken away."""
    nulls = {name: None for name in FULL if name not in REFERENCE[backend]}
    assert policy_of(REFERENCE[backend] | nulls, backend=backend) == policy_of(
        REFERENCE[backend], backend=backend
    )
    assert policy_of({"mode": "report", "tdx": {"mrtd": None}}, backend=backend) == policy_of(
        None, backend=backend
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_policy_only_records(backend: str) -> None:
    """What no policy asks is what an empty one asks that reports."""
    policy = policy_of(None, backend=backend)
    assert policy == policy_of({"mode": "report"}, backend=backend)
    assert policy.reports
    assert all(policy.kinds.values())


def test_a_block_of_another_backend_asks_nothing() -> None:
    """A policy for two kinds of nodes asks each for the evidence that it can have; `gpu` asks them both."""
    both = merged(REFERENCE["tdx"], REFERENCE["sev-snp"], REFERENCE["tpm"])
    for backend, block in BACKENDS.items():
        policy = policy_of(both, backend=backend)
        assert set(policy.kinds) == {block}
        assert identifier(policy) == identifier(policy_of(REFERENCE[backend], backend=backend))
        assert "gpu" in policy_of(both | {"gpu": {}}, backend=backend).kinds


def test_the_identifier_of_a_policy_is_that_of_its_runs() -> None:
    """Where it has the block of one backend; of several it is that of all that it states."""
    for backend, spec in REFERENCE.items():
        assert policy_id(spec) == identifier(policy_of(spec, backend=backend))
    both = merged(REFERENCE["tdx"], REFERENCE["sev-snp"])
    assert policy_id(both) not in {
        identifier(policy_of(both, backend=backend)) for backend in ("tdx", "sev-snp")
    }


@pytest.mark.parametrize("block", [name for name in FULL if name != "mode"])
def test_each_member_asks_something(block: str) -> None:
    """Whatever is stated beyond the defaults changes the identifier."""
    rest = {name: value for name, value in FULL.items() if name != block}
    assert policy_id(rest) != policy_id(FULL)
    for member in () if block == "rules" else FULL[block].keys() - {"bank"}:
        without = {name: value for name, value in FULL[block].items() if name != member}
        assert policy_id(rest | {block: without}) != policy_id(FULL), member


BAD: list[tuple[str, dict[str, Any]]] = [
    ("mode", {"mode": "audit"}),
    ("sevsnp", {"sevsnp": {}}),
    ("tpm.pcrs", {"tpm": {"pcrs": {"24": PCR}}}),
    ("tpm.pcrs", {"tpm": {"pcrs": {"07": PCR}}}),
    ("tpm.pcrs", {"tpm": {"pcrs": {}}}),
    ("tpm.pcrs.7", {"tpm": {"pcrs": {"7": [PCR]}}}),
    ("tpm.pcrsAnyOf.7", {"tpm": {"pcrsAnyOf": {"7": PCR}}}),
    ("tpm.pcrsAnyOf.7", {"tpm": {"pcrsAnyOf": {"7": []}}}),
    ("PCR 7", {"tpm": {"pcrs": {"7": PCR}, "pcrsAnyOf": {"7": [PCR]}}}),
    ("PCR 7", {"tpm": {"pcrs": {"7": PCR + "00"}}}),
    ("PCR 7", {"tpm": {"pcrs": {"7": PCR.upper()}}}),
    ("PCR 7", {"tpm": {"bank": "sha384", "pcrs": {"7": PCR}}}),
    ("tpm.bank", {"tpm": {"bank": "sha1"}}),
    ("pcr0", {"tpm": {"pcr0": PCR}}),
    ("tpm.requireSecureBoot", {"tpm": {"requireSecureBoot": "yes"}}),
    ("sevSnp.measurement", {"sevSnp": {"measurement": [PCR]}}),
    ("sevSnp.hostData", {"sevSnp": {"hostData": [MRTD]}}),
    ("sevSnp.maxVmpl", {"sevSnp": {"maxVmpl": 4}}),
    ("sevSnp.allowedChipIDs", {"sevSnp": {"allowedChipIDs": [PCR]}}),
    ("sevSnp.signingKey", {"sevSnp": {"signingKey": "none"}}),
    ("sevSnp.idBlock.familyID", {"sevSnp": {"idBlock": {"familyID": PCR}}}),
    ("sevSnp.minTcb", {"sevSnp": {"minTcb": {"venice": {"snp": 1}}}}),
    ("sevSnp.minTcb.milan", {"sevSnp": {"minTcb": {"milan": {"fmc": 1}}}}),
    ("min_guest_svn", {"sevSnp": {"min_guest_svn": 1}}),
    ("tdx.mrtd", {"tdx": {"mrtd": MRTD}}),
    ("tdx.rtmr3", {"tdx": {"rtmr3": []}}),
    ("tdx.xfam", {"tdx": {"xfam": {"value": "00" * 8}}}),
    ("sgx.mrsigner", {"sgx": {"mrsigner": [MRTD]}}),
    ("tcb.acceptedStatus", {"tcb": {"acceptedStatus": ["Revoked"]}}),
    ("tcb.minTcbDate", {"tcb": {"minTcbDate": "2025-02-12"}}),
    ("tcb.rejectAdvisories", {"tcb": {"rejectAdvisories": ["SA-1"]}}),
    ("collateral.maxStalenessHours", {"collateral": {"maxStalenessHours": 721}}),
    ("identity.mode", {"identity": {"mode": "any"}}),
    ("rules", {"rules": [{"name": "a"}]}),
    ("rules", {"rules": [{"name": "a", "expression": "not cel at all"}]}),
]


@pytest.mark.parametrize(("member", "spec"), BAD, ids=str)
def test_what_breaks_a_rule_is_refused_by_name(member: str, spec: dict[str, Any]) -> None:
    """By who judges, and by the model that an API server's schema is made of."""
    report = {"mode": "report"} | spec
    for backend in BACKENDS:
        with pytest.raises(PolicyInvalid, match=member):
            policy_of(report, backend=backend)
    with pytest.raises(ValidationError, match=member):
        AttestationPolicySpec.model_validate(report)


def test_what_is_too_deep_is_refused_as_anything_else_is() -> None:
    """However deep it is: a stranger writes it."""
    deep: dict[str, Any] = {}
    for _ in range(100_000):
        deep = {"minTcb": deep}
    with pytest.raises(PolicyInvalid, match="minTcb"):
        policy_of({"mode": "report", "sevSnp": deep}, backend="tpm")


def test_every_backend_is_known_and_no_other() -> None:
    """A backend that nobody judges has no policy."""
    with pytest.raises(PolicyInvalid, match="backend"):
        policy_of(None, backend="sgx")


@pytest.mark.parametrize("backend", BACKENDS)
def test_who_enforces_states_a_reference_value_of_the_backend(backend: str) -> None:
    """Else everything that is signed would be verified. Each ® alone is enough."""
    block = next(shown for shown, name in SHOWN.items() if name == BACKENDS[backend])
    rest = {name: value for name, value in FULL.items() if name != block}
    for lacking in ({}, {"mode": "enforce"}, rest, rest | {block: DEFAULTS[block]}):
        with pytest.raises(PolicyInvalid, match="who enforces"):
            policy_of(lacking, backend=backend)
        policy_of(lacking | {"mode": "report"}, backend=backend)
    for path in references()[block]:
        value = FULL[block]
        for name in path.split("."):
            value = value[name]
        *above, last = path.split(".")
        bank = {"bank": "sha384"} if block == "tpm" else {}
        stated: dict[str, Any] = bank | ({above[0]: {last: value}} if above else {last: value})
        assert policy_of({block: stated}, backend=backend).kinds[BACKENDS[backend]] is False


def test_the_reference_values_are_those_of_the_specification() -> None:
    """®, CONFIDENTIAL §2.3."""
    assert references() == {
        "tpm": ("pcrs", "pcrsAnyOf"),
        "sevSnp": ("idBlock.idKeyDigests", "measurement"),
        "tdx": ("mrtd", "rtmr0", "rtmr1", "rtmr2", "rtmr3"),
        "sgx": ("mrenclave", "mrsigner"),
    }


def test_a_pcr_that_software_resets_is_refused() -> None:
    """PCR 16 to 23 are indices of the kind; that they prove nothing of a boot is said by name."""
    for index in range(16, 24):
        with pytest.raises(PolicyInvalid, match=f"PCR {index}"):
            policy_of({"tpm": {"pcrs": {str(index): PCR}}}, backend="tpm")


def test_model_and_schema_take_all_of_it() -> None:
    """And give it back as it was written."""
    for spec in (FULL, SEED, DEFAULTS | {"mode": "report"}, {"mode": "report"}):
        jsonschema_rs.validate(SCHEMA, spec)
        assert AttestationPolicySpec.model_validate(spec).written() == {"mode": "enforce"} | spec
    assert policy_of(AttestationPolicySpec.model_validate(FULL).written(), backend="tdx") == policy_of(
        FULL, backend="tdx"
    )


WORDS = st.sampled_from([*SHOWN, "mode", "enforce", "pcrs", "7", "mrtd", "measurement", PCR, MRTD, ""])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | WORDS | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=12,
)


@given(JSON, st.sampled_from(sorted(BACKENDS)))
def test_a_policy_fails_in_one_way_only(spec: Any, backend: str) -> None:
    """Whatever an API server stored, a caller sees a policy or PolicyInvalid; and what is one, the schema admits."""
    with contextlib.suppress(PolicyInvalid):
        policy_of(spec, backend=backend)
        if spec is not None:
            jsonschema_rs.validate(SCHEMA, {k: v for k, v in spec.items() if v is not None})
