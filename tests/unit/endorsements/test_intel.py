"""Endorsements of Intel's platforms: genuine collateral is believed, and nothing that was touched."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from attestation.endorsements.certificate import Certificate, parse_certificate
from attestation.endorsements.intel import (
    Collateral,
    Refused,
    out_of_date,
    parse_collateral,
    split_signed,
    verify_crl,
    verify_identity,
    verify_pck_crl,
    verify_tcb_info,
)
from tests.vectors import SHARED

CONFIDENTIAL = SHARED / "confidential"
pytestmark = pytest.mark.skipif(
    not (CONFIDENTIAL / "expected.json").exists(),
    reason="the vectors of confidential hardware are not beside the project (../shared/vectors)",
)


def root() -> Certificate:
    return parse_certificate((CONFIDENTIAL / "roots/intel-sgx-root-ca.der").read_bytes())


def collateral(name: str) -> Collateral:
    return parse_collateral((CONFIDENTIAL / f"{name}.collateral.json").read_bytes())


@pytest.mark.parametrize(
    ("name", "tee", "ca"),
    [("tdx/v4-uptodate", "TDX", "platform"), ("sgx/v3-config-swhardening", "SGX", "processor")],
)
def test_genuine_collateral_is_believed_while_it_holds(name: str, tee: str, ca: str) -> None:
    """Every object alone, by its own chain."""
    found = collateral(name)
    assert found.tcb_info
    assert found.tcb_info_signature
    assert found.tcb_info_issuer_chain
    assert found.qe_identity
    assert found.qe_identity_signature
    assert found.qe_identity_issuer_chain
    assert found.pck_crl
    assert found.pck_crl_issuer_chain
    assert found.root_ca_crl
    info = verify_tcb_info(
        found.tcb_info, found.tcb_info_signature, found.tcb_info_issuer_chain, root()
    ).value
    identity = verify_identity(
        found.qe_identity, found.qe_identity_signature, found.qe_identity_issuer_chain, root()
    ).value
    crl, whose = verify_pck_crl(found.pck_crl, found.pck_crl_issuer_chain, root())
    assert (info.tee, identity.tee, whose) == (tee, tee, ca)
    objects = (info, identity, crl, verify_crl(found.root_ca_crl, root()))
    at = datetime(2025, 6, 20, tzinfo=UTC)
    assert [out_of_date(each, at) for each in objects] == [None] * 4
    assert all(out_of_date(each, datetime(2030, 1, 1, tzinfo=UTC)) for each in objects)
    assert all(out_of_date(each, datetime(2020, 1, 1, tzinfo=UTC)) for each in objects)


def test_only_the_exact_bytes_are_signed() -> None:
    """The same JSON with other spaces, or written anew, is another document."""
    found = collateral("tdx/v4-uptodate")
    assert found.tcb_info
    assert found.tcb_info_signature
    assert found.tcb_info_issuer_chain
    for other in (found.tcb_info.replace(b":", b": ", 1), json.dumps(json.loads(found.tcb_info)).encode()):
        with pytest.raises(Refused, match="not signed by"):
            verify_tcb_info(other, found.tcb_info_signature, found.tcb_info_issuer_chain, root())


def test_the_signed_object_is_cut_from_an_answer() -> None:
    """Not a byte is lost, and the signature is 64 bytes."""
    answer = (CONFIDENTIAL / "tdx/collateral-2026-03/tcb_info_90c06f000000.json").read_bytes()
    chain = (CONFIDENTIAL / "tdx/collateral-2026-03/tcb_signing_chain.pem").read_bytes()
    info, signature = split_signed(answer, "tcbInfo")
    assert info in answer
    assert verify_tcb_info(info, signature, chain, root()).value.fmspc.hex() == "90c06f000000"
