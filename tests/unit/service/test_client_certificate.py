"""Operators by client certificate: what is believed, what is refused, and what cannot be decided."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.hashes import SHA1
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID
from cryptography.x509.verification import Store
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from attestation.errors import (
    ClientCertificateUntrusted,
    Forbidden,
    RevocationUnknown,
    Unauthenticated,
)
from attestation_service.auth.client_certificate import (
    Trust,
    clean_name,
    load_authorities,
    load_lists,
    parse,
    parse_header,
    verify,
)
from attestation_service.auth.mtls import MTLS
from attestation_service.border.proxies import Proxies
from attestation_service.context.identity import Duty, Method, Right
from attestation_service.context.request import Origin
from attestation_service.settings import Settings, SettingsInvalid
from tests.fixtures.operator_pki import CLIENT, DAY, Issued, OperatorCA, unknown_critical
from tests.unit.service.conftest import OPERATOR, Service, Starter
from tests.unit.service.test_problems import is_problem

pytestmark = pytest.mark.anyio

AT = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
CA = OperatorCA(AT)
ALICE = CA.issue()
TRUST = Trust(store=Store([CA.certificate]), lists=None)
SECOND = timedelta(seconds=1)


def verified(issued: Issued, trust: Trust = TRUST, at: datetime = AT) -> Any:
    """Verify as the service does."""
    return verify(parse(issued.der), trust, at)


# ---------------------------------------------------------------- what is believed


def test_an_operator_is_who_the_certificate_says() -> None:
    """CN is the name, the key is the identity, OU the duty."""
    claims = verified(ALICE)
    spki = ALICE.key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    assert claims.cn == "alice"
    assert claims.sub == f"spki-sha256:{hashlib.sha256(spki).hexdigest()}"
    assert claims.duties == {Duty.OPERATOR}


def test_a_renewed_certificate_is_the_same_operator() -> None:
    """A new certificate for the same key cannot vote twice; another key of the same name is somebody else."""
    assert verified(CA.issue(key=ALICE.key)).sub == verified(ALICE).sub
    assert verified(CA.issue()).sub != verified(ALICE).sub


@pytest.mark.parametrize(
    ("ou", "duties"),
    [
        (("operator",), {Duty.OPERATOR}),
        (("viewer",), {Duty.VIEWER}),
        (("auditor",), {Duty.AUDITOR}),
        (("worker", "operator", "auditor"), {Duty.OPERATOR, Duty.AUDITOR}),
    ],
)
def test_the_ou_names_the_duties(ou: tuple[str, ...], duties: set[Duty]) -> None:
    """Every OU counts, in any order, and none gives more than it says."""
    assert verified(CA.issue(ou=ou)).duties == duties


def test_a_duty_may_be_in_one_cluster() -> None:
    """Named behind the duty; it gives that cluster and no other, and beside it what is given everywhere."""
    claims = verified(CA.issue(ou=("operator:prod", "viewer:edge", "viewer", "auditor:prod")))
    assert claims.duties == {Duty.VIEWER}
    assert claims.within == {(Duty.OPERATOR, "prod"), (Duty.VIEWER, "edge")}


@pytest.mark.threat("T39")
@pytest.mark.parametrize(
    "ou",
    [
        (),
        ("worker",),
        ("Operator",),
        ("operators",),
        ("operator ",),
        ("x,OU=operator",),
        ("operator:",),
        ("operator:*",),
        ("operator: prod",),
        ("auditor:prod",),
        ("metrics:prod",),
    ],
)
def test_without_a_duty_nothing_is_granted(ou: tuple[str, ...]) -> None:
    """A good certificate of our CA for something else is known, and may nothing."""
    with pytest.raises(Forbidden, match="OU"):
        verified(CA.issue(ou=ou))


@pytest.mark.parametrize(
    "key",
    [
        lambda: rsa.generate_private_key(65537, 2048),
        lambda: ec.generate_private_key(ec.SECP384R1()),
        lambda: ec.generate_private_key(ec.SECP521R1()),
    ],
)
def test_strong_keys_are_accepted(key: Callable[[], Any]) -> None:
    """RSA-2048 and the NIST curves."""
    assert verified(CA.issue(key=key())).cn == "alice"


@pytest.mark.threat("T39")
@pytest.mark.parametrize(
    "key",
    [
        lambda: rsa.generate_private_key(65537, 1024),
        lambda: ec.generate_private_key(ec.SECP224R1()),
        lambda: ec.generate_private_key(ec.SECP256K1()),
    ],
)
def test_weak_keys_are_refused(key: Callable[[], Any]) -> None:
    """Whoever can compute the key is the operator: the CA's signature does not help."""
    with pytest.raises(Unauthenticated, match=r"weaker"):
        verified(CA.issue(key=key()))


