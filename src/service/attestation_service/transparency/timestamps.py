"""RFC 3161 time stamps of checkpoints: somebody else's word that this root existed at this time.

What is stamped is the SHA-256 of the checkpoint's text, as `attestation.audit.export` says: signatures may be
added to a note later, its text stays.
"""

# Algorithms for: audit-hash
from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from cryptography import x509

from attestation.audit.note import parse_note
from attestation.errors import AttestationError
from attestation.store import CountersignatureKind, Store, StoredCheckpoint
from attestation_service.settings import Settings
from attestation_service.transparency.others import CountersignatureRejected, client, post

if TYPE_CHECKING:
    from rfc3161_client import TimeStampRequest, TimeStampResponse

ANSWER_MEDIA_TYPE: Final = "application/timestamp-reply"
MAX_STAMP_BYTES: Final = 16_384


class TimeStampingUnusable(AttestationError):
    """ITL_AUDIT_TIMESTAMP_URL is set, but time stamps cannot be asked for."""

    code = "time-stamping-unusable"


class TimeStamper:
    """One time stamping authority.

    Args:
        settings: Where it is, and whom it must descend from.

    Raises:
        TimeStampingUnusable: The package `rfc3161-client` is not installed, or the CA file cannot be read.
    """

    kind = CountersignatureKind.TIMESTAMP

    def __init__(self, settings: Settings) -> None:
        try:
            import rfc3161_client  # noqa: F401 -- whether it is there shows now, not at the first checkpoint
        except ImportError as e:
            raise TimeStampingUnusable(
                "ITL_AUDIT_TIMESTAMP_URL needs the package rfc3161-client: "
                "install itl-attestation-service[timestamps]"
            ) from e
        self.name = settings.audit_timestamp_url
        self._roots = _certificates(settings.audit_timestamp_ca)

    async def countersign(self, stored: StoredCheckpoint, store: Store) -> bytes:  # noqa: ARG002 -- as others
        """Return the DER TimeStampResp for the text of *stored*.

        Without ITL_AUDIT_TIMESTAMP_CA its signature is not verified here; that it is about this text is.

        Raises:
            CountersignatureRejected: It was refused, or is about something else, or of somebody else.
            CountersignerUnreachable: The authority could not be reached.
        """
        from rfc3161_client import HashAlgorithm, TimestampRequestBuilder

        text = parse_note(stored.note.encode()).text.encode()
        request = (
            TimestampRequestBuilder()
            .data(text)
            .hash_algorithm(HashAlgorithm.SHA256)
            .nonce(nonce=True)
            .build()
        )
        headers = {"Content-Type": "application/timestamp-query", "Accept": ANSWER_MEDIA_TYPE}
        async with client() as http:
            status, kind, body = await post(http, self.name, request.as_bytes(), headers)
        if status != 200 or kind != ANSWER_MEDIA_TYPE or len(body) > MAX_STAMP_BYTES:
            raise CountersignatureRejected(
                f"{self.name} answered {status} with {len(body)} bytes of {kind!r}"
            )
        self._verify(body, text, request)
        return body

    def _verify(self, body: bytes, text: bytes, request: TimeStampRequest) -> None:
        from rfc3161_client import (
            VerificationError,
            VerifierBuilder,
            decode_timestamp_response,
        )

        try:
            answer = decode_timestamp_response(body)
            if self._roots:
                builder = VerifierBuilder.from_request(request)
                for certificate in self._roots:
                    builder = builder.add_root_certificate(certificate)
                builder.build().verify_message(answer, text)
            elif not _is_about(answer, request):
                raise CountersignatureRejected(f"{self.name} stamped something else, or nothing")
        except (VerificationError, ValueError) as e:
            raise CountersignatureRejected(f"{self.name}: {e}") from e


def _is_about(answer: TimeStampResponse, request: TimeStampRequest) -> bool:
    asked, said = request.message_imprint, answer.tst_info.message_imprint
    return (answer.status, said.hash_algorithm, said.message, answer.tst_info.nonce) == (
        0,
        asked.hash_algorithm,
        asked.message,
        request.nonce,
    )


def _certificates(path: Path | None) -> list[x509.Certificate]:
    if path is None:
        return []
    try:
        return x509.load_pem_x509_certificates(path.read_bytes())
    except (OSError, ValueError) as e:
        raise TimeStampingUnusable(f"ITL_AUDIT_TIMESTAMP_CA: {path} has no certificates in PEM") from e
