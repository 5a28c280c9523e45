"""The dashboard of the demo: the program that is shipped, beside the service."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tools.demo_identity import SECRET_FILE, load_secret
from tools.stage import BIN, IdentityProvider, Process, Service, environment, wait_for

DEFAULT_PORT: Final = 7788


class Dashboard:
    """The dashboard as a process, before *service*; people log in to it at *identity*.

    Args:
        directory: Where its log is, and its secret.
        url: Its address, which the provider knows too.
        service: What it asks.
        identity: Where people log in.
    """

    def __init__(self, directory: Path, url: str, service: Service, identity: IdentityProvider) -> None:
        self.url = url
        self.log = directory / "dashboard.log"
        load_secret(directory)
        self._process = Process(
            [str(BIN / "attestation-web"), "serve"],
            self.log,
            environment(
                ITL_WEB_URL=url,
                ITL_WEB_SERVICE_URL=service.url,
                ITL_WEB_OIDC_ISSUER=identity.issuer,
                ITL_WEB_OIDC_CLIENT_SECRET_FILE=str(directory / SECRET_FILE),
                ITL_WEB_LISTEN_PORT=url.rpartition(":")[2],
                ITL_WEB_REFRESH_SECONDS="3",
            ),
            directory,
        )

    def start(self) -> None:
        """Start; it needs about a second until `wait`."""
        self._process.start()

    def wait(self) -> None:
        """Wait until it answers.

        Raises:
            Failed: It ended, or is not ready in time.
        """
        wait_for(f"{self.url}/healthz", self._process, "the dashboard")

    @property
    def running(self) -> bool:
        """True while it serves."""
        return self._process.running

    def stop(self) -> None:
        """Stop it."""
        self._process.stop()
