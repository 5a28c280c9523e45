"""Private keys in a TPM 2.0, by our own client: persistent, or wrapped in a TSS2 PRIVATE KEY file or NV index.

    tpm2:handle=0x810100xx      a persistent key
    tpm2:path=/…/ca.tss2        a file that this TPM alone can load; mode 0600
    tpm2:nv=0x018000xx          the same, DER, in NV memory: it goes where the TPM goes

The TPM signs with ECDSA and RSA up to 3072 bits, at 5 to 50 signatures a second where it is a chip. What
it is asked to sign is hashed here. RSA-4096 and ML-DSA-87 are KeyUnsupported.
"""

# Algorithms for: device-key
from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, Protocol, TypeVar

from attestation.device import KeyType
from attestation.device.keys import key_template, load_key, make_key, sign_digest
from attestation.device.nv import is_written, read_nv, remove_nv, write_nv_file
from attestation.errors import (
    KeyMismatch,
    KeyNotFound,
    KeyUnsupported,
    KeyUnusable,
    KeyURIInvalid,
    MalformedEvidence,
    PINRejected,
    TPMResponseError,
)
from attestation.keys.delegated import DIGEST_INFO, HashName, RawSigner, delegated
from attestation.keys.file import create_once, read_private
from attestation.keys.open import Algorithm, KeyOptions, OpenKey
from attestation.keys.secrets import secret_source
from attestation.keys.selftest import self_test
from attestation.keys.tpm2.thread import AuthValues, HeldTPM, StoredKey, TPMThread, acquire, release
from attestation.keys.uri import KeyRef, TPM2Ref
from attestation.tpm import Alg, Attr, Hierarchy, Public, Signature, commands, parse_public
from attestation.tpm.key_file import MAX_KEY_FILE_BYTES, TPMKey, encode_key, encode_key_file, parse_key_file
from attestation.tpm.sessions import Password

T = TypeVar("T")

DEFAULT_TCTI: Final = "device:/dev/tpmrm0"
MAKE_SECONDS: Final = 60.0
"""P-384 takes a discrete TPM well below a second; the rest is for others who use it."""
UNWRITTEN_SECONDS: Final = 5.0
"""After so long an NV index that nobody wrote was left by somebody who died."""
_PAUSE_SECONDS: Final = 0.1

_KINDS: Final[dict[Algorithm, KeyType]] = {"ecdsa-p256": KeyType.ECC_P256, "ecdsa-p384": KeyType.ECC_P384}
_RESIDENT: Final = int(Attr.FIXED_TPM | Attr.FIXED_PARENT | Attr.SENSITIVE_DATA_ORIGIN)
_NV_DEFINED: Final = 0x14C


class TPMSigner(RawSigner):
    """Signs with one key of a TPM, through its thread."""

    def __init__(self, thread: TPMThread, key: StoredKey) -> None:
        self._thread, self._key = thread, key

    def sign_digest_ecdsa(self, digest: bytes) -> tuple[int, int]:
        """As `RawSigner`."""
        signature = self._sign(digest)
        return int.from_bytes(signature.signature), int.from_bytes(signature.s)

    def sign_rsa_pkcs1(self, digest_info: bytes) -> bytes:
        """As `RawSigner`."""
        for prefix in DIGEST_INFO.values():
            if digest_info.startswith(prefix):
                return self._sign(digest_info[len(prefix) :]).signature
        raise KeyUnsupported("a TPM signs digests of SHA-256, SHA-384 and SHA-512 only")

    def sign_rsa_pss(self, digest: bytes, hash_name: HashName, salt_bytes: int) -> bytes:  # noqa: ARG002 -- as the base
        """As `RawSigner`; a TPM takes a salt as long as the digest."""
        return self._sign(digest, pss=True).signature

    def _sign(self, digest: bytes, *, pss: bool = False) -> Signature:
        def work(connection: HeldTPM) -> Signature:
            loaded, auth_value = connection.use(self._key)
            return sign_digest(connection.tpm, loaded, digest, pss=pss, auth_value=auth_value)

        try:
            return self._thread.run(work, shown=self._key.shown)
        except PINRejected:
            self._key.auth.refuse()
            raise


class _Run(Protocol):
    def __call__(self, work: Callable[[HeldTPM], T]) -> T: ...


_Make = Callable[[HeldTPM], TPMKey]


