"""Endorsements of Intel's platforms: genuine collateral is believed, and nothing that was touched."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from urllib.parse import quote

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from attestation.endorsements.certificate import Certificate, parse_certificate
from attestation.endorsements.intel import (
    ROOT_CRL_PATH,
    Collateral,
    Refused,
    chain_of_header,
    crl_of_answer,
    identity_path,
    out_of_date,
    parse_collateral,
    parse_identity,
    parse_platform,
    parse_tcb_info,
    pck_crl_path,
    platform_of,
    signed_by,
    signed_by_key,
    split_signed,
    tcb_info_path,
    verify_crl,
    verify_identity,
    verify_pck_crl,
    verify_tcb_info,
)
from attestation.errors import MalformedEvidence
from attestation.results.codes import Code
from attestation.wire import tlv
from attestation_testing.tee import x509
from attestation_testing.tee.intel import (
    ISSUED,
    Platform,
    changed_copy,
    collateral_json,
    exact,
    module,
    names,
    platform_level,
    qe_identity,
    tcb_info,
)
from tests.vectors import SHARED

CONFIDENTIAL = SHARED / "confidential"
needs_shared = pytest.mark.skipif(
    not (CONFIDENTIAL / "expected.json").exists(),
    reason="the vectors of confidential hardware are not beside the project (../shared/vectors)",
)


def root() -> Certificate:
    return parse_certificate((CONFIDENTIAL / "roots/intel-sgx-root-ca.der").read_bytes())


def collateral(name: str) -> Collateral:
    return parse_collateral((CONFIDENTIAL / f"{name}.collateral.json").read_bytes())


@needs_shared
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


@needs_shared
def test_only_the_exact_bytes_are_signed() -> None:
    """The same JSON with other spaces, or written anew, is another document."""
    found = collateral("tdx/v4-uptodate")
    assert found.tcb_info
    assert found.tcb_info_signature
    assert found.tcb_info_issuer_chain
    for other in (found.tcb_info.replace(b":", b": ", 1), json.dumps(json.loads(found.tcb_info)).encode()):
        with pytest.raises(Refused, match="not signed by"):
            verify_tcb_info(other, found.tcb_info_signature, found.tcb_info_issuer_chain, root())


@needs_shared
def test_the_signed_object_is_cut_from_an_answer() -> None:
    """Not a byte is lost, and the signature is 64 bytes."""
    answer = (CONFIDENTIAL / "tdx/collateral-2026-03/tcb_info_90c06f000000.json").read_bytes()
    chain = (CONFIDENTIAL / "tdx/collateral-2026-03/tcb_signing_chain.pem").read_bytes()
    info, signature = split_signed(answer, "tcbInfo")
    assert info in answer
    assert verify_tcb_info(info, signature, chain, root()).value.fmspc.hex() == "90c06f000000"


PLATFORM = Platform()
KIT = PLATFORM.collateral()
KIT_ROOT = parse_certificate(PLATFORM.pki.root)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("id", "QE"),
        ("id", None),
        ("version", 2),
        ("version", True),
        ("version", -1),
        ("issueDate", "2026-11-10"),
        ("issueDate", "2026-13-10T00:00:00Z"),
        ("nextUpdate", 7),
        ("fmspc", "90C06F0000"),
        ("fmspc", "90C06F00000g"),
        ("fmspc", "90 C06F00000"),
        ("pceId", "x" * 300),
        ("tcbEvaluationDataNumber", 1.0),
        ("tcbEvaluationDataNumber", 1 << 32),
        ("tdxModule", None),
        ("tdxModule.attributesMask", "FF"),
        ("tdxModuleIdentities", {}),
        ("tdxModuleIdentities", [module(), module("tdx_03")]),
        ("tdxModuleIdentities", [7]),
        ("tdxModuleIdentities.0.tcbLevels", []),
        ("tdxModuleIdentities.0.tcbLevels.0.tcb", {"isvsvn": 65536}),
        ("tdxModuleIdentities.0.tcbLevels.0.tcb", []),
        ("tcbLevels", []),
        ("tcbLevels", [platform_level()] * 257),
        ("tcbLevels.0.tcbStatus", "Fine"),
        ("tcbLevels.0.tcbStatus", "TDRelaunchAdvised"),
        ("tcbLevels.0.tcbStatus", "Unsupported"),
        ("tdxModuleIdentities.0.tcbLevels.0.tcbStatus", "SWHardeningNeeded"),
        ("tcbLevels.0.tcbDate", "today"),
        ("tcbLevels.0.advisoryIDs", ["x" * 65]),
        ("tcbLevels.0.advisoryIDs", [1]),
        ("tcbLevels.0.advisoryIDs", "x"),
        ("tcbLevels.0.tcb.pcesvn", 65536),
        ("tcbLevels.0.tcb.sgxtcbcomponents", [{"svn": 1}] * 15),
        ("tcbLevels.0.tcb.sgxtcbcomponents.3", {"svn": 256}),
        ("tcbLevels.0.tcb.sgxtcbcomponents.3", 3),
        ("tcbLevels.0.tcb.tdxtcbcomponents", None),
    ],
)
def test_tcb_info_is_read_strictly(path: str, value: object) -> None:
    """Each member that is used; what is signed and cannot be read is no better than what is not signed."""
    info = changed_copy(tcb_info(), path, value)
    with pytest.raises(MalformedEvidence):
        parse_tcb_info(exact(info))
    signed = PLATFORM.collateral(info=info)
    with pytest.raises(Refused) as refused:
        verify_tcb_info(
            signed.tcb_info or b"",
            signed.tcb_info_signature or b"",
            signed.tcb_info_issuer_chain or b"",
            KIT_ROOT,
        )
    assert refused.value.code is Code.COLLATERAL_INVALID


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("id", "TDX"),
        ("version", 3),
        ("mrsigner", "00"),
        ("isvprodid", 65536),
        ("miscselect", None),
        ("attributesMask", "FF" * 15),
        ("tcbLevels", None),
        ("tcbLevels.0.tcbStatus", "ConfigurationNeeded"),
    ],
)
def test_identities_are_read_strictly(path: str, value: object) -> None:
    """As TCB info is."""
    identity = changed_copy(qe_identity(), path, value)
    with pytest.raises(MalformedEvidence):
        parse_identity(exact(identity))
    signed = PLATFORM.collateral(identity=identity)
    with pytest.raises(Refused) as refused:
        verify_identity(
            signed.qe_identity or b"",
            signed.qe_identity_signature or b"",
            signed.qe_identity_issuer_chain or b"",
            KIT_ROOT,
        )
    assert refused.value.code is Code.COLLATERAL_INVALID


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"7",
        b"\xff",
        b'{"id": NaN}',
        b'{"id":"SGX","id":"TDX"}',
        b"[" * 100000,
        b" " * 262145,
        b'{"id": ' + b"9" * 5000 + b"}",
        b'{"id":"TDX",' + exact(tcb_info())[1:],
        b'{"id":"TD_QE",' + exact(qe_identity())[1:],
    ],
)
def test_what_is_no_document(data: bytes) -> None:
    """Not JSON, not one object, not ASCII, a member twice, too deep, too long."""
    for read in (parse_tcb_info, parse_identity, parse_collateral):
        if data == b"[" * 100000 or not (read is parse_collateral and data == b""):
            with pytest.raises(MalformedEvidence):
                read(data)


@pytest.mark.parametrize(
    "members",
    [
        {"more": "x"},
        {"tcb_info": 7},
        {"tcb_info": "\u00e9"},
        {"tcb_info_signature": "00"},
        {"tcb_info_signature": "xx"},
        {"pck_crl": "0"},
    ],
)
def test_collateral_that_comes_is_read_strictly(members: dict[str, object]) -> None:
    """Unknown members, other types, hex that is none, signatures of another length."""
    with pytest.raises(MalformedEvidence):
        parse_collateral(json.dumps(members).encode())


def test_collateral_comes_as_it_is_written() -> None:
    """Each object, or none."""
    assert parse_collateral(collateral_json(KIT)) == KIT
    assert parse_collateral(b"{}") == Collateral()


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b'{"tcbInfo":{}}',
        b'{"enclaveIdentity":{},"signature":"' + b"0" * 128 + b'"}',
        b'{"tcbInfo":{},"signature":"' + b"0" * 127 + b'"}',
        b'{"signature":"' + b"0" * 128 + b'","tcbInfo":{}}',
        b'{"tcbInfo":{},"signature":"' + b"0" * 128 + b'"}x',
        b" " * 262145,
    ],
)
def test_an_answer_of_another_form(answer: bytes) -> None:
    """Only the object with its signature behind it."""
    with pytest.raises(MalformedEvidence):
        split_signed(answer, "tcbInfo")


def extension(*items: bytes) -> bytes:
    """Return the extension with these members."""
    return x509.sequence(*items)


def member(arc: str, value: bytes) -> bytes:
    """Return one of them."""
    return x509.sequence(x509.oid(f"1.2.840.113741.1.13.1.{arc}"), value)


def test_the_extension_of_a_pck_certificate() -> None:
    """Each member must be there, of its type and length, once."""
    tcb = [member(f"2.{i}", x509.integer(i)) for i in range(1, 18)] + [member("2.18", x509.octets(bytes(16)))]
    parts = {
        1: x509.octets(bytes(16)),
        2: x509.sequence(*tcb),
        3: x509.octets(bytes(2)),
        4: x509.octets(bytes(6)),
        5: tlv(10, b"\x00"),
    }
    whole = [member(str(i), value) for i, value in parts.items()]
    found = parse_platform(extension(*whole))
    assert found.components == tuple(range(1, 17))
    assert (found.pce_svn, found.smt) == (17, None)
    flags = x509.sequence(member("7.3", tlv(1, b"\xff")), member("7.1", tlv(1, b"\x00")))
    configured = parse_platform(extension(*whole, member("7", flags)))
    assert (configured.smt, configured.dynamic_platform, configured.cached_keys) == (True, False, None)
    bad = {
        1: [x509.octets(bytes(15)), x509.integer(1)],
        2: [
            x509.sequence(*tcb[1:]),
            x509.sequence(*tcb, tcb[0]),
            x509.sequence(member("2.1", x509.integer(256))),
        ],
        3: [x509.octets(bytes(3))],
        4: [x509.octets(b"")],
        5: [x509.integer(0), tlv(10, b"\x01\x00")],
    }
    for arc, values in bad.items():
        for value in values:
            with pytest.raises(MalformedEvidence):
                parse_platform(
                    extension(*(member(str(i), value if i == arc else v) for i, v in parts.items()))
                )
    wrong = [
        b"",
        extension(*whole, whole[0]),
        extension(*whole) + b"\0",
        extension(*whole, x509.sequence(x509.oid("1.2.3"), x509.integer(1))),
        extension(*whole, tlv(0x31, whole[0][2:])),
        extension(*whole, member("7", x509.sequence(member("7.1", x509.integer(1))))),
        *(extension(*whole[:i], *whole[i + 1 :]) for i in range(5)),
    ]
    for data in wrong:
        with pytest.raises(MalformedEvidence):
            parse_platform(data)
    with pytest.raises(MalformedEvidence):
        platform_of(KIT_ROOT)


def test_lists_of_pck_certificates_by_their_own_chain() -> None:
    """For whoever stores them: the chain ends in a CA of platforms under the root."""
    pki = PLATFORM.pki
    assert KIT.pck_crl is not None
    chain = pki.chain(pki.platform_ca)
    assert verify_pck_crl(KIT.pck_crl, chain, KIT_ROOT)[1] == "platform"
    for wrong, code in (
        (pki.chain(pki.processor_ca), Code.COLLATERAL_INVALID),
        (pki.chain(pki.tcb_signing), Code.CHAIN_INVALID),
        (pki.chain(), Code.CHAIN_INVALID),
    ):
        with pytest.raises(Refused) as refused:
            verify_pck_crl(KIT.pck_crl, wrong, KIT_ROOT)
        assert refused.value.code is code
    indirect = x509.crl(
        issuer=names("Intel SGX Root CA"),
        signer=pki.root_key,
        revoked=(),
        this_update=ISSUED,
        next_update=ISSUED,
    )
    assert verify_crl(indirect, KIT_ROOT).next_update == ISSUED
    with pytest.raises(Refused):
        verify_crl(b"\x30" + bytes(262145), KIT_ROOT)


def test_lists_that_cannot_speak_here() -> None:
    """A delta list is refused; one that does not say until when it holds is never in date."""
    crl = verify_crl(PLATFORM.pki.crl(), KIT_ROOT)
    assert out_of_date(replace(crl, next_update=None), ISSUED) == "it does not say until when it holds"
    assert out_of_date(crl, ISSUED, 720) is None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "attestation.endorsements.intel.collateral.parse_crl",
            lambda _: replace(crl, unusable="it is a delta list"),
        )
        with pytest.raises(Refused, match="delta"):
            verify_crl(PLATFORM.pki.crl(at=ISSUED + timedelta(days=1)), KIT_ROOT)


def test_keys_of_another_curve_sign_nothing() -> None:
    """Intel signs on P-256; a key of another curve, or kind, and a signature of another length are none."""
    curve = ec.SECP384R1()
    key = x509.ec_key(curve, "other")
    assert not signed_by_key(key.public_key(), bytes(64), b"")
    assert not signed_by_key(PLATFORM.pck_key.public_key(), bytes(63), b"")
    other = parse_certificate(
        PLATFORM.pki.certificate("x", key, PLATFORM.pki.root_key, "Intel SGX Root CA", 5)
    )
    assert not signed_by(other, bytes(64), b"")
    assert not signed_by(replace(other, key="other"), bytes(64), b"")


def test_where_it_is_and_how_it_answers() -> None:
    """Paths of the PCS, headers and bodies."""
    assert tcb_info_path("TDX", "90c06f000000") == "/tdx/certification/v4/tcb?fmspc=90C06F000000"
    assert identity_path("SGX") == "/sgx/certification/v4/qe/identity"
    assert pck_crl_path("platform") == "/sgx/certification/v4/pckcrl?ca=platform&encoding=der"
    assert ROOT_CRL_PATH == "/sgx/certification/v4/rootcacrl"
    chain = PLATFORM.chain
    assert chain_of_header(quote(chain.decode())) == chain
    with pytest.raises(MalformedEvidence):
        chain_of_header("%ff")
    crl = PLATFORM.pki.crl()
    assert crl_of_answer(crl) == crl
    assert crl_of_answer(crl.hex().encode() + b"\n") == crl
    for body in (b"", b"x", b"308"):
        with pytest.raises(MalformedEvidence):
            crl_of_answer(body)
