"""Operators' certificates from the service's own CA, with real programs around it: TLS of its own, nginx, OpenSSL."""

from __future__ import annotations

import base64
import ssl
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA1, SHA384
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509 import ocsp

from attestation.pki.issuer import identity_of
from attestation.pki.ocsp import issuer_hashes
from tests.docs.pages import ROOT
from tests.fixtures.nginx import Nginx
from tests.fixtures.operator_pki import OperatorCA
from tests.fixtures.service import ServiceProcess
from tools.ports import free_port

pytestmark = pytest.mark.slow

SECRET = "proxy-secret-of-more-than-32-characters"
PATH = "/api/v1/operator-certificates"
PATIENCE_SECONDS = 60


def request_for(directory: Path, name: str, **more: Any) -> dict[str, Any]:
    """Make a key in `<name>-key.pem`, and return the body of a request for it."""
    key = ec.generate_private_key(ec.SECP384R1())
    plain = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (directory / f"{name}-key.pem").write_bytes(plain)
    csr = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, SHA384())
    pem = csr.public_bytes(Encoding.PEM).decode()
    return {"csr_pem": pem, "name": name, "duty": "operator", **more}


def keep(directory: Path, name: str, answer: httpx.Response) -> str:
    """Write the certificate in *answer* to `<name>.pem`; return its serial."""
    assert answer.status_code == 201, answer.text
    found = answer.json()
    (directory / f"{name}.pem").write_text(found["certificate_pem"] + found["chain_pem"])
    serial: str = found["serial"]
    return serial


@contextmanager
def running(directory: Path, **changed: Any) -> Iterator[ServiceProcess]:
    """Run a service until the block ends."""
    environment = {
        "ITL_ENROLLMENT_CA_UNENCRYPTED": "true",
        "ITL_OPERATOR_CERTIFICATES": "true",
        "ITL_MAINTENANCE_SECONDS": "1",
        **changed.pop("environment", {}),
    }
    service = ServiceProcess(directory=directory, workers=2, environment=environment, **changed)
    directory.mkdir(exist_ok=True)
    try:
        service.start()
        yield service
    finally:
        service.stop()


def openssl(directory: Path, *arguments: str) -> str:
    """Run OpenSSL and return everything that it said."""
    done = subprocess.run(
        ["openssl", *arguments], cwd=directory, capture_output=True, text=True, timeout=240, check=False
    )
    return done.stdout + done.stderr


