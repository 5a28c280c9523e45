"""From a certificate to an anchor (RFC 5280, 6; TPM.md §2.5, checks 5 and 6).

What is different from the web: an anchor is trusted for its subject and key, so it need not be self-signed;
several certificates may have one name, and every one of them is tried; names are compared normalised, and a
key identifier is enough to be tried. Whether a candidate signed is decided by its key alone.

Whoever introduces a machine chooses the certificates at the bottom, so the work is bounded whatever is sent:
candidates are found by look-up, and how many are looked at, how many signatures are verified and what these
cost together has limits that no input moves.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from itertools import islice
from typing import Final, Protocol

from attestation.endorsements.certificate import Certificate, key_weakness, parse_certificate
from attestation.endorsements.ek_trust import PathCertificate
from attestation.errors import MalformedEvidence, SignatureInvalid

MAX_SENT_CERTIFICATES: Final = 16
"""Certificates of `ek_chain` that are looked at (TPM.md §1.1)."""
MAX_SENT_BYTES: Final = 64 * 1024
NO_ISSUER: Final = "no issuer is known"
"""What the reason begins with where a path ends because nobody who could have signed its last certificate is held."""
_MAX_LINKS: Final = 65_536

_COST: Final = {"ec-secp256r1": 100, "ec-secp384r1": 800, "ec-secp521r1": 800}
_RSA_COST_PER_KIBIT: Final = 25
_MAX_COST: Final = 800
"""Microseconds of one signature check on a slow core, by the signer's key; only their sum is limited."""


class Expiry(StrEnum):
    """What a certificate outside its validity does to a path (setting `ek_expiry`; at enrolment always `fail`)."""

    FAIL = "fail"
    RECORD = "record"


@dataclass(frozen=True, slots=True, kw_only=True)
class PathLimits:
    """How much work one path may cost.

    Args:
        depth: Certificates above the leaf, the anchor counted.
        signature_checks: Signatures verified.
        candidates: Issuers looked at, whether or not a signature was verified.
        cost: Sum of the costs of the signature checks, about a microsecond each.
    """

    depth: int = 6
    signature_checks: int = 64
    candidates: int = 256
    cost: int = 16_000


DEFAULT_LIMITS: Final = PathLimits()


class Issuers(Protocol):
    """Certificates among which issuers are looked for."""

    lasting: bool
    """The certificates outlive a request: verified links between two such ones may be kept."""

    def candidates(self, certificate: Certificate) -> Iterable[Certificate]:
        """Yield who may have signed *certificate*, the likeliest first, each once, found by look-up."""
        ...


class CertificateIndex:
    """Certificates by name and key identifier. Immutable; safe to use from several threads.

    Args:
        certificates: Any order; twice the same is once.
    """

    lasting = True

    def __init__(self, certificates: Iterable[Certificate]) -> None:
        self._by_sha256 = {c.sha256: c for c in certificates}
        self._by_both: dict[tuple[bytes, bytes], list[Certificate]] = {}
        self._by_key: dict[bytes, list[Certificate]] = {}
        self._by_name: dict[bytes, list[Certificate]] = {}
        for certificate in self._by_sha256.values():
            name = certificate.subject_key
            self._by_name.setdefault(name, []).append(certificate)
            for identifier in key_identifiers(certificate):
                self._by_key.setdefault(identifier, []).append(certificate)
                self._by_both.setdefault((identifier, name), []).append(certificate)

    def __len__(self) -> int:
        return len(self._by_sha256)

    def __iter__(self) -> Iterator[Certificate]:
        return iter(self._by_sha256.values())

    def __contains__(self, certificate: Certificate) -> bool:
        return certificate.sha256 in self._by_sha256

    def get(self, sha256: str) -> Certificate | None:
        """Return the certificate whose DER has this SHA-256 (hex), or None."""
        return self._by_sha256.get(sha256)

    def candidates(self, certificate: Certificate) -> Iterator[Certificate]:
        """Yield the issuers by name and key identifier, then by key identifier, then by name alone."""
        key, name = certificate.aki, certificate.issuer_key
        if key is not None:
            yield from self._by_both.get((key, name), ())
            for issuer in self._by_key.get(key, ()):
                if issuer.subject_key != name:
                    yield issuer
        for issuer in self._by_name.get(name, ()):
            if key not in key_identifiers(issuer):
                yield issuer


