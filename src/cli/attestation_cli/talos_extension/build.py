"""The whole of it, in order: look at Python, open the wheels, compile, find the libraries, write the image."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

from attestation.errors import RequestInvalid
from attestation_cli.talos_extension import documents, elf, image, interpreter, libraries, wheels
from attestation_cli.talos_extension.compiled import compiled
from attestation_cli.talos_extension.interpreter import Interpreter
from attestation_cli.talos_extension.libraries import Origin
from attestation_cli.talos_extension.tree import File, Tree

MAX_BYTES: Final = 60_000_000
"""What all files of an extension may hold: Talos carries them in its initramfs, in memory."""

CONTAINER: Final = f"rootfs/usr/local/lib/containers/{documents.NAME}"
SERVICE: Final = f"rootfs/usr/local/etc/containers/{documents.NAME}.yaml"
PACKAGES: Final = "usr/share/itl-attestation/packages"
PUBLIC_MEMBERS: Final = frozenset(
    {
        *("kty", "use", "key_ops", "alg", "kid", "x5u", "x5c", "x5t", "x5t#S256", "exp", "iat", "nbf"),
        *("crv", "x", "y", "n", "e", "pub"),
    }
)
"""Of a JWK that may be read by everybody: RFC 7517 §4, the public ones of RFC 7518 §6, and `pub` of AKP keys."""
PROGRAMS: Final = {"itl-tpm-register": "register", "attestation-agent": "main"}
"""Commands of the container, and the function of `attestation_agent.main` that each is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What an extension is made of.

    Args:
        wheels: Folders with wheels.
        lock: Names what the agent depends on, each with its hashes; several locks are one text.
        python: The Python that goes in.
        talos: The versions of Talos that it is for, as a range.
        server_url: Address of the attestation service, or None where a configuration will say it.
        service_keys: JWK set of the attestation service, to be pinned; or None.
    """

    wheels: tuple[Path, ...]
    lock: str
    python: Path
    talos: str
    server_url: str | None
    service_keys: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """What was built."""

    digest: str
    version: str
    architecture: str
    size_bytes: int
    layer_bytes: int
    parts: dict[str, int]


def build(wanted: Wanted, output: Path) -> Made:
    """Write the extension as an OCI layout into *output*.

    Raises:
        RequestInvalid: Something is missing, fits nothing, or is too large; nothing is written then.
    """
    python = interpreter.look_at(wanted.python)
    opened = wheels.gather(list(wanted.wheels), wanted.lock, python)
    container = _container(python, opened, wanted)
    version = next(wheel.version for wheel in opened if wheel.name == wheels.OURS[0])
    tree = container.below(CONTAINER)
    tree.add("manifest.yaml", File(data=documents.manifest(version=version, talos=wanted.talos)))
    service = documents.service(server_url=wanted.server_url, pinned=wanted.service_keys is not None)
    tree.add(SERVICE, File(data=service))
    parts = _parts(container)
    _refuse_size(tree, parts)
    _refuse_own_places(tree, python, [*wanted.wheels, output])
    made = image.image(
        tree,
        machine=python.machine,
        annotations={
            "org.opencontainers.image.title": documents.NAME,
            "org.opencontainers.image.version": version,
            "org.opencontainers.image.licenses": "Apache-2.0",
        },
    )
    image.write(made, output)
    return Made(
        digest=made.digest,
        version=version,
        architecture=image.ARCHITECTURES[python.machine],
        size_bytes=tree.size_bytes,
        layer_bytes=max(len(data) for data in made.blobs.values()),
        parts=parts,
    )


def _container(python: Interpreter, opened: list[wheels.Wheel], wanted: Wanted) -> Tree:
    """Return the root of the container."""
    tree = Tree(empty=set(documents.PLACES))
    sources = python.sources()
    binaries: dict[str, Origin] = {}
    for place, path in python.binaries().items():
        binaries[place] = Origin(file=path, data=_stripped(path))
    for wheel in opened:
        for place, file in wheel.members.items():
            if place.endswith(".py"):
                sources[f"{PACKAGES}/{place}"] = file.data
            elif file.data.startswith(elf.MAGIC):
                binaries[f"{PACKAGES}/{place}"] = Origin(file=None, data=file.data)
            else:
                tree.add(f"{PACKAGES}/{place}", file)
    for place, data in compiled(sources, python).items():
        tree.add(place, File(data=data))
    found = libraries.closure(binaries, python, libraries.standard_folders(python))
    for place, origin in binaries.items():
        tree.add(place, File(data=origin.data, executable=True))
    for place, origin in found.items():
        tree.add(place, File(data=_stripped(origin.file) if origin.file else origin.data, executable=True))
    for name, function in PROGRAMS.items():
        tree.add(f"usr/bin/{name}", File(data=_program(function), executable=True))
    # Without it glibc asks DNS before it looks into the machine's own list.
    tree.add("etc/nsswitch.conf", File(data=b"hosts: files dns\n"))
    if wanted.service_keys is not None:
        tree.add(documents.KEYS, File(data=_public(wanted.service_keys)))
    python.add_licence(tree)
    return tree


def _program(function: str) -> bytes:
    """Return a program that asks nothing of its surroundings: no variable, no package of anybody else.

    -I and -S: neither PYTHONPATH nor packages of a site are looked at; -B: what is imported is not written down.
    """
    return (
        f"#!/{interpreter.PROGRAM} -ISB\n"
        "import sys\n"
        f"sys.path.append('/{PACKAGES}')\n"
        f"from attestation_agent.main import {function}\n"
        f"sys.exit({function}())\n"
    ).encode("ascii")


def _stripped(path: Path) -> bytes:
    """Return a compiled file of this computer without its symbol table, where it has one and binutils are here."""
    data = path.read_bytes()
    strip = shutil.which("strip")
    if not elf.parse(data, str(path)).symbols or strip is None:
        return data
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "stripped"
        command = [strip, "--strip-unneeded", "-o", str(out), str(path)]
        try:
            subprocess.run(command, check=True, timeout=60, capture_output=True)  # noqa: S603 -- strip, in a list: no shell
        except subprocess.SubprocessError as e:
            raise RequestInvalid(f"{path} could not be stripped: {e}") from e
        return out.read_bytes()


def _public(jwks: bytes) -> bytes:
    """Return the public members of a JWK set: what goes into an image is read by everybody.

    Raises:
        RequestInvalid: It is no set of keys, or holds one that is not public.
    """
    try:
        keys: list[dict[str, Any]] = json.loads(jwks)["keys"]
        kinds = {key["kty"] for key in keys}
    except (ValueError, KeyError, TypeError, RecursionError) as e:
        raise RequestInvalid("the service's keys: not a JWK set") from e
    # By name what may stand there, not what may not: the factors of an RSA key are its secret as well.
    if not kinds or kinds & {"oct"} or any(set(key) - PUBLIC_MEMBERS for key in keys):
        raise RequestInvalid("the service's keys: only public keys may stand in an image")
    return json.dumps({"keys": keys}, sort_keys=True).encode("utf-8")


def _refuse_size(tree: Tree, parts: Mapping[str, int]) -> None:
    if tree.size_bytes > MAX_BYTES:
        told = ", ".join(f"{name} {size / 1e6:.1f}" for name, size in parts.items())
        size = f"{tree.size_bytes / 1e6:.1f} MB, more than {MAX_BYTES / 1e6:.0f}"
        raise RequestInvalid(f"the extension would hold {size}: {told}")


def _refuse_own_places(tree: Tree, python: Interpreter, folders: list[Path]) -> None:
    """Refuse what names a folder of this computer, which is nobody's business and no two builders' alike.

    Raises:
        RequestInvalid: A file holds such a path.
    """
    places = {str(folder.resolve()) for folder in folders}
    if python.prefix.is_relative_to(Path.home()):
        places.add(str(python.prefix))
    tokens = [place.encode() for place in sorted(places) if place.count("/") > 1]
    for at, file in tree.files.items():
        for token in tokens:
            if token in file.data:
                raise RequestInvalid(
                    f"{PurePosixPath(at).name} holds the path {token.decode()} of this computer; "
                    "name a Python that is installed for all, as --python /usr/bin/python3"
                )


def _parts(container: Tree) -> dict[str, int]:
    """Return how much of the room each part takes."""
    parts = dict.fromkeys(("packages", "library", "program", "libraries"), 0)
    for place, file in container.files.items():
        if place.startswith(PACKAGES):
            part = "packages"
        elif "/python3." in f"/{place}":
            part = "library"
        elif place == interpreter.PROGRAM:
            part = "program"
        else:
            part = "libraries"
        parts[part] += len(file.data)
    return parts
