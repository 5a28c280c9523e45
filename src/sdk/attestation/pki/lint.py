"""The linter that stands before the CA key: a certificate is signed only if every rule here holds (HSM §7.4).

It reads the DER with our own reader (`attestation.endorsements`) and writes what should stand there with our own
writer, so a fault in the library that made the certificate is seen. Two questions are asked of every certificate:

- Does it say what its content says, byte for byte? (the rules named `…-same`, and one for each extension)
- May a certificate of this profile say that, under this issuer? (all others)

Each rule has a name, one sentence, and a test with a certificate that breaks it alone. What no rule knows is refused:
an extension of another kind, another order of things, another encoding.
"""

# Algorithms for: ca-key
# Longer than 500 lines: a table of rules, one after the other.
from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property, lru_cache
from types import MappingProxyType
from typing import Final

from attestation.endorsements import der
from attestation.endorsements.certificate import (
    AUTHORITY_INFORMATION_ACCESS,
    AUTHORITY_KEY_IDENTIFIER,
    BASIC_CONSTRAINTS,
    CERTIFICATE_POLICIES,
    CRL_DISTRIBUTION_POINTS,
    EXTENDED_KEY_USAGE,
    KEY_USAGE,
    KEY_USAGES,
    NAME_CONSTRAINTS,
    SUBJECT_ALT_NAME,
    SUBJECT_KEY_IDENTIFIER,
    Certificate,
    parse_certificate,
    read_extension,
)
from attestation.errors import CSRInvalid, MalformedEvidence
from attestation.pki.content import CertificateContent, key_identifier
from attestation.pki.leaf_names import HOST
from attestation.pki.name_limits import IPNetwork
from attestation.pki.names import KUBERNETES_PREFIX, NODE_USER, NODES_GROUP, Purpose, purpose_of
from attestation.pki.profiles import (
    ACCESS_CA_ISSUERS,
    ACCESS_OCSP,
    BACKDATE,
    COMMON_NAME,
    COUNTRY,
    EK_URI,
    KEY_TIERS,
    MAX_ASSURANCE,
    NO_REV_AVAIL,
    OCSP_NO_CHECK,
    ORGANIZATION,
    SHORT_LIVED,
    UNIT,
    Alternative,
    Pointer,
    Profile,
)
from attestation.pki.signature import load_spki

MAX_CERTIFICATE_BYTES: Final = 16384
"""Longest certificate of ours: key and signature of ML-DSA-87 alone have 7,219."""

_TBS_TAGS: Final = (0xA0, der.INTEGER, *[der.SEQUENCE] * 5, 0xA3)
_EMAIL, _DNS, _URI, _IP = 0x81, 0x82, 0x86, 0x87
_UTF8, _PRINTABLE = 0x0C, 0x13
_MIN_SERIAL, _END_OF_SERIALS = 1 << 152, 1 << 159

_ALTERNATIVES: Final[Mapping[int, Alternative]] = {
    _DNS: Alternative.DNS,
    _URI: Alternative.URI,
    _IP: Alternative.IP,
}
_POINTERS: Final[Mapping[str, Pointer]] = {ACCESS_OCSP: Pointer.OCSP, ACCESS_CA_ISSUERS: Pointer.CA}
_ALGORITHMS: Final[Mapping[str, str]] = {
    # Key of the issuer: how it signs, AlgorithmIdentifier (RFC 5758, 3.2; RFC 4055, 5; RFC 9881, 2).
    "ecdsa-p256": "300a06082a8648ce3d040302",
    "ecdsa-p384": "300a06082a8648ce3d040303",
    "rsa-4096": "300d06092a864886f70d01010c0500",
    "ml-dsa-87": "300b0609608648016503040313",
}
_NOT_OURS: Final = frozenset({"ecdsa-p256"})
"""Of a TPM that has no P-384, and of nobody's CA but its own."""
_EK_URI: Final = re.compile(re.escape(EK_URI) + r"[0-9a-f]{96}")
_HOST: Final = re.compile(
    r"(?=.{1,253}\Z)[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*"
)
_ADDRESS: Final = re.compile(r"https?://[!-~]{1,500}")


