"""The trust bundle: which manufacturers' certificates vouch for TPMs (TPM.md §2.5-2.6, checks 4-6).

A bundle is a manifest and one DER file per certificate. The manifest pins every file by SHA-256, says who the
manufacturer is and where the certificate was published. Reading files is the business of `attestation.tpm_bundle`;
here bytes come in and a value goes out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from enum import StrEnum
from typing import Final, NoReturn, TypeVar

from attestation.clock import parse_rfc3339
from attestation.endorsements.vendors import SIMULATOR, VENDOR_NAMES
from attestation.errors import BundleInvalid

FORMAT: Final = "itl-tpm-bundle/1"
MAX_MANIFEST_BYTES: Final = 4 << 20
MAX_ENTRIES: Final = 4096
MAX_SOURCES: Final = 16
MAX_TEXT_CHARACTERS: Final = 1024
MAX_CERTIFICATE_BYTES: Final = 8192
"""Longest DER of one certificate (TPM.md §1.1)."""

VENDORS: Final = frozenset(VENDOR_NAMES.values()) | {SIMULATOR}
"""Every tag that an entry may carry; `simulator` stands in bundles of developers only."""

_SHA256: Final = re.compile(r"[0-9a-f]{64}\Z")
_DATE: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}\Z")
_URL: Final = re.compile(r"https?://[!-~]{1,1000}\Z")
_MANIFEST_REQUIRED: Final = frozenset({"format", "version", "created", "entries"})
_MANIFEST_OPTIONAL: Final = frozenset({"sha1_allowed"})
_ENTRY_REQUIRED: Final = frozenset(
    {
        "sha256", "spki_sha256", "role", "vendor", "subject", "not_before", "not_after", "sources", "retrieved",
        "evidence", "status",
    }
)  # fmt: skip
_ENTRY_OPTIONAL: Final = frozenset({"reason", "licence", "template"})

Word = TypeVar("Word", bound=StrEnum)


class Role(StrEnum):
    """What a certificate of the bundle is good for."""

    ANCHOR = "anchor"
    INTERMEDIATE = "intermediate"


class Status(StrEnum):
    """Whether it is good for that now."""

    ACTIVE = "active"
    DISTRUSTED = "distrusted"


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleEntry:
    """What the manifest says of one certificate (TPM.md §2.6).

    Args:
        sha256: SHA-256 of the DER, 64 lower-case hex: the pin.
        spki_sha256: SHA-256 of the canonical SubjectPublicKeyInfo (TPM.md §1.4), 64 lower-case hex.
        role: Anchor, or intermediate.
        vendor: Registered name of the manufacturer (`vendors`), e.g. `IFX`.
        subject: Subject in words, for people; the certificate itself decides.
        not_before: Start of validity, UTC, whole seconds.
        not_after: End of validity, UTC, whole seconds.
        sources: URLs where the manufacturer publishes it; may be empty.
        retrieved: The day on which it was taken into the bundle.
        evidence: Why it is believed to be the manufacturer's.
        status: Active, or distrusted.
        reason: Why it is distrusted; None for an active one.
        licence: Under which terms it is passed on; None where none is stated.
        template: What it signs, e.g. `RSA-2048 EKs`; None where that is not known.
    """

    sha256: str
    spki_sha256: str
    role: Role
    vendor: str
    subject: str
    not_before: datetime
    not_after: datetime
    sources: tuple[str, ...]
    retrieved: date
    evidence: str
    status: Status = Status.ACTIVE
    reason: str | None = None
    licence: str | None = None
    template: str | None = None

    @property
    def path(self) -> str:
        """Where its DER stands in a bundle, with forward slashes: `anchors/IFX/899e35474c9807eb.der`."""
        return f"{self.role}s/{self.vendor}/{self.sha256[:16]}.der"

    def members(self) -> dict[str, object]:
        """Return the entry as members of JSON."""
        members: dict[str, object] = {
            "sha256": self.sha256,
            "spki_sha256": self.spki_sha256,
            "role": self.role.value,
            "vendor": self.vendor,
            "subject": self.subject,
            "not_before": _written(self.not_before),
            "not_after": _written(self.not_after),
            "sources": list(self.sources),
            "retrieved": self.retrieved.isoformat(),
            "evidence": self.evidence,
            "status": self.status.value,
        }
        told = {"reason": self.reason, "licence": self.licence, "template": self.template}
        return members | {name: text for name, text in told.items() if text is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A manifest that keeps every rule of its format; whether its files do is not said.

    Args:
        version: Number of this edition, from 1; a later one is greater.
        created: When it was made, UTC, whole seconds.
        entries: One per certificate, no two with one SHA-256 or one path.
        sha1_allowed: SHA-256 of certificates of the bundle whose own signature may be SHA-1: their bytes are pinned,
            so that nobody gains from a collision.
    """

    version: int
    created: datetime
    entries: tuple[BundleEntry, ...]
    sha1_allowed: frozenset[str] = frozenset()


