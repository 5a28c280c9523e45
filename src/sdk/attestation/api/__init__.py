"""Wire schemas of the HTTP API: what PROTOCOL says, as pydantic models.

Unknown members are errors, so a misspelt security field never goes unnoticed. Binary values stay base64
text here; `attestation.wire.b64decode` reads them, so that bad bytes are `malformed-evidence`, not a schema error.

Each name is imported with its module when it is first used: whoever needs no model need not wait for pydantic.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attestation.api.acme import *  # noqa: F403 -- the package is the namespace of the schemas
    from attestation.api.approval_rules import *  # noqa: F403 -- likewise
    from attestation.api.approvals import *  # noqa: F403 -- likewise
    from attestation.api.audit import *  # noqa: F403 -- likewise
    from attestation.api.ca import *  # noqa: F403 -- likewise
    from attestation.api.clusters import *  # noqa: F403 -- likewise
    from attestation.api.collateral import *  # noqa: F403 -- likewise
    from attestation.api.configurations import *  # noqa: F403 -- likewise
    from attestation.api.console import *  # noqa: F403 -- likewise
    from attestation.api.enrollment import *  # noqa: F403 -- likewise
    from attestation.api.extensions import *  # noqa: F403 -- likewise
    from attestation.api.hsm import *  # noqa: F403 -- likewise
    from attestation.api.images import *  # noqa: F403 -- likewise
    from attestation.api.inspection import *  # noqa: F403 -- likewise
    from attestation.api.node import *  # noqa: F403 -- likewise
    from attestation.api.node_csr import *  # noqa: F403 -- likewise
    from attestation.api.operator import *  # noqa: F403 -- likewise
    from attestation.api.operator_certificates import *  # noqa: F403 -- likewise
    from attestation.api.policies import *  # noqa: F403 -- likewise
    from attestation.api.problem import *  # noqa: F403 -- likewise
    from attestation.api.query import *  # noqa: F403 -- likewise
    from attestation.api.receipts import *  # noqa: F403 -- likewise
    from attestation.api.results import *  # noqa: F403 -- likewise
    from attestation.api.runs import *  # noqa: F403 -- likewise
    from attestation.api.stats import *  # noqa: F403 -- likewise
    from attestation.api.trust import *  # noqa: F403 -- likewise

_MODULES = (
    "problem",
    "stats",
    "approvals",
    "operator",
    "policies",
    "node",
    "audit",
    "trust",
    "query",
    "results",
    "receipts",
    "ca",
    "configurations",
    "enrollment",
    "operator_certificates",
    "extensions",
    "node_csr",
    "collateral",
    "inspection",
    "runs",
    "hsm",
    "acme",
    "clusters",
    "approval_rules",
    "images",
    "console",
)


def __getattr__(name: str) -> Any:
    """Import the module that defines *name* (PEP 562)."""
    from importlib import import_module

    for module in () if name.startswith("_") else _MODULES:
        schemas = import_module(f"{__name__}.{module}")
        if name in schemas.__all__:
            value = globals()[name] = getattr(schemas, name)
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
