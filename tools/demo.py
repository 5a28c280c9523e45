"""`./dev run`: the service, and a fleet that proves itself to it, step by step.

Everything is real: the service and the agents are the processes that are shipped, the TPMs are swtpm, the
operators log in and use the public API. Only the machines' firmware tables and their boot measurements are made up,
and the identity provider is one for demos (`tools/demo_identity.py`).
"""

from __future__ import annotations

import argparse
import os
import secrets
import shlex
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

import httpx
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from attestation.api import (
    ActivateRequest,
    ApproveRequest,
    CertRequest,
    IntroduceRequest,
    MachineDetail,
    PendingApproval,
)
from attestation.audit.export import LogVerifier, Pinned, VerifiedLog
from attestation.audit.note import parse_vkey
from attestation.client import NodeClient, OperatorClient
from attestation.client.agreement import agree
from attestation.device import KeyType
from attestation.errors import ActivationFailed, AssuranceTooLow, AttestationError, LogBroken
from attestation.evidence.key_certification import csr_binding
from attestation.machines import Role, Status
from attestation.pki.request import parse_csr
from attestation.tpm import parse_public
from attestation.wire import b64decode, b64encode
from attestation_testing import CertificateAuthority
from tools.demo_confidential import Guests
from tools.demo_confidential import prepare as prepare_confidential
from tools.demo_dashboard import DEFAULT_PORT as DEFAULT_DASHBOARD_PORT
from tools.demo_dashboard import Dashboard
from tools.demo_extensions import AUDIENCE, SECRET, Extras
from tools.demo_extensions import prepare as prepare_extensions
from tools.demo_handing import HandedOver
from tools.demo_hsm import Held, hsm_settings, request_for
from tools.demo_hsm import next_steps as next_steps_of_hsm
from tools.demo_kubernetes import NODES, Nodes
from tools.demo_kubernetes import next_steps as next_steps_on_kubernetes
from tools.demo_runs import GUEST, Asked
from tools.demo_runs import MACHINES as MACHINES_ASKED
from tools.demo_runs import next_steps as next_steps_of_runs
from tools.demo_start import (
    DEFAULT_DATA,
    DEFAULT_IDENTITY_PORT,
    DEFAULT_PORT,
    Begun,
    alone,
    port_of,
    prepare_data,
    with_cluster,
)
from tools.demo_tasks import Tasks
from tools.demo_words import Narrator
from tools.kubernetes import Cluster, KubernetesMissing
from tools.ports import free_port
from tools.stage import BIN, REATTEST_SECONDS, Failed, IdentityProvider, Machine, Service
from tools.stage_hsm import Hsm
from tools.stage_kubernetes import clusters_setting
from tools.stage_runs import SERVICE_ACCOUNTS, Runs

MAX_MACHINES = 50
REPLICAS = 2
FLEET = (("cp", Role.CONTROLPLANE), ("infra", Role.WORKER_INFRA), ("app", Role.WORKER_APP))
MANUFACTURER = "Demo TPM Manufacturer"


