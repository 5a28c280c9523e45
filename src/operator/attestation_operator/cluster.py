"""Talking to the API server: lightkube's client, with objects as dictionaries and failures as our errors.

lightkube's own models leave out what they do not know; what is read here is what the API server said.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import httpx2 as httpx
from lightkube import ALL_NS, AsyncClient, KubeConfig
from lightkube.config import client_adapter
from lightkube.config.kubeconfig import SingleConfig
from lightkube.core import resource as res
from lightkube.core.exceptions import ConfigError
from lightkube.generic_resource import Generic, create_api_info
from lightkube.types import PatchType

from attestation.errors import AttestationError
from attestation_operator.errors import (
    ClusterForbidden,
    ClusterRefused,
    ClusterUnavailable,
    ObjectChanged,
    ObjectExists,
    SelectorRefused,
    WatchExpired,
)
from attestation_operator.objects import ACCESS_REVIEW, MANAGER, Key, Kind, Raw, Target, page_objects

TIMEOUT_SECONDS: Final = 10.0
"""Longest silence of an answer."""
ANSWER_SECONDS: Final = 30.0
"""Longest time for all of an answer, for a page of a list: one that comes byte by byte is silent never."""
WATCH_SECONDS: Final = 300
"""After so long the API server ends a watch, and it is begun anew where it ended."""
SILENCE_SECONDS: Final = 150.0
MAX_CONNECTIONS: Final = 8
"""Requests on their way at the same time: the rest waits here. Each looks at all connections before it takes one."""
MAX_NAME_CHARACTERS: Final = 4_096
"""Longer names fit into no address; those of CSRs may be longer than those of other objects (253)."""
_PASSING: Final = frozenset({401, 408, 429})
"""Statuses below 500 that say nothing about the request: a token was changed, too much is asked at the moment."""
_NO_OBJECT: Final = (KeyError, TypeError, AttributeError, RecursionError)
"""What reading JSON of another shape than an API server's ends with."""


def config_from(kubeconfig: Path | None) -> SingleConfig:
    """Return how to reach the API server: as a file says, or as a pod does.

    Raises:
        ClusterUnavailable: There is no such file, or no ServiceAccount, or it cannot be used.
    """
    try:
        read = KubeConfig.from_file(kubeconfig) if kubeconfig else KubeConfig.from_service_account()
        found = read.get()
    except (ConfigError, OSError, KeyError, TypeError, ValueError) as e:
        raise ClusterUnavailable(f"no way to the API server: {e}") from e
    if found is None or found.user is None:
        raise ClusterUnavailable("no way to the API server: the kubeconfig names no user")
    return found


class _Transport(httpx.AsyncHTTPTransport):
    """The network, without a connection that is left open where a request is cancelled in its TLS handshake.

    httpcore closes one whose handshake fails, and forgets one whose handshake is cancelled.
    """

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        connected: Any = None

        async def trace(event: str, info: Mapping[str, Any]) -> None:
            nonlocal connected
            if event == "connection.connect_tcp.complete":
                connected = info["return_value"]
            elif event == "connection.start_tls.failed":
                await connected.aclose()

        request.extensions["trace"] = trace
        return await super().handle_async_request(request)


