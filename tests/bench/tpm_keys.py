"""Keys in a TPM: signatures of the service through swtpm, and what it costs to believe a node's key."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from attestation.device import KeyType
from attestation.device.keys import key_template, load_key, make_key, sign_digest
from attestation.evidence import key_certification
from attestation.evidence.key_certification import KeyMode
from attestation.keys.open import KeyOptions, create_key
from attestation.tpm import VerificationKey, parse_public
from attestation_testing import SoftwareNode, SoftwareTPM
from tests.bench.report import Measurement, best_seconds

_SECONDS = 3.0
_ECDSA = ec.ECDSA(hashes.SHA384())


def measure() -> Iterator[Measurement]:
    """Measure P-384 signatures by place of the key, then one certification of a P-256 key by a P-256 AK."""
    with tempfile.TemporaryDirectory() as name, SoftwareTPM(Path(name) / "tpm") as tpm:
        auth = Path(name) / "auth"
        auth.write_bytes(b"secret")
        floor = _bare(tpm)
        for what, uri in (
            ("tpm2-sign-handle", f"tpm2:handle=0x81010020?tcti={tpm.uri}"),
            ("tpm2-sign-nv", f"tpm2:nv=0x01800020?tcti={tpm.uri}"),
            ("tpm2-sign-path", f"tpm2:path={name}/a.tss2?tcti={tpm.uri}"),
            ("tpm2-sign-auth", f"tpm2:path={name}/b.tss2?tcti={tpm.uri}&auth-source=file:{auth}"),
        ):
            key = create_key(uri, "ecdsa-p384", KeyOptions())
            private = key.private_key
            assert isinstance(private, ec.EllipticCurvePrivateKey)
            rate = _rate(lambda private=private: private.sign(b"to be signed", _ECDSA))  # type: ignore[misc]
            key.close()
            yield Measurement(
                name=what,
                value=rate,
                unit="/s",
                floor=floor,
                ratio=rate / floor,
                bar=">= 100 /s",
                ok=rate >= 100,
                note="P-384 through swtpm, one caller; floor: TPM2_Sign with a loaded key and nothing else",
            )
    yield _certification()


def _rate(work: Callable[[], object]) -> float:
    work()
    begun, count = time.perf_counter(), 0
    while time.perf_counter() - begun < _SECONDS:
        work()
        count += 1
    return count / (time.perf_counter() - begun)


def _bare(tpm: SoftwareTPM) -> float:
    with tpm.client() as client:
        key = load_key(client, make_key(client, key_template(KeyType.ECC_P384)))
        return _rate(lambda: sign_digest(client, key, bytes(48)))


def _certification() -> Measurement:
    node = SoftwareNode(1)
    key = node.create_signing_key()
    made = node.certify_key(key, bytes(32))
    spki = parse_public(key.public).spki_der()

    def believe() -> None:
        key_certification.verify(
            key_certification.parse(key.public, made.certify_info, made.signature),
            ak=node.ak.public,
            ek=node.ek.public,
            binding=bytes(32),
            spki=spki,
            modes=frozenset({KeyMode.RESIDENT}),
        )

    parsed = key_certification.parse(key.public, made.certify_info, made.signature)
    verification = VerificationKey(node.ak.public)
    value = best_seconds(believe) * 1e6
    floor = best_seconds(lambda: verification.verify(parsed.signature, parsed.signed)) * 1e6
    return Measurement(
        name="key-certification",
        value=value,
        unit="us",
        floor=floor,
        ratio=value / floor,
        bar="<= 4 x floor",
        ok=value <= 4 * floor,
        note="parsed and verified, keys of AK and node parsed too; floor: the AK's signature alone",
    )
