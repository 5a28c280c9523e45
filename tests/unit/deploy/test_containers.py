"""The files in deploy/containers, as far as they can be judged without building anything."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.docs.pages import ROOT

FILES = sorted((ROOT / "deploy/containers").glob("*.Dockerfile"))


def test_a_linter_of_images_finds_nothing() -> None:
    """Hadolint, with shellcheck's judgement of each RUN; what is passed over says why above it."""
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run(
        [str(hadolint), "--failure-threshold", "style", *map(str, FILES)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert len(FILES) == 4


def test_they_name_no_registry() -> None:
    """Whose mirror the base comes from is up to who builds."""
    for file in FILES:
        for name in re.findall(r"^(?:FROM|ARG BASE=) *(\S+)", file.read_text(encoding="utf-8"), re.MULTILINE):
            assert not re.search("[/@]", name), name
