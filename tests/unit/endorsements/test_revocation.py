"""Revocation lists: good, revoked or unknown, and unknown where anything is in doubt (RFC 5280, 5)."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st

from attestation.endorsements import revocation
from attestation.endorsements.certificate import Certificate, parse_certificate
from attestation.endorsements.revocation import CRL, CRLStore, Revocation, parse_crl
from attestation.errors import MalformedEvidence
from attestation_testing import (
    CAOptions,
    CertificateAuthority,
    EKCertificateOptions,
    Quirk,
    SoftwareEK,
    make_ek_certificate,
)
from tests.vectors import forge

AT = datetime(2026, 11, 21, tzinfo=UTC)
KEY = forge.ec_private("own CRL issuer", 3)
ROOT = CertificateAuthority("Root", key=KEY)
ISSUER = parse_certificate(ROOT.certificate)
EK = SoftwareEK("L-2", seed=1)
LEAF = parse_certificate(
    make_ek_certificate(
        EK.public, ROOT, at=AT, options=EKCertificateOptions(quirks=frozenset({Quirk.POINTERS}))
    )
)
CA = parse_certificate(CertificateAuthority("Middle", seed=2, parent=ROOT).certificate)
SHA256: Final = hashes.SHA256()
ALGORITHM: Final = forge.seq(forge.ECDSA_SHA256)
POINT: Final = forge.tlv(0xA0, forge.tlv(0xA0, forge.tlv(0x86, b"http://ca.example/zoo")))
ELSEWHERE: Final = forge.tlv(0xA0, forge.tlv(0xA0, forge.tlv(0x86, b"http://ca.example/other")))


def entry(serial: int, extensions: bytes = b"") -> bytes:
    """Return one revoked certificate."""
    return forge.seq(forge.integer(serial), forge.utc_time("260101000000Z"), extensions)


def reason(code: int) -> bytes:
    """Return extensions of an entry with a reason code."""
    return forge.seq(forge.extension("2.5.29.21", forge.tlv(0x0A, bytes([code]))))


def made(
    revoked: Sequence[bytes] = (),
    extensions: Mapping[str, bytes] | None = None,
    *,
    version: bytes = forge.integer(1),
    issuer: bytes = ROOT.subject,
    this_update: str = "261101000000Z",
    next_update: bytes = forge.utc_time("270101000000Z"),
    algorithm: bytes = ALGORITHM,
    inner: bytes | None = None,
    more: bytes = b"",
    key: ec.EllipticCurvePrivateKey = KEY,
    hash_: hashes.HashAlgorithm = SHA256,
) -> bytes:
    """Return a list, signed."""
    tbs = forge.seq(
        version,
        algorithm if inner is None else inner,
        issuer,
        forge.utc_time(this_update),
        next_update,
        forge.seq(*revoked) if revoked else b"",
        forge.tlv(0xA0, forge.seq(*extensions.values())) if extensions else b"",
        more,
    )
    return forge.seq(
        tbs, algorithm, forge.bit_string(key.sign(tbs, ec.ECDSA(hash_, deterministic_signing=True)))
    )


def status(
    *lists: bytes, of: Certificate = LEAF, issuer: Certificate = ISSUER, at: datetime = AT
) -> tuple[str, str]:
    """Return what *lists* say, and why."""
    found = CRLStore(map(parse_crl, lists)).status(of, issuer, at)
    return found.status.value, found.reason


# ---------------------------------------------------------------- what lists say


def test_who_is_on_the_list_is_revoked() -> None:
    """With the reason in words."""
    said, why = status(made([entry(5), entry(LEAF.serial, reason(1))]))
    assert (said, why) == ("revoked", "key compromise, by the list of 2026-11-01")
    assert status(made([entry(LEAF.serial)]))[1] == "unspecified, by the list of 2026-11-01"
    assert status(made([entry(LEAF.serial, reason(99))]))[1].startswith("unspecified")
    dated = forge.seq(forge.extension("2.5.29.24", forge.generalized_time("20250101000000Z")))
    assert status(made([entry(LEAF.serial, dated)]))[0] == "revoked"


def test_who_is_not_on_it_is_good() -> None:
    """On a list that is in date and covers it; of an empty one too."""
    assert status(made([entry(5)])) == ("good", "not on the list of 2026-11-01")
    assert status(made()) == ("good", "not on the list of 2026-11-01")
    assert status(made(), of=CA)[0] == "good"


def test_without_a_list_nothing_is_known() -> None:
    """Nor from one of another issuer."""
    assert status() == ("unknown", "no list of Common Name: Root")
    other = CertificateAuthority("Other", key=KEY)
    assert status(made(issuer=other.subject))[0] == "unknown"
    assert len(CRLStore([parse_crl(made())])) == 1
    assert len(CRLStore()) == 0


def test_names_are_compared_normalised() -> None:
    """The list's issuer may write its name in another string type."""
    assert status(made(issuer=ROOT.written_otherwise()))[0] == "good"


