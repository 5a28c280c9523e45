"""Keys of a node in real TPM behaviour (swtpm): made, certified, used, and nothing left behind."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import Prehashed

from attestation.device import TPM, AKType, KeyType, NodeTPM, TPMKey, open_transport
from attestation.device.keys import DECRYPTION_ATTRIBUTES, SIGNING_ATTRIBUTES, key_template, make_key
from attestation.errors import DeviceError, KeyNotResident, SignatureInvalid, TPMResponseError
from attestation.evidence import key_certification
from attestation.evidence.key_certification import CertifiedKey, KeyMode, csr_binding
from attestation.tpm import AKParent, Alg, Public, Scheme, commands, parse_public
from attestation.tpm.commands import Entity
from attestation.tpm.constants import Curve, Hierarchy
from attestation.tpm.key_file import STORAGE_TEMPLATE, encode_key_file, parse_key_file
from attestation.tpm.sessions import Password
from attestation.wire import sized
from attestation_testing import SoftwareTPM
from attestation_testing.software_keys import ak_template, generate_key, with_key
from tests.fixtures.tpm import MakeTPM, Wiretap

pytestmark = pytest.mark.swtpm

BINDING = csr_binding(bytes(range(32)), b"request")
HASHES: dict[int, hashes.HashAlgorithm] = {32: hashes.SHA256(), 48: hashes.SHA384(), 64: hashes.SHA512()}


def judge(
    node: NodeTPM,
    public: bytes,
    info: bytes,
    signature: bytes,
    *,
    modes: frozenset[KeyMode] = frozenset(KeyMode),
) -> CertifiedKey:
    parsed = key_certification.parse(public, info, signature)
    return key_certification.verify(
        parsed,
        ak=parse_public(node.ak_public()),
        ek=parse_public(node.identify().ek_public),
        binding=BINDING,
        spki=parsed.spki,
        modes=modes,
    )


def certified(node: NodeTPM, key: TPMKey) -> CertifiedKey:
    made = node.certify_key(key, BINDING)
    return judge(node, key.public, made.certify_info, made.signature)


@pytest.mark.parametrize("kind", KeyType)
@pytest.mark.parametrize("ak", AKType)
def test_a_key_is_resident(blank_tpm: SoftwareTPM, kind: KeyType, ak: AKType) -> None:
    """Every kind under every kind of AK: `tpm-resident`, by an AK that stands where ours stand."""
    with blank_tpm.node(ak=ak) as node:
        claims = certified(node, node.create_signing_key(kind))
    assert claims.mode is KeyMode.RESIDENT
    assert claims.attributes == SIGNING_ATTRIBUTES == 0x00040472
    assert claims.ak_parent is AKParent.ENDORSEMENT


def test_a_decryption_key_is_resident(blank_tpm: SoftwareTPM) -> None:
    """`tpm-resident-decrypt`: it opens what anybody sealed to it, and does not sign."""
    with blank_tpm.node() as node:
        key = node.create_decryption_key()
        claims = certified(node, key)
        assert claims.mode is KeyMode.RESIDENT_DECRYPT
        assert claims.attributes == DECRYPTION_ATTRIBUTES == 0x00020472
        public = parse_public(key.public).key()
        assert isinstance(public, rsa.RSAPublicKey)
        oaep = padding.OAEP(padding.MGF1(hashes.SHA256()), hashes.SHA256(), None)
        secret = secrets.token_bytes(190)
        sealed = public.encrypt(secret, oaep)
        assert node.rsa_decrypt(key, sealed) == secret
        with pytest.raises(TPMResponseError):
            node.rsa_decrypt(key, sealed[:-1] + bytes([sealed[-1] ^ 1]))
        with pytest.raises(TPMResponseError):
            node.sign(key, bytes(32))
        with pytest.raises(TPMResponseError):
            node.rsa_decrypt(node.create_signing_key(KeyType.RSA_2048), sealed)


@pytest.mark.parametrize("kind", KeyType)
@pytest.mark.parametrize("size", [32, 48, 64])
def test_signatures_verify(blank_tpm: SoftwareTPM, kind: KeyType, size: int) -> None:
    """Every kind with every hash, PKCS#1 v1.5 and PSS: what cryptography verifies."""
    digest, algorithm = secrets.token_bytes(size), Prehashed(HASHES[size])
    with blank_tpm.node() as node:
        key = node.create_signing_key(kind)
        public = parse_public(key.public).key()
        if isinstance(public, ec.EllipticCurvePublicKey):
            public.verify(node.sign(key, digest), digest, ec.ECDSA(algorithm))
            return
        public.verify(node.sign(key, digest), digest, padding.PKCS1v15(), algorithm)
        pss = padding.PSS(padding.MGF1(HASHES[size]), size)
        public.verify(node.sign(key, digest, pss=True), digest, pss, algorithm)


