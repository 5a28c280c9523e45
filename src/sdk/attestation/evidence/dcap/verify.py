"""Whether a quote is one of a genuine platform, over our report data (CONFIDENTIAL.md §9.3, steps 1 to 10).

Numbered checks:
1. version, TEE, key type, vendor, zero ranges → `report-invalid`
2. PCK chain ← pinned root, at the instant → `chain-invalid`; revoked or not is only told: a policy says what follows
3. TCB info and identity ← "Intel SGX TCB Signing" ← pinned root → `chain-invalid`, `collateral-invalid`
4. they are of this TEE, this FMSPC and PCEID → `collateral-invalid`
5. QE report ← PCK; attestation key ← QE report; quote ← attestation key → `signature-invalid`
6. the quoting enclave is Intel's → `signature-invalid`: a key that another enclave made signs anything
7. REPORTDATA → `binding-mismatch`
8. what the TCB is worth (`tcb`)

All that can be checked is, and what failed is told together. Without collateral the rest still stands; what is missing
is in the claims. Whether collateral is in date depends on the policy, so the claims say until when it is.
"""

# Algorithms for: hardware-evidence
from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Final

from cryptography.hazmat.primitives.asymmetric import ec

from attestation.endorsements.certificate import Certificate
from attestation.endorsements.intel import (
    Chain,
    Collateral,
    CollateralKey,
    EnclaveIdentity,
    Endorsements,
    Platform,
    Refused,
    TcbInfo,
    collateral_key,
    out_of_date,
    parse_chain,
    pck_ca,
    platform_of,
    signed_by,
    signed_by_key,
    verify_chain,
    verify_crl,
    verify_identity,
    verify_tcb_info,
)
from attestation.endorsements.revocation import CRL
from attestation.errors import HardwareEvidenceRejected, MalformedEvidence
from attestation.evidence.dcap.quote import (
    CERTIFIED_BY_CHAIN,
    INTEL,
    KEY_P256,
    TEE_SGX,
    TEE_TDX,
    UnverifiedQuote,
)
from attestation.evidence.dcap.report import EnclaveReport
from attestation.evidence.dcap.tcb import Tcb, appraise_tcb, qe_fault
from attestation.results import Check, Code, TrustClaim

_HARDWARE: Final = TrustClaim.HARDWARE
_NAMES: Final = {TEE_SGX: "SGX", TEE_TDX: "TDX"}
TEST_ONLY: Final = "TEST ONLY"
"""In the subject of a root of the test kit."""

