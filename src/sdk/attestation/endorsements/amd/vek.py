"""The certificates of keys that sign reports: VCEK of a chip, VLEK of a cloud provider (CONFIDENTIAL.md §8.2).

Their serial number is 0, which `cryptography` is about to refuse (pyca/cryptography#13287). They are read by our own
reader of certificates, which does not mind, and it alone: the path that works today is the one that works then.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import Final, NamedTuple

from attestation.endorsements import der
from attestation.endorsements.amd.lines import Line, common_names
from attestation.endorsements.amd.products import Product
from attestation.endorsements.amd.tcb import TCB
from attestation.endorsements.certificate import Certificate, parse_certificate
from attestation.errors import MalformedEvidence, SignatureInvalid
from attestation.wire import der_of

MAX_VEK_BYTES: Final = 4096

_ARC: Final = "1.3.6.1.4.1.3704.1."
_STRUCT_VERSION: Final = _ARC + "1"
_PRODUCT: Final = _ARC + "2"
_HWID: Final = _ARC + "4"
_CSP_ID: Final = _ARC + "5"
_COMPONENTS: Final = {
    "bootloader": _ARC + "3.1",
    "tee": _ARC + "3.2",
    "snp": _ARC + "3.3",
    "microcode": _ARC + "3.8",
}
_FMC: Final = _ARC + "3.9"
_IA5_STRING: Final = 0x16


class VEK(NamedTuple):
    """The certificate of a signing key as read; believed only after `verify_vek`.

    Args:
        certificate: All else that it says.
        is_vlek: A cloud provider's key; else that of one chip.
        product: The line that it names.
        struct_version: 0, from Turin on 1.
        tcb: For which it was made.
        hwid: CHIP_ID, 64 or 8 bytes; None in a VLEK.
        csp_id: Whose VLEK; None in a VCEK.
    """

    certificate: Certificate
    is_vlek: bool
    product: Product
    struct_version: int
    tcb: TCB
    hwid: bytes | None
    csp_id: str | None


class VEKKey(NamedTuple):
    """What names the VCEK of a report, for caches and AMD's key distribution.

    Args:
        product: The line.
        hwid: CHIP_ID, lower-case hex, 128 or 16 characters.
        tcb: The reported TCB.
    """

    product: Product
    hwid: str
    tcb: TCB

    @property
    def path(self) -> str:
        """Where AMD's key distribution has it (KDS specification 57230 §4), with its query."""
        tcb = self.tcb
        first = f"fmcSPL={tcb.fmc:02}&" if tcb.fmc is not None else ""
        levels = (
            f"blSPL={tcb.bootloader:02}&teeSPL={tcb.tee:02}&snpSPL={tcb.snp:02}&ucodeSPL={tcb.microcode:02}"
        )
        return f"/vcek/v1/{self.product}/{self.hwid}?{first}{levels}"

    @property
    def file(self) -> str:
        """Where it lies in an export of collateral: `vcek/<product>/<hwid>/<tcb>.der`."""
        levels = "-".join(str(value) for value in self.tcb if value is not None)
        return f"vcek/{self.product}/{self.hwid}/{levels}.der"


def chain_path(product: Product, *, vlek: bool) -> str:
    """Return where AMD's key distribution has the intermediates and the root of a line, PEM."""
    return f"/{'vlek' if vlek else 'vcek'}/v1/{product}/cert_chain"


def crl_path(product: Product) -> str:
    """Return where AMD's key distribution has the list of withdrawn intermediates of a line, DER."""
    return f"/vcek/v1/{product}/crl"


