"""AMD-like processors in software: roots, VEKs and reports of every version and line (CONFIDENTIAL.md §§8, 15).

Everything is written from the tables of the specification, apart from the readers that judge it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any, Final

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from attestation.endorsements.amd import Endorsements, Line, Lines, Product, parse_line
from attestation.endorsements.revocation import CRLStore, parse_crl
from attestation_testing.tee import x509
from attestation_testing.tee.x509 import extension, integer

TEST_ONLY: Final = "TEST ONLY, software of ITL attestation"
_ARC: Final = "1.3.6.1.4.1.3704.1."
_CPUID: Final = {
    Product.MILAN: (0x19, 0x01, 1),
    Product.GENOA: (0x19, 0x11, 1),
    Product.TURIN: (0x1A, 0x02, 1),
}
_FIRST_SERIAL: Final = {Product.MILAN: 0x10000, Product.GENOA: 0x20000, Product.TURIN: 0x30000}
VCEK_GUID: Final = bytes.fromhex("63da758de6644564adc5f4b93be8accd")
VLEK_GUID: Final = bytes.fromhex("a8074bc2a25a483eaae639c045a0b8a1")
GOOD_TCB: Final = {"bootloader": 10, "tee": 1, "snp": 27, "microcode": 217}
MEASUREMENT: Final = bytes(range(48))


def tcb_bytes(product: Product, tcb: dict[str, int]) -> bytes:
    """Return 8 bytes of a TCB (§8.2)."""
    if product is Product.TURIN:
        return bytes(
            [tcb.get("fmc", 1), tcb["bootloader"], tcb["tee"], tcb["snp"], 0, 0, 0, tcb["microcode"]]
        )
    return bytes([tcb["bootloader"], tcb["tee"], 0, 0, 0, 0, tcb["snp"], tcb["microcode"]])


class Pki:
    """Roots of one line, and what they sign.

    Args:
        product: The line.
    """

    def __init__(self, product: Product = Product.GENOA) -> None:
        self.product = product
        self.ark_key, self.ask_key, self.asvk_key = (x509.rsa_key(i) for i in range(3))

    def names(self, common_name: str) -> x509.Names:
        """Return a name as AMD writes it, but for whose it is."""
        return (
            (x509.UNIT, "Engineering"),
            (x509.COUNTRY, "US"),
            (x509.ORGANIZATION, TEST_ONLY),
            (x509.COMMON_NAME, common_name),
        )

    @cached_property
    def ark(self) -> bytes:
        """The root, DER."""
        return self._ca(f"ARK-{self.product}", self.ark_key, 0)

    @cached_property
    def ask(self) -> bytes:
        """The issuer of VCEKs, DER."""
        return self._ca(f"SEV-{self.product}", self.ask_key, 1, path_length=0)

    @cached_property
    def asvk(self) -> bytes:
        """The issuer of VLEKs, DER."""
        return self._ca(f"SEV-VLEK-{self.product}", self.asvk_key, 0x101, path_length=0)

    def _ca(self, common_name: str, key: Any, serial: int, path_length: int | None = None) -> bytes:
        return x509.certificate(
            subject=self.names(common_name),
            issuer=self.names(f"ARK-{self.product}"),
            key=key,
            signer=self.ark_key,
            serial=_FIRST_SERIAL[self.product] + serial,
            extensions=x509.ca_extensions(path_length),
        )

    @cached_property
    def line(self) -> Line:
        """What a service would pin."""
        return parse_line(self.product, ark=self.ark, ask=self.ask, asvk=self.asvk)

    def crl(self, *serials: int, at: datetime = x509.START, days: int = 3650) -> bytes:
        """Return the ARK's list of withdrawn intermediates, DER."""
        return x509.crl(
            issuer=self.names(f"ARK-{self.product}"),
            signer=self.ark_key,
            revoked=serials,
            this_update=at,
            next_update=at + timedelta(days=days),
        )

    def vek_extensions(
        self, tcb: dict[str, int], *, hwid: bytes | None, csp_id: str | None, wrapped: bool
    ) -> list[bytes]:
        """Return the extensions of a VEK (§8.2)."""
        turin = self.product is Product.TURIN
        stepping = {Product.MILAN: "Milan-B0"}.get(self.product, self.product.value)
        name = stepping if csp_id is None else self.product.value
        levels = {"3.1": tcb["bootloader"], "3.2": tcb["tee"], "3.3": tcb["snp"], "3.8": tcb["microcode"]}
        if turin:
            levels["3.9"] = tcb.get("fmc", 1)
        spare = [f"3.{i}" for i in ((5, 6, 7) if turin else (4, 5, 6, 7))]
        found = [
            extension(_ARC + "1", integer(int(turin))),
            extension(_ARC + "2", x509.text(name, 0x16)),
            *(extension(_ARC + arc, integer(value)) for arc, value in levels.items()),
            *(extension(_ARC + arc, integer(0)) for arc in spare),
        ]
        if hwid is not None:
            found.append(extension(_ARC + "4", x509.octets(hwid) if wrapped else hwid))
        if csp_id is not None:
            found.append(extension(_ARC + "5", x509.text(csp_id, 0x16)))
        return found


