"""What deploy/kiosk lays over Debian: one program on all consoles, and units that systemd reads."""

from __future__ import annotations

import importlib.util
import os
import pty
import shutil
import subprocess
import sys
import termios
import threading
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[3] / "deploy" / "kiosk"
UNITS: Final = ROOT / "overlay/etc/systemd/system"
ECHOES: Final = "import os; print(os.get_terminal_size()); print('got', input()); raise SystemExit(7)"


def load() -> ModuleType:
    """Return `consoles`, which has no suffix: it is a program."""
    loader = SourceFileLoader("kiosk_consoles", str(ROOT / "overlay/usr/lib/itl/consoles"))
    spec = importlib.util.spec_from_loader("kiosk_consoles", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = writes
    return module


def read_until(fd: int, word: bytes) -> bytes:
    """Return what the other end wrote, up to *word*."""
    found = b""
    while word not in found:
        found += os.read(fd, 4096)
    return found


def test_what_is_said_is_on_each_console_and_either_may_answer() -> None:
    """One program; a console that went away, and a line that nobody reads, take nothing from the others."""
    consoles = load()
    screen, line, gone, unread = (pty.openpty() for _ in range(4))
    fds = [consoles.open_console(Path(os.ttyname(slave))) for _, slave in (screen, line, gone, unread)]
    assert None not in fds
    os.close(gone[0])
    codes: list[int] = []
    run = threading.Thread(target=lambda: codes.append(consoles.run([sys.executable, "-c", ECHOES], fds)))
    run.start()
    try:
        for master in (screen[0], line[0]):
            assert b"os.terminal_size(columns=80, lines=24)\r\n" in read_until(master, b"lines=24)\r\n")
        os.write(line[0], b"hello\r")
        # The terminal of the program echoes, on both, and says what it got.
        for master in (screen[0], line[0]):
            assert b"hello\r\ngot hello\r\n" in read_until(master, b"got hello\r\n")
        run.join(60)
        assert codes == [7]
    finally:
        run.join(60)
        for fd in {*fds, *screen, *line, gone[1], *unread}:
            os.close(fd)


def test_a_console_that_no_board_has_is_passed_over(tmp_path: Path) -> None:
    """A kernel names serial ports that are not there; a file is none either."""
    consoles = load()
    (tmp_path / "file").touch()
    assert consoles.open_console(tmp_path / "file") is None
    assert consoles.open_console(tmp_path / "absent") is None
    assert consoles.consoles("ttyS0 tty0\n") == [Path("/dev/ttyS0"), Path("/dev/tty1")]


def test_a_console_is_raw() -> None:
    """The program's own terminal echoes and makes lines; a second one would do both twice."""
    consoles = load()
    master, slave = pty.openpty()
    fd = consoles.open_console(Path(os.ttyname(slave)))
    assert fd is not None
    _, output, _, local, *_ = termios.tcgetattr(slave)
    assert not local & (termios.ECHO | termios.ICANON | termios.ISIG)
    assert not output & termios.OPOST
    for each in (master, slave, fd):
        os.close(each)


def test_systemd_reads_the_units(tmp_path: Path) -> None:
    """And what they start is in the image: laid over it, or a program of the agent."""
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("no systemd-analyze here")
    for unit in UNITS.glob("*.service"):
        (tmp_path / unit.name).write_text(
            unit.read_text("utf-8").replace("/usr/lib/itl/", f"{ROOT}/overlay/usr/lib/itl/"), "utf-8"
        )
    made = sorted(tmp_path.glob("*.service"))
    assert len(made) == 2
    done = subprocess.run(
        [program, "verify", "--man=no", *map(str, made)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    told = [line for line in done.stderr.split("\n") if any(unit.name in line for unit in made)]
    assert told == []


@pytest.mark.parametrize("script", ["init", "uki.sh", "disk.sh", "overlay/usr/lib/itl/medium"])
def test_scripts_are_those_of_a_small_shell(script: str) -> None:
    """Busybox and dash run them: no word of bash."""
    done = subprocess.run(["sh", "-n", str(ROOT / script)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