def test_p384_where_the_tpm_has_it(blank_tpm: SoftwareTPM) -> None:
    """Without a wish, the strongest of what every TPM profile demands."""
    with blank_tpm.node() as node:
        assert parse_public(node.create_signing_key().public).curve == Curve.NIST_P384


def test_nothing_is_left_in_the_tpm(blank_tpm: SoftwareTPM) -> None:
    """After ten rounds of everything the TPM holds the AK and nothing else: no slot is lost."""
    with blank_tpm.node() as node:
        key, decryption = node.create_signing_key(), node.create_decryption_key()
        for _ in range(10):
            node.certify_key(key, BINDING)
            node.sign(key, bytes(32))
            with pytest.raises(TPMResponseError):
                node.rsa_decrypt(decryption, bytes(256))
            with pytest.raises(DeviceError):
                node.sign(key, bytes(20))
        assert len(node._tpm.handles(commands.TRANSIENT_FIRST)) == 1
        assert node._tpm.handles(commands.LOADED_SESSION_FIRST) == []


def test_keys_survive_restarts_and_files(blank_tpm: SoftwareTPM) -> None:
    """Written to a file, read after a power cut, it is the same key of the same TPM."""
    with blank_tpm.node() as node:
        written = encode_key_file(node.create_signing_key())
    blank_tpm.power_cut()
    key = parse_key_file(written)
    with blank_tpm.node() as node:
        assert certified(node, key).mode is KeyMode.RESIDENT
    blank_tpm.reboot()
    with blank_tpm.node() as node:
        node.sign(key, bytes(48))


@pytest.mark.threat("T93")
def test_another_tpm_cannot_use_it(make_tpm: MakeTPM) -> None:
    """A stolen key file is of no use."""
    with make_tpm("a").node() as node:
        key = node.create_signing_key()
    with make_tpm("b").node() as node:
        for use in (lambda: node.sign(key, bytes(32)), lambda: node.certify_key(key, BINDING)):
            with pytest.raises(TPMResponseError):
                use()
        assert len(node._tpm.handles(commands.TRANSIENT_FIRST)) <= 1


def test_a_cleared_tpm_forgets_it(blank_tpm: SoftwareTPM) -> None:
    """TPM2_Clear makes another storage key: keys from before are gone, new ones work."""
    with blank_tpm.node() as node:
        key = node.create_signing_key()
    with blank_tpm.client() as tpm:
        tpm.execute(commands.clear(Hierarchy.PLATFORM), Password())
    with blank_tpm.node() as node:
        with pytest.raises(TPMResponseError):
            node.sign(key, bytes(32))
        node.sign(node.create_signing_key(), bytes(32))


def test_an_owner_password(blank_tpm: SoftwareTPM) -> None:
    """Where the owner hierarchy has a password, it must be said; the wrong one is refused."""
    with blank_tpm.client() as tpm:
        tpm.execute(commands.hierarchy_change_auth(Hierarchy.OWNER, b"owner"), Password())
    with blank_tpm.client() as tpm:
        node = NodeTPM(tpm, owner_auth=b"owner")
        key = node.create_signing_key()
        assert certified(node, key).mode is KeyMode.RESIDENT
        assert node.sign(key, bytes(32))
        for wrong in (b"", b"other"):
            with pytest.raises(TPMResponseError, match="auth"):
                NodeTPM(tpm, owner_auth=wrong).create_signing_key()
    with NodeTPM.open(blank_tpm.uri, owner_auth=b"owner") as node:
        node.sign(key, bytes(32))


