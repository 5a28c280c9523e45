"""The policies that pages show are policies."""

from __future__ import annotations

import json
import re
from hashlib import sha256

import httpx
import pytest

from attestation.client.policy_text import read_policy
from attestation.reference import parse_policy
from tests.docs import screens
from tests.docs.pages import PAGES, text
from tests.unit.cli.stub import Stub, effective, failing, machine, pending, trial

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


MACHINE = screens.IDS[0]
ANSWERS = {
    "policy test talos.yaml --role worker-app": trial(
        policy="talos-1-9@1",
        machines=7,
        judged=7,
        passed=5,
        failed=2,
        without_evidence=0,
        reported=0,
        checks={
            name: {"passed": 6, "failed": 1, "flagged": 0, "reported": 0, "undecided": 0}
            for name in ("pcr4", "pcr7", "pcr11", "secure-boot")
        },
        failing=[
            failing(name, newly=True) | {"failed": checks, "at": screens._at(minutes=12)}
            for name, checks in (("w-4", "pcr7, secure-boot"), ("w-7", "pcr4, pcr11"))
        ],
    ),
    "policy activate talos-1-9@1 --role worker-app": pending(
        ("anna",),
        action="policy",
        approval_id=1,
        proposal_digest=sha256(b"1").hexdigest(),
        expires_at=screens._at(minutes=-10),
    ),
    "policy effective w-1": effective(MACHINE) | {
        "policy": "base@1+talos-1-9@1",
        "assigned": [
            {"scope": "fleet", "subject": "*", "policy": "base@1"},
            {"scope": "role", "subject": "worker-app", "policy": "talos-1-9@1"},
        ],
        "document": {
            "max_age_seconds": 300,
            "pcrs": {pcr: {"any_of": [sha256(pcr.encode()).hexdigest()]} for pcr in ("7", "11")},
            "secure_boot": {"required": True},
            "sources": {
                rule: {"policy": "talos-1-9@1", "mode": "report"}
                if rule.startswith("pcrs.")
                else {"policy": "base@1", "mode": "enforce"}
                for rule in ("max_age_seconds", "pcrs.7", "pcrs.11", "secure_boot.required")
            },
        },
    },
}  # fmt: skip


@pytest.mark.parametrize("command", ANSWERS)
def test_the_page_shows_what_is_printed(command: str) -> None:
    """Of answers made by hand; whoever changes an output puts the new one there."""

    def before(request: httpx.Request) -> httpx.Response | None:
        asked = request.url.path.endswith(("/policy", "/policies/test")) or request.method == "PUT"
        return (
            httpx.Response(202 if request.method == "PUT" else 200, json=ANSWERS[command]) if asked else None
        )

    service = Stub(machines=[machine(MACHINE, hostname="w-1")], before=before)
    typed = command.replace("talos.yaml", "tests/unit/cli/a_policy.yaml")
    # Without the bar that a terminal shows while it waits.
    printed = re.sub(r"^testing .*?(?=policy )", "", screens.screen(typed, service, 92))
    shown = f"```\n$ attestation {command}\n{printed}\n```\n"
    assert shown in text("docs/operate/policies.md"), shown
