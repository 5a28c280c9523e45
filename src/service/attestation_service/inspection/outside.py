"""What the service shows to others and asks of them: TLS, operators, clock, port."""

from __future__ import annotations

import asyncio
import dataclasses
import http.client
import ipaddress
import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from cryptography import x509

from attestation.clock import SystemClock, parse_http_date, parse_rfc3339
from attestation.store import is_postgresql
from attestation.store.copying import source
from attestation_service.auth.mtls import MTLS
from attestation_service.border.tls import ServerTLS, build
from attestation_service.database_url import is_elsewhere
from attestation_service.health.handlers import EARLIEST, MAX_BACKWARD, MAX_OFFSET
from attestation_service.inspection.case import Case, Findings, failed, ok, warning
from attestation_service.keys import crypto_policy
from attestation_service.process.listening import obstacle
from attestation_service.settings import Settings
from attestation_service.transparency import countersigners

SOON: Final = timedelta(days=14)
ASK_SECONDS: Final = 2.0
LONGEST_UDS: Final = 107
"""Of Linux (unix(7), sun_path), without the zero at its end."""


def tls(case: Case) -> Findings:
    """Certificate and key: they fit, are valid, and are for the name of the service."""
    settings = case.settings
    crypto_policy.check_files(settings)
    chosen = ServerTLS.of(settings)
    if chosen is None:
        yield ok("TLS", what="none here: it ends in a proxy before the service")
        return
    if chosen.own_client_ca is not None and not chosen.own_client_ca.exists():
        chosen = dataclasses.replace(chosen, own_client_ca=None)  # a start writes it
    build(chosen)
    certificate = x509.load_pem_x509_certificates(chosen.certificate.read_bytes())[0]
    until = certificate.not_valid_after_utc
    if not certificate.not_valid_before_utc <= case.at <= until:
        yield failed(
            "TLS",
            what=f"{chosen.certificate} is valid from {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} to "
            f"{until:%Y-%m-%d %H:%M} UTC, not now: no machine or operator would connect",
            todo="put a new certificate there, or set the clock",
        )
        return
    host = urlsplit(settings.service_url).hostname or ""
    if not names(certificate, host):
        yield warning(
            "TLS",
            what=f"{chosen.certificate} is not for {host}, the host of ITL_SERVICE_URL: who connects there refuses it",
            todo="get a certificate for that name, or correct ITL_SERVICE_URL",
        )
    if until - case.at < SOON:
        yield warning(
            "TLS", what=f"{chosen.certificate} ends on {until:%Y-%m-%d}", todo="put a new one there"
        )
    else:
        yield ok("TLS", what=f"{chosen.certificate} until {until:%Y-%m-%d}, with its key")


def names(certificate: x509.Certificate, host: str) -> bool:
    """Return True where *certificate* is for *host* (RFC 6125: a wildcard stands for one label)."""
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return False
    try:
        return ipaddress.ip_address(host) in found.get_values_for_type(x509.IPAddress)
    except ValueError:
        wanted = {host.lower(), f"*.{host.lower().partition('.')[2]}"}
        return not wanted.isdisjoint(name.lower() for name in found.get_values_for_type(x509.DNSName))


def operators(case: Case) -> Findings:
    """Who operates: client certificates, the identity provider, break-glass; who cosigns the log."""
    settings = case.settings
    if settings.operator_ca is not None:
        MTLS(settings)
        yield ok("operators", what=f"client certificates of {settings.operator_ca}")
        if settings.operator_crl is not None and not settings.operator_crl.exists():
            yield failed(
                "operators",
                what=f"ITL_OPERATOR_CRL: {settings.operator_crl} does not exist: no operator is let in by certificate",
                todo="put the list there, and renew it before it ends",
            )
    if settings.oidc:
        yield from asyncio.run(_issuer(case))
    if settings.admin_token is not None:
        yield ok("operators", what="break-glass token")
    if asked := countersigners(settings):
        yield ok("operators", what=f"{len(asked)} witnesses and time stampers are named; they were not asked")


async def _issuer(case: Case) -> Findings:
    # Here: its client takes a while to load, and few need it.
    from attestation_service.auth.oidc import FAILURES, OIDC

    issuer = case.settings.oidc_issuer
    provider = OIDC(case.settings, SystemClock())
    try:
        keys = await provider.ask()
    except FAILURES as e:
        return iter(
            [
                failed(
                    "operators",
                    what=f"ITL_OIDC_ISSUER: {issuer}: {type(e).__name__}: {e}. No operator can log in with a token",
                    todo="correct the address letter by letter, or ITL_OIDC_CA_FILE, or start the provider",
                )
            ]
        )
    finally:
        await provider.aclose()
    found = [ok("operators", what=f"identity provider {issuer}, {len(keys.by_id)} keys")]
    if (skew := _skew(provider.said_at, datetime.now(UTC))) is not None:
        leeway = case.settings.oidc_leeway_seconds
        found.append(
            failed(
                "clock",
                what=f"it differs by {skew} s from that of the identity provider: with more than {leeway} s, tokens "
                "are taken for expired or not yet valid",
                todo="let chrony or systemd-timesyncd set it, here or there",
            )
            if skew > leeway
            else ok("clock", what=f"it agrees with that of the identity provider ({skew} s)")
        )
    return iter(found)


