"""A machine whose kernel changed: refused, explained, reported, learned, voted for, accepted again.

A software TPM measures two boots of real firmware that differ in the kernel (tests/vectors/eventlog/ovmf), the real
agent attests to a real service, and two people with accounts of a real OpenID provider decide at their command lines.
What they type and read is docs/operate/measured-boot.md, and the page is held to it. Where an output was changed:
`UPDATE_PAGE=1 ./dev test tests/e2e/test_kernel_changed.py` writes what is printed now, and you read it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from attestation_testing import CertificateAuthority
from tests.e2e.story import OK, PENDING_APPROVAL, Story, hold
from tests.fixtures.openid.provider import OPERATOR, Provider
from tests.fixtures.service import ServiceProcess
from tests.fixtures.tpm import MakeTPM
from tests.vectors.eventlog.ovmf import by_name

pytestmark = pytest.mark.swtpm

PAGE = "docs/operate/measured-boot.md"
HOSTNAME = "w-7"


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
            story = Story(service=service, provider=provider, tpm=tpm, directory=tmp_path, hostname=HOSTNAME)
            story.boots(by_name["sb-on"])
            assert story.attests() == PENDING_APPROVAL, story.log
            told = story.types("anna", "attestation machine list -o json", shown=False)
            (machine,) = json.loads(told)
            approve = f"attestation machine approve {machine['machine_id']} --role worker-app"
            story.both(f"{approve} --hostname {HOSTNAME}", read=machine["ek_fingerprint"][:16], shown=False)
            assert story.attests() == OK, story.log
            assert story.config.exists()
            yield story
        finally:
            service.kill()


@pytest.mark.threat("T67")
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

    hold(PAGE, story.screens)
