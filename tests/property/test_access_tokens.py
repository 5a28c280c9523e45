"""Access tokens of any content: a person comes out only where every rule holds, and nothing else ever happens."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attestation.errors import Forbidden, Unauthenticated
from attestation_service.auth import access_token
from attestation_service.auth.access_token import Person, parse
from attestation_service.auth.provider_keys import parse_jwks
from tests.fixtures.openid.provider import b64url, new_key, sign
from tests.fuzz.targets import AT, GOOD_CLAIMS, TOKEN_RULES

NOW = AT.timestamp()
KEY = new_key("ES256")
KEYS = parse_jwks(json.dumps({"keys": [KEY.as_dict(private=False)]}).encode())
PARTS = sign(KEY, GOOD_CLAIMS).split(".")

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(int(NOW) - 60, int(NOW) + 60),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(
        [*GOOD_CLAIMS, *GOOD_CLAIMS["aud"], "attestation-cli", "attestation-operator", "Bearer", "ID"]
    ),
)
anything = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(["roles", "attestation-service", "x"]), inner, max_size=3)
    ),
    max_leaves=8,
)
claims_near_good = st.builds(
    lambda changed, removed: {k: v for k, v in (GOOD_CLAIMS | changed).items() if k not in removed},
    st.dictionaries(st.sampled_from([*GOOD_CLAIMS, "client_id", "cnf"]), anything, max_size=3),
    st.sets(st.sampled_from(list(GOOD_CLAIMS)), max_size=2),
)


def judged(claims: dict[str, Any]) -> Person | None:
    """Return whom *claims* name; None where they are refused in one of the two ways there are."""
    try:
        return access_token.judge(claims, TOKEN_RULES, AT)
    except (Unauthenticated, Forbidden) as e:
        words = str(e)
    assert words.isprintable()
    return None


@pytest.mark.threat("T35")
@given(claims_near_good)
def test_a_person_only_where_every_rule_holds(claims: dict[str, Any]) -> None:
    """Written once more, in other words: who is believed has each claim as it must be."""
    person = judged(claims)
    if person is None:
        return
    assert claims["iss"] == TOKEN_RULES.issuer
    audience = claims["aud"]
    assert audience == "attestation-service" or "attestation-service" in audience
    assert claims.get("azp") in {None, "attestation-cli"}
    assert claims.get("client_id") in {None, "attestation-cli"}
    assert claims.get("typ") in {None, "Bearer"}
    assert "cnf" not in claims
    assert claims["exp"] > NOW - 30
    for member in ("nbf", "iat"):
        if claims.get(member) is not None:
            assert claims[member] <= NOW + 30
    text = json.dumps(claims)
    assert any(role in text for role in TOKEN_RULES.duties)


def test_the_good_one_is_good() -> None:
    """Else the property above would hold for nothing."""
    person = judged(GOOD_CLAIMS)
    assert person is not None
    assert person.name == "anna"
    assert len(person.duties) == 2


@given(anything)
def test_any_json_is_refused_or_judged(value: Any) -> None:
    """Whatever a provider signs, a caller sees a person or one of two errors."""
    payload = json.dumps(value).encode()
    try:
        claims = access_token.claims_of(payload)
    except Unauthenticated:
        return
    judged(dict(claims))


@pytest.mark.threat("T34")
@given(st.integers(0, 2), st.integers(0, 10_000), st.integers(0, 7))
def test_no_flipped_bit_of_a_token_is_accepted(part: int, where: int, bit: int) -> None:
    """Header, claims and signature stand and fall together."""
    parts = [bytearray(access_token._base64url(text)) for text in PARTS]
    parts[part][where % len(parts[part])] ^= 1 << bit
    changed = ".".join(b64url(bytes(data)) for data in parts)
    with pytest.raises(Unauthenticated):
        KEYS.check(parse(changed))


def test_the_unflipped_one_is_accepted() -> None:
    """As it was signed."""
    KEYS.check(parse(".".join(PARTS)))
