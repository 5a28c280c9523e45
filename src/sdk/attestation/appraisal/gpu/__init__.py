"""The kind `gpu`: measurements of NVIDIA GPUs in a machine, judged by the block `gpu` of a policy.

A GPU says nothing of who the machine is: it has no identity, and its evidence is expected where a policy has rules.
"""

# Algorithms for: digest
from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from attestation.appraisal.confidential import Expected, demanded, members, rules
from attestation.appraisal.kind import Kind
from attestation.endorsements.nvidia import MAX_CHAIN_BYTES, parse_chain
from attestation.errors import MalformedEvidence
from attestation.evidence import nvidia_gpu
from attestation.evidence.nvidia_gpu import REPORT, GPUClaims, UnverifiedGPU
from attestation.evidence.nvidia_gpu.spdm import MAX_EVIDENCE_BYTES
from attestation.evidence.nvidia_gpu.verify import AUTHENTICITY
from attestation.machines import NodeEvent
from attestation.reference import Policy
from attestation.reference.confidential import GpuRules
from attestation.results import Check, Code, Outcome, Subject, TrustClaim

MAX_GPUS: Final = 16
DRIVER: Final = Check(name="gpu-driver", claim=TrustClaim.HARDWARE, code=Code.TCB_NOT_ALLOWED)
VBIOS: Final = Check(name="gpu-vbios", claim=TrustClaim.HARDWARE, code=Code.TCB_NOT_ALLOWED)
ARCH: Final = Check(name="gpu-arch", claim=TrustClaim.HARDWARE, code=Code.PLATFORM_UNSUPPORTED)
TEST_ONLY: Final = Check(name="gpu-test-only", claim=TrustClaim.HARDWARE, if_flagged=32)
RIM: Final = Check(name="gpu-rim", code=Code.COLLATERAL_UNAVAILABLE)
_LIMITS: Final = {"evidence": MAX_EVIDENCE_BYTES, "certificate": MAX_CHAIN_BYTES}
_ARCH: Final = re.compile(r"[A-Z][A-Z0-9_-]{2,31}")


class Found(NamedTuple):
    """What GPUs tell."""

    state: Mapping[str, Any]
    digest: str | None = None
    events: tuple[NodeEvent, ...] = ()


class _GPU(Kind[tuple[UnverifiedGPU, ...], Expected, tuple[GPUClaims, ...]]):
    """GPUs, as an appraisal sees them: all that came, and each must pass."""

    name: Final = "gpu"
    check: Final = REPORT
    held: Final = REPORT.passed()
    expects: Final = "fresh measurements of the machine's GPUs"
    checks: Final = (*AUTHENTICITY, TEST_ONLY, DRIVER, VBIOS, ARCH, RIM)

    def parse(self, item: object) -> tuple[UnverifiedGPU, ...]:
        """Parse one item, or a list of one to sixteen: members `arch`, `evidence` and `certificate` each.

        Raises:
            MalformedEvidence: The only way to fail.
        """
        listed = item if isinstance(item, list) else [item]
        if not 0 < len(listed) <= MAX_GPUS:
            raise MalformedEvidence(f"evidence of {len(listed)} GPUs, one to {MAX_GPUS} can be judged")
        return tuple(map(_gpu, listed))

    def verify(self, evidence: tuple[UnverifiedGPU, ...], expected: Expected) -> tuple[GPUClaims, ...]:
        """Return what the measurements prove.

        Raises:
            HardwareEvidenceRejected: They are not authentic, or not over our nonce.
        """
        return nvidia_gpu.verify(
            evidence, endorsements=expected.endorsements, nonce=expected.report_data, at=expected.at
        )

    def follow(
        self,
        claims: tuple[GPUClaims, ...],
        expected: Expected,  # noqa: ARG002 -- GPUs may be exchanged: a policy says which are good
        policy: Policy | None,  # noqa: ARG002 -- nothing of it is compared here
    ) -> tuple[Sequence[Outcome], Found]:
        """Return what they tell."""
        made_up = any(each.test_only for each in claims)
        outcomes = (
            [TEST_ONLY.flagged("TEST ONLY: software made these measurements, no GPU did")] if made_up else []
        )
        return outcomes, Found({"gpus": [_state(each) for each in claims]})

    def judge(
        self,
        claims: tuple[GPUClaims, ...],
        evidence: tuple[UnverifiedGPU, ...],  # noqa: ARG002 -- all that counts of it is in the claims
        expected: Expected,  # noqa: ARG002 -- compared in `verify`
        policy: Policy,
    ) -> tuple[Sequence[Outcome], tuple[Subject, ...]]:
        """Compare versions and families with the block `gpu`."""
        stated = rules(policy, "gpu", _DEFAULTS)
        outcomes: list[Outcome] = []
        for check, demand, of in (
            (DRIVER, stated.driver_versions, "driver"),
            (VBIOS, stated.vbios_versions, "vbios"),
            (ARCH, stated.arch, "arch"),
        ):
            if demand is not None:
                found = [getattr(each, of) for each in claims]
                wrong = [
                    f"GPU {place}: {value}" for place, value in enumerate(found) if value not in demand.value
                ]
                words = " or ".join(sorted(demand.value))
                outcomes += demanded(check, demand, not wrong, words, ", ".join(wrong))
        if stated.rim_required.value:
            why = "reference integrity manifests of NVIDIA are not read: nothing is known of what a GPU executes"
            outcomes.append(RIM.flagged(why) if stated.rim_required.report else RIM.undecided(why))
        return outcomes, ()

    def alike(self, found: Found, policy: Policy) -> str:  # noqa: ARG002 -- under every policy the same
        """Return GPUs and versions."""
        return hashlib.sha256(repr(found.state).encode()).hexdigest()


_DEFAULTS: Final = GpuRules()


def _gpu(item: object) -> UnverifiedGPU:
    if not isinstance(item, Mapping) or not isinstance(arch := item.get("arch"), str):
        raise MalformedEvidence("evidence of a GPU has the members arch, certificate and evidence")
    if not _ARCH.fullmatch(arch):
        raise MalformedEvidence("arch is not 3 to 32 capital letters and digits")
    sent = members(
        {name: value for name, value in item.items() if name != "arch"}, _LIMITS, required=_LIMITS.keys()
    )
    return UnverifiedGPU(
        arch=arch,
        measurements=nvidia_gpu.parse_measurements(sent["evidence"]),
        chain=parse_chain(sent["certificate"]),
    )


def _state(claims: GPUClaims) -> dict[str, Any]:
    return {
        "arch": claims.arch,
        "chip": claims.chip,
        "device": claims.device,
        "serial": claims.serial,
        "driver_version": claims.driver,
        "vbios_version": claims.vbios,
    }


GPU: Final = _GPU()
