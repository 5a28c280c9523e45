"""Patches: RFC 6902, RFC 7386, and the strategic merge patch of Kubernetes."""

from __future__ import annotations

from typing import Any, Final

from attestation_testing.kubernetes.objects import copied
from attestation_testing.kubernetes.resources import ListKeys, Path, SetList, Topology
from attestation_testing.kubernetes.status import StatusError, bad_request

JSON_PATCH: Final = "application/json-patch+json"
MERGE_PATCH: Final = "application/merge-patch+json"
STRATEGIC_PATCH: Final = "application/strategic-merge-patch+json"
APPLY_PATCH: Final = "application/apply-patch+yaml"


def _rejected() -> StatusError:
    return StatusError(422, "Invalid", "the server rejected our request due to an error in our request")


def merge_patch(target: Any, patch: Any) -> Any:
    """Return *target* changed by an RFC 7386 merge patch."""
    if not isinstance(patch, dict):
        return copied(patch)
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge_patch(result.get(key), value)
    return result


def _steps(pointer: object) -> list[str]:
    if not isinstance(pointer, str) or (pointer and not pointer.startswith("/")):
        raise _rejected()
    return [each.replace("~1", "/").replace("~0", "~") for each in pointer.split("/")[1:]]


def _index(step: str, length: int) -> int:
    if not step.isascii() or not step.isdigit() or int(step) > length:
        raise _rejected()
    return int(step)


def _look(document: Any, steps: list[str]) -> Any:
    for step in steps:
        if isinstance(document, dict) and step in document:
            document = document[step]
        elif isinstance(document, list):
            at = _index(step, len(document) - 1)
            document = document[at]
        else:
            raise _rejected()
    return document


def _take(document: Any, steps: list[str]) -> Any:
    parent, last = _look(document, steps[:-1]), steps[-1]
    if isinstance(parent, dict) and last in parent:
        return parent.pop(last)
    if isinstance(parent, list):
        return parent.pop(_index(last, len(parent) - 1))
    raise _rejected()


def _insert(document: Any, steps: list[str], value: Any, *, replace: bool = False) -> Any:
    if not steps:
        return value
    parent, last = _look(document, steps[:-1]), steps[-1]
    if isinstance(parent, dict):
        if replace and last not in parent:
            raise _rejected()
        parent[last] = value
    elif isinstance(parent, list):
        if replace:
            parent[_index(last, len(parent) - 1)] = value
        else:
            parent.insert(len(parent) if last == "-" else _index(last, len(parent)), value)
    else:
        raise _rejected()
    return document


def json_patch(target: Any, patch: object) -> Any:
    """Return *target* changed by an RFC 6902 patch.

    Raises:
        StatusError: 400 where it is no list of operations, 422 where one fails.
    """
    if not isinstance(patch, list) or not all(isinstance(each, dict) for each in patch):
        raise bad_request(
            "error decoding patch: json: cannot unmarshal into Go value of type jsonpatch.Patch"
        )
    document = copied(target)
    for each in patch:
        kind, steps = each.get("op"), _steps(each.get("path"))
        if kind in ("add", "replace", "test") and "value" not in each:
            raise _rejected()
        if kind in ("add", "replace"):
            document = _insert(document, steps, copied(each["value"]), replace=kind == "replace")
        elif kind == "remove" and steps:
            _take(document, steps)
        elif kind == "test":
            if _look(document, steps) != each["value"]:
                raise _rejected()
        elif kind == "copy":
            document = _insert(document, steps, copied(_look(document, _steps(each.get("from")))))
        elif kind == "move":
            document = _insert(document, steps, _take(document, _steps(each.get("from"))))
        else:
            raise _rejected()
    return document


def _merge_list(
    target: list[Any], patch: list[Any], keys: ListKeys, topology: Topology, at: Path
) -> list[Any]:
    result = list(target)
    if any(isinstance(each, dict) and each.get("$patch") == "replace" for each in patch):
        return [copied(each) for each in patch if each.get("$patch") != "replace"]
    for each in patch:
        if not isinstance(each, dict) or any(key not in each for key in keys.keys):
            raise bad_request(f"map: {each!r} does not contain declared merge key: {keys.keys[0]}")
        named = [i for i, old in enumerate(result) if all(old.get(k) == each[k] for k in keys.keys)]
        if each.get("$patch") == "delete":
            result = [old for i, old in enumerate(result) if i not in named]
        elif named:
            result[named[0]] = strategic_merge_patch(result[named[0]], each, topology, (*at, "[]"))
        else:
            result.append(copied(each))
    return result


def strategic_merge_patch(target: Any, patch: Any, topology: Topology, at: Path = ()) -> Any:
    """Return *target* changed by a strategic merge patch: lists of maps and sets by their members.

    Of its directives `$patch: replace`, `$patch: delete` and `$deleteFromPrimitiveList` are known; the order of lists
    is that of the object, then that of the patch.
    """
    if not isinstance(patch, dict):
        return copied(patch)
    if patch.get("$patch") == "replace":
        return {key: copied(value) for key, value in patch.items() if key != "$patch"}
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if key.startswith("$deleteFromPrimitiveList/"):
            name = key.partition("/")[2]
            result[name] = [each for each in result.get(name) or [] if each not in value]
            continue
        if key.startswith(("$setElementOrder/", "$retainKeys")) or key == "$patch":
            continue
        here = (*at, key)
        how = topology.get(here)
        if value is None:
            result.pop(key, None)
        elif isinstance(value, list) and isinstance(how, ListKeys):
            result[key] = _merge_list(result.get(key) or [], value, how, topology, here)
        elif isinstance(value, list) and isinstance(how, SetList):
            before = result.get(key) or []
            result[key] = [*before, *(each for each in value if each not in before)]
        else:
            result[key] = strategic_merge_patch(result.get(key), value, topology, here)
    return result
