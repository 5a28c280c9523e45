"""`./dev run --kubernetes --hsm` shows what it promises, and leaves nothing behind."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT
from tests.e2e.test_demo import _processes_in
from tests.fixtures.cluster import require_kubernetes

pytestmark = [pytest.mark.kubeapi, pytest.mark.softhsm, pytest.mark.slow]


def test_a_certificate_comes_from_a_key_that_stays_on_its_token(tmp_path: Path) -> None:
    """Issued, refused, revoked, handed over to an enclave, and not to others; no PIN is told; Ctrl-C ends all of it."""
    require_kubernetes()
    data = tmp_path / "data"
    demo = subprocess.Popen(
        [sys.executable, "-m", "tools.demo", "--kubernetes", "--hsm", "--data", str(data)],
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
        # What is printed to try works: the certificate is revoked by now.
        (tried,) = re.findall(r"^ +(openssl verify .*)$", said, re.MULTILINE)
        done = subprocess.run(
            shlex.split(tried, comments=True), capture_output=True, text=True, timeout=60, check=False
        )
        assert "certificate revoked" in done.stderr
    finally:
        demo.send_signal(signal.SIGINT)
        ended, _ = demo.communicate(timeout=120)
    assert demo.returncode == 0, said + ended
    assert "Stopped." in ended
    for line in (
        r"✓ demo       Connected, LoggedIn, Healthy, Ready; SoftHSM",
        r"✓ shop-ca    CN=Shop CA, ECDSA P-384",
        r"✓ key        sensitive, always sensitive, never extractable, local; for: sign$",
        r"✗ stray      Denied: ",
        r"✓ web        nobody has decided yet",
        r"✓ web        Issued: serial [0-9a-f]{40}",
        r"✓ openssl    with the list that the service serves: OK",
        r"✓ OCSP       good",
        r"✗ bank       Failed: name-forbidden",
        r"✗ forever    Failed: duration-forbidden",
        r"✗ sub-ca     Failed: ca-forbidden",
        r"✗ openssl    with the new list: certificate revoked",
        r"✗ OCSP       revoked",
        r"✓ no\. \d+ +hsm_certificate_revoked by alice: ",
        r"THE ENCLAVE HERE IS SOFTWARE",
        r"✓ bank-ca-[0-9a-f]{8}-1 Verified: sgx \(software\), mrenclave e1e1e1e1e1e1e1e1",
        r"✓ token      kek-[0-9a-f-]{36}-1; for: unwrap$",
        r"^ +│ signer +[0-9a-f]{64}$",
        r"✓ bank-ca    Ready; its key: provisioned",
        r"✓ token      key [0-9a-f]{8}…: sensitive \(it was elsewhere once\); for: sign$",
        r"✓ token      the key that wrapped is destroyed; the Secret with the bundle is deleted",
        r"✓ openssl    pay.pem is of CN=Bank CA: OK",
        r"✗ debug-ca   EvidenceFailed: sgx-debug",
        r"✗ ada        attestation hsm wrap: sgx-debug: ",
        r"✗ other-ca   EvidenceFailed: sgx-chain",
        r"✗ ada        attestation hsm wrap: sgx-chain: ",
        r"✓ no\. \d+ +hsm_key_step by .*: loaded$",
    ):
        assert re.search(line, said, re.MULTILINE), f"{line}:\n{said}"
    pin = (data / "programs/pins/softhsm-pin/pin").read_text()
    assert len(pin) == 16
    assert pin not in said
    for log in data.rglob("*.log"):
        assert pin not in log.read_text(errors="replace"), log
    assert _processes_in(data) == []
