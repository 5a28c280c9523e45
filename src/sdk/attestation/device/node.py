"""What a node does with its TPM: say who it is, prove it, quote its PCRs, open what was sealed to it."""

# Algorithms for: tpm-ak, tpm-hash, server-made-key
# Longer than 500 lines: what one machine does with its TPM, in the order of the protocol.
from __future__ import annotations

import hmac
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import islice
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Final, Literal, Self

from attestation.device.certified_aks import PLACES, CertifiedAK, find_certified_aks, loaded_ak
from attestation.device.client import COMMAND_TIMEOUT_SECONDS, TPM, LiveSession, LiveUse
from attestation.device.keys import (
    DECRYPTION_ATTRIBUTES,
    SIGNING_ATTRIBUTES,
    KeyType,
    external_key,
    is_unsupported,
    key_template,
    load_key,
    make_key,
    plain_signature,
    sign_digest,
)
from attestation.device.nv import read_nv
from attestation.errors import DeviceError, MalformedEvidence, TPMResponseError
from attestation.tpm import commands
from attestation.tpm.attest import QuoteInfo, parse_attest
from attestation.tpm.commands import Entity, Property, SessionType
from attestation.tpm.constants import Alg, Attr, Curve, Hierarchy
from attestation.tpm.hashes import bank_name, hash_new
from attestation.tpm.key_file import TPMKey
from attestation.tpm.pcr import PCRSelection
from attestation.tpm.public import Public, Scheme, parse_public, parse_tpmt_public
from attestation.tpm.sessions import Password
from attestation.tpm.templates import EK_TEMPLATES, EKTemplate

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric import ec

EK_PREFERENCE: Final = ("L-2", "L-1", "H-2", "H-3", "H-1", "H-6", "H-4", "H-7")
"""In which order EK certificates are looked for; the first whose key this TPM can derive is the node's identity.

The identity must stay the same for the life of the machine. So the low range comes first: it is written at the
factory and never goes, while firmware updates have added certificates in the high range. Within a range P-256
comes first: deriving it takes milliseconds, an RSA key seconds to minutes on a discrete TPM, at every start.
"""

EK_STRONG: Final = ("H-3", "H-6", "H-7")
"""P-384 and RSA from 3072 bits, with SHA-384 and AES-256: what CNSA 1.0 allows (`attestation.algorithms`)."""

PCR_TRIES: Final = 5
"""How often a quote is repeated because PCRs changed between reading and quoting."""

AK_ATTRIBUTES: Final = SIGNING_ATTRIBUTES | int(Attr.RESTRICTED)
"""noDA, because unclean power cuts count as guesses: three of them, and keys without it cannot quote (0x921)."""

_AK_UNIQUE: Final = b"ITL-AK"
"""Sent as unique: the TPM derives the same AK from it at every start, so nothing is kept on disk."""

_OAEP: Final = Scheme(alg=Alg.OAEP, hash_alg=Alg.SHA256)

_NV_EK_FIRST: Final = 0x01C00000
"""Where the NV indices of EK certificates begin (EK profile 2.2.1)."""
_CHAIN_FIRST: Final = 0x01C00100
_CHAIN_LAST: Final = 0x01C001FF
_MAX_CERTIFICATE_BYTES: Final = 8 << 10
_MAX_CHAIN_BYTES: Final = 64 << 10
_MAX_CHAIN: Final = 16
_MAX_FURTHER: Final = 3
"""So many EKs are shown beside the first (PROTOCOL §8.6)."""


class AKType(StrEnum):
    """Kinds of attestation keys that we make."""

    ECC_P256 = "ecc-p256"
    ECC_P384 = "ecc-p384"
    RSA_2048 = "rsa-2048"


def _ak_template(kind: Alg, scheme: Alg, hash_alg: Alg, *, curve: int = 0, key_bits: int = 0) -> bytes:
    return Public(
        type=kind,
        name_alg=hash_alg,
        attributes=AK_ATTRIBUTES,
        auth_policy=b"",
        symmetric=None,
        scheme=Scheme(alg=scheme, hash_alg=hash_alg),
        curve=curve,
        x=_AK_UNIQUE,
        y=_AK_UNIQUE,
        key_bits=key_bits,
        modulus=_AK_UNIQUE,
        tpmt=b"",
    ).serialise()


