"""Logs: one JSON object per line on stderr. Secrets never become fields."""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog


def configure(level: str) -> Any:
    """Set up logging for this process and return the logger.

    Args:
        level: `debug`, `info`, `warning` or `error`.
    """
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="at"),
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
    return structlog.get_logger("attestation_agent")
