"""The parts of a cluster whose CA keys are in hardware: a token, and the controller that signs with what is on it.

The token is SoftHSM's, in the folder of the demo; the controller is the program that is shipped, with the rights that
the chart gives it. CertificateRequest is a kind of cert-manager's, of which nothing runs here: requests are made and
approved by hand, as cert-manager and its approver would.
"""

from __future__ import annotations

import os
import re
import secrets
import subprocess
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from attestation.clock import rfc3339
from attestation_testing.kubernetes.cert_manager import CERTIFICATE_REQUESTS
from tools.demo_people import write_private
from tools.softhsm import MODULE, configure, library, new_token
from tools.software_enclave import write_programs
from tools.stage import BIN, Failed
from tools.stage_kubernetes import (
    KIND,
    NAMESPACE,
    install_kind,
    install_kinds,
    lease_rules,
    publish_token_keys,
    role_rule,
)
from tools.stage_programs import Account, Programs

CERT_MANAGER: Final = "cert-manager.io"
CERTIFICATES: Final = "certificates.k8s.io"
TOKEN: Final = "demo"
PIN_SECRET: Final = ("softhsm-pin", "pin")
"""Name of the Secret, and member: where the deployment mounts the PIN."""
APPS: Final = "shop"
"""The namespace of the applications."""
CONTROLLER: Final = "attestation-hsm"
WAIT_SECONDS: Final = 180

KINDS: Final = (
    "hardwaresecuritymodules",
    "hsmissuers",
    "hsmclusterissuers",
    "quoteattestations",
    "hsmcertificates",
)
CONTROLLER_RULES: Final = (
    role_rule(KIND, KINDS, "get list watch"),
    role_rule(KIND, [each for each in KINDS if each != "hardwaresecuritymodules"], "patch"),
    role_rule(KIND, ["quoteattestations"], "create delete"),
    role_rule(KIND, [f"{each}/status" for each in KINDS], "patch"),
    role_rule(CERT_MANAGER, ["certificaterequests"], "get list watch"),
    role_rule(CERT_MANAGER, ["certificaterequests/status"], "patch"),
    role_rule(CERTIFICATES, ["certificatesigningrequests"], "get list watch"),
    role_rule(CERTIFICATES, ["certificatesigningrequests/status"], "patch"),
    role_rule(CERTIFICATES, ["signers"], "sign", ("hsmclusterissuers.attestation.itl.io/*",)),
    role_rule("events.k8s.io", ["events"], "create"),
)
"""What the controller may do in the cluster (HSM-AND-KUBERNETES §22); a test compares it with the chart."""
LEASE_RULES: Final = lease_rules("hsm")
HANDED_OVER: Final = "handed-over"
"""The Secret in which a CA key is handed over."""
SECRET_RULES: Final = (role_rule("", ["secrets"], "get update delete", [HANDED_OVER]),)
CONTROLLER_ACCOUNT: Final = Account(
    namespace=NAMESPACE, name=CONTROLLER, rules=CONTROLLER_RULES, own_rules=(*LEASE_RULES, *SECRET_RULES)
)
SERVICE_ACCOUNTS: Final = {"attestation-hsm": [f"{NAMESPACE}:{CONTROLLER}"]}
"""What it is to the service."""

REQUESTS: Final = f"/apis/{CERT_MANAGER}/v1/namespaces/{APPS}/certificaterequests"


