"""One connection to the service: timeouts, retries, size limits, problems.

What holds for every request:
- nothing waits without end: each step has a timeout, and the whole request a deadline;
- redirects are not followed, because the next host was not configured by anybody;
- an answer is read up to a limit, uncompressed, so a small answer cannot become a large one;
- a request is repeated only where that cannot do anything twice.
"""

from __future__ import annotations

import ipaddress
import random
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TypeVar
from urllib.parse import urlsplit

import httpx
from pydantic import BaseModel, ValidationError

from attestation.api import Problem
from attestation.client.errors import (
    PROBLEM_TYPE_PREFIX,
    AnswerInvalid,
    APIError,
    ServiceUnreachable,
    TLSFailed,
    api_error,
)
from attestation.errors import RequestInvalid

Model = TypeVar("Model", bound=BaseModel)

API_PREFIX: Final = "/api/v1"
TIMEOUT = httpx.Timeout(connect=5.0, read=15.0, write=15.0, pool=5.0)
DEADLINE_SECONDS = 60.0
MAX_RETRY_AFTER_SECONDS = 86_400
_IDEMPOTENT = frozenset({"GET", "PUT"})
_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """How often, and how patiently, a request is repeated.

    Args:
        attempts: Requests in all, at least 1.
        base_seconds: First pause; it doubles, and is drawn between half and the whole of itself.
        max_wait_seconds: Longest pause; a `Retry-After` beyond it ends the attempts.
        sleep: How to pause.
        uniform: Draws a number between two bounds.
    """

    attempts: int = 3
    base_seconds: float = 0.25
    max_wait_seconds: float = 10.0
    sleep: Callable[[float], object] = time.sleep
    uniform: Callable[[float, float], float] = random.uniform

    def pause(self, attempt: int, retry_after_seconds: int | None) -> float | None:
        """Return the seconds to wait after the failed *attempt* (from 1), or None to give up."""
        if attempt >= self.attempts:
            return None
        if retry_after_seconds is not None:
            return float(retry_after_seconds) if retry_after_seconds <= self.max_wait_seconds else None
        whole = min(self.base_seconds * 2 ** (attempt - 1), self.max_wait_seconds)
        return self.uniform(whole / 2, whole)


