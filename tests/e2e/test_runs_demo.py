"""`./dev run --kubernetes --confidential` shows what it promises, and leaves nothing behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT
from tests.e2e.test_demo import _processes_in
from tests.fixtures.cluster import require_kubernetes

pytestmark = [pytest.mark.kubeapi, pytest.mark.swtpm, pytest.mark.slow]


def test_three_nodes_are_asked_for_evidence(tmp_path: Path) -> None:
    """Two are what they claim to be, one is not; what was sealed is verified offline; Ctrl-C ends all of it."""
    require_kubernetes()
    data = tmp_path / "data"
    demo = subprocess.Popen(
        [sys.executable, "-m", "tools.demo", "--kubernetes", "--confidential", "--data", str(data)],
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
        # What is printed to try works.
        (tried,) = re.findall(r"^ +(attestation bundle verify .*)$", said, re.MULTILINE)
        program, *rest = tried.split()
        done = subprocess.run(
            [str(Path(sys.executable).with_name(program)), *rest],
            capture_output=True, text=True, timeout=120, check=True,
        )  # fmt: skip
        assert done.stdout.startswith("bundle")
        (kubeconfig,) = re.findall(r"^ +export KUBECONFIG=(.*)$", said, re.MULTILINE)
        (api,) = re.findall(r"^ +export ITL_API_URL=(.*)$", said, re.MULTILINE)
        token = str(data / "admin-token")
        tries = re.findall(r"^ +(attestation run \w+ .*?)(?: +#.*)?$", said, re.MULTILINE)
        assert [each.split()[2] for each in tries] == ["list", "show", "create", "bundle"]
        for tried in tries:
            subprocess.run(
                [str(Path(sys.executable).with_name("attestation")), *tried.split()[1:]],
                cwd=tmp_path, timeout=120, check=True,
                env={**os.environ, "KUBECONFIG": kubeconfig, "ITL_API_URL": api, "ITL_ADMIN_TOKEN_FILE": token},
            )  # fmt: skip
    finally:
        demo.send_signal(signal.SIGINT)
        ended, _ = demo.communicate(timeout=120)
    assert demo.returncode == 0, said + ended
    assert "Stopped." in ended
    for line in (
        r"✓ ask-tpm    Succeeded, verified",
        r"✓ ask-tdx    Succeeded, verified",
        r"✗ ask-broken Failed, failed",
        r"✗ ask-broken VerdictFailed: reference-mismatch",
        r"✗ ask-broken pcr4: [0-9a-f]{64}; expected [0-9a-f]{64}",
        r"✗ ask-absent Failed, indeterminate",
        r"✗ ask-absent DeviceUnavailable: device-absent",
        r"✓ node-1     .*itl-attested: verified",
        r"✗ node-2     .*itl-attested: failed",
        r"✗ changed    one byte is another: error: this bundle proves nothing; why: ",
    ):
        assert re.search(line, said), f"{line}:\n{said}"
    told = re.findall(r"(ask-\w+) +(Attestation\w+) \(", said)
    assert sorted(told) == [
        (f"ask-{run}", f"Attestation{fact}")
        for run, end in (("absent", "Failed"), ("broken", "Failed"), ("tdx", "Verified"), ("tpm", "Verified"))
        for fact in sorted(("Started", end))
    ]
    assert [line.split()[-1] for line in said.splitlines() if "│ verdict" in line] == ["VERIFIED", "FAILED"]
    assert _processes_in(data) == []
