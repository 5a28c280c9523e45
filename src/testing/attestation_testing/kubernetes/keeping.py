"""What each write checks of names, labels, finalizers and size, and what an update does not change."""

from __future__ import annotations

import json
from typing import Final

from attestation_testing.kubernetes import certificates
from attestation_testing.kubernetes.apply import owners
from attestation_testing.kubernetes.objects import copied, label_errors
from attestation_testing.kubernetes.requests import Target
from attestation_testing.kubernetes.resources import Resource
from attestation_testing.kubernetes.status import FieldError, Object, StatusError, invalid, required
from attestation_testing.kubernetes.store import MOST_BYTES, encode

_NAME_RULE: Final = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'example.com', regex used for validation is "
    "'[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)
_LABEL_RULE: Final = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character"
)


def metadata_errors(target: Target, metadata: Object) -> list[FieldError]:
    """Return what is wrong with a name, or with labels."""
    errors = []
    name = metadata.get("name")
    if not name:
        errors.append(required("metadata.name", "name or generateName is required"))
    elif (
        not isinstance(name, str)
        or "/" in name
        or "%" in name
        or (not target.resource.any_name and not _is_name(name))
    ):
        errors.append(
            invalid(
                "metadata.name",
                json.dumps(name),
                _NAME_RULE,
            )
        )
    for key, value in label_errors(metadata.get("labels")):
        errors.append(
            invalid(
                "metadata.labels",
                json.dumps(value or key),
                _LABEL_RULE,
            )
        )
    return errors


def measure(value: Object) -> None:
    """Refuse what is larger than etcd takes."""
    size = len(encode(value))
    if size > MOST_BYTES:
        # Resources of the server itself are stored as protobuf: bytes as bytes.
        spec = value.get("spec")
        if isinstance(spec, dict) and isinstance(spec.get("request"), str):
            size -= len(spec["request"]) // 4
    if size > MOST_BYTES:
        raise StatusError(500, "", "etcdserver: request is too large")


def keep(resource: Resource, subresource: str, new: Object, old: Object) -> None:
    """Give back what an update by this way does not change."""
    metadata, before = new["metadata"], old["metadata"]
    if subresource == "status" and resource.custom:
        status = new.get("status")
        managed = metadata.get("managedFields")
        new.clear()
        new.update(copied({key: value for key, value in old.items() if key != "status"}))
        if status is not None:
            new["status"] = status
        if managed:
            new["metadata"]["managedFields"] = managed
        return
    for name in (
        "name",
        "namespace",
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
        "generation",
        "resourceVersion",
        "generateName",
    ):
        if name in before:
            metadata[name] = before[name]
        else:
            metadata.pop(name, None)
    if subresource == "status":
        if "spec" in old:
            new["spec"] = copied(old["spec"])
    elif "status" in resource.subresources and not subresource:
        if "status" in old:
            new["status"] = copied(old["status"])
        else:
            new.pop("status", None)


def finalizer_errors(metadata: Object, before: Object) -> list[FieldError]:
    """Return that finalizers are added to what is being deleted."""
    if not before.get("deletionTimestamp"):
        return []
    added = [
        each for each in metadata.get("finalizers") or () if each not in (before.get("finalizers") or ())
    ]
    if not added:
        return []
    said = "no new finalizers can be added if the object is being deleted, found new finalizers []string{"
    return [
        FieldError(
            "FieldValueForbidden",
            "metadata.finalizers",
            "Forbidden: " + said + ", ".join(f'"{e}"' for e in added) + "}",
        )
    ]


def _is_name(name: str) -> bool:
    return len(name) <= 253 and certificates.is_subdomain(name)  # RFC 1123


def wanted(value: Object, resource: Resource) -> Object:
    """Return what an object wants: all but metadata, and but status where that is written apart."""
    out = ("metadata", "apiVersion", "kind", *(("status",) if "status" in resource.subresources else ()))
    return {key: each for key, each in value.items() if key not in out}


def same(new: Object, old: Object) -> bool:
    """Say whether nothing changed, times of managers and the version of the API aside."""

    def told(value: Object) -> Object:
        metadata = {
            key: each
            for key, each in value["metadata"].items()
            if key not in ("managedFields", "resourceVersion")
        }
        rest = {key: each for key, each in value.items() if key not in ("metadata", "apiVersion")}
        return {**rest, "metadata": metadata}

    return told(new) == told(old) and owners(new) == owners(old)
