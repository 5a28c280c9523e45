"""Where the base configuration of a role lies, and what becomes of it (ITL-REFERENCE §17)."""

from __future__ import annotations

from pathlib import Path

import pytest

from attestation.errors import BaseConfigInvalid, BaseConfigMissing
from attestation.machines import Role
from attestation.talos.documents import MAX_BYTES
from attestation_service.delivery.machine_config import load_base


def test_files_by_role(tmp_path: Path) -> None:
    """One file per role, by a closed set of names; absent, unreadable and too large have their errors."""
    (tmp_path / "worker-app-final.yaml").write_bytes(b"machine: {}\n")
    assert load_base(tmp_path, Role.WORKER_APP, "default") == b"machine: {}\n"
    with pytest.raises(BaseConfigMissing):
        load_base(tmp_path, Role.CONTROLPLANE, "default")
    (tmp_path / "linux-final.yaml").mkdir()
    with pytest.raises(BaseConfigInvalid):
        load_base(tmp_path, Role.LINUX, "default")
    (tmp_path / "generic-final.yaml").write_bytes(b"#" * (MAX_BYTES + 1))
    with pytest.raises(BaseConfigInvalid, match="more than"):
        load_base(tmp_path, Role.GENERIC, "default")


def test_files_by_cluster(tmp_path: Path) -> None:
    """Each cluster has its folder; what lies outside of folders is of the cluster `default` and of no other."""
    (tmp_path / "worker-app-final.yaml").write_bytes(b"flat")
    (tmp_path / "prod").mkdir()
    (tmp_path / "prod" / "worker-app-final.yaml").write_bytes(b"prod")
    assert load_base(tmp_path, Role.WORKER_APP, "prod") == b"prod"
    assert load_base(tmp_path, Role.WORKER_APP, "default") == b"flat"
    for other in ("test", "prod/../prod", "..", ".", "", "/etc", "prod\0", "prod\n", "Default"):
        with pytest.raises(BaseConfigMissing):
            load_base(tmp_path, Role.WORKER_APP, other)
    (tmp_path / "default").mkdir()
    (tmp_path / "default" / "worker-app-final.yaml").write_bytes(b"default")
    assert load_base(tmp_path, Role.WORKER_APP, "default") == b"default"


@pytest.mark.parametrize("role", ["../../etc/passwd", "worker-app/../controlplane", "", "worker-app\0"])
def test_no_role_leads_out_of_the_directory(tmp_path: Path, role: str) -> None:
    """A role is one of six words, whatever the caller passes."""
    with pytest.raises(ValueError, match="not a valid Role"):
        load_base(tmp_path, role, "default")  # type: ignore[arg-type]  # the point of the test
