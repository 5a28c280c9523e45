"""Collateral: what Intel says of platforms, each object verified alone for whoever stores or judges by it.

What is verified is remembered by its bytes, since thousands of platforms share it; whether it is still in date is a
question of the instant, and asked every time.
"""

# Algorithms for: hardware-evidence
from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Final, NamedTuple

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from attestation.endorsements.certificate import Certificate
from attestation.endorsements.intel.pck import (
    TCB_SIGNING,
    Chain,
    common_name,
    pck_ca,
    platform_of,
    verify_chain,
)
from attestation.endorsements.intel.refusal import Refused
from attestation.endorsements.intel.tcb import (
    MAX_OBJECT_BYTES,
    EnclaveIdentity,
    TcbInfo,
    parse_identity,
    parse_tcb_info,
)
from attestation.endorsements.revocation import CRL, parse_crl
from attestation.errors import MalformedEvidence, SignatureInvalid
from attestation.results.codes import Code
from attestation.wire import named_once

SIGNATURE_BYTES: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Collateral:
    """The objects as received; each may be absent.

    Args:
        tcb_info, qe_identity: The exact bytes that are signed (`split_signed`), ASCII.
        tcb_info_signature, qe_identity_signature: 64 bytes, R ‖ S, big-endian.
        tcb_info_issuer_chain, qe_identity_issuer_chain, pck_crl_issuer_chain: PEM, the leaf first.
        pck_crl, root_ca_crl: DER.
    """

    tcb_info: bytes | None = field(default=None, repr=False)
    tcb_info_signature: bytes | None = field(default=None, repr=False)
    tcb_info_issuer_chain: bytes | None = field(default=None, repr=False)
    qe_identity: bytes | None = field(default=None, repr=False)
    qe_identity_signature: bytes | None = field(default=None, repr=False)
    qe_identity_issuer_chain: bytes | None = field(default=None, repr=False)
    pck_crl: bytes | None = field(default=None, repr=False)
    pck_crl_issuer_chain: bytes | None = field(default=None, repr=False)
    root_ca_crl: bytes | None = field(default=None, repr=False)

    def over(self, stored: Collateral | None) -> Collateral:
        """Return these objects, and of *stored* those of which none is here, or that Intel issued later.

        A machine that could choose would bring a list from before its certificate was revoked. What belongs together
        stays together.
        """
        if stored is None:
            return self
        used = {name: _newer(name, getattr(self, name), getattr(stored, name)) for name in _ISSUED}
        return Collateral(
            **{
                each.name: getattr(self if used[_group(each.name)] else stored, each.name)
                for each in fields(Collateral)
            }
        )


_ISSUED: Final[Mapping[str, Callable[[bytes], datetime]]] = {
    "tcb_info": lambda data: parse_tcb_info(data).issued,
    "qe_identity": lambda data: parse_identity(data).issued,
    "pck_crl": lambda data: parse_crl(data).this_update,
    "root_ca_crl": lambda data: parse_crl(data).this_update,
}
"""When Intel issued an object, by its name; believed of what is verified after it was chosen."""


@lru_cache(maxsize=256)
def _issued(name: str, data: bytes) -> datetime | None:
    """Return when *data* was issued; None where it cannot be read, which is told where it is verified."""
    try:
        return _ISSUED[name](data)
    except MalformedEvidence:
        return None


def _newer(name: str, sent: bytes | None, stored: bytes | None) -> bool:
    """Say whether what came counts, and not what is stored."""
    if sent is None or stored is None or sent == stored:
        return sent is not None
    theirs, ours = _issued(name, sent), _issued(name, stored)
    return theirs is None or ours is None or theirs >= ours


def _group(name: str) -> str:
    return name.removesuffix("_issuer_chain").removesuffix("_signature")


@dataclass(frozen=True, slots=True, kw_only=True)
class Endorsements:
    """What vouches for a platform.

    Args:
        root: The pinned root CA of Intel.
        collateral: What is at hand; None where nothing is.
    """

    root: Certificate
    collateral: Collateral | None


