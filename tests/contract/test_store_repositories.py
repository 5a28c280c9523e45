"""Challenges, tokens, allow-list, results, rate limits, policies, outbox, audit and purge."""

from __future__ import annotations

import dataclasses
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from attestation.audit import GENESIS_HASH, AuditEvent, verify_chain
from attestation.clock import rfc3339, to_micros
from attestation.errors import (
    AllowListEntryUnknown,
    AlreadyExists,
    ChallengeExpired,
    ChallengeUnknown,
    ChallengeUsed,
    ConfigTokenConsumed,
    ConfigTokenUnknown,
    PolicyUnknown,
    RegistrationTokenInvalid,
    RegistrationTokenUnknown,
)
from attestation.machines import NodeEvent, Role
from attestation.store import (
    FLEET,
    Act,
    AttestationCase,
    AuditFilter,
    PolicyAssignment,
    Purged,
    RateLimit,
    Store,
    StoredPolicy,
    Tx,
)
from tests.contract.store_samples import (
    MINUTE,
    NOW,
    a_challenge,
    a_config_token,
    a_machine,
    a_registration_token,
    a_result,
    an_allow_list_row,
)

MACHINE = a_machine()
MICROSECOND = timedelta(microseconds=1)


def redeem(
    store: Store, *, purpose: Any = "attest", machine_id: str = MACHINE.machine_id, at: Any = NOW
) -> None:
    """Redeem challenge 1."""
    store.write_sync(lambda tx: tx.challenges.redeem(a_challenge().challenge_id, purpose, machine_id, at))


@pytest.mark.parametrize(
    "challenge",
    [a_challenge(), a_challenge(purpose="activate", nonce=None, proof_sha256=b"p" * 32, payload="{}")],
    ids=["attest", "activate"],
)
def test_a_challenge_comes_back_as_it_was_issued(store: Store, challenge: Any) -> None:
    """Every field survives."""
    store.write_sync(lambda tx: tx.challenges.issue(challenge))
    assert store.read_sync(lambda tx: tx.challenges.get(challenge.challenge_id)) == challenge


def test_a_challenge_is_redeemed_once(store: Store) -> None:
    """The second redemption fails, and the first instant stays."""
    store.write_sync(lambda tx: tx.challenges.issue(a_challenge()))
    redeem(store)
    with pytest.raises(ChallengeUsed):
        redeem(store, at=NOW + MICROSECOND)
    used = store.read_sync(lambda tx: tx.challenges.get(a_challenge().challenge_id))
    assert used == dataclasses.replace(a_challenge(), used_at=NOW)


@pytest.mark.threat("T9")
@pytest.mark.parametrize(
    ("other", "error"),
    [
        ({"purpose": "activate"}, ChallengeUnknown),
        ({"machine_id": "another"}, ChallengeUnknown),
        ({"at": NOW + MINUTE}, ChallengeExpired),
    ],
    ids=["purpose", "machine", "time"],
)
def test_a_challenge_serves_its_machine_purpose_and_time_only(
    store: Store, other: dict[str, Any], error: type[Exception]
) -> None:
    """A wrong redemption fails and does not spend the challenge."""
    store.write_sync(lambda tx: tx.challenges.issue(a_challenge()))
    with pytest.raises(error):
        redeem(store, **other)
    redeem(store, at=NOW + MINUTE - MICROSECOND)


def test_an_unknown_challenge_is_unknown(store: Store) -> None:
    """Nothing is found for an id never issued."""
    with pytest.raises(ChallengeUnknown):
        redeem(store)
    assert store.read_sync(lambda tx: tx.challenges.get("x")) is None


def test_a_registration_token_admits_as_often_as_it_says(store: Store) -> None:
    """Each use counts down; at zero it is invalid."""
    token = a_registration_token()
    store.write_sync(lambda tx: tx.registration_tokens.add(token))
    assert store.read_sync(lambda tx: tx.registration_tokens.get_by_hash(token.token_sha256)) == token
    for left in (1, 0):
        used = store.write_sync(lambda tx: tx.registration_tokens.use(token.token_sha256, NOW))
        assert used == dataclasses.replace(token, uses_left=left)
    with pytest.raises(RegistrationTokenInvalid):
        store.write_sync(lambda tx: tx.registration_tokens.use(token.token_sha256, NOW))


