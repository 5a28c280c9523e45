"""Who a node is: by its activated AK, or by what the certificate of its attestation key says (HSM-AND-KUBERNETES §20).

An extractor reads one layout, and is chosen by the operator together with the anchors whose word counts for it. The
layout is never guessed: two of them have the same types in the same order, and mean different things.

    machine                the machine behind the activated AK; no certificate is read
    gce-instance-2018      1.3.6.1.4.1.11129.2.1.21: zone, instance, its name, project number, project
    gce-instance           the same OID: zone, project number, project, instance, its name, security properties
    hardware-module        SAN otherName 1.3.6.1.5.5.7.8.4, hwType 2.23.133.1.2: IAK and IDevID (RFC 4108, 5)
    permanent-identifier   SAN otherName 1.3.6.1.5.5.7.8.3 (RFC 4043)

What a node says of itself is compared with this (`differing`), and never believed. The directory name of a SAN
(2.23.133.2.1-3) names a model of TPM, which thousands of machines share: no extractor reads it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Protocol

from attestation.endorsements import der
from attestation.endorsements.ak_certificate import AKCertificateClaims
from attestation.errors import MalformedEvidence, NodeIdentityRejected

ABSENT: Final = "node-identity-absent"
LAYOUT: Final = "node-identity-layout"
VALUE: Final = "node-identity-value"

_GCE_INSTANCE: Final = "1.3.6.1.4.1.11129.2.1.21"
_HARDWARE_MODULE: Final = "1.3.6.1.5.5.7.8.4"
_PERMANENT_IDENTIFIER: Final = "1.3.6.1.5.5.7.8.3"
_TPM_HARDWARE: Final = "2.23.133.1.2"
_UTF8: Final = 0x0C
_MAX_U64: Final = (1 << 64) - 1
_MAX_SERIAL_BYTES: Final = 128
_LABEL: Final = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?\Z")
_PROJECT: Final = re.compile(r"([a-z0-9][-a-z0-9.]{0,61}[a-z0-9]:)?[a-z][-a-z0-9]{4,28}[a-z0-9]\Z")
_TEXT: Final = re.compile(r"[A-Za-z0-9._:/+=@ -]{1,128}\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentitySource:
    """What is known of the sender of a request when its identity is asked for; all of it verified before.

    Args:
        machine_id: The machine behind the activated AK that signed; None where no such AK did.
        hostname: The host name that operators gave that machine; None where there is none.
        certificate: Of the attestation key that signed, with a path to the anchors of the extractor; None where the
            extractor reads none, or none came.
    """

    machine_id: str | None
    hostname: str | None
    certificate: AKCertificateClaims | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeIdentity:
    """Who a node is, by the word of somebody whom the operator believes.

    Args:
        extractor: Which extractor says so.
        value: Names one node among all that this extractor may name, e.g. `gce/4711/europe-west1-b/1234`.
        node_name: The name of the node that the source itself states; None where it states none.
        facts: What can be compared with what a node says of itself; by the names that nodes use.
        machine_id: As `IdentitySource`.
        hostname: As `IdentitySource`.
    """

    extractor: str
    value: str
    node_name: str | None
    facts: Mapping[str, str] = field(default_factory=dict)
    machine_id: str | None = None
    hostname: str | None = None


class IdentityExtractor(Protocol):
    """Reads who a node is. Pure: no file, no network, no clock; what it does not raise is believed."""

    @property
    def name(self) -> str:
        """By which operators choose it; of lower-case letters, digits and `-`."""
        ...

    @property
    def certified(self) -> bool:
        """It reads the certificate of the attestation key, so anchors must be configured for it."""
        ...

    def extract(self, source: IdentitySource) -> NodeIdentity:
        """Return who the node is.

        Raises:
            NodeIdentityRejected: The source names none, or not in this extractor's layout.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The machine behind the activated AK, called as operators call it."""

    name: str = "machine"
    certified: bool = False

    def extract(self, source: IdentitySource) -> NodeIdentity:
        """Return the machine of the AK that signed."""
        if source.machine_id is None:
            raise NodeIdentityRejected("no activated AK signed", check=ABSENT)
        return NodeIdentity(
            extractor=self.name,
            value=f"machine/{source.machine_id}",
            node_name=source.hostname,
            machine_id=source.machine_id,
            hostname=source.hostname,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Certified:
    """What one layout of certificates says.

    Args:
        name: Of the extractor.
        read: Returns value, node name and facts; raises `MalformedEvidence` for another layout.
    """

    name: str
    read: Callable[[AKCertificateClaims], tuple[str, str | None, Mapping[str, str]]]
    certified: bool = True

    def extract(self, source: IdentitySource) -> NodeIdentity:
        """Return whom the certificate names."""
        if source.certificate is None:
            raise NodeIdentityRejected("no certificate of the attestation key came", check=ABSENT)
        try:
            value, node_name, facts = self.read(source.certificate)
        except MalformedEvidence as e:
            raise NodeIdentityRejected(f"{self.name}: {e}", check=LAYOUT) from e
        return NodeIdentity(
            extractor=self.name,
            value=value,
            node_name=node_name,
            facts=MappingProxyType(dict(facts)),
            machine_id=source.machine_id,
            hostname=source.hostname,
        )


def differing(identity: NodeIdentity, declared: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of what a node says of itself otherwise than *identity* knows it; values are not told.

    Args:
        identity: From an extractor.
        declared: What the node says, each as text; a name that *identity* does not know differs.
    """
    return tuple(sorted(name for name, value in declared.items() if identity.facts.get(name) != value))


# ---------------------------------------------------------------- Google Compute Engine


def _gce_2018(claims: AKCertificateClaims) -> tuple[str, str | None, Mapping[str, str]]:
    """Read SEQUENCE { zone UTF8String, id INTEGER, name UTF8String, projectID INTEGER, projectName UTF8String }."""
    data, at, end = _gce_extension(claims)
    zone, at = _utf8(data, at, end)
    instance, at = _u64(data, at, end)
    name, at = _utf8(data, at, end)
    number, at = _u64(data, at, end)
    project, at = _utf8(data, at, end)
    if at != end:
        raise MalformedEvidence("more than five members")
    return _gce(zone=zone, number=number, project=project, instance=instance, name=name)


def _gce_now(claims: AKCertificateClaims) -> tuple[str, str | None, Mapping[str, str]]:
    """Read SEQUENCE { zone, projectNumber INTEGER, projectID, instanceID INTEGER, instanceName, [0] properties }.

    An instance that is not said to be in production proves nothing: whoever makes test certificates names it as he
    likes. So the properties must stand there, and say so.
    """
    data, at, end = _gce_extension(claims)
    zone, at = _utf8(data, at, end)
    number, at = _u64(data, at, end)
    project, at = _utf8(data, at, end)
    instance, at = _u64(data, at, end)
    name, at = _utf8(data, at, end)
    if at == end or not _in_production(data, at, end):
        raise NodeIdentityRejected("the instance is not said to be in production", check=VALUE)
    return _gce(zone=zone, number=number, project=project, instance=instance, name=name)


def _gce_extension(claims: AKCertificateClaims) -> tuple[bytes, int, int]:
    extension = claims.certificate.extensions.get(_GCE_INSTANCE)
    if extension is None:
        raise NodeIdentityRejected(f"the certificate has no extension {_GCE_INSTANCE}", check=ABSENT)
    outer = der.only(extension.value, der.SEQUENCE, "instance")
    return extension.value, outer.start, outer.stop


def _in_production(data: bytes, at: int, end: int) -> bool:
    """Read [0] { SEQUENCE { [0] securityVersion INTEGER, [1] isProduction, [2] … [3] … BOOLEAN } }, all optional."""
    tagged = der.expect(data, at, end, 0xA0, "security properties")
    inner = der.expect(data, tagged.start, tagged.stop, der.SEQUENCE, "security properties")
    if tagged.stop != end or inner.stop != tagged.stop:
        raise MalformedEvidence("security properties: trailing bytes")
    production, last = False, 0x9F
    for each in der.elements(data, inner.start, inner.stop):
        if not last < each.tag <= 0xA3:
            raise MalformedEvidence("security properties: unknown, or out of order")
        last = each.tag
        if each.tag == 0xA0:
            _, stop = _u64(data, each.start, each.stop)
        else:
            value = der.expect(data, each.start, each.stop, der.BOOLEAN, "security properties")
            stop, content = value.stop, data[value.start : value.stop]
            if content not in (b"\x00", b"\xff"):
                raise MalformedEvidence("security properties: neither true nor false")
            production = production or (each.tag == 0xA1 and content == b"\xff")
        if stop != each.stop:
            raise MalformedEvidence("security properties: trailing bytes")
    return production


def _gce(
    *, zone: str, number: int, project: str, instance: int, name: str
) -> tuple[str, str | None, Mapping[str, str]]:
    # Names that the provider gives look like this. Others could look like another one, or lead out of a path.
    if not _LABEL.match(zone) or not _LABEL.match(name) or not _PROJECT.match(project):
        raise NodeIdentityRejected("zone, project or name is none that the provider gives", check=VALUE)
    facts = {
        "zone": zone,
        "id": str(instance),
        "name": name,
        "project_id": str(number),
        "project_name": project,
    }
    return f"gce/{number}/{zone}/{instance}", name, facts


# ---------------------------------------------------------------- otherNames


def _hardware_module(claims: AKCertificateClaims) -> tuple[str, str | None, Mapping[str, str]]:
    """Read HardwareModuleName ::= SEQUENCE { hwType OBJECT IDENTIFIER, hwSerialNum OCTET STRING } (RFC 4108, 5)."""
    value = _other_name(claims, _HARDWARE_MODULE)
    outer = der.only(value, der.SEQUENCE, "HardwareModuleName")
    kind = der.element(value, outer.start, outer.stop)
    serial = der.expect(value, kind.stop, outer.stop, der.OCTET_STRING, "hwSerialNum")
    if serial.stop != outer.stop:
        raise MalformedEvidence("HardwareModuleName: trailing bytes")
    hardware = der.oid(value, kind)
    if hardware != _TPM_HARDWARE:
        raise NodeIdentityRejected(f"hwType {hardware} is no TPM; {_TPM_HARDWARE} expected", check=VALUE)
    number = value[serial.start : serial.stop]
    # All zeros is what a part has that nobody numbered: it would be the identity of all of them.
    if not number.strip(b"\0") or len(number) > _MAX_SERIAL_BYTES:
        raise NodeIdentityRejected("hwSerialNum is empty, zero or too long", check=VALUE)
    return f"hardware-module/{hardware}/{number.hex()}", None, {"hardware_serial": number.hex()}


def _permanent(claims: AKCertificateClaims) -> tuple[str, str | None, Mapping[str, str]]:
    """Read PermanentIdentifier ::= SEQUENCE { identifierValue UTF8String, assigner OID }, both OPTIONAL (RFC 4043, 2).

    Where the value is absent, the subject would stand for it: refused, since no form of it is agreed upon. Where the
    assigner is absent, the value is unique to who issued: the anchor stands for that.
    """
    value = _other_name(claims, _PERMANENT_IDENTIFIER)
    outer = der.only(value, der.SEQUENCE, "PermanentIdentifier")
    text, at = _utf8(value, outer.start, outer.stop)
    if at == outer.stop:
        assigner = f"ca-{claims.validation.anchor_sha256}"
    else:
        kind = der.element(value, at, outer.stop)
        if kind.stop != outer.stop:
            raise MalformedEvidence("PermanentIdentifier: trailing bytes")
        assigner = der.oid(value, kind)
    if not _TEXT.match(text):
        raise NodeIdentityRejected("identifierValue is empty, too long, or of other characters", check=VALUE)
    return f"permanent-identifier/{assigner}/{text}", None, {"permanent_identifier": text}


def _other_name(claims: AKCertificateClaims, oid: str) -> bytes:
    found = [each.value for each in claims.other_names if each.oid == oid]
    if not found:
        raise NodeIdentityRejected(f"the certificate has no otherName {oid}", check=ABSENT)
    if len(found) > 1:
        # Two readers could each take another one of them.
        raise NodeIdentityRejected(f"the certificate has {len(found)} otherNames {oid}", check=LAYOUT)
    return found[0]


# ---------------------------------------------------------------- exact DER


def _utf8(data: bytes, at: int, end: int) -> tuple[str, int]:
    found = der.expect(data, at, end, _UTF8, "UTF8String")
    try:
        return data[found.start : found.stop].decode("utf-8"), found.stop
    except UnicodeDecodeError as e:
        raise MalformedEvidence("UTF8String: not UTF-8") from e


def _u64(data: bytes, at: int, end: int) -> tuple[int, int]:
    found = der.expect(data, at, end, der.INTEGER, "INTEGER")
    value = der.integer(data, found)
    if not 0 <= value <= _MAX_U64 or found.stop - found.start != value.bit_length() // 8 + 1:
        raise MalformedEvidence("INTEGER: negative, too large, or longer than needed")
    return value, found.stop


MACHINE: Final = Machine()
GCE_INSTANCE_2018: Final = Certified(name="gce-instance-2018", read=_gce_2018)
GCE_INSTANCE: Final = Certified(name="gce-instance", read=_gce_now)
HARDWARE_MODULE: Final = Certified(name="hardware-module", read=_hardware_module)
PERMANENT_IDENTIFIER: Final = Certified(name="permanent-identifier", read=_permanent)

SHIPPED: Final[Mapping[str, IdentityExtractor]] = MappingProxyType(
    {
        each.name: each
        for each in (MACHINE, GCE_INSTANCE_2018, GCE_INSTANCE, HARDWARE_MODULE, PERMANENT_IDENTIFIER)
    }
)
"""The extractors of this project, by name. Others are found by entry point (docs/extend/node-identity.md)."""
