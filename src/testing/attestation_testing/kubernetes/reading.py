"""Reading: lists with selectors and pages, watches."""

from __future__ import annotations

import base64
import uuid

from attestation_testing.kubernetes.host import Host
from attestation_testing.kubernetes.objects import Matches, field_selector, label_selector
from attestation_testing.kubernetes.requests import (
    Answer,
    Request,
    Target,
    Watching,
    event_line,
    is_true,
    number,
    shown,
)
from attestation_testing.kubernetes.status import Object, StatusError, bad_request, expired
from attestation_testing.kubernetes.store import Change, encode


class Reading:
    """Lists and watches of *cluster*."""

    def __init__(self, cluster: Host) -> None:
        self._cluster = cluster
        self._pages: dict[str, tuple[int, list[Object]]] = {}

    def selected(self, request: Request, target: Target) -> Matches | None:
        """Return what the selectors of a request let through; None for all."""
        selectable = target.version.selectable
        labels = label_selector(request.query.get("labelSelector", ""))
        fields = field_selector(
            request.query.get("fieldSelector", ""),
            selectable if selectable or target.resource.custom else None,
        )
        checks = [each for each in (labels, fields) if each is not None]
        if target.name:
            checks.append(lambda value: value["metadata"]["name"] == target.name)
        if target.namespace:
            checks.append(lambda value: value["metadata"].get("namespace") == target.namespace)
        if not checks:
            return None
        return lambda value: all(each(value) for each in checks)

    def _version_asked(self, request: Request) -> int | None:
        said = request.query.get("resourceVersion", "")
        if not said:
            return None
        if not said.isascii() or not said.isdigit():
            raise bad_request(
                f'resourceVersion: Invalid value: "{said}": strconv.ParseUint: parsing "{said}": invalid syntax'
            )
        return int(said)

    def list(self, request: Request, target: Target) -> Answer:
        """Answer a list, or a page of it."""
        matches, version = self.selected(request, target), self._version_asked(request)
        start, left = 0, 0
        limit = number(request.query, "limit") or 0
        if token := request.query.get("continue"):
            try:
                page, _, at = base64.urlsafe_b64decode(token).decode().partition(":")
                (seen, found), start = self._pages[page], int(at)
            except (ValueError, KeyError):
                raise expired(
                    "The provided continue parameter is too old to display a consistent list result. You can start "
                    "a new list without the continue parameter."
                ) from None
        else:
            if version is not None and version > self._cluster.store.version:
                raise StatusError(
                    504,
                    "Timeout",
                    f"Too large resource version: {version}, current: {self._cluster.store.version}",
                    {
                        "causes": [
                            {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
                        ]
                    },
                    retry_after=1,
                )
            if request.query.get("resourceVersionMatch") == "Exact" and version not in (
                None,
                self._cluster.store.version,
            ):
                raise expired(f"The resourceVersion for the provided list is too old: {version}")
            seen = self._cluster.store.version
            found = self._cluster.store.all(target.resource.key, target.namespace)
            if matches is not None:
                found = [each for each in found if matches(each)]
            page = ""
        metadata: Object = {"resourceVersion": str(seen)}
        part = found[start : start + limit] if limit else found[start:]
        left = len(found) - start - len(part)
        if left:
            if not page:
                page = uuid.uuid4().hex
                self._pages[page] = (seen, found)
                while len(self._pages) > 100:  # lists that are being paged through
                    del self._pages[next(iter(self._pages))]
            metadata["continue"] = base64.urlsafe_b64encode(f"{page}:{start + len(part)}".encode()).decode()
            if matches is None:
                metadata["remainingItemCount"] = left
        head = {"kind": f"{target.resource.kind}List", "apiVersion": target.api_version, "metadata": metadata}
        items = b",".join(encode(shown(each, target.api_version)) for each in part)
        return Answer(200, encode(head)[:-1] + b',"items":[' + items + b"]}")

    def forget(self) -> None:
        """Forget changes and pages: who watches or lists on from before gets 410."""
        self._pages.clear()
        self._cluster.store.compact()

    def watch(self, request: Request, target: Target) -> Watching:
        """Let a watch through."""
        matches, version = self.selected(request, target), self._version_asked(request)
        resource, api_version = target.resource, target.api_version

        def shows(change: Change) -> bytes | None:
            was = change.before is not None and (matches is None or matches(change.before))
            is_ = not change.deleted and (matches is None or matches(change.now))
            if is_:
                return event_line("MODIFIED" if was else "ADDED", shown(change.now, api_version))
            if not was:
                return None
            if change.deleted:
                return event_line("DELETED", shown(change.now, api_version))
            assert change.before is not None
            # It is what it was when the watch saw it last, with the version of the change.
            metadata = {**change.before["metadata"], "resourceVersion": str(change.version)}
            return event_line("DELETED", {**change.before, "metadata": metadata, "apiVersion": api_version})

        initial = is_true(request.query, "sendInitialEvents")
        bookmarks = is_true(request.query, "allowWatchBookmarks")
        first: list[bytes] = []
        ends = False
        if initial or not version:
            found = self._cluster.store.all(resource.key, target.namespace)
            first = [
                event_line("ADDED", shown(each, api_version))
                for each in found
                if matches is None or matches(each)
            ]
            if initial:
                first.append(self.bookmark(target, initial=True))
        elif version < self._cluster.store.oldest:
            said = expired(f"too old resource version: {version} ({self._cluster.store.oldest})")
            first, ends = [event_line("ERROR", said.as_object())], True
        elif version > self._cluster.store.version:
            raise StatusError(
                504,
                "Timeout",
                f"Too large resource version: {version}, current: {self._cluster.store.version}",
                retry_after=1,
            )
        else:
            first = [
                line for each in self._cluster.store.since(version, resource.key) if (line := shows(each))
            ]
        return Watching(
            resource=resource,
            version=target.version.name,
            first=tuple(first),
            shows=shows,
            bookmarks=bookmarks,
            seconds=number(request.query, "timeoutSeconds"),
            ends=ends,
        )

    def bookmark(self, target: Target | Watching, *, initial: bool = False) -> bytes:
        """Return a bookmark of now."""
        version = target.version if isinstance(target, Watching) else target.version.name
        metadata: Object = {"resourceVersion": str(self._cluster.store.version), "creationTimestamp": None}
        if initial:
            metadata["annotations"] = {"k8s.io/initial-events-end": "true"}
        resource = target.resource
        return event_line(
            "BOOKMARK",
            {"kind": resource.kind, "apiVersion": resource.api_version(version), "metadata": metadata},
        )
