"""A policy from what machines proved: what they share, who stands alone, and that it holds for them again."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from attestation.appraisal.tpm.boot import judge_log
from attestation.appraisal.tpm.learn import Capture, Group, Proposal, learn
from attestation.errors import PolicyInvalid
from attestation.evidence import event_log
from attestation.reference import (
    DEFAULT_SELECTION,
    IDENTITY_ONLY,
    Policy,
    compose,
    compose_guarded,
    diff,
    parse_policy,
)
from attestation.reference.document import nested
from attestation.results import Failed, Outcome, Subject, Undecided
from attestation.results.appraised import appraised
from attestation.results.vector import BOOTED
from attestation_testing.event_logs import (
    BootLog,
    BootOptions,
    Event,
    EventType,
    LogQuirk,
    boot_log,
    ipl,
    revoked_hash,
)

BANK = 0x000B
WHOLE = tuple(range(16))
DEFAULT = dict(DEFAULT_SELECTION.banks)[BANK]


def capture(name: str, log: BootLog, pcrs: tuple[int, ...] = WHOLE, *, sent: bool = True) -> Capture:
    replayed = event_log.replay(event_log.parse(log.serialise()), BANK) if sent else None
    values = {pcr: value for pcr, value in log.pcrs().items() if pcr in pcrs}
    return Capture(machine_id=name, values=values, replayed=replayed)


def machine(seed: int, pcrs: tuple[int, ...] = WHOLE, *, sent: bool = True, **changes: Any) -> Capture:
    return capture(f"m{seed}", boot_log(replace(BootOptions(seed=seed), **changes)), pcrs, sent=sent)


def failing(policy: Policy, one: Capture) -> set[str]:
    outcomes: list[Outcome] = [*judge_log(one.replayed, policy, one.values, requested=True)[0]]
    outcomes += policy.tpm.judge(one.values)
    return {o.check for o in outcomes if isinstance(o, Failed | Undecided)}


def subjects(found: Proposal, subject: str) -> list[tuple[str, ...]]:
    return [group.machines for group in found.groups if group.subject == subject]


EMPTY = {"2", "3", "6", "11", "12", "13", "15"}
NOTHING_THERE = (
    "PCR 2, 3, 6, 11, 12, 13, 15: nothing is measured there; `empty` demands that nothing appears, and "
    "affirms nothing"
)
FLEET = [machine(n) for n in range(6)]


def test_what_machines_have_in_common() -> None:
    """A rule for every PCR, values that differ on each machine ignored for a reason; and all of them keep it."""
    found = learn(FLEET, name="workers", version=3)
    policy = parse_policy(found.document)
    assert policy.ref == "workers@3"
    rules: Any = found.document["pcrs"]
    assert {pcr for pcr, rule in rules.items() if "ignore" in rule} == {"1", "5", "7", "10"}
    assert {pcr for pcr, rule in rules.items() if "empty" in rule} == EMPTY
    assert rules["1"]["ignore"] == "differs from machine to machine: settings and serial numbers"
    assert {pcr for pcr, rule in rules.items() if "events" in rule} == {"4", "8", "9"}
    assert rules["0"] == {"any_of": [FLEET[0].values[0].hex()]}
    assert found.document["description"] == "learned from 6 machines"
    assert (found.outliers, found.notes) == ((), (NOTHING_THERE,))
    assert (
        Group(subject="pcr0", value=rules["0"]["any_of"][0], machines=tuple(f"m{n}" for n in range(6)))
        in found.groups
    )
    assert subjects(found, "pcr4") == subjects(found, "pcr8") == subjects(found, "pcr9") == []
    for one in FLEET:
        assert failing(policy, one) == set()


def test_the_chain_and_secure_boot_come_from_the_logs() -> None:
    """Kernels, initrds, command lines and keys, each a group with who has it."""
    found = learn(FLEET, name="workers")
    boot: Any = found.document["boot"]
    assert boot["command_lines"] == ["/vmlinuz root=/dev/sda2 ro quiet"]
    assert [len(boot[name]) for name in ("kernels", "initrds")] == [1, 1]
    assert [len(group) for group in subjects(found, "kernel") + subjects(found, "command-line")] == [6, 6]
    state: Any = found.document["secure_boot"]
    assert (state["required"], len(state["db_sha256"]), len(state["dbx_min"])) == (True, 2, 3)
    assert subjects(found, "secure-boot") == [tuple(f"m{n}" for n in range(6))]


@pytest.mark.threat("T70")
@pytest.mark.parametrize(
    ("changes", "checks"),
    [
        ({"kernel": "6.6"}, {"pcr4", "pcr9", "boot-kernels"}),
        ({"loader": "grub 2.04"}, {"pcr4"}),
        ({"initrd": "initrd 2"}, {"pcr9", "boot-initrds"}),
        ({"command_line": "init=/bin/sh"}, {"pcr8", "pcr9", "command-lines"}),
        ({"firmware": "2.0"}, {"pcr0"}),
        ({"revoked": 2}, {"secure-boot-dbx"}),
        ({"secure_boot": False}, {"secure-boot", "secure-boot-db", "secure-boot-authorities"}),
    ],
)
def test_a_machine_that_changed_does_not_keep_it(changes: dict[str, Any], checks: set[str]) -> None:
    """And learning again, with the changed machine among the others, makes a policy that it keeps."""
    policy = parse_policy(learn(FLEET, name="workers").document)
    changed = machine(0, **changes)
    assert failing(policy, changed) >= checks
    again = learn([changed, *(machine(n, **changes) for n in (1, 2)), *FLEET[3:]], name="workers", version=2)
    assert failing(parse_policy(again.document), changed) == set()


@pytest.mark.threat("T70")
def test_one_that_stands_alone_is_left_out() -> None:
    """With what its log explains; the proposal does not allow what only it has."""
    strange = replace(machine(9, kernel="6.6"), machine_id="strange")
    found = learn([*FLEET, strange], name="workers")
    (outlier,) = found.outliers
    assert outlier.machine_id == "strange"
    assert "PCR 4 changed" in outlier.reason
    assert failing(parse_policy(found.document), strange)
    assert all("strange" not in group.machines for group in found.groups)
    silent = replace(strange, replayed=None)
    (outlier,) = learn([*FLEET, silent], name="workers").outliers
    assert f"PCR 4 is {silent.values[4].hex()}" in outlier.reason


def test_groups_of_machines_are_not_outliers() -> None:
    """Two kinds of firmware, three of each: both values are listed."""
    mixed = [*(machine(n) for n in range(3)), *(machine(n, firmware="2.0") for n in range(3, 6))]
    found = learn(mixed, name="workers")
    rules: Any = found.document["pcrs"]
    assert len(rules["0"]["any_of"]) == 2
    assert found.outliers == ()
    assert sorted(map(len, subjects(found, "pcr0"))) == [3, 3]


def test_few_machines_have_no_outliers() -> None:
    """Of three, nobody can say which is the strange one; of one, everything is its own."""
    three = learn([machine(0), machine(1), machine(2, firmware="2.0")], name="workers")
    assert three.outliers == ()
    alone = learn([machine(0)], name="workers")
    assert alone.notes == (
        "learned from one machine: values that belong to it alone fit no other",
        NOTHING_THERE,
    )
    assert failing(parse_policy(alone.document), machine(0)) == set()
    assert alone.document["description"] == "learned from 1 machine"
    two = learn([machine(0, firmware="1"), machine(1, firmware="2")], name="workers")
    assert "PCR 0 differs on every machine: all 2 values are listed" in two.notes


def test_too_many_values_are_no_reference() -> None:
    """Where nothing else judges the PCR, that is said."""
    found = learn([machine(n, firmware=str(n // 2)) for n in range(20)], name="workers")
    rules: Any = found.document["pcrs"]
    assert rules["0"] == {"ignore": "10 values on 20 machines"}
    assert "PCR 0 has 10 values on 20 machines: it is ignored, and nothing else judges it" in found.notes


def test_pcr_7_that_changes_with_dbx_is_judged_by_secure_boot() -> None:
    """Nine lengths of dbx: the common part is the minimum."""
    found = learn([machine(n, revoked=3 + n // 2) for n in range(20)], name="workers")
    rules: Any = found.document["pcrs"]
    assert rules["7"] == {"ignore": "changes with every update of dbx; judged by secure_boot"}
    state: Any = found.document["secure_boot"]
    assert len(state["dbx_min"]) == 3
    assert not any(note.startswith("PCR 7 ") for note in found.notes)
    assert failing(parse_policy(found.document), machine(50, revoked=40)) == set()


def test_secure_boot_that_is_not_on_everywhere_is_not_demanded() -> None:
    """And that is said, with who has what."""
    found = learn([machine(0), machine(1), machine(2, secure_boot=False)], name="workers")
    assert "secure_boot" not in found.document
    assert "Secure Boot is not on everywhere: it is not demanded" in found.notes
    assert {g.value: g.machines for g in found.groups if g.subject == "secure-boot"} == {
        "on": ("m0", "m1"),
        "off": ("m2",),
    }


def test_without_logs_values_are_compared() -> None:
    """No rule that needs a log; how many sent none is said."""
    found = learn([machine(n, sent=n > 1) for n in range(6)], name="workers")
    assert not {"secure_boot", "boot"} & set(found.document)
    why = "not proposed: m0, m1: no event log that can be read is kept of it"
    assert [note for note in found.notes if why in note] == [
        f"{what}: {why}"
        for what in (
            "secure_boot",
            "PCR 4 by its events",
            "kernels and initrds by their digests",
            "command lines",
            "PCR 8 by its events",
        )
    ]
    lying = [replace(one, replayed=machine(9, uki=True).replayed) for one in FLEET]
    assert "boot" not in learn(lying, name="workers").document
    other = event_log.replay(
        event_log.parse(boot_log(BootOptions(banks=("sha256", "sha384"))).serialise()), 0x000C
    )
    assert "boot" not in learn([replace(one, replayed=other) for one in FLEET], name="x").document


def test_a_log_that_leads_nowhere_proves_nothing() -> None:
    """Not one PCR of the quote: it is as good as none."""
    nowhere = replace(FLEET[0], values=dict.fromkeys(range(16), b"\x01" * 32))
    assert "secure_boot" not in learn([nowhere], name="workers").document


def test_what_was_not_quoted_is_not_learned() -> None:
    """A selection without PCR 8, 9 and 12: how to get them is said; one machine's PCR is no rule."""
    few = (0, 1, 2, 3, 4, 5, 6, 7, 11)
    found = learn([machine(n, few) for n in range(3)], name="workers")
    assert "boot" not in found.document
    assert any("PCR 8, 9, 12 cannot be learned" in note for note in found.notes)
    mixed = learn([machine(0, few), machine(1), machine(2)], name="workers")
    assert any(note.startswith("PCR 8, 9, 10, 12, 13, 14, 15: not quoted") for note in mixed.notes)
    firmware_only = learn([machine(n, (0, 2)) for n in range(3)], name="workers")
    assert set(firmware_only.document["pcrs"]) == {"0", "2"}  # type: ignore[call-overload]  # an object
    assert "secure_boot" not in firmware_only.document


