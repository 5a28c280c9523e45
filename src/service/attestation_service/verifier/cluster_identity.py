"""What each Kubernetes cluster goes by: who a node is, and whether it is a member; made of the settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

import structlog

from attestation.appraisal.node_csr import Answer
from attestation.endorsements.ak_certificate import (
    AKAnchors,
    AKCertificateClaims,
    parse_ak_certificate,
    verify_ak_certificate,
)
from attestation.endorsements.membership import Member, MembershipProvider, NotMember
from attestation.endorsements.node_identity import (
    ABSENT,
    IdentityExtractor,
    IdentitySource,
    NodeIdentity,
    differing,
)
from attestation.errors import AttestationError, NodeIdentityRejected
from attestation.evidence.node_csr import UnverifiedContainer
from attestation.machines import Machine
from attestation.store import StoredAKCertificate
from attestation.tpm import parse_public
from attestation_service.kubernetes_clusters import ClusterRule
from attestation_service.settings import Settings, SettingsInvalid
from attestation_service.verifier import node_identity
from attestation_service.verifier.node_identity import Asking

log = structlog.get_logger("attestation_service.node_identity")


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
        self,
        container: UnverifiedContainer | None,
        machine: Machine | None,
        kept: StoredAKCertificate | None,
        rule: ClusterRule,
        at: datetime,
    ) -> Identified:
        """Return who sent a request, to be judged by the record of *machine*; nothing of it is believed yet.

        Args:
            container: What came; None for a request that carries no evidence.
            machine: The machine that it names, or None.
            kept: What vouched for the machine's AK when it was introduced, or None.
            rule: Of the cluster.
            at: Now.
        """
        if machine is None:
            return NOBODY
        mine = self._all[rule.cluster_id]
        held = None if machine.tee is not None else machine.tpm.ak_public
        ak = None if held is None else parse_public(held).spki_der()
        came = None if container is None else container.ak_certificate
        try:
            # 1. Of the key that must sign, or of one that vouched in its TPM for it. Without this, one machine could
            #    send the certificate of another.
            certificate = None
            if mine.anchors is not None and came is not None:
                certificate = _verified(came, (), mine.anchors, at)
                if ak not in (None, certificate.spki):
                    return NOBODY
            elif mine.anchors is not None:
                certificate = _introduced(kept, machine, mine.anchors, at)
            # 2. Whom it names. That a machine is behind it is known of an activated key alone.
            found = _extracted(
                mine.extractor,
                IdentitySource(
                    machine_id=machine.machine_id if ak is not None else None,
                    hostname=machine.hostname if ak is not None else None,
                    certificate=certificate,
                ),
            )
        except AttestationError:
            return NOBODY
        if found is None:
            return Identified(answer=Answer.UNDECIDED)
        # 3. What it says of itself is compared, and believed nowhere.
        said = None if container is None else container.vm_identity
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


def _verified(data: bytes, chain: tuple[bytes, ...], anchors: AKAnchors, at: datetime) -> AKCertificateClaims:
    return verify_ak_certificate(parse_ak_certificate(data), anchors=anchors, chain=chain, at=at)


def _introduced(
    kept: StoredAKCertificate | None, machine: Machine, anchors: AKAnchors, at: datetime
) -> AKCertificateClaims:
    """Return the certificate that vouched for the AK of *machine* at its introduction, verified for this use.

    It is that of the AK itself, or of a key in its TPM that certified it then.

    Raises:
        NodeIdentityRejected: None vouches for the AK that the machine has now.
    """
    if kept is None or not kept.validation.ok or kept.ak_name != machine.key_name:
        raise NodeIdentityRejected("no certificate of the attestation key is known", check=ABSENT)
    return _verified(kept.certificate, kept.chain, anchors, at)


def _extracted(extractor: IdentityExtractor, source: IdentitySource) -> NodeIdentity | None:
    """Return whom *source* names; None where an extractor fails otherwise than it may.

    Raises:
        NodeIdentityRejected: It names nobody.
    """
    try:
        found: object = extractor.extract(source)
    except AttestationError:
        raise
    except Exception as e:  # noqa: BLE001 -- somebody else's code: that it failed is all that is known
        log.warning("node_identity.failed", extractor=extractor.name, reason=f"{type(e).__name__}: {e}")
        return None
    if not isinstance(found, NodeIdentity):
        log.warning(
            "node_identity.failed", extractor=extractor.name, reason="it answered what is no identity"
        )
        return None
    return found


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
