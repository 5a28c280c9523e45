"""What can go wrong between a controller and its cluster; the service's refusals are those of `attestation.client`."""

from __future__ import annotations

from attestation.errors import AttestationError, Conflict, Unavailable


class ClusterUnavailable(Unavailable):
    """The API server did not answer, or could not: the same is tried again."""

    code = "cluster-unavailable"


class ClusterRefused(AttestationError):
    """The API server refuses: a right is missing, or the request is wrong. Asking again does not help."""

    code = "cluster-refused"


class ObjectChanged(Conflict):
    """The object is another one than was looked at (409): it is read again, and judged again."""

    code = "object-changed"


class NotLeading(Unavailable):
    """Another replica may act by now: this one does nothing any more."""

    code = "not-leading"
