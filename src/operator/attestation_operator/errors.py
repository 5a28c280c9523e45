"""What can go wrong between a controller and its cluster; the service's refusals are those of `attestation.client`."""

from __future__ import annotations

from attestation.errors import AttestationError, Conflict, Unavailable


class ClusterUnavailable(Unavailable):
    """The API server did not answer, or could not: the same is tried again."""

    code = "cluster-unavailable"


class ClusterRefused(AttestationError):
    """The API server refuses: a right is missing, or the request is wrong. Asking again does not help."""

    code = "cluster-refused"


class ClusterForbidden(ClusterRefused):
    """The API server says that a right is missing (403).

    It may come: one that has just started knows no roles for some seconds, and refuses everybody everything.
    """

    code = "cluster-forbidden"


class SelectorRefused(ClusterRefused):
    """The API server selects by no such field (400): ask for all, and select here."""

    code = "selector-refused"


class WatchExpired(ClusterUnavailable):
    """The API server does not remember so far back (410): everything is listed anew."""

    code = "watch-expired"


class ObjectChanged(Conflict):
    """The object is another one than was looked at (409): it is read again, and judged again."""

    code = "object-changed"


class ObjectExists(ObjectChanged):
    """There is an object under the name that one was to be created under: it is read, and judged."""

    code = "object-exists"


class NotLeading(Unavailable):
    """Another replica may act by now: this one does nothing any more."""

    code = "not-leading"


class TokenMissing(Unavailable):
    """The token of our ServiceAccount cannot be read, or the service does not accept it: nothing was decided."""

    code = "token-missing"


class ServiceAway(Unavailable):
    """The service answered that it cannot decide now."""

    code = "service-away"


class AnchorsUnreadable(Unavailable):
    """The file with the CAs of nodes cannot be read: nothing is signed until it can."""

    code = "anchors-unreadable"


class IssuerNotOpen(Unavailable):
    """An issuer is ready, and this process has not opened its key: it has just begun."""

    code = "issuer-not-open"


class IssuerBusy(Unavailable):
    """More requests wait for an issuer than it signs in a while."""

    code = "issuer-busy"


class NotRecorded(Unavailable):
    """The service did not say that it wrote a certificate down: nobody is given it."""

    code = "not-recorded"


class AnswerInvalid(Unavailable):
    """The service answered what cannot be: nothing is signed, and nobody is given anything, because of it."""

    code = "answer-invalid"


class EvidenceUnavailable(AttestationError):
    """No evidence can be collected: the deployment lists nothing that makes it, or what it lists did not."""

    code = "evidence-unavailable"
