"""What confidential hardware adds to how well a machine is vouched for, and the items of its evidence."""

from __future__ import annotations

from typing import Any

import pytest

from attestation.appraisal.assurance import judge_guest, raised
from attestation.appraisal.confidential import Approved, Hardware, demanded, members
from attestation.errors import MalformedEvidence
from attestation.results import Assurance, Check, Failed, Outcome, Passed, Subject
from attestation.wire import b64encode

SEEN = Hardware(tee="sev-snp", chip=bytes([7] * 64), guest=bytes([1] * 32))
APPROVED = Approved(chip=SEEN.chip)
CHECK = Check(name="toy")
LAUNCH = (Subject.LAUNCH,)


@pytest.mark.parametrize(
    ("seen", "approved", "judged", "compared", "known", "becomes"),
    [
        (SEEN, APPROVED, [CHECK.passed()], LAUNCH, Assurance.TOFU, Assurance.TEE),
        (SEEN, APPROVED, [CHECK.flagged("x")], LAUNCH, Assurance.AK_CERTIFIED, Assurance.TEE),
        (SEEN, APPROVED, [], LAUNCH, Assurance.EK_CHAIN, Assurance.EK_CHAIN),
        (SEEN, APPROVED, [], LAUNCH, Assurance.EK_ALLOWLIST, Assurance.EK_ALLOWLIST),
        (SEEN, None, [], LAUNCH, Assurance.TOFU, Assurance.TOFU),
        (SEEN, APPROVED, [], (), Assurance.TOFU, Assurance.TOFU),
        (SEEN, Approved(chip=bytes(63) + b"\1"), [], LAUNCH, Assurance.TOFU, Assurance.TOFU),
        (SEEN, Approved(chip=SEEN.chip, csp_id="x"), [], LAUNCH, Assurance.TOFU, Assurance.TOFU),
        (SEEN, APPROVED, [CHECK.failed("a", "b")], LAUNCH, Assurance.TOFU, Assurance.TOFU),
        (SEEN, APPROVED, [CHECK.undecided("a")], LAUNCH, Assurance.TOFU, Assurance.TOFU),
        *(
            (
                Hardware(tee="sev-snp", chip=masked, guest=SEEN.guest),
                Approved(chip=masked),
                [],
                LAUNCH,
                Assurance.TOFU,
                Assurance.TOFU,
            )
            for masked in (b"", bytes(64))
        ),
    ],
)
def test_what_raises_the_level(
    seen: Hardware,
    approved: Approved | None,
    judged: list[Outcome],
    compared: tuple[Subject, ...],
    known: Assurance,
    becomes: Assurance,
) -> None:
    """An approved chip and a reference value that matched, with nothing open beside it."""
    assert raised(known, seen, approved, judged, compared) is becomes


def test_it_stands_beside_the_chain() -> None:
    """A processor is as good as a TPM whose maker vouches for it."""
    assert Assurance.TEE.level == Assurance.EK_CHAIN.level == 3


@pytest.mark.parametrize(
    ("chip", "guest", "names"), [(64, 32, True), (0, 32, False), (64, 0, False), (0, 0, False)]
)
def test_which_guest_is_named(chip: int, guest: int, names: bool) -> None:
    """By the chip and its launcher together; zeros name nobody."""
    seen = Hardware(tee="tdx", chip=bytes([chip] * 16), guest=bytes([guest] * 48))
    assert seen.names_the_guest is names


LIMITS = {"report": 4, "vek": 2}


def test_the_members_of_an_item() -> None:
    """As bytes; what may be left out is left out."""
    item = {"report": b64encode(b"abcd"), "vek": b64encode(b"x")}
    assert members(item, LIMITS, required={"report"}) == {"report": b"abcd", "vek": b"x"}
    assert members({"report": ""}, LIMITS, required={"report"}) == {"report": b""}


@pytest.mark.parametrize(
    "item",
    [
        None,
        "YQ==",
        [],
        {},
        {"vek": "YQ=="},
        {"report": "YQ==", "strange": "YQ=="},
        {"report": b64encode(b"abcde")},
        {"report": "YQ==", "vek": b64encode(b"abc")},
        {"report": "YQ"},
        {"report": 7},
    ],
)
def test_what_is_no_item(item: Any) -> None:
    """Nothing else, nothing missing, nothing too long."""
    with pytest.raises(MalformedEvidence):
        members(item, LIMITS, required={"report"})


def test_the_guest_is_still_called_as_it_was() -> None:
    """By its launcher; a machine that is known by its TPM may be called anything."""
    assert judge_guest(SEEN, None) == ()
    assert [type(each) for each in judge_guest(SEEN, SEEN.guest)] == [Passed]
    assert [type(each) for each in judge_guest(SEEN, bytes(32))] == [Failed]


def test_what_nobody_demands_is_not_told() -> None:
    """No rule, no outcome."""
    assert demanded(CHECK, None, False, "a", "b") == []
