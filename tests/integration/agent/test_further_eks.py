"""Several EKs of one chip, shown together by the agent (PROTOCOL §8.6)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from attestation.device import AKType, FurtherEK
from attestation.errors import DeviceError
from attestation_agent.exits import Exit
from attestation_testing import CertificateAuthority, SoftwareTPM
from tests.fixtures.in_process import InProcessService
from tests.integration.agent.rig import Rig, Simulated


@pytest.fixture
def two_eks(blank_tpm: SoftwareTPM, tpm_ca: CertificateAuthority, local: InProcessService) -> SoftwareTPM:
    """A TPM whose maker certified an EK of P-256 and one of RSA."""
    for template in ("L-2", "L-1"):
        blank_tpm.manufacture(tpm_ca, template=template, at=local.clock.now())
    return blank_tpm


def revoked(rig: Rig) -> str:
    """Have a machine introduced, approved and revoked; return its id."""
    assert rig.once() is Exit.PENDING_APPROVAL, rig.events.entries
    operator = rig.service.operator()
    operator.approve(rig.machine_id)
    operator.act(rig.machine_id, "revoke")
    return rig.machine_id


def returned(rig: Rig, local: InProcessService, tmp_path: Path) -> dict[str, Any]:
    """Let a machine come with a token that admits anybody; return what operators see of it."""
    operator = local.operator()
    created = operator.call(
        "POST",
        "/registration-tokens",
        json={"role": "worker-app", "expires_in_seconds": 600, "minimum_assurance": "tofu"},
    )
    (tmp_path / "token").write_text(created["token"])
    assert rig.once() is Exit.PENDING_APPROVAL, rig.events.entries
    return operator.machine(rig.machine_id)


@pytest.mark.threat("T159")
@pytest.mark.swtpm
def test_a_revoked_chip_does_not_come_back_under_its_other_ek(
    local: InProcessService, two_eks: SoftwareTPM, tmp_path: Path
) -> None:
    """It showed both when it was honest; later it shows the other one alone, with another AK."""
    first = revoked(Rig(local, tmp_path, open_tpm=two_eks.node))
    again = Rig(
        local,
        tmp_path,
        seed=2,
        open_tpm=lambda: two_eks.node(ak=AKType.ECC_P384, ek_templates=("L-1",)),
        registration_token_file=str(tmp_path / "token"),
    )
    found = returned(again, local, tmp_path)
    assert again.machine_id != first
    assert first in found["alarm"]


@pytest.mark.threat("T159")
@pytest.mark.swtpm
def test_a_revoked_ek_shown_beside_a_new_one_waits(
    local: InProcessService, two_eks: SoftwareTPM, tmp_path: Path
) -> None:
    """An older agent showed one EK alone; whoever shows it beside the other one now is that machine."""
    first = revoked(Rig(local, tmp_path, open_tpm=lambda: two_eks.node(ek_templates=("L-2",))))
    again = Rig(
        local,
        tmp_path,
        seed=2,
        open_tpm=lambda: two_eks.node(ak=AKType.ECC_P384, ek_templates=("L-1", "L-2")),
        registration_token_file=str(tmp_path / "token"),
    )
    found = returned(again, local, tmp_path)
    assert again.machine_id != first
    assert first in found["alarm"]


@pytest.mark.swtpm
def test_only_an_ek_that_was_shown_opens(two_eks: SoftwareTPM) -> None:
    """Each once, beside the one that is the identity; a key that was not shown opens nothing."""
    with two_eks.node() as node:
        identity = node.identify()
        with pytest.raises(DeviceError, match="showed no such EK"):
            node.activate(b"", b"", ek_public=identity.ek_public)
        assert [each.template for each in node.further_eks()] == ["L-1"]
        assert identity.template == "L-2"
    with two_eks.node(ek_templates=("L-1",)) as node:
        assert node.further_eks() == ()


class Odd(Simulated):
    """Shows a further EK that the service, or the TPM itself, does not take."""

    def __init__(self, seed: int, further: FurtherEK) -> None:
        super().__init__(seed)
        self.further = further

    def further_eks(self) -> tuple[FurtherEK, ...]:
        """Return it."""
        return (self.further,)


@pytest.mark.parametrize("kept", [b"", b"\x30\x03\x02\x01\x01"])
def test_a_further_ek_that_is_refused_keeps_nobody_away(
    local: InProcessService, tmp_path: Path, kept: bytes
) -> None:
    """The machine is introduced without it, and says so once."""
    rig = Rig(local, tmp_path)
    other = Simulated(7)
    rig.tpm = Odd(1, FurtherEK(ek_public=other.ek.public.tpm2b(), template="L-2", certificate=kept))
    assert rig.once() is Exit.PENDING_APPROVAL, rig.events.entries
    assert rig.events.names().count("further_eks.hidden") == 1
