"""What controllers ask of the attestation service, and how: with the token of our ServiceAccount."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from attestation.api.node_csr import NodeCertificate, NodeCSRDecision, NodeCSRRequest, NodeTrust
from attestation.api.runs import RunBundle, RunDetail, RunOpen, RunOpened, RunSeal
from attestation.client import APIError, ControllerClient, PublicClient, ServiceUnreachable
from attestation.client.connection import bearer
from attestation.errors import AttestationError, RequestInvalid, Unauthenticated, Unavailable
from attestation_operator.errors import ServiceAway, TokenMissing
from attestation_operator.metrics import Metrics

if TYPE_CHECKING:
    from attestation.client.carrier import Carrier

T = TypeVar("T")

MAX_TOKEN_BYTES: Final = 16 << 10
_NOT_DECIDED: Final = frozenset({429, 500, 501, 502, 503, 504, 507})


class Service(Protocol):
    """The service, asked with the token of our ServiceAccount.

    Everything raises `Unavailable` where nothing was decided (no answer, a status 5xx or 429, no token, a token that is
    not accepted), and another `AttestationError` where the service refused.
    """

    async def appraise(self, request: NodeCSRRequest) -> NodeCSRDecision:
        """Return what is to be done with a certificate request; the same answer each time."""
        ...

    async def sign(self, request: NodeCSRRequest) -> NodeCertificate:
        """Return the certificate for a request that the service judged good; the same each time."""
        ...

    async def trust(self) -> tuple[NodeTrust, ...]:
        """Return what the machines of this cluster are worth now."""
        ...

    async def open_run(self, uid: str, request: RunOpen) -> RunOpened:
        """Open an attestation run, or its next attempt; the open attempt again where there is one."""
        ...

    async def run(self, uid: str) -> RunDetail:
        """Return what became of an attestation run."""
        ...

    async def seal_run(self, uid: str, request: RunSeal) -> RunBundle:
        """Have event, result, policy and evidence of a run sealed; return how far the seal is."""
        ...

    async def ask(self, operation: str, ask: Callable[[ControllerClient], T]) -> T:
        """Return the answer to any other question: *ask* is called on a thread, *operation* names it in metrics."""
        ...


class HTTPService:
    """The service over HTTP, on threads of its own: the SDK's client is synchronous.

    Each request has timeouts and a deadline, and none is repeated here: the work queue does that, with its back-off.

    Args:
        url: Address of the service, without `/api/v1`.
        token_file: Bearer token; read for each request, because the kubelet replaces it.
        ca_file: PEM file with the only CAs to trust; None trusts those of the system.
        metrics: What is counted.
        threads: How many requests at the same time.
        carrier: What carries the requests instead of the network: for tests.

    Raises:
        RequestInvalid: The address or a file cannot be used.
    """

    def __init__(
        self,
        url: str,
        *,
        token_file: Path,
        metrics: Metrics,
        ca_file: Path | None = None,
        threads: int = 8,
        carrier: Carrier | None = None,
    ) -> None:
        self._token_file = token_file
        self._metrics = metrics
        self._service = ControllerClient(url, self._token, ca_file=ca_file, carrier=carrier)
        self._public = PublicClient(url, ca_file=ca_file, carrier=carrier)
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="service")

    def close(self) -> None:
        """Close the connections; requests on their way end with their timeouts."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._service.close()
        self._public.close()

    async def appraise(self, request: NodeCSRRequest) -> NodeCSRDecision:
        """Return what is to be done with a certificate request; the same answer each time."""
        return await self._ask("appraise", lambda: self._service.appraise(request))

    async def sign(self, request: NodeCSRRequest) -> NodeCertificate:
        """Return the certificate for a request that the service judged good; the same each time."""
        return await self._ask("sign", lambda: self._service.sign(request))

    async def trust(self) -> tuple[NodeTrust, ...]:
        """Return what the machines of this cluster are worth now."""
        return await self._ask("trust", lambda: tuple(self._service.trust()))

    async def open_run(self, uid: str, request: RunOpen) -> RunOpened:
        """Open an attestation run, or its next attempt; the open attempt again where there is one."""
        return await self._ask("open_run", lambda: self._service.open_run(uid, request))

    async def run(self, uid: str) -> RunDetail:
        """Return what became of an attestation run."""
        return await self._ask("run", lambda: self._service.run(uid))

    async def seal_run(self, uid: str, request: RunSeal) -> RunBundle:
        """Have event, result, policy and evidence of a run sealed; return how far the seal is."""
        return await self._ask("seal_run", lambda: self._service.seal_run(uid, request))

    async def ask(self, operation: str, ask: Callable[[ControllerClient], T]) -> T:
        """Return the answer to any other question."""
        return await self._ask(operation, lambda: ask(self._service))

    async def reachable(self) -> str | None:
        """Return None where the service answers that it can decide, else why it is as good as away."""

        def ask() -> str | None:
            said = self._public.readiness().text("status")
            return None if said in ("ok", "degraded") else f"it says {said}"

        try:
            return await self._on_thread(ask)
        except AttestationError as e:
            return e.code

    def _token(self) -> str:
        return read_token(self._token_file)

    async def _ask(self, operation: str, ask: Callable[[], T]) -> T:
        try:
            answer = await self._on_thread(ask)
        except Unauthenticated as e:
            # Between two tokens, or while a cluster is being made known to the service: nothing was decided.
            self._metrics.asked.labels(operation, "refused").inc()
            raise TokenMissing(f"the service does not accept our token: {e}") from e
        except AttestationError as e:
            away = isinstance(e, Unavailable) or (isinstance(e, APIError) and _is_away(e))
            self._metrics.asked.labels(operation, "away" if away else "refused").inc()
            if away and not isinstance(e, Unavailable):
                raise ServiceAway(f"the service answered {e.code}: {e}") from e
            raise
        self._metrics.asked.labels(operation, "answered").inc()
        return answer

    async def _on_thread(self, ask: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, ask)
        except RuntimeError as e:  # the pool takes nothing any more
            raise ServiceUnreachable("this program ends", sent=False) from e


def _is_away(error: APIError) -> bool:
    """True where nothing was decided: the service could not, or somebody before it answered, as `404` without it."""
    return error.status in _NOT_DECIDED or (error.status == 404 and error.code == "http-404")


def read_token(file: Path) -> str:
    """Return the token of our ServiceAccount as it is now.

    Raises:
        TokenMissing: It cannot be read, or is no token.
    """
    try:
        with file.open("rb") as opened:
            token = opened.read(MAX_TOKEN_BYTES + 1).strip().decode("ascii")
        if len(token) <= MAX_TOKEN_BYTES and bearer(token):
            return token
    except (OSError, UnicodeDecodeError, RequestInvalid) as e:
        raise TokenMissing(f"{file}: {type(e).__name__}") from e
    raise TokenMissing(f"{file}: longer than a token")
