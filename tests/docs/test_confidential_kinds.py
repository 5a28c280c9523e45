"""docs/kubernetes/confidential-kinds.md says what the kinds of attestation runs are."""

from __future__ import annotations

import re

from ruamel.yaml import YAML

from tests.docs.pages import text
from tests.fixtures.attestation_kinds import SEED
from tools.kinds_page import MARK, reference

PAGE = text("docs/kubernetes/confidential-kinds.md")


def test_the_reference_is_that_of_the_models() -> None:
    """Who changes a model writes it anew: `python -m tools.kinds_page`."""
    _, mark, behind = PAGE.partition(MARK)
    assert mark
    assert behind == reference("confidential-kinds.md")


def test_the_example_is_a_run() -> None:
    """That of the seed, as the tests have it."""
    [example] = re.findall(r"```yaml\n(.*?)```", PAGE, flags=re.DOTALL)
    assert YAML(typ="safe", pure=True).load(example) == SEED
