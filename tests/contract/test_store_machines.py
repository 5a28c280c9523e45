"""Machines: stored whole, one per EK, changed only by whoever saw the last change, listed in pages."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from attestation.errors import (
    AlreadyExists,
    EKConflict,
    MachineChanged,
    MachineUnknown,
    NameInUse,
    RequestInvalid,
)
from attestation.machines import ClockState, EKCertificateInfo, Identity, Machine, Role, SeenHardware, Status
from attestation.machines.names import names_of
from attestation.results import Assurance, Verdict
from attestation.store import FLEET, MachineFilter, Page, PolicyAssignment, Store, StoredPolicy, Tx, machines
from tests.contract.store_samples import MINUTE, NOW, a_full_machine, a_machine

ANY = MachineFilter()
RENEWAL: dict[str, Any] = {
    "clock": ClockState(clock_ms=5, reset_count=6, restart_count=7, safe=False, firmware_version=8),
    "last_verdict": Verdict.VERIFIED,
    "last_result_at": NOW + MINUTE,
    "last_policy": "workers@4",
    "last_failed": None,
    "last_result_key": "k2",
    "trust_expires_at": NOW + 3 * MINUTE,
    "event_log_sha256": "ab" * 32,
    "heartbeat_missed_at": None,
    "last_result_from": "10.0.0.9",
}


@pytest.mark.parametrize("machine", [a_machine(), a_full_machine()], ids=["bare", "full"])
def test_a_machine_comes_back_as_it_went_in(store: Store, machine: Machine) -> None:
    """Every field survives, found by id and by EK."""
    store.write_sync(lambda tx: tx.machines.add(machine))
    assert store.read_sync(lambda tx: tx.machines.by_id(machine.machine_id)) == machine
    assert store.read_sync(lambda tx: tx.machines.by_ek(machine.tpm.ek_fingerprint)) == machine


def test_the_full_sample_leaves_no_field_unset() -> None:
    """The sample above tells a swapped or forgotten column from a right one."""
    machine = a_full_machine()
    values = [
        getattr(record, f.name) for record in (machine, machine.tpm) for f in dataclasses.fields(record)
    ]
    assert None not in values
    told_apart = [value for value in values if not isinstance(value, bool)]
    assert len(set(map(repr, told_apart))) == len(told_apart)


@pytest.mark.parametrize("value", [0, 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
def test_unsigned_64_bit_values_survive(store: Store, value: int) -> None:
    """Clock and firmware version keep all 64 bits."""
    clock = ClockState(clock_ms=value, reset_count=0, restart_count=0, safe=True, firmware_version=value)
    store.write_sync(lambda tx: tx.machines.add(a_machine(clock=clock)))
    stored = store.read_sync(lambda tx: tx.machines.by_id(a_machine().machine_id))
    assert stored is not None
    assert stored.clock == clock


def test_what_was_never_stored_is_none(store: Store) -> None:
    """An unknown id or EK finds nothing."""
    assert store.read_sync(lambda tx: tx.machines.by_id("x")) is None
    assert store.read_sync(lambda tx: tx.machines.by_ek("x")) is None


def test_who_requires_a_machine_gets_it_or_one_error(store: Store) -> None:
    """A machine that is there is returned; of one that is not, its id is not repeated."""
    store.write_sync(lambda tx: tx.machines.add(a_machine()))
    assert store.read_sync(lambda tx: tx.machines.require(a_machine().machine_id)) == a_machine()
    with pytest.raises(MachineUnknown, match=r"^no such machine$"):
        store.read_sync(lambda tx: tx.machines.require("x"))


@pytest.mark.parametrize("same", ["machine_id", "ek_fingerprint"])
def test_an_id_or_ek_is_stored_once(store: Store, same: str) -> None:
    """A second machine with the same id or the same EK is refused, and the first stays."""
    first = a_machine(1)
    store.write_sync(lambda tx: tx.machines.add(first))
    second = a_machine(2, **{same: getattr(first, same, first.tpm.ek_fingerprint)})
    with pytest.raises(EKConflict):
        store.write_sync(lambda tx: tx.machines.add(second))
    assert store.read_sync(lambda tx: tx.machines.page(ANY, None, 10)).items == (first,)


CHANGES: list[dict[str, Any]] = [
    {"status": Status.REGISTERED, "role": Role.WORKER_APP, "hostname": "w-9"},
    {"wipe_pending": True, "wiped_at": NOW + MINUTE},
    {"clock": None},
    {"clock": RENEWAL["clock"], "assurance": Assurance.EK_CHAIN, "desired_role": None},
    {"anchor": dataclasses.replace(a_full_machine().tpm, ek_certificate=None)},
    {
        "anchor": dataclasses.replace(
            a_full_machine().tpm,
            ek_certificate=EKCertificateInfo(
                subject="s", manufacturer="m", model="o", firmware="f", sha256="00"
            ),
        )
    },
    {
        "anchor": dataclasses.replace(
            a_full_machine().tpm, ak_public=None, ak_name=None, ak_activated_at=None
        ),
        "last_verdict": None,
    },
    {"hardware": SeenHardware(kind="tdx", chip=b"", guest=b"2", csp_id=None), "vouched_by_hardware": False},
    {"hardware": None},
    {},
]


@pytest.mark.parametrize("changes", CHANGES, ids=lambda c: "+".join(c) or "nothing")
def test_an_update_changes_what_it_names_and_the_version(store: Store, changes: dict[str, Any]) -> None:
    """The returned machine is the stored one, at the next version."""
    before = a_full_machine()

    def work(tx: Any) -> Machine:
        tx.machines.add(before)
        after: Machine = tx.machines.update(before, **changes)
        return after

    after = store.write_sync(work)
    # Who is given a name that nobody else has shares none.
    shares = before.shares_names and "hostname" not in changes
    assert after == dataclasses.replace(before, **changes, version=before.version + 1, shares_names=shares)
    assert store.read_sync(lambda tx: tx.machines.by_id(before.machine_id)) == after


def test_an_update_of_an_old_version_changes_nothing(store: Store) -> None:
    """Who decided about version n cannot change version n + 1."""
    seen = a_machine()
    store.write_sync(lambda tx: tx.machines.add(seen))
    locked = store.write_sync(lambda tx: tx.machines.update(seen, status=Status.REJECTED))
    with pytest.raises(MachineChanged):
        store.write_sync(lambda tx: tx.machines.update(seen, status=Status.REGISTERED))
    assert store.read_sync(lambda tx: tx.machines.by_id(seen.machine_id)) == locked


def test_an_update_of_an_unknown_field_is_refused(store: Store) -> None:
    """A misspelt field is an error, never silence."""
    store.write_sync(lambda tx: tx.machines.add(a_machine()))
    with pytest.raises(TypeError):
        store.write_sync(lambda tx: tx.machines.update(a_machine(), statsu=Status.LOCKED))


@pytest.mark.parametrize("fields", [{"alarm": None}, {"statsu": None}], ids=["other", "unknown"])
def test_a_renewal_writes_what_every_attestation_renews_and_no_more(
    store: Store, fields: dict[str, Any]
) -> None:
    """Another field is refused, and so is one that is left out: neither is lost in silence."""
    machine = a_machine()
    store.write_sync(lambda tx: tx.machines.add(machine))
    with pytest.raises(TypeError):
        store.write_sync(lambda tx: tx.machines.renew(machine, revision=0, **RENEWAL, **fields))
    left_out = {name: value for name, value in RENEWAL.items() if name != "last_failed"}
    with pytest.raises(TypeError):
        store.write_sync(lambda tx: tx.machines.renew(machine, revision=0, **left_out))


def test_a_renewal_stores_the_result_and_keeps_the_version(store: Store) -> None:
    """The hot path touches trust, last result and clock, nothing else."""
    machine = a_full_machine()
    store.write_sync(lambda tx: tx.machines.add(machine))
    store.write_sync(lambda tx: tx.machines.renew(machine, revision=0, **RENEWAL))
    stored = store.read_sync(lambda tx: tx.machines.by_id(machine.machine_id))
    assert stored == dataclasses.replace(machine, **RENEWAL)


@pytest.mark.threat("T149")
@pytest.mark.parametrize(
    "meanwhile",
    [
        {"status": Status.LOCKED},
        {"anchor": a_machine(ak_name=b"other").tpm},
        {"anchor": a_machine(ak_name=None).tpm},
        {"role": Role.CONTROLPLANE},
        {"assurance": Assurance.NONE},
        {"hostname": "other"},
    ],
    ids=["locked", "other-ak", "ak-reset", "other-role", "distrusted", "renamed"],
)
def test_a_renewal_loses_against_whatever_changed_the_machine(
    store: Store, meanwhile: dict[str, Any]
) -> None:
    """What was judged about one version of a machine is not stored under another."""
    judged = a_machine(status=Status.ATTESTED)
    store.write_sync(lambda tx: tx.machines.add(judged))
    changed = store.write_sync(lambda tx: tx.machines.update(judged, **meanwhile))
    with pytest.raises(MachineChanged):
        store.write_sync(lambda tx: tx.machines.renew(judged, revision=0, **RENEWAL))
    assert store.read_sync(lambda tx: tx.machines.by_id(judged.machine_id)) == changed


def test_a_renewal_loses_against_other_policies(store: Store) -> None:
    """Wherever they apply: it is rare, and judging again is cheap."""
    judged = a_machine(status=Status.ATTESTED)
    store.write_sync(lambda tx: tx.machines.add(judged))
    policy = StoredPolicy(
        name="workers", version=1, sha256="ab" * 32, document="{}", created_at=NOW, created_by="alice"
    )
    store.write_sync(lambda tx: tx.policies.add(policy))
    everywhere = PolicyAssignment(
        scope="fleet", subject=FLEET, policy="workers@1", assigned_at=NOW, assigned_by="alice"
    )
    for change in (
        lambda tx: tx.policies.assign(everywhere),
        lambda tx: tx.policies.unassign("fleet", FLEET, at=NOW, by="alice"),
    ):
        demand_what_was_judged_before(store, judged, change)


def demand_what_was_judged_before(store: Store, judged: Machine, change: Callable[[Tx], None]) -> None:
    """Let *change* come between judging and writing."""
    revision = store.read_sync(lambda tx: judged_at(tx, judged))
    store.read_sync(lambda tx: tx.policies.demand_revision(revision))
    store.write_sync(change)
    with pytest.raises(MachineChanged):
        store.write_sync(lambda tx: tx.machines.renew(judged, revision=revision, **RENEWAL))
    with pytest.raises(MachineChanged):
        store.read_sync(lambda tx: tx.policies.demand_revision(revision))


def judged_at(tx: Tx, machine: Machine) -> int:
    """Return the revision of policies that an attestation is judged at."""
    case = tx.attestations.load(machine.machine_id, "0" * 32, address_key="a", machine_key="m")
    assert case is not None
    return case.revision


def test_a_renewal_loses_against_another_one(store: Store) -> None:
    """Of two attestations at the same time the second is judged again, by what the first one established."""
    judged = a_machine(status=Status.ATTESTED)
    store.write_sync(lambda tx: tx.machines.add(judged))
    later = RENEWAL | {"last_result_at": NOW + MINUTE, "last_verdict": Verdict.FAILED}
    store.write_sync(lambda tx: tx.machines.renew(judged, revision=0, **later))
    with pytest.raises(MachineChanged):
        store.write_sync(lambda tx: tx.machines.renew(judged, revision=0, **RENEWAL))
    stored = store.read_sync(lambda tx: tx.machines.by_id(judged.machine_id))
    assert stored is not None
    assert stored.last_verdict is Verdict.FAILED


def test_a_deleted_machine_is_gone(store: Store) -> None:
    """Deleting tells whether there was something."""
    machine = a_machine()
    store.write_sync(lambda tx: tx.machines.add(machine))
    assert store.write_sync(lambda tx: tx.machines.delete(machine.machine_id)) is True
    assert store.write_sync(lambda tx: tx.machines.delete(machine.machine_id)) is False
    assert store.read_sync(lambda tx: tx.machines.by_id(machine.machine_id)) is None


def test_pending_machines_are_counted_over_all_and_by_address(store: Store) -> None:
    """The quota sees only machines that await approval."""

    def work(tx: Any) -> None:
        tx.machines.add(a_machine(1, registered_from="192.0.2.1"))
        tx.machines.add(a_machine(2, registered_from="192.0.2.2"))
        tx.machines.add(a_machine(3, registered_from="192.0.2.2"))
        tx.machines.add(a_machine(4, registered_from="192.0.2.2", status=Status.REGISTERED))

    store.write_sync(work)
    assert store.read_sync(lambda tx: tx.machines.pending().rows) == 3
    assert store.read_sync(lambda tx: tx.machines.pending("192.0.2.2").rows) == 2
    assert store.read_sync(lambda tx: tx.machines.pending("192.0.2.9").rows) == 0


def all_pages(store: Store, wanted: MachineFilter, limit: int) -> list[Machine]:
    """Return everything a list shows, page by page."""
    found: list[Machine] = []
    cursor: str | None = None
    while True:
        page: Page[Machine] = store.read_sync(lambda tx, at=cursor: tx.machines.page(wanted, at, limit))  # type: ignore[misc]
        assert len(page.items) <= limit
        found += page.items
        cursor = page.next_cursor
        if cursor is None:
            return found


NAMES = st.text(st.sampled_from("aAbB%_\\=Ä"), max_size=4)
MACHINES = st.lists(
    st.fixed_dictionaries(
        {
            "status": st.sampled_from([Status.PENDING_APPROVAL, Status.ATTESTED]),
            "role": st.sampled_from([None, Role.CONTROLPLANE]),
            "cluster_id": st.sampled_from(["default", "other"]),
            "hostname": st.none() | NAMES,
            # So that a search may find several of one name.
            "shares_names": st.just(True),
            "hw_serial": NAMES,
        }
    ),
    max_size=8,
)
FILTERS = st.builds(
    MachineFilter,
    status=st.sampled_from([None, Status.ATTESTED]),
    role=st.sampled_from([None, Role.CONTROLPLANE]),
    cluster_id=st.sampled_from([None, "other"]),
    q=st.none() | NAMES | st.sampled_from(["MAC-1", "UUID", "0000", "00000003-0F", "0f0e", "001"]),
)


def shown(machine: Machine, wanted: MachineFilter) -> bool:
    """Say what a list should show, independently of any SQL."""
    q = (wanted.q or "").lower()
    inside = (machine.hostname or "", machine.hw_serial, machine.hw_mac, machine.hw_uuid)
    return (
        wanted.status in (None, machine.status)
        and wanted.role in (None, machine.role)
        and wanted.cluster_id in (None, machine.cluster_id)
        and (
            any(q in text.lower() for text in inside)
            or machine.machine_id.startswith(q)
            or machine.tpm.ek_fingerprint.startswith(q)
        )
    )


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(rows=MACHINES, wanted=FILTERS, limit=st.integers(1, 4), data=st.data())
def test_pages_together_are_exactly_what_was_asked_for(
    store: Store, rows: list[dict[str, Any]], wanted: MachineFilter, limit: int, data: st.DataObject
) -> None:
    """Concatenated pages equal the filtered list, newest first; rows added meanwhile change no begun list."""

    def fill(tx: Any) -> list[Machine]:
        for old in tx.machines.page(ANY, None, 1000).items:
            tx.machines.delete(old.machine_id)
        machines = [a_machine(number, **row) for number, row in enumerate(rows, 1)]
        for machine in machines:
            tx.machines.add(machine)
        return machines

    machines = store.write_sync(fill)
    expected = [machine for machine in reversed(machines) if shown(machine, wanted)]
    found: list[Machine] = []
    cursor: str | None = None
    number = 100
    while True:
        page = store.read_sync(lambda tx, at=cursor: tx.machines.page(wanted, at, limit))  # type: ignore[misc]
        found += page.items
        cursor = page.next_cursor
        if cursor is None:
            break
        assert len(page.items) == limit
        if data.draw(st.booleans()):
            number += 1
            newer = a_machine(number, **data.draw(st.sampled_from(rows)))
            store.write_sync(lambda tx, added=newer: tx.machines.add(added))  # type: ignore[misc]
    assert found == expected


def test_a_search_follows_changes(store: Store) -> None:
    """A new host name is found, the old one no longer."""
    machine = a_machine(hostname="old")
    store.write_sync(lambda tx: tx.machines.add(machine))
    store.write_sync(lambda tx: tx.machines.update(machine, hostname="NEW"))
    assert all_pages(store, MachineFilter(q="old"), 10) == []
    assert len(all_pages(store, MachineFilter(q="new"), 10)) == 1


@pytest.mark.parametrize(
    "cursor",
    ["", "x", "bWFjaGluZXM6", "é", "a" * 100, "bWFjaGluZXM6LTE", "bWFjaGluZXM6OTk5OTk5OTk5OTk5OTk5OTk5OTk5"],
)
def test_a_malformed_cursor_is_the_callers_fault(store: Store, cursor: str) -> None:
    """Only text that this list gave out is a cursor."""
    with pytest.raises(RequestInvalid):
        store.read_sync(lambda tx: tx.machines.page(ANY, cursor, 10))


def test_a_cursor_of_another_list_is_refused(store: Store) -> None:
    """Ids of one table mean nothing in another."""

    def fill(tx: Any) -> None:
        tx.machines.add(a_machine(1))
        tx.machines.add(a_machine(2))

    store.write_sync(fill)
    cursor = store.read_sync(lambda tx: tx.machines.page(ANY, None, 1)).next_cursor
    assert cursor is not None
    with pytest.raises(RequestInvalid):
        store.read_sync(lambda tx: tx.audit.page(cursor, 1))


@pytest.mark.parametrize("limit", [0, -1, 1001])
def test_a_page_has_a_size(store: Store, limit: int) -> None:
    """No list is unbounded."""
    with pytest.raises(RequestInvalid):
        store.read_sync(lambda tx: tx.machines.page(ANY, None, limit))


def test_a_line_break_is_no_search(store: Store) -> None:
    """A search cannot reach from one field into the next."""
    with pytest.raises(RequestInvalid):
        store.read_sync(lambda tx: tx.machines.page(MachineFilter(q="a\nb"), None, 1))


def test_a_clock_beyond_64_bits_is_refused(store: Store) -> None:
    """Nothing is stored modulo 2**64."""
    clock = ClockState(clock_ms=1 << 64, reset_count=0, restart_count=0, safe=True, firmware_version=0)
    with pytest.raises(OverflowError):
        store.write_sync(lambda tx: tx.machines.add(a_machine(clock=clock)))


def test_instants_keep_their_microseconds(store: Store) -> None:
    """What is compared in SQL and what is read back are the same instant."""
    machine = a_machine(registered_at=NOW + timedelta(microseconds=1))
    store.write_sync(lambda tx: tx.machines.add(machine))
    stored = store.read_sync(lambda tx: tx.machines.by_id(machine.machine_id))
    assert stored is not None
    assert stored.registered_at == machine.registered_at


def test_machines_are_counted_as_they_judge_themselves(store: Store) -> None:
    """Every machine once by status, role and trust; the rule in SQL is that of `Machine.trust`."""
    verdicts: list[tuple[Verdict | None, Any]] = [
        (None, None),
        (Verdict.INDETERMINATE, None),
        (Verdict.FAILED, None),
        (Verdict.VERIFIED, None),
        (Verdict.VERIFIED, NOW),
        (Verdict.VERIFIED, NOW + MINUTE),
        (Verdict.VERIFIED, NOW - MINUTE),
        (Verdict.FAILED, NOW + MINUTE),
    ]
    machines = [
        dataclasses.replace(
            a_machine(number),
            status=status,
            cluster_id=f"c{number % 3}",
            role=role,
            last_verdict=verdict,
            trust_expires_at=expires_at,
        )
        for number, (status, role, (verdict, expires_at)) in enumerate(
            (status, role, judged)
            for status in (Status.ATTESTED, Status.LOCKED)
            for role in (None, Role.GENERIC)
            for judged in verdicts
        )
    ]

    def add(tx: Any) -> None:
        for machine in machines:
            tx.machines.add(machine)

    assert store.read_sync(lambda tx: tx.machines.counts(NOW)).by_status == {}
    store.write_sync(add)
    counts = store.read_sync(lambda tx: tx.machines.counts(NOW))
    assert counts.by_status == {Status.ATTESTED: 16, Status.LOCKED: 16}
    assert counts.by_role == {None: 16, Role.GENERIC: 16}
    assert counts.by_cluster == Counter(machine.cluster_id for machine in machines)
    assert counts.by_trust == Counter(machine.trust(NOW) for machine in machines)


# Leases


def leased(number: int, minutes: int, **changes: Any) -> Machine:
    """Return an attested machine whose lease ends *minutes* from NOW."""
    return a_machine(
        number,
        machine_id=f"00000000-0000-4000-8000-{number:012x}",
        **{
            "status": Status.ATTESTED,
            "role": Role.WORKER_APP,
            "last_verdict": Verdict.VERIFIED,
            "trust_expires_at": NOW + minutes * MINUTE,
            **changes,
        },
    )


def test_leases_that_lapsed_are_found_oldest_first(store: Store) -> None:
    """Attested, Verified, ended and not noticed; nobody else; at most as many as asked for."""
    due = [leased(1, -1), leased(2, -5), leased(3, 0)]
    others = [
        leased(4, 1),
        leased(5, -1, trust_expires_at=None),
        leased(6, -1, last_verdict=Verdict.FAILED),
        leased(7, -1, last_verdict=None),
        leased(8, -1, status=Status.LOCKED),
        leased(9, -1, heartbeat_missed_at=NOW),
    ]
    for machine in due + others:
        store.write_sync(lambda tx, machine=machine: tx.machines.add(machine))  # type: ignore[misc]
    assert store.read_sync(lambda tx: tx.machines.lapsed(NOW, 10)) == [due[1], due[0], due[2]]
    assert store.read_sync(lambda tx: tx.machines.lapsed(NOW, 1)) == [due[1]]
    assert store.read_sync(lambda tx: tx.machines.lapsed(NOW - 6 * MINUTE, 10)) == []


def test_a_lapse_is_noted_once(store: Store) -> None:
    """One of any number of callers notes it; whoever renewed meanwhile is not missed; the version stays."""
    machine, alive = leased(1, -1), leased(2, 1)
    for each in (machine, alive):
        store.write_sync(lambda tx, each=each: tx.machines.add(each))  # type: ignore[misc]
    at = NOW + MINUTE / 2
    assert store.write_sync(lambda tx: tx.machines.miss(machine.machine_id, NOW, at))
    assert not store.write_sync(lambda tx: tx.machines.miss(machine.machine_id, NOW, at))
    assert not store.write_sync(lambda tx: tx.machines.miss(alive.machine_id, NOW, at))
    assert not store.write_sync(lambda tx: tx.machines.miss("another", NOW, at))
    found = store.read_sync(lambda tx: tx.machines.by_id(machine.machine_id))
    assert found == dataclasses.replace(machine, heartbeat_missed_at=at)
    assert store.read_sync(lambda tx: tx.machines.by_id(alive.machine_id)) == alive


def test_who_is_overdue_is_found_by_the_index() -> None:
    """Every worker asks every few seconds: it must not read the fleet, however large."""
    statement = machines._LAPSED.compiled("sqlite")
    assert "FROM machines INDEXED BY ix_machines_trust_expires_at" in statement.text
    assert "INDEXED BY" not in machines._LAPSED.compiled("postgresql").text


def _called(number: int, hostname: str | None, assigned_ip: str | None, **more: Any) -> Machine:
    return a_machine(
        number,
        status=Status.ATTESTED,
        role=Role.WORKER_APP,
        hostname=hostname,
        assigned_ip=assigned_ip,
        **more,
    )


@pytest.mark.threat("T142")
@pytest.mark.parametrize(
    ("hostname", "assigned_ip"),
    [
        ("cp-1", None),
        ("CP-1.", None),
        (None, "10.0.0.11/24"),
        (None, "10.0.0.11/8"),
        (None, "::ffff:10.0.0.11/120"),
        ("else", "10.0.0.11/24"),
    ],
)
def test_no_two_of_a_cluster_are_called_alike(
    store: Store, hostname: str | None, assigned_ip: str | None
) -> None:
    """However it is spelt: neither a new machine nor one that gets another name or cluster."""
    first = _called(1, "cp-1", "10.0.0.11/24")
    store.write_sync(lambda tx: tx.machines.add(first))
    same = _called(2, hostname, assigned_ip)
    elsewhere = dataclasses.replace(same, cluster_id="other")
    named = {"hostname": hostname, "assigned_ip": assigned_ip}
    with pytest.raises(NameInUse, match=first.machine_id):
        store.write_sync(lambda tx: tx.machines.add(same))
    store.write_sync(lambda tx: tx.machines.add(elsewhere))
    with pytest.raises(NameInUse):
        store.write_sync(lambda tx: tx.machines.update(elsewhere, cluster_id="default"))
    bare = dataclasses.replace(a_machine(3), role=Role.WORKER_APP)
    store.write_sync(lambda tx: tx.machines.add(bare))
    with pytest.raises(NameInUse):
        store.write_sync(lambda tx: tx.machines.update(bare, **named))
    found = store.read_sync(lambda tx: tx.machines.namesakes(names_of(hostname, assigned_ip), besides="x"))
    assert [each.machine_id for each in found] == [first.machine_id, elsewhere.machine_id]


@pytest.mark.parametrize("status", [Status.REVOKED, Status.REJECTED])
def test_who_is_out_keeps_the_words_and_frees_the_name(store: Store, status: Status) -> None:
    """The record still says how it was called; another one may be called so, and it does not come back."""
    first = _called(1, "cp-1", "10.0.0.11/24")

    def work(tx: Any) -> Machine:
        tx.machines.add(first)
        out: Machine = tx.machines.update(first, status=status)
        tx.machines.add(_called(2, "cp-1", "10.0.0.11/24"))
        return out

    out = store.write_sync(work)
    assert (out.hostname, out.assigned_ip) == ("cp-1", "10.0.0.11/24")
    assert store.read_sync(lambda tx: tx.machines.by_id(first.machine_id)) == out
    with pytest.raises(NameInUse):
        store.write_sync(lambda tx: tx.machines.update(out, status=Status.ATTESTED))


@pytest.mark.parametrize(
    "free",
    [
        lambda tx, first: tx.machines.update(first, status=Status.REVOKED),
        lambda tx, first: tx.machines.update(first, hostname="cp-2"),
        lambda tx, first: tx.machines.update(first, cluster_id="other"),
        lambda tx, first: tx.machines.delete(first.machine_id),
    ],
    ids=["revoked", "renamed", "moved", "deleted"],
)
def test_who_shared_a_name_has_it_when_the_other_one_gives_it_up(store: Store, free: Any) -> None:
    """It works on meanwhile, and may be locked; only a new name, or the other's end, settles it."""
    first, second = _called(1, "cp-1", None), _called(2, "cp-1", None, shares_names=True)
    third = _called(3, "cp-1", "10.0.0.13/24", shares_names=True)

    def before(tx: Any) -> Machine:
        for each in (first, second, third):
            tx.machines.add(each)
        locked: Machine = tx.machines.update(second, status=Status.LOCKED)
        return locked

    locked = store.write_sync(before)
    assert locked.shares_names
    assert [m.machine_id for m in store.read_sync(lambda tx: tx.machines.sharing(10))] == [
        second.machine_id,
        third.machine_id,
    ]
    with pytest.raises(NameInUse):
        store.write_sync(lambda tx: tx.machines.update(locked, hostname="cp-1"))
    store.write_sync(lambda tx: free(tx, first))
    shared = [m.machine_id for m in store.read_sync(lambda tx: tx.machines.sharing(10))]
    assert shared == [second.machine_id, third.machine_id], "those two still share it"
    store.write_sync(lambda tx: tx.machines.update(locked, hostname="cp-9"))
    assert store.read_sync(lambda tx: tx.machines.sharing(10)) == []


