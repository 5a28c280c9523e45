"""Certificates of attestation keys: the profile, and anchors that are pinned for one use (TPM.md §§2.3, 2.4)."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from attestation.endorsements import der
from attestation.endorsements.ak_certificate import (
    MAX_OTHER_NAMES,
    PATH,
    PROFILE,
    AKAnchors,
    AKCertificateClaims,
    parse_ak_certificate,
    verify_ak_certificate,
)
from attestation.endorsements.certificate import parse_certificate
from attestation.endorsements.path import Expiry
from attestation.errors import AKCertificateRejected, MalformedEvidence
from attestation.wire import tlv
from attestation_testing import CertificateAuthority, pem
from attestation_testing.ak_certificates import (
    AKCertificateOptions,
    AKDefect,
    hardware_module_name,
    make_ak_certificate,
    other_name,
    permanent_identifier,
    utf8,
)
from attestation_testing.software_keys import SoftwareAK

AT = datetime(2026, 11, 23, tzinfo=UTC)
ROOT = CertificateAuthority("Provider Root", seed=1)
MIDDLE = CertificateAuthority("Provider Issuer", seed=2, parent=ROOT)
OTHER = CertificateAuthority("Other Root", seed=3)
KEY = SoftwareAK(seed=1).public.spki_der()


def anchors(*authorities: CertificateAuthority) -> AKAnchors:
    """Believe these."""
    return AKAnchors(parse_certificate(each.certificate) for each in authorities)


def verified(
    options: AKCertificateOptions | None = None,
    *,
    issuer: CertificateAuthority = ROOT,
    trusted: AKAnchors | None = None,
    chain: tuple[bytes, ...] = (),
) -> AKCertificateClaims:
    """Make a certificate and verify it."""
    made = make_ak_certificate(KEY, issuer, at=AT, options=options)
    return verify_ak_certificate(
        parse_ak_certificate(made), anchors=anchors(ROOT) if trusted is None else trusted, chain=chain, at=AT
    )


def test_a_certificate_of_a_configured_ca_vouches_for_its_key() -> None:
    """What comes out is about that key, by the word of that anchor."""
    claims = verified()
    assert claims.spki == KEY
    assert claims.public_key == SoftwareAK(seed=1).public.key()
    assert len(claims.sha256) == 64
    assert claims.validation.ok
    assert claims.validation.anchor_sha256 == parse_certificate(ROOT.certificate).sha256
    assert claims.validation.bundle_sha256 == anchors(ROOT).sha256
    assert claims.other_names == ()


@pytest.mark.parametrize("defect", AKDefect)
def test_each_defect_is_refused_by_its_check(defect: AKDefect) -> None:
    """One rule broken, one check named."""
    subject = "" if defect is AKDefect.SAN_NOT_CRITICAL else "key"
    options = AKCertificateOptions(defect=defect, directory_name=True, subject=subject)
    with pytest.raises(AKCertificateRejected) as refused:
        verified(options)
    of_path = {AKDefect.EXPIRED, AKDefect.NOT_YET_VALID, AKDefect.SIGNATURE_BROKEN}
    assert refused.value.check == (PATH if defect in of_path else PROFILE)


def test_a_weak_key_is_refused() -> None:
    """A key that nobody should have certified vouches for nothing."""
    made = make_ak_certificate(_rsa_1024(), ROOT, at=AT)
    with pytest.raises(AKCertificateRejected, match="at least 2048") as refused:
        verify_ak_certificate(parse_ak_certificate(made), anchors=anchors(ROOT), chain=(), at=AT)
    assert refused.value.check == PROFILE


def _rsa_1024() -> bytes:
    bare = tlv(der.SEQUENCE, der.write_unsigned((1 << 1023) + 1) + der.write_unsigned(65537))
    algorithm = bytes.fromhex("300d06092a864886f70d0101010500")
    return tlv(der.SEQUENCE, algorithm + tlv(der.BIT_STRING, b"\0" + bare))


def test_an_empty_subject_needs_a_critical_san() -> None:
    """RFC 5280, 4.2.1.6; without any SAN nobody is named at all."""
    assert verified(AKCertificateOptions(subject="", directory_name=True)).validation.ok
    with pytest.raises(AKCertificateRejected, match="critical"):
        verified(AKCertificateOptions(subject=""))


def test_anchors_of_another_use_do_not_stand_in() -> None:
    """Whom the operator believes about one thing is not believed about another."""
    with pytest.raises(AKCertificateRejected) as refused:
        verified(trusted=anchors(OTHER))
    assert refused.value.check == PATH
    with pytest.raises(AKCertificateRejected):
        verified(trusted=anchors())


def test_intermediates_that_came_along_lead_to_the_anchor() -> None:
    """They are hints: the signatures decide."""
    claims = verified(issuer=MIDDLE, chain=(b"not a certificate", MIDDLE.certificate))
    assert [each.role for each in claims.validation.path] == ["leaf", "intermediate", "anchor"]
    with pytest.raises(AKCertificateRejected, match="no issuer"):
        verified(issuer=MIDDLE)
    assert verified(issuer=MIDDLE, trusted=anchors(MIDDLE)).validation.ok, "an anchor need not be self-signed"


def test_what_is_distrusted_leads_nowhere_even_when_sent() -> None:
    """Neither the anchor itself, nor its key in a certificate that another anchor signed."""
    trusted = anchors(ROOT, OTHER)
    crossed = CertificateAuthority("Provider Root", seed=1, parent=OTHER)
    assert verified(issuer=crossed, trusted=trusted, chain=(crossed.certificate,)).validation.ok
    sha256 = parse_certificate(ROOT.certificate).sha256
    left = trusted.without({sha256})
    with pytest.raises(AKCertificateRejected) as refused:
        verified(issuer=crossed, trusted=left, chain=(crossed.certificate,))
    assert refused.value.check == PATH
    assert (len(trusted), len(left)) == (2, 1)
    assert trusted.get(sha256) is not None
    assert left.get(sha256) is None
    assert [each.sha256 for each in left] == [parse_certificate(OTHER.certificate).sha256]
    assert left.sha256 != trusted.sha256
    assert anchors(OTHER, ROOT).sha256 == trusted.sha256, "a set: no order"


def test_an_anchor_is_a_ca() -> None:
    """Otherwise the certificate of one key, put into the folder, would vouch for itself."""
    made = make_ak_certificate(KEY, ROOT, at=AT)
    with pytest.raises(AKCertificateRejected) as refused:
        AKAnchors([parse_certificate(made)])
    assert refused.value.check == PATH


def test_expiry_is_recorded_where_the_setting_says_so() -> None:
    """As for EK certificates: later, not at the introduction."""
    made = parse_certificate(
        make_ak_certificate(KEY, ROOT, at=AT, options=AKCertificateOptions(defect=AKDefect.EXPIRED))
    )
    assert not anchors(ROOT).validate(made, (), at=AT, expiry=Expiry.FAIL).ok
    found = anchors(ROOT).validate(made, (), at=AT, expiry=Expiry.RECORD)
    assert found.ok
    assert "not now" in found.reason


def test_a_certificate_is_cut_out_of_nv_and_of_pem() -> None:
    """NV indices are padded; operators have PEM."""
    made = make_ak_certificate(KEY, ROOT, at=AT, options=AKCertificateOptions(padding=bytes(300)))
    parsed = parse_ak_certificate(made)
    assert parsed.padding_bytes == 300
    assert parse_ak_certificate(pem(parsed.certificate.der)).certificate.der == parsed.certificate.der


def test_other_names_are_read_in_their_order() -> None:
    """Directory names and the like are passed over; they name a model."""
    options = AKCertificateOptions(
        other_names=(hardware_module_name(b"\x01\x02"), permanent_identifier("chip-7")), directory_name=True
    )
    assert [each.oid for each in verified(options).other_names] == ["1.3.6.1.5.5.7.8.4", "1.3.6.1.5.5.7.8.3"]


@pytest.mark.parametrize(
    "names",
    [
        (other_name("1.2.3", utf8("x")),) * (MAX_OTHER_NAMES + 1),
        (tlv(0xA0, der.write_oid("1.2.3") + tlv(0xA0, utf8("x")) + b"\5\0"),),
        (tlv(0xA0, der.write_oid("1.2.3") + tlv(0xA0, utf8("x") + b"\5\0")),),
        (tlv(0xA0, der.write_oid("1.2.3")),),
        (tlv(0xA0, utf8("1.2.3") + tlv(0xA0, utf8("x"))),),
    ],
    ids=["too-many", "trailing-outside", "trailing-inside", "no-value", "no-oid"],
)
def test_other_names_that_cannot_be_read_are_malformed(names: tuple[bytes, ...]) -> None:
    """Two readers shall not see two names."""
    with pytest.raises(MalformedEvidence):
        verified(AKCertificateOptions(other_names=names))
