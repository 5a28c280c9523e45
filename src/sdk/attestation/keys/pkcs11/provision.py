"""Keys that were wrapped elsewhere, brought into a token (`attestation.keys.wrapping` says how a blob looks).

The token opens a blob inside: first the AES key, an object of the session that is destroyed after use, then the
private key, which has never been in this process. It is kept only if it signs for the public key that it was
announced with. HSM-AND-KUBERNETES §5.

Whatever is wrong with a blob is `UnwrapFailed` with the same words, whether OAEP, the AES wrap, the key inside or
its proof: errors that differ would let somebody who may send blobs open others by trying (Manger, CRYPTO 2001).
"""

# Algorithms for: wrapped-key
from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

import pkcs11
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import padding
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from pkcs11 import MGF, Attribute, KeyType, Mechanism, MechanismFlag, ObjectClass, PKCS11Error
from pkcs11.constants import DEFAULT
from pkcs11.util.ec import decode_ec_public_key
from pkcs11.util.rsa import decode_rsa_public_key

from attestation.errors import (
    KeyAmbiguous,
    KeyMismatch,
    KeyNotFound,
    KeyUnsupported,
    KeyUnusable,
    KeyURIInvalid,
    SignerUnavailable,
    UnwrapFailed,
)
from attestation.hsm import OAEPHash
from attestation.keys.delegated import delegated
from attestation.keys.open import KeyOptions, OpenKey, algorithm_of
from attestation.keys.pkcs11 import GENERATE_SECONDS, making, names_of, proven, with_key
from attestation.keys.pkcs11 import thread as threads
from attestation.keys.pkcs11.ladder import name_of
from attestation.keys.pkcs11.modules import module_of
from attestation.keys.pkcs11.objects import (
    DEMANDED,
    HandleSigner,
    KeyFacts,
    KeyName,
    PublicKey,
    alive,
    demand_only_one,
    is_true,
    key_id_of,
    public_half,
    search,
    settle,
    spki_of,
)
from attestation.keys.selftest import self_test
from attestation.keys.uri import PKCS11Ref, parse_key_uri
from attestation.keys.wrapping import AES_KEY_BYTES, HASHES, KEK_BITS, MAX_WRAPPED_BYTES, REFUSED

BLOCK_BYTES: Final = 8
"""RFC 5649: semiblocks, one of them the integrity check; at least two."""

OAEP: Final[dict[OAEPHash, Any]] = {  # the binding's stubs know bytes only
    "sha256": (Mechanism.SHA256, MGF.SHA256, None),
    "sha1": (Mechanism.SHA_1, MGF.SHA1, None),
}

_NO_SUCH_PARAMETER: Final = frozenset(("ArgumentsBad", "MechanismParamInvalid", "MechanismInvalid"))


def no_such_parameter(error: PKCS11Error) -> bool:
    """Return True for what tokens answer to an OAEP hash that they do not have, whatever the blob."""
    return name_of(error) in _NO_SUCH_PARAMETER


_KEK_DEMANDED: Final[dict[Attribute, bool]] = {
    Attribute.TOKEN: True,
    Attribute.PRIVATE: True,
    Attribute.SENSITIVE: True,
    Attribute.EXTRACTABLE: False,
    Attribute.UNWRAP: True,
    Attribute.SIGN: False,
    Attribute.SIGN_RECOVER: False,
    Attribute.DECRYPT: False,
    Attribute.DERIVE: False,
}
"""What a KEK must be: one that decrypts, or signs with recovery, would give out the AES key of every blob."""

T = TypeVar("T")


def create_kek(uri: str, options: KeyOptions) -> RSAPublicKey:
    """Make a key-encryption key (RSA-3072) on the token, unless it is there; return its public half.

    It is sensitive, not extractable and unwraps only, which is read back.

    Raises:
        KeyURIInvalid: No `pkcs11:` URI with a label and without an id.
        KeyUnsupported: The token makes no such keys.
        KeyUnusable: What is there, or was made, is no KEK.
    """
    ref = _named_by_label(uri)
    token, name = names_of(ref, options)

    def found_or_made(connection: threads.TokenSession) -> RSAPublicKey:
        try:
            return find_kek(connection.session, name)[1]
        except KeyNotFound:
            return _generate_kek(connection.session, name)

    with making(ref, options):
        thread = threads.acquire(*module_of(ref, options.modules))
        try:
            return thread.run(token, found_or_made, writes=True, deadline_seconds=GENERATE_SECONDS)
        finally:
            threads.release(thread)


