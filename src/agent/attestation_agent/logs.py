"""Logs on stderr: one JSON object per line, lines for people on a terminal. Secrets never become fields."""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog

from attestation.log_line import Lines, LogFormat, is_coloured, is_for_people, standard_error


def configure(level: str, form: LogFormat = "auto") -> Any:
    """Set up logging for this process and return the logger.

    Args:
        level: `debug`, `info`, `warning` or `error`.
        form: `text` for people, `json` for programs, `auto` what stderr is.
    """
    text = is_for_people(form, sys.stderr)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="at"),
            Lines(colour=is_coloured(sys.stderr)) if text else structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.WriteLoggerFactory(standard_error()),
        cache_logger_on_first_use=False,
    )
    return structlog.get_logger("attestation_agent")
