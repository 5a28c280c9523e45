"""ACME clients of others, and ours of `device-attest-01`, get certificates from a running service.

`lego` is Debian's, `acme` is certbot's own library. Ours is written from the draft alone, apart from the server
(`tests.fixtures.acme_client`); its key is in swtpm.
"""

from __future__ import annotations

import asyncio
import base64
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from acme import challenges, client, messages
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from josepy.jwa import ES256
from josepy.jwk import JWKEC

from attestation.device import NodeTPM
from attestation_agent.tpm_keys import make_request
from attestation_testing import SoftwareNode, SoftwareTPM
from tests.fixtures.acme_client import (
    Certify,
    Client,
    Problem,
    csr_for,
    external_binding,
    permanent_identifier,
)
from tests.fixtures.machine import Machine
from tests.fixtures.service import Operator, ServiceProcess, StartService, start_service
from tools.ports import free_port

__all__ = ["start_service"]  # a fixture

NAME: Final = "localhost"
"""What a machine is called that everybody reaches here."""


@pytest.fixture(scope="module")
def http_port() -> int:
    """Where the clients answer http-01."""
    return free_port()


@pytest.fixture(scope="module")
def acme_service(start_service: StartService, http_port: int) -> ServiceProcess:
    """A service with ACME, that may look at this computer."""
    return start_service(
        ITL_ENROLLMENT_CA_UNENCRYPTED="true",
        ITL_ACME="bound",
        ITL_ACME_HTTP_NETWORKS="127.0.0.0/8,::1/128",
        ITL_ACME_HTTP_PORT=str(http_port),
    )


@pytest.fixture(scope="module")
def operator(acme_service: ServiceProcess) -> Iterator[Operator]:
    """Its operator."""
    found = acme_service.operator()
    yield found
    found.http.close()


@pytest.fixture(scope="module")
def called(http: httpx.Client, operator: Operator) -> Machine:
    """A machine that is called `NAME`."""
    machine = Machine(SoftwareNode(1), http)
    machine.admitted(operator, hostname=NAME)
    return machine


@pytest.fixture(scope="module")
def http(acme_service: ServiceProcess) -> Iterator[httpx.Client]:
    """A way to it."""
    with httpx.Client(base_url=acme_service.url, timeout=60) as found:
        yield found


def key_of(operator: Operator, **members: str) -> dict[str, Any]:
    """Make a key for an account."""
    found: dict[str, Any] = operator.call("POST", "/acme/keys", json=members)
    return found


def is_server_certificate(certificates: list[x509.Certificate], http: httpx.Client, machine: Machine) -> None:
    """Check what a client got: for the host name, of this CA, about this machine."""
    leaf = certificates[0]
    (root,) = x509.load_pem_x509_certificates(http.get("/pki/ca").content)
    leaf.verify_directly_issued_by(root)
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == [NAME]
    assert names.get_values_for_type(x509.IPAddress) == []
    (common,) = leaf.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
    assert common.value == machine.machine_id


