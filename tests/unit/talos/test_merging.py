"""A patch is merged as Talos merges one: by member, by name, lists appended; the base keeps everything else."""

from __future__ import annotations

from typing import Any

import pytest
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedSeq

from attestation.errors import BaseConfigInvalid
from attestation.talos.documents import copied, read_stream, write_stream
from attestation.talos.merging import merge


def merged(base: str, patch: str) -> str:
    """Return *base* with *patch*."""
    documents = read_stream(base.encode())
    merge(documents, read_stream(patch.encode()))
    return write_stream(documents).decode()


def loaded(text: str) -> list[object]:
    """Return the documents of *text* as another reader sees them."""
    return list(YAML(typ="safe").load_all(text))


LINK = "apiVersion: v1alpha1\nkind: LinkConfig\nname: {}\n"


@pytest.mark.parametrize(
    ("base", "patch", "result"),
    [
        ("machine: {a: 1, b: {c: 2}}", "machine: {b: {d: 3}}", {"machine": {"a": 1, "b": {"c": 2, "d": 3}}}),
        ("machine: {a: 1}", "machine: {a: 2}", {"machine": {"a": 2}}),
        ("machine: {a: 1}", "machine: {a: null}", {"machine": {"a": 1}}),
        ("machine: {a: 1}", "{}", {"machine": {"a": 1}}),
        ("machine: {a: [1]}", "machine: {a: [2]}", {"machine": {"a": [1, 2]}}),
        ("machine: {a: [1]}", "machine: {a: 3}", {"machine": {"a": 3}}),
        (
            "cluster: {network: {podSubnets: [a], serviceSubnets: [b], cni: {name: none}}}",
            "cluster: {network: {podSubnets: [c], serviceSubnets: [d]}}",
            {"cluster": {"network": {"podSubnets": ["c"], "serviceSubnets": ["d"], "cni": {"name": "none"}}}},
        ),
        (
            "machine: {network: {interfaces: [{interface: e0, mtu: 1}, {interface: e1}]}}",
            "machine: {network: {interfaces: [{interface: e1, dhcp: true, vlans: [{vlanId: 2}]}]}}",
            {
                "machine": {
                    "network": {
                        "interfaces": [
                            {"interface": "e0", "mtu": 1},
                            {"interface": "e1", "dhcp": True, "vlans": [{"vlanId": 2}]},
                        ]
                    }
                }
            },
        ),
        (
            "machine: {network: {interfaces: [{deviceSelector: {busPath: x}, vlans: [{vlanId: 2, mtu: 1}]}]}}",
            "machine: {network: {interfaces: [{deviceSelector: {busPath: x}, vlans: [{vlanId: 2, dhcp: true}]}]}}",
            {
                "machine": {
                    "network": {
                        "interfaces": [
                            {
                                "deviceSelector": {"busPath": "x"},
                                "vlans": [{"vlanId": 2, "mtu": 1, "dhcp": True}],
                            }
                        ]
                    }
                }
            },
        ),
    ],
)
def test_one_document(base: str, patch: str, result: object) -> None:
    """Mappings by member, scalars replaced, null says nothing, lists appended but for those of another rule."""
    assert loaded(merged(base + "\n", patch + "\n")) == [result]


def test_documents_are_merged_by_kind_and_name() -> None:
    """What the base has not is appended, in the order of the patch; the others stay where they are."""
    base = "machine: {}\n---\n" + LINK.format("a") + "---\n" + LINK.format("b")
    patch = LINK.format("b") + "up: true\n---\n" + LINK.format("c") + "---\nmachine: {type: worker}\n"
    found = loaded(merged(base, patch))
    assert [each.get("name") for each in found] == [None, "a", "b", "c"]  # type: ignore[attr-defined]
    assert found[0] == {"machine": {"type": "worker"}}
    assert found[2]["up"] is True  # type: ignore[index]


