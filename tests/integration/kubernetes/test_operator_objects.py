"""Objects in namespaces, at ours and at the real API server: created, changed by states, deleted, and watched."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from typing import Any, Final

import httpx
import pytest

from attestation.clock import SystemClock
from attestation_operator.actions import Action, Create, Delete, EmitEvent, MergeStatus, SetStatus
from attestation_operator.cluster import KubernetesCluster, config_from
from attestation_operator.errors import (
    ClusterRefused,
    ObjectChanged,
    ObjectExists,
    SelectorRefused,
    WatchExpired,
)
from attestation_operator.executor import KubernetesExecutor
from attestation_operator.nodewatch import NodeWatch
from attestation_operator.objects import Key, Kind, Raw, Target
from attestation_operator.watching import Watcher, connection
from tests.fixtures.kube import FakeKube, KubeAPI, fake, kube, rest
from tests.unit.operator.doubles import Log

__all__ = ["fake", "kube"]

WAIT_SECONDS = 60
NAMES = (f"probe-{number}" for number in itertools.count())
KIND: Final = Kind(group="nodewatch.itl.io", version="v1", kind="Probe", plural="probes", namespaced=True)
PROBES: Final = f"/apis/{KIND.api_version}/namespaces/default/probes"
EVENTS: Final = "/apis/events.k8s.io/v1/namespaces/default/events"
FIELD: Final = "spec.node"
DEFINITION: Final[dict[str, Any]] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": f"{KIND.plural}.{KIND.group}"},
    "spec": {
        "group": KIND.group,
        "scope": "Namespaced",
        "names": {"plural": KIND.plural, "kind": KIND.kind},
        "versions": [
            {
                "name": KIND.version,
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                # 1.20 drops it, and refuses to select by it.
                "selectableFields": [{"jsonPath": ".spec.node"}],
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": {
                                "type": "object",
                                "properties": {"node": {"type": "string"}, "n": {"type": "integer"}},
                            },
                            "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                        },
                    }
                },
            }
        ],
    },
}


def run(work: Coroutine[Any, Any, None]) -> None:
    """Run a test's coroutine, not without end."""

    async def bounded() -> None:
        async with asyncio.timeout(WAIT_SECONDS):
            await work

    asyncio.run(bounded())


async def until(found: Callable[[], Awaitable[bool] | bool]) -> None:
    """Wait until it is so; the bound is that of `run`."""
    while True:
        told = found()
        if told if isinstance(told, bool) else await told:
            return
        await asyncio.sleep(0.02)


def serve(http: httpx.Client) -> None:
    """Have the kind, and wait until it is served."""
    assert http.post(
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", json=DEFINITION
    ).status_code in (201, 409)

    async def served() -> bool:
        return await asyncio.to_thread(lambda: http.get(PROBES).status_code == 200)

    run(until(served))


@pytest.fixture
def http(kube: KubeAPI) -> Iterator[httpx.Client]:
    """An administrator, and the kind."""
    with rest(kube) as client:
        serve(client)
        yield client


@contextlib.asynccontextmanager
async def connected(kube: KubeAPI) -> AsyncIterator[KubernetesCluster]:
    """Yield a connection."""
    cluster = KubernetesCluster(config_from(kube.kubeconfig()))
    try:
        yield cluster
    finally:
        await cluster.aclose()


def apply(kube: KubeAPI, *actions: Action) -> None:
    """Apply actions."""

    async def go() -> None:
        async with connected(kube) as cluster:
            executor = KubernetesExecutor(
                cluster, name="runs", instance="i", leading=lambda: True, clock=SystemClock(), log=Log()
            )
            await executor.apply(actions)

    run(go())


def probe(name: str, node: str = "n1", **metadata: Any) -> Raw:
    """Return an object of the kind."""
    return {"metadata": {"name": name, "namespace": "default", **metadata}, "spec": {"node": node, "n": 1}}


def made(http: httpx.Client, name: str, node: str = "n1", **metadata: Any) -> dict[str, Any]:
    """Create one, as somebody else."""
    raw = {"apiVersion": KIND.api_version, "kind": KIND.kind, **probe(name, node, **metadata)}
    found: dict[str, Any] = http.post(PROBES, json=raw).raise_for_status().json()
    return found


def there(http: httpx.Client, name: str) -> dict[str, Any]:
    """Return one as it is."""
    found: dict[str, Any] = http.get(f"{PROBES}/{name}").raise_for_status().json()
    return found


def test_an_object_is_created_once(kube: KubeAPI, http: httpx.Client) -> None:
    """In its namespace, with its owner; a second time is told apart from other conflicts."""
    name, owner = next(NAMES), Target.of(KIND, made(http, next(NAMES)))
    create = Create(kind=KIND, raw=probe(name, ownerReferences=[owner.reference]))
    apply(kube, create)
    found = there(http, name)
    assert found["metadata"]["ownerReferences"] == [owner.reference]
    assert found["spec"] == {"node": "n1", "n": 1}
    with pytest.raises(ObjectExists):
        apply(kube, create)


