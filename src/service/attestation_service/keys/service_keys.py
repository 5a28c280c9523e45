"""The service's key, and around a change the one after it or the one before it (docs/adr/0046).

One signs. All are published, and a machine that pinned one is told of all of them, signed by one that it knows.

While one of them is away with its token or TPM the service has none: it waits, is not ready, and machines are told to
come again. Which key a URI named is remembered: a token that comes back without it, or with another, brings none.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import structlog

from attestation.errors import AttestationError, KeyMismatch, KeyNotFound, KeyUnusable, SignerUnavailable
from attestation.keys import KEYS_TYP, Signer, key_set_sha256, load_signer, parse_key_uri, thumbprints
from attestation.keys.open import is_away
from attestation.keys.uri import FileRef
from attestation.machines import Machine
from attestation_service.keys import crypto_policy, statements
from attestation_service.settings import Settings
from attestation_service.transparency.kept import KeptFile
from attestation_service.transparency.memory import MemoryFile

log = structlog.get_logger("attestation_service.service_keys")

FIRST_PAUSE_SECONDS: Final = 0.5
MAX_PAUSE_SECONDS: Final = 30.0
"""Between two looks for a key that is away; a PIN that was refused is not tried again (`attestation.keys.refusals`)."""

MEMORY_FILE: Final = "service-key-memory.json"
"""Beside `audit-memory.json`."""

MEMORY_FORMAT: Final = "itl-service-key-memory-v1"


def parse_memory(content: bytes | None) -> dict[str, str]:
    """Return the thumbprint of the key that each URI named; none where *content* is None.

    Raises:
        KeyUnusable: It says something else.
    """
    if content is None:
        return {}
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        found = None
    keys = found.get("keys") if isinstance(found, dict) and found.get("format") == MEMORY_FORMAT else None
    if not isinstance(keys, dict) or not all(isinstance(each, str) for each in keys.values()):
        raise KeyUnusable(f"{MEMORY_FILE}, which remembers the service's keys, cannot be read")
    return keys


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

    def sign_dsse(self, payload: bytes, *, payload_type: str) -> bytes:
        """Return the active key's signature of an envelope over *payload*, DER; blocks likewise.

        Raises:
            SignerUnavailable: Likewise.
        """
        return self._active.sign_dsse(payload, payload_type=payload_type)

    def active_jwk(self) -> dict[str, Any]:
        """Return the public half of the key that signs."""
        (found,) = self._active.jwks()["keys"]
        return dict(found)

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


class KeyHolder:
    """Opens the keys that the settings name, and where one is away looks for it until it is there.

    All or none: a set that lacks one would tell machines of a change that nobody made.
    """

    def __init__(self, settings: Settings) -> None:
        self._options = crypto_policy.service_key_options(settings)
        self._active = settings.service_key_uri
        self._following = settings.service_key_next
        self._previous = settings.service_key_previous
        self._memory = KeptFile(MemoryFile.of(settings).path.with_name(MEMORY_FILE), KeyUnusable)
        self._signers: dict[str, Signer] = {}
        self._keys: ServiceKeys | None = None
        self.away: AttestationError | None = None
        """Why there are none."""

    def open(self, *, make: bool) -> None:
        """Open them, or note which is away. Blocks.

        Args:
            make: The active and the next one are made where their URIs never named a key: at a start only. Who waits
                for one that is away takes what comes back, and makes nothing in its place.

        Raises:
            KeyUnusable: One of them cannot be used, and waiting would not change that.
            KeyMismatch: Another key is there than before.
            AlgorithmForbidden: The policy in force forbids it.
        """
        for uri in self.uris:
            if uri in self._signers:
                continue
            try:
                self._signers[uri] = self._opened(uri, make=make and uri != self._previous)
            except AttestationError as e:
                if not is_away(uri, e):
                    raise
                self._note(e)
                return
        self._keys = ServiceKeys(
            self._signers[self._active],
            following=self._signers[self._following] if self._following else None,
            previous=self._signers[self._previous] if self._previous else None,
        )
        if self.away is not None:
            log.info("service_key.found")
        self.away = None

    def _opened(self, uri: str, *, make: bool) -> Signer:
        """Return the signer that *uri* names, if it is the one as before; where there was none, remember it."""
        named = parse_key_uri(uri).shown
        if not self._is_known(uri, parse_memory(self._memory.content())):
            with self._memory.locked():
                known = parse_memory(self._memory.content())
                if not self._is_known(uri, known):
                    signer = self._first(uri, make=make)
                    (known[named],) = thumbprints(signer.jwks())
                    members = {"format": MEMORY_FORMAT, "keys": known}
                    self._memory.replace(json.dumps(members, indent=1).encode() + b"\n")
                    return signer
        return self._as_before(uri, named)

    def _is_known(self, uri: str, known: Mapping[str, str]) -> bool:
        """Return True where *uri* names what was in use.

        A file beside the memory is known by its name: the folder may have moved as a whole, as a restored one does.
        """
        ref = parse_key_uri(uri)
        if ref.shown in known:
            return True
        if not isinstance(ref, FileRef) or ref.path.parent != self._memory.path.parent:
            return False
        return any(each.startswith("file:") and Path(each).name == ref.path.name for each in known)

    def _as_before(self, uri: str, named: str) -> Signer:
        """Return the signer that *uri* names, which was in use, if it is one that was the service's."""
        try:
            signer = load_signer(uri, options=self._options)
        except KeyNotFound as e:
            raise KeyNotFound(f"{e}; {self._memory.path} remembers it: no other is made in its place") from e
        # A file may be renamed to where the key before it was: any that was the service's once is good.
        if not {*thumbprints(signer.jwks())} <= {*parse_memory(self._memory.content()).values()}:
            raise KeyMismatch(
                f"{named} holds another key than before, which no machine knows; if that is on purpose, take {named} "
                f"out of {self._memory.path}"
            )
        return signer

    @property
    def uris(self) -> tuple[str, ...]:
        """The active one first."""
        return tuple(filter(None, (self._active, self._following, self._previous)))

    def inspect(self, uri: str) -> Signer | None:
        """Return the signer of *uri* as a start would have it; None where it would make it. Makes nothing. Blocks.

        Raises:
            AttestationError: As `open`.
        """
        named = parse_key_uri(uri).shown
        if self._is_known(uri, parse_memory(self._memory.content())):
            return self._as_before(uri, named)
        try:
            return load_signer(uri, options=self._options)
        except KeyNotFound:
            if uri == self._previous:
                raise
            return None

    def missing(self) -> str | None:
        """Return the active key's URI where it names no file that is there; None where it does, or names a device."""
        ref = parse_key_uri(self._active)
        return ref.shown if isinstance(ref, FileRef) and not ref.path.exists() else None

    def _first(self, uri: str, *, make: bool) -> Signer:
        """Return the signer that *uri* names for the first time; that one was made, is told."""
        try:
            return load_signer(uri, options=self._options)
        except KeyNotFound:
            if not make:
                raise
        signer = load_signer(uri, create=True, options=self._options)
        log.info(
            "service_key.made",
            key=parse_key_uri(uri).shown,
            thumbprint=next(iter(thumbprints(signer.jwks()))),
        )
        return signer

    def demand(self) -> None:
        """Raise SignerUnavailable where one of the keys is away since the start."""
        _ = self.keys

    @property
    def keys(self) -> ServiceKeys:
        """The keys.

        Raises:
            SignerUnavailable: One of them is away since the start.
        """
        if self._keys is None:
            raise SignerUnavailable("the service's key cannot be used now")
        return self._keys

    def secret(self, purpose: bytes) -> bytes | None:
        """Return 32 bytes that only the active key gives; None where its device only signs, or is away."""
        active = self._signers.get(self._active)
        return active.secret(purpose) if active is not None else None

    async def look(self) -> None:
        """Look for what is away until it is there."""
        pause = FIRST_PAUSE_SECONDS
        while self._keys is None:
            await asyncio.sleep(pause)
            pause = min(2 * pause, MAX_PAUSE_SECONDS)
            try:
                await asyncio.to_thread(self.open, make=False)
            except AttestationError as e:
                # Another key, or one that may not be used: no reason to end, somebody may put the right one there.
                self._note(e)
            except Exception as e:  # noqa: BLE001 -- the outermost border of this task: it must not end
                log.error("service_key.failed", kind=type(e).__name__)  # noqa: TRY400 -- it may quote a passphrase or PIN

    def _note(self, error: AttestationError) -> None:
        if self.away is None or self.away.code != error.code:
            log.error("service_key.away", code=error.code, reason=str(error))
        self.away = error