def open_key(ref: KeyRef, options: KeyOptions) -> OpenKey:
    """Open the private key in the TPM; see `attestation.keys.open.open_key`.

    Raises:
        KeyNotFound: Nothing is there.
        KeyMismatch: The file or NV index is of another TPM, or of this one before it was cleared.
        KeyUnsupported: A key that signs nothing, or only what its TPM made.
        PINRejected: Another authValue; it is not tried again until its source says something else.
        SignerUnavailable: The TPM does not answer.
    """
    return _with_thread(ref, options, _open)


def create_key(ref: KeyRef, algorithm: Algorithm, options: KeyOptions) -> OpenKey:
    """Make the key unless it is there, then open it; see `attestation.keys.open.create_key`.

    It is made in the TPM, never leaves it (00040472), and has the authValue that `auth-source` says.
    """
    kind = _KINDS.get(algorithm)
    if kind is None:
        raise KeyUnsupported(f"a TPM makes no {algorithm} keys; ecdsa-p384 and ecdsa-p256 are what it can")

    def found_or_made(thread: TPMThread, ref: TPM2Ref, options: KeyOptions) -> OpenKey:
        make_once(thread, ref, options, key_template(kind))
        return _open(thread, ref, options)

    opened = _with_thread(ref, options, found_or_made)
    if opened.algorithm != algorithm:
        opened.close()
        raise KeyMismatch(f"the key at {ref.shown} is {opened.algorithm}; {algorithm} expected")
    return opened


def _with_thread(
    ref: KeyRef, options: KeyOptions, work: Callable[[TPMThread, TPM2Ref, KeyOptions], OpenKey]
) -> OpenKey:
    assert isinstance(ref, TPM2Ref)
    uri = ref.tcti or DEFAULT_TCTI
    if not uri.startswith(("device:/", "unix:/", "tcp:")):
        raise KeyURIInvalid("tcti is device:/PATH, unix:/PATH or tcp:HOST:PORT")
    thread = acquire(uri)
    try:
        return work(thread, ref, options)
    except BaseException:
        release(thread)
        raise


# Opening


def _open(thread: TPMThread, ref: TPM2Ref, options: KeyOptions) -> OpenKey:
    where, public = found(thread, ref)
    _check(public, ref.shown)
    auth = auth_of(ref, options, where)
    stored = StoredKey(shown=ref.shown, where=where, name=public.name, auth=auth)
    private = delegated(TPMSigner(thread, stored), public.key(), ref.shown)
    self_test(private, private.public_key())
    resident = public.attributes & _RESIDENT == _RESIDENT
    return OpenKey(
        private,
        ref=ref,
        origin="tpm" if resident else "provisioned",
        backend="tpm2",
        close=lambda: release(thread),
    )


def found(thread: TPMThread, ref: TPM2Ref) -> tuple[int | TPMKey, Public]:
    """Return where the key lies, and its public area.

    Raises:
        KeyNotFound, KeyUnusable: As `_wrapped`.
    """
    wrapped = _wrapped(thread, ref)
    if wrapped is not None:
        return wrapped, parse_public(wrapped.public)
    assert ref.handle is not None
    return ref.handle, _persistent(thread, ref.handle, ref.shown)


def auth_of(ref: TPM2Ref, options: KeyOptions, where: int | TPMKey) -> AuthValues:
    """Return where the authValues of the key at *where* are read."""
    return _auth(ref, options, empty=isinstance(where, TPMKey) and where.empty_auth)


def _wrapped(thread: TPMThread, ref: TPM2Ref) -> TPMKey | None:
    """Return the wrapped key in file or NV index; None where the URI has a handle.

    Raises:
        KeyNotFound: Nothing is there.
        KeyUnusable: Something else is there, or it may not be read.
    """
    if ref.handle is not None:
        return None
    data = read_private(ref.path) if ref.path is not None else _from_nv(thread, ref)
    try:
        return parse_key_file(data)
    except MalformedEvidence as e:
        raise KeyUnusable(f"{ref.shown} holds no TSS2 PRIVATE KEY: {e}") from e


def _from_nv(thread: TPMThread, ref: TPM2Ref) -> bytes:
    def read(connection: HeldTPM) -> bytes | None:
        assert ref.nv is not None
        if not is_written(connection.tpm, ref.nv):
            return None
        return read_nv(connection.tpm, ref.nv, MAX_KEY_FILE_BYTES)

    data = thread.run(read, shown=ref.shown)
    if data is None:
        raise KeyNotFound(f"nothing that can be read is at {ref.shown}")
    return data


