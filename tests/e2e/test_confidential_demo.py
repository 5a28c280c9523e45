"""`./dev run --confidential` shows what it promises: two guests join, three that are not as they should be do not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

pytestmark = [pytest.mark.swtpm, pytest.mark.slow]

SAID = (
    "snp-1      attested, trust verified, assurance tee; configuration of ",
    "tdx-1      attested, trust verified, assurance tee; configuration of ",
    "snp-1      snp-debug: a debug guest: whoever runs the host can read its memory",
    "tdx-1      tdx-tcb: OutOfDate: TDX module TDX_03.04 is one level behind: 1 advisory since ",
    "stranger   refused: evidence-rejected; the challenge is spent",
    "snp-report-data: expected report data over this challenge, machine and key",
    "the service warns: ITL_TEE_TEST_ANCHORS",
    "entries, chain valid",
)


def test_two_guests_join_and_three_do_not(tmp_path: Path) -> None:
    """In words that an operator understands; the machines with TPMs are in the same fleet."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tools.demo", "--confidential", "--machines", "1", "--exit-after-demo"),
            *("--data", str(tmp_path / "data")),
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for words in SAID:
        assert words in done.stdout, words
