"""Software keys make statements that only checks tell from those of a TPM."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import Prehashed
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from attestation.device import KeyType, TPMKey
from attestation.device.keys import key_template
from attestation.errors import AKAttributesRejected, DeviceError, MalformedEvidence, SignatureInvalid
from attestation.evidence import ak_activation, key_certification
from attestation.evidence.key_certification import KeyMode
from attestation.tpm import (
    TPM_GENERATED,
    Alg,
    AttestType,
    CertifyInfo,
    Curve,
    PCRSelection,
    QuoteInfo,
    Scheme,
    VerificationKey,
    make_credential,
    match_ek_template,
    parse_attest,
    parse_public,
    parse_signature,
    parse_tpmt_public,
)
from attestation.tpm.key_file import encode_key_file, parse_key_file
from attestation.wire import sized
from attestation_testing import (
    CertificateAuthority,
    SoftwareAK,
    SoftwareEK,
    SoftwareNode,
    ak_template,
    private_half,
    software_activate,
    software_key,
)

SELECTION = PCRSelection.from_names({"sha256": [0, 7]})
AT = datetime(2026, 11, 21, tzinfo=UTC)

TEMPLATES = {
    "p256": ak_template(),
    "p384": ak_template(curve=Curve.NIST_P384, scheme=Scheme(alg=Alg.ECDSA, hash_alg=Alg.SHA384)),
    "p521": ak_template(curve=Curve.NIST_P521, scheme=Scheme(alg=Alg.ECDSA, hash_alg=Alg.SHA512)),
    "rsassa": ak_template(rsa_bits=2048),
    "rsapss": ak_template(rsa_bits=2048, scheme=Scheme(alg=Alg.RSAPSS, hash_alg=Alg.SHA256)),
}


@pytest.mark.parametrize("kind", TEMPLATES)
def test_forged_quote_is_perfect(kind: str) -> None:
    """Layout, digest and signature are those of a TPM; with the right attributes nothing is left to refuse."""
    ak = SoftwareAK(TEMPLATES[kind])
    values = {"sha256": {0: b"\1" * 32, 7: b"\7" * 32}}
    quote = ak.quote(b"n" * 32, SELECTION, values, clock_ms=5, reset_count=9, restart_count=2, safe=False)
    attest = parse_attest(quote.attest)
    assert (attest.magic, attest.type, attest.extra_data) == (TPM_GENERATED, AttestType.QUOTE, b"n" * 32)
    assert (attest.clock_ms, attest.reset_count, attest.restart_count, attest.safe) == (5, 9, 2, False)
    assert isinstance(attest.attested, QuoteInfo)
    assert attest.attested.selection == SELECTION
    assert quote.pcr_values == values
    VerificationKey(ak.public).verify(parse_signature(quote.signature), quote.attest)
    with pytest.raises(SignatureInvalid):
        VerificationKey(SoftwareAK(TEMPLATES[kind]).public).verify(
            parse_signature(quote.signature), quote.attest
        )
    ak_activation.check_ak(ak.public)


def test_values_left_out_are_zeros_and_magic_can_be_wrong() -> None:
    """What the test does not care about is filled; what it wants wrong is wrong, and signed all the same."""
    ak = SoftwareAK(seed=1)
    quote = ak.quote(b"", SELECTION, magic=0xFF544348)
    assert quote.pcr_values == {"sha256": {0: bytes(32), 7: bytes(32)}}
    assert parse_attest(quote.attest).magic == 0xFF544348
    VerificationKey(ak.public).verify(parse_signature(quote.signature), quote.attest)


def test_certify_statement_is_made() -> None:
    """The same for TPM2_Certify."""
    ak = SoftwareAK(seed=1)
    message, signature = ak.certify(b"\x00\x0b" + bytes(32), b"\x00\x0b" + bytes(32), b"c" * 32)
    attest = parse_attest(message)
    assert isinstance(attest.attested, CertifyInfo)
    VerificationKey(ak.public).verify(parse_signature(signature), message)


def test_wrong_attributes_are_what_gives_a_software_key_away() -> None:
    """The template may say anything; the verifier's rule looks at exactly that."""
    with pytest.raises(AKAttributesRejected):
        ak_activation.check_ak(SoftwareAK(ak_template(attributes=0x00040040), seed=1).public)


@pytest.mark.parametrize("template", ["L-1", "L-2", "H-2", "H-3", "H-4", "H-6"])
def test_credential_opens_in_software(template: str) -> None:
    """Our MakeCredential and this opening agree, under every template; another Name opens nothing."""
    ek = SoftwareEK(template)
    assert match_ek_template(ek.public).name == template
    name = SoftwareAK(seed=1).public.name
    credential = make_credential(ek.public, name, b"s" * 32)
    assert ek.activate(name, credential.credential_blob, credential.encrypted_secret) == b"s" * 32
    with pytest.raises(MalformedEvidence):
        software_activate(
            ek.public, ek.key, name[:-1] + b"\0", credential.credential_blob, credential.encrypted_secret
        )


