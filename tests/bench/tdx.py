"""Judge one quote of a TD in the heart, collateral warm: parse, chain, signatures, levels, the defaults of a policy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from attestation.appraisal import Case, appraise
from attestation.appraisal.confidential import Approved, Expected
from attestation.appraisal.tdx import TDX
from attestation.evidence.dcap import parse_quote
from attestation.machines import Role
from attestation.reference import IDENTITY_ONLY
from attestation.results import Assurance, Verdict
from attestation.wire import b64encode
from attestation_testing.tee.intel import ISSUED, Platform, td_report
from tests.bench.report import Measurement, best_seconds

_AT: datetime = ISSUED + timedelta(days=1)
_TOLD = bytes(range(64))


def measure() -> Iterator[Measurement]:
    """Measure a quote of version 5, TDX 1.5; what signed collateral and chain is remembered, as in a service."""
    platform = Platform()
    quote = platform.quote(td_report(_TOLD, size=648), version=5)
    floor = best_seconds(_bare(platform, quote)) * 1e6
    value = best_seconds(_appraisal(platform, quote)) * 1e6
    yield Measurement(
        name="tdx-quote",
        value=value,
        unit="us",
        floor=floor,
        ratio=value / floor,
        bar="<= 1.6 x bare verify",
        ok=value <= 1.6 * floor,
        note="floor: `verify` of `cryptography` for QE report and quote; we remember that of a QE report",
    )


def _bare(platform: Platform, quote: bytes) -> Callable[[], None]:
    parsed = parse_quote(quote)
    pck, ecdsa = platform.pck_key.public_key(), ec.ECDSA(hashes.SHA256())

    def der(raw: bytes) -> bytes:
        return encode_dss_signature(int.from_bytes(raw[:32]), int.from_bytes(raw[32:]))

    report, signed = der(parsed.qe_signature), der(parsed.signature)

    def run() -> None:
        pck.verify(report, parsed.qe_report_signed, ecdsa)
        point = b"\x04" + parsed.attestation_key
        key = ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), point)
        key.verify(signed, parsed.signed, ecdsa)

    return run


def _appraisal(platform: Platform, quote: bytes) -> Callable[[], None]:
    item = {"quote": b64encode(quote)}
    expected = Expected(
        at=_AT,
        report_data=_TOLD,
        endorsements=platform.endorsements(platform.collateral()),
        approved=Approved(chip=platform.ppid),
        nonce=bytes(32),
    )
    case = Case(
        expected={"tdx": expected},
        requested_policy=IDENTITY_ONLY.ref,
        policy=IDENTITY_ONLY,
        assurance=Assurance.EK_CHAIN,
        role=Role.WORKER_APP,
    )

    def run() -> None:
        found = appraise({"tdx": TDX.parse(item)}, case, _AT)
        assert found.result.verdict is Verdict.VERIFIED, found.result.outcomes

    return run
