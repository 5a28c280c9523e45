"""A nonce for the time when the service cannot be reached: it follows from the cluster and the time of day (§18).

Anybody can compute it in advance, so a statement that answers it may have been made in advance: it says that the TPM
made it for this cluster and this key, and no more of when. Off by default, marked in the result, and never enough for
a tier that claims freshness.
"""

# Algorithms for: node-proof
from __future__ import annotations

import hashlib
from datetime import datetime
from typing import Final

from attestation.wire import u32, u64

BUCKET_SECONDS: Final = 300
_CONTEXT: Final = b"itl-node-csr-bucket/v1"


def bucket_nonce(cluster_id: str, at: datetime, *, back: int = 0) -> bytes:
    """Return the nonce of the bucket of *at*, 32 bytes; *back* buckets earlier.

    SHA-256(LP("itl-node-csr-bucket/v1") ‖ LP(cluster id) ‖ LP(u64 Unix time / 300, big-endian)), LP(x) = u32 length,
    big-endian ‖ x.
    """
    bucket = int(at.timestamp()) // BUCKET_SECONDS - back
    parts = (_CONTEXT, cluster_id.encode("utf-8"), u64(bucket))
    return hashlib.sha256(b"".join(u32(len(part)) + part for part in parts)).digest()
