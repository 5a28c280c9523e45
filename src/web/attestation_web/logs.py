"""Logs on standard error: one JSON object per line, lines for people on a terminal. No token stands in them."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import MutableMapping
from typing import Any, Final

import structlog

from attestation.log_line import Lines, LogFormat, is_coloured, is_for_people, standard_error

NAME: Final = "attestation_web"
_JWT: Final = re.compile(r"\beyJ[\w-]+\.[\w-]+\.[\w-]*")
_CODE: Final = re.compile(r"\b(code|state|token)=[^&\s]+")


def masked(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Mask tokens and codes in each text of an event."""
    for name, value in event.items():
        if isinstance(value, str):
            event[name] = _CODE.sub(r"\1=***", _JWT.sub("***", value))
    return event


def configure(level: str, form: LogFormat = "auto") -> None:
    """Set up logging for this process.

    Args:
        level: `debug`, `info`, `warning` or `error`.
        form: `text` for people, `json` for programs, `auto` what stderr is.
    """
    shared: list[Any] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="at"),
        structlog.processors.format_exc_info,
        masked,
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
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, masked, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(max(number, logging.WARNING))


def log() -> Any:
    """Return the logger."""
    return structlog.get_logger(NAME)