@dataclass(frozen=True, kw_only=True)
class _Issuer:
    """Whose key will sign.

    Args:
        certificate: Of the CA key.
        name: Its subject, DER.
    """

    certificate: Certificate
    name: bytes

    @cached_property
    def algorithm(self) -> str:
        """Kind of its key, like `ecdsa-p384`.

        Raises:
            CSRInvalid: None that anybody certifies.
        """
        return load_spki(self.certificate.spki)[1]


@lru_cache(maxsize=16)
def _read_issuer(certificate: bytes) -> _Issuer:
    """Read the certificate of a CA key: there are few, and each stands behind very many others."""
    found = parse_certificate(certificate, max_bytes=MAX_CERTIFICATE_BYTES)
    return _Issuer(certificate=found, name=_parts(found)[5])


@dataclass(frozen=True, kw_only=True)
class _Case:
    """A certificate before its judges.

    Args:
        certificate: As read.
        parts: The eight parts of its signed part, DER, headers included.
        content: What it should say.
        profile: What certificates of its kind say.
        issuer: Whose key will sign; the certificate's own where no other was given.
        has_issuer: One was given.
        issuer_purpose: What the issuer is for, where its name does not say.
    """

    certificate: Certificate
    parts: tuple[bytes, ...]
    content: CertificateContent
    profile: Profile
    issuer: _Issuer
    has_issuer: bool
    issuer_purpose: Purpose | None

    @property
    def issuer_name(self) -> bytes:
        return self.parts[3]

    @property
    def subject_name(self) -> bytes:
        return self.parts[5]

    @property
    def key(self) -> bytes:
        return self.parts[6]

    @cached_property
    def alternatives(self) -> tuple[tuple[int, bytes], ...]:
        """Tag and content of every alternative name."""
        extension = self.certificate.extensions.get(SUBJECT_ALT_NAME)
        if extension is None:
            return ()
        value = extension.value
        outer = der.only(value, der.SEQUENCE, "SubjectAltName")
        return tuple((e.tag, value[e.start : e.stop]) for e in der.elements(value, outer.start, outer.stop))

    @cached_property
    def policies(self) -> tuple[str, ...]:
        """OIDs of its policies."""
        extension = self.certificate.extensions.get(CERTIFICATE_POLICIES)
        if extension is None:
            return ()
        value = extension.value
        outer = der.only(value, der.SEQUENCE, "CertificatePolicies")
        return tuple(
            der.oid(value, der.element(value, policy.start, policy.stop))
            for policy in der.elements(value, outer.start, outer.stop)
        )

    @cached_property
    def addresses(self) -> tuple[tuple[Pointer | None, str], ...]:
        """Every address that it points to, and for what; None for what we do not know."""
        found: list[tuple[Pointer | None, str]] = []
        extension = self.certificate.extensions.get(CRL_DISTRIBUTION_POINTS)
        if extension is not None:
            found += [(Pointer.CRL, uri) for uri in _uris(extension.value)]
        extension = self.certificate.extensions.get(AUTHORITY_INFORMATION_ACCESS)
        if extension is not None:
            value = extension.value
            outer = der.only(value, der.SEQUENCE, "AuthorityInfoAccess")
            for access in der.elements(value, outer.start, outer.stop):
                method = der.element(value, access.start, access.stop)
                place = der.element(value, method.stop, access.stop)
                text = value[place.start : place.stop].decode("latin-1")
                found.append((_POINTERS.get(der.oid(value, method)), text))
        return tuple(found)


def _uris(value: bytes) -> list[str]:
    """Return what stands in CRLDistributionPoints of one full name each: SEQUENCE { [0] { [0] { names } } }."""
    found = []
    outer = der.only(value, der.SEQUENCE, "CRLDistributionPoints")
    for point in der.elements(value, outer.start, outer.stop):
        name = der.expect(value, point.start, point.stop, 0xA0, "CRLDistributionPoints")
        full = der.expect(value, name.start, name.stop, 0xA0, "CRLDistributionPoints")
        found += [
            value[e.start : e.stop].decode("latin-1") for e in der.elements(value, full.start, full.stop)
        ]
    return found


# ---------------------------------------------------------------- the whole


