"""Command codecs: what is sent, byte for byte, and what is refused in an answer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attestation.errors import MalformedEvidence, TPMResponseError
from attestation.tpm import EK_TEMPLATES, Alg, Hierarchy, PCRSelection, Scheme, commands
from attestation.tpm.commands import (
    CC,
    Command,
    Entity,
    NVPublic,
    SessionType,
    parse_response,
    permanent,
    read_parameters,
)
from attestation.wire import sized, u16, u32

OAEP = Scheme(alg=Alg.OAEP, hash_alg=Alg.SHA256)
KEY = Entity(0x80000000, b"\x00\x0b" + bytes(32))
OTHER = Entity(0x80000001, b"\x00\x0b" + bytes([1]) * 32)
SELECTION = PCRSelection.from_names({"sha256": [0, 7]})
TEMPLATE = EK_TEMPLATES[1].tpmt(zeros=True)
NV = NVPublic(index=0x01C0000A, name_alg=Alg.SHA256, attributes=0x62070001, auth_policy=b"", size_bytes=480)

ALL: dict[str, Callable[[], Command[Any]]] = {
    "startup": commands.startup,
    "shutdown": commands.shutdown,
    "self_test": commands.self_test,
    "get_random": lambda: commands.get_random(32),
    "get_handles": lambda: commands.get_handles(commands.TRANSIENT_FIRST),
    "get_properties": lambda: commands.get_properties(0x100),
    "create_primary": lambda: commands.create_primary(Hierarchy.ENDORSEMENT, TEMPLATE),
    "create": lambda: commands.create(KEY, TEMPLATE),
    "load": lambda: commands.load(KEY, b"private", sized(TEMPLATE)),
    "load_external": lambda: commands.load_external(sized(TEMPLATE)),
    "import_key": lambda: commands.import_key(KEY, sized(TEMPLATE), sized(b"d"), sized(b"s")),
    "read_public": lambda: commands.read_public(0x80000000),
    "flush_context": lambda: commands.flush_context(0x80000000),
    "evict_control": lambda: commands.evict_control(Hierarchy.OWNER, KEY, 0x81000001),
    "make_credential": lambda: commands.make_credential(KEY, bytes(32), KEY.name),
    "activate_credential": lambda: commands.activate_credential(KEY, OTHER, sized(b"b"), sized(b"s")),
    "quote": lambda: commands.quote(KEY, bytes(32), SELECTION),
    "certify": lambda: commands.certify(KEY, OTHER, bytes(32)),
    "sign": lambda: commands.sign(KEY, bytes(32)),
    "pcr_read": lambda: commands.pcr_read(SELECTION),
    "pcr_extend": lambda: commands.pcr_extend(7, {Alg.SHA256: bytes(32)}),
    "pcr_reset": lambda: commands.pcr_reset(16),
    "start_auth_session": lambda: commands.start_auth_session(
        SessionType.HMAC, Alg.SHA256, bytes(32), salt_key=commands.NULL_HANDLE, encrypted_salt=sized(b"")
    ),
    "policy_secret": lambda: commands.policy_secret(permanent(Hierarchy.ENDORSEMENT), 0x03000000),
    "rsa_decrypt": lambda: commands.rsa_decrypt(KEY, b"\x33" * 4, OAEP),
    "nv_read_public": lambda: commands.nv_read_public(NV.index),
    "nv_read": lambda: commands.nv_read(NV.entity, NV.entity, 480, 0),
    "nv_define_space": lambda: commands.nv_define_space(Hierarchy.PLATFORM, NV),
    "nv_undefine_space": lambda: commands.nv_undefine_space(Hierarchy.PLATFORM, NV.entity),
    "nv_write": lambda: commands.nv_write(permanent(Hierarchy.PLATFORM), NV.entity, b"data", 0),
    "clear": lambda: commands.clear(Hierarchy.PLATFORM),
    "hierarchy_change_auth": lambda: commands.hierarchy_change_auth(Hierarchy.ENDORSEMENT, b"pw"),
}


def response(parameters: bytes = b"", *, rc: int = 0, tag: int = 0x8001, handle: int | None = None) -> bytes:
    """Return a response without sessions."""
    body = (b"" if handle is None else u32(handle)) + parameters
    return u16(tag) + u32(10 + len(body)) + u32(rc) + body


@pytest.mark.parametrize(
    ("command", "sent"),
    [
        (commands.startup(), "8001 0000000c 00000144 0000"),
        (commands.shutdown(), "8001 0000000c 00000145 0000"),
        (commands.self_test(full=True), "8001 0000000b 00000143 01"),
        (commands.get_random(8), "8001 0000000c 0000017b 0008"),
        (commands.flush_context(0x80000001), "8001 0000000e 00000165 80000001"),
        (commands.read_public(0x81010001), "8001 0000000e 00000173 81010001"),
        (commands.nv_read_public(0x01C00002), "8001 0000000e 00000169 01c00002"),
        (commands.get_handles(0x80000000, 3), "8001 00000016 0000017a 00000001 80000000 00000003"),
        (commands.get_properties(0x100, 1), "8001 00000016 0000017a 00000006 00000100 00000001"),
        (commands.pcr_read(SELECTION), "8001 00000014 0000017e 00000001 000b 03 810000"),
        (
            commands.start_auth_session(
                SessionType.POLICY, Alg.SHA256, b"\x11" * 16, salt_key=0x40000007, encrypted_salt=sized(b"")
            ),
            "8001 0000002f 00000176 40000007 40000007 0010" + "11" * 16 + "0000 01 0006 0080 0043 000b",
        ),
        (
            commands.quote(KEY, b"\x22" * 4, SELECTION),
            "8001 00000020 00000158 80000000 0004 22222222 0010 00000001 000b 03 810000",
        ),
        (
            commands.sign(KEY, b"\x22" * 4),
            "8001 0000001e 0000015d 80000000 0004 22222222 0010 8024 40000007 0000",
        ),
        (
            commands.sign(KEY, b"\x22" * 4, scheme=Scheme(alg=Alg.ECDSA, hash_alg=Alg.SHA384)),
            "8001 00000020 0000015d 80000000 0004 22222222 0018 000c 8024 40000007 0000",
        ),
        (
            commands.rsa_decrypt(KEY, b"\x33" * 4, OAEP),
            "8001 0000001a 00000159 80000000 0004 33333333 0017 000b 0000",
        ),
    ],
)
def test_commands_without_authorisation_byte_for_byte(command: Command[Any], sent: str) -> None:
    """What goes out has the layout of Part 3, to the bit."""
    assert command.encode().hex() == sent.replace(" ", "")


def test_authorisations_stand_between_handles_and_parameters() -> None:
    """With authorisations the tag is 8002 and their total size is stated."""
    sent = commands.nv_read(permanent(Hierarchy.OWNER), NV.entity, 16, 32).encode([b"AUTH1", b"AUTH2"])
    assert sent.hex() == ("8002000000240000014e4000000101c0000a0000000a" + b"AUTH1AUTH2".hex() + "00100020")


@pytest.mark.parametrize("name", ALL)
def test_every_command_states_its_size(name: str) -> None:
    """The header's size is that of the whole command, with and without authorisations."""
    for areas in ((), (b"x" * 9,)):
        sent = ALL[name]().encode(areas)
        assert int.from_bytes(sent[2:6]) == len(sent)
        assert int.from_bytes(sent[6:10]) == ALL[name]().code


