"""Judging certification requests of nodes: each of the fourteen steps, in order."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from ipaddress import ip_address
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, mldsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from attestation.algorithms import CryptoPolicy
from attestation.appraisal.node_csr import (
    Answer,
    Decision,
    KeyTier,
    NodeCSRResult,
    Reason,
    Requested,
    Rules,
    SeenNode,
    ServingCase,
    appraise,
    appraise_serving,
    malformed,
    missing,
    stale,
)
from attestation.appraisal.node_csr.boot import MAX_EVENTS
from attestation.errors import MalformedEvidence
from attestation.evidence import event_log, node_csr
from attestation.evidence.key_certification import KeyMode, csr_binding
from attestation.evidence.node_csr import UnverifiedContainer, bucket_nonce
from attestation.machines import ClockState, Role, Status
from attestation.results import Assurance, Check, Flagged, Outcome, Verdict
from attestation.tpm import Alg, PCRSelection, parse_signature
from attestation_testing import BootLog, BootOptions, SoftwareAK, SoftwareNode, ak_template, boot_log
from attestation_testing.node_csr import PCRS, node_request
from attestation_testing.software_keys import private_half
from tests.unit.appraisal.node_csr_kit import (
    AT,
    CLUSTER,
    HOSTNAME,
    MACHINE_ID,
    NODE,
    NONCE,
    POLICY,
    REQUESTED,
    RESULT_ID,
    case,
    container,
    judged,
    machine,
    policy,
)
from tests.vectors import node_csr as vectors

GOOD = node_csr.parse(container())
EXTERNAL = Rules(modes=frozenset({KeyMode.EXTERNAL}))
NO_QUOTE = Rules(quote_required=False)


def parsed(**changes: Any) -> UnverifiedContainer:
    """Return a good container with other fields."""
    return replace(GOOD, **changes)


def denied(result: NodeCSRResult, reason: Reason, check: str) -> None:
    """Assert that a request was denied, by that check."""
    assert (result.decision, result.reason, result.check) == (Decision.DENY, reason, check), result.outcomes
    assert (result.tier, result.spki) == (None, None)
    assert result.message.startswith(f"{check}: ")
    assert result.message.endswith(f"; result {RESULT_ID}")


def approved(result: NodeCSRResult, tier: KeyTier | None) -> None:
    """Assert that a request was approved, with that tier."""
    assert (result.decision, result.reason) == (Decision.APPROVE, Reason.TPM_ATTESTED), result.outcomes
    assert result.tier is tier
    assert result.spki is not None


def test_a_good_request_is_approved() -> None:
    """All steps hold, in their order: the key is resident, the boot is quoted."""
    result = judged(container())
    approved(result, KeyTier.RESIDENT_AND_QUOTED)
    assert result.message == f"attested, tier resident+quote; result {RESULT_ID}"
    assert (result.mode, result.fresh) == (KeyMode.RESIDENT, True)
    assert result.boot is not None
    ours = [name for name in result.passed if name not in {o.check for o in result.boot.outcomes}]
    assert ours == [
        "container",
        "request",
        "requester",
        "machine",
        "challenge",
        "certify-signature",
        "certify-header",
        "certify-binding",
        "certify-signer",
        "certified-key",
        "key-mode",
        "request-key",
        "subject",
        "boot",
        "identity",
        "membership",
        "node",
    ]


def test_what_ends_before_a_judgement() -> None:
    """No evidence, evidence that cannot be read, a challenge that another request spent meanwhile."""
    denied(missing(RESULT_ID, AT), Reason.EVIDENCE_MISSING, "container")
    denied(malformed(RESULT_ID, MalformedEvidence("x"), AT), Reason.EVIDENCE_MALFORMED, "container")
    denied(stale(RESULT_ID, AT), Reason.EVIDENCE_STALE, "challenge")


# ---------------------------------------------------------------- 1


def test_1_layouts_are_listed() -> None:
    """One that is not is not judged."""
    rules = Rules(layouts=frozenset({node_csr.Layout.GKE_V1}))
    denied(appraise(GOOD, case(rules=rules), AT), Reason.EVIDENCE_MALFORMED, "container")


def test_1_values_of_pcrs_are_read_with_the_quote() -> None:
    """What no quote could cover is malformed, not a boot of another kind."""
    bad = parsed(pcr_values={"sha256": {"0": "x"}})
    denied(appraise(bad, case(), AT), Reason.EVIDENCE_MALFORMED, "container")


def test_1_the_request_is_signed_by_its_key() -> None:
    """Else somebody could ask for a certificate for a key that is another's."""
    changed = GOOD.csr_der[:-1] + bytes([GOOD.csr_der[-1] ^ 1])
    denied(appraise(parsed(csr_der=changed), case(), AT), Reason.SIGNATURE_INVALID, "request")


