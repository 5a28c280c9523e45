"""What a controller of a Kubernetes cluster asks of the service (docs/protocol/node-csr.md)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from attestation.api.operations import ClusterAPI
from attestation.client.asking import Asking
from attestation.client.connection import HTTPSender, bearer, is_loopback
from attestation.client.retries import ONCE, Retries
from attestation.errors import RequestInvalid

if TYPE_CHECKING:
    from attestation.client.carrier import Carrier


class ControllerClient(ClusterAPI, Asking):
    """The controllers' API over HTTP: each operation of `ClusterAPI` is a method.

    Each may be asked for again: the same request gets the same answer.

    Args:
        url: Address of the service, without `/api/v1`; `https://` unless it is on this computer: a token
            travels there.
        token: Returns the bound ServiceAccount token as it is now; asked for each request, on its thread, because
            the kubelet replaces it.
        ca_file: PEM file with the only CAs to trust; None trusts those of the system.
        retries: When to repeat a request; controllers have a rhythm of their own.
        carrier: What carries the requests instead of the network: for tests.

    Raises:
        RequestInvalid: The address or a file cannot be used.
    """

    def __init__(
        self,
        url: str,
        token: Callable[[], str],
        *,
        ca_file: Path | None = None,
        retries: Retries = ONCE,
        carrier: Carrier | None = None,
    ) -> None:
        self._http = HTTPSender(
            url,
            ca_file=ca_file,
            credentials=lambda: bearer(token()),
            retries=retries,
            carrier=carrier,
        )
        if self._http.url.startswith("http:") and not is_loopback(self._http.url):
            raise RequestInvalid(f"{self._http.url} is not encrypted: the token could be read on the way")
