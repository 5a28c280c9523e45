"""`./dev run --kubernetes --hsm`: certificates for a cluster, from a CA key that stays on a token.

The second half, a key that is handed over to an enclave, is `tools/demo_handing.py`.

The API server is Kubernetes' own (tools/kubernetes.py), the service and the controller are the programs that are
shipped. The token is SoftHSM's: software, which keeps what it holds in files under its PIN.
"""

from __future__ import annotations

import base64
import os
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import httpx
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import AuthorityInformationAccessOID, NameOID

from attestation.api import HSMRevokeRequest
from attestation.client import OperatorClient
from tools.demo_handing import enclave_settings
from tools.kubernetes import Cluster
from tools.stage import Failed, Service
from tools.stage_hsm import PIN_SECRET, REQUESTS, SERVICE_ACCOUNTS, TOKEN, Hsm, place, ready_of
from tools.stage_kubernetes import clusters_setting

if TYPE_CHECKING:
    from tools.demo_words import Narrator

ISSUER: Final = "shop-ca"
DOMAIN: Final = "shop.example"
NEVER: Final = frozenset({"sensitive", "always sensitive", "never extractable", "local"})
"""What pkcs11-tool is told of a key that was made on its token, and never was elsewhere."""


def hsm_settings(cluster: Cluster, data: Path) -> dict[str, str]:
    """Return the settings of the service."""
    clusters = clusters_setting(cluster, service_accounts=SERVICE_ACCOUNTS)
    return {"ITL_KUBERNETES_CLUSTERS": clusters, **enclave_settings(data)}


