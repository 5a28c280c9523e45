"""The shared libraries that the compiled files of the extension need, and theirs, as the loader would find them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from attestation.errors import RequestInvalid
from attestation_cli.talos_extension import elf
from attestation_cli.talos_extension.interpreter import Interpreter

BESIDE = ("libgcc_s.so.1",)
"""What glibc loads by itself: to end a thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a compiled file comes from.

    Args:
        file: On this computer; None where it came out of a wheel.
        data: Its content.
    """

    file: Path | None
    data: bytes


def standard_folders(python: Interpreter) -> tuple[Path, ...]:
    """Return where the loader of this system looks by itself (ld.so(8)), Debian's own folders first."""
    names = [f"{folder}/{python.multiarch}" for folder in ("/lib", "/usr/lib") if python.multiarch]
    return tuple(Path(name) for name in (*names, "/lib64", "/usr/lib64", "/lib", "/usr/lib"))


def closure(
    binaries: Mapping[str, Origin], python: Interpreter, folders: tuple[Path, ...]
) -> dict[str, Origin]:
    """Return the libraries that *binaries* need and that are not among them, by their places in the container.

    A library keeps the folder in which it was found: there the loader looks for it, which is one of them itself.

    Args:
        binaries: Compiled files by their places.
        python: The program among them.
        folders: Where the loader looks by itself.

    Raises:
        RequestInvalid: A library is missing, or a file is for another machine.
    """
    found: dict[str, Origin] = {}
    todo = [(place, origin, ()) for place, origin in sorted(binaries.items())]
    loader: str | None = None
    while todo:
        place, origin, _ = todo.pop(0)
        compiled = elf.parse(origin.data, place)
        if compiled.machine != python.machine:
            raise RequestInvalid(f"{place} is compiled for {compiled.machine}, Python for {python.machine}")
        wanted = list(compiled.needed)
        if compiled.loader is not None:
            loader = compiled.loader
            wanted += BESIDE
            found.setdefault(loader.lstrip("/"), _read(Path(loader)))
        for name in wanted:
            if loader is not None and name == PurePosixPath(loader).name:
                continue
            if _bundled(name, place, compiled, binaries):
                continue
            at = _on_this_computer(name, origin, compiled, folders)
            if at is None:
                raise RequestInvalid(f"{place} needs {name}, which is not on this computer")
            target = str(at).lstrip("/")
            if target not in found:
                found[target] = _read(at)
                todo.append((target, found[target], ()))
    if loader is None:
        raise RequestInvalid("the program has no loader: a Python that is linked statically is not supported")
    return found


def _bundled(name: str, place: str, compiled: elf.Compiled, binaries: Mapping[str, Origin]) -> bool:
    """Whether a library came in the wheel of the file that needs it."""
    here = PurePosixPath(place).parent
    for folder in compiled.folders:
        parts: list[str] = []
        for part in PurePosixPath(folder.replace("${ORIGIN}", "$ORIGIN").replace("$ORIGIN", str(here))).parts:
            parts = parts[:-1] if part == ".." else [*parts, part]
        if "/".join([*parts, name]) in binaries:
            return True
    return False


def _on_this_computer(
    name: str, origin: Origin, compiled: elf.Compiled, folders: tuple[Path, ...]
) -> Path | None:
    named = [folder for folder in compiled.folders if origin.file is not None]
    if origin.file is not None:
        here = str(origin.file.parent)
        named = [folder.replace("${ORIGIN}", here).replace("$ORIGIN", here) for folder in named]
    for folder in (*map(Path, named), *folders):
        if (folder / name).is_file():
            return folder / name
    return None


def _read(path: Path) -> Origin:
    try:
        return Origin(file=path.resolve(strict=True), data=path.read_bytes())
    except OSError as e:
        raise RequestInvalid(f"{path}: {e.strerror}") from e