def test_same_seed_same_machine() -> None:
    """Keys come from the seed; another seed is another machine."""
    first, again, other = SoftwareNode(1), SoftwareNode(1), SoftwareNode(2)
    assert first.identify() == again.identify()
    assert first.ak_public() == again.ak_public()
    assert first.ak_public() != other.ak_public()
    assert first.identify().ek_public != other.identify().ek_public


def test_software_node_goes_the_whole_way() -> None:
    """Identify, activate, quote, extend, reboot: the calls of NodeTPM."""
    authority = CertificateAuthority(seed=1)
    node = SoftwareNode(3, authority=authority, at=AT)
    identity = node.identify()
    assert identity.ek_source == "cert"
    ek, ak = parse_public(identity.ek_public), parse_public(node.ak_public())
    ak_activation.check_keys(identity.ek_public, node.ak_public())
    credential = make_credential(ek, ak.name, b"s" * 32)
    assert node.activate(credential.credential_blob, credential.encrypted_secret) == b"s" * 32
    node.extend_pcr(7, b"\7" * 32)
    first, second = node.quote(b"n" * 32, SELECTION), node.quote(b"n" * 32, SELECTION)
    assert first.pcr_values["sha256"][7] != bytes(32)
    assert parse_attest(second.attest).clock_ms > parse_attest(first.attest).clock_ms
    node.reboot()
    third = node.quote(b"n" * 32, SELECTION)
    assert third.pcr_values["sha256"][7] == bytes(32)
    assert parse_attest(third.attest).reset_count == parse_attest(first.attest).reset_count + 1
    for quote in (first, second, third):
        VerificationKey(ak).verify(parse_signature(quote.signature), quote.attest)
    node.close()


def test_certificate_needs_a_time_and_a_signature_a_scheme() -> None:
    """Mistakes of the test's author are said."""
    with pytest.raises(ValueError, match="time"):
        SoftwareNode(1, authority=CertificateAuthority())
    bare = replace(ak_template(), scheme=None)
    with pytest.raises(ValueError, match="scheme"):
        SoftwareAK(replace(bare, tpmt=bare.serialise()), seed=1).sign(b"")


BINDING = key_certification.csr_binding(bytes(32), b"request")


def certified(node: SoftwareNode, key: TPMKey, *, external: bool = False) -> KeyMode:
    """Return the mode in which a verifier sees *key*."""
    made = node.certify_key(key, BINDING, external=external)
    parsed = key_certification.parse(key.public, made.certify_info, made.signature)
    return key_certification.verify(
        parsed,
        ak=node.ak.public,
        ek=node.ek.public,
        binding=BINDING,
        spki=parsed.spki,
        modes=frozenset(KeyMode),
    ).mode


@pytest.mark.parametrize("kind", KeyType)
def test_software_machines_make_keys(kind: KeyType) -> None:
    """A software machine's keys verify as a TPM's would, sign, and can be kept in files."""
    node = SoftwareNode(1)
    key = parse_key_file(encode_key_file(node.create_signing_key(kind)))
    assert certified(node, key) is KeyMode.RESIDENT
    public, algorithm = parse_public(key.public).key(), Prehashed(hashes.SHA384())
    if isinstance(public, ec.EllipticCurvePublicKey):
        public.verify(node.sign(key, bytes(48)), bytes(48), ec.ECDSA(algorithm))
        with pytest.raises(DeviceError):
            node.rsa_decrypt(key, bytes(256))
        return
    public.verify(node.sign(key, bytes(48)), bytes(48), padding.PKCS1v15(), algorithm)
    pss = padding.PSS(padding.MGF1(hashes.SHA384()), 48)
    public.verify(node.sign(key, bytes(48), pss=True), bytes(48), pss, algorithm)


def test_software_machines_decrypt() -> None:
    """And the key for decryption opens what was sealed to it."""
    node = SoftwareNode(2)
    key = node.create_decryption_key()
    assert certified(node, key) is KeyMode.RESIDENT_DECRYPT
    public = parse_public(key.public).key()
    assert isinstance(public, rsa.RSAPublicKey)
    oaep = padding.OAEP(padding.MGF1(hashes.SHA256()), hashes.SHA256(), None)
    assert node.rsa_decrypt(key, public.encrypt(b"secret", oaep)) == b"secret"


def test_software_machines_vouch_for_external_keys() -> None:
    """What a TPM says of a key that was brought in: its mode is `certified-external`."""
    template = parse_tpmt_public(key_template(KeyType.ECC_P256, attributes=0x00040040))
    assert certified(SoftwareNode(3), software_key(template), external=True) is KeyMode.EXTERNAL


def test_only_keys_of_software_have_a_private_half() -> None:
    """What else is no key of ours is refused."""
    key = software_key(parse_tpmt_public(key_template(KeyType.ECC_P256)))
    assert isinstance(private_half(key), ec.EllipticCurvePrivateKey)
    foreign = ed25519.Ed25519PrivateKey.generate().private_bytes(
        Encoding.DER, PrivateFormat.PKCS8, NoEncryption()
    )
    with pytest.raises(DeviceError):
        private_half(TPMKey(public=key.public, private=sized(foreign)))