def test_machines_without_evidence() -> None:
    """They are counted; nothing but them is nothing to learn from, and so is what only differs."""
    empty = Capture(machine_id="new", values={}, replayed=None)
    assert learn([*FLEET, empty], name="workers").notes == (
        "left out, without evidence: 1 machine",
        NOTHING_THERE,
    )
    for nothing in ([], [empty]):
        with pytest.raises(PolicyInvalid, match="no evidence"):
            learn(nothing, name="workers")
    with pytest.raises(PolicyInvalid, match="nothing else is demanded"):
        learn([machine(n, (1,), sent=False) for n in range(2)], name="workers")


def test_command_lines_that_differ_behind_an_equals_sign_are_merged() -> None:
    """`root=UUID=*` where every machine has another; too different ones are not demanded."""
    many = [machine(n, command_line=f"root=UUID=6e1f{n:04} ro quiet") for n in range(20)]
    boot: Any = learn(many, name="workers").document["boot"]
    assert boot["command_lines"] == ["/vmlinuz root=UUID=* ro quiet"]
    wild = [machine(n, command_line=f"word{n} ro") for n in range(20)]
    found = learn(wild, name="workers")
    assert "command_lines" not in found.document.get("boot", {})  # type: ignore[operator]  # an object
    assert any("have too little in common" in note for note in found.notes)
    two: Any = learn([machine(0), machine(1, command_line="rw")], name="workers").document["boot"]
    assert two["command_lines"] == ["/vmlinuz root=/dev/sda2 ro quiet", "/vmlinuz rw"]