def test_1_kinds_of_keys() -> None:
    """One that is certified nowhere is malformed; one that the crypto policy forbids is told so."""
    weak = ec.derive_private_key(5, ec.SECP224R1())
    denied(
        appraise(parsed(csr_der=node_request(weak, HOSTNAME)), case(), AT),
        Reason.EVIDENCE_MALFORMED,
        "request",
    )
    rules = Rules(crypto_policy=CryptoPolicy.CNSA1)
    denied(appraise(GOOD, case(rules=rules), AT), Reason.POLICY_FAILED, "request")


# ---------------------------------------------------------------- 2


@pytest.mark.parametrize(
    ("username", "groups", "good"),
    [
        ("system:bootstrap:abcdef", {"system:bootstrappers"}, True),
        (f"system:node:{HOSTNAME}", {"system:nodes"}, True),
        ("system:node:worker-2", {"system:nodes"}, False),
        (f"system:node:{HOSTNAME}", {"system:authenticated"}, False),
        ("admin", {"system:masters"}, False),
        ("system:bootstrap:abcdef", set(), False),
    ],
)
def test_2_who_may_ask(username: str, groups: set[str], good: bool) -> None:
    """A bootstrap user, or the node for itself; without this any user could ask for a node's certificate."""
    requested = Requested(username=username, groups=frozenset(groups), usages=REQUESTED.usages)
    result = appraise(GOOD, case(requested=requested), AT)
    if good:
        approved(result, KeyTier.RESIDENT_AND_QUOTED)
    else:
        denied(result, Reason.IDENTITY_MISMATCH, "requester")


def test_2_a_subject_of_no_node_has_no_node_that_renews() -> None:
    """The user system:node: is nobody."""
    data = container(hostname="")
    requested = Requested(username="system:node:", groups=frozenset({"system:nodes"}), usages=())
    denied(judged(data, case(requested=requested)), Reason.IDENTITY_MISMATCH, "requester")


# ---------------------------------------------------------------- 3 and 4


@pytest.mark.parametrize(
    "changes",
    [
        {"machine": None},
        {"machine": machine(cluster_id="other")},
        {"machine": machine(machine_id=vectors.OTHER_MACHINE)},
        *(
            {"machine": machine(status=status)}
            for status in Status
            if status not in (Status.ATTESTED, Status.REGISTERED)
        ),
        {"machine": machine(status=Status.REGISTERED), "first_certificate": False},
        {"machine": machine(anchor=replace(machine().anchor, ak_public=None))},
        {"machine": machine(anchor=replace(machine().anchor, ek_source="sev-snp"))},
        # A certificate for the key counts in the layout that carries it, nowhere else.
        {
            "machine": machine(anchor=replace(machine().anchor, ak_public=None)),
            "certified_ak": NODE.ak.public.spki_der(),
        },
    ],
)
def test_3_the_machine_is_admitted(changes: dict[str, Any]) -> None:
    """Known, of this cluster, in a status that allows it, with a key that was activated."""
    denied(appraise(GOOD, case(**changes), AT), Reason.MACHINE_NOT_ADMITTED, "machine")


def test_3_the_first_certificate_of_a_registered_machine() -> None:
    """It need not have attested before: its request says what booted."""
    never = machine(status=Status.REGISTERED, last_verdict=None, trust_expires_at=None)
    approved(appraise(GOOD, case(machine=never), AT), KeyTier.RESIDENT_AND_QUOTED)


def test_4_a_challenge() -> None:
    """Of this machine, unspent; without one, an old container would do again."""
    denied(appraise(GOOD, case(nonce=None), AT), Reason.EVIDENCE_STALE, "challenge")


def bucket(at: Any, **changes: Any) -> bytes:
    """Return a container that answers the bucket of *at*."""
    return container(
        nonce=bucket_nonce(CLUSTER, at), nonce_id=None, selection=POLICY.tpm.selection, **changes
    )


