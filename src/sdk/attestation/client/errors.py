"""How a failed request is told to the caller."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from attestation.errors import (
    AgentTooOld,
    AttestationError,
    Conflict,
    Expired,
    Forbidden,
    NotAcceptable,
    RateLimited,
    RequestInvalid,
    Unauthenticated,
    Unavailable,
    Unknown,
)

if TYPE_CHECKING:
    from datetime import datetime

    from attestation.api import FieldError

PROBLEM_TYPE_PREFIX = "urn:itl:problem:"


class ServiceUnreachable(Unavailable):
    """The service did not answer: refused, timed out or cut off.

    Args:
        sent: The request may have reached it; False only where it cannot have.
    """

    code = "service-unreachable"

    def __init__(self, message: str, *, sent: bool = True) -> None:
        super().__init__(message)
        self.sent = sent


class TLSFailed(ServiceUnreachable):
    """The peer could not prove that it is the service; nothing was sent."""

    code = "tls-failed"


class NotTLS(TLSFailed):
    """What answered there speaks something else; nothing was sent."""

    code = "not-tls"


class OutcomeUnknown(Unavailable):
    """The answer to an act was lost: it may have been done, or not.

    Args:
        key: The idempotency key of the act: under it, it can be asked for again, and is done at most once.
    """

    code = "outcome-unknown"

    def __init__(self, message: str, *, key: str) -> None:
        super().__init__(message)
        self.key = key


class AnswerInvalid(Unavailable):
    """Something answered, but not as this API does."""

    code = "answer-invalid"


class Redirected(AnswerInvalid):
    """Something answered that the service is elsewhere; it did nothing."""


class APIError(AttestationError):
    """The service refused a request (RFC 9457 problem, PROTOCOL §0).

    Args:
        code: The stable code of the problem, or `http-<status>` where the answer was not a problem of ours.
        title: The kind of problem in words.
        detail: One sentence about this occurrence.
        status: HTTP status.
        request_id: The service's name for the request, or None.
        retry_after_seconds: When to come back, where the service said so.
        errors: The members that the schema refused, for `422`.
        answered_at: What the clock of the service said (`Date`), UTC, or None.
    """

    code: str  # type: ignore[misc]  # the service's word, one per answer; the base declares one per class

    def __init__(
        self,
        *,
        code: str,
        title: str,
        detail: str,
        status: int,
        request_id: str | None = None,
        retry_after_seconds: int | None = None,
        errors: tuple[FieldError, ...] = (),
        answered_at: datetime | None = None,
    ) -> None:
        Exception.__init__(self, detail or title)
        self.code = code
        self.title = title
        self.detail = detail
        self.status = status
        self.request_id = request_id
        self.retry_after_seconds = retry_after_seconds
        self.errors = errors
        self.answered_at = answered_at


def api_error(
    *,
    code: str,
    title: str,
    detail: str,
    status: int,
    request_id: str | None = None,
    retry_after_seconds: int | None = None,
    errors: tuple[FieldError, ...] = (),
    answered_at: datetime | None = None,
) -> APIError:
    """Build the `APIError` that is also an instance of the error *code* names.

    A code that we do not know falls back on the meaning of its HTTP status.
    """
    classes = _classes()
    build = classes.get(code) or classes.get(_BY_STATUS.get(status, ""), APIError)
    return build(
        code=code,
        title=title,
        detail=detail,
        status=status,
        request_id=request_id,
        retry_after_seconds=retry_after_seconds,
        errors=errors,
        answered_at=answered_at,
    )


_BY_STATUS = {
    401: Unauthenticated.code,
    403: Forbidden.code,
    404: Unknown.code,
    406: NotAcceptable.code,
    409: Conflict.code,
    410: Expired.code,
    422: RequestInvalid.code,
    426: AgentTooOld.code,
    429: RateLimited.code,
    502: Unavailable.code,
    503: Unavailable.code,
    504: Unavailable.code,
}


@cache
def _classes() -> dict[str, type[APIError]]:
    """Return, for the code of each error in `attestation.errors`, that error mixed with `APIError`."""
    return {
        error.code: type(f"API{error.__name__}", (APIError, error), {"__doc__": error.__doc__})
        for error in _descendants(AttestationError)
        if error.__module__ == AttestationError.__module__
    }


def _descendants(error: type[AttestationError]) -> list[type[AttestationError]]:
    children = error.__subclasses__()
    return children + [descendant for child in children for descendant in _descendants(child)]