# ---------------------------------------------------------------- what proves nothing


@pytest.mark.threat("T39")
def test_another_ca_is_refused() -> None:
    """Also one that calls itself the same."""
    with pytest.raises(Unauthenticated):
        verified(OperatorCA(AT).issue())


def test_self_signed_is_refused() -> None:
    """Nobody vouches for themselves."""
    alone = OperatorCA(AT, "alice", extensions=[(CLIENT, False)])
    with pytest.raises(Unauthenticated):
        verify(alone.certificate, TRUST, AT)


def test_the_ca_itself_is_no_operator() -> None:
    """Nor is anybody whose certificate may sign others."""
    with pytest.raises(Unauthenticated):
        verify(CA.certificate, TRUST, AT)
    constraints = x509.BasicConstraints(ca=True, path_length=None)
    with pytest.raises(Unauthenticated, match="CA's"):
        verified(CA.issue(extensions=[(CLIENT, False), (constraints, True)]))
    assert verified(
        CA.issue(extensions=[(CLIENT, False), (x509.BasicConstraints(ca=False, path_length=None), True)])
    )


def test_an_operator_signs_for_nobody() -> None:
    """The key of a certificate is not a CA's, whatever it signs."""
    child = OperatorCA(AT, "alice", key=ALICE.key)
    child.certificate = ALICE.certificate
    with pytest.raises(Unauthenticated):
        verified(child.issue("mallory"))


@pytest.mark.parametrize(
    ("at", "reason"),
    [
        (AT - DAY - SECOND, "not valid yet"),
        (AT - DAY, None),
        (AT + 10 * DAY, None),
        (AT + 10 * DAY + SECOND, "expired"),
    ],
)
def test_validity_is_that_of_the_service_s_clock(at: datetime, reason: str | None) -> None:
    """Both bounds belong to it (RFC 5280 §4.1.2.5)."""
    if reason is None:
        assert verified(ALICE, at=at).cn == "alice"
    else:
        with pytest.raises(Unauthenticated, match=reason):
            verified(ALICE, at=at)


def test_an_expired_ca_vouches_for_nobody() -> None:
    """However long what it signed claims to be valid."""
    ca = OperatorCA(AT, days=2)
    trust = Trust(store=Store([ca.certificate]), lists=None)
    issued = ca.issue(ends=AT + 100 * DAY)
    assert verified(issued, trust).cn == "alice"
    with pytest.raises(Unauthenticated):
        verified(issued, trust, AT + 3 * DAY)


@pytest.mark.threat("T39")
@pytest.mark.parametrize(
    "extensions",
    [
        [],
        [(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False)],
        [(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE]), False)],
    ],
)
def test_it_must_be_for_clients(extensions: Any) -> None:
    """A server's certificate of the same CA is nobody's."""
    with pytest.raises(Unauthenticated):
        verified(CA.issue(extensions=extensions))


def usage(**chosen: bool) -> x509.KeyUsage:
    """Return a key usage with these bits."""
    bits = dict.fromkeys(
        (
            "digital_signature", "content_commitment", "key_encipherment", "data_encipherment",
            "key_agreement", "key_cert_sign", "crl_sign", "encipher_only", "decipher_only",
        ),
        False,
    )  # fmt: skip
    return x509.KeyUsage(**(bits | chosen))


def test_the_key_may_sign() -> None:
    """Where key usage is there, it must allow what TLS does with the key."""
    with pytest.raises(Unauthenticated, match="may not sign"):
        verified(CA.issue(extensions=[(CLIENT, False), (usage(key_agreement=True), True)]))
    assert verified(CA.issue(extensions=[(CLIENT, False), (usage(digital_signature=True), True)]))


