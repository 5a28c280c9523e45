"""The chart of the operator through Helm, for those who judge it. Other charts have fixtures of their own."""

from __future__ import annotations

import json
import subprocess
from functools import cache

import pytest
from ruamel.yaml import YAML

from tests.fixtures import helm
from tests.fixtures.operator_chart import CHART, NAMESPACE, RELEASE, Document, Documents, Run


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run Helm on the chart with values; the same is run once."""
    try:
        program = helm.helm()
    except helm.NotThere as e:
        pytest.skip(str(e))
    home = tmp_path_factory.mktemp("helm")

    @cache
    def once(command: str, values: str, *more: str) -> subprocess.CompletedProcess[str]:
        file = home / "values.json"
        file.write_text(values)
        name = [RELEASE, "--namespace", NAMESPACE] if command in ("template", "install") else []
        return subprocess.run(
            [str(program), command, *name, str(CHART), "--values", str(file), *more],
            env={"HOME": str(home), "PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=False,
        )  # fmt: skip

    def run(command: str, values: Document, *more: str) -> subprocess.CompletedProcess[str]:
        return once(command, json.dumps(values), *more)

    return run


@pytest.fixture(scope="session")
def documents(run: Run) -> Documents:
    """Return what Helm would send to a cluster."""

    def documents(values: Document, *more: str) -> list[Document]:
        done = run("template", values, *more)
        assert done.returncode == 0, done.stderr
        return [each for each in YAML(typ="safe").load_all(done.stdout) if each]

    return documents
