"""The commands that we speak, as values: what is sent, and how the answer is read (TPM 2.0 Part 3).

Each function returns a `Command`: its code, the entities it names, its parameters, and a reader for its response.
`sessions.begin` turns a command and its authorisations into bytes, and the response into the command's result.

Layout of a command (Part 1, 18): tag u16, size u32, code u32, handles u32 each, then with tag 8002 authorizationSize
u32 and the authorisations, then the parameters. Of a response: tag u16, size u32, responseCode u32, handle u32 where
the command makes one, then with tag 8002 parameterSize u32, then the parameters and the authorisations.
"""

# Algorithms for: tpm-storage, tpm-session
# Longer than 500 lines: one function for each TPM command, in the order of Part 3.
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, IntFlag
from typing import Final, Generic, TypeVar

from attestation.errors import MalformedEvidence, TPMResponseError
from attestation.tpm import response_codes
from attestation.tpm.constants import Alg
from attestation.tpm.hashes import digest_size, hash_new
from attestation.tpm.pcr import PCRSelection
from attestation.tpm.public import Scheme, parse_public, write_scheme
from attestation.wire import Reader, sized, u16, u32

T = TypeVar("T")

MAX_COMMAND_BYTES: Final = 4096
MAX_RESPONSE_BYTES: Final = 4096
HEADER_BYTES: Final = 10
NO_SESSIONS: Final = 0x8001
SESSIONS: Final = 0x8002
PASSWORD_SESSION: Final = 0x40000009
"""TPM_RS_PW."""
NULL_HANDLE: Final = 0x40000007
"""TPM_RH_NULL."""
TRANSIENT_FIRST: Final = 0x80000000
LOADED_SESSION_FIRST: Final = 0x02000000
"""Start of TPM_HT_LOADED_SESSION, where TPM2_GetCapability lists HMAC and policy sessions alike."""

_MAX_DIGESTS: Final = 8
"""Digests in a TPML_DIGEST (Part 2, 10.9.3)."""
_MAX_NV_BUFFER_BYTES: Final = 2048
_CAP_HANDLES: Final = 0x00000001
_CAP_TPM_PROPERTIES: Final = 0x00000006


class CC(IntEnum):
    """TPM_CC (Part 2, 6.5.2)."""

    EVICT_CONTROL = 0x120
    NV_UNDEFINE_SPACE = 0x122
    CLEAR = 0x126
    HIERARCHY_CHANGE_AUTH = 0x129
    NV_DEFINE_SPACE = 0x12A
    CREATE_PRIMARY = 0x131
    NV_WRITE = 0x137
    PCR_RESET = 0x13D
    SELF_TEST = 0x143
    STARTUP = 0x144
    SHUTDOWN = 0x145
    ACTIVATE_CREDENTIAL = 0x147
    CERTIFY = 0x148
    NV_READ = 0x14E
    POLICY_SECRET = 0x151
    CREATE = 0x153
    IMPORT = 0x156
    LOAD = 0x157
    QUOTE = 0x158
    RSA_DECRYPT = 0x159
    SIGN = 0x15D
    FLUSH_CONTEXT = 0x165
    LOAD_EXTERNAL = 0x167
    MAKE_CREDENTIAL = 0x168
    NV_READ_PUBLIC = 0x169
    READ_PUBLIC = 0x173
    START_AUTH_SESSION = 0x176
    GET_CAPABILITY = 0x17A
    GET_RANDOM = 0x17B
    PCR_READ = 0x17E
    PCR_EXTEND = 0x182

    @property
    def title(self) -> str:
        """The name that the specification gives the command, e.g. `TPM2_NV_ReadPublic`."""
        return "TPM2_" + _TITLES.get(self, self.name.replace("_", " ").title().replace(" ", ""))


_TITLES: Final = {
    CC.NV_UNDEFINE_SPACE: "NV_UndefineSpace",
    CC.NV_DEFINE_SPACE: "NV_DefineSpace",
    CC.NV_WRITE: "NV_Write",
    CC.NV_READ: "NV_Read",
    CC.NV_READ_PUBLIC: "NV_ReadPublic",
    CC.PCR_RESET: "PCR_Reset",
    CC.PCR_READ: "PCR_Read",
    CC.PCR_EXTEND: "PCR_Extend",
    CC.RSA_DECRYPT: "RSA_Decrypt",
}


