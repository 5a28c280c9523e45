"""Operators known by a client certificate: what is trusted now, of files and of our own CA."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Final

import structlog
from cryptography import x509
from cryptography.x509.verification import (
    Store,
)

from attestation.algorithms import Use
from attestation.errors import (
    ClientCertificateUntrusted,
    Forbidden,
    RevocationUnknown,
    Unauthenticated,
)
from attestation.store import Issuance, Tx
from attestation.store import Store as Database
from attestation_service.auth.client_certificate import (
    UNREADABLE,
    Trust,
    load_authorities,
    load_lists,
    parse,
    parse_header,
    verify,
)
from attestation_service.border.proxies import Scope, transport_of
from attestation_service.context.identity import Duty, Method, Operator
from attestation_service.context.request import Origin
from attestation_service.keys.crypto_policy import check_operator_certificate, forbidden, of
from attestation_service.settings import Settings, SettingsInvalid

log = structlog.get_logger("attestation_service.auth")


class MTLS:
    """Recognises operators by certificate. One verification costs about 0.2 ms: nothing is cached but the files.

    Args:
        settings: Which CAs are believed.
        store: Where the service's own CA for operators keeps its issuance log; None where it has no such CA.

    Raises:
        SettingsInvalid: `ITL_OPERATOR_CA` is not a bundle of CAs.
    """

    def __init__(self, settings: Settings, store: Database | None = None) -> None:
        self._ca_file = settings.operator_ca
        self._crl_file = settings.operator_crl
        self._store = store
        self._own: tuple[frozenset[str], dict[bytes, tuple[Store, str]]] = (frozenset(), {})
        self._crypto_policy = of(settings)
        self._reading = asyncio.Lock()
        self._loaded: tuple[Trust, _State] | None = None
        if self._ca_file is None:
            return
        try:
            self._loaded = self._load(self._ca_file)
        except _Unusable as e:
            if e.path == self._ca_file:
                raise SettingsInvalid(str(e)) from None
            # Machines need no operator: the service starts, and operators with certificates are told why not.
            log.error("operator.crl_unusable", reason=str(e))  # noqa: TRY400 -- a trace says nothing more

    def presented(self, scope: Scope) -> bytes | None:
        """Return the DER of the certificate with which the client of this request came; see `presented`."""
        return presented(scope)

    async def operator(self, der: bytes, origin: Origin, at: datetime) -> Operator:
        """Return who came with the certificate *der*.

        Raises:
            Unauthenticated: The certificate proves nothing.
            Forbidden: It is good, but not an operator's.
            RevocationUnknown: It cannot be decided whether it was revoked.
        """
        certificate = parse(der)
        trust = await self._trust_of_our_own(certificate, der) or await self._current()
        claims = verify(certificate, trust, at)
        check_operator_certificate(self._crypto_policy, certificate)
        return Operator(
            cn=claims.cn,
            sub=claims.sub,
            source=origin.address,
            method=Method.CERTIFICATE,
            duties=claims.duties,
            within=claims.within,
            certificate=der,
        )

    async def refresh(self) -> None:
        """Read the files again if they have changed, so that `why_not` finds what is in them now."""
        if self._ca_file is not None:
            with contextlib.suppress(RevocationUnknown):
                await self._current()

    def why_not(self, tx: Tx, der: bytes, at: datetime) -> str | None:
        """Say why the holder of a certificate, which was good once, is no operator any more; None while they are.

        Raises:
            RevocationUnknown: It cannot be decided whether it was revoked.
        """
        try:
            certificate = parse(der)
            claims = verify(certificate, self._trust_now(tx, certificate, der), at)
            check_operator_certificate(self._crypto_policy, certificate)
        except (Unauthenticated, Forbidden) as e:
            return str(e)
        # In which clusters stands in the certificate itself, and was asked when the vote was cast.
        votes = claims.duties | {duty for duty, _ in claims.within}
        return None if Duty.OPERATOR in votes else "the client certificate is no operator's any more"

    def _trust_now(self, tx: Tx, certificate: x509.Certificate, der: bytes) -> Trust:
        """Return by whom *certificate* is judged, without reading a file.

        Raises:
            Unauthenticated: By nobody.
            RevocationUnknown: The files have changed again, or cannot be read.
        """
        issuer, text = _issuer_and_serial(certificate)
        own = _operator_authorities(tx) if self._store is not None else {}
        trust = self._own_verdict(own, tx.issuances.get(text), issuer, der)
        if trust is not None:
            return trust
        if self._ca_file is None:
            raise Unauthenticated("the client certificate is not accepted: its CA is none of operators")
        trust = self._unchanged()
        if trust is None:
            raise RevocationUnknown("operators' certificates cannot be judged now")
        return trust

    async def _trust_of_our_own(self, certificate: x509.Certificate, der: bytes) -> Trust | None:
        """Return by whom *certificate* is judged if a CA of the service issued it; None if another did.

        Raises:
            Unauthenticated: It names our CA, and was not issued by it, or was taken back.
        """
        store = self._store
        if store is None:
            return None
        try:
            issuer, text = _issuer_and_serial(certificate)
        except UNREADABLE:
            return None
        own, row = await store.read(lambda tx: (_operator_authorities(tx), tx.issuances.get(text)))
        return self._own_verdict(own, row, issuer, der)

    def _own_verdict(
        self, own: Mapping[str, bytes], row: Issuance | None, issuer: bytes, der: bytes
    ) -> Trust | None:
        name = self._authorities(own).get(issuer)
        if name is None:
            return None
        trusted, issuer_id = name
        if row is None or row.issuer_id != issuer_id or row.profile != "operator" or row.certificate != der:
            raise Unauthenticated("the client certificate is not one that we issued to an operator")
        if row.state != "issued":
            raise Unauthenticated("the client certificate was revoked")
        return Trust(store=trusted, lists=None)

    def _authorities(self, own: Mapping[str, bytes]) -> dict[bytes, tuple[Store, str]]:
        """Return name of each CA key -> what to verify with, and its id; read anew when the keys change."""
        ids, names = self._own
        if ids != own.keys():
            found = {issuer_id: x509.load_der_x509_certificate(data) for issuer_id, data in own.items()}
            names = {ca.subject.public_bytes(): (Store([ca]), issuer_id) for issuer_id, ca in found.items()}
            # Both at once: units on other threads may see other keys at this moment, in a rotation.
            self._own = frozenset(own), names
        return names

    async def _current(self) -> Trust:
        """Return what is in the files now; they are read again, on a thread, when they have changed."""
        if self._ca_file is None:
            raise Unauthenticated("the client certificate is not accepted: its CA is none of operators")
        trust = self._unchanged()
        if trust is not None:
            return trust
        async with self._reading:
            trust = self._unchanged()
            if trust is not None:
                return trust
            # What cannot be read does not leave the old in force: it is of files that are no longer there.
            try:
                self._loaded = loaded = await asyncio.to_thread(self._load, self._ca_file)
            except _Unusable as e:
                log.error("operator.trust_unusable", reason=str(e))  # noqa: TRY400 -- likewise
                raise RevocationUnknown("operators' certificates cannot be judged now") from None
            log.info("operator.trust_loaded")
            return loaded[0]

    def _unchanged(self) -> Trust | None:
        loaded = self._loaded
        return loaded[0] if loaded and loaded[1] == _state(self._ca_file, self._crl_file) else None

    def _load(self, path: Path) -> tuple[Trust, _State]:
        # The state from before reading: what changes meanwhile is read again next time.
        state = _state(path, self._crl_file)
        try:
            authorities = load_authorities(path.read_bytes())
            if reason := forbidden(self._crypto_policy, Use.OPERATOR_CERTIFICATE, authorities):
                raise ValueError(reason)
            lists = None
            if self._crl_file is not None:
                path = self._crl_file
                lists = load_lists(path.read_bytes(), authorities)
        except UNREADABLE as e:
            raise _Unusable(path, self._variable(path), e) from None
        return Trust(store=Store(authorities), lists=lists), state

    def _variable(self, path: Path) -> str:
        return "ITL_OPERATOR_CA" if path == self._ca_file else "ITL_OPERATOR_CRL"


def presented(scope: Scope) -> bytes | None:
    """Return the DER of the certificate with which the client of this request came; None without one.

    Raises:
        ClientCertificateUntrusted: Somebody who is not believed names one, or a proxy names two.
        Unauthenticated: A proxy names one that cannot be read.
    """
    transport = transport_of(scope)
    if transport.refused is not None:
        raise ClientCertificateUntrusted("a client certificate is taken from a trusted proxy only")
    if len(transport.forwarded) > 1:
        # The proxy passed on what it should have overwritten.
        raise ClientCertificateUntrusted("the proxy names more than one client certificate")
    for name, value in transport.forwarded:
        return parse_header(name, value)
    return transport.certificate


def _issuer_and_serial(certificate: x509.Certificate) -> tuple[bytes, str]:
    """Return the issuer's name, DER, and the serial number as the issuance log writes it."""
    serial = certificate.serial_number
    return certificate.issuer.public_bytes(), f"{serial:040x}" if serial > 0 else ""


