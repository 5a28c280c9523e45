"""What signs: keys by URI, numbered, one after the other, with a time in which both are known.

Number 1 is the key that the setting names; the others lie beside it (`identity.pem`, `identity-2.pem`, …). The database
says which numbers there are and from when they sign, never what a key is: the public halves that are published come
from the private ones, so a row that is written into the database adds no key.
"""

# Algorithms for: machine-token
from __future__ import annotations

import asyncio
import json
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Literal

import structlog
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from joserfc.jwk import ECKey, RSAKey

from attestation.errors import AttestationError, KeyMismatch, KeyUnusable, SignerUnavailable
from attestation.extension import Store
from attestation.keys import KeyOptions, OpenKey, create_key, open_key, parse_key_uri
from attestation_extensions.machine_identity.records import Records, StoredKey

log = structlog.get_logger("attestation_extensions.machine_identity")

JWKS_SECONDS: Final = 300
"""So long consumers may keep the key set."""
OVERLAP: Final = timedelta(seconds=3 * JWKS_SECONDS)
"""A new key is published for so long before it signs: who keeps the set knows it by then."""
SKEW: Final = timedelta(seconds=60)
"""Consumers' clocks may be behind by so much."""
TRIED_AGAIN: Final = timedelta(seconds=5)
"""So long a key that could not be opened is not tried, nor told of, again: anybody may ask for the key set."""

JWSAlgorithm = Literal["ES256", "RS256"]

_MADE_AS: Final[Mapping[JWSAlgorithm, Literal["ecdsa-p256", "rsa-4096"]]] = {
    "ES256": "ecdsa-p256",
    "RS256": "rsa-4096",
}