@pytest.mark.parametrize(
    ("changes", "sha256"),
    [
        ({}, b"?" * 32),
        ({"expires_at": NOW}, None),
        ({"revoked_at": NOW - MINUTE}, None),
    ],
    ids=["unknown", "expired", "revoked"],
)
def test_a_registration_token_that_does_not_fit_admits_nobody(
    store: Store, changes: dict[str, Any], sha256: bytes | None
) -> None:
    """Every condition counts, and a refused use takes nothing."""
    token = a_registration_token(**changes)
    store.write_sync(lambda tx: tx.registration_tokens.add(token))
    with pytest.raises(RegistrationTokenInvalid):
        store.write_sync(lambda tx: tx.registration_tokens.use(sha256 or token.token_sha256, NOW))
    assert store.read_sync(lambda tx: tx.registration_tokens.get(token.token_id)) == token


def test_a_revoked_registration_token_stays_revoked_since_then(store: Store) -> None:
    """Revoking twice keeps the first instant; an unknown token is unknown."""
    token = a_registration_token()
    store.write_sync(lambda tx: tx.registration_tokens.add(token))
    for at in (NOW, NOW + MINUTE):
        revoked = store.write_sync(lambda tx, at=at: tx.registration_tokens.revoke(token.token_id, at))  # type: ignore[misc]
        assert revoked.revoked_at == NOW
    with pytest.raises(RegistrationTokenUnknown):
        store.write_sync(lambda tx: tx.registration_tokens.revoke("x", NOW))


def test_registration_tokens_are_listed_newest_first(store: Store) -> None:
    """In pages that together hold each once."""
    tokens = [a_registration_token(n) for n in (1, 2, 3)]
    for token in tokens:
        store.write_sync(lambda tx, t=token: tx.registration_tokens.add(t))  # type: ignore[misc]
    first = store.read_sync(lambda tx: tx.registration_tokens.page(None, 2))
    second = store.read_sync(lambda tx: tx.registration_tokens.page(first.next_cursor, 2))
    assert [*first.items, *second.items] == tokens[::-1]
    assert second.next_cursor is None


def config_token(store: Store, **changes: Any) -> bytes:
    """Store machine 1 with a config token and return the token's hash."""
    token = a_config_token(**changes)

    def work(tx: Any) -> None:
        tx.machines.add(MACHINE)
        tx.config_tokens.issue(token)

    store.write_sync(work)
    return token.token_sha256


def consume(store: Store, sha256: bytes, answer: bytes, **changes: Any) -> tuple[bytes, bool]:
    """Spend a config token on *answer*."""
    given: dict[str, Any] = {
        "ak_name": a_config_token().ak_name,
        "answer_until": NOW + 5 * MINUTE,
        "at": NOW,
        "answer": answer,
    }
    return store.write_sync(lambda tx: tx.config_tokens.consume(sha256, **(given | changes)))


@pytest.mark.threat("T16")
def test_a_config_token_delivers_once_and_repeats_the_same_bytes(store: Store) -> None:
    """A repeat inside the window gets the first answer, whatever was prepared for it; then it is over."""
    sha256 = config_token(store)
    assert store.read_sync(lambda tx: tx.config_tokens.get_by_hash(sha256)) == a_config_token()
    assert consume(store, sha256, b"first") == (b"first", True)
    assert consume(store, sha256, b"second", at=NOW + 5 * MINUTE - MICROSECOND) == (b"first", False)
    with pytest.raises(ConfigTokenConsumed):
        consume(store, sha256, b"third", at=NOW + 5 * MINUTE)


def test_a_config_token_serves_its_ak_only(store: Store) -> None:
    """Another AK gets neither the first delivery nor the repeat."""
    sha256 = config_token(store)
    with pytest.raises(ConfigTokenConsumed):
        consume(store, sha256, b"x", ak_name=b"other")
    assert consume(store, sha256, b"first")[1]
    with pytest.raises(ConfigTokenConsumed):
        consume(store, sha256, b"x", ak_name=b"other")


def test_an_expired_or_unknown_config_token_delivers_nothing(store: Store) -> None:
    """Expiry counts from its instant on."""
    sha256 = config_token(store, expires_at=NOW)
    with pytest.raises(ConfigTokenConsumed):
        consume(store, sha256, b"x")
    with pytest.raises(ConfigTokenUnknown):
        consume(store, b"?" * 32, b"x")


