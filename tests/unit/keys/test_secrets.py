"""Passphrases and PINs: from a file or a descriptor, read anew each time."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from attestation.errors import KeyUnusable, KeyURIInvalid
from attestation.keys.secrets import MAX_SECRET_BYTES, secret_source


@pytest.mark.parametrize(
    ("content", "secret"),
    [
        (b"hunter2", b"hunter2"),
        (b"hunter2\n", b"hunter2"),
        (b"hunter2\r\n", b"hunter2"),
        (b"hunter2\n\n", b"hunter2\n"),
        (b"hunter2\r", b"hunter2\r"),
        (b" \xff ", b" \xff "),
        (b"x" * MAX_SECRET_BYTES + b"\r\n", b"x" * MAX_SECRET_BYTES),
    ],
)
def test_one_newline_at_the_end_is_dropped(content: bytes, secret: bytes, tmp_path: Path) -> None:
    """Editors add one; everything else is the secret. From a file, a descriptor of one, and a pipe."""
    path = tmp_path / "pin"
    path.write_bytes(content)
    assert secret_source(f"file:{path}")() == secret
    with path.open("rb") as file:
        source = secret_source(f"fd:{file.fileno()}")
        assert source() == secret
        assert source() == secret
    reading, writing = os.pipe()
    os.write(writing, content)
    os.close(writing)
    assert secret_source(f"fd:{reading}")() == secret
    with pytest.raises(KeyUnusable, match="empty"):
        secret_source(f"fd:{reading}")()
    os.close(reading)


def test_a_changed_file_is_seen(tmp_path: Path) -> None:
    """A source keeps nothing."""
    path = tmp_path / "pin"
    source = secret_source(f"file:{path}")
    with pytest.raises(KeyUnusable, match="No such file"):
        source()
    for content in (b"1", b"22"):
        path.write_bytes(content)
        assert source() == content


@pytest.mark.parametrize("content", [b"", b"\n", b"\r\n", b"x" * (MAX_SECRET_BYTES + 1), b"x" * 100_000])
def test_no_secret(content: bytes, tmp_path: Path) -> None:
    """Empty or endless; the message says where, not what."""
    path = tmp_path / "pin"
    path.write_bytes(content)
    with pytest.raises(KeyUnusable, match="pin") as refusal:
        secret_source(f"file:{path}")()
    assert "xx" not in str(refusal.value).replace(str(path), "")  # whose name is partly chance


def test_a_closed_descriptor() -> None:
    """Says which."""
    reading, writing = os.pipe()
    os.close(reading)
    os.close(writing)
    with pytest.raises(KeyUnusable, match=f"descriptor {reading}"):
        secret_source(f"fd:{reading}")()


@pytest.mark.parametrize(
    "text", ["", "pin", "file:pin", "file:", "fd:", "fd:x", "fd:-1", "fd:٣", "env:PIN", "|cat"]
)
def test_other_sources(text: str) -> None:
    """No environment, no program."""
    with pytest.raises(KeyURIInvalid):
        secret_source(text)
