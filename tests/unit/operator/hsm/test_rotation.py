"""One key of an issuer after another: each step, and what each waits for (HSM-AND-KUBERNETES §8)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
from cryptography import x509

from attestation.errors import KeyNotFound, SignerUnavailable
from attestation.pki.external import cross_validity, make_cross, read_ca
from attestation_operator.actions import EmitEvent, MergeStatus, SetStatus
from attestation_operator.crds.hsm import ClusterIssuerSpec, IssuerSpec, IssuerStatus
from attestation_operator.errors import ServiceAway
from attestation_operator.hsm import rotation
from attestation_operator.hsm.authority import pem_of, proven_ca, self_signed
from attestation_operator.hsm.controllers import Standing
from attestation_operator.hsm.issuers import Looked
from attestation_operator.hsm.objects import Issuer
from attestation_operator.hsm.rotating import Rotating
from attestation_operator.hsm.rotation import Ask, Case, Turn, conditions_of, plan
from attestation_operator.hsm.tokens import KeyName
from tests.fixtures.hsm_log import Log
from tests.unit.operator.hsm.test_issuance import Thread
from tests.unit.operator.hsm.world import AT, SPEC, UID, authority, issuer, key, known, module, ready
from tests.unit.pki.leaf_kit import SERIAL

HOUR = timedelta(hours=1)
DAY = timedelta(days=1)
LONGEST = timedelta(hours=2160)
AWAY = SignerUnavailable("away")
FIRST = pem_of(self_signed(IssuerSpec.model_validate(SPEC | {"pathLen": 1}), key(), at=AT))
SIGNS: dict[str, Any] = {
    "conditions": ready(),
    "caCertificate": FIRST,
    "keyFingerprint": "ab" * 32,
    "keyOrigin": "generated",
    "issuerID": known().issuer_id,
    "crlNumber": 7,
}
SECOND = self_signed(IssuerSpec.model_validate(SPEC), key("second"), at=AT, number=2)


def ca(*, path_len: int = 1) -> Any:
    """Return the CA that signs."""
    found = proven_ca(FIRST, key(), at=AT, by_itself=True)
    assert found is not None
    return replace(found, path_length=path_len)


def wants(number: int, status: Any = None, **spec: Any) -> Issuer:
    """Return an issuer whose key of this number is to sign."""
    said = {"key": number} | spec.pop("rotation", {})
    return issuer(SIGNS if status is None else status, pathLen=1, rotation=said, **spec)


def step(of: Issuer, answers: Any = None, *, at: Any = AT, path_len: int = 1) -> Turn:
    """Return what follows."""
    return plan(Case(issuer=of, ca=ca(path_len=path_len), at=at, answers=answers or {}))


def after(turn: Turn, status: Any = None) -> dict[str, Any]:
    """Return the status after a step; it is what the kind allows."""
    merge, event = turn.actions
    assert isinstance(merge, MergeStatus)
    assert isinstance(event, EmitEvent)
    merged = {**(SIGNS if status is None else status), **merge.status}
    found = {name: value for name, value in merged.items() if value is not None}
    IssuerStatus.model_validate(found, by_alias=True, by_name=False)
    return found


def states(status: dict[str, Any]) -> dict[int, str]:
    """Return what each key does."""
    return {each["number"]: each["state"] for each in status["keys"]}


def published() -> dict[str, Any]:
    """Return the status with a second key that does not sign yet."""
    answers: dict[Ask, Any] = {Ask.MAKE: key("second"), Ask.SELF_SIGN: SECOND, Ask.CROSS: b""}
    by = ca()
    of = read_ca(SECOND, at=AT)
    answers[Ask.CROSS] = make_cross(
        of=of,
        by=by,
        key=key().private_key,
        serial=SERIAL,
        validity=cross_validity(of=of, by=by, at=AT, duration=DAY),
        crl_url=None,
        ca_url=None,
    )
    return after(step(wants(2), answers))


def switched() -> dict[str, Any]:
    """Return the status after the second key began to sign, a day later."""
    before = published()
    status = after(step(wants(2, before), {Ask.TEST: True}, at=AT + DAY), before)
    return status | {"issuerID": "cd" * 8}


def said(of: Issuer, at: Any = AT) -> tuple[str, str, str]:
    """Return the condition."""
    [found] = conditions_of(of, at)
    return found["status"], found["reason"], found["message"]


def test_an_issuer_that_was_never_rotated_says_nothing_of_it() -> None:
    """And its key is under its UID, as it always was."""
    assert step(wants(1)) == Turn()
    assert conditions_of(wants(1), AT) == []
    assert wants(1).key.label == UID
    assert conditions_of(issuer(SIGNS, subject=None), AT) == []


def test_a_new_key_is_made_and_certified_before_anybody_hears_of_it() -> None:
    """One question at a time; what hinders one leaves the issuer as it is."""
    answers: dict[Ask, Any] = {}
    for ask, answer in ((Ask.MAKE, key("second")), (Ask.SELF_SIGN, SECOND), (Ask.CROSS, SECOND)):
        turn = step(wants(2), answers)
        assert (turn.ask, turn.number, turn.actions) == (ask, 2, ())
        assert step(wants(2), answers | {ask: AWAY}) == Turn(error=AWAY)
        answers[ask] = answer
    assert said(wants(2))[:2] == ("False", "Making")
    status = published()
    assert states(status) == {1: "Active", 2: "Next"}
    assert status["caCertificate"] == FIRST
    assert wants(2, status).key.label == UID


def test_a_ca_without_room_for_another_certifies_none() -> None:
    """PathLen 0: nothing joins the keys, and the condition says so."""
    answers: dict[Ask, Any] = {Ask.MAKE: key("second"), Ask.SELF_SIGN: SECOND}
    status = after(step(wants(2), answers, path_len=0))
    assert "crossCertificate" not in status["keys"][1]
    assert "pathLen is 0" in said(wants(2, status))[2]
    assert "pathLen" not in said(wants(2, published()))[2]
    assert rotation.may_cross(replace(ca(), path_length=None))


def test_it_signs_when_everybody_had_the_time_to_learn_of_it() -> None:
    """Not a moment earlier; after it proved itself."""
    status = published()
    assert step(wants(2, status), at=AT + DAY - timedelta(seconds=1)) == Turn()
    assert said(wants(2, status))[:2] == ("False", "Published")
    assert step(wants(2, status), at=AT + DAY).ask is Ask.TEST
    assert step(wants(2, status), {Ask.TEST: AWAY}, at=AT + DAY) == Turn(error=AWAY)
    sooner = wants(2, status, rotation={"publishedFor": "1h"})
    assert step(sooner, at=AT + HOUR).ask is Ask.TEST
    turned = switched()
    assert states(turned) == {1: "Retiring", 2: "Active"}
    assert (turned["caCertificate"], "crlNumber" in turned) == (pem_of(SECOND), False)
    # What the first key was at the service it goes on being.
    assert (turned["keys"][0]["issuerID"], turned["keys"][0]["crlNumber"]) == (known().issuer_id, 7)
    assert wants(2, turned).key.label == f"{UID}-2"
    assert said(wants(2, turned))[:2] == ("True", "Retiring")


def test_a_key_that_is_to_come_may_stay_so() -> None:
    """Whoever takes the wish back loses nothing, and may wish again."""
    status = published()
    assert step(wants(1, status), at=AT + 9 * DAY) == Turn()
    assert said(wants(1, status))[:2] == ("True", "Current")
    assert step(wants(2, status), at=AT + 9 * DAY).ask is Ask.TEST


def test_one_goes_back_as_long_as_the_key_before_is_there() -> None:
    """At once: everybody knows it."""
    status = switched()
    back = wants(1, status)
    assert step(back, at=AT + DAY).ask is Ask.TEST
    again = after(step(back, {Ask.TEST: True}, at=AT + DAY), status)
    assert states(again) == {1: "Active", 2: "Retiring"}
    assert (again["caCertificate"], again["issuerID"], again["crlNumber"]) == (FIRST, known().issuer_id, 7)
    # And forth.
    assert step(wants(2, again), at=AT + DAY).ask is Ask.TEST


def test_a_key_is_retired_a_day_after_its_last_certificate() -> None:
    """What the policy allows was issued in the last moment; and what the log says besides, of a policy of before."""
    status = switched()
    end = AT + DAY + LONGEST + DAY
    assert step(wants(2, status), at=end - timedelta(seconds=1)) == Turn()
    assert step(wants(2, status), at=end) == Turn(ask=Ask.LAST_END, number=1)
    for answer in (None, end - DAY + timedelta(seconds=1)):
        assert step(wants(2, status), {Ask.LAST_END: answer}, at=end) == Turn()
    assert step(wants(2, status), {Ask.LAST_END: AWAY}, at=end) == Turn(error=AWAY)
    turn = step(wants(2, status), {Ask.LAST_END: end - DAY}, at=end)
    gone = after(turn, status)
    assert states(gone) == {1: "Retired", 2: "Active"}
    assert not {"caCertificate", "crossCertificate"} & gone["keys"][0].keys()
    assert "crossCertificate" not in gone["keys"][1]
    assert "stays on the token" in turn.actions[1].note  # type: ignore[union-attr]  # an event, as `after` saw
    assert said(wants(2, gone))[:2] == ("True", "Current")
    # It is not gone back to.
    assert said(wants(1, gone))[:2] == ("False", "Refused")
    assert step(wants(1, gone)) == Turn()


def test_a_key_that_is_to_be_destroyed_is_before_it_is_said() -> None:
    """DeletionPolicy Destroy; what hinders it leaves it retiring."""
    of, end = wants(2, switched(), deletionPolicy="Destroy"), AT + DAY + LONGEST + DAY
    answers: dict[Ask, Any] = {Ask.LAST_END: AT}
    assert step(of, answers, at=end) == Turn(ask=Ask.DESTROY, number=1)
    assert step(of, answers | {Ask.DESTROY: AWAY}, at=end) == Turn(error=AWAY)
    turn = step(of, answers | {Ask.DESTROY: True}, at=end)
    assert states(after(turn, of.status)) == {1: "Retired", 2: "Active"}
    assert "destroyed" in turn.actions[1].note  # type: ignore[union-attr]  # an event, as `after` saw


@pytest.mark.parametrize(
    ("status", "number", "words"),
    [
        (lambda: SIGNS, 3, "the next one is 2"),
        (published, 3, "key 2 is to come"),
        (switched, 3, "key 1 is still retiring"),
    ],
    ids=["skipped", "one-is-to-come", "one-is-retiring"],
)
def test_one_step_at_a_time(status: Any, number: int, words: str) -> None:
    """And none is taken; what was begun goes on."""
    of = wants(number, status())
    assert step(of) == Turn()
    found = said(of)
    assert found[:2] == ("False", "Refused")
    assert words in found[2]


def test_a_retiring_key_ends_whatever_else_is_wanted() -> None:
    """Else a wish that cannot be had would keep it for ever."""
    end = AT + DAY + LONGEST + DAY
    assert step(wants(3, switched()), at=end).ask is Ask.LAST_END
    gone = after(step(wants(3, switched()), {Ask.LAST_END: AT}, at=end), switched())
    assert step(wants(3, gone), at=end) == Turn(ask=Ask.MAKE, number=3)


def test_keys_that_are_not_made_here_are_not_rotated_here() -> None:
    """The kind says so."""
    named = SPEC | {"keyRef": {"label": "mine"}, "rotation": {"key": 2}}
    with pytest.raises(ValueError, match="keyRef names one"):
        ClusterIssuerSpec.model_validate(named, by_alias=True, by_name=False)


class Keys:
    """Tokens on which the keys of an issuer are, by label."""

    def __init__(self, **there: Any) -> None:
        self.there = there
        self.destroyed: list[str] = []

    def open(self, _: Any, name: KeyName) -> Any:
        """Return a key."""
        if name.label not in self.there:
            raise KeyNotFound("none")
        return self.there[name.label]

    def destroy(self, _: Any, label: str) -> bool:
        """Destroy a key."""
        self.destroyed.append(label)
        return True


def turned(tokens: Keys, log: Log, standing: Standing, of: Issuer, at: Any) -> Looked:
    """Return what follows a look at an issuer that signs."""
    around: Any = SimpleNamespace(clock=SimpleNamespace(now=lambda: at), log=structlog.get_logger())
    rotating = Rotating(around, tokens, log, standing, Thread())  # type: ignore[arg-type]  # what of it is asked
    second = proven_ca(pem_of(SECOND), key("second"), at=AT, by_itself=True)
    assert second is not None
    signs = replace(authority(), ca=second, key=key("second").private_key, issuer_id="cd" * 8)
    spec = module().spec
    assert spec is not None
    return asyncio.run(rotating.turned(of, spec, Looked(authority=signs, after=60.0)))


def test_what_retires_goes_on_answering_until_the_log_knows_that_nobody_asks() -> None:
    """Its list is signed by it, from the number that was published; then it is destroyed, and forgotten."""
    of, end = wants(2, switched(), deletionPolicy="Destroy"), AT + DAY + LONGEST + DAY
    tokens, log, standing = Keys(**{UID: key(), f"{UID}-2": key("second")}), Log(), Standing()
    log.issuers[known().issuer_id] = None  # type: ignore[assignment]  # it is there
    early = turned(tokens, log, standing, of, AT + DAY)
    assert (early.actions, early.again) == ((), False)
    ceasing = standing.retiring[UID]
    assert (ceasing.issuer_id, pem_of(ceasing.ca.certificate)) == (known().issuer_id, FIRST)
    assert standing.crl_numbers == {known().issuer_id: 7}
    assert early.authority is not None
    assert [pem_of(each) for each in early.authority.trusted] == [FIRST]
    assert log.asked == []
    assert turned(tokens, log, standing, of, end).actions == ()
    # A clock of ours that is ahead destroys nothing: the service is asked, and is not so late.
    log.last_end, log.again_at = AT, AT + DAY - timedelta(seconds=1)
    assert turned(tokens, log, standing, of, end).actions == ()
    log.again_at = AT + DAY
    looked = turned(tokens, log, standing, of, end)
    assert (looked.again, tokens.destroyed) == (True, [UID])
    gone = after(Turn(actions=looked.actions), of.status)
    assert turned(tokens, log, standing, wants(2, gone), end).actions == ()
    assert standing.retiring == {}


def test_what_hinders_a_rotation_hinders_no_issuer() -> None:
    """A key that is not there is nobody's to trust; the CA that signs goes on, and is looked at again soon."""
    of, standing = wants(2, switched()), Standing()
    looked = turned(Keys(), Log(), standing, of, AT + DAY)
    assert looked.authority is not None
    assert (looked.authority.trusted, looked.authority.chain, standing.retiring) == ((), (), {})
    stranger = Keys(**{UID: key("stranger")})
    assert turned(stranger, Log(), standing, of, AT + DAY).authority == looked.authority
    away = Log()
    away.failing["begin_list"] = [ServiceAway("away")]
    waits = turned(Keys(**{UID: key()}), away, standing, of, AT + DAY + LONGEST + DAY)
    assert (waits.actions, waits.after, away.asked) == ((), 10.0, ["begin_list"])


