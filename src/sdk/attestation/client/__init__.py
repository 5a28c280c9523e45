"""The typed client of the HTTP API: `NodeClient` for machines, `OperatorClient` for operators.

Synchronous, over httpx. Every failure is an `AttestationError`:

    AttestationError
    ├── APIError                  the service answered with a problem; also an instance of the error that its
    │                             code names, so `except ChallengeUsed` works on both sides of the wire
    └── Unavailable
        ├── ServiceUnreachable    no answer: refused, timed out, cut off
        │   └── TLSFailed         the peer could not prove who it is
        └── AnswerInvalid         an answer that is not of this API: too long, not JSON, a redirect
"""

from attestation.client.connection import Retries, is_loopback
from attestation.client.errors import AnswerInvalid, APIError, ServiceUnreachable, TLSFailed
from attestation.client.node import NodeClient, SealedConfig
from attestation.client.operator import OperatorClient

__all__ = [
    "APIError",
    "AnswerInvalid",
    "NodeClient",
    "OperatorClient",
    "Retries",
    "SealedConfig",
    "ServiceUnreachable",
    "TLSFailed",
    "is_loopback",
]
