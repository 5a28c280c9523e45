"""The second half of `./dev run --kubernetes --hsm`: a CA key is handed to an enclave that has proven itself.

The enclave is software, of the test kit (`tools/software_enclave.py`); all else is what is shipped: the controller, the
service that judges, and `attestation hsm wrap`, by which an administrator judges once more and wraps the key.
"""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from cryptography.x509.oid import NameOID

from attestation.client import OperatorClient
from attestation_testing.tee.collateral import of_intel, write_anchors, write_export
from attestation_testing.tee.intel import (
    Platform,
    collateral_json,
    qe_identity,
    shared_pki,
    tcb_info,
)
from tools.demo_people import write_private
from tools.software_enclave import MRENCLAVE
from tools.stage import BIN, Failed, Service, environment
from tools.stage_hsm import HANDED_OVER, REQUESTS, TOKEN, Hsm, place, ready_of
from tools.stage_kubernetes import KIND, NAMESPACE

if TYPE_CHECKING:
    from tools.demo_words import Narrator

POLICY: Final = "enclaves"
ISSUERS: Final = "hsmclusterissuers"
QUOTES: Final = f"/apis/{KIND}/v1alpha1/namespaces/{NAMESPACE}/quoteattestations"
SECRETS: Final = f"/api/v1/namespaces/{NAMESPACE}/secrets"


def enclave_settings(data: Path) -> dict[str, str]:
    """Write anchors and collateral of the software's maker; return the settings by which a service believes them."""
    at = _yesterday()
    write_export(data / "collateral", of_intel(shared_pki(), at))
    anchors = write_anchors(data / "test-anchors.pem", shared_pki(), [])
    return {"ITL_TEE_TEST_ANCHORS": str(anchors), "ITL_COLLATERAL_DIR": str(data / "collateral")}


def _yesterday() -> datetime:
    return datetime.now(UTC).replace(microsecond=0) - timedelta(days=1)


