"""Bytes and text at the borders: strict readers, canonical JSON."""

from __future__ import annotations

import base64
from datetime import UTC, datetime

import pytest
from pydantic import TypeAdapter, ValidationError

from attestation.api.base import Instant
from attestation.errors import MalformedEvidence
from attestation.wire import (
    Reader,
    b64decode,
    b64encode,
    b64url_decode,
    b64url_encode,
    canonical_json,
    cbor_tags,
    der_of,
    hexdecode,
    jcs,
    pae,
    pem,
    pem_block,
    pem_blocks,
    sized,
    u16,
    u32,
    u64,
)


def test_a_reader_takes_from_front_to_back() -> None:
    """Integers are big-endian; fields carry their size."""
    reader = Reader(bytes.fromhex("01 0203 04050607 08090a0b0c0d0e0f 0002 aabb ccdd"), "thing")
    assert reader.u8() == 1
    assert reader.u16() == 0x0203
    assert reader.u32() == 0x04050607
    assert reader.u64() == 0x08090A0B0C0D0E0F
    assert reader.peek(2) == b"\0\2"
    start = reader.position
    assert reader.sized() == b"\xaa\xbb"
    assert reader.since(start) == b"\0\2\xaa\xbb"
    assert reader.remaining == 2
    with pytest.raises(MalformedEvidence, match="thing: 2 trailing bytes"):
        reader.end()
    assert reader.rest() == b"\xcc\xdd"
    assert reader.peek(5) == b""
    reader.end()


@pytest.mark.parametrize("read", [Reader.u8, Reader.u16, Reader.u32, Reader.u64, Reader.sized])
def test_a_reader_never_reads_past_the_end(read: object) -> None:
    """One byte too few of anything: malformed, with offset and what was needed."""
    size = {Reader.u8: 1, Reader.u16: 2, Reader.u32: 4, Reader.u64: 8, Reader.sized: 2}[read]  # type: ignore[index]  # the table
    reader = Reader(bytes(size - 1), "thing")
    with pytest.raises(MalformedEvidence, match=f"thing: needs {size} bytes at offset 0, has {size - 1}"):
        read(reader)  # type: ignore[operator]  # a method of the table
    with pytest.raises(MalformedEvidence, match="needs 3 bytes at offset 2, has 2"):
        Reader(b"\0\3ab", "thing").sized()


def test_a_sized_field_has_its_cap() -> None:
    """At the cap it is read, above it is refused, even where the bytes are there."""
    assert Reader(sized(bytes(4)), "thing").sized(4) == bytes(4)
    with pytest.raises(MalformedEvidence, match="5 bytes, at most 4"):
        Reader(sized(bytes(5)), "thing").sized(4)


def test_writing() -> None:
    """The reverse of reading."""
    assert u16(0x0102) + u32(0x03040506) + u64(7) == bytes.fromhex("0102030405060000000000000007")
    assert sized(b"ab") == b"\0\2ab"


def test_pem_there_and_back() -> None:
    """Alone with any white space, or several with text between; what begins as DER is as it is."""
    ours, key = pem("CERTIFICATE", bytes(range(100))), pem("X509 CRL", b"list")
    assert ours.splitlines()[1] == b64encode(bytes(range(48)))
    spaced = f" \r\n{ours}".replace("\n", " \r\n ").encode()
    assert (
        pem_block(spaced, "x", "KEY", "CERTIFICATE")
        == der_of(spaced, "x", "CERTIFICATE")
        == bytes(range(100))
    )
    assert pem_blocks(f"# a\n{ours}b{key}c".encode(), "x") == [
        ("CERTIFICATE", bytes(range(100))),
        ("X509 CRL", b"list"),
    ]
    assert pem_blocks(b"no block", "x") == []
    assert der_of(b"0", "x", "CERTIFICATE") == b"0"
    with pytest.raises(MalformedEvidence, match="x: neither DER nor PEM"):
        der_of(b"1", "x", "CERTIFICATE")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("", "x"),
        ("END CERTIFICATE", "END KEY"),
        ("CERTIFICATE", "KEY"),
        ("AQID", "AQI"),
        ("AQID", "AR=="),
        ("AQID", "AQ-D"),
        ("AQID", "A: b\n\nAQID"),
    ],
)
def test_what_is_not_one_block_is_malformed(old: str, new: str) -> None:
    """Text around it, labels that differ or are others, no base64 or not the canonical one, headers."""
    with pytest.raises(MalformedEvidence, match=r"^x: "):
        pem_block(pem("CERTIFICATE", b"\1\2\3").replace(old, new).encode(), "x", "CERTIFICATE")


