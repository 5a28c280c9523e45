"""`./dev run` shows what it promises, and leaves nothing behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import httpx
import pytest

from attestation.api import ApproveRequest, MachineDetail, PendingApproval
from attestation.client import OperatorClient
from attestation.client.agreement import agree
from attestation.machines import Role, Status, Trust
from tests.docs.pages import ROOT
from tools.stage import IdentityProvider

pytestmark = pytest.mark.swtpm

BROWSER = """\
import json, os, sys
from pathlib import Path
import httpx
people = json.loads(Path(os.environ["PEOPLE"]).read_text())
password = next(a["password"] for a in people if a["person"]["username"] == os.environ["WHO"])
form = {"username": os.environ["WHO"], "password": password}
sent = httpx.post(sys.argv[1], data=form, follow_redirects=True, trust_env=False, timeout=60)
sys.exit(sent.status_code != 200)
"""
"""What a person does in a browser: fill in the form of the identity provider, follow the redirects."""


def _demo(*arguments: str, cwd: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tools.demo", *arguments],
        cwd=cwd,
        # A setting of the caller's shell must not reach the service.
        env={**os.environ, "PYTHONPATH": str(ROOT), "ITL_NO_SUCH_SETTING": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _processes_in(directory: Path) -> list[str]:
    """Return the command lines of processes that name *directory*."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(directory) in command:
            found.append(command)
    return found


def test_three_machines_go_from_nothing_to_an_applied_configuration(tmp_path: Path) -> None:
    """Each machine is activated, approved, attested and has its own configuration; a stranger is refused."""
    data = tmp_path / "with space"
    demo = _demo("--exit-after-demo", "--data", "with space", cwd=tmp_path)
    said, _ = demo.communicate(timeout=600)
    assert demo.returncode == 0, said
    for name, role in (("cp-1", "controlplane"), ("infra-1", "worker-infra"), ("app-1", "worker-app")):
        assert re.search(rf"{name} +activated; .*pending_approval, assurance tofu", said)
        assert re.search(rf"{name} +.*fingerprint compared; approved as {role}", said)
        assert re.search(rf"{name} +attested, trust verified", said)
        config = data / "machines" / name / "machineconfig.yaml"
        assert config.stat().st_mode & 0o777 == 0o600
        assert f'hostname: "{name}"' in config.read_text(encoding="utf-8")
        assert re.search(rf"{name} +OU {role}, until 20\d\d-\d\d-\d\d \d\d:\d\d UTC, serial [0-9a-f]+…", said)
    assert "refused: activation-failed" in said
    assert "disk key   made outside the TPM; refused: evidence-rejected" in said
    assert re.search(r"cp-1 +opened registry-token in its TPM", said)
    assert len(re.findall(r"(?:infra-1|app-1) +refused: secret-forbidden", said)) == 2
    assert re.search(r"infra-1 +last quoted 10 s ago: no disk key is given", said)
    assert re.search(r"cp-1 +attests, and its disk opens", said)
    assert re.search(r"infra-1 +attests too, but alice holds it: its disk stays closed", said)
    assert re.search(r"infra-1 +alice ends the hold, and its disk opens", said)
    assert re.search(r"receiver +verified secret\.accessed of cp-1", said)
    assert len(re.findall(r"receiver +verified secret\.refused of (?:infra-1|app-1)", said)) == 2
    assert re.search(r'secret_operations_total\{operation="read",status="done"\} 0 → 1', said)
    assert "chain valid" in said
    assert re.search(r"checkpoint +\d+ entries, root [0-9a-f]{16}…, 2 signatures", said)
    assert re.search(r"forgery +.*entry \d+ was changed", said)
    assert re.search(r"cp-1 +refused as controlplane: assurance-too-low", said)
    # The control plane waits for the second human; the workers do not.
    assert re.search(r"cp-1 +alice votes: 1 of 2, though she asks twice; status pending_approval", said)
    assert re.search(r"cp-1 +bob agrees: fingerprint compared; approved", said)
    assert re.search(r"app-1 +alice: fingerprint compared; approved", said)
    assert len(re.findall(r"approve_vote +by (?:alice|bob)", said)) == 2
    assert re.search(r"cp-1 +approve +by bob +pending_approval → registered", said)
    token = (data / "admin-token").read_text(encoding="utf-8").strip()
    assert token not in said
    for secret in re.findall(
        r"(?:token|secret): (\w{32})", (data / "configs/controlplane-final.yaml").read_text()
    ):
        assert secret not in said
    assert (data / "admin-token").stat().st_mode & 0o777 == 0o600
    assert _processes_in(data) == []