class CollateralKey(NamedTuple):
    """What collateral is asked for.

    Args:
        tee: `SGX` or `TDX`.
        fmspc: 12 upper-case hex digits.
        ca: `processor` or `platform`.
    """

    tee: str
    fmspc: str
    ca: str


def collateral_key(tee: str, pck_chain: bytes, root: Certificate) -> CollateralKey:
    """Return which collateral a platform needs; asked only of one whose chain ends in *root*.

    Args:
        tee: `SGX` or `TDX`.
        pck_chain: The chain in its quote, PEM.
        root: The pinned root.

    Raises:
        Refused: CHAIN_INVALID: whoever shows any certificate could make us ask for anything.
    """
    chain = verify_chain(pck_chain, root)
    try:
        platform = platform_of(chain.leaf)
    except MalformedEvidence as e:
        raise Refused(Code.CHAIN_INVALID, str(e)) from e
    return CollateralKey(tee, platform.fmspc.hex().upper(), pck_ca(chain.issuer))


def parse_collateral(data: bytes) -> Collateral:
    """Read collateral that came with evidence: JSON, as Intel's libraries and those after them write it.

    Signatures and revocation lists are hex; objects are text, exactly as signed; chains are PEM.

    Raises:
        MalformedEvidence: The only way to fail; longer than 256 KiB, or a member is unknown.
    """
    if len(data) > MAX_OBJECT_BYTES:
        raise MalformedEvidence(f"collateral of {len(data)} bytes, at most {MAX_OBJECT_BYTES} allowed")
    try:
        members = json.loads(data.decode("ascii"), object_pairs_hook=named_once)
    except (ValueError, RecursionError) as e:
        raise MalformedEvidence("collateral: not JSON") from e
    known = {each.name for each in fields(Collateral)}
    if not isinstance(members, dict) or not members.keys() <= known:
        raise MalformedEvidence(f"collateral has the members {', '.join(sorted(known))}")
    return Collateral(**{name: _member(name, value) for name, value in members.items()})


def _member(name: str, value: object) -> bytes:
    if not isinstance(value, str):
        raise MalformedEvidence(f"collateral: {name}: not a text")
    try:
        found = bytes.fromhex(value) if name.endswith(("_signature", "_crl")) else value.encode("ascii")
    except ValueError as e:
        raise MalformedEvidence(f"collateral: {name}: not hex, or not ASCII") from e
    if name.endswith("_signature") and len(found) != SIGNATURE_BYTES:
        raise MalformedEvidence(f"collateral: {name}: {len(found)} bytes, {SIGNATURE_BYTES} expected")
    return found


class SignedTcbInfo(NamedTuple):
    """TCB info that Intel signed, and the chain of who did."""

    value: TcbInfo
    chain: Chain


class SignedIdentity(NamedTuple):
    """An identity that Intel signed, and the chain of who did."""

    value: EnclaveIdentity
    chain: Chain


@lru_cache(maxsize=256)
def verify_tcb_info(data: bytes, signature: bytes, chain: bytes, root: Certificate) -> SignedTcbInfo:
    """Verify TCB info.

    Args:
        data: The exact bytes signed.
        signature: 64 bytes, R ‖ S.
        chain: Of who signed it, PEM; ends in *root*. Its time is looked at by `Chain.check_time`.
        root: The pinned root.

    Raises:
        Refused: CHAIN_INVALID; COLLATERAL_INVALID: not signed by it, or it cannot be read.
    """
    signer = _signer(data, signature, chain, root, "TCB info")
    try:
        return SignedTcbInfo(parse_tcb_info(data), signer)
    except MalformedEvidence as e:
        raise Refused(Code.COLLATERAL_INVALID, f"TCB info: {e}") from e


@lru_cache(maxsize=64)
def verify_identity(data: bytes, signature: bytes, chain: bytes, root: Certificate) -> SignedIdentity:
    """Verify the identity of a quoting enclave; arguments and errors as of `verify_tcb_info`."""
    signer = _signer(data, signature, chain, root, "QE identity")
    try:
        return SignedIdentity(parse_identity(data), signer)
    except MalformedEvidence as e:
        raise Refused(Code.COLLATERAL_INVALID, f"QE identity: {e}") from e