def _operator_authorities(tx: Tx) -> dict[str, bytes]:
    """Return the certificates of the CA keys that sign for operators or did, by id; one to come signs nobody yet."""
    return {
        issuer.issuer_id: issuer.certificate
        for issuer in tx.issuers.all()
        if issuer.purpose == "operator"
        and issuer.state in ("active", "retiring")
        and issuer.certificate is not None
    }


_State = tuple[tuple[int, int, int] | None, ...]


def _state(*paths: Path | None) -> _State:
    """Return what changes when a file does: its inode, size and time of change."""
    return tuple(_stamp(path) for path in paths if path is not None)


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return (found.st_ino, found.st_size, found.st_mtime_ns)


_NEEDED: Final = {
    "ITL_OPERATOR_CA": "Name a PEM file (-----BEGIN CERTIFICATE-----) with the certificates of the CAs that sign those "
    "of operators, and nothing else, that the service's user may read",
    "ITL_OPERATOR_CRL": "Put the newest list of that CA there, in DER or PEM (-----BEGIN X509 CRL-----), that the "
    "service's user may read",
}


class _Unusable(Exception):
    def __init__(self, path: Path, variable: str, cause: Exception) -> None:
        said = cause.strerror if isinstance(cause, OSError) else cause
        super().__init__(f"{variable}: {path} cannot be used: {said}. {_NEEDED[variable]}")
        self.path = path