def test_every_command_code_is_exercised_and_titled() -> None:
    """No command code without a codec under test."""
    assert {ALL[name]().code for name in ALL} == set(CC)
    assert CC.NV_READ_PUBLIC.title == "TPM2_NV_ReadPublic"
    assert CC.START_AUTH_SESSION.title == "TPM2_StartAuthSession"
    assert CC.PCR_READ.title == "TPM2_PCR_Read"


def test_refusal_names_command_and_reason() -> None:
    """A response code other than 0 becomes TPMResponseError with the code in words."""
    with pytest.raises(TPMResponseError, match=r"TPM2_GetRandom: LOCKOUT.*\(0x921\)") as caught:
        parse_response(commands.get_random(8), response(rc=0x921))
    assert caught.value.response_code == 0x921
    assert caught.value.command == "TPM2_GetRandom"


@pytest.mark.parametrize(
    ("what", "data"),
    [
        ("says 1[01] bytes", response()[:2] + u32(11) + response()[6:]),
        ("says 1[01] bytes", response() + b"\0"),
        ("tag", response(tag=0x8002)),
        ("tag", response(tag=0x00C4)),
        ("trailing", response(b"\0", rc=0x101)),
        ("bytes", b"\x80\x01"),
        ("at most", u16(0x8001) + u32(4097) + bytes(4091)),
    ],
)
def test_what_is_no_response_is_malformed(what: str, data: bytes) -> None:
    """Tag, size and the end of an error are checked before anything is read."""
    with pytest.raises(MalformedEvidence, match=what):
        parse_response(commands.startup(), data)


