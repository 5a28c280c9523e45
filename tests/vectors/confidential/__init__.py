"""Evidence that confidential hardware made, where it stands beside the project (../shared/vectors/confidential)."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest

from attestation.appraisal.sev_snp import CHECKS as SEV_SNP
from attestation.appraisal.sgx import CHECKS as SGX
from attestation.appraisal.tdx import CHECKS as TDX
from attestation.results import Check
from tests.vectors import SHARED as VECTORS

SHARED = VECTORS / "confidential"

needs_vectors = pytest.mark.skipif(
    not SHARED.is_dir(),
    reason="evidence of confidential hardware is not beside the project (../shared/vectors)",
)


@cache
def vectors(kind: str | None = None) -> tuple[dict[str, Any], ...]:
    """Return the entries of `expected.json`, of one kind or of all; none where they are not beside the project."""
    if not SHARED.is_dir():
        return ()
    listed = json.loads((SHARED / "expected.json").read_bytes())["vectors"]
    return tuple(each for each in listed if kind in (None, each["kind"]))


def vector(name: str) -> dict[str, Any]:
    """Return one entry."""
    return next(each for each in vectors() if each["id"] == name)


def checks_by_name() -> dict[str, Check]:
    """Return every check of evidence of confidential hardware by its name."""
    return {check.name: check for check in (*SEV_SNP, *TDX, *SGX)}
