"""What can go wrong with who is here."""

from __future__ import annotations

from attestation.errors import AttestationError, Forbidden, RequestInvalid, Unauthenticated


class NotLoggedIn(Unauthenticated):
    """Nobody is logged in in this browser, or not any more."""

    code = "login-needed"


class LoginTooOld(Forbidden):
    """Who decides must have logged in lately."""

    code = "authentication-too-old"


class TokenInvalid(AttestationError):
    """A token of the provider that does not prove what it should."""

    code = "provider-token-invalid"


class FormForged(RequestInvalid):
    """A form that this dashboard did not give to this person for this address."""

    code = "form-forged"
