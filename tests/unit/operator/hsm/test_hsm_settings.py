"""Settings of the controller of HSM issuers."""

from __future__ import annotations

from pathlib import Path

import pytest

from attestation_operator.hsm.settings import HsmSettings
from attestation_operator.settings import SettingsInvalid

GIVEN = {"ITL_OPERATOR_SERVICE_URL": "https://attest.example"}


def test_modules_and_tpms_are_lists_of_names() -> None:
    """What an object may name, and where that is."""
    settings = HsmSettings.load(
        GIVEN
        | {
            "ITL_OPERATOR_PKCS11_MODULES": "softhsm=/usr/lib/softhsm/libsofthsm2.so,luna=/opt/luna.so",
            "ITL_OPERATOR_TPMS": "tpm0=device:/dev/tpmrm0,sim=tcp:127.0.0.1:2321",
        }
    )
    assert settings.modules == {
        "softhsm": Path("/usr/lib/softhsm/libsofthsm2.so"),
        "luna": Path("/opt/luna.so"),
    }
    assert settings.tpm_places == {"tpm0": "device:/dev/tpmrm0", "sim": "tcp:127.0.0.1:2321"}
    assert HsmSettings.load(GIVEN).modules == {}
    listed = HsmSettings.load(GIVEN | {"ITL_OPERATOR_EVIDENCE_PROGRAMS": "enclave=/opt/quote,td=/opt/td"})
    assert listed.programs == {"enclave": Path("/opt/quote"), "td": Path("/opt/td")}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PKCS11_MODULES", "softhsm"),
        ("PKCS11_MODULES", "softhsm=libsofthsm2.so"),
        ("PKCS11_MODULES", "a=/x,a=/y"),
        ("PKCS11_MODULES", "../a=/x"),
        ("TPMS", "tpm0=/dev/tpmrm0"),
        ("TPMS", "tpm0=swtpm:rm -rf"),
        ("EVIDENCE_PROGRAMS", "enclave=quote"),
        ("EVIDENCE_PROGRAMS", "/opt/quote"),
        ("MAX_RETRY_SECONDS", "-1"),
    ],
)
def test_what_would_choose_something_else_is_refused(name: str, value: str) -> None:
    """At the start, in words."""
    with pytest.raises(SettingsInvalid, match=name):
        HsmSettings.load(GIVEN | {f"ITL_OPERATOR_{name}": value})