def test_nothing_is_done_from_a_state_that_this_look_changes() -> None:
    """What is said of it is written first."""
    of = wants(2, switched())
    status = SetStatus(target=of.target, manager="m", status={})
    around: Any = SimpleNamespace(clock=SimpleNamespace(now=lambda: AT), log=structlog.get_logger())
    rotating = Rotating(around, Keys(), Log(), Standing(), Thread())  # type: ignore[arg-type]  # what of it is asked
    spec = module().spec
    assert spec is not None
    looked = Looked(authority=authority(), actions=(status,))
    found = asyncio.run(rotating.turned(of, spec, looked))
    assert (found.actions, found.again) == ((status,), True)


def test_every_label_that_may_be_on_the_token_is_known() -> None:
    """Also of a key that was made and not written down: who deletes the issuer destroys it too."""
    assert rotation.labels_of(issuer(SIGNS), AT) == (UID, f"{UID}-2")
    assert rotation.labels_of(wants(2, switched()), AT) == (UID, f"{UID}-2", f"{UID}-3")


def test_keys_of_one_issuer_have_names_of_their_own() -> None:
    """As long as a name may be; a key that has a name keeps it."""
    spec = IssuerSpec.model_validate(SPEC | {"subject": {"commonName": "C" * 64}})
    made = x509.load_der_x509_certificate(self_signed(spec, key(), at=AT, number=12))
    assert made.subject.rfc4514_string() == f"CN={'C' * 60} G12"
    named = x509.Name.from_rfc4514_string("CN=Before")
    assert x509.load_der_x509_certificate(self_signed(spec, key(), at=AT, subject=named)).subject == named


def test_a_cross_certificate_of_a_status_is_proven() -> None:
    """Who writes a status could send relying parties elsewhere."""
    by, of = ca(), read_ca(SECOND, at=AT)
    pem = published()["keys"][1]["crossCertificate"]
    assert rotation.proven_cross(pem, of=of, by=by, at=AT) is not None
    assert rotation.proven_cross(pem, of=of, by=by, at=AT + 2 * DAY) is None
    assert rotation.proven_cross(pem, of=by, by=by, at=AT) is None
    assert rotation.proven_cross(pem, of=of, by=of, at=AT) is None
    assert rotation.proven_cross("nothing", of=of, by=by, at=AT) is None