def test_a_command_line_that_nobody_sees_is_not_demanded() -> None:
    """Its text is not in the log, or is none."""
    usual = boot_log()
    hidden = usual.inserted(len(usual.events), ipl(8, "grub_cmd: set x=1", b"what it was"))
    found = learn([capture("m", hidden)], name="workers")
    assert "command_lines" not in found.document["boot"]  # type: ignore[operator]  # an object
    assert "a command line cannot be read from its log: none is demanded" in found.notes


def test_lists_that_are_too_long_are_left_out() -> None:
    """A policy has 64 KiB; more digests than that many machines share are no list that anybody reads."""
    usual = boot_log()
    many = usual
    for number in range(300):
        many = many.inserted(len(many.events), ipl(9, f"/file{number}", b"%d" % number))
    found = learn([capture("m", many)], name="workers")
    rules: Any = found.document["pcrs"]
    assert "any_of" in rules["9"]
    initrds = usual
    for number in range(300):
        tag = b"\xec\x22\x3b\x8f" + b"\x0d\0\0\0Linux initrd\0"
        event = Event(pcr=9, type=EventType.EVENT_TAG, data=tag, measured=b"%d" % number)
        initrds = initrds.inserted(len(initrds.events), event)
    assert "301 digests of initrds: not listed" in learn([capture("m", initrds)], name="workers").notes
    revoked = learn([machine(n, revoked=500, firmware="1" * n) for n in range(1)], name="workers")
    assert len(revoked.document["secure_boot"]["dbx_min"]) == 500  # type: ignore[index]  # an object
    too_many = learn([machine(0, revoked=600)], name="workers")
    assert "dbx_min" not in too_many.document["secure_boot"]  # type: ignore[operator]  # an object


