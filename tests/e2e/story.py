"""People at their command lines, machines with their agents, one service: what was typed and printed, for a page.

A page is held to what its test prints. Where an output was changed, `UPDATE_PAGE=1 ./dev test TEST` writes what is
printed now, and you read it.
"""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attestation_testing import SoftwareTPM, boot
from tests.docs.pages import ROOT, text
from tests.fixtures.openid.provider import Provider
from tests.fixtures.service import ServiceProcess
from tests.vectors.eventlog.ovmf import RealBoot

BIN = Path(sys.executable).parent
COMMAND_SECONDS = 240
OK, PENDING_APPROVAL = 0, 10


@dataclass
class Story:
    """A service, a provider, a machine, people; and what was typed and printed.

    Args:
        service: Asks two people for everything about its workers.
        provider: Anna and Bernd have accounts.
        tpm: Of the machine.
        directory: Homes of the people, files of the machine.
        hostname: What the machine is called.
    """

    service: ServiceProcess
    provider: Provider
    tpm: SoftwareTPM
    directory: Path
    hostname: str
    screens: list[str] = field(default_factory=list)
    log: str = ""

    @property
    def config(self) -> Path:
        """Where the agent writes what it was given."""
        return self.directory / "config.yaml"

    # The machine

    def boots(self, measured: RealBoot) -> None:
        """Restart the machine; it measures what the real one did."""
        boot(self.tpm, measured.boot_log)
        (self.directory / "eventlog").write_bytes(measured.log)

    def _settings(self) -> dict[str, str]:
        outside = {k: v for k, v in os.environ.items() if not k.startswith(("ITL_", "COVERAGE_"))}
        return outside | {
            "ITL_REG_URL": self.service.url,
            "ITL_TPM": self.tpm.uri,
            "ITL_STATE_DIR": str(self.directory / "state"),
            "ITL_CONFIG_PATH": str(self.config),
            "ITL_APPLY_COMMAND": "true",
            "ITL_SYSFS": str(self.directory / "sys"),
            "ITL_EVENT_LOG": str(self.directory / "eventlog"),
            "ITL_IMA_LOG": str(self.directory / "absent"),
            "ITL_ROLE": "worker-app",
            "ITL_ATTEMPTS": "2",
        }

    def attests(self) -> int:
        """Run the agent once and return its exit code."""
        done = subprocess.run(
            [BIN / "itl-tpm-register", "--once"],
            env=self._settings(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
            check=False,
        )
        self.log = done.stdout + done.stderr
        return done.returncode

    def runs(self, command: str, *, expect: int = 0) -> str:
        """Have somebody who is root on the machine type a command at a terminal, and return what it printed."""
        ours, theirs = pty.openpty()
        with subprocess.Popen(
            [BIN / command.split()[0], *command.split()[1:]],
            env=self._settings() | {"TERM": "dumb", "NO_COLOR": "1", "COLUMNS": "100"},
            stdin=subprocess.DEVNULL,
            stdout=theirs,
            stderr=theirs,
        ) as process:
            os.close(theirs)
            printed = _all_of(ours).decode().replace("\r\n", "\n")
            os.close(ours)
        code = process.returncode
        assert code == expect, f"{command}: {code}\n{printed}"
        for here, there in (
            (self.service.url, "https://attest.example"),
            (self.tpm.uri, "device:/dev/tpmrm0"),
            (str(self.config), "/run/itl-tpm/machineconfig.yaml"),
        ):
            printed = printed.replace(here, there)
        self.screens.append(f"{self.hostname}# {command}\n{printed}".rstrip())
        return printed

    # The people

    def home(self, name: str) -> Path:
        """Return where somebody keeps their files."""
        home = self.directory / name
        home.mkdir(exist_ok=True)
        return home

    def reads(self, name: str, file: str) -> None:
        """Have *name* look at a file."""
        self.screens.append(f"{name}$ cat {file}\n{(self.home(name) / file).read_text()}".rstrip())

    def types(self, name: str, command: str, *, expect: int = 0, shown: bool = True) -> str:
        """Have *name* type a command, and return what it printed."""
        done = subprocess.run(
            [BIN / "attestation", *command.split()[1:]],
            cwd=self.home(name),
            env=self._desk(name),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=COMMAND_SECONDS,
            check=False,
        )
        assert done.returncode == expect, f"{command}: {done.returncode}\n{done.stdout}"
        if shown:
            self.screens.append(f"{name}$ {command}\n{done.stdout}".rstrip())
        return done.stdout

    def agrees(self, name: str, told: str, *, read: str | None = None, shown: bool = True) -> str:
        """Have *name* run at a terminal what the one who proposed was *told*, and say yes.

        Args:
            name: Who agrees.
            told: What the command printed that made the proposal.
            read: The EK fingerprint that they read at the machine, where they are asked for it.
            shown: Whether the page shows it.
        """
        found = re.search(r"another operator must run\n +(attestation approval approve \S+)\n", told)
        assert found is not None, told
        command = found[1]
        ours, theirs = pty.openpty()
        with subprocess.Popen(
            [BIN / command.split()[0], *command.split()[1:]],
            cwd=self.home(name),
            env=self._desk(name) | {"TERM": "dumb", "NO_COLOR": "1"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        ) as process:
            os.close(theirs)
            printed = b""
            for question, answer in ((b"EK fingerprint, as", read), (b"Agree to", "y")):
                if answer is not None:
                    while not (question in printed and printed.endswith(b": ")):
                        printed += os.read(ours, 65_536)
                    os.write(ours, f"{answer}\n".encode())
            screen = (printed + _all_of(ours)).decode().replace("\r\n", "\n")
            # These tests bring a token in a file; people have logged in.
            screen = re.sub(r"^note: using break-glass.*\n", "", screen)
            os.close(ours)
        assert process.returncode == 0, f"{command}: {process.returncode}\n{screen}"
        if shown:
            self.screens.append(f"{name}$ {command}\n{screen}".rstrip())
        return screen

    def _desk(self, name: str) -> dict[str, str]:
        theirs = {k: v for k, v in os.environ.items() if not k.startswith(("ITL_", "KEYCLOAK_", "COVERAGE_"))}
        token = self.home(name) / "token"
        if not token.exists():
            token.touch(0o600)
            token.write_text(self.provider.token(name))
        return theirs | {
            "HOME": str(self.home(name)),
            "ITL_API_URL": self.service.url,
            "ITL_ADMIN_TOKEN_FILE": str(token),
            "COLUMNS": "100",
        }

    def both(self, command: str, *, read: str | None = None, shown: bool = True) -> None:
        """Have Anna ask for something, and Bernd agree to that."""
        self.agrees("bernd", self.types("anna", command, shown=shown), read=read, shown=shown)

    def machine(self) -> dict[str, Any]:
        """Return what the service knows of the machine."""
        found: dict[str, Any] = json.loads(
            self.types("anna", f"attestation machine get {self.hostname} -o json", shown=False)
        )
        return found

    def result(self) -> dict[str, Any]:
        """Return its newest result."""
        told = self.types("anna", f"attestation machine results {self.hostname} -o json", shown=False)
        found: dict[str, Any] = json.loads(told)[0]
        return found


def _all_of(terminal: int) -> bytes:
    """Return what is written to *terminal* until nobody is at its other end."""
    found = b""
    with contextlib.suppress(OSError):  # EIO is how a terminal says that nobody is there any more
        while piece := os.read(terminal, 65_536):
            found += piece
    return found


_SCREEN = re.compile(r"(?<=^```\n)[a-z][a-z0-9-]*[$#] .*?(?=\n```$)", re.MULTILINE | re.DOTALL)
_OTHER_EACH_TIME = (
    (r"[0-9a-f]{8}-[0-9a-f-]{27}", "ID"),
    (r"\b[0-9a-f]{8,}\b", "HEX"),
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ", "TIME"),
    (r"\b\d+ (?:s|min|h)\b", "N s"),
    (r"\b\d\d:\d\d:\d\dZ?\b", "TIME"),
    (r"(?<=irmware )[\w.]+", "VERSION"),
    (r"(?<=tree root )\S+", "HASH"),
    (r"(?<=entries )\d+|(?<=checkpoints )\d+", "N"),
)


def general(screen: str) -> str:
    """Return a screen without what differs from run to run: ids, hashes, times, and where lines are broken for them."""
    screen = " ".join(screen.split())
    for pattern, word in _OTHER_EACH_TIME:
        screen = re.sub(pattern, word, screen)
    return screen


def hold(page: str, screens: list[str]) -> None:
    """Check that *page* shows these screens, one after the other; with `UPDATE_PAGE` put them there first."""
    if os.environ.get("UPDATE_PAGE"):
        left = iter(screens)
        (ROOT / page).write_text(_SCREEN.sub(lambda _: next(left), text(page)), encoding="utf-8")
    shown = _SCREEN.findall(text(page))
    for now, then in zip(screens, shown, strict=False):
        assert general(now) == general(then), f"{page} shows\n{then}\nand printed is\n{now}"
    assert len(screens) == len(shown)
