"""What a node does with its TPM, done with a real one (swtpm), judged by our verifier's primitives."""

from __future__ import annotations

import contextlib
import secrets
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from attestation.device import TPM, AKType, NodeTPM, open_transport
from attestation.device.node import EK_PREFERENCE
from attestation.errors import DeviceError, SignatureInvalid, TPMResponseError
from attestation.evidence import ak_activation
from attestation.tpm import (
    Alg,
    Attr,
    Hierarchy,
    PCRSelection,
    Public,
    QuoteInfo,
    VerificationKey,
    commands,
    make_credential,
    match_ek_template,
    parse_attest,
    parse_public,
    parse_signature,
    qualified_name_of_primary,
)
from attestation.tpm.commands import CC, NVAttr
from attestation.tpm.sessions import Password
from attestation.wire import sized, u16, u32
from attestation_testing import CertificateAuthority, SoftwareAK, SoftwareTPM, ak_template
from attestation_testing.software_tpm import ek_template, write_nv
from tests.fixtures.tpm import MakeTPM, Wiretap

pytestmark = pytest.mark.swtpm

SELECTION = PCRSelection.from_names({"sha256": [0, 1, 2, 3, 4, 5, 6, 7, 11]})
NONCE = bytes(range(32))


def keys(node: NodeTPM) -> tuple[Public, Public]:
    """EK and AK of a node."""
    return parse_public(node.identify().ek_public), parse_public(node.ak_public())


@pytest.mark.parametrize("template", ["L-1", "L-2", "H-1", "H-2", "H-3", "H-4", "H-6"])
@pytest.mark.parametrize("ak", AKType)
def test_credential_is_opened_under_every_template(
    blank_tpm: SoftwareTPM, tpm_ca: CertificateAuthority, template: str, ak: AKType
) -> None:
    """Identify, activate, quote: with low- and high-range EKs, of every size, and SHA-256 AKs throughout."""
    certificate = blank_tpm.manufacture(tpm_ca, template=template)
    with blank_tpm.node(ek_templates=(template,), ak=ak) as node:
        identity = node.identify()
        assert (identity.template, identity.ek_source) == (template, "cert")
        assert identity.ek_certificate == certificate
        ek, ak_public = keys(node)
        assert match_ek_template(ek).name == template
        ak_activation.check_keys(identity.ek_public, node.ak_public())
        secret = secrets.token_bytes(32)
        credential = make_credential(ek, ak_public.name, secret)
        assert node.activate(credential.credential_blob, credential.encrypted_secret) == secret
        quote = node.quote(NONCE, SELECTION)
    VerificationKey(ak_public).verify(parse_signature(quote.signature), quote.attest)


def test_identity_tells_maker_and_firmware(software_tpm: SoftwareTPM) -> None:
    """Properties come as text and number."""
    with software_tpm.node() as node:
        identity = node.identify()
    assert identity.manufacturer == "IBM"
    assert "SW" in identity.vendor
    assert identity.firmware_version > 0
    assert identity.ek_chain == ()


@pytest.mark.parametrize("flipped", ["name", "blob", "secret"])
def test_credential_for_something_else_stays_closed(software_tpm: SoftwareTPM, flipped: str) -> None:
    """Another AK Name, a changed blob, a changed seed: the TPM refuses, and the node goes on."""
    with software_tpm.node() as node:
        ek, ak = keys(node)
        name = ak.name if flipped != "name" else ak.name[:-1] + bytes([ak.name[-1] ^ 1])
        good = make_credential(ek, name, bytes(32))
        blob, secret = bytearray(good.credential_blob), bytearray(good.encrypted_secret)
        if flipped == "blob":
            blob[-1] ^= 1
        if flipped == "secret":
            secret[-1] ^= 1
        with pytest.raises(TPMResponseError):
            node.activate(bytes(blob), bytes(secret))
        assert node.quote(NONCE, SELECTION).attest


def test_credential_for_another_tpm_stays_closed(make_tpm: MakeTPM, tpm_ca: CertificateAuthority) -> None:
    """A blob made for one machine is of no use on another."""
    first, second = make_tpm(), make_tpm()
    with first.node() as node:
        ek, ak = keys(node)
    credential = make_credential(ek, ak.name, bytes(32))
    with second.node() as node, pytest.raises(TPMResponseError):
        node.activate(credential.credential_blob, credential.encrypted_secret)


