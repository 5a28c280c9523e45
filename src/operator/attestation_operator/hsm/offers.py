"""QuoteAttestations as we make them: their names, what ties them to issuer and key, what they say. Pure.

Everything of a name follows from the issuer and the edition of its spec: a process that begins anew finds what the one
before it made.
"""

# Algorithms for: wrapped-key
from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from pydantic import ValidationError

from attestation.clock import rfc3339
from attestation.errors import MalformedEvidence
from attestation.quote import Envelope, Purpose, parse_envelope
from attestation.wire import b64encode
from attestation_operator.crds.hsm import ProvisioningSpec
from attestation_operator.crds.quotes import QuoteAttestationSpec
from attestation_operator.hsm.evidence import Collected
from attestation_operator.hsm.objects import Issuer, ended, faults_of
from attestation_operator.objects import FINALIZER, GROUP, QUOTE_ATTESTATION, Key, Raw, Target

ISSUER_UID: Final = f"{GROUP}/issuer-uid"
"""Label of a QuoteAttestation: the issuer that asks."""
UID_CHARACTERS: Final = 8
MAX_DIGITS: Final = 18
KEPT: Final = timedelta(days=30)
"""So long a QuoteAttestation that ended is kept."""


def quote_key(issuer: Issuer, own_namespace: str, generation: int | None = None) -> Key:
    """Return the name of the QuoteAttestation of an issuer: `<name>-<uid8>-<generation>`.

    Args:
        issuer: The issuer.
        own_namespace: The controller's, where those of issuers of the whole cluster are.
        generation: Of its spec, as it is now without.
    """
    end = f"-{issuer.uid[:UID_CHARACTERS]}-{issuer.generation if generation is None else generation}"
    name = ended(issuer.target.name, end)
    return Key(kind=QUOTE_ATTESTATION, name=name, namespace=issuer.target.namespace or own_namespace)


def generation_of(quote: Quote, issuer: Issuer, own_namespace: str) -> int | None:
    """Return for which edition of *issuer* a QuoteAttestation was made; None where it was not made for this issuer.

    By its name, which nobody changes: what is not of such a name is a stranger's, and has no key of ours.
    """
    number = quote.target.name.rpartition("-")[2]
    if not number.isascii() or not number.isdigit() or len(number) > MAX_DIGITS:
        return None
    generation = int(number)
    if generation < 1 or quote.target.key != quote_key(issuer, own_namespace, generation):
        return None
    return generation


def secret_name(issuer: Issuer) -> str:
    """Return the name of the Secret in which the bundle is put."""
    asked = asked_of(issuer)
    if asked.secret_ref is not None:
        return asked.secret_ref.name
    return ended(issuer.target.name, "-cacert")


def asked_of(issuer: Issuer) -> ProvisioningSpec:
    """Return what an issuer in the mode Provisioned asks for."""
    assert issuer.spec is not None
    assert issuer.spec.provisioning is not None
    return issuer.spec.provisioning


def offered(
    issuer: Issuer,
    key: Key,
    *,
    spki: bytes,
    nonce: bytes,
    until: datetime,
    evidence: Collected,
) -> dict[str, Any]:
    """Return the QuoteAttestation in which an issuer asks for its key.

    Args:
        issuer: Who asks.
        key: Of `quote_key`.
        spki: Of the key that wraps.
        nonce: Of the service.
        until: When it ends, in whole seconds: no question is open for longer.
        evidence: Over all of this.
    """
    asked = asked_of(issuer)
    signer = {"group": GROUP, "kind": issuer.target.kind.kind, "name": issuer.target.name, "uid": issuer.uid}
    if issuer.target.namespace is not None:
        signer["namespace"] = issuer.target.namespace
    spec: dict[str, Any] = {
        "purpose": Purpose.KEY_PROVISIONING.value,
        "evidence": {
            "type": asked.evidence.type,
            "format": evidence.format,
            "data": b64encode(evidence.data),
            "certChain": [b64encode(each) for each in evidence.chain],
        },
        "binding": {"scheme": "itl-qa-v1", "hash": "sha512", "nonce": b64encode(nonce)},
        "publicKey": b64encode(spki),
        "signerRef": signer,
        "wrap": {"kekAlg": "rsa-3072", "oaepHash": asked.oaep_hash, "keyWrap": "aes-kwp"},
        "secretRef": {"name": secret_name(issuer)},
        "expiresAt": rfc3339(until),
    }
    if asked.evidence_policy_ref is not None:
        spec["policyRef"] = {"name": asked.evidence_policy_ref.name}
    return {
        "apiVersion": key.kind.api_version,
        "kind": key.kind.kind,
        "metadata": {
            "name": key.name,
            "namespace": key.namespace,
            "labels": {**issuer.labels, ISSUER_UID: issuer.uid},
            "finalizers": [FINALIZER],
            "ownerReferences": [{**issuer.target.reference, "controller": True}],
        },
        "spec": spec,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Quote:
    """A QuoteAttestation.

    Args:
        target: Which one, and when it was so.
        generation: Of its spec.
        spec: None where it cannot be followed; `faults` says why.
        envelope: The same, as it is judged.
        status: As it stands there.
        deleting: Somebody deleted it, and it waits for us.
        finalizers: What holds it.
        raw: Its spec as it stands there, which is what is judged.
    """

    target: Target
    generation: int
    spec: QuoteAttestationSpec | None
    envelope: Envelope | None
    faults: str
    status: Raw
    deleting: bool
    finalizers: tuple[str, ...]
    raw: Raw

    @property
    def is_held(self) -> bool:
        """Whether it waits for us when it is deleted."""
        return FINALIZER in self.finalizers


def read_quote(raw: Raw) -> Quote:
    """Return what *raw* says."""
    spec, envelope, faults = None, None, ""
    said = raw.get("spec") or {}
    try:
        spec = QuoteAttestationSpec.model_validate(said, by_alias=True, by_name=False)
        envelope = parse_envelope(said)
    except ValidationError as e:
        faults = faults_of(e)
    except MalformedEvidence as e:
        faults = str(e)
    metadata = raw["metadata"]
    return Quote(
        target=Target.of(QUOTE_ATTESTATION, raw),
        generation=int(metadata.get("generation") or 1),
        spec=spec,
        envelope=envelope,
        faults=faults,
        status=raw.get("status") or {},
        deleting=metadata.get("deletionTimestamp") is not None,
        finalizers=tuple(metadata.get("finalizers") or ()),
        raw=said,
    )
