"""Trust bundles on this computer: what an import would add, how two bundles differ, what a certificate chains to."""

# Algorithms for: digest
from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from pathlib import Path
from typing import Final

from attestation.client.text import clean
from attestation.endorsements.bundle import (
    FORMAT,
    VENDORS,
    BundleEntry,
    Held,
    Manifest,
    Role,
    Status,
    TrustBundle,
    entry_of,
    tag_of,
)
from attestation.endorsements.path import PathFailure
from attestation.errors import BundleInvalid, MalformedEvidence
from attestation.tpm_bundle import bundle_of, load_shipped, read_directory, read_shipped
from attestation.tpm_bundle.files import MANIFEST, SUFFIXES, Contents
from attestation.tpm_bundle.pem import certificates

SHIPPED: Final = "shipped"
"""How the bundle of this distribution is called where a folder may be named."""

MAX_FILE_BYTES: Final = 8 << 20
MAX_DEPTH: Final = 3

_OWNER: Final = re.compile(rb"^# Owner: *([A-Z]{2,4}) *\r?$", re.MULTILINE)
_END: Final = b"-----END "
_NAME: Final = re.compile(r"(?:^|[,;] )Common Name: ([^,;]+)")


def unreadable(name: str, data: bytes, fault: MalformedEvidence) -> str:
    """Say of *data*, of the file *name*, that *fault* kept a certificate from being read in it."""
    # A file of another kind has no structure whose fault could be named.
    other = b"-----BEGIN" not in data and not data.startswith((b"\x30", b"\x10"))
    why = "neither PEM (-----BEGIN CERTIFICATE-----) nor DER" if other else str(fault)
    return f"{clean(name)} is no certificate that can be read: {why}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What an operator says of the certificates that are imported; None lets the files decide."""

    retrieved: date
    vendor: str | None = None
    role: Role | None = None
    evidence: str = "imported by an operator"
    sources: tuple[str, ...] = ()
    licence: str | None = None
    distrusted_because: str | None = None
    allow_sha1: bool = False


