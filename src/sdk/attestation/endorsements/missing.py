"""What a trust bundle lacks where a path ends at an issuer that it does not hold (TPM.md §2.5).

Everything here is said by certificates that nobody has vouched for: words for an operator who looks for the
issuer, never grounds for believing it. Nothing is fetched.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from attestation.endorsements import der
from attestation.endorsements.bundle import Role, TrustBundle, manufacturer_of
from attestation.endorsements.certificate import AUTHORITY_INFORMATION_ACCESS, Certificate
from attestation.endorsements.ek_trust import PathValidation
from attestation.endorsements.path import NO_ISSUER
from attestation.endorsements.vendors import vendor_or_simulator
from attestation.errors import MalformedEvidence

MAX_ADDRESSES: Final = 4
MAX_ADDRESS_BYTES: Final = 1000
"""As long as a source in a manifest may be; a longer address is passed over."""

_CA_ISSUERS: Final = "1.3.6.1.5.5.7.48.2"
_URI: Final = 0x86
"""[6] uniformResourceIdentifier, IA5String (RFC 5280, 4.2.1.6)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingIssuer:
    """The certificate that would lead a path further.

    Args:
        role: What it has to become in the bundle.
        vendor: Registered name of the manufacturer that the EK certificate names; None for one that nobody registered.
        issuer: Its subject in words, as the certificate below names it.
        addresses: Where that certificate says that it lies.
    """

    role: Role
    vendor: str | None
    issuer: str
    addresses: tuple[str, ...]


def missing_issuer(
    validation: PathValidation, leaf: Certificate, sent: Iterable[Certificate], bundle: TrustBundle
) -> MissingIssuer | None:
    """Return which certificate *validation* of *bundle* lacked; None where something else spoke against the path.

    Args:
        validation: What `TrustBundle.verify` said of *leaf*.
        leaf: The EK certificate.
        sent: The certificates that came with it.
        bundle: Which judged.
    """
    if validation.ok or not validation.reason.startswith(NO_ISSUER):
        return None
    held = {one.sha256: one for one in (*(h.certificate for h in bundle.intermediates), *sent, leaf)}
    below = held[validation.path[-1].sha256]
    manufacturer = manufacturer_of(leaf)
    vendor = None if manufacturer is None else vendor_or_simulator(manufacturer)
    anchored = {h.entry.vendor for h in bundle.anchors}
    return MissingIssuer(
        role=missing_role(below.issuer, below=below.subject, vendor=vendor, anchored=anchored),
        vendor=vendor,
        issuer=below.issuer,
        addresses=issuer_addresses(below),
    )


def issuer_addresses(certificate: Certificate) -> tuple[str, ...]:
    r"""Return where *certificate* says that its issuer's certificate lies (RFC 5280, 4.2.2.1), at most four.

    Each is 1 to 1000 bytes of printable ASCII without space; any other byte, and the backslash, is written
    as `\x1b`. Empty where the extension is absent or cannot be read.
    """
    extension = certificate.extensions.get(AUTHORITY_INFORMATION_ACCESS)
    if extension is None:
        return ()
    value = extension.value
    found: list[bytes] = []
    try:
        # AuthorityInfoAccessSyntax ::= SEQUENCE OF SEQUENCE { accessMethod OBJECT IDENTIFIER, accessLocation }
        outer = der.only(value, der.SEQUENCE, "AuthorityInfoAccess")
        for access in der.elements(value, outer.start, outer.stop):
            method = der.element(value, access.start, access.stop)
            place = der.element(value, method.stop, access.stop)
            if access.tag != der.SEQUENCE or place.stop != access.stop:
                return ()
            if der.oid(value, method) == _CA_ISSUERS and place.tag == _URI:
                found.append(value[place.start : place.stop])
    except MalformedEvidence:
        return ()
    return tuple(_visible(one) for one in found if 0 < len(one) <= MAX_ADDRESS_BYTES)[:MAX_ADDRESSES]


def missing_role(issuer: str, *, below: str, vendor: str | None, anchored: Collection[str]) -> Role:
    """Return what the missing certificate of *issuer* has to become.

    With an anchor of the vendor at hand, what stands between it and the TPM is missing: an intermediate can be
    checked, an anchor must be believed. A root, by its name or because it would have signed itself, leads to no
    other anchor.

    Args:
        issuer: Name of the issuer at which the path ended, in words.
        below: Subject of the certificate that names it, in words; may be empty.
        vendor: Registered name of the manufacturer that the EK certificate names; None for an unknown one.
        anchored: Names of manufacturers with an active anchor.
    """
    named_root = "root" in issuer.lower() or issuer == below
    return Role.INTERMEDIATE if vendor in anchored and not named_root else Role.ANCHOR


def _visible(address: bytes) -> str:
    return "".join(chr(b) if 0x21 <= b <= 0x7E and b != 0x5C else f"\\x{b:02x}" for b in address)