ONCE = Retries(attempts=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A successful answer, read to its end."""

    status: int
    media_type: str
    body: bytes
    headers: Mapping[str, str]


class Connection:
    """Sends requests to one service.

    Args:
        url: Address of the service, e.g. `https://attest.example`, without `/api/v1`.
        ca_file: PEM file with the only CAs to trust; None trusts those of the system.
        headers: Sent with every request.
        retries: When to repeat a request.
        max_answer_bytes: Longest answer that is read.
        transport: For tests: what carries the requests instead of the network.

    Raises:
        RequestInvalid: *url* is not the address of a service, or *ca_file* cannot be used.
    """

    def __init__(
        self,
        url: str,
        *,
        ca_file: Path | None = None,
        headers: Mapping[str, str] | None = None,
        retries: Retries = ONCE,
        max_answer_bytes: int = 16 << 20,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.url = checked_url(url)
        self._retries = retries
        self._max_answer_bytes = max_answer_bytes
        self._client = httpx.Client(
            verify=_tls_context(ca_file) if self.url.startswith("https:") else True,
            timeout=TIMEOUT,
            follow_redirects=False,
            headers={
                "Accept-Encoding": "identity",
                "User-Agent": "itl-attestation-client/0.1",
                **(headers or {}),
            },
            transport=transport,
        )

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def call(
        self,
        method: str,
        path: str,
        model: type[Model],
        *,
        params: Mapping[str, str | int] | None = None,
        body: BaseModel | Mapping[str, Any] | None = None,
    ) -> Model:
        """Send a request and read the answer as *model*; members it does not know are left out.

        Raises:
            APIError: The service refused.
            ServiceUnreachable: No answer.
            AnswerInvalid: Not an answer of this API.
        """
        return parse(self.send(method, path, params=params, body=body), model)

    def send(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str | int] | None = None,
        body: BaseModel | Mapping[str, Any] | None = None,
        accept: str = "application/json",
    ) -> Answer:
        """Send a request, repeat it where that is safe, and return the successful answer."""
        attempt = 1
        while True:
            try:
                return self._send(method, path, params, body, accept)
            except APIError as e:
                # 429 says that nothing was done, so any method may come again.
                again = e.status == 429 or (e.status in (502, 503, 504) and method in _IDEMPOTENT)
                pause = self._retries.pause(attempt, e.retry_after_seconds) if again else None
                if pause is None:
                    raise
            except TLSFailed:
                raise
            except ServiceUnreachable as e:
                again = isinstance(e.__cause__, _NOT_SENT) or method in _IDEMPOTENT
                pause = self._retries.pause(attempt, None) if again else None
                if pause is None:
                    raise
            self._retries.sleep(pause)
            attempt += 1

    def _send(
        self,
        method: str,
        path: str,
        params: Mapping[str, str | int] | None,
        body: BaseModel | Mapping[str, Any] | None,
        accept: str,
    ) -> Answer:
        deadline = time.monotonic() + DEADLINE_SECONDS
        content: dict[str, Any] = {}
        if isinstance(body, BaseModel):
            content = {
                "content": body.model_dump_json(exclude_none=True),
                "headers": {"Content-Type": "application/json"},
            }
        elif body is not None:
            content = {"json": dict(body)}
        request = self._client.build_request(
            method, f"{self.url}{API_PREFIX}{path}", params=params, **content
        )
        request.headers["Accept"] = accept
        try:
            response = self._client.send(request, stream=True)
            try:
                data = self._read(response, deadline)
            finally:
                response.close()
        except httpx.HTTPError as e:
            raise _unreachable(self.url, e) from e
        if response.is_success:
            return Answer(
                status=response.status_code,
                media_type=_media_type(response),
                body=data,
                headers=response.headers,
            )
        if response.is_redirect:
            raise AnswerInvalid(
                f"{self.url} answered with a redirect ({response.status_code}); redirects are not followed"
            )
        raise _problem(response, data)

    def _read(self, response: httpx.Response, deadline: float) -> bytes:
        if response.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise AnswerInvalid("the answer is compressed, although we asked for it as it is")
        data = bytearray()
        # Without the check above, a decompression bomb would explode in here before we could count it.
        for chunk in response.iter_bytes():
            data += chunk
            if len(data) > self._max_answer_bytes:
                raise AnswerInvalid(f"the answer is longer than {self._max_answer_bytes} bytes")
            if time.monotonic() > deadline:
                raise ServiceUnreachable(f"the answer did not end within {DEADLINE_SECONDS:.0f} s")
        return bytes(data)


def parse(answer: Answer, model: type[Model]) -> Model:
    """Read *answer* as *model*.

    Members that the model does not have are left out: a newer service may say more, and a fleet of agents
    must survive that.

    Raises:
        AnswerInvalid: Not JSON of this form.
    """
    try:
        return model.model_validate_json(answer.body, extra="ignore")
    except ValidationError as e:
        first = e.errors(include_input=False, include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the answer"
        raise AnswerInvalid(f"not a {model.__name__}: {where}: {first['msg']}") from None


def checked_url(url: str) -> str:
    """Return *url* without a slash at the end.

    Raises:
        RequestInvalid: Not `http(s)://host[:port][/path]`.
    """
    try:
        parsed = urlsplit(url)
        known = parsed.scheme in ("http", "https") and parsed.hostname and parsed.port != 0
        httpx.URL(url)
    except (httpx.InvalidURL, ValueError) as e:
        raise RequestInvalid("the address of the service is not a URL") from e
    if not known:
        raise RequestInvalid("the address of the service must begin with https:// or http:// and name a host")
    if "@" in parsed.netloc or parsed.query or parsed.fragment:
        raise RequestInvalid("the address of the service carries a password, query or fragment")
    return url.rstrip("/")


def is_loopback(url: str) -> bool:
    """True where *url* names this computer itself."""
    host = httpx.URL(url).host
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _tls_context(ca_file: Path | None) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except OSError as e:  # ssl.SSLError is one
        raise RequestInvalid(
            f"CA file {ca_file} cannot be used: {e.strerror or 'no certificate in it'}"
        ) from e
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _unreachable(url: str, error: httpx.HTTPError) -> ServiceUnreachable:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLError):
            reason = getattr(cause, "verify_message", "") or getattr(cause, "reason", "") or "TLS failed"
            return TLSFailed(f"{url} could not prove who it is: {reason}")
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, httpx.TimeoutException):
        return ServiceUnreachable(f"{url} did not answer in time")
    if isinstance(error, httpx.ConnectError):
        return ServiceUnreachable(f"cannot connect to {url}: {_connect_reason(error)}")
    return ServiceUnreachable(f"the connection to {url} broke off")


def _connect_reason(error: BaseException) -> str:
    """Return the operating system's words, found at the bottom of the chain."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__cause__ or cause.__context__
    return "no connection"


def _problem(response: httpx.Response, data: bytes) -> APIError:
    status = response.status_code
    retry_after_seconds = parse_retry_after(response.headers.get("Retry-After"), datetime.now(UTC))
    try:
        problem = Problem.model_validate_json(data, extra="ignore")
    except ValidationError:
        return api_error(
            code=f"http-{status}",
            title=response.reason_phrase or "HTTP error",
            detail=f"the answer was {status} {response.reason_phrase} without an explanation of this service",
            status=status,
            request_id=response.headers.get("X-Request-ID"),
            retry_after_seconds=retry_after_seconds,
        )
    return api_error(
        code=problem.type.removeprefix(PROBLEM_TYPE_PREFIX),
        title=problem.title,
        detail=problem.detail,
        status=status,
        request_id=problem.instance,
        retry_after_seconds=retry_after_seconds,
        errors=tuple(problem.errors or ()),
    )


def parse_retry_after(value: str | None, at: datetime) -> int | None:
    """Read a `Retry-After` header: seconds or an HTTP date (RFC 9110 §10.2.3); None where unreadable.

    Returns:
        Whole seconds from *at*, between 1 and one day.
    """
    if value is None:
        return None
    if value.isascii() and value.isdigit():
        seconds = int(value[:9])
    else:
        try:
            when = parsedate_to_datetime(value)
        except ValueError:
            return None
        if when.tzinfo is None:
            when = when.replace(tzinfo=UTC)
        seconds = int((when - at).total_seconds())
    return min(max(seconds, 1), MAX_RETRY_AFTER_SECONDS)


def _media_type(response: httpx.Response) -> str:
    media_type: str = response.headers.get("Content-Type", "")
    return media_type.partition(";")[0].strip().lower()
