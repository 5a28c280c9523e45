"""The bundle by which administrators hand a CA key to attested hardware (HSM-AND-KUBERNETES §13).

    bundle.json    canonical JSON (`attestation.wire.canonical_json`) of the fields of `Bundle`: v = 1, byte strings in
                   base64, digests in hex, instants in RFC 3339
    bundle.jws     one detached JWS (RFC 7515, Appendix F) per line, each by one administrator

A signature is of ES384 or ML-DSA-87 and brings its public key along (`jwk`); whether that key counts says the issuer
alone, which lists the SHA-256 of each. There is one way to write a bundle: what is not canonical is refused, so its
digest names it. Every reason to refuse one is `BundleRejected`; the private key in it is opened by the token alone.
"""

# Algorithms for: provisioning-bundle
from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, mldsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from attestation.clock import parse_rfc3339, rfc3339
from attestation.errors import BundleRejected, KeyUnsupported, MalformedEvidence
from attestation.hsm import OAEP_HASHES
from attestation.wire import b64decode, b64encode, b64url_decode, b64url_encode, canonical_json, named_once

TYP: Final = "itl-hsm-bundle+json"
SECRET_TYPE: Final = "attestation.itl.io/hsm-bundle"  # noqa: S105 -- no secret: a type
"""Of the Kubernetes Secret that carries a bundle."""
BUNDLE_KEY: Final = "bundle.json"
SIGNATURES_KEY: Final = "bundle.jws"

MAX_BUNDLE_BYTES: Final = 262_144
MAX_SIGNATURES: Final = 8
MAX_SIGNATURE_CHARACTERS: Final = 16_384
MAX_CHAIN: Final = 8
MAX_CERTIFICATE_BYTES: Final = 16_384
MAX_BLOB_BYTES: Final = 65_536
NONCE_BYTES: Final = 32
FINGERPRINT_BYTES: Final = 48
_COORDINATE_BYTES: Final = 48
_MEMBERS: Final = frozenset(
    {
        "v",
        "blob",
        "certChain",
        "evidenceDigest",
        "boundKeyFingerprint",
        "signerUid",
        "qaUid",
        "nonce",
        "notBefore",
        "notAfter",
        "oaepHash",
    }
)

