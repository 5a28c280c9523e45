"""K1, K2, K5, K10, K12 of HSM-AND-KUBERNETES §15: a CA key is handed to attested hardware, or is not."""

from __future__ import annotations

import pytest

from attestation_operator.objects import HSM_ISSUER, SECRET
from tests.fixtures.hsm_desk import Desk, desk, fake, softhsm

__all__ = ["desk", "fake", "softhsm"]

pytestmark = pytest.mark.softhsm


def test_a_key_is_handed_over(desk: Desk) -> None:
    """From an issuer to a CA that signs; nothing of how it came is left."""
    uid = desk.issuer(labels={"team": "payments"})["metadata"]["uid"]
    assert desk.settle()
    assert desk.condition(HSM_ISSUER, "ca") == ("False", "AwaitingKey")
    quote = desk.quote()
    assert quote["metadata"]["labels"]["team"] == "payments"
    assert desk.get(HSM_ISSUER, "ca")["status"]["qaRef"]["name"] == quote["metadata"]["name"]
    assert desk.keys() == [f"kek-{uid}-1"]
    desk.hand_over()
    assert desk.settle()
    assert desk.condition(HSM_ISSUER, "ca") == ("True", "Checked")
    assert desk.get(HSM_ISSUER, "ca")["status"]["keyOrigin"] == "provisioned"
    assert desk.keys() == [uid]
    assert not desk.is_there(SECRET, "ca-cacert")
    told = {each["type"]: each["status"] for each in desk.quote()["status"]["conditions"]}
    assert told == dict.fromkeys(("Accepted", "Verified", "KeyDelivered", "KeyLoaded", "Ready"), "True")
    assert desk.log.steps(quote["metadata"]["uid"]) == ["accepted", "bundle-accepted", "loaded"]
