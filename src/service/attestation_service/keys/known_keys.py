"""Processes that share a database are one service: they have the same keys, or do not start (docs/adr/0109)."""

# Algorithms for: digest
from __future__ import annotations

import hashlib

from attestation.clock import Clock
from attestation.errors import AttestationError
from attestation.keys import thumbprints
from attestation.store import Store, Tx
from attestation_service.keys.service_keys import KeyHolder
from attestation_service.settings import Settings
from attestation_service.transparency.signing import RETIRED_KEYS, LogSigner


class KeysDiffer(AttestationError):
    """The database belongs to a service with other keys."""

    code = "keys-differ"


def demand(settings: Settings, store: Store, clock: Clock, keys: KeyHolder, signer: LogSigner) -> None:
    """Return if the keys here are those of the service of this database; who comes first says which. Blocks.

    In a change of keys they need only have one in common: a replica knows the next one already, or the one before.
    A service key that is away is not asked for: what it comes back as is compared with what this host remembers.

    Raises:
        KeysDiffer: With which keys the service has, and what to do.
    """
    now: dict[str, set[str]] = {}
    if keys.away is None:
        now["service key"] = set(thumbprints(keys.keys.jwks()))
    before: dict[str, set[str]] = {}
    for one in signer.vkeys:
        purpose = f"{one.type.name} key of the audit log"
        now[purpose] = {hashlib.sha256(one.key).hexdigest()}
        before[purpose] = {
            hashlib.sha256(old.key).hexdigest() for old in signer.retired if old.type is one.type
        }

    def is_told(tx: Tx) -> bool:
        return all(set(tx.known_keys.of(purpose)) == ours for purpose, ours in now.items())

    def tell(tx: Tx) -> None:
        at = clock.now()
        for purpose, ours in now.items():
            known = tx.known_keys.of(purpose)
            if known and ours.isdisjoint(known) and before.get(purpose, set()).isdisjoint(known):
                raise KeysDiffer(
                    f"the service of this database has another {purpose}: SHA-256 {known[-1]}, and the one here is "
                    f"{min(ours)}. Replicas share their keys: copy {settings.enrollment_ca_dir} of one that serves, "
                    "or name the same keys, and remove what this start made there. Keys of the log that were "
                    f"exchanged on purpose stand in {RETIRED_KEYS}. If the keys of the service are lost for good, run "
                    "`attestation-service --accept-restored-database` once"
                )
            tx.known_keys.put(purpose, ours, at)

    if not store.read_sync(is_told):
        store.write_sync(tell)
