"""Schematics of the Talos Image Factory: what is baked into an image, as text, and the id of that text, offline.

The id is the SHA-256 of the text that the factory itself would write (DELIVERY-AND-OPERATORS §6): its fields in the
order of its own structs, four blanks for each level, what is empty left out. A schematic is public, its id stands in
URLs, and one image boots many machines: so none can be made that holds what looks like a secret, or like one machine
(R40). What is proven of the text, and what is not: docs/operate/images.md.
"""

# Algorithms for: digest
from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from ruamel.yaml import YAML

from attestation.errors import BaseConfigInvalid, SchematicInvalid
from attestation.talos.documents import STUMBLES, demand_shallow, plain, read_stream
from attestation.talos.redaction import HIDDEN, SECRET_MEMBERS, preview
from attestation.talos.versions import Generation

MAX_BYTES: Final = 64 << 10
MAX_ARGUMENTS: Final = 64
MAX_EXTENSIONS: Final = 64
MAX_META: Final = 16
MAX_TEXT: Final = 1024

BASE_EXTENSIONS: Final = ("siderolabs/gvisor", "siderolabs/intel-ucode")
"""What every machine gets (ITL-REFERENCE §17)."""

CONFIG_QUERY: Final = "mac=${mac}&uuid=${uuid}&serial=${serial}"
"""What Talos fills in (§1.1): hints that release nothing."""

Bootloader = Literal["dual-boot", "grub", "sd-boot"]
EnrollKeys = Literal["off", "manual", "if-safe", "force"]

_EXTENSION: Final = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}/[a-z0-9][a-z0-9._-]{0,126}")
_PLAIN: Final = re.compile(r"[A-Za-z_/][!-~]*(?: [!-~]+)*")
_WORDS: Final = frozenset(["y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf"])
_PER_MACHINE_META: Final = {
    0x9: "the encryption of STATE",
    0xB: "a console code",
    0xF: "a machine's UUID",
    0x10: "a machine's token",
}
_SECRET_NAME: Final = re.compile(
    r"token|secret|passw|passphrase|private|psk|api-?key|credential|auth(?!enticator)", re.IGNORECASE
)
_RUN: Final = re.compile(r"[A-Za-z0-9_-]{22,}")
_NAMED: Final = re.compile(r"([A-Za-z0-9_.-]+)\s*[=:](?!//)\s*[^\s&;,]")
"""A name and its value within a value: of a query, of the text of an environment, of a YAML that is none."""
_USERINFO: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?#\s]*@")


