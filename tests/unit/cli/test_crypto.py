"""`attestation crypto inventory`: the tables of `attestation.algorithms`, in every form, without a service."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest
from click.testing import CliRunner

from attestation.algorithms import USES, CryptoPolicy, Ruling, ruling
from attestation_cli.main import cli


def run(*arguments: str) -> str:
    done = CliRunner().invoke(cli, ["crypto", "inventory", *arguments], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def rows(*arguments: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(run(*arguments, "-o", "csv"))))


def test_every_algorithm_of_every_use_is_listed() -> None:
    """One row each, with what the suites say."""
    assert [(row["use"], row["algorithm"]) for row in rows()] == [
        (use.value, name) for use, entry in USES.items() for name in entry.algorithms
    ]
    found = {(row["use"], row["algorithm"]): row for row in rows()}
    ca = found["ca-key", "ecdsa-p384"]
    assert (ca["cnsa_1_0"], ca["cnsa_2_0"], ca["quantum_breaks"]) == ("yes", "no", "yes")


@pytest.mark.parametrize("policy", CryptoPolicy)
def test_what_a_policy_would_do(policy: CryptoPolicy) -> None:
    """The verdict of the tables, and the reason of everything that is let through."""
    for row in rows("--policy", policy.value):
        use = next(use for use in USES if use.value == row["use"])
        said = ruling(policy, use, row["algorithm"])
        assert row[policy.value] == said.value
        assert bool(row["why"]) == (said is Ruling.EXEMPT)


def test_the_table_is_for_people() -> None:
    """Fits a terminal, and names the verdict of the policy."""
    shown = run("--policy", "cnsa2")
    assert "let through" in shown
    assert "forbidden" in shown


def test_programs_get_everything() -> None:
    """JSON has modules, specifications and reasons."""
    told: dict[str, Any] = json.loads(run("--policy", "cnsa2", "-o", "json"))
    assert told["policy"] == "cnsa2"
    uses = {each["use"]: each for each in told["uses"]}
    assert uses.keys() == {use.value for use in USES}
    (ek,) = (each for each in uses["tpm-ek"]["algorithms"] if each["name"] == "ecdh-p384")
    assert ek["verdict"] == "let through"
    assert "TPM" in ek["reason"]
    assert {"attestation.tpm.templates", "attestation_service.entitlements.config_tokens"} <= {
        module for use in ("tpm-ek", "bearer-secret") for module in uses[use]["where"]
    }
    plain: dict[str, Any] = json.loads(run("-o", "json"))
    assert plain["policy"] is None
    assert "verdict" not in plain["uses"][0]["algorithms"][0]
