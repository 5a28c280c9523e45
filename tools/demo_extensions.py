"""What extensions do in `./dev run`: a secret for one machine, a disk key that is held, events and numbers."""

from __future__ import annotations

import secrets
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final, Self

import grpc
import httpx
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from attestation.api.operation import operation
from attestation.client import OperatorClient
from attestation.keys import create_kek
from attestation_extensions.commands.kms_api import KMS
from attestation_extensions.commands.secrets_api import Vault
from attestation_extensions.disk_kms.wire import KMSHoldRequest
from attestation_extensions.secret_vault import wire
from attestation_extensions.webhooks.wire import CreateWebhook, WebhookList, WebhookSecret
from tools.demo_people import write_private
from tools.demo_words import Narrator
from tools.stage import BIN, Failed, Machine, Service, environment

FRESH_SECONDS: Final = 10
NAMES: Final = ("disk_kms", "machine_identity", "metrics", "secret_vault", "webhooks")
AUDIENCE: Final = "demo"
TOLD: Final = ("secret.accessed", "secret.refused")
SECRET: Final = "registry-token"
COUNTED: Final = ("attestation_machine_attestations_total", "attestation_secret_operations_total")
COUNTING_SECONDS: Final = 20


def prepare(
    data: Path, kms_port: int, *, names: Sequence[str] = (), settings: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Make the keys of the extensions and of configurations; return what enables them, and the extensions of *names*.

    *settings* of extensions, `ITL_EXT_…`, go before ours.
    """
    create_kek(f"file:{data / 'vault.kek'}").close()
    create_kek(f"file:{data / 'disk.kek'}").close()
    create_kek(f"file:{data / 'webhooks.kek'}").close()
    token = data / "metrics-token"
    if not token.exists():
        write_private(token, secrets.token_urlsafe(32) + "\n")
    create_kek(f"file:{data / 'config.kek'}").close()
    return {
        # No extensions, and off by themselves: what their pages say is to be tried here, too.
        "ITL_CONFIG_KEK": f"file:{data / 'config.kek'}",
        "ITL_CONFIG_FILE_FALLBACK": "true",
        "ITL_CONSOLE_APPROVAL": "true",
        "ITL_EXTENSIONS": ",".join(dict.fromkeys((*NAMES, *names))),
        "ITL_METRICS_TOKEN_FILE": str(token),
        "ITL_EXT_SECRET_VAULT_KEK": f"file:{data / 'vault.kek'}",
        "ITL_EXT_WEBHOOKS_KEK": f"file:{data / 'webhooks.kek'}",
        "ITL_EXT_WEBHOOKS_ALLOW_HTTP": "true",
        "ITL_WEBHOOK_ALLOW_NETS": "127.0.0.0/8",
        "ITL_EXT_DISK_KMS_KEK": f"file:{data / 'disk.kek'}",
        "ITL_EXT_DISK_KMS_ADDRESS": f"127.0.0.1:{kms_port}",
        "ITL_EXT_DISK_KMS_INSECURE": "true",
        "ITL_EXT_DISK_KMS_FRESH_SECONDS": str(FRESH_SECONDS),
        "ITL_EXT_MACHINE_IDENTITY_KEY": f"file:{data / 'identity.pem'}",
        "ITL_EXT_MACHINE_IDENTITY_AUDIENCES": AUDIENCE,
        **(settings or {}),
    }


class Extras:
    """The walk through what extensions give to machines.

    Args:
        out: Tells of it.
        service: With the extensions.
        alice: An operator.
        machines: At least two, attested.
        ids: What the service calls them, in the same order.
        attest: Lets every agent attest once.
    """

    def __init__(
        self,
        out: Narrator,
        service: Service,
        alice: OperatorClient,
        machines: Sequence[Machine],
        ids: Sequence[str],
        attest: Callable[[], None],
    ) -> None:
        self._out, self._service, self._alice = out, service, alice
        self._machines, self._ids, self._attest = machines, ids, attest
        self._variables: Mapping[str, str] = service.variables

    def run(self) -> None:
        """All steps, in order."""
        before = self._counted()
        with Receiver() as receiver:
            self.listen(receiver)
            self.secret()
            self.disk_key()
            self.told(receiver)
        self.numbers(before)

    def listen(self, receiver: Receiver) -> None:
        """Have a program outside told of what happens to secrets."""
        for each in self._alice.ask(Hooks.all).webhooks:
            self._alice.ask(Hooks.delete, each.webhook_id)  # of a demo before, whose receiver is gone
        made = self._alice.ask(Hooks.create, CreateWebhook(url=receiver.url, events=list(TOLD)))
        receiver.secret = made.secret

    def told(self, receiver: Receiver) -> None:
        """Show what the program outside received, and that it knows from whom."""
        self._out.step(
            "A webhook receiver is told, and verifies",
            "Events leave after the commit, signed as Standard Webhooks has it; what fails comes again. Here a small "
            "program on loopback verifies each with the secret that it was given, and would refuse all else.",
        )
        end = time.monotonic() + COUNTING_SECONDS
        while len(receiver.verified) < len(self._machines):
            if time.monotonic() > end:
                raise Failed(
                    f"the receiver verified {len(receiver.verified)} events only; refused: {receiver.refused}"
                )
            time.sleep(0.2)
        names = {
            machine_id: machine.name for machine_id, machine in zip(self._ids, self._machines, strict=True)
        }
        for event in receiver.verified:
            self._out.fact("receiver", f"verified {event['type']} of {names.get(event['machine_id'], '?')}")

    def secret(self) -> None:
        """Keep a shared secret, grant it to one machine, and let all of them ask."""
        self._out.step(
            "A secret for one machine",
            "The vault keeps it under a key of its own and shows it to no operator. A machine that it is granted to "
            "asks with a fresh quote; the value comes sealed to that TPM, and `attestation-agent secret get` opens it.",
        )
        value = secrets.token_urlsafe(24)
        found = next((s for s in self._alice.ask(Vault.all_shared).secrets if s.name == SECRET), None)
        if found is None:
            found = self._alice.ask(Vault.create_shared, wire.CreateSharedSecret(name=SECRET, value=value))
        else:
            self._alice.ask(Vault.change_shared, found.shared_secret_id, {"value": value})
        self._alice.ask(Vault.grant, found.shared_secret_id, wire.Machines(machine_ids=[self._ids[0]]))
        for number, machine in enumerate(self._machines):
            code, got = self._get(machine)
            if number == 0 and got != value:
                raise Failed(f"{machine.name} did not get the secret ({code})")
            if number > 0 and code == 0:
                raise Failed(f"{machine.name} got a secret that is not its own")
            words = (
                f"opened {SECRET} in its TPM: {len(value)} characters"
                if number == 0
                else "refused: secret-forbidden"
            )
            self._out.fact(machine.name, words, good=number == 0)

    def _get(self, machine: Machine) -> tuple[int, str]:
        command = [str(BIN / "attestation-agent"), "secret", "get", SECRET, "--shared"]
        variables = {
            "ITL_REG_URL": self._service.url,
            "ITL_TPM": machine.tpm.uri,
            "ITL_STATE_DIR": str(machine.directory / "state"),
            "ITL_SYSFS": str(machine.directory / "sys"),
            "ITL_EVENT_LOG": str(machine.directory / "eventlog"),
        }
        done = subprocess.run(
            command, env=environment(**variables), capture_output=True, text=True, check=False, timeout=60
        )
        return done.returncode, done.stdout

    def disk_key(self) -> None:
        """Release a disk key to a machine that has just attested, and hold one that has not."""
        self._out.step(
            "Disk keys go to machines that have just attested",
            "A Talos node has its disk key sealed over gRPC and opened at each boot. It opens for the address that the "
            f"machine has quoted from within {FRESH_SECONDS} seconds; whoever else asks is told one sentence. "
            "An operator can hold a machine, and let it go.",
        )
        fresh, stale = self._machines[0], self._machines[1]
        node = _Talos(self._variables["ITL_EXT_DISK_KMS_ADDRESS"])
        self._attest()
        blobs = {each.name: node.ask("Seal", each, secrets.token_bytes(32)) for each in (fresh, stale)}
        if not all(blobs.values()):
            raise Failed("a machine that has just attested had no disk key sealed")
        for each in (fresh, stale):
            self._out.fact(
                each.name, f"attests, and has its disk key sealed: {len(blobs[each.name] or b'')} bytes"
            )
        time.sleep(FRESH_SECONDS)
        if node.ask("Unseal", stale, blobs[stale.name] or b"") is not None:
            raise Failed(f"{stale.name} got its disk key although it has not attested since")
        self._out.fact(
            stale.name,
            f"last quoted {FRESH_SECONDS} s ago: no disk key is given, its disk stays closed",
            good=False,
        )
        self._attest()
        if node.ask("Unseal", fresh, blobs[fresh.name] or b"") is None:
            raise Failed(f"{fresh.name} did not get its disk key")
        self._out.fact(fresh.name, "attests, and its disk opens")
        held = self._ids[1]
        self._alice.ask(KMS.hold, KMSHoldRequest(scope="machine", subject=held))
        if node.ask("Unseal", stale, blobs[stale.name] or b"") is not None:
            raise Failed(f"{stale.name} got its disk key although alice holds it")
        self._out.fact(stale.name, "attests too, but alice holds it: its disk stays closed", good=False)
        self._alice.ask(KMS.unhold, "machine", held)
        if node.ask("Unseal", stale, blobs[stale.name] or b"") is None:
            raise Failed(f"{stale.name} did not get its disk key although alice let it go")
        self._out.fact(stale.name, "alice ends the hold, and its disk opens")
        node.close()

    def numbers(self, before: Mapping[str, float]) -> None:
        """Show what moved."""
        self._out.step(
            "Prometheus reads what happened",
            "Every worker of every replica shows the same number; who has the token in the file reads `/metrics`.",
        )
        moved: dict[str, float] = {}
        end = time.monotonic() + COUNTING_SECONDS
        # What was audited is counted by the housekeeping, a few seconds later.
        while not all(any(name.startswith(each) for name in moved) for each in COUNTED):
            if time.monotonic() > end:
                raise Failed(f"{', '.join(COUNTED)}: only {', '.join(moved) or 'nothing'} moved")
            time.sleep(0.5)
            moved = {name: value for name, value in self._counted().items() if value != before.get(name, 0)}
        for name, value in sorted(moved.items()):
            self._out.fact("metrics", f"{name} {before.get(name, 0):.0f} → {value:.0f}")

    def _counted(self) -> dict[str, float]:
        token = Path(self._variables["ITL_METRICS_TOKEN_FILE"]).read_text(encoding="ascii").strip()
        answer = httpx.get(
            f"{self._service.url}/metrics", headers={"Authorization": f"Bearer {token}"}, timeout=30
        )
        if answer.status_code != httpx.codes.OK:
            raise Failed(f"/metrics: {answer.status_code}")
        lines = (line.rpartition(" ") for line in answer.text.splitlines() if line.startswith(COUNTED))
        return {name: float(value) for name, _, value in lines}


class Receiver:
    """A program that webhooks are sent to, on loopback."""

    def __init__(self) -> None:
        self.secret = ""
        self.verified: list[dict[str, Any]] = []
        self.refused = 0
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(min(int(self.headers["content-length"]), 1 << 16))
                headers = {name.lower(): value for name, value in self.headers.items()}
                try:
                    receiver.verified.append(Webhook(receiver.secret).verify(body, headers))
                except WebhookVerificationError:
                    receiver.refused += 1
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/"
        self._thread = threading.Thread(target=self._server.serve_forever)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class Hooks:
    """What the demo asks of webhooks."""

    @operation("webhooks_create", "POST /webhooks/")
    def create(self, request: CreateWebhook) -> WebhookSecret:
        """Add an endpoint."""
        raise NotImplementedError

    @operation("webhooks_all", "GET /webhooks/")
    def all(self) -> WebhookList:
        """List the endpoints."""
        raise NotImplementedError

    @operation("webhooks_delete", "DELETE /webhooks/{webhook_id}")
    def delete(self, webhook_id: str) -> None:
        """Remove an endpoint."""


class _Talos:
    """Talos' side of its KMS protocol: `Request{string node_uuid=1; bytes data=2}`, `Response{bytes data=1}`."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.insecure_channel(address)

    def ask(self, method: str, machine: Machine, data: bytes) -> bytes | None:
        """Ask for the machine of this board; return None where it is denied."""
        uuid = (machine.directory / "sys/class/dmi/id/product_uuid").read_bytes().strip()
        call = self._channel.unary_unary(f"/sidero.kms.KMSService/{method}")
        try:
            answer: bytes = call(_field(1, uuid) + _field(2, data), timeout=10)
        except grpc.RpcError as e:
            if e.code() is grpc.StatusCode.PERMISSION_DENIED:
                return None
            raise Failed(f"the KMS answers {e.code()}") from None
        return answer[2:]

    def close(self) -> None:
        """Hang up."""
        self._channel.close()


def _field(number: int, value: bytes) -> bytes:
    """Return a field of protobuf whose value is shorter than 128 bytes."""
    return bytes((number << 3 | 2, len(value))) + value
