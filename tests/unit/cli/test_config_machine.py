"""`attestation config lint|preview|diff`: what is said of a configuration in a file, and how it ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from attestation_cli.main import cli

CANARY = "canary-7c1f0b"
GOOD = f"version: v1alpha1\nmachine:\n  type: worker\n  token: {CANARY}\n  install: {{disk: /dev/sda}}\n"


def run(*arguments: object) -> Result:
    """Run `attestation config …`."""
    found = CliRunner().invoke(cli, ["config", *map(str, arguments)])
    assert CANARY not in found.output
    return found


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A configuration of a worker."""
    path = tmp_path / "worker.yaml"
    path.write_text(GOOD)
    return path


def test_what_fits_ends_with_0(file: Path) -> None:
    """Also where a version takes it with a warning, which is told."""
    fits = run("lint", file, "--talos", "v1.9.5")
    assert (fits.exit_code, fits.output) == (0, "Nothing to say: Talos v1.9.5 takes it.\n")
    warned = run("lint", file, "--talos", "v1.14.0", "-o", "json")
    assert warned.exit_code == 0
    (finding,) = json.loads(warned.output)["findings"]
    assert finding == {
        "document": 1,
        "kind": "v1alpha1",
        "level": "deprecated",
        "path": "machine.install",
        "words": "of Talos before 1.14",
    }


def test_an_error_ends_with_1(file: Path) -> None:
    """Where it is, and what; by the role where one is given."""
    wrong = run("lint", file, "--talos", "v1.9.5", "--role", "controlplane")
    assert wrong.exit_code == 1
    assert "machine.type" in wrong.output


def test_what_is_no_configuration_ends_with_2(tmp_path: Path) -> None:
    """No YAML, too large, no version."""
    broken = tmp_path / "broken.yaml"
    broken.write_text(f"machine: [{CANARY}\n")
    for command in (["lint", broken], ["preview", broken], ["diff", broken, broken]):
        found = run(*command, "--talos", "v1.9.5")
        assert found.exit_code == 2
        assert "is not YAML that everybody reads alike" in found.output
    broken.write_bytes(b"#" * (1 << 21))
    assert "more than 1048576 bytes" in run("lint", broken, "--talos", "v1.9.5").output
    assert run("lint", broken, "--talos", "latest").exit_code == 2


def test_a_difference_names_what_changes(file: Path, tmp_path: Path) -> None:
    """A secret's name, never its value."""
    other = tmp_path / "other.yaml"
    other.write_text(GOOD.replace(CANARY, f"{CANARY}-2").replace("/dev/sda", "/dev/sdb"))
    found = run("diff", file, other, "--talos", "v1.9.5", "-o", "json")
    assert json.loads(found.output)["changes"] == [
        {"document": "v1alpha1", "path": "machine.install.disk", "before": "/dev/sda", "after": "/dev/sdb"},
        {"document": "v1alpha1", "path": "machine.token", "before": "<redacted>", "after": "<redacted>"},
    ]
    assert run("diff", file, file, "--talos", "v1.9.5").output == "No differences.\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["preview", "default/worker-app.yaml", "--talos", "v1.9.5"], "no such file"),
        (["diff", "default/worker-app@1", "default/controlplane@1"], "two versions of one"),
        (["activate", "default/worker-app"], "which version? Write default/worker-app@VERSION"),
        (["activate", "default/mainframe@1"], "no CLUSTER/ROLE"),
        (["rollback", "Default/worker-app"], "no CLUSTER/ROLE"),
    ],
)
def test_what_is_no_place_is_told_before_anybody_is_asked(arguments: list[str], words: str) -> None:
    """What the service keeps is named by cluster, role and number."""
    found = run(*arguments)
    assert found.exit_code == 2
    assert words in " ".join(found.output.split())


def test_a_file_needs_a_version_of_talos(file: Path) -> None:
    """A version that is kept says its own; and the service hands out no text to compare a file with."""
    assert "needs --talos" in run("preview", file).output
    mixed = run("diff", file, "default/worker-app@1", "--talos", "v1.9.5")
    assert (mixed.exit_code, "two files, or two versions" in mixed.output) == (2, True)
