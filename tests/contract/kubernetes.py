"""What the suites about the Kubernetes API share: names, refusals, watches."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import httpx

RBAC = "/apis/rbac.authorization.k8s.io/v1"
MERGE = {"Content-Type": "application/merge-patch+json"}
STRATEGIC = {"Content-Type": "application/strategic-merge-patch+json"}
JSON = {"Content-Type": "application/json-patch+json"}
APPLY = {"Content-Type": "application/apply-patch+yaml"}

_NUMBERS = itertools.count()


def new_name(prefix: str = "it") -> str:
    """Return a name that nothing else has."""
    return f"{prefix}-{time.time_ns():x}-{next(_NUMBERS)}"


def refused(answer: httpx.Response, code: int, *words: str) -> dict[str, Any]:
    """Return the Status of a refusal, which says *words*."""
    assert answer.status_code == code, answer.text[:2000]
    status: dict[str, Any] = answer.json()
    assert status["kind"] == "Status"
    assert status["code"] == code
    assert status["status"] == "Failure"
    for word in words:
        assert word in status["message"], status["message"][:2000]
    return status


def done(answer: httpx.Response, code: int = 200) -> dict[str, Any]:
    """Return what an answer that is no refusal says."""
    assert answer.status_code == code, answer.text[:2000]
    value: dict[str, Any] = answer.json()
    return value


def causes(status: dict[str, Any]) -> set[str]:
    """Return the fields that a refusal names."""
    return {each["field"] for each in status["details"]["causes"]}


def eventually(check: Callable[[], object]) -> None:
    """Try *check* until it holds: the real server reads roles and definitions a moment later."""
    until = time.monotonic() + 60
    while True:
        try:
            check()
        except (AssertionError, KeyError):
            if time.monotonic() > until:
                raise
            continue
        return


def rule(group: str, resource: str, *verbs: str, **more: Any) -> dict[str, Any]:
    """Return a rule of a role."""
    return {"apiGroups": [group], "resources": [resource], "verbs": list(verbs), **more}


@contextmanager
def bound(admin: httpx.Client, user: str, *rules: dict[str, Any], kind: str = "User") -> Iterator[str]:
    """Let *user* do what *rules* say, for as long as it is entered."""
    name = new_name("role")
    group = "rbac.authorization.k8s.io"
    done(admin.post(f"{RBAC}/clusterroles", json={"metadata": {"name": name}, "rules": list(rules)}), 201)
    binding = {
        "metadata": {"name": name},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": name},
        "subjects": [{"apiGroup": group, "kind": kind, "name": user}],
    }
    done(admin.post(f"{RBAC}/clusterrolebindings", json=binding), 201)
    try:
        yield name
    finally:
        admin.delete(f"{RBAC}/clusterrolebindings/{name}")
        admin.delete(f"{RBAC}/clusterroles/{name}")


class Watch:
    """The events of a watch, one after the other.

    Args:
        client: Who watches.
        path: What.
        query: `resourceVersion` and what else is asked.
    """

    def __init__(self, client: httpx.Client, path: str, **query: str) -> None:
        self._stream = client.stream("GET", path, params={"watch": "true", "timeoutSeconds": "20", **query})
        self.answer = self._stream.__enter__()
        self._lines = self.answer.iter_lines()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.__exit__(None, None, None)

    def next(self) -> tuple[str, dict[str, Any]]:
        """Return type and object of the next event."""
        event = json.loads(next(self._lines))
        return event["type"], event["object"]

    def names(self, count: int) -> list[tuple[str, str]]:
        """Return type and name of the next events."""
        return [(kind, value["metadata"]["name"]) for kind, value in (self.next() for _ in range(count))]
