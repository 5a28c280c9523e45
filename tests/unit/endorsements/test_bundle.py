"""The trust bundle: who vouches for an EK certificate, and who does not any more (TPM.md §2.5-2.6, checks 4-6)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding

from attestation.endorsements.bundle import (
    BundleEntry,
    Held,
    RevocationMode,
    Role,
    Status,
    TrustBundle,
    entry_of,
    manufacturer_of,
    tag_of,
)
from attestation.endorsements.certificate import Certificate, parse_certificate
from attestation.endorsements.path import Expiry, Path, PathFailure
from attestation.endorsements.revocation import CRLStore, parse_crl
from attestation.errors import BundleInvalid
from attestation.tpm import parse_public
from attestation.wire import canonical_json
from attestation_testing.certificates import CAOptions, CertificateAuthority, EKCertificateOptions
from tests.vectors import forge

AT = datetime(2026, 11, 21, tzinfo=UTC)
DAY = date(2026, 11, 21)
IFX, STM = "id:49465800", "id:53544D20"
EK = parse_public(forge.ek_public("L-2"))

ROOT = CertificateAuthority("IFX root", seed=1)
ISSUER = CertificateAuthority("IFX issuer", seed=2, parent=ROOT)
LOWEST = CertificateAuthority("IFX lowest", seed=3, parent=ISSUER)
OTHER = CertificateAuthority("STM root", seed=4)


def entry(
    ca: CertificateAuthority, vendor: str = "IFX", role: Role | None = None, because: str | None = None
) -> tuple[BundleEntry, bytes]:
    """Return *ca* as an entry with its DER."""
    made = entry_of(
        ca.certificate,
        role=role,
        vendor=vendor,
        retrieved=DAY,
        evidence="made by a test",
        distrusted_because=because,
    )
    return made, ca.certificate


def sha(ca: CertificateAuthority) -> str:
    return hashlib.sha256(ca.certificate).hexdigest()


def ek_certificate(issuer: CertificateAuthority, manufacturer: str = IFX) -> bytes:
    return issuer.issue_ek_certificate(EK, at=AT, options=EKCertificateOptions(manufacturer=manufacturer))


def bundle(*entries: tuple[BundleEntry, bytes], **more: object) -> TrustBundle:
    return TrustBundle(entries, "00" * 32, **more)  # type: ignore[arg-type]  # passed on


WHOLE = bundle(entry(ROOT), entry(ISSUER), entry(OTHER, "STM"))


def test_a_chain_to_an_anchor_is_vouched_for() -> None:
    """Leaf, intermediate and anchor, each with its verdict; the bundle that judged is named."""
    verdict = WHOLE.verify(ek_certificate(ISSUER), [], at=AT)
    assert verdict.ok
    assert verdict.reason == "chains to Common Name: IFX root"
    assert (verdict.vendor, verdict.anchor_sha256) == ("IFX", sha(ROOT))
    assert [(p.role, p.ok) for p in verdict.path] == [
        ("leaf", True),
        ("intermediate", True),
        ("anchor", True),
    ]
    assert [p.sha256 for p in verdict.path[1:]] == [sha(ISSUER), sha(ROOT)]
    assert verdict.bundle_sha256 == WHOLE.sha256 == "00" * 32
    assert verdict.revocation == "not checked"


def test_what_the_node_sends_is_a_hint() -> None:
    """An intermediate that only the node has closes the gap; nothing that it sends becomes an anchor."""
    leaf = ek_certificate(LOWEST)
    assert not WHOLE.verify(leaf, [], at=AT).ok
    assert WHOLE.verify(leaf, [LOWEST.certificate], at=AT).ok
    stranger = CertificateAuthority("stranger", seed=9)
    verdict = WHOLE.verify(ek_certificate(stranger), [stranger.certificate, b"junk"], at=AT)
    assert not verdict.ok
    assert verdict.anchor_sha256 is None
    assert verdict.vendor is None
    assert verdict.bundle_sha256 == WHOLE.sha256
    assert "stranger" in verdict.reason


def test_an_empty_bundle_vouches_for_nobody() -> None:
    """No anchors is a negative answer, not a missing check."""
    assert not bundle().verify(ek_certificate(ROOT), [ROOT.certificate], at=AT).ok


@pytest.mark.parametrize("data", [b"", b"\x30\x00", b"junk", bytes(9000)])
def test_what_is_no_certificate_is_not_vouched_for(data: bytes) -> None:
    """Whatever is shown, an answer comes, and it is no."""
    verdict = WHOLE.verify(data, [], at=AT)
    assert not verdict.ok
    assert "cannot be read" in verdict.reason
    assert verdict.path == ()


# ---------------------------------------------------------------- 4. ek-vendor


@pytest.mark.threat("T63")
@pytest.mark.parametrize("manufacturer", [STM, "id:00001014", "id:58585858", "nonsense"])
def test_a_maker_vouches_only_for_its_own(manufacturer: str) -> None:
    """The manufacturer in the certificate must be the anchor's: registered, another's, unknown, none."""
    verdict = WHOLE.verify(ek_certificate(ISSUER, manufacturer), [], at=AT)
    assert not verdict.ok
    assert "its anchor is of IFX" in verdict.reason
    assert manufacturer in verdict.reason
    # What was found is told all the same.
    assert (verdict.vendor, verdict.anchor_sha256) == ("IFX", sha(ROOT))
    assert verdict.path[-1].role == "anchor"


def test_a_certificate_that_names_no_maker_is_not_vouched_for() -> None:
    """A CA's own certificate has no TPM manufacturer, so it is no EK certificate."""
    verdict = WHOLE.verify(ISSUER.certificate, [], at=AT)
    assert not verdict.ok
    assert "does not name exactly one" in verdict.reason


