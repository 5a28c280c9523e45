"""What ARCHITECTURE.md says of the code is so."""

from __future__ import annotations

import ast
import re
import tomllib
from itertools import pairwise

import pytest

from tests.docs.pages import ROOT, text

FRAMES = (
    ("service/attestation_service/routing/openapi.py", "route.endpoint", "endpoint"),
    ("service/attestation_service/attest/handlers.py", "attest", "handler"),
    ("service/attestation_service/attest/handlers.py", "_attest", "_attest"),
    ("service/attestation_service/attest/judging.py", "judge", "judge"),
    ("sdk/attestation/appraisal/appraise.py", "appraise", "res.appraise"),
    ("sdk/attestation/appraisal/tpm/kind.py", "_TPM.verify", "kind.verify"),
    ("sdk/attestation/evidence/tpm_quote.py", "verify", "tpm_quote.verify"),
)
"""Where each stands, what it is, and how the one before it calls it."""


def _calls(where: str, function: str) -> set[str]:
    """Return what *function* of a module, or a method as `Class.method`, calls, as it is written there."""
    body: ast.AST = ast.parse((ROOT / "src" / where).read_text(encoding="utf-8"))
    for name in function.split("."):
        (body,) = (node for node in ast.iter_child_nodes(body) if getattr(node, "name", None) == name)
    return {ast.unparse(node.func) for node in ast.walk(body) if isinstance(node, ast.Call)}


def test_an_attestation_passes_the_frames_that_are_told() -> None:
    """Each of them calls the next one itself: a frame that comes between is told, or removed."""
    told = re.search(r"^Seven frames of ours decide: (.+?)\.$", text("ARCHITECTURE.md"), flags=re.MULTILINE)
    assert told is not None
    assert re.findall(r"`(\w+)`", told[1]) == [name.rpartition(".")[2] for _, name, _ in FRAMES]
    for (where, function, _), (_, _, following) in pairwise(FRAMES):
        assert following in _calls(where, function), f"{where}: {function} does not call {following}"


@pytest.mark.parametrize("package", ["src/sdk/attestation", "src/service/attestation_service"])
def test_the_tree_names_what_there_is(package: str) -> None:
    """Each folder and module of a package once, and no other: the tree is the diagram."""
    told = re.search(rf"^{package}/ .*?(?=^\w)", text("ARCHITECTURE.md"), flags=re.MULTILINE | re.DOTALL)
    assert told is not None
    # Names stand before the words about them, in lines that begin with four spaces.
    lines = re.findall(r"^ {4}(\S.*?)(?:  +\S.*)?$", told[0], flags=re.MULTILINE)
    named = [name.rstrip("/") for line in lines for name in line.split()]
    there = {
        path.name
        for path in (ROOT / package).iterdir()
        if (path / "__init__.py").exists() or (path.suffix == ".py" and path.stem != "__init__")
    }
    assert sorted(named) == sorted(there)


def test_the_tree_stands_in_the_order_of_the_contract() -> None:
    """The service is drawn from the top down, as import-linter proves it."""
    contracts = tomllib.loads(text("pyproject.toml"))["tool"]["importlinter"]["contracts"]
    (layers,) = (each["layers"] for each in contracts if each.get("containers") == ["attestation_service"])
    tree = re.search(r"^src/service/.*?(?=^src/)", text("ARCHITECTURE.md"), flags=re.MULTILINE | re.DOTALL)
    assert tree is not None
    place = {
        name: line
        for line, row in enumerate(tree[0].splitlines())
        for name in re.findall(r"\w+(?=/|\.py)", row)
    }
    drawn = [[place[name] for name in re.split(r" [|:] ", layer)] for layer in layers]
    for above, below in pairwise(drawn):
        assert max(above) <= min(below)
