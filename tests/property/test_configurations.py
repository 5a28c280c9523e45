"""What a machine is given, whatever base, patch and its own values are: valid, the same twice, nothing injected."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from ruamel.yaml import YAML

from attestation.machines import Role
from attestation.talos.completion import Own, OwnFile
from attestation.talos.documents import read_stream, write_stream
from attestation.talos.lint import lint
from attestation.talos.rendering import TALOS_ROLES, render
from attestation.talos.versions import Generation, definitions, kinds

NAMES = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,20}[a-z0-9])?(\.[a-z0-9]{1,5})?", fullmatch=True)
ADDRESSES = st.ip_addresses().flatmap(
    lambda ip: st.integers(0, ip.max_prefixlen).map(lambda length: f"{ip}/{length}")
)
HOSTILE = st.text(max_size=40) | st.sampled_from(
    [
        "off",
        "0x10",
        "1e3",
        "~",
        "a: b",
        "- x",
        "*x",
        "&x y",
        "!!int 1",
        "a\nb: c",
        "---",
        "...",
        "# x",
        '"',
        "%",
    ]
)
"""Text as nobody would call a machine: whatever stands in a field of ours is its value, and nothing more."""
ONE_LINE = HOSTILE.map(lambda text: re.sub("[\x85\u2028\u2029]", "", text))
"""Without what `documents.read_stream` refuses, because it ends a line for some readers alone."""
WORDS = st.from_regex(r"[a-z][a-zA-Z0-9]{0,8}", fullmatch=True)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.integers(-(1 << 40), 1 << 40) | st.booleans() | ONE_LINE.map(lambda text: f"t{text}"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=8,
)
LATE = Generation.ALL_DOCUMENTS


def base_of(role: Role, generation: Generation) -> str:
    """Return a base as each generation writes one, with comments, and a document that nothing of ours reads."""
    kind = "controlplane" if role is Role.CONTROLPLANE else "worker"
    text = f"# the base of {role}\nversion: v1alpha1 # the only one\n"
    text += f"machine:\n  type: {kind} # it is\n  token: abc.def\n"
    if generation is not LATE:
        text += "  install:\n    disk: /dev/sda # the first\n"
        text += "cluster:\n  controlPlane:\n    endpoint: https://cluster.example:6443\n"
    if generation.since(Generation.NETWORK_DOCUMENTS):
        text += "---\napiVersion: v1alpha1\nkind: LinkConfig\nname: eno1 # the left one\n"
    text += "---\n# logs\napiVersion: v1alpha1\nkind: KmsgLogConfig\nname: remote\n"
    return text + "url: udp://10.0.0.1:514 # there\n"


def own_of(hostname: str | None, ip: str | None, file: str | None, generation: Generation) -> Own:
    """Return what is a machine's own."""
    path = "/etc/itl-tpm/enrollment.crt" if generation is LATE else "/var/lib/itl-tpm/enrollment.crt"
    return Own(
        machine_id="7f3ad3ac-0f0e-4c55-9d4a-3f6f0e1b2c3d",
        ek_fingerprint="1234567890123456" * 6,
        hostname=hostname,
        assigned_ip=ip,
        installer_image="registry.example/installer:v1",
        files=() if file is None else (OwnFile(path=path, content=file, mode=0o444),),
    )


def as_another_reader_sees(text: bytes) -> list[dict[str, Any]]:
    """Return the documents, read by what did not write them."""
    return [each for each in YAML(typ="safe", pure=True).load_all(text) if each is not None]


@pytest.mark.parametrize("generation", Generation)
@pytest.mark.parametrize("role", sorted(TALOS_ROLES))
def test_every_role_of_every_generation_is_valid_and_the_same_again(
    role: Role, generation: Generation
) -> None:
    """By the schema of that generation, document by document; re-emitted byte for byte; comments survive."""
    validators = {
        kind: Draft202012Validator({"$ref": f"#/$defs/{name}", "$defs": definitions(generation)})
        for kind, name in kinds(generation).items()
    }
    base = base_of(role, generation)

    @settings(max_examples=8)
    @given(st.none() | NAMES, st.none() | ADDRESSES, st.none() | HOSTILE)
    def check(hostname: str | None, ip: str | None, file: str | None) -> None:
        own = own_of(hostname, ip, file, generation)
        found = render(base.encode(), None, own, role, generation)
        assert found.findings == () == lint(found.text, generation, role)
        documents = as_another_reader_sees(found.text)
        for each in documents:
            validators[each.get("kind", "")].validate(each)
        assert write_stream(read_stream(found.text)) == found.text
        assert render(found.text, None, own, role, generation).text == found.text
        for comment in ("# the base of", "# the only one", "# it is", "# logs", "# there"):
            assert comment.encode() in found.text
        content = documents[0]["machine"].get("files", [{}])[0].get("content") or next(
            (each["contents"] for each in documents if each.get("kind") == "EtcFileConfig"), None
        )
        assert (content or "") == (file or "")

    check()


@settings(max_examples=40)
@given(HOSTILE, HOSTILE, HOSTILE, st.sampled_from(Generation))
def test_nothing_is_injected_through_a_field_of_ours(
    hostname: str, ip: str, file: str, generation: Generation
) -> None:
    """Each value is the text that it was, at its place; no other document, member or comment comes of it."""
    base = base_of(Role.WORKER_APP, generation)

    def shape(values: tuple[str, str, str]) -> list[Any]:
        own = own_of(*values, generation)
        return as_another_reader_sees(render(base.encode(), None, own, Role.WORKER_APP, generation).text)

    harmless, found = shape(("name", "address", "content")), shape((hostname, ip, file))
    words = {"name": hostname, "address": ip, "content": file}

    def put(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: put(each) for key, each in value.items()}
        if isinstance(value, list):
            return [put(each) for each in value]
        return words.get(value, value) if isinstance(value, str) else value

    if hostname and ip:  # an empty one is none
        assert found == put(harmless)


@settings(max_examples=40)
@given(st.dictionaries(WORDS, VALUES, max_size=4), st.dictionaries(WORDS, VALUES, max_size=4))
def test_a_patch_keeps_what_it_does_not_name(base: dict[str, Any], patch: dict[str, Any]) -> None:
    """Of any base: members that the patch names not are as they were; what only the patch has is as it says."""
    head = {"version": "v1alpha1", "machine": {"type": "worker"}}

    def text(value: dict[str, Any]) -> bytes:
        import io

        out = io.StringIO()
        YAML(typ="safe", pure=True).dump(value, out)
        return out.getvalue().encode()

    for name in head:
        base.pop(name, None)
        patch.pop(name, None)
    for each in (base, patch):
        each.pop("kind", None)
        each.pop("name", None)
    found = render(text(head | base), text(patch), None, Role.LINUX, Generation.CLASSIC)
    [document] = as_another_reader_sees(found.text)
    assert {name: value for name, value in document.items() if name not in patch} == head | {
        name: value for name, value in base.items() if name not in patch
    }
    for name, value in patch.items():
        if name not in base:
            assert document[name] == value
    assert write_stream(read_stream(found.text)) == found.text
