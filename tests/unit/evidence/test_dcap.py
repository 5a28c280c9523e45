"""Whether a quote is authentic: each check of CONFIDENTIAL.md §9.3 fails alone, and no flipped bit is accepted."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attestation.appraisal.sgx import NAMES as SGX
from attestation.appraisal.tdx import NAMES as TDX
from attestation.endorsements.certificate import parse_certificate
from attestation.endorsements.intel import (
    Collateral,
    Endorsements,
    parse_collateral,
    parse_identity,
    parse_platform,
    parse_tcb_info,
    split_signed,
    verify_chain,
)
from attestation.errors import HardwareEvidenceRejected, MalformedEvidence
from attestation.evidence import dcap
from attestation.evidence.dcap import QuoteClaims, parse_enclave_report, parse_quote, parse_td_report, wanted
from attestation.wire import pem
from attestation_testing.tee import x509
from attestation_testing.tee.intel import (
    ISSUED,
    Pki,
    Platform,
    collateral_json,
    qe_identity,
    shared_pki,
    tcb_info,
    td_report,
)
from attestation_testing.tee.intel import names as intel_names
from tests.unit.evidence.dcap_zoo import AT, PLATFORM, TOLD, enclave, sgx, tdx
from tests.vectors.confidential import checks_by_name, needs_vectors, vector
from tests.vectors.confidential.dcap import at, collateral_of, quote_of, root

LONG = os.environ.get("TESTS_LONG") == "1"
GOOD = PLATFORM.quote(td_report(TOLD, size=648), version=5)
CHAIN_AT = len(GOOD) - len(PLATFORM.chain)
COLLATERAL = PLATFORM.collateral()
ROOT = parse_certificate(PLATFORM.pki.root)


def verify(
    quote: bytes = GOOD,
    *,
    collateral: Collateral | None = COLLATERAL,
    at: datetime = AT,
    told: bytes = TOLD,
    names: dcap.Checks = TDX.authentic,
) -> QuoteClaims:
    """Verify a quote of the test kit."""
    known = Endorsements(root=ROOT, collateral=collateral)
    return dcap.verify(
        parse_quote(quote), sent=None, endorsements=known, report_data=told, at=at, names=names
    )


def refused(quote: bytes = GOOD, **more: Any) -> set[str]:
    """Return the codes with which a quote is refused."""
    with pytest.raises(HardwareEvidenceRejected) as error:
        verify(quote, **more)
    known = checks_by_name()
    return {str(known[each.check].code) for each in error.value.failed}


def at_offset(quote: bytes, offset: int, value: bytes) -> bytes:
    """Return *quote* with other bytes at an offset."""
    return quote[:offset] + value + quote[offset + len(value) :]


def chained(*certificates: bytes) -> bytes:
    """Return a quote with another chain."""
    chain = "".join(pem("CERTIFICATE", each) for each in certificates).encode()
    return PLATFORM.quote(td_report(TOLD), chain=chain)


@pytest.mark.threat("T193")
def test_what_is_signed_over_and_by_whom() -> None:
    """Each link alone."""
    quote = parse_quote(GOOD)
    size = len(quote.signed)
    report_at = size + 4 + 64 + 64 + 6
    other = Platform(seed="other")
    for changed in (
        at_offset(GOOD, size + 4, bytes(64)),
        # r and s of another quote by the same key
        at_offset(GOOD, size + 4, parse_quote(PLATFORM.quote(td_report(TOLD))).signature),
        # the key of another quoting enclave, which signs this quote well
        at_offset(
            at_offset(
                GOOD,
                size + 4,
                parse_quote(other.quote(td_report(TOLD, size=648), version=5)).signature,
            ),
            size + 68,
            parse_quote(other.quote(td_report(TOLD))).attestation_key,
        ),
        at_offset(GOOD, size + 68, b"\x01" * 64),
        at_offset(GOOD, report_at + 384, bytes(64)),
        at_offset(GOOD, report_at + 384 + 64 + 2, bytes(32)),
        PLATFORM.quote(td_report(TOLD), qe={"at_320": bytes(32)}),
        PLATFORM.quote(td_report(TOLD), qe={"at_352": b"\x01"}),
        PLATFORM.quote(td_report(TOLD), key_of=other, chain=PLATFORM.chain),
    ):
        assert refused(changed) == {"signature-invalid"}


def test_an_attestation_key_that_is_no_point() -> None:
    """Bound by the quoting enclave, and on no curve."""
    auth = bytes(range(32))
    report = {"at_320": hashlib.sha256(bytes(64) + auth).digest()}
    quote = PLATFORM.quote(td_report(TOLD), qe=report)
    assert refused(at_offset(quote, 632 + 4 + 64, bytes(64))) == {"signature-invalid"}


def test_the_form_of_a_quote() -> None:
    """Version, TEE, key type, vendor and ranges that must be zero."""
    enclaves = PLATFORM.quote(enclave(), version=3, tee="SGX")
    for quote, names in (
        (PLATFORM.quote(td_report(TOLD), header={2: b"\x03"}), TDX),
        (PLATFORM.quote(td_report(TOLD), header={4: b"\x00"}), TDX),
        (PLATFORM.quote(td_report(TOLD), header={4: b"\x00"}), SGX),
        (PLATFORM.quote(enclave(), version=3, tee="TDX"), TDX),
        (PLATFORM.quote(td_report(TOLD), header={12: b"\x00"}), TDX),
        (PLATFORM.quote(td_report(TOLD, td_attributes=b"\x02\x00\x00\x10" + bytes(4))), TDX),
        (PLATFORM.quote(td_report(TOLD), qe={"at_20": b"\x01"}), TDX),
        *(
            (PLATFORM.quote(enclave(**{f"at_{i}": b"\x01"}), version=3, tee="SGX"), SGX)
            for i in (20, 96, 160, 260)
        ),
        (enclaves, TDX),
        (GOOD, SGX),
    ):
        found = refused(quote, names=names.authentic, collateral=None)
        assert found == {"report-invalid"}, quote[:60].hex()


def test_the_report_data() -> None:
    """Another challenge, told together with all else that is wrong."""
    assert refused(told=bytes(64)) == {"binding-mismatch"}
    both = at_offset(PLATFORM.quote(td_report(bytes(64)), header={2: b"\x03"}), 700, b"\xff\xff")
    assert refused(both) == {"binding-mismatch", "report-invalid", "signature-invalid"}


def _chains() -> Iterator[tuple[str, bytes]]:
    pki, stranger = shared_pki(), Pki("stranger")
    pck, ca = PLATFORM.pck, pki.platform_ca
    yield "no chain", PLATFORM.quote(td_report(TOLD), chain=b"")
    yield "not PEM", PLATFORM.quote(td_report(TOLD), chain=b"\x30\x00")
    yield "only roots", chained(pki.root)
    yield "five certificates", chained(pck, ca, pki.root, pki.root, pki.root)
    yield "too long", PLATFORM.quote(td_report(TOLD), chain=PLATFORM.chain + b"\n" * 16384)
    yield "without the CA", chained(pck, pki.root)
    yield "CA of another root", chained(pck, stranger.platform_ca, pki.root)
    yield "another CA of ours", chained(pck, pki.processor_ca, pki.root)
    yield "not a CA of platforms", chained(pki.tcb_signing, pki.root)
    yield "the wrong way round", chained(ca, pck, pki.root)
    key = pki.platform_key
    for words, changed in {
        "not a CA": pki.certificate("Intel SGX PCK Platform CA", key, pki.root_key, "Intel SGX Root CA", 2),
        "of another name": pki.certificate("Intel", key, pki.root_key, "Intel SGX Root CA", 2, ca=0),
    }.items():
        yield words, chained(pck, changed, pki.root)
    renamed = pki.certificate(
        "Intel SGX PCK Certificate",
        PLATFORM.pck_key,
        key,
        "Intel SGX PCK Processor CA",
        77,
        more=[PLATFORM.sgx_extension()],
    )
    yield "signed by the right key under another name", chained(renamed, ca, pki.root)
    stray = pki.certificate("Intel SGX Stray CA", key, pki.root_key, "Intel SGX Root CA", 2, ca=0)
    under = pki.certificate(
        "Intel SGX PCK Certificate",
        PLATFORM.pck_key,
        key,
        "Intel SGX Stray CA",
        77,
        more=[PLATFORM.sgx_extension()],
    )
    yield "under a CA of Intel that is none of platforms", chained(under, stray, pki.root)
    nameless = pki.certificate(
        "Intel SGX PCK Certificate", PLATFORM.pck_key, key, "Intel SGX PCK Platform CA", 77
    )
    yield "without the extension", chained(nameless, ca, pki.root)
    sub_key = x509.ec_key(PLATFORM.pck_key.curve, "sub")
    sub = pki.certificate("Intel SGX PCK Processor CA", sub_key, key, "Intel SGX PCK Platform CA", 9, ca=0)
    below = pki.certificate(
        "Intel SGX PCK Certificate",
        PLATFORM.pck_key,
        sub_key,
        "Intel SGX PCK Processor CA",
        77,
        more=[PLATFORM.sgx_extension()],
    )
    yield "a CA below a CA that certifies none", chained(below, sub, ca, pki.root)
    critical = x509.extension("1.2.3.4", b"\x05\x00", critical=True)
    yield (
        "unknown critical extension",
        chained(
            pki.certificate(
                "Intel SGX PCK Certificate",
                PLATFORM.pck_key,
                key,
                "Intel SGX PCK Platform CA",
                77,
                more=[PLATFORM.sgx_extension(), critical],
            ),
            ca,
            pki.root,
        ),
    )


CHAINS = dict(_chains())


@pytest.mark.parametrize("name", CHAINS)
def test_chains(name: str) -> None:
    """Names, CA flags, path lengths, roots and what is certified."""
    quote = CHAINS[name]
    assert refused(quote) >= {"chain-invalid"}, name
    if name != "not a CA of platforms":
        assert wanted(parse_quote(quote), ROOT) is None


def test_chains_that_are_good_in_another_way() -> None:
    """Without the root, with a foreign root behind it, and with NULs: the pinned root ends it."""
    pki = shared_pki()
    for quote in (
        chained(PLATFORM.pck, pki.platform_ca),
        chained(PLATFORM.pck, pki.platform_ca, Pki("stranger").root),
        PLATFORM.quote(td_report(TOLD), chain=PLATFORM.chain + b"\0"),
    ):
        claims = verify(quote)
        assert claims.platform.ppid == PLATFORM.ppid
        assert claims.test_only
        key = wanted(parse_quote(quote), ROOT)
        assert key == ("TDX", "90C06F000000", "platform")


def test_certification_data_of_another_type() -> None:
    """Encrypted PPIDs and the like name no chain."""
    assert refused(at_offset(GOOD, CHAIN_AT - 6, b"\x03")) == {"chain-invalid"}


def test_time_of_chains() -> None:
    """Outside the validity of a certificate; inside, whatever was remembered."""
    for instant in (datetime(2010, 1, 1, tzinfo=UTC), datetime(2090, 1, 1, tzinfo=UTC)):
        assert refused(at=instant) == {"chain-invalid"}
        assert refused(at=instant, collateral=None) == {"chain-invalid"}
    verify()


def test_no_flipped_bit_of_what_is_signed() -> None:
    """Header, body, signatures, key, report and authentication data of the quoting enclave; each bit."""
    for place in range(0, 8 * CHAIN_AT, 1 if LONG else 3):
        data = bytearray(GOOD)
        data[place // 8] ^= 1 << place % 8
        try:
            found = refused(bytes(data))
        except MalformedEvidence:
            continue
        size = len(parse_quote(GOOD).signed)
        implied = {"signature-invalid"}
        if place >= 8 * (CHAIN_AT - 6):
            implied = {"chain-invalid"}
        elif place < 8 * size:
            implied |= {"report-invalid", "binding-mismatch"}
        else:
            implied |= {"report-invalid"}
        assert found & implied, place // 8
        if place < 8 * (CHAIN_AT - 6):
            assert "signature-invalid" in found


@pytest.mark.parametrize("place", [0, 1], ids=["PCK", "CA"])
def test_no_flipped_bit_of_a_certificate(place: int) -> None:
    """Each bit of what vouches for the platform: the chain is invalid, whatever else is."""
    pki = shared_pki()
    chain = [PLATFORM.pck, pki.platform_ca, pki.root]
    body = td_report(TOLD)
    for bit in range(0, 8 * len(chain[place]), 1 if LONG else 13):
        data = bytearray(chain[place])
        data[bit // 8] ^= 1 << bit % 8
        changed = [*chain]
        changed[place] = bytes(data)
        quote = PLATFORM.quote(body, chain="".join(pem("CERTIFICATE", each) for each in changed).encode())
        assert "chain-invalid" in refused(quote), bit // 8


@pytest.mark.parametrize("name", ["tcb_info", "qe_identity", "pck_crl", "root_ca_crl"])
def test_no_flipped_bit_of_collateral(name: str) -> None:
    """Each bit, and each of its signature: the object is not believed, and it is told."""
    for member in (name, f"{name}_signature"):
        data = getattr(COLLATERAL, member, None)
        if data is None:
            continue
        for bit in range(0, 8 * len(data), 1 if LONG else 13):
            flipped = bytearray(data)
            flipped[bit // 8] ^= 1 << bit % 8
            claims = verify(collateral=replace(COLLATERAL, **{member: bytes(flipped)}))
            assert claims.vouched.invalid, (member, bit // 8)
            if not name.endswith("crl"):
                assert claims.tcb is None


@pytest.mark.threat("T194")
@pytest.mark.parametrize("name", ["tcb_info", "qe_identity"])
def test_collateral_is_signed_by_whom_it_must_be(name: str) -> None:
    """A chain of another root is refused; another certificate of Intel's is not who signs collateral."""
    chains = {"tcb_info": "tcb_info_issuer_chain", "qe_identity": "qe_identity_issuer_chain"}
    stranger = Pki("stranger")
    foreign = replace(COLLATERAL, **{chains[name]: stranger.chain(stranger.tcb_signing)})
    assert refused(collateral=foreign) == {"chain-invalid"}
    for broken in (b"", b"-----BEGIN"):
        assert refused(collateral=replace(COLLATERAL, **{chains[name]: broken})) == {"chain-invalid"}

    pck = replace(COLLATERAL, **{chains[name]: PLATFORM.chain})
    assert any("not Intel SGX TCB Signing" in each for each in verify(collateral=pck).vouched.invalid)