def test_a_proposal_that_would_be_too_long_loses_what_logs_gave(monkeypatch: pytest.MonkeyPatch) -> None:
    """Secure Boot first, then the boot chain; what fits is a policy."""
    whole = len(parse_policy(learn(FLEET, name="workers").document).document)
    monkeypatch.setattr("attestation.reference.document.MAX_POLICY_BYTES", whole - 1)
    found = learn(FLEET, name="workers")
    assert "secure_boot" not in found.document
    assert "secure_boot would make the policy too long and was left out" in found.notes
    monkeypatch.setattr("attestation.reference.document.MAX_POLICY_BYTES", 100)
    with pytest.raises(PolicyInvalid, match="longer than 100"):
        learn(FLEET, name="workers")


def test_a_unified_kernel_image() -> None:
    """No GRUB: PCR 4 by its events, PCR 11 by its value, PCR 12 untouched."""
    fleet = [machine(n, uki=True) for n in range(4)]
    found = learn(fleet, name="uki")
    policy = parse_policy(found.document)
    for one in fleet:
        assert failing(policy, one) == set()
    assert failing(policy, machine(0, uki=True, kernel="6.6")) >= {"pcr4", "pcr11"}
    assert "kernels" not in found.document["boot"]  # type: ignore[operator]  # an object
    padded = machine(0, quirks=frozenset({LogQuirk.OPTION_ROM}))
    assert failing(policy, padded)


def test_what_one_machine_has_twice_counts_once() -> None:
    """The same initrd loaded twice is one digest of one machine."""
    usual = boot_log()
    (at,) = [i for i, event in enumerate(usual.events) if event.data == b"/initrd.img\0"]
    found = learn([capture("m", usual.duplicated(at))], name="workers")
    assert subjects(found, "initrd") == [("m",)]


