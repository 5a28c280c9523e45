"""Keys that a TPM should hold, held in Python: what an attacker has, and what a load generator needs.

A software AK signs whatever it is told, in the exact layout of a TPM; a software EK opens credentials without any of
a TPM's rules. Nothing but the checks of a verifier tells their statements from those of a TPM.
"""

# Longer than 500 lines: each call of a node's TPM, in software.
from __future__ import annotations

import hashlib
import hmac
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import Prehashed, decode_dss_signature
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_der_private_key,
)

from attestation.device import (
    CertifiedAK,
    ExternalKey,
    FurtherEK,
    Identity,
    KeyCertification,
    KeyType,
    Quote,
    TPMKey,
)
from attestation.device.keys import DECRYPTION_ATTRIBUTES, HASHES_BY_SIZE, external_key, key_template
from attestation.device.node import AK_ATTRIBUTES
from attestation.errors import DeviceError
from attestation.tpm.attest import Attest, CertifyInfo, QuoteInfo
from attestation.tpm.constants import TPM_GENERATED, Alg, AttestType, Curve, Hierarchy
from attestation.tpm.credential import DUPLICATE, IDENTITY, unwrap_identity
from attestation.tpm.duplicate import open_hmac_key
from attestation.tpm.hashes import bank_alg, crypto_hash, digest_size, hash_new
from attestation.tpm.kdf import kdfe
from attestation.tpm.key_file import STORAGE_TEMPLATE
from attestation.tpm.names import qualified_name_of_child, qualified_name_of_primary
from attestation.tpm.pcr import PCRSelection
from attestation.tpm.public import Public, Scheme, parse_public, parse_tpmt_public
from attestation.tpm.signature import Signature
from attestation.tpm.templates import EK_TEMPLATES
from attestation.wire import Reader, sized
from attestation_testing.certificates import CertificateAuthority, EKCertificateOptions

PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey

_CURVES: Final[Mapping[int, type[ec.EllipticCurve]]] = {
    Curve.NIST_P256: ec.SECP256R1,
    Curve.NIST_P384: ec.SECP384R1,
    Curve.NIST_P521: ec.SECP521R1,
}
_FIRMWARE_VERSION: Final = 0x2019102300163636
"""What swtpm 0.7 says."""


def generate_key(public: Public, *, seed: int | None = None) -> PrivateKey:
    """Make a private key of the kind of *public*; from *seed* for P-256, else random."""
    if public.type == Alg.RSA:
        return rsa.generate_private_key(65537, public.key_bits)
    if seed is not None and public.curve == Curve.NIST_P256:
        material = int.from_bytes(hashlib.sha512(b"software key" + seed.to_bytes(32)).digest())
        return ec.derive_private_key(material % (ec.SECP256R1().group_order - 1) + 1, ec.SECP256R1())
    return ec.generate_private_key(_CURVES[public.curve]())


def with_key(public: Public, key: PrivateKey) -> Public:
    """Return the public area *public* around the public half of *key*."""
    if isinstance(key, rsa.RSAPrivateKey):
        size = key.key_size // 8
        filled = replace(public, modulus=key.public_key().public_numbers().n.to_bytes(size))
    else:
        numbers = key.public_key().public_numbers()
        size = (key.key_size + 7) // 8
        filled = replace(public, x=numbers.x.to_bytes(size), y=numbers.y.to_bytes(size))
    return parse_tpmt_public(filled.serialise())


def software_activate(
    ek: Public, key: PrivateKey, ak_name: bytes, credential_blob: bytes, encrypted_secret: bytes
) -> bytes:
    """Open a credential with the private key of *ek*, as TPM2_ActivateCredential would.

    Args:
        ek: Public area of the EK.
        key: Its private half.
        ak_name: Name of the AK that the credential was made for.
        credential_blob: TPM2B_ID_OBJECT, with its size.
        encrypted_secret: TPM2B_ENCRYPTED_SECRET, with its size.

    Raises:
        MalformedEvidence: Not for this EK and this Name.
    """
    seed = recover_seed(ek, key, IDENTITY, encrypted_secret)
    return unwrap_identity(ek, seed, ak_name, credential_blob)