@pytest.mark.parametrize("used", [False, True])
def test_a_withdrawn_config_token_delivers_nothing(store: Store, used: bool) -> None:
    """Withdrawing ends the first delivery and the repeat, and erases the answer."""
    sha256 = config_token(store)
    if used:
        consume(store, sha256, b"first")
    assert store.write_sync(lambda tx: tx.config_tokens.withdraw("another", NOW)) == 0
    assert store.write_sync(lambda tx: tx.config_tokens.withdraw(MACHINE.machine_id, NOW)) == 1
    with pytest.raises(ConfigTokenConsumed):
        consume(store, sha256, b"x")
    token = store.read_sync(lambda tx: tx.config_tokens.get_by_hash(sha256))
    assert token is not None
    assert (token.answer, token.withdrawn_at, token.is_unused(NOW)) == (None, NOW, False)


def test_deleting_a_machine_takes_its_tokens_and_results_along(store: Store) -> None:
    """Nothing of a deleted machine can be fetched."""
    sha256 = config_token(store)
    store.write_sync(lambda tx: tx.results.add(MACHINE.machine_id, a_result()))
    store.write_sync(lambda tx: tx.machines.delete(MACHINE.machine_id))
    assert store.read_sync(lambda tx: tx.config_tokens.get_by_hash(sha256)) is None
    assert store.read_sync(lambda tx: tx.results.page(MACHINE.machine_id, None, 9)).items == ()


def test_the_allow_list_keeps_one_entry_per_ek(store: Store) -> None:
    """Put tells new from replaced; delete tells known from unknown."""
    entry, other = an_allow_list_row(), an_allow_list_row(note="rack 2", role=Role.LINUX)
    assert store.write_sync(lambda tx: tx.allow_list.put(entry)) is True
    assert store.write_sync(lambda tx: tx.allow_list.put(other)) is False
    assert store.read_sync(lambda tx: tx.allow_list.get(entry.ek_fingerprint)) == other
    store.write_sync(lambda tx: tx.allow_list.remove(entry.ek_fingerprint, NOW))
    assert store.read_sync(lambda tx: tx.allow_list.get(entry.ek_fingerprint)) is None
    assert store.read_sync(lambda tx: tx.allow_list.page(None, 9)).items == ()
    # Remembered: who lists it again replaces what somebody agreed on.
    known = store.read_sync(lambda tx: tx.allow_list.ever(entry.ek_fingerprint))
    assert known == dataclasses.replace(other, removed_at=NOW)
    with pytest.raises(AllowListEntryUnknown):
        store.write_sync(lambda tx: tx.allow_list.remove(entry.ek_fingerprint, NOW))
    assert store.write_sync(lambda tx: tx.allow_list.put(entry)) is True
    assert store.read_sync(lambda tx: tx.allow_list.get(entry.ek_fingerprint)) == entry


def test_the_allow_list_is_listed_by_fingerprint(store: Store) -> None:
    """In pages that together hold each once."""
    rows = [an_allow_list_row(n) for n in (3, 1, 2)]
    store.write_sync(lambda tx: [tx.allow_list.put(row) for row in rows])
    first = store.read_sync(lambda tx: tx.allow_list.page(None, 2))
    second = store.read_sync(lambda tx: tx.allow_list.page(first.next_cursor, 2))
    assert [*first.items, *second.items] == sorted(rows, key=lambda row: row.ek_fingerprint)


def test_results_keep_every_check_and_only_the_last_few(store: Store) -> None:
    """The ring holds five here; each comes back whole, newest first; other machines keep theirs."""
    other = a_machine(2)

    def work(tx: Any) -> None:
        tx.machines.add(MACHINE)
        tx.machines.add(other)
        tx.results.add(other.machine_id, a_result(99))
        for number in range(1, 12):
            tx.results.add(MACHINE.machine_id, a_result(number))

    store.write_sync(work)
    page = store.read_sync(lambda tx: tx.results.page(MACHINE.machine_id, None, 3))
    rest = store.read_sync(lambda tx: tx.results.page(MACHINE.machine_id, page.next_cursor, 3))
    assert [s.result for s in (*page.items, *rest.items)] == [a_result(n) for n in (11, 10, 9, 8, 7)]
    assert {s.machine_id for s in page.items} == {MACHINE.machine_id}
    kept = store.read_sync(lambda tx: tx.results.page(other.machine_id, None, 3))
    assert [s.result for s in kept.items] == [a_result(99)]


