"""Base configurations as files: where there is no key-encryption key, and where the settings let them stand in.

`<cluster>/<role>-final.yaml` in `ITL_CONFIG_CACHE_DIR`. Those that lie in it directly, as they did before there were
folders (ITL-REFERENCE §17), are of the cluster `default` and of no other: a base holds the secrets of its cluster.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from attestation.api.base import CLUSTER_ID_PATTERN
from attestation.errors import BaseConfigInvalid, BaseConfigMissing
from attestation.machines import DEFAULT_CLUSTER, Role
from attestation.talos.documents import MAX_BYTES

_CLUSTER_ID: Final = re.compile(CLUSTER_ID_PATTERN)


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