class Property(IntEnum):
    """TPM_PT of the fixed group (Part 2, 6.13)."""

    FIXED = 0x100
    REVISION = 0x102
    MANUFACTURER = 0x105
    VENDOR_STRING_1 = 0x106
    VENDOR_STRING_4 = 0x109
    FIRMWARE_VERSION_1 = 0x10B
    FIRMWARE_VERSION_2 = 0x10C
    NV_BUFFER_MAX = 0x12C
    LOCKOUT_COUNTER = 0x20E


class NVAttr(IntFlag):
    """TPMA_NV (Part 2, 13.4), as far as we set or read it."""

    PP_WRITE = 1 << 0
    OWNER_WRITE = 1 << 1
    AUTH_WRITE = 1 << 2
    PP_READ = 1 << 16
    OWNER_READ = 1 << 17
    AUTH_READ = 1 << 18
    NO_DA = 1 << 25
    WRITTEN = 1 << 29
    PLATFORM_CREATE = 1 << 30


class SessionType(IntEnum):
    """TPM_SE (Part 2, 6.11)."""

    HMAC = 0x00
    POLICY = 0x01
    TRIAL = 0x03


@dataclass(frozen=True, slots=True)
class Entity:
    """What a handle stands for.

    Args:
        handle: u32.
        name: Its Name: nameAlg ‖ digest for objects and NV indices, the handle itself for PCRs, sessions and
            hierarchies (Part 1, 16). It enters cpHash, so that a command is authorised for exactly this entity.
    """

    handle: int
    name: bytes


def permanent(handle: int) -> Entity:
    """Return the entity of a hierarchy, a PCR or a session, whose Name is its handle."""
    return Entity(handle, u32(handle))


@dataclass(frozen=True, slots=True, kw_only=True)
class Command(Generic[T]):
    """A command that was not sent yet.

    Args:
        code: Which command.
        entities: The handle area, in order.
        authorised: How many of `entities`, from the first, need an authorisation.
        parameters: The parameter area.
        makes_handle: The response begins with a handle, which somebody must flush.
        new_auth_value: What the command makes the authValue of the first entity: the response is authenticated
            with it already.
        read: Reads the response parameters; gets the handle, 0 where there is none.
    """

    code: CC
    entities: tuple[Entity, ...] = ()
    authorised: int = 0
    parameters: bytes = field(default=b"", repr=False)
    makes_handle: bool = False
    new_auth_value: bytes | None = field(default=None, repr=False)
    read: Callable[[Reader, int], T]

    def encode(self, authorisations: Sequence[bytes] = (), parameters: bytes | None = None) -> bytes:
        """Return the bytes to send.

        Args:
            authorisations: TPMS_AUTH_COMMAND each.
            parameters: The parameter area where its first parameter was encrypted.
        """
        area = b"".join(authorisations)
        body = b"".join(u32(entity.handle) for entity in self.entities)
        if area:
            body += u32(len(area)) + area
        body += self.parameters if parameters is None else parameters
        return u16(SESSIONS if area else NO_SESSIONS) + u32(HEADER_BYTES + len(body)) + u32(self.code) + body


@dataclass(frozen=True, slots=True)
class ResponseAuthorisation:
    """TPMS_AUTH_RESPONSE (Part 2, 10.13.3)."""

    nonce: bytes
    attributes: int
    hmac: bytes


@dataclass(frozen=True, slots=True)
class Response:
    """A response of rc 0, taken apart; nothing about it is authenticated yet.

    Args:
        handle: What the command made, 0 if it makes none.
        parameters: The parameter area, its first parameter possibly encrypted.
        authorisations: One per authorisation sent.
    """

    handle: int
    parameters: bytes
    authorisations: tuple[ResponseAuthorisation, ...]