def _encoding(case: _Case) -> str | None:
    """Say whether the signed part, written anew from what was read, is what was read."""
    found = case.certificate
    if found.padding_bytes:
        return f"{found.padding_bytes} bytes behind the certificate"
    validity = der.write(der.SEQUENCE, _time(found.not_before) + _time(found.not_after))
    listed = case.parts[7]
    outer = der.element(listed, der.element(listed, 0, len(listed)).start, len(listed))
    extensions = b""
    for one in der.elements(listed, outer.start, outer.stop):
        oid, extension = read_extension(listed, one)
        critical = der.write(der.BOOLEAN, b"\xff") if extension.critical else b""
        value = der.write(der.OCTET_STRING, extension.value)
        extensions += der.write(der.SEQUENCE, der.write_oid(oid) + critical + value)
    anew = (
        der.write(0xA0, der.write_unsigned(2)),
        der.write_unsigned(max(found.serial, 0)),
        case.parts[2],
        case.issuer_name,
        validity,
        case.subject_name,
        case.key,
        der.write(0xA3, der.write(der.SEQUENCE, extensions)),
    )
    different = [i for i, part in enumerate(anew) if part != case.parts[i]]
    return f"part {different[0] + 1} of the signed part is not in its one form" if different else None


def _time(at: datetime) -> bytes:
    """Write an instant as RFC 5280, 4.1.2.5 wants it: two digits of the year until 2049, four from 2050 on."""
    text = at.astimezone(UTC).strftime("%Y%m%d%H%M%SZ").encode("ascii").rjust(15, b"0")
    return (
        der.write(der.UTC_TIME, text[2:]) if 1950 <= at.year < 2050 else der.write(der.GENERALIZED_TIME, text)
    )


def _algorithm_same(case: _Case) -> str | None:
    found = case.certificate
    return (
        None if found.algorithm == found.inner_algorithm else "another one behind the signed part than inside"
    )


def _algorithm_fits(case: _Case) -> str | None:
    # The issuer was read by a lenient reader: of a key that we do not certify nothing is signed either.
    try:
        kind = case.issuer.algorithm
    except CSRInvalid as e:
        return str(e)
    fits = case.parts[2].hex() == _ALGORITHMS.get(kind) and (case.profile.is_foreign or kind not in _NOT_OURS)
    return None if fits else f"not what a CA key of {kind} signs with, if there may be one"


# ---------------------------------------------------------------- serial number, names, validity, key


def _serial_size(case: _Case) -> str | None:
    if _MIN_SERIAL <= case.certificate.serial < _END_OF_SERIALS:
        return None
    return "not 20 bytes, the first of them from 01 to 7f"


def _serial_same(case: _Case) -> str | None:
    return _same(case.certificate.serial, case.content.serial)


def _issuer_same(case: _Case) -> str | None:
    return _same(case.issuer_name, case.content.issuer_subject.public_bytes())


def _issuer_subject(case: _Case) -> str | None:
    return _same(case.issuer_name, case.issuer.name)


def _issuer_given(case: _Case) -> str | None:
    if case.has_issuer == case.profile.self_signed:
        return "signed by itself, or not, other than its profile says"
    return None


def _issuer_other(case: _Case) -> str | None:
    itself = case.issuer_name == case.subject_name
    return (
        None
        if itself == case.profile.self_signed
        else "issued by itself, or not, other than its profile says"
    )


def _subject_same(case: _Case) -> str | None:
    return _same(case.subject_name, case.content.subject.public_bytes())


def _subject_form(case: _Case) -> str | None:
    if case.profile.is_foreign:
        return None  # which attributes it has was judged with the request (`leaf_names`)
    name = case.certificate.subject_name
    found = tuple(a.oid for a in name.attributes)
    if found != case.profile.subject or any(len(relative) != 1 for relative in name.relative):
        return (
            f"attributes {', '.join(found) or 'none'}; {', '.join(case.profile.subject)} expected, each alone"
        )
    raw = case.subject_name
    for i, relative in enumerate(der.elements(raw, der.element(raw, 0, len(raw)).start, len(raw))):
        pair = der.element(raw, relative.start, relative.stop)
        value = der.element(raw, der.element(raw, pair.start, pair.stop).stop, pair.stop)
        attribute = name.attributes[i]
        country = attribute.oid == COUNTRY
        if value.tag != (_PRINTABLE if country else _UTF8):
            return f"attribute {attribute.oid}: string of type 0x{value.tag:02x}"
        if not re.fullmatch(r"[A-Z]{2}" if country else r"(?s).{1,64}", attribute.text):
            return f"attribute {attribute.oid}: {len(attribute.text)} characters, or of the wrong kind"
        if attribute.text != attribute.text.strip() or not attribute.text.isprintable():
            return f"attribute {attribute.oid}: white space at its ends, or a character that does not print"
    return None


