"""Keys on a token: found, described, made, and asked to sign. Only the module's thread calls what is here.

Private key, public key and certificate of one key share CKA_ID. Of keys that we make it is the first 20 bytes of
SHA-256 over the DER SubjectPublicKeyInfo, and CKA_LABEL is what the URI says.
"""

# Algorithms for: key-identifier, device-key
from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import secrets
from typing import Any, Final, Literal, cast

import pkcs11
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import (
    SECP256R1,
    SECP384R1,
    SECP521R1,
    EllipticCurve,
    EllipticCurvePublicKey,
)
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey, RSAPublicNumbers
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_der_public_key
from pkcs11 import MGF, Attribute, KeyType, Mechanism, MechanismFlag, ObjectClass, PKCS11Error

from attestation.errors import KeyAmbiguous, KeyNotFound, KeyUnsupported, KeyUnusable, SignerUnavailable
from attestation.keys.delegated import HashName, RawSigner
from attestation.keys.open import Algorithm

ID_BYTES: Final = 20
RSA_BITS: Final = range(2048, 8192 + 1)

PublicKey = EllipticCurvePublicKey | RSAPublicKey

_CURVES: Final[dict[bytes, EllipticCurve]] = {
    bytes.fromhex("06082a8648ce3d030107"): SECP256R1(),
    bytes.fromhex("06052b81040022"): SECP384R1(),
    bytes.fromhex("06052b81040023"): SECP521R1(),
}
"""CKA_EC_PARAMS: the DER object identifier of the curve (SEC 2, RFC 5480 §2.1.1.1)."""

_SHOWN: Final = (ObjectClass.PUBLIC_KEY, ObjectClass.CERTIFICATE)
"""Objects that show the public half of a key."""

_EC_PARAMS: Final[dict[Algorithm, bytes]] = {
    "ecdsa-p256": bytes.fromhex("06082a8648ce3d030107"),
    "ecdsa-p384": bytes.fromhex("06052b81040022"),
}

_GENERATE: Final[dict[Algorithm, Mechanism]] = {
    "ecdsa-p256": Mechanism.EC_KEY_PAIR_GEN,
    "ecdsa-p384": Mechanism.EC_KEY_PAIR_GEN,
    "rsa-4096": Mechanism.RSA_PKCS_KEY_PAIR_GEN,
}

DEMANDED: Final[dict[Attribute, bool]] = {
    Attribute.TOKEN: True,
    Attribute.PRIVATE: True,
    Attribute.SENSITIVE: True,
    Attribute.EXTRACTABLE: False,
    Attribute.SIGN: True,
    Attribute.SIGN_RECOVER: False,
    Attribute.DECRYPT: False,
    Attribute.UNWRAP: False,
    Attribute.DERIVE: False,
}
"""What a private key that we make must be: kept by the token, and for signatures alone."""

