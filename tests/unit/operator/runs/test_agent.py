"""One challenge, one answer: what an agent does with a run, and with all that may come between."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from attestation import errors
from attestation.client import ServiceUnreachable
from attestation.client.errors import api_error
from attestation.errors import AttestationError, DeviceError, TEEDeviceError
from attestation.wire import b64encode
from attestation_operator.errors import TokenMissing
from attestation_operator.runs import agent
from attestation_operator.runs.agent_service import NodeClaim
from tests.unit.operator.runs.agent_world import ITEM, NODE, Service, World, challenge, run


@pytest.fixture
def world() -> Iterator[World]:
    """An agent."""
    with contextlib.closing(World()) as made:
        yield made


def refused(code: str, status: int, **more: Any) -> AttestationError:
    """Return what the service answers."""
    return api_error(code=code, title="", detail="no", status=status, **more)


def test_a_run_gets_one_answer(world: World) -> None:
    """Evidence for its challenge, and for the node that the token names; no more for what changes in it then."""
    assert world.after(1, run()) == {"delivered": 1}
    ((uid, said),) = world.service.delivered
    assert (uid, said.challenge_id, said.evidence, said.unavailable) == ("u1", challenge().id, (ITEM,), None)
    assert world.device.asked == [("tpm", NODE.uid)]
    assert world.after(2, run(), run("u2")) == {"delivered": 1, "refused": 1}
    assert [uid for uid in world.service.asked if uid == "u1"] == ["u1"]


@pytest.mark.parametrize(
    "raw",
    [
        run(phase="Pending"),
        run(phase="Succeeded"),
        run(phase=""),
        run(backend="sgx"),
        run(attempt="1"),
        run(nonce=5),
    ],
)
def test_what_does_not_run_is_left_alone(world: World, raw: dict[str, Any]) -> None:
    """No challenge is asked for."""
    world.service.challenges = [challenge("u9")]
    assert world.after(1, raw, run("u9")) == {"delivered": 1}
    assert world.service.asked == ["u9"]


def test_the_next_attempt_is_answered_too(world: World) -> None:
    """And the one that is answered is not, however often the run is told of."""
    world.service.challenges = [challenge(), challenge(attempt=2)]
    assert world.after(1, run()) == {"delivered": 1}
    assert world.after(2, run(), run(attempt=2)) == {"delivered": 2}
    assert [said.challenge_id for _, said in world.service.delivered] == [
        challenge().id, challenge(attempt=2).id,
    ]  # fmt: skip


def test_what_the_watch_tells_meanwhile_is_not_lost(world: World) -> None:
    """An attempt that begins while the last one is being answered is answered after it."""
    world.service.challenges = [challenge(), challenge(attempt=2)]

    def says(asked: Any) -> Any:
        world.tell(run(attempt=2))
        return (ITEM,)

    world.device.says = says
    assert world.after(2, run()) == {"delivered": 2}


def test_the_challenge_may_be_ahead_of_what_was_seen(world: World) -> None:
    """The service opened the second attempt before the run says so: it is answered once."""
    world.service.challenges = [challenge(attempt=2)]
    assert world.after(1, run()) == {"delivered": 1}
    world.tell(run(attempt=2))
    world.service.challenges = [challenge("u2")]
    assert world.after(2, run("u2")) == {"delivered": 2}
    assert world.service.asked == ["u1", "u2"]


# What the device says


@pytest.mark.parametrize("fault", sorted(errors.DEVICE_FAULTS))
def test_why_there_is_no_evidence_is_told(fault: str) -> None:
    """C13: in one word of the interface, for a TPM and for confidential hardware; no quote comes with it."""
    for error in (
        DeviceError("it says " + "é" * 2000, fault=fault, hint=": try --tpm"),
        DeviceError("it says no", fault=fault, hint=": try --tpm"),
        TEEDeviceError(fault, "it says no"),
    ):

        def says(_: Any, error: DeviceError = error) -> Any:
            raise error

        with contextlib.closing(World()) as world:
            world.device.says = says
            assert world.after(1, run()) == {"unavailable": 1}
        ((_, said),) = world.service.delivered
        assert said.evidence == ()
        assert said.unavailable is not None
        assert said.unavailable.code == f"device-{fault}"
        # The code stands beside it, and what `attestation-agent` would have to do helps nobody here.
        assert said.unavailable.detail.startswith("it says")
        assert "--tpm" not in said.unavailable.detail


def test_a_fault_of_ours_stops_no_other_run(world: World) -> None:
    """The log has it, and the next run is answered."""

    def says(asked: Any) -> Any:
        if not world.service.delivered and len(world.device.asked) == 1:
            raise RuntimeError("a fault")
        return (ITEM,)

    world.device.says = says
    world.service.challenges = [challenge(), challenge("u2")]
    assert world.after(2, run(), run("u2")) == {"failed": 1, "delivered": 1}
    assert "run.failed" in world.log.events


def test_evidence_stands_in_no_log(world: World) -> None:
    """Neither what was asked, nor what was signed."""
    world.after(1, run())
    told = repr(world.log.said)
    assert b64encode(b"signed") not in told
    assert challenge().nonce not in told


# What is signed


@pytest.mark.threat("T284")
@pytest.mark.parametrize(
    "changed",
    [
        {"nonce": b64encode(b"\0" * 32)},  # of nobody
        {"random": b64encode(b"\0" * 32)},
        {"nonce": b64encode(b"\0" * 31)},
        {"nonce": "!"},
        {"backend": "tdx"},
        {"caller_nonce": "that of another"},
    ],
)
def test_only_the_nonce_of_the_run_is_signed(world: World, changed: dict[str, Any]) -> None:
    """Whoever answers as the service cannot have the AK sign what counts in another protocol."""
    world.service.challenges = [challenge(**changed)]
    assert world.after(1, run()) == {"refused": 1}
    assert world.device.asked == []
    assert world.service.delivered == []


def test_the_nonce_of_the_caller_is_mixed_in(world: World) -> None:
    """As the service mixes it: UTF-8."""
    world.service.challenges = [challenge(caller_nonce="sixteen é letters")]
    assert world.after(1, run(nonce="sixteen é letters")) == {"delivered": 1}


def test_the_node_is_that_of_the_token_as_it_is_now(world: World) -> None:
    """The kubelet replaces it; without a node in it nothing is collected."""
    world.node = NodeClaim(name="n1", uid="another-uid")
    assert world.after(1, run()) == {"delivered": 1}
    assert world.device.asked == [("tpm", "another-uid")]
    world.node, world.service.challenges = None, [challenge("u2")]
    assert world.after(2, run("u2")) == {"delivered": 1, "refused": 1}


# What the service says


@pytest.mark.parametrize("where", ["challenges", "answers"])
@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (refused("challenge-used", 409), "delivered"),
        (refused("challenge-expired", 410), "forgotten"),
        (refused("challenge-unknown", 404), "forgotten"),
        (refused("run-unknown", 404), "forgotten"),
        (refused("node-mismatch", 403), "refused"),
        (refused("malformed-evidence", 400), "refused"),
    ],
)
def test_what_the_service_refuses_is_final(
    world: World, where: str, error: AttestationError, outcome: str
) -> None:
    """An answer that was lost on its way counts as delivered; what is over is forgotten; nothing is asked again."""
    getattr(world.service, where).insert(0, error)
    assert world.after(1, run()) == {outcome: 1}
    assert world.paused == []
    assert len(world.service.asked) == 1
    assert len(world.service.delivered) == (where == "answers")


@pytest.mark.parametrize("where", ["challenges", "answers"])
@pytest.mark.parametrize(
    "error",
    [
        ServiceUnreachable("away"),
        TokenMissing("between two tokens"),
        refused("unavailable", 503),
        refused("rate-limited", 429, retry_after_seconds=3),
        refused("machine-changed", 409),
    ],
)
def test_what_passes_is_asked_again(world: World, where: str, error: AttestationError) -> None:
    """With pauses that grow; evidence is collected once for one challenge."""
    getattr(world.service, where)[:0] = [error] * 4
    assert world.after(1, run()) == {"delivered": 1}
    assert len(world.paused) == 4
    if error.code == "rate-limited":
        assert min(world.paused) >= 3  # as the service asked for
    else:
        assert world.paused[0] < world.paused[3]
    assert len(world.device.asked) == 1


@pytest.mark.parametrize(
    ("where", "seconds"), [("challenges", agent.RUN_SECONDS), ("answers", agent.CHALLENGE_SECONDS)]
)
def test_a_service_that_stays_away_is_not_asked_for_ever(world: World, where: str, seconds: float) -> None:
    """A challenge lives a minute, a run five; the next run is answered."""
    error = ServiceUnreachable("away")
    getattr(world.service, where)[:] = [error]
    assert world.after(1, run()) == {"away": 1}
    assert seconds - agent.LONGEST_PAUSE_SECONDS <= world.at <= seconds
    world.service.challenges, world.service.answers = [challenge("u2")], [None]
    assert world.after(2, run("u2")) == {"away": 1, "delivered": 1}


def test_a_run_that_the_service_cannot_serve_holds_up_no_other(world: World) -> None:
    """It waits behind those that wait, with pauses that grow while nothing is answered, and is answered in the end."""

    class Choosy(Service):
        async def challenge(self, uid: str) -> Any:
            if uid == "poor" and len(self.delivered) < 3:
                raise ServiceUnreachable("a fault of this run alone")
            return challenge(uid)

    service = world.agent._service = Choosy()
    runs = [run("poor"), *(run(f"u{number}") for number in range(3))]
    world.until(lambda: len(service.delivered) == 4, *runs)
    served = [uid for uid, _ in service.delivered]
    assert served == ["u0", "u1", "u2", "poor"]


def test_pauses_grow_while_all_runs_take_turns(world: World) -> None:
    """The service is away: so many runs are no reason to ask it more often."""
    world.service.challenges = [ServiceUnreachable("away")]
    world.until(lambda: len(world.paused) >= 12, run("u1"), run("u2"))
    assert {"u1", "u2"} == set(world.service.asked)
    assert min(world.paused[6:12]) >= agent.LONGEST_PAUSE_SECONDS / 2


def test_an_answer_makes_pauses_short_again(world: World) -> None:
    """What failed before it says nothing of what fails after it."""
    away = ServiceUnreachable("away")
    world.service.challenges = [away, away, away, away, challenge(), away, challenge("u2")]
    world.after(1, run())
    world.after(2, run("u2"))
    assert world.paused[3] > 1.0 > world.paused[4]


def test_a_token_that_is_missing_for_a_moment_settles_nothing(world: World) -> None:
    """The kubelet replaces it: it is read again."""
    there = [None, None, NODE]

    def node() -> NodeClaim:
        found = there.pop(0) if len(there) > 1 else there[0]
        if found is None:
            raise TokenMissing("between two tokens")
        return found

    world.agent._node = node
    assert world.after(1, run()) == {"delivered": 1}
    assert len(world.paused) == 2


def test_what_the_device_took_is_gone_from_the_challenge(world: World) -> None:
    """A minute is counted from the challenge, and not from the evidence."""

    def says(_: Any) -> Any:
        world.at += agent.CHALLENGE_SECONDS - 1
        return (ITEM,)

    world.device.says = says
    world.service.answers = [ServiceUnreachable("away")]
    assert world.after(1, run()) == {"away": 1}
    assert world.at <= agent.CHALLENGE_SECONDS


@pytest.mark.parametrize("how", ["ended", "deleted", "another of that name"])
def test_a_run_that_ends_is_asked_for_no_more(world: World, how: str) -> None:
    """Also while the service is away."""

    def end() -> None:
        if how == "ended":
            world.tell(run(phase="Failed"))
        elif how == "deleted":
            world.tell(run(), gone=True)
        else:
            world.tell(
                {**run(), "metadata": {**run()["metadata"], "uid": "other"}, "status": {"phase": "Pending"}}
            )

    world.on_pause = end
    world.service.challenges = [ServiceUnreachable("away")]
    assert world.after(1, run()) == {"forgotten": 1}
    assert len(world.service.asked) == 1


def test_a_run_that_ended_before_its_turn_is_not_begun(world: World) -> None:
    """It waits for the device, and is over."""

    def says(_: Any) -> Any:
        world.tell(run("u2"), gone=True)
        return (ITEM,)

    world.device.says = says
    world.service.challenges = [challenge(), challenge("u3")]
    assert world.after(2, run(), run("u2"), run("u3")) == {"delivered": 2}
    assert world.service.asked == ["u1", "u3"]


# How much at once


def test_a_device_answers_one_at_a_time_and_two_devices_at_once(world: World) -> None:
    """A TPM is one device; confidential hardware, whichever backend, is another."""
    busy, most = {"tpm": 0, "tee": 0}, {"tpm": 0, "tee": 0}
    both = threading.Barrier(2, timeout=20)
    guard = threading.Lock()

    def says(asked: Any) -> Any:
        device = "tpm" if asked.backend == "tpm" else "tee"
        with guard:
            busy[device] += 1
            most[device] = max(most[device], busy[device])
        both.wait()  # passes only while the other device is asked too
        with guard:
            busy[device] -= 1
        return (ITEM,)

    class Many:
        """Answers for each run by its name."""

        def __init__(self) -> None:
            self.delivered: list[str] = []

        async def challenge(self, uid: str) -> Any:
            return challenge(uid, backend=uid.rpartition("/")[2])

        async def deliver(self, uid: str, evidence: Any) -> None:
            self.delivered.append(uid)

    world.device.says = says
    service = Many()
    world.agent._service = service
    runs = [run(f"{n}/{backend}", backend=backend) for n in range(4) for backend in ("tpm", "tdx")]
    world.until(lambda: len(service.delivered) == 8, *runs)
    assert most == {"tpm": 1, "tee": 1}


def in_namespace(namespace: str, raw: dict[str, Any]) -> dict[str, Any]:
    """Return a run as one of another namespace."""
    raw["metadata"]["namespace"] = namespace
    return raw


def test_namespaces_take_turns(world: World) -> None:
    """Who fills a node with runs of one namespace does not keep it from those of another."""
    waiting = world.agent._waiting["tpm"]
    for number in range(5):
        world.tell(run(f"u{number}"))
    world.tell(in_namespace("other", run("late")))
    taken = [world.agent._next(waiting) for _ in range(3)]
    assert taken == ["attest/run-u0", "other/run-late", "attest/run-u1"]
    for number in range(5):
        world.tell(run(f"u{number}"), gone=True)
    world.tell(in_namespace("other", run("u7")))
    world.agent._next(waiting)
    assert "attest" not in world.agent._turns


def test_what_is_remembered_is_bounded(world: World) -> None:
    """Runs beyond the bound wait for the next list; what ended is forgotten."""
    of_one = agent.MAX_RUNS_OF_NAMESPACE + 5
    for number in range(of_one):
        world.tell(run(f"u{number}"))
    assert len(world.agent._open) == agent.MAX_RUNS_OF_NAMESPACE
    assert world.log.events.count("run.too_many") == 5
    for number in range(agent.MAX_RUNS):
        world.tell(in_namespace(f"n{number}", run(f"v{number}")))
    assert len(world.agent._open) == agent.MAX_RUNS
    for number in range(agent.MAX_RUNS):
        world.tell(run(f"u{number}"), gone=True)
        world.tell(in_namespace(f"n{number}", run(f"v{number}")), gone=True)
    assert not world.agent._open
    world.tell(run("late"))
    assert list(world.agent._open) == ["attest/run-late"]
    world.service.challenges = [challenge("late")]
    world.after(1)
    assert world.agent._settled == {"late": 1}
    other = run("other")
    other["metadata"]["name"] = "run-late"  # made anew under that name
    world.service.challenges = [challenge("other")]
    world.after(2, other)
    assert world.agent._settled == {"other": 1}
    other["status"]["phase"] = "Succeeded"
    world.tell(other)
    assert (world.agent._open, world.agent._settled) == ({}, {})
