"""A sealed bundle proves what was measured, and nothing else does."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature

from attestation.audit import canonical_bytes
from attestation.errors import (
    AttestationError,
    MalformedEvidence,
    NoteRejected,
    ProofRejected,
    SealRejected,
)
from attestation.reference.identifier import named
from attestation.sealing import (
    PAYLOAD_TYPE,
    LogProof,
    SealedClaims,
    Statement,
    Subject,
    parse,
    service_keys,
    verify,
    write,
)
from attestation.wire import b64decode, b64encode, jcs
from tests.unit.audit.log_kit import AT, LOG_KEYS, LOG_VKEYS, ORIGIN, WITNESSES, checkpoint, signed
from tests.unit.sealing import seal_kit
from tests.unit.sealing.seal_kit import (
    ATTESTED_AT,
    BUNDLE_UID,
    EVENT,
    EVIDENCE,
    KEY,
    POLICY,
    RESULT,
    RUN_UID,
    SIGNER,
    TOKEN,
    detail_of,
    log_with,
    other_signature,
    places,
    proof_in,
    restated,
    sealed,
    sealed_as,
    statement,
)

P384_ORDER = int(
    "ffffffffffffffffffffffffffffffffffffffffffffffffc7634d81f4372ddf581a0db248b0a77aecec196accc52973", 16
)
OTHER_KEY = service_keys(
    {
        "keys": [
            {
                **SIGNER.jwks()["keys"][0],
                **dict(
                    zip(
                        ("x", "y"),
                        seal_kit.coordinates(ec.derive_private_key(7, ec.SECP384R1()).public_key()),
                        strict=True,
                    )
                ),
            }
        ]
    }
)


def proven(file: bytes) -> SealedClaims:
    """Return what *file* proves to who has the log's keys alone."""
    return verify(parse(file), log_keys=LOG_VKEYS, service_keys=None)


def test_a_bundle_says_what_was_measured_when_and_by_whom() -> None:
    """Of a file alone, under the keys of the log: everything that went into it, byte for byte."""
    claims = proven(sealed())
    assert (claims.event, claims.result, claims.policy) == (EVENT, RESULT, json.loads(POLICY))
    assert [(each.media_type, each.content) for each in claims.evidence] == list(EVIDENCE)
    assert (claims.event_name, claims.result_name) == ("se-01", "default/nightly-result")
    assert (claims.bundle_uid, claims.index, claims.origin) == (BUNDLE_UID, seal_kit.LEAVES_BEFORE, ORIGIN)
    assert (claims.attested_at, claims.logged_at) == (ATTESTED_AT, AT)
    assert claims.logged_by == "system:serviceaccount:attestation:controller"
    assert (claims.key_id, claims.key_is_pinned, claims.digest) == (KEY.key_id, False, statement().digest)
    assert {each.key for each in claims.signers} == set(LOG_VKEYS)
    assert claims.predicate["result"] == {
        "verdict": "verified",
        "runUID": RUN_UID,
        "machineID": RESULT["machineID"],
        "policyID": named(POLICY),
        "earSha256": hashlib.sha256(TOKEN.encode()).hexdigest(),
    }


def test_a_key_may_be_pinned_too() -> None:
    """Who has the service's keys need not take the log's word for the one that signed."""
    seal = parse(sealed())
    assert verify(seal, log_keys=LOG_VKEYS, service_keys=(*OTHER_KEY, KEY)).key_is_pinned
    for pinned in (OTHER_KEY, ()):
        with pytest.raises(SealRejected, match="not pinned"):
            verify(seal, log_keys=LOG_VKEYS, service_keys=pinned)


@pytest.mark.threat("T280")
def test_no_flipped_byte_is_accepted() -> None:
    """Each byte of a small file counts: changed in one bit, it proves nothing.

    Of long texts in base64, as keys and signatures are, the ends and each eleventh byte between them.
    """
    file = sealed()
    assert proven(file).index == seal_kit.LEAVES_BEFORE
    for where in sorted(places(file)):
        changed = bytearray(file)
        changed[where] ^= 1 << (where % 8)
        with pytest.raises(AttestationError):
            proven(bytes(changed))


