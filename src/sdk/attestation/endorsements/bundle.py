"""The trust bundle: which manufacturers' certificates vouch for TPMs (TPM.md §2.5-2.6, checks 4-6).

A bundle is a manifest and one DER file per certificate. The manifest pins every file by SHA-256, says who the
manufacturer is and where the certificate was published. Reading files is the business of `attestation.tpm_bundle`;
here bytes come in and a value goes out.
"""

# Algorithms for: trust-bundle, digest
# Longer than 500 lines: the manifest and what it judges: a rule beside the member that it is of.
from __future__ import annotations

import copy
import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from enum import StrEnum
from typing import Final, NoReturn, Protocol, TypeVar

from attestation.clock import parse_rfc3339
from attestation.endorsements import der
from attestation.endorsements.certificate import SUBJECT_ALT_NAME, Certificate, parse_certificate
from attestation.endorsements.ek_trust import PathCertificate, PathValidation
from attestation.endorsements.names import parse_name
from attestation.endorsements.path import (
    CertificateIndex,
    Expiry,
    LinkCache,
    Path,
    PathFailure,
    SentIssuers,
    build_path,
    path_certificate,
)
from attestation.endorsements.vendors import SIMULATOR, VENDOR_NAMES, vendor_or_simulator
from attestation.errors import BundleInvalid, MalformedEvidence, SignatureInvalid
from attestation.wire import canonical_json, named_once

FORMAT: Final = "itl-tpm-bundle/1"
MAX_MANIFEST_BYTES: Final = 4 << 20
MAX_ENTRIES: Final = 4096
MAX_SOURCES: Final = 16
MAX_TEXT_CHARACTERS: Final = 1024

VENDORS: Final = frozenset(VENDOR_NAMES.values()) | {SIMULATOR}
"""Every tag that an entry may carry; `simulator` stands in bundles of developers only."""

