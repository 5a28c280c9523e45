"""The agent has a certified attestation key of its TPM vouch for the AK (docs/evidence/ak_certificate.md)."""

from __future__ import annotations

from pathlib import Path

import pytest

from attestation.device import CertifiedAK, KeyCertification
from attestation.device.certified_aks import PLACES
from attestation.errors import DeviceError
from attestation_agent.exits import Exit
from attestation_testing import CertificateAuthority, SoftwareTPM
from attestation_testing.software_tpm import certify_ak_of, iak_template
from tests.fixtures.in_process import InProcessService, in_process_service
from tests.integration.agent.rig import Rig, Simulated

CA = CertificateAuthority("Provider", seed=1)


@pytest.fixture
def with_iak(blank_tpm: SoftwareTPM, local: InProcessService) -> SoftwareTPM:
    """A TPM whose maker left an IAK and its certificate, and no EK certificate."""
    with blank_tpm.client() as client:
        certify_ak_of(
            client,
            CA,
            iak_template(),
            certificate_index=PLACES["iak"].certificate,
            handle=PLACES["iak"].handle,
            at=local.clock.now(),
        )
    return blank_tpm


@pytest.mark.swtpm
def test_an_iak_makes_a_machine_ak_certified(with_iak: SoftwareTPM, tmp_path: Path) -> None:
    """From NV to the level: read, certified over the activation, judged by the CA that the operator named."""
    folder = tmp_path / "ak-cas"
    folder.mkdir()
    (folder / "provider.der").write_bytes(CA.certificate)
    with in_process_service(tmp_path / "believing", ak_ca_dir=folder) as service:
        rig = Rig(service, tmp_path, open_tpm=with_iak.node)
        assert rig.once() is Exit.PENDING_APPROVAL, rig.events.entries
        assert ("ak_certificate.shown", {"place": "iak"}) in rig.events.entries
        detail = service.operator().machine(rig.machine_id)
        assert (detail["assurance"], detail["ek_source"]) == ("ak-certified", "pub")


@pytest.mark.swtpm
def test_a_service_that_believes_nobody_says_so(
    local: InProcessService, with_iak: SoftwareTPM, tmp_path: Path
) -> None:
    """The activation stands; the audit says which check failed."""
    rig = Rig(local, tmp_path, open_tpm=with_iak.node)
    assert rig.once() is Exit.PENDING_APPROVAL, rig.events.entries
    entries = local.operator().call("GET", "/audit", params={"action": "register"})["items"]
    assert "; nobody vouches for its AK: ak-cert-path" in entries[0]["detail"]


class Odd(Simulated):
    """Has a certified key that the service cannot read, or that the TPM does not let sign."""

    def __init__(self, seed: int, certificate: bytes, *, signs: bool = True) -> None:
        super().__init__(seed)
        self.shown, self.signs = certificate, signs

    def certified_aks(self) -> tuple[CertifiedAK, ...]:
        """Show it."""
        return (CertifiedAK(name="iak", public=b"no key", certificate=self.shown),)

    def vouch(self, certified: CertifiedAK, qualifying_data: bytes) -> KeyCertification:
        """Sign nonsense."""
        if not self.signs:
            raise DeviceError(f"{certified.name} signs nothing")
        return KeyCertification(certify_info=qualifying_data, signature=b"none")


def test_a_certificate_that_cannot_be_read_keeps_nobody_away(local: InProcessService, tmp_path: Path) -> None:
    """The machine is activated without it, in the same round: the challenge was not spent."""
    rig = Rig(local, tmp_path)
    rig.tpm = Odd(1, b"no certificate")
    assert rig.once() is Exit.PENDING_APPROVAL, rig.events.entries
    assert rig.events.names().count("ak_certificate.hidden") == 1
    assert rig.events.names().count("activated") == 1


def test_a_key_that_does_not_sign_keeps_nobody_away(local: InProcessService, tmp_path: Path) -> None:
    """Nothing is sent."""
    rig = Rig(local, tmp_path)
    rig.tpm = Odd(1, b"", signs=False)
    assert rig.once() is Exit.PENDING_APPROVAL, rig.events.entries
    assert "ak_certificate.failed" in rig.events.names()
    assert "ak_certificate.shown" not in rig.events.names()