@dataclass(frozen=True, kw_only=True)
class Processor:
    """One processor: its chip id, its TCB, and the key that signs at that TCB.

    Args:
        pki: Who vouches for it.
        seed: Another seed is another processor.
        tcb: Component -> level; `fmc` counts for Turin only.
        csp_id: Set where a cloud provider's VLEK signs.
        wrapped: HWID stands in an OCTET STRING, as newer VEKs have it.
        not_after: When its certificate ends.
    """

    pki: Pki
    seed: str = "processor"
    tcb: dict[str, int] = field(default_factory=lambda: dict(GOOD_TCB))
    csp_id: str | None = None
    wrapped: bool = False
    not_after: datetime = x509.FAR

    @property
    def chip_id(self) -> bytes:
        """CHIP_ID, 64 bytes or 8."""
        digest = hashes.Hash(hashes.SHA512())
        digest.update(self.seed.encode())
        return digest.finalize()[: 8 if self.pki.product is Product.TURIN else 64]

    @cached_property
    def key(self) -> ec.EllipticCurvePrivateKey:
        """The key that signs: one for each chip and TCB."""
        return x509.ec_key(
            ec.SECP384R1(), f"{self.pki.product} {self.seed} {sorted(self.tcb.items())} {self.csp_id}"
        )

    @cached_property
    def vek(self) -> bytes:
        """Its certificate, DER, with the serial number 0."""
        return self.certificate()

    def certificate(self, **changed: Any) -> bytes:
        """Return its certificate with anything of it wrong."""
        pki, vlek = self.pki, self.csp_id is not None
        fields: dict[str, Any] = {
            "subject": pki.names("SEV-VLEK" if vlek else "SEV-VCEK"),
            "issuer": pki.names(f"SEV-VLEK-{pki.product}" if vlek else f"SEV-{pki.product}"),
            "key": self.key,
            "signer": pki.asvk_key if vlek else pki.ask_key,
            "serial": 0,
            "not_after": self.not_after,
            "extensions": pki.vek_extensions(
                self.tcb,
                hwid=None if vlek else self.chip_id,
                csp_id=self.csp_id,
                wrapped=self.wrapped,
            ),
        }
        return x509.certificate(**(fields | changed))

    def report(self, report_data: bytes, **changed: Any) -> bytes:
        """Return a signed report; any field of `ReportFields` may be another."""
        product = self.pki.product
        tcb = tcb_bytes(product, self.tcb)
        fields = ReportFields(
            report_data=report_data,
            cpuid=_CPUID[product],
            chip_id=bytes(64) if self.csp_id is not None else self.chip_id,
            signing_key=1 if self.csp_id is not None else 0,
            reported_tcb=tcb,
            committed_tcb=tcb,
            current_tcb=tcb,
            launch_tcb=tcb,
        )
        for name, value in changed.items():
            assert hasattr(fields, name), name
            setattr(fields, name, value)
        return self.sign(fields.unsigned())

    def sign(self, unsigned: bytes) -> bytes:
        """Return the 1184 bytes for the first 672."""
        r, s = decode_dss_signature(self.key.sign(unsigned, ec.ECDSA(hashes.SHA384())))
        return unsigned + r.to_bytes(72, "little") + s.to_bytes(72, "little") + bytes(368)

    def cert_table(self) -> bytes:
        """Return the table in which a host hands the VEK to its guest."""
        guid = VLEK_GUID if self.csp_id is not None else VCEK_GUID
        return guid + struct.pack("<II", 48, len(self.vek)) + bytes(24) + self.vek

    def endorsements(self, *, with_vek: bool = False, revoked: tuple[int, ...] | None = ()) -> Endorsements:
        """Return what a service would judge by; *revoked* None: it has no list."""
        crls = CRLStore([parse_crl(self.pki.crl(*revoked))] if revoked is not None else [])
        return Endorsements(lines=self.lines, vek=self.vek if with_vek else None, source="test", crls=crls)

    @property
    def lines(self) -> Lines:
        """The one line that is pinned."""
        return {self.pki.product: self.pki.line}