def test_4_buckets_are_off_by_default() -> None:
    """Anybody can compute their nonces in advance."""
    denied(judged(bucket(AT)), Reason.EVIDENCE_STALE, "challenge")


@pytest.mark.parametrize(("back", "good"), [(0, True), (300, True), (600, False), (-300, False)])
def test_4_two_buckets_count(back: int, good: bool) -> None:
    """This one and the one before; flagged, and for no tier that claims freshness."""
    rules = Rules(bucket_nonces=True)
    nothing = PCRSelection(())
    the_case = case(rules=rules, nonce=None, selection=nothing)
    result = judged(bucket(AT - timedelta(seconds=back)), the_case)
    if not good:
        denied(result, Reason.EVIDENCE_STALE, "certify-binding")
        return
    approved(result, KeyTier.RESIDENT)
    assert not result.fresh
    assert next(o.check for o in result.outcomes if isinstance(o, Flagged)) == "challenge"


def test_4_a_software_key_without_a_challenge_is_the_lowest() -> None:
    """It could have been vouched for at any time."""
    rules = replace(EXTERNAL, bucket_nonces=True)
    approved(judged(bucket(AT, external=True), case(rules=rules)), KeyTier.EXTERNAL_UNFRESH)


# ---------------------------------------------------------------- 5 to 10


def test_5_another_key_signed() -> None:
    """Of another machine; the statements of its TPM are about its keys."""
    other = machine(SoftwareNode(2))
    denied(appraise(GOOD, case(machine=other), AT), Reason.SIGNATURE_INVALID, "certify-signature")


def test_7_another_request() -> None:
    """The statement is bound to the whole request: one with another subject is another."""
    key = NODE.create_signing_key()
    honest = node_csr.parse(container(key=key))
    other = replace(honest, csr_der=node_request(private_half(key), HOSTNAME, organization="system:masters"))
    denied(appraise(other, case(), AT), Reason.EVIDENCE_STALE, "certify-binding")


def certified(key: Any, *, info_of: bytes, **fields: Any) -> UnverifiedContainer:
    """Return a container that certifies *key* for the request *info_of*."""
    info = x509.load_der_x509_csr(info_of).tbs_certrequest_bytes
    made = NODE.certify_key(key, csr_binding(NONCE, info))
    return parsed(
        **{
            "csr_der": info_of,
            "public": key.public,
            "attest": made.certify_info,
            "signature": made.signature,
            **fields,
        }
    )


def test_9_another_public_area() -> None:
    """The Name is a digest over all of it; another area would have other attributes, or another key."""
    key, other = NODE.create_signing_key(), NODE.create_signing_key()
    request = node_request(private_half(key), HOSTNAME)
    result = appraise(certified(key, info_of=request, public=other.public), case(), AT)
    denied(result, Reason.KEY_MISMATCH, "certified-key")


def test_9_modes() -> None:
    """How the key stands to its TPM decides the tier, and whether it is allowed; a decryption key never is."""
    external = node_csr.parse(container(external=True))
    result = appraise(external, case(), AT)
    denied(result, Reason.KEY_NOT_RESIDENT, "key-mode")
    result = appraise(external, case(rules=EXTERNAL), AT)
    approved(result, KeyTier.EXTERNAL)
    assert result.mode is KeyMode.EXTERNAL
    assert result.message == f"attested, tier external; result {RESULT_ID}"
    denied(appraise(GOOD, case(rules=EXTERNAL), AT), Reason.KEY_NOT_RESIDENT, "key-mode")
    key = NODE.create_decryption_key()
    request = node_request(private_half(key), HOSTNAME)
    every = Rules(modes=frozenset(KeyMode))
    result = appraise(certified(key, info_of=request), case(rules=every), AT)
    denied(result, Reason.KEY_NOT_RESIDENT, "key-mode")


def test_10_the_key_of_the_request() -> None:
    """A good key of the machine does not vouch for one of a stranger."""
    key = NODE.create_signing_key()
    stranger = node_request(ec.derive_private_key(99, ec.SECP256R1()), HOSTNAME)
    denied(appraise(certified(key, info_of=stranger), case(), AT), Reason.KEY_MISMATCH, "request-key")


# ---------------------------------------------------------------- 11


def asks(**how: Any) -> UnverifiedContainer:
    """Return a container whose request is made in another way."""
    key = NODE.create_signing_key()
    return certified(key, info_of=node_request(private_half(key), **{"hostname": HOSTNAME, **how}))


