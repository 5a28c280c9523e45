"""Reading DER: positions, lengths and times, and nothing that has two readings."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from attestation.endorsements import der
from attestation.errors import MalformedEvidence
from tests.vectors import forge


@pytest.mark.parametrize("size", [0, 1, 127, 128, 255, 256, 65_535, 65_536])
def test_lengths_are_read_in_their_shortest_form(size: int) -> None:
    """Positions of header, content and end; one byte less than stated is refused."""
    data = der.write(0x04, bytes(size))
    found = der.element(data, 0, len(data))
    assert (found.tag, found.at, found.stop - found.start, found.stop) == (0x04, 0, size, len(data))
    with pytest.raises(MalformedEvidence):
        der.element(data, 0, len(data) - 1)


@pytest.mark.threat("T59")
@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\x04", id="no length"),
        pytest.param(b"\x1f\x01\x00", id="tag of several bytes"),
        pytest.param(b"\x30\x80\x00\x00", id="indefinite"),
        pytest.param(b"\x04\x81\x05hello", id="long form for a short length"),
        pytest.param(b"\x04\x82\x00\x80" + bytes(128), id="leading zero"),
        pytest.param(b"\x04\x85\x00\x00\x00\x00\x80" + bytes(128), id="length of five bytes"),
        pytest.param(b"\x04\x82\x01", id="cut inside the length"),
        pytest.param(b"\x04\x02a", id="cut inside the content"),
    ],
)
def test_what_is_not_der_is_malformed(data: bytes) -> None:
    """One encoding per value: with two, two readers could see two certificates in the same bytes."""
    with pytest.raises(MalformedEvidence):
        der.element(data, 0, len(data))


def test_an_end_inside_the_data_is_kept() -> None:
    """A value may not reach beyond the one that it is in."""
    data = b"\x30\x03\x04\x02ab"
    outer = der.element(data[:5], 0, 5)
    with pytest.raises(MalformedEvidence, match="says 4 bytes, has 3"):
        list(der.elements(data, outer.start, outer.stop))


def test_one_value_and_nothing_behind() -> None:
    """`only` names tag and trailing bytes."""
    assert der.only(b"\x05\x00", der.NULL, "it").stop == 2
    with pytest.raises(MalformedEvidence, match="it: 1 trailing bytes"):
        der.only(b"\x05\x00\x00", der.NULL, "it")
    with pytest.raises(MalformedEvidence, match="it: tag 0x05, 0x02 expected"):
        der.only(b"\x05\x00", der.INTEGER, "it")


@pytest.mark.parametrize(
    ("content", "value"), [(b"\0", 0), (b"\xff", -1), (b"\0\0\x17", 23), (b"\x85\1", -31487)]
)
def test_integers_may_be_padded_and_negative(content: bytes, value: int) -> None:
    """Serial numbers of published certificates are."""
    data = der.write(der.INTEGER, content)
    assert der.integer(data, der.element(data, 0, len(data))) == value


def test_an_integer_has_a_byte() -> None:
    """None at all is no number."""
    with pytest.raises(MalformedEvidence):
        der.integer(b"\x02\x00", der.Element(2, 0, 2, 2))


@pytest.mark.parametrize(
    ("content", "good"),
    [
        (b"\0", True),
        (b"\x7f\xff\xff\xff", True),
        (b"\0\x80\0\0\0", False),
        (b"\xff", False),
        (bytes(9), False),
    ],
)
def test_small_integers_have_bounds(content: bytes, good: bool) -> None:
    """0 to 2^31-1, in at most 8 bytes: no text of it is ever long."""
    data = der.write(der.INTEGER, content)
    found = der.element(data, 0, len(data))
    if good:
        assert der.small_integer(data, found) == int.from_bytes(content)
    else:
        with pytest.raises(MalformedEvidence):
            der.small_integer(data, found)


def test_unsigned_integers_are_written_shortest() -> None:
    """A zero in front only where the first bit would make it negative."""
    assert der.write_unsigned(0) == b"\x02\x01\x00"
    assert der.write_unsigned(127) == b"\x02\x01\x7f"
    assert der.write_unsigned(128) == b"\x02\x02\x00\x80"


def test_bit_strings() -> None:
    """Named bits from the first; a key or signature has whole bytes."""
    names = ("a", "b", "c", "d", "e", "f", "g", "h", "i")
    for content, found in (
        (b"\x07\x80", {"a"}),
        (b"\x00\x01", {"h"}),
        (b"\x07\x00\x80", {"i"}),
        (b"\x00", set()),
    ):
        data = der.write(der.BIT_STRING, content)
        assert der.named_bits(data, der.element(data, 0, len(data)), names) == found
    data = b"\x03\x03\x00ab"
    assert der.whole_bytes(data, der.element(data, 0, 5)) == b"ab"
    for wrong in (b"\x03\x00", b"\x03\x02\x08a", b"\x03\x02\x01a"):
        with pytest.raises(MalformedEvidence):
            der.whole_bytes(wrong, der.element(wrong, 0, len(wrong)))


@pytest.mark.parametrize("text", ["2.23.133.8.1", "1.2.840.113549.1.1.1", "0.9.2342", "2.999.1", "1.39.0"])
def test_object_identifiers(text: str) -> None:
    """As an independent writer writes them."""
    data = forge.oid(text)
    assert der.oid(data, der.element(data, 0, len(data))) == text


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\x06\x00", id="empty"),
        pytest.param(b"\x06\x02\x55\x84", id="cut"),
        pytest.param(b"\x06\x03\x55\x80\x04", id="leading zeros"),
        pytest.param(b"\x06\x41" + b"\x2a" * 65, id="long"),
        pytest.param(b"\x02\x01\x01", id="a number"),
    ],
)
def test_wrong_object_identifiers(data: bytes) -> None:
    """Two ways to write one OID would be two names for one extension."""
    with pytest.raises(MalformedEvidence):
        der.oid(data, der.element(data, 0, len(data)))


@pytest.mark.parametrize(
    ("data", "at"),
    [
        (forge.utc_time("250101000000Z"), datetime(2025, 1, 1, tzinfo=UTC)),
        (forge.utc_time("491231235959Z"), datetime(2049, 12, 31, 23, 59, 59, tzinfo=UTC)),
        (forge.utc_time("500101000000Z"), datetime(1950, 1, 1, tzinfo=UTC)),
        (forge.utc_time("2501010203Z"), datetime(2025, 1, 1, 2, 3, tzinfo=UTC)),
        (forge.generalized_time("99991231235959Z"), datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)),
    ],
)
def test_times(data: bytes, at: datetime) -> None:
    """UTC, to the second, up to the year 9999."""
    assert der.instant(data, der.element(data, 0, len(data))) == at


@pytest.mark.parametrize(
    "data",
    [
        forge.utc_time("250101000000"),
        forge.utc_time("250101000000+0100"),
        forge.utc_time("2501010000 0Z"),
        forge.utc_time("251301000000Z"),
        forge.generalized_time("20250230000000Z"),
        forge.generalized_time("20250101000000.5Z"),
        forge.generalized_time("00000101000000Z"),
        forge.utc_time(""),
        b"\x02\x01\x01",
    ],
)
def test_wrong_times(data: bytes) -> None:
    """No other form, no day that does not exist."""
    with pytest.raises(MalformedEvidence):
        der.instant(data, der.element(data, 0, len(data)))
