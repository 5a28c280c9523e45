"""docs/operate/first-day.md, typed and read: two people, two machines, a service, and its first restore.

`UPDATE_PAGE=1 ./dev test tests/e2e/test_first_day.py` writes what is printed now into the page, and you read it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from attestation_testing import CertificateAuthority
from tests.e2e.story import BIN, COMMAND_SECONDS, OK, PENDING_APPROVAL, Story, hold
from tests.fixtures.openid.provider import AUDITOR, OPERATOR, Provider
from tests.fixtures.service import ServiceProcess
from tests.fixtures.tpm import MakeTPM
from tests.vectors.eventlog.ovmf import by_name

pytestmark = pytest.mark.swtpm

PAGE = "docs/operate/first-day.md"
NOT_DELIVERED = 15

SQLITE3 = f"""\
#!{sys.executable}
import re, sqlite3, sys
with sqlite3.connect(sys.argv[1]) as ours, sqlite3.connect(re.fullmatch(r"[.]backup (.+)", sys.argv[2])[1]) as copy:
    ours.backup(copy)
"""
"""`sqlite3 FILE ".backup COPY"` where SQLite's own program is not installed."""


@dataclass
class Day:
    """A service that is installed, and two machines that nobody knows yet; `screens` is what was typed and printed."""

    service: ServiceProcess
    worker: Story
    controlplane: Story
    screens: list[str]

    def server(self, *commands: str) -> None:
        """Have somebody on the server type commands; its folders are shown as install.md names them."""
        self.screens.append("\n".join(self._typed(command) for command in commands))

    def _typed(self, command: str) -> str:
        root = self.service.directory
        shims = root / "bin"
        if not shims.exists():
            shims.mkdir()
            (shims / "sqlite3").write_text(SQLITE3)
            (shims / "sqlite3").chmod(0o755)
        done = subprocess.run(
            [
                "/bin/bash",
                "-c",
                command.replace("/var/lib/itl-reg", str(root)).replace("/backup", f"{root}/backup"),
            ],
            env=self.service.settings() | {"PATH": f"{shims}:{BIN}:{os.environ['PATH']}"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=COMMAND_SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}"
        shown = done.stdout.replace(f"{root}/backup", "/backup").replace(str(root), "/var/lib/itl-reg")
        return f"server# {command}\n{shown}".rstrip()


@pytest.fixture
def day(make_tpm: MakeTPM, tpm_ca: CertificateAuthority, tmp_path: Path) -> Iterator[Day]:
    """The morning: a service that asks two people about control planes, and has no configuration for those yet."""
    with Provider() as provider:
        for name, duty in (("anna", OPERATOR), ("bernd", OPERATOR), ("clara", AUDITOR)):
            provider.add_user(name, [duty])
        (tmp_path / "service" / "db").mkdir(parents=True)
        service = ServiceProcess(
            directory=tmp_path / "service",
            environment={
                "ITL_DB_URL": f"sqlite:///{tmp_path}/service/db/machines.db",
                "ITL_OIDC_ISSUER": provider.issuer,
                "ITL_DUAL_CONTROL_ROLES": "controlplane",
            },
        )
        service.start()
        screens: list[str] = []
        stories = []
        for name in ("w-1", "cp-1"):
            tpm = make_tpm(f"tpm-{name}")
            tpm.manufacture(tpm_ca)
            (tmp_path / name).mkdir()
            story = Story(service, provider, tpm, tmp_path / name, name, screens)
            story.boots(by_name["sb-on"])
            stories.append(story)
        try:
            worker, controlplane = stories
            yield Day(service, worker, controlplane, screens)
        finally:
            service.kill()


def test_the_first_day(day: Day) -> None:
    """Install, a machine, a control plane by two people, a policy, a failure explained, a restore."""
    worker, controlplane, service = day.worker, day.controlplane, day.service
    day.server("attestation-service --version")

    # The first machine.
    worker.runs("attestation-agent identify")
    worker.runs("itl-tpm-register --once", expect=PENDING_APPROVAL)
    worker.types("anna", "attestation machine list")
    machine = _waiting(worker)
    worker.types(
        "anna",
        f"attestation machine approve {machine['machine_id'][:8]} --role worker-app --hostname w-1"
        f" --fingerprint {machine['ek_fingerprint'][:16]}",
    )
    worker.runs("itl-tpm-register --once", expect=OK)
    assert service.canary in worker.config.read_text()
    worker.types("anna", "attestation machine explain w-1")

    # The first control plane, by two people.
    base = service.directory / "configs" / "controlplane-final.yaml"
    base.rename(service.directory / "controlplane-final.yaml")
    controlplane.runs("itl-tpm-register --once", expect=PENDING_APPROVAL)
    machine = _waiting(worker)
    approve = (
        f"attestation machine approve {machine['machine_id'][:8]} --role controlplane --hostname cp-1"
        f" --fingerprint {machine['ek_fingerprint'][:16]} --accept-ek"
    )
    told = worker.types("anna", approve)
    worker.types("bernd", "attestation approval list")
    worker.agrees("bernd", told, read=machine["ek_fingerprint"][:16])

    # What was forgotten is said, and heals.
    controlplane.runs("itl-tpm-register --once", expect=NOT_DELIVERED)
    # A lease is 180 s: on a slow computer that of the first attestation may have ended.
    assert worker.attests() == OK
    assert "attested, no config" in worker.types("anna", "attestation machine list")
    assert "Configuration not delivered" in worker.types("anna", "attestation machine explain cp-1", expect=1)
    day.server("cp /var/lib/itl-reg/controlplane-final.yaml /var/lib/itl-reg/configs/")
    controlplane.runs("itl-tpm-register --once", expect=OK)
    worker.types("anna", "attestation machine explain cp-1")

    # The first policy, and what it is for.
    worker.types("anna", "attestation policy learn --role worker-app --name workers -f workers.yaml")
    worker.types("anna", "attestation policy create workers.yaml")
    worker.types("anna", "attestation policy activate workers@1 --role worker-app")
    worker.runs("itl-tpm-register --once", expect=OK)
    worker.boots(by_name["sb-on-kernel"])
    worker.attests()
    assert "kernel replaced" in worker.types("anna", "attestation machine explain w-1", expect=1)

    # The first restore.
    (service.directory / "backup").mkdir()
    day.server(
        "sqlite3 /var/lib/itl-reg/db/machines.db '.backup /backup/machines.db'",
        "tar -C /var/lib/itl-reg -cf /backup/keys.tar ca",
    )
    service.stop()
    day.server("rm -r /var/lib/itl-reg/db/* /var/lib/itl-reg/ca")
    day.server(
        "install -m 0600 /backup/machines.db /var/lib/itl-reg/db/machines.db",
        "tar -C /var/lib/itl-reg -xf /backup/keys.tar",
    )
    service.start()
    worker.types("clara", "attestation audit verify")
    controlplane.runs("itl-tpm-register --once", expect=OK)
    worker.types("anna", "attestation machine list")

    hold(PAGE, day.screens)


def _waiting(story: Story) -> dict[str, str]:
    """Return the machine that waits for approval."""
    told = story.types("anna", "attestation machine list --status pending_approval -o json", shown=False)
    (machine,) = json.loads(told)
    found: dict[str, str] = machine
    return found