_NEVER_OUTSIDE: Final = (
    Attribute.SENSITIVE,
    Attribute.ALWAYS_SENSITIVE,
    Attribute.NEVER_EXTRACTABLE,
    Attribute.LOCAL,
)
"""All true: the token made the key and never gave it away."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class KeyName:
    """A private key on a token, by label, id, or both.

    Args:
        label: CKA_LABEL; None: any.
        id: CKA_ID; None: any.
        spki: DER SubjectPublicKeyInfo that the key must belong to; None while it is not known yet.
        shown: The URI without its query, for messages.
    """

    label: str | None
    id: bytes | None
    spki: bytes | None = None
    shown: str = dataclasses.field(compare=False)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class KeyFacts:
    """What a token says of a private key."""

    label: str
    id: bytes
    public_key: PublicKey
    origin: Literal["generated", "provisioned"]

    @property
    def spki(self) -> bytes:
        """DER SubjectPublicKeyInfo."""
        return spki_of(self.public_key)


class HandleSigner(RawSigner):
    """Signs with one object of the session; for the module's thread only."""

    def __init__(self, key: pkcs11.SignMixin) -> None:
        self._key = key

    def sign_digest_ecdsa(self, digest: bytes) -> tuple[int, int]:
        """CKM_ECDSA: r ‖ s of equal length, big-endian."""
        signature = self._sign(digest, Mechanism.ECDSA)
        half, odd = divmod(len(signature), 2)
        if odd:
            raise SignerUnavailable("the token answered with what is no signature")
        return int.from_bytes(signature[:half]), int.from_bytes(signature[half:])

    def sign_rsa_pkcs1(self, digest_info: bytes) -> bytes:
        """CKM_RSA_PKCS."""
        return self._sign(digest_info, Mechanism.RSA_PKCS)

    def sign_rsa_pss(self, digest: bytes, hash_name: HashName, salt_bytes: int) -> bytes:
        """CKM_RSA_PKCS_PSS over a digest that was made here."""
        hashing, mgf = Mechanism[hash_name.upper()], MGF[hash_name.upper()]
        return self._sign(digest, Mechanism.RSA_PKCS_PSS, (hashing, mgf, salt_bytes))

    def _sign(self, data: bytes, mechanism: Mechanism, parameter: object = None) -> bytes:
        return bytes(self._key.sign(data, mechanism=mechanism, mechanism_param=parameter))


def spki_of(public_key: PublicKey) -> bytes:
    """Return the DER SubjectPublicKeyInfo of *public_key*."""
    return public_key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def key_id_of(public_key: PublicKey) -> bytes:
    """Return the CKA_ID that we give a key: 20 bytes."""
    return hashlib.sha256(spki_of(public_key)).digest()[:ID_BYTES]


def alive(session: pkcs11.Session) -> None:
    """Meet a dead session here.

    Raises:
        PKCS11Error: It is dead, or its token is.
    """
    with contextlib.suppress(pkcs11.RandomNoRNG, pkcs11.FunctionNotSupported):
        session.generate_random(8)


def find_private(session: pkcs11.Session, name: KeyName) -> pkcs11.SignMixin:
    """Return the one private key that *name* means.

    The class is always part of the search: a label is shared with the public key and the certificate.

    Raises:
        KeyNotFound: None, or the session is not logged in.
        KeyAmbiguous: Several.
        KeyUnsupported: It is not for signatures.
        PKCS11Error: The module failed.
    """
    alive(session)  # the binding cannot end a search that did not begin
    found = search(session, ObjectClass.PRIVATE_KEY, label=name.label, id=name.id)
    if not found:
        raise KeyNotFound(f"no private key {name.shown} on the token")
    if len(found) > 1:
        raise KeyAmbiguous(f"{len(found)} private keys are {name.shown}; name one by its id")
    if not isinstance(found[0], pkcs11.SignMixin):
        raise KeyUnsupported(f"{name.shown} is not a key that signs (CKA_SIGN)")
    return found[0]


def describe(session: pkcs11.Session, key: pkcs11.SignMixin, name: KeyName) -> KeyFacts:
    """Return what the token says of *key*. Whether the public key belongs to it is proven by `self_test`.

    Raises:
        KeyUnsupported: Of a kind that signs nothing of ours.
        KeyUnusable: It may leave the token, or its public key is nowhere.
    """
    if not is_true(key, Attribute.SENSITIVE) or is_true(key, Attribute.EXTRACTABLE):
        raise KeyUnusable(
            f"{name.shown} can be read out of its token; bring it in as sensitive and not extractable, or make it there"
        )
    return KeyFacts(
        label=str(_get(key, Attribute.LABEL) or ""),
        id=bytes(cast("bytes", _get(key, Attribute.ID) or b"")),
        public_key=public_half(session, key, name),
        origin="generated" if all(is_true(key, each) for each in _NEVER_OUTSIDE) else "provisioned",
    )


