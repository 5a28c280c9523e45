"""Files that others make: role configurations, secrets, who vouches for TPMs."""

from __future__ import annotations

import stat
from pathlib import Path

from attestation.errors import (
    BaseConfigInvalid,
    BaseConfigMissing,
    ConfigurationUnreadable,
    SignerUnavailable,
)
from attestation_service.configs.kept import KeptConfigurations
from attestation_service.configs.rendering import NOBODY, completed, texts_of
from attestation_service.inspection.case import Case, Findings, failed, ok, warning
from attestation_service.verifier.endorsements import Anchors
from attestation_service.verifier.firmware import load_advisories

ENV_FILE = Path(".env")


def configurations(case: Case) -> Findings:
    """The keys and the versions that are kept; else the folder, and a file for each cluster and role in use."""
    settings, kept = case.settings, KeptConfigurations(case.settings)
    folder = settings.config_cache_dir
    if kept.is_on:
        yield from _keys(case, kept)
    if not kept.is_on and not folder.is_dir():
        yield failed(
            "configurations",
            what=f"ITL_CONFIG_CACHE_DIR: the folder {folder} does not exist: no machine would get its configuration",
            todo=f"install -d {folder}, and put <cluster>/<role>-final.yaml into it",
        )
        return
    good = 0
    try:
        for (cluster, role), sources in case.facts.configurations.items() if case.facts is not None else ():
            try:
                completed(texts_of(sources, role, cluster, kept, settings), NOBODY, role, cluster, settings)
            except (BaseConfigMissing, BaseConfigInvalid, ConfigurationUnreadable, SignerUnavailable) as e:
                todo = f"put the right one at {folder / cluster / f'{role}-final.yaml'}"
                if kept.is_on:
                    todo = f"attestation config import {cluster}/{role} FILE, then config activate"
                yield warning(
                    "configurations",
                    what=f"{e}: machines of this cluster and role attest, and get nothing",
                    todo=todo,
                )
            else:
                good += 1
    finally:
        kept.close()
    where = "in the database" if kept.is_on else str(folder)
    yield ok("configurations", what=f"{where}: {good} in use can be read")


def _keys(case: Case, kept: KeptConfigurations) -> Findings:
    """The key-encryption keys: each opened, and none missing that versions lie under."""
    try:
        missing = [each for each in case.facts.keks if not kept.knows(each)] if case.facts is not None else []
        newest = kept.newest()
    except (ConfigurationUnreadable, SignerUnavailable) as e:
        yield failed(
            "configurations",
            what=f"ITL_CONFIG_KEK: {e.__cause__ or e} ({e.code}): no machine would get its configuration",
            todo="put the key back from your backup, or let its token or TPM answer",
        )
        return
    if missing:
        yield failed(
            "configurations",
            what=f"ITL_CONFIG_KEK: versions lie under keys that are not set: {', '.join(missing)}",
            todo="name these keys too, behind the newest, and run attestation config rewrap",
        )
    else:
        yield ok("configurations", what=f"what is new is kept under key {newest}")


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
