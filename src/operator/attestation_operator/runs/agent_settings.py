"""Settings of the agent of a node."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

from pydantic import Field, field_validator

from attestation.device import AK_WORDS
from attestation.device.guest_ioctl import SEV_GUEST, TDX_GUESTS
from attestation.device.tee import CCEL_TABLE
from attestation.device.tsm import ROOT
from attestation_operator.runs.agent_devices import Places
from attestation_operator.settings import BoundSettings

MOST_NAMED: Final = 8


class AgentSettings(BoundSettings):
    """What is chosen for the agent of a node."""

    node_name: Annotated[str, Field(min_length=1, max_length=253)]
    """Name of this Node. The token names it too, and is what counts: where they differ, the agent does not start."""

    tpm_device: str = "/dev/tpmrm0,/dev/tpm0"
    """TPMs, by path or URI, the first that is there is asked; several with commas."""

    tpm_ak: str = "ecc"
    """Kind of attestation key, that of attestation-agent on this node (ITL_AK): `ecc`, `ecc-p384` or `rsa`."""

    event_log_path: Path = Path("/sys/kernel/security/tpm0/binary_bios_measurements")
    """Boot event log, which goes with a quote where the policy asks for it."""

    sev_snp_device: Path = SEV_GUEST
    """Device of SEV-SNP, asked where there is no configfs-tsm."""

    tdx_device: str = ",".join(map(str, TDX_GUESTS))
    """Devices of TDX, likewise, the first that is there; several with commas."""

    tsm_path: Path = ROOT
    """Folder of configfs-tsm, which is asked first."""

    ccel_path: Path = CCEL_TABLE
    """The ACPI table CCEL; the measurement log of TDX is `data/CCEL` beside it."""

    @field_validator("tpm_ak")
    @classmethod
    def _known_ak(cls, word: str) -> str:
        if word not in AK_WORDS:
            raise ValueError(f"must be one of {', '.join(AK_WORDS)}")
        return word

    @field_validator("tpm_device", "tdx_device")
    @classmethod
    def _some(cls, text: str) -> str:
        if not 1 <= len(_several(text)) <= MOST_NAMED:
            raise ValueError(f"must name 1 to {MOST_NAMED} devices, with commas between them")
        return text

    @property
    def places(self) -> Places:
        """Where the devices are."""
        return Places(
            tpms=_several(self.tpm_device),
            ak=AK_WORDS[self.tpm_ak],
            event_log=self.event_log_path,
            sev_guest=self.sev_snp_device,
            tdx_guests=tuple(map(Path, _several(self.tdx_device))),
            tsm=self.tsm_path,
            ccel=self.ccel_path,
        )


def _several(text: str) -> tuple[str, ...]:
    return tuple(filter(None, (each.strip() for each in text.split(","))))
