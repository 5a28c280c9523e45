"""Quotes that platforms of Intel made: what each proves, and what the defaults say of it (CONFIDENTIAL.md §17)."""

from __future__ import annotations

from typing import Any

import pytest

from attestation.errors import HardwareEvidenceRejected, MalformedEvidence
from attestation.evidence.dcap import EnclaveReport, TDReport, parse_quote, wanted
from tests.fixtures.effort import often
from tests.vectors.confidential import needs_vectors, vector, vectors
from tests.vectors.confidential.dcap import (
    KINDS,
    at,
    codes,
    collateral_json,
    collateral_of,
    expected,
    item,
    outcomes,
    quote_of,
    root,
)

pytestmark = needs_vectors
QUOTES = [each["id"] for kind in ("tdx-quote", "sgx-quote") for each in vectors(kind)]
FIELDS = {
    "mr_seam": "mr_seam",
    "td_attributes": "td_attributes",
    "tee_tcb_svn": "tee_tcb_svn",
    "xfam": "xfam",
    "mr_td": "mr_td",
    "mr_config_id": "mr_config_id",
    "mr_owner": "mr_owner",
    "mr_owner_config": "mr_owner_config",
    **{f"rt_mr{i}": f"rtmr{i}" for i in range(4)},
    "report_data": "report_data",
    "mr_enclave": "mr_enclave",
    "mr_signer": "mr_signer",
    "attributes": "attributes",
}


@pytest.mark.parametrize("name", QUOTES)
@pytest.mark.parametrize("comes", [True, False], ids=["with the evidence", "stored"])
def test_each_vector_comes_out_as_it_was_measured(name: str, comes: bool) -> None:
    """The codes of `expected.json`; status and advisories, where another judge gave them."""
    entry = vector(name)
    kind, quote = KINDS[entry["kind"]], quote_of(entry)
    sent = item(quote, collateral=collateral_json(entry)) if comes else item(quote)
    compared = expected(quote, at(entry), None if comes else collateral_of(entry))
    found = outcomes(kind, sent, compared)
    assert codes(found) == set(entry["expected"]["codes_default_policy"]), found
    told = entry["expected"]
    if "status" in told:
        tcb = kind.verify(kind.parse(sent), compared).tcb
        assert tcb is not None
        assert (tcb.status, list(tcb.advisories)) == (told["status"], told["advisory_ids"])


def has_quote(entry: dict[str, Any]) -> bool:
    """Say whether a vector is a quote of which fields are told."""
    return "fields" in entry and any(file.endswith(".quote.bin") for file in entry["files"])


@pytest.mark.parametrize("name", [each["id"] for each in vectors() if has_quote(each)])
def test_each_field_is_read_as_another_reader_read_it(name: str) -> None:
    """The fields of `expected.json` are of an independent parser."""
    entry = vector(name)
    quote = parse_quote(quote_of(entry))
    fields: dict[str, Any] = dict(entry["fields"])
    key = wanted(quote, root())
    assert key is not None
    assert (key.fmspc, key.ca) == (fields.pop("fmspc").upper(), fields.pop("ca"))
    assert quote.version == fields.pop("version", quote.version)
    assert isinstance(quote.body, TDReport | EnclaveReport)
    for field, value in fields.items():
        assert getattr(quote.body, FIELDS[field]).hex() == value, field


def test_a_quote_without_collateral_is_authentic_and_undecided() -> None:
    """Chain and signatures are checked; what is missing is named, with where it is to be had."""
    entry = vector("ccel-gce-cos113")
    quote = quote_of(entry)
    compared = expected(quote, at(vector("tdx-v4-uptodate")), None)
    found = outcomes(KINDS["tdx-quote"], item(quote), compared)
    assert codes(found) == {"collateral-unavailable"}
    words = "; ".join(str(each) for each in found)
    assert "/tdx/certification/v4/tcb?fmspc=00806F050000" in words
    assert "/sgx/certification/v4/pckcrl?ca=platform" in words


@pytest.mark.parametrize("name", QUOTES)
def test_no_flipped_bit_of_a_genuine_quote_is_accepted(name: str) -> None:
    """Of what is signed; every bit where there is time."""
    entry = vector(name)
    kind, quote = KINDS[entry["kind"]], quote_of(entry)
    compared = expected(quote, at(entry), collateral_of(entry))
    for place in range(0, len(parse_quote(quote).signed) * 8, often(257, 1)):
        changed = bytearray(quote)
        changed[place // 8] ^= 1 << place % 8
        with pytest.raises((MalformedEvidence, HardwareEvidenceRejected)):
            kind.verify(kind.parse(item(bytes(changed))), compared)