_enclave_signed: Final = lru_cache(maxsize=4096)(signed_by)
"""Remembered: a quoting enclave shows one report as long as it lives, and who signed it is a function of the bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checks:
    """The checks that a quote is authentic, under the names of its kind.

    Args:
        tee: `SGX` or `TDX`.
        quote, chain, collateral_chain, signature, quoting_enclave, report_data: As numbered above.
    """

    tee: str
    quote: Check
    chain: Check
    collateral_chain: Check
    signature: Check
    quoting_enclave: Check
    report_data: Check

    @property
    def all(self) -> tuple[Check, ...]:
        """Each of them."""
        found = (self.quote, self.chain, self.collateral_chain, self.signature, self.quoting_enclave)
        return (*found, self.report_data)


def checks(tee: str) -> Checks:
    """Return the checks of quotes of *tee*, `SGX` or `TDX`."""
    prefix = tee.lower()

    def check(name: str, code: Code, **says: int) -> Check:
        return Check(name=f"{prefix}-{name}", claim=_HARDWARE, if_failed=99, code=code, **says)

    return Checks(
        tee=tee,
        quote=check("quote", Code.REPORT_INVALID, if_passed=2),
        chain=check("chain", Code.CHAIN_INVALID),
        collateral_chain=check("collateral-chain", Code.CHAIN_INVALID),
        signature=check("signature", Code.SIGNATURE_INVALID),
        quoting_enclave=check("quoting-enclave", Code.SIGNATURE_INVALID),
        report_data=Check(
            name=f"{prefix}-report-data",
            claim=TrustClaim.INSTANCE_IDENTITY,
            if_failed=99,
            code=Code.BINDING_MISMATCH,
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Vouched:
    """What collateral says of a platform, as far as it is at hand and genuine.

    Args:
        info: TCB info of this platform; None where it is missing or not genuine.
        identity: Of the quoting enclave; likewise.
        lists: Revocation lists that are genuine, each with what it is called.
        revoked: Each certificate that is revoked, in words.
        missing: Each object that is not at hand.
        invalid: Each object that is not genuine, or of another platform, in words.
        chains: Each chain of certificates of collateral that is not genuine, or not valid now, in words.
    """

    info: TcbInfo | None = None
    identity: EnclaveIdentity | None = None
    lists: tuple[tuple[str, CRL], ...] = ()
    revoked: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    missing_lists: tuple[str, ...] = ()
    invalid: tuple[str, ...] = ()
    chains: tuple[str, ...] = ()

    def expired(self, at: datetime, max_staleness_hours: int) -> list[str]:
        """Return each of TCB info and identity that does not hold at the instant *at*, in words."""
        found = []
        for name, each in (("TCB info", self.info), ("QE identity", self.identity)):
            why = out_of_date(each, at, max_staleness_hours) if each is not None else None
            if why is not None:
                found.append(f"{name}: {why}")
        return found

    def expired_lists(self, at: datetime) -> list[str]:
        """Return each revocation list that does not hold at the instant *at*, in words."""
        states = ((name, out_of_date(crl, at)) for name, crl in self.lists)
        return [f"{name}: {why}" for name, why in states if why is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuoteClaims:
    """What a quote proves.

    Args:
        quote: Every field.
        platform: What the PCK certificate says of the platform.
        ca: `processor` or `platform`: which CA of Intel's certified it.
        vouched: What collateral says.
        tcb: What the TCB is worth, in date or not; None without TCB info and identity.
        test_only: The pinned root is that of a test kit.
    """

    quote: UnverifiedQuote = field(repr=False)
    platform: Platform
    ca: str
    vouched: Vouched
    tcb: Tcb | None
    test_only: bool


def wanted(quote: UnverifiedQuote, root: Certificate) -> CollateralKey | None:
    """Return which collateral a quote needs; None where its chain does not end in *root*: nothing is fetched for it."""
    tee = _NAMES.get(quote.tee)
    try:
        return collateral_key(tee, quote.certification, root) if tee is not None else None
    except Refused:
        return None


def verify(
    quote: UnverifiedQuote,
    *,
    sent: Collateral | None,
    endorsements: Endorsements,
    report_data: bytes,
    at: datetime,
    names: Checks,
) -> QuoteClaims:
    """Return what the quote proves.

    Args:
        quote: What came.
        sent: Collateral that came with it; object by object it counts unless what is stored was issued later.
        endorsements: The pinned root, and stored collateral.
        report_data: The 64 bytes that it must carry.
        at: The instant to judge at, UTC.
        names: The checks, `checks`.

    Raises:
        HardwareEvidenceRejected: With every check of the list above that failed.
    """
    root = endorsements.root
    failed = [names.quote.failed(expected, found) for expected, found in _faults(quote, names.tee)]
    chain, platform, ca = None, None, ""
    try:
        chain, platform, ca = _platform(quote, root, at)
    except (Refused, MalformedEvidence) as e:
        failed.append(names.chain.failed("a platform that Intel certified", str(e)))
    fault = _signature_fault(quote, chain.leaf if chain is not None else _leaf(quote))
    if fault is not None:
        failed.append(names.signature.failed("signatures of platform, quoting enclave and quote", fault))
    if not hmac.compare_digest(quote.body.report_data, report_data):
        failed.append(
            names.report_data.failed(
                "report data over this challenge, machine and key", quote.body.report_data.hex()
            )
        )
    collateral = sent.over(endorsements.collateral) if sent is not None else endorsements.collateral
    vouched = _vouched(collateral or Collateral(), root, at, names.tee, chain, platform)
    failed += [
        names.collateral_chain.failed("collateral that Intel certified", why) for why in vouched.chains
    ]
    if vouched.identity is not None:
        fault = qe_fault(quote.qe_report, vouched.identity)
        if fault is not None:
            failed.append(names.quoting_enclave.failed("the quoting enclave of Intel", fault))
    if failed or platform is None:
        raise HardwareEvidenceRejected(failed)
    tcb = None
    if vouched.info is not None and vouched.identity is not None:
        tcb = appraise_tcb(quote.body, quote.qe_report, platform, vouched.info, vouched.identity)
    return QuoteClaims(
        quote=quote,
        platform=platform,
        ca=ca,
        vouched=vouched,
        tcb=tcb,
        test_only=TEST_ONLY in root.subject,
    )


def _faults(quote: UnverifiedQuote, tee: str) -> list[tuple[str, str]]:
    """Return what is not as the format demands (step 1)."""
    found = []
    # The layout follows from version and body type; the TEE is what the header says besides.
    enclave = isinstance(quote.body, EnclaveReport)
    if _NAMES.get(quote.tee) != tee or enclave is not (tee == "SGX"):
        found.append((f"a quote of {tee}", f"TEE 0x{quote.tee:x}, version {quote.version}"))
    if quote.key_type != KEY_P256:
        found.append(("an attestation key of type 2, ECDSA on P-256", f"type {quote.key_type}"))
    if quote.vendor != INTEL:
        found.append(("the quoting enclave of Intel", f"vendor {quote.vendor.hex()}"))
    for report in (quote.body, quote.qe_report):
        fault = report.fault()
        if fault is not None:
            found.append(("zero", fault))
    return found


def _platform(quote: UnverifiedQuote, root: Certificate, at: datetime) -> tuple[Chain, Platform, str]:
    if quote.certification_type != CERTIFIED_BY_CHAIN:
        words = f"certification data of type {quote.certification_type}, {CERTIFIED_BY_CHAIN} expected"
        raise MalformedEvidence(words)
    chain = verify_chain(quote.certification, root)
    chain.check_time(at)
    return chain, platform_of(chain.leaf), pck_ca(chain.issuer)


def _leaf(quote: UnverifiedQuote) -> Certificate | None:
    """Return the certificate that a quote shows, though its chain is invalid; None where none can be read."""
    try:
        return parse_chain(quote.certification)[0]
    except MalformedEvidence:
        return None


def _signature_fault(quote: UnverifiedQuote, leaf: Certificate | None) -> str | None:
    """Return which link from the platform's key to the quote does not hold, or None (step 5)."""
    if leaf is not None and not _enclave_signed(leaf, quote.qe_signature, quote.qe_report_signed):
        return "the QE report is not signed by the platform's key"
    bound = hashlib.sha256(quote.attestation_key + quote.qe_auth_data).digest() + bytes(32)
    if not hmac.compare_digest(bound, quote.qe_report.report_data):
        return "the QE report is not over this attestation key"
    try:
        key = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), b"\x04" + quote.attestation_key)
    except ValueError:
        return "the attestation key is not on P-256"
    if not signed_by_key(key, quote.signature, quote.signed):
        return "the quote is not signed by its attestation key"
    return None


