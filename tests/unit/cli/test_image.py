"""`attestation image`: a schematic offline, and the image that the service issues."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from attestation_cli.main import cli
from tests.unit.talos.test_schematic import CANARY, EMPTY, whole


def run(*arguments: object) -> tuple[int, str, str]:
    """Run `attestation image schematic …`, which asks nobody."""
    found = CliRunner().invoke(cli, ["image", "schematic", *map(str, arguments)])
    assert CANARY not in found.output
    return found.exit_code, found.stdout, found.stderr


def test_a_schematic_is_made_offline() -> None:
    """Its text alone on stdout, so that it can be sent as it is."""
    status, text, told = run("--service-url", "https://attest.example/", "--extension", "siderolabs/zfs")
    assert status == 0
    assert "config=https://attest.example/api/v1/config?mac=${mac}&uuid=${uuid}&serial=${serial}\n" in text
    assert text.endswith("            - siderolabs/zfs\n")
    as_json = json.loads(
        run("--service-url", "https://attest.example", "--extension", "siderolabs/zfs", "-o", "json")[1]
    )
    assert as_json["schematic"] == text
    assert told == f"id {as_json['id']}\n"


def test_a_file_is_judged(tmp_path: Path) -> None:
    """Written as the factory does, or refused without a word of it."""
    file = tmp_path / "schematic.yaml"
    file.write_bytes(b"{}")
    assert run(file) == (0, "customization: {}\n", f"id {EMPTY}\n")
    file.write_bytes(whole().canonical())
    assert run(file)[1].encode() == whole().canonical()
    file.write_text(f"customization: {{extraKernelArgs: ['itl.x={CANARY}']}}")
    assert run(file)[0] == 2
    assert run(file, "--service-url", "https://attest.example")[0] == 2
    assert run(tmp_path / "none.yaml")[0] == 2


def test_no_address_is_guessed() -> None:
    """An image with `localhost` in it would boot nothing."""
    assert run()[0] == 2
