"""Quotes of Intel SGX and TDX, versions 3 to 5, as DCAP makes them (CONFIDENTIAL.md §9).

A quote is signed by Intel's quoting enclave, whose key the platform's PCK certificate vouches for. One package for
both, since they differ in what is vouched for and in nothing before it.
"""

from typing import Final

from attestation.evidence.dcap.quote import MAX_QUOTE_BYTES, UnverifiedQuote, parse_quote
from attestation.evidence.dcap.report import EnclaveReport, TDReport, parse_enclave_report, parse_td_report
from attestation.evidence.dcap.tcb import (
    Part,
    Tcb,
    appraise_tcb,
    module_fault,
    module_name,
    module_of,
    qe_fault,
)
from attestation.evidence.dcap.verify import (
    Checks,
    QuoteClaims,
    Vouched,
    checks,
    verify,
    wanted,
)

TDX_MEDIA_TYPE: Final = "application/vnd.itl.tdx-quote"
SGX_MEDIA_TYPE: Final = "application/vnd.itl.sgx-quote"
MEDIA_TYPE: Final = TDX_MEDIA_TYPE
"""The more frequent one."""

__all__ = [
    "MAX_QUOTE_BYTES",
    "MEDIA_TYPE",
    "SGX_MEDIA_TYPE",
    "TDX_MEDIA_TYPE",
    "Checks",
    "EnclaveReport",
    "Part",
    "QuoteClaims",
    "TDReport",
    "Tcb",
    "UnverifiedQuote",
    "Vouched",
    "appraise_tcb",
    "checks",
    "module_fault",
    "module_name",
    "module_of",
    "parse_enclave_report",
    "parse_quote",
    "parse_td_report",
    "qe_fault",
    "verify",
    "wanted",
]
