"""Appraise one SEV-SNP report in the heart: parse, chain, signature, every rule of a policy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from attestation.appraisal import Case, appraise
from attestation.appraisal.confidential import Approved, Expected
from attestation.appraisal.sev_snp import SEV_SNP
from attestation.endorsements.amd import Endorsements
from attestation.endorsements.certificate import parse_certificate
from attestation.machines import Role
from attestation.reference import parse_policy
from attestation.results import Assurance, Verdict
from attestation.wire import b64encode
from attestation_testing.tee.amd import MEASUREMENT, Pki, Processor
from tests.bench.report import Measurement, best_seconds

_DATA = bytes(range(64))
_AT = datetime(2026, 11, 23, tzinfo=UTC)


def measure() -> Iterator[Measurement]:
    """Measure a processor that is known, and one that comes for the first time."""
    made = Processor(pki=Pki())
    report = made.report(_DATA)
    item = {"report": b64encode(report), "vek": b64encode(made.vek)}
    floor = best_seconds(_bare(made, report)) * 1e6
    value = best_seconds(_appraisal(item, made)) * 1e6
    yield Measurement(
        name="snp-report",
        value=value,
        unit="us",
        floor=floor,
        ratio=value / floor,
        bar="<= 1.5 x bare verify",
        ok=value <= 1.5 * floor,
        note="floor: ECDSA P-384 over the 672 bytes alone; the chain of a VEK is verified once",
    )


def _bare(made: Processor, report: bytes) -> Callable[[], None]:
    key = parse_certificate(made.vek).public_key
    assert isinstance(key, ec.EllipticCurvePublicKey)
    signature = encode_dss_signature(
        int.from_bytes(report[0x2A0:0x2E8], "little"), int.from_bytes(report[0x2E8:0x330], "little")
    )
    algorithm = ec.ECDSA(hashes.SHA384())
    return lambda: key.verify(signature, report[:0x2A0], algorithm)


def _appraisal(item: dict[str, str], made: Processor) -> Callable[[], None]:
    rules = {"measurement": [MEASUREMENT.hex()], "min_tcb": {"genoa": {"snp": 20}}}
    policy = parse_policy({"format": "itl-policy/2", "name": "guests", "version": 1, "sev_snp": rules})
    known: Endorsements = made.endorsements()

    def run() -> None:
        expected = Expected(
            at=_AT,
            report_data=_DATA,
            endorsements=known,
            approved=Approved(chip=made.chip_id),
            nonce=bytes(32),
        )
        case = Case(
            expected={"sev_snp": expected},
            requested_policy=policy.ref,
            policy=policy,
            assurance=Assurance.TOFU,
            role=Role.WORKER_APP,
        )
        found = appraise({"sev_snp": SEV_SNP.parse(item)}, case, _AT)
        assert found.result.verdict is Verdict.VERIFIED

    return run
