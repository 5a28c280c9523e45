"""What the agent sends to machined and makes of its answers, with gRPC's own server and Google's protobuf as judges."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hpack import Encoder

from attestation_agent.exits import ApplyFailed, WipeFailed
from attestation_agent.talos import calls, machined
from attestation_agent.talos.errors import (
    MachinedAnswerRefused,
    MachinedDenied,
    MachinedFailed,
    MachinedRefused,
    MachinedTooOld,
    MachinedUnavailable,
)
from attestation_agent.talos.machined import Machined
from attestation_testing.talos.machined import Behaviour, Call, FakeMachined, Stage, raw_socket
from attestation_testing.talos.machined_proto import MESSAGES

CANARY = "canary-5f1c"
CONFIG = f"machine:\n  token: {CANARY}\n".encode()
"""What Talos quotes in each of its errors here."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "machine.sock"


@pytest.fixture
def talos(path: Path) -> Iterator[FakeMachined]:
    with FakeMachined(path) as found:
        yield found


@pytest.fixture
def ours(path: Path) -> Machined:
    return Machined(path, timeout_seconds=60.0)


def test_a_configuration_is_tried_first_and_then_applied(talos: FakeMachined, ours: Machined) -> None:
    """Each call and each of its fields, as Google's protobuf reads them; the role with each of them."""
    ours.apply(CONFIG)
    assert [(call.method, dict(call.members)) for call in talos.calls] == [
        ("Version", {}),
        *(
            (
                "ApplyConfiguration",
                {"data": CONFIG, "mode": "AUTO", "dry_run": dry_run, "try_mode_timeout": None},
            )
            for dry_run in (True, False)
        ),
    ]
    assert {call.metadata["talos-role"] for call in talos.calls} == {"os:admin"}
    assert not any(call.unknown for call in talos.calls)
    assert (talos.stage, talos.config, talos.applied) == (Stage.CONFIGURED, CONFIG, [CONFIG])


@pytest.mark.threat("T320")
def test_a_wipe_names_its_partitions_and_reboots(talos: FakeMachined, ours: Machined) -> None:
    """R39, field by field: none of the defaults, which wipe all disks and leave the machine off."""
    ours.apply(CONFIG)
    talos.calls.clear()
    ours.wipe()
    assert [(call.method, dict(call.members)) for call in talos.calls] == [
        (
            "Reset",
            {
                "graceful": False,
                "reboot": True,
                "system_partitions_to_wipe": [
                    {"label": "STATE", "wipe": True},
                    {"label": "EPHEMERAL", "wipe": True},
                ],
                "user_disks_to_wipe": [],
                "mode": "ALL",
            },
        )
    ]
    assert talos.partitions == {"EFI": True, "META": True, "STATE": False, "EPHEMERAL": False}
    assert (talos.stage, talos.user_disks_wiped, talos.reboots, talos.is_off) == (Stage.WIPED, [], 1, False)


@pytest.mark.parametrize("size_bytes", [70_000, 2 << 20])
def test_a_configuration_may_be_larger_than_a_window(
    talos: FakeMachined, ours: Machined, size_bytes: int
) -> None:
    """Flow control of HTTP/2: what does not fit waits; the answer, which quotes all of it thrice, is read."""
    config = CONFIG + b"# " + b"x" * size_bytes
    ours.apply(config)
    assert talos.config == config


STATUSES = {
    "UNIMPLEMENTED": MachinedTooOld,
    "PERMISSION_DENIED": MachinedDenied,
    "UNAUTHENTICATED": MachinedDenied,
    "UNAVAILABLE": MachinedUnavailable,
    "DEADLINE_EXCEEDED": MachinedUnavailable,
    "RESOURCE_EXHAUSTED": MachinedUnavailable,
    "INVALID_ARGUMENT": MachinedRefused,
    "FAILED_PRECONDITION": MachinedRefused,
    "UNKNOWN": MachinedRefused,
    "INTERNAL": MachinedRefused,
}


def test_each_status_has_its_meaning(talos: FakeMachined, ours: Machined) -> None:
    """What a caller treats differently is an error of its own; none of them quotes machined."""
    for status, kind in STATUSES.items():
        talos.behaviour = Behaviour(refuse=lambda _, status=status: (status, f"line 7: {CANARY}"))  # type: ignore[misc]
        with pytest.raises(MachinedFailed) as caught:
            ours.version()
        assert type(caught.value) is kind
        assert str(caught.value) == f"machined answers {status}"