def recover_seed(ek: Public, key: PrivateKey, label: bytes, encrypted_secret: bytes) -> bytes:
    """Recover the seed that somebody encapsulated to *ek*.

    Args:
        ek: Public area of the EK.
        key: Its private half.
        label: `IDENTITY`, `SECRET` or `DUPLICATE`.
        encrypted_secret: TPM2B_ENCRYPTED_SECRET, with its size.
    """
    outer = Reader(encrypted_secret, "TPM2B_ENCRYPTED_SECRET")
    encapsulated = outer.sized()
    outer.end()
    if isinstance(key, rsa.RSAPrivateKey):
        algorithm = crypto_hash(ek.name_alg)
        return key.decrypt(encapsulated, padding.OAEP(padding.MGF1(algorithm), algorithm, label + b"\0"))
    point = Reader(encapsulated, "TPMS_ECC_POINT")
    size = (key.key_size + 7) // 8
    x, y = point.sized(size).rjust(size, b"\0"), point.sized(size).rjust(size, b"\0")
    point.end()
    ephemeral = ec.EllipticCurvePublicKey.from_encoded_point(key.curve, b"\x04" + x + y)
    z = key.exchange(ec.ECDH(), ephemeral)
    ours = key.public_key().public_numbers().x.to_bytes(size)
    return kdfe(ek.name_alg, z, label, x, ours, 8 * digest_size(ek.name_alg))


def ak_template(
    *,
    rsa_bits: int = 0,
    curve: int = Curve.NIST_P256,
    attributes: int = AK_ATTRIBUTES,
    scheme: Scheme | None = None,
    name_alg: int = Alg.SHA256,
    unique: bytes = b"",
) -> Public:
    """Return the public area of an attestation key, with anything about it wrong that one likes.

    Args:
        rsa_bits: RSA of that size; 0 for ECC.
        curve: For ECC.
        attributes: TPMA_OBJECT.
        scheme: Signing scheme; RSASSA or ECDSA with SHA-256 by default.
        name_alg: Hash of the Name.
        unique: For TPM2_CreatePrimary: other bytes, other key.
    """
    default = Scheme(alg=Alg.RSASSA if rsa_bits else Alg.ECDSA, hash_alg=Alg.SHA256)
    public = Public(
        type=Alg.RSA if rsa_bits else Alg.ECC,
        name_alg=name_alg,
        attributes=attributes,
        auth_policy=b"",
        symmetric=None,
        scheme=scheme or default,
        key_bits=rsa_bits,
        curve=0 if rsa_bits else curve,
        modulus=unique if rsa_bits else b"",
        x=b"" if rsa_bits else unique,
        tpmt=b"",
    )
    return replace(public, tpmt=public.serialise())


def software_key(template: Public, *, key: PrivateKey | None = None) -> TPMKey:
    """Return a key of the kind of *template* that pretends to be wrapped by a TPM; its private part is PKCS#8 DER.

    Args:
        template: Public area, with any attributes that one likes; its key fields are replaced.
        key: Private key of that kind; made if None.
    """
    made = key or generate_key(template)
    pkcs8 = made.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
    return TPMKey(public=with_key(template, made).tpm2b(), private=sized(pkcs8))


def private_half(key: TPMKey) -> PrivateKey:
    """Return what `software_key` put into *key*."""
    private = load_der_private_key(key.private[2:], None)
    if not isinstance(private, rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey):
        raise DeviceError("the key was not made by this software")
    return private


