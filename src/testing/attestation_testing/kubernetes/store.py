"""What is stored, what it was, and who is told: one counter of versions for all, as etcd has it.

Objects are values: who changes one writes another. Everything here happens in the thread of the server.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from attestation_testing.kubernetes.status import Object

Key = tuple[str, str]
"""Group and plural of a resource."""

Place = tuple[Key, tuple[str, str]]
"""Of which resource, and namespace and name."""

MOST_BYTES: Final = 1536 * 1024
"""What etcd takes in one request."""


class Stored(dict[str, Any]):
    """An object that nobody changes any more, with its JSON once somebody asked for it."""

    __slots__ = ("encoded",)

    encoded: bytes | None


_JSON: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False)


def encode(value: Object) -> bytes:
    """Return JSON as it is sent."""
    if not isinstance(value, Stored):
        return _JSON.encode(value).encode()
    if value.encoded is None:
        value.encoded = _JSON.encode(value).encode()
    return value.encoded


def _stored(value: Object) -> Stored:
    kept = Stored(value)
    kept.encoded = None
    return kept


@dataclass(frozen=True, slots=True)
class Change:
    """One write.

    Args:
        version: The counter after it.
        key: Of which resource.
        now: The object after it, or as it was last; of a deletion with the version of the deletion.
        before: The object before it; None where it is new.
        deleted: It is gone.
    """

    version: int
    key: Key
    now: Object
    before: Object | None
    deleted: bool = False


Listener = Callable[[Change], None]


def _owners(value: Object | None) -> set[str]:
    references = () if value is None else value["metadata"].get("ownerReferences") or ()
    return {str(each.get("uid")) for each in references}


class Store:
    """Objects by resource, namespace and name, and a bounded history of changes.

    Args:
        history: How many changes a watch may begin behind.
    """

    def __init__(self, *, history: int = 100_000) -> None:
        self.version = 1
        self._objects: dict[Key, dict[tuple[str, str], Object]] = {}
        self._places: dict[str, Place] = {}
        self._owned: dict[str, dict[Place, None]] = {}
        self._changes: deque[Change] = deque()
        self._most = history
        self.oldest = 1
        self._listeners: dict[int, tuple[Key | None, Listener]] = {}
        self._next = 0

    def get(self, key: Key, namespace: str, name: str) -> Object | None:
        """Return an object; it may not be changed."""
        return self._objects.get(key, {}).get((namespace, name))

    def all(self, key: Key, namespace: str = "") -> list[Object]:
        """Return the objects of a resource by namespace and name, of one namespace or of all."""
        found = self._objects.get(key, {})
        return [found[each] for each in sorted(found) if not namespace or each[0] == namespace]

    def everything(self) -> Iterator[tuple[Key, Object]]:
        """Return each object with its resource."""
        for key, objects in list(self._objects.items()):
            for each in list(objects.values()):
                yield key, each

    def of_uid(self, uid: str) -> tuple[Key, Object] | None:
        """Return the object with a UID, with its resource."""
        if (found := self._places.get(uid)) is None:
            return None
        key, place = found
        return key, self._objects[key][place]

    def owned_by(self, uid: str) -> list[tuple[Key, Object]]:
        """Return the objects that name an owner, with their resources."""
        return [(key, self._objects[key][place]) for key, place in self._owned.get(uid, ())]

    def _index(self, place: Place, before: Object | None, now: Object | None) -> None:
        """Keep what is known of UIDs and owners."""
        for owner in _owners(before):
            self._owned[owner].pop(place, None)
            if not self._owned[owner]:
                del self._owned[owner]
        for owner in _owners(now):
            self._owned.setdefault(owner, {})[place] = None
        if before is not None:
            self._places.pop(before["metadata"]["uid"], None)
        if now is not None:
            self._places[now["metadata"]["uid"]] = place

    def put(self, key: Key, value: Object) -> Object:
        """Store *value*, which becomes ours, under a new version; return it."""
        metadata = value["metadata"]
        place = metadata.get("namespace", ""), metadata["name"]
        value = _stored(value)
        self.version += 1
        metadata["resourceVersion"] = str(self.version)
        objects = self._objects.setdefault(key, {})
        before = objects.get(place)
        objects[place] = value
        self._index((key, place), before, value)
        self._tell(Change(self.version, key, value, before))
        return value

    def remove(self, key: Key, value: Object) -> Object:
        """Delete *value*; return it with the version of its deletion."""
        metadata = value["metadata"]
        place = metadata.get("namespace", ""), metadata["name"]
        self._index((key, place), self._objects[key].pop(place), None)
        self.version += 1
        last = _stored({**value, "metadata": {**metadata, "resourceVersion": str(self.version)}})
        self._tell(Change(self.version, key, last, value, deleted=True))
        return last

    def _tell(self, change: Change) -> None:
        self._changes.append(change)
        if len(self._changes) > self._most:
            self.oldest = self._changes.popleft().version
        for key, listener in list(self._listeners.values()):
            if key in (None, change.key):
                listener(change)

    def since(self, version: int, key: Key) -> Iterable[Change]:
        """Return the changes of a resource after *version*, which must not be older than `oldest`."""
        return [each for each in self._changes if each.version > version and each.key == key]

    def compact(self) -> None:
        """Forget all changes: who watches from an earlier version gets 410."""
        self._changes.clear()
        self.version += 1
        self.oldest = self.version

    def listen(self, key: Key | None, listener: Listener) -> Callable[[], None]:
        """Tell *listener* each change of a resource, or of all; return what ends that."""
        self._next += 1
        number = self._next
        self._listeners[number] = key, listener
        return lambda: self._listeners.pop(number, None) and None
