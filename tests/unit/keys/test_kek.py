"""Key-encryption keys: what is wrapped opens for the same purpose under the same key, and not otherwise."""

from __future__ import annotations

import secrets
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attestation.errors import KeyNotFound, KeyUnsupported, KeyUnusable, UnwrapFailed
from attestation.keys import kek, open_kek, open_keks
from attestation.keys.kek import LocalKEK
from attestation.keys.opener import MAX_PLAINTEXT_BYTES

HERE = LocalKEK(bytes(range(32)))


def file(tmp_path: Path, content: bytes, mode: int = 0o600) -> str:
    """Write a file and return its URI."""
    path = tmp_path / "kek"
    path.write_bytes(content)
    path.chmod(mode)
    return f"file:{path}"


@given(st.binary(min_size=1, max_size=MAX_PLAINTEXT_BYTES), st.binary(max_size=100))
def test_what_is_wrapped_opens(plaintext: bytes, aad: bytes) -> None:
    """With the same words beside it; each time in other bytes."""
    one, other = HERE.wrap(plaintext, aad), HERE.wrap(plaintext, aad)
    assert one != other
    assert HERE.unwrap(one, aad) == HERE.unwrap(other, aad) == plaintext


@given(st.integers(min_value=0), st.integers(0, 7))
def test_no_flipped_bit_is_accepted(where: int, bit: int) -> None:
    """Of what was wrapped; nor other words beside it, nor another key, nor a part."""
    good = HERE.wrap(b"k" * 32, b"whose")
    bad = bytearray(good)
    bad[where % len(bad)] ^= 1 << bit
    for opener, wrapped, aad in (
        (HERE, bytes(bad), b"whose"),
        (HERE, good, b"another's"),
        (LocalKEK(bytes(32)), good, b"whose"),
        (HERE, good[: where % len(good)], b"whose"),
        (HERE, good + b"\0" * (1 + where % 100), b"whose"),
    ):
        with pytest.raises(UnwrapFailed):
            opener.unwrap(wrapped, aad)


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
def test_it_is_read_from_a_file_of_ours(tmp_path: Path, end: bytes) -> None:
    """The same name wherever it is opened, and not in another's place."""
    key = secrets.token_bytes(32)
    opened = open_kek(file(tmp_path, key.hex().encode() + end))
    assert opened.key_id == LocalKEK(key).key_id != LocalKEK(bytes(32)).key_id
    assert key.hex() not in (opened.key_id, repr(opened))
    assert opened.unwrap(LocalKEK(key).wrap(b"k" * 32, b""), b"") == b"k" * 32
    opened.close()


@pytest.mark.parametrize(
    "content",
    [b"", b"ab" * 31, b"ab" * 33, b"zz" * 32, b"ab" * 32 + b"\n\n", b" " + b"ab" * 32, b"ab" * 32 + b"\0"],
)
def test_what_is_no_kek_is_refused_and_not_repeated(tmp_path: Path, content: bytes) -> None:
    """64 digits, and one end of line."""
    with pytest.raises(KeyUnusable) as refused:
        open_kek(file(tmp_path, content))
    assert "abab" not in str(refused.value)


def test_who_else_may_read_it_is_refused(tmp_path: Path) -> None:
    """As every private key; and none is made where none is."""
    with pytest.raises(KeyUnusable):
        open_kek(file(tmp_path, b"ab" * 32, 0o640))
    with pytest.raises(KeyNotFound):
        open_kek(f"file:{tmp_path}/other")
    assert not (tmp_path / "other").exists()
    with pytest.raises(KeyUnsupported):
        open_kek(file(tmp_path, b"ab" * 32) + "?passphrase-source=file:/dev/null")


def test_a_kek_in_memory_has_32_bytes() -> None:
    """A shorter one would be a weaker cipher without a word."""
    with pytest.raises(KeyUnusable, match="32 bytes, not 5"):
        LocalKEK(b"short")


def test_several_are_opened_together_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first is the newest, one key under two URIs is one; where one fails, those before it are closed."""
    closed: list[str] = []

    def opened(uri: str, _options: object) -> Any:
        if uri == "file:/gone":
            raise KeyNotFound("nothing is there")
        return SimpleNamespace(key_id=uri.removesuffix("?again"), close=lambda: closed.append(uri))

    monkeypatch.setattr(kek, "open_kek", opened)
    assert list(open_keks(("file:/new", "file:/old", "file:/new?again"))) == ["file:/new", "file:/old"]
    assert closed == ["file:/new?again"]
    with pytest.raises(KeyNotFound):
        open_keks(("file:/new", "file:/old", "file:/gone"))
    assert sorted(closed[1:]) == ["file:/new", "file:/old"]
