"""A machine whose TPM is Python: keys by `cryptography`, structures by our codecs.

It stands in for a TPM where the service is what is tested. That such keys pass is no fault: whoever holds an
EK's private key *is* that TPM; that a software AK cannot be activated by a real one is tested elsewhere.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import struct
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from attestation.api import ConfigEnvelope
from attestation.envelope import Envelope, open_envelope
from attestation.evidence import ak_activation
from attestation.tpm import (
    EK_TEMPLATES,
    Alg,
    Attest,
    CertifyInfo,
    Curve,
    Hierarchy,
    PCRSelection,
    Public,
    Scheme,
    kdfe,
    parse_public,
    qualified_name_of_child,
    qualified_name_of_primary,
)
from attestation.tpm.credential import DUPLICATE, unwrap_identity
from attestation.tpm.duplicate import open_hmac_key
from attestation.wire import Reader, b64decode, b64encode, sized, u16
from attestation_testing.software_keys import recover_seed

SEALED = "application/vnd.itl.config.encrypted+json"
AK_ATTRIBUTES = 0x00050472


@lru_cache(maxsize=1)
def rsa_key() -> rsa.RSAPrivateKey:
    """Return one RSA-2048 key: making one costs more than a test."""
    return rsa.generate_private_key(65537, 2048)


def node_nonce() -> str:
    """Return what a machine chooses anew for each request."""
    return b64encode(secrets.token_bytes(32))


def sealed_public(public: Public) -> Public:
    """Return *public* with its TPMT written from the fields."""
    return replace(public, tpmt=public.serialise())


def ek_public(key: rsa.RSAPublicKey | ec.EllipticCurvePublicKey) -> Public:
    """Return the public area of an EK after template L-1 (RSA-2048) or L-2 (P-256)."""
    templates = {t.name: t.public for t in EK_TEMPLATES}
    numbers = key.public_numbers()
    if isinstance(numbers, rsa.RSAPublicNumbers):
        return sealed_public(replace(templates["L-1"], modulus=numbers.n.to_bytes(256)))
    return sealed_public(replace(templates["L-2"], x=numbers.x.to_bytes(32), y=numbers.y.to_bytes(32)))


def ak_public(key: ec.EllipticCurvePublicKey, attributes: int = AK_ATTRIBUTES) -> Public:
    """Return the public area of a P-256 AK with ECDSA-SHA256."""
    numbers = key.public_numbers()
    return sealed_public(
        Public(
            type=Alg.ECC,
            name_alg=Alg.SHA256,
            attributes=attributes,
            auth_policy=b"",
            symmetric=None,
            scheme=Scheme(alg=Alg.ECDSA, hash_alg=Alg.SHA256),
            curve=Curve.NIST_P256,
            x=numbers.x.to_bytes(32),
            y=numbers.y.to_bytes(32),
            tpmt=b"",
        )
    )


class SoftwareNode:
    """One machine: an EK, an AK, PCRs, a clock.

    Args:
        rsa_ek: Use the shared RSA-2048 key as EK instead of a fresh P-256 one.
    """

    def __init__(self, *, rsa_ek: bool = False) -> None:
        self._ek = rsa_key() if rsa_ek else ec.generate_private_key(ec.SECP256R1())
        self.ek = ek_public(self._ek.public_key())
        self.ek_fingerprint = self.ek.fingerprint()
        self.new_ak()
        self.pcrs = {i: hashlib.sha256(bytes([i])).digest() for i in range(16)}
        self.clock_ms = 1_000
        self.reset_count = 3
        self.firmware_version = 0x2019102300163636
        self.machine_id = ""

    def new_ak(self) -> None:
        """Use another attestation key from now on."""
        self._ak = ec.generate_private_key(ec.SECP256R1())
        self.ak = ak_public(self._ak.public_key())

    # Introduction

    def introduction(self, **members: Any) -> dict[str, Any]:
        """Return the body of an introduction."""
        return {
            "ek_public": b64encode(self.ek.tpm2b()),
            "ek_source": "pub",
            "ek_fingerprint": self.ek_fingerprint,
            "ak_public": b64encode(self.ak.tpm2b()),
        } | members

    def activation(self, answer: Mapping[str, Any], primary: str | None = None) -> dict[str, Any]:
        """Open the credential of an introduction's answer and return the body of the proof; see `proof`."""
        self.machine_id = answer["machine_id"]
        offer = answer["activation"]
        secret = self.activate(offer["credential_blob"], offer["encrypted_secret"])
        proof = ak_activation.proof(
            secret,
            machine_id=self.machine_id,
            challenge_id=offer["challenge_id"],
            ek_public=self.ek.tpm2b(),
            ak_name=self.ak.name,
            primary=primary,
        )
        return {"challenge_id": offer["challenge_id"], "proof": b64encode(proof), "node_nonce": node_nonce()}

    def activate(self, credential_blob: str, encrypted_secret: str) -> bytes:
        """TPM2_ActivateCredential, in Python."""
        seed = self._seed(b64decode(encrypted_secret, "encrypted_secret"))
        return unwrap_identity(self.ek, seed, self.ak.name, b64decode(credential_blob, "credential_blob"))

    def _seed(self, encrypted_secret: bytes) -> bytes:
        body = Reader(encrypted_secret, "encrypted_secret").sized()
        if isinstance(self._ek, rsa.RSAPrivateKey):
            oaep = padding.OAEP(padding.MGF1(hashes.SHA256()), hashes.SHA256(), b"IDENTITY\0")
            return self._ek.decrypt(body, oaep)
        reader = Reader(body, "point")
        x, y = reader.sized(), reader.sized()
        point = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), b"\x04" + x + y)
        z = self._ek.exchange(ec.ECDH(), point)
        return kdfe(Alg.SHA256, z, b"IDENTITY", x, self.ek.x, 256)

    # Attestation

    def quote(self, selection: Mapping[str, list[int]], extra_data: bytes) -> dict[str, str]:
        """TPM2_Quote, in Python: the members `pcr_quote` and `pcr_signature`."""
        self.clock_ms += 17
        selected = PCRSelection.from_names(selection)
        digest = hashlib.sha256(b"".join(self.pcrs[i] for i in selection["sha256"])).digest()
        attest = b"".join(
            [
                struct.pack(">IH", 0xFF544347, 0x8018),
                sized(qualified_name_of_primary(Hierarchy.ENDORSEMENT, self.ak.name)),
                sized(extra_data),
                struct.pack(">QIIBQ", self.clock_ms, self.reset_count, 0, 1, self.firmware_version),
                selected.serialise(),
                sized(digest),
            ]
        )
        r, s = decode_dss_signature(self._ak.sign(attest, ec.ECDSA(hashes.SHA256())))
        signature = u16(Alg.ECDSA) + u16(Alg.SHA256) + sized(r.to_bytes(32)) + sized(s.to_bytes(32))
        return {"pcr_quote": b64encode(attest), "pcr_signature": b64encode(signature)}

    def attestation(self, challenge: Mapping[str, Any], **members: Any) -> dict[str, Any]:
        """Return the body of an attestation that answers *challenge*."""
        selection = challenge["pcr_selection"]
        return {
            "machine_id": self.machine_id,
            "ek_fingerprint": self.ek_fingerprint,
            "nonce_id": challenge["nonce_id"],
            "pcr_values": {"sha256": {str(i): self.pcrs[i].hex() for i in selection["sha256"]}},
            "node_nonce": node_nonce(),
            **self.quote(selection, b64decode(challenge["nonce"], "nonce")),
        } | members

    def certification(self, challenge: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
        """Return the evidence item of the second protocol that answers *challenge*, the statement changed."""
        offered = {name: b64decode(text, name) for name, text in challenge["ek_challenge"].items()}
        public = parse_public(offered["object_public"])
        seed = recover_seed(self.ek, self._ek, DUPLICATE, offered["in_sym_seed"])
        key = open_hmac_key(self.ek, seed, public, offered["duplicate"])
        ek_name = qualified_name_of_primary(Hierarchy.ENDORSEMENT, self.ek.name)
        attest = Attest(
            0xFF544347,
            0x8017,
            qualified_name_of_child(ek_name, public.name),
            b64decode(challenge["nonce"], "nonce"),
            self.clock_ms,
            self.reset_count,
            0,
            True,
            self.firmware_version,
            CertifyInfo(self.ak.name, qualified_name_of_primary(Hierarchy.ENDORSEMENT, self.ak.name)),
        )
        message = attest._replace(**changes).serialise()
        mac = hmac.digest(key, hashlib.sha256(message).digest(), "sha256")
        signature = u16(Alg.HMAC) + u16(Alg.SHA256) + mac
        value = {"certify_info": b64encode(message), "signature": b64encode(signature)}
        return {"media_type": "application/vnd.itl.tpm-ek-certify", "value": value}

    def acknowledgement(
        self,
        challenge: Mapping[str, Any],
        directive: str,
        outcome: str = "done",
        digest: bytes | None = None,
        **members: Any,
    ) -> dict[str, Any]:
        """Return the body of an acknowledgement of *directive*, or of what *digest* names."""
        digest = digest or hashlib.sha256(directive.encode()).digest()
        nonce = b64decode(challenge["nonce"], "nonce")
        said = hashlib.sha256(b"itl-ack-v2\0" + nonce + digest + outcome.encode()).digest()
        return {
            "nonce_id": challenge["nonce_id"],
            "directive_sha256": digest.hex(),
            "outcome": outcome,
            **self.quote(challenge["pcr_selection"], said),
        } | members

    # Delivery

    def open(self, envelope: Mapping[str, Any]) -> bytes:
        """Open a sealed configuration as the agent does."""
        wire = ConfigEnvelope.model_validate(envelope)
        assert wire.credential_blob is not None
        assert wire.encrypted_secret is not None
        found = Envelope(
            machine_id=wire.machine_id,
            token_id=wire.token_id,
            credential_blob=b64decode(wire.credential_blob, "credential_blob"),
            encrypted_secret=b64decode(wire.encrypted_secret, "encrypted_secret"),
            iv=b64decode(wire.iv, "iv"),
            ciphertext=b64decode(wire.ciphertext, "ciphertext"),
            config_sha256=wire.config_sha256,
        )
        key = self.activate(wire.credential_blob, wire.encrypted_secret)
        return open_envelope(found, key, machine_id=self.machine_id)
