"""What Talos reads of an extension: its manifest, and the file of its service."""

from __future__ import annotations

import io
import re
from typing import Any, Final
from urllib.parse import urlsplit

from ruamel.yaml import YAML

from attestation.errors import RequestInvalid

NAME: Final = "itl-tpm-register"
"""Of the extension and of its service: an ExtensionServiceConfig names it so, and `/config` does."""

STATE: Final = "/run/itl-tpm"
"""In memory, on the machine: /var is on a disk that a machine in maintenance does not have."""

MACHINED: Final = "/system/run/machined"
SOCKET: Final = f"{MACHINED}/machine.sock"
CERTIFICATES: Final = "/etc/ssl/certs"


_VERSIONS = re.compile(r"(?:[<>=!]{0,2} ?v?\d+\.\d+\.\d+(?:-[0-9A-Za-z.-]+)?(?: \|\| | |\Z))+")


def manifest(*, version: str, talos: str) -> bytes:
    """Return manifest.yaml; *talos* is a range of versions, as in `>= v1.9.0`.

    Raises:
        RequestInvalid: It is no range: a Talos that cannot read it boots without the extension.
    """
    if _VERSIONS.fullmatch(talos) is None:
        raise RequestInvalid(f"{talos!r} is no range of versions such as '>= v1.9.0 < v1.15.0'")
    return _yaml(
        {
            "version": "v1alpha1",
            "metadata": {
                "name": NAME,
                "version": version,
                "author": "the ITL attestation contributors",
                "description": "Proves this machine by its TPM, and applies the configuration that is sealed to it.",
                "compatibility": {"talos": {"version": talos}},
            },
        }
    )


def service(*, server_url: str | None, pinned: bool) -> bytes:
    """Return the file of the service.

    Args:
        server_url: Address of the attestation service, where the image knows it; otherwise the service waits until a
            configuration says it.
        pinned: The image has the keys of the attestation service.

    Raises:
        RequestInvalid: The address is none, or has something beside it that everybody would read in the image.
    """
    if server_url is not None:
        _check_address(server_url)
    environment = [
        "PATH=/usr/bin",
        f"SSL_CERT_FILE={CERTIFICATES}/ca-certificates.crt",
        f"ITL_STATE_DIR={STATE}",
        f"ITL_MACHINED_SOCKET={SOCKET}",
    ]
    if pinned:
        environment.append(f"ITL_SERVICE_KEYS_FILE=/{KEYS}")
    if server_url is not None:
        environment.append(f"ITL_REG_URL={server_url}")
    return _yaml(
        {
            "name": NAME,
            "container": {
                "entrypoint": "/usr/bin/itl-tpm-register",
                "args": [],
                "environment": environment,
                "mounts": [
                    # The TPM, also one that comes later.
                    _bind("/dev", "rshared", "rbind", "rw"),
                    # The event log of the firmware: sysfs comes without what is mounted in it.
                    _bind("/sys/kernel/security", "rbind", "ro"),
                    # The folder, not the socket: another one stands there after machined was started anew.
                    _bind(MACHINED, "rshared", "rbind", "rw"),
                    _bind(STATE, "rbind", "rw"),
                    # Whom Talos trusts, TrustedRootsConfig included.
                    _bind(CERTIFICATES, "rbind", "ro"),
                ],
            },
            "depends": [
                *([] if server_url is not None else [{"configuration": True}]),
                {"path": SOCKET},
                {"network": ["addresses", "connectivity"]},
            ],
            "restart": "always",
            "logToConsole": True,
        }
    )


def _check_address(url: str) -> None:
    try:
        parts = urlsplit(url)
        good = (
            parts.scheme in ("http", "https") and bool(parts.hostname) and not (parts.query or parts.fragment)
        )
        bare = parts.username is None and parts.password is None
    except ValueError:
        good = bare = False
    if not good or not bare or not url.isprintable() or " " in url:
        raise RequestInvalid(
            "the address of the service needs the form https://HOST[:PORT], and nothing beside it"
        )


KEYS: Final = "usr/share/itl-attestation/service-keys.json"
PLACES: Final = ("dev", "etc/ssl/certs", "proc", "run/itl-tpm", "sys", "system/run/machined", "tmp")
"""Folders of the container in which something is mounted."""


def _bind(place: str, *options: str) -> dict[str, Any]:
    return {"source": place, "destination": place, "type": "bind", "options": list(options)}


def _yaml(content: dict[str, Any]) -> bytes:
    out = io.BytesIO()
    yaml = YAML()
    yaml.indent(mapping=2, sequence=4, offset=2)
    yaml.width = 4096
    yaml.dump(content, out)
    return out.getvalue()
