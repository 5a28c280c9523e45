"""`./dev run --kubernetes --confidential`: nodes of a real cluster are asked for evidence, judged off them.

The API server is Kubernetes' own (tools/kubernetes.py); service, controller and agents are the programs that are
shipped. TPMs are software; the TDX-like node's processor is software too, under anchors that say TEST ONLY.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import httpx

from attestation.tpm import PCRSelection
from attestation_testing.tee.intel import MRTD
from tools.stage import BIN, Failed, IdentityProvider, Machine, Service, environment
from tools.stage_kubernetes import NAMESPACE
from tools.stage_runs import Runs, short

if TYPE_CHECKING:
    from tools.demo_words import Narrator

MACHINES: Final = ("node-1", "node-2")
"""Machines with TPMs; the second one boots something else."""
GUEST: Final = "node-3"
"""A TDX-like guest."""
PCRS: Final = (0, 4, 7)
POLICY: Final = "boot"
GUESTS: Final = "guests"
BOOT_LOADER: Final = 4
LABEL: Final = "node-restriction.kubernetes.io/itl-attested"
SHOWN_LINES: Final = 9
"""Of what `attestation bundle verify` says; what was measured follows."""


class Asked:
    """The nodes that are asked for evidence.

    Args:
        out: Tells what happens.
        service: Judges.
        runs: Controller, agents and cluster.
        data: Folder of the demo.
    """

    def __init__(self, out: Narrator, service: Service, runs: Runs, data: Path) -> None:
        self._out, self._service, self._runs, self._data = out, service, runs, data
        self.bundles: list[Path] = []

    def start_cluster(self) -> None:
        """Start the API, with the kinds of runs."""
        self._out.step(
            "A Kubernetes API server is started, with the kinds of attestation runs",
            "The real program. A ConfidentialAttestationRun names a node; what comes of it stands in a Result, in "
            "SecurityEvents and in a sealed AttestationBundle.",
        )
        cluster = self._runs.cluster
        cluster.start()
        self._runs.install()
        self._out.fact("API", f"Kubernetes {cluster.ask('/version')['gitVersion']} at {cluster.url}")

    def start_programs(self, machines: Sequence[Machine]) -> None:
        """Start the controller, and the agent of each node."""
        self._out.step(
            "One controller, and an agent on each node",
            "The controller asks the service and writes what it says; it judges nothing. An agent reads runs, asks the "
            "service for its node's challenge, and brings what the hardware signs. In Kubernetes it may write nothing, "
            "so no node can write a verdict. Which node it is, its token says, not a flag.",
        )
        self._runs.start_controller("--node-action", "label", "--node-action-namespaces", NAMESPACE)
        self._out.fact("runs", "the controller answers probes; a run labels its node")
        for machine in machines:
            flags = ("--tpm-device", machine.tpm.uri, "--event-log-path", str(self._data / "none"))
            nowhere = (
                "--tsm-path",
                str(self._data / "no-tsm"),
                "--sev-snp-device",
                str(self._data / "no-sev"),
            )
            self._runs.start_agent(self._runs.add_node(machine.name), *flags, *nowhere)
            self._out.fact(machine.name, "agent with a TPM, and without confidential hardware")
        program = (sys.executable, str(Path(__file__).with_name("tdx_agent.py")), GUEST)
        self._runs.start_agent(self._runs.add_node(GUEST), command=program)
        self._out.fact(GUEST, "agent in a TDX-like guest (software, TEST ONLY)")

    def state_policies(self, honest: Machine) -> None:
        """Say what is expected, as Kubernetes has it."""
        with honest.node() as node:
            quote = node.quote(bytes(32), PCRSelection.from_names({"sha256": list(PCRS)}))
        expected = quote.values_on_wire()["sha256"]
        self._out.step(
            "What is expected stands in two AttestationPolicies",
            "Firmware, boot loader and Secure Boot as they were measured on the first node; and the one image that a "
            "guest may be launched from. Without a policy a run only records.",
        )
        for name, spec in (
            (POLICY, {"tpm": {"pcrs": expected}}),
            (GUESTS, {"tdx": {"mrtd": [MRTD.hex()]}}),
        ):
            self._runs.create("AttestationPolicy", "attestationpolicies", name, spec)
            self._out.fact(name, next(iter(spec)) + ": " + ", ".join(next(iter(spec.values()))))

    def good(self, machine: Machine) -> None:
        """Ask the honest node."""
        self._out.step(
            f"Is {machine.name} what it claims to be?",
            "The service's challenge is in what the TPM signs. The key that signs is the one that the service knows "
            "of the machine with this name: so it is this machine, now, with these measurements.",
        )
        self._shows(self._run("ask-tpm", "tpm", machine.name, POLICY), "verified")

    def guest(self) -> None:
        """Ask the guest."""
        self._out.step(
            f"And {GUEST}, a guest of confidential hardware?",
            "Its processor signs what was launched, with the challenge and the UID of the Node in it.",
        )
        self._shows(self._run("ask-tdx", "tdx", GUEST, GUESTS), "verified")

    def broken(self, machine: Machine) -> None:
        """Ask the node that booted something else, and one for hardware that it has not."""
        self._out.step(
            f"{machine.name} has booted something else",
            "Genuine TPM, genuine quote, another boot loader. And it is asked for an SEV-SNP report, which it cannot "
            "give: that is no evidence, and so no verdict.",
        )
        machine.tpm.measure(BOOT_LOADER, b"not what was measured before")
        self._shows(self._run("ask-broken", "tpm", machine.name, POLICY), "failed")
        self._shows(self._run("ask-absent", "sev-snp", machine.name, None), "indeterminate")

    def events(self) -> None:
        """Show what was told of all of it."""
        self._out.step(
            "One event for each fact, and nobody can add one twice",
            "Their names follow from run, attempt and fact.",
        )
        for event in sorted(
            self._runs.cluster_wide("securityevents"),
            key=lambda each: (
                each["spec"]["signals"]["run.name"],
                each["spec"]["type"] != "AttestationStarted",
            ),
        ):
            spec = event["spec"]
            self._out.fact(
                spec["signals"]["run.name"],
                f"{spec['type']} ({spec['class']}, {spec['severity']}), {event['metadata']['name']}",
                good=spec["severity"] != "critical",
            )

    def labels(self) -> None:
        """Show by what workloads can be placed."""
        for node in self._runs.cluster.ask("/api/v1/nodes")["items"]:
            value = node["metadata"].get("labels", {}).get(LABEL, "absent")
            self._out.fact(node["metadata"]["name"], f"{LABEL}: {value}", good=value == "verified")

    def sealed(self, token: str, vkeys: Sequence[str]) -> None:
        """Fetch what was sealed, and verify it without the service."""
        self._out.step(
            "What was measured is sealed, and verified without anybody's help",
            "The service signed event, Result, policy and evidence, put the digest into its append-only log, and "
            "archived the file. Whoever has it and the log's keys can check all of it, years after the Result is gone.",
        )
        keys = httpx.get(f"{self._service.url}/api/v1/service-keys", timeout=30)
        keys.raise_for_status()
        (self._data / "service.jwks").write_bytes(keys.content)
        (self._data / "log.vkeys").write_text("".join(f"{key}\n" for key in vkeys), encoding="utf-8")
        for run in ("ask-tpm", "ask-broken"):
            file = self._data / f"{run}.intoto.jsonl"
            uid = self._runs.cluster.ask(f"{self._runs.place('confidentialattestationruns')}/{run}")[
                "metadata"
            ]["uid"]
            answer = httpx.get(
                f"{self._service.url}/api/v1/runs/{uid}/bundle",
                headers=_bearer(token),
                timeout=30,
            )
            answer.raise_for_status()
            file.write_bytes(answer.content)
            self.bundles.append(file)
            self._out.quote("\n".join(self._verify(file).splitlines()[:SHOWN_LINES]))
        changed = self._data / "changed.intoto.jsonl"
        data = bytearray(self.bundles[1].read_bytes())
        middle = len(data) // 2
        data[middle] = ord("A") if data[middle] != ord("A") else ord("B")
        changed.write_bytes(data)
        done = self._verify(changed, good=False)
        why = "; ".join(line.strip() for line in done.splitlines()[:2])
        self._out.fact("changed", f"one byte is another: {why}", good=False)

    # ------------------------------------------------------------ parts

    def _verify(self, file: Path, *, good: bool = True) -> str:
        done = subprocess.run(
            [str(BIN / "attestation"), "bundle", "verify", str(file), *self._keys()],
            env=environment(), capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        if (done.returncode == 0) is not good:
            raise Failed(f"{file}: {done.stdout}{done.stderr}")
        return done.stdout if good else done.stderr

    def _keys(self) -> tuple[str, ...]:
        return "--vkeys-file", str(self._data / "log.vkeys"), "--keys", str(self._data / "service.jwks")

    def _run(self, name: str, backend: str, node: str, policy: str | None) -> dict[str, Any]:
        spec: dict[str, Any] = {"backend": backend, "targetNodeName": node}
        if policy is not None:
            spec["policyRef"] = {"name": policy}
        self._runs.create("ConfidentialAttestationRun", "confidentialattestationruns", name, spec)
        return self._runs.ended_run(name)

    def _shows(self, run: Mapping[str, Any], verdict: str) -> None:
        name, status = run["metadata"]["name"], run["status"]
        result = self._runs.result(name)["spec"]
        if result["verdict"] != verdict:
            raise Failed(f"{name} is {result['verdict']}, not {verdict}: {result.get('checks')}")
        good = verdict == "verified"
        self._out.fact(
            name, f"{status['phase']}, {result['verdict']}; policy {short(result['policyID'])}", good=good
        )
        for each in status["conditions"]:
            if each["type"] == "Failed" and each["status"] == "True":
                self._out.fact(name, f"{each['reason']}: {each['message']}", good=False)
        for each in result.get("checks", ()):
            if each["outcome"] != "pass" and each.get("expected"):
                self._out.fact(
                    name, f"{each['id']}: {each.get('actual')}; expected {each['expected']}", good=False
                )


def _bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def next_steps(
    out: Narrator, service: Service, identity: IdentityProvider, asked: Asked, runs: Runs, data: Path
) -> None:
    """Say where everything is and what can be tried."""
    password = identity.people["alice"].password
    out.say()
    out.say(f"   Kubernetes     {runs.cluster.url} (1.20: kubectl newer than 1.21 needs --validate=false)")
    out.say(f"   Service        {service.url}")
    out.say(f"   Files          {data}")
    out.say()
    out.say("   In another terminal:")
    out.say()
    out.say(f"     export PATH={shlex.quote(str(BIN))}:$PATH")
    out.say(f"     export KUBECONFIG={shlex.quote(str(runs.cluster.kubeconfig('admin')))}")
    out.say(f"     attestation run list -n {NAMESPACE}")
    out.say(f"     attestation run show ask-broken -n {NAMESPACE}      # each check, in words")
    out.say(
        f"     attestation run create {MACHINES[0]} --policy {POLICY} -n {NAMESPACE} --wait      # ask again"
    )
    keys = f"--vkeys-file {shlex.quote(str(data / 'log.vkeys'))} --keys {shlex.quote(str(data / 'service.jwks'))}"
    out.say(f"     attestation bundle verify {shlex.quote(str(asked.bundles[0]))} {keys}")
    out.say(f"     export ITL_API_URL={service.url}")
    out.say(f"     export ITL_OIDC_ISSUER={identity.issuer}")
    out.say(f"     attestation auth login      # as alice, {password}; no browser: --method device")
    out.say(f"     attestation run bundle ask-tdx -n {NAMESPACE} -f ask-tdx.intoto.jsonl")
    out.say("     kubectl get conar,conares,se,ab -A      # where there is a kubectl")
    out.say(f"     tail -f {shlex.quote(str(runs.log('runs')))}")
    out.say()
