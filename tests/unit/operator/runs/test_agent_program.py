"""The agent as a process: what it loads on each node."""

from __future__ import annotations

import subprocess
import sys


def test_a_node_loads_no_framework_of_controllers() -> None:
    """It watches and asks: kopf, which would want to write, is not even loaded."""
    words = (
        "import sys, attestation_operator.runs.agent_program as _, attestation_operator.runs.agent_settings as _; "
        "print(sorted({'kopf', 'attestation_operator.program', 'sqlalchemy'} & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", words], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"
