"""Properties of quotes, credentials, selections, times, policies and the audit chain."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attestation.audit import GENESIS_HASH, AuditEntry, AuditEvent, chain, entry_hash, verify_chain
from attestation.clock import from_micros, parse_rfc3339, rfc3339, to_micros
from attestation.envelope import EnvelopeNotForUs, open_envelope, seal
from attestation.errors import AttestationError, MalformedEvidence, PolicyInvalid
from attestation.evidence import tpm_quote
from attestation.machines import Status, Transition, next_status
from attestation.reference import parse_policy
from attestation.results import Failed, Flagged, Outcome, Passed, Undecided, Verdict, conclude
from attestation.tpm import PCRSelection, parse_public
from attestation.tpm.credential import unwrap_identity, wrap_identity
from attestation.wire import Reader, b64decode, b64encode, canonical_json
from tests.fuzz.targets import POLICY
from tests.vectors import forge

SHA256 = forge.SHA256
KEY = tpm_quote.enrolled_key(forge.AKS["p256"].public, forge.ek_public("L-2"))
SELECTION = PCRSelection.from_names({"sha256": forge.SELECTED})
VALUES = {SHA256: {i: forge.PCRS[i] for i in forge.SELECTED}}
ATTEST, SIGNATURE = forge.quote("p256")
EK = parse_public(forge.ek_public("L-2"))
TIMES = st.datetimes(timezones=st.just(UTC))
TEXT = st.text(max_size=40)


@given(st.binary(max_size=200), st.binary(max_size=100), st.binary(max_size=64))
def test_nothing_but_a_signed_quote_is_verified(attest: bytes, signature: bytes, challenge: bytes) -> None:
    """Arbitrary bytes in any place: never claims."""
    for a, s in ((attest, signature), (ATTEST, signature), (attest, SIGNATURE)):
        with pytest.raises(AttestationError):
            tpm_quote.verify(
                tpm_quote.parse(a, s), challenge=challenge, key=KEY, selection=SELECTION, pcr_values=VALUES
            )


@given(st.dictionaries(st.integers(0, 31), st.binary(max_size=70), max_size=12))
def test_no_other_values_fit_a_quote(values: dict[int, bytes]) -> None:
    """Any set of indices with any bytes but the quoted ones is refused."""
    if values == VALUES[SHA256]:
        return
    with pytest.raises(AttestationError):
        tpm_quote.verify(
            tpm_quote.parse(ATTEST, SIGNATURE),
            challenge=forge.NONCE,
            key=KEY,
            selection=SELECTION,
            pcr_values={SHA256: values},
        )


@given(
    st.dictionaries(
        st.sampled_from(["sha1", "sha256", "sha384", "sha512", "sm3_256"]),
        st.sets(st.integers(0, 23), min_size=1),
        min_size=1,
        max_size=4,
    )
)
def test_selections_there_and_back(names: dict[str, set[int]]) -> None:
    """Names to bytes to names, order of the banks included."""
    selection = PCRSelection.from_names(names)
    reader = Reader(selection.serialise(), "selection")
    assert PCRSelection.read(reader) == selection
    reader.end()
    assert selection.to_names() == {bank: sorted(pcrs) for bank, pcrs in names.items()}


@given(st.binary(min_size=1, max_size=32), st.binary(min_size=32, max_size=32), st.binary(max_size=70))
def test_credentials_there_and_back(secret: bytes, seed: bytes, name: bytes) -> None:
    """Any secret for any Name opens under the same seed and Name, and under no other."""
    blob = wrap_identity(EK, seed, name, secret)
    assert unwrap_identity(EK, seed, name, blob) == secret
    for other_seed, other_name in ((bytes([seed[0] ^ 1]) + seed[1:], name), (seed, name + b"\0")):
        with pytest.raises(MalformedEvidence):
            unwrap_identity(EK, other_seed, other_name, blob)


@given(st.binary(max_size=200), st.binary(min_size=32, max_size=32))
def test_envelopes_open_under_their_key_only(config: bytes, key: bytes) -> None:
    """Any plaintext, any other key: refused."""
    envelope = seal(config, ek=EK, ak_name=forge.AKS["p256"].name, machine_id="m", token_id="t")
    with pytest.raises(EnvelopeNotForUs):
        open_envelope(envelope, key, machine_id="m")


@given(st.binary(max_size=100))
def test_base64_there_and_back(data: bytes) -> None:
    """What is written is read."""
    assert b64decode(b64encode(data), "field") == data


@given(TIMES)
def test_times_there_and_back(at: datetime) -> None:
    """Both forms keep every microsecond."""
    assert from_micros(to_micros(at)) == at
    assert parse_rfc3339(rfc3339(at)) == at


@given(TIMES, TIMES)
def test_written_times_sort_like_instants(a: datetime, b: datetime) -> None:
    """The canonical form can be compared as text."""
    assert (rfc3339(a) < rfc3339(b)) == (a < b)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(TEXT, JSON, max_size=4))
def test_canonical_json_is_one_form(value: dict[str, Any]) -> None:
    """Reading it and writing it again changes nothing, in whatever order the members came."""
    written = canonical_json(value)
    assert canonical_json(json.loads(written)) == written
    assert canonical_json(dict(reversed(value.items()))) == written
    assert written.isascii()


@given(
    st.dictionaries(
        st.sampled_from([*POLICY, "secure_boot", "boot", "ima", "firmware", "assurance", "mode", "x"]),
        JSON | st.floats() | st.dictionaries(TEXT, JSON | st.floats(), max_size=2),
        max_size=4,
    )
)
def test_policies_fail_in_one_way_only(changes: dict[str, Any]) -> None:
    """A good policy with any members replaced is a policy or PolicyInvalid."""
    try:
        policy = parse_policy({**POLICY, **changes})
    except PolicyInvalid:
        return
    assert policy.demands
    assert parse_policy(policy.document) == policy


@given(st.dictionaries(st.integers(0, 23), st.binary(max_size=33), max_size=24))
def test_a_policy_holds_only_for_its_values(values: dict[int, bytes]) -> None:
    """Every outcome is what the rule by itself says, and all of them stand in the result."""
    policy = parse_policy(POLICY)
    outcomes = policy.tpm.judge(values)
    assert list(outcomes) == [rule.judge(values.get(rule.index)) for rule in policy.tpm.rules]
    accepted = {bytes.fromhex(text) for text in POLICY["pcrs"]["7"]["any_of"]}  # type: ignore[index]  # as written there
    assert any(isinstance(o, Failed) for o in outcomes) == (values.get(7) not in accepted)


OUTCOMES: st.SearchStrategy[Outcome] = st.one_of(
    st.builds(Passed, TEXT),
    st.builds(Failed, TEXT, TEXT, TEXT),
    st.builds(Flagged, TEXT, TEXT),
    st.builds(Undecided, TEXT, TEXT),
)


@given(st.lists(OUTCOMES, max_size=6), OUTCOMES)
def test_no_further_check_makes_a_bad_result_good(outcomes: list[Outcome], more: Outcome) -> None:
    """Failed stays Failed; Verified comes only from something that passed."""
    before, after = conclude(outcomes), conclude([*outcomes, more])
    assert before is not Verdict.FAILED or after is Verdict.FAILED
    if after is Verdict.VERIFIED and before is not Verdict.VERIFIED:
        assert isinstance(more, Passed)


@given(
    st.lists(st.sampled_from([Transition.ACTIVATE, Transition.ATTEST, Transition.ACKNOWLEDGE]), max_size=8)
)
def test_no_act_of_a_machine_leaves_what_an_operator_decided(operations: list[Transition]) -> None:
    """Whatever a machine does, in any order (FAULTS R5)."""
    for start in (Status.PENDING_APPROVAL, Status.LOCKED, Status.REVOKED, Status.REJECTED):
        status = start
        for operation in operations:
            try:
                status = next_status(status, operation)
            except AttestationError:
                continue
        assert status is start


EVENTS = st.builds(
    AuditEvent,
    operator_cn=TEXT,
    action=TEXT,
    operator_sub=st.none() | TEXT,
    machine_id=st.none() | TEXT,
    prev_state=st.none() | TEXT,
    new_state=st.none() | TEXT,
    detail=st.none() | st.text(),
    source_ip=st.none() | TEXT,
)


def chained(events: list[AuditEvent]) -> list[tuple[int, AuditEntry]]:
    found: list[tuple[int, AuditEntry]] = []
    for i, event in enumerate(events):
        last = found[-1][1].entry_hash if found else GENESIS_HASH
        found.append((i, chain(event, at=datetime(2026, 1, 1, tzinfo=UTC), prev_hash=last)))
    return found


@given(st.lists(EVENTS, max_size=6))
def test_what_is_chained_verifies(events: list[AuditEvent]) -> None:
    """Whatever was said, by whom, in which characters."""
    entries = chained(events)
    verdict = verify_chain(entries)
    assert (verdict.valid, verdict.entries) == (True, len(events))
    assert all(entry_hash(entry) == entry.entry_hash for _, entry in entries)


@given(st.lists(EVENTS, min_size=1, max_size=5), st.data())
def test_what_was_changed_does_not(events: list[AuditEvent], data: st.DataObject) -> None:
    """Any member of any entry, to any other text."""
    entries = chained(events)
    at = data.draw(st.integers(0, len(entries) - 1))
    row, entry = entries[at]
    name = data.draw(st.sampled_from(sorted(asdict(entry).keys() - {"format"})))
    value: Any = data.draw(st.none() | TEXT)
    if value == getattr(entry, name):
        return
    changes: dict[str, Any] = {name: value}
    entries[at] = (row, replace(entry, **changes))
    verdict = verify_chain(entries)
    assert (verdict.valid, verdict.first_invalid_id) == (False, row)
