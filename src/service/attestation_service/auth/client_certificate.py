"""Operators by client certificate (DELIVERY-AND-OPERATORS §10, FAULTS R16).

The certificate comes from our own TLS or from a trusted proxy (`proxies.py`); that its owner holds the key was
proven there. What it says is believed only after `verify`:

1. it is signed by a CA of `ITL_OPERATOR_CA`, directly, and both are valid at this instant (RFC 5280 §6);
2. it is for clients, and no CA itself; its key is strong enough;
3. it is not revoked: where `ITL_OPERATOR_CRL` is set, an up-to-date list of exactly this CA must say so. A list
   that is stale, unreadable or of somebody else decides nothing, and then nobody is let in (503);
4. its OU names a duty: `operator`, `viewer`, `auditor`, `metrics`; the first two also in one cluster,
   `operator:<cluster>`;
5. its CN is a name that can stand in the audit.

Machines' certificates have another CA; this one must never sign for them.

With `ITL_OPERATOR_CERTIFICATES` the service has a CA for operators of its own, which is believed beside those. A
certificate that names one of its keys as issuer is judged by them alone, and instead of 3:

3'. it stands in the issuance log, byte for byte, as an operator's, and is neither held nor revoked. That is looked up
    for each request: what any worker takes back opens nothing from then on.
"""

# Algorithms for: operator-certificate, digest
from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Final
from urllib.parse import unquote_to_bytes

import structlog
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.hashes import SHA256, SHA384, SHA512
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from cryptography.x509.verification import (
    Criticality,
    ExtensionPolicy,
    Policy,
    PolicyBuilder,
    Store,
    VerificationError,
)

from attestation.errors import (
    Forbidden,
    MalformedEvidence,
    RevocationUnknown,
    Unauthenticated,
)
from attestation.wire import b64decode, pem_block, pem_blocks
from attestation_service.border.proxies import LINE_BYTES
from attestation_service.context.identity import RESERVED_NAMES, Duty, within_clusters

log = structlog.get_logger("attestation_service.auth")

MAX_CERTIFICATE_BYTES: Final = 8_192
MAX_NAME_CHARACTERS: Final = 256
MIN_RSA_BITS: Final = 2_048
CURVES: Final = (ec.SECP256R1, ec.SECP384R1, ec.SECP521R1)
_LIST_HASHES: Final = (SHA256, SHA384, SHA512)
_URL_ENCODED = re.compile(rb"(?:[!-$&-~]|%[0-9A-Fa-f]{2})+\Z")
UNREADABLE: Final = (
    OSError, ValueError, TypeError, UnsupportedAlgorithm, x509.InvalidVersion, x509.DuplicateExtension,
)  # fmt: skip
"""What the parsers of certificates and lists raise; not all of it is a ValueError."""
# What could hide, reorder or split a name on a screen or in the audit.
_INVISIBLE: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


def parse_header(name: bytes, value: bytes) -> bytes:
    """Return the DER in a header of a trusted proxy.

    Args:
        name: `x-client-cert`, URL-encoded PEM with one certificate, or `client-cert`, one Byte Sequence of
            RFC 9440 §2.2: base64 of the DER between colons.
        value: At most `LINE_BYTES`; a longer one ends its connection before anybody reads it here.

    Raises:
        Unauthenticated: Not of this form.
    """
    if len(value) > LINE_BYTES:
        raise Unauthenticated(f"the client certificate's header is longer than {LINE_BYTES} bytes")
    value = value.strip()
    if name == b"client-cert":
        if len(value) < 2 or value[:1] != b":" or value[-1:] != b":":
            raise Unauthenticated("Client-Cert is not one byte sequence (RFC 9440)")
    elif not _URL_ENCODED.match(value):
        raise Unauthenticated("X-Client-Cert is not URL-encoded")
    try:
        if name == b"client-cert":
            return b64decode(value[1:-1].decode("ascii", "replace"), "Client-Cert")
        return pem_block(unquote_to_bytes(value), "X-Client-Cert", "CERTIFICATE")
    except MalformedEvidence as e:
        raise Unauthenticated(str(e)) from None


def parse(der: bytes) -> x509.Certificate:
    """Read a certificate; nothing in it may be believed yet.

    Raises:
        Unauthenticated: Not one DER certificate of at most 8 KiB.
    """
    if len(der) > MAX_CERTIFICATE_BYTES:
        raise Unauthenticated(f"the client certificate is longer than {MAX_CERTIFICATE_BYTES} bytes")
    try:
        return x509.load_der_x509_certificate(der)
    except UNREADABLE:
        raise Unauthenticated("the client certificate cannot be read") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Revoked:
    """A certificate revocation list whose signature was verified (RFC 5280 §5).

    Args:
        this_update: When it was made.
        next_update: When it is stale.
        serials: Serial numbers on it, for whatever reason, also those on hold.
    """

    this_update: datetime
    next_update: datetime
    serials: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """What is in the files.

    Args:
        store: The CAs.
        lists: Newest usable list by SHA-256 of the CA's certificate; None where no lists are configured.
    """

    store: Store
    lists: Mapping[bytes, Revoked] | None


