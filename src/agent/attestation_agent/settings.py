"""Settings of the agent: flags, then `ITL_*` variables, then defaults. An unknown variable stops the start."""

# Algorithms for: certified-key
# ruff: noqa: RUF009 -- what `_option` returns is a field
from __future__ import annotations

import argparse
import difflib
import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final, NoReturn

from attestation.log_line import FORMATS, LogFormat
from attestation.machines import Role
from attestation_agent.exits import Exit, UsageError

FOREIGN_PREFIXES: Final = ("ITL_API_", "ITL_WEB_", "ITL_OIDC_", "ITL_PROFILE", "ITL_ADMIN_TOKEN")
"""Variables of the command line and the dashboard, which share the prefix: whoever operates has them in their shell."""

_CLUSTER_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,62}\Z")


def _command(text: str) -> tuple[str, ...]:
    words = tuple(shlex.split(text))
    if not words:
        raise ValueError("is empty")
    return words


def _cluster_id(text: str) -> str:
    if not _CLUSTER_ID.match(text):
        raise ValueError("needs 1 to 63 of a-z, 0-9 and -")
    return text


def _one_of(*words: str) -> Callable[[str], str]:
    def check(text: str) -> str:
        if text not in words:
            raise ValueError(f"must be one of {', '.join(words)}")
        return text

    return check


def _kinds(text: str) -> tuple[str, ...]:
    kinds = tuple(dict.fromkeys(kind.strip() for kind in text.split(",")))
    if not set(kinds) <= {"client", "server"}:
        raise ValueError("must be client, server or client,server")
    return kinds


def _yes_or_no(text: str) -> bool:
    return _one_of("yes", "no")(text) == "yes"


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 <= seconds <= 86_400:
        raise ValueError("must be between 0 and 86400")
    return seconds


