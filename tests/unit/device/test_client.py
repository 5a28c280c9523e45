"""The client against a scripted TPM: resubmission, flushing, and answers that no TPM may give."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from attestation.device import TPM
from attestation.device import client as client_module
from attestation.errors import DeviceError, TPMResponseError
from attestation.tpm import EK_TEMPLATES, Hierarchy, commands
from attestation.tpm.commands import CC, SessionType
from attestation.tpm.sessions import Password
from attestation.wire import sized, u16, u32

EMPTY_AUTH = sized(b"") + b"\x01" + sized(b"")


def ok(parameters: bytes = b"", *, handle: int | None = None, sessions: int = 0) -> bytes:
    head = b"" if handle is None else u32(handle)
    body = head + (u32(len(parameters)) + parameters + EMPTY_AUTH * sessions if sessions else parameters)
    return u16(0x8002 if sessions else 0x8001) + u32(10 + len(body)) + u32(0) + body


def refused(rc: int) -> bytes:
    return u16(0x8001) + u32(10) + u32(rc)


class Scripted:
    """A transport whose answers are a function of the command."""

    def __init__(self, answer: Callable[[int, bytes], bytes], *, exclusive: bool = False) -> None:
        self.exclusive = exclusive
        self.answer = answer
        self.sent: list[bytes] = []
        self.closed = 0

    def transmit(self, command: bytes, timeout_seconds: float) -> bytes:
        """Record and answer."""
        self.sent.append(command)
        return self.answer(int.from_bytes(command[6:10]), command)

    def close(self) -> None:
        """Count."""
        self.closed += 1

    @property
    def flushed(self) -> list[int]:
        """Handles that TPM2_FlushContext was sent for, in order."""
        return [int.from_bytes(c[10:]) for c in self.sent if c[6:10] == u32(CC.FLUSH_CONTEXT)]


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Time that stands still but for what the client sleeps."""
    slept: list[float] = []
    stopped = SimpleNamespace(sleep=slept.append, monotonic=lambda: sum(slept))
    monkeypatch.setattr("attestation.device.client.time", stopped)
    return slept


@pytest.mark.parametrize("busy", [0x922, 0x90A, 0x908])
def test_busy_tpm_gets_the_same_bytes_again(busy: int, pauses: list[float]) -> None:
    """RETRY, TESTING and YIELDED: nothing was begun, so the identical command is sent after a growing pause."""
    answers = [refused(busy)] * 3 + [ok(sized(b"12345678"))]
    transport = Scripted(lambda code, command: answers.pop(0))
    assert TPM(transport).execute(commands.get_random(8)) == b"12345678"
    assert len(set(transport.sent)) == 1
    assert len(transport.sent) == 4
    assert pauses == sorted(pauses)
    assert len(pauses) == 3


def test_busy_for_ever_ends(pauses: list[float]) -> None:
    """After 20 seconds of RETRY the caller learns so."""
    transport = Scripted(lambda code, command: refused(0x922))
    with pytest.raises(TPMResponseError, match="RETRY"):
        TPM(transport).execute(commands.get_random(8))
    assert sum(pauses) <= client_module.RESUBMIT_SECONDS
    assert len(transport.sent) < 100


def test_lockout_is_not_resubmitted(pauses: list[float]) -> None:
    """Each further try would count."""
    transport = Scripted(lambda code, command: refused(0x921))
    with pytest.raises(TPMResponseError, match="LOCKOUT"):
        TPM(transport).execute(commands.get_random(8))
    assert len(transport.sent) == 1
    assert pauses == []


def session_answers(code: int, command: bytes) -> bytes:
    if code == CC.START_AUTH_SESSION:
        return ok(sized(b"t" * 32), handle=0x02000000)
    return ok() if code == CC.FLUSH_CONTEXT else refused(0x101)


def test_scope_flushes_what_it_made_when_something_fails() -> None:
    """An error inside leaves nothing loaded and comes out itself."""
    transport = Scripted(session_answers)
    tpm = TPM(transport)

    def fail_inside() -> None:
        with tpm.scope():
            tpm.start_session(SessionType.HMAC, None)
            tpm.execute(commands.get_random(8))

    with pytest.raises(TPMResponseError, match="FAILURE"):
        fail_inside()
    assert transport.flushed == [0x02000000]
    assert tpm.loaded == ()


