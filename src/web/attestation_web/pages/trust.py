"""Trust: whose word about TPMs and confidential hardware the service takes; a new CA is believed after a ceremony."""

# Algorithms for: digest
from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from flask import redirect, request, url_for

from attestation.api import CollateralImported
from attestation.api.operations import OperatorAPI
from attestation.client.acts import Acts
from attestation.client.collateral_files import MAX_ARCHIVE_BYTES, batches, read_archive
from attestation.client.text import clean
from attestation.endorsements.vendors import maker
from attestation.errors import BundleInvalid, CollateralInvalid, MalformedEvidence, RequestInvalid
from attestation.evidence import ek_certificate
from attestation.wire import b64decode, b64encode
from attestation_web.page import (
    Act,
    Badge,
    Column,
    Field,
    Page,
    Values,
    api,
    drafted,
    keep_draft,
    needs,
    now,
    render,
    table,
)
from attestation_web.page.badges import Look
from attestation_web.page.names import called_by
from attestation_web.page.table import address

if TYPE_CHECKING:
    from werkzeug.wrappers import Response

    from attestation.api import TrustBundleDetail, TrustCertificateDetail
    from attestation.client import OperatorClient

page: Final = Page(__name__, title="Trust", place=50)

TABS: Final = (
    ("Certificates", "certificates"),
    ("Unknown roots", "unknown"),
    ("Confidential hardware", "collateral"),
    ("Firmware advisories", "firmware"),
)
MOST_BYTES: Final = 65_536
PAGE_MACHINES: Final = 200
MOST_PAGES: Final = 5
"""So many pages of machines that wait are looked at; more are behind a link."""
MOST_NAMED: Final = 20
"""Machines that are named beside an issuer; the rest are counted."""

COMMON_NAME: Final = re.compile(r"(?:^|[,;] )(?:Common Name: |CN=)([^,;]+)")
SEPARATORS: Final = re.compile(r"[\s:.-]+")

CERTIFICATES: Final = (
    Column(name="vendor", title="Vendor", sort=lambda c: (maker(c.vendor), c.role)),
    Column(name="role", title="Role", sort=lambda c: c.role),
    Column(name="subject", title="Subject", sort=lambda c: name_of(c.subject)),
    Column(name="sha256", title="SHA-256"),
    Column(name="until", title="Valid until", sort=lambda c: c.not_after),
    Column(name="status", title="State", sort=lambda c: c.status),
    Column(name="origin", title="From", sort=lambda c: c.origin),
    Column(name="changed", title="Changed", sort=lambda c: c.changed_at, shown=False),
)
COLLATERAL: Final = (
    Column(name="name", title="Name"),
    Column(name="holds", title="Holds"),
    Column(name="until", title="Until"),
    Column(name="source", title="From"),
    Column(name="failure", title="What failed last"),
)

