"""A real Prometheus scrapes `./dev run`, and each panel of the dashboard shows something."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT
from tests.fixtures import prometheus
from tests.fixtures.prometheus import NotThere
from tests.integration.deploy.test_prometheus import EXPRESSIONS
from tests.integration.replicas.conftest import until
from tools.ports import free_port

pytestmark = [pytest.mark.swtpm, pytest.mark.slow]


def test_every_panel_of_the_dashboard_has_data_of_the_demo(tmp_path: Path) -> None:
    """By the token that the demo makes; none is left out, for its guests have collateral."""
    data, port = tmp_path / "data", free_port()
    with contextlib.ExitStack() as stack:
        try:
            found = stack.enter_context(
                prometheus.running(tmp_path, f"127.0.0.1:{port}", token=data / "metrics-token")
            )
        except NotThere as e:
            pytest.skip(str(e))
        log = stack.enter_context((tmp_path / "demo.log").open("wb"))
        demo = subprocess.Popen(
            [
                *(sys.executable, "-m", "tools.demo", "--confidential", "--machines", "2"),
                *("--data", str(data), "--port", str(port)),
            ],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        stack.callback(demo.wait, 60)
        stack.callback(demo.send_signal, signal.SIGINT)

        def is_up() -> bool:
            assert demo.poll() is None, (tmp_path / "demo.log").read_text()
            return "Ctrl-C" in (tmp_path / "demo.log").read_text()

        until(is_up, "the demo")
        # The metric tells of what the database keeps, and the demo has its collateral in a folder.
        kept = subprocess.run(
            [Path(sys.executable).with_name("attestation"), "collateral", "import", data / "collateral"],
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(tmp_path),
                "ITL_API_URL": f"http://127.0.0.1:{port}",
                "ITL_ADMIN_TOKEN_FILE": str(data / "admin-token"),
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert kept.returncode == 0, kept.stderr

        def without() -> list[str]:
            return [each for each in EXPRESSIONS if not found.query(each)]

        with contextlib.suppress(AssertionError):
            until(lambda: not without(), "all panels", 60)
        assert without() == []
        # What the demo did has moved them: one machine read the secret, the other was refused.
        read = 'attestation_secret_operations_total{operation="read",status="%s"} == 1'
        until(lambda: all(found.query(read % status) for status in ("done", "refused")), "the secrets")
        until(
            lambda: bool(found.query('attestation_webhook_deliveries_total{status="delivered"} > 0')),
            "webhooks",
        )
