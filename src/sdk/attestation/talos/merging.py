"""A patch for one machine, merged into the configuration of its role: Talos' own strategic merge, in its simple sense.

    mappings       merged, member by member; a member that says nothing (null) changes nothing
    lists          appended, but for those that Talos replaces, and for things that have a name, which are merged by it
    documents      merged by kind and name; a document that the base has not is appended
    anything else  replaced

The base keeps its comments, order and documents. The patch's own comments are left out, and its anchors written out:
an anchor means what follows it in one document, and here two authors would share one.
"""

from __future__ import annotations

from typing import Any, Final

from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.scalarbool import ScalarBoolean
from ruamel.yaml.scalarstring import LiteralScalarString, ScalarString

from attestation.talos.documents import STUMBLES, copied, kind_of, quoted, unreadable

REPLACED: Final = frozenset(
    {
        ("cluster", "network", "podSubnets"),
        ("cluster", "network", "serviceSubnets"),
        ("cluster", "apiServer", "auditPolicy"),
    }
)
"""Members of the v1alpha1 document that a patch replaces whole."""

NAMED_BY: Final = {
    ("machine", "network", "interfaces"): ("interface", "deviceSelector"),
    ("machine", "network", "interfaces", "vlans"): ("vlanId",),
    ("configFiles",): ("mountPath",),
}
"""Lists whose members have a name, and the members that may be it; a list of any other place is appended to."""

Place = tuple[str, ...]


def merge(documents: list[CommentedMap], patch: list[CommentedMap]) -> None:
    """Merge *patch* into *documents*, in place; *patch* is not changed.

    Raises:
        BaseConfigInvalid: A document of either is nothing that can be followed.
    """
    try:
        for each in patch:
            _document(documents, _plainly(each))
    except STUMBLES as e:
        raise unreadable(e) from None


def _document(documents: list[CommentedMap], patch: CommentedMap) -> None:
    if not patch:
        return
    named = (kind_of(patch), patch.get("name"))
    for each in documents:
        if (kind_of(each), each.get("name")) == named:
            _mapping(each, patch, ())
            return
    documents.append(patch)


def _mapping(into: CommentedMap, patch: CommentedMap, place: Place) -> None:
    for key, value in patch.items():
        here = (*place, str(key))
        found = into.get(key)
        if value is None:
            continue
        if here not in REPLACED and isinstance(found, CommentedMap) and isinstance(value, CommentedMap):
            _mapping(_own(into, key), value, here)
        elif here not in REPLACED and isinstance(found, CommentedSeq) and isinstance(value, CommentedSeq):
            _sequence(_own(into, key), value, here)
        else:
            into[key] = value


def _sequence(into: CommentedSeq, patch: CommentedSeq, place: Place) -> None:
    for value in patch:
        index = _same(into, value, NAMED_BY.get(place, ()))
        if index is None:
            into.append(value)
        else:
            _mapping(_own(into, index), value, place)


def _same(into: CommentedSeq, value: Any, names: Place) -> int | None:
    """Return where the thing of the same name stands."""
    if isinstance(value, CommentedMap):
        for name in names:
            if name in value:
                for index, each in enumerate(into):
                    if isinstance(each, CommentedMap) and each.get(name) == value[name]:
                        return index
    return None


def _own(parent: Any, key: Any) -> Any:
    """Return what stands there, as a copy of its own where an anchor, or a merge (`<<`), may let it stand elsewhere."""
    child = parent[key]
    if child.anchor.value is not None or getattr(parent, "merge", None):
        child = parent[key] = copied(child)
        child.yaml_set_anchor(None)
    return child


def _plainly(value: Any) -> Any:
    """Return *value* without comments and anchors."""
    if isinstance(value, dict):
        return CommentedMap({_plainly(key): _plainly(each) for key, each in value.items()})
    if isinstance(value, list):
        return CommentedSeq([_plainly(each) for each in value])
    if isinstance(value, LiteralScalarString):
        return LiteralScalarString(str(value))
    if isinstance(value, ScalarString):
        # Quoted, or anchored: its author's quotes, or none, may have said that it is text.
        return quoted(str(value))
    if getattr(getattr(value, "anchor", None), "value", None) is not None:
        for ruamel, kind in ((ScalarBoolean, bool), (int, int), (float, float)):
            if isinstance(value, ruamel):
                return kind(value)
    return value
