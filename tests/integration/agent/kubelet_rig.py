"""A node that asks a Kubernetes API for its certificate, and somebody who decides there."""

from __future__ import annotations

import base64
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID

from tests.fixtures.kube import FakeKube, KubeAPI, RealKube

CSRS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
SECONDS = 60


class ClientCA:
    """A CA of clients that the test holds.

    Args:
        key: Its key, where it is that of a cluster.
        pem: Its certificate, likewise.
    """

    def __init__(self, key: Any = None, pem: bytes | None = None) -> None:
        self.now = datetime.now(UTC).replace(microsecond=0)
        self.key = key or ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name.from_rfc4514_string("CN=nodes")
        if pem is not None:
            self.name = x509.load_pem_x509_certificate(pem).subject
        self.pem = pem or self.issue(self.name, self.key.public_key(), ca=True)

    def issue(
        self, subject: x509.Name, public: Any, *, ca: bool = False, lifetime: timedelta = timedelta(days=1)
    ) -> bytes:
        """Return a certificate, PEM."""
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(self.now - timedelta(minutes=5))
            .not_valid_after(self.now + lifetime)
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        )
        if not ca:
            usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])
            builder = builder.add_extension(usage, critical=False)
        return builder.sign(self.key, hashes.SHA256()).public_bytes(Encoding.PEM)


def cluster_ca(kube: KubeAPI) -> ClientCA:
    """Return the CA whose clients *kube* believes."""
    if isinstance(kube, RealKube):
        folder = kube.cluster.folder
        key = load_pem_private_key((folder / "ca.key").read_bytes(), password=None)
        return ClientCA(key, (folder / "ca.crt").read_bytes())
    assert isinstance(kube, FakeKube)
    return ClientCA(kube.api.ca._key, kube.api.ca.pem)  # to sign as its in-tree signer would


def may_request(admin: httpx.Client, name: str, group: str) -> None:
    """Let *group* make and read requests, and nothing else, as the bootstrap identity may."""
    role = {
        "metadata": {"name": name},
        "rules": [
            {
                "apiGroups": ["certificates.k8s.io"],
                "resources": ["certificatesigningrequests"],
                "verbs": ["create", "get", "list", "watch"],
            }
        ],
    }
    binding = {
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": group}],
    }
    for kind, body in (("clusterroles", role), ("clusterrolebindings", binding)):
        answer = admin.post(f"{RBAC}/{kind}", json=body)
        assert answer.status_code in (201, 409), answer.text


class Decider:
    """Decides each request for a signer of its own, as approver and signer do together.

    Args:
        admin: May do anything.
        signer: Whose requests.
        ca: Signs.
    """

    def __init__(self, admin: httpx.Client, signer: str, ca: ClientCA) -> None:
        self._admin = admin
        self.signer = signer
        self._ca = ca
        self.verdict = "Approved"
        self.sign: Callable[[x509.CertificateSigningRequest], bytes] = lambda csr: ca.issue(
            csr.subject, csr.public_key()
        )
        self.seen: dict[str, dict[str, Any]] = {}

    @contextlib.contextmanager
    def deciding(self) -> Iterator[None]:
        """Decide until the end of the block."""
        ended = threading.Event()

        def run() -> None:
            while not ended.wait(0.05):
                self._round()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join(SECONDS)

    def _round(self) -> None:
        found = self._admin.get(CSRS, params={"fieldSelector": f"spec.signerName={self.signer}"}).json()
        for csr in found["items"]:
            if not csr["status"].get("conditions"):
                self._decide(csr)

    def _decide(self, csr: dict[str, Any]) -> None:
        name = csr["metadata"]["name"]
        self.seen[name] = csr
        csr["status"] = {
            "conditions": [
                {"type": self.verdict, "status": "True", "reason": "Tried", "message": "as the test says"}
            ]
        }
        answer = self._admin.put(f"{CSRS}/{name}/approval", json=csr)
        assert answer.status_code == 200, answer.text
        if self.verdict != "Approved":
            return
        made = answer.json()
        request = x509.load_pem_x509_csr(base64.b64decode(made["spec"]["request"]))
        made["status"]["certificate"] = base64.b64encode(self.sign(request)).decode()
        answer = self._admin.put(f"{CSRS}/{name}/status", json=made)
        assert answer.status_code == 200, answer.text

    def remove(self) -> None:
        """Remove all that was decided."""
        for name in self.seen:
            self._admin.delete(f"{CSRS}/{name}")


def eventually(found: Callable[[], object]) -> None:
    """Wait until *found* is true."""
    deadline = time.monotonic() + SECONDS
    while not found():
        assert time.monotonic() < deadline, "nothing came of it"
        time.sleep(0.02)


def file_of(path: Path, data: bytes) -> Path:
    """Write a file; return its path."""
    path.write_bytes(data)
    return path
