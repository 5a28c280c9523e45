"""What is done once before anything is served: the database migrated and recognised, what is missing made, all tried.

A database, key or file that cannot be used is one error here, not one for each worker.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

import structlog

from attestation.clock import Clock
from attestation.errors import AttestationError, StoreUnavailable
from attestation.store import Store, StoreSettings, migrate, open_store, place
from attestation.store.migrate import HEAD
from attestation.store.unusable import unusable
from attestation_service import extensions
from attestation_service.auth.mtls import MTLS
from attestation_service.authority import open_authority
from attestation_service.border import operator_ca
from attestation_service.border.tls import ServerTLS, build
from attestation_service.keys import crypto_policy, known_keys
from attestation_service.keys.service_keys import KeyHolder
from attestation_service.settings import Settings, SettingsInvalid
from attestation_service.storage import database
from attestation_service.transparency import countersigners, load_log_signer

log = structlog.get_logger("attestation_service")


def prepare(settings: Settings) -> bool:
    """Do it; where the service cannot start, say why and return False. It starts without a key that is away."""
    return _told(lambda chosen: _prepare(chosen, KeyHolder(chosen)), settings)


def accept_restored_database(settings: Settings) -> bool:
    """Let the keys know a restored database; where that cannot be, say why and return False."""

    def work(chosen: Settings) -> None:
        _migrate(chosen)
        _with_store(chosen, database.accept, StoreSettings(moved_too=True))
        if (missing := KeyHolder(chosen).missing()) is not None:
            log.warning(
                "service_key.missing",
                key=missing,
                meaning="the next start makes another, which no machine knows: they obey nothing until given it. "
                "Put the old one back before that start, if there is a copy",
            )

    return _told(work, settings)


def _told(work: Callable[[Settings], None], settings: Settings) -> bool:
    try:
        work(settings)
    except (AttestationError, SettingsInvalid, OSError, ValueError) as e:
        log.error("service.unusable", reason=str(e))  # noqa: TRY400 -- the reason is for operators, a trace is not
        return False
    return True


def _prepare(settings: Settings, keys: KeyHolder) -> None:
    enabled = extensions.load(settings)
    database.demand_present(settings)
    _migrate(settings)
    _with_store(settings, _recognise)
    extensions.migrate(settings, enabled)
    extensions.tell_skipped(enabled)
    crypto_policy.check_files(settings)
    keys.open(make=True)
    signer = load_log_signer(settings, create=True)
    _with_store(settings, lambda chosen, store, clock: known_keys.demand(chosen, store, clock, keys, signer))
    if settings.has_ca:
        _with_store(settings, _authority)
    countersigners(settings)
    _check_tls(settings)


def _recognise(settings: Settings, store: Store, clock: Clock) -> None:
    database.recognise(settings, store, clock)
    database.demand_log_keys(settings, store)


def _migrate(settings: Settings) -> None:
    """Bring the database to our revision, or say that a newer one is there which lets this program run.

    Raises:
        ValueError: ITL_DB_URL is not the URL of a database that we support.
        AttestationError: The database cannot be used.
    """
    if (newer := migrate(settings.db_url)) is not None:
        log.warning(
            "database.newer",
            revision=newer,
            ours=HEAD,
            meaning="a newer version upgraded the database, and says that this one may still run on it. Finish the "
            "upgrade: start that version in place of this one",
        )


def _with_store(
    settings: Settings, act: Callable[[Settings, Store, Clock], None], behaviour: StoreSettings | None = None
) -> None:
    """Let *act* have the store of the migrated database.

    Raises:
        AttestationError: The database cannot be used, or *act* says no.
    """
    store = open_store(settings.db_url, behaviour)
    try:
        act(settings, store, store.clock)
    except StoreUnavailable as e:
        # The store's words are for those who ask the service; whoever starts it is told the file, and what to do.
        if isinstance(e.__cause__, sqlite3.Error) or hasattr(e.__cause__, "sqlstate"):
            raise unusable(place(settings.db_url), e.__cause__) from e
        raise
    finally:
        store.close()


def _authority(settings: Settings, store: Store, clock: Clock) -> None:
    """Make the CA, or prove that it can be opened; write down whose certificates operators have.

    Raises:
        OSError: That cannot be written.
        KeyUnusable: A key cannot be made or opened: wrong passphrase, another key.
        SignerUnavailable: The first key cannot be made, because its token or TPM does not answer.
    """
    open_authority(settings, store, clock).close()
    if (path := operator_ca.file_of(settings)) is not None:
        operator_ca.publish(path, store.read_sync(operator_ca.certificates))


def _check_tls(settings: Settings) -> None:
    """Read the certificates of the service and of operators.

    Raises:
        SettingsInvalid: The files cannot be used.
    """
    if settings.operator_ca is not None:
        MTLS(settings)
    if (chosen := ServerTLS.of(settings)) is not None:
        build(chosen)