def test_what_nobody_knows_but_must_be_known_is_refused() -> None:
    """An unknown critical extension may mean anything."""
    with pytest.raises(Unauthenticated):
        verified(CA.issue(extensions=[(CLIENT, False), unknown_critical()]))


@pytest.mark.filterwarnings("ignore:Parsed a serial number:Warning")
def test_no_flipped_bit_is_accepted() -> None:
    """A certificate with any single bit of what is signed changed proves nothing, and fails in one of our ways."""
    tbs = ALICE.certificate.tbs_certificate_bytes
    for where in range(len(ALICE.der)):
        for bit in range(8):
            der = bytearray(ALICE.der)
            der[where] ^= 1 << bit
            try:
                certificate = parse(bytes(der))
                verify(certificate, TRUST, AT)
            except Unauthenticated:
                continue
            # OpenSSL reads a signature's unused bits in two ways; what was signed is the same.
            assert certificate.tbs_certificate_bytes == tbs


# ---------------------------------------------------------------- names


@pytest.mark.threat("T39")
@pytest.mark.parametrize(
    "cn", ["SYSTEM", "system", "machine", "Unknown", "ＳＹＳＴＥＭ", "SYS\u200bTEM", " machine "]
)
def test_reserved_names_are_nobody_s(cn: str) -> None:
    """Break-glass, machines and strangers have these names in the audit; look-alikes are refused too."""
    with pytest.raises(Forbidden, match="reserved"):
        verified(CA.issue(cn))


@pytest.mark.parametrize("cn", [(), ("alice", "bob"), "\u200b", " \t"])
def test_there_is_exactly_one_name(cn: Any) -> None:
    """None, two, or one that cannot be seen: nobody could say who it was."""
    with pytest.raises(Forbidden, match="exactly one CN"):
        verified(CA.issue(cn))


def test_a_name_cannot_steer_a_screen_or_split_a_line() -> None:
    """Control, direction and format characters are left out; 256 characters are kept."""
    assert clean_name("al\x1b[31mi\nc\u202ee\x00") == "al[31mice"
    assert verified(CA.issue("al\u202eice\n")).cn == "alice"
    assert clean_name("x" * 300) == "x" * 256


# ---------------------------------------------------------------- revocation


def with_list(*parts: bytes, authorities: list[x509.Certificate] | None = None) -> Trust:
    """Return trust with these lists in the file."""
    chosen = authorities or [CA.certificate]
    return Trust(store=Store(chosen), lists=load_lists(b"".join(parts), chosen))


def test_a_revoked_certificate_is_refused_and_the_others_are_not() -> None:
    """In PEM and in DER."""
    bob = CA.issue("bob")
    pem = CA.revoke(bob)
    for form in (pem, ssl_der(pem)):
        trust = with_list(form)
        assert verified(ALICE, trust).cn == "alice"
        with pytest.raises(Unauthenticated, match="revoked"):
            verified(bob, trust)


def ssl_der(pem: bytes) -> bytes:
    """Return the DER of a PEM revocation list."""
    return base64.b64decode(b"".join(pem.splitlines()[1:-1]))


@pytest.mark.threat("T40")
@pytest.mark.parametrize(
    ("at", "decided"),
    [
        (AT - timedelta(hours=1, seconds=1), False),
        (AT - timedelta(hours=1), True),
        (AT + 5 * DAY - SECOND, True),
        (AT + 5 * DAY, False),
    ],
)
def test_a_stale_list_decides_nothing(at: datetime, decided: bool) -> None:
    """Before it was made and from nextUpdate on, nobody is let in; who stands on it stays out."""
    bob = CA.issue("bob")
    trust = with_list(CA.revoke(bob))
    with pytest.raises(Unauthenticated, match="revoked"):
        verified(bob, trust, at)
    if decided:
        assert verified(ALICE, trust, at).cn == "alice"
    else:
        with pytest.raises(RevocationUnknown, match="stale"):
            verified(ALICE, trust, at)


