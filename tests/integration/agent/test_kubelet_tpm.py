"""The commands `kubelet …` with a software TPM: what the AK says of each kind of key, and a node behind its proxy."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import ssl
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Self

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding

from attestation.api import CertificateChallenge
from attestation.device import TPM, AKType, KeyType, NodeTPM, open_transport
from attestation.device.keys import external_key
from attestation.device.node import AK_TEMPLATES
from attestation.device.nv import read_nv, write_nv_file
from attestation.errors import DeviceError
from attestation.evidence import key_certification, node_csr
from attestation.evidence.key_certification import CertifiedKey, KeyMode, csr_binding
from attestation.tpm import parse_attest, parse_public
from attestation.wire import b64encode
from attestation_agent.exits import Exit, UsageError
from attestation_agent.kubelet import commands, kubeconfig, proxy
from attestation_agent.kubelet.commands import Node
from attestation_agent.kubelet.keys import spki_of, subject_of
from attestation_agent.kubelet.settings import load
from attestation_agent.state import KnownAs, State
from attestation_testing import SoftwareTPM
from tests.fixtures.kube import KubeAPI, kube, rest
from tests.fixtures.resource_manager import ResourceManager
from tests.fixtures.tpm import MakeTPM, Wiretap
from tests.integration.agent.kubelet_rig import Decider, cluster_ca, may_request
from tests.integration.agent.test_kubelet_proxy import Nginx
from tests.unit.agent.world import MACHINE_ID, Events
from tools.ports import free_port

__all__ = ["kube"]

pytestmark = pytest.mark.swtpm

SECONDS = 60
NONCE = bytes(range(32))
BINDING = bytes(reversed(range(32)))


# NodeTPM.certify_external


def judged(node: NodeTPM, key: ec.EllipticCurvePrivateKey) -> CertifiedKey:
    """Certify *key* and judge that as the service does."""
    made = node.certify_external(key, BINDING)
    return key_certification.verify(
        key_certification.parse(made.public, made.certify_info, made.signature),
        ak=parse_public(node.ak_public()),
        ek=parse_public(node.identify().ek_public),
        binding=BINDING,
        spki=spki_of(key.public_key()),
        modes=frozenset({KeyMode.EXTERNAL}),
    )


def test_a_software_key_is_certified_as_what_it_is(blank_tpm: SoftwareTPM) -> None:
    """`certified-external`; nothing stays loaded, and twenty in a row work."""
    with blank_tpm.node() as node:
        for _ in range(20):
            assert judged(node, ec.generate_private_key(ec.SECP256R1())).mode is KeyMode.EXTERNAL
        node.sign(node.create_signing_key(KeyType.ECC_P256), bytes(32))


def test_h_leading_zeros(blank_tpm: SoftwareTPM) -> None:
    """HSM §24 h: X or Y with a leading zero byte: coordinates have 32 bytes, and so has the public area its 88."""
    found: dict[str, int] = {}
    for d in range(1, 5000):
        point = ec.derive_private_key(d, ec.SECP256R1()).public_key().public_numbers()
        for name, value in (("x", point.x), ("y", point.y)):
            if value < 1 << 248:
                found.setdefault(name, d)
        if len(found) == 2:
            break
    with blank_tpm.node() as node:
        for d in found.values():
            key = ec.derive_private_key(d, ec.SECP256R1())
            assert len(external_key(key)[0]) == 2 + 88
            assert judged(node, key).mode is KeyMode.EXTERNAL


def test_the_private_part_does_not_cross_the_bus(blank_tpm: SoftwareTPM) -> None:
    """It goes to the TPM encrypted, in a session salted to the EK."""
    key = ec.generate_private_key(ec.SECP256R1())
    secret = key.private_numbers().private_value.to_bytes(32)
    wire = Wiretap(open_transport(blank_tpm.uri))
    with contextlib.closing(NodeTPM(TPM(wire))) as node:
        node.certify_external(key, BINDING)
    assert 0x167 in wire.codes, "TPM2_LoadExternal"
    assert not any(secret in command for command in wire.commands)


def test_another_curve_is_refused(blank_tpm: SoftwareTPM) -> None:
    """Before the TPM is asked."""
    with blank_tpm.node() as node, pytest.raises(DeviceError, match="secp384r1"):
        node.certify_external(ec.generate_private_key(ec.SECP384R1()), BINDING)


# The commands


class Challenges:
    """Stands for the service: gives challenges."""

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def certificate_challenge(self, machine_id: str, purpose: str) -> CertificateChallenge:
        """Give one."""
        assert (machine_id, purpose) == (MACHINE_ID, "node-csr")
        return CertificateChallenge.model_validate(
            {
                "nonce_id": os.urandom(16).hex(),
                "nonce": b64encode(NONCE),
                "expires_at": datetime.now(UTC) + timedelta(seconds=60),
                "pcr_selection": {"sha256": [0, 7]},
                "event_log": "accepted",
            }
        )


class Rig:
    """A node with its TPM, before a cluster."""

    def __init__(self, kube: KubeAPI, manager: ResourceManager, decider: Decider, directory: Path) -> None:
        self.kube = kube
        self.manager = manager
        self.decider = decider
        self.directory = directory
        self.events = Events()
        self.port = free_port()
        State(directory / "state").remember(
            KnownAs(machine_id=MACHINE_ID, ek_fingerprint="0" * 96), at=datetime.now(UTC)
        )

    def node(self, command: str, **more: str) -> Node:
        """Return the node, as a command sees it."""
        flags = {
            "server_url": "https://attest.example",
            "tpm": self.manager.uri,
            "bootstrap_kubeconfig": str(self.kube.kubeconfig("bootstrap")),
            "kubelet_dir": str(self.directory / "node"),
            "state_dir": str(self.directory / "state"),
            "node_name": "w-1",
            "signer_name": self.decider.signer,
            "client_ca_file": str(self.directory / "ca.pem"),
            "listen": f"127.0.0.1:{self.port}",
            **more,
        }

        def wait(seconds: float) -> bool:
            time.sleep(min(seconds, 0.05))
            return False

        return Node(load(command, flags, {}), log=self.events, wait=wait)

    def leaf(self) -> x509.Certificate:
        """The certificate that the node has."""
        return x509.load_pem_x509_certificate((self.directory / "node" / "node.pem").read_bytes())

    def containers(self) -> list[node_csr.UnverifiedContainer]:
        """What was asked for, read as the service reads it."""
        import base64

        return [
            node_csr.parse(base64.b64decode(csr["spec"]["request"])) for csr in self.decider.seen.values()
        ]


@pytest.fixture
def rig(kube: KubeAPI, make_tpm: MakeTPM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    """A node whose requests are approved and signed by the cluster's CA."""
    monkeypatch.setattr(commands, "NodeClient", Challenges)
    ca = cluster_ca(kube)
    (tmp_path / "ca.pem").write_bytes(ca.pem)
    tpm = make_tpm()
    with rest(kube) as admin, ResourceManager(tpm.uri, tmp_path / "rm") as manager:
        may_request(admin, "test-kubelet-bootstrap", "system:bootstrappers")
        decider = Decider(admin, f"attestation.itl.io/tpm-{os.getpid()}-{free_port()}", ca)
        try:
            with decider.deciding():
                yield Rig(kube, manager, decider, tmp_path)
        finally:
            decider.remove()


