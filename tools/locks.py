"""deploy/locks: what each installable needs, and nothing else, cut out of requirements.lock.

A server that holds CA keys need not have pytest beside them. Nothing is resolved here and nothing is fetched: each
lock is those blocks of requirements.lock to which the needs of a member lead, so versions and hashes are the tested
ones. Needs the standard library only: `./dev lock` runs it before there is an environment.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LOCKS = ROOT / "deploy/locks"
INSTALLABLES = ("service", "agent", "cli", "extensions", "operator", "web")
BUILD = "build"
"""What makes wheels of all members: their build systems, so that not even those come without a hash."""

_BLOCK = re.compile(r"^(?=[a-z0-9])", re.MULTILINE)
_VIA = re.compile(r"^ +# (?:via|  ) ?([a-z0-9][a-z0-9._-]*)$", re.MULTILINE)
_NEED = re.compile(r"([A-Za-z0-9._-]+)(?:\[([^\]]*)\])?")
_OURS = "itl-attestation-"


ELSEWHERE = {("psycopg", "tzdata")}
"""Who needs whom on Windows only, which a lock does not say where somebody else needs it everywhere."""


def normal(name: str) -> str:
    """Return the one spelling of a distribution's name (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def blocks_of(lock: str) -> dict[str, str]:
    """Return the blocks of a lock by name: pin, marker, hashes, and who needs it."""
    return {
        normal(block.split("==")[0].split("[")[0]): block for block in _BLOCK.split(lock) if "==" in block
    }


def needs_of(blocks: dict[str, str]) -> dict[str, set[str]]:
    """Return what each distribution of a lock needs itself, by the words `via` of the lock."""
    needs: dict[str, set[str]] = {name: set() for name in blocks}
    for name, block in blocks.items():
        for parent in _VIA.findall(block):
            if parent in needs and (parent, name) not in ELSEWHERE:
                needs[parent].add(name)
    return needs


def reached(blocks: dict[str, str], names: Iterable[str]) -> set[str]:
    """Return *names* and all that they lead to, by the words `via` of the lock.

    Raises:
        KeyError: A name that the lock does not have.
    """
    needs = needs_of(blocks)
    found: set[str] = set()
    todo = {normal(name) for name in names}
    while todo:
        name = todo.pop()
        found.add(name)
        todo |= needs[name] - found
    return found


def project(member: str) -> dict[str, Any]:
    """Return the pyproject.toml of a member."""
    return tomllib.loads((ROOT / "src" / member / "pyproject.toml").read_text(encoding="utf-8"))


def wanted(member: str, extra: str = "") -> set[str]:
    """Return the names that a member asks for, those that it asks for through our other members among them."""
    said = project(member)["project"]
    lines = said["optional-dependencies"][extra] if extra else said["dependencies"]
    names: set[str] = set()
    for line in lines:
        found = _NEED.match(line)
        assert found is not None, line
        name, extras = normal(found[1]), [e.strip() for e in (found[2] or "").split(",") if e.strip()]
        if name.startswith(_OURS):
            other = name.removeprefix(_OURS)
            names |= wanted(other).union(*(wanted(other, extra) for extra in extras))
        else:
            names.add(name)
    return names


def locks(lock: str) -> dict[str, str]:
    """Return every lock by the name of its file, from the text of requirements.lock.

    An extra has a file of its own, with what it adds: nobody installs what they do not use.
    """
    blocks = blocks_of(lock)
    chosen: dict[str, set[str]] = {}
    for member in INSTALLABLES:
        base = chosen[member] = reached(blocks, wanted(member))
        for extra in project(member)["project"].get("optional-dependencies", {}):
            chosen[f"{member}-{extra}"] = reached(blocks, wanted(member, extra)) - base
    builders = {
        need for member in ("sdk", *INSTALLABLES) for need in project(member)["build-system"]["requires"]
    }
    chosen[BUILD] = reached(blocks, (found[1] for need in builders if (found := _NEED.match(need))))
    return {
        f"{name}.lock": "".join(_bare(blocks[n]) for n in sorted(names)) for name, names in chosen.items()
    }


def _bare(block: str) -> str:
    """Return a block without who needs it: most of those are not in the lock that it is cut for."""
    return "".join(line for line in block.splitlines(keepends=True) if not line.lstrip().startswith("#"))


def main() -> int:
    """Write all locks anew."""
    LOCKS.mkdir(parents=True, exist_ok=True)
    for old in LOCKS.glob("*.lock"):
        old.unlink()
    for name, text in locks((ROOT / "requirements.lock").read_text(encoding="utf-8")).items():
        (LOCKS / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
