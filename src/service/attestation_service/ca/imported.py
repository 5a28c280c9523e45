"""The key of a CA that exists already: brought in wrapped, proven by its certificate, and the next key from then on.

Whose certificates relying parties believe from then on is decided by it, so it is an act of several operators where
dual control is on. Nobody has to hold the key for that: each of them sends the same wrapped key, which the service
kept beside the question.

    the blob is opened where the CA's keys are, under a name of its own, and the key proves itself      by each vote
    row `next`, and the audit entry                                                                     one unit
    not agreed yet, or refused: what was opened is taken away again
"""

# Algorithms for: digest
from __future__ import annotations

import hashlib
import secrets
from datetime import datetime, timedelta
from typing import Final, cast

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import NameOID

from attestation.algorithms import CryptoPolicy, Use, demand
from attestation.api import CADetail, CAImportKey, CAKeyImport, PendingApproval
from attestation.clock import rfc3339
from attestation.errors import (
    AlreadyExists,
    CAChainInvalid,
    KeyRefused,
    KeyUnsupported,
    RequestInvalid,
    UnwrapFailed,
)
from attestation.keys.importing import drop_key, import_kek, import_key
from attestation.keys.open import CAPublicKey, OpenKey, algorithm_of
from attestation.keys.wrapping import MAX_WRAPPED_BYTES, PEM_LABEL
from attestation.machines.dual_control import of_ca_import
from attestation.pki.names import purpose_of
from attestation.pki.parent import check_imported, ends
from attestation.store import Issuer, IssuerAlgorithm, Tx
from attestation.wire import b64decode, pem
from attestation_service.auth import OperatorDep, VoterDep
from attestation_service.authority import Authority, rotation
from attestation_service.authority.places import base_of, kinds, new_key_uri
from attestation_service.ca.handlers import authority_of, show
from attestation_service.ca.parents import read_chain
from attestation_service.operators import dual_control
from attestation_service.resources import Res, Resources

_MOMENT: Final = timedelta(seconds=1)


async def import_kek_of(*, res: Res, operator: OperatorDep) -> CAImportKey:
    """Make the key under which an existing CA's key is wrapped for this service.

    It is made once, where the keys of the CAs are: on the token, or as an encrypted file.

    Raises:
        CANotConfigured: The service has no CA.
        RequestInvalid: No keys are brought there: a TPM takes none.
        KeyUnusable: It cannot be made there.
        SignerUnavailable: The token does not answer.
        SignerBusy: Too many wait for it.
    """
    authority = authority_of(res)
    base = base_of(res.settings)
    try:
        made = await authority.in_thread(lambda: import_kek(base, authority.maker.options))
    except KeyUnsupported as e:
        raise RequestInvalid(str(e)) from None
    spki = made.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    sha256, at = hashlib.sha256(spki).hexdigest(), res.clock.now()
    told = f"key under which a CA key is wrapped, SPKI SHA-256 {sha256}"
    await res.store.write(lambda tx: tx.audit.append(operator.event("ca_import_key", detail=told), at))
    return CAImportKey(public_key_pem=pem("PUBLIC KEY", spki), spki_sha256=sha256)


