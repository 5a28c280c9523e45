"""What can go wrong between somebody who logs in and an identity provider.

Messages never hold a token, a code or a password; what the provider said is cleaned before it is printed.
"""

from __future__ import annotations

from attestation.errors import Unauthenticated, Unavailable


class LoginNeeded(Unauthenticated):
    """There is no login, or it has ended and cannot be renewed."""

    code = "login-needed"


class LoginRefused(Unauthenticated):
    """The provider, or its user, said no; or its answer does not belong to this login."""

    code = "login-refused"


class ProviderUnreachable(Unavailable):
    """The identity provider did not answer, or could not prove who it is."""

    code = "provider-unreachable"


class ProviderInvalid(Unavailable):
    """Something answered, but not as an identity provider that we can use."""

    code = "provider-invalid"
