"""Settings of the agent: where devices are, and which key."""

from __future__ import annotations

from pathlib import Path

import pytest

from attestation.device import AKType
from attestation_operator.runs.agent_settings import AgentSettings
from attestation_operator.settings import SettingsInvalid

GIVEN = {"ITL_OPERATOR_SERVICE_URL": "https://attest.example", "ITL_OPERATOR_NODE_NAME": "n1"}


def test_the_places_are_those_of_the_specification() -> None:
    """CONFIDENTIAL §4, with nothing set but node and service."""
    settings = AgentSettings.load(GIVEN)
    places = settings.places
    assert places.tpms == ("/dev/tpmrm0", "/dev/tpm0")
    assert (places.ak, str(places.sev_guest)) == (AKType.ECC_P256, "/dev/sev-guest")
    assert places.tdx_guests == (Path("/dev/tdx_guest"), Path("/dev/tdx-guest"))
    assert str(places.tsm) == "/sys/kernel/config/tsm/report"
    assert str(places.ccel) == "/sys/firmware/acpi/tables/CCEL"
    assert (settings.probes_at.port, settings.metrics_at.port) == (8081, 9090)


def test_several_devices_and_a_flag_that_wins() -> None:
    """With commas, in the order in which they are asked."""
    variables = GIVEN | {"ITL_OPERATOR_TPM_DEVICE": "unix:/tpm, /dev/tpm1", "ITL_OPERATOR_TPM_AK": "rsa"}
    places = AgentSettings.load(variables, {"tdx_device": "/a,/b,", "tpm_ak": "ecc-p384"}).places
    assert places.tpms == ("unix:/tpm", "/dev/tpm1")
    assert places.tdx_guests == (Path("/a"), Path("/b"))
    assert places.ak is AKType.ECC_P384


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("NODE_NAME", "", "ITL_OPERATOR_NODE_NAME: is missing"),
        ("TPM_AK", "ed25519", "must be one of ecc, ecc-p384, rsa"),
        ("TPM_DEVICE", ",", "must name 1 to 8 devices"),
        ("TDX_DEVICE", ",".join("abcdefghi"), "must name 1 to 8 devices"),
        ("METRICS_BIND_ADDRESS", "9090", "must be an address like"),
        ("NAMESPACE", "default", "unknown setting ITL_OPERATOR_NAMESPACE"),  # it has no Lease
    ],
)
def test_what_is_wrong_is_named(name: str, value: str, words: str) -> None:
    """The variable, and what it wants."""
    with pytest.raises(SettingsInvalid) as found:
        AgentSettings.load(GIVEN | {f"ITL_OPERATOR_{name}": value})
    assert words in str(found.value)
