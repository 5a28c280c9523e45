"""Every command against the real application (FAULTS R32)."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click
import httpx
import pytest
from click.testing import CliRunner, Result

from attestation.store import Tx
from attestation.wire import b64decode
from attestation_agent.exits import Exit
from attestation_cli.groups import GROUPS
from attestation_cli.main import cli
from attestation_cli.session import Session
from attestation_cli.watch import Watch
from attestation_testing import SoftwareNode, boot, boot_log
from tests.contract.test_store_acme import an_account, an_order
from tests.contract.test_store_console_codes import a_code
from tests.fixtures.collateral import GOOD, write_anchors, write_export
from tests.fixtures.company import Company
from tests.fixtures.in_process import InProcess, InProcessService, in_process_service
from tests.fixtures.machine import Machine
from tests.fixtures.over_httpx import OverHTTPX
from tests.fixtures.vendor import ROOT, vouched
from tests.integration.agent.rig import Rig
from tests.unit.reference.test_corim import MEASUREMENT, comid, corim
from tests.unit.service.people import introduce

OPERATORS = ("read", "act", "audit", "metrics")
"""What `x-access` says of a route for operators."""
FOR_OTHER_CLIENTS = {
    "/api/v1/audit/tile/{path}": "clients of transparency logs; operators take `audit export`",
    "/api/v1/audit/tile/entries/{path}": "likewise",
    "/api/v1/policies/schema": "editors; `policy validate` has the rules with it",
    "/api/v1/machines/{machine_id}/results/{result_id}/ima-log": "tools that read measurement lists",
    "/api/v1/trust/certificates/{sha256}": "programs; `trust list` has all of them",
    "/api/v1/hsm/issuers": "`hsm list`, of the operator's distribution: tests/unit/operator/hsm/test_commands.py",
    "/api/v1/hsm/issuers/{issuer_id}/certificates": "`hsm certificates`, likewise",
    "/api/v1/hsm/certificates/{serial}/revoke": "`hsm revoke`, likewise",
    "/api/v1/hsm/quote-attestations": "who looks for evidence; its objects say the same in their cluster",
    "/api/v1/runs/{uid}/bundle": "`run bundle`, of the operator's distribution: tests/integration/kubernetes",
}
"""Who reads what no command does."""
TESTED_ELSEWHERE = {
    "auth": "against a real provider: tests/integration/identity/test_cli_login.py",
    "bundle": "asks nobody: tests/unit/cli/test_bundle.py",
    "crypto": "asks nobody: tests/unit/cli/test_crypto.py",
    "dev": "asks nobody: tests/unit/testing/test_ek_zoo.py",
    "result": "asks nobody: tests/unit/cli/test_result.py",
    "tpm-bundle": "asks nobody: tests/unit/cli/test_tpm_bundle.py",
    "witness": "with its own server: tests/integration/cli/test_audit_live.py",
}


class Recorder(httpx.BaseTransport):
    """Carries requests on and remembers which routes they took."""

    def __init__(self, inner: httpx.BaseTransport) -> None:
        self._inner = inner
        self.routes: list[tuple[str, str]] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Pass one request on."""
        self.routes.append((request.method, request.url.path))
        return self._inner.handle_request(request)


