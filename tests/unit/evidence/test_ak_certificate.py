"""A certified attestation key vouches for the AK: in the same TPM, for this activation (TPM.md §§2.4, 3.4)."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from attestation.device.node import AK_ATTRIBUTES
from attestation.endorsements.ak_certificate import PATH, PROFILE, AKAnchors
from attestation.endorsements.certificate import parse_certificate
from attestation.errors import AKCertificateRejected, MalformedEvidence
from attestation.evidence import ak_certificate
from attestation.evidence.ak_certificate import FRESH, KEY, STATEMENT, SUBJECT, VouchedAK
from attestation.tpm.attest import Attest, CertifyInfo
from attestation.tpm.constants import TPM_GENERATED, AttestType, Attr
from attestation.wire import u32
from attestation_testing import CertificateAuthority
from attestation_testing.ak_certificates import AKCertificateOptions, AKDefect, make_ak_certificate
from attestation_testing.software_keys import SoftwareAK, ak_template
from tests.vectors import forge

AT = datetime(2026, 11, 23, tzinfo=UTC)
CA = CertificateAuthority("Provider", seed=1)
ANCHORS = AKAnchors([parse_certificate(CA.certificate)])
IAK = SoftwareAK(ak_template(unique=b"IAK"), seed=1)
AK = SoftwareAK(seed=2)
BINDING = ak_certificate.binding(machine_id="m", challenge_id="c", proof=bytes(32))
CERTIFICATE = make_ak_certificate(IAK.public.spki_der(), CA, at=AT)


def stated(key: SoftwareAK = IAK, **changed: Any) -> tuple[bytes, bytes, bytes]:
    """Return a statement about the AK, with anything about it wrong."""
    fields: dict[str, Any] = {
        "magic": TPM_GENERATED,
        "type": AttestType.CERTIFY,
        "qualified_signer": key.qualified_name,
        "extra_data": BINDING,
        "name": AK.public.name,
        "qualified_name": AK.qualified_name,
        **changed,
    }
    signed, signature = key.attest(
        Attest(
            fields["magic"],
            fields["type"],
            fields["qualified_signer"],
            fields["extra_data"],
            1,
            1,
            0,
            True,
            1,
            CertifyInfo(fields["name"], fields["qualified_name"]),
        )
    )
    return key.public.tpm2b(), signed, signature


def verified(
    statement: tuple[bytes, bytes, bytes] | None = None, certificate: bytes = CERTIFICATE
) -> VouchedAK:
    """Verify a statement about the AK."""
    return ak_certificate.verify(
        ak_certificate.parse(certificate, statement),
        ak=AK.public,
        binding=BINDING,
        anchors=ANCHORS,
        chain=(),
        at=AT,
    )


def refused(statement: tuple[bytes, bytes, bytes] | None, certificate: bytes = CERTIFICATE) -> str:
    """Return the check that failed."""
    with pytest.raises(AKCertificateRejected) as caught:
        verified(statement, certificate)
    return caught.value.check


def test_a_certified_key_vouches_for_the_ak() -> None:
    """By TPM2_Certify, for this activation."""
    found = verified(stated())
    assert (found.ak_name, found.own) == (AK.public.name, False)
    assert found.certificate.spki == IAK.public.spki_der()


def test_the_ak_may_be_certified_itself() -> None:
    """Then the activation has proven all that a statement could."""
    own = make_ak_certificate(AK.public.spki_der(), CA, at=AT)
    assert verified(None, own).own
    assert refused(None) == KEY, "the certificate is that of another key"


def test_the_binding_is_over_all_of_the_activation() -> None:
    """Recomputed from its definition; each part changes it."""
    import hashlib

    parts = (b"itl-ak-certificate/v1", b"m", b"c", bytes(32))
    assert hashlib.sha256(b"".join(u32(len(each)) + each for each in parts)).digest() == BINDING
    others = {
        ak_certificate.binding(machine_id="n", challenge_id="c", proof=bytes(32)),
        ak_certificate.binding(machine_id="m", challenge_id="d", proof=bytes(32)),
        ak_certificate.binding(machine_id="m", challenge_id="c", proof=b"\1" * 32),
        ak_certificate.binding(machine_id="mc", challenge_id="", proof=bytes(32)),
    }
    assert len(others | {BINDING}) == 5


def test_each_check_is_named() -> None:
    """One thing wrong, one check named, and no value told."""
    other = SoftwareAK(seed=3)
    public, signed, signature = stated()
    assert refused(stated(other)) == KEY, "another key than the certified one"
    assert refused((public, signed, other.sign(signed))) == STATEMENT
    assert refused(stated(magic=0xFF544348)) == STATEMENT
    assert refused(stated(qualified_signer=IAK.public.name)) == STATEMENT
    assert refused(stated(qualified_signer=b"")) == STATEMENT
    assert refused(stated(extra_data=bytes(32))) == FRESH
    assert refused(stated(extra_data=b"")) == FRESH
    assert refused(stated(name=other.public.name)) == SUBJECT
    assert refused(stated(qualified_name=AK.public.name)) == SUBJECT, "only loaded"
    assert refused(stated(qualified_name=b"")) == SUBJECT
    assert refused(stated(qualified_name=b"\0\x0c" + AK.qualified_name[2:])) == SUBJECT
    assert verified((public, signed, signature)).ak_name == AK.public.name


@pytest.mark.parametrize(
    "attributes",
    [
        int(AK_ATTRIBUTES) & ~int(Attr.RESTRICTED),
        int(AK_ATTRIBUTES) & ~int(Attr.FIXED_TPM),
        int(AK_ATTRIBUTES) & ~int(Attr.SENSITIVE_DATA_ORIGIN),
        int(AK_ATTRIBUTES) | int(Attr.DECRYPT),
    ],
    ids=["unrestricted", "not-fixed", "imported", "decrypts"],
)
def test_a_key_that_is_no_attestation_key_vouches_for_nothing(attributes: int) -> None:
    """An IDevID is not restricted: it signs what it is given, a statement of a TPM included."""
    key = SoftwareAK(ak_template(attributes=attributes), seed=4)
    certificate = make_ak_certificate(key.public.spki_der(), CA, at=AT)
    assert refused(stated(key), certificate) == KEY


def test_a_public_area_without_a_key_is_refused() -> None:
    """Its point is on no curve."""
    area = replace(IAK.public, x=bytes(32), y=bytes(31) + b"\1", tpmt=b"")
    public = replace(area, tpmt=area.serialise())
    _, signed, signature = stated()
    assert refused((public.tpm2b(), signed, signature)) == KEY


def test_the_certificate_is_held_to_its_profile_and_path() -> None:
    """Whatever it vouches for."""
    bad = AKCertificateOptions(defect=AKDefect.EKU_OF_EK)
    assert refused(stated(), make_ak_certificate(IAK.public.spki_der(), CA, at=AT, options=bad)) == PROFILE
    stranger = CertificateAuthority("Stranger", seed=9)
    assert refused(stated(), make_ak_certificate(IAK.public.spki_der(), stranger, at=AT)) == PATH


def test_a_quote_in_the_place_of_a_certification_is_malformed() -> None:
    """A genuine signature over another kind of statement."""
    quoted, signature = forge.quote("p256")
    with pytest.raises(MalformedEvidence, match="not a certification"):
        ak_certificate.parse(CERTIFICATE, (IAK.public.tpm2b(), quoted, signature))
    assert ak_certificate.MEDIA_TYPE == "application/vnd.itl.ak-certificate"
