"""Why a device says nothing: one word for each errno, whichever device it is (CONFIDENTIAL.md §5, C13; §6)."""

from __future__ import annotations

import errno
from typing import Final

AGAIN: Final = frozenset({errno.EBUSY, errno.EAGAIN, errno.EINTR, errno.EWOULDBLOCK})
"""What passes: the same is tried again."""

_FAULTS: Final = {
    errno.ENOENT: "absent",
    errno.ECONNREFUSED: "absent",  # a socket to which no software TPM listens
    errno.ENODEV: "no-provider",
    errno.ENXIO: "no-provider",
    errno.ENOTTY: "no-provider",
    errno.EACCES: "denied",
    errno.EPERM: "denied",
    errno.EROFS: "denied",
    **dict.fromkeys(AGAIN, "busy"),
    errno.ETIMEDOUT: "busy",
    errno.EFBIG: "malformed",
    errno.EINVAL: "malformed",
    errno.EMSGSIZE: "malformed",
    errno.EOVERFLOW: "malformed",
}


def fault_of(error: OSError) -> str:
    """Return which of `errors.DEVICE_FAULTS` it is; `failed` where it is none that says more."""
    if isinstance(error, TimeoutError):
        return "busy"  # of `socket`, without an errno
    return _FAULTS.get(error.errno or 0, "failed")