SigningKey = ec.EllipticCurvePrivateKey | mldsa.MLDSA87PrivateKey
PublicKey = ec.EllipticCurvePublicKey | mldsa.MLDSA87PublicKey


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """A wrapped CA key, and for what it is.

    Args:
        blob: Of `attestation.keys.wrapping.wrap_key`.
        chain: Certificates of the CA, DER, its own first.
        evidence_digest: Of the evidence that the administrator judged, 48 bytes.
        bound_key_fingerprint: SHA-384 of the SubjectPublicKeyInfo of the key under which *blob* is wrapped.
        signer_uid: UID of the issuer that it is for.
        qa_uid: UID of the QuoteAttestation that it answers.
        nonce: Its nonce, 32 bytes.
        not_before: Since when it counts, UTC, whole seconds.
        not_after: Until when, UTC.
        oaep_hash: `sha256` or `sha1`.
    """

    blob: bytes = field(repr=False)
    chain: tuple[bytes, ...] = field(repr=False)
    evidence_digest: bytes
    bound_key_fingerprint: bytes
    signer_uid: str
    qa_uid: str
    nonce: bytes = field(repr=False)
    not_before: datetime
    not_after: datetime
    oaep_hash: str

    def serialise(self) -> bytes:
        """Return the one text of it, `bundle.json`."""
        return canonical_json(
            {
                "v": 1,
                "blob": b64encode(self.blob),
                "certChain": [b64encode(each) for each in self.chain],
                "evidenceDigest": self.evidence_digest.hex(),
                "boundKeyFingerprint": self.bound_key_fingerprint.hex(),
                "signerUid": self.signer_uid,
                "qaUid": self.qa_uid,
                "nonce": b64encode(self.nonce),
                "notBefore": rfc3339(self.not_before),
                "notAfter": rfc3339(self.not_after),
                "oaepHash": self.oaep_hash,
            }
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedBundle:
    """A bundle that as many administrators signed as the issuer asks for; only `read_bundle` builds one.

    Args:
        bundle: What they signed.
        sha256: Of its text, 64 lower-case hex: what the audit calls it.
        signers: SHA-256 of the SubjectPublicKeyInfo of each who signed and counts, in order.
    """

    bundle: Bundle
    sha256: str
    signers: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleCase:
    """What a bundle must answer: the fields of one QuoteAttestation and of its issuer.

    Args:
        signer_uid: UID of the issuer.
        qa_uid: UID of the QuoteAttestation.
        nonce: 32 bytes.
        evidence_digest: Of its evidence, 48 bytes.
        bound_key_fingerprint: SHA-384 of its public key's SubjectPublicKeyInfo.
        oaep_hash: What the issuer names.
        expires_at: When the QuoteAttestation ends, UTC.
        ca_certificate_sha256: Of the certificate that the issuer expects, 32 bytes; None where it takes any.
    """

    signer_uid: str
    qa_uid: str
    nonce: bytes
    evidence_digest: bytes
    bound_key_fingerprint: bytes
    oaep_hash: str
    expires_at: datetime
    ca_certificate_sha256: bytes | None


def fingerprint(key: PublicKey) -> str:
    """Return how an issuer lists a signer: SHA-256 of the SubjectPublicKeyInfo, 64 lower-case hex."""
    return hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()


def sign_bundle(text: bytes, key: SigningKey) -> str:
    """Return a detached JWS over *text*: `header..signature`.

    Args:
        text: Of `Bundle.serialise`.
        key: P-384 or ML-DSA-87.

    Raises:
        KeyUnsupported: A key of another kind.
    """
    if isinstance(key, ec.EllipticCurvePrivateKey) and isinstance(key.curve, ec.SECP384R1):
        header = _header("ES384", _jwk(key.public_key()))
        r, s = decode_dss_signature(key.sign(_signed(header, text), ec.ECDSA(hashes.SHA384())))
        signature = r.to_bytes(_COORDINATE_BYTES) + s.to_bytes(_COORDINATE_BYTES)
    elif isinstance(key, mldsa.MLDSA87PrivateKey):
        header = _header("ML-DSA-87", _jwk(key.public_key()))
        signature = key.sign(_signed(header, text))
    else:
        raise KeyUnsupported("a bundle is signed by a key of P-384 or ML-DSA-87")
    return f"{header}..{b64url_encode(signature)}"


def _header(algorithm: str, jwk: dict[str, str]) -> str:
    return b64url_encode(canonical_json({"alg": algorithm, "typ": TYP, "jwk": jwk}))


def _jwk(key: PublicKey) -> dict[str, str]:
    if isinstance(key, mldsa.MLDSA87PublicKey):
        return {"kty": "AKP", "alg": "ML-DSA-87", "pub": b64url_encode(key.public_bytes_raw())}
    point = key.public_numbers()
    x, y = (b64url_encode(value.to_bytes(_COORDINATE_BYTES)) for value in (point.x, point.y))
    return {"kty": "EC", "crv": "P-384", "x": x, "y": y}


def _signed(header: str, text: bytes) -> bytes:
    return f"{header}.{b64url_encode(text)}".encode("ascii")


def read_bundle(
    text: bytes, signatures: Sequence[str], *, signers: AbstractSet[str], required: int
) -> SignedBundle:
    """Return a bundle that enough of the issuer's signers signed.

    Args:
        text: `bundle.json`.
        signatures: The lines of `bundle.jws`.
        signers: Fingerprints that the issuer lists.
        required: How many distinct ones must have signed: 1, or 2 under dual control.

    Raises:
        BundleRejected: The only way to fail.
    """
    # 1. Nothing in the text is read before those who may say so have said it.
    if required < 1:
        raise BundleRejected("an issuer asks for at least one signature")
    if len(text) > MAX_BUNDLE_BYTES or len(signatures) > MAX_SIGNATURES:
        raise BundleRejected(f"more than {MAX_BUNDLE_BYTES} bytes, or than {MAX_SIGNATURES} signatures")
    found = dict.fromkeys(_signer(text, each) for each in signatures)
    # 2. Each must be listed, not only enough of them: a stranger's signature beside is nobody's business here.
    strangers = [each for each in found if each not in signers]
    if strangers:
        raise BundleRejected(f"signed by {strangers[0]}, which the issuer does not list")
    # 3. Two signatures of one key are one signer: dual control is of two people.
    if len(found) < required:
        raise BundleRejected(f"signed by {len(found)} of the issuer's signers; {required} expected")
    # 4. One text for one bundle: or its digest would not name it.
    try:
        bundle = _parse(text)
    except MalformedEvidence as e:
        raise BundleRejected(f"bundle: {e}") from e
    if bundle.serialise() != text:
        raise BundleRejected("the text of the bundle is not in its one form")
    return SignedBundle(bundle=bundle, sha256=hashlib.sha256(text).hexdigest(), signers=tuple(found))


def _signer(text: bytes, signature: str) -> str:
    """Return who signed *text*."""
    if len(signature) > MAX_SIGNATURE_CHARACTERS:
        raise BundleRejected(f"a signature of more than {MAX_SIGNATURE_CHARACTERS} characters")
    parts = signature.split(".")
    if len(parts) != 3 or parts[1]:
        raise BundleRejected("not a detached JWS")
    try:
        header = json.loads(b64url_decode(parts[0], "header"), object_pairs_hook=named_once)
        given = b64url_decode(parts[2], "signature")
        key = _key(header)
    except (MalformedEvidence, ValueError, KeyError, TypeError, RecursionError) as e:
        raise BundleRejected("a signature whose header or key cannot be read") from e
    try:
        _verify(key, given, _signed(parts[0], text))
    except InvalidSignature as e:
        raise BundleRejected("a signature that does not verify") from e
    return fingerprint(key)


def _verify(key: PublicKey, given: bytes, signed: bytes) -> None:
    """Verify a signature as JWS has it: of an elliptic curve r ‖ s.

    Raises:
        InvalidSignature: It is none.
    """
    if isinstance(key, mldsa.MLDSA87PublicKey):
        key.verify(given, signed)
        return
    if len(given) != 2 * _COORDINATE_BYTES:
        raise InvalidSignature
    r, s = int.from_bytes(given[:_COORDINATE_BYTES]), int.from_bytes(given[_COORDINATE_BYTES:])
    key.verify(encode_dss_signature(r, s), signed, ec.ECDSA(hashes.SHA384()))


def _key(header: dict[str, Any]) -> PublicKey:
    """Return the key in a header, which has the members that ours have and no other.

    Raises:
        ValueError, KeyError, TypeError, MalformedEvidence: It cannot be read.
    """
    jwk = header["jwk"]
    if jwk["kty"] == "AKP":
        raw = b64url_decode(jwk["pub"], "pub", max_bytes=4096)
        key: PublicKey = mldsa.MLDSA87PublicKey.from_public_bytes(raw)
        algorithm = "ML-DSA-87"
    else:
        x, y = (int.from_bytes(b64url_decode(jwk[name], name, max_bytes=48)) for name in ("x", "y"))
        key = ec.EllipticCurvePublicNumbers(x, y, ec.SECP384R1()).public_key()
        algorithm = "ES384"
    # Whatever else a header says (crit, b64, another algorithm) would change what the signature means.
    if header != {"alg": algorithm, "typ": TYP, "jwk": _jwk(key)}:
        raise ValueError("another header than ours")
    return key


def _parse(text: bytes) -> Bundle:
    """Read `bundle.json`.

    Raises:
        MalformedEvidence: The only way to fail.
    """
    try:
        said = json.loads(text.decode("ascii"), object_pairs_hook=named_once)
    except (ValueError, RecursionError) as e:
        raise MalformedEvidence("not JSON") from e
    if not isinstance(said, dict) or said.keys() != _MEMBERS or said["v"] != 1:
        raise MalformedEvidence("not the members of version 1")
    chain = said.pop("certChain")
    del said["v"]
    if not isinstance(chain, list) or not 1 <= len(chain) <= MAX_CHAIN:
        raise MalformedEvidence(f"certChain: 1 to {MAX_CHAIN} certificates expected")
    # In ASCII: an escape may write half of a character, which nothing can be compared with.
    if not all(isinstance(each, str) and each.isascii() for each in (*chain, *said.values())):
        raise MalformedEvidence("a member that is no text in ASCII")
    if said["oaepHash"] not in OAEP_HASHES:
        raise MalformedEvidence(f"oaepHash: {' or '.join(OAEP_HASHES)} expected")
    return Bundle(
        blob=b64decode(said["blob"], "blob", max_bytes=MAX_BLOB_BYTES),
        chain=tuple(b64decode(each, "certChain", max_bytes=MAX_CERTIFICATE_BYTES) for each in chain),
        evidence_digest=_digest(said["evidenceDigest"], "evidenceDigest"),
        bound_key_fingerprint=_digest(said["boundKeyFingerprint"], "boundKeyFingerprint"),
        signer_uid=said["signerUid"],
        qa_uid=said["qaUid"],
        nonce=b64decode(said["nonce"], "nonce", max_bytes=NONCE_BYTES),
        not_before=_instant(said["notBefore"], "notBefore"),
        not_after=_instant(said["notAfter"], "notAfter"),
        oaep_hash=said["oaepHash"],
    )


def _digest(text: str, what: str) -> bytes:
    try:
        found = bytes.fromhex(text)
    except ValueError as e:
        raise MalformedEvidence(f"{what}: not hex") from e
    if len(found) != FINGERPRINT_BYTES:
        raise MalformedEvidence(f"{what}: {FINGERPRINT_BYTES} bytes expected")
    return found


def _instant(text: str, what: str) -> datetime:
    try:
        return parse_rfc3339(text)
    except ValueError as e:
        raise MalformedEvidence(f"{what}: not an instant of RFC 3339") from e


def match(signed: SignedBundle, case: BundleCase, *, at: datetime) -> Bundle:
    """Return the bundle where it answers *case* at the instant *at*.

    That the nonce is spent by this bundle and no other is for the service to say, in one unit, after this.

    Raises:
        BundleRejected: It is for another issuer, question or key, not for now, or with another CA.
    """
    bundle = signed.bundle
    # 5. Every field equals that of the question. Otherwise a bundle for one issuer would load a key into another,
    #    or one that an administrator signed for hardware that they had judged would open in another.
    compared: Iterable[tuple[str, bytes, bytes]] = (
        ("signerUid", bundle.signer_uid.encode(), case.signer_uid.encode()),
        ("qaUid", bundle.qa_uid.encode(), case.qa_uid.encode()),
        ("nonce", bundle.nonce, case.nonce),
        ("evidenceDigest", bundle.evidence_digest, case.evidence_digest),
        ("boundKeyFingerprint", bundle.bound_key_fingerprint, case.bound_key_fingerprint),
        ("oaepHash", bundle.oaep_hash.encode(), case.oaep_hash.encode()),
    )
    different = [name for name, found, wanted in compared if not hmac.compare_digest(found, wanted)]
    if different:
        raise BundleRejected(f"another {', '.join(different)} than that of the QuoteAttestation")
    # 6. Now, and not longer than the question is open.
    if not bundle.not_before <= at <= bundle.not_after <= case.expires_at:
        raise BundleRejected("the bundle does not count now, or for longer than the QuoteAttestation")
    # 7. The CA that the issuer was promised.
    if case.ca_certificate_sha256 is not None and not hmac.compare_digest(
        hashlib.sha256(bundle.chain[0]).digest(), case.ca_certificate_sha256
    ):
        raise BundleRejected("another CA certificate than the issuer expects")
    return bundle
