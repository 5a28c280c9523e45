"""Extensions: found by entry point, enabled by name, tried before anything is served (docs/adr/0079, 0145, 0170).

The service knows the contract (`attestation.extension`) and no extension.
"""

from attestation_service.extensions.enabled import NONE, Enabled, ExtensionInvalid
from attestation_service.extensions.life import HOOK_SECONDS, running, tell_skipped
from attestation_service.extensions.loading import by_event, load
from attestation_service.extensions.tables import branch_of, migrate

__all__ = [
    "HOOK_SECONDS",
    "NONE",
    "Enabled",
    "ExtensionInvalid",
    "branch_of",
    "by_event",
    "load",
    "migrate",
    "running",
    "tell_skipped",
]
