"""Tokens of ServiceAccounts of any content: a controller comes out only where every rule holds."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attestation.errors import Forbidden, Unauthenticated
from attestation_service.auth import access_token, service_account
from attestation_service.auth.service_account import Bearer
from tests.fuzz.targets import AT, CLUSTER, GOOD_BOUND_CLAIMS

NOW = AT.timestamp()
BOUND = GOOD_BOUND_CLAIMS["kubernetes.io"]
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(int(NOW) - 60, int(NOW) + 90_000),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(["itl", "approver", "itl-attestation", *map(str, GOOD_BOUND_CLAIMS)]),
)
anything = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*BOUND, "name", "uid"]), inner)
    ),
    max_leaves=8,
)
near_good = st.builds(
    lambda changed, inside: GOOD_BOUND_CLAIMS | {"kubernetes.io": BOUND | inside} | changed,
    st.dictionaries(st.sampled_from([*GOOD_BOUND_CLAIMS]), anything, max_size=2),
    st.dictionaries(st.sampled_from([*BOUND]), anything, max_size=1),
)


def judged(claims: dict[str, Any]) -> Bearer | None:
    """Return whom *claims* name; None where they are refused in one of the two ways there are."""
    try:
        return service_account.judge(claims, CLUSTER, AT)
    except (Unauthenticated, Forbidden) as e:
        words = str(e)
    assert words.isprintable()
    return None


@pytest.mark.threat("T35")
@given(near_good)
def test_a_controller_only_where_every_rule_holds(claims: dict[str, Any]) -> None:
    """Written once more, in other words."""
    if judged(claims) is None:
        return
    assert claims["iss"] == CLUSTER.issuer
    assert claims["aud"] in ("itl-attestation", ["itl-attestation"])
    assert claims["sub"] == "system:serviceaccount:itl:approver"
    assert NOW - 30 < claims["exp"] <= claims["iat"] + 86_400
    assert claims["iat"] <= NOW + 30
    bound = claims["kubernetes.io"]
    assert (bound["namespace"], bound["serviceaccount"]["name"]) == ("itl", "approver")
    assert bound["pod"]["uid"]


def test_the_good_one_is_good() -> None:
    """Else the property above would hold for nothing."""
    assert judged(GOOD_BOUND_CLAIMS) is not None


@given(anything)
def test_any_json_is_refused_or_judged(value: Any) -> None:
    """Whatever an API server signs, a caller sees a controller or one of two errors."""
    try:
        claims = access_token.claims_of(json.dumps(value).encode())
    except Unauthenticated:
        return
    judged(dict(claims))