class Show:
    """The walk of the fleet through admission."""

    def __init__(
        self,
        narrator: Narrator,
        service: Service,
        people: Mapping[str, OperatorClient],
        auditor_token: str,
        machines: Sequence[Machine],
        authority: CertificateAuthority,
    ) -> None:
        self._out = narrator
        self._authority = authority
        self._service = service
        self._alice, self._bob, self._carol = (people[name] for name in ("alice", "bob", "carol"))
        self._auditor_token = auditor_token
        self._machines = machines
        self._ids: dict[str, str] = {}
        self._fingerprints: dict[str, str] = {}

    def admit(self) -> None:
        """All steps but the last, in order."""
        self.power_on()
        self.introduce_and_activate()
        self.impostor()
        self.approve()
        self.attest()
        self.certify()

    def id_of(self, machine: Machine) -> str:
        """Return the id that the service gave a machine."""
        return self._ids[machine.name]

    def power_on(self) -> None:
        """Give every machine a TPM."""
        self._out.step(
            f"{len(self._machines)} machines are switched on, each with a TPM of its own",
            "A TPM holds keys that never leave it. By one of them, the endorsement key (EK), a machine is known: its "
            "fingerprint is the machine's identity. Here the TPMs are software (swtpm) that behaves like the chip.",
        )
        with ThreadPoolExecutor(max_workers=4) as pool:
            list(pool.map(lambda machine: machine.make(self._authority), self._machines))
        for machine in self._machines:
            with machine.node() as node:
                identity = node.identify()
            self._fingerprints[machine.name] = parse_public(identity.ek_public).fingerprint()
            self._out.fact(machine.name, f"EK {self._fingerprints[machine.name][:32]}…")

    def introduce_and_activate(self) -> None:
        """Let every agent introduce its machine and prove the TPM."""
        self._out.step(
            "Introduce and activate",
            "The agent sends the public halves of the EK and of an attestation key (AK). Public things prove nothing, "
            "so the service seals a secret that only the TPM holding both keys can open. Opening it proves that the AK "
            "lives in that TPM. What the machine says about itself beside that is a hint, never believed.",
        )
        self.round()
        for machine in self._machines:
            found = self._find(machine)
            self._ids[machine.name] = found.machine_id
            self._out.fact(
                machine.name,
                f"activated; machine {found.machine_id[:8]}, status {found.status}, assurance {found.assurance}",
            )

    def impostor(self) -> None:
        """Show what everything public of a machine is worth: nothing."""
        victim = self._machines[0]
        self._out.step(
            f"A stranger pretends to be {victim.name}",
            f"They have copied everything about {victim.name} that is public: its EK certificate, both public keys, "
            "its fingerprint. They even receive a sealed secret, and must guess what is in it.",
        )
        with victim.node() as node:
            identity, ak = node.identify(), node.ak_public()
        request = IntroduceRequest(
            ek_public=b64encode(identity.ek_public),
            ek_source=identity.ek_source,
            ek_cert_pem=b64encode(identity.ek_certificate) if identity.ek_certificate else None,
            ek_fingerprint=self._fingerprints[victim.name],
            ak_public=b64encode(ak),
        )
        with NodeClient(self._service.url) as client:
            answer = client.introduce(request)
            guess = ActivateRequest(
                challenge_id=answer.credential().challenge_id, proof=b64encode(secrets.token_bytes(32))
            )
            try:
                client.activate(answer.machine_id, guess)
            except ActivationFailed as e:
                self._out.fact(
                    "stranger",
                    f"refused: {e.code}; the challenge is spent, {victim.name} is untouched",
                    good=False,
                )
                return
        raise Failed("an impostor was let in")

    def approve(self) -> None:
        """Decide, as operators: one for a worker, two for a control plane."""
        self._out.step(
            "Operators approve: one for a worker, two for a control plane",
            "Proof of a TPM is not yet permission. An operator compares the fingerprint with the one read on the "
            "machine's own console, and decides about role, name and address. A control plane holds the keys of the "
            "cluster, so a second human looks at what the first proposed and agrees to that, by its digest "
            "(`attestation approval approve`): ITL_DUAL_CONTROL_ROLES=controlplane. And a "
            "vendor must vouch for its TPM; for a software TPM none does, so the two accept this very EK by name.",
        )
        for machine in self._machines:
            found = self._recognise(machine)
            if found.status is not Status.PENDING_APPROVAL:
                self._out.fact(machine.name, f"was approved before as {found.role}; status {found.status}")
                continue
            request = ApproveRequest(
                role=Role(machine.role),
                hostname=machine.name,
                assigned_ip=f"10.0.0.{10 + machine.number}/24",
                expected_version=found.version,
            )
            if request.role is Role.CONTROLPLANE:
                self._refused_without_vendor(machine, request)
                request = request.model_copy(update={"accept_ek": True})
            answer = self._alice.approve(found.machine_id, request)
            if isinstance(answer, PendingApproval):
                answer = self._second_vote(machine, request, answer)
            elif request.role is Role.CONTROLPLANE:
                raise Failed(f"{machine.name} was let in by alice alone")
            else:
                self._approved(machine, answer, "alice")

    def _refused_without_vendor(self, machine: Machine, request: ApproveRequest) -> None:
        """Show that a TPM for which no vendor vouches does not become a control plane."""
        try:
            self._alice.approve(self._ids[machine.name], request)
        except AssuranceTooLow as e:
            self._out.fact(
                machine.name, f"refused as {request.role}: {e.code}, no vendor vouches", good=False
            )
            return
        raise Failed(f"{machine.name} would be a control plane although no vendor vouches for its TPM")

    def _second_vote(self, machine: Machine, request: ApproveRequest, vote: PendingApproval) -> MachineDetail:
        """Show that one vote is not enough, however often it is given, and that the second one decides."""
        again = self._alice.approve(self._ids[machine.name], request)
        after = self._find(machine)
        if after.status is not Status.PENDING_APPROVAL or not isinstance(again, PendingApproval):
            raise Failed(f"{machine.name} was let in by alice alone")
        self._out.fact(
            machine.name,
            f"alice votes: {again.approvals_received} of {vote.approvals_required}, though she asks twice; "
            f"status {after.status}",
        )
        # As `attestation approval approve` does: bob sees it whole, compares the fingerprint, agrees to that digest.
        proposal = self._bob.proposal(vote.proposal_digest)
        if proposal.proposal["ek_fingerprint"] != self._recognise(machine).ek_fingerprint:
            raise Failed(f"{machine.name} is not the machine that alice proposed")
        answer = agree(self._bob, proposal, "fingerprint compared")
        if not isinstance(answer, MachineDetail):
            raise Failed(f"{machine.name} waits although alice and bob have voted for the same")
        self._approved(machine, answer, "bob agrees")
        return answer

    def _recognise(self, machine: Machine) -> MachineDetail:
        """Return the machine as the service knows it, if it is the one whose fingerprint was read on its console."""
        found = self._find(machine)
        if found.ek_fingerprint != self._fingerprints[machine.name]:
            raise Failed(f"{machine.name} is not the machine it should be")
        return found

    def _approved(self, machine: Machine, found: MachineDetail, who: str) -> None:
        self._out.fact(
            machine.name,
            f"{who}: fingerprint compared; approved as {found.role}, status {found.status}",
        )

    def attest(self) -> None:
        """Let every agent attest, and open the configuration it gets."""
        self._out.step(
            "Attest, and receive the sealed configuration",
            "The TPM signs what was measured at boot (its PCRs) over a challenge that is good once, for 60 seconds. "
            "The configuration arrives encrypted with a key that opens only inside this TPM, with this AK. The agent "
            "checks it, writes it with mode 0600, and runs the apply command.",
        )
        self.round()
        for machine in self._machines:
            found = self._find(machine)
            if found.status is not Status.ATTESTED or not machine.config_path.exists():
                raise Failed(f"{machine.name} is {found.status} and has no configuration; see {machine.log}")
            self._out.fact(
                machine.name,
                f"{found.status}, trust {found.trust}; "
                f"configuration of {machine.config_path.stat().st_size} bytes opened",
            )
        shown = self._machines[0]
        self._out.say(f"       the configuration of {shown.name}, as its TPM opened it (secrets left out):")
        lines = shown.config_path.read_text(encoding="utf-8").splitlines()
        secret = ("token:", "secret:")
        self._out.quote(
            "\n".join(x if not x.strip().startswith(secret) else x.split(":")[0] + ": ***" for x in lines)
        )
        self._out.warn("Under the shipped policy identity-only the boot state is recorded, not appraised.")

    def certify(self) -> None:
        """Show the certificates that the agents got, and what a key outside a TPM gets."""
        self._out.step(
            "A certificate, for a key that cannot leave the TPM",
            "The agent made a key in the TPM, and the AK certified it over a fresh challenge: made here, fixed here. "
            "Only then does the enrollment CA sign, for 24 hours; the agent renews in time. Other programs use the key "
            "through the TPM. A lock suspends the certificate at once, by CRL and OCSP.",
        )
        for machine in self._machines:
            certificate = x509.load_pem_x509_certificate(machine.certificate_path.read_bytes())
            names = certificate.subject.get_attributes_for_oid(NameOID.ORGANIZATIONAL_UNIT_NAME)
            self._out.fact(
                machine.name,
                f"OU {names[0].value!s}, until {certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC, "
                f"serial {certificate.serial_number:040x}"[:80]
                + "…",
            )
        self._software_key(self._machines[0])

    def _software_key(self, machine: Machine) -> None:
        """Ask for a certificate for a key on disk, certified by nobody."""
        key = ec.generate_private_key(ec.SECP384R1())
        request = (
            x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, hashes.SHA384())
        )
        with NodeClient(self._service.url) as client, machine.node() as node:
            challenge = client.certificate_challenge(self._ids[machine.name], "certify")
            made = node.create_signing_key(KeyType.ECC_P256)
            info = parse_csr(request.public_bytes(Encoding.DER)).request_info
            statement = node.certify_key(made, csr_binding(b64decode(challenge.nonce, "nonce"), info))
            stolen = CertRequest(
                nonce_id=challenge.nonce_id,
                csr_pem=request.public_bytes(Encoding.PEM).decode("ascii"),
                key_public=b64encode(made.public),
                certify_info=b64encode(statement.certify_info),
                certify_signature=b64encode(statement.signature),
            )
            try:
                client.request_certificate(self._ids[machine.name], stolen)
            except AttestationError as e:
                self._out.fact("disk key", f"made outside the TPM; refused: {e.code}", good=False)
            else:
                raise Failed("the service certified a key outside a TPM")

    def verify_audit(self) -> None:
        """Walk the audit chain."""
        self._out.step(
            "The record, read by carol, who audits and decides nothing",
            "Every decision and every change of trust is an entry, a leaf of one Merkle tree. The service signs its "
            "root with Ed25519 and ML-DSA-44. Whoever has such a checkpoint notices any later change, without "
            "believing the service or its database.",
        )
        verdict = self._carol.verify_audit()
        if not verdict.valid:
            raise Failed(f"the audit chain is broken at {verdict.first_invalid_id}: {verdict.error}")
        shown = self._machines[0]
        for entry in reversed(list(self._carol.audit(machine_id=self._ids[shown.name]))):
            change = f"{entry.prev_state or '–'} → {entry.new_state or '–'}"
            self._out.fact(shown.name, f"{entry.action:<16} by {entry.operator_cn:<10} {change}")
        self._out.fact("audit", f"{verdict.entries} entries, chain valid")
        self._verify_export()

    def _verify_export(self) -> None:
        """Verify a copy of the log as a third party would, then one in which a name was changed."""
        with httpx.Client(base_url=f"{self._service.url}/api/v1/audit", trust_env=False, timeout=60) as http:
            keys = http.get("/keys").raise_for_status().json()["vkeys"]
            auditor = {"Authorization": f"Bearer {self._auditor_token}"}
            copy = http.get("/export", headers=auditor).raise_for_status().content
        pinned = Pinned(log_keys=tuple(parse_vkey(key) for key in keys), witnesses=(), quorum=0)

        def judge(data: bytes) -> VerifiedLog:
            verifier = LogVerifier(pinned=pinned, earlier=())
            verifier.feed(data)
            return verifier.finish()

        verdict = judge(copy)
        signers = len(verdict.head.signers)
        self._out.fact(
            "checkpoint", f"{verdict.entries} entries, root {verdict.root.hex()[:16]}…, {signers} signatures"
        )
        self._out.fact("export", "verified without the service: nothing changed, removed or moved")
        forged = copy.replace(b'"operator_cn":"alice"', b'"operator_cn":"mallo"')
        if forged == copy:
            return
        try:
            judge(forged)
        except LogBroken as e:
            self._out.fact("forgery", f"mallo for alice in a copy: {e}", good=False)
            return
        raise Failed("a forged copy of the audit log was believed")

    def round(self) -> None:
        """Let every agent come once."""
        for machine in self._machines:
            machine.start_agent(once=True)
        for machine in self._machines:
            machine.wait_for_agent()

    def _find(self, machine: Machine) -> MachineDetail:
        fingerprint = self._fingerprints[machine.name]
        if machine.name in self._ids:
            return self._alice.machine(self._ids[machine.name])
        for found in self._alice.machines(q=machine.serial):
            if found.ek_fingerprint == fingerprint:
                return found
        raise Failed(f"{machine.name} is not known to the service; see {machine.log}")