@pytest.mark.threat("T40")
@pytest.mark.parametrize(
    "crl",
    [
        lambda: OperatorCA(AT).revoke(),
        lambda: OperatorCA(AT, "Somebody else").revoke(),
        lambda: OperatorCA(AT, "Our key, another name", key=CA.key).revoke(),
        lambda: CA.revoke(key=ec.generate_private_key(ec.SECP256R1())),
        lambda: CA.revoke(extensions=[unknown_critical()]),
        lambda: CA.revoke(extensions=[(x509.DeltaCRLIndicator(1), True)]),
        lambda: CA.revoke(
            extensions=[
                (
                    x509.IssuingDistributionPoint(
                        full_name=None, relative_name=None, only_contains_user_certs=False,
                        only_contains_ca_certs=True, only_some_reasons=None, indirect_crl=False,
                        only_contains_attribute_certs=False,
                    ),
                    True,
                )
            ]
        ),
        lambda: CA.revoke(
            CA.issue("bob"),
            entry_extensions=[(x509.CertificateIssuer([x509.DNSName("other.example")]), True)],
        ),
    ],
    ids=[
        "other-key", "other-name", "our-key-other-name", "forged", "unknown-critical", "delta", "of-cas-only",
        "indirect",
    ],
)  # fmt: skip
def test_a_list_that_is_not_a_whole_list_of_this_ca_decides_nothing(crl: Callable[[], bytes]) -> None:
    """Of another CA, forged, partial or for others: nobody is let in by it."""
    with pytest.raises(RevocationUnknown, match="no usable"):
        verified(ALICE, with_list(crl()))


def test_the_newest_list_counts() -> None:
    """An older one beside it takes nothing back, in whichever order they stand."""
    bob = CA.issue("bob")
    old = CA.revoke(made=AT - timedelta(hours=3))
    new = CA.revoke(bob, made=AT - timedelta(hours=2))
    for parts in ((old, new), (new, old)):
        with pytest.raises(Unauthenticated, match="revoked"):
            verified(bob, with_list(*parts))


def test_each_ca_needs_a_list_of_its_own() -> None:
    """A list of one CA says nothing about what another signed, though the file be full."""
    other = OperatorCA(AT, "Other operators")
    both = [CA.certificate, other.certificate]
    bob = other.issue("bob")
    with pytest.raises(RevocationUnknown):
        verified(bob, with_list(CA.revoke(), authorities=both))
    assert verified(bob, with_list(CA.revoke(), other.revoke(), authorities=both)).cn == "bob"
    with pytest.raises(Unauthenticated, match="revoked"):
        verified(bob, with_list(CA.revoke(), other.revoke(bob), authorities=both))


def test_rubbish_is_no_list() -> None:
    """It stops, rather than being an empty list."""
    for data in (b"", b"rubbish", ALICE.pem, b"-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n"):
        with pytest.raises(ValueError):
            load_lists(data, [CA.certificate])


@pytest.mark.parametrize("changed", [{"next_update_utc": None}, {"signature_hash_algorithm": SHA1()}])
def test_a_list_without_an_end_or_strength_is_left_out(
    monkeypatch: pytest.MonkeyPatch, changed: dict[str, Any]
) -> None:
    """RFC 5280 §5.1.2.5 demands nextUpdate; without one a list would decide for ever. SHA-1 can be forged."""

    class Changed:
        """A good list, but for this; no tool of ours makes such a one."""

        def __init__(self, crl: x509.CertificateRevocationList) -> None:
            self._crl = crl

        def __getattr__(self, name: str) -> Any:
            return changed[name] if name in changed else getattr(self._crl, name)

        def __iter__(self) -> Any:
            return iter(self._crl)

    load = x509.load_der_x509_crl
    assert load_lists(CA.revoke(), [CA.certificate])
    monkeypatch.setattr(x509, "load_der_x509_crl", lambda data: Changed(load(data)))
    assert load_lists(CA.revoke(), [CA.certificate]) == {}


# ---------------------------------------------------------------- the bundle of CAs


@pytest.mark.parametrize(
    ("bundle", "word"),
    [
        (lambda: b"", "."),
        (lambda: b"rubbish", "."),
        (lambda: ALICE.pem, "not a CA"),
        (
            lambda: (
                OperatorCA(AT, extensions=[(x509.BasicConstraints(ca=False, path_length=None), True)]).pem
            ),
            "not a CA",
        ),
        (
            lambda: (
                OperatorCA(
                    AT,
                    extensions=[
                        (x509.BasicConstraints(ca=True, path_length=0), True),
                        (usage(digital_signature=True), True),
                    ],
                ).pem
            ),
            "may not sign",
        ),
        (lambda: OperatorCA(AT, key=rsa.generate_private_key(65537, 1024)).pem, "weaker"),
        (lambda: CA.pem + ALICE.pem, "not a CA"),
    ],
)
def test_only_cas_are_trusted(bundle: Callable[[], bytes], word: str) -> None:
    """An empty bundle, an operator's certificate in it, a weak CA: each is refused by name."""
    with pytest.raises(ValueError, match=word):
        load_authorities(bundle())


