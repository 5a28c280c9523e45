"""Entry points: `attestation-agent identify | quote | run`, and `itl-tpm-register`, which is `run`."""

from __future__ import annotations

import argparse
import json
import os
import secrets
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from attestation_agent.exits import Exit, UsageError, exit_of
from attestation_agent.settings import OPTIONS, TPM_OPTIONS, Parser, add_options, load, resolve

EPILOG = (
    "Every option can be given by the variable in brackets; an unknown ITL_ variable stops the start. "
    "Exit codes: 0 attested, or told to stop; 10 pending approval; 11 locked; 12 revoked; 13 rejected; "
    "14 not affirmed; 20 TPM unavailable; 21 service unreachable; 22 refused by the service; 23 not authentic; "
    "24 configuration not opened; 25 apply failed; 26 wipe failed; 64 usage."
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `attestation-agent`; the console script exits with what this returns."""
    parser = Parser(prog="attestation-agent", description="Prove this machine with its TPM.", epilog=EPILOG)
    commands = parser.add_subparsers(dest="command", required=True, parser_class=Parser, metavar="COMMAND")
    identify = commands.add_parser(
        "identify", help="print EK fingerprint, certificate, manufacturer and firmware"
    )
    add_options(identify, TPM_OPTIONS)
    identify.add_argument("--json", action="store_true", help="print JSON")
    quote = commands.add_parser("quote", help="print a quote as JSON, for debugging")
    add_options(quote, TPM_OPTIONS)
    quote.add_argument("--nonce", help="qualifying data, 1 to 64 bytes as hex (default 32 random bytes)")
    quote.add_argument("--pcrs", default="sha256:0,1,2,3,4,5,6,7", help="BANK:PCR,PCR,… (default sha256:0-7)")
    run = commands.add_parser("run", help="introduce, attest, obey, come again", epilog=EPILOG)
    _add_run_options(run)
    return _guarded(vars(parser.parse_args(arguments)))


def register(arguments: Sequence[str] | None = None) -> int:
    """Run `itl-tpm-register`: `attestation-agent run` under the name that images know."""
    parser = Parser(prog="itl-tpm-register", description="Prove this machine with its TPM.", epilog=EPILOG)
    _add_run_options(parser)
    return _guarded({**vars(parser.parse_args(arguments)), "command": "run"})


def _add_run_options(parser: argparse.ArgumentParser) -> None:
    add_options(parser, OPTIONS)
    parser.add_argument("--once", action="store_true", help="end after the first conclusive answer")


def _guarded(flags: Mapping[str, Any]) -> int:
    """Run the command in *flags*; an error of ours becomes one line and an exit code."""
    # Imported here: --help needs none of it.
    from attestation.errors import AttestationError

    command = {"identify": _identify, "quote": _quote, "run": _run}[flags["command"]]
    try:
        return command(flags)
    except AttestationError as e:
        print(f"attestation-agent: {e}", file=sys.stderr)  # noqa: T201 -- before there is a log
        return exit_of(e)


def _identify(flags: Mapping[str, Any]) -> int:
    from attestation.clock import SystemClock
    from attestation_agent.show import identity_facts, identity_text

    with _open(resolve(flags, os.environ, TPM_OPTIONS)) as tpm:
        facts = identity_facts(tpm.identify(), tpm.ak_public(), SystemClock().now())
    print(json.dumps(facts, indent=2) if flags["json"] else identity_text(facts))  # noqa: T201 -- the output
    return Exit.OK


def _quote(flags: Mapping[str, Any]) -> int:
    from attestation_agent.show import quote_json

    nonce, selection = _nonce(flags["nonce"]), _selection(flags["pcrs"])
    with _open(resolve(flags, os.environ, TPM_OPTIONS)) as tpm:
        quote = tpm.quote(nonce, selection)
        text = quote_json(quote, nonce, selection, tpm.ak_public())
    print(text)  # noqa: T201 -- the output
    return Exit.OK


def _nonce(text: str | None) -> bytes:
    if text is None:
        return secrets.token_bytes(32)
    try:
        nonce = bytes.fromhex(text)
    except ValueError as e:
        raise UsageError("--nonce: not hex") from e
    if not 1 <= len(nonce) <= 64:
        raise UsageError("--nonce: 1 to 64 bytes needed")
    return nonce


def _selection(text: str) -> Any:
    from attestation.errors import MalformedEvidence
    from attestation.tpm import PCRSelection

    bank, _, indices = text.partition(":")
    try:
        return PCRSelection.from_names({bank: [int(index) for index in indices.split(",")]})
    except (ValueError, MalformedEvidence) as e:
        raise UsageError(f"--pcrs: {e}") from e


def _open(values: Mapping[str, Any]) -> Any:
    """Return the `NodeTPM` that *values* name, a context manager."""
    from attestation.device import AKType, NodeTPM

    return NodeTPM.open(values["tpm"], ak={"ecc": AKType.ECC_P256, "rsa": AKType.RSA_2048}[values["ak"]])


def _run(flags: Mapping[str, Any]) -> int:
    settings = load(flags)
    from attestation.client import NodeClient, Retries, is_loopback
    from attestation.clock import SystemClock
    from attestation_agent.commands import run_command
    from attestation_agent.logs import configure
    from attestation_agent.node import Agent, Edge
    from attestation_agent.rhythm import Rhythm
    from attestation_agent.state import State

    log = configure(settings.log_level)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    edge = Edge(
        clock=SystemClock(),
        wait=stop.wait,
        open_tpm=lambda: _open({"tpm": settings.tpm, "ak": settings.ak}),
        run=lambda command: run_command(
            command, timeout_seconds=settings.command_timeout_seconds, stopping=stop.is_set
        ),
        rhythm=Rhythm(),
        log=log,
    )
    if settings.server_url.startswith("http:") and not is_loopback(settings.server_url):
        log.warning("server.not_encrypted", url=settings.server_url)
    state = State(settings.state_dir)
    retries = Retries(attempts=2, sleep=stop.wait)
    with (
        state.alone(),
        NodeClient(settings.server_url, ca_file=settings.ca_file, retries=retries) as client,
    ):
        log.info("agent.starts", server_url=settings.server_url, tpm=settings.tpm, once=settings.once)
        code = Agent(settings, state=state, client=client, edge=edge).run()
        log.info("agent.ends", exit_code=int(code), reason=code.name.lower())
    return code
