"""Signed statements and creation data: layouts (TPM.md §1.3)."""

from __future__ import annotations

import json

import pytest

from attestation.errors import MalformedEvidence
from attestation.tpm import (
    CertifyInfo,
    CreationInfo,
    PCRSelection,
    QuoteInfo,
    parse_attest,
    parse_creation_data,
)
from tests.vectors import OWN, SHARED, forge, needs_shared

SIGNER = forge.qualified_name(forge.ek_public("L-2"), forge.AKS["p256"].public)
CERTIFY = forge.statement(forge.tpm2b(SIGNER) + forge.tpm2b(SIGNER), signer=SIGNER, kind=0x8017)
CREATION = forge.statement(forge.tpm2b(SIGNER) + forge.tpm2b(bytes(32)), signer=SIGNER, kind=0x801A, safe=0)
QUOTE = forge.quote("p256")[0]
CREATION_DATA = (OWN / "creation_data.bin").read_bytes()


@pytest.mark.parametrize("data", [QUOTE, CERTIFY, CREATION, forge.quote("p384", bitmap_bytes=4)[0]])
def test_what_is_read_is_written_again(data: bytes) -> None:
    """Byte for byte, in the three types and with both sizes of bitmap."""
    assert parse_attest(data).serialise() == data


def test_every_field_is_where_it_belongs() -> None:
    """Header and clock, then what is stated."""
    attest = parse_attest(QUOTE)
    assert (attest.magic, attest.type, attest.qualified_signer) == (0xFF544347, 0x8018, SIGNER)
    assert (attest.extra_data, attest.clock_ms, attest.safe) == (forge.NONCE, 123_456, True)
    assert (attest.reset_count, attest.restart_count) == (7, 2)
    assert attest.firmware_version == forge.FIRMWARE
    assert isinstance(attest.attested, QuoteInfo)
    assert attest.attested.selection == PCRSelection.from_names({"sha256": forge.SELECTED})
    assert parse_attest(CERTIFY).attested == CertifyInfo(SIGNER, SIGNER)
    assert parse_attest(CREATION).attested == CreationInfo(SIGNER, bytes(32))
    assert not parse_attest(CREATION).safe


@pytest.mark.parametrize("data", [QUOTE, CERTIFY, CREATION], ids=["quote", "certify", "creation"])
def test_cut_anywhere_or_followed_by_anything(data: bytes) -> None:
    """Every length but the right one is malformed."""
    for cut in range(len(data)):
        with pytest.raises(MalformedEvidence):
            parse_attest(data[:cut])
    for more in (b"\0", data):
        with pytest.raises(MalformedEvidence, match="trailing"):
            parse_attest(data + more)


@pytest.mark.parametrize("kind", [0x8014, 0x8015, 0x8016, 0x8019, 0x801B, 0x801C, 0, 0xFFFF])
def test_types_that_are_never_accepted(kind: int) -> None:
    """Known to the TPM, or unknown: malformed."""
    with pytest.raises(MalformedEvidence, match="never accepted"):
        parse_attest(forge.statement(b"", signer=SIGNER, kind=kind))


@pytest.mark.parametrize("safe", [2, 0x80, 0xFF])
def test_safe_is_yes_or_no(safe: int) -> None:
    """TPMI_YES_NO has two values."""
    with pytest.raises(MalformedEvidence, match="safe"):
        parse_attest(forge.quote("p256", safe=safe)[0])


@pytest.mark.parametrize(
    "body",
    [forge.tpm2b(bytes(67)) + b"\0\0", b"\0\0" + forge.tpm2b(bytes(67))],
)
@pytest.mark.parametrize("kind", [0x8017, 0x801A])
def test_names_are_not_longer_than_sha512(kind: int, body: bytes) -> None:
    """66 bytes: an algorithm and the longest digest."""
    with pytest.raises(MalformedEvidence, match="at most"):
        parse_attest(forge.statement(body, signer=SIGNER, kind=kind))


def test_statements_have_at_most_2_kib() -> None:
    """The cap stands before any parsing; below it, long fields are read."""
    with pytest.raises(MalformedEvidence, match="2049 bytes"):
        parse_attest(bytes(2049))
    with pytest.raises(MalformedEvidence, match="2049 bytes"):
        parse_creation_data(bytes(2049))
    long = forge.quote("p256", nonce=bytes(1500))[0]
    assert parse_attest(long).serialise() == long


def test_creation_data() -> None:
    """Field by field, and written again."""
    read = parse_creation_data(CREATION_DATA)
    assert read.serialise() == CREATION_DATA
    assert read.selection == PCRSelection.from_names({"sha256": [0, 7]})
    assert (read.pcr_digest, read.locality, read.parent_name_alg) == (bytes(32), 1, forge.SHA256)
    assert read.parent_name == forge.name_of(forge.ek_public("L-2"))
    assert read.outside_info == b"own outside info"
    for cut in range(len(CREATION_DATA)):
        with pytest.raises(MalformedEvidence):
            parse_creation_data(CREATION_DATA[:cut])
    with pytest.raises(MalformedEvidence, match="trailing"):
        parse_creation_data(CREATION_DATA + b"\0")


@pytest.mark.parametrize(
    ("alg", "good"), [(0x10, True), (0x04, True), (0x12, True), (0x27, False), (0, False)]
)
def test_the_parent_of_a_primary_has_no_hash(alg: int, good: bool) -> None:
    """TPM_ALG_NULL where the parent is a hierarchy; an unknown hash is malformed."""
    data = forge.selection([]) + b"\0\0\0" + forge.u16(alg) + forge.tpm2b(b"\x40\0\0\x0b") * 2 + b"\0\0"
    if good:
        assert parse_creation_data(data).serialise() == data
    else:
        with pytest.raises(MalformedEvidence, match="unknown hash"):
            parse_creation_data(data)


@needs_shared
def test_statements_of_swtpm() -> None:
    """Numbers as expected.json has them; qualifiedSigner as recomputed there."""
    expected = json.loads((SHARED / "tpm" / "expected.json").read_text())
    for case in expected["quotes"]:
        data = (SHARED / "tpm" / case["attest"]).read_bytes()
        attest = parse_attest(data)
        assert attest.serialise() == data
        assert attest.clock_ms == case["clock"]
        assert (attest.reset_count, attest.restart_count) == (case["reset_count"], case["restart_count"])
        assert attest.firmware_version == int(case["firmware_version"], 16)
        assert isinstance(attest.attested, QuoteInfo)
        assert attest.attested.selection.to_names() == case["selection"]
        assert attest.attested.pcr_digest.hex() == case["pcr_digest"]
        identity = expected["identities"][case["ak"].partition("/")[0]]
        assert attest.qualified_signer.hex() == identity["ak_qualified_name"]


@needs_shared
def test_statements_of_hardware_and_clouds() -> None:
    """Creation evidence and quotes that other projects published."""
    base = SHARED / "eventlog"
    found = [*base.rglob("*.msg"), *base.rglob("*create_attest*.msg")]
    assert len(found) > 10
    for path in found:
        assert parse_attest(path.read_bytes()).serialise() == path.read_bytes()
    (data,) = base.rglob("ak.create_data")
    assert parse_creation_data(data.read_bytes()).serialise() == data.read_bytes()
