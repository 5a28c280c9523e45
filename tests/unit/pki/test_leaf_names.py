"""Names that a certificate can carry, and names that an issuer certifies."""

from __future__ import annotations

from ipaddress import ip_network

import pytest

from attestation.errors import RequestInvalid
from attestation.pki.leaf_names import MAX_URI_CHARACTERS, NameRules, forbidden_names, unwritable_names
from attestation.pki.name_limits import EVERYWHERE, NOBODY, NameLimits, inexpressible, limits_of
from attestation.pki.requested import RequestedNames

CN, C, ORG = "2.5.4.3", "2.5.4.6", "2.5.4.10"


def names(**given: tuple[str, ...]) -> RequestedNames:
    """Return names with a subject."""
    return RequestedNames(subject=((ORG, "Team"),), **given)


def subject(oid: str, text: str) -> RequestedNames:
    """Return a subject of one attribute."""
    return RequestedNames(subject=((oid, text),))


@pytest.mark.parametrize(
    "good",
    [
        names(dns_names=("a", "a.example", "*.a.example", "a-1.b", "x" * 63)),
        names(ip_addresses=("10.0.0.1", "::1")),
        names(uris=("spiffe://a/b", "urn:x:y", "https://[2001:db8::1]/"), others=("uri",) * 3),
        names(emails=("a.b+c@example.com",), others=("email",)),
        subject(C, "NL"),
        subject(CN, "x" * 64),
        subject("2.5.4.7", "x" * 128),
        RequestedNames(subject=(), dns_names=("a",)),
        RequestedNames(subject=(), ip_addresses=("::1",)),
        RequestedNames(subject=(), uris=("urn:x",)),
        RequestedNames(subject=(), emails=("a@b",)),
    ],
)
def test_names_that_can_be_written(good: RequestedNames) -> None:
    """Each kind in its form."""
    assert unwritable_names(good) == []


@pytest.mark.parametrize(
    ("bad", "match"),
    [
        (names(others=("0xa4",)), "kind 0xa4"),
        (RequestedNames(subject=()), "neither"),
        (names(dns_names=("A.example",)), "lower case"),
        (names(dns_names=("a.*.example",)), "lower case"),
        (names(dns_names=("*",)), "lower case"),
        (names(dns_names=("a..b",)), "lower case"),
        (names(dns_names=("-a",)), "lower case"),
        (names(dns_names=("x" * 64,)), "lower case"),
        (names(dns_names=(".".join(["x" * 60] * 5),)), "lower case"),
        (names(uris=("/a",)), "not absolute"),
        (names(uris=("spiffe://a b",)), "not absolute"),
        (names(uris=("https://[::",)), "not absolute"),
        (names(uris=("urn:" + "x" * (MAX_URI_CHARACTERS - 3),)), "not absolute"),
        (names(emails=("a",)), "e-mail"),
        (names(emails=("a@b@c",)), "e-mail"),
        (names(emails=("a@B",)), "e-mail"),
        (names(emails=("a@*.b",)), "e-mail"),
        (subject(C, "nl"), "country"),
        (subject(CN, ""), "0 characters"),
        (subject(CN, "x" * 65), "65 characters"),
        (subject("2.5.4.17", "x" * 41), "41 characters"),
        (subject(CN, "a\u200bb"), "does not print"),
        (subject(CN, " a"), "white space"),
        (subject("1.2.840.113549.1.9.1", "a@b@c"), "e-mail"),
    ],
)
def test_names_that_cannot(bad: RequestedNames, match: str) -> None:
    """One sentence for each."""
    (found,) = unwritable_names(bad)
    assert match in found


RULES = NameRules(
    dns_names=("example.com",),
    ip_networks=("10.0.0.0/8", "2001:db8::/32"),
    uris=("spiffe://example.com", "https://a.example/x/"),
    emails=("example.com",),
    common_names=("The Shop",),
)


@pytest.mark.parametrize(
    "good",
    [
        names(dns_names=("example.com", "a.example.com", "*.example.com")),
        names(ip_addresses=("10.255.0.1", "2001:db8::1")),
        names(uris=("spiffe://example.com", "spiffe://example.com/a", "https://a.example/x/y")),
        names(emails=("a@example.com", "a@b.example.com")),
        subject(CN, "The Shop"),
        subject(CN, "a.example.com"),
        subject("1.2.840.113549.1.9.1", "a@b.example.com"),
    ],
)
def test_names_within_the_rules(good: RequestedNames) -> None:
    """What a rule names, and what stands below it."""
    assert forbidden_names(good, RULES) == []


