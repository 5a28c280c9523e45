"""Settings: `ITL_OPERATOR_*` variables and flags, read once at the start; flags win. An unknown one stops the start."""

from __future__ import annotations

import difflib
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from attestation.api.said import said
from attestation.client import is_loopback
from attestation.errors import AttestationError
from attestation.log_line import LogFormat

PREFIX: Final = "ITL_OPERATOR_"
NAMESPACE_FILE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")

_NAMESPACE: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_ADDRESS: Final = re.compile(r"(\[(?P<inside>[0-9A-Fa-f:.]+)\]|(?P<host>[^\s:\[\]/]*)):(?P<port>[0-9]{1,5})")
_URL: Final = re.compile(r"https?://[^\s/@?#]+(/[^\s@?#]*)?")


class SettingsInvalid(AttestationError):
    """The environment does not describe a program that may start; the text says what to change."""

    code = "settings-invalid"


@dataclass(frozen=True, slots=True)
class Flag:
    """How a setting is called on the command line, where it is not by the name of its variable; for `Annotated`."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where somebody listens; an empty host is each address of the computer."""

    host: str
    port: int


class CommandSettings(BaseModel):
    """What is chosen for any command. A command that has settings of its own has a class of its own, below this one.

    Each field is a variable (`ITL_OPERATOR_SERVICE_URL`) and a flag (`--service-url`), whose help is its docstring.
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", hide_input_in_errors=True, use_attribute_docstrings=True
    )

    kubeconfig: Path | None = None
    """How to reach the API server; as a pod does without."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Which events are logged."""

    log_format: LogFormat = "auto"
    """`json`, `text`, or `auto`: text on a terminal."""

    @classmethod
    def flags(cls) -> dict[str, str]:
        """Return the flag of each setting: `service_url` -> `--service-url`."""
        return {
            name: "--"
            + next((each.name for each in field.metadata if isinstance(each, Flag)), name.replace("_", "-"))
            for name, field in cls.model_fields.items()
        }

    @classmethod
    def load(cls, environment: Mapping[str, str], flags: Mapping[str, str] | None = None) -> Self:
        """Read the settings.

        Args:
            environment: Variables; an empty one counts as unset.
            flags: Name of a setting -> what its flag says, which wins.

        Raises:
            SettingsInvalid: One is missing, unknown or wrong. Values are not told.
        """
        flags = flags or {}
        known = {f"{PREFIX}{name.upper()}": name for name in cls.model_fields}
        given = {name: value for name, value in environment.items() if name.startswith(PREFIX) and value}
        faults = [_unknown(name, list(known)) for name in sorted(given.keys() - known.keys())]
        chosen = {known[name]: given[name] for name in given.keys() & known.keys()} | dict(flags)
        told = cls.flags()
        try:
            settings = cls.model_validate(chosen)
        except ValidationError as e:
            for each in e.errors():
                name = str(each["loc"][0])
                faults.append(f"{told[name] if name in flags else PREFIX + name.upper()}: {said(each)}")
            raise SettingsInvalid("\n".join(faults)) from None
        if faults:
            raise SettingsInvalid("\n".join(faults))
        return settings

    @property
    def probes_at(self) -> Address:
        """Where the probes answer."""
        raise NotImplementedError

    @property
    def metrics_at(self) -> Address:
        """Where the metrics answer; the same address is one listener."""
        return self.probes_at


class ProgramSettings(CommandSettings):
    """What is chosen for a command that is a client of the attestation service."""

    service_url: str
    """Address of the attestation service, without `/api/v1`."""

    service_ca_file: Path | None = None
    """PEM file with the only CAs to trust for it; those of the system without."""

    token_file: Path = Path("/var/run/secrets/itl-attestation/token")
    """Token of the ServiceAccount for the service, audience `itl-attestation`; read again for each request."""

    @field_validator("service_url")
    @classmethod
    def _encrypted(cls, url: str) -> str:
        if not _URL.fullmatch(url):
            raise ValueError("must be an address like https://attest.example")
        if url.startswith("http:") and not is_loopback(url):
            raise ValueError("is not encrypted: the token could be read on the way")
        return url.rstrip("/")


class LeaderSettings(ProgramSettings):
    """What is chosen for a controller, which acts on one replica: that which holds a Lease."""

    namespace: Annotated[str | None, Flag("leader-election-namespace")] = None
    """Where the Lease is; the namespace of the pod without."""

    identity: Annotated[str, Field(min_length=1, max_length=128)] = Field(default_factory=socket.gethostname)
    """Name of this replica in Lease and Events; the host name (of a pod its name) without."""

    workers: Annotated[int, Field(ge=1, le=64)] = 8
    """How many objects are handled at the same time."""

    relist_seconds: Annotated[int, Field(ge=10, le=3600)] = 600
    """How often all objects are looked at again, whether or not they changed."""

    @field_validator("namespace")
    @classmethod
    def _namespace(cls, name: str | None) -> str | None:
        if name is not None and not _NAMESPACE.fullmatch(name):
            raise ValueError("must be the name of a namespace")
        return name

    @property
    def lease_namespace(self) -> str:
        """Where the Lease is.

        Raises:
            SettingsInvalid: It is not set, and this is no pod.
        """
        if self.namespace is not None:
            return self.namespace
        try:
            return NAMESPACE_FILE.read_text(encoding="ascii").strip()
        except OSError as e:
            raise SettingsInvalid(
                f"{PREFIX}NAMESPACE (--leader-election-namespace): not set; this is no pod, which would know its own"
            ) from e


class Settings(LeaderSettings):
    """What is chosen for a controller of nodes: the approver, the signer, that of labels."""

    listen_host: str = "127.0.0.1"
    """Where probes and metrics answer; in a pod the kubelet asks at the pod's address: `0.0.0.0`."""

    listen_port: Annotated[int, Field(ge=0, le=65_535)] = 8081
    """Likewise; 0 takes any that is free."""

    node_ca_file: Path | None = None
    """Signer: PEM file with the CAs under which a certificate from the service must verify."""

    @property
    def probes_at(self) -> Address:
        """Where probes and metrics answer."""
        return Address(host=self.listen_host, port=self.listen_port)


class ProbedSettings(CommandSettings):
    """Where probes and metrics answer, as controllers of Kubernetes are told it."""

    health_probe_bind_address: str = ":8081"
    """Where /healthz and /readyz answer, HOST:PORT; without a host at each address, port 0 takes any that is free."""

    metrics_bind_address: str = ":9090"
    """Likewise /metrics."""

    @field_validator("health_probe_bind_address", "metrics_bind_address")
    @classmethod
    def _address(cls, text: str) -> str:
        parse_address(text)
        return text

    @property
    def probes_at(self) -> Address:
        """Where the probes answer."""
        return parse_address(self.health_probe_bind_address)

    @property
    def metrics_at(self) -> Address:
        """Where the metrics answer."""
        return parse_address(self.metrics_bind_address)


class BoundSettings(ProbedSettings, ProgramSettings):
    """The same for a client of the attestation service."""


def parse_address(text: str) -> Address:
    """Read `HOST:PORT`, `:PORT` or `[IPv6]:PORT`.

    Raises:
        ValueError: It is none.
    """
    found = _ADDRESS.fullmatch(text)
    if found is None or int(found["port"]) > 65_535:
        raise ValueError("must be an address like 127.0.0.1:8081 or :8081")
    return Address(host=found["inside"] or found["host"] or "", port=int(found["port"]))


def _unknown(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.85)
    return f"unknown setting {name}; " + (
        f"did you mean {close[0]}?"
        if close
        else "`attestation-operator --help` says where all of them are explained"
    )
