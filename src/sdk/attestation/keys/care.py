"""What is done with a token beside signing: ask what it is, look whether a key is there once, destroy a key.

URIs are those of `attestation.keys.open`; what needs a package that is not installed is `KeyUnsupported`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from attestation.errors import KeyURIInvalid
from attestation.keys.open import KeyOptions
from attestation.keys.pkcs11.modules import module_of
from attestation.keys.uri import PKCS11Ref, TPM2Ref, parse_key_uri

if TYPE_CHECKING:
    from attestation.keys.pkcs11.objects import KeyName
    from attestation.keys.pkcs11.thread import TokenSession

T = TypeVar("T")

MAX_MECHANISMS: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenFacts:
    """What a token says of itself; nobody vouches for it.

    Args:
        label: Without the blanks that fill it up; None of a TPM.
        serial: Likewise.
        manufacturer: Likewise.
        model: Likewise.
        firmware_version: `2.6`.
        mechanisms: Names of PKCS #11 without `CKM_`, sorted; what has no name is 0x and eight hex digits.
    """

    label: str | None
    serial: str | None
    manufacturer: str | None
    model: str | None
    firmware_version: str | None
    mechanisms: tuple[str, ...]


def token_facts(uri: str, options: KeyOptions) -> TokenFacts:
    """Return what the token of *uri* says of itself, after a login. Blocks.

    Raises:
        KeyUnusable: Module, token or PIN; as `open_key` of `attestation.keys.open`.
        SignerUnavailable: It does not answer now.
    """
    ref = parse_key_uri(uri)
    if isinstance(ref, TPM2Ref):
        return _of_tpm(ref)
    return _on_token(_token_ref(uri), options, _facts, writes=False)


def look(uri: str, options: KeyOptions) -> None:
    """Make sure that the private key of *uri* is on its token, and only once. Blocks.

    Raises:
        KeyNotFound: It is not there; KeyAmbiguous: several are.
        KeyUnusable, SignerUnavailable: As `token_facts`.
    """
    if isinstance(parse_key_uri(uri), TPM2Ref):
        return

    def find(connection: TokenSession, name: KeyName) -> None:
        from attestation.keys.pkcs11.objects import find_private

        find_private(connection.session, name)

    _on_token(_token_ref(uri), options, find, writes=False)


def destroy_key(uri: str, options: KeyOptions) -> bool:
    """Destroy the private key of *uri*, with the public key and the certificate of its id. Blocks.

    Whoever has it open finds it gone. Of a TPM, the file that only this TPM can load is removed.

    Returns:
        False where there was none.

    Raises:
        KeyAmbiguous: Several keys fit: none is destroyed.
        KeyURIInvalid: A TPM key by number, which nobody here made.
        KeyUnusable, SignerUnavailable: As `token_facts`.
    """
    ref = parse_key_uri(uri)
    if isinstance(ref, TPM2Ref):
        if ref.path is None:
            raise KeyURIInvalid("only a key of a TPM in a file is destroyed here")
        there = ref.path.exists()
        ref.path.unlink(missing_ok=True)
        return there
    from attestation.keys.pkcs11 import making

    token = _token_ref(uri)
    with making(token, options):
        return _on_token(token, options, _destroy, writes=True)


def _token_ref(uri: str) -> PKCS11Ref:
    ref = parse_key_uri(uri)
    if not isinstance(ref, PKCS11Ref):
        raise KeyURIInvalid("a token is named by pkcs11: or tpm2:")
    return ref


def _on_token(
    ref: PKCS11Ref, options: KeyOptions, work: Callable[[TokenSession, KeyName], T], *, writes: bool
) -> T:
    """Have *work* done in the thread of the module."""
    from attestation.keys.pkcs11 import names_of

    token, name = names_of(ref, options)  # says what is missing where python-pkcs11 is not installed
    from attestation.keys.pkcs11 import thread as threads

    module = threads.acquire(*module_of(ref, options.modules))
    try:
        return module.run(token, lambda connection: work(connection, name), writes=writes)
    finally:
        threads.release(module)


def _facts(connection: TokenSession, name: KeyName) -> TokenFacts:
    from attestation.keys.pkcs11.objects import alive

    del name
    alive(connection.session)  # a session may be left of a token that is gone
    token = connection.session.token
    found = sorted(
        each.name if hasattr(each, "name") else f"0x{int(each):08x}" for each in token.slot.get_mechanisms()
    )
    version = token.firmware_version
    return TokenFacts(
        label=_said(token.label),
        serial=_said(token.serial),
        manufacturer=_said(token.manufacturer_id),
        model=_said(token.model),
        firmware_version=".".join(map(str, version)),
        mechanisms=tuple(found[:MAX_MECHANISMS]),
    )


def _destroy(connection: TokenSession, name: KeyName) -> bool:
    from pkcs11 import Attribute, ObjectClass

    from attestation.errors import KeyNotFound
    from attestation.keys.pkcs11.objects import find_private, search

    session = connection.session
    try:
        key = find_private(session, name)
    except KeyNotFound:
        return False
    identity = bytes(key[Attribute.ID] or b"")
    beside = [
        each
        for kind in (ObjectClass.CERTIFICATE, ObjectClass.PUBLIC_KEY)
        for each in (search(session, kind, id=identity) if identity else ())
    ]
    # The private key last: a crash before it leaves what this function finds again.
    for each in (*beside, key):
        each.destroy()
    return True


def _of_tpm(ref: TPM2Ref) -> TokenFacts:
    from attestation.keys.tpm2 import DEFAULT_TCTI
    from attestation.keys.tpm2.thread import acquire, release
    from attestation.keys.uri import PERSISTENT_HANDLES

    thread = acquire(ref.tcti or DEFAULT_TCTI)
    try:
        thread.run(lambda held: held.tpm.handles(PERSISTENT_HANDLES.start), shown=ref.shown)
    finally:
        release(thread)
    return TokenFacts(
        label=None, serial=None, manufacturer=None, model="TPM 2.0", firmware_version=None, mechanisms=()
    )


def _said(text: str | bytes) -> str | None:
    """Return a text of a token without what fills it up, 1 to 64 characters that can be shown."""
    words = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
    shown = "".join(each for each in words if each.isprintable()).strip(" \0")
    return shown[:64] or None
