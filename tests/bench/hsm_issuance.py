"""Certificates from a CA key on SoftHSM over Kubernetes: the real API server, controller and service as programs.

Each certificate is a CertificateRequest that is there and approved when the controller starts: two writes to its
status, a serial number and the certificate in the service's log (SQLite, durable), a rehearsal, one signature. All of
it, and the load, on the same cores: so the CPU of each program for one certificate is told too.
"""

from __future__ import annotations

import base64
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from tests.bench import fleet
from tests.bench.report import Measurement
from tests.bench.server import cpu_seconds
from tools.kubernetes import Cluster, KubernetesMissing, programs
from tools.ports import free_port
from tools.stage_hsm import PIN_SECRET, REQUESTS, SERVICE_ACCOUNTS, TOKEN, Hsm, place, ready_of
from tools.stage_kubernetes import clusters_setting

COUNT: Final = int(os.environ.get("BENCH_HSM_COUNT", "1000"))
SINGLE: Final = 40
BAR_PER_SECOND: Final = 100
BAR_MILLISECONDS: Final = 150
ISSUER: Final = "bench-ca"
PROGRAMS: Final = {
    "controller": "attestation-operator",
    "service": "attestation_service.main",
    "API server": "kube-apiserver",
    "etcd": "etcd",
}


def measure() -> Iterator[Measurement]:
    """Measure many at once, then one at a time."""
    try:
        programs()
    except KubernetesMissing:
        return
    with tempfile.TemporaryDirectory() as folder, fleet.directory() as data:
        cluster_folder = Path(folder, "cluster")
        cluster_folder.mkdir()
        cluster = Cluster(cluster_folder, free_port)
        setting = clusters_setting(cluster, service_accounts=SERVICE_ACCOUNTS)
        passphrase = data / "passphrase"
        passphrase.write_text("a passphrase of the benchmark\n")
        with (
            cluster,
            fleet.service(
                data,
                1,
                ITL_KUBERNETES_CLUSTERS=setting,
                ITL_ENROLLMENT_CA_PASSPHRASE_FILE=str(passphrase),
            ) as service,
        ):
            hsm = Hsm(Path(folder, "programs"), cluster, f"http://127.0.0.1:{service.port}", free_port)
            hsm.directory.mkdir()
            hsm.make_token()
            hsm.install()
            _prepare(hsm)
            try:
                yield from _many(hsm)
                yield _one_by_one(hsm)
            finally:
                hsm.stop()


def _prepare(hsm: Hsm) -> None:
    """Have the CA made, and the controller ended again."""
    hsm.start_controller()
    secret, member = PIN_SECRET
    token = {"module": "softhsm", "tokenLabel": TOKEN, "pinSecretRef": {"name": secret, "key": member}}
    hsm.create("HardwareSecurityModule", "hardwaresecuritymodules", TOKEN, token)
    spec = {"hsmRef": {"name": TOKEN}, "mode": "SelfSigned", "subject": {"commonName": "Bench CA"}}
    hsm.create("HsmClusterIssuer", "hsmclusterissuers", ISSUER, spec)
    hsm.ready(place("hsmclusterissuers"), ISSUER, "Checked")
    hsm.stop()


def _asked(hsm: Hsm, name: str) -> None:
    """Create a request."""
    key = ec.generate_private_key(ec.SECP256R1())
    request = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{name}.example")]))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(f"{name}.example")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    hsm.request(
        name,
        {
            "issuerRef": {"name": ISSUER, "kind": "HsmClusterIssuer", "group": "attestation.itl.io"},
            "request": base64.b64encode(request.public_bytes(Encoding.PEM)).decode(),
            "usages": ["digital signature", "server auth"],
            "duration": "24h",
            "username": "bench",
        },
    )


def _many(hsm: Hsm) -> Iterator[Measurement]:
    """Start the controller with all requests there, and wait until each is issued."""

    def begin(number: int) -> None:
        _asked(hsm, f"many-{number}")
        hsm.decide(f"many-{number}", "Approved")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(begin, range(COUNT)))
    hsm.start_controller()
    while not _issued(hsm):
        time.sleep(0.1)
    before, had, begun = _cpu(), _issued(hsm), time.perf_counter()
    while (have := _issued(hsm)) < COUNT:
        time.sleep(2)  # a list of all of them is work for the API server too
    seconds, made = time.perf_counter() - begun, have - had
    used = {name: (cpu - before[name]) / made * 1e3 for name, cpu in _cpu().items()}
    each = ", ".join(f"{name} {value:.1f}" for name, value in used.items())
    per_second = made / seconds
    yield Measurement(
        name="hsm-issuance",
        value=per_second,
        unit="/s",
        bar=f">= {BAR_PER_SECOND}/s",
        ok=per_second >= BAR_PER_SECOND,
        note=f"{made} CertificateRequests at kube-apiserver 1.20.2, one worker of the service on SQLite; ms of CPU for "
        f"one certificate: {each}",
    )
    yield Measurement(
        name="hsm-issuance-cpu",
        value=sum(used.values()),
        unit="ms of CPU",
        bar="<= 20: two cores for 100/s",
        ok=sum(used.values()) <= 20,
        note="for one certificate, all four programs",
    )


def _one_by_one(hsm: Hsm) -> Measurement:
    """Ask for one at a time; from the approval until the condition is there."""
    took = []
    for number in range(SINGLE):
        name = f"one-{number}"
        _asked(hsm, name)
        begun = time.perf_counter()
        hsm.decide(name, "Approved")
        while ready_of(hsm.cluster.ask(f"{REQUESTS}/{name}")).get("reason") != "Issued":
            time.sleep(0.002)
        took.append((time.perf_counter() - begun) * 1e3)
    p50 = statistics.median(took)
    return Measurement(
        name="hsm-issuance-p50",
        value=p50,
        unit="ms",
        bar=f"<= {BAR_MILLISECONDS} ms",
        ok=p50 <= BAR_MILLISECONDS,
        note=f"from the approval of one request until it is Issued, no other request; the slowest of {SINGLE}: "
        f"{max(took):.0f} ms",
    )


def _issued(hsm: Hsm) -> int:
    items = hsm.cluster.ask(REQUESTS)["items"]
    return sum(ready_of(each).get("reason") == "Issued" for each in items)


def _cpu() -> dict[str, float]:
    """Return the CPU time of each program so far."""
    return {name: cpu_seconds(_pids(word)) for name, word in PROGRAMS.items()}


def _pids(word: str) -> list[int]:
    """Return our descendants whose program or module is *word*."""
    found, ours = [], [os.getpid()]
    for pid in ours:
        with suppress(OSError):
            for task in Path(f"/proc/{pid}/task").iterdir():
                ours += [int(each) for each in (task / "children").read_text().split()]
            parts = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            if any(part == word or part.endswith(f"/{word}") for part in parts[:3]):
                found.append(pid)
    return found


if __name__ == "__main__":
    for each in measure():
        print(json.dumps({"name": each.name, "value": each.value, "note": each.note}), flush=True)
