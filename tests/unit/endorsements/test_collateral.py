"""Collateral by name: verified under the anchors whatever place it lay in, and put together for a judgement."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest

from attestation.endorsements import collateral, intel
from attestation.endorsements.amd import Product, parse_vek
from attestation.endorsements.collateral import (
    Item,
    for_amd,
    for_intel,
    kept_form,
    needed_by_amd,
    needed_by_intel,
    parse_name,
    soonest,
    source_of,
    verify_item,
)
from attestation.endorsements.revocation import Revocation
from attestation.errors import CollateralInvalid
from attestation.evidence import sev_snp
from attestation_testing.tee import x509
from attestation_testing.tee.amd import Pki, Processor
from attestation_testing.tee.intel import (
    ISSUED,
    qe_identity,
    shared_pki,
    tcb_info,
)
from tests.fixtures.collateral import (
    AT,
    GENOA,
    GOOD,
    KEY,
    PKI,
    PLATFORM,
    TRUSTED,
    TURIN,
    pck_crl,
    signed,
    vek_name,
)


@pytest.mark.parametrize("name", GOOD)
def test_a_good_piece(name: str) -> None:
    """It says what it is and until when; no byte of it may be another, and under no other name is it anything."""
    item = verify_item(name, GOOD[name], TRUSTED)
    assert item.is_current(AT)
    assert not item.is_current(item.expires + timedelta(seconds=1))
    assert not item.is_current(item.begins - timedelta(seconds=1))
    assert item.says
    for place in range(0, len(GOOD[name]), 41):
        changed = bytearray(GOOD[name])
        changed[place] ^= 0x01
        try:
            found = verify_item(name, bytes(changed), TRUSTED)
        except CollateralInvalid:
            continue
        # What is not signed may differ: a letter of hex in capitals, white space, a root that came along.
        assert (found.begins, found.expires, found.says) == (item.begins, item.expires, item.says)
    for other in GOOD.keys() - {name}:
        with pytest.raises(CollateralInvalid):
            verify_item(other, GOOD[name], TRUSTED)


@pytest.mark.parametrize(
    "name",
    [
        "", "x", "../crl/intel-root.der", "crl/amd-Venice.der", "/crl/intel-root.der", "crl/intel-root.der\n",
        "vcek/Genoa/00/1-2-3-4.der", "tdx/90c06f000000/tcb-info.json", "sgx/../qe-identity.json",
        f"vcek/Genoa/{'0' * 16}/1-2-3-4.der", f"vcek/Turin/{'0' * 128}/1-2-3-4-5.der",
        f"vcek/Genoa/{'0' * 128}/1-2-3-4-5.der", f"vcek/Turin/{'0' * 16}/1-2-3-4.der",
    ],
)  # fmt: skip
def test_what_is_no_name(name: str) -> None:
    """Nothing but the names of the list; none leads out of a folder."""
    with pytest.raises(CollateralInvalid):
        verify_item(name, b"", TRUSTED)
    with pytest.raises(CollateralInvalid):
        source_of(name)


def test_where_a_vendor_has_it() -> None:
    """Path and query, and where the chain of the signer stands."""
    assert source_of(vek_name(GENOA)).path.startswith(f"/vcek/v1/Genoa/{GENOA.chip_id.hex()}?blSPL=10")
    assert source_of("crl/amd-Turin.der") == ("amd", "/vcek/v1/Turin/crl", "")
    assert source_of("crl/intel-root.der") == ("intel", "/sgx/certification/v4/rootcacrl", "")
    assert source_of("crl/intel-processor.json").path.endswith("pckcrl?ca=processor&encoding=der")
    assert source_of("crl/intel-processor.json").chain_header == "SGX-PCK-CRL-Issuer-Chain"
    assert source_of("tdx/90C06F000000/tcb-info.json").path == "/tdx/certification/v4/tcb?fmspc=90C06F000000"
    assert source_of("sgx/qe-identity.json").path == "/sgx/certification/v4/qe/identity"


def test_answers_of_vendors() -> None:
    """Lists as DER or hex; anything that is not text where text belongs is refused."""
    crl = PKI.crl()
    assert kept_form("crl/intel-root.der", crl.hex().encode(), "") == crl
    assert kept_form(vek_name(GENOA), GENOA.vek, "") == GENOA.vek
    for name, answer, chain in (
        ("crl/intel-root.der", b"<html>", ""),
        ("crl/intel-platform.json", b"<html>", ""),
        ("tdx/qe-identity.json", b"\xff", ""),
        ("tdx/qe-identity.json", b"{}", "\u00e9"),
    ):
        with pytest.raises(CollateralInvalid):
            kept_form(name, answer, chain)


OTHER_ROOT = shared_pki("other")


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("crl/intel-root.der", OTHER_ROOT.crl()),
        ("crl/amd-Genoa.der", TURIN.pki.crl()),
        ("crl/amd-Milan.der", Pki(Product.MILAN).crl()),
        ("crl/amd-Genoa.der", x509.crl(issuer=GENOA.pki.names("ARK-Genoa"), signer=GENOA.pki.asvk_key)),
        ("crl/intel-platform.json", pck_crl("processor")),
        ("crl/intel-platform.json", b"{"),
        ("crl/intel-platform.json", b"[]"),
        ("crl/intel-platform.json", json.dumps({"answer": "", "issuer_chain": 1}).encode()),
        ("tdx/90C06F000000/tcb-info.json", signed(tcb_info(fmspc="00806F050000"), "tcbInfo")),
        ("tdx/90C06F000000/tcb-info.json", signed(tcb_info(), "tcbInfo", signature=bytes(64))),
        ("tdx/90C06F000000/tcb-info.json", signed(qe_identity(), "enclaveIdentity")),
        (vek_name(GENOA), GENOA.certificate(issuer=GENOA.pki.names("x"))),
        (vek_name(GENOA), bytes(4097)),
        (vek_name(Processor(pki=Pki(Product.MILAN))), Processor(pki=Pki(Product.MILAN)).vek),
        ("crl/intel-root.der", bytes(collateral.MAX_ITEM_BYTES + 1)),
    ],
)
def test_what_nobody_vouches_for(name: str, data: bytes) -> None:
    """Of another root, line or platform, signed by somebody else, or unreadable."""
    with pytest.raises(CollateralInvalid):
        verify_item(name, data, TRUSTED)


def test_a_list_without_an_end() -> None:
    """It could be shown for ever."""
    without = x509.crl(issuer=GENOA.pki.names("ARK-Genoa"), signer=GENOA.pki.ark_key, ends=False)
    with pytest.raises(CollateralInvalid):
        verify_item("crl/amd-Genoa.der", without, TRUSTED)


def test_a_vek_whose_time_is_over_is_still_genuine() -> None:
    """Whether it is current is another question: its machine stays undecided, nobody is called a forger."""
    old = Processor(pki=Pki(Product.GENOA), not_after=AT - timedelta(days=1))
    item = verify_item(vek_name(old), old.vek, TRUSTED)
    assert not item.is_current(AT)


def read(name: str) -> Item | None:
    """Look it up among what is good."""
    return verify_item(name, GOOD[name], TRUSTED) if name in GOOD else None


def test_what_a_report_needs() -> None:
    """The VCEK of its chip where it brings none, and the list of its line."""
    key = sev_snp.wanted(sev_snp.parse({"report": GENOA.report(bytes(64))}))
    assert needed_by_amd(Product.GENOA, key) == (vek_name(GENOA), "crl/amd-Genoa.der")
    assert needed_by_amd(Product.GENOA, None) == ("crl/amd-Genoa.der",)
    assert needed_by_amd(None, None) == ()
    found = for_amd(TRUSTED.lines, Product.GENOA, key, read)
    assert found.vek == GENOA.vek
    line = GENOA.pki.line
    assert found.crls.status(line.ask, line.ark, AT).status is Revocation.GOOD
    nothing = for_amd(TRUSTED.lines, None, key, lambda _: None)
    assert nothing.vek is None
    assert len(nothing.crls) == 0
    assert parse_vek(GENOA.vek).tcb == key.tcb if key else False


def test_what_a_quote_needs() -> None:
    """TCB info and identity with the chain of who signed them, and both lists; what is missing is left out."""
    names = needed_by_intel(KEY)
    assert set(names) <= GOOD.keys()
    found = for_intel(TRUSTED.intel_root, KEY, read)
    made = PLATFORM.collateral()
    assert found.collateral is not None
    assert (found.collateral.tcb_info, found.collateral.qe_identity) == (made.tcb_info, made.qe_identity)
    assert found.collateral.pck_crl_issuer_chain == made.pck_crl_issuer_chain
    assert all(getattr(found.collateral, name) for name in made.__slots__)
    less = for_intel(TRUSTED.intel_root, KEY, lambda _: None)
    assert less.collateral == intel.Collateral()
    assert for_intel(TRUSTED.intel_root, None, read).collateral is None


def test_what_expires_first() -> None:
    """Of several; of none nothing."""
    items = [verify_item(name, data, TRUSTED) for name, data in GOOD.items()]
    assert soonest(items) == ISSUED + timedelta(days=30)
    assert soonest([]) is None
    assert parse_name("crl/intel-root.der") == {"root": "root"}