def with_extension(extension: x509.ExtensionType) -> UnverifiedContainer:
    """Return a container whose request asks for an extension."""
    key = NODE.create_signing_key()
    builder = x509.CertificateSigningRequestBuilder().subject_name(
        x509.load_der_x509_csr(node_request(private_half(key), HOSTNAME)).subject
    )
    signed = builder.add_extension(extension, critical=True).sign(private_half(key), hashes.SHA256())
    return certified(key, info_of=signed.public_bytes(Encoding.DER))


@pytest.mark.parametrize(
    "make",
    [
        lambda: asks(hostname="worker-2"),
        lambda: asks(hostname="WORKER-1"),
        lambda: asks(organization="system:masters"),
        lambda: asks(more=[x509.NameAttribute(NameOID.ORGANIZATION_NAME, "system:masters")]),
        lambda: asks(more=[x509.NameAttribute(NameOID.COMMON_NAME, "admin")]),
        lambda: asks(more=[x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, "x")]),
        lambda: asks(names=[x509.DNSName(HOSTNAME)]),
        lambda: asks(names=[x509.IPAddress(ip_address("10.0.0.11"))]),
        lambda: asks(names=[x509.RFC822Name("a@example")]),
        lambda: with_extension(x509.BasicConstraints(ca=True, path_length=None)),
    ],
)
def test_11_subjects(make: Callable[[], UnverifiedContainer]) -> None:
    """Exactly the node's own, and nothing that a signer could believe besides."""
    denied(appraise(make(), case(), AT), Reason.SUBJECT_INVALID, "subject")


def test_11_a_machine_without_a_name() -> None:
    """Operators gave it none, so it is no node yet."""
    result = appraise(GOOD, case(machine=machine(hostname=None)), AT)
    denied(result, Reason.SUBJECT_INVALID, "subject")


@pytest.mark.parametrize(
    ("usages", "good"),
    [
        (("digital signature", "client auth"), True),
        (("client auth", "key encipherment", "digital signature"), True),
        (("client auth",), False),
        (("digital signature", "client auth", "server auth"), False),
        (("digital signature", "server auth"), False),
        ((), False),
    ],
)
def test_11_usages(usages: tuple[str, ...], good: bool) -> None:
    """Those of a client certificate, no other."""
    result = appraise(GOOD, case(requested=replace(REQUESTED, usages=usages)), AT)
    if good:
        approved(result, KeyTier.RESIDENT_AND_QUOTED)
    else:
        denied(result, Reason.SUBJECT_INVALID, "subject")


# ---------------------------------------------------------------- 12


def test_12_no_quote() -> None:
    """Where it is demanded, denied; else the machine must be attested within its lease, now."""
    bare = node_csr.parse(container(selection=None))
    denied(appraise(bare, case(), AT), Reason.POLICY_FAILED, "boot")
    approved(appraise(bare, case(rules=NO_QUOTE), AT), KeyTier.RESIDENT)
    for changes in (
        {"trust_expires_at": AT},
        {"last_verdict": Verdict.FAILED},
        {"last_verdict": None},
    ):
        result = appraise(bare, case(rules=NO_QUOTE, machine=machine(**changes)), AT)
        denied(result, Reason.POLICY_FAILED, "boot")


def test_12_a_quote_is_judged_where_it_need_not_be() -> None:
    """It decides then too: to send a bad one is no better than to send none."""
    node = SoftwareNode(1)
    node.extend_pcr(7, bytes(32))
    bad = node_csr.parse(container(node))
    denied(appraise(bad, case(rules=NO_QUOTE), AT), Reason.POLICY_FAILED, "boot")
    good = appraise(GOOD, case(rules=NO_QUOTE, machine=machine(trust_expires_at=AT)), AT)
    approved(good, KeyTier.RESIDENT_AND_QUOTED)


def with_quote(node: SoftwareNode = NODE, nonce: bytes = NONCE, **changes: Any) -> UnverifiedContainer:
    """Return a good container with another quote."""
    quote = node.quote(nonce, changes.pop("selection", PCRS))
    texts = {
        bank: {str(index): value.hex() for index, value in values.items()}
        for bank, values in quote.pcr_values.items()
    }
    return parsed(
        **{"quote": quote.attest, "quote_signature": quote.signature, "pcr_values": texts, **changes}
    )