@pytest.mark.nginx
@pytest.mark.parametrize("algorithm", ["ecdsa-p384", "rsa-4096"])
def test_nginx_and_openssl_follow_the_addresses(tmp_path: Path, algorithm: str) -> None:
    """They find list, responder and CA by the certificate, let its holder in, and no longer once it is revoked."""
    bootstrap = OperatorCA(datetime.now(UTC).replace(microsecond=0))
    bob = bootstrap.issue("bob")
    (tmp_path / "bootstrap.pem").write_bytes(bootstrap.pem)
    plain_port = free_port()
    environment = {
        "ITL_ENROLLMENT_CA_ALGORITHM": algorithm,
        "ITL_OPERATOR_CA": str(tmp_path / "bootstrap.pem"),
        "ITL_TRUSTED_PROXIES": "127.0.0.0/8",
        "ITL_PROXY_SECRET": SECRET,
        "ITL_PKI_URL": f"http://127.0.0.1:{plain_port}",
        "ITL_OCSP_VALID_SECONDS": "10",
    }
    with running(tmp_path / "service", environment=environment) as service:
        headers = {"Itl-Proxy-Secret": SECRET, "X-Client-Cert": quote(bob.pem.decode(), safe="")}
        people = httpx.Client(base_url=service.url, headers=headers, timeout=60)
        serial = keep(tmp_path, "carla", people.post(PATH, json=request_for(tmp_path, "carla")))
        ca = people.get("/pki/ca", params={"purpose": "operator"}).content
        (tmp_path / "ca.pem").write_bytes(ca)
        leaf = x509.load_pem_x509_certificate((tmp_path / "carla.pem").read_bytes())
        access = leaf.extensions.get_extension_for_class(x509.AuthorityInformationAccess).value
        (issuers,) = [
            each.access_location.value for each in access if each.access_method._name == "caIssuers"
        ]
        (address,) = openssl(tmp_path, "x509", "-in", "carla.pem", "-noout", "-ocsp_uri").split()
        verify = ["verify", "-crl_check", "-crl_download", "-x509_strict", "-purpose", "sslclient"]
        verify += ["-CAfile", "ca.pem", "carla.pem"]
        asked = [
            f"ocsp -issuer ca.pem -{digest} -cert carla.pem -url {address} -CAfile ca.pem {nonce}".split()
            for digest in ("sha1", "sha256")
            for nonce in ("-nonce", "-no_nonce")
        ]
        nginx = nginx_before(service, tmp_path, plain_port)

        def through_nginx() -> int:
            context = ssl.create_default_context(cafile=tmp_path / "servers.pem")
            context.load_cert_chain(tmp_path / "carla.pem", tmp_path / "carla-key.pem")
            with httpx.Client(base_url=nginx.url, verify=context, timeout=60) as client:
                return client.get("/api/v1/machines").status_code

        with nginx:
            found = httpx.get(issuers, timeout=60)
            assert x509.load_der_x509_certificate(found.content) == x509.load_pem_x509_certificate(ca)
            assert httpx.get(f"http://127.0.0.1:{plain_port}/pki/bundle", timeout=60).status_code == 404, (
                "by TLS only"
            )
            assert through_nginx() == 200
            assert "carla.pem: OK" in openssl(tmp_path, *verify)
            for question in asked:
                said = openssl(tmp_path, *question)
                assert "Response verify OK" in said, said
                assert "carla.pem: good" in said
                assert "WARNING: no nonce" not in said
            answer = people.post(f"{PATH}/{serial}/revoke", json={"reason": "keyCompromise"})
            assert answer.status_code == 200, answer.text
            assert through_nginx() == 400, "nginx itself refuses; we would say 401"
            assert "certificate revoked" in openssl(tmp_path, *verify)
            for question in asked:
                said = openssl(tmp_path, *question)
                assert "Response verify OK" in said, said
                assert "carla.pem: revoked" in said
                assert "Reason: keyCompromise" in said
            # By GET too, with slashes side by side in the base64, as they come.
            for path in slashed(ca, serial):
                status = httpx.get(f"http://127.0.0.1:{plain_port}/pki/ocsp/{path}", timeout=60)
                assert ocsp.load_der_ocsp_response(status.content).response_status.name == "SUCCESSFUL", path
        people.close()


def slashed(ca: bytes, serial: str) -> list[str]:
    """Return requests whose base64 has two slashes side by side; which does is luck, so the nonce is tried."""
    leaf = x509.load_pem_x509_certificate(ca)
    digest = SHA1()
    hashes = issuer_hashes(identity_of(leaf.public_bytes(Encoding.DER)))["sha1"]
    builder = ocsp.OCSPRequestBuilder().add_certificate_by_hash(*hashes, int(serial, 16), digest)
    found = []
    for number in range(2000):
        nonce = x509.OCSPNonce(b"\xff\xff\xff" + number.to_bytes(4) + b"\xff\xff\xff\xff")
        data = builder.add_extension(nonce, critical=False).build().public_bytes(Encoding.DER)
        text = base64.b64encode(data).decode()
        if "//" in text:
            found.append(text)
        if len(found) == 3:
            break
    assert found
    return found


