"""CustomResourceDefinitions made of models: structural, with what server-side apply and printing need."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import kubernetes_validate
import pytest
from pydantic import BaseModel, ValidationError
from ruamel.yaml import YAML

from attestation_operator import crds
from attestation_operator.crds.structural import NotStructural, structural
from attestation_operator.crds.v1alpha1 import NodeAttestation, NodeAttestationSpec
from attestation_operator.crds.yaml import document
from attestation_operator.objects import NODE_ATTESTATION, RUNS_GROUP

DEFINITIONS = crds.definitions()


def _places(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, each in schema.get("properties", {}).items():
        yield from _places(each, f"{path}.{name}")
    if "items" in schema:
        yield from _places(schema["items"], f"{path}[]")
    if "additionalProperties" in schema:
        yield from _places(schema["additionalProperties"], f"{path}.*")


def _schema(definition: dict[str, Any]) -> dict[str, Any]:
    [version] = definition["spec"]["versions"]
    found: dict[str, Any] = version["schema"]["openAPIV3Schema"]
    return found


@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda each: each["spec"]["names"]["kind"])
def test_a_schema_is_structural(definition: dict[str, Any]) -> None:
    """Each place has a type; nothing in it is what an API server refuses."""
    for path, place in _places(_schema(definition)):
        assert place.get("type") in ("object", "array", "string", "integer", "boolean"), path
        assert not place.keys() & {"$ref", "$defs", "anyOf", "title", "const"}, path
        assert not {"properties", "additionalProperties"} <= place.keys(), path
        if place["type"] == "array":
            assert "items" in place, path
            assert place["x-kubernetes-list-type"] in ("map", "set", "atomic"), path
        if place.get("x-kubernetes-list-type") == "map":
            # Keys of a list are there in each item, or have a default.
            for name in place["x-kubernetes-list-map-keys"]:
                item = place["items"]
                assert name in item["required"] or "default" in item["properties"][name], path


@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda each: each["spec"]["names"]["kind"])
def test_what_is_open_is_bounded(definition: dict[str, Any]) -> None:
    """Lists, texts and names that authors choose have a largest size in `spec`: rules in CEL cost by it."""
    for path, place in _places(_schema(definition)["properties"]["spec"]):
        if place["type"] == "array":
            assert "maxItems" in place, path
        if place["type"] == "string":
            assert "maxLength" in place or "enum" in place or place.get("format") == "date-time", path
        if "additionalProperties" in place:
            assert "maxProperties" in place, path


@pytest.mark.parametrize("version", ["1.32", "1.37"])
def test_kubernetes_knows_each_member_of_a_definition(version: str) -> None:
    """By its own schemas, from the first version that has selectable fields on."""
    for definition in DEFINITIONS:
        kubernetes_validate.validate(definition, version, strict=True)


def test_members_have_their_words() -> None:
    """`kubectl explain` tells each member of a kind; conditions are told by Kubernetes."""
    for definition in DEFINITIONS:
        for path, place in _places(_schema(definition)):
            name = path.rpartition(".")[2]
            if name in ("", "*", "apiVersion", "kind", "metadata") or "[]" in name or ".conditions[]" in path:
                continue
            assert place.get("description", "").strip(), path


def test_nothing_of_ours_is_left_out_but_what_kopf_may_keep() -> None:
    """`status.kopf` is the one place whose members nobody checks."""
    for definition in DEFINITIONS:
        open_ = [path for path, place in _places(_schema(definition)) if len(place) > 1
                 and place.get("x-kubernetes-preserve-unknown-fields")]  # fmt: skip
        assert open_ == ([] if definition["spec"]["group"] == RUNS_GROUP else [".status.kopf"])
        assert definition["spec"]["versions"][0]["subresources"] == {"status": {}}


def test_the_defaults_of_the_schema_are_those_of_the_model() -> None:
    """An object without `spec` means the same to the API server, to the model, and to the schema of JSON."""

    def filled(schema: dict[str, Any]) -> Any:
        if "default" in schema and schema["default"] != {}:
            return schema["default"]
        if schema["type"] == "object":
            return {
                name: filled(each)
                for name, each in schema["properties"].items()
                if "default" in each or each["type"] == "object"
            }
        return None

    spec = filled(_schema(crds.definition(NODE_ATTESTATION))["properties"]["spec"])
    assert NodeAttestationSpec.model_validate(spec) == NodeAttestationSpec()
    jsonschema_rs.validate(_schema(crds.definition(NODE_ATTESTATION)), {"spec": spec})


@pytest.mark.parametrize(
    "spec",
    [
        {"nodeLifetimeSeconds": 86_401},
        {"nodeLifetimeSeconds": 599},
        {"inTreeApprover": "off"},
        {"signers": []},
        {"signers": [{"name": "no-slash"}]},
        {"signers": [{"name": "a.b/c", "onMissingEvidence": "approve"}]},
        {"bootstrapGroups": [""]},
        {"onTrustLapse": {"taint": "always"}},
    ],
)
def test_schema_and_model_refuse_the_same(spec: dict[str, Any]) -> None:
    """What a server lets through that checks less, a controller does not."""
    assert not jsonschema_rs.is_valid(_schema(crds.definition(NODE_ATTESTATION)), {"spec": spec})
    with pytest.raises(ValidationError):
        NodeAttestationSpec.model_validate(spec)


@pytest.mark.parametrize(
    "spec",
    [
        {"signers": [{"name": "a.b/c"}, {"name": "a.b/c"}]},
        {"bootstrapGroups": ["a", "a"]},
        {"deleteStaleNode": True},
    ],
)
def test_the_model_refuses_what_lists_and_pruning_mean(spec: dict[str, Any]) -> None:
    """A key of a list twice, a member that does not exist: an API server says so by other means."""
    with pytest.raises(ValidationError):
        NodeAttestationSpec.model_validate(spec)


def test_there_is_one() -> None:
    """A rule in CEL refuses every other name; a controller looks at no other."""
    [rule] = _schema(crds.definition(NODE_ATTESTATION))["x-kubernetes-validations"]
    assert rule["rule"] == "self.metadata.name == 'cluster'"


def test_the_yaml_is_read_as_what_was_written() -> None:
    """By another reader of YAML."""
    assert list(YAML(typ="safe", pure=True).load_all(crds.manifest())) == DEFINITIONS


@pytest.mark.parametrize(
    "value",
    [{"a": [], "b": {}, "c": [{"d": [1, [2, 3]]}], "e": None, "f": True}, "yes", "1", "- x", "a: b", "ä", "", "a#b"],
)  # fmt: skip
def test_odd_values_survive_yaml(value: Any) -> None:
    """Empty ones, words that would be something else, texts that look like structure."""
    assert YAML(typ="safe", pure=True).load(document({"k": value})) == {"k": value}


def test_a_model_without_words_in_a_structural_schema_is_refused() -> None:
    """Before an API server does: several types in one place, or none."""

    class Several(BaseModel):
        """One of several."""

        either: int | str

    class Anything(BaseModel):
        """Anything."""

        whatever: Any

    for model in (Several, Anything):
        with pytest.raises(NotStructural):
            structural(model)
    assert structural(NodeAttestation)["properties"]["metadata"] == {"type": "object"}
