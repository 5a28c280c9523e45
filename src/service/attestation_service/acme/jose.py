"""JWS as ACME has it (RFC 8555, 6.2): flattened JSON, everything that counts in the protected header.

What a request says is read only after its signature holds; from its header, only what says which key that must be.
"""

# Algorithms for: acme-account
from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from joserfc import jwk
from joserfc.errors import JoseError
from joserfc.jws import JWSRegistry

from attestation.algorithms import CryptoPolicy, Use, demand, name_of
from attestation.errors import BodyTooComplex, MalformedEvidence
from attestation.wire import b64url_decode, named_once
from attestation_service.acme.problems import Refused
from attestation_service.border import json_bounds
from attestation_service.border.json_bounds import Bounds

MAX_HEADER_BYTES: Final = 4096
MAX_PAYLOAD_BYTES: Final = 16384
MAX_SIGNATURE_BYTES: Final = 1024
BOUNDS: Final = Bounds(values=64, depth=8)
RSA_BITS: Final = (2048, 4096)

ALGORITHMS: Final = ("ES256", "ES384", "EdDSA", "RS256")
_MEMBERS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {"EC": ("crv", "x", "y"), "OKP": ("crv", "x"), "RSA": ("n", "e")}
)
_OF_CURVE: Final = MappingProxyType({"P-256": "ES256", "P-384": "ES384", "Ed25519": "EdDSA"})
_VERIFIERS: Final = MappingProxyType({name: JWSRegistry.algorithms[name] for name in ALGORITHMS})
_PRIVATE: Final = frozenset({"d", "p", "q", "dp", "dq", "qi", "oth", "k"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Signed:
    """A JWS, taken apart. Nothing in it may be believed before `AccountKey.verify`.

    Args:
        header: The protected header.
        payload: The signed bytes; empty in a POST-as-GET.
        signing_input: What the signature is over.
        signature: Of it.
    """

    header: Mapping[str, Any]
    payload: bytes
    signing_input: bytes
    signature: bytes

    def word(self, name: str) -> str:
        """Return a member of the header that is a text.

        Raises:
            Refused: It is missing, or none in ASCII.
        """
        found = self.header.get(name)
        # In ASCII, all of them are; half of a character, or a NUL, no database takes.
        if not isinstance(found, str) or not (found.isascii() and found.isprintable()):
            raise Refused("malformed", f"the protected header has no {name}")
        return found

    def members(self) -> dict[str, Any]:
        """Return the payload, an object of JSON.

        Raises:
            Refused: It is none.
        """
        return read_object(self.payload, "the payload")


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountKey:
    """The public key of an account, or of a certificate.

    Args:
        key: Parsed.
        algorithm: The one algorithm of JWS that it signs with.
        thumbprint: SHA-256, base64url (RFC 7638).
        text: The key in the one form that the thumbprint is over, JSON.
    """

    key: jwk.Key = field(repr=False)
    algorithm: str
    thumbprint: str
    text: str

    @property
    def spki(self) -> bytes:
        """SubjectPublicKeyInfo, DER."""
        public: Any = self.key.get_op_key("verify")
        found: bytes = public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        return found

    def verify(self, signed: Signed) -> None:
        """Check that this key signed.

        Raises:
            Refused: It did not, or with an algorithm that is not its own.
        """
        if signed.word("alg") != self.algorithm:
            # RFC 8555, 6.2: the answer says which would do.
            raise Refused(
                "badSignatureAlgorithm",
                f"alg is not {self.algorithm}, which is that of the key",
                members={"algorithms": list(ALGORITHMS)},
            )
        try:
            good = _VERIFIERS[self.algorithm].verify(signed.signing_input, signed.signature, self.key)
        except (JoseError, ValueError):
            good = False
        if not good:
            raise Refused("malformed", "the request is not signed by that key")


def parse_signed(body: bytes) -> Signed:
    """Take a JWS apart.

    Raises:
        Refused: It is none in flattened JSON, or its header wants something that this service does not know.
    """
    return _signed(read_object(body, "the body"))


def parse_inner(value: object) -> Signed:
    """As `parse_signed`, of a JWS within a payload.

    Raises:
        Refused: Likewise.
    """
    if not isinstance(value, dict):
        raise Refused("malformed", "a JWS was expected within the payload")
    return _signed(value)


def _signed(found: Mapping[str, Any]) -> Signed:
    # `header`, the unprotected one, must not be there, nor `signatures`.
    if found.keys() != {"protected", "payload", "signature"} or not all(
        isinstance(each, str) for each in found.values()
    ):
        raise Refused("malformed", "a JWS has the texts protected, payload and signature, and nothing else")
    protected, payload = found["protected"], found["payload"]
    try:
        header = read_object(b64url_decode(protected, "protected", max_bytes=MAX_HEADER_BYTES), "protected")
        content = b64url_decode(payload, "payload", max_bytes=MAX_PAYLOAD_BYTES)
        signature = b64url_decode(found["signature"], "signature", max_bytes=MAX_SIGNATURE_BYTES)
    except MalformedEvidence as e:
        raise Refused("malformed", str(e)) from e
    if "crit" in header or "b64" in header:
        raise Refused("malformed", "the protected header demands an extension that is not known here")
    return Signed(
        header=MappingProxyType(header),
        payload=content,
        signing_input=f"{protected}.{payload}".encode("ascii"),
        signature=signature,
    )


def read_object(data: bytes, what: str) -> dict[str, Any]:
    """Return an object of JSON within bounds, no member of which stands twice.

    Raises:
        Refused: It is none.
    """
    try:
        json_bounds.demand(data, BOUNDS)
        found = json.loads(data, object_pairs_hook=named_once)
    except (BodyTooComplex, ValueError, RecursionError) as e:
        raise Refused("malformed", f"{what} is no JSON within bounds") from e
    if not isinstance(found, dict):
        raise Refused("malformed", f"{what} is no object")
    return found


def parse_key(value: object, policy: CryptoPolicy) -> AccountKey:
    """Read a public key, JWK.

    Args:
        value: As it stands in a header or payload.
        policy: What it forbids is refused.

    Raises:
        Refused: It is none that may sign here.
        AlgorithmForbidden: The policy forbids it.
    """
    if not isinstance(value, dict) or not isinstance(kind := value.get("kty"), str) or kind not in _MEMBERS:
        raise Refused("badPublicKey", "a JWK of type EC, OKP or RSA is needed")
    if not _PRIVATE.isdisjoint(value):
        raise Refused("badPublicKey", "this is a private key: it is a secret no more, make another one")
    members = {name: value.get(name) for name in _MEMBERS[kind]}
    if not all(isinstance(each, str) and len(each) <= MAX_SIGNATURE_BYTES for each in members.values()):
        raise Refused("badPublicKey", f"a JWK of type {kind} has the texts {', '.join(_MEMBERS[kind])}")
    algorithm = "RS256" if kind == "RSA" else _OF_CURVE.get(members["crv"] or "")
    if algorithm is None:
        raise Refused("badPublicKey", f"a key on {', '.join(_OF_CURVE)}, or RSA, is needed")
    try:
        if kind == "RSA":
            # First: what is too short, the library warns of, and what is too long takes time.
            _demand_rsa(*(int.from_bytes(b64url_decode(members[name] or "", name)) for name in ("n", "e")))
        key: Any = jwk.import_key({"kty": kind, **members})  # type: ignore[dict-item]  # all of them are texts
        public = key.get_op_key("verify")
        thumbprint = key.thumbprint()
    except (JoseError, MalformedEvidence, ValueError, TypeError) as e:
        raise Refused("badPublicKey", "the JWK is no key") from e
    if not isinstance(public, ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey | rsa.RSAPublicKey):
        raise Refused("badPublicKey", "the JWK is no key that signs")
    demand(policy, Use.ACME, name_of(public))
    text = json.dumps({"kty": kind, **members}, sort_keys=True, separators=(",", ":"))
    return AccountKey(key=key, algorithm=algorithm, thumbprint=thumbprint, text=text)


def _demand_rsa(modulus: int, exponent: int) -> None:
    least, most = RSA_BITS
    if not least <= modulus.bit_length() <= most or exponent != 65537:
        raise Refused("badPublicKey", f"an RSA key has {least} to {most} bits and the exponent 65537")


def key_authorization(token: str, thumbprint: str) -> str:
    """Return the key authorization of a challenge for a key (RFC 8555, 8.1)."""
    return f"{token}.{thumbprint}"


def is_mac(secret: bytes, signed: Signed) -> bool:
    """Return True where a JWS has the MAC of *secret*, HS256 (RFC 8555, 7.3.4)."""
    expected = hmac.digest(secret, signed.signing_input, hashlib.sha256)
    return signed.word("alg") == "HS256" and hmac.compare_digest(expected, signed.signature)
