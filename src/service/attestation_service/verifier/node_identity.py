"""Extractors of node identities and providers of membership: ours by name, others by entry point (docs/adr/0128).

What is installed is not used: operators name in `ITL_KUBERNETES_CLUSTERS` what a cluster goes by. A provider may ask
anybody and take its time; what it costs here is a thread and a bounded wait, and what it cannot say is `Undecided`.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import structlog

from attestation.endorsements.ak_certificate import AKAnchors
from attestation.endorsements.certificate import Certificate, parse_certificate
from attestation.endorsements.membership import (
    MAX_LIST_BYTES,
    MachineMembership,
    Member,
    Membership,
    MembershipProvider,
    NotMember,
    Undecided,
    parse_members,
)
from attestation.endorsements.node_identity import SHIPPED, IdentityExtractor, NodeIdentity
from attestation.errors import AKCertificateRejected, MalformedEvidence, RequestInvalid
from attestation.wire import der_of
from attestation_service.settings import SettingsInvalid

log = structlog.get_logger("attestation_service.node_identity")

IDENTITY_GROUP: Final = "attestation_node_identity"
"""Entry points of extractors: an object with the members of `IdentityExtractor`."""
MEMBERSHIP_GROUP: Final = "attestation_node_membership"
"""Entry points of providers: a callable that takes the cluster's id and its options (texts), and makes a provider."""

MEMBERSHIP_SECONDS: Final = 5.0
MOST_AT_ONCE: Final = 8
"""So many calls of providers may be under way; a thread that hangs cannot be ended, only not be joined by many more."""
MAX_ANCHOR_BYTES: Final = 16_384
ANCHOR_SUFFIXES: Final = frozenset({".cer", ".crt", ".der", ".pem"})

_NAME: Final = re.compile(r"[a-z][a-z0-9-]{0,63}\Z")

MakeProvider = Callable[[str, Mapping[str, str]], MembershipProvider]


def extractor(name: str) -> IdentityExtractor:
    """Return the extractor called *name*: one of ours, or that of an installed distribution.

    Raises:
        SettingsInvalid: There is none, there are two, or it cannot be used.
    """
    shipped = SHIPPED.get(name)
    if shipped is not None:
        return shipped
    found = _load(IDENTITY_GROUP, name, SHIPPED)
    if getattr(found, "name", None) != name or not isinstance(getattr(found, "certified", None), bool):
        raise SettingsInvalid(f"node identity {name}: its entry point is no extractor of this name")
    if not callable(getattr(found, "extract", None)):
        raise SettingsInvalid(f"node identity {name}: it has no extract()")
    loaded: IdentityExtractor = found
    return loaded


def provider(name: str, cluster_id: str, options: Mapping[str, str]) -> MembershipProvider:
    """Make the provider of membership called *name* for one cluster.

    Args:
        name: `machine`, `file`, or the entry point of an installed distribution.
        cluster_id: For whom.
        options: What the operator configured; `file` takes `path`.

    Raises:
        SettingsInvalid: There is none, or it cannot be made of these options.
    """
    made = SHIPPED_PROVIDERS.get(name)
    if made is not None:
        return made(cluster_id, options)
    make = _load(MEMBERSHIP_GROUP, name, SHIPPED_PROVIDERS)
    if not callable(make):
        raise SettingsInvalid(f"membership {name}: its entry point cannot be called")
    try:
        found: MembershipProvider = make(cluster_id, options)
    except Exception as e:
        raise SettingsInvalid(f"membership {name}: {e}") from e
    if not callable(getattr(found, "is_member", None)):
        raise SettingsInvalid(f"membership {name}: it has no is_member()")
    return found


def _machine(_cluster_id: str, options: Mapping[str, str]) -> MembershipProvider:
    _demand_options("machine", options, frozenset())
    return MachineMembership()


def _file(_cluster_id: str, options: Mapping[str, str]) -> MembershipProvider:
    _demand_options("file", options, frozenset({"path"}))
    path = Path(options["path"])
    try:
        with path.open("rb") as stream:
            return parse_members(stream.read(MAX_LIST_BYTES + 1))
    except OSError as e:
        raise SettingsInvalid(f"membership file {path}: {e.strerror}") from e
    except RequestInvalid as e:
        raise SettingsInvalid(f"membership file {path}: {e}") from e


