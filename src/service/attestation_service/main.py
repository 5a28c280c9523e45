"""`attestation-service`: read the settings, say what is weakened, migrate, serve."""

from __future__ import annotations

import argparse
import contextlib
import gc
import multiprocessing
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import structlog

from attestation import manual, output
from attestation_service import __version__

# The rest is imported where it is used: whoever mistypes an option, or forks several workers, loads little here.
if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from attestation_service.settings import Settings

log = structlog.get_logger("attestation_service")

PAGES: Final = Path(sys.prefix) / "share/doc/itl-attestation-service"
"""Where the wheel puts the pages for who operates it."""

WIDTH: Final = 100
"""Of what --check tells, in characters, where nobody says how wide the screen is."""

EXIT_USAGE: Final = 2
EXIT_UNUSABLE: Final = 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the service until it is told to stop; return the exit status."""
    parser = _parser()
    with output.to_the_end(parser.prog, EXIT_UNUSABLE):
        options = parser.parse_args(arguments)
    with collector_at_rest():
        from attestation_service.context import logs
        from attestation_service.settings import Settings, SettingsInvalid

    try:
        settings = Settings.load()
    except SettingsInvalid as e:
        sys.stderr.writelines(f"attestation-service: {fault}\n" for fault in str(e).splitlines())
        return EXIT_USAGE
    logs.configure("error" if options.check else settings.log_level, settings.log_format)
    if options.accept_restored_database:
        from attestation_service.process.preparation import accept_restored_database

        return 0 if accept_restored_database(settings) else EXIT_UNUSABLE
    if options.check:
        return _check(settings, options)
    if options.prepare:
        return 0 if _prepared(settings) else EXIT_UNUSABLE
    if options.uds is None:
        from attestation_service.process.listening import obstacle

        if (reason := obstacle(options.host, options.port)) is not None:
            log.error("service.unusable", reason=reason)
            return EXIT_UNUSABLE
    if not (_prepared_elsewhere if options.workers > 1 else _prepared)(settings):
        return EXIT_UNUSABLE
    try:
        server = _server(options, settings)
    except SettingsInvalid as e:  # an extension whose routes or subscriptions cannot be used
        log.error("service.unusable", reason=str(e))  # noqa: TRY400 -- the reason is for operators, a trace is not
        return EXIT_UNUSABLE
    serve(server, workers=options.workers, shutdown_seconds=settings.shutdown_seconds)
    return 0


def _check(settings: Settings, options: argparse.Namespace) -> int:
    with collector_at_rest():
        from attestation.clock import SystemClock
        from attestation_service.inspection import Level, Listen, as_json, as_text, inspect

    listen = Listen(host=options.host, port=options.port, uds=options.uds)
    found = inspect(settings, listen, SystemClock().now())
    with output.to_the_end("attestation-service", EXIT_UNUSABLE):
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else WIDTH
        text = as_json(found) if options.output == "json" else as_text(found, width)
        # Paths and names may have characters that a terminal of another encoding has not.
        sys.stdout.write(text.encode(sys.stdout.encoding, "replace").decode(sys.stdout.encoding))
    return EXIT_UNUSABLE if any(each.level is Level.FAILED for each in found) else 0


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
        from attestation_service.process.preparation import prepare

    return prepare(settings)


def _prepared_elsewhere(settings: Settings) -> bool:
    """Prepare in a process of its own: whoever forks workers has opened no key, database or thread.

    It is forked, as the workers are, from what was imported once for all of them.
    """
    with collector_at_rest():
        import attestation_service.app
        import attestation_service.process.preparation  # noqa: F401 -- for the process to be forked
        from attestation.keys import refusals
        from attestation_service.process.supervisor import demand_alone

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
        from attestation_service.border.connections import PROTOCOL

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
    from attestation_service.process.supervisor import STARTUP_FAILED, Supervisor, serve_on

    config = uvicorn.Config(**server)
    listening = config.bind_socket()
    try:
        served = Supervisor(
            serve_on(config, listening), count=workers, shutdown_seconds=shutdown_seconds
        ).run()
    finally:
        listening.close()
        if server["uds"]:
            Path(server["uds"]).unlink(missing_ok=True)
    if not served:
        sys.exit(STARTUP_FAILED)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="attestation-service",
        formatter_class=argparse.RawDescriptionHelpFormatter,  # a path that is broken into lines is none
        description="The attestation control plane. Its settings are environment variables that begin with ITL_.",
        epilog=f"Every setting, with its default: {PAGES / 'operate/settings.md'}",
    )
    parser.add_argument("--host", default="0.0.0.0", help="address to listen on")  # noqa: S104 -- a server
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--uds", help="listen on this unix socket instead")
    parser.add_argument("--workers", type=_count, default=1, help="processes that share the database")
    parser.add_argument(
        "--check",
        action="store_true",
        help="look at everything that a start needs, touch nothing, and exit: 0 if a start would serve",
    )
    parser.add_argument(
        "-o", "--output", choices=("text", "json"), default="text", help="form of what --check tells"
    )
    parser.add_argument(
        "--prepare",
        action="store_true",
        help="do what a start does before it serves (migrate the database, make keys that are missing), then exit",
    )
    parser.add_argument(
        "--accept-restored-database",
        action="store_true",
        help="take the database as it is, though the audit log's keys remember another or a newer one; then exit",
    )
    parser.add_argument("--man", action=manual.Print, help="print the manual page: ... | man -l -")
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    return parser


def _count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError("at least one")
    return count


if __name__ == "__main__":
    sys.exit(main())