def _skew(told: str | None, now: datetime) -> int | None:
    """Return by how many seconds *told*, a Date field (RFC 9110 §6.6.1), differs; None where it says nothing."""
    said = parse_http_date(told)
    return None if said is None else round(abs((now - said).total_seconds()))


def clock(case: Case) -> Findings:
    """The clock: not before any that can be right, not behind the audit log."""
    newest = case.facts.newest if case.facts is not None else None
    at = case.at if newest is None else case.at + behind(case.settings)
    if case.at < EARLIEST:
        yield failed(
            "clock", what=f"it shows {case.at:%Y-%m-%d}", todo="set it: chronyc makestep, or timedatectl"
        )
    elif newest is not None and parse_rfc3339(newest) > at + MAX_BACKWARD:
        what = f"it shows {at:%Y-%m-%d %H:%M:%S} UTC, and the newest audit entry is of {newest}"
        if is_elsewhere(case.settings.db_url) and abs(at - case.at) <= MAX_OFFSET:
            yield warning(
                "clock",
                what=f"{what}: the database's clock and this computer's agree, so one was ahead when that was written",
                todo="nothing, if both are right: entries bear that time until it has come",
            )
        else:
            yield failed(
                "clock",
                what=f"{what}: challenges and leases would be wrong, and the service is not ready",
                todo="set it: chronyc makestep, or timedatectl",
            )
    else:
        yield ok("clock", what=f"{case.at:%Y-%m-%d %H:%M:%S} UTC")


def behind(settings: Settings) -> timedelta:
    """Return how far this computer's clock stands behind the one that counts: the database's on PostgreSQL."""
    if not is_postgresql(settings.db_url):
        return timedelta()
    with source(settings.db_url, alone=False) as found:
        before = SystemClock().now()
        there = float(found.value("SELECT extract(epoch FROM clock_timestamp())::float8"))
        here = before + (SystemClock().now() - before) / 2
    return timedelta(seconds=there - here.timestamp())


def port(case: Case) -> Findings:
    """Whether the service could listen."""
    listen = case.listen
    if listen.uds is not None:
        folder = Path(listen.uds).absolute().parent
        if Path(listen.uds).exists() and not Path(listen.uds).is_socket():
            yield failed("port", what=f"{listen.uds} is there and is no socket", todo="choose another --uds")
        elif len(os.fsencode(listen.uds)) > LONGEST_UDS:
            yield failed(
                "port",
                what=f"the path of a socket has at most {LONGEST_UDS} bytes: {listen.uds} is longer",
                todo="choose another --uds",
            )
        elif os.access(folder, os.W_OK | os.X_OK, effective_ids=True):
            yield ok("port", what=f"the socket {listen.uds} can be made")
        else:
            yield failed(
                "port",
                what=f"no socket can be made in {folder}",
                todo="make the folder, or choose another --uds",
            )
    elif (reason := obstacle(listen.host, listen.port)) is None:
        yield ok("port", what=f"{listen.host}:{listen.port} is free")
    elif _is_ours(case):
        yield warning(
            "port",
            what=f"a service like this one answers at port {listen.port}: it must end before another can start",
            todo="nothing, if this is what you are about to restart",
        )
    else:
        yield failed("port", what=reason)


def _is_ours(case: Case) -> bool:
    """Return True where an attestation service answers at the port: asked on this computer, in plain HTTP or TLS."""
    import ssl

    # Nothing is told to whoever answers, and nothing of what they say is believed but that they are there.
    anybody = ssl.create_default_context()
    anybody.check_hostname = False
    anybody.verify_mode = ssl.CERT_NONE
    for connect in (
        http.client.HTTPConnection("127.0.0.1", case.listen.port, timeout=ASK_SECONDS),
        http.client.HTTPSConnection(
            "127.0.0.1",
            case.listen.port,
            timeout=ASK_SECONDS,
            context=anybody,
        ),
    ):
        try:
            connect.request("GET", "/readyz")
            if {"database", "service_key"} <= json.loads(connect.getresponse().read(65_536))["checks"].keys():
                return True
        except (OSError, http.client.HTTPException, ValueError, KeyError, TypeError, AttributeError):
            continue
        finally:
            connect.close()
    return False