@dataclass(kw_only=True)
class ReportFields:
    """What a report says, by the names of §8.1; the default is a good guest of version 3."""

    report_data: bytes
    cpuid: tuple[int, int, int]
    chip_id: bytes
    signing_key: int
    reported_tcb: bytes
    committed_tcb: bytes
    current_tcb: bytes
    launch_tcb: bytes
    version: int = 3
    guest_svn: int = 2
    policy: int = 0x30000
    family_id: bytes = bytes(16)
    image_id: bytes = bytes(16)
    vmpl: int = 0
    signature_algo: int = 1
    platform_info: int = 0x25
    flags: int = 0
    """Bits of 0x048 beside SIGNING_KEY."""
    measurement: bytes = MEASUREMENT
    host_data: bytes = bytes(32)
    id_key_digest: bytes = bytes(48)
    author_key_digest: bytes = bytes(48)
    report_id: bytes = b"\x11" * 32
    report_id_ma: bytes = b"\xff" * 32
    current_version: bytes = bytes([21, 55, 1])
    committed_version: bytes = bytes([21, 55, 1])
    launch_mit_vector: int = 0
    current_mit_vector: int = 0
    patch: dict[int, bytes] = field(default_factory=dict)
    """Offset -> bytes that stand there whatever else is said."""

    def unsigned(self) -> bytes:
        """Return the first 672 bytes."""
        data = bytearray(0x2A0)

        def put(at: int, value: bytes) -> None:
            data[at : at + len(value)] = value

        def number(at: int, value: int, size: int) -> None:
            put(at, value.to_bytes(size, "little"))

        number(0x000, self.version, 4)
        number(0x004, self.guest_svn, 4)
        number(0x008, self.policy, 8)
        put(0x010, self.family_id)
        put(0x020, self.image_id)
        number(0x030, self.vmpl, 4)
        number(0x034, self.signature_algo, 4)
        put(0x038, self.current_tcb)
        number(0x040, self.platform_info, 8)
        number(0x048, self.signing_key << 2 | self.flags, 4)
        put(0x050, self.report_data)
        put(0x090, self.measurement)
        put(0x0C0, self.host_data)
        put(0x0E0, self.id_key_digest)
        put(0x110, self.author_key_digest)
        put(0x140, self.report_id)
        put(0x160, self.report_id_ma)
        put(0x180, self.reported_tcb)
        if self.version >= 3:
            put(0x188, bytes(self.cpuid))
        put(0x1A0, self.chip_id)
        put(0x1E0, self.committed_tcb)
        put(0x1E8, self.current_version)
        put(0x1EC, self.committed_version)
        put(0x1F0, self.launch_tcb)
        number(0x1F8, self.launch_mit_vector, 8)
        number(0x200, self.current_mit_vector, 8)
        for at, value in self.patch.items():
            put(at, value)
        return bytes(data)