def test_the_newest_result_of_each_is_one_question(store: Store) -> None:
    """Of those that are named and have one, whole, however many are named."""
    others = [a_machine(number) for number in (2, 3, 4)]

    def work(tx: Any) -> None:
        for number, machine in enumerate((MACHINE, *others)):
            tx.machines.add(machine)
            for result in range(number):  # the first has none
                tx.results.add(machine.machine_id, a_result(10 * number + result))

    store.write_sync(work)
    named = [machine.machine_id for machine in (MACHINE, *others[:2])]
    found = store.read_sync(lambda tx: tx.results.newest_of_each(named))
    pages = store.read_sync(lambda tx: [tx.results.page(each, None, 1) for each in named])
    assert found == {each.machine_id: each for page in pages for each in page.items}
    assert list(map(len, (page.items for page in pages))) == [0, 1, 1]
    assert store.read_sync(lambda tx: tx.results.newest_of_each([])) == {}


LIMIT = RateLimit(requests=3, per_seconds=60)


def test_a_rate_limit_lets_a_burst_pass_and_then_its_rate(store: Store) -> None:
    """Three at once, the next after twenty seconds; other keys are not concerned."""
    for _ in range(3):
        assert store.read_sync(lambda tx: tx.rate_limits.check("a", NOW, LIMIT)) is None
        store.write_sync(lambda tx: tx.rate_limits.take("a", NOW, LIMIT))
    assert store.read_sync(lambda tx: tx.rate_limits.check("a", NOW, LIMIT)) == 20
    assert store.read_sync(lambda tx: tx.rate_limits.check("b", NOW, LIMIT)) is None
    later = NOW + timedelta(seconds=19.5)
    assert store.read_sync(lambda tx: tx.rate_limits.check("a", later, LIMIT)) == 1
    later = NOW + timedelta(seconds=20)
    assert store.read_sync(lambda tx: tx.rate_limits.check("a", later, LIMIT)) is None


def test_a_rested_key_has_its_burst_again_and_no_more(store: Store) -> None:
    """Silence is not saved up beyond one burst."""
    store.write_sync(lambda tx: tx.rate_limits.take("a", NOW, LIMIT))
    later = NOW + 60 * MINUTE
    for _ in range(3):
        assert store.read_sync(lambda tx: tx.rate_limits.check("a", later, LIMIT)) is None
        store.write_sync(lambda tx: tx.rate_limits.take("a", later, LIMIT))
    assert store.read_sync(lambda tx: tx.rate_limits.check("a", later, LIMIT)) == 20


@pytest.mark.parametrize(("requests", "per_seconds"), [(0, 1), (1, 0), (-1, 60), (10, 1e-9)])
def test_a_rate_must_be_one(requests: int, per_seconds: float) -> None:
    """A limit that would allow all or nothing is refused where it is made."""
    with pytest.raises(ValueError, match="not a rate"):
        RateLimit(requests=requests, per_seconds=per_seconds)


def a_policy(version: int) -> StoredPolicy:
    """Return one version of the policy `workers`."""
    return StoredPolicy(
        name="workers", version=version, sha256="ab" * 32, document="{}", created_at=NOW, created_by="alice"
    )


def test_a_policy_version_never_changes(store: Store) -> None:
    """A second policy of the same name and version is refused."""
    store.write_sync(lambda tx: tx.policies.add(a_policy(1)))
    with pytest.raises(AlreadyExists):
        store.write_sync(lambda tx: tx.policies.add(dataclasses.replace(a_policy(1), document="[]")))
    store.write_sync(lambda tx: tx.policies.add(a_policy(2)))
    assert store.read_sync(lambda tx: tx.policies.get("workers@1")) == a_policy(1)
    assert store.read_sync(lambda tx: tx.policies.all()) == (a_policy(1), a_policy(2))


@pytest.mark.parametrize("ref", ["workers@3", "workers", "", "@", "workers@x", "workers@-1", "workers@²"])
def test_an_unknown_policy_is_unknown(store: Store, ref: str) -> None:
    """Whatever the text, there is a policy or `PolicyUnknown`."""
    with pytest.raises(PolicyUnknown):
        store.read_sync(lambda tx: tx.policies.get(ref))


