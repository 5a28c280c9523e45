"""The build of the SDK ends if its trust bundle is not the one that its manifest pins.

Hatchling runs this for wheels, editable ones too, and for source archives.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class TrustBundleHook(BuildHookInterface):  # type: ignore[type-arg]  # hatchling fills the argument in itself
    """Reads the bundle as the service does: every file there, equal to its pin, a certificate of a CA."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002 -- hatchling's signature
        """Read the bundle of this source tree."""
        # The sources come first, so that no installed SDK answers for them.
        sys.path.insert(0, self.root)
        from attestation.errors import BundleInvalid
        from attestation.tpm_bundle import bundle_of, files

        sys.path.remove(self.root)
        try:
            bundle = bundle_of(files.read(Path(self.root) / "attestation" / "tpm_bundle", "tpm_bundle"))
        except BundleInvalid as e:
            sys.exit(f"the trust bundle is damaged: {e}")
        if not bundle.anchors:
            sys.exit("the trust bundle is damaged: it has no anchor")
