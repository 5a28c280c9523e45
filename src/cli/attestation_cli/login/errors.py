"""What can go wrong here with logins; what can between us and a provider stands in `attestation.client.openid`."""

from __future__ import annotations

from attestation.errors import RequestInvalid, Unavailable


class LoginTimedOut(Unavailable):
    """Nobody finished the login in time."""

    code = "login-timed-out"


class CacheUnsafe(RequestInvalid):
    """Somebody else could have read or written the cached logins."""

    code = "login-cache-unsafe"


class CacheBusy(Unavailable):
    """Another command holds the login for too long."""

    code = "login-cache-busy"


class KeychainUnusable(RequestInvalid):
    """There is no keyring that could keep a token."""

    code = "keyring-unusable"


class ConfigInvalid(RequestInvalid):
    """`~/.itl/config.toml` cannot be used, or the profile asked for is not in it."""

    code = "cli-config-invalid"
