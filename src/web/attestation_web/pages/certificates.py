"""Certificates: what the CAs have issued, what ends soon, and the CAs' own keys with their rotation."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Final, get_args

from flask import request

from attestation.api import CertificateRevokeRequest, RefusedKeyRequest, RotationRequest
from attestation.api.operations import OperatorAPI
from attestation.client.errors import APIError
from attestation.errors import CANotConfigured
from attestation.pki.profiles import KEY_TIERS
from attestation.wire import b64decode, pem
from attestation_web.page import Act, Badge, Column, Field, Page, api, needs, now, render, table
from attestation_web.page.badges import Look

if TYPE_CHECKING:
    from werkzeug.wrappers import Response

    from attestation.api import CADetail, CertificateDetail, IssuerDetail

page: Final = Page(__name__, title="Certificates", place=60)

TABS: Final = (
    ("Issued", "issued"),
    ("Ending soon", "ending"),
    ("CA keys", "ca"),
    ("People", "people"),
    ("Refused keys", "refused"),
)
STATES: Final = ("issued", "held", "revoked", "reserved", "void")
REASONS: Final[tuple[str, ...]] = get_args(CertificateRevokeRequest.model_fields["reason"].annotation)
PAGE_ROWS: Final = 50
SOON: Final = timedelta(days=30)

STATE_BADGES: Final[Mapping[str, Badge]] = {
    "issued": Badge(look=Look.GOOD, text="issued"),
    "held": Badge(look=Look.STALE, text="held", title="Suspended while its machine is locked"),
    "revoked": Badge(look=Look.BAD, text="revoked", title="Ended for good"),
    "reserved": Badge(look=Look.WAITS, text="being signed"),
    "void": Badge(look=Look.PLAIN, text="void", title="It reached nobody"),
    "active": Badge(look=Look.GOOD, text="active", title="It signs"),
    "next": Badge(look=Look.WAITS, text="next", title="Published; it signs nothing yet"),
    "retiring": Badge(
        look=Look.STALE, text="retiring", title="It signs revocation lists and OCSP answers only"
    ),
    "retired": Badge(look=Look.PLAIN, text="retired", title="It signs nothing any more"),
    "abandoned": Badge(look=Look.PLAIN, text="abandoned", title="It never signed for anybody"),
}
STEPS: Final[Mapping[str, tuple[str, str, str]]] = {
    "prepare": (
        "Make the next CA key",
        "Make it",
        "The next key is made and published. It signs nothing yet.",
    ),
    "activate": (
        "Let the next CA key sign",
        "Activate",
        "The next key signs from now on; the old one signs revocation lists and OCSP answers only.",
    ),
    "rollback": (
        "Undo the last step",
        "Roll back",
        "The next key is given up; or, where it signs already, it and the old one change places again.",
    ),
    "retire": (
        "End the old CA key",
        "Retire it",
        "The old key signs nothing any more; what it signed ends with it.",
    ),
}
CERTIFICATES: Final = (
    Column(name="who", title="For"),
    Column(name="profile", title="Kind"),
    Column(name="state", title="State"),
    Column(name="until", title="Valid until", sort=lambda c: c.not_after),
    Column(name="issued", title="Issued"),
    Column(name="serial", title="Serial"),
    Column(name="tier", title="Key lives", shown=False),
    Column(name="assurance", title="Assurance", shown=False),
    Column(name="requester", title="Asked for by", shown=False),
)
PEOPLE: Final = (
    Column(name="name", title="Name"),
    Column(name="duty", title="Duty"),
    Column(name="state", title="State"),
    Column(name="until", title="Valid until"),
    Column(name="requester", title="Asked for by"),
    Column(name="serial", title="Serial"),
)
REFUSED: Final = (
    Column(name="key", title="SHA-256 of the key"),
    Column(name="why", title="Why"),
    Column(name="by", title="By"),
    Column(name="at", title="Since"),
)


@page.get("")
def show() -> Response:
    """Show one part; a service without a CA says so."""
    tab = request.args.get("tab", "issued")
    views = {"ca": _ca, "ending": _ending, "people": _people, "refused": _refused}
    try:
        return views.get(tab, _issued)()
    except APIError as e:
        if not isinstance(e, CANotConfigured):
            raise
        return render("certificates/list.html", tabs=TABS, tab="none")


@page.get("/<serial>")
def one(serial: str) -> Response:
    """Show one certificate."""
    found = api().certificate(serial)
    text = (
        None if found.certificate is None else pem("CERTIFICATE", b64decode(found.certificate, "certificate"))
    )
    return render("certificates/one.html", certificate=found, text=text, tier=tier_of(found))


@page.get("/ca/check")
def check() -> Response:
    """Let the service try every key of the CAs."""
    return render("certificates/check.html", found=api().ca_check())


@page.act("/<serial>/revoke", fresh=True)
def revoke(serial: str) -> Act:
    """Revoke one certificate for good."""
    found = api().certificate(serial)
    name = name_of(found.subject)
    return Act(
        title=f"Revoke the certificate of {name}",
        button="Revoke it",
        will=[
            "It is revoked for good and at once: the next list and every OCSP answer say so.",
            "Its machine is not locked by that, and may be given another one. To stop the machine, lock or revoke it.",
        ],
        facts=[
            ("Serial", serial),
            ("Subject", found.subject),
            ("Kind", found.profile),
            ("Valid until", f"{found.not_after:%Y-%m-%d %H:%M} UTC"),
        ],
        fields=[
            Field(
                name="reason",
                label="Reason",
                kind="choice",
                choices=[(word, words(word)) for word in REASONS],
                value="unspecified",
                help="It stands in the revocation list.",
            ),
            Field(name="note", label="In words", help="Kept in the audit log."),
        ],
        typed=name,
        dangerous=True,
        do=lambda client, filled: client.revoke_certificate(
            serial, CertificateRevokeRequest.model_validate(dict(filled))
        ),
        did=lambda answer: f"The certificate {answer.serial[:12]}… is revoked.",
        back=f"/certificates/{serial}",
    )


@page.act("/people/<serial>/revoke", fresh=True)
def revoke_of_person(serial: str) -> Act:
    """Take a person's certificate back."""
    found = api().certificate(serial)
    name = name_of(found.subject)
    return Act(
        title=f"Take the certificate of {name} back",
        button="Revoke it",
        will=[f"{name} is let in with it no more, from this moment on, and for good."],
        facts=[("Serial", serial), ("Subject", found.subject)],
        fields=[Field(name="note", label="In words", help="Kept in the audit log.")],
        typed=name,
        dangerous=True,
        do=lambda client, filled: client.revoke_operator_certificate(
            serial, CertificateRevokeRequest.model_validate(dict(filled))
        ),
        did=lambda answer: f"The certificate of {answer.name} is revoked.",
        back="/certificates?tab=people",
    )


