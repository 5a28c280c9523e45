"""Whether measurements are those of a genuine GPU, over our nonce (CONFIDENTIAL.md §14).

1. certificate chain to the pinned root, P-384 with SHA-384 throughout, valid at the instant -> `chain-invalid`
2. signature of the leaf over all before it -> `signature-invalid`
3. nonce -> `binding-mismatch`
4. chip as its certificate names it, firmware as the key was made for, each GPU once -> `report-invalid`
5. a family of GPUs that is known -> `platform-unsupported`

Which of its firmware is good, NVIDIA says in reference integrity manifests (RIM), which are not read: measurements
prove nothing of what a GPU executes.
"""

# Algorithms for: hardware-evidence
from __future__ import annotations

import hmac
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from attestation.endorsements.amd.lines import TEST_ONLY
from attestation.endorsements.certificate import Certificate
from attestation.endorsements.nvidia import DICE_TCB_INFO, Endorsements, chain_refusal
from attestation.errors import HardwareEvidenceRejected
from attestation.evidence.nvidia_gpu.spdm import CHIP, DIGEST_BYTES, DRIVER, FWID, Measurements
from attestation.results import Check, Code, Failed, TrustClaim

_HARDWARE: Final = TrustClaim.HARDWARE
REPORT: Final = Check(name="gpu-report", claim=_HARDWARE, if_failed=99, if_passed=2, code=Code.REPORT_INVALID)
PLATFORM: Final = Check(name="gpu-platform", claim=_HARDWARE, if_failed=97, code=Code.PLATFORM_UNSUPPORTED)
CHAIN: Final = Check(name="gpu-chain", claim=_HARDWARE, if_failed=99, code=Code.CHAIN_INVALID)
SIGNATURE: Final = Check(name="gpu-signature", claim=_HARDWARE, if_failed=99, code=Code.SIGNATURE_INVALID)
BINDING: Final = Check(
    name="gpu-nonce", claim=TrustClaim.INSTANCE_IDENTITY, if_failed=99, code=Code.BINDING_MISMATCH
)
AUTHENTICITY: Final = (REPORT, PLATFORM, CHAIN, SIGNATURE, BINDING)
_ARCHES: Final = {"GH1": "HOPPER", "GB1": "BLACKWELL", "GB2": "BLACKWELL"}
"""First letters of a chip -> family."""
_COMMON_NAME: Final = "2.5.4.3"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnverifiedGPU:
    """Measurements of one GPU and what came with them, unverified.

    Args:
        arch: Family, as whoever sent it says.
        measurements: As read.
        chain: Certificates, the leaf first.
    """

    arch: str
    measurements: Measurements
    chain: tuple[Certificate, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GPUClaims:
    """What measurements of one GPU prove.

    Args:
        arch: Family: `HOPPER`, `BLACKWELL`.
        chip: As its certificate names it: `GB100`.
        serial: Serial number of the leaf's certificate, hex: another for other firmware.
        device: SHA-256 of the key above the leaf, hex: the GPU's own.
        driver: Version of the driver; empty where it is not told.
        vbios: Version of the VBIOS, likewise.
        measurements: All of it.
        test_only: Software made it: its root says TEST ONLY.
    """

    arch: str
    chip: str
    serial: str
    device: str
    driver: str
    vbios: str
    measurements: Measurements
    test_only: bool


def verify(
    sent: Sequence[UnverifiedGPU], *, endorsements: Endorsements, nonce: bytes, at: datetime
) -> tuple[GPUClaims, ...]:
    """Return what the GPUs of one machine prove, in the order in which they came.

    Args:
        sent: One or more, each another GPU.
        endorsements: The pinned root.
        nonce: 32 bytes: `attestation.report_data.gpu_nonce`.
        at: The instant, UTC.

    Raises:
        HardwareEvidenceRejected: With every check that failed, of every GPU.
    """
    failed: list[Failed] = []
    claims: list[GPUClaims] = []
    for place, gpu in enumerate(sent):
        failed += _failed(gpu, endorsements, nonce, at, f"GPU {place}: ")
        claims.append(_claims(gpu, TEST_ONLY in endorsements.root.subject))
    # By its own key: the leaf's is another after a reset to other firmware.
    if len({each.device for each in claims}) < len(sent):
        failed.append(REPORT.failed("each GPU once", "evidence of one GPU twice"))
    if failed:
        raise HardwareEvidenceRejected(failed)
    return tuple(claims)


def _failed(
    gpu: UnverifiedGPU, endorsements: Endorsements, nonce: bytes, at: datetime, which: str
) -> list[Failed]:
    leaf, read = gpu.chain[0], gpu.measurements
    failed: list[Failed] = []
    refusal = chain_refusal(gpu.chain, endorsements.root, at)
    if refusal is not None:
        failed.append(CHAIN.failed("a certificate chain to the pinned root", which + refusal))
    if not _signed(leaf, read):
        failed.append(SIGNATURE.failed("signed by the GPU", f"{which}the signature is not by its key"))
    if not hmac.compare_digest(read.nonce, nonce):
        failed.append(BINDING.failed(nonce.hex(), which + read.nonce.hex()))
    chip, told = _chip(leaf), read.text(CHIP)
    if told not in ("", chip):
        failed.append(REPORT.failed(f"chip {chip}, as its certificate says", f"{which}{told}"))
    fwid = read.opaque.get(FWID, b"")
    made_for = leaf.extensions.get(DICE_TCB_INFO)
    if made_for is not None and (len(fwid) != DIGEST_BYTES or fwid not in made_for.value):
        failed.append(REPORT.failed("the firmware that its key was made for", f"{which}another"))
    arch = _ARCHES.get(chip[:3], "")
    if not arch:
        failed.append(
            PLATFORM.failed("Hopper or Blackwell", which + (chip or "a certificate without a name"))
        )
    elif gpu.arch != arch:
        failed.append(REPORT.failed(f"arch {arch}", which + gpu.arch))
    return failed


def _signed(leaf: Certificate, read: Measurements) -> bool:
    key = leaf.public_key
    if not isinstance(key, ec.EllipticCurvePublicKey) or leaf.key != "ec-secp384r1":
        return False
    try:
        key.verify(encode_dss_signature(read.r, read.s), read.signed, ec.ECDSA(hashes.SHA384()))
    except InvalidSignature:
        return False
    return True


def _chip(leaf: Certificate) -> str:
    """Return the first word of the leaf's common name: `GB100 A01 GSP FMC LF`."""
    names = [each.text for each in leaf.subject_name.attributes if each.oid == _COMMON_NAME]
    return names[0].partition(" ")[0] if len(names) == 1 else ""


def _claims(gpu: UnverifiedGPU, test_only: bool) -> GPUClaims:
    chip, read = _chip(gpu.chain[0]), gpu.measurements
    # As the chain is verified: roots that come along are anybody's, wherever they stand.
    path = [each for each in gpu.chain if not each.self_issued] or gpu.chain
    return GPUClaims(
        arch=_ARCHES.get(chip[:3], ""),
        chip=chip,
        serial=f"{gpu.chain[0].serial:x}",
        device=path[min(1, len(path) - 1)].spki_sha256,
        driver=read.text(DRIVER),
        vbios=read.vbios,
        measurements=read,
        test_only=test_only,
    )
