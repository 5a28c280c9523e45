"""Structured logs on standard error, without secrets: one JSON object per line; on a terminal, lines for people.

Logs are for us; the audit is for proof. Never mix them.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterable, MutableMapping
from typing import Any

import structlog

from attestation.log_line import Lines, LogFormat, is_coloured, is_for_people, standard_error

REDACTED = "***"
SECRET_WORDS = frozenset(
    {
        "activation",
        "authorization",
        "ciphertext",
        "config_token",
        "cookie",
        "credential_blob",
        "encrypted_secret",
        "nonce",
        "password",
        "pin",
        "proof",
        "registration_token",
        "secret",
        "token",
    }
)
# A config token stands in the path: the one secret that a plain access log would keep.
_TOKEN_PATH = re.compile(r"(/config/)[^/?\s\"']+")
_BEARER = re.compile(r"(?i)(bearer\s+)\S+")

Event = MutableMapping[str, Any]


def mask_path(path: str) -> str:
    """Return *path* without the config token in it."""
    return _TOKEN_PATH.sub(rf"\1{REDACTED}", path) if "/config/" in path else path


def mask_text(text: str) -> str:
    """Return *text* without config tokens and bearer credentials."""
    text = mask_path(text)
    # Looked for first: the expression alone would cost more than the whole event.
    return _BEARER.sub(rf"\1{REDACTED}", text) if "earer" in text or "EARER" in text else text


def redact(_logger: object, _method: str, event: Event) -> Event:
    """Replace the values of members whose name says that they are secret, and secrets inside text."""
    for key, value in event.items():
        if key in SECRET_WORDS:
            event[key] = REDACTED
        elif type(value) is str and key != "path":  # the middleware masks paths itself
            event[key] = mask_text(value)
    return event


class _Redacting(logging.Filter):
    """Masks what other libraries log through the standard library."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg = mask_text(record.getMessage())
        record.args = None
        return True


def configure(level: str, form: LogFormat = "auto") -> None:
    """Send our events and those of the libraries to standard error, in the form that was chosen.

    Called by the lifespan and by `main`, never on import; calling it twice changes nothing.
    """
    stamp = structlog.processors.TimeStamper(fmt="iso", utc=True, key="at")
    shared: Iterable[structlog.types.Processor] = (structlog.stdlib.add_log_level, stamp, redact)
    renderer: structlog.types.Processor = (
        Lines(colour=is_coloured(sys.stderr))
        if is_for_people(form, sys.stderr)
        else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            *shared,
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.WriteLoggerFactory(standard_error()),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(standard_error())
    handler.addFilter(_Redacting())
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=list(shared),
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                renderer,
            ],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(level.upper())
    for name in ("uvicorn", "uvicorn.error"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [], True
    # Alembic names every part it loads; that a migration ran stands in its own logger.
    logging.getLogger("alembic.runtime.plugins").setLevel(logging.WARNING)
    # Whoever asks another service says so in an event of their own.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    # The access log is ours (middleware.py): the server's prints config tokens.
    access = logging.getLogger("uvicorn.access")
    access.handlers, access.propagate, access.disabled = [], False, True