def test_12_quotes_that_are_not_authentic() -> None:
    """By another key, for another challenge, by a signer outside, of other PCRs, beside other values."""
    denied(appraise(with_quote(SoftwareNode(2)), case(), AT), Reason.SIGNATURE_INVALID, "boot")
    denied(appraise(with_quote(nonce=bytes(32)), case(), AT), Reason.EVIDENCE_STALE, "boot")
    outside = SoftwareNode(1)
    outside.ak.qualified_name = outside.ak.public.name
    denied(appraise(with_quote(outside), case(), AT), Reason.SIGNATURE_INVALID, "boot")
    other = vectors.case_of("good").selection
    denied(appraise(with_quote(selection=other), case(), AT), Reason.POLICY_FAILED, "boot")
    assert GOOD.pcr_values is not None
    values = {"sha256": {**GOOD.pcr_values["sha256"], "3": "11" * 32}}
    denied(appraise(parsed(pcr_values=values), case(), AT), Reason.POLICY_FAILED, "boot")


def test_12_the_policy_in_force() -> None:
    """Without one nothing is decided; one that was replaced since the challenge needs another challenge."""
    result = appraise(GOOD, case(policy=None), AT)
    assert (result.decision, result.reason, result.check) == (Decision.UNDECIDED, None, "boot")
    assert result.message == f"boot: could not be decided now; result {RESULT_ID}"
    assert (result.tier, result.spki) == (None, None)
    newer = policy({"version": 2})
    denied(appraise(GOOD, case(policy=newer), AT), Reason.EVIDENCE_STALE, "boot")


def test_12_what_is_not_known_of_the_firmware_decides_nothing() -> None:
    """An undecided check approves nothing, and a failure behind it still denies."""

    def unknown(**_: Any) -> Sequence[Outcome]:
        return (Check(name="firmware-blocklist").undecided("the list is not there"),)

    result = appraise(GOOD, case(firmware=unknown), AT)
    assert (result.decision, result.reason) == (Decision.UNDECIDED, None)
    taken = SeenNode(name=HOSTNAME, machine_id=None)
    denied(appraise(GOOD, case(firmware=unknown, node=taken), AT), Reason.SUBJECT_INVALID, "node")


def test_12_a_clock_that_went_back() -> None:
    """The rules of every attestation hold here too."""
    clock = ClockState(
        clock_ms=1, reset_count=9, restart_count=0, safe=True, firmware_version=0x2019102300163636
    )
    denied(appraise(GOOD, case(machine=machine(clock=clock)), AT), Reason.POLICY_FAILED, "boot")


def test_12_the_level_of_assurance() -> None:
    """A machine that is not vouched for as the policy demands is no better with a good boot."""
    lowest = machine(assurance=Assurance.NONE)
    denied(appraise(GOOD, case(machine=lowest), AT), Reason.POLICY_FAILED, "boot")
    plane = machine(role=Role.CONTROLPLANE)
    denied(appraise(GOOD, case(machine=plane), AT), Reason.POLICY_FAILED, "boot")


def test_12_quote_and_certification_are_of_one_boot() -> None:
    """Else the quote would speak of a boot that was good, and the key be certified in another."""
    node = SoftwareNode(1)
    node.reboot()
    denied(appraise(with_quote(node), case(), AT), Reason.POLICY_FAILED, "boot")


IMA_POLICY = policy({"name": "files", "ima": {"allow": ["11" * 32]}})


def test_12_files_are_judged_elsewhere() -> None:
    """A list of files has no block here: with such rules an attestation within its lease stands in for it."""
    expected = {
        "policy": IMA_POLICY,
        "requested_policy": IMA_POLICY.ref,
        "selection": IMA_POLICY.tpm.selection,
    }
    data = node_csr.parse(container(selection=IMA_POLICY.tpm.selection))
    approved(appraise(data, case(**expected), AT), KeyTier.RESIDENT_AND_QUOTED)
    lapsed = machine(trust_expires_at=AT)
    denied(appraise(data, case(**expected, machine=lapsed), AT), Reason.POLICY_FAILED, "boot")


BOOT = boot_log(BootOptions())
LOG = BOOT.serialise()
LOG_POLICY = policy(
    {"name": "logs", "pcrs": {"0": {"any_of": [BOOT.pcrs()[0].hex()]}}, "event_log": "required"}
)


