"""URLs of webhooks: whatever is read means the same host to us and to the client that connects."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attestation_extensions.webhooks.addresses import (
    AddressRefused,
    WebhookURLInvalid,
    demand_allowed,
    read_url,
)

PARTS = st.sampled_from(
    [
        *(
            "https://",
            "http://",
            "a",
            "b.example",
            "127.0.0.1",
            "127.1",
            "0x7f",
            "[::1]",
            "[::ffff:10.0.0.1]",
        ),
        *(
            "@",
            ":",
            "443",
            "/",
            "\\",
            "?",
            "#",
            "%",
            "%2f",
            ".",
            "..",
            "-",
            "[",
            "]",
            "\t",
            "é",
            "0",
            "65536",
        ),
    ]
)
INSIDE = ("10.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10")


@given(st.lists(PARTS, max_size=8).map("".join))
def test_what_is_read_is_what_the_client_connects_to(text: str) -> None:
    """Host, scheme and port as httpx has them; nothing else than the one error comes out."""
    try:
        found = read_url(text, allow_http=True)
    except WebhookURLInvalid:
        return
    url = httpx.URL(text)
    assert (url.host, url.scheme, url.userinfo) == (found.host, found.scheme, b"")
    assert (url.port or {"https": 443, "http": 80}[url.scheme]) == found.port


@given(st.sampled_from([ip_network(each) for each in INSIDE]), st.integers(min_value=0))
def test_no_spelling_of_an_inner_address_passes(network: object, offset: int) -> None:
    """Plain, mapped, by 6to4 and NAT64."""
    assert hasattr(network, "num_addresses")
    inner = network[offset % network.num_addresses]  # type: ignore[index]  # an IPv4Network
    number = int(inner)
    for each in (
        inner,
        ip_address((0xFFFF << 32) | number),
        ip_address((0x2002 << 112) | (number << 80)),
        ip_address((0x64FF9B << 96) | number),
    ):
        with pytest.raises(AddressRefused):
            demand_allowed(str(each), ())


@pytest.mark.parametrize("text", ["https://[::1]-/", "https://[::1]:-/", "https://a:/", "https://a:+1/"])
def test_what_other_readers_take_otherwise_is_refused(text: str) -> None:
    """Found by fuzzing: what follows a bracket is a port or nothing."""
    with pytest.raises(WebhookURLInvalid):
        read_url(text, allow_http=True)