def test_scope_keeps_what_was_there_before() -> None:
    """Only what was made inside is flushed."""
    handles = iter([0x02000000, 0x02000001])

    def answer(code: int, command: bytes) -> bytes:
        if code == CC.START_AUTH_SESSION:
            return ok(sized(b"t" * 32), handle=next(handles))
        return ok()

    transport = Scripted(answer)
    with TPM(transport) as tpm:
        tpm.start_session(SessionType.HMAC, None)
        with tpm.scope():
            tpm.start_session(SessionType.HMAC, None)
        assert transport.flushed == [0x02000001]
        assert tpm.loaded == (0x02000000,)
    assert transport.flushed == [0x02000001, 0x02000000]
    assert transport.closed == 1


def test_handle_of_a_refused_answer_is_flushed_too() -> None:
    """A key whose answer does not parse or authenticate occupies a slot all the same."""

    def answer(code: int, command: bytes) -> bytes:
        return ok(b"rubbish", handle=0x80000000, sessions=1) if code == CC.CREATE_PRIMARY else ok()

    transport = Scripted(answer)
    with TPM(transport) as tpm:
        with pytest.raises(DeviceError, match="no TPM may answer"):
            tpm.execute(
                commands.create_primary(Hierarchy.ENDORSEMENT, EK_TEMPLATES[1].tpmt(zeros=True)), Password()
            )
        assert tpm.loaded == (0x80000000,)
    assert transport.flushed == [0x80000000]


def test_everything_is_tried_when_flushing_fails() -> None:
    """One handle that cannot be flushed does not keep the others; the failure is reported."""
    handles = iter([0x02000000, 0x02000001])

    def answer(code: int, command: bytes) -> bytes:
        if code == CC.START_AUTH_SESSION:
            return ok(sized(b"t" * 32), handle=next(handles))
        return refused(0x1CB) if command.endswith(u32(0x02000001)) else ok()

    transport = Scripted(answer)
    tpm = TPM(transport)
    tpm.start_session(SessionType.HMAC, None)
    tpm.start_session(SessionType.HMAC, None)
    with pytest.raises(TPMResponseError):
        tpm.close()
    assert transport.flushed == [0x02000001, 0x02000000]
    assert transport.closed == 1


def test_close_does_not_hide_the_first_error() -> None:
    """Leaving the context with an error keeps that error, even when the TPM is gone."""

    def answer(code: int, command: bytes) -> bytes:
        if code == CC.START_AUTH_SESSION:
            return ok(sized(b"t" * 32), handle=0x02000000)
        raise DeviceError("gone")

    transport = Scripted(answer)

    def fail_inside() -> None:
        with TPM(transport) as tpm:
            tpm.start_session(SessionType.HMAC, None)
            raise KeyError

    with pytest.raises(KeyError):
        fail_inside()
    assert transport.closed == 1


def test_ended_session_is_not_used_again() -> None:
    """A session that ended with a command is neither flushed nor usable."""

    def answer(code: int, command: bytes) -> bytes:
        if code == CC.START_AUTH_SESSION:
            return ok(sized(b"t" * 32), handle=0x03000000)
        area = sized(b"n" * 32) + b"\0" + sized(b"")
        return u16(0x8002) + u32(14 + len(area)) + u32(0) + u32(0) + area

    transport = Scripted(answer)
    with TPM(transport) as tpm:
        session = tpm.start_session(SessionType.POLICY, None)
        tpm.execute(commands.pcr_reset(16), session.use(keep=False))
        assert tpm.loaded == ()
        with pytest.raises(DeviceError, match="ended"):
            session.use()
    assert transport.flushed == []


def test_session_that_goes_on_is_flushed_at_the_end() -> None:
    """A use that keeps the session leaves it on the list of what is to be flushed."""

    def answer(code: int, command: bytes) -> bytes:
        if code == CC.START_AUTH_SESSION:
            return ok(sized(b"t" * 32), handle=0x03000000)
        if code == CC.FLUSH_CONTEXT:
            return ok()
        area = sized(b"n" * 32) + b"\1" + sized(b"")
        return u16(0x8002) + u32(14 + len(area)) + u32(0) + u32(0) + area

    transport = Scripted(answer)
    with TPM(transport) as tpm:
        session = tpm.start_session(SessionType.POLICY, None)
        tpm.execute(commands.pcr_reset(16), session.use())
        assert tpm.loaded == (0x03000000,)
        tpm.execute(commands.pcr_reset(16), session.use())
    assert transport.flushed == [0x03000000]