def rehearse_kek(uri: str, options: KeyOptions, *, oaep_hash: OAEPHash) -> None:
    """Have the token open what was just sealed for its KEK; nothing of it is kept.

    So a hash that the token does not have is known before anybody wraps a key for it.

    Raises:
        KeyUnsupported: It does not unwrap so.
        KeyNotFound, KeyAmbiguous, KeyUnusable: There is no such KEK.
        UnwrapFailed: It does not open what is its own.
    """
    ref = _named_by_label(uri)
    token, name = names_of(ref, options)

    def rehearsed(connection: threads.TokenSession) -> None:
        session = connection.session
        kek, public = find_kek(session, name)
        _demand_mechanisms(session, name)
        hashing = HASHES[oaep_hash]
        sealed = public.encrypt(
            secrets.token_bytes(AES_KEY_BYTES), padding.OAEP(padding.MGF1(hashing), hashing, None)
        )
        _open_aes_key(session, kek, sealed, oaep_hash, name).destroy()

    thread = threads.acquire(*module_of(ref, options.modules))
    try:
        thread.run(token, rehearsed, writes=True)
    finally:
        threads.release(thread)


def kek_of(uri: str, options: KeyOptions) -> RSAPublicKey:
    """Return the public half of the KEK that is there; none is made.

    Raises:
        KeyNotFound, KeyAmbiguous, KeyUnusable: There is none, several are, or it is no KEK.
        KeyURIInvalid: As `create_kek`.
    """
    ref = _named_by_label(uri)
    token, name = names_of(ref, options)
    thread = threads.acquire(*module_of(ref, options.modules))
    try:
        return thread.run(token, lambda connection: find_kek(connection.session, name)[1], writes=False)
    finally:
        threads.release(thread)


def destroy_keks(uri: str, options: KeyOptions, *, any_that_begins: bool = False) -> int:
    """Destroy the KEKs of a label, with their public halves; return how many there were.

    Args:
        uri: The label.
        options: As for `open_key`.
        any_that_begins: Also those whose label only begins so.

    Raises:
        KeyURIInvalid: As `create_kek`.
    """
    ref = _named_by_label(uri)
    token, name = names_of(ref, options)

    def destroyed(connection: threads.TokenSession) -> int:
        session = connection.session
        alive(session)
        label = None if any_that_begins else name.label
        found = [
            each
            for each in search(session, ObjectClass.PRIVATE_KEY, label=label)
            # What signs, say, is another key, whatever it is called.
            if str(each[Attribute.LABEL]).startswith(name.label or "") and is_true(each, Attribute.UNWRAP)
        ]
        for each in found:
            for half in search(session, ObjectClass.PUBLIC_KEY, id=bytes(each[Attribute.ID])):
                half.destroy()
            # The private one last: a crash before it leaves what this function finds again.
            each.destroy()
        return len(found)

    with making(ref, options):
        thread = threads.acquire(*module_of(ref, options.modules))
        try:
            return thread.run(token, destroyed, writes=True)
        finally:
            threads.release(thread)


def unwrap_key(
    uri: str,
    blob: bytes,
    kek_uri: str,
    *,
    oaep_hash: OAEPHash = "sha256",
    certificate_or_public_key: x509.Certificate | PublicKey,
    options: KeyOptions,
) -> OpenKey:
    """Bring the key in *blob* into the token under the label of *uri*, and open it; its origin is `provisioned`.

    Args:
        uri: Where to. There must be no private key of that label.
        blob: Of `attestation.keys.wrapping.wrap_key`.
        kek_uri: The KEK, on the same token.
        oaep_hash: As the blob was made; `sha1` where the token knows no other.
        certificate_or_public_key: Whose private key it must be. Its public half is stored beside it.
        options: As for `open_key`.

    Raises:
        UnwrapFailed: Anything is wrong with the blob. Nothing is left on the token.
        KeyAmbiguous: There is a private key of that label.
        KeyNotFound: There is no KEK.
        KeyUnsupported: The token does not unwrap so, e.g. no OAEP with that hash; or the key is no EC or RSA key.
        KeyUnusable: The KEK may do more than unwrap, or the token made something else of the key than asked for.
        AlgorithmForbidden: The policy in force forbids the key's algorithm.
    """
    public_key = certificate_or_public_key
    if isinstance(public_key, x509.Certificate):
        public_key = cast("PublicKey", public_key.public_key())
    if not isinstance(public_key, EllipticCurvePublicKey | RSAPublicKey):
        raise KeyUnsupported("only EC and RSA keys are brought into a token")
    if oaep_hash not in HASHES:
        raise KeyUnsupported(f"OAEP with {oaep_hash} is not used; {' or '.join(HASHES)}")
    options.allowed(algorithm_of(public_key))
    ref, kek_ref = _named_by_label(uri), parse_key_uri(kek_uri)
    if not isinstance(kek_ref, PKCS11Ref) or ref.with_object("kek", None) != kek_ref.with_object("kek", None):
        raise KeyURIInvalid(
            "the KEK is named like the new key: same token, module and PIN; another object or id"
        )
    _, kek_name = names_of(kek_ref, options)

    def unwrapped(connection: threads.TokenSession, name: KeyName) -> KeyFacts:
        session = connection.session
        alive(session)
        if search(session, ObjectClass.PRIVATE_KEY, label=name.label):
            raise KeyAmbiguous(f"{name.shown} is there already; a key is never replaced")
        private = _unwrap(session, blob, kek_name, oaep_hash, public_key, name)
        made: list[pkcs11.Object] = [private]
        try:
            _check(private, DEMANDED, name)
            _prove(session, private, public_key, name)
            made.append(_store_public(session, public_key, name))
            return proven(connection, name)
        except BaseException:
            for each in made:
                each.destroy()
            raise

    with making(ref, options):
        return with_key(ref, options, unwrapped, writes=True)


