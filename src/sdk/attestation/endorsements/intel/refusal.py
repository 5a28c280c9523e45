"""Why something of Intel's is not believed."""

from __future__ import annotations

from attestation.results.codes import Code


class Refused(Exception):
    """A chain or a collateral object is not what it should be.

    Args:
        code: CHAIN_INVALID, COLLATERAL_INVALID, COLLATERAL_UNAVAILABLE or REVOKED.
        reason: In words; names the object.
    """

    def __init__(self, code: Code, reason: str) -> None:
        super().__init__(reason)
        self.code = code
