"""What the kiosk reads of media, kernel and servers: it means something, or it is refused in one way."""

from __future__ import annotations

import contextlib
import gzip
import lzma
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from attestation.errors import MalformedEvidence
from attestation_agent.exits import UsageError
from attestation_agent.kiosk import gpt, listing
from attestation_agent.kiosk.exits import ImageRejected
from attestation_agent.kiosk.image import PIECE_BYTES, unpack
from attestation_agent.kiosk.sources import KERNEL_ARGUMENTS, parse_cmdline, parse_conf
from tests.unit.agent.kiosk.bench import MIB, signed, table, vkey

AT = datetime(2026, 11, 27, tzinfo=UTC)
KEYS = listing.parse_keys(vkey())
GOOD = signed({"os.raw": bytes(32)})
ZEROS = bytes(PIECE_BYTES + 1000)
PACKED = {".xz": lzma.compress(ZEROS, preset=0), ".gz": gzip.compress(ZEROS)}
SPOKEN = st.text(st.characters(codec="ascii", categories=["L", "N", "P", "Zs"], exclude_characters='"'))
TABLE = table((gpt.ESP, gpt.ESP, MIB, MIB))


@given(st.one_of(st.binary(max_size=300), st.text("itl.=_ \"'\t\nregurol", max_size=80).map(str.encode)))
def test_kernel_arguments_mean_settings_or_are_refused(data: bytes) -> None:
    """Nothing but known variables comes out, and nothing but UsageError."""
    with contextlib.suppress(UsageError):
        assert set(parse_cmdline(data)) <= set(KERNEL_ARGUMENTS.values())


@given(st.dictionaries(st.sampled_from(sorted(KERNEL_ARGUMENTS)), SPOKEN))
def test_kernel_arguments_come_back_as_they_were_given(values: dict[str, str]) -> None:
    """Quoted, with anything printable in them."""
    line = " ".join(f'{name}="{value}"' for name, value in values.items())
    assert parse_cmdline(line.encode()) == {KERNEL_ARGUMENTS[name]: value for name, value in values.items()}


@given(st.one_of(st.binary(max_size=300), st.text("ITL_A=#\"' \n", max_size=80).map(str.encode)))
def test_a_file_of_settings_means_settings_or_is_refused(data: bytes) -> None:
    """Likewise."""
    with contextlib.suppress(UsageError):
        for name, value in parse_conf(data, "f").items():
            assert name.startswith("ITL_")
            assert value.isprintable()


@pytest.mark.threat("T330")
@given(st.integers(0, len(GOOD) - 1), st.integers(0, 7))
def test_no_flipped_bit_of_a_list_is_accepted(where: int, bit: int) -> None:
    """Text, key id, signature: one bit, and it is refused."""
    data = bytearray(GOOD)
    data[where] ^= 1 << bit
    with pytest.raises(ImageRejected):
        listing.verify(bytes(data), keys=KEYS, at=AT)


@given(st.binary(max_size=300))
def test_any_bytes_are_no_list(data: bytes) -> None:
    """Refused, in one way."""
    with pytest.raises(ImageRejected):
        listing.verify(data, keys=KEYS, at=AT)


@given(st.integers(512, 1024 + 128), st.binary(min_size=1, max_size=16))
@example(512 + 72, b"\xff" * 8)
def test_a_table_is_read_or_refused(at: int, change: bytes) -> None:
    """Whatever stands in it."""
    with contextlib.suppress(MalformedEvidence):
        gpt.parse(TABLE[:at] + change + TABLE[at + len(change) :])


def _cut(data: bytes, sizes: list[int]) -> Iterator[bytes]:
    for size in sizes:
        yield data[:size]
        data = data[size:]
    yield data


@given(
    st.lists(st.binary(max_size=2000), min_size=1, max_size=3),
    st.sampled_from([".xz", ".gz"]),
    st.lists(st.integers(0, 300), max_size=8),
)
def test_what_was_packed_is_unpacked_however_it_comes(
    parts: list[bytes], suffix: str, sizes: list[int]
) -> None:
    """Streams one after another, of xz with zeros between them; cut anywhere, also into nothing."""
    packed = b"".join(
        lzma.compress(each) + bytes(4) if suffix == ".xz" else gzip.compress(each) for each in parts
    )
    assert b"".join(unpack("os.raw" + suffix, _cut(packed, sizes))) == b"".join(parts)


@given(
    st.sampled_from([".xz", ".gz"]),
    st.integers(0, 80),
    st.binary(min_size=1, max_size=8),
    st.lists(st.integers(0, 60), max_size=4),
)
def test_what_does_not_unpack_is_refused(suffix: str, at: int, change: bytes, sizes: list[int]) -> None:
    """In one way; and no piece is longer than a MiB, however small what came was."""
    packed = PACKED[suffix]
    changed = packed[:at] + change + packed[at + len(change) :]
    with contextlib.suppress(ImageRejected):
        for piece in unpack("os.raw" + suffix, _cut(changed, sizes)):
            assert 0 < len(piece) <= PIECE_BYTES