def _subject_unit(case: _Case) -> str | None:
    found = [a.text for a in case.certificate.subject_name.attributes if a.oid == UNIT]
    if not case.profile.units:
        return None  # then subject-form lets no OU through
    foreign = [text for text in found if text not in case.profile.units]
    return f"OU {foreign[0]!r} is none that profile {case.profile.name} has" if foreign else None


def _subject_kubernetes(case: _Case) -> str | None:
    """Say whether an API server would take the holder for what they are, and nobody else for a part of the cluster."""
    attributes = case.certificate.subject_name.attributes
    if case.profile.is_node:
        texts = {a.oid: a.text for a in attributes}  # subject-form lets none stand twice
        host = texts.get(COMMON_NAME, "").removeprefix(NODE_USER)
        named = texts.get(COMMON_NAME, "") == NODE_USER + host and _HOST.fullmatch(host)
        fits = named and texts.get(ORGANIZATION) == NODES_GROUP
        return None if fits else f"not {NODES_GROUP} and {NODE_USER} with a host name"
    # All of them: of several O an API server takes each for a group.
    reserved = any(a.text.startswith(KUBERNETES_PREFIX) for a in attributes)
    return f"an attribute that begins with {KUBERNETES_PREFIX}" if reserved else None


def _validity_same(case: _Case) -> str | None:
    found, content = case.certificate, case.content
    return _same((found.not_before, found.not_after), (content.not_before, content.not_after))


def _validity_order(case: _Case) -> str | None:
    return None if case.certificate.not_before < case.certificate.not_after else "ends before it begins"


def _validity_cap(case: _Case) -> str | None:
    longest = case.profile.max_validity + BACKDATE
    found = case.certificate.not_after - case.certificate.not_before
    return f"{found}, at most {longest} allowed" if found > longest else None


def _validity_in_issuer(case: _Case) -> str | None:
    return "outlives its issuer" if case.certificate.not_after > case.issuer.certificate.not_after else None


def _key_same(case: _Case) -> str | None:
    return _same(case.key, case.content.spki)


def _key_kind(case: _Case) -> str | None:
    try:
        kind = load_spki(case.key)[1]
    except CSRInvalid as e:
        return str(e)
    if case.profile.is_ca and not case.profile.is_foreign and kind not in _ALGORITHMS.keys() - _NOT_OURS:
        return f"a CA key is never {kind}"
    return None


def _same(found: object, wanted: object) -> str | None:
    return None if found == wanted else "not what was asked for"


# ---------------------------------------------------------------- extensions, byte for byte


def _extensions_once(case: _Case) -> str | None:
    repeated = case.certificate.repeated_extension
    return None if repeated is None else f"{repeated} stands twice"


def _extensions_known(case: _Case) -> str | None:
    foreign = [oid for oid in case.certificate.extensions if oid not in _EXTENSIONS]
    return f"{foreign[0]} is none of ours" if foreign else None


def _basic_constraints(case: _Case) -> bytes | None:
    length = case.profile.path_length
    inner = b"" if length is None else der.write(der.BOOLEAN, b"\xff") + der.write_unsigned(length)
    return der.write(der.SEQUENCE, inner)


