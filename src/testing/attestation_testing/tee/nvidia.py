"""A software GPU: certificates in NVIDIA's form under a root that says TEST ONLY, measurements signed over any nonce.

Five certificates on P-384: root, identity of the family, provisioner, the device, and the leaf made for one firmware.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from attestation.endorsements.nvidia import DICE_TCB_INFO, Endorsements, endorsements
from attestation.wire import b64encode, pem, tlv
from attestation_testing.tee import x509

ROOT: Final = "NVIDIA Device Identity CA"
_P384: Final = ec.SECP384R1()
_SHA384: Final = "2.16.840.1.101.3.4.2.2"


def names(common_name: str) -> x509.Names:
    """Return a subject."""
    return (
        (x509.COMMON_NAME, common_name),
        (x509.UNIT, "TEST ONLY"),
        (x509.ORGANIZATION, "NVIDIA Corporation"),
    )


def opaque(values: Mapping[int, bytes]) -> bytes:
    """Return opaque data: type and length u16, value."""
    return b"".join(
        kind.to_bytes(2, "little") + len(value).to_bytes(2, "little") + value
        for kind, value in values.items()
    )


def block(index: int, digest: bytes) -> bytes:
    """Return a measurement of 48 bytes."""
    return bytes((index, 1, 51, 0, 0, 48, 0)) + digest


@dataclass(frozen=True, kw_only=True)
class SoftwareGPU:
    """A GPU.

    Args:
        seed: Names it: another seed is another GPU.
        chip: As its certificate names it.
        arch: Its family, as the item says.
        driver: Version of the driver.
        vbios: Bytes of the version of the VBIOS.
        changed: Place in the chain, the leaf first -> fields of that certificate (`x509.certificate`) made otherwise.
    """

    seed: str = "gpu 0"
    chip: str = "GB100"
    arch: str = "BLACKWELL"
    driver: str = "590.48.01"
    vbios: bytes = bytes.fromhex("00e4009711000000")
    changed: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def fwid(self) -> bytes:
        """Digest of the firmware for which its key was made."""
        return hashlib.sha384(f"firmware {self.seed}".encode()).digest()

    def key(self, place: int) -> ec.EllipticCurvePrivateKey:
        """Return the key at a place of the chain; those of CAs belong to all GPUs."""
        return x509.ec_key(_P384, f"nvidia {place} {self.seed if place < 2 else ''}")

    def subject(self, place: int) -> x509.Names:
        """Return the subject at a place of the chain."""
        leaf = f"{self.chip} A01 GSP FMC LF"
        told = (
            leaf,
            f"{self.chip} A01 GSP BROM",
            f"NVIDIA {self.chip} Provisioner",
            f"NVIDIA {self.chip} Identity",
        )
        return names((*told, ROOT)[place])

    @property
    def chain(self) -> tuple[bytes, ...]:
        """The five certificates, DER, the leaf first."""
        return tuple(self._certificate(place) for place in range(5))

    def _certificate(self, place: int) -> bytes:
        above = min(place + 1, 4)
        key, signer = self.key(place), self.key(above)
        kind = x509.ca_extensions()
        if place == 0:
            firmware = tlv(0xA6, x509.sequence(x509.oid(_SHA384), x509.octets(self.fwid)))
            kind = [
                x509.extension(x509.KEY_USAGE, tlv(3, b"\x07\x80"), critical=True),
                x509.extension(DICE_TCB_INFO, x509.sequence(firmware)),
            ]
        fields: dict[str, Any] = {
            "subject": self.subject(place),
            "issuer": self.subject(above),
            "key": key,
            "signer": signer,
            "serial": place + 1,
            "extensions": [*x509.key_identifiers(key, signer), *kind],
        }
        return x509.certificate(**(fields | dict(self.changed.get(place, {}))))

    @property
    def endorsements(self) -> Endorsements:
        """What vouches for it."""
        return endorsements(self.chain[-1])

    def evidence(
        self,
        nonce: bytes,
        *,
        blocks: Sequence[bytes] | None = None,
        more: Mapping[int, bytes] | None = None,
        key: ec.EllipticCurvePrivateKey | None = None,
    ) -> bytes:
        """Return request and signed response over *nonce*, 32 bytes.

        Args:
            nonce: What it is asked with.
            blocks: Measurements (`block`); left out: two.
            more: Opaque data beside those that it tells, or in their place; what is empty is left out.
            key: Signs in place of its own.
        """
        measured = (
            [block(i, hashlib.sha384(bytes((i,))).digest()) for i in (1, 2)] if blocks is None else blocks
        )
        record = b"".join(measured)
        told = {6: self.vbios, 3: self.driver.encode() + b"\0", 20: self.fwid, 35: self.chip.encode() + b"\0"}
        data = opaque({kind: value for kind, value in {**told, **(more or {})}.items() if value})
        signed = b"".join(
            (
                bytes((0x11, 0xE0, 1, 0xFF)),
                nonce,
                b"\0",
                bytes((0x11, 0x60, 0, 0, len(measured))),
                len(record).to_bytes(3, "little"),
                record,
                hashlib.sha256(nonce).digest(),
                len(data).to_bytes(2, "little"),
                data,
            )
        )
        r, s = decode_dss_signature((key or self.key(0)).sign(signed, ec.ECDSA(hashes.SHA384())))
        return signed + r.to_bytes(48, "big") + s.to_bytes(48, "big")

    def item(self, nonce: bytes, **more: Any) -> dict[str, str]:
        """Return the item of the envelope, over *nonce* (`report_data.gpu_nonce`)."""
        chain = "".join(pem("CERTIFICATE", each) for each in self.chain)
        return {
            "arch": self.arch,
            "evidence": b64encode(self.evidence(nonce, **more)),
            "certificate": b64encode(chain.encode()),
        }
