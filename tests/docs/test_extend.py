"""docs/extend: the newest kind of evidence and the newest extension are what the pages say."""

from __future__ import annotations

import re

from attestation.appraisal.kind import Kind
from attestation_testing.extension_suite import ExtensionSuite
from attestation_testing.new_extension import rendered
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


EXTENSION = text("docs/extend/extensions.md")


def test_the_page_of_an_extension_shows_what_the_command_writes() -> None:
    """Each file whole, but for its README: what the integration test installs and runs is what people read."""
    shown = dict(
        re.findall(r"^`([\w/.]+)`:\n\n```\w+\n(.*?)^```$", EXTENSION, flags=re.MULTILINE | re.DOTALL)
    )
    written = dict(rendered("arrivals"))
    assert "ITL_EXT_ARRIVALS_MOST" in written.pop("README.md")
    assert shown == written


def test_the_page_of_an_extension_names_every_test_of_the_suite() -> None:
    """In their order."""
    told = re.findall(r"^\| `(test_\w+)` \|", EXTENSION, flags=re.MULTILINE)
    assert told == [name for name in vars(ExtensionSuite) if name.startswith("test_")]
