"""What is installed beside our wheels, as CycloneDX 1.6: a bill of materials for each installable, from its lock.

Derived from files of the project alone, so the same commit gives the same bytes: requirements.lock says names,
versions, hashes and who needs whom, LICENCES says on what terms. No address of an index stands in it, and no time. What
an extra adds is optional. Needs the standard library only.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping
from typing import Any, Final

from tools import locks

LICENCES: Final = {
    "a2wsgi": "Apache-2.0",
    "aiohappyeyeballs": "PSF-2.0",
    "aiohttp": "Apache-2.0 AND MIT",
    "aiosignal": "Apache-2.0",
    "alembic": "MIT",
    "annotated-doc": "MIT",
    "annotated-types": "MIT",
    "anyio": "MIT",
    "asn1crypto": "MIT",
    "attrs": "MIT",
    "backports-tarfile": "MIT",
    "blinker": "MIT",
    "botocore": "Apache-2.0",
    "cbor2": "MIT",
    "certifi": "MPL-2.0",
    "cffi": "MIT-0",
    "charset-normalizer": "MIT",
    "click": "BSD-3-Clause",
    "colorama": "BSD-3-Clause",
    "common-expression-language": "Apache-2.0",
    "cronsim": "BSD-3-Clause",
    "cryptography": "Apache-2.0 OR BSD-3-Clause",
    "fastapi": "MIT",
    "flask": "BSD-3-Clause",
    "frozenlist": "Apache-2.0",
    "google-re2": "BSD-3-Clause",
    "googleapis-common-protos": "Apache-2.0",
    "grpcio": "Apache-2.0",
    "h11": "MIT",
    "h2": "MIT",
    "hatchling": "MIT",
    "hpack": "MIT",
    "httpcore": "BSD-3-Clause",
    "httpcore2": "BSD-3-Clause",
    "httptools": "MIT",
    "httpx": "BSD-3-Clause",
    "httpx2": "BSD-3-Clause",
    "httpx2-jsfetch": "BSD-3-Clause",
    "hyperframe": "MIT",
    "idna": "BSD-3-Clause",
    "importlib-metadata": "Apache-2.0",
    "iso8601": "MIT",
    "itsdangerous": "BSD-3-Clause",
    "jaraco-classes": "MIT",
    "jaraco-context": "MIT",
    "jaraco-functools": "MIT",
    "jeepney": "MIT",
    "jinja2": "BSD-3-Clause",
    "jmespath": "MIT",
    "joserfc": "BSD-3-Clause",
    "jsonpatch": "BSD-3-Clause",
    "jsonpointer": "BSD-3-Clause",
    "jsonschema": "MIT",
    "jsonschema-specifications": "MIT",
    "keyring": "MIT",
    "kopf": "MIT",
    "lazy-importer": "Apache-2.0",
    "lightkube": "MIT",
    "lightkube-models": "MIT",
    "mako": "MIT",
    "markdown-it-py": "MIT",
    "markupsafe": "BSD-3-Clause",
    "mdurl": "MIT",
    "more-itertools": "MIT",
    "msgspec": "BSD-3-Clause",
    "multidict": "Apache-2.0",
    "opentelemetry-api": "Apache-2.0",
    "opentelemetry-exporter-http-transport": "Apache-2.0",
    "opentelemetry-exporter-otlp-common": "Apache-2.0",
    "opentelemetry-exporter-otlp-proto-common": "Apache-2.0",
    "opentelemetry-exporter-otlp-proto-http": "Apache-2.0",
    "opentelemetry-proto": "Apache-2.0",
    "opentelemetry-sdk": "Apache-2.0",
    "opentelemetry-semantic-conventions": "Apache-2.0",
    "packaging": "Apache-2.0 OR BSD-2-Clause",
    "pathspec": "MPL-2.0",
    "pluggy": "MIT",
    "prometheus-client": "Apache-2.0 AND BSD-2-Clause",
    "prompt-toolkit": "BSD-3-Clause",
    "propcache": "Apache-2.0",
    "protobuf": "BSD-3-Clause",
    "psycopg": "LGPL-3.0-only",
    "psycopg-binary": "LGPL-3.0-only",
    "pycparser": "BSD-3-Clause",
    "pydantic": "MIT",
    "pydantic-core": "MIT",
    "pydantic-settings": "MIT",
    "pygments": "BSD-2-Clause",
    "python-dateutil": "Apache-2.0 OR BSD-3-Clause",
    "python-dotenv": "BSD-3-Clause",
    "python-json-logger": "BSD-2-Clause",
    "python-pkcs11": "MIT",
    "pywin32-ctypes": "BSD-3-Clause",
    "pyyaml": "MIT",
    "referencing": "MIT",
    "requests": "Apache-2.0",
    "rfc3161-client": "Apache-2.0",
    "rich": "MIT",
    "rpds-py": "MIT",
    "ruamel-yaml": "MIT",
    "secretstorage": "BSD-3-Clause",
    "segno": "BSD-3-Clause",
    "shellingham": "ISC",
    "six": "MIT",
    "sqlalchemy": "MIT",
    "starlette": "BSD-3-Clause",
    "structlog": "MIT OR Apache-2.0",
    "tomlkit": "MIT",
    "trove-classifiers": "Apache-2.0",
    "truststore": "MIT",
    "typer": "MIT",
    "typing-extensions": "PSF-2.0",
    "typing-inspection": "MIT",
    "urllib3": "MIT",
    "uvicorn": "BSD-3-Clause",
    "uvloop": "MIT OR Apache-2.0",
    "wcwidth": "MIT",
    "werkzeug": "BSD-3-Clause",
    "wsproto": "MIT",
    "yarl": "Apache-2.0",
    "zipp": "MIT",
}
"""SPDX expressions, as the distributions say in their metadata; in words of SPDX where they use others."""

_PIN = re.compile(r"^[^=]+==(?P<version>[^ ;\\]+)(?: ; (?P<marker>[^\\]+?))? *\\?$", re.MULTILINE)
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


def bill(member: str, lock: str, wheels: Mapping[str, str]) -> str:
    """Return the bill of materials of an installable.

    Args:
        member: One of `locks.INSTALLABLES`.
        lock: Text of requirements.lock.
        wheels: SHA-256 of our wheels as hex, by the name of their distribution; absent ones have no hash.

    Raises:
        KeyError: A distribution without a licence in LICENCES.
    """
    blocks = locks.blocks_of(lock)
    needs = locks.needs_of(blocks)
    extras = locks.project(member)["project"].get("optional-dependencies", {})
    direct = locks.wanted(member).union(*(locks.wanted(member, extra) for extra in extras))
    required, names = locks.reached(blocks, locks.wanted(member)), locks.reached(blocks, direct)
    ours, sdk = _of_ours(member, wheels, kind="application"), _of_ours("sdk", wheels)
    others = {name: _component(name, blocks[name], optional=name not in required) for name in sorted(names)}
    reference = {name: each["bom-ref"] for name, each in others.items()}
    graph = {
        ours["bom-ref"]: [sdk["bom-ref"], *(reference[name] for name in direct)],
        sdk["bom-ref"]: [reference[name] for name in locks.wanted("sdk")],
    } | {reference[name]: [reference[n] for n in needs[name] & names] for name in others}
    said: dict[str, Any] = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": ours},
        "components": [sdk, *others.values()],
        "dependencies": [{"ref": ref, "dependsOn": sorted(on)} for ref, on in graph.items()],
    }
    # The number belongs to these contents: the same contents have the same.
    number = uuid.uuid5(uuid.NAMESPACE_OID, json.dumps(said, sort_keys=True))
    return json.dumps(said | {"serialNumber": number.urn}, indent=2, sort_keys=True) + "\n"


def _of_ours(member: str, wheels: Mapping[str, str], kind: str = "library") -> dict[str, Any]:
    project = locks.project(member)["project"]
    name, version = project["name"], project["version"]
    purl = f"pkg:pypi/{name}@{version}"
    return {
        "type": kind,
        "bom-ref": purl,
        "name": name,
        "version": version,
        "description": project["description"],
        "purl": purl,
        "licenses": [{"expression": project["license"]}],
        "hashes": [{"alg": "SHA-256", "content": wheels[name]}] if name in wheels else [],
    }


def _component(name: str, block: str, *, optional: bool) -> dict[str, Any]:
    pin = _PIN.search(block)
    assert pin is not None, block
    purl = f"pkg:pypi/{name}@{pin['version']}"
    said: dict[str, Any] = {
        "type": "library",
        "bom-ref": purl,
        "name": name,
        "version": pin["version"],
        "purl": purl,
        "scope": "optional" if optional else "required",
        "licenses": [{"expression": LICENCES[name]}],
        # One for each archive in which an index may offer it; one of them is installed.
        "hashes": [{"alg": "SHA-256", "content": digest} for digest in _HASH.findall(block)],
    }
    if pin["marker"]:
        said["properties"] = [{"name": "python:marker", "value": pin["marker"]}]
    return said