def test_a_bundle_may_hold_several_cas() -> None:
    """Each is trusted itself: an old and a new CA while they change."""
    other = OperatorCA(AT, "New operators")
    trust = Trust(store=Store(load_authorities(CA.pem + other.pem)), lists=None)
    assert verified(ALICE, trust).cn == "alice"
    assert verified(other.issue("bob"), trust).cn == "bob"


# ---------------------------------------------------------------- headers of a proxy


def rfc9440(issued: Issued) -> bytes:
    """Return the certificate as RFC 9440 puts it into a header."""
    return b":" + base64.b64encode(issued.der) + b":"


def test_both_headers_carry_the_certificate() -> None:
    """URL-encoded PEM, with and without a last line end, and RFC 9440."""
    assert parse_header(b"x-client-cert", ALICE.escaped.encode()) == ALICE.der
    assert parse_header(b"x-client-cert", ALICE.escaped.removesuffix("%0A").encode()) == ALICE.der
    assert parse_header(b"client-cert", b" " + rfc9440(ALICE) + b" ") == ALICE.der


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (b"x-client-cert", b"%zz"),
        (b"x-client-cert", b"%"),
        (b"x-client-cert", ALICE.escaped.encode()[:-1]),
        (b"x-client-cert", ALICE.escaped.encode()[:-40]),
        (b"x-client-cert", ALICE.pem),
        (b"x-client-cert", ALICE.pem.replace(b"\n", b"\t")),
        (b"x-client-cert", ALICE.escaped.encode() * 2),
        (b"x-client-cert", b"x" + ALICE.escaped.encode()),
        (b"x-client-cert", ALICE.escaped.encode() + b"x"),
        (b"x-client-cert", ALICE.escaped.encode().replace(b"%0A", b"%00")),
        (b"x-client-cert", ALICE.key_pem.replace(b"\n", b"%0A").replace(b" ", b"%20")),
        (b"x-client-cert", base64.b64encode(ALICE.der)),
        (b"x-client-cert", rfc9440(ALICE)),
        (b"x-client-cert", b"%0A" * 10),
        (b"x-client-cert", ALICE.escaped.encode() + b"%0A" * 6000),
        (b"client-cert", base64.b64encode(ALICE.der)),
        (b"client-cert", rfc9440(ALICE)[:-1]),
        (b"client-cert", b":"),
        (b"client-cert", b"::x"),
        (b"client-cert", b":****:"),
        (b"client-cert", b":AAA:"),
        (b"client-cert", rfc9440(ALICE) + b", " + rfc9440(ALICE)),
        (b"client-cert", rfc9440(ALICE) + b";a=1"),
        (b"client-cert", b":" + b"A" * (8_192 - 4) + b":   "),
        (b"client-cert", ALICE.escaped.encode()),
    ],
    ids=lambda value: value[:4].decode("latin-1"),  # the same in every process: keys are random
)  # fmt: skip
def test_a_header_of_another_form_is_no_certificate(name: bytes, value: bytes) -> None:
    """Cut, doubled, not encoded, too long, something else: 401, and nothing is read around it."""
    with pytest.raises(Unauthenticated):
        parse_header(name, value)


@given(st.sampled_from([b"x-client-cert", b"client-cert"]), st.binary(max_size=512))
def test_whatever_a_header_holds_it_fails_in_one_way(name: bytes, value: bytes) -> None:
    """A certificate or Unauthenticated, nothing else."""
    with contextlib.suppress(Unauthenticated):
        parse(parse_header(name, value))


@pytest.mark.parametrize(
    "der",
    [b"", b"\x30", b"\x30\x03\x02\x01\x01", ALICE.der + b"\x00", ALICE.der[:-1], b"\x30" * 9000],
    ids=["empty", "tag", "integer", "more", "cut", "long"],
)
def test_bytes_that_are_no_certificate(der: bytes) -> None:
    """Nor one followed by something."""
    with pytest.raises(Unauthenticated):
        parse(der)


