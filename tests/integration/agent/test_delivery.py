"""Each way in which a first delivery fails, on a real TPM: nothing is lost or reads green, and it heals by itself."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import httpx
import pytest

from attestation_agent.commands import Outcome
from attestation_agent.exits import Exit
from attestation_testing import CertificateAuthority, SoftwareTPM
from tests.fixtures.in_process import in_process_service
from tests.integration.agent.rig import Rig
from tests.integration.agent.test_in_between import Forward, Watched, path_of

pytestmark = pytest.mark.swtpm


@contextmanager
def _no_file_at_the_service(rig: Watched) -> Iterator[None]:
    folder = rig.service.settings.config_cache_dir
    folder.rename(folder.with_name("away"))
    yield
    folder.with_name("away").rename(folder)


@contextmanager
def _unwritable_target(rig: Watched) -> Iterator[None]:
    rig.config_path.mkdir()
    yield
    rig.config_path.rmdir()


@contextmanager
def _failing_command(rig: Watched) -> Iterator[None]:
    rig.outcome = Outcome(ok=False, text="exit status 3")
    yield
    rig.outcome = Outcome(ok=True, text="exit status 0")


def _lost(path: str) -> Callable[[Watched], AbstractContextManager[None]]:
    """Lose the answers to requests for *path*, after the service gave them."""

    @contextmanager
    def lose(rig: Watched) -> Iterator[None]:
        def drop(request: httpx.Request, forward: Forward) -> httpx.Response:
            answer = forward(request)
            if re.match(path, path_of(request)):
                raise httpx.ReadError("cut off")
            return answer

        rig.meddle = drop
        yield
        rig.meddle = lambda request, forward: forward(request)

    return lose


CAUSES = {
    "no file at the service": (
        _no_file_at_the_service,
        Exit.NOT_DELIVERED,
        "no base configuration for role worker-app in cluster default",
    ),
    "target not writable": (_unwritable_target, Exit.APPLY_FAILED, "Is a directory"),
    "apply command fails": (_failing_command, Exit.APPLY_FAILED, "apply command: exit status 3"),
    "offer lost": (_lost("/attest$"), Exit.UNREACHABLE, "the machine has not fetched it yet"),
    "answer lost": (_lost("/config/"), Exit.UNREACHABLE, "has not said since that it is applied"),
}


@pytest.mark.threat("T173")
@pytest.mark.parametrize("cause", CAUSES)
def test_a_first_delivery_that_fails_is_said_until_it_arrived(
    blank_tpm: SoftwareTPM, tpm_ca: CertificateAuthority, tmp_path: Path, cause: str
) -> None:
    """Twice, with a restart of the service and a loss of the agent's state in between; then it comes by itself."""
    hinder, ends, why = CAUSES[cause]
    with in_process_service(tmp_path / "service") as first:
        blank_tpm.manufacture(tpm_ca, at=first.clock.now())
        rig = Watched(first, tmp_path, open_tpm=blank_tpm.node, apply_command="apply", attempts="1")
        assert rig.once() is Exit.PENDING_APPROVAL
        machine_id = rig.machine_id
        first.operator().approve(machine_id)
        with hinder(rig):
            assert rig.once() is ends, rig.events.entries
        since = _owed(rig, machine_id, why)
    with in_process_service(tmp_path / "service") as second:
        rig.service = second
        assert _owed(rig, machine_id, why) == since
        for file in rig.state.directory.iterdir():
            file.unlink()
        # Attested already: a further attestation is no first one any more.
        with hinder(rig):
            assert rig.once() is (Exit.UNREACHABLE if cause == "offer lost" else ends), rig.events.entries
        assert _owed(rig, machine_id, why) == since
        assert rig.once() is Exit.OK, rig.events.entries
        assert second.canary in rig.config_path.read_text()
        machine = second.operator().machine(machine_id)
        assert machine["configuration_not_delivered"] is None
        assert (machine["status"], machine["trust"]) == ("attested", "verified")
        assert rig.state.status() == "attested"
        commands = len(rig.commands)
        assert rig.once() is Exit.OK
        assert len(rig.commands) == commands


def _owed(rig: Rig, machine_id: str, why: str) -> str:
    """Check that operators are told *why*, and the machine tells nobody that all is well; return since when."""
    owed = rig.service.operator().machine(machine_id)["configuration_not_delivered"]
    assert why in owed["why"]
    # An agent with fresh state that never heard of the offer knows what its welcome said.
    assert rig.state.status() != "attested" or why == CAUSES["offer lost"][2]
    since: str = owed["since"]
    return since
