"""The answer of the browser: a web server on this computer for one request (RFC 8252 §7.3).

It listens on 127.0.0.1 only, at a port that the system chooses. The first request to `/callback` decides; everything
else is 404. The browser is sent on to a page without parameters, so that the code does not stay in its history, and the
page repeats nothing of what came.
"""

# Algorithms for: bearer-secret
from __future__ import annotations

import base64
import hashlib
import queue
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from attestation.client.openid.answer import UnverifiedAnswer
from attestation_cli.login.errors import LoginTimedOut

HOST = "127.0.0.1"
PATH = "/callback"
DONE = "/done"
LONGEST_QUERY = 8192
"""Characters."""
REQUEST_SECONDS = 5.0
"""Browsers open connections in advance and send nothing."""
GRACE_SECONDS = 10.0
"""How long the page may take after the answer has arrived; only a browser that does not come for it takes so long."""

STYLE = "body{font:1.1rem/1.5 sans-serif;max-width:36rem;margin:15vh auto;padding:0 1rem;color:#222;background:#fff}"
PAGE = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>attestation</title><style>{STYLE}</style></head>
<body><h1>You can close this page</h1>
<p>The answer has arrived at the command line; look there whether you are logged in.</p>
</body></html>
""".encode()
_STYLE_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode("ascii")
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Connection": "close",
}


class Loopback:
    """The server; it lives as long as the context.

    Raises:
        LoginTimedOut: From `wait`, where nothing came.
    """

    def __init__(self) -> None:
        self._answers: queue.Queue[UnverifiedAnswer] = queue.Queue()
        self._taken = threading.Lock()
        self.page_written = threading.Event()
        self._server = _Server((HOST, 0), self)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._server.server_address[1])

    @property
    def redirect_uri(self) -> str:
        """What the provider is told to send the browser to."""
        return f"http://{HOST}:{self.port}{PATH}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._answers.empty() or self._taken.locked():
            self.page_written.wait(GRACE_SECONDS)
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)

    def wait(self, seconds: float) -> UnverifiedAnswer:
        """Return the first answer.

        Raises:
            LoginTimedOut: None came in time.
        """
        try:
            return self._answers.get(timeout=seconds)
        except queue.Empty:
            raise LoginTimedOut(f"the login in the browser was not finished within {seconds:.0f} s") from None

    def take(self, target: str) -> tuple[int, dict[str, str], bytes]:
        """Answer a request for *target*: status, headers, body."""
        path, query = urlsplit(target).path, urlsplit(target).query
        if path == DONE and self._taken.locked():
            return 200, {"Content-Type": "text/html; charset=utf-8"}, PAGE
        if path != PATH or len(query) > LONGEST_QUERY or not self._taken.acquire(blocking=False):
            return 404, {}, b""
        self._answers.put(UnverifiedAnswer.of(query))
        return 303, {"Location": DONE}, b""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int], loopback: Loopback) -> None:
        self.loopback = loopback
        super().__init__(address, _Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: what strangers send does not belong on the operator's terminal."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = REQUEST_SECONDS

    def do_GET(self) -> None:
        """Answer the browser, and nobody who came by another name (DNS rebinding)."""
        loopback = self.server.loopback
        if self.headers.get("Host") == f"{HOST}:{loopback.port}":
            status, headers, body = loopback.take(self.path)
        else:
            status, headers, body = 404, {}, b""
        self.send_response_only(status)
        for name, value in (HEADERS | headers | {"Content-Length": str(len(body))}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)
        if body is PAGE:
            # Not before: the program may end at once, and with it what was about to be written.
            loopback.page_written.set()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:  # noqa: ARG002 -- the library's signature
        """Answer what is no request of HTTP, without repeating it."""
        self.send_response_only(code)
        self.send_header("Connection", "close")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- the library's signature
        """Write no log: the request line holds the code."""
