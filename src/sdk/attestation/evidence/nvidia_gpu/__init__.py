"""Measurements of NVIDIA GPUs: an SPDM 1.1 request and its signed response (DSP0274; CONFIDENTIAL.md §14).

A GPU signs what it measured of itself, over a nonce, with a key that it has only for the firmware that runs.
"""

from typing import Final

from attestation.evidence.nvidia_gpu.spdm import Measurements, parse_measurements
from attestation.evidence.nvidia_gpu.verify import (
    BINDING,
    CHAIN,
    PLATFORM,
    REPORT,
    SIGNATURE,
    GPUClaims,
    UnverifiedGPU,
    verify,
)

MEDIA_TYPE: Final = "application/vnd.itl.nvidia-gpu"

__all__ = [
    "BINDING",
    "CHAIN",
    "MEDIA_TYPE",
    "PLATFORM",
    "REPORT",
    "SIGNATURE",
    "GPUClaims",
    "Measurements",
    "UnverifiedGPU",
    "parse_measurements",
    "verify",
]
