"""CoRIMs with reference values of SEV-SNP: read strictly, made into a policy (CONFIDENTIAL.md §12.5)."""

from __future__ import annotations

import sys
from fractions import Fraction
from typing import Any

import cbor2
import pytest
from cbor2 import CBORTag
from hypothesis import given
from hypothesis import strategies as st

from attestation.errors import MalformedEvidence
from attestation.reference import parse_policy
from attestation.reference.corim import CLASS_OID, MAX_CORIM_BYTES, PROFILE, parse_corim
from tests.vectors.confidential import SHARED, needs_vectors

A, B = b"\xaa" * 48, b"\xbb" * 48
CLASS = {0: {0: CBORTag(111, CLASS_OID)}}


def raw(key: int, value: bytes) -> dict[int, Any]:
    return {0: key, 1: {4: CBORTag(560, value)}}


MEASUREMENT = {0: 641, 1: {2: [[7, A], [7, B]]}}
GOOD = [
    MEASUREMENT,
    {0: 1, 1: {1: CBORTag(553, 3)}},
    raw(3, b"\xcc" * 16),
    raw(4, bytes(16)),
    raw(642, b"\xdd" * 32),
    raw(643, A),
    raw(644, B),
    raw(5, bytes(4)),
    {0: 647, 1: {1: CBORTag(552, 7)}},
]


def comid(*measurements: Any, environment: Any = CLASS, **triples: Any) -> CBORTag:
    more = {int(kind[1:]): value for kind, value in triples.items()}
    return CBORTag(506, cbor2.dumps({1: {0: "a"}, 4: {0: [[environment, list(measurements)]], **more}}))


def corim(*tags: Any, corim_id: Any = "an id", profile: Any = None, **more: Any) -> bytes:
    body = {0: corim_id, 1: list(tags), 3: CBORTag(32, PROFILE) if profile is None else profile}
    return cbor2.dumps(CBORTag(501, body | {int(k[1:]): v for k, v in more.items()}))


def test_what_a_policy_demands_is_taken() -> None:
    """Of every CoMID, each value once; all else is named."""
    more = {0: 1, 1: {1: CBORTag(553, 2)}}
    found = parse_corim(corim(comid(*GOOD, _3=[]), comid(MEASUREMENT, more)))
    assert found.corim_id == "an id"
    assert found.left_out == ("IMAGE_ID", "VMPL", "REPORTED_TCB", "triples of kind 3")
    assert found.block == {
        "measurement": [A.hex(), B.hex()],
        "id_block": {
            "family_id": ["cc" * 16],
            "id_key_digests": [A.hex()],
            "author_key_digests": [B.hex()],
        },
        "host_data": ["dd" * 32],
        "min_guest_svn": 2,
    }
    head = {"format": "itl-policy/2", "name": "a", "version": 1}
    assert parse_policy({**head, "sev_snp": found.block}).blocks["sev_snp"].has_reference


def test_an_exact_version_number_is_not_a_lowest_one() -> None:
    """A policy cannot say it."""
    found = parse_corim(corim(comid(MEASUREMENT, {0: 1, 1: {1: CBORTag(552, 3)}})))
    assert (found.left_out, "min_guest_svn" in found.block) == (("GUEST_SVN",), False)


@pytest.mark.parametrize(
    ("corim_id", "told"),
    [
        (bytes(range(16)), bytes(range(16)).hex()),
        (CBORTag(37, bytes(range(16))), "00010203-0405-0607-0809-0a0b0c0d0e0f"),
    ],
)
def test_the_id_may_be_a_uuid(corim_id: object, told: str) -> None:
    """In bytes or tagged."""
    assert parse_corim(corim(comid(MEASUREMENT), corim_id=corim_id)).corim_id == told