SEVERITIES: Final = ("low", "medium", "high", "critical")
ADVISORIES: Final = (
    Column(name="advisory", title="Advisory", sort=lambda a: a.advisory),
    Column(name="vendor", title="Vendor", sort=lambda a: (maker(a.vendor), a.advisory)),
    Column(name="versions", title="Versions of TPM firmware"),
    Column(name="affects", title="Affects", sort=lambda a: a.affects),
    Column(name="severity", title="Severity", sort=lambda a: SEVERITIES.index(a.severity)),
    Column(name="action", title="What follows", sort=lambda a: a.action),
    Column(name="fixed", title="Mended in"),
    Column(name="origin", title="From", shown=False),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """An issuer that nobody of the bundle is, and the machines that named it.

    Args:
        issuer: Its name, as certificates of strangers write it.
        vendor: Whose the certificates say that it is.
        role: What it would have to become in the bundle.
        machines: Id and what the machine is called, each.
    """

    issuer: str
    vendor: str
    role: str
    machines: list[tuple[str, str]]


@page.get("")
def show() -> Response:
    """Show one part of what is trusted."""
    tab = request.args.get("tab", "certificates")
    if tab == "collateral":
        return _collateral()
    if tab == "unknown":
        return _unknown()
    if tab == "firmware":
        return _firmware()
    bundle = api().trust_bundle()
    wanted = request.args.get("q", "").strip().lower()
    state = request.args.get("status", "")
    rows = [
        c
        for c in bundle.certificates
        if wanted in f"{c.vendor} {maker(c.vendor)} {c.subject} {c.sha256}".lower()
        and state in ("", c.status, c.role)
    ]
    return render(
        "trust/list.html",
        tabs=TABS,
        tab="certificates",
        bundle=bundle,
        anchors=_count(bundle, "anchor"),
        intermediates=_count(bundle, "intermediate"),
        distrusted=sum(c.status == "distrusted" for c in bundle.certificates),
        shown=table(CERTIFICATES, rows, by="vendor"),
        chosen=state,
    )


@page.get("/certificates/<sha256>")
def one(sha256: str) -> Response:
    """Show one certificate of the bundle."""
    return render("trust/one.html", certificate=api().trusted_certificate(sha256))


@page.get("/add")
@needs("act")
def add() -> Response:
    """Begin the ceremony: paste or upload a certificate."""
    return render(
        "trust/add.html", vendor=request.args.get("vendor", ""), role=request.args.get("role", "anchor")
    )


@page.post("/add")
@needs("act")
def added() -> Response:
    """Read the certificate, and go on to the page that shows what is in it."""
    vendor, role = request.form.get("vendor", "").strip().upper(), request.form.get("role", "")
    try:
        der = read_certificate(sent_bytes())
    except (BundleInvalid, MalformedEvidence) as e:
        return render("trust/add.html", 422, fault=clean(str(e)), vendor=vendor, role=role)
    draft = keep_draft({"certificate": b64encode(der), "vendor": vendor, "role": role})
    return redirect(url_for(".believe", draft=draft), 303)


@page.act("/believe", fresh=True)
def believe() -> Act:
    """Trust a CA certificate, whose fingerprint somebody compared with the vendor's own publication."""
    encoded = drafted("certificate")
    der = b64decode(encoded, "certificate")
    found = ek_certificate.parse(der).certificate
    digest = hashlib.sha256(der).hexdigest()

    def do(client: OperatorClient, filled: Values) -> object:
        typed = SEPARATORS.sub("", filled["fingerprint"]).lower()
        if not hmac.compare_digest(typed.encode(), digest.encode()):
            raise RequestInvalid(
                "the fingerprint that you typed is not that of this certificate: it may be another's"
            )
        return client.trust_certificate(
            encoded, role=filled["role"], vendor=filled["vendor"].upper(), reason=filled["reason"]
        )

    return Act(
        title=f"Trust {name_of(found.subject) or 'a certificate'}",
        button="Trust it",
        will=[
            "Whoever holds the key of this certificate can vouch for TPMs: machines may be admitted on its word alone.",
            "Compare the SHA-256 with what the vendor publishes, over another way than the one it came by.",
            "Where dual control asks for several people an anchor needs their votes, and this is yours.",
        ],
        facts=[
            ("SHA-256 of this certificate", " ".join(digest[i : i + 8] for i in range(0, 64, 8))),
            ("Subject", found.subject),
            ("Issuer", found.issuer),
            ("Valid from", f"{found.not_before:%Y-%m-%d}"),
            ("Valid until", f"{found.not_after:%Y-%m-%d}{' (over)' if found.not_after < now() else ''}"),
            (
                "Signed by",
                "itself" if found.subject_name.key == found.issuer_name.key else "another: it must chain",
            ),
        ],
        fields=[
            Field(name="certificate", label="Certificate", kind="hidden", value=encoded, needed=True),
            Field(
                name="role",
                label="Becomes",
                kind="choice",
                value=drafted("role") or "anchor",
                choices=[
                    ("anchor", "an anchor, which is believed by itself"),
                    ("intermediate", "an intermediate, which must chain to an anchor"),
                ],
            ),
            Field(
                name="vendor",
                label="Vendor",
                value=drafted("vendor"),
                needed=True,
                help="2 to 4 capital letters, as the TCG registry names it, like IFX.",
            ),
            Field(
                name="fingerprint",
                label="SHA-256 as the vendor publishes it",
                needed=True,
                help="From the vendor's own publication, not from this page. Spaces and colons do not matter.",
            ),
            Field(name="reason", label="Reason", needed=True, help="It stands in the audit log."),
        ],
        do=do,
        did=lambda answer: f"{answer.role} of {answer.vendor} {answer.sha256[:16]}… is trusted.",
        back="/trust",
        dangerous=True,
    )


@page.act("/certificates/<sha256>/distrust", fresh=True)
def distrust(sha256: str) -> Act:
    """Distrust a certificate at once."""
    found = api().trusted_certificate(sha256)
    return Act(
        title=f"Distrust {name_of(found.subject)}",
        button="Distrust it",
        will=[
            "Nothing that it signed counts any more, from this moment on; one operator is enough.",
            "Every machine that it vouched for falls to the level of trust on first use at once.",
            "Trusting it again may need the votes of several people.",
        ],
        facts=_facts(found),
        fields=[Field(name="reason", label="Reason", needed=True)],
        typed=found.sha256[:8],
        dangerous=True,
        do=lambda client, filled: client.distrust_certificate(sha256, filled["reason"]),
        did=lambda answer: f"{answer.role} of {answer.vendor} {answer.sha256[:16]}… is distrusted.",
        back=f"/trust/certificates/{sha256}",
    )


@page.act("/certificates/<sha256>/restore", fresh=True)
def restore(sha256: str) -> Act:
    """Trust a distrusted certificate again."""
    found = api().trusted_certificate(sha256)
    return Act(
        title=f"Trust {name_of(found.subject)} again",
        button="Trust it again",
        will=[
            "What it signed counts again; machines rise again when they attest next.",
            "Where dual control asks for several people this is your vote.",
        ],
        facts=[*_facts(found), ("Distrusted because", found.reason or "nobody said")],
        fields=[Field(name="reason", label="Reason", needed=True)],
        do=lambda client, filled: client.restore_certificate(sha256, filled["reason"]),
        did=lambda answer: f"{answer.role} of {answer.vendor} {answer.sha256[:16]}… is trusted again.",
        back=f"/trust/certificates/{sha256}",
    )


@page.get("/verify")
@needs("act")
def verify_form() -> Response:
    """Ask for an EK certificate."""
    return render("trust/verify.html", verdict=None)


@page.post("/verify")
@needs("act")
def verify() -> Response:
    """Show what the bundle says of an EK certificate; nothing is stored."""
    try:
        der = read_certificate(sent_bytes())
        verdict = api().verify_ek_certificate(b64encode(der))
    except (BundleInvalid, MalformedEvidence) as e:
        return render("trust/verify.html", 422, verdict=None, fault=clean(str(e)))
    return render("trust/verify.html", verdict=verdict, sha256=hashlib.sha256(der).hexdigest())


@page.act("/collateral/refresh")
def refresh() -> Act:
    """Ask vendors again."""
    return Act(
        title="Ask vendors for collateral again",
        button="Ask",
        will=[
            "The service asks the vendors of confidential hardware for everything that it keeps.",
            "What comes is verified; what does not verify is not kept.",
        ],
        do=lambda client, _: client.refresh_collateral(),
        did=lambda answer: (
            f"Vendors are asked for {answer.asked} pieces."
            if answer.fetching
            else "This service asks nobody: carry collateral to it with `attestation collateral import`."
        ),
        back="/trust?tab=collateral",
    )


@page.get("/collateral/import")
@needs("act")
def import_form() -> Response:
    """Ask for an archive."""
    return render("trust/import.html", found=None)


@page.post("/collateral/import")
@needs("act")
def import_() -> Response:
    """Have the service keep what an archive holds, and tell what became of each piece."""
    file = request.files.get("file")
    entries: list[int] = []
    client = api(Acts(on_entry=entries.append))
    found = CollateralImported(stored=[], older=[], refused=[])
    try:
        for some in batches(read_archive(b"" if file is None else file.read(MAX_ARCHIVE_BYTES + 1))):
            answer = client.import_collateral([{"name": n, "data": b64encode(data)} for n, data in some])
            found = CollateralImported(
                stored=[*found.stored, *answer.stored],
                older=[*found.older, *answer.older],
                refused=[*found.refused, *answer.refused],
            )
    except (CollateralInvalid, RequestInvalid) as e:
        return render("trust/import.html", 422, found=found, fault=clean(str(e)), entries=entries)
    return render("trust/import.html", found=found, entries=entries)


def sent_bytes() -> bytes:
    """Return the certificate that a form brought: a file, or text.

    Raises:
        BundleInvalid: Neither, or too long.
    """
    file = request.files.get("file")
    data = file.read(MOST_BYTES + 1) if file is not None else b""
    data = data or request.form.get("pem", "").strip().encode()
    if not data:
        raise BundleInvalid("choose a file, or paste the certificate")
    if len(data) > MOST_BYTES:
        raise BundleInvalid(f"longer than {MOST_BYTES} bytes: this takes one certificate")
    return data


def read_certificate(data: bytes) -> bytes:
    """Return the DER of the one certificate in *data*, DER or PEM.

    Raises:
        BundleInvalid: There is none that can be read.
    """
    try:
        return ek_certificate.parse(data).der
    except MalformedEvidence as e:
        raise BundleInvalid(f"no certificate can be read there: {e}") from e


def name_of(subject: str) -> str:
    """Return the common name in *subject*; all of it where there is none."""
    found = COMMON_NAME.search(subject)
    return found[1] if found else subject


def _facts(found: TrustCertificateDetail) -> Sequence[tuple[str, str]]:
    return [
        ("SHA-256", found.sha256),
        ("Vendor", found.vendor),
        ("Role", found.role),
        ("Subject", found.subject),
    ]


def _count(bundle: TrustBundleDetail, role: str) -> int:
    return sum((c.role, c.status) == (role, "active") for c in bundle.certificates)


def _unknown() -> Response:
    """Show issuers that the bundle does not hold, as machines that wait name them."""
    client = api()
    after = request.args.get("after")
    seen: dict[tuple[str, str, str], Seen] = {}
    looked = 0
    for _ in range(MOST_PAGES):
        found = client.whole_page(OperatorAPI.unknown_issuers, after, page_size=PAGE_MACHINES)
        looked += found.looked_at
        for each in found.items:
            key = (each.issuer, each.claimed_vendor, each.role)
            names = dict(zip(("issuer", "vendor", "role"), key, strict=True))
            seen.setdefault(key, Seen(**names, machines=[])).machines.append(
                (each.machine_id, called_by(each.hw_serial, each.machine_id))
            )
        after = found.next_cursor
        if after is None:
            break
    return render(
        "trust/list.html",
        tabs=TABS,
        tab="unknown",
        seen=sorted(seen.values(), key=lambda s: -len(s.machines)),
        most_named=MOST_NAMED,
        looked=looked,
        more=None if after is None else address("/trust", {}, tab="unknown", after=after),
        verifying=client.trust_bundle().verifying,
    )


def _collateral() -> Response:
    rows, cursor = api().one_page(OperatorAPI.collateral, request.args.get("after"), page_size=50)
    shown = table(COLLATERAL, rows, cursor=cursor, paged=True)
    return render("trust/list.html", tabs=TABS, tab="collateral", shown=shown)


def _firmware() -> Response:
    found = api().advisories()
    return render(
        "trust/list.html",
        tabs=TABS,
        tab="firmware",
        shown=table(ADVISORIES, found.advisories, by="vendor"),
        sha256=found.sha256,
        met=address("/machines", {}, where="isnotempty(firmware_blocked)"),
    )


def holds(found: object) -> Badge:
    """Return whether a piece of collateral holds now."""
    if getattr(found, "current", False):
        return Badge(look=Look.GOOD, text="holds")
    if getattr(found, "expires_at", None) is not None:
        return Badge(look=Look.STALE, text="expired")
    return Badge(look=Look.UNKNOWN, text="missing")


STATES: Final = {
    "active": Badge(look=Look.GOOD, text="trusted"),
    "distrusted": Badge(look=Look.BAD, text="distrusted"),
}
page.add_app_template_filter(name_of, "common_name")
page.add_app_template_filter(holds, "holds")
page.add_app_template_filter(lambda word: STATES.get(word), "trust_state")
