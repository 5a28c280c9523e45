"""How a demo begins: its folder, its ports; and, for those on a cluster, service, identity provider and API."""

from __future__ import annotations

import argparse
import fcntl
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NoReturn

from attestation.client import OperatorClient
from attestation.machines import Role
from tools.demo_words import Narrator
from tools.kubernetes import Cluster
from tools.ports import claim, free_port
from tools.stage import Failed, IdentityProvider, Service

ROOT: Final = Path(__file__).resolve().parents[1]
DEFAULT_DATA: Final = ROOT / ".run"
DEFAULT_PORT: Final = 8080
DEFAULT_IDENTITY_PORT: Final = 8081
MADE_BY_DEMO: Final = "made-by-demo"


def prepare_data(chosen: Path | None, *, demo: bool) -> Path:
    """Make the data directory; a demo without one of its own begins with an empty one.

    What `--no-demo` or `--data` made is never thrown away.
    """
    data = (chosen or DEFAULT_DATA).absolute()
    mark = data / MADE_BY_DEMO
    if chosen is None and demo and mark.exists():
        shutil.rmtree(data)
    elif not demo:
        mark.unlink(missing_ok=True)
    fresh = not data.exists() or not any(data.iterdir())
    data.mkdir(mode=0o700, parents=True, exist_ok=True)
    if chosen is None and demo and fresh:
        mark.touch()
    return data


@contextmanager
def alone(data: Path) -> Iterator[None]:
    """Hold the data directory: two runs in it would fight over the TPMs."""
    # Beside it, because a fresh demo removes the directory.
    path = data.with_name(data.name + ".lock")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="ascii") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise Failed(f"another ./dev run uses {data}; stop it, or give --data DIR") from None
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def port_of(options: argparse.Namespace) -> int:
    """Return the port that was asked for, or a free one."""
    if options.port:
        claim(options.port)
        return int(options.port)
    return free_port(DEFAULT_PORT)


@dataclass
class Begun:
    """A demo on a cluster that has begun: the service runs, the API is yet to be started.

    Args:
        out: Tells what happens.
        data: Folder of the demo.
        service: Runs.
        identity: Where its operators log in; runs.
        cluster: Does not run yet.
        stack: What ends with the demo, the last first.
    """

    out: Narrator
    data: Path
    service: Service
    identity: IdentityProvider
    cluster: Cluster
    stack: ExitStack
    _tokens: dict[str, str] = field(default_factory=dict)

    def stop_before_cluster(self, stop: Callable[[], None]) -> None:
        """Have the cluster stopped at the end, and before it what watches it."""
        self.stack.callback(self.cluster.stop)
        self.stack.callback(stop)

    def sign_in(self) -> dict[str, OperatorClient]:
        """Let all operators log in."""
        self._tokens = {name: self.identity.sign_in(name) for name in self.identity.people}
        return {
            name: self.stack.enter_context(OperatorClient(self.service.url, token))
            for name, token in self._tokens.items()
        }

    def token(self, name: str) -> str:
        """Return the token of an operator who has logged in."""
        return self._tokens[name]

    def stay(self, ended: Callable[[], str | None]) -> NoReturn:
        """Stay up until Ctrl-C, or until a process is gone, of which *ended* says the name.

        Raises:
            Failed: One is gone.
        """
        self.out.say("   Ctrl-C stops everything.")
        while self.service.running and self.identity.running and self.cluster.running and ended() is None:
            time.sleep(0.5)
        raise Failed(f"a process of the demo has ended; see the logs in {self.data}")


@contextmanager
def with_cluster(
    options: argparse.Namespace,
    question: str,
    settings: Callable[[Cluster, Path], Mapping[str, str]],
) -> Iterator[Begun]:
    """Begin a demo on a cluster.

    Args:
        options: Of the command line.
        question: What it answers.
        settings: Returns those of the service, of the cluster and the folder of the demo.

    Raises:
        Failed: Its folder is not fresh, or something does not start.
    """
    out = Narrator()
    with ExitStack() as stack:
        stack.enter_context(alone((options.data or DEFAULT_DATA).absolute()))
        data = prepare_data(options.data, demo=True)
        if (data / "cluster").exists():
            raise Failed(f"{data} is of an earlier run; give another --data DIR")
        port = port_of(options)
        identity = IdentityProvider(data, free_port(DEFAULT_IDENTITY_PORT))
        stack.callback(identity.stop)
        identity.start()
        cluster = Cluster(data / "cluster", free_port)
        service = Service(data, port, identity.issuer, more=settings(cluster, data))
        service.prepare([role.value for role in Role])
        out.say(question)
        stack.callback(service.stop)
        identity.wait()
        service.start()
        out.say()
        out.say(f"   The service runs at {service.url}, on SQLite in {data}.")
        yield Begun(out, data, service, identity, cluster, stack)