def test_failure_to_flush_at_the_end_is_not_silent() -> None:
    """Without another error, what could not be flushed is reported on leaving the context."""

    def answer(code: int, command: bytes) -> bytes:
        return ok(sized(b"t" * 32), handle=0x02000000) if code == CC.START_AUTH_SESSION else refused(0x101)

    def leave() -> None:
        with TPM(Scripted(answer)) as tpm:
            tpm.start_session(SessionType.HMAC, None)

    with pytest.raises(TPMResponseError, match="FAILURE"):
        leave()


@pytest.mark.parametrize(("rc", "fine"), [(0, True), (0x100, True), (0x101, False)])
def test_startup_tolerates_only_that_it_was_done(rc: int, *, fine: bool) -> None:
    """INITIALIZE means started already; a failed TPM is a failure."""
    tpm = TPM(Scripted(lambda code, command: refused(rc)))
    if fine:
        tpm.startup()
    else:
        with pytest.raises(TPMResponseError):
            tpm.startup()


def capability(handles: list[int], *, more: bool) -> bytes:
    return ok(bytes([more]) + u32(1) + u32(len(handles)) + b"".join(u32(h) for h in handles))


def test_leftovers_on_a_tpm_of_our_own_are_flushed() -> None:
    """Whoever was killed before us left slots occupied; with no resource manager nobody else clears them."""

    def answer(code: int, command: bytes) -> bytes:
        if code != CC.GET_CAPABILITY:
            return ok()
        first = int.from_bytes(command[14:18])
        return capability([first, first + 1], more=False)

    transport = Scripted(answer, exclusive=True)
    TPM(transport)
    assert transport.flushed == [0x80000000, 0x80000001, 0x02000000, 0x02000001]


@pytest.mark.parametrize(("rc", "fine"), [(0x100, True), (0x101, False)])
def test_leftovers_are_not_looked_for_before_startup(rc: int, *, fine: bool) -> None:
    """A TPM that was not started has nothing loaded; a failed one is a failure."""
    transport = Scripted(lambda code, command: refused(rc), exclusive=True)
    if fine:
        TPM(transport)
    else:
        with pytest.raises(TPMResponseError):
            TPM(transport)


def test_handles_are_paged_and_a_repeating_tpm_does_not_hold_us() -> None:
    """Pages are asked for from behind the last handle; one that repeats itself ends the loop."""
    pages = {1: ([1, 2], True), 3: ([3], False)}

    def answer(code: int, command: bytes) -> bytes:
        handles, more = pages[int.from_bytes(command[14:18])]
        return capability(handles, more=more)

    assert TPM(Scripted(answer)).handles(1) == [1, 2, 3]
    stuck = Scripted(lambda code, command: capability([1, 2], more=True))
    assert TPM(stuck).handles(1) == [1, 2]
    assert len(stuck.sent) == 2
    empty = Scripted(lambda code, command: capability([], more=True))
    assert TPM(empty).handles(1) == []


def test_shutdown_comes_after_all_flushing() -> None:
    """TPM2_Shutdown is the last command, or it does not count."""
    transport = Scripted(
        lambda code, command: session_answers(code, command) if code != CC.SHUTDOWN else ok()
    )
    with TPM(transport) as tpm:
        tpm.start_session(SessionType.HMAC, None)
        tpm.shutdown()
    assert [int.from_bytes(c[6:10]) for c in transport.sent] == [
        CC.START_AUTH_SESSION,
        CC.FLUSH_CONTEXT,
        CC.SHUTDOWN,
    ]


def test_keys_get_more_time_than_other_commands() -> None:
    """RSA keys take discrete TPMs minutes."""
    given: dict[int, float] = {}

    class Timed(Scripted):
        def transmit(self, command: bytes, timeout_seconds: float) -> bytes:
            given[int.from_bytes(command[6:10])] = timeout_seconds
            return refused(0x101)

    tpm = TPM(Timed(session_answers), timeout_seconds=7)
    sent: tuple[commands.Command[Any], ...] = (
        commands.get_random(8),
        commands.create_primary(Hierarchy.ENDORSEMENT, EK_TEMPLATES[0].tpmt()),
    )
    for command in sent:
        with pytest.raises(TPMResponseError):
            tpm.execute(command, *[Password()] * command.authorised)
    assert given == {CC.GET_RANDOM: 7, CC.CREATE_PRIMARY: client_module.KEY_TIMEOUT_SECONDS}