@pytest.mark.parametrize("command", ["proxy", "bootstrap"])
def test_the_evidence_of_each_way(rig: Rig, command: str) -> None:
    """Certified by the AK for this request and challenge, with a quote over the challenge; the mode is what it is."""
    node = rig.node(command)
    assert (node.proxy if command == "proxy" else node.bootstrap)(stay=False) == Exit.OK
    (container,) = rig.containers()
    assert container.public is not None
    assert container.attest is not None
    csr = x509.load_der_x509_csr(container.csr_der)
    with NodeTPM.open(rig.manager.uri) as tpm:
        claims = key_certification.verify(
            key_certification.parse(container.public, container.attest, container.signature),
            ak=parse_public(tpm.ak_public()),
            ek=parse_public(tpm.identify().ek_public),
            binding=csr_binding(NONCE, csr.tbs_certrequest_bytes),
            spki=spki_of(csr.public_key()),
            modes=frozenset({KeyMode.EXTERNAL, KeyMode.RESIDENT}),
        )
    assert claims.mode is (KeyMode.RESIDENT if command == "proxy" else KeyMode.EXTERNAL)
    assert container.quote is not None
    assert parse_attest(container.quote).extra_data == NONCE
    assert rig.leaf().subject == subject_of("w-1")


@pytest.mark.nginx
@pytest.mark.slow
def test_a_node_behind_its_proxy(rig: Rig) -> None:
    """From nothing to kubelet's requests, answered by the API server as those of this node, by a key of its TPM."""
    assert rig.node("proxy").proxy(stay=False) == Exit.OK
    directory = rig.directory / "node"
    nginx = Nginx(directory, rig.manager, rig.port)
    try:
        found = kubeconfig.load(directory / "kubelet.conf")
        context = ssl.create_default_context(cadata=found.cluster.ca_pem.decode("ascii"))
        context.load_cert_chain(directory / proxy.LOCAL)
        kubelet = http.client.HTTPSConnection("127.0.0.1", rig.port, timeout=SECONDS, context=context)
        with contextlib.closing(kubelet):
            seen = []
            for path in ("/api/v1/nodes/w-1", "/api/v1/namespaces/kube-system/secrets/x"):
                kubelet.request("GET", path)
                answer = kubelet.getresponse()
                seen.append((answer.status, json.loads(answer.read())))
            assert [status for status, _ in seen] == [404, 403], (seen, nginx.log.read_text())
            assert 'User "system:node:w-1"' in seen[1][1]["message"].replace("user ", "User ")
        # A watch: the answer begins before anything happens, and tells what happens then.
        kubelet = http.client.HTTPSConnection("127.0.0.1", rig.port, timeout=SECONDS, context=context)
        with contextlib.closing(kubelet), rest(rig.kube) as admin:
            kubelet.request(
                "GET", "/api/v1/nodes?watch=1&timeoutSeconds=30&fieldSelector=metadata.name%3Dw-1"
            )
            answer = kubelet.getresponse()
            assert answer.status == 200
            made = admin.post("/api/v1/nodes", json={"metadata": {"name": "w-1"}})
            assert made.status_code == 201, made.text
            try:
                event = json.loads(answer.readline())
                assert (event["type"], event["object"]["metadata"]["name"]) == ("ADDED", "w-1")
            finally:
                admin.delete("/api/v1/nodes/w-1")
    finally:
        nginx.stop()