def test_every_assignment_applies(store: Store) -> None:
    """Fleet, cluster, role, machine, in this order and with the digest; another's assignment never."""

    def assign(scope: Any, subject: str, policy: str) -> PolicyAssignment:
        assignment = PolicyAssignment(
            scope=scope, subject=subject, policy=policy, assigned_at=NOW, assigned_by="alice"
        )
        store.write_sync(lambda tx: tx.policies.assign(assignment))
        return assignment

    def applies(machine: str = "m", role: Role | None = Role.LINUX) -> list[str]:
        found = store.read_sync(lambda tx: tx.policies.applicable(machine, role, "c"))
        digests = {pin.partition(" ")[2] for pin in found}
        assert digests <= {a_policy(1).sha256}
        return [pin.partition(" ")[0] for pin in found]

    for number in range(1, 6):
        store.write_sync(lambda tx, n=number: tx.policies.add(a_policy(n)))  # type: ignore[misc]
    for scope, subject in (("machine", "x"), ("role", "windows"), ("cluster", "x")):
        assign(scope, subject, "workers@5")
    assert applies() == []
    made = []
    scopes: list[tuple[Any, str]] = [("machine", "m"), ("cluster", "c"), ("fleet", "*"), ("role", "linux")]
    for number, (scope, subject) in enumerate(scopes, 1):
        made.append(assign(scope, subject, f"workers@{number}"))
    assert applies() == ["workers@3", "workers@2", "workers@4", "workers@1"]
    assert applies("y", None) == ["workers@3", "workers@2"]
    assert set(made) <= set(store.read_sync(lambda tx: tx.policies.assignments()))
    assign("machine", "m", "workers@5")
    assert applies() == ["workers@3", "workers@2", "workers@4", "workers@5"]
    store.write_sync(lambda tx: tx.policies.unassign("machine", "m", at=NOW, by="bob"))
    assert applies() == ["workers@3", "workers@2", "workers@4"]
    with pytest.raises(PolicyUnknown):
        store.write_sync(lambda tx: tx.policies.unassign("machine", "m", at=NOW, by="bob"))
    with pytest.raises(PolicyUnknown):
        assign("fleet", "*", "workers@9")
    assert store.read_sync(lambda tx: tx.policies.assigned("role", "linux")) == made[3]
    assert store.read_sync(lambda tx: tx.policies.assigned("machine", "m")) is None


def test_every_change_of_an_assignment_is_kept(store: Store) -> None:
    """What applied where since when, newest first, with its end; what applied before can be put back."""
    for number in (1, 2):
        store.write_sync(lambda tx, n=number: tx.policies.add(a_policy(n)))  # type: ignore[misc]

    def assign(scope: Any, subject: str, policy: str) -> None:
        assignment = PolicyAssignment(
            scope=scope, subject=subject, policy=policy, assigned_at=NOW, assigned_by="alice"
        )
        store.write_sync(lambda tx: tx.policies.assign(assignment))

    def before() -> str | None:
        return store.read_sync(lambda tx: tx.policies.before("role", "linux"))

    with pytest.raises(PolicyUnknown):
        before()
    assign("role", "linux", "workers@1")
    assert before() is None
    assign("role", "windows", "workers@2")
    assign("role", "linux", "workers@2")
    assert before() == "workers@1"
    store.write_sync(lambda tx: tx.policies.unassign("role", "linux", at=NOW, by="bob"))
    assert before() == "workers@2"
    assign("fleet", "*", "workers@1")

    def history(**where: Any) -> list[tuple[str, str | None, str]]:
        found, cursor = [], None
        while True:
            page = store.read_sync(lambda tx, c=cursor: tx.policies.history(c, 2, **where))  # type: ignore[misc]
            found += [(change.subject, change.policy, change.by) for change in page.items]
            cursor = page.next_cursor
            if cursor is None:
                return found

    linux = [("linux", None, "bob"), ("linux", "workers@2", "alice"), ("linux", "workers@1", "alice")]
    assert history(scope="role", subject="linux") == linux
    windows = ("windows", "workers@2", "alice")
    assert history(scope="role") == [*linux[:2], windows, linux[2]]
    assert history() == [("*", "workers@1", "alice"), *linux[:2], windows, linux[2]]
    assert history(scope="role", subject="nobody") == []
    with pytest.raises(PolicyUnknown):
        assign("fleet", "*", "workers@9")
    assert len(history()) == 5


def test_events_are_handed_out_in_order_one_at_a_time_per_machine(store: Store) -> None:
    """The next event of a machine waits until the one before it is done."""

    def add(tx: Any) -> list[str]:
        return [
            tx.outbox.add(NodeEvent.REGISTERED, "a", {"n": 1}, NOW),
            tx.outbox.add(NodeEvent.ONLINE, "a", {"n": 2}, NOW),
            tx.outbox.add(NodeEvent.LOCKED, "b", {"n": 3}, NOW),
        ]

    ids = store.write_sync(add)
    claimed = store.write_sync(lambda tx: tx.outbox.claim(10, NOW))
    assert [(e.id, e.event, e.machine_id, e.payload, e.attempts) for e in claimed] == [
        (ids[0], NodeEvent.REGISTERED, "a", {"n": 1}, 1),
        (ids[2], NodeEvent.LOCKED, "b", {"n": 3}, 1),
    ]
    assert store.write_sync(lambda tx: tx.outbox.claim(10, NOW)) == ()
    store.write_sync(lambda tx: tx.outbox.done([ids[0]], NOW))
    assert [e.id for e in store.write_sync(lambda tx: tx.outbox.claim(10, NOW))] == [ids[1]]


