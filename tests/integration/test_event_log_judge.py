"""An independent reader of event logs, tpm2_eventlog, sees the same events and PCRs.

Not asked where it is known to be wrong (TPM.md §10): it extends EV_NO_ACTION and ignores how PCR 0 starts.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from attestation.evidence import event_log
from attestation.tpm import bank_name
from attestation_testing import BootOptions, LogQuirk, boot_log
from tests.vectors import SHARED

pytestmark = pytest.mark.tpm2_tools

_EVENT = re.compile(
    r"^- EventNum: (\d+)\n  PCRIndex: (\d+)\n  EventType: (\w+)\n(.*?)(?=^- EventNum|^pcrs:|\Z)",
    re.MULTILINE | re.DOTALL,
)
_DIGEST = re.compile(r'AlgorithmId: (\w+)\n    Digest: "([0-9a-f]+)"')
_PCRS = re.compile(r"^  (\w+):\n((?:    \d+ *: 0x[0-9a-f]+\n?)+)", re.MULTILINE)
_VALUE = re.compile(r"(\d+) *: 0x([0-9a-f]+)")
_STARTS_ELSEWHERE = {"gdc-host", "binary_bios_measurements", "confidential-gke-debug-251000"}


def _logs() -> dict[str, bytes]:
    made = {
        "grub": boot_log(BootOptions(banks=("sha1", "sha256", "sha384"))).serialise(),
        "uki": boot_log(BootOptions(uki=True, secure_boot=False)).serialise(),
        "quirks": boot_log(
            BootOptions(quirks=frozenset({LogQuirk.OPTION_ROM, LogQuirk.EXIT_FAILS_ONCE}))
        ).serialise(),
        "large": boot_log(BootOptions(size_bytes=50_000)).serialise(),
    }
    for path in sorted((SHARED / "eventlog").glob("**/*.bin")):
        if path.name == "eventlog.bin" and "ovmf" in str(path):
            made[path.parent.name] = path.read_bytes()
        elif path.stem in {
            "rhel8-uefi",
            "ubuntu-2104-no-dbx",
            "event-bootorder",
            "mb_log",
            *_STARTS_ELSEWHERE,
        }:
            made[path.stem] = path.read_bytes()
    return made


LOGS = _logs()


@pytest.mark.parametrize("name", LOGS)
def test_another_reader_sees_the_same(name: str, tmp_path: Path) -> None:
    """Number, PCR, type and digests of every event, and the PCRs of every bank, are those of tpm2_eventlog."""
    tool = shutil.which("tpm2_eventlog")
    if tool is None:
        pytest.skip("tpm2_eventlog is not installed")
    file = tmp_path / "log.bin"
    file.write_bytes(LOGS[name])
    told = subprocess.run([tool, str(file)], capture_output=True, text=True, check=True, timeout=240).stdout
    log = event_log.parse(LOGS[name])
    listed = _EVENT.findall(told)
    assert len(listed) == len(log.records)
    for (number, pcr, kind, body), (i, record) in zip(listed, enumerate(log.records), strict=True):
        assert (int(number), int(pcr)) == (i, record.pcr)
        assert kind == event_log.type_name(record.event_type)
        if i:
            ours = {bank_name(b): d.hex() for b, d in zip(log.banks, record.digests, strict=True)}
            assert dict(_DIGEST.findall(body)) == ours
    banks = dict(_PCRS.findall(told[told.index("\npcrs:") :]))
    assert set(banks) == {bank_name(b) for b in log.banks}
    for bank in log.banks:
        values = {int(i): v for i, v in _VALUE.findall(banks[bank_name(bank)])}
        replayed = event_log.replay(log, bank)
        for pcr in replayed.extended - ({0} if name in _STARTS_ELSEWHERE else set()):
            assert values[pcr] == replayed.values[pcr].hex()
