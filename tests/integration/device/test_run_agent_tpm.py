"""What the TPM of a node says of the challenge of a run: by the key that the service knows, over what was asked for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from attestation.device import AKType
from attestation.evidence import tpm_quote
from attestation.tpm import PCRSelection
from attestation.wire import b64decode
from attestation_operator.runs.agent_devices import MAX_LOG_BYTES, ChallengeRefused, Places, nonce_of
from attestation_testing.software_tpm import SoftwareTPM
from tests.unit.operator.doubles import Log
from tests.unit.operator.runs.agent_world import NODE
from tests.unit.operator.runs.test_agent_devices import asked, of, places

__all__ = ["places"]

pytestmark = pytest.mark.swtpm


@pytest.fixture(scope="module")
def tpm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SoftwareTPM]:
    """A TPM."""
    with SoftwareTPM(tmp_path_factory.mktemp("tpm")) as made:
        yield made


@pytest.mark.parametrize("ak", [AKType.ECC_P256, AKType.RSA_2048])
def test_a_quote_is_by_the_key_that_the_service_knows(places: Places, tpm: SoftwareTPM, ak: AKType) -> None:
    """The AK of `attestation-agent` on this node: derived alike, so nothing is shared but the TPM (ADR 11)."""
    with tpm.node(ak=ak) as node:
        known = tpm_quote.AttestationKey(node.ak_public(), node.identify().ek_public)
    (item,) = of(replace(places, tpms=(tpm.uri,), ak=ak)).collect(asked(), NODE.uid)
    assert isinstance(item.value, dict)
    assert item.media_type == tpm_quote.MEDIA_TYPE
    assert sorted(item.value) == ["pcr_quote", "pcr_signature", "pcr_values"]
    said = {name: b64decode(value, name) for name, value in item.value.items()}
    claims = tpm_quote.verify(
        tpm_quote.parse(said["pcr_quote"], said["pcr_signature"]),
        challenge=nonce_of(asked()),
        key=known,
        selection=PCRSelection.from_names({"sha256": [0, 1, 7]}),
        pcr_values=tpm_quote.parse_pcr_values(json.loads(said["pcr_values"])),
    )
    assert [sorted(bank) for bank in claims.pcrs.values()] == [[0, 1, 7]]


def test_the_event_log_comes_where_it_is_asked_for(places: Places, tpm: SoftwareTPM, tmp_path: Path) -> None:
    """One that cannot be read is left out and told: the service judges that it is missing."""
    here, log = replace(places, tpms=(tpm.uri,), event_log=tmp_path / "log"), Log()
    devices = of(here, log=log)

    def members(**how: Any) -> Any:
        (item,) = devices.collect(asked(**how), NODE.uid)
        return item.value

    assert "event_log" not in members(event_log=True)
    assert log.events == ["event_log.unreadable"]
    here.event_log.write_bytes(b"events")
    assert "event_log" not in members()
    assert b64decode(members(event_log=True)["event_log"], "") == b"events"
    here.event_log.write_bytes(bytes(MAX_LOG_BYTES + 1))
    assert "event_log" not in members(event_log=True)
    assert log.events == ["event_log.unreadable", "event_log.too_long"]


def test_the_first_tpm_that_is_there_is_the_node_s(places: Places, tpm: SoftwareTPM) -> None:
    """By path or by URI; what is not there is passed over."""
    here = replace(places, tpms=(*places.tpms, "device:/nowhere", tpm.uri))
    assert of(here).collect(asked(), NODE.uid)


@pytest.mark.parametrize(
    "changed",
    [
        {"pcr_bank": None},
        {"pcrs": ()},
    ],
)
def test_a_challenge_that_names_no_pcr(places: Places, tpm: SoftwareTPM, changed: dict[str, Any]) -> None:
    """A quote of nothing proves nothing."""
    with pytest.raises(ChallengeRefused):
        of(replace(places, tpms=(tpm.uri,))).collect(asked(**changed), NODE.uid)