@pytest.mark.threat("T146")
def test_what_is_learned_compares_the_whole_boot_path() -> None:
    """Of what is quoted by default, behind GRUB and in a unified kernel image: nothing that runs is left out."""
    for uki in (False, True):
        fleet = [machine(n, tuple(DEFAULT), uki=uki) for n in range(4)]
        policy = parse_policy(learn(fleet, name="workers").document)
        outcomes = [
            *judge_log(fleet[0].replayed, policy, fleet[0].values, requested=True)[0],
            *policy.tpm.judge(fleet[0].values),
        ]
        assert set(appraised(outcomes, fleet[0].values, BANK)) >= BOOTED
        assert Subject.SECURE_BOOT in appraised(outcomes, fleet[0].values, BANK)


@pytest.mark.threat("T146")
def test_a_command_of_the_boot_loader_that_was_added_is_noticed() -> None:
    """`set check_signatures=no` is no command line, and stands in PCR 8 alone."""
    policy = parse_policy(learn(FLEET, name="workers").document)
    usual = boot_log()
    (at,) = [i for i, e in enumerate(usual.events) if e.pcr == 8 and e.data.startswith(b"grub_cmd: linux")]
    changed = usual.inserted(at, ipl(8, "grub_cmd: set check_signatures=no", b"set check_signatures=no"))
    assert failing(policy, capture("m", changed)) == {"pcr8"}


def test_an_update_of_dbx_distrusts_nobody() -> None:
    """PCR 7 changes with it; what is demanded is that nothing was taken out."""
    policy = parse_policy(learn(FLEET, name="workers").document)
    assert failing(policy, machine(0, revoked=9)) == set()
    assert failing(policy, machine(0, revoked=1)) == {"secure-boot-dbx"}
    too_many: Any = learn([machine(0, revoked=600)], name="workers").document
    assert "any_of" in too_many["pcrs"]["7"]


def test_each_rule_needs_what_each_machine_proves_of_it() -> None:
    """One log that does not lead to PCR 8 costs the rules about PCR 8, and says whose, and why."""
    odd = replace(FLEET[0], values={**FLEET[0].values, 8: b"\x01" * 32})
    found = learn([odd, *FLEET[1:3]], name="workers")
    assert {"secure_boot", "boot"} <= found.document.keys()
    assert "command_lines" not in found.document["boot"]  # type: ignore[operator]  # an object
    why = "not proposed: m0: event log: does not lead to the quoted PCR 8"
    assert [note for note in found.notes if "not proposed" in note] == [
        f"command lines: {why}",
        f"PCR 8 by its events: {why}",
    ]
    shipped = frozenset({LogQuirk.BOOT_DEVICES_OMITTED, LogQuirk.IPL_IN_PCR_4, LogQuirk.ACTION_IN_PCR_2})
    odd = machine(0, quirks=shipped)
    found = learn([odd], name="workers")
    assert not any("not proposed" in note for note in found.notes)
    assert failing(parse_policy(found.document), odd) == set()


ZEROS, ONES, SEPARATED = bytes(32), b"\xff" * 32, boot_log().pcrs()[2]


@pytest.mark.threat("T146")
@pytest.mark.parametrize("value", [ZEROS, ONES, SEPARATED])
def test_a_machine_that_measured_nothing_teaches_nothing(value: bytes) -> None:
    """Alone it is refused; among others it is left out, and what it has is demanded of nobody."""
    silent = Capture(machine_id="silent", values=dict.fromkeys(WHOLE, value), replayed=None)
    with pytest.raises(PolicyInvalid, match="nothing was measured"):
        learn([silent, replace(silent, machine_id="other")], name="workers")
    found = learn([silent, *FLEET[:2]], name="workers")
    assert [(o.machine_id, o.reason.partition(":")[0]) for o in found.outliers] == [
        ("silent", "nothing was measured")
    ]
    assert value.hex() not in json.dumps(found.document)
    assert failing(parse_policy(found.document), silent)