def booted() -> SoftwareNode:
    """Return the machine after a boot with a log."""
    node = SoftwareNode(1)
    node.pcrs["sha256"] |= BOOT.pcrs()
    return node


def test_12_event_logs() -> None:
    """One that leads to the quote; or a kept one, where none is sent; no log is a failure, one too long malformed."""
    expected = {
        "policy": LOG_POLICY,
        "requested_policy": LOG_POLICY.ref,
        "selection": LOG_POLICY.tpm.selection,
    }
    node = booted()

    def sent(log: bytes | None, **changes: Any) -> NodeCSRResult:
        data = container(node, selection=LOG_POLICY.tpm.selection, event_log=log)
        return judged(data, case(**{**expected, **changes}))

    approved(sent(LOG), KeyTier.RESIDENT_AND_QUOTED)
    kept = event_log.replay(event_log.parse(LOG), Alg.SHA256)
    approved(sent(None, kept_log=kept), KeyTier.RESIDENT_AND_QUOTED)
    denied(sent(None), Reason.POLICY_FAILED, "boot")
    denied(sent(b"log"), Reason.EVIDENCE_MALFORMED, "boot")
    event = struct.pack("<IIIH", 4, 0xD, 1, Alg.SHA256) + bytes(32) + struct.pack("<I", 0)
    spec = BootLog(events=()).serialise()
    denied(sent(spec + event * MAX_EVENTS), Reason.EVIDENCE_MALFORMED, "boot")
    denied(sent(spec + event * (MAX_EVENTS - 1)), Reason.POLICY_FAILED, "boot")


def test_12_a_log_that_no_rule_reads_is_not_read() -> None:
    """It would only be work that its sender chose."""
    approved(judged(container(event_log=b"no log")), KeyTier.RESIDENT_AND_QUOTED)


# ---------------------------------------------------------------- 13 and 14


@pytest.mark.parametrize("check", ["identity", "membership"])
def test_13_answers_of_others(check: str) -> None:
    """No denies; what could not be said approves nothing; a failure behind it denies."""
    reason = Reason.IDENTITY_MISMATCH if check == "identity" else Reason.NOT_MEMBER
    denied(appraise(GOOD, case(**{check: Answer.NO}), AT), reason, check)
    result = appraise(GOOD, case(**{check: Answer.UNDECIDED}), AT)
    assert (result.decision, result.reason, result.check) == (Decision.UNDECIDED, None, check)
    taken = SeenNode(name=HOSTNAME, machine_id=vectors.OTHER_MACHINE)
    both = appraise(GOOD, case(**{check: Answer.UNDECIDED, "node": taken}), AT)
    denied(both, Reason.SUBJECT_INVALID, "node")


def test_14_a_node_of_that_name() -> None:
    """Absent, or labelled as this machine's; one without a label may be anybody's, another name tells nothing."""
    own = SeenNode(name=HOSTNAME, machine_id=MACHINE_ID)
    approved(appraise(GOOD, case(node=own), AT), KeyTier.RESIDENT_AND_QUOTED)
    for other in (None, vectors.OTHER_MACHINE):
        taken = SeenNode(name=HOSTNAME, machine_id=other)
        denied(appraise(GOOD, case(node=taken), AT), Reason.SUBJECT_INVALID, "node")
    wrong = appraise(GOOD, case(node=SeenNode(name="worker-2", machine_id=MACHINE_ID)), AT)
    assert (wrong.decision, wrong.check) == (Decision.UNDECIDED, "node")


# ---------------------------------------------------------------- the layout of the seed


def gke(**changes: Any) -> NodeCSRResult:
    """Return the judgement over the container of the seed, with the AK known by its certificate."""
    the_case = vectors.case_of("gke-certified")
    return appraise(node_csr.parse(vectors.fixture("gke-activated")), replace(the_case, **changes), AT)


def test_gke_identities_are_compared() -> None:
    """What the VM says of itself counts for nothing, but it must be what the certificate of its key says."""
    said = node_csr.parse(vectors.fixture("gke-activated")).vm_identity
    assert said is not None
    approved(gke(), KeyTier.EXTERNAL_UNFRESH)
    approved(gke(instance=said), KeyTier.EXTERNAL_UNFRESH)
    denied(gke(instance=replace(said, id=said.id + 1)), Reason.IDENTITY_MISMATCH, "identity")


