"""The program: `attestation-web COMMAND`. Its settings are environment variables that begin with ITL_WEB_."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final

from attestation import __version__, completion, manual, output

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

    from flask import Flask

    from attestation_web.settings import Settings

PROGRAM: Final = "attestation-web"
PAGES: Final = Path(sys.prefix) / "share/doc/itl-attestation-web"
"""Where the wheel puts the pages for who operates it."""

EXIT_UNUSABLE: Final = 1
EXIT_USAGE: Final = 2
KEEP_ALIVE_SECONDS: Final = 15
STOP_SECONDS: Final = 20
LAST_SECONDS: Final = 1.0
THREADS: Final = "WSGI"
"""What the names of the threads of a2wsgi begin with."""
COMMANDS: Final = {
    "serve": "serve the dashboard until told to stop",
    "check": "say what is set, and what weakens it; start nothing",
}


def parser() -> argparse.ArgumentParser:
    """Return the words of the command line."""
    whole = argparse.ArgumentParser(
        prog=PROGRAM,
        formatter_class=argparse.RawDescriptionHelpFormatter,  # a path that is broken into lines is none
        description="The dashboard of the attestation platform, a client of the service.\n"
        "Settings are environment variables that begin with ITL_WEB_.",
        epilog=f"Every setting, with its default: {PAGES / 'operate/dashboard.md'}",
    )
    whole.add_argument("--man", action=manual.Print, help="print the manual page: ... | man -l -")
    whole.add_argument("--completion", action=completion.Print, help="print the completion for a shell")
    whole.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = whole.add_subparsers(dest="command", required=True, title="commands", metavar="COMMAND")
    for name, words in COMMANDS.items():
        commands.add_parser(name, help=words, description=f"{words[:1].upper()}{words[1:]}.")
    return whole


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code."""
    words = parser()
    with output.to_the_end(PROGRAM, EXIT_UNUSABLE):
        command: str = words.parse_args(arguments).command
        return _run(command)


def _run(command: str) -> int:
    from attestation.errors import AttestationError
    from attestation_web.settings import Settings, SettingsInvalid

    try:
        settings = Settings.load(os.environ)
        warnings = settings.warnings()
    except SettingsInvalid as e:
        sys.stderr.writelines(f"{PROGRAM}: {fault}\n" for fault in str(e).splitlines())
        return EXIT_USAGE
    if command == "check":
        try:
            application(settings)
        except AttestationError as e:
            sys.stderr.write(f"{PROGRAM}: {e}\n")
            return EXIT_USAGE
        sys.stdout.writelines(f"warning: {warning}\n" for warning in warnings)
        sys.stdout.write(f"settings can be used: {settings.url} for {settings.service_url}\n")
        return 0
    try:
        return _serve(settings, warnings)
    except (AttestationError, OSError) as e:
        sys.stderr.write(f"{PROGRAM}: {e}\n")
        return EXIT_UNUSABLE


def application(settings: Settings) -> Flask:
    """Return what is served, after reading every file that *settings* name.

    Raises:
        SettingsInvalid, RequestInvalid: A file or an address cannot be used.
    """
    import ssl

    from attestation_web.app import create_app
    from attestation_web.settings import SettingsInvalid

    app, files = create_app(settings), (settings.tls_cert_file, settings.tls_key_file)
    if files[0] is not None:
        try:
            ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(files[0], files[1])
        except OSError as e:  # ssl.SSLError is one; its words name OpenSSL's own source
            words = "not a certificate and its key" if isinstance(e, ssl.SSLError) else e.strerror
            raise SettingsInvalid(
                f"ITL_WEB_TLS_CERT_FILE {files[0]} and ITL_WEB_TLS_KEY_FILE {files[1]} cannot be used: {words}"
            ) from None
    return app


def _serve(settings: Settings, warnings: Sequence[str]) -> int:
    """Serve until told to stop.

    Raises:
        RequestInvalid: A file or an address cannot be used.
        OSError: The port is taken, or a file cannot be read.
    """
    import uvicorn
    from a2wsgi import WSGIMiddleware

    from attestation_web import logs
    from attestation_web.border import connections
    from attestation_web.border.bodies import Bodies
    from attestation_web.border.health import Health
    from attestation_web.border.server import Server
    from attestation_web.border.turns import Turns

    logs.configure(settings.log_level, settings.log_format)
    for warning in warnings:
        logs.log().warning("web.weak", reason=warning)
    app = WSGIMiddleware(application(settings), workers=settings.threads)  # type: ignore[arg-type]  # a2wsgi types WSGI by itself, Flask as typeshed does
    connections.ask_for_files()
    server = Server(
        uvicorn.Config(
            Health(Bodies(Turns(app, settings.threads))),  # type: ignore[arg-type]  # a2wsgi has types of its own
            host=settings.listen_host,
            port=settings.listen_port,
            ssl_certfile=settings.tls_cert_file,
            ssl_keyfile=settings.tls_key_file,
            # Who says where a connection came from is a proxy's word, which nothing here rests on.
            proxy_headers=False,
            server_header=False,
            access_log=False,
            log_config=None,
            lifespan="off",
            http=connections.Protocol,
            ws="none",
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=STOP_SECONDS,
        ),
        lambda port: logs.log().info("web.starts", url=settings.url, host=settings.listen_host, port=port),
    )

    def asked_to_end(_number: int, _frame: FrameType | None) -> None:
        # Once it serves, the server ends in its own time, and then raises the signal for whoever started it.
        if not server.started:
            sys.exit(0)

    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, asked_to_end)
    server.run()
    if not server.started:
        return EXIT_UNUSABLE
    _end(app.executor)
    return 0


def _end(threads: ThreadPoolExecutor) -> None:
    """End the process where a thread does not: it waits for the service, or to hand on what nobody takes any more."""
    threads.shutdown(wait=False, cancel_futures=True)
    until = time.monotonic() + LAST_SECONDS
    for each in threading.enumerate():
        if each.name.startswith(THREADS):
            each.join(max(0.0, until - time.monotonic()))
            if each.is_alive():
                from attestation_web import logs

                logs.log().warning("web.cut", seconds=STOP_SECONDS)
                os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
