"""Settings: `ITL_OPERATOR_*` variables, read once at the start. An unknown one stops the start."""

from __future__ import annotations

import difflib
import re
import socket
from collections.abc import Mapping
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
_URL: Final = re.compile(r"https?://[^\s/@?#]+(/[^\s@?#]*)?")


class SettingsInvalid(AttestationError):
    """The environment does not describe a program that may start; the text says what to change."""

    code = "settings-invalid"


class Settings(BaseModel):
    """What is chosen for one controller."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    service_url: str
    """Address of the attestation service, without `/api/v1`."""

    service_ca_file: Path | None = None
    """PEM file with the only CAs to trust for it; those of the system without."""

    token_file: Path = Path("/var/run/secrets/itl-attestation/token")
    """Token of the ServiceAccount for the service, audience `itl-attestation`; read again for each request."""

    kubeconfig: Path | None = None
    """How to reach the API server; as a pod does without."""

    namespace: str | None = None
    """Where the Lease is; the namespace of the pod without."""

    identity: Annotated[str, Field(min_length=1, max_length=128)] = Field(default_factory=socket.gethostname)
    """Name of this replica in Lease and Events; the host name (of a pod its name) without."""

    listen_host: str = "127.0.0.1"
    """Where probes and metrics answer; in a pod the kubelet asks at the pod's address: `0.0.0.0`."""

    listen_port: Annotated[int, Field(ge=0, le=65_535)] = 8081
    """Likewise; 0 takes any that is free."""

    workers: Annotated[int, Field(ge=1, le=64)] = 8
    """How many objects are handled at the same time."""

    relist_seconds: Annotated[int, Field(ge=10, le=3600)] = 600
    """How often all objects are looked at again, whether or not they changed."""

    node_ca_file: Path | None = None
    """Signer: PEM file with the CAs under which a certificate from the service must verify."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Which events are logged."""

    log_format: LogFormat = "auto"
    """`json`, `text`, or `auto`: text on a terminal."""

    @field_validator("service_url")
    @classmethod
    def _encrypted(cls, url: str) -> str:
        if not _URL.fullmatch(url):
            raise ValueError("must be an address like https://attest.example")
        if url.startswith("http:") and not is_loopback(url):
            raise ValueError("is not encrypted: the token could be read on the way")
        return url.rstrip("/")

    @field_validator("namespace")
    @classmethod
    def _namespace(cls, name: str | None) -> str | None:
        if name is not None and not _NAMESPACE.fullmatch(name):
            raise ValueError("must be the name of a namespace")
        return name

    @classmethod
    def load(cls, environment: Mapping[str, str]) -> Self:
        """Read the settings.

        Raises:
            SettingsInvalid: One is missing, unknown or wrong. Values are not told.
        """
        known = {f"{PREFIX}{name.upper()}": name for name in cls.model_fields}
        given = {name: value for name, value in environment.items() if name.startswith(PREFIX) and value}
        faults = [_unknown(name, list(known)) for name in sorted(given.keys() - known.keys())]
        try:
            settings = cls.model_validate({known[name]: given[name] for name in given.keys() & known.keys()})
        except ValidationError as e:
            faults += [f"{PREFIX}{str(each['loc'][0]).upper()}: {said(each)}" for each in e.errors()]
            raise SettingsInvalid("\n".join(faults)) from None
        if faults:
            raise SettingsInvalid("\n".join(faults))
        return settings

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
                f"{PREFIX}NAMESPACE: not set, and this is no pod, which would know its own"
            ) from e


def _unknown(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.85)
    return f"unknown setting {name}; " + (
        f"did you mean {close[0]}?"
        if close
        else "`attestation-operator --help` says where all of them are explained"
    )
