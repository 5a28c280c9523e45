"""Base configuration + one machine = its configuration; what we do not know survives (ITL-REFERENCE §17)."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from attestation.errors import BaseConfigInvalid, BaseConfigMissing
from attestation.machines import Role
from attestation_service.delivery.machine_config import MAX_BYTES, Overrides, load_base, merge

GOLDEN = Path(__file__).parent / "golden"

FULL = Overrides(
    machine_id="7f3ad3ac-0f0e-4c55-9d4a-3f6f0e1b2c3d",
    ek_fingerprint="1234567890123456" * 6,
    hostname="cp-1",
    assigned_ip="10.0.0.11/24",
    installer_image="registry.example/itl-talos-installer:v1",
)
BARE = Overrides(
    machine_id="7f3ad3ac-0f0e-4c55-9d4a-3f6f0e1b2c3d",
    ek_fingerprint="ab" * 48,
    hostname=None,
    assigned_ip=None,
    installer_image="other:1",
)


@pytest.mark.parametrize("name", ["minimal", "complete", "stream"])
def test_golden(name: str) -> None:
    """The merged text is exactly the stored one: comments, order, quotes and further documents stay."""
    base = (GOLDEN / f"{name}.base.yaml").read_bytes()
    assert merge(base, FULL).decode() == (GOLDEN / f"{name}.merged.yaml").read_text()


@pytest.mark.parametrize("name", ["minimal", "complete", "stream"])
def test_merging_twice_changes_nothing_more(name: str) -> None:
    """The same machine again: no second address, no second label."""
    once = merge((GOLDEN / f"{name}.base.yaml").read_bytes(), FULL)
    assert merge(once, FULL) == once


def test_values_that_look_like_numbers_stay_text() -> None:
    """Sixteen decimal digits of a fingerprint are a label, not a number, for readers of YAML 1.1 too."""
    found = YAML(typ="safe").load(merge(b"machine: {}\n", FULL))["machine"]
    assert found["nodeLabels"]["itl.io/tpm-ek"] == "1234567890123456"
    assert found["nodeAnnotations"]["itl.io/tpm-ek-full"] == FULL.ek_fingerprint


def test_the_image_is_only_a_default() -> None:
    """An image that the base names stays."""
    assert b"mine:2" in merge(b"machine: {install: {image: mine:2}}\n", FULL)
    assert b"other:1" in merge(b"machine: {install: {image: ''}}\n", BARE)


def test_nothing_is_invented() -> None:
    """Without host name and address no network section appears; without an image no install section."""
    assert b"network" not in merge(b"machine: {}\n", BARE)
    assert b"install" not in merge(b"machine: {}\n", dataclasses.replace(BARE, installer_image=""))


@pytest.mark.parametrize(
    "base",
    [
        b"",
        b"- 1\n",
        b"text\n",
        b"\xff\xfe",
        b"machine: [\n",
        b"machine: {a: 1, a: 2}\n",
        b"machine: {}\nmachine: {}\n",
        b"machine: &m {x: *m}\n",
        b"machine: 3\n",
        b"machine: {install: 3}\n",
        b"machine: {network: []}\n",
        b"machine: {network: {interfaces: eth0}}\n",
        b"machine: {network: {interfaces: [eth0]}}\n",
        b"machine: {network: {interfaces: [{addresses: x}]}}\n",
        b"machine: {nodeLabels: []}\n",
        b"machine: {}\n---\nmachine: {}\n",
        b"kind: HostnameConfig\n",
        b"machine: !!python/object/apply:os.system ['true']\nkind: x\n",
        b"[" * 5000,
    ],
    ids=lambda b: b[:40].decode("latin-1"),
)
def test_bases_that_two_readers_could_understand_differently(base: bytes) -> None:
    """Refused, with a message that quotes nothing of the file."""
    with pytest.raises(BaseConfigInvalid) as caught:
        merge(base, FULL)
    assert "true" not in str(caught.value)


def test_aliases_are_bounded() -> None:
    """A few are fine, a bomb is not."""
    assert b"*a" in merge(b"machine: {}\nx: &a {y: 1}\nz: *a\n", FULL)
    bomb = b"machine: {}\na: &a [1,1,1,1,1,1,1,1,1,1]\n"
    for this, below in zip("bcdef", "abcde", strict=True):
        bomb += f"{this}: &{this} [{','.join([f'*{below}'] * 10)}]\n".encode()
    with pytest.raises(BaseConfigInvalid, match="tenfold"):
        merge(bomb, FULL)


def test_secrets_are_not_in_errors() -> None:
    """A syntax error near a secret does not print it."""
    with pytest.raises(BaseConfigInvalid) as caught:
        merge(b"machine:\n  token: canary-secret\n bad: [\n", FULL)
    assert "canary" not in str(caught.value)
    assert caught.value.__cause__ is None


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


def test_what_grows_beyond_the_limit_is_refused() -> None:
    """The merged configuration has the same limit as the base."""
    base = b"machine: {}\n#" + b"x" * (MAX_BYTES - 20) + b"\n"
    with pytest.raises(BaseConfigInvalid, match="merged"):
        merge(base, FULL)
