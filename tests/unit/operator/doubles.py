"""A cluster that is a dictionary, a log that remembers, a clock that stands: what tests of single parts are given."""

# ruff: noqa: D102 -- they do what the names say
from __future__ import annotations

import copy
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from attestation.errors import AttestationError
from attestation_operator.errors import ObjectChanged, ObjectExists
from attestation_operator.objects import CSR, Key, Kind, Raw, Target

AT = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)


class Standing:
    """A clock that stands."""

    def now(self) -> datetime:
        """Return the same again."""
        return AT


class Log:
    """Remembers what was said."""

    def __init__(self) -> None:
        self.said: list[tuple[str, str, dict[str, Any]]] = []

    def _say(self, level: str, event: str, members: dict[str, Any]) -> None:
        self.said.append((level, event, members))

    def info(self, event: str, **members: Any) -> None:
        self._say("info", event, members)

    def warning(self, event: str, **members: Any) -> None:
        self._say("warning", event, members)

    def error(self, event: str, **members: Any) -> None:
        self._say("error", event, members)

    def exception(self, event: str, **members: Any) -> None:
        self._say("exception", event, members)

    @property
    def events(self) -> list[str]:
        """Names of the events."""
        return [event for _, event, _ in self.said]


class Recorder:
    """Stands for `KubernetesCluster` under an executor: notes each request, and answers as it is told."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, Any]] = []
        self.failing: list[AttestationError | None] = []
        self.there = True

    def _note(self, method: str, name: str, body: Any) -> bool:
        self.asked.append((method, name, body))
        error = self.failing.pop(0) if self.failing else None
        if error is not None:
            raise error
        return self.there

    async def replace(self, target: Target, change: Raw, *, action: str | None = None) -> bool:
        return self._note(f"replace/{action or ''}", target.name, change)

    async def merge(self, target: Target, change: Raw, *, action: str | None = None) -> bool:
        return self._note(f"merge/{action or ''}", target.name, change)

    async def apply_status(self, target: Target, status: Raw, *, manager: str, exact: bool = False) -> bool:
        version = f"@{target.resource_version}" if exact else ""
        return self._note(f"apply/{manager}{version}", target.name, status)

    async def delete(self, target: Target) -> bool:
        return self._note("delete", target.name, None)

    async def create(self, kind: Kind, raw: Raw) -> Raw:
        self._note(f"create/{kind.plural}/{raw['metadata'].get('namespace')}", raw["metadata"]["name"], raw)
        return raw


class Leases:
    """Stands for `KubernetesCluster` under leases: one that is shared by several replicas."""

    def __init__(self) -> None:
        self.held: dict[str, Any] | None = None
        self.version = 0
        self.failing: AttestationError | None = None

    def _fail(self) -> None:
        if self.failing is not None:
            raise self.failing

    async def read(self, key: Key) -> Raw | None:
        self._fail()
        return copy.deepcopy(self.held)

    async def create(self, kind: Kind, raw: Raw) -> Raw:
        self._fail()
        if self.held is not None:
            raise ObjectExists("it is there")
        return self._kept(raw)

    async def replace(self, target: Target, change: Raw) -> bool:
        self._fail()
        if self.held is None:
            return False
        if target.resource_version != str(self.version):
            raise ObjectChanged("another one was faster")
        self._kept(change)
        return True

    def _kept(self, raw: Raw) -> Raw:
        self.version += 1
        metadata = {"uid": "u-1", **raw["metadata"], "resourceVersion": str(self.version)}
        self.held = copy.deepcopy({**raw, "metadata": metadata})
        return self.held


def target(name: str = "csr-1", **members: str) -> Target:
    """Return a request."""
    return Target(**({"kind": CSR, "name": name, "uid": "u-1", "resource_version": "7"} | members))  # type: ignore[arg-type]


def seen(name: str, characters: int = 10) -> Mapping[str, Any]:
    """Return a request as a watch shows it."""
    return {"metadata": {"name": name}, "spec": {"request": "x" * characters}}
