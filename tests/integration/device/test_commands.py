"""Every command codec against a real TPM (swtpm): it takes what we send, and we read what it answers."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from attestation.device import TPM
from attestation.device.client import LiveUse
from attestation.errors import TPMResponseError
from attestation.tpm import (
    Alg,
    AttestType,
    Hierarchy,
    PCRSelection,
    VerificationKey,
    commands,
    encapsulate,
    parse_attest,
    parse_public,
    parse_signature,
)
from attestation.tpm.commands import NVAttr, SessionType, permanent
from attestation.tpm.credential import DUPLICATE, aes_cfb
from attestation.tpm.hashes import hmac_digest
from attestation.tpm.kdf import kdfa
from attestation.tpm.sessions import Password
from attestation.wire import sized, u16, u32
from attestation_testing import SoftwareAK, SoftwareTPM, ak_template
from attestation_testing.software_tpm import ek_template

pytestmark = pytest.mark.swtpm

EMPTY = Password()
UNRESTRICTED = 0x00040472
SELECTION = PCRSelection.from_names({"sha256": [0]})


@pytest.fixture
def tpm(blank_tpm: SoftwareTPM) -> Iterator[TPM]:
    """A client of a blank TPM."""
    with blank_tpm.client() as client:
        yield client


def primary(tpm: TPM, template: bytes, hierarchy: int = Hierarchy.ENDORSEMENT) -> commands.Primary:
    """Load a primary key."""
    return tpm.execute(commands.create_primary(hierarchy, template), EMPTY)


def storage_key(tpm: TPM) -> commands.Primary:
    """A P-256 storage key in the owner hierarchy: H-2 without its policy."""
    template = replace(ek_template("H-2").public, auth_policy=b"", attributes=0x00030472)
    return primary(tpm, template.serialise(), Hierarchy.OWNER)


def test_self_test_random_and_properties(tpm: TPM) -> None:
    """The simple ones."""
    tpm.execute(commands.self_test(full=True))
    assert len(tpm.execute(commands.get_random(16))) == 16
    assert tpm.properties()[commands.Property.REVISION] == 164
    assert tpm.execute(commands.get_properties(0x100, 2)).more


def test_child_keys_are_created_and_loaded(tpm: TPM) -> None:
    """Create under a parent, load, read back, quote with it; TPM2_ReadPublic agrees."""
    parent = storage_key(tpm)
    made = tpm.execute(commands.create(parent.entity, ak_template().tpmt), EMPTY)
    child = tpm.execute(commands.load(parent.entity, made.private, made.public), EMPTY)
    read = tpm.execute(commands.read_public(child.handle))
    assert (read.public, read.name) == (made.public, child.name)
    signed = tpm.execute(commands.quote(child, bytes(32), SELECTION), EMPTY)
    assert parse_attest(signed.attest).qualified_signer == read.qualified_name
    VerificationKey(parse_public(made.public)).verify(parse_signature(signed.signature), signed.attest)


def test_certify_states_the_certified_key(tpm: TPM) -> None:
    """An AK certifies a sibling; the statement carries Name, qualified Name and our nonce."""
    ak = primary(tpm, ak_template().tpmt)
    other = primary(tpm, ak_template(attributes=UNRESTRICTED, unique=b"other").tpmt)
    signed = tpm.execute(commands.certify(other.entity, ak.entity, b"n" * 32), EMPTY, EMPTY)
    attest = parse_attest(signed.attest)
    assert attest.type == AttestType.CERTIFY
    assert attest.extra_data == b"n" * 32
    assert other.entity.name in signed.attest
    VerificationKey(parse_public(ak.public)).verify(parse_signature(signed.signature), signed.attest)


def test_only_unrestricted_keys_sign_what_the_tpm_did_not_make(tpm: TPM) -> None:
    """TPM2_Sign over a foreign digest: refused by an AK, done by an ordinary key, so attributes must be checked."""
    ordinary = primary(tpm, ak_template(attributes=UNRESTRICTED).tpmt)
    forged = SoftwareAK().quote(bytes(32), SELECTION).attest
    digest = hashlib.sha256(forged).digest()
    signature = tpm.execute(commands.sign(ordinary.entity, digest), EMPTY)
    VerificationKey(parse_public(ordinary.public)).verify(parse_signature(signature), forged)
    ak = primary(tpm, ak_template().tpmt)
    with pytest.raises(TPMResponseError):
        tpm.execute(commands.sign(ak.entity, digest), EMPTY)


def test_software_keys_can_be_brought_in_but_not_as_fixed(tpm: TPM) -> None:
    """TPM2_LoadExternal takes a private key, unless it claims fixedTPM (0x2C2): so fixedTPM must be demanded."""
    key = ec.generate_private_key(ec.SECP256R1())
    sensitive = (
        u16(Alg.ECC) + sized(b"") + sized(b"") + sized(key.private_numbers().private_value.to_bytes(32))
    )
    honest = SoftwareAK(ak_template(attributes=0x00040440), key=key)
    loaded = tpm.execute(commands.load_external(honest.public.tpm2b(), sensitive=sensitive))
    assert loaded.name == honest.public.name
    claimed = SoftwareAK(ak_template(), key=key)
    with pytest.raises(TPMResponseError) as caught:
        tpm.execute(commands.load_external(claimed.public.tpm2b(), sensitive=sensitive))
    assert caught.value.response_code == 0x2C2


@pytest.mark.parametrize("name", ["L-1", "L-2", "H-3"])
def test_credentials_made_in_the_tpm_open_in_it(tpm: TPM, name: str) -> None:
    """TPM2_MakeCredential's own blob passes our activation command: both codecs agree with the TPM."""
    template = ek_template(name)
    ek = primary(tpm, template.tpmt(zeros=template.low_range))
    ak = primary(tpm, ak_template().tpmt)
    made = tpm.execute(commands.make_credential(ek.entity, b"s" * 32, ak.entity.name))
    command = commands.activate_credential(ak.entity, ek.entity, made.credential_blob, made.encrypted_secret)
    authorise_ek: Password | LiveUse = EMPTY
    if template.low_range:
        session = tpm.start_session(SessionType.POLICY, None)
        tpm.execute(commands.policy_secret(permanent(Hierarchy.ENDORSEMENT), session.handle), EMPTY)
        authorise_ek = session.use(keep=False)
    assert tpm.execute(command, EMPTY, authorise_ek) == b"s" * 32


