"""What the service says for one machine to act on: claimed by the service, verified by the machine (PROTOCOL §8).

A statement names the TPM that it is for and carries the nonce that this machine chose for the request just sent. So
it is nothing to another machine, however honestly both pinned the keys, and nothing at any other time, whatever the
machine's clock says and whatever it forgot (docs/adr/0045).

Pure.
"""

# Algorithms for: digest
from __future__ import annotations

import hmac
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Any, Final

from attestation.keys.jws import JWSRejected, verify_jwt
from attestation.wire import b64encode, canonical_json

WELCOME_TYP: Final = "itl-welcome+jwt"
"""Header `typ` of the answer to an activation: `challenge_id`, `status`, `role`?, `hostname`?."""

DIRECTIVE_TYP: Final = "itl-directive+jwt"
"""Header `typ` of an order: `action`, `nonce` (of the challenge quoted), `token_id` where it is to be fetched."""

CONFIG_TYP: Final = "itl-config+jwt"
"""Header `typ` of a delivery: `token_id`, `config_sha256`. Anybody can seal to public keys (docs/adr/0013)."""

SEALED_TYP: Final = "itl-sealed+jwt"
"""Header `typ` of what an extension seals to a machine: `what`, `token_id`, `config_sha256`."""

OFFLINE_TYP: Final = "itl-offline+jwt"
"""Header `typ` of what travels in a file: `what`, `token_id`, `config_sha256`. No request asked for it: no nonce."""

KEYS_TYP: Final = "itl-keys+jwt"
"""Header `typ` of a change of keys: `keys`, the JWK set to pin from now on (docs/adr/0046)."""

CONFIG_SIGNATURE_HEADER: Final = "Itl-Config-Signature"
"""HTTP header of a delivery that carries its statement."""

NODE_NONCE_HEADER: Final = "Itl-Node-Nonce"
"""HTTP header of a fetch that carries the machine's nonce; in JSON it is the member `node_nonce`."""

NODE_NONCE_BYTES: Final = 32

VALID_SECONDS: Final = 300
"""What `exp` says after `iat`. For whoever has a clock to trust; a machine's freshness comes from its nonce."""

MAX_KEYS: Final = 4
"""Keys of a service at one time: the one that signs, the one before it, the one after it, and one to spare."""

ACK_PREFIX: Final = b"itl-ack-v2\0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """The TPM that a statement is for.

    Args:
        machine_id: UUID text.
        ek_fingerprint: SHA-384 of the EK's SPKI DER, 96 lower-case hex.
        ak_name: Name of the AK with its two-byte algorithm.
    """

    machine_id: str
    ek_fingerprint: str
    ak_name: bytes

    def claim(self) -> dict[str, str]:
        """Return the member `binding`."""
        return {
            "machine_id": self.machine_id,
            "ek_fingerprint": self.ek_fingerprint,
            "ak_name": self.ak_name.hex(),
        }


def claims(to: Binding, node_nonce: str, at: datetime, **more: Any) -> dict[str, Any]:
    """Return the claims of a statement for *to*, in answer to the request that carried *node_nonce* (base64)."""
    return {"binding": to.claim(), "node_nonce": node_nonce, **more, **lifetime(at)}


def lifetime(at: datetime) -> dict[str, int]:
    """Return `iat` and `exp` of what is signed at *at*."""
    issued = int(at.timestamp())
    return {"iat": issued, "exp": issued + VALID_SECONDS}


def verify_statement(
    token: str | None, *, typ: str, keys: Mapping[str, Any], to: Binding, node_nonce: bytes
) -> dict[str, Any]:
    """Return the claims of a statement for this machine, in answer to the request that it just sent.

    Args:
        token: Compact JWS; None where the answer carried none.
        typ: The header `typ` of this kind of statement.
        keys: The pinned JWK set.
        to: Our own TPM.
        node_nonce: The 32 bytes sent with the request.

    Raises:
        JWSRejected: With the reason.
    """
    # 1. The service signed it, as this kind of statement. 2. For this TPM.
    found = verify_kept(token, typ=typ, keys=keys, to=to)
    # 3. Just now. Otherwise what was true once is served again; neither a clock nor a memory is needed to see it.
    answered = found.get("node_nonce")
    if not isinstance(answered, str) or not hmac.compare_digest(
        answered.encode(), b64encode(node_nonce).encode()
    ):
        raise JWSRejected("the statement answers another request than ours")
    return found


def verify_kept(token: str | None, *, typ: str, keys: Mapping[str, Any], to: Binding) -> dict[str, Any]:
    """Return the claims of a statement that answers no request of now: verified with its nonce before, or without one.

    Raises:
        JWSRejected: With the reason.
    """
    if token is None:
        raise JWSRejected("the answer came without a statement of the service")
    # 1. The service signed it. Otherwise anybody on the way gives orders.
    found = verify_jwt(token, dict(keys), typ=typ)
    # 2. For this TPM: all three. A machine_id can be borrowed, an EK can have had another AK before.
    if found.get("binding") != to.claim():
        raise JWSRejected("the statement is for another machine")
    return found


def acknowledgement(nonce: bytes, directive_sha256: bytes, outcome: str) -> bytes:
    """Return the qualifyingData, 32 bytes, of the quote that acknowledges a directive (PROTOCOL §8.4).

    Args:
        nonce: Of the challenge.
        directive_sha256: SHA-256 over the compact JWS, or that of a key set; 32 bytes.
        outcome: `done` or `failed`.
    """
    return sha256(ACK_PREFIX + nonce + directive_sha256 + outcome.encode("ascii")).digest()


def certificates_sha256(certificate_pem: str, ca_pem: str) -> str:
    """Return what the statement about a key in a file names the certificates beside it by, 64 lower-case hex."""
    return sha256(f"{certificate_pem}\0{ca_pem}".encode()).hexdigest()


_REQUIRED: Final = {"EC": ("crv", "kty", "x", "y"), "RSA": ("e", "kty", "n")}


def thumbprints(jwks: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the keys of a JWK set by their thumbprints (RFC 7638, SHA-256, base64url).

    Raises:
        JWSRejected: It is not a set of 1 to `MAX_KEYS` public keys.
    """
    keys = jwks.get("keys")
    if not isinstance(keys, list) or not 1 <= len(keys) <= MAX_KEYS:
        raise JWSRejected(f"not a JWK set of 1 to {MAX_KEYS} keys")
    found = {}
    for key in keys:
        members = _REQUIRED.get(str(key.get("kty"))) if isinstance(key, dict) else None
        if members is None or not all(isinstance(key.get(name), str) for name in members) or "d" in key:
            raise JWSRejected("the JWK set holds something that is no public key")
        hashed = sha256(canonical_json({name: key[name] for name in members})).digest()
        found[urlsafe_b64encode(hashed).rstrip(b"=").decode("ascii")] = key
    return found


def key_set_sha256(names: Mapping[str, Any] | frozenset[str]) -> bytes:
    """Return what names a set of keys, 32 bytes: SHA-256 over their thumbprints, sorted, each with a line feed.

    `jq -r '.keys[].kid' | LC_ALL=C sort | sha256sum` says the same of a set of ours.
    """
    return sha256("".join(f"{name}\n" for name in sorted(names)).encode("ascii")).digest()
