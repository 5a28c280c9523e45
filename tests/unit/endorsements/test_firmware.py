"""Firmware advisories: every row of TPM.md §7 at its edges, and what a list may say."""

from __future__ import annotations

import copy
import json
from math import prod
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attestation.endorsements.firmware import (
    MAX_BYTES,
    Advisory,
    parse_blocklist,
    shipped_blocklist,
    version_words,
)
from attestation.endorsements.vendors import VENDOR_NAMES
from attestation.errors import BundleInvalid
from attestation.results import Failed, Flagged, Outcome, Passed
from attestation.results.tpm_checks import FIRMWARE_BLOCKLIST, FIRMWARE_NOTE
from tests.vectors import forge

LIST = shipped_blocklist()
RSA_MODULUS = forge.rsa_private("ek-rsa2048").public_key().public_numbers().n
PRIMES = prod(p for p in range(3, 168) if all(p % q for q in range(2, p)))
ROCA_MODULUS = pow(65537, 12345, PRIMES) + PRIMES


def v(text: str) -> int:
    words = [int(word) for word in text.split(".")]
    return sum(word << shift for word, shift in zip(words, (48, 32, 16, 0), strict=False))


def judge(
    vendor: str | None, version: str | None, *, ecc: bool = True, rsa: tuple[int, ...] = ()
) -> list[Outcome]:
    known = None if version is None else v(version)
    return LIST.judge(vendor=vendor, version=known, ak_is_ecc=ecc, rsa_moduli=rsa)


def verdict(*arguments: Any, **more: Any) -> str:
    """Return fail, warn, flag or pass: what the one outcome says."""
    (outcome,) = judge(*arguments, **more)
    if isinstance(outcome, Failed):
        return "fail"
    if isinstance(outcome, Flagged):
        return "warn" if outcome.check == FIRMWARE_BLOCKLIST.name else "flag"
    assert isinstance(outcome, Passed)
    return "pass"


ROCA = [
    *[("4.0", True), ("4.33", True), ("4.33.65535.65535", True), ("4.34", False), ("4.39", False)],
    *[("4.40", True), ("4.42.9", True), ("4.43", False)],
    *[("5.0", True), ("5.61", True), ("5.62", False)],
    *[("6.0", True), ("6.42", True), ("6.43", False)],
    *[("7.0", True), ("7.61.2785.0", True), ("7.62", False), ("7.85", False)],
    *[("133.0", True), ("133.32", True), ("133.33", False)],
    *[("3.65535.65535.65535", False), ("8.0", False), ("132.99", False), ("134.0", False)],
]


@pytest.mark.parametrize(("version", "listed"), ROCA)
def test_roca_by_version(version: str, listed: bool) -> None:
    """Infineon before the fix of each major: RSA keys fail, without RSA keys it is a warning; fixed is good."""
    assert verdict("IFX", version, rsa=(RSA_MODULUS,)) == ("fail" if listed else "pass")
    assert verdict("IFX", version) == ("warn" if listed else "pass")
    for other in ("STM", "NTC", "INTC"):
        assert "CVE-2017-15361" not in repr(judge(other, version, rsa=(RSA_MODULUS,)))


@pytest.mark.threat("T79")
def test_roca_by_modulus() -> None:
    """A modulus with the fingerprint fails whoever made it, whatever the version says, and among good ones."""
    for vendor, version in ((None, None), ("IFX", None), (None, "7.85"), ("IFX", "7.85"), ("STM", "99.0")):
        (outcome,) = judge(vendor, version, rsa=(RSA_MODULUS, ROCA_MODULUS))
        assert isinstance(outcome, Failed)
        assert "CVE-2017-15361" in outcome.found
    assert judge(None, None, rsa=(RSA_MODULUS,)) == []


TPM_FAIL = [
    *[("71.0", "71.16"), ("71.4", "71.16"), ("71.12", "71.16"), ("73.0", "73.20"), ("73.4", "73.20")],
    *[("73.8", "73.64"), ("73.5", "73.21"), ("73.9", "73.65"), ("74.0", "74.20"), ("74.4", "74.20")],
    *[("74.8", "74.64"), ("74.16", "74.64"), ("74.5", "74.21"), ("74.9", "74.65")],
]


@pytest.mark.parametrize(("version", "fixed"), TPM_FAIL)
def test_tpm_fail_of_stm(version: str, fixed: str) -> None:
    """The versions named fail for ECC AKs and are warned of else; the fixed one, and another vendor, are good."""
    assert verdict("STM", version) == "fail"
    assert verdict("STM", f"{version}.17.4") == "fail"
    assert verdict("STM", version, ecc=False, rsa=(RSA_MODULUS,)) == "warn"
    assert verdict("STM", fixed) == "pass"
    assert f"fixed in {fixed}" in repr(judge("STM", version))
    assert verdict("NTC", version) == "pass"


@pytest.mark.parametrize(
    "version", ["71.1", "71.3", "71.5", "73.1", "73.10", "74.1", "74.17", "72.0", "73.3"]
)
def test_versions_between_those_that_stm_names(version: str) -> None:
    """Only what the vendor names matches: minor numbers there are variants, not an order."""
    assert verdict("STM", version) == "pass"


