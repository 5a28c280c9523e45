"""The agent, the service, and somebody between them who may delay, drop, replay, change and compose (PROTOCOL §8).

The pins of the agent are honest all along: what the one in between has is the connection, and a machine of its own.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from attestation.clock import rfc3339
from attestation.envelope import seal
from attestation.evidence import ak_activation
from attestation.tpm import parse_public
from attestation_agent.exits import Exit
from attestation_testing import SoftwareNode
from tests.fixtures.in_process import InProcessService, in_process_service
from tests.fixtures.machine import Machine, b64
from tests.integration.agent.rig import Rig

Forward = Callable[[httpx.Request], httpx.Response]


class Between(httpx.BaseTransport):
    """Hands every request to *meddle*, which may answer by itself."""

    def __init__(self, inner: httpx.BaseTransport, meddle: Callable[[httpx.Request, Forward], Any]) -> None:
        self._inner = inner
        self._meddle = meddle

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Answer, or let the service answer."""
        answer = self._meddle(request, self._inner.handle_request)
        return answer if isinstance(answer, httpx.Response) else httpx.Response(200, json=answer)


class Watched(Rig):
    """A machine whose connection somebody else holds."""

    meddle: Callable[[httpx.Request, Forward], Any] = staticmethod(lambda request, forward: forward(request))

    def transport(self) -> httpx.BaseTransport:
        """Return the connection, with whoever holds it."""
        return Between(super().transport(), lambda request, forward: self.meddle(request, forward))


def path_of(request: httpx.Request) -> str:
    return request.url.path.removeprefix("/api/v1")


def unknown() -> httpx.Response:
    problem = {
        "type": "urn:itl:problem:machine-unknown",
        "title": "Machine unknown",
        "status": 404,
        "detail": "no such machine",
        "instance": "r1",
    }
    return httpx.Response(404, json=problem, headers={"Content-Type": "application/problem+json"})


class Attacker:
    """Holds the connection of machine A and owns machine B, which the service knows; makes A pass for B.

    Args:
        rig: A.
        b: B.
    """

    def __init__(self, rig: Watched, b: Machine) -> None:
        self.rig, self.b = rig, b
        self.victim = rig.machine_id
        self.public: dict[str, bytes] = {}
        self.challenge: dict[str, Any] = {}
        self.introduced: dict[str, Any] = {}

    def __call__(self, request: httpx.Request, forward: Forward) -> Any:
        """Answer A."""
        path = path_of(request)
        body = json.loads(request.content) if request.content else {}
        if path == "/attest" and body["machine_id"] == self.victim:
            return unknown()
        if path == "/self-register":
            return self._introduce(body)
        if path.endswith("/ak-activate"):
            # B answers for A: everything in this answer is genuine, and B's.
            activated = self.b.activate(self.b.activation(self.introduced, **_nonce_of(body)))
            assert activated.is_success, activated.text
            return activated
        if path == "/attest":
            challenge = self.challenge
            return self.b.send(self.b.evidence(challenge, **_nonce_of(body)))
        if path.startswith("/config/"):
            return self._reseal(self.b.http.get(request.url.path, headers=request.headers))
        answer = forward(request)
        if path == "/attest/challenge":
            answer.read()
            self.challenge = answer.json()
        return answer

    def _introduce(self, body: dict[str, Any]) -> dict[str, Any]:
        """Anybody can seal a credential to public keys, under any machine's id."""
        self.public = {name: base64.b64decode(body[name]) for name in ("ek_public", "ak_public")}
        self.introduced = self.b.introduce().json()
        challenge_id = self.introduced["activation"]["challenge_id"]
        offer = ak_activation.offer(
            ak_activation.check_keys(self.public["ek_public"], self.public["ak_public"]),
            secret=bytes(32),
            machine_id=self.b.machine_id,
            challenge_id=challenge_id,
        )
        return {
            "machine_id": self.b.machine_id,
            "status": "attested",
            "role": None,
            "message": "prove it",
            "activation": {
                "challenge_id": challenge_id,
                "credential_blob": b64(offer.credential.credential_blob),
                "encrypted_secret": b64(offer.credential.encrypted_secret),
                "expires_at": rfc3339(self.rig.service.clock.now() + timedelta(seconds=60)),
            },
        }

    def _reseal(self, delivered: httpx.Response) -> httpx.Response:
        """Open B's configuration in B's TPM and seal it to A; the service's signature stays as it is."""
        envelope = delivered.json()
        sealed = seal(
            self.b.unseal(envelope),
            ek=parse_public(self.public["ek_public"]),
            ak_name=parse_public(self.public["ak_public"]).name,
            machine_id=self.b.machine_id,
            token_id=envelope["token_id"],
        )
        for name in ("credential_blob", "encrypted_secret", "iv", "ciphertext"):
            envelope[name] = b64(getattr(sealed, name))
        return httpx.Response(200, content=json.dumps(envelope), headers=delivered.headers)


def _nonce_of(body: dict[str, Any]) -> dict[str, str]:
    return {"node_nonce": body["node_nonce"]} if "node_nonce" in body else {}


@pytest.fixture
def local(tmp_path: Path) -> Iterator[InProcessService]:
    """A service of one's own: tests here change what it delivers."""
    with in_process_service(tmp_path / "service") as started:
        yield started


def watched(local: InProcessService, tmp_path: Path) -> Watched:
    """Return machine A, admitted and configured."""
    rig = Watched(local, tmp_path, apply_command="apply", lock_command="lock", wipe_command="wipe")
    rig.admitted()
    rig.commands.clear()
    return rig