@dataclass(slots=True)
class Plan:
    """What an import would do.

    Args:
        added: Entries with DER that are new, or replace one.
        known: Entries that are there already, as they are.
        left_out: Entries that would be of no use, with the reason.
        manifest: The overlay afterwards.
        ders: DER of everything in it.
        bundle: What is shipped with that overlay.
    """

    manifest: Manifest
    bundle: TrustBundle
    added: list[tuple[BundleEntry, bytes]] = field(default_factory=list)
    known: list[BundleEntry] = field(default_factory=list)
    left_out: list[tuple[BundleEntry, str]] = field(default_factory=list)
    ders: dict[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One difference between two bundles.

    Args:
        word: `added`, `removed` or `changed`.
        entry: The entry, the later one where both have it.
        what: What changed, in words.
    """

    word: str
    entry: BundleEntry
    what: str = ""


def short_name(subject: str) -> str:
    """Return the common name in a subject in words; the whole subject where there is none."""
    found = _NAME.search(subject)
    return found[1] if found else subject


def read_bundle(name: str | Path) -> Contents:
    """Read a bundle: `shipped`, a folder or an archive.

    Raises:
        BundleInvalid: With the file and the rule.
    """
    return read_shipped() if str(name) == SHIPPED else read_directory(Path(name))


def overlay(directory: Path | None) -> Contents | None:
    """Read the operator's folder; None where none is named, or it is not there yet.

    Raises:
        BundleInvalid: With the file and the rule.
    """
    return None if directory is None or not directory.exists() else read_directory(directory)


def combined(contents: Contents | None) -> TrustBundle:
    """Return what is shipped with *contents* over it, as the service uses them."""
    shipped = load_shipped()
    if contents is None:
        return shipped
    return shipped.with_overlay(contents.certificates, sha1_allowed=contents.manifest.sha1_allowed)


def status_word(held: Held, bundle: TrustBundle, at: datetime) -> str:
    """Return `active`, `distrusted`, `expired` or `not yet valid`."""
    if bundle.distrust_of(held.entry.sha256) is not None:
        return Status.DISTRUSTED.value
    if at > held.certificate.not_after:
        return "expired"
    return "not yet valid" if at < held.certificate.not_before else Status.ACTIVE.value


def differences(before: Manifest, after: Manifest) -> list[Change]:
    """Return what differs, by manufacturer and name; the order of entries and what is remarked do not count."""
    old = {entry.sha256: entry for entry in before.entries}
    new = {entry.sha256: entry for entry in after.entries}
    found = [Change(word="removed", entry=entry) for sha256, entry in old.items() if sha256 not in new]
    for sha256, entry in new.items():
        if sha256 not in old:
            found.append(Change(word="added", entry=entry))
            continue
        changed = [
            f"{name}: {getattr(old[sha256], name)} → {getattr(entry, name)}"
            for name in ("role", "vendor", "status")
            if getattr(old[sha256], name) != getattr(entry, name)
        ]
        was, allowed = sha256 in before.sha1_allowed, sha256 in after.sha1_allowed
        if was != allowed:
            changed.append("SHA-1 allowed" if allowed else "SHA-1 no longer allowed")
        if changed:
            found.append(Change(word="changed", entry=entry, what=", ".join(changed)))
    return sorted(
        found, key=lambda c: (c.entry.vendor, c.entry.role, short_name(c.entry.subject), c.entry.sha256)
    )


def plan(paths: Sequence[Path], wish: Wish, current: Contents | None, *, at: datetime) -> Plan:
    """Say what importing *paths* into the overlay *current* would do; nothing is written.

    Raises:
        BundleInvalid: A file holds no certificates of CAs, or nobody said whose they are.
    """
    held = {} if current is None else {entry.sha256: (entry, der) for entry, der in current.certificates}
    sha1 = frozenset() if current is None else current.manifest.sha1_allowed
    shipped = load_shipped()
    roles = {h.entry.sha256: h.entry.role for h in shipped.held} | {s: e.role for s, (e, _) in held.items()}
    given: dict[str, tuple[BundleEntry, bytes]] = {}
    for path in paths:
        for entry, der in _given(path, wish, roles):
            given[entry.sha256] = (entry, der)
    allowed = frozenset(given) if wish.allow_sha1 else frozenset()
    new = {
        sha256: one
        for sha256, one in given.items()
        if not _same(held.get(sha256, (None,))[0], one[0]) and not _same(_shipped(shipped, sha256), one[0])
    }
    after = held | new
    bundle = shipped.with_overlay(after.values(), sha1_allowed=(sha1 | allowed) & set(after))
    left_out = []
    for sha256, (entry, _) in list(new.items()):
        # An intermediate without a way to an anchor vouches for nobody; most often its anchor was forgotten.
        path_found = bundle.chain(sha256, at=at) if entry.status is Status.ACTIVE else None
        if isinstance(path_found, PathFailure):
            left_out.append((entry, path_found.reason))
            del after[sha256], new[sha256]
            if sha256 in held:
                after[sha256] = held[sha256]
    sha1_after = (sha1 | allowed) & set(after)
    manifest = Manifest(
        version=1 if current is None else current.manifest.version + 1,
        created=at.replace(microsecond=0),
        entries=tuple(entry for entry, _ in after.values()),
        sha1_allowed=frozenset(sha1_after),
    )
    return Plan(
        manifest=manifest,
        bundle=shipped.with_overlay(after.values(), sha1_allowed=sha1_after),
        added=sorted(new.values(), key=lambda one: (one[0].vendor, one[0].role, short_name(one[0].subject))),
        known=[
            entry
            for sha256, (entry, _) in given.items()
            if _same(held.get(sha256, (None,))[0], entry) or _same(_shipped(shipped, sha256), entry)
        ],
        left_out=left_out,
        ders={sha256: der for sha256, (_, der) in after.items()},
    )


def _shipped(shipped: TrustBundle, sha256: str) -> BundleEntry | None:
    found = shipped.get(sha256)
    return None if found is None else found.entry


def _same(before: BundleEntry | None, after: BundleEntry) -> bool:
    return before is not None and (before.role, before.vendor, before.status) == (
        after.role,
        after.vendor,
        after.status,
    )


def _given(path: Path, wish: Wish, roles: Mapping[str, Role]) -> Iterator[tuple[BundleEntry, bytes]]:
    """Yield what *path* offers: a bundle in our layout with its entries, a folder of certificates, or one file."""
    if path.is_dir() and not _is_layout(path):
        for file in _walk(path, MAX_DEPTH):
            yield from _file(file, path, wish, roles)
    elif path.is_dir():
        for entry, der in read_directory(path).certificates:
            yield (
                replace(
                    entry,
                    vendor=wish.vendor or entry.vendor,
                    role=wish.role or entry.role,
                    retrieved=wish.retrieved,
                ),
                der,
            )
    else:
        yield from _file(path, path.parent, wish, roles)


def _is_layout(folder: Path) -> bool:
    """Say whether a folder has a manifest of ours; collections of others may have one of their own."""
    try:
        document = json.loads((folder / MANIFEST).read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(document, dict) and str(document.get("format")).startswith(FORMAT.split("/")[0] + "/")


def _walk(folder: Path, depth: int) -> Iterator[Path]:
    for found in sorted(folder.iterdir()):
        if found.is_dir() and depth > 1:
            yield from _walk(found, depth - 1)
        elif found.is_file() and found.suffix.lower() in SUFFIXES:
            yield found


def _file(
    file: Path, root: Path, wish: Wish, roles: Mapping[str, Role]
) -> Iterator[tuple[BundleEntry, bytes]]:
    try:
        with file.open("rb") as stream:
            data = stream.read(MAX_FILE_BYTES + 1)
    except OSError as e:
        raise BundleInvalid(f"{file}: {e.strerror or e}") from e
    if len(data) > MAX_FILE_BYTES:
        raise BundleInvalid(f"{file}: longer than {MAX_FILE_BYTES} bytes")
    ders = certificates(data, str(file))
    owners = _owners(data, len(ders))
    folders = [part.name for part in (file.parent, *file.parents) if part.is_relative_to(root)]
    for number, (der, owner) in enumerate(zip(ders, owners, strict=True), 1):
        what = str(file) if len(ders) == 1 else f"{file}, certificate {number}"
        vendor = wish.vendor or owner or next((tag for n in folders if (tag := tag_of(n)) in VENDORS), None)
        if vendor is None:
            raise BundleInvalid(f"{what}: whose is it? Give the manufacturer with --vendor")
        role = wish.role or next((Role(n[:-1]) for n in folders if n in ("anchors", "intermediates")), None)
        # An anchor that is not self-issued stays one where it is known as one.
        role = role or roles.get(hashlib.sha256(der).hexdigest())
        try:
            yield (
                entry_of(
                    der,
                    role=role,
                    vendor=vendor,
                    retrieved=wish.retrieved,
                    evidence=wish.evidence,
                    sources=wish.sources,
                    licence=wish.licence,
                    distrusted_because=wish.distrusted_because,
                ),
                der,
            )
        except BundleInvalid as e:
            raise BundleInvalid(f"{what}: {e}") from e


def _owners(data: bytes, count: int) -> list[str | None]:
    """Return whose each certificate of a PEM file is said to be, in the comments before it (tpm-ca-certificates)."""
    found: list[str | None] = []
    for text in data.split(_END)[:count]:
        said = _OWNER.findall(text)
        found.append(said[-1].decode() if said else None)
    return found + [None] * (count - len(found))


def by_vendor(bundle: TrustBundle) -> Mapping[str, tuple[int, int]]:
    """Return manufacturer to the number of active anchors and intermediates."""
    vendors = sorted({h.entry.vendor for h in (*bundle.anchors, *bundle.intermediates)})
    return {
        vendor: (
            sum(h.entry.vendor == vendor for h in bundle.anchors),
            sum(h.entry.vendor == vendor for h in bundle.intermediates),
        )
        for vendor in vendors
    }


def unchained(bundle: TrustBundle, contents: Contents, *, at: datetime) -> list[tuple[BundleEntry, str]]:
    """Return the active intermediates of *contents* that lead to no anchor of *bundle*, with the reason."""
    found = []
    for entry, _ in contents.certificates:
        if entry.status is Status.ACTIVE and isinstance(
            path := bundle.chain(entry.sha256, at=at), PathFailure
        ):
            found.append((entry, path.reason))
    return found


__all__ = [
    "SHIPPED", "Change", "Plan", "Wish", "bundle_of", "by_vendor", "combined", "differences", "overlay", "plan",
    "read_bundle", "short_name", "status_word", "unchained",
]  # fmt: skip
