"""Where the base configuration of a role lies, and what becomes of it (ITL-REFERENCE §17)."""

from __future__ import annotations

from pathlib import Path

import pytest
import structlog

from attestation.errors import BaseConfigInvalid, BaseConfigMissing
from attestation.machines import Role
from attestation.talos.completion import Own
from attestation.talos.documents import MAX_BYTES
from attestation_service.configs.files import load_base
from attestation_service.configs.kept import KeptConfigurations
from attestation_service.configs.rendering import completed, texts_of
from attestation_service.configs.sources import Sources
from attestation_service.settings import Settings


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


def of_files(role: Role, settings: Settings) -> bytes:
    """Complete what lies in files."""
    sources = Sources(talos_version=settings.talos_version)
    texts = texts_of(sources, role, "default", KeptConfigurations(settings), settings)
    return completed(texts, OWN, role, "default", settings)


OWN = Own(
    machine_id="7f3ad3ac-0f0e-4c55-9d4a-3f6f0e1b2c3d",
    ek_fingerprint="7f" * 48,
    hostname=None,
    assigned_ip=None,
    installer_image="",
)
GOOD = b"version: v1alpha1\nmachine:\n  type: worker\n  install: {disk: /dev/sda}\n  nodeLabels: {a: b}\n"


def test_what_talos_would_refuse_is_not_delivered(tmp_path: Path) -> None:
    """`ITL_CONFIG_LINT=refuse`: the first error is told, and how many more there are."""
    (tmp_path / "worker-app-final.yaml").write_bytes(GOOD + b"bogus: 1\nother: 1\n")
    settings = Settings(config_cache_dir=tmp_path, talos_version="v1.13.9")
    with pytest.raises(BaseConfigInvalid, match=r"by Talos v1\.13\.9: .*bogus: unknown key, and 1 more"):
        of_files(Role.WORKER_APP, settings)


def test_what_talos_would_refuse_is_told_where_that_is_set(tmp_path: Path) -> None:
    """`ITL_CONFIG_LINT=warn`: it is delivered, and stands in the log."""
    (tmp_path / "worker-app-final.yaml").write_bytes(GOOD + b"bogus: 1\n")
    settings = Settings(config_cache_dir=tmp_path, talos_version="v1.13.9", config_lint="warn")
    with structlog.testing.capture_logs() as log:
        assert b"bogus" in of_files(Role.WORKER_APP, settings)
    assert [each["event"] for each in log] == ["config.lint"]


def test_what_is_deprecated_is_delivered(tmp_path: Path) -> None:
    """Talos takes what an older version of it knew."""
    (tmp_path / "worker-app-final.yaml").write_bytes(
        GOOD.replace(b"  nodeLabels", b"  network: {hostname: w}\n  nodeLabels")
    )
    settings = Settings(config_cache_dir=tmp_path, talos_version="v1.14.0")
    assert of_files(Role.WORKER_APP, settings)


def test_what_is_no_configuration_of_talos_is_not_judged(tmp_path: Path) -> None:
    """Machines of the other roles run something else."""
    (tmp_path / "linux-final.yaml").write_bytes(GOOD + b"bogus: 1\n")
    assert b"bogus" in of_files(Role.LINUX, Settings(config_cache_dir=tmp_path))