def parse_response(command: Command[T], data: bytes, authorisations: int = 0) -> Response:
    """Take a response apart.

    Args:
        command: What was sent.
        data: The response, at most 4096 bytes.
        authorisations: How many authorisations were sent.

    Raises:
        TPMResponseError: The TPM refused the command.
        MalformedEvidence: The bytes are no response to this command.
    """
    what = f"response to {command.code.title}"
    if len(data) > MAX_RESPONSE_BYTES:
        raise MalformedEvidence(f"{what}: {len(data)} bytes, at most {MAX_RESPONSE_BYTES} allowed")
    reader = Reader(data, what)
    tag = reader.u16()
    size = reader.u32()
    code = reader.u32()
    if size != len(data):
        raise MalformedEvidence(f"{what}: says {size} bytes, has {len(data)}")
    if code != response_codes.SUCCESS:
        reader.end()
        # One that begins no command however often it is sent is busy.
        fault = "busy" if code in response_codes.RESUBMIT else "failed"
        raise TPMResponseError(command.code.title, code, response_codes.describe(code), fault=fault)
    if tag != (SESSIONS if authorisations else NO_SESSIONS):
        raise MalformedEvidence(f"{what}: tag 0x{tag:04x} with {authorisations} authorisations")
    handle = reader.u32() if command.makes_handle else 0
    if not authorisations:
        return Response(handle, reader.rest(), ())
    parameters = reader.take(reader.u32())
    answers = []
    for _ in range(authorisations):
        nonce = reader.sized(64)
        attributes = reader.u8()
        answers.append(ResponseAuthorisation(nonce, attributes, reader.sized(64)))
    reader.end()
    return Response(handle, parameters, tuple(answers))


def read_parameters(command: Command[T], handle: int, parameters: bytes) -> T:
    """Read decrypted response parameters as the command's result, to the last byte.

    Raises:
        MalformedEvidence: They do not have the command's layout.
    """
    reader = Reader(parameters, f"response to {command.code.title}")
    result = command.read(reader, handle)
    reader.end()
    return result


def _nothing(_: Reader, __: int) -> None:
    """Read the empty parameter area."""


# Starting and stopping (Part 3, 9 and 10)


def startup() -> Command[None]:
    """TPM2_Startup(CLEAR): begin after a power cycle (Part 3, 9.3)."""
    return Command(code=CC.STARTUP, parameters=u16(0), read=_nothing)


def shutdown() -> Command[None]:
    """TPM2_Shutdown(CLEAR): the next power loss is announced, hence orderly (Part 3, 9.4)."""
    return Command(code=CC.SHUTDOWN, parameters=u16(0), read=_nothing)


def self_test(*, full: bool = False) -> Command[None]:
    """TPM2_SelfTest: test everything, or what was not tested yet (Part 3, 10.2)."""
    return Command(code=CC.SELF_TEST, parameters=bytes([full]), read=_nothing)


def get_random(size_bytes: int) -> Command[bytes]:
    """TPM2_GetRandom: up to *size_bytes* bytes; a TPM may return fewer (Part 3, 16.1)."""

    def read(reader: Reader, _: int) -> bytes:
        return reader.sized(size_bytes)

    return Command(code=CC.GET_RANDOM, parameters=u16(size_bytes), read=read)


@dataclass(frozen=True, slots=True)
class HandlePage:
    """Handles in ascending order; `more` says that there are others behind the last."""

    handles: tuple[int, ...]
    more: bool


def get_handles(first: int, count: int = 64) -> Command[HandlePage]:
    """TPM2_GetCapability(HANDLES): those of the type of *first*, not below *first* (Part 3, 30.2)."""

    def read(reader: Reader, _: int) -> HandlePage:
        more = _read_capability(reader, _CAP_HANDLES)
        found = tuple(reader.u32() for _ in range(_bounded(reader, "handles", 1024)))
        return HandlePage(found, more)

    return _get_capability(_CAP_HANDLES, first, count, read)


@dataclass(frozen=True, slots=True)
class PropertyPage:
    """TPM_PT -> value u32; `more` says that there are others behind the last."""

    values: dict[int, int]
    more: bool


