"""Policies over boots of real firmware: each change is refused by the rule that is about it, and told in words.

The machines boot in Python, with the logs of tests/vectors/eventlog/ovmf; the service is real, in this process.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest

from attestation.evidence import event_log
from attestation.tpm import Alg
from attestation.wire import b64encode
from attestation_testing import EventType, SoftwareNode, Tampering, boot, tampered
from attestation_testing.event_logs import ipl
from tests.fixtures.machine import Machine, code
from tests.fixtures.service import Operator
from tests.scenarios.scene import Scene
from tests.vectors.eventlog.ovmf import by_name

REFERENCE = by_name["sb-on"]
LINE = "/vmlinuz console=ttyS0,115200"


def policy(*, version: int = 1, mode: str = "enforce") -> dict[str, Any]:
    """Return a policy that speaks of everything that the reference boot shows; PCR 0 alone is compared whole."""
    claims = event_log.verify(
        event_log.replay(event_log.parse(REFERENCE.log), Alg.SHA256), quoted=REFERENCE.quoted("sha256")
    )
    kernels = {i.digest.hex() for i in claims.images if i.kind == "kernel"}
    return {
        "format": "itl-tpm-policy/1",
        "name": "real",
        "version": version,
        "mode": mode,
        "bank": "sha256",
        "event_log": "required",
        "pcrs": {
            "0": {"any_of": [REFERENCE.quoted("sha256")[0].hex()]},
            "9": {"events": "approved-digests", "digests": sorted(f.digest.hex() for f in claims.files)},
        },
        "secure_boot": {
            "required": True,
            "debug": "forbid",
            "dbx_min": sorted(claims.secure_boot.dbx_sha256),
            "authorities": sorted({a.sha256 for a in claims.secure_boot.authorities}),
        },
        "boot": {
            "loaders": sorted({i.digest.hex() for i in claims.images} - kernels),
            "kernels": sorted(kernels),
            "command_lines": [LINE],
        },
    }


class Worker(NamedTuple):
    """A machine, its TPM, and its operator."""

    node: Machine
    device: SoftwareNode
    operator: Operator


@pytest.fixture
def machine(local_scene: Scene) -> Worker:
    """A worker that booted the reference boot and is measured against the policy."""
    operator = local_scene.operator
    device = SoftwareNode(4)
    boot(device, REFERENCE.boot_log)
    worker = Worker(local_scene.machine(device), device, operator)
    worker.node.admitted(operator, hostname="w-1")
    operator.call("POST", "/policies", json=policy())
    operator.call("PUT", "/policies/assignments/role/worker-app", json={"policy": "real@1"})
    worker.node.next_challenge = None
    assert attest(worker, REFERENCE.log)["verdict"] == "Verified"
    return worker


def attest(machine: Worker, log: bytes) -> dict[str, Any]:
    """Attest with *log*, and return the newest result in full."""
    machine.node.attest(event_log=b64encode(log))
    path = f"/machines/{machine.node.machine_id}/results"
    newest = machine.operator.call("GET", path)["items"][0]
    found: dict[str, Any] = machine.operator.call("GET", f"{path}/{newest['result_id']}")
    return found


def not_passed(result: dict[str, Any], *outcomes: str) -> set[str]:
    """Return the checks of *result* with one of *outcomes*."""
    return {check["check"] for check in result["checks"] if check["outcome"] in outcomes}


CHANGES = {
    "sb-on-again": (set(), ""),
    "sb-on-dbx": (set(), "PCR 7 changed: dbx updated (+3 hashes)"),
    "sb-on-kernel": ({"boot-kernels", "pcr9"}, "PCR 4 changed: kernel replaced"),
    "sb-on-cmdline": ({"command-lines", "pcr9"}, "kernel command line: + init=/bin/sh"),
    "sb-on-initrd": ({"pcr9"}, "PCR 9 changed: initrd /initrd.img replaced"),
    "sb-on-ima": ({"command-lines", "pcr9"}, "kernel command line: + rootfstype=ramfs"),
    "sb-on-mok": ({"secure-boot-authorities", "pcr9"}, "Machine owner of the test machines"),
    "sb-off": (
        {"secure-boot", "secure-boot-dbx", "secure-boot-authorities", "boot-kernels", "pcr0", "pcr9"},
        "Secure Boot turned off",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_each_change_fails_its_rule_and_is_told(name: str, machine: Worker) -> None:
    """What was changed is refused by the rules about it and by no other; an update of dbx is no reason to refuse."""
    checks, words = CHANGES[name]
    boot(machine.device, by_name[name].boot_log)
    result = attest(machine, by_name[name].log)
    assert not_passed(result, "failed") == checks
    assert result["verdict"] == ("Failed" if checks else "Verified")
    assert words in "\n".join(change["text"] for change in result["changes"])


@pytest.mark.threat("T67")
@pytest.mark.parametrize("name", [name for name, (checks, _) in CHANGES.items() if checks])
def test_the_log_of_the_boot_before_does_not_help(name: str, machine: Worker) -> None:
    """A machine that booted something else and sends the good log: it does not lead to the quote, no rule holds."""
    boot(machine.device, by_name[name].boot_log)
    result = attest(machine, REFERENCE.log)
    assert result["verdict"] == "Failed"
    assert {"event-log", "secure-boot", "boot-kernels", "command-lines"} <= not_passed(result, "failed")


@pytest.mark.threat("T67")
def test_a_command_line_cannot_be_hidden_behind_another(machine: Worker) -> None:
    """Two command lines measured, a bad one and a good one: told as whatever, the bad one is seen."""
    bad = b"/vmlinuz init=/bin/sh"
    measured = ipl(8, f"kernel_cmdline: {bad.decode()}", bad)
    at = next(i for i, e in enumerate(REFERENCE.boot_log.events) if e.data.startswith(b"kernel_cmdline: "))
    log = REFERENCE.boot_log.inserted(at, measured)
    lies = [
        log,
        log.retold(at, data=b"grub_cmd: " + bad + b"\0"),
        log.retold(at, data=b"grub_cmd: set timeout=0\0"),
        *(log.retold(at, event_type=kind, data=bad) for kind in EventType if kind != EventType.NO_ACTION),
    ]
    boot(machine.device, log)
    for lie in lies:
        assert "command-lines" in not_passed(attest(machine, lie.serialise()), "failed")


@pytest.mark.parametrize("how", Tampering)
def test_no_tampered_log_is_verified(how: Tampering, machine: Worker) -> None:
    """Lies about the very boot that would have been good: malformed or failed; the next honest log is good again."""
    sent = b64encode(tampered(REFERENCE.boot_log, how))
    node = machine.node
    answer = node.send(node.evidence(node.next_challenge or node.challenge(), event_log=sent))
    node.next_challenge = None
    path = f"/machines/{node.machine_id}/results"
    if answer.is_success:
        newest = machine.operator.call("GET", path)["items"][0]
        assert newest["verdict"] == "Failed"
    else:
        assert (answer.status_code, code(answer)) == (400, "malformed-evidence")
    assert attest(machine, REFERENCE.log)["verdict"] == "Verified"


def test_reported_only(machine: Worker) -> None:
    """In mode report the same machine works, and what does not hold is on record."""
    machine.operator.call("POST", "/policies", json=policy(version=2, mode="report"))
    machine.operator.call("PUT", "/policies/assignments/role/worker-app", json={"policy": "real@2"})
    machine.node.next_challenge = None
    boot(machine.device, by_name["sb-on-mok"].boot_log)
    result = attest(machine, by_name["sb-on-mok"].log)
    assert (result["verdict"], result["boot_state_appraised"]) == ("Verified", [])
    assert not_passed(result, "reported") == {"secure-boot-authorities", "pcr9"}
