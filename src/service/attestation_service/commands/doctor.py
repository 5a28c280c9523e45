"""`doctor`: look at the whole installation; `--check`: only at what a start needs. Both touch nothing."""

from __future__ import annotations

import argparse

from attestation.clock import SystemClock
from attestation_service.commands.telling import tell
from attestation_service.inspection import BEYOND, PARTS, Listen, inspect
from attestation_service.settings import Settings


def run(settings: Settings, options: argparse.Namespace) -> int:
    """Tell what was found; return 1 where something fails."""
    listen = Listen(host=options.host, port=options.port, uds=options.uds)
    found = inspect(settings, listen, SystemClock().now(), PARTS if options.check else BEYOND)
    return tell(
        found, options.output, good="A start would serve.", bad="A start would not serve as it should"
    )