class SigningKey:
    """A key that signs tokens.

    Args:
        opened: The private key, wherever it is.

    Raises:
        KeyUnusable: It signs neither ES256 nor RS256, which is what consumers verify.
    """

    def __init__(self, opened: OpenKey) -> None:
        self._opened, self._key = opened, opened.private_key
        native = self._key.public_key()
        public: ECKey | RSAKey
        if isinstance(native, ec.EllipticCurvePublicKey) and isinstance(native.curve, ec.SECP256R1):
            self.algorithm: JWSAlgorithm = "ES256"
            public = ECKey(native, native)
        elif isinstance(native, rsa.RSAPublicKey) and native.key_size >= 2048:
            self.algorithm = "RS256"
            public = RSAKey(native, native)
        else:
            opened.close()
            raise KeyUnusable(f"the key {opened.uri} is neither on P-256 nor RSA: tokens are ES256 or RS256")
        self.kid = public.thumbprint()
        self.jwk: Mapping[str, Any] = {
            **public.as_dict(private=False),
            "kid": self.kid,
            "use": "sig",
            "alg": self.algorithm,
        }

    def sign(self, claims: Mapping[str, Any]) -> str:
        """Return *claims* as a compact JWT; blocks: never on an event loop.

        Raises:
            SignerUnavailable: The device that holds the key does not sign now.
        """
        header = {"alg": self.algorithm, "kid": self.kid, "typ": "JWT"}
        signed = b".".join(
            _b64(json.dumps(part, separators=(",", ":")).encode()) for part in (header, claims)
        )
        return b".".join((signed, _b64(self._signature(signed)))).decode()

    def _signature(self, signed: bytes) -> bytes:
        if isinstance(self._key, ec.EllipticCurvePrivateKey):
            r, s = decode_dss_signature(self._key.sign(signed, ec.ECDSA(hashes.SHA256())))
            return r.to_bytes(32) + s.to_bytes(32)
        assert isinstance(self._key, rsa.RSAPrivateKey)
        return self._key.sign(signed, padding.PKCS1v15(), hashes.SHA256())

    def close(self) -> None:
        """Let go of the key."""
        self._opened.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A key that is published, and whether it signs."""

    stored: StoredKey
    key: SigningKey
    signs: bool


class Keys:
    """The keys of this worker.

    Args:
        store: Which numbers there are.
        uri: Of the first key.
        algorithm: Of keys that are made.
        options: How keys are opened.
        lifetime: Of tokens: so long after its last signature a key stays published.
    """

    def __init__(
        self, store: Store, *, uri: str, algorithm: JWSAlgorithm, options: KeyOptions, lifetime: timedelta
    ) -> None:
        self._store, self._uri, self._options, self._lifetime = store, uri, options, lifetime
        self._algorithm = algorithm
        self._opened: dict[int, SigningKey] = {}
        self._failed: dict[int, datetime] = {}
        self._opening = asyncio.Lock()

    async def begin(self, at: datetime) -> None:
        """Make the first key where there is none yet, and open what signs.

        Raises:
            AttestationError: It can be neither made nor opened.
        """
        if not await self._store.read(lambda tx: tx.of(Records).all_keys()):
            first = await self.prepare(1)

            def add(tx: Any) -> None:
                if not tx.of(Records).all_keys():
                    tx.of(Records).add_key(StoredKey(number=1, kid=first.kid, published_at=at, signs_at=at))

            await self._store.write(add)
            first.close()
        await self.signing(at)

    async def published(self, at: datetime) -> list[Published]:
        """Return the keys that consumers are shown at *at*; what cannot be opened here is missing, and logged."""
        stored = await self._store.read(lambda tx: tx.of(Records).all_keys())
        signing = _signing(stored, at)
        found = []
        for each in _shown(stored, at, self._lifetime):
            failed = self._failed.get(each.number)
            if failed is not None and timedelta() <= at - failed < TRIED_AGAIN:
                continue
            try:
                key = await self._open(each)
            except AttestationError as e:
                self._failed[each.number] = at
                log.error("identity.key_unusable", number=each.number, code=e.code)  # noqa: TRY400 -- its words may name files
                continue
            found.append(Published(stored=each, key=key, signs=each is signing))
        return found

    async def signing(self, at: datetime) -> SigningKey:
        """Return the key that signs at *at*.

        Raises:
            SignerUnavailable: It cannot be opened here. None other signs in its place: consumers may not know it.
        """
        for each in await self.published(at):
            if each.signs:
                return each.key
        raise SignerUnavailable("the key that signs tokens cannot be used now")

    async def prepare(self, number: int) -> SigningKey:
        """Make the key with *number*, or open it where another worker did.

        Raises:
            KeyUnusable, SignerUnavailable: It can be neither.
        """
        return await asyncio.to_thread(self._make, number)

    def close(self) -> None:
        """Let go of all of them."""
        while self._opened:
            self._opened.popitem()[1].close()

    async def _open(self, stored: StoredKey) -> SigningKey:
        async with self._opening:
            if (known := self._opened.get(stored.number)) is None:
                known = SigningKey(
                    await asyncio.to_thread(open_key, self._name(stored.number), self._options)
                )
                self._opened[stored.number] = known
        if known.kid != stored.kid:
            # Replicas share their keys; what lies here is another one's.
            raise KeyMismatch(
                f"the key {stored.number} here is {known.kid}, and the service has {stored.kid}"
            )
        return known

    def _make(self, number: int) -> SigningKey:
        return SigningKey(create_key(self._name(number), _MADE_AS[self._algorithm], self._options))

    def _name(self, number: int) -> str:
        ref = parse_key_uri(self._uri)
        return str(ref if number == 1 else ref.child(str(number)))


def _signing(stored: Sequence[StoredKey], at: datetime) -> StoredKey | None:
    """Return the newest key that signs by now and was not withdrawn."""
    return next(
        (each for each in reversed(stored) if each.signs_at <= at and each.withdrawn_at is None), None
    )


def _shown(stored: Sequence[StoredKey], at: datetime, lifetime: timedelta) -> list[StoredKey]:
    """Return those that are to sign, do, or signed what may not be over."""
    found = []
    for each, successor in zip(stored, [*stored[1:], None], strict=True):
        over = successor is not None and successor.signs_at + lifetime + SKEW <= at
        if each.withdrawn_at is None and not over:
            found.append(each)
    return found


def _b64(data: bytes) -> bytes:
    return urlsafe_b64encode(data).rstrip(b"=")
