"""Authorisations: passwords, HMAC sessions and policy sessions (TPM 2.0 Part 1, 19 to 21).

Everything is a value: a `Session` does not change, an exchange returns its successor. Nonces come in as arguments.
A session salted to a key of the TPM proves in every response that this TPM answered (only it knows the salt), and
hides the first parameter from whoever listens on the bus.
"""

# Algorithms for: tpm-session
from __future__ import annotations

import hmac
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Generic, TypeVar

from attestation.errors import DeviceError, MalformedEvidence
from attestation.tpm.commands import (
    NULL_HANDLE,
    PASSWORD_SESSION,
    Command,
    Entity,
    ResponseAuthorisation,
    SessionType,
    StartedSession,
    parse_response,
    read_parameters,
    start_auth_session,
)
from attestation.tpm.constants import Alg
from attestation.tpm.credential import SECRET, aes_cfb, encapsulate
from attestation.tpm.hashes import digest_size, hash_new, hmac_digest
from attestation.tpm.kdf import kdfa
from attestation.tpm.public import Public
from attestation.wire import sized, u32

T = TypeVar("T")

NONCE_BYTES: Final = 32
"""What we send as nonceCaller; between 16 and the digest size is allowed."""

_CONTINUE: Final = 0x01
_DECRYPT: Final = 0x20
"""The first command parameter is encrypted: the TPM must decrypt it."""
_ENCRYPT: Final = 0x40
"""The first response parameter is to be encrypted."""
_CFB_KEY_BYTES: Final = 16
_CFB_IV_BYTES: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """An HMAC or policy session between two commands.

    Args:
        handle: u32.
        kind: HMAC or policy.
        hash_alg: Its hash.
        key: Session key; empty for an unsalted session.
        nonce_tpm: The last nonce of the TPM.
    """

    handle: int
    kind: SessionType
    hash_alg: int
    key: bytes = field(repr=False)
    nonce_tpm: bytes


