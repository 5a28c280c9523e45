"""docs/kubernetes/confidential-kinds.md says what the kinds of attestation runs are."""

from __future__ import annotations

import re

import pytest
from ruamel.yaml import YAML

from attestation_operator.crds import DEFINITIONS
from attestation_operator.runs.kinds import faults
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


@pytest.mark.parametrize(
    ("page", "kind"),
    [
        ("installing-runs", "AttestationPolicy"),
        ("runs", "ConfidentialAttestationRun"),
        ("schedules", "AttestationSchedule"),
    ],
)
def test_what_a_page_has_one_apply_is_as_its_kind_allows(page: str, kind: str) -> None:
    """Examples are copied: a member that is called otherwise meets an API server that drops it, or refuses."""
    blocks = re.findall(r"```yaml\n(apiVersion: .*?)```", text(f"docs/kubernetes/{page}.md"), flags=re.DOTALL)
    [example] = [YAML(typ="safe", pure=True).load(each) for each in blocks]
    [of] = [each.kind for each in DEFINITIONS if each.kind.kind == kind]
    assert example["kind"] == kind
    assert faults(of, example) == ()
