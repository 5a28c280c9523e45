"""Verify one quote in the heart: parse, signature, nonce, selection, policy over 15 PCRs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from attestation.appraisal import Case, appraise
from attestation.appraisal.tpm import TPM, Expected, UnverifiedEvidence, no_advisories
from attestation.evidence import tpm_quote
from attestation.machines import Role
from attestation.reference import parse_policy
from attestation.results import Assurance, Verdict
from attestation.tpm import PCRSelection, parse_signature
from attestation_testing import SoftwareAK, SoftwareEK, ak_template
from tests.bench.report import Measurement, best_seconds

_INDICES = [i for i in range(16) if i != 10]
_VALUES = {i: hashlib.sha256(b"pcr%d" % i).digest() for i in _INDICES}
_SELECTION = PCRSelection.from_names({"sha256": _INDICES})
_CHALLENGE = bytes(range(32))


def measure() -> Iterator[Measurement]:
    """Measure an ECC P-256 and an RSA-2048 AK."""
    for name, ak, bar in (
        ("quote-ecc-p256", SoftwareAK(), "<= 1.4 x bare verify"),
        ("quote-rsa-2048", SoftwareAK(ak_template(rsa_bits=2048)), "<= 45 us"),
    ):
        quote = ak.quote(_CHALLENGE, _SELECTION, {"sha256": _VALUES})
        floor = best_seconds(_bare(ak, quote.attest, quote.signature)) * 1e6
        value = best_seconds(_verification(ak, quote.attest, quote.signature)) * 1e6
        yield Measurement(
            name=name,
            value=value,
            unit="us",
            floor=floor,
            ratio=value / floor,
            bar=bar,
            ok=value <= (45 if bar.endswith("us") else 1.4 * floor),
            note="floor: the public key's `verify` of `cryptography` on the same bytes",
        )


def _bare(ak: SoftwareAK, message: bytes, wire: bytes) -> Callable[[], None]:
    key, signature = ak.public.key(), parse_signature(wire)
    algorithm = hashes.SHA256()
    if isinstance(key, rsa.RSAPublicKey):
        scheme = padding.PKCS1v15()
        return lambda: key.verify(signature.signature, message, scheme, algorithm)
    der = encode_dss_signature(int.from_bytes(signature.signature), int.from_bytes(signature.s))
    ecdsa = ec.ECDSA(algorithm)
    return lambda: key.verify(der, message, ecdsa)


def bare_verify_seconds() -> float:
    """Return the time of one bare P-256 verification."""
    key = ec.generate_private_key(ec.SECP256R1())
    message = bytes(133)
    algorithm = ec.ECDSA(hashes.SHA256())
    signature = key.sign(message, algorithm)
    public = key.public_key()
    return best_seconds(lambda: public.verify(signature, message, algorithm))


def _verification(ak: SoftwareAK, message: bytes, signature: bytes) -> Callable[[], None]:
    policy = parse_policy(
        {
            "format": "itl-tpm-policy/1",
            "name": "bench",
            "version": 1,
            "bank": "sha256",
            "pcrs": {str(i): {"any_of": [v.hex()]} for i, v in _VALUES.items()},
        }
    )
    expected = Expected(
        ak_public=ak.public.tpm2b(),
        ek_public=SoftwareEK().public.tpm2b(),
        challenge=_CHALLENGE,
        selection=policy.tpm.selection,
        clock=None,
        ek_vendor="IFX",
        event_log_requested=False,
        ek_certification_requested=False,
        firmware_attested=None,
        firmware=no_advisories,
    )
    case = Case(
        expected={TPM.name: expected},
        requested_policy=policy.ref,
        policy=policy,
        assurance=Assurance.EK_CHAIN,
        role=Role.WORKER_APP,
    )
    texts = {"sha256": {str(i): v.hex() for i, v in _VALUES.items()}}
    at = datetime.now(UTC)

    def verify() -> None:
        evidence = UnverifiedEvidence(tpm_quote.parse(message, signature), tpm_quote.parse_pcr_values(texts))
        if appraise({TPM.name: evidence}, case, at).result.verdict is not Verdict.VERIFIED:
            raise AssertionError("the quote was not verified")

    return verify