@pytest.mark.threat("T321")
@pytest.mark.parametrize("dry_run", [True, False])
def test_a_refused_configuration_is_told_without_a_word_of_it(
    talos: FakeMachined, ours: Machined, dry_run: bool
) -> None:
    """Talos' error quotes the configuration; ours says where, and the real one never follows a refused dry run."""

    def refuse(call: Call) -> tuple[str, str] | None:
        if call.members.get("dry_run") is dry_run:
            return "INVALID_ARGUMENT", f"yaml: line 2: {CANARY}\n\tunknown keys: {CONFIG.decode()}"
        return None

    talos.behaviour = Behaviour(refuse=refuse)
    with pytest.raises(ApplyFailed, match=r"^machined answers INVALID_ARGUMENT, at line 2$") as caught:
        ours.apply(CONFIG)
    # Nor in what a traceback would show.
    assert caught.value.__suppress_context__
    assert [call.members["dry_run"] for call in talos.named("ApplyConfiguration")] == [True, False][
        : 2 - dry_run
    ]
    assert talos.stage is Stage.MAINTENANCE


def test_a_refused_wipe_says_why(talos: FakeMachined, ours: Machined) -> None:
    """As Talos refuses it in maintenance; there is nothing of a configuration in it, and an operator has to know."""
    with pytest.raises(
        WipeFailed, match=r'^machined answers UNKNOWN: failed to reset: volume "STATE" is not located$'
    ):
        ours.wipe()
    talos.behaviour = Behaviour(refuse=lambda _: ("UNKNOWN", "a\n\x1b[2Jb" + "x" * 999))
    with pytest.raises(WipeFailed) as caught:
        ours.wipe()
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 250
    assert all(talos.partitions.values())


@pytest.mark.threat("T320")
@pytest.mark.parametrize("version", ["v1.8.4", "v0.14.0", "dev", "1.13.9; rm"])
def test_a_talos_that_may_not_know_dry_runs_is_given_nothing(
    talos: FakeMachined, ours: Machined, version: str
) -> None:
    """It would pass over the field and take the trial for the real thing."""
    talos.behaviour = Behaviour(version=version, knows_dry_run=False)
    with pytest.raises(ApplyFailed, match="of a version that is not known here"):
        ours.apply(CONFIG)
    assert [call.method for call in talos.calls] == ["Version"]


@pytest.mark.parametrize("version", ["v1.9.5", "v1.12.0-alpha.1", "v1.14.2", "v1.20.0"])
def test_versions_from_1_9_on_are_known(talos: FakeMachined, ours: Machined, version: str) -> None:
    talos.behaviour = Behaviour(version=version)
    assert ours.version() == version


