"""Appraise measurements of one NVIDIA GPU in the heart: parse, chain, signature, the block `gpu` of a policy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from attestation.appraisal import Case, appraise
from attestation.appraisal.confidential import Expected
from attestation.appraisal.gpu import GPU
from attestation.evidence.nvidia_gpu import parse_measurements
from attestation.machines import Role
from attestation.reference import parse_policy
from attestation.results import Assurance, Verdict
from attestation_testing.tee.nvidia import SoftwareGPU
from tests.bench.report import Measurement, best_seconds

_NONCE = bytes(range(32))
_AT = datetime(2026, 11, 23, tzinfo=UTC)


def measure() -> Iterator[Measurement]:
    """Measure a GPU whose chain is known, as at every attestation but the first."""
    made = SoftwareGPU()
    floor = best_seconds(_bare(made)) * 1e6
    value = best_seconds(_appraisal(made)) * 1e6
    yield Measurement(
        name="gpu-measurements",
        value=value,
        unit="us",
        floor=floor,
        ratio=value / floor,
        bar="<= 1.5 x bare verify",
        ok=value <= 1.5 * floor,
        note="floor: ECDSA P-384 over request and response alone; the chain of a GPU is verified once",
    )


def _bare(made: SoftwareGPU) -> Callable[[], None]:
    read = parse_measurements(made.evidence(_NONCE))
    key, algorithm = made.key(0).public_key(), ec.ECDSA(hashes.SHA384())
    signature = encode_dss_signature(read.r, read.s)
    return lambda: key.verify(signature, read.signed, algorithm)


def _appraisal(made: SoftwareGPU) -> Callable[[], None]:
    rules = {"driver_versions": [made.driver]}
    policy = parse_policy({"format": "itl-policy/2", "name": "gpus", "version": 1, "gpu": rules})
    item, known = made.item(_NONCE), made.endorsements

    def run() -> None:
        expected = Expected(at=_AT, report_data=_NONCE, endorsements=known, approved=None, nonce=bytes(32))
        case = Case(
            expected={"gpu": expected},
            requested_policy=policy.ref,
            policy=policy,
            assurance=Assurance.TOFU,
            role=Role.WORKER_APP,
        )
        found = appraise({"gpu": GPU.parse([item])}, case, _AT)
        assert found.result.verdict is Verdict.VERIFIED, found.result.outcomes

    return run
