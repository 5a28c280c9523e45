"""What is known of the connection that a request came by, and whose word about it is believed.

TLS ends in the service itself (`tls.py`), or in a proxy in front of it. A proxy is believed because of its address
*and* of a secret that it puts into every request: an address alone is shared by whatever else runs there.

| said by whom | client's address | `https`, TLS version, suite, client certificate |
|---|---|---|
| a peer within `ITL_TRUSTED_PROXIES`, or on the unix socket, with the secret | believed | believed |
| the same peer, and no `ITL_PROXY_SECRET` is configured | believed | not believed |
| anybody else | ignored | ignored; a client certificate is refused loudly |

What is read here is taken out of the scope: behind the border nothing else can read it, nor log the secret.
"""

from __future__ import annotations

import hmac
import ipaddress
import ssl
from collections.abc import Collection, Iterable, MutableMapping
from dataclasses import dataclass
from typing import Any, Final

from attestation_service.settings import Network, Settings

SECRET_HEADER: Final = b"itl-proxy-secret"
LEAF_HEADERS: Final = frozenset({b"x-client-cert", b"client-cert"})
"""`X-Client-Cert`: URL-encoded PEM. `Client-Cert`: RFC 9440 §2.2."""
CERTIFICATE_HEADERS: Final = LEAF_HEADERS | {b"client-cert-chain"}
"""The chain (RFC 9440 §2.3) is not used; from a stranger it is refused all the same."""
ADDRESS_HEADER: Final = b"x-forwarded-for"
SCHEME_HEADER: Final = b"x-forwarded-proto"
VERSION_HEADER: Final = b"x-tls-version"
SUITE_HEADER: Final = b"x-tls-cipher"
LINE_BYTES: Final = 8 << 10
"""Longest field of a head, or target; so it bounds a certificate that a proxy names. RSA-4096 has half of it."""
_READ: Final = CERTIFICATE_HEADERS | {
    SECRET_HEADER, ADDRESS_HEADER, SCHEME_HEADER, VERSION_HEADER, SUITE_HEADER,
}  # fmt: skip

TLS_1_2: Final = 0x0303
TLS_1_3: Final = 0x0304
AES_256_GCM_SHA384: Final = 0x1302
_VERSIONS: Final = {b"tlsv1.3": TLS_1_3, b"tls1.3": TLS_1_3, b"tlsv1.2": TLS_1_2, b"tls1.2": TLS_1_2}
_SUITES: Final = {
    b"TLS_AES_128_GCM_SHA256": 0x1301,
    b"TLS_AES_256_GCM_SHA384": AES_256_GCM_SHA384,
    b"TLS_CHACHA20_POLY1305_SHA256": 0x1303,
}
"""As nginx, Envoy and HAProxy spell versions, and Caddy; suites by their names at IANA."""

UNIX: Final = "unix"
UNKNOWN: Final = "unknown"
_KEY: Final = "itl.transport"

Headers = list[tuple[bytes, bytes]]
Scope = MutableMapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Transport:
    """What is known of the connection between the client and the first of our servers.

    Args:
        https: TLS was used.
        version: TLS version as on the wire, `0x0304` for 1.3; None where nobody said.
        suite: TLS cipher suite as on the wire, `0x1302` for AES-256-GCM-SHA384; None where nobody said.
        certificate: DER that the client proved to own, as our own TLS saw it.
        forwarded: Headers of a trusted proxy that name a client certificate, still to be parsed.
        refused: Name of a header in which somebody who is not believed named a client certificate.
    """

    https: bool = False
    version: int | None = None
    suite: int | None = None
    certificate: bytes | None = None
    forwarded: tuple[tuple[bytes, bytes], ...] = ()
    refused: str | None = None

    @property
    def is_high_assurance(self) -> bool:
        """True over TLS 1.3 with AES-256-GCM-SHA384; what nobody said is not so."""
        return self.https and self.version == TLS_1_3 and self.suite == AES_256_GCM_SHA384


PLAIN: Final = Transport()


def transport_of(scope: Scope) -> Transport:
    """Return what the border found out; a request that passed no border came by nothing."""
    found = scope.get(_KEY)
    return found if isinstance(found, Transport) else PLAIN


