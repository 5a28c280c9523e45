"""Asking for an operation by its declaration (`attestation.api.operation`)."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import Any, get_origin

from attestation import api
from attestation.api.operation import A, ClientMethod, Operation, P
from attestation.client.connection import Answer, Client, parse, segment
from attestation.client.errors import AnswerInvalid
from attestation.clock import rfc3339

Page = tuple[Sequence[Any], str | None]


class Asking(Client):
    """A client whose methods are operations."""

    meant: Mapping[str, str] | None = None
    """What gated acts say beside the act; see `OperatorClient.agreeing_to` and `beside_others`."""

    def ask(self, operation: ClientMethod[P, A], /, *args: P.args, **kwargs: P.kwargs) -> A:
        """Ask for *operation* and return what it answers.

        Raises:
            APIError: The service refused.
            ServiceUnreachable: No answer.
            AnswerInvalid: Not an answer of this API.
            OutcomeUnknown: No answer to an act, which may have been done.
        """
        path, params, body = spelled(operation, args, kwargs)
        kind = operation.answer
        found: Any
        if get_origin(kind) is Generator:
            found = self._http.stream(path, accept=operation.accept)
        elif page := getattr(kind, "__metadata__", None):
            found = self.pages(path, params, partial(_read_page, page[0]))
        else:
            asked = self.meant if operation.is_gated else params
            found = self._http.read(
                operation.method,
                path,
                partial(_read, operation),
                params=asked,
                body=body,
                accept=operation.accept,
                act=operation.act,
            )
        return found  # type: ignore[no-any-return]  # of the type that the declaration says

    def one_page(
        self,
        operation: ClientMethod[P, Iterator[A]],
        cursor: str | None,
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> tuple[Sequence[A], str | None]:
        """Return one page of what *operation* lists, and the cursor of the next one, or None at the end.

        Args:
            operation: One that lists.
            cursor: Of an earlier answer; None for the first page.
            *args: As of the operation.
            **kwargs: Likewise; `page_size` says how many.

        Raises:
            APIError: The service refused, a cursor that it did not give too.
            ServiceUnreachable: No answer.
            AnswerInvalid: Not an answer of this API.
        """
        page = self.whole_page(operation, cursor, *args, **kwargs)
        return page.items, page.next_cursor

    def whole_page(
        self,
        operation: ClientMethod[P, Iterator[A]],
        cursor: str | None,
        /,
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> Any:
        """Return one page as `one_page` does, with whatever it says beside its items."""
        path, params, _ = spelled(operation, args, kwargs)
        asked = {"limit" if name == "page_size" else name: value for name, value in params.items()}
        if cursor is not None:
            asked["cursor"] = cursor
        model = operation.answer.__metadata__[0]
        return self._http.read("GET", path, lambda answer: parse(answer, model), params=asked)

    def pages(self, path: str, params: Mapping[str, Any], read: Callable[[Answer], Page]) -> Iterator[Any]:
        """Yield the items of every page of *path*, whose query is *params*; `page_size` is its `limit`."""
        asked = {"limit" if name == "page_size" else name: value for name, value in params.items()}
        seen: set[str] = set()
        while True:
            items, cursor = self._http.read("GET", path, read, params=asked)
            yield from items
            if cursor is None:
                return
            # Without this, a cursor that points back would keep us here for ever.
            if cursor in seen:
                raise AnswerInvalid(f"{path}: the pages go round in a circle")
            seen.add(cursor)
            asked["cursor"] = cursor


def spelled(
    operation: ClientMethod[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[str, dict[str, Any], Any]:
    """Return path, query and body of a request for *operation*; what is None is left out."""
    bound = operation.signature.bind(*args, **kwargs)
    bound.apply_defaults()
    given = bound.arguments
    path = at(operation, **{name: given.pop(name) for name in operation.in_path})
    takes_body = (
        "request" in given if operation.method == "DELETE" else bool(given) and operation.method != "GET"
    )
    members = {name.rstrip("_"): value for name, value in given.items() if value is not None}
    if takes_body:
        return path, {}, members.get("request", members)
    return path, {name: _in_query(value) for name, value in members.items()}, None


def _in_query(value: Any) -> Any:
    if isinstance(value, datetime):
        return rfc3339(value)
    return str(value).lower() if isinstance(value, bool) else value


def at(operation: Operation, **values: object) -> str:
    """Return the path of *operation* with *values* in it, each one segment, or several where it says `:path`."""

    def value(found: re.Match[str]) -> str:
        text = str(values[found[1]])
        return "/".join(map(segment, text.split("/"))) if found[2] else segment(text)

    return re.sub(r"\{(\w+)(:path)?\}", value, operation.path)


def _read(operation: ClientMethod[..., Any], answer: Answer) -> Any:
    """Read an answer that is not paged."""
    if operation.is_gated and answer.status == 202:
        return parse(answer, api.PendingApproval)
    model = operation.answer
    if model is None or (answer.status == 204 and operation.may_be_empty):
        return None
    if model is bytes:
        return answer.body
    if model is str:
        try:
            return answer.body.decode("ascii")
        except UnicodeDecodeError as e:
            raise AnswerInvalid("the answer is not text") from e
    return parse(answer, model)


def _read_page(model: type[Any], answer: Answer) -> Page:
    page = parse(answer, model)
    return page.items, page.next_cursor
