"""The keys of an identity provider: reading its JWKS and verifying signatures with it (RFC 7517, RFC 7518).

A document from outside: what cannot be a signing key is left out, and why is said, so that an operator finds out
from the log. Keys are parsed once per fetch, never per token.
"""

# Algorithms for: access-token
from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from joserfc import jwk
from joserfc.errors import JoseError
from joserfc.jws import JWSRegistry

from attestation.algorithms import CryptoPolicy
from attestation.errors import Unauthenticated
from attestation_service.auth.access_token import ALGORITHMS, UnverifiedToken, shown
from attestation_service.keys.crypto_policy import token_algorithms

MIN_RSA_BITS: Final = 2048
MAX_RSA_BITS: Final = 8192
MAX_KEYS: Final = 64
MAX_KEYS_OF_ONE_ID: Final = 4
"""Keys tried for one token at most: a `kid` is no more than a hint, and two keys may share one."""

_RSA = frozenset({"RS256", "RS384", "RS512", "PS256"})
_OF_CURVE: Final[Mapping[tuple[str, object], frozenset[str]]] = MappingProxyType(
    {
        ("EC", "P-256"): frozenset({"ES256"}),
        ("EC", "P-384"): frozenset({"ES384"}),
        ("EC", "P-521"): frozenset({"ES512"}),
        ("OKP", "Ed25519"): frozenset({"EdDSA", "Ed25519"}),
    }
)
_VERIFIERS = MappingProxyType({name: JWSRegistry.algorithms[name] for name in ALGORITHMS})


class ProviderAnswerInvalid(Exception):
    """The provider's document cannot be used; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SigningKey:
    """One public key of the provider.

    Args:
        key: Parsed.
        algorithms: What it may verify: its own `alg`, or what its type can where it has none.
    """

    key: jwk.Key
    algorithms: frozenset[str]

    def verifies(self, token: UnverifiedToken) -> bool:
        """Return True if this key signed *token* with an algorithm that is this key's."""
        if token.algorithm not in self.algorithms:
            return False
        try:
            return _VERIFIERS[token.algorithm].verify(token.signing_input, token.signature, self.key)
        except (JoseError, ValueError):
            return False


@dataclass(frozen=True, slots=True, kw_only=True)
class SigningKeys:
    """All keys that the provider published at one time.

    Args:
        by_id: Keys by `kid`; None for those without one.
        left_out: Why each of the other members was not taken, for the log.
    """

    by_id: Mapping[str | None, tuple[SigningKey, ...]]
    left_out: tuple[str, ...]

    def knows(self, key_id: str | None) -> bool:
        """Return True if a token that names *key_id* can be judged without asking the provider again."""
        return key_id is None or key_id in self.by_id

    def check(self, token: UnverifiedToken) -> None:
        """Verify the signature of *token*.

        Raises:
            Unauthenticated: None of the keys that it may mean made it.
        """
        candidates = self._candidates(token)
        if not candidates:
            raise Unauthenticated(
                "the token is signed with a key that the identity provider does not publish"
            )
        if not any(key.verifies(token) for key in candidates[:MAX_KEYS_OF_ONE_ID]):
            raise Unauthenticated("the token's signature is wrong")

    def _candidates(self, token: UnverifiedToken) -> tuple[SigningKey, ...]:
        if token.key_id is not None:
            return self.by_id.get(token.key_id, ())
        # A token that names no key means the only one there is for its algorithm; guessing among many is not ours.
        fitting = [k for keys in self.by_id.values() for k in keys if token.algorithm in k.algorithms]
        if len(fitting) > 1:
            raise Unauthenticated("the token names no key (kid), and the identity provider has several")
        return tuple(fitting)


