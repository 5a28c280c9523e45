"""TLS in the service itself: certificates from files, client certificates asked for, suites enforced.

- TLS 1.3 unless `ITL_TLS_MIN_VERSION` says otherwise. Python 3.11 cannot choose the suites of TLS 1.3, so we prefer
  ours in the handshake and close a connection that negotiated another, before anything is read from it.
- Where `ITL_OPERATOR_CA` is set, or the service has a CA of its own for operators, a client certificate is asked for,
  not demanded: machines have none. One of another CA ends the handshake, and our log says why: asyncio closes before
  the alert is sent. What a good one proves, `auth/client_certificate.py` decides at each request.
- Files that change are read again at the next handshake; connections that stand keep what they began with.
- No session tickets: a resumed session would carry a certificate that was looked at long ago.
- What was negotiated stands in the ASGI scope (`extensions.tls`, ASGI TLS extension 0.2), where `proxies.py` reads it.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn, cast

import structlog

from attestation.algorithms import CryptoPolicy
from attestation_service.border import operator_ca
from attestation_service.keys import crypto_policy
from attestation_service.keys.crypto_policy import TLS_GROUP
from attestation_service.settings import Settings, SettingsInvalid

log = structlog.get_logger("attestation_service.tls")

_VERSIONS: Final = {
    "TLSv1.2": (ssl.TLSVersion.TLSv1_2, 0x0303),
    "TLSv1.3": (ssl.TLSVersion.TLSv1_3, 0x0304),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTLS:
    """What the handshake needs.

    Args:
        certificate: PEM, the service's certificate and what leads to its CA.
        key: PEM, not encrypted.
        client_ca: PEM bundle for client certificates; with `own_client_ca` None, none is asked for.
        own_client_ca: PEM file with the certificates of the service's own CA for operators, or None.
        minimum: `TLSv1.2` or `TLSv1.3`.
        suites: Names of the suites that a connection may have, as OpenSSL spells them.
        group: The one group for key agreement; None leaves it to OpenSSL.
    """

    certificate: Path
    key: Path
    client_ca: Path | None
    minimum: str
    suites: tuple[str, ...]
    group: str | None = None
    own_client_ca: Path | None = None

    @classmethod
    def of(cls, settings: Settings) -> ServerTLS | None:
        """Return what *settings* say; None where TLS ends before the service."""
        if settings.tls_cert_file is None or settings.tls_key_file is None:
            return None
        return cls(
            certificate=settings.tls_cert_file,
            key=settings.tls_key_file,
            client_ca=settings.operator_ca,
            minimum=settings.tls_min_version,
            suites=settings.tls_ciphers,
            own_client_ca=operator_ca.file_of(settings),
            group=TLS_GROUP if crypto_policy.of(settings) is not CryptoPolicy.DEFAULT else None,
        )


class _Handshake(ssl.SSLObject):
    """A connection that says in our log why its client's certificate was refused."""

    def do_handshake(self) -> None:
        """Go on with the handshake."""
        try:
            super().do_handshake()
        except ssl.SSLCertVerificationError as e:
            log.warning("tls.certificate_refused", reason=e.verify_message)
            raise


class ServerContext(ssl.SSLContext):
    """A context that knows which suites may be negotiated: name -> number on the wire."""

    suites: dict[str, int]
    sslobject_class = _Handshake


def build(tls: ServerTLS) -> ServerContext:
    """Build a context from the files as they are now.

    Raises:
        SettingsInvalid: A file cannot be used, or no suite is left.
    """
    context = ServerContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[tls.minimum][0]
    # That the server's order of suites counts, and that nothing is compressed, Python sets itself.
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.num_tickets = 0
    if tls.group is not None:
        context.set_ecdh_curve(tls.group)
    context.set_alpn_protocols(["http/1.1"])
    if tls.minimum == "TLSv1.2":
        older = [suite for suite in tls.suites if not suite.startswith("TLS_")]
        try:
            context.set_ciphers(":".join(older))
        except ssl.SSLError:
            raise SettingsInvalid("ITL_TLS_CIPHERS names no suite of TLS 1.2, which is allowed") from None
    # OpenSSL's ids carry the protocol above the two bytes of the wire.
    known = {suite["name"]: suite["id"] & 0xFFFF for suite in context.get_ciphers()}
    if unknown := sorted(set(tls.suites) - known.keys()):
        raise SettingsInvalid(f"ITL_TLS_CIPHERS: {', '.join(unknown)} cannot be negotiated here")
    context.suites = {name: known[name] for name in tls.suites}
    try:
        context.load_cert_chain(tls.certificate, tls.key, password=_no_password)
    except (OSError, ValueError) as e:  # ssl.SSLError is an OSError
        raise SettingsInvalid(_fault(tls, e)) from None
    for variable, path in (("ITL_OPERATOR_CA", tls.client_ca), ("ITL_ENROLLMENT_CA_DIR", tls.own_client_ca)):
        if path is None:
            continue
        context.verify_mode = ssl.CERT_OPTIONAL
        # The bundle names the CAs that sign operators' certificates, whoever signed theirs.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        try:
            context.load_verify_locations(path)
        except OSError as e:
            raise SettingsInvalid(f"{variable}: {path} cannot be used: {_words(e)}") from None
    return context