@needs_vectors
def test_the_vector() -> None:
    """Of Veraison: one guest, and trust anchors, which are no reference values."""
    found = parse_corim((SHARED / "corim/sevsnp-valid.corim.cbor").read_bytes())
    assert found.corim_id == "00000000-0000-0000-5596-0000000000001"
    assert found.block == {
        "measurement": [
            "7699e6ac12ccdfd1dfac70e649ce1f046cb2afbb003438f4cdddfe2ccbe182fa5ffbe8dcdb930454324e10c52c788980"
        ],
        "min_guest_svn": 0,
    }
    assert "CHIP_ID" in found.left_out
    assert "triples of kind 3" in found.left_out


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "no CBOR"),
        (b"\x00" * (MAX_CORIM_BYTES + 1), "longer than"),
        (b"\x81" * 5000 + b"\x00", "no CBOR"),
        (cbor2.dumps(CBORTag(18, [])), "signed; its signature is not verified here"),
        (cbor2.dumps({}), "not tagged 501"),
        (cbor2.dumps(CBORTag(501, [])), "CoRIM: not a map"),
        (corim(comid(MEASUREMENT)) + b"\x00", "bytes behind it"),
        (b"\xd9\x01\xf5\xa2\x00\x00\x00\x00", "shortest form"),
        (b"\xd9\x01\xf5\xbf\xff", "indefinite length"),
        (b"\xd9\x01\xf5\x82\xd8\x1c\x80\xd8\x1d\x00", "in more than one place"),
        (cbor2.dumps(CBORTag(501, CBORTag(256, CBORTag(25, 0)))), "in more than one place"),
        (corim(comid(MEASUREMENT), profile=CBORTag(32, "tag:other")), "another profile"),
        (corim(comid(MEASUREMENT), profile="tag"), "not tagged 32"),
        (corim(), "not a list of at least one"),
        (corim(CBORTag(505, b"")), "not tagged 506"),
        (corim(CBORTag(506, "text")), "not bytes"),
        (corim(CBORTag(506, b"\xa1")), "CoMID: no CBOR"),
        (corim(CBORTag(506, cbor2.dumps({}))), "triples: not a map"),
        (corim(comid(MEASUREMENT, environment={0: {0: CBORTag(111, b"\x2b")}})), "another class"),
        (corim(comid(MEASUREMENT, environment={0: {0: CBORTag(37, bytes(16))}})), "class: not tagged 111"),
        (corim(comid()), "measurements: not a list"),
        (corim(comid({0: 641})), "measurement value: not a map"),
        (corim(comid({0: 999, 1: {}})), "measurement 999 is no field"),
        (corim(comid({0: True, 1: {}})), "measurement True is no field"),
        (corim(comid({0: b"x", 1: {}})), "measurement bytes is no field"),
        (corim(comid({0: 641, 1: {2: [[1, A]]}})), "another algorithm"),
        (corim(comid({0: 641, 1: {2: [[7]]}})), "not a pair"),
        (corim(comid({0: 641, 1: {2: [[7, A[1:]]]}})), "47 bytes, expected 48"),
        (
            corim(comid({0: 641, 1: {2: [[7, bytes([i // 256, i % 256]) * 24] for i in range(1025)]}})),
            "more than 1024",
        ),
        (corim(comid(raw(642, b"x"))), "HOST_DATA: 1 bytes, expected 32"),
        (corim(comid({0: 642, 1: {4: bytes(32)}})), "not tagged 560"),
        (corim(comid({0: 1, 1: {1: 3}})), "not a security version number"),
        (corim(comid({0: 1, 1: {1: CBORTag(553, -1)}})), "not a security version number"),
        (corim(comid(raw(642, b"\xdd" * 32))), "no measurement and no digest"),
        (corim(comid(MEASUREMENT), corim_id=""), "id is neither"),
        (corim(comid(MEASUREMENT), corim_id=7), "id is neither"),
        (corim(comid(MEASUREMENT), corim_id=[]), "id is neither"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_what_is_refused(data: bytes, message: str) -> None:
    """Whatever is not exactly what stands there."""
    with pytest.raises(MalformedEvidence) as caught:
        parse_corim(data)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "data",
    [
        corim(comid(MEASUREMENT), corim_id=1 << 20_000),
        corim(comid(MEASUREMENT), corim_id=Fraction(1 << 20_000, 3)),
        corim(comid({0: 1 << 20_000, 1: {}})),
    ],
    ids=["id", "fraction", "key"],
)
def test_a_number_of_more_digits_than_python_writes(data: bytes) -> None:
    """It is refused in the one way; of triples that are left out nobody is told such a kind."""
    with pytest.raises(MalformedEvidence):
        parse_corim(data)
    kind = cbor2.dumps({1: {0: "a"}, 4: {0: [[CLASS, [MEASUREMENT]]], 1 << 20_000: []}})
    assert parse_corim(corim(CBORTag(506, kind))).left_out == ("triples of kind int",)


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in an extra: who lacks it is told which."""
    monkeypatch.setitem(sys.modules, "cbor2", None)
    with pytest.raises(MalformedEvidence, match="extra `tee`"):
        parse_corim(corim(comid(MEASUREMENT)))


@given(st.data())
def test_fails_in_one_way_only(data: st.DataObject) -> None:
    """Bytes, and a good CoRIM with any part replaced."""
    anything = st.recursive(
        st.none() | st.booleans() | st.integers() | st.binary() | st.text() | st.floats(),
        lambda of: (
            st.lists(of, max_size=3)
            | st.dictionaries(st.integers() | st.text(), of, max_size=3)
            | st.builds(CBORTag, st.sampled_from([18, 32, 37, 111, 501, 506, 552, 553, 560]), of)
        ),
        max_leaves=6,
    )
    part = data.draw(anything)
    made = data.draw(
        st.sampled_from(
            [
                corim(part),
                corim(comid(part)),
                corim(comid({0: 641, 1: part})),
                corim(comid({0: 1, 1: {1: part}})),
                corim(comid(MEASUREMENT), corim_id=part),
                corim(comid(MEASUREMENT, environment=part)),
                cbor2.dumps(CBORTag(501, part)),
                data.draw(st.binary()),
            ]
        )
    )
    try:
        found = parse_corim(made)
    except MalformedEvidence:
        return
    assert found.block
