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

from attestation.errors import RequestInvalid

NAME: Final = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
MOST: Final = 24
"""Letters of a name: tables are called `extension_<name>_…`, and PostgreSQL cuts names after 63."""
_ENDING: Final = ".txt"
"""Ends the name of each template: none of them is code before it has a name."""


def rendered(name: str) -> Mapping[str, str]:
    """Return the files of the extension *name*, by their path.

    Raises:
        RequestInvalid: No extension can be called so.
    """
    if len(name) > MOST or not NAME.fullmatch(name):
        raise RequestInvalid(f"{name!r}: at most {MOST} small letters, digits and _, the first a letter")
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