def load_authorities(data: bytes) -> list[x509.Certificate]:
    """Read the PEM bundle of operator CAs; each of them is trusted to sign operators' certificates itself.

    Raises:
        ValueError: No certificate, or one that is not a CA's or too weak; the text says which.
    """
    try:
        authorities = x509.load_pem_x509_certificates(data)
        for authority in authorities:
            _ = authority.extensions  # read no earlier than here
    except UNREADABLE:
        raise ValueError("it holds no certificate that can be read, or one that cannot") from None
    for authority in authorities:
        name = authority.subject.rfc4514_string()
        try:
            constraints = authority.extensions.get_extension_for_class(x509.BasicConstraints).value
        except x509.ExtensionNotFound:
            constraints = None
        if constraints is None or not constraints.ca:
            raise ValueError(f"{name} is not a CA")
        try:
            usage = authority.extensions.get_extension_for_class(x509.KeyUsage).value
        except x509.ExtensionNotFound:
            usage = None
        if usage is not None and not usage.key_cert_sign:
            raise ValueError(f"{name} may not sign certificates")
        if not is_strong(authority):
            raise ValueError(f"the key of {name} is weaker than RSA-2048 or P-256")
    return authorities


def load_lists(data: bytes, authorities: Sequence[x509.Certificate]) -> dict[bytes, Revoked]:
    """Read a DER list, or PEM lists, and keep for each CA the newest that it signed.

    A list that names parts of a CA's certificates only (a critical extension, RFC 5280 §5.2), that does not
    say when it ends, or that nobody of *authorities* signed, is left out: it proves nothing.

    Raises:
        ValueError: Not a revocation list.
    """
    try:
        parts = [der for label, der in pem_blocks(data, "the file") if label == "X509 CRL"]
        loaded = [x509.load_der_x509_crl(part) for part in parts or [data]]
    except (MalformedEvidence, *UNREADABLE):
        raise ValueError("it is no revocation list that can be read") from None
    found: dict[bytes, Revoked] = {}
    for crl in loaded:
        signers = [authority for authority in authorities if _signed(crl, authority)]
        made, ends = crl.last_update_utc, crl.next_update_utc
        if not signers or ends is None or _is_partial(crl):
            log.warning("operator.crl_ignored", issuer=crl.issuer.rfc4514_string()[:MAX_NAME_CHARACTERS])
            continue
        usable = Revoked(
            this_update=made, next_update=ends, serials=frozenset(entry.serial_number for entry in crl)
        )
        for authority in signers:
            before = found.get(_fingerprint(authority))
            if before is None or before.this_update <= made:
                found[_fingerprint(authority)] = usable
    return found


def _signed(crl: x509.CertificateRevocationList, authority: x509.Certificate) -> bool:
    if crl.issuer != authority.subject or not isinstance(crl.signature_hash_algorithm, _LIST_HASHES):
        return False
    key = authority.public_key()
    assert isinstance(key, rsa.RSAPublicKey | ec.EllipticCurvePublicKey)  # by `load_authorities`
    try:
        return crl.is_signature_valid(key)
    except (InvalidSignature, UnsupportedAlgorithm, ValueError, TypeError):
        return False


def _is_partial(crl: x509.CertificateRevocationList) -> bool:
    if any(extension.critical for extension in crl.extensions):
        return True
    return any(extension.critical for entry in crl for extension in entry.extensions)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorClaims:
    """What a verified certificate says; only `verify` builds one.

    Args:
        cn: Name, 1 to 256 characters, none of them invisible.
        sub: `spki-sha256:` and 64 hex digits: SHA-256 of the key's SubjectPublicKeyInfo DER.
        duties: At least one, here or in `within`.
        within: Duties in one cluster, of OUs `<duty>:<cluster>`.
    """

    cn: str
    sub: str
    duties: frozenset[Duty]
    within: frozenset[tuple[Duty, str]]