class KubernetesCluster:
    """The API server, with one identity. To be made and used on one event loop.

    Args:
        config: How to reach it.
        transport: What carries the requests instead of the network: for tests.
    """

    def __init__(self, config: SingleConfig, *, transport: httpx.AsyncBaseTransport | None = None) -> None:
        timeout = httpx.Timeout(TIMEOUT_SECONDS, pool=ANSWER_SECONDS)
        if transport is None:
            assert config.user is not None
            transport = _Transport(
                verify=client_adapter.verify_cluster(
                    config.cluster, config.user, config.abs_file, trust_env=False
                ),
                trust_env=False,
                limits=httpx.Limits(
                    max_connections=MAX_CONNECTIONS, max_keepalive_connections=MAX_CONNECTIONS
                ),
            )
        self._client = AsyncClient(
            config, timeout=timeout, trust_env=False, transport=transport, field_manager=MANAGER
        )
        # Deleting with preconditions is the one request that lightkube has no words for.
        params = client_adapter.ConnectionParams(timeout=timeout, trust_env=False)
        params.transport = transport  # type: ignore[assignment]  # typed for the other client; this one hands it to an AsyncClient
        self._http = client_adapter.AsyncClient(config, params)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._client.aclose()
        await self._http.aclose()

    async def read(self, key: Key) -> Raw | None:
        """Return an object as it is now, None where there is none."""
        if not _may_be(key):
            return None
        with _told(key):
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    found = await self._client.get(_resource(key.kind), _segment(key.name), **_in(key))
            except httpx.HTTPStatusError as e:
                if e.response.status_code == 404:
                    return None
                raise
            return _object(found)

    async def serves(self, kind: Kind) -> bool:
        """Return whether the API server has this kind: its definition may come later, and may go."""
        where: dict[str, Any] = {"namespace": ALL_NS} if kind.namespaced else {}
        with _told(kind):
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    async for _ in self._client.list(_resource(kind), chunk_size=1, **where):
                        break
            except httpx.HTTPStatusError as e:
                if e.response.status_code == 404:
                    return False
                raise
            return True

    async def listed(self, kind: Kind, *, fields: Mapping[str, str] | None = None) -> tuple[list[Raw], str]:
        """Return what `list` returns, and the resourceVersion from which `watch` goes on.

        Raises:
            SelectorRefused: It selects by no such field.
        """
        with _told(kind, selects=fields):
            pages = self._pages(kind, None, None, fields)
            found = [raw async for raw in _in_time(pages)]
            return found, _text(pages.resourceVersion)

    async def list(
        self,
        kind: Kind,
        *,
        namespace: str | None = None,
        labels: Mapping[str, str] | None = None,
        fields: Mapping[str, str] | None = None,
    ) -> list[Raw]:
        """Return all objects of a kind, in all namespaces or one; or those of them that the selectors choose."""
        return [raw async for raw in self.each(kind, namespace=namespace, labels=labels, fields=fields)]

    async def each(
        self,
        kind: Kind,
        *,
        namespace: str | None = None,
        labels: Mapping[str, str] | None = None,
        fields: Mapping[str, str] | None = None,
    ) -> AsyncIterator[Raw]:
        """Yield what `list` returns, with no more than a page of it in memory."""
        with _told(kind, selects=fields):
            async for raw in _in_time(self._pages(kind, namespace, labels, fields)):
                yield raw

    def _pages(
        self,
        kind: Kind,
        namespace: str | None,
        labels: Mapping[str, str] | None,
        fields: Mapping[str, str] | None,
    ) -> Any:
        where = {"namespace": namespace or ALL_NS} if kind.namespaced else {}
        return self._client.list(
            _resource(kind),
            chunk_size=page_objects(kind),
            labels=dict(labels) if labels else None,
            fields=dict(fields) if fields else None,
            **where,
        )

    async def watch(
        self, kind: Kind, since: str, *, fields: Mapping[str, str] | None = None
    ) -> AsyncGenerator[tuple[str, Raw], None]:
        """Yield the changes after a resourceVersion: `ADDED`, `MODIFIED`, `DELETED`, `BOOKMARK`, and the object.

        Ends where the API server ends it: go on from the last resourceVersion.

        Raises:
            WatchExpired: The API server does not remember so far back: list anew.
            SelectorRefused: It selects by no such field.
        """
        query = {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_SECONDS),
            "resourceVersion": since,
        }
        if fields:
            query["fieldSelector"] = ",".join(f"{name}={value}" for name, value in fields.items())
        # A server that is well sends a bookmark each minute; one that is gone is noticed by that.
        timeout = httpx.Timeout(TIMEOUT_SECONDS, read=SILENCE_SECONDS)
        with _told(kind, selects=fields):
            async with self._http.stream("GET", _path(kind), params=query, timeout=timeout) as answer:
                if answer.is_error:
                    await answer.aread()
                answer.raise_for_status()
                async for line in answer.aiter_lines():
                    event = json.loads(line)
                    type_, raw = event["type"], event["object"]
                    if type_ == "ERROR":
                        raise _ended(kind, raw)
                    # A bookmark has a resourceVersion, and no name.
                    _text(raw["metadata"]["resourceVersion"])
                    yield type_, raw if type_ == "BOOKMARK" else _object(raw)

    async def review(self, spec: Raw) -> bool:
        """Ask a SubjectAccessReview with this `spec`; True where it would be allowed."""
        answer = await self.create(ACCESS_REVIEW, {"spec": spec})
        return answer["status"].get("allowed") is True

    async def create(self, kind: Kind, raw: Raw) -> Raw:
        """Create an object, in the namespace that its metadata name; return it as it was stored.

        Raises:
            ObjectExists: There is one of that name.
        """
        where = {"namespace": raw["metadata"]["namespace"]} if kind.namespaced else {}
        with _told(kind):
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    answer: Raw = await self._client.create(_resource(kind)(raw), **where)
            except httpx.HTTPStatusError as e:
                if e.response.status_code == 409 and _member(e.response, "reason") == "AlreadyExists":
                    raise ObjectExists(f"{kind.plural}: {_reason(e.response)}") from e
                raise
            return answer

    async def replace(self, target: Target, change: Raw, *, action: str | None = None) -> bool:
        """PUT *change* to *target*, or to a subresource of it; False where the object is gone."""
        body = {**change, "metadata": {**change.get("metadata", {}), **_precondition(target)}}
        resource = _resource(target.kind, action)

        async def put() -> None:
            await self._client.replace(resource(body), _segment(target.name), **_in(target))

        return await self._done(target, put())

    async def merge(self, target: Target, change: Raw, *, action: str | None = None) -> bool:
        """Merge *change* (RFC 7396) into *target*, or into a subresource of it; False where the object is gone."""
        body = {**change, "metadata": {**change.get("metadata", {}), **_precondition(target)}}
        resource = _resource(target.kind, action)

        async def patch() -> None:
            await self._client.patch(
                resource, _segment(target.name), body, patch_type=PatchType.MERGE, **_in(target)
            )

        return await self._done(target, patch())

    async def apply_status(self, target: Target, status: Raw, *, manager: str, exact: bool = False) -> bool:
        """Say *status* as *manager* (server-side apply); what it said before and does not say now goes.

        The UID goes with it; the resourceVersion only where it is to be *exact*: others write their parts at the same
        time.
        """
        version = {"resourceVersion": target.resource_version} if exact else {}
        body = {
            "apiVersion": target.kind.api_version,
            "kind": target.kind.kind,
            "metadata": {"name": target.name, "uid": target.uid, **version},
            "status": status,
        }

        async def patch() -> None:
            await self._client.patch(
                _resource(target.kind, "status"),
                _segment(target.name),
                body,
                patch_type=PatchType.APPLY,
                field_manager=manager,
                force=True,
                **_in(target),
            )

        return await self._done(target, patch())

    async def delete(self, target: Target) -> bool:
        """Delete *target*, if it is still this object, unchanged; False where it is gone."""

        async def delete() -> None:
            answer = await self._http.request(
                "DELETE",
                f"{_path(target.kind, target.namespace)}/{_segment(target.name)}",
                json={
                    "apiVersion": "v1",
                    "kind": "DeleteOptions",
                    "preconditions": {"uid": target.uid, "resourceVersion": target.resource_version},
                },
            )
            answer.raise_for_status()

        return await self._done(target, delete())

    async def _done(self, target: Target, request: Any) -> bool:
        with _told(target):
            try:
                async with asyncio.timeout(ANSWER_SECONDS):
                    await request
            except httpx.HTTPStatusError as e:
                if e.response.status_code == 404:
                    return False
                raise
            return True


