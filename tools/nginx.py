"""nginx with the configuration that we ship, made to run in a folder: for tests and the demo."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

SHIPPED: Final = Path(__file__).resolve().parents[1] / "deploy/proxy/nginx.conf"
TEMPORARY: Final = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")


class NginxMissing(Exception):
    """There is no such program."""


def nginx_program() -> str:
    """Return where nginx is; what Debian keeps for the administrator is not on everybody's path.

    Raises:
        NginxMissing: Nowhere.
    """
    program = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
    if program is None:
        raise NginxMissing("nginx is missing; ./dev brings it")
    return program


def configure(directory: Path, exchanged: Mapping[str, str]) -> list[str]:
    """Write `nginx.conf` in *directory*, its prefix, and return the command that runs it in the foreground.

    Args:
        directory: Configuration, logs and temporary files are there.
        exchanged: Texts of the shipped file, and what stands in their place; each must be in it.

    Raises:
        NginxMissing: There is no such program.
        ValueError: A text is not in the shipped file.
    """
    program, text = nginx_program(), SHIPPED.read_text(encoding="utf-8")
    own = {
        "worker_processes auto;": "worker_processes 1;",
        "/run/nginx.pid": f'"{directory}/nginx.pid"',
        "/var/log/nginx/error.log": f'"{directory}/error.log"',
        "/var/log/nginx/access.log": f'"{directory}/access.log"',
        # Debian compiles in directories that only root may write.
        "http {\n": "http {\n"
        + "".join(f'    {kind}_temp_path "{directory}/temp_{kind}";\n' for kind in TEMPORARY),
    }
    for shipped, ours in {**own, **exchanged}.items():
        if shipped not in text:
            raise ValueError(f"not in {SHIPPED}: {shipped}")
        text = text.replace(shipped, ours)
    configuration = directory / "nginx.conf"
    configuration.write_text(text, encoding="utf-8")
    # The workers of root would be nobody, who may not read the directory of somebody else.
    user = " user root;" if os.geteuid() == 0 else ""
    return [
        program, "-p", str(directory), "-c", str(configuration), "-e", str(directory / "error.log"),
        "-g", f"daemon off;{user}",
    ]  # fmt: skip
