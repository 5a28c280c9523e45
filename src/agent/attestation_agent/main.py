"""Entry points: `attestation-agent COMMAND`, and `itl-tpm-register`, which is `attestation-agent run`."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import secrets
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attestation import __version__, completion, manual, output
from attestation_agent.exits import Exit, UsageError, exit_of
from attestation_agent.settings import (
    CERTIFICATE_OPTIONS,
    OFFLINE_OPTIONS,
    OPTIONS,
    PROVING_OPTIONS,
    SIGNER_OPTIONS,
    TPM_OPTIONS,
    Parser,
    add_options,
    load,
    resolve,
)

if TYPE_CHECKING:
    from attestation.client import NodeClient
    from attestation_agent.edge import Edge
    from attestation_agent.offered import Offered
    from attestation_agent.proving import Proving
    from attestation_agent.settings import Settings
    from attestation_agent.shared_tpm import SharedTPM
    from attestation_agent.state import State
    from attestation_agent.talos.machined import Machined

EPILOG = (
    "Every option can be given by the variable in brackets; an unknown ITL_ variable stops the start. "
    "Exit codes: 0 attested, or told to stop; 10 pending approval; 11 locked; 12 revoked; 13 rejected; "
    "14 not affirmed; 15 configuration not delivered; 20 TPM unavailable; 21 service unreachable; "
    "22 refused by the service; 23 not authentic; 24 configuration not opened; 25 apply failed; 26 wipe failed; "
    "27 no certificate; 28 state directory not writable; 64 usage."
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `attestation-agent`; the console script exits with what this returns."""
    parser = Parser(prog="attestation-agent", description="Prove this machine with its TPM.", epilog=EPILOG)
    _add_version(parser)
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
    cert = commands.add_parser("cert", help="print the certificates of this node and what becomes of them")
    add_options(cert, CERTIFICATE_OPTIONS)
    cert.add_argument("--json", action="store_true", help="print JSON")
    cert.add_argument("--renew", action="store_true", help="ask the running agent to renew them now")
    sign = commands.add_parser("sign", help="have the running agent sign with the key of a certificate")
    add_options(sign, SIGNER_OPTIONS)
    sign.add_argument("--kind", choices=("client", "server"), default="client", help="(default client)")
    sign.add_argument("--algorithm", help="what the key can do (default the first that it can)")
    sign.add_argument("--digest", help="digest to sign, as hex, instead of a file")
    sign.add_argument("file", nargs="?", help="file to sign (default standard input)")
    offline = commands.add_parser("offline", help="take configuration and certificate from an offline bundle")
    add_options(offline, OFFLINE_OPTIONS)
    # The file is taken once: key and certificate are dropped only where somebody says so.
    certificate = offline.add_mutually_exclusive_group(required=True)
    certificate.add_argument("--certificate-to", type=Path, help="directory for key.pem, cert.pem and ca.pem")
    certificate.add_argument("--no-certificate", action="store_true", help="drop key and certificate")
    offline.add_argument("file", type=Path, help="what `attestation machine offline-bundle` wrote")
    secret = commands.add_parser("secret", help="secrets that the service keeps for this machine")
    below = secret.add_subparsers(dest="secret", required=True, parser_class=Parser, metavar="COMMAND")
    get = below.add_parser("get", help="prove this machine, and print a secret")
    add_options(get, PROVING_OPTIONS)
    get.add_argument("name", metavar="NAME", help="of the secret")
    get.add_argument("--shared", action="store_true", help="one that several machines may have")
    get.add_argument(
        "--to", type=Path, help="new file, readable by its owner only, instead of standard output"
    )
    get.add_argument(
        "--exec", nargs=argparse.REMAINDER, default=[], help="program that reads it from standard input"
    )
    identity = commands.add_parser("identity", help="who this machine is, for others to verify")
    below = identity.add_subparsers(dest="identity", required=True, parser_class=Parser, metavar="COMMAND")
    token = below.add_parser("token", help="prove this machine, and print a token for one audience")
    add_options(token, PROVING_OPTIONS)
    token.add_argument("--audience", required=True, help="who is to believe it")
    token.add_argument("--to", type=Path, help="file, readable by its owner only, instead of standard output")
    serve = below.add_parser("serve", help="give tokens to other programs of this machine, on a socket")
    add_options(serve, PROVING_OPTIONS)
    serve.add_argument("--socket", type=Path, required=True, help="in a directory that only this user writes")
    serve.add_argument(
        "--audience", action="append", required=True, help="for whom tokens are given; may be said again"
    )
    serve.add_argument(
        "--users", default="", help="who may ask beside this user and root: names, with commas"
    )
    _add_kubelet(commands)
    run = commands.add_parser("run", help="introduce, attest, obey, come again", epilog=EPILOG)
    _add_run_options(run)
    return _guarded(_read(parser, arguments))