@pytest.mark.parametrize("name", ["tcb_info", "qe_identity"])
def test_who_signed_each_object_is_looked_at(name: str) -> None:
    """Its certificate may have expired, or be revoked, though that of the other object is good."""
    pki, data = shared_pki(), getattr(COLLATERAL, name)
    for serial, until, revoked in ((44, x509.FAR, True), (45, datetime(2026, 1, 1, tzinfo=UTC), False)):
        signer = pki.certificate(
            "Intel SGX TCB Signing", pki.tcb_key, pki.root_key, "Intel SGX Root CA", serial, not_after=until
        )
        collateral = replace(
            COLLATERAL,
            **{f"{name}_issuer_chain": pki.chain(signer), "root_ca_crl": pki.crl("root", 44)},
        )
        assert data is not None
        if revoked:
            assert len(verify(collateral=collateral).vouched.revoked) == 1
        else:
            assert refused(collateral=collateral) == {"chain-invalid"}


def test_lists_that_say_nothing() -> None:
    """Not DER, too long, no list, of another issuer: told, and nobody is cleared by them."""
    pki, stranger = shared_pki(), Pki("stranger")
    platform = intel_names("Intel SGX PCK Platform CA")
    processor = intel_names("Intel SGX PCK Processor CA")
    made: dict[str, Any] = {
        "revoked": (),
        "this_update": ISSUED,
        "next_update": datetime(2027, 1, 1, tzinfo=UTC),
    }
    good = x509.crl(issuer=platform, signer=pki.platform_key, **made)
    assert not verify(collateral=replace(COLLATERAL, pck_crl=good)).vouched.invalid
    for data in (
        b"",
        b"x",
        b"\x30\x00",
        b"\x30" + bytes(300000),
        pki.crl("root"),
        PLATFORM.pck,
        x509.crl(issuer=platform, signer=stranger.platform_key, **made),
        x509.crl(issuer=processor, signer=pki.platform_key, **made),
    ):
        assert verify(collateral=replace(COLLATERAL, pck_crl=data)).vouched.invalid


