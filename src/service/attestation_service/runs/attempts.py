"""What a run asks: its policy, the nonce that hardware is to sign, and how long for."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Final, Literal

from attestation.api import RunChallengeShown, RunIdentity, RunResult
from attestation.errors import RunDiffers
from attestation.reference import Policy
from attestation.reference.attestation_policy import policy_of
from attestation.report_data import run_nonce
from attestation.store import Run, RunAttempt
from attestation.wire import b64encode
from attestation_service.settings import Settings

MOST_SECONDS: Final = 60
"""A challenge lives no longer, whatever the setting says (CONFIDENTIAL §1)."""
ID_BYTES: Final = 16
RANDOM_BYTES: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptContext:
    """A run and one attempt of it, with what both mean.

    Args:
        run: The run.
        attempt: The attempt.
        policy: What the answer is judged by.
        enforced: The policy is there, and does not only report.
        nonce: 32 bytes; what hardware signs follows from it.
    """

    run: Run
    attempt: RunAttempt
    policy: Policy
    enforced: bool
    nonce: bytes

    @property
    def mode(self) -> Literal["enforce", "report"]:
        """What its policy is for."""
        return "enforce" if self.enforced else "report"


def context_of(run: Run, attempt: RunAttempt) -> AttemptContext:
    """Return what *run* asks with *attempt*."""
    policy, enforced = policy_in(run.policy, run.backend)
    return AttemptContext(
        run=run, attempt=attempt, policy=policy, enforced=enforced, nonce=nonce_of(run, attempt.random)
    )


def nonce_of(run: Run, random: bytes) -> bytes:
    """Return the nonce of a run for a challenge's *random*: the caller's is mixed in, never used instead."""
    return run_nonce(random, run.run_uid, (run.nonce or "").encode())


@lru_cache(maxsize=256)
def policy_in(text: str | None, backend: str) -> tuple[Policy, bool]:
    """Return the policy that *text* is, and whether it is enforced; a pure function, therefore remembered.

    Raises:
        PolicyInvalid: Nothing can be judged by it.
    """
    spec: dict[str, Any] | None = json.loads(text) if text is not None else None
    return policy_of(spec, backend=backend), spec is not None and spec.get("mode") != "report"


def new_attempt(run: Run, number: int, settings: Settings, at: datetime, *, left: timedelta) -> RunAttempt:
    """Return the next attempt of *run*, of that *number*; *left* is the time until its deadline."""
    seconds = min(MOST_SECONDS, settings.challenge_ttl_seconds)
    return RunAttempt(
        challenge_id=secrets.token_bytes(ID_BYTES).hex(),
        run_id=run.run_id,
        attempt=number,
        random=secrets.token_bytes(RANDOM_BYTES),
        issued_at=at,
        expires_at=at + min(timedelta(seconds=seconds), left),
    )


def shown(run: Run, attempt: RunAttempt) -> RunChallengeShown:
    """Return the challenge of an attempt as relying parties compute it again."""
    return RunChallengeShown(
        id=attempt.challenge_id,
        random=b64encode(attempt.random),
        nonce=b64encode(nonce_of(run, attempt.random)),
        expires_at=attempt.expires_at,
    )


def identity_of(run: Run) -> RunIdentity:
    """Return which run *run* is, as it is told within what was judged."""
    return RunIdentity(
        cluster_id=run.cluster_id,
        uid=run.run_uid,
        namespace=run.namespace,
        name=run.name,
        node_name=run.node_name,
        node_uid=run.node_uid,
        backend=run.backend,
        nonce=run.nonce,
        deadline=run.deadline,
    )


def result_of(run: Run, attempt: RunAttempt) -> RunResult | None:
    """Return what was judged in an attempt of *run*, None where nothing was.

    Raises:
        RunDiffers: It was judged as another run: of another node, say, by who wrote one into the row and took it back.
    """
    if attempt.result is None:
        return None
    found = RunResult.model_validate_json(attempt.result)
    if found.run != identity_of(run) or (found.policy_id, found.policy_source) != (
        run.policy_id,
        run.policy_source,
    ):
        raise RunDiffers("the run is not what it was when its attempt was judged")
    return found
