"""The policies that pages show are policies."""

from __future__ import annotations

import json
import re

import pytest

from attestation.reference import parse_policy
from attestation_cli.policy_file import read_policy
from tests.docs.pages import PAGES

EXAMPLES = [
    (page.name, block)
    for page in PAGES
    for block in re.findall(
        r"^```(?:yaml|json)\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    if re.search(r"^\W*format\W+itl-tpm-policy/1", block, re.MULTILINE)
]


def test_there_are_examples() -> None:
    """Or the next test shows nothing."""
    assert len([page for page, _ in EXAMPLES if page == "policies.md"]) == 2


@pytest.mark.parametrize(("page", "block"), EXAMPLES)
def test_every_example_is_a_policy(page: str, block: str) -> None:
    """What somebody copies can be stored, and JSON and YAML say the same."""
    document = read_policy(block, page)
    assert parse_policy(document).ref
    assert read_policy(json.dumps(document), page) == document
