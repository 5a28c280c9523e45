"""CustomResourceDefinitions: what they say is served from the moment they are stored."""

# ruff: noqa: ARG002  # a rule that does not look at all that it is given has the same form as one that does
from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from attestation_testing.kubernetes import expressions
from attestation_testing.kubernetes import schema as schemas
from attestation_testing.kubernetes.access import User
from attestation_testing.kubernetes.host import Host
from attestation_testing.kubernetes.objects import text
from attestation_testing.kubernetes.resources import CEL_RULES, SELECTABLE_FIELDS, Resource, Version
from attestation_testing.kubernetes.rules import Rules
from attestation_testing.kubernetes.status import FieldError, Object, invalid, required, unsupported

KEY: Final = ("apiextensions.k8s.io", "customresourcedefinitions")


def _default(schema: schemas.Schema, value: Object) -> None:
    schemas.prune(value, schema)
    schemas.fill(value, schema)


def _validate(
    schema: schemas.Schema, rules: expressions.Rules, new: Object, old: Object | None
) -> list[FieldError]:
    errors = list(schemas.check(new, schema))
    return errors or list(rules.check(new, old))


def _version(said: Object, minor: int) -> Version:
    schema = (said.get("schema") or {}).get("openAPIV3Schema") or {}
    fields = said.get("selectableFields") or () if minor >= SELECTABLE_FIELDS else ()
    selectable = tuple(str(each["jsonPath"]).lstrip(".") for each in fields)
    rules = expressions.Rules(schema if minor >= CEL_RULES else {})
    return Version(
        said["name"],
        schemas.topology(schema),
        selectable,
        partial(_validate, schema, rules),
        partial(_default, schema),
    )


def resource(crd: Object, minor: int) -> Resource:
    """Return what a definition defines to a server of version 1.*minor*, with the stored version first."""
    spec = crd["spec"]
    names, served = spec["names"], [each for each in spec["versions"] if each.get("served")]
    served.sort(key=lambda each: not each.get("storage"))
    parts = {part for each in served for part in each.get("subresources") or () if part == "status"}
    return Resource(
        group=spec["group"],
        plural=names["plural"],
        kind=names["kind"],
        versions=tuple(_version(each, minor) for each in served),
        namespaced=spec["scope"] == "Namespaced",
        subresources=frozenset(parts),
        short_names=tuple(names.get("shortNames") or ()),
        generation=True,
        unconditional=False,
        custom=True,
    )


def _structural(schema: schemas.Schema, at: str) -> Iterator[FieldError]:
    """Return what makes a schema one that the API does not take."""
    if not schema.get("type") and not any(
        schema.get(each) for each in ("x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields")
    ):
        yield required(f"{at}.type", "must not be empty for specified object fields")
    if schema.get("properties") and schema.get("additionalProperties"):
        yield FieldError(
            "FieldValueForbidden",
            f"{at}.additionalProperties",
            "Forbidden: must not be set if properties are set",
        )
    if schema.get("type") == "array" and not schema.get("items"):
        yield required(f"{at}.items", "must be specified")
    keys = schema.get("x-kubernetes-list-map-keys") or ()
    if schema.get("x-kubernetes-list-type") == "map":
        items = schema.get("items") or {}
        for key in keys:
            below = (items.get("properties") or {}).get(key)
            if below is None:
                yield invalid(f"{at}.items.properties", "…", f'"{key}" is a key and must be a property')
            elif key not in (items.get("required") or ()) and "default" not in below:
                yield required(
                    f"{at}.items.properties[{key}].default",
                    "this property is in x-kubernetes-list-map-keys, so it must have a default or be a "
                    "required property",
                )
        if not keys:
            yield required(
                f"{at}.x-kubernetes-list-map-keys", "must not be empty if x-kubernetes-list-type is map"
            )
    for name, below in (schema.get("properties") or {}).items():
        yield from _structural(below, f"{at}.properties[{name}]")
    if isinstance(schema.get("items"), dict):
        yield from _structural(schema["items"], f"{at}.items")
    if isinstance(schema.get("additionalProperties"), dict):
        yield from _structural(schema["additionalProperties"], f"{at}.additionalProperties")


