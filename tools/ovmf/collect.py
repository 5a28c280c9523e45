"""Copy the evidence of all boots from a working folder into the project's vectors.

    python tools/ovmf/collect.py WORK [TARGET]

What belongs to a machine (EK, its certificate, AK) is kept once per machine, everything else once per boot. The
kernel, shim, GRUB and firmware that ran stay where they are: nothing of others is copied.
"""

from __future__ import annotations

import hashlib
import shutil
import sys
from pathlib import Path

TARGET = Path(__file__).parents[2] / "tests" / "vectors" / "eventlog" / "ovmf"
_CHANGES = ("again", "dbx", "kernel", "cmdline", "initrd", "ima", "mok")
BOOTS = {
    "n1": ("sb-off", "sb-on", *(f"sb-on-{what}" for what in _CHANGES)),
    "n2": ("uki", "uki-kernel"),
}
OF_THE_MACHINE = ("ak.tpm2b_public", "ak.name", "ek.tpm2b_public", "ekcert-rsa2048.nv.der")


def collect(work: Path, target: Path) -> None:
    """Replace everything below *target* but README.md by what the boots in *work* gave."""
    for machine, boots in BOOTS.items():
        shutil.rmtree(target / machine, ignore_errors=True)
        for boot in boots:
            out = work / "build" / machine / boot / "out"
            place = target / machine / boot
            place.mkdir(parents=True)
            for path in sorted(out.iterdir()):
                if path.name not in OF_THE_MACHINE:
                    shutil.copyfile(path, place / path.name)
                    continue
                once = target / machine / path.name
                if once.exists() and once.read_bytes() != path.read_bytes():
                    raise SystemExit(f"{path} changed between two boots of {machine}")
                shutil.copyfile(path, once)
    authority = work / "build" / "ca"
    shutil.copyfile(authority / "issuercert.pem", target / "issuer.pem")
    shutil.copyfile(authority / "swtpm-localca-rootca-cert.pem", target / "root.pem")
    shutil.copyfile(work / "build" / "versions.txt", target / "versions.txt")
    write_sums(target)


def write_sums(target: Path) -> None:
    """Pin the bytes of every file but our words and code about them."""
    ours = (".py", ".pyc", ".md")
    found = (p for p in target.rglob("*") if p.is_file() and p.suffix not in ours)
    files = sorted(p for p in found if p.name != "SHA256SUMS")
    lines = [
        f"{hashlib.sha256(p.read_bytes()).hexdigest()}  {p.relative_to(target).as_posix()}\n" for p in files
    ]
    (target / "SHA256SUMS").write_text("".join(lines))


if __name__ == "__main__":
    collect(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else TARGET)