@pytest.mark.parametrize(
    ("version", "listed"),
    [
        *[
            ("11.0.0.1162", True),
            ("11.8.50.3425", True),
            ("11.8.69", True),
            ("11.8.70", False),
            ("11.9", False),
        ],
        *[("11.10", True), ("11.11.69", True), ("11.11.70", False), ("11.12", False)],
        *[("11.20", True), ("11.22.69", True), ("11.22.70", False), ("12.0", False), ("10.9", False)],
        *[("3.0", True), ("3.1.69", True), ("3.1.70", False), ("4.0.19", True), ("4.0.20", False)],
        *[("302.12", False), ("403.1", False), ("2.9", False)],
    ],
)
def test_tpm_fail_of_intel(version: str, listed: bool) -> None:
    """INTEL-SA-00241 where the TPM's version is that of CSME or TXE."""
    assert verdict("INTC", version) == ("fail" if listed else "pass")
    assert verdict("INTC", version, ecc=False) == ("warn" if listed else "pass")
    if not version.startswith("3."):
        assert verdict("AMD", version) == "pass"


@pytest.mark.parametrize(
    ("version", "listed"),
    [
        *[("1.3.0.1", True), ("1.3.1.0", True), ("1.3.2.8", True)],
        *[
            ("1.3.2.20", False),
            ("1.3.0.0", False),
            ("1.3.0.2", False),
            ("1.3.2.9", False),
            ("1.2.0.1", False),
        ],
    ],
)
def test_memory_of_nuvoton(version: str, listed: bool) -> None:
    """NPCT65x before 1.3.2.20: a warning, whatever the keys; NSM and others are not meant."""
    for ecc in (True, False):
        assert verdict("NTC", version, ecc=ecc) == ("warn" if listed else "pass")
    assert verdict("NSM", version) == "pass"


@pytest.mark.parametrize(
    ("version", "listed"), [("3.0", True), ("3.92.0.5", True), ("2.99", False), ("6.24.0.6", False)]
)
def test_physical_attacks_are_told_and_decide_nothing(version: str, listed: bool) -> None:
    """FaulTPM is a note beside the check that holds."""
    expected: list[type[Outcome]] = [Flagged, Passed] if listed else [Passed]
    outcomes = judge("AMD", version)
    assert [type(o) for o in outcomes] == expected
    assert outcomes[0].check == (FIRMWARE_NOTE.name if listed else FIRMWARE_BLOCKLIST.name)


@pytest.mark.parametrize(("vendor", "version"), [(None, "7.61"), ("IFX", None), (None, None)])
def test_what_nobody_vouches_for_is_not_judged(vendor: str | None, version: str | None) -> None:
    """Without a vouched-for vendor and a verified version nothing is said, and nothing passes."""
    assert judge(vendor, version) == []


def test_a_vendor_without_advisories_passes() -> None:
    """Nothing published: the check is on record, with what was judged."""
    assert judge("GOOG", "1.2.3.4") == [Passed(FIRMWARE_BLOCKLIST.name, "GOOG 1.2.3.4")]
    assert version_words(v("7.61.2785.0")) == "7.61.2785.0"


def test_all_that_applies_is_told_at_once() -> None:
    """One failure, one warning, one note, each with every advisory of its kind."""
    entries = [
        entry(advisory=f"A-{action}-{i}", action=action)
        for action in ("fail", "warn", "flag")
        for i in (1, 2)
    ]
    outcomes = parse(*entries).judge(
        vendor="NTC", version=v("1.2"), ak_is_ecc=True, rsa_moduli=[ROCA_MODULUS]
    )
    assert [(type(o), o.check) for o in outcomes] == [
        (Failed, FIRMWARE_BLOCKLIST.name),
        (Flagged, FIRMWARE_BLOCKLIST.name),
        (Flagged, FIRMWARE_NOTE.name),
    ]
    for outcome, action in zip(outcomes, ("fail", "warn", "flag"), strict=True):
        assert all(f"A-{action}-{i} (memory, high)" in repr(outcome) for i in (1, 2))
    assert "CVE-2017-15361" in repr(outcomes[0])


# The file


def entry(**changes: Any) -> dict[str, Any]:
    return {
        "vendor": "NTC",
        "match": ["1.0-1.9"],
        "advisory": "X-1",
        "affects": "memory",
        "severity": "high",
        "action": "warn",
        **changes,
    }


def parse(*entries: Any, **changes: Any) -> Any:
    return parse_blocklist(
        json.dumps({"format": "itl-firmware-blocklist/1", "entries": list(entries), **changes}).encode()
    )


