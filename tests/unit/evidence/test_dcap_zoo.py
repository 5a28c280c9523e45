"""Every status and every defect: ours, and that of an independent judge, dcap-qvl (CONFIDENTIAL.md §17)."""

from __future__ import annotations

from datetime import datetime
from itertools import product

import dcap_qvl
import pytest

from attestation import tee_bundle
from attestation.endorsements.certificate import parse_certificate
from attestation.errors import HardwareEvidenceRejected
from attestation_testing.tee.intel import collateral_json as as_json
from tests.unit.evidence.dcap_zoo import (
    BOTH,
    CONFIG,
    HARDEN,
    OLD,
    OLD_CONFIG,
    PLATFORM,
    RELAUNCH,
    REVOKED,
    UP,
    ZOO,
    Case,
    sgx,
    tdx,
)
from tests.vectors.confidential import needs_vectors, vector, vectors
from tests.vectors.confidential.dcap import (
    KINDS,
    at,
    codes,
    collateral_json,
    expected,
    item,
    outcomes,
    quote_of,
)

ROOT = parse_certificate(PLATFORM.pki.root)


def ours(case: Case) -> tuple[set[str], tuple[str, tuple[str, ...]] | None]:
    """Return the codes under the defaults, and status with advisories."""
    kind, sent = KINDS[f"{case.tee.lower()}-quote"], item(case.quote)
    compared = expected(case.quote, case.at, case.collateral, root=ROOT)
    found = codes(outcomes(kind, sent, compared))
    try:
        tcb = kind.verify(kind.parse(sent), compared).tcb
    except HardwareEvidenceRejected:
        return found, None
    return found, None if tcb is None else (tcb.status.value, tcb.advisories)


def theirs(quote: bytes, collateral: bytes, root: bytes, at: datetime) -> tuple[str, tuple[str, ...]] | str:
    """Return status and advisories as dcap-qvl has them, or why it refuses."""
    told = dcap_qvl.QuoteCollateralV3.from_json(collateral.decode())
    try:
        report = dcap_qvl.verify_with_root_ca(quote, told, root, int(at.timestamp()))
    except ValueError as refused:
        return str(refused)
    return report.status, tuple(sorted(report.advisory_ids))


@pytest.mark.threat("T193", "T194", "T195")
@pytest.mark.parametrize("name", ZOO)
def test_each_case_of_the_zoo(name: str) -> None:
    """Codes under the defaults, status and advisories, as the procedure of §9.3 says."""
    case = ZOO[name]
    told = None if case.status is None else (case.status, case.advisories)
    assert ours(case) == (set(case.codes), told)


DIFFERENT = {
    "no relaunch: the microcode is still old": (
        (RELAUNCH, ("INTEL-SA-2",)),
        "it judges SVN2 by all levels, as Intel's newer library; step 10, as its older one, by the newest",
    ),
    "other PCEID": (("UpToDate", ()), "it compares FMSPC and leaves PCEID out; step 4 wants both"),
    "v5 of SGX": (
        "Verification failed: SGX TEE quote must have version 3",
        "it reads no enclave in a quote of version 5, which §9.1 has",
    ),
}
"""Name -> what dcap-qvl 0.7.0 says, and why it is not what we say. Wherever it refuses, we show a code."""


@pytest.mark.parametrize("name", ZOO)
def test_dcap_qvl_agrees_on_the_zoo(name: str) -> None:
    """Status and advisories; where it refuses, which it does for whatever is not good, we show the code."""
    case = ZOO[name]
    told = theirs(case.quote, as_json(case.collateral), PLATFORM.pki.root, case.at)
    failed, found = ours(case)
    if name in DIFFERENT:
        assert told == DIFFERENT[name][0]
        assert told != found
    elif isinstance(told, str):
        assert failed, told
    else:
        assert (told, failed <= {"tcb-not-allowed"}) == (found, True)


@pytest.mark.threat("T193")
@pytest.mark.parametrize("platform", [UP, HARDEN, CONFIG, BOTH, OLD, OLD_CONFIG, REVOKED])
def test_dcap_qvl_agrees_on_all_statuses_together(platform: str) -> None:
    """Each status of a platform with each of its module and of its quoting enclave; it refuses what is revoked."""
    of_part = (UP, OLD, REVOKED)
    cases = [tdx(platform, *parts) for parts in product(of_part, of_part)]
    cases += [sgx(platform, part) for part in of_part]
    for case in cases:
        told = theirs(case.quote, as_json(case.collateral), PLATFORM.pki.root, case.at)
        _, found = ours(case)
        if isinstance(told, str):
            assert found is not None, told
            assert found[0] == REVOKED, told
        else:
            assert told == found


@needs_vectors
@pytest.mark.parametrize(
    "name", [each["id"] for kind in ("tdx-quote", "sgx-quote") for each in vectors(kind)]
)
def test_dcap_qvl_agrees_on_what_hardware_made(name: str) -> None:
    """As it does on the zoo."""
    entry = vector(name)
    kind, quote, collateral = KINDS[entry["kind"]], quote_of(entry), collateral_json(entry)
    told = theirs(quote, collateral, tee_bundle.load().intel, at(entry))
    compared = expected(quote, at(entry), None)
    sent = item(quote, collateral=collateral)
    if isinstance(told, str):
        assert entry["expected"]["error"] in told
        assert codes(outcomes(kind, sent, compared))
    else:
        tcb = kind.verify(kind.parse(sent), compared).tcb
        assert tcb is not None
        assert (tcb.status, tcb.advisories) == told