def config_argument(service_url: str) -> str:
    """Return the kernel argument by which any machine asks the service for its configuration."""
    return f"talos.config={service_url}/api/v1/config?{CONFIG_QUERY}"


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaValue:
    """A first value of META: *key* is its tag, 0 to 255."""

    key: int
    value: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlay:
    """What boards without UEFI need: an image, its name, and options of its own."""

    image: str
    name: str
    options: Mapping[str, str | int | bool] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Schematic:
    """What is baked into an image.

    Args:
        extra_kernel_args: In their order. `talos.config` may only have the query of every machine.
        official_extensions: `siderolabs/gvisor`, in their order.
        meta: First values of META, none of a single machine.
        embedded_machine_configuration: Documents that Talos reads at every boot; nothing in them may be hidden.
        bootloader: None leaves the choice to the factory.
        enroll_keys: Of SecureBoot; None leaves it to the factory.
        include_well_known_certificates: Of SecureBoot.
        sector_size: Of a disk image, in bytes; 0 leaves it to the factory.
        overlay: For boards that need one.

    Raises:
        SchematicInvalid: Something in it is a secret, of one machine, or too much.
    """

    extra_kernel_args: tuple[str, ...] = ()
    official_extensions: tuple[str, ...] = ()
    meta: tuple[MetaValue, ...] = ()
    embedded_machine_configuration: str = ""
    bootloader: Bootloader | None = None
    enroll_keys: EnrollKeys | None = None
    include_well_known_certificates: bool = False
    sector_size: int = 0
    overlay: Overlay | None = None

    def __post_init__(self) -> None:
        """Check each part; there is no schematic that was not checked."""
        _bounded(self.extra_kernel_args, MAX_ARGUMENTS, "kernel arguments")
        _bounded(self.official_extensions, MAX_EXTENSIONS, "extensions")
        _bounded(self.meta, MAX_META, "values of META")
        for number, argument in enumerate(self.extra_kernel_args, start=1):
            _demand_for_all(argument, number)
        for extension in self.official_extensions:
            if not _EXTENSION.fullmatch(extension):
                raise SchematicInvalid("an extension is called like siderolabs/gvisor")
        for each in self.meta:
            _demand_meta(each)
        if self.embedded_machine_configuration:
            _demand_shown(self.embedded_machine_configuration)
        if self.overlay is not None:
            _demand_overlay(self.overlay)
        if not 0 <= self.sector_size <= 1 << 16:
            raise SchematicInvalid("a sector has at most 65536 bytes")

    def canonical(self) -> bytes:
        """Return the text whose SHA-256 is the id, as the factory writes it.

        Raises:
            SchematicInvalid: Too long, or a text in it of which it is not known how the factory would quote it.
        """
        customization: list[str] = []
        if self.embedded_machine_configuration:
            customization += _field(1, "embeddedMachineConfiguration", self.embedded_machine_configuration)
        if self.extra_kernel_args:
            customization += ["    extraKernelArgs:", *_items(self.extra_kernel_args, 2)]
        if self.meta:
            customization.append("    meta:")
            for each in self.meta:
                customization += [f"        - key: {each.key}", *_field(3, "value", each.value, dash=True)]
        if self.official_extensions:
            customization += [
                "    systemExtensions:",
                "        officialExtensions:",
                *_items(self.official_extensions, 3),
            ]
        if self.bootloader:
            customization.append(f"    bootloader: {self.bootloader}")
        if self.enroll_keys or self.include_well_known_certificates:
            customization.append("    secureboot:")
            if self.enroll_keys:
                customization += _field(2, "enrollKeys", self.enroll_keys)
            if self.include_well_known_certificates:
                customization.append("        includeWellKnownCertificates: true")
        if self.sector_size:
            customization += ["    diskImage:", f"        sectorSize: {self.sector_size}"]
        lines = _overlay(self.overlay) if self.overlay is not None else []
        lines += ["customization:", *customization] if customization else ["customization: {}"]
        text = "".join(f"{line}\n" for line in lines).encode()
        if len(text) > MAX_BYTES:
            raise SchematicInvalid(f"a schematic has at most {MAX_BYTES} bytes")
        return text

    @property
    def id(self) -> str:
        """Return the id: 64 lower-case hex digits.

        Raises:
            SchematicInvalid: See `canonical`.
        """
        return hashlib.sha256(self.canonical()).hexdigest()


def of_machines(service_url: str, extensions: Iterable[str] = ()) -> Schematic:
    """Return the schematic of a service's machines, with *extensions* beside those that all of them have.

    Raises:
        SchematicInvalid: An extension or the address can stand in no schematic.
    """
    return Schematic(
        extra_kernel_args=(config_argument(service_url),),
        official_extensions=tuple(dict.fromkeys((*BASE_EXTENSIONS, *extensions))),
    )


def parse(text: bytes) -> Schematic:
    """Read a schematic, YAML or JSON; members that are not known are refused, as the factory does.

    Raises:
        SchematicInvalid: It is none, or one that may not be made.
    """
    if len(text) > MAX_BYTES:
        raise SchematicInvalid(f"a schematic has at most {MAX_BYTES} bytes")
    yaml = YAML(typ="rt", pure=True)
    yaml.allow_duplicate_keys = False
    try:
        decoded = text.decode()
        demand_shallow(decoded)
        found = plain(yaml.load(decoded))
    except (*STUMBLES, BaseConfigInvalid):
        raise SchematicInvalid("not YAML that everybody reads alike") from None
    whole = _members(found, {"customization": dict, "overlay": dict}, "")
    inside = _members(
        whole.get("customization") or {},
        {
            "embeddedMachineConfiguration": str,
            "extraKernelArgs": list,
            "meta": list,
            "systemExtensions": dict,
            "bootloader": str,
            "secureboot": dict,
            "diskImage": dict,
        },
        "customization.",
    )
    extensions = _members(
        inside.get("systemExtensions") or {}, {"officialExtensions": list}, "systemExtensions."
    )
    secureboot = _members(
        inside.get("secureboot") or {},
        {"enrollKeys": str, "includeWellKnownCertificates": bool},
        "secureboot.",
    )
    disk = _members(inside.get("diskImage") or {}, {"sectorSize": int}, "diskImage.")
    meta = [_members(each, {"key": int, "value": str}, "meta.") for each in inside.get("meta") or ()]
    if any(each.keys() != {"key", "value"} for each in meta):
        raise SchematicInvalid("meta: each has a key and a value")
    return Schematic(
        extra_kernel_args=_texts(inside.get("extraKernelArgs"), "extraKernelArgs"),
        official_extensions=_texts(extensions.get("officialExtensions"), "officialExtensions"),
        meta=tuple(MetaValue(**each) for each in meta),
        embedded_machine_configuration=inside.get("embeddedMachineConfiguration", ""),
        bootloader=_word(inside.get("bootloader"), ("dual-boot", "grub", "sd-boot"), "bootloader"),
        enroll_keys=_word(secureboot.get("enrollKeys"), ("off", "manual", "if-safe", "force"), "enrollKeys"),
        include_well_known_certificates=secureboot.get("includeWellKnownCertificates", False),
        sector_size=disk.get("sectorSize", 0),
        overlay=_parsed_overlay(whole["overlay"]) if whole.get("overlay") else None,
    )