def test_what_is_missing_is_named() -> None:
    """Each object by itself, and all of them; the rest still stands."""
    for member, told in {
        "tcb_info": "TCB info",
        "tcb_info_signature": "TCB info",
        "tcb_info_issuer_chain": "TCB info",
        "qe_identity": "QE identity",
        "pck_crl": "PCK revocation list",
        "root_ca_crl": "revocation list of the root",
    }.items():
        vouched = verify(collateral=replace(COLLATERAL, **{member: None})).vouched
        assert (*vouched.missing, *vouched.missing_lists) == (told,)
        assert not vouched.invalid
    claims = verify(collateral=None)
    assert claims.tcb is None
    assert len(claims.vouched.missing) + len(claims.vouched.missing_lists) == 4


def test_collateral_that_came_is_preferred_object_by_object() -> None:
    """What belongs together stays together."""
    sent = replace(Collateral(), root_ca_crl=b"x", tcb_info=b"y")
    merged = sent.over(COLLATERAL)
    assert (merged.root_ca_crl, merged.tcb_info, merged.tcb_info_signature) == (b"x", b"y", None)
    assert merged.qe_identity == COLLATERAL.qe_identity
    assert sent.over(None) is sent
    assert COLLATERAL.over(replace(COLLATERAL, qe_identity=b"x")) == COLLATERAL


