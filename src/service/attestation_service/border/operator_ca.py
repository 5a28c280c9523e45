"""The service's own CA for operators, as a file: TLS of the service asks for certificates before it asks the database.

A handshake needs the CA's certificates in a file. They lie beside the other files of the CA, public, and are written
where the keys in the database are others: by `main` before the server starts, then by the maintenance of each worker.
A key is published long before it signs, so a certificate of a new key is never refused for want of it. Which
certificates open anything is decided at each request, in the database (`auth/mtls.py`).
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import structlog
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from attestation.store import PUBLISHED, Tx
from attestation_service.settings import Settings

log = structlog.get_logger("attestation_service.tls")

FILE = "operator-ca.pem"


def file_of(settings: Settings) -> Path | None:
    """Return where the certificates of the service's own CA for operators lie; None where it has none."""
    folder = settings.state_dir or settings.enrollment_ca_dir
    return folder / FILE if settings.issues_to_operators else None


def certificates(tx: Tx) -> bytes:
    """Return the certificates of the keys that sign for operators, will, or did: PEM, oldest first."""
    used = (i for i in tx.issuers.all() if i.purpose == "operator" and i.state in PUBLISHED)
    found = dict.fromkeys(der for issuer in used for der in issuer.path)
    return b"".join(x509.load_der_x509_certificate(der).public_bytes(Encoding.PEM) for der in found)


def publish(path: Path, pem: bytes) -> bool:
    """Write *pem* to *path*, whole or not at all; False where it is there already. Blocks.

    Raises:
        OSError: It cannot be written.
    """
    try:
        if path.read_bytes() == pem:
            return False
    except OSError:
        pass
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(pem)
            file.flush()
            os.fsync(file.fileno())
        # Public: whoever runs a proxy before the service reads it too.
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    log.info("operator_ca.published", path=str(path))
    return True