def generate(session: pkcs11.Session, algorithm: Algorithm, label: str, shown: str) -> None:
    """Make a key pair under *label* in a session that may write, and read back that it is what was asked for.

    A key that is not is destroyed.

    Raises:
        KeyUnsupported: The token cannot make such keys.
        KeyUnusable: The token made something else.
        SignerUnavailable: Somebody else made one at the same moment; see `demand_only_one`.
    """
    mechanism = _GENERATE.get(algorithm)
    if mechanism is None or mechanism not in session.token.slot.get_mechanisms():
        raise KeyUnsupported(f"the token of {shown} makes no {algorithm} keys, or not for us")
    # Pairs the two halves until the public key is known; a crash in between leaves a pair that can be used.
    provisional = secrets.token_bytes(ID_BYTES)
    uses = MechanismFlag.SIGN | MechanismFlag.VERIFY
    private: dict[Attribute, Any] = {
        attribute: value for attribute, value in DEMANDED.items() if attribute is not Attribute.TOKEN
    }
    if mechanism is Mechanism.EC_KEY_PAIR_GEN:
        curve = session.create_domain_parameters(
            KeyType.EC, {Attribute.EC_PARAMS: _EC_PARAMS[algorithm]}, local=True
        )
        public_object, private_object = curve.generate_keypair(
            id=provisional, label=label, store=True, capabilities=uses, private_template=private
        )
    else:
        public_object, private_object = session.generate_keypair(
            KeyType.RSA,
            4096,
            id=provisional,
            label=label,
            store=True,
            capabilities=uses,
            private_template=private,
        )
    wrong = [each.name for each, wanted in DEMANDED.items() if is_true(private_object, each) is not wanted]
    wrong += [each.name for each in _NEVER_OUTSIDE if not is_true(private_object, each)]
    if wrong:
        private_object.destroy()
        public_object.destroy()
        raise KeyUnusable(f"the token of {shown} made a key whose {', '.join(wrong)} is not as asked for")
    demand_only_one(session, label, (private_object, public_object), shown)


def demand_only_one(
    session: pkcs11.Session, label: str, made: tuple[pkcs11.Object, pkcs11.Object], shown: str
) -> None:
    """Take away what was just *made*, private half first, where another private key has its label.

    No lock keeps two machines apart that share a token. Each of them looks after it made a key; of two, at least one
    sees both, and gives up its own before anything was done with it. So at most one is left.

    Raises:
        SignerUnavailable: It was taken away; the other one, if it is still there, is found at the next look.
    """
    if len(search(session, ObjectClass.PRIVATE_KEY, label=label)) > 1:
        for each in made:
            each.destroy()
        raise SignerUnavailable(
            f"somebody else made {shown} at the same moment; the key made here was destroyed"
        )


def settle(session: pkcs11.Session, key: pkcs11.Object, facts: KeyFacts) -> KeyFacts:
    """Give a key and its public half the CKA_ID that we give keys, where the token lets us; return the facts.

    A crash in between leaves the two with different ids: `describe` then pairs them by label.
    """
    wanted = key_id_of(facts.public_key)
    if facts.id == wanted:
        return facts
    halves = search(session, ObjectClass.PUBLIC_KEY, id=facts.id) if facts.id else []
    with contextlib.suppress(PKCS11Error):  # some tokens number their objects themselves
        for half in [*halves, key]:
            half[Attribute.ID] = wanted
        return dataclasses.replace(facts, id=wanted)
    return facts


def search(
    session: pkcs11.Session,
    kind: ObjectClass,
    *,
    label: str | None = None,
    id: bytes | None = None,  # noqa: A002 -- CKA_ID
) -> list[pkcs11.Object]:
    """Return the objects of a class, by label, id, or both; None: any."""
    wanted: dict[Attribute, object] = {Attribute.CLASS: kind}
    if label is not None:
        wanted[Attribute.LABEL] = label
    if id is not None:
        wanted[Attribute.ID] = id
    return list(session.get_objects(wanted))