def test_missing_authorisation_area_is_malformed() -> None:
    """Who sent an authorisation takes no response without one: it would be unauthenticated."""
    with pytest.raises(MalformedEvidence, match="tag"):
        parse_response(commands.pcr_reset(16), response(), authorisations=1)


@pytest.mark.parametrize(
    "name", ["get_random", "get_handles", "pcr_read", "quote", "create_primary", "nv_read_public"]
)
def test_trailing_bytes_in_parameters_are_malformed(name: str) -> None:
    """Result readers consume every byte; TPM2_Quote's signature is the one open end, judged by parse_signature."""
    good = {
        "get_random": sized(bytes(32)),
        "get_handles": b"\0" + u32(1) + u32(0),
        "pcr_read": u32(1) + PCRSelection.from_names({"sha256": [0]}).serialise() + u32(1) + sized(bytes(32)),
        "quote": sized(b"attest"),
        "create_primary": CREATED,
        "nv_read_public": sized(NV.serialise()) + sized(NV.entity.name),
    }[name]
    command = ALL[name]()
    read_parameters(command, 1, good)
    if name == "quote":
        assert read_parameters(command, 0, good + b"sig").signature == b"sig"
        return
    with pytest.raises(MalformedEvidence, match="trailing"):
        read_parameters(command, 1, good + b"\0")


PUBLIC = EK_TEMPLATES[1].public
CREATED = (
    sized(PUBLIC.tpmt) + sized(b"data") + sized(bytes(32)) + u16(0x8021) + u32(0x4000000B) + sized(b"t" * 32)
) + sized(PUBLIC.name)


def test_name_of_a_new_key_is_recomputed() -> None:
    """A Name that is not that of the public area would bind sessions and credentials to another key."""
    made = read_parameters(ALL["create_primary"](), 0x80000000, CREATED)
    assert made.entity == Entity(0x80000000, PUBLIC.name)
    assert made.creation_ticket.hex() == "80214000000b0020" + b"t".hex() * 32
    forged = CREATED[:-1] + bytes([CREATED[-1] ^ 1])
    with pytest.raises(MalformedEvidence, match="Name"):
        read_parameters(ALL["create_primary"](), 0x80000000, forged)


def test_name_of_a_read_key_is_recomputed() -> None:
    """The same for TPM2_ReadPublic."""
    good = sized(PUBLIC.tpmt) + sized(PUBLIC.name) + sized(b"qn")
    assert read_parameters(ALL["read_public"](), 0, good).qualified_name == b"qn"
    with pytest.raises(MalformedEvidence, match="Name"):
        read_parameters(ALL["read_public"](), 0, sized(PUBLIC.tpmt) + sized(OTHER.name) + sized(b"qn"))


