"""Reading the file of a sealed bundle: with limits, in one spelling, failing in one way."""

from __future__ import annotations

import base64
import json
from typing import Any
from unittest.mock import patch

import pytest

from attestation.audit.note import MAX_NOTE_BYTES
from attestation.audit.proof import MAX_LEAF_BYTES
from attestation.errors import MalformedEvidence
from attestation.sealing import MAX_FILE_BYTES, file, parse, service_key, service_keys
from attestation.sealing.statement import MAX_SUBJECTS
from attestation.wire import b64encode, jcs
from tests.unit.sealing.seal_kit import KEY, SIGNER, sealed

FIRST, *REST = sealed().splitlines(keepends=True)
BUNDLE: dict[str, Any] = json.loads(FIRST)
LINE: dict[str, Any] = json.loads(REST[0])
JWK = dict(KEY.jwk)


def with_first(**members: Any) -> bytes:
    """Return the file with other members in its first line; None leaves one out."""
    said = {name: value for name, value in (BUNDLE | members).items() if value is not None}
    return jcs(said) + b"\n" + b"".join(REST)


def with_log(**members: Any) -> bytes:
    """Return the file with other members of the log's entry."""
    return with_first(logEntry={**BUNDLE["logEntry"], **members})


def with_envelope(**members: Any) -> bytes:
    """Return the file with other members of the envelope."""
    return with_first(dsseEnvelope={**BUNDLE["dsseEnvelope"], **members})


def with_line(**members: Any) -> bytes:
    """Return the file with other members in the line of the event."""
    return FIRST + jcs({**LINE, **members}) + b"\n" + b"".join(REST[1:])


def with_key(**members: Any) -> bytes:
    """Return the file with another key."""
    return with_first(key={**JWK, **members})


SIGNATURE = BUNDLE["dsseEnvelope"]["signatures"][0]


@pytest.mark.threat("T280")
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n" * 4,
        FIRST + b"".join(REST)[:-1],
        FIRST + b"".join(REST[:2]),
        FIRST + REST[0] * (MAX_SUBJECTS + 1),
        b"\xff" + sealed()[1:],
        b"[]\n" + b"".join(REST),
        b"[" * 5000 + b"\n" + b"".join(REST),
        b" " + sealed(),
        FIRST.replace(b'{"dsseEnvelope"', b'{"key":{},"dsseEnvelope"') + b"".join(REST),
        FIRST.replace(b'"index":4', b'"index":4.0') + b"".join(REST),
        FIRST.replace(b'"index":4', b'"index":NaN') + b"".join(REST),
        FIRST.replace(b'"index":4', b'"index":99999999999999999999') + b"".join(REST),
        with_first(mediaType="application/json"),
        with_first(more=1),
        with_first(logEntry=None),
        with_first(key="text"),
        with_envelope(payloadType="text/plain"),
        with_envelope(payload="%"),
        with_envelope(payload=b64encode(bytes(file.MAX_STATEMENT_BYTES + 1))),
        with_envelope(signatures=[]),
        with_envelope(signatures=[SIGNATURE, SIGNATURE]),
        with_envelope(signatures=["text"]),
        with_envelope(signatures=[{**SIGNATURE, "sig": b64encode(bytes(129))}]),
        with_log(index=True),
        with_log(index=-1),
        with_log(index=6),
        with_log(treeSize="6"),
        with_log(hashes=[b64encode(bytes(32))] * 64),
        with_log(hashes=[1]),
        with_log(hashes=[b64encode(bytes(31))]),
        with_log(rootHash=b64encode(bytes(33))),
        with_log(checkpoint="x" * (MAX_NOTE_BYTES + 1)),
        with_log(entry=b64encode(bytes(MAX_LEAF_BYTES + 1))),
        with_key(kty="RSA"),
        with_key(crv="P-256"),
        with_key(d="AA"),
        with_key(x="AA"),
        with_key(x="A" * 60),
        with_key(x=JWK["x"] + "*"),
        with_key(x="A" * 63 + "*"),
        with_key(x=base64.urlsafe_b64encode(b"\xff" * 48).decode()),
        with_line(content="%"),
        with_line(content=b64encode(b"another")),
        with_line(digest={}),
        with_line(digest={"sha256": 1}),
        with_line(more=1),
    ],
)
def test_what_is_no_bundle_is_malformed(data: bytes) -> None:
    """Whatever is wrong with it, one error says so."""
    with pytest.raises(MalformedEvidence):
        parse(data)


def test_the_changes_above_are_what_is_wrong() -> None:
    """Each helper gives back a good file where nothing is changed."""
    for good in (with_first(), with_log(), with_envelope(), with_line(), with_key()):
        assert parse(good) == parse(sealed())


def test_sizes_are_looked_at_first() -> None:
    """No line, and no file, is read that is longer than any of ours."""
    with pytest.raises(MalformedEvidence, match="at most"):
        parse(bytes(MAX_FILE_BYTES + 1))
    with pytest.raises(MalformedEvidence, match="first line of"):
        parse(b" " * (file.MAX_BUNDLE_LINE_BYTES + 1) + b"\n" + b"".join(REST))
    # The limit of a subject is that of 16 MiB in base64; a smaller one stands for it here.
    with patch.object(file, "MAX_SUBJECT_LINE_BYTES", len(REST[0]) - 2), pytest.raises(MalformedEvidence):
        parse(sealed())


def test_a_key_is_named_by_its_thumbprint() -> None:
    """RFC 7638: what the service publishes as `kid`, and no name that a file brings."""
    (published,) = SIGNER.jwks()["keys"]
    assert KEY.key_id == published["kid"]
    assert service_keys({"keys": [{**published, "kid": "other"}]}) == (KEY,)
    assert service_keys({"keys": [{"kty": "RSA"}, "text"]}) == ()


@pytest.mark.parametrize(
    "jwks", [None, {}, {"keys": {}}, {"keys": [JWK] * 65}, {"keys": [{**JWK, "x": "AA"}]}]
)
def test_what_is_no_key_set_is_malformed(jwks: object) -> None:
    """A pinned file that cannot be read pins nothing, and says so."""
    with pytest.raises(MalformedEvidence):
        service_keys(jwks)


def test_a_point_that_is_not_on_the_curve_is_no_key() -> None:
    """Coordinates of the right length need not be a key."""
    with pytest.raises(MalformedEvidence, match="no point"):
        service_key({**JWK, "y": JWK["x"]})