def _get(key: pkcs11.Object, attribute: Attribute) -> object:
    """Return an attribute, or None where the token has none, or one that cannot be: no UTF-8, an unknown kind."""
    try:
        return key[attribute]
    except (pkcs11.AttributeTypeInvalid, pkcs11.AttributeSensitive, pkcs11.FunctionFailed, ValueError):
        return None


def is_true(key: pkcs11.Object, attribute: Attribute) -> bool:
    """True only if the token has the attribute and says so."""
    return _get(key, attribute) is True


def public_half(session: pkcs11.Session, key: pkcs11.Object, name: KeyName) -> PublicKey:
    """Return the public half: from the key itself, the public key object, or the certificate beside it."""
    kind = _get(key, Attribute.KEY_TYPE)
    if kind not in (KeyType.EC, KeyType.RSA):
        raise KeyUnsupported(f"{name.shown} is neither an EC nor an RSA key")
    beside: list[pkcs11.Object] = [key]
    identity, label = _get(key, Attribute.ID), _get(key, Attribute.LABEL)
    if identity:
        for each in _SHOWN:
            beside += search(session, each, id=cast("bytes", identity))
    if label:
        for each in _SHOWN:
            beside += search(session, each, label=cast("str", label))
    read = _ec_point if kind is KeyType.EC else _rsa_modulus
    for candidate in beside:
        if (public := _of_certificate(candidate) or read(candidate)) is not None:
            return _supported(public, name)
    raise KeyUnusable(f"neither a public key nor a certificate stands beside {name.shown} on the token")


def _of_certificate(candidate: pkcs11.Object) -> PublicKey | None:
    if candidate.object_class is not ObjectClass.CERTIFICATE:
        return None
    with contextlib.suppress(ValueError):
        public = x509.load_der_x509_certificate(
            bytes(cast("bytes", _get(candidate, Attribute.VALUE) or b""))
        ).public_key()
        if isinstance(public, EllipticCurvePublicKey | RSAPublicKey):
            return public
    return None


def _ec_point(candidate: pkcs11.Object) -> EllipticCurvePublicKey | None:
    """Read CKA_EC_PARAMS and CKA_EC_POINT: a DER OCTET STRING of the uncompressed point, by some without the DER."""
    curve = _CURVES.get(bytes(cast("bytes", _get(candidate, Attribute.EC_PARAMS) or b"")))
    point = bytes(cast("bytes", _get(candidate, Attribute.EC_POINT) or b""))
    if curve is None or not point:
        return None
    size = 1 + 2 * ((curve.key_size + 7) // 8)
    with contextlib.suppress(ValueError):
        return EllipticCurvePublicKey.from_encoded_point(curve, point[-size:])
    return None


def _rsa_modulus(candidate: pkcs11.Object) -> RSAPublicKey | None:
    """Read CKA_MODULUS and CKA_PUBLIC_EXPONENT, big-endian."""
    modulus, exponent = _get(candidate, Attribute.MODULUS), _get(candidate, Attribute.PUBLIC_EXPONENT)
    if not modulus or not exponent:
        return None
    numbers = (int.from_bytes(bytes(cast("bytes", value))) for value in (exponent, modulus))
    with contextlib.suppress(ValueError):
        return RSAPublicNumbers(*numbers).public_key()
    return None


def _supported(public: PublicKey, name: KeyName) -> PublicKey:
    if isinstance(public, RSAPublicKey) and public.key_size not in RSA_BITS:
        raise KeyUnsupported(f"{name.shown} has {public.key_size} bits; an RSA key has 2048 to 8192")
    return public


def load_spki(der: bytes) -> PublicKey:
    """Return the public key of a DER SubjectPublicKeyInfo that we made."""
    public = load_der_public_key(der)
    assert isinstance(public, EllipticCurvePublicKey | RSAPublicKey)
    return public