def next_steps(
    out: Narrator,
    service: Service,
    identity: IdentityProvider,
    machines: Sequence[Machine],
    data: Path,
) -> None:
    """Say where everything is and what can be typed."""
    out.say()
    out.say(f"   Service        {service.url} (its API is described at /docs)")
    out.say(f"   Break-glass    {service.token_file} (never votes)")
    out.say(f"   Files          {data}")
    out.say()
    out.say("   In another terminal:")
    out.say()
    out.say(f"     export PATH={shlex.quote(str(BIN))}:$PATH")
    out.say(f"     export ITL_API_URL={service.url}")
    out.say(f"     export ITL_OIDC_ISSUER={identity.issuer}")
    out.say("     attestation auth login             # as alice; no browser: --method device")
    out.say("     attestation auth whoami")
    out.say("     attestation machine list")
    out.say("     attestation query 'Machines | summarize machines = count() by role, trust'")
    if machines:
        first, last = machines[0], machines[-1]
        out.say(f"     attestation machine get {first.name}")
        state = shlex.quote(str(first.directory / "state"))
        tpm = shlex.quote(first.tpm.uri)
        out.say(f"     export ITL_REG_URL={service.url} ITL_TPM={tpm} ITL_STATE_DIR={state}")
        out.say(f"     attestation-agent cert             # the agent of {first.name}, by the line above")
        if len(machines) > 1:
            out.say(f"     attestation-agent secret get {SECRET} --shared")
        out.say(f"     attestation-agent identity token --audience {AUDIENCE}")
        out.say(f"     openssl x509 -in {shlex.quote(str(first.certificate_path))} -noout -text")
        out.say(f"     attestation machine lock {last.name}       # obeyed at the next attestation")
        out.say(f"     attestation machine explain {last.name}    # why is it not attested?")
        gated = "      # a vote: bob must agree" if last.role == Role.CONTROLPLANE else ""
        out.say(f"     attestation machine unlock {last.name}{gated}")
        out.say(f"     tail -f {shlex.quote(str(last.log))}")
    out.say("     attestation auth login             # as carol: operators do not audit")
    out.say("     attestation audit list")
    out.say("     attestation audit keys > log.vkeys          # to be pinned, once")
    out.say("     attestation audit export -f audit.jsonl --force --vkeys-file log.vkeys")
    out.say("     attestation audit verify audit.jsonl --vkeys-file log.vkeys")
    out.say()