@pytest.mark.parametrize("ak", AKType)
def test_quote_states_nonce_selection_and_values(software_tpm: SoftwareTPM, ak: AKType) -> None:
    """What is quoted is what was asked for, signed by the AK, with the values that hash to the digest."""
    software_tpm.extend_pcr(7, b"\x07" * 32)
    with software_tpm.node(ak=ak) as node:
        quote = node.quote(NONCE, SELECTION)
        public = parse_public(node.ak_public())
    attest = parse_attest(quote.attest)
    assert isinstance(attest.attested, QuoteInfo)
    assert attest.extra_data == NONCE
    assert attest.attested.selection.as_sets() == SELECTION.as_sets()
    assert attest.qualified_signer == qualified_name_of_primary(Hierarchy.ENDORSEMENT, public.name)
    assert list(quote.pcr_values["sha256"]) == [0, 1, 2, 3, 4, 5, 6, 7, 11]
    assert quote.pcr_values["sha256"][7] != bytes(32)
    assert quote.pcr_values["sha256"][0] == bytes(32)
    VerificationKey(public).verify(parse_signature(quote.signature), quote.attest)
    changed = quote.attest[:-1] + bytes((quote.attest[-1] ^ 1,))
    with pytest.raises(SignatureInvalid):
        VerificationKey(public).verify(parse_signature(quote.signature), changed)


def test_all_pcrs_of_two_banks_are_read(software_tpm: SoftwareTPM) -> None:
    """48 values need several reads; each comes with its bank's length."""
    selection = PCRSelection.from_names({"sha256": range(24), "sha384": range(24)})
    with software_tpm.node() as node:
        values = node.quote(NONCE, selection).pcr_values
    assert {bank: len(pcrs) for bank, pcrs in values.items()} == {"sha256": 24, "sha384": 24}
    assert all(len(value) == 48 for value in values["sha384"].values())


def test_absent_bank_is_an_error(software_tpm: SoftwareTPM) -> None:
    """A TPM without the bank refuses it, or answers for less than asked; the node takes neither for a quote."""
    with software_tpm.node() as node, pytest.raises(DeviceError):
        node.quote(NONCE, PCRSelection(((Alg.SM3_256, (0,)),)))

    def less(command: bytes, response: bytes) -> bytes:
        nothing = u32(1) + u32(1) + u16(Alg.SHA256) + b"\3\0\0\0" + u32(0)
        is_read = int.from_bytes(command[6:10]) == CC.PCR_READ
        return u16(0x8001) + u32(10 + len(nothing)) + u32(0) + nothing if is_read else response

    node, _ = tapped(software_tpm, Wiretap(open_transport(software_tpm.uri), on_response=less))
    with node, pytest.raises(DeviceError, match="all of the selected"):
        node.quote(NONCE, SELECTION)


def test_key_without_scheme_does_not_quote(software_tpm: SoftwareTPM) -> None:
    """A key that fixes no scheme fixes no hash either, over which values could be compared."""
    bare = replace(ak_template(attributes=0x00040472), scheme=None)
    with (
        software_tpm.node(ak=bare.serialise()) as node,
        pytest.raises(DeviceError, match="no signing scheme"),
    ):
        node.quote(NONCE, SELECTION)


def test_ak_is_the_same_at_every_start_and_differs_between_tpms(make_tpm: MakeTPM) -> None:
    """Nothing on disk: the template derives the same key again, and another one elsewhere."""
    first, second = make_tpm(), make_tpm()
    seen = []
    for tpm in (first, second):
        for ak in AKType:
            with tpm.node(ak=ak) as node:
                before = node.ak_public()
            tpm.reboot()
            with tpm.node(ak=ak) as node:
                assert node.ak_public() == before
            seen.append(before)
    assert len(set(seen)) == 2 * len(AKType)
    assert all(parse_public(public).attributes == 0x00050472 for public in seen)


def tapped(tpm: SoftwareTPM, tap: Wiretap | None = None) -> tuple[NodeTPM, Wiretap]:
    """A node whose wire is recorded."""
    tap = tap or Wiretap(open_transport(tpm.uri))
    return NodeTPM(TPM(tap)), tap


