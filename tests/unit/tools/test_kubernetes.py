"""`tools/kubernetes.sh` and `tools/kubernetes.py`, where nothing needs to be built or started."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import pytest

from tests.fixtures.cluster import require_kubernetes
from tools import kubernetes


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put programs that look as if they had been built where those are kept."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    folder = kubernetes.cache()
    folder.mkdir(parents=True)
    sums = ""
    for name in kubernetes.PROGRAMS:
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
        sums += f"{hashlib.sha256(b'#!/bin/sh' + bytes([10])).hexdigest()}  {name}\n"
    (folder / "SHA256SUMS").write_text(sums)
    return folder


def check() -> bool:
    return subprocess.run([kubernetes.RECIPE, "check"], check=False, timeout=240).returncode == 0


def test_what_was_built_is_kept_under_the_digest_of_its_source(kept: Path, tmp_path: Path) -> None:
    """Another source package is another folder: nobody tests against what an older one gave."""
    assert kept.parent == tmp_path / "itl-attestation/kubernetes"
    assert f"\nDSC={kept.name} " in kubernetes.RECIPE.read_text(encoding="utf-8")


def test_what_was_built_is_still_that(kept: Path) -> None:
    """A program that was changed, or is gone, is built anew."""
    assert check()
    (kept / "kube-apiserver").write_text("#!/bin/false\n")
    assert not check()
    (kept / "kube-apiserver").unlink()
    assert not check()


def test_what_is_there_is_not_built_again(kept: Path) -> None:
    """`build` is asked for by each run of CI."""
    done = subprocess.run([kubernetes.RECIPE, "build"], check=True, capture_output=True, timeout=240)
    assert (done.stdout, done.stderr) == (b"", b"")
    assert not [each for each in kept.parent.iterdir() if each.name.startswith("build")]


def test_where_there_is_none_the_test_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Left out is not passed: the reason says how to run it."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(pytest.skip.Exception, match=r"kube-apiserver.* is not there: `./dev test --all`"):
        require_kubernetes()
