"""Where a command asks: options that name a cluster and a namespace, and the way there.

What talks to Kubernetes is imported when it is used: `--help` waits for none of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
from collections.abc import AsyncGenerator, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from attestation.errors import (
    AttestationError,
    Forbidden,
    RequestInvalid,
    Unavailable,
    Unknown,
)
from attestation_cli.plugin import FILE_PATH

if TYPE_CHECKING:
    from attestation_cli.plugin import Session
    from attestation_operator.cluster import KubernetesCluster

Found = TypeVar("Found")

DEFAULT_FILE: Final = Path("~/.kube/config")


class KubeconfigInvalid(RequestInvalid):
    """No file says how to reach the cluster, or it cannot be used."""

    code = "kubeconfig-invalid"
    headline = "there is no way to the cluster"
    advice = "name the file with --kubeconfig or KUBECONFIG, and one of its contexts with --context"


class ClusterForbids(Forbidden):
    """The cluster knows who asks, and does not let them (403)."""

    code = "cluster-forbids"
    advice = "ask who gives out rights in the cluster: the roles run-requester and viewer of the chart are for this"


class ClusterKnowsNobody(Forbidden):
    """The cluster does not know who asks (401)."""

    code = "cluster-knows-nobody"
    headline = "the cluster does not know who you are"
    advice = "get a new kubeconfig, or log in to the cluster again; --context chooses another one"


class ObjectUnknown(Unknown):
    """There is no such object, or no such kind, in the cluster (404)."""

    code = "object-unknown"
    advice = "`list -A` shows what there is; --namespace, --context or --kubeconfig say where to look"


class ObjectRejected(RequestInvalid):
    """The cluster takes no such object: its schema, its rules or a quota."""

    code = "object-rejected"
    headline = "the cluster takes no such object"


class ClusterAway(Unavailable):
    """The API server does not answer."""

    code = "cluster-away"
    headline = "the cluster does not answer"
    advice = "check the address in the kubeconfig, or try again later; --context chooses another one"


_MEANINGS: Final[dict[int, type[AttestationError]]] = {
    401: ClusterKnowsNobody,
    403: ClusterForbids,
    404: ObjectUnknown,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What was said of where to ask.

    Args:
        namespace: None for that of the kubeconfig.
        kubeconfig: None for `KUBECONFIG`, else `~/.kube/config`.
        context: None for the current one of that file.
    """

    namespace: str | None = None
    kubeconfig: Path | None = None
    context: str | None = None

    @property
    def file(self) -> Path:
        """The kubeconfig; of several in `KUBECONFIG` the first that there is."""
        if self.kubeconfig is not None:
            return self.kubeconfig
        named = [Path(each) for each in os.environ.get("KUBECONFIG", "").split(os.pathsep) if each]
        return next((each for each in named if each.exists()), (named or [DEFAULT_FILE])[0]).expanduser()


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A cluster that can be asked, and the namespace that is meant."""

    cluster: KubernetesCluster
    namespace: str


def in_cluster(command: Callable[..., None]) -> Callable[..., None]:
    """Hand the command a `Place` behind its session, and add the options that name it."""

    @functools.wraps(command)
    def placed(
        session: Session,
        /,
        *args: Any,
        namespace: str | None,
        kubeconfig: Path | None,
        context: str | None,
        **more: Any,
    ) -> None:
        place = Place(namespace=namespace, kubeconfig=kubeconfig, context=context)
        command(session, place, *args, **more)

    for option in (
        click.option(
            "--context", metavar="NAME", help="Context of the kubeconfig; without, the current one."
        ),
        click.option(
            "--kubeconfig",
            type=FILE_PATH,
            help="How to reach the cluster [KUBECONFIG; default ~/.kube/config]",
        ),
        click.option("-n", "--namespace", metavar="NAME", help="Namespace; without, that of the context."),
    ):
        placed = option(placed)
    return placed


def ask(place: Place, work: Callable[[Asked], Coroutine[Any, Any, Found]]) -> Found:
    """Return what *work* finds out in the cluster.

    Raises:
        KubeconfigInvalid: There is no way there.
        ClusterAway: It does not answer.
        ClusterKnowsNobody, ClusterForbids, ObjectUnknown, ObjectRejected: It refuses.
        ObjectExists: There is one of that name.
    """

    async def asked() -> Found:
        async with _connected(place) as found:
            return await work(found)

    with _told():
        return asyncio.run(asked())


def nothing_in(namespace: str, what: str) -> str:
    """Return what a list of one namespace says that has no line: who forgot -n sees where it looked."""
    return f"No {what} in the namespace {namespace}; -A looks in all of them."


@contextlib.asynccontextmanager
async def _connected(place: Place) -> AsyncGenerator[Asked, None]:
    import msgspec
    import yaml  # type: ignore[import-untyped]  # PyYAML has no types
    from lightkube import KubeConfig
    from lightkube.core.exceptions import ConfigError

    from attestation_operator.cluster import KubernetesCluster

    file = place.file
    try:
        config = KubeConfig.from_file(file).get(context_name=place.context)
        assert config is not None  # without a default it is there, or an error
        cluster = KubernetesCluster(config)
    except (
        AttributeError,  # an empty file
        ConfigError,
        OSError,
        LookupError,
        TypeError,
        ValueError,
        yaml.YAMLError,
        msgspec.MsgspecError,
    ) as e:
        why = (
            e.strerror
            if isinstance(e, OSError)
            else "it is no kubeconfig, or names something that is not in it"
        )
        raise KubeconfigInvalid(
            str(e) if isinstance(e, ConfigError) else f"{file} cannot be used: {why}"
        ) from e
    try:
        yield Asked(cluster=cluster, namespace=place.namespace or config.namespace)
    finally:
        await cluster.aclose()


@contextlib.contextmanager
def _told() -> Any:
    """Tell what the API server refuses as what it means to a person."""
    from attestation_operator.errors import ClusterRefused, ClusterUnavailable

    try:
        yield
    except (ClusterRefused, ClusterUnavailable) as e:
        response = getattr(e.__cause__, "response", None)
        kind = _MEANINGS.get(getattr(response, "status_code", 0))
        if kind is None:
            kind = ObjectRejected if isinstance(e, ClusterRefused) else ClusterAway
        raise kind(str(e)) from e
