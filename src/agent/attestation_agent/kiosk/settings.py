"""Settings of the kiosk: those of the agent that it needs, and its own (docs/operate/kiosk.md)."""

# ruff: noqa: RUF009 -- what `_option` returns is a field
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final

from attestation_agent.settings import OPTIONS as AGENT_OPTIONS
from attestation_agent.settings import Option, _command, _one_of, _option, _seconds, _yes_or_no, resolve
from attestation_agent.settings import Settings as AgentSettings

STATE_DIR: Final = Path("/run/itl-kiosk")
"""In memory: what the kiosk remembers ends with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What is chosen beside the settings of the agent."""

    offline: str = _option(
        "ITL_OFFLINE",
        _one_of("yes", "no", "auto"),
        "auto",
        "yes: without the service, from a bundle; auto: where it does not answer within 5 s (default auto)",
    )
    usb_bundle_dir: Path | None = _option(
        "ITL_USB_BUNDLE_DIR", Path, None, "directory that is the bundle (default: partitions are searched)"
    )
    medium_dir: Path | None = _option(
        "ITL_MEDIUM_DIR",
        Path,
        None,
        "directory that is EFI/itl of the boot medium (default: read from the partition that was booted)",
    )
    target_disk: str = _option(
        "ITL_TARGET_DISK",
        str,
        "auto",
        "disk to erase, by name or path (default auto: nvme0n1, sda, sdb, vda)",
    )
    auto_confirm: bool = _option(
        "ITL_AUTO_CONFIRM", _yes_or_no, False, "yes: nobody types the name of the disk (default no)"
    )
    reinstall: bool = _option(
        "ITL_REINSTALL",
        _yes_or_no,
        False,
        "yes: also where nobody confirms, and the disk was written for this machine before (default no)",
    )
    image_url: str | None = _option(
        "ITL_IMAGE_URL", str, None, "where the image is (default what the service says)"
    )
    image_sums: str | None = _option(
        "ITL_IMAGE_SUMS", str, None, "where the signed list is (default images.note beside the image)"
    )
    image_keys: str | None = _option(
        "ITL_IMAGE_KEYS", str, None, "keys that sign lists: a path, or vkeys with commas (needed)"
    )
    wait_seconds: float = _option(
        "ITL_WAIT_SECONDS", _seconds, 86_400.0, "how long an approval is waited for (default 86400)"
    )
    reboot_command: tuple[str, ...] = _option(
        "ITL_REBOOT_COMMAND", _command, ("reboot",), "what ends the kiosk (default reboot)"
    )
    procfs: Path = _option("ITL_PROCFS", Path, Path("/proc"), "where mounts are read (default /proc)")
    devfs: Path = _option("ITL_DEVFS", Path, Path("/dev"), "where disks are (default /dev)")


KIOSK_OPTIONS: Final = tuple(Option(name=f.name, **f.metadata) for f in fields(Settings) if f.metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """All settings: of the kiosk, and of the node that registers."""

    kiosk: Settings
    agent: AgentSettings


def load(variables: Mapping[str, str]) -> Chosen:
    """Return the settings that *variables* mean; the address of the service may be asked for later.

    Raises:
        UsageError: An unknown variable that begins with `ITL_`, or a text that cannot be read.
    """
    own = resolve({}, variables, KIOSK_OPTIONS, also=KIOSK_OPTIONS)
    node = resolve({}, variables, AGENT_OPTIONS, also=KIOSK_OPTIONS)
    if not variables.get("ITL_STATE_DIR"):
        node["state_dir"] = STATE_DIR
    return Chosen(kiosk=Settings(**own), agent=AgentSettings(once=True, **node))
