"""`attestation approval-rule`: what is sent, and what is told of an answer."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.cli.stub import NOW
from tests.unit.cli.test_cluster import run

RULE: dict[str, Any] = {
    "name": "rack-4",
    "expression": "true",
    "role": "linux",
    "cluster_id": "default",
    "hostname": "w-{serial}",
    "minimum_assurance": "ek-chain",
    "max_count": 40,
    "used": 3,
    "priority": 100,
    "enabled": False,
    "created_at": NOW,
    "created_by": "anna",
    "changed_at": NOW,
    "changed_by": "anna",
}


@pytest.fixture(autouse=True)
def _token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ITL_ADMIN_TOKEN", "t0p-s3cret")


def test_a_rule_is_sent_whole_and_shown_whole() -> None:
    """Each term as it was typed; that it approves nobody yet is told; what cannot be meant is refused here."""
    words = ["approval-rule", "create", "rack-4", "--where", "true", "--role", "linux", "--max-count", "40"]
    made, sent = run(RULE, *words, "--hostname", "W-{serial}")
    names = (
        "name",
        "expression",
        "role",
        "cluster_id",
        "hostname",
        "minimum_assurance",
        "max_count",
        "priority",
    )
    ((method, path, body),) = sent
    assert (made.exit_code, method, path) == (0, "POST", "/approval-rules")
    assert {"cluster_id": "default", "minimum_assurance": "ek-chain", "priority": 100} | body == {
        name: RULE[name] for name in names
    }
    for told in ("no: it approves nobody", "3 of 40", "w-{serial}", "linux of default"):
        assert told in made.stdout
    wrong, sent = run(RULE, *words, "--hostname", "w-1")
    assert (wrong.exit_code, sent) == (2, [])


def test_a_rule_that_is_tried_says_why_not() -> None:
    """Of each machine that waits."""
    tried = {
        "items": [
            {"machine_id": "m-1", "approves": False, "hostname": None, "why": "the expression is false"}
        ]
    }
    done, sent = run(tried, "approval-rule", "try", "--where", "false")
    assert sent == [("GET", "/approval-rule-trials", None)]
    assert "the expression is false" in done.stdout
