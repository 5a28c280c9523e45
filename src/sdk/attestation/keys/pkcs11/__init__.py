"""Keys on PKCS#11 tokens: `pkcs11:token=T;object=L[;id=…;serial=…][?module-name=N&pin-source=file:…]` (RFC 7512).

The module is one of the deployment's list (`ITL_PKCS11_MODULES`); no URI names a library. One thread per process
and module does everything (`thread`); what fails is begun again as far back as needed (`ladder`). Keys that were
wrapped elsewhere are brought in by `provision`. What is not built: ML-DSA on tokens, PIN pads.

python-pkcs11 is needed, the extra `pkcs11` of this package; it is imported when the first key is opened.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeVar

from attestation.errors import KeyMismatch, KeyNotFound, KeyUnsupported, KeyURIInvalid, SignerUnavailable
from attestation.keys.delegated import HashName, RawSigner, delegated
from attestation.keys.open import Algorithm, CAPrivateKey, CAPublicKey, KeyOptions, OpenKey, algorithm_of
from attestation.keys.pkcs11.modules import alone, module_of, parse_modules
from attestation.keys.secrets import secret_source
from attestation.keys.uri import KeyRef, PKCS11Ref

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from attestation.keys.pkcs11.objects import KeyFacts, KeyName
    from attestation.keys.pkcs11.thread import ModuleThread, TokenSession
    from attestation.keys.pkcs11.tokens import TokenName

__all__ = ["create_key", "open_key", "parse_modules"]

GENERATE_SECONDS: Final = 120.0
"""An RSA-4096 key takes a YubiHSM 2 about half a minute."""

T = TypeVar("T")


class TokenKey(RawSigner):
    """Signs with one key of a token, through the thread of its module."""

    def __init__(self, thread: ModuleThread, token: TokenName, name: KeyName) -> None:
        self._thread, self._token, self._name = thread, token, name

    def sign_digest_ecdsa(self, digest: bytes) -> tuple[int, int]:
        """As `RawSigner`."""
        return self._run(lambda signer: signer.sign_digest_ecdsa(digest))

    def sign_rsa_pkcs1(self, digest_info: bytes) -> bytes:
        """As `RawSigner`."""
        return self._run(lambda signer: signer.sign_rsa_pkcs1(digest_info))

    def sign_rsa_pss(self, digest: bytes, hash_name: HashName, salt_bytes: int) -> bytes:
        """As `RawSigner`."""
        return self._run(lambda signer: signer.sign_rsa_pss(digest, hash_name, salt_bytes))

    def _run(self, sign: Callable[[RawSigner], T]) -> T:
        name = self._name
        return self._thread.run(self._token, lambda connection: sign(connection.signer(name)), key=name)


def open_key(ref: KeyRef, options: KeyOptions) -> OpenKey:
    """Open the private key on the token; see `attestation.keys.open.open_key`.

    Raises:
        ModuleNotListed: The settings do not list it.
        ModuleUnusable: Not there, no PKCS#11 module, or it does not start.
        KeyUnsupported: python-pkcs11 is missing.
        TokenAbsent: No such token.
        PINRejected: Wrong, locked, or nearly locked; no login is tried twice with the same PIN.
        KeyAmbiguous: Several private keys fit.
        KeyUnusable: The key may leave its token, or its public half is nowhere.
    """
    return with_key(ref, options, proven, writes=False)


def create_key(ref: KeyRef, algorithm: Algorithm, options: KeyOptions) -> OpenKey:
    """Make the key on the token unless it is there, then open it; see `attestation.keys.open.create_key`.

    It is sensitive, not extractable and signs only, which is read back. The processes of one machine do this one
    after another; of several machines that make it at the same moment at most one does, and the others look again.
    """
    assert isinstance(ref, PKCS11Ref)
    if ref.object is None or ref.id is not None:
        raise KeyURIInvalid("a new key is named by its label (object) alone; its id follows from the key")

    def found_or_made(connection: TokenSession, name: KeyName) -> KeyFacts:
        from attestation.keys.pkcs11.objects import find_private, generate, settle

        assert name.label is not None
        try:
            find_private(connection.session, name)
        except KeyNotFound:
            generate(connection.session, algorithm, name.label, name.shown)
        facts = proven(connection, name)
        if algorithm_of(facts.public_key) != algorithm:
            raise KeyMismatch(f"{name.shown} is there already, and is {algorithm_of(facts.public_key)}")
        return settle(connection.session, find_private(connection.session, name), facts)

    with making(ref, options):
        return with_key(ref, options, found_or_made, writes=True)


@contextlib.contextmanager
def making(ref: PKCS11Ref, options: KeyOptions) -> Iterator[None]:
    """Be the only process of this machine that makes keys with the module of *ref*.

    Raises:
        SignerUnavailable: Somebody else is for too long.
        ModuleUnusable: As `open_key`.
    """
    _, path = module_of(ref, options.modules)
    with alone(path, wait_seconds=GENERATE_SECONDS) as ours:
        if not ours:
            raise SignerUnavailable(f"somebody else is making keys with {path}")
        yield


def proven(connection: TokenSession, name: KeyName) -> KeyFacts:
    """Return the facts of a key, and prove by a test signature that its public half belongs to it."""
    from attestation.keys.pkcs11.objects import HandleSigner, describe, find_private
    from attestation.keys.selftest import self_test

    handle = find_private(connection.session, name)
    facts = describe(connection.session, handle, name)
    self_test(delegated(HandleSigner(handle), facts.public_key, name.shown), facts.public_key)
    return facts


def names_of(ref: PKCS11Ref, options: KeyOptions) -> tuple[TokenName, KeyName]:
    """Return how the thread calls what *ref* names.

    Raises:
        KeyUnsupported: python-pkcs11 is missing.
    """
    try:
        from attestation.keys.pkcs11.objects import KeyName
        from attestation.keys.pkcs11.tokens import TokenName
    except ModuleNotFoundError as e:
        raise KeyUnsupported(
            "pkcs11: keys need python-pkcs11; install it with: pip install 'itl-attestation-sdk[pkcs11]'"
        ) from e
    pin = secret_source(ref.pin_source) if ref.pin_source is not None else options.passphrase
    token = TokenName(label=ref.token, serial=ref.serial, pin=pin)
    return token, KeyName(label=ref.object, id=ref.id, shown=ref.shown)


def with_key(
    ref: KeyRef, options: KeyOptions, work: Callable[[TokenSession, KeyName], KeyFacts], *, writes: bool
) -> OpenKey:
    """Open the key that *work* finds or makes in the module's thread; *writes*: in a session that may write."""
    assert isinstance(ref, PKCS11Ref)
    module, path = module_of(ref, options.modules)
    token, name = names_of(ref, options)
    from attestation.keys.pkcs11 import thread as threads
    from attestation.keys.pkcs11.objects import KeyName

    thread = threads.acquire(module, path)
    try:
        facts = thread.run(
            token,
            lambda connection: work(connection, name),
            writes=writes,
            deadline_seconds=GENERATE_SECONDS if writes else threads.DEADLINE_SECONDS,
        )
        test = None
        if options.test_key is not None:
            shown = str(replace(ref, object=options.test_key, id=None).shown)
            beside = KeyName(label=options.test_key, id=None, shown=shown)
            tester = thread.run(token, lambda connection: proven(connection, beside))
            test = replace(beside, id=tester.id or None, spki=tester.spki)
    except BaseException:
        threads.release(thread)
        raise
    # From now on exactly this key is meant, whatever else may appear under its label.
    known = KeyName(label=ref.object, id=facts.id or ref.id, spki=facts.spki, shown=ref.shown)
    used = threads.KeyInUse(token=token, key=known, test=test)
    thread.use(used)

    def close() -> None:
        thread.use(used, more=-1)
        threads.release(thread)

    return _TokenOpenKey(
        delegated(TokenKey(thread, token, known), facts.public_key, ref.shown),
        prove=(lambda: thread.run(token, used.prove, key=known)) if test is not None else None,
        ref=ref,
        origin=facts.origin,
        backend="pkcs11",
        close=close,
    )


class _TokenOpenKey(OpenKey):
    """A key whose periodic test signatures may be made by another one.

    Args:
        prove: Makes one with the test key; None where there is none.
    """

    def __init__(self, private_key: CAPrivateKey, *, prove: Callable[[], None] | None, **more: Any) -> None:
        super().__init__(private_key, **more)
        self._prove = prove
        self._tested: CAPublicKey | None = None

    def self_test(self, public_key: CAPublicKey) -> None:
        """As `OpenKey.self_test`. Where a test key is named, only the first time with the key itself.

        The thread proves the key whenever it is found again, e.g. after a restart of the token.
        """
        if self._prove is None or self._tested != public_key:
            super().self_test(public_key)
            self._tested = public_key
        else:
            self._prove()