# Identities of other kinds


def test_each_kind_of_evidence_has_its_identity(store: Store) -> None:
    """Beside that of the TPM; one of a kind, of one machine alone; and whoever is deleted has none any more."""
    first, second = a_machine(1), a_machine(2)

    def load(tx: Tx) -> Mapping[str, object]:
        case = tx.attestations.load(first.machine_id, "x", address_key="a", machine_key="m")
        assert case is not None
        return case.identities

    def add(tx: Tx) -> Machine:
        tx.machines.add(first)
        tx.machines.add(second)
        return tx.identities.add(first, "chip", b"1")

    assert store.write_sync(add).version == first.version + 1
    assert store.read_sync(load) == {"tpm": first.tpm, "chip": Identity(value=b"1")}
    for machine, value in ((second, b"1"), (first, b"2")):
        with pytest.raises(AlreadyExists):
            store.write_sync(lambda tx, m=machine, v=value: tx.identities.add(m, "chip", v))  # type: ignore[misc]
    with pytest.raises(MachineChanged):
        store.write_sync(lambda tx: tx.identities.add(first, "enclave", b"1"))
    store.write_sync(lambda tx: tx.identities.renew(first.machine_id, "chip", {"level": 7}))
    store.write_sync(lambda tx: tx.identities.add(second, "enclave", b"1"))
    assert store.read_sync(load) == {"tpm": first.tpm, "chip": Identity(value=b"1", state={"level": 7})}
    store.write_sync(lambda tx: tx.identities.add(tx.machines.require(first.machine_id), "tpm", b"other"))
    assert next(iter(store.read_sync(load).items())) == ("tpm", first.tpm), "nothing stands for its TPM"
    assert store.write_sync(lambda tx: tx.machines.delete(first.machine_id))
    assert store.read_sync(lambda tx: tx.identities.of(first.machine_id)) == {}
    assert set(store.read_sync(lambda tx: tx.identities.of(second.machine_id))) == {"enclave"}