def test_a_pinned_intermediate_of_another_maker_speaks_for_it() -> None:
    """Microsoft's root signs AMD's Pluton issuers: the tag of the lowest pinned certificate counts too."""
    held = bundle(entry(ROOT, "MSFT"), entry(ISSUER, "AMD"))
    for manufacturer, vendor in (("id:414D4400", "AMD"), ("id:4D534654", "MSFT")):
        verdict = held.verify(ek_certificate(ISSUER, manufacturer), [], at=AT)
        assert verdict.ok
        assert verdict.vendor == vendor
    assert not held.verify(ek_certificate(ISSUER, IFX), [], at=AT).ok
    # One that only the node sent speaks for nobody.
    only_root = bundle(entry(ROOT, "MSFT"))
    assert not only_root.verify(ek_certificate(ISSUER, "id:414D4400"), [ISSUER.certificate], at=AT).ok
    assert only_root.verify(ek_certificate(ISSUER, "id:4D534654"), [ISSUER.certificate], at=AT).ok


def test_a_simulator_s_ca_is_its_own_maker() -> None:
    """A developer's bundle may hold swtpm's CA, under a tag that no maker has."""
    held = bundle(entry(ROOT, "simulator"))
    assert held.verify(ek_certificate(ROOT, "id:00001014"), [], at=AT).vendor == "simulator"
    assert not held.verify(ek_certificate(ROOT, IFX), [], at=AT).ok


def test_the_manufacturer_is_read_from_the_directory_name() -> None:
    """One attribute, in a directory name of the SAN; none, two or an unreadable one is no answer."""
    assert manufacturer_of(parse_certificate(ek_certificate(ROOT))) == IFX
    assert manufacturer_of(parse_certificate(ROOT.certificate)) is None

    def with_san(value: bytes) -> Certificate:
        extensions = forge.profile(is_rsa=False) | {"san": forge.extension("2.5.29.17", value)}
        return parse_certificate(forge.certificate(forge.spki(forge.private("ek-p256")), extensions))

    good = parse_certificate(ek_certificate(ROOT)).extensions["2.5.29.17"].value
    assert manufacturer_of(with_san(good)) == IFX
    assert manufacturer_of(with_san(forge.seq(good[2:], good[2:]))) is None
    assert manufacturer_of(with_san(b"\x30\x03\x82\x01a")) is None
    assert manufacturer_of(with_san(b"\x30\x03\xa4\x01a")) is None
    assert manufacturer_of(with_san(b"junk")) is None


# ---------------------------------------------------------------- distrust


def test_a_distrusted_anchor_is_none() -> None:
    """Its reason is told, in the verdict and in the path."""
    held = bundle(entry(ROOT, because="key sold at an auction"), entry(ISSUER))
    assert held.anchors == ()
    assert [h.entry.sha256 for h in held.intermediates] == [sha(ISSUER)]
    verdict = held.verify(ek_certificate(ISSUER), [], at=AT)
    assert not verdict.ok
    assert verdict.reason == "Common Name: IFX root: distrusted: key sold at an auction"
    assert [(p.role, p.ok) for p in verdict.path] == [
        ("leaf", True),
        ("intermediate", True),
        ("anchor", False),
    ]
    assert verdict.anchor_sha256 is None