@pytest.mark.threat("T22")
@pytest.mark.parametrize("template", ["L-1", "L-2", "H-3"])
def test_secret_is_hidden_on_the_wire(
    blank_tpm: SoftwareTPM, tpm_ca: CertificateAuthority, template: str
) -> None:
    """A listener on the bus sees neither the secret nor anything that the TPM sent in its place twice."""
    blank_tpm.manufacture(tpm_ca, template=template)
    tap = Wiretap(open_transport(blank_tpm.uri))
    secret = secrets.token_bytes(32)
    with NodeTPM(TPM(tap), ek_templates=(template,)) as node:
        ek, ak = keys(node)
        for _ in range(2):
            credential = make_credential(ek, ak.name, secret)
            assert node.activate(credential.credential_blob, credential.encrypted_secret) == secret
    wire = b"".join(tap.commands + tap.responses)
    assert secret not in wire
    # A TPM may first say TESTING: then there is a short response more.
    opened = [r for r, c in zip(tap.responses, tap.codes, strict=True) if c == CC.ACTIVATE_CREDENTIAL]
    opened = [response for response in opened if len(response) > 10]
    assert len(opened) == 2
    assert opened[0][14:48] != opened[1][14:48]


@pytest.mark.parametrize("where", [16, -1])
def test_response_changed_on_the_wire_is_refused(software_tpm: SoftwareTPM, where: int) -> None:
    """One bit of the encrypted secret, or of the HMAC: the node takes no part of that answer."""

    def change(command: bytes, response: bytes) -> bytes:
        if int.from_bytes(command[6:10]) != CC.ACTIVATE_CREDENTIAL:
            return response
        changed = bytearray(response)
        # Behind the HMAC of our session stands the EK's authorisation; its last byte is that of its own HMAC.
        changed[where] ^= 1
        return bytes(changed)

    node, _ = tapped(software_tpm, Wiretap(open_transport(software_tpm.uri), on_response=change))
    with node:
        ek, ak = keys(node)
        credential = make_credential(ek, ak.name, bytes(32))
        with pytest.raises(DeviceError, match="not authenticated"):
            node.activate(credential.credential_blob, credential.encrypted_secret)


def test_pcrs_that_change_meanwhile_are_quoted_again(software_tpm: SoftwareTPM) -> None:
    """An extension between reading and quoting makes the node read and quote once more."""
    extended: list[int] = []

    def extend(command: bytes) -> bytes:
        if int.from_bytes(command[6:10]) == CC.QUOTE and not extended:
            extended.append(1)
            tap.inner.transmit(_extend_command(7), 5)
        return command

    node, tap = tapped(software_tpm)
    tap.on_command = extend
    with node:
        quote = node.quote(NONCE, SELECTION)
    assert tap.codes.count(CC.QUOTE) == 2
    assert quote.pcr_values["sha256"][7] != bytes(32)


def test_pcrs_that_never_stand_still_are_given_up(software_tpm: SoftwareTPM) -> None:
    """After five tries the node says what is wrong instead of trying for ever."""

    def extend(command: bytes) -> bytes:
        if int.from_bytes(command[6:10]) == CC.QUOTE:
            tap.inner.transmit(_extend_command(7), 5)
        return command

    node, tap = tapped(software_tpm)
    tap.on_command = extend
    with node, pytest.raises(DeviceError, match="PCRs changed"):
        node.quote(NONCE, SELECTION)
    assert tap.codes.count(CC.QUOTE) == 5


def _extend_command(index: int) -> bytes:
    command = commands.pcr_extend(index, {int(Alg.SHA256): bytes([1]) * 32})
    return command.encode([(0x40000009).to_bytes(4) + b"\0\0" + b"\0" + b"\0\0"])


def test_retry_is_answered_with_the_same_command(software_tpm: SoftwareTPM) -> None:
    """RETRY in the middle of an activation, sessions and all, costs time and nothing else."""
    refused: set[bytes] = set()

    class Busy(Wiretap):
        def transmit(self, command: bytes, timeout_seconds: float) -> bytes:
            """Refuse every command once."""
            if command not in refused:
                refused.add(command)
                return bytes.fromhex("80010000000a00000922")
            return super().transmit(command, timeout_seconds)

    node, _ = tapped(software_tpm, Busy(open_transport(software_tpm.uri)))
    with node:
        ek, ak = keys(node)
        credential = make_credential(ek, ak.name, b"s" * 32)
        assert node.activate(credential.credential_blob, credential.encrypted_secret) == b"s" * 32
    assert len(refused) > 10


