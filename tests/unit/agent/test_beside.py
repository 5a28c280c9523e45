"""What runs beside attesting never stops or delays it, and does not run where nobody asked for it."""

from __future__ import annotations

import grp
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from attestation.errors import DeviceError
from attestation_agent.beside import Surroundings, beside
from attestation_agent.commands import Outcome
from attestation_agent.exits import Exit, UsageError
from attestation_agent.shared_tpm import SharedTPM
from attestation_agent.signer import SignerRefused, ask
from attestation_agent.state import KnownAs
from tests.unit.agent.world import MACHINE_ID, World


class Hanging:
    """A service that does not answer before it is told to."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.answer = threading.Event()
        self.gave_up = threading.Event()

    def certificate_challenge(self, *_: object) -> Any:
        """Hang."""
        self.asked.set()
        self.answer.wait(100)
        self.gave_up.set()
        raise DeviceError("no answer")

    request_certificate = trust_bundle = certificate_status = certificate_challenge


def around(world: World, service: Any, stopping: threading.Event | None = None) -> Surroundings:
    """What the parts share."""
    stop = stopping or threading.Event()
    return Surroundings(
        settings=world.settings,
        state=world.state,
        service=service,
        tpm=SharedTPM(lambda: world.machine),
        clock=world.clock,
        run=lambda command: Outcome(ok=True, text="exit status 0"),
        log=world.events,
        stopping=stop.is_set,
    )


@pytest.mark.threat("T111")
def test_attesting_goes_on_while_a_certificate_does_not_come(tmp_path: Path) -> None:
    """Ten rounds take no longer than without, although the service never answers about certificates."""
    world = World(tmp_path, once=False, certificates="client")
    world.service.status = "attested"
    service = Hanging()
    with beside(around(world, service)) as attested:
        world.attested = attested
        world.run(1)
        assert service.asked.wait(60)
        world.run(10)
        assert not service.gave_up.is_set()
        assert len([path for path, _ in world.service.requests if path == "/attest"]) >= 11
        service.answer.set()
    assert not list((tmp_path / "state" / "tls").glob("client"))


def test_the_end_does_not_wait_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only for a moment; and what fails because the agent ends is no failure."""
    monkeypatch.setattr("attestation_agent.beside.END_SECONDS", 0.2)
    world = World(tmp_path, once=False, certificates="client")
    world.state.remember(KnownAs(machine_id=MACHINE_ID, ek_fingerprint="ab" * 48), at=world.clock.now())
    world.state.set_status("attested")
    service, stopping = Hanging(), threading.Event()
    with beside(around(world, service, stopping)) as attested:
        attested()
        assert service.asked.wait(60)
        stopping.set()
    assert not service.gave_up.is_set()
    service.answer.set()
    assert service.gave_up.wait(60)
    time.sleep(0.1)  # for what would tell of it
    assert "certificate.failed" not in world.events.names()


def test_with_once_it_is_tried_after_the_attestation(tmp_path: Path) -> None:
    """And whatever becomes of it, the exit code is that of the attestation."""
    world = World(tmp_path, certificates="client")
    world.service.status = "attested"
    service = Hanging()
    service.answer.set()
    with beside(around(world, service)) as attested:
        world.attested = attested
        assert world.run() is Exit.OK
    assert service.asked.is_set()
    assert "certificate.failed" in world.events.names()
    assert world.events.names().index("attested.answer") < world.events.names().index("certificate.failed")


def test_it_is_told_after_rounds_that_were_answered(tmp_path: Path) -> None:
    """Not after failures, and not once the machine wiped itself."""
    world, told = World(tmp_path, once=False), []
    world.attested = lambda: told.append(world.events.names()[-1])
    world.service.before = lambda path, body: httpx.Response(503) if path == "/attest" else None
    world.run(2)
    assert told == []
    world.service.before = lambda path, body: None
    world.service.status = "attested"
    world.run(3)
    assert told == ["attested.answer"] * 3
    wiped = World(tmp_path / "other", once=False, wipe_command="wipe")
    wiped.attested = lambda: told.append("wiped")
    wiped.service.status, wiped.service.action = "revoked", "wipe"
    assert wiped.run(3) is Exit.REVOKED
    assert "wiped" not in told


def test_the_signer_runs_beside(tmp_path: Path) -> None:
    """Where it has a socket, also without certificates of its own making."""
    path = tmp_path / "signer" / "sock"
    world = World(tmp_path, once=False, signer_socket=str(path))
    with beside(around(world, Hanging())), pytest.raises(SignerRefused, match="no-certificate"):
        ask(path, kind="client")
    assert not path.exists()


def test_a_group_that_is_not_there_is_a_usage_error(tmp_path: Path) -> None:
    """At the start, not at the first certificate."""
    world = World(tmp_path, certificates="client", certificate_group="nobody-has-this-name")
    with pytest.raises(UsageError, match="no group"), beside(around(world, Hanging())):
        pass
    world = World(tmp_path, certificates="client", certificate_group=grp.getgrgid(os.getgid()).gr_name)
    with beside(around(world, Hanging())):
        pass


def test_nothing_of_it_is_loaded_where_nobody_asked(tmp_path: Path) -> None:
    """An agent without these settings is the agent of before."""
    script = (
        "import sys\n"
        "from attestation_agent.main import register\n"
        "code = register(['--server-url', 'http://127.0.0.1:9', '--tpm', 'unix:/nonexistent', '--once',\n"
        "                 '--state-dir', sys.argv[1]])\n"
        "names = ('certificates', 'beside', 'signer', 'shared_tpm', 'offered', 'tpm_keys')\n"
        "print(code, [n for n in names if 'attestation_agent.' + n in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "state")],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.stdout == "20 []\n", done.stderr
    assert not (tmp_path / "state" / "tls").exists()