def test_gke_without_an_attestation() -> None:
    """Where no agent ever attested the boot is not appraised; one that attested and stopped is not let through."""
    result = gke()
    assert any(isinstance(o, Flagged) and o.check == "boot" for o in result.outcomes)
    assert not result.fresh
    record = vectors.machine_of("gke-certified")
    stopped = replace(record, last_verdict=Verdict.VERIFIED, trust_expires_at=AT)
    denied(gke(machine=stopped), Reason.POLICY_FAILED, "boot")
    denied(gke(machine=replace(record, assurance=Assurance.NONE)), Reason.POLICY_FAILED, "boot")
    undecided = gke(policy=None)
    assert (undecided.decision, undecided.check) == (Decision.UNDECIDED, "boot")


def test_gke_signers_outside_of_a_tpm() -> None:
    """A software key that passed for an AK once signs with its bare Name, or none, for a qualified one."""
    ak = SoftwareAK(ak_template(rsa_bits=2048))
    seed = node_csr.parse(vectors.fixture("gke-activated"))
    the_case = vectors.case_of("gke-activated")
    assert the_case.machine is not None
    tpm = replace(the_case.machine.anchor, ak_public=ak.public.tpm2b())
    the_case = replace(the_case, machine=replace(the_case.machine, anchor=tpm))
    key = ec.derive_private_key(3, ec.SECP256R1())
    (public,) = node_csr.rebuilt_publics(key.public_key())
    for name in (ak.qualified_name, b"", ak.public.name):
        ak.qualified_name = name
        attest, signature = ak.certify(public.name, public.name, b"")
        container = replace(
            seed,
            csr_der=node_request(key, HOSTNAME),
            attest=attest,
            signature=parse_signature(signature).signature,
        )
        result = appraise(container, the_case, AT)
        if len(name) == 34 and name != ak.public.name:
            approved(result, KeyTier.EXTERNAL_UNFRESH)
        else:
            denied(result, Reason.SIGNATURE_INVALID, "certify-signer")


def test_gke_keys() -> None:
    """A resident key is not what this layout shows; its AK is one of RSA; a key on another curve has no area."""
    denied(
        gke(rules=replace(vectors.case_of("gke-certified").rules, modes=frozenset({KeyMode.RESIDENT}))),
        Reason.KEY_NOT_RESIDENT,
        "key-mode",
    )
    spki = NODE.ak.public.spki_der()
    denied(gke(certified_ak=spki), Reason.SIGNATURE_INVALID, "certify-signature")
    denied(gke(certified_ak=None), Reason.MACHINE_NOT_ADMITTED, "machine")
    seed = node_csr.parse(vectors.fixture("gke-activated"))
    for key in (ec.derive_private_key(3, ec.SECP384R1()), private_half(NODE.create_decryption_key())):
        other = replace(seed, csr_der=node_request(key, HOSTNAME))
        denied(appraise(other, vectors.case_of("gke-activated"), AT), Reason.KEY_MISMATCH, "certified-key")


# ---------------------------------------------------------------- serving certificates

SERVING = Requested(
    username=f"system:node:{HOSTNAME}",
    groups=frozenset({"system:nodes", "system:authenticated"}),
    usages=("digital signature", "server auth"),
)
SERVING_KEY = ec.derive_private_key(11, ec.SECP256R1())
NAMES: list[x509.GeneralName] = [x509.DNSName("Worker-1"), x509.IPAddress(ip_address("10.0.0.11"))]


def serving(**changes: Any) -> ServingCase:
    """Return a case in which all is as it should be."""
    return replace(
        ServingCase(
            result_id=RESULT_ID,
            cluster_id=CLUSTER,
            rules=Rules(),
            requested=SERVING,
            machine=machine(),
            client_attested=True,
            dns_names=frozenset({HOSTNAME}),
            addresses=frozenset({"10.0.0.11"}),
        ),
        **changes,
    )


def serve(key: Any = SERVING_KEY, *, the_case: ServingCase | None = None, **how: Any) -> NodeCSRResult:
    """Return the judgement over a request for a serving certificate."""
    request = node_request(key, **{"hostname": HOSTNAME, "names": NAMES, **how})
    pem = x509.load_der_x509_csr(request).public_bytes(Encoding.PEM)
    return appraise_serving(pem, the_case or serving(), AT)