def welcome(out: Narrator, identity: IdentityProvider, dashboard: Dashboard, tasks: Tasks | None) -> None:
    """End with what a newcomer needs first: the address, who they can be, and what to do there."""
    out.say(f"   Dashboard      {dashboard.url}")
    for i, account in enumerate(identity.people.values()):
        person = account.person
        before = "Log in as" if i == 0 else ""
        out.say(f"   {before:<14} {person.username:<6} {account.password}   {', '.join(person.roles)}")
    out.say()
    if tasks is not None:
        tasks.tell()


def stay(
    out: Narrator,
    service: Service,
    identity: IdentityProvider,
    dashboard: Dashboard,
    machines: Sequence[Machine],
    tasks: Tasks | None,
) -> None:
    """Keep the service up until Ctrl-C; the machines keep attesting."""
    for machine in machines:
        machine.start_agent(once=False)
    # Those of the tasks run already.
    machines = [*machines, *(tasks.machines if tasks else ())]
    if machines:
        out.say(f"   The machines attest again every {REATTEST_SECONDS} seconds.")
    out.say("   Ctrl-C stops everything.")
    gone: set[str] = set()
    while service.running and identity.running and dashboard.running:
        time.sleep(0.5)
        for machine in machines:
            if not machine.agent_running and machine.name not in gone:
                gone.add(machine.name)
                out.warn(f"the agent of {machine.name} has ended; see {machine.log}")
    ended = next(each for each in (service, identity, dashboard) if not each.running)
    raise Failed(f"a process of the demo has ended; see {ended.log}")


