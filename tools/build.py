"""`./dev build`: the wheel of each member and the bill of materials of each installable, the same bytes each time.

Needs what deploy/locks/build.lock names; fetches nothing. Hatchling writes the members of an archive in one order, with
one date and with two modes, whatever the clock, the umask and the file system say.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # started as a file on the page that installs

from tools import locks, sbom  # noqa: E402 -- found by the line above

MEMBERS = ("sdk", *locks.INSTALLABLES, "testing")


def main(arguments: list[str] | None = None) -> int:
    """Write wheels and bills into a folder, and print the SHA-256 of each as sha256sum does."""
    parser = argparse.ArgumentParser(prog="./dev build", description=__doc__.partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "dist", help="(default dist)")
    folder = parser.parse_args(arguments).folder
    folder.mkdir(parents=True, exist_ok=True)
    for old in (*folder.glob("itl_attestation_*.whl"), *folder.glob("itl-attestation-*.cdx.json")):
        old.unlink()
    digests: dict[str, str] = {}
    # Each in a process of its own, which has seen no other member.
    for member in MEMBERS:
        wheel = build(member, folder)
        digests[wheel.name] = hashlib.sha256(wheel.read_bytes()).hexdigest()
    wheels = {locks.normal(name.split("-")[0]): digest for name, digest in digests.items()}
    lock = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    for member in locks.INSTALLABLES:
        text = sbom.bill(member, lock, wheels).encode()
        name = f"itl-attestation-{member}.cdx.json"
        (folder / name).write_bytes(text)
        digests[name] = hashlib.sha256(text).hexdigest()
    told = "".join(f"{digest}  {name}\n" for name, digest in digests.items())
    (folder / "SHA256SUMS").write_text(told, encoding="utf-8")
    sys.stdout.write(told)
    return 0


def build(member: str, folder: Path) -> Path:
    """Return the wheel of a member, written into *folder*; end the program where it cannot be built."""
    environment = {name: value for name, value in os.environ.items() if name != "SOURCE_DATE_EPOCH"}
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder.resolve())],
        cwd=ROOT / "src" / member,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        sys.exit(f"{done.stdout}\nthe wheel of {member} could not be built")
    (wheel,) = folder.glob(f"itl_attestation_{member}-*.whl")
    return wheel


if __name__ == "__main__":
    sys.exit(main())
