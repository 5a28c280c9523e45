"""Evidence for keys that CA keys are wrapped for: nonces, QuoteAttestations, and what became of each key."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import bindparam, delete, func, insert, literal, or_, select, update

from attestation.clock import to_micros
from attestation.errors import ChallengeExpired, ChallengeUnknown, ChallengeUsed
from attestation.hsm import Purpose, QuoteVerdict, Step
from attestation.store.codec import binds, codec
from attestation.store.pages import Page, before_id, checked_limit, page_of
from attestation.store.sql import Executor, Prepared
from attestation.store.tables import HSMNonceRow, HSMQuoteRow, table_of

_N = table_of(HSMNonceRow)
_Q = table_of(HSMQuoteRow)


@dataclass(frozen=True, slots=True, kw_only=True)
class HSMNonce:
    """A nonce of evidence.

    Args:
        nonce_sha256: Of its 32 bytes, hex.
        cluster_id: In which cluster.
        signer_uid: For which issuer.
        purpose: And for what.
        issued_at: When.
        expires_at: From this instant on it is no good.
        quote_uid: Which QuoteAttestation has it, or None.
        used_at: When it was spent, or None.
        used_by: SHA-256 of the bundle that spent it, hex, or None.
        evidence_type: Which type of evidence was asked for.
        policy_ref: By which policy it is judged, `name@version` or the newest of `name`; None: by none.
        ak_name: Name of the attestation key that certifies, where it is a TPM that does.
    """

    nonce_sha256: str
    cluster_id: str
    signer_uid: str
    purpose: Purpose
    issued_at: datetime
    expires_at: datetime
    quote_uid: str | None = None
    used_at: datetime | None = None
    used_by: str | None = None
    evidence_type: str
    policy_ref: str | None = None
    ak_name: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HSMQuote:
    """A QuoteAttestation.

    Args:
        cluster_id: In which cluster.
        uid: `metadata.uid`; unique in the cluster.
        namespace: Of its object.
        name: Of its object.
        content_sha256: Over everything that its controller said, hex.
        spec: The envelope, canonical JSON.
        purpose: That of its nonce.
        signer_uid: Whose key shall be wrapped, as its nonce says.
        evidence_type: As its nonce says.
        nonce_sha256: Of its nonce.
        received_at: When it came first.
        expires_at: From then on nothing follows from it.
        verdict: What was found.
        result: All that was found, JSON.
        steps: What became of the key, a JSON list: of each the SHA-256 of what was said, and its entry in the audit.
        last_step: The newest of them, or None.
    """

    cluster_id: str
    uid: str
    namespace: str
    name: str
    content_sha256: str
    spec: str
    purpose: Purpose
    signer_uid: str
    evidence_type: str
    nonce_sha256: str
    received_at: datetime
    expires_at: datetime
    verdict: QuoteVerdict
    result: str
    steps: str = "[]"
    last_step: Step | None = None


_NONCE = codec(HSMNonce, _N.c)
_QUOTE = codec(HSMQuote, _Q.c, besides=("id",))

_ISSUE_NONCE = Prepared(insert(_N).values(binds(_N.c)))
_NONCE_OF = Prepared(select(_N).where(_N.c.nonce_sha256 == bindparam("of_nonce")))
_ALIVE = Prepared(
    select(func.count()).select_from(
        select(literal(1))
        .where(_N.c.cluster_id == bindparam("of_cluster"), _N.c.expires_at > bindparam("at"))
        .limit(bindparam("rows"))
        .subquery()
    )
)
_CLAIM = Prepared(
    update(_N)
    .where(
        _N.c.nonce_sha256 == bindparam("of_nonce"),
        or_(_N.c.quote_uid.is_(None), _N.c.quote_uid == bindparam("by_quote")),
    )
    .values(quote_uid=bindparam("by_quote"))
)
_SPEND = Prepared(
    update(_N)
    .where(
        _N.c.nonce_sha256 == bindparam("of_nonce"),
        _N.c.expires_at > bindparam("at"),
        or_(_N.c.used_at.is_(None), _N.c.used_by == bindparam("by_bundle")),
    )
    .values(used_at=bindparam("at"), used_by=bindparam("by_bundle"))
)
_PURGE_NONCES = Prepared(
    delete(_N).where(
        _N.c.nonce_sha256.in_(
            select(_N.c.nonce_sha256).where(_N.c.expires_at < bindparam("before")).limit(bindparam("rows"))
        )
    )
)

_ADD_QUOTE = Prepared(lambda insert: insert(_Q).values(binds(_Q.c, "id")).on_conflict_do_nothing())
_QUOTE_OF = Prepared(
    select(_Q).where(_Q.c.cluster_id == bindparam("of_cluster"), _Q.c.uid == bindparam("of_uid"))
)
_JUDGED = Prepared(
    update(_Q)
    .where(
        _Q.c.cluster_id == bindparam("of_cluster"),
        _Q.c.uid == bindparam("of_uid"),
        _Q.c.verdict == "indeterminate",
    )
    .values(verdict=bindparam("found"), result=bindparam("with_result"))
)
_STEPPED = Prepared(
    update(_Q)
    .where(_Q.c.cluster_id == bindparam("of_cluster"), _Q.c.uid == bindparam("of_uid"))
    .values(steps=bindparam("all_steps"), last_step=bindparam("newest"))
)
_QUOTES = Prepared(
    select(_Q).where(_Q.c.id < bindparam("before")).order_by(_Q.c.id.desc()).limit(bindparam("rows"))
)
_PURGE_QUOTES = Prepared(
    delete(_Q).where(
        _Q.c.id.in_(select(_Q.c.id).where(_Q.c.expires_at < bindparam("before")).limit(bindparam("rows")))
    )
)


class HSMQuotes:
    """Nonces and QuoteAttestations, inside one unit of work."""

    __slots__ = ("_sql",)

    def __init__(self, sql: Executor) -> None:
        self._sql = sql

    def issue(self, nonce: HSMNonce) -> None:
        """Store a new nonce."""
        self._sql.do(_ISSUE_NONCE, **_NONCE.encode(nonce))

    def nonce(self, nonce_sha256: str) -> HSMNonce | None:
        """Return a nonce, used or not, or None."""
        return _NONCE.one(self._sql.row(_NONCE_OF, of_nonce=nonce_sha256))

    def alive(self, cluster_id: str, at: datetime, most: int) -> int:
        """Return how many nonces of a cluster are good, counted up to *most*."""
        row = self._sql.row(_ALIVE, of_cluster=cluster_id, at=to_micros(at), rows=most)
        return int(row[0]) if row is not None else 0

    def claim(self, nonce_sha256: str, quote_uid: str) -> None:
        """Give a nonce to one QuoteAttestation.

        Raises:
            ChallengeUsed: Another one has it.
        """
        if not self._sql.run(_CLAIM, of_nonce=nonce_sha256, by_quote=quote_uid):
            raise ChallengeUsed("the nonce is another QuoteAttestation's")

    def spend(self, nonce_sha256: str, bundle_sha256: str, at: datetime) -> None:
        """Spend a nonce for one bundle: of any number of racers with others exactly one returns.

        Raises:
            ChallengeUnknown: No such nonce is kept.
            ChallengeUsed: Another bundle spent it.
            ChallengeExpired: It was not spent in time.
        """
        if self._sql.run(_SPEND, of_nonce=nonce_sha256, by_bundle=bundle_sha256, at=to_micros(at)):
            return
        found = self.nonce(nonce_sha256)
        if found is None:
            raise ChallengeUnknown("no such nonce is kept")
        if found.used_at is not None:
            raise ChallengeUsed("the nonce was spent by another bundle")
        raise ChallengeExpired("the nonce was not spent in time")

    def add(self, quote: HSMQuote) -> bool:
        """Write down a judged QuoteAttestation; False where one is under its UID, which then stays."""
        return self._sql.run(_ADD_QUOTE, **_QUOTE.encode(quote)) == 1

    def get(self, cluster_id: str, uid: str) -> HSMQuote | None:
        """Return the QuoteAttestation of that UID in a cluster, or None."""
        return _QUOTE.one(self._sql.row(_QUOTE_OF, of_cluster=cluster_id, of_uid=uid))

    def judged(self, cluster_id: str, uid: str, verdict: QuoteVerdict, result: str) -> bool:
        """Write down what was found where nothing could be before; False where something was."""
        changed = self._sql.run(_JUDGED, of_cluster=cluster_id, of_uid=uid, found=verdict, with_result=result)
        return changed == 1

    def stepped(self, cluster_id: str, uid: str, steps: str, newest: Step) -> None:
        """Write down what became of the key."""
        self._sql.do(_STEPPED, of_cluster=cluster_id, of_uid=uid, all_steps=steps, newest=newest)

    def page(self, cursor: str | None, limit: int) -> Page[HSMQuote]:
        """Return QuoteAttestations of all clusters, newest first.

        Raises:
            RequestInvalid: A cursor or limit that cannot be.
        """
        kind = "hsm-quotes"
        rows = self._sql.rows(_QUOTES, before=before_id(kind, cursor), rows=checked_limit(limit) + 1)
        return page_of(kind, rows, limit, _QUOTE.decode)

    def purge(self, before: datetime, limit: int) -> int:
        """Delete up to *limit* nonces and as many QuoteAttestations that expired before *before*; return the larger."""
        statements = (_PURGE_NONCES, _PURGE_QUOTES)
        return max(self._sql.run(each, before=to_micros(before), rows=limit) for each in statements)