def ask_to_stop(machines: Sequence[Machine]) -> None:
    """Tell all agents to stop, before anybody waits for the first."""
    for machine in machines:
        machine.ask_agent_to_stop()


@contextmanager
def _postgres(data: Path) -> Iterator[str]:
    """Run a server of PostgreSQL whose databases stay in *data*, and yield the URL of the service's.

    Raises:
        Failed: It does not start.
    """
    from tools.postgres import server  # here: its driver is for --postgres only

    kept = data / "postgres"
    new = not kept.exists()
    with ExitStack() as stack:
        try:
            running = stack.enter_context(server(kept))
        except RuntimeError as e:
            raise Failed(str(e)) from None
        url = running.create("attestation") if new else running.url("attestation")
        yield url.replace("postgresql:", "postgresql+psycopg:", 1)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="./dev run", description="Start the service and walk a fleet through it."
    )
    parser.add_argument(
        "--machines", type=int, default=len(FLEET), metavar="N", help=f"how many (default {len(FLEET)})"
    )
    parser.add_argument("--no-demo", action="store_true", help="only the service, with no machines")
    parser.add_argument(
        "--data", type=Path, metavar="DIR", help="keep everything there; default .run, made anew by each demo"
    )
    parser.add_argument(
        "--extensions",
        type=lambda text: tuple(each for each in text.split(",") if each),
        default=(),
        metavar="NAME,…",
        help="extensions to enable beside the demo's own; each ITL_EXT_… that is set here is theirs",
    )
    parser.add_argument("--port", type=int, metavar="P", help=f"default {DEFAULT_PORT}, or a free one")
    parser.add_argument(
        "--postgres",
        action="store_true",
        help=f"on PostgreSQL instead of SQLite, {REPLICAS} replicas behind nginx",
    )
    parser.add_argument(
        "--kubernetes",
        action="store_true",
        help="two machines become nodes of a real Kubernetes API, and a stranger with their token does not; with "
        "--confidential nodes are asked for evidence instead, with --hsm a CA key is made on a token",
    )
    parser.add_argument(
        "--hsm",
        action="store_true",
        help="with --kubernetes: certificates of the cluster come from a CA key that stays on a token (SoftHSM)",
    )
    parser.add_argument(
        "--confidential",
        action="store_true",
        help="two guests of confidential hardware (software, TEST ONLY) join too, and three wrong ones do not",
    )
    parser.add_argument("--exit-after-demo", action="store_true", help="stop after the last step")
    return parser