class Definitions(Rules):
    """CustomResourceDefinitions."""

    def __init__(self, host: Host) -> None:
        super().__init__(host)

    def prepare_create(self, new: Object, user: User) -> None:
        """It is established at once."""
        spec = new.get("spec") or {}
        names = spec.get("names") or {}
        if isinstance(names.get("kind"), str):
            names.setdefault("singular", names["kind"].lower())
            names.setdefault("listKind", f"{names['kind']}List")
        self._establish(new, text(self.host.now()))

    @staticmethod
    def _establish(new: Object, at: str) -> None:
        spec = new.get("spec") or {}
        condition = {"status": "True", "lastTransitionTime": at}
        new["status"] = {
            "acceptedNames": spec.get("names") or {},
            "conditions": [
                {
                    "type": "NamesAccepted",
                    "reason": "NoConflicts",
                    "message": "no conflicts found",
                    **condition,
                },
                {
                    "type": "Established",
                    "reason": "InitialNamesAccepted",
                    "message": "the initial names have been accepted",
                    **condition,
                },
            ],
            "storedVersions": [each["name"] for each in spec.get("versions") or () if each.get("storage")],
        }

    def validate(self, new: Object, old: Object | None) -> list[FieldError]:
        """Return what is wrong with a definition."""
        spec = new.get("spec") or {}
        names, versions = spec.get("names") or {}, spec.get("versions") or []
        errors = [
            required(f"spec.{name}") for name in ("group", "names", "scope", "versions") if not spec.get(name)
        ]
        if errors:
            return errors
        errors += [required(f"spec.names.{name}") for name in ("plural", "kind") if not names.get(name)]
        if spec["scope"] not in ("Cluster", "Namespaced"):
            errors.append(unsupported("spec.scope", spec["scope"], ("Cluster", "Namespaced")))
        if new["metadata"].get("name") != f"{names.get('plural')}.{spec['group']}":
            errors.append(
                invalid(
                    "metadata.name",
                    f'"{new["metadata"].get("name")}"',
                    'must be spec.names.plural+"."+spec.group',
                )
            )
        if sum(bool(each.get("storage")) for each in versions) != 1:
            errors.append(
                invalid("spec.versions", "…", "must have exactly one version marked as storage version")
            )
        for index, each in enumerate(versions):
            errors += self._version_errors(each, f"spec.versions[{index}]")
        return errors

    def _version_errors(self, said: Any, at: str) -> list[FieldError]:
        schema = (said.get("schema") or {}).get("openAPIV3Schema")
        where = f"{at}.schema.openAPIV3Schema"
        if schema is None:
            return [required(where, "schemas are required")]
        errors = list(_structural(schema, where))
        if self.host.minor < CEL_RULES:
            return errors
        try:
            expressions.Rules(schema, where)
        except ValueError as e:
            field, _, words = str(e).partition(": ")
            errors.append(invalid(field, "…", f"compilation failed: {words}"))
        return errors

    def prepare_update(self, new: Object, old: Object, subresource: str) -> None:
        """Keep its conditions, and remember versions that were stored."""
        if subresource:
            return
        before = old.get("status") or {}
        self._establish(new, text(self.host.now()))
        new["status"]["conditions"] = before.get("conditions") or new["status"]["conditions"]
        stored = before.get("storedVersions") or []
        new["status"]["storedVersions"] = [
            *stored,
            *(each for each in new["status"]["storedVersions"] if each not in stored),
        ]

    def committed(self, new: Object, old: Object | None) -> None:
        """Serve it."""
        made = resource(new, self.host.minor)
        self.host.resources[made.key] = made

    def deleted(self, last: Object) -> None:
        """Serve it no more, and delete what there is of it."""
        spec = last["spec"]
        gone = self.host.resources.pop((spec["group"], spec["names"]["plural"]))
        for each in self.host.store.all(gone.key):
            self.host.store.remove(gone.key, each)
