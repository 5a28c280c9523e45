"""Software TPMs, test certificate authorities and attackers' keys, for our tests and for those of users.

Nothing that ships as part of a service or an agent imports this package.
"""

from attestation.testing.certificates import (
    SIMULATOR,
    CertificateAuthority,
    Defect,
    EKCertificateOptions,
    Quirk,
    make_ek_certificate,
    pem,
)
from attestation.testing.software_keys import (
    SoftwareAK,
    SoftwareEK,
    SoftwareNode,
    ak_template,
    generate_key,
    software_activate,
    with_key,
)
from attestation.testing.software_tpm import SoftwareTPM, fleet

__all__ = [
    "SIMULATOR",
    "CertificateAuthority",
    "Defect",
    "EKCertificateOptions",
    "Quirk",
    "SoftwareAK",
    "SoftwareEK",
    "SoftwareNode",
    "SoftwareTPM",
    "ak_template",
    "fleet",
    "generate_key",
    "make_ek_certificate",
    "pem",
    "software_activate",
    "with_key",
]