def _key_usage(case: _Case) -> bytes | None:
    if not case.profile.key_usage:
        return None
    bits = [word in case.profile.key_usage for word in KEY_USAGES]
    used = max(i for i, bit in enumerate(bits) if bit) + 1
    number = sum(0x8000 >> i for i, bit in enumerate(bits) if bit)
    content = number.to_bytes(2)[: (used + 7) // 8]
    return der.write(der.BIT_STRING, bytes([8 * len(content) - used]) + content)


def _extended_key_usage(case: _Case) -> bytes | None:
    return _sequence_of([der.write_oid(oid) for oid in case.profile.purposes])


def _subject_key_id(case: _Case) -> bytes | None:
    return der.write(der.OCTET_STRING, key_identifier(case.content.spki))


def _authority_key_id(case: _Case) -> bytes | None:
    return der.write(der.SEQUENCE, der.write(0x80, case.content.authority_key_id))


def _alternative_names(case: _Case) -> bytes | None:
    content = case.content
    return _sequence_of(
        [
            *(der.write(_URI, uri.encode()) for uri in content.uris),
            *(der.write(_DNS, name.encode()) for name in content.dns_names),
            *(der.write(_IP, address.packed) for address in content.ip_addresses),
            *(der.write(_EMAIL, email.encode()) for email in content.emails),
        ]
    )


def _name_constraints(case: _Case) -> bytes | None:
    limits = case.content.limits
    if limits is None or not case.profile.is_ca:  # of what certifies nobody it says nothing
        return None
    permitted = [
        *(der.write(_DNS, name.encode()) for name in limits.dns_names),
        *(der.write(_IP, _mask(network)) for network in limits.ip_networks),
        *(der.write(_URI, host.encode()) for host in limits.uris),
        *(der.write(_EMAIL, host.encode()) for host in limits.emails),
    ]
    excluded = [der.write(_IP, _mask(network)) for network in limits.excluded_networks]
    trees = b"".join(
        der.write(tag, b"".join(der.write(der.SEQUENCE, name) for name in names))
        for tag, names in ((0xA0, permitted), (0xA1, excluded))
        if names
    )
    return der.write(der.SEQUENCE, trees)


def _mask(network: IPNetwork) -> bytes:
    return network.network_address.packed + network.netmask.packed


def _policies(case: _Case) -> bytes | None:
    return _sequence_of([der.write(der.SEQUENCE, der.write_oid(oid)) for oid in case.content.policies])


def _crl_pointer(case: _Case) -> bytes | None:
    if case.content.crl_url is None:
        return None
    names = der.write(0xA0, der.write(0xA0, der.write(_URI, case.content.crl_url.encode())))
    return der.write(der.SEQUENCE, der.write(der.SEQUENCE, names))


def _access(case: _Case) -> bytes | None:
    content = case.content
    return _sequence_of(
        [
            der.write(der.SEQUENCE, der.write_oid(method) + der.write(_URI, url.encode()))
            for method, url in ((ACCESS_OCSP, content.ocsp_url), (ACCESS_CA_ISSUERS, content.ca_url))
            if url is not None
        ]
    )


def _no_check(case: _Case) -> bytes | None:
    return der.write(der.NULL, b"") if case.profile.no_check else None


def _no_rev_avail(case: _Case) -> bytes | None:
    return der.write(der.NULL, b"") if case.profile.no_rev_avail else None


def _sequence_of(parts: list[bytes]) -> bytes | None:
    return der.write(der.SEQUENCE, b"".join(parts)) if parts else None


_EXTENSIONS: Final[Mapping[str, tuple[str, str, bool, Callable[[_Case], bytes | None]]]] = {
    # OID: name of its rule, what it is, critical, what should stand in it or None
    BASIC_CONSTRAINTS: ("basic-constraints", "BasicConstraints", True, _basic_constraints),
    KEY_USAGE: ("key-usage", "KeyUsage", True, _key_usage),
    EXTENDED_KEY_USAGE: ("extended-key-usage", "ExtendedKeyUsage", False, _extended_key_usage),
    SUBJECT_KEY_IDENTIFIER: ("subject-key-id", "SubjectKeyIdentifier", False, _subject_key_id),
    AUTHORITY_KEY_IDENTIFIER: ("authority-key-id", "AuthorityKeyIdentifier", False, _authority_key_id),
    SUBJECT_ALT_NAME: ("alternative-names", "SubjectAltName", False, _alternative_names),
    NAME_CONSTRAINTS: ("name-constraints", "NameConstraints", True, _name_constraints),
    CERTIFICATE_POLICIES: ("policies", "CertificatePolicies", False, _policies),
    CRL_DISTRIBUTION_POINTS: ("crl-pointer", "CRLDistributionPoints", False, _crl_pointer),
    AUTHORITY_INFORMATION_ACCESS: ("access", "AuthorityInfoAccess", False, _access),
    OCSP_NO_CHECK: ("no-check", "id-pkix-ocsp-nocheck", False, _no_check),
    NO_REV_AVAIL: ("no-rev-avail", "noRevAvail", False, _no_rev_avail),
}


def _extension_rule(
    oid: str, critical: bool, expected: Callable[[_Case], bytes | None]
) -> Callable[[_Case], str | None]:
    def rule(case: _Case) -> str | None:
        found, wanted = case.certificate.extensions.get(oid), expected(case)
        if found is None:
            return None if wanted is None else "is absent"
        if wanted is None:
            return "stands there"
        # Alternative names are critical where they are the only ones (RFC 5280, 4.2.1.6).
        must = critical or (oid == SUBJECT_ALT_NAME and not case.certificate.subject_name.attributes)
        if found.critical != must:
            return f"is {'not ' if must else ''}critical"
        return None if found.value == wanted else "says something else"

    return rule


# ---------------------------------------------------------------- what a profile lets a certificate say


def _alternative_kinds(case: _Case) -> str | None:
    if case.profile.is_foreign:
        return None  # they are compared with the content, which has no other kinds
    found = {_ALTERNATIVES.get(tag) for tag, _ in case.alternatives}
    if not found <= case.profile.allowed_alternatives:
        return "an alternative name of a kind that this profile does not have"
    for kinds in case.profile.alternatives:
        if not found & kinds:
            return f"no alternative name of kind {' or '.join(sorted(kinds))}"
    return None


def _alternative_ek(case: _Case) -> str | None:
    if case.profile.is_foreign:
        return None
    uris = [value.decode("latin-1") for tag, value in case.alternatives if tag == _URI]
    if len(uris) > 1:
        return f"{len(uris)} URIs"
    if uris and not _EK_URI.fullmatch(uris[0]):
        return f"URI other than {EK_URI} and the fingerprint of an EK"
    return None


def _alternative_host(case: _Case) -> str | None:
    form = HOST if case.profile.is_foreign else _HOST
    for tag, value in case.alternatives:
        if tag == _DNS and not form.fullmatch(value.decode("latin-1")):
            return "a DNS name that is no lower-case host name"
    return None


def _policies_allowed(case: _Case) -> str | None:
    fixed = case.profile.fixed_policies
    if fixed is not None:
        return None if case.policies == fixed else f"policies other than {', '.join(fixed) or 'none'}"
    arcs = set()
    kinds = []
    for policy in case.policies:
        rest, _, number = policy.rpartition(".")
        arc, _, kind = rest.rpartition(".")
        allowed = {"1": range(MAX_ASSURANCE + 1), "2": KEY_TIERS}.get(kind, ())
        if int(number) not in allowed:
            return f"{policy} is neither a level of assurance nor a key tier"
        arcs.add(arc)
        kinds.append(kind)
    if len(arcs) > 1 or kinds not in ([], ["1"], ["1", "2"]):
        return "more than one level of assurance and one key tier under one arc"
    return None


def _pointers(case: _Case) -> str | None:
    # Each once: the extensions are compared with content that has no more than one address of a kind.
    if {kind for kind, _ in case.addresses} != case.profile.pointers:
        return f"points elsewhere than to {', '.join(sorted(case.profile.pointers)) or 'nothing'}"
    return None


def _short_lived(case: _Case) -> str | None:
    # Asked of what stands there, whatever the profile says: what cannot be revoked must end soon, and certify nobody.
    found = case.certificate
    if NO_REV_AVAIL not in found.extensions:
        return None
    if found.is_ca:
        return "a CA about which nobody can ask"
    if found.not_after - found.not_before - BACKDATE > SHORT_LIVED:
        return f"nobody can ask about it, and it lives longer than {SHORT_LIVED.days} days"
    if {kind for kind, _ in case.addresses} & {Pointer.CRL, Pointer.OCSP}:
        return "nobody can ask about it, and it says where to ask"
    return None


def _pointer_form(case: _Case) -> str | None:
    for _, address in case.addresses:
        if not _ADDRESS.fullmatch(address):
            return "an address that is not http:// or https://"
    return None


# ---------------------------------------------------------------- what an issuer lets a certificate say


def _issuer_is_ca(case: _Case) -> str | None:
    issuer = case.issuer.certificate
    if not issuer.is_ca or "key_cert_sign" not in (issuer.key_usage or ()):
        return "the issuer may not issue certificates"
    return None


def _issuer_purpose(case: _Case) -> str | None:
    """Say whether the issuer is the CA for this: nobody who can reach the machines' CA makes an operator (R16)."""
    issuer = _purpose(case.issuer.certificate)
    if issuer is not None and case.issuer_purpose not in (None, issuer):
        return "the name of the issuer says another purpose than its record"
    if case.profile.is_foreign:
        # What our own CAs vouch for is of our own profiles.
        return None if issuer is None else "one of our own CAs under a profile that is none of ours"
    issuer = issuer or case.issuer_purpose
    wanted = case.profile.purpose or issuer
    if case.profile.is_ca:
        # A key of one CA never vouches for a key of the other: who trusts the one would trust both.
        wanted = _purpose(case.certificate)
    return None if issuer is not None and issuer == wanted else "not the CA that signs such certificates"


def _purpose(certificate: Certificate) -> Purpose | None:
    names = [a.text for a in certificate.subject_name.attributes if a.oid == COMMON_NAME]
    return purpose_of(names[0]) if len(names) == 1 else None


def _issuer_path(case: _Case) -> str | None:
    length, allowed = case.profile.path_length, case.issuer.certificate.path_length
    if length is None or case.profile.self_signed or allowed is None or length < allowed:
        return None
    return f"a CA with path length {length} under one with {allowed}"


def _issuer_key_id(case: _Case) -> str | None:
    return (
        None
        if case.certificate.aki == case.issuer.certificate.ski
        else "not the SubjectKeyIdentifier of the issuer"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One rule.

    Args:
        name: Stands before what it finds.
        what: What must hold.
        source: Clause that asks for it.
    """

    name: str
    what: str
    source: str


_RULES: Final[tuple[tuple[Rule, Callable[[_Case], str | None]], ...]] = tuple(
    (Rule(name=name, what=what, source=source), rule)
    for name, what, source, rule in (
        (
            "encoding",
            "DER in its one form, version 3, nothing behind it",
            "RFC 5280 §4.1, X.690 §10",
            _encoding,
        ),
        (
            "algorithm-same",
            "One signature algorithm, inside and outside",
            "RFC 5280 §4.1.1.2",
            _algorithm_same,
        ),
        ("algorithm-fits", "The algorithm of the issuer's key, over SHA-384", "HSM §7.3", _algorithm_fits),
        ("serial-size", "Serial number of 20 bytes, positive", "RFC 5280 §4.1.2.2, HSM §7.2", _serial_size),
        ("serial-same", "The serial number that was reserved", "HSM §7.4", _serial_same),
        ("issuer-same", "The issuer asked for", "RFC 5280 §4.1.2.4", _issuer_same),
        (
            "issuer-subject",
            "Issuer equals the subject of the CA, byte for byte",
            "RFC 5280 §6.1.3",
            _issuer_subject,
        ),
        ("issuer-given", "Only CA keys certify themselves", "RFC 5280 §3.2", _issuer_given),
        ("issuer-other", "No two issuers share a name", "RFC 5280 §4.1.2.4", _issuer_other),
        ("issuer-is-ca", "The issuer is a CA and may sign certificates", "RFC 5280 §6.1.4", _issuer_is_ca),
        ("issuer-purpose", "Machines and people have CAs of their own", "R16", _issuer_purpose),
        ("issuer-path", "The issuer's path length leaves room", "RFC 5280 §4.2.1.9", _issuer_path),
        ("issuer-key-id", "AuthorityKeyIdentifier finds the issuer", "RFC 5280 §4.2.1.1", _issuer_key_id),
        ("subject-same", "The subject asked for", "ITL-REFERENCE §16", _subject_same),
        (
            "subject-form",
            "The attributes of the profile, in order",
            "ITL-REFERENCE §16, RFC 5280 A.1",
            _subject_form,
        ),
        ("subject-unit", "A role for machines, a duty for people", "R16", _subject_unit),
        (
            "subject-kubernetes",
            "Names that Kubernetes reads as its own in certificates of nodes only",
            "HSM §21",
            _subject_kubernetes,
        ),
        ("validity-same", "The validity asked for", "HSM §7.2", _validity_same),
        ("validity-order", "It begins before it ends", "RFC 5280 §4.1.2.5", _validity_order),
        ("validity-cap", "No longer than the profile allows", "HSM §7.2", _validity_cap),
        ("validity-in-issuer", "It does not outlive its issuer", "HSM §7.2", _validity_in_issuer),
        ("key-same", "The key asked for", "HSM §7.1", _key_same),
        ("key-kind", "A key of a kind that is certified", "HSM §7.1", _key_kind),
        ("extensions-once", "No extension twice", "RFC 5280 §4.2", _extensions_once),
        ("extensions-known", "No other extension", "HSM §7.1", _extensions_known),
        *(
            (
                name,
                f"{what}: what profile and content say{', critical' if critical else ''}",
                "RFC 5280 §4.2",
                rule,
            )
            for name, what, critical, rule in (
                (name, what, critical, _extension_rule(oid, critical, expected))
                for oid, (name, what, critical, expected) in _EXTENSIONS.items()
            )
        ),
        (
            "alternative-kinds",
            "Alternative names of the profile's kinds",
            "ITL-REFERENCE §16",
            _alternative_kinds,
        ),
        ("alternative-ek", "One URI, the fingerprint of an EK", "ITL-REFERENCE §16, R15", _alternative_ek),
        (
            "alternative-host",
            "Host names in lower case",
            "RFC 5280 §4.2.1.6",
            _alternative_host,
        ),
        ("policies-allowed", "One level of assurance, one key tier", "TPM §6", _policies_allowed),
        ("pointers", "The addresses of the profile, no other", "RFC 5280 §4.2.1.13, §4.2.2.1", _pointers),
        (
            "short-lived",
            "What says noRevAvail ends soon, certifies nobody, and has no address to ask",
            "RFC 9608 §4",
            _short_lived,
        ),
        ("pointer-form", "Addresses by HTTP", "RFC 5280 §4.2.1.13", _pointer_form),
    )
)

READABLE: Final = Rule(name="readable", what="A certificate at all, and all of it", source="RFC 5280 §4.1")

RULES: Final[Mapping[str, Rule]] = MappingProxyType(
    {rule.name: rule for rule in (READABLE, *(rule for rule, _ in _RULES))}
)
"""Every rule by its name, in the order in which they are asked."""


def lint(
    certificate: bytes,
    content: CertificateContent,
    issuer_certificate: bytes | None,
    *,
    issuer_purpose: Purpose | None = None,
) -> tuple[str, ...]:
    """Return everything that is wrong with *certificate*, `rule: finding` each; nothing where it may be signed.

    Args:
        certificate: As it will be, but signed by any key; DER. The signature itself is not looked at.
        content: What it should say.
        issuer_certificate: Certificate of the CA key that will sign, DER; None where it certifies itself.
        issuer_purpose: What its record says that it is for: of a CA that was brought here, whose name is not ours.
    """
    try:
        found = parse_certificate(certificate, max_bytes=MAX_CERTIFICATE_BYTES)
        parts = _parts(found)
        issuer = _Issuer(certificate=found, name=parts[5])
        if issuer_certificate is not None:
            issuer = _read_issuer(issuer_certificate)
        case = _Case(
            certificate=found,
            parts=parts,
            content=content,
            profile=content.rules,
            issuer=issuer,
            has_issuer=issuer_certificate is not None,
            issuer_purpose=issuer_purpose,
        )
        judged = [(rule.name, judge(case)) for rule, judge in _RULES]
    except MalformedEvidence as e:
        return (f"{READABLE.name}: {e}",)
    return tuple(f"{name}: {finding}" for name, finding in judged if finding is not None)


def _parts(certificate: Certificate) -> tuple[bytes, ...]:
    """Return the eight parts of a signed part of version 3 without unique identifiers, headers included."""
    tbs = certificate.tbs
    outer = der.element(tbs, 0, len(tbs))
    parts = list(der.elements(tbs, outer.start, outer.stop))
    if tuple(part.tag for part in parts) != _TBS_TAGS:
        raise MalformedEvidence("not the eight parts of a certificate of version 3")
    return tuple(tbs[part.at : part.stop] for part in parts)