class Held:
    """A CA key that is held by a token, and what becomes of requests.

    Args:
        out: Tells what happens.
        service: Writes down what is issued, and serves what is revoked.
        hsm: Controller, token and cluster.
        data: Folder of the demo.
    """

    def __init__(self, out: Narrator, service: Service, hsm: Hsm, data: Path) -> None:
        self._out, self._service, self._hsm, self._data = out, service, hsm, data
        self.ca, self.leaf, self.crl = data / "ca.pem", data / "web.pem", data / "crl.pem"
        self._issuer_id, self._label = "", ""

    def make_token(self) -> None:
        """Make the token."""
        self._out.step(
            "A token is made, with a PIN in a file",
            "A token holds keys and signs with them; it does not give them away. Here it is SoftHSM, software for "
            "trying out, which keeps them in files under its PIN. The PIN stands in no setting, event "
            "or log: the deployment mounts it as a file, which an object of Kubernetes names.",
        )
        self._hsm.make_token()
        self._out.fact("token", f"{TOKEN}, by {self._hsm.module.name}; nothing is on it")

    def start_cluster(self) -> None:
        """Start the API, with the kinds."""
        self._out.step(
            "A Kubernetes API server is started, with the kinds of issuers in hardware",
            "The real program. An HsmClusterIssuer is an issuer as cert-manager knows them, but its key is on a token. "
            "CertificateRequest is the kind by which cert-manager asks issuers; cert-manager itself does not run here, "
            "so requests are made and approved by hand.",
        )
        cluster = self._hsm.cluster
        cluster.start()
        self._hsm.install()
        self._out.fact("API", f"Kubernetes {cluster.ask('/version')['gitVersion']} at {cluster.url}")

    def start_controller(self) -> None:
        """Start the controller, and show it the token."""
        self._out.step(
            "The controller is started, and shown the token",
            "Which libraries it may load, its deployment says (--pkcs11-modules softhsm=…): an object names one of "
            "these names, never a path; likewise programs that make evidence. It may not approve requests, and read no "
            "Secret but the one in which a key is handed over.",
        )
        self._hsm.start_controller()
        secret, member = PIN_SECRET
        self._hsm.create(
            "HardwareSecurityModule",
            "hardwaresecuritymodules",
            TOKEN,
            {"module": "softhsm", "tokenLabel": TOKEN, "pinSecretRef": {"name": secret, "key": member}},
        )
        found = self._hsm.ready(place("hardwaresecuritymodules"), TOKEN, "Checked")["status"]
        conditions = ", ".join(each["type"] for each in found["conditions"] if each["status"] == "True")
        info = found["tokenInfo"]
        self._out.fact(TOKEN, f"{conditions}; {info['manufacturer']}, serial {info['serial']}")

    def make_issuer(self) -> None:
        """Have a CA made."""
        self._out.step(
            "A CA is made, whose key is made on the token",
            "It certifies names below shop.example, for 30 days at most. The service knows it too: serial numbers, "
            "what was issued and what is revoked stand in its log, not in a pod.",
        )
        self._hsm.create(
            "HsmClusterIssuer",
            "hsmclusterissuers",
            ISSUER,
            {
                "hsmRef": {"name": TOKEN},
                "mode": "SelfSigned",
                "keyType": "ecdsa-p384",
                "subject": {"commonName": "Shop CA"},
                "policy": {"maxDuration": "720h", "names": {"dnsDomains": [DOMAIN]}},
            },
        )
        issuer = self._hsm.ready(place("hsmclusterissuers"), ISSUER, "Checked")
        status = issuer["status"]
        self.ca.write_text(status["caCertificate"], encoding="ascii")
        self._issuer_id, self._label = status["issuerID"], issuer["metadata"]["uid"]
        ca = x509.load_pem_x509_certificate(self.ca.read_bytes())
        self._out.fact(
            ISSUER, f"{ca.subject.rfc4514_string()}, ECDSA P-384, until {ca.not_valid_after_utc:%Y-%m-%d}"
        )
        self._out.fact(ISSUER, f"the service calls it {self._issuer_id}; its key: {status['keyOrigin']}")

    def show_key(self) -> None:
        """Have another client say what the key is."""
        self._out.step(
            "Can its key be taken away?",
            "pkcs11-tool, which is not ours, asks the token what it knows of the key: made inside (local), to be read "
            "by nobody (sensitive) at any time (always sensitive), and to be taken out by nobody (never extractable).",
        )
        key = self._hsm.key_on_token(self._label)
        access = key.get("Access", "")
        if not frozenset(access.split(", ")) >= NEVER:
            raise Failed(f"the key of the CA is {access or 'of unknown access'}")
        self._out.fact("key", f"{access}; for: {key.get('Usage', '')}")

    def issue(self) -> None:
        """Show what becomes of requests, and verify the certificate as anybody would."""
        self._out.step(
            "Two applications ask for certificates; one of them is denied",
            "As with any issuer of cert-manager, somebody else approves: the controller neither approves nor denies. "
            "What is approved is signed by the token, after its serial number and before the certificate is handed "
            "out it is in the service's log.",
        )
        self._hsm.request("web", request_for(f"web.{DOMAIN}"))
        self._hsm.request("stray", request_for(f"stray.{DOMAIN}"))
        self._hsm.decide("stray", "Denied")
        stray = self._hsm.ready(REQUESTS, "stray", "Denied")
        if "certificate" in stray["status"]:
            raise Failed("a denied request has a certificate")
        self._out.fact("stray", f"Denied: {ready_of(stray).get('message') or 'no certificate'}", good=False)
        waiting = self._hsm.cluster.ask(f"{REQUESTS}/web")
        if (waiting.get("status") or {}).get("certificate"):
            raise Failed("a request that nobody approved has a certificate")
        self._out.fact("web", "nobody has decided yet: it waits")
        self._hsm.decide("web", "Approved")
        web = self._hsm.ready(REQUESTS, "web", "Issued")["status"]
        self.leaf.write_bytes(base64.b64decode(web["certificate"]))
        leaf = x509.load_pem_x509_certificate(self.leaf.read_bytes())
        self._out.fact(
            "web", f"Issued: serial {leaf.serial_number:040x}, until {leaf.not_valid_after_utc:%Y-%m-%d}"
        )
        self._fetch_list(lambda _: True)
        self._out.fact("openssl", self._openssl("with the list that the service serves"))
        self._out.fact("OCSP", self._ocsp("good"))

    def refuse(self) -> None:
        """Ask for what the policy does not allow."""
        self._out.step(
            "What goes beyond the policy is refused, not shortened",
            "Approved, and refused all the same: approval says that somebody may ask, the policy what is certified.",
        )
        for name, spec in (
            ("bank", request_for("www.bank.example")),
            ("forever", request_for(f"web.{DOMAIN}") | {"duration": "87600h"}),
            ("sub-ca", request_for(f"web.{DOMAIN}") | {"isCA": True}),
        ):
            self._hsm.request(name, spec)
            self._hsm.decide(name, "Approved")
            found = self._hsm.ready(REQUESTS, name, "Failed")
            if "certificate" in found["status"]:
                raise Failed(f"{name} has a certificate")
            self._out.fact(name, f"Failed: {ready_of(found)['message']}", good=False)

    def revoke(self, alice: OperatorClient) -> None:
        """Revoke the certificate, and look again."""
        self._out.step(
            "An operator revokes the certificate",
            "The service decides, the token signs: within some seconds the controller signs the next list. OCSP knows "
            "it at once, by a key that the CA certified for a week.",
        )
        serial = f"{x509.load_pem_x509_certificate(self.leaf.read_bytes()).serial_number:040x}"
        alice.revoke_hsm_certificate(
            serial, HSMRevokeRequest(issuer_id=self._issuer_id, reason="keyCompromise", note="demo")
        )
        self._out.fact("alice", f"revoked {serial}")
        self._out.fact("OCSP", self._ocsp("revoked"), good=False)
        self._fetch_list(
            lambda crl: crl.get_revoked_certificate_by_serial_number(int(serial, 16)) is not None
        )
        self._out.fact("openssl", self._openssl("with the new list", revoked=True), good=False)

    def record(self, carol: OperatorClient) -> None:
        """Show what stands in the log."""
        self._out.step(
            "The record, read by carol",
            "The audit log of the service, which cannot be changed without being noticed, has each of it.",
        )
        entries = [each for each in carol.audit(page_size=100) if each.action.startswith("hsm_")]
        for entry in reversed(entries):
            self._out.fact(f"no. {entry.id}", f"{entry.action} by {entry.operator_cn}: {entry.detail}")
        verdict = carol.verify_audit()
        if not verdict.valid or not entries:
            raise Failed(
                f"the audit log is not what it should be: {verdict.error or 'nothing of this is in it'}"
            )
        self._out.fact("audit", f"{verdict.entries} entries, chain valid")

    @property
    def verify(self) -> list[str]:
        """The command that verifies the certificate."""
        return [
            *("openssl", "verify", "-crl_check", "-CAfile", str(self.ca), "-CRLfile", str(self.crl)),
            str(self.leaf),
        ]

    # ------------------------------------------------------------ parts

    def _fetch_list(self, is_it: Callable[[x509.CertificateRevocationList], bool]) -> None:
        """Keep the list that the certificate names, as soon as it is the one that is looked for."""
        leaf = x509.load_pem_x509_certificate(self.leaf.read_bytes())
        points = leaf.extensions.get_extension_for_class(x509.CRLDistributionPoints).value
        [name] = list(points[0].full_name or [])

        def fetched() -> bool:
            answer = httpx.get(str(name.value), trust_env=False, timeout=30)
            if answer.status_code != httpx.codes.OK:
                return False
            crl = x509.load_der_x509_crl(answer.content)
            self.crl.write_bytes(crl.public_bytes(Encoding.PEM))
            return is_it(crl)

        self._hsm.eventually(fetched, f"the list at {name.value}")

    def _openssl(self, how: str, *, revoked: bool = False) -> str:
        done = _run(self.verify)
        good, said = done.returncode == 0, (done.stdout + done.stderr).strip()
        if good is revoked or (revoked and "certificate revoked" not in said):
            raise Failed(f"openssl verify: {said}")
        return f"{how}: {'certificate revoked' if revoked else 'OK'}"

    def _ocsp(self, word: str) -> str:
        leaf = x509.load_pem_x509_certificate(self.leaf.read_bytes())
        access = leaf.extensions.get_extension_for_class(x509.AuthorityInformationAccess).value
        (url,) = (
            str(each.access_location.value)
            for each in access
            if each.access_method == AuthorityInformationAccessOID.OCSP
        )
        command = ["openssl", "ocsp", "-issuer", str(self.ca), "-cert", str(self.leaf)]
        said = ""

        def told() -> bool:
            nonlocal said
            done = _run([*command, "-CAfile", str(self.ca), "-url", url])
            said = done.stdout + done.stderr
            return "Response verify OK" in said and f"{self.leaf}: {word}" in said

        # The key that answers is certified by the token in a round of its own.
        self._hsm.eventually(told, f"OCSP says {said or 'nothing'}")
        return f"{word}, and the answer is verified under the CA"


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    variables = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    return subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60, check=False)


