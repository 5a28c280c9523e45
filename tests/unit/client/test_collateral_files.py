"""Archives of collateral: read without trust in what they say of themselves, and sent a few pieces at a time."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attestation.client import collateral_files
from attestation.client.collateral_files import AT_ONCE, batches, read_archive
from attestation.errors import CollateralInvalid


def archive(files: Mapping[str, bytes]) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as writer:
        for name, data in files.items():
            writer.writestr(name, data)
    return made.getvalue()


@pytest.mark.parametrize("top", ["", "collateral/", "a/b/"])
def test_pieces_are_called_as_they_are_below_the_manifest(top: str) -> None:
    """Whatever folder was packed; the manifest itself is no piece."""
    found = read_archive(
        archive({f"{top}manifest.json": b"{}", f"{top}tdx/qe.json": b"1", f"{top}crl/a": b"2"})
    )
    assert found == [("tdx/qe.json", b"1"), ("crl/a", b"2")]
    assert read_archive(archive({"tdx/qe.json": b"1"})) == [("tdx/qe.json", b"1")]


def test_an_archive_is_bounded_before_it_is_unfolded(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its own size, the number of its files, each of them, and all of them together."""
    monkeypatch.setattr(collateral_files, "MAX_ITEM_BYTES", 1000)
    monkeypatch.setattr(collateral_files, "MAX_ARCHIVE_BYTES", 2500)
    monkeypatch.setattr(collateral_files, "MAX_PIECES", 4)
    assert len(read_archive(archive({str(n): bytes(600) for n in range(4)}))) == 4
    for files in (
        {"a": bytes(1001)},
        {str(n): bytes(900) for n in range(3)},
        {str(n): b"" for n in range(6)},
        {"manifest.json": b"{}"},
        {},
    ):
        with pytest.raises(CollateralInvalid):
            read_archive(archive(files))
    with pytest.raises(CollateralInvalid, match="2501 bytes"):
        read_archive(bytes(2501))


@given(st.binary(max_size=200), st.integers(0, 400))
def test_what_is_no_archive_fails_in_one_way_only(data: bytes, cut: int) -> None:
    """Noise, and an archive with noise in it or its end cut off."""
    whole = archive({"tdx/qe.json": b"1" * 50, "manifest.json": b"{}"})
    for broken in (data, whole[:cut], whole[:cut] + data + whole[cut + len(data) :]):
        try:
            read_archive(broken)
        except CollateralInvalid:
            continue


def test_a_request_carries_a_few_pieces() -> None:
    """Not too many, not too large together; each of them once, in order."""
    small = [(str(n), b"x") for n in range(AT_ONCE + 1)]
    assert [len(some) for some in batches(small)] == [AT_ONCE, 1]
    large = [(str(n), bytes(300_000)) for n in range(3)]
    assert [piece for some in batches(large) for piece in some] == large
    assert [len(some) for some in batches(large)] == [1, 1, 1]
