"""How far an EK is trusted: the allow-list, a vendor's chain, or the operator's own eyes (TPM.md §6)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from attestation.results import Assurance


@dataclass(frozen=True, slots=True, kw_only=True)
class PathCertificate:
    """One certificate of a path, as it was judged.

    Args:
        sha256: SHA-256 of its DER, 64 lower-case hex.
        subject: Its subject in words.
        role: `leaf`, `intermediate` or `anchor`.
        ok: Nothing speaks against it.
        reason: What speaks against it, or how it was linked; one sentence.
    """

    sha256: str
    subject: str
    role: str
    ok: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PathValidation:
    """What a walk from an EK certificate towards an anchor found.

    Args:
        ok: True only if an active anchor was reached and every certificate on the way was good.
        reason: One sentence for operators.
        vendor: Registered name of the anchor's vendor; None where none was reached.
        anchor_sha256: SHA-256 of the anchor's DER, hex; None where none was reached.
        path: Leaf first; where no anchor was reached, the best attempt.
        bundle_sha256: SHA-256 of the manifest of the trust bundle that judged, hex; None without a bundle.
        revocation: `good`, `revoked`, `unknown` or `not checked`, with a reason behind a colon.
    """

    ok: bool
    reason: str
    vendor: str | None = None
    anchor_sha256: str | None = None
    path: tuple[PathCertificate, ...] = ()
    bundle_sha256: str | None = None
    revocation: str = "not checked"


class PathValidator(Protocol):
    """Judges whether a vendor vouches for an EK certificate.

    Implementations hold a loaded trust bundle; they do no I/O when asked.
    """

    def verify(
        self, certificate_der: bytes, intermediates: Sequence[bytes], *, at: datetime
    ) -> PathValidation:
        """Validate the path of *certificate_der* at the instant *at*.

        Args:
            certificate_der: The EK certificate, without padding.
            intermediates: DER certificates that the node sent; untrusted hints.
            at: The instant to verify at, UTC.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EKTrust:
    """What is known about an EK beside its possession.

    Args:
        assurance: The level that results.
        chain_ok: A vendor vouches for the EK certificate.
        allow_listed: An operator imported this exact EK.
        reason: One sentence for operators.
    """

    assurance: Assurance
    chain_ok: bool
    allow_listed: bool
    reason: str


def judge_ek_trust(
    *, allow_listed: bool, chain: PathValidation | None, ak_certified: bool = False
) -> EKTrust:
    """Return the assurance of an activated EK.

    Args:
        allow_listed: Its fingerprint is on the allow-list.
        chain: Verdict on its certificate; None where it has none (`ek_source=pub`).
        ak_certified: A configured CA vouches for the AK that was activated with it.
    """
    chain_ok = chain is not None and chain.ok
    if allow_listed:
        level, reason = Assurance.EK_ALLOWLIST, "this exact EK was imported by an operator"
    elif chain_ok:
        level, reason = Assurance.EK_CHAIN, "the EK certificate chains to a vendor anchor"
    elif ak_certified:
        level, reason = Assurance.AK_CERTIFIED, "a configured CA vouches for the attestation key"
    else:
        level = Assurance.TOFU
        reason = chain.reason if chain is not None else "the EK has no certificate"
    return EKTrust(assurance=level, chain_ok=chain_ok, allow_listed=allow_listed, reason=reason)
