"""A version opens for its place and number alone, and a mark is of one activation (ADR 197)."""

from __future__ import annotations

import dataclasses
import secrets
from datetime import timedelta

import pytest

from attestation.errors import UnwrapFailed
from attestation.keys import LocalKEK
from attestation.store import Place
from attestation_service.configs import sealing
from tests.contract.store_samples import NOW
from tests.contract.test_store_configurations import active, sealed

KEK = LocalKEK(secrets.token_bytes(32))
ABOUT = dataclasses.replace(sealed(1).about, kek_id=KEK.key_id)
KEPT = sealing.seal(b"text", ABOUT, KEK)


def test_what_was_sealed_is_opened_and_not_in_the_clear() -> None:
    """Twice the same text is two blobs; a data key may lie under another key, and opens the same."""
    opened = sealing.unseal(KEPT, KEK)
    assert opened.text == b"text"
    assert "text" not in repr(opened).replace("text=", "")
    assert b"text" not in KEPT.blob
    assert sealing.seal(b"text", ABOUT, KEK).blob != KEPT.blob
    other = LocalKEK(secrets.token_bytes(32))
    moved = dataclasses.replace(
        KEPT,
        about=dataclasses.replace(ABOUT, kek_id=other.key_id),
        wrapped=sealing.rewrapped(KEPT, KEK, other),
    )
    assert sealing.unseal(moved, other) == opened
    with pytest.raises(UnwrapFailed):
        sealing.unseal(moved, KEK)


@pytest.mark.threat("T136")
@pytest.mark.parametrize(
    "change",
    [
        {"place": Place(cluster_id="other", role="worker-app")},
        {"place": Place(cluster_id="default", role="controlplane")},
        {"place": Place(machine_id="m")},
        {"version": 2},
        {"sha256": "f" * 64},
        {"talos_version": "v1.14.0"},
        {"created_by": "mallory"},
        {"created_at": NOW + timedelta(seconds=1)},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_row_that_is_moved_opens_nothing(change: dict[str, object]) -> None:
    """To another place or number, or told to be somebody else's."""
    moved = dataclasses.replace(KEPT, about=dataclasses.replace(ABOUT, **change))  # type: ignore[arg-type]
    with pytest.raises(UnwrapFailed):
        sealing.unseal(moved, KEK)


@pytest.mark.parametrize("member", ["wrapped", "blob"])
def test_no_changed_byte_is_opened(member: str) -> None:
    """Of either part, at either end; cut to any length."""
    held = getattr(KEPT, member)
    for at in (0, 1, len(held) // 2, len(held) - 1):
        changed = bytearray(held)
        changed[at] ^= 1
        for bad in (bytes(changed), held[:at]):
            with pytest.raises(UnwrapFailed):
                sealing.unseal(
                    dataclasses.replace(KEPT, **{member: bad}),  # type: ignore[arg-type]
                    KEK,
                )


@pytest.mark.threat("T136")
def test_a_mark_is_of_one_activation() -> None:
    """Each member counts; a mark of another version's key vouches for nothing."""
    opened = sealing.unseal(KEPT, KEK)
    plain = active(1, previous=2)
    made = dataclasses.replace(plain, mark=sealing.mark(opened, plain))
    assert sealing.vouches(opened, made)
    for change in (
        {"place": Place(cluster_id="other", role="worker-app")},
        {"version": 3},
        {"previous": None},
        {"sha256": "f" * 64},
        {"activated_by": "mallory"},
        {"activated_at": NOW + timedelta(seconds=1)},
        {"agreed": False},
        {"mark": b""},
    ):
        assert not sealing.vouches(opened, dataclasses.replace(made, **change)), change
    again = sealing.unseal(sealing.seal(b"text", ABOUT, KEK), KEK)
    assert not sealing.vouches(again, made)