# What may be in none


def _bounded(found: tuple[object, ...], most: int, what: str) -> None:
    if len(found) > most:
        raise SchematicInvalid(f"at most {most} {what}")


def _demand_for_all(argument: str, number: int) -> None:
    """Check a kernel argument: nothing that only one machine may know, nothing that only one machine is."""
    where = f"kernel argument {number}"
    if not 0 < len(argument) <= MAX_TEXT or not argument.isascii() or not argument.isprintable():
        raise SchematicInvalid(f"{where} is 1 to {MAX_TEXT} visible characters of ASCII")
    # A kernel ends an argument at each blank, so what stands behind one is an argument of its own.
    for each in argument.split(" "):
        _demand_argument(each, where)


def _demand_argument(argument: str, where: str) -> None:
    name, equals, value = argument.partition("=")
    if name == "talos.config":
        address, _, query = value.partition("?")
        # Its query is that of every machine, so it cannot name one; and a token could only stand in the path.
        if query != CONFIG_QUERY or not re.fullmatch(r"https?://[^/?#@\s]+/api/v1/config", address):
            raise SchematicInvalid(
                f"{where}: talos.config must be https://HOST/api/v1/config?{CONFIG_QUERY}, as for every machine"
            )
        return
    if name in ("talos.config.early", "talos.config.inline"):
        raise SchematicInvalid(f"{where}: a configuration in kernel arguments is read by everybody")
    # Without a value, it is one: whatever reads the kernel's arguments takes it from there.
    _demand_no_secret(name if equals else "", value if equals else name, where)


def _demand_no_secret(name: str, value: str, where: str) -> None:
    """Refuse a value that its name calls a secret, or that looks like a random or unique one; it is never quoted."""
    if value and (name in SECRET_MEMBERS or _SECRET_NAME.search(name)):
        raise SchematicInvalid(f"{where} is called like a secret, and everybody can read a schematic")
    if any(each[1] in SECRET_MEMBERS or _SECRET_NAME.search(each[1]) for each in _NAMED.finditer(value)):
        raise SchematicInvalid(f"{where} names a secret in its value, and everybody can read a schematic")
    if _USERINFO.search(value):
        raise SchematicInvalid(f"{where} has a name or password in its address")
    for run in _RUN.findall(value):
        digits = sum(each.isdigit() for each in run)
        if (digits >= 3 and digits < len(run)) or digits == len(run):
            raise SchematicInvalid(f"{where} looks like a token or the id of one machine")


def _demand_meta(each: MetaValue) -> None:
    if not 0 <= each.key <= 255:
        raise SchematicInvalid("a key of META is 0 to 255")
    where = f"META {each.key:#x}"
    if each.key in _PER_MACHINE_META:
        raise SchematicInvalid(f"{where} is {_PER_MACHINE_META[each.key]}: not for an image of many machines")
    if len(each.value) > MAX_BYTES:
        raise SchematicInvalid(f"{where} is too long")
    try:
        documents = [plain(found) for found in read_stream(each.value.encode())]
    except BaseConfigInvalid:
        documents = []
    _demand_no_secret("", each.value, where)
    _demand_no_members(documents, where)


def _demand_no_members(value: Any, where: str) -> None:
    """Refuse a value with a member that holds a secret in any configuration of Talos (§2.4)."""
    if isinstance(value, dict):
        for name, inside in value.items():
            if name in SECRET_MEMBERS and inside not in ("", None, [], {}):
                raise SchematicInvalid(f"{where} has a member {name}, which holds a secret")
            _demand_no_members(inside, where)
    elif isinstance(value, list):
        for inside in value:
            _demand_no_members(inside, where)