def request_for(name: str) -> dict[str, Any]:
    """Return the spec of a request for *name*, as cert-manager makes it."""
    key = ec.generate_private_key(ec.SECP256R1())
    made = (
        x509.CertificateSigningRequestBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    return {
        "issuerRef": {"name": ISSUER, "kind": "HsmClusterIssuer", "group": "attestation.itl.io"},
        "request": base64.b64encode(made.public_bytes(Encoding.PEM)).decode("ascii"),
        "usages": ["digital signature", "server auth"],
        "duration": "24h",
        "username": "system:serviceaccount:cert-manager:cert-manager",
    }


def next_steps(out: Narrator, service: Service, hsm: Hsm, held: Held, data: Path) -> None:
    """Say where everything is and what can be tried."""
    admin = shlex.quote(str(hsm.cluster.kubeconfig("admin")))
    conf = shlex.quote(hsm.token_variables["SOFTHSM2_CONF"])
    module = shlex.quote(str(hsm.module))
    out.say()
    out.say(f"   Kubernetes     {hsm.cluster.url} (1.20: kubectl newer than 1.21 needs --validate=false)")
    out.say(f"   Service        {service.url}")
    out.say(f"   Files          {data}")
    out.say()
    out.say("   In another terminal:")
    out.say()
    out.say(f"     kubectl --kubeconfig {admin} get hsm,hsmciss,certificaterequests -A")
    out.say(f"     kubectl --kubeconfig {admin} get hsmciss {ISSUER} -o yaml")
    out.say(f"     kubectl --kubeconfig {admin} get qa -A    # what enclaves proved, and what became of it")
    out.say(f"     {shlex.join(held.verify)}    # it is revoked")
    pin = f"PIN=$(cat {shlex.quote(str(hsm.pin_file))})"
    listed = f"pkcs11-tool --module {module} --token-label {TOKEN} --login --pin env:PIN --list-objects"
    out.say(f"     {pin} SOFTHSM2_CONF={conf} {listed}")
    out.say(f"     tail -f {shlex.quote(str(hsm.log('hsm')))}")
    out.say()
    out.say("   Read on: docs/kubernetes/hsm.md")
    out.say()
