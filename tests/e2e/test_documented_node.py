"""The shell node of docs/protocol/node.md works as it is printed."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.docs.pages import text
from tests.e2e.tools_node import software_tpm
from tests.fixtures.service import ServiceProcess

NEEDED = ("bash", "curl", "jq", "openssl", "xxd", "tpm2_quote")
MISSING = [tool for tool in NEEDED if shutil.which(tool) is None]

# swtpm has no resource manager: flush what each tool leaves behind, as the page says.
PRELUDE = """\
set -euo pipefail
for tool in createek createak readpublic activatecredential quote; do
  eval "tpm2_$tool() { command tpm2_$tool \\"\\$@\\" && command tpm2_flushcontext -t; }"
done
"""


@pytest.mark.swtpm
@pytest.mark.tpm2_tools
@pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")
def test_the_node_of_the_page_is_accepted(service: ServiceProcess, tmp_path: Path) -> None:
    """Copied from the page into a shell, it introduces, proves and attests a machine."""
    found = re.search(
        r"^## Walkthrough$.*?^```bash\n(.*?)^```", text("docs/protocol/node.md"), re.MULTILINE | re.DOTALL
    )
    assert found is not None
    script = found[1].replace("http://127.0.0.1:8080", service.url)
    (tmp_path / "work").mkdir()
    with software_tpm(tmp_path / "tpm", ek_certificate=False) as tools:
        done = subprocess.run(
            ["bash", "-c", PRELUDE + script],
            cwd=tmp_path / "work",
            env=tools._environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    answers = [json.loads(part) for part in re.findall(r"^\{.*?^\}", done.stdout, re.MULTILINE | re.DOTALL)]
    assert answers[0] == {"status": "pending_approval"}
    assert answers[-1] == {
        "status": "pending_approval",
        "action": "none",
        "message": answers[-1]["message"],
    }