def test_an_event_not_confirmed_is_due_again(store: Store) -> None:
    """At least once: a claim lapses with its time, and counts its attempts."""
    store.write_sync(lambda tx: tx.outbox.add(NodeEvent.ONLINE, None, {}, NOW))
    hold = timedelta(seconds=10)
    assert len(store.write_sync(lambda tx: tx.outbox.claim(1, NOW, hold=hold))) == 1
    assert store.write_sync(lambda tx: tx.outbox.claim(1, NOW + hold - MICROSECOND)) == ()
    (again,) = store.write_sync(lambda tx: tx.outbox.claim(1, NOW + hold))
    assert again.attempts == 2


def event(number: int, **changes: Any) -> AuditEvent:
    """Return an audit event told apart by its detail."""
    return AuditEvent(
        **({"operator_cn": "alice", "action": "approve", "detail": f"entry {number} é"} | changes)
    )


def test_audit_entries_form_one_chain(store: Store) -> None:
    """Each appended entry follows the last one, also within one unit, and comes back as it was hashed."""
    made = store.write_sync(lambda tx: [tx.audit.append(event(n), NOW) for n in range(3)])
    made.append(store.write_sync(lambda tx: tx.audit.append(event(3, machine_id="m", source_ip="::1"), NOW)))
    walked = store.read_sync(lambda tx: tx.audit.entries(0, 100))
    assert [entry for _, entry in walked] == made
    assert made[0].prev_hash == GENESIS_HASH
    assert verify_chain(walked).valid
    assert store.read_sync(lambda tx: tx.audit.entries(walked[1][0], 1)) == [walked[2]]


def test_an_undone_unit_leaves_no_gap_in_the_chain(store: Store) -> None:
    """An entry whose unit failed never was."""

    def work(tx: Any) -> None:
        tx.audit.append(event(1), NOW)
        raise LookupError

    store.write_sync(lambda tx: tx.audit.append(event(0), NOW))
    with pytest.raises(LookupError):
        store.write_sync(work)
    store.write_sync(lambda tx: tx.audit.append(event(2), NOW))
    verdict = verify_chain(store.read_sync(lambda tx: tx.audit.entries(0, 9)))
    assert (verdict.valid, verdict.entries) == (True, 2)


def test_audit_times_never_run_backwards(store: Store) -> None:
    """An entry made by a clock that was set back, or of another host, bears the time of the one before it."""
    later = NOW + timedelta(minutes=5)
    given = (NOW, later, NOW, later + timedelta(microseconds=1))
    for at in given:
        store.write_sync(lambda tx, at=at: tx.audit.append(event(0), at))  # type: ignore[misc]
    entries = [entry for _, entry in store.read_sync(lambda tx: tx.audit.entries(0, 9))]
    assert [each.timestamp for each in entries] == [rfc3339(at) for at in (NOW, later, later, given[3])]
    assert verify_chain(store.read_sync(lambda tx: tx.audit.entries(0, 9))).valid


def test_audit_entries_are_listed_newest_first_under_filters(store: Store) -> None:
    """Every filter counts; pages together hold each entry once."""
    kinds: list[dict[str, Any]] = [
        {},
        {"machine_id": "m"},
        {"operator_cn": "bob", "machine_id": "m"},
        {"action": "lock", "machine_id": "m"},
    ]
    made = store.write_sync(lambda tx: [tx.audit.append(event(n, **k), NOW) for n, k in enumerate(kinds)])

    def listed(wanted: AuditFilter) -> list[Any]:
        found: list[Any] = []
        cursor: str | None = None
        while True:
            page = store.read_sync(lambda tx, at=cursor: tx.audit.page(at, 2, wanted))  # type: ignore[misc]
            found += [entry for _, entry in page.items]
            cursor = page.next_cursor
            if cursor is None:
                return found

    assert listed(AuditFilter()) == made[::-1]
    assert listed(AuditFilter(machine_id="m")) == made[:0:-1]
    assert listed(AuditFilter(machine_id="m", operator_cn="bob")) == [made[2]]
    assert listed(AuditFilter(action="lock")) == [made[3]]