def parse_manifest(data: bytes) -> Manifest:
    """Read a manifest, JSON of at most 4 MiB with at most 4096 entries.

    Raises:
        BundleInvalid: With the entry and the rule of the format that it breaks.
    """
    if len(data) > MAX_MANIFEST_BYTES:
        _refuse(f"manifest of {len(data)} bytes, at most {MAX_MANIFEST_BYTES} allowed")
    try:
        document = json.loads(data, object_pairs_hook=_once)
    except (ValueError, RecursionError) as e:
        raise BundleInvalid("manifest is not JSON, or names a member twice") from e
    members = _members(document, "manifest", _MANIFEST_REQUIRED, _MANIFEST_OPTIONAL)
    if members["format"] != FORMAT:
        _refuse(f"manifest: format is not {FORMAT}")
    version = members["version"]
    if type(version) is not int or not 1 <= version <= 999_999_999:
        _refuse("manifest: version is not a whole number from 1 to 999999999")
    listed = members["entries"]
    if not isinstance(listed, list) or len(listed) > MAX_ENTRIES:
        _refuse(f"manifest: entries is not a list of at most {MAX_ENTRIES}")
    entries = tuple(_entry(entry, f"entry {number}") for number, entry in enumerate(listed))
    hashes = {entry.sha256 for entry in entries}
    # Two files could not stand in one place; and of two entries for one certificate, which would be true?
    if len(hashes) != len(entries) or len({entry.path for entry in entries}) != len(entries):
        _refuse("manifest: two entries for one certificate, or for one file")
    allowed = members.get("sha1_allowed", [])
    if not isinstance(allowed, list) or not all(isinstance(item, str) for item in allowed):
        _refuse("manifest: sha1_allowed is not a list of SHA-256 values")
    if len(set(allowed)) != len(allowed) or not set(allowed) <= hashes:
        _refuse("manifest: sha1_allowed names a certificate twice, or one that is not in the bundle")
    return Manifest(
        version=version,
        created=_instant(members["created"], "manifest: created"),
        entries=entries,
        sha1_allowed=frozenset(allowed),
    )


def format_manifest(manifest: Manifest) -> bytes:
    """Write a manifest: JSON in ASCII with one space of indent, entries by role, vendor and SHA-256, LF at the end.

    What is written is read again as the same, apart from the order of its entries.
    """
    document: dict[str, object] = {
        "format": FORMAT,
        "version": manifest.version,
        "created": _written(manifest.created),
        "entries": [
            entry.members() for entry in sorted(manifest.entries, key=lambda e: (e.role, e.vendor, e.sha256))
        ],
    }
    if manifest.sha1_allowed:
        document["sha1_allowed"] = sorted(manifest.sha1_allowed)
    return json.dumps(document, indent=1, ensure_ascii=True).encode("ascii") + b"\n"


