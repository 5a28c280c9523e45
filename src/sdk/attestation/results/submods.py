"""The parts of a machine that an EAR tells apart: its TPM, its processor, its GPUs (CONFIDENTIAL.md §12.1).

A result is one, over all evidence of a machine; which part an outcome speaks of follows from the name of its check.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from attestation.results.result import AttestationResult, Outcome, Subject

TPM: Final = "tpm"
CPU: Final = "cpu0"
GPU: Final = "gpu0"
_PARTS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("snp", "tdx", "sgx", "hcl", "svsm"), CPU),
    "gpu": GPU,
}
"""First word of a check's name -> part."""
_SHARED: Final = frozenset({"policy", "assurance", "evidence", "rule", "guest-name", "machine", "reference"})
"""Checks of the machine, which speak of every part."""
_OF_CPU: Final = frozenset({Subject.LAUNCH})


def part_of(check: str) -> str | None:
    """Return the part that a check speaks of by its name; None where it speaks of the machine."""
    return None if check in _SHARED else _PARTS.get(check.partition("-")[0], TPM)


def parts_of(result: AttestationResult) -> dict[str, tuple[tuple[Outcome, ...], frozenset[Subject]]]:
    """Return each part of which *result* tells -> its outcomes, and what of a boot was compared there.

    Where it tells of none, that of the TPM: somebody was refused before anything was seen.
    """
    named = {part_of(outcome.check) for outcome in result.outcomes} - {None}
    appraised = frozenset(result.boot_state_appraised)
    found: dict[str, tuple[tuple[Outcome, ...], frozenset[Subject]]] = {}
    for part in (TPM, CPU, GPU):
        if part in named or (part == TPM and not named):
            outcomes = tuple(o for o in result.outcomes if part_of(o.check) in (None, part))
            subjects = {TPM: appraised - _OF_CPU, CPU: appraised & _OF_CPU}.get(part, frozenset())
            found[part] = (outcomes, subjects)
    return found
