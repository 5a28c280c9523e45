"""Paths to anchors: every candidate is tried, every rule holds, and no input makes it long (TPM.md §2.5)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache

import pytest
from asn1crypto import x509 as asn1_x509

from attestation.endorsements import path as path_module
from attestation.endorsements.certificate import Certificate, parse_certificate
from attestation.endorsements.path import (
    DEFAULT_LIMITS,
    CertificateIndex,
    Expiry,
    Issuers,
    LinkCache,
    Path,
    PathFailure,
    PathLimits,
    SentIssuers,
    build_path,
    cost,
)
from attestation.errors import MalformedEvidence, SignatureInvalid
from attestation_testing import CAOptions, CertificateAuthority, SoftwareEK, make_ek_certificate
from tests.vectors import SHARED, forge

AT = datetime(2026, 11, 21, tzinfo=UTC)
NOTHING = CertificateIndex(())
EK = SoftwareEK("L-2", seed=1)
VENDOR_CA = SHARED / "vendor-ca"
needs_vendor_ca = pytest.mark.skipif(
    not (VENDOR_CA / "expected.json").exists(),
    reason="the certificates of TPM vendors are not beside the project (../shared/vectors)",
)


def ca(
    name: str,
    parent: CertificateAuthority | None = None,
    *,
    seed: int = 1,
    path_length: int | None = None,
    options: CAOptions | None = None,
    ca: bool = True,
) -> CertificateAuthority:
    """Make a CA."""
    return CertificateAuthority(
        name, seed=seed, parent=parent, path_length=path_length, options=options, ca=ca
    )


ROOT = ca("Root")
MIDDLE = ca("Middle", ROOT)


def read(authority: CertificateAuthority) -> Certificate:
    """Read its certificate."""
    return parse_certificate(authority.certificate)


def index(*authorities: CertificateAuthority) -> CertificateIndex:
    """Hold these."""
    return CertificateIndex(map(read, authorities))


def leaf_of(issuer: CertificateAuthority) -> Certificate:
    """Return an EK certificate."""
    return parse_certificate(make_ek_certificate(EK.public, issuer, at=AT))


def build(
    leaf: Certificate,
    anchors: Issuers = NOTHING,
    intermediates: Sequence[Issuers] = (),
    *,
    at: datetime = AT,
    limits: PathLimits = DEFAULT_LIMITS,
    expiry: Expiry = Expiry.FAIL,
    links: LinkCache | None = None,
) -> Path | PathFailure:
    """Build a path now."""
    return build_path(
        leaf, anchors=anchors, intermediates=intermediates, at=at, limits=limits, expiry=expiry, links=links
    )


def good(found: Path | PathFailure) -> Path:
    """Expect a path."""
    assert isinstance(found, Path), found.reason
    assert all(v.ok for v in found.judged)
    assert [v.sha256 for v in found.judged] == [c.sha256 for c in found.certificates]
    return found


def bad(found: Path | PathFailure, reason: str) -> PathFailure:
    """Expect none, because of *reason*."""
    assert isinstance(found, PathFailure)
    assert reason in found.reason
    assert found.judged
    return found


# ---------------------------------------------------------------- paths


def test_a_path_lists_every_certificate_with_its_verdict() -> None:
    """Leaf, intermediate, anchor: hash, subject, role, reason."""
    found = good(build(leaf_of(MIDDLE), index(ROOT), [index(MIDDLE)]))
    assert [v.role for v in found.judged] == ["leaf", "intermediate", "anchor"]
    assert [v.subject for v in found.judged] == ["", "Common Name: Middle", "Common Name: Root"]
    assert [v.reason for v in found.judged] == [
        "as shown",
        "found by name and key identifier",
        "found by name and key identifier",
    ]
    assert found.anchor == read(ROOT)
    assert (found.signature_checks, found.candidates, found.notes) == (2, 2, ())


def test_an_anchor_need_not_be_self_signed() -> None:
    """It is trusted for its subject and key; whoever signed it is of no interest."""
    found = good(build(leaf_of(MIDDLE), index(MIDDLE)))
    assert found.anchor == read(MIDDLE)
    assert [v.role for v in found.judged] == ["leaf", "anchor"]


def test_every_candidate_of_one_name_is_tried() -> None:
    """Two anchors share a name and differ in the kind of key, among others of that name."""
    rsa_root = CertificateAuthority("Root", key=forge.rsa_private("ek-rsa2048"))
    others = [ca("Root", seed=seed) for seed in range(10, 20)]
    held = index(*others, rsa_root, ROOT)
    assert good(build(leaf_of(rsa_root), held)).anchor == read(rsa_root)
    assert good(build(leaf_of(ROOT), held)).anchor == read(ROOT)


def test_a_key_identifier_of_somebody_else_hides_nobody() -> None:
    """Ten certificates claim the key identifier of the right one."""
    thieves = [
        ca("Root", seed=i, options=CAOptions(key_identifier=ROOT.key_identifier)) for i in range(2, 12)
    ]
    found = good(build(leaf_of(ROOT), index(*thieves, ROOT)))
    assert found.anchor == read(ROOT)


def test_names_are_compared_normalised() -> None:
    """Another string type, letter case and white space; no key identifier helps here."""
    issuer = ca("Vendor Root", options=CAOptions(key_identifier=b"elsewhere"))
    child = ca("Child", issuer, options=CAOptions(issuer=issuer.written_otherwise()))
    held = index(ca("Vendor Root", options=CAOptions()))
    found = good(build(read(child), held))
    assert found.judged[1].reason == "found by name"


def test_a_key_identifier_alone_is_enough_to_be_tried() -> None:
    """The signature decides; that the name is another is said."""
    child = ca("Child", ROOT, options=CAOptions(issuer=MIDDLE.subject))
    found = good(build(read(child), index(ROOT)))
    assert found.judged[1].reason == "found by key identifier, its name is another"


def test_an_issuer_is_found_by_the_identifier_that_its_key_has() -> None:
    """Where its certificate states another, or none; SHA-1 of the key's bits (RFC 5280, 4.2.1.2)."""
    issuer = read(ROOT)
    leaf = replace(leaf_of(ROOT), aki=issuer.key_id)
    assert issuer.ski != issuer.key_id
    assert list(CertificateIndex([issuer]).candidates(leaf)) == [issuer]
    without = replace(issuer, ski=None)
    assert list(CertificateIndex([without]).candidates(leaf)) == [without]
    stranger = replace(leaf, issuer_name=read(MIDDLE).subject_name)
    assert list(CertificateIndex([without]).candidates(stranger)) == [without]
    assert list(CertificateIndex([without]).candidates(replace(stranger, aki=None))) == []