def run(options: argparse.Namespace) -> None:
    """Run the demo as asked for."""
    out = Narrator()
    with ExitStack() as stack:
        stack.enter_context(alone((options.data or DEFAULT_DATA).absolute()))
        data = prepare_data(options.data, demo=not options.no_demo)
        port = port_of(options)
        seen_at = f"http://127.0.0.1:{free_port(DEFAULT_DASHBOARD_PORT)}"
        identity = IdentityProvider(data, free_port(DEFAULT_IDENTITY_PORT), seen_at)
        stack.callback(identity.stop)
        identity.start()
        database, replicas = "", []
        if options.postgres:
            database = stack.enter_context(_postgres(data))
            replicas = [free_port() for _ in range(REPLICAS)]
        theirs = {name: value for name, value in os.environ.items() if name.startswith("ITL_EXT_")}
        more = prepare_extensions(data, free_port(), names=options.extensions, settings=theirs)
        more |= prepare_confidential(data) if options.confidential else {}
        service = Service(data, port, identity.issuer, database=database, replicas=replicas, more=more)
        service.prepare([role.value for role in Role])
        out.say("Is this the physical machine we expect, and may it join the cluster?")
        stack.callback(service.stop)
        dashboard = Dashboard(data, seen_at, service, identity)
        stack.callback(dashboard.stop)
        dashboard.start()
        identity.wait()
        service.start()
        dashboard.wait()
        out.say()
        if options.postgres:
            behind = " and ".join(f"http://127.0.0.1:{each}" for each in replicas)
            out.say(f"   The service runs at {service.url}: nginx, before the replicas {behind},")
            out.say(f"   on PostgreSQL, {database}")
        else:
            out.say(f"   The service runs at {service.url}, on SQLite in {data}.")
        out.say(f"   The dashboard is at {dashboard.url}.")
        out.say(f"   Operators log in at {identity.issuer} (an identity provider for demos only).")
        for warning in service.warnings():
            out.warn(f"the service warns: {warning}")
        machines: list[Machine] = []
        tasks: Tasks | None = None
        if not options.no_demo:
            for i in range(options.machines):
                name, role = FLEET[i % len(FLEET)]
                machine = Machine(
                    name=f"{name}-{i // len(FLEET) + 1}",
                    directory=data / "machines" / f"{name}-{i // len(FLEET) + 1}",
                    server_url=service.url,
                    role=role.value,
                    number=i + 1,
                )
                machines.append(machine)
                stack.callback(machine.stop)
            authority = CertificateAuthority(MANUFACTURER)
            tasks = Tasks(out, data / "machines", service.url, authority)
            for machine in tasks.machines:
                stack.callback(machine.stop)
            # Last in, first out.
            stack.callback(ask_to_stop, [*machines, *tasks.machines])
            with ExitStack() as logged_in:
                tokens = {name: identity.sign_in(name) for name in identity.people}
                people = {
                    name: logged_in.enter_context(OperatorClient(service.url, token))
                    for name, token in tokens.items()
                }
                show = Show(out, service, people, tokens["carol"], machines, authority)
                show.admit()
                if options.machines > 1:
                    ids = [show.id_of(machine) for machine in machines]
                    Extras(out, service, people["alice"], machines, ids, show.round).run()
                if options.confidential:
                    Guests(out, service, people["alice"], people["carol"], data).run()
                show.verify_audit()
                if not options.exit_after_demo:
                    tasks.prepare(people["alice"])
        if not options.exit_after_demo:
            next_steps(out, service, identity, machines, data)
            welcome(out, identity, dashboard, tasks)
            stay(out, service, identity, dashboard, machines, tasks)


