"""What was issued for an order (RFC 8555, 7.4.2), and revoking it (7.6)."""

from __future__ import annotations

import hmac
from typing import Any, Final

from attestation.endorsements.certificate import parse_certificate
from attestation.errors import MalformedEvidence
from attestation.pki.lint import MAX_CERTIFICATE_BYTES
from attestation.store import Issuance, RevocationReason, Tx
from attestation.wire import b64url_decode, pem
from attestation_service.acme.asked import Answer, Asked
from attestation_service.acme.finalize import PROFILES, REQUESTER
from attestation_service.acme.problems import Refused

CHAIN: Final = "application/pem-certificate-chain"
REASONS: Final[dict[int, RevocationReason]] = {
    0: "unspecified",
    1: "keyCompromise",
    3: "affiliationChanged",
    4: "superseded",
    5: "cessationOfOperation",
}
"""What a holder may say; the others are for the CA."""


async def certificate(asked: Asked) -> Answer:
    """Get a certificate, with the chain above it.

    RFC 8555 §7.4.2. The self-signed certificate at the end of the chain is at home with whoever verifies.
    """
    serial = asked.in_path["serial"]

    def load(tx: Tx) -> tuple[tuple[bytes, ...], list[str]]:
        found = asked.own_order(tx)
        serials = found.serials.split()
        row = tx.issuances.get(serial) if serial in serials else None
        if row is None or row.certificate is None:
            raise Refused("malformed", "this order has no such certificate")
        issuer = tx.issuers.get(row.issuer_id)
        sent = issuer.sent if issuer is not None else ()
        others = [each for each in serials if each != serial]
        return (row.certificate, *sent), [
            asked.url(f"certificates/{found.order_id}/{each}") for each in others
        ]

    chain, others = await asked.res.store.read(load)
    body = "".join(pem("CERTIFICATE", der) for der in chain).encode("ascii")
    # Of a CA with two keys there are two: the other one is the alternate chain (7.4.2).
    return Answer(body=body, media_type=CHAIN, links=tuple(f'<{each}>;rel="alternate"' for each in others))


async def revoke(asked: Asked) -> Answer:
    """Revoke a certificate that was issued by ACME, as the account that has it or by its own key.

    RFC 8555 §7.6. For good and at once.
    """
    body = asked.signed.members()
    text = body.get("certificate")
    if not isinstance(text, str):
        raise Refused("malformed", "certificate, DER in base64url, is needed")
    try:
        der = b64url_decode(text, "certificate", max_bytes=MAX_CERTIFICATE_BYTES)
        serial, spki = (read := parse_certificate(der, max_bytes=MAX_CERTIFICATE_BYTES)).serial, read.spki
    except MalformedEvidence as e:
        raise Refused("malformed", str(e)) from e
    reason = _reason(body)

    def work(tx: Tx) -> Issuance:
        row = tx.issuances.get(f"{serial:040x}") if serial > 0 else None
        # 1. One that an account of ACME got, in exactly these bytes: no other is theirs to revoke here.
        if (
            row is None
            or row.certificate is None
            or not hmac.compare_digest(row.certificate, der)
            or not row.requester.startswith(REQUESTER)
            or row.profile not in PROFILES.values()
        ):
            raise Refused("unauthorized", "the certificate was not issued here by ACME")
        # 2. By who has it: the account, or the key in it.
        if asked.account is not None:
            if row.requester != f"{REQUESTER}{asked.account.account_id}":
                raise Refused("unauthorized", "the certificate is another account's")
        elif not hmac.compare_digest(asked.key.spki, spki):
            raise Refused("unauthorized", "the key that signed is not the one in the certificate")
        # 3. Once.
        if row.state not in ("issued", "held") or not tx.issuances.revoke_serial(
            row.serial, reason, "revoked by ACME", asked.at
        ):
            raise Refused("alreadyRevoked", "the certificate is revoked already")
        by = f"account {asked.account.account_id}" if asked.account else "its own key"
        tx.audit.append(
            asked.event(
                "cert_revoked",
                f"serial {row.serial} of CA {row.issuer_id}, {row.profile}: {reason}: ACME, {by}",
                machine_id=row.machine_id,
                prev=row.state,
                new="revoked",
            ),
            asked.at,
        )
        return row

    await asked.res.store.write(work)
    if asked.res.revocation is not None:
        asked.res.revocation.changed()
    return Answer()


def _reason(body: dict[str, Any]) -> RevocationReason:
    code = body.get("reason", 0)
    if type(code) is not int or code not in REASONS:
        raise Refused("badRevocationReason", f"one of {', '.join(map(str, REASONS))} is a reason here")
    return REASONS[code]