@pytest.mark.threat("T203")
def test_no_machine_brings_back_what_was_overtaken() -> None:
    """Collateral in date, but issued before ours: a revoked platform stays revoked, and an old TCB old."""
    later = ISSUED + timedelta(days=1)
    ours = replace(
        PLATFORM.collateral(
            info=tcb_info(issued=later, tcbEvaluationDataNumber=21),
            identity=qe_identity(issued=later, tcbEvaluationDataNumber=22),
        ),
        pck_crl=PLATFORM.pki.crl(PLATFORM.ca, 77, at=later),
        root_ca_crl=PLATFORM.pki.crl("root", 4, at=later),
    )
    quote = parse_quote(GOOD)
    for sent, stored in ((COLLATERAL, ours), (ours, COLLATERAL), (None, ours), (ours, None)):
        known = Endorsements(root=ROOT, collateral=stored)
        claims = dcap.verify(
            quote, sent=sent, endorsements=known, report_data=TOLD, at=AT, names=TDX.authentic
        )
        assert len(claims.vouched.revoked) == 2
        assert claims.vouched.info is not None
        assert claims.vouched.identity is not None
        assert claims.vouched.info.evaluation_number == 21
        assert claims.vouched.identity.evaluation_number == 22


@pytest.mark.parametrize(
    "quote", [tdx().quote, tdx(version=5, size=648).quote, sgx().quote, sgx(version=5).quote]
)
def test_every_cut_is_malformed(quote: bytes) -> None:
    """And what is behind a quote is counted and cut off."""
    for size in range(len(quote)):
        with pytest.raises(MalformedEvidence):
            parse_quote(quote[:size])
    assert parse_quote(quote + bytes(70)) == replace(parse_quote(quote), padding_bytes=70)
    with pytest.raises(MalformedEvidence):
        parse_quote(quote + bytes(32768))


