"""The commands of the operator's distribution, as the command line finds them."""

from __future__ import annotations

import subprocess
import sys

HEAVY = ("lightkube", "kopf", "pydantic", "cryptography", "httpx2", "cronsim")


def test_help_waits_for_nothing_that_talks_to_kubernetes() -> None:
    """What a command needs is imported when it runs."""
    code = (
        "import sys\n"
        "from attestation_operator.commands import hsm, run, schedule\n"
        f"print(*(name for name in {HEAVY!r} if name in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=240
    )
    assert done.stdout.split() == []
