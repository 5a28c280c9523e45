"""Others judge what we sign with ML-DSA-87: OpenSSL 3.5 and BouncyCastle, of Debian 13."""

from __future__ import annotations

import hashlib
import subprocess
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.ocsp import OCSPRequestBuilder, load_der_ocsp_response

from attestation.pki.crl import CRLEntry, Reason, build_crl
from attestation.pki.issuer import identity_of
from attestation.pki.ocsp import Good, build_ocsp_response, parse_ocsp_request
from attestation.pki.profiles import ProfileName
from tests.fixtures import trixie
from tests.unit.pki.certificate_kit import CA, ca_of, spki_of
from tests.unit.pki.revocation_kit import key_of

NOW = datetime.now(UTC).replace(microsecond=0)
DAY = timedelta(days=1)


@dataclass(frozen=True)
class Published:
    """What a CA publishes, in DER."""

    root: bytes
    leaf: bytes
    empty_list: bytes
    full_list: bytes
    answer: bytes


def _list(ca: CA, *serials: int) -> bytes:
    entries = [CRLEntry(serial=serial, at=NOW, reason=Reason.KEY_COMPROMISE) for serial in serials]
    return build_crl(
        ca.certificate, ca.key, number=7, entries=entries, this_update=NOW, next_update=NOW + DAY
    )


@pytest.fixture(scope="module")
def made() -> Published:
    """A root, a leaf, its lists and an answer of its responder, all signed with ML-DSA-87."""
    ca = ca_of("ml-dsa-87")
    content = ca.content_of(ProfileName.NODE_CLIENT, not_before=NOW - DAY, not_after=NOW + DAY)
    leaf, responder_key = ca.issue(content), key_of("ml-dsa-87", "responder")
    responder = ca.issue(
        ca.content_of(
            ProfileName.OCSP_SIGNING,
            spki=spki_of(responder_key),
            not_before=NOW - DAY,
            not_after=NOW + DAY,
        )
    )
    issuer, algorithm = identity_of(ca.certificate), hashes.SHA256()
    name, key = (hashlib.sha256(part).digest() for part in (issuer.subject, issuer.key_bits))
    asked = OCSPRequestBuilder().add_certificate_by_hash(name, key, content.serial, algorithm)
    answer = build_ocsp_response(
        parse_ocsp_request(asked.build().public_bytes(Encoding.DER)).cert_id,
        Good(),
        responder=responder,
        key=responder_key,
        produced_at=NOW,
        this_update=NOW,
        next_update=NOW + DAY,
    )
    return Published(ca.certificate, leaf, _list(ca), _list(ca, content.serial), answer)


def _changed(der: bytes) -> bytes:
    return der[:-1] + bytes([der[-1] ^ 1])


@pytest.fixture(scope="module")
def openssl() -> list[str]:
    """OpenSSL 3.5."""
    try:
        return trixie.openssl()
    except trixie.NotThere as e:
        pytest.skip(f"OpenSSL 3.5: {e}")


def test_openssl_believes_chain_list_and_answer(made: Published, openssl: list[str], tmp_path: Path) -> None:
    """Strict rules and a list; a certificate on it, a changed signature and a changed answer are refused."""
    files = {"root": made.root, "leaf": made.leaf, "empty": made.empty_list, "full": made.full_list}
    files |= {"forged": _changed(made.leaf), "answer": made.answer, "forged-answer": _flipped(made.answer)}
    for file, der in files.items():
        (tmp_path / file).write_bytes(der)

    def run(*options: str) -> str:
        done = subprocess.run([*openssl, *options], cwd=tmp_path, capture_output=True, text=True, check=False)
        return done.stdout + done.stderr

    def verify(leaf: str, crl: str) -> str:
        run("crl", "-inform", "DER", "-in", crl, "-out", f"{crl}.pem")
        check = ("-x509_strict", "-check_ss_sig", "-crl_check", "-no-CApath", "-no-CAstore")
        return run("verify", *check, "-CAfile", "root", "-CRLfile", f"{crl}.pem", leaf)

    assert "ML-DSA-87" in run("x509", "-in", "leaf", "-noout", "-text")
    assert verify("leaf", "empty").strip() == "leaf: OK"
    assert "certificate revoked" in verify("leaf", "full")
    assert "signature failure" in verify("forged", "empty")

    def ask(answer: str) -> str:
        return run(
            "ocsp", "-sha256", "-respin", answer, "-issuer", "root", "-cert", "leaf", "-CAfile", "root"
        )

    assert "Response verify OK" in ask("answer")
    assert "leaf: good" in ask("answer")
    assert "Response verify OK" not in ask("forged-answer")


def _flipped(answer: bytes) -> bytes:
    """Return an OCSP answer whose signature has a changed bit: it lies before the responder's certificate."""
    loaded = load_der_ocsp_response(answer)
    where = answer.index(loaded.signature)
    return answer[:where] + bytes([answer[where] ^ 1]) + answer[where + 1 :]


def test_bouncycastle_believes_chain_list_and_answer(made: Published, tmp_path: Path) -> None:
    """The same, by an implementation in Java that shares no code with OpenSSL."""
    try:
        command = trixie.bouncycastle()
    except trixie.NotThere as e:
        pytest.skip(f"BouncyCastle: {e}")
    source = Path(__file__).parents[1] / "fixtures" / "judges" / "BouncyCastleJudge.java"

    def judge(leaf: bytes, crl: bytes, answer: bytes) -> list[str]:
        for file, der in (("root", made.root), ("leaf", leaf), ("list", crl), ("answer", answer)):
            (tmp_path / file).write_bytes(der)
        at = str(int(NOW.timestamp()) + 1)
        run = [*command, str(source), at, "root", "leaf", "list", "answer"]
        done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    assert judge(made.leaf, made.empty_list, made.answer) == [
        "algorithm ML-DSA-87",
        "chain good",
        "ocsp good",
    ]
    bad = judge(_changed(made.leaf), made.full_list, _flipped(made.answer))
    assert bad[1].startswith("chain refused")
    assert bad[2] == "ocsp forged"
    assert "reason: keyCompromise" in judge(made.leaf, made.full_list, made.answer)[1]
