"""A key of a node, certified by its attestation key (TPM.md §3.4; check 17, `certify`).

TPM2_Certify states Name and Qualified Name of a loaded object, signed by the AK. The AK is restricted, so such a
statement was made by the TPM itself; the Name is a digest over the whole public area, attributes included. So who
trusts the AK knows whether the key was made in this TPM and can never leave it. How the key stands is computed from
these bytes and never asked for:

    tpm-resident            made in the TPM, cannot leave it, signs
    tpm-resident-decrypt    likewise, decrypts
    certified-external      a software key that somebody loaded: this machine vouches for it, no more

What a certification is good for stands in its qualifyingData: `csr_binding` or `key_binding`.
Layout: TCG TPM 2.0 Library, Part 2, TPMS_CERTIFY_INFO; Part 3, 18.2.
"""

# Algorithms for: node-proof, server-made-key, certified-key
from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from attestation.errors import (
    AttestHeaderInvalid,
    ChallengeMismatch,
    KeyCertificationRejected,
    KeyNotResident,
    MalformedEvidence,
    SignatureInvalid,
)
from attestation.tpm import (
    TPM_GENERATED,
    AKParent,
    Alg,
    Attest,
    AttestType,
    Attr,
    CertifyInfo,
    Curve,
    Public,
    Scheme,
    Signature,
    VerificationKey,
    ak_qualified_names,
    parse_attest,
    parse_public,
    parse_signature,
)
from attestation.tpm.public import attribute_words
from attestation.tpm.roca import is_roca_weak
from attestation.tpm.signature import ACCEPTED_HASHES
from attestation.wire import u32

MEDIA_TYPE = "application/vnd.itl.tpm-key-certification"

NONCE_BYTES: Final = 32
"""Of every challenge that a certification may answer."""

_CSR_CONTEXT: Final = b"itl-node-csr/v1"

_FREE: Final = int(
    Attr.USER_WITH_AUTH | Attr.ADMIN_WITH_POLICY | Attr.FIRMWARE_LIMITED | Attr.SVN_LIMITED | Attr.NO_DA
)
_RESIDENT: Final = int(Attr.FIXED_TPM | Attr.FIXED_PARENT | Attr.SENSITIVE_DATA_ORIGIN)
_AK: Final = int(_RESIDENT | Attr.RESTRICTED | Attr.SIGN_ENCRYPT)
_SIGN: Final = int(Attr.SIGN_ENCRYPT)
_DECRYPT: Final = int(Attr.DECRYPT)
_FIELD_BYTES: Final[dict[int, int]] = {Curve.NIST_P256: 32, Curve.NIST_P384: 48, Curve.NIST_P521: 66}
_SIGNING_SCHEMES: Final[dict[int, frozenset[int]]] = {
    Alg.RSA: frozenset({Alg.RSASSA, Alg.RSAPSS}),
    Alg.ECC: frozenset({Alg.ECDSA}),
}
_OAEP_SHA256: Final = Scheme(alg=Alg.OAEP, hash_alg=Alg.SHA256)


