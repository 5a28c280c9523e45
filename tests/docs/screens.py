"""docs/operate/screens.md: what the command line prints, from a fleet made by hand and a clock that stands still.

`python -m tests.docs.screens` writes the page anew; `python -m tests.docs.screens COMMAND…` shows one screen on this
terminal, as wide as it is and in its colours.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import functools
import hashlib
import io
import itertools
import json
import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import click
import httpx

import attestation_cli.watch
from attestation.client import Record
from attestation.results import Assurance, AttestationResult, Subject, Verdict
from attestation.store import StoredEvidence, StoredResult
from attestation_cli.main import cli
from attestation_cli.session import Session
from attestation_service.results.presentation import Kept, result_report
from attestation_testing import event_logs
from tests.unit.cli.stub import (
    Stub,
    audit_entry,
    certificate,
    issuer,
    machine,
    problem,
    proposal,
    result,
    vote,
)

PAGE = Path(__file__).parents[2] / "docs/operate/screens.md"
NOW = dt.datetime(2026, 11, 21, 4, 5, tzinfo=dt.UTC)
IDS = (
    "7f3ad3ac-0f0e-4c55-9d4a-3f6f0e1b2c3d",
    "c2b1a0e9-51d7-4f0c-8c39-0d2f3a7be541",
    "aa3742ec-8e0b-4b7e-9a51-6f4f4c1f02d7",
    "5b0afea1-21d6-44a6-be11-98197904ba5b",
    "2f81799c-97cf-4c3b-b2c8-3f10c9a67d0e",
    "e7016145-3c52-4d0a-8f55-71d4a1c0b9f3",
)
INTRODUCTION = """\
What [the command line](cli.md) prints, on terminals 80 and 160 columns wide; there, words that matter are coloured.
Taken from a fleet made by hand by `python -m tests.docs.screens`; a test compares."""


class Terminal(io.StringIO):
    """What is written on a terminal."""

    def isatty(self) -> bool:
        """Say so."""
        return True


class Still(dt.datetime):
    """A clock that stands."""

    @classmethod
    def now(cls, tz: dt.tzinfo | None = None) -> Still:
        """Return the instant at which every screen was taken."""
        return cls.fromtimestamp(NOW.timestamp(), tz or dt.UTC)


def _at(**ago: float) -> str:
    return (NOW - dt.timedelta(**ago)).strftime("%Y-%m-%dT%H:%M:%SZ")


def _attested(machine_id: str, hostname: str, role: str, **changes: Any) -> dict[str, Any]:
    last = {"verdict": "Verified", "at": _at(seconds=12), "policy": "workers@3", "failed": None}
    known = {
        "hostname": hostname,
        "role": role,
        "desired_role": role,
        "status": "attested",
        "trust": "verified",
        "trust_expires_at": _at(minutes=-3),
        "attested_at": _at(days=12),
        "registered_at": _at(days=12, hours=1),
        "ak_activated_at": _at(days=12, hours=1),
        "hw_product": "PowerEdge R660",
        "hw_serial": "8XK2M13",
        "hw_mac": "b0:7b:25:00:00:01",
        "hw_uuid": "4c4c4544-0058-4b10-8032-b8c04f4d3133",
        "assurance": "ek-allowlist",
        "last_result": last,
    }
    return machine(machine_id, **known | changes)


COMPARED = ["firmware", "secure-boot", "boot-loader", "kernel", "initrd", "command-line"]
BEFORE, NOW_BOOTED = (
    event_logs.boot_log(event_logs.BootOptions(revoked=revoked, seed=2, command_line=line))
    for revoked, line in ((3, "root=/dev/sda2 ro quiet"), (6, "root=/dev/sda2 ro quiet init=/bin/sh"))
)
"""What worker-2 booted when it was verified, and what it boots now."""


def _report(compared_with: int, before: event_logs.BootLog, after: event_logs.BootLog) -> dict[str, Any]:
    """Return what the service says of two boots, beside the result itself."""
    kept = [_kept(number, log) for number, log in ((compared_with, before), (compared_with + 1, after))]
    told: dict[str, Any] = result_report(kept[1], kept[0]).model_dump(mode="json")
    own = {
        "result_id",
        "machine_id",
        "at",
        "verdict",
        "policy",
        "boot_state_appraised",
        "pcr_digest",
        "checks",
    }
    return {name: value for name, value in told.items() if name not in own}


def _kept(number: int, log: event_logs.BootLog) -> Kept:
    values = {pcr: log.pcrs()[pcr] for pcr in (4, 7, 8)}
    found = AttestationResult(
        verdict=Verdict.VERIFIED,
        at=NOW,
        policy="strict@1",
        outcomes=(),
        boot_state_appraised=tuple(Subject),
        pcr_digest=None,
    )
    data = log.serialise()
    evidence = StoredEvidence(
        pcr_bank="sha256",
        pcr_values=values,
        event_log_sha256=hashlib.sha256(data).hexdigest(),
        policy_sha256="5f" * 32,
        assurance=Assurance.EK_CHAIN,
    )
    stored = StoredResult(result_id=number, machine_id=IDS[2], result=found, evidence=evidence)
    return Kept(result=stored, event_log=data)


def fleet() -> Stub:
    """Return a service with one machine of every kind that an operator meets."""
    failed = {"verdict": "Failed", "at": _at(seconds=12), "policy": "strict@1", "failed": "pcr7"}
    return Stub(
        machines=[
            machine(IDS[3], hw_product="ThinkSystem SR630 V3", hw_serial="J3036801", registered_at=_at(minutes=4)),
            _attested(
                IDS[0], "cp-1", "controlplane", assigned_ip="10.0.0.11/24", labels={"rack": "4", "site": "ams"}
            ),
            _attested(IDS[1], "worker-1", "worker-app", assigned_ip="10.0.0.21/24", labels={"rack": "4"}),
            _attested(
                IDS[2], "worker-2", "worker-app", trust="failed", last_result=failed, assigned_ip="10.0.0.22/24",
                assurance="ek-chain",
            ),
            _attested(
                IDS[5], "worker-3", "worker-app", status="locked", trust="stale", trust_expires_at=None,
                locked_at=_at(hours=2), assurance="ek-chain",
            ),
            _attested(
                IDS[4], "storage-1", "worker-infra", cluster_id="storage", redeliver_pending=True,
                configuration_not_delivered={
                    "why": "no base configuration for role worker-infra in cluster storage", "since": _at(minutes=7),
                },
            ),
        ],
        results=[
            result(
                IDS[2],
                "Failed",
                at=_at(seconds=12),
                result_id=18,
                policy="strict@1",
                boot_state_appraised=COMPARED,
                checks=[
                    {"check": "tpm-quote", "outcome": "passed"},
                    {"check": "clock", "outcome": "passed"},
                    {"check": "event-log", "outcome": "passed"},
                    {
                        "check": "pcr7",
                        "outcome": "failed",
                        "expected": BEFORE.pcrs()[7].hex(),
                        "found": NOW_BOOTED.pcrs()[7].hex(),
                    },
                ],
            ),
            result(IDS[2], at=_at(days=3), result_id=17, boot_state_appraised=COMPARED, policy="strict@1"),
        ],
        reports={18: _report(17, BEFORE, NOW_BOOTED)},
        audit=[
            audit_entry(
                1042, action="attest_failed", operator_cn="machine", machine_id=IDS[2], prev_state="attested",
                new_state="attested", detail='{"failed":["pcr7"]}', source_ip="10.0.0.22",
                timestamp=_at(seconds=12),
            ),
            audit_entry(
                1041, action="approve_vote", operator_cn="anna", machine_id=IDS[3], prev_state="pending_approval",
                new_state="pending_approval", detail='{"role":"controlplane","hostname":"cp-2"}',
                source_ip="10.9.0.4", timestamp=_at(minutes=1),
            ),
            audit_entry(
                1040, action="lock", operator_cn="berta", machine_id=IDS[5], prev_state="attested",
                new_state="locked", detail='{"reason":"lid was open"}', source_ip="10.9.0.7",
                timestamp=_at(hours=2),
            ),
        ],
        proposals=[_proposed()],
        approvals=[
            vote(
                17, IDS[3], hostname="cp-2", created_at=_at(minutes=1), expires_at=_at(minutes=-9),
            ),
            vote(
                12, IDS[3], operator_cn="carl", hostname="cp-9", created_at=_at(hours=5),
                expires_at=_at(hours=4.8), live=False,
            ),
        ],
    )  # fmt: skip


def _proposed() -> dict[str, Any]:
    """Return what anna proposed: the machine that waits is to be a control plane."""
    waits = machine(IDS[3])
    members = {
        "format": "itl-proposal/2", "action": "approve", "machine_id": IDS[3],
        "ek_fingerprint": waits["ek_fingerprint"], "ak_name": f"000b{'5e' * 32}", "role": "controlplane",
        "current_role": None, "hostname": "cp-2", "current_hostname": None, "assigned_ip": "10.0.0.12/24",
        "current_assigned_ip": None, "cluster_id": "default", "current_cluster_id": "default",
        "evidence_digest": "7c" * 32, "terms": {}, "roles": ["controlplane"], "assurance": waits["assurance"],
        "measured": {
            "minimum": "ek-chain",
            "policy": {"ref": "fleet@1", "sha256": "5f" * 32, "agreed": True},
            "parts": [{"ref": "fleet@1", "sha256": "5f" * 32, "agreed": True}],
        },
    }  # fmt: skip
    canonical = json.dumps(members, sort_keys=True, separators=(",", ":")).encode()
    return proposal() | {
        "proposal_digest": hashlib.sha256(canonical).hexdigest(),
        "subject": f"machine {IDS[3]}",
        "machine_id": IDS[3],
        "expires_at": _at(minutes=-9),
        "approvals": [vote(17, IDS[3], created_at=_at(minutes=1), reason="third one of rack 4")],
        "proposal": members,
    }


def rotating() -> Stub:
    """Return a service in the middle of a rotation, with a key in a token and one in a file."""
    token = "pkcs11:token=itl-ca;object=itl-enrollment-ca-"
    machines = {
        serial: {
            "machine_id": machine_id, "subject": f"CN={machine_id},OU=worker-app,O=ITL Usions,C=NL",
            "requester": machine_id, "key_tier": 4, "assurance": "ek-chain", "issued_at": _at(hours=hours),
            "not_after": _at(hours=hours - 24), **more,
        }
        for serial, machine_id, hours, more in (
            ("5d0c97e1a3f24b6c8d90", IDS[1], 2, {}),
            ("1b7e44d09c5a3f1288e6", IDS[2], 7, {}),
            ("74f757feaf7d445e4b03", IDS[5], 9, {"ended_at": _at(hours=2), "reason": "certificateHold"}),
            ("2c90aa61d3e8f7b54410", IDS[1], 26, {"ended_at": _at(hours=20), "reason": "keyCompromise"}),
        )
    }  # fmt: skip
    states = ("issued", "issued", "held", "revoked")
    return Stub(
        issuers=[
            issuer(
                "3f6f0e1b2c3d4e5f", "retiring", created_at=_at(days=364), activated_at=_at(days=363),
                retiring_at=_at(hours=3), not_after=_at(days=-3286), crl_number=1460, retire_from=_at(days=-2),
            ),
            issuer(
                "8e1d22c90b7a4f35", "active", created_at=_at(days=2), activated_at=_at(hours=3), crl_number=2,
                not_after=_at(days=-3648), key_uri=f"{token}8e1d22c90b7a4f35", key_origin="generated",
            ),
        ],
        certificates=[
            certificate(f"{serial}{serial[::-1]}", state, **members)
            for (serial, members), state in zip(machines.items(), states, strict=True)
        ],
    )  # fmt: skip


def waiting() -> Stub:
    """Return the same service under dual control, where anna has voted."""
    service = fleet()
    service.voters = ("anna",)
    service.votes_expire = _at(minutes=-9)
    return service


def rival() -> Stub:
    """Return the same service, of which somebody wants something else."""
    why = (
        f"anna already voted for proposal {_proposed()['proposal_digest']}, machine {IDS[3]}; yours differs in "
        "assigned_ip (none, not 10.0.0.12/24), hostname (cp-3, not cp-2): agree to that one, object to it, or say "
        "that yours is to be a new proposal"
    )
    service = fleet()
    service.before = lambda request: problem(409, "proposal-rival", why) if request.method == "POST" else None
    return service


def away() -> Stub:
    """Return a service that does not answer."""

    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused") from ConnectionRefusedError(111, "Connection refused")

    return Stub(before=refuse)


def refusing() -> Stub:
    """Return a service where the login has no role."""
    why = "the token grants none of the roles operator, viewer, auditor"
    return Stub(before=lambda request: problem(403, "forbidden", why))


SCREENS: tuple[tuple[str, str, Any], ...] = (
    ("Machines", "machine list", fleet),
    ("One machine", "machine get cp-1", fleet),
    ("Why is it not trusted?", "machine explain worker-2", fleet),
    ("Attested, and not configured", "machine explain storage-1", fleet),
    ("What waits for approval", "machine explain 5b0afea1", fleet),
    ("Results", "machine results worker-2", fleet),
    ("One result, and what changed", "machine results worker-2 18", fleet),
    ("What was measured", "machine event-log worker-2 --pcr 7", fleet),
    (
        "A vote under dual control",
        "machine approve 5b0a --role controlplane --hostname cp-2 --ip 10.0.0.12/24",
        waiting,
    ),
    ("Where its keys stand", "machine ak-activate worker-2", fleet),
    ("Votes", "machine approvals 5b0a", fleet),
    ("Proposals", "approval list", fleet),
    ("What a proposal binds", "approval show 17", fleet),
    ("A rival", "machine approve 5b0a --role controlplane --hostname cp-3", rival),
    ("Numbers", "stats", fleet),
    ("Health", "health", fleet),
    ("The audit log", "audit list", fleet),
    ("The keys of the CA", "ca show", rotating),
    ("What the CA has signed", "ca certificates", rotating),
    ("Do its keys sign, and what is a backup?", "ca backup-check", rotating),
    ("Settings", "config show", fleet),
    ("A refusal", "machine list --status locked", refusing),
    ("Nobody answers", "machine list --role generic", away),
    ("Nothing of that name", "machine get cp-7", fleet),
    ("Watching", "machine watch", fleet),
    (
        "A list as it is wanted",
        "machine list -l rack=4 --columns hostname,status,seen,labels --sort -hostname",
        fleet,
    ),
    ("For a spreadsheet", "machine list --status attested -o csv", fleet),
    ("Help", "--help", fleet),
    ("Help of a group", "machine --help", fleet),
    ("Help of a command", "machine approve --help", fleet),
)


@contextlib.contextmanager
def standing_still() -> Iterator[None]:
    """Let every module of the command line see the same instant."""
    import importlib

    # Loaded first: what is imported later would see the real clock.
    for name in (
        "machine",
        "approval",
        "token",
        "allow_list",
        "audit",
        "policy",
        "ca",
        "stats",
        "health",
        "config",
        "auth",
    ):
        importlib.import_module(f"attestation_cli.commands.{name}")
    importlib.import_module("attestation_cli.proposal_screen")
    with contextlib.ExitStack() as stack:
        for name, module in list(sys.modules.items()):
            if name.startswith("attestation_cli.") and getattr(module, "datetime", None) is dt.datetime:
                stack.enter_context(mock.patch.object(module, "datetime", Still))
        stack.enter_context(
            mock.patch(
                "attestation_cli.commands.health.time.monotonic", side_effect=itertools.count(0, 0.012)
            )
        )
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("ITL_", "KEYCLOAK"))}
        environment |= {
            "ITL_ADMIN_TOKEN": "token",
            "ITL_API_URL": "https://attest.example",
            "HOME": "/home/anna",
        }
        stack.enter_context(mock.patch.dict(os.environ, environment, clear=True))
        yield


def screen(command: str, service: Stub, columns: int) -> str:
    """Return what *command* prints on a terminal *columns* wide, without its colours."""
    if command == "machine watch":
        return _watched(service, columns)
    out = Terminal()
    arguments = shlex.split(command)
    session = Session(carrier=service.carrier)
    size = os.terminal_size((columns, 24))
    with (
        standing_still(),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(out),
        mock.patch.object(Session, "_tell_break_glass"),
        mock.patch("shutil.get_terminal_size", return_value=size),
        contextlib.suppress(SystemExit),
    ):
        cli(
            arguments, prog_name="attestation", obj=session, terminal_width=columns, max_content_width=columns
        )
    return "\n".join(
        line.rstrip() for line in click.unstyle(out.getvalue()).replace("\r", "").rstrip().splitlines()
    )


def _watched(service: Stub, columns: int) -> str:
    session = Session(carrier=service.carrier)
    with standing_still():
        watch = attestation_cli.watch.Watch(session, lambda: [Record(m) for m in service.machines], 5)
        watch._observe()
        return "\n".join(watch._screen(columns, 24)).rstrip()


@functools.cache
def shown() -> dict[tuple[str, int], str]:
    """Return what each command prints, on terminals of both widths."""
    return {
        (command, columns): screen(command, service(), columns)
        for _, command, service in SCREENS
        for columns in (80, 160)
    }


def page() -> str:
    """Return the page."""
    parts = [
        "# Screens",
        "",
        INTRODUCTION,
    ]
    for title, command, _ in SCREENS:
        narrow, wide = (shown()[command, columns] for columns in (80, 160))
        parts += ["", f"## {title}", "", "```", f"$ attestation {command}", narrow, "```"]
        if wide != narrow:
            parts += ["", "160 columns:", "", "```", wide, "```"]
    return "\n".join(parts) + "\n"


def main() -> None:
    """Write the page, or show one screen here."""
    if len(sys.argv) == 1:
        PAGE.write_text(page(), encoding="utf-8")
        return
    command = shlex.join(sys.argv[1:])
    made = next((s for _, c, s in SCREENS if c == command), fleet)
    with standing_still():
        cli(sys.argv[1:], prog_name="attestation", obj=Session(carrier=made().carrier))


if __name__ == "__main__":
    main()
