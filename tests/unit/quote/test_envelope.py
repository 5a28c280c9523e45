"""The envelope of a QuoteAttestation: what is read of it, and what is none."""

from __future__ import annotations

import copy
import hashlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attestation.errors import MalformedEvidence
from attestation.quote import Purpose, evidence_digest, key_fingerprint, parse_envelope
from attestation.report_data import lp, quote_binding
from attestation.wire import b64encode
from tests.unit.quote.quote_kit import NONCE, SPKI, UID, spec

GOOD = spec()


def test_what_is_read() -> None:
    """The fields that a verdict rests on."""
    found = parse_envelope(GOOD | {"policyRef": {"name": "p"}, "requestRef": None})
    assert (found.purpose, found.evidence_type, found.scheme) == (
        Purpose.KEY_PROVISIONING,
        "sgx",
        "itl-qa-v1",
    )
    assert (found.nonce, found.spki, found.signer_uid) == (NONCE, SPKI, UID)
    assert (found.oaep_hash, found.chain) == ("sha256", ())
    asked = dict(GOOD, purpose="CsrAttestation")
    del asked["wrap"]
    assert parse_envelope(asked).oaep_hash is None
    assert parse_envelope(GOOD | {"purpose": "CsrAttestation", "wrap": None}).oaep_hash is None


def changed(path: str, value: Any) -> dict[str, Any]:
    """Return the good spec with one member set; None takes it away."""
    whole: dict[str, Any] = copy.deepcopy(GOOD)
    *outer, last = path.split(".")
    inner = whole
    for name in outer:
        inner = inner[name]
    if value is None:
        del inner[last]
    else:
        inner[last] = value
    return whole


@pytest.mark.parametrize(
    ("path", "value", "match"),
    [
        ("purpose", "More", "purpose"),
        ("purpose", 7, "purpose"),
        ("evidence", None, "spec"),
        ("more", 1, "spec"),
        ("evidence", 7, "evidence"),
        ("evidence.data", None, "evidence"),
        ("evidence.more", "x", "evidence"),
        ("evidence.data", 7, "data"),
        ("evidence.data", "!", "data"),
        ("evidence.type", "", "type"),
        ("evidence.format", "x" * 254, "format"),
        ("evidence.certChain", "x", "certChain"),
        ("evidence.certChain", ["AA=="] * 9, "certChain"),
        ("evidence.certChain", [b64encode(bytes(16385))], "certChain"),
        ("binding.hash", None, "binding"),
        ("binding.nonce", "AA==", "32 bytes"),
        ("binding.nonce", b64encode(bytes(33)), "nonce"),
        ("publicKey", 7, "publicKey"),
        ("signerRef.uid", None, "signerRef"),
        ("signerRef.uid", 7, "uid"),
        ("signerRef.uid", "\ud800", "uid"),
        ("evidence.type", "sgx\x1b[2J", "type"),
        ("wrap", None, "needs wrap"),
        ("wrap.oaepHash", "md5", "oaepHash"),
        ("wrap.keyWrap", None, "wrap"),
        ("expiresAt", "tomorrow", "expiresAt"),
        ("expiresAt", 7, "expiresAt"),
    ],
)
def test_what_is_none(path: str, value: Any, match: str) -> None:
    """Each member must be there, of its form, and no other."""
    with pytest.raises(MalformedEvidence, match=match):
        parse_envelope(changed(path, value))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from([*GOOD, "type", "uid"]), inner)
    ),
    max_leaves=12,
)


@given(JSON)
def test_parsing_fails_in_one_way_only(value: object) -> None:
    """Whatever JSON arrives."""
    with pytest.raises(MalformedEvidence):
        parse_envelope(value)


@given(JSON, st.sampled_from([*GOOD]))
def test_any_member_may_be_anything(value: object, name: str) -> None:
    """An envelope or MalformedEvidence."""
    try:
        found = parse_envelope(GOOD | {name: value})
    except MalformedEvidence:
        return
    assert found.nonce == NONCE


def test_names_are_those_of_the_specification() -> None:
    """Digest, fingerprint and binding, computed here by their formulas (§11, §13)."""
    found = parse_envelope(spec("sev-snp"))
    said = lp(b"sev-snp") + lp(b"sev-snp") + lp(found.data) + lp(found.chain[0])
    assert evidence_digest(found) == hashlib.sha384(said).digest()
    assert key_fingerprint(SPKI) == hashlib.sha384(SPKI).digest()
    said = b"".join(
        map(
            lp,
            (
                b"itl-quote-attestation/v1",
                b"sgx",
                b"KeyProvisioning",
                UID.encode(),
                NONCE,
                hashlib.sha384(SPKI).digest(),
            ),
        )
    )
    assert quote_binding("sgx", "KeyProvisioning", UID, NONCE, SPKI) == hashlib.sha512(said).digest()
    assert (
        quote_binding("sgx", "KeyProvisioning", UID, NONCE, SPKI, tpm=True) == hashlib.sha256(said).digest()
    )
