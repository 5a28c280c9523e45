"""The Kubernetes API on a port of loopback, with TLS, in a thread of this process."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import tempfile
import threading
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from aiohttp import web

from attestation_testing.kubernetes.access import ANONYMOUS, MASTERS, User
from attestation_testing.kubernetes.accounts import Accounts
from attestation_testing.kubernetes.authority import ClusterCA, Pair, TokenSigner, user_of
from attestation_testing.kubernetes.cluster import Cluster
from attestation_testing.kubernetes.controllers import CertificateControllers
from attestation_testing.kubernetes.faults import Fault, Faults
from attestation_testing.kubernetes.requests import MOST_BODY_BYTES, Answer, Request, Watching
from attestation_testing.kubernetes.resources import NEWEST
from attestation_testing.kubernetes.status import Object, StatusError, unauthorized
from attestation_testing.kubernetes.store import Change, encode

T = TypeVar("T")

_WAIT_SECONDS: Final = 30
_LONGEST_WATCH_SECONDS: Final = 3600


class KubernetesAPI:
    """A cluster that answers on `https://127.0.0.1:PORT` while it is entered.

    Somebody is known by a bearer token (those of *users*, and those of ServiceAccounts) or by a client certificate of
    the cluster's CA. A certificate of any other fails in the handshake.

    Args:
        users: Name for `kubeconfig` -> who that is. `admin`, in `system:masters`, is always there.
        now: Tells the time, to what is stored and to tokens; certificates are judged by the computer's clock.
        bookmark_seconds: How often a watch that wants bookmarks gets one.
        node_authorizer: Nodes may do what nodes may, and NodeRestriction holds for them.
        csrapproving: The stock approver runs: it reads no evidence.
        csrsigning: The stock signers of `kubernetes.io` run.
        seed: Makes names and UIDs.
        minor: Which version of Kubernetes this is, 1.*minor*, where versions differ.

    Attributes:
        cluster: The cluster itself; only `run` and faults touch it while the server runs.
        faults: What goes wrong on demand.
        url: Where it is.
        ca_pem: The certificate of its CA.
    """

    def __init__(
        self,
        users: Mapping[str, User] | None = None,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        bookmark_seconds: float = 60,
        node_authorizer: bool = True,
        csrapproving: bool = False,
        csrsigning: bool = True,
        seed: int | None = None,
        minor: int = NEWEST,
    ) -> None:
        self.cluster = Cluster(now=now, node_authorizer=node_authorizer, seed=seed, minor=minor)
        self.faults = Faults()
        self.url = ""
        self.ca = ClusterCA(lambda: datetime.now(UTC))
        self.ca_pem = self.ca.pem
        CertificateControllers(self.cluster, self.ca, approving=csrapproving, signing=csrsigning)
        self._bookmark_seconds = bookmark_seconds
        everybody = {"admin": User("admin", (MASTERS,)), **(users or {})}
        self._users = {name: user.authenticated() for name, user in everybody.items()}
        self._tokens = {f"token-of-{name}": user for name, user in self._users.items()}
        self._accounts: Accounts | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._stop: asyncio.Event | None = None
        self._failed: BaseException | None = None
        self._streams: dict[int, web.BaseRequest] = {}
        self._queues: set[asyncio.Queue[Change | None]] = set()
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    # Life

    def __enter__(self) -> Self:
        """Start the server."""
        ready = threading.Event()
        self._folder = tempfile.TemporaryDirectory(prefix="kubernetes-api-")
        self._thread = threading.Thread(target=self._run, args=(ready,), name="kubernetes-api", daemon=True)
        self._thread.start()
        if not ready.wait(_WAIT_SECONDS) or self._failed is not None:
            raise RuntimeError("the Kubernetes API did not start") from self._failed
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, where: TracebackType | None
    ) -> None:
        """End it, and every watch."""
        assert self._loop is not None
        assert self._stop is not None
        assert self._thread is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(_WAIT_SECONDS)
        if self._folder is not None:
            self._folder.cleanup()

    def _run(self, ready: threading.Event) -> None:
        try:
            asyncio.run(self._serve(ready))
        except BaseException as e:  # noqa: BLE001  # told to who waits
            self._failed = e
        finally:
            ready.set()

    def _tls(self) -> ssl.SSLContext:
        assert self._folder is not None
        folder, pair = Path(self._folder.name), self.ca.server()
        (folder / "server.crt").write_bytes(pair.certificate)
        (folder / "server.key").write_bytes(pair.key)
        (folder / "ca.crt").write_bytes(self.ca_pem)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "server.crt", folder / "server.key")
        context.load_verify_locations(folder / "ca.crt")
        context.verify_mode = ssl.CERT_OPTIONAL
        return context

    async def _serve(self, ready: threading.Event) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        runner = web.ServerRunner(web.Server(self._handle, access_log=None), shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=self._tls())
        await site.start()
        port = runner.addresses[0][1]
        self.url = f"https://127.0.0.1:{port}"
        self._accounts = Accounts(self.cluster, TokenSigner(self.url))
        ready.set()
        await self._stop.wait()
        for each in list(self._queues):
            each.put_nowait(None)
        await runner.cleanup()

    # For tests

    @property
    def ca_file(self) -> Path:
        """Where the certificate of the CA lies while the server runs."""
        assert self._folder is not None
        return Path(self._folder.name) / "ca.crt"

    def run(self, work: Callable[[Cluster], T]) -> T:
        """Do *work* between two requests, and return what it returns."""
        assert self._loop is not None

        async def do() -> T:
            try:
                return work(self.cluster)
            finally:
                self.cluster.settle()

        return asyncio.run_coroutine_threadsafe(do(), self._loop).result(_WAIT_SECONDS)

    def fail(self, **how: Any) -> Fault:
        """Ask for a `Fault` with these arguments."""
        return self.faults.add(Fault(**how))

    def drop_watches(self) -> int:
        """Cut every watch off, as a network does; return how many there were."""

        def cut(_: Cluster) -> int:
            for each in self._streams.values():
                if each.transport is not None:
                    each.transport.abort()
            return len(self._streams)

        return self.run(cut)

    def forget(self) -> None:
        """Forget the past: a watch or a list that goes on from a version of before gets 410."""
        self.run(lambda cluster: cluster.forget())

    def watches(self) -> int:
        """Return how many watches are open."""
        return self.run(lambda _: len(self._queues))

    def token(self, user: str) -> str:
        """Return the bearer token of one of *users*."""
        return next(token for token, each in self._tokens.items() if each is self._users[user])

    def client_certificate(self, name: str, *groups: str) -> Pair:
        """Return a certificate with which somebody is *name* in *groups*."""
        return self.ca.client(name, groups)

    def kubeconfig_object(self, credential: Mapping[str, str]) -> Object:
        """Return a kubeconfig with a credential, as its `user` has it."""
        cluster = {
            "server": self.url,
            "certificate-authority-data": base64.b64encode(self.ca_pem).decode(),
        }
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "fake", "cluster": cluster}],
            "users": [{"name": "user", "user": dict(credential)}],
            "contexts": [
                {"name": "fake", "context": {"cluster": "fake", "user": "user", "namespace": "default"}}
            ],
            "current-context": "fake",
        }

    def kubeconfig(self, user: str = "admin") -> Path:
        """Return a kubeconfig (JSON, which is YAML too) of one of *users*."""
        assert self._folder is not None
        path = Path(self._folder.name) / f"{user}.kubeconfig"
        path.write_text(json.dumps(self.kubeconfig_object({"token": self.token(user)})))
        return path

    def service_account_token(
        self,
        namespace: str,
        name: str,
        *,
        audiences: tuple[str, ...] = (),
        seconds: int = 3600,
        pod: str | None = None,
        node: str | None = None,
    ) -> str:
        """Return a token of a ServiceAccount, bound to a Pod where one is named; what is not there is made.

        Args:
            namespace: Of the ServiceAccount, and of the Pod.
            name: Of the ServiceAccount.
            audiences: Whom it is for; without, the API itself.
            seconds: How long it holds.
            pod: What it is bound to.
            node: Where the Pod is, if it is made; from 1.32 on the token says so.
        """
        assert self._accounts is not None
        accounts = self._accounts
        return self.run(
            lambda _: accounts.issue(
                namespace, name, audiences=audiences, seconds=seconds, pod=pod, node=node
            )
        )

    def serve(self, namespace: str, service: str, host: str, port: int) -> None:
        """Have webhooks of a Service asked at an address; its certificate is for `SERVICE.NAMESPACE.svc`."""
        self.run(lambda cluster: cluster.webhooks.services.update({(namespace, service): (host, port)}))

    def jwks(self) -> Object:
        """Return the public keys of tokens of ServiceAccounts."""
        assert self._accounts is not None
        return self._accounts.signer.jwks()

    # Requests

    def _who(self, request: web.BaseRequest) -> User:
        """Return who asks.

        Raises:
            StatusError: A token that nobody gave out.
        """
        tls = request.transport.get_extra_info("ssl_object") if request.transport else None
        certificate = tls.getpeercert(binary_form=True) if tls is not None else None
        if certificate and (user := user_of(certificate)):
            return user
        kind, _, token = request.headers.get("Authorization", "").partition(" ")
        if kind.lower() != "bearer" or not token:
            return ANONYMOUS
        assert self._accounts is not None
        user_ = self._tokens.get(token) or self._accounts.user(token)
        if user_ is None:
            raise unauthorized()
        return user_

    async def _read(self, request: web.BaseRequest) -> bytes:
        body = bytearray()
        async for part in request.content.iter_any():
            body += part
            if len(body) > MOST_BODY_BYTES:
                raise StatusError(
                    413, "RequestEntityTooLarge", f"Request entity too large: limit is {MOST_BODY_BYTES}"
                )
        return bytes(body)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        url = request.rel_url
        try:
            user = self._who(request)
            body = await self._read(request) if request.can_read_body else b""
            asked = Request(
                method=request.method,
                path=url.path,
                query=dict(url.query),
                content_type=request.headers.get("Content-Type", "").partition(";")[0].strip().lower(),
                body=body,
                user=user,
                agent=request.headers.get("User-Agent", ""),
            )
            fault = self._fault(asked)
            if fault is not None:
                await asyncio.sleep(fault.delay_seconds)
                if error := fault.error():
                    raise error
                if fault.before is not None:
                    fault.before()
                    self.cluster.settle()
            answer = self.cluster.answer(asked)
        except StatusError as e:
            answer = Answer(e.code, encode(e.as_object()), retry_after=e.retry_after)
            fault = None
        if fault is not None and fault.lose_answer and request.transport is not None:
            request.transport.abort()
        if isinstance(answer, Watching):
            return await self._follow(request, answer)
        response = web.Response(status=answer.status, body=answer.body)
        response.headers["Content-Type"] = answer.content_type
        if answer.retry_after is not None:
            response.headers["Retry-After"] = str(answer.retry_after)
        if answer.status == 413:  # what was not read cannot be skipped
            response.force_close()
        return response

    def _fault(self, request: Request) -> Fault | None:
        target = self.cluster.target(request.path)
        if target is None:
            return self.faults.take(
                verb=request.method.lower(),
                resource=request.path,
                subresource="",
                name="",
                user=request.user.name,
            )
        return self.faults.take(
            verb=self.cluster.verb(request, target),
            resource=target.resource.plural,
            subresource=target.subresource,
            name=target.name,
            user=request.user.name,
        )

    async def _follow(self, request: web.BaseRequest, watching: Watching) -> web.StreamResponse:
        # From here to the first await nothing is written: no change is missed, none comes twice.
        changes: asyncio.Queue[Change | None] = asyncio.Queue()
        end = self.cluster.store.listen(watching.resource.key, changes.put_nowait)
        self._queues.add(changes)
        self._streams[id(request)] = request
        try:
            return await self._stream(request, watching, changes)
        except (ConnectionError, asyncio.CancelledError):
            return web.Response(status=499)
        finally:
            end()
            self._queues.discard(changes)
            self._streams.pop(id(request), None)

    async def _stream(
        self, request: web.BaseRequest, watching: Watching, changes: asyncio.Queue[Change | None]
    ) -> web.StreamResponse:
        response = web.StreamResponse()
        response.headers["Content-Type"] = "application/json"
        response.enable_chunked_encoding()
        await response.prepare(request)
        if watching.first:
            await response.write(b"".join(watching.first))
        loop = asyncio.get_running_loop()
        ends = loop.time() + (watching.seconds if watching.seconds is not None else _LONGEST_WATCH_SECONDS)
        bookmark = loop.time() + self._bookmark_seconds
        while not watching.ends:
            until = min(ends, bookmark) if watching.bookmarks else ends
            try:
                async with asyncio.timeout_at(until):
                    change = await changes.get()
            except TimeoutError:
                if loop.time() >= ends:
                    break
                bookmark = loop.time() + self._bookmark_seconds
                await response.write(self.cluster.reading.bookmark(watching))
                continue
            lines = []
            while change is not None:
                if line := watching.shows(change):
                    lines.append(line)
                if changes.empty():
                    break
                change = changes.get_nowait()
            if lines:
                await response.write(b"".join(lines))
            if change is None:
                break
        await response.write_eof()
        return response