@lru_cache(maxsize=4096)
def parse_vek(data: bytes) -> VEK:
    """Read the certificate of a signing key, DER or PEM, at most 4 KiB.

    Raises:
        MalformedEvidence: No certificate, not of version 3, or its extensions are not those of a VEK.
    """
    if len(data) > MAX_VEK_BYTES:
        raise MalformedEvidence(f"VEK of {len(data)} bytes, at most {MAX_VEK_BYTES} allowed")
    certificate = parse_certificate(der_of(data, "VEK", "CERTIFICATE"), max_bytes=MAX_VEK_BYTES)
    if certificate.padding_bytes:
        raise MalformedEvidence("VEK: bytes behind the certificate")
    if certificate.version != 3 or certificate.repeated_extension is not None:
        raise MalformedEvidence("VEK: not a certificate of version 3 with each extension once")
    found = {name: extension.value for name, extension in certificate.extensions.items()}
    struct_version = _integer(found, _STRUCT_VERSION)
    product = _product(found)
    levels = {name: _integer(found, oid) for name, oid in _COMPONENTS.items()}
    hwid, csp_id = found.get(_HWID), found.get(_CSP_ID)
    if (hwid is None) is (csp_id is None):
        raise MalformedEvidence("VEK: it names either a chip or a cloud provider")
    return VEK(
        certificate=certificate,
        is_vlek=csp_id is not None,
        product=product,
        struct_version=struct_version,
        tcb=TCB(fmc=_integer(found, _FMC) if product is Product.TURIN else None, **levels),
        hwid=_hwid(hwid, product) if hwid is not None else None,
        csp_id=_text(csp_id, "CSP_ID") if csp_id is not None else None,
    )


def _integer(found: Mapping[str, bytes], oid: str) -> int:
    value = found.get(oid)
    if value is None:
        raise MalformedEvidence(f"VEK: extension {oid} is missing")
    number = der.small_integer(value, der.only(value, der.INTEGER, f"VEK: extension {oid}"))
    if number > 0xFF:
        raise MalformedEvidence(f"VEK: extension {oid} is {number}, at most 255")
    return number


def _text(value: bytes, what: str) -> str:
    """Return an IA5String of printable characters; some are in an OCTET STRING less, as bare text."""
    if value[:1] == bytes([_IA5_STRING]):
        found = der.only(value, _IA5_STRING, f"VEK: {what}")
        value = value[found.start : found.stop]
    text = value.decode("ascii", "replace")
    if not text.isprintable() or not text.isascii() or not text:
        raise MalformedEvidence(f"VEK: {what} is no text")
    return text


def _product(found: Mapping[str, bytes]) -> Product:
    """Return the line of `Milan-B0`, `Genoa`, `Turin`: what stands before the stepping."""
    if _PRODUCT not in found:
        raise MalformedEvidence(f"VEK: extension {_PRODUCT} is missing")
    name = _text(found[_PRODUCT], "product")
    try:
        return Product(name.partition("-")[0])
    except ValueError as e:
        raise MalformedEvidence(f"VEK: unknown product {name[:32]}") from e


def _hwid(value: bytes, product: Product) -> bytes:
    """Return CHIP_ID, which stands raw or in an OCTET STRING: the length tells, for the first byte may be any."""
    size = product.hwid_bytes
    if len(value) == size + 2:
        found = der.only(value, der.OCTET_STRING, "VEK: HWID")
        value = value[found.start : found.stop]
    if len(value) != size:
        raise MalformedEvidence(f"VEK: HWID of {len(value)} bytes, {size} expected")
    return value


def verify_vek(vek: VEK, line: Line, at: datetime) -> str | None:
    """Return why *vek* is not vouched for by the pinned certificates of its line at *at*, or None.

    Names, key, validity of the three and both signatures. Whether it is that of a report is for whoever has one.
    """
    issuer = line.asvk if vek.is_vlek else line.ask
    certificate = vek.certificate
    name = "SEV-VLEK" if vek.is_vlek else "SEV-VCEK"
    if certificate.issuer_key != issuer.subject_key:
        return f"issued by {certificate.issuer}, not by the pinned {issuer.subject}"
    if common_names(certificate) != [name]:
        return f"its subject is {certificate.subject}, not {name}"
    if certificate.is_ca or certificate.critical_unknown is not None:
        return "it is a CA, or has a critical extension that is not known"
    for each in (certificate, issuer, line.ark):
        if not each.not_before <= at <= each.not_after:
            return f"{each.subject} is valid from {each.not_before:%Y-%m-%d} to {each.not_after:%Y-%m-%d}"
    if certificate.key != "ec-secp384r1":
        return f"its key is {certificate.key}, not one on P-384"
    return _signed(certificate, issuer, line.ark)


@lru_cache(maxsize=4096)
def _signed(certificate: Certificate, issuer: Certificate, root: Certificate) -> str | None:
    """Return why the bytes of a path do not hold together; a function of the bytes, so asked once."""
    try:
        certificate.verify_issued_by(issuer)
        issuer.verify_issued_by(root)
    except SignatureInvalid as e:
        return str(e)
    return None