def get_properties(first: int, count: int = 64) -> Command[PropertyPage]:
    """TPM2_GetCapability(TPM_PROPERTIES): those from *first* on (Part 3, 30.2)."""

    def read(reader: Reader, _: int) -> PropertyPage:
        more = _read_capability(reader, _CAP_TPM_PROPERTIES)
        found = {}
        for _ in range(_bounded(reader, "properties", 512)):
            tag = reader.u32()
            found[tag] = reader.u32()
        return PropertyPage(found, more)

    return _get_capability(_CAP_TPM_PROPERTIES, first, count, read)


def _get_capability(kind: int, first: int, count: int, read: Callable[[Reader, int], T]) -> Command[T]:
    return Command(code=CC.GET_CAPABILITY, parameters=u32(kind) + u32(first) + u32(count), read=read)


def _read_capability(reader: Reader, kind: int) -> bool:
    more = reader.u8()
    found = reader.u32()
    if found != kind or more > 1:
        raise MalformedEvidence(f"capability 0x{found:x} (more {more}) instead of 0x{kind:x}")
    return more == 1


def _bounded(reader: Reader, what: str, most: int) -> int:
    count = reader.u32()
    if count > most:
        raise MalformedEvidence(f"{count} {what}, at most {most} allowed")
    return count


# Objects (Part 3, 12, 13, 24, 28)


@dataclass(frozen=True, slots=True, kw_only=True)
class Primary:
    """Result of TPM2_CreatePrimary: a loaded key.

    Args:
        entity: Handle and Name; the Name was recomputed from `public` and equals the TPM's.
        public: TPM2B_PUBLIC.
        creation_data: TPMS_CREATION_DATA.
        creation_hash: Digest over it.
        creation_ticket: TPMT_TK_CREATION.
    """

    entity: Entity
    public: bytes
    creation_data: bytes
    creation_hash: bytes
    creation_ticket: bytes


