"""Statements: what one machine may believe, and nobody else, and never again."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st

from attestation.keys import (
    DIRECTIVE_TYP,
    WELCOME_TYP,
    Binding,
    JWSRejected,
    KeySigner,
    acknowledgement,
    key_set_sha256,
    thumbprints,
    verify_kept,
    verify_statement,
)
from attestation.keys.statements import MAX_KEYS, claims
from attestation.wire import b64encode

SIGNER = KeySigner(ec.generate_private_key(ec.SECP384R1()))
KEYS = SIGNER.jwks()
NONCE = bytes(range(32))
TO = Binding(
    machine_id="7f3ad3ac-0f0e-4c55-9d4a-3f6f0e1b2c3d",
    ek_fingerprint="ab" * 48,
    ak_name=b"\x00\x0b" + b"n" * 32,
)
AT = datetime(2026, 11, 22, tzinfo=UTC)
CLAIMS = claims(TO, b64encode(NONCE), AT, action="lock")


def verify(token: str | None, typ: str = DIRECTIVE_TYP) -> dict[str, Any]:
    return verify_statement(token, typ=typ, keys=KEYS, to=TO, node_nonce=NONCE)


def test_a_statement_is_read_by_whom_it_is_for() -> None:
    """All claims come back, and its life is five minutes."""
    assert verify(SIGNER.sign_jwt(CLAIMS, typ=DIRECTIVE_TYP)) == CLAIMS
    assert CLAIMS["exp"] - CLAIMS["iat"] == 300


@pytest.mark.parametrize(
    "changes",
    [
        {"binding": {**TO.claim(), "machine_id": "00000000-0f0e-4c55-9d4a-3f6f0e1b2c3d"}},
        {"binding": {**TO.claim(), "ek_fingerprint": "cd" * 48}},
        {"binding": {**TO.claim(), "ak_name": "000b" + "00" * 32}},
        {"binding": {name: value for name, value in TO.claim().items() if name != "ak_name"}},
        {"binding": {**TO.claim(), "more": "of it"}},
        {"binding": None},
        {"node_nonce": b64encode(bytes(32))},
        {"node_nonce": None},
        {"node_nonce": "\u00e9"},
    ],
)
def test_it_is_nothing_to_anybody_else(changes: dict[str, Any]) -> None:
    """Each member of the binding counts, and the nonce of the request."""
    with pytest.raises(JWSRejected):
        verify(SIGNER.sign_jwt({**CLAIMS, **changes}, typ=DIRECTIVE_TYP))


def test_without_a_statement_nothing_is_believed() -> None:
    """None at all, of another kind, by another key."""
    other = KeySigner(ec.generate_private_key(ec.SECP384R1()))
    for token in (None, SIGNER.sign_jwt(CLAIMS, typ=WELCOME_TYP), other.sign_jwt(CLAIMS, typ=DIRECTIVE_TYP)):
        with pytest.raises(JWSRejected):
            verify(token)


def test_what_was_kept_needs_no_nonce_and_still_its_machine() -> None:
    """Its request is over; another disk in another box is not."""
    token = SIGNER.sign_jwt({**CLAIMS, "node_nonce": "another"}, typ=DIRECTIVE_TYP)
    assert verify_kept(token, typ=DIRECTIVE_TYP, keys=KEYS, to=TO)["action"] == "lock"
    elsewhere = Binding(machine_id=TO.machine_id, ek_fingerprint="cd" * 48, ak_name=TO.ak_name)
    with pytest.raises(JWSRejected):
        verify_kept(token, typ=DIRECTIVE_TYP, keys=KEYS, to=elsewhere)


@given(st.text(max_size=300) | st.binary(max_size=300).map(lambda b: b.decode("latin-1")))
def test_whatever_comes_is_refused_in_one_way(token: str) -> None:
    """Any text: a caller sees claims or JWSRejected."""
    with pytest.raises(JWSRejected):
        verify(token)


def test_a_header_that_is_deep_is_refused_in_the_same_way() -> None:
    """Before a signature is looked at, the header is parsed: 48 KiB of brackets end no agent."""
    from base64 import urlsafe_b64encode

    for deep in (b"[" * 40_000, b'{"alg":' * 6_000):
        with pytest.raises(JWSRejected):
            verify(urlsafe_b64encode(deep).decode().rstrip("=") + ".e30.AAAA")


def test_an_acknowledgement_has_a_domain_of_its_own() -> None:
    """SHA-256 over prefix, nonce, digest and outcome (PROTOCOL §8.4)."""
    expected = hashlib.sha256(b"itl-ack-v2\x00" + NONCE + b"d" * 32 + b"done").digest()
    assert acknowledgement(NONCE, b"d" * 32, "done") == expected


def test_a_key_set_has_one_name() -> None:
    """By RFC 7638: neither order nor remarks count; a shell computes the same from the kids."""
    other = KeySigner(ec.generate_private_key(ec.SECP384R1())).jwks()["keys"]
    one, two = (
        {"keys": [*KEYS["keys"], *other]},
        {"keys": [{**k, "use": "x"} for k in [*other, *KEYS["keys"]]]},
    )
    assert set(thumbprints(one)) == {k["kid"] for k in one["keys"]}
    assert key_set_sha256(thumbprints(one)) == key_set_sha256(frozenset(thumbprints(two)))
    lines = "".join(sorted(f"{k['kid']}\n" for k in one["keys"]))
    assert key_set_sha256(thumbprints(one)) == hashlib.sha256(lines.encode()).digest()
    rsa = {"keys": [{"kty": "RSA", "n": "AQAB", "e": "AQAB"}]}
    assert len(thumbprints(rsa)) == 1


KEY = KEYS["keys"][0]


@pytest.mark.parametrize(
    "jwks",
    [
        {},
        {"keys": KEY},
        {"keys": []},
        {"keys": [KEY] * (MAX_KEYS + 1)},
        {"keys": ["x"]},
        {"keys": [{**KEY, "kty": "oct"}]},
        {"keys": [{**KEY, "kty": []}]},
        {"keys": [{**KEY, "x": 1}]},
        {"keys": [{name: value for name, value in KEY.items() if name != "y"}]},
        {"keys": [{**KEY, "d": "AAAA"}]},
    ],
)
def test_what_is_no_set_of_public_keys_is_none(jwks: dict[str, Any]) -> None:
    """Nothing of it is pinned."""
    with pytest.raises(JWSRejected):
        thumbprints(jwks)


@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.text(max_size=5)
        | st.sampled_from(["EC", "RSA", "P-384"]),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["keys", "kty", "crv", "x", "y", "n", "e", "d"]), inner, max_size=5
            )
        ),
        max_leaves=12,
    )
)
def test_any_json_is_a_key_set_or_refused(found: Any) -> None:
    """One error, whatever the members hold."""
    try:
        names = thumbprints({"keys": found})
    except JWSRejected:
        return
    assert 1 <= len(names) <= MAX_KEYS
