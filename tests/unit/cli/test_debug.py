"""`-v`: which requests were made, how they were answered, and never what they carried."""

from __future__ import annotations

import http.server
import re
import threading
from collections.abc import Iterator

import httpx
import pytest
from click.testing import CliRunner, Result

from attestation.client import NodeClient
from attestation.client.errors import APIError
from attestation.client.trace import Exchange, watching
from attestation_cli.main import cli
from attestation_cli.session import Session
from tests.unit.cli.stub import Stub, machine

A = "7f3ad3ac-0f0e-4c55-9d4a-3f6f0e1b2c3d"
SECRET = "t0p-s3cret"


@pytest.fixture(autouse=True)
def _token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ITL_ADMIN_TOKEN", SECRET)


def run(service: Stub, *args: str) -> Result:
    return CliRunner().invoke(cli, list(args), obj=Session(carrier=service.carrier))


@pytest.mark.parametrize("words", [("-v", "machine", "list"), ("machine", "list", "--debug")])
def test_each_request_is_told_on_stderr(words: tuple[str, ...]) -> None:
    """Method, address, status, time and the id that finds it in the service's log; stdout stays for programs."""
    service = Stub(
        machines=[machine(A)],
        before=lambda _: httpx.Response(
            200, json={"items": [machine(A)], "next_cursor": None}, headers={"X-Request-Id": "r-17"}
        ),
    )
    done = run(service, *words, "-o", "csv")
    assert done.exit_code == 0
    assert re.fullmatch(
        r"debug: GET http://localhost:8080/api/v1/machines\?limit=200: 200 after [0-9]+ ms, request r-17\n",
        done.stderr,
    )
    assert "debug" not in done.stdout


def test_without_it_nothing_is_told() -> None:
    """The default is silence."""
    assert run(Stub(machines=[machine(A)]), "machine", "list").stderr == ""


@pytest.mark.threat("T163")
def test_no_secret_is_told() -> None:
    """Neither the operator's token nor a registration token that is made, whatever is answered."""
    done = run(Stub(), "-v", "token", "create", "--role", "generic", "-o", "json")
    assert "s3cr3t-token" in done.stdout
    assert "POST http://localhost:8080/api/v1/registration-tokens: 200" in done.stderr
    assert SECRET not in done.stderr
    assert "s3cr3t-token" not in done.stderr


def test_a_request_that_nobody_answers_is_told_each_time() -> None:
    """What is tried again is told again."""

    def broken(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    done = run(Stub(before=broken), "-v", "stats")
    assert done.exit_code == 6
    assert done.stderr.count("debug: GET http://localhost:8080/api/v1/stats: cannot connect") == 3


@pytest.mark.threat("T163")
def test_what_the_service_calls_a_request_cannot_steer_the_terminal() -> None:
    """Its headers are a stranger's words too."""
    service = Stub(
        before=lambda _: httpx.Response(500, headers=[(b"X-Request-Id", b"r\x1b]0;owned\x07")], json={})
    )
    assert "\x1b" not in run(service, "-v", "stats").stderr


class _Gone(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_error(404)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- the name it has there
        """Say nothing."""


@pytest.fixture
def server() -> Iterator[str]:
    """A server that knows nothing."""
    with http.server.HTTPServer(("127.0.0.1", 0), _Gone) as served:
        thread = threading.Thread(target=served.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{served.server_port}"
        served.shutdown()
        thread.join()


@pytest.mark.threat("T163")
def test_a_config_token_is_masked(server: str) -> None:
    """The one secret that stands in a path is no part of what a watcher is told; over the plain carrier too."""
    told: list[Exchange] = []
    with watching(told.append), NodeClient(server) as client, pytest.raises(APIError):
        client.fetch_config("the-config-token", node_nonce=bytes(32))
    assert [(one.method, one.url, one.status) for one in told] == [
        ("GET", f"{server}/api/v1/config/***", 404)
    ]