def nginx_before(service: ServiceProcess, directory: Path, plain_port: int) -> Nginx:
    """Return nginx as we ship it, asking OCSP for clients, with the documented server for addresses without TLS."""
    tls = OperatorCA(datetime.now(UTC).replace(microsecond=0), "Servers")
    certificate, key = tls.server("attest.example.test").files(directory, "tls")
    (directory / "servers.pem").write_bytes(tls.pem)
    (directory / "nginx").mkdir()
    nginx = Nginx(
        directory / "nginx",
        upstream=f"127.0.0.1:{service.port}",
        certificate=certificate,
        key=key,
        operator_ca=directory / "ca.pem",
        secret=SECRET,
        changed={"ssl_verify_client optional;": "ssl_verify_client on; ssl_ocsp leaf; ssl_verify_depth 2;"},
    )
    page = (ROOT / "docs/operate/revocation.md").read_text(encoding="utf-8")
    plain = page.partition("```nginx\n")[2].partition("```")[0]
    plain = plain.replace("listen 80;", f"listen 127.0.0.1:{plain_port};")
    text = nginx.configuration.read_text(encoding="utf-8").rstrip()
    assert text.endswith("}")
    nginx.configuration.write_text(f"{text[:-1]}\n{plain}\n}}\n", encoding="utf-8")
    return nginx


def test_tls_of_the_service_asks_for_its_own_certificates(tmp_path: Path) -> None:
    """Carla comes by TLS; so does Dave after a rotation, without a restart; revoked, he is out in mid-connection."""
    now = datetime.now(UTC).replace(microsecond=0)
    bootstrap, servers = OperatorCA(now), OperatorCA(now, "Servers")
    bob, mallory = bootstrap.issue("bob"), OperatorCA(now, "Others").issue("mallory")
    (tmp_path / "bootstrap.pem").write_bytes(bootstrap.pem)
    (tmp_path / "servers.pem").write_bytes(servers.pem)
    certificate, key = servers.server("attest.example.test").files(tmp_path, "tls")
    for name, issued in (("bob", bob), ("mallory", mallory)):
        issued.files(tmp_path, name)
    own = {
        "ITL_TLS_CERT_FILE": str(certificate),
        "ITL_TLS_KEY_FILE": str(key),
        "ITL_AUDIT_ORIGIN": "attest.example/audit",
    }

    def client(service: ServiceProcess, name: str) -> httpx.Client:
        context = ssl.create_default_context(cafile=tmp_path / "servers.pem")
        context.load_cert_chain(tmp_path / f"{name}.pem", tmp_path / f"{name}-key.pem")
        return httpx.Client(base_url=service.url, verify=context, timeout=60)

    def status(service: ServiceProcess, name: str) -> int:
        with client(service, name) as person:
            return person.get("/api/v1/machines").status_code

    # The first certificate is asked for by somebody whom another CA certified.
    first = {**own, "ITL_OPERATOR_CA": str(tmp_path / "bootstrap.pem")}
    with running(tmp_path / "service", environment=first, trust=tmp_path / "servers.pem") as service:
        with client(service, "bob") as person:
            keep(tmp_path, "carla", person.post(PATH, json=request_for(tmp_path, "carla")))
        assert [status(service, "carla") for _ in range(4)] == [200] * 4
        with pytest.raises(httpx.HTTPError):
            status(service, "mallory")
    # From then on the service needs no other CA.
    with running(tmp_path / "service", environment=own, trust=tmp_path / "servers.pem") as service:
        with client(service, "carla") as carla:
            assert carla.get("/api/v1/machines").status_code == 200
            for step in ("prepare", "activate"):
                body = {"step": step, "purpose": "operator", "reason": "drill", "force": True}
                answer = carla.post("/api/v1/ca/rotation", json=body)
                assert answer.status_code == 200, answer.text
            dave = keep(tmp_path, "dave", carla.post(PATH, json=request_for(tmp_path, "dave")))
            assert _eventually(lambda: status(service, "dave") == 200), service.log()
            assert status(service, "carla") == 200, "her key retires, and is believed on"
            with client(service, "dave") as person:
                assert person.get("/api/v1/machines").status_code == 200
                assert carla.post(f"{PATH}/{dave}/revoke", json={}).status_code == 200
                assert person.get("/api/v1/machines").status_code == 401
        with pytest.raises(httpx.HTTPError):
            status(service, "bob")


def _eventually(holds: Any) -> bool:
    """Try until it holds; a handshake that is refused is a no."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        try:
            if holds():
                return True
        except httpx.HTTPError:
            pass
        time.sleep(0.3)
    return False
