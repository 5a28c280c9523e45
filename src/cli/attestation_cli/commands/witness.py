"""`attestation witness …`: cosign the checkpoints of somebody else's audit log."""

from __future__ import annotations

import signal
import threading
from datetime import UTC, datetime
from pathlib import Path

import click

from attestation.audit.note import VerifierKey, check_name
from attestation.client.text import clean
from attestation.errors import MalformedNote, RequestInvalid
from attestation_cli.options import EXISTING_FILE, FOLDER_PATH, printing
from attestation_cli.session import Session

DEFAULT_STATE = "~/.itl/witness"


@click.group("witness")
def group() -> None:
    """Cosign the checkpoints of an audit log, so that it cannot show two histories.

    A witness runs on another computer, under another person, than the service whose log it watches.
    It signs a checkpoint only if the log begins with the last one that it signed.

    \b
    Examples:
      attestation witness keygen --name witness.example/anna
      attestation witness serve --name witness.example/anna --logs-file log.vkeys
    """


def _name(_ctx: click.Context, _param: click.Parameter, value: str) -> str:
    try:
        check_name(value)
    except MalformedNote as e:
        raise click.BadParameter(str(e)) from e
    return value


name_option = click.option(
    "--name",
    required=True,
    callback=_name,
    help="Name of the witness, an address without scheme by custom: witness.example/anna.",
)
state_option = click.option(
    "--state",
    type=FOLDER_PATH,
    default=DEFAULT_STATE,
    show_default=True,
    help="Directory with its keys and what it signed last; mode 0700.",
)


@group.command()
@name_option
@state_option
@printing
def keygen(session: Session, name: str, state: Path) -> None:
    """Make the keys of a new witness, and print its vkeys; keys that exist are kept.

    \b
    Examples:
      attestation witness keygen --name witness.example/anna > anna.vkeys
    """
    from attestation_cli import witness

    _emit(session, [key.public for key in witness.make(state, name)])


@group.command()
@name_option
@state_option
@printing
def key(session: Session, name: str, state: Path) -> None:
    """Print the vkeys of the witness: one of Ed25519, one of ML-DSA-44.

    \b
    Examples:
      attestation witness key --name witness.example/anna > anna.vkeys
    """
    from attestation_cli import witness

    _emit(session, list(witness.public_keys(state, name)))


@group.command()
@name_option
@state_option
@click.option(
    "--log", "logs", multiple=True, metavar="VKEY", help="A key of a log to watch; give each of its keys."
)
@click.option("--logs-file", type=EXISTING_FILE, help="File with vkeys of logs, one a line.")
@click.option(
    "--listen",
    default="127.0.0.1:7380",
    show_default=True,
    metavar="HOST:PORT",
    help="Address to serve at; put TLS before it if that is not this computer.",
)
@printing
def serve(
    session: Session, name: str, state: Path, logs: tuple[str, ...], logs_file: Path | None, listen: str
) -> None:
    """Serve `POST /add-checkpoint` (C2SP tlog-witness) until interrupted.

    The service asks it by `ITL_AUDIT_WITNESSES`. All keys of a log that are given must have signed: a service of ours
    has two.

    \b
    Examples:
      attestation witness serve --name witness.example/anna --logs-file log.vkeys
    """
    from attestation_cli import witness
    from attestation_cli.audit_file import read_vkeys

    keys = read_vkeys(logs, logs_file)
    if not keys:
        raise RequestInvalid("no log to watch: give its vkeys with --log or --logs-file")
    host, _, port = listen.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise RequestInvalid("--listen needs HOST:PORT, e.g. 127.0.0.1:7380")

    def log(line: str) -> None:
        session.note(f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ} {clean(line)}")

    with witness.Witness(state, name, keys) as opened:
        try:
            server = witness.Server((host.strip("[]"), int(port)), opened, log)
        except OSError as e:
            raise RequestInvalid(f"cannot listen at {listen}: {e.strerror or e}") from e
        with server:
            _stop_at(server)
            url = server.url
            if session.json:
                session.emit_json({"url": url, "vkeys": [str(key) for key in opened.vkeys]})
            else:
                session.emit(f"witness {clean(name)} listens at {url}")
            server.serve_forever(poll_interval=0.1)


def _emit(session: Session, keys: list[VerifierKey]) -> None:
    if session.json:
        session.emit_json({"vkeys": [str(key) for key in keys]})
    else:
        for key in keys:
            session.emit(str(key))


def _stop_at(server: object) -> None:
    """Let SIGINT and SIGTERM end the server; `shutdown` waits for its loop, so another thread calls it."""
    from attestation_cli.witness import Server

    assert isinstance(server, Server)

    def stop(_number: int, _frame: object) -> None:
        threading.Thread(target=server.shutdown, daemon=True).start()

    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, stop)
