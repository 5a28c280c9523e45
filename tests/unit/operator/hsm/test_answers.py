"""What the service answers is looked at before a token signs because of it (HSM-AND-KUBERNETES §§7, 8)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from attestation.api.hsm import HSMList, HSMListEntry, HSMReservedSerial
from attestation.pki.leaf import LeafAsked, LeafContent, judge_leaf, make_leaf
from attestation.wire import b64encode
from attestation_operator.errors import AnswerInvalid
from attestation_operator.hsm.answers import (
    FURTHEST_NUMBER,
    LONGEST_LIST,
    OLDEST_LIST,
    SKEW,
    checked_again,
    checked_issuer,
    checked_list,
    checked_reserved,
    serial_of_answer,
)
from attestation_operator.hsm.issuance import Issuance
from tests.fixtures.hsm_log import Log
from tests.unit.operator.hsm.test_issuance import Thread, order, there
from tests.unit.operator.hsm.world import AT, UID, authority, csr, known

SERIAL = 0x11 << 152


def content(*names: str, is_ca: bool = False) -> LeafContent:
    """Return what a certificate for these names will say; each name has a key of its own."""
    ca = authority(pathLen=1, policy={"allowCA": True})
    usages = ("cert sign",) if is_ca else ("server auth",)
    asked = LeafAsked(request=csr(*names), usages=usages, is_ca=is_ca, duration=None)
    return judge_leaf(asked, ca.policy, ca=ca.ca, at=AT)


def leaf(of: LeafContent, serial: int = SERIAL, **addresses: Any) -> bytes:
    """Return a certificate of the CA."""
    ca = authority()
    return make_leaf(of, serial=serial, ca=ca.ca, key=ca.key, **addresses)


def test_what_was_issued_for_the_same_request_is_given_again() -> None:
    """Also where the service had other addresses then: nothing was asked of those."""
    made = leaf(content("a.example"), crl_url="http://old.example/list")
    assert checked_again(made, content("a.example"), serial=SERIAL, ca=authority().ca) == made


def test_another_certificate_is_given_to_nobody() -> None:
    """Of another key, number or name, of another CA, changed, or none: who asked would hold what is not theirs."""
    good, asked = leaf(content("a.example")), content("a.example")
    changed = bytearray(good)
    changed[-1] ^= 1
    for wrong in (
        leaf(content("b.example")),
        leaf(asked, SERIAL + 1),
        leaf(replace(asked, spki=content("b.example").spki)),
        bytes(changed),
        good + b"\0",
        authority().ca.certificate,
        b"none",
    ):
        with pytest.raises(AnswerInvalid):
            checked_again(wrong, asked, serial=SERIAL, ca=authority().ca)


def test_a_certificate_of_the_same_key_that_says_more_is_given_to_nobody() -> None:
    """The key is the requester's; the second name, which this issuer may not certify today, is not."""
    more = content("a.example", "b.example")
    fewer = LeafContent(
        subject=more.subject,
        spki=more.spki,
        names=content("a.example").names,
        purposes=more.purposes,
        path_length=None,
        not_before=more.not_before,
        not_after=more.not_after,
    )
    with pytest.raises(AnswerInvalid, match="names or usages"):
        checked_again(leaf(more), fewer, serial=SERIAL, ca=authority().ca)


def test_a_wrong_certificate_takes_no_other_request_with_it() -> None:
    """In the issuer's batches: the one waits, its neighbours are issued."""
    log = there()
    log.issued["u-1"] = b64encode(leaf(content("b.example")))

    async def both() -> list[Any]:
        issuance = Issuance(log, Thread())
        orders = [issuance.issue(authority(), order(each)) for each in ("u-1", "u-2")]
        return await asyncio.gather(*orders, return_exceptions=True)

    refused, made = asyncio.run(both())
    assert isinstance(refused, AnswerInvalid)
    assert isinstance(made, bytes)


