"""How CA keys on tokens of clusters are: what ends, what is late, what is being signed. For metrics and `doctor`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import and_, bindparam, case, exists, func, literal, or_, select, text

from attestation.clock import from_micros, to_micros
from attestation.store.sql import Executor, Prepared
from attestation.store.tables import (
    LIVE_HSM_CERTIFICATE,
    RESERVED_CERTIFICATE,
    HSMCertificateRow,
    HSMCRLRow,
    HSMIssuerRow,
    table_of,
)

_I = table_of(HSMIssuerRow)
_T = table_of(HSMCertificateRow)
_L = table_of(HSMCRLRow)


@dataclass(frozen=True, slots=True, kw_only=True)
class HSMState:
    """How the CA keys of a cluster are of which a certificate is good still.

    Args:
        first_end: When the first CA certificate of those that sign ends; None where none signs.
        overdue: Of how many the revocation list is over, or was never made.
        open: How many serial numbers are taken, and neither used nor given up.
    """

    first_end: datetime | None
    overdue: int
    open: int


_NEEDED = exists(
    select(literal(1)).where(
        _T.c.issuer_id == _I.c.issuer_id, _T.c.not_after > bindparam("at"), text(LIVE_HSM_CERTIFICATE)
    )
)
_IS_LATE = or_(_L.c.next_update.is_(None), _L.c.next_update <= bindparam("at"))
_STATES = Prepared(
    select(
        _I.c.cluster_id,
        func.min(case((_I.c.superseded_at.is_(None), _I.c.not_after))),
        func.sum(case((and_(_IS_LATE, _I.c.not_after > bindparam("at")), 1), else_=0)),
    )
    .select_from(_I.outerjoin(_L, _L.c.issuer_id == _I.c.issuer_id))
    .where(_NEEDED)
    .group_by(_I.c.cluster_id)
)
_OPEN = Prepared(
    select(_I.c.cluster_id, func.count())
    .join(_T, _T.c.issuer_id == _I.c.issuer_id)
    .where(text(RESERVED_CERTIFICATE))
    .group_by(_I.c.cluster_id)
)


def hsm_states(sql: Executor, at: datetime) -> Mapping[str, HSMState]:
    """Return how the CA keys of each cluster are that has any in use at *at*."""
    taken = {row[0]: int(row[1]) for row in sql.rows(_OPEN)}
    return {
        row[0]: HSMState(
            first_end=None if row[1] is None else from_micros(row[1]),
            overdue=int(row[2]),
            open=taken.get(row[0], 0),
        )
        for row in sql.rows(_STATES, at=to_micros(at))
    }
