"""Who vouches for AMD's processors: certificates of signing keys, tables of hosts, pinned lines (§8.2)."""

from __future__ import annotations

import subprocess
import warnings
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509 as library
from cryptography.hazmat.primitives.asymmetric import ec

from attestation import tee_bundle
from attestation.endorsements.amd import (
    TCB,
    Product,
    VEKKey,
    parse_cert_table,
    parse_line,
    parse_tcb,
    parse_vek,
    verify_vek,
)
from attestation.endorsements.amd.products import product_of
from attestation.endorsements.amd.vek import chain_path, crl_path
from attestation.errors import BundleInvalid, MalformedEvidence
from attestation.wire import pem
from attestation_testing.tee import x509
from attestation_testing.tee.amd import GOOD_TCB, VCEK_GUID, VLEK_GUID, Pki, Processor
from attestation_testing.tee.x509 import extension, integer, octets, text

AT = datetime(2026, 11, 23, tzinfo=UTC)
ARC = "1.3.6.1.4.1.3704.1."
GENOA, TURIN = Processor(pki=Pki(Product.GENOA)), Processor(pki=Pki(Product.TURIN))
VLEK = Processor(pki=Pki(Product.GENOA), csp_id="cc-eu.example")


def extensions(processor: Processor, **replaced: bytes | None) -> list[bytes]:
    """Return the extensions of a VEK, some replaced or left out; `_` in a name is `.`."""
    vlek = processor.csp_id is not None
    listed = processor.pki.vek_extensions(
        processor.tcb, hwid=None if vlek else processor.chip_id, csp_id=processor.csp_id, wrapped=False
    )
    for name, value in replaced.items():
        oid = x509.oid(ARC + name.strip("_").replace("_", "."))
        listed = [each for each in listed if oid not in each]
        if value is not None:
            listed.append(extension(ARC + name.strip("_").replace("_", "."), value))
    return listed


@pytest.mark.parametrize("processor", [GENOA, TURIN, VLEK], ids=["vcek", "turin", "vlek"])
@pytest.mark.parametrize("wrapped", [False, True], ids=["raw", "wrapped"])
def test_a_vek_with_serial_0_is_read(processor: Processor, *, wrapped: bool) -> None:
    """By our own reader, without a warning of a library; what it says is what was put in."""
    made = Processor(pki=processor.pki, csp_id=processor.csp_id, wrapped=wrapped)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        vek = parse_vek(made.vek)
    assert vek.certificate.serial == 0
    assert vek.is_vlek is (made.csp_id is not None)
    assert (vek.hwid, vek.csp_id) == (None if vek.is_vlek else made.chip_id, made.csp_id)
    levels = GOOD_TCB | ({"fmc": 1} if made.pki.product is Product.TURIN else {})
    assert (vek.product, vek.tcb.components()) == (made.pki.product, levels)
    assert verify_vek(vek, made.pki.line, AT) is None
    assert parse_vek(pem("CERTIFICATE", made.vek).encode()) == vek


