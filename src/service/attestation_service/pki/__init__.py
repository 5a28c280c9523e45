"""What relying parties ask of the CA, without an account: revocation lists, OCSP answers, CA certificates.

`lists` makes lists, `responder` answers OCSP, `cached` says how long what they give may be kept.
"""

from attestation_service.pki.lists import Lists
from attestation_service.pki.responder import Responder
from attestation_service.pki.revocation import Revocation

__all__ = ["Lists", "Responder", "Revocation"]