def test_config_files_are_merged_by_where_they_are() -> None:
    """As Talos does for extension services."""
    head = "apiVersion: v1alpha1\nkind: ExtensionServiceConfig\nname: x\nconfigFiles: "
    found = loaded(
        merged(
            head + "[{mountPath: /a, content: one}]\n",
            head + "[{mountPath: /a, content: two}, {mountPath: /b, content: three}]\n",
        )
    )
    assert found[0]["configFiles"] == [  # type: ignore[index]
        {"mountPath": "/a", "content": "two"},
        {"mountPath": "/b", "content": "three"},
    ]


def test_the_base_keeps_comments_order_and_quotes() -> None:
    """Where the patch says nothing, not a byte changes."""
    base = "# top\nmachine: # of it\n  z: 'one' # last\n  a: two\n---\n# unknown\nkind: Unknown\nx: [1, 2] # list\n"
    assert merged(base, "{}\n") == base
    assert merged(base, "machine: {b: 3}\n") == base.replace("  a: two\n", "  a: two\n  b: 3\n")


def test_no_anchor_joins_two_authors() -> None:
    """An alias of the base means what it did, though the patch has an anchor of the same name; and vice versa."""
    base = "machine: {a: &x {v: base}, b: *x, l: &l [1], m: *l}\n"
    patch = (
        "machine: {c: &x {v: patch}, d: *x, a: {w: 1}, l: [2], s: &s text, t: *s, n: &n 7, o: *n, f: &f 1.5"
    )
    patch += ", y: &y true}\n"
    text = merged(base, patch)
    assert "y: true" in text
    [found] = loaded(text)
    assert found == {
        "machine": {
            "a": {"v": "base", "w": 1},
            "b": {"v": "base"},
            "c": {"v": "patch"},
            "d": {"v": "patch"},
            "l": [1, 2],
            "m": [1],
            "s": "text",
            "t": "text",
            "n": 7,
            "o": 7,
            "f": 1.5,
            "y": True,
        }
    }


def test_a_patch_changes_nothing_that_it_does_not_name() -> None:
    """What two mappings have by a merge is changed in the one that the patch names."""
    base = "a: &x {b: {c: 1, l: [1]}}\nd: {<<: *x, e: 1}\n"
    [found] = loaded(merged(base, "d: {b: {c: 2, l: [2]}}\n"))
    assert found == {"a": {"b": {"c": 1, "l": [1]}}, "d": {"b": {"c": 2, "l": [1, 2]}, "e": 1}}


def test_what_is_text_stays_text() -> None:
    """Quotes of the patch, blocks and folded lines, for readers of YAML 1.1 too."""
    patch = "a: 'off'\nb: \"1\"\nc: |\n  x\n  y\nd: >-\n  x\n  y\ne: 0o600\n"
    text = merged("machine: {}\n", patch)
    assert loaded(text)[0] == {
        "machine": {},
        "a": "off",
        "b": "1",
        "c": "x\ny\n",
        "d": "x y",
        "e": 0o600,
    }
    assert 'a: "off"' in text
    assert 'b: "1"' in text


def test_what_cannot_be_followed_is_refused() -> None:
    """A patch is read as a base is; and a kind that is no word is told of either."""
    documents = read_stream(b"machine: {}\n")
    with pytest.raises(BaseConfigInvalid):
        merge(documents, read_stream(b"kind: [x]\n"))


def test_a_list_is_copied_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ruamel copies what it knows of a list, which grows with it, once for each member."""
    made: list[object] = []
    real = CommentedSeq.copy_attributes

    def copy_attributes(self: CommentedSeq, *arguments: Any, **named: Any) -> Any:
        made.append(self)
        return real(self, *arguments, **named)

    monkeypatch.setattr(CommentedSeq, "copy_attributes", copy_attributes)
    base = "a: [1, 2, 3] # kept\nb: &b {c: [4, 5]}\nd: *b\n"
    [document] = read_stream(base.encode())
    copy = copied(document)
    assert len(made) == 2
    assert write_stream([copy]).decode() == base
    assert copy["b"] is copy["d"]
    copy["d"]["c"].append(6)
    assert document["d"]["c"] == [4, 5]