def _entry(value: object, what: str) -> BundleEntry:
    members = _members(value, what, _ENTRY_REQUIRED, _ENTRY_OPTIONAL)
    sources = members["sources"]
    if not isinstance(sources, list) or len(sources) > MAX_SOURCES:
        _refuse(f"{what}: sources is not a list of at most {MAX_SOURCES} URLs")
    if not all(isinstance(url, str) and _URL.match(url) for url in sources):
        _refuse(f"{what}: a source is not an http or https URL")
    optional = {name: _text(members[name], f"{what}: {name}") for name in _ENTRY_OPTIONAL & set(members)}
    vendor, status = _text(members["vendor"], f"{what}: vendor"), _word(Status, members["status"], what)
    if vendor not in VENDORS:
        _refuse(f"{what}: vendor {vendor[:20]!r} is not in the TCG vendor registry")
    if (status is Status.DISTRUSTED) != ("reason" in optional):
        _refuse(f"{what}: a distrusted certificate has a reason, an active one has none")
    not_before = _instant(members["not_before"], f"{what}: not_before")
    not_after = _instant(members["not_after"], f"{what}: not_after")
    if not_after < not_before:
        _refuse(f"{what}: ends before it begins")
    return BundleEntry(
        sha256=_sha256(members["sha256"], f"{what}: sha256"),
        spki_sha256=_sha256(members["spki_sha256"], f"{what}: spki_sha256"),
        role=_word(Role, members["role"], what),
        vendor=vendor,
        subject=_text(members["subject"], f"{what}: subject"),
        not_before=not_before,
        not_after=not_after,
        sources=tuple(sources),
        retrieved=_day(members["retrieved"], f"{what}: retrieved"),
        evidence=_text(members["evidence"], f"{what}: evidence"),
        status=status,
        reason=optional.get("reason"),
        licence=optional.get("licence"),
        template=optional.get("template"),
    )


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a member is named twice")
    return members


def _members(
    value: object, what: str, required: frozenset[str], optional: frozenset[str]
) -> Mapping[str, object]:
    """Return the members of an object that has all that it must and nothing that nobody knows."""
    if not isinstance(value, dict):
        _refuse(f"{what}: not an object")
    names = frozenset(value)
    if names - required - optional:
        _refuse(f"{what}: unknown member {min(names - required - optional)[:40]!r}")
    if required - names:
        _refuse(f"{what}: member {min(required - names)} is missing")
    return value


def _text(value: object, what: str) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= MAX_TEXT_CHARACTERS or not value.isprintable():
        _refuse(f"{what} is not 1 to {MAX_TEXT_CHARACTERS} printable characters")
    return value


def _sha256(value: object, what: str) -> str:
    if not isinstance(value, str) or not _SHA256.match(value):
        _refuse(f"{what} is not 64 lower-case hex digits")
    return value


def _word(kind: type[Word], value: object, what: str) -> Word:
    words = [word.value for word in kind]
    if value not in words:
        _refuse(f"{what}: {kind.__name__.lower()} is not {' or '.join(words)}")
    return kind(value)


def _instant(value: object, what: str) -> datetime:
    try:
        at = parse_rfc3339(_text(value, what))
    except ValueError as e:
        raise BundleInvalid(f"{what} is not an RFC 3339 time") from e
    if at.microsecond:
        _refuse(f"{what} is not a whole second")
    return at


def _day(value: object, what: str) -> date:
    if not isinstance(value, str) or not _DATE.match(value):
        _refuse(f"{what} is not a day, YYYY-MM-DD")
    try:
        return date.fromisoformat(value)
    except ValueError as e:
        raise BundleInvalid(f"{what} is not a day, YYYY-MM-DD") from e


def _written(at: datetime) -> str:
    return at.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="seconds") + "Z"


def _refuse(rule: str) -> NoReturn:
    raise BundleInvalid(rule)
