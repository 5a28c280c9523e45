"""What ARCHITECTURE.md says of the code is so."""

from __future__ import annotations

import ast
import re
from itertools import pairwise

from tests.docs.pages import ROOT, text

FRAMES = (
    ("service/attestation_service/attest/routes.py", "attest"),
    ("service/attestation_service/attest/handlers.py", "attest"),
    ("service/attestation_service/attest/handlers.py", "_attest"),
    ("service/attestation_service/attest/handlers.py", "judge"),
    ("sdk/attestation/appraisal/appraise.py", "appraise"),
    ("sdk/attestation/evidence/tpm_quote.py", "verify"),
)


def _calls(where: str, function: str) -> set[str]:
    """Return what *function* of a module calls, by the last part of each name."""
    tree = ast.parse((ROOT / "src" / where).read_text(encoding="utf-8"))
    (body,) = (
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == function
    )
    called = (ast.unparse(node.func) for node in ast.walk(body) if isinstance(node, ast.Call))
    return {name.rpartition(".")[2] for name in called}


def test_an_attestation_passes_the_frames_that_are_told() -> None:
    """Each of them calls the next one itself: a frame that comes between is told, or removed."""
    told = re.search(r"^Six frames of ours decide: (.+?)\.$", text("ARCHITECTURE.md"), flags=re.MULTILINE)
    assert told is not None
    assert re.findall(r"`(\w+)`", told[1]) == [name for _, name in FRAMES]
    for (where, function), (_, following) in pairwise(FRAMES):
        assert following in _calls(where, function), f"{where}: {function} does not call {following}"
