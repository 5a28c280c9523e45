"""Names are compared as RFC 5280, 7.1 says; the text is for people."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attestation.endorsements.names import normalised, parse_name
from attestation.errors import MalformedEvidence
from tests.vectors import forge

CN, O, C, DC = "2.5.4.3", "2.5.4.10", "2.5.4.6", "0.9.2342.19200300.100.1.25"  # noqa: E741 -- as in X.500


def name(text: str, tag: int = 0x0C, encoding: str = "utf-8", kind: str = CN) -> bytes:
    """Return a name of one attribute."""
    return forge.seq(forge.tlv(0x31, forge.seq(forge.oid(kind), forge.tlv(tag, text.encode(encoding)))))


@pytest.mark.parametrize(
    ("tag", "encoding"),
    [
        (0x0C, "utf-8"),
        (0x13, "ascii"),
        (0x14, "latin-1"),
        (0x16, "ascii"),
        (0x1A, "ascii"),
        (0x1C, "utf-32-be"),
        (0x1E, "utf-16-be"),
    ],
)
def test_the_string_type_does_not_count(tag: int, encoding: str) -> None:
    """One name, whatever type its maker chose."""
    assert parse_name(name("TPM Root 01", tag, encoding)).key == parse_name(name("TPM Root 01")).key


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("TPM Root", "tpm ROOT"),
        ("TPM Root", "  TPM \t Root "),
        ("Straße", "STRASSE"),
        ("Å", "A\u030a"),
        ("ＴＰＭ", "tpm"),
        ("TPM\u00a0Root", "tpm root"),
        ("TPM\u00ad Root\u200b", "tpm root"),
        ("TPM\x00 Root", "TPM Root"),
    ],
)
def test_case_width_and_white_space_do_not_count(one: str, other: str) -> None:
    """RFC 4518: mapped, normalised, folded, white space insignificant."""
    assert normalised(one) == normalised(other)


def test_what_counts() -> None:
    """Type and value of each attribute, and the order of the RDNs; not the order inside an RDN."""
    pairs = ((CN, "a"), (O, "b"))
    separate = forge.seq(*(forge.rdn(pair) for pair in pairs))
    turned = forge.seq(*(forge.rdn(pair) for pair in reversed(pairs)))
    together, shuffled = forge.seq(forge.rdn(*pairs)), forge.seq(forge.rdn(*reversed(pairs)))
    names = [separate, turned, together, name("a"), name("a", kind=O), name("ab"), forge.seq()]
    assert len({parse_name(n).key for n in names}) == len(names)
    assert parse_name(together).key == parse_name(shuffled).key
    assert parse_name(together).anomalies != parse_name(shuffled).anomalies
    assert parse_name(forge.seq()).relative == ()


def test_attributes_do_not_run_into_one_another() -> None:
    """The key has lengths in it: no two names are one because their texts join."""
    one = forge.seq(forge.rdn((CN, "a"), (O, "bc")))
    other = forge.seq(forge.rdn((CN, "ab"), (O, "c")))
    assert parse_name(one).key != parse_name(other).key


def test_a_value_that_is_no_string_is_compared_as_it_is() -> None:
    """Numbers, and strings that are not of their type: equal only to the same bytes."""
    number = forge.seq(forge.tlv(0x31, forge.seq(forge.oid(CN), forge.integer(5))))
    broken = forge.seq(forge.tlv(0x31, forge.seq(forge.oid(CN), forge.tlv(0x0C, b"\xff\xfe"))))
    assert parse_name(number).text == "Common Name: #020105"
    assert parse_name(broken).text == "Common Name: #0c02fffe"
    assert parse_name(number).key not in {parse_name(broken).key, parse_name(name("#020105")).key}


def test_the_text_is_for_people() -> None:
    """The most particular first, wherever the country stands; repeated attributes in one place."""
    front = forge.seq(forge.rdn((C, "DE")), forge.rdn((O, "Own")), forge.rdn((CN, "Root")))
    back = forge.seq(forge.rdn((CN, "Root")), forge.rdn((O, "Own")), forge.rdn((C, "DE")))
    assert parse_name(front).text == "Common Name: Root, Organization: Own, Country: DE"
    assert parse_name(back).text == parse_name(front).text
    domains = forge.seq(forge.rdn((DC, "org")), forge.rdn((DC, "example")), forge.rdn((CN, "Root")))
    assert parse_name(domains).text == "Common Name: Root; Domain Component: example, org"
    assert parse_name(name("x", kind="1.2.3.4")).text == "1.2.3.4: x"
    assert parse_name(forge.seq()).text == ""


def test_long_attributes_are_accepted_and_named() -> None:
    """More than 64 characters, and more than what is kept between requests."""
    long = parse_name(name("x" * 65))
    assert long.anomalies == ("an attribute is longer than 64 characters",)
    assert parse_name(name("x" * 64)).anomalies == ()
    assert parse_name(name("x" * 5000)).text.endswith("x" * 5000)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        forge.integer(1),
        forge.seq(forge.integer(1)),
        forge.seq(forge.tlv(0x31)),
        forge.seq(forge.tlv(0x31, forge.integer(1))),
        forge.seq(forge.tlv(0x31, forge.seq(forge.integer(1), forge.utf8("a")))),
        forge.seq(forge.tlv(0x31, forge.seq(forge.oid(CN)))),
        forge.seq(forge.tlv(0x31, forge.seq(forge.oid(CN), forge.utf8("a"), forge.utf8("b")))),
        forge.seq(forge.tlv(0x31, forge.seq(forge.oid(CN), forge.utf8("a")))) + b"\0",
    ],
)
def test_what_is_no_name_is_malformed(raw: bytes) -> None:
    """Sets of pairs of a type and a value, nothing else."""
    with pytest.raises(MalformedEvidence):
        parse_name(raw)


@given(st.text(max_size=40))
def test_normalising_twice_is_normalising_once(text: str) -> None:
    """Otherwise equality would depend on who asks."""
    once = normalised(text)
    assert normalised(once) == once
