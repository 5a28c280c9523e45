"""A fleet, its operator and a stranger at the public door; what the stranger may never learn or change."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.fixtures.machine import Device, Machine
from tests.fixtures.service import Operator

HARMLESS_ACTIONS = frozenset({"denied", "break_glass", "cert_refused"})
"""A refusal may be written to the audit; it is not a change."""

PROBLEM_MEMBERS = {"type", "title", "status", "detail", "instance", "errors"}


class Leaked(AssertionError):
    """An answer to a stranger held what no stranger may have."""


@dataclass(kw_only=True)
class Scene:
    """One service and whoever speaks to it.

    Args:
        operator: Sees everything.
        client: Makes clients from an address.
        canary: Stands in every configuration.
        machine: Makes a machine around a device.
    """

    operator: Operator
    client: Callable[[str], httpx.Client]
    canary: str
    admin_token: str
    secrets: set[str] = field(default_factory=set)
    _open: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def close(self) -> None:
        """Close the clients."""
        self._open.close()

    def machine(self, device: Device, **hints: str) -> Machine:
        """Return a machine of the fleet: whatever tokens it gets are secrets from then on."""
        http = self._open.enter_context(self.client("192.0.2.1"))
        http.event_hooks["response"].append(self._remember)
        return Machine(device, http, **hints)

    def stranger(self, device: Device, **hints: str) -> Machine:
        """Return a machine of somebody who is not admitted: no answer may hold a secret."""
        return Machine(device, self.http(), **hints)

    def http(self) -> httpx.Client:
        """Return a stranger's client; every answer is searched."""
        http = self._open.enter_context(self.client("203.0.113.66"))
        http.event_hooks["response"].append(self.search)
        return http

    def _remember(self, response: httpx.Response) -> None:
        response.read()
        with contextlib.suppress(json.JSONDecodeError):
            answer = response.json()
            if isinstance(answer, dict):
                self.secrets |= {answer[name] for name in ("config_token",) if answer.get(name)}

    def search(self, response: httpx.Response) -> None:
        """Look for secrets in an answer to a stranger: headers and body.

        Raises:
            Leaked: There is one.
        """
        text = response.read().decode("utf-8", "replace") + str(response.headers)
        for secret in self.secrets | {self.canary, self.admin_token}:
            if secret in text:
                raise Leaked(f"{response.request.method} {response.request.url}: a secret was answered")
        kind = response.headers.get("content-type", "")
        if "encrypted" in kind:
            raise Leaked(f"{response.request.url}: an envelope was answered")
        if "json" not in kind or response.request.url.path == "/openapi.json":
            return
        answer = response.json()
        if response.is_error:
            assert kind == "application/problem+json", kind
            assert set(answer) <= PROBLEM_MEMBERS
            return
        for name in ("config_token", "config_url", "iso_url", "directive", "role", "hostname"):
            if answer.get(name):
                raise Leaked(f"{response.request.method} {response.request.url}: {name} was answered")
        if answer.get("action", "none") != "none":
            raise Leaked(f"{response.request.url}: action {answer['action']} was answered")

    def state(self) -> dict[str, Any]:
        """Return all that operators can see."""
        return {
            "machines": self.operator.machines(),
            "audit": [e for e in self.operator.audit() if e["action"] not in HARMLESS_ACTIONS],
            "registration tokens": self.operator.pages("/registration-tokens"),
            "allow-list": self.operator.pages("/allow-list"),
        }

    @contextlib.contextmanager
    def nothing_changes(self) -> Iterator[None]:
        """Whatever is done inside, operators see the same machines, audit, tokens and allow-list after it."""
        before = self.state()
        yield
        assert self.state() == before
        assert self.operator.audit_is_valid()
