"""TSS2 PRIVATE KEY: what others write is read, what is written is read again, and nothing else is."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attestation.errors import MalformedEvidence
from attestation.tpm import Attr, Hierarchy, parse_public, parse_tpmt_public
from attestation.tpm.key_file import (
    MAX_KEY_FILE_BYTES,
    STORAGE_TEMPLATE,
    TPMKey,
    encode_key,
    encode_key_file,
    parse_key,
    parse_key_file,
)
from attestation.wire import b64decode, sized
from attestation_testing import SoftwareAK
from tests.vectors import OWN

FILES: Final = OWN.parent / "key-files"
PUBLIC: Final = SoftwareAK(seed=1).public.tpm2b()
KEY: Final = TPMKey(public=PUBLIC, private=sized(bytes(range(100))))
PERSISTENT: Final = replace(KEY, parent=0x81000001, empty_auth=False)


def tlv(tag: int, content: bytes) -> bytes:
    """Return DER of less than 128 bytes of content."""
    return bytes([tag, len(content)]) + content


OID, PARENT = bytes.fromhex("06066781050a0103"), bytes.fromhex("020440000001")
PRIVATE = tlv(0x04, KEY.private)
AUTH = bytes.fromhex("a0030101ff")


def body(*parts: bytes) -> bytes:
    """Return a SEQUENCE of *parts*, of less than 256 bytes."""
    content = b"".join(parts)
    return (b"\x30\x81" if len(content) >= 0x80 else b"\x30") + bytes([len(content)]) + content


GOOD = body(OID, AUTH, PARENT, tlv(0x04, PUBLIC), PRIVATE)


def test_by_hand() -> None:
    """Written out from the specification: the same bytes."""
    assert encode_key(KEY) == GOOD
    assert parse_key(GOOD) == KEY


@pytest.mark.parametrize(
    ("name", "empty_auth", "attributes"),
    [
        ("tpm2-openssl-p384", True, 0x00060072),
        ("tpm2-openssl-rsa2048", True, 0x00060072),
        ("tpm2-tools-p384", False, 0x00040472),
    ],
)
def test_files_of_others(name: str, empty_auth: bool, attributes: int) -> None:
    """Files of tpm2-openssl and tpm2-tools: read whole, and written again but for the TRUE that is no DER."""
    data = (FILES / f"{name}.pem").read_bytes()
    key = parse_key_file(data)
    assert (key.parent, key.empty_auth) == (Hierarchy.OWNER, empty_auth)
    assert parse_public(key.public).attributes == attributes
    assert parse_key_file(encode_key_file(key)) == key
    der = b64decode("".join(data.decode().splitlines()[1:-1]), "file")
    assert encode_key(key) == der.replace(bytes.fromhex("a003010101"), AUTH)
    assert parse_key_file(der) == key


def test_the_storage_key_is_that_of_everybody() -> None:
    """P-256, SHA-256, AES-128-CFB, 00030472, empty unique: other attributes would derive another key."""
    public = parse_tpmt_public(STORAGE_TEMPLATE)
    assert public.attributes == 0x00030472
    assert public.attributes & Attr.NO_DA
    assert bytes.fromhex("0023000b000304720000000600800043001000030010" + "00000000") == STORAGE_TEMPLATE


@pytest.mark.threat("T93")
@pytest.mark.parametrize(
    "der",
    [
        pytest.param(body(OID[:-1] + b"\x05", AUTH, PARENT, tlv(4, PUBLIC), PRIVATE), id="sealed data"),
        pytest.param(body(OID[:-1] + b"\x04", AUTH, PARENT, tlv(4, PUBLIC), PRIVATE), id="importable"),
        pytest.param(body(OID, tlv(0xA1, b""), PARENT, tlv(4, PUBLIC), PRIVATE), id="policy"),
        pytest.param(body(OID, AUTH, tlv(0xA2, tlv(4, b"")), PARENT, tlv(4, PUBLIC), PRIVATE), id="secret"),
        pytest.param(body(OID, AUTH, AUTH, PARENT, tlv(4, PUBLIC), PRIVATE), id="emptyAuth twice"),
        pytest.param(body(OID, tlv(0xA0, b""), PARENT, tlv(4, PUBLIC), PRIVATE), id="no BOOLEAN"),
        pytest.param(body(OID, b"\xa0\x03\x01\x01\x02", PARENT, tlv(4, PUBLIC), PRIVATE), id="BOOLEAN 02"),
        pytest.param(body(OID, b"\xa0\x02\x01\x00", PARENT, tlv(4, PUBLIC), PRIVATE), id="empty BOOLEAN"),
        pytest.param(body(OID, tlv(0xA0, AUTH[2:] + b"\0"), PARENT, tlv(4, PUBLIC), PRIVATE), id="and more"),
        pytest.param(body(OID, AUTH, tlv(4, PUBLIC), PRIVATE), id="no parent"),
        pytest.param(body(OID, AUTH, tlv(2, b""), tlv(4, PUBLIC), PRIVATE), id="empty parent"),
        pytest.param(body(OID, AUTH, tlv(2, b"\1"), tlv(4, PUBLIC), PRIVATE), id="short parent"),
        pytest.param(body(OID, AUTH, tlv(2, b"\0\x40\0\0\1"), tlv(4, PUBLIC), PRIVATE), id="long parent"),
        pytest.param(body(OID, AUTH, tlv(2, b"\x81\0\0\1"), tlv(4, PUBLIC), PRIVATE), id="negative parent"),
        pytest.param(body(OID, AUTH, tlv(2, b"\1\x81\0\0\1"), tlv(4, PUBLIC), PRIVATE), id="40 bit parent"),
        pytest.param(body(OID, AUTH, tlv(2, b"\x40\0\0\2"), tlv(4, PUBLIC), PRIVATE), id="another handle"),
        pytest.param(
            body(OID, AUTH, tlv(2, b"\0\x80\0\0\1"), tlv(4, PUBLIC), PRIVATE), id="transient parent"
        ),
        pytest.param(body(OID, AUTH, PARENT, tlv(4, PUBLIC[:-1]), PRIVATE), id="cut public area"),
        pytest.param(body(OID, AUTH, PARENT, tlv(4, PUBLIC + b"\0"), PRIVATE), id="public area and more"),
        pytest.param(body(OID, AUTH, PARENT, tlv(4, PUBLIC), tlv(4, b"")), id="no private part"),
        pytest.param(body(OID, AUTH, PARENT, tlv(4, PUBLIC), tlv(4, b"\0\0")), id="empty private part"),
        pytest.param(body(OID, AUTH, PARENT, tlv(4, PUBLIC), tlv(4, b"\0\2x")), id="cut private part"),
        pytest.param(body(OID, AUTH, PARENT, tlv(4, PUBLIC), tlv(4, b"\0\1xx")), id="private part and more"),
        pytest.param(body(OID, AUTH, PARENT, tlv(4, PUBLIC), PRIVATE, b"\5\0"), id="another member"),
        pytest.param(GOOD + b"\0", id="trailing byte"),
        pytest.param(b"\x31" + GOOD[1:], id="no SEQUENCE"),
        pytest.param(b"\x30\x80" + GOOD[3:] + b"\0\0", id="indefinite length"),
        pytest.param(b"\x30\x82\0" + GOOD[2:], id="long length"),
        pytest.param(b"\x30\x83\0\0" + GOOD[2:], id="longer length"),
        pytest.param(
            body(OID, AUTH, PARENT, b"\4\x81" + bytes([len(PUBLIC)]) + PUBLIC, PRIVATE), id="length"
        ),
    ],
)
def test_what_is_none(der: bytes) -> None:
    """Other kinds, other members, other encodings: malformed."""
    with pytest.raises(MalformedEvidence):
        parse_key(der)


def test_cut_anywhere() -> None:
    """Every prefix is malformed, as DER and as PEM."""
    pem = encode_key_file(KEY)
    for data in (GOOD, pem[:-1]):
        for size in range(len(data)):
            with pytest.raises(MalformedEvidence):
                parse_key_file(data[:size])


def test_emptyauth_may_be_absent() -> None:
    """Then the key may need a password."""
    assert parse_key(body(OID, PARENT, tlv(4, PUBLIC), PRIVATE)) == replace(KEY, empty_auth=False)


@pytest.mark.parametrize(
    "change",
    [
        lambda pem: b"x\n" + pem,
        lambda pem: pem + b"x",
        lambda pem: pem + pem,
        lambda pem: pem.replace(b"TSS2 PRIVATE", b"PRIVATE"),
        lambda pem: pem.replace(
            b"-----BEGIN TSS2 PRIVATE KEY-----\n", b"-----BEGIN TSS2 PRIVATE KEY-----\nA: b\n\n"
        ),
        lambda pem: pem.replace(b"\n-----END", b"=\n-----END"),
        lambda _: b"",
    ],
)
def test_pem_is_strict(change: object) -> None:
    """One block, no headers, no text around it."""
    assert callable(change)
    with pytest.raises(MalformedEvidence):
        parse_key_file(change(encode_key_file(KEY)))


def test_lines_may_end_as_in_windows() -> None:
    """CR LF, and no end of the last line."""
    pem = encode_key_file(KEY)
    assert parse_key_file(pem.replace(b"\n", b"\r\n")) == KEY
    assert parse_key_file(pem[:-1]) == KEY


def test_long_files_are_not_read() -> None:
    """Before anything else is looked at."""
    with pytest.raises(MalformedEvidence, match="at most"):
        parse_key_file(bytes(MAX_KEY_FILE_BYTES + 1))


def test_the_private_part_is_not_shown() -> None:
    """Neither in a repr nor in a message that holds one."""
    assert "private" not in repr(KEY)


@given(
    st.binary(min_size=1, max_size=1500),
    st.sampled_from([*Hierarchy, 0x81000000, 0x81FFFFFF, 0x81010001]),
    st.booleans(),
)
def test_there_and_back(private: bytes, parent: int, empty_auth: bool) -> None:
    """Any private part, every parent: what is written is read."""
    key = TPMKey(public=PUBLIC, private=sized(private), parent=parent, empty_auth=empty_auth)
    assert parse_key(encode_key(key)) == key
    assert parse_key_file(encode_key_file(key)) == key


@given(st.integers(min_value=0), st.integers(0, 7))
def test_what_is_read_is_written_again(where: int, bit: int) -> None:
    """One bit changed anywhere: malformed, or another key whose bytes are these, but for TRUE."""
    data = bytearray(encode_key(PERSISTENT))
    data[where % len(data)] ^= 1 << bit
    with contextlib.suppress(MalformedEvidence):
        key = parse_key(bytes(data))
        assert encode_key(key) == bytes(data).replace(bytes.fromhex("a003010101"), AUTH)


@given(st.binary(max_size=400))
def test_it_fails_in_one_way_only(data: bytes) -> None:
    """Whatever arrives, a caller sees a key or MalformedEvidence."""
    for sent in (data, b"\x30" + data, b"-----BEGIN TSS2 PRIVATE KEY-----\n" + data):
        with contextlib.suppress(MalformedEvidence):
            parse_key_file(sent)
