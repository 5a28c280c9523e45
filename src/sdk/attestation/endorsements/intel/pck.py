"""Certificates of Intel's provisioning (CONFIDENTIAL.md §9.1): the platform's own, PCK, and what signs collateral.

Intel writes what a platform is into an extension of the PCK certificate. A chain ends in the pinned root: what comes
with it is a candidate for the place in between, and a root in it is passed over.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Final

from attestation.endorsements import der
from attestation.endorsements.certificate import Certificate, parse_certificate
from attestation.endorsements.chain import link_refusal
from attestation.endorsements.intel.refusal import Refused
from attestation.errors import MalformedEvidence
from attestation.results.codes import Code
from attestation.wire import pem_blocks

MAX_CHAIN_BYTES: Final = 16384
MAX_CHAIN_CERTIFICATES: Final = 4
COMPONENTS: Final = 16
TCB_SIGNING: Final = "Intel SGX TCB Signing"
_CA: Final = {"Intel SGX PCK Processor CA": "processor", "Intel SGX PCK Platform CA": "platform"}
_EXTENSION: Final = "1.2.840.113741.1.13.1"
_COMMON_NAME: Final = "2.5.4.3"


@dataclass(frozen=True, slots=True, kw_only=True)
class Platform:
    """The extension 1.2.840.113741.1.13.1 of a PCK certificate.

    Args:
        ppid: Who the platform is, 16 bytes.
        components: The SVN of each of the 16 components, 0-255, as of the certificate.
        pce_svn: u16.
        cpu_svn: 16 bytes, opaque.
        pce_id: 2 bytes.
        fmspc: Family, model, stepping, platform type: 6 bytes; TCB info is per FMSPC.
        sgx_type: 0 standard, 1 scalable, 2 scalable with integrity.
        dynamic_platform, cached_keys, smt: As configured; None where the certificate does not say.
    """

    ppid: bytes
    components: tuple[int, ...]
    pce_svn: int
    cpu_svn: bytes
    pce_id: bytes
    fmspc: bytes
    sgx_type: int
    dynamic_platform: bool | None = None
    cached_keys: bool | None = None
    smt: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """A chain whose signatures hold, whatever the time.

    Args:
        leaf: The certificate at its end.
        issuer: Who signed it: the certificate in between, or the root.
        not_before, not_after: When all of its certificates are valid, UTC.
    """

    leaf: Certificate
    issuer: Certificate
    not_before: datetime
    not_after: datetime

    def check_time(self, at: datetime) -> None:
        """Check that every certificate is valid at the instant *at*.

        Raises:
            Refused: CHAIN_INVALID.
        """
        if not self.not_before <= at <= self.not_after:
            words = f"valid from {self.not_before:%Y-%m-%d} to {self.not_after:%Y-%m-%d}"
            raise Refused(Code.CHAIN_INVALID, f"{self.leaf.subject}: its chain is {words}")


def parse_chain(data: bytes) -> tuple[Certificate, ...]:
    """Read a chain of PEM, the leaf first; NULs may end it.

    Raises:
        MalformedEvidence: The only way to fail; longer than 16 KiB, or not one to four certificates.
    """
    if len(data) > MAX_CHAIN_BYTES:
        raise MalformedEvidence(f"certificate chain of {len(data)} bytes, at most {MAX_CHAIN_BYTES} allowed")
    blocks = pem_blocks(data.rstrip(b"\0"), "certificate chain")
    if not 1 <= len(blocks) <= MAX_CHAIN_CERTIFICATES or any(label != "CERTIFICATE" for label, _ in blocks):
        raise MalformedEvidence(f"certificate chain: not one to {MAX_CHAIN_CERTIFICATES} certificates")
    return tuple(parse_certificate(content) for _, content in blocks)


@lru_cache(maxsize=1024)
def verify_chain(data: bytes, root: Certificate, *, ca: bool = False) -> Chain:
    """Verify that a chain of PEM ends in *root*: signatures, names and CA flags; its time is looked at apart.

    Remembered, since a platform shows the same one every time; what fails is not.

    Args:
        data: PEM, the leaf first.
        root: The pinned root.
        ca: The leaf is a CA, as in the chain of a revocation list.

    Raises:
        Refused: CHAIN_INVALID.
    """
    try:
        certificates = parse_chain(data)
    except MalformedEvidence as e:
        raise Refused(Code.CHAIN_INVALID, str(e)) from e
    # Whoever shows a root cannot choose it: the pinned one ends the chain in any case.
    shown = [each for each in certificates if not each.self_issued]
    if not shown:
        raise Refused(Code.CHAIN_INVALID, "no certificate but roots")
    path = [*shown, root]
    for depth, (below, above) in enumerate(itertools.pairwise(path)):
        refusal = link_refusal(below, above, depth)
        if refusal is not None:
            raise Refused(Code.CHAIN_INVALID, f"{below.subject}: {refusal}")
    if shown[0].is_ca is not ca:
        raise Refused(
            Code.CHAIN_INVALID, f"{shown[0].subject}: a CA where a leaf should be, or a leaf for a CA"
        )
    return Chain(
        leaf=shown[0],
        issuer=path[1],
        not_before=max(each.not_before for each in path),
        not_after=min(each.not_after for each in path),
    )


def common_name(certificate: Certificate) -> str:
    """Return the common name of a subject; empty where it has not exactly one."""
    found = [each.text for each in certificate.subject_name.attributes if each.oid == _COMMON_NAME]
    return found[0] if len(found) == 1 else ""


def pck_ca(certificate: Certificate) -> str:
    """Return which of Intel's CAs a PCK certificate's issuer is: `processor` or `platform`.

    Raises:
        Refused: CHAIN_INVALID; neither.
    """
    ca = _CA.get(common_name(certificate))
    if ca is None:
        raise Refused(Code.CHAIN_INVALID, f"{certificate.subject}: not a CA of platforms")
    return ca


def platform_of(certificate: Certificate) -> Platform:
    """Read what a PCK certificate says of its platform.

    Raises:
        MalformedEvidence: Without the extension, or it cannot be read.
    """
    extension = certificate.extensions.get(_EXTENSION)
    if extension is None:
        raise MalformedEvidence("PCK certificate: the extension of Intel is missing")
    return parse_platform(extension.value)


@lru_cache(maxsize=1024)
def parse_platform(data: bytes) -> Platform:
    """Read the extension: a SEQUENCE of SEQUENCE { OID, value }, DER.

    Raises:
        MalformedEvidence: The only way to fail.
    """
    members = _members(data, der.only(data, der.SEQUENCE, "PCK extension"), _EXTENSION)
    tcb = _members(data, _value(members, 2, der.SEQUENCE), f"{_EXTENSION}.2")
    configuration: dict[int, der.Element] = {}
    if 7 in members:
        configuration = _members(data, _value(members, 7, der.SEQUENCE), f"{_EXTENSION}.7")
    components = tuple(_number(data, _value(tcb, i, der.INTEGER), 0xFF) for i in range(1, COMPONENTS + 1))
    return Platform(
        ppid=_octets(data, members, 1, 16),
        components=components,
        pce_svn=_number(data, _value(tcb, 17, der.INTEGER), 0xFFFF),
        cpu_svn=_octets(data, tcb, 18, 16),
        pce_id=_octets(data, members, 3, 2),
        fmspc=_octets(data, members, 4, 6),
        sgx_type=_number(data, _value(members, 5, der.ENUMERATED), 0xFF),
        dynamic_platform=_flag(data, configuration, 1),
        cached_keys=_flag(data, configuration, 2),
        smt=_flag(data, configuration, 3),
    )


def _members(data: bytes, outer: der.Element, prefix: str) -> dict[int, der.Element]:
    """Return the last arc of each OID below *prefix* -> its value."""
    found: dict[int, der.Element] = {}
    for pair in der.elements(data, outer.start, outer.stop):
        name = der.element(data, pair.start, pair.stop)
        value = der.element(data, name.stop, pair.stop)
        above, _, arc = der.oid(data, name).rpartition(".")
        if pair.tag != der.SEQUENCE or value.stop != pair.stop or above != prefix or int(arc) in found:
            raise MalformedEvidence("PCK extension: a member cannot be read, or stands twice")
        found[int(arc)] = value
    return found


def _value(members: dict[int, der.Element], arc: int, tag: int) -> der.Element:
    found = members.get(arc)
    if found is None or found.tag != tag:
        raise MalformedEvidence(f"PCK extension: member {arc} is missing, or of another type")
    return found


def _octets(data: bytes, members: dict[int, der.Element], arc: int, size: int) -> bytes:
    found = _value(members, arc, der.OCTET_STRING)
    if found.stop - found.start != size:
        raise MalformedEvidence(f"PCK extension: member {arc} has not {size} bytes")
    return data[found.start : found.stop]


def _number(data: bytes, found: der.Element, most: int) -> int:
    value = der.small_integer(data, found)
    if value > most:
        raise MalformedEvidence(f"PCK extension: {value}, at most {most} expected")
    return value


def _flag(data: bytes, members: dict[int, der.Element], arc: int) -> bool | None:
    if arc not in members:
        return None
    found = _value(members, arc, der.BOOLEAN)
    return any(data[found.start : found.stop])