def test_values_without_a_measurement_are_listed_only_where_somebody_asked() -> None:
    """Loudly: each with a note. Else a PCR that is empty on some machines is demanded of all, and that is said."""
    silent = Capture(machine_id="silent", values=dict.fromkeys((0, 4), ZEROS), replayed=None)
    found = learn([silent], name="workers", accept_unmeasured=True)
    assert found.document["pcrs"] == {"0": {"any_of": [ZEROS.hex()]}, "4": {"any_of": [ZEROS.hex()]}}
    assert [note[:5] for note in found.notes if "as asked" in note] == ["PCR 0", "PCR 4"]
    assert found.outliers == ()
    half = Capture(machine_id="half", values={0: FLEET[0].values[0], 4: ZEROS}, replayed=None)
    whole = Capture(machine_id="whole", values={p: FLEET[0].values[p] for p in (0, 4)}, replayed=None)
    found = learn([half, whole], name="workers")
    assert found.document["pcrs"]["4"] == {"any_of": [whole.values[4].hex()]}  # type: ignore[index]
    assert "PCR 4 holds no measurement on half: not listed, they will fail" in found.notes
    assert failing(parse_policy(found.document), half) == {"pcr4"}


def demanding(**members: Any) -> Policy:
    document = {"format": "itl-tpm-policy/1", "name": "old", "version": 1, "bank": "sha256", "pcrs": {}}
    return parse_policy({**document, **members})


@pytest.mark.threat("T146")
def test_what_the_old_policy_demanded_stays_demanded() -> None:
    """Freshness, assurance, mode, revocations and the rest: a proposal starts from what is in force."""
    gone = revoked_hash(77).hex()
    old = demanding(
        mode="report",
        description="of last year",
        pcrs={
            "0": {"any_of": ["aa" * 32]},
            "14": {"ignore": "keys of the owner"},
            "13": {"ignore": "to be learned"},
        },
        secure_boot={"dbx_min": [gone], "debug": "flag"},
        boot={"loaders": ["bb" * 32]},
        max_age_seconds=60,
        reattest_seconds=20,
        clock={"safe": "required"},
        firmware={"on_blocklist": "fail"},
        ek_key_attestation="required",
        assurance={"minimum": "ek-chain"},
        log_padding="accepted",
        event_log="required",
    )
    fleet = [machine(n, (*DEFAULT, 13), firmware="2.0") for n in range(3)]
    found = learn(fleet, name="workers", version=2, base=old)
    learned: Any = found.document
    was = json.loads(old.document)
    for member in was.keys() - {"name", "version", "description", "pcrs", "secure_boot", "boot"}:
        assert learned[member] == was[member], member
    assert (learned["name"], learned["version"], learned["description"]) == (
        "workers",
        2,
        "learned from 3 machines",
    )
    assert learned["boot"].keys() == {"loaders", "kernels", "initrds", "command_lines"}
    assert (learned["secure_boot"]["debug"], learned["secure_boot"]["required"]) == ("forbid", True)
    assert gone in learned["secure_boot"]["dbx_min"]
    assert len(learned["secure_boot"]["dbx_min"]) == 4
    assert learned["pcrs"]["0"] == {"any_of": [fleet[0].values[0].hex()]}
    assert learned["pcrs"]["14"] == {"ignore": "keys of the owner"}
    assert learned["pcrs"]["13"] == {"empty": True}
    assert "it only reports, as old@1 does: take out `mode` to enforce it" in found.notes
    assert any(note.startswith("kept from old@1: assurance, boot, clock") for note in found.notes)
    shipped = learn(fleet, name="workers", base=IDENTITY_ONLY)
    assert shipped.document["max_age_seconds"] == 180


@pytest.mark.threat("T153")
@pytest.mark.parametrize("mode", ["enforce", "report"])
def test_what_one_operator_assigned_gives_way_for_a_guarded_role(mode: str) -> None:
    """What several agreed on, and the role's own minimum, stand in the proposal; what is stricter stays."""
    pcrs = {"0": {"any_of": ["aa" * 32]}}
    lowered: dict[str, Any] = {"assurance": {"minimum": "tofu"}, "clock": {"safe": "flag"}}
    alone = demanding(pcrs=pcrs, mode=mode, max_age_seconds=60, **lowered)
    agreed = demanding(pcrs=pcrs, name="agreed", max_age_seconds=120, clock={"safe": "required"})
    in_force = compose_guarded([agreed, alone], [True, False], "controlplane")
    fleet = [machine(n) for n in range(2)]
    found = learn(fleet, name="next", base=alone, in_force=in_force, guarded="controlplane")
    kept = {member: found.document[member] for member in ("assurance", "max_age_seconds", "clock")}
    assert kept == {
        "assurance": {"minimum": "ek-chain"},
        "max_age_seconds": 120,
        "clock": {"safe": "required"},
    }
    told = "not taken from what one operator assigned, but as it is in force for controlplane: assurance, "
    assert any(note.startswith(told) for note in found.notes)
    strict = demanding(pcrs=pcrs, max_age_seconds=100)
    found = learn(fleet, name="next", base=strict, in_force=strict, guarded="controlplane")
    assert found.document["max_age_seconds"] == 100
    assert not any(note.startswith("not taken") for note in found.notes)


