"""What the agent writes for machined, and whatever machined answers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attestation_agent.talos import messages
from attestation_agent.talos.calls import Answer, Conversation
from attestation_agent.talos.errors import MachinedFailed, MachinedRefused
from attestation_testing.talos.machined_proto import MESSAGES, MODES


@given(data=st.binary(max_size=512), mode=st.sampled_from(messages.Mode), dry_run=st.booleans())
def test_a_request_is_what_a_compiler_of_the_format_writes(
    data: bytes, mode: messages.Mode, dry_run: bool
) -> None:
    """Byte for byte, as Google's protobuf does, of the public proto's shape."""
    theirs = MESSAGES["ApplyConfigurationRequest"](data=data, mode=int(mode), dry_run=dry_run)
    assert messages.apply_request(data, mode=mode, dry_run=dry_run) == theirs.SerializeToString()
    assert MODES[mode] == mode.name


@given(labels=st.lists(st.text(alphabet="ABCDEFGHIJKLMNOPQRSTUVWXYZ-0123", min_size=1), min_size=1))
def test_a_reset_names_what_it_wipes(labels: list[str]) -> None:
    """Byte for byte; each partition by its name, a reboot, and nothing of the defaults."""
    theirs = MESSAGES["ResetRequest"](reboot=True)
    for label in labels:
        theirs.system_partitions_to_wipe.add(label=label, wipe=True)
    assert messages.wipe_request(labels) == theirs.SerializeToString()


@given(data=st.binary(max_size=256))
def test_an_answer_is_a_success_or_refused_in_one_way(data: bytes) -> None:
    """Whatever comes, who asked sees an answer or MachinedFailed; and what is a success, protobuf reads as one."""
    try:
        count = messages.check_answer(data)
    except MachinedFailed:
        return
    found = MESSAGES["ResetResponse"].FromString(data)
    assert len(found.messages) == count
    assert not any(each.metadata.error or each.metadata.HasField("status") for each in found.messages)


@pytest.mark.threat("T320")
@given(error=st.text(min_size=1), hostname=st.text(), before=st.integers(0, 3))
def test_no_answer_with_an_error_in_it_counts(error: str, hostname: str, before: int) -> None:
    """Wherever among the answers it stands."""
    answer = MESSAGES["ApplyConfigurationResponse"]()
    for _ in range(before):
        answer.messages.add(mode_details="applied")
    answer.messages.add().metadata.MergeFrom(
        type(answer.messages.add().metadata)(error=error, hostname=hostname)
    )
    with pytest.raises(MachinedRefused, match=r"^machined answers that it failed$"):
        messages.check_answer(answer.SerializeToString())


@given(pieces=st.lists(st.binary(max_size=64), max_size=8))
def test_http2_of_anybody_ends_in_one_way(pieces: list[bytes]) -> None:
    """Whatever comes, in whatever pieces, is an answer, not one yet, or MachinedFailed."""
    answer = Answer()
    talk = Conversation(answer, "/machine.MachineService/Version", b"", {}, 1.0)
    assert talk.begin().startswith(b"PRI * HTTP/2.0")
    try:
        for piece in (b"\0\0\0\4\0\0\0\0\0", *pieces):
            talk.received(piece)
            if answer.ended:
                answer.message()
    except MachinedFailed:
        return


@given(
    st.dictionaries(
        st.sampled_from([":status", "grpc-status", "grpc-message"]),
        st.one_of(st.text(max_size=20), st.sampled_from(["200", "0", "3", "16", "17", "-1", "²"])),
    ),
    st.binary(max_size=32),
)
def test_a_call_ends_with_its_message_or_in_one_way(headers: dict[str, str], data: bytes) -> None:
    """A success is status 0 with exactly one message that is not compressed; nothing else is."""
    answer = Answer()
    answer.headers.update(headers)
    answer.add(data)
    try:
        message = answer.message()
    except MachinedFailed:
        return
    assert (headers[":status"], int(headers["grpc-status"])) == ("200", 0)
    assert data == b"\0" + len(message).to_bytes(4, "big") + message
