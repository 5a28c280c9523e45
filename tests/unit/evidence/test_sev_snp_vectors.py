"""Reports that processors made: what each proves, and what the defaults say of it (CONFIDENTIAL.md §17)."""

from __future__ import annotations

import base64
import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from attestation import tee_bundle
from attestation.appraisal.sev_snp.judge import REVOCATION, judge_claims, judge_revocation
from attestation.endorsements.amd import Endorsements, parse_vek, verify_vek
from attestation.endorsements.amd.products import Product
from attestation.errors import HardwareEvidenceRejected
from attestation.evidence import sev_snp
from attestation.evidence.sev_snp import SevSnpClaims
from attestation.reference import IDENTITY_ONLY
from attestation.results import Code, Undecided
from tests.fixtures.effort import often
from tests.vectors.confidential import SHARED, checks_by_name, needs_vectors, vector, vectors

pytestmark = needs_vectors
ENDORSEMENTS = Endorsements(lines=tee_bundle.load().amd)
FLAGS = {"debug": 19, "migrate_ma": 18, "smt_allowed": 16}


def members(entry: dict[str, Any]) -> dict[str, bytes]:
    """Return the members of the item in which a guest would send the files of a vector."""
    report, *certificate = ((SHARED / name).read_bytes() for name in entry["files"])
    name = entry["files"][0]
    if name.endswith(".json"):
        told = json.loads(report)
        decoded = {
            blob: base64.urlsafe_b64decode(told[blob] + "=" * (-len(told[blob]) % 4))
            for blob in ("outblob", "auxblob")
        }
        return {"report": decoded["outblob"], "cert_table": decoded["auxblob"]}
    if name.endswith(".hex"):
        report = bytes.fromhex(report.decode())
    return {"report": report, "vek": certificate[0]}


def at(entry: dict[str, Any]) -> datetime:
    """Return the clock of a vector."""
    return datetime.fromtimestamp(entry["now"], UTC)


def verified(entry: dict[str, Any]) -> SevSnpClaims:
    """Return what its report proves, over its own report data."""
    evidence = sev_snp.parse(members(entry))
    return sev_snp.verify(
        evidence, endorsements=ENDORSEMENTS, report_data=evidence.report.report_data, at=at(entry)
    )


def codes(entry: dict[str, Any]) -> set[str]:
    """Return the codes of what fails of it: refused, or judged by the defaults of every policy."""
    try:
        outcomes, _ = judge_claims(verified(entry), IDENTITY_ONLY)
    except HardwareEvidenceRejected as refused:
        outcomes = list(refused.failed)
    known = checks_by_name()
    return {str(known[each.check].code) for each in outcomes if type(each).__name__ == "Failed"}


@pytest.mark.parametrize("name", [each["id"] for each in vectors("sev-snp-report")])
def test_each_vector_comes_out_as_it_was_measured(name: str) -> None:
    """The codes of `expected.json`, whose note says under which rules."""
    entry = vector(name)
    assert codes(entry) == set(entry["expected"]["codes_default_policy"])


@pytest.mark.parametrize("name", [each["id"] for each in vectors("sev-snp-report") if "fields" in each])
def test_each_field_is_read_as_another_reader_read_it(name: str) -> None:
    """The fields of `expected.json` are of an independent parser."""
    entry = vector(name)
    evidence = sev_snp.parse(members(entry))
    report, told = evidence.report, entry["fields"]
    for field, value in told.items():
        if field in FLAGS:
            assert report.allows(FLAGS[field]) is value, field
        elif field in ("policy", "platform_info"):
            assert getattr(report, field) == int(value, 16), field
        elif field == "signing_key":
            assert report.signing_key == {"vcek": 0, "vlek": 1}[value]
        elif field == "cpuid_fms":
            found = (report.cpuid_family, report.cpuid_model, report.cpuid_stepping)
            assert bytes(found).hex() == value
        elif field == "chip_id":
            assert report.chip_id.hex().startswith(value)
        elif not field.endswith("_tcb"):
            found = getattr(report, field)
            assert (found.hex() if isinstance(found, bytes) else found) == value, field
    if entry["expected"]["report_signature"]:
        claims = verified(entry)
        for field in ("reported_tcb", "current_tcb", "committed_tcb", "launch_tcb"):
            assert getattr(claims, field.removesuffix("_tcb")).components() == told[field], field
        assert str(claims.vek.tcb) == str(claims.reported)