@pytest.mark.threat("T63")
def test_no_path_leads_through_a_distrusted_intermediate() -> None:
    """Not even where the node sends it, or another certificate of the same key."""
    held = bundle(entry(ROOT), entry(ISSUER, because="compromised"))
    twin = CertificateAuthority("IFX issuer", seed=2, parent=ROOT, path_length=3)
    assert sha(twin) != sha(ISSUER)
    for sent in ([], [ISSUER.certificate], [twin.certificate]):
        verdict = held.verify(ek_certificate(ISSUER), sent, at=AT)
        assert not verdict.ok
        assert "distrusted: compromised" in verdict.reason
    assert "distrusted" in held.verify(ek_certificate(LOWEST), [LOWEST.certificate], at=AT).reason
    assert WHOLE.verify(ek_certificate(ISSUER), [twin.certificate], at=AT).ok


@pytest.mark.threat("T63")
def test_distrust_of_a_key_goes_for_every_certificate_of_it() -> None:
    """Also for one in the bundle that is active by its own entry."""
    twin = CertificateAuthority("IFX root", seed=1, path_length=5)
    held = bundle(entry(ROOT, because="stolen"), entry(twin), entry(ISSUER))
    assert held.anchors == ()
    assert held.distrust_of(sha(twin)) == "stolen"
    assert not held.verify(ek_certificate(ISSUER), [], at=AT).ok


def test_a_distrusted_certificate_is_not_blamed_for_what_it_did_not_sign() -> None:
    """Somebody with the name of a distrusted CA is just unknown."""
    namesake = CertificateAuthority("IFX root", seed=77)
    verdict = bundle(entry(ROOT, because="stolen")).verify(ek_certificate(namesake), [], at=AT)
    assert not verdict.ok
    assert "distrusted" not in verdict.reason


def test_one_ek_certificate_can_be_distrusted() -> None:
    """By its SHA-256, though it is in no bundle."""
    leaf = ek_certificate(ISSUER)
    digest = hashlib.sha256(leaf).hexdigest()
    held = WHOLE.with_overlay([], {digest: "machine stolen"})
    verdict = held.verify(leaf, [], at=AT)
    assert not verdict.ok
    assert verdict.reason == "distrusted: machine stolen"
    assert [(p.role, p.ok) for p in verdict.path] == [("leaf", False)]
    assert held.distrust_of(digest) == "machine stolen"
    assert not held.with_overlay([entry(LOWEST)]).verify(leaf, [], at=AT).ok
    assert WHOLE.distrust_of(digest) is None


# ---------------------------------------------------------------- overlays


def test_an_overlay_adds_and_takes_away() -> None:
    """Operators add anchors and distrust shipped ones; the bundle below stays as it was."""
    new = CertificateAuthority("NTC root", seed=11)
    over = WHOLE.with_overlay([entry(new, "NTC")], {sha(OTHER): "no longer used"})
    assert over.verify(ek_certificate(new, "id:4E544300"), [], at=AT).ok
    assert not over.verify(ek_certificate(OTHER, STM), [], at=AT).ok
    assert WHOLE.verify(ek_certificate(OTHER, STM), [], at=AT).ok
    assert not WHOLE.verify(ek_certificate(new, "id:4E544300"), [], at=AT).ok
    assert over.get(sha(new)) == Held(
        entry=entry(new, "NTC")[0], certificate=parse_certificate(new.certificate)
    )
    assert WHOLE.get(sha(new)) is None


@pytest.mark.threat("T63")
def test_the_later_word_counts_but_distrust_stays() -> None:
    """An overlay may make an intermediate an anchor; it never makes a distrusted certificate good again."""
    promoted = WHOLE.with_overlay([entry(ISSUER, role=Role.ANCHOR)])
    assert promoted.verify(ek_certificate(ISSUER), [], at=AT).anchor_sha256 == sha(ISSUER)
    distrusting = bundle(entry(ROOT, because="stolen"))
    again = distrusting.with_overlay([entry(ROOT)])
    assert again.anchors == ()
    assert again.distrust_of(sha(ROOT)) == "stolen"
    withdrawn = WHOLE.with_overlay([entry(ROOT, because="stolen")])
    assert not withdrawn.verify(ek_certificate(ISSUER), [], at=AT).ok
    assert not withdrawn.with_overlay([entry(ROOT)]).verify(ek_certificate(ISSUER), [], at=AT).ok


