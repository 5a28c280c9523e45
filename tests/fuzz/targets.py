"""What is fuzzed, and what must hold for every input.

Each check takes bytes, calls a parser as production does, lets its documented error pass and everything else
out; where something was read, writing it again gives the bytes that were read.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import quote

import cbor2
import hpack
import httpcore
import httpx
from cbor2 import CBORTag
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import load_pem_x509_crl
from cryptography.x509.verification import Store
from fastapi import HTTPException
from fastapi.exceptions import RequestValidationError

from attestation import sealing
from attestation.appraisal.node_csr import MAX_MESSAGE_BYTES, Decision
from attestation.appraisal.tpm.explain import describe, explain
from attestation.audit import checkpoint, leaf_hash_of, note, tiles, witness
from attestation.audit.authority import MARK, changes_of, with_changes
from attestation.audit.export import LogVerifier, Pinned
from attestation.audit.merkle import consistency_proof
from attestation.clock import parse_rfc3339, rfc3339
from attestation.endorsements import der
from attestation.endorsements.ak_certificate import (
    AKAnchors,
    AKCertificateClaims,
    parse_ak_certificate,
    verify_ak_certificate,
)
from attestation.endorsements.amd import parse_cert_table, parse_vek, verify_vek
from attestation.endorsements.bundle import Manifest, TrustBundle, entry_of, format_manifest, parse_manifest
from attestation.endorsements.certificate import parse_certificate
from attestation.endorsements.collateral import verify_item
from attestation.endorsements.ek_trust import PathValidation
from attestation.endorsements.firmware import parse_blocklist
from attestation.endorsements.intel import Refused as CollateralRefused
from attestation.endorsements.intel import (
    parse_collateral,
    parse_identity,
    parse_platform,
    parse_tcb_info,
    split_signed,
    verify_crl,
)
from attestation.endorsements.membership import parse_members
from attestation.endorsements.missing import issuer_addresses
from attestation.endorsements.node_identity import SHIPPED, IdentitySource, differing
from attestation.endorsements.path import CertificateIndex, PathFailure, SentIssuers, build_path
from attestation.endorsements.revocation import CRLStore, Revocation, parse_crl
from attestation.errors import (
    AKAttributesRejected,
    AKCertificateRejected,
    BaseConfigInvalid,
    BodyTooComplex,
    BundleInvalid,
    BundleRejected,
    CollateralInvalid,
    CSRInvalid,
    EKCertificateRejected,
    EKTemplateRejected,
    EventLogRejected,
    EvidenceRejected,
    Forbidden,
    HardwareEvidenceRejected,
    IMALogRejected,
    KeyUnusable,
    KeyURIInvalid,
    LogBroken,
    MalformedEvidence,
    MalformedNote,
    NodeIdentityRejected,
    NotAuthentic,
    NoteRejected,
    PolicyInvalid,
    QueryInvalid,
    RequestInvalid,
    RequestRefused,
    ResultTokenRejected,
    TPMResponseError,
    Unauthenticated,
)
from attestation.evidence import (
    ak_activation,
    ak_certificate,
    cc_event_log,
    dcap,
    ek_certificate,
    ek_key_attestation,
    event_log,
    hsm_key,
    ima_log,
    key_certification,
    node_csr,
    sev_snp,
    tcs_kmra,
    tpm_quote,
    webauthn_tpm,
)
from attestation.evidence.nvidia_gpu import parse_measurements
from attestation.keys import Binding, JWSRejected, KeySigner, statements
from attestation.keys.provisioning import read_bundle, sign_bundle
from attestation.keys.uri import parse_key_uri
from attestation.machines import Role
from attestation.machines.labels import parse_selector, told
from attestation.machines.names import canonical_address, canonical_hostname, canonical_interface, names_of
from attestation.node_csr import verify_csr
from attestation.pki.leaf import LeafAsked, LeafPolicy, Refusal, judge_leaf
from attestation.pki.leaf_names import NameRules
from attestation.pki.lint import lint
from attestation.pki.ocsp import MAX_REQUEST_BYTES, parse_ocsp_request
from attestation.pki.profiles import ProfileName
from attestation.pki.request import MAX_CSR_BYTES, parse_csr, read_request
from attestation.pki.requested import requested_names
from attestation.pki.usages import USAGES
from attestation.quote import evidence_digest, key_fingerprint, parse_envelope
from attestation.quote.tpm import split_quote
from attestation.reference import compose, diff, identifier, parse_policy
from attestation.reference.attestation_policy import BACKENDS, policy_of
from attestation.reference.cel_rules import broken, compiled
from attestation.reference.confidential import CelRule
from attestation.reference.corim import CLASS_OID, PROFILE, parse_corim
from attestation.reference.patterns import words_of
from attestation.results import Assurance, AttestationResult, Subject, Verdict
from attestation.results.ar4si import Tier, tier_of, worst
from attestation.results.ear import Profile, ear_claims, parse_ear
from attestation.results.tpm_checks import PCR, QUOTE
from attestation.talos.completion import Own, complete
from attestation.talos.lint import lint as lint_config
from attestation.talos.redaction import preview
from attestation.talos.rendering import render
from attestation.talos.versions import Generation
from attestation.tpm import (
    TPM_GENERATED,
    Alg,
    Attest,
    CertifyInfo,
    Hierarchy,
    PCRSelection,
    Public,
    commands,
    match_ek_template,
    parse_attest,
    parse_creation_data,
    parse_public,
    parse_signature,
    parse_tpmt_public,
)
from attestation.tpm.credential import parse_id_object
from attestation.tpm.hashes import bank_name
from attestation.tpm.key_file import TPMKey, encode_key, encode_key_file, parse_key_file
from attestation.tpm_bundle.pem import certificates as pem_certificates
from attestation.wire import Reader, b64decode, b64encode, hexdecode, sized
from attestation_agent.exits import UsageError
from attestation_agent.kiosk import gpt, listing
from attestation_agent.kiosk.exits import ImageRejected
from attestation_agent.kiosk.sources import KERNEL_ARGUMENTS, parse_cmdline, parse_conf
from attestation_agent.kubelet.exec_credential import ExecInfoRejected
from attestation_agent.kubelet.exec_credential import parse as parse_exec_info
from attestation_agent.kubelet.kubeconfig import KubeconfigRejected, written
from attestation_agent.kubelet.kubeconfig import parse as parse_kubeconfig
from attestation_agent.signer import Refused, parse_request
from attestation_agent.talos.calls import Answer, Conversation
from attestation_agent.talos.errors import MachinedFailed
from attestation_agent.talos.messages import MAX_TAG_BYTES, check_answer, version_of
from attestation_agent.tpm_keys import DIGEST_BYTES
from attestation_extensions.disk_kms.messages import encode_response
from attestation_extensions.disk_kms.messages import parse_request as parse_kms_request
from attestation_extensions.metrics.listening import parse as parse_metrics_request
from attestation_extensions.webhooks.addresses import WebhookURLInvalid
from attestation_extensions.webhooks.addresses import read_url as read_webhook_url
from attestation_operator.crds.runs import RunSpec
from attestation_operator.durations import NotADuration, parse_duration
from attestation_operator.nodes.objects import has_evidence, requested_node
from attestation_operator.objects import POLICY as POLICY_KIND
from attestation_operator.objects import RUN
from attestation_operator.runs import kinds
from attestation_service import kql
from attestation_service.auth import Duty, access_token, service_account
from attestation_service.auth import client_certificate as operator_certificate
from attestation_service.auth.access_token import Rules
from attestation_service.auth.provider_keys import ProviderAnswerInvalid, parse_jwks
from attestation_service.border.bodies import load_json
from attestation_service.border.json_bounds import Bounds
from attestation_service.keys.service_keys import MEMORY_FORMAT, parse_memory
from attestation_service.kubernetes_clusters import ClusterRule, ControllerDuty
from attestation_service.operators import acts
from attestation_service.transparency import memory
from attestation_testing import BootOptions, LogDefect, LogQuirk, SoftwareAK, boot_log
from attestation_testing import ima_log as ima_list
from attestation_testing.ak_certificates import (
    GCE_INSTANCE,
    AKCertificateOptions,
    gce_instance,
    gce_instance_2018,
    hardware_module_name,
    make_ak_certificate,
    permanent_identifier,
)
from attestation_testing.certificates import CertificateAuthority, EKCertificateOptions
from attestation_testing.ek_zoo import Zoo
from attestation_testing.software_keys import ak_template
from attestation_testing.tee.amd import Pki, Processor
from attestation_testing.tee.intel import ISSUED, Platform, collateral_json, enclave_report, td_report
from attestation_testing.tee.nvidia import SoftwareGPU
from tests.fixtures.attestation_kinds import GOOD as KINDS
from tests.fixtures.attestation_kinds import SEED
from tests.fixtures.collateral import GOOD as COLLATERAL
from tests.fixtures.collateral import TRUSTED as COLLATERAL_TRUSTED
from tests.fixtures.operator_pki import OperatorCA
from tests.fixtures.queries import AT as QUERIED_AT
from tests.fixtures.queries import CATALOG
from tests.fixtures.query_corpus import INVALID, VALID
from tests.unit.agent.kiosk.bench import signed, table
from tests.unit.agent.kiosk.bench import vkey as image_vkey
from tests.unit.appraisal.node_csr_kit import AT as REQUESTED_AT
from tests.unit.audit import log_kit
from tests.unit.evidence.test_hsm_key import GOOD as HSM_KEY
from tests.unit.evidence.test_tcs_kmra import answer, nonce
from tests.unit.keys.test_provisioning import ADA, BY_ADA, BY_BOB, SIGNERS
from tests.unit.keys.test_provisioning import TEXT as BUNDLE_TEXT
from tests.unit.pki import leaf_kit
from tests.unit.pki.certificate_kit import ca_of, leaf_key, pem_of, request_of
from tests.unit.quote.quote_kit import KINDS as QUOTE_KINDS
from tests.unit.quote.quote_kit import spec as quote_spec
from tests.unit.quote.test_quote_types import GOOD_QUOTE as KEY_QUOTE
from tests.unit.sealing import seal_kit
from tests.vectors import OWN, SHARED, forge
from tests.vectors import node_csr as requests

Check = Callable[[bytes], None]
Seeds = Callable[[], list[bytes]]

AT: Final = datetime(2026, 11, 21, tzinfo=UTC)


@dataclass(frozen=True)
class Target:
    """A parser under fuzzing.

    Args:
        check: Raises only where a property is broken.
        seeds: Good and almost good inputs to start from.
        max_bytes: Longest input worth trying: a little above the parser's cap.
    """

    check: Check
    seeds: Seeds
    max_bytes: int = 4096


def _files(*patterns: str) -> list[bytes]:
    """Return the contents of our own vectors, and of those beside the project, that match."""
    roots = [OWN, SHARED / "tpm", SHARED / "eventlog"]
    return [
        path.read_bytes() for root in roots for pattern in patterns for path in sorted(root.glob(pattern))
    ]


def _hostile_pairs(which: int) -> list[bytes]:
    """Return the attests (0) or signatures (1) of the hostile quotes."""
    found = []
    for path in sorted((OWN / "hostile").glob("*.bin")):
        reader = Reader(path.read_bytes(), path.name)
        found.append((reader.sized(), reader.sized())[which])
    return found


# ---------------------------------------------------------------- requests of Kubernetes nodes

_GOOD_REQUESTS: Final = {name: node_csr.parse(requests.fixture(name)) for name in ("good", "gke-activated")}


def _said_of_node(container: node_csr.UnverifiedContainer) -> tuple[bytes, ...]:
    """Return what a TPM said, and of which request."""
    return read_request(container.csr_der).request_info, container.attest, container.quote or b""


def _readable() -> Iterator[node_csr.UnverifiedContainer]:
    for name in requests.names():
        with contextlib.suppress(MalformedEvidence):
            yield node_csr.parse(requests.fixture(name))


_SAID_OF_NODES: Final = frozenset(map(_said_of_node, _readable()))
"""What was said when the fixtures were made, by whichever key."""


def _node_requests() -> list[bytes]:
    return [requests.fixture(name) for name in requests.names()]


def node_csr_container(data: bytes) -> None:
    """A container: read or refused, the same when it is written again; approved only where the TPM said just this."""
    with contextlib.suppress(MalformedEvidence):
        container = node_csr.parse(data)
        assert node_csr.is_container(data)
        assert node_csr.parse(container.serialise()) == container
    for name in _GOOD_REQUESTS:
        result = verify_csr(data, requests.case_of(name), REQUESTED_AT)
        assert 1 <= len(result.message.encode("ascii")) <= MAX_MESSAGE_BYTES
        if result.decision is Decision.APPROVE:
            assert _said_of_node(node_csr.parse(data)) in _SAID_OF_NODES


def requested(data: bytes) -> None:
    """`requested_names`: names that can be counted, or the request is refused."""
    with contextlib.suppress(MalformedEvidence):
        names = requested_names(read_request(data))
        assert len(names.subject) <= 16
        assert len(names.dns_names) + len(names.ip_addresses) + len(names.others) <= 64


_LEAF_CA: Final = leaf_kit.hsm_ca()[0]
_LEAF_REQUESTS: Final = (
    leaf_kit.csr(
        x509.SubjectAlternativeName([x509.DNSName("*.a.example"), x509.UniformResourceIdentifier("urn:a:b")])
    ),
    leaf_kit.csr((x509.BasicConstraints(ca=True, path_length=0), True)),
)
_LEAF_POLICY: Final = LeafPolicy(
    max_duration=timedelta(days=90),
    usages=frozenset(USAGES),
    allow_ca=True,
    max_path_length=0,
    names=NameRules(),
)


def leaf(data: bytes) -> None:
    """`judge_leaf`: a request is refused with a word, or has names and a key that a certificate can carry."""
    for is_ca in (False, True):
        wanted = LeafAsked(request=data, usages=(), is_ca=is_ca, duration=None)
        try:
            content = judge_leaf(wanted, _LEAF_POLICY, ca=_LEAF_CA, at=_LEAF_CA.not_before)
        except RequestRefused as e:
            refused = {e.reason}
        else:
            refused = set()
            assert content.subject.rdns or content.alternative_names
        assert refused <= {*Refusal}


def quote_envelope(data: bytes) -> None:
    """`parse_envelope` of any JSON: an envelope whose digest and key have names, or the documented error."""
    with contextlib.suppress(ValueError, RecursionError):
        spec = json.loads(data)
        with contextlib.suppress(MalformedEvidence):
            found = parse_envelope(spec)
            assert len(evidence_digest(found)) == len(key_fingerprint(found.spki)) == 48


def tcs_kmra_answer(data: bytes) -> None:
    """`tcs_kmra.parse`: the parts of what came, and a key or the documented error."""
    with contextlib.suppress(MalformedEvidence):
        found = tcs_kmra.parse(data)
        assert data.endswith(found.exponent + found.modulus + found.quote)
        assert found.spki


def hsm_key_statement(data: bytes) -> None:
    """`hsm_key.parse`: what a device says, shown, or the documented error."""
    with contextlib.suppress(MalformedEvidence):
        found = hsm_key.parse(data)
        assert len(found.said.label.encode()) <= hsm_key.MAX_LABEL_BYTES
        assert data.endswith(found.signature)


def tpm_quote_of_a_key(data: bytes) -> None:
    """`split_quote` and the parsers behind it: three parts, written again as they came, or the documented error."""
    with contextlib.suppress(MalformedEvidence):
        parts = split_quote(data)
        assert b"".join(len(part).to_bytes(4) + part for part in parts) == data
        tpm_quote.parse(*parts[:2])
        tpm_quote.parse_pcr_json(parts[2])


def provisioning_bundle(data: bytes) -> None:
    """`read_bundle`: what a listed key signed is a bundle that is written as it was read, or it is rejected."""
    text, _, signature = data.partition(b"\n")
    with contextlib.suppress(BundleRejected):
        found = read_bundle(
            text, (signature.decode("latin-1"), sign_bundle(text, ADA)), signers=SIGNERS, required=1
        )
        assert found.bundle.serialise() == text


# ---------------------------------------------------------------- bodies


def _size(value: Any) -> int:
    inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    return len(inner) + sum(map(_size, inner))


def json_body(data: bytes) -> None:
    """`load_json`: bounded, refused, or no JSON."""
    with contextlib.suppress(BodyTooComplex, RequestValidationError):
        assert _size(load_json(data, Bounds(values=16, depth=6))) <= 16


def webhook_url(data: bytes) -> None:
    """`webhooks.addresses.read_url`: what is read has the host that the client would connect to."""
    text = data.decode("latin-1")
    with contextlib.suppress(WebhookURLInvalid):
        found = read_webhook_url(text, allow_http=True)
        url, sent = httpx.URL(text), httpcore.URL(text)
        # httpx keeps the capitals of an address of IPv6; deliveries go out by httpcore.
        assert (url.host.lower(), url.scheme, url.userinfo) == (found.host, found.scheme, b"")
        assert (sent.host.decode(), sent.port or found.port) == (found.host, found.port)


def metrics_request(data: bytes) -> None:
    """`metrics.listening.parse`: a status for whatever comes, and a credential only of what asks for the one path."""
    status, authorization = parse_metrics_request(data)
    assert status in (200, 400, 404, 405)
    if status == 200:
        assert data.startswith(b"GET /metrics")
    else:
        assert authorization is None


def kms_request(data: bytes) -> None:
    """`disk_kms.messages.parse_request`: what is read is read again from what a compiler of the format writes."""
    with contextlib.suppress(MalformedEvidence):
        found = parse_kms_request(data)
        fields = ((b"\x0a", found.node_uuid.encode()), (b"\x12", found.data))
        assert len(data) >= sum(len(each) for _, each in fields)
        written = b"".join(tag + encode_response(each)[1:] for tag, each in fields if each)
        assert parse_kms_request(written) == found


_IMAGE_LIST: Final = signed({"os.raw": bytes(32)})
_IMAGE_KEYS: Final = listing.parse_keys(image_vkey())


def kiosk_settings(data: bytes) -> None:
    """`kiosk.sources`: kernel arguments and files of settings mean variables, printable ones, or one error."""
    for read in (parse_cmdline, lambda text: parse_conf(text, "conf")):
        with contextlib.suppress(UsageError):
            for name, value in read(data).items():
                assert name.startswith("ITL_")
                assert value.isprintable()


def image_list(data: bytes) -> None:
    """`kiosk.listing.verify`: what is not the signed text word for word names no image."""
    with contextlib.suppress(ImageRejected):
        found = listing.verify(data, keys=_IMAGE_KEYS, at=AT)
        assert data.startswith(_IMAGE_LIST.partition(b"\n\n")[0])
        assert found.sha256 == {"os.raw": bytes(32)}


def partition_table(data: bytes) -> None:
    """`kiosk.gpt.parse`: with its checksums made right, a table of partitions that have a length, or one error."""
    head = bytearray(data.ljust(1024 + 128 * 128, b"\0"))
    entries = zlib.crc32(head[1024 : 1024 + 128 * 128]).to_bytes(4, "little")
    head[512 + 88 : 512 + 92] = entries
    head[512 + 16 : 512 + 20] = bytes(4)
    head[512 + 16 : 512 + 20] = zlib.crc32(head[512 : 512 + 92]).to_bytes(4, "little")
    with contextlib.suppress(MalformedEvidence):
        for each in gpt.parse(bytes(head)).entries:
            assert each.start_bytes > 0
            assert each.size_bytes > 0
            assert len(each.name) <= 36


def machined_answer(data: bytes) -> None:
    """`talos.calls` and `talos.messages`: whatever answers at machined's socket, an answer or one error.

    The first byte says into how many pieces the rest is cut.
    """
    answer = Answer()
    talk = Conversation(answer, "/machine.MachineService/Reset", b"x" * 300, {"talos-role": "os:admin"}, 1.0)
    talk.begin()
    size = 1 + (data[0] if data else 0)
    with contextlib.suppress(MachinedFailed):
        for at in range(1, len(data), size):
            talk.received(data[at : at + size])
            if answer.ended:
                assert check_answer(answer.message()) > 0
                break
    with contextlib.suppress(MachinedFailed):
        assert 0 < len(version_of(data)) <= MAX_TAG_BYTES


def _machined_answers() -> list[bytes]:
    """Return what machined sends: an answer with a status, a status alone, its hanging up, and a version."""
    encoder = hpack.Encoder()

    def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
        return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload

    head = encoder.encode([(":status", "200"), ("content-type", "application/grpc")])
    good = encoder.encode([("grpc-status", "0")])
    alone = hpack.Encoder().encode([(":status", "200"), ("grpc-status", "3"), ("grpc-message", "line%203")])
    message = b"\x0a\x06\x12\x04abcd"
    settings = frame(4, 0, 0) + frame(4, 1, 0)
    said = frame(0, 0, 1, b"\0" + len(message).to_bytes(4, "big") + message)
    return [
        b"\xff" + settings + frame(1, 4, 1, head) + said + frame(1, 5, 1, good),
        b"\x05" + settings + frame(1, 5, 1, alone),
        b"\xff" + settings + frame(7, 0, 0, b"\x7f\xff\xff\xff" + bytes(4)) + frame(3, 0, 1, bytes(4)),
        b"\x0a\x0b\x12\x09\x0a\x07v1.13.9",
    ]


# ---------------------------------------------------------------- TPM structures


def _use(public: Public) -> None:
    """Call whatever may be asked of a parsed public area."""
    with contextlib.suppress(MalformedEvidence):
        assert public.name[:2] == public.name_alg.to_bytes(2)
    with contextlib.suppress(MalformedEvidence):
        assert len(public.fingerprint()) == 96
    with contextlib.suppress(EKTemplateRejected):
        match_ek_template(public)
    with contextlib.suppress(AKAttributesRejected, MalformedEvidence):
        ak_activation.check_ak(public)


def tpm2b_public(data: bytes) -> None:
    """`parse_public`, and everything a public area is asked afterwards."""
    with contextlib.suppress(MalformedEvidence):
        public = parse_public(data)
        assert public.tpm2b() == data
        assert sized(public.serialise()) == data
        _use(public)


def tpmt_public(data: bytes) -> None:
    """`parse_tpmt_public`."""
    with contextlib.suppress(MalformedEvidence):
        public = parse_tpmt_public(data)
        assert public.serialise() == data
        _use(public)


def tpms_attest(data: bytes) -> None:
    """`parse_attest`."""
    with contextlib.suppress(MalformedEvidence):
        assert parse_attest(data).serialise() == data


def tpmt_signature(data: bytes) -> None:
    """`parse_signature`."""
    with contextlib.suppress(MalformedEvidence):
        assert parse_signature(data).serialise() == data


def creation_data(data: bytes) -> None:
    """`parse_creation_data`."""
    with contextlib.suppress(MalformedEvidence):
        assert parse_creation_data(data).serialise() == data


def key_uri(data: bytes) -> None:
    """`parse_key_uri`: a key written again is the same key, and what people see of it has no query."""
    with contextlib.suppress(KeyURIInvalid):
        ref = parse_key_uri(data.decode("latin-1"))
        assert parse_key_uri(str(ref)) == ref
        assert "?" not in ref.shown


def machine_names(data: bytes) -> None:
    """Host names and addresses: one spelling each, which is its own; everything else fails in one way."""
    text = data.decode("utf-8", "replace")
    with contextlib.suppress(RequestInvalid):
        name = canonical_hostname(text)
        assert canonical_hostname(name) == canonical_hostname(name.upper() + ".") == name
    with contextlib.suppress(RequestInvalid):
        interface = canonical_interface(text)
        assert canonical_interface(interface) == interface
        assert canonical_address(text) == canonical_address(interface)
    names_of(text, text)


def label_selector(data: bytes) -> None:
    """`parse_selector`: what was read, written as labels are shown, is read as the same."""
    with contextlib.suppress(RequestInvalid):
        wanted = parse_selector(data.decode("utf-8", "replace"))
        valued = {key: value for key, value in wanted.items() if value is not None}
        assert not valued or parse_selector(told(valued)) == valued


def go_duration(data: bytes) -> None:
    """`parse_duration`: what was read is not negative, or nothing is."""
    with contextlib.suppress(NotADuration):
        assert parse_duration(data.decode("utf-8", "replace")) >= timedelta(0)


def attestation_policy(data: bytes) -> None:
    """`policy_of`: a policy of Kubernetes is one for each backend, its defaults written out, or none."""
    try:
        spec = json.loads(data)
    except (ValueError, RecursionError):
        return
    for backend in BACKENDS:
        with contextlib.suppress(PolicyInvalid):
            assert policy_of(spec, backend=backend).document


def _policies() -> list[bytes]:
    return [json.dumps(each).encode() for each in (SEED["spec"]["policy"], KINDS[POLICY_KIND][0])]


def _runs() -> list[bytes]:
    return [json.dumps(each).encode() for each in (SEED["spec"], KINDS[RUN][0])]


def run_object(data: bytes) -> None:
    """`kinds.faults`: whatever stands in a run, faults are told and nothing is raised."""
    try:
        spec = json.loads(data)
    except (ValueError, RecursionError):
        return
    found = kinds.faults(RUN, {"metadata": {"name": "r"}, "spec": spec})
    assert found or RunSpec.model_validate(spec).written()


def signer_request(data: bytes) -> None:
    """The agent's signer: a request is a digest of the right length, or none."""
    with contextlib.suppress(Refused):
        found = parse_request(data)
        assert found.kind in ("client", "server")
        assert len(found.digest) == (DIGEST_BYTES[found.algorithm] if found.algorithm else 0)


