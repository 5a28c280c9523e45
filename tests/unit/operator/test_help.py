"""What the program says of itself needs no more than is there while its wheel is built (tools/wheel_hook.py)."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

from attestation_operator.main import COMMANDS

ROOT = Path(__file__).parents[3]
PROGRAM = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {absent}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Absent())
from attestation_operator.main import main
sys.exit(main(["--man"]))
"""


def test_its_pages_are_printed_without_what_runs_it() -> None:
    """A command's settings stand apart from what uses them: a wheel is built where no controller could run."""
    said = tomllib.loads((ROOT / "src/operator/pyproject.toml").read_text(encoding="utf-8"))
    assert any(each.startswith("pydantic>") for each in said["build-system"]["requires"])
    absent = {
        "aiohttp",
        "cronsim",
        "kopf",
        "lightkube",
        "prometheus_client",
        "pydantic_settings",
        "structlog",
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(absent=absent)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-500:]
    for name in COMMANDS:
        assert f' {name.upper()}"\n' in done.stdout, name
