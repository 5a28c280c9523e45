"""Which token a key URI means, and whether it may be logged in to."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Protocol

from pkcs11 import Slot, Token, TokenFlag, TokenNotPresent, TokenNotRecognised

from attestation.errors import KeyAmbiguous, PINRejected, TokenAbsent
from attestation.keys.secrets import SecretSource


class Library(Protocol):
    """What we use of a loaded module: `pkcs11.lib`."""

    def initialize(self) -> None:
        """C_Initialize, where it is not."""
        ...

    def finalize(self) -> None:
        """C_Finalize: every session ends, everybody is logged out."""
        ...

    def get_slots(self, token_present: bool = False) -> Sequence[Slot]:
        """C_GetSlotList."""
        ...


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TokenName:
    """One token, by what a URI says of it.

    Args:
        label: CKA label without the padding of spaces to 32 bytes; None: any.
        serial: Serial number without padding; None: any.
        pin: Returns the PIN, UTF-8; asked at each login. None: no login.
    """

    label: str | None
    serial: str | None
    pin: SecretSource | None = dataclasses.field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        """Say it as the URI does."""
        parts = (("token", self.label), ("serial", self.serial))
        return ";".join(f"{name}={value}" for name, value in parts if value is not None) or "any token"


def find_token(library: Library, name: TokenName) -> Token:
    """Return the token that *name* means, with its flags as they are now.

    Raises:
        TokenAbsent: There is none; the message names those that are there.
        KeyAmbiguous: Several fit.
        pkcs11.PKCS11Error: The module failed.
    """
    found, others = [], []
    for slot in library.get_slots(token_present=True):
        try:
            token = slot.get_token()
        except (TokenNotPresent, TokenNotRecognised):
            continue
        label, serial = token.label.rstrip(" \0"), token.serial.decode("utf-8", "replace").rstrip(" \0")
        if name.label in (None, label) and name.serial in (None, serial):
            found.append(token)
        elif label:
            others.append(label)
    if not found:
        there = ", ".join(repr(label) for label in sorted(others)[:8]) or "none"
        raise TokenAbsent(f"no token {name}; tokens that are there: {there}")
    if len(found) > 1:
        raise KeyAmbiguous(f"{len(found)} tokens are {name}; add serial=… to the URI")
    return found[0]


def may_log_in(token: Token, name: TokenName) -> None:
    """Make sure that one attempt to log in, should the PIN be wrong, does not lock the token.

    Raises:
        PINRejected: The PIN is locked, or the next wrong one would lock it.
    """
    if token.flags & TokenFlag.USER_PIN_LOCKED:
        raise PINRejected(f"the PIN of {name} is locked; unblock it with the security officer's PIN")
    if token.flags & TokenFlag.USER_PIN_FINAL_TRY:
        raise PINRejected(
            f"one wrong PIN more would lock {name}, so nothing logs in by itself; log in once by hand, "
            "e.g. pkcs11-tool --login --list-objects"
        )