@page.act("/ca/<purpose>/<step>", fresh=True)
def rotate(purpose: str, step: str) -> Act:
    """Take a step of a rotation."""
    title, button, will = STEPS.get(step, ("A step that there is not", "Ask", "The service refuses it."))
    return Act(
        title=f"{title}, of {purpose}s",
        button=button,
        will=[will, "Where dual control asks for several people this is your vote."],
        fields=[
            Field(name="reason", label="Reason", needed=True, help="It stands in the audit log."),
            Field(
                name="force",
                label="Do not wait for those who rely on it",
                kind="check",
                help="Who does not know the next key yet, or still holds a certificate of the old one, is cut off.",
            ),
        ],
        typed=purpose if step in ("retire", "rollback") else None,
        dangerous=step in ("retire", "rollback"),
        do=lambda client, filled: client.rotate_ca(
            RotationRequest.model_validate(
                {"step": step, "purpose": purpose, "reason": filled["reason"], "force": "force" in filled}
            )
        ),
        did=lambda _: f"Done: {will}",
        back="/certificates?tab=ca",
    )


@page.act("/refuse", fresh=True)
def refuse() -> Act:
    """Let a key never get a certificate again."""
    return Act(
        title="Refuse a key for ever",
        button="Refuse it",
        will=[
            "This public key never gets a certificate again; those that it has are revoked at once.",
            "There is no way back. It is meant for a key that somebody else may hold.",
        ],
        fields=[
            Field(
                name="spki_sha256",
                label="SHA-256 of the key",
                needed=True,
                help="64 hex, of SubjectPublicKeyInfo",
            ),
            Field(name="reason", label="Reason", needed=True),
        ],
        typed="refuse",
        dangerous=True,
        do=lambda client, filled: client.refuse_key(RefusedKeyRequest.model_validate(dict(filled))),
        did=lambda answer: f"The key {answer.spki_sha256[:16]}… is refused for ever.",
        back="/certificates?tab=refused",
    )


