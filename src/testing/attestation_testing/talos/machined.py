"""A machined that can be looked at: Talos' API at a Unix socket by grpcio, from the shapes of the public proto.

It records each call field by field, plays a machine from maintenance to configured and wiped, and does what goes wrong:
refuses, hangs up in the middle, hangs, answers garbage, is of an old version, asks for a role.

    with FakeMachined(tmp_path / "machine.sock") as machined:
        ...
    assert [call.method for call in machined.calls] == ["Version", "ApplyConfiguration", "ApplyConfiguration"]

Needs `itl-attestation-testing[talos]`.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import grpc

from attestation_testing.talos.machined_proto import MESSAGES, MODES, SERVICE, WIPE_MODES

ADMIN: Final = "os:admin"
ROLES: Final[Mapping[str, frozenset[str]]] = {
    "ApplyConfiguration": frozenset({ADMIN}),
    "Reset": frozenset({ADMIN}),
    "Version": frozenset({ADMIN, "os:operator", "os:reader"}),
}
"""Who may call what (siderolabs/talos, internal/app/machined/pkg/system/services/machined.go)."""


class Stage(StrEnum):
    """What the machine is."""

    MAINTENANCE = "maintenance"
    CONFIGURED = "configured"
    WIPED = "wiped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call that arrived.

    Args:
        method: `ApplyConfiguration`, `Reset` or `Version`.
        members: Each member of the request by its name, those that were not sent with their default.
        metadata: What came as headers.
        unknown: Bytes that no member of this version has.
    """

    method: str
    members: Mapping[str, Any]
    metadata: Mapping[str, str]
    unknown: int = 0


@dataclass(slots=True, kw_only=True)
class Behaviour:
    """What this machined does; a test changes it while it runs.

    Args:
        version: Its tag.
        knows_dry_run: Talos did before 1.0; one that does not applies what was meant as a dry run.
        refuse: By method: the status and the words to refuse with, where it wants to.
        before: Called with each call before anything is done.
        after: Called when it is done and before it is answered; either may `hang_up`.
        hangs: Methods that are never answered.
        garbage: Methods that answer these bytes.
    """

    version: str = "v1.13.9"
    knows_dry_run: bool = True
    refuse: Callable[[Call], tuple[str, str] | None] = lambda _: None
    before: Callable[[Call], None] = lambda _: None
    after: Callable[[Call], None] = lambda _: None
    hangs: frozenset[str] = frozenset()
    garbage: Mapping[str, bytes] = field(default_factory=dict)