def test_low_range_ek_refuses_the_empty_password_and_high_range_the_policy(tpm: TPM) -> None:
    """What TPM.md §2.4 measured: authorisation differs by range."""
    for name in ("L-2", "H-2"):
        template = ek_template(name)
        with tpm.scope():
            ek = primary(tpm, template.tpmt(zeros=template.low_range))
            ak = primary(tpm, ak_template().tpmt)
            made = tpm.execute(commands.make_credential(ek.entity, b"s" * 32, ak.entity.name))
            command = commands.activate_credential(
                ak.entity, ek.entity, made.credential_blob, made.encrypted_secret
            )
            session = tpm.start_session(SessionType.POLICY, None)
            tpm.execute(commands.policy_secret(permanent(Hierarchy.ENDORSEMENT), session.handle), EMPTY)
            with pytest.raises(TPMResponseError):
                tpm.execute(command, EMPTY, EMPTY if template.low_range else session.use())


def test_duplicate_is_imported_under_the_ek(tpm: TPM) -> None:
    """TPM.md §3.3: an HMAC key wrapped by us for the EK is imported, loaded, and certifies the AK."""
    ek = primary(tpm, ek_template("H-2").tpmt())
    ek_public = parse_public(ek.public)
    key, seed_value = b"K" * 32, b"O" * 32
    public = (
        u16(Alg.KEYEDHASH)
        + u16(Alg.SHA256)
        + u32(0x00050440)
        + sized(b"")
        + u16(Alg.HMAC)
        + u16(Alg.SHA256)
        + sized(hashlib.sha256(seed_value + key).digest())
    )
    name = parse_public(sized(public)).name
    sensitive = u16(Alg.KEYEDHASH) + sized(b"") + sized(seed_value) + sized(key)
    seed, encrypted_seed = encapsulate(ek_public, DUPLICATE)
    inner = aes_cfb(kdfa(Alg.SHA256, seed, b"STORAGE", name, b"", 128), sized(sensitive), encrypt=True)
    integrity = hmac_digest(Alg.SHA256, kdfa(Alg.SHA256, seed, b"INTEGRITY", b"", b"", 256), inner + name)
    private = tpm.execute(
        commands.import_key(ek.entity, sized(public), sized(sized(integrity) + inner), encrypted_seed), EMPTY
    )
    loaded = tpm.execute(commands.load(ek.entity, private, sized(public)), EMPTY)
    assert loaded.name == name
    ak = primary(tpm, ak_template().tpmt)
    signed = tpm.execute(commands.certify(ak.entity, loaded, b"c" * 32), EMPTY, EMPTY)
    # Over the digest: the TPM hashes the statement before it signs.
    expected = hmac.new(key, hashlib.sha256(signed.attest).digest(), hashlib.sha256).digest()
    assert parse_signature(signed.signature).signature == expected


def test_pcrs_are_extended_and_reset(tpm: TPM) -> None:
    """PCR 16 goes back to zeros, in every bank."""
    selection = PCRSelection.from_names({"sha256": [16], "sha384": [16]})
    before = tpm.execute(commands.pcr_read(selection))
    extension = {int(Alg.SHA256): b"\1" * 32, int(Alg.SHA384): b"\1" * 48}
    tpm.execute(commands.pcr_extend(16, extension), EMPTY)
    after = tpm.execute(commands.pcr_read(selection))
    assert all(any(value) for value in after.values.values())
    tpm.execute(commands.pcr_reset(16), EMPTY)
    assert tpm.execute(commands.pcr_read(selection)).values == before.values


