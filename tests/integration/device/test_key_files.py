"""OpenSSL's provider tpm2 and tpm2-tools as judges of our key files, and our reading of theirs."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding

from attestation.device import KeyType, TPMKey
from attestation.errors import KeyNotResident
from attestation.evidence import key_certification
from attestation.evidence.key_certification import KeyMode
from attestation.tpm import AKParent, parse_public
from attestation.tpm.key_file import encode_key_file, parse_key_file
from attestation.tpm.public import PublicKey
from attestation_testing import SoftwareTPM

pytestmark = [pytest.mark.swtpm, pytest.mark.tpm2_tools]

PROVIDERS = ("-provider", "tpm2", "-provider", "default")


def run(tpm: SoftwareTPM, *arguments: str | Path, cwd: Path | None = None) -> bytes:
    """Run one program of others on *tpm* and return what it printed."""
    if shutil.which(str(arguments[0])) is None:
        pytest.fail(f"{arguments[0]} is not installed (packages openssl, tpm2-tools)")
    done = subprocess.run(
        [str(a) for a in arguments],
        capture_output=True,
        timeout=240,
        check=False,
        cwd=cwd,
        env={**os.environ, "TPM2OPENSSL_TCTI": tpm.tcti, "TPM2TOOLS_TCTI": tpm.tcti, "TSS2_LOG": "all+NONE"},
        stdin=subprocess.DEVNULL,
    )
    if b"unable to load provider tpm2" in done.stderr and b"shared object" in done.stderr:
        pytest.fail("OpenSSL's provider tpm2 is not installed (package tpm2-openssl)")
    # `openssl req -verify` returns 0 also for a request that does not verify.
    assert done.returncode == 0, done.stderr.decode()
    assert b"verify failure" not in done.stderr
    return done.stdout


def made(tpm: SoftwareTPM, kind: KeyType, path: Path) -> TPMKey:
    """Make a key and write its file."""
    with tpm.node() as node:
        key = node.create_signing_key(kind)
    path.write_bytes(encode_key_file(key))
    return key


@pytest.mark.parametrize("kind", KeyType)
def test_openssl_reads_our_key(blank_tpm: SoftwareTPM, tmp_path: Path, kind: KeyType) -> None:
    """The provider finds the key that we wrote, and signs a request with it that verifies."""
    key = made(blank_tpm, kind, tmp_path / "key.pem")
    public = run(
        blank_tpm, "openssl", "pkey", *PROVIDERS, "-in", tmp_path / "key.pem", "-pubout", "-outform", "DER"
    )
    assert public == parse_public(key.public).spki_der()
    request = tmp_path / "request.der"
    run(
        blank_tpm,
        *("openssl", "req", "-new", "-sha256", *PROVIDERS, "-key", tmp_path / "key.pem", "-subj", "/CN=node"),
        *("-outform", "DER", "-out", request),
    )
    # tpm2-openssl 1.1.1 adds NULL parameters to ecdsa-with-SHA256, so for EC only OpenSSL itself reads it.
    run(blank_tpm, "openssl", "req", "-inform", "DER", "-in", request, "-verify", "-noout")
    assert public in request.read_bytes()
    with blank_tpm.node() as node:
        node.sign(key, bytes(32))


@pytest.mark.parametrize(
    ("algorithm", "option"), [("EC", "group:P-256"), ("EC", "group:P-384"), ("RSA", "bits:2048")]
)
def test_we_use_keys_of_openssl(blank_tpm: SoftwareTPM, tmp_path: Path, algorithm: str, option: str) -> None:
    """A file of the provider: read, and the key signs for us; its attributes are seen for what they are."""
    path = tmp_path / "theirs.pem"
    run(
        blank_tpm, "openssl", "genpkey", *PROVIDERS, "-algorithm", algorithm, "-pkeyopt", option, "-out", path
    )
    key = parse_key_file(path.read_bytes())
    assert key.empty_auth
    with blank_tpm.node() as node:
        signature = node.sign(key, hashlib.sha256(b"message").digest())
        _verify(parse_public(key.public).key(), signature)
        certified = node.certify_key(key, bytes(32))
        parsed = key_certification.parse(key.public, certified.certify_info, certified.signature)
        # sign and decrypt at once: in the TPM for good, but of no mode that we certify.
        with pytest.raises(KeyNotResident, match="of-another-use"):
            key_certification.compute_mode(parsed.public, parsed.info.qualified_name)
    path.write_bytes(encode_key_file(key))
    run(blank_tpm, "openssl", "pkey", *PROVIDERS, "-in", path, "-pubout")


def _verify(public: PublicKey, signature: bytes) -> None:
    """Check a signature over SHA-256 of `message`."""
    if isinstance(public, ec.EllipticCurvePublicKey):
        public.verify(signature, b"message", ec.ECDSA(hashes.SHA256()))
    else:
        public.verify(signature, b"message", padding.PKCS1v15(), hashes.SHA256())


STORAGE = "fixedtpm|fixedparent|sensitivedataorigin|userwithauth|noda|restricted|decrypt"
SIGNING = "fixedtpm|fixedparent|sensitivedataorigin|userwithauth|noda|sign"


def test_tpm2_tools_use_our_key(blank_tpm: SoftwareTPM, tmp_path: Path) -> None:
    """tpm2_createprimary derives the parent that we mean, tpm2_load loads the key, tpm2_sign signs with it."""
    key = made(blank_tpm, KeyType.ECC_P384, tmp_path / "key.pem")
    (tmp_path / "key.pub").write_bytes(key.public)
    (tmp_path / "key.priv").write_bytes(key.private)
    (tmp_path / "message").write_bytes(b"message")
    run(
        blank_tpm,
        "tpm2_createprimary",
        "-C",
        "o",
        "-G",
        "ecc",
        "-a",
        STORAGE,
        "-c",
        "parent.ctx",
        cwd=tmp_path,
    )
    run(blank_tpm, "tpm2_flushcontext", "-t")
    run(
        blank_tpm,
        *("tpm2_load", "-C", "parent.ctx", "-u", "key.pub", "-r", "key.priv", "-c", "key.ctx", "-n", "name"),
        cwd=tmp_path,
    )
    assert (tmp_path / "name").read_bytes() == parse_public(key.public).name
    run(blank_tpm, "tpm2_flushcontext", "-t")
    run(
        blank_tpm,
        *("tpm2_sign", "-c", "key.ctx", "-g", "sha256", "-f", "plain", "-o", "sig", "message"),
        cwd=tmp_path,
    )
    public = parse_public(key.public).key()
    assert isinstance(public, ec.EllipticCurvePublicKey)
    public.verify((tmp_path / "sig").read_bytes(), b"message", ec.ECDSA(hashes.SHA256()))


def test_we_use_keys_of_tpm2_tools(blank_tpm: SoftwareTPM, tmp_path: Path) -> None:
    """A file of tpm2_encodeobject: read, used, and certified as what it is, a resident key."""
    run(
        blank_tpm,
        "tpm2_createprimary",
        "-C",
        "o",
        "-G",
        "ecc",
        "-a",
        STORAGE,
        "-c",
        "parent.ctx",
        cwd=tmp_path,
    )
    run(blank_tpm, "tpm2_flushcontext", "-t")
    run(
        blank_tpm,
        *(
            "tpm2_create",
            "-C",
            "parent.ctx",
            "-G",
            "ecc256:null:null",
            "-a",
            SIGNING,
            "-u",
            "pub",
            "-r",
            "priv",
        ),
        cwd=tmp_path,
    )
    run(blank_tpm, "tpm2_flushcontext", "-t")
    run(
        blank_tpm,
        *("tpm2_encodeobject", "-C", "0x40000001", "-u", "pub", "-r", "priv", "-o", "key.pem"),
        cwd=tmp_path,
    )
    key = parse_key_file((tmp_path / "key.pem").read_bytes())
    assert encode_key_file(key) == (tmp_path / "key.pem").read_bytes()
    with blank_tpm.node() as node:
        _verify(parse_public(key.public).key(), node.sign(key, hashlib.sha256(b"message").digest()))
        statement = node.certify_key(key, bytes(32))
        parsed = key_certification.parse(key.public, statement.certify_info, statement.signature)
        assert key_certification.compute_mode(parsed.public, parsed.info.qualified_name) is KeyMode.RESIDENT


@pytest.mark.parametrize("algorithm", ["ecc", "rsa"])
def test_certifications_of_tpm2_tools(blank_tpm: SoftwareTPM, tmp_path: Path, algorithm: str) -> None:
    """tpm2_certify under an AK of tpm2_createak: our verifier agrees; 5.4 always states the same qualifyingData."""
    run(blank_tpm, "tpm2_createek", "-G", algorithm, "-c", "ek.ctx", "-u", "ek.pub", cwd=tmp_path)
    run(blank_tpm, "tpm2_flushcontext", "-t")
    scheme = {"ecc": "ecdsa", "rsa": "rsassa"}[algorithm]
    run(
        blank_tpm,
        *(
            "tpm2_createak",
            "-C",
            "ek.ctx",
            "-G",
            algorithm,
            "-g",
            "sha256",
            "-s",
            scheme,
            "-c",
            "ak.ctx",
            "-u",
            "ak.pub",
        ),
        cwd=tmp_path,
    )
    run(blank_tpm, "tpm2_flushcontext", "-t")
    run(
        blank_tpm,
        "tpm2_createprimary",
        "-C",
        "o",
        "-G",
        "ecc",
        "-a",
        STORAGE,
        "-c",
        "parent.ctx",
        cwd=tmp_path,
    )
    run(
        blank_tpm,
        *(
            "tpm2_create",
            "-C",
            "parent.ctx",
            "-G",
            "ecc256:null:null",
            "-a",
            SIGNING,
            "-c",
            "key.ctx",
            "-u",
            "key.pub",
        ),
        cwd=tmp_path,
    )
    run(blank_tpm, "tpm2_flushcontext", "-t")
    run(
        blank_tpm,
        *("tpm2_certify", "-c", "key.ctx", "-C", "ak.ctx", "-g", "sha256", "-o", "attest", "-s", "signature"),
        cwd=tmp_path,
    )
    attest = (tmp_path / "attest").read_bytes()
    parsed = key_certification.parse(
        (tmp_path / "key.pub").read_bytes(), attest, (tmp_path / "signature").read_bytes()
    )
    claims = key_certification.verify(
        parsed,
        ak=parse_public((tmp_path / "ak.pub").read_bytes()),
        ek=parse_public((tmp_path / "ek.pub").read_bytes()),
        binding=bytes.fromhex("00ff55aa"),
        spki=parsed.spki,
        modes=frozenset({KeyMode.RESIDENT}),
    )
    assert claims.ak_parent is AKParent.EK