def test_the_digest_names_what_decides() -> None:
    """Nothing added: the same. Otherwise it depends on everything that decides, not on the order or the remarks."""
    assert WHOLE.with_overlay([]) is WHOLE
    assert WHOLE.with_overlay([], {}) is WHOLE
    one, two = entry(LOWEST), entry(CertificateAuthority("NTC root", seed=11), "NTC")
    base = WHOLE.with_overlay([one, two])
    assert base.sha256 == WHOLE.with_overlay([two, one]).sha256
    assert base.sha256 == WHOLE.with_overlay([(replace(one[0], evidence="other words"), one[1]), two]).sha256
    assert (
        base.sha256
        == hashlib.sha256(
            canonical_json(
                {
                    "format": "itl-tpm-bundle/1",
                    "base": WHOLE.sha256,
                    "entries": sorted(
                        [e.sha256, e.role.value, e.vendor, e.status.value] for e in (one[0], two[0])
                    ),
                    "distrusted": [],
                    "sha1_allowed": [],
                }
            )
        ).hexdigest()
    )
    others = [
        WHOLE,
        WHOLE.with_overlay([one]),
        WHOLE.with_overlay([one, entry(CertificateAuthority("NTC root", seed=11), "STM")]),
        WHOLE.with_overlay([one, two], {sha(OTHER): "why"}),
        WHOLE.with_overlay([one, two], sha1_allowed=[sha(LOWEST)]),
        WHOLE.with_overlay([entry(LOWEST, because="why"), two]),
        WHOLE.with_overlay([entry(LOWEST, role=Role.ANCHOR), two]),
        TrustBundle(WHOLE.held, "11" * 32).with_overlay([one, two]),
    ]
    assert len({base.sha256, *(other.sha256 for other in others)}) == 1 + len(others)


# ---------------------------------------------------------------- SHA-1 and dates


@pytest.mark.threat("T63")
def test_sha1_only_where_the_manifest_allows_it() -> None:
    """A pinned intermediate may be signed over SHA-1 by name; any other may not."""
    old = CertificateAuthority("old issuer", seed=21, parent=ROOT, options=CAOptions(sha1=True))
    leaf = ek_certificate(old)
    assert "SHA-1" in bundle(entry(ROOT), entry(old)).verify(leaf, [], at=AT).reason
    assert bundle(entry(ROOT), entry(old), sha1_allowed=[sha(old)]).verify(leaf, [], at=AT).ok
    assert WHOLE.with_overlay([entry(old)], sha1_allowed=[sha(old)]).verify(leaf, [], at=AT).ok


def test_dates_are_a_setting_only_after_enrolment() -> None:
    """By default what has expired refuses; `record` writes it down."""
    late = AT + timedelta(days=20_000)
    leaf = ek_certificate(ISSUER)
    assert not WHOLE.verify(leaf, [], at=late).ok
    verdict = WHOLE.judging(expiry=Expiry.RECORD).verify(leaf, [], at=late)
    assert verdict.ok
    assert "not now" in verdict.reason
    assert not WHOLE.judging().verify(leaf, [], at=late).ok


# ---------------------------------------------------------------- 6. revocation


@dataclass(frozen=True)
class Known:
    """What a test knows of one certificate."""

    status: str
    reason: str


class Lists:
    """Revocation lists made by hand: subject of the certificate to what is known."""

    def __init__(self, known: Mapping[str, str]) -> None:
        self.known = known

    def status(self, certificate: Certificate, issuer: Certificate, at: datetime) -> Known:
        """Return what the test said."""
        assert at == AT
        assert certificate.issuer == issuer.subject
        return Known(self.known.get(certificate.subject, "good"), "said the test")


