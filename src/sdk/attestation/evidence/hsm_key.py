"""A key in an HSM, by the certificate that the device made of it: YubiHSM 2 (HSM-AND-KUBERNETES §11, `hsm-x509`).

A YubiHSM 2 certifies any of its asymmetric keys with a key that its maker put into it. In extensions below
1.3.6.1.4.1.41482.4 the device says where the key was made and what it may do. It is asked with no nonce: who saw such
a certificate once can show it for ever. So the key itself signs what it is to vouch for.

    certificate     DER: of the key object, by the device
    algorithm       AlgorithmIdentifier, DER
    signature       by the key object, over "itl-quote-proof/v1" ‖ binding

Each with its length before it, u32 big-endian. A first byte of 0x69 is no SEQUENCE: no certificate, request or list is
signed that way. Wrap keys are certified by no YubiHSM 2 (yubihsm-shell #538).

What is told of a key has the names of draft-ietf-rats-pkix-key-attestation-07. Its own format is not read: its object
identifiers are not assigned yet.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from attestation.endorsements import der
from attestation.endorsements.certificate import Certificate, parse_certificate, signature_scheme
from attestation.endorsements.path import CertificateIndex, PathFailure, SentIssuers, build_path
from attestation.errors import (
    CSRInvalid,
    KeyCertificationRejected,
    KeyNotResident,
    MalformedEvidence,
    SignatureInvalid,
)
from attestation.pki.signature import load_spki, verify_signature
from attestation.wire import Reader

MEDIA_TYPE = "application/vnd.itl.hsm-key-certificate"

PROOF: Final = b"itl-quote-proof/v1"
"""Before what a key object signs."""
MAX_SIGNATURE_BYTES: Final = 8192
MAX_LABEL_BYTES: Final = 40

_ARC: Final = "1.3.6.1.4.1.41482.4."
_FIRMWARE, _SERIAL, _ORIGIN, _DOMAINS, _CAPABILITIES, _OBJECT, _LABEL = (
    f"{_ARC}{last}" for last in (1, 2, 3, 4, 5, 6, 9)
)
_UTF8: Final = 0x0C
_MAX_SERIAL: Final = (1 << 64) - 1
_MAX_OBJECT: Final = 0xFFFF
_GENERATED: Final = 0x01
_ORIGINS: Final = {0x01: "generated", 0x02: "imported", 0x10: "imported under wrap"}
_SIGNS: Final = sum(1 << bit for bit in (5, 6, 7, 8))
"""sign-pkcs, sign-pss, sign-ecdsa, sign-eddsa."""
_DECRYPTS: Final = sum(1 << bit for bit in (9, 10))
"""decrypt-pkcs, decrypt-oaep."""
_DERIVES: Final = 1 << 11
_EXPORTABLE: Final = 1 << 16
"""exportable-under-wrap: whoever has the wrap key has the key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyObject:
    """What a device says of a key object.

    Args:
        firmware: Of the device, like `2.4.1`.
        serial: Of the device.
        origin: Bits: 0x01 generated, 0x02 imported, 0x10 imported under wrap.
        domains: Bits, u16: the first is domain 1.
        capabilities: Bits, u64.
        object_id: Its number in the device, u16.
        label: Its label, at most 40 bytes of UTF-8.
    """

    firmware: str
    serial: int
    origin: int
    domains: int
    capabilities: int
    object_id: int
    label: str

    @property
    def extractable(self) -> bool:
        """It can be taken out under a wrap key."""
        return bool(self.capabilities & _EXPORTABLE)

    @property
    def local(self) -> bool:
        """It was made in the device, and is no copy of another one."""
        return self.origin == _GENERATED

    @property
    def purposes(self) -> tuple[str, ...]:
        """What it may do: `sign`, `decrypt`, `derive`."""
        bits = (("sign", _SIGNS), ("decrypt", _DECRYPTS), ("derive", _DERIVES))
        return tuple(word for word, mask in bits if self.capabilities & mask)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnverifiedHSMKey:
    """A parsed statement. Nothing in it may be believed yet.

    Args:
        certificate: Of the key object.
        said: What its extensions say.
        algorithm: By which the key signed, AlgorithmIdentifier, DER.
        signature: Its signature.
    """

    certificate: Certificate
    said: KeyObject
    algorithm: bytes = field(repr=False)
    signature: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class HSMKeyClaims:
    """A key that was made in an HSM of a maker whom we believe, and cannot leave it; only `verify` builds one.

    Args:
        said: What the device says of it.
        spki: Its SubjectPublicKeyInfo, DER.
        anchor: Subject of the maker's root.
    """

    said: KeyObject
    spki: bytes = field(repr=False)
    anchor: str

    @property
    def shown(self) -> Mapping[str, object]:
        """What rules of policies may read, in the words of draft-ietf-rats-pkix-key-attestation-07."""
        said = self.said
        return {
            "vendor": self.anchor,
            "hwserial": str(said.serial),
            "fwversion": said.firmware,
            "identifier": f"0x{said.object_id:04x}",
            "label": said.label,
            "domains": [number + 1 for number in range(16) if said.domains >> number & 1],
            "extractable": said.extractable,
            "sensitive": True,
            "never_extractable": said.local and not said.extractable,
            "local": said.local,
            "purpose": list(said.purposes),
        }