def test_entries_between_two_instants_are_found_by_halving(store: Store) -> None:
    """The first instant counts, the second does not; several may have one instant; nothing lies outside the log."""
    at = [NOW + timedelta(seconds=n) for n in (0, 0, 5, 5, 5, 9)]
    made = [store.write_sync(lambda tx, n=n, t=t: tx.audit.append(event(n), t)) for n, t in enumerate(at)]  # type: ignore[misc]

    def between(since: int | None, until: int | None) -> list[int]:
        wanted = AuditFilter(
            since=None if since is None else NOW + timedelta(seconds=since),
            until=None if until is None else NOW + timedelta(seconds=until),
        )
        page = store.read_sync(lambda tx: tx.audit.page(None, 50, wanted))
        return [made.index(entry) for _, entry in reversed(page.items)]

    assert between(None, None) == [0, 1, 2, 3, 4, 5]
    assert between(0, 5) == [0, 1]
    assert between(1, 5) == []
    assert between(5, 6) == [2, 3, 4]
    assert between(5, None) == [2, 3, 4, 5]
    assert between(None, 9) == [0, 1, 2, 3, 4]
    assert between(9, None) == [5]
    assert between(10, None) == between(None, -1) == between(6, 5) == []


@pytest.mark.parametrize("filters", [{}, {"action": "lock"}], ids=["all", "by-index"])
def test_a_search_for_a_text_stops_and_says_where(
    store: Store, monkeypatch: pytest.MonkeyPatch, filters: dict[str, Any]
) -> None:
    """It looks at a bounded number of entries, also where none holds the text, and its cursor goes on there."""
    monkeypatch.setattr("attestation.store.audit.WINDOW", 4)

    def fill(tx: Tx) -> None:
        for number in range(1, 13):
            detail = "from 10.0.0.7_A" if number in {2, 6, 7, 11} else "nothing"
            tx.audit.append(event(number, action="lock", detail=detail), NOW)

    store.write_sync(fill)

    def pages(text: str, limit: int = 50) -> list[tuple[list[int], int | None]]:
        found, cursor = [], None
        wanted = AuditFilter(text=text, **filters)
        while True:
            page = store.read_sync(lambda tx, at=cursor: tx.audit.page(at, limit, wanted))  # type: ignore[misc]
            found.append(([number for number, _ in page.items], page.searched_to))
            cursor = page.next_cursor
            if cursor is None:
                return found

    assert pages("10.0.0.7_a") == [([11], 9), ([7, 6], 5), ([2], None)]
    assert pages("0.7", 1) == [([11], 9), ([7], 7), ([6], 3), ([2], None)]
    assert pages("10.0.0%") == pages("nobody says this") == [([], 9), ([], 5), ([], None)]


def test_purge_deletes_what_nothing_needs_and_nothing_else(store: Store) -> None:
    """Just old enough goes, one microsecond younger stays; in batches."""
    old = NOW - 10 * MINUTE - MICROSECOND
    day = timedelta(hours=24)

    def fill(tx: Any) -> str:
        tx.machines.add(MACHINE)
        tx.challenges.issue(a_challenge(1, expires_at=old))
        tx.challenges.issue(a_challenge(2, expires_at=old))
        tx.challenges.issue(a_challenge(3, expires_at=old + MICROSECOND))
        tx.config_tokens.issue(a_config_token(1, expires_at=NOW - day - MICROSECOND))
        tx.config_tokens.issue(a_config_token(2, expires_at=NOW - day))
        tx.config_tokens.issue(a_config_token(3))
        tx.config_tokens.consume(
            a_config_token(3).token_sha256,
            ak_name=MACHINE.tpm.ak_name,
            answer=b"sealed",
            answer_until=NOW - MICROSECOND,
            at=NOW - MINUTE,
        )
        gone, kept, waiting = (tx.outbox.add(NodeEvent.ONLINE, None, {}, NOW - 2 * day) for _ in range(3))
        tx.outbox.done([gone], NOW - day - MICROSECOND)
        tx.outbox.done([kept], NOW - day)
        tx.rate_limits.take("old", NOW - MINUTE, LIMIT)
        tx.rate_limits.take("new", NOW, LIMIT)
        tx.acts.put(an_act(1, done_at=NOW - day - MICROSECOND))
        tx.acts.put(an_act(2, done_at=NOW - day))
        return str(waiting)

    waiting = store.write_sync(fill)
    first = store.write_sync(lambda tx: tx.purge(NOW, batch=1))
    assert first == Purged(
        challenges=1,
        node_challenges=0,
        config_tokens=1,
        config_answers=1,
        outbox=1,
        handovers=0,
        rate_limits=1,
        acts=1,
        logs=0,
    )
    assert first.total == 6
    assert store.write_sync(lambda tx: tx.purge(NOW)).total == 1
    assert store.write_sync(lambda tx: tx.purge(NOW)).total == 0

    def left(tx: Any) -> tuple[Any, ...]:
        spent = tx.config_tokens.get_by_hash(a_config_token(3).token_sha256)
        return (
            [n for n in (1, 2, 3) if tx.challenges.get(a_challenge(n).challenge_id)],
            [n for n in (1, 2, 3) if tx.config_tokens.get_by_hash(a_config_token(n).token_sha256)],
            (spent.answer, spent.answer_until, spent.used_at),
        )

    assert store.read_sync(left) == ([3], [2, 3], (None, None, NOW - MINUTE))
    assert [e.id for e in store.write_sync(lambda tx: tx.outbox.claim(9, NOW))] == [waiting]
    for _ in range(2):
        store.write_sync(lambda tx: tx.rate_limits.take("new", NOW, LIMIT))
    assert store.read_sync(lambda tx: tx.rate_limits.check("new", NOW, LIMIT)) is not None