class Reloading:
    """The context of a process; each handshake gets what the files say by then."""

    def __init__(self, tls: ServerTLS) -> None:
        self._tls = tls
        self._stamps = self._stamp()
        self.context = build(tls)
        self.context.sni_callback = self._on_hello

    def _stamp(self) -> list[tuple[int, int, int] | None]:
        found: list[tuple[int, int, int] | None] = []
        for path in (self._tls.certificate, self._tls.key, self._tls.client_ca, self._tls.own_client_ca):
            try:
                status = path.stat() if path is not None else None
            except OSError:
                status = None
            found.append((status.st_ino, status.st_size, status.st_mtime_ns) if status else None)
        return found

    def _on_hello(self, connection: ssl.SSLObject | ssl.SSLSocket, *_: object) -> None:
        # OpenSSL calls this for every ClientHello, also for one that names no server.
        stamps = self._stamp()
        if stamps != self._stamps:
            self._stamps = stamps
            try:
                self.context = build(self._tls)
            except SettingsInvalid as e:
                # Half-written, most likely: the next change is read again.
                log.error("tls.not_reloaded", reason=str(e))  # noqa: TRY400 -- a trace says nothing more
            else:
                log.info("tls.reloaded")
        connection.context = self.context


def negotiated_suite(connection: asyncio.BaseTransport) -> int | None:
    """Return the suite of *connection* as on the wire; None where it is none that may be used."""
    negotiated: ssl.SSLObject = connection.get_extra_info("ssl_object")
    suite = negotiated.cipher()
    return cast("ServerContext", negotiated.context).suites.get(suite[0] if suite else "")


def extension(negotiated: ssl.SSLObject, suite: int) -> dict[object, object]:
    """Return the ASGI TLS extension of a connection: numbers as on the wire, the client's certificate in PEM."""
    certificate = negotiated.getpeercert(binary_form=True)
    return {
        "server_cert": None,
        "client_cert_chain": [ssl.DER_cert_to_PEM_cert(certificate)] if certificate else [],
        "client_cert_name": None,
        "client_cert_error": None,
        "tls_version": _VERSIONS[negotiated.version() or ""][1],
        "cipher_suite": suite,
    }


def _no_password() -> NoReturn:
    # Without this, OpenSSL would ask on the terminal and wait.
    raise ValueError("the key is encrypted")


def _fault(tls: ServerTLS, error: OSError | ValueError) -> str:
    """Return which of the two files made *error*, why, and what to do; OpenSSL names none of that."""
    for variable, path in (("ITL_TLS_CERT_FILE", tls.certificate), ("ITL_TLS_KEY_FILE", tls.key)):
        try:
            text = path.read_bytes()
        except OSError as e:
            return f"{variable}: {path} cannot be used: {e.strerror}"
        what = b"CERTIFICATE" if path == tls.certificate else b"PRIVATE KEY"
        if not re.search(rb"^-----BEGIN [A-Z ]*" + what + rb"-----", text, re.MULTILINE):
            kind = what.decode().lower()
            return f"{variable}: {path} cannot be used: no {kind} in PEM is in it (-----BEGIN … {what.decode()}-----)"
    if getattr(error, "reason", None) == "KEY_VALUES_MISMATCH":
        return (
            f"ITL_TLS_KEY_FILE: {tls.key} cannot be used: it is not the key of the certificate in {tls.certificate}. "
            "Name the key that this certificate was issued for, or get a certificate for this key"
        )
    if isinstance(error, ValueError) and not isinstance(error, ssl.SSLError):
        return (
            f"ITL_TLS_KEY_FILE: {tls.key} cannot be used: it is encrypted, and a service has no passphrase to type. "
            f"Write it without one: `openssl pkey -in {tls.key} -out NEW && chmod 600 NEW`"
        )
    return f"ITL_TLS_CERT_FILE, ITL_TLS_KEY_FILE: cannot be used: {_words(error)}"


def _words(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason or "not what OpenSSL can read"
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