def test_a_cleared_tpm_gets_another_key(rig: Rig) -> None:
    """The TPM does not know the key any more: said, and another certificate got at the next start."""
    rig.node("proxy").proxy(stay=False)
    first = rig.leaf()
    rig.node("proxy").proxy(stay=False)
    assert rig.leaf() == first
    from attestation.tpm import commands as tpm_commands
    from attestation.tpm.constants import Hierarchy
    from attestation.tpm.sessions import Password

    with contextlib.closing(TPM.open(rig.manager.uri)) as tpm:
        tpm.execute(tpm_commands.clear(Hierarchy.PLATFORM), Password())
    rig.node("proxy").proxy(stay=False)
    assert rig.leaf().public_key() != first.public_key()
    assert "kubelet.key_lost" in str(rig.events.entries)


def test_a_copy_in_nv_memory(rig: Rig) -> None:
    """Readable by everybody, replaced at each renewal; a TPM that has no room changes nothing."""
    index = 0x01800010
    rig.node("bootstrap", store=f"nv:{index:#x}").bootstrap(stay=False)

    def stored() -> bytes | None:
        with contextlib.closing(TPM.open(rig.manager.uri)) as tpm:
            return read_nv(tpm, index, 2048)

    assert stored() == rig.leaf().public_bytes(Encoding.DER)
    (rig.directory / "node" / "node.pem").unlink()
    rig.node("bootstrap", store=f"nv:{index:#x}").bootstrap(stay=False)
    assert stored() == rig.leaf().public_bytes(Encoding.DER)
    assert len(rig.decider.seen) == 2
    assert "kubelet.nv_failed" not in str(rig.events.entries)


def test_an_ak_of_a_template_in_nv(rig: Rig) -> None:
    """`--ak-template-index`: the AK that certifies is the one that the template derives; and no other."""
    index, absent = 0x01800020, "0x01800021"
    with contextlib.closing(TPM.open(rig.manager.uri)) as tpm:
        write_nv_file(tpm, index, AK_TEMPLATES[AKType.ECC_P384])
    rig.node("bootstrap", ak_template_index=f"{index:#x}").bootstrap(stay=False)
    (container,) = rig.containers()
    assert container.public is not None
    assert container.attest is not None
    assert container.signature is not None
    parsed = key_certification.parse(container.public, container.attest, container.signature)
    with NodeTPM.open(rig.manager.uri, ak=AKType.ECC_P384) as node:
        assert parsed.attest.qualified_signer != b""
        key_certification.verify(
            parsed,
            ak=parse_public(node.ak_public()),
            ek=parse_public(node.identify().ek_public),
            binding=csr_binding(NONCE, x509.load_der_x509_csr(container.csr_der).tbs_certrequest_bytes),
            spki=parsed.spki,
            modes=frozenset({KeyMode.EXTERNAL}),
        )
    (rig.directory / "node" / "node.pem").unlink()
    with pytest.raises(UsageError, match="holds nothing"):
        rig.node("bootstrap", ak_template_index=absent).bootstrap(stay=False)


def test_an_ak_certificate_in_nv(rig: Rig) -> None:
    """`--ak-certificate-index`: with the certificate of another key nothing is asked for."""
    good, other = 0x01800030, 0x01800031
    ca = cluster_ca(rig.kube)
    with NodeTPM.open(rig.manager.uri) as node:
        ak = parse_public(node.ak_public()).key()
    keys = {good: ak, other: ec.generate_private_key(ec.SECP256R1()).public_key()}
    with contextlib.closing(TPM.open(rig.manager.uri)) as tpm:
        for index, key in keys.items():
            pem = ca.issue(subject_of("ak"), key)
            der = x509.load_pem_x509_certificate(pem).public_bytes(Encoding.DER)
            # As TPMs have it: longer than what is in it.
            write_nv_file(tpm, index, der + bytes(50))
    with pytest.raises(UsageError, match="another key"):
        rig.node("bootstrap", ak_certificate_index=f"{other:#x}").bootstrap(stay=False)
    assert rig.decider.seen == {}
    assert rig.node("bootstrap", ak_certificate_index=f"{good:#x}").bootstrap(stay=False) == Exit.OK