def _persistent(thread: TPMThread, handle: int, shown: str) -> Public:
    def read(connection: HeldTPM) -> bytes | None:
        if connection.tpm.handles(handle)[:1] != [handle]:
            return None
        return connection.tpm.execute(commands.read_public(handle)).public

    public = thread.run(read, shown=shown)
    if public is None:
        raise KeyNotFound(f"nothing is at {shown}")
    return parse_public(public)


def _check(public: Public, shown: str) -> None:
    """Refuse a key that cannot sign certificates.

    Raises:
        KeyUnsupported: It does not sign, only what its TPM made, or is of a kind that we do not use.
    """
    if not public.attributes & Attr.SIGN_ENCRYPT or public.attributes & Attr.RESTRICTED:
        raise KeyUnsupported(f"{shown} is not a key that signs what it is given")
    try:
        public.key()
    except MalformedEvidence as e:
        raise KeyUnsupported(f"{shown} is of a kind that signs no certificates") from e
    scheme = public.scheme
    if scheme is not None and scheme.alg not in (Alg.ECDSA, Alg.RSASSA, Alg.RSAPSS):
        raise KeyUnsupported(f"{shown} has a scheme that signs no certificates")


def _auth(ref: TPM2Ref, options: KeyOptions, *, empty: bool = False) -> AuthValues:
    """Return where the authValues of the key and of the TPM's owner are read."""
    key = secret_source(ref.auth_source) if ref.auth_source is not None else options.passphrase
    owner = secret_source(ref.owner_auth_source) if ref.owner_auth_source is not None else None
    return AuthValues(ref.shown, None if empty else key, owner, tpm=ref.tcti or DEFAULT_TCTI)


# Making


def make_once(thread: TPMThread, ref: TPM2Ref, options: KeyOptions, template: bytes) -> None:
    """Make a key where *ref* points, unless something is there."""
    auth_value, owner_auth = _auth(ref, options).read()

    def make(connection: HeldTPM) -> TPMKey:
        return make_key(connection.tpm, template, hierarchy_auth=owner_auth, auth_value=auth_value)

    def run(work: Callable[[HeldTPM], T]) -> T:
        return thread.run(work, shown=ref.shown, deadline_seconds=MAKE_SECONDS)

    if ref.path is not None:
        create_once(ref.path, lambda: encode_key_file(run(make)))
    elif ref.nv is not None:
        _make_in_nv(run, make, ref.nv, owner_auth)
    else:
        assert ref.handle is not None
        _make_persistent(run, make, ref.handle, owner_auth)


def _make_persistent(run: _Run, make: _Make, handle: int, owner_auth: bytes) -> None:
    def work(connection: HeldTPM) -> None:
        tpm = connection.tpm
        if tpm.handles(handle)[:1] == [handle]:
            return
        key = make(connection)
        with tpm.scope():
            made = load_key(tpm, key, owner_auth).entity
            try:
                tpm.execute(commands.evict_control(Hierarchy.OWNER, made, handle), Password(owner_auth))
            except TPMResponseError as e:
                # Another process was faster; its key is the one.
                if e.response_code != _NV_DEFINED:
                    raise

    run(work)


def _make_in_nv(run: _Run, make: _Make, index: int, owner_auth: bytes) -> None:
    """Define the index and write it; who defines it writes it, and the others wait."""

    def work(connection: HeldTPM) -> bool:
        """Return True where there is a key now, False where somebody else is about to write one."""
        written = is_written(connection.tpm, index)
        if written is not None:
            return written
        key = make(connection)
        try:
            write_nv_file(connection.tpm, index, encode_key(key), owner_auth)
        except TPMResponseError as e:
            if e.response_code != _NV_DEFINED:
                raise
            return False
        return True

    def remove(connection: HeldTPM) -> None:
        if is_written(connection.tpm, index) is False:
            remove_nv(connection.tpm, index, owner_auth)

    give_up_at = time.monotonic() + UNWRITTEN_SECONDS
    while not run(work):
        if time.monotonic() > give_up_at:
            run(remove)
        time.sleep(_PAUSE_SECONDS)