def test_the_likeliest_candidate_comes_first_and_each_once() -> None:
    """By name and key, by key alone, by name alone."""
    both, by_name = read(ROOT), read(ca("Root", seed=5))
    by_key = read(ca("Other", options=CAOptions(key_identifier=ROOT.key_identifier)))
    held = CertificateIndex([by_name, by_key, both, both])
    assert list(held.candidates(leaf_of(ROOT))) == [both, by_key, by_name]
    assert len(held) == 3
    assert both in held
    assert read(MIDDLE) not in held
    assert set(held) == {both, by_key, by_name}
    assert held.get(both.sha256) == both
    assert held.get("0" * 64) is None


def test_the_search_goes_back_from_dead_ends() -> None:
    """Two intermediates have one key; only one leads to an anchor."""
    key = forge.ec_private("own shared key", 3)
    elsewhere = CertificateAuthority("Middle", key=key, parent=ca("Elsewhere"))
    right = CertificateAuthority("Middle", key=key, parent=ROOT, seed=9)
    leaf = leaf_of(right)
    for order in ((elsewhere, right), (right, elsewhere)):
        found = good(build(leaf, index(ROOT), [index(*order)]))
        assert found.certificates[1] == read(right)


def test_sent_certificates_are_read_only_when_needed() -> None:
    """An issuer that is held makes them superfluous; what cannot be read is passed over."""
    sent = SentIssuers([b"\x05\0", MIDDLE.certificate])
    good(build(leaf_of(ROOT), index(ROOT), [sent]))
    assert not sent.notes
    good(build(leaf_of(MIDDLE), index(ROOT), [sent]))
    assert sent.notes == ("certificate 0 of those sent: certificate: tag 0x05, 0x30 expected",)


