"""Keys named by URI: in a file, on a PKCS#11 token, in a TPM.

    file:/absolute/path[?passphrase-source=SOURCE]
    pkcs11:token=T;object=L;id=%01%02;serial=S;type=private[?module-name=N&pin-source=SOURCE]     RFC 7512
    tpm2:handle=0x810100xx | tpm2:nv=0x01…… | tpm2:path=/absolute/path
                                                        [?tcti=TRANSPORT&auth-source=SOURCE&owner-auth-source=SOURCE]

SOURCE is `file:/absolute/path` or `fd:N`; a URI never carries the secret itself, names no library to load and no
program to run. What is not listed here, or stands there twice, is refused: a typo must not choose another key.
The path of `file:` is taken as it stands, the values of the others are percent-decoded (RFC 3986 §2.1).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final
from urllib.parse import quote

from attestation.errors import KeyURIInvalid, PINInURI

MAX_URI_CHARACTERS: Final = 4096
MAX_ID_BYTES: Final = 255
TOKEN_LABEL_BYTES: Final = 32
"""CK_TOKEN_INFO.label, without the blanks that fill it up (PKCS #11 3.0 §3.2)."""
TOKEN_SERIAL_BYTES: Final = 16
MAX_LABEL_BYTES: Final = 255
PERSISTENT_HANDLES: Final = range(0x8100_0000, 0x8200_0000)
"""TPM_HT_PERSISTENT (TPM 2.0 Part 2, 7.2)."""
NV_INDICES: Final = range(0x0180_0000, 0x01C0_0000)
"""NV indices of the owner of a TPM (TCG Registry of Reserved TPM 2.0 Handles, 2.2.2)."""

_INLINE_SECRETS: Final = frozenset(
    {"pin-value", "pin", "password", "passphrase", "passphrase-value", "auth", "auth-value", "secret"}
)
_PLAIN: Final = r"A-Za-z0-9\-._~:\[\]@!$'()*+,="
_PATH_VALUE: Final = re.compile(rf"(?:[{_PLAIN}&/]|%[0-9A-Fa-f]{{2}})+")
"""RFC 7512 pk11-pchar, and the slash that paths need."""
_QUERY_VALUE: Final = re.compile(rf"(?:[{_PLAIN}/?|]|%[0-9A-Fa-f]{{2}})+")
"""RFC 7512 pk11-qchar."""
_NAME: Final = re.compile(r"[a-z][a-z0-9-]{0,31}")
_MODULE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_DESCRIPTOR: Final = re.compile(r"fd:(0|[1-9][0-9]{0,5})")
_CHILD: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRef:
    """A PEM file of our own."""

    path: Path
    passphrase_source: str | None = None

    def __str__(self) -> str:
        return self.shown + _query({"passphrase-source": self.passphrase_source})

    @property
    def shown(self) -> str:
        """The URI without its query: what people may see."""
        return f"file:{self.path}"

    def child(self, name: str) -> FileRef:
        """Return the name of another key beside this one: `ca.pem` becomes `ca-NAME.pem`.

        Raises:
            KeyURIInvalid: *name* is no plain word.
        """
        return replace(self, path=_beside(self.path, name))


@dataclass(frozen=True, slots=True, kw_only=True)
class PKCS11Ref:
    """A private key on a PKCS#11 token, by its label (CKA_LABEL), its id (CKA_ID), or both."""

    token: str | None = None
    serial: str | None = None
    object: str | None = None
    id: bytes | None = None
    type: str = "private"
    module_name: str | None = None
    pin_source: str | None = None

    def __str__(self) -> str:
        return self.shown + _query({"module-name": self.module_name, "pin-source": self.pin_source})

    @property
    def shown(self) -> str:
        """The URI without its query: what people may see."""
        attributes: dict[str, str | bytes | None] = {
            "token": self.token,
            "serial": self.serial,
            "object": self.object,
            "id": self.id,
            "type": self.type,
        }
        return "pkcs11:" + ";".join(
            f"{name}={_percent(value)}" for name, value in attributes.items() if value is not None
        )

    def with_object(self, label: str | None, id: bytes | None) -> PKCS11Ref:  # noqa: A002 -- CKA_ID
        """Return the name of another object of the same token.

        Raises:
            KeyURIInvalid: Neither is given, or one of them is too long.
        """
        return _checked(replace(self, object=label, id=id))

    def child(self, name: str) -> PKCS11Ref:
        """Return the name of another key beside this one: the label gets `-NAME` at its end, the id is dropped.

        Raises:
            KeyURIInvalid: *name* is no plain word, or the label gets too long.
        """
        _word(name)
        return self.with_object(f"{self.object}-{name}" if self.object else name, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class TPM2Ref:
    """A key in a TPM: persistent (*handle*), or wrapped by its storage key in a file (*path*) or NV index (*nv*)."""

    handle: int | None = None
    nv: int | None = None
    path: Path | None = None
    tcti: str | None = None
    auth_source: str | None = None
    owner_auth_source: str | None = None

    def __str__(self) -> str:
        return self.shown + _query(
            {
                "tcti": self.tcti,
                "auth-source": self.auth_source,
                "owner-auth-source": self.owner_auth_source,
            }
        )

    @property
    def shown(self) -> str:
        """The URI without its query: what people may see."""
        if self.handle is not None:
            return f"tpm2:handle=0x{self.handle:08x}"
        if self.nv is not None:
            return f"tpm2:nv=0x{self.nv:08x}"
        return f"tpm2:path={quote(str(self.path), safe='/')}"

    def child(self, name: str) -> TPM2Ref:
        """Return the name of another key beside this one: `ca.tss2` becomes `ca-NAME.tss2`.

        Raises:
            KeyURIInvalid: *name* is no plain word, or the key has a number, and nobody can tell which one is free.
        """
        if self.path is None:
            raise KeyURIInvalid("a key beside a numbered one must be named; only tpm2:path=… leads to others")
        return replace(self, path=_beside(self.path, name))


KeyRef = FileRef | PKCS11Ref | TPM2Ref


def parse_key_uri(text: str) -> KeyRef:
    """Return what *text* names.

    Raises:
        KeyURIInvalid: Unknown scheme; an unknown, repeated, empty or missing attribute; a value out of bounds.
        PINInURI: It carries a secret. No message repeats any value.
    """
    if len(text) > MAX_URI_CHARACTERS:
        raise KeyURIInvalid(f"a key URI has at most {MAX_URI_CHARACTERS} characters")
    scheme, colon, rest = text.partition(":")
    reader = _SCHEMES.get(scheme) if colon else None
    if reader is None:
        raise KeyURIInvalid("a key is named by file:/absolute/path, pkcs11:… or tpm2:…")
    path, question, query = rest.partition("?")
    return reader(path, query if question else None)


def _file(path: str, query: str | None) -> FileRef:
    if not path.startswith("/") or path.startswith("//"):
        raise KeyURIInvalid("a key is named by file:/absolute/path")
    asked = _attributes(query, "&", _QUERY_VALUE, {"passphrase-source"})
    return FileRef(path=_path(path.encode()), passphrase_source=_source(asked, "passphrase-source"))


def _pkcs11(path: str, query: str | None) -> PKCS11Ref:
    named = _attributes(path or None, ";", _PATH_VALUE, {"token", "serial", "object", "id", "type"})
    asked = _attributes(query, "&", _QUERY_VALUE, {"module-name", "pin-source"})
    module = _text(asked, "module-name")
    if module is not None and not _MODULE_NAME.fullmatch(module):
        raise KeyURIInvalid("module-name is a name from the deployment's list of modules, never a path")
    return _checked(
        PKCS11Ref(
            token=_text(named, "token"),
            serial=_text(named, "serial"),
            object=_text(named, "object"),
            id=named.get("id"),
            type=_text(named, "type") or "private",
            module_name=module,
            pin_source=_source(asked, "pin-source"),
        )
    )


def _checked(ref: PKCS11Ref) -> PKCS11Ref:
    if ref.type != "private":
        raise KeyURIInvalid("type of a key that signs is private")
    if ref.token is None and ref.serial is None:
        raise KeyURIInvalid("pkcs11: needs the token's label or its serial")
    if ref.object is None and ref.id is None:
        raise KeyURIInvalid("pkcs11: needs the key's label (object) or its id")
    for name, value, most in (
        ("token", ref.token, TOKEN_LABEL_BYTES),
        ("serial", ref.serial, TOKEN_SERIAL_BYTES),
        ("object", ref.object, MAX_LABEL_BYTES),
    ):
        if value is not None and not 0 < len(value.encode()) <= most:
            raise KeyURIInvalid(f"{name} has 1 to {most} bytes")
    if any(value is not None and value.endswith(" ") for value in (ref.token, ref.serial)):
        raise KeyURIInvalid("token and serial stand without the blanks that fill them up")
    if ref.id is not None and not 0 < len(ref.id) <= MAX_ID_BYTES:
        raise KeyURIInvalid(f"id has 1 to {MAX_ID_BYTES} bytes")
    return ref


def _tpm2(path: str, query: str | None) -> TPM2Ref:
    named = _attributes(path or None, ";", _PATH_VALUE, {"handle", "nv", "path"})
    asked = _attributes(query, "&", _QUERY_VALUE, {"tcti", "auth-source", "owner-auth-source"})
    if len(named) != 1:
        raise KeyURIInvalid("tpm2: needs one of handle, nv and path")
    return TPM2Ref(
        handle=_number(named, "handle", PERSISTENT_HANDLES),
        nv=_number(named, "nv", NV_INDICES),
        path=_path(named["path"]) if "path" in named else None,
        tcti=_text(asked, "tcti"),
        auth_source=_source(asked, "auth-source"),
        owner_auth_source=_source(asked, "owner-auth-source"),
    )


def _number(values: Mapping[str, bytes], name: str, allowed: range) -> int | None:
    """Return a handle of *allowed*, written as 0x and eight hexadecimal digits."""
    text = _text(values, name)
    if text is None:
        return None
    if not re.fullmatch(r"0x[0-9A-Fa-f]{8}", text) or int(text, 16) not in allowed:
        raise KeyURIInvalid(f"{name} is 0x{allowed.start:08x} to 0x{allowed.stop - 1:08x}")
    return int(text, 16)


_SCHEMES: Final[Mapping[str, Callable[[str, str | None], KeyRef]]] = {
    "file": _file,
    "pkcs11": _pkcs11,
    "tpm2": _tpm2,
}


def _attributes(text: str | None, separator: str, form: re.Pattern[str], known: set[str]) -> dict[str, bytes]:
    """Return the attributes of one part of a URI, decoded.

    Raises:
        KeyURIInvalid: Unknown, repeated, empty, or not of the form that the RFC gives.
        PINInURI: One of them is a secret.
    """
    found: dict[str, bytes] = {}
    for part in text.split(separator) if text is not None else ():
        name, equals, value = part.partition("=")
        if name in _INLINE_SECRETS:
            raise PINInURI(f"a key URI never carries a secret ({name}); name a file: pin-source=file:/path")
        # What is no name may be a secret that somebody put there: it is not repeated.
        shown = name if _NAME.fullmatch(name) and equals else "something that is none"
        if name not in known or not equals:
            raise KeyURIInvalid(f"attributes here are {', '.join(sorted(known))}; found {shown}")
        if name in found:
            raise KeyURIInvalid(f"{name} stands there twice")
        if not form.fullmatch(value):
            raise KeyURIInvalid(
                f"the value of {name} is empty or has a character that must be percent-encoded"
            )
        found[name] = _decoded(value)
    return found


def _decoded(value: str) -> bytes:
    """Undo percent-encoding; *value* was matched before, so each % has two hexadecimal digits."""
    first, *rest = value.split("%")
    return first.encode() + b"".join(bytes([int(part[:2], 16)]) + part[2:].encode() for part in rest)


def _text(values: Mapping[str, bytes], name: str) -> str | None:
    """Return the value of *name* as text: UTF-8 without control characters."""
    if name not in values:
        return None
    try:
        text = values[name].decode()
    except UnicodeDecodeError:
        raise KeyURIInvalid(f"the value of {name} is no UTF-8") from None
    if any(ord(c) < 0x20 or ord(c) == 0x7F for c in text):
        raise KeyURIInvalid(f"the value of {name} has a control character")
    return text


def _path(value: bytes) -> Path:
    text = _text({"the path": value}, "the path") or ""
    if not text.startswith("/"):
        raise KeyURIInvalid("a path in a key URI is absolute")
    return Path(text)


def _source(values: Mapping[str, bytes], name: str) -> str | None:
    """Return where a secret is read from: `file:/absolute/path` or `fd:N`; never a program (RFC 7512 `|`)."""
    text = _text(values, name)
    if text is None or text.startswith("file:/") or _DESCRIPTOR.fullmatch(text):
        return text
    raise KeyURIInvalid(f"{name} is file:/absolute/path or fd:N")


def _word(name: str) -> str:
    if not _CHILD.fullmatch(name):
        raise KeyURIInvalid("the name of a key beside another is a plain word")
    return name


def _beside(path: Path, name: str) -> Path:
    return path.with_name(f"{path.stem}-{_word(name)}{path.suffix}")


def _percent(value: str | bytes) -> str:
    if isinstance(value, bytes):
        return "".join(f"%{byte:02x}" for byte in value)
    return quote(value, safe="")


def _query(asked: Mapping[str, str | None]) -> str:
    present = [f"{name}={quote(value, safe='/:')}" for name, value in asked.items() if value is not None]
    return f"?{'&'.join(present)}" if present else ""
