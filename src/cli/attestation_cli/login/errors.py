"""What can go wrong between an operator and an identity provider.

Messages never hold a token, a code or a password; what the provider said is cleaned before it is printed.
"""

from __future__ import annotations

from attestation.errors import RequestInvalid, Unauthenticated, Unavailable


class LoginNeeded(Unauthenticated):
    """There is no login, or it has ended and cannot be renewed."""

    code = "login-needed"


class LoginRefused(Unauthenticated):
    """The provider, or its user, said no; or its answer does not belong to this login."""

    code = "login-refused"


class LoginTimedOut(Unavailable):
    """Nobody finished the login in time."""

    code = "login-timed-out"


class ProviderUnreachable(Unavailable):
    """The identity provider did not answer, or could not prove who it is."""

    code = "provider-unreachable"


class ProviderInvalid(Unavailable):
    """Something answered, but not as an identity provider that we can use."""

    code = "provider-invalid"


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
