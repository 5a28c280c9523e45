"""One contract for tokens: what SoftHSM does, the double of the tests does too.

The tests of faults run on the double. That it is otherwise a token like another is shown here, row by row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pkcs11
import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding
from cryptography.hazmat.primitives.asymmetric.utils import Prehashed, encode_dss_signature
from pkcs11 import MGF, Attribute, Mechanism, ObjectClass, TokenFlag

from attestation.errors import KeyNotFound
from attestation.keys.pkcs11.ladder import name_of
from attestation.keys.pkcs11.objects import KeyName, describe, find_private, generate, settle
from attestation.keys.pkcs11.tokens import TokenName, find_token
from tests.fixtures import softhsm
from tests.fixtures.pkcs11_double import SoftwareLibrary

DIGEST = bytes(range(48))
CA = KeyName(label="ca", id=None, shown="pkcs11:object=ca")
PRIVATE = {Attribute.CLASS: ObjectClass.PRIVATE_KEY}


@dataclass
class Subject:
    """A library with one token `hsm`."""

    library: Any
    pin: str

    def token(self) -> Any:
        """Return the token, found anew."""
        return find_token(self.library, TokenName(label="hsm", serial=None))

    def session(self, *, rw: bool = False, pin: str | None = None) -> Any:
        """Open a session."""
        return self.token().open(rw=rw, user_pin=pin)

    def logged_in(self, *, rw: bool = False) -> Any:
        """Open a session that is logged in."""
        return self.session(rw=rw, pin=self.pin)

    def with_key(self) -> Any:
        """Return a session that may write, on a token with the key `ca`."""
        session = self.logged_in(rw=True)
        generate(session, "ecdsa-p384", "ca", CA.shown)
        return session


@pytest.fixture(params=[pytest.param("softhsm", marks=pytest.mark.softhsm), "double"])
def subject(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Subject]:
    """SoftHSM, and the double."""
    if request.param == "double":
        yield Subject(SoftwareLibrary(pin=softhsm.PIN), softhsm.PIN)
        return
    hsm = softhsm.make(tmp_path / "hsm", monkeypatch.setenv)
    library = pkcs11.lib(str(hsm.module))
    yield Subject(library, softhsm.PIN)
    library.finalize()


def test_a_key_that_was_made_is_what_was_asked_for(subject: Subject) -> None:
    """Made, described, numbered; its halves share the id; its signature verifies."""
    session = subject.with_key()
    key = find_private(session, CA)
    facts = settle(session, key, describe(session, key, CA))
    assert facts.origin == "generated"
    assert len(facts.id) == 20
    halves = list(session.get_objects({Attribute.ID: facts.id}))
    assert sorted(each.object_class for each in halves) == [ObjectClass.PUBLIC_KEY, ObjectClass.PRIVATE_KEY]
    raw = key.sign(DIGEST, mechanism=Mechanism.ECDSA)
    assert len(raw) == 96
    signature = encode_dss_signature(int.from_bytes(raw[:48]), int.from_bytes(raw[48:]))
    assert isinstance(facts.public_key, ec.EllipticCurvePublicKey)
    facts.public_key.verify(signature, DIGEST, ec.ECDSA(Prehashed(hashes.SHA384())))


def test_rsa(subject: Subject) -> None:
    """RSA-4096 with PSS over a digest."""
    session = subject.logged_in(rw=True)
    generate(session, "rsa-4096", "ca", CA.shown)
    key = find_private(session, CA)
    public: Any = describe(session, key, CA).public_key
    assert public.key_size == 4096
    named = (Mechanism.SHA384, MGF.SHA384, 48)
    signature = key.sign(DIGEST, mechanism=Mechanism.RSA_PKCS_PSS, mechanism_param=named)
    scheme = padding.PSS(padding.MGF1(hashes.SHA384()), 48)
    public.verify(signature, DIGEST, scheme, Prehashed(hashes.SHA384()))


def test_private_keys_are_invisible_without_login(subject: Subject) -> None:
    """A session without login finds nothing, and says nothing of why."""
    subject.with_key().close()
    session = subject.session()
    assert list(session.get_objects(PRIVATE)) == []
    with pytest.raises(KeyNotFound):
        find_private(session, CA)


def test_one_login_per_process(subject: Subject) -> None:
    """A second login is refused; a session beside a login sees what the login shows."""
    subject.with_key()
    with pytest.raises(pkcs11.UserAlreadyLoggedIn):
        subject.logged_in()
    assert len(list(subject.session().get_objects(PRIVATE))) == 1


def test_the_session_that_logged_in_logs_all_out(subject: Subject) -> None:
    """When it closes, handles of other sessions are worth nothing."""
    first = subject.with_key()
    second = subject.session()
    key = find_private(second, CA)
    key.sign(DIGEST, mechanism=Mechanism.ECDSA)
    first.close()
    assert list(second.get_objects(PRIVATE)) == []
    with pytest.raises(pkcs11.ObjectHandleInvalid):
        key.sign(DIGEST, mechanism=Mechanism.ECDSA)


@pytest.mark.parametrize("pin", ["another-pin", "1", ""])
def test_a_wrong_pin(subject: Subject, pin: str) -> None:
    """Wrong or short: PinIncorrect, and the token says that it happened."""
    with pytest.raises(pkcs11.PinIncorrect):
        subject.session(pin=pin)
    assert subject.token().flags & TokenFlag.USER_PIN_COUNT_LOW
    subject.logged_in().close()
    assert not subject.token().flags & TokenFlag.USER_PIN_COUNT_LOW


def test_a_destroyed_key(subject: Subject) -> None:
    """Its handle is invalid."""
    session = subject.with_key()
    key = find_private(session, CA)
    key.destroy()
    with pytest.raises(pkcs11.ObjectHandleInvalid):
        key.sign(DIGEST, mechanism=Mechanism.ECDSA)


def test_a_closed_session(subject: Subject) -> None:
    """Everything in it is invalid, also closing it again."""
    session = subject.with_key()
    key = find_private(session, CA)
    session.close()
    with pytest.raises(pkcs11.SessionHandleInvalid):
        key.sign(DIGEST, mechanism=Mechanism.ECDSA)
    with pytest.raises(pkcs11.SessionHandleInvalid):
        session.close()
    with pytest.raises(pkcs11.SessionHandleInvalid):
        session.generate_random(8)


def test_a_finalized_library(subject: Subject) -> None:
    """Nothing works until it is initialized again; then old sessions are invalid."""
    session = subject.with_key()
    key = find_private(session, CA)
    subject.library.finalize()
    for call in (
        lambda: subject.library.get_slots(),
        lambda: key.sign(DIGEST, mechanism=Mechanism.ECDSA),
        session.close,
    ):
        with pytest.raises(pkcs11.PKCS11Error) as refused:
            call()
        assert name_of(refused.value) == "CryptokiNotInitialized"
    subject.library.initialize()
    with pytest.raises(pkcs11.SessionHandleInvalid):
        key.sign(DIGEST, mechanism=Mechanism.ECDSA)
    assert find_private(subject.logged_in(), CA).sign(DIGEST, mechanism=Mechanism.ECDSA)


def test_a_session_that_may_not_write(subject: Subject) -> None:
    """Makes no keys."""
    session = subject.logged_in()
    with pytest.raises(pkcs11.SessionReadOnly):
        generate(session, "ecdsa-p384", "ca", CA.shown)


def test_private_keys_are_not_shown_and_not_changed(subject: Subject) -> None:
    """The value cannot be read, and the flags that keep it cannot be changed."""
    key = find_private(subject.with_key(), CA)
    with pytest.raises(pkcs11.AttributeSensitive):
        key[Attribute.VALUE]
    for name, value in ((Attribute.EXTRACTABLE, True), (Attribute.SENSITIVE, False)):
        with pytest.raises(pkcs11.AttributeReadOnly):
            key[name] = value


def test_what_a_key_cannot(subject: Subject) -> None:
    """A mechanism that the token lacks."""
    key = find_private(subject.with_key(), CA)
    with pytest.raises(pkcs11.MechanismInvalid):
        key.sign(DIGEST, mechanism=Mechanism.ML_DSA)