def run_kubernetes(options: argparse.Namespace) -> None:
    """Run the demo of a cluster whose nodes prove themselves."""
    question = "Is this node the machine we expect, and may it join the cluster?"
    with with_cluster(
        options, question, lambda cluster, _: {"ITL_KUBERNETES_CLUSTERS": clusters_setting(cluster)}
    ) as begun:
        out, service, cluster, data = begun.out, begun.service, begun.cluster, begun.data
        machines = _two_machines(begun, NODES)
        nodes = Nodes(out, service, cluster, data, free_port)
        begun.stop_before_cluster(nodes.controllers.stop)
        people = begun.sign_in()
        show = Show(out, service, people, begun.token("carol"), machines, CertificateAuthority(MANUFACTURER))
        show.power_on()
        show.introduce_and_activate()
        show.approve()
        show.attest()
        nodes.start_cluster()
        nodes.start_controllers()
        first, second = machines
        nodes.join(first, second)
        nodes.strangers(first)
        nodes.liar(second, first)
        nodes.lock(second, people["alice"], show.id_of(second))
        if not options.exit_after_demo:
            next_steps_on_kubernetes(out, service, begun.identity, nodes, machines, data)
            begun.stay(lambda: nodes.controllers.ended)


def run_runs(options: argparse.Namespace) -> None:
    """Run the demo of a cluster whose nodes are asked for evidence."""

    def settings(cluster: Cluster, data: Path) -> dict[str, str]:
        return {
            "ITL_KUBERNETES_CLUSTERS": clusters_setting(cluster, service_accounts=SERVICE_ACCOUNTS),
            # What is sealed is in the log with its next checkpoint; a demo is watched.
            "ITL_AUDIT_CHECKPOINT_SECONDS": "2",
            **prepare_confidential(data),
        }

    with with_cluster(options, "Is this node what it claims to be?", settings) as begun:
        out, service, data = begun.out, begun.service, begun.data
        machines = _two_machines(begun, MACHINES_ASKED)
        runs = Runs(data / "programs", begun.cluster, service.url, free_port)
        begun.stop_before_cluster(runs.stop)
        people = begun.sign_in()
        show = Show(out, service, people, begun.token("carol"), machines, CertificateAuthority(MANUFACTURER))
        show.power_on()
        show.introduce_and_activate()
        show.approve()
        guests = Guests(out, service, people["alice"], people["carol"], data, tdx=GUEST)
        guests.introduce()
        guests.approve()
        asked = Asked(out, service, runs, data)
        asked.start_cluster()
        asked.start_programs(machines)
        first, second = machines
        asked.state_policies(first)
        asked.good(first)
        asked.guest()
        asked.broken(second)
        asked.events()
        asked.labels()
        asked.sealed(begun.token("alice"), people["carol"].audit_keys().vkeys)
        if not options.exit_after_demo:
            next_steps_of_runs(out, service, begun.identity, asked, runs, data)
            begun.stay(lambda: runs.ended)


