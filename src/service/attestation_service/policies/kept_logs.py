"""The measurement logs that stored evidence is judged by: read in a unit, parsed on a thread, each once.

What rules say of a log is a pure function of log, policy and quoted values, which many machines have the same. It
is small, so it is remembered, and the next page parses nothing that this one has.
"""

# Algorithms for: digest
from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable
from typing import Final

from attestation.appraisal.tpm.again import judge_stored_list, judge_stored_log
from attestation.errors import MalformedEvidence, StoreUnavailable
from attestation.evidence import ima_log
from attestation.evidence.event_log import ReplayedLog
from attestation.reference import Policy
from attestation.results import Outcome
from attestation.store import Capture, Tx
from attestation_service.verifier.measurements import Replays

MOST_LOGS: Final = 128
"""So many logs are parsed for one page; then it ends early, because each takes milliseconds."""
MOST_BYTES: Final = 8 << 20
"""So long are they together."""
MOST_REMEMBERED: Final = 20_000
_REMEMBERED_BYTES: Final = 8 << 20
_IMA_PCRS: Final = range(11)

_Key = tuple[str, str, bytes]
_outcomes: Final[dict[_Key, tuple[Outcome, ...]]] = {}


class KeptLogs:
    """The logs of one page.

    Args:
        known: What attestations remember; it is asked and not filled, so that nothing that is in use makes room.
    """

    def __init__(self, known: Replays) -> None:
        self._known, self._own = known, Replays(_REMEMBERED_BYTES)
        self._logs: dict[str, bytes] = {}
        self._size_bytes = 0

    @property
    def is_full(self) -> bool:
        """True where a page should end before it needs another log."""
        return len(self._logs) >= MOST_LOGS or self._size_bytes >= MOST_BYTES

    def lacks(self, capture: Capture, policy: Policy) -> list[str]:
        """Return which logs (SHA-256, hex) must be read before *capture* can be judged under *policy*."""
        event_log, measurements = _event_log_key(capture, policy), _list_key(capture, policy)
        wanted = []
        if event_log is not None and self._known.known(event_log[0], policy.tpm.bank) is None:
            wanted.append(event_log)
        if measurements is not None:
            wanted.append(measurements)
        return [key[0] for key in wanted if key not in _outcomes and key[0] not in self._logs]

    def fetch(self, tx: Tx, sha256: str) -> None:
        """Read a log, where it is kept and is what it was."""
        with contextlib.suppress(StoreUnavailable):
            log = tx.logs.get(sha256)
            if log is not None:
                self._logs[sha256] = log
                self._size_bytes += len(log)

    def of_event_log(self, capture: Capture, policy: Policy) -> tuple[Outcome, ...] | None:
        """Return what the rules of *policy* say of the event log of *capture*; None where it is not kept."""
        key = _event_log_key(capture, policy)
        if key is None or key in _outcomes:
            return None if key is None else _outcomes[key]
        replayed = self._replayed(key[0], policy.tpm.bank)
        if replayed is None:
            return None
        return _remember(key, judge_stored_log(replayed, policy, capture.pcr_values))

    def of_list(self, capture: Capture, policy: Policy) -> tuple[Outcome, ...] | None:
        """Return what the rules of *policy* say of the IMA list of *capture*; None where it is not kept."""
        key = _list_key(capture, policy)
        if key is None or key in _outcomes:
            return None if key is None else _outcomes[key]
        log = self._logs.get(key[0])
        if log is None:
            return None
        try:
            parsed = ima_log.parse(log)
        except MalformedEvidence:
            return None
        return _remember(key, judge_stored_list(parsed, policy, capture.pcr_values))

    def _replayed(self, sha256: str, bank: int) -> ReplayedLog | None:
        """Return what a log replays to; None where it is not kept, or says nothing of the bank."""
        found = self._known.known(sha256, bank) or self._own.known(sha256, bank)
        if found is None and sha256 in self._logs:
            with contextlib.suppress(MalformedEvidence):
                found = self._own.replay(self._logs[sha256], bank)
        return found


def _remember(key: _Key, outcomes: tuple[Outcome, ...]) -> tuple[Outcome, ...]:
    if len(_outcomes) >= MOST_REMEMBERED:
        _outcomes.clear()
    _outcomes[key] = outcomes
    return outcomes


def _event_log_key(capture: Capture, policy: Policy) -> _Key | None:
    """Return what the outcome of the rules over an event log depends on; None where there are none, or no log."""
    if policy.tpm.event_log is None or capture.event_log_sha256 is None:
        return None
    return _key(capture.event_log_sha256, policy, capture, policy.tpm.log_pcrs)


def _list_key(capture: Capture, policy: Policy) -> _Key | None:
    """Return the same for the rules over an IMA list."""
    if policy.tpm.ima is None or capture.ima_log_sha256 is None:
        return None
    return _key(capture.ima_log_sha256, policy, capture, _IMA_PCRS)


def _key(sha256: str, policy: Policy, capture: Capture, pcrs: Iterable[int]) -> _Key:
    # Each value with its PCR: what one lacks must not pass for what another has.
    quoted = [f"{pcr}:{value.hex()}" for pcr in pcrs if (value := capture.pcr_values.get(pcr)) is not None]
    return sha256, policy.sha256, hashlib.sha256(" ".join(quoted).encode()).digest()