@pytest.mark.threat("T280")
def test_nobody_makes_a_second_file_that_says_the_same() -> None:
    """Whoever holds a file has its signatures in other spellings too: the other s, a line twice, or before another."""
    first, rest = sealed().split(b"\n", 1)
    bundle = json.loads(first)
    [signature] = bundle["dsseEnvelope"]["signatures"]
    r, s = decode_dss_signature(b64decode(signature["sig"], "sig"))
    text, _, lines = bundle["logEntry"]["checkpoint"].rpartition("\n\n")
    one, two = lines.splitlines(keepends=True)
    assert proven(jcs(bundle) + b"\n" + rest).index == seal_kit.LEAVES_BEFORE
    signature["sig"] = b64encode(encode_dss_signature(r, P384_ORDER - s))
    with pytest.raises(SealRejected, match="not the one"):
        proven(jcs(bundle) + b"\n" + rest)
    signature["sig"] = b64encode(encode_dss_signature(r, s))
    for other in (two + one, one + two + two):
        bundle["logEntry"]["checkpoint"] = f"{text}\n\n{other}"
        with pytest.raises(NoteRejected, match="once, in the order"):
            proven(jcs(bundle) + b"\n" + rest)


@pytest.mark.threat("T280")
def test_nothing_can_be_left_out_added_or_moved() -> None:
    """The lines are those of the statement, all of them, in its order."""
    first, *rest = sealed().splitlines(keepends=True)
    for lines in (
        rest[:-1],
        [*rest, rest[-1]],
        [rest[1], rest[0], *rest[2:]],
        [*rest[:3], rest[4], rest[3]],
    ):
        with pytest.raises(SealRejected):
            proven(b"".join((first, *lines)))


@pytest.mark.threat("T280")
def test_a_statement_that_was_not_logged_proves_nothing() -> None:
    """Who stole the service's key cannot seal what the log does not have: neither today nor under an old date."""
    said = statement(result={**RESULT, "verdict": "failed"})
    signature = SIGNER.sign_dsse(said.data, payload_type=PAYLOAD_TYPE)
    logged = proof_in(log_with(detail_of(statement())))
    with pytest.raises(SealRejected, match="something else"):
        proven(write(said, signature=signature, key=KEY, log=logged))
    with pytest.raises(ProofRejected):
        proven(write(said, signature=signature, key=KEY, log=replace(logged, entry=forged(said))))


def forged(said: Statement) -> bytes:
    """Return an entry about *said* that no log has."""
    return canonical_bytes(log_with(detail_of(said))[seal_kit.LEAVES_BEFORE])


@pytest.mark.threat("T280")
@pytest.mark.parametrize(
    ("log", "error"),
    [
        (proof_in(log_with(detail_of(statement()), action="approve")), SealRejected),
        (proof_in(log_with(detail_of(statement(), key_id="another"))), SealRejected),
        (proof_in(log_with(detail_of(statement(), run_uid="another"))), SealRejected),
        (proof_in(log_with("free text")), MalformedEvidence),
        (replace(proof_in(log_with(detail_of(statement()))), tree_size=7), SealRejected),
        (replace(proof_in(log_with(detail_of(statement()))), index=3), ProofRejected),
    ],
    ids=["another act", "another key", "another run", "no detail of ours", "another size", "another place"],
)
def test_an_entry_about_something_else_seals_nothing(log: LogProof, error: type[AttestationError]) -> None:
    """The entry names this statement, this key and this run, where the proof says."""
    with pytest.raises(error):
        proven(sealed_as(statement(), log))


@pytest.mark.threat("T280")
def test_only_the_log_signs_its_checkpoint() -> None:
    """Neither a stranger's signature nor one beside those of the log, which nobody could judge."""
    log = log_with(detail_of(statement()))
    for keys in (WITNESSES, LOG_KEYS[:1], (*LOG_KEYS, WITNESSES[0])):
        with pytest.raises(NoteRejected):
            proven(sealed_as(statement(), proof_in(log, signed(checkpoint(log), keys))))


@pytest.mark.threat("T280")
def test_another_key_or_signature_is_refused() -> None:
    """The key in the file is the one that the envelope and the log name, and it signed."""
    said, log = statement(), proof_in(log_with(detail_of(statement())))
    with pytest.raises(SealRejected, match="does not verify"):
        proven(write(said, signature=other_signature(said), key=KEY, log=log))
    with pytest.raises(SealRejected, match="something else"):
        proven(write(said, signature=other_signature(said), key=OTHER_KEY[0], log=log))
    good = SIGNER.sign_dsse(said.data, payload_type=PAYLOAD_TYPE)
    with pytest.raises(SealRejected, match="names another key"):
        proven(write(said, signature=good, key=replace(KEY, key_id="another"), log=log))


