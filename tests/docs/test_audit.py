"""Every action of the audit log is explained."""

from __future__ import annotations

import re

import pytest

from attestation.store.audit import CHANGED
from attestation_service.storage.database import ADOPTING
from tests.docs.pages import ROOT, text

SOURCES = "\n".join(
    path.read_text(encoding="utf-8") for path in ROOT.glob("src/service/attestation_service/**/*.py")
)
ACTIONS = (
    {CHANGED, *ADOPTING}
    | set(re.findall(r"\.event\(\s*\"([a-z_]+)\"", SOURCES))
    | set(re.findall(r"\baction=\"([a-z_]+)\"(?! if)", SOURCES)) - {"store_true", "version", "none"}
)


@pytest.mark.threat("T45")
def test_every_action_is_explained() -> None:
    """Whoever reads the log finds each word of it in docs/operate/audit.md."""
    listed = set(re.findall(r"`([a-z_]+)`", text("docs/operate/audit.md").partition("## Checkpoints")[0]))
    assert len(ACTIONS) > 20
    assert listed >= ACTIONS
    # And nothing that does not occur; these are words of a choice, or who acted.
    assert listed - ACTIONS <= {
        "attest",
        "attest_failed",
        "directive_ack",
        "wipe_ack",
        "unknown",
        "machine",
        "service",
    }