def test_keys_become_persistent_and_go(tpm: TPM) -> None:
    """EvictControl stores a key under a handle of ours and removes it again."""
    key = primary(tpm, ak_template().tpmt)
    tpm.execute(commands.evict_control(Hierarchy.OWNER, key.entity, 0x81010005), EMPTY)
    assert tpm.handles(0x81000000) == [0x81010005]
    stored = commands.Entity(0x81010005, tpm.execute(commands.read_public(0x81010005)).name)
    assert stored.name == key.entity.name
    tpm.execute(commands.evict_control(Hierarchy.OWNER, stored, 0x81010005), EMPTY)
    assert tpm.handles(0x81000000) == []


def test_nv_indices_come_and_go(tpm: TPM) -> None:
    """Define under owner, write, read with an HMAC session, undefine."""
    attributes = int(NVAttr.OWNER_WRITE | NVAttr.OWNER_READ | NVAttr.NO_DA)
    public = commands.NVPublic(
        index=0x01800001, name_alg=Alg.SHA256, attributes=attributes, auth_policy=b"", size_bytes=16
    )
    owner = permanent(Hierarchy.OWNER)
    tpm.execute(commands.nv_define_space(Hierarchy.OWNER, public), EMPTY)
    tpm.execute(commands.nv_write(owner, public.entity, b"0123456789abcdef", 0), EMPTY)
    written = tpm.execute(commands.nv_read_public(public.index))
    session = tpm.start_session(SessionType.HMAC, None)
    assert tpm.execute(commands.nv_read(owner, written.entity, 6, 4), session.use()) == b"456789"
    tpm.execute(commands.nv_undefine_space(Hierarchy.OWNER, written.entity), EMPTY)
    assert tpm.handles(0x01800001) == []


@pytest.mark.parametrize("name", ["L-1", "L-2", "H-3", "H-4"])
def test_salted_sessions_encrypt_in_both_directions(tpm: TPM, name: str) -> None:
    """A password set through an encrypted parameter is the password; random bytes come back encrypted.

    Salt by OAEP and by ECDH, with SHA-256, SHA-384 and SHA-512 keys.
    """
    template = ek_template(name)
    ek = primary(tpm, template.tpmt(zeros=template.low_range))
    session = tpm.start_session(SessionType.HMAC, (ek.entity, parse_public(ek.public)))
    tpm.execute(
        commands.hierarchy_change_auth(Hierarchy.OWNER, b"new password"), session.use(encrypt_command=True)
    )
    with pytest.raises(TPMResponseError, match="BAD_AUTH"):
        tpm.execute(commands.hierarchy_change_auth(Hierarchy.OWNER, b"x"), EMPTY)
    tpm.execute(
        commands.hierarchy_change_auth(Hierarchy.OWNER, b"another"),
        session.use(auth_value=b"new password", encrypt_command=True),
    )
    assert len(tpm.execute(commands.get_random(32), session.use(encrypt_response=True))) == 32
    # A second session that encrypts for a command which a first one authorises.
    helper = tpm.start_session(SessionType.HMAC, (ek.entity, parse_public(ek.public)))
    tpm.execute(
        commands.hierarchy_change_auth(Hierarchy.OWNER, b""),
        session.use(auth_value=b"another"),
        helper.use(encrypt_command=True, keep=False),
    )
    helper = tpm.start_session(SessionType.HMAC, (ek.entity, parse_public(ek.public)))
    tpm.execute(
        commands.hierarchy_change_auth(Hierarchy.OWNER, b"last"), EMPTY, helper.use(encrypt_command=True)
    )
    tpm.execute(commands.hierarchy_change_auth(Hierarchy.OWNER, b""), Password(b"last"))


def test_wrong_password_in_a_session_is_refused(tpm: TPM) -> None:
    """The HMAC proves knowledge of the authValue; the session survives the refusal."""
    ek = primary(tpm, ek_template("H-2").tpmt())
    tpm.execute(commands.hierarchy_change_auth(Hierarchy.OWNER, b"right"), EMPTY)
    session = tpm.start_session(SessionType.HMAC, (ek.entity, parse_public(ek.public)))
    with pytest.raises(TPMResponseError, match="BAD_AUTH"):
        tpm.execute(commands.hierarchy_change_auth(Hierarchy.OWNER, b""), session.use(auth_value=b"wrong"))
    tpm.execute(commands.hierarchy_change_auth(Hierarchy.OWNER, b""), session.use(auth_value=b"right"))


def test_clear_leaves_ek_and_ak_as_they_were(tpm: TPM) -> None:
    """TPM2_Clear keeps the endorsement seed: who owns the machine next meets the same identity."""
    before = primary(tpm, ak_template().tpmt).public
    tpm.flush_since(())
    tpm.execute(commands.clear(Hierarchy.PLATFORM), EMPTY)
    assert primary(tpm, ak_template().tpmt).public == before
