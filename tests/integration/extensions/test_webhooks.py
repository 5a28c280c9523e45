"""Webhooks from an operator's command line to a receiver: a real service, every command of the group."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Queue
from typing import Any

import pytest
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from attestation.keys import create_kek
from tests.fixtures.service import ServiceProcess

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

Operates = Callable[..., Any]
WAIT = 30.0


class Receiver(ThreadingHTTPServer):
    """Keeps what comes, and takes all of it."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.got: Queue[tuple[dict[str, str], bytes]] = Queue()


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        """Take it."""
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.got.put(({name.lower(): value for name, value in self.headers.items()}, body))
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 -- named so by the base
        """Say nothing."""


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A receiver on loopback."""
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def operates(tmp_path: Path) -> Iterator[Operates]:
    """A service that may send to loopback; return what `attestation -o json …` prints."""
    create_kek(f"file:{tmp_path}/webhooks.kek").close()
    service = ServiceProcess(
        directory=tmp_path,
        workers=1,
        environment={
            "ITL_EXTENSIONS": "webhooks",
            "ITL_EXT_WEBHOOKS_KEK": f"file:{tmp_path}/webhooks.kek",
            "ITL_EXT_WEBHOOKS_ALLOW_HTTP": "true",
            "ITL_WEBHOOK_ALLOW_NETS": "127.0.0.0/8",
            "ITL_EXT_WEBHOOKS_POLL_SECONDS": "0.2",
        },
    )
    service.start()
    token = tmp_path / "admin.token"
    token.write_text(service.admin_token)
    token.chmod(0o600)

    def run(*words: str, code: int = 0) -> Any:
        done = subprocess.run(
            [str(Path(sys.executable).with_name("attestation")), "-o", "json", "webhook", *words],
            env={
                "PATH": "/usr/bin:/bin",
                "LANG": "C.UTF-8",
                "HOME": str(tmp_path),
                "ITL_API_URL": service.url,
                "ITL_ADMIN_TOKEN_FILE": str(token),
            },
            capture_output=True,
            check=False,
            timeout=240,
        )
        assert done.returncode == code, done.stderr
        return json.loads(done.stdout) if code == 0 else done.stderr.decode()

    yield run
    service.kill()


def test_an_operator_has_a_receiver_told(operates: Operates, receiver: Receiver, tmp_path: Path) -> None:
    """Added, tested, verified by the secret that was shown once, replayed with its id, rotated, removed."""
    url = f"http://127.0.0.1:{receiver.server_address[1]}/itl"
    made = operates("add", "-u", url, "-e", "machine.locked,attestation.failed")
    webhook_id, secret = made["webhook"]["webhook_id"], made["secret"]
    assert "machine.locked" in [each["event"] for each in operates("events")]
    assert secret not in json.dumps([operates("list"), operates("get", webhook_id)])
    sent = operates("test", webhook_id)["delivery_id"]
    headers, body = receiver.got.get(timeout=WAIT)
    assert Webhook(secret).verify(body, headers)["type"] == "webhook.test"
    assert headers["webhook-id"] == sent
    with pytest.raises(WebhookVerificationError):
        Webhook(secret).verify(body + b" ", headers)
    # Whatever became of it by now, under the same id.
    assert operates("replay", webhook_id, sent) == {"deliveries": 1}
    assert receiver.got.get(timeout=WAIT)[0]["webhook-id"] == sent
    assert [each["delivery_id"] for each in operates("deliveries", webhook_id)] == [sent]
    assert operates("replay", webhook_id) == {"deliveries": 0}
    # What came back is for auditors.
    seen = operates("delivery", webhook_id, sent)
    assert json.loads(seen["payload"])["type"] == "webhook.test"
    assert seen["delivery"]["delivery_id"] == sent
    # A secret of the receiver's own, from a file: no argument of a program is a secret.
    mine = f"whsec_{base64.b64encode(b'm' * 32).decode()}"
    (tmp_path / "mine").write_text(f"{mine}\n")
    named = ("-u", url, "-e", "kms.held", "--secret-file")
    assert operates("add", *named, str(tmp_path / "mine"))["secret"] == mine
    assert "No such file" in operates("add", *named, str(tmp_path / "none"), code=2)
    # Both secrets sign.
    newer = operates("rotate", webhook_id)["secret"]
    operates("test", webhook_id)
    headers, body = receiver.got.get(timeout=WAIT)
    for each in (secret, newer):
        Webhook(each).verify(body, headers)
    # Another of the receiver's own, later, by standard input or a file.
    assert mine not in json.dumps(operates("update", webhook_id, "--secret-file", str(tmp_path / "mine")))
    operates("test", webhook_id)
    headers, body = receiver.got.get(timeout=WAIT)
    for each in (newer, mine):
        Webhook(each).verify(body, headers)
    assert operates("update", webhook_id, "--disable", "-e", "*")["enabled"] is False
    operates("update", webhook_id, code=2)
    operates("delete", webhook_id, "--yes")
    assert [each["events"] for each in operates("list")] == [["kms.held"]]
