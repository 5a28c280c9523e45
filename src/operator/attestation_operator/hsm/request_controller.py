"""The controllers of requests: cert-manager's and Kubernetes' own.

What is decided about each is in `requests` and `signing`. A request is looked at, signed where that comes next, and
looked at again with what came of it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import ClassVar, Protocol

from prometheus_client import Counter

from attestation.errors import AttestationError, IssuerUnknown
from attestation.hsm import RequestKind
from attestation.pki.leaf import LeafAsked
from attestation_operator.actions import Action
from attestation_operator.controller import Around, Round
from attestation_operator.hsm import requests, signing
from attestation_operator.hsm.certify import certified
from attestation_operator.hsm.controllers import Standing
from attestation_operator.hsm.issuance import Issuance
from attestation_operator.nodes.controllers import seen_csr
from attestation_operator.objects import CERTIFICATE_REQUEST, CSR, Key, Kind, Raw, Target


class _Looked(Protocol):
    """What follows from a look at a request of either kind."""

    @property
    def step(self) -> requests.Step | signing.Step: ...
    @property
    def actions(self) -> tuple[Action, ...]: ...
    @property
    def after(self) -> float | None: ...
    @property
    def issuer_fails(self) -> bool: ...


class _Requests:
    """What is alike of both.

    Args:
        around: What a controller is given.
        issuance: Issues.
        standing: What is known together.
        suspect: Looks at an issuer whose key did not sign.
        max_retry: How long a request that fails for an unknown reason is tried again.
    """

    counts: ClassVar[tuple[str, str]]
    """Name and words of the metric of looks."""

    def __init__(
        self,
        around: Around,
        issuance: Issuance,
        standing: Standing,
        suspect: Callable[[Key, Raw | None], Awaitable[float | None]],
        max_retry: timedelta = requests.MAX_RETRY,
    ) -> None:
        self._around = around
        self._issuance = issuance
        self._standing = standing
        self._suspect = suspect
        self._max_retry = max_retry
        self._steps = Counter(*self.counts, ["step"], registry=around.metrics.registry)

    @property
    def rounds(self) -> Sequence[Round]:
        """None."""
        return ()

    async def _issuer(self, key: Key) -> Raw | None:
        return self._standing.issuers.get(key) or await self._around.cluster.read(key)

    async def _outcome(
        self,
        issuer: Raw | None,
        target: Target,
        kind: RequestKind,
        requester: str,
        asked: Callable[[], LeafAsked],
    ) -> requests.Issued | AttestationError:
        assert issuer is not None
        outcome = await certified(
            self._standing.authorities.get(issuer["metadata"]["uid"]),
            self._issuance,
            target=target,
            kind=kind,
            requester=requester,
            asked=asked,
            at=self._around.clock.now(),
        )
        if isinstance(outcome, IssuerUnknown):
            self._standing.known.clear()
        return outcome

    async def _done(self, looked: _Looked, issuer: Key | None) -> float | None:
        self._steps.labels(looked.step).inc()
        await self._around.executor.apply(looked.actions)
        if looked.issuer_fails and issuer is not None:
            await self._suspect(issuer, None)
        return looked.after


class Requests(_Requests):
    """Answers cert-manager's CertificateRequests; arguments as of `_Requests`."""

    name = "requests"
    counts = ("itl_operator_hsm_requests", "Looks at CertificateRequests, by what was done")

    @property
    def watches(self) -> Sequence[Kind]:
        """Requests of cert-manager."""
        return (CERTIFICATE_REQUEST,)

    async def handle(self, key: Key, seen: Raw | None) -> float | None:
        """Look at one request."""
        raw = seen if seen is not None else await self._around.cluster.read(key)
        if raw is None:
            return None
        request = requests.read_request(raw)
        issuer = None if request.issuer is None else await self._issuer(request.issuer)
        looked = self._reconciled(request, issuer)
        if looked.step is requests.Step.SIGN:
            outcome = await self._outcome(
                issuer, request.target, "CertificateRequest", request.requester, lambda: request.asked
            )
            looked = self._reconciled(request, issuer, outcome)
        return await self._done(looked, request.issuer)

    def _reconciled(
        self,
        request: requests.Request,
        issuer: Raw | None,
        outcome: requests.Issued | AttestationError | None = None,
    ) -> requests.Looked:
        return requests.reconcile(
            request, issuer, at=self._around.clock.now(), outcome=outcome, max_retry=self._max_retry
        )


class SigningRequests(_Requests):
    """Answers Kubernetes' CertificateSigningRequests; arguments as of `_Requests`."""

    name = "signing"
    counts = ("itl_operator_hsm_signing_requests", "Looks at CertificateSigningRequests, by what was done")

    @property
    def watches(self) -> Sequence[Kind]:
        """Requests of Kubernetes."""
        return (CSR,)

    async def handle(self, key: Key, seen: Raw | None) -> float | None:
        """Look at one request."""
        csr = await seen_csr(self._around, key, seen)
        if csr is None:
            return None
        at = self._around.clock.now()
        # Requests of other signers are many, and each may be a megabyte: nothing is read for them.
        issuer_key, issuer = signing.issuer_of(csr), None
        if issuer_key is not None and csr.awaits_certificate:
            issuer = await self._issuer(issuer_key)
        looked = signing.reconcile(csr, issuer, at=at, max_retry=self._max_retry)
        if looked.step is signing.Step.SIGN:
            outcome = await self._outcome(
                issuer,
                csr.target,
                "CertificateSigningRequest",
                csr.username or "unknown",
                lambda: signing.asked_of(csr),
            )
            looked = signing.reconcile(csr, issuer, at=at, outcome=outcome, max_retry=self._max_retry)
        return await self._done(looked, issuer_key)