@pytest.mark.threat("T61")
@pytest.mark.parametrize(
    ("data", "why"),
    [
        (made(next_update=forge.utc_time("261120000000Z")), "out of date"),
        (made(next_update=b""), "out of date"),
        (made(this_update="261122000000Z"), "not yet valid"),
        (made(key=forge.ec_private("own stranger", 3)), "not signed by the key of Common Name: Root"),
        (made(extensions={"x": forge.extension("2.5.29.27", forge.integer(1), critical=True)}), "delta list"),
        (made(extensions={"x": forge.extension("2.5.29.27", forge.integer(1))}), "delta list"),
        (
            made(extensions={"x": forge.extension("1.2.3", b"", critical=True)}),
            "unknown critical extension 1.2.3",
        ),
        (
            made([entry(5, forge.seq(forge.extension("2.5.29.29", b"", critical=True)))]),
            "an entry has the unknown critical extension 2.5.29.29",
        ),
        (made(inner=forge.seq(forge.oid("1.2.840.10045.4.3.3"))), "inside the signed part"),
        (
            made(algorithm=forge.seq(forge.oid("1.2.840.10045.4.1")), hash_=hashes.SHA1()),
            "signed over SHA-1",
        ),
    ],
)
def test_a_list_in_doubt_says_nothing(data: bytes, why: str) -> None:
    """Unknown, with what is wrong about the list."""
    said, found = status(data)
    assert said == "unknown"
    assert why in found


@pytest.mark.threat("T61")
def test_an_entry_of_a_list_in_doubt_says_nothing_either() -> None:
    """Anybody could write one that revokes; only being out of date leaves an entry standing."""
    listed = [entry(LEAF.serial)]
    assert status(made(listed, key=forge.ec_private("own stranger", 3)))[0] == "unknown"
    assert status(made(listed, next_update=forge.utc_time("261120000000Z")))[0] == "revoked"
    assert status(made(listed, next_update=b""))[0] == "revoked"
    partial = {"x": point(forge.tlv(0x83, b"\6\x40"))}
    assert status(made(listed, partial))[0] == "revoked"


@pytest.mark.threat("T61")
def test_an_issuer_that_may_not_sign_lists_says_nothing() -> None:
    """KeyUsage without cRLSign; without keyUsage it may."""
    for usage, said in ((b"\x02\x04", "unknown"), (b"", "good"), (b"\x01\x06", "good")):
        issuer = CertificateAuthority("Root", key=KEY, options=CAOptions(key_usage=usage))
        found = status(made(), issuer=parse_certificate(issuer.certificate))
        assert found[0] == said
        assert ("may not sign revocation lists" in found[1]) == (said == "unknown")


def point(*members: bytes, critical: bool = True) -> bytes:
    """Return an IssuingDistributionPoint."""
    return forge.extension("2.5.29.28", forge.seq(*members), critical=critical)


