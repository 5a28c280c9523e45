"""Bytes to test against, where they come from, and the forge that made our own."""

from __future__ import annotations

from pathlib import Path

import pytest

OWN = Path(__file__).parent / "tpm" / "own"
SHARED = Path(__file__).parents[3] / "shared" / "vectors"
"""Vectors of real devices and simulators, beside the project; a test that uses them skips where absent."""

needs_shared = pytest.mark.skipif(
    not (SHARED / "tpm" / "expected.json").exists(),
    reason="the vectors of swtpm are not beside the project (../shared/vectors)",
)