class Terminal:
    """An operator in front of the command line."""

    def __init__(self, service: InProcessService, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ITL_ADMIN_TOKEN", service.admin_token)
        self.transport = Recorder(InProcess(service.app, service.run, "198.51.100.1"))
        self.used: set[str] = set()
        self._monkeypatch = monkeypatch
        self._break_glass = service.admin_token
        service.app.state.resources, self._people = introduce(service.app.state.resources)

    def sit_down(self, name: str | None) -> None:
        """Let another person use it; None is break-glass."""
        bearer = self._people.headers(name)["Authorization"] if name else f"Bearer {self._break_glass}"
        self._monkeypatch.setenv("ITL_ADMIN_TOKEN", bearer.removeprefix("Bearer "))

    def run(self, *args: str, answer: str | None = None) -> Result:
        """Type a command."""
        self.used |= {" ".join(args[:2]), args[0]} & commands()
        session = Session(carrier=OverHTTPX(self.transport))
        return CliRunner().invoke(cli, list(args), obj=session, input=answer, catch_exceptions=False)

    def ok(self, *args: str) -> str:
        """Type a command that must succeed, and return what it printed."""
        done = self.run(*args)
        assert done.exit_code == 0, f"{args}: {done.output}"
        return done.stdout

    def agreed(self) -> str:
        """Return the digest of the one proposal that waits, of which the list shows the beginning."""
        (waiting,) = self.json("approval", "list")
        digest: str = waiting["proposal_digest"]
        assert digest[:16] in self.ok("approval", "list", "-o", "table")
        return digest

    def json(self, *args: str) -> Any:
        """Type a command and read its JSON."""
        return json.loads(self.ok(*args, "-o", "json"))


IMAGE = "https://images.example/itl-talos.iso"


@pytest.fixture
def local(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InProcessService]:
    """A service that lets nobody alone make a controlplane; whoever uses it has an empty home."""
    tmp_path.chmod(0o700)
    monkeypatch.setenv("HOME", str(tmp_path))
    settings = {
        "iso_url": IMAGE,
        "config_encryption_key": "ab" * 32,
        "config_file_fallback": True,
        "dual_control_roles": ["controlplane"],
        "enrollment_ca_unencrypted": True,
        "operator_certificates": True,
        "console_approval": True,
        "extensions": ("metrics",),
        "tee_test_anchors": write_anchors(tmp_path / "anchors.pem"),
    }
    with in_process_service(tmp_path / "service", **settings) as found:
        yield found


@pytest.fixture
def terminal(local: InProcessService, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    return Terminal(local, monkeypatch)


def commands() -> set[str]:
    ctx = click.Context(cli)
    found: set[str] = set()
    for name in set(GROUPS) - set(TESTED_ELSEWHERE):
        command = cli.get_command(ctx, name)
        assert command is not None
        found |= {f"{name} {c}" for c in command.commands} if isinstance(command, click.Group) else {name}
    return found


def ordered(tx: Tx) -> None:
    """Let there be an ACME account, and an order that came to nothing."""
    tx.acme.add_account(an_account(account_id="0" * 32))
    tx.acme.add_order(an_order(account_id="0" * 32, machine_id="0" * 8 + "-0000-4000-8000-" + "0" * 12))
    tx.acme.failed("order-1", '{"detail": "rejected"}')


def asked(tx: Tx) -> None:
    """Let two machines show codes on their consoles."""
    at = datetime.now(UTC)
    ends = {"expires_at": at + timedelta(hours=1), "kept_until": at + timedelta(hours=2)}
    tx.console_codes.add(a_code(1, user_code="BBBB-CCCC", **ends))
    tx.console_codes.add(a_code(2, user_code="DDDD-FFFF", **ends))


def interrupt(seconds: float) -> None:
    """Press Ctrl-C instead of waiting."""
    raise KeyboardInterrupt


def test_every_command_works_and_every_operator_route_is_reached(
    local: InProcessService, terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One tour through the life of a fleet; at its end no command and no route of the API is left out."""
    # Three machines introduce themselves.
    fleet = [
        Rig(local, tmp_path, seed=seed, wipe_command="wipe", event_log=str(tmp_path / f"log-{seed}"))
        for seed in (1, 2, 3)
    ]
    measured = boot_log()
    boot(fleet[2].tpm, measured)
    (tmp_path / "log-3").write_bytes(measured.serialise())
    for rig in fleet:
        assert rig.once() is Exit.PENDING_APPROVAL
    first, second, third = (rig.machine_id for rig in fleet)
    listed = terminal.json("machine", "list", "--status", "pending_approval")
    assert {m["machine_id"] for m in listed} == {first, second, third}
    assert terminal.ok("machine", "list").count("tofu") == 3

    # One is explained, approved by a short id and its fingerprint, attests, and is explained again.
    told = terminal.run("machine", "explain", first[:8])
    assert told.exit_code == 1
    assert "waits for an operator's approval" in told.stdout
    fingerprint = fleet[0].tpm.ek.public.fingerprint()[:20]
    approve = [
        "--role",
        "worker-app",
        "--hostname",
        "w-1",
        "--ip",
        "10.0.0.11/24",
        "--fingerprint",
        fingerprint,
    ]
    assert "approved as worker-app" in terminal.ok("machine", "approve", first[:8], *approve)
    assert fleet[0].once() is Exit.OK
    shown = terminal.json("machine", "get", "w-1")
    assert (shown["status"], shown["trust"]) == ("attested", "verified")
    assert "Boot state not appraised" in terminal.ok("machine", "explain", "w-1")
    assert "Verified" in terminal.ok("machine", "results", "w-1")
    assert "passed" in terminal.ok("machine", "results", "w-1", "--checks")
    number = str(terminal.json("machine", "results", "w-1")[0]["result_id"])
    assert terminal.ok("machine", "results", "w-1", number, "--ear", "draft-04").count(".") == 2
    assert "no event log" in terminal.run("machine", "event-log", "w-1").stderr.lower()
    assert terminal.run("machine", "event-log", "w-1", "--raw", str(tmp_path / "log")).exit_code == 3
    assert fleet[0].tpm.ak.public.name.hex() in terminal.ok("machine", "ak-activate", "w-1", "-o", "csv")
    terminal.ok("machine", "label", "w-1", "rack=4")
    (labelled,) = terminal.json("machine", "list", "-l", "rack=4")
    assert labelled["machine_id"] == first

    # It is locked, unlocked, sent its configuration again, given another key.
    assert "locked" in terminal.ok("machine", "lock", "w-1", "-r", "smells of smoke")
    assert terminal.run("machine", "lock", "w-1").exit_code == 5
    assert terminal.run("machine", "explain", "w-1").exit_code == 1
    terminal.ok("machine", "unlock", "w-1")
    terminal.ok("machine", "redeliver", "w-1")
    offline = tmp_path / "w-1.json"
    assert "switched off" in terminal.run("machine", "offline-bundle", "w-1", "-f", str(offline)).stderr
    assert not offline.exists()
    terminal.ok("machine", "ak-reset", "w-1", "-r", "new board", "--yes")
    assert fleet[0].once() is Exit.OK

    # A policy that it does not meet makes it fail, and the reason is told to operators.
    strict = tmp_path / "strict.json"
    rules = {"7": {"any_of": ["ff" * 32]}}
    document = {"format": "itl-tpm-policy/1", "name": "strict", "version": 1, "bank": "sha256", "pcrs": rules}
    strict.write_text(json.dumps(document))
    assert "strict@1: stored" in terminal.ok("policy", "create", str(strict))
    assert terminal.run("policy", "create", str(strict)).exit_code in (0, 5)
    terminal.ok("policy", "assign", "strict@1", "--machine", "w-1")
    assert "strict@1" in terminal.ok("policy", "list")
    fleet[0].rounds(2)
    failed = terminal.run("machine", "explain", "w-1")
    assert failed.exit_code == 1
    assert "ff" * 32 in failed.stdout
    assert "00" * 32 in failed.stdout
    terminal.ok("policy", "unassign", "--machine", "w-1", "--yes")
    fleet[0].rounds(2)
    assert terminal.json("machine", "get", "w-1")["trust"] == "verified"

    # One is learned from what it proves, read, compared, tried, stored, activated, looked at and put back.
    learned = tmp_path / "learned.yaml"
    fleet[0].tpm.pcrs["sha256"][7] = b"\x07" * 32  # A machine that measured nothing teaches nothing.
    fleet[0].rounds(1)
    assert "pcr7" in terminal.ok(
        "policy", "learn", "--machine", "w-1", "--name", "workers", "-f", str(learned)
    )
    assert "workers@1" in terminal.ok("policy", "validate", str(learned))
    assert "PCR 7" in terminal.ok("policy", "diff", "strict@1", str(learned))
    assert terminal.run("policy", "test", "strict@1").exit_code == 1, "w-1 would newly fail"
    tried = terminal.json("policy", "test", str(learned), "--role", "worker-app")
    assert (tried["judged"], tried["passed"], tried["failing"]) == (1, 1, [])
    terminal.ok("policy", "create", str(learned))
    assert "workers@1" in terminal.ok("policy", "show", "workers")
    terminal.ok("policy", "activate", "workers@1", "--role", "worker-app")
    assert "workers@1" in terminal.ok("policy", "effective", "w-1")
    fleet[0].rounds(2)
    assert terminal.json("machine", "get", "w-1")["last_result"]["policy"] == "workers@1"
    terminal.ok("policy", "rollback", "--role", "worker-app", "--yes")
    terminal.sit_down("anna")
    vote = terminal.json("policy", "activate", "workers@1", "--role", "controlplane")
    assert vote["status"] == "pending_second_approval"
    terminal.sit_down("berta")
    assert "policy_assign done" in terminal.ok(*shlex.split(vote["next_command"])[1:], "--yes")
    assert "1 of 2 approvals" in terminal.ok("policy", "rollback", "--role", "controlplane", "--yes")
    terminal.sit_down("anna")
    assert "no policy of its own" in terminal.ok("policy", "unassign", "--role", "controlplane", "--yes")
    told = terminal.json("policy", "history", "--role", "controlplane")
    assert [(change["policy"], change["by"]) for change in told] == [(None, "anna"), ("workers@1", "berta")]
    terminal.sit_down(None)

    # One is rejected and forgotten, one admitted and revoked with a wipe.
    terminal.ok("machine", "reject", second, "-r", "not ours", "--yes")
    terminal.ok("machine", "delete", second, "--yes")
    assert terminal.run("machine", "get", second).exit_code == 3
    terminal.ok("machine", "approve", third, "--role", "generic")
    assert fleet[2].once() is Exit.OK
    terminal.ok("machine", "event-log", third, "--raw", str(tmp_path / "raw"))
    assert (tmp_path / "raw").read_bytes() == measured.serialise()
    terminal.ok("machine", "revoke", third, "--wipe", "--yes")
    assert fleet[2].once() is Exit.REVOKED
    assert terminal.json("machine", "get", third)["wiped_at"] is not None

    # Tokens and the allow-list admit machines in advance.
    created = terminal.json("token", "create", "--role", "worker-infra", "--expires-in", "1h")
    assert len(terminal.json("token", "list")) == 1
    assert created["token"] not in terminal.ok("token", "list")
    terminal.ok("token", "revoke", created["token_id"], "--yes")
    assert "revoked" in terminal.ok("token", "list")

    # Codes on the consoles of machines with stock images.
    local.run(local.app.state.resources.store.write(asked))
    assert "BBBB-CCCC" in terminal.ok("console", "list")
    assert "approved" in terminal.ok("console", "approve", "bbbbcccc", "--yes")
    assert "denied" in terminal.ok("console", "deny", "DDDD-FFFF", "--yes")

    # ACME: who may make an account, and what accounts ask for.
    made = terminal.json("acme", "key-create", "--note", "lego on app-1", "--expires-in", "1h")
    assert made["key_id"] in terminal.ok("acme", "keys")
    assert made["hmac_key"] not in terminal.ok("acme", "keys", "-o", "json")
    assert "revoked" in terminal.ok("acme", "key-revoke", made["key_id"], "--yes")
    assert "revoked" in terminal.ok("acme", "keys")
    assert "not shown again" in terminal.run("acme", "key-create").stderr
    local.run(local.app.state.resources.store.write(ordered))
    assert "rejected" in terminal.ok("acme", "orders")
    assert "valid" in terminal.ok("acme", "accounts")
    terminal.ok("acme", "account-revoke", "0" * 32, "--reason", "gone", "--yes")
    assert terminal.run("acme", "account-revoke", "1" * 32, "--reason", "gone", "--yes").exit_code == 3

    fourth = Rig(local, tmp_path, seed=4)
    csv = tmp_path / "allow.csv"
    csv.write_text(f"ek_fingerprint,role,hostname\n{fourth.tpm.ek.public.fingerprint()},worker-app,w-4\n")
    assert "1 added" in terminal.ok("allow-list", "import", str(csv))
    assert fourth.once() is Exit.OK
    assert terminal.json("machine", "get", fourth.machine_id)["assurance"] == "ek-allowlist"
    assert "ek-allowlist" in terminal.ok("machine", "list")
    assert "w-4" in terminal.ok("allow-list", "list")
    terminal.ok("allow-list", "remove", fourth.tpm.ek.public.fingerprint()[:12], "--yes")

    # Approval rules: anybody tries one, and several people make it.
    where = ("--where", 'machine.product == "Example 9000"')
    assert terminal.run("approval-rule", "try", *where).exit_code == 0
    assert "a person approves" in terminal.run("approval-rule", "list").stderr
    alone = terminal.run(
        "approval-rule", "create", "rack-4", *where, "--role", "worker-app", "--max-count", "2"
    )
    assert alone.exit_code == 4, "break-glass is nobody's vote"
    for act in ("enable", "disable", "remove"):
        assert terminal.run("approval-rule", act, "rack-4").exit_code == 3

    # Clusters: those that are declared, those that machines are in, and a slip of the pen.
    terminal.ok("cluster", "create", "prod", "--description", "racks 4 to 9")
    assert terminal.json("cluster", "set", "prod", "--description", "racks")["description"] == "racks"
    assert "racks" in terminal.ok("cluster", "show", "prod")
    assert "default  no" in terminal.ok("cluster", "list")
    slip = terminal.run("token", "create", "--role", "worker-app", "--cluster-id", "prdo")
    assert (slip.exit_code, "is it spelled so" in slip.stderr) == (3, True)
    # What they boot: an image of the service's own, or a schematic, which nobody needs to be asked for.
    assert terminal.json("image", "url", "--role", "worker-app")["url"] == IMAGE
    schematic = terminal.json("image", "schematic", "--service-url", "https://attest.example")
    assert "talos.config=https://attest.example/" in schematic["schematic"]

    # One that was installed offline is expected, and comes.
    late = Rig(local, tmp_path, seed=8)
    receipt = tmp_path / "tpm-receipt.json"
    receipt.write_text(json.dumps({"ek_fingerprint": late.tpm.ek.public.fingerprint(), "role": "generic"}))
    [told] = terminal.json("machine", "import", str(receipt))
    assert (told["result"], told["status"]) == ("added", "pending_approval")
    assert late.once() is Exit.PENDING_APPROVAL
    assert late.machine_id == told["machine_id"]
    terminal.ok("machine", "reject", late.machine_id, "-r", "not ours", "--yes")
    terminal.ok("machine", "delete", late.machine_id, "--yes")

    # Another one takes its place.
    spare = Rig(local, tmp_path, seed=7)
    assert spare.once() is Exit.PENDING_APPROVAL
    assert spare.machine_id in {each["machine_id"] for each in terminal.json("machine", "inbox")}
    terminal.ok("machine", "replace", "w-4", spare.machine_id, "-r", "mainboard died", "--yes")
    assert terminal.json("machine", "get", fourth.machine_id)["status"] == "revoked"
    assert spare.once() is Exit.OK
    assert terminal.json("machine", "get", spare.machine_id)["role"] == "worker-app"

    # A fifth is to be a controlplane, which two people must agree on; one changes their mind, twice.
    fifth = Rig(local, tmp_path, seed=5)
    assert fifth.once() is Exit.PENDING_APPROVAL
    wanted = ["machine", "approve", fifth.machine_id, "--role", "controlplane", "--hostname", "cp-1"]
    assert "controlplane demands ek-chain" in terminal.run(*wanted).stderr
    assert "came without an EK certificate" in terminal.run("trust", "show", fifth.machine_id).stderr
    wanted.append("--accept-ek")
    assert terminal.run(*wanted).exit_code == 4, "break-glass cannot vote"
    terminal.sit_down("anna")
    assert "1 of 2 approvals" in terminal.ok(*wanted)
    terminal.ok("machine", "withdraw", fifth.machine_id, "--yes")
    number = terminal.json(*wanted)["approval_id"]
    terminal.ok("approval", "withdraw", str(number), "--yes")
    pending = terminal.json(*wanted)
    assert pending["status"] == "pending_second_approval"
    terminal.sit_down("berta")
    votes = terminal.json("machine", "approvals", fifth.machine_id)
    assert [(v["live"], v["withdrawn"]) for v in votes] == [(True, False), (False, True), (False, True)]
    assert "1 of 2" in terminal.ok("approval", "list")
    assert terminal.run("machine", "withdraw", fifth.machine_id, "--yes").exit_code == 4
    # What the first answer told is what the second person calls; what they read at the machine decides.
    call = [*shlex.split(pending["next_command"])[1:], "--yes"]
    assert "with --fingerprint" in terminal.run(*call).stderr
    ek = fifth.tpm.ek.public.fingerprint()
    assert "another TPM" in terminal.run(*call, "--fingerprint", "0" * 16).stderr
    rival = [*wanted[:-2], "cp-2", "--accept-ek"]
    refused = terminal.run(*rival)
    assert refused.exit_code == 5
    assert "hostname (cp-2, not cp-1)" in refused.stderr
    seen = terminal.ok(*call, "--fingerprint", ek[:16])
    assert "approve done" in seen
    for shown in (
        ek,
        "cp-1 (now none)",
        "controlplane (now none)",
        "this EK by name",
        "anna, ",
        "without a cert",
    ):
        assert shown in seen, shown
    assert fifth.once() is Exit.OK
    assert "Nothing waits" in terminal.run("approval", "list").stderr
    moved = ["machine", "role", "cp-1", "--role", "worker-app", "-r", "too many of them", "--yes"]
    digest = terminal.json(*moved)["proposal_digest"][:8]
    assert "worker-app" in terminal.ok("approval", "show", digest)
    terminal.ok("approval", "object", digest, "--reason", "not yet", "--yes")
    assert "1 of 2 approvals" in terminal.ok(*moved), "an objection ended the vote before"
    terminal.sit_down("anna")
    assert "role_change done" in terminal.ok("approval", "approve", terminal.agreed(), "--yes")
    terminal.sit_down(None)
    assert "wipe ordered" in terminal.ok("machine", "wipe", "cp-1", "-r", "end of the tour", "--yes")

    # Whose word about TPMs counts: an anchor is added by two, asked, distrusted by one, restored by two.
    root = tmp_path / "root.der"
    root.write_bytes(ROOT.certificate)
    ours = ["trust", "add", str(root), "--vendor", "ifx", "--role", "anchor", "--reason", "compared", "--yes"]
    terminal.sit_down("anna")
    assert "1 of 2 approvals" in terminal.ok(*ours)
    terminal.sit_down("berta")
    assert "Root" in terminal.ok("approval", "show", terminal.agreed())
    assert "trust_certificate done" in terminal.ok("approval", "approve", terminal.agreed(), "--yes")
    (added,) = [c for c in terminal.json("trust", "list", "--vendor", "IFX") if c["origin"] == "operator"]
    assert added["sha256"][:12] in terminal.ok("trust", "list")
    leaf = tmp_path / "ek.der"
    leaf.write_bytes(b64decode(vouched(fifth.tpm.ek.public, issuer=ROOT, chain=())["ek_cert_pem"], "ek"))
    assert "yes, by IFX" in terminal.ok("trust", "verify", str(leaf))
    digits = added["sha256"][:16]
    assert "distrusted" in terminal.ok("trust", "distrust", digits, "--reason", "stolen", "--yes")
    assert added["sha256"] in terminal.ok("trust", "list", "--distrusted", "-o", "csv")
    assert terminal.json("trust", "verify", str(leaf))["ok"] is False
    restore = ["trust", "restore", digits, "--reason", "false alarm"]
    assert "1 of 2 approvals" in terminal.ok(*restore)
    terminal.sit_down("anna")
    assert "trust_certificate done" in terminal.ok("approval", "approve", terminal.agreed(), "--yes")

    # A token and a list, of which the second sees every entry; the secret is the second's.
    one = tmp_path / "one.csv"
    one.write_text(f"ek_fingerprint,role,hostname\n{'ab' * 48},controlplane,cp-9\n")
    terminal.ok("allow-list", "import", str(one))
    terminal.sit_down("berta")
    assert "cp-9" in terminal.ok("approval", "show", terminal.agreed())
    assert "allow_list_import done" in terminal.ok("approval", "approve", terminal.agreed(), "--yes")
    terminal.ok("token", "create", "--role", "controlplane", "--minimum-assurance", "tofu", "--uses", "2")
    terminal.sit_down("anna")
    secret = tmp_path / "rack.token"
    terminal.ok("approval", "approve", terminal.agreed(), "--yes", "--out", str(secret))
    assert len(secret.read_text().split()) == 2
    terminal.sit_down(None)

    # A sixth keeps a key in its TPM and has a certificate; then its CA gets another key, and a backup is proven.
    sixth = Machine(SoftwareNode(6), local.client("192.0.2.6"))
    sixth.admitted(local.operator(), "worker-app", hostname="w-6")
    serial = sixth.certificate(sixth.keys.create_signing_key())["serial"]
    assert serial in terminal.ok("ca", "certificates", "-o", "csv")
    assert "issued" in terminal.ok("machine", "certificates", "w-6")
    assert "BEGIN CERTIFICATE" in terminal.ok("machine", "request-cert", "w-6")
    assert "controlplane" not in terminal.ok("ca", "certificate", serial[:10])
    assert terminal.json("node-csr", "list", "--machine", "w-6") == []
    assert "revoked" in terminal.ok("ca", "revoke", serial, "--reason", "superseded", "--yes")
    assert terminal.json("ca", "crl")["revoked"] == [serial]
    spki = terminal.json("ca", "certificate", serial)["spki_sha256"]
    assert "refused" in terminal.ok("ca", "refuse-key", spki, "-r", "found in a repository", "--yes")
    assert spki in terminal.ok("ca", "refused-keys", "-o", "csv")
    key, _ = terminal.json("ca", "show")
    assert key["issuer_id"] in terminal.ok("ca", "show")

    # A CA of before goes on here, on which two agree; then they think better of it.
    before, wrapped = Company.at(tmp_path / "before", local.clock.now()).folder, str(tmp_path / "ca.wrapped")
    kek = str(tmp_path / "kek.pem")
    terminal.ok("ca", "import-key", "-f", kek)
    terminal.ok("ca", "wrap", str(before / "root.key"), "--under", kek, "-f", wrapped)
    bring = ["ca", "import", wrapped, "--chain", str(before / "root.pem"), "-r", "of before", "--yes"]
    for command, done in (
        (bring, "ca_import done"),
        (["ca", "rotate", "rollback", "-r", "not this one", "--yes"], "ca_rotation done"),
    ):
        terminal.sit_down("anna")
        pending = terminal.json(*command)
        terminal.sit_down("berta")
        assert done in terminal.ok(*shlex.split(pending["next_command"])[1:], "--yes")
    terminal.sit_down(None)
    rotate = ["ca", "rotate", "prepare", "-r", "drill", "--yes"]
    terminal.sit_down("anna")
    pending = terminal.json(*rotate)
    terminal.sit_down("berta")
    assert "ca_rotation done" in terminal.ok(*shlex.split(pending["next_command"])[1:], "--yes")
    terminal.sit_down(None)
    assert len(terminal.json("ca", "bundle")) == 4

    # The next key joins a company's root, on which two agree.
    following = next(each["issuer_id"] for each in terminal.json("ca", "show") if each["state"] == "next")
    company = Company.at(tmp_path / "company", local.clock.now())
    terminal.ok("ca", "csr", following, "--path-length", "0", "-f", str(tmp_path / "our.csr"))
    (tmp_path / "chain.pem").write_text(company.certify((tmp_path / "our.csr").read_text()))
    join = ["ca", "import-certificate", following[:8], str(tmp_path / "chain.pem"), "-r", "our root", "--yes"]
    terminal.sit_down("anna")
    pending = terminal.json(*join)
    terminal.sit_down("berta")
    assert "ca_chain done" in terminal.ok(*shlex.split(pending["next_command"])[1:], "--yes")
    terminal.sit_down(None)
    assert "The Company Root" in terminal.ok("ca", "show", following)
    assert terminal.ok("ca", "backup-check").count("yes") == 3
    assert terminal.ok("ca", "backup-check", str(local.settings.enrollment_ca_dir)).count("proven") == 3

    # A person gets a certificate, on which two agree, and loses it again.
    monkeypatch.chdir(tmp_path)
    (tmp_path / "passphrase").write_text("correct horse\n")
    carla = ["operator-cert", "request", "--name", "carla", "--key", "carla.key"]
    terminal.sit_down("anna")
    pending = terminal.json(*carla, "--passphrase-file", "passphrase")
    assert pending["status"] == "pending_second_approval"
    terminal.sit_down("berta")
    assert "carla.pem" in terminal.ok(
        *shlex.split(pending["next_command"])[1:], "--yes", "--out", "carla.pem"
    )
    terminal.sit_down(None)
    (carlas,) = terminal.json("operator-cert", "list", "--state", "issued")
    assert (carlas["name"], carlas["duty"], carlas["requester"]) == ("carla", "operator", "berta")
    assert "revoked" in terminal.ok("operator-cert", "revoke", carlas["serial"][:10], "-n", "left", "--yes")

    # Where everything stands.
    counted = terminal.json("stats")
    assert (counted["machines"], counted["by_status"]["revoked"]) == (6, 3)
    assert terminal.json("health")["ready"] is True
    assert "alarm" in terminal.ok("attention")
    assert terminal.run("findings").exit_code in (0, 1)
    assert "SETTING" in terminal.ok("settings")
    terminal.ok("trust", "advisories")
    assert terminal.json("trust", "unknown") == []
    assert "Machines" in terminal.ok("query", "--tables")
    terminal.ok("query", "Machines | where status == 'revoked' | count", "--save", "ended")
    assert "ended" in terminal.ok("query", "--list")
    assert terminal.json("query", "--saved", "ended") == [{"Count": 3}]
    terminal.ok("query", "--delete", "ended")
    terminal.sit_down("anna")
    for name in ("hers", "old"):
        terminal.ok("query", "Machines | count", "--save", name, "--share")
    terminal.sit_down("berta")
    terminal.ok("query", "--take-over", "anna/hers")
    terminal.ok("query", "--delete", "anna/old")
    terminal.sit_down(None)
    assert terminal.json("version")["service"] == local.app.version
    terminal.ok("config", "set", "output", "table")
    assert terminal.json("config", "show")["settings"]["output"]["value"] == "json"
    assert "config.toml" in terminal.ok("config", "path")
    base, other = tmp_path / "base.yaml", tmp_path / "other.yaml"
    base.write_text("machine: {type: worker, token: canary}\n")
    other.write_text("machine: {type: worker, token: canary-2}\n")
    assert terminal.json("config", "lint", str(base), "--talos", "v1.9.5") == {"findings": []}
    assert "token: <redacted>" in terminal.ok("config", "preview", str(base), "--talos", "v1.9.5")
    assert "machine.token" in terminal.ok("config", "diff", str(base), str(other), "--talos", "v1.9.5")
    # A base configuration is kept in two versions, activated, rolled back; a machine gets a patch besides.
    for text in (base, other):
        text.write_text(text.read_text().replace("}", ", install: {disk: /dev/sda}}"))
        assert "<redacted>" in terminal.json("config", "import", "default/worker-app", str(text))["preview"]
    for version in (1, 2):
        activated = terminal.ok("config", "activate", f"default/worker-app@{version}", "-r", "tour")
        assert f"version {version} is delivered" in activated
    terminal.ok("config", "rollback", "default/worker-app", "--yes")
    assert [each["active"] for each in terminal.json("config", "list")] == [True, False]
    assert "canary" not in terminal.ok("config", "show", "default/worker-app")
    versions = [f"default/worker-app@{each}" for each in (1, 2)]
    assert "machine.token" in terminal.ok("config", "diff", *versions)
    assert "token: <redacted>" in terminal.ok("config", "preview", versions[1])
    (patched, *_) = [m["machine_id"] for m in terminal.json("machine", "list") if m["role"] == "worker-app"]
    other.write_text("machine: {sysctls: {a.b: '1'}}\n")
    for text in (other, other):
        terminal.ok("config", "patch", "import", patched, str(text), "--note", "tour")
    for version in (1, 2):
        terminal.ok("config", "patch", "activate", f"{patched}@{version}")
    terminal.ok("config", "patch", "rollback", patched, "--yes")
    assert [each["active"] for each in terminal.json("config", "patch", "list", patched)] == [True, False]
    assert "a.b: '1'" in terminal.ok("config", "patch", "show", patched)
    assert "No differences" in terminal.run("config", "patch", "diff", patched, "1", "2").output
    assert "a.b: '1'" in terminal.ok("config", "machine", patched)
    upgraded = terminal.run("config", "upgrade-preview", "default", "--talos", "v1.13.9")
    assert (upgraded.exit_code, "no LinkConfig" in upgraded.output) == (1, True)
    assert "0 out of reach" in terminal.ok("config", "rewrap")
    assert "_ATTESTATION_COMPLETE" in terminal.ok("completion", "bash")
    assert ".TH" in terminal.ok("man", "machine", "lock")
    monkeypatch.setattr(Watch.__init__, "__defaults__", (interrupt,))
    assert "cp-1" in terminal.ok("machine", "watch")

    assert "metrics" in terminal.ok("extension", "list")
    assert terminal.json("extension", "dead-letters", "metrics") == []
    gone = terminal.run("extension", "dead-letter", "metrics", "5e0c1a5c-3c5e-4a52-9a0d-0b8c7f1d2e3f")
    assert (gone.exit_code, "5e0c1a5c" in gone.output or "dead" in gone.output) == (3, True)
    assert terminal.json("extension", "retry", "metrics")["events"] == 0

    # What was never seen is not approved; reference values of somebody else become a policy.
    unseen = terminal.run("machine", "approve-hardware", "w-1", "-r", "new board", "--yes")
    assert (unseen.exit_code, "no confidential hardware" in unseen.output) == (2, True)
    (tmp_path / "guest.corim").write_bytes(corim(comid(MEASUREMENT)))
    assert "sev_snp" in terminal.ok(
        "policy", "import-corim", str(tmp_path / "guest.corim"), "--name", "guests"
    )

    # Collateral is carried over an air gap; nobody is asked for it.
    carried, out = tmp_path / "carried", tmp_path / "out"
    write_export(carried)
    assert f"{len(GOOD)} kept" in terminal.ok("collateral", "import", str(carried))
    assert "0 kept" in terminal.ok("collateral", "import", str(carried))
    assert {c["name"] for c in terminal.json("collateral", "status") if c["says"]} == set(GOOD)
    terminal.ok("collateral", "export", str(out))
    assert (out / "manifest.json").read_bytes() == (carried / "manifest.json").read_bytes()
    (full := tmp_path / "full").mkdir()
    (full / "crl").write_bytes(b"in the way")
    stopped = terminal.run("collateral", "export", str(full))
    assert (stopped.exit_code, "cannot be written" in stopped.output) == (2, True), stopped.output
    assert not (full / "manifest.json").exists()
    refused = terminal.run("collateral", "refresh")
    assert (refused.exit_code, "ITL_COLLATERAL_FETCH" in refused.output) == (6, True)
    (carried / "crl/intel-root.der").write_bytes(b"other")
    assert "not the file of the manifest" in terminal.run("collateral", "import", str(carried)).output
    (carried / "manifest.json").write_text("[" * 100_000)
    assert "cannot be read" in terminal.run("collateral", "import", str(carried)).output
    (carried / "manifest.json").write_text('{"../x": ""}')
    assert "leads out" in terminal.run("collateral", "import", str(carried)).output

    # Everything is on record, and leaves the service as evidence.
    vkeys = tmp_path / "log.vkeys"
    vkeys.write_text(terminal.ok("audit", "keys"))
    terminal.ok("audit", "checkpoint", "--vkeys-file", str(vkeys), "-f", str(tmp_path / "old"))
    terminal.ok("audit", "proof", "1", "--vkeys-file", str(vkeys))
    subprocess.run(["git", "init", "--quiet", str(tmp_path / "tree")], check=True)
    for name in ("user.name", "user.email"):
        subprocess.run(["git", "-C", str(tmp_path / "tree"), "config", name, "auditor"], check=True)
    terminal.ok("audit", "publish", "--git", str(tmp_path / "tree"), "--vkeys-file", str(vkeys))
    terminal.ok("machine", "redeliver", "w-1")
    terminal.ok("audit", "checkpoint", "--vkeys-file", str(vkeys), "--since", str(tmp_path / "old"))
    export = tmp_path / "audit.jsonl"
    terminal.ok("audit", "export", "-f", str(export), "--vkeys-file", str(vkeys))
    assert "VALID" in terminal.ok("audit", "verify", str(export), "--vkeys-file", str(vkeys))
    assert "VALID" in terminal.ok("audit", "verify")
    actions = {e["action"] for e in terminal.json("audit", "list", "--limit", "0")}
    assert {"approve", "lock", "unlock", "revoke", "reject", "wipe_ack", "collateral_import"} <= actions
    assert len(terminal.json("audit", "list", "--machine-id", second)) >= 2

    assert terminal.used == commands()
    of_the_extension = {("GET", "/api/v1/metrics")}
    assert _operator_routes(local) - _templates(local, terminal.transport.routes) == of_the_extension


def test_a_wrong_token_is_told_as_such(
    local: InProcessService, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit 4, and what to do."""
    monkeypatch.setenv("ITL_ADMIN_TOKEN", "wrong")
    done = terminal.run("machine", "list")
    assert done.exit_code == 4
    assert "ITL_ADMIN_TOKEN" in done.stderr


def test_a_fleet_of_several_pages_is_listed_whole(
    local: InProcessService, terminal: Terminal, tmp_path: Path
) -> None:
    """Page by page, every machine once."""
    rigs = [Rig(local, tmp_path, seed=seed) for seed in range(1, 8)]
    for rig in rigs:
        rig.once()
    with Session(carrier=OverHTTPX(terminal.transport)).client() as client:
        ids = [m.machine_id for m in client.machines(page_size=2)]
    assert sorted(ids) == sorted(rig.machine_id for rig in rigs)
    assert len(terminal.json("machine", "list", "--limit", "3")) == 3


def _operator_routes(local: InProcessService) -> set[tuple[str, str]]:
    paths = local.app.openapi()["paths"]
    return {
        (method.upper(), path)
        for path, methods in paths.items()
        for method, route in methods.items()
        if route["x-access"] in OPERATORS and path not in FOR_OTHER_CLIENTS
    }


def _templates(local: InProcessService, routes: list[tuple[str, str]]) -> set[tuple[str, str]]:
    """Return the routes of the document that the requests took."""
    patterns = {
        path: re.compile(re.sub(r"\\\{[^}]*\\\}", "[^/]+", re.escape(path)) + r"\Z")
        for _, path in _operator_routes(local)
    }
    return {(m, path) for m, used in routes for path, pattern in patterns.items() if pattern.match(used)}


def test_an_unknown_root_is_explained(local: InProcessService, terminal: Terminal, tmp_path: Path) -> None:
    """The ceremony: who signed, how far the path went, and the three ways out; then only what is still possible."""
    rig = Rig(local, tmp_path, seed=61)
    rig.tpm._certificate = b64decode(vouched(rig.tpm.ek.public, chain=())["ek_cert_pem"], "ek")
    assert rig.once() is Exit.PENDING_APPROVAL
    shown = terminal.run("trust", "show", rig.machine_id)
    assert shown.exit_code == 0, shown.output
    assert "unknown issuer  Common Name: Infineon Test Issuer" in shown.stdout
    assert re.search(r"vouched for +no", shown.stdout)
    for way in ("--accept-ek", "trust add FILE --vendor IFX --role intermediate", "machine reject"):
        assert way in shown.stderr
    terminal.ok("machine", "reject", rig.machine_id, "-r", "stranger", "--yes")
    assert "trust add" not in terminal.run("trust", "show", rig.machine_id).stderr
