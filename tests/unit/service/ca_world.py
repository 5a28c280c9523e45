"""A CA with its database, and what tests ask of it."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from attestation.pki.names import machine_subject, operator_subject
from attestation.pki.profiles import ProfileName
from attestation.results import Assurance
from attestation.store import Issuance, IssuanceFilter, Issuer, Store, Tx, open_store
from attestation_service.authority import Authority, Issued, Wanted, open_authority
from attestation_service.settings import Settings
from tests.unit.service.conftest import HeldClock, settings_for

ORGANIZATION = "ITL Usions"
LEAF_KEY = ec.generate_private_key(ec.SECP256R1())
SPKI = LEAF_KEY.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
FINGERPRINT = "ab" * 48


def wanted(machine_id: str | None = None, **changed: Any) -> Wanted:
    """Return a client certificate that a machine wants."""
    machine = machine_id or str(uuid.uuid4())
    members: dict[str, Any] = {
        "profile": ProfileName.NODE_CLIENT,
        "machine_id": machine,
        "subject": machine_subject(
            country="NL", organization=ORGANIZATION, role="worker-app", machine_id=machine
        ),
        "spki": SPKI,
        "requester": machine,
        "key_tier": 3,
        "assurance": Assurance.TOFU,
        "uris": (f"urn:itl:ek:{FINGERPRINT}",),
    }
    return Wanted(**(members | changed))


def operators(name: str = "anna") -> Wanted:
    """Return a certificate that an operator wants."""
    return Wanted(
        profile=ProfileName.OPERATOR,
        subject=operator_subject(country="NL", organization=ORGANIZATION, name=name, duty="operator"),
        spki=SPKI,
        requester=name,
    )


def nothing(_tx: Tx) -> None:
    """Admit."""


def no_more(_tx: Tx, _issued: tuple[Issued, ...]) -> None:
    """Conclude."""


@dataclass
class World:
    """A folder with a database that was migrated, a clock, and the CAs that are opened in it.

    Unencrypted keys: what encrypts them costs a tenth of a second each time.
    """

    directory: Path
    clock: HeldClock = field(default_factory=HeldClock)
    changed: dict[str, Any] = field(default_factory=dict)
    store: Store = field(init=False)
    opened: list[Authority] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.store = open_store(self.settings().db_url)

    def settings(self, **changed: Any) -> Settings:
        """Return the settings of this service."""
        return settings_for(self.directory, **({"enrollment_ca_unencrypted": True} | self.changed | changed))

    def open(self, **changed: Any) -> Authority:
        """Start a worker: make the CA or open it."""
        authority = open_authority(self.settings(**changed), self.store, self.clock)
        self.opened.append(authority)
        return authority

    def close(self) -> None:
        """Stop every worker."""
        for authority in self.opened:
            authority.close()
        self.store.close()

    async def issue(self, authority: Authority, what: Wanted | None = None) -> tuple[Issued, ...]:
        """Issue what nobody refuses."""
        return await authority.issue(what or wanted(), at=self.clock.now(), admit=nothing, conclude=no_more)

    def issuers(self) -> tuple[Issuer, ...]:
        """Return every row of a CA key."""
        return self.store.read_sync(lambda tx: tx.issuers.all())

    def active(self) -> Issuer:
        """Return the key that signs for machines."""
        found = self.store.read_sync(lambda tx: tx.issuers.active("machine", "ecdsa-p384"))
        assert found is not None
        return found

    def certificates(self, **by: Any) -> list[Issuance]:
        """Return the issuance log, oldest first."""
        page = self.store.read_sync(lambda tx: tx.issuances.page(IssuanceFilter(**by), None, 200))
        return list(reversed(page.items))

    def audited(self, action: str) -> list[str]:
        """Return the details of the audit entries of *action*, oldest first."""
        page = self.store.read_sync(lambda tx: tx.audit.page(None, 200))
        found = [entry.detail or "" for _, entry in page.items if entry.action == action]
        return list(reversed(found))
