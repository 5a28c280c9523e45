"""What `cert` prints: read from files alone, so it works beside a running agent and without the TPM."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from cryptography import x509

from attestation.clock import rfc3339
from attestation_agent.offered import KINDS, CertificateSet, Offered
from attestation_agent.show import printable


def certificate_facts(offered: Offered, at: datetime) -> dict[str, Any]:
    """Return what is offered, and how the last attempts went."""
    found = []
    for kind in KINDS:
        current, notes = offered.current(kind), offered.notes(kind)
        if current is None and not notes:
            continue
        found.append(
            {
                "kind": kind,
                "valid": current is not None and _is_valid(current.certificate, at),
                "certificate": None if current is None else _facts(current),
                "next_renewal": None if current is None else current.about.get("renew_at"),
                "renewal_asked": offered.asked(kind),
                "key": None if current is None else current.about.get("key"),
                "key_tier": None if current is None else current.about.get("key_tier"),
                "directory": str(offered.path(kind)),
                "files": [] if current is None else sorted(current.files),
                "last_error": notes.get("error"),
                "next_try": notes.get("next_try_at"),
                "command_error": notes.get("tell_error"),
            }
        )
    return {"at": rfc3339(at), "certificates": found}


def _is_valid(certificate: x509.Certificate, at: datetime) -> bool:
    return certificate.not_valid_before_utc <= at < certificate.not_valid_after_utc


def _facts(current: CertificateSet) -> dict[str, Any]:
    certificate = current.certificate
    return {
        "serial": f"{certificate.serial_number:040x}",
        "subject": certificate.subject.rfc4514_string(),
        "san": _names(certificate),
        "issuer": certificate.issuer.rfc4514_string(),
        "not_before": rfc3339(certificate.not_valid_before_utc),
        "not_after": rfc3339(certificate.not_valid_after_utc),
    }


def _names(certificate: x509.Certificate) -> list[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return []
    return [f"{_word(name)}:{name.value}" for name in names]


def _word(name: x509.GeneralName) -> str:
    if isinstance(name, x509.UniformResourceIdentifier):
        return "URI"
    return "DNS" if isinstance(name, x509.DNSName) else "IP" if isinstance(name, x509.IPAddress) else "other"


def certificate_text(facts: dict[str, Any]) -> str:
    """Return the facts for people; nothing in them can steer a terminal."""
    if not facts["certificates"]:
        return "no certificates: none was asked for (--certificates), or none came yet"
    return "\n\n".join(_text(found) for found in facts["certificates"])


def _text(found: dict[str, Any]) -> str:
    certificate, error = found["certificate"], found["last_error"]
    rows = [("certificate", f"{found['kind']}, {'valid' if found['valid'] else 'not valid'}")]
    if certificate is None:
        rows = [("certificate", f"{found['kind']}, none yet")]
    else:
        rows += [
            ("serial", certificate["serial"]),
            ("subject", certificate["subject"]),
            ("names", " ".join(certificate["san"])),
            ("issuer", certificate["issuer"]),
            ("valid from", _instant(certificate["not_before"])),
            ("valid until", _instant(certificate["not_after"])),
            ("renewed at", "now, as asked" if found["renewal_asked"] else _instant(found["next_renewal"])),
            ("key", f"{found['key']} in the TPM"),
            ("files", f"{found['directory']}: {' '.join(found['files'])}"),
        ]
    if isinstance(error, dict):
        rows += [
            ("last error", f"{_instant(error.get('at'))} {error.get('code')}: {error.get('reason')}"),
            ("tried again", _instant(found["next_try"])),
        ]
    if found["command_error"] is not None:
        rows.append(("command", f"failed: {found['command_error']}"))
    return "\n".join(f"{name:<12} {printable(str(value))}" for name, value in rows)


def _instant(text: object) -> str:
    """Return an instant to the second."""
    return f"{text[:19]}Z" if isinstance(text, str) else "?"