def test_nothing_learned_is_weaker_than_what_is_in_force() -> None:
    """A rule that compares never gives way to one that does not, of the policy itself or of a wider one."""
    old = demanding(
        pcrs={"1": {"any_of": ["aa" * 32]}, "15": {"any_of": ["bb" * 32]}},
        event_log="accepted",
    )
    fleet = [machine(n, tuple(DEFAULT)) for n in range(3)]
    found = learn(fleet, name="workers", base=old)
    rules: Any = found.document["pcrs"]
    assert (rules["1"], rules["15"]) == ({"any_of": ["aa" * 32]}, {"any_of": ["bb" * 32]})
    assert [note[:18] for note in found.notes if "keeps its rule" in note] == [
        "PCR 1 keeps its ru",
        "PCR 15 keeps its r",
    ]
    assert "event_log" not in found.document
    wide = demanding(name="wide", pcrs={"5": {"any_of": ["cc" * 32]}}, secure_boot={"required": True})
    found = learn(fleet, name="workers", base=old, in_force=compose([wide, old]))
    rules = found.document["pcrs"]
    assert "5" not in rules
    assert "PCR 5 keeps its rule of wide@1+old@1: what was learned would not compare it" in found.notes
    off = [machine(n, tuple(DEFAULT), secure_boot=False) for n in range(3)]
    kept: Any = learn(off, name="workers", base=demanding(secure_boot={"required": True})).document
    assert kept["secure_boot"] == {"required": True}
    loose = demanding(secure_boot={"required": False, "dbx_min": ["dd" * 32]})
    learned: Any = learn(fleet, name="workers", in_force=loose).document
    assert (learned["secure_boot"]["required"], "dd" * 32 in learned["secure_boot"]["dbx_min"]) == (
        True,
        True,
    )
    strict = demanding(secure_boot={"required": True}, pcrs={"7": {"any_of": ["ee" * 32]}})
    learned = learn(fleet, name="workers", in_force=strict).document
    assert "7" not in learned["pcrs"], (
        "a wider policy compares its value, and the proposal does not replace that"
    )
    assert "ignore" in learn(fleet, name="workers", base=strict).document["pcrs"]["7"]  # type: ignore[index]
    values = [replace(one, replayed=None) for one in fleet]
    bare: Any = learn(values, name="workers", in_force=demanding(assurance={"minimum": "tofu"})).document
    assert not {"secure_boot", "boot", "assurance"} & bare.keys()
    no_revocations = demanding(secure_boot={"required": True})
    learned = learn([machine(0, revoked=0)], name="workers", base=no_revocations).document
    assert "dbx_min" not in learned["secure_boot"]


def test_what_is_learned_is_written_in_the_format_that_it_starts_from() -> None:
    """So nothing that stood in a block is lost; what is demanded is the same."""
    old = learn(FLEET, name="workers").document
    first = learn(FLEET, name="workers", version=2, base=parse_policy(old)).document
    second = learn(FLEET, name="workers", version=2, base=parse_policy(nested(old))).document
    assert (first["format"], second["format"]) == ("itl-tpm-policy/1", "itl-policy/2")
    assert second == nested(first)
    assert diff(parse_policy(first), parse_policy(second)).changes == ()


def test_what_is_learned_over_a_policy_that_says_nothing_of_tpms() -> None:
    """As over none: what it demands besides is kept."""
    common = {"format": "itl-policy/2", "name": "vouched", "version": 1, "assurance": {"minimum": "ek-chain"}}
    plain = learn(FLEET, name="workers").document
    found = learn(FLEET, name="workers", base=parse_policy(common)).document
    assert found == nested({**plain, "assurance": {"minimum": "ek-chain"}})