@pytest.mark.parametrize("wrong", ["index", "name"])
def test_name_of_an_nv_index_is_recomputed(wrong: str) -> None:
    """TPM2_NV_ReadPublic answers for the index asked for, with its Name."""
    other = NVPublic(
        index=0x01C00002, name_alg=Alg.SHA256, attributes=NV.attributes, auth_policy=b"", size_bytes=480
    )
    shown = other if wrong == "index" else NV
    name = other.entity.name
    with pytest.raises(MalformedEvidence, match="index or Name"):
        read_parameters(ALL["nv_read_public"](), 0, sized(shown.serialise()) + sized(name))


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ([bytes(32)], "1 digests for 2"),
        ([bytes(32), bytes(20)], "20 bytes"),
        ([bytes(32)] * 9, "at most 8"),
    ],
)
def test_pcr_values_are_those_selected(values: list[bytes], why: str) -> None:
    """As many digests as selected PCRs, each of its bank's length."""
    body = u32(1) + SELECTION.serialise() + u32(len(values)) + b"".join(sized(v) for v in values)
    with pytest.raises(MalformedEvidence, match=why):
        read_parameters(commands.pcr_read(SELECTION), 0, body)


def test_nv_read_of_another_length_is_malformed() -> None:
    """A short read must not be taken for the whole."""
    with pytest.raises(MalformedEvidence, match="instead of 480"):
        read_parameters(ALL["nv_read"](), 0, sized(bytes(479)))


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"\0" + u32(6) + u32(0), "capability 0x6"),
        (b"\2" + u32(1) + u32(0), "more 2"),
        (b"\0" + u32(1) + u32(1025) + bytes(4 * 1025), "at most 1024"),
    ],
)
def test_capability_of_another_kind_or_without_bound_is_malformed(body: bytes, why: str) -> None:
    """Handles are answered with handles, and their number is bounded before the loop."""
    with pytest.raises(MalformedEvidence, match=why):
        read_parameters(ALL["get_handles"](), 0, body)


def test_parameters_are_taken_from_before_the_authorisations() -> None:
    """With sessions the parameter area has a size of its own; without, it is all the rest."""
    area = sized(b"nonce") + b"\x01" + sized(b"hmac")
    body = u32(3) + b"abc" + area
    taken = parse_response(
        commands.pcr_reset(16), u16(0x8002) + u32(10 + len(body)) + u32(0) + body, authorisations=1
    )
    assert taken.parameters == b"abc"
    assert (taken.authorisations[0].nonce, taken.authorisations[0].hmac) == (b"nonce", b"hmac")
    plain = parse_response(commands.startup(), response(b"abc"))
    assert (plain.parameters, plain.authorisations) == (b"abc", ())


def test_nv_read_of_the_right_length_is_the_data() -> None:
    """What was asked for comes back."""
    assert read_parameters(ALL["nv_read"](), 0, sized(b"x" * 480)) == b"x" * 480


@given(st.sampled_from(sorted(ALL)), st.binary(max_size=300), st.integers(0, 3))
def test_responses_fail_in_two_ways_only(name: str, data: bytes, authorisations: int) -> None:
    """Whatever arrives as a response, a caller sees a result, MalformedEvidence or TPMResponseError."""
    command = ALL[name]()
    with contextlib.suppress(MalformedEvidence, TPMResponseError):
        parse_response(command, data, authorisations)


@given(
    st.sampled_from(sorted(ALL)),
    st.binary(max_size=300),
    st.sampled_from([0x8001, 0x8002]),
    st.integers(0, 3),
)
def test_framed_responses_fail_in_two_ways_only(
    name: str, body: bytes, tag: int, authorisations: int
) -> None:
    """The same behind a header that passes."""
    command = ALL[name]()
    data = u16(tag) + u32(10 + len(body)) + u32(0) + body
    with contextlib.suppress(MalformedEvidence, TPMResponseError):
        parse_response(command, data, authorisations)


@given(st.sampled_from(sorted(ALL)), st.binary(max_size=600))
def test_parameters_fail_in_one_way_only(name: str, data: bytes) -> None:
    """Whatever the parameters are, a caller sees a result or MalformedEvidence."""
    with contextlib.suppress(MalformedEvidence):
        read_parameters(ALL[name](), 0x80000000, data)


@given(st.integers(0, len(CREATED) - 1))
def test_truncated_parameters_are_malformed(size: int) -> None:
    """A response cut anywhere is refused."""
    with pytest.raises(MalformedEvidence):
        read_parameters(ALL["create_primary"](), 0x80000000, CREATED[:size])
