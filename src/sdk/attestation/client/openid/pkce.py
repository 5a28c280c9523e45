"""Proof key for code exchange: only whoever began a login can finish it (RFC 7636)."""

# Algorithms for: login
from __future__ import annotations

import base64
import hashlib
import secrets
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ProofKey:
    """The verifier that we keep, and the challenge that the provider is told first.

    Args:
        verifier: 43 characters of base64url: 256 random bits (RFC 7636 §4.1 allows 43 to 128).
    """

    verifier: str = field(default_factory=lambda: random_text(), repr=False)

    @property
    def challenge(self) -> str:
        """SHA-256 of the verifier in base64url without padding: 43 characters (S256, RFC 7636 §4.2)."""
        digest = hashlib.sha256(self.verifier.encode("ascii")).digest()
        return base64.urlsafe_b64encode(digest).rstrip(b"=").decode("ascii")


def random_text() -> str:
    """Return 256 random bits as 43 characters of base64url: also good for `state` and `nonce`."""
    return secrets.token_urlsafe(32)