def _sees_the_fleet(said: str) -> None:
    """Log in at the printed address as the first person that is printed."""
    dashboard = re.search(r"Dashboard +(http://\S+)", said)
    alice = re.search(r"Log in as +(alice) +(\w+)", said)
    assert dashboard is not None
    assert alice is not None
    with httpx.Client(base_url=dashboard[1], timeout=60, trust_env=False) as browser:
        form = browser.get("/auth/login").headers["location"]
        sent = browser.post(form, data={"username": alice[1], "password": alice[2]})
        page = browser.get(sent.headers["location"], follow_redirects=True)
        machines = browser.get("/machines", follow_redirects=True).text
        links = re.findall(r'href="(/machines/[0-9a-f-]{36})"[^>]*>\s*tampered-1', machines)
        assert links, machines
        assert "kernel replaced" in browser.get(links[0]).text
        fleet = browser.get("/fleet").text
    assert page.status_code == 200, page.text
    assert re.search(r"attested</a></span> <span class=\"count\">3<", fleet), fleet


def _until(is_so: Callable[[], bool], what: str) -> None:
    give_up_at = time.monotonic() + 240
    while not is_so():
        assert time.monotonic() < give_up_at, what
        time.sleep(0.2)


def _has_three_tasks(said: str, url: str, data: Path, provider: IdentityProvider) -> None:
    """Do what the closing lines say, by the API: the worker, the control plane with two, the one that is refused."""
    told = said.partition("What to try in the dashboard:")[2]
    steps = dict(re.findall(r"^ +([123])\. (.*)$", told, re.MULTILINE))
    alices, bobs = provider.sign_in("alice"), provider.sign_in("bob")
    with OperatorClient(url, alices) as alice, OperatorClient(url, bobs) as bob:

        def machine(serial: str) -> MachineDetail:
            return next(m for m in alice.machines() if m.hw_serial == serial)

        def attests(serial: str) -> bool:
            return (machine(serial).status, machine(serial).trust) == (Status.ATTESTED, Trust.VERIFIED)

        for number, role in (("1", Role.WORKER_APP), ("2", Role.CONTROLPLANE)):
            serial = re.findall(r"DEMO-\d+", steps[number])[0]
            assert role in steps[number]
            waits = machine(serial)
            assert (waits.status, waits.desired_role) == (Status.PENDING_APPROVAL, role)
            request = ApproveRequest(
                role=role,
                hostname=serial.lower(),
                accept_ek=role is Role.CONTROLPLANE,
                expected_version=waits.version,
            )
            answer = alice.approve(waits.machine_id, request)
            if role is Role.CONTROLPLANE:
                # The second one must type what stands at the machine.
                assert f"console begins with {waits.ek_fingerprint[:16]}." in steps[number]
                assert isinstance(answer, PendingApproval)
                agree(bob, bob.proposal(answer.proposal_digest), "fingerprint compared")
            _until(partial(attests, serial), f"{serial} does not attest by itself")

        name = re.findall(r"tampered-\d", steps["3"])[0]
        found = next(m for m in alice.machines() if m.hostname == name)
        assert (found.status, found.trust) == (Status.ATTESTED, Trust.FAILED)
        log = data / "machines" / name / "agent.log"
        before = log.read_text(encoding="utf-8").count("not as expected")
        _until(
            lambda: log.read_text(encoding="utf-8").count("not as expected") > before,
            f"{name} does not come again",
        )
        assert alice.machine(found.machine_id).trust is Trust.FAILED
        newest = alice.result(found.machine_id, next(iter(alice.results(found.machine_id))).result_id)
        assert newest.verdict == "Failed"
        assert any("kernel replaced" in change.text for change in newest.changes)