@pytest.mark.parametrize(
    ("bad", "match"),
    [
        (names(dns_names=("example.org",)), "DNS name"),
        (names(dns_names=("notexample.com",)), "DNS name"),
        (names(dns_names=("*.com",)), "DNS name"),
        (names(ip_addresses=("11.0.0.1",)), "address 11"),
        (names(ip_addresses=("::1",)), "address ::1"),
        (names(uris=("spiffe://example.com.evil/a",)), "URI"),
        (names(uris=("https://a.example/x",)), "URI"),
        (names(uris=("https://a.example/x/../y",)), "URI"),
        (names(uris=("https://a.example/x/%2e%2e/y",)), "URI"),
        (names(emails=("a@example.org",)), "e-mail address"),
        (names(emails=("example.com@evil",)), "e-mail address"),
        (subject("1.2.840.113549.1.9.1", "a@example.org"), "e-mail address"),
        (subject(CN, "Another Shop"), "common name"),
        (subject(CN, "example.org"), "common name"),
        (subject(CN, "system:admin"), "common name"),
    ],
)
def test_names_outside_the_rules(bad: RequestedNames, match: str) -> None:
    """One sentence at least for each."""
    assert any(found.startswith(match) for found in forbidden_names(bad, RULES))


def test_no_rules_permit_anything_but_what_is_kubernetes_own() -> None:
    """Of each kind; an empty rule permits nothing."""
    every = RequestedNames(
        subject=((CN, "whoever"), (ORG, "O")),
        dns_names=("a",),
        ip_addresses=("::1",),
        uris=("urn:x:%2e..",),
        emails=("a@b",),
    )
    assert forbidden_names(every, NameRules()) == []
    none = NameRules(dns_names=(), ip_networks=(), uris=(), emails=(), common_names=())
    assert len(forbidden_names(every, none)) == 5
    assert len(forbidden_names(subject("1.2.840.113549.1.9.1", "a@b"), none)) == 1
    (found,) = forbidden_names(subject(ORG, "system:masters"), NameRules())
    assert "Kubernetes keeps" in found


def test_a_common_name_is_one_of_the_alternative_names() -> None:
    """Then the rule of that kind has spoken; a list of common names alone is the whole of them."""
    both = RequestedNames(subject=((CN, "10.0.0.1"),), ip_addresses=("10.0.0.1",))
    assert forbidden_names(both, RULES) == []
    only = NameRules(common_names=("a",))
    assert forbidden_names(subject(CN, "a"), only) == []
    assert forbidden_names(subject(CN, "b"), only) == ["common name 'b'"]


@pytest.mark.parametrize(
    "rules",
    [
        {"dns_names": ("Example.org",)},
        {"dns_names": (".example.org",)},
        {"dns_names": ("*.example.org",)},
        {"emails": ("a@example.org",)},
        {"ip_networks": ("10.0.0.1/8",)},
        {"ip_networks": ("2001:db8::1/32",)},
        {"ip_networks": ("10.0.0.0/33",)},
    ],
    ids=str,
)
def test_rules_that_mean_nothing_are_no_rules(rules: dict[str, tuple[str, ...]]) -> None:
    """Said when they are made, and not at each request of others; a network with host bits is none."""
    with pytest.raises(RequestInvalid):
        NameRules(**rules)


def test_limits_say_what_the_rules_of_an_issuer_say() -> None:
    """Of each kind any, some or none; where none, no verifier takes an empty limit for any."""
    assert limits_of(NameRules()) is None
    assert limits_of(NameRules(dns_names=("a.example",))) == NameLimits(dns_names=("a.example",))
    assert limits_of(NameRules(emails=("a.example",))) == NameLimits(emails=("a.example", ".a.example"))
    assert limits_of(NameRules(ip_networks=("10.0.0.0/8",))) == NameLimits(
        ip_networks=(ip_network("10.0.0.0/8"),)
    )
    none = NameRules(dns_names=(), ip_networks=(), uris=(), emails=())
    assert inexpressible(none) is None
    assert limits_of(none) == NameLimits(
        dns_names=(NOBODY,), uris=(NOBODY,), emails=(NOBODY,), excluded_networks=EVERYWHERE
    )
    assert inexpressible(NameRules(common_names=())) is not None