def _count(text: str) -> int:
    count = int(text)
    if not 1 <= count <= 1000:
        raise ValueError("must be between 1 and 1000")
    return count


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One setting: its flag, its variable, and how its text is read (`ValueError` refuses it)."""

    name: str
    variable: str
    read: Callable[[str], Any]
    default: Any
    help: str

    @property
    def flag(self) -> str:
        """The flag of the command line."""
        return "--" + self.name.replace("_", "-")


def _option(variable: str, read: Callable[[str], Any], default: Any, meaning: str) -> Any:
    return field(metadata={"variable": variable, "read": read, "default": default, "help": meaning})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What an administrator of a node chooses; documented in docs/operate/agent.md."""

    server_url: str = _option("ITL_REG_URL", str, None, "address of the service (required)")
    tpm: str = _option(
        "ITL_TPM",
        str,
        "device:/dev/tpmrm0",
        "where the TPM is: device:PATH, unix:SOCKET or tcp:HOST:PORT (default device:/dev/tpmrm0)",
    )
    ak: str = _option(
        "ITL_AK",
        _one_of("ecc", "ecc-p384", "rsa"),
        "ecc",
        "kind of attestation key: ecc (P-256, default), ecc-p384, or rsa (2048); another needs an ak-reset",
    )
    ek: str = _option(
        "ITL_EK",
        _one_of("any", "strong"),
        "any",
        "which endorsement key is the machine: any (default), or strong (P-384, RSA from 3072 bits)",
    )
    tee: str = _option(
        "ITL_TEE",
        _one_of("auto", "sev-snp", "tdx", "none"),
        "auto",
        "confidential hardware: sev-snp or tdx where it is what the machine is known by, without a TPM; auto shows it "
        "beside the TPM (default); none",
    )
    tsm_path: Path = _option(
        "ITL_TSM_PATH",
        Path,
        Path("/sys/kernel/config/tsm/report"),
        "where the kernel makes reports of confidential hardware (default /sys/kernel/config/tsm/report)",
    )
    gpu_command: tuple[str, ...] = _option(
        "ITL_GPU_COMMAND",
        _command,
        (),
        "prints evidence of NVIDIA GPUs as JSON, the nonce being its last argument; without a shell (default none)",
    )
    state_dir: Path = _option(
        "ITL_STATE_DIR",
        Path,
        Path("/var/lib/itl-tpm"),
        "what the agent remembers; nothing secret (default /var/lib/itl-tpm)",
    )
    wipe_order_dir: Path | None = _option(
        "ITL_WIPE_ORDER_DIR",
        Path,
        None,
        "where an order to wipe is kept, too, once its parent is there: the state directory is lost at a reboot "
        "(default none)",
    )
    certificate_dir: Path | None = _option(
        "ITL_AGENT_CERTIFICATE_DIR",
        Path,
        None,
        "where certificates are offered to other programs (default tls in the state directory)",
    )
    signer_socket: Path | None = _option(
        "ITL_AGENT_SIGNER_SOCKET",
        Path,
        None,
        "socket of the signer for other programs, in a directory of its own (default no signer)",
    )
    cluster_id: str = _option(
        "ITL_CLUSTER_ID", _cluster_id, "default", "cluster to ask for (default default)"
    )
    desired_role: Role | None = _option(
        "ITL_ROLE", Role, None, f"role to wish for: {', '.join(Role)}; an operator decides"
    )
    registration_token_file: Path | None = _option(
        "ITL_REGISTRATION_TOKEN_FILE",
        Path,
        None,
        "file with a registration token, and after it the digest of the service's keys, if an operator gave it; "
        "used once, at the first introduction",
    )
    service_keys_file: Path | None = _option(
        "ITL_SERVICE_KEYS_FILE",
        Path,
        None,
        "JWK set of the service to pin at the first activation, e.g. from the image (default trust on first use)",
    )
    config_path: Path = _option(
        "ITL_CONFIG_PATH",
        Path,
        Path("/run/itl-tpm/machineconfig.yaml"),
        "where the opened configuration is written, mode 0600 (default /run/itl-tpm/machineconfig.yaml)",
    )
    apply_command: tuple[str, ...] = _option(
        "ITL_APPLY_COMMAND",
        _command,
        (),
        "run with the path of the configuration as last argument, without a shell",
    )
    lock_command: tuple[str, ...] = _option(
        "ITL_LOCK_COMMAND", _command, (), "run when the machine is locked, without a shell"
    )
    unlock_command: tuple[str, ...] = _option(
        "ITL_UNLOCK_COMMAND", _command, (), "run when the lock is over, without a shell"
    )
    wipe_command: tuple[str, ...] = _option(
        "ITL_WIPE_COMMAND",
        _command,
        (),
        "run when the machine is ordered to wipe itself, after the acknowledgement, without a shell",
    )
    machined_socket: Path | None = _option(
        "ITL_MACHINED_SOCKET",
        Path,
        None,
        "socket of machined, on Talos: it applies and wipes, in place of file and commands (default none)",
    )
    command_timeout_seconds: float = _option(
        "ITL_COMMAND_TIMEOUT_SECONDS",
        _seconds,
        300.0,
        "longest time for a command, or for what machined changes (default 300)",
    )
    ca_file: Path | None = _option(
        "ITL_CA_FILE", Path, None, "PEM file with the only CAs to trust (default those of the system)"
    )
    event_log: Path = _option(
        "ITL_EVENT_LOG",
        Path,
        Path("/sys/kernel/security/tpm0/binary_bios_measurements"),
        "event log of the firmware, sent where a policy requires it, else once by each process",
    )
    ima_log: Path = _option(
        "ITL_IMA_LOG",
        Path,
        Path("/sys/kernel/security/ima/binary_runtime_measurements"),
        "measurement list of the kernel (IMA), sent where a policy reads it",
    )
    sysfs: Path = _option(
        "ITL_SYSFS", Path, Path("/sys"), "where DMI and network facts are read (default /sys)"
    )
    splay_seconds: float = _option(
        "ITL_SPLAY_SECONDS",
        _seconds,
        3.0,
        "start within this time, at random, so that a rack does not arrive at once; not with --once (default 3)",
    )
    attempts: int = _option(
        "ITL_ATTEMPTS", _count, 5, "with --once: attempts while the service does not answer (default 5)"
    )
    log_level: str = _option(
        "ITL_LOG_LEVEL",
        _one_of("debug", "info", "warning", "error"),
        "info",
        "debug, info, warning or error (default info)",
    )
    log_format: LogFormat = _option(
        "ITL_LOG_FORMAT",
        _one_of(*FORMATS),
        "auto",
        "text for people, json for programs, auto: text on a terminal, else json (default auto)",
    )
    certificates: tuple[str, ...] = _option(
        "ITL_AGENT_CERTIFICATES",
        _kinds,
        (),
        "certificates to get and renew, with keys of the TPM: client, server or client,server (default none)",
    )
    certificate_key: str = _option(
        "ITL_AGENT_CERTIFICATE_KEY",
        _one_of("auto", "ecc-p256", "ecc-p384", "rsa-2048", "rsa-3072"),
        "auto",
        "kind of a new key: auto (ecc-p384 where the TPM has it, else ecc-p256; default), ecc-p256, ecc-p384, "
        "rsa-2048 or rsa-3072",
    )
    certificate_new_key: bool = _option(
        "ITL_AGENT_CERTIFICATE_NEW_KEY", _yes_or_no, False, "yes: a new key at each renewal (default no)"
    )
    certificate_command: tuple[str, ...] = _option(
        "ITL_AGENT_CERTIFICATE_COMMAND",
        _command,
        (),
        "run with the directory as last argument whenever the files there changed, without a shell",
    )
    certificate_group: str | None = _option(
        "ITL_AGENT_CERTIFICATE_GROUP",
        str,
        None,
        "group that may read key.pem (default: the agent's own user alone)",
    )
    once: bool = False