def reserved(uid: str, serial: str = f"{SERIAL:040x}") -> HSMReservedSerial:
    """Return an answer."""
    return HSMReservedSerial(request_uid=uid, serial=serial)


@pytest.mark.parametrize(
    "answers",
    [
        [reserved("a"), reserved("b")],
        [reserved("a"), reserved("a", f"{SERIAL + 1:040x}")],
        [reserved("c")],
        [reserved("a", "00" * 20)],
    ],
    ids=["one-serial-for-two", "twice", "not-asked", "no-serial"],
)
def test_serial_numbers_are_one_for_each_request(answers: list[HSMReservedSerial]) -> None:
    """Two certificates of one number would end together, and one of them is not known to end."""
    with pytest.raises(AnswerInvalid):
        checked_reserved(answers, ["a", "b"])
    assert checked_reserved([reserved("a")], ["a", "b"]).keys() == {"a"}


def test_two_requests_of_one_batch_never_get_one_serial_number() -> None:
    """Nothing is signed where the service errs."""

    class Same(Log):
        async def reserve(self, issuer_id: str, requests: Any) -> Any:
            """Give all one number."""
            return [reserved(each.request_uid) for each in requests]

    async def two() -> list[Any]:
        issuance = Issuance(log, thread)
        orders = [issuance.issue(authority(), order(each)) for each in ("u-1", "u-2")]
        return await asyncio.gather(*orders, return_exceptions=True)

    log, thread = Same(), Thread()
    log.issuers[known().issuer_id] = None  # type: ignore[assignment]  # only its being there counts
    assert [type(each) for each in asyncio.run(two())] == [AnswerInvalid, AnswerInvalid]
    assert thread.turns == 0


@pytest.mark.parametrize("text", ["", "11" * 19, "80" + "00" * 19, "00" + "11" * 19, "zz" * 20])
def test_a_serial_number_is_twenty_bytes_and_positive(text: str) -> None:
    """Whatever its form was on the way."""
    with pytest.raises(AnswerInvalid):
        serial_of_answer(text)


def test_an_answer_about_another_issuer_is_none() -> None:
    """Its addresses would stand in the certificates of this one."""
    assert checked_issuer(known(), uid=UID) == known()
    with pytest.raises(AnswerInvalid):
        checked_issuer(known(), uid="another")


def due(**change: Any) -> HSMList:
    """Return a list that was begun now, changed."""
    good: dict[str, Any] = {
        "due": True,
        "number": 7,
        "revision": 1,
        "entries": [HSMListEntry(serial=f"{SERIAL:040x}", at=AT, reason="keyCompromise")],
        "this_update": AT,
        "next_update": AT + timedelta(days=1),
    }
    return HSMList(**good | change)


@pytest.mark.parametrize(
    "change",
    [
        {"number": None},
        {"number": 6},
        {"number": 5},
        {"number": 6 + FURTHEST_NUMBER + 1},
        {"this_update": None},
        {"next_update": None},
        {"this_update": AT + SKEW + timedelta(seconds=1)},
        {"this_update": AT - OLDEST_LIST - timedelta(seconds=1)},
        {"next_update": AT},
        {"next_update": AT + LONGEST_LIST + timedelta(seconds=1)},
        {"entries": [HSMListEntry(serial=f"{SERIAL:040x}", at=AT, reason="unspecified")] * 2},
        {"entries": [HSMListEntry(serial="ff" * 20, at=AT, reason="unspecified")]},
        {
            "entries": [
                HSMListEntry(serial="11" * 20, at=AT + SKEW + timedelta(seconds=1), reason="unspecified")
            ]
        },
    ],
    ids=lambda change: "-".join(change),
)
def test_a_list_rises_and_is_of_now(change: dict[str, Any]) -> None:
    """An older one would make good again what was revoked; one for ever would hide what is revoked next."""
    assert checked_list(due(), newest=6, at=AT) == (7, AT, AT + timedelta(days=1))
    with pytest.raises(AnswerInvalid):
        checked_list(due(**change), newest=6, at=AT)