class Proxies:
    """Reads once per request what connection and proxy say."""

    def __init__(self, settings: Settings) -> None:
        self._networks = settings.trusted_proxies
        secret = settings.proxy_secret
        self._secret = secret.get_secret_value().encode() if secret is not None else None

    def read(self, scope: Scope) -> tuple[str, Transport]:
        """Return the client's address and what is known of its connection, and remember the latter in *scope*."""
        peer = _peer(scope)
        headers: Headers = scope["headers"]
        said = [(name, value) for name, value in headers if name in _READ]
        seen = _seen(scope)
        if not said:
            scope[_KEY] = seen
            return peer, seen
        scope["headers"] = [header for header in headers if header[0] not in _READ]
        near = peer == UNIX or within(peer, self._networks)
        # Exactly one secret: of two, somebody else may have sent the first.
        secrets = _values(said, SECRET_HEADER)
        proven = (
            near
            and self._secret is not None
            and len(secrets) == 1
            and hmac.compare_digest(secrets[0], self._secret)
        )
        address = peer
        if proven or (near and self._secret is None):
            address = _claimed_address(peer, said, self._networks)
        found = _asserted(said) if proven else _refused(said, seen)
        scope[_KEY] = found
        return address, found


def _peer(scope: Scope) -> str:
    """Return the IP address of the other end, `unix`, or `unknown` where a TCP peer has gone already."""
    client = scope.get("client")
    if client and client[0]:
        return str(client[0])
    # A TCP peer that hangs up early has no address either; it must not pass for the socket of a proxy.
    server = scope.get("server")
    return UNKNOWN if server and server[1] is not None else UNIX


def _seen(scope: Scope) -> Transport:
    """Return what our own TLS saw (ASGI TLS extension); nothing where it did not end here."""
    extension = scope.get("extensions", {}).get("tls")
    if extension is None:
        return PLAIN
    chain = extension["client_cert_chain"]
    return Transport(
        https=True,
        version=extension["tls_version"],
        suite=extension["cipher_suite"],
        certificate=ssl.PEM_cert_to_DER_cert(chain[0]) if chain else None,
    )


def _asserted(said: Headers) -> Transport:
    """Return what a proven proxy says. A fact said twice is not a fact: it did not overwrite what came in."""
    versions, suites = _values(said, VERSION_HEADER), _values(said, SUITE_HEADER)
    return Transport(
        https=_values(said, SCHEME_HEADER) == [b"https"],
        version=_VERSIONS.get(versions[0].lower()) if len(versions) == 1 else None,
        suite=_SUITES.get(suites[0]) if len(suites) == 1 else None,
        # Never the certificate of this very connection: that is the proxy's own, not its client's.
        forwarded=tuple((name, value) for name, value in said if name in LEAF_HEADERS and _is_said(value)),
    )


def _refused(said: Headers, seen: Transport) -> Transport:
    """Return what our own TLS saw, or that a stranger named a client certificate; an empty header names none."""
    for name, value in said:
        if name in CERTIFICATE_HEADERS and _is_said(value):
            return Transport(refused=name.decode())
    return seen


def _claimed_address(peer: str, said: Headers, proxies: Collection[Network]) -> str:
    """Return whom `X-Forwarded-For` names.

    Read from the right: the first address that is not itself a trusted proxy was seen by one of ours, what
    stands left of it is only claimed.
    """
    claimed = [
        part.strip() for value in _values(said, ADDRESS_HEADER) for part in value.decode("latin-1").split(",")
    ]
    address = peer
    for candidate in reversed(claimed):
        try:
            candidate = str(ipaddress.ip_address(candidate))
        except ValueError:
            return address
        address = candidate
        if not within(candidate, proxies):
            return candidate
    return address


def _is_said(value: bytes) -> bool:
    """True unless *value* is empty, or the empty byte sequence of RFC 9440: proxies send both for nobody."""
    return value.strip() not in (b"", b"::")


def _values(headers: Headers, name: bytes) -> list[bytes]:
    return [value for key, value in headers if key == name]


def within(address: str, networks: Iterable[Network]) -> bool:
    """Return True if *address* is an IP address in one of *networks*."""
    if not networks:
        return False
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    # A socket that listens on `::` sees IPv4 peers so.
    parsed = getattr(parsed, "ipv4_mapped", None) or parsed
    return any(parsed in network for network in networks)