def test_slots_do_not_leak(software_tpm: SoftwareTPM) -> None:
    """Fifty operations, every other one failing: at most the AK is loaded, and nothing at the end."""
    with software_tpm.node() as node:
        ek, ak = keys(node)
        good = make_credential(ek, ak.name, b"s" * 32)
        bad = make_credential(ek, ek.name, b"s" * 32)
        for i in range(50):
            if i % 2:
                with pytest.raises(TPMResponseError):
                    node.activate(bad.credential_blob, bad.encrypted_secret)
            else:
                assert node.activate(good.credential_blob, good.encrypted_secret) == b"s" * 32
            node.quote(NONCE, SELECTION)
    transport = open_transport(software_tpm.uri)
    transport.exclusive = False  # look without sweeping first
    with TPM(transport) as tpm:
        assert tpm.handles(commands.TRANSIENT_FIRST) == []
        assert tpm.handles(commands.LOADED_SESSION_FIRST) == []


def test_killed_clients_do_not_fill_the_tpm(software_tpm: SoftwareTPM) -> None:
    """Who is killed leaves an AK loaded; the next client of a TPM without resource manager clears it."""
    for _ in range(5):
        transport = open_transport(software_tpm.uri)
        NodeTPM(TPM(transport)).ak_public()
        transport.close()
    with software_tpm.node() as node:
        ek, ak = keys(node)
        credential = make_credential(ek, ak.name, b"s" * 32)
        assert node.activate(credential.credential_blob, credential.encrypted_secret) == b"s" * 32


def test_unclean_restarts_lock_out_others_but_not_our_ak(software_tpm: SoftwareTPM) -> None:
    """Three power cuts: a key without noDA cannot quote any more (0x921), ours can."""
    guarded = ak_template(attributes=0x00050072, unique=b"guarded").tpmt
    for _ in range(8):
        with software_tpm.node(ak=guarded) as node, contextlib.suppress(TPMResponseError):
            node.quote(NONCE, SELECTION)
        with software_tpm.node() as node:
            node.quote(NONCE, SELECTION)
        software_tpm.power_cut()
    with software_tpm.node(ak=guarded) as node, pytest.raises(TPMResponseError, match="LOCKOUT"):
        node.quote(NONCE, SELECTION)
    with software_tpm.node() as node:
        assert node.quote(NONCE, SELECTION).attest


def test_clean_restarts_lock_out_nobody(software_tpm: SoftwareTPM) -> None:
    """With TPM2_Shutdown even a key without noDA goes on."""
    guarded = ak_template(attributes=0x00050072, unique=b"guarded").tpmt
    for _ in range(8):
        with software_tpm.node(ak=guarded) as node:
            node.quote(NONCE, SELECTION)
            node.shutdown()
        software_tpm.power_cut()
    with software_tpm.node(ak=guarded) as node:
        assert node.quote(NONCE, SELECTION).attest


def test_reboot_counts_and_resets_pcrs(software_tpm: SoftwareTPM) -> None:
    """The resetCount grows with every start, PCRs begin again."""
    software_tpm.measure(7, b"boot loader")
    with software_tpm.node() as node:
        before = node.quote(NONCE, SELECTION)
    software_tpm.reboot()
    with software_tpm.node() as node:
        after = node.quote(NONCE, SELECTION)
    software_tpm.power_cut()
    with software_tpm.node() as node:
        last = node.quote(NONCE, SELECTION)
    counts = [parse_attest(q.attest).reset_count for q in (before, after, last)]
    assert counts == [counts[0], counts[0] + 1, counts[0] + 2]
    assert before.pcr_values["sha256"][7] != bytes(32)
    assert after.pcr_values["sha256"][7] == bytes(32)
    assert parse_attest(after.attest).clock_ms >= parse_attest(before.attest).clock_ms


def test_endorsement_password_is_used_everywhere(software_tpm: SoftwareTPM) -> None:
    """Where the platform set a password, keys are derived and credentials opened with it, and not without."""
    with software_tpm.client() as tpm:
        tpm.execute(commands.hierarchy_change_auth(Hierarchy.ENDORSEMENT, b"hunter2"), Password())
    with NodeTPM.open(software_tpm.uri, endorsement_auth=b"hunter2") as node:
        ek, ak = keys(node)
        credential = make_credential(ek, ak.name, b"s" * 32)
        assert node.activate(credential.credential_blob, credential.encrypted_secret) == b"s" * 32
    with software_tpm.node() as node, pytest.raises(TPMResponseError, match="BAD_AUTH"):
        node.ak_public()


# Which EK


