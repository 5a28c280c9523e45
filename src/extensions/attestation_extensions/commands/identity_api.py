"""The routes of machine_identity as the command line asks for them (`attestation_cli.plugin`)."""

# These functions are declarations: nothing runs them.
# mypy: disable-error-code="empty-body"
from __future__ import annotations

from attestation_cli.plugin import operation
from attestation_extensions.machine_identity import wire


class Identity:
    """What an operator asks of it, and what anybody may."""

    @operation("machine_identity_audiences", "GET /identity/audiences")
    def audiences(self) -> wire.AudienceList:
        """List the audiences."""

    @operation("machine_identity_keys", "GET /identity/keys")
    def keys(self) -> wire.IdentityKeys:
        """List the keys that are published."""

    @operation("machine_identity_rotate", "POST /identity/keys/rotate")
    def rotate(self, request: wire.RotateIdentityKey) -> wire.IdentityKeys:
        """Exchange the key that signs."""

    @operation("machine_identity_status", "GET /identity/status/{jti}")
    def status(self, jti: str) -> wire.TokenStatus:
        """Say whether a token counts."""

    @operation("machine_identity_revoked", "GET /identity/revoked")
    def revoked(self) -> wire.RevokedTokens:
        """List the tokens that ended before their time."""
