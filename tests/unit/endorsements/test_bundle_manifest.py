"""The manifest of a trust bundle: what is refused, and that what is written is read again (TPM.md §2.6)."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attestation.endorsements.bundle import (
    FORMAT,
    MAX_ENTRIES,
    MAX_MANIFEST_BYTES,
    BundleEntry,
    Manifest,
    Role,
    Status,
    format_manifest,
    parse_manifest,
)
from attestation.errors import BundleInvalid

A, B = "aa" * 32, "bb" * 32
ENTRY: dict[str, Any] = {
    "sha256": A,
    "spki_sha256": B,
    "role": "anchor",
    "vendor": "IFX",
    "subject": "Common Name: Infineon OPTIGA(TM) RSA Root CA",
    "not_before": "2013-07-26T00:00:00Z",
    "not_after": "2043-07-25T23:59:59Z",
    "sources": ["https://pki.infineon.com/OptigaRsaRootCA/OptigaRsaRootCA.crt"],
    "retrieved": "2026-11-21",
    "evidence": "compared with the publication",
    "status": "active",
}
GOOD: dict[str, Any] = {
    "format": FORMAT,
    "version": 3,
    "created": "2026-11-21T00:00:00Z",
    "entries": [ENTRY],
}


def with_entry(**changes: object) -> dict[str, Any]:
    return GOOD | {"entries": [ENTRY | changes]}


def without(name: str) -> dict[str, Any]:
    return GOOD | {"entries": [{k: v for k, v in ENTRY.items() if k != name}]}


def encoded(document: object) -> bytes:
    return json.dumps(document).encode()


def test_a_good_manifest() -> None:
    """Every member, the optional ones too, and where the file of an entry stands."""
    second = ENTRY | {
        "sha256": B,
        "role": "intermediate",
        "status": "distrusted",
        "reason": "key compromised",
        "licence": "none stated",
        "template": "RSA-2048 EKs",
        "not_after": "9999-12-31T23:59:59Z",
        "sources": [],
    }
    manifest = parse_manifest(encoded(GOOD | {"entries": [ENTRY, second], "sha1_allowed": [B]}))
    assert (manifest.version, manifest.created) == (3, datetime(2026, 11, 21, tzinfo=UTC))
    assert manifest.sha1_allowed == {B}
    assert manifest.entries == (
        BundleEntry(
            sha256=A,
            spki_sha256=B,
            role=Role.ANCHOR,
            vendor="IFX",
            subject="Common Name: Infineon OPTIGA(TM) RSA Root CA",
            not_before=datetime(2013, 7, 26, tzinfo=UTC),
            not_after=datetime(2043, 7, 25, 23, 59, 59, tzinfo=UTC),
            sources=("https://pki.infineon.com/OptigaRsaRootCA/OptigaRsaRootCA.crt",),
            retrieved=date(2026, 11, 21),
            evidence="compared with the publication",
        ),
        BundleEntry(
            sha256=B,
            spki_sha256=B,
            role=Role.INTERMEDIATE,
            vendor="IFX",
            subject="Common Name: Infineon OPTIGA(TM) RSA Root CA",
            not_before=datetime(2013, 7, 26, tzinfo=UTC),
            not_after=datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC),
            sources=(),
            retrieved=date(2026, 11, 21),
            evidence="compared with the publication",
            status=Status.DISTRUSTED,
            reason="key compromised",
            licence="none stated",
            template="RSA-2048 EKs",
        ),
    )
    assert [entry.path for entry in manifest.entries] == [
        f"anchors/IFX/{A[:16]}.der",
        f"intermediates/IFX/{B[:16]}.der",
    ]
    assert parse_manifest(format_manifest(manifest)) == manifest


def test_a_manifest_without_entries() -> None:
    """A bundle may be empty: then nobody is vouched for."""
    assert parse_manifest(encoded(GOOD | {"entries": []})).entries == ()


@pytest.mark.threat("T62")
@pytest.mark.parametrize(
    ("document", "match"),
    [
        ([], "manifest: not an object"),
        (None, "not an object"),
        (GOOD | {"format": "itl-tpm-bundle/2"}, "format"),
        (GOOD | {"format": None}, "format"),
        (GOOD | {"more": 1}, "unknown member 'more'"),
        ({k: v for k, v in GOOD.items() if k != "entries"}, "entries is missing"),
        (GOOD | {"version": 0}, "version"),
        (GOOD | {"version": True}, "version"),
        (GOOD | {"version": "1"}, "version"),
        (GOOD | {"version": 1.0}, "version"),
        (GOOD | {"version": 1_000_000_000}, "version"),
        (GOOD | {"created": "2026-11-21"}, "created"),
        (GOOD | {"created": 1}, "created"),
        (GOOD | {"created": "2026-11-21T00:00:00.5Z"}, "whole second"),
        (GOOD | {"entries": {}}, "entries is not a list"),
        (GOOD | {"entries": [[]]}, "entry 0: not an object"),
        (GOOD | {"entries": [ENTRY, ENTRY]}, "two entries"),
        (GOOD | {"entries": [ENTRY, ENTRY | {"sha256": A[:-1] + "b"}]}, "two entries"),
        (GOOD | {"entries": [ENTRY, ENTRY | {"role": "intermediate"}]}, "two entries"),
        (GOOD | {"sha1_allowed": A}, "sha1_allowed"),
        (GOOD | {"sha1_allowed": [1]}, "sha1_allowed"),
        (GOOD | {"sha1_allowed": [B]}, "not in the bundle"),
        (GOOD | {"sha1_allowed": [A, A]}, "twice"),
        (with_entry(more=1), "entry 0: unknown member 'more'"),
        (without("evidence"), "entry 0: member evidence is missing"),
        (with_entry(sha256=A.upper()), "sha256"),
        (with_entry(sha256=A + "\n"), "sha256"),
        (with_entry(sha256=7), "sha256"),
        (with_entry(spki_sha256="../../etc"), "spki_sha256"),
        (with_entry(role="root"), "role is not anchor or intermediate"),
        (with_entry(role=["anchor"]), "role"),
        (with_entry(vendor="../x"), "vendor"),
        (with_entry(vendor="ifx"), "vendor"),
        (with_entry(vendor=None), "vendor"),
        (with_entry(subject=""), "subject"),
        (with_entry(subject="a\x1b[2J"), "subject"),
        (with_entry(subject="\ud800"), "subject"),
        (with_entry(subject="x" * 1025), "subject"),
        (with_entry(not_before="2043-07-25T23:59:59+99:00"), "not_before"),
        (with_entry(not_after="2001-01-01T00:00:00Z"), "ends before it begins"),
        (with_entry(not_after=None), "not_after"),
        (with_entry(sources="https://a.example/"), "sources"),
        (with_entry(sources=["https://a.example/"] * 17), "sources"),
        (with_entry(sources=["file:///etc/passwd"]), "source"),
        (with_entry(sources=["https://a.example/ x"]), "source"),
        (with_entry(sources=[1]), "source"),
        (with_entry(retrieved="2026-11-31"), "retrieved"),
        (with_entry(retrieved="20261121"), "retrieved"),
        (with_entry(retrieved=20261121), "retrieved"),
        (with_entry(evidence=None), "evidence"),
        (with_entry(status="trusted"), "status is not active or distrusted"),
        (with_entry(status="distrusted"), "has a reason"),
        (with_entry(reason="why not"), "has a reason"),
        (with_entry(reason=None), "reason"),
        (with_entry(licence=""), "licence"),
        (with_entry(template=3), "template"),
    ],
)
def test_a_broken_rule_is_named(document: object, match: str) -> None:
    """A manifest that breaks one rule is refused with that rule."""
    with pytest.raises(BundleInvalid, match=match):
        parse_manifest(encoded(document))


@pytest.mark.threat("T62")
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"\xff\xfe",
        encoded(GOOD)[:-1] + b', "version": 3}',
        b"[" * 100_000,
        b'{"version": ' + b"9" * 10_000 + b"}",
    ],
    ids=["empty", "cut", "no text", "named twice", "deep", "long number"],
)
def test_what_is_no_json_is_refused(data: bytes) -> None:
    """Bytes that are no JSON object, or an ambiguous one, end in one error."""
    with pytest.raises(BundleInvalid, match="not JSON"):
        parse_manifest(data)


@pytest.mark.threat("T62")
def test_limits() -> None:
    """Bytes are counted before they are read, entries before they are judged."""
    with pytest.raises(BundleInvalid, match="at most 4194304"):
        parse_manifest(b" " * (MAX_MANIFEST_BYTES + 1))
    with pytest.raises(BundleInvalid, match="at most 4096"):
        parse_manifest(encoded(GOOD | {"entries": [0] * (MAX_ENTRIES + 1)}))
    many = [ENTRY | {"sha256": f"{i:016x}" + "0" * 48} for i in range(MAX_ENTRIES)]
    assert len(parse_manifest(encoded(GOOD | {"entries": many})).entries) == MAX_ENTRIES


def test_a_manifest_is_written_in_one_order() -> None:
    """Whatever the order of the entries, the same bytes are written: the manifest is compared by its hash."""
    entries = parse_manifest(
        encoded(
            GOOD | {"entries": [ENTRY | {"sha256": B, "role": "intermediate"}, ENTRY | {"vendor": "STM"}]}
        )
    ).entries
    created = datetime(2026, 11, 21, tzinfo=UTC)
    written = format_manifest(Manifest(version=1, created=created, entries=entries))
    assert written == format_manifest(Manifest(version=1, created=created, entries=entries[::-1]))
    assert written.isascii()
    assert written.endswith(b"}\n")
    assert b"\n\n" not in written


@given(st.binary(max_size=2048))
def test_parse_manifest_fails_in_one_way_only(data: bytes) -> None:
    """Whatever arrives, a caller sees a manifest or BundleInvalid."""
    with pytest.raises(BundleInvalid):
        parse_manifest(data)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@given(st.sampled_from([*GOOD, "sha1_allowed"]), JSON, st.sampled_from([*ENTRY, "reason", "licence"]), JSON)
def test_no_member_of_another_type_is_read(outer: str, value: object, inner: str, other: object) -> None:
    """Any JSON in the place of any member gives a manifest that is written and read again, or BundleInvalid."""
    for document in (GOOD | {outer: value}, with_entry(**{inner: other})):
        try:
            manifest = parse_manifest(encoded(document))
        except BundleInvalid:
            continue
        assert parse_manifest(format_manifest(manifest)) == manifest