@pytest.mark.threat("T61")
@pytest.mark.parametrize(
    ("members", "leaf", "ca"),
    [
        ((), "good", "good"),
        ((forge.tlv(0x81, b"\xff"),), "good", "unknown"),
        ((forge.tlv(0x82, b"\xff"),), "unknown", "good"),
        ((forge.tlv(0x82, b"\0"),), "good", "good"),
        ((forge.tlv(0x85, b"\xff"),), "unknown", "unknown"),
        ((forge.tlv(0x83, b"\6\x40"),), "unknown", "unknown"),
        ((forge.tlv(0x84, b"\xff"),), "unknown", "unknown"),
        ((POINT,), "good", "unknown"),
        ((ELSEWHERE,), "unknown", "unknown"),
        ((forge.tlv(0xA0, forge.tlv(0xA1, b"")),), "unknown", "unknown"),
    ],
)
def test_a_list_speaks_of_what_it_covers(members: tuple[bytes, ...], leaf: str, ca: str) -> None:
    """Only users, only CAs, only some reasons, another distribution point, other issuers' certificates."""
    for critical in (True, False):
        data = made(extensions={"x": point(*members, critical=critical)})
        assert (status(data)[0], status(data, of=CA)[0]) == (leaf, ca)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\x05\0",
        forge.seq(forge.seq(forge.tlv(0xA0, b"\xa0"))),
        forge.seq(forge.seq(forge.tlv(0x81, b"\x01"))),
    ],
)
def test_distribution_points_that_cannot_be_read_are_none(value: bytes) -> None:
    """A certificate's own; a list that is cut into points does not cover it."""
    extension = {**forge.profile(is_rsa=False), "x": forge.extension("2.5.29.31", value)}
    certificate = parse_certificate(forge.certificate(forge.spki(KEY), extension))
    assert status(made(extensions={"x": point(POINT)}), of=certificate)[0] == "unknown"
    assert status(made(), of=certificate)[0] == "good"


@pytest.mark.threat("T61")
def test_the_newest_list_that_can_speak_decides() -> None:
    """Out of date, unsigned or about others: the next older one is asked."""
    old = made([entry(LEAF.serial)], this_update="261001000000Z")
    new = made(this_update="261115000000Z")
    assert status(old, new)[0] == status(new, old)[0] == "good"
    forged = made(this_update="261116000000Z", key=forge.ec_private("own stranger", 3))
    assert status(old, forged)[0] == "revoked"
    stale = made(this_update="261117000000Z", next_update=forge.utc_time("261118000000Z"))
    assert status(stale, old)[0] == "revoked"
    assert status(stale, forged) == (
        "unknown",
        "the list of 2026-11-16: not signed by the key of Common Name: Root",
    )


