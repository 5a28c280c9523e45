"""The typed client of the HTTP API: `NodeClient` for machines, `OperatorClient` for operators.

`ControllerClient` is for controllers of Kubernetes clusters. Synchronous.
Each name is imported when it is first used, because commands wait for what they import.
Every failure is an `AttestationError`:

    AttestationError
    ├── APIError                  the service answered with a problem; also an instance of the error that its
    │                             code names, so `except ChallengeUsed` works on both sides of the wire
    └── Unavailable
        ├── ServiceUnreachable    no answer: refused, timed out, cut off
        │   └── TLSFailed         the peer could not prove who it is
        │       └── NotTLS        what answers there does not speak TLS
        ├── OutcomeUnknown        the answer to an act was lost, and asking again did not help
        └── AnswerInvalid         an answer that is not of this API: too long, not JSON, a redirect
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attestation.client.connection import is_loopback
    from attestation.client.controller import ControllerClient
    from attestation.client.errors import AnswerInvalid, APIError, NotTLS, ServiceUnreachable, TLSFailed
    from attestation.client.node import NodeClient, SealedConfig, SignedBundle
    from attestation.client.operator import OperatorClient
    from attestation.client.public import PublicClient
    from attestation.client.record import Record
    from attestation.client.retries import Retries

__all__ = [
    "APIError",
    "AnswerInvalid",
    "ControllerClient",
    "NodeClient",
    "NotTLS",
    "OperatorClient",
    "OutcomeUnknown",
    "PublicClient",
    "Record",
    "Retries",
    "SealedConfig",
    "ServiceUnreachable",
    "SignedBundle",
    "TLSFailed",
    "is_loopback",
]

_MODULES = {
    "Retries": "retries",
    "is_loopback": "connection",
    "AnswerInvalid": "errors",
    "APIError": "errors",
    "OutcomeUnknown": "errors",
    "ServiceUnreachable": "errors",
    "TLSFailed": "errors",
    "NotTLS": "errors",
    "ControllerClient": "controller",
    "NodeClient": "node",
    "SealedConfig": "node",
    "SignedBundle": "node",
    "OperatorClient": "operator",
    "PublicClient": "public",
    "Record": "record",
}


def __getattr__(name: str) -> Any:
    """Import the module that defines *name* (PEP 562)."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    return value
