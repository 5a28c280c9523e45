"""The agent and what it depends on: wheels, each with a hash that was given beforehand.

A hash stands in a lock (`agent.lock` and `agent-talos.lock` of `deploy/locks`), or, for the wheels of this project,
which no lock can name, in the file SHA256SUMS beside them, as `./dev build` writes it.
"""

# Algorithms for: digest
from __future__ import annotations

import hashlib
import io
import re
import subprocess
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from attestation.errors import RequestInvalid
from attestation_cli.talos_extension.interpreter import Interpreter
from attestation_cli.talos_extension.tree import File

OURS: Final = ("itl-attestation-agent", "itl-attestation-sdk")
EXTRAS: Final = {"itl-attestation-agent": "talos", "itl-attestation-sdk": "client"}
"""What of these is needed beside what they need everywhere."""

SUMS: Final = "SHA256SUMS"

UNUSED: Final = frozenset({"pycparser"})
"""cffi reads C with it, which happens where bindings are compiled; those of cryptography are."""

ONLY: Final = {"cffi": re.compile(r"_cffi_backend\.[^/]*so$")}
"""Of these, only what is loaded: the bindings are compiled and ask for their back end alone."""

UNREACHED: Final = {
    "itl-attestation-agent": ("attestation_agent/kiosk/",),
    "itl-attestation-sdk": ("attestation/store/", "attestation/talos/schemas/"),
}
"""Of these, what is another program, or asks for packages that no lock of the agent has: a database, schemas."""

_BLOCK = re.compile(r"^(?=[a-z0-9])", re.MULTILINE)
_PIN = re.compile(r"([a-z0-9._-]+)==([^\s;\\]+)")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_NAME = re.compile(
    r"(?P<name>[A-Za-z0-9_.]+)-(?P<version>[^-]+)(?:-\d[^-]*)?-(?P<python>[^-]+)-(?P<abi>[^-]+)-(?P<platform>[^-]+)\.whl"
)
_MANYLINUX = {"manylinux1": (2, 5), "manylinux2010": (2, 12), "manylinux2014": (2, 17)}
_NEEDS = re.compile(r"^Requires-Dist: *([A-Za-z0-9._-]+)([^;\n]*)(;.*)?$", re.MULTILINE)
_DOCUMENTED = re.compile(r"[^/]+\.dist-info/(METADATA|licenses/.+|LICEN[CS]E[^/]*|NOTICE[^/]*|AUTHORS[^/]*)$")
_FETCH_SECONDS: Final = 600
_MAX_BYTES: Final = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheel:
    """A wheel that was checked.

    Args:
        name: The one spelling of its distribution (PEP 503).
        members: What of it goes in, by its place among the packages.
        needs: What it asks for everywhere, by name.
    """

    name: str
    version: str
    members: Mapping[str, File]
    needs: tuple[str, ...]