def test_why_the_library_does_not_read_veks() -> None:
    """It warns that it will refuse the serial number 0; should it stop warning, our reader is still right."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert library.load_der_x509_certificate(GENOA.vek).serial_number == 0
    assert all("serial" in str(each.message).lower() for each in told)


WRONG: dict[str, dict[str, Any]] = {
    "no struct version": {"_1": None},
    "no product": {"_2": None},
    "a product that nobody knows": {"_2": text("Naples", 0x16)},
    "a product that is no text": {"_2": text("Gen\n", 0x16)},
    "a product in another string": {"_2": text("Genoa", 0x0C)},
    "no bootloader": {"_3_1": None},
    "no microcode": {"_3_8": None},
    "a level above 255": {"_3_3": integer(256)},
    "a level that is no integer": {"_3_3": octets(b"\x01")},
    "neither chip nor provider": {"_4": None},
    "chip and provider": {"_5": text("x", 0x16)},
    "a chip of 63 bytes": {"_4": bytes(63)},
    "a chip of 66 bytes that are no OCTET STRING": {"_4": bytes(66)},
    "a chip of 66 bytes that wrap fewer": {"_4": octets(bytes(63)) + b"\x00"},
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_vek_that_does_not_say_what_it_must(wrong: str) -> None:
    """Malformed, and nothing else."""
    with pytest.raises(MalformedEvidence):
        parse_vek(GENOA.certificate(extensions=extensions(GENOA, **WRONG[wrong])))


def test_a_turin_vek_needs_fmc() -> None:
    """And no other line has it."""
    with pytest.raises(MalformedEvidence):
        parse_vek(TURIN.certificate(extensions=extensions(TURIN, _3_9=None)))
    assert parse_vek(GENOA.vek).tcb.fmc is None


def test_a_vek_of_another_form() -> None:
    """Longer than 4 KiB, bytes behind it, an extension twice."""
    twice = [*extensions(GENOA), extension(ARC + "1", integer(0))]
    for data in (bytes(4097), GENOA.vek + b"\x00", GENOA.certificate(extensions=twice), b"", b"\x30\x00"):
        with pytest.raises(MalformedEvidence):
            parse_vek(data)


OTHER = x509.ec_key(ec.SECP384R1(), "other")
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "issuer": ({"issuer": GENOA.pki.names("SEV-Other")}, "issued by"),
    "subject": ({"subject": GENOA.pki.names("SEV-VLEK")}, "subject"),
    "subject with two names": (
        {"subject": (*GENOA.pki.names("SEV-VCEK"), (x509.COMMON_NAME, "x"))},
        "subject",
    ),
    "a CA": ({"extensions": [*extensions(GENOA), *x509.ca_extensions()]}, "a CA"),
    "an unknown critical extension": (
        {"extensions": [*extensions(GENOA), extension("1.2.3.4", b"\x05\x00", critical=True)]},
        "critical",
    ),
    "expired": ({"not_after": datetime(2026, 11, 22, tzinfo=UTC)}, "valid from"),
    "not yet valid": ({"not_before": datetime(2026, 11, 24, tzinfo=UTC)}, "valid from"),
    "key on P-256": ({"key": x509.ec_key(ec.SECP256R1(), "p256")}, "not one on P-384"),
    "signed by the ASVK": ({"signer": GENOA.pki.asvk_key}, "not signed"),
    "signed by a key of its own": ({"signer": OTHER}, "does not fit"),
}


@pytest.mark.parametrize("wrong", REFUSED)
def test_a_vek_that_nobody_vouches_for(wrong: str) -> None:
    """Each alone is told."""
    changed, said = REFUSED[wrong]
    refusal = verify_vek(parse_vek(GENOA.certificate(**changed)), GENOA.pki.line, AT)
    assert refusal is not None
    assert said in refusal


def test_the_intermediate_must_be_valid_too() -> None:
    """And the root: nothing lives longer than who vouches for it."""
    refusal = verify_vek(
        parse_vek(GENOA.certificate(not_after=datetime(2060, 1, 1, tzinfo=UTC))),
        GENOA.pki.line,
        datetime(2055, 1, 1, tzinfo=UTC),
    )
    assert refusal is not None
    assert "SEV-Genoa" in refusal


def test_a_line_holds_together() -> None:
    """Names, CA, and the signature of the root."""
    pki, other = Pki(Product.GENOA), Pki(Product.MILAN)
    good = {"ark": pki.ark, "ask": pki.ask, "asvk": pki.asvk}
    assert parse_line(Product.GENOA, **good).is_for_tests
    not_ca = GENOA.certificate(subject=pki.names("SEV-Genoa"))
    by_another = x509.certificate(
        subject=pki.names("SEV-Genoa"), issuer=pki.names("ARK-Genoa"), key=pki.ask_key, signer=pki.ask_key,
        serial=1, extensions=x509.ca_extensions(0),
    )  # fmt: skip
    wrong: list[dict[str, bytes]] = [
        {"ask": other.ask},
        {"ark": pki.ask},
        {"ask": not_ca},
        {"ask": by_another},
        {"asvk": b""},
    ]
    for changed in wrong:
        with pytest.raises(BundleInvalid):
            parse_line(Product.GENOA, **(good | changed))


def test_the_pinned_lines() -> None:
    """Three, none of a test kit; serial numbers as AMD publishes them."""
    lines = tee_bundle.load().amd
    assert set(lines) == set(Product)
    for product, first in ((Product.MILAN, 0x10000), (Product.GENOA, 0x20000), (Product.TURIN, 0x30000)):
        line = lines[product]
        assert not line.is_for_tests
        expected = (first, {0x10000: 0x10001, 0x20000: 0x20002, 0x30000: 0x30001}[first], first + 0x101)
        assert (line.ark.serial, line.ask.serial, line.asvk.serial) == expected


def test_a_damaged_installation(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is not the pinned one, or is not there."""
    for pins in ({"intel/sgx-root-ca.der": "00"}, {}):
        monkeypatch.setattr(tee_bundle, "PINS", tee_bundle.PINS | pins)
        if not pins:
            monkeypatch.setattr(tee_bundle, "files", lambda _: Path("/nonexistent"))
        tee_bundle.load.cache_clear()
        with pytest.raises(BundleInvalid):
            tee_bundle.load()
    monkeypatch.undo()
    tee_bundle.load.cache_clear()
    tee_bundle.load()