def test_without_certificate_the_first_template_is_the_identity(blank_tpm: SoftwareTPM) -> None:
    """No certificate: the EK is derived and says so."""
    with blank_tpm.node() as node:
        identity = node.identify()
    assert (identity.template, identity.ek_source, identity.ek_certificate) == ("L-2", "pub", None)
    assert identity.ek_public == blank_tpm.ek_public("L-2").tpm2b()


def test_low_range_comes_before_high_range(blank_tpm: SoftwareTPM, tpm_ca: CertificateAuthority) -> None:
    """A certificate that firmware added in the high range does not change who the machine is."""
    assert EK_PREFERENCE[:2] == ("L-2", "L-1")
    blank_tpm.manufacture(tpm_ca, template="L-1")
    with blank_tpm.node() as node:
        before = node.identify()
    blank_tpm.manufacture(tpm_ca, template="H-2")
    with blank_tpm.node() as node:
        assert node.identify() == before
    assert before.template == "L-1"


def test_template_that_the_tpm_lacks_is_passed_over(
    blank_tpm: SoftwareTPM, tpm_ca: CertificateAuthority
) -> None:
    """RSA-4096 is not in this TPM: its rubbish certificate and its template are passed over."""
    blank_tpm.install_certificate(b"\x30\x03rub", template="H-7")
    with blank_tpm.node(ek_templates=("H-7", "H-3")) as node:
        identity = node.identify()
    assert (identity.template, identity.ek_source) == ("H-3", "pub")
    with blank_tpm.node(ek_templates=("H-7",)) as node, pytest.raises(DeviceError, match="none of the EK"):
        node.identify()


def test_copied_certificate_is_not_this_machines(make_tpm: MakeTPM, tpm_ca: CertificateAuthority) -> None:
    """A certificate over another TPM's key in our NV does not become our identity."""
    owner, thief = make_tpm(), make_tpm()
    thief.install_certificate(owner.manufacture(tpm_ca))
    with thief.node() as node:
        identity = node.identify()
    assert identity.ek_source == "pub"
    assert identity.ek_public != owner.ek_public("L-2").tpm2b()


@pytest.mark.parametrize("template", ["L-1", "L-2"])
@pytest.mark.parametrize("how", ["nonce", "empty"])
def test_ek_of_another_unique_is_found_by_its_certificate(
    blank_tpm: SoftwareTPM, tpm_ca: CertificateAuthority, template: str, how: str
) -> None:
    """Factories used zeros, a nonce in NV, or nothing as unique: the key in the certificate decides."""
    chosen = ek_template(template)
    nonce = b"\x5a" * 20
    if how == "nonce":
        size = 256 if template == "L-1" else 32
        padded = nonce.ljust(size, b"\0")
        public = chosen.public
        rsa = template == "L-1"
        filled = replace(public, modulus=padded) if rsa else replace(public, x=padded, y=bytes(32))
        tpmt = filled.serialise()
    else:
        tpmt = chosen.tpmt()
    with blank_tpm.client() as tpm:
        made = tpm.execute(commands.create_primary(Hierarchy.ENDORSEMENT, tpmt), Password())
        certificate = tpm_ca.issue_ek_certificate(parse_public(made.public), at=datetime.now(UTC))
        tpm.flush(made.entity.handle)
        write_nv(tpm, chosen.nv_index, certificate)
        if how == "nonce":
            write_nv(tpm, chosen.nv_index + 1, nonce)
    with blank_tpm.node(ek_templates=(template,)) as node:
        identity = node.identify()
        assert identity.ek_source == "cert"
        assert identity.ek_public == made.public
        ek, ak = keys(node)
        credential = make_credential(ek, ak.name, b"s" * 32)
        assert node.activate(credential.credential_blob, credential.encrypted_secret) == b"s" * 32


@pytest.mark.parametrize("read", [NVAttr.OWNER_READ, NVAttr.AUTH_READ, NVAttr.PP_READ])
def test_certificate_is_read_with_whatever_authority_is_ours(
    blank_tpm: SoftwareTPM, tpm_ca: CertificateAuthority, read: NVAttr
) -> None:
    """Owner or the index itself, both with empty passwords; what only the platform reads does not exist for us."""
    certificate = blank_tpm.manufacture(tpm_ca)
    attributes = int(NVAttr.PP_WRITE | NVAttr.NO_DA | NVAttr.PLATFORM_CREATE | read)
    with blank_tpm.client() as tpm:
        write_nv(tpm, 0x01C0000A, certificate, attributes=attributes)
    with blank_tpm.node() as node:
        identity = node.identify()
    assert identity.ek_certificate == (None if read == NVAttr.PP_READ else certificate)


