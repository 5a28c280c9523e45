"""Tokens in the keyring of the system (extra `keyring`), where somebody asks for it.

The file of a login then holds everything but its two tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from attestation_cli.login.errors import KeychainUnusable

SERVICE = "itl-attestation"
Result = TypeVar("Result")


class Keychain(Protocol):
    """Where a text is kept under a name."""

    def get(self, name: str) -> str | None:
        """Return what is kept under *name*."""

    def put(self, name: str, secret: str) -> None:
        """Keep *secret* under *name*."""

    def remove(self, name: str) -> None:
        """Forget *name*, if it is known."""


class SystemKeychain:
    """The keyring of the system, by the library `keyring`.

    Raises:
        KeychainUnusable: The library is not installed, or it found no keyring that keeps secrets secret.
    """

    def __init__(self) -> None:
        # Imported here: finding the backends takes longer than most commands.
        try:
            import keyring
            from keyring.backends import fail, null
        except ImportError:
            raise KeychainUnusable(
                "the library is not installed: pip install 'itl-attestation-cli[keyring]'"
            ) from None
        backend = keyring.get_keyring()
        useless = isinstance(backend, fail.Keyring | null.Keyring)
        if useless or backend.priority <= 0 or "plaintext" in type(backend).__name__.lower():
            raise KeychainUnusable("this computer has no keyring that keeps a token secret")
        self._backend = backend

    def get(self, name: str) -> str | None:
        """Return what is kept under *name*."""
        return self._do("read", lambda: self._backend.get_password(SERVICE, name))

    def put(self, name: str, secret: str) -> None:
        """Keep *secret* under *name*."""
        self._do("written", lambda: self._backend.set_password(SERVICE, name, secret))

    def remove(self, name: str) -> None:
        """Forget *name*, if it is known."""
        if self.get(name) is not None:
            self._do("changed", lambda: self._backend.delete_password(SERVICE, name))

    def _do(self, what: str, work: Callable[[], Result]) -> Result:
        import keyring.errors

        try:
            return work()
        except keyring.errors.KeyringError as e:
            # The class only: the text is the backend's and may repeat what it was given.
            raise KeychainUnusable(f"the keyring could not be {what}: {type(e).__name__}") from None