def _named_by_label(uri: str) -> PKCS11Ref:
    ref = parse_key_uri(uri)
    if not isinstance(ref, PKCS11Ref) or ref.object is None or ref.id is not None:
        raise KeyURIInvalid(
            "a new key of a token is named pkcs11:…;object=LABEL; its id follows from the key"
        )
    return ref


# What follows runs in the module's thread.


def _generate_kek(session: pkcs11.Session, name: KeyName) -> RSAPublicKey:
    if Mechanism.RSA_PKCS_KEY_PAIR_GEN not in session.token.slot.get_mechanisms():
        raise KeyUnsupported(f"the token of {name.shown} makes no RSA keys")
    provisional = secrets.token_bytes(20)  # pairs the halves until the public key is known
    public, private = session.generate_keypair(
        KeyType.RSA,
        KEK_BITS,
        id=provisional,
        label=name.label,
        store=True,
        capabilities=MechanismFlag.WRAP | MechanismFlag.UNWRAP,
        private_template=cast("dict[Attribute, Any]", _KEK_DEMANDED),
    )
    try:
        public_key = _check_kek(session, private, name)
    except BaseException:
        private.destroy()
        public.destroy()
        raise
    demand_only_one(session, name.label or "", (private, public), name.shown)
    settle(
        session,
        private,
        KeyFacts(label=name.label or "", id=provisional, public_key=public_key, origin="generated"),
    )
    return public_key


def find_kek(session: pkcs11.Session, name: KeyName) -> tuple[pkcs11.UnwrapMixin, RSAPublicKey]:
    """Return the KEK *name* and its public half; it can unwrap, and nothing else.

    Raises:
        KeyNotFound, KeyAmbiguous, KeyUnusable: There is none, several are, or it is no KEK.
    """
    alive(session)
    found = search(session, ObjectClass.PRIVATE_KEY, label=name.label, id=name.id)
    if not found:
        raise KeyNotFound(f"no private key {name.shown} on the token")
    if len(found) > 1:
        raise KeyAmbiguous(f"{len(found)} private keys are {name.shown}; name one by its id")
    public_key = _check_kek(session, found[0], name)
    return cast("pkcs11.UnwrapMixin", found[0]), public_key


def _check_kek(session: pkcs11.Session, private: pkcs11.Object, name: KeyName) -> RSAPublicKey:
    _check(private, _KEK_DEMANDED, name)
    public_key = public_half(session, private, name)
    if not isinstance(public_key, RSAPublicKey) or public_key.key_size < KEK_BITS:
        raise KeyUnusable(f"{name.shown} is no RSA key of at least {KEK_BITS} bits")
    return public_key


def _check(private: pkcs11.Object, demanded: dict[Attribute, bool], name: KeyName) -> None:
    wrong = [each.name for each, wanted in demanded.items() if is_true(private, each) is not wanted]
    if wrong:
        raise KeyUnusable(f"{', '.join(wrong)} of {name.shown} is not as it must be")