def test_only_so_many_sent_certificates_are_looked_at() -> None:
    """Sixteen, and 64 KiB."""
    junk = [b"\x30\x00"] * 16
    many = SentIssuers([*junk, MIDDLE.certificate])
    bad(build(leaf_of(MIDDLE), index(ROOT), [many]), "no issuer is known")
    assert "17 certificates sent, 16 looked at" in many.notes
    heavy = SentIssuers([bytes(8192)] * 8 + [MIDDLE.certificate])
    bad(build(leaf_of(MIDDLE), index(ROOT), [heavy]), "no issuer is known")
    assert heavy.notes[-1] == "more than 65536 bytes sent, the rest not looked at"
    good(build(leaf_of(MIDDLE), index(ROOT), [SentIssuers([*junk[:15], MIDDLE.certificate])]))


# ---------------------------------------------------------------- what refuses


@pytest.mark.threat("T60")
@pytest.mark.parametrize(
    ("issuer", "reason"),
    [
        (ca("Bad", ROOT, ca=False), "it is no CA"),
        (ca("Bad", ROOT, options=CAOptions(key_usage=b"\x01\x02")), "may not sign certificates"),
        (
            ca("Bad", ROOT, options=CAOptions(unknown_critical=True)),
            "unknown critical extension 1.3.6.1.4.1.99999.1",
        ),
        (ca("Bad", ROOT, options=CAOptions(sha1=True)), "SHA-1"),
        (
            ca("Bad", ROOT, options=CAOptions(validity=(AT - timedelta(9), AT - timedelta(1)))),
            "valid from 2026-11-12 to 2026-11-20, not now",
        ),
        (
            ca("Bad", ROOT, options=CAOptions(validity=(AT + timedelta(1), AT + timedelta(9)))),
            "valid from 2026-11-22 to 2026-11-30, not now",
        ),
        (ca("Bad", ca("Root", seed=7)), "not signed by the key of Common Name: Root"),
    ],
)
def test_n56_n59_n60_an_issuer_that_may_not_issue(issuer: CertificateAuthority, reason: str) -> None:
    """Everything else about it is right; as an anchor too, but for who signed it."""
    failed = bad(build(leaf_of(issuer), index(ROOT), [index(issuer)]), reason)
    assert not failed.judged[-1].ok
    assert reason in failed.judged[-1].reason
    assert not failed.exhausted
    as_anchor = build(leaf_of(issuer), index(issuer))
    if "signed" in reason or "SHA-1" in reason:
        good(as_anchor)
    else:
        assert bad(as_anchor, reason).judged[-1].role == "anchor"


def test_an_issuer_without_key_usage_may_issue() -> None:
    """RFC 5280, 6.1.4 (n): only where the extension is present it must say so."""
    plain = ca("Plain", ROOT, options=CAOptions(key_usage=b""))
    assert read(plain).key_usage is None
    good(build(leaf_of(plain), index(ROOT), [index(plain)]))


@pytest.mark.threat("T60")
def test_n56_path_lengths_count_cas_below() -> None:
    """Not the leaf, and not a CA that issued itself."""
    narrow = ca("Narrow", ROOT, path_length=0)
    good(build(leaf_of(narrow), index(ROOT), [index(narrow)]))
    below = ca("Below", narrow)
    failed = bad(
        build(leaf_of(below), index(ROOT), [index(narrow, below)]), "1 CAs below it, at most 0 allowed"
    )
    assert [v.ok for v in failed.judged] == [True, True, False]
    bad(build(leaf_of(below), index(narrow), [index(below)]), "1 CAs below it")
    again = ca("Narrow", narrow, seed=3)
    assert read(again).self_issued
    good(build(leaf_of(again), index(ROOT), [index(narrow, again)]))


