"""What an operator asks of the service (PROTOCOL §7, ITL-REFERENCE §4)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Self

from attestation import api
from attestation.api.operation import ClientMethod, P
from attestation.api.operations import ExtensionAPI, OperatorAPI
from attestation.client.acts import Acts
from attestation.client.asking import Asking, Page, spelled
from attestation.client.connection import Answer, ClientCertificate, HTTPSender, bearer, is_loopback
from attestation.client.errors import AnswerInvalid
from attestation.client.record import Record, parse_record
from attestation.client.retries import Retries
from attestation.errors import RequestInvalid

if TYPE_CHECKING:
    from attestation.client.carrier import Carrier


def _records(
    operation: ClientMethod[P, Iterator[Any]],
) -> Callable[Concatenate[OperatorClient, P], Iterator[Record]]:
    """Return the method that yields what *operation* lists, as it came: no model needs to be loaded."""

    def records(client: OperatorClient, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[Record]:
        path, params, _ = spelled(operation, args, kwargs)
        return client.pages(path, params, _record_page)

    return records


def _record_page(answer: Answer) -> Page:
    page = parse_record(answer.body, "the answer")
    return page.records("items"), page.optional_text("next_cursor")


class OperatorClient(OperatorAPI, ExtensionAPI, Asking):
    """The operators' API over HTTP: each operation of `OperatorAPI` and `ExtensionAPI` is a method.

    Args:
        url: Address of the service, without `/api/v1`.
        token: The bearer token: visible ASCII without spaces; None with a client certificate.
        ca_file: PEM file with the only CAs to trust; None trusts those of the system.
        client_certificate: Who we are, instead of a token: PEM files of certificate and key.
        allow_plain_http: Send the token without TLS to another computer; anybody on the way can read it.
        retries: When to repeat a request.
        carrier: What carries the requests instead of the network: for tests.
        acts: How acts are named, and who is told of a lost answer; None names them by itself.

    Raises:
        RequestInvalid: The address or the token cannot be used, or the token would travel in the clear.
    """

    def __init__(
        self,
        url: str,
        token: str | None,
        *,
        ca_file: Path | None = None,
        client_certificate: ClientCertificate | None = None,
        allow_plain_http: bool = False,
        retries: Retries | None = None,
        carrier: Carrier | None = None,
        acts: Acts | None = None,
    ) -> None:
        if token is None and client_certificate is None:
            raise RequestInvalid("an operator needs a token or a client certificate")
        self._http = HTTPSender(
            url,
            ca_file=ca_file,
            client_certificate=client_certificate,
            headers={} if token is None else bearer(token),
            retries=retries or Retries(),
            carrier=carrier,
            acts=acts or Acts(),
        )
        if self._http.url.startswith("http:") and not (allow_plain_http or is_loopback(self._http.url)):
            raise RequestInvalid(
                f"{self._http.url} is not encrypted: the operator token could be read on the way"
            )

    def speaking_for(self, token: str, acts: Acts | None = None, *, address: str | None = None) -> Self:
        """Return this client for another operator, over the same connections: for who serves several people.

        Args:
            token: Theirs.
            acts: How their acts are named, and who is told of answers.
            address: From which they ask, told as `X-Forwarded-For`: a service believes it from proxies that it
                trusts, and ignores it from others.

        Raises:
            RequestInvalid: The token cannot be used.
        """
        client = copy.copy(self)
        client.meant = None
        headers = bearer(token) if address is None else {**bearer(token), "X-Forwarded-For": address}
        client._http = self._http.speaking(headers, acts or Acts())  # noqa: SLF001 -- a copy of this client, made above
        return client

    machine_records = _records(OperatorAPI.machines)
    """Yield machines as `machines` does, but as they came: for who must print them at once."""

    def stats_record(self) -> Record:
        """Return the same as `stats`, as it came."""
        path = OperatorAPI.stats.path
        return parse_record(self._http.send("GET", path).body, path)

    def audit_entries(self, number: int, width: int) -> bytes:
        """Return the bundle of entries below tile *number*, *width* of them (`attestation.audit.tiles` reads it)."""
        from attestation.audit.tiles import Tile

        return self.audit_entries_tile(
            str(Tile(level=None, number=number, width=width)).removeprefix("tile/entries/")
        )

    def agreeing_to(self, proposal_digest: str) -> Self:
        """Return this client, whose gated acts are votes for that proposal or are refused."""
        client = copy.copy(self)
        client.meant = {"proposal": proposal_digest}
        return client

    def beside_others(self) -> Self:
        """Return this client, whose gated acts open proposals although others about the same thing wait."""
        client = copy.copy(self)
        client.meant = {"new_proposal": "true"}
        return client

    def try_policy(self, request: api.PolicyTestRequest) -> Iterator[api.PolicyTestPage]:
        """Yield how the fleet's stored evidence would be judged, page by page; their sum is the answer."""
        seen: set[str] = set()
        while True:
            page = self.test_policy(request)
            yield page
            if page.next_cursor is None:
                return
            if page.next_cursor in seen:
                raise AnswerInvalid("/policies/test: the pages go round in a circle")
            seen.add(page.next_cursor)
            request = request.model_copy(update={"cursor": page.next_cursor})