@contextlib.contextmanager
def _told(what: Kind | Key | Target, *, selects: Mapping[str, str] | None = None) -> Iterator[None]:
    """Tell failures of HTTP as our errors; *selects* are the fields that were selected by."""
    named = what.plural if isinstance(what, Kind) else f"{what.kind.plural} {what}"
    try:
        yield
    except httpx.HTTPStatusError as e:
        status = e.response.status_code
        words = f"{named}: the API server answered {status}: {_reason(e.response)}"
        if status == 409:
            raise ObjectChanged(words) from e
        if status == 410:
            raise WatchExpired(words) from e
        if status == 400 and selects:
            raise SelectorRefused(words) from e
        if status >= 500 or status in _PASSING:
            raise ClusterUnavailable(words) from e
        raise (ClusterForbidden if status == 403 else ClusterRefused)(words) from e
    except (httpx.HTTPError, httpx.StreamError, ConfigError, OSError, ValueError, *_NO_OBJECT) as e:
        # A token file that is not there for a moment is one of them; so is an answer that is not JSON, or nothing that
        # an API server says, or not whole in time.
        raise ClusterUnavailable(f"{named}: the API server did not answer: {type(e).__name__}") from e


async def _in_time(pages: Any) -> AsyncIterator[Raw]:
    """Yield the objects of a list; each page of it is there in time. What is done between them takes its own."""
    objects = aiter(pages)
    while True:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                raw = await anext(objects)
        except StopAsyncIteration:
            return
        yield _object(raw)