def test_unwritten_and_oversized_indices_are_passed_over(blank_tpm: SoftwareTPM) -> None:
    """An index that was only defined has no content; 8 KiB is the most a certificate may take."""
    public = commands.NVPublic(
        index=0x01C0000A,
        name_alg=Alg.SHA256,
        attributes=int(NVAttr.PP_WRITE | NVAttr.AUTH_READ | NVAttr.NO_DA | NVAttr.PLATFORM_CREATE),
        auth_policy=b"",
        size_bytes=100,
    )
    with blank_tpm.client() as tpm:
        tpm.execute(commands.nv_define_space(Hierarchy.PLATFORM, public), Password())
    with blank_tpm.node() as node:
        assert node.identify().ek_source == "pub"


def test_chain_is_put_together_across_indices(
    software_tpm: SoftwareTPM, tpm_ca: CertificateAuthority
) -> None:
    """Certificates are concatenated and may run over into the next index; padding and fragments are left out."""
    middle = CertificateAuthority("Intermediate", seed=2, parent=tpm_ca)
    chain = middle.certificate + tpm_ca.certificate
    software_tpm.install_chain(chain[:300], index=0x01C00100)
    software_tpm.install_chain(chain[300:] + b"\xff" * 40, index=0x01C00101)
    with software_tpm.node() as node:
        assert node.identify().ek_chain == (middle.certificate, tpm_ca.certificate)
    software_tpm.install_chain(chain[300:-1], index=0x01C00101)
    with software_tpm.node() as node:
        assert node.identify().ek_chain == (middle.certificate,)


def test_chain_ends_at_its_range_and_its_size(
    software_tpm: SoftwareTPM, tpm_ca: CertificateAuthority
) -> None:
    """What stands behind 01C001FF is no part of the chain, even where it would complete a certificate."""
    software_tpm.install_chain(tpm_ca.certificate[:100], index=0x01C001FF)
    software_tpm.install_chain(tpm_ca.certificate[100:], index=0x01C00200)
    with software_tpm.node() as node:
        assert node.identify().ek_chain == ()


def test_other_statement_than_a_quote_is_refused(software_tpm: SoftwareTPM) -> None:
    """A TPM that answers TPM2_Quote with a certify statement has not quoted."""
    message, signature = SoftwareAK(seed=1).certify(bytes(34), bytes(34), NONCE)
    parameters = sized(message) + signature
    body = u32(len(parameters)) + parameters + sized(b"") + b"\1" + sized(b"")

    def swap(command: bytes, response: bytes) -> bytes:
        forged = u16(0x8002) + u32(10 + len(body)) + u32(0) + body
        return forged if int.from_bytes(command[6:10]) == CC.QUOTE else response

    node, _ = tapped(software_tpm, Wiretap(open_transport(software_tpm.uri), on_response=swap))
    with node, pytest.raises(DeviceError, match="another kind"):
        node.quote(NONCE, SELECTION)


def test_other_ek_than_before_ends_the_activation(software_tpm: SoftwareTPM) -> None:
    """Sessions are salted to the EK that was identified; a TPM that suddenly derives another one gets no salt."""
    node, tap = tapped(software_tpm)
    with node:
        ek, ak = keys(node)
        credential = make_credential(ek, ak.name, b"s" * 32)
        # The wire now sends another unique: another EK of the same TPM.
        tap.on_command = lambda c: (
            c[: -1 - 10] + b"\x01" + c[-10:] if int.from_bytes(c[6:10]) == CC.CREATE_PRIMARY else c
        )
        begun = len(tap.codes)
        with pytest.raises(DeviceError, match="not the one"):
            node.activate(credential.credential_blob, credential.encrypted_secret)
    assert CC.START_AUTH_SESSION not in tap.codes[begun:]


def test_attributes_of_our_ak_satisfy_the_verifier(software_tpm: SoftwareTPM) -> None:
    """It has noDA, is restricted, fixed to this TPM, never for decryption."""
    with software_tpm.node() as node:
        attributes = parse_public(node.ak_public()).attributes
    assert attributes & Attr.NO_DA
    assert attributes & Attr.RESTRICTED
    assert not attributes & Attr.DECRYPT


def test_long_state_directories_work(tmp_path: Path) -> None:
    """A socket's path is limited to 107 bytes, a state directory's is not."""
    with SoftwareTPM(tmp_path / ("d" * 100)) as tpm, tpm.node() as node:
        assert node.ak_public()