def test_a_huge_certificate_is_not_looked_at() -> None:
    """However good: what is parsed and hashed at each request is bounded."""
    names = x509.SubjectAlternativeName([x509.DNSName(f"{i}.example.test") for i in range(500)])
    with pytest.raises(Unauthenticated, match="longer"):
        parse(CA.issue(extensions=[(CLIENT, False), (names, False)]).der)


# ---------------------------------------------------------------- files that change


@dataclass
class Files:
    """What the settings name, and the method over it."""

    ca: Path
    crl: Path

    def method(self) -> MTLS:
        """Start anew."""
        return MTLS(Settings(operator_ca=self.ca, operator_crl=self.crl))


@pytest.fixture
def files(tmp_path: Path) -> Files:
    """A CA and an empty list."""
    found = Files(tmp_path / "ca.pem", tmp_path / "ca.crl")
    found.ca.write_bytes(CA.pem)
    found.crl.write_bytes(CA.revoke())
    return found


def replace(path: Path, data: bytes) -> None:
    """Put another file into the place of *path*, as whoever fetches lists does."""
    new = path.with_suffix(".new")
    new.write_bytes(data)
    new.replace(path)


ORIGIN = Origin("1", "192.0.2.9")


async def test_a_new_list_counts_at_once(files: Files) -> None:
    """Who is put on the list is out with the next request, and may come back."""
    method = files.method()
    who = await method.operator(ALICE.der, ORIGIN, AT)
    assert (who.cn, who.source, who.method) == ("alice", "192.0.2.9", Method.CERTIFICATE)
    assert who.rights == {Right.READ, Right.ACT, Right.QUERY, Right.METRICS, Right.KNOWN}
    assert who.is_human
    replace(files.crl, CA.revoke(ALICE))
    with pytest.raises(Unauthenticated, match="revoked"):
        await method.operator(ALICE.der, ORIGIN, AT)
    replace(files.crl, CA.revoke())
    await method.operator(ALICE.der, ORIGIN, AT)


async def test_a_list_changed_in_place_counts_too(files: Files) -> None:
    """The same file, written over."""
    method = files.method()
    await method.operator(ALICE.der, ORIGIN, AT)
    files.crl.write_bytes(CA.revoke(ALICE))
    os.utime(files.crl, ns=(1, 1))
    with pytest.raises(Unauthenticated, match="revoked"):
        await method.operator(ALICE.der, ORIGIN, AT)


@pytest.mark.threat("T40")
@pytest.mark.parametrize("spoil", [Path.unlink, lambda path: path.write_bytes(b"rubbish")])
@pytest.mark.parametrize("which", ["ca", "crl"])
async def test_what_cannot_be_read_lets_nobody_in(
    files: Files, which: str, spoil: Callable[[Path], object]
) -> None:
    """The old list does not stay in force; with a good file the method works again, without a restart."""
    method = files.method()
    await method.operator(ALICE.der, ORIGIN, AT)
    path: Path = getattr(files, which)
    good = CA.pem if which == "ca" else CA.revoke()
    spoil(path)
    for _ in range(2):
        with pytest.raises(RevocationUnknown):
            await method.operator(ALICE.der, ORIGIN, AT)
    replace(path, good)
    assert (await method.operator(ALICE.der, ORIGIN, AT)).cn == "alice"


async def test_an_exchanged_ca_counts_at_once(files: Files) -> None:
    """Operators of the old CA are out with the next request."""
    method = files.method()
    await method.operator(ALICE.der, ORIGIN, AT)
    other = OperatorCA(AT, "New operators")
    replace(files.ca, other.pem)
    replace(files.crl, other.revoke())
    with pytest.raises(Unauthenticated):
        await method.operator(ALICE.der, ORIGIN, AT)
    assert (await method.operator(other.issue("bob").der, ORIGIN, AT)).cn == "bob"


