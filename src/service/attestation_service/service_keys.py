"""The service's key, and around a change the one after it or the one before it (docs/adr/0046).

One signs. All are published, and a machine that pinned one is told of all of them, signed by one that it knows.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from attestation.keys import KEYS_TYP, Signer, key_set_sha256, load_signer, thumbprints
from attestation.machines import Machine
from attestation_service import crypto_policy, statements
from attestation_service.settings import Settings


class ServiceKeys:
    """A signer that others follow or came before.

    Args:
        active: Signs.
        following: Will sign; published already.
        previous: Signed until lately; it only tells machines that were away of its successor.
    """

    def __init__(
        self, active: Signer, *, following: Signer | None = None, previous: Signer | None = None
    ) -> None:
        self._active = active
        self._known_to_all = previous or active
        found: dict[str, dict[str, Any]] = {}
        for signer in (active, following, previous):
            found |= thumbprints(signer.jwks()) if signer is not None else {}
        self._jwks = {"keys": list(found.values())}
        self._changing = len(found) > 1
        self.sha256 = key_set_sha256(found)
        """What names the set, 32 bytes; `jwks_sha256` in hex."""

    def sign_jwt(self, claims: dict[str, Any], *, typ: str) -> str:
        """Return *claims* as a compact JWS of the active key; blocks: never on an event loop.

        Raises:
            SignerUnavailable: The device that holds the key does not sign now.
        """
        return self._active.sign_jwt(claims, typ=typ)

    def jwks(self) -> dict[str, Any]:
        """Return all public keys as a JWK set, the active one first."""
        return self._jwks

    def secret(self, purpose: bytes) -> bytes | None:
        """Return 32 bytes that only the active key gives; None where its device only signs."""
        return self._active.secret(purpose)

    def unknown_to(self, machine: Machine, node_nonce: str | None) -> bool:
        """Return True where *machine* is to be told of the keys: a change is under way, or it missed the end of one.

        Args:
            machine: What it acknowledged last counts; None is everybody before their first change.
            node_nonce: Of its request; without one, it cannot be told anything.
        """
        pinned = machine.pinned_keys
        return node_nonce is not None and pinned != self.sha256 and (self._changing or pinned is not None)

    def statement(self, machine: Machine, node_nonce: str | None, at: datetime) -> str:
        """Return the change of keys for *machine*; blocks.

        Signed by the key before, where there is one: a machine that did not acknowledge this set knows no other.
        """
        claims = statements.claims(machine, node_nonce, at, keys=self._jwks)
        return self._known_to_all.sign_jwt(claims, typ=KEYS_TYP)


def load_service_keys(settings: Settings) -> ServiceKeys:
    """Open the keys that the settings name; the active and the next one are made where they are not.

    Raises:
        KeyUnusable, SignerUnavailable: One of them cannot be used.
        AlgorithmForbidden: The policy in force forbids it.
    """
    options = crypto_policy.service_key_options(settings)
    following, previous = settings.service_key_next, settings.service_key_previous
    return ServiceKeys(
        load_signer(settings.service_key_uri, create=True, options=options),
        following=load_signer(following, create=True, options=options) if following else None,
        previous=load_signer(previous, options=options) if previous else None,
    )