class _Found:
    """Collects what is said of collateral, object by object."""

    def __init__(self) -> None:
        self.missing: list[str] = []
        self.missing_lists: list[str] = []
        self.invalid: list[str] = []
        self.chains: list[str] = []
        self.revoked: list[str] = []
        self.lists: list[tuple[str, CRL]] = []


def _vouched(
    collateral: Collateral,
    root: Certificate,
    at: datetime,
    tee: str,
    chain: Chain | None,
    platform: Platform | None,
) -> Vouched:
    found = _Found()
    info, identity = None, None
    signers: list[Certificate] = []
    for name in ("TCB info", "QE identity"):
        prefix = {"TCB info": "tcb_info", "QE identity": "qe_identity"}[name]
        data, signature, signing = (
            getattr(collateral, prefix + suffix) for suffix in ("", "_signature", "_issuer_chain")
        )
        if data is None or signature is None or signing is None:
            found.missing.append(name)
            continue
        try:
            # Each by its own function: what is remembered of one is none of the other.
            if name == "TCB info":
                signed_info = verify_tcb_info(data, signature, signing, root)
                signed_info.chain.check_time(at)
                signers.append(signed_info.chain.leaf)
                info = _of_platform(signed_info.value, tee, platform, found)
            else:
                signed_identity = verify_identity(data, signature, signing, root)
                signed_identity.chain.check_time(at)
                signers.append(signed_identity.chain.leaf)
                identity = _of_tee(signed_identity.value, tee, found)
        except Refused as e:
            (found.chains if e.code == "chain-invalid" else found.invalid).append(f"{name}: {e}")
    _revocations(collateral, root, chain, signers, found)
    return Vouched(
        info=info,
        identity=identity,
        lists=tuple(found.lists),
        revoked=tuple(found.revoked),
        missing=tuple(found.missing),
        missing_lists=tuple(found.missing_lists),
        invalid=tuple(found.invalid),
        chains=tuple(found.chains),
    )


def _of_platform(info: TcbInfo, tee: str, platform: Platform | None, found: _Found) -> TcbInfo | None:
    """Return *info* where it is of this platform (step 4)."""
    if info.tee != tee:
        found.invalid.append(f"TCB info: of {info.tee}, not of {tee}")
        return None
    if platform is not None and (info.fmspc, info.pce_id) != (platform.fmspc, platform.pce_id):
        found.invalid.append(
            f"TCB info: of FMSPC {info.fmspc.hex()}, PCEID {info.pce_id.hex()}; "
            f"the platform has {platform.fmspc.hex()}, {platform.pce_id.hex()}"
        )
        return None
    return info


def _of_tee(identity: EnclaveIdentity, tee: str, found: _Found) -> EnclaveIdentity | None:
    if identity.tee != tee:
        found.invalid.append(f"QE identity: of {identity.tee}, not of {tee}")
        return None
    return identity


def _revocations(
    collateral: Collateral,
    root: Certificate,
    chain: Chain | None,
    signers: list[Certificate],
    found: _Found,
) -> None:
    """Tell which certificates are revoked (step 2): the platform's by its CA, all others by the root."""
    of_root = list(signers)
    asked: list[tuple[str, bytes | None, Certificate, list[Certificate]]] = []
    if chain is not None:
        of_root.append(chain.issuer)
        asked.append(("PCK revocation list", collateral.pck_crl, chain.issuer, [chain.leaf]))
    asked.append(("revocation list of the root", collateral.root_ca_crl, root, of_root))
    for name, data, issuer, certificates in asked:
        if data is None:
            found.missing_lists.append(name)
            continue
        try:
            crl = verify_crl(data, issuer)
        except Refused as e:
            found.invalid.append(f"{name}: {e}")
            continue
        found.lists.append((name, crl))
        # One that is due for replacement still says who is revoked.
        for each in certificates:
            reason = crl.revoked.get(each.serial)
            words = f"{each.subject}: {reason}"
            if reason is not None and words not in found.revoked:
                found.revoked.append(words)
