"""What an attestation asks the database for is found by an index, however large the fleet is."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from attestation.store.sql import Executor, Prepared
from attestation.store.tables import Base
from tests.bench import fleet
from tests.contract.store_samples import by_hand
from tests.fixtures.in_process import in_process_service

ROWS: Final = 100_000

COPIED: Final[Mapping[str, Mapping[str, str]]] = {
    "machines": {
        "machine_id": "'m' || g",
        "ek_fingerprint": "'e' || g",
        "hw_uuid": "'u' || g",
        "name_key": "NULL",
        "address_key": "NULL",
    },
    "challenges": {"challenge_id": "'c' || g", "machine_id": "'m' || g", "ek_fingerprint": "'e' || g"},
    "rate_limits": {"key": "'k' || g"},
}
"""Tables that grow with the fleet, and what differs from row to row."""


def copying(table: str, series: str) -> str:
    """Return the statement that copies one row of *table* so often."""
    names = [c.name for c in Base.metadata.tables[table].c if c.name != "id"]
    values = (COPIED[table].get(name, name) for name in names)
    return (
        f"INSERT INTO {table} ({', '.join(names)}) SELECT {', '.join(values)} "
        f"FROM (SELECT * FROM {table} LIMIT 1) AS one, {series}"
    )


def test_an_attestation_scans_no_table(
    store_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each statement that one ran, as it was recorded: reads none of them whole."""
    on_postgres = store_url.startswith("postgresql")
    machine = fleet.fill(store_url, 1, live=1)[0]
    recorded: dict[str, tuple[object, ...]] = {}
    execute = Executor._execute

    def recording(self: Executor, statement: Prepared, values: Mapping[str, object]) -> Any:
        compiled = statement.compiled(self._dialect)
        recorded[compiled.text] = compiled.arrange({**compiled.constants, **values})
        return execute(self, statement, values)

    with in_process_service(tmp_path / "service", db_url=store_url) as service, service.client() as client:
        given = client.get("/api/v1/attest/challenge", params={"machine_id": machine.machine_id}).json()
        machine.challenge = (given["nonce_id"], base64.b64decode(given["nonce"]))
        monkeypatch.setattr(Executor, "_execute", recording)
        headers = {"Content-Type": "application/json"}
        answer = client.post("/api/v1/attest", content=fleet.attest_body(machine), headers=headers)
        monkeypatch.undo()
        assert answer.json()["message"] == "attested"
    series = f"generate_series(1, {ROWS}) AS g"
    if not on_postgres:
        series = f"(WITH RECURSIVE s(g) AS (SELECT 1 UNION ALL SELECT g + 1 FROM s WHERE g < {ROWS}) SELECT g FROM s)"
    by_hand(store_url, *(copying(table, series) for table in COPIED), "ANALYZE")
    explain = "EXPLAIN (GENERIC_PLAN) " if on_postgres else "EXPLAIN QUERY PLAN "
    grown = "|".join(COPIED)
    met = set()
    for text, values in recorded.items():
        asked = explain + text
        for value in () if on_postgres else values:
            written = "NULL" if value is None else repr(value) if isinstance(value, int) else "'x'"
            asked = asked.replace("?", written, 1)
        plan = "\n".join(str(row[-1]) for row in by_hand(store_url, asked))
        assert not re.search(rf"(Seq Scan on|SCAN) ({grown})\b", plan), f"{text}\n{plan}"
        # An index may also be read from end to end, which costs thousands.
        assert all(float(cost) < 500 for cost in re.findall(r"cost=[\d.]+\.\.([\d.]+)", plan)), (
            f"{text}\n{plan}"
        )
        if on_postgres:  # and of those that are empty here: could it?
            plan = "\n".join(str(row[-1]) for row in by_hand(store_url, "SET enable_seqscan = off", asked))
            assert "Seq Scan on" not in plan, f"{text}\n{plan}"
        met |= {table for table in COPIED if re.search(rf"\b{table}\b", text)}
    assert met == COPIED.keys()
