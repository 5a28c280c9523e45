"""A machine without a TPM, for load: syntactically perfect quotes by a key held in Python.

It measures the service, not a TPM: a software TPM on the same two cores would take most of them. That such
keys cannot be enrolled through the protocol is proven elsewhere; here the rows are written into the store.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Final

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from attestation.tpm import EK_TEMPLATES, Alg, Curve, Hierarchy, PCRSelection, Public, Scheme
from attestation.tpm.names import qualified_name_of_primary
from attestation.wire import sized, u16

PCRS: Final = (0, 1, 2, 3, 4, 5, 6, 7, 11)
SELECTION: Final = PCRSelection.from_names({"sha256": PCRS})
VALUES: Final = {i: hashlib.sha256(bytes([i])).digest() for i in PCRS}
_DIGEST: Final = hashlib.sha256(b"".join(VALUES[i] for i in PCRS)).digest()
_ECDSA: Final = ec.ECDSA(hashes.SHA256())


def ecc_public(key: ec.EllipticCurvePublicKey) -> Public:
    """Return the public area of an AK, P-256 with ECDSA-SHA256, attributes as our agent's."""
    numbers = key.public_numbers()
    public = Public(
        type=Alg.ECC,
        name_alg=Alg.SHA256,
        attributes=0x00050472,
        auth_policy=b"",
        symmetric=None,
        scheme=Scheme(alg=Alg.ECDSA, hash_alg=Alg.SHA256),
        curve=Curve.NIST_P256,
        x=numbers.x.to_bytes(32),
        y=numbers.y.to_bytes(32),
        tpmt=b"",
    )
    return _sealed(public)


def ek_public(key: rsa.RSAPublicKey | ec.EllipticCurvePublicKey) -> Public:
    """Return the public area of an EK after template L-1 (RSA-2048) or L-2 (P-256)."""
    from dataclasses import replace

    numbers = key.public_numbers()
    if isinstance(numbers, rsa.RSAPublicNumbers):
        template = next(t for t in EK_TEMPLATES if t.name == "L-1")
        return _sealed(replace(template.public, modulus=numbers.n.to_bytes(256)))
    template = next(t for t in EK_TEMPLATES if t.name == "L-2")
    return _sealed(replace(template.public, x=numbers.x.to_bytes(32), y=numbers.y.to_bytes(32)))


def _sealed(public: Public) -> Public:
    from dataclasses import replace

    return replace(public, tpmt=public.serialise())


class SoftwareMachine:
    """One machine of the load: an AK, a clock that advances, the challenge it answers next."""

    __slots__ = ("_clock", "_head", "_key", "ak", "challenge", "ek", "ek_fingerprint", "machine_id")

    def __init__(self, machine_id: str, ek: Public) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.ak = ecc_public(self._key.public_key())
        self.ek = ek
        self.ek_fingerprint = ek.fingerprint()
        self.machine_id = machine_id
        self.challenge: tuple[str, bytes] | None = None
        self._clock = 1000
        signer = qualified_name_of_primary(Hierarchy.ENDORSEMENT, self.ak.name)
        self._head = struct.pack(">IH", 0xFF544347, 0x8018) + sized(signer)

    def quote(self, nonce: bytes) -> tuple[bytes, bytes]:
        """Return a TPMS_ATTEST over `VALUES` for *nonce*, and the TPMT_SIGNATURE."""
        self._clock += 17
        attest = b"".join(
            [
                self._head,
                sized(nonce),
                struct.pack(">QIIBQ", self._clock, 3, 0, 1, 0x2019102300163636),
                SELECTION.serialise(),
                sized(_DIGEST),
            ]
        )
        r, s = decode_dss_signature(self._key.sign(attest, _ECDSA))
        signature = u16(Alg.ECDSA) + u16(Alg.SHA256) + sized(r.to_bytes(32)) + sized(s.to_bytes(32))
        return attest, signature
