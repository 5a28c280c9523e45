"""Nonces: fresh, unique, never shared between processes (CVE-2026-6420)."""

from __future__ import annotations

import os

import pytest

from attestation_service.verifier.challenges import POOL_BYTES, RandomPool


def test_ten_thousand_are_distinct() -> None:
    """No byte is handed out twice."""
    pool = RandomPool()
    assert len({pool.take(48) for _ in range(10_000)}) == 10_000
    assert len(pool.take(POOL_BYTES)) == POOL_BYTES


def test_a_forked_process_has_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a fork the child does not continue with its parent's bytes."""
    pool = RandomPool()
    pool.take(1)
    rest = pool._bytes
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert pool.take(32) != rest[:32]