def test_lego_gets_a_certificate(
    acme_service: ServiceProcess,
    http: httpx.Client,
    operator: Operator,
    called: Machine,
    http_port: int,
    tmp_path: Path,
) -> None:
    """Debian's client, as the page says it: account, order, http-01, certificate; then it revokes it."""
    program = shutil.which("lego")
    assert program, "lego is not installed; ./dev test brings it"
    made = key_of(operator, machine_id=called.machine_id)

    def lego(*command: str) -> None:
        done = subprocess.run(
            [
                *(program, "--path", str(tmp_path), "--server", f"{acme_service.url}/acme/directory"),
                *("--email", "ops@example.test", "--accept-tos", "--domains", NAME),
                *("--eab", "--kid", made["key_id"], "--hmac", made["hmac_key"]),
                *("--http", "--http.port", f":{http_port}", *command),
            ],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr + acme_service.log()

    lego("run")
    found = x509.load_pem_x509_certificates((tmp_path / f"certificates/{NAME}.crt").read_bytes())
    is_server_certificate(found, http, called)
    lego("revoke")
    # Other clients revoke here, too.
    revoked = operator.call("GET", "/ca/certificates", params={"state": "revoked"})["items"]
    assert f"{found[0].serial_number:040x}" in {row["serial"] for row in revoked}


@contextmanager
def answering(port: int, path: str, text: str) -> Iterator[None]:
    """Answer http-01 on *port*."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == path else 404)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_certbot_s_library_gets_a_certificate(
    acme_service: ServiceProcess, http: httpx.Client, operator: Operator, called: Machine, http_port: int
) -> None:
    """PyPI's `acme`, which polls as RFC 8555 has it; a new key for the account, and the account's end."""
    made = key_of(operator, machine_id=called.machine_id)
    key = JWKEC(key=ec.generate_private_key(ec.SECP256R1()))
    net = client.ClientNetwork(key, alg=ES256, user_agent="tests")
    directory = client.ClientV2.get_directory(f"{acme_service.url}/acme/directory", net)
    there = client.ClientV2(directory, net)
    binding = messages.ExternalAccountBinding.from_data(
        account_public_key=key.public_key(),
        kid=made["key_id"],
        hmac_key=made["hmac_key"],
        directory=directory,
    )
    account = there.new_account(
        messages.NewRegistration.from_data(
            email="ops@example.test", terms_of_service_agreed=True, external_account_binding=binding
        )
    )
    leaf = ec.generate_private_key(ec.SECP384R1())
    request = x509.load_der_x509_csr(csr_for(leaf, x509.DNSName(NAME))).public_bytes(Encoding.PEM)
    order = there.new_order(request)
    (body,) = [
        each for each in order.authorizations[0].body.challenges if isinstance(each.chall, challenges.HTTP01)
    ]
    response, validation = body.response_and_validation(key)
    with answering(http_port, body.path, validation):
        there.answer_challenge(body, response)
        done = there.poll_and_finalize(order)
    found = x509.load_pem_x509_certificates(done.fullchain_pem.encode())
    is_server_certificate(found, http, called)
    assert found[0].public_key() == leaf.public_key()
    there.revoke(found[0], 4)
    there.deactivate_registration(account)
    net.session.close()


@pytest.mark.swtpm
def test_a_key_in_a_tpm_gets_a_certificate(
    acme_service: ServiceProcess, http: httpx.Client, operator: Operator, software_tpm: SoftwareTPM
) -> None:
    """From the draft: the TPM certifies its key for token and account; a key in a file gets nothing."""
    with NodeTPM.open(software_tpm.uri) as tpm:
        machine = Machine(tpm, http)
        machine.admitted(operator)
        made = key_of(operator, machine_id=machine.machine_id)
        key = machine.keys.create_signing_key()

        def certify(digest: bytes) -> dict[str, Any]:
            said = machine.keys.certify_key(key, digest)
            # COSE's name for what the AK signs with, from the head of TPMT_SIGNATURE.
            cose = {"0018000b": -7, "0018000c": -35, "0014000b": -257}[said.signature[:4].hex()]
            return {
                "alg": cose,
                "sig": said.signature,
                "certInfo": said.certify_info,
                "pubArea": key.public[2:],
            }

        csr = make_request(machine.keys, key, machine.machine_id).public_bytes(Encoding.DER)
        asyncio.run(_by_device_attest(acme_service, machine, made, certify, csr))


async def _by_device_attest(
    service: ServiceProcess, machine: Machine, made: dict[str, Any], certify: Certify, csr: bytes
) -> None:
    async with httpx.AsyncClient(base_url=service.url) as http:
        there = Client(http, f"{service.url}/acme/directory")
        await there.begin()
        secret = base64.urlsafe_b64decode(made["hmac_key"] + "=" * (-len(made["hmac_key"]) % 4))
        binding = external_binding(there.key, there.directory["newAccount"], made["key_id"], secret)
        await there.register(externalAccountBinding=binding)
        _, order = await there.order(machine.machine_id)
        assert (await there.attest(order, certify))["status"] == "valid"
        stolen = ec.generate_private_key(ec.SECP256R1())
        with pytest.raises(Problem) as told:
            await there.finalize(order, csr_for(stolen, permanent_identifier(machine.machine_id)))
        assert told.value.kind == "badCSR"
        done = await there.finalize(order, csr)
        leaf, *_ = await there.download(done)
        wanted = x509.load_der_x509_csr(csr).public_key()
        as_spki = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        assert leaf.public_key().public_bytes(*as_spki) == wanted.public_bytes(*as_spki)
        (common,) = leaf.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
        assert common.value == machine.machine_id