def test_a_repeated_extension_refuses_an_issuer() -> None:
    """Which of the two counts is a question of who reads."""
    issuer = replace(read(MIDDLE), repeated_extension="2.5.29.19")
    bad(build(leaf_of(MIDDLE), index(ROOT), [CertificateIndex([issuer])]), "extension 2.5.29.19 stands twice")


def test_a_weak_key_refuses_leaf_and_issuer() -> None:
    """RSA below 2048 bits, and kinds that we do not use."""
    weak = replace(read(MIDDLE), key="rsa-1024")
    bad(build(leaf_of(MIDDLE), index(ROOT), [CertificateIndex([weak])]), "RSA key of 1024 bits")
    bad(build(replace(leaf_of(MIDDLE), key="other"), index(ROOT), [index(MIDDLE)]), "neither RSA nor ECC")


def test_n49_a_leaf_that_names_itself_is_refused() -> None:
    """Also where a key identifier would lead on."""
    leaf = leaf_of(ROOT)
    itself = replace(leaf, subject_name=leaf.issuer_name)
    failed = bad(build(itself, index(ROOT)), "it names itself")
    assert [(v.role, v.ok) for v in failed.judged] == [("leaf", False)]
    own = CertificateAuthority("Own", key=EK.key)
    bad(build(leaf_of(own), index(ROOT)), "no issuer is known: Common Name: Own")
    good(build(read(ca("Cross", ROOT)), index(ROOT)))


def test_nobody_known_is_said() -> None:
    """With the name that is looked for; a certificate without one has no issuer by name."""
    failed = bad(build(leaf_of(MIDDLE), index(ROOT)), "no issuer is known: Common Name: Middle")
    assert [(v.role, v.ok) for v in failed.judged] == [("leaf", False)]
    nameless = replace(leaf_of(MIDDLE), issuer_name=leaf_of(MIDDLE).subject_name, aki=b"x", is_ca=True)
    bad(build(nameless, index(ROOT)), "its issuer has no name")
    higher = bad(build(leaf_of(MIDDLE), NOTHING, [index(MIDDLE)]), "no issuer is known: Common Name: Root")
    assert [v.ok for v in higher.judged] == [True, False]


@pytest.mark.threat("T60")
def test_n57_loops_end() -> None:
    """Two CAs certify each other; each is passed once."""
    first = ca("One")
    second = ca("Two", first)
    looped = ca("One", second)
    leaf = leaf_of(second)
    failed = bad(build(leaf, index(ROOT), [index(first, second, looped)]), "no issuer is known")
    assert not failed.exhausted
    assert failed.signature_checks <= 4
    good(build(leaf, index(first), [index(second, looped)]))


def tower(height: int) -> list[CertificateAuthority]:
    """Return CAs, each certified by the one before, the first by ROOT."""
    built = [ROOT]
    for i in range(height):
        built.append(ca(f"Storey {i}", built[-1]))
    return built[1:]


@pytest.mark.threat("T60")
def test_n57_a_path_has_at_most_six_certificates_above_the_leaf() -> None:
    """Five intermediates and an anchor; a thousand are not even read."""
    for height, fits in ((5, True), (6, False)):
        storeys = tower(height)
        found = build(leaf_of(storeys[-1]), index(ROOT), [index(*storeys)])
        assert isinstance(found, Path) == fits
        assert found.signature_checks <= 6
    storeys = tower(1000)
    found = build(leaf_of(storeys[-1]), index(ROOT), [SentIssuers([s.certificate for s in storeys])])
    bad(found, "no issuer is known")
    bad(build(leaf_of(storeys[-1]), index(ROOT), [index(*storeys)]), "no issuer is known")


# ---------------------------------------------------------------- dates as policy