def test_a_state_is_left_once(kube: KubeAPI, http: httpx.Client) -> None:
    """Of two who go on from the same state one does; what the other members say stays."""
    name = next(NAMES)
    first = Target.of(KIND, made(http, name))
    apply(kube, MergeStatus(target=first, status={"phase": "Pending", "attempt": 1}))
    with pytest.raises(ObjectChanged):
        apply(kube, MergeStatus(target=first, status={"phase": "Failed"}))
    second = Target.of(KIND, there(http, name))
    apply(kube, MergeStatus(target=second, status={"phase": "Running", "attempt": None}))
    assert there(http, name)["status"] == {"phase": "Running"}
    apply(kube, SetStatus(target=second, manager="m", status={"verdict": "verified"}))
    assert there(http, name)["status"] == {"phase": "Running", "verdict": "verified"}
    assert there(http, name)["spec"] == {"node": "n1", "n": 1}


def test_what_is_deleted_is_what_was_judged(kube: KubeAPI, http: httpx.Client) -> None:
    """Not another one under its name, and not what has changed since."""
    name = next(NAMES)
    old = Target.of(KIND, made(http, name))
    http.delete(f"{PROBES}/{name}").raise_for_status()
    made(http, name)
    with pytest.raises(ObjectChanged):
        apply(kube, Delete(target=old))
    apply(kube, Delete(target=Target.of(KIND, there(http, name))))
    assert http.get(f"{PROBES}/{name}").status_code == 404
    apply(kube, Delete(target=old))


def test_an_event_is_where_its_object_is(kube: KubeAPI, http: httpx.Client) -> None:
    """Also on a server that wants a namespace for each."""
    target = Target.of(KIND, made(http, next(NAMES)))
    apply(kube, EmitEvent(target=target, action="Judge", reason="Verified", note="well"))
    events = http.get(EVENTS).raise_for_status().json()["items"]
    [event] = [each for each in events if each["regarding"].get("uid") == target.uid]
    assert (event["regarding"]["namespace"], event["reason"]) == ("default", "Verified")


def test_objects_are_read_and_listed(kube: KubeAPI, http: httpx.Client) -> None:
    """One, those of a namespace, those of all; by a field where the server selects by it."""
    name = next(NAMES)
    made(http, name, "by-field")

    async def go() -> None:
        async with connected(kube) as cluster:
            found = await cluster.read(Key(kind=KIND, name=name, namespace="default"))
            assert found is not None
            assert await cluster.read(Key(kind=KIND, name=name, namespace="kube-system")) is None
            for namespace, there_ in ((None, True), ("default", True), ("kube-system", False)):
                listed = await cluster.list(KIND, namespace=namespace)
                assert (name in [each["metadata"]["name"] for each in listed]) is there_
            try:
                [one] = await cluster.list(KIND, fields={FIELD: "by-field"})
            except SelectorRefused:
                assert kube.kind == "real"
            else:
                assert one["metadata"]["name"] == name
            with pytest.raises(SelectorRefused):
                await cluster.list(KIND, fields={"spec.n": "1"})

    run(go())


def test_kopf_tells_objects_with_their_namespace(kube: KubeAPI, http: httpx.Client) -> None:
    """One name in two namespaces is two objects, and each goes by itself."""
    name = next(NAMES)
    raw = {"apiVersion": KIND.api_version, "kind": KIND.kind, **probe(name, "kopf")}
    other = PROBES.replace("default", "kube-public")
    made(http, name, "kopf")
    http.post(other, json={**raw, "metadata": {"name": name}}).raise_for_status()
    told: dict[Key, Raw | None] = {}

    async def go() -> None:
        watcher = Watcher([KIND], told.__setitem__, lambda: connection(config_from(kube.kubeconfig())))
        task = asyncio.create_task(watcher.run())
        here, there_ = (Key(kind=KIND, name=name, namespace=each) for each in ("default", "kube-public"))
        await until(lambda: here in told and there_ in told)
        await asyncio.to_thread(http.delete, f"{other}/{name}")
        await until(lambda: told[there_] is None)
        assert told[here] is not None
        task.cancel()
        await asyncio.wait([task])

    run(go())


class Seen:
    """What a watch told."""

    def __init__(self) -> None:
        self.now: dict[str, Any] = {}
        self.gone: list[str] = []
        self.said: list[str | None] = []

    def tell(self, key: Key, raw: Raw | None) -> None:
        """Note it."""
        if raw is None:
            self.now.pop(key.name, None)
            self.gone.append(key.name)
        else:
            self.now[key.name] = raw["spec"]["n"]


