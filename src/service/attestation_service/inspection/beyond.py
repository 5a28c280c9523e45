"""What only `doctor` looks at: what no start needs, and an installation does sooner or later."""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, Final

from cryptography import x509

from attestation.clock import parse_rfc3339
from attestation.store import is_postgresql
from attestation_service.inspection.case import Case, Findings, failed, ok, warning
from attestation_service.inspection.outside import ASK_SECONDS, SOON, behind
from attestation_service.settings import Settings

OLD: Final = timedelta(days=2)
"""Of a backup."""

ENDING: Final = timedelta(days=7)
"""So long before it expires collateral is told of."""

CA_ENDING: Final = timedelta(days=30)
"""So long before its end a CA certificate of an HSM issuer is told of."""

SKEWED: Final = 5.0
"""Seconds by which this computer may differ from the database."""

_SSL_REQUEST: Final = struct.pack("!ii", 8, 80877103)
"""PostgreSQL's own way to begin TLS (PostgreSQL 18, §54.7, SSLRequest)."""


def backups(case: Case) -> Findings:
    """When the last one was made."""
    if case.facts is None:
        return
    todo = "attestation-service backup --to FOLDER --keys, daily"
    if case.facts.backed_up is None:
        yield warning(
            "backups",
            what="none was ever made by `attestation-service backup`: without one of your own, all that was decided "
            "goes with this database",
            todo=todo,
        )
    elif (age := case.at - parse_rfc3339(case.facts.backed_up)) > OLD:
        yield warning(
            "backups",
            what=f"the newest is {age.days} days old: machines that were locked or revoked since would be admitted "
            "again after a restore",
            todo=todo,
        )
    else:
        yield ok("backups", what=f"the newest is of {case.facts.backed_up}")


def collateral(case: Case) -> Findings:
    """What vouches for confidential hardware, before it expires."""
    if case.facts is None:
        return
    if not case.facts.collateral:
        yield ok("collateral", what="none is kept; only confidential machines need it")
    todo = (
        "attestation collateral refresh or import; with ITL_COLLATERAL_FETCH=true the service asks by itself"
    )
    for kind, until in sorted(case.facts.collateral.items()):
        left = until - case.at
        if left < timedelta():
            what = f"{kind}: a piece expired on {until:%Y-%m-%d}: machines that need it are undecided"
            yield warning("collateral", what=what, todo=todo)
        elif left < ENDING:
            what = f"{kind}: the first piece expires on {until:%Y-%m-%d}: from then on machines are undecided"
            yield warning("collateral", what=what, todo=todo)
        else:
            yield ok("collateral", what=f"{kind} holds until {until:%Y-%m-%d}")


def hsm_issuers(case: Case) -> Findings:
    """What CA keys in hardware of clusters need of their controllers, while certificates of theirs are good."""
    if case.facts is None:
        return
    for cluster_id, state in sorted(case.facts.hsm.items()):
        if state.overdue:
            yield warning(
                "HSM issuers",
                what=f"cluster {cluster_id}: {state.overdue} revocation lists are over or were never made: relying "
                "parties refuse what these CAs certified, or do not learn what was revoked",
                todo="let `attestation-operator hsm` of that cluster and its tokens run",
            )
        if state.first_end is not None and state.first_end - case.at < CA_ENDING:
            yield warning(
                "HSM issuers",
                what=f"cluster {cluster_id}: a CA certificate ends on {state.first_end:%Y-%m-%d}: nothing that it "
                "certified is good for longer",
                todo="have the issuer renew it, or let another key follow (`rotation`)",
            )
        if not state.overdue and (state.first_end is None or state.first_end - case.at >= CA_ENDING):
            yield ok("HSM issuers", what=f"cluster {cluster_id}: lists are good, {state.open} being signed")


def database_clock(case: Case) -> Findings:
    """How far the clock of this computer is from that of the database, which counts."""
    if not is_postgresql(case.settings.db_url):
        return
    skew = abs(behind(case.settings).total_seconds())
    if skew > SKEWED:
        yield warning(
            "clock",
            what=f"it differs by {skew:.0f} s from the database's, which counts for challenges, leases and the audit: "
            "what this computer logs is dated otherwise, and tokens of operators may be taken for expired",
            todo="let chrony or systemd-timesyncd set it, here or there",
        )
    else:
        yield ok("clock", what=f"it agrees with the database's ({skew:.1f} s)")


def database_tls(case: Case) -> Findings:
    """The certificate of each server of PostgreSQL: for its name, of its CA, not about to end."""
    for host, port, context in _asked(case.settings):
        yield from _certificate(case, host, port, context)


def _certificate(case: Case, host: str, port: int, context: ssl.SSLContext) -> Findings:
    try:
        with socket.create_connection((host, port), timeout=ASK_SECONDS) as plain:
            plain.sendall(_SSL_REQUEST)
            if plain.recv(1) != b"S":
                yield warning(
                    "database TLS",
                    what=f"{host} speaks no TLS: who is between reads and changes what is stored",
                    todo="switch it on at the server (ssl = on), then sslmode=verify-full in ITL_DB_URL",
                )
                return
            with context.wrap_socket(plain, server_hostname=host) as tls:
                shown = tls.getpeercert(binary_form=True)
    except (OSError, ValueError) as e:
        yield failed(
            "database TLS",
            what=f"{host}:{port}: {e}",
            todo="let the server have a certificate for that name of the CA that sslrootcert names",
        )
        return
    assert shown is not None  # TLS has no server without one
    until = x509.load_der_x509_certificate(shown).not_valid_after_utc
    if until - case.at < SOON:
        yield warning(
            "database TLS",
            what=f"the certificate of {host} ends on {until:%Y-%m-%d}: from then on nothing is stored or read",
            todo="renew it, at the server",
        )
    else:
        yield ok("database TLS", what=f"{host} until {until:%Y-%m-%d}")


def _asked(settings: Settings) -> Iterator[tuple[str, int, ssl.SSLContext]]:
    """Yield host, port and what is demanded of each server over the network; none where there is no wish for TLS."""
    if not is_postgresql(settings.db_url):
        return
    from attestation.store.postgres import parameters  # here: who has SQLite need not have its driver

    given: dict[str, Any] = parameters(settings.db_url)
    mode = given.get("sslmode", "prefer")
    if mode == "disable":
        return
    ca = given.get("sslrootcert")
    context = ssl.create_default_context(cafile=None if ca in (None, "system") else ca)
    context.check_hostname = mode == "verify-full"
    if mode not in ("verify-ca", "verify-full"):
        context.verify_mode = ssl.CERT_NONE
    # Several are separated by commas; one port is that of all (PostgreSQL, libpq: Specifying Multiple Hosts).
    hosts, ports = str(given.get("host") or "").split(","), str(given.get("port") or 5432).split(",")
    for host, port in zip(hosts, ports if len(ports) > 1 else ports * len(hosts), strict=False):
        if host and not host.startswith("/"):
            yield host, int(port or 5432), context