async def import_ca_key(request: CAKeyImport, *, res: Res, operator: VoterDep) -> CADetail | PendingApproval:
    """Make an existing CA's key the next one.

    It is brought to where the keys of the CAs are, wrapped, and signs once it is activated. The chain begins with its
    certificate and ends with a self-signed root. Several operators must agree under dual control.

    Raises:
        CANotConfigured: The service has no CA.
        RequestInvalid: What was sent are no certificates; or the wrapped key is damaged, for another service, or not
            that of the certificate: which of these, nobody is told.
        CAChainInvalid: Not that of a CA which may go on here: expired, no keyCertSign, a weak key.
        AlgorithmForbidden: ITL_CRYPTO_POLICY forbids the algorithm.
        RotationForbidden: The CA has a next key, one that retires, or none of this algorithm.
        AlreadyExists: The key is, or was, a CA key here.
        KeyRefused: Somebody said that others have it.
        BreakGlassCannotVote: Several people must agree to it.
        KeyUnusable: It cannot be kept there.
        SignerUnavailable: The token does not answer.
        SignerBusy: Too many wait for it.
    """
    authority = authority_of(res)
    blob = b64decode(request.wrapped_key, "wrapped_key", max_bytes=MAX_WRAPPED_BYTES)
    chain = read_chain(request.chain_pem)
    at = res.clock.now()
    # 1. A CA that may go on here.
    check_imported(chain, at)
    own = x509.load_der_x509_certificate(chain[0])
    public_key = own.public_key()
    _demand_name(own.subject, request)
    algorithm = _algorithm(public_key, request, res)
    demand(CryptoPolicy(res.settings.crypto_policy), Use.CA, algorithm)
    spki = public_key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    spki_sha256 = hashlib.sha256(spki).hexdigest()
    # 2. Nothing is opened for what cannot be.
    known = await res.store.read(lambda tx: _demand_room(tx, request, algorithm, spki_sha256, res, at))
    # 3. Its key, which proves itself under a name that no other key has.
    issuer_id = secrets.token_hex(8)
    uri = new_key_uri(res.settings, request.purpose, issuer_id, known)
    opened = await _brought(authority, uri, blob, cast("CAPublicKey", public_key), request, res)
    root = x509.load_der_x509_certificate(chain[-1])
    proposal = of_ca_import(
        purpose=request.purpose,
        algorithm=algorithm,
        name=own.subject.rfc4514_string(),
        spki_sha256=spki_sha256,
        root=root.subject.rfc4514_string(),
        root_sha256=hashlib.sha256(chain[-1]).hexdigest(),
        chain_sha256=hashlib.sha256(b"".join(chain)).hexdigest(),
        until=rfc3339(ends(chain)),
        wrapped_sha256=hashlib.sha256(blob).hexdigest(),
        oaep_hash=request.oaep_hash,
    )
    document = pem(PEM_LABEL, blob) + "".join(pem("CERTIFICATE", der) for der in chain)

    def work(tx: Tx) -> PendingApproval | None:
        now = _demand_room(tx, request, algorithm, spki_sha256, res, at)
        agreed = dual_control.gate(tx, proposal, operator, res, at, reason=request.reason, document=document)
        if isinstance(agreed, PendingApproval):
            return agreed
        # Rising, as where a key is planned: the newest one is the last.
        planned = max([at, *(each.reserved_at + timedelta(microseconds=1) for each in now)])
        owner = authority.maker.owner
        reserved = tx.issuers.reserve(
            issuer_id, request.purpose, algorithm, uri, owner=owner, at=planned, until=planned + _MOMENT
        )
        assert reserved  # `_demand_room` saw in this unit that none is to come
        tx.issuers.complete(
            issuer_id,
            "next",
            certificate=chain[0],
            spki_sha256=spki_sha256,
            key_origin=opened.origin,
            at=at,
        )
        if len(chain) > 1:
            tx.issuers.put_chain(issuer_id, chain, at)
        told = (
            f"{request.purpose} CA {issuer_id}, {algorithm}, key {opened.uri} ({opened.origin}): imported, "
            f"{proposal.terms['name']}, SPKI SHA-256 {spki_sha256}, root {proposal.terms['root']}, SHA-256 "
            f"{proposal.terms['root_sha256']}: {request.reason}"
        )
        event = operator.event("ca_import", prev_state="reserved", new_state="next", detail=agreed.told(told))
        tx.audit.append(event, at)
        return None

    is_kept = False
    try:
        pending = await dual_control.write(work, res=res, operator=operator, at=at)
        is_kept = pending is None
    finally:
        if is_kept:
            opened.close()
        else:
            await authority.in_thread(lambda: drop_key(opened, uri, authority.maker.options))
    return pending if pending is not None else await show(res=res)


def _demand_name(subject: x509.Name, request: CAKeyImport) -> None:
    """Check that nobody takes it for another CA of ours: their names say whom they certify (R16)."""
    for each in subject.get_attributes_for_oid(NameOID.COMMON_NAME):
        if purpose_of(str(each.value)) not in (None, request.purpose):
            raise CAChainInvalid(
                f"{subject.rfc4514_string()} is the name of another CA than that of {request.purpose}s"
            )


def _algorithm(public_key: object, request: CAKeyImport, res: Resources) -> IssuerAlgorithm:
    found = algorithm_of(cast("CAPublicKey", public_key))
    for purpose, algorithm in kinds(res.settings):
        if (purpose, algorithm) == (request.purpose, found):
            return algorithm
    wanted = sorted({algorithm for purpose, algorithm in kinds(res.settings) if purpose == request.purpose})
    raise CAChainInvalid(
        f"its key is {found}; {request.purpose} certificates are signed by {', '.join(wanted) or 'no CA here'}"
    )


def _demand_room(
    tx: Tx,
    request: CAKeyImport,
    algorithm: IssuerAlgorithm,
    spki_sha256: str,
    res: Resources,
    at: datetime,
) -> tuple[Issuer, ...]:
    """Return every key there is, where a next one may come and this one may be it."""
    known = tx.issuers.all()
    if any(each.spki_sha256 == spki_sha256 for each in known):
        raise AlreadyExists("this key is, or was, a CA key here")
    if tx.refused_keys.get(spki_sha256) is not None:
        raise KeyRefused("this key never signs here: somebody said that others have it")
    keys = rotation.keys_of(tx, request.purpose, algorithm, res.settings)
    rotation.check(tx, keys, "prepare", force=False, settings=res.settings, at=at)
    return known


async def _brought(
    authority: Authority,
    uri: str,
    blob: bytes,
    public_key: CAPublicKey,
    request: CAKeyImport,
    res: Resources,
) -> OpenKey:
    base = base_of(res.settings)

    def bring() -> OpenKey:
        return import_key(
            uri,
            blob,
            base,
            oaep_hash=request.oaep_hash,
            public_key=public_key,
            options=authority.maker.options,
        )

    try:
        return await authority.in_thread(bring)
    except (UnwrapFailed, KeyUnsupported) as e:
        # No fault of ours: who sent it must not send the same again.
        raise RequestInvalid(str(e)) from None