class SoftwareAK:
    """An attestation key in Python that makes statements in the exact layout of a TPM.

    Args:
        template: Public area, e.g. of `ak_template`; its key fields are replaced.
        key: Private key of that kind; made if None.
        seed: Makes the key of a P-256 template.

    Attributes:
        public: With the key.
        qualified_name: As if it were a primary key of the endorsement hierarchy.
    """

    def __init__(
        self, template: Public | None = None, *, key: PrivateKey | None = None, seed: int | None = None
    ) -> None:
        bare = template or ak_template()
        self._key = key or generate_key(bare, seed=seed)
        self.public = with_key(bare, self._key)
        self.qualified_name = qualified_name_of_primary(Hierarchy.ENDORSEMENT, self.public.name)

    def sign(self, message: bytes) -> bytes:
        """Return the TPMT_SIGNATURE over *message* with the scheme of the public area."""
        scheme = self.public.scheme
        if scheme is None or scheme.hash_alg is None:
            raise ValueError("the AK has no signing scheme")
        algorithm = crypto_hash(scheme.hash_alg)
        if isinstance(self._key, rsa.RSAPrivateKey):
            pad: padding.AsymmetricPadding = padding.PKCS1v15()
            if scheme.alg == Alg.RSAPSS:
                pad = padding.PSS(padding.MGF1(algorithm), digest_size(scheme.hash_alg))
            return Signature(scheme.alg, scheme.hash_alg, self._key.sign(message, pad, algorithm)).serialise()
        size = (self._key.key_size + 7) // 8
        r, s = decode_dss_signature(self._key.sign(message, ec.ECDSA(algorithm)))
        return Signature(scheme.alg, scheme.hash_alg, r.to_bytes(size), s.to_bytes(size)).serialise()

    def attest(self, statement: Attest) -> tuple[bytes, bytes]:
        """Return TPMS_ATTEST and TPMT_SIGNATURE of any *statement*."""
        message = statement.serialise()
        return message, self.sign(message)

    def quote(
        self,
        qualifying_data: bytes,
        selection: PCRSelection,
        values: Mapping[str, Mapping[int, bytes]] | None = None,
        *,
        clock_ms: int = 1_000_000,
        reset_count: int = 1,
        restart_count: int = 0,
        safe: bool = True,
        firmware_version: int = _FIRMWARE_VERSION,
        magic: int = TPM_GENERATED,
    ) -> Quote:
        """Return a quote over *values* (bank name -> index -> digest); zeros where there are none.

        The other arguments are the fields of TPMS_ATTEST.
        """
        names = selection.to_names()
        filled = {
            bank: {
                i: (values or {}).get(bank, {}).get(i, bytes(digest_size(bank_alg(bank)))) for i in indices
            }
            for bank, indices in names.items()
        }
        scheme = self.public.scheme
        hash_alg = Alg.SHA256 if scheme is None or scheme.hash_alg is None else scheme.hash_alg
        data = b"".join(filled[bank][i] for bank, indices in names.items() for i in indices)
        message, signature = self.attest(
            Attest(
                magic,
                AttestType.QUOTE,
                self.qualified_name,
                qualifying_data,
                clock_ms,
                reset_count,
                restart_count,
                safe,
                firmware_version,
                QuoteInfo(selection, hash_new(hash_alg, data).digest()),
            )
        )
        return Quote(attest=message, signature=signature, pcr_values=filled)

    def certify(self, name: bytes, qualified_name: bytes, qualifying_data: bytes) -> tuple[bytes, bytes]:
        """Return TPMS_ATTEST and TPMT_SIGNATURE that certify an object."""
        return self.attest(
            Attest(
                TPM_GENERATED,
                AttestType.CERTIFY,
                self.qualified_name,
                qualifying_data,
                1_000_000,
                1,
                0,
                True,
                _FIRMWARE_VERSION,
                CertifyInfo(name, qualified_name),
            )
        )


