"""Signers by URI: made once, kept to their owner; and tokens that are not ours."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import multiprocessing
import stat
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from joserfc import jws
from joserfc.jwk import ECKey

from attestation.errors import KeyUnusable
from attestation.keys import FileSigner, JWSRejected, KeySigner, load_signer, verify_jwt
from tests.vectors import forge

CLAIMS = {"sub": "7a0e3c1e", "n": 1}


def pem(key: Any) -> bytes:
    found: bytes = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a key may be made."""
    return tmp_path / "ca" / "service-key.pem"


@pytest.fixture
def signer() -> FileSigner:
    """A signer without a file."""
    return FileSigner(pem(ec.derive_private_key(12345, ec.SECP384R1())))


def b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def token(header: dict[str, Any] | bytes, claims: Any, signature: bytes = b"") -> str:
    written = header if isinstance(header, bytes) else json.dumps(header).encode()
    return f"{b64(written)}.{b64(json.dumps(claims).encode())}.{b64(signature)}"


# ---------------------------------------------------------------- files


def load(uri: str) -> str:
    signer = load_signer(uri, create=True)
    assert isinstance(signer, KeySigner)
    return signer.kid


def test_eight_processes_make_one_key(path: Path) -> None:
    """However many start at the same time, all sign with the same key."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(8) as pool:
        kids = pool.map(load, [f"file:{path}"] * 8, chunksize=1)
    assert len(set(kids)) == 1
    assert sorted(p.name for p in path.parent.iterdir()) == [".service-key.pem.lock", "service-key.pem"]


def test_a_made_key_is_kept_to_its_owner(path: Path) -> None:
    """Mode 0600 in a directory of 0700; loaded again it is the same."""
    signer = load_signer(f"file:{path}", create=True)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert load_signer(f"file:{path}").jwks() == signer.jwks()
    assert load_signer(f"file:{path}", create=True).jwks() == signer.jwks()


def test_a_key_that_was_left_half_written_is_made_anew(path: Path) -> None:
    """A crash before the rename leaves no key behind, only a file that is written over."""
    path.parent.mkdir()
    (path.parent / ".service-key.pem.new").write_bytes(b"-----BEGIN")
    assert load_signer(f"file:{path}", create=True).jwks()["keys"]
    assert not (path.parent / ".service-key.pem.new").exists()


def test_nothing_is_made_unasked(path: Path) -> None:
    """Without `create` an absent file is an error."""
    with pytest.raises(KeyUnusable, match="cannot be read"):
        load_signer(f"file:{path}")
    assert not path.parent.exists()


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660, 0o601])
def test_a_key_that_others_may_touch_is_refused(path: Path, mode: int) -> None:
    """Any bit for group or others."""
    load_signer(f"file:{path}", create=True)
    path.chmod(mode)
    with pytest.raises(KeyUnusable, match="0600"):
        load_signer(f"file:{path}", create=True)


@pytest.mark.parametrize(
    ("uri", "match"),
    [
        ("pkcs11:token=x", "label"),
        ("tpm2:handle=0x80000001", "0x81000000"),
        ("file:relative.pem", "file:/absolute/path"),
        ("file:", "file:/absolute/path"),
        ("/etc/key.pem", "file:/absolute/path"),
        ("https://keys.example/key", "file:/absolute/path"),
        ("", "file:/absolute/path"),
        ("file:/", "cannot be read"),
    ],
)
def test_uris_that_name_no_key(uri: str, match: str) -> None:
    """Reserved, relative, unknown."""
    with pytest.raises(KeyUnusable, match=match):
        load_signer(uri, create=False)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
        pem(ec.derive_private_key(1, ec.SECP256R1())),
        pem(ec.derive_private_key(1, ec.SECP521R1())),
        pem(forge.rsa_private("ak-rsa2048")),
        ec.derive_private_key(1, ec.SECP384R1()).private_bytes(
            Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"password")
        ),
        ec.derive_private_key(1, ec.SECP384R1())
        .public_key()
        .public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
    ],
    ids=["empty", "garbage", "P-256", "P-521", "RSA", "encrypted", "public"],
)
def test_files_that_hold_no_such_key(path: Path, data: bytes) -> None:
    """Only a private key on P-384 signs; the message does not quote the file."""
    path.parent.mkdir()
    path.write_bytes(data)
    path.chmod(0o600)
    with pytest.raises(KeyUnusable, match=r"P-384|no PEM private key|encrypted") as refusal:
        load_signer(f"file:{path}")
    assert "BEGIN" not in str(refusal.value)


def test_pem_that_is_no_key() -> None:
    """Given as bytes, too."""
    with pytest.raises(KeyUnusable, match="P-384"):
        FileSigner(b"no PEM")


# ---------------------------------------------------------------- tokens


def test_a_token_of_ours(signer: FileSigner) -> None:
    """ES384, with kid and typ in the header; the claims come back."""
    made = signer.sign_jwt(CLAIMS, typ="eat+jwt")
    header = json.loads(base64.urlsafe_b64decode(made.split(".")[0] + "=="))
    assert header == {"alg": "ES384", "kid": signer.kid, "typ": "eat+jwt"}
    assert verify_jwt(made, signer.jwks(), typ="eat+jwt") == CLAIMS


def test_the_published_key_is_public(signer: FileSigner) -> None:
    """No private member in the JWK set; the kid is the RFC 7638 thumbprint."""
    (key,) = signer.jwks()["keys"]
    assert key.keys() == {"kty", "crv", "x", "y", "kid", "use", "alg"}
    members = {name: key[name] for name in ("crv", "kty", "x", "y")}
    thumbprint = hashlib.sha256(json.dumps(members, sort_keys=True, separators=(",", ":")).encode()).digest()
    assert key["kid"] == signer.kid == b64(thumbprint)


def refuse(made: str, signer: FileSigner, typ: str = "eat+jwt") -> None:
    with pytest.raises(JWSRejected) as refusal:
        verify_jwt(made, signer.jwks(), typ=typ)
    if len(made) > 20:
        assert made[:20] not in str(refusal.value)


def test_alg_none(signer: FileSigner) -> None:
    """An unsigned token, in any spelling."""
    for alg in ("none", "None", "NONE", "", None, 0):
        refuse(token({"alg": alg, "kid": signer.kid, "typ": "eat+jwt"}, CLAIMS), signer)


def test_hs256_with_the_public_key(signer: FileSigner) -> None:
    """The public key is no shared secret, in whatever form it is used as one."""
    (key,) = signer.jwks()["keys"]
    head = token({"alg": "HS256", "kid": signer.kid, "typ": "eat+jwt"}, CLAIMS).rpartition(".")[0]
    for secret in (json.dumps(key).encode(), base64.urlsafe_b64decode(key["x"] + "=="), signer.kid.encode()):
        mac = hmac.digest(secret, head.encode(), "sha256")
        refuse(f"{head}.{b64(mac)}", signer)


@pytest.mark.parametrize("alg", ["ES256", "ES512", "RS256", "PS384", "HS384", "EdDSA"])
def test_another_algorithm(signer: FileSigner, alg: str) -> None:
    """The header does not choose."""
    made = signer.sign_jwt(CLAIMS, typ="eat+jwt")
    _, claims, signature = made.split(".")
    header = b64(json.dumps({"alg": alg, "kid": signer.kid, "typ": "eat+jwt"}).encode())
    refuse(f"{header}.{claims}.{signature}", signer)


def test_another_key(signer: FileSigner) -> None:
    """Signed by a stranger: under its own kid, under ours, and with its key in the header."""
    stranger = FileSigner(pem(ec.derive_private_key(999, ec.SECP384R1())))
    refuse(stranger.sign_jwt(CLAIMS, typ="eat+jwt"), signer)
    stranger.kid, own = signer.kid, stranger.jwks()["keys"][0]
    refuse(stranger.sign_jwt(CLAIMS, typ="eat+jwt"), signer)
    _, claims, signature = stranger.sign_jwt(CLAIMS, typ="eat+jwt").split(".")
    header = b64(json.dumps({"alg": "ES384", "kid": own["kid"], "typ": "eat+jwt", "jwk": own}).encode())
    refuse(f"{header}.{claims}.{signature}", signer)


def test_one_of_several_keys(signer: FileSigner) -> None:
    """After a change of keys both are published; each token is verified under the one it names."""
    other = FileSigner(pem(ec.derive_private_key(999, ec.SECP384R1())))
    both = {"keys": signer.jwks()["keys"] + other.jwks()["keys"]}
    for each in (signer, other):
        assert verify_jwt(each.sign_jwt(CLAIMS, typ="eat+jwt"), both, typ="eat+jwt") == CLAIMS


def test_another_typ(signer: FileSigner) -> None:
    """A token for one use is none for another, and none without a typ."""
    refuse(signer.sign_jwt(CLAIMS, typ="itl-directive+jwt"), signer)
    refuse(signer.sign_jwt(CLAIMS, typ="EAT+JWT"), signer)
    refuse(signer.sign_jwt(CLAIMS, typ=""), signer)


def test_no_flipped_bit_of_a_token(signer: FileSigner) -> None:
    """Every character of a token changed in its lowest bit: refused."""
    made = signer.sign_jwt(CLAIMS, typ="eat+jwt")
    signed = made.rpartition(".")[0]
    for at in range(len(signed)):
        refuse(made[:at] + chr(ord(made[at]) ^ 1) + made[at + 1 :], signer)
    signature = base64.urlsafe_b64decode(made.rpartition(".")[2])
    for at in range(8 * len(signature)):
        changed = bytearray(signature)
        changed[at // 8] ^= 1 << at % 8
        refuse(f"{signed}.{b64(bytes(changed))}", signer)


@pytest.mark.parametrize(
    "made",
    [
        "",
        ".",
        "..",
        "a.b",
        "a.b.c",
        "a.b.c.d",
        "ä.b.c",
        "\ud800.b.c",
        token(b"[]", CLAIMS),
        token(b"null", CLAIMS),
        token(b'"text"', CLAIMS),
        token(b"\xff", CLAIMS),
        token(b"[" * 40_000, CLAIMS),
        token(b'{"alg":' + b"[" * 40_000, CLAIMS),
        token({"alg": "ES384"}, CLAIMS, bytes(96)),
        token({"alg": "ES384", "kid": 7}, CLAIMS, bytes(96)),
        token({"alg": "ES384", "kid": None}, CLAIMS, bytes(96)),
        token({"alg": "ES384", "kid": ["x"]}, CLAIMS, bytes(96)),
        token({"alg": ["ES384"], "kid": "x"}, CLAIMS, bytes(96)),
        token({"alg": "ES384", "kid": "x", "crit": ["exp"]}, CLAIMS, bytes(96)),
        "x" * 65_537,
        "." * 65_536,
    ],
)
def test_what_is_no_token(signer: FileSigner, made: str) -> None:
    """Whatever arrives, the answer is a refusal."""
    refuse(made, signer)


def test_tokens_have_at_most_64_kib(signer: FileSigner) -> None:
    """Even one of ours, truly signed."""
    refuse(signer.sign_jwt({"x": "y" * 65_536}, typ="eat+jwt"), signer)


@pytest.mark.parametrize("claims", [[], "text", 7, None])
def test_claims_are_an_object(signer: FileSigner, claims: Any) -> None:
    """Signed, but not a JWT."""
    header = {"alg": "ES384", "kid": signer.kid, "typ": "eat+jwt"}
    made = jws.serialize_compact(
        header, json.dumps(claims).encode(), ECKey.import_key(pem(signer._key)), algorithms=["ES384"]
    )
    refuse(made, signer)


@pytest.mark.parametrize(
    "jwks", [{}, {"keys": []}, {"keys": [{}]}, {"keys": [{"kty": "EC"}]}, {"keys": None}]
)
def test_no_pinned_key_verifies_nothing(signer: FileSigner, jwks: dict[str, Any]) -> None:
    """An empty or broken set refuses."""
    with pytest.raises(JWSRejected):
        verify_jwt(signer.sign_jwt(CLAIMS, typ="eat+jwt"), jwks, typ="eat+jwt")