@contextlib.asynccontextmanager
async def watching(kube: KubeAPI, node: str, log: Log | None = None, **how: Any) -> AsyncIterator[Seen]:
    """Watch the objects of a node while the block runs, from when it is listed."""
    seen = Seen()
    async with connected(kube) as cluster:
        watch = NodeWatch(
            cluster,
            KIND,
            field=FIELD,
            value=node,
            tell=seen.tell,
            say=seen.said.append,
            log=log or Log(),
            spread=lambda: 0.0,
            **how,
        )
        task = asyncio.create_task(watch.run())
        await until(lambda: seen.said != [])
        try:
            yield seen
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


def test_a_node_sees_its_own(kube: KubeAPI, http: httpx.Client) -> None:
    """What is there, what comes, changes and goes; of the others nothing, whoever selects."""
    mine, other, later = next(NAMES), next(NAMES), next(NAMES)
    made(http, mine, "own")
    made(http, other, "others")

    async def go() -> None:
        async with watching(kube, "own") as seen:
            assert seen.now == {mine: 1}
            await asyncio.to_thread(made, http, later, "own")
            await until(lambda: later in seen.now)
            patch = {"Content-Type": "application/merge-patch+json"}
            for name, change in ((mine, {"n": 2}), (later, {"node": "others"})):
                await asyncio.to_thread(http.patch, f"{PROBES}/{name}", json={"spec": change}, headers=patch)
            await until(lambda: seen.now == {mine: 2})
            await asyncio.to_thread(http.delete, f"{PROBES}/{mine}")
            await until(lambda: seen.now == {})
            assert seen.gone == [later, mine]
            assert set(seen.said) == {None}

    run(go())


def test_a_watch_that_is_cut_off_goes_on(fake: FakeKube) -> None:
    """What went while it was away is told, also where the API server has forgotten."""
    with rest(fake) as http:
        serve(http)
        stays, goes = next(NAMES), next(NAMES)
        made(http, stays)
        made(http, goes)

        async def go() -> None:
            log = Log()
            async with watching(fake, "n1", log) as seen:
                for forget in (False, True):
                    await until(lambda: fake.api.watches() == 1)
                    fake.api.fail(verb="list", status=503, times=1)
                    fake.api.drop_watches()
                    http.delete(f"{PROBES}/{goes}").raise_for_status()
                    if forget:
                        fake.api.forget()
                    await until(lambda: goes not in seen.now)
                    made(http, goes)
                    await until(lambda: goes in seen.now)
                assert seen.now == {stays: 1, goes: 1}
                assert [said for said in seen.said if said is not None]
                assert "watch.failed" in log.events

        run(go())


def test_what_is_too_old_is_told(fake: FakeKube) -> None:
    """410, in the stream: everything is to be listed anew."""
    with rest(fake) as http:
        serve(http)
        old = made(http, next(NAMES))["metadata"]["resourceVersion"]
        made(http, next(NAMES))
        fake.api.forget()

        async def go() -> None:
            async with connected(fake) as cluster:
                with pytest.raises(WatchExpired):
                    async for _ in cluster.watch(KIND, old):
                        pass

        run(go())


def test_a_watch_needs_no_right_to_write(fake: FakeKube) -> None:
    """`get`, `list` and `watch` are enough; without them the reason is said."""
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "watcher"},
        "rules": [{"apiGroups": [KIND.group], "resources": [KIND.plural], "verbs": ["get", "list", "watch"]}],
    }
    token = fake.api.service_account_token("default", "agent")
    with rest(fake) as http:
        serve(http)
        name = next(NAMES)
        made(http, name)

        async def go() -> None:
            config = config_from(fake.kubeconfig())
            assert config.user is not None
            config.user.token = token
            cluster = KubernetesCluster(config)
            seen = Seen()
            watch = NodeWatch(
                cluster,
                KIND,
                field=FIELD,
                value="n1",
                tell=seen.tell,
                say=seen.said.append,
                log=Log(),
                spread=lambda: 0.0,
            )
            task = asyncio.create_task(watch.run())
            await until(lambda: any(seen.said))
            assert seen.now == {}
            rbac = "/apis/rbac.authorization.k8s.io/v1"
            http.post(f"{rbac}/clusterroles", json=role).raise_for_status()
            binding = {
                **role,
                "kind": "ClusterRoleBinding",
                "roleRef": {
                    "apiGroup": "rbac.authorization.k8s.io",
                    "kind": "ClusterRole",
                    "name": "watcher",
                },
                "subjects": [{"kind": "ServiceAccount", "namespace": "default", "name": "agent"}],
            }
            http.post(f"{rbac}/clusterrolebindings", json=binding).raise_for_status()
            await until(lambda: seen.now == {name: 1})
            found = await cluster.read(Key(kind=KIND, name=name, namespace="default"))
            assert found is not None
            with pytest.raises(ClusterRefused):
                await cluster.delete(Target.of(KIND, found))
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            await cluster.aclose()

        run(go())