@pytest.mark.parametrize("name", [each["id"] for each in vectors() if "vek" in each])
def test_each_vek_is_read_as_another_reader_read_it(name: str) -> None:
    """HWID raw or wrapped, serial 0, product with its stepping."""
    entry = vector(name)
    told, sent = entry["vek"], members(entry) if entry["kind"] == "sev-snp-report" else None
    data = sent.get("vek") if sent is not None else (SHARED / entry["files"][0]).read_bytes()
    if data is None:
        data = sev_snp.parse(members(entry)).vek
    assert data is not None
    vek = parse_vek(data)
    assert vek.certificate.serial == told["serial"]
    hwid = vek.hwid.hex() if vek.hwid is not None else None
    assert hwid == told["hwid"] or "0440" + str(hwid) == told["hwid"]
    assert vek.csp_id == told["csp_id"]
    assert vek.product == re.match(r"[A-Za-z]+", told["product"])[0]  # type: ignore[index]  # it matches, or the test fails
    assert vek.struct_version == told["struct_version"]


def test_a_turin_vcek_without_a_report() -> None:
    """Its chain leads to the pinned Turin certificates."""
    entry = vector("snp-turin-vcek-only")
    vek = parse_vek((SHARED / entry["files"][0]).read_bytes())
    assert verify_vek(vek, ENDORSEMENTS.lines[Product.TURIN], at(entry)) is None


def test_the_pins_are_the_published_ones() -> None:
    """What is shipped is what stands beside the vectors."""
    for line in ("milan", "genoa", "turin"):
        text = (SHARED / f"roots/amd-{line}-ask-ark-asvk.pem").read_text(encoding="ascii")
        blocks = re.findall(r"BEGIN CERTIFICATE-----(.*?)-----END", text, re.DOTALL)
        known = ENDORSEMENTS.lines[Product(line.capitalize())]
        found = [base64.b64decode(block) for block in blocks]
        assert found == [known.ask.der, known.ark.der, known.asvk.der]
    assert Path(str(tee_bundle.__file__)).with_name("NOTICE").is_file()


GOOD = [each["id"] for each in vectors("sev-snp-report") if each["expected"].get("chain")]


@pytest.mark.parametrize("name", GOOD)
def test_where_revocation_is_required_it_is_missing(name: str) -> None:
    """No list of AMD stands beside the vectors: undecided, and the line is named."""
    claims = verified(vector(name))
    (outcome,) = judge_revocation(claims, IDENTITY_ONLY)
    assert isinstance(outcome, Undecided)
    assert claims.product in outcome.reason
    assert REVOCATION.code is Code.REVOKED


@pytest.mark.parametrize("name", GOOD)
def test_no_flipped_bit_of_a_genuine_report_is_accepted(name: str) -> None:
    """Of what is signed, the signature and what must be zero; every bit where there is time."""
    entry = vector(name)
    sent = members(entry)
    whole = sent["report"]
    told = sev_snp.parse(sent).report.report_data
    for place in range(0, len(whole) * 8, often(133, 1)):
        changed = bytearray(whole)
        changed[place // 8] ^= 1 << place % 8
        with pytest.raises(HardwareEvidenceRejected) as refused:
            sev_snp.verify(
                sev_snp.parse({**sent, "report": bytes(changed)}),
                endorsements=ENDORSEMENTS,
                report_data=told,
                at=at(entry),
            )
        found = {each.check for each in refused.value.failed}
        assert "snp-signature" in found if place // 8 < 0x2A0 else found & {"snp-signature", "snp-report"}
