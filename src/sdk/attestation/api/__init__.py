"""Wire schemas of the HTTP API: what PROTOCOL says, as pydantic models.

Unknown members are errors, so a misspelt security field never goes unnoticed. Binary values stay base64
text here; `attestation.wire.b64decode` reads them, so that bad bytes are `malformed-evidence`, not a schema error.
"""

from attestation.api.approvals import *  # noqa: F403 -- the package is the namespace of the schemas
from attestation.api.node import *  # noqa: F403 -- likewise
from attestation.api.operator import *  # noqa: F403 -- likewise
from attestation.api.problem import *  # noqa: F403 -- likewise
