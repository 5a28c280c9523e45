"""Checkpoints in a Rekor log (API v1): what is sent, and whether what comes back may be believed.

Rekor takes a statement with its signature and the key, verifies it, and keeps the digest of the statement. A log of
ours signs its checkpoints with Ed25519. The kind `hashedrekord` has only the digest, so of Ed25519 it takes the
prehashed form, which no checkpoint has; the kind `rekord` takes the statement itself, and Ed25519 as it is.
"""

# Algorithms for: publication-log
from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key

from attestation.audit.merkle import leaf_hash, verify_inclusion
from attestation.audit.note import KeyType, parse_note
from attestation.client.connection import (
    Closing,
    carrier_for,
    checked_url,
    exchange,
    is_loopback,
    tls_context,
)
from attestation.client.errors import AnswerInvalid
from attestation.client.text import clean
from attestation.errors import MalformedEvidence, ProofRejected, RequestInvalid, Unavailable
from attestation.wire import b64decode, b64encode
from attestation_cli.audit_git import LATEST
from attestation_cli.audit_proof import put

if TYPE_CHECKING:
    from attestation.audit.note import VerifierKey
    from attestation.audit.proof import Head
    from attestation.client.carrier import Carrier
    from attestation.client.connection import Answer

ENTRIES: Final = "/api/v1/log/entries"
DEADLINE_SECONDS: Final = 60.0
MAX_ANSWER_BYTES: Final = 1 << 20
_MAX_BODY_BYTES: Final = 64 << 10
_UUID: Final = re.compile(r"([0-9a-f]{16})?([0-9a-f]{64})\Z", re.ASCII)
"""The tree (8 bytes) and the hash of the leaf; a log of one tree may leave the former out."""
_HEADERS: Final = {
    "Accept": "application/json",
    "Accept-Encoding": "identity",
    "Content-Type": "application/json",
    "User-Agent": "itl-attestation-cli/0.1",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """A checkpoint with the signature that Rekor verifies.

    Args:
        text: The three lines that are signed.
        key: The log's Ed25519 key, which is pinned.
        signature: By it over *text*, 64 bytes; verified.
    """

    text: bytes
    key: VerifierKey
    signature: bytes

    @property
    def pem(self) -> bytes:
        """The key as Rekor takes it: SubjectPublicKeyInfo, PEM."""
        public = Ed25519PublicKey.from_public_bytes(self.key.key)
        return public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

    def proposal(self) -> dict[str, Any]:
        """Return the entry that is asked for (`rekord` 0.0.1)."""
        return _entry({"content": b64encode(self.text)}, self.signature, self.pem)

    def body(self) -> dict[str, Any]:
        """Return the entry as Rekor keeps it: the digest in place of the text."""
        digest = {"algorithm": "sha256", "value": hashlib.sha256(self.text).hexdigest()}
        return _entry({"hash": digest}, self.signature, self.pem)


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """An entry that is in the log; only `verify` makes one.

    Args:
        uuid: Its name: of the tree, where it says so, and of the leaf.
        index: Its number in the log, over all of the log's trees.
        integrated_at: When the log says that it took it, seconds since 1970.
        document: What the log answered.
    """

    uuid: str
    index: int
    integrated_at: int
    document: dict[str, Any]


def _entry(data: dict[str, Any], signature: bytes, pem: bytes) -> dict[str, Any]:
    signed = {"format": "x509", "content": b64encode(signature), "publicKey": {"content": b64encode(pem)}}
    return {"apiVersion": "0.0.1", "kind": "rekord", "spec": {"data": data, "signature": signed}}


def statement_of(head: Head) -> Statement:
    """Return what Rekor can be told of *head*, whose signers were verified.

    Raises:
        RequestInvalid: No Ed25519 key of the log is pinned.
    """
    for signer in head.signers:
        if signer.key.type is KeyType.ED25519 and signer.key.name == head.checkpoint.origin:
            for line in head.note.signatures:
                if (line.name, line.key_id) == (signer.key.name, signer.key.key_id):
                    return Statement(text=str(head.checkpoint).encode(), key=signer.key, signature=line.value)
    raise RequestInvalid("Rekor verifies the log's Ed25519 signature: pin that key, too")


def read_key(file: Path) -> ec.EllipticCurvePublicKey:
    """Read the public key of a Rekor log: PEM, P-256.

    Raises:
        RequestInvalid: It cannot be read, or is another.
    """
    try:
        key = load_pem_public_key(file.read_bytes())
    except OSError as e:
        raise RequestInvalid(f"{file}: {e.strerror}") from e
    except ValueError as e:
        raise RequestInvalid(f"{file}: not a public key in PEM") from e
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise RequestInvalid(f"{file}: the key of a Rekor log is on P-256")
    return key


def verify(
    document: object, statement: Statement, *, uuid: str | None, key: ec.EllipticCurvePublicKey
) -> Published:
    """Verify that *statement* is in the log of *key*.

    Args:
        document: What the log answered: an object of one entry under its name.
        statement: What was sent.
        uuid: The name that was asked for; None where the log gave it just now.
        key: Of the log.

    Raises:
        ProofRejected: It does not prove that.
    """
    try:
        ((name, entry),) = document.items()  # type: ignore[attr-defined]  # what is no object fails below
        body = b64decode(entry["body"], "body", max_bytes=_MAX_BODY_BYTES)
        stamp = b64decode(entry["verification"]["signedEntryTimestamp"], "timestamp", max_bytes=256)
        proof = entry["verification"]["inclusionProof"]
        leaf, path = _UUID.fullmatch(name), [bytes.fromhex(each) for each in proof["hashes"]]
        place, size, root = int(proof["logIndex"]), int(proof["treeSize"]), bytes.fromhex(proof["rootHash"])
        index, integrated_at, log_id = int(entry["logIndex"]), int(entry["integratedTime"]), entry["logID"]
        head = parse_note(proof["checkpoint"].encode())
        kept = json.loads(body)
    except (
        *(AttributeError, KeyError, TypeError, ValueError, OverflowError, RecursionError, MalformedEvidence),
    ) as e:
        raise ProofRejected("the log's answer is no entry with its proof") from e
    # 1. It speaks about what was sent. Otherwise a proof about anything else would do.
    if kept != statement.body():
        raise ProofRejected("the log answers with the entry of another statement")
    # 2. The name is that of this entry, and the one that was asked for: who looks it up later must find this.
    hashed = leaf_hash(body)
    if leaf is None or leaf[2] != hashed.hex() or (uuid is not None and not _same(uuid, name)):
        raise ProofRejected("the log gives the entry the name of another")
    # 3. The log signed the tree. Otherwise the proof could lead to a root that nobody else ever sees.
    _verify_head(head.text, [line.value for line in head.signatures], key, size=size, root=root)
    # 4. The entry is in it.
    verify_inclusion(place, size, hashed, path, root)
    # 5. The log says when it took it, in its own name.
    spki = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    if log_id != hashlib.sha256(spki).hexdigest():
        raise ProofRejected("the answer is of a log with another key")
    stated = {"body": entry["body"], "integratedTime": integrated_at, "logID": log_id, "logIndex": index}
    # RFC 8785: of ASCII texts and whole numbers this is the canonical form.
    _verify_signature(key, stamp, json.dumps(stated, sort_keys=True, separators=(",", ":")).encode())
    return Published(uuid=name, index=index, integrated_at=integrated_at, document={name: entry})


def _same(asked: str, found: str) -> bool:
    """True where both name one leaf, of one tree where both say which."""
    one, other = _UUID.fullmatch(asked), _UUID.fullmatch(found)
    if one is None or other is None or one[2] != other[2]:
        return False
    return one[1] is None or other[1] is None or one[1] == other[1]


def _verify_head(
    text: str, signatures: list[bytes], key: ec.EllipticCurvePublicKey, *, size: int, root: bytes
) -> None:
    lines = text.split("\n")
    if len(lines) < 4 or lines[1:3] != [str(size), b64encode(root)]:
        raise ProofRejected("the log's checkpoint is of another tree than its proof")
    for signature in signatures:
        try:
            _verify_signature(key, signature, text.encode())
        except ProofRejected:
            continue  # of another key, a witness's perhaps
        return
    raise ProofRejected("the log's checkpoint is not signed by the key that you gave")


def _verify_signature(key: ec.EllipticCurvePublicKey, signature: bytes, message: bytes) -> None:
    try:
        key.verify(signature, message, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature as e:
        raise ProofRejected("the log's answer is not signed by the key that you gave") from e


class Rekor(Closing):
    """A Rekor log, reached by HTTP.

    Args:
        url: Where it is, without `/api/v1`; https, or this computer.
        key: Its public key.
        ca_file: PEM file with the only CAs to trust; None trusts those of the system.
        carrier: What carries the requests instead of the network: for tests.

    Raises:
        RequestInvalid: The address or the CA file cannot be used.
    """

    def __init__(
        self,
        url: str,
        key: ec.EllipticCurvePublicKey,
        *,
        ca_file: Path | None = None,
        carrier: Carrier | None = None,
    ) -> None:
        self.url = checked_url(url)
        if self.url.startswith("http:") and not is_loopback(self.url):
            raise RequestInvalid("the address of the Rekor log must begin with https://")
        tls = tls_context(ca_file) if self.url.startswith("https:") else None
        self.key, self._carrier = key, carrier_for(self.url, tls, carrier)

    def close(self) -> None:
        """Close the connections."""
        self._carrier.close()

    def publish(self, statement: Statement) -> tuple[Published, bool]:
        """Send *statement*, and verify what comes back; return the entry, and whether it is new.

        Raises:
            ServiceUnreachable, Unavailable: The log does not answer, or cannot now.
            RequestInvalid: It refuses the entry.
            ProofRejected: Its answer proves nothing.
        """
        answer = self._ask("POST", ENTRIES, json.dumps(statement.proposal()).encode())
        if answer.status == 201:
            return verify(_members(answer), statement, uuid=None, key=self.key), True
        if answer.status != 409:
            raise _refused(answer)
        # It has it: whoever published it before, it is the same entry. Of the address only the name is taken.
        name = answer.headers.get("location", "").rpartition("/")[2]
        if not _UUID.fullmatch(name):
            raise ProofRejected("the log has the entry, and does not say where")
        answer = self._ask("GET", f"{ENTRIES}/{name}", None)
        if answer.status != 200:
            raise _refused(answer)
        return verify(_members(answer), statement, uuid=name, key=self.key), False

    def _ask(self, method: str, path: str, content: bytes | None) -> Answer:
        return exchange(
            self._carrier, method, self.url + path, _HEADERS, content,
            max_bytes=MAX_ANSWER_BYTES, deadline_seconds=DEADLINE_SECONDS,
        )  # fmt: skip


def _members(answer: Answer) -> object:
    try:
        return json.loads(answer.body)
    except (ValueError, RecursionError) as e:
        raise AnswerInvalid("the Rekor log answered with something other than JSON") from e


def _refused(answer: Answer) -> RequestInvalid | Unavailable:
    try:
        said = clean(str(json.loads(answer.body)["message"])[:300])
    except (ValueError, KeyError, TypeError, RecursionError):
        said = "without a reason"
    words = f"the Rekor log answered {answer.status}: {said}"
    return Unavailable(words) if answer.status >= 500 or answer.status == 429 else RequestInvalid(words)


# What is kept of it


def publish_once(log: Rekor, folder: Path, head: Head, note: bytes) -> tuple[Published, bool]:
    """Publish *head* unless *folder* proves that it is in *log*; return the entry, and whether it is new.

    Args:
        log: Where to.
        folder: Of the log of *head*: checkpoints, what is in *log* of them, and the latest.
        head: The newest checkpoint, verified, grown out of the latest.
        note: Its bytes.

    Raises:
        AttestationError: As `Rekor.publish`.
        RequestInvalid: The folder cannot be written.
    """
    statement = statement_of(head)
    noted = folder / f"{head.checkpoint.size:012d}.rekor.json"
    found = _read_receipt(noted, log, statement)
    if found is not None:
        return found, False
    found, new = log.publish(statement)
    kept = {"rekor": log.url, "entry": found.document}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        put(folder / f"{head.checkpoint.size:012d}.checkpoint", note)
        put(noted, json.dumps(kept, indent=1, sort_keys=True).encode() + b"\n")
        # Last: what it names is in the log.
        put(folder / LATEST, note)
    except OSError as e:
        raise RequestInvalid(f"{folder}: {e.strerror}") from e
    return found, new


def _read_receipt(noted: Path, log: Rekor, statement: Statement) -> Published | None:
    """Return what *noted* proves; None where that is nothing about *statement* in *log*."""
    try:
        kept = json.loads(noted.read_bytes())
        return verify(kept["entry"], statement, uuid=None, key=log.key) if kept["rekor"] == log.url else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError, ProofRejected):
        return None
