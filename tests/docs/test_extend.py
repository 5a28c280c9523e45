"""docs/extend/adding-an-evidence-kind.md names every file that the newest kind touched, and tests that exist."""

from __future__ import annotations

import re

from attestation.appraisal.kind import Kind
from tests.docs.pages import ROOT, text

PAGE = text("docs/extend/adding-an-evidence-kind.md")
KIND = re.compile(r"ek_key_attestation|ek-key|tpm-ek-certify|KeyCertificationClaims")
"""How sources refer to it: module, member of policies, checks, word on the wire, claims."""


def test_every_file_that_knows_the_kind_is_named() -> None:
    """And none that does not: whoever follows the table has touched all, and looked at nothing in vain."""
    named = re.findall(r"\| `(src/[\w./]+\.py)` \|", PAGE)
    knows = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "src").rglob("*.py")
        if KIND.search(path.read_text(encoding="utf-8"))
    }
    assert len(named) == len(set(named))
    assert set(named) == knows


def test_every_member_of_a_kind_is_named() -> None:
    """Those of the protocol, in its order; and the toy that shows them is short."""
    members = [name for name in vars(Kind) if not name.startswith("_")]
    told = re.findall(r"^\| (`.+?) \|", PAGE.partition("| step |")[0], flags=re.MULTILINE)
    assert re.findall(r"`(\w+)", " ".join(told)) == members
    toy = (ROOT / "tests/contract/toy_kind.py").read_text(encoding="utf-8")
    assert len(toy.splitlines()) <= 120


def test_the_pages_that_tell_of_the_kind_are_named() -> None:
    """Protocol, evidence, policies, architecture: those that a reader of the new kind would look at."""
    for page in (
        "ARCHITECTURE.md",
        "docs/protocol/policy.md",
        "docs/protocol/node.md",
        "docs/operate/cryptography.md",
    ):
        assert KIND.search(text(page)), page
        assert page.rpartition("/")[2] in PAGE, page
    assert (ROOT / "docs/evidence/ek_key_attestation.md").is_file()


def test_what_it_refers_to_exists() -> None:
    """Each test file and each module."""
    for name in re.findall(r"`(tests/[\w/]+\.py)`", PAGE):
        assert (ROOT / name).is_file(), name
    for name in re.findall(r"`((?:store|attestation)/[\w/]+\.py)`", PAGE):
        assert list((ROOT / "src").glob(f"sdk/attestation/{name.removeprefix('attestation/')}")), name
    for name in ("errors.py", "problems.py", "measurements.py"):
        assert list((ROOT / "src").rglob(name)), name
