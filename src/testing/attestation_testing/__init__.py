"""Software TPMs, test certificate authorities and attackers' keys, for our tests and for those of users.

Nothing that ships as part of a service or an agent imports this package.
"""

from attestation_testing.certificates import (
    SIMULATOR,
    CAOptions,
    CertificateAuthority,
    Defect,
    EKCertificateOptions,
    Quirk,
    make_ek_certificate,
    pem,
)
from attestation_testing.event_logs import (
    BootLog,
    BootOptions,
    Event,
    EventType,
    LogDefect,
    LogQuirk,
    Tampering,
    boot,
    boot_log,
    tampered,
)
from attestation_testing.ima_logs import IMAEntry, IMALog, ima_log
from attestation_testing.software_keys import (
    SoftwareAK,
    SoftwareEK,
    SoftwareNode,
    ak_template,
    generate_key,
    private_half,
    software_activate,
    software_key,
    with_key,
)
from attestation_testing.software_tpm import SoftwareTPM, fleet

__all__ = [
    "SIMULATOR",
    "BootLog",
    "BootOptions",
    "CAOptions",
    "CertificateAuthority",
    "Defect",
    "EKCertificateOptions",
    "Event",
    "EventType",
    "IMAEntry",
    "IMALog",
    "LogDefect",
    "LogQuirk",
    "Quirk",
    "SoftwareAK",
    "SoftwareEK",
    "SoftwareNode",
    "SoftwareTPM",
    "Tampering",
    "ak_template",
    "boot",
    "boot_log",
    "fleet",
    "generate_key",
    "ima_log",
    "make_ek_certificate",
    "pem",
    "private_half",
    "software_activate",
    "software_key",
    "tampered",
    "with_key",
]