def _add_kubelet(commands: Any) -> None:
    """Add `kubelet` and the commands below it."""
    from attestation_agent.kubelet.settings import options_of

    kubelet = commands.add_parser("kubelet", help="a certificate for this Kubernetes node, rooted in its TPM")
    below = kubelet.add_subparsers(dest="kubelet", required=True, parser_class=Parser, metavar="COMMAND")
    for name, meaning in (
        ("proxy", "key in the TPM: write a kubeconfig and a proxy on loopback that holds the key"),
        (
            "bootstrap",
            "key in software, certified by the TPM: write it and a kubeconfig before kubelet starts",
        ),
        ("credential", "the same as an exec credential plugin of Kubernetes"),
    ):
        parser = below.add_parser(name, help=meaning)
        add_options(parser, options_of(name))
        if name != "credential":
            parser.add_argument("--stay", action="store_true", help="stay, and renew the certificate in time")


def register(arguments: Sequence[str] | None = None) -> int:
    """Run `itl-tpm-register`: `attestation-agent run` under the name that images know."""
    parser = Parser(prog="itl-tpm-register", description="Prove this machine with its TPM.", epilog=EPILOG)
    _add_run_options(parser)
    _add_version(parser)
    return _guarded({**_read(parser, arguments), "command": "run"})


