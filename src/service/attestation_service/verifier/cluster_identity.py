"""What each Kubernetes cluster goes by: who a node is, and whether it is a member; made of the settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from attestation.appraisal.node_csr import Answer
from attestation.endorsements.ak_certificate import (
    AKAnchors,
    AKCertificateClaims,
    parse_ak_certificate,
    verify_ak_certificate,
)
from attestation.endorsements.membership import Member, MembershipProvider, NotMember
from attestation.endorsements.node_identity import (
    IdentityExtractor,
    IdentitySource,
    NodeIdentity,
    differing,
)
from attestation.errors import AttestationError, NodeIdentityRejected
from attestation.evidence.node_csr import UnverifiedContainer
from attestation.machines import Machine
from attestation.tpm import parse_public
from attestation_service.kubernetes_clusters import ClusterRule
from attestation_service.settings import Settings, SettingsInvalid
from attestation_service.verifier import node_identity
from attestation_service.verifier.node_identity import Asking


@dataclass(frozen=True, slots=True, kw_only=True)
class GoesBy:
    """What one cluster goes by.

    Args:
        extractor: Who a node is.
        anchors: Whose word counts for it, where it reads a certificate.
        provider: Whether it belongs to the cluster.
    """

    extractor: IdentityExtractor
    anchors: AKAnchors | None
    provider: MembershipProvider


@dataclass(frozen=True, slots=True, kw_only=True)
class Identified:
    """Who sent a request.

    Args:
        answer: Whether that is the machine whose record it is judged by.
        identity: Who, where that is known.
        certified_ak: SubjectPublicKeyInfo of the attestation key that a certificate vouches for, DER, where the
            machine has no activated one; else None.
    """

    answer: Answer
    identity: NodeIdentity | None = None
    certified_ak: bytes | None = None


NOBODY = Identified(answer=Answer.NO)


class ClusterIdentities:
    """What all clusters go by.

    Args:
        settings: Which clusters there are.

    Raises:
        SettingsInvalid: An extractor, its anchors or a provider cannot be used.
    """

    def __init__(self, settings: Settings) -> None:
        self._asking = Asking()
        self._all: Mapping[str, GoesBy] = {rule.cluster_id: _goes_by(rule) for rule in settings.clusters}

    def identify(
        self, container: UnverifiedContainer, machine: Machine | None, rule: ClusterRule, at: datetime
    ) -> Identified:
        """Return who sent *container*, to be judged by the record of *machine*; nothing of it is believed yet."""
        if machine is None:
            return NOBODY
        mine = self._all[rule.cluster_id]
        ak = None if machine.tpm.ak_public is None else parse_public(machine.tpm.ak_public).spki_der()
        try:
            certificate = _certificate(container, mine, at)
            # 1. About the key that must sign. Without this, one machine could send the certificate of another.
            if certificate is not None and ak not in (None, certificate.spki):
                return NOBODY
            # 2. Whom it names. That a machine is behind it is known of an activated key alone.
            found = mine.extractor.extract(
                IdentitySource(
                    machine_id=machine.machine_id if ak is not None else None,
                    hostname=machine.hostname if ak is not None else None,
                    certificate=certificate,
                )
            )
        except AttestationError:
            return NOBODY
        # 3. What it says of itself is compared, and believed nowhere.
        said = container.vm_identity
        if certificate is not None and said is not None:
            told = {
                "zone": said.zone,
                "id": str(said.id),
                "name": said.name,
                "project_id": str(said.project_id),
                "project_name": said.project_name,
            }
            if differing(found, told):
                return NOBODY
        vouched = certificate.spki if certificate is not None and ak is None else None
        return Identified(answer=Answer.YES, identity=found, certified_ak=vouched)

    async def is_member(self, identity: NodeIdentity, hostname: str | None, rule: ClusterRule) -> Answer:
        """Return whether *identity* is a member of the cluster, and by the name that operators gave."""
        said = await self._asking.is_member(self._all[rule.cluster_id].provider, identity)
        if isinstance(said, Member):
            return Answer.YES if said.node_name == hostname else Answer.NO
        return Answer.NO if isinstance(said, NotMember) else Answer.UNDECIDED


def _certificate(container: UnverifiedContainer, mine: GoesBy, at: datetime) -> AKCertificateClaims | None:
    """Return the certificate of the attestation key, verified; None for an extractor that reads none."""
    if mine.anchors is None:
        return None
    if container.ak_certificate is None:
        raise NodeIdentityRejected("no certificate of the attestation key came", check="node-identity-absent")
    return verify_ak_certificate(
        parse_ak_certificate(container.ak_certificate), anchors=mine.anchors, chain=(), at=at
    )


def _demand_anchors(extractor: IdentityExtractor, rule: ClusterRule) -> None:
    if extractor.certified != (rule.identity_anchors is not None):
        word = "needs" if extractor.certified else "reads no certificate, so it has no"
        raise SettingsInvalid(f"node identity {rule.identity} {word} identity_anchors")


def _goes_by(rule: ClusterRule) -> GoesBy:
    try:
        extractor = node_identity.extractor(rule.identity)
        _demand_anchors(extractor, rule)
        anchors = None if rule.identity_anchors is None else node_identity.load_anchors(rule.identity_anchors)
        provider = node_identity.provider(rule.membership, rule.cluster_id, rule.membership_options)
    except SettingsInvalid as e:
        raise SettingsInvalid(f"ITL_KUBERNETES_CLUSTERS: {rule.cluster_id}: {e}") from None
    return GoesBy(extractor=extractor, anchors=anchors, provider=provider)