def test_a_wrong_bundle_stops_the_start_and_a_wrong_list_does_not(files: Files) -> None:
    """Machines are served though operators' certificates cannot be judged."""
    files.crl.write_bytes(b"rubbish")
    with capture_logs() as logs:
        files.method()
    assert (
        "it is no revocation list that can be read. Put the newest list of that CA there" in logs[0]["reason"]
    )
    for rubbish in (b"rubbish", b"-----BEGIN CERTIFICATE-----\nMA==\n-----END CERTIFICATE-----\n"):
        files.ca.write_bytes(rubbish)
        with pytest.raises(
            SettingsInvalid, match=r"no certificate that can be read.*\. Name a PEM file"
        ) as told:
            files.method()
        assert "Error" not in str(told.value)
    files.ca.write_bytes(ALICE.pem)
    with pytest.raises(SettingsInvalid, match=r"ITL_OPERATOR_CA.*not a CA"):
        files.method()
    files.ca.unlink()
    with pytest.raises(SettingsInvalid, match=r"ITL_OPERATOR_CA: .*: No such file or directory\. Name"):
        files.method()


# ---------------------------------------------------------------- over HTTP

SECRET = "proxy-secret-of-more-than-32-characters"
PROXY = {"Itl-Proxy-Secret": SECRET}


@pytest.fixture
async def behind(start: Starter, files: Files) -> Service:
    """A service behind a proxy at the address of the test's client, with operators' certificates."""
    return await start(
        operator_ca=files.ca, operator_crl=files.crl, proxy_secret=SECRET, trusted_proxies="192.0.2.0/24"
    )


async def asked(service: Service, path: str, *headers: tuple[str, str]) -> Any:
    """GET with these headers, in this order and number."""
    return await service.http.get(f"/api/v1{path}", headers=[*PROXY.items(), *headers])


@pytest.mark.parametrize(
    ("ou", "reads", "acts", "audits"),
    [("operator", 200, 422, 403), ("viewer", 200, 403, 403), ("auditor", 403, 403, 200)],
)
async def test_duties_open_what_they_open(
    behind: Service, ou: str, reads: int, acts: int, audits: int
) -> None:
    """Each duty's rights, over the real routes; the operator's name is in the audit."""
    header = ("X-Client-Cert", CA.issue(ou=(ou,)).escaped)
    assert (await asked(behind, "/machines", header)).status_code == reads
    acted = await behind.http.post("/api/v1/registration-tokens", json={}, headers=[*PROXY.items(), header])
    assert acted.status_code == acts
    assert (await asked(behind, "/audit", header)).status_code == audits


async def test_an_act_is_audited_under_name_and_key(behind: Service) -> None:
    """The entry names who it was, and which key."""
    body = {"role": "worker-app", "expires_in_seconds": 600}
    answer = await behind.http.post(
        "/api/v1/registration-tokens", json=body, headers=PROXY | {"Client-Cert": rfc9440(ALICE).decode()}
    )
    assert answer.status_code < 300, answer.text
    entry = next(e for e in await behind.audit() if e["operator_cn"] == "alice")
    assert entry["operator_sub"] == verified(ALICE).sub


@pytest.mark.parametrize(
    ("certificate", "status", "code"),
    [
        (lambda: OperatorCA(AT).issue(), 401, "unauthenticated"),
        (lambda: CA.issue(ends=AT - SECOND), 401, "unauthenticated"),
        (lambda: CA.issue(ou=("worker",)), 403, "forbidden"),
        (lambda: CA.issue("SYSTEM"), 403, "forbidden"),
    ],
)
async def test_a_bad_certificate_is_answered_and_recorded(
    behind: Service, certificate: Callable[[], Issued], status: int, code: str
) -> None:
    """401 where it proves nothing, 403 where it names nobody of ours; both are denials in the audit."""
    answer = await asked(behind, "/machines", ("X-Client-Cert", certificate().escaped))
    is_problem(answer, status, code)
    assert (await behind.audit(action="denied"))[0]["operator_cn"] == "unknown"


async def test_a_bad_certificate_locks_nobody_out(behind: Service) -> None:
    """However often an expired one is tried: it stays 401, the audit is bounded, the token still works from there."""
    expired = CA.issue(ends=AT - SECOND).escaped
    for _ in range(30):
        is_problem(await asked(behind, "/machines", ("X-Client-Cert", expired)), 401, "unauthenticated")
    assert (await asked(behind, "/machines", *OPERATOR.items())).status_code == 200
    assert len(await behind.audit(action="denied")) == 10