def test_n50_n51_expiry_is_recorded_where_policy_says_so() -> None:
    """At enrolment it refuses; later it may be a note, of leaf and issuers alike."""
    late = datetime(2040, 1, 1, tzinfo=UTC)
    leaf = leaf_of(MIDDLE)
    refused = bad(
        build(leaf, index(ROOT), [index(MIDDLE)], at=late), "valid from 2026-11-20 to 2036-11-17, not now"
    )
    assert refused.signature_checks == 0
    recorded = good(build(leaf, index(ROOT), [index(MIDDLE)], at=late, expiry=Expiry.RECORD))
    assert recorded.notes == ("leaf: valid from 2026-11-20 to 2036-11-17, not now",)
    assert recorded.judged[0].reason == "as shown; valid from 2026-11-20 to 2036-11-17, not now"
    short = ca("Short", ROOT, options=CAOptions(validity=(AT - timedelta(9), AT - timedelta(1))))
    noted = good(build(leaf_of(short), index(ROOT), [index(short)], expiry=Expiry.RECORD))
    assert noted.notes == ("Common Name: Short: valid from 2026-11-12 to 2026-11-20, not now",)


# ---------------------------------------------------------------- work


class Counted:
    """Counts signature verifications while it is in place."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.verified: list[str] = []
        original = Certificate.verify_issued_by

        def counting(
            certificate: Certificate, issuer: Certificate, *, sha1_allowed: Sequence[str] = ()
        ) -> None:
            self.verified.append(issuer.key)
            original(certificate, issuer, sha1_allowed=sha1_allowed)

        monkeypatch.setattr(Certificate, "verify_issued_by", counting)


@cache
def namesakes(count: int, kind: str = "ec-secp256r1") -> tuple[Certificate, ...]:
    """Return *count* certificates of one name and key identifier, none of which signed anything."""
    one = read(ca("Root", seed=99, options=CAOptions(key_identifier=ROOT.key_identifier)))
    return tuple(replace(one, sha256=f"{i:064x}", spki_sha256=f"{i:064x}", key=kind) for i in range(count))


@pytest.mark.threat("T60")
@pytest.mark.parametrize("held_as", ["anchors", "intermediates", "both"])
def test_ten_thousand_candidate_issuers_cost_no_more_than_sixty_four(
    held_as: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most 64 signatures and 256 candidates, wherever they stand; the milliseconds are in tests/bench."""
    counted = Counted(monkeypatch)
    many = CertificateIndex(namesakes(10_000))
    anchors = NOTHING if held_as == "intermediates" else many
    others = () if held_as == "anchors" else (many,)
    failed = bad(build(leaf_of(ROOT), anchors, others), "gave up after 64 signature checks")
    assert failed.exhausted
    assert len(counted.verified) == failed.signature_checks == 64
    assert failed.candidates <= 65
    assert failed.judged[0].ok


