"""One link of a chain of certificates that a vendor of confidential hardware prescribes, certificate by certificate.

Makers of TPMs leave paths to be found (`endorsements.path`); these are given, and each link is judged as it stands.
"""

from __future__ import annotations

from attestation.endorsements.certificate import Certificate
from attestation.errors import SignatureInvalid


def link_refusal(below: Certificate, above: Certificate, depth: int) -> str | None:
    """Return why *above* did not certify *below*, with *depth* CAs beneath it, or None (RFC 5280, 6.1)."""
    if below.issuer_key != above.subject_key:
        return f"issued by {below.issuer}, not by {above.subject}"
    if not above.is_ca or above.key_usage is None or "key_cert_sign" not in above.key_usage:
        return f"{above.subject} may not certify"
    if above.path_length is not None and above.path_length < depth:
        return f"{above.subject} certifies no CA that certifies"
    for each in (below, above):
        if each.critical_unknown is not None or each.repeated_extension is not None:
            return f"{each.subject}: a critical extension is unknown, or one stands twice"
    try:
        below.verify_issued_by(above)
    except SignatureInvalid as e:
        return str(e)
    return None