class Hsm(Programs):
    """The controller, as a process, and what it finds: a token and objects."""

    @property
    def module(self) -> Path:
        """The PKCS#11 module."""
        return library(MODULE)

    @property
    def token_variables(self) -> dict[str, str]:
        """What the module must be told."""
        return {"SOFTHSM2_CONF": str(self.directory / "softhsm2.conf")}

    @property
    def pin_file(self) -> Path:
        """Where the PIN is, as a Secret that is mounted."""
        return self.directory.joinpath("pins", *PIN_SECRET)

    def make_token(self) -> None:
        """Make a token, with a PIN that nobody has seen."""
        tokens = self.directory / "tokens"
        for folder in (tokens, self.pin_file.parent):
            folder.mkdir(mode=0o700, parents=True)
        configure(self.directory / "softhsm2.conf", tokens)
        pin = secrets.token_hex(8)
        write_private(self.pin_file, pin)
        environment = {**os.environ, **self.token_variables}
        new_token(TOKEN, pin=pin, so_pin=secrets.token_hex(8), environment=environment)

    def install(self) -> None:
        """Make the namespaces, the kinds, and for the controller a ServiceAccount with its rights."""
        install_kinds(self.cluster)
        install_kind(self.cluster, CERTIFICATE_REQUESTS)
        publish_token_keys(self.cluster)
        self.add_account(CONTROLLER_ACCOUNT)
        self.cluster.ask("/api/v1/namespaces", {"metadata": {"name": APPS}})

    def start_controller(self) -> None:
        """Start the controller, and wait until it answers."""
        settings = self.pod(CONTROLLER_ACCOUNT)
        settings |= {"NAMESPACE": NAMESPACE, "IDENTITY": settings.pop("POD")}
        programs = write_programs(self.directory / "programs")
        flags = (
            *("--pkcs11-modules", f"softhsm={self.module}", "--pin-dir", str(self.directory / "pins")),
            *("--evidence-programs", programs),
        )
        command = (str(BIN / "attestation-operator"), "hsm", *flags)
        self.start("hsm", command, settings, **self.token_variables)

    # ------------------------------------------------------------ objects

    def create(self, kind: str, plural: str, name: str, spec: Mapping[str, Any]) -> dict[str, Any]:
        """Create an object of ours that is in no namespace."""
        body = {"apiVersion": f"{KIND}/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec}
        made: dict[str, Any] = self.cluster.ask(place(plural), body)
        return made

    def request(self, name: str, spec: Mapping[str, Any]) -> None:
        """Create a CertificateRequest."""
        body = {"apiVersion": f"{CERT_MANAGER}/v1", "kind": "CertificateRequest", "metadata": {"name": name}}
        self.cluster.ask(REQUESTS, {**body, "spec": dict(spec)})

    def decide(self, name: str, decision: str) -> None:
        """Decide on a request, `Approved` or `Denied`, as its approver does."""
        said = {"type": decision, "status": "True", "reason": "Demo", "message": "decided by hand"}
        said["lastTransitionTime"] = rfc3339(datetime.now(UTC).replace(microsecond=0))
        body = {"apiVersion": f"{CERT_MANAGER}/v1", "kind": "CertificateRequest"}
        self.cluster.ask(
            f"{REQUESTS}/{name}/status?fieldManager=approver&force=true",
            {**body, "status": {"conditions": [said]}},
            method="PATCH",
            media_type="application/apply-patch+yaml",
        )

    def ready(self, collection: str, name: str, reason: str) -> dict[str, Any]:
        """Return an object as soon as *reason* stands in its condition Ready.

        Raises:
            Failed: It did not in time.
        """
        try:
            found = self.cluster.wait_for(
                collection, name, lambda raw: ready_of(raw).get("reason") == reason, seconds=WAIT_SECONDS
            )
        except TimeoutError as e:
            raise Failed(f"{e}; see {self.log('hsm')}") from e
        return dict(found)

    def eventually(self, is_so: Callable[[], bool], what: str) -> None:
        """Return as soon as *is_so* says so.

        Raises:
            Failed: It did not in time.
        """
        try:
            self.cluster.eventually(is_so, seconds=WAIT_SECONDS)
        except TimeoutError as e:
            raise Failed(f"{what}: {e}; see {self.log('hsm')}") from e

    # ------------------------------------------------------------ the token, asked by another client

    def key_on_token(self, label: str) -> Mapping[str, str]:
        """Return what pkcs11-tool, which is not ours, is told of the private key *label*.

        Raises:
            Failed: There is not exactly one.
        """
        found = [each for each in self._keys() if each.get("label") == label]
        if len(found) != 1:
            raise Failed(f"{len(found)} keys are called {label}")
        return found[0]

    def labels_on_token(self) -> list[str]:
        """Return the labels of the private keys, likewise."""
        return [each.get("label", "") for each in self._keys()]

    def _keys(self) -> list[Mapping[str, str]]:
        done = subprocess.run(
            [
                *("pkcs11-tool", "--module", str(self.module), "--token-label", TOKEN),
                *("--login", "--pin", "env:PIN", "--list-objects", "--type", "privkey"),
            ],
            env={**os.environ, **self.token_variables, "PIN": self.pin_file.read_text(encoding="ascii")},
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise Failed(f"pkcs11-tool: {done.stdout}{done.stderr}")
        return [_members(each) for each in done.stdout.split("Private Key Object")[1:]]


def place(plural: str) -> str:
    """Return the path of a kind of ours."""
    return f"/apis/{KIND}/v1alpha1/{plural}"


def ready_of(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the condition Ready of an object, empty where it has none."""
    conditions = (raw.get("status") or {}).get("conditions") or ()
    return next((each for each in conditions if each["type"] == "Ready"), {})


def _members(told: str) -> dict[str, str]:
    return dict(re.findall(r"^ +([\w ]+?): +(.*?) *$", told, re.MULTILINE))
