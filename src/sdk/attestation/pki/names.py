"""Subjects of our certificates (ITL-REFERENCE §16): who a CA, a machine and an operator is called.

A name is written once, here, and compared byte by byte everywhere else: C is a PrintableString, everything else
UTF8String, one attribute in each RDN.
"""

from __future__ import annotations

from typing import Final, Literal

from cryptography.x509 import Name, NameAttribute
from cryptography.x509.oid import NameOID, ObjectIdentifier

from attestation.errors import CertificateNotConformant

Purpose = Literal["machine", "operator"]
"""What a CA key is for. Machines and operators never share one (R16)."""

CA_NAMES: Final[dict[Purpose, str]] = {
    "machine": "ITL Machine Enrollment CA",
    "operator": "ITL Operator CA",
}
NODES_GROUP: Final = "system:nodes"
NODE_USER: Final = "system:node:"
KUBERNETES_PREFIX: Final = "system:"
"""What Kubernetes keeps for itself: whoever has a certificate with such a name is what the name says."""
MAX_NAME_CHARACTERS: Final = 64
"""ub-common-name, ub-organization-name, ub-organizational-unit-name (RFC 5280, A.1)."""
_ID_CHARACTERS: Final = 8


def ca_subject(purpose: Purpose, *, country: str, organization: str, issuer_id: str | None = None) -> Name:
    """Return the subject of a CA key.

    Args:
        purpose: Whom it certifies.
        country: Two upper-case letters.
        organization: 1 to 64 characters.
        issuer_id: Its id, from the second key on: the first 8 characters stand behind the name, so that no two
            keys ever share a subject. None for the very first key.

    Raises:
        CertificateNotConformant: An attribute that no name may have.
    """
    common_name = CA_NAMES[purpose]
    if issuer_id is not None:
        common_name += f" {issuer_id[:_ID_CHARACTERS]}"
    return _name(country, organization, None, common_name)


def purpose_of(common_name: str) -> Purpose | None:
    """Return whom the CA of that name certifies; None where it is no name of ours."""
    for purpose, name in CA_NAMES.items():
        if common_name == name or common_name.startswith(f"{name} "):
            return purpose
    return None


def machine_subject(*, country: str, organization: str, role: str, machine_id: str) -> Name:
    """Return the subject of a machine: OU is its role, CN its id. Whether the role is one is for the profile to say.

    Raises:
        CertificateNotConformant: An attribute that no name may have.
    """
    return _name(country, organization, role, machine_id)


def operator_subject(*, country: str, organization: str, name: str, duty: str) -> Name:
    """Return the subject of a person: OU is their duty, CN their name. The profile says which duties there are.

    Raises:
        CertificateNotConformant: An attribute that no name may have.
    """
    return _name(country, organization, duty, name)


def node_subject(hostname: str) -> Name:
    """Return the subject of a node of Kubernetes, which an API server reads: O is its group, CN its user name.

    Args:
        hostname: Of the machine's record.

    Raises:
        CertificateNotConformant: An attribute that no name may have; a host name has room for 52 characters.
    """
    return Name(
        [
            _attribute(NameOID.ORGANIZATION_NAME, NODES_GROUP),
            _attribute(NameOID.COMMON_NAME, NODE_USER + hostname),
        ]
    )


def responder_subject(ca: Name, worker: str) -> Name:
    """Return the subject of a key that answers OCSP for *ca*: its C and O, and a CN of its own.

    Args:
        ca: Subject of the CA.
        worker: Something short that tells one responder from another.

    Raises:
        CertificateNotConformant: An attribute that no name may have.
    """
    country, organization = (
        str(ca.get_attributes_for_oid(oid)[0].value)
        for oid in (NameOID.COUNTRY_NAME, NameOID.ORGANIZATION_NAME)
    )
    return _name(country, organization, None, f"ITL OCSP Responder {worker}")


def _name(country: str, organization: str, unit: str | None, common_name: str) -> Name:
    pairs = [(NameOID.COUNTRY_NAME, country), (NameOID.ORGANIZATION_NAME, organization)]
    if unit is not None:
        pairs.append((NameOID.ORGANIZATIONAL_UNIT_NAME, unit))
    pairs.append((NameOID.COMMON_NAME, common_name))
    return Name([_attribute(oid, text) for oid, text in pairs])


def _attribute(oid: ObjectIdentifier, text: str) -> NameAttribute[str]:
    # Two names that look the same to a person must be the same: nothing invisible, no white space at the ends.
    if not text.isprintable() or text != text.strip():
        raise CertificateNotConformant(
            "a name with white space at its ends, or a character that does not print"
        )
    try:
        return NameAttribute(oid, text)
    except ValueError as e:
        raise CertificateNotConformant(f"no attribute of a name: {e}") from e
