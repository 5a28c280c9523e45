"""`attestation-service`: read the settings, say what is weakened, migrate, serve."""

from __future__ import annotations

import argparse
import contextlib
import gc
import multiprocessing
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import structlog

from attestation_service import __version__

# The rest is imported where it is used: whoever mistypes an option, or forks several workers, loads little here.
if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from attestation_service.settings import Settings

log = structlog.get_logger("attestation_service")

EXIT_USAGE: Final = 2
EXIT_UNUSABLE: Final = 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the service until it is told to stop; return the exit status."""
    options = _parser().parse_args(arguments)
    with collector_at_rest():
        from attestation_service import logs
        from attestation_service.settings import Settings, SettingsInvalid

    try:
        settings = Settings.load()
    except SettingsInvalid as e:
        sys.stderr.write(f"attestation-service: {e}\n")
        return EXIT_USAGE
    logs.configure(settings.log_level)
    if options.accept_restored_database:
        from attestation_service.preparation import accept_restored_database

        return 0 if accept_restored_database(settings) else EXIT_UNUSABLE
    if options.check:
        from attestation_service.preparation import check

        if not check(settings):
            return EXIT_UNUSABLE
        for warning in settings.warnings():
            log.warning("settings.weakened", warning=warning)
        for notice in settings.notices():
            log.info("settings.notice", notice=notice)
        return 0
    if not (_prepared_elsewhere if options.workers > 1 else _prepared)(settings):
        return EXIT_UNUSABLE
    serve(_server(options, settings), workers=options.workers, shutdown_seconds=settings.shutdown_seconds)
    return 0


@contextlib.contextmanager
def collector_at_rest() -> Iterator[None]:
    """Import without the garbage collector, and let it pass over what came: modules live as long as the process.

    It would go through all of them again and again while they come; that took a quarter of a start.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _prepared(settings: Settings) -> bool:
    with collector_at_rest():
        from attestation_service.preparation import prepare

    return prepare(settings)


def _prepared_elsewhere(settings: Settings) -> bool:
    """Prepare in a process of its own: whoever forks workers has opened no key, database or thread.

    It is forked, as the workers are, from what was imported once for all of them.
    """
    with collector_at_rest():
        import attestation_service.app
        import attestation_service.preparation  # noqa: F401 -- for the process to be forked
        from attestation.keys import refusals
        from attestation_service.supervisor import demand_alone

    demand_alone()
    fork = multiprocessing.get_context("fork")
    ours, theirs = fork.Pipe(duplex=False)
    process = fork.Process(target=_prepare_and_tell, args=(settings, ours, theirs))
    process.start()
    theirs.close()
    try:
        # A PIN that was refused there is not tried by each worker again.
        refusals.take_over(ours.recv())
    except EOFError:
        return False
    finally:
        process.join()
        ours.close()
    return True


def _prepare_and_tell(settings: Settings, supervisors: Connection, told: Connection) -> None:
    from attestation.keys import refusals

    supervisors.close()  # forked with it
    if not _prepared(settings):
        sys.exit(EXIT_UNUSABLE)
    told.send(refusals.hand_over())


def _server(options: argparse.Namespace, settings: Settings) -> dict[str, Any]:
    """Return the arguments of `uvicorn.Config`."""
    with collector_at_rest():
        from attestation_service.app import create_app
        from attestation_service.connections import PROTOCOL

        app = create_app(settings)
    return {
        "app": app,
        "host": options.host,
        "port": options.port,
        "uds": options.uds,
        "log_config": None,  # ours
        "access_log": False,  # ours: the server's would print config tokens
        "proxy_headers": False,  # ours: only trusted proxies are believed
        "server_header": False,
        "timeout_graceful_shutdown": settings.shutdown_seconds,
        "http": PROTOCOL,
    }


def serve(server: dict[str, Any], *, workers: int, shutdown_seconds: int) -> None:
    """Serve with *server*, arguments of `uvicorn.Config`, until told to stop; more than one worker are supervised."""
    import uvicorn

    if workers == 1:
        uvicorn.run(**server)
        return
    from attestation_service.supervisor import Supervisor, serve_on

    config = uvicorn.Config(**server)
    listening = config.bind_socket()
    try:
        Supervisor(serve_on(config, listening), count=workers, shutdown_seconds=shutdown_seconds).run()
    finally:
        listening.close()
        if server["uds"]:
            Path(server["uds"]).unlink(missing_ok=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="attestation-service",
        description="The attestation control plane. Settings: docs/operate/settings.md",
    )
    parser.add_argument("--host", default="0.0.0.0", help="address to listen on")  # noqa: S104 -- a server
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--uds", help="listen on this unix socket instead")
    parser.add_argument("--workers", type=_count, default=1, help="processes that share the database")
    parser.add_argument("--check", action="store_true", help="check settings, database and key, then exit")
    parser.add_argument(
        "--accept-restored-database",
        action="store_true",
        help="take the database as it is, though the audit log's keys remember another or a newer one; then exit",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    return parser


def _count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError("at least one")
    return count


if __name__ == "__main__":
    sys.exit(main())
