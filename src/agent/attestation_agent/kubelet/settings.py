"""Settings of `kubelet proxy`, `kubelet bootstrap` and `kubelet credential`: flags, then variables, then defaults."""

# ruff: noqa: RUF009 -- what `_option` returns is a field
from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from attestation_agent.exits import UsageError
from attestation_agent.settings import OPTIONS, Option, _command, _one_of, _option, resolve

DEFAULT_SIGNER: Final = "kubernetes.io/kube-apiserver-client-kubelet"
_NODE_NAME = re.compile(r"(?=.{1,253}\Z)[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*\Z")
_SIGNER = re.compile(r"(?=.{3,253}\Z)[a-z0-9]([a-z0-9.-]*[a-z0-9])?/[A-Za-z0-9._-]+\Z")
NV_RANGE: Final = range(0x01800000, 0x01C00000)
"""NV indices that owners define (TCG Registry of reserved TPM 2.0 handles); above them, those of makers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listen:
    """Where the proxy listens: an address of loopback, and a port."""

    address: str
    port: int

    @property
    def text(self) -> str:
        """As nginx and URLs write it."""
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"


def parse_listen(text: str) -> Listen:
    """Read `ADDRESS:PORT`.

    Raises:
        ValueError: Not an address of loopback: others could be asked for this node's identity over the network.
    """
    parsed = urlsplit(f"//{text}")
    address, port = parsed.hostname or "", parsed.port
    if not port or not ipaddress.ip_address(address).is_loopback or parsed.netloc != text:
        raise ValueError("must be 127.0.0.1:PORT or [::1]:PORT")
    return Listen(address=address, port=port)


def _matching(pattern: re.Pattern[str], meaning: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if not pattern.match(text):
            raise ValueError(f"is {meaning}")
        return text

    return read


def _between(least: int, most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        number = int(text)
        if not least <= number <= most:
            raise ValueError(f"must be between {least} and {most}")
        return number

    return read


def _index(text: str) -> int:
    number = int(text, 16)
    if number >> 24 != 0x01:
        raise ValueError("must be an NV index, 0x01000000 to 0x01FFFFFF")
    return number


def _store(text: str) -> int | None:
    if text == "files":
        return None
    kind, _, index = text.partition(":")
    if kind != "nv" or int(index, 16) not in NV_RANGE:
        raise ValueError("must be files, or nv:INDEX with an index from 0x01800000 to 0x01BFFFFF")
    return int(index, 16)


def _device(text: str) -> str:
    if not text.startswith("/"):
        raise ValueError("must be the path of a device")
    return f"device:{text}"


@dataclass(frozen=True, slots=True, kw_only=True)
class KubeletSettings:
    """What an administrator of a node chooses for its kubelet; documented in docs/operate/agent.md."""

    bootstrap_kubeconfig: Path = _option(
        "ITL_KUBELET_BOOTSTRAP_KUBECONFIG",
        Path,
        Path("/etc/kubernetes/bootstrap-kubelet.conf"),
        "how to reach the API server, and as whom to ask for a certificate "
        "(default /etc/kubernetes/bootstrap-kubelet.conf)",
    )
    kubeconfig: Path | None = _option(
        "ITL_KUBELET_KUBECONFIG",
        Path,
        None,
        "what is written for kubelet (default kubelet.conf in the directory)",
    )
    kubelet_dir: Path = _option(
        "ITL_KUBELET_DIR",
        Path,
        Path("/run/itl-kubelet"),
        "where key, certificate and configuration are; mode 0700, in memory (default /run/itl-kubelet)",
    )
    node_name: str | None = _option(
        "ITL_KUBELET_NODE_NAME",
        _matching(_NODE_NAME, "no name of a Node"),
        None,
        "name of the Node (default the host's name in small letters)",
    )
    signer_name: str = _option(
        "ITL_KUBELET_SIGNER_NAME",
        _matching(_SIGNER, "no DOMAIN/NAME"),
        DEFAULT_SIGNER,
        f"who shall sign (default {DEFAULT_SIGNER})",
    )
    client_ca_file: Path | None = _option(
        "ITL_KUBELET_CLIENT_CA_FILE",
        Path,
        None,
        "CAs of clients, PEM: from which a certificate is accepted (default those of the bootstrap kubeconfig)",
    )
    certificate_seconds: int = _option(
        "ITL_KUBELET_CERTIFICATE_SECONDS",
        _between(600, 31_536_000),
        86_400,
        "how long a certificate shall last; the signer decides (default 86400)",
    )
    wait_seconds: int = _option(
        "ITL_KUBELET_WAIT_SECONDS",
        _between(0, 3600),
        3600,
        "longest wait for the decision, while there is no valid certificate (default 3600)",
    )
    attestation: Literal["none", "tpm"] = _option(
        "ITL_KUBELET_ATTESTATION",
        _one_of("none", "tpm"),
        "tpm",
        "tpm: with evidence (default); none: a plain request, which says nothing of this machine",
    )
    tpm_device: str | None = _option(
        "ITL_KUBELET_TPM_DEVICE", _device, None, "path of the TPM's device: the same as --tpm device:PATH"
    )
    ak_template_index: int | None = _option(
        "ITL_KUBELET_AK_TEMPLATE_INDEX",
        _index,
        None,
        "NV index with the template of the AK, e.g. 0x01C10003 (default the AK that --ak says)",
    )
    ak_certificate_index: int | None = _option(
        "ITL_KUBELET_AK_CERTIFICATE_INDEX",
        _index,
        None,
        "NV index with a certificate of the AK, e.g. 0x01C10002: compared with the AK before it is used",
    )
    store: int | None = _option(
        "ITL_KUBELET_STORE",
        _store,
        None,
        "files (default), or nv:INDEX: keep a copy of the certificate in NV memory, e.g. nv:0x01800010",
    )
    listen: Listen = _option(
        "ITL_KUBELET_LISTEN",
        parse_listen,
        Listen(address="127.0.0.1", port=6440),
        "proxy: where it listens (default 127.0.0.1:6440)",
    )
    restart_command: tuple[str, ...] = _option(
        "ITL_KUBELET_RESTART_COMMAND",
        _command,
        (),
        "proxy: restarts nginx after a renewal; run without a shell",
    )


KUBELET_OPTIONS: Final = tuple(
    Option(name=f.name, **f.metadata) for f in fields(KubeletSettings) if f.metadata
)
_SHARED = (
    "server_url", "tpm", "ak", "ek", "state_dir", "ca_file", "event_log", "command_timeout_seconds",
    "log_level", "log_format",
)  # fmt: skip
SHARED_OPTIONS: Final = tuple(option for option in OPTIONS if option.name in _SHARED)
"""What the commands need to know beside, as `run` does: the same variables, the same meaning."""
_OF_PROXY: Final = frozenset({"listen", "restart_command"})
_NOT_OF_CREDENTIAL: Final = frozenset({"kubeconfig", "store"})


def options_of(command: str) -> tuple[Option, ...]:
    """Return what a command takes."""
    left_out = {"proxy": frozenset(), "bootstrap": _OF_PROXY, "credential": _OF_PROXY | _NOT_OF_CREDENTIAL}
    return (*(o for o in KUBELET_OPTIONS if o.name not in left_out[command]), *SHARED_OPTIONS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """All settings of a command.

    Args:
        kubelet: Its own.
        shared: Those of `run`, by name.
        node_name: Name of the Node.
    """

    kubelet: KubeletSettings
    shared: Mapping[str, Any]
    node_name: str


def load(command: str, flags: Mapping[str, Any], environ: Mapping[str, str]) -> Chosen:
    """Return the settings of `kubelet COMMAND`.

    Raises:
        UsageError: Something is missing, unknown or wrong.
    """
    values = resolve(flags, environ, options_of(command), also=KUBELET_OPTIONS)
    own = {o.name: values.get(o.name, o.default) for o in KUBELET_OPTIONS}
    shared = {o.name: values[o.name] for o in SHARED_OPTIONS}
    settings = KubeletSettings(**own)
    if settings.tpm_device is not None:
        shared["tpm"] = settings.tpm_device
    if settings.attestation == "tpm" and not shared["server_url"]:
        raise UsageError("the address of the service is missing: --server-url or ITL_REG_URL")
    if settings.attestation == "none" and command == "proxy":
        raise UsageError(
            "--attestation none: a key in the TPM of which nothing is proved; use kubelet bootstrap"
        )
    if not settings.kubelet_dir.is_absolute():
        raise UsageError("--kubelet-dir: must be an absolute path, for kubelet has another working directory")
    name = settings.node_name or socket.gethostname().lower()
    if not _NODE_NAME.match(name):
        raise UsageError("--node-name: the host's name is no name of a Node")
    return Chosen(kubelet=settings, shared=shared, node_name=name)