def an_act(number: int, **changes: Any) -> Act:
    """Return an act of one operator."""
    values: dict[str, Any] = {
        "key": bytes([number]) * 32,
        "operator": b"o" * 32,
        "request": b"r" * 32,
        "entry_id": number,
        "status": 200,
        "answer": "{}",
        "done_at": NOW,
    }
    return Act(**(values | changes))


def test_an_act_is_remembered_until_others_take_its_place(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One row for each key; a further unit of the act says more; beyond the limit the oldest of that operator goes."""
    monkeypatch.setattr("attestation.store.acts.ACTS_OF_ONE", 2)
    other = an_act(9, operator=b"p" * 32, status=None, answer=None)
    for act in (an_act(1), other, an_act(2), an_act(2, entry_id=7, status=None, answer=None), an_act(3)):
        store.write_sync(partial(lambda tx, act: tx.acts.put(act), act=act))
    found = [store.read_sync(partial(lambda tx, n: tx.acts.get(bytes([n]) * 32), n=n)) for n in (1, 2, 3, 9)]
    assert found == [None, an_act(2, entry_id=7, status=None, answer=None), an_act(3), other]


def test_one_statement_loads_what_many_would(store: Store) -> None:
    """The case of an attestation: machine, challenge, narrowest policy and both counters, or what is missing."""
    machine = a_machine()
    challenge = a_challenge(machine_id=machine.machine_id)

    def load(tx: Tx, challenge_id: str = challenge.challenge_id) -> AttestationCase | None:
        return tx.attestations.load(machine.machine_id, challenge_id, address_key="a", machine_key="m")

    assert store.read_sync(load) is None
    store.write_sync(lambda tx: tx.machines.add(machine))
    store.write_sync(lambda tx: tx.challenges.issue(challenge))
    bare = store.read_sync(load)
    assert bare == AttestationCase(
        machine=machine,
        identities={"tpm": machine.tpm},
        challenge=challenge,
        policies=(),
        revision=0,
        address_tat_us=None,
        machine_tat_us=None,
    )
    store.write_sync(lambda tx: tx.rate_limits.take_both(("a", LIMIT), ("m", LIMIT), NOW))
    store.write_sync(lambda tx: tx.rate_limits.take("m", NOW, LIMIT))
    store.write_sync(lambda tx: tx.policies.add(a_policy(1)))
    everywhere = PolicyAssignment(
        scope="fleet", subject=FLEET, policy="workers@1", assigned_at=NOW, assigned_by="alice"
    )
    store.write_sync(lambda tx: tx.policies.assign(everywhere))
    loaded = store.read_sync(load)
    assert loaded is not None
    assert (loaded.machine, loaded.challenge) == (machine, challenge)
    assert loaded.policies == (f"workers@1 {a_policy(1).sha256}",)
    now = to_micros(NOW)
    assert (loaded.address_tat_us, loaded.machine_tat_us) == (
        now + LIMIT.interval_us,
        now + 2 * LIMIT.interval_us,
    )
    other = store.read_sync(lambda tx: load(tx, "0" * 32))
    assert other is not None
    assert other.challenge is None
