"""`attestation hsm …`: what is listed, and that nothing is revoked without being asked for."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from click.testing import CliRunner, Result

from attestation_cli.screen import Refused
from attestation_cli.session import Session
from attestation_operator.commands.hsm import group
from tests.fixtures.over_httpx import answering

AT = "2026-11-26T12:00:00Z"
ID = "5f0c5b7a9d1e4c62"
SERIAL = "0a" * 20
CERTIFICATE: dict[str, Any] = {
    "serial": SERIAL, "issuer_id": ID, "state": "issued", "request_uid": "r", "kind": "CertificateRequest",
    "namespace": "seed", "name": "w-1", "subject": "CN=w-1", "names": ["DNS:w-1.example"], "is_ca": False,
    "requester": "x", "spki_sha256": "00" * 32, "not_before": AT, "not_after": AT, "reserved_at": AT,
    "issued_at": AT, "ended_at": None, "reason": None, "note": None,
}  # fmt: skip
ISSUER: dict[str, Any] = {
    "issuer_id": ID, "uid": "u", "crl_url": None, "ocsp_url": None, "ca_url": None, "revision": 0, "crl_number": 1,
    "cluster_id": "default", "kind": "HsmIssuer", "namespace": "seed", "name": "ca", "subject": "CN=Seed CA",
    "spki_sha256": "00" * 32, "certificate": "AAAA", "key_origin": "generated", "module": "softhsm",
    "token_label": "seed", "not_before": AT, "not_after": AT, "registered_at": AT, "superseded_at": None,
    "crl_next_update": AT, "ocsp_until": None,
}  # fmt: skip


class Service:
    """Answers, and remembers what was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, Any]] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        """Answer one request."""
        body = json.loads(request.content) if request.content else None
        self.asked.append((request.method, request.url.path, body))
        if request.method == "POST":
            return httpx.Response(200, json=CERTIFICATE | {"state": "revoked", "reason": "keyCompromise"})
        one = CERTIFICATE if request.url.path.endswith("/certificates") else ISSUER
        return httpx.Response(200, json={"items": [one], "next_cursor": None})


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Service:
    """A service that knows one CA key and one certificate."""
    monkeypatch.setenv("ITL_ADMIN_TOKEN", "secret")
    return Service()


def run(service: Service, *args: str) -> Result:
    """Run the command."""
    session = Session(url="https://x.example", carrier=answering(service))
    return CliRunner().invoke(group, list(args), obj=session, catch_exceptions=False)


def test_keys_and_certificates_are_listed(service: Service) -> None:
    """Each with the words by which one is found again."""
    keys = json.loads(run(service, "list", "-o", "json").output)
    assert [each["issuer_id"] for each in keys] == [ID]
    table = run(service, "list").output
    assert ID in table
    assert "seed/ca" in table
    found = run(service, "certificates", ID, "--state", "issued").output
    assert "DNS:w-1.example" in found
    assert service.asked[-1][1] == f"/api/v1/hsm/issuers/{ID}/certificates"


def test_a_certificate_is_revoked_when_it_is_asked_for(service: Service) -> None:
    """With its issuer and reason; unconfirmed, the service is asked for nothing."""
    with pytest.raises(Refused):
        run(service, "revoke", ID, SERIAL)
    assert service.asked == []
    done = run(service, "revoke", ID, SERIAL, "--reason", "keyCompromise", "--yes")
    assert f"{SERIAL}: revoked" in done.output
    ((method, path, body),) = service.asked
    assert (method, path) == ("POST", f"/api/v1/hsm/certificates/{SERIAL}/revoke")
    assert (body["issuer_id"], body["reason"]) == (ID, "keyCompromise")