_MANUFACTURER: Final = "2.23.133.2.1"
_DIRECTORY_NAME: Final = 0xA4
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
        document = json.loads(data, object_pairs_hook=named_once)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A certificate of the bundle with what is said of it.

    Args:
        entry: Its entry.
        certificate: The certificate; its SHA-256, key and dates are those of the entry.
    """

    entry: BundleEntry
    certificate: Certificate


class RevocationStatus(Protocol):
    """What is known of one certificate."""

    @property
    def status(self) -> str:
        """`good`, `revoked` or `unknown`."""
        ...

    @property
    def reason(self) -> str:
        """Why, in one sentence."""
        ...


class Revocations(Protocol):
    """What is known of withdrawn certificates; `attestation.endorsements.revocation.CRLStore` is one."""

    def status(self, certificate: Certificate, issuer: Certificate, at: datetime) -> RevocationStatus:
        """Return what is known of *certificate*, which *issuer* signed, at the instant *at*."""
        ...


class RevocationMode(StrEnum):
    """What it means that nothing up to date says whether a certificate is revoked (TPM.md §2.5)."""

    RECORD = "record"
    FAIL_CLOSED = "fail-closed"


class TrustBundle:
    """Manufacturers' certificates, indexed once; immutable, so that threads may share it.

    Distrust goes by key as well: no other certificate of a distrusted key, sent by whomever, is ever used.

    Args:
        entries: Every certificate with its entry.
        digest: SHA-256 of the manifest, 64 lower-case hex; it names the bundle in every result.
        sha1_allowed: SHA-256 of certificates of the bundle whose own signature may be SHA-1.
        distrusted: SHA-256 (hex) of further certificates that are distrusted, of the bundle or not, to the reason.
        revocations: What is known of withdrawn certificates; None asks nobody.
        mode: Whether not knowing refuses.
        expiry: What a certificate outside its validity does; at enrolment always `fail`.
        links: Signatures that were verified before, between certificates of bundles.

    Raises:
        BundleInvalid: A certificate is not what its entry says, or stands twice.
    """

    def __init__(
        self,
        entries: Iterable[tuple[BundleEntry, bytes] | Held],
        digest: str,
        *,
        sha1_allowed: Collection[str] = frozenset(),
        distrusted: Mapping[str, str] | None = None,
        revocations: Revocations | None = None,
        mode: RevocationMode = RevocationMode.RECORD,
        expiry: Expiry = Expiry.FAIL,
        links: LinkCache | None = None,
    ) -> None:
        held = [one if isinstance(one, Held) else _hold(*one) for one in entries]
        held.sort(key=lambda h: h.entry.sha256)
        by_sha256 = {h.entry.sha256: h for h in held}
        if len(by_sha256) != len(held):
            _refuse("a certificate stands twice in the bundle")
        self.sha256 = digest
        self.sha1_allowed = frozenset(sha1_allowed)
        self.held = tuple(held)
        self._by_sha256 = by_sha256
        self._distrusted = {
            h.entry.sha256: h.entry.reason or "" for h in held if h.entry.status is Status.DISTRUSTED
        } | dict(distrusted or {})
        self._distrusted_keys = {
            by_sha256[sha256].entry.spki_sha256: why
            for sha256, why in self._distrusted.items()
            if sha256 in by_sha256
        }
        active = [h for h in held if self._distrust_of(h.certificate) is None]
        self.anchors = tuple(h for h in active if h.entry.role is Role.ANCHOR)
        """Active ones only."""
        self.intermediates = tuple(h for h in active if h.entry.role is Role.INTERMEDIATE)
        """Active ones only."""
        self._anchors = CertificateIndex(h.certificate for h in self.anchors)
        self._intermediates = CertificateIndex(h.certificate for h in self.intermediates)
        self._refused = CertificateIndex(
            h.certificate for h in held if self._distrust_of(h.certificate) is not None
        )
        self._links = links or LinkCache()
        self._revocations = revocations
        self._mode = mode
        self._expiry = expiry

    def get(self, sha256: str) -> Held | None:
        """Return the certificate whose DER has this SHA-256 (hex), active or not; None where there is none."""
        return self._by_sha256.get(sha256)

    def distrust_of(self, sha256: str) -> str | None:
        """Return why this certificate, of the bundle or not, is distrusted; None where it is not."""
        held = self._by_sha256.get(sha256)
        return self._distrusted.get(sha256) if held is None else self._distrust_of(held.certificate)

    def _distrust_of(self, certificate: Certificate) -> str | None:
        by_key = self._distrusted_keys.get(certificate.spki_sha256)
        return self._distrusted.get(certificate.sha256, by_key)

    def with_overlay(
        self,
        entries: Iterable[tuple[BundleEntry, bytes]],
        distrusted: Mapping[str, str] | None = None,
        *,
        sha1_allowed: Collection[str] = frozenset(),
    ) -> TrustBundle:
        """Return this bundle with certificates that operators added, and without those that they distrust.

        An added entry takes the place of one for the same certificate, but what was distrusted stays distrusted.
        The digest is that of everything that decides, in canonical JSON: digest of this bundle, entries
        (SHA-256, role, vendor, status), what is distrusted, where SHA-1 is allowed. With nothing added it is that
        of this bundle.

        Args:
            entries: Added certificates with their entries.
            distrusted: SHA-256 (hex) of certificates, of the bundle or not, to the reason.
            sha1_allowed: SHA-256 of added certificates whose own signature may be SHA-1.

        Raises:
            BundleInvalid: As for a bundle of its own.
        """
        added = [_hold(entry, certificate_der) for entry, certificate_der in entries]
        refused = dict(distrusted or {})
        if not added and not refused:
            return self
        held = dict(self._by_sha256)
        held |= {one.entry.sha256: one for one in added}
        if len({one.entry.sha256 for one in added}) != len(added):
            _refuse("a certificate stands twice among those that are added")
        described: dict[str, object] = {
            "format": FORMAT,
            "base": self.sha256,
            "entries": sorted(
                [h.entry.sha256, h.entry.role.value, h.entry.vendor, h.entry.status.value] for h in added
            ),
            "distrusted": sorted(refused),
            "sha1_allowed": sorted(sha1_allowed),
        }
        return TrustBundle(
            held.values(),
            hashlib.sha256(canonical_json(described)).hexdigest(),
            sha1_allowed=self.sha1_allowed | frozenset(sha1_allowed),
            distrusted=self._distrusted | refused,
            revocations=self._revocations,
            mode=self._mode,
            expiry=self._expiry,
            links=self._links,
        )

    def judging(
        self,
        *,
        revocations: Revocations | None = None,
        mode: RevocationMode = RevocationMode.RECORD,
        expiry: Expiry = Expiry.FAIL,
    ) -> TrustBundle:
        """Return this bundle, judging so; the arguments are those of the class. Nothing is indexed anew."""
        bundle = copy.copy(self)
        bundle._revocations, bundle._mode, bundle._expiry = revocations, mode, expiry  # noqa: SLF001 -- its class
        return bundle

    def verify(
        self, certificate_der: bytes, intermediates: Sequence[bytes], *, at: datetime
    ) -> PathValidation:
        """Judge whether an active anchor vouches for an EK certificate; never raises.

        Args:
            certificate_der: The EK certificate, without padding.
            intermediates: DER certificates that the node sent; untrusted hints.
            at: The instant to verify at, UTC.
        """
        try:
            leaf = parse_certificate(certificate_der)
        except MalformedEvidence as e:
            return self._refusal(f"the EK certificate cannot be read: {e}")
        # 5. ek-path: from the certificate to an active anchor. Otherwise anybody could sign EK certificates.
        found = self._path(leaf, _Sent(intermediates, self._distrust_of), at)
        if isinstance(found, PathFailure):
            return self._refusal(found.reason, found.judged)
        # 4. ek-vendor: the maker that the certificate names is the anchor's. Otherwise one maker could vouch for
        #    TPMs that are said to be another's.
        anchor = self._by_sha256[found.anchor.sha256].entry
        vendor, reason = self._vendor(leaf, found)
        if reason is not None:
            return self._refusal(reason, _but(found, leaf, reason), anchor)
        # 6. ek-issuers: nobody on the path has withdrawn a certificate; what is not known is said.
        outcome, refused = self._revocation(found, at)
        if refused is not None:
            reason, about = refused
            return self._refusal(reason, _but(found, about, reason), anchor, outcome)
        notes = f" ({'; '.join(found.notes)})" if found.notes else ""
        return PathValidation(
            ok=True,
            reason=f"chains to {found.anchor.subject}{notes}",
            vendor=vendor,
            anchor_sha256=anchor.sha256,
            path=found.judged,
            bundle_sha256=self.sha256,
            revocation=outcome,
        )

    def chain(self, sha256: str, *, at: datetime) -> Path | PathFailure | None:
        """Return the path of an intermediate of this bundle to an anchor of it; None for an anchor or a stranger."""
        held = self._by_sha256.get(sha256)
        if held is None or held.entry.role is Role.ANCHOR:
            return None
        return self._path(held.certificate, _Sent((), self._distrust_of), at)

    def _path(self, leaf: Certificate, sent: _Sent, at: datetime) -> Path | PathFailure:
        distrust = self._distrust_of(leaf)
        if distrust is not None:
            found = f"distrusted: {distrust}"
            return PathFailure(reason=found, judged=(path_certificate(leaf, "leaf", found, ok=False),))
        path = build_path(
            leaf,
            anchors=self._anchors,
            intermediates=[self._intermediates, sent],
            at=at,
            expiry=self._expiry,
            sha1_allowed=self.sha1_allowed,
            links=self._links,
        )
        if isinstance(path, Path):
            return path
        # Distrusted certificates are never candidates; that one of them signed is why there is no path.
        return self._because_of_distrust(leaf, sent, path) or path

    def _because_of_distrust(self, leaf: Certificate, sent: _Sent, tried: PathFailure) -> PathFailure | None:
        """Return the attempt *tried*, going on to the distrusted certificate that signed, where there is one."""
        for i, step in enumerate(tried.judged):
            below = leaf if i == 0 else sent.get(step.sha256) or self._intermediates.get(step.sha256)
            if below is None:
                continue
            for issuer in self._refused.candidates(below):
                try:
                    below.verify_issued_by(issuer, sha1_allowed=self.sha1_allowed)
                except SignatureInvalid:
                    continue
                why = f"distrusted: {self._distrust_of(issuer)}"
                role = self._by_sha256[issuer.sha256].entry.role.value
                good = tuple(replace(v, ok=True, reason="as shown") for v in tried.judged[: i + 1])
                judged = (*good, path_certificate(issuer, role, why, ok=False))
                return PathFailure(reason=f"{issuer.subject}: {why}", judged=judged)
        return None

    def _vendor(self, leaf: Certificate, path: Path) -> tuple[str, str | None]:
        """Return the maker, and why it is not the one that the anchor stands for."""
        held = [self._by_sha256[c.sha256].entry for c in path.certificates[1:] if c.sha256 in self._by_sha256]
        # Makers sign for one another (Microsoft's root for AMD's Pluton issuers): a pinned intermediate has a tag
        # of its own, and the lowest one knows best.
        tags = dict.fromkeys((held[-1].vendor, held[0].vendor))
        claimed = manufacturer_of(leaf)
        if claimed is None:
            return held[-1].vendor, "the certificate does not name exactly one TPM manufacturer"
        vendor = vendor_or_simulator(claimed)
        if vendor not in tags:
            said = f"{vendor or 'unknown'} ({claimed})"
            return held[-1].vendor, f"the certificate says {said}, its anchor is of {' or '.join(tags)}"
        return vendor, None

    def _revocation(self, path: Path, at: datetime) -> tuple[str, tuple[str, Certificate] | None]:
        """Return the outcome in words; and why it refuses, with the certificate that it is about."""
        if self._revocations is None:
            if self._mode is RevocationMode.FAIL_CLOSED:
                why = "revocation is not known, and that refuses"
                return "unknown: no revocation lists", (why, path.certificates[0])
            return "not checked", None
        unknown: tuple[str, Certificate] | None = None
        for certificate, issuer in zip(path.certificates, path.certificates[1:], strict=False):
            found = self._revocations.status(certificate, issuer, at)
            told = f"{certificate.subject or 'the EK certificate'}: {found.reason}"
            if found.status == "revoked":
                return f"revoked: {told}", (f"revoked: {told}", certificate)
            if found.status != "good":
                unknown = unknown or (told, certificate)
        if unknown is None:
            return "good", None
        told, certificate = unknown
        if self._mode is RevocationMode.RECORD:
            return f"unknown: {told}", None
        return f"unknown: {told}", (f"revocation is not known: {told}", certificate)

    def _refusal(
        self,
        reason: str,
        path: tuple[PathCertificate, ...] = (),
        anchor: BundleEntry | None = None,
        revocation: str = "not checked",
    ) -> PathValidation:
        return PathValidation(
            ok=False,
            reason=reason,
            vendor=None if anchor is None else anchor.vendor,
            anchor_sha256=None if anchor is None else anchor.sha256,
            path=path,
            bundle_sha256=self.sha256,
            revocation=revocation,
        )


class _Sent(SentIssuers):
    """Certificates that the node sent, without those of distrusted keys."""

    def __init__(self, ders: Sequence[bytes], distrust_of: Callable[[Certificate], str | None]) -> None:
        super().__init__(ders)
        self._distrust_of = distrust_of

    def candidates(self, certificate: Certificate) -> Iterator[Certificate]:
        """Yield who may have signed *certificate* and is not distrusted."""
        return (c for c in super().candidates(certificate) if self._distrust_of(c) is None)

    def get(self, sha256: str) -> Certificate | None:
        """Return the certificate of this SHA-256 (hex), where it was sent and looked at."""
        return None if self._index is None else self._index.get(sha256)


def _but(path: Path, about: Certificate, reason: str) -> tuple[PathCertificate, ...]:
    """Return how *path* was judged, but for the certificate that *reason* speaks against."""
    return tuple(
        replace(each, ok=False, reason=reason) if each.sha256 == about.sha256 else each
        for each in path.judged
    )


def manufacturer_of(certificate: Certificate) -> str | None:
    """Return the TPM manufacturer that a certificate names, like `id:49465800` ([EKP] 3.2.9); None unless exactly one.

    It stands as attribute 2.23.133.2.1 in a directory name of the subject alternative name.
    """
    extension = certificate.extensions.get(SUBJECT_ALT_NAME)
    if extension is None:
        return None
    value = extension.value
    try:
        outer = der.only(value, der.SEQUENCE, "subject alternative name")
        names = [
            # [4] directoryName is explicit, because Name is a CHOICE (RFC 5280, 4.2.1.6).
            parse_name(value[name.start : name.stop])
            for name in der.elements(value, outer.start, outer.stop)
            if name.tag == _DIRECTORY_NAME
        ]
    except MalformedEvidence:
        return None
    found = [a.text for name in names for a in name.attributes if a.oid == _MANUFACTURER]
    return found[0] if len(found) == 1 else None


def _hold(entry: BundleEntry, certificate_der: bytes) -> Held:
    if hashlib.sha256(certificate_der).hexdigest() != entry.sha256:
        _refuse(f"{entry.path}: not the certificate that its entry pins")
    try:
        certificate = _read(certificate_der)
    except BundleInvalid as e:
        raise BundleInvalid(f"{entry.path}: {e}") from e
    # What people read in the manifest is what was pinned: key and validity are compared, the subject is shown from
    # the certificate.
    if certificate.spki_sha256 != entry.spki_sha256:
        _refuse(f"{entry.path}: its key is not the one that its entry names")
    if (certificate.not_before, certificate.not_after) != (entry.not_before, entry.not_after):
        _refuse(f"{entry.path}: its validity is not the one that its entry names")
    return Held(entry=entry, certificate=certificate)


def tag_of(name: str) -> str:
    """Return *name* as tags are written: in capitals, but `simulator`; whether anybody is called so is not said."""
    return SIMULATOR if name.lower() == SIMULATOR else name.upper()


def entry_of(
    certificate_der: bytes,
    *,
    role: Role | None,
    vendor: str,
    retrieved: date,
    evidence: str,
    sources: tuple[str, ...] = (),
    licence: str | None = None,
    template: str | None = None,
    distrusted_because: str | None = None,
) -> BundleEntry:
    """Return the entry for a certificate that is taken into a bundle.

    Args:
        certificate_der: The certificate, without anything behind it.
        role: What it is good for; None: an anchor if it is self-issued, else an intermediate.
        vendor: Registered name of the manufacturer.
        retrieved: The day on which it is taken in.
        evidence: Why it is believed to be the manufacturer's.
        sources: URLs where the manufacturer publishes it.
        licence: Under which terms it is passed on.
        template: What it signs.
        distrusted_because: Why it is distrusted; None for an active one.

    Raises:
        BundleInvalid: Not one certificate of a CA, or a text that no manifest may hold.
    """
    certificate = _read(certificate_der)
    if role is None:
        role = Role.ANCHOR if certificate.self_issued else Role.INTERMEDIATE
    entry = BundleEntry(
        sha256=certificate.sha256,
        spki_sha256=certificate.spki_sha256,
        role=role,
        vendor=vendor,
        subject=_shown(certificate),
        not_before=certificate.not_before,
        not_after=certificate.not_after,
        sources=sources,
        retrieved=retrieved,
        evidence=evidence,
        status=Status.ACTIVE if distrusted_because is None else Status.DISTRUSTED,
        reason=distrusted_because,
        licence=licence,
        template=template,
    )
    # What cannot be read again is not written: one set of rules, one place.
    return _entry(entry.members(), "certificate")


def _read(certificate_der: bytes) -> Certificate:
    try:
        certificate = parse_certificate(certificate_der)
    except MalformedEvidence as e:
        raise BundleInvalid(f"not a certificate: {e}") from e
    if certificate.padding_bytes:
        _refuse(f"{certificate.padding_bytes} bytes behind the certificate")
    # An end entity as an anchor would vouch for nothing but itself; its key is in a device, not with a CA.
    if not certificate.is_ca:
        _refuse("not the certificate of a CA")
    return certificate


def _shown(certificate: Certificate) -> str:
    text = "".join(c if c.isprintable() else "\ufffd" for c in certificate.subject[:MAX_TEXT_CHARACTERS])
    return text or f"without a name, key {certificate.spki_sha256[:16]}"


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
        **optional,
    )


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
