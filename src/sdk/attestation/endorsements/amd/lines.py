"""The pinned certificates of each line of processors, and what else vouches for a report (CONFIDENTIAL.md §8.2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from attestation.endorsements.amd.products import Product
from attestation.endorsements.certificate import Certificate, parse_certificate
from attestation.endorsements.revocation import CRLStore
from attestation.errors import BundleInvalid, MalformedEvidence, SignatureInvalid

_COMMON_NAME = "2.5.4.3"
TEST_ONLY = "TEST ONLY"
"""What the names of anchors of a test kit say; nothing that hardware made says it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """The certificates that are pinned for one line.

    Args:
        product: The line.
        ark: AMD's root key for the line.
        ask: Issues VCEKs.
        asvk: Issues VLEKs.
    """

    product: Product
    ark: Certificate
    ask: Certificate
    asvk: Certificate

    @property
    def is_for_tests(self) -> bool:
        """True if software made it."""
        return TEST_ONLY in self.ark.subject


def common_names(certificate: Certificate) -> list[str]:
    """Return each commonName of the subject."""
    return [each.text for each in certificate.subject_name.attributes if each.oid == _COMMON_NAME]


Lines = Mapping[Product, Line]
"""Every line that is pinned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endorsements:
    """What vouches for one report.

    Args:
        lines: What is pinned.
        vek: A VEK certificate that somebody kept, DER, for reports that bring none; None where there is none.
        source: Where *vek* is from, in words.
        crls: Lists of withdrawn intermediates, of any line.
    """

    lines: Lines
    vek: bytes | None = None
    source: str = ""
    crls: CRLStore = field(default_factory=CRLStore)


def parse_line(product: Product, *, ark: bytes, ask: bytes, asvk: bytes) -> Line:
    """Read the certificates of a line, DER, and hold them together: each is signed by the root.

    Raises:
        BundleInvalid: With the certificate and what is wrong.
    """
    try:
        line = Line(
            product=product,
            ark=parse_certificate(ark),
            ask=parse_certificate(ask),
            asvk=parse_certificate(asvk),
        )
        for name, common_name, certificate in (
            ("ARK", f"ARK-{product}", line.ark),
            ("ASK", f"SEV-{product}", line.ask),
            ("ASVK", f"SEV-VLEK-{product}", line.asvk),
        ):
            if not certificate.is_ca or common_names(certificate) != [common_name]:
                raise BundleInvalid(f"{product}: {name} is no CA named {common_name}: {certificate.subject}")
            certificate.verify_issued_by(line.ark)
    except (MalformedEvidence, SignatureInvalid) as e:
        raise BundleInvalid(f"{product}: {e}") from e
    return line
