"""Settings of the agent: flags, then `ITL_*` variables, then defaults. An unknown variable stops the start."""

# Algorithms for: certified-key
from __future__ import annotations

import argparse
import difflib
import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NoReturn

from attestation.log_line import FORMATS, LogFormat
from attestation.machines import Role
from attestation_agent.exits import Exit, UsageError

FOREIGN_PREFIXES: Final = ("ITL_API_", "ITL_WEB_", "ITL_OIDC_", "ITL_PROFILE", "ITL_ADMIN_TOKEN")
"""Variables of the command line and the dashboard, which share the prefix: whoever operates has them in their shell."""

_CLUSTER_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,62}\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What an administrator of a node chooses; documented in docs/operate/agent.md."""

    server_url: str
    tpm: str
    state_dir: Path
    ak: str
    ek: str
    cluster_id: str
    desired_role: Role | None
    registration_token_file: Path | None
    service_keys_file: Path | None
    config_path: Path
    apply_command: tuple[str, ...]
    lock_command: tuple[str, ...]
    unlock_command: tuple[str, ...]
    wipe_command: tuple[str, ...]
    command_timeout_seconds: float
    ca_file: Path | None
    event_log: Path
    ima_log: Path
    sysfs: Path
    splay_seconds: float
    attempts: int
    log_level: str
    log_format: LogFormat
    certificates: tuple[str, ...]
    certificate_dir: Path | None
    certificate_key: str
    certificate_new_key: bool
    certificate_command: tuple[str, ...]
    certificate_group: str | None
    signer_socket: Path | None
    once: bool = False


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


TPM_OPTIONS: Final = (
    Option(
        name="tpm",
        variable="ITL_TPM",
        read=str,
        default="device:/dev/tpmrm0",
        help="where the TPM is: device:PATH, unix:SOCKET or tcp:HOST:PORT (default device:/dev/tpmrm0)",
    ),
    Option(
        name="ak",
        variable="ITL_AK",
        read=_one_of("ecc", "ecc-p384", "rsa"),
        default="ecc",
        help="kind of attestation key: ecc (P-256, default), ecc-p384, or rsa (2048); another needs an ak-reset",
    ),
    Option(
        name="ek",
        variable="ITL_EK",
        read=_one_of("any", "strong"),
        default="any",
        help="which endorsement key is the machine: any (default), or strong (P-384, RSA from 3072 bits)",
    ),
)

CERTIFICATE_OPTIONS: Final = (
    Option(
        name="state_dir",
        variable="ITL_STATE_DIR",
        read=Path,
        default=Path("/var/lib/itl-tpm"),
        help="what the agent remembers; nothing secret (default /var/lib/itl-tpm)",
    ),
    Option(
        name="certificate_dir",
        variable="ITL_AGENT_CERTIFICATE_DIR",
        read=Path,
        default=None,
        help="where certificates are offered to other programs (default tls in the state directory)",
    ),
)
"""What `cert` needs to know."""

SIGNER_OPTIONS: Final = (
    Option(
        name="signer_socket",
        variable="ITL_AGENT_SIGNER_SOCKET",
        read=Path,
        default=None,
        help="socket of the signer for other programs, in a directory of its own (default no signer)",
    ),
)
"""What `sign` needs to know."""

OPTIONS: Final = (
    Option(
        name="server_url",
        variable="ITL_REG_URL",
        read=str,
        default=None,
        help="address of the service (required)",
    ),
    *TPM_OPTIONS,
    *CERTIFICATE_OPTIONS,
    *SIGNER_OPTIONS,
    Option(
        name="cluster_id",
        variable="ITL_CLUSTER_ID",
        read=_cluster_id,
        default="default",
        help="cluster to ask for (default default)",
    ),
    Option(
        name="desired_role",
        variable="ITL_ROLE",
        read=Role,
        default=None,
        help=f"role to wish for: {', '.join(Role)}; an operator decides",
    ),
    Option(
        name="registration_token_file",
        variable="ITL_REGISTRATION_TOKEN_FILE",
        read=Path,
        default=None,
        help="file with a registration token, and after it the digest of the service's keys, if an operator gave it; "
        "used once, at the first introduction",
    ),
    Option(
        name="service_keys_file",
        variable="ITL_SERVICE_KEYS_FILE",
        read=Path,
        default=None,
        help="JWK set of the service to pin at the first activation, e.g. from the image (default trust on first use)",
    ),
    Option(
        name="config_path",
        variable="ITL_CONFIG_PATH",
        read=Path,
        default=Path("/run/itl-tpm/machineconfig.yaml"),
        help="where the opened configuration is written, mode 0600 (default /run/itl-tpm/machineconfig.yaml)",
    ),
    Option(
        name="apply_command",
        variable="ITL_APPLY_COMMAND",
        read=_command,
        default=(),
        help="run with the path of the configuration as last argument, without a shell",
    ),
    Option(
        name="lock_command",
        variable="ITL_LOCK_COMMAND",
        read=_command,
        default=(),
        help="run when the machine is locked, without a shell",
    ),
    Option(
        name="unlock_command",
        variable="ITL_UNLOCK_COMMAND",
        read=_command,
        default=(),
        help="run when the lock is over, without a shell",
    ),
    Option(
        name="wipe_command",
        variable="ITL_WIPE_COMMAND",
        read=_command,
        default=(),
        help="run when the machine is ordered to wipe itself, after the acknowledgement, without a shell",
    ),
    Option(
        name="command_timeout_seconds",
        variable="ITL_COMMAND_TIMEOUT_SECONDS",
        read=_seconds,
        default=300.0,
        help="longest time for a command (default 300)",
    ),
    Option(
        name="ca_file",
        variable="ITL_CA_FILE",
        read=Path,
        default=None,
        help="PEM file with the only CAs to trust (default those of the system)",
    ),
    Option(
        name="event_log",
        variable="ITL_EVENT_LOG",
        read=Path,
        default=Path("/sys/kernel/security/tpm0/binary_bios_measurements"),
        help="event log of the firmware, sent where a policy requires it, else once by each process",
    ),
    Option(
        name="ima_log",
        variable="ITL_IMA_LOG",
        read=Path,
        default=Path("/sys/kernel/security/ima/binary_runtime_measurements"),
        help="measurement list of the kernel (IMA), sent where a policy reads it",
    ),
    Option(
        name="sysfs",
        variable="ITL_SYSFS",
        read=Path,
        default=Path("/sys"),
        help="where DMI and network facts are read (default /sys)",
    ),
    Option(
        name="splay_seconds",
        variable="ITL_SPLAY_SECONDS",
        read=_seconds,
        default=3.0,
        help="start within this time, at random, so that a rack does not arrive at once; not with --once (default 3)",
    ),
    Option(
        name="attempts",
        variable="ITL_ATTEMPTS",
        read=_count,
        default=5,
        help="with --once: attempts while the service does not answer (default 5)",
    ),
    Option(
        name="log_level",
        variable="ITL_LOG_LEVEL",
        read=_one_of("debug", "info", "warning", "error"),
        default="info",
        help="debug, info, warning or error (default info)",
    ),
    Option(
        name="log_format",
        variable="ITL_LOG_FORMAT",
        read=_one_of(*FORMATS),
        default="auto",
        help="text for people, json for programs, auto: text on a terminal, else json (default auto)",
    ),
    Option(
        name="certificates",
        variable="ITL_AGENT_CERTIFICATES",
        read=_kinds,
        default=(),
        help="certificates to get and renew, with keys of the TPM: client, server or client,server (default none)",
    ),
    Option(
        name="certificate_key",
        variable="ITL_AGENT_CERTIFICATE_KEY",
        read=_one_of("auto", "ecc-p256", "ecc-p384", "rsa-2048", "rsa-3072"),
        default="auto",
        help="kind of a new key: auto (ecc-p384 where the TPM has it, else ecc-p256; default), ecc-p256, ecc-p384, "
        "rsa-2048 or rsa-3072",
    ),
    Option(
        name="certificate_new_key",
        variable="ITL_AGENT_CERTIFICATE_NEW_KEY",
        read=_yes_or_no,
        default=False,
        help="yes: a new key at each renewal (default no)",
    ),
    Option(
        name="certificate_command",
        variable="ITL_AGENT_CERTIFICATE_COMMAND",
        read=_command,
        default=(),
        help="run with the directory as last argument whenever the files there changed, without a shell",
    ),
    Option(
        name="certificate_group",
        variable="ITL_AGENT_CERTIFICATE_GROUP",
        read=str,
        default=None,
        help="group that may read key.pem (default: the agent's own user alone)",
    ),
)

_OF_OFFLINE: Final = (
    "tpm",
    "ak",
    "ek",
    "state_dir",
    "config_path",
    "apply_command",
    "command_timeout_seconds",
)
OFFLINE_OPTIONS: Final = tuple(option for option in OPTIONS if option.name in _OF_OFFLINE)
"""What `offline` needs to know."""


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
    flags: Mapping[str, Any], environ: Mapping[str, str], options: Sequence[Option]
) -> dict[str, Any]:
    """Return the value of each option: flag, then variable, then default.

    Raises:
        UsageError: An unknown `ITL_` variable, or a text that cannot be read; it names the source.
    """
    known = [option.variable for option in OPTIONS]
    for variable in environ:
        if (
            variable.startswith("ITL_")
            and variable not in known
            and not variable.startswith(FOREIGN_PREFIXES)
        ):
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
    return values


def load(flags: Mapping[str, Any], environ: Mapping[str, str] | None = None) -> Settings:
    """Return the settings of `run`.

    Raises:
        UsageError: Something is missing, unknown or wrong.
    """
    values = resolve(flags, os.environ if environ is None else environ, OPTIONS)
    if not values["server_url"]:
        raise UsageError("the address of the service is missing: --server-url or ITL_REG_URL")
    return Settings(once=bool(flags.get("once")), **values)
