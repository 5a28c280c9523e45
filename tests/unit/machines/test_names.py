"""Which spellings are one host name or one address, and what is none at all."""

from __future__ import annotations

import pytest

from attestation.errors import RequestInvalid
from attestation.machines.names import (
    Names,
    canonical_address,
    canonical_hostname,
    canonical_interface,
    names_of,
    typed_name,
)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("cp-1", "cp-1"),
        ("CP-1.Example.ORG", "cp-1.example.org"),
        ("cp-1.example.org.", "cp-1.example.org"),
        ("b\u00fccher.example", "xn--bcher-kva.example"),
        ("B\u00dcCHER.example.", "xn--bcher-kva.example"),
        ("bu\u0308cher.example", "xn--bcher-kva.example"),
        ("XN--BCHER-KVA.example", "xn--bcher-kva.example"),
        # Full-width letters and the ideographic full stop are what a keyboard gives, not another name.
        ("\uff43\uff50-1\u3002example", "cp-1.example"),
        ("a" * 63 + ".b", "a" * 63 + ".b"),
        ("10.0.0.11.example", "10.0.0.11.example"),
    ],
)
def test_one_name_has_one_spelling(text: str, name: str) -> None:
    """Case, the dot at the end and Unicode make no other name."""
    assert canonical_hostname(text) == name


@pytest.mark.threat("T142")
@pytest.mark.parametrize(
    "text",
    [
        *("", ".", "a..b", ".a", "a b", "a_b", "-a", "a-", "a" * 64, ".".join(["a" * 63] * 4), "a" * 1025),
        # Programs show them as the letters that they stand for, and those stand for another name.
        *("xn--cp-1-", "xn--a", "xn--zz--zz", "xn--", "xn--ls8h"),
        # Resolvers read them as addresses.
        *("10.0.0.11", "42", "cp.0x7f", "0x7f000001", "0x"),
        *("a\u200db", "\u0430.b\u200c", "cp-1\n", "a/b", "*.example"),
    ],
)
def test_what_is_no_host_name_is_refused(text: str) -> None:
    """By one error, whatever is wrong."""
    with pytest.raises(RequestInvalid):
        canonical_hostname(text)


@pytest.mark.parametrize(
    ("text", "interface", "address"),
    [
        ("10.0.0.11/24", "10.0.0.11/24", "10.0.0.11"),
        ("10.0.0.11/255.255.255.0", "10.0.0.11/24", "10.0.0.11"),
        ("2001:DB8:0:0::1/64", "2001:db8::1/64", "2001:db8::1"),
        ("2001:db8::0001/64", "2001:db8::1/64", "2001:db8::1"),
        ("::ffff:10.0.0.11/120", "10.0.0.11/24", "10.0.0.11"),
        ("::ffff:0a00:000b/128", "10.0.0.11/32", "10.0.0.11"),
    ],
)
def test_one_address_has_one_spelling(text: str, interface: str, address: str) -> None:
    """The network around an address makes no other one; IPv4 inside IPv6 is IPv4."""
    assert canonical_interface(text) == interface
    assert canonical_address(text) == address
    assert canonical_address(text.partition("/")[0]) == address


@pytest.mark.parametrize(
    "text",
    [
        *("", "10.0.0.11", "10.0.0.11/33", "10.0.0.011/24", "10.0.0/24", "cp-1/24", "10.0.0.11/24/24"),
        *("fe80::1%eth0/64", "::ffff:10.0.0.11/64", "\u0661\u0660.0.0.11/24"),
    ],
)
def test_what_is_no_interface_is_refused(text: str) -> None:
    """By one error; an IPv4 address in a network wider than all of IPv4 is none."""
    with pytest.raises(RequestInvalid):
        canonical_interface(text)


def test_what_is_from_before_the_rules_is_compared_by_its_letters() -> None:
    """A record that nobody could write today still keeps others from being called so."""
    assert names_of("CP_1", "Somewhere") == Names(hostname="cp_1", address="somewhere")
    assert names_of(None, None) == Names(hostname=None, address=None)
    assert names_of("cp-1.", "::ffff:10.0.0.11/120").told() == "host name cp-1 and address 10.0.0.11"


def test_what_is_typed_is_never_what_the_machine_says() -> None:
    """The host name an operator gave; without one the first eight digits of the machine id."""
    machine = "0123456789abcdef" * 4
    assert typed_name("cp-1", machine) == "cp-1"
    for nothing in (None, ""):
        assert typed_name(nothing, machine) == "01234567"
