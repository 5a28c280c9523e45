"""`./dev run --kubernetes` shows what it promises, docs/kubernetes/nodes.md what it prints; nothing is left behind.

Where an output was changed: `UPDATE_PAGE=1 ./dev test tests/e2e/test_kubernetes_demo.py` writes what is printed now,
and you read it.
"""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT
from tests.e2e.story import hold
from tests.e2e.test_demo import _processes_in
from tests.fixtures.cluster import require_kubernetes

pytestmark = [pytest.mark.kubeapi, pytest.mark.swtpm, pytest.mark.slow]

PAGE = "docs/kubernetes/nodes.md"
COMMAND = "./dev run --kubernetes --exit-after-demo"


def shown(printed: str) -> str:
    """Return what the page shows: from the cluster on, without ports and times of one run."""
    ports = itertools.count(40_001)
    names: dict[str, str] = {}
    of_cluster = printed[printed.index("\n5. ") :]
    same = re.sub(
        r"(?<=127\.0\.0\.1:)\d+", lambda port: names.setdefault(port[0], str(next(ports))), of_cluster
    )
    same = re.sub(r"until \d{4}-\d\d-\d\d \d\d:\d\d UTC", "until 2026-11-24 06:30 UTC", same)
    return f"anna$ {COMMAND}\n[…]\n{same}".rstrip()


def test_two_machines_become_nodes_and_a_stranger_does_not(tmp_path: Path) -> None:
    """Each machine is approved in its way, whoever else holds the token is denied; a lock takes the label."""
    require_kubernetes()
    data = tmp_path / "data"
    demo = subprocess.run(
        [sys.executable, "-m", "tools.demo", "--kubernetes", "--exit-after-demo", "--data", str(data)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        check=False,
    )
    said = demo.stdout
    assert demo.returncode == 0, said
    for line in (
        r"node-1 .*Approved: TpmAttested\. attested, tier resident\+quote; result [0-9a-f]{32}",
        r"node-2 .*Approved: TpmAttested\. attested, tier external; result [0-9a-f]{32}",
        r"node-2 .*the API takes its holder for system:node:node-2, in system:nodes",
        r"stranger .*plain request: Denied: EvidenceMissing",
        r"stranger .*sent again: Denied: EvidenceStale",
        r"stranger .*the stranger's own key: Denied: EvidenceStale",
        r"node-2 .*asks as node-1: Denied: SubjectInvalid",
        r"node-2 .*locked by alice; its Node is labelled .*=false",
    ):
        assert re.search(line, said), f"{line}:\n{said}"
    for token in re.findall(r"^([^,]+),", (data / "cluster/tokens.csv").read_text(), re.MULTILINE):
        assert token not in said
    assert _processes_in(data) == []
    hold(PAGE, [shown(said)])
