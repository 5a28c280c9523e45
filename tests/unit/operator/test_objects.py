"""Names of objects, with a namespace or without."""

from __future__ import annotations

from typing import Any

import pytest

from attestation_operator.objects import (
    BUNDLE,
    CSR,
    POLICY,
    RESULT,
    RUN,
    SCHEDULE,
    SECURITY_EVENT,
    Key,
    Target,
)

RAW: dict[str, Any] = {
    "metadata": {"name": "r", "namespace": "team", "uid": "u-1", "resourceVersion": "7", "generation": 1}
}


def test_kinds_of_runs_have_the_plurals_of_their_paths() -> None:
    """English has one that is no `s`."""
    assert [
        (each.plural, each.namespaced) for each in (RUN, RESULT, POLICY, SCHEDULE, SECURITY_EVENT, BUNDLE)
    ] == [
        ("confidentialattestationruns", True),
        ("confidentialattestationresults", True),
        ("attestationpolicies", True),
        ("attestationschedules", True),
        ("securityevents", False),
        ("attestationbundles", False),
    ]
    assert RUN.api_version == "security.ugallu.io/v1alpha1"


def test_a_name_is_told_with_its_namespace() -> None:
    """Two objects of one name in two namespaces are two."""
    key, target = Key.of(RUN, RAW), Target.of(RUN, RAW)
    assert str(key) == str(target) == "team/r"
    assert target.key == key != Key(kind=RUN, name="r", namespace="other")
    assert str(Key(kind=CSR, name="r")) == "r"
    assert target.reference == {
        "apiVersion": "security.ugallu.io/v1alpha1",
        "kind": "ConfidentialAttestationRun",
        "name": "r",
        "uid": "u-1",
    }


@pytest.mark.parametrize(("kind", "namespace"), [(RUN, None), (CSR, "team")])
def test_there_is_a_namespace_exactly_where_the_kind_has_one(kind: Any, namespace: str | None) -> None:
    """A request without it would mean another object, or all of them."""
    with pytest.raises(ValueError, match="namespace"):
        Key(kind=kind, name="r", namespace=namespace)
    with pytest.raises(ValueError, match="namespace"):
        Target(kind=kind, name="r", uid="u", resource_version="1", namespace=namespace)