@lru_cache(maxsize=64)
def verify_crl(data: bytes, issuer: Certificate) -> CRL:
    """Verify a revocation list, DER, of *issuer*; its time is looked at by `out_of_date`.

    Raises:
        Refused: COLLATERAL_INVALID: of another issuer, not signed by it, or it cannot be read.
    """
    what = f"revocation list of {issuer.subject}"
    if len(data) > MAX_OBJECT_BYTES or data[:1] != b"\x30":
        raise Refused(Code.COLLATERAL_INVALID, f"{what}: not DER, or longer than {MAX_OBJECT_BYTES} bytes")
    try:
        crl = parse_crl(data)
        if crl.issuer_name.key != issuer.subject_key:
            raise Refused(Code.COLLATERAL_INVALID, f"{what}: it is of {crl.issuer_name.text}")
        if crl.unusable is not None:
            raise Refused(Code.COLLATERAL_INVALID, f"{what}: {crl.unusable}")
        crl.verify_issued_by(issuer)
    except (MalformedEvidence, SignatureInvalid) as e:
        raise Refused(Code.COLLATERAL_INVALID, f"{what}: {e}") from e
    return crl


def verify_pck_crl(data: bytes, chain: bytes, root: Certificate) -> tuple[CRL, str]:
    """Verify a list of PCK certificates by the chain that came with it; return it and its CA.

    Args:
        data: DER.
        chain: That of its issuer, PEM: the CA first.
        root: The pinned root.

    Returns:
        The list, and `processor` or `platform`.

    Raises:
        Refused: CHAIN_INVALID or COLLATERAL_INVALID.
    """
    issuer = verify_chain(chain, root, ca=True).leaf
    return verify_crl(data, issuer), pck_ca(issuer)


def out_of_date(
    found: TcbInfo | EnclaveIdentity | CRL, at: datetime, max_staleness_hours: int = 0
) -> str | None:
    """Return why *found* says nothing at the instant *at*, or None.

    Args:
        found: What was verified.
        at: UTC.
        max_staleness_hours: How much longer TCB info and identities are believed than they say; never lists.
    """
    if isinstance(found, CRL):
        begins, ends = found.this_update, found.next_update
        if ends is None:
            return "it does not say until when it holds"
    else:
        begins, ends = found.issued, found.next_update + timedelta(hours=max_staleness_hours)
    if at < begins:
        return f"it holds from {begins:%Y-%m-%dT%H:%MZ}"
    return f"it expired {ends:%Y-%m-%dT%H:%MZ}" if at > ends else None


def _signer(data: bytes, signature: bytes, chain: bytes, root: Certificate, what: str) -> Chain:
    signer = verify_chain(chain, root)
    if common_name(signer.leaf) != TCB_SIGNING:
        raise Refused(Code.COLLATERAL_INVALID, f"{what}: signed by {signer.leaf.subject}, not {TCB_SIGNING}")
    if not signed_by(signer.leaf, signature, data):
        raise Refused(Code.COLLATERAL_INVALID, f"{what}: not signed by {signer.leaf.subject}")
    return signer


def signed_by(certificate: Certificate, signature: bytes, data: bytes) -> bool:
    """Say whether the P-256 key of *certificate* signed *data*: ECDSA with SHA-256, 64 bytes R ‖ S big-endian."""
    try:
        key = certificate.public_key
    except SignatureInvalid:
        return False
    return isinstance(key, ec.EllipticCurvePublicKey) and signed_by_key(key, signature, data)


def signed_by_key(key: ec.EllipticCurvePublicKey, signature: bytes, data: bytes) -> bool:
    """Say whether *key*, on P-256, signed *data*; as `signed_by`."""
    if not isinstance(key.curve, ec.SECP256R1) or len(signature) != SIGNATURE_BYTES:
        return False
    r, s = int.from_bytes(signature[:32]), int.from_bytes(signature[32:])
    try:
        key.verify(encode_dss_signature(r, s), data, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        return False
    return True