def test_another_role_gets_nothing(
    talos: FakeMachined, ours: Machined, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fake is as strict as Talos: it is the metadata that lets us in."""
    monkeypatch.setattr(machined, "ROLE", {"talos-role": "os:reader"})
    assert ours.version() == "v1.13.9"
    with pytest.raises(ApplyFailed, match="PERMISSION_DENIED"):
        ours.apply(CONFIG)
    with pytest.raises(WipeFailed, match="PERMISSION_DENIED"):
        ours.wipe()
    assert talos.stage is Stage.MAINTENANCE


@pytest.mark.threat("T321")
def test_who_serves_the_socket_must_be_root(
    talos: FakeMachined, ours: Machined, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user that could make a socket there would be given the configuration."""
    monkeypatch.setattr(calls, "user_of", lambda _: 4711)
    with pytest.raises(ApplyFailed, match="is served by user 4711, not by root"):
        ours.apply(CONFIG)
    assert talos.calls == []


@pytest.mark.parametrize("method", ["ApplyConfiguration", "Reset"])
@pytest.mark.parametrize("done", [False, True])
def test_a_machined_that_hangs_up_may_be_asked_again(
    talos: FakeMachined, ours: Machined, method: str, done: bool
) -> None:
    """Whether it was done before it hung up or not: the second time it is, and once is as good as twice."""
    if method == "Reset":
        talos.begin_anew(CONFIG)

    def hang_up(call: Call) -> None:
        if call.method == method and not call.members.get("dry_run"):
            talos.behaviour = Behaviour()
            talos.hang_up()

    talos.behaviour = Behaviour(after=hang_up) if done else Behaviour(before=hang_up)
    act, failure = (ours.wipe, WipeFailed) if method == "Reset" else (lambda: ours.apply(CONFIG), ApplyFailed)
    with pytest.raises(failure, match="machined"):
        act()
    talos.start()
    act()
    assert talos.stage is (Stage.WIPED if method == "Reset" else Stage.CONFIGURED)


def test_a_machined_that_is_not_there_is_unavailable(path: Path, ours: Machined) -> None:
    with pytest.raises(MachinedUnavailable, match="No such file or directory"):
        ours.version()
    with pytest.raises(ApplyFailed), raw_socket(path, lambda connection: None):
        ours.apply(CONFIG)


def test_a_machined_that_hangs_is_given_up(talos: FakeMachined, path: Path) -> None:
    """At its deadline, and before it when the agent is to stop."""
    talos.behaviour = Behaviour(hangs=frozenset({"Reset"}))
    with pytest.raises(WipeFailed, match=r"DEADLINE_EXCEEDED|in time"):
        Machined(path, timeout_seconds=0.3).wipe()
    answers = iter([False, True])
    with pytest.raises(WipeFailed, match="the agent stops"):
        Machined(path, timeout_seconds=600.0, stopping=lambda: next(answers)).wipe()
    assert all(talos.partitions.values())


def test_an_answer_that_is_none_is_no_success(talos: FakeMachined, ours: Machined) -> None:
    """Neither empty nor garbage nor an answer with an error in it lets a wipe or a configuration count as done."""
    failed = MESSAGES["ResetResponse"]()
    failed.messages.add().metadata.error = f"rpc error: {CANARY}"
    behind = MESSAGES["ResetResponse"]()
    behind.messages.add().metadata.status.code = 5
    for garbage in (b"", b"\xff\xff", b"\x08\x01", failed.SerializeToString(), behind.SerializeToString()):
        talos.begin_anew(CONFIG)
        talos.behaviour = Behaviour(
            garbage={"Reset": garbage, "ApplyConfiguration": garbage, "Version": b"\x0a\x00"}
        )
        with pytest.raises(WipeFailed) as caught:
            ours.wipe()
        assert CANARY not in str(caught.value)
        with pytest.raises(MachinedAnswerRefused, match="names no version"):
            ours.version()


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def _answers(*, last_stream: int) -> bytes:
    """Return a version of a server that says first that it stops, after *last_stream*."""
    encoder = Encoder()
    message = MESSAGES["VersionResponse"]()
    message.messages.add().version.tag = "v1.13.9"
    data = message.SerializeToString()
    return b"".join(
        (
            _frame(4, 0, 0),
            _frame(7, 0, 0, last_stream.to_bytes(4, "big") + bytes(4)),
            _frame(1, 4, 1, encoder.encode([(":status", "200"), ("content-type", "application/grpc")])),
            _frame(0, 0, 1, b"\0" + len(data).to_bytes(4, "big") + data),
            _frame(1, 5, 1, encoder.encode([("grpc-status", "0")])),
        )
    )


def test_what_is_answered_while_it_stops_is_heard(path: Path, ours: Machined) -> None:
    """A machine that is to boot anew says so, and answers what it has begun; what it has not begun it says too."""
    with raw_socket(path, _says(_answers(last_stream=2**31 - 1))):
        assert ours.version() == "v1.13.9"
    with (
        raw_socket(path, _says(_answers(last_stream=0))),
        pytest.raises(MachinedUnavailable, match="ended the call"),
    ):
        ours.version()


def test_what_was_said_before_it_hung_up_is_heard(path: Path, ours: Machined) -> None:
    """A machine that boots anew has answered, and reads no more of what we send: it did what it said."""
    with raw_socket(path, lambda connection: connection.sendall(_answers(last_stream=1))):
        assert ours.version() == "v1.13.9"


def _says(data: bytes) -> Any:
    def say(connection: socket.socket) -> None:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(65_536):
            pass

    return say


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        bytes(64),
        # SETTINGS, then half a frame.
        b"\0\0\0\4\0\0\0\0\0" + b"\0\xff\xff\1\4\0\0\0\1",
        # SETTINGS, then a promise that was not asked for.
        b"\0\0\0\4\0\0\0\0\0" + b"\0\0\5\5\4\0\0\0\1" + b"\0\0\0\2\x88",
    ],
    ids=["http1", "zeros", "half", "push"],
)
def test_what_speaks_no_grpc_is_refused(path: Path, ours: Machined, data: bytes) -> None:
    with raw_socket(path, _says(data)), pytest.raises((MachinedAnswerRefused, MachinedUnavailable)):
        ours.version()


def test_what_answers_without_end_is_cut_off(
    path: Path, ours: Machined, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Frames that say nothing count like those that do."""
    monkeypatch.setattr(calls, "MAX_RECEIVED_BYTES", 100_000)

    def pings(connection: socket.socket) -> None:
        try:
            connection.sendall(b"\0\0\0\4\0\0\0\0\0")
            while True:
                connection.sendall(b"\0\0\x08\6\1\0\0\0\0" + bytes(8))
        except OSError:
            return

    with raw_socket(path, pings), pytest.raises(MachinedAnswerRefused, match="sends more than"):
        ours.version()
