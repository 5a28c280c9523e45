"""`./dev run --kubernetes` shows what it promises, docs/kubernetes/nodes.md what it prints; nothing is left behind.

Where an output was changed: `UPDATE_PAGE=1 ./dev test tests/e2e/test_kubernetes_demo.py` writes what is printed now,
and you read it.
"""

from __future__ import annotations

import itertools
import os
import re
import signal
import ssl
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from attestation_agent.kubelet.kubeconfig import load
from tests.docs.pages import ROOT
from tests.e2e.story import hold
from tests.e2e.test_demo import _processes_in
from tests.fixtures.cluster import require_kubernetes

pytestmark = [pytest.mark.kubeapi, pytest.mark.swtpm, pytest.mark.slow]

PAGE = "docs/kubernetes/nodes.md"
COMMAND = "./dev run --kubernetes"


def shown(printed: str) -> str:
    """Return what the page shows: from the cluster on, without ports and times of one run."""
    ports = itertools.count(40_001)
    names: dict[str, str] = {}
    of_cluster = printed[printed.index("\n5. ") : printed.index("\n   Kubernetes  ")]
    same = re.sub(
        r"(?<=127\.0\.0\.1:)\d+", lambda port: names.setdefault(port[0], str(next(ports))), of_cluster
    )
    same = re.sub(r"until \d{4}-\d\d-\d\d \d\d:\d\d UTC", "until 2026-11-24 06:30 UTC", same)
    return f"anna$ {COMMAND}\n[…]\n{same}".rstrip()


def test_two_machines_become_nodes_and_a_stranger_does_not(tmp_path: Path) -> None:
    """Each machine is approved, whoever else holds the token denied, a lock takes the label; Ctrl-C ends all of it."""
    require_kubernetes()
    data = tmp_path / "data"
    demo = subprocess.Popen(
        [sys.executable, "-m", "tools.demo", "--kubernetes", "--data", str(data)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    said = ""
    try:
        assert demo.stdout is not None
        while "Ctrl-C" not in said:
            line = demo.stdout.readline()
            assert line, said
            said += line
        # What is printed to try is there: kubeconfigs, and an API that answers.
        tries = re.findall(r"^ +kubectl --kubeconfig (\S+) (\w+ \w+)", said, re.MULTILINE)
        assert [command for _, command in tries] == [
            "get csr",
            "get events",
            "describe nodes",
            "auth can",
            "get nodes",
        ]
        for kubeconfig, _ in tries:
            found = load(Path(kubeconfig))
            trust = ssl.create_default_context(cadata=found.cluster.ca_pem.decode("ascii"))
            assert httpx.get(f"{found.cluster.server}/readyz", verify=trust, timeout=60).text == "ok"
    finally:
        demo.send_signal(signal.SIGINT)
        rest, _ = demo.communicate(timeout=120)
    assert demo.returncode == 0, said + rest
    assert "Stopped." in rest
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
