"""A program of `--evidence-programs` for the demo: an SGX enclave in software, which says whatever it is asked to.

`python -m tools.software_enclave good|debug|stranger`: report data on standard input, evidence on standard output, as
docs/kubernetes/hsm.md has it. `debug` is an enclave that anybody may look into, `stranger` one that another maker than
the expected one vouches for. No hardware is here: its root is named TEST ONLY, and a service believes it only where it
is told to.
"""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Final

from attestation.wire import b64encode
from attestation_testing.tee.intel import Pki, Platform, enclave_report, shared_pki

MRENCLAVE: Final = b"\xe1" * 32
NORMAL, DEBUG = b"\x05", b"\x07"
"""Attributes: initialized, 64 bits; and, of the second, to be debugged."""


def quote(report_data: bytes, mode: str) -> bytes:
    """Return what the enclave says of *report_data*, 64 bytes."""
    platform = Platform(pki=Pki("stranger") if mode == "stranger" else shared_pki())
    report = {
        0: bytes((2, 2)),
        48: DEBUG if mode == "debug" else NORMAL,
        64: MRENCLAVE,
        128: b"\x51" * 32,
        320: report_data,
    }
    return platform.quote(enclave_report(report), version=3, tee="SGX")


def main() -> None:
    """Answer once."""
    data = bytes.fromhex(sys.stdin.readline())
    answer = {"format": "sgx-dcap-v3", "data": b64encode(quote(data, sys.argv[1])), "certChain": []}
    print(json.dumps(answer))


def write_programs(folder: Path) -> str:
    """Write the programs that make evidence; return them as `--evidence-programs` has them."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    listed = []
    root = Path(__file__).resolve().parent.parent
    for name, mode in (("enclave", "good"), ("debug", "debug"), ("stranger", "stranger")):
        path = folder / name
        command = shlex.join(
            ["env", f"PYTHONPATH={root}", sys.executable, "-m", "tools.software_enclave", mode]
        )
        path.write_text(f"#!/bin/sh\nexec {command}\n", encoding="utf-8")
        path.chmod(0o700)
        listed.append(f"{name}={path}")
    return ",".join(listed)


if __name__ == "__main__":
    main()
