"""deploy/helm: the settings of the service as values of the chart, and a schema that refuses any others.

Both are derived from `Settings`: `python -m tools.chart` writes them after a setting was added, and a test compares.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from attestation_service.settings import Settings

ROOT: Final = Path(__file__).resolve().parents[1]
CHART: Final = ROOT / "deploy/helm/attestation"
VALUES: Final = CHART / "values.yaml"
SCHEMA: Final = CHART / "values.schema.json"
HELPERS: Final = CHART / "templates/_helpers.tpl"

PLACES: Final = {
    "admin_token": "secrets.adminToken",
    "proxy_secret": "secrets.proxySecret",
    "enrollment_ca_dir": "persistence.keys",
    "config_cache_dir": "secrets.configs",
}
"""Settings that are no value under `settings`, and where the chart has them; those that name a file are in FILES."""

_OMITTED: Final = ("default", "format", "title", "description")
_TEXT: Final = {"type": "string"}
_NAME: Final = {"type": "string", "pattern": "^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?)?$"}
_SIZE: Final = {"type": "string", "pattern": "^[0-9]+(Ki|Mi|Gi|Ti)$"}
_CLASS: Final = {"existingClaim": _NAME, "storageClass": _NAME, "size": _SIZE}
_MODE: Final[Mapping[str, object]] = {
    "accessMode": {"enum": ["ReadWriteOnce", "ReadWriteOncePod", "ReadWriteMany"]}
}
_OBJECT: Final = {"type": "object"}
_LIST: Final = {"type": "array"}
_OBJECTS: Final = {"type": "array", "items": _OBJECT}
_STRINGS: Final = {"type": "object", "additionalProperties": _TEXT}
_URL_WITHOUT_PASSWORD: Final = "^(sqlite:|postgresql(\\+psycopg)?://([^:@/]*@)?[^@]*$)"


def _closed(properties: Mapping[str, object]) -> dict[str, object]:
    return {"type": "object", "additionalProperties": False, "properties": dict(properties)}


def _from(lowest: int, highest: int | None = None) -> dict[str, object]:
    return {"type": "integer", "minimum": lowest} | ({} if highest is None else {"maximum": highest})


def files() -> dict[str, str]:
    """Return which Secret of the chart names the file of which setting, as the templates say it."""
    table = re.search(
        r'define "attestation.files" -}}\n(.*?){{- end }}', HELPERS.read_text("utf-8"), re.DOTALL
    )
    assert table is not None
    return {
        setting: secret
        for secret, told in re.findall(r"^(\w+): \{(.*)\}$", table[1], re.MULTILINE)
        for setting in re.findall(r"(\w+): ", told)
    }


def settings() -> dict[str, Any]:
    """Return the settings that are values of the chart, with their defaults."""
    elsewhere = PLACES.keys() | files().keys()
    found = {}
    for name, field in Settings.model_fields.items():
        if name not in elsewhere:
            default = field.get_default()
            found[name] = "" if default is None else list(default) if isinstance(default, tuple) else default
    return found


def _plain(schema: Any, definitions: Mapping[str, Any]) -> Any:
    """Return a schema of pydantic's without references, and without what only people read."""
    if isinstance(schema, list):
        return [_plain(each, definitions) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _plain(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    return {key: _plain(value, definitions) for key, value in schema.items() if key not in _OMITTED}


def settings_schema() -> dict[str, object]:
    """Return the schema of the values under `settings`: bounds and words of `Settings`; an empty text is unset."""
    whole = Settings.model_json_schema()
    properties: dict[str, object] = {}
    for name in settings():
        schema = _plain(whole["properties"][name], whole.get("$defs", {}))
        if {"type": "null"} in schema.get("anyOf", []):
            schema = {
                "anyOf": [*(each for each in schema["anyOf"] if each != {"type": "null"}), {"const": ""}]
            }
        elif "anyOf" in schema.get("items", {}):
            schema["items"] = _TEXT  # networks of either version
        properties[name] = schema
    # The password of the database has a file: values are kept in the cluster, and shown.
    properties["db_url"] = {
        "type": "string",
        "pattern": _URL_WITHOUT_PASSWORD,
        "not": {"pattern": "[?&]password="},
    }
    return _closed(properties)


def schema(secrets: list[str]) -> dict[str, object]:
    """Return the schema of all values; *secrets* are the names under `secrets`."""
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        **_closed(
            {
                "global": _OBJECT,
                "replicaCount": _from(1, 100),
                "workers": _from(1, 64),
                "image": _closed(
                    {
                        "repository": {"type": "string", "minLength": 1},
                        "tag": _TEXT,
                        "digest": {"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"},
                        "pullPolicy": {"enum": ["Always", "IfNotPresent", "Never"]},
                        "pullSecrets": _OBJECTS,
                    }
                ),
                "secrets": _closed(dict.fromkeys(secrets, _NAME)),
                "persistence": _closed(
                    {
                        "keys": _closed({**_CLASS, **_MODE}),
                        "database": _closed(_CLASS),
                        "bundles": _closed({"enabled": {"type": "boolean"}, **_CLASS, **_MODE}),
                    }
                ),
                "migrations": _closed(
                    {
                        "enabled": {"type": "boolean"},
                        "dbUrl": {"type": "string", "pattern": f"^$|{_URL_WITHOUT_PASSWORD}"},
                        "dbPassword": _NAME,
                    }
                ),
                "extensionSettings": {
                    "type": "object",
                    "propertyNames": {"pattern": "^ITL_EXT_[A-Z0-9_]+$"},
                    "additionalProperties": _TEXT,
                },
                "service": _closed(
                    {
                        "type": {"enum": ["ClusterIP", "NodePort", "LoadBalancer"]},
                        "port": _from(1, 65_535),
                        "nodePort": {"anyOf": [_from(1, 65_535), {"type": "null"}]},
                        "annotations": _STRINGS,
                    }
                ),
                "ingress": _closed(
                    {
                        "enabled": {"type": "boolean"},
                        "className": _TEXT,
                        "host": {"type": "string", "minLength": 1},
                        "annotations": _STRINGS,
                        "tlsSecret": _NAME,
                    }
                ),
                "networkPolicy": _closed(
                    {"enabled": {"type": "boolean"}}
                    | dict.fromkeys(("from", "databasePeers", "httpsPeers", "extraEgress"), _OBJECTS)
                ),
                "podDisruptionBudget": _closed({"enabled": {"type": "boolean"}, "maxUnavailable": _from(1)}),
                "autoscaling": _closed(
                    {
                        "enabled": {"type": "boolean"},
                        "minReplicas": _from(1, 100),
                        "maxReplicas": _from(1, 100),
                        "targetCPUUtilizationPercentage": _from(1, 100),
                    }
                ),
                "resources": _OBJECT,
                "podAnnotations": _STRINGS,
                "podLabels": _STRINGS,
                "nodeSelector": _STRINGS,
                "tolerations": _OBJECTS,
                "affinity": _OBJECT,
                "topologySpreadConstraints": _OBJECTS,
                "priorityClassName": _NAME,
                "serviceAccountName": _NAME,
                "preStopSeconds": _from(0, 300),
                "settings": settings_schema(),
            }
        ),
    }


def written() -> dict[Path, str]:
    """Return the two files as they should be."""
    head, _, _ = VALUES.read_text("utf-8").partition("\nsettings:\n")
    lines = [f"  {name}: {json.dumps(value)}" for name, value in settings().items()]
    secrets = re.search(r"^secrets:\n((?:  .*\n)+)", head, re.MULTILINE)
    assert secrets is not None
    names = re.findall(r"^  (\w+):", secrets[1], re.MULTILINE)
    return {
        VALUES: "\n".join((head, "settings:", *lines, "")),
        SCHEMA: json.dumps(schema(names), indent=1) + "\n",
    }


if __name__ == "__main__":
    for path, content in written().items():
        path.write_text(content, "utf-8")