def parse(data: bytes) -> UnverifiedHSMKey:
    """Parse a statement.

    Raises:
        MalformedEvidence: The only way to fail; also for a certificate that says too little of its key.
    """
    reader = Reader(data, "hsm-x509")
    written, algorithm, signature = (reader.take(reader.u32()) for _ in range(3))
    reader.end()
    certificate = parse_certificate(written)
    if certificate.padding_bytes:
        raise MalformedEvidence("hsm-x509: bytes behind the certificate")
    if not 0 < len(signature) <= MAX_SIGNATURE_BYTES:
        raise MalformedEvidence(f"hsm-x509: a signature of 1 to {MAX_SIGNATURE_BYTES} bytes expected")
    signature_scheme(algorithm)
    return UnverifiedHSMKey(
        certificate=certificate, said=_said(certificate), algorithm=algorithm, signature=signature
    )


def _said(certificate: Certificate) -> KeyObject:
    """Read the extensions. A device writes all seven: one that is missing is no zero."""
    return KeyObject(
        firmware=_firmware(_value(certificate, _FIRMWARE, der.OCTET_STRING)),
        serial=_number(_value(certificate, _SERIAL, der.INTEGER), _MAX_SERIAL),
        origin=_mask(_value(certificate, _ORIGIN, der.BIT_STRING), 1),
        domains=_mask(_value(certificate, _DOMAINS, der.BIT_STRING), 2),
        capabilities=_mask(_value(certificate, _CAPABILITIES, der.BIT_STRING), 8),
        object_id=_number(_value(certificate, _OBJECT, der.INTEGER), _MAX_OBJECT),
        label=_text(_value(certificate, _LABEL, _UTF8)),
    )


def _value(certificate: Certificate, oid: str, tag: int) -> bytes:
    """Return the content of the one value in an extension."""
    extension = certificate.extensions.get(oid)
    if extension is None:
        raise MalformedEvidence(
            f"hsm-x509: the certificate has no extension {oid}: no key object of a YubiHSM 2"
        )
    found = der.only(extension.value, tag, oid)
    return extension.value[found.start : found.stop]


def _firmware(content: bytes) -> str:
    if len(content) != 3:
        raise MalformedEvidence("hsm-x509: a firmware version of three bytes expected")
    return ".".join(map(str, content))


def _number(content: bytes, most: int) -> int:
    value = int.from_bytes(content, signed=True) if 0 < len(content) <= 9 else -1
    if not 0 <= value <= most:
        raise MalformedEvidence(f"hsm-x509: a number from 0 to {most} expected")
    return value


def _mask(content: bytes, size: int) -> int:
    """Return the bits of a BIT STRING of *size* whole bytes, as a number."""
    if len(content) != size + 1 or content[0]:
        raise MalformedEvidence(f"hsm-x509: {size} bytes of bits expected")
    return int.from_bytes(content[1:])


def _text(content: bytes) -> str:
    try:
        text = content.decode() if len(content) <= MAX_LABEL_BYTES else None
    except UnicodeDecodeError:
        text = None
    if text is None:
        raise MalformedEvidence(f"hsm-x509: a label of at most {MAX_LABEL_BYTES} bytes of UTF-8 expected")
    return text


def verify(
    key: UnverifiedHSMKey,
    *,
    anchors: CertificateIndex,
    chain: Sequence[bytes],
    binding: bytes,
    spki: bytes,
    at: datetime,
) -> HSMKeyClaims:
    """Verify that this key was made in an HSM, cannot leave it, and vouches for *binding*.

    Args:
        key: Result of `parse`.
        anchors: Roots of makers, pinned for this use.
        chain: DER of the certificates between; untrusted.
        binding: Of `attestation.report_data.quote_binding`; never empty.
        spki: The key that is asked about, canonical SubjectPublicKeyInfo DER.
        at: The instant to verify at, UTC.

    Raises:
        KeyCertificationRejected: No root of a maker leads to the certificate, or it is about another key.
        SignatureInvalid: The key did not sign *binding*.
        KeyNotResident: It was made elsewhere, or can be taken out.
    """
    read = key.certificate
    # 1. A certificate of a key object, as devices make them. One that may certify others would be no key's.
    if read.is_ca:
        raise KeyCertificationRejected("the certificate is not one that a device makes of a key object")
    # 2. Up to the maker's root, through CAs alone: a key that was taken out of its device, or an attestation key that
    #    somebody brought in, would otherwise certify whatever it likes.
    path = build_path(read, anchors=anchors, intermediates=[SentIssuers(chain)], at=at)
    if isinstance(path, PathFailure):
        raise KeyCertificationRejected(f"no root of the maker leads to the certificate: {path.reason}")
    # 3. About the key that is asked about. Otherwise a good key would vouch for a bad one.
    if not hmac.compare_digest(read.spki, spki):
        raise KeyCertificationRejected("the certified key is not the key that is asked about")
    # 4. That key says so now, for this question. Otherwise a certificate that was seen once would do for any issuer.
    try:
        public = load_spki(spki)[0]
    except CSRInvalid as e:
        raise KeyCertificationRejected(f"the key: {e}") from e
    if not binding:
        raise SignatureInvalid("nothing is bound")
    verify_signature(public, algorithm=key.algorithm, signature=key.signature, signed=PROOF + binding)
    # 5. Made there, and it stays there. What was brought in has been elsewhere, whatever the device says of now.
    said = key.said
    if not said.local:
        word = _ORIGINS.get(said.origin, f"of origin 0x{said.origin:02x}")
        raise KeyNotResident(f"the key is {word}, not made in the device", computed=word)
    if said.extractable:
        raise KeyNotResident("the key can be taken out under a wrap key", computed="exportable")
    return HSMKeyClaims(said=said, spki=spki, anchor=path.anchor.subject)
