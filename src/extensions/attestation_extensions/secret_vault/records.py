"""What is kept: secrets, the versions of their values, and which machines may have a shared one."""

# Longer than 500 lines: four tables, their statements, and one class over them.

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, Final

from sqlalchemy import (
    BigInteger,
    Index,
    LargeBinary,
    Text,
    UniqueConstraint,
    bindparam,
    delete,
    func,
    select,
    update,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from attestation.extension import Executor, Prepared, from_micros, to_micros
from attestation_extensions.secret_vault.sealing import Kept, Place

SHARED: Final = ""
"""Owner of a secret that several machines may have."""
MOST_LISTED: Final = 500
VERSIONS_KEPT: Final = 5
"""So many values of a secret are kept: the newest, and those that it may be set back to."""


class Base(DeclarativeBase):
    """Base of the tables; instants are microseconds."""

    type_annotation_map: ClassVar[dict[Any, Any]] = {int: BigInteger(), str: Text(), bytes: LargeBinary()}


class SecretRow(Base):
    """A secret; `live` is 1 until it is deleted, and None then: its name is free again, the row stays."""

    __tablename__ = "extension_secrets"
    __table_args__ = (UniqueConstraint("owner", "name", "live", name="extension_secrets_name"),)

    secret_id: Mapped[str] = mapped_column(primary_key=True)
    owner: Mapped[str]
    name: Mapped[str]
    live: Mapped[int | None]
    description: Mapped[str | None]
    rule: Mapped[str | None]
    newest: Mapped[int]
    created_at: Mapped[int]
    created_by: Mapped[str]
    rotated_at: Mapped[int | None]
    expires_at: Mapped[int | None]
    deleted_at: Mapped[int | None]
    accessed_at: Mapped[int | None]
    access_count: Mapped[int]
    mark: Mapped[bytes]


class VersionRow(Base):
    """A value of a secret, sealed."""

    __tablename__ = "extension_secret_versions"
    __table_args__ = (Index("extension_secret_versions_kek", "kek_id"),)

    secret_id: Mapped[str] = mapped_column(primary_key=True)
    version: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    key_id: Mapped[bytes]
    kek_id: Mapped[str]
    wrapped: Mapped[bytes]
    blob: Mapped[bytes]
    created_at: Mapped[int]
    created_by: Mapped[str]


class GrantRow(Base):
    """A machine that may have a shared secret."""

    __tablename__ = "extension_shared_secret_access"

    secret_id: Mapped[str] = mapped_column(primary_key=True)
    machine_id: Mapped[str] = mapped_column(primary_key=True)
    granted_at: Mapped[int]
    granted_by: Mapped[str]
    accessed_at: Mapped[int | None]
    access_count: Mapped[int]
    mark: Mapped[bytes]


class KeyRow(Base):
    """What the vault has once: the key of its marks, wrapped, and the salt of a master key that is a passphrase."""

    __tablename__ = "extension_secret_keys"

    name: Mapped[str] = mapped_column(primary_key=True)
    kek_id: Mapped[str]
    value: Mapped[bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Secret:
    """A secret without its value; `owner` is the machine's id, or `SHARED`."""

    secret_id: str
    owner: str
    name: str
    description: str | None
    rule: str | None
    newest: int
    created_at: datetime
    created_by: str
    rotated_at: datetime | None
    expires_at: datetime | None
    accessed_at: datetime | None
    access_count: int
    mark: bytes = b""

    @property
    def terms(self) -> tuple[str | int | None, ...]:
        """On what it is released: what its mark vouches for."""
        expires = None if self.expires_at is None else to_micros(self.expires_at)
        return ("secret", self.secret_id, self.owner, self.name, self.rule, expires, self.newest)

    @property
    def said(self) -> tuple[str | int | None, ...]:
        """All that operators say of it."""
        return (*self.terms, self.description)

    def place(self, version: int) -> Place:
        """Return what the encryption of a version is bound to."""
        return Place(secret_id=self.secret_id, owner=self.owner, name=self.name, version=version)

    def is_expired(self, at: datetime) -> bool:
        """Return True once it is released no more."""
        return self.expires_at is not None and self.expires_at <= at


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """A value of a secret, sealed."""

    secret_id: str
    version: int
    kept: Kept
    created_at: datetime
    created_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """A machine that may have a shared secret."""

    secret_id: str
    machine_id: str
    granted_at: datetime
    granted_by: str
    accessed_at: datetime | None
    access_count: int


_SECRETS: Final = Base.metadata.tables[SecretRow.__tablename__]
_S: Final = _SECRETS.c
_VERSIONS: Final = Base.metadata.tables[VersionRow.__tablename__]
_V: Final = _VERSIONS.c
_GRANTS: Final = Base.metadata.tables[GrantRow.__tablename__]
_G: Final = _GRANTS.c
_KEYS: Final = Base.metadata.tables[KeyRow.__tablename__]
_K: Final = _KEYS.c

_LIVE: Final = _S.live.is_not(None)
_BY_ID: Final = Prepared(select(_SECRETS).where(_LIVE, _S.secret_id == bindparam("secret_id")))
_BY_NAME: Final = Prepared(
    select(_SECRETS).where(_LIVE, _S.owner == bindparam("owner"), _S.name == bindparam("name"))
)
_OF_OWNER: Final = Prepared(
    select(_SECRETS)
    .where(_LIVE, _S.owner == bindparam("owner"), _S.name > bindparam("after"))
    .order_by(_S.name)
    .limit(bindparam("rows"))
)
_COUNT: Final = Prepared(select(func.count()).where(_LIVE, _S.owner == bindparam("owner")))
_ADD: Final = Prepared(
    lambda insert: (
        insert(_SECRETS)
        .values(
            {name: bindparam(name) for name in _S.keys() if name not in ("live", "access_count")}  # noqa: SIM118 -- of columns
            | {"live": 1, "access_count": 0}
        )
        .on_conflict_do_nothing()
    )
)
_CHANGE: Final = Prepared(
    update(_SECRETS)
    .where(_LIVE, _S.secret_id == bindparam("of_secret"), _S.newest == bindparam("before"))
    .values(
        {
            name: bindparam(name)
            for name in ("description", "rule", "expires_at", "newest", "rotated_at", "mark")
        }
    )
)
_DELETE: Final = Prepared(
    update(_SECRETS)
    .where(_LIVE, _S.secret_id == bindparam("of_secret"))
    .values(live=None, deleted_at=bindparam("at"))
)
_ACCESSED: Final = Prepared(
    update(_SECRETS)
    .where(_LIVE, _S.secret_id == bindparam("of_secret"), _S.newest == bindparam("version"))
    .values(access_count=_S.access_count + 1, accessed_at=bindparam("at"))
)
_ADD_VERSION: Final = Prepared(
    lambda insert: insert(_VERSIONS).values({name: bindparam(name) for name in _V.keys()})  # noqa: SIM118 -- of columns
)
_VERSION: Final = Prepared(
    select(_VERSIONS).where(_V.secret_id == bindparam("secret_id"), _V.version == bindparam("version"))
)
_VERSIONS_OF: Final = Prepared(
    select(_VERSIONS).where(_V.secret_id == bindparam("secret_id")).order_by(_V.version.desc())
)
_FORGET: Final = Prepared(
    delete(_VERSIONS).where(_V.secret_id == bindparam("of_secret"), _V.version <= bindparam("version"))
)
_UNDER_OTHERS: Final = Prepared(
    select(_VERSIONS)
    .where(
        _V.kek_id != bindparam("kek_id"),
        (_V.secret_id > bindparam("after"))
        | ((_V.secret_id == bindparam("after")) & (_V.version > bindparam("after_version"))),
    )
    .order_by(_V.secret_id, _V.version)
    .limit(bindparam("rows"))
)
_REWRAP: Final = Prepared(
    update(_VERSIONS)
    .where(
        _V.secret_id == bindparam("of_secret"),
        _V.version == bindparam("of_version"),
        _V.kek_id == bindparam("of_kek"),
    )
    .values(kek_id=bindparam("kek_id"), wrapped=bindparam("wrapped"))
)
_GRANT: Final = Prepared(
    lambda insert: (
        insert(_GRANTS)
        .values(
            secret_id=bindparam("secret_id"),
            machine_id=bindparam("machine_id"),
            granted_at=bindparam("at"),
            granted_by=bindparam("by"),
            accessed_at=None,
            access_count=0,
            mark=bindparam("mark"),
        )
        .on_conflict_do_nothing()
    )
)
_OF_GRANT: Final = (_G.secret_id == bindparam("of_secret")) & (_G.machine_id == bindparam("of_machine"))
_REVOKE: Final = Prepared(delete(_GRANTS).where(_OF_GRANT))
_REVOKE_ALL: Final = Prepared(delete(_GRANTS).where(_G.secret_id == bindparam("of_secret")))
_REVOKE_OF: Final = Prepared(delete(_GRANTS).where(_G.machine_id == bindparam("of_machine")))
_MARK_OF_GRANT: Final = Prepared(select(_G.mark).where(_OF_GRANT))
_GRANTS_OF: Final = Prepared(
    select(_GRANTS)
    .where(_G.secret_id == bindparam("secret_id"), _G.machine_id > bindparam("after"))
    .order_by(_G.machine_id)
    .limit(bindparam("rows"))
)
_COUNT_GRANTS: Final = Prepared(select(func.count()).where(_G.secret_id == bindparam("secret_id")))
_GRANT_USED: Final = Prepared(
    update(_GRANTS).where(_OF_GRANT).values(access_count=_G.access_count + 1, accessed_at=bindparam("at"))
)
_ADD_KEY: Final = Prepared(
    lambda insert: (
        insert(_KEYS)
        .values(name=bindparam("name"), kek_id=bindparam("kek_id"), value=bindparam("value"))
        .on_conflict_do_nothing()
    )
)
_KEY: Final = Prepared(select(_K.kek_id, _K.value).where(_K.name == bindparam("name")))
_REWRAP_KEY: Final = Prepared(
    update(_KEYS)
    .where(_K.name == bindparam("of_name"), _K.kek_id == bindparam("of_kek"))
    .values(kek_id=bindparam("kek_id"), value=bindparam("value"))
)

SECRETS: Final = select(
    _S.secret_id,
    _S.owner.label("machine_id"),
    _S.name,
    _S.newest.label("version"),
    _S.created_at,
    _S.created_by,
    _S.rotated_at,
    _S.expires_at,
    _S.deleted_at,
    _S.accessed_at,
    _S.access_count,
)
"""What the query language sees of them."""


class Secrets:
    """Secrets, versions and grants, inside one unit of work."""

    def __init__(self, sql: Executor) -> None:
        self._sql = sql

    # Secrets

    def by_id(self, secret_id: str) -> Secret | None:
        """Return a secret that is not deleted."""
        return _secret(self._sql.row(_BY_ID, secret_id=secret_id))

    def by_name(self, owner: str, name: str) -> Secret | None:
        """Return a secret that is not deleted."""
        return _secret(self._sql.row(_BY_NAME, owner=owner, name=name))

    def of_owner(self, owner: str, after: str = "", limit: int = MOST_LISTED) -> list[Secret]:
        """Return its secrets, by name, those behind *after*."""
        rows = self._sql.rows(_OF_OWNER, owner=owner, after=after, rows=limit)
        return [found for row in rows if (found := _secret(row))]

    def count(self, owner: str) -> int:
        """Return how many it has."""
        return _number(self._sql.row(_COUNT, owner=owner))

    def add(self, secret: Secret) -> bool:
        """Keep a new secret; False where its owner has one of this name."""
        added = self._sql.run(
            _ADD,
            secret_id=secret.secret_id,
            owner=secret.owner,
            name=secret.name,
            description=secret.description,
            rule=secret.rule,
            newest=secret.newest,
            created_at=to_micros(secret.created_at),
            created_by=secret.created_by,
            rotated_at=None,
            expires_at=_micros(secret.expires_at),
            deleted_at=None,
            accessed_at=None,
            mark=secret.mark,
        )
        return added == 1

    def change(self, before: Secret, after: Secret) -> bool:
        """Write what an operator may change; False where its value was exchanged, or it was deleted, meanwhile."""
        changed = self._sql.run(
            _CHANGE,
            of_secret=before.secret_id,
            before=before.newest,
            description=after.description,
            rule=after.rule,
            expires_at=_micros(after.expires_at),
            newest=after.newest,
            rotated_at=_micros(after.rotated_at),
            mark=after.mark,
        )
        return changed == 1

    def delete(self, secret: Secret, at: datetime) -> None:
        """Erase its values and grants; that there was one, is kept."""
        self._sql.do(_FORGET, of_secret=secret.secret_id, version=secret.newest)
        self._sql.do(_REVOKE_ALL, of_secret=secret.secret_id)
        self._sql.do(_DELETE, of_secret=secret.secret_id, at=to_micros(at))

    def accessed(self, secret: Secret, at: datetime) -> bool:
        """Count a release of its newest value; False where that is no longer the newest."""
        return (
            self._sql.run(_ACCESSED, of_secret=secret.secret_id, version=secret.newest, at=to_micros(at)) == 1
        )

    # Values

    def add_version(self, found: Version) -> None:
        """Keep a new value, and forget what is older than the last few."""
        self._sql.do(
            _ADD_VERSION,
            secret_id=found.secret_id,
            version=found.version,
            key_id=found.kept.key_id,
            kek_id=found.kept.kek_id,
            wrapped=found.kept.wrapped,
            blob=found.kept.blob,
            created_at=to_micros(found.created_at),
            created_by=found.created_by,
        )
        self._sql.do(_FORGET, of_secret=found.secret_id, version=found.version - VERSIONS_KEPT)

    def version(self, secret_id: str, version: int) -> Version | None:
        """Return a value that is kept."""
        return _version(self._sql.row(_VERSION, secret_id=secret_id, version=version))

    def versions(self, secret_id: str) -> list[Version]:
        """Return the values that are kept, the newest first."""
        return [
            found for row in self._sql.rows(_VERSIONS_OF, secret_id=secret_id) if (found := _version(row))
        ]

    def under_others(self, kek_id: str, after: tuple[str, int], limit: int) -> list[Version]:
        """Return values whose data keys lie under another KEK than *kek_id*, those behind *after*."""
        rows = self._sql.rows(
            _UNDER_OTHERS, kek_id=kek_id, after=after[0], after_version=after[1], rows=limit
        )
        return [found for row in rows if (found := _version(row))]

    def rewrap(self, found: Version, *, kek_id: str, wrapped: bytes) -> bool:
        """Keep the data key of *found* under another KEK; False where another worker did."""
        done = self._sql.run(
            _REWRAP,
            of_secret=found.secret_id,
            of_version=found.version,
            of_kek=found.kept.kek_id,
            kek_id=kek_id,
            wrapped=wrapped,
        )
        return done == 1

    # Grants

    def grant(self, secret_id: str, machine_id: str, at: datetime, by: str, mark: bytes) -> bool:
        """Let a machine have it; False where it may already."""
        granted = self._sql.run(
            _GRANT, secret_id=secret_id, machine_id=machine_id, at=to_micros(at), by=by, mark=mark
        )
        return granted == 1

    def revoke(self, secret_id: str, machine_id: str) -> bool:
        """Take that back; False where it was not granted."""
        return self._sql.run(_REVOKE, of_secret=secret_id, of_machine=machine_id) == 1

    def revoke_of(self, machine_id: str) -> None:
        """Take back all that a machine was granted."""
        self._sql.do(_REVOKE_OF, of_machine=machine_id)

    def mark_of_grant(self, secret_id: str, machine_id: str) -> bytes | None:
        """Return what vouches for a grant; None where there is none."""
        row = self._sql.row(_MARK_OF_GRANT, of_secret=secret_id, of_machine=machine_id)
        return None if row is None else bytes(row[0])

    def grants(self, secret_id: str, after: str = "", limit: int = MOST_LISTED) -> list[Grant]:
        """Return who may have it, by id, those behind *after*."""
        rows = self._sql.rows(_GRANTS_OF, secret_id=secret_id, after=after, rows=limit)
        return [_grant(row) for row in rows]

    def count_grants(self, secret_id: str) -> int:
        """Return how many machines may have it."""
        return _number(self._sql.row(_COUNT_GRANTS, secret_id=secret_id))

    def grant_used(self, secret_id: str, machine_id: str, at: datetime) -> None:
        """Count a release to a machine."""
        self._sql.do(_GRANT_USED, of_secret=secret_id, of_machine=machine_id, at=to_micros(at))

    # Keys

    def key(self, name: str, kek_id: str, made: bytes) -> tuple[str, bytes]:
        """Return what is kept under *name*, and under which KEK: *made*, unless another worker was first."""
        self._sql.do(_ADD_KEY, name=name, kek_id=kek_id, value=made)
        row = self._sql.row(_KEY, name=name)
        assert row is not None
        return str(row[0]), bytes(row[1])

    def rewrap_key(self, name: str, old: str, *, kek_id: str, wrapped: bytes) -> None:
        """Keep it under another KEK, unless another worker did."""
        self._sql.do(_REWRAP_KEY, of_name=name, of_kek=old, kek_id=kek_id, value=wrapped)


def _number(row: Sequence[Any] | None) -> int:
    assert row is not None
    return int(row[0])


def _micros(at: datetime | None) -> int | None:
    return None if at is None else to_micros(at)


def _instant(micros: int | None) -> datetime | None:
    return None if micros is None else from_micros(micros)


def _secret(row: Sequence[Any] | None) -> Secret | None:
    if row is None:
        return None
    found = dict(zip(_S.keys(), row, strict=True))
    del found["live"], found["deleted_at"]
    found["mark"] = bytes(found["mark"])
    return Secret(
        **found
        | {"created_at": from_micros(found["created_at"])}
        | {name: _instant(found[name]) for name in ("rotated_at", "expires_at", "accessed_at")}
    )


def _version(row: Sequence[Any] | None) -> Version | None:
    if row is None:
        return None
    secret_id, version, key_id, kek_id, wrapped, blob, created_at, created_by = row
    return Version(
        secret_id=secret_id,
        version=version,
        kept=Kept(key_id=bytes(key_id), kek_id=kek_id, wrapped=bytes(wrapped), blob=bytes(blob)),
        created_at=from_micros(created_at),
        created_by=created_by,
    )


def terms_of_grant(secret_id: str, machine_id: str) -> tuple[str, ...]:
    """Return what the mark of a grant vouches for."""
    return ("grant", secret_id, machine_id)


def _grant(row: Sequence[Any]) -> Grant:
    secret_id, machine_id, granted_at, granted_by, accessed_at, access_count, _ = row
    return Grant(
        secret_id=secret_id,
        machine_id=machine_id,
        granted_at=from_micros(granted_at),
        granted_by=granted_by,
        accessed_at=_instant(accessed_at),
        access_count=access_count,
    )
