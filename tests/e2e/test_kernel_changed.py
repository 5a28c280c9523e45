"""A machine whose kernel changed: refused, explained, reported, learned, voted for, accepted again.

A software TPM measures two boots of real firmware that differ in the kernel (tests/vectors/eventlog/ovmf), the real
agent attests to a real service, and two people with accounts of a real OpenID provider decide at their command lines.
What they type and read is docs/operate/measured-boot.md, and the page is held to it. Where an output was changed:
`UPDATE_PAGE=1 ./dev test tests/e2e/test_kernel_changed.py` writes what is printed now, and you read it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from attestation.testing import CertificateAuthority, SoftwareTPM, boot
from tests.docs.pages import ROOT, text
from tests.fixtures.openid.provider import OPERATOR, Provider
from tests.fixtures.service import ServiceProcess
from tests.fixtures.tpm import MakeTPM
from tests.vectors.eventlog.ovmf import RealBoot, by_name

pytestmark = [pytest.mark.swtpm, pytest.mark.timeout(240)]

BIN = Path(sys.executable).parent
COMMAND_SECONDS = 90
PAGE = "docs/operate/measured-boot.md"
HOSTNAME = "w-7"
OK, PENDING_APPROVAL = 0, 10


@dataclass
class Story:
    """A service, a provider, a machine, people; and what was typed and printed.

    Args:
        service: Asks two people for everything about its workers.
        provider: Anna and Bernd have accounts.
        tpm: Of the machine.
        directory: Homes of the people, files of the machine.
    """

    service: ServiceProcess
    provider: Provider
    tpm: SoftwareTPM
    directory: Path
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

    def attests(self) -> int:
        """Run the agent once and return its exit code."""
        outside = {k: v for k, v in os.environ.items() if not k.startswith(("ITL_", "COVERAGE_"))}
        ours = {
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
        done = subprocess.run(
            [BIN / "itl-tpm-register", "--once"],
            env=outside | ours,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
            check=False,
        )
        self.log = done.stdout + done.stderr
        return done.returncode

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
        theirs = {k: v for k, v in os.environ.items() if not k.startswith(("ITL_", "KEYCLOAK_", "COVERAGE_"))}
        token = self.home(name) / "token"
        if not token.exists():
            token.touch(0o600)
            token.write_text(self.provider.token(name))
        done = subprocess.run(
            [BIN / "attestation", *command.split()[1:]],
            cwd=self.home(name),
            env=theirs
            | {
                "HOME": str(self.home(name)),
                "ITL_API_URL": self.service.url,
                "ITL_ADMIN_TOKEN_FILE": str(token),
                "COLUMNS": "100",
            },
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

    def both(self, command: str, *, shown: bool = True) -> None:
        """Have Anna ask for something, and Bernd for the same."""
        told = self.types("anna", command, shown=shown)
        assert "1 of 2 approvals" in told
        self.types("bernd", command, shown=shown)

    def machine(self) -> dict[str, Any]:
        """Return what the service knows of the machine."""
        found: dict[str, Any] = json.loads(
            self.types("anna", f"attestation machine get {HOSTNAME} -o json", shown=False)
        )
        return found

    def result(self) -> dict[str, Any]:
        """Return its newest result."""
        told = self.types("anna", f"attestation machine results {HOSTNAME} -o json", shown=False)
        found: dict[str, Any] = json.loads(told)[0]
        return found


@pytest.fixture
def story(make_tpm: MakeTPM, tpm_ca: CertificateAuthority, tmp_path: Path) -> Iterator[Story]:
    """The scene: a machine that was admitted by two people and has what it needs."""
    tpm = make_tpm("tpm")
    tpm.manufacture(tpm_ca)
    with Provider() as provider:
        provider.add_user("anna", [OPERATOR])
        provider.add_user("bernd", [OPERATOR])
        service = ServiceProcess(
            directory=tmp_path / "service",
            environment={
                "ITL_OIDC_ISSUER": provider.issuer,
                "ITL_DUAL_CONTROL_ROLES": "controlplane,worker-app",
            },
        )
        service.start()
        try:
            story = Story(service=service, provider=provider, tpm=tpm, directory=tmp_path)
            story.boots(by_name["sb-on"])
            assert story.attests() == PENDING_APPROVAL, story.log
            told = story.types("anna", "attestation machine list -o json", shown=False)
            (machine,) = json.loads(told)
            approve = f"attestation machine approve {machine['machine_id']} --role worker-app"
            story.both(f"{approve} --hostname {HOSTNAME}", shown=False)
            assert story.attests() == OK, story.log
            assert story.config.exists()
            yield story
        finally:
            service.kill()


def test_the_kernel_changed(story: Story) -> None:
    """Enforce refuses it, report reports it, explain names it; after learning and two votes it is accepted again.

    Refused means: what was ordered for the machine is not handed out.
    """
    # What runs is what is expected from now on.
    story.types("anna", "attestation policy learn --role worker-app --name workers -f workers.yaml")
    story.reads("anna", "workers.yaml")
    story.types("anna", "attestation policy test workers.yaml --role worker-app")
    story.types("anna", "attestation policy create workers.yaml")
    story.both("attestation policy activate workers@1 --role worker-app")
    assert story.attests() == OK, story.log
    assert (story.machine()["trust"], story.result()["policy"]) == ("verified", "workers@1")

    # Another kernel, and a new configuration is ordered.
    story.boots(by_name["sb-on-kernel"])
    story.config.unlink()
    story.both(f"attestation machine redeliver {HOSTNAME}", shown=False)
    assert story.attests() == OK, story.log
    assert not story.config.exists()
    assert (story.machine()["trust"], story.result()["verdict"]) == ("failed", "Failed")
    explained = story.types("anna", f"attestation machine explain {HOSTNAME}", expect=1)
    assert "PCR 4 changed: kernel replaced" in explained
    story.types("anna", f"attestation machine results {HOSTNAME} {story.result()['result_id']}")

    # Reported instead: the machine works, and people see why they should look.
    policy = story.home("anna") / "workers.yaml"
    policy.write_text(policy.read_text().replace("version: 1\n", "version: 2\nmode: report\n"))
    story.types("anna", "attestation policy test workers.yaml --role worker-app")
    story.types("anna", "attestation policy create workers.yaml", shown=False)
    story.both("attestation policy activate workers@2 --role worker-app", shown=False)
    assert story.attests() == OK, story.log
    assert story.config.exists(), "what waited is handed out"
    assert (story.machine()["trust"], story.result()["boot_state_appraised"]) == ("verified", [])
    assert ("pcr4", "reported") in {(c["check"], c["outcome"]) for c in story.result()["checks"]}
    reported = story.types("anna", f"attestation machine explain {HOSTNAME}")
    assert "PCR 4 changed: kernel replaced" in reported

    # It is right: learned, looked at, and agreed to.
    story.types(
        "anna", "attestation policy learn --role worker-app --name workers --version 3 -f workers.yaml"
    )
    policy.write_text(policy.read_text().replace("mode: report\n", ""))
    story.types("anna", "attestation policy diff workers@1 workers.yaml")
    story.types("anna", "attestation policy create workers.yaml", shown=False)
    story.both("attestation policy activate workers@3 --role worker-app", shown=False)
    assert story.attests() == OK, story.log
    assert story.machine()["trust"] == "verified"
    assert {"boot-loader", "kernel", "initrd", "command-line"} <= set(story.result()["boot_state_appraised"])
    story.types("anna", f"attestation machine explain {HOSTNAME}")

    # And the kernel from before is now the one that is not expected.
    story.boots(by_name["sb-on-again"])
    assert story.attests() == OK, story.log
    assert story.machine()["trust"] == "failed"
    explained = story.types("anna", f"attestation machine explain {HOSTNAME}", expect=1, shown=False)
    assert "PCR 4 changed: kernel replaced" in explained

    if os.environ.get("UPDATE_PAGE"):
        write_page(story.screens)
    assert [general(screen) for screen in story.screens] == [general(screen) for screen in of_page()]


_SCREEN = re.compile(r"(?<=^```\n)(?:anna|bernd)\$ .*?(?=\n```$)", re.MULTILINE | re.DOTALL)
_OTHER_EACH_TIME = (
    (r"[0-9a-f]{8}-[0-9a-f-]{27}", "ID"),
    (r"\b[0-9a-f]{8,}\b", "HEX"),
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ", "TIME"),
    (r"\b\d+ (?:s|min|h)\b", "N s"),
)


def general(screen: str) -> str:
    """Return a screen without what differs from run to run: ids, hashes, times."""
    for pattern, word in _OTHER_EACH_TIME:
        screen = re.sub(pattern, word, screen)
    return screen


def of_page() -> list[str]:
    """Return the screens of the page."""
    return _SCREEN.findall(text(PAGE))


def write_page(screens: list[str]) -> None:
    """Put *screens* into the page, one after the other."""
    left = iter(screens)
    (ROOT / PAGE).write_text(_SCREEN.sub(lambda _: next(left), text(PAGE)), encoding="utf-8")
