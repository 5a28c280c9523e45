"""The maker's program that asks GPUs: what it is given, what it may print, and what each failure is called."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from attestation.appraisal.gpu import GPU
from attestation.device.gpu_tool import MAX_GPUS, MAX_OUTPUT_BYTES, gpu_evidence
from attestation.errors import TEEDeviceError
from attestation.wire import b64encode, pem
from attestation_testing.tee.nvidia import SoftwareGPU

NONCE = bytes(range(32))
ONE = {"arch": "HOPPER", "certificate": "YQ==", "evidence": "Yg==", "nonce": NONCE.hex()}


def tool(tmp_path: Path, printed: Any, *, status: int = 0) -> list[str]:
    """Return a program that checks its argument and prints."""
    text = printed if isinstance(printed, str) else json.dumps(printed)
    (tmp_path / "printed").write_text(text, encoding="utf-8")
    program = (
        "import pathlib, sys\n"
        f"assert sys.argv[1] == {NONCE.hex()!r}\n"
        f"sys.stdout.write(pathlib.Path({str(tmp_path / 'printed')!r}).read_text())\n"
        f"sys.exit({status})\n"
    )
    path = tmp_path / "tool.py"
    path.write_text(program, encoding="utf-8")
    return [sys.executable, str(path)]


def test_what_gpus_said_is_passed_on(tmp_path: Path) -> None:
    """Each with the members of an item, and nothing else of it."""
    found = gpu_evidence(tool(tmp_path, [ONE, ONE | {"more": 1}]), NONCE)
    assert found == [{name: ONE[name] for name in ("arch", "certificate", "evidence")}] * 2


def test_the_item_is_one_that_is_judged(tmp_path: Path) -> None:
    """The kind reads what the agent would send."""
    gpu = SoftwareGPU()
    told = {
        "arch": "HOPPER",
        "certificate": b64encode("".join(pem("CERTIFICATE", each) for each in gpu.chain).encode()),
        "evidence": b64encode(gpu.evidence(NONCE)),
        "nonce": NONCE.hex().upper(),
    }
    GPU.parse(gpu_evidence(tool(tmp_path, [told]), NONCE))


STRANGE: list[Any] = [
    *("", "{", "{}", "[]", " " * (MAX_OUTPUT_BYTES + 1)),
    [ONE] * (MAX_GPUS + 1),
    *([1], [{}], [ONE | {"arch": 1}], [ONE | {"nonce": "00"}]),
]


@pytest.mark.parametrize("printed", STRANGE, ids=range(len(STRANGE)))
def test_what_it_may_not_print(tmp_path: Path, printed: Any) -> None:
    """Anything else is malformed; evidence over another nonce too."""
    with pytest.raises(TEEDeviceError) as told:
        gpu_evidence(tool(tmp_path, printed), NONCE)
    assert told.value.fault == "malformed"


def test_what_a_failure_is_called(tmp_path: Path) -> None:
    """Absent, denied, busy, or it has no GPU."""
    for command, fault in (
        ([str(tmp_path / "absent")], "absent"),
        ([str(tmp_path)], "denied"),
        (tool(tmp_path, [ONE], status=3), "no-provider"),
    ):
        with pytest.raises(TEEDeviceError) as told:
            gpu_evidence(command, NONCE)
        assert told.value.fault == fault
    with pytest.raises(TEEDeviceError) as told:
        gpu_evidence([sys.executable, "-c", "import time; time.sleep(9)"], NONCE, timeout_seconds=0.2)
    assert told.value.fault == "busy"
