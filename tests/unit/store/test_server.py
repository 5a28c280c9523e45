"""What a server of PostgreSQL must be."""

from __future__ import annotations

import dataclasses

import psycopg
import pytest
from psycopg import errors

from attestation.errors import StoreUnavailable
from attestation.store.server import Server
from attestation.store.unusable import unusable

GOOD = Server(
    major=14, version="14.0", encoding="UTF8", role="itl", schema="public", may_create=False, tls="TLSv1.3"
)


def test_the_oldest_that_is_supported_is() -> None:
    GOOD.demand_supported()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"major": 13, "version": "13.22"}, "the server is PostgreSQL 13.22; this service needs 14 or newer"),
        ({"encoding": "SQL_ASCII"}, "the encoding SQL_ASCII"),
        ({"schema": None}, "names no schema"),
    ],
    ids=str,
)
def test_what_is_not_is_refused_in_words(wrong: dict[str, object], words: str) -> None:
    with pytest.raises(StoreUnavailable, match=words):
        dataclasses.replace(GOOD, **wrong).demand_supported()  # type: ignore[arg-type]  # of the table above


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (errors.DiskFull("alles voll"), "no room is left on the disk of the server of the database x at db"),
        (errors.TooManyConnections("zu viele"), "no connection left (zu viele). Raise its max_connections"),
        (errors.CannotConnectNow("startet gerade"), "starts or stops just now (startet gerade)"),
        (errors.InvalidPassword("falsch"), "takes no password of ours (falsch)"),
        (errors.InvalidCatalogName("keine"), "there is no database x at db (keine)"),
        (psycopg.OperationalError("FATAL:  sorry, too many clients already"), "no connection left"),
        (psycopg.OperationalError("FATAL:  the database system is starting up"), "starts or stops just now"),
        (psycopg.OperationalError("FATAL:  the database system is shutting down"), "starts or stops just now"),
        (psycopg.OperationalError("SSL error: certificate verify failed"), "no TLS that we trust leads to"),
        (psycopg.OperationalError("server does not support SSL, but SSL was required"), "no TLS that we trust"),
        (psycopg.OperationalError("Verbindung verweigert"), "does not answer: Verbindung verweigert"),
    ],
    ids=str,
)  # fmt: skip
def test_what_a_server_says_has_its_words(error: psycopg.Error, words: str) -> None:
    """By its code, whatever its language; without a code, by its English words; else as it says it."""
    assert words in str(unusable("x at db", error))
