"""Base configurations of roles and patches of machines: immutable versions, encrypted, and which one is delivered.

What lies here opens only under `ITL_CONFIG_KEK`; what is encrypted for one place and version opens in no other.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import ColumnElement, and_, bindparam, delete, func, insert, select, tuple_, update

from attestation.errors import AlreadyExists, ConfigurationUnknown
from attestation.store.codec import binds, codec
from attestation.store.sql import Executor, Prepared
from attestation.store.tables import ActiveConfigurationRow, ConfigurationRow, table_of

_T = table_of(ConfigurationRow)
_C = _T.c
_A = table_of(ActiveConfigurationRow)
_AC = _A.c


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Whose a configuration is: of a role in a cluster, or of one machine; what does not apply is empty."""

    cluster_id: str = ""
    role: str = ""
    machine_id: str = ""

    def __str__(self) -> str:
        """As people read it."""
        return f"machine {self.machine_id}" if self.machine_id else f"{self.cluster_id}/{self.role}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """One version, without its text.

    Args:
        place: Whose it is.
        version: 1, 2, …
        sha256: Of its text, 64 lower-case hex.
        size_bytes: Of its text.
        talos_version: By which it was judged when it was imported.
        note: Why, in the operator's words.
        created_at: When it was imported.
        created_by: Who imported it.
        kek_id: Name of the key-encryption key that it lies under.
    """

    place: Place
    version: int
    sha256: str
    size_bytes: int
    talos_version: str
    note: str | None
    created_at: datetime
    created_by: str
    kek_id: str

    @property
    def ref(self) -> str:
        """As people read it: place and version."""
        return f"{self.place}@{self.version}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WrappedConfiguration:
    """One version and its key, without its text.

    Args:
        about: What it is.
        wrapped: Its data key under the key-encryption key.
    """

    about: Configuration
    wrapped: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedConfiguration(WrappedConfiguration):
    """One version as it is kept.

    Args:
        about: What it is.
        wrapped: Its data key under the key-encryption key.
        blob: Its text under the data key.
    """

    blob: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveConfiguration:
    """Which version of a place is delivered.

    Args:
        place: Whose it is.
        version: Which one.
        previous: The one that was delivered before; None where none was.
        sha256: Of its text, 64 lower-case hex.
        activated_at: Since when.
        activated_by: Who asked last; the audit names everybody who agreed.
        agreed: Several operators agreed to it.
        mark: What proves that this service made it active.
    """

    place: Place
    version: int
    previous: int | None
    sha256: str
    activated_at: datetime
    activated_by: str
    agreed: bool
    mark: bytes = field(repr=False)


Delivered = tuple[SealedConfiguration, ActiveConfiguration]
"""A version, and the row that lets it be delivered."""


def _at(columns: object) -> ColumnElement[bool]:
    return and_(*(getattr(columns, name) == bindparam(name) for name in ("cluster_id", "role", "machine_id")))


_TOLD = [c for c in _C if c.name not in ("wrapped", "blob")]
_ABOUT = codec(Configuration, _TOLD)
_KEYED = [*_TOLD, _C.wrapped]
_WRAPPED = codec(WrappedConfiguration, _KEYED)
_ROW = codec(SealedConfiguration, _C)
_ACTIVE = codec(ActiveConfiguration, _AC)
_NEXT = Prepared(select(func.coalesce(func.max(_C.version), 0) + 1).where(_at(_C)))
_ADD = Prepared(insert(_T).values(binds(_C)))
_GET = Prepared(select(_T).where(_at(_C), _C.version == bindparam("version")))
_ORDER = (_C.cluster_id, _C.role, _C.machine_id, _C.version)
_OF_PLACE = Prepared(select(*_TOLD).where(_at(_C)).order_by(_C.version))
_BASES = Prepared(select(*_TOLD).where(_C.machine_id == "").order_by(*_ORDER))
_ACTIVE_OF = Prepared(select(_A).where(_at(_AC)))
_ACTIVE_BASES = Prepared(select(_A).where(_AC.machine_id == ""))
_ACTIVATE = Prepared(
    lambda insert: (
        insert(_A)
        .values(binds(_AC))
        .on_conflict_do_update(
            index_elements=[_AC.cluster_id, _AC.role, _AC.machine_id],
            set_=binds(_AC, "cluster_id", "role", "machine_id"),
        )
    )
)
_REWRAP = Prepared(
    update(_T)
    .where(_at(_C), _C.version == bindparam("version"), _C.kek_id == bindparam("old"))
    .values(kek_id=bindparam("kek_id"), wrapped=bindparam("wrapped"))
)
_OTHER_KEK = Prepared(
    select(*_KEYED)
    .where(
        _C.kek_id != bindparam("kek_id"),
        tuple_(*_ORDER) > tuple_(*(bindparam(f"after_{c.name}") for c in _ORDER)),
    )
    .order_by(*_ORDER)
    .limit(bindparam("rows"))
)
_KEKS = Prepared(select(_C.kek_id).distinct().order_by(_C.kek_id))
_END = tuple(
    Prepared(delete(table).where(table.c.machine_id == bindparam("machine_id"))) for table in (_A, _T)
)


class Configurations:
    """Versions and which of them are delivered, inside one unit of work."""

    __slots__ = ("_sql",)

    def __init__(self, sql: Executor) -> None:
        self._sql = sql

    def next_version(self, place: Place) -> int:
        """Return the number of the next version there; numbers rise, and none is given twice."""
        row = self._sql.row(_NEXT, **_columns(place))
        assert row is not None
        return int(row[0])

    def add(self, sealed: SealedConfiguration) -> None:
        """Store a new version, which never changes again.

        Raises:
            AlreadyExists: Somebody else stored one under this number meanwhile.
        """
        about = sealed.about
        if self.next_version(about.place) != about.version:
            raise AlreadyExists(f"another version of {about.place} was stored meanwhile: ask again")
        self._sql.do(_ADD, **_ROW.encode(sealed))

    def get(self, place: Place, version: int) -> SealedConfiguration:
        """Return one version.

        Raises:
            ConfigurationUnknown: There is none.
        """
        row = self._sql.row(_GET, **_columns(place), version=version)
        if row is None:
            raise ConfigurationUnknown(f"no configuration {place}@{version}")
        return _ROW.decode(row)

    def of_place(self, place: Place) -> tuple[Configuration, ...]:
        """Return every version of a place, the oldest first."""
        return tuple(map(_ABOUT.decode, self._sql.rows(_OF_PLACE, **_columns(place))))

    def bases(self) -> tuple[Configuration, ...]:
        """Return every version of every base configuration, by place and version."""
        return tuple(map(_ABOUT.decode, self._sql.rows(_BASES)))

    def active(self, place: Place) -> ActiveConfiguration | None:
        """Return which version of a place is delivered; None where none is."""
        return _ACTIVE.one(self._sql.row(_ACTIVE_OF, **_columns(place)))

    def active_bases(self) -> tuple[ActiveConfiguration, ...]:
        """Return which base configurations are delivered."""
        return tuple(map(_ACTIVE.decode, self._sql.rows(_ACTIVE_BASES)))

    def delivered(self, place: Place) -> Delivered | None:
        """Return what is delivered there, with what lets it be; None where nothing is."""
        found = self.active(place)
        return None if found is None else (self.get(place, found.version), found)

    def activate(self, active: ActiveConfiguration) -> None:
        """Let a version be delivered from now on, instead of the one before."""
        self._sql.do(_ACTIVATE, **_ACTIVE.encode(active))

    def under_other_keks(
        self, kek_id: str, limit: int, after: Configuration | None = None
    ) -> tuple[WrappedConfiguration, ...]:
        """Return up to *limit* versions that do not lie under this key-encryption key, those behind *after*."""
        place, version = (Place(), 0) if after is None else (after.place, after.version)
        behind = {f"after_{name}": value for name, value in (_columns(place) | {"version": version}).items()}
        return tuple(map(_WRAPPED.decode, self._sql.rows(_OTHER_KEK, **behind, kek_id=kek_id, rows=limit)))

    def kek_ids(self) -> tuple[str, ...]:
        """Return the names of the key-encryption keys that versions lie under."""
        return tuple(row[0] for row in self._sql.rows(_KEKS))

    def rewrap(self, found: WrappedConfiguration, *, kek_id: str, wrapped: bytes) -> bool:
        """Keep the data key of *found* under another key-encryption key; False if somebody did already."""
        place = _columns(found.about.place)
        new = {
            "version": found.about.version,
            "old": found.about.kek_id,
            "kek_id": kek_id,
            "wrapped": wrapped,
        }
        return self._sql.run(_REWRAP, **place, **new) == 1


def forget(sql: Executor, machine_id: str) -> None:
    """Delete the patches of a machine, which goes with them."""
    for statement in _END:
        sql.run(statement, machine_id=machine_id)


def _columns(place: Place) -> dict[str, str]:
    return {"cluster_id": place.cluster_id, "role": place.role, "machine_id": place.machine_id}
