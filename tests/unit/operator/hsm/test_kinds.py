"""The kinds of HSM issuers as models: what they take whole, and what they refuse."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from pydantic import ValidationError

from attestation.pki.leaf import MIN_DURATION
from attestation.pki.usages import NEVER_OF_LEAVES, USAGES
from attestation_operator.crds import DEFINITIONS
from attestation_operator.crds.hsm import HsmIssuer
from attestation_operator.crds.leaf_policy import SHORTEST_LIFETIME, PolicyUsage, Usage
from attestation_operator.durations import parse_duration
from attestation_operator.hsm.authority import policy_of
from attestation_operator.objects import HSM_KINDS, Kind
from tests.fixtures.hsm_kinds import GOOD, REFUSED, spec_of

MODELS = {each.kind: each.model for each in DEFINITIONS}


def full(value: Any) -> Any:
    """Return *value* without empty lists and objects, which say what their absence says."""
    if not isinstance(value, dict):
        return value
    return {name: full(each) for name, each in value.items() if each not in ([], {})}


@pytest.mark.parametrize("kind", HSM_KINDS, ids=lambda kind: kind.kind)
def test_an_object_with_every_member_is_read_and_written_the_same(kind: Kind) -> None:
    """Each member of the specification has one place; none is lost between the cluster and the controller."""
    spec, status = GOOD[kind]
    read: Any = MODELS[kind].model_validate({"spec": spec, "status": status}, by_alias=True, by_name=False)
    assert full(read.spec.written()) == spec
    assert full(read.status.written()) == status
    members = {each.alias or name for name, each in type(read.spec).model_fields.items()}
    assert members == spec.keys(), "the example has every member"


@pytest.mark.parametrize(("kind", "change"), REFUSED, ids=lambda each: getattr(each, "kind", str(each)[:40]))
def test_what_a_kind_does_not_allow_is_refused(kind: Kind, change: dict[str, Any]) -> None:
    """By the controller on any server: one before 1.25 leaves the rules in CEL out."""
    MODELS[kind].model_validate({"spec": spec_of(kind)}, by_alias=True, by_name=False)
    with pytest.raises(ValidationError):
        MODELS[kind].model_validate({"spec": spec_of(kind, change)}, by_alias=True, by_name=False)


def test_what_nobody_can_ask_about_ends_within_a_week() -> None:
    """RFC 9608 §4; and what it certifies is no CA."""
    asked = {"hsmRef": {"name": "h"}, "subject": {"commonName": "CA"}, "pathLen": 1}
    for policy, match in (
        ({"maxDuration": "168h1s"}, "maxDuration"),
        ({"maxDuration": "1h", "allowCA": True}, "no CA"),
    ):
        with pytest.raises(ValidationError, match=match):
            HsmIssuer.model_validate({"spec": asked | {"policy": {"noRevAvail": True, **policy}}})
    good = HsmIssuer.model_validate({"spec": asked | {"policy": {"noRevAvail": True, "maxDuration": "168h"}}})
    assert policy_of(good.spec).no_rev_avail


def test_networks_have_no_host_bits() -> None:
    """The form is right, and each request would end in an error of ours."""
    spec = {"hsmRef": {"name": "h"}, "subject": {"commonName": "CA"}}
    for network in ("10.0.0.1/8", "10.0.0.0/33", "2001:db8::1/32"):
        with pytest.raises(ValidationError, match="no network"):
            HsmIssuer.model_validate({"spec": spec | {"policy": {"names": {"ipRanges": [network]}}}})
    HsmIssuer.model_validate({"spec": spec | {"policy": {"names": {"ipRanges": ["10.0.0.0/8"]}}}})


def test_words_of_usages_are_those_of_the_sdk() -> None:
    """Each once; of an issuer's all but those that no leaf has."""
    assert set(get_args(Usage)) == set(USAGES)
    assert set(get_args(Usage)) - set(get_args(PolicyUsage)) == NEVER_OF_LEAVES
    assert parse_duration(SHORTEST_LIFETIME) == MIN_DURATION


def test_a_ca_that_certifies_cas_has_a_path_for_them() -> None:
    """Else each certificate it makes for one would be refused by whoever verifies it."""
    asked = {
        "hsmRef": {"name": "h"},
        "subject": {"commonName": "CA"},
        "policy": {"allowCA": True},
        "pathLen": 0,
    }
    with pytest.raises(ValidationError, match="allowCA"):
        HsmIssuer.model_validate({"spec": asked})
    HsmIssuer.model_validate({"spec": asked | {"pathLen": 1}})
