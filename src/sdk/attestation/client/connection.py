"""One connection to the service: timeouts, retries, size limits, problems.

What holds for every request:
- nothing waits without end: each step has a timeout, and the whole request a deadline;
- redirects are not followed, because the next host was not configured by anybody;
- an answer is read up to a limit, uncompressed, so a small answer cannot become a large one;
- a request is repeated only where that cannot do anything twice;
- an act carries a key, and is asked about where its answer is lost (`acts`).

Start-up counts here: pydantic and ssl are loaded by those who use them (docs/adr/0021).
"""

# Longer than 500 lines: one carrier of HTTP: what it sends, retries and refuses is read together.
from __future__ import annotations

import copy
import json
import os
import sys
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar
from urllib.parse import quote, urlencode, urlsplit

from attestation.client.errors import (
    PROBLEM_TYPE_PREFIX,
    AnswerInvalid,
    APIError,
    Redirected,
    ServiceUnreachable,
    TLSFailed,
    api_error,
)
from attestation.client.retries import ONCE, Retries
from attestation.client.trace import watched
from attestation.clock import parse_http_date
from attestation.errors import RequestInvalid

if TYPE_CHECKING:
    import ssl

    from pydantic import BaseModel

    from attestation.client.acts import Acts
    from attestation.client.carrier import Carrier, Reply

Model = TypeVar("Model", bound="BaseModel")
T = TypeVar("T")

