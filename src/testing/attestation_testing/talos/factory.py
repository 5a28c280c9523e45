"""An Image Factory on loopback: it keeps schematics under their ids and serves images made of nothing.

It writes the text that it hashes with a YAML library, by itself: who computes ids elsewhere is compared with another
writer, and both with the ids that the real factory documents. What it serves says which image it would be.

    with serving() as factory:
        ...  # settings: factory_url=factory.url
        assert schematic_id in factory.schematics
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.scalarstring import DoubleQuotedScalarString, LiteralScalarString

MAX_BODY_BYTES: Final = 1 << 20
ORDER: Final[dict[str, Any]] = {
    "overlay": {"image": None, "name": None, "options": None},
    "customization": {
        "embeddedMachineConfiguration": None,
        "extraKernelArgs": None,
        "meta": None,
        "systemExtensions": {"officialExtensions": None},
        "bootloader": None,
        "secureboot": {"enrollKeys": None, "includeWellKnownCertificates": None},
        "diskImage": {"sectorSize": None},
    },
}
"""Members, in the order of the structs of siderolabs/image-factory."""

_IMAGE: Final = re.compile(r"/(image|pxe)/([0-9a-f]{64})/(v1\.\d+\.\d+)/([a-z0-9.-]+)")
_NO_TEXT: Final = re.compile(r"(?i)y|n|yes|no|on|off|[-+.]?[0-9][0-9a-fx_.:+-]*")
"""What would be read as something else: a truth of YAML 1.1, a number."""


class SchematicRefused(ValueError):
    """What was sent is no schematic; the text is the answer."""


def canonical(text: bytes) -> bytes:
    """Return the text that the id of a schematic is the SHA-256 of.

    Raises:
        SchematicRefused: Not YAML, or a member that no schematic has.
    """
    try:
        found = YAML(typ="safe", pure=True).load(text.decode()) or {}
    except (YAMLError, ValueError) as e:
        raise SchematicRefused(f"yaml: {type(e).__name__}") from None
    ordered = _ordered(found, ORDER)
    ordered["customization"] = ordered.get("customization") or {}
    out = io.StringIO()
    yaml = YAML(typ="rt", pure=True)
    yaml.width = 1 << 20
    yaml.indent(mapping=4, sequence=6, offset=4)
    yaml.dump(ordered, out)
    return out.getvalue().encode()


def _ordered(found: Any, order: dict[str, Any]) -> dict[str, Any]:
    """Return *found* in the order of the structs, without what is empty."""
    if not isinstance(found, dict):
        raise SchematicRefused("a mapping was expected")
    for name in found:
        if name not in order:
            raise SchematicRefused(f"field {name} not found")
    ordered = {}
    for name, inside in order.items():
        value = found.get(name)
        value = _ordered(value, inside) if inside is not None and value else _styled(value)
        if value:
            ordered[name] = value
    return ordered


def _styled(value: Any) -> Any:
    """Return a value that is written in the style of the factory's library."""
    if isinstance(value, str):
        if "\n" in value:
            return LiteralScalarString(value)
        return DoubleQuotedScalarString(value) if _NO_TEXT.fullmatch(value) else value
    if isinstance(value, dict):
        return {name: _styled(value[name]) for name in sorted(value, key=str)} if value else value
    if isinstance(value, list):
        return [_styled_item(each) for each in value]
    return value


def _styled_item(value: Any) -> Any:
    # A value of META: its members stand in the order of the struct.
    if isinstance(value, dict) and value.keys() == {"key", "value"}:
        return {"key": value["key"], "value": _styled(value["value"])}
    return _styled(value)


@dataclass(kw_only=True)
class FakeFactory:
    """One factory.

    Args:
        url: Its address.
        schematics: What was sent to it, canonical, by id.
        requests: Method and path of each request, in their order.
        old: It answers `{id}` alone, as older ones do.
        instead: It answers this to a schematic: status, media type, body.
    """

    url: str = ""
    schematics: dict[str, bytes] = field(default_factory=dict)
    requests: list[tuple[str, str]] = field(default_factory=list)
    old: bool = False
    instead: tuple[int, str, bytes] | None = None

    def create(self, text: bytes) -> tuple[int, str, bytes]:
        """Answer `POST /schematics`."""
        if self.instead is not None:
            return self.instead
        try:
            kept = canonical(text)
        except SchematicRefused as e:
            return 400, "text/plain", str(e).encode()
        name = hashlib.sha256(kept).hexdigest()
        self.schematics[name] = kept
        answer = {"id": name} if self.old else {"id": name, "schematic": kept.decode()}
        return 201, "application/json", json.dumps(answer).encode()

    def get(self, path: str) -> tuple[int, str, bytes]:
        """Answer a GET: a schematic, an image, a script for iPXE, the versions."""
        if path == "/versions":
            return 200, "application/json", b'["v1.9.5","v1.13.9","v1.14.0"]'
        name = path.removeprefix("/schematics/")
        if name in self.schematics:
            return 200, "application/yaml", self.schematics[name]
        found = _IMAGE.fullmatch(path)
        if found is None or found[2] not in self.schematics:
            return 404, "text/plain", b"not found"
        if found[1] == "pxe":
            return (
                200,
                "text/plain",
                f"#!ipxe\nkernel {self.url}/image/{found[2]}/{found[3]}/kernel\n".encode(),
            )
        return 200, "application/octet-stream", f"{found[4]} of {found[2]} {found[3]}\n".encode()


@contextlib.contextmanager
def serving(*, old: bool = False) -> Iterator[FakeFactory]:
    """Serve a factory on loopback, and end it."""
    factory = FakeFactory(old=old)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 30

        def do_POST(self) -> None:
            factory.requests.append(("POST", self.path))
            length = int(self.headers.get("Content-Length") or 0)
            if self.path != "/schematics" or not 0 < length <= MAX_BODY_BYTES:
                self._answer(404, "text/plain", b"not found")
                return
            self._answer(*factory.create(self.rfile.read(length)))

        def do_GET(self) -> None:
            factory.requests.append(("GET", self.path))
            self._answer(*factory.get(self.path))

        def _answer(self, status: int, media_type: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", media_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with contextlib.suppress(ConnectionError):  # who has read enough goes away
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    factory.url = f"http://127.0.0.1:{server.server_port}"
    thread.start()
    try:
        yield factory
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
