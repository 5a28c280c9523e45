"""The zoo of EK certificates: every entry is judged as it expects, by the whole way from NV to the anchor."""

from __future__ import annotations

import json
import time
from functools import cache
from pathlib import Path

import pytest

from attestation.endorsements.certificate import parse_certificate
from attestation.endorsements.path import CertificateIndex, Path as Found, SentIssuers, build_path
from attestation.errors import EKCertificateRejected, EKTemplateRejected, MalformedEvidence
from attestation.evidence import ek_certificate
from attestation.testing import ek_zoo
from attestation.testing.certificates import Defect, Quirk
from attestation.testing.ek_zoo import CADefect, CAQuirk, EKDefect, Zoo, ZooEntry
from attestation.tpm import match_ek_template, parse_public

SEED = 1


@cache
def zoo() -> Zoo:
    """Return the zoo of these tests."""
    return Zoo(SEED)


@cache
def indexes() -> tuple[CertificateIndex, CertificateIndex]:
    """Return what a verifier holds: anchors and intermediates."""
    anchors, others = (
        CertificateIndex(parse_certificate(ca.der) for ca in zoo().held if ca.role == role)
        for role in ("anchor", "intermediate")
    )
    return anchors, others


@cache
def vendors() -> dict[str, str]:
    """Return the vendor of each anchor, by SHA-256."""
    return {parse_certificate(ca.der).sha256: ca.vendor for ca in zoo().held}


def judge(entry: ZooEntry) -> str:
    """Return which check refuses *entry*; empty where none does."""
    try:
        ek = parse_public(entry.ek_public)
        match_ek_template(ek)
    except EKTemplateRejected:
        return "template"
    try:
        certificate = ek_certificate.parse(entry.certificate)
        claims = ek_certificate.verify(certificate, ek=ek, at=ek_zoo.AT, allow_simulator=False)
    except (EKCertificateRejected, MalformedEvidence):
        return "certificate"
    anchors, others = indexes()
    found = build_path(
        certificate.certificate,
        anchors=anchors,
        intermediates=[others, SentIssuers(entry.chain)],
        at=ek_zoo.AT,
        sha1_allowed=entry.sha1_allowed,
    )
    if not isinstance(found, Found):
        return "path"
    return "" if vendors()[found.anchor.sha256] == claims.vendor else "vendor"


@cache
def entries(vendor: str) -> tuple[ZooEntry, ...]:
    """Return all entries of *vendor*."""
    return tuple(zoo().entries(vendors=[vendor]))


@pytest.mark.parametrize("vendor", zoo().vendors)
def test_every_entry_is_judged_as_it_expects(vendor: str) -> None:
    """Vendor by vendor: what is odd is accepted, what is wrong is refused by the check that must notice it."""
    wrong = {}
    for entry in entries(vendor):
        found = judge(entry)
        good = found == entry.refused_by or (entry.refused_by == "any" and found != "")
        if not good or entry.accepted != (found == ""):
            wrong[entry.name] = f"{found or 'accepted'}, {entry.refused_by or 'accepted'} expected"
    assert not wrong