async def test_what_cannot_be_decided_is_503(behind: Service, files: Files) -> None:
    """Without a usable list the answer is that we do not know."""
    replace(files.crl, CA.revoke(ends=AT - SECOND))
    answer = await asked(behind, "/machines", ("X-Client-Cert", ALICE.escaped))
    is_problem(answer, 503, "revocation-unknown")


@pytest.mark.parametrize(
    "headers",
    [
        [("X-Client-Cert", ALICE.escaped), ("X-Client-Cert", ALICE.escaped)],
        [("X-Client-Cert", ALICE.escaped), ("Client-Cert", rfc9440(ALICE).decode())],
        [("Client-Cert", rfc9440(ALICE).decode()), ("Client-Cert", rfc9440(ALICE).decode())],
    ],
)
async def test_two_certificates_are_none(behind: Service, headers: list[tuple[str, str]]) -> None:
    """A proxy that passes on what it should overwrite is not believed about either."""
    is_problem(await asked(behind, "/machines", *headers), 403, "client-cert-untrusted")


@pytest.mark.parametrize(
    "value",
    ["%zz", "x", ALICE.pem.decode().replace("\n", " "), ALICE.escaped[:100]],
    ids=["percent", "text", "blanks", "cut"],
)
async def test_a_broken_header_of_the_proxy_is_401(behind: Service, value: str) -> None:
    """Never 500."""
    is_problem(await asked(behind, "/machines", ("X-Client-Cert", value)), 401, "unauthenticated")


async def test_a_wrong_bearer_does_not_fall_through(behind: Service) -> None:
    """A good certificate beside a wrong token helps nobody."""
    header = ("X-Client-Cert", ALICE.escaped)
    answer = await asked(behind, "/machines", header, ("Authorization", "Bearer wrong"))
    is_problem(answer, 401, "unauthenticated")
    # And a right one wins over the certificate.
    answer = await asked(behind, "/audit", header, *OPERATOR.items())
    assert answer.status_code == 200


async def test_an_empty_header_is_no_certificate(behind: Service) -> None:
    """Proxies send one for clients without a certificate."""
    answer = await asked(behind, "/machines", ("X-Client-Cert", ""))
    is_problem(answer, 401, "unauthenticated")
    assert (await asked(behind, "/machines", ("X-Client-Cert", ""), *OPERATOR.items())).status_code == 200


def test_presented_refuses_what_the_border_let_pass(files: Files) -> None:
    """The method itself says no to a certificate of a stranger: two checks, not one."""
    scope: dict[str, Any] = {
        "headers": [(b"x-client-cert", ALICE.escaped.encode())],
        "client": ("198.51.100.1", 1),
    }
    Proxies(Settings()).read(scope)
    with pytest.raises(ClientCertificateUntrusted):
        files.method().presented(scope)


def test_the_certificate_of_our_own_tls_is_presented(files: Files) -> None:
    """As the ASGI TLS extension carries it."""
    extension = {
        "tls_version": 0x0304,
        "cipher_suite": 0x1302,
        "client_cert_chain": [ssl.DER_cert_to_PEM_cert(ALICE.der)],
    }
    scope: dict[str, Any] = {
        "headers": [], "client": ("198.51.100.1", 1), "extensions": {"tls": extension},
    }  # fmt: skip
    Proxies(Settings()).read(scope)
    assert files.method().presented(scope) == ALICE.der


class Interrupted(dict[str, bytes]):
    """The keys of our own CA as one thread saw them; in the middle of its use, another thread comes with others."""

    def __init__(self, seen: dict[str, bytes], meanwhile: Callable[[], object]) -> None:
        super().__init__(seen)
        self._meanwhile = meanwhile

    def __iter__(self) -> Iterator[str]:
        self._meanwhile()
        return super().__iter__()


def test_two_threads_in_a_rotation_do_not_mix_what_they_saw() -> None:
    """Who is asked with some keys answers with these, also if another thread asked with others in the middle."""
    mtls = MTLS(Settings())
    before, after = ({name: OperatorCA(AT, name).certificate.public_bytes(Encoding.DER)} for name in "ba")

    def known(own: dict[str, bytes]) -> set[str]:
        return {issuer_id for _, issuer_id in mtls._authorities(own).values()}

    assert known(Interrupted(after, lambda: known(before))) == {"a"}
    assert known(after) == {"a"}
    assert known(before) == {"b"}
