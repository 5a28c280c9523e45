"""What type each field of the server's own resources has: what does not decode is refused before any rule reads it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from attestation_testing.kubernetes.status import Object, bad_request

ANY: Final = "*"
"""Name of all fields of a map."""

Shape = type | Mapping[str, Any] | list[Any]
"""A type, the shapes of fields (of all, under `*`), or the shape of members."""

_WORDS: Final[Shape] = {ANY: str}
_METADATA: Final[Shape] = {
    **dict.fromkeys(
        ("name", "generateName", "namespace", "uid", "resourceVersion", "creationTimestamp"), str
    ),
    "labels": _WORDS,
    "annotations": _WORDS,
    "finalizers": [str],
    "ownerReferences": [dict.fromkeys(("apiVersion", "kind", "name", "uid"), str)],
    "managedFields": [{"fieldsV1": {}}],
    "generation": int,
}
_CONDITIONS: Final[Shape] = [
    dict.fromkeys(("type", "status", "reason", "message", "lastUpdateTime", "lastTransitionTime"), str)
]
_RULES: Final[Shape] = [
    {key: [str] for key in ("verbs", "apiGroups", "resources", "resourceNames", "nonResourceURLs")}
]
_SELECTOR: Final[Shape] = {
    "matchLabels": _WORDS,
    "matchExpressions": [{"key": str, "operator": str, "values": [str]}],
}
_WANTED: Final[Shape] = [
    {
        **{key: [str] for key in ("operations", "apiGroups", "apiVersions", "resources", "resourceNames")},
        "scope": str,
    }
]
_MATCHED: Final[Shape] = {
    "resourceRules": _WANTED,
    "excludeResourceRules": _WANTED,
    "namespaceSelector": _SELECTOR,
    "objectSelector": _SELECTOR,
}
_EXPRESSIONS: Final[Shape] = [_WORDS]
_ADMISSION: Final = "admissionregistration.k8s.io"
_BINDING: Final[Shape] = {
    "subjects": [dict.fromkeys(("apiGroup", "kind", "name", "namespace"), str)],
    "roleRef": dict.fromkeys(("apiGroup", "kind", "name"), str),
}
_RBAC: Final = "rbac.authorization.k8s.io"

SHAPES: Final[Mapping[tuple[str, str], Shape]] = {
    ("certificates.k8s.io", "certificatesigningrequests"): {
        "spec": {
            **dict.fromkeys(("request", "signerName", "username", "uid"), str),
            "usages": [str],
            "groups": [str],
            "extra": {ANY: [str]},
            "expirationSeconds": int,
        },
        "status": {"certificate": str, "conditions": _CONDITIONS},
    },
    ("", "nodes"): {
        "spec": {"unschedulable": bool, "taints": [dict.fromkeys(("key", "value", "effect"), str)]},
        "status": {"conditions": _CONDITIONS, "addresses": [_WORDS]},
    },
    ("", "configmaps"): {"data": _WORDS},
    ("", "secrets"): {"data": _WORDS, "type": str},
    ("", "pods"): {"spec": {}, "status": {"conditions": _CONDITIONS}},
    ("", "namespaces"): {"spec": {"finalizers": [str]}, "status": {}},
    ("coordination.k8s.io", "leases"): {"spec": {"holderIdentity": str, "leaseDurationSeconds": int}},
    ("events.k8s.io", "events"): {
        **dict.fromkeys(
            ("eventTime", "reportingController", "reportingInstance", "action", "reason", "type"), str
        ),
        "note": str,
        "regarding": _WORDS,
    },
    (_RBAC, "roles"): {"rules": _RULES},
    (_RBAC, "clusterroles"): {"rules": _RULES},
    (_RBAC, "rolebindings"): _BINDING,
    (_RBAC, "clusterrolebindings"): _BINDING,
    ("apiextensions.k8s.io", "customresourcedefinitions"): {
        "spec": {
            "group": str,
            "scope": str,
            "names": {**dict.fromkeys(("plural", "kind", "singular", "listKind"), str), "shortNames": [str]},
            "versions": [
                {
                    "name": str,
                    "served": bool,
                    "storage": bool,
                    "schema": {"openAPIV3Schema": {}},
                    "subresources": {},
                    "selectableFields": [{"jsonPath": str}],
                }
            ],
        },
        "status": {"conditions": _CONDITIONS, "storedVersions": [str]},
    },
    (_ADMISSION, "validatingadmissionpolicies"): {
        "spec": {
            "failurePolicy": str,
            "paramKind": _WORDS,
            "matchConstraints": _MATCHED,
            "matchConditions": _EXPRESSIONS,
            "variables": _EXPRESSIONS,
            "validations": _EXPRESSIONS,
        },
        "status": {},
    },
    (_ADMISSION, "validatingadmissionpolicybindings"): {
        "spec": {"policyName": str, "validationActions": [str], "paramRef": {}, "matchResources": _MATCHED}
    },
    (_ADMISSION, "validatingwebhookconfigurations"): {
        "webhooks": [
            {
                **dict.fromkeys(("name", "failurePolicy", "matchPolicy", "sideEffects"), str),
                "clientConfig": {
                    "url": str,
                    "caBundle": str,
                    "service": {"name": str, "namespace": str, "path": str},
                },
                "rules": _WANTED,
                "namespaceSelector": _SELECTOR,
                "objectSelector": _SELECTOR,
                "timeoutSeconds": int,
                "admissionReviewVersions": [str],
            }
        ]
    },
    ("authorization.k8s.io", "subjectaccessreviews"): {
        "spec": {"user": str, "groups": [str], "resourceAttributes": _WORDS, "nonResourceAttributes": _WORDS}
    },
    ("authorization.k8s.io", "selfsubjectaccessreviews"): {
        "spec": {"resourceAttributes": _WORDS, "nonResourceAttributes": _WORDS}
    },
    ("authentication.k8s.io", "tokenreviews"): {"spec": {"token": str, "audiences": [str]}},
    ("", "serviceaccounts"): {
        "spec": {"audiences": [str], "expirationSeconds": int, "boundObjectRef": _WORDS}  # of its token
    },
}
"""By group and plural; fields that are not named may be anything."""


def _fits(value: Any, shape: Any, at: str) -> None:
    """Check *value* and drop what is null in it, as Go's decoder does.

    Raises:
        ValueError: Something has another type; the text says what.
    """
    wanted = shape if isinstance(shape, type) else list if isinstance(shape, list) else dict
    right = isinstance(value, wanted) and not (wanted is int and isinstance(value, bool))
    if not right:
        found = type(value).__name__
        raise ValueError(
            f"json: cannot unmarshal {found} into Go struct field {at} of type {wanted.__name__}"
        )
    if isinstance(shape, list):
        for each in value:
            _fits(each, shape[0], at)
    elif isinstance(shape, Mapping):
        for name in [name for name, each in value.items() if each is None]:
            del value[name]
        for name, each in value.items():
            below = shape.get(name, shape.get(ANY))
            if below is not None:
                _fits(each, below, f"{at}.{name}")


def decode(value: Object, key: tuple[str, str], kind: str) -> None:
    """Refuse an object whose fields have other types than those of its resource; drop what is null.

    Raises:
        StatusError: 400.
    """
    shape: Shape = SHAPES.get(key, {})
    assert isinstance(shape, Mapping)
    try:
        _fits(value, {**shape, "metadata": _METADATA}, kind)
    except ValueError as e:
        version = str(value.get("apiVersion")).rpartition("/")[2]
        raise bad_request(f'{kind} in version "{version}" cannot be handled as a {kind}: {e}') from e
