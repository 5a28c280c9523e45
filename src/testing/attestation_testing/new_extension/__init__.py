"""A new extension of the service, written from files that hold `$name` where its name is to stand.

The package is whole: `pip install` it, name it in `ITL_EXTENSIONS`, and it serves. Its tests are the conformance suite
(`attestation_testing.extension_suite`) and one of its own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from string import Template
from typing import Final

from attestation.api import operations
from attestation.api.operation import Operation
from attestation.errors import RequestInvalid
from attestation.machines import ExtensionEvent

NAME: Final = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
MOST: Final = 24
"""Letters of a name: tables are called `extension_<name>_…`, and PostgreSQL cuts names after 63."""
OURS: Final = frozenset(("agent", "cli", "extensions", "operator", "service", "testing", "web"))
"""Each is a distribution of ours with `attestation-` before it: one of its name would take its place."""
_ENDING: Final = ".txt"
"""Ends the name of each template: none of them is code before it has a name."""


def demand_free(name: str) -> None:
    """Refuse a *name* that the service would skip, or that would take the place of what is installed.

    Raises:
        RequestInvalid: It is the service's.
    """
    if name in OURS:
        raise RequestInvalid(f"attestation-{name} is a distribution of ours")
    if name in _first_words():
        raise RequestInvalid(f"/api/v1/{name} is of the service")
    try:
        ExtensionEvent(f"{name}.cleared")
    except ValueError:
        raise RequestInvalid(f"events called {name}. are of the service") from None


def _first_words() -> frozenset[str]:
    """Return the first words of the paths of the service."""
    declared = (vars(kind).values() for kind in vars(operations).values() if isinstance(kind, type))
    paths = (each.path for members in declared for each in members if isinstance(each, Operation))
    return frozenset(path.strip("/").split("/")[0] for path in paths)


def rendered(name: str) -> Mapping[str, str]:
    """Return the files of the extension *name*, by their path.

    Raises:
        RequestInvalid: No extension can be called so.
    """
    if len(name) > MOST or not NAME.fullmatch(name):
        raise RequestInvalid(f"{name!r}: at most {MOST} small letters, digits and _, the first a letter")
    demand_free(name)
    words = {
        "name": name,
        "package": f"attestation_{name}",
        "dashed": name.replace("_", "-"),
        "upper": name.upper(),
        "title": "".join(word.capitalize() for word in name.split("_")),
    }
    found: dict[str, str] = {}

    def walk(folder: Traversable, path: str) -> None:
        for each in sorted(folder.iterdir(), key=lambda each: each.name):
            here = f"{path}{each.name.removesuffix(_ENDING)}"
            if each.is_dir():
                walk(each, f"{here}/")
            elif each.name.endswith(_ENDING):
                text = each.read_text(encoding="utf-8")
                at = here.replace("package/", f"{words['package']}/").replace("test_name", f"test_{name}")
                found[at] = Template(text).substitute(words)

    walk(files(__name__) / "template", "")
    return found


def write(name: str, folder: Path) -> list[Path]:
    """Write the extension *name* into *folder*, which must not exist or be empty; return its files.

    Raises:
        RequestInvalid: The name or the folder cannot be used.
    """
    found = rendered(name)
    try:
        if folder.exists() and any(folder.iterdir()):
            raise RequestInvalid(f"{folder} is not empty")
        for path, text in found.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text, encoding="utf-8")
    except OSError as e:
        raise RequestInvalid(f"{folder}: {e.strerror}") from e
    return [folder / path for path in found]