@pytest.mark.threat("T280")
def test_a_signature_is_over_the_type_too() -> None:
    """DSSE signs what kind of payload it is: a signature over another kind is none over a statement."""
    said, log = statement(), proof_in(log_with(detail_of(statement())))
    with pytest.raises(SealRejected, match="does not verify"):
        proven(
            write(said, signature=SIGNER.sign_dsse(said.data, payload_type="text/plain"), key=KEY, log=log)
        )


@pytest.mark.parametrize(
    "file",
    [
        restated({"_type": "https://in-toto.io/Statement/v0.1"}),
        restated({"predicateType": "https://slsa.dev/provenance/v1"}),
        restated({"subject": []}),
        restated({"predicate": None}),
        restated({"predicate": {**json.loads(statement().data)["predicate"], "tooling": {}}}),
        sealed_as(statement(result={**RESULT, "policyID": "ni:///sha-384;another"})),
        sealed_as(statement(evidence=EVIDENCE[:1])),
        sealed_as(statement(result={**RESULT, "evidence": []})),
    ],
    ids=[
        *("another type", "another predicate", "no subject", "no predicate", "told otherwise"),
        *("another policy", "less evidence", "none named"),
    ],
)
def test_a_statement_that_contradicts_itself_is_refused(file: bytes) -> None:
    """What people read in one part is what the others say: even where it is signed and logged."""
    with pytest.raises(SealRejected):
        proven(file)


@pytest.mark.parametrize("names", [(2, 1), (1, 3)], ids=["moved", "gap"])
def test_subjects_have_their_names(names: tuple[int, int]) -> None:
    """Evidence is numbered as the node posted it."""
    base = statement()
    evidence = [
        replace(subject, name=f"evidence/{number}")
        for subject, number in zip(base.subjects[3:], names, strict=True)
    ]
    with pytest.raises(SealRejected):
        proven(resealed((*base.subjects[:3], *evidence)))


@pytest.mark.parametrize("place", range(3))
def test_the_first_three_subjects_are_event_result_and_policy(place: int) -> None:
    """A reader takes what stands there for what it is called."""
    subjects = list(statement().subjects)
    subjects[place] = replace(subjects[place], name="Other/name@v1")
    with pytest.raises(SealRejected):
        proven(resealed(tuple(subjects)))


def resealed(subjects: tuple[Subject, ...]) -> bytes:
    """Return a file over *subjects*, as somebody with all keys would make it."""
    base = replace(statement(), subjects=subjects)
    return restated({"subject": [each.descriptor() for each in subjects]}, base)


def test_what_there_is_not_is_left_out() -> None:
    """A run without a machine, result token or evidence is sealed too: that, too, is what was found."""
    result = {
        name: said
        for name, said in RESULT.items()
        if name not in ("machineID", "attestationResult", "evidence")
    }
    claims = proven(sealed_as(statement(result={**result, "verdict": "indeterminate"}, evidence=())))
    assert claims.evidence == ()
    assert claims.predicate["result"].keys() == {"verdict", "runUID", "policyID"}


@pytest.mark.parametrize(
    ("event", "result"),
    [
        ({**EVENT, "type": None}, RESULT),
        ({**EVENT, "clusterIdentity": "prod-1"}, RESULT),
        (EVENT, {**RESULT, "verdict": 1}),
        (EVENT, {**RESULT, "derivedFromRun": {}}),
    ],
)
def test_a_spec_without_what_is_told_is_not_sealed(event: dict[str, Any], result: dict[str, Any]) -> None:
    """The predicate tells nothing that the specs do not say."""
    with pytest.raises(MalformedEvidence):
        statement(event, result)


@pytest.mark.parametrize("evidence", ["text", ["text"]])
def test_a_result_whose_evidence_is_no_list_of_objects_is_malformed(evidence: object) -> None:
    """Read with its type, or refused."""
    with pytest.raises(MalformedEvidence):
        proven(sealed_as(statement(result={**RESULT, "evidence": evidence})))


def test_an_instant_that_is_none_is_malformed() -> None:
    """When it was attested is read, not shown as it came."""
    predicate = json.loads(statement().data)["predicate"]
    said = {**predicate, "attestor": {**predicate["attestor"], "attestedAt": "yesterday"}}
    with pytest.raises(MalformedEvidence, match="no instant"):
        proven(restated({"predicate": said}))


def test_the_same_is_written_the_same() -> None:
    """The file is a function of what it holds, so that a second attempt to archive it finds the same bytes."""
    seal = parse(sealed())
    again = write(statement(), signature=seal.signature, key=seal.key, log=seal.log)
    assert again == sealed()