@pytest.mark.threat("T131")
@pytest.mark.parametrize("order", ["wipe", "apply-config"])
def test_an_order_for_another_machine_is_not_obeyed(
    local: InProcessService, tmp_path: Path, order: str
) -> None:
    """Who owns machine B and A's connection makes A pass for B; A neither wipes itself nor takes B's secrets."""
    rig = watched(local, tmp_path)
    before, config = rig.machine_id, rig.config_path.read_text()
    b = Machine(SoftwareNode(9), local.client("192.0.2.9"))
    b.admitted(local.operator(), hostname="machine-of-the-attacker")
    if order == "wipe":
        local.operator().act(b.machine_id, "revoke", wipe=True)
    else:
        local.operator().act(b.machine_id, "redeliver")
    rig.meddle = Attacker(rig, b)
    rig.rounds(3)
    assert rig.commands == []
    assert rig.config_path.read_text() == config
    assert rig.machine_id == before
    rig.meddle = lambda request, forward: forward(request)
    assert rig.once() is Exit.OK


@pytest.mark.threat("T131")
def test_an_unsigned_404_changes_nothing(local: InProcessService, tmp_path: Path) -> None:
    """Not the id, nor the status, nor what waits to be applied."""
    rig = watched(local, tmp_path)
    kept = {p.name: p.read_bytes() for p in rig.state.directory.iterdir() if p.is_file()}

    def deny(request: httpx.Request, forward: Forward) -> Any:
        path = path_of(request)
        if path.endswith("/ak-activate"):
            answer = forward(request)
            answer.read()
            return {**answer.json(), "status": "locked", "welcome": None}
        return unknown() if path == "/attest" else forward(request)

    rig.meddle = deny
    rig.rounds(3)
    assert {p.name: p.read_bytes() for p in rig.state.directory.iterdir() if p.is_file()} == kept


@pytest.mark.threat("T19")
def test_an_old_order_is_not_obeyed_again(local: InProcessService, tmp_path: Path) -> None:
    """The challenge of then is handed out again, and answered with the order of then."""
    rig = watched(local, tmp_path)
    operator = local.operator()
    operator.act(rig.machine_id, "lock")
    seen: dict[str, Any] = {}

    def listen(request: httpx.Request, forward: Forward) -> Any:
        answer = forward(request)
        answer.read()
        seen.setdefault(path_of(request), answer.json())
        return answer

    rig.meddle = listen
    assert rig.once() is Exit.LOCKED
    assert rig.commands == [("lock",)]
    operator.act(rig.machine_id, "unlock")
    rig.meddle = lambda request, forward: forward(request)
    rig.once()
    rig.commands.clear()

    def replay(request: httpx.Request, forward: Forward) -> Any:
        return seen.get(path_of(request)) or forward(request)

    rig.meddle = replay
    rig.once()
    assert rig.commands == []
    assert rig.state.status() == "attested"


@pytest.mark.threat("T17")
def test_an_older_configuration_does_not_take_the_place_of_the_new_one(
    local: InProcessService, tmp_path: Path
) -> None:
    """Genuine, signed, for this machine, and of a minute ago."""
    rig = watched(local, tmp_path)
    operator, old = local.operator(), rig.config_path.read_text()
    recorded: list[httpx.Response] = []

    def keep(request: httpx.Request, forward: Forward) -> Any:
        answer = forward(request)
        answer.read()
        if path_of(request).startswith("/config/"):
            recorded.append(answer)
        return answer

    rig.meddle = keep
    operator.act(rig.machine_id, "redeliver")
    assert rig.once() is Exit.OK
    for base in local.settings.config_cache_dir.iterdir():
        base.write_text(base.read_text().replace(local.canary, f"new-{local.canary}"))
    operator.act(rig.machine_id, "redeliver")
    rig.commands.clear()

    def substitute(request: httpx.Request, forward: Forward) -> Any:
        if path_of(request).startswith("/config/"):
            forward(request)
            return httpx.Response(200, content=recorded[0].content, headers=recorded[0].headers)
        return forward(request)

    rig.meddle = substitute
    rig.once()
    assert rig.commands == []
    assert rig.config_path.read_text() == old


@pytest.mark.threat("T132")
def test_a_locked_machine_with_fresh_state_locks_itself(local: InProcessService, tmp_path: Path) -> None:
    """It learns of it at its first attestation, runs its command once, and says so."""
    rig = watched(local, tmp_path)
    operator = local.operator()
    operator.act(rig.machine_id, "lock")
    for file in rig.state.directory.iterdir():
        file.unlink()
    assert rig.once() is Exit.LOCKED
    assert rig.commands == [("lock",)]
    assert rig.state.status() == "locked"
    assert operator.audit(action="directive_ack")[0]["detail"] == "done"
    assert rig.once() is Exit.LOCKED
    assert rig.commands == [("lock",)]


@pytest.mark.threat("T132")
def test_an_unsigned_status_does_not_suppress_an_order(local: InProcessService, tmp_path: Path) -> None:
    """Told `locked` by nobody in particular, the machine still runs its command when the order comes."""
    rig = watched(local, tmp_path)

    def lie(request: httpx.Request, forward: Forward) -> Any:
        answer = forward(request)
        answer.read()
        if path_of(request) == "/attest" and answer.is_success:
            return {**answer.json(), "status": "locked"}
        return answer

    rig.meddle = lie
    rig.once()
    assert rig.state.status() == "attested"
    rig.meddle = lambda request, forward: forward(request)
    local.operator().act(rig.machine_id, "lock")
    assert rig.once() is Exit.LOCKED
    assert rig.commands == [("lock",)]
