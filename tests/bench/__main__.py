"""`python -m tests.bench [NAME…] [--json]`: measure, print, and keep RESULTS.md true."""

from __future__ import annotations

import argparse
import importlib
import json
import sys

from tests.bench.report import Measurement, as_json, table, write_results

MODULES = {
    "quotes": "tests.bench.quotes",
    "tdx": "tests.bench.tdx",
    "snp": "tests.bench.snp",
    "gpu": "tests.bench.gpu",
    "audit": "tests.bench.audit_verify",
    "jwt": "tests.bench.jwt",
    "configuration": "tests.bench.configuration",
    "steady": "tests.bench.steady_state",
    "events": "tests.bench.events",
    "introduce": "tests.bench.introduce",
    "storm": "tests.bench.storm",
    "growth": "tests.bench.growth",
    "postgres": "tests.bench.postgres",
    "cli": "tests.bench.cli_start",
    "ek-chain": "tests.bench.ek_chain",
    "event-logs": "tests.bench.event_logs",
    "policy-test": "tests.bench.policy_test",
    "start": "tests.bench.start",
    "revocation": "tests.bench.revocation",
    "hsm": "tests.bench.hsm",
    "issue": "tests.bench.issue",
    "tpm-keys": "tests.bench.tpm_keys",
    "agent-signer": "tests.bench.agent_signer",
    "hostile": "tests.bench.hostile",
    "node_csr": "tests.bench.node_csr",
    "hsm_issuance": "tests.bench.hsm_issuance",
    "tee_join": "tests.bench.tee_join",
}
LONG = {
    "replicas": "tests.bench.replicas",
    "capacity": "tests.bench.capacity",
    "dashboard": "tests.bench.dashboard",
    "dashboard-postgresql": "tests.bench.dashboard_postgresql",
    "node_runs": "tests.bench.node_runs",
    "node_runs_service": "tests.bench.node_runs_service",
}
"""Run by name only: each takes minutes, and has a section of RESULTS.md."""


def main() -> int:
    """Run the named benchmarks, or all but the long ones. All of them, and each long one, also rewrite RESULTS.md."""
    parser = argparse.ArgumentParser(prog="./dev bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join((*MODULES, *LONG)))
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args()
    there = MODULES | LONG
    unknown = set(arguments.names) - set(there)
    if unknown:
        parser.error(f"unknown benchmark {', '.join(sorted(unknown))}; there are {', '.join(there)}")
    measurements: list[Measurement] = []
    for name in arguments.names or MODULES:
        print(f"measuring {name} …", file=sys.stderr, flush=True)
        found = list(importlib.import_module(there[name]).measure())
        measurements += found
        if name in LONG:
            write_results(found, name.capitalize())
    if not arguments.names:
        write_results(measurements)
    if arguments.json:
        print(json.dumps(as_json(measurements), indent=2))
    else:
        print(table(measurements))
    return 0 if all(m.ok for m in measurements) else 1


if __name__ == "__main__":
    raise SystemExit(main())