class FakeMachined:
    """A machined at *path*, from `with` on.

    Args:
        path: Of the socket.
        behaviour: What it does.

    Attributes:
        calls: What arrived, in order, refused or not.
        stage: What the machine is.
        config: The configuration that applies; None in maintenance and when it is wiped.
        applied: Each configuration that was applied, in order.
        partitions: What is on its disk, and whether it is still there.
        reboots: How often it was to boot anew.
    """

    def __init__(self, path: Path, behaviour: Behaviour | None = None) -> None:
        self.path = path
        self.behaviour = behaviour or Behaviour()
        self.begin_anew()
        self._pools: list[ThreadPoolExecutor] = []
        self._lock = threading.Lock()
        self._ending = threading.Event()
        self._server: grpc.Server | None = None
        self._hung_up: threading.Event | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ending.set()
        if self._server is not None:
            self._server.stop(0).wait()
            self._server = None
        for pool in self._pools:
            pool.shutdown()
        self.path.unlink(missing_ok=True)

    def start(self) -> None:
        """Listen: at first, and again after `hang_up`."""
        if self._hung_up is not None:
            self._hung_up.wait()  # it takes the socket's name with it when it ends
        pool = ThreadPoolExecutor(max_workers=4)
        self._pools.append(pool)
        server = grpc.server(pool, options=(("grpc.so_reuseport", 0),))
        handlers = {
            method: grpc.unary_unary_rpc_method_handler(
                self._answering(method),
                request_deserializer=_same,
                response_serializer=_same,
            )
            for method in ROLES
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        server.add_insecure_port(f"unix:{self.path}")
        server.start()
        self._server = server

    def hang_up(self) -> None:
        """End all connections at once, unanswered, as a machine does that boots anew; nobody listens until `start`."""
        server, self._server = self._server, None
        if server is not None:
            self._hung_up = server.stop(0)

    def begin_anew(self, config: bytes | None = None) -> None:
        """Be a machine that nobody has asked for anything: in maintenance, or with *config*."""
        self.calls: list[Call] = []
        self.stage = Stage.MAINTENANCE if config is None else Stage.CONFIGURED
        self.config = config
        self.applied: list[bytes] = []
        self.partitions: dict[str, bool] = {"EFI": True, "META": True, "STATE": True, "EPHEMERAL": True}
        self.user_disks_wiped: list[str] = []
        self.reboots = 0
        self.is_off = False

    def named(self, method: str) -> list[Call]:
        """Return the calls of one method."""
        return [call for call in self.calls if call.method == method]

    # What a call does

    def _answering(self, method: str) -> Callable[[bytes, grpc.ServicerContext], bytes]:
        def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
            call = _read(method, request, context)
            with self._lock:
                self.calls.append(call)
            behaviour = self.behaviour
            behaviour.before(call)
            self._unless_hung_up(context)
            if method in behaviour.hangs:
                self._ending.wait()
                context.abort(grpc.StatusCode.UNAVAILABLE, "ends")
            if call.metadata.get("talos-role") not in ROLES[method]:
                context.abort(grpc.StatusCode.PERMISSION_DENIED, "not authorized")
            refused = behaviour.refuse(call)
            if refused is not None:
                context.abort(grpc.StatusCode[refused[0]], refused[1])
            with self._lock:
                found = self._done(method, call, context)
            behaviour.after(call)
            self._unless_hung_up(context)
            return behaviour.garbage.get(method, found)

        return answer

    def _unless_hung_up(self, context: grpc.ServicerContext) -> None:
        """Wait for the end of a connection that is ended: what is done faster would still be answered."""
        if self._server is None:
            gone = threading.Event()
            if context.add_callback(gone.set):
                gone.wait(60)
            context.abort(grpc.StatusCode.UNAVAILABLE, "hung up")

    def _done(self, method: str, call: Call, context: grpc.ServicerContext) -> bytes:
        """Do what is asked for; refused, it is changed in nothing."""
        if method == "ApplyConfiguration":
            return self._apply(call, context)
        return self._reset(call, context) if method == "Reset" else self._version()

    def _apply(self, call: Call, context: grpc.ServicerContext) -> bytes:
        members = call.members
        if not members["data"].strip():
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no v1alpha1 config")
        if self.stage is Stage.MAINTENANCE and members["mode"] not in ("AUTO", "REBOOT"):
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "the mode is not supported in maintenance mode")
        details = "Applied configuration without a reboot"
        if members["dry_run"] and self.behaviour.knows_dry_run:
            # Talos shows a dry run as a diff: the configuration of before and the one of after it.
            before, after = self.config or b"", members["data"]
            details = f"Dry run summary:\n-{before.decode()}\n+{after.decode()}"
        else:
            self.config, self.stage = members["data"], Stage.CONFIGURED
            self.applied.append(members["data"])
        answer = MESSAGES["ApplyConfigurationResponse"]()
        answer.messages.add(
            mode=MODES.index("NO_REBOOT"),
            mode_details=details,
            warnings=["a value is deprecated: " + members["data"].decode()],
        )
        return bytes(answer.SerializeToString())

    def _reset(self, call: Call, context: grpc.ServicerContext) -> bytes:
        members = call.members
        if self.stage is Stage.MAINTENANCE:
            context.abort(grpc.StatusCode.UNKNOWN, 'failed to reset: volume "STATE" is not located')
        wanted = {spec["label"]: spec["wipe"] for spec in members["system_partitions_to_wipe"]}
        if wanted.keys() - self.partitions.keys():
            context.abort(grpc.StatusCode.UNKNOWN, "failed to get volume status")
        for label in self.partitions:
            if wanted.get(label, not wanted):
                self.partitions[label] = False
        self.user_disks_wiped = list(members["user_disks_to_wipe"])
        if not self.partitions["STATE"]:
            self.config, self.stage = None, Stage.WIPED
        self.reboots += members["reboot"]
        self.is_off = not members["reboot"]
        answer = MESSAGES["ResetResponse"]()
        answer.messages.add(actor_id="5d1ad0c8-6d2c-4d3e-8a51-0c4b5a3f1e2d")
        return bytes(answer.SerializeToString())

    def _version(self) -> bytes:
        answer = MESSAGES["VersionResponse"]()
        found = answer.messages.add()
        found.version.tag = self.behaviour.version
        found.version.os, found.version.arch = "linux", "amd64"
        found.platform.name, found.platform.mode = "metal", "METAL"
        found.features.rbac = True
        return bytes(answer.SerializeToString())


def _same(data: bytes) -> bytes:
    return data


def _read(method: str, request: bytes, context: grpc.ServicerContext) -> Call:
    metadata = {str(key): str(value) for key, value in context.invocation_metadata()}
    if method == "Version":
        return Call(method=method, members={}, metadata=metadata, unknown=len(request))
    found = MESSAGES[f"{method}Request"].FromString(request)
    # What no member has is kept by protobuf and written again; read without it, the rest is shorter.
    known = MESSAGES[f"{method}Request"]()
    known.CopyFrom(found)
    known.DiscardUnknownFields()
    members: dict[str, Any] = (
        {
            "data": found.data,
            "mode": MODES[found.mode],
            "dry_run": found.dry_run,
            "try_mode_timeout": found.try_mode_timeout.seconds
            if found.HasField("try_mode_timeout")
            else None,
        }
        if method == "ApplyConfiguration"
        else {
            "graceful": found.graceful,
            "reboot": found.reboot,
            "system_partitions_to_wipe": [
                {"label": spec.label, "wipe": spec.wipe} for spec in found.system_partitions_to_wipe
            ],
            "user_disks_to_wipe": list(found.user_disks_to_wipe),
            "mode": WIPE_MODES[found.mode],
        }
    )
    unknown = len(found.SerializeToString()) - len(known.SerializeToString())
    return Call(method=method, members=members, metadata=metadata, unknown=unknown)


@contextmanager
def raw_socket(path: Path, answer: Callable[[socket.socket], None]) -> Iterator[None]:
    """Listen at *path* and give each connection to *answer*: what speaks no gRPC at all, or stops in the middle."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen(4)
        ends = threading.Event()

        def serve() -> None:
            while not ends.is_set():
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    if not ends.is_set():
                        answer(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ends.set()
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as last:
                last.connect(str(path))
            thread.join()
            path.unlink(missing_ok=True)


__all__ = ["ADMIN", "ROLES", "Behaviour", "Call", "FakeMachined", "Stage", "raw_socket"]