def test_no_block_of_several_is_passed_over() -> None:
    """One that is cut, or holds no base64, would silently not be there."""
    good = pem("CERTIFICATE", b"\1\2\3")
    for bad in (good[:-3], good.replace("AQ", "!!"), good.replace("AQID", "AQI")):
        with pytest.raises(MalformedEvidence, match=r"^x: PEM"):
            pem_blocks((good + bad).encode(), "x")


@pytest.mark.parametrize("data", [b"", b"\0", b"ab", b"abc", bytes(range(256))])
def test_base64_there_and_back(data: bytes) -> None:
    """Standard alphabet with padding, as the standard library writes it."""
    text = b64encode(data)
    assert text == base64.b64encode(data).decode()
    assert b64decode(text, "field") == data


@pytest.mark.parametrize(
    "text",
    [
        "A", "AA", "AAA", "AA=", "A===", "====", "=AAA", "AAAA=", "AAAA====", "AA==AA==",
        " AAAA", "AAAA ", "AAAA\n", "AA\nAA", "AAA-", "AAA_", "AAA!", "AB==", "AAB=", "ÄAAA", "\ud800AAA", "AAA\0",
    ],
)  # fmt: skip
def test_base64_has_one_form(text: str) -> None:
    """No white space, no other alphabet, no missing padding, no bits that say nothing."""
    with pytest.raises(MalformedEvidence, match="field"):
        b64decode(text, "field")


@pytest.mark.parametrize("most", [0, 1, 2, 3, 4, 5])
def test_base64_has_its_cap(most: int) -> None:
    """Exactly the longest result is read, one byte more is not."""
    assert b64decode(b64encode(bytes(most)), "field", max_bytes=most) == bytes(most)
    with pytest.raises(MalformedEvidence, match=f"longer than {most} bytes"):
        b64decode(b64encode(bytes(most + 1)), "field", max_bytes=most)


def test_text_that_is_too_long_is_not_even_decoded() -> None:
    """The cap stands before the work."""
    with pytest.raises(MalformedEvidence, match="longer than 3 bytes"):
        b64decode("!" * 100, "field", max_bytes=3)


def test_hex() -> None:
    """Lower case, whole bytes."""
    assert hexdecode("", "field") == b""
    assert hexdecode("00ff", "field") == b"\0\xff"
    assert hexdecode("00ff", "field", size_bytes=2) == b"\0\xff"


@pytest.mark.parametrize(
    "text", ["0", "0F", "0g", " 00", "00 ", "00\n", "0x00", "٠٠", "00 ff", "\ud800\ud800"]
)
def test_hex_has_one_form(text: str) -> None:
    """No upper case, white space, prefix or foreign digits."""
    with pytest.raises(MalformedEvidence, match="field: not lower-case hex"):
        hexdecode(text, "field")


@pytest.mark.parametrize("text", ["", "00", "000000"])
def test_hex_has_its_length(text: str) -> None:
    """Exactly as long as demanded."""
    with pytest.raises(MalformedEvidence, match="expected 2"):
        hexdecode(text, "field", size_bytes=2)


def test_canonical_json_is_pinned() -> None:
    """Sorted keys, no white space, ASCII escapes, null: the bytes never change."""
    value = {"b": None, "a": 1, "ä": "é\n😀", "c": [True, {"z": "", "y": 0}]}
    assert canonical_json(value) == (
        b'{"a":1,"b":null,"c":[true,{"y":0,"z":""}],"\\u00e4":"\\u00e9\\n\\ud83d\\ude00"}'
    )


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_canonical_json_has_no_nan(number: float) -> None:
    """What JSON cannot say is a mistake of ours."""
    with pytest.raises(ValueError):
        canonical_json({"a": number})