def test_serving() -> None:
    """No TPM step, so no tier; the key is told."""
    result = serve()
    approved(result, None)
    assert result.message == f"of an attested machine; result {RESULT_ID}"
    approved(serve(names=NAMES[:1]), None)
    approved(serve(names=NAMES[1:]), None)


def test_serving_of_requests_that_are_none() -> None:
    """Bytes, a signature that is not by the key, a key that is forbidden."""
    denied(appraise_serving(b"x", serving(), AT), Reason.EVIDENCE_MALFORMED, "request")
    request = node_request(SERVING_KEY, HOSTNAME, names=NAMES)
    broken = request[:-1] + bytes([request[-1] ^ 1])
    denied(appraise_serving(broken, serving(), AT), Reason.SIGNATURE_INVALID, "request")
    strict = serving(rules=Rules(crypto_policy=CryptoPolicy.CNSA2))
    denied(serve(the_case=strict), Reason.POLICY_FAILED, "request")


def test_serving_is_for_the_node_itself() -> None:
    """A bootstrap user gets none, nor does another node."""
    denied(serve(the_case=serving(requested=REQUESTED)), Reason.IDENTITY_MISMATCH, "requester")
    other = replace(SERVING, username="system:node:worker-2")
    denied(serve(the_case=serving(requested=other)), Reason.IDENTITY_MISMATCH, "requester")


@pytest.mark.parametrize(
    "changes",
    [
        {"machine": None},
        {"machine": machine(cluster_id="other")},
        {"machine": machine(status=Status.REGISTERED)},
        {"machine": machine(status=Status.LOCKED)},
        {"machine": machine(trust_expires_at=AT)},
        {"client_attested": False},
    ],
)
def test_serving_needs_an_attested_machine(changes: dict[str, Any]) -> None:
    """Within its lease, with a client certificate that was approved by evidence."""
    denied(serve(the_case=serving(**changes)), Reason.MACHINE_NOT_ADMITTED, "machine")


@pytest.mark.parametrize(
    "how",
    [
        {"organization": "system:masters"},
        {"names": None},
        {"names": []},
        {"names": [*NAMES, x509.DNSName("kubernetes.default")]},
        {"names": [*NAMES, x509.DNSName("*.example")]},
        {"names": [*NAMES, x509.IPAddress(ip_address("10.0.0.12"))]},
        {"names": [*NAMES, x509.RFC822Name("a@example")]},
        {"names": [*NAMES, x509.UniformResourceIdentifier("urn:x")]},
        {"the_case": serving(requested=replace(SERVING, usages=("digital signature", "client auth")))},
        {"the_case": serving(machine=machine(hostname="worker-9"))},
    ],
)
def test_serving_names(how: dict[str, Any]) -> None:
    """Each is the machine's, there is one, and no kind of name that is not a host's."""
    result = serve(**how)
    if how.get("organization"):
        denied(result, Reason.IDENTITY_MISMATCH, "requester")
    else:
        denied(result, Reason.SUBJECT_INVALID, "subject")


def test_serving_keys_of_ml_dsa() -> None:
    """They sign and encipher nothing, so key encipherment is not theirs."""
    key = mldsa.MLDSA65PrivateKey.generate()
    builder = x509.CertificateSigningRequestBuilder().subject_name(
        x509.load_der_x509_csr(node_request(SERVING_KEY, HOSTNAME)).subject
    )
    names = x509.SubjectAlternativeName(NAMES)
    request = builder.add_extension(names, critical=False).sign(key, None).public_bytes(Encoding.DER)
    approved(appraise_serving(request, serving(), AT), None)
    both = replace(SERVING, usages=("digital signature", "key encipherment", "server auth"))
    result = appraise_serving(request, serving(requested=both), AT)
    denied(result, Reason.SUBJECT_INVALID, "subject")
    approved(serve(the_case=serving(requested=both)), None)


def test_serving_members_and_nodes() -> None:
    """As for client certificates."""
    denied(serve(the_case=serving(membership=Answer.NO)), Reason.NOT_MEMBER, "membership")
    assert serve(the_case=serving(membership=Answer.UNDECIDED)).decision is Decision.UNDECIDED
    taken = SeenNode(name=HOSTNAME, machine_id=vectors.OTHER_MACHINE)
    denied(serve(the_case=serving(node=taken)), Reason.SUBJECT_INVALID, "node")