def kubeconfig(data: bytes) -> None:
    """A node's kubeconfig: read, or refused in one way; the cluster that was read is written and read as the same."""

    def file_of(name: str) -> bytes:
        raise KubeconfigRejected(f"{name[:10]} is not there")

    with contextlib.suppress(KubeconfigRejected):
        read = parse_kubeconfig(data, file_of).cluster
        assert read.server.startswith("https://")
        assert parse_kubeconfig(written(read, {}), file_of).cluster == read
        if (name := read.tls_server_name) is not None:
            assert not set(name) & set(" ;{}\"'$")


def exec_info(data: bytes) -> None:
    """What an exec plugin is asked: read, or refused in one way."""
    with contextlib.suppress(ExecInfoRejected):
        asked = parse_exec_info(data.decode("utf-8", "replace"))
        assert asked.cluster is None or asked.cluster.ca_pem


def pcr_selection(data: bytes) -> None:
    """`PCRSelection.read`, and its names."""
    with contextlib.suppress(MalformedEvidence):
        reader = Reader(data, "selection")
        selection = PCRSelection.read(reader)
        assert selection.serialise() == data[: reader.position]
        names = {bank: pcrs for bank, pcrs in selection.to_names().items() if pcrs}
        assert PCRSelection.from_names(names).as_sets() == selection.as_sets()


