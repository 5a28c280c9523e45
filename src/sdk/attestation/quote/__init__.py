"""QuoteAttestations: evidence that one key lives in hardware, in one envelope, and its judgement."""

from attestation.quote.appraise import TYPES, QuoteResult, appraise_quote
from attestation.quote.case import QuoteCase
from attestation.quote.envelope import Envelope, Purpose, evidence_digest, key_fingerprint, parse_envelope
from attestation.quote.handing import case_of, wrap_for

__all__ = [
    "TYPES",
    "Envelope",
    "Purpose",
    "QuoteCase",
    "QuoteResult",
    "appraise_quote",
    "case_of",
    "evidence_digest",
    "key_fingerprint",
    "parse_envelope",
    "wrap_for",
]
