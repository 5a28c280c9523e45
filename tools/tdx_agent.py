"""The agent of a node whose confidential hardware is software, TEST ONLY; all else of it is what is shipped."""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
import sys
from pathlib import Path

from attestation.device.tsm import TsmReport
from attestation_operator import logs
from attestation_operator.runs.agent_devices import Devices
from attestation_operator.runs.agent_program import AgentProgram
from attestation_operator.runs.agent_settings import AgentSettings
from attestation_testing.tee.intel import Platform, td_report
from attestation_testing.tee.tsm import FakeTsm


def devices(settings: AgentSettings, platform: Platform, name: str, warn: object) -> Devices:
    """Return the devices of a TD that *platform* runs, whose launcher named it *name*."""
    named = hashlib.sha384(name.encode()).digest()
    files = FakeTsm(
        root=settings.tsm_path,
        provider="tdx_guest",
        says=lambda data: (platform.quote(td_report(data, size=584, mrconfigid=named)), b""),
    )
    return Devices(settings.places, warn=warn, tsm=TsmReport(settings.tsm_path, files))  # type: ignore[arg-type]  # structlog's


def main() -> None:
    """Run until SIGTERM; `tdx_agent NAME` is the platform that `tools.demo_confidential` calls NAME."""
    settings = AgentSettings.load(os.environ, {"tpm_device": str(Path("/nonexistent"))})
    log = logs.configure(settings.log_level, settings.log_format)
    platform = Platform(seed=f"demo {sys.argv[1]}")
    program = AgentProgram(settings, log=log, devices=devices(settings, platform, sys.argv[1], log.warning))

    async def run() -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, program.stop)
        await program.run()

    asyncio.run(run())


if __name__ == "__main__":
    main()
