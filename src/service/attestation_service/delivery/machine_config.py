"""The MachineConfig of one machine: the base of its role with the machine's own values written into it, and judged.

Base files are `<cluster>/<role>-final.yaml` in `ITL_CONFIG_CACHE_DIR`. Those that lie in it directly, as they did
before there were folders (ITL-REFERENCE §17), are of the cluster `default` and of no other: a base holds the
secrets of its cluster.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import structlog

from attestation.api.base import CLUSTER_ID_PATTERN
from attestation.errors import BaseConfigInvalid, BaseConfigMissing
from attestation.machines import DEFAULT_CLUSTER, Role
from attestation.talos.completion import Own, complete
from attestation.talos.documents import MAX_BYTES
from attestation.talos.lint import Level, lint, told
from attestation.talos.versions import generation_of
from attestation_service.settings import Settings

log = structlog.get_logger("attestation_service.delivery")

_CLUSTER_ID: Final = re.compile(CLUSTER_ID_PATTERN)
TALOS_ROLES: Final = frozenset({Role.CONTROLPLANE, Role.WORKER_INFRA, Role.WORKER_APP})
"""Roles whose machines run Talos; what the others are given, its schemas say nothing of."""


def load_base(directory: Path, role: Role, cluster_id: str) -> bytes:
    """Read the base configuration of *role* in a cluster; each part of its path is of a closed form.

    Raises:
        BaseConfigMissing: There is no such file.
        BaseConfigInvalid: It is larger than 1 MiB or cannot be read.
    """
    what = f"base configuration for role {role} in cluster {cluster_id}"
    if not _CLUSTER_ID.fullmatch(cluster_id):
        raise BaseConfigMissing(f"no {what}")
    name = f"{Role(role).value}-final.yaml"
    places = [directory / cluster_id / name]
    if cluster_id == DEFAULT_CLUSTER:
        places.append(directory / name)
    for path in places:
        try:
            with path.open("rb") as f:
                text = f.read(MAX_BYTES + 1)
        except FileNotFoundError:
            continue
        except OSError as e:
            raise BaseConfigInvalid(f"{what}: {e.strerror}") from e
        if len(text) > MAX_BYTES:
            raise BaseConfigInvalid(f"{what}: more than {MAX_BYTES} bytes")
        return text
    raise BaseConfigMissing(f"no {what}")


def completed(own: Own, role: Role, cluster_id: str, settings: Settings) -> bytes:
    """Return the base of *role* in a cluster with what is one machine's own, as its version of Talos wants it.

    What that version would refuse is refused here, or told in the log, as `ITL_CONFIG_LINT` says (R37).

    Raises:
        BaseConfigMissing: There is none.
        BaseConfigInvalid: It cannot be used, or Talos would refuse the result.
    """
    generation = generation_of(settings.talos_version)
    config = complete(load_base(settings.config_cache_dir, role, cluster_id), own, generation)
    if role not in TALOS_ROLES:
        return config
    errors = [each for each in lint(config, generation, role) if each.level is Level.ERROR]
    if errors:
        more = f", and {len(errors) - 1} more" if len(errors) > 1 else ""
        what = f"configuration of {role} in cluster {cluster_id}, by Talos {settings.talos_version}: "
        what += told(errors[0]) + more
        if settings.config_lint == "refuse":
            raise BaseConfigInvalid(what)
        log.warning("config.lint", what=what)
    return config
