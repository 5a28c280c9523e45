"""Bundles with a CA key: signed by those who may, for this question, now (K1)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, mldsa, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from hypothesis import given
from hypothesis import strategies as st

from attestation.errors import BundleRejected, KeyUnsupported
from attestation.keys.provisioning import (
    MAX_BUNDLE_BYTES,
    MAX_SIGNATURES,
    Bundle,
    BundleCase,
    SignedBundle,
    fingerprint,
    match,
    read_bundle,
    sign_bundle,
)
from attestation.wire import b64url_decode, b64url_encode, canonical_json

AT: Final = datetime(2026, 11, 21, 12, tzinfo=UTC)
ADA: Final = ec.derive_private_key(7, ec.SECP384R1())
BOB: Final = mldsa.MLDSA87PrivateKey.from_seed_bytes(bytes(32))
EVE: Final = ec.derive_private_key(8, ec.SECP384R1())
SIGNERS: Final = frozenset({fingerprint(ADA.public_key()), fingerprint(BOB.public_key())})
BUNDLE: Final = Bundle(
    blob=b"b" * 584,
    chain=(b"leaf", b"root"),
    evidence_digest=b"e" * 48,
    bound_key_fingerprint=b"f" * 48,
    signer_uid="issuer-uid",
    qa_uid="qa-uid",
    nonce=b"n" * 32,
    not_before=AT,
    not_after=AT + timedelta(hours=1),
    oaep_hash="sha256",
)
CASE: Final = BundleCase(
    signer_uid="issuer-uid",
    qa_uid="qa-uid",
    nonce=b"n" * 32,
    evidence_digest=b"e" * 48,
    bound_key_fingerprint=b"f" * 48,
    oaep_hash="sha256",
    expires_at=AT + timedelta(hours=1),
    ca_certificate_sha256=None,
)
TEXT: Final = BUNDLE.serialise()
BY_ADA: Final = sign_bundle(TEXT, ADA)
BY_BOB: Final = sign_bundle(TEXT, BOB)


def read(text: bytes = TEXT, *signatures: str, required: int = 1) -> SignedBundle:
    """Read a bundle of the two administrators."""
    return read_bundle(text, signatures or (BY_ADA,), signers=SIGNERS, required=required)


def rejected(match_: str, call: Callable[[], Any]) -> None:
    """Assert that a bundle is rejected."""
    with pytest.raises(BundleRejected, match=match_):
        call()


def unread(match_: str, text: bytes, *signatures: str) -> None:
    """Assert that a bundle is rejected before anything is compared."""
    rejected(match_, lambda: read(text, *signatures))


def test_what_was_signed_is_read() -> None:
    """By an elliptic curve and by a lattice; the digest names the text, the fingerprints who signed."""
    for key, signature in ((ADA, BY_ADA), (BOB, BY_BOB)):
        found = read(TEXT, signature)
        assert (found.bundle, found.signers) == (BUNDLE, (fingerprint(key.public_key()),))
        assert match(found, CASE, at=AT) == BUNDLE
    assert read(TEXT, BY_ADA, BY_BOB, required=2).sha256 == read().sha256


@pytest.mark.threat("T291")
def test_nobody_signed() -> None:
    """No signature, a stranger's, one that a listed signer's stands beside; of another text (K1)."""
    rejected("signed by 0", lambda: read_bundle(TEXT, (), signers=SIGNERS, required=1))
    rejected("does not list", lambda: read(TEXT, sign_bundle(TEXT, EVE)))
    rejected("does not list", lambda: read(TEXT, BY_ADA, sign_bundle(TEXT, EVE)))
    other = replace(BUNDLE, blob=b"c" * 584).serialise()
    for signature in (BY_ADA, BY_BOB):
        unread("does not verify", other, signature)
    rejected("at least one", lambda: read(required=0))


@pytest.mark.threat("T291")
def test_dual_control_is_of_two_keys() -> None:
    """Two signatures of one are one."""
    assert sign_bundle(TEXT, ADA) != BY_ADA
    rejected("signed by 1", lambda: read(TEXT, BY_ADA, sign_bundle(TEXT, ADA), required=2))
    assert len(read(TEXT, BY_ADA, BY_BOB, required=2).signers) == 2


def test_too_much() -> None:
    """Bounded before it is worked on."""
    rejected("more than", lambda: read(b" " * (MAX_BUNDLE_BYTES + 1)))
    rejected("more than", lambda: read(TEXT, *[BY_ADA] * (MAX_SIGNATURES + 1)))
    rejected("16384 characters", lambda: read(TEXT, "a" * 16385))


def _forged(change: Callable[[dict[str, Any]], object]) -> str:
    """Return a good signature under another header."""
    header = json.loads(b64url_decode(BY_ADA.split(".")[0], "header"))
    change(header)
    text = b64url_encode(canonical_json(header))
    r, s = decode_dss_signature(ADA.sign(f"{text}.{b64url_encode(TEXT)}".encode(), ec.ECDSA(hashes.SHA384())))
    return f"{text}..{b64url_encode(r.to_bytes(48) + s.to_bytes(48))}"


@pytest.mark.parametrize(
    "change",
    [
        lambda h: h.update(alg="none"),
        lambda h: h.update(alg="ML-DSA-87"),
        lambda h: h.update(typ="JWT"),
        lambda h: h.update(crit=["b64"], b64=False),
        lambda h: h.pop("jwk"),
        lambda h: h["jwk"].update(kid="a"),
        lambda h: h["jwk"].update(x="AA"),
        lambda h: h["jwk"].update(kty="AKP"),
        lambda h: h.update(jwk=7),
    ],
)
def test_no_other_header_is_ours(change: Callable[[dict[str, Any]], object]) -> None:
    """A correct signature under it is none: its header would say what it means."""
    assert read(TEXT, _forged(lambda _: None)).signers == (fingerprint(ADA.public_key()),)
    rejected("cannot be read", lambda: read(TEXT, _forged(change)))


def test_what_is_no_signature() -> None:
    """Not three parts, a payload inside, nothing that can be read, one of another length."""
    header, _, signature = BY_ADA.split(".")
    for text in ("", "a", f"{header}.{b64url_encode(TEXT)}.{signature}", f"{header}..{signature}."):
        unread("not a detached JWS", TEXT, text)
    for text in (f"!..{signature}", f"{header}..!", f"{b64url_encode(b'[]')}..{signature}", f"..{signature}"):
        unread("cannot be read", TEXT, text)
    rejected("does not verify", lambda: read(TEXT, f"{header}..AAAA"))
    for key in (ec.generate_private_key(ec.SECP256R1()), rsa.generate_private_key(65537, 2048)):
        with pytest.raises(KeyUnsupported):
            sign_bundle(TEXT, key)  # type: ignore[arg-type]


def signed(text: bytes) -> SignedBundle:
    """Read a text that an administrator signed."""
    return read(text, sign_bundle(text, ADA))


@pytest.mark.parametrize(
    ("change", "match_"),
    [
        ({"v": 2}, "members"),
        ({"more": "x"}, "members"),
        ({"certChain": []}, "1 to 8"),
        ({"certChain": ["AA=="] * 9}, "1 to 8"),
        ({"certChain": "AA=="}, "1 to 8"),
        ({"certChain": [1]}, "no text"),
        ({"signerUid": 1}, "no text"),
        ({"signerUid": "\ud800"}, "no text"),
        ({"oaepHash": "md5"}, "oaepHash"),
        ({"blob": "!"}, "blob"),
        ({"nonce": "AA="}, "nonce"),
        ({"evidenceDigest": "zz"}, "not hex"),
        ({"evidenceDigest": "aa"}, "48 bytes"),
        ({"boundKeyFingerprint": "AA" * 48}, "one form"),
        ({"notBefore": "yesterday"}, "RFC 3339"),
        ({"notAfter": "2026-11-21T13:00:00Z"}, "one form"),
    ],
)
def test_no_other_text_is_a_bundle(change: dict[str, Any], match_: str) -> None:
    """Signed or not: each member in its one form."""
    rejected(match_, lambda: signed(canonical_json(json.loads(TEXT) | change)))


def test_no_other_spelling_is_a_bundle() -> None:
    """White space, another order, a member twice, other characters, no JSON."""
    rejected("one form", lambda: signed(TEXT + b"\n"))
    rejected("one form", lambda: signed(json.dumps(json.loads(TEXT)).encode()))
    for text in (b"{", b"\xff", TEXT[:-1] + b',"v":1}', b"[]", b"[" * 20_000):
        unread("not", text, sign_bundle(text, ADA))


@pytest.mark.threat("T291")
@pytest.mark.parametrize(
    "change",
    [
        {"signer_uid": "another"},
        {"qa_uid": "another"},
        {"nonce": b"o" * 32},
        {"evidence_digest": b"x" * 48},
        {"bound_key_fingerprint": b"x" * 48},
        {"oaep_hash": "sha1"},
    ],
)
def test_a_bundle_answers_one_question(change: dict[str, Any]) -> None:
    """Other issuer, old nonce, other evidence, other key, other hash (K1, K3): each alone is enough."""
    rejected("another", lambda: match(read(), replace(CASE, **change), at=AT))


@pytest.mark.threat("T291")
def test_a_bundle_counts_for_a_time() -> None:
    """From its beginning to its end, which is not behind that of the question."""
    end = BUNDLE.not_after
    assert match(read(), CASE, at=end) == BUNDLE
    for at in (AT - timedelta(seconds=1), end + timedelta(seconds=1)):
        with pytest.raises(BundleRejected, match="now"):
            match(read(), replace(CASE, expires_at=end + timedelta(days=1)), at=at)
    rejected("longer", lambda: match(read(), replace(CASE, expires_at=end - timedelta(seconds=1)), at=AT))


def test_the_ca_is_the_one_that_was_promised() -> None:
    """Where the issuer names its certificate."""
    promised = hashlib.sha256(b"leaf").digest()
    assert match(read(), replace(CASE, ca_certificate_sha256=promised), at=AT) == BUNDLE
    rejected("CA certificate", lambda: match(read(), replace(CASE, ca_certificate_sha256=b"x" * 32), at=AT))


@given(st.integers(0), st.integers(0, 7))
def test_no_flipped_bit_is_believed(where: int, bit: int) -> None:
    """Neither in the bundle nor in the signature."""
    both = bytearray(TEXT + BY_ADA.encode())
    both[where % len(both)] ^= 1 << bit
    text, signature = bytes(both[: len(TEXT)]), bytes(both[len(TEXT) :]).decode("latin-1")
    rejected("[a-z]", lambda: read(text, signature))
