"""The webhook's own certificate: no replica ever serves one that the API server does not trust."""

from __future__ import annotations

import base64
import ssl
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography import x509

from attestation_operator.runs.webhook_certificate import LIFETIME, SERVES, Certificates, believed, due, make

AT = datetime(2026, 11, 26, 12, 0, tzinfo=UTC)
NAME = "hook.itl.svc"


def _first() -> Certificates:
    first = due(None, NAME, AT)
    assert first is not None
    return first


def test_a_certificate_is_good_for_one_name_and_nothing_else() -> None:
    """It signs itself and is no CA, so nobody can make another one that is believed."""
    certificate = x509.load_pem_x509_certificate(make(NAME, AT).certificate)
    extensions = certificate.extensions
    assert not extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [NAME]
    assert certificate.not_valid_after_utc - AT == LIFETIME


def test_what_a_secret_holds_is_read_as_it_was_written() -> None:
    """A second replica serves what the first one made."""
    first = _first()
    assert Certificates.read(first.data(), NAME) == first


@pytest.mark.parametrize(
    "spoilt",
    [
        {},
        {"tls.key": None},
        {"tls.crt": "!"},
        {"tls.crt": base64.b64encode(b"x").decode()},
        {"tls.key": base64.b64encode(make(NAME, AT).key).decode()},
        {"since": base64.b64encode(b"2026-11-26T12:00:00").decode()},
        {"since": base64.b64encode(b"yesterday").decode()},
        {"next.crt": base64.b64encode(b"").decode()},
    ],
    ids=["empty", "no key", "no base64", "no certificate", "another's key", "no zone", "no time", "no next"],
)
def test_what_cannot_be_served_is_made_anew(spoilt: dict[str, str | None]) -> None:
    """Whatever stands in the Secret, a replica comes to a certificate."""
    data: dict[str, Any] = {**_first().data(), **spoilt} if spoilt else {}
    assert Certificates.read({key: value for key, value in data.items() if value}, NAME) is None


def test_one_for_another_name_is_made_anew() -> None:
    """The Secret was kept while the release got another name."""
    assert Certificates.read(_first().data(), "hook.other.svc") is None


@pytest.mark.threat("T287")
def test_who_is_late_is_believed_and_who_is_early_too() -> None:
    """At each turn, what served before and what serves now were both trusted before it, and are after it."""
    held = _first()
    for turn in range(1, 6):
        at = AT + turn * SERVES
        assert due(held, NAME, at - timedelta(minutes=1)) is None
        after = due(held, NAME, at)
        assert after is not None
        assert after.serving == held.following
        for serving in (held.serving, after.serving):
            assert serving.certificate in held.trusted
            assert serving.certificate in after.trusted
            assert serving.begins <= at < serving.ends
        held = after


def test_after_a_long_pause_all_is_made_anew() -> None:
    """The next one would not last as long as it is to serve."""
    held = _first()
    late = AT + LIFETIME - SERVES
    after = due(held, NAME, late)
    assert after is not None
    assert after.serving not in (held.serving, held.following)
    assert after.serving.ends >= late + SERVES


def test_a_clock_that_was_ahead_leaves_no_certificate_that_is_not_valid_yet() -> None:
    """One that nobody would believe for weeks is replaced."""
    held = due(None, NAME, AT + timedelta(days=30))
    assert held is not None
    assert due(held, NAME, AT) is not None


def test_each_hook_of_the_configuration_is_told_once() -> None:
    """What is there already is not written again; other members stay."""
    bundle = _first().trusted
    found = {"webhooks": [{"name": "a", "clientConfig": {"service": {"name": "s"}}}, {"name": "b"}]}
    told = believed(found, bundle)
    assert told is not None
    assert [each["name"] for each in told] == ["a", "b"]
    assert told[0]["clientConfig"]["service"] == {"name": "s"}
    assert {each["clientConfig"]["caBundle"] for each in told} == {base64.b64encode(bundle).decode()}
    assert believed({"webhooks": told}, bundle) is None


def test_what_is_trusted_can_be_loaded_as_cas() -> None:
    """A text that is no bundle would be refused by the API server."""
    context = ssl.create_default_context(cadata=_first().trusted.decode("ascii"))
    assert context.cert_store_stats()["x509"] == 2
