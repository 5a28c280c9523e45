"""Quotes that platforms of Intel made, with the collateral of their day."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from attestation import tee_bundle
from attestation.appraisal.confidential import Expected
from attestation.appraisal.kind import Kind
from attestation.appraisal.sgx import SGX
from attestation.appraisal.tdx import TDX
from attestation.endorsements.certificate import Certificate, parse_certificate
from attestation.endorsements.intel import Collateral, Endorsements, parse_collateral, split_signed
from attestation.errors import HardwareEvidenceRejected
from attestation.evidence.dcap import parse_quote
from attestation.reference import IDENTITY_ONLY, Policy
from attestation.results import Failed, Outcome, Undecided
from attestation.wire import b64encode
from tests.vectors.confidential import SHARED, checks_by_name

FOLDER = "tdx/collateral-2026-03"
INFO = {"tdx-v5-uptodate": "90c06f"}
"""Of vectors that share a folder of collateral: whose TCB info; of all others it is the other one."""
KINDS: dict[str, Kind[Any, Any, Any]] = {"tdx-quote": TDX, "sgx-quote": SGX}


def root() -> Certificate:
    """Return the root that is pinned."""
    return parse_certificate(tee_bundle.load().intel)


def at(entry: dict[str, Any]) -> datetime:
    """Return the clock of a vector."""
    return datetime.fromtimestamp(entry["now"], UTC)


def quote_of(entry: dict[str, Any]) -> bytes:
    """Return the quote of a vector."""
    name: str = next(name for name in entry["files"] if name.endswith(".quote.bin"))
    return (SHARED / name).read_bytes()


def collateral_json(entry: dict[str, Any]) -> bytes:
    """Return the collateral of a vector, as an item carries it."""
    whole: list[str] = [name for name in entry["files"] if name.endswith(".collateral.json")]
    if whole:
        return (SHARED / whole[0]).read_bytes()

    def read(name: str) -> bytes:
        return (SHARED / FOLDER / name).read_bytes()

    fmspc = INFO.get(entry["id"], "50806f")
    info, info_signature = split_signed(read(f"tcb_info_{fmspc}000000.json"), "tcbInfo")
    identity, identity_signature = split_signed(read("td_qe_identity.json"), "enclaveIdentity")
    members = {
        "tcb_info": info.decode(),
        "tcb_info_signature": info_signature.hex(),
        "tcb_info_issuer_chain": read("tcb_signing_chain.pem").decode(),
        "qe_identity": identity.decode(),
        "qe_identity_signature": identity_signature.hex(),
        "qe_identity_issuer_chain": read("qe_identity_signing_chain.pem").decode(),
        "pck_crl": read("pck_crl_platform.der").hex(),
        "pck_crl_issuer_chain": "\n".join(
            parse_quote(quote_of(entry)).certification.decode().split("\n-----BEGIN", 1)[1:]
        ),
        "root_ca_crl": read("root_ca_crl.der").hex(),
    }
    members["pck_crl_issuer_chain"] = "-----BEGIN" + members["pck_crl_issuer_chain"].rstrip("\0")
    return json.dumps(members).encode()


def collateral_of(entry: dict[str, Any]) -> Collateral:
    """Return the collateral of a vector."""
    return parse_collateral(collateral_json(entry))


def item(quote: bytes, **members: bytes) -> dict[str, str]:
    """Return an item of the envelope."""
    return {name: b64encode(data) for name, data in {"quote": quote, **members}.items()}


def expected(quote: bytes, at: datetime, collateral: Collateral | None, **members: Any) -> Expected:
    """Return what a quote is compared with: its own report data."""
    return Expected(
        at=at,
        report_data=parse_quote(quote).body.report_data,
        endorsements=Endorsements(root=members.pop("root", None) or root(), collateral=collateral),
        approved=None,
        nonce=bytes(32),
        **members,
    )


def outcomes(
    kind: Kind[Any, Any, Any], sent: object, compared: Expected, policy: Policy = IDENTITY_ONLY
) -> list[Outcome]:
    """Return every outcome but that of the identity, which no operator approved here."""
    evidence = kind.parse(sent)
    try:
        claims = kind.verify(evidence, compared)
    except HardwareEvidenceRejected as refused:
        return list(refused.failed)
    followed, _ = kind.follow(claims, compared, policy)
    judged, _ = kind.judge(claims, evidence, compared, policy)
    return [each for each in (*followed, *judged) if each.check not in ("tdx-platform", "sgx-platform")]


def codes(found: list[Outcome]) -> set[str]:
    """Return the codes of what failed, and of what could not be decided."""
    known = checks_by_name()
    failed = {str(known[each.check].code) for each in found if isinstance(each, Failed)}
    return failed | {"collateral-unavailable" for each in found if isinstance(each, Undecided)}


__all__ = [
    "KINDS",
    "at",
    "codes",
    "collateral_json",
    "collateral_of",
    "expected",
    "item",
    "outcomes",
    "quote_of",
    "root",
]