@pytest.mark.parametrize("text", ["0.5", "1770000000", "12:00", "", "2026-03-09T12:00:00"])
def test_a_number_is_no_instant(text: str) -> None:
    """The published schema says `date-time`; pydantic takes seconds since 1970 as well."""
    instant = TypeAdapter(Instant)
    assert instant.validate_python("2026-03-09T12:00:00Z") == datetime(2026, 3, 9, 12, tzinfo=UTC)
    with pytest.raises(ValidationError):
        instant.validate_python(text)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        # RFC 8785 §3.2.3: members in the order of their UTF-16, which is not that of their code points.
        (
            {
                "€": "Euro Sign",
                "\r": "CR",
                "\ufb33": "Hebrew",
                "1": "One",
                "😀": "Smiley",
                "\x80": "Control",
                "ö": "o",
            },
            '{"\\r":"CR","1":"One","\x80":"Control","ö":"o","€":"Euro Sign","😀":"Smiley","\ufb33":"Hebrew"}',
        ),
        (
            {"b": [1, True, None, (-2, '\b"\\/\x1f\x7f')], "a": {}},
            '{"a":{},"b":[1,true,null,[-2,"\\b\\"\\\\/\\u001f\x7f"]]}',
        ),
        (2**53 - 1, "9007199254740991"),
    ],
)
def test_canonical_json_of_others(value: object, text: str) -> None:
    """RFC 8785: the same text whoever writes it."""
    assert jcs(value) == text.encode()


def _deep() -> object:
    value: object = None
    for _ in range(5000):
        value = [value]
    return value


@pytest.mark.parametrize("value", [1.0, 2**53, -(2**53), {1: 2}, {"a": b""}, "\ud800", _deep()])
def test_what_has_no_canonical_form(value: object) -> None:
    """Refused, not written in some form of ours."""
    with pytest.raises(ValueError):
        jcs(value)


def test_an_envelope_signs_its_type_and_lengths() -> None:
    """The example of DSSE v1, protocol.md."""
    assert pae("http://example.com/HelloWorld", b"hello world") == (
        b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    )


def test_base64url_has_one_form() -> None:
    """Without padding; another alphabet, white space, padding, spare bits and what is too long are refused."""
    for data in (b"", b"a", b"ab", b"abc", b"\xff\xfe\xfd\xfc"):
        assert b64url_decode(b64url_encode(data), "x") == data
    assert b64url_encode(b"\xff\xfe\xfd\xfc") == "__79_A"
    for text in ("YQ==", "YR", "+/", "Y Q", "Y", "é"):
        with pytest.raises(MalformedEvidence, match="x: not base64url"):
            b64url_decode(text, "x")
    assert b64url_decode("YWE", "x", max_bytes=2) == b"aa"
    for text in ("YWFh", "YWFhYQ"):
        with pytest.raises(MalformedEvidence, match="long"):
            b64url_decode(text, "x", max_bytes=2)


@pytest.mark.parametrize(
    ("data", "tags"),
    [
        ("", set()),
        ("83010243aabbcc", set()),
        ("a1617843c0c1c2", set()),
        ("fbc0c1c2c3c4c5c6c7", set()),
        ("d81c81d81d00", {28, 29}),
        ("82c101d9010080", {1, 256}),
        ("da0001000081db000000010000000000", {1 << 16, 1 << 32}),
    ],
)
def test_tags_of_cbor_are_seen(data: str, tags: set[int]) -> None:
    """Those that stand for themselves, and no byte of a string or number that looks like one."""
    assert cbor_tags(bytes.fromhex(data)) == tags


@pytest.mark.parametrize("data", ["5f", "9fff", "1c", "43aabb", "18", "5bffffffffffffffff"])
def test_cbor_has_definite_lengths_that_fit(data: str) -> None:
    """Otherwise a tag could stand where it is not looked for."""
    with pytest.raises(MalformedEvidence):
        cbor_tags(bytes.fromhex(data))
