"""What `identify` and `quote` print."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from attestation.clock import rfc3339
from attestation.device import Identity, Quote
from attestation.errors import AttestationError
from attestation.evidence import ek_certificate
from attestation.tpm import PCRSelection, Public, parse_public
from attestation.wire import b64encode


def identity_facts(identity: Identity, ak_public: bytes, at: datetime) -> dict[str, Any]:
    """Return what `identify` tells: facts as the TPM reports them; who vouches for them is the service's to judge."""
    ek = parse_public(identity.ek_public)
    ak = parse_public(ak_public)
    return {
        "ek_fingerprint": ek.fingerprint(),
        "ek_template": identity.template,
        "ek_source": identity.ek_source,
        "ek_certificate": _certificate_facts(identity.ek_certificate, ek, at),
        "ek_chain_certificates": len(identity.ek_chain),
        "manufacturer": identity.manufacturer,
        "vendor": identity.vendor,
        "firmware": firmware_words(identity.firmware_version),
        "ak_name": ak.name.hex(),
        "ak_fingerprint": ak.fingerprint(),
    }


def firmware_words(version: int) -> str:
    """Return TPM_PT_FIRMWARE_VERSION_1 ‖ _2 (u64) as four words of sixteen bits, in decimal."""
    return ".".join(str(version >> shift & 0xFFFF) for shift in (48, 32, 16, 0))


def _certificate_facts(data: bytes | None, ek: Public, at: datetime) -> dict[str, Any] | None:
    if data is None:
        return None
    try:
        # A simulator is shown as what it is; whether it is admitted is not ours to say.
        claims = ek_certificate.verify(ek_certificate.parse(data), ek=ek, at=at, allow_simulator=True)
    except AttestationError as e:
        return {"rejected": str(e)}
    return {
        "subject": claims.subject,
        "issuer": claims.issuer,
        "manufacturer": claims.manufacturer,
        "vendor": claims.vendor,
        "model": claims.model,
        "firmware": claims.firmware,
        "not_after": rfc3339(claims.not_after),
        "sha256": claims.sha256,
    }


def identity_text(facts: dict[str, Any]) -> str:
    """Return the facts of `identify` for people; nothing in them can steer a terminal."""
    certificate = facts["ek_certificate"]
    if certificate is None:
        presented = "none in this TPM"
    elif "rejected" in certificate:
        presented = f"of no use: {certificate['rejected']}"
    else:
        presented = certificate["subject"] or "(empty subject)"
    rows = [
        ("EK fingerprint", facts["ek_fingerprint"]),
        ("EK template", facts["ek_template"]),
        ("EK certificate", presented),
        ("manufacturer", f"{facts['manufacturer']} {facts['vendor']}".strip()),
        ("firmware", facts["firmware"]),
        ("AK name", facts["ak_name"]),
    ]
    if certificate and "issuer" in certificate:
        rows[3:3] = [
            ("  issued by", certificate["issuer"]),
            ("  TPM", f"{certificate['vendor']} {certificate['model']} {certificate['firmware']}"),
        ]
    return "\n".join(f"{name:<15} {printable(str(value))}" for name, value in rows)


def quote_json(quote: Quote, nonce: bytes, selection: PCRSelection, ak_public: bytes) -> str:
    """Return a quote as JSON, in the members of PROTOCOL §4, for debugging."""
    return json.dumps(
        {
            "nonce": b64encode(nonce),
            "pcr_selection": selection.to_names(),
            "ak_public": b64encode(ak_public),
            "pcr_quote": b64encode(quote.attest),
            "pcr_signature": b64encode(quote.signature),
            "pcr_values": quote.values_on_wire(),
        },
        indent=2,
    )


def printable(text: str) -> str:
    """Return *text* with whatever could steer a terminal replaced."""
    return "".join(c if c.isprintable() else "\ufffd" for c in text)
