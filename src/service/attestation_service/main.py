"""`attestation-service`: read the settings, say what is weakened, migrate, serve."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import TypedDict

import structlog
import uvicorn

from attestation.clock import Clock, SystemClock
from attestation.errors import AttestationError
from attestation.keys import load_signer
from attestation.store import Store, migrate, open_store
from attestation_service import __version__, crypto_policy, database, logs, operator_ca
from attestation_service.auth.client_certificate import ClientCertificates
from attestation_service.authority import open_authority
from attestation_service.settings import Settings, SettingsInvalid
from attestation_service.tls import PROTOCOL, ServerTLS, build
from attestation_service.transparency import countersigners, load_log_signer

log = structlog.get_logger("attestation_service")

EXIT_USAGE = 2
EXIT_UNUSABLE = 1
FACTORY = "attestation_service.app:create_app"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the service until it is told to stop; return the exit status."""
    options = _parser().parse_args(arguments)
    try:
        settings = Settings.load()
    except SettingsInvalid as e:
        sys.stderr.write(f"attestation-service: {e}\n")
        return EXIT_USAGE
    logs.configure(settings.log_level)
    # Before the workers start, and once: a database or key that cannot be used is one error, not N.
    try:
        if options.accept_restored_database:
            _with_store(settings, database.accept)
            return 0
        database.demand_present(settings)
        _with_store(settings, database.recognise)
        crypto_policy.check_files(settings)
        load_signer(
            settings.service_key_uri, create=True, options=crypto_policy.service_key_options(settings)
        )
        load_log_signer(settings, create=True)
        _authority(settings)
        countersigners(settings)
        serving = _serving(settings)
    except (AttestationError, SettingsInvalid, OSError, ValueError) as e:
        log.error("service.unusable", reason=str(e))  # noqa: TRY400 -- the reason is for operators, a trace is not
        return EXIT_UNUSABLE
    if options.check:
        for warning in settings.warnings():
            log.warning("settings.weakened", warning=warning)
        for notice in settings.notices():
            log.info("settings.notice", notice=notice)
        return 0
    uvicorn.run(
        FACTORY,
        factory=True,
        host=options.host,
        port=options.port,
        uds=options.uds,
        workers=options.workers,
        log_config=None,  # ours
        access_log=False,  # ours: the server's would print config tokens
        proxy_headers=False,  # ours: only trusted proxies are believed
        server_header=False,
        timeout_graceful_shutdown=settings.shutdown_seconds,
        **serving,
    )
    return 0


def _with_store(settings: Settings, act: Callable[[Settings, Store, Clock], None]) -> None:
    """Migrate the database, and let *act* have it.

    Raises:
        ValueError: ITL_DB_URL is not the URL of a database that we support.
        AttestationError: The database cannot be used, or *act* says no.
    """
    migrate(settings.db_url)
    store = open_store(settings.db_url)
    try:
        act(settings, store, SystemClock())
    finally:
        store.close()


def _authority(settings: Settings) -> None:
    """Make the CA, or prove that it can be opened; write down whose certificates operators have.

    Raises:
        OSError: That cannot be written.
        KeyUnusable: A key cannot be made or opened: wrong passphrase, another key, no token.
        SignerUnavailable: A token or TPM does not answer.
    """
    if not settings.has_ca:
        return
    store = open_store(settings.db_url)
    try:
        open_authority(settings, store, SystemClock()).close()
        if (path := operator_ca.file_of(settings)) is not None:
            operator_ca.publish(path, store.read_sync(operator_ca.certificates))
    finally:
        store.close()


class _Serving(TypedDict, total=False):
    http: str
    ssl_context_factory: ServerTLS


def _serving(settings: Settings) -> _Serving:
    """Return what the server needs for TLS of our own, nothing where it ends before the service.

    Also reads what operators' certificates are judged by: a wrong file is one error here, not one per worker.

    Raises:
        SettingsInvalid: The files cannot be used.
    """
    if settings.operator_ca is not None:
        ClientCertificates(settings)
    chosen = ServerTLS.of(settings)
    if chosen is None:
        return {}
    build(chosen)
    return {"http": PROTOCOL, "ssl_context_factory": chosen}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="attestation-service",
        description="The attestation control plane. Settings: docs/operate/settings.md",
    )
    parser.add_argument("--host", default="0.0.0.0", help="address to listen on")  # noqa: S104 -- a server
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--uds", help="listen on this unix socket instead")
    parser.add_argument("--workers", type=int, default=1, help="processes that share the database")
    parser.add_argument("--check", action="store_true", help="check settings, database and key, then exit")
    parser.add_argument(
        "--accept-restored-database",
        action="store_true",
        help="take the database as it is, though the audit log's keys remember another or a newer one; then exit",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    return parser


if __name__ == "__main__":
    sys.exit(main())