def test_a_persistent_parent(blank_tpm: SoftwareTPM) -> None:
    """A key under a persistent storage key: loaded by handle, and the parent stays where it is."""
    with blank_tpm.client() as tpm:
        with tpm.scope():
            storage = tpm.execute(
                commands.create_primary(Hierarchy.OWNER, STORAGE_TEMPLATE), Password()
            ).entity
            tpm.execute(commands.evict_control(Hierarchy.OWNER, storage, 0x81000001), Password())
        key = make_key(tpm, key_template(KeyType.ECC_P256), parent=0x81000001)
        node = NodeTPM(tpm)
        assert parse_key_file(encode_key_file(key)) == key
        assert certified(node, key).mode is KeyMode.RESIDENT
        node.sign(key, bytes(32))
        assert tpm.handles(0x81000000) == [0x81000001]


# What an attacker with this TPM can have certified


def external(node: NodeTPM, public: Public, sensitive: bytes) -> CertifiedKey:
    """Load a software key (TPM2_LoadExternal) and have the AK certify it."""
    ak = node._load_ak()
    with node._tpm.scope():
        loaded = node._tpm.execute(commands.load_external(public.tpm2b(), sensitive=sensitive))
        signed = node._tpm.execute(commands.certify(loaded, ak.entity, BINDING), Password(), Password())
    return judge(node, public.tpm2b(), signed.attest, signed.signature, modes=frozenset({KeyMode.RESIDENT}))


def software_key(attributes: int) -> tuple[Public, bytes]:
    """Return a P-256 key of ours and its TPMT_SENSITIVE."""
    bare = ak_template(attributes=attributes)
    bare = replace(bare, scheme=None)
    key = generate_key(bare)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    secret = key.private_numbers().private_value.to_bytes(32)
    return with_key(bare, key), (0x0023).to_bytes(2) + sized(b"") + sized(b"") + sized(secret)


@pytest.mark.threat("T92")
def test_g_a_software_key_is_recognised(blank_tpm: SoftwareTPM) -> None:
    """HSM §24 g: LoadExternal gives it its bare Name for a qualified name; refused and labelled."""
    with blank_tpm.node() as node, pytest.raises(KeyNotResident) as e:
        external(node, *software_key(0x00040040))
    assert e.value.computed == "certified-external"


def test_g_a_software_key_cannot_claim_to_be_fixed(blank_tpm: SoftwareTPM) -> None:
    """LoadExternal of a private part with fixedTPM is refused by the TPM itself (0x2C2)."""
    with blank_tpm.node() as node:
        with pytest.raises(TPMResponseError) as e:
            external(node, *software_key(SIGNING_ATTRIBUTES))
        assert e.value.response_code == 0x2C2
        # Its public part alone can be loaded, but then the TPM does not certify it.
        with pytest.raises(TPMResponseError):
            external(node, software_key(SIGNING_ATTRIBUTES)[0], b"")


def test_h_leading_zeros(blank_tpm: SoftwareTPM) -> None:
    """HSM §24 h: external keys with a leading zero in X, padded and stripped: the TPM names the bytes it was given."""
    private = next(d for d in range(1, 2000) if _point(d).x < 1 << 248)
    numbers = _point(private)
    bare = software_key(0x00040040)[0]
    sensitive = (0x0023).to_bytes(2) + sized(b"") + sized(b"") + sized(private.to_bytes(32))
    with blank_tpm.node() as node:
        for x in (numbers.x.to_bytes(32), numbers.x.to_bytes(31)):
            area = replace(bare, x=x, y=numbers.y.to_bytes(32))
            public = parse_public(sized(area.serialise()))
            ak = node._load_ak()
            with node._tpm.scope():
                loaded = node._tpm.execute(commands.load_external(public.tpm2b(), sensitive=sensitive))
                assert loaded.name == public.name
                signed = node._tpm.execute(
                    commands.certify(loaded, ak.entity, BINDING), Password(), Password()
                )
            claims = judge(node, public.tpm2b(), signed.attest, signed.signature)
            assert claims.mode is KeyMode.EXTERNAL


