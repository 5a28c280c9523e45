"""The route of sealed bundles as the command line asks for it (`attestation_cli.plugin`)."""

# These functions are declarations: nothing runs them.
# mypy: disable-error-code="empty-body"
from __future__ import annotations

from attestation_cli.plugin import operation


class RunBundles:
    """What an operator asks of them."""

    @operation("read_run_bundle", "GET /runs/{uid}/bundle", accept="*/*")
    def bundle(self, uid: str) -> bytes:
        """Return the sealed bundle of a run, `.intoto.jsonl`."""