def _demand_options(name: str, options: Mapping[str, str], wanted: frozenset[str]) -> None:
    if options.keys() != wanted:
        expected = ", ".join(sorted(wanted)) or "none"
        raise SettingsInvalid(f"membership {name}: its options are {expected}, nothing else")


SHIPPED_PROVIDERS: Final[Mapping[str, MakeProvider]] = {"machine": _machine, "file": _file}
"""The providers of this project, by name."""


def _load(group: str, name: str, ours: Iterable[str]) -> Any:
    from importlib.metadata import entry_points  # here: who uses ours alone need not load it

    if not _NAME.match(name):
        raise SettingsInvalid(f"{name[:64]!r} is no name: lower-case letters, digits and -")
    points = list(entry_points(group=group, name=name))
    if len(points) != 1:
        known = ", ".join(sorted({*ours, *(each.name for each in entry_points(group=group))}))
        many = "none is installed" if not points else f"{len(points)} distributions have one"
        raise SettingsInvalid(f"{group} {name}: {many}; known are {known}")
    try:
        return points[0].load()
    except Exception as e:
        raise SettingsInvalid(f"{group} {name}: it cannot be loaded: {e}") from e


def load_anchors(folder: Path) -> AKAnchors:
    """Read every certificate of *folder*, DER or PEM, one a file: each is an anchor.

    Raises:
        SettingsInvalid: A file cannot be read, or is not the certificate of a CA.
    """
    try:
        files = sorted(each for each in folder.iterdir() if each.suffix.lower() in ANCHOR_SUFFIXES)
        return AKAnchors([_anchor(each) for each in files])
    except OSError as e:
        raise SettingsInvalid(f"{folder}: {e.strerror}") from e
    except AKCertificateRejected as e:
        raise SettingsInvalid(f"{folder}: {e}") from e


def _anchor(file: Path) -> Certificate:
    with file.open("rb") as stream:
        data = stream.read(MAX_ANCHOR_BYTES + 1)
    try:
        return parse_certificate(der_of(data, "certificate", "CERTIFICATE", "TRUSTED CERTIFICATE"))
    except MalformedEvidence as e:
        raise SettingsInvalid(f"{file}: {e}") from e


class Asking:
    """Asks providers of membership, each on a thread of its own, so many at once and so long.

    Args:
        seconds: How long an answer is waited for.
        most_at_once: How many may be under way, those counted that nobody waits for any more.
    """

    def __init__(self, *, seconds: float = MEMBERSHIP_SECONDS, most_at_once: int = MOST_AT_ONCE) -> None:
        self._seconds = seconds
        self._free = threading.BoundedSemaphore(most_at_once)

    async def is_member(self, asked: MembershipProvider, identity: NodeIdentity) -> Membership:
        """Return what *asked* says of *identity*; `Undecided` where it raises, hangs, or answers something else."""
        if not self._free.acquire(blocking=False):
            return Undecided(reason="too many questions about membership are not answered yet")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Membership] = loop.create_future()

        def tell(found: Membership) -> None:
            if not answer.done():
                answer.set_result(found)

        def ask() -> None:
            found: Membership
            try:
                said = asked.is_member(identity)
                good = isinstance(said, Member | NotMember | Undecided)
                found = (
                    said if good else Undecided(reason="the provider of membership answers what is no answer")
                )
            except Exception as e:  # noqa: BLE001 -- somebody else's code: that it failed is all that is known
                log.warning(
                    "membership.failed", extractor=identity.extractor, reason=f"{type(e).__name__}: {e}"
                )
                found = Undecided(reason=f"the provider of membership failed: {type(e).__name__}")
            finally:
                self._free.release()
            if not loop.is_closed():
                loop.call_soon_threadsafe(tell, found)

        # A daemon: the end of the service does not wait for it.
        threading.Thread(target=ask, name="membership", daemon=True).start()
        try:
            return await asyncio.wait_for(answer, self._seconds)
        except TimeoutError:
            log.warning("membership.late", extractor=identity.extractor, seconds=self._seconds)
            return Undecided(reason=f"the provider of membership did not answer within {self._seconds:g} s")
