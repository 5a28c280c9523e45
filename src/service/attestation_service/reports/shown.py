"""Settings for who may read them: a text that could hold a password, a PIN or a token is not shown.

What is shown is decided by the kind of a setting, and texts by name, so that a new one is hidden until somebody says
otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from enum import StrEnum
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Final, get_origin

from pydantic.fields import FieldInfo

from attestation.api import SettingDetail
from attestation_service.settings import PREFIX, Settings

PLAIN: Final = (bool, int, float, StrEnum, Path, datetime, IPv4Network, IPv6Network)

TEXTS: Final = frozenset(
    (
        "assurance_oid_arc",
        "audit_origin",
        "audit_witnesses",
        "crypto_policy",
        "dual_control_roles",
        "enrollment_ca_algorithm",
        "enrollment_ca_country",
        "enrollment_ca_organization",
        "extensions",
        "log_format",
        "oidc_audience",
        "oidc_auditor_role",
        "oidc_clients",
        "oidc_issuer",
        "oidc_metrics_role",
        "oidc_operator_role",
        "oidc_role_client",
        "oidc_viewer_role",
        "service_url",
        "tls_ciphers",
    )
)
"""Texts that hold no secret. Addresses of other programs are not among them: a password may stand in one."""


def shown(settings: Settings) -> Iterator[SettingDetail]:
    """Yield every setting, by name."""
    for name, about in sorted(Settings.model_fields.items()):
        value = getattr(settings, name)
        is_set = value not in (None, "", ())
        told = _told(value) if is_set and _may_be_shown(name, about, value) else None
        yield SettingDetail(
            name=f"{PREFIX}{name.upper()}",
            value=told,
            is_set=is_set,
            is_default=name not in settings.model_fields_set or value == about.default,
        )


def _may_be_shown(name: str, about: FieldInfo, value: object) -> bool:
    if name in TEXTS or str(get_origin(about.annotation)) == "typing.Literal":
        return True
    each = value if isinstance(value, tuple) else (value,)
    return all(isinstance(one, PLAIN) for one in each)


def _told(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