def run_hsm(options: argparse.Namespace) -> None:
    """Run the demo of a cluster whose CA keys are in hardware."""
    with with_cluster(
        options, "Where is the key of this cluster's CA, and who may use it?", hsm_settings
    ) as begun:
        hsm = Hsm(begun.data / "programs", begun.cluster, begun.service.url, free_port)
        begun.stop_before_cluster(hsm.stop)
        people = begun.sign_in()
        held = Held(begun.out, begun.service, hsm, begun.data)
        held.make_token()
        held.start_cluster()
        held.start_controller()
        held.make_issuer()
        held.show_key()
        held.issue()
        held.refuse()
        held.revoke(people["alice"])
        handed = HandedOver(begun.out, begun.service, hsm, begun.data, begun.token("alice"))
        handed.prepare(people["alice"])
        handed.hand_over()
        handed.issue(request_for("pay.bank.example"))
        handed.refuse()
        held.record(people["carol"])
        if not options.exit_after_demo:
            next_steps_of_hsm(begun.out, begun.service, hsm, held, begun.data)
            begun.stay(lambda: hsm.ended)


def _two_machines(begun: Begun, names: Sequence[str]) -> list[Machine]:
    """Return machines that stop with the demo."""
    machines = [
        Machine(
            name=name,
            directory=begun.data / "machines" / name,
            server_url=begun.service.url,
            role=Role.WORKER_APP.value,
            number=number,
        )
        for number, name in enumerate(names, start=1)
    ]
    for machine in machines:
        begun.stack.callback(machine.stop)
    begun.stack.callback(ask_to_stop, machines)
    return machines


def _terminated(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def main() -> int:
    """Run; return the exit status."""
    parser = _parser()
    options = parser.parse_args()
    if options.kubernetes and (options.postgres or options.no_demo or options.machines != len(FLEET)):
        parser.error("--kubernetes has two machines, and a service on SQLite")
    if options.hsm and (options.confidential or not options.kubernetes):
        parser.error("--hsm is for --kubernetes, without --confidential")
    if not 1 <= options.machines <= MAX_MACHINES:
        parser.error(f"--machines must be between 1 and {MAX_MACHINES}")
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _terminated)
    try:
        if options.kubernetes:
            chosen = run_runs if options.confidential else run_hsm if options.hsm else run_kubernetes
            chosen(options)
        else:
            run(options)
    except KeyboardInterrupt:
        print("\n   Stopped.", flush=True)
    except (Failed, AttestationError, KubernetesMissing) as e:
        print(f"\n./dev run: {e}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