def test_openssl_agrees_about_the_chains(tmp_path: Path) -> None:
    """VCEK and VLEK of each line, serial 0 and PSS included."""
    for product in Product:
        for csp_id in (None, "cc-eu.example"):
            made = Processor(pki=Pki(product), csp_id=csp_id)
            issuer = made.pki.asvk if csp_id else made.pki.ask
            for name, data in (("root", made.pki.ark), ("issuer", issuer), ("vek", made.vek)):
                (tmp_path / name).write_text(pem("CERTIFICATE", data), encoding="ascii")
            command = ["openssl", "verify", "-CAfile", "root", "-untrusted", "issuer", "vek"]
            done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
            assert done.stdout == "vek: OK\n", done.stderr


def test_tables_of_a_host() -> None:
    """VCEK and VLEK by their GUID; an empty table is none; what points out of it is refused."""
    assert parse_cert_table(b"") == (None, None)
    assert parse_cert_table(bytes(24)) == (None, None)
    assert parse_cert_table(GENOA.cert_table()) == (GENOA.vek, None)
    assert parse_cert_table(VLEK.cert_table()) == (None, VLEK.vek)
    entry = VCEK_GUID + (48).to_bytes(4, "little") + (4).to_bytes(4, "little")
    other = VLEK_GUID + (200).to_bytes(4, "little") + (4).to_bytes(4, "little")
    assert parse_cert_table(entry + bytes(24) + b"vcek") == (b"vcek", None)
    many = b"".join(bytes([1, i]) + bytes(22) for i in range(16)) + bytes(24)
    for data in (
        entry,
        entry + entry + bytes(24) + b"vcek",
        other + bytes(24),
        entry[:-1],
        bytes(32_769),
        bytes(23),
        many,
    ):
        with pytest.raises(MalformedEvidence):
            parse_cert_table(data)


def test_lines_by_cpuid() -> None:
    """The table of §8.2, at its edges; Venice is not known."""
    known = {
        Product.MILAN: [(0x19, 0x00), (0x19, 0x0F)],
        Product.GENOA: [(0x19, 0x10), (0x19, 0x1F), (0x19, 0xA0), (0x19, 0xAF)],
        Product.TURIN: [(0x1A, 0x00), (0x1A, 0x11)],
        None: [
            (0x19, 0x20),
            (0x19, 0x9F),
            (0x19, 0xB0),
            (0x1A, 0x12),
            (0x1A, 0x50),
            (0x1A, 0x90),
            (0, 0),
            (0x18, 1),
        ],
    }
    for product, processors in known.items():
        for family, model in processors:
            assert product_of(family, model) is product, (family, model)


def test_tcbs_are_compared_by_component() -> None:
    """A higher one does not make up for a lower one."""
    low = parse_tcb(bytes([1, 2, 0, 0, 0, 0, 3, 4]), Product.GENOA)
    assert low == TCB(None, 1, 2, 3, 4)
    assert low.lower_than(TCB(None, 0, 3, 3, 5)) == ("tee", "microcode")
    turin = parse_tcb(bytes([9, 1, 2, 3, 0, 0, 0, 4]), Product.TURIN)
    assert turin == TCB(9, 1, 2, 3, 4)
    assert str(turin) == "fmc 9 bootloader 1 tee 2 snp 3 microcode 4"


def test_where_amd_keeps_what_it_vouches_for() -> None:
    """Requests of 57230 §4: two digits at least; Turin's begin with fmcSPL."""
    genoa = VEKKey(Product.GENOA, "ab" * 64, TCB(None, 1, 0, 8, 115))
    assert genoa.path == f"/vcek/v1/Genoa/{'ab' * 64}?blSPL=01&teeSPL=00&snpSPL=08&ucodeSPL=115"
    assert genoa.file == f"vcek/Genoa/{'ab' * 64}/1-0-8-115.der"
    turin = VEKKey(Product.TURIN, "0123456789abcdef", TCB(1, 1, 1, 4, 81))
    assert turin.path == "/vcek/v1/Turin/0123456789abcdef?fmcSPL=01&blSPL=01&teeSPL=01&snpSPL=04&ucodeSPL=81"
    assert chain_path(Product.TURIN, vlek=True) == "/vlek/v1/Turin/cert_chain"
    assert chain_path(Product.MILAN, vlek=False) == "/vcek/v1/Milan/cert_chain"
    assert crl_path(Product.GENOA) == "/vcek/v1/Genoa/crl"
