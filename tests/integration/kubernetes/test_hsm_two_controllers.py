"""K11: two controllers share a token, and one of them ends at any moment: one key, one question, ready again (§15)."""

from __future__ import annotations

from typing import Any

import pytest

from attestation_operator.objects import (
    CERTIFICATE_REQUEST,
    HSM_CERTIFICATE,
    HSM_ISSUER,
    QUOTE_ATTESTATION,
    SECRET,
    Kind,
)
from attestation_testing.kubernetes.cert_manager import CERTIFICATE_REQUESTS
from tests.fixtures.controllers import CRDS, until
from tests.fixtures.hsm_desk import LOOKED_AT, TOKEN, Desk, desk, fake, softhsm
from tests.fixtures.hsm_here import APPLY

__all__ = ["desk", "fake", "softhsm"]

pytestmark = pytest.mark.softhsm


def come_to(desk: Desk, kind: Kind, expected: tuple[str, str], keys: list[str], *, killed: bool) -> None:
    """Let two controllers look until the only object of a kind says this of Ready, with these keys on the token.

    Args:
        desk: Where.
        kind: Which.
        expected: Status and reason.
        keys: Labels of private keys, each once.
        killed: Each is ended after its first step of each kind, and others follow.
    """
    if killed:
        desk.settle_killed(processes=2)

    def is_so() -> bool:
        # A token that two programs of one process open and close may be away for a moment, and is looked at again.
        desk.settle(processes=2)
        [found] = desk.all_of(kind)
        return desk.condition(kind, found["metadata"]["name"]) == expected and desk.keys() == sorted(keys)

    until(is_so)


def approve(desk: Desk, name: str) -> None:
    """Approve a CertificateRequest as its approver does."""
    condition = {"type": "Approved", "status": "True", "reason": "tests", "message": "said"}
    raw = {
        "apiVersion": CERTIFICATE_REQUEST.api_version,
        "kind": CERTIFICATE_REQUEST.kind,
        "status": {"conditions": [condition | {"lastTransitionTime": "2026-11-26T12:00:00Z"}]},
    }
    params = {"fieldManager": "approver", "force": "true"}
    place = f"{desk.place(CERTIFICATE_REQUEST, name)}/status"
    desk.http.patch(place, json=raw, headers=APPLY, params=params).raise_for_status()


@pytest.mark.parametrize("killed", [False, True])
def test_k11_two_controllers_make_one_key_and_ask_one_question(desk: Desk, killed: bool) -> None:
    """Of an issuer that waits for its key: one KEK, one QuoteAttestation, one CA key; whoever ends, and when."""
    uid = desk.issuer()["metadata"]["uid"]
    come_to(desk, HSM_ISSUER, ("False", "AwaitingKey"), [f"kek-{uid}-1"], killed=killed)
    asked = desk.quote()["metadata"]["uid"]
    desk.hand_over()
    come_to(desk, HSM_ISSUER, ("True", "Checked"), [uid], killed=killed)
    come_to(desk, QUOTE_ATTESTATION, ("True", "Loaded"), [uid], killed=False)
    assert desk.quote()["metadata"]["uid"] == asked


@pytest.mark.parametrize("killed", [False, True])
def test_k11_two_controllers_make_one_leaf_key_and_one_request(desk: Desk, killed: bool) -> None:
    """Of a CA that is made on the token and a leaf key beside it: one of each, one certificate in the log."""
    desk.http.post(CRDS, json=CERTIFICATE_REQUESTS).raise_for_status()
    desk.looked_at = (*LOOKED_AT, HSM_CERTIFICATE, CERTIFICATE_REQUEST)
    spec: dict[str, Any] = {
        "hsmRef": {"name": TOKEN},
        "mode": "SelfSigned",
        "subject": {"commonName": "Test CA"},
    }
    ca = desk.create(HSM_ISSUER, "ca", spec)["metadata"]["uid"]
    spec = {
        "issuerRef": {"name": "ca"},
        "hsmRef": {"name": TOKEN},
        "dnsNames": ["pay.example.org"],
        "usages": ["digital signature", "server auth"],
        "duration": "24h",
        "secretName": "pay-tls",
    }
    leaf = desk.create(HSM_CERTIFICATE, "pay", spec)["metadata"]["uid"]
    come_to(desk, HSM_CERTIFICATE, ("False", "Issuing"), [ca, f"{leaf}-1"], killed=killed)
    [request] = desk.all_of(CERTIFICATE_REQUEST)
    approve(desk, request["metadata"]["name"])
    come_to(desk, HSM_CERTIFICATE, ("True", "Issued"), [ca, f"{leaf}-1"], killed=killed)
    [request] = desk.all_of(CERTIFICATE_REQUEST)
    assert desk.log.issued.keys() == {request["metadata"]["uid"]}
    held = desk.get(SECRET, "pay-tls")["data"]
    assert held.keys() == {"tls.crt", "ca.crt", "key-uri"}
    assert held["tls.crt"] == request["status"]["certificate"]
