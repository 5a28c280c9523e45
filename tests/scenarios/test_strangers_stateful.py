"""Whatever strangers do, in whatever order: nothing comes out and nobody comes in (FAULTS R2, E2).

Hypothesis plays strangers at all public endpoints with a self-signed EK, copied EK certificates, software AKs,
captured requests and guesses. One service lives through all sequences, with victims in every status.
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import secrets
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import httpx
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from attestation.device import KeyType
from attestation.device.keys import DECRYPTION_ATTRIBUTES, key_template
from attestation.tpm import PCRSelection, parse_tpmt_public
from attestation_testing import (
    CertificateAuthority,
    EKCertificateOptions,
    SoftwareAK,
    SoftwareNode,
    ak_template,
    software_key,
)
from tests.fixtures.effort import often
from tests.fixtures.in_process import InProcessService, in_process_service
from tests.fixtures.machine import Machine, b64
from tests.scenarios.scene import Scene

SEQUENCES = often(1_000, 10_000)
STEPS = 4
"""FAULTS E2 asks for ten thousand sequences; each step is followed by the invariant."""
LONG_SEQUENCES = often(60, 300)
LONG_STEPS = 15
"""Fewer that go deeper."""
REFUSALS = frozenset({400, 401, 403, 404, 405, 406, 409, 410, 413, 422, 429})
VENDOR = EKCertificateOptions(manufacturer="id:49465800")
IMPORTED_KEY = software_key(
    parse_tpmt_public(key_template(KeyType.RSA_2048, attributes=DECRYPTION_ATTRIBUTES))
)
IMPORTED_AK = SoftwareAK(ak_template(attributes=0x00050040), seed=1)
ACCEPTS = ("application/vnd.itl.config.encrypted+json", "application/yaml", "application/json", "*/*", "")
OPERATOR_ROUTES = [
    ("GET", "/machines"),
    ("GET", "/machines/{id}"),
    ("GET", "/machines/{id}/results"),
    ("POST", "/machines/{id}/approve"),
    ("POST", "/machines/{id}/unlock"),
    ("POST", "/machines/{id}/ak-reset"),
    ("POST", "/machines/{id}/redeliver"),
    ("DELETE", "/machines/{id}"),
    ("POST", "/registration-tokens"),
    ("GET", "/registration-tokens"),
    ("POST", "/allow-list"),
    ("GET", "/allow-list"),
    ("GET", "/machines/{id}/certificates"),
    ("POST", "/machines/{id}/offline-bundle"),
    ("GET", "/ca"),
    ("POST", "/ca/rotation"),
    ("GET", "/policies"),
    ("GET", "/audit"),
    ("GET", "/audit/verify"),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Victim:
    """A machine of the fleet, with all of it that strangers saw on the wire."""

    machine: Machine
    introduction: dict[str, Any]
    captured: list[tuple[str, dict[str, Any]]]
    certificate: str | None

    @property
    def machine_id(self) -> str:
        """Its id."""
        return self.machine.machine_id


@dataclass(kw_only=True)
class World:
    """The service, the fleet, and what strangers did to both in all sequences so far."""

    service: InProcessService
    scene: Scene
    victims: list[Victim] = field(default_factory=list)
    fleet: dict[str, dict[str, Any]] = field(default_factory=dict)
    activated: set[str] = field(default_factory=set)
    certificates: dict[str, str] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1000))
    requests: int = 0
    sequences: int = 0

    def __post_init__(self) -> None:
        self.authority = CertificateAuthority("Honest Looking CA", seed=7)
        self.http = self.scene.http()
        self.http.event_hooks["response"].append(self._count)
        self.database = sqlite3.connect(f"file:{self.service.database}?mode=ro", uri=True)
        prepare: list[Callable[[Machine], object]] = [
            lambda m: m.enrol(),
            self._approved,
            self._attested,
            lambda m: self.scene.operator.act(self._attested(m), "lock"),
            lambda m: (self.scene.operator.act(self._attested(m), "revoke", wipe=True), m.attest()),
            lambda m: (m.enrol(), self.scene.operator.act(m.machine_id, "reject", reason="test")),
            lambda m: self.scene.operator.act(self._attested(m), "ak-reset", reason="test"),
        ]
        for seed, make in enumerate(prepare):
            self.victims.append(self._victim(seed, make))
        self.fleet = {v.machine_id: self._seen(v.machine_id) for v in self.victims}
        self.audit = self._audited()
        self.serials = self._serials()

    def _serials(self) -> list[tuple[Any, ...]]:
        return self.database.execute("SELECT serial, state FROM certificates ORDER BY id").fetchall()

    def _approved(self, machine: Machine) -> str:
        machine.enrol(hw_mac="52:54:00:aa:aa:aa", hw_serial="S-7")
        self.scene.operator.approve(
            machine.machine_id, "controlplane", hostname=f"cp-secret-name-{len(self.victims)}", accept_ek=True
        )
        return machine.machine_id

    def _attested(self, machine: Machine) -> str:
        self._approved(machine)
        machine.attest()
        key = machine.keys.create_signing_key()
        self.certificates[machine.machine_id] = machine.certificate(key)["enrollment_cert_pem"]
        assert machine.enroll(self.certificates[machine.machine_id], key).is_success
        return machine.machine_id

    def _victim(self, seed: int, make: Callable[[Machine], object]) -> Victim:
        node = SoftwareNode(seed, authority=self.authority, at=self.service.clock.now(), options=VENDOR)
        machine = self.scene.machine(node)
        captured: list[tuple[str, dict[str, Any]]] = []

        def capture(request: httpx.Request) -> None:
            if request.method == "POST":
                path = request.url.path.removeprefix("/api/v1")
                captured.append((path, json.loads(request.read())))

        machine.http.event_hooks["request"].append(capture)
        make(machine)
        return Victim(
            machine=machine,
            introduction=machine.introduction(),
            captured=captured,
            certificate=self.certificates.get(machine.machine_id),
        )

    def _count(self, response: httpx.Response) -> None:
        self.requests += 1
        assert response.is_success or response.status_code in REFUSALS, (
            f"{response.request.method} {response.request.url}: {response.status_code} {response.text}"
        )

    def _seen(self, machine_id: str) -> dict[str, Any]:
        shown = self.scene.operator.machine(machine_id)
        del shown["trust"]  # ages by itself
        return shown

    def _audited(self) -> list[tuple[Any, ...]]:
        marks = ",".join("?" * len(self.victims))
        rows = self.database.execute(
            f"SELECT id, action FROM audit_log WHERE machine_id IN ({marks}) "
            "AND action NOT IN ('denied', 'cert_refused')",
            [v.machine_id for v in self.victims],
        )
        return rows.fetchall()

    def nobody_came_in(self) -> None:
        """Only activated machines exist besides the fleet; they wait without a role, and have no certificate."""
        rows = self.database.execute(
            "SELECT count(*), coalesce(sum(status <> 'pending_approval' OR role IS NOT NULL), 0) FROM machines"
        ).fetchone()
        others = [v for v in self.fleet.values() if v["status"] != "pending_approval"]
        assert rows == (len(self.fleet) + len(self.activated), len(others))
        assert self._serials() == self.serials, "no serial number was even reserved"

    def the_fleet_is_as_it_was(self) -> None:
        """No machine of the fleet changed, and nothing was written about one but refusals."""
        assert self._audited() == self.audit
        for machine_id, before in self.fleet.items():
            assert self._seen(machine_id) == before


Offer = tuple[Machine, dict[str, Any]]
Asked = tuple[str, dict[str, Any]]
WAYS_TO_ASK = [
    *("own key, own AK", "external key, own AK", "another nonce", "captured", "their certification"),
    *("own key, their name", "made by the service", "no evidence", "garbage"),
]


class Strangers(RuleBasedStateMachine):
    """One sequence of requests."""

    world: ClassVar[World]
    offers: Bundle[Offer] = Bundle("offers")
    asked: Bundle[Asked] = Bundle("asked")
    to_certify: Bundle[Asked] = Bundle("to_certify")
    to_enroll: Bundle[Asked] = Bundle("to_enroll")

    def __init__(self) -> None:
        super().__init__()
        node = SoftwareNode(
            next(self.world.numbers),
            authority=self.world.authority,
            at=self.world.service.clock.now(),
            options=VENDOR,
        )
        self.me = Machine(node, self.world.http)
        self.key = node.create_signing_key()
        self.world.sequences += 1

    victims = st.integers(0, 6)

    def victim(self, which: int) -> Victim:
        """Return a machine of the fleet."""
        return self.world.victims[which]

    def target(self, whose: int | None) -> str:
        """Return the id of a victim, or of this stranger's own machine as far as it has one."""
        if whose is not None:
            return self.victim(whose).machine_id
        return getattr(self.me, "machine_id", "00000000-0000-4000-8000-000000000000")

    @rule(
        target=offers,
        which=victims,
        kind=st.sampled_from(
            ["self-signed", "self-made", "copied certificate", "copied EK", "copied EK and AK", "imported AK"]
        ),
        path=st.sampled_from(["/self-register", "/register"]),
        role=st.sampled_from([None, "controlplane", "windows"]),
        token=st.sampled_from([None, "guess", "x" * 43]),
        fingerprint=st.sampled_from(["own", "theirs"]),
    )
    def introduce(
        self, which: int, kind: str, path: str, role: str | None, token: str | None, fingerprint: str
    ) -> Any:
        """Introduce something true, copied or made up."""
        victim = self.victim(which)
        own = self.me.introduction(desired_role=role, hw_mac="52:54:00:aa:aa:aa")
        body = {
            "self-signed": own,
            "self-made": own | {"ek_source": "pub", "ek_cert_pem": None},
            "copied certificate": own | {"ek_cert_pem": victim.introduction["ek_cert_pem"]},
            "copied EK": victim.introduction | {"ak_public": own["ak_public"]},
            "copied EK and AK": victim.introduction,
            "imported AK": own | {"ak_public": b64(IMPORTED_AK.public.tpm2b())},
        }[kind]
        if fingerprint == "theirs":
            body = body | {"ek_fingerprint": victim.machine.ek_fingerprint}
        if token is not None and path == "/register":
            body = body | {"registration_token": token}
        answer = self.me.post(path, body)
        if not answer.is_success:
            return multiple()
        assert answer.json()["role"] is None
        return self.me, answer.json()

    @rule(
        offer=offers,
        how=st.sampled_from(["honest", "zeros", "stolen", "long"]),
        as_victim=st.none() | victims,
    )
    def activate(self, offer: Offer, how: str, as_victim: int | None) -> None:
        """Answer an offer: with the secret if this stranger's EK opens it, else with a guess."""
        machine, answer = offer
        proof = {"zeros": bytes(32), "stolen": secrets.token_bytes(32), "long": bytes(48)}.get(how, b"")
        body = {"challenge_id": answer["activation"]["challenge_id"], "proof": b64(proof)}
        if how == "honest":
            try:
                body = machine.activation(answer)
            except Exception:
                body["proof"] = b64(bytes(32))  # not sealed to us
        machine_id = answer["machine_id"] if as_victim is None else self.target(as_victim)
        activated = machine.activate(body, machine_id)
        if activated.is_success:
            found = activated.json()
            assert (found["status"], found["role"]) == ("pending_approval", None)
            assert found["machine_id"] not in self.world.fleet
            self.world.activated.add(found["machine_id"])
            machine.machine_id = found["machine_id"]

    @rule()
    def come_in(self) -> None:
        """Introduce a TPM of one's own and activate it: all that a stranger is let do."""
        answer = self.me.post("/register", self.me.introduction())
        if answer.is_success:
            self.activate((self.me, answer.json()), "honest", None)

    @rule(target=asked, whose=st.none() | victims)
    def ask(self, whose: int | None) -> Any:
        """Ask for a challenge in anybody's name."""
        machine_id = self.target(whose)
        answer = self.world.http.get("/api/v1/attest/challenge", params={"machine_id": machine_id})
        return (machine_id, answer.json()) if answer.is_success else multiple()

    @rule(
        challenge=asked,
        whose=st.none() | victims,
        how=st.sampled_from(["own AK", "imported AK", "old quote", "garbage"]),
        want=st.booleans(),
    )
    def attest(self, challenge: Asked, whose: int | None, how: str, want: bool) -> None:
        """Quote in anybody's name with anything."""
        asked_for, asked = challenge
        nonce = base64.b64decode(asked["nonce"])
        selection = PCRSelection.from_names(asked["pcr_selection"])
        ak = IMPORTED_AK if how == "imported AK" else self.me.device.ak  # type: ignore[attr-defined]  # a SoftwareNode
        quote = ak.quote(nonce if how != "old quote" else bytes(32), selection)
        machine_id = asked_for if whose is None else self.target(whose)
        known = [v.machine for v in self.world.victims if v.machine_id == machine_id]
        answer = self.me.send(
            {
                "machine_id": machine_id,
                "ek_fingerprint": (known[0] if known else self.me).ek_fingerprint,
                "nonce_id": asked["nonce_id"],
                "pcr_quote": b64(quote.attest if how != "garbage" else bytes(100)),
                "pcr_signature": b64(quote.signature),
                "pcr_values": {
                    b: {str(i): v.hex() for i, v in p.items()} for b, p in quote.pcr_values.items()
                },
                "want_result": want,
            }
        )
        if answer.is_success:
            assert machine_id == getattr(self.me, "machine_id", None)
            assert answer.json()["status"] == "pending_approval"

    @rule(which=victims, number=st.integers(0, 9))
    def replay(self, which: int, number: int) -> None:
        """Send what was captured on the wire once more."""
        captured = self.victim(which).captured
        path, body = captured[number % len(captured)]
        answer = self.me.post(path, body)
        assert answer.is_error or path in ("/self-register", "/register")

    @rule(
        challenge=asked,
        which=victims,
        outcome=st.sampled_from(["done", "failed"]),
    )
    def acknowledge(self, challenge: Asked, which: int, outcome: str) -> None:
        """Say for somebody that it was wiped."""
        body = self.me.acknowledgement("e30.e30.", outcome, challenge[1])
        answer = self.me.post(f"/machines/{self.target(which)}/ack", body)
        assert answer.is_error

    def ask_for_certificate(self, whose: int | None, purpose: str) -> Any:
        """Ask for a challenge in anybody's name."""
        machine_id = self.target(whose)
        path = f"/api/v1/machines/{machine_id}/challenge"
        answer = self.world.http.get(path, params={"purpose": purpose})
        return (machine_id, answer.json()) if answer.is_success else multiple()

    @rule(target=to_certify, whose=st.none() | victims)
    def ask_to_certify(self, whose: int | None) -> Any:
        """Ask for a challenge for a certificate."""
        return self.ask_for_certificate(whose, "certify")

    @rule(target=to_enroll, whose=st.none() | victims)
    def ask_to_enroll(self, whose: int | None) -> Any:
        """Ask for a challenge with a certificate."""
        return self.ask_for_certificate(whose, "enroll")

    @rule(
        challenge=to_certify | to_enroll | asked,
        whose=st.none() | victims,
        how=st.sampled_from(WAYS_TO_ASK),
        profile=st.sampled_from(["node-client", "node-server", "operator"]),
    )
    def request_certificate(self, challenge: Asked, whose: int | None, how: str, profile: str) -> None:
        """Ask for a certificate in anybody's name with anything."""
        machine_id, asked = challenge
        if whose is not None:
            machine_id = self.target(whose)
        key, nonce = self.key, asked
        if how == "another nonce":
            nonce = asked | {"nonce": b64(bytes(32))}
        body = self.me.cert_request(nonce, key, profile=profile)
        node = self.me.device
        assert isinstance(node, SoftwareNode)
        victim = next((v for v in self.world.victims if v.machine_id == machine_id), self.victim(0))
        captured = [sent for path, sent in victim.captured if path.endswith("/request-cert")]
        match how:
            case "external key, own AK":
                said = node.certify_key(key, bytes(32), external=True)
                body |= {"certify_info": b64(said.certify_info), "certify_signature": b64(said.signature)}
            case "captured" if captured:
                body = captured[0] | {"nonce_id": asked["nonce_id"]}
            case "their certification" if captured:
                body |= {name: captured[0][name] for name in ("certify_info", "certify_signature")}
            case "own key, their name" if captured:
                body["key_public"] = captured[0]["key_public"]
            case "made by the service":
                body = self.me.server_key_request(asked, IMPORTED_KEY)
            case "no evidence":
                del body["certify_signature"]
            case "garbage":
                body["certify_info"] = b64(bytes(100))
        answer = self.me.post(f"/machines/{machine_id}/request-cert", body)
        assert answer.is_error

    @rule(
        challenge=to_enroll | to_certify,
        which=victims,
        how=st.sampled_from(["own signature", "another text", "captured"]),
    )
    def enroll(self, challenge: Asked, which: int, how: str) -> None:
        """Present a certificate that everybody has seen, without its key."""
        _, asked = challenge
        victim = self.victim(which)
        shown = victim.certificate or next(iter(self.world.certificates.values()))
        body = self.me.enrollment(shown, self.key, asked)
        if how == "another text":
            body["nonce"] = b64(bytes(32))
        captured = [sent for path, sent in victim.captured if path == "/machines/enroll"]
        if how == "captured" and captured:
            body = captured[0] | {"nonce_id": asked["nonce_id"]}
        answer = self.me.post("/machines/enroll", body)
        assert answer.is_error

    @rule(
        token=st.sampled_from(["guess", "%00", "..%2f..", "x" * 300]) | st.binary(max_size=32).map(bytes.hex),
        accept=st.sampled_from(ACCEPTS),
    )
    def fetch(self, token: str, accept: str) -> None:
        """Guess a config token."""
        answer = self.world.http.get(f"/api/v1/config/{token or 'x'}", headers={"Accept": accept})
        assert answer.is_error

    @rule(which=victims, hint=st.sampled_from(["mac", "uuid", "serial"]), accept=st.sampled_from(ACCEPTS))
    def hint(self, which: int, hint: str, accept: str) -> None:
        """Ask by what is printed on the case."""
        value = self.victim(which).introduction.get(f"hw_{hint}", "52:54:00:aa:aa:aa")
        self.world.http.get("/api/v1/config", params={hint: value}, headers={"Accept": accept})

    @rule(
        route=st.sampled_from(OPERATOR_ROUTES),
        which=victims,
        credential=st.sampled_from([None, "Bearer ", "Bearer guess", "Basic c3lzdGVtOg==", "bearer null"]),
    )
    def act(self, route: tuple[str, str], which: int, credential: str | None) -> None:
        """Do what only operators may."""
        method, path = route
        victim = self.victim(which)
        headers = {"X-EK-Fingerprint": victim.machine.ek_fingerprint, "X-Forwarded-For": "198.51.100.1"}
        if credential is not None:
            headers["Authorization"] = credential
        path = "/api/v1" + path.format(id=victim.machine_id)
        answer = self.world.http.request(method, path, headers=headers, json={"role": "controlplane"})
        assert answer.status_code in (401, 429)

    @rule(seconds=st.sampled_from([1, 50, 61, 400]))
    def wait(self, seconds: int) -> None:
        """Let time pass."""
        self.world.service.clock.pass_(seconds=seconds)

    @invariant()
    def nobody_came_in(self) -> None:
        """After each step."""
        self.world.nobody_came_in()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A service with victims in every status."""
    memory = Path("/dev/shm")  # no power cut is tested here, so nothing has to reach a disk
    with (
        tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else tmp_path) as directory,
        in_process_service(
            Path(directory),
            pending_limit_per_address=100_000,
            pending_limit=100_000,
            enrollment_ca_unencrypted=True,
            compat_server_keys=True,
        ) as service,
    ):
        scene = Scene(
            operator=service.operator(),
            client=service.client,
            canary=service.canary,
            admin_token=service.admin_token,
            secrets={"cp-secret-name"},
        )
        found = World(service=service, scene=scene)
        with closing(found.database):
            yield found
        scene.close()


@pytest.mark.threat("T2", "T105")
@pytest.mark.slow
@pytest.mark.timeout(1_200)
def test_no_sequence_of_requests_of_strangers_yields_anything(world: World) -> None:
    """Thousands of sequences: no config, token, certificate or role, no row before activation; no change."""
    sequence = type("Sequence", (Strangers,), {"world": world})
    for count, steps in ((SEQUENCES, STEPS), (LONG_SEQUENCES, LONG_STEPS)):
        run_state_machine_as_test(sequence, settings=settings(max_examples=count, stateful_step_count=steps))
    world.the_fleet_is_as_it_was()
    assert world.scene.operator.audit_is_valid()
    assert world.activated, "some strangers were honest enough to activate their own EK"
    assert world.requests >= 2 * SEQUENCES
