"""Where Intel's provisioning service (PCS) and its caches (PCCS) have each object, and how they answer: API v4.

Pure: who asks is elsewhere. https://api.portal.trustedservices.intel.com/documentation
"""

from __future__ import annotations

import re
from typing import Final

from attestation.errors import MalformedEvidence

TCB_INFO_CHAIN: Final = "TCB-Info-Issuer-Chain"
IDENTITY_CHAIN: Final = "SGX-Enclave-Identity-Issuer-Chain"
PCK_CRL_CHAIN: Final = "SGX-PCK-CRL-Issuer-Chain"
ROOT_CRL_PATH: Final = "/sgx/certification/v4/rootcacrl"
_HEX: Final = re.compile(rb"\s*((?:[0-9a-fA-F]{2})+)\s*")
_ESCAPED: Final = re.compile(r"%([0-9a-fA-F]{2})")


def tcb_info_path(tee: str, fmspc: str) -> str:
    """Return path and query of TCB info; *tee* is `SGX` or `TDX`, *fmspc* 12 hex digits."""
    return f"/{tee.lower()}/certification/v4/tcb?fmspc={fmspc.upper()}"


def identity_path(tee: str) -> str:
    """Return the path of the quoting enclave's identity."""
    return f"/{tee.lower()}/certification/v4/qe/identity"


def pck_crl_path(ca: str) -> str:
    """Return path and query of the list of PCK certificates; *ca* is `processor` or `platform`."""
    return f"/sgx/certification/v4/pckcrl?ca={ca}&encoding=der"


def crl_of_answer(body: bytes) -> bytes:
    """Return the DER of a revocation list; caches answer in hex.

    Raises:
        MalformedEvidence: Neither.
    """
    if body[:1] == b"\x30" and not _HEX.fullmatch(body):
        return body
    found = _HEX.fullmatch(body)
    if found is None:
        raise MalformedEvidence("revocation list: neither DER nor hex")
    return bytes.fromhex(found[1].decode())


def chain_of_header(value: str) -> bytes:
    """Return the PEM in a header, where it is percent-encoded.

    Raises:
        MalformedEvidence: Not ASCII.
    """
    try:
        return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), value).encode("ascii")
    except UnicodeEncodeError as e:
        raise MalformedEvidence("issuer chain: not ASCII") from e
