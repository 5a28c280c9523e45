"""HardwareSecurityModule: what is said of a token (HSM-AND-KUBERNETES §10)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from attestation.clock import rfc3339
from attestation.errors import (
    KeyNotFound,
    ModuleNotListed,
    ModuleUnusable,
    PINRejected,
    SignerUnavailable,
    TokenAbsent,
)
from attestation.keys.care import TokenFacts
from attestation_operator.actions import SetStatus
from attestation_operator.hsm.modules import TYPES, Found, is_ready, reconcile
from attestation_operator.hsm.objects import Module, read_module
from tests.unit.operator.hsm.world import AT, module

FACTS = TokenFacts(
    label="hsm",
    serial="0123",
    manufacturer="SoftHSM project",
    model="SoftHSM v2",
    firmware_version="2.6",
    mechanisms=("ECDSA",),
)


def conditions(found: Found | None, of: Module | None = None) -> list[tuple[str, str]]:
    """Return status and reason of the four conditions, in their order."""
    [action] = reconcile(of or module(), found, AT)
    assert isinstance(action, SetStatus)
    said = {each["type"]: (each["status"], each["reason"]) for each in action.status["conditions"]}
    return [said[each] for each in TYPES]


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (Found(facts=ModuleNotListed("x")), ["False ModuleNotListed", "Unknown", "Unknown", "False"]),
        (Found(facts=ModuleUnusable("x")), ["False ModuleUnusable", "Unknown", "Unknown", "False"]),
        (Found(facts=TokenAbsent("x")), ["False TokenAbsent", "Unknown", "Unknown", "False"]),
        (Found(facts=SignerUnavailable("x")), ["False SignerUnavailable", "Unknown", "Unknown", "False"]),
        (Found(facts=PINRejected("x")), ["True TokenPresent", "False PINRejected", "Unknown", "False"]),
        (
            Found(facts=FACTS, signed=SignerUnavailable("x")),
            ["True TokenPresent", "True PINAccepted", "False SignerUnavailable", "False"],
        ),
        (
            Found(facts=FACTS, signed=KeyNotFound("x")),
            ["True TokenPresent", "True PINAccepted", "False KeyNotFound", "False"],
        ),
        (
            Found(facts=FACTS, signed=False),
            ["True TokenPresent", "True PINAccepted", "True NothingToSignWith", "True Checked"],
        ),
        (
            Found(facts=FACTS, signed=True),
            ["True TokenPresent", "True PINAccepted", "True Signed", "True Checked"],
        ),
    ],
)
def test_the_first_thing_that_is_wrong_is_told_and_nothing_behind_it_is_claimed(
    found: Found, expected: list[str]
) -> None:
    """Whether a token signs, nobody knows who could not log in."""
    said = conditions(found)
    for (status, reason), wanted in zip(said, expected, strict=True):
        assert f"{status} {reason}".startswith(wanted)


def test_what_the_token_says_of_itself_stands_in_its_status() -> None:
    """And when it last signed."""
    [action] = reconcile(module(), Found(facts=FACTS, signed=True), AT)
    assert isinstance(action, SetStatus)
    assert action.status["tokenInfo"] == {
        "label": "hsm",
        "serial": "0123",
        "manufacturer": "SoftHSM project",
        "model": "SoftHSM v2",
        "firmwareVersion": "2.6",
    }
    assert (action.status["mechanisms"], action.status["lastSignTime"]) == (["ECDSA"], rfc3339(AT))


def again(status: Any, at: Any) -> Any:
    """Return what is said of a token whose status stands there."""
    raw = {
        "metadata": {"name": "softhsm", "uid": "u-hsm", "resourceVersion": "3", "generation": 1},
        "spec": {"module": "softhsm", "tokenLabel": "hsm"},
        "status": status,
    }
    return reconcile(read_module(raw), Found(facts=FACTS, signed=True), at)


def test_nothing_is_written_where_it_stands_there() -> None:
    """A good signature is told once a minute: each write is seen, and each sight is a look."""
    [action] = again({}, AT)
    status = action.status
    assert again(status, AT + timedelta(seconds=59)) == ()
    [later] = again(status, AT + timedelta(seconds=60))
    assert later.status["lastSignTime"] == rfc3339(AT + timedelta(seconds=60))
    assert later.status["conditions"] == status["conditions"]


def test_a_spec_that_cannot_be_followed_says_so() -> None:
    """And asks the token nothing."""
    said = conditions(None, module(module="/usr/lib/evil.so"))
    assert said[-1] == ("False", "SpecInvalid")
    assert {status for status, _ in said[:3]} == {"Unknown"}


def test_it_is_ready_for_the_spec_that_was_looked_at() -> None:
    """A token that was named anew is another one."""
    assert is_ready(module())
    assert not is_ready(module("False"))
    assert not is_ready(module(generation=2))
