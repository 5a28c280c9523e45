"""How far an EK is trusted, and who is a vendor (TPM.md §2.3, §6)."""

from __future__ import annotations

import pytest

from attestation.endorsements import VENDOR_NAMES, PathValidation, judge_ek_trust, vendor_name
from attestation.results import Assurance

YES, NO = PathValidation(ok=True, reason="good"), PathValidation(ok=False, reason="no anchor")


@pytest.mark.parametrize(
    ("allow_listed", "chain", "assurance", "chain_ok", "reason"),
    [
        (True, None, Assurance.EK_ALLOWLIST, False, "imported"),
        (True, NO, Assurance.EK_ALLOWLIST, False, "imported"),
        (True, YES, Assurance.EK_ALLOWLIST, True, "imported"),
        (False, YES, Assurance.EK_CHAIN, True, "vendor anchor"),
        (False, NO, Assurance.TOFU, False, "no anchor"),
        (False, None, Assurance.TOFU, False, "no certificate"),
    ],
)
def test_assurance(
    allow_listed: bool, chain: PathValidation | None, assurance: Assurance, chain_ok: bool, reason: str
) -> None:
    """The best ground counts; a chain is claimed only where there is one."""
    trust = judge_ek_trust(allow_listed=allow_listed, chain=chain)
    assert (trust.assurance, trust.chain_ok, trust.allow_listed) == (assurance, chain_ok, allow_listed)
    assert reason in trust.reason


@pytest.mark.parametrize(
    ("manufacturer", "name"),
    [
        ("id:49465800", "IFX"),
        ("id:414D4400", "AMD"),
        ("id:414d4400", "AMD"),
        ("id:494E5443", "INTC"),
        ("id:4E534D20", "NSM"),
        ("id:53544D20", "STM"),
        ("id:53544D00", None),
        ("id:00001014", None),
        ("id:00000000", None),
        ("49465800", None),
        ("ID:49465800", None),
        ("id:", None),
        ("", None),
    ],
)
def test_vendors(manufacturer: str, name: str | None) -> None:
    """Four ASCII bytes as hex, filled with zero, for two vendors with a space."""
    assert vendor_name(manufacturer) == name


def test_the_registry_is_complete() -> None:
    """25 vendors, each id eight hex digits, and no simulator among them."""
    assert len(VENDOR_NAMES) == 25
    assert all(len(key) == 11 and bytes.fromhex(key[3:]) for key in VENDOR_NAMES)
    assert "id:00001014" not in VENDOR_NAMES


def test_who_vouches_for_the_ak_counts_where_nobody_vouches_for_the_ek() -> None:
    """Level two, and no more; a vendor or an operator counts for more."""
    found = judge_ek_trust(allow_listed=False, chain=None, ak_certified=True)
    assert (found.assurance, found.chain_ok) == (Assurance.AK_CERTIFIED, False)
    chain = PathValidation(ok=True, reason="chains")
    assert judge_ek_trust(allow_listed=False, chain=chain, ak_certified=True).assurance is Assurance.EK_CHAIN
    assert (
        judge_ek_trust(allow_listed=True, chain=None, ak_certified=True).assurance is Assurance.EK_ALLOWLIST
    )