def test_versions_and_bodies_that_do_not_exist() -> None:
    """And sizes that are not those of the body, and bytes between what was stated."""
    v4 = tdx().quote
    wrong = [
        *(at_offset(GOOD, 0, version.to_bytes(2, "little")) for version in (0, 2, 6, 0xFFFF)),
        at_offset(GOOD, 48, b"\x04\x00"),
        at_offset(GOOD, 50, b"\x00\x00\x00\x00"),
        at_offset(v4, 632 + 4 + 128, b"\x05\x00"),
    ]
    # One byte more of signature data, or of certification data, than its parts.
    long = at_offset(v4, 632, (int.from_bytes(v4[632:636], "little") + 1).to_bytes(4, "little")) + b"\0"
    longer = at_offset(long, 632 + 4 + 130, (int.from_bytes(v4[766:770], "little") + 1).to_bytes(4, "little"))
    for quote in (*wrong, long, longer):
        with pytest.raises(MalformedEvidence):
            parse_quote(quote)
    for data in (bytes(383), bytes(385)):
        with pytest.raises(MalformedEvidence):
            parse_enclave_report(data)
    for size in (583, 585, 647, 649):
        with pytest.raises(MalformedEvidence):
            parse_td_report(bytes(size))


@given(st.binary(max_size=64), st.integers(0, len(GOOD)))
def test_readers_fail_in_one_way(data: bytes, place: int) -> None:
    """Whatever bytes, also in the middle of good ones."""
    whole = at_offset(GOOD, place, data)
    extension = PLATFORM.sgx_extension()
    for read, given_ in (
        (parse_quote, (data, whole)),
        (parse_platform, (data, extension[: place % len(extension)] + data)),
        (parse_tcb_info, (data, at_offset(COLLATERAL.tcb_info or b"", place, data))),
        (parse_identity, (data, at_offset(COLLATERAL.qe_identity or b"", place, data))),
        (parse_collateral, (data, at_offset(collateral_json(COLLATERAL), place, data))),
        (lambda each: split_signed(each, "tcbInfo"), (data, b'{"tcbInfo":{' + data)),
    ):
        for each in given_:
            try:
                read(each)
            except MalformedEvidence:
                continue


