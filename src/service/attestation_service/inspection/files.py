"""Files that others make: role configurations, secrets, who vouches for TPMs."""

from __future__ import annotations

import stat
from pathlib import Path

from attestation.errors import BaseConfigInvalid, BaseConfigMissing
from attestation.talos.completion import Own
from attestation_service.delivery.machine_config import completed
from attestation_service.inspection.case import Case, Findings, failed, ok, warning
from attestation_service.verifier.endorsements import Anchors
from attestation_service.verifier.firmware import load_advisories

ENV_FILE = Path(".env")


def configurations(case: Case) -> Findings:
    """The folder, and a file that can be read for each cluster and role in use."""
    folder = case.settings.config_cache_dir
    if not folder.is_dir():
        yield failed(
            "configurations",
            what=f"ITL_CONFIG_CACHE_DIR: the folder {folder} does not exist: no machine would get its configuration",
            todo=f"install -d {folder}, and put <cluster>/<role>-final.yaml into it",
        )
        return
    good = 0
    for cluster, role in case.facts.roles if case.facts is not None else ():
        try:
            completed(_NOBODY, role, cluster, case.settings)
        except (BaseConfigMissing, BaseConfigInvalid) as e:
            yield warning(
                "configurations",
                what=f"{e}: machines of this cluster and role attest, and get nothing",
                todo=f"put the right one at {folder / cluster / f'{role}-final.yaml'}",
            )
        else:
            good += 1
    yield ok("configurations", what=f"{folder}: {good} in use can be read")


_NOBODY = Own(machine_id="x", ek_fingerprint="0" * 96, hostname=None, assigned_ip=None, installer_image="")


def secrets(case: Case) -> Findings:
    """Files that hold a secret: readable by the service and not by everybody. What is in them was read as a setting."""
    settings = case.settings
    named = {
        "ITL_ADMIN_TOKEN_FILE": settings.admin_token_file,
        "ITL_PROXY_SECRET_FILE": settings.proxy_secret_file,
        "ITL_ENROLLMENT_CA_PASSPHRASE_FILE": settings.enrollment_ca_passphrase_file,
        "ITL_TLS_KEY_FILE": settings.tls_key_file,
        ".env": ENV_FILE if ENV_FILE.is_file() else None,
    }
    there = {variable: path for variable, path in named.items() if path is not None and path.exists()}
    open_to_all = {v: p for v, p in there.items() if stat.S_IMODE(p.stat().st_mode) & 0o007}
    for variable, path in open_to_all.items():
        yield warning("secrets", what=f"{variable}: everybody may read {path}", todo=f"chmod o= {path}")
    if there.keys() - open_to_all.keys():
        yield ok(
            "secrets",
            what=f"{', '.join(sorted(there.keys() - open_to_all.keys()))}: not everybody may read them",
        )


def trust(case: Case) -> Findings:
    """Bundle, revocation lists and advisories."""
    Anchors(case.settings)
    load_advisories(case.settings)
    yield ok("trust", what="vendors' certificates, revocation lists and advisories can be read")
