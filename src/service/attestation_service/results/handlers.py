"""What operators ask about one stored result."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from datetime import timedelta
from typing import Annotated, Final, Literal

from fastapi import Path, Query, Response

from attestation.api import ResultPage, ResultReport
from attestation.appraisal import KINDS
from attestation.errors import PolicyInvalid, PolicyUnknown, ResultUnknown, StoreUnavailable, Unavailable
from attestation.machines import Machine
from attestation.reference import IDENTITY_ONLY, identifier
from attestation.results.ear import MEDIA_TYPE, TYP, Profile, ear_claims
from attestation.store import StoredResult, Tx
from attestation.wire import b64encode
from attestation_service import __version__
from attestation_service.resources import Res, Resources
from attestation_service.results.presentation import Kept, result_detail, result_report
from attestation_service.routing.parameters import Cursor, Id, Limit
from attestation_service.verifier import policy

Number = Annotated[int, Path(ge=1, le=(1 << 63) - 1, description="`result_id` of a result")]
ProfileWord = Literal["draft-04", "veraison-2023"]
_PROFILES: Final = {"draft-04": Profile.EAR_04, "veraison-2023": Profile.VERAISON_2023}


async def results(machine_id: Id, cursor: Cursor = None, limit: Limit = 50, *, res: Res) -> ResultPage:
    """List attestation results of a machine with every check, newest first.

    Changes only: an unchanged result renews the lease and adds nothing here.

    Raises:
        MachineUnknown: No such machine.
    """

    def work(tx: Tx) -> ResultPage:
        tx.machines.require(machine_id)
        page = tx.results.page(machine_id, cursor, limit)
        return ResultPage(items=[result_detail(r) for r in page.items], next_cursor=page.next_cursor)

    return await res.store.read(work)


async def report(machine_id: Id, result_id: Number, *, res: Res) -> ResultReport:
    """Show one result, what it was judged from, and what explains a change.

    Compared with the last Verified result before it; each PCR that differs is explained in words.

    Raises:
        MachineUnknown: No such machine.
        ResultUnknown: No such result of it is kept.
    """

    def load(tx: Tx) -> tuple[Kept, Kept | None]:
        tx.machines.require(machine_id)
        found = tx.results.get(machine_id, result_id)
        before = tx.results.verified_before(machine_id, result_id)
        return _kept(tx, found), None if before is None else _kept(tx, before)

    now, before = await res.store.read(load)
    # Two logs of a megabyte take longer to read than the loop may wait.
    return await asyncio.to_thread(result_report, now, before)


async def event_log(machine_id: Id, result_id: Number, *, res: Res) -> Response:
    """Fetch the boot event log of a result.

    Bytes as the machine sent them: what is in it is for parsers, not for browsers.
    """
    return await _download(machine_id, result_id, "event-log", res)


async def ima_log(machine_id: Id, result_id: Number, *, res: Res) -> Response:
    """Fetch the IMA measurement list of a result.

    Bytes as the machine sent them.
    """
    return await _download(machine_id, result_id, "ima-log", res)


async def _download(
    machine_id: str, result_id: int, kind: Literal["event-log", "ima-log"], res: Resources
) -> Response:
    """Return a log of a result.

    Raises:
        MachineUnknown: No such machine.
        ResultUnknown: No such result of it is kept, or no such log.
    """

    def load(tx: Tx) -> bytes | None:
        tx.machines.require(machine_id)
        evidence = tx.results.get(machine_id, result_id).evidence
        sha256 = evidence.event_log_sha256 if kind == "event-log" else evidence.ima_log_sha256
        return None if sha256 is None else tx.logs.get(sha256)

    found = await res.store.read(load)
    if found is None:
        raise ResultUnknown(f"no {kind} of result {result_id} is kept")
    return Response(
        found,
        media_type="application/octet-stream",
        headers={"Content-Disposition": "attachment"},
    )


async def token(
    machine_id: Id,
    result_id: Number,
    profile: Annotated[ProfileWord, Query(description="Which form of EAR")] = "draft-04",
    *,
    checks: Annotated[bool, Query(description="Name every check: not for the machine itself")] = False,
    res: Res,
) -> Response:
    """Sign one result for others to read.

    It ends when trust in the result did.

    Raises:
        MachineUnknown: No such machine.
        ResultUnknown: No such result of it is kept, or it answered no challenge that is known.
    """

    def load(tx: Tx) -> tuple[Machine, StoredResult, int, str | None]:
        machine = tx.machines.require(machine_id)
        found = tx.results.get(machine_id, result_id)
        return machine, found, _max_age_seconds(tx, found), _asked(tx, machine, found, res)

    machine, stored, seconds, asked = await res.store.read(load)
    result, evidence = stored.result, stored.evidence
    if evidence.nonce is None or evidence.assurance is None:
        raise ResultUnknown("this result was kept without its challenge, so no token can be made of it")
    claims = ear_claims(
        result,
        machine_id=machine_id,
        ek_fingerprint=machine.fingerprint,
        assurance=evidence.assurance,
        nonce=b64encode(evidence.nonce),
        issuer=res.settings.service_url,
        expires_at=result.at + timedelta(seconds=seconds),
        build=__version__,
        profile=_PROFILES[profile],
        policy_sha256=evidence.policy_sha256,
        policy_identifier=asked,
        tell_checks=checks,
        codes=_CODES,
    )
    signed = await asyncio.to_thread(res.signer.sign_jwt, claims, typ=TYP)
    return Response(signed, media_type=MEDIA_TYPE)


_CODES: Final = {
    check.name: check.code.value for kind in KINDS.values() for check in kind.checks if check.code is not None
}
"""Name of a check -> what its failure is called to machines."""


def _kept(tx: Tx, found: StoredResult) -> Kept:
    evidence = found.evidence
    return Kept(
        result=found,
        event_log=_log(tx, evidence.event_log_sha256),
        ima_log=_log(tx, evidence.ima_log_sha256) is not None,
    )


def _log(tx: Tx, sha256: str | None) -> bytes | None:
    try:
        return None if sha256 is None else tx.logs.get(sha256)
    except StoreUnavailable:
        # Not what we wrote. The result stands without it.
        return None


def _asked(tx: Tx, machine: Machine, found: StoredResult, res: Resources) -> str | None:
    """Return the identifier of what was asked; None where another policy has come into force since."""
    with suppress(Unavailable):
        in_force = policy.in_force(tx, machine, res.settings)
        if in_force.sha256 == found.evidence.policy_sha256:
            return identifier(in_force)
    return None


def _max_age_seconds(tx: Tx, found: StoredResult) -> int:
    """Return how long the result can be relied on at least.

    Policies do not change, so what it names says so still; which of them several operators agreed on may be another by
    now, so the shortest of them counts: a token never outlives the lease.
    """
    refs = (found.result.policy or IDENTITY_ONLY.ref).split("+")
    try:
        return min(policy.stored(tx, ref).max_age_seconds for ref in refs)
    except (PolicyUnknown, PolicyInvalid):
        return IDENTITY_ONLY.max_age_seconds