def _add_version(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--man", action=manual.Print, help="print the manual page: ... | man -l -")
    parser.add_argument("--completion", action=completion.Print, help="print the completion for a shell")
    # All that is ours is of one version.
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")


def _read(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> dict[str, Any]:
    with output.to_the_end(parser.prog, Exit.USAGE):
        return vars(parser.parse_args(arguments))


def _say(text: str) -> None:
    with output.to_the_end("attestation-agent", Exit.USAGE):
        print(text)  # noqa: T201 -- the output


def _add_run_options(parser: argparse.ArgumentParser) -> None:
    add_options(parser, OPTIONS)
    parser.add_argument("--once", action="store_true", help="end after the first conclusive answer")


def _guarded(flags: Mapping[str, Any]) -> int:
    """Run the command in *flags*; an error of ours becomes one line and an exit code."""
    # Imported here: --help needs none of it.
    from attestation.errors import AttestationError

    commands = {
        "identify": _identify,
        "quote": _quote,
        "cert": _cert,
        "sign": _sign,
        "offline": _offline,
        "secret": _secret,
        "identity": _identity,
        "kubelet": _kubelet,
    }
    command = {**commands, "run": _run}[flags["command"]]
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
    _say(json.dumps(facts, indent=2) if flags["json"] else identity_text(facts))
    return Exit.OK


def _quote(flags: Mapping[str, Any]) -> int:
    from attestation_agent.show import quote_json

    nonce, selection = _nonce(flags["nonce"]), _selection(flags["pcrs"])
    with _open(resolve(flags, os.environ, TPM_OPTIONS)) as tpm:
        quote = tpm.quote(nonce, selection)
        text = quote_json(quote, nonce, selection, tpm.ak_public())
    _say(text)
    return Exit.OK


def _cert(flags: Mapping[str, Any]) -> int:
    from attestation.clock import SystemClock
    from attestation_agent.offered import Offered, directory_of
    from attestation_agent.show_certificates import certificate_facts, certificate_text

    values = resolve(flags, os.environ, CERTIFICATE_OPTIONS)
    offered = Offered(directory_of(values["state_dir"], values["certificate_dir"]))
    if flags["renew"]:
        _ask(offered)
    facts = certificate_facts(offered, SystemClock().now())
    _say(json.dumps(facts, indent=2) if flags["json"] else certificate_text(facts))
    good = bool(facts["certificates"]) and all(found["valid"] for found in facts["certificates"])
    return Exit.OK if good else Exit.NO_CERTIFICATE


def _ask(offered: Offered) -> None:
    """Ask for the renewal of whatever is there."""
    from attestation_agent.offered import KINDS

    for kind in KINDS:
        if offered.current(kind) is not None or offered.notes(kind):
            try:
                offered.ask(kind)
            except OSError as e:
                raise UsageError(f"{offered.directory}: {e.strerror}") from e


def _sign(flags: Mapping[str, Any]) -> int:
    from attestation_agent.signer import ask, digest_of

    path = resolve(flags, os.environ, SIGNER_OPTIONS)["signer_socket"]
    if path is None:
        raise UsageError("the signer's socket is missing: --signer-socket or ITL_AGENT_SIGNER_SOCKET")
    algorithm = flags["algorithm"] or ask(path, kind=flags["kind"])["algorithms"][0]
    digest = digest_of(algorithm, flags["digest"], flags["file"])
    _say(ask(path, kind=flags["kind"], algorithm=algorithm, digest=digest)["signature"])
    return Exit.OK


def _offline(flags: Mapping[str, Any]) -> int:
    from attestation.clock import SystemClock
    from attestation_agent.acts import ByCommands
    from attestation_agent.commands import run_command
    from attestation_agent.offline import Place, read, take
    from attestation_agent.state import State

    values = resolve(flags, os.environ, OFFLINE_OPTIONS)
    state = State(values["state_dir"], wipe_orders=values["wipe_order_dir"])
    bundle = read(flags["file"])
    with state.alone(), _open(values) as tpm:
        place = Place(
            state=state,
            tpm=tpm,
            acts=_machined(values["machined_socket"], values["command_timeout_seconds"])
            or ByCommands(
                config_path=values["config_path"],
                apply_command=values["apply_command"],
                run=lambda words: run_command(words, timeout_seconds=values["command_timeout_seconds"]),
            ),
            certificate_to=flags["certificate_to"],
        )
        take(bundle, place, at=SystemClock().now())
    return Exit.OK


def _secret(flags: Mapping[str, Any]) -> int:
    from attestation_agent import secret

    with _proving(flags) as (node, client):
        value = secret.get(node, client, flags["name"], shared=flags["shared"])
    return secret.give(value, flags["to"], flags["exec"])


def _identity(flags: Mapping[str, Any]) -> int:
    from attestation_agent import identity, secret

    if flags["identity"] == "serve":
        return _serve_tokens(flags)
    with _proving(flags) as (node, client):
        found = identity.token(node, client, flags["audience"])
    return secret.give(f"{found.token}\n".encode("ascii"), flags["to"], ())


def _serve_tokens(flags: Mapping[str, Any]) -> int:
    from attestation.clock import SystemClock
    from attestation_agent import identity, identity_socket
    from attestation_agent.logs import configure
    from attestation_agent.state import State

    settings = load(flags)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())

    def ask(audience: str) -> identity.Token:
        # Anew each time: between two tokens the TPM and the connections are for others.
        with _proving(flags) as (node, client):
            return identity.token(node, client, audience)

    status = State(settings.state_dir).status
    tokens = identity_socket.Tokens(ask, flags["audience"], status=status, clock=SystemClock())
    users = identity_socket.user_ids([name for name in flags["users"].split(",") if name])
    log = configure(settings.log_level, settings.log_format)
    endpoint = identity_socket.Endpoint(flags["socket"], tokens, users, log)
    with identity_socket.serving(endpoint):
        log.info("identity.serves", socket=str(flags["socket"]), audiences=flags["audience"])
        stop.wait()
    return Exit.OK


@contextlib.contextmanager
def _proving(flags: Mapping[str, Any]) -> Iterator[tuple[Proving, NodeClient]]:
    """Yield this machine, which can prove itself, and the service."""
    settings = load(flags)
    from attestation.client import NodeClient, Retries
    from attestation_agent.proving import Proving
    from attestation_agent.state import State

    with NodeClient(settings.server_url, ca_file=settings.ca_file, retries=Retries(attempts=2)) as client:
        yield (
            Proving(settings, state=State(settings.state_dir), client=client, edge=_edge_of(settings)),
            client,
        )


def _edge_of(settings: Settings) -> Edge:
    """Return the world of a command that ends by itself; its log is for standard error."""
    from attestation.clock import SystemClock
    from attestation.device import TEE
    from attestation.device.guest_ioctl import GuestDevice, first_that_answers
    from attestation.device.tsm import TsmReport
    from attestation_agent.commands import run_command
    from attestation_agent.edge import Edge
    from attestation_agent.logs import configure
    from attestation_agent.rhythm import Rhythm

    return Edge(
        clock=SystemClock(),
        wait=lambda _: False,
        open_tpm=lambda: _open({"tpm": settings.tpm, "ak": settings.ak, "ek": settings.ek}),
        run=lambda command: run_command(command, timeout_seconds=settings.command_timeout_seconds),
        rhythm=Rhythm(),
        log=configure("warning", settings.log_format),
        tee=lambda: TEE(first_that_answers(TsmReport(settings.tsm_path).quote, GuestDevice().quote)),
    )


def _kubelet(flags: Mapping[str, Any]) -> int:
    from attestation_agent.kubelet.commands import main as kubelet

    return kubelet(flags)


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
    from attestation.device import AK_WORDS, EK_PREFERENCE, EK_STRONG, NodeTPM

    return NodeTPM.open(
        values["tpm"],
        ak=AK_WORDS[values["ak"]],
        ek_templates=EK_STRONG if values["ek"] == "strong" else EK_PREFERENCE,
    )


def _machined(
    path: Path | None, timeout_seconds: float, stopping: Callable[[], bool] = lambda: False
) -> Machined | None:
    """Return the Talos whose socket is at *path*, if there is one.

    Raises:
        UsageError: What speaks to it is not installed.
    """
    if path is None:
        return None
    try:
        from attestation_agent.talos.machined import Machined
    except ModuleNotFoundError as e:
        raise UsageError("--machined-socket needs itl-attestation-agent[talos]") from e
    return Machined(path, timeout_seconds=timeout_seconds, stopping=stopping)


def _run(flags: Mapping[str, Any]) -> int:
    settings = load(flags)
    from attestation.client import NodeClient, Retries, is_loopback
    from attestation.clock import SystemClock
    from attestation.device import TEE
    from attestation.device.guest_ioctl import GuestDevice, first_that_answers
    from attestation.device.tsm import TsmReport
    from attestation_agent.commands import run_command
    from attestation_agent.edge import Edge
    from attestation_agent.guest import GuestAgent
    from attestation_agent.logs import configure
    from attestation_agent.node import Agent
    from attestation_agent.rhythm import Rhythm
    from attestation_agent.state import State

    log = configure(settings.log_level, settings.log_format)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    if settings.server_url.lower().startswith("http:") and not is_loopback(settings.server_url):
        log.warning("server.not_encrypted", url=settings.server_url)
    machined = _machined(settings.machined_socket, settings.command_timeout_seconds, stop.is_set)
    state = State(settings.state_dir, wipe_orders=settings.wipe_order_dir)

    def client() -> NodeClient:
        retries = Retries(attempts=2, sleep=stop.wait)
        return NodeClient(settings.server_url, ca_file=settings.ca_file, retries=retries)

    def open_tpm() -> Any:
        return _open({"tpm": settings.tpm, "ak": settings.ak, "ek": settings.ek})

    with contextlib.ExitStack() as stack:
        stack.enter_context(state.alone())
        edge = Edge(
            clock=SystemClock(),
            wait=stop.wait,
            open_tpm=open_tpm,
            run=lambda command: run_command(
                command, timeout_seconds=settings.command_timeout_seconds, stopping=stop.is_set
            ),
            rhythm=Rhythm(),
            log=log,
            tee=lambda: TEE(first_that_answers(TsmReport(settings.tsm_path).quote, GuestDevice().quote)),
            machined=machined,
        )
        if settings.certificates or settings.signer_socket is not None:
            from attestation_agent.shared_tpm import SharedTPM

            tpm = SharedTPM(open_tpm)
            edge = stack.enter_context(_with_certificates(settings, state, edge, tpm, client, stop.is_set))
        log.info("agent.starts", server_url=settings.server_url, tpm=settings.tpm, once=settings.once)
        kind = Agent if settings.tee in ("auto", "none") else GuestAgent
        code = kind(settings, state=state, client=stack.enter_context(client()), edge=edge).run()
        log.info("agent.ends", exit_code=int(code), reason=code.name.lower())
    return code


@contextlib.contextmanager
def _with_certificates(
    settings: Settings,
    state: State,
    edge: Edge,
    tpm: SharedTPM,
    client: Callable[[], NodeClient],
    stopping: Callable[[], bool],
) -> Iterator[Edge]:
    """Run what was asked for beside attesting, on the same TPM; yield the edge that attesting uses then."""
    from attestation_agent.beside import Surroundings, beside

    with client() as service:
        around = Surroundings(
            settings=settings,
            state=state,
            service=service,
            tpm=tpm,
            clock=edge.clock,
            run=edge.run,
            log=edge.log,
            stopping=stopping,
        )
        with beside(around) as attested:
            yield replace(edge, open_tpm=tpm.open, attested=attested)
