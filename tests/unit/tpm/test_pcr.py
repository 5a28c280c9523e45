"""PCR selections: TPML_PCR_SELECTION and its names (TPM.md §4.1, N33)."""

from __future__ import annotations

import pytest

from attestation.errors import MalformedEvidence
from attestation.tpm import Alg, PCRSelection
from attestation.tpm import pcr as pcr_module
from attestation.wire import Reader
from tests.vectors import forge


def read(data: bytes) -> PCRSelection:
    reader = Reader(data, "selection")
    selection = PCRSelection.read(reader)
    reader.end()
    return selection


@pytest.mark.parametrize("size", [3, 4])
@pytest.mark.parametrize(
    "banks",
    [
        [],
        [(Alg.SHA256, ())],
        [(Alg.SHA256, (0,))],
        [(Alg.SHA256, (23,))],
        [(Alg.SHA256, tuple(range(24)))],
        [(Alg.SHA1, ()), (Alg.SHA256, (7,)), (Alg.SHA384, (0, 8, 16)), (Alg.SM3_256, (1,))],
    ],
)
def test_what_is_read_is_written_again(banks: list[tuple[int, tuple[int, ...]]], size: int) -> None:
    """Byte for byte, also the second time, when it is remembered; cut or followed by more it is malformed."""
    data = forge.selection(banks, size)
    for _ in range(2):
        selection = read(data)
        assert selection.serialise() == data
        assert selection.banks == tuple(banks)
    for cut in range(len(data)):
        with pytest.raises(MalformedEvidence):
            read(data[:cut])
    with pytest.raises(MalformedEvidence, match="trailing"):
        read(data + b"\0")


def test_bits_are_numbered_from_the_least_significant() -> None:
    """Bit i of byte i/8: a literal pins the order."""
    assert PCRSelection.from_names({"sha256": [0, 1, 2, 3, 4, 5, 6, 7, 11]}).serialise() == bytes.fromhex(
        "00000001000b03ff0800"
    )
    assert read(bytes.fromhex("00000001000b0400000080")).banks == ((Alg.SHA256, (31,)),)


def test_three_and_four_bytes_are_equal_if_their_bits_are() -> None:
    """The size of the bitmap is written back, and not compared."""
    three, four = (read(forge.selection([(Alg.SHA256, (0, 7))], size)) for size in (3, 4))
    assert three == four
    assert hash(three) == hash(four)
    assert three.serialise() != four.serialise()


@pytest.mark.parametrize(
    "data",
    [
        forge.selection([(Alg.SHA256, (0,)), (Alg.SHA256, (1,))]),
        forge.selection([(Alg.SHA256, ()), (Alg.SHA256, ())]),
        forge.selection([(alg, ()) for alg in (4, 11, 12, 13, 18)]),
        b"\xff\xff\xff\xff",
        b"\0\0\0\1\x00\x0b\x02\xff\xff",
        b"\0\0\0\1\x00\x0b\x05\0\0\0\0\0",
        b"\0\0\0\1\x00\x0b\x00",
        b"\0\0\0\1\x00\x27\x03\0\0\0",
        b"\0\0\0\1\x00\x10\x03\0\0\0",
    ],
)
def test_n33_what_no_selection_may_say(data: bytes) -> None:
    """A bank twice, too many banks, unknown banks, bitmaps of another size."""
    with pytest.raises(MalformedEvidence):
        read(data)


def test_memory_of_selections_is_bounded() -> None:
    """Whoever sends ever new selections fills nothing."""
    for bits in range(600):
        data = b"\0\0\0\1\x00\x0b\x03" + bits.to_bytes(3)
        assert read(data).serialise() == data
    assert len(pcr_module._ONE_BANK) <= 256


def test_names() -> None:
    """Indices are sorted, banks keep their order."""
    selection = PCRSelection.from_names({"sha384": [7, 0], "sha256": (3,)})
    assert selection.to_names() == {"sha384": [0, 7], "sha256": [3]}
    assert selection.as_sets() == {Alg.SHA384: (0, 7), Alg.SHA256: (3,)}
    assert read(forge.selection([(Alg.SHA1, ()), (Alg.SHA256, (3,))])).as_sets() == {Alg.SHA256: (3,)}


@pytest.mark.parametrize(
    "names",
    [
        {},
        {"sha256": []},
        {"sha256": [0, 0]},
        {"sha256": [24]},
        {"sha256": [-1]},
        {"sha3_256": [0]},
        {"SHA256": [0]},
        {name: [0] for name in ("sha1", "sha256", "sha384", "sha512", "sm3_256")},
    ],
)
def test_names_of_no_selection(names: dict[str, list[int]]) -> None:
    """Nothing, twice, outside, unknown, too many."""
    with pytest.raises(MalformedEvidence):
        PCRSelection.from_names(names)