def test_an_operators_list_is_added() -> None:
    """Joined lists hold the entries of both, of the same and of other vendors, and have another digest."""
    more = parse(entry(), entry(vendor="GOOG"))
    both = LIST.joined(more)
    assert len(both) == len(LIST) + 2
    assert len({LIST.sha256, more.sha256, both.sha256}) == 3
    assert [type(o) for o in both.judge(vendor="GOOG", version=v("1.5"), ak_is_ecc=True, rsa_moduli=[])] == [
        Flagged
    ]
    kept: tuple[Advisory, ...] = both.by_vendor["NTC"]
    assert [a.advisory for a in kept] == ["CVE-2023-1017", "X-1"]
    assert LIST.joined(parse()).by_vendor == LIST.by_vendor


def test_the_list_that_is_shipped() -> None:
    """Every row of TPM.md §7 that versions can tell is there, and the vendors are registered."""
    rows = {(vendor, a.advisory) for vendor, found in LIST.by_vendor.items() for a in found}
    assert rows == {
        ("IFX", "CVE-2017-15361"),
        ("STM", "CVE-2019-16863"),
        ("INTC", "CVE-2019-11090"),
        ("NTC", "CVE-2023-1017"),
        ("AMD", "faulTPM"),
    }
    assert set(LIST.by_vendor) <= set(VENDOR_NAMES.values())
    assert shipped_blocklist() is LIST


@pytest.mark.threat("T79")
@pytest.mark.parametrize(
    "changes",
    [
        {"vendor": "ACME"},
        {"vendor": ["NTC"]},
        {"match": []},
        {"match": "1.0"},
        {"match": [1.0]},
        {"match": [""]},
        {"match": ["1."]},
        {"match": ["1.2.3.4.5"]},
        {"match": ["65536"]},
        {"match": ["٣"]},
        {"match": ["1.5-1.4"]},
        {"match": ["1-"]},
        {"match": ["-1"]},
        {"match": ["1.2 "]},
        {"advisory": ""},
        {"advisory": 7},
        {"affects": "nothing"},
        {"affects": []},
        {"severity": "bad"},
        {"action": "ignore"},
        {"fixed": 1},
        {"note": ""},
        {"comment": "x"},
    ],
)
def test_an_entry_that_breaks_a_rule(changes: dict[str, Any]) -> None:
    """A misspelt entry stops the list: it would match nothing, in silence. The entry is named."""
    with pytest.raises(BundleInvalid, match="entry 2"):
        parse(entry(), entry(**changes))


@pytest.mark.parametrize("missing", list(entry()))
def test_an_entry_that_lacks_a_member(missing: str) -> None:
    """Each member but `fixed` and `note` is needed."""
    broken = entry()
    del broken[missing]
    with pytest.raises(BundleInvalid, match="entry 1"):
        parse(broken)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"\xff",
        b"[" * 100_000,
        b'{"format": "itl-firmware-blocklist/2", "entries": []}',
        b'{"format": "itl-firmware-blocklist/1"}',
        b'{"format": "itl-firmware-blocklist/1", "entries": {}}',
        b'{"format": "itl-firmware-blocklist/1", "entries": [], "x": 1}',
        b'{"format": "itl-firmware-blocklist/1", "entries": ["x"]}',
        b'{"format": "itl-firmware-blocklist/1", "entries": [' + b"1," * 10_000 + b"1]}",
        b" " * (MAX_BYTES + 1),
    ],
)
def test_what_is_no_list(data: bytes) -> None:
    """Anything but a list of the format is refused in one way."""
    with pytest.raises(BundleInvalid):
        parse_blocklist(data)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)


@given(st.sampled_from([*entry(), "fixed", "note", "x"]), _JSON)
def test_the_reader_fails_in_one_way_only(member: str, value: object) -> None:
    """Whatever an entry holds, a caller sees a list or BundleInvalid."""
    changed = copy.deepcopy(entry()) | {member: value}
    try:
        found = parse(changed)
    except BundleInvalid:
        return
    assert len(found) == 1


@given(st.integers(0, 2**64 - 1), st.sampled_from(sorted(VENDOR_NAMES.values())), st.booleans())
def test_every_version_has_a_verdict(version: int, vendor: str, ecc: bool) -> None:
    """Whatever a TPM claims, there is at least one outcome, and never both a failure and a pass."""
    outcomes = LIST.judge(vendor=vendor, version=version, ak_is_ecc=ecc, rsa_moduli=[])
    kinds = {type(o) for o in outcomes}
    assert outcomes
    assert not {Failed, Passed} <= kinds


def test_versions_are_written_as_the_file_has_them() -> None:
    """Words that are any are left out; what is written is read as the same."""

    def read(text: str) -> Advisory:
        entry = {"vendor": "IFX", "match": [text], "advisory": "A", "affects": "memory"}
        entry |= {"severity": "high", "action": "warn"}
        document = {"format": "itl-firmware-blocklist/1", "entries": [entry]}
        (found,) = parse_blocklist(json.dumps(document).encode()).by_vendor["IFX"]
        return found

    for text in ("7", "7.61", "7.0-7.61", "1.3.0.1", "71.0-71.12.3", "0", "3-4.1"):
        written = str(read(text).match[0])
        assert written == {"71.0-71.12.3": "71.0.0-71.12.3", "3-4.1": "3.0-4.1"}.get(text, text)
        assert read(written) == read(text)