def _demand_shown(configuration: str) -> None:
    """Check that no value of it would be hidden: what is not known to be no secret is taken for one."""
    try:
        shown = preview(configuration.encode(), Generation.ALL_DOCUMENTS)
    except BaseConfigInvalid as e:
        raise SchematicInvalid(f"embedded {e}") from None
    if HIDDEN in shown:
        raise SchematicInvalid(
            "the embedded configuration holds secrets, or what is not known to be none; "
            "`attestation config preview` hides them"
        )


def _demand_overlay(overlay: Overlay) -> None:
    for name, value in (("image", overlay.image), ("name", overlay.name), *overlay.options.items()):
        if not re.fullmatch(r"[A-Za-z]{1,64}", name) or len(str(value)) > MAX_TEXT:
            raise SchematicInvalid(
                "options of an overlay have short names of letters, and values of one line"
            )
        _demand_no_secret(name, str(value), f"overlay {name}")


# How the factory writes it


def _items(values: Iterable[str], level: int) -> list[str]:
    return [f"{'    ' * level}- {_scalar(each)}" for each in values]


def _field(level: int, name: str, value: str, *, dash: bool = False) -> list[str]:
    """Return the lines of a member; those of a list's item (*dash*) stand two blanks behind its dash."""
    indent = "    " * (level - 1) + "  " if dash else "    " * level
    if "\n" not in value:
        return [f"{indent}{name}: {_scalar(value)}"]
    lines = value.removesuffix("\n").split("\n")
    if (
        not value.endswith("\n")
        or not lines[0]
        or not lines[-1]
        or lines[0].startswith(" ")
        or any(
            line != line.rstrip() or not line.isascii() or not (line or "x").isprintable() for line in lines
        )
    ):
        raise SchematicInvalid(
            f"{name}: of several lines each is of visible ASCII without blanks at its end, and the last is ended"
        )
    inside = indent + "    "
    return [f"{indent}{name}: |", *(f"{inside}{line}" if line else "" for line in lines)]


def _scalar(value: str) -> str:
    """Return *value* as one line of YAML, quoted where the factory's writer quotes."""
    if not value.isascii() or not value.isprintable():
        raise SchematicInvalid("a text in a schematic is of visible characters of ASCII")
    if value.lower() in _WORDS or not value or re.fullmatch(r"[-+.]?[0-9][0-9a-fA-FxXoO_.:eE+-]*|~", value):
        return f'"{value}"'
    if _PLAIN.fullmatch(value) and ": " not in value and " #" not in value and not value.endswith(":"):
        return value
    return "'" + value.replace("'", "''") + "'"


def _overlay(overlay: Overlay) -> list[str]:
    lines = ["overlay:", *_field(1, "image", overlay.image), *_field(1, "name", overlay.name)]
    if overlay.options:
        lines.append("    options:")
        for name, value in sorted(overlay.options.items()):
            if isinstance(value, str):
                lines += _field(2, name, value)
            else:
                lines.append(f"        {name}: {str(value).lower()}")
    return lines


# How it is read


def _members(found: Any, known: Mapping[str, type], where: str) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise SchematicInvalid(f"{where.removesuffix('.') or 'a schematic'} is a mapping")
    for name, value in found.items():
        if name not in known:
            raise SchematicInvalid(
                f"{where}{name} is not known" if name.isprintable() else "an unknown member"
            )
        if value is not None and (
            not isinstance(value, known[name]) or (known[name] is int and isinstance(value, bool))
        ):
            raise SchematicInvalid(f"{where}{name} is no {known[name].__name__}")
    return {name: value for name, value in found.items() if value is not None}


def _texts(found: Any, where: str) -> tuple[str, ...]:
    if not all(isinstance(each, str) for each in found or ()):
        raise SchematicInvalid(f"{where} is a list of texts")
    return tuple(found or ())


def _word(found: Any, known: tuple[str, ...], where: str) -> Any:
    if found not in (None, *known):
        raise SchematicInvalid(f"{where} is one of {', '.join(known)}")
    return found


def _parsed_overlay(found: Any) -> Overlay:
    members = _members(found, {"image": str, "name": str, "options": dict}, "overlay.")
    options = members.get("options", {})
    if not all(isinstance(each, (str, int, bool)) for each in options.values()):
        raise SchematicInvalid("options of an overlay are texts, numbers and truths")
    return Overlay(image=members.get("image", ""), name=members.get("name", ""), options=options)
