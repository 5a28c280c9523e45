"""The envelope of a QuoteAttestation: the `spec` of the kind, the same for REST and the command line (§11).

    purpose                KeyProvisioning | CsrAttestation
    evidence               {type, format, data, certChain[]?, collateralRef?}
    binding                {scheme, hash, nonce}
    publicKey              SubjectPublicKeyInfo, DER
    signerRef              {group, kind, namespace?, name, uid}
    requestRef? policyRef? wrap? {kekAlg, oaepHash, keyWrap} secretRef? expiresAt

Byte strings are in base64. Parsing believes nothing: a verdict rests on what the issuer asked for (`QuoteCase`).
"""

# Algorithms for: hardware-evidence
from __future__ import annotations

import hashlib
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final

from attestation.clock import parse_rfc3339
from attestation.errors import MalformedEvidence
from attestation.hsm import OAEP_HASHES
from attestation.report_data import lp
from attestation.wire import b64decode

NONCE_BYTES: Final = 32
MAX_DATA_BYTES: Final = 1 << 20
MAX_CERTIFICATE_BYTES: Final = 16_384
MAX_CHAIN: Final = 8
MAX_TEXT_CHARACTERS: Final = 253

_NEEDED: Final = frozenset({"purpose", "evidence", "binding", "publicKey", "signerRef", "expiresAt"})
_MAY: Final = frozenset({"requestRef", "policyRef", "wrap", "secretRef"})


class Purpose(StrEnum):
    """What is asked for."""

    KEY_PROVISIONING = "KeyProvisioning"
    """A CA key is to be wrapped under the bound key."""
    CSR_ATTESTATION = "CsrAttestation"
    """The bound key is that of a certification request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """A parsed QuoteAttestation. Nothing in it may be believed yet.

    Args:
        purpose: What is asked for.
        evidence_type: `evidence.type`.
        evidence_format: `evidence.format`.
        data: `evidence.data`, as the hardware made it.
        chain: `evidence.certChain`, DER, the leaf first.
        scheme: `binding.scheme`.
        hash_name: `binding.hash`.
        nonce: `binding.nonce`, 32 bytes.
        spki: `publicKey`.
        signer_uid: UID of the issuer that asks.
        oaep_hash: `wrap.oaepHash`; None where nothing is to be wrapped.
        expires_at: After it nothing counts, UTC.
    """

    purpose: Purpose
    evidence_type: str
    evidence_format: str
    data: bytes = field(repr=False)
    chain: tuple[bytes, ...] = field(repr=False)
    scheme: str
    hash_name: str
    nonce: bytes = field(repr=False)
    spki: bytes = field(repr=False)
    signer_uid: str
    oaep_hash: str | None
    expires_at: datetime


def evidence_digest(envelope: Envelope) -> bytes:
    """Return what names the evidence, in the bundle and in the audit: 48 bytes.

    SHA-384 over LP(type) ‖ LP(format) ‖ LP(data) ‖ LP of each certificate.
    """
    parts = (
        envelope.evidence_type.encode(),
        envelope.evidence_format.encode(),
        envelope.data,
        *envelope.chain,
    )
    return hashlib.sha384(b"".join(map(lp, parts))).digest()


def key_fingerprint(spki: bytes) -> bytes:
    """Return the fingerprint of a bound key: SHA-384 of its SubjectPublicKeyInfo, 48 bytes."""
    return hashlib.sha384(spki).digest()


def parse_envelope(spec: object) -> Envelope:
    """Parse the `spec` of a QuoteAttestation, as JSON has it.

    Raises:
        MalformedEvidence: The only way to fail.
    """
    said = _members(spec, "spec", _NEEDED, _MAY)
    evidence = _members(
        said["evidence"], "evidence", {"type", "format", "data"}, {"certChain", "collateralRef"}
    )
    binding = _members(said["binding"], "binding", {"scheme", "hash", "nonce"}, frozenset())
    signer = _members(said["signerRef"], "signerRef", {"group", "kind", "name", "uid"}, {"namespace"})
    purpose = _text(said["purpose"], "purpose")
    if purpose not in {*Purpose}:
        raise MalformedEvidence(f"purpose: {' or '.join(Purpose)} expected")
    chain = evidence.get("certChain", ())
    if not isinstance(chain, list | tuple) or len(chain) > MAX_CHAIN:
        raise MalformedEvidence(f"certChain: a list of at most {MAX_CHAIN} certificates expected")
    oaep_hash = None
    if said.get("wrap") is not None:
        wrap = _members(said["wrap"], "wrap", {"kekAlg", "oaepHash", "keyWrap"}, frozenset())
        oaep_hash = _text(wrap["oaepHash"], "oaepHash")
        if oaep_hash not in OAEP_HASHES:
            raise MalformedEvidence(f"oaepHash: {' or '.join(OAEP_HASHES)} expected")
    if purpose == Purpose.KEY_PROVISIONING and oaep_hash is None:
        raise MalformedEvidence("KeyProvisioning needs wrap")
    nonce = _bytes(binding["nonce"], "nonce", NONCE_BYTES)
    if len(nonce) != NONCE_BYTES:
        raise MalformedEvidence(f"nonce: {NONCE_BYTES} bytes expected")
    try:
        expires_at = parse_rfc3339(_text(said["expiresAt"], "expiresAt"))
    except ValueError as e:
        raise MalformedEvidence("expiresAt: not an instant of RFC 3339") from e
    return Envelope(
        purpose=Purpose(purpose),
        evidence_type=_text(evidence["type"], "type"),
        evidence_format=_text(evidence["format"], "format"),
        data=_bytes(evidence["data"], "data", MAX_DATA_BYTES),
        chain=tuple(_bytes(each, "certChain", MAX_CERTIFICATE_BYTES) for each in chain),
        scheme=_text(binding["scheme"], "scheme"),
        hash_name=_text(binding["hash"], "hash"),
        nonce=nonce,
        spki=_bytes(said["publicKey"], "publicKey", MAX_CERTIFICATE_BYTES),
        signer_uid=_text(signer["uid"], "uid"),
        oaep_hash=oaep_hash,
        expires_at=expires_at,
    )


def _members(
    value: object, what: str, needed: AbstractSet[str], may: AbstractSet[str]
) -> Mapping[str, object]:
    if not isinstance(value, Mapping) or not needed <= value.keys() <= needed | may:
        raise MalformedEvidence(f"{what}: the members {', '.join(sorted(needed))} expected")
    return value


def _text(value: object, what: str) -> str:
    # Half of a character, which JSON can escape, does not print either: nothing can be compared with it.
    if not isinstance(value, str) or not 1 <= len(value) <= MAX_TEXT_CHARACTERS or not value.isprintable():
        raise MalformedEvidence(f"{what}: a text of 1 to {MAX_TEXT_CHARACTERS} characters expected")
    return value


def _bytes(value: object, what: str, max_bytes: int) -> bytes:
    if not isinstance(value, str):
        raise MalformedEvidence(f"{what}: not base64")
    return b64decode(value, what, max_bytes=max_bytes)