AK_TEMPLATES: Final[Mapping[AKType, bytes]] = MappingProxyType(
    {
        AKType.ECC_P256: _ak_template(Alg.ECC, Alg.ECDSA, Alg.SHA256, curve=Curve.NIST_P256),
        AKType.ECC_P384: _ak_template(Alg.ECC, Alg.ECDSA, Alg.SHA384, curve=Curve.NIST_P384),
        AKType.RSA_2048: _ak_template(Alg.RSA, Alg.RSASSA, Alg.SHA256, key_bits=2048),
    }
)
"""TPMT_PUBLIC for TPM2_CreatePrimary under the endorsement hierarchy, by kind of AK."""

AK_WORDS: Final[Mapping[str, AKType]] = MappingProxyType(
    {"ecc": AKType.ECC_P256, "ecc-p384": AKType.ECC_P384, "rsa": AKType.RSA_2048}
)
"""What settings call a kind of AK. All that use one TPM say the same, or the service knows another key (ADR 11)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who this TPM is.

    Args:
        ek_public: TPM2B_PUBLIC of the EK.
        template: Name of its TCG template, e.g. `L-2`.
        ek_source: `cert` where a certificate for this key is in NV, else `pub`.
        ek_certificate: As it stands in NV, padding included; None for `pub`.
        ek_chain: DER certificates found in NV 01C00100–01C001FF, in their order there; not verified.
        manufacturer: TPM_PT_MANUFACTURER as text, e.g. `IFX`.
        vendor: TPM_PT_VENDOR_STRING_1 to _4 as text.
        firmware_version: u64, TPM_PT_FIRMWARE_VERSION_1 ‖ _2.
    """

    ek_public: bytes
    template: str
    ek_source: Literal["cert", "pub"]
    ek_certificate: bytes | None
    ek_chain: tuple[bytes, ...]
    manufacturer: str
    vendor: str
    firmware_version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FurtherEK:
    """Another EK of this TPM, for which its maker left a certificate too.

    Args:
        ek_public: TPM2B_PUBLIC of the EK.
        template: Name of its TCG template.
        certificate: As it stands in NV, padding included.
    """

    ek_public: bytes
    template: str
    certificate: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Quote:
    """A signed statement about PCRs, and the values that it is about.

    Args:
        attest: TPMS_ATTEST exactly as signed.
        signature: TPMT_SIGNATURE.
        pcr_values: Bank name -> index -> digest; their hash is the one quoted.
    """

    attest: bytes
    signature: bytes
    pcr_values: dict[str, dict[int, bytes]]

    def values_on_wire(self) -> dict[str, dict[str, str]]:
        """Return the values as PROTOCOL §4 wants them: bank -> index in decimal -> hex."""
        return {
            bank: {str(index): digest.hex() for index, digest in values.items()}
            for bank, values in self.pcr_values.items()
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyCertification:
    """A statement about the AK under a key that was sealed to the EK (TPM.md §3.3), or about a key under the AK (§3.4).

    Args:
        certify_info: TPMS_ATTEST exactly as signed.
        signature: TPMT_SIGNATURE; of the first kind, an HMAC.
    """

    certify_info: bytes
    signature: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalKey:
    """A statement about a software key under the AK (TPM.md §3.4, `certified-external`).

    Args:
        public: TPM2B_PUBLIC as the TPM named it, 90 bytes.
        certify_info: TPMS_ATTEST exactly as signed.
        signature: TPMT_SIGNATURE.
    """

    public: bytes
    certify_info: bytes
    signature: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class _EK:
    """The EK chosen by `identify`: its template and the TPMT_PUBLIC that derives it again."""

    template: EKTemplate
    tpmt: bytes
    public: Public
    certificate: bytes | None


class NodeTPM:
    """The TPM of this node. Keeps at most one object loaded between calls: the AK.

    Args:
        tpm: Owned from now on.
        ak: Which AK to derive; or a TPMT_PUBLIC of one's own.
        ek_templates: Which EK certificates to look for, in this order.
        endorsement_auth: authValue of the endorsement hierarchy; empty on machines that nobody changed.
        owner_auth: authValue of the owner hierarchy, under which keys are made; likewise.
    """

    def __init__(
        self,
        tpm: TPM,
        *,
        ak: AKType | bytes = AKType.ECC_P256,
        ek_templates: tuple[str, ...] = EK_PREFERENCE,
        endorsement_auth: bytes = b"",
        owner_auth: bytes = b"",
    ) -> None:
        by_name = {template.name: template for template in EK_TEMPLATES if template.supported}
        self._tpm = tpm
        self._ak_template = AK_TEMPLATES[ak] if isinstance(ak, AKType) else ak
        self._ek_templates = tuple(by_name[name] for name in ek_templates)
        self._endorsement_auth = endorsement_auth
        self._owner_auth = owner_auth
        self._ak: commands.Primary | None = None
        self._ek: _EK | None = None
        self._further: dict[bytes, _EK] = {}

    @classmethod
    def open(
        cls,
        uri: str,
        *,
        ak: AKType | bytes = AKType.ECC_P256,
        ek_templates: tuple[str, ...] = EK_PREFERENCE,
        endorsement_auth: bytes = b"",
        owner_auth: bytes = b"",
        timeout_seconds: float = COMMAND_TIMEOUT_SECONDS,
    ) -> Self:
        """Open the TPM at *uri* and start it if nobody did; arguments as the class, URI as `TPM.open`.

        Raises:
            DeviceError: It cannot be reached or does not start.
        """
        tpm = TPM.open(uri, timeout_seconds=timeout_seconds)
        try:
            tpm.startup()
            return cls(
                tpm,
                ak=ak,
                ek_templates=ek_templates,
                endorsement_auth=endorsement_auth,
                owner_auth=owner_auth,
            )
        except BaseException:
            tpm.close()
            raise

    def identify(self) -> Identity:
        """Read the EK certificate and chain from NV and derive the EK.

        Raises:
            DeviceError: The TPM has no EK that we know how to derive.
        """
        properties = self._tpm.properties()
        vendor = [properties.get(p, 0) for p in range(Property.VENDOR_STRING_1, Property.VENDOR_STRING_4 + 1)]
        ek = self._find_ek()
        firmware = properties.get(Property.FIRMWARE_VERSION_1, 0) << 32
        return Identity(
            ek_public=ek.public.tpm2b(),
            template=ek.template.name,
            ek_source="pub" if ek.certificate is None else "cert",
            ek_certificate=ek.certificate,
            ek_chain=self._read_chain(),
            manufacturer=_text(properties.get(Property.MANUFACTURER, 0)),
            vendor="".join(_text(word) for word in vendor).strip(),
            firmware_version=firmware | properties.get(Property.FIRMWARE_VERSION_2, 0),
        )

    def further_eks(self) -> tuple[FurtherEK, ...]:
        """Return the EKs beside the one that is the node's identity, of those with a certificate in NV; at most three.

        Each is derived: an RSA key takes seconds to minutes on a discrete TPM.
        """
        first = self._chosen_ek()
        present = set(self._tpm.handles(_NV_EK_FIRST))
        others = (each for each in self._ek_templates if each.name != first.template.name)
        found = (ek for each in others if (ek := self._certified_ek(each, present)) is not None)
        self._further = {ek.public.tpm2b(): ek for ek in islice(found, _MAX_FURTHER)}
        return tuple(
            FurtherEK(ek_public=public, template=ek.template.name, certificate=ek.certificate or b"")
            for public, ek in self._further.items()
        )

    def ak_public(self) -> bytes:
        """Return the TPM2B_PUBLIC of the AK: the same at every start of this TPM, even after TPM2_Clear.

        The AK is a primary key of the endorsement hierarchy: whoever verifies can tell that from qualifiedSigner.
        """
        return self._load_ak().public

    def activate(
        self, credential_blob: bytes, encrypted_secret: bytes, *, ek_public: bytes | None = None
    ) -> bytes:
        """Open a credential made for this EK and AK (TPM2_ActivateCredential).

        The secret comes back encrypted in a session salted to the EK, so a listener on the bus does not learn it.

        Args:
            credential_blob: TPM2B_ID_OBJECT, with its size.
            encrypted_secret: TPM2B_ENCRYPTED_SECRET, with its size.
            ek_public: Of one of `further_eks`; None for the EK that is the node's identity.

        Raises:
            TPMResponseError: Not for this EK and AK, or changed on the way.
            DeviceError: The TPM failed, or `further_eks` did not find this EK.
        """
        chosen = self._chosen_ek() if ek_public is None else self._further.get(ek_public)
        if chosen is None:
            raise DeviceError("this TPM showed no such EK")
        ak = self._load_ak()
        with self._tpm.scope():
            ek, public = self._load_ek(chosen)
            session = self._tpm.start_session(SessionType.HMAC, (ek, public))
            authorise_ek = self._authorise_ek(ek, chosen, session)
            return self._tpm.execute(
                commands.activate_credential(ak.entity, ek, credential_blob, encrypted_secret),
                session.use(encrypt_response=True, keep=False),
                authorise_ek,
            )

    def certify_ak(
        self, object_public: bytes, duplicate: bytes, in_sym_seed: bytes, qualifying_data: bytes
    ) -> KeyCertification:
        """Certify the AK with a key that a verifier sealed to the EK: TPM2_Import, TPM2_Load, TPM2_Certify.

        Args:
            object_public: TPM2B_PUBLIC of the key, with its size.
            duplicate: TPM2B_PRIVATE, with its size.
            in_sym_seed: TPM2B_ENCRYPTED_SECRET, with its size.
            qualifying_data: The challenge, at most 64 bytes; ours have 32.

        Raises:
            TPMResponseError: Not for this EK, or changed on the way.
            DeviceError: The TPM failed.
        """
        ak, chosen = self._load_ak(), self._chosen_ek()
        with self._tpm.scope():
            ek, public = self._load_ek(chosen)
            session = self._tpm.start_session(SessionType.HMAC, (ek, public))
            private = self._tpm.execute(
                commands.import_key(ek, object_public, duplicate, in_sym_seed),
                self._authorise_ek(ek, chosen, session),
            )
            key = self._tpm.execute(
                commands.load(ek, private, object_public), self._authorise_ek(ek, chosen, session)
            )
            signed = self._tpm.execute(
                commands.certify(ak.entity, key, qualifying_data), Password(), Password()
            )
            return KeyCertification(certify_info=signed.attest, signature=signed.signature)

    def certified_aks(self) -> tuple[CertifiedAK, ...]:
        """Return attestation keys beside the AK that a maker or provider certified; most TPMs have none.

        Raises:
            DeviceError: The TPM failed.
        """
        return find_certified_aks(self._tpm, endorsement_auth=self._endorsement_auth)

    def vouch(self, certified: CertifiedAK, qualifying_data: bytes) -> KeyCertification:
        """Have a certified attestation key state that the AK is in this TPM (TPM2_Certify).

        Args:
            certified: One of `certified_aks`.
            qualifying_data: What it is for, at most 64 bytes; `ak_certificate.binding` has 32.

        Raises:
            TPMResponseError: The key does not sign so.
            DeviceError: The TPM failed, or has another key at that place now.
        """
        ak = self._load_ak()
        place = PLACES[certified.name]
        with loaded_ak(self._tpm, place, endorsement_auth=self._endorsement_auth) as (key, public):
            if public.tpm2b() != certified.public:
                raise DeviceError("the certified key is not the one that this TPM had before")
            signed = self._tpm.execute(
                commands.certify(ak.entity, key, qualifying_data), Password(), Password()
            )
        return KeyCertification(certify_info=signed.attest, signature=signed.signature)

    def quote(self, qualifying_data: bytes, selection: PCRSelection) -> Quote:
        """Quote *selection* with the AK, together with the values that were quoted.

        Args:
            qualifying_data: The challenge, at most 64 bytes; ours have 32.
            selection: Which PCRs.

        Raises:
            DeviceError: A bank is missing, the PCRs do not stop changing, or the TPM failed.
        """
        ak = self._load_ak()
        scheme = parse_public(ak.public).scheme
        if scheme is None or scheme.hash_alg is None:
            raise DeviceError("the AK has no signing scheme")
        for _ in range(PCR_TRIES):
            values = self._read_pcrs(selection)
            signed = self._tpm.execute(commands.quote(ak.entity, qualifying_data, selection), Password())
            quoted = _quoted_digest(signed.attest)
            # IMA or a boot loader may extend a PCR between the two commands; then these values prove nothing.
            digest = hash_new(scheme.hash_alg, b"".join(values.values())).digest()
            if hmac.compare_digest(digest, quoted):
                return Quote(
                    attest=signed.attest, signature=signed.signature, pcr_values=_by_bank_name(values)
                )
        raise DeviceError(f"PCRs changed during each of {PCR_TRIES} quotes", fault="busy")

    # Keys of the node

    def create_signing_key(self, kind: KeyType | None = None) -> TPMKey:
        """Make a key that never leaves this TPM and signs what it is given; it is not kept here.

        Args:
            kind: None for P-384 where the TPM has it, else P-256.

        Raises:
            TPMResponseError: The TPM does not make such keys, or the owner hierarchy has another authValue.
            DeviceError: The TPM failed.
        """
        if kind is not None:
            return make_key(self._tpm, key_template(kind), hierarchy_auth=self._owner_auth)
        try:
            return self.create_signing_key(KeyType.ECC_P384)
        except TPMResponseError as e:
            if not is_unsupported(e):
                raise
        return self.create_signing_key(KeyType.ECC_P256)

    def create_decryption_key(self) -> TPMKey:
        """Make a key of RSA 2048 that never leaves this TPM and decrypts what it is given (`tpm-resident-decrypt`).

        Raises:
            DeviceError: As `create_signing_key`.
        """
        template = key_template(KeyType.RSA_2048, attributes=DECRYPTION_ATTRIBUTES)
        return make_key(self._tpm, template, hierarchy_auth=self._owner_auth)

    def certify_key(self, key: TPMKey, qualifying_data: bytes) -> KeyCertification:
        """State under the AK which public area *key* has, and that it is in this TPM (TPM2_Certify).

        Args:
            key: Of this TPM, with an empty authValue.
            qualifying_data: What it is for, at most 64 bytes; `csr_binding` and `key_binding` have 32.

        Raises:
            TPMResponseError: The key is of another TPM, or older than its last TPM2_Clear.
            DeviceError: The TPM failed.
        """
        ak = self._load_ak()
        with self._tpm.scope():
            subject = load_key(self._tpm, key, self._owner_auth)
            signed = self._tpm.execute(
                commands.certify(subject.entity, ak.entity, qualifying_data), Password(), Password()
            )
            return KeyCertification(certify_info=signed.attest, signature=signed.signature)

    def certify_external(self, key: ec.EllipticCurvePrivateKey, qualifying_data: bytes) -> ExternalKey:
        """State under the AK that a software key was loaded into this TPM (TPM2_LoadExternal, TPM2_Certify).

        The private part goes to the TPM encrypted, in a session salted to the EK: a listener on the bus does not
        learn it. The TPM keeps nothing of it, and the statement says that the key is not the TPM's own: Qualified
        Name and Name are the same (TPM.md §3.4, `certified-external`).

        Args:
            key: P-256.
            qualifying_data: What it is for, at most 64 bytes.

        Raises:
            DeviceError: The TPM failed, or the key is on another curve.
        """
        public, sensitive = external_key(key)
        ak, chosen = self._load_ak(), self._chosen_ek()
        with self._tpm.scope():
            ek, ek_public = self._load_ek(chosen)
            session = self._tpm.start_session(SessionType.HMAC, (ek, ek_public))
            self._tpm.flush(ek.handle)
            loaded = self._tpm.execute(
                commands.load_external(public, sensitive=sensitive),
                session.use(encrypt_command=True, keep=False),
            )
            signed = self._tpm.execute(
                commands.certify(loaded, ak.entity, qualifying_data), Password(), Password()
            )
            return ExternalKey(public=public, certify_info=signed.attest, signature=signed.signature)

    def sign(self, key: TPMKey, digest: bytes, *, pss: bool = False) -> bytes:
        """Sign *digest* with *key*: ECDSA as DER of (r, s), RSA PKCS#1 v1.5 or PSS as long as the modulus.

        Args:
            key: Of this TPM, with an empty authValue.
            digest: Of SHA-256, SHA-384 or SHA-512, told by its length.
            pss: RSA: PSS with a salt as long as the digest.

        Raises:
            TPMResponseError: As `certify_key`, or the key does not sign so.
            DeviceError: The TPM failed.
        """
        with self._tpm.scope():
            loaded = load_key(self._tpm, key, self._owner_auth)
            return plain_signature(sign_digest(self._tpm, loaded, digest, pss=pss))

    def rsa_decrypt(self, key: TPMKey, ciphertext: bytes) -> bytes:
        """Decrypt with *key*: RSA-OAEP with SHA-256 and an empty label. Not salted: the answer crosses the bus.

        Raises:
            TPMResponseError: Not encrypted to this key, or as `certify_key`.
            DeviceError: The TPM failed.
        """
        with self._tpm.scope():
            loaded = load_key(self._tpm, key, self._owner_auth)
            return self._tpm.execute(commands.rsa_decrypt(loaded.entity, ciphertext, _OAEP), Password())

    def shutdown(self) -> None:
        """Announce the power loss (TPM2_Shutdown); the last thing that is done with this TPM."""
        self._ak = None
        self._tpm.shutdown()

    def close(self) -> None:
        """Flush everything and let go of the TPM."""
        self._ak = None
        self._tpm.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ak = None
        self._tpm.__exit__(kind, error, trace)

    # Keys

    def _load_ak(self) -> commands.Primary:
        if self._ak is None:
            self._ak = self._create_primary(self._ak_template)
        return self._ak

    def _load_ek(self, chosen: _EK) -> tuple[Entity, Public]:
        """Load an EK and return it with the public area that was found, which a session may be salted to."""
        loaded = self._create_primary(chosen.tpmt)
        if loaded.public != chosen.public.tpm2b():
            raise DeviceError("the EK is not the one that this TPM had before")
        return loaded.entity, chosen.public

    def _authorise_ek(self, ek: Entity, chosen: _EK, session: LiveSession) -> Password | LiveUse:
        """Return an authorisation for one use of the EK.

        The low range allows use only through PolicySecret(endorsement); the high range takes the empty password
        (TPM.md §2.4).
        """
        if not chosen.template.low_range:
            return Password()
        policy = self._tpm.start_session(SessionType.POLICY, (ek, chosen.public))
        self._tpm.execute(
            commands.policy_secret(commands.permanent(Hierarchy.ENDORSEMENT), policy.handle),
            session.use(auth_value=self._endorsement_auth),
        )
        return policy.use(keep=False)

    def _create_primary(self, tpmt: bytes) -> commands.Primary:
        return self._tpm.execute(
            commands.create_primary(Hierarchy.ENDORSEMENT, tpmt), Password(self._endorsement_auth)
        )

    def _chosen_ek(self) -> _EK:
        if self._ek is None:
            self._ek = self._find_ek()
        return self._ek

    def _find_ek(self) -> _EK:
        """Return the first EK whose key is in its certificate; without any, the first that can be derived."""
        present = set(self._tpm.handles(_NV_EK_FIRST))
        for template in self._ek_templates:
            if (certified := self._certified_ek(template, present)) is not None:
                self._ek = certified
                return certified
        for template in self._ek_templates:
            tpmt = template.tpmt(zeros=template.low_range)
            public = self._derive(tpmt)
            if public is not None:
                self._ek = _EK(template=template, tpmt=tpmt, public=public, certificate=None)
                return self._ek
        raise DeviceError("the TPM derives none of the EK templates")

    def _certified_ek(self, template: EKTemplate, present: set[int]) -> _EK | None:
        """Return the EK of *template* whose key is in its certificate; None where there is none."""
        if template.nv_index not in present:
            return None
        certificate = read_nv(self._tpm, template.nv_index, _MAX_CERTIFICATE_BYTES)
        if certificate is None:
            return None
        for tpmt in self._candidates(template, present):
            public = self._derive(tpmt)
            if public is not None and _key_bytes(public) in certificate:
                return _EK(template=template, tpmt=tpmt, public=public, certificate=certificate)
        return None

    def _candidates(self, template: EKTemplate, present: set[int]) -> Iterator[bytes]:
        """Yield the TPMT_PUBLICs that may derive the certified EK; what the profile defines comes first."""
        yield template.tpmt(zeros=template.low_range)
        if template.low_range and template.nv_index + 1 in present:
            nonce = read_nv(self._tpm, template.nv_index + 1, 256)
            if nonce is not None:
                yield _with_nonce(template, nonce)
        yield template.tpmt(zeros=not template.low_range)

    def _derive(self, tpmt: bytes) -> Public | None:
        """Return the public area that *tpmt* derives; None where this TPM does not support such keys."""
        try:
            with self._tpm.scope():
                return parse_public(self._create_primary(tpmt).public)
        except TPMResponseError as e:
            if is_unsupported(e):
                return None
            raise

    # NV memory and PCRs

    def _read_chain(self) -> tuple[bytes, ...]:
        """Return the certificates of the chain: concatenated DER that may run over into the next index."""
        data = b""
        for index in self._tpm.handles(_CHAIN_FIRST):
            if index > _CHAIN_LAST or len(data) > _MAX_CHAIN_BYTES:
                break
            data += read_nv(self._tpm, index, _MAX_CHAIN_BYTES) or b""
        return _split_der(data)

    def _read_pcrs(self, selection: PCRSelection) -> dict[tuple[int, int], bytes]:
        """Return all values of *selection* in its order; a TPM hands out eight at a time."""
        wanted = [(bank, index) for bank, indices in selection.banks for index in indices]
        found: dict[tuple[int, int], bytes] = {}
        while len(found) < len(wanted):
            missing = PCRSelection(
                tuple(
                    (bank, rest)
                    for bank, indices in selection.banks
                    if (rest := tuple(i for i in indices if (bank, i) not in found))
                )
            )
            values = self._tpm.execute(commands.pcr_read(missing)).values
            if not values or not values.keys() <= set(wanted) - found.keys():
                raise DeviceError("the TPM does not have all of the selected PCRs")
            found |= values
        return {key: found[key] for key in wanted}


def _quoted_digest(attest: bytes) -> bytes:
    try:
        attested = parse_attest(attest).attested
    except MalformedEvidence as e:
        raise DeviceError(f"TPM answered what no TPM may answer: {e}", fault="malformed") from e
    if not isinstance(attested, QuoteInfo):
        raise DeviceError("TPM2_Quote returned another kind of statement", fault="malformed")
    return attested.pcr_digest


def _by_bank_name(values: Mapping[tuple[int, int], bytes]) -> dict[str, dict[int, bytes]]:
    named: dict[str, dict[int, bytes]] = {}
    for (bank, index), value in values.items():
        named.setdefault(bank_name(bank), {})[index] = value
    return named


def _key_bytes(public: Public) -> bytes:
    """Return the key as every certificate contains it: the modulus, or the uncompressed point.

    That the certificate is good and that its key equals the EK is the verifier's business; here it only tells
    which of several EKs was certified, and no quirk of an encoding gets in the way.
    """
    return public.modulus or b"\x04" + public.x + public.y


def _with_nonce(template: EKTemplate, nonce: bytes) -> bytes:
    """Return the template with unique = the EK nonce, padded with zeros (EK profile, B.2.4)."""
    size = len(_key_bytes(parse_tpmt_public(template.tpmt(zeros=True))))
    if template.public.type == Alg.RSA:
        return replace(template.public, modulus=nonce[:size].ljust(size, b"\0")).serialise()
    size //= 2
    return replace(template.public, x=nonce[:size].ljust(size, b"\0"), y=bytes(size)).serialise()


def _split_der(data: bytes) -> tuple[bytes, ...]:
    """Cut concatenated DER SEQUENCEs apart, at most 16; stop at padding or at what is cut short."""
    found: list[bytes] = []
    while len(found) < _MAX_CHAIN and data[:2] == b"\x30\x82" and len(data) >= 4:
        size = 4 + int.from_bytes(data[2:4])
        if size > len(data):
            break
        found.append(data[:size])
        data = data[size:]
    return tuple(found)


def _text(word: int) -> str:
    """Return four ASCII bytes without their filling."""
    return "".join(chr(b) for b in word.to_bytes(4) if 0x20 <= b < 0x7F).strip()
