"""Stored attestation results: the last few of each machine, every check with expected and found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final

from sqlalchemy import BindParameter, bindparam, delete, func, insert, select

from attestation.errors import ResultUnknown
from attestation.results import Assurance, AttestationResult, Verdict
from attestation.results.appraised import appraised
from attestation.store.codec import binds, codec
from attestation.store.pages import Page, before_id, checked_limit, page_of
from attestation.store.sql import Executor, Prepared, Row
from attestation.store.tables import ResultRow, table_of
from attestation.tpm.hashes import bank_alg

_T = table_of(ResultRow)
_C = _T.c


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEvidence:
    """What a result was judged from, so that it can be explained, and judged again under another policy.

    Args:
        pcr_bank: Name of the bank, e.g. `sha256`; None where no quote was verified.
        pcr_values: Quoted values: index -> digest.
        event_log_sha256: Names the event log that led to them, hex.
        ima_log_sha256: Names the IMA list, hex.
        policy_sha256: SHA-256 of the effective policy, hex.
        assurance: How well the identity was vouched for then.
        bundle_sha256: SHA-256 of the manifest of the trust bundle in force then, hex.
        nonce: The 32 bytes that were quoted.
        ek_key_attested: The EK itself vouched for AK and firmware in this attestation.
    """

    pcr_bank: str | None = None
    pcr_values: Mapping[int, bytes] = field(default_factory=dict)
    event_log_sha256: str | None = None
    ima_log_sha256: str | None = None
    policy_sha256: str | None = None
    assurance: Assurance | None = None
    bundle_sha256: str | None = None
    nonce: bytes | None = None
    ek_key_attested: bool | None = None


NO_EVIDENCE: Final = StoredEvidence()


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredResult:
    """One attestation result with its row id and the evidence behind it."""

    result_id: int
    machine_id: str
    result: AttestationResult
    evidence: StoredEvidence


_READ = [
    _C.id.label("result_id"),
    _C.appraised.label("boot_state_appraised"),
    func.coalesce(_C.pcr_values, "{}").label("pcr_values"),
    *(c for c in _C if c.name not in ("id", "appraised", "pcr_values")),
]
_ROW = codec(StoredResult, _READ)


def _decode(row: Row) -> StoredResult:
    found = _ROW.decode(row)
    if row[1] is not None:
        return found
    # Earlier versions stored only whether anything was appraised.
    evidence, result = found.evidence, found.result
    bank = evidence.pcr_bank
    then = () if bank is None else appraised(result.outcomes, evidence.pcr_values, bank_alg(bank))
    return replace(found, result=replace(result, boot_state_appraised=then))


_ADD = Prepared(
    insert(_T).values({"appraised": bindparam("boot_state_appraised"), **binds(_C, "id", "appraised")})
)
_OF_MACHINE = _C.machine_id == bindparam("machine_id")
_FIRST_TOO_OLD = select(_C.id).where(_OF_MACHINE).order_by(_C.id.desc()).limit(1).offset(bindparam("kept"))
_TRIM = Prepared(delete(_T).where(_OF_MACHINE, _C.id <= _FIRST_TOO_OLD.scalar_subquery()))
_PAGE = Prepared(
    select(*_READ)
    .where(_OF_MACHINE, _C.id < bindparam("before"))
    .order_by(_C.id.desc())
    .limit(bindparam("rows"))
)
_GET = Prepared(select(*_READ).where(_OF_MACHINE, _C.id == bindparam("result_id")))
_VERIFIED_BEFORE = Prepared(
    select(*_READ)
    .where(_OF_MACHINE, _C.id < bindparam("before"), _C.verdict == Verdict.VERIFIED.value)
    .order_by(_C.id.desc())
    .limit(1)
)


@lru_cache(maxsize=16)
def _newest_of(machines: int) -> Prepared:
    named: list[BindParameter[str]] = [bindparam(f"machine_{i}") for i in range(machines)]
    newest = select(func.max(_C.id)).where(_C.machine_id.in_(named)).group_by(_C.machine_id)
    return Prepared(select(*_READ).where(_C.id.in_(newest)))


class Results:
    """The result history, inside one unit of work.

    Args:
        sql: Where to run statements.
        kept: Rows kept per machine; older ones make room.
    """

    __slots__ = ("_kept", "_sql")

    def __init__(self, sql: Executor, kept: int) -> None:
        self._sql = sql
        self._kept = kept

    def add(self, machine_id: str, result: AttestationResult, evidence: StoredEvidence = NO_EVIDENCE) -> None:
        """Store a result of a machine with its evidence and drop what leaves its ring."""
        stored = StoredResult(result_id=0, machine_id=machine_id, result=result, evidence=evidence)
        self._sql.do(_ADD, **_ROW.encode(stored))
        self._sql.do(_TRIM, machine_id=machine_id, kept=self._kept)

    def page(self, machine_id: str, cursor: str | None, limit: int) -> Page[StoredResult]:
        """Return results of one machine, newest first.

        Raises:
            RequestInvalid: *cursor* or *limit* cannot be right.
        """
        rows = self._sql.rows(
            _PAGE,
            machine_id=machine_id,
            before=before_id("results", cursor),
            rows=checked_limit(limit) + 1,
        )
        return page_of("results", rows, limit, _decode)

    def newest_of_each(self, machine_ids: Sequence[str]) -> dict[str, StoredResult]:
        """Return the newest result of those of *machine_ids* that have any, in one query."""
        if not machine_ids:
            return {}
        # Statements are compiled for powers of two; the last id fills up.
        size = 1 << (len(machine_ids) - 1).bit_length()
        padded = [*machine_ids, *[machine_ids[-1]] * (size - len(machine_ids))]
        named = {f"machine_{i}": machine_id for i, machine_id in enumerate(padded)}
        found = map(_decode, self._sql.rows(_newest_of(size), **named))
        return {each.machine_id: each for each in found}

    def get(self, machine_id: str, result_id: int) -> StoredResult:
        """Return one result of a machine.

        Raises:
            ResultUnknown: There is none of this number, it is another machine's, or newer ones took its place.
        """
        row = self._sql.row(_GET, machine_id=machine_id, result_id=result_id)
        if row is None:
            raise ResultUnknown(f"no result {result_id} of this machine; only the newest are kept")
        return _decode(row)

    def verified_before(self, machine_id: str, result_id: int) -> StoredResult | None:
        """Return the last Verified result of a machine before *result_id*; None where none is kept."""
        row = self._sql.row(_VERIFIED_BEFORE, machine_id=machine_id, before=result_id)
        return None if row is None else _decode(row)
