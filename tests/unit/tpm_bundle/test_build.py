"""No wheel is built with a trust bundle that is not the pinned one."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
ANCHOR = "anchors/IFX/899e35474c9807eb.der"


@pytest.fixture
def sdk(tmp_path: Path) -> Path:
    """A copy of the SDK's sources."""
    copy = tmp_path / "sdk"
    shutil.copytree(
        ROOT / "src/sdk",
        copy,
        ignore=shutil.ignore_patterns("__pycache__", "dist", "*.egg-info", "store", "testing"),
    )
    return copy


def build(sdk: Path, code: str | None = None) -> subprocess.CompletedProcess[str]:
    """Build a wheel of *sdk*, without network or isolation; or run *code* there."""
    words = ["-m", "hatchling", "build", "-t", "wheel"] if code is None else ["-c", code]
    return subprocess.run(
        [sys.executable, *words], cwd=sdk, capture_output=True, text=True, check=False, timeout=120
    )


def test_the_wheel_holds_the_bundle(sdk: Path) -> None:
    """Manifest, every certificate and NOTICE are in the wheel, and the wheel itself is a bundle that can be read."""
    done = build(sdk)
    assert done.returncode == 0, done.stderr
    (wheel,) = (sdk / "dist").glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    manifest = json.loads((sdk / "attestation/tpm_bundle/manifest.json").read_bytes())
    for entry in manifest["entries"]:
        assert (
            f"attestation/tpm_bundle/{entry['role']}s/{entry['vendor']}/{entry['sha256'][:16]}.der" in names
        )
    assert {"attestation/tpm_bundle/NOTICE", "attestation/tpm_bundle/manifest.json"} <= names


def changed(bundle: Path) -> None:
    file = bundle / ANCHOR
    data = bytearray(file.read_bytes())
    data[200] ^= 1
    file.write_bytes(data)


def missing(bundle: Path) -> None:
    (bundle / ANCHOR).unlink()


def added(bundle: Path) -> None:
    (bundle / "anchors/IFX/0123456789abcdef.der").write_bytes((bundle / ANCHOR).read_bytes())


def pinned_but_unreadable(bundle: Path) -> None:
    data = (bundle / ANCHOR).read_bytes()[:-1]
    digest = hashlib.sha256(data).hexdigest()
    (bundle / ANCHOR).unlink()
    (bundle / f"anchors/IFX/{digest[:16]}.der").write_bytes(data)
    manifest = json.loads((bundle / "manifest.json").read_bytes())
    for entry in manifest["entries"]:
        if entry["sha256"].startswith("899e35474c9807eb"):
            entry["sha256"] = digest
    (bundle / "manifest.json").write_text(json.dumps(manifest))


def without_manifest(bundle: Path) -> None:
    (bundle / "manifest.json").write_text("{}")


def empty(bundle: Path) -> None:
    manifest = json.loads((bundle / "manifest.json").read_bytes())
    shutil.rmtree(bundle / "anchors")
    shutil.rmtree(bundle / "intermediates")
    (bundle / "manifest.json").write_text(
        json.dumps({k: v for k, v in manifest.items() if k != "sha1_allowed"} | {"entries": []})
    )


@pytest.mark.threat("T62")
@pytest.mark.parametrize(
    ("tamper", "told"),
    [
        (changed, "899e35474c9807eb.der: its SHA-256 is"),
        (missing, "899e35474c9807eb.der: is missing"),
        (added, "0123456789abcdef.der: the manifest does not name it"),
        (pinned_but_unreadable, "not a certificate"),
        (without_manifest, "manifest.json: manifest: member"),
        (empty, "no anchor"),
    ],
)
def test_no_wheel_of_a_damaged_bundle(sdk: Path, tamper: Callable[[Path], None], told: str) -> None:
    """A byte changed, a file missing or added, a pinned file that does not parse: the build says which, and ends."""
    tamper(sdk / "attestation/tpm_bundle")
    done = build(sdk)
    assert done.returncode != 0
    assert told in done.stderr
    assert not list(sdk.glob("dist/*.whl"))


def test_no_editable_wheel_either(sdk: Path) -> None:
    """`./dev` installs the members editable; that build reads the bundle too."""
    code = "from hatchling.build import build_editable; build_editable('out')"
    (sdk / "out").mkdir()
    done = build(sdk, code)
    assert done.returncode == 0, done.stderr
    missing(sdk / "attestation/tpm_bundle")
    assert "is missing" in build(sdk, code).stderr
