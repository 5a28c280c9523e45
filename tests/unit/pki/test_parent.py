"""A CA of ours below a company's root: the request, the chain that comes back, and what the chain permits."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from attestation.errors import CAChainInvalid, CertificateNotConformant
from attestation.pki.content import CertificateContent, key_identifier
from attestation.pki.names import ca_subject
from attestation.pki.parent import (
    MAX_CHAIN,
    Limits,
    check_chain,
    check_imported,
    ends,
    key_id,
    make_request,
    outside,
)
from attestation.pki.profiles import ProfileName

AT = datetime(2026, 11, 26, tzinfo=UTC)
NAME = ca_subject("machine", country="NL", organization="ITL Usions")
KEY = ec.generate_private_key(ec.SECP384R1())
ROOT_KEY = ec.generate_private_key(ec.SECP384R1())
MIDDLE_KEY = ec.generate_private_key(ec.SECP256R1())
SPKI = KEY.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def named(common_name: str) -> x509.Name:
    """Return a name of one attribute."""
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


@dataclass(frozen=True, kw_only=True)
class Made:
    """A certificate of a chain: what it says where it is good."""

    subject: x509.Name
    issuer: x509.Name
    key: Any
    signer: Any
    path_length: int | None = None
    ca: bool = True
    usage: tuple[str, ...] = ("key_cert_sign", "crl_sign")
    begins: datetime = AT - timedelta(days=1)
    ends: datetime = AT + timedelta(days=365)
    ski: bool = True
    aki: bytes | None = None
    more: tuple[tuple[x509.ExtensionType, bool], ...] = ()

    def der(self) -> bytes:
        """Sign it."""
        bits: tuple[str, ...] = (
            "digital_signature",
            "content_commitment",
            "key_encipherment",
            "data_encipherment",
        )
        bits += ("key_agreement", "key_cert_sign", "crl_sign", "encipher_only", "decipher_only")
        builder = (
            x509.CertificateBuilder()
            .subject_name(self.subject)
            .issuer_name(self.issuer)
            .public_key(self.key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(self.begins)
            .not_valid_after(self.ends)
            .add_extension(x509.BasicConstraints(self.ca, self.path_length), critical=True)
        )
        if self.usage:
            usage = x509.KeyUsage(**{bit: bit in self.usage for bit in bits})
            builder = builder.add_extension(usage, critical=True)
        if self.ski:
            ski = x509.SubjectKeyIdentifier.from_public_key(self.key.public_key())
            builder = builder.add_extension(ski, critical=False)
        if self.aki is not None:
            builder = builder.add_extension(x509.AuthorityKeyIdentifier(self.aki, None, None), critical=False)
        for extension, critical in self.more:
            builder = builder.add_extension(extension, critical)
        return builder.sign(self.signer, hashes.SHA384()).public_bytes(Encoding.DER)


OURS = Made(subject=NAME, issuer=named("Middle"), key=KEY, signer=MIDDLE_KEY, path_length=0)
MIDDLE = Made(subject=named("Middle"), issuer=named("Root"), key=MIDDLE_KEY, signer=ROOT_KEY, path_length=1)
ROOT = Made(subject=named("Root"), issuer=named("Root"), key=ROOT_KEY, signer=ROOT_KEY)
OWN = replace(OURS, issuer=NAME, signer=KEY).der()


def chain(ours: Made = OURS, middle: Made = MIDDLE, root: Made = ROOT) -> list[bytes]:
    """Return a chain of three."""
    return [ours.der(), middle.der(), root.der()]


def test_a_good_chain_is_taken() -> None:
    """Ours, one between, the root."""
    check_chain(chain(), OWN, AT)


def test_a_chain_may_say_that_it_is_for_everything() -> None:
    """AnyExtendedKeyUsage limits nothing."""
    everything = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE])
    check_chain(chain(replace(OURS, more=((everything, False),))), OWN, AT)


def test_a_chain_ends_with_its_first_to_end() -> None:
    """Whichever that is; and its key is named as its first certificate says."""
    soon = AT + timedelta(days=3)
    given = chain(middle=replace(MIDDLE, ends=soon))
    assert ends(given) == soon
    assert key_id(given[0]) == x509.SubjectKeyIdentifier.from_public_key(KEY.public_key()).digest


def test_a_root_may_certify_us_itself() -> None:
    """A chain of two."""
    ours = replace(OURS, issuer=named("Root"), signer=ROOT_KEY)
    check_chain([ours.der(), ROOT.der()], OWN, AT)


OTHER = ec.generate_private_key(ec.SECP384R1())
WEAK = rsa.generate_private_key(65537, 1024)
STRANGE = x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3.4"), b"\x05\x00")

SERVER_AUTH = ExtendedKeyUsageOID.SERVER_AUTH
BAD = {
    "another key": (chain(replace(OURS, key=OTHER)), "another key"),
    "another name": (chain(replace(OURS, subject=named("Ours"))), "changed our name"),
    "no key identifier": (chain(replace(OURS, ski=False)), "SubjectKeyIdentifier"),
    "no CA": (chain(replace(OURS, ca=False, path_length=None)), "none of a CA"),
    "may not sign": (chain(replace(OURS, usage=("crl_sign",))), "keyCertSign"),
    "may not sign lists": (chain(replace(OURS, usage=("key_cert_sign",))), "cRLSign"),
    # What `openssl req -x509` makes of itself.
    "a root that does not say what its key is for": (chain(root=replace(ROOT, usage=())), "has no KeyUsage"),
    "no room": (chain(middle=replace(MIDDLE, path_length=0)), "allows 0 CAs"),
    "ended": (chain(middle=replace(MIDDLE, ends=AT - timedelta(seconds=1))), "not now"),
    "not yet": (chain(replace(OURS, begins=AT + timedelta(days=1))), "not now"),
    "strange": (chain(replace(OURS, more=((STRANGE, True),))), "1.2.3.4"),
    "limits policies": (
        chain(middle=replace(MIDDLE, more=((x509.InhibitAnyPolicy(0), False),))),
        "limits policies",
    ),
    "limits purposes": (
        chain(replace(OURS, more=((x509.ExtendedKeyUsage([SERVER_AUTH]), False),))),
        "limits what",
    ),
    "weak": (
        [OURS.der(), replace(MIDDLE, signer=WEAK).der(), replace(ROOT, key=WEAK, signer=WEAK).der()],
        "proves nothing",
    ),
    "wrong order": (chain()[::-1], "another key"),
    "swapped parents": ([OURS.der(), ROOT.der(), replace(MIDDLE, path_length=None).der()], "follows"),
    "signed by another": (chain(replace(OURS, signer=OTHER)), "did not sign"),
    "another key identifier": (chain(replace(OURS, aki=bytes(20))), "names another key"),
    "no root": ([OURS.der(), MIDDLE.der()], "root must be last"),
    "root of another": (chain(root=replace(ROOT, signer=OTHER)), "did not sign"),
    "alone": ([OWN], "a chain of 1"),
    "too many": ([*chain(), *[ROOT.der()] * MAX_CHAIN], "2 to"),
    "no certificate": ([OURS.der(), b"\x30\x00"], "certificate 2"),
}


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_chain_is_refused(bad: str) -> None:
    """Each for its own reason."""
    given, why = BAD[bad]
    with pytest.raises(CAChainInvalid, match=why):
        check_chain(given, OWN, AT)


def test_a_ca_that_goes_on_here_is_a_root_or_below_one() -> None:
    """Checked as a parent is, its key too: somebody else made it."""
    check_imported(chain(), AT)
    check_imported([ROOT.der()], AT)
    for given, why in (
        ([], "a chain of 0"),
        ([*chain(), *[ROOT.der()] * MAX_CHAIN], "1 to"),
        (chain(replace(OURS, ski=False)), "SubjectKeyIdentifier"),
        ([replace(ROOT, key=WEAK, signer=WEAK).der()], "proves nothing"),
        ([replace(ROOT, ends=AT - timedelta(seconds=1)).der()], "not now"),
        ([replace(ROOT, usage=("crl_sign",)).der()], "keyCertSign"),
        ([OURS.der()], "root must be last"),
    ):
        with pytest.raises(CAChainInvalid, match=why):
            check_imported(given, AT)


def test_an_extension_that_stands_twice_is_refused() -> None:
    """No library of ours writes one, so it is made by hand: the second of two is what some programs read."""
    ours = replace(
        OURS,
        more=(
            (STRANGE, False),
            (x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3.5"), b"\x05\x00"), False),
        ),
    )
    tbs = x509.load_der_x509_certificate(ours.der()).tbs_certificate_bytes
    twice = tbs.replace(bytes.fromhex("06032a0305"), bytes.fromhex("06032a0304"))
    signature = MIDDLE_KEY.sign(twice, ec.ECDSA(hashes.SHA384()))
    algorithm = bytes.fromhex("300a06082a8648ce3d040303")
    bits = b"\x03" + bytes([len(signature) + 1]) + b"\0" + signature
    content = twice + algorithm + bits
    der = b"\x30\x82" + len(content).to_bytes(2, "big") + content
    with pytest.raises(CAChainInvalid, match=r"1\.2\.3\.4 twice"):
        check_chain([der, MIDDLE.der(), ROOT.der()], OWN, AT)


def test_a_request_asks_for_its_limits(tmp_path: Path) -> None:
    """OpenSSL reads it, and its signature is ours."""
    limits = Limits(
        path_length=0, dns=("nodes.example",), ip=(ip_network("10.0.0.0/8"),), policies=("1.2.3.4",)
    )
    (tmp_path / "r.der").write_bytes(make_request(NAME, SPKI, KEY, limits))
    told = subprocess.run(
        ["openssl", "req", "-inform", "DER", "-in", "r.der", "-noout", "-text", "-verify"],
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "verify OK" in told.stdout + told.stderr
    for said in (
        "CA:TRUE, pathlen:0",
        "Certificate Sign, CRL Sign",
        "DNS:nodes.example",
        "10.0.0.0",
        "1.2.3.4",
    ):
        assert said in told.stdout
    request = x509.load_der_x509_csr((tmp_path / "r.der").read_bytes())
    ski = request.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    assert ski.digest == key_identifier(SPKI)


def test_a_request_without_limits_has_none() -> None:
    """No constraint, no policy."""
    request = x509.load_der_x509_csr(make_request(NAME, SPKI, KEY, Limits()))
    found = {type(extension.value) for extension in request.extensions}
    assert found == {x509.BasicConstraints, x509.KeyUsage, x509.SubjectKeyIdentifier}


def test_a_request_that_cannot_be_is_refused() -> None:
    """What no request can say."""
    with pytest.raises(CertificateNotConformant, match="no request"):
        make_request(NAME, SPKI, KEY, Limits(policies=("9.9",)))


def content(**names: Any) -> CertificateContent:
    """Return a certificate that is to be issued."""
    return CertificateContent(
        profile=ProfileName.NODE_SERVER,
        serial=1,
        subject=NAME,
        issuer_subject=NAME,
        spki=SPKI,
        not_before=AT,
        not_after=AT,
        authority_key_id=b"",
        **names,
    )


def limited(permitted: list[x509.GeneralName] | None, excluded: list[x509.GeneralName] | None) -> list[bytes]:
    """Return a chain whose second certificate limits names."""
    limits = x509.NameConstraints(permitted, excluded)
    return chain(middle=replace(MIDDLE, more=((limits, True),)))


URN = "urn:itl:ek:00"
NET = x509.IPAddress(ip_network("10.0.0.0/8"))


@pytest.mark.parametrize(
    ("names", "permitted", "excluded", "why"),
    [
        ({"dns_names": ("a.nodes.example",)}, [x509.DNSName("nodes.example")], None, None),
        ({"dns_names": ("nodes.example",)}, [x509.DNSName(".nodes.example")], None, None),
        ({"dns_names": ("a.example",)}, [x509.DNSName("")], None, None),
        ({"dns_names": ("xnodes.example",)}, [x509.DNSName("nodes.example")], None, "xnodes.example"),
        ({"dns_names": ("a.example",)}, None, [x509.DNSName("example")], "a.example"),
        ({"dns_names": ("a.example",)}, [NET], None, None),
        ({"ip_addresses": (ip_address("10.1.2.3"),)}, [NET], None, None),
        ({"ip_addresses": (ip_address("192.0.2.1"),)}, [NET], None, "192.0.2.1"),
        ({"ip_addresses": (ip_address("10.1.2.3"),)}, None, [NET], "10.1.2.3"),
        ({"uris": (URN,)}, [x509.DNSName("nodes.example")], None, None),
        ({"uris": (URN,)}, [x509.UniformResourceIdentifier("example")], None, URN),
        ({"uris": (URN,)}, None, [x509.UniformResourceIdentifier("example")], URN),
        ({"emails": ("a@example",)}, [x509.DNSName("other.example")], None, None),
        ({"emails": ("a@example",)}, [x509.RFC822Name("example")], None, "a@example"),
        ({"emails": ("a@example",)}, None, [x509.RFC822Name("other.example")], "a@example"),
        ({}, [x509.DirectoryName(x509.Name(NAME.rdns[:2]))], None, None),
        ({}, [x509.DirectoryName(named("Another"))], None, "CN=ITL Machine"),
        ({}, None, [x509.DirectoryName(x509.Name(NAME.rdns[:1]))], "CN=ITL Machine"),
    ],
)
def test_names_outside_of_the_limits_are_found(
    names: dict[str, Any],
    permitted: list[x509.GeneralName] | None,
    excluded: list[x509.GeneralName] | None,
    why: str | None,
) -> None:
    """As a relying party compares them."""
    found = outside(content(**names), limited(permitted, excluded))
    assert found is None if why is None else found is not None and why in found


def test_a_chain_without_limits_permits_all() -> None:
    """Most have none."""
    assert outside(content(dns_names=("a.example",)), chain()) is None