@dataclass(frozen=True, slots=True)
class Password:
    """The authValue itself, in the clear; for empty ones, and where no key exists yet to salt a session."""

    value: bytes = field(default=b"", repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionUse:
    """One use of a session.

    Args:
        session: Which.
        auth_value: authValue of the entity that it authorises; empty where it authorises none.
        encrypt_command: Hide the first command parameter.
        encrypt_response: Have the TPM hide the first response parameter.
        keep: False ends the session with this command, if it succeeds.
    """

    session: Session
    auth_value: bytes = field(default=b"", repr=False)
    encrypt_command: bool = False
    encrypt_response: bool = False
    keep: bool = True

    @property
    def attributes(self) -> int:
        """TPMA_SESSION (Part 2, 8.4)."""
        return self.keep * _CONTINUE | self.encrypt_command * _DECRYPT | self.encrypt_response * _ENCRYPT

    @property
    def hmac_key(self) -> bytes:
        """Key of the HMAC: sessionKey ‖ authValue; a policy session needs no authValue (19.6.5)."""
        if self.session.kind == SessionType.POLICY:
            return self.session.key
        return self.session.key + self.auth_value

    @property
    def value(self) -> bytes:
        """sessionValue, from which parameters are encrypted: always sessionKey ‖ authValue (21.2)."""
        return self.session.key + self.auth_value


Authorisation = Password | SessionUse


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange(Generic[T]):
    """A command ready to be sent, and all that is needed to judge the response."""

    command: Command[T]
    authorisations: tuple[Authorisation, ...]
    nonces: tuple[bytes, ...]
    request: bytes = field(repr=False)

    def finish(self, response: bytes) -> Finished[T]:
        """Check and read the response.

        Raises:
            TPMResponseError: The TPM refused the command; the sessions are as they were.
            MalformedEvidence: The bytes are no response to this command.
            DeviceError: The response is not from the TPM that knows the session keys.
        """
        answer = parse_response(self.command, response, len(self.authorisations))
        parameters = answer.parameters
        sessions: list[Session | None] = []
        # 1. Every session vouches for the response before anything in it is used. Without this, whoever sits on
        #    the bus could answer in the TPM's place.
        for position, (ours, nonce_caller, theirs) in enumerate(
            zip(self.authorisations, self.nonces, answer.authorisations, strict=True)
        ):
            if position == 0 and isinstance(ours, SessionUse) and self.command.new_auth_value is not None:
                ours = replace(ours, auth_value=self.command.new_auth_value)
            sessions.append(self._check(ours, nonce_caller, theirs, parameters))
        # 2. Then the first parameter is decrypted, with the nonces of this response.
        for ours, nonce_caller, theirs in zip(
            self.authorisations, self.nonces, answer.authorisations, strict=True
        ):
            if isinstance(ours, SessionUse) and ours.encrypt_response:
                parameters = _crypt_first(ours, parameters, theirs.nonce, nonce_caller, encrypt=False)
        return Finished(read_parameters(self.command, answer.handle, parameters), tuple(sessions))

    def _check(
        self, ours: Authorisation, nonce_caller: bytes, theirs: ResponseAuthorisation, parameters: bytes
    ) -> Session | None:
        if isinstance(ours, Password):
            if theirs.nonce or theirs.hmac:
                raise MalformedEvidence("password authorisation answered with a nonce or an HMAC")
            return None
        alg = ours.session.hash_alg
        expected = b""
        if _has_hmac(ours):
            rp_hash = hash_new(alg, u32(0) + u32(self.command.code) + parameters).digest()
            expected = hmac_digest(
                alg, ours.hmac_key, rp_hash + theirs.nonce + nonce_caller + bytes([theirs.attributes])
            )
        if not hmac.compare_digest(expected, theirs.hmac):
            raise DeviceError(f"{self.command.code.title}: the response was not authenticated by this TPM")
        kept = bool(theirs.attributes & _CONTINUE)
        return replace(ours.session, nonce_tpm=theirs.nonce) if kept else None


@dataclass(frozen=True, slots=True)
class Finished(Generic[T]):
    """Result of a command, and the session that follows each authorisation: None for passwords and ended ones."""

    value: T
    sessions: tuple[Session | None, ...]


def begin(
    command: Command[T], authorisations: Sequence[Authorisation] = (), nonces: Sequence[bytes] = ()
) -> Exchange[T]:
    """Make the bytes to send.

    Args:
        command: What to do.
        authorisations: First those of the command's entities in order, then sessions for encryption only.
        nonces: One fresh random nonceCaller per authorisation, `NONCE_BYTES` each; not used for passwords.

    Raises:
        ValueError: Too few authorisations, or not one nonce each.
    """
    uses = tuple(authorisations)
    callers = tuple(
        b"" if isinstance(use, Password) else nonce for use, nonce in zip(uses, nonces, strict=True)
    )
    if len(uses) < command.authorised:
        raise ValueError(f"{command.code.title} needs {command.authorised} authorisations, got {len(uses)}")
    parameters = command.parameters
    for use, nonce in zip(uses, callers, strict=True):
        if isinstance(use, SessionUse) and use.encrypt_command:
            parameters = _crypt_first(use, parameters, nonce, use.session.nonce_tpm, encrypt=True)
    area = [
        _authorise(command, parameters, use, nonce, _foreign_nonces(uses) if position == 0 else b"")
        for position, (use, nonce) in enumerate(zip(uses, callers, strict=True))
    ]
    return Exchange(
        command=command, authorisations=uses, nonces=callers, request=command.encode(area, parameters)
    )


def _authorise(
    command: Command[T], parameters: bytes, use: Authorisation, nonce: bytes, foreign_nonces: bytes
) -> bytes:
    """Return the TPMS_AUTH_COMMAND: handle u32, 2B nonce, attributes u8, 2B HMAC (Part 2, 10.13.2)."""
    if isinstance(use, Password):
        return u32(PASSWORD_SESSION) + sized(b"") + b"\0" + sized(use.value)
    alg = use.session.hash_alg
    digest = b""
    if _has_hmac(use):
        cp_hash = hash_new(
            alg, u32(command.code) + b"".join(entity.name for entity in command.entities) + parameters
        ).digest()
        digest = hmac_digest(
            alg,
            use.hmac_key,
            cp_hash + nonce + use.session.nonce_tpm + foreign_nonces + bytes([use.attributes]),
        )
    return u32(use.session.handle) + sized(nonce) + bytes([use.attributes]) + sized(digest)


def _has_hmac(use: SessionUse) -> bool:
    """Say whether the session authenticates at all: a policy session without salt has no secret to do it with."""
    return use.session.kind == SessionType.HMAC or bool(use.hmac_key)


def _foreign_nonces(uses: tuple[Authorisation, ...]) -> bytes:
    """Return nonceTPM_decrypt ‖ nonceTPM_encrypt for the HMAC of the first session (19.6.5).

    They tie later sessions that encrypt to the first, so that nobody can take them off the command.
    """
    decrypt = next((u for u in uses if isinstance(u, SessionUse) and u.encrypt_command), None)
    encrypt = next((u for u in uses if isinstance(u, SessionUse) and u.encrypt_response), None)
    nonces = b""
    if decrypt is not None and decrypt is not uses[0]:
        nonces += decrypt.session.nonce_tpm
    if encrypt is not None and encrypt is not uses[0] and encrypt is not decrypt:
        nonces += encrypt.session.nonce_tpm
    return nonces


def _crypt_first(use: SessionUse, parameters: bytes, newer: bytes, older: bytes, *, encrypt: bool) -> bytes:
    """Encrypt or decrypt the content of the first parameter, a TPM2B, with AES-128-CFB (21.3)."""
    # A size beyond the end is refused by whoever reads the parameters next.
    size = int.from_bytes(parameters[:2])
    bits = 8 * (_CFB_KEY_BYTES + _CFB_IV_BYTES)
    material = kdfa(use.session.hash_alg, use.value, b"CFB", newer, older, bits)
    changed = aes_cfb(
        material[:_CFB_KEY_BYTES], parameters[2 : 2 + size], encrypt=encrypt, iv=material[_CFB_KEY_BYTES:]
    )
    return parameters[:2] + changed + parameters[2 + size :]


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A session that is about to be started: send `command`, then `finish`."""

    command: Command[StartedSession]
    kind: SessionType
    hash_alg: int
    salt: bytes = field(repr=False)
    nonce_caller: bytes

    def finish(self, started: StartedSession) -> Session:
        """Derive the session key: KDFa(salt, `ATH`, nonceTPM, nonceCaller) (19.6.8); none without salt."""
        key = b""
        if self.salt:
            bits = 8 * digest_size(self.hash_alg)
            key = kdfa(self.hash_alg, self.salt, b"ATH", started.nonce_tpm, self.nonce_caller, bits)
        return Session(
            handle=started.handle,
            kind=self.kind,
            hash_alg=self.hash_alg,
            key=key,
            nonce_tpm=started.nonce_tpm,
        )


def start(
    kind: SessionType,
    nonce_caller: bytes,
    *,
    salt_key: tuple[Entity, Public] | None,
    hash_alg: int = Alg.SHA256,
) -> Start:
    """Prepare a session.

    Args:
        kind: HMAC, policy or trial.
        nonce_caller: `NONCE_BYTES` fresh random bytes.
        salt_key: A loaded decryption key of this TPM and its public area **as verified**: the salt is encrypted to
            it, so only the TPM that holds it can take part. None leaves the session open to whoever listens.
        hash_alg: Hash of the session.
    """
    handle, salt, encrypted_salt = NULL_HANDLE, b"", sized(b"")
    if salt_key is not None:
        entity, public = salt_key
        handle = entity.handle
        salt, encrypted_salt = encapsulate(public, SECRET)
    command = start_auth_session(kind, hash_alg, nonce_caller, salt_key=handle, encrypted_salt=encrypted_salt)
    return Start(command=command, kind=kind, hash_alg=hash_alg, salt=salt, nonce_caller=nonce_caller)
