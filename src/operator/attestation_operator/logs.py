"""Logs on standard error: one JSON object per line, lines for people on a terminal; what kopf and lightkube say too."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import MutableMapping
from typing import Any, Final

import structlog

from attestation.log_line import Lines, LogFormat, is_coloured, is_for_people, standard_error

NAME: Final = "attestation_operator"
_BEARER: Final = re.compile(r"(?i)(bearer\s+)\S+")
_JWT: Final = re.compile(r"\beyJ[\w-]+\.[\w-]+\.[\w-]*")


def masked(text: str) -> str:
    """Return *text* without bearer tokens."""
    return _JWT.sub("***", _BEARER.sub(r"\1***", text))


def redact(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Mask tokens in each text of an event."""
    for name, value in event.items():
        if isinstance(value, str):
            event[name] = masked(value)
    return event


def configure(level: str, form: LogFormat = "auto") -> Any:
    """Set up logging for this process and return the logger.

    Args:
        level: `debug`, `info`, `warning` or `error`.
        form: `text` for people, `json` for programs, `auto` what stderr is.
    """
    shared: list[Any] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="at"),
        structlog.processors.format_exc_info,
        redact,
    ]
    text = is_for_people(form, sys.stderr)
    renderer: Any = Lines(colour=is_coloured(sys.stderr)) if text else structlog.processors.JSONRenderer()
    number = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(standard_error()),
        cache_logger_on_first_use=False,
    )
    handler = logging.StreamHandler(standard_error())
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, redact, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(number)
    # One line for each request to the API server says nothing; each action of ours is an event of its own.
    for name in ("httpx2", "httpcore2", "asyncio", "aiohttp.access"):
        logging.getLogger(name).setLevel(max(number, logging.WARNING))
    # kopf tells each start, end and login; what goes wrong is what it tells from warnings on. That it leaves signals
    # alone, on a thread, is as it should be.
    logging.getLogger("kopf").setLevel(number if number < logging.INFO else max(number, logging.WARNING))
    logging.getLogger("kopf._core.reactor.running").setLevel(logging.ERROR)
    return structlog.get_logger(NAME)