@pytest.mark.parametrize("mode", RevocationMode)
@pytest.mark.parametrize(
    ("known", "ok", "told"),
    [
        ({}, {"record": True, "fail-closed": True}, "good"),
        (
            {"": "unknown"},
            {"record": True, "fail-closed": False},
            "unknown: the EK certificate: said the test",
        ),
        (
            {"": "unknown", "Common Name: IFX issuer": "unknown"},
            {"record": True, "fail-closed": False},
            "unknown: the EK certificate: said the test",
        ),
        (
            {"": "unknown", "Common Name: IFX issuer": "revoked"},
            {"record": False, "fail-closed": False},
            "revoked: Common Name: IFX issuer: said the test",
        ),
        (
            {"": "revoked"},
            {"record": False, "fail-closed": False},
            "revoked: the EK certificate: said the test",
        ),
    ],
)
def test_revocation_is_recorded_and_a_revoked_one_refuses(
    mode: RevocationMode, known: Mapping[str, str], ok: Mapping[str, bool], told: str
) -> None:
    """Revoked refuses in either mode; not to know refuses only where that was asked for."""
    verdict = WHOLE.judging(revocations=Lists(known), mode=mode).verify(ek_certificate(ISSUER), [], at=AT)
    assert verdict.ok is ok[mode.value]
    assert verdict.revocation == told
    assert verdict.anchor_sha256 == sha(ROOT)
    # Of the path, the one that it is about is not good, and no other.
    against = [each for each in verdict.path if not each.ok]
    assert len(against) == (0 if verdict.ok else 1)
    for each in against:
        assert each.reason == verdict.reason
        assert (each.subject or "the EK certificate") in told


def test_a_real_list_of_the_root_revokes_an_issuer() -> None:
    """What `revocation` reads is what the bundle asks: the serial number of the issuer on a list of its root."""
    serial = parse_certificate(ISSUER.certificate).serial
    revoked = (
        x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(AT - timedelta(days=2)).build()
    )
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, ROOT.name)])
    made = (
        x509.CertificateRevocationListBuilder(name, AT - timedelta(days=1), AT + timedelta(days=1))
        .add_revoked_certificate(revoked)
        .sign(ROOT._key, hashes.SHA256())
        .public_bytes(Encoding.DER)
    )
    judging = WHOLE.judging(revocations=CRLStore([parse_crl(made)]))
    verdict = judging.verify(ek_certificate(ISSUER), [], at=AT)
    assert not verdict.ok
    assert verdict.revocation.startswith("revoked: Common Name: IFX issuer")
    assert judging.verify(ek_certificate(ROOT), [], at=AT).revocation == "good"


def test_without_lists_fail_closed_refuses() -> None:
    """Nobody was asked, so nobody knows."""
    verdict = WHOLE.judging(mode=RevocationMode.FAIL_CLOSED).verify(ek_certificate(ISSUER), [], at=AT)
    assert not verdict.ok
    assert verdict.revocation.startswith("unknown")
    assert [each.ok for each in verdict.path] == [False, True, True]


def test_how_to_judge_survives_an_overlay() -> None:
    """A service that extends its bundle does not forget its lists."""
    judging = WHOLE.judging(revocations=Lists({"": "revoked"}))
    over = judging.with_overlay([entry(LOWEST)])
    assert not over.verify(ek_certificate(ISSUER), [], at=AT).ok
    assert WHOLE.verify(ek_certificate(ISSUER), [], at=AT).ok


# ---------------------------------------------------------------- what a bundle may hold


def test_chains_of_the_bundle_itself() -> None:
    """Every intermediate has a path, or the reason why not; anchors and strangers have none to ask for."""
    held = bundle(entry(ROOT), entry(ISSUER), entry(CertificateAuthority("lost", seed=5, parent=OTHER)))
    assert isinstance(held.chain(sha(ISSUER), at=AT), Path)
    lost = held.chain(sha(CertificateAuthority("lost", seed=5, parent=OTHER)), at=AT)
    assert isinstance(lost, PathFailure)
    assert "STM root" in lost.reason
    assert held.chain(sha(ROOT), at=AT) is None
    assert held.chain(sha(OTHER), at=AT) is None


def _key(made: BundleEntry) -> BundleEntry:
    return replace(made, spki_sha256="00" * 32)


def _begins(made: BundleEntry) -> BundleEntry:
    return replace(made, not_before=made.not_before - timedelta(days=1))


def _ends(made: BundleEntry) -> BundleEntry:
    return replace(made, not_after=made.not_after + timedelta(days=1))


def _pin(made: BundleEntry) -> BundleEntry:
    return replace(made, sha256="00" * 32)