def normal(name: str) -> str:
    """Return the one spelling of a distribution's name (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pins_of(lock: str) -> dict[str, frozenset[str]]:
    """Return what a lock names, each with the SHA-256 of the files that it may be.

    Raises:
        RequestInvalid: A line without a hash, or nothing at all.
    """
    pins: dict[str, frozenset[str]] = {}
    for block in _BLOCK.split(lock):
        if pin := _PIN.match(block):
            pins[normal(pin[1])] = frozenset(_HASH.findall(block))
    if not pins or not all(pins.values()):
        bare = ", ".join(name for name, hashes in pins.items() if not hashes) or "everything"
        raise RequestInvalid(f"the lock has no hash for {bare}")
    return pins


def sums_of(text: str) -> dict[str, str]:
    """Return the SHA-256 of each file that a SHA256SUMS names."""
    lines = (line.split(maxsplit=1) for line in text.splitlines())
    return {words[1].lstrip("*"): words[0] for words in lines if len(words) == 2}


def fetch(locks: Iterable[Path], folder: Path, python: Interpreter) -> None:
    """Have pip bring what the locks name, and nothing else, into *folder*.

    Raises:
        RequestInvalid: It could not.
    """
    words = "-m pip download --quiet --no-input --disable-pip-version-check --no-deps --require-hashes"
    options = ["--only-binary", ":all:", "--dest", str(folder)]
    options += [word for lock in locks for word in ("--requirement", str(lock))]
    command = [str(python.program), *words.split(), *options]
    try:
        done = subprocess.run(  # noqa: S603 -- a list, no shell: pip of the named Python
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_FETCH_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as e:
        raise RequestInvalid(f"the wheels could not be fetched: {e}") from e
    if done.returncode != 0:
        if "No module named pip" in done.stdout:
            raise RequestInvalid(
                f"{python.program} has no pip for --fetch: install it (Debian: python3-pip), or put the wheels "
                "that the locks name into a folder of --wheels and leave --fetch out"
            )
        raise RequestInvalid(f"pip could not fetch the wheels:\n{done.stdout[-2000:]}")


def gather(folders: list[Path], lock: str, python: Interpreter) -> list[Wheel]:
    """Return the wheels of the agent and of what the lock names, in the order of their names.

    Args:
        folders: Where wheels are.
        lock: The text of the lock.
        python: What they are to fit.

    Raises:
        RequestInvalid: One is missing, fits nothing here, or is not what its hash says.
    """
    pins = pins_of(lock)
    found: dict[str, list[Path]] = {}
    for folder in folders:
        for path in sorted(folder.glob("*.whl")):
            if said := _NAME.fullmatch(path.name):
                found.setdefault(normal(said["name"]), []).append(path)
    wheels = []
    for name in sorted({*OURS, *pins} - UNUSED):
        path = _chosen(name, found.get(name, []), python)
        data = path.read_bytes()
        allowed = pins.get(name) or _beside(path)
        if hashlib.sha256(data).hexdigest() not in allowed:
            where = "the lock" if name in pins else f"{SUMS} beside it"
            raise RequestInvalid(f"{path.name}: its SHA-256 is not in {where}")
        wheels.append(_opened(name, path.name, data))
    present = {wheel.name for wheel in wheels} | UNUSED
    for wheel in wheels:
        if missing := sorted(set(wheel.needs) - present):
            raise RequestInvalid(f"{wheel.name} needs {', '.join(missing)}, which the lock does not have")
    return wheels


def _beside(path: Path) -> frozenset[str]:
    """Return what the list beside a wheel says of it: who fills one folder vouches for nothing in another."""
    sums = path.with_name(SUMS)
    said = sums_of(sums.read_text(encoding="utf-8")).get(path.name) if sums.is_file() else None
    return frozenset({said} if said else ())


def _chosen(name: str, paths: list[Path], python: Interpreter) -> Path:
    """Return the best of the wheels of one distribution for *python*."""
    ranked = [(rank, path.name, path) for path in paths if (rank := _rank(path.name, python)) is not None]
    if name in OURS and len({_version(path) for _, _, path in ranked}) > 1:
        # No lock says which of them is meant, and the order of their names is none of versions.
        raise RequestInvalid(f"several versions of {name}: {', '.join(file for _, file, _ in ranked)}")
    if ranked:
        return max(ranked)[2]
    if not paths:
        raise RequestInvalid(
            f"there is no wheel of {name}: --wheels names the folder, --fetch brings those of the lock"
        )
    version, glibc = (".".join(map(str, numbers[:2])) for numbers in (python.version, python.glibc))
    here = f"CPython {version}, glibc {glibc}, {python.machine}"
    raise RequestInvalid(f"no wheel of {name} fits {here}: {', '.join(path.name for path in paths)}")


def _version(path: Path) -> str:
    said = _NAME.fullmatch(path.name)
    assert said is not None
    return said["version"]


def _rank(file: str, python: Interpreter) -> tuple[int, tuple[int, int]] | None:
    """Return how well a wheel fits, or None where it does not (PEP 425, PEP 600)."""
    said = _NAME.fullmatch(file)
    assert said is not None
    number = f"{python.version[0]}{python.version[1]}"
    ranks: list[int] = []
    for tag in said["python"].split("."):
        for abi in said["abi"].split("."):
            if abi == "none" and tag in ("py3", f"py{number}", f"cp{number}"):
                ranks.append(0)
            elif (
                abi == "abi3"
                and (older := re.fullmatch(r"cp3(\d+)", tag))
                and int(older[1]) <= python.version[1]
            ):
                ranks.append(1)
            elif abi == tag == f"cp{number}":
                ranks.append(2)
    platforms = [fit for tag in said["platform"].split(".") if (fit := _platform(tag, python)) is not None]
    return (max(ranks), max(platforms)) if ranks and platforms else None


def _platform(tag: str, python: Interpreter) -> tuple[int, int] | None:
    if tag == "any":
        return (0, 0)
    policy = tag.removesuffix(f"_{python.machine}")
    if policy == "linux":
        return python.glibc
    numbers = re.fullmatch(r"manylinux_(\d+)_(\d+)", policy)
    glibc = (int(numbers[1]), int(numbers[2])) if numbers else _MANYLINUX.get(policy)
    return glibc if glibc is not None and glibc <= python.glibc else None


def _opened(name: str, file: str, data: bytes) -> Wheel:
    """Return what of a wheel goes in: its modules and what they read, what it is, and its licences."""
    members: dict[str, File] = {}
    metadata = ""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if sum(info.file_size for info in archive.infolist()) > _MAX_BYTES:
                raise RequestInvalid(f"{file} holds more than {_MAX_BYTES >> 20} MiB")
            for info in sorted(archive.infolist(), key=lambda info: info.filename):
                place = re.sub(r"^[^/]+\.data/(purelib|platlib)/", "", info.filename)
                if info.is_dir() or ".data/" in place.partition("/")[0] + "/":
                    continue
                content = archive.read(info)
                if place.endswith(".dist-info/METADATA"):
                    metadata = content.decode("utf-8")
                if _goes_in(name, place):
                    members[place] = File(data=content)
    except (zipfile.BadZipFile, UnicodeDecodeError, KeyError, RuntimeError) as e:
        raise RequestInvalid(f"{file} is no wheel: {e}") from e
    extra = f"; extra == '{EXTRAS.get(name, '')}'"
    needs = tuple(
        normal(need[1])
        for need in _NEEDS.finditer(metadata)
        if need[3] is None or need[3].replace('"', "'") == extra
    )
    said = _NAME.fullmatch(file)
    assert said is not None
    return Wheel(name=name, version=said["version"], members=members, needs=needs)


def _goes_in(name: str, place: str) -> bool:
    if ".dist-info/" in place:
        return _DOCUMENTED.match(place) is not None
    if name in ONLY:
        return ONLY[name].match(place) is not None
    if place.startswith(UNREACHED.get(name, ())):
        return False
    # Types are for who checks programs; __pycache__ is nobody's.
    return not place.endswith((".pyi", "/py.typed", ".pyc"))