@pytest.mark.threat("T60")
def test_ten_thousand_candidates_that_need_no_signature_are_bounded_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Expired ones cost a comparison each: 256 are looked at."""
    counted = Counted(monkeypatch)
    expired = [replace(c, not_after=c.not_before) for c in namesakes(10_000)]
    failed = bad(build(leaf_of(ROOT), CertificateIndex(expired)), "gave up after 256 candidate issuers")
    assert counted.verified == []
    assert (failed.candidates, failed.exhausted) == (256, True)


def test_ten_thousand_certificates_of_one_ca_are_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """All with the right key, all in a circle: each link verifies, none leads to an anchor."""
    counted = Counted(monkeypatch)
    one = read(ca("Middle", MIDDLE))
    circle = [replace(one, sha256=f"{i:064x}") for i in range(10_000)]
    failed = build(leaf_of(MIDDLE), index(ROOT), [CertificateIndex(circle)])
    assert isinstance(failed, PathFailure)
    assert len(counted.verified) <= 64
    assert failed.candidates <= 256


@pytest.mark.threat("T60")
@pytest.mark.parametrize(
    ("kind", "most"), [("ec-secp384r1", 20), ("ec-secp521r1", 20), ("rsa-8192", 64), ("rsa-4096", 64)]
)
def test_dear_signatures_are_bounded_by_what_they_cost(
    kind: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """64 checks under P-384 would take 50 ms: their cost is summed."""
    counted = Counted(monkeypatch)
    failed = build(leaf_of(ROOT), CertificateIndex(namesakes(200, kind)))
    assert isinstance(failed, PathFailure)
    assert failed.exhausted
    assert len(counted.verified) == most
    assert sum(cost(c) for c in namesakes(200, kind)[:most]) <= DEFAULT_LIMITS.cost


def test_what_a_signature_costs() -> None:
    """In proportion to the modulus, with a most; what nobody knows is dear."""
    prices = {
        kind: cost(namesakes(1, kind)[0])
        for kind in ("rsa-2048", "rsa-4096", "rsa-99999", "ec-secp256r1", "other")
    }
    assert prices == {"rsa-2048": 75, "rsa-4096": 125, "rsa-99999": 800, "ec-secp256r1": 100, "other": 800}


def test_the_right_issuer_among_ten_thousand_is_found_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """By look-up of its key identifier."""
    counted = Counted(monkeypatch)
    strangers = [replace(c, ski=b"other", key_id=b"other") for c in namesakes(10_000)]
    good(build(leaf_of(ROOT), CertificateIndex([*strangers, read(ROOT)])))
    assert len(counted.verified) == 1


def test_limits_of_a_caller_are_kept() -> None:
    """Depth, checks and candidates."""
    leaf, anchors, others = leaf_of(MIDDLE), index(ROOT), [index(MIDDLE)]
    good(build(leaf, anchors, others, limits=PathLimits(depth=2, signature_checks=2, candidates=2, cost=200)))
    bad(build(leaf, anchors, others, limits=PathLimits(depth=1)), "no issuer is known")
    bad(build(leaf, anchors, others, limits=PathLimits(signature_checks=1)), "gave up after 1 signature")
    bad(build(leaf, anchors, others, limits=PathLimits(candidates=1)), "gave up after 1 candidate")
    bad(build(leaf, anchors, others, limits=PathLimits(cost=199)), "gave up after 1 signature")
    nothing = bad(build(leaf, anchors, others, limits=PathLimits(candidates=0)), "gave up after 0 candidate")
    assert [v.role for v in nothing.judged] == ["leaf"]


# ---------------------------------------------------------------- remembered links


def test_links_of_a_bundle_are_verified_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second machine of a vendor costs one signature; the verdict is the same to the letter."""
    counted, links = Counted(monkeypatch), LinkCache()
    anchors, others = index(ROOT), [index(MIDDLE)]
    cold = good(build(leaf_of(MIDDLE), anchors, others, links=links))
    warm = good(build(leaf_of(MIDDLE), anchors, others, links=links))
    assert len(counted.verified) == 3
    assert warm == cold


@pytest.mark.threat("T60")
def test_what_a_node_sends_is_never_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that it chooses may grow, or decide, anything for the next one."""
    counted, links = Counted(monkeypatch), LinkCache()
    for _ in range(2):
        good(build(leaf_of(MIDDLE), index(ROOT), [SentIssuers([MIDDLE.certificate])], links=links))
    assert len(counted.verified) == 4
    assert not links.knows(read(MIDDLE), read(ROOT))


def test_a_certificate_of_the_bundle_is_remembered_as_a_leaf_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the bundle itself is checked."""
    counted, links = Counted(monkeypatch), LinkCache()
    for _ in range(2):
        good(build(read(MIDDLE), index(ROOT), [index(MIDDLE)], links=links))
    assert len(counted.verified) == 1


def test_a_failed_signature_is_not_remembered_as_a_good_one() -> None:
    """Nor does a link speak for anything but its two certificates."""
    links = LinkCache()
    impostor = ca("Root", seed=7, options=CAOptions(key_identifier=ROOT.key_identifier))
    leaf = leaf_of(MIDDLE)
    for _ in range(2):
        bad(build(leaf, index(impostor), [index(MIDDLE)], links=links), "not signed")
    good(build(leaf, index(ROOT), [index(MIDDLE)], links=links))
    bad(build(leaf, index(impostor), [index(MIDDLE)], links=links), "not signed")