def test_a_signature_is_verified_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Per list and issuer: lists are long, and machines many. A wrong one is never taken for good."""
    asked: list[str] = []
    original = CRL.verify_issued_by

    def counting(crl: CRL, issuer: Certificate) -> None:
        asked.append(issuer.subject)
        original(crl, issuer)

    monkeypatch.setattr(CRL, "verify_issued_by", counting)
    store = CRLStore([parse_crl(made())])
    for _ in range(3):
        assert store.status(LEAF, ISSUER, AT).status is Revocation.GOOD
    assert len(asked) == 1
    impostor = parse_certificate(CertificateAuthority("Root", seed=7).certificate)
    for _ in range(2):
        assert store.status(LEAF, impostor, AT).status is Revocation.UNKNOWN
    assert len(asked) == 3


# ---------------------------------------------------------------- reading


def test_every_field_is_read() -> None:
    """Numbers, instants, reasons; PEM and bytes behind the DER."""
    extensions = {
        "n": forge.extension("2.5.29.20", forge.integer(77)),
        "a": forge.extension("2.5.29.35", b""),
    }
    data = made(
        [entry(5, reason(4)), forge.seq(forge.tlv(2, b"\xfd"), forge.utc_time("260101000000Z"))], extensions
    )
    crl = parse_crl(data)
    assert dict(crl.revoked) == {5: "superseded", -3: "unspecified"}
    assert (crl.number, crl.issuer_name.text, crl.unusable) == (77, "Common Name: Root", None)
    assert (crl.this_update, crl.next_update) == (
        datetime(2026, 11, 1, tzinfo=UTC),
        datetime(2027, 1, 1, tzinfo=UTC),
    )
    pem = b"-----BEGIN X509 CRL-----\n" + base64.encodebytes(data) + b"-----END X509 CRL-----\n"
    assert parse_crl(pem) == parse_crl(data + b"\0\0") == crl
    first = parse_crl(made(version=b""))
    assert (first.number, dict(first.revoked)) == (None, {})


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x30\0",
        made()[:-1],
        b"-----BEGIN X509 CRL-----\nAAA\n-----END X509 CRL-----\n",
        forge.seq(made()[2 + (made()[1] & 0x7F) :], b"\x05\0"),
        made(version=forge.integer(2)),
        made(version=forge.tlv(0xA0, forge.integer(1))),
        made(more=forge.integer(1)),
        made(more=forge.tlv(0xA0, forge.seq(), forge.seq())),
        made(issuer=forge.integer(1)),
        made(this_update="x"),
        made([forge.integer(1)]),
        made([forge.tlv(0x31, forge.integer(1), forge.utc_time("260101000000Z"))]),
        made([forge.seq(forge.tlv(2, bytes(65)), forge.utc_time("260101000000Z"))]),
        made([entry(1, forge.integer(1))]),
        made([entry(1, forge.seq(forge.integer(1)))]),
        made([entry(1, forge.seq(forge.extension("2.5.29.21", forge.integer(1))))]),
        made(extensions={"x": forge.extension("2.5.29.20", forge.utf8("1"))}),
        made(extensions={"x": forge.extension("2.5.29.20", forge.tlv(2, bytes(65)))}),
        made(extensions={"x": forge.extension("1.2.3", b""), "y": forge.extension("1.2.3", b"")}),
        made(extensions={"x": forge.tlv(0x31, forge.oid("1.2.3"), forge.tlv(4))}),
        made(extensions={str(i): forge.extension(f"1.2.{i}", b"") for i in range(65)}),
        made(extensions={"x": forge.extension("2.5.29.28", b"\x05\0")}),
    ],
)
def test_what_is_no_list_is_malformed(data: bytes) -> None:
    """One error, whatever is wrong."""
    with pytest.raises(MalformedEvidence):
        parse_crl(data)


def test_the_longest_list_is_16_mib(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a smaller bound in its place."""
    data = made()
    monkeypatch.setattr(revocation, "MAX_CRL_BYTES", len(data))
    parse_crl(data)
    with pytest.raises(MalformedEvidence, match="at most"):
        parse_crl(data + b"\0")


LISTED = made([entry(LEAF.serial, reason(1))], {"n": forge.extension("2.5.29.20", forge.integer(1))})


@pytest.mark.threat("T61")
@pytest.mark.parametrize("place", range(0, len(LISTED) - 4, 5))
def test_no_changed_bit_of_a_list_is_believed(place: int) -> None:
    """A list with any bit of its signed part or signature changed frees nobody, and revokes nobody."""
    data = bytearray(LISTED)
    data[4 + place] ^= 1 << place % 8
    try:
        found = parse_crl(bytes(data))
    except MalformedEvidence:
        return
    assert CRLStore([found]).status(LEAF, ISSUER, AT).status is Revocation.UNKNOWN


@given(st.integers(0, len(LISTED) - 1), st.integers(0, 7))
def test_a_changed_list_is_never_good(where: int, bit: int) -> None:
    """Property: whoever is on the list of an authority is not freed by changing it."""
    data = bytearray(LISTED)
    data[where] ^= 1 << bit
    try:
        found = parse_crl(bytes(data))
    except MalformedEvidence:
        return
    assert CRLStore([found]).status(LEAF, ISSUER, AT).status is not Revocation.GOOD