def parse_jwks(data: bytes, policy: CryptoPolicy = CryptoPolicy.DEFAULT) -> SigningKeys:
    """Read a JWK set (RFC 7517 §5).

    Args:
        data: The document.
        policy: Keys and algorithms that it forbids are left out.

    Raises:
        ProviderAnswerInvalid: Not a JWK set, or without any key that could verify a token.
    """
    members = document(data, "the JWKS").get("keys")
    if not isinstance(members, list):
        raise ProviderAnswerInvalid("the JWKS has no list `keys`")
    by_id: dict[str | None, list[SigningKey]] = {}
    left_out = []
    for place, member in enumerate(members[:MAX_KEYS]):
        try:
            key_id, key = _signing_key(member, policy)
        except ProviderAnswerInvalid as e:
            left_out.append(f"key {place}: {e}")
            continue
        by_id.setdefault(key_id, []).append(key)
    if not by_id:
        raise ProviderAnswerInvalid("the JWKS has no usable signing key: " + "; ".join(left_out[:8]))
    return SigningKeys(
        by_id=MappingProxyType({key_id: tuple(keys) for key_id, keys in by_id.items()}),
        left_out=tuple(left_out),
    )


def document(data: bytes, what: str) -> dict[str, object]:
    """Read a JSON object.

    Raises:
        ProviderAnswerInvalid: It is none.
    """
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        raise ProviderAnswerInvalid(f"{what} is not JSON") from None
    if not isinstance(found, dict):
        raise ProviderAnswerInvalid(f"{what} is not a JSON object")
    return found


def _signing_key(member: object, policy: CryptoPolicy) -> tuple[str | None, SigningKey]:
    if not isinstance(member, dict):
        raise ProviderAnswerInvalid("not a JSON object")
    # Keycloak publishes keys for encryption in the same list; what they verify was never meant as a token.
    if member.get("use") != "sig":
        raise ProviderAnswerInvalid(f"use={shown(member.get('use'))}, not sig")
    key_id = member.get("kid")
    if key_id is not None and not isinstance(key_id, str):
        raise ProviderAnswerInvalid("kid is not a text")
    if not {"d", "p", "k"}.isdisjoint(member):
        raise ProviderAnswerInvalid(
            "a private or symmetric key, published: each reader can sign as the provider"
        )
    # The algorithm is the key's, never the token's: a public key must not become the secret of an HMAC.
    kind = member.get("kty")
    if kind == "RSA":
        possible = _RSA
    elif isinstance(kind, str) and isinstance(member.get("crv"), str):
        possible = _OF_CURVE.get((kind, member.get("crv")), frozenset())
    else:
        possible = frozenset()
    algorithm = member.get("alg")
    if algorithm is not None:
        possible &= {algorithm} if isinstance(algorithm, str) else frozenset()
    if not possible:
        raise ProviderAnswerInvalid(f"kty={shown(kind)} with alg={shown(algorithm)} is not accepted")
    # Before parsing: a huge modulus makes every verification slow, a small one makes none worth anything.
    if kind == "RSA" and not MIN_RSA_BITS <= (bits := _modulus_bits(member.get("n"))) <= MAX_RSA_BITS:
        raise ProviderAnswerInvalid(f"RSA with {bits} bits, not {MIN_RSA_BITS} to {MAX_RSA_BITS}")
    try:
        key = jwk.import_key({k: v for k, v in member.items() if isinstance(v, str)})
    except (JoseError, ValueError, TypeError, KeyError, OverflowError):
        raise ProviderAnswerInvalid("the key cannot be read") from None
    permitted = token_algorithms(policy, key.public_key, possible)
    if not permitted:
        raise ProviderAnswerInvalid(
            f"ITL_CRYPTO_POLICY={policy} forbids kty={kind} for {', '.join(sorted(possible))}"
        )
    return key_id, SigningKey(key=key, algorithms=permitted)


def _modulus_bits(text: object) -> int:
    """Return the length of a modulus in base64url (RFC 7518 §6.3.1.1); 0 for what is none."""
    if not isinstance(text, str):
        return 0
    try:
        return int.from_bytes(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))).bit_length()
    except ValueError:
        return 0