@pytest.mark.threat("T62")
@pytest.mark.parametrize(
    ("lie", "match"),
    [(_key, "its key"), (_begins, "its validity"), (_ends, "its validity"), (_pin, "not the certificate")],
)
def test_an_entry_that_lies_is_refused(lie: Callable[[BundleEntry], BundleEntry], match: str) -> None:
    """What people read in the manifest is what the certificate says."""
    made, der = entry(ROOT)
    with pytest.raises(BundleInvalid, match=match):
        bundle((lie(made), der))
    with pytest.raises(BundleInvalid, match=match):
        WHOLE.with_overlay([(lie(made), der)])


def test_a_certificate_stands_once() -> None:
    """Of two entries for one certificate, which would be true?"""
    with pytest.raises(BundleInvalid, match="twice"):
        bundle(entry(ROOT), entry(ROOT, "STM"))
    with pytest.raises(BundleInvalid, match="twice"):
        WHOLE.with_overlay([entry(LOWEST), entry(LOWEST, "STM")])


def test_a_pinned_file_that_is_no_certificate_is_refused() -> None:
    """A pin proves the bytes, not that they mean something."""
    made, _ = entry(ROOT)
    junk = ROOT.certificate[:-1]
    with pytest.raises(BundleInvalid, match=r"anchors/IFX/.*\.der: not a certificate"):
        bundle((replace(made, sha256=hashlib.sha256(junk).hexdigest()), junk))


@pytest.mark.threat("T63")
@pytest.mark.parametrize(
    ("der", "match"),
    [
        (b"junk", "not a certificate"),
        (ROOT.certificate + b"\0", "1 bytes behind"),
        (ek_certificate(ROOT), "not the certificate of a CA"),
        (CertificateAuthority("none", seed=8, ca=False).certificate, "not the certificate of a CA"),
    ],
    ids=["junk", "padding", "leaf", "no CA"],
)
def test_only_certificates_of_cas_are_taken_in(der: bytes, match: str) -> None:
    """An EK certificate as an anchor would make its own device a CA."""
    with pytest.raises(BundleInvalid, match=match):
        entry_of(der, role=Role.ANCHOR, vendor="IFX", retrieved=DAY, evidence="x")


def test_what_no_manifest_may_hold_is_not_taken_in() -> None:
    """The rules of the format hold for entries that are made, too."""
    with pytest.raises(BundleInvalid, match="vendor"):
        entry_of(ROOT.certificate, role=None, vendor="ACME", retrieved=DAY, evidence="x")
    with pytest.raises(BundleInvalid, match="evidence"):
        entry_of(ROOT.certificate, role=None, vendor="IFX", retrieved=DAY, evidence="")
    with pytest.raises(BundleInvalid, match="source"):
        entry_of(
            ROOT.certificate,
            role=None,
            vendor="IFX",
            retrieved=DAY,
            evidence="x",
            sources=("javascript:alert(1)",),
        )


def test_the_role_follows_from_who_issued() -> None:
    """Self-issued certificates are anchors unless somebody says otherwise."""
    assert entry(ROOT)[0].role is Role.ANCHOR
    assert entry(ISSUER)[0].role is Role.INTERMEDIATE
    assert entry(ISSUER, role=Role.ANCHOR)[0].role is Role.ANCHOR
    assert entry(ROOT, because="x")[0].status is Status.DISTRUSTED


def test_an_odd_subject_is_shown_without_harm() -> None:
    """Control characters are replaced, a missing name is told by its key, a long one is cut."""
    odd = CertificateAuthority("bell", seed=31, options=CAOptions(attributes=[("2.5.4.3", "a\x1b[2Jb")]))
    assert entry(odd)[0].subject == "Common Name: a\ufffd[2Jb"
    nameless = forge.certificate(
        forge.spki(forge.private("ek-p256")),
        {"bc": forge.extension("2.5.29.19", forge.seq(b"\x01\x01\xff"), critical=True)},
    )
    made = entry_of(nameless, role=Role.ANCHOR, vendor="IFX", retrieved=DAY, evidence="x")
    assert made.subject == f"without a name, key {made.spki_sha256[:16]}"
    long = CertificateAuthority("long", seed=33, options=CAOptions(attributes=[("2.5.4.3", "x" * 2000)]))
    assert len(entry(long)[0].subject) == 1024


@pytest.mark.parametrize(
    ("name", "tag"), [("ifx", "IFX"), ("Stm", "STM"), ("SIMULATOR", "simulator"), ("nobody", "NOBODY")]
)
def test_a_vendor_may_be_written_in_small_letters(name: str, tag: str) -> None:
    """People do; whether there is such a vendor is asked afterwards."""
    assert tag_of(name) == tag