class HandedOver:
    """A CA key that exists already, its administrator, and who wants it.

    Args:
        out: Tells what happens.
        service: Judges.
        hsm: Controller, token and cluster.
        data: Folder of the demo.
        token: Of the operator alice, who is the administrator.
    """

    def __init__(self, out: Narrator, service: Service, hsm: Hsm, data: Path, token: str) -> None:
        self._out, self._service, self._hsm, self._token = out, service, hsm, token
        self._files = data / "administrator"
        self._signer = ""

    def prepare(self, alice: OperatorClient) -> None:
        """Make what the administrator has."""
        self._out.step(
            "A CA that exists already is to move into hardware",
            "Its key was made elsewhere, as that of a company's root is. An administrator may hand it over, but only "
            "to an enclave that proves what it is. A policy says which; the issuer names who may hand over. "
            "THE ENCLAVE HERE IS SOFTWARE, whose maker is named TEST ONLY: the service of this demo is told to "
            "believe it.",
        )
        self._files.mkdir(mode=0o700)
        key, admin = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
        for name, private in (("ca.key", key), ("ada.key", admin)):
            pem = private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
            write_private(self._files / name, pem.decode("ascii"))
        (self._files / "ca.pem").write_bytes(_by_itself(key))
        spki = admin.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        self._signer = hashlib.sha256(spki).hexdigest()
        policy = {
            "format": "itl-policy/2",
            "name": POLICY,
            "version": 1,
            "sgx": {"mrenclave": [MRENCLAVE.hex()]},
        }
        (self._files / "policy.json").write_text(json.dumps(policy), encoding="ascii")
        alice.create_policy(policy)
        pki, at = shared_pki(), _yesterday()
        told = replace(
            Platform().collateral(
                "SGX", info=tcb_info("SGX", issued=at), identity=qe_identity("SGX", issued=at)
            ),
            pck_crl=pki.crl("platform", at=at),
            root_ca_crl=pki.crl("root", at=at),
        )
        (self._files / "intel.json").write_bytes(collateral_json(told))
        (self._files / "root.der").write_bytes(pki.root)
        self._out.fact("ada", f"has the key of CN=Bank CA, and signs with {self._signer[:16]}…")
        self._out.fact(POLICY, f"alice: enclaves that measure {MRENCLAVE.hex()[:16]}…, and no other")

    def hand_over(self) -> None:
        """Hand the key over, and see what is on the token."""
        self._out.step(
            "An enclave asks for the key, and proves itself",
            "On the token a key is made that only unwraps. A program of the controller's list makes evidence of it, "
            "over a nonce of the service, for this issuer alone. All of it stands in a QuoteAttestation, and the "
            "service judges it.",
        )
        issuer = self._issuer("bank-ca", "enclave", "AwaitingKey")
        uid = issuer["metadata"]["uid"]
        quote = self._judged(issuer, "True")
        told = quote["status"]
        name = quote["metadata"]["name"]
        self._out.fact(name, f"Verified: sgx (software), mrenclave {told['claims']['mrenclave'][:16]}…")
        self._out.fact(
            name, f"about key {told['boundKeyFingerprint'][:16]}…; audit entry {told['auditEntryHash'][:16]}…"
        )
        kek = self._hsm.key_on_token(f"kek-{uid}-{issuer['metadata']['generation']}")
        self._out.fact("token", f"{kek['label']}; for: {kek.get('Usage', '')}")
        self._out.step(
            "The administrator judges it again, elsewhere, and wraps the key for it",
            "Nothing that the cluster says about the evidence is believed: the same code judges it on a computer of "
            "the administrator's, by files of theirs, and asks the service whether the nonce is one of its own. Only "
            "this token opens what is made here, and only with ada's signature the controller takes it.",
        )
        done = self._wrap(quote)
        if done.returncode != 0:
            raise Failed(f"attestation hsm wrap: {done.stdout}{done.stderr}")
        self._out.quote(f"$ attestation hsm wrap {name}.json …\n{done.stderr}{done.stdout.strip()}")
        self._put()
        ready = self._hsm.ready(place(ISSUERS), "bank-ca", "Checked")["status"]
        self._out.fact("bank-ca", f"Ready; its key: {ready['keyOrigin']}")
        key = self._hsm.key_on_token(uid)
        if "never extractable" in key.get("Access", "") or "sensitive" not in key.get("Access", ""):
            raise Failed(f"the key that was handed over is {key.get('Access')}")
        self._out.fact(
            "token", f"key {uid[:8]}…: {key['Access']} (it was elsewhere once); for: {key['Usage']}"
        )
        self._gone(f"kek-{uid}")
        self._out.fact("token", "the key that wrapped is destroyed; the Secret with the bundle is deleted")

    def issue(self, request: dict[str, Any]) -> None:
        """Have a certificate issued by the key."""
        self._out.step(
            "A certificate of the CA that was handed over", "As of any other issuer; OpenSSL verifies it."
        )
        spec = {**request, "issuerRef": {**request["issuerRef"], "name": "bank-ca"}}
        self._hsm.request("pay", spec)
        self._hsm.decide("pay", "Approved")
        found = self._hsm.ready(REQUESTS, "pay", "Issued")["status"]
        leaf = self._files / "pay.pem"
        leaf.write_bytes(base64.b64decode(found["certificate"]))
        serial = x509.load_pem_x509_certificate(leaf.read_bytes()).serial_number
        self._out.fact("pay", f"Issued: serial {serial:040x}")
        command = ["openssl", "verify", "-CAfile", str(self._files / "ca.pem"), str(leaf)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode != 0:
            raise Failed(f"openssl verify: {done.stdout}{done.stderr}")
        self._out.fact("openssl", "pay.pem is of CN=Bank CA: OK")

    def refuse(self) -> None:
        """Show two enclaves to which nobody hands anything over."""
        self._out.step(
            "Two others ask for a key, and get none",
            "One may be debugged: whoever runs it reads its memory. For the other another maker vouches, whom nobody "
            "here knows. The service says so, and the administrator's own computer says the same.",
        )
        for name, program in (("debug-ca", "debug"), ("other-ca", "stranger")):
            issuer = self._issuer(name, program, "EvidenceFailed")
            uid = issuer["metadata"]["uid"]
            quote = self._judged(issuer, "False")
            self._out.fact(name, f"EvidenceFailed: {ready_of(issuer)['message']}", good=False)
            done = self._wrap(quote)
            if done.returncode == 0:
                raise Failed(f"a key was wrapped for {name}")
            why = next((line for line in done.stdout.splitlines() if " failed " in line), done.stderr.strip())
            check, _, found = " ".join(why.split()).partition(" failed ")
            self._out.fact("ada", f"attestation hsm wrap: {check}: {found}", good=False)
            self._gone(uid)
            self._out.fact("token", f"nothing of {name} is on it")

    # ------------------------------------------------------------ parts

    def _issuer(self, name: str, program: str, reason: str) -> dict[str, Any]:
        self._hsm.create(
            "HsmClusterIssuer",
            ISSUERS,
            name,
            {
                "hsmRef": {"name": TOKEN},
                "mode": "Provisioned",
                "keyType": "ecdsa-p384",
                "policy": {"maxDuration": "720h"},
                "provisioning": {
                    "signers": [self._signer],
                    "oaepHash": "sha1",
                    "evidence": {"type": "sgx", "collector": program},
                    "evidencePolicyRef": {"name": POLICY},
                    "secretRef": {"name": HANDED_OVER},
                },
            },
        )
        return self._hsm.ready(place(ISSUERS), name, reason)

    def _judged(self, issuer: dict[str, Any], status: str) -> dict[str, Any]:
        """Return the QuoteAttestation of an issuer as soon as its condition Verified is *status*."""
        metadata = issuer["metadata"]
        name = f"{metadata['name']}-{metadata['uid'][:8]}-{metadata['generation']}"
        found: dict[str, Any] = {}

        def is_judged() -> bool:
            nonlocal found
            found = self._hsm.cluster.ask(f"{QUOTES}/{name}")
            conditions = (found.get("status") or {}).get("conditions") or ()
            return any(each["type"] == "Verified" and each["status"] == status for each in conditions)

        self._hsm.eventually(is_judged, f"{name} is judged")
        return found

    def _wrap(self, quote: dict[str, Any]) -> subprocess.CompletedProcess[str]:
        file = self._files / "qa.json"
        file.write_text(json.dumps(quote), encoding="utf-8")
        command = [
            *(str(BIN / "attestation"), "hsm", "wrap", str(file)),
            *("--issuer-uid", quote["spec"]["signerRef"]["uid"], "--evidence", "sgx", "--oaep-hash", "sha1"),
            *("--policy", "policy.json", "--collateral", "intel.json", "--intel-root", "root.der"),
            *("--key", "ca.key", "--chain", "ca.pem", "--sign-with", "ada.key"),
            *("--bundle", "bundle.json", "--force"),
        ]
        known = (quote.get("status") or {}).get("verdict") == "verified"
        # Where the service did not verify it, the administrator looks what their own computer says.
        command += ["--ask-service"] if known else ["--nonce", quote["spec"]["binding"]["nonce"]]
        return subprocess.run(
            command,
            cwd=self._files,
            env=environment(ITL_API_URL=self._service.url, ITL_ADMIN_TOKEN=self._token),
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip

    def _put(self) -> None:
        data = {
            name: base64.b64encode((self._files / name).read_bytes()).decode("ascii")
            for name in ("bundle.json", "bundle.jws")
        }
        body = {"metadata": {"name": HANDED_OVER}, "type": "attestation.itl.io/hsm-bundle", "data": data}
        self._hsm.cluster.ask(SECRETS, body)

    def _gone(self, label: str) -> None:
        left: list[str] = []

        def is_gone() -> bool:
            nonlocal left
            left = [each for each in self._hsm.labels_on_token() if each.startswith(label)]
            return not left

        self._hsm.eventually(is_gone, f"{left} is still on the token")


def _by_itself(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return the certificate of the CA that exists already, PEM."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Bank CA")])
    usages = (
        "digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
        "key_cert_sign", "crl_sign", "encipher_only", "decipher_only",
    )  # fmt: skip
    usage = dict.fromkeys(usages, False) | dict.fromkeys(("key_cert_sign", "crl_sign"), True)
    at = _yesterday()
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(at)
        .not_valid_after(at + timedelta(days=3650))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.KeyUsage(**usage), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA384())
    )
    return made.public_bytes(Encoding.PEM)