def create_primary(
    hierarchy: int, template: bytes, *, auth_value: bytes = b"", sensitive: bytes = b""
) -> Command[Primary]:
    """TPM2_CreatePrimary: derive a key from a hierarchy's seed; the same template gives the same key (24.1).

    Args:
        hierarchy: Permanent handle; needs its authorisation.
        template: TPMT_PUBLIC.
        auth_value: authValue of the new key.
        sensitive: Data to seal, for KEYEDHASH.
    """

    def read(reader: Reader, handle: int) -> Primary:
        public = sized(reader.sized())
        creation_data = reader.sized()
        creation_hash = reader.sized()
        ticket = _read_ticket(reader)
        name = reader.sized()
        # The Name is what sessions are bound to: it must be that of the public area we are given.
        if parse_public(public).name != name:
            raise MalformedEvidence("TPM2_CreatePrimary: the Name is not that of the public area")
        return Primary(
            entity=Entity(handle, name),
            public=public,
            creation_data=creation_data,
            creation_hash=creation_hash,
            creation_ticket=ticket,
        )

    return Command(
        code=CC.CREATE_PRIMARY,
        entities=(permanent(hierarchy),),
        authorised=1,
        parameters=_creation_parameters(template, auth_value, sensitive),
        makes_handle=True,
        read=read,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Created:
    """Result of TPM2_Create: `private` is the content of a TPM2B_PRIVATE, `public` a TPM2B_PUBLIC."""

    private: bytes
    public: bytes
    creation_data: bytes
    creation_hash: bytes
    creation_ticket: bytes


def create(
    parent: Entity, template: bytes, *, auth_value: bytes = b"", sensitive: bytes = b""
) -> Command[Created]:
    """TPM2_Create: make a child of *parent*, not loaded (12.1)."""

    def read(reader: Reader, _: int) -> Created:
        private = reader.sized()
        public = sized(reader.sized())
        creation_data = reader.sized()
        creation_hash = reader.sized()
        return Created(
            private=private,
            public=public,
            creation_data=creation_data,
            creation_hash=creation_hash,
            creation_ticket=_read_ticket(reader),
        )

    return Command(
        code=CC.CREATE,
        entities=(parent,),
        authorised=1,
        parameters=_creation_parameters(template, auth_value, sensitive),
        read=read,
    )


def _creation_parameters(template: bytes, auth_value: bytes, sensitive: bytes) -> bytes:
    in_sensitive = sized(sized(auth_value) + sized(sensitive))
    no_outside_info = sized(b"")
    no_pcrs = u32(0)
    return in_sensitive + sized(template) + no_outside_info + no_pcrs


def _read_ticket(reader: Reader) -> bytes:
    """Read a TPMT_TK_*: tag u16, hierarchy u32, 2B digest."""
    head = reader.take(6)
    return head + sized(reader.sized(64))


def _read_entity(reader: Reader, handle: int) -> Entity:
    return Entity(handle, reader.sized(66))


def load(parent: Entity, private: bytes, public: bytes) -> Command[Entity]:
    """TPM2_Load: load a child of *parent* (12.2). *private* without, *public* with its size."""
    return Command(
        code=CC.LOAD,
        entities=(parent,),
        authorised=1,
        parameters=sized(private) + public,
        makes_handle=True,
        read=_read_entity,
    )


def load_external(public: bytes, *, sensitive: bytes = b"", hierarchy: int = NULL_HANDLE) -> Command[Entity]:
    """TPM2_LoadExternal: load a key that this TPM does not protect (12.3).

    Args:
        public: TPM2B_PUBLIC.
        sensitive: TPMT_SENSITIVE; empty for the public part only.
        hierarchy: What the object is associated with.
    """
    return Command(
        code=CC.LOAD_EXTERNAL,
        parameters=sized(sensitive) + public + u32(hierarchy),
        makes_handle=True,
        read=_read_entity,
    )


def import_key(parent: Entity, public: bytes, duplicate: bytes, encrypted_seed: bytes) -> Command[bytes]:
    """TPM2_Import: turn a duplicate for *parent* into a private part to load (13.3).

    Without inner wrapper.

    Args:
        parent: A storage key, such as the EK.
        public: TPM2B_PUBLIC of the object.
        duplicate: TPM2B_PRIVATE, with its size.
        encrypted_seed: TPM2B_ENCRYPTED_SECRET, with its size.
    """

    def read(reader: Reader, _: int) -> bytes:
        return reader.sized()

    return Command(
        code=CC.IMPORT,
        entities=(parent,),
        authorised=1,
        parameters=sized(b"") + public + duplicate + encrypted_seed + u16(Alg.NULL),
        read=read,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicArea:
    """Result of TPM2_ReadPublic; `name` was recomputed from `public` and equals the TPM's."""

    public: bytes
    name: bytes
    qualified_name: bytes


def read_public(handle: int) -> Command[PublicArea]:
    """TPM2_ReadPublic (12.4)."""

    def read(reader: Reader, _: int) -> PublicArea:
        public = sized(reader.sized())
        name = reader.sized(66)
        if parse_public(public).name != name:
            raise MalformedEvidence("TPM2_ReadPublic: the Name is not that of the public area")
        return PublicArea(public=public, name=name, qualified_name=reader.sized(66))

    # TPM2_ReadPublic takes no authorisation, so the Name that we do not know yet enters nothing.
    return Command(code=CC.READ_PUBLIC, entities=(permanent(handle),), read=read)


def flush_context(handle: int) -> Command[None]:
    """TPM2_FlushContext: forget an object or session (28.4). The handle is a parameter here."""
    return Command(code=CC.FLUSH_CONTEXT, parameters=u32(handle), read=_nothing)


def evict_control(hierarchy: int, key: Entity, persistent: int) -> Command[None]:
    """TPM2_EvictControl: make *key* persistent, or remove a persistent one (28.5)."""
    return Command(
        code=CC.EVICT_CONTROL,
        entities=(permanent(hierarchy), key),
        authorised=1,
        parameters=u32(persistent),
        read=_nothing,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeCredential:
    """TPM2B_ID_OBJECT and TPM2B_ENCRYPTED_SECRET, with their sizes."""

    credential_blob: bytes
    encrypted_secret: bytes


def make_credential(key: Entity, secret: bytes, object_name: bytes) -> Command[MadeCredential]:
    """TPM2_MakeCredential in a TPM; ours in software is `attestation.tpm.make_credential` (12.6)."""

    def read(reader: Reader, _: int) -> MadeCredential:
        blob = sized(reader.sized())
        return MadeCredential(credential_blob=blob, encrypted_secret=sized(reader.sized()))

    return Command(
        code=CC.MAKE_CREDENTIAL, entities=(key,), parameters=sized(secret) + sized(object_name), read=read
    )


def activate_credential(
    object_: Entity, key: Entity, credential_blob: bytes, encrypted_secret: bytes
) -> Command[bytes]:
    """TPM2_ActivateCredential: open a credential for *object_* under *key* (12.5).

    The first authorisation is for *object_* (role ADMIN), the second for *key*.

    Args:
        object_: The AK, loaded.
        key: The EK, loaded.
        credential_blob: TPM2B_ID_OBJECT, with its size.
        encrypted_secret: TPM2B_ENCRYPTED_SECRET, with its size.
    """

    def read(reader: Reader, _: int) -> bytes:
        return reader.sized(64)

    return Command(
        code=CC.ACTIVATE_CREDENTIAL,
        entities=(object_, key),
        authorised=2,
        parameters=credential_blob + encrypted_secret,
        read=read,
    )


# Statements (Part 3, 18 and 20)


@dataclass(frozen=True, slots=True, kw_only=True)
class Signed:
    """A statement: `attest` is the TPMS_ATTEST exactly as signed, `signature` the TPMT_SIGNATURE."""

    attest: bytes
    signature: bytes


def quote(key: Entity, qualifying_data: bytes, selection: PCRSelection) -> Command[Signed]:
    """TPM2_Quote with the key's own scheme (18.4)."""
    return Command(
        code=CC.QUOTE,
        entities=(key,),
        authorised=1,
        parameters=sized(qualifying_data) + u16(Alg.NULL) + selection.serialise(),
        read=_read_signed,
    )


def certify(subject: Entity, key: Entity, qualifying_data: bytes) -> Command[Signed]:
    """TPM2_Certify with the key's own scheme (18.2). Authorisations: *subject* (ADMIN), then *key*."""
    return Command(
        code=CC.CERTIFY,
        entities=(subject, key),
        authorised=2,
        parameters=sized(qualifying_data) + u16(Alg.NULL),
        read=_read_signed,
    )


def _read_signed(reader: Reader, _: int) -> Signed:
    return Signed(attest=reader.sized(2048), signature=reader.rest())


def sign(key: Entity, digest: bytes, *, scheme: Scheme | None = None) -> Command[bytes]:
    """TPM2_Sign over a digest that the TPM did not compute (20.2); the result is a TPMT_SIGNATURE.

    A restricted key refuses this: it signs only what its TPM made or hashed.

    Args:
        key: Loaded.
        digest: As long as the scheme's hash.
        scheme: For a key whose own scheme is open; None for the key's own.
    """

    def read(reader: Reader, _: int) -> bytes:
        return reader.rest()

    null_ticket = u16(0x8024) + u32(NULL_HANDLE) + sized(b"")
    return Command(
        code=CC.SIGN,
        entities=(key,),
        authorised=1,
        parameters=sized(digest) + write_scheme(scheme) + null_ticket,
        read=read,
    )


def rsa_decrypt(key: Entity, ciphertext: bytes, scheme: Scheme) -> Command[bytes]:
    """TPM2_RSA_Decrypt with an empty label (14.3); the key's own scheme is open or the same."""

    def read(reader: Reader, _: int) -> bytes:
        return reader.sized(512)

    return Command(
        code=CC.RSA_DECRYPT,
        entities=(key,),
        authorised=1,
        parameters=sized(ciphertext) + write_scheme(scheme) + sized(b""),
        read=read,
    )


# PCRs (Part 3, 22)


@dataclass(frozen=True, slots=True, kw_only=True)
class PCRValues:
    """What TPM2_PCR_Read returned: at most eight values, and which ones they are.

    Args:
        update_counter: Counts changes of PCRs.
        values: (bank, index) -> digest, in the order of the selection.
    """

    update_counter: int
    values: dict[tuple[int, int], bytes]


def pcr_read(selection: PCRSelection) -> Command[PCRValues]:
    """TPM2_PCR_Read: as many of *selection* as fit; the caller asks again for the rest (22.4)."""

    def read(reader: Reader, _: int) -> PCRValues:
        counter = reader.u32()
        chosen = [(bank, index) for bank, indices in PCRSelection.read(reader).banks for index in indices]
        count = _bounded(reader, "digests", _MAX_DIGESTS)
        if count != len(chosen):
            raise MalformedEvidence(f"{count} digests for {len(chosen)} selected PCRs")
        values = {}
        for bank, index in chosen:
            value = reader.sized(64)
            if len(value) != digest_size(bank):
                raise MalformedEvidence(f"PCR value of {len(value)} bytes in bank 0x{bank:04x}")
            values[bank, index] = value
        return PCRValues(update_counter=counter, values=values)

    return Command(code=CC.PCR_READ, parameters=selection.serialise(), read=read)


def pcr_extend(index: int, digests: dict[int, bytes]) -> Command[None]:
    """TPM2_PCR_Extend with one digest per bank (22.2)."""
    return Command(
        code=CC.PCR_EXTEND,
        entities=(permanent(index),),
        authorised=1,
        parameters=u32(len(digests)) + b"".join(u16(bank) + digest for bank, digest in digests.items()),
        read=_nothing,
    )


def pcr_reset(index: int) -> Command[None]:
    """TPM2_PCR_Reset: PCR 16 and 23 at locality 0 (22.8)."""
    return Command(code=CC.PCR_RESET, entities=(permanent(index),), authorised=1, read=_nothing)


# Sessions and policies (Part 3, 11 and 23)


@dataclass(frozen=True, slots=True)
class StartedSession:
    """Handle and first nonce of a new session."""

    handle: int
    nonce_tpm: bytes


def start_auth_session(
    kind: SessionType, hash_alg: int, nonce_caller: bytes, *, salt_key: int, encrypted_salt: bytes
) -> Command[StartedSession]:
    """TPM2_StartAuthSession, not bound, with AES-128-CFB for parameters (11.1).

    Args:
        kind: HMAC, policy or trial.
        hash_alg: Hash of the session.
        nonce_caller: 16 bytes to the size of the digest.
        salt_key: Handle of a loaded decryption key, or TPM_RH_NULL for an unsalted session.
        encrypted_salt: TPM2B_ENCRYPTED_SECRET, with its size; `0000` if unsalted.
    """
    symmetric = u16(Alg.AES) + u16(128) + u16(Alg.CFB)

    def read(reader: Reader, handle: int) -> StartedSession:
        return StartedSession(handle, reader.sized(64))

    return Command(
        code=CC.START_AUTH_SESSION,
        entities=(permanent(salt_key), permanent(NULL_HANDLE)),
        parameters=sized(nonce_caller) + encrypted_salt + bytes([kind]) + symmetric + u16(hash_alg),
        makes_handle=True,
        read=read,
    )


def policy_secret(authority: Entity, session: int) -> Command[None]:
    """TPM2_PolicySecret: prove knowledge of *authority*'s authValue to a policy session (23.4).

    The ticket and timeout that come back are of no use without an expiration.
    """

    def read(reader: Reader, _: int) -> None:
        reader.sized(64)
        _read_ticket(reader)

    no_nonce, no_cp_hash, no_policy_ref = sized(b""), sized(b""), sized(b"")
    return Command(
        code=CC.POLICY_SECRET,
        entities=(authority, permanent(session)),
        authorised=1,
        parameters=no_nonce + no_cp_hash + no_policy_ref + u32(0),
        read=read,
    )


# NV memory (Part 3, 31)


@dataclass(frozen=True, slots=True, kw_only=True)
class NVPublic:
    """TPMS_NV_PUBLIC (Part 2, 13.5)."""

    index: int
    name_alg: int
    attributes: int
    auth_policy: bytes
    size_bytes: int

    def serialise(self) -> bytes:
        """Return the TPMS_NV_PUBLIC without a size in front."""
        head = u32(self.index) + u16(self.name_alg) + u32(self.attributes)
        return head + sized(self.auth_policy) + u16(self.size_bytes)

    @property
    def entity(self) -> Entity:
        """Handle and Name, which changes with the first write (attribute WRITTEN)."""
        return Entity(self.index, u16(self.name_alg) + hash_new(self.name_alg, self.serialise()).digest())


def nv_read_public(index: int) -> Command[NVPublic]:
    """TPM2_NV_ReadPublic (31.6)."""

    def read(reader: Reader, _: int) -> NVPublic:
        area = Reader(reader.sized(), "TPMS_NV_PUBLIC")
        public = NVPublic(
            index=area.u32(),
            name_alg=area.u16(),
            attributes=area.u32(),
            auth_policy=area.sized(64),
            size_bytes=area.u16(),
        )
        area.end()
        name = reader.sized(66)
        if public.index != index or public.entity.name != name:
            raise MalformedEvidence("TPM2_NV_ReadPublic: index or Name is not that of the public area")
        return public

    return Command(code=CC.NV_READ_PUBLIC, entities=(permanent(index),), read=read)


def nv_read(authority: Entity, index: Entity, size_bytes: int, offset: int) -> Command[bytes]:
    """TPM2_NV_Read, at most TPM_PT_NV_BUFFER_MAX bytes (31.13). *authority* is owner, platform or the index."""

    def read(reader: Reader, _: int) -> bytes:
        data = reader.sized(_MAX_NV_BUFFER_BYTES)
        if len(data) != size_bytes:
            raise MalformedEvidence(f"TPM2_NV_Read: {len(data)} bytes instead of {size_bytes}")
        return data

    return Command(
        code=CC.NV_READ,
        entities=(authority, index),
        authorised=1,
        parameters=u16(size_bytes) + u16(offset),
        read=read,
    )


def nv_define_space(hierarchy: int, public: NVPublic, *, auth_value: bytes = b"") -> Command[None]:
    """TPM2_NV_DefineSpace under owner or platform (31.3)."""
    return Command(
        code=CC.NV_DEFINE_SPACE,
        entities=(permanent(hierarchy),),
        authorised=1,
        parameters=sized(auth_value) + sized(public.serialise()),
        read=_nothing,
    )


def nv_undefine_space(hierarchy: int, index: Entity) -> Command[None]:
    """TPM2_NV_UndefineSpace (31.4)."""
    return Command(
        code=CC.NV_UNDEFINE_SPACE, entities=(permanent(hierarchy), index), authorised=1, read=_nothing
    )


def nv_write(authority: Entity, index: Entity, data: bytes, offset: int) -> Command[None]:
    """TPM2_NV_Write, at most TPM_PT_NV_BUFFER_MAX bytes (31.7)."""
    return Command(
        code=CC.NV_WRITE,
        entities=(authority, index),
        authorised=1,
        parameters=sized(data) + u16(offset),
        read=_nothing,
    )


# Administration (Part 3, 24 and 25)


def clear(authority: int) -> Command[None]:
    """TPM2_Clear under lockout or platform: new storage seed, owner objects gone (24.6)."""
    return Command(code=CC.CLEAR, entities=(permanent(authority),), authorised=1, read=_nothing)


def hierarchy_change_auth(hierarchy: int, auth_value: bytes) -> Command[None]:
    """TPM2_HierarchyChangeAuth: set the password of a hierarchy (24.8)."""
    return Command(
        code=CC.HIERARCHY_CHANGE_AUTH,
        entities=(permanent(hierarchy),),
        authorised=1,
        parameters=sized(auth_value),
        new_auth_value=auth_value,
        read=_nothing,
    )