def test_it_stays_up_until_it_is_stopped_and_the_printed_commands_work(tmp_path: Path) -> None:
    """The service answers, the machines keep attesting, what is printed to try works, Ctrl-C ends everything."""
    demo = _demo("--machines", "2", "--data", str(tmp_path / "data"), cwd=tmp_path)
    try:
        said = ""
        assert demo.stdout is not None
        while "Ctrl-C" not in said:
            line = demo.stdout.readline()
            assert line, said
            said += line
        url = re.search(r"Service +(http://\S+)", said)
        assert url is not None
        assert httpx.get(f"{url[1]}/readyz", timeout=60).status_code == 200
        _sees_the_fleet(said)
        data = tmp_path / "data"
        issuer = re.search(r"log in at (http://127\.0\.0\.1:(\d+)/\S+)", said)
        assert issuer is not None
        provider = IdentityProvider(data, int(issuer[2]))
        _has_three_tasks(said, url[1], data, provider)
        exports = re.findall(r"^ +(export .*)$", said, flags=re.MULTILINE)
        tries = re.findall(
            r"^ +(attestation(?:-agent)? .*?)(?: +#(?:.* as (alice|carol))?.*)?$", said, flags=re.MULTILINE
        )
        assert len(tries) > 5
        logins = re.findall(
            r"^ +(?:Log in as)? +(alice|bob|carol) +([0-9a-f]{8}) +attestation-(\w+)$", said, re.MULTILINE
        )
        assert [(name, duty) for name, _, duty in logins] == [
            ("alice", "operator"),
            ("bob", "operator"),
            ("carol", "auditor"),
        ]
        (tmp_path / "browser.py").write_text(BROWSER, encoding="utf-8")
        environment = {k: v for k, v in os.environ.items() if not k.startswith("ITL_")} | {
            "HOME": str(tmp_path),
            "BROWSER": f"{sys.executable} {tmp_path / 'browser.py'} %s",
            "PEOPLE": str(tmp_path / "data/identity.json"),
        }
        for command, who in tries:
            done = subprocess.run(
                ["bash", "-c", "; ".join([*exports, command])],
                env=environment | {"WHO": who},
                cwd=tmp_path,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=240,
                check=False,
            )
            # `explain` ends with 1 where the machine is not trusted, as a locked one is.
            assert done.returncode == 0 or " explain " in command, f"{command}: {done.stderr}"
        log = tmp_path / "data/machines/cp-1/agent.log"
        give_up_at = time.monotonic() + 240
        while log.read_text(encoding="utf-8").count("attested.answer") < 4:
            assert time.monotonic() < give_up_at, "the machine does not attest again"
            time.sleep(0.2)
    finally:
        demo.send_signal(signal.SIGINT)
        rest, _ = demo.communicate(timeout=240)
    assert demo.returncode == 0, rest
    assert "Stopped." in rest
    assert _processes_in(tmp_path / "data") == []


def test_two_runs_in_one_directory_are_refused(tmp_path: Path) -> None:
    """The second one says who is in the way, instead of fighting over the TPMs."""
    first = _demo("--no-demo", "--data", str(tmp_path / "data"), cwd=tmp_path)
    try:
        assert first.stdout is not None
        while "Ctrl-C" not in (line := first.stdout.readline()):
            assert line
        second = _demo("--no-demo", "--data", str(tmp_path / "data"), cwd=tmp_path)
        said, _ = second.communicate(timeout=240)
        assert second.returncode == 1
        assert "another ./dev run uses" in said
    finally:
        first.terminate()
        first.communicate(timeout=240)
    assert first.returncode == 0


@pytest.mark.nginx
def test_the_same_on_postgresql_with_two_replicas_behind_nginx(tmp_path: Path) -> None:
    """Both replicas answer, behind one address; what was stored is there at the next run; nothing stays behind."""
    data = tmp_path / "with space"
    for ran_before in (False, True):
        demo = _demo("--postgres", "--exit-after-demo", "--machines=1", "--data", "with space", cwd=tmp_path)
        said, _ = demo.communicate(timeout=600)
        assert demo.returncode == 0, said
        assert re.search(r"nginx, before the replicas http://127.0.0.1:\d+ and http://127.0.0.1:\d+,", said)
        server = re.search(r"on PostgreSQL, postgresql\+psycopg://itl@/attestation\?host=(\S+)", said)
        assert server is not None
        assert ("was approved before" in said) is ran_before
        assert "chain valid" in said
        for replica in (1, 2):
            log = (data / f"service-{replica}.log").read_text(encoding="utf-8")
            assert '"path": "/api/v1/attest"' in log, f"replica {replica} was asked nothing"
        assert _processes_in(data) == _processes_in(Path(server[1])) == []
        assert not Path(server[1]).exists()
