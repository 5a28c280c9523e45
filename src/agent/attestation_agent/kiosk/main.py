"""Entry point: `attestation-kiosk` installs the machine that it runs on; `attestation-kiosk sign` signs images."""

# Algorithms for: digest
from __future__ import annotations

import hashlib
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from attestation import __version__, completion, manual, output
from attestation.errors import AttestationError
from attestation.text import clean
from attestation_agent.exits import StateNotKept, UsageError
from attestation_agent.kiosk.exits import KioskExit, kiosk_exit_of
from attestation_agent.settings import Parser

if TYPE_CHECKING:
    from attestation_agent.kiosk.flow import Machine, World
    from attestation_agent.kiosk.settings import Chosen

CONF: Final = Path("/etc/itl-reg.conf")
EPILOG: Final = (
    "Settings are ITL_ variables, itl. kernel arguments, lines of /etc/itl-reg.conf and of EFI/itl/itl-reg.conf on the "
    "boot medium, in this order. "
    "Exit codes: 0 written; 10 pending approval; 11 locked; 12 revoked; 13 rejected; 20 TPM unavailable; 21 service "
    "unreachable; 22 refused by the service; 23 not authentic; 28 state directory not writable; 30 no image; 31 image "
    "rejected; 32 no disk; 33 not confirmed; 34 write failed; 64 usage; 130 stopped."
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `attestation-kiosk`; the console script exits with what this returns."""
    parser = Parser(prog="attestation-kiosk", description="Install this machine from a stick.", epilog=EPILOG)
    parser.add_argument("--man", action=manual.Print, help="print the manual page: ... | man -l -")
    parser.add_argument("--completion", action=completion.Print, help="print the completion for a shell")
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    commands = parser.add_subparsers(dest="command", parser_class=Parser, metavar="COMMAND")
    commands.add_parser("install", help="install this machine (also without a command)", epilog=EPILOG)
    sign = commands.add_parser("sign", help="sign a list of images, on the computer that holds the key")
    sign.add_argument(
        "--key", required=True, metavar="URI", help="Ed25519 key: file:/path.pem, made where absent"
    )
    sign.add_argument("--name", required=True, help="what the key is called, like images.example")
    sign.add_argument("--valid-until", metavar="TIME", help="RFC 3339; kiosks take the list until then")
    sign.add_argument("--to", type=Path, default=Path("images.note"), help="the list (default images.note)")
    sign.add_argument("file", type=Path, nargs="+", help="image, as it will be served")
    with output.to_the_end(parser.prog, KioskExit.USAGE):
        flags = vars(parser.parse_args(arguments))
    try:
        return _sign(flags) if flags["command"] == "sign" else install(os.environ)
    except AttestationError as e:
        # The console that people look at is standard output; what the service says is cleaned for it.
        _say(clean(f"attestation-kiosk: {e}")[:4096])
        return kiosk_exit_of(e)
    except KeyboardInterrupt:
        _say("attestation-kiosk: stopped")
        return KioskExit.STOPPED


def _say(text: str) -> None:
    with output.to_the_end("attestation-kiosk", KioskExit.USAGE):
        print(text)  # noqa: T201 -- what the command is asked for goes to stdout


def _sign(flags: Mapping[str, Any]) -> int:
    from attestation.clock import parse_rfc3339
    from attestation.errors import KeyUnusable
    from attestation.keys.notes import load_ed25519
    from attestation_agent.kiosk import listing

    try:
        until: datetime | None = parse_rfc3339(flags["valid_until"]) if flags["valid_until"] else None
    except ValueError as e:
        raise UsageError(f"--valid-until: {e}") from e
    try:
        digests = [(path.name, _digest(path)) for path in flags["file"]]
        key = load_ed25519(flags["key"], create=True)
        note, public = listing.sign(digests, key=key, name=flags["name"], until=until)
        flags["to"].write_text(note, encoding="utf-8")
    except OSError as e:
        raise UsageError(f"{e.filename}: {e.strerror}") from e
    except KeyUnusable as e:
        raise UsageError(f"--key: {e}") from e
    _say(str(public))
    return KioskExit.WRITTEN


def _digest(path: Path) -> bytes:
    with path.open("rb") as file:
        return hashlib.file_digest(file, hashlib.sha256).digest()


def install(environ: Mapping[str, str], *, conf: Path = CONF, world: World | None = None) -> int:
    """Install this machine, with the settings of *environ* above those of the kernel's arguments, *conf* and medium.

    Raises:
        AttestationError: It is not installed.
    """
    from attestation_agent.kiosk.flow import Kiosk

    variables, machine = found(environ, conf)
    return Kiosk(variables, machine, world or _world()).run()


def found(environ: Mapping[str, str], conf: Path) -> tuple[dict[str, str], Machine]:
    """Return all settings, the nearest source first, and the machine that was looked at for them.

    Raises:
        UsageError: One of the sources cannot be read.
        NoDisk: Which medium was booted cannot be told from its copy.
    """
    from attestation_agent.kiosk import disks, media, sources
    from attestation_agent.kiosk.fat import Folder, Medium
    from attestation_agent.kiosk.flow import Machine
    from attestation_agent.kiosk.settings import load

    said = {name: value for name, value in environ.items() if name.startswith("ITL_")}
    roots = load(said)
    sysfs, procfs, devfs = roots.agent.sysfs, roots.kiosk.procfs, roots.kiosk.devfs
    kernel = sources.parse_cmdline(_read(procfs / "cmdline", sources.MAX_CMDLINE_BYTES))
    written = sources.parse_conf(_read(conf, sources.MAX_CONF_BYTES), str(conf))
    near = {**written, **kernel, **said}
    seen = disks.scan(sysfs=sysfs, procfs=procfs, devfs=devfs)
    machine = Machine(disks=seen, booted=disks.booted_from(seen, sysfs=sysfs))
    directory = load(near).kiosk.medium_dir
    medium: Medium | None
    folder, medium = (
        ("", Folder(path=directory))
        if directory is not None
        else (media.FOLDER, media.boot_medium(machine.booted))
    )
    if medium is None:
        return near, machine
    carried = medium.read(folder + media.CONF, max_bytes=sources.MAX_CONF_BYTES) or b""
    far = sources.parse_conf(carried, f"{folder}{media.CONF} on the medium")
    state_dir = load({**far, **near}).agent.state_dir
    try:
        files = media.files_of(medium, folder, state_dir / "medium")
    except OSError as e:
        raise StateNotKept(f"{state_dir}: {e.strerror}") from e
    return {**files, **far, **near}, machine


def _read(path: Path, max_bytes: int) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(max_bytes + 1)
    except OSError:
        return b""


def _world() -> World:
    """Return the real one."""
    from attestation.clock import SystemClock
    from attestation_agent.commands import run_command
    from attestation_agent.kiosk.flow import World
    from attestation_agent.kiosk.ui import Screen
    from attestation_agent.rhythm import Rhythm

    never = threading.Event()
    return World(
        screen=Screen(sys.stdout, sys.stdin),
        clock=SystemClock(),
        wait=never.wait,
        open_tpm=_open,
        run=lambda command: run_command(command, timeout_seconds=60.0),
        rhythm=Rhythm(),
    )


def _open(chosen: Chosen) -> Any:
    """Return the `NodeTPM` that *chosen* names, with nothing loaded that somebody left."""
    from attestation.device import AK_WORDS, EK_PREFERENCE, EK_STRONG, TPM, NodeTPM

    tpm = TPM.open(chosen.agent.tpm)
    try:
        tpm.startup()
        tpm.flush_everything()
    except BaseException:
        tpm.close()
        raise
    return NodeTPM(
        tpm,
        ak=AK_WORDS[chosen.agent.ak],
        ek_templates=EK_STRONG if chosen.agent.ek == "strong" else EK_PREFERENCE,
    )
