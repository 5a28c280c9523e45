"""Evidence of GPUs comes where a challenge asks for it, by the program that the administrator named."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from attestation.appraisal.gpu import GPU
from attestation.wire import b64encode, pem
from attestation_testing.tee.nvidia import SoftwareGPU
from tests.unit.agent.test_node import attested
from tests.unit.agent.world import World

TOOL = """\
import json, sys
from attestation.wire import b64encode
from attestation_testing.tee.nvidia import SoftwareGPU
nonce = bytes.fromhex(sys.argv[2])
said = b64encode(SoftwareGPU().evidence(nonce))
print(json.dumps([{"arch": "HOPPER", "certificate": sys.argv[1], "evidence": said, "nonce": nonce.hex()}]))
"""


@pytest.mark.parametrize("named", ["tool", "nothing", "absent"])
def test_what_gpus_say_is_brought(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str) -> None:
    """Over the challenge; where they say nothing the machine attests without, and the log says why."""
    (tmp_path / "tool.py").write_text(TOOL, encoding="utf-8")
    chain = "".join(pem("CERTIFICATE", each) for each in SoftwareGPU().chain).encode()
    commands = {
        "tool": f"{sys.executable} {tmp_path / 'tool.py'} {b64encode(chain)}",
        "nothing": "",
        "absent": str(tmp_path / "absent"),
    }
    command = commands[named]
    world = attested(World(tmp_path, gpu_command=command) if command else World(tmp_path))
    asks, takes = world.service._challenge, world.service._attest
    brought: list[dict[str, Any]] = []

    def judged(body: dict[str, Any]) -> dict[str, Any]:
        brought.extend(body["evidence"])
        return takes(body)

    monkeypatch.setattr(
        world.service, "_challenge", lambda: asks() | {"evidence": ["tpm-quote", "nvidia-gpu"]}
    )
    monkeypatch.setattr(world.service, "_attest", judged)
    world.run()
    told = "gpus.not_shown" in str(world.events.entries)
    assert told is (named != "tool")
    assert len(brought) == (1 if named == "tool" else 0)
    for each in brought:
        assert each["media_type"] == "application/vnd.itl.nvidia-gpu"
        GPU.parse(each["value"])
