"""The CAs to trust, as a machine fetches them."""

from __future__ import annotations

import httpx
import pytest

from attestation.client import AnswerInvalid, APIError, NodeClient, SignedBundle
from attestation.errors import CANotConfigured
from tests.fixtures.over_httpx import OverHTTPX

URL = "https://attest.example"


def asked(answer: httpx.Response) -> tuple[SignedBundle, list[httpx.Request]]:
    """Return what the client makes of *answer*, and what it sent."""
    seen: list[httpx.Request] = []

    def answering(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return answer

    with NodeClient(URL, carrier=OverHTTPX(httpx.MockTransport(answering))) as client:
        return client.trust_bundle(), seen


def test_the_bundle_comes_as_it_was_signed() -> None:
    """Byte by byte, with its signature, from outside of the API."""
    found, (request,) = asked(httpx.Response(200, content=b"PEM", headers={"Itl-Bundle-Signature": "a.b.c"}))
    assert found == SignedBundle(pem=b"PEM", signature="a.b.c")
    assert str(request.url) == f"{URL}/pki/bundle"


def test_a_missing_signature_shows() -> None:
    """As None: what that means is the caller's to judge."""
    assert asked(httpx.Response(200, content=b"PEM"))[0].signature is None


def test_refusals_are_errors() -> None:
    """By the code of the problem; a redirect is not followed."""
    problem = {
        "type": "urn:itl:problem:ca-not-configured",
        "title": "No CA",
        "status": 503,
        "detail": "none",
        "instance": "r1",
    }
    with pytest.raises(CANotConfigured):
        asked(httpx.Response(503, json=problem))
    with pytest.raises(APIError):
        asked(httpx.Response(404))
    with pytest.raises(AnswerInvalid):
        asked(httpx.Response(302, headers={"Location": "https://elsewhere.example"}))


def test_the_status_of_a_certificate_is_asked_in_the_path() -> None:
    """In base64, of which no character has a meaning of its own in an address (RFC 6960 A.1)."""
    seen: list[httpx.Request] = []

    def answering(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, content=b"answer")

    with NodeClient(URL, carrier=OverHTTPX(httpx.MockTransport(answering))) as client:
        assert client.certificate_status(b"\xfb\xff\xfe?") == b"answer"
    assert seen[0].url.raw_path == b"/pki/ocsp/%2B%2F%2F%2BPw%3D%3D"
