"""The zoo of EK certificates: every entry is judged as it expects, by the whole way from NV to the anchor."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
from click.testing import CliRunner

from attestation.endorsements.bundle import Role, TrustBundle, entry_of
from attestation.endorsements.certificate import parse_certificate
from attestation.endorsements.path import CertificateIndex, SentIssuers, build_path
from attestation.endorsements.path import Path as Found
from attestation.errors import EKCertificateRejected, EKTemplateRejected, MalformedEvidence
from attestation.evidence import ek_certificate
from attestation.tpm import match_ek_template, parse_public
from attestation_cli.main import cli
from attestation_testing import ek_zoo
from attestation_testing.certificates import Defect, Quirk
from attestation_testing.command import VENDORS
from attestation_testing.ek_zoo import CADefect, CAQuirk, EKDefect, Zoo, ZooEntry

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


@pytest.mark.threat("T59")
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


@pytest.mark.parametrize("vendor", zoo().vendors)
def test_a_trust_bundle_judges_chains_as_the_zoo_expects(vendor: str) -> None:
    """What the service asks: good ones are vouched for by their maker; no path or another maker is refused."""
    mine = [e for e in entries(vendor) if e.template in ("L-1", "L-2")]
    bundle = TrustBundle(
        [
            (
                entry_of(
                    ca.der,
                    role=Role(ca.role),
                    vendor=ca.vendor,
                    retrieved=ek_zoo.AT.date(),
                    evidence="made for a test",
                ),
                ca.der,
            )
            for ca in zoo().held
        ],
        "0" * 64,
        sha1_allowed={sha256 for e in mine for sha256 in e.sha1_allowed},
    )
    for entry in mine:
        try:
            der = ek_certificate.parse(entry.certificate).der
        except MalformedEvidence:
            continue
        found = bundle.verify(der, entry.chain, at=ek_zoo.AT)
        if entry.accepted:
            assert (found.ok, found.vendor) == (True, vendor), f"{entry.name}: {found.reason}"
        elif entry.refused_by in ("path", "vendor", "any"):
            assert not found.ok, entry.name
            assert found.reason


def test_every_quirk_and_every_defect_of_the_matrix_is_there() -> None:
    """Vendor by vendor, template by template; N47 to N60 without a gap."""
    for vendor in zoo().vendors:
        mine = entries(vendor)
        assert len({e.name for e in mine}) == len(mine)
        assert {e.template for e in mine} == set(ek_zoo.TEMPLATES)
        for template, has_rsa in (("L-1", True), ("L-2", False)):
            there = {e.quirk for e in mine if e.template == template and e.accepted}
            left_out = {Quirk.NULL_ECDSA_PARAMETERS} | (set() if has_rsa else {Quirk.OAEP_SPKI})
            assert {*Quirk, *CAQuirk} - there <= left_out
            wrong = {e.defect for e in mine if e.template == template}
            assert {*Defect, *EKDefect, *CADefect, "bit"} - wrong <= {CADefect.THOUSAND}
    everything = [e for vendor in zoo().vendors for e in entries(vendor)]
    assert {e.number for e in everything} - {None} == {f"N{n}" for n in range(47, 61)}
    assert {e.quirk for e in everything if e.number == "N58"} >= {*Quirk, *CAQuirk}
    assert Quirk.NULL_ECDSA_PARAMETERS in {e.quirk for e in everything if e.accepted}
    assert CADefect.THOUSAND in {e.defect for e in everything}


def test_the_hierarchies_have_the_shapes_of_the_real_ones() -> None:
    """Anchors that nobody signed here, two of one name, an unsorted name, intermediates of one TPM only."""
    anchors = [parse_certificate(ca.der) for ca in zoo().held if ca.role == "anchor"]
    assert sum(not a.self_issued for a in anchors) >= 3
    names = [a.subject_key for a in anchors]
    same = [a for a in anchors if names.count(a.subject_key) == 2]
    assert {a.key[:3] for a in same} == {"rsa", "ec-"}
    assert any("not sorted" in text for a in anchors for text in a.anomalies)
    assert len(zoo().vendors["INTC"].sent) == 3
    strings = [
        parse_certificate(ca.der) for ca in zoo().held if ca.vendor == "STM" and ca.role == "intermediate"
    ]
    assert any(
        c.issuer_name.text != a.subject and c.issuer_key == a.subject_key for c in strings for a in anchors
    )


def test_the_same_seed_is_the_same_zoo() -> None:
    """To the last byte, and another seed is another one; filters change nothing of what is left."""
    again = Zoo(SEED)
    assert again.held == zoo().held
    some = [e for e in entries("NTC") if e.template == "H-2"]
    assert list(again.entries(vendors=["NTC"], templates=["H-2"])) == some
    good = [e for e in entries("NTC") if e.template == "L-2" and e.accepted]
    assert list(again.entries(vendors=["NTC"], templates=["L-2"], defects=False)) == good
    other = Zoo(SEED + 1)
    assert {ca.der for ca in other.held}.isdisjoint(ca.der for ca in zoo().held)


def test_the_ek_has_its_private_half() -> None:
    """Who wants to activate with an EK of the zoo finds the key of its certificate."""
    for template in ek_zoo.TEMPLATES:
        public, key = zoo().ek(template)
        assert public.key().public_numbers() == key.public_key().public_numbers()
        assert match_ek_template(public).name == template


def test_the_command_writes_what_the_zoo_says(tmp_path: Path) -> None:
    """Files and expectations as the entries have them; a folder with something in it is left alone."""
    folder = tmp_path / "zoo"
    runner = CliRunner()
    words = ["dev", "ek-zoo", str(folder), "--seed", str(SEED), "--vendor", "NTC", "--template", "L-2"]
    done = runner.invoke(cli, words)
    assert done.exit_code == 0, done.output
    expected = json.loads((folder / "expected.json").read_text())
    assert (expected["format"], expected["seed"], expected["at"]) == (
        "itl-ek-zoo/1",
        SEED,
        "2025-01-01T00:00:00Z",
    )
    mine = {e.name: e for e in entries("NTC") if e.template == "L-2"}
    assert [e["name"] for e in expected["entries"]] == list(mine)
    for written in expected["entries"]:
        entry = mine[written["name"]]
        assert (folder / written["certificate"]).read_bytes() == entry.certificate
        assert (folder / written["ek_public"]).read_bytes() == entry.ek_public
        assert tuple((folder / der).read_bytes() for der in written["chain"]) == entry.chain
        assert written["accepted"] == entry.accepted
        assert written["refused_by"] == (entry.refused_by or None)
    assert {(folder / ca["file"]).read_bytes() for ca in expected["authorities"]} == {
        ca.der for ca in zoo().held
    }
    assert f"{len(mine)} made-up EK certificates" in (folder / "README.md").read_text()
    assert f"{len(mine)} EK certificates" in done.output
    again = runner.invoke(cli, words)
    assert again.exit_code == 2
    assert "not empty" in again.output
    assert runner.invoke(cli, [*words[:2], "/dev/null/zoo", "--good-only", "--vendor", "NTC"]).exit_code == 2


def test_the_vendors_to_choose_from_are_those_of_the_zoo() -> None:
    """The option names them without making a zoo first."""
    assert set(VENDORS) == set(zoo().vendors)