def test_a_remembered_link_does_not_outlive_what_allows_it() -> None:
    """Dates, SHA-1 and limits are judged every time."""
    links = LinkCache()
    weak = ca("Weak", ROOT, options=CAOptions(sha1=True))
    leaf, anchors, others = leaf_of(weak), index(ROOT), [index(weak)]
    allowed = {read(weak).sha256}
    good(build_path(leaf, anchors=anchors, intermediates=others, at=AT, sha1_allowed=allowed, links=links))
    bad(build(leaf, anchors, others, links=links), "SHA-1")
    late = datetime(2200, 1, 1, tzinfo=UTC)
    assert links.knows(read(weak), read(ROOT))
    found = build_path(
        read(weak), anchors=anchors, intermediates=others, at=late, sha1_allowed=allowed, links=links
    )
    bad(found, "not now")


def test_the_memory_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full one remembers no more, and everything still works."""
    monkeypatch.setattr(path_module, "_MAX_LINKS", 1)
    links = LinkCache()
    middle, root = read(MIDDLE), read(ROOT)
    links.remember(middle, root)
    links.remember(root, root)
    assert links.knows(middle, root)
    assert not links.knows(root, root)


# ---------------------------------------------------------------- mutations: at least twenty of each class


def changed(data: bytes, start: int, stop: int, count: int = 20) -> list[bytes]:
    """Return *data* with one bit changed, at *count* places from *start* to *stop*."""
    out = []
    for i in range(count):
        at = start + (stop - start) * i // count
        out.append(data[:at] + bytes([data[at] ^ 1 << i % 8]) + data[at + 1 :])
    return out


def refused(leaf: bytes, anchors: Sequence[bytes], others: Sequence[bytes]) -> bool:
    """Say whether no path is found, or something cannot even be read."""
    try:
        found = build(
            parse_certificate(leaf), CertificateIndex(map(parse_certificate, anchors)), [SentIssuers(others)]
        )
    except MalformedEvidence:
        return True
    return isinstance(found, PathFailure)


LEAF = leaf_of(MIDDLE)
BETWEEN = read(MIDDLE)


@pytest.mark.threat("T60")
@pytest.mark.parametrize("certificate", [LEAF, BETWEEN], ids=["leaf", "intermediate"])
@pytest.mark.parametrize("part", ["signed part", "signature"])
def test_no_changed_bit_leads_to_an_anchor(certificate: Certificate, part: str) -> None:
    """Twenty places in the signed part and twenty in the signature, of leaf and of intermediate."""
    assert not refused(LEAF.der, [ROOT.certificate], [BETWEEN.der])
    begins, ends = certificate.der.index(certificate.tbs), len(certificate.der) - len(certificate.signature)
    span = (begins, begins + len(certificate.tbs)) if part == "signed part" else (ends, len(certificate.der))
    for mutation in changed(certificate.der, *span):
        leaf, between = (mutation, BETWEEN.der) if certificate is LEAF else (LEAF.der, mutation)
        assert refused(leaf, [ROOT.certificate], [between])


def test_no_changed_key_of_an_anchor_leads_to_it() -> None:
    """An anchor is its name and key: twenty changes to the key, and other anchors in its place."""
    anchor = read(ROOT)
    at = anchor.der.index(anchor.spki)
    for mutation in changed(anchor.der, at + len(anchor.spki) - 64, at + len(anchor.spki)):
        assert refused(LEAF.der, [mutation], [BETWEEN.der])
    for seed in range(2, 22):
        assert refused(LEAF.der, [ca("Root", seed=seed).certificate], [BETWEEN.der])


def test_no_swapped_issuer_leads_to_an_anchor() -> None:
    """Twenty intermediates of the same name, of other keys or other roots; signatures of others."""
    for seed in range(2, 12):
        other = ca("Middle", ROOT, seed=seed, options=CAOptions(key_identifier=MIDDLE.key_identifier))
        assert refused(LEAF.der, [ROOT.certificate], [other.certificate])
        stranger = ca("Middle", ca("Root", seed=seed))
        assert refused(LEAF.der, [ROOT.certificate], [stranger.certificate])
        mixed = LEAF.der[: -len(LEAF.signature)] + leaf_of(other).signature
        assert refused(mixed, [ROOT.certificate], [BETWEEN.der])


# ---------------------------------------------------------------- what vendors have published


@cache
def vendor_certificates() -> dict[str, tuple[dict[str, object], Certificate]]:
    """Return manifest entry and certificate of each file."""
    return {
        entry["file"]: (entry, parse_certificate((VENDOR_CA / entry["file"]).read_bytes()))
        for entry in json.loads((VENDOR_CA / "manifest.json").read_text())
    }


@needs_vendor_ca
def test_every_published_certificate_is_read_as_it_is() -> None:
    """All 169, against what others read in them."""
    assert len(vendor_certificates()) == 169
    for entry, found in vendor_certificates().values():
        assert found.sha256 == entry["sha256"]
        assert found.spki_sha256 == entry["spki_sha256"]
        assert (found.subject, found.issuer) == (entry["subject"], entry["issuer"])
        assert f"{found.serial:x}" == entry["serial"]
        assert (found.key, found.signature_algorithm) == (entry["key"], entry["signature_algorithm"])
        assert (found.ski.hex() if found.ski else None) == entry["ski"]
        assert (found.aki.hex() if found.aki else None) == entry["aki"]
        assert found.path_length == entry["path_length"]
        assert (f"{found.not_before:%FT%TZ}", f"{found.not_after:%FT%TZ}") == (
            entry["not_before"],
            entry["not_after"],
        )
        # What strict readers refuse is named; nothing else is odd about any of them.
        assert bool(found.anomalies) == (entry["strict_parser_refuses"] is not None)
        if entry["self_signed"]:
            found.verify_issued_by(found)
        elif found.self_issued:
            with pytest.raises(SignatureInvalid):
                found.verify_issued_by(found)


@needs_vendor_ca
def test_every_published_certificate_chains_as_it_should() -> None:
    """All 143 intermediates to the anchor and through the issuer that is expected."""
    expected = json.loads((VENDOR_CA / "expected.json").read_text())
    held = vendor_certificates()
    files = {found.sha256: file for file, (_, found) in held.items()}
    anchors, others = (
        CertificateIndex(found for entry, found in held.values() if entry["role"] == role)
        for role in ("anchor", "intermediate")
    )
    assert len(anchors) == 26
    normalised = []
    for file, chain in expected["chains"].items():
        entry, leaf = held[file]
        found = good(build(leaf, anchors, [others]))
        assert files[found.anchor.sha256] == chain["anchor"]
        assert len(found.certificates) - 1 == chain["depth"]
        issuer = found.certificates[1]
        assert files[issuer.sha256] == entry["issued_by"]
        assert leaf.issuer_key == issuer.subject_key
        written, name = asn1_x509.Certificate.load(leaf.der), asn1_x509.Certificate.load(issuer.der)
        if written.issuer.dump() != name.subject.dump():
            normalised.append(file)
    assert len(expected["chains"]) == len(others) == 143
    assert sorted(expected["links_that_need_normalised_dn_or_key_identifier"]) == sorted(normalised)


@needs_vendor_ca
def test_anchors_that_nobody_here_signed_are_anchors() -> None:
    """Three of them; and two of one name, each found for its own."""
    expected = json.loads((VENDOR_CA / "expected.json").read_text())
    held = {file: found for file, (_, found) in vendor_certificates().items()}
    for file in expected["anchors_not_self_signed"]:
        assert not held[file].self_issued
        bad(build(held[file], CertificateIndex([held[file]])), "no issuer is known")
        below = [found for found in held.values() if found.aki == held[file].ski]
        assert below
        for child in below:
            assert good(build(child, CertificateIndex([held[file]]))).anchor == held[file]
    for one, other in expected["anchors_with_equal_subject"]:
        assert held[one].subject_key == held[other].subject_key
        assert held[one].key != held[other].key