class SoftwareEK:
    """An endorsement key in Python: it equals a TCG template and opens credentials in software.

    Args:
        template: TCG name, L-1 to H-7.
        seed: Makes the key of a P-256 template.

    Attributes:
        public: With the key.
    """

    def __init__(self, template: str = "L-2", *, seed: int | None = None) -> None:
        bare = next(t for t in EK_TEMPLATES if t.name == template).public
        self.key = generate_key(bare, seed=seed)
        self.public = with_key(bare, self.key)

    def activate(self, ak_name: bytes, credential_blob: bytes, encrypted_secret: bytes) -> bytes:
        """Open a credential for any *ak_name*; as `software_activate`."""
        return software_activate(self.public, self.key, ak_name, credential_blob, encrypted_secret)

    def certify(
        self,
        offered: tuple[bytes, bytes, bytes],
        subject: Attest,
    ) -> KeyCertification:
        """Make any statement *subject* under a key that was sealed to this EK.

        Args:
            offered: TPM2B_PUBLIC, TPM2B_PRIVATE, TPM2B_ENCRYPTED_SECRET of the key.
            subject: The statement; `qualified_signer` is filled in where it is empty.
        """
        object_public, duplicate, in_sym_seed = offered
        public = parse_public(object_public)
        key = open_hmac_key(
            self.public, recover_seed(self.public, self.key, DUPLICATE, in_sym_seed), public, duplicate
        )
        if not subject.qualified_signer:
            qualified_name = qualified_name_of_primary(Hierarchy.ENDORSEMENT, self.public.name)
            subject = subject._replace(qualified_signer=qualified_name_of_child(qualified_name, public.name))
        message = subject.serialise()
        mac = hmac.digest(key, hashlib.sha256(message).digest(), "sha256")
        return KeyCertification(
            certify_info=message, signature=Signature(Alg.HMAC, Alg.SHA256, mac).serialise()
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerState:
    """What a software machine says about its clock.

    Args:
        clock_ms: Milliseconds.
        reset_count: Boots.
        restart_count: Resumes.
        safe: The clock never went back.
    """

    clock_ms: int = 1_000_000
    reset_count: int = 1
    restart_count: int = 0
    safe: bool = True


class SoftwareNode:
    """A machine without a TPM that speaks like one: the calls of `NodeTPM`, at the cost of one signature each.

    For load generators and attacks; 100,000 of them fit in memory.

    Args:
        seed: Makes its keys; the same seed is the same machine.
        authority: Certifies its EK; None for `ek_source` pub.
        at: Where the certificate's validity begins; needed with *authority*.
        options: What the certificate says.
    """

    def __init__(
        self,
        seed: int,
        *,
        authority: CertificateAuthority | None = None,
        at: datetime | None = None,
        options: EKCertificateOptions | None = None,
    ) -> None:
        keys = random.Random(seed)
        self.ek = SoftwareEK("L-2", seed=keys.getrandbits(255))
        self.ak = SoftwareAK(seed=keys.getrandbits(255))
        self.pcrs: dict[str, dict[int, bytes]] = {"sha256": {i: bytes(32) for i in range(24)}}
        self.power = PowerState()
        self._certificate: bytes | None = None
        if authority is not None:
            if at is None:
                raise ValueError("a certificate needs a time")
            self._certificate = authority.issue_ek_certificate(self.ek.public, at=at, options=options)

    def identify(self) -> Identity:
        """Return who it says it is."""
        return Identity(
            ek_public=self.ek.public.tpm2b(),
            template="L-2",
            ek_source="pub" if self._certificate is None else "cert",
            ek_certificate=self._certificate,
            ek_chain=(),
            manufacturer="IBM",
            vendor="SW   TPM",
            firmware_version=_FIRMWARE_VERSION,
        )

    def further_eks(self) -> tuple[FurtherEK, ...]:
        """Return none: it has one EK."""
        return ()

    def certified_aks(self) -> tuple[CertifiedAK, ...]:
        """Return none: nobody certified another key of it."""
        return ()

    def vouch(self, certified: CertifiedAK, qualifying_data: bytes) -> KeyCertification:
        """Refuse: it has no certified key."""
        raise DeviceError(
            f"no {certified.name} to sign {len(qualifying_data)} bytes: it has no certified key"
        )

    def ak_public(self) -> bytes:
        """Return the TPM2B_PUBLIC of the AK."""
        return self.ak.public.tpm2b()

    def activate(
        self, credential_blob: bytes, encrypted_secret: bytes, *, ek_public: bytes | None = None
    ) -> bytes:
        """Open a credential, in software."""
        if ek_public is not None:
            raise DeviceError("this TPM showed no such EK")
        return self.ek.activate(self.ak.public.name, credential_blob, encrypted_secret)

    def certify_ak(
        self, object_public: bytes, duplicate: bytes, in_sym_seed: bytes, qualifying_data: bytes
    ) -> KeyCertification:
        """Certify the AK with a key that was sealed to the EK, at `power`."""
        power = self.power
        statement = Attest(
            TPM_GENERATED,
            AttestType.CERTIFY,
            b"",
            qualifying_data,
            power.clock_ms,
            power.reset_count,
            power.restart_count,
            power.safe,
            _FIRMWARE_VERSION,
            CertifyInfo(self.ak.public.name, self.ak.qualified_name),
        )
        return self.ek.certify((object_public, duplicate, in_sym_seed), statement)

    def create_signing_key(self, kind: KeyType | None = None) -> TPMKey:
        """Make a key of *kind*, P-256 by default; its private part is PKCS#8, so it can be kept as a file."""
        return software_key(parse_tpmt_public(key_template(kind or KeyType.ECC_P256)))

    def create_decryption_key(self) -> TPMKey:
        """Make a key of RSA 2048 for decryption."""
        template = key_template(KeyType.RSA_2048, attributes=DECRYPTION_ATTRIBUTES)
        return software_key(parse_tpmt_public(template))

    def certify_key(self, key: TPMKey, qualifying_data: bytes, *, external: bool = False) -> KeyCertification:
        """Certify *key* with the AK as a TPM would.

        Args:
            key: Any.
            qualifying_data: What it is for.
            external: As a key that was brought in by TPM2_LoadExternal.
        """
        name = parse_public(key.public).name
        storage = qualified_name_of_primary(Hierarchy.OWNER, parse_tpmt_public(STORAGE_TEMPLATE).name)
        qualified_name = name if external else qualified_name_of_child(storage, name)
        attest, signature = self.ak.certify(name, qualified_name, qualifying_data)
        return KeyCertification(certify_info=attest, signature=signature)

    def certify_external(self, key: ec.EllipticCurvePrivateKey, qualifying_data: bytes) -> ExternalKey:
        """Certify a software key with the AK, as `NodeTPM.certify_external`."""
        public, _ = external_key(key)
        name = parse_public(public).name
        attest, signature = self.ak.certify(name, name, qualifying_data)
        return ExternalKey(public=public, certify_info=attest, signature=signature)

    def sign(self, key: TPMKey, digest: bytes, *, pss: bool = False) -> bytes:
        """Sign *digest* with *key*, as `NodeTPM.sign`."""
        private = private_half(key)
        hash_alg = crypto_hash(HASHES_BY_SIZE[len(digest)])
        if isinstance(private, rsa.RSAPrivateKey):
            scheme: padding.AsymmetricPadding = padding.PKCS1v15()
            if pss:
                scheme = padding.PSS(padding.MGF1(hash_alg), len(digest))
            return private.sign(digest, scheme, Prehashed(hash_alg))
        return private.sign(digest, ec.ECDSA(Prehashed(hash_alg)))

    def rsa_decrypt(self, key: TPMKey, ciphertext: bytes) -> bytes:
        """Decrypt with *key*, as `NodeTPM.rsa_decrypt`."""
        private = private_half(key)
        if not isinstance(private, rsa.RSAPrivateKey):
            raise DeviceError("the key is not of RSA")
        return private.decrypt(ciphertext, padding.OAEP(padding.MGF1(hashes.SHA256()), hashes.SHA256(), None))

    def quote(self, qualifying_data: bytes, selection: PCRSelection) -> Quote:
        """Quote `pcrs` at `power`; the clock ticks by one second."""
        power = self.power
        self.power = replace(power, clock_ms=power.clock_ms + 1000)
        return self.ak.quote(
            qualifying_data,
            selection,
            self.pcrs,
            clock_ms=power.clock_ms,
            reset_count=power.reset_count,
            restart_count=power.restart_count,
            safe=power.safe,
        )

    def extend_pcr(self, index: int, digest: bytes, *, bank: str = "sha256") -> None:
        """Extend one PCR."""
        before = self.pcrs[bank][index]
        self.pcrs[bank][index] = hash_new(bank_alg(bank), before + digest).digest()

    def reboot(self) -> None:
        """Reset the PCRs and count a boot."""
        self.pcrs = {bank: {i: bytes(len(v)) for i, v in pcrs.items()} for bank, pcrs in self.pcrs.items()}
        self.power = replace(self.power, reset_count=self.power.reset_count + 1)

    def close(self) -> None:
        """Do nothing, as there is nothing to flush."""
