"""Who vouches for processors of AMD: pinned lines, the certificates of their signing keys, and lists of withdrawn ones.

A VEK is the key that signs reports: a VCEK is that of one chip at one TCB, a VLEK one that a cloud provider loads
(CONFIDENTIAL.md §8.2). Nothing is fetched here.
"""

from attestation.endorsements.amd.cert_table import CertTable, parse_cert_table
from attestation.endorsements.amd.lines import Endorsements, Line, Lines, common_names, parse_line
from attestation.endorsements.amd.products import Product
from attestation.endorsements.amd.tcb import TCB, parse_tcb
from attestation.endorsements.amd.vek import VEK, VEKKey, parse_vek, verify_vek

__all__ = [
    "TCB",
    "VEK",
    "CertTable",
    "Endorsements",
    "Line",
    "Lines",
    "Product",
    "VEKKey",
    "common_names",
    "parse_cert_table",
    "parse_line",
    "parse_tcb",
    "parse_vek",
    "verify_vek",
]