API_PREFIX: Final = "/api/v1"
DEADLINE_SECONDS = 60.0
MAX_RETRY_AFTER_SECONDS = 86_400
_IDEMPOTENT = frozenset({"GET", "PUT"})
_PROXY_VARIABLES = ("http_proxy", "https_proxy", "all_proxy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """An answer, read to its end; the names of its headers are in lower case."""

    status: int
    reason: str
    media_type: str
    body: bytes
    headers: Mapping[str, str]


ClientCertificate = tuple[Path, Path | None]
"""PEM files of a certificate and of its key; None where the key is in the first one too."""


class Closing:
    """What is closed at the end of a `with`."""

    def close(self) -> None:
        """Close the connections."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class HTTPSender(Closing):
    """Sends requests to one service.

    Args:
        url: Address of the service, e.g. `https://attest.example`, without `/api/v1`.
        ca_file: PEM file with the only CAs to trust; None trusts those of the system.
        client_certificate: PEM files of our own certificate and its key; None for the key where both are in one.
        headers: Sent with every request.
        credentials: Likewise, but asked for anew each time: a token that changes.
        retries: When to repeat a request.
        max_answer_bytes: Longest answer that is read.
        carrier: What carries the requests instead of the network: for tests.
        acts: How requests that change something are named; None where they are no acts.

    Raises:
        RequestInvalid: *url* is not the address of a service, or a file cannot be used.
    """

    def __init__(
        self,
        url: str,
        *,
        ca_file: Path | None = None,
        client_certificate: ClientCertificate | None = None,
        headers: Mapping[str, str] | None = None,
        credentials: Callable[[], Mapping[str, str]] = dict,
        retries: Retries = ONCE,
        max_answer_bytes: int = 16 << 20,
        carrier: Carrier | None = None,
        acts: Acts | None = None,
    ) -> None:
        self.url = checked_url(url)
        self._retries = retries
        self._acts = acts
        self._certified = client_certificate is not None
        self._max_answer_bytes = max_answer_bytes
        self._credentials = credentials
        self._headers = {
            "Accept-Encoding": "identity",
            "User-Agent": "itl-attestation-client/0.1",
            **(headers or {}),
        }
        if client_certificate is not None and not self.url.startswith("https:"):
            raise RequestInvalid(f"{self.url} is not encrypted: a client certificate proves nothing there")
        # Looked at for http too, where nothing is verified with it: who names a file that is not there is told.
        tls = tls_context(ca_file, client_certificate) if ca_file or self.url.startswith("https:") else None
        self._carrier = carrier_for(self.url, tls if self.url.startswith("https:") else None, carrier)

    def close(self) -> None:
        """Close the connections."""
        self._carrier.close()

    def speaking(self, headers: Mapping[str, str], acts: Acts) -> Self:
        """Return a sender over the same connections, with other headers and acts of its own."""
        other = copy.copy(self)
        other._headers = {**self._headers, **headers}  # noqa: SLF001 -- a copy of this connection, made above
        other._acts = acts  # noqa: SLF001 -- likewise
        return other

    def send(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str | int] | None = None,
        body: BaseModel | Mapping[str, Any] | None = None,
        accept: str = "application/json",
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send a request, repeat it where that is safe, and return the successful answer.

        Raises:
            APIError: The service refused.
            ServiceUnreachable: No answer.
            OutcomeUnknown: No answer to an act, which may have been done.
        """

        def whole(answer: Answer) -> Answer:
            return answer

        return self.read(method, path, whole, params=params, body=body, accept=accept, headers=headers)

    def read(
        self,
        method: str,
        path: str,
        read: Callable[[Answer], T],
        *,
        params: Mapping[str, str | int] | None = None,
        body: BaseModel | Mapping[str, Any] | None = None,
        accept: str = "application/json",
        headers: Mapping[str, str] | None = None,
        act: bool = True,
    ) -> T:
        """Send a request as `send` does, and return what *read* makes of the answer.

        An answer to an act that cannot be read is as good as lost: the act may have been done. What is no *act*, or a
        GET, changes nothing that it could change twice.

        Raises:
            APIError: The service refused.
            ServiceUnreachable: No answer.
            AnswerInvalid: *read* makes nothing of it, and it is no answer to an act.
            OutcomeUnknown: No answer to an act, which may have been done, or none that can be read.
        """
        told = {"Accept": accept, **(headers or {})}
        if self._acts is None or method == "GET" or not act:
            freely = method in _IDEMPOTENT
            return read(self._repeated(lambda: self._send(method, path, params, body, told), freely=freely))
        from attestation.client import acts

        key = next(self._acts.keys)
        told |= acts.headers_of(key)
        tell = self._acts.tell

        def send() -> T:
            answer = self._send(method, path, params, body, told)
            tell(answer.headers)
            return read(answer)

        try:
            return self._repeated(send, freely=False)
        except (APIError, ServiceUnreachable, AnswerInvalid) as e:
            if not acts.is_lost(e):
                raise
            lost = e
        return acts.ask(send, lost, key, self._acts, self._retries)

    def _repeated(self, send: Callable[[], T], *, freely: bool) -> T:
        """Send a request; where it cannot have done anything, or may be done *freely*, repeat it."""
        attempt = 1
        while True:
            try:
                return send()
            except APIError as e:
                # 429 says that nothing was done, so any method may come again.
                again = e.status == 429 or (e.status in (502, 503, 504) and freely)
                pause = self._retries.pause(attempt, e.retry_after_seconds) if again else None
                if pause is None:
                    raise
            except TLSFailed:
                raise
            except ServiceUnreachable as e:
                again = not e.sent or freely
                pause = self._retries.pause(attempt, None) if again else None
                if pause is None:
                    if self._certified and e.sent:
                        # In TLS 1.3 we have finished by the time our certificate is looked at.
                        raise ServiceUnreachable(f"{e}; perhaps it refused the client certificate") from e
                    raise
            self._retries.sleep(pause)
            attempt += 1

    def _send(
        self,
        method: str,
        path: str,
        params: Mapping[str, str | int] | None,
        body: BaseModel | Mapping[str, Any] | None,
        headers: Mapping[str, str],
    ) -> Answer:
        answer = self._exchange(method, f"{API_PREFIX}{path}", params, body, headers)
        if 200 <= answer.status < 300:
            return answer
        raise self._refused(answer)

    def stream(self, path: str, *, accept: str) -> Generator[bytes, None, None]:
        """Ask for *path* and yield the answer as it comes: of any length, and never asked for again.

        Each piece has the timeout of the carrier; the whole has none, for a log may be long. Close the iterator
        to end it early.

        Raises:
            APIError: The service refused.
            ServiceUnreachable: No answer, or it was cut off.
            AnswerInvalid: Not an answer of this API.
        """
        headers = {**self._headers, **self._credentials(), "Accept": accept}
        reply = self._carrier.send("GET", f"{self.url}{API_PREFIX}{path}", headers, None)
        try:
            if reply.status != 200:
                raise self._refused(_read(reply, self._max_answer_bytes, time.monotonic()))
            _check_identity(reply)
            yield from reply.chunks()
        finally:
            reply.close()

    def _refused(self, answer: Answer) -> AnswerInvalid | APIError:
        """Return what an answer means that is not a success."""
        if answer.status < 200:
            # It tells nothing of an act: the answer that counts comes behind it.
            return AnswerInvalid(f"{self.url} answered with {answer.status}, which nobody asked for")
        if answer.status < 400:
            return Redirected(
                f"{self.url} answered with a redirect ({answer.status}); redirects are not followed"
            )
        return _problem(answer)

    def fetch(self, path: str, *, accept: str) -> Answer:
        """GET *path*, which begins below the address of the service, once, and return the successful answer.

        Raises:
            APIError: The service refused.
            ServiceUnreachable: No answer.
            AnswerInvalid: Not an answer of this service.
        """
        answer = self._exchange("GET", path, None, None, {"Accept": accept})
        if answer.status == 200:
            return answer
        raise self._refused(answer)

    def probe(self, path: str) -> Answer:
        """Ask once for *path*, which begins below the address of the service, and return whatever is answered.

        Raises:
            ServiceUnreachable: No answer.
            AnswerInvalid: Too long, or compressed.
        """
        return self._exchange("GET", path, None, None, {"Accept": "application/json"})

    def _exchange(
        self,
        method: str,
        path: str,
        params: Mapping[str, str | int] | None,
        body: BaseModel | Mapping[str, Any] | None,
        more: Mapping[str, str],
    ) -> Answer:
        headers = {**self._headers, **self._credentials(), **more}
        content: bytes | None = None
        if method != "GET":
            # Also without a body: what a form could send is no act of an operator.
            headers["Content-Type"] = "application/json"
        if body is not None:
            content = (json.dumps(dict(body)) if isinstance(body, Mapping) else _json_of(body)).encode()
        url = f"{self.url}{path}{'?' + urlencode(params) if params else ''}"
        return exchange(self._carrier, method, url, headers, content, max_bytes=self._max_answer_bytes)


def _json_of(body: BaseModel) -> str:
    """Return *body* as JSON, without members that are null: an older service may not know them.

    A member that is demanded is said, also that it is null.
    """
    demanded = (name for name, member in type(body).model_fields.items() if member.is_required())
    return json.dumps({**dict.fromkeys(demanded), **body.model_dump(mode="json", exclude_none=True)})


class Client(Closing):
    """Asks one service over a connection, until it is closed."""

    _http: HTTPSender

    @property
    def url(self) -> str:
        """Address of the service."""
        return self._http.url

    def close(self) -> None:
        """Close the connections."""
        self._http.close()


def exchange(
    carrier: Carrier,
    method: str,
    url: str,
    headers: Mapping[str, str],
    content: bytes | None,
    *,
    max_bytes: int,
    deadline_seconds: float = DEADLINE_SECONDS,
) -> Answer:
    """Send one request and read its answer to the end: as it is, at most *max_bytes*, in time.

    Raises:
        ServiceUnreachable: No answer, or not in time.
        AnswerInvalid: Too long, or compressed.
    """
    began = time.monotonic()
    reply = carrier.send(method, url, headers, content)
    try:
        return _read(reply, max_bytes, began, deadline_seconds)
    finally:
        reply.close()


def _read(reply: Reply, max_bytes: int, began: float, deadline_seconds: float = DEADLINE_SECONDS) -> Answer:
    _check_identity(reply)
    data = bytearray()
    # Without the check above, a decompression bomb would explode in here before we could count it.
    for chunk in reply.chunks():
        data += chunk
        if len(data) > max_bytes:
            raise AnswerInvalid(f"the answer is longer than {max_bytes} bytes")
        if time.monotonic() > began + deadline_seconds:
            raise ServiceUnreachable(f"the answer did not end within {deadline_seconds:.0f} s")
    return Answer(
        status=reply.status,
        reason=reply.reason,
        media_type=reply.headers.get("content-type", "").partition(";")[0].strip().lower(),
        body=bytes(data),
        headers=reply.headers,
    )


def _check_identity(reply: Reply) -> None:
    if reply.headers.get("content-encoding", "identity").lower() != "identity":
        raise AnswerInvalid("the answer is compressed, although we asked for it as it is")


def parse(answer: Answer, model: type[Model]) -> Model:
    """Read *answer* as *model*.

    Members that the model does not have are left out: a newer service may say more, and a fleet of agents
    must survive that.

    Raises:
        AnswerInvalid: Not JSON of this form.
    """
    from pydantic import ValidationError

    from attestation.api.said import said

    try:
        return model.model_validate_json(answer.body, extra="ignore")
    except ValidationError as e:
        first = e.errors(include_input=False, include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the answer"
        raise AnswerInvalid(f"not a {model.__name__}: {where} {said(first)}") from None


def checked_url(url: str) -> str:
    """Return *url* without a slash at the end, its scheme in lower case: by that we know what is encrypted.

    Raises:
        RequestInvalid: Not `http(s)://host[:port][/path]`.
    """
    try:
        parsed = urlsplit(url)
        # Host names in other scripts come in their ASCII form (xn--…), so that what is read is what is asked.
        known = (
            parsed.scheme in ("http", "https")
            and parsed.hostname
            and parsed.port != 0
            and all("!" <= character <= "~" for character in url)
        )
    except ValueError as e:
        raise RequestInvalid("the address of the service is not a URL") from e
    if not known:
        raise RequestInvalid(
            "the address of the service must begin with https:// or http:// and name a host, like "
            "https://attest.example:8443"
        )
    if parsed.path.rstrip("/").endswith(API_PREFIX):
        without = url.rstrip("/").removesuffix(API_PREFIX)
        raise RequestInvalid(f"the address of the service is given without {API_PREFIX}: {without}")
    if "@" in parsed.netloc or parsed.query or parsed.fragment:
        raise RequestInvalid("the address of the service carries a password, query or fragment")
    return parsed.scheme + url[len(parsed.scheme) :].rstrip("/")


def bearer(token: str) -> dict[str, str]:
    """Return the header that carries *token* (RFC 6750 §2.1).

    Raises:
        RequestInvalid: It is not visible ASCII without spaces.
    """
    # A line break in the token would end the header and begin another one.
    if not token or not all("!" <= character <= "~" for character in token):
        raise RequestInvalid("the token is empty or contains spaces or other unusual characters")
    return {"Authorization": f"Bearer {token}"}


def is_loopback(url: str) -> bool:
    """True where *url* names this computer itself."""
    host = urlsplit(url).hostname or ""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    import ipaddress

    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def carrier_for(url: str, tls: ssl.SSLContext | None, carrier: Carrier | None) -> Carrier:
    """Return what carries the requests: *carrier* where there is one, else HTTP, through a proxy where one is named."""
    if carrier is None:
        from attestation.client.plain import PlainCarrier

        carrier = PlainCarrier(url, tls, proxy_for(url))
    return watched(carrier)


def proxy_for(url: str) -> str | None:
    """Return the proxy that the environment, or the settings of the system, name for *url*.

    A proxy cannot reach this computer itself, and would see what is sent.
    """
    named = any(os.environ.get(name) or os.environ.get(name.upper()) for name in _PROXY_VARIABLES)
    if is_loopback(url) or not (named or sys.platform in ("win32", "darwin")):
        return None
    from urllib.request import getproxies, proxy_bypass

    parsed, proxies = urlsplit(url), getproxies()
    # An IPv6 address is excepted as people write it, and as it stands in the URL: in brackets.
    excepted = proxy_bypass(parsed.netloc) or proxy_bypass(parsed.hostname or "")
    return None if excepted else proxies.get(parsed.scheme) or proxies.get("all")


def tls_context(ca_file: Path | None, client_certificate: ClientCertificate | None = None) -> ssl.SSLContext:
    """Return what https verifies with: TLS 1.2 at least, the CAs of *ca_file* only, or those of the system.

    Args:
        ca_file: PEM.
        client_certificate: What we show where we are asked. OpenSSL asks for the passphrase of an encrypted key.

    Raises:
        RequestInvalid: A file cannot be used.
    """
    import ssl

    try:
        context = ssl.create_default_context(cafile=ca_file)
    except OSError as e:  # ssl.SSLError is one
        raise RequestInvalid(
            f"CA file {ca_file} cannot be used: {_file_words(e, 'no certificate in it')}"
        ) from e
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if client_certificate is not None:
        certificate, key = client_certificate
        try:
            context.load_cert_chain(certificate, key)
        except OSError as e:
            words = _file_words(e, "not a certificate and its key")
            raise RequestInvalid(f"client certificate {certificate} cannot be used: {words}") from e
    return context


def _file_words(error: OSError, of_openssl: str) -> str:
    """Return the system's words; for what OpenSSL found, whose words name its own source, *of_openssl*."""
    import ssl

    return of_openssl if isinstance(error, ssl.SSLError) else error.strerror or of_openssl


def _problem(answer: Answer) -> APIError:
    from pydantic import ValidationError

    from attestation.api.problem import Problem

    status = answer.status
    retry_after_seconds = parse_retry_after(answer.headers.get("retry-after"), datetime.now(UTC))
    answered_at = parse_http_date(answer.headers.get("date"))
    try:
        problem = Problem.model_validate_json(answer.body, extra="ignore")
    except ValidationError:
        return api_error(
            code=f"http-{status}",
            title=answer.reason or "HTTP error",
            detail=f"the answer was {status} {answer.reason} without an explanation of this service",
            status=status,
            request_id=answer.headers.get("x-request-id"),
            retry_after_seconds=retry_after_seconds,
            answered_at=answered_at,
        )
    return api_error(
        code=problem.type.removeprefix(PROBLEM_TYPE_PREFIX),
        title=problem.title,
        detail=problem.detail,
        status=status,
        request_id=problem.instance,
        retry_after_seconds=retry_after_seconds,
        errors=tuple(problem.errors or ()),
        answered_at=answered_at,
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
        when = parse_http_date(value)
        if when is None:
            return None
        seconds = int((when - at).total_seconds())
    return min(max(seconds, 1), MAX_RETRY_AFTER_SECONDS)


def segment(text: str) -> str:
    """Return *text* as one segment of a path, so that no value can reach another route."""
    quoted = quote(text, safe="")
    return {".": "%2E", "..": "%2E%2E"}.get(quoted, quoted)
