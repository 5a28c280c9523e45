"""What the extensions of the world have to show: a receiver of webhooks, secrets, a disk key that is held."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

from attestation.keys import create_kek
from tests.fixtures.service import Operator
from tools.ports import free_port

KEYED: Final = ("webhooks", "secret_vault", "disk_kms")
TOLD, GONE = "/told", "/gone"


def enabled(directory: Path) -> dict[str, str]:
    """Return the settings of a service with these extensions; their keys are made in *directory*."""
    keys = {}
    for name in KEYED:
        create_kek(f"file:{directory / name}.kek").close()
        keys[f"ITL_EXT_{name.upper()}_KEK"] = f"file:{directory / name}.kek"
    return keys | {
        "ITL_EXTENSIONS": ",".join(KEYED),
        "ITL_EXT_WEBHOOKS_ALLOW_HTTP": "true",
        "ITL_EXT_WEBHOOKS_POLL_SECONDS": "0.2",
        "ITL_WEBHOOK_ALLOW_NETS": "127.0.0.0/8",
        "ITL_EXT_DISK_KMS_ADDRESS": f"127.0.0.1:{free_port()}",
        "ITL_EXT_DISK_KMS_INSECURE": "true",
    }


class _Answers(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        """Take what comes at `/told`; say at any other address that nobody is there for good (410)."""
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(204 if self.path.startswith(TOLD) else 410)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def receiver() -> Iterator[str]:
    """Receive webhooks; yield the address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def listen(ask: Operator, url: str) -> list[str]:
    """Have the receiver told: of all that locks and revokes, and of failures at an address that is gone."""
    wanted = {
        TOLD: ["machine.locked", "machine.revoked", "machine.approved", "attestation.failed"],
        GONE: ["attestation.failed"],
    }
    return [
        ask.call("POST", "/webhooks/", json={"url": f"{url}{path}", "events": events})["webhook"][
            "webhook_id"
        ]
        for path, events in wanted.items()
    ]


def keep(ask: Operator, machine_id: str) -> str:
    """Keep a secret of a machine, one that it shares, whose id is returned, and hold its disk key."""
    ask.call(
        "POST",
        f"/secrets/machines/{machine_id}/secrets",
        json={
            "name": "database",
            "value": "a canary of the tests",
            "description": "Password of the orders database",
        },
    )
    shared: str = ask.call(
        "POST",
        "/shared-secrets/",
        json={
            "name": "registry-token",
            "value": "another canary",
            "description": "Pulls images",
            "rule": 'machine.role == "worker-app"',
        },
    )["shared_secret_id"]
    ask.call("POST", f"/shared-secrets/{shared}/access", json={"machine_ids": [machine_id]})
    ask.call("POST", "/kms/holds", json={"scope": "machine", "subject": machine_id})
    return shared