def _unwrap(
    session: pkcs11.Session,
    blob: bytes,
    kek_name: KeyName,
    oaep_hash: OAEPHash,
    public_key: PublicKey,
    name: KeyName,
) -> pkcs11.Key:
    """Return the private key in *blob*, a token object that nobody has proven yet."""
    kek, kek_public = find_kek(session, kek_name)
    _demand_mechanisms(session, name)
    sealed_bytes = kek_public.key_size // 8
    sealed, wrapped = blob[:sealed_bytes], blob[sealed_bytes:]
    if not 2 * BLOCK_BYTES <= len(wrapped) <= MAX_WRAPPED_BYTES or len(wrapped) % BLOCK_BYTES:
        raise UnwrapFailed(REFUSED)
    aes_key = _open_aes_key(session, kek, sealed, oaep_hash, name)
    try:
        return _of_blob(
            session,
            lambda: aes_key.unwrap_key(
                ObjectClass.PRIVATE_KEY,
                KeyType.EC if isinstance(public_key, EllipticCurvePublicKey) else KeyType.RSA,
                wrapped,
                id=key_id_of(public_key),
                label=name.label,
                mechanism=Mechanism.AES_KEY_WRAP_PAD,
                store=True,
                capabilities=MechanismFlag.SIGN,
                # The binding would send what only public and secret keys have: AttributeTypeInvalid.
                template=DEMANDED
                | dict.fromkeys((Attribute.ENCRYPT, Attribute.WRAP, Attribute.VERIFY), DEFAULT),
            ),
        )
    finally:
        with contextlib.suppress(PKCS11Error):  # then it ends with the session, which is closed after this
            aes_key.destroy()


def _demand_mechanisms(session: pkcs11.Session, name: KeyName) -> None:
    offered = session.token.slot.get_mechanisms()
    for mechanism in (Mechanism.RSA_PKCS_OAEP, Mechanism.AES_KEY_WRAP_PAD):
        if mechanism not in offered:
            raise KeyUnsupported(f"the token of {name.shown} does not unwrap with {mechanism.name}")


def _open_aes_key(
    session: pkcs11.Session, kek: pkcs11.UnwrapMixin, sealed: bytes, oaep_hash: OAEPHash, name: KeyName
) -> pkcs11.UnwrapMixin:
    """Return the AES key in *sealed*, an object of the session.

    Raises:
        KeyUnsupported: The token has no such hash for OAEP, whatever is sealed.
        UnwrapFailed: It does not open.
    """

    def opened() -> pkcs11.UnwrapMixin:
        try:
            found = kek.unwrap_key(
                ObjectClass.SECRET_KEY,
                KeyType.AES,
                sealed,
                mechanism=Mechanism.RSA_PKCS_OAEP,
                mechanism_param=OAEP[oaep_hash],
                store=False,
                capabilities=MechanismFlag.UNWRAP,
                template={
                    Attribute.PRIVATE: True,
                    Attribute.SENSITIVE: True,
                    Attribute.EXTRACTABLE: False,
                },
            )
            return cast("pkcs11.UnwrapMixin", found)
        except PKCS11Error as e:
            if not no_such_parameter(e):
                raise
            raise KeyUnsupported(
                f"the token of {name.shown} does no OAEP with {oaep_hash}; SoftHSM 2.6.1 knows sha1 only, "
                "which must be named when the key is wrapped and here"
            ) from e

    return _of_blob(session, opened)


def _prove(session: pkcs11.Session, private: pkcs11.Key, public_key: PublicKey, name: KeyName) -> None:
    """Let *private* sign for *public_key*; only the blob decides whether it does."""
    signer = delegated(HandleSigner(cast("pkcs11.SignMixin", private)), public_key, name.shown)
    try:
        _of_blob(session, lambda: self_test(signer, public_key))
    except (KeyMismatch, SignerUnavailable):  # the latter of a signature of another length
        raise UnwrapFailed(REFUSED) from None


def _of_blob(session: pkcs11.Session, step: Callable[[], T]) -> T:
    """Do a step that depends on the blob; what the module answers says nothing, unless the token went away."""
    try:
        return step()
    except PKCS11Error:
        alive(session)
        raise UnwrapFailed(REFUSED) from None


def _store_public(session: pkcs11.Session, public_key: PublicKey, name: KeyName) -> pkcs11.Object:
    """Put the public half beside the private one: some tokens make none, and without it no key can be opened."""
    if isinstance(public_key, EllipticCurvePublicKey):
        template = decode_ec_public_key(spki_of(public_key))
    else:
        template = decode_rsa_public_key(public_key.public_bytes(Encoding.DER, PublicFormat.PKCS1))
    return session.create_object(
        template
        | {
            Attribute.TOKEN: True,
            Attribute.PRIVATE: False,
            Attribute.LABEL: name.label,
            Attribute.ID: key_id_of(public_key),
            Attribute.VERIFY: True,
            Attribute.ENCRYPT: False,
            Attribute.WRAP: False,
        }
    )
