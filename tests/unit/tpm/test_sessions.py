"""Sessions: the HMACs and encryptions of Part 1, written down a second time by a pretended TPM."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
from dataclasses import replace

import pytest
from cryptography.hazmat.decrepit.ciphers.modes import CFB
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from hypothesis import given
from hypothesis import strategies as st

from attestation.errors import DeviceError, MalformedEvidence, TPMResponseError
from attestation.tpm import Alg, Hierarchy, commands, kdfa, sessions
from attestation.tpm.commands import CC, Entity, NVPublic, SessionType, StartedSession, permanent
from attestation.tpm.hashes import hash_new
from attestation.tpm.sessions import Password, Session, SessionUse
from attestation.tpm.templates import POLICY_A, POLICY_B
from attestation.wire import sized, u16, u32
from attestation_testing import SoftwareEK

KEY = b"k" * 32
NONCE_TPM = b"t" * 32
NONCE_CALLER = b"c" * 32
NEXT_NONCE = b"n" * 32
SESSION = Session(handle=0x02000000, kind=SessionType.HMAC, hash_alg=Alg.SHA256, key=KEY, nonce_tpm=NONCE_TPM)
POLICY = replace(SESSION, handle=0x03000001, kind=SessionType.POLICY, key=b"p" * 32, nonce_tpm=b"u" * 32)
AK = Entity(0x80000000, b"\x00\x0b" + b"a" * 32)
EK = Entity(0x80000001, b"\x00\x0b" + b"e" * 32)
SECRET = b"0123456789abcdef0123456789abcdef"
COMMAND = commands.activate_credential(AK, EK, sized(b"blob"), sized(b"seed"))


def mac(key: bytes, *parts: bytes) -> bytes:
    return hmac.new(key, b"".join(parts), hashlib.sha256).digest()


def sha256(*parts: bytes) -> bytes:
    return hashlib.sha256(b"".join(parts)).digest()


def cfb(material: bytes, data: bytes, *, encrypt: bool) -> bytes:
    cipher = Cipher(algorithms.AES(material[:16]), CFB(material[16:]))
    context = cipher.encryptor() if encrypt else cipher.decryptor()
    return context.update(data) + context.finalize()


def answer(
    parameters: bytes, *areas: bytes, code: int = commands.CC.ACTIVATE_CREDENTIAL, handle: bytes = b""
) -> bytes:
    body = handle + u32(len(parameters)) + parameters + b"".join(areas)
    return u16(0x8002) + u32(10 + len(body)) + u32(0) + body


def response_area(
    key: bytes,
    parameters: bytes,
    *,
    attributes: int = 0x41,
    caller: bytes = NONCE_CALLER,
    nonce: bytes = NEXT_NONCE,
) -> bytes:
    """What a TPM appends: 2B nonce, attributes, 2B HMAC(rpHash ‖ nonceTPM ‖ nonceCaller ‖ attributes)."""
    rp_hash = sha256(u32(0), u32(commands.CC.ACTIVATE_CREDENTIAL), parameters)
    digest = mac(key, rp_hash, nonce, caller, bytes([attributes]))
    return sized(nonce) + bytes([attributes]) + sized(digest)


def hidden(secret: bytes, *, key: bytes = KEY, caller: bytes = NONCE_CALLER) -> bytes:
    """A first response parameter, encrypted as a TPM does: nonceTPM is the newer nonce."""
    material = kdfa(Alg.SHA256, key, b"CFB", NEXT_NONCE, caller, 256)
    return sized(cfb(material, secret, encrypt=True))


def exchange(*, keep: bool = True) -> sessions.Exchange[bytes]:
    use = SessionUse(session=SESSION, encrypt_response=True, keep=keep)
    return sessions.begin(COMMAND, [use, Password()], [NONCE_CALLER, NONCE_CALLER])


PASSWORD_ANSWER = sized(b"") + b"\x01" + sized(b"")


def test_command_hmac_covers_code_names_parameters_nonces_and_attributes() -> None:
    """The authorisation area is handle, nonce, attributes and HMAC(sessionKey ‖ authValue, cpHash ‖ …)."""
    use = SessionUse(session=SESSION, auth_value=b"pw", encrypt_response=True)
    sent = sessions.begin(COMMAND, [use, Password(b"x")], [NONCE_CALLER, b""]).request
    cp_hash = sha256(u32(0x147), AK.name, EK.name, sized(b"blob"), sized(b"seed"))
    digest = mac(KEY + b"pw", cp_hash, NONCE_CALLER, NONCE_TPM, b"\x41")
    first = u32(0x02000000) + sized(NONCE_CALLER) + b"\x41" + sized(digest)
    second = u32(0x40000009) + sized(b"") + b"\0" + sized(b"x")
    area = u32(len(first + second)) + first + second
    body = u32(AK.handle) + u32(EK.handle) + area + sized(b"blob") + sized(b"seed")
    assert sent == u16(0x8002) + u32(10 + len(body)) + u32(0x147) + body


def test_secret_comes_back_decrypted_and_the_session_goes_on() -> None:
    """A response whose HMAC is right is decrypted; the next command uses the new nonce."""
    parameters = hidden(SECRET)
    finished = exchange().finish(answer(parameters, response_area(KEY, parameters), PASSWORD_ANSWER))
    assert finished.value == SECRET
    assert finished.sessions == (replace(SESSION, nonce_tpm=NEXT_NONCE), None)


def test_a_session_that_was_not_kept_has_ended() -> None:
    """Where the TPM clears continueSession, there is no successor."""
    parameters = hidden(SECRET)
    area = response_area(KEY, parameters, attributes=0x40)
    finished = exchange(keep=False).finish(answer(parameters, area, PASSWORD_ANSWER))
    assert finished.sessions == (None, None)


@pytest.mark.parametrize("what", ["key", "parameters", "nonce", "caller", "attributes", "empty"])
def test_response_of_somebody_else_is_refused(what: str) -> None:
    """An HMAC over anything but this response, under anything but this session, is refused."""
    parameters = hidden(SECRET)
    area = response_area(KEY, parameters)
    match what:
        case "key":
            area = response_area(b"x" * 32, parameters)
        case "parameters":
            parameters = hidden(SECRET[::-1])
        case "nonce":
            area = sized(b"m" * 32) + area[34:]
        case "caller":
            area = response_area(KEY, parameters, caller=b"d" * 32)
        case "attributes":
            area = area[:34] + b"\x40" + area[35:]
        case _:
            area = sized(NEXT_NONCE) + b"\x41" + sized(b"")
    with pytest.raises(DeviceError, match="not authenticated"):
        exchange().finish(answer(parameters, area, PASSWORD_ANSWER))


def test_password_is_not_answered_with_an_hmac() -> None:
    """A password authorisation comes back empty."""
    parameters = hidden(SECRET)
    with pytest.raises(MalformedEvidence, match="password"):
        exchange().finish(
            answer(parameters, response_area(KEY, parameters), sized(b"") + b"\x01" + sized(b"h"))
        )


def test_first_command_parameter_is_hidden_under_the_caller_nonce() -> None:
    """The first parameter is AES-CFB under KDFa(`CFB`, nonceCaller, nonceTPM), and cpHash covers it so."""
    command = commands.hierarchy_change_auth(Hierarchy.OWNER, SECRET)
    use = SessionUse(session=SESSION, auth_value=b"old", encrypt_command=True)
    sent = sessions.begin(command, [use], [NONCE_CALLER]).request
    material = kdfa(Alg.SHA256, KEY + b"old", b"CFB", NONCE_CALLER, NONCE_TPM, 256)
    parameters = sized(cfb(material, SECRET, encrypt=True))
    assert sent.endswith(parameters)
    assert SECRET not in sent
    cp_hash = sha256(u32(0x129), u32(Hierarchy.OWNER), parameters)
    assert mac(KEY + b"old", cp_hash, NONCE_CALLER, NONCE_TPM, b"\x21") in sent


def test_policy_session_leaves_the_password_out_of_its_hmac() -> None:
    """The policy speaks for the entity: key is sessionKey only; but parameters are hidden under both."""
    use = SessionUse(session=POLICY, auth_value=b"pw", encrypt_response=True)
    assert use.hmac_key == POLICY.key
    assert use.value == POLICY.key + b"pw"


def test_unsalted_policy_session_has_no_hmac() -> None:
    """Without any secret there is nothing to authenticate with; command and response carry an empty HMAC."""
    open_policy = replace(POLICY, key=b"")
    begun = sessions.begin(commands.pcr_reset(16), [SessionUse(session=open_policy)], [NONCE_CALLER])
    assert sized(NONCE_CALLER) + b"\x01" + sized(b"") in begun.request
    data = u16(0x8002) + u32(14 + 37) + u32(0) + u32(0) + sized(NEXT_NONCE) + b"\x01" + sized(b"")
    assert begun.finish(data).sessions == (replace(open_policy, nonce_tpm=NEXT_NONCE),)


def test_unsalted_hmac_session_still_has_one() -> None:
    """An HMAC session with empty key and password authenticates freshness all the same."""
    bare = replace(SESSION, key=b"")
    sent = sessions.begin(commands.pcr_reset(16), [SessionUse(session=bare)], [NONCE_CALLER]).request
    cp_hash = sha256(u32(commands.CC.PCR_RESET), u32(16))
    assert mac(b"", cp_hash, NONCE_CALLER, NONCE_TPM, b"\x01") in sent


def test_first_session_vouches_for_later_ones_that_encrypt() -> None:
    """The nonces of decrypt and encrypt sessions enter the first HMAC, so that they cannot be taken off."""
    decrypt = replace(SESSION, handle=0x02000001, nonce_tpm=b"D" * 32)
    encrypt = replace(SESSION, handle=0x02000002, nonce_tpm=b"E" * 32)
    uses = [
        SessionUse(session=SESSION),
        SessionUse(session=decrypt, encrypt_command=True),
        SessionUse(session=encrypt, encrypt_response=True),
    ]
    command = commands.hierarchy_change_auth(Hierarchy.OWNER, SECRET)
    sent = sessions.begin(command, uses, [NONCE_CALLER] * 3).request
    material = kdfa(Alg.SHA256, KEY, b"CFB", NONCE_CALLER, b"D" * 32, 256)
    cp_hash = sha256(u32(0x129), u32(Hierarchy.OWNER), sized(cfb(material, SECRET, encrypt=True)))
    first = mac(KEY, cp_hash, NONCE_CALLER, NONCE_TPM, b"D" * 32, b"E" * 32, b"\x01")
    assert u32(0x02000000) + sized(NONCE_CALLER) + b"\x01" + sized(first) in sent
    both = SessionUse(session=decrypt, encrypt_command=True, encrypt_response=True)
    sent = sessions.begin(command, [uses[0], both], [NONCE_CALLER] * 2).request
    assert mac(KEY, cp_hash, NONCE_CALLER, NONCE_TPM, b"D" * 32, b"\x01") in sent


def test_salted_session_key_is_derived_from_the_salt() -> None:
    """Only who can open the salt, the TPM with that key, knows KDFa(salt, `ATH`, nonceTPM, nonceCaller)."""
    ek = SoftwareEK("L-1")
    begun = sessions.start(SessionType.HMAC, NONCE_CALLER, salt_key=(EK, ek.public))
    session = begun.finish(StartedSession(0x02000005, NONCE_TPM))
    assert session.key == kdfa(Alg.SHA256, begun.salt, b"ATH", NONCE_TPM, NONCE_CALLER, 256)
    assert len(begun.salt) == 32
    assert begun.salt not in begun.command.encode()
    assert begun.command.entities == (permanent(EK.handle), permanent(commands.NULL_HANDLE))


def test_unsalted_session_has_no_key() -> None:
    """Without salt and binding the session key is empty (Part 1, 19.6.8)."""
    begun = sessions.start(SessionType.POLICY, NONCE_CALLER, salt_key=None)
    assert begun.finish(StartedSession(0x03000000, NONCE_TPM)).key == b""


@pytest.mark.parametrize("authorisations", [[], [Password()]])
def test_too_few_authorisations_are_a_mistake_of_the_caller(authorisations: list[Password]) -> None:
    """A command that names two authorised entities is not sent with fewer authorisations."""
    with pytest.raises(ValueError, match="needs 2"):
        sessions.begin(COMMAND, authorisations, [b""] * len(authorisations))


def test_one_nonce_per_authorisation() -> None:
    """A nonce is never shared or left out."""
    with pytest.raises(ValueError, match="zip"):
        sessions.begin(COMMAND, [Password(), Password()], [NONCE_CALLER])


def test_secrets_do_not_show_in_representations() -> None:
    """Keys, passwords, salts and requests stay out of logs and tracebacks."""
    use = SessionUse(session=SESSION, auth_value=b"hunter2")
    begun = sessions.start(SessionType.HMAC, NONCE_CALLER, salt_key=None)
    for value in (use, Password(b"hunter2"), SESSION, exchange(), begun):
        text = repr(value)
        assert "hunter2" not in text
        assert repr(KEY)[2:-1] not in text
        assert "salt=" not in text


def test_ek_policies_follow_from_their_definitions() -> None:
    """A = PolicySecret(endorsement); B = PolicyOR(A, PolicyAuthorizeNV(I-n)): the constants of the templates."""
    for index, alg in ((0x01C07F01, Alg.SHA256), (0x01C07F02, Alg.SHA384), (0x01C07F03, Alg.SHA512)):
        size = hashlib.new(alg.name.lower()).digest_size
        secret = hash_new(alg, bytes(size) + u32(CC.POLICY_SECRET) + u32(Hierarchy.ENDORSEMENT)).digest()
        a = hash_new(alg, secret).digest()
        nv = NVPublic(
            index=index, name_alg=alg, attributes=0x220F1008, auth_policy=a, size_bytes=size + 2
        ).entity
        c = hash_new(alg, bytes(size) + u32(0x192) + nv.name).digest()
        assert hash_new(alg, bytes(size) + u32(0x171) + a + c).digest() == POLICY_B[alg]
        if alg in POLICY_A:
            assert a == POLICY_A[alg]


@given(st.binary(max_size=200), st.binary(max_size=80))
def test_responses_fail_in_three_ways_only(parameters: bytes, areas: bytes) -> None:
    """Whatever arrives in answer to a session: MalformedEvidence, DeviceError or TPMResponseError; never a result."""
    for data in (areas, answer(parameters, areas), answer(parameters, areas, PASSWORD_ANSWER)):
        with pytest.raises((MalformedEvidence, DeviceError)):
            exchange().finish(data)


@given(st.binary(max_size=64))
def test_authenticated_rubbish_is_malformed(parameters: bytes) -> None:
    """Even a response that authenticates is read to its exact layout."""
    area = response_area(KEY, parameters)
    with contextlib.suppress(MalformedEvidence, TPMResponseError):
        value = exchange().finish(answer(parameters, area, PASSWORD_ANSWER)).value
        assert len(value) == len(parameters) - 2
