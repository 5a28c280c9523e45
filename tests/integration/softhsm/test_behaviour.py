"""Each row of the table "situation | SoftHSM | ours" (HSM-AND-KUBERNETES §3), on SoftHSM itself."""

from __future__ import annotations

import pytest

from tests.fixtures.softhsm import SoftHSM

pytestmark = pytest.mark.softhsm


def test_made_once_and_opened_again(softhsm: SoftHSM) -> None:
    """A key that was made is found again by label, and belongs to the same public key."""
    made = softhsm.create()
    assert made.origin == "generated"
    assert made.algorithm == "ecdsa-p384"
    again = softhsm.create()
    assert again.public_key == made.public_key
    softhsm.close()
    opened = softhsm.open()
    assert opened.public_key == made.public_key
    assert opened.origin == "generated"
    opened.self_test(made.public_key)