OPTIONS: Final = tuple(Option(name=f.name, **f.metadata) for f in fields(Settings) if f.metadata)


def _options(*names: str) -> tuple[Option, ...]:
    return tuple(option for option in OPTIONS if option.name in names)


TPM_OPTIONS: Final = _options("tpm", "ak", "ek")
CERTIFICATE_OPTIONS: Final = _options("state_dir", "certificate_dir")
"""What `cert` needs to know."""
SIGNER_OPTIONS: Final = _options("signer_socket")
"""What `sign` needs to know."""
OFFLINE_OPTIONS: Final = _options(
    "tpm",
    "ak",
    "ek",
    "state_dir",
    "wipe_order_dir",
    "config_path",
    "apply_command",
    "machined_socket",
    "command_timeout_seconds",
)
"""What `offline` needs to know."""
PROVING_OPTIONS: Final = _options("server_url", "ca_file", "state_dir", "tpm", "ak", "ek")
"""What a command needs to know that proves this machine."""


class Parser(argparse.ArgumentParser):
    """An argument parser that ends with 64 (EX_USAGE), because 2 could be taken for something else."""

    def error(self, message: str) -> NoReturn:
        """Print usage and *message*, and end."""
        self.print_usage()
        self.exit(Exit.USAGE, f"{self.prog}: {message}\n")


def add_options(parser: argparse.ArgumentParser, options: Sequence[Option]) -> None:
    """Let *parser* know the flags of *options*; their texts are read later, like those of variables."""
    for option in options:
        parser.add_argument(
            option.flag,
            dest=option.name,
            metavar=option.name.upper(),
            help=f"{option.help} [{option.variable}]",
        )


def resolve(
    flags: Mapping[str, Any],
    environ: Mapping[str, str],
    options: Sequence[Option],
    *,
    also: Sequence[Option] = (),
) -> dict[str, Any]:
    """Return the value of each option: flag, then variable, then default.

    Args:
        flags: What the command line says, by name.
        environ: The environment.
        options: Which.
        also: Options of the commands `kubelet …`, where it is one: others pass their variables over.

    Raises:
        UsageError: An unknown `ITL_` variable, or a text that cannot be read; it names the source.
    """
    known = [option.variable for option in (*OPTIONS, *also)]
    foreign = FOREIGN_PREFIXES if also else (*FOREIGN_PREFIXES, "ITL_KUBELET_")
    for variable in environ:
        if variable.startswith("ITL_") and variable not in known and not variable.startswith(foreign):
            # What all of them begin with makes any two alike: by default far ones are named too.
            near = difflib.get_close_matches(variable, known, n=1, cutoff=0.85)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise UsageError(f"unknown variable {variable}{hint}")
    values: dict[str, Any] = {}
    for option in options:
        source, text = option.flag, flags.get(option.name)
        if text is None:
            source, text = option.variable, environ.get(option.variable) or None
        try:
            values[option.name] = option.default if text is None else option.read(text)
        except ValueError as e:
            raise UsageError(f"{source}: {e}") from None
    if values.get("machined_socket") is not None:
        _check_alone(values, options)
    return values


def _check_alone(values: Mapping[str, Any], options: Sequence[Option]) -> None:
    """Refuse a second way to apply or to wipe: nobody could tell which of them is meant.

    Raises:
        UsageError: There is one.
    """
    for option in options:
        if option.name in ("config_path", "apply_command", "wipe_command") and (
            values[option.name] != option.default
        ):
            raise UsageError(f"{option.flag} has no meaning beside --machined-socket: machined does it")


def load(flags: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> Settings:
    """Return the settings of `run`.

    Raises:
        UsageError: Something is missing, unknown or wrong.
    """
    values = resolve(flags, os.environ if environ is None else environ, OPTIONS)
    if not values["server_url"]:
        raise UsageError("the address of the service is missing: --server-url or ITL_REG_URL")
    return Settings(once=bool(flags.get("once")), **values)
