"""`attestation-service`: read the settings; do what is asked, or say what is weakened, migrate, serve."""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import multiprocessing
import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import structlog

from attestation import output
from attestation.text import clean
from attestation_service.commands.parser import parser

# The rest is imported where it is used: whoever mistypes an option, or forks several workers, loads little here.
if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from attestation_service.settings import Settings

log = structlog.get_logger("attestation_service")

EXIT_USAGE: Final = 2
EXIT_UNUSABLE: Final = 1
EXIT_INTERRUPTED: Final = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the service until it is told to stop; return the exit status."""
    words = parser()
    with output.to_the_end(words.prog, EXIT_UNUSABLE):
        options = words.parse_args(arguments)
    with collector_at_rest():
        from attestation_service.context import logs
        from attestation_service.settings import Settings, SettingsInvalid

    try:
        settings = Settings.load()
    except SettingsInvalid as e:
        sys.stderr.writelines(f"attestation-service: {fault}\n" for fault in str(e).splitlines())
        return EXIT_USAGE
    logs.configure("error" if options.check or options.command else settings.log_level, settings.log_format)
    if options.command is not None:
        return _command(settings, options)
    if options.accept_restored_database:
        from attestation_service.process.preparation import accept_restored_database

        return 0 if accept_restored_database(settings) else EXIT_UNUSABLE
    if options.check:
        options.command = "doctor"
        return _command(settings, options)
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
    serve(server, workers=options.workers)
    return 0


def _command(settings: Settings, options: argparse.Namespace) -> int:
    """Run a command, whose module is named as it; return the exit status."""
    from attestation.errors import AttestationError
    from attestation_service.database_url import has_password
    from attestation_service.settings import SettingsInvalid

    if any(has_password(getattr(options, name, None) or "") for name in ("url", "source", "target")):
        sys.stderr.write(
            "attestation-service: whoever is on this computer reads a password on a command line: put it into a file, "
            "and the file into the URL, ?password_file=/…\n"
        )
        return EXIT_USAGE
    if getattr(options, "url", None):
        settings = settings.model_copy(update={"db_url": options.url})
    with collector_at_rest():
        module = importlib.import_module(f"attestation_service.commands.{options.command}")
    with output.to_the_end("attestation-service", EXIT_UNUSABLE):
        try:
            status: int = module.run(settings, options)
        except (AttestationError, SettingsInvalid, OSError, ValueError) as e:
            if isinstance(e, OSError) and output.is_of_output(e):
                raise
            told = "\n".join(map(clean, str(e).splitlines()))  # it may quote a database, or a backup
            sys.stderr.write(f"attestation-service: {told}\n")
            return EXIT_UNUSABLE
        except KeyboardInterrupt:
            sys.stderr.write("attestation-service: interrupted\n")
            return EXIT_INTERRUPTED
    return status


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

    def end_both(number: int, _: object) -> None:
        process.terminate()
        process.join()
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)

    before = signal.signal(signal.SIGTERM, end_both)
    try:
        # A PIN that was refused there is not tried by each worker again.
        refusals.take_over(ours.recv())
    except EOFError:
        return False
    finally:
        process.join()
        signal.signal(signal.SIGTERM, before)
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
        "http": PROTOCOL,
    }


def serve(server: dict[str, Any], *, workers: int) -> None:
    """Serve with *server*, arguments of `uvicorn.Config`, until told to stop; more than one worker are supervised."""
    import uvicorn

    from attestation_service.process.serving import Server, Worker
    from attestation_service.process.supervisor import STARTUP_FAILED, Supervisor

    config, life = uvicorn.Config(**server), server["app"].state.life
    if workers == 1:
        Server(config, life).run()
        return
    listening = config.bind_socket()
    try:
        served = Supervisor(
            lambda say: Worker(config, life, say).run(sockets=[listening]),
            count=workers,
            shutdown_seconds=life.shutdown_seconds,
            listening=listening,
        ).run()
    finally:
        listening.close()
        if server["uds"]:
            Path(server["uds"]).unlink(missing_ok=True)
    if not served:
        sys.exit(STARTUP_FAILED)


if __name__ == "__main__":
    sys.exit(main())
