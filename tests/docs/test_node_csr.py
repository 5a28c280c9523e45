"""docs/evidence/node_csr.md: what it prints is what its programs print, and its tables are those of the code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest

from attestation.appraisal.node_csr import KeyTier, Reason, result
from attestation.device import NodeTPM
from attestation.evidence.node_csr import container
from attestation.reference import parse_policy
from attestation.results import Check
from attestation_testing import SoftwareNode
from tests.docs.pages import text

PAGE = text("docs/evidence/node_csr.md")
NODE = SoftwareNode(1)


@contextmanager
def opened(uri: str) -> Iterator[SoftwareNode]:
    """Stand for the TPM of this node."""
    assert uri.startswith("device:")
    yield NODE


def test_the_programs_run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """One after the other, as they stand there."""
    monkeypatch.setattr(NodeTPM, "open", opened)
    document = {
        "format": "itl-tpm-policy/1",
        "name": "nodes",
        "version": 1,
        "bank": "sha256",
        "pcrs": {str(index): {"any_of": ["00" * 32]} for index in (0, 2, 4, 7)},
    }
    names: dict[str, Any] = {
        "nonce": bytes(range(32)),
        "nonce_id": "0f" * 16,
        "machine_id": "7f3ad3ac-0f0e-4c55-9d4a-3f6f0e1b2c3d",
        "ek_public": NODE.ek.public.tpm2b(),
        "ak_public": NODE.ak.public.tpm2b(),
        "policy": parse_policy(document),
        "now": datetime(2026, 11, 21, tzinfo=UTC),
    }
    for program in re.findall(r"```python\n(.+?)```", PAGE, re.DOTALL):
        exec(compile(program, "docs/evidence/node_csr.md", "exec"), names)
    assert capsys.readouterr().out in PAGE


def test_every_check_reason_and_tier_is_told() -> None:
    """And none that the code does not know."""
    checks = {check.name for check in vars(result).values() if isinstance(check, Check)}
    rows = set(re.findall(r"^\| \d* \| `([a-z-]+)` \|", PAGE, re.MULTILINE))
    assert rows | {"request", "key-mode", "membership"} == checks
    for name in ("request", "key-mode", "membership"):
        assert f"| | `{name}` |" in PAGE
    assert {reason for reason in Reason if f"`{reason}`" in PAGE} == set(Reason) - {Reason.TPM_ATTESTED}
    for tier in KeyTier:
        assert f"| {int(tier)} `{tier.word}` |" in PAGE


def test_every_block_is_told() -> None:
    """With its name, in the table of its layout."""
    for kind in container._LIMITS:
        assert f"`{kind}`" in PAGE, kind
