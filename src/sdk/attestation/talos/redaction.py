"""A configuration as people may see it: its keys, and of its values those that are known to be no secret (§2.4).

What is shown is allowed one by one: a value whose place the schema knows, which is no secret member, and which stands
in no free text, headers, environment or file. So a member that a later version brings is hidden until it is known, and
a document of an unknown kind is hidden whole. Comments are left out: people keep old keys in them.
"""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from ruamel.yaml import YAML

from attestation.talos.documents import kind_of, plain, read_stream
from attestation.talos.versions import Generation, definitions, kinds
from attestation.text import clean

HIDDEN: Final = "<redacted>"

SECRET_MEMBERS: Final = frozenset(
    {
        *(
            "token",
            "key",
            "secret",
            "passphrase",
            "password",
            "auth",
            "identityToken",
            "privateKey",
            "presharedKey",
        ),
        *("apiToken", "uniqueToken", "aescbcEncryptionSecret", "secretboxEncryptionSecret", "clusterSecret"),
        *("content", "contents", "manifest", "config"),  # of files, of manifests, of KubeEtcdEncryptionConfig
        *("env", "environment", "variables", "headers", "extraManifestHeaders"),
        *("args", "extraArgs"),  # of programs, which are told passwords and tokens so
    }
)
"""Members that hold a secret, or a text that may, wherever they stand."""

SHOWN_MAPS: Final = frozenset(
    {"labels", "annotations", "taints", "nodeLabels", "nodeAnnotations", "nodeTaints", "sysctls", "sysfs"}
)
"""Members with keys of the author's own whose values are shown; those of others (environment, headers) are not."""

_URL: Final = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*://)(?:[^/?#\s]*@)?(?P<rest>[^?#\s]*)(?P<more>[?#].*)?", re.DOTALL
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One difference between two configurations.

    Args:
        document: Kind and name of the document; `(2)` for the second that has them.
        path: Where in it.
        before: What stood there, redacted; None where nothing did.
        after: What stands there, redacted; None where nothing does.
    """

    document: str
    path: str
    before: str | None
    after: str | None


def preview(text: bytes, generation: Generation) -> str:
    """Return *text* as YAML, without comments, with every value hidden that is not known to be shown.

    Raises:
        BaseConfigInvalid: Not YAML that everybody reads alike.
    """
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.width = 1 << 20
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]  # it is declared as None
    out = io.StringIO()
    yaml.dump_all([_redacted(plain(each), kind_of(each), generation) for each in read_stream(text)], out)
    return out.getvalue()


def differences(before: bytes, after: bytes, generation: Generation) -> tuple[Change, ...]:
    """Return what changes from *before* to *after*, in the order of the paths; that a hidden value changes is told.

    Raises:
        BaseConfigInvalid: One of them is not YAML that everybody reads alike.
    """
    old, new = _leaves(before, generation), _leaves(after, generation)
    changes = []
    for place in sorted(old.keys() | new.keys()):
        was, now = old.get(place), new.get(place)
        if (was and was[0]) != (now and now[0]):
            changes.append(
                Change(document=place[0], path=place[1], before=was and was[1], after=now and now[1])
            )
    return tuple(changes)


def _leaves(text: bytes, generation: Generation) -> dict[tuple[str, str], tuple[str, str]]:
    """Return each value, as it is and as it is shown, by its document and path."""
    found: dict[tuple[str, str], tuple[str, str]] = {}
    seen: Counter[str] = Counter()
    for document in read_stream(text):
        kind, value = kind_of(document), plain(document)
        shown = dict(_walk(_redacted(value, kind, generation)))
        name = " ".join(
            filter(None, [clean(kind)[:64] or "v1alpha1", clean(str(shown.get("name", "")))[:64]])
        )
        seen[name] += 1
        if seen[name] > 1:
            name += f" ({seen[name]})"
        for path, leaf in _walk(value):
            # A document that is hidden whole has no paths of its own: each of its values stands for it.
            found[(name, path)] = (repr(leaf), str(shown.get(path, HIDDEN)))
    return found


def _walk(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for key, each in value.items():
            yield from _walk(each, f"{path}.{key}" if path else key)
    elif isinstance(value, list) and value:
        for index, each in enumerate(value):
            yield from _walk(each, f"{path}[{index}]")
    else:
        yield path, value


def _redacted(value: Any, kind: str, generation: Generation) -> Any:
    """Return a document without what is not shown; of an unknown kind nothing but the kind is left."""
    older = (each for each in reversed(Generation) if not each.since(generation))
    for each in (generation, *older, generation.later_schema):
        if each is not None and (name := kinds(each).get(kind)) is not None:
            return _shown(value, {"$ref": f"#/$defs/{name}"}, definitions(each))
    return {"kind": kind, "document": HIDDEN}


def _shown(value: Any, schema: Any, definitions: dict[str, Any]) -> Any:
    """Return *value* with what may be shown of it; *schema* is None where the place is not known."""
    if isinstance(schema, dict) and "$ref" in schema:
        schema = definitions[schema["$ref"].removeprefix("#/$defs/")]
    if isinstance(value, dict):
        known = schema.get("properties", {}) if isinstance(schema, dict) else {}
        return {key: _member(key, each, known.get(key), definitions) for key, each in value.items()}
    if isinstance(value, list):
        items = schema.get("items") if isinstance(schema, dict) else None
        return [_shown(each, items, definitions) for each in value]
    return _scalar(value) if isinstance(schema, dict) else HIDDEN


def _member(key: str, value: Any, schema: Any, definitions: dict[str, Any]) -> Any:
    if key in SECRET_MEMBERS:
        return _shown(value, None, definitions)
    if key in SHOWN_MAPS and schema is not None and isinstance(value, dict):
        return {word: _scalar(each) for word, each in value.items()}
    return _shown(value, schema, definitions)


def _scalar(value: Any) -> Any:
    """Return a value that is shown; of an address only where it leads, never who is let in or what is asked."""
    if isinstance(value, (dict, list)):
        return HIDDEN
    if isinstance(value, str):
        return _URL.sub(_address, value)
    return value


def _address(found: re.Match[str]) -> str:
    return found["scheme"] + found["rest"] + (f"?{HIDDEN}" if found["more"] else "")
