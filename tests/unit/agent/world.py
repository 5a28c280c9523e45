"""A world for the agent: a service made by hand with a real key, a software machine, time that stands still."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx

from attestation.client import NodeClient
from attestation.envelope import seal
from attestation.errors import DeviceError
from attestation.evidence import ak_activation
from attestation.keys import KeySigner
from attestation.tpm import parse_public
from attestation.wire import b64decode, b64encode
from attestation_agent.acts import Acts
from attestation_agent.commands import Outcome
from attestation_agent.edge import Edge
from attestation_agent.exits import Exit
from attestation_agent.node import Agent
from attestation_agent.rhythm import Rhythm
from attestation_agent.settings import Settings, load
from attestation_agent.state import State
from attestation_testing import SoftwareNode
from tests.fixtures.over_httpx import answering

MACHINE_ID = "7f3ad3ac-0f0e-4c55-9d4a-3f6f0e1b2c3d"
OTHER_ID = "00000000-0f0e-4c55-9d4a-3f6f0e1b2c3d"
CONFIG = b"machine:\n  token: canary-5f1c\n"
URL = "https://attest.example"


def signer(tmp_path: Path, name: str = "service") -> KeySigner:
    from attestation.keys import load_signer

    made = load_signer(f"file:{tmp_path / name}.pem", create=True)
    assert isinstance(made, KeySigner)
    return made


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.at = datetime(2026, 11, 21, 4, tzinfo=UTC)

    def now(self) -> datetime:
        """Return the instant."""
        return self.at


class Machine(SoftwareNode):
    """A software machine whose end can be watched, and whose TPM can fail."""

    def __init__(self, seed: int = 1) -> None:
        super().__init__(seed)
        self.ended: list[str] = []
        self.failures = 0
        self.quotes: list[bytes] = []

    def quote(self, qualifying_data: bytes, selection: Any) -> Any:
        """Quote, unless it is to fail."""
        if self.failures:
            self.failures -= 1
            raise DeviceError("the TPM does not answer")
        self.quotes.append(qualifying_data)
        return super().quote(qualifying_data, selection)

    def shutdown(self) -> None:
        """Note the announcement."""
        self.ended.append("shutdown")

    def close(self) -> None:
        """Note the end."""
        self.ended.append("close")


@dataclass
class Service:
    """The node protocol by hand: checks what it must, and answers what the test wants answered."""

    signer: KeySigner
    clock: Clock
    machine_id: str = MACHINE_ID
    status: str = "pending_approval"
    action: str = "none"
    config: bytes = CONFIG
    token_id: str = "0123456789abcdef"
    node_nonce: str = ""
    """Of the request that is answered."""
    welcome: Callable[[dict[str, Any]], str | None] | None = None
    """Makes another welcome out of the claims of the right one."""
    reattest_after_seconds: int = 45
    directive: Callable[[dict[str, Any]], str | None] | None = None
    """Makes another directive out of the claims of the right one."""
    before: Callable[[str, dict[str, Any]], httpx.Response | None] = lambda path, body: None
    alter: Callable[[str, dict[str, Any]], dict[str, Any]] = lambda path, body: body
    """Changes an answer on its way."""
    requests: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    acks: list[dict[str, Any]] = field(default_factory=list)
    ek: Any = None
    ak: Any = None
    activation: tuple[str, bytes] = ("", b"")
    nonces: dict[str, bytes] = field(default_factory=dict)
    last_directive: str | None = None
    owes: bool = False
    """It offers a configuration until `done`; an older one until a fetch."""
    config_claims: dict[str, Any] = field(default_factory=dict)
    config_signature: Callable[[dict[str, Any]], str | None] | None = None
    """Makes the signature of a delivery in place of the service."""

    def __call__(self, request: httpx.Request) -> httpx.Response:
        """Answer *request*."""
        path = request.url.path.removeprefix("/api/v1")
        body = json.loads(request.content) if request.content else dict(request.url.params)
        self.requests.append((path, body))
        self.node_nonce = body.get("node_nonce") or request.headers.get("itl-node-nonce", "")
        early = self.before(path, body)
        if early is not None:
            return early
        if path in ("/self-register", "/register"):
            answer = self._introduce(body)
        elif path.endswith("/ak-activate"):
            answer = self._activate(body)
        elif path == "/attest/challenge":
            answer = self._challenge()
        elif path == "/attest":
            answer = self._attest(body)
        elif path.startswith("/config/"):
            answer = self._config(path)
        else:
            answer = self._ack(body)
        altered = self.alter(path, answer)
        if path.startswith("/config/"):
            headers = {"Content-Type": "application/vnd.itl.config.encrypted+json"}
            signature = self.sign_config(self.config_claims)
            if signature is not None:
                headers["Itl-Config-Signature"] = signature
            return httpx.Response(200, content=json.dumps(altered), headers=headers)
        return httpx.Response(200, json=altered)

    def paths(self) -> list[str]:
        """Return the routes asked for, in order, and forget them."""
        paths = [path.replace(MACHINE_ID, "ID") for path, _ in self.requests]
        self.requests.clear()
        return paths

    def _introduce(self, body: dict[str, Any]) -> dict[str, Any]:
        self.ek = parse_public(b64decode(body["ek_public"], "ek"))
        self.ak = parse_public(b64decode(body["ak_public"], "ak"))
        assert body["ek_fingerprint"] == self.ek.fingerprint()
        keys = ak_activation.check_keys(self.ek.tpm2b(), self.ak.tpm2b())
        challenge_id = secrets.token_hex(16)
        offer = ak_activation.offer(
            keys, secret=secrets.token_bytes(32), machine_id=self.machine_id, challenge_id=challenge_id
        )
        self.activation = (challenge_id, offer.expected_sha256)
        return {
            "machine_id": self.machine_id,
            "status": self.status,
            "role": None,
            "message": "prove it",
            "activation": {
                "challenge_id": challenge_id,
                "credential_blob": b64encode(offer.credential.credential_blob),
                "encrypted_secret": b64encode(offer.credential.encrypted_secret),
                "expires_at": (self.clock.now() + timedelta(seconds=60)).isoformat(),
            },
        }

    def _activate(self, body: dict[str, Any]) -> dict[str, Any]:
        assert body["challenge_id"] == self.activation[0]
        assert hashlib.sha256(b64decode(body["proof"], "proof")).digest() == self.activation[1]
        self.welcome_claims = self.claims(challenge_id=body["challenge_id"], status=self.status)
        make = self.welcome or (lambda claims: self.sign(claims, typ="itl-welcome+jwt"))
        return {
            "machine_id": self.machine_id,
            "status": self.status,
            "role": None,
            "ak_accepted": True,
            "message": "accepted",
            "service_keys": self.signer.jwks(),
            "welcome": make(self.welcome_claims),
        }

    def claims(self, **more: Any) -> dict[str, Any]:
        """Return the claims of a statement for the machine that asked last."""
        now = int(self.clock.now().timestamp())
        binding = {
            "machine_id": self.machine_id,
            "ek_fingerprint": self.ek.fingerprint(),
            "ak_name": self.ak.name.hex(),
        }
        return {
            "binding": binding,
            "node_nonce": self.node_nonce,
            "iat": now,
            "exp": now + 300,
            **more,
        }

    def _challenge(self) -> dict[str, Any]:
        nonce_id = secrets.token_hex(16)
        self.nonces[nonce_id] = secrets.token_bytes(32)
        return {
            "nonce_id": nonce_id,
            "nonce": b64encode(self.nonces[nonce_id]),
            "expires_at": (self.clock.now() + timedelta(seconds=60)).isoformat(),
            "pcr_selection": {"sha256": [0, 7]},
            "event_log": "accepted",
            "evidence": ["tpm-quote"],
        }

    def _attest(self, body: dict[str, Any]) -> dict[str, Any]:
        nonce = self.nonces.pop(body["nonce_id"])
        token = None
        if self.action != "none":
            claims = self.claims(action=self.action, nonce=b64encode(nonce))
            if self.action == "apply-config":
                claims["token_id"] = self.token_id
            make = self.directive or self.sign
            token = self.last_directive = make(claims)
        return {
            "machine_id": self.machine_id,
            "status": self.status,
            "message": "seen",
            "action": self.action,
            "config_token": "t0ken" if self.action == "apply-config" else None,
            "directive": token,
            "reattest_after_seconds": self.reattest_after_seconds,
            "next_challenge": self._challenge(),
        }

    def sign_config(self, claims: dict[str, Any]) -> str | None:
        """Sign a delivery as the service would; tests put something else in its place."""
        make = self.config_signature
        return self.sign(claims, typ="itl-config+jwt") if make is None else make(claims)

    def sign(self, claims: dict[str, Any], *, typ: str = "itl-directive+jwt") -> str:
        """Sign *claims* as the service would."""
        return self.signer.sign_jwt(claims, typ=typ)

    def _config(self, path: str) -> dict[str, Any]:
        assert path == "/config/t0ken"
        if not self.owes:
            self.action = "none"
        sealed = seal(
            self.config,
            ek=self.ek,
            ak_name=self.ak.name,
            machine_id=self.machine_id,
            token_id=self.token_id,
        )
        self.config_claims = self.claims(token_id=sealed.token_id, config_sha256=sealed.config_sha256)
        return {
            "format": "ek-aes256gcm-v2",
            "machine_id": sealed.machine_id,
            "token_id": sealed.token_id,
            "credential_blob": b64encode(sealed.credential_blob),
            "encrypted_secret": b64encode(sealed.encrypted_secret),
            "iv": b64encode(sealed.iv),
            "ciphertext": b64encode(sealed.ciphertext),
            "config_sha256": sealed.config_sha256,
        }

    def _ack(self, body: dict[str, Any]) -> dict[str, Any]:
        nonce = self.nonces.pop(body["nonce_id"])
        body["qualifying_data"] = hashlib.sha256(
            b"itl-ack-v2\0" + nonce + bytes.fromhex(body["directive_sha256"]) + body["outcome"].encode()
        ).digest()
        self.acks.append(body)
        if self.owes and body["outcome"] == "done":
            self.action = "none"
        return {"machine_id": self.machine_id, "status": self.status, "message": "recorded"}


class Events:
    """A log that tests can read."""

    def __init__(self) -> None:
        self.entries: list[tuple[str, dict[str, object]]] = []

    def _note(self, event: str, **fields: object) -> None:
        self.entries.append((event, fields))

    info = warning = error = _note

    def names(self) -> list[str]:
        """Return what happened, in order."""
        return [event for event, _ in self.entries]


class World:
    """An agent and everything around it.

    Args:
        tmp_path: For files.
        options: Settings by their flags.
        once: End after the first conclusive answer.
    """

    def __init__(self, tmp_path: Path, *, once: bool = True, **options: str) -> None:
        self.tmp_path = tmp_path
        self.clock = Clock()
        self.service = Service(signer(tmp_path), self.clock)
        self.machine = Machine()
        self.events = Events()
        self.config_path = tmp_path / "out" / "config.yaml"
        self.waits: list[float] = []
        self.rounds = 1
        self.commands: list[tuple[str, ...]] = []
        self.command = Outcome(ok=True, text="exit status 0")
        self.during: Callable[[int], None] = lambda round_: None
        self.attested: Callable[[], object] = lambda: None
        self.machined: Acts | None = None
        self.agent: type[Agent] = Agent
        flags = {
            "server_url": URL,
            "state_dir": str(tmp_path / "state"),
            "config_path": str(self.config_path),
            "sysfs": str(tmp_path / "sys"),
            "splay_seconds": "0",
            **options,
        }
        self.settings: Settings = load({**flags, "once": once}, environ={})
        self.state = State(self.settings.state_dir, wipe_orders=self.settings.wipe_order_dir)

    def run(self, rounds: int = 1) -> Exit:
        """Let the agent live; without `once`, for so many rounds."""
        self.waits.clear()
        self.rounds = rounds
        edge = Edge(
            clock=self.clock,
            wait=self._wait,
            open_tpm=lambda: self.machine,
            run=self._run,
            rhythm=Rhythm(uniform=lambda low, high: high),
            log=self.events,
            attested=self.attested,
            machined=self.machined,
        )
        with NodeClient(URL, carrier=answering(self.service)) as client:
            return self.agent(self.settings, state=self.state, client=client, edge=edge).run()

    def _wait(self, seconds: float) -> bool:
        self.waits.append(seconds)
        self.clock.at += timedelta(seconds=seconds)
        passed = len([w for w in self.waits if w])
        self.during(passed)
        return passed >= self.rounds

    def _run(self, command: tuple[str, ...]) -> Outcome:
        self.commands.append(command)
        return self.command