def verify(certificate: x509.Certificate, trust: Trust, at: datetime) -> OperatorClaims:
    """Verify an operator's *certificate* at the instant *at*.

    Raises:
        Unauthenticated: It proves nothing: unknown CA, not valid now, not for clients, weak, revoked.
        RevocationUnknown: Nothing up to date says whether it was revoked.
        Forbidden: It is good, but names no duty, or nobody.
    """
    # 1. Signed by a CA of ours, valid now, for clients. Until this holds, every field is the client's wish.
    verifier = (
        PolicyBuilder()
        .store(trust.store)
        .time(at)
        .extension_policies(ca_policy=_CA, ee_policy=_LEAF)
        .build_client_verifier()
    )
    try:
        chain = verifier.verify(certificate, []).chain
    except (VerificationError, *UNREADABLE) as e:
        raise Unauthenticated(
            f"the client certificate is not accepted: {_reason(certificate, e, at)}"
        ) from None
    # 2. A key that others can compute is nobody's. The verifier looks at signatures only, not at this key.
    if not is_strong(certificate):
        raise Unauthenticated("the client certificate's key is weaker than RSA-2048 or P-256")
    # 3. Not taken back. Without this, who leaves or loses a laptop stays an operator for years.
    if trust.lists is not None:
        _check_revocation(certificate.serial_number, trust.lists.get(_fingerprint(chain[1])), at)
    # 4. Made for an operator: the CA may also certify others.
    units = set(_values(certificate, NameOID.ORGANIZATIONAL_UNIT_NAME))
    duties = frozenset(duty for duty in Duty if duty.value in units)
    within = within_clusters(units, {duty.value: duty for duty in Duty})
    if not duties and not within:
        raise Forbidden("the client certificate's OU is neither operator, viewer, auditor nor metrics")
    # 5. One name, that is not one of ours: `SYSTEM` in the audit must mean break-glass.
    names = _values(certificate, NameOID.COMMON_NAME)
    cn = clean_name(names[0]) if len(names) == 1 else ""
    if not cn:
        raise Forbidden("the client certificate does not have exactly one CN")
    if unicodedata.normalize("NFKC", cn).casefold().strip() in RESERVED_NAMES:
        raise Forbidden("the client certificate's CN is a reserved name")
    spki = certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return OperatorClaims(cn=cn, sub=f"spki-sha256:{sha256(spki).hexdigest()}", duties=duties, within=within)


def clean_name(name: str) -> str:
    """Return *name* without characters that cannot be seen, at most 256 characters."""
    visible = "".join(c for c in name if unicodedata.category(c) not in _INVISIBLE)
    return visible.strip()[:MAX_NAME_CHARACTERS].rstrip()


def is_strong(certificate: x509.Certificate) -> bool:
    """True for RSA from 2048 bits and the NIST curves from P-256."""
    try:
        key = certificate.public_key()
    except (ValueError, UnsupportedAlgorithm):
        return False
    if isinstance(key, rsa.RSAPublicKey):
        return key.key_size >= MIN_RSA_BITS
    return isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, CURVES)


def _for_clients(_policy: Policy, _certificate: x509.Certificate, usage: x509.ExtendedKeyUsage) -> None:
    if ExtendedKeyUsageOID.CLIENT_AUTH not in usage:
        raise ValueError("it is not for client authentication")


def _no_ca(
    _policy: Policy, _certificate: x509.Certificate, constraints: x509.BasicConstraints | None
) -> None:
    if constraints is not None and constraints.ca:
        raise ValueError("it is a CA's")


def _signs(_policy: Policy, _certificate: x509.Certificate, usage: x509.KeyUsage | None) -> None:
    if usage is not None and not usage.digital_signature:
        raise ValueError("its key may not sign")


# The defaults are those of the web: names in the SAN, and key identifiers. Operators have a CN (ADR 16). Critical
# extensions that nobody knows are refused all the same.
_CA: Final = ExtensionPolicy.permit_all().require_present(x509.BasicConstraints, Criticality.AGNOSTIC, None)
_LEAF: Final = (
    ExtensionPolicy.permit_all()
    .require_present(x509.ExtendedKeyUsage, Criticality.AGNOSTIC, _for_clients)
    .may_be_present(x509.BasicConstraints, Criticality.AGNOSTIC, _no_ca)
    .may_be_present(x509.KeyUsage, Criticality.AGNOSTIC, _signs)
)


def _check_revocation(serial: int, revoked: Revoked | None, at: datetime) -> None:
    if revoked is None:
        raise RevocationUnknown("there is no usable revocation list of this client certificate's CA")
    if serial in revoked.serials:
        raise Unauthenticated("the client certificate was revoked")
    if not revoked.this_update <= at < revoked.next_update:
        raise RevocationUnknown("the revocation list of operators' certificates is stale")


def _reason(certificate: x509.Certificate, error: Exception, at: datetime) -> str:
    if at > certificate.not_valid_after_utc:
        return "it has expired"
    if at < certificate.not_valid_before_utc:
        return "it is not valid yet"
    return str(error).removeprefix("validation failed: ").partition(" (encountered")[0][:256]


def _values(certificate: x509.Certificate, oid: x509.ObjectIdentifier) -> list[str]:
    return [
        value if isinstance(value := attribute.value, str) else ""
        for attribute in certificate.subject.get_attributes_for_oid(oid)
    ]


def _fingerprint(certificate: x509.Certificate) -> bytes:
    return certificate.fingerprint(SHA256())
