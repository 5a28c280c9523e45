"""Verify one quote in the heart: parse, signature, nonce, selection, policy over 15 PCRs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

from attestation.appraisal import Case, Evidence, appraise
from attestation.evidence import tpm_quote
from attestation.reference import parse_policy
from attestation.results import Verdict
from attestation.tpm import (
    TPM_GENERATED,
    Alg,
    Attest,
    AttestType,
    Hierarchy,
    PCRSelection,
    Public,
    QuoteInfo,
    Scheme,
)
from attestation.tpm.names import qualified_name_of_primary
from attestation.wire import sized, u16
from tests.bench.report import Measurement, best_seconds
from tests.bench.software_machine import ecc_public, ek_public

_INDICES = [i for i in range(16) if i != 10]
_VALUES = {i: hashlib.sha256(b"pcr%d" % i).digest() for i in _INDICES}
_CHALLENGE = bytes(range(32))


def measure() -> Iterator[Measurement]:
    """Measure an ECC P-256 and an RSA-2048 AK."""
    ec_key = ec.generate_private_key(ec.SECP256R1())
    rsa_key = rsa.generate_private_key(65537, 2048)
    algorithm = hashes.SHA256()

    def ec_signature(message: bytes) -> tuple[bytes, bytes]:
        der = ec_key.sign(message, ec.ECDSA(algorithm))
        r, s = decode_dss_signature(der)
        return der, u16(Alg.ECDSA) + u16(Alg.SHA256) + sized(r.to_bytes(32)) + sized(s.to_bytes(32))

    def rsa_signature(message: bytes) -> tuple[bytes, bytes]:
        raw = rsa_key.sign(message, padding.PKCS1v15(), algorithm)
        return raw, u16(Alg.RSASSA) + u16(Alg.SHA256) + sized(raw)

    ak = ecc_public(ec_key.public_key())
    message = _attest(ak)
    raw, wire = ec_signature(message)
    public = ec_key.public_key()
    floor = best_seconds(lambda: public.verify(raw, message, ec.ECDSA(algorithm))) * 1e6
    value = best_seconds(_verification(ak, message, wire)) * 1e6
    yield Measurement(
        name="quote-ecc-p256",
        value=value,
        unit="us",
        floor=floor,
        ratio=value / floor,
        bar="<= 1.4 x bare verify",
        ok=value <= 1.4 * floor,
        note="floor: `EllipticCurvePublicKey.verify` on the same bytes",
    )
    ak = _rsa_public(rsa_key.public_key())
    rsa_message = _attest(ak)
    raw_rsa, wire = rsa_signature(rsa_message)
    rsa_public = rsa_key.public_key()
    scheme = padding.PKCS1v15()
    floor = best_seconds(lambda: rsa_public.verify(raw_rsa, rsa_message, scheme, algorithm)) * 1e6
    value = best_seconds(_verification(ak, rsa_message, wire)) * 1e6
    yield Measurement(
        name="quote-rsa-2048",
        value=value,
        unit="us",
        floor=floor,
        ratio=value / floor,
        bar="<= 45 us",
        ok=value <= 45,
        note="floor: `RSAPublicKey.verify` on the same bytes",
    )


def bare_verify_seconds() -> float:
    """Return the time of one bare P-256 verification."""
    key = ec.generate_private_key(ec.SECP256R1())
    message = bytes(133)
    algorithm = ec.ECDSA(hashes.SHA256())
    signature = key.sign(message, algorithm)
    public = key.public_key()
    return best_seconds(lambda: public.verify(signature, message, algorithm))


def _verification(ak: Public, message: bytes, signature: bytes) -> Callable[[], None]:
    ek = ek_public(ec.generate_private_key(ec.SECP256R1()).public_key())
    policy = parse_policy(
        {
            "format": "itl-tpm-policy/1",
            "name": "bench",
            "version": 1,
            "bank": "sha256",
            "pcrs": {str(i): {"any_of": [v.hex()]} for i, v in _VALUES.items()},
        }
    )
    case = Case(
        ak_public=ak.tpm2b(),
        ek_public=ek.tpm2b(),
        challenge=_CHALLENGE,
        selection=policy.selection,
        requested_policy=policy.ref,
        policy=policy,
        clock=None,
    )
    texts = {"sha256": {str(i): v.hex() for i, v in _VALUES.items()}}
    at = datetime.now(UTC)

    def verify() -> None:
        evidence = Evidence(
            quote=tpm_quote.parse(message, signature), pcr_values=tpm_quote.parse_pcr_values(texts)
        )
        if appraise(evidence, case, at).result.verdict is not Verdict.VERIFIED:
            raise AssertionError("the quote was not verified")

    return verify


def _attest(ak: Public) -> bytes:
    digest = hashlib.sha256(b"".join(_VALUES[i] for i in _INDICES)).digest()
    return Attest(
        TPM_GENERATED,
        AttestType.QUOTE,
        qualified_name_of_primary(Hierarchy.ENDORSEMENT, ak.name),
        _CHALLENGE,
        123456,
        7,
        0,
        True,
        0x2019102300163636,
        QuoteInfo(PCRSelection.from_names({"sha256": _INDICES}), digest),
    ).serialise()


def _rsa_public(key: rsa.RSAPublicKey) -> Public:
    from dataclasses import replace

    public = Public(
        type=Alg.RSA,
        name_alg=Alg.SHA256,
        attributes=0x00050472,
        auth_policy=b"",
        symmetric=None,
        scheme=Scheme(alg=Alg.RSASSA, hash_alg=Alg.SHA256),
        key_bits=2048,
        modulus=key.public_numbers().n.to_bytes(256),
        tpmt=b"",
    )
    return replace(public, tpmt=public.serialise())