def key_identifiers(certificate: Certificate) -> set[bytes]:
    """Return by what its key is found: the identifier that the certificate states, and that which its bits have."""
    return {certificate.ski or certificate.key_id, certificate.key_id}


class SentIssuers:
    """Certificates that came with a request: untrusted hints, read only when somebody asks for an issuer.

    What cannot be read is passed over, and what is beyond 16 certificates or 64 KiB is not looked at; `notes`
    says so.

    Args:
        ders: DER certificates as sent, in any order.
    """

    lasting = False

    def __init__(self, ders: Sequence[bytes]) -> None:
        self._ders = ders
        self._index: CertificateIndex | None = None
        self.notes: tuple[str, ...] = ()

    def candidates(self, certificate: Certificate) -> Iterator[Certificate]:
        """Yield who may have signed *certificate*; see `CertificateIndex.candidates`."""
        if self._index is None:
            self._index = CertificateIndex(self._read())
        return self._index.candidates(certificate)

    def _read(self) -> list[Certificate]:
        notes: list[str] = []
        if len(self._ders) > MAX_SENT_CERTIFICATES:
            notes.append(f"{len(self._ders)} certificates sent, {MAX_SENT_CERTIFICATES} looked at")
        read: list[Certificate] = []
        size = 0
        for i, der in enumerate(islice(self._ders, MAX_SENT_CERTIFICATES)):
            size += len(der)
            if size > MAX_SENT_BYTES:
                notes.append(f"more than {MAX_SENT_BYTES} bytes sent, the rest not looked at")
                break
            try:
                read.append(parse_certificate(der))
            except MalformedEvidence as e:
                notes.append(f"certificate {i} of those sent: {e}")
        self.notes = tuple(notes)
        return read


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """A path to an anchor; every certificate on it is good.

    Args:
        certificates: Leaf first, anchor last.
        judged: One per certificate.
        notes: What was recorded and does not count against it, as an expiry under `record`.
        signature_checks: How many signatures were looked at, remembered ones counted.
        candidates: How many issuers were looked at.
    """

    certificates: tuple[Certificate, ...]
    judged: tuple[PathCertificate, ...]
    notes: tuple[str, ...]
    signature_checks: int
    candidates: int

    @property
    def anchor(self) -> Certificate:
        """The anchor it ends in."""
        return self.certificates[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class PathFailure:
    """No path to an anchor.

    Args:
        reason: One sentence, of the attempt that came furthest.
        judged: That attempt, leaf first; the last is what failed.
        exhausted: A limit ended the search before every candidate was tried.
        signature_checks: How many signatures were looked at.
        candidates: How many issuers were looked at.
    """

    reason: str
    judged: tuple[PathCertificate, ...]
    exhausted: bool = False
    signature_checks: int = 0
    candidates: int = 0


class LinkCache:
    """Remembers which certificate of a bundle signed which other. Safe to use from several threads.

    That is a function of the two certificates' bytes and of nothing else, so it never goes stale; whether a link
    may be used now (dates, limits, distrust) is judged every time. Only pairs of certificates that outlive a
    request are kept, so no request makes it grow.
    """

    def __init__(self) -> None:
        self._signed: set[tuple[str, str]] = set()

    def knows(self, child: Certificate, issuer: Certificate) -> bool:
        """Say whether *issuer* is known to have signed *child*."""
        return (child.sha256, issuer.sha256) in self._signed

    def remember(self, child: Certificate, issuer: Certificate) -> None:
        """Remember that *issuer* signed *child*."""
        if len(self._signed) < _MAX_LINKS:
            self._signed.add((child.sha256, issuer.sha256))


@dataclass(frozen=True, slots=True)
class _Step:
    """A certificate on the way up, and how it was linked to the one below."""

    certificate: Certificate
    lasting: bool
    how: str
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class _Search:
    anchors: Issuers
    intermediates: Sequence[Issuers]
    at: datetime
    limits: PathLimits
    expiry: Expiry
    sha1_allowed: Collection[str]
    links: LinkCache | None
    signature_checks: int = 0
    candidates: int = 0
    cost: int = 0
    exhausted: str = ""
    best: tuple[PathCertificate, ...] = ()
    best_reason: str = ""
    best_steps: int = 0
    steps: list[_Step] = field(default_factory=list)

    def walk(self) -> Path | None:
        """Try every issuer of the last step; return the first path to an anchor."""
        child = self.steps[-1]
        nobody = True
        for is_anchor, source in self._sources():
            for issuer in source.candidates(child.certificate):
                if self.candidates == self.limits.candidates:
                    self.exhausted = f"gave up after {self.candidates} candidate issuers"
                    return None
                self.candidates += 1
                if self._is_on_the_way(issuer):
                    continue
                nobody = False
                refusal, notes = self._refusal(issuer)
                if refusal is None:
                    refusal = self._signature_refusal(child, issuer, lasting=source.lasting)
                    if self.exhausted:
                        return None
                if refusal is not None:
                    self._failed(issuer, refusal, is_anchor=is_anchor)
                    continue
                self.steps.append(_Step(issuer, source.lasting, self._how(child.certificate, issuer), notes))
                found = self._found() if is_anchor else self.walk()
                if found is not None or self.exhausted:
                    return found
                self.steps.pop()
        if nobody:
            self._failed(None, f"{NO_ISSUER}: {child.certificate.issuer or 'its issuer has no name'}")
        return None

    def _sources(self) -> Iterator[tuple[bool, Issuers]]:
        yield True, self.anchors
        if len(self.steps) < self.limits.depth:
            for source in self.intermediates:
                yield False, source

    def _is_on_the_way(self, issuer: Certificate) -> bool:
        """Say whether *issuer* is a certificate, or a subject with its key, that the way has passed already."""
        return any(
            issuer.sha256 == step.certificate.sha256
            or (
                issuer.spki_sha256 == step.certificate.spki_sha256
                and issuer.subject_key == step.certificate.subject_key
            )
            for step in self.steps
        )

    def _refusal(self, issuer: Certificate) -> tuple[str | None, tuple[str, ...]]:
        """Return why *issuer* may not have issued the last step, or None; and what is only recorded."""
        # Version 3 certificates only say so in an extension. Otherwise any EK could issue others.
        if not issuer.is_ca:
            return "it is no CA", ()
        if issuer.key_usage is not None and "key_cert_sign" not in issuer.key_usage:
            return "its key may not sign certificates", ()
        # Self-issued certificates do not count (RFC 5280, 6.1.4 (l)); the leaf never does.
        between = sum(not step.certificate.self_issued for step in self.steps[1:])
        if issuer.path_length is not None and between > issuer.path_length:
            return f"{between} CAs below it, at most {issuer.path_length} allowed", ()
        return self.own_refusal(issuer)

    def own_refusal(self, certificate: Certificate) -> tuple[str | None, tuple[str, ...]]:
        """Return what speaks against any certificate of a path, whatever its place."""
        if certificate.critical_unknown is not None:
            return f"unknown critical extension {certificate.critical_unknown}", ()
        if certificate.repeated_extension is not None:
            return f"extension {certificate.repeated_extension} stands twice", ()
        weakness = key_weakness(certificate)
        if weakness is not None:
            return weakness, ()
        if not certificate.not_before <= self.at <= certificate.not_after:
            text = (
                f"valid from {certificate.not_before:%Y-%m-%d} to {certificate.not_after:%Y-%m-%d}, not now"
            )
            return (text, ()) if self.expiry == Expiry.FAIL else (None, (text,))
        return None, ()

    def _signature_refusal(self, child: _Step, issuer: Certificate, *, lasting: bool) -> str | None:
        """Return why *issuer* did not sign *child*, or None; sets `exhausted` where it may not be looked at."""
        refusal = child.certificate.algorithm_refusal(self.sha1_allowed)
        if refusal is not None:
            return refusal
        # A remembered link counts like a new one: what a search finds must not depend on earlier ones.
        price = cost(issuer)
        if self.signature_checks == self.limits.signature_checks or self.cost + price > self.limits.cost:
            self.exhausted = f"gave up after {self.signature_checks} signature checks"
            return None
        self.signature_checks += 1
        self.cost += price
        links = self.links if child.lasting and lasting else None
        if links is not None and links.knows(child.certificate, issuer):
            return None
        try:
            child.certificate.verify_issued_by(issuer, sha1_allowed=self.sha1_allowed)
        except SignatureInvalid as e:
            return str(e)
        if links is not None:
            links.remember(child.certificate, issuer)
        return None

    @staticmethod
    def _how(child: Certificate, issuer: Certificate) -> str:
        by_name = child.issuer_key == issuer.subject_key
        by_key = child.aki in key_identifiers(issuer)
        if by_name and by_key:
            return "found by name and key identifier"
        return "found by name" if by_name else "found by key identifier, its name is another"

    def _found(self) -> Path:
        return Path(
            certificates=tuple(step.certificate for step in self.steps),
            judged=tuple(self._judged(i, last=len(self.steps) - 1) for i in range(len(self.steps))),
            notes=tuple(f"{s.certificate.subject or 'leaf'}: {n}" for s in self.steps for n in s.notes),
            signature_checks=self.signature_checks,
            candidates=self.candidates,
        )

    def _judged(self, i: int, *, last: int | None = None) -> PathCertificate:
        step = self.steps[i]
        role = "leaf" if i == 0 else "anchor" if i == last else "intermediate"
        return path_certificate(step.certificate, role, "; ".join((step.how, *step.notes)), ok=True)

    def _failed(self, issuer: Certificate | None, reason: str, *, is_anchor: bool = False) -> None:
        """Keep this attempt if it came further than any before: more certificates below are good."""
        if len(self.steps) <= self.best_steps:
            return
        self.best_steps = len(self.steps)
        self.best_reason = reason if issuer is None else f"{issuer.subject}: {reason}"
        judged = [self._judged(i) for i in range(len(self.steps))]
        if issuer is None:
            last = self.steps[-1].certificate
            judged[-1] = path_certificate(last, judged[-1].role, reason, ok=False)
        else:
            judged.append(
                path_certificate(issuer, "anchor" if is_anchor else "intermediate", reason, ok=False)
            )
        self.best = tuple(judged)

    def failure(self) -> PathFailure:
        """Return what came furthest."""
        if not self.best:
            self.best = tuple(self._judged(i) for i in range(len(self.steps)))
        return PathFailure(
            reason=self.exhausted or self.best_reason,
            judged=self.best,
            exhausted=bool(self.exhausted),
            signature_checks=self.signature_checks,
            candidates=self.candidates,
        )


def path_certificate(certificate: Certificate, role: str, reason: str, *, ok: bool) -> PathCertificate:
    """Return what is said of *certificate* in a result."""
    return PathCertificate(
        sha256=certificate.sha256, subject=certificate.subject, role=role, ok=ok, reason=reason
    )


def cost(issuer: Certificate) -> int:
    """Return what verifying one signature by the key of *issuer* costs, about a microsecond each."""
    if issuer.key.startswith("rsa-"):
        return min(_RSA_COST_PER_KIBIT * (int(issuer.key[4:]) // 1024 + 1), _MAX_COST)
    return _COST.get(issuer.key, _MAX_COST)


def build_path(
    leaf: Certificate,
    *,
    anchors: Issuers,
    intermediates: Sequence[Issuers],
    at: datetime,
    limits: PathLimits = DEFAULT_LIMITS,
    expiry: Expiry = Expiry.FAIL,
    sha1_allowed: Collection[str] = (),
    links: LinkCache | None = None,
) -> Path | PathFailure:
    """Find a path from *leaf* to one of *anchors*.

    The profile of the leaf (that it is no CA, what its key is for) is judged where its kind is known.

    Args:
        leaf: Where to begin.
        anchors: Where to end; a path ends in the first one that signed.
        intermediates: Where to look for issuers in between, in this order.
        at: The instant to judge at, UTC.
        limits: How much work is allowed.
        expiry: What a certificate outside its validity does.
        sha1_allowed: SHA-256, hex, of the certificates that may be signed over SHA-1.
        links: Remembers signatures between certificates that last; None remembers none.

    Returns:
        The path, or the attempt that came furthest with what ended it.
    """
    search = _Search(anchors, intermediates, at, limits, expiry, sha1_allowed, links)
    refusal, notes = search.own_refusal(leaf)
    # A key identifier alone may link a name to another, never a TPM to itself.
    if leaf.self_issued and not leaf.is_ca:
        refusal = "it names itself as its issuer"
    if refusal is not None:
        return PathFailure(reason=refusal, judged=(path_certificate(leaf, "leaf", refusal, ok=False),))
    search.steps.append(_Step(leaf, leaf_lasts(leaf, intermediates), "as shown", notes))
    return search.walk() or search.failure()


def leaf_lasts(leaf: Certificate, intermediates: Sequence[Issuers]) -> bool:
    """Say whether *leaf* is itself one of the certificates that last, as when a bundle is checked."""
    return any(isinstance(source, CertificateIndex) and leaf in source for source in intermediates)
