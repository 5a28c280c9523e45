"""Evidence of NVIDIA GPUs, by a program of their maker: this machine's own tool asks them (CONFIDENTIAL.md §14).

The program gets the nonce in hex as its last argument and prints a JSON list with an object for each GPU: `arch`,
`certificate` (base64 of a PEM chain), `evidence` (base64 of request and response), `nonce` (hex).
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from typing import Final

from attestation.errors import TEEDeviceError

MAX_OUTPUT_BYTES: Final = 2 << 20
MAX_GPUS: Final = 15
"""A request has sixteen items, one of them of the processor."""
TOOL_SECONDS: Final = 20.0
MEMBERS: Final = ("arch", "certificate", "evidence")


def gpu_evidence(
    command: Sequence[str], nonce: bytes, *, timeout_seconds: float = TOOL_SECONDS
) -> list[dict[str, str]]:
    """Return `arch`, `certificate` and `evidence` of each GPU over *nonce*, 32 bytes.

    Raises:
        TEEDeviceError: The program is absent, denied, fails, takes too long, or prints something else.
    """
    try:
        done = subprocess.run(  # noqa: S603 -- the administrator's own words, and no shell reads them
            [*command, nonce.hex()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            timeout=timeout_seconds,
            check=False,
        )
    except FileNotFoundError as e:
        raise TEEDeviceError("absent", f"{command[0]}: {e.strerror}") from e
    except OSError as e:
        raise TEEDeviceError("denied", f"{command[0]}: {e.strerror}") from e
    except subprocess.TimeoutExpired as e:
        raise TEEDeviceError("busy", f"{command[0]}: no end within {timeout_seconds:g} s") from e
    if done.returncode:
        raise TEEDeviceError("no-provider", f"{command[0]}: exit status {done.returncode}")
    if len(done.stdout) > MAX_OUTPUT_BYTES:
        raise TEEDeviceError("malformed", f"{command[0]}: more than {MAX_OUTPUT_BYTES} bytes")
    try:
        found = json.loads(done.stdout)
    except (ValueError, RecursionError) as e:
        raise TEEDeviceError("malformed", f"{command[0]}: no JSON") from e
    if not isinstance(found, list) or not 1 <= len(found) <= MAX_GPUS:
        raise TEEDeviceError("malformed", f"{command[0]}: no list of 1 to {MAX_GPUS} GPUs")
    return [_one(each, nonce, command[0]) for each in found]


def _one(found: object, nonce: bytes, program: str) -> dict[str, str]:
    if not isinstance(found, dict) or any(not isinstance(found.get(name), str) for name in MEMBERS):
        raise TEEDeviceError("malformed", f"{program}: a GPU without {', '.join(MEMBERS)}")
    if str(found.get("nonce", "")).lower() != nonce.hex():
        raise TEEDeviceError("malformed", f"{program}: evidence over another nonce")
    return {name: found[name] for name in MEMBERS}
