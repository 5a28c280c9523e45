"""A device like a YubiHSM 2: a maker's root, an intermediate, the device's own key, and key objects that it certifies.

The extensions have the bytes of real certificates: BIT STRINGs of whole bytes, a firmware version of three bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import NameOID

from attestation.endorsements import der
from attestation.wire import tlv, u32

PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
ARC: Final = "1.3.6.1.4.1.41482.4."
START: Final = datetime(2017, 1, 1, tzinfo=UTC)
END: Final = datetime(2071, 10, 5, tzinfo=UTC)
GENERATED, IMPORTED, IMPORTED_WRAPPED = 0x01, 0x02, 0x10
UNKNOWN: Final = 99
"""From this number on, extensions are critical and unknown."""
SIGN_ECDSA, DECRYPT_OAEP, EXPORTABLE = 1 << 7, 1 << 10, 1 << 16
ECDSA_SHA384: Final = bytes.fromhex("300a06082a8648ce3d040303")
"""AlgorithmIdentifier ecdsa-with-SHA384."""


def extensions(
    *,
    firmware: bytes = b"\x02\x04\x01",
    serial: int = 7_150_001,
    origin: int = GENERATED,
    domains: int = 0b101,
    capabilities: int = SIGN_ECDSA,
    object_id: int = 0x0024,
    label: str = "itl-ca",
    **changed: bytes | None,
) -> dict[str, bytes]:
    """Return the extensions of a key object: last number of the OID -> DER.

    Args:
        firmware: Three bytes.
        serial: Of the device.
        origin: Bits, u8.
        domains: Bits, u16.
        capabilities: Bits, u64.
        object_id: u16.
        label: Its label.
        changed: `e<number>`: DER in place of that extension; None: it is left out.
    """
    found: dict[str, bytes | None] = {
        "1": tlv(der.OCTET_STRING, firmware),
        "2": der.write_unsigned(serial),
        "3": tlv(der.BIT_STRING, b"\0" + bytes([origin])),
        "4": tlv(der.BIT_STRING, b"\0" + domains.to_bytes(2)),
        "5": tlv(der.BIT_STRING, b"\0" + capabilities.to_bytes(8)),
        "6": der.write_unsigned(object_id),
        "9": tlv(0x0C, label.encode()),
        **{name.removeprefix("e"): value for name, value in changed.items()},
    }
    return {number: value for number, value in found.items() if value is not None}


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


@dataclass(frozen=True)
class Device:
    """One device and its maker.

    Args:
        maker: Whose root it is; another one is another root.
        seed: Of the keys.
    """

    maker: str = "Maker YubiHSM Root CA"
    seed: int = 401
    _serial: list[int] = field(default_factory=lambda: [0])

    def _key(self, number: int) -> ec.EllipticCurvePrivateKey:
        return ec.derive_private_key(self.seed + number, ec.SECP256R1())

    def _certified(
        self, subject: str, key: Any, issuer: str, signer: PrivateKey, *, ca: bool, more: dict[str, bytes]
    ) -> bytes:
        self._serial[0] += 1
        builder = (
            x509.CertificateBuilder()
            .subject_name(_name(subject))
            .issuer_name(_name(issuer))
            .public_key(key)
            .serial_number(self._serial[0])
            .not_valid_before(START)
            .not_valid_after(END)
        )
        if ca:
            builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        for number, value in more.items():
            oid = x509.ObjectIdentifier(ARC + number)
            # A number that devices do not use stands for something that nobody knows.
            builder = builder.add_extension(
                x509.UnrecognizedExtension(oid, value), critical=int(number) >= UNKNOWN
            )
        return builder.sign(signer, hashes.SHA256()).public_bytes(Encoding.DER)

    @cached_property
    def root(self) -> bytes:
        """The maker's root, DER."""
        return self._certified(
            self.maker, self._key(0).public_key(), self.maker, self._key(0), ca=True, more={}
        )

    @cached_property
    def chain(self) -> tuple[bytes, ...]:
        """The certificates between: the device's own, and the maker's intermediate."""
        middle = f"{self.maker} Sub-CA"
        own = {"1": b"\x04\x03\x02\x04\x01", "2": der.write_unsigned(7_150_001)}
        return (
            self._certified(self._own, self._key(2).public_key(), middle, self._key(1), ca=True, more=own),
            self._certified(middle, self._key(1).public_key(), self.maker, self._key(0), ca=True, more={}),
        )

    @property
    def _own(self) -> str:
        return "YubiHSM Attestation (7150001)"

    def certificate(self, public: Any, *, ca: bool = False, **said: Any) -> bytes:
        """Return what the device certifies of a key object; *said*: as of `extensions`."""
        return self._certified(
            "YubiHSM Attestation id:0x0024", public, self._own, self._key(2), ca=ca, more=extensions(**said)
        )


def spki(key: PrivateKey) -> bytes:
    """Return SubjectPublicKeyInfo, DER."""
    return key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def statement(certificate: bytes, key: ec.EllipticCurvePrivateKey, signed: bytes) -> bytes:
    """Return evidence of type hsm-x509: certificate, algorithm, and the signature of *key* over *signed*."""
    parts = (certificate, ECDSA_SHA384, key.sign(signed, ec.ECDSA(hashes.SHA384())))
    return b"".join(u32(len(part)) + part for part in parts)