class KeyMode(StrEnum):
    """How a certified key stands to its TPM."""

    RESIDENT = "tpm-resident"
    """Made in the TPM and fixed to it; signs what it is given."""
    RESIDENT_DECRYPT = "tpm-resident-decrypt"
    """Made in the TPM and fixed to it; RSA, decrypts what it is given."""
    EXTERNAL = "certified-external"
    """Made elsewhere and only loaded when it was certified."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnverifiedKeyCertification:
    """A parsed certification with the public area it should be about. Nothing in it may be believed yet.

    Args:
        signed: The TPMS_ATTEST exactly as received: the signature is over these bytes.
        attest: Its fields.
        info: What it certifies.
        signature: The parsed TPMT_SIGNATURE.
        public: The public area sent beside it.
        spki: The key in it, canonical SubjectPublicKeyInfo DER.
    """

    signed: bytes
    attest: Attest
    info: CertifyInfo
    signature: Signature
    public: Public
    spki: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class CertifiedKey:
    """A key that the machine's AK certified for one use; only `verify` builds one.

    Args:
        public: Its public area.
        spki: Canonical SubjectPublicKeyInfo DER.
        name: Its Name, nameAlg u16 ‖ digest.
        mode: How it stands to the TPM, computed from its attributes and Qualified Name.
        attributes: TPMA_OBJECT, u32.
        ak_parent: Where the AK that says so stands.
    """

    public: Public
    spki: bytes
    name: bytes
    mode: KeyMode
    attributes: int
    ak_parent: AKParent


def csr_binding(nonce: bytes, request_info: bytes) -> bytes:
    """Return the qualifyingData for the key of a certification request, 32 bytes (HSM-AND-KUBERNETES §18).

    SHA-256(LP("itl-node-csr/v1") ‖ LP(nonce) ‖ LP(SHA-256(*request_info*))), LP(x) = u32 length, big-endian ‖ x.

    Args:
        nonce: Of the challenge, 32 bytes.
        request_info: DER of the CertificationRequestInfo, as signed.

    Raises:
        MalformedEvidence: The nonce has another length.
    """
    _check_nonce(nonce)
    parts = (_CSR_CONTEXT, nonce, hashlib.sha256(request_info).digest())
    return hashlib.sha256(b"".join(u32(len(part)) + part for part in parts)).digest()


def key_binding(challenge: bytes, spki: bytes) -> bytes:
    """Return the qualifyingData for a key without a request: SHA-256(challenge ‖ SPKI DER), 32 bytes.

    Args:
        challenge: The nonce, 32 bytes.
        spki: Canonical SubjectPublicKeyInfo DER.

    Raises:
        MalformedEvidence: The challenge has another length.
    """
    _check_nonce(challenge)
    return hashlib.sha256(challenge + spki).digest()


def _check_nonce(nonce: bytes) -> None:
    if len(nonce) != NONCE_BYTES:
        raise MalformedEvidence(f"a challenge has {NONCE_BYTES} bytes, not {len(nonce)}")


def parse(public: bytes, certify_info: bytes, signature: bytes) -> UnverifiedKeyCertification:
    """Parse a certification.

    Args:
        public: TPM2B_PUBLIC of the certified key, with its size.
        certify_info: TPMS_ATTEST of type certify, without a size.
        signature: TPMT_SIGNATURE over it.

    Raises:
        MalformedEvidence: The only way to fail. A statement of another type, or a public area without a key that
            we use, is malformed here.
    """
    attest = parse_attest(certify_info)
    info = attest.attested
    if not isinstance(info, CertifyInfo):
        raise MalformedEvidence(f"TPMS_ATTEST is of type 0x{attest.type:04x}, not a certification")
    area = parse_public(public)
    return UnverifiedKeyCertification(
        signed=certify_info,
        attest=attest,
        info=info,
        signature=parse_signature(signature),
        public=area,
        spki=area.spki_der(),
    )


def verify(
    certification: UnverifiedKeyCertification,
    *,
    ak: Public,
    ek: Public,
    binding: bytes,
    spki: bytes,
    modes: frozenset[KeyMode],
) -> CertifiedKey:
    """Verify that the machine's AK certified this key, for this use, in one of these modes.

    Args:
        certification: Result of `parse`.
        ak: The AK enrolled by credential activation.
        ek: The EK it was activated with.
        binding: `csr_binding` or `key_binding` of what is asked for; never empty.
        spki: The key that is asked about, canonical SubjectPublicKeyInfo DER: that of the certification request.
        modes: Those that are good enough here.

    Raises:
        SignatureInvalid: Not signed by this AK, or the AK is none whose statements mean something.
        AttestHeaderInvalid: Not made by a TPM itself, or by a signer of another name.
        ChallengeMismatch: For another challenge, request or use.
        KeyCertificationRejected: About another key, or about one that is too weak.
        KeyNotResident: The key stands in another mode, or in none.
    """
    attest, public = certification.attest, certification.public
    # 1. The AK is restricted and fixed to its TPM. Any other key of the machine signs bytes that look like this.
    if ak.attributes & ~_FREE != _AK:
        raise SignatureInvalid(f"an AK with attributes {attribute_words(ak.attributes)} proves nothing")
    # 2. It signed exactly these bytes. Until this holds, no field is ours to read.
    VerificationKey(ak).verify(certification.signature, certification.signed)
    # 3. The TPM made the statement itself, and it certifies. Otherwise a quote would pass for it.
    if attest.magic != TPM_GENERATED or attest.type != AttestType.CERTIFY:
        raise AttestHeaderInvalid(
            f"magic 0x{attest.magic:08x}, type 0x{attest.type:04x} is no certification of a TPM"
        )
    # 4. For this challenge and this use; constant time. Without this, any old certification would do, for any
    #    request; an empty binding never counts.
    if not binding or not hmac.compare_digest(attest.extra_data, binding):
        raise ChallengeMismatch("the certification answers another challenge, or another request")
    # 5. The signer's qualified name is recomputed where its parent is known; else it is none of a key outside.
    parent = ak_qualified_names(ak, ek).get(attest.qualified_signer, AKParent.OTHER)
    if parent is AKParent.OTHER and attest.qualified_signer in (b"", ak.name):
        raise AttestHeaderInvalid("qualifiedSigner is not a qualified name: the signer is outside a TPM")
    # 6. It is about the public area sent: the Name is a digest over all of it. Otherwise attributes or key of
    #    another object would be believed.
    if not hmac.compare_digest(certification.info.name, public.name):
        raise KeyCertificationRejected("another key was certified than the one whose public area was sent")
    # 7. The key in it is the one that is asked about. Otherwise a good key would vouch for a bad one.
    if not hmac.compare_digest(certification.spki, spki):
        raise KeyCertificationRejected("the certified key is not the key of the request")
    # 8. How it stands to the TPM follows from its attributes and qualified name. A software key has its bare
    #    Name for one, whatever its attributes say; a key without fixedTPM or fixedParent could be duplicated.
    mode = compute_mode(public, certification.info.qualified_name)
    # 9. That is good enough here. Otherwise a software key would pass for one that cannot be stolen.
    if mode not in modes:
        allowed = ", ".join(sorted(modes)) or "none"
        raise KeyNotResident(f"the key is {mode}; allowed here: {allowed}", computed=mode)
    # 10. A key worth certifying. Otherwise its private half, or a signature of it, may be anybody's.
    _check_key(public, mode)
    return CertifiedKey(
        public=public,
        spki=certification.spki,
        name=public.name,
        mode=mode,
        attributes=public.attributes,
        ak_parent=parent,
    )


def compute_mode(public: Public, qualified_name: bytes) -> KeyMode:
    """Return how a key stands to its TPM, from its public area and the Qualified Name that was certified.

    Raises:
        KeyNotResident: It is none of the three: restricted, exportable, of two uses, or it contradicts itself.
    """
    name = public.name
    external = qualified_name == name
    kind = public.attributes & ~_FREE
    if not external and (len(qualified_name) != len(name) or qualified_name[:2] != name[:2]):
        raise KeyNotResident("the qualified name of the key is none", computed="unknown")
    if kind == _RESIDENT | _SIGN and not external:
        return KeyMode.RESIDENT
    if kind == _RESIDENT | _DECRYPT and public.type == Alg.RSA and not external:
        return KeyMode.RESIDENT_DECRYPT
    if kind in (_SIGN, _SIGN | _DECRYPT) and external:
        return KeyMode.EXTERNAL
    where = "outside the TPM" if external else "inside the TPM"
    computed = _computed(public.attributes, external=external)
    raise KeyNotResident(
        f"the key is {computed}: {where}, {attribute_words(public.attributes)}", computed=computed
    )


def _computed(attributes: int, *, external: bool) -> str:
    """Name what a key is that has no mode."""
    if external:
        return "external-as-resident" if attributes & Attr.FIXED_TPM else "external-unusable"
    if attributes & _RESIDENT != _RESIDENT:
        return "exportable"
    return "restricted" if attributes & Attr.RESTRICTED else "of-another-use"


def _check_key(public: Public, mode: KeyMode) -> None:
    """Check size, curve, scheme and hash of a certified key; as `check_ak`, but a scheme may be open."""
    if public.name_alg not in ACCEPTED_HASHES:
        raise KeyCertificationRejected(f"nameAlg 0x{public.name_alg:04x} is not SHA-256, SHA-384 or SHA-512")
    if public.symmetric is not None or public.kdf is not None:
        raise KeyCertificationRejected("the key names a cipher or a key derivation; one of its use has none")
    if public.type == Alg.RSA:
        if public.key_bits < 2048 or len(public.modulus) * 8 != public.key_bits or public.modulus[0] < 0x80:
            raise KeyCertificationRejected(
                f"RSA key of {public.key_bits} bits; at least 2048, exact, expected"
            )
        if public.exponent not in (0, 65537):
            raise KeyCertificationRejected(f"RSA key with exponent {public.exponent}; 65537 expected")
        if is_roca_weak(int.from_bytes(public.modulus)):
            raise KeyCertificationRejected("the modulus has the ROCA fingerprint (CVE-2017-15361)")
    else:
        _check_coordinates(public)
    scheme = public.scheme
    if scheme is None:
        return
    if mode is KeyMode.RESIDENT_DECRYPT:
        good = scheme == _OAEP_SHA256
    else:
        good = scheme.alg in _SIGNING_SCHEMES[public.type] and scheme.hash_alg in ACCEPTED_HASHES
    if not good:
        raise KeyCertificationRejected(f"scheme 0x{scheme.alg:04x} with its hash is none for {mode}")


def _check_coordinates(public: Public) -> None:
    """Accept the two forms of a point that TPMs name: padded to the field, or without leading zeros."""
    size = _FIELD_BYTES[public.curve]
    for coordinate in (public.x, public.y):
        if len(coordinate) != size and coordinate[:1] in (b"", b"\0"):
            raise KeyCertificationRejected("a coordinate is neither padded to the field nor minimal")