def name_of(subject: str) -> str:
    """Return the common name in a name of RFC 4514, or all of it."""
    found = re.search(r"(?:^|,)CN=((?:[^,\\]|\\.)+)", subject)
    return re.sub(r"\\(.)", r"\1", found[1]) if found else subject


def words(reason: str) -> str:
    """Return a word of RFC 5280 as people write it."""
    return re.sub(r"(?<=[a-z])([A-Z])", r" \1", reason).lower()


def tier_of(found: CertificateDetail) -> str | None:
    """Return in words where the key of a certificate lives."""
    return None if found.key_tier is None else KEY_TIERS.get(found.key_tier, str(found.key_tier))


def _issued() -> Response:
    state = request.args.get("state", "")
    rows, cursor = api().one_page(
        OperatorAPI.certificates,
        request.args.get("after"),
        machine_id=request.args.get("machine_id") or None,
        state=state if state in STATES else None,
        page_size=PAGE_ROWS,
    )
    shown = table(CERTIFICATES, rows, cursor=cursor, paged=True)
    return render("certificates/list.html", tabs=TABS, tab="issued", shown=shown, states=STATES, state=state)


def _ending() -> Response:
    at = now()
    rows, cursor = api().one_page(
        OperatorAPI.certificates,
        request.args.get("after"),
        state="issued",
        ends_from=at,
        ends_before=at + SOON,
        sort="not_after",
        page_size=PAGE_ROWS,
    )
    shown = table(CERTIFICATES, rows, cursor=cursor, paged=True)
    return render("certificates/list.html", tabs=TABS, tab="ending", shown=shown, days=SOON.days)


def _people() -> Response:
    rows, cursor = api().one_page(
        OperatorAPI.operator_certificates, request.args.get("after"), page_size=PAGE_ROWS
    )
    shown = table(PEOPLE, rows, cursor=cursor, paged=True)
    return render("certificates/list.html", tabs=TABS, tab="people", shown=shown)


def _refused() -> Response:
    rows, cursor = api().one_page(OperatorAPI.refused_keys, request.args.get("after"), page_size=PAGE_ROWS)
    shown = table(REFUSED, rows, cursor=cursor, paged=True)
    return render("certificates/list.html", tabs=TABS, tab="refused", shown=shown)


def _ca() -> Response:
    detail = api().ca()
    purposes = [(purpose, *_stands(detail, purpose)) for purpose in ("machine", "operator")]
    return render(
        "certificates/list.html", tabs=TABS, tab="ca", purposes=[each for each in purposes if each[1]]
    )


def _stands(detail: CADetail, purpose: str) -> tuple[list[IssuerDetail], Sequence[tuple[str, str]]]:
    """Return the keys of a CA, newest first, and the steps of a rotation that are possible now."""
    keys = [issuer for issuer in reversed(detail.issuers) if issuer.purpose == purpose]
    states = {issuer.state for issuer in keys}
    steps = []
    if "next" in states:
        steps = ["activate", "rollback"]
    elif "retiring" in states:
        steps = ["retire", "rollback"]
    elif "active" in states:
        steps = ["prepare"]
    return keys, [(step, STEPS[step][0]) for step in steps]


@page.get("/ca/<issuer_id>.pem")
@needs("read")
def ca_certificate(issuer_id: str) -> Response:
    """Show the certificate of a CA key as text."""
    found = next((i for i in api().ca().issuers if i.issuer_id == issuer_id), None)
    text = None
    if found is not None and found.certificate is not None:
        text = pem("CERTIFICATE", b64decode(found.certificate, "certificate"))
    return render("certificates/ca_one.html", issuer=found, text=text, issuer_id=issuer_id)


page.add_app_template_filter(lambda word: STATE_BADGES.get(word), "certificate_state")
page.add_app_template_filter(name_of, "name_of")
page.add_app_template_filter(tier_of, "key_tier")