def _object(found: Any) -> Raw:
    """Return an object that the API server told, which says which one it is.

    What answers for an API server may be something else, for a moment: none of what reads objects is to end by it.
    """
    for name in ("name", "uid", "resourceVersion"):
        _text(found["metadata"][name])
    raw: Raw = found
    return raw


def _text(found: Any) -> str:
    if not isinstance(found, str):
        raise TypeError("no text")
    return found


def _may_be(key: Key) -> bool:
    """Return False of a name that no object has: it would lead to another path, and what is refused there is no answer.

    The rule is the API server's own, for names of any kind.
    """
    if len(key.name) > MAX_NAME_CHARACTERS:
        return False
    return key.name not in (".", "..") and not {"/", "%"} & set(key.name)


def _ended(kind: Kind, status: Raw) -> AttestationError:
    """Return what ended a watch, of the Status that the API server sent."""
    words = (
        f"{kind.plural}: the watch ended with {status.get('code')}: {str(status.get('message') or '')[:300]}"
    )
    return WatchExpired(words) if status.get("code") == 410 else ClusterUnavailable(words)


def _reason(response: httpx.Response) -> str:
    """Return what the API server says why, at most 300 characters; never an object."""
    return _member(response, "message") or _member(response, "reason") or "no reason given"


def _member(response: httpx.Response, name: str) -> str:
    """Return a member of the Status that the API server answered with, at most 300 characters; empty without."""
    try:
        return str(response.json().get(name) or "")[:300]
    except (ValueError, AttributeError, RecursionError):
        return ""


def _in(what: Key | Target) -> dict[str, Any]:
    """Return lightkube's argument for the namespace of an object, nothing where it has none."""
    return {} if what.namespace is None else {"namespace": _segment(what.namespace)}


def _path(kind: Kind, namespace: str | None = None) -> str:
    """Return the path of all objects of a kind, or of those in a namespace, below the API server's address."""
    place = f"apis/{kind.api_version}" if kind.group else f"api/{kind.version}"
    if namespace is not None:
        place = f"{place}/namespaces/{_segment(namespace)}"
    return f"{place}/{kind.plural}"


def _precondition(target: Target) -> dict[str, str]:
    return {"name": target.name, "uid": target.uid, "resourceVersion": target.resource_version}


def _segment(name: str) -> str:
    """Return a name as one segment of a path: names of CSRs may have any character but / and %."""
    return quote(name, safe="")


@cache
def _resource(kind: Kind, action: str | None = None) -> Any:
    """Return lightkube's resource for objects of *kind*, or for a subresource of them: `status`, `approval`."""
    info = create_api_info(kind.group, kind.version, kind.kind, kind.plural)
    if action is None:
        scope: type = res.NamespacedResourceG if kind.namespaced else res.GlobalResource
        return type(kind.kind, (scope, Generic), {"_api_info": info})
    info = res.ApiInfo(
        resource=info.resource,
        parent=info.resource,
        plural=kind.plural,
        verbs=["get", "patch", "put"],
        action=action,
    )
    scope = res.NamespacedSubResource if kind.namespaced else res.GlobalSubResource
    return type(f"{kind.kind}{action.capitalize()}", (scope, Generic), {"_api_info": info})