def _point(private: int) -> ec.EllipticCurvePublicNumbers:
    return ec.derive_private_key(private, ec.SECP256R1()).public_key().public_numbers()


@pytest.mark.parametrize(
    ("attributes", "computed"),
    [
        (0x00040460, "exportable"),
        (0x00050472, "restricted"),
        (0x00060472, "of-another-use"),
    ],
)
def test_other_keys_of_this_tpm(blank_tpm: SoftwareTPM, attributes: int, computed: str) -> None:
    """N75: an exportable, restricted or two-purpose key of this very TPM, honestly certified: refused by its bits."""
    scheme = bytes.fromhex("0018000b") if attributes & 0x10000 else b""
    template = key_template(KeyType.ECC_P256, attributes=attributes)
    if scheme:
        template = template.replace(bytes.fromhex("00100010"), bytes.fromhex("0010") + scheme, 1)
    with blank_tpm.node() as node:
        key = make_key(node._tpm, template)
        with pytest.raises(KeyNotResident) as e:
            certified(node, key)
    assert e.value.computed == computed


def test_c_a_look_alike_of_an_unrestricted_key(blank_tpm: SoftwareTPM) -> None:
    """HSM §24 c: a resident key signs bytes that look like a certification of another; only the AK counts."""
    with blank_tpm.node() as node:
        signer, subject = node.create_signing_key(KeyType.ECC_P256), node.create_signing_key(KeyType.ECC_P256)
        info = node.certify_key(subject, BINDING).certify_info
        with node._tpm.scope():
            loaded = node._tpm.execute(
                commands.load(_parent(node), signer.private[2:], signer.public), Password()
            )
            forged = node._tpm.execute(
                commands.sign(
                    loaded, hashlib.sha256(info).digest(), scheme=Scheme(alg=Alg.ECDSA, hash_alg=Alg.SHA256)
                ),
                Password(),
            )
        with pytest.raises(SignatureInvalid):
            judge(node, subject.public, info, forged)


def _parent(node: NodeTPM) -> Entity:
    return node._tpm.execute(commands.create_primary(Hierarchy.OWNER, STORAGE_TEMPLATE), Password()).entity


@pytest.mark.threat("T92")
def test_another_machines_certification(make_tpm: MakeTPM) -> None:
    """A key certified by another machine's AK, however genuine, is not certified by this one."""
    with make_tpm("a").node() as node:
        key = node.create_signing_key()
        made = node.certify_key(key, BINDING)
    with make_tpm("b").node() as node, pytest.raises(SignatureInvalid):
        judge(node, key.public, made.certify_info, made.signature)


def test_a_tpm_without_p384(blank_tpm: SoftwareTPM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the TPM refuses the curve, P-256 is made; any other refusal is not hidden."""
    codes = iter([0x2E6, 0x921])

    def refuse(tpm: TPM, template: bytes, **options: bytes) -> TPMKey:
        if template == key_template(KeyType.ECC_P384):
            raise TPMResponseError("TPM2_Create", next(codes), "refused")
        return make_key(tpm, template, **options)  # type: ignore[arg-type]

    monkeypatch.setattr("attestation.device.node.make_key", refuse)
    with blank_tpm.node() as node:
        assert parse_public(node.create_signing_key().public).curve == Curve.NIST_P256
        with pytest.raises(TPMResponseError, match="refused"):
            node.create_signing_key()


def test_a_signature_that_is_none(blank_tpm: SoftwareTPM) -> None:
    """What no TPM may answer is its failure, not the caller's."""

    def cut(command: bytes, response: bytes) -> bytes:
        if command[6:10] != commands.CC.SIGN.to_bytes(4):
            return response
        # Tag, size, code and parameterSize, then the TPMT_SIGNATURE: sigAlg becomes 0.
        return response[:14] + b"\0\0" + response[16:]

    node = NodeTPM(TPM(Wiretap(open_transport(blank_tpm.uri), on_response=cut)))
    with node, pytest.raises(DeviceError, match="no TPM may answer"):
        node.sign(node.create_signing_key(), bytes(32))