def test_what_verifies_is_remembered_and_what_fails_is_not() -> None:
    """A chain that is verified again costs no signature; its time is looked at all the same."""
    verify_chain.cache_clear()
    verify()
    before = verify_chain.cache_info()
    verify()
    after = verify_chain.cache_info()
    assert after.misses == before.misses
    assert after.hits > before.hits
    stranger = Platform(pki=Pki("stranger"), seed="stranger")
    refused(stranger.quote(td_report(TOLD)))
    assert verify_chain.cache_info().currsize == after.currsize


@needs_vectors
@pytest.mark.parametrize("name", ["tdx-v4-uptodate", "tdx-v5-uptodate", "sgx-v3-config-swhardening"])
def test_no_flipped_bit_of_a_genuine_quote(name: str) -> None:
    """Every byte of what is signed, of signatures and of the key, in quotes that platforms made."""
    entry = vector(name)
    quote = quote_of(entry)
    parsed = parse_quote(quote)
    known = Endorsements(root=root(), collateral=collateral_of(entry))
    names = (SGX if entry["kind"] == "sgx-quote" else TDX).authentic
    chain_at = quote.index(parsed.certification) - 6
    for place in range(0, 8 * chain_at, 1 if LONG else 7):
        data = bytearray(quote)
        data[place // 8] ^= 1 << place % 8
        with pytest.raises((MalformedEvidence, HardwareEvidenceRejected)):
            dcap.verify(
                parse_quote(bytes(data)),
                sent=None,
                endorsements=known,
                report_data=parsed.body.report_data,
                at=at(entry),
                names=names,
            )


def test_pem_is_read_strictly() -> None:
    """A block that cannot be read is not passed over."""
    chain = PLATFORM.chain + b"-----BEGIN CERTIFICATE-----\n" + base64.b64encode(b"x")
    assert refused(PLATFORM.quote(td_report(TOLD), chain=chain)) == {"chain-invalid"}