def id_object(data: bytes) -> None:
    """`parse_id_object`."""
    with contextlib.suppress(MalformedEvidence):
        credential = parse_id_object(data)
        assert sized(sized(credential.integrity) + credential.encrypted_identity) == data


def activation_proof(data: bytes) -> None:
    """`ak_activation.parse`."""
    with contextlib.suppress(MalformedEvidence):
        assert ak_activation.parse(data).hmac == data


_EK_FOR_K: Final = parse_public(forge.ek_public("L-2"))


def ek_certification(data: bytes) -> None:
    """`ek_key_attestation.parse`, and a verification that must refuse: nobody knows the key."""
    cut = len(data) * 4 // 5
    with contextlib.suppress(MalformedEvidence, EvidenceRejected):
        parsed = ek_key_attestation.parse(data[:cut], data[cut:])
        assert parsed.attest.serialise() == data[:cut]
        ek_key_attestation.verify(parsed, secret=bytes(64), challenge=bytes(32), ek=_EK_FOR_K, ak=_EK_FOR_K)
        raise AssertionError("a certification without the key was believed")


def _certifications() -> list[bytes]:
    """Return statements of the right layout under a wrong key, cut where the target cuts."""
    info = CertifyInfo(_EK_FOR_K.name, _EK_FOR_K.name[:2] + bytes(32))
    message = Attest(TPM_GENERATED, 0x8017, bytes(34), bytes(32), 1, 2, 3, True, 4, info).serialise()
    return [message + bytes.fromhex("0005000b") + bytes(32), message + message[: len(message) // 4]]


def attestation_object(data: bytes) -> None:
    """`webauthn_tpm.parse`: what is read is written again alike, and only the AK's own statement is believed."""
    with contextlib.suppress(MalformedEvidence, EvidenceRejected):
        found = webauthn_tpm.parse(data)
        read = cbor2.loads(data)
        assert cbor2.dumps(read) == data
        statement = read["attStmt"]
        assert found.public[2:] == statement["pubArea"]
        webauthn_tpm.demand_ak(found, _NODE_AK.public.spki_der())
        parsed = key_certification.parse(found.public, found.certify_info, found.signature)
        believed = key_certification.verify(
            parsed,
            ak=_NODE_AK.public,
            ek=_EK_FOR_K,
            binding=webauthn_tpm.binding(found, "token.thumbprint"),
            spki=parsed.spki,
            modes=frozenset({key_certification.KeyMode.RESIDENT}),
        )
        assert believed.public == _NODE_KEY


def _attestation_objects() -> list[bytes]:
    """Return a good object, one of a software key, and one with certificates and browser data."""
    bound = hashlib.sha256(b"token.thumbprint").digest()
    seeds = []
    for qualified_name in (_NODE_KEY.name[:2] + bytes(32), _NODE_KEY.name):
        attest, signature = _NODE_AK.certify(_NODE_KEY.name, qualified_name, bound)
        statement = {
            "ver": "2.0",
            "alg": -7,
            "sig": signature,
            "certInfo": attest,
            "pubArea": _NODE_KEY.tpm2b()[2:],
        }
        seeds.append(cbor2.dumps({"fmt": "tpm", "attStmt": statement}))
        more = {"fmt": "tpm", "attStmt": statement | {"x5c": [b"0"]}, "authData": bytes(37)}
        seeds.append(cbor2.dumps(more))
    return seeds


def key_file(data: bytes) -> None:
    """`parse_key_file`; what was read is the same key when it is written and read again."""
    with contextlib.suppress(MalformedEvidence):
        key = parse_key_file(data)
        assert parse_key_file(encode_key(key)) == key
        assert parse_key_file(encode_key_file(key)) == key


_NODE_AK: Final = SoftwareAK(seed=11)
_NODE_KEY: Final = SoftwareAK(ak_template(attributes=0x00040472), seed=12).public


def node_key(data: bytes) -> None:
    """`key_certification.parse`, and a verification that believes nothing but what the AK signed."""
    reader = Reader(data, "node key")
    with contextlib.suppress(MalformedEvidence, EvidenceRejected):
        public, attest, signature = reader.sized(), reader.sized(), reader.rest()
        parsed = key_certification.parse(public, attest, signature)
        assert parsed.attest.serialise() == attest
        assert parsed.public.tpm2b() == public
        believed = key_certification.verify(
            parsed,
            ak=_NODE_AK.public,
            ek=_EK_FOR_K,
            binding=bytes(32),
            spki=_NODE_KEY.spki_der(),
            modes=frozenset({key_certification.KeyMode.RESIDENT}),
        )
        assert believed.public == _NODE_KEY


def _node_keys() -> list[bytes]:
    """Return a good certification, one of a software key, and one of another key."""
    seeds = []
    for name, qualified_name in (
        (_NODE_KEY.name, _NODE_KEY.name[:2] + bytes(32)),
        (_NODE_KEY.name, _NODE_KEY.name),
        (_NODE_AK.public.name, _NODE_KEY.name),
    ):
        attest, signature = _NODE_AK.certify(name, qualified_name, bytes(32))
        seeds.append(sized(_NODE_KEY.tpm2b()) + sized(attest) + signature)
    return seeds


ADVISORY: Final = {
    "vendor": "NTC",
    "match": ["1.0-1.9", "3"],
    "advisory": "X",
    "affects": "memory",
    "severity": "low",
    "action": "warn",
    "fixed": "2",
}


def firmware_blocklist(data: bytes) -> None:
    """`parse_blocklist`, and a verdict about every vendor."""
    with contextlib.suppress(BundleInvalid):
        for vendor in (found := parse_blocklist(data)).by_vendor:
            assert found.judge(vendor=vendor, version=len(data), ak_is_ecc=True, rsa_moduli=[])


def result_claims(data: bytes) -> None:
    """`parse_ear` over any JSON object; what it accepts has no status better than a claim."""
    with contextlib.suppress(ValueError, RecursionError, ResultTokenRejected):
        claims = json.loads(data)
        if isinstance(claims, dict):
            for submodule in parse_ear(claims).submods.values():
                limit = worst([tier_of(value) for value in submodule.vector.values()] or [Tier.AFFIRMING])
                assert submodule.status.badness >= limit.badness


def _results() -> list[bytes]:
    """Return a claims set of each profile."""
    result = AttestationResult(
        verdict=Verdict.VERIFIED,
        at=AT,
        policy="fleet@1+workers@3",
        outcomes=(QUOTE.passed(), PCR[4].passed(), PCR[7].passed()),
        boot_state_appraised=tuple(Subject),
        pcr_digest="00" * 32,
    )
    return [
        json.dumps(
            ear_claims(
                result,
                machine_id="m",
                ek_fingerprint="ab" * 48,
                assurance=Assurance.EK_CHAIN,
                nonce=b64encode(bytes(32)),
                issuer="https://attestation.example",
                expires_at=AT + timedelta(seconds=180),
                build="0.1.0",
                profile=profile,
                tell_checks=True,
            )
        ).encode()
        for profile in Profile
    ]


_ENTITY = commands.permanent(Hierarchy.ENDORSEMENT)
COMMANDS: Final[tuple[commands.Command[Any], ...]] = (
    commands.startup(),
    commands.get_random(32),
    commands.get_handles(0x81000000),
    commands.get_properties(0x100),
    commands.create_primary(Hierarchy.ENDORSEMENT, b""),
    commands.create(_ENTITY, b""),
    commands.load(_ENTITY, b"", forge.AKS["p256"].public),
    commands.load_external(forge.AKS["p256"].public),
    commands.read_public(0x81010001),
    commands.make_credential(_ENTITY, bytes(32), forge.AKS["p256"].name),
    commands.activate_credential(_ENTITY, _ENTITY, b"\0\0", b"\0\0"),
    commands.quote(_ENTITY, bytes(32), PCRSelection.from_names({"sha256": [0]})),
    commands.certify(_ENTITY, _ENTITY, bytes(32)),
    commands.sign(_ENTITY, bytes(32)),
    commands.pcr_read(PCRSelection.from_names({"sha256": [0]})),
    commands.policy_secret(_ENTITY, 0x03000000),
    commands.nv_read_public(0x01C00002),
    commands.nv_read(_ENTITY, _ENTITY, 64, 0),
)


def tpm_response(data: bytes) -> None:
    """`parse_response` and `read_parameters`: the first byte says to which command, the second authorisations."""
    if len(data) < 2:
        return
    command = COMMANDS[data[0] % len(COMMANDS)]
    with contextlib.suppress(MalformedEvidence, TPMResponseError):
        response = commands.parse_response(command, data[2:], data[1] % 4)
        commands.read_parameters(command, response.handle, response.parameters)


def _responses() -> list[bytes]:
    public = forge.AKS["p256"].public
    attest, signature = forge.quote("p256")
    name = sized(forge.AKS["p256"].name)
    bodies = {
        1: sized(bytes(32)),
        3: b"\0" + (6).to_bytes(4) + (1).to_bytes(4) + bytes(8),
        8: public + name + name,
        11: sized(attest) + signature,
        12: sized(attest) + signature,
        14: bytes(4) + forge.selection([(Alg.SHA256, (0,))]) + (1).to_bytes(4) + sized(bytes(32)),
        16: sized(bytes(32)),
    }
    return [
        bytes([which, 0]) + b"\x80\x01" + (10 + len(body)).to_bytes(4) + bytes(4) + body
        for which, body in bodies.items()
    ] + [b"\x01\x00\x80\x01" + (10).to_bytes(4) + (0x922).to_bytes(4)]


# ---------------------------------------------------------------- certificates, values, policies, text


class _WhoeverIsCertified:
    """An EK that has the certified key, so that `verify` looks further."""

    def __init__(self, certificate: ek_certificate.UnverifiedEKCertificate) -> None:
        self._spki = certificate.certificate.spki
        self.type = Alg.RSA

    def spki_der(self) -> bytes:
        """Return the certified key."""
        return self._spki


def ek_certificate_target(data: bytes) -> None:
    """`ek_certificate.parse`, then `verify` for the key in it."""
    with contextlib.suppress(MalformedEvidence, EKCertificateRejected):
        certificate = ek_certificate.parse(data)
        assert certificate.der in data or data.lstrip().startswith(b"-----")
        ek = _WhoeverIsCertified(certificate)
        claims = ek_certificate.verify(certificate, ek=ek, at=AT, allow_simulator=True)  # type: ignore[arg-type]  # stands for an EK
        assert claims.not_before <= AT <= claims.not_after
        str(claims)


def ak_certificate_target(data: bytes) -> None:
    """`parse_ak_certificate`, `verify_ak_certificate` and every extractor of node identities."""
    with contextlib.suppress(MalformedEvidence, AKCertificateRejected):
        unverified = parse_ak_certificate(data)
        certificate = unverified.certificate
        with contextlib.suppress(NodeIdentityRejected):
            claims = AKCertificateClaims(
                certificate=certificate,
                other_names=unverified.other_names,
                validation=PathValidation(ok=True, reason="", anchor_sha256=certificate.sha256),
            )
            for extractor in SHIPPED.values():
                with contextlib.suppress(NodeIdentityRejected):
                    source = IdentitySource(machine_id=None, hostname=None, certificate=claims)
                    found = extractor.extract(source)
                    assert found.value.isascii()
                    assert found.value.isprintable()
                    assert found.node_name is None or canonical_hostname(found.node_name) == found.node_name
                    assert differing(found, found.facts) == ()
        verify_ak_certificate(unverified, anchors=_AK_ANCHORS, chain=(data,), at=AT)
        assert certificate.tbs in _AK_SIGNED


def ak_vouching(data: bytes) -> None:
    """`ak_certificate.parse` of three sized parts and a certificate, then `verify`."""
    reader = Reader(data, "vouching")
    with contextlib.suppress(MalformedEvidence, AKCertificateRejected):
        statement = reader.sized(), reader.sized(), reader.sized()
        certificate = reader.sized()
        reader.end()
        unverified = ak_certificate.parse(certificate, statement)
        found = ak_certificate.verify(
            unverified, ak=_VOUCHED.public, binding=bytes(32), anchors=_AK_ANCHORS, chain=(), at=AT
        )
        assert (found.ak_name, found.own) == (_VOUCHED.public.name, False)
        assert statement[1] == _STATEMENT[0]


def node_members(data: bytes) -> None:
    """`parse_members`."""
    with contextlib.suppress(RequestInvalid):
        for identity, name in parse_members(data).members.items():
            assert identity.isascii()
            assert name == name.lower()
            assert "/" not in name


_AK_CA: Final = CertificateAuthority("AK CA", seed=1)
_AK_ANCHORS: Final = AKAnchors([parse_certificate(_AK_CA.certificate)])
_CERTIFIED: Final = SoftwareAK(seed=11)
_VOUCHED: Final = SoftwareAK(seed=12)
_STATEMENT: Final = _CERTIFIED.certify(_VOUCHED.public.name, _VOUCHED.qualified_name, bytes(32))


def _ak_certificates() -> list[bytes]:
    spki = _CERTIFIED.public.spki_der()
    says = (
        AKCertificateOptions(subject="", directory_name=True, padding=bytes(40)),
        AKCertificateOptions(extensions=[(GCE_INSTANCE, gce_instance())]),
        AKCertificateOptions(extensions=[(GCE_INSTANCE, gce_instance_2018())]),
        AKCertificateOptions(other_names=[hardware_module_name(b"\1\2"), permanent_identifier("a", "1.2.3")]),
    )
    return [make_ak_certificate(spki, _AK_CA, at=AT, options=each) for each in says]


_AK_SIGNED: Final = frozenset(parse_certificate(each).tbs for each in _ak_certificates())


def _vouchings() -> list[bytes]:
    parts = (_CERTIFIED.public.tpm2b(), *_STATEMENT, _ak_certificates()[0])
    return [b"".join(map(sized, parts))]


def _certificates() -> list[bytes]:
    import base64

    der = _files("ek/*.der", "ek/*.nv", "hostile/ek/*.der", "ovmf/*/*/ekcert*.der")
    pem = b"-----BEGIN CERTIFICATE-----\n%s-----END CERTIFICATE-----\n" % base64.encodebytes(der[0])
    return [*der, pem, *_files("ek/*.pem")]


ZOO: Final = Zoo()
HELD: Final = CertificateIndex(parse_certificate(ca.der) for ca in ZOO.held if ca.vendor == "STM")
SIGNED: Final = frozenset(
    parse_certificate(der).tbs
    for entry in ZOO.entries(vendors=["STM"], templates=["L-1", "L-2"], defects=False)
    for der in (ek_certificate.parse(entry.certificate).der, *entry.chain)
) | frozenset(certificate.tbs for certificate in HELD)


def certificate_target(data: bytes) -> None:
    """`parse_certificate`, then a path to the anchors of a vendor: only what was signed gets one."""
    with contextlib.suppress(MalformedEvidence):
        found = parse_certificate(data)
        assert data.startswith(found.der)
        assert found.tbs in found.der
        assert parse_certificate(found.der).sha256 == found.sha256
        str(found)
        assert all(one.isprintable() and one.isascii() for one in issuer_addresses(found))
        path = build_path(found, anchors=HELD, intermediates=[SentIssuers([data])], at=AT)
        assert isinstance(path, PathFailure) or found.tbs in SIGNED


def _zoo_certificates() -> list[bytes]:
    entries = ZOO.entries(vendors=["STM"], templates=["L-1", "L-2"], defects=False)
    ders = {der for e in entries for der in (e.certificate, *e.chain)} | {ca.der for ca in ZOO.held}
    vendors = [path.read_bytes() for path in sorted(SHARED.glob("vendor-ca/*/*.der"))]
    return sorted(ders) + vendors


def pcr_values(data: bytes) -> None:
    """`tpm_quote.parse_pcr_json` on anything, `parse_pcr_values` on what JSON of the API's shape can say."""
    with contextlib.suppress(MalformedEvidence):
        read = tpm_quote.parse_pcr_json(data)
        assert len(data) <= tpm_quote.MAX_PCR_JSON_BYTES
        texts = {
            bank_name(bank): {str(i): each.hex() for i, each in found.items()} for bank, found in read.items()
        }
        assert tpm_quote.parse_pcr_json(json.dumps(texts).encode()) == read
    try:
        values = json.loads(data)
    except (ValueError, RecursionError):
        return
    if not isinstance(values, dict) or not all(
        isinstance(bank, dict) and all(isinstance(text, str) for text in bank.values())
        for bank in values.values()
    ):
        return
    with contextlib.suppress(MalformedEvidence):
        parsed = tpm_quote.parse_pcr_values(values)
        assert sum(map(len, parsed.values())) == sum(map(len, values.values()))


def policy(data: bytes) -> None:
    """`parse_policy`; what it accepts it accepts again as it wrote it, judges, composes and compares."""
    with contextlib.suppress(PolicyInvalid):
        parsed = parse_policy(data)
        assert parsed.demands
        assert parse_policy(parsed.document) == parsed
        assert not diff(parsed, parsed).changes
        parsed.tpm.judge({})
        for pattern in (
            parsed.tpm.boot.command_lines.value if parsed.tpm.boot and parsed.tpm.boot.command_lines else ()
        ):
            pattern.matches(words_of(pattern.text) or ())
        assert identifier(parsed).startswith("ni:///sha-384;")
        both = compose([parse_policy(POLICY), parsed])
        assert both.sources.keys() >= parsed.sources.keys()


def corim(data: bytes) -> None:
    """`parse_corim`; what it reads a policy demands."""
    with contextlib.suppress(MalformedEvidence):
        block = parse_corim(data).block
        assert parse_policy({**TEES, "sev_snp": block}).blocks["sev_snp"].has_reference


def _corims() -> list[bytes]:
    found = _files("confidential/corim/*.cbor")
    values = [{0: 641, 1: {2: [[7, b"\xaa" * 48]]}}, {0: 642, 1: {4: CBORTag(560, b"\xbb" * 32)}}]
    environment = {0: {0: CBORTag(111, CLASS_OID)}}
    tag = CBORTag(506, cbor2.dumps({1: {0: "a"}, 4: {0: [[environment, values]]}}))
    return [*found, cbor2.dumps(CBORTag(501, {0: "id", 1: [tag], 3: CBORTag(32, PROFILE)}))]


def gpu_measurements(data: bytes) -> None:
    """`parse_measurements`; what was read stands in what is signed, and versions are text."""
    with contextlib.suppress(MalformedEvidence):
        read = parse_measurements(data)
        assert data.startswith(read.signed)
        assert read.nonce in read.signed
        assert (read.vbios + read.text(3)).isascii()


def cel_rule(data: bytes) -> None:
    """An expression is refused, or judged in words; two readings of one are the same."""
    text = data.decode(errors="replace")
    rule = CelRule(name="rule", expression=text, message="", report=False)
    shown = {"machine": {"role": "storage"}, "tdx": {"advisories": ["INTEL-SA-00001"] * 20, "debug": False}}
    with contextlib.suppress(PolicyInvalid):
        compiled(text)
        assert broken(rule, shown) == broken(rule, shown)


TEES: dict[str, Any] = {"format": "itl-policy/2", "name": "tees", "version": 1}
EVERY_BLOCK = {
    **TEES,
    "sev_snp": {
        "measurement": ["aa" * 48],
        "id_block": {"require": True, "id_key_digests": ["bb" * 48]},
        "min_tcb": {"turin": {"fmc": 1, "snp": 20}},
        "platform_info": {"must_set": 1},
        "signing_key": "any",
    },
    "tdx": {"mrtd": ["aa" * 48], "rtmr2": ["bb" * 48], "xfam": {"value": "00" * 8, "mask": "ff" * 8}},
    "sgx": {"mrsigner": ["cc" * 32], "min_isv_svn": 2},
    "gpu": {"driver_versions": ["550.90.07"], "rim_required": False},
    "tcb": {"accepted_status": ["UpToDate"], "min_tcb_date": "2025-02-12T00:00:00Z"},
    "collateral": {"max_staleness_hours": 48},
    "identity": {"mode": "observed"},
    "rules": [{"name": "no-debug", "expression": "!sev_snp.debug", "message": "why"}],
}
POLICY = {
    "format": "itl-tpm-policy/1",
    "name": "workers",
    "version": 3,
    "bank": "sha256",
    "pcrs": {
        "7": {"any_of": ["00" * 32, "ab" * 32]},
        "1": {"ignore": "serial numbers"},
        "12": {"empty": True},
    },
    "clock": {"safe": "required"},
    "event_log": "accepted",
    "max_age_seconds": 600,
}
EVERY_RULE = {
    **POLICY,
    "description": "every member",
    "mode": "report",
    "pcrs": {**POLICY["pcrs"], "4": {"events": "approved-digests", "digests": ["ab" * 32]}},  # type: ignore[dict-item]  # an object
    "secure_boot": {
        "required": True,
        "db_sha256": ["ab" * 32],
        "dbx_min": ["00" * 32],
        "authorities": ["ab" * 32],
        "debug": "flag",
        "empty_variable": "off",
    },
    "boot": {
        "loaders": ["ab" * 32],
        "kernels": ["ab" * 32],
        "initrds": ["ab" * 32],
        "command_lines": ["root=UUID=* ro"],
    },
    "ima": {"allow": ["ab" * 32], "exclude": ["/tmp/*"], "violations": "flag"},
    "event_log": "required",
    "log_padding": "accepted",
    "firmware": {"on_blocklist": "warn", "min": {"IFX": "7.63"}},
    "ek_key_attestation": "required",
    "assurance": {"minimum": "tofu"},
    "reattest_seconds": 60,
}


def base64(data: bytes) -> None:
    """`b64decode` and `hexdecode`."""
    text = data.decode("latin-1")
    with contextlib.suppress(MalformedEvidence):
        assert b64encode(b64decode(text, "field", max_bytes=1024)) == text
    with contextlib.suppress(MalformedEvidence):
        assert hexdecode(text, "field").hex() == text


def rfc3339_target(data: bytes) -> None:
    """`parse_rfc3339`: ValueError only; an instant survives writing and reading."""
    with contextlib.suppress(ValueError):
        at = parse_rfc3339(data.decode("latin-1"))
        assert parse_rfc3339(rfc3339(at)) == at


_OWN = Own(
    machine_id="00000000-0000-4000-8000-000000000001",
    ek_fingerprint="ab" * 48,
    hostname="node-1",
    assigned_ip="192.0.2.10/24",
    installer_image="registry.example/installer:v1",
)


_PATCHED = (
    b"machine: {type: worker, env: &a {x: 1}, files: &b [1], x: *a, y: *b}\n"
    b"---\nkind: LinkConfig\napiVersion: v1alpha1\nname: e\n"
)


def machine_config(data: bytes) -> None:
    """`complete`, `lint`, `preview`, `render`: an operator's YAML as a base and as a patch, judged and shown."""
    for generation in Generation:
        with contextlib.suppress(BaseConfigInvalid):
            complete(data, _OWN, generation)
        with contextlib.suppress(BaseConfigInvalid):
            lint_config(data, generation)
        with contextlib.suppress(BaseConfigInvalid):
            preview(data, generation)
        with contextlib.suppress(BaseConfigInvalid):
            render(_PATCHED, data, _OWN, Role.WORKER_APP, generation)


_MEMORY = memory.Memory(
    database="0123456789abcdef" * 2,
    last=checkpoint.Checkpoint(origin="attest.example/audit", size=7, root=b"\7" * 32),
    ended=(checkpoint.Checkpoint(origin="attest.example/before", size=9, root=b"\x09" * 32),),
)


def service_key_memory(data: bytes) -> None:
    """`service_keys.parse_memory`: the file that says which keys are the service's; texts, or a typed error."""
    with contextlib.suppress(KeyUnusable):
        found = parse_memory(data)
        assert all(isinstance(text, str) for pair in found.items() for text in pair)


def audit_memory(data: bytes) -> None:
    """`memory.parse`: the file beside the log's keys; what was read is written the same."""
    with contextlib.suppress(memory.MemoryUnusable):
        found = memory.parse(data)
        assert memory.parse(memory.serialise(found)) == found


def act_headers(data: bytes) -> None:
    """`parse_key`, `parse_deadline`: what was read is short, and is what stands in the header."""
    given = data.decode("latin-1")
    with contextlib.suppress(HTTPException):
        key = acts.parse_key([given])
        assert key is not None
        assert (f'"{key}"', len(key) <= 128, key.isascii()) == (given, True, True)
    with contextlib.suppress(HTTPException):
        waits_ms = acts.parse_deadline([given])
        assert waits_ms is not None
        assert (str(waits_ms), 0 < waits_ms < 1_000_000) == (given, True)


def audit_rows(data: bytes) -> None:
    """`changes_of`: what an entry says of rows; what was read is told the same."""
    with contextlib.suppress(MalformedEvidence):
        told = list(changes_of(data.decode("utf-8", "replace")))
        detail, rest = with_changes(None, told)
        assert [*changes_of(detail), *rest] == told


# ---------------------------------------------------------------- operators' tokens

TOKEN_RULES = Rules(
    issuer="https://sts.example/realms/itl",
    audience="attestation-service",
    clients=frozenset({"attestation-cli"}),
    role_client="attestation-service",
    duties={"attestation-operator": Duty.OPERATOR, "attestation-viewer": Duty.VIEWER},
    leeway_seconds=30,
)
GOOD_CLAIMS: Final[dict[str, Any]] = {
    "exp": int(AT.timestamp()) + 300,
    "iat": int(AT.timestamp()),
    "nbf": int(AT.timestamp()),
    "iss": TOKEN_RULES.issuer,
    "aud": ["attestation-service", "account"],
    "azp": "attestation-cli",
    "sub": "8f3c6a1e",
    "typ": "Bearer",
    "preferred_username": "anna",
    "realm_access": {"roles": ["attestation-operator"]},
    "resource_access": {"attestation-service": {"roles": ["attestation-viewer"]}},
}


def token_text(data: bytes) -> None:
    """`access_token.parse`, of what may stand in a header of HTTP."""
    with contextlib.suppress(Unauthenticated):
        token = access_token.parse(data.decode("latin-1"))
        assert token.algorithm in access_token.ALGORITHMS
        assert data.startswith(token.signing_input + b".")


def token_claims(data: bytes) -> None:
    """`access_token.judge`, of whatever a provider may have signed."""
    with contextlib.suppress(Unauthenticated, Forbidden):
        claims = access_token.claims_of(data)
        person = access_token.judge(claims, TOKEN_RULES, AT)
        assert person.name.isprintable()
        assert 1 <= len(person.name) <= 256
        assert person.subject == f"{TOKEN_RULES.issuer}#{claims['sub']}"
        assert person.duties


CLUSTER: Final = ClusterRule(
    cluster_id="default",
    issuer="https://kubernetes.default.svc",
    jwks={"keys": []},
    service_accounts={ControllerDuty.APPROVER: ("itl:approver",)},
)
GOOD_BOUND_CLAIMS: Final[dict[str, Any]] = {
    "exp": int(AT.timestamp()) + 3600,
    "iat": int(AT.timestamp()),
    "nbf": int(AT.timestamp()),
    "iss": CLUSTER.issuer,
    "aud": ["itl-attestation"],
    "sub": "system:serviceaccount:itl:approver",
    "kubernetes.io": {
        "namespace": "itl",
        "pod": {"name": "approver-0", "uid": "1"},
        "serviceaccount": {"name": "approver", "uid": "2"},
    },
}


def service_account_claims(data: bytes) -> None:
    """`service_account.judge`, of whatever an API server may have signed."""
    with contextlib.suppress(Unauthenticated, Forbidden):
        claims = access_token.claims_of(data)
        bearer = service_account.judge(claims, CLUSTER, AT)
        assert (bearer.service_account, bearer.duty) == ("itl:approver", ControllerDuty.APPROVER)
        assert bearer.pod.isprintable()
        assert claims["sub"] == GOOD_BOUND_CLAIMS["sub"]


def jwks(data: bytes) -> None:
    """`parse_jwks`, of whatever a provider may answer."""
    with contextlib.suppress(ProviderAnswerInvalid):
        keys = parse_jwks(data)
        assert all(key.algorithms for found in keys.by_id.values() for key in found)


def _tokens() -> list[bytes]:
    header = b64encode(b'{"alg":"RS256","typ":"JWT","kid":"a"}').encode()
    return [
        header.rstrip(b"=")
        + b"."
        + b64encode(json.dumps(GOOD_CLAIMS).encode()).encode().rstrip(b"=")
        + b".AA"
    ]


def _key_sets() -> list[bytes]:
    ec_key = {"kty": "EC", "crv": "P-256", "use": "sig", "kid": "b", "alg": "ES256"} | {
        # The generator of P-256: a point that everybody knows.
        "x": "axfR8uEsQkf4vOblY6RA8ncDfYEt6zOg9KE5RdiYwpY",
        "y": "T-NC4v4af5uO5-tKfA-eFivOM1drMV7Oy7ZAaDe_UfU",
    }
    rsa_key = {"kty": "RSA", "use": "sig", "kid": "a", "alg": "RS256", "e": "AQAB", "n": "w" * 342}
    return [json.dumps({"keys": keys}).encode() for keys in ([ec_key], [rsa_key], [rsa_key, ec_key], [])]


# ---------------------------------------------------------------- the audit log


def vkey(data: bytes) -> None:
    """`parse_vkey`: what is read is written again."""
    text = data.decode("utf-8", "surrogateescape")
    with contextlib.suppress(MalformedNote):
        assert str(note.parse_vkey(text)) == text


def signed_note(data: bytes) -> None:
    """`parse_note`: what is read is written again."""
    with contextlib.suppress(MalformedNote):
        assert str(note.parse_note(data)).encode() == data


def audit_checkpoint(data: bytes) -> None:
    """`checkpoint.parse`, then `verify`: only the text that was signed is believed."""
    with contextlib.suppress(MalformedNote, NoteRejected):
        signed = checkpoint.parse(data)
        assert str(signed.checkpoint) == signed.note.text
        proven = checkpoint.verify(
            signed, log_keys=log_kit.LOG_VKEYS[:1], witnesses=log_kit.WITNESS_VKEYS, quorum=0
        )
        assert proven.checkpoint in (log_kit.checkpoint(_LOG), log_kit.checkpoint(_LOG, 2))


def sealed_bundle(data: bytes) -> None:
    """`sealing.parse`, then `verify`: of a file that proves something, every byte is the one that was made."""
    with contextlib.suppress(MalformedEvidence, NotAuthentic):
        seal = sealing.parse(data)
        sealing.verify(seal, log_keys=log_kit.LOG_VKEYS, service_keys=(seal_kit.KEY,))
        assert data == seal_kit.sealed()


def tile_path(data: bytes) -> None:
    """`parse_path`: what is read is written again, and no tree lacks the room."""
    text = data.decode("latin-1")
    with contextlib.suppress(MalformedEvidence):
        tile = tiles.parse_path(text)
        assert str(tile) == text
        assert 0 < tile.width <= 256


def tile_bundle(data: bytes) -> None:
    """`parse_bundle`: the first byte says how many."""
    with contextlib.suppress(MalformedEvidence):
        assert tiles.format_bundle(tiles.parse_bundle(data[1:], data[0] if data else 0)) == data[1:]


def audit_export(data: bytes) -> None:
    """`LogVerifier`: in one piece and in many the same, and what it proves is the log that was signed."""
    outcomes = []
    for size in (len(data) + 1, 97):
        verifier = LogVerifier(pinned=_PINNED, earlier=())
        try:
            for start in range(0, len(data), size):
                verifier.feed(data[start : start + size])
            verdict = verifier.finish()
            assert verdict.root in (log_kit.checkpoint(_LOG).root, log_kit.checkpoint(_LOG, 2).root)
            outcomes.append((verdict.root_hash or "").encode())
        except (MalformedNote, NoteRejected, LogBroken) as e:
            outcomes.append(type(e).__name__.encode())
    assert outcomes[0] == outcomes[1]


def add_checkpoint(data: bytes) -> None:
    """`consider`: a decision whatever arrives; it cosigns what only adds to what it has."""
    newest = {log_kit.ORIGIN: log_kit.checkpoint(_LOG, 2)}
    decision = witness.consider(data, logs=log_kit.LOG_VKEYS[:1], newest=newest)
    if isinstance(decision, witness.Cosign):
        assert decision.checkpoint in (log_kit.checkpoint(_LOG), log_kit.checkpoint(_LOG, 2))
    else:
        assert decision.status in (400, 403, 404, 409, 422)


_LOG: Final = log_kit.entries(5)
_PINNED: Final = Pinned(log_keys=log_kit.LOG_VKEYS[:1], witnesses=(), quorum=0)


def _note(size: int, keys: Sequence[log_kit.Key] = log_kit.LOG_KEYS[:1]) -> bytes:
    return log_kit.signed(log_kit.checkpoint(_LOG, size), keys).encode()


def _requests() -> list[bytes]:
    tree = log_kit.MemoryTree.over([leaf_hash_of(entry) for entry in _LOG])
    return [
        witness.format_request(old, consistency_proof(tree, old, new), _note(new).decode()).encode()
        for old, new in ((2, 5), (2, 2), (0, 5))
    ]


OPERATORS: Final = OperatorCA(AT)
OPERATOR: Final = OPERATORS.issue()
TRUST: Final = operator_certificate.Trust(
    store=Store([OPERATORS.certificate]),
    lists=operator_certificate.load_lists(OPERATORS.revoke(), [OPERATORS.certificate]),
)


def client_certificate_header(data: bytes) -> None:
    """`parse_header`, of both headers of a proxy, then as `client_certificate`."""
    for name in (b"x-client-cert", b"client-cert"):
        with contextlib.suppress(Unauthenticated):
            client_certificate(operator_certificate.parse_header(name, data))


def client_certificate(data: bytes) -> None:
    """`parse` and `verify` of a client certificate: only what our CA signed is anybody."""
    with warnings.catch_warnings():
        # Serial numbers that are not positive: cryptography warns, and will refuse them one day.
        warnings.simplefilter("ignore")
        with contextlib.suppress(Unauthenticated):
            found = operator_certificate.parse(data)
            operator_certificate.verify(found, TRUST, AT)
            assert found.tbs_certificate_bytes == OPERATOR.certificate.tbs_certificate_bytes


def revocation_list(data: bytes) -> None:
    """`load_lists`, of whatever a job may have fetched: nothing in it frees who is on a list of the CA."""
    with contextlib.suppress(*operator_certificate.UNREADABLE):
        for found in operator_certificate.load_lists(data, [OPERATORS.certificate]).values():
            assert found.serials == {OPERATOR.certificate.serial_number}


# ---------------------------------------------------------------- logs of a boot


def event_log_target(data: bytes) -> None:
    """`event_log.parse`, a replay in every bank, and everything a log is asked afterwards."""
    for padded in (False, True):
        with contextlib.suppress(MalformedEvidence):
            log = event_log.parse(data, log_padding=padded)
            assert log.records[-1].stop + log.padding_bytes == len(data)
            _use_log([event_log.replay(log, bank) for bank in log.banks][-1])


def _use_log(replayed: event_log.ReplayedLog) -> None:
    """Call whatever may be asked of a replayed log."""
    assert all(line.isprintable() for line in describe(replayed))
    answers = (*explain(None, replayed, range(24)), *explain(_BOOTED, replayed, range(24)))
    assert len(answers) == 48
    assert all(answer.text.isprintable() for answer in answers)
    with contextlib.suppress(EventLogRejected):
        claims = event_log.verify(replayed, quoted={i: replayed.values[i] for i in range(16)})
        state = claims.secure_boot
        assert not (state.enabled and (state.problems or not state.db_sha256))
        assert len(state.dbx_sha256) <= len(replayed.data) // 16
        assert all(isinstance(a.subject, str) for a in state.authorities)
        assert all(i.path.isprintable() for i in claims.images)


def ima_log_target(data: bytes) -> None:
    """`ima_log.parse`, and a verification against the value that the list leads to."""
    with contextlib.suppress(MalformedEvidence, IMALogRejected):
        log = ima_log.parse(data)
        pcr10 = ima_log.replay(log, Alg.SHA256)
        claims = ima_log.verify(log, bank=Alg.SHA256, quoted_pcr10=pcr10)
        assert len(claims.entries) + claims.later == len(log.records)


def _event_logs() -> list[bytes]:
    """Logs small enough to be changed everywhere, of every kind."""
    small = BootOptions(revoked=1, databases=(), key_exchange_keys=())
    made = [
        boot_log(replace(small, quirks=frozenset({quirk}), banks=("sha1", "sha256"))).serialise()
        for quirk in LogQuirk
    ]
    made += [boot_log(replace(small, defect=defect)).serialise() for defect in LogDefect]
    made.append(boot_log(replace(small, uki=True, locality=3)).serialise())
    return made + [d for d in _files("*/*.bin", "ovmf/*/*/eventlog.bin") if 0 < len(d) < 8192]


def _ima_list() -> bytes:
    pcrs = boot_log().pcrs()
    files = {"/init": b"1", "/tmp/log": b"2"}
    return ima_list(pcrs, files, template="ima-sig", violations=["/tmp/log"]).serialise()


_BOOTED = event_log.replay(event_log.parse(boot_log().serialise()), Alg.SHA256)


# ---------------------------------------------------------------- the trust bundle

_TRUST_ROOT: Final = CertificateAuthority("Fuzz root", seed=1)
_TRUST_ISSUER: Final = CertificateAuthority("Fuzz issuer", seed=2, parent=_TRUST_ROOT)
_TRUSTED: Final = [
    entry_of(
        ca.certificate,
        role=None,
        vendor="IFX",
        retrieved=AT.date(),
        evidence="fuzz",
        sources=("https://a.example/",),
    )
    for ca in (_TRUST_ROOT, _TRUST_ISSUER)
]
_TRUST_BUNDLE: Final = TrustBundle([(_TRUSTED[0], _TRUST_ROOT.certificate)], "00" * 32)
_TRUSTED_EK: Final = _TRUST_ISSUER.issue_ek_certificate(
    parse_public(forge.ek_public("L-2")), at=AT, options=EKCertificateOptions(manufacturer="id:49465800")
)


def trust_manifest(data: bytes) -> None:
    """`parse_manifest`; what it accepts it accepts again as it writes it."""
    with contextlib.suppress(BundleInvalid):
        parsed = parse_manifest(data)
        again = parse_manifest(format_manifest(parsed))
        assert sorted(again.entries, key=lambda e: e.sha256) == sorted(parsed.entries, key=lambda e: e.sha256)
        assert (again.version, again.sha1_allowed) == (parsed.version, parsed.sha1_allowed)


def trust_pem(data: bytes) -> None:
    """`certificates` of a file: as many as there are blocks, or one in DER."""
    with contextlib.suppress(BundleInvalid):
        found = pem_certificates(data, "file")
        assert found == [data] or len(found) == data.count(b"-----BEGIN ")


def trust_chain(data: bytes) -> None:
    """`TrustBundle.verify`, of what may stand in NV and of what is sent with it: never raises, never believes more."""
    verdict = _TRUST_BUNDLE.verify(data, [_TRUST_ISSUER.certificate], at=AT)
    assert not verdict.ok or parse_certificate(data).tbs == parse_certificate(_TRUSTED_EK).tbs
    sent = _TRUST_BUNDLE.verify(_TRUSTED_EK, [data], at=AT)
    assert not sent.ok or parse_certificate(data).spki == parse_certificate(_TRUST_ISSUER.certificate).spki


LIST: Final = OPERATORS.revoke(OPERATOR)
LIST_SIGNED: Final = parse_crl(LIST).tbs
LIST_DER: Final = load_pem_x509_crl(LIST).public_bytes(Encoding.DER)


def vendor_crl(data: bytes) -> None:
    """`parse_crl`, then `CRLStore.status`: only what was signed says a word, and that is never `good`."""
    with contextlib.suppress(MalformedEvidence):
        crl = parse_crl(data)
        str(crl)
        issuer = parse_certificate(OPERATORS.certificate.public_bytes(Encoding.DER))
        said = CRLStore([crl]).status(parse_certificate(OPERATOR.der), issuer, AT).status
        assert said is Revocation.UNKNOWN or (said is Revocation.REVOKED and crl.tbs == LIST_SIGNED)


_INTEL: Final = Platform()
_INTEL_COLLATERAL: Final = _INTEL.collateral()
_INTEL_LISTS: Final = (_INTEL.pki.crl(), _INTEL.pki.crl("root", 7, 9))
_INTEL_ROOT: Final = parse_certificate(_INTEL.pki.root)
_INTEL_EXTENSION: Final = parse_certificate(_INTEL.pck).extensions["1.2.840.113741.1.13.1"].value
_INTEL_QUOTES_WHOLE: Final = (
    _INTEL.quote(td_report(bytes(64))),
    _INTEL.quote(td_report(bytes(64), size=648), version=5),
    _INTEL.quote(enclave_report({}), version=3, tee="SGX"),
)
_INTEL_QUOTES: Final = frozenset(dcap.parse_quote(each).signed for each in _INTEL_QUOTES_WHOLE)
_CC_SPEC: Final = b"Spec ID Event03\0" + bytes(8) + b"\1\0\0\0" + b"\x0c\0\x30\0" + b"\0"
_CC_LOG: Final = (
    b"\1\0\0\0\3\0\0\0"
    + bytes(20)
    + len(_CC_SPEC).to_bytes(4, "little")
    + _CC_SPEC
    + b"\1\0\0\0\1\0\0\0\1\0\0\0\x0c\0"
    + bytes(range(48))
    + b"\4\0\0\0data"
    + b"\xff" * 8
)


_SNP: Final = Processor(pki=Pki())
_SNP_AT: Final = datetime(2026, 11, 23, tzinfo=UTC)
_SNP_REPORTS: Final = (_SNP.report(bytes(64), version=5), _SNP.report(bytes(64)))
_SNP_VEKS: Final = (_SNP.vek, _SNP.certificate(serial=1))


def snp_report(data: bytes) -> None:
    """`parse`, then `verify`: only the report of the kit is authentic, and every bit of it counts."""
    with contextlib.suppress(MalformedEvidence, HardwareEvidenceRejected):
        found = sev_snp.parse({"report": data, "vek": _SNP.vek})
        sev_snp.verify(found, endorsements=_SNP.endorsements(revoked=None), report_data=bytes(64), at=_SNP_AT)
        assert data in _SNP_REPORTS


def snp_cert_table(data: bytes) -> None:
    """What the table carries stands in it."""
    with contextlib.suppress(MalformedEvidence):
        found = parse_cert_table(data)
        assert (found.vcek or b"") in data
        assert (found.vlek or b"") in data


def snp_vek(data: bytes) -> None:
    """A VEK names a chip or a provider; only that of the kit is vouched for."""
    with contextlib.suppress(MalformedEvidence):
        vek = parse_vek(data)
        assert (vek.hwid is None) is vek.is_vlek
        if verify_vek(vek, _SNP.pki.line, _SNP_AT) is None:
            assert any(vek.certificate.tbs in each for each in _SNP_VEKS)


def collateral_item(data: bytes) -> None:
    """A name and what is kept under it, with a NUL between: only what the kit signed is believed."""
    name, _, kept = data.partition(b"\0")
    with contextlib.suppress(CollateralInvalid):
        item = verify_item(name.decode("latin-1"), kept, COLLATERAL_TRUSTED)
        assert item.says == verify_item(item.name, COLLATERAL[item.name], COLLATERAL_TRUSTED).says


def dcap_quote(data: bytes) -> None:
    """`parse_quote`, then `verify`: only the quote of the kit is authentic, and padding is no part of it."""
    with contextlib.suppress(MalformedEvidence, HardwareEvidenceRejected):
        found = dcap.parse_quote(data)
        assert data.startswith(found.signed)
        assert found.padding_bytes < len(data)
        dcap.verify(
            found,
            sent=None,
            endorsements=_INTEL.endorsements(_INTEL_COLLATERAL),
            report_data=bytes(64),
            at=ISSUED,
            names=dcap.checks("TDX"),
        )
        assert found.signed in _INTEL_QUOTES


def tcb_info_target(data: bytes) -> None:
    """TCB info, and the answer that carries it: what is cut out of it stands in it."""
    with contextlib.suppress(MalformedEvidence):
        found, signature = split_signed(data, "tcbInfo")
        assert found in data
        assert len(signature) == 64
    with contextlib.suppress(MalformedEvidence):
        info = parse_tcb_info(data)
        assert info.levels
        assert all(info.newest.sgx >= level.sgx for level in info.levels)


def enclave_identity(data: bytes) -> None:
    """Identity of a quoting enclave: levels are there, the newest first."""
    with contextlib.suppress(MalformedEvidence):
        levels = parse_identity(data).levels
        assert [each.svn for each in levels] == sorted((each.svn for each in levels), reverse=True)


def dcap_collateral(data: bytes) -> None:
    """Collateral that comes with evidence."""
    with contextlib.suppress(MalformedEvidence):
        found = parse_collateral(data)
        assert all(
            each is None or len(each) == 64
            for each in (found.tcb_info_signature, found.qe_identity_signature)
        )


def pck_extension(data: bytes) -> None:
    """What a PCK certificate says of its platform: each field has its length."""
    with contextlib.suppress(MalformedEvidence):
        found = parse_platform(data)
        assert (len(found.ppid), len(found.fmspc), len(found.components)) == (16, 6, 16)


def pck_crl(data: bytes) -> None:
    """A revocation list of Intel's: only what the CA signed is believed."""
    with contextlib.suppress(CollateralRefused):
        assert any(verify_crl(data, _INTEL_ROOT).tbs in each for each in _INTEL_LISTS)


def cc_log(data: bytes) -> None:
    """The event log of a TD: its replay has registers of the right length."""
    with contextlib.suppress(MalformedEvidence):
        found = cc_event_log.parse(data)
        assert found.used_bytes <= len(data)
        assert all(value is None or len(value) == 48 for value in found.replay())


def ocsp_request(data: bytes) -> None:
    """A request for the status of a certificate: what was read stands in it, within the limits."""
    with contextlib.suppress(MalformedEvidence):
        found = parse_ocsp_request(data)
        assert found.cert_id.der in data
        assert found.nonce is None or 1 <= len(found.nonce) <= 128


_CERT_ID: Final = bytes.fromhex(
    "304d300906052b0e03021a05000414" + "11" * 20 + "0414" + "22" * 20 + "02147f" + "33" * 19
)
"""A CertID by SHA-1, its serial number of 20 bytes."""


def _ocsp_requests() -> list[bytes]:
    one = der.write(der.SEQUENCE, _CERT_ID)
    nonce = der.write(
        der.SEQUENCE,
        bytes.fromhex("06092b0601050507300102")
        + der.write(der.OCTET_STRING, der.write(der.OCTET_STRING, bytes(32))),
    )
    extensions = der.write(0xA2, der.write(der.SEQUENCE, nonce))
    version = der.write(0xA0, der.write_unsigned(0))
    bodies = [
        der.write(der.SEQUENCE, one),
        der.write(der.SEQUENCE, 3 * one) + extensions,
        version + der.write(der.SEQUENCE, one) + extensions,
    ]
    return [der.write(der.SEQUENCE, der.write(der.SEQUENCE, body)) for body in bodies]


_CSRS: Final = [request_of(leaf_key(kind)) for kind in ("ecdsa-p384", "rsa-2048", "ed25519", "ml-dsa-65")]
_REQUESTED: Final = frozenset(parse_csr(request).request_info for request in _CSRS)


def csr(data: bytes) -> None:
    """A certification request: only what the key in it signed is read, whatever stands around it."""
    with contextlib.suppress(MalformedEvidence, CSRInvalid):
        found = parse_csr(data)
        assert found.request_info in _REQUESTED
        assert found.spki in found.request_info
        assert parse_csr(found.der) == found


_OUR_CA: Final = ca_of("ecdsa-p384")
_OURS: Final = _OUR_CA.content_of(ProfileName.NODE_SERVER)
_OUR_CERTIFICATE: Final = _OUR_CA.issue(_OURS)


_NODE_CSR: Final = pem_of(request_of(leaf_key(), subject="system:node:cp-1"))


def requested_node_target(data: bytes) -> None:
    """Whatever a CSR of a cluster asks for: nothing, or a name that is one segment of a path."""
    name = requested_node(data)
    assert name is None or (len(name) <= 253 and quote(name, safe="") == name)
    assert isinstance(has_evidence(data), bool)


def certificate_lint(data: bytes) -> None:
    """The linter before the CA key: of everything there is, only the certificate that was asked for is signed."""
    if not lint(data, _OURS, _OUR_CA.certificate):
        assert parse_certificate(data).tbs == parse_certificate(_OUR_CERTIFICATE).tbs


_SERVICE = KeySigner(ec.derive_private_key(7, ec.SECP384R1()))
_ADDRESSEE = Binding(
    machine_id="7f3ad3ac-0f0e-4c55-9d4a-3f6f0e1b2c3d", ek_fingerprint="ab" * 48, ak_name=b"n" * 34
)


def _statements() -> list[bytes]:
    claims = statements.claims(
        _ADDRESSEE, b64encode(bytes(32)), datetime(2026, 11, 22, tzinfo=UTC), action="lock"
    )
    return [_SERVICE.sign_jwt(claims, typ=statements.DIRECTIVE_TYP).encode()]


def statement(data: bytes) -> None:
    """`verify_statement`: claims only of what the service signed for this machine and request."""
    token, keys = data.decode("latin-1"), _SERVICE.jwks()
    with contextlib.suppress(JWSRejected):
        found = statements.verify_statement(
            token, typ=statements.DIRECTIVE_TYP, keys=keys, to=_ADDRESSEE, node_nonce=bytes(32)
        )
        assert found["action"] == "lock"


def key_set(data: bytes) -> None:
    """`thumbprints` over any JSON object."""
    with contextlib.suppress(JWSRejected, ValueError, RecursionError):
        found = json.loads(data)
        if isinstance(found, dict):
            assert statements.thumbprints(found)


_CA_DATA: Final = b64encode(b"-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n")


def _kubeconfigs() -> list[bytes]:
    cluster = {"server": "https://10.0.0.1:6443", "certificate-authority-data": _CA_DATA}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": {"token": "abcdef.0123456789abcdef"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    block = (
        f"apiVersion: v1\nkind: Config\ncurrent-context: x\nclusters:\n- name: c\n  cluster:\n"
        f"    server: https://a.example\n    tls-server-name: b.example\n"
        f"    certificate-authority-data: {_CA_DATA}\ncontexts:\n- name: x\n  context: {{cluster: c, user: u}}\n"
        f"users:\n- name: u\n  user: {{tokenFile: t}}\n"
    )
    return [json.dumps(config).encode(), block.encode()]


def _exec_infos() -> list[bytes]:
    info = {"kind": "ExecCredential", "apiVersion": "client.authentication.k8s.io/v1"}
    cluster = {"server": "https://10.0.0.1:6443", "certificate-authority-data": _CA_DATA, "config": None}
    specs: list[dict[str, object]] = [{"interactive": False}, {"interactive": True, "cluster": cluster}]
    return [json.dumps({**info, "spec": spec}).encode() for spec in specs]


def query(data: bytes) -> None:
    """A text is a plan that compiles for both databases, or QueryInvalid with a place inside of it."""
    text = data.decode(errors="replace")
    try:
        plan = kql.analyse(text, CATALOG, at=QUERIED_AT)
    except QueryInvalid as e:
        lines = text.split("\n")
        if not (1 <= e.line <= len(lines) and 1 <= e.column <= len(lines[e.line - 1]) + 1 and e.length):
            raise AssertionError(f"no such place: {e.line}, {e.column}") from e
        return
    for dialect in ("sqlite", "postgresql"):
        kql.compiled(plan, dialect)


TARGETS: Final[dict[str, Target]] = {
    "query": Target(query, lambda: [each.encode() for each in (*VALID, *INVALID)], 2048),
    "ocsp_request": Target(ocsp_request, _ocsp_requests, max_bytes=MAX_REQUEST_BYTES + 8),
    "trust_manifest": Target(
        trust_manifest,
        lambda: [
            format_manifest(Manifest(version=3, created=AT, entries=tuple(_TRUSTED))),
            format_manifest(
                Manifest(
                    version=1,
                    created=AT,
                    entries=tuple(_TRUSTED[:1]),
                    sha1_allowed=frozenset({_TRUSTED[0].sha256}),
                )
            ),
        ],
        8192,
    ),
    "trust_pem": Target(
        trust_pem,
        lambda: [
            _TRUST_ROOT.certificate,
            b"# a\n-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n",
        ],
        4096,
    ),
    "trust_chain": Target(trust_chain, lambda: [_TRUSTED_EK, _TRUST_ISSUER.certificate], 8300),
    "machine_names": Target(
        machine_names,
        lambda: [
            *(b"cp-1.example.", b"B\xc3\xbccher.example", b"xn--bcher-kva"),
            *(b"10.0.0.11/24", b"2001:DB8:0::1/64", b"::ffff:10.0.0.11/120"),
        ],
        256,
    ),
    "label_selector": Target(
        label_selector, lambda: [b"rack=4,site=ams", b"example.org/rack=,spare", b"itl.io/x=1"], 256
    ),
    "go_duration": Target(
        go_duration, lambda: [b"2m", b"1h30m", b"500ms", b"1.5h", "7µs".encode(), b"0"], 80
    ),
    "attestation_policy": Target(attestation_policy, _policies, 8192),
    "run_object": Target(run_object, _runs, 2048),
    "kubeconfig": Target(kubeconfig, _kubeconfigs, 1200),
    "exec_info": Target(exec_info, _exec_infos, 1200),
    "signer_request": Target(
        signer_request,
        lambda: [
            b'{"kind": "client"}',
            b'{"kind": "server", "algorithm": "ecdsa-sha256", "digest": "' + b"0a" * 32 + b'"}',
        ],
    ),
    "tpm2b_public": Target(tpm2b_public, lambda: _files("*/ek.tpm2b_public", "*/ak.tpm2b_public"), 2100),
    "tpmt_public": Target(
        tpmt_public, lambda: [d[2:] for d in _files("*/ek.tpm2b_public", "*/ak.tpm2b_public")], 2100
    ),
    "tpms_attest": Target(tpms_attest, lambda: _files("*/quote*.msg") + _hostile_pairs(0), 2100),
    "tpmt_signature": Target(tpmt_signature, lambda: _files("*/quote*.sig") + _hostile_pairs(1), 2100),
    "creation_data": Target(
        creation_data, lambda: _files("creation_data.bin", "go-attestation/*/ak.create_data"), 2100
    ),
    "pcr_selection": Target(
        pcr_selection,
        lambda: [
            forge.selection([(Alg.SHA256, forge.SELECTED)]),
            forge.selection([(Alg.SHA256, (0, 31)), (Alg.SHA1, ())], 4),
            forge.selection([]),
        ],
        64,
    ),
    "id_object": Target(
        id_object,
        lambda: [
            bytes.fromhex(case["id_object"])
            for case in json.loads((OWN / "known-answers.json").read_text())["make_credential"]
        ],
        2100,
    ),
    "node_csr": Target(node_csr_container, _node_requests, 8192),
    "leaf": Target(
        leaf, lambda: [*(each.csr_der for each in _GOOD_REQUESTS.values()), *_LEAF_REQUESTS], 2048
    ),
    "quote_envelope": Target(
        quote_envelope, lambda: [json.dumps(quote_spec(k)).encode() for k in QUOTE_KINDS], 16384
    ),
    "tcs_kmra": Target(tcs_kmra_answer, lambda: [answer(nonce())], 8192),
    "hsm_key": Target(hsm_key_statement, lambda: [HSM_KEY], 4096),
    "tpm_quote_of_a_key": Target(tpm_quote_of_a_key, lambda: [KEY_QUOTE], 2048),
    "provisioning_bundle": Target(
        provisioning_bundle,
        lambda: [BUNDLE_TEXT + b"\n" + BY_ADA.encode(), BUNDLE_TEXT + b"\n" + BY_BOB.encode()],
        8192,
    ),
    "requested_names": Target(requested, lambda: [each.csr_der for each in _GOOD_REQUESTS.values()], 2048),
    "attestation_object": Target(attestation_object, _attestation_objects, 4096),
    "key_certification": Target(ek_certification, _certifications, 2600),
    "node_key": Target(node_key, _node_keys, 2600),
    "key_file": Target(
        key_file,
        lambda: [
            *(path.read_bytes() for path in sorted((OWN.parent / "key-files").glob("*.pem"))),
            encode_key(TPMKey(public=_NODE_KEY.tpm2b(), private=sized(bytes(100)), parent=0x81000001)),
        ],
        8300,
    ),
    "firmware_blocklist": Target(
        firmware_blocklist,
        lambda: [json.dumps({"format": "itl-firmware-blocklist/1", "entries": [ADVISORY]}).encode()],
        2048,
    ),
    "result_claims": Target(result_claims, _results, 4096),
    "statement": Target(statement, _statements, 1400),
    "key_set": Target(key_set, lambda: [json.dumps(_SERVICE.jwks()).encode()], 1400),
    "activation_proof": Target(activation_proof, lambda: [bytes(32), bytes(31)], 64),
    "tpm_response": Target(tpm_response, _responses, 4200),
    "ek_certificate": Target(ek_certificate_target, _certificates, 8300),
    "ak_certificate": Target(ak_certificate_target, _ak_certificates, 8300),
    "ak_vouching": Target(ak_vouching, _vouchings, 8300),
    "node_members": Target(
        node_members,
        lambda: [json.dumps({"format": "itl-node-members/1", "members": {"machine/m": "node-1"}}).encode()],
        4096,
    ),
    "pcr_values": Target(
        pcr_values,
        lambda: [json.dumps(json.loads(d)["pcr_values"]).encode() for d in _files("pcrs.json")[:1]],
    ),
    "policy": Target(
        policy, lambda: [json.dumps(each).encode() for each in (POLICY, EVERY_RULE, EVERY_BLOCK)], 8192
    ),
    "gpu_measurements": Target(gpu_measurements, lambda: [SoftwareGPU().evidence(bytes(32))], 2048),
    "corim": Target(corim, _corims, 4096),
    "cel_rule": Target(
        cel_rule,
        lambda: [b"!tdx.debug && size(tdx.advisories) < 3", b"tdx.advisories.all(a, a.startsWith('INTEL'))"],
        512,
    ),
    "key_uri": Target(
        key_uri,
        lambda: [
            b"file:/k.pem?passphrase-source=file:/p",
            b"pkcs11:token=a%20b;object=o;id=%01%02;serial=1;type=private?module-name=m&pin-source=fd:3",
            b"tpm2:handle=0x81010001?tcti=device:/dev/tpmrm0&auth-source=file:/p",
            b"tpm2:path=/k%20a",
        ],
        512,
    ),
    "base64": Target(base64, lambda: [b64encode(bytes(range(40))).encode(), b"00ff"], 2048),
    "vkey": Target(
        vkey, lambda: [str(k).encode() for k in (*log_kit.LOG_VKEYS, *log_kit.WITNESS_VKEYS)], 4200
    ),
    "signed_note": Target(
        signed_note, lambda: [_note(5), _note(0), _note(5, (*log_kit.LOG_KEYS, *log_kit.WITNESSES))], 8192
    ),
    "audit_checkpoint": Target(
        audit_checkpoint,
        lambda: [_note(5), _note(2), _note(5, (*log_kit.LOG_KEYS, *log_kit.WITNESSES))],
        8192,
    ),
    "sealed_bundle": Target(sealed_bundle, lambda: [seal_kit.sealed()], 16384),
    "tile_path": Target(
        tile_path, lambda: [b"tile/0/000", b"tile/3/x001/x234/067.p/255", b"tile/entries/x001/000"], 64
    ),
    "tile_bundle": Target(
        tile_bundle, lambda: [b"\x05" + tiles.format_bundle(log_kit.bundle(_LOG)), b"\x02" + bytes(64)], 4096
    ),
    "audit_export": Target(
        audit_export, lambda: [b"".join(log_kit.export(_LOG, (2,), log_kit.LOG_KEYS[:1]))], 8192
    ),
    "add_checkpoint": Target(add_checkpoint, _requests, 4096),
    "rfc3339": Target(
        rfc3339_target, lambda: [b"2026-11-21T03:42:00.000000Z", b"2026-11-21T03:42:00+01:00"], 64
    ),
    "machine_config": Target(
        machine_config,
        lambda: [
            b"version: v1alpha1\nmachine:\n  type: worker\n  network: {}\ncluster:\n  id: x # kept\n",
            b"version: v1alpha1\nmachine: &a\n  type: worker\n---\nkind: VolumeConfig\napiVersion: v1alpha1\n",
        ],
        2048,
    ),
    "json_body": Target(
        json_body,
        lambda: [b'{"a": [1, {"b": "\\\\\\"[{,"}, null], "c": 1e5}', b"[[[[[[]]]]]]", b'{"a":NaN}'],
        2048,
    ),
    "webhook_url": Target(
        webhook_url,
        lambda: [b"https://hooks.example.com:8443/itl?x=1", b"https://[2606:4700::1]/", b"http://192.0.2.1/"],
        2048,
    ),
    "metrics_request": Target(
        metrics_request,
        lambda: [
            b"GET /metrics HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer x\r\n\r\n",
            b"POST / HTTP/1.0\r\n\r\n",
        ],
        2048,
    ),
    "kms_request": Target(
        kms_request,
        lambda: [b"\x0a\x24" + b"4c4c4544-0042-3510-8052-b4c04f4d3132" + b"\x12\x45" + bytes(69)],
        1100,
    ),
    "kiosk_settings": Target(
        kiosk_settings,
        lambda: [*(f'{name}="a b" x'.encode() for name in KERNEL_ARGUMENTS), b"# x\nITL_ROLE='a'\n"],
        512,
    ),
    "image_list": Target(image_list, lambda: [_IMAGE_LIST], 1024),
    "partition_table": Target(
        partition_table, lambda: [table((gpt.ESP, gpt.ESP, 1 << 20, 1 << 20))[: 1024 + 256]], 2048
    ),
    "machined_answer": Target(machined_answer, _machined_answers, 2048),
    "token_text": Target(token_text, _tokens, 17_000),
    "token_claims": Target(token_claims, lambda: [json.dumps(GOOD_CLAIMS).encode()], 4096),
    "service_account_claims": Target(
        service_account_claims, lambda: [json.dumps(GOOD_BOUND_CLAIMS).encode()], 4096
    ),
    "jwks": Target(jwks, _key_sets, 8192),
    "client_certificate_header": Target(
        client_certificate_header,
        lambda: [OPERATOR.escaped.encode(), b":" + b64encode(OPERATOR.der).encode() + b":"],
        17_000,
    ),
    "client_certificate": Target(
        client_certificate, lambda: [OPERATOR.der, OPERATORS.certificate.public_bytes(Encoding.DER)], 8200
    ),
    "certificate": Target(certificate_target, _zoo_certificates, 8300),
    "csr": Target(csr, lambda: [*_CSRS, *map(pem_of, _CSRS)], MAX_CSR_BYTES + 8),
    "requested_node": Target(
        requested_node_target, lambda: [*map(pem_of, _CSRS), _NODE_CSR, _NODE_CSR + b"x"], MAX_CSR_BYTES
    ),
    "certificate_lint": Target(certificate_lint, lambda: [_OUR_CERTIFICATE, _OUR_CA.certificate], 2048),
    "vendor_crl": Target(vendor_crl, lambda: [LIST, LIST_DER], 8192),
    "snp_report": Target(snp_report, lambda: [*_SNP_REPORTS], 1184),
    "snp_cert_table": Target(snp_cert_table, lambda: [_SNP.cert_table()], 4096),
    "snp_vek": Target(snp_vek, lambda: [*_SNP_VEKS], 4096),
    "collateral_item": Target(
        collateral_item,
        lambda: [name.encode() + b"\0" + kept for name, kept in COLLATERAL.items()],
        16384,
    ),
    "dcap_quote": Target(dcap_quote, lambda: [*_INTEL_QUOTES_WHOLE], 8192),
    "tcb_info": Target(tcb_info_target, lambda: [_INTEL_COLLATERAL.tcb_info or b""], 8192),
    "enclave_identity": Target(enclave_identity, lambda: [_INTEL_COLLATERAL.qe_identity or b""], 2048),
    "dcap_collateral": Target(dcap_collateral, lambda: [collateral_json(_INTEL_COLLATERAL)], 16384),
    "pck_extension": Target(pck_extension, lambda: [_INTEL_EXTENSION], 1024),
    "pck_crl": Target(pck_crl, lambda: [*_INTEL_LISTS], 2048),
    "cc_log": Target(cc_log, lambda: [_CC_LOG], 4096),
    "revocation_list": Target(revocation_list, lambda: [OPERATORS.revoke(OPERATOR)], 8192),
    "event_log": Target(event_log_target, _event_logs, 8192),
    "ima_log": Target(
        ima_log_target,
        lambda: [_ima_list(), *_files("tpm2-tss/sml-ima*.bin", "ovmf/n1/sb-on/ima.bin")],
        4096,
    ),
    "audit_rows": Target(
        audit_rows,
        lambda: [f'x{MARK}[["vote","a/b",null,"{"0" * 32}"],["machine","c","{"1" * 32}",null]]'.encode()],
        2048,
    ),
    "service_key_memory": Target(
        service_key_memory,
        lambda: [json.dumps({"format": MEMORY_FORMAT, "keys": {"file:///k": "0" * 43}}).encode()],
        1024,
    ),
    "act_headers": Target(act_headers, lambda: [b'"5b0e8f4c-6d1a"', b"13000"], 256),
    "audit_memory": Target(audit_memory, lambda: [memory.serialise(_MEMORY)], 2048),
}
